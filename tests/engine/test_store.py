"""A model is loaded whole or refused in one line that names the file; a traceback never."""

import base64
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from streamd.assets import asset
from streamd.engine import ModelDimensions
from streamd.engine.store import load_model
from streamd.engine.weights import parameter_shapes
from streamd.errors import ModelError

FILES = ("config.json", "model.safetensors", "vocab.tiktoken")
DIMS = {
    "n_mels": 80,
    "n_audio_ctx": 32,
    "n_audio_state": 8,
    "n_audio_head": 2,
    "n_audio_layer": 1,
    "n_vocab": 256 + 1608,
    "n_text_ctx": 16,
    "n_text_state": 8,
    "n_text_head": 2,
    "n_text_layer": 2,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound little model, to be damaged."""
    config = {"dims": DIMS, "alignment_heads": [[1, 0], [0, 1]], "min_audio_ctx": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    lines = [base64.b64encode(bytes([b])).decode() + f" {b}\n" for b in range(256)]
    (tmp_path / "vocab.tiktoken").write_text("".join(lines))
    save_file(weights(), tmp_path / "model.safetensors")
    return tmp_path


def weights() -> dict[str, np.ndarray]:
    return {
        name: np.full(shape, 0.25, np.float16)
        for name, shape in parameter_shapes(ModelDimensions(**DIMS)).items()
    }


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path) -> str:
    """The one line with which the model is refused."""
    with pytest.raises(ModelError) as caught:
        load_model(str(folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_demo_model_is_bundled():
    model = load_model("demo")
    assert model.name == "demo"
    assert model.dims.n_vocab == 2612
    assert model.language == "en"
    assert model.vocabulary[b"!"] == 0
    assert model.alignment_heads
    assert model.text_style
    stored = load_file(asset("demo") / "model.safetensors")
    assert stored.keys() == model.weights.keys()
    for name, values in model.weights.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, stored[name].astype(np.float32))


def test_a_folder_is_a_model(folder):
    model = load_model(str(folder))
    assert model.name == folder.name
    assert model.language is None
    assert model.min_audio_ctx == 8
    assert model.alignment_heads == ((0, 1), (1, 0)), "sorted by layer, then head"
    assert len(model.vocabulary) == 256
    assert all((values == 0.25).all() for values in model.weights.values())


@pytest.mark.parametrize("name", ["basic.en", "", "a/b/c", "some/--x", "some/tiny@../x"])
def test_unknown_name_is_told_what_there_could_be(name):
    with pytest.raises(ModelError, match=rf"'{name}' not found.*streamd models list"):
        load_model(name)


@pytest.mark.parametrize("name", ["base.en", "turbo", "some/tiny", "some/tiny@refs/pr/1"])
def test_model_that_is_not_downloaded(name):
    with pytest.raises(ModelError, match=f"{name} is not downloaded; .* models get {name}$"):
        load_model(name)


@pytest.mark.parametrize("name", FILES)
def test_missing_file(folder, name):
    (folder / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("n_bytes", [0, 5, 100])
def test_truncated_file(folder, name, n_bytes):
    path = folder / name
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert name in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_noise_instead_of_a_file(folder, name):
    (folder / name).write_bytes(np.random.default_rng(1).bytes(5000))
    assert name in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_folder_instead_of_a_file(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    assert name in refusal(folder)


@pytest.mark.parametrize("n_cut", [1, 64, 4000])
def test_weights_cut_at_the_end(folder, n_cut):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-n_cut])
    assert "model.safetensors: damaged" in refusal(folder)


@pytest.mark.parametrize("size", [10**8, 2**40, 2**63, 2**64 - 1])
def test_absurd_header_size_allocates_nothing(folder, size):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + b"{}")
    assert "model.safetensors: damaged" in refusal(folder)


def test_absurd_shape_in_the_header_allocates_nothing(folder):
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "model.safetensors: damaged" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "vocab.tiktoken"])
def test_huge_text_file_is_not_read(folder, name):
    with (folder / name).open("wb") as file:
        file.truncate(10**12)  # sparse: takes no space
    assert f"{name}: larger" in refusal(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers(folder, value):
    damaged = weights()
    damaged["decoder.ln.bias"][3] = value
    save_file(damaged, folder / "model.safetensors")
    assert "decoder.ln.bias holds NaN or infinity" in refusal(folder)


def test_wrong_shape(folder):
    damaged = weights()
    damaged["decoder.ln.bias"] = np.zeros((2, 4), np.float16)
    save_file(damaged, folder / "model.safetensors")
    assert "decoder.ln.bias has shape [2, 4], not [8]" in refusal(folder)


@pytest.mark.parametrize("dtype", ["I16", "U16"])
def test_wrong_type(folder, dtype):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + size].replace(b'"F16"', f'"{dtype}"'.encode())
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    assert f"is of type {dtype}" in refusal(folder)


def test_missing_tensor(folder):
    damaged = weights()
    del damaged["encoder.blocks.0.attn.out.bias"]
    save_file(damaged, folder / "model.safetensors")
    assert "encoder.blocks.0.attn.out.bias is missing" in refusal(folder)


def test_tensor_of_a_larger_model(folder):
    save_file(
        weights() | {"encoder.blocks.9.mlp.0.bias": np.zeros(32, np.float16)},
        folder / "model.safetensors",
    )
    assert "encoder.blocks.9.mlp.0.bias is not a part" in refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"dims": DIMS | {"n_text_layer": 0}},
        {"dims": DIMS | {"n_text_layer": 10**9}},
        {"dims": DIMS | {"n_vocab": 10**30}},
        {"dims": DIMS | {"n_audio_ctx": -1500}},
        {"dims": DIMS | {"n_audio_head": 3}},
        {"dims": DIMS | {"n_text_state": 16}},
        {"dims": DIMS | {"n_mels": "80"}},
        {"dims": {}},
        {"dims": None},
        {"alignment_heads": []},
        {"alignment_heads": [[2, 0]]},
        {"alignment_heads": [[0, -1]]},
        {"alignment_heads": [[0]]},
        {"language": 7},
        {"min_audio_ctx": 0},
        {"min_audio_ctx": 33},
    ],
)
def test_impossible_config(folder, change):
    change_config(folder, **change)
    assert "config.json" in refusal(folder)


def test_config_of_another_vocabulary(folder):
    change_config(folder, dims=DIMS | {"n_vocab": 51864})
    assert "do not match" in refusal(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:-1],
        lambda lines: lines + lines[-1:],
        lambda lines: lines[:40] + lines[41:],
        lambda lines: [*lines, b"no-base64! 256"],
        lambda lines: [*lines, b"IQ=="],
        lambda lines: [*lines, b"SGVsbG8= x"],
        lambda lines: [*lines, b"SGVsbG8= 300"],
        lambda lines: lines[::-1],
    ],
)
def test_damaged_vocabulary(folder, damage):
    path = folder / "vocab.tiktoken"
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())))
    assert "vocab.tiktoken" in refusal(folder)


def test_a_copy_of_the_demo_model_is_the_demo_model(tmp_path):
    for name in FILES:
        shutil.copy(asset("demo") / name, tmp_path / name)
    assert load_model(str(tmp_path)).dims == load_model("demo").dims
