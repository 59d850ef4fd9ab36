"""whisper.cpp's files: whole ones and quantised ones; damaged ones are refused."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.errors import ModelError
from streamd.models.formats.ggml import GGML_TYPES, dequantise
from tests.support.checkpoints import (
    assert_only_read,
    assert_same,
    checkpoint,
    damaged_copy,
    ggml,
    little_memory,
    read_model,
    refusal,
    transcribe,
)

QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
N_HEADER = 12 * 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ggml.write(checkpoint("few"), tmp_path)


def first_tensor() -> int:
    """Where the tensors begin."""
    whole = checkpoint("few")
    n_filters = 8 + 4 * whole.dims.n_mels * 201
    return N_HEADER + n_filters + 4 + sum(4 + len(token) for token in whole.vocabulary)


def record(name: str, sizes: tuple[int, ...], kind: int, data: bytes) -> bytes:
    head = struct.pack(f"<3i{len(sizes)}i", len(sizes), len(name), kind, *sizes[::-1])
    return head + name.encode() + data


def set_header(path: Path, at: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into("<i", content, at, value)
    path.write_bytes(content)


def is_quantised(name: str, values: np.ndarray) -> bool:
    """As whisper.cpp's quantize does it."""
    return values.ndim == 2 and not name.endswith("positional_embedding")


def quantise(path: Path, kind: str) -> dict[str, np.ndarray]:
    """Quantise a file in place; what the gguf package makes of the weights then."""
    whole = checkpoint("few")
    qtype = gguf.GGMLQuantizationType[kind]
    content = bytearray(path.read_bytes()[: first_tensor()])
    struct.pack_into("<i", content, N_HEADER - 4, 2007)
    expected = {}
    for name, values in whole.weights.items():
        if is_quantised(name, values):
            blocks = gguf.quants.quantize(values, qtype)
            content += record(name, values.shape, qtype.value, blocks.tobytes())
            expected[name] = gguf.quants.dequantize(blocks, qtype)
        else:
            content += record(name, values.shape, 0, values.astype("<f4").tobytes())
            expected[name] = values
    path.write_bytes(content)
    return expected


def test_the_exporter_and_we_agree_on_where_the_tensors_begin(path):
    n_axes, n_name = struct.unpack_from("<2i", path.read_bytes(), first_tensor())
    at = first_tensor() + 12 + 4 * n_axes
    assert path.read_bytes()[at : at + n_name].decode() in checkpoint("few").weights


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_are_what_gguf_makes_of_them(kind, tmp_path):
    path = ggml.write(checkpoint("few"), tmp_path)
    whole = read_model(str(path))
    expected = quantise(path, kind)
    found = read_model(str(path))
    assert found.weights.keys() == expected.keys()
    n_changed = 0
    for name, values in expected.items():
        np.testing.assert_array_equal(found.weights[name], values, err_msg=name)
        n_changed += not np.array_equal(values, whole.weights[name])
    assert n_changed > 20
    assert transcribe(found).tokens


@settings(max_examples=200)
@given(data=st.data(), kind=st.sampled_from(QUANTISED + K_QUANTS))
def test_any_block_stands_for_what_gguf_says(data, kind):
    n_bytes = next(each.n_bytes for each in GGML_TYPES.values() if each.name == kind)
    n_blocks = data.draw(st.integers(1, 3))
    block = np.frombuffer(
        data.draw(st.binary(min_size=n_bytes * n_blocks, max_size=n_bytes * n_blocks)), np.uint8
    )
    with np.errstate(all="ignore"):  # scales may be NaN and infinite here
        expected = gguf.quants.dequantize(block, gguf.GGMLQuantizationType[kind])
        found = dequantise(block, kind)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [*QUANTISED, "Q2_K", "Q6_K"])
def test_many_blocks_are_computed_in_parts(kind):
    """In arrays that are small beside the result, which may be large."""
    known = next(each for each in GGML_TYPES.values() if each.name == kind)
    shape = 6_400_000 // known.n_items, known.n_bytes
    blocks = np.random.default_rng(0).integers(0, 100, shape, np.uint8).reshape(-1)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    with little_memory():
        found = dequantise(blocks, kind)
        assert found.nbytes > 25_000_000
    np.testing.assert_array_equal(found, expected)


def test_the_file_does_not_stay_mapped(path):
    assert_only_read(str(path), path)


def test_sizes_of_blocks():
    for number, kind in GGML_TYPES.items():
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        assert (kind.n_items, kind.n_bytes) == sizes
        assert gguf.GGMLQuantizationType(number).name == kind.name


def test_float32(path):
    whole = checkpoint("few")
    content = path.read_bytes()[: first_tensor()]
    for name, values in whole.weights.items():
        content += record(name, values.shape, 0, values.astype("<f4").tobytes())
    expected = read_model(str(path))
    path.write_bytes(content)
    assert_same(read_model(str(path)), expected)


def test_end_of_text_may_be_among_the_text_tokens(path):
    """whisper.cpp's own English-only files have it there."""
    expected = read_model(str(path))
    content = path.read_bytes()
    at = first_tensor()
    n_tokens = len(checkpoint("few").vocabulary)
    count = N_HEADER + 8 + 4 * 80 * 201
    eot = b"<|endoftext|>"
    path.write_bytes(
        content[:count]
        + struct.pack("<i", n_tokens + 1)
        + content[count + 4 : at]
        + struct.pack("<i", len(eot))
        + eot
        + content[at:]
    )
    assert_same(read_model(str(path)), expected)


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [4, 5, 47, 48, 56, 1000, 64_376, 70_000, 200_000, -1, -100])
def test_cut_off(path, n_bytes):
    path.write_bytes(path.read_bytes()[:n_bytes])
    refusal(path)


@pytest.mark.parametrize("at", range(4, N_HEADER + 8, 4))
@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, -(2**31)])
def test_absurd_numbers_in_the_header(path, at, value):
    if at == N_HEADER - 4 and value == 0:
        return  # float32: a fact about the tensors, which say it again
    set_header(path, at, value)
    with little_memory():
        refusal(path)


@pytest.mark.parametrize("axis", range(5))
@pytest.mark.parametrize("value", [0, -1, 7, 2**31 - 1])
def test_absurd_numbers_of_a_tensor(path, axis, value):
    set_header(path, first_tensor() + 4 * axis, value)
    refusal(path)


def test_absurd_numbers_of_tokens(path):
    for value in (-1, 0, 2**31 - 1):
        set_header(path, N_HEADER + 8 + 4 * 80 * 201, value)
        refusal(path)


def test_quantised_by_an_old_whisper_cpp(path):
    set_header(path, N_HEADER - 4, 1008)
    assert "old whisper.cpp" in refusal(path)


@pytest.mark.parametrize("number", [15, 99])
def test_a_type_that_we_do_not_know(number, path):
    set_header(path, first_tensor() + 8, number)
    assert f"is of ggml's type {number};" in refusal(path)
    assert "quantise the model to F32, F16, Q4_0, Q4_1, Q5_0" in refusal(path)


@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        (record("decoder.ln.bias", (32,), 0, bytes(128)), "decoder.ln.bias is too much"),
        (record("decoder.ln.bios", (32,), 0, bytes(128)), "decoder.ln.bios is not a part"),
        (record("two\nlines\x1b", (32,), 0, bytes(128)), "two\\nlines\\x1b is not a part"),
        (record("x", (33,), 8, bytes(128)), "x has shape [33]"),
        (record("x", (2**30, 2**30, 2**30), 0, b""), "ends early"),
        (b"\0" * 100, "no tensor"),
        (b"\0", "ends early"),
    ],
)
def test_more_than_a_model(path, tail, complaint):
    path.write_bytes(path.read_bytes() + tail)
    assert complaint in refusal(path)


def test_weights_that_are_no_numbers(path):
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"\0\0\xc0\x7f")
    assert "NaN" in refusal(path)


def test_a_file_of_llama_cpp(path):
    path.write_bytes(b"GGUF" + path.read_bytes()[4:])
    assert ": GGUF, a model of another family; this needs a Whisper" in refusal(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_copies_are_whole_models_or_refused(data, path):
    """There are no checksums: a wrong weight goes unnoticed, anything else does not."""
    whole = path.read_bytes()
    interesting = st.integers(0, N_HEADER + 8) | st.integers(first_tensor(), first_tensor() + 50)
    damaged = damaged_copy(data, whole, interesting)
    copy = path.with_name("copy.bin")
    copy.write_bytes(damaged)
    expected = checkpoint("few")
    try:
        model = read_model(str(copy))
    except ModelError:
        return
    assert {name: values.shape for name, values in model.weights.items()} == {
        name: values.shape for name, values in expected.weights.items()
    }
    assert all(np.isfinite(values).all() for values in model.weights.values())
