"""CTranslate2's folders: the same model in each of its types; damaged ones are refused."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.engines.onnx.builder import quantised
from streamd.models import ModelDimensions
from streamd.models.model import OUTPUT, parameter_shapes
from tests.golden.random_model import random_weights
from tests.support import folders
from tests.support.checkpoints import (
    assert_only_read,
    checkpoint,
    damaged_copy,
    little_memory,
    load_damaged,
    read_model,
    refusal,
)

DIMS = ModelDimensions(80, 16, 8, 2, 2, 300 + 1608, 8, 8, 2, 1)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    """Such that float16 is exact."""
    shapes = parameter_shapes(DIMS)
    return {n: w.astype("f2").astype("f4") for n, w in random_weights(shapes).items()}


@pytest.fixture
def folder(weights, tmp_path) -> Path:
    return folders.ct2(tmp_path / "model", DIMS, weights, list(checkpoint("few").vocabulary))


@pytest.fixture
def variables(weights) -> dict[str, np.ndarray]:
    return folders.ct2_variables(DIMS, weights, "float16")


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_the_same_weights(kind, weights, tmp_path):
    model = read_model(
        str(folders.ct2(tmp_path / "mine", DIMS, weights, list(checkpoint("few").vocabulary), kind))
    )
    assert model.name == "mine"
    assert model.dims == DIMS
    assert model.language == "en"
    assert model.alignment_heads == ((0, 0),)
    assert model.suppress_tokens == (1, 2)
    assert model.begin_suppress_tokens == (3,)
    assert list(model.vocabulary) == list(checkpoint("few").vocabulary)
    assert model.weights.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(model.weights[name], values, err_msg=name)


@pytest.mark.parametrize("kind", ["int8", "int8_float16"])
def test_int8_gives_the_engine_the_integers_of_the_file(kind, weights, tmp_path):
    model = read_model(
        str(folders.ct2(tmp_path / "mine", DIMS, weights, list(checkpoint("few").vocabulary), kind))
    )
    for name, values in weights.items():
        if name.endswith(".weight") and values.ndim > 1:
            rows = values.reshape(len(values), -1)
            expected = np.rint(rows * (np.float32(127) / np.abs(rows).max(axis=1))[:, None])
            integers, _ = quantised(model.weights[name].reshape(rows.shape))
            np.testing.assert_array_equal(integers.T, expected, err_msg=name)
            np.testing.assert_allclose(model.weights[name], values, atol=np.abs(values).max() / 250)
        else:
            np.testing.assert_array_equal(model.weights[name], values, err_msg=name)


@pytest.mark.parametrize("kind", ["float16", "float32", "int8"])
def test_the_file_does_not_stay_mapped(kind, weights, tmp_path):
    path = folders.ct2(tmp_path / "mine", DIMS, weights, list(checkpoint("few").vocabulary), kind)
    assert_only_read(str(path), path / "model.bin")


def test_bfloat16(variables, weights, folder):
    """It has a number of its own, and numpy no name for it."""
    name = "decoder/layer_norm/gamma"
    half = (weights["decoder.ln.weight"].view("u4") >> 16).astype("<u2")
    content = folders.ct2_file(variables)
    at = content.index(name.encode()) + len(name) + 1
    head = struct.pack("<BIBI", 1, 8, 4, 16)
    assert content[at : at + 10] == head
    changed = struct.pack("<BIBI", 1, 8, 5, 16) + half.tobytes()
    (folder / "model.bin").write_bytes(content[:at] + changed + content[at + len(changed) :])
    expected = (half.astype("<u4") << 16).view("f4")
    np.testing.assert_array_equal(read_model(str(folder)).weights["decoder.ln.weight"], expected)


def test_an_output_layer_of_its_own(variables, folder):
    output = variables["decoder/embeddings/weight"][::-1].copy()
    untied = variables | {"decoder/projection/weight": output}
    (folder / "model.bin").write_bytes(folders.ct2_file(untied))
    np.testing.assert_array_equal(read_model(str(folder)).weights[OUTPUT], output.astype("f4"))


def test_equal_variables_are_stored_once(variables, weights, folder):
    """CTranslate2 does it with all that happen to be equal."""
    same = {"encoder/layer_1/ffn/layer_norm/beta": "encoder/layer_0/ffn/layer_norm/beta"}
    rest = {name: values for name, values in variables.items() if name not in same}
    aliases = same | {"decoder/projection/weight": "decoder/embeddings/weight"}
    (folder / "model.bin").write_bytes(folders.ct2_file(rest, aliases=aliases))
    found = read_model(str(folder)).weights
    np.testing.assert_array_equal(
        found["encoder.blocks.1.mlp_ln.bias"], weights["encoder.blocks.0.mlp_ln.bias"]
    )


def test_old_converters_wrote_the_vocabulary_as_lines(folder):
    expected = read_model(str(folder)).vocabulary
    lines = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.json").unlink()
    (folder / "vocabulary.txt").write_text("".join(f"{line}\n" for line in lines))
    assert read_model(str(folder)).vocabulary == expected
    (folder / "vocabulary.txt").write_bytes(b"\xff\n")
    assert "vocabulary.txt" in refusal(folder)


def test_without_any_vocabulary_there_is_openai_s(folder):
    (folder / "vocabulary.json").unlink()
    assert "1908 tokens are none of OpenAI's" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"spec": "TransformerSpec"}, "CTranslate2's TransformerSpec; streamd reads only WhisperS"),
        ({"spec": "nothing"}, "no model of CTranslate2"),
        ({"version": 5}, "of version 5 of CTranslate2's files, not 6; convert the model again"),
        ({"version": 2**31}, "no model of CTranslate2"),
        ({"aliases": {"x": "y"}}, "damaged (y is missing)"),
    ],
)
def test_other_files(change, expected, variables, folder):
    (folder / "model.bin").write_bytes(folders.ct2_file(variables, **change))
    assert expected in refusal(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"decoder/activation": np.int8(0)}, "no Whisper model"),
        ({"decoder/scale_embeddings": np.int8(1)}, "no Whisper model"),
        ({"decoder/num_heads": np.int16(3)}, "no Whisper model"),
        ({"decoder/num_heads": None}, "damaged ('decoder/num_heads')"),
        ({"encoder/conv1/weight": np.zeros((8, 80), "f2")}, "damaged"),
        ({"encoder/conv1/weight": np.zeros((8, 80, 0), "f2")}, "has shape [8, 80, 0]"),
        ({"encoder/layer_norm/gamma": np.zeros(9, "f2")}, "encoder.ln_post.weight has shape [9]"),
        ({"encoder/layer_norm/gamma": None}, "encoder.ln_post.weight is missing"),
        ({"encoder/layer_norm/gamma": np.full(8, np.inf, "f2")}, "holds NaN or infinity"),
        ({"encoder/layer_norm/gamma": np.zeros(8, "i2")}, "is of type I16; convert the model"),
        ({"encoder/layer_norm/gamma": np.zeros(8, "i1")}, "no scale for each row"),
        ({"encoder/layer_0/self_attention/linear_0/bias": np.zeros(25, "f2")}, "a wrong shape"),
        ({"encoder/layer_9/ffn/linear_0/bias": np.zeros(32, "f2")}, "dimensions and weights do"),
        ({"decoder/layer_0/ffn/what": np.zeros(8, "f2")}, "decoder/layer_0/ffn/what is not a part"),
        ({"decoder/layer_\n/ffn/linear_0/bias": np.zeros(8, "f2")}, "is not a part of a model"),
    ],
)
def test_what_is_no_whisper(change, expected, variables, folder):
    changed = {name: v for name, v in (variables | change).items() if v is not None}
    (folder / "model.bin").write_bytes(folders.ct2_file(changed))
    assert expected in refusal(folder)


@pytest.mark.parametrize("scale", [np.zeros(7, "f4"), np.zeros((8, 1), "f4"), np.ones(8, "i1")])
def test_scales_of_another_shape(scale, weights, folder):
    made = folders.ct2_variables(DIMS, weights, "int8")
    made["encoder/layer_0/ffn/linear_1/weight_scale"] = scale
    (folder / "model.bin").write_bytes(folders.ct2_file(made))
    assert "no scale for each row of encoder/layer_0/ffn/linear_1/weight" in refusal(folder)


def test_a_scale_of_nothing(weights, folder):
    made = folders.ct2_variables(DIMS, weights, "int8")
    made["encoder/layer_0/ffn/linear_1/weight_scale"][3] = 0
    (folder / "model.bin").write_bytes(folders.ct2_file(made))
    assert "encoder.blocks.0.mlp.2.weight holds NaN or infinity" in refusal(folder)


@pytest.mark.parametrize(
    "tail",
    [
        struct.pack("<I", 2**32 - 1),  # so many variables
        struct.pack("<I", 1) + struct.pack("<H", 65_535),
        struct.pack("<I", 1) + b"\2\0a\0" + struct.pack("<B", 255) + b"\xff" * 1020,
        struct.pack("<I", 1) + b"\2\0a\0" + struct.pack("<BIIBI", 2, 2**31, 2**31, 4, 8),
        struct.pack("<I", 1) + b"\2\0a\0" + struct.pack("<BIBI", 1, 2**32 - 1, 1, 2**32 - 1),
        struct.pack("<I", 1) + b"\2\0a\0" + struct.pack("<BIBI", 1, 0, 77, 0),
        struct.pack("<II", 0, 2**32 - 1),
    ],
)
def test_no_size_is_believed(tail, folder):
    head = struct.pack("<I", 6) + b"\x0c\0WhisperSpec\0" + struct.pack("<I", 3)
    (folder / "model.bin").write_bytes(head + tail)
    with little_memory():
        assert "model.bin: damaged" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json"])
def test_damaged_files(folder, name):
    for damaged in (b"", b"\0" * 100, b"[[]]", b"[" * 100_000, b'["a", "a"]'):
        (folder / name).write_bytes(damaged)
        assert name in refusal(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_copies_are_whole_models_or_refused(data, folder):
    """There are no checksums: a wrong weight goes unnoticed, anything else does not."""
    path = folder / data.draw(st.sampled_from(["model.bin"] * 3 + ["config.json"]))
    whole = path.read_bytes()
    damaged = damaged_copy(data, whole, st.integers(0, min(800, len(whole) - 1)))
    model = load_damaged(folder, path, damaged)
    if model is None:
        return
    expected = parameter_shapes(model.dims, tied=OUTPUT not in model.weights)
    assert {name: values.shape for name, values in model.weights.items()} == expected
