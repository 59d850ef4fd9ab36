"""MLX's folders: the same model as OpenAI's, in few bits, too; damaged ones are refused."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from streamd.models import ModelDimensions
from streamd.models.formats.mlx import sinusoids
from streamd.models.model import parameter_shapes
from tests.golden.random_model import random_weights
from tests.support import folders, torch_file
from tests.support.checkpoints import damaged_copy, little_memory, load_damaged, read_model, refusal

DIMS = replace(ModelDimensions(**torch_file.DIMS), n_audio_ctx=6, n_text_layer=3)
FILES = ["weights.npz", "weights.safetensors", "model.safetensors"]


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    """In float16, with the positions that the folder does not have."""
    made = {n: w.astype("f2") for n, w in random_weights(parameter_shapes(DIMS)).items()}
    return made | {"encoder.positional_embedding": sinusoids(DIMS.n_audio_ctx, DIMS.n_audio_state)}


@pytest.fixture
def folder(weights, tmp_path) -> Path:
    return folders.mlx(tmp_path / "model", DIMS, weights)


def configure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("item", ["f2", "f4"])
def test_the_same_weights(file, item, weights, tmp_path):
    stored = {name: values.astype(item) for name, values in weights.items()}
    model = read_model(str(folders.mlx(tmp_path / "mine", DIMS, stored, file, [[2, 0]])))
    assert model.name == "mine"
    assert model.dims == DIMS
    assert model.language == "en"
    assert len(model.vocabulary) == 50_256
    assert model.alignment_heads == ((2, 0),)
    assert model.weights.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(model.weights[name], values.astype("f4"), err_msg=name)
        assert model.weights[name].flags.c_contiguous, "or ONNX Runtime refuses it"


def test_positions_as_openai_has_them():
    """The first numbers of tiny.en's encoder.positional_embedding, in float16, and the last."""
    found = sinusoids(1500, 384)
    assert found.dtype == np.float16
    assert found.shape == (1500, 384)
    np.testing.assert_array_equal(found[0], [0.0] * 192 + [1.0] * 192)
    assert float(found[53, 342]) == 0.9990234375, "rounding once would give 0.99951171875"


@pytest.mark.parametrize("heads", [None, [[1, 0], [2, 0]], [[7, 0]]])
def test_heads_of_nobody_are_the_usual_ones(heads, weights, tmp_path):
    """The upper half is what is listed where none are known."""
    model = read_model(str(folders.mlx(tmp_path / "mine", DIMS, weights, heads=heads)))
    assert model.alignment_heads == ((1, 0), (2, 0))


@pytest.mark.parametrize(
    "heads", [np.zeros(3, "i4"), np.zeros((2, 2), "f2"), np.zeros((0, 2), "i8")]
)
def test_heads_of_another_shape_are_ignored(heads, weights, tmp_path):
    folder = folders.mlx(tmp_path / "mine", DIMS, weights, "model.safetensors")
    stored = load_file(folder / "model.safetensors")
    save_file(stored | {"alignment_heads": heads}, folder / "model.safetensors")
    assert read_model(str(folder)).alignment_heads == ((1, 0), (2, 0))


def test_columns_before_rows(folder, weights):
    """MLX writes what was transposed last as it lies in memory."""
    path = folder / "weights.npz"
    with np.load(path) as stored:
        turned = {name: np.asfortranarray(values) for name, values in stored.items()}
    np.savez(path, **turned)
    assert b"'fortran_order': True" in path.read_bytes()
    for name, values in read_model(str(folder)).weights.items():
        np.testing.assert_array_equal(values, weights[name].astype("f4"), err_msg=name)


def test_bfloat16_in_an_npz(folder, weights):
    """MLX writes it as two bytes of anything."""
    values = weights["decoder.ln.weight"].astype(ml_dtypes.bfloat16)
    header = "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }"
    rewrite(folder, "decoder.ln.weight", array(header, values.tobytes()))
    found = read_model(str(folder)).weights["decoder.ln.weight"]
    np.testing.assert_array_equal(found, values.astype("f4"))


WIDE = replace(DIMS, n_audio_state=128, n_text_state=128, n_audio_head=2, n_text_head=2)
ROUNDED = ("decoder.token_embedding", "encoder.blocks.0.mlp.2", "decoder.blocks.1.cross_attn.key")


def quantise(values: np.ndarray, bits: int, group: int) -> dict[str, np.ndarray]:
    """Integers in words of 32 bits, scales and offsets, by the definition: one bit at a time."""
    groups = values.astype("f4").reshape(len(values), -1, group)
    low = groups.min(axis=-1, keepdims=True)
    scales = ((groups.max(axis=-1, keepdims=True) - low) / (2**bits - 1)).astype("f2")
    offsets = low.astype("f2")
    integers = np.rint((groups - offsets) / scales).clip(0, 2**bits - 1).astype(int)
    words = []
    for row in integers.reshape(len(values), -1):
        number = sum(int(each) << bits * at for at, each in enumerate(row))
        words.append(np.frombuffer(number.to_bytes(len(row) * bits // 8, "little"), "<u4"))
    exact = integers * scales.astype("f4") + offsets.astype("f4")
    return {
        "weight": np.stack(words),
        "scales": scales[..., 0],
        "biases": offsets[..., 0],
        "exact": exact.reshape(values.shape),
    }


@pytest.fixture(scope="module")
def wide() -> dict[str, np.ndarray]:
    made = {n: w.astype("f2") for n, w in random_weights(parameter_shapes(WIDE)).items()}
    return made | {"encoder.positional_embedding": sinusoids(WIDE.n_audio_ctx, 128)}


@pytest.mark.parametrize("file", ["weights.npz", "model.safetensors"])
@pytest.mark.parametrize(
    ("bits", "group"), [(2, 32), (3, 64), (4, 64), (4, 128), (5, 32), (6, 128), (8, 64)]
)
def test_quantised_matrices_are_what_their_integers_stand_for(file, bits, group, wide, tmp_path):
    stored, expected = dict(wide), dict(wide)
    for name in ROUNDED:
        parts = quantise(stored.pop(f"{name}.weight"), bits, group)
        expected[f"{name}.weight"] = parts.pop("exact")
        stored |= {f"{name}.{kind}": values for kind, values in parts.items()}
    folder = folders.mlx(tmp_path / "mine", WIDE, stored, file)
    configure(folder, quantization={"group_size": group, "bits": bits})
    found = read_model(str(folder)).weights
    assert found.keys() == wide.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values.astype("f4"), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "form",
    [
        {"bits": 4, "group_size": 32, "mode": "mxfp4"},
        {"bits": 7, "group_size": 64},
        {"bits": 4, "group_size": 48},
    ],
)
def test_other_quantised_ones_are_named(folder, form):
    configure(folder, quantization=form)
    said = f"{form['bits']} bits in groups of {form['group_size']}), which streamd does not read"
    assert said in refusal(folder)


@pytest.mark.parametrize("changed", ["bits", "group", "no offsets", "not packed", "flat", "scalar"])
def test_matrices_that_are_not_as_the_configuration_says(changed, wide, tmp_path):
    stored, name = dict(wide), ROUNDED[0]
    parts = quantise(stored.pop(f"{name}.weight"), 4, 64)
    del parts["exact"]
    if changed == "no offsets":
        del parts["biases"]
    elif changed == "not packed":
        parts["weight"] = parts["weight"].astype("f4")
    elif changed == "scalar":
        parts["scales"] = parts["scales"].ravel()[0]
    elif changed == "flat":
        parts["scales"] = parts["scales"].ravel()
    stored |= {f"{name}.{kind}": values for kind, values in parts.items()}
    folder = folders.mlx(tmp_path / "mine", WIDE, stored)
    bits, group = 8 if changed == "bits" else 4, 32 if changed == "group" else 64
    configure(folder, quantization={"group_size": group, "bits": bits})
    assert f"{name} is not quantised as config.json says" in refusal(folder)


@pytest.mark.parametrize(
    "changes", [{"n_audio_ctx": 1501}, {"n_audio_head": 0}, {"n_mels": "80"}, {"n_vocab": None}]
)
def test_other_dimensions(folder, changes):
    configure(folder, **changes)
    assert "config.json" in refusal(folder)


def test_a_vocabulary_that_is_not_openai_s(folder, weights):
    configure(folder, n_vocab=1000)
    refusal(folder)


def rewrite(folder: Path, name: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """Another content for an array of the .npz."""
    path = folder / "weights.npz"
    with zipfile.ZipFile(path) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for part, data in (parts | {f"{name}.npy": content}).items():
            archive.writestr(part, data)


def array(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is no array"),
        (b"\x93NUMPY", "is no array"),
        (
            array("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }", version=b"\3\0"),
            "no ",
        ),
        (array("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }"), "is of type |O"),
        (array("{'descr': '<f2', 'fortran_order': False, 'shape': (9,), }"), "has shape [9]"),
        (array("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }"), "expected 4 bytes"),
        (array("{'descr': '<f2', 'fortran_order': print(), 'shape': (2,), }"), "is no array"),
        (
            array("{'descr': '<f2', 'fortran_order': False, 'shape': (" + "9" * 300 + ",), }"),
            "has sh",
        ),
        (array("[" * 900), "is no array"),
    ],
)
def test_damaged_arrays(content, expected, folder):
    rewrite(folder, "decoder.ln.weight", content)
    with little_memory():
        assert expected in refusal(folder)


def test_nothing_is_unpacked(folder):
    rewrite(folder, "decoder.ln.weight", b"\0" * 10_000_000, zipfile.ZIP_DEFLATED)
    assert "damaged" in refusal(folder)


def test_files_that_are_missing(folder):
    (folder / "config.json").unlink()
    assert "config.json: no such file" in refusal(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_copies_are_whole_models_or_refused(data, folder):
    path = folder / data.draw(st.sampled_from(["weights.npz"] * 3 + ["config.json"]))
    whole = path.read_bytes()
    near = st.integers(0, min(800, len(whole) - 1))
    ends = near | near.map(lambda back: len(whole) - 1 - back)
    damaged = damaged_copy(data, whole, ends)
    model = load_damaged(folder, path, damaged)
    if model is None:
        return
    assert {n: v.shape for n, v in model.weights.items()} == parameter_shapes(model.dims)
