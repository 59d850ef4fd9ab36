"""Make this folder's files: ``python models/tiny.en/make.py FOLDER``.

FOLDER has OpenAI's tiny.en in float16, in Hugging Face's layout: ``config.json``,
``generation_config.json``, ``model.safetensors`` and ``LICENSE``. Each linear layer and the token
embedding become int8 with one float32 scale for each row, so that a row's largest weight is 127. A
row is one output of the layer, as in streamd's int8 engine, whose own quantisation of these weights
therefore gives the same integers again. What all rows of the token embedding share, their offset,
is taken off before and stored beside them, as that engine does with its output layer. All other
parameters stay float16. ``silence.safetensors`` has the encoder's states of silence
(streamd/models/silence.py). The script needs streamd's environment.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from streamd.engines.onnx.builder import quantised, row_offset
from streamd.engines.prepared import with_bank
from streamd.models.store import load_model

HERE = Path(__file__).parent
SOURCE_SHA256 = "27e6cbbc03132b9e95bc2ff4fe1a8c4ccb207f77998cc7567a3945b626b733f7"
"""Of OpenAI's weights in float16, the file that this script reads."""
MADE_SHA256 = "42ec1d4c5b5e329024f8a20b6bda70ebf725fe91530d6b5f27fdbb3ccc5118e0"
"""Of the file that it writes."""
EMBEDDING = "model.decoder.embed_tokens.weight"
"""The token embedding, which is the output layer, too."""


def main() -> None:
    """Read the weights, check that they are OpenAI's, write the files."""
    folder = Path(sys.argv[1])
    source = folder / "model.safetensors"
    if sha256(source) != SOURCE_SHA256:
        raise SystemExit(f"{source}: not the float16 weights of OpenAI's tiny.en")
    made = HERE / "model.safetensors"
    save_file(with_int8_rows(load_file(source)), made, {"made_from_sha256": SOURCE_SHA256})
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((folder / name).read_text())
        (HERE / name).write_text(json.dumps(fields, indent=2) + "\n")
    shutil.copyfile(folder / "LICENSE", HERE / "LICENSE")
    model = with_bank(load_model(str(folder)), threads=2, precision="float32")
    assert model.silence is not None
    rows = model.silence.states.reshape(-1, model.dims.n_audio_state).astype(np.float32)
    integers, scales = quantised(rows)
    states = {"states": np.ascontiguousarray(integers.T), "states_scale": scales[:, None]}
    save_file(states, HERE / "silence.safetensors")
    for file in HERE.glob("*.safetensors"):
        file.chmod(0o644)  # save_file makes files for the user alone
    print(f"{made}: {made.stat().st_size:,} bytes, SHA-256 {sha256(made)}")
    if sha256(made) != MADE_SHA256:
        raise SystemExit("this is not the file that was made before")


def with_int8_rows(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace each matrix of weights by int8 rows and their scales, ``..._scale`` (n_out, 1)."""
    made = {}
    for name, values in sorted(stored.items()):
        if values.ndim != 2 or name.endswith("embed_positions.weight"):
            made[name] = values
            continue
        matrix = values.astype(np.float32)
        if name == EMBEDDING:
            offset = row_offset(matrix)
            made[f"{name}_offset"] = offset.astype(np.float16)[None]
            matrix = matrix - offset
        integers, scales = quantised(matrix)
        made[name] = np.ascontiguousarray(integers.T)
        made[f"{name}_scale"] = scales[:, None]
    return made


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
