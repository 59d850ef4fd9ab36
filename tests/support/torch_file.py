"""Checkpoints as ``torch.save`` writes them, for tests without torch.

``write`` imitates it for any model. What it is imitating is shown by ``torch.pt`` beside this file,
which torch 2.13 wrote: run this file with torch and the repository in PYTHONPATH to make it again.
"""

import struct
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DIMS = {
    "n_mels": 80,
    "n_audio_ctx": 2,
    "n_audio_state": 2,
    "n_audio_head": 1,
    "n_audio_layer": 1,
    "n_vocab": 51_864,
    "n_text_ctx": 2,
    "n_text_state": 2,
    "n_text_head": 1,
    "n_text_layer": 1,
}
"""Of torch.pt."""
KINDS = {"f2": "HalfStorage", "f4": "FloatStorage"}
_LETTERS = {None: b"N", True: b"\x88", False: b"\x89"}


def values(shape: tuple[int, ...]) -> np.ndarray:
    """What every parameter in torch.pt holds: numbers that are exact in all types."""
    return (((np.arange(np.prod(shape)) * 7) % 13 - 6) / 8).reshape(shape).astype(np.float32)


def write(path: Path, dims: Mapping[str, int], weights: Mapping[str, np.ndarray]) -> Path:
    """Write an openai-whisper checkpoint."""
    tensors = {
        name: tensor(KINDS[array.dtype.str[1:]], str(i), array.shape)
        for i, (name, array) in enumerate(weights.items())
    }
    checkpoint = mapping({"dims": mapping(dims), "model_state_dict": mapping(tensors)})
    return write_zip(path, pickled(checkpoint), [array.tobytes() for array in weights.values()])


def write_zip(path: Path, pickle: bytes, storages: Iterable[bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle)
        archive.writestr("model/byteorder", b"little")
        for i, data in enumerate(storages):
            archive.writestr(f"model/data/{i}", data)
        archive.writestr("model/version", b"3\n")
    return path


def pickle_of_old_torch() -> bytes:
    """How files of torch before 1.6 begin: a number, in a pickle of its own."""
    return pickled(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")


def pickled(content: bytes) -> bytes:
    return b"\x80\x02" + content + b"."


def plain(value: Any) -> bytes:
    """A number, a text, a bool, None, or a tuple of these."""
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, tuple):
        return b"(" + b"".join(map(plain, value)) + b"t"
    if value is None or isinstance(value, bool):
        return _LETTERS[value]
    return b"\x8a\x08" + struct.pack("<q", value)


def mapping(items: Mapping[str, int | bytes]) -> bytes:
    """A dict; bytes are values that are pickled already."""
    pairs = (
        plain(key) + (value if isinstance(value, bytes) else plain(value))
        for key, value in items.items()
    )
    return b"}(" + b"".join(pairs) + b"u"


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def storage(kind: str, key: str, n_items: int) -> bytes:
    return (
        b"(" + plain("storage") + named("torch", kind) + plain(key) + plain("cpu")
        + plain(n_items) + b"tQ"
    )  # fmt: skip


def tensor(kind: str, key: str, shape: tuple[int, ...], **changed: Any) -> bytes:
    """A contiguous tensor that fills its storage, but for what is `changed`."""
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    told = {"offset": 0, "strides": strides, "n_items": int(np.prod(shape)), **changed}
    return (
        named("torch._utils", "_rebuild_tensor_v2") + b"("
        + storage(kind, key, told["n_items"])
        + plain(told["offset"]) + plain(shape) + plain(told["strides"]) + plain(False)
        + named("collections", "OrderedDict") + b")R" + b"tR"
    )  # fmt: skip


def _make(out: Path) -> None:
    """A checkpoint with what torch can do to tensors: types, views, shared storages, metadata."""
    import torch

    from streamd.models import ModelDimensions
    from streamd.models.model import parameter_shapes

    state = torch.nn.Linear(1, 1).state_dict()  # an OrderedDict with attributes
    state.clear()
    for name, shape in parameter_shapes(ModelDimensions(**DIMS)).items():
        state[name] = torch.from_numpy(values(shape)).half()
    conv = state["encoder.conv1.weight"]
    state["encoder.conv1.weight"] = conv.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    state["encoder.conv2.weight"] = torch.nn.Parameter(state["encoder.conv2.weight"])
    both = torch.cat([state["decoder.ln.weight"], state["decoder.ln.bias"]])
    state["decoder.ln.weight"], state["decoder.ln.bias"] = both[:2], both[2:]
    state["encoder.ln_post.weight"] = state["encoder.ln_post.weight"].bfloat16()
    state["encoder.ln_post.bias"] = state["encoder.ln_post.bias"].float()
    torch.save({"dims": DIMS, "model_state_dict": state}, out)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
