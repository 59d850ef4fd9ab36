"""openai-whisper's checkpoints: read like torch does, but for what is no part of a model."""

import os
import pickle
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.cli import main
from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats.openai import NotPlainError, unpickle
from streamd.models.model import parameter_shapes
from tests.support import torch_file
from tests.support.checkpoints import little_memory, read_model, refusal
from tests.support.torch_file import mapping, named, pickled, plain, tensor, write_zip

REAL = Path(__file__).parent / "torch.pt"
SHAPES = parameter_shapes(ModelDimensions(**torch_file.DIMS))


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return {name: torch_file.values(shape).astype("f2") for name, shape in SHAPES.items()}


def refused(tmp_path: Path, description: bytes) -> str:
    return refusal(write_zip(tmp_path / "model.pt", description, [b"\0" * 64]))


def test_what_torch_wrote():
    """Half, float and bfloat16; a transposed view, a shared storage, a Parameter, metadata."""
    model = read_model(str(REAL))
    assert model.dims == ModelDimensions(**torch_file.DIMS)
    assert model.language == "en"
    assert model.name == "torch"
    assert model.weights.keys() == SHAPES.keys()
    for name, shape in SHAPES.items():
        np.testing.assert_array_equal(model.weights[name], torch_file.values(shape), err_msg=name)
        assert model.weights[name].flags.c_contiguous, "or ONNX Runtime refuses it"


def test_our_imitation_of_torch_says_the_same(weights, tmp_path):
    model = read_model(str(torch_file.write(tmp_path / "own.pt", torch_file.DIMS, weights)))
    for name, values in read_model(str(REAL)).weights.items():
        np.testing.assert_array_equal(model.weights[name], values, err_msg=name)


def test_a_large_vocabulary_has_languages(weights, tmp_path):
    rows = np.concatenate([weights["decoder.token_embedding.weight"], np.zeros((1, 2), "f2")])
    dims = torch_file.DIMS | {"n_vocab": 51_865}
    path = torch_file.write(
        tmp_path / "m.pt", dims, weights | {"decoder.token_embedding.weight": rows}
    )
    model = read_model(str(path))
    assert model.language is None
    assert len(model.vocabulary) == 50_257
    assert model.vocabulary.find(b"") == 50_256


# -- hostile pickles ---------------------------------------------------------------------------

CALLED = []


class Bomb:
    def __reduce__(self):
        return CALLED.append, ("boom",)


class SystemBomb:
    def __reduce__(self):
        return os.system, ("false",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("bomb", [Bomb, SystemBomb])
def test_no_code_is_run(bomb, protocol, tmp_path):
    content = {"dims": torch_file.DIMS, "model_state_dict": {"x": bomb()}}
    refused(tmp_path, pickle.dumps(content, protocol))
    assert not CALLED


def test_a_hostile_model_ends_the_program_with_its_exit_code(tmp_path, capsys):
    path = write_zip(tmp_path / "model.pt", pickle.dumps(SystemBomb(), 2), [])
    sound = Path(__file__).parents[1] / "golden" / "digits.flac"
    assert main(["transcribe", str(sound), "--model", str(path)]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert [line for line in said.err.splitlines() if str(path) in line]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("posix", "system"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("collections", "OrderedDict.fromkeys"),
        ("streamd.models.formats.openai", "unpickle"),
    ],
)
def test_only_tensors_are_made(module, name, tmp_path):
    call = named(module, name) + plain(("'boom'",)) + b"R"
    assert f"{module} {name}" in refused(tmp_path, pickled(call))


@pytest.mark.parametrize("steps", [b"ctorch\\Q\nx\n", b"S'\\Q'\n", b"S" + b"x" * 1_000_000 + b"\n"])
def test_text_of_old_protocols_is_refused_in_a_line(steps, tmp_path):
    assert len(refused(tmp_path, pickled(steps))) < 1000


def test_attributes_of_what_we_know_cannot_be_set(tmp_path):
    description = named("torch", "HalfStorage") + mapping({"name": "x"}) + b"b"
    assert "attributes" in refused(tmp_path, pickled(description))


def test_a_dict_that_looks_like_a_tensor_is_none(tmp_path):
    parts = {
        "storage": mapping({"kind": "torch HalfStorage", "key": "0", "n_items": 2**40}),
        "offset": -(2**30),
        "shape": (2,),
        "strides": (2**40,),
    }
    state = mapping({name: mapping(parts) for name in SHAPES})
    description = mapping({"dims": mapping(torch_file.DIMS), "model_state_dict": state})
    refused(tmp_path, pickled(description))


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1},
        {"offset": 1},
        {"offset": 2**62},
        {"strides": (-1,)},
        {"strides": (2,)},
        {"strides": (1, 1)},
        {"strides": 1},
        {"strides": ("1",)},
        {"n_items": 1},
        {"n_items": "2"},
        {"offset": True},
    ],
)
def test_a_tensor_stays_in_its_storage(changes):
    sound = tensor("HalfStorage", "0", (2,))
    assert unpickle(pickled(sound)) is not None
    with pytest.raises(NotPlainError):
        unpickle(pickled(tensor("HalfStorage", "0", (2,), **changes)))


def test_a_storage_that_is_shorter_than_it_says(weights, tmp_path):
    path = torch_file.write(tmp_path / "model.pt", torch_file.DIMS, weights)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["model/data/3"] = parts["model/data/3"][:-1]
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    assert "too short" in refusal(path)
    del parts["model/data/3"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    assert "data/3 is missing" in refusal(path)


@pytest.mark.parametrize(
    "steps",
    [
        b"Nr\xff\xff\xff\x7f",  # remembered at 2**31: `pickle` makes a table of that length
        b"\x8d" + struct.pack("<Q", 2**40),  # a text of a terabyte
        b"\x96" + struct.pack("<Q", 2**40),  # as many bytes to write to
        b"\x95" + struct.pack("<Q", 2**40),  # a frame
        b"X\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b")" + b"2\x86" * 200 + b"}" + b"q\x00",  # tuples of tuples of tuples
        b"}" + b")" + b"q\x00" + b"h\x00\x86" * 100 + b"Ns",  # ... as a key
        b"(" * 100_000,
        b"]" * 100_000,
    ],
)
def test_pickles_that_would_fill_memory(steps, tmp_path):
    path = write_zip(tmp_path / "model.pt", pickled(steps), [])
    with little_memory():
        refusal(path)


def test_a_description_that_is_too_long(tmp_path):
    assert "larger than any" in refused(tmp_path, b"\0" * 3_000_000)


def test_a_zip_bomb(weights, tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", b"}" * 1_000_000)
    assert "compressed" in refusal(tmp_path / "model.pt")


@pytest.mark.parametrize("size", [2**31, 2**40])
def test_a_zip_that_claims_a_large_entry(size, tmp_path):
    path = write_zip(tmp_path / "model.pt", pickled(b"}"), [])
    content = path.read_bytes()
    n_bytes = struct.pack("<I", len(pickled(b"}")))
    path.write_bytes(content.replace(n_bytes * 2, struct.pack("<I", size & 0xFFFFFFFF) * 2))
    with little_memory():
        refusal(path)


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04", b"PK\x03\x04" + b"\0" * 999])
def test_no_checkpoint(content, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    refusal(path)


def test_damage_that_only_a_decoder_of_names_notices(tmp_path):
    content = bytearray(REAL.read_bytes())
    content[30] ^= 128  # the first letter of the first entry's name, which is in UTF-8
    (tmp_path / "model.pt").write_bytes(content)
    assert "damaged" in refusal(tmp_path / "model.pt")


def test_names_in_the_file_cannot_paint_the_terminal(weights, tmp_path):
    tensors = {
        name: tensor("HalfStorage", "\n\x1b[2J", values.shape) for name, values in weights.items()
    }
    told = {"dims": mapping(torch_file.DIMS), "model_state_dict": mapping(tensors)}
    assert "\x1b" not in refused(tmp_path, pickled(mapping(told)))


def test_a_file_of_old_torch(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2))
    assert "saved in the way of torch before 1.6; load and save it again" in refusal(path)


def test_zip_files_of_another_kind(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("base/config.json", "{}")
    assert "a zip file, but no checkpoint: it has no data.pkl" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickled(b"}"))
        archive.writestr("model/constants.pkl", b"")
    assert "a TorchScript program, no checkpoint" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        {"dims": 1},
        {"dims": {}},
        {"dims": torch_file.DIMS | {"n_mels": "80"}},
        {"dims": torch_file.DIMS | {"n_text_layer": -1}},
        {"dims": torch_file.DIMS | {"n_vocab": 1000}},
        {"dims": torch_file.DIMS | {"n_text_layer": 900}},
        {"model_state_dict": 1},
        {"model_state_dict": {"x": 1}},
        {"model_state_dict": {}},
        {"model_state_dict": {"two\nlines\x1b[2J" * 1000: tensor("HalfStorage", "0", (2,))}},
    ],
)
def test_no_whisper(change, weights, tmp_path):
    tensors = {
        name: tensor("HalfStorage", str(i), values.shape)
        for i, (name, values) in enumerate(weights.items())
    }
    told = {"dims": torch_file.DIMS, "model_state_dict": tensors, **change}
    parts = {key: mapping(part) if isinstance(part, dict) else part for key, part in told.items()}
    storages = [values.tobytes() for values in weights.values()]
    refusal(write_zip(tmp_path / "model.pt", pickled(mapping(parts)), storages))


def test_other_types_are_told(weights, tmp_path):
    path = torch_file.write(tmp_path / "model.pt", torch_file.DIMS, weights)
    path.write_bytes(path.read_bytes().replace(b"HalfStorage", b"LongStorage"))
    # the pickle's checksum no longer fits either
    assert "CRC" in refusal(path)
    description = pickled(
        mapping(
            {
                "dims": mapping(torch_file.DIMS),
                "model_state_dict": mapping(
                    {
                        name: tensor("LongStorage", str(i), shape)
                        for i, (name, shape) in enumerate(SHAPES.items())
                    }
                ),
            }
        )
    )
    assert "is of type torch LongStorage" in refused(tmp_path, description)


def test_big_endian(weights, tmp_path):
    path = torch_file.write(tmp_path / "model.pt", torch_file.DIMS, weights)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in (parts | {"model/byteorder": b"big"}).items():
            archive.writestr(name, part)
    assert "big-endian" in refusal(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_copies_are_the_same_model_or_refused(data, tmp_path):
    """Every storage has a checksum; what has none cannot change a weight."""
    whole = REAL.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "repeat"]))
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 6000))
    damaged = bytearray(whole)
    if kind == "flip":
        damaged[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        damaged = damaged[:at]
    else:
        damaged[at:at] = damaged[at : at + data.draw(st.integers(1, 5000))]
    path = tmp_path / "torch.pt"
    path.write_bytes(damaged)
    try:
        model = read_model(str(path))
    except ModelError:
        return
    for name, shape in SHAPES.items():
        np.testing.assert_array_equal(model.weights[name], torch_file.values(shape))


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_descriptions_are_read_or_refused(data):
    with zipfile.ZipFile(REAL) as archive:
        whole = bytearray(archive.read("torch/data.pkl"))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NotPlainError):
        unpickle(bytes(whole))
