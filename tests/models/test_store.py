"""A model is loaded whole or refused in one line that names the file; a traceback never."""

import json
import shutil
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from streamd.engines.onnx.builder import quantised, row_offset
from streamd.errors import ModelError
from streamd.models.store import load_model
from streamd.system.disk import asset
from tests.support import huggingface_folder
from tests.support.checkpoints import checkpoint, refusal

WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "tokenizer.json")
BIAS = "model.decoder.layer_norm.bias"
OUT_BIAS = "model.encoder.layers.0.self_attn.out_proj.bias"
EMBEDDING = "model.decoder.embed_tokens.weight"
MATRIX = "model.decoder.layers.0.fc1.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound little model, to be damaged."""
    return huggingface_folder.write(checkpoint("few"), tmp_path)


@cache
def weights() -> dict[str, np.ndarray]:
    """What is in its file of weights."""
    model = checkpoint("few")
    return {
        huggingface_folder.renamed(name): values.astype(np.float16)
        for name, values in model.weights.items()
    }


# -- the model in the box ----------------------------------------------------------------------


def test_tiny_en_is_bundled():
    model = load_model("tiny.en")
    assert model.name == "tiny.en"
    assert (model.dims.n_vocab, model.dims.n_text_ctx) == (51_864, 448)
    assert model.language == "en"
    assert model.vocabulary.find(b"!") == 0
    assert model.alignment_heads == (
        *((1, 0), (2, 0), (2, 5)),
        *((3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
    )


def test_its_int8_rows_are_multiplied_by_their_scales_and_found_again_by_the_engine():
    model, stored = load_model("tiny.en"), load_file(asset("tiny.en") / WEIGHTS)
    scaled = {name for name in stored if f"{name}_scale" in stored}
    assert len(scaled) == 4 * (6 + 10) + 1
    assert [name for name in stored if name.endswith("_offset")] == [f"{EMBEDDING}_offset"]
    for name, values in model.weights.items():
        theirs = huggingface_folder.renamed(name)
        given = stored[theirs]
        assert values.dtype == np.float32
        if theirs in scaled:
            assert given.dtype == np.int8
            product = given * stored[f"{theirs}_scale"]
            offset = stored.get(f"{theirs}_offset", np.zeros((1, 1), np.float16))
            np.testing.assert_array_equal(values, product + offset.astype(np.float32))
            if offset.any():  # the engine finds it again, too
                np.testing.assert_array_equal(row_offset(values)[None], offset)
            rows, _ = quantised(values - offset.astype(np.float32))
            np.testing.assert_array_equal(rows.T, given, err_msg=name)
        else:
            np.testing.assert_array_equal(values, given.astype(np.float32), err_msg=name)


def test_a_copy_of_it_is_the_same_model(tmp_path):
    shutil.copytree(asset("tiny.en"), tmp_path / "copy")
    assert load_model(str(tmp_path / "copy")).dims == load_model("tiny.en").dims


# -- folders -----------------------------------------------------------------------------------


def test_a_folder_is_a_model(folder):
    model = load_model(str(folder))
    assert model == replace(
        checkpoint("few"),
        name=folder.name,
        weights=model.weights,
        suppress_tokens=(),
        begin_suppress_tokens=(220, 300),
    )
    for name, values in checkpoint("few").weights.items():
        np.testing.assert_array_equal(model.weights[name], values, err_msg=name)


@pytest.mark.parametrize("suppressed", [(), (7, 8)])
def test_a_folder_says_what_must_not_be_written(tmp_path, suppressed):
    """Benchmarks run on such folders, which once allowed every token, as in "[ Music ]"."""
    given = replace(
        checkpoint("few"), suppress_tokens=suppressed, begin_suppress_tokens=(220, 221, 300)
    )
    model = load_model(str(huggingface_folder.write(given, tmp_path)))
    assert model.suppress_tokens == suppressed
    assert model.begin_suppress_tokens == (220, 221, 300)


def test_heads_are_sorted_by_layer_and_number(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"alignment_heads": [[1, 1], [1, 0], [0, 1]]}))
    assert load_model(str(folder)).alignment_heads == ((0, 1), (1, 0), (1, 1))


def test_mistyped_name_is_told_what_was_meant():
    with pytest.raises(ModelError, match=r"model 'basic\.en' not found; did you mean base\.en"):
        load_model("basic.en")


@pytest.mark.parametrize("name", ["qwertz", "", "a/b/c", "some/--x", "some/tiny@../x"])
def test_unknown_name_is_told_what_there_could_be(name):
    with pytest.raises(ModelError, match=rf"'{name}' not found.*streamd models list"):
        load_model(name)


@pytest.mark.parametrize("name", ["base.en", "turbo", "some/tiny", "some/tiny@refs/pr/1"])
def test_model_that_is_not_downloaded(name):
    with pytest.raises(ModelError, match=f"{name} is not downloaded; .* models get {name}$"):
        load_model(name)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(folder, name):
    path = folder / name
    whole, noise = path.read_bytes(), np.random.default_rng(1).bytes(5000)
    cut = (whole[:n] for n in (0, 5, 100, len(whole) // 2))
    for damaged in (*cut, noise, b"\0" * 100, b"[]", b"[" * 100_000):
        path.write_bytes(damaged)
        assert name in refusal(folder)
    path.unlink()
    assert ("none of OpenAI's vocabularies" if name == "tokenizer.json" else name) in refusal(
        folder
    )
    path.mkdir()
    assert name in refusal(folder)


@pytest.mark.parametrize("n_cut", [1, 64, 4000])
def test_weights_cut_at_the_end(folder, n_cut):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-n_cut])
    assert f"{WEIGHTS}: damaged" in refusal(folder)


ABSURD = b'{"a": {"dtype": "F32", "shape": [%d, %d], "data_offsets": [0, %d]}}'


@pytest.mark.parametrize(
    ("size", "header"),
    [
        *((size, b"{}") for size in (10**8, 2**40, 2**63, 2**64 - 1)),
        (0, ABSURD % (2**40, 2**20, 2**62)),
    ],
)
def test_an_absurd_header_allocates_nothing(folder, size, header):
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", size or len(header)) + header)
    assert f"{WEIGHTS}: damaged" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_huge_text_file_is_not_read(folder, name):
    with (folder / name).open("wb") as file:
        file.truncate(10**12)  # sparse: takes no space
    assert f"{name}: larger" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        *(
            (BIAS, [*[0.0] * 3, odd, *[0.0] * 28], "decoder.ln.bias holds NaN or infinity")
            for odd in (np.nan, np.inf, -np.inf)
        ),
        (BIAS, np.zeros((2, 16)), "decoder.ln.bias has shape [2, 16], not [32]"),
        ("model.encoder.layers.9.fc1.bias", [0.0] * 32, "blocks.9.mlp.0.bias is not a part"),
        (OUT_BIAS, None, "encoder.blocks.0.attn.out.bias is missing"),
    ],
)
def test_weights_that_are_not_those_of_a_model(folder, name, values, said):
    changed = {each: value for each, value in weights().items() if each != name}
    if values is not None:
        changed[name] = np.array(values, np.float16)
    save_file(changed, folder / WEIGHTS)
    assert said in refusal(folder)


@pytest.mark.parametrize("dtype", ["I16", "U16"])
def test_wrong_type(folder, dtype):
    path = folder / WEIGHTS
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + size].replace(b'"F16"', f'"{dtype}"'.encode())
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    assert f"is of type {dtype}" in refusal(folder)


# -- int8 with a scale for each row --------------------------------------------------------------


def int8_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return (
        rng.integers(-127, 128, weights()[MATRIX].shape).astype(np.int8),
        rng.random((len(weights()[MATRIX]), 1), np.float32),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("has_offset", [False, True])
def test_int8_rows(folder, dtype, has_offset):
    rows, scales = int8_rows()
    offset = np.linspace(-1, 1, rows.shape[1], dtype=np.float32)[None] * has_offset
    parts = {MATRIX: rows, f"{MATRIX}_scale": (scales := scales.astype(dtype))}
    parts |= {f"{MATRIX}_offset": offset} if has_offset else {}
    save_file(weights() | parts, folder / WEIGHTS)
    found = load_model(str(folder)).weights["decoder.blocks.0.mlp.0.weight"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rows * scales.astype(np.float32) + offset)


@pytest.mark.parametrize(
    ("part", "shape", "wanted"),
    [
        *(
            ("scale", shape, "a scale for each row")
            for shape in [(128,), (1, 128), (127, 1), (1, 1)]
        ),
        *(("offset", shape, "an offset for each column") for shape in [(128, 1), (1, 1)]),
    ],
)
def test_int8_rows_with_other_parts_than_one_a_row_or_column(folder, part, shape, wanted):
    rows, scales = int8_rows()
    parts = {MATRIX: rows, f"{MATRIX}_scale": scales}
    parts[f"{MATRIX}_{part}"] = np.ones(shape, np.float32)
    save_file(weights() | parts, folder / WEIGHTS)
    assert f"{MATRIX}_{part} does not hold {wanted} of {MATRIX}" in refusal(folder)


def test_int8_without_scales(folder):
    save_file(weights() | {MATRIX: int8_rows()[0]}, folder / WEIGHTS)
    assert "is of type I8" in refusal(folder)
