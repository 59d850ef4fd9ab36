"""Models of the true shapes with random weights, written tensor by tensor.

    python tests/real/shapes.py SIZE FOLDER

writes a Hugging Face folder in float16. large-v3 takes 3.1 GB of disk, and never more memory than
its largest tensor. The weights say nothing of words, but all that depends on shapes is as it is
with real ones: arithmetic, memory, time.
"""

import json
import math
import sys
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.models.catalog import dimensions, entry
from streamd.models.model import Model, only_language, openai_vocabulary, parameter_shapes
from tests.support import huggingface_folder as huggingface

SIZES = ("small", "medium", "large-v3", "large-v3-turbo", "distil-large-v3")


def tensor(name: str, shape: tuple[int, ...], n_layers: int) -> NDArray[np.float16]:
    """A parameter, seeded by its name, with the variance that keeps activations of unit size."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.standard_normal(shape, dtype=np.float32)
    is_scale = name.endswith(("_ln.weight", ".ln.weight", ".ln_post.weight"))
    if is_scale or name.endswith(".bias"):
        gain = 0.1 if is_scale else 0.02
    elif "embedding" in name:
        gain = 0.5 / math.sqrt(shape[1])
    else:
        gain = 0.9 / math.sqrt(math.prod(shape[1:]))
    if name.endswith((".out.weight", ".mlp.2.weight")):
        gain /= math.sqrt(2 * n_layers)  # each layer adds to what it gets
    return (values * np.float32(gain) + np.float32(is_scale)).astype(np.float16)


def write(size: str, folder: Path) -> Path:
    """Write the folder, unless it is there."""
    if (weights := folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    dims = dimensions(size)
    listed = entry(size)
    heads = listed.heads if listed else ()
    vocabulary = openai_vocabulary(Path(size), dims.n_vocab)
    model = Model(size, dims, {}, vocabulary, tuple(heads), only_language(dims))
    for name, content in huggingface.described(model).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False))
    shapes = parameter_shapes(dims)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        about = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
        header[huggingface.renamed(name)] = about
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = folder / "model.part"
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            n_layers = dims.n_audio_layer if name.startswith("encoder") else dims.n_text_layer
            file.write(tensor(name, shape, n_layers).tobytes())
    part.rename(weights)
    return folder


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
