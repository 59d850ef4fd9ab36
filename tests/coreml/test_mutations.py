"""Ways to spoil the packages of tiny.en, each of which the check must see.

Sizes and digests in ``meta.json`` are put right after each, as a wrong builder would write them,
except where nothing but a digest can show it.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from coremltools.proto.FeatureTypes_pb2 import ArrayFeatureType
from coremltools.proto.MIL_pb2 import DataType
from coremltools.proto.Model_pb2 import Model as Saved

from streamd.engines.coreml.golden import mel_of
from streamd.engines.coreml.package import check_files, open_built
from streamd.engines.golden_clips import clips
from streamd.errors import ModelError
from streamd.models.store import load_model
from tests.coreml.check import wrong_tables
from tests.coreml.interpreter import Interpreter
from tests.coreml.interpreter.saved import read_program
from tests.coreml.lint import as_laid_out, lint
from tests.coreml.programs import sign
from tests.coreml.verify import compare
from tests.coreml.verify.calls import Calls

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(600)]
ENCODER, STATE, MIX = "encoder.mlpackage", "decoder_state.mlpackage", "decoder_mix.mlpackage"
MODEL = "tiny.en"
_HEADER = 64


# -- changes ------------------------------------------------------------------------------------


@contextmanager
def saved(folder: Path, package: str) -> Iterator[Saved]:
    """A package's program, written back afterwards."""
    (file,) = (folder / package).rglob("*.mlmodel")
    model = Saved.FromString(file.read_bytes())
    yield model
    file.unlink()  # it is a link to the good one
    file.write_bytes(model.SerializeToString())


@contextmanager
def file(path: Path) -> Iterator[bytearray]:
    """A file's content, written back afterwards."""
    content = bytearray(path.read_bytes())
    yield content
    path.unlink()
    path.write_bytes(bytes(content))


def weights_of(folder: Path, package: str) -> Path:
    (found,) = (folder / package).rglob("weight.bin")
    return found


def block(model, name):
    function = model.mlProgram.functions[name]
    return function.block_specializations[function.opset]


def operations(model, name, kind):
    return [each for each in block(model, name).operations if each.type == kind]


def constant(model, name, argument):
    """The constant behind an argument of an operation."""
    wanted = argument.arguments[0].name
    found = (e for e in operations(model, name, "const") if e.outputs[0].name == wanted)
    return next(found).attributes["val"]


def described(model, name):
    return next(each for each in model.description.functions if each.name == name)


def feature(tensors, name):
    return next(each for each in tensors if each.name == name)


@contextmanager
def parameter(
    folder: Path, package: str, name: str, shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """The first float16 parameter of that shape in the file of weights."""
    with saved(folder, package) as model:
        stored = [
            each.attributes["val"]
            for each in operations(model, name, "const")
            if each.attributes["val"].WhichOneof("value") == "blobFileValue"
        ]
    sizes = {
        tuple(axis.constant.size for axis in value.type.tensorType.dimensions): value
        for value in reversed(stored)
    }
    start = sizes[shape].blobFileValue.offset + _HEADER
    with file(weights_of(folder, package)) as content:
        numbers = np.frombuffer(content, np.float16, int(np.prod(shape)), start).reshape(shape)
        yield numbers
        del numbers


def swapped_weights(folder):
    with saved(folder, ENCODER) as model:
        one, other = (
            each.inputs["weight"].arguments[0]
            for each in operations(model, "ctx1024", "conv")
            if each.outputs[0].name.endswith(("0_attn_value", "1_attn_value"))
        )
        one.name, other.name = other.name, one.name


def small_epsilon(folder):
    with saved(folder, STATE) as model:
        for norm in operations(model, "step2", "layer_norm"):
            stored = constant(model, "step2", norm.inputs["epsilon"]).immediateValue.tensor
            held = np.frombuffer(stored.bytes.values, np.float16)
            stored.bytes.values = (held / np.float16(10)).tobytes()


def other_softmax(folder):
    with saved(folder, ENCODER) as model:
        for each in operations(model, "ctx1024", "softmax"):
            axis = constant(model, "ctx1024", each.inputs["axis"])
            axis.immediateValue.tensor.ints.values[0] = 3


def swapped_states(folder):
    with saved(folder, STATE) as model:
        keys, values = operations(model, "step16", "write_state")[:2]
        one, other = (each.inputs["input"].arguments[0] for each in (keys, values))
        one.name, other.name = other.name, one.name


def no_mask(folder):
    with saved(folder, MIX) as model:
        softmax = operations(model, "step2_t128", "softmax")[0]
        masked = softmax.inputs["x"].arguments[0].name
        (add,) = (e for e in operations(model, "step2_t128", "add") if e.outputs[0].name == masked)
        softmax.inputs["x"].CopyFrom(add.inputs["x"])


def wrong_width(folder):
    with saved(folder, ENCODER) as model:
        mel = feature(described(model, "ctx1500").input, "mel")
        mel.type.multiArrayType.shape[3] = 3000


def renamed(folder):
    with saved(folder, STATE) as model:
        functions = model.mlProgram.functions
        functions["step_16"].CopyFrom(functions["step16"])
        del functions["step16"]
        described(model, "step16").name = "step_16"


def mask_of_integers(folder):
    with saved(folder, STATE) as model:
        mask = feature(described(model, "step2").input, "mask")
        mask.type.multiArrayType.dataType = ArrayFeatureType.ArrayDataType.INT32


def input_of_float32(folder):
    with saved(folder, STATE) as model:
        x = feature(described(model, "step2").input, "x")
        x.type.multiArrayType.dataType = ArrayFeatureType.ArrayDataType.FLOAT32
        inside = feature(model.mlProgram.functions["step2"].inputs, "x")
        inside.type.tensorType.dataType = DataType.FLOAT32


def flipped_sign(folder):
    with parameter(folder, ENCODER, "ctx1024", (1536, 384, 1, 1)) as weight:
        weight[32, 57] *= -1


def shifted_positions(folder):
    with parameter(folder, ENCODER, "ctx1500", (1, 384, 1, 1504)) as table:
        table[..., :1500] = np.roll(table[..., :1500], 1, axis=3)


def swapped_rows(folder):
    table = np.load(folder / "embedding.npy")
    (folder / "embedding.npy").unlink()
    table[[100, 200]] = table[[200, 100]]
    np.save(folder / "embedding.npy", table)


def late_positions(folder):
    table = np.load(folder / "positions.npy")
    (folder / "positions.npy").unlink()
    table[20:] = table[19:-1].copy()
    np.save(folder / "positions.npy", table)


def late_encoder_positions(folder):
    table = np.load(folder / "encoder_positions.npy")
    (folder / "encoder_positions.npy").unlink()
    np.save(folder / "encoder_positions.npy", np.roll(table, 1, axis=0))


def kept_of_another_layer(folder):
    with saved(folder, ENCODER) as model:
        for each in operations(model, "resume192", "slice_by_index"):
            begin, end = (
                constant(model, "resume192", each.inputs[name]).immediateValue.tensor.ints.values
                for name in ("begin", "end")
            )
            if each.inputs["x"].arguments[0].name == "kept_v" and list(begin) == [2, 0, 0, 0]:
                begin[0], end[0] = 1, 2
                return
    raise AssertionError("there is no such slice")


def no_default(folder):
    with saved(folder, STATE) as model:
        model.description.defaultFunctionName = "nothing"


def other_default(folder):
    with saved(folder, MIX) as model:
        model.description.defaultFunctionName = "align32"


def old_specification(folder):
    with saved(folder, STATE) as model:
        model.specificationVersion = 8


def new_specification(folder):
    with saved(folder, ENCODER) as model:
        model.specificationVersion = 10


def operations_of(version: str) -> Callable[[Path], None]:
    def spoil(folder):
        with saved(folder, STATE) as model:
            for function in model.mlProgram.functions.values():
                blocks, known = function.block_specializations, function.opset
                blocks[version].CopyFrom(blocks[known])
                del blocks[known]
                function.opset = version

    spoil.__name__ = f"operations_of_{version}"
    return spoil


def operations_of_two_versions(folder):
    with saved(folder, ENCODER) as model:
        blocks = model.mlProgram.functions["ctx1024"].block_specializations
        blocks["CoreML5"].CopyFrom(block(model, "ctx1024"))


def output_of_integers(folder):
    with saved(folder, STATE) as model:
        alignment = feature(described(model, "step2").output, "alignment")
        alignment.type.multiArrayType.dataType = ArrayFeatureType.ArrayDataType.INT32


def wrong_output(folder):
    with saved(folder, STATE) as model:
        alignment = feature(described(model, "step2").output, "alignment")
        alignment.type.multiArrayType.shape[3] = 1500


def any_size(folder):
    with saved(folder, ENCODER) as model:
        mel = feature(described(model, "ctx1024").input, "mel").type.multiArrayType
        for size in mel.shape:
            mel.shapeRange.sizeRanges.add(lowerBound=1, upperBound=size)


def optional_mask(folder):
    with saved(folder, STATE) as model:
        feature(described(model, "step2").input, "mask").type.isOptional = True


def untold_state(folder):
    with saved(folder, STATE) as model:
        del described(model, "step2").state[0]


def told_twice(folder):
    with saved(folder, STATE) as model:
        told = described(model, "step2").input
        told.add().CopyFrom(told[0])


def updatable(folder):
    with saved(folder, STATE) as model:
        model.isUpdatable = True


def other_program(folder):
    with saved(folder, STATE) as model:
        model.mlProgram.version = 2


def axis_of_16_bits(folder):
    with saved(folder, ENCODER) as model:
        softmax = operations(model, "ctx1024", "softmax")[0]
        axis = constant(model, "ctx1024", softmax.inputs["axis"])
        axis.type.tensorType.dataType = DataType.INT16


def made_twice(folder):
    with saved(folder, ENCODER) as model:
        running = [each for each in block(model, "ctx1024").operations if each.type != "const"]
        first, later = running[0].outputs[0].name, running[-6].outputs[0].name
        arguments = [
            argument
            for each in running
            for given in each.inputs.values()
            for argument in given.arguments
        ]
        for each in (*arguments, *running[-6].outputs):
            each.name = first if each.name == later else each.name


def weights_elsewhere(folder):
    with saved(folder, ENCODER) as model:
        value = next(
            each.attributes["val"]
            for each in operations(model, "ctx1024", "const")
            if each.attributes["val"].WhichOneof("value") == "blobFileValue"
        )
        value.blobFileValue.fileName = "@model_path/weights/other.bin"


def weights_of_another_type(folder):
    with file(weights_of(folder, ENCODER)) as content:
        content[_HEADER + 4] = 2  # in the header of the first blob: float32


def _list_files(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / ENCODER / "Manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.unlink()
    path.write_text(json.dumps(manifest))


def unlisted_weights(folder):
    def change(manifest):
        files = manifest["itemInfoEntries"]
        for key in [key for key, each in files.items() if each["name"] == "weights"]:
            del files[key]

    _list_files(folder, change)


def list_of_no_version(folder):
    _list_files(folder, lambda manifest: manifest.pop("fileFormatVersion"))


def cache_of_another_layer(folder):
    with saved(folder, STATE) as model:
        for each in operations(model, "step32", "slice_by_index"):
            begin, end = (
                constant(model, "step32", each.inputs[name]).immediateValue.tensor.ints.values
                for name in ("begin", "end")
            )
            if list(begin) == [2, 0, 0, 0]:
                begin[0], end[0] = 1, 2
                return


def coarse_weights(folder):
    with parameter(folder, ENCODER, "ctx1024", (1536, 384, 1, 1)) as weight:
        bits = weight.view(np.uint16)
        bits &= np.uint16(0xFF80)


def weights_of_another_package(folder):
    ours, others = weights_of(folder, STATE), weights_of(folder, MIX)
    ours.unlink()
    shutil.copy(others, ours)


def flipped_bit(folder):
    with file(weights_of(folder, ENCODER)) as content:
        content[len(content) // 2] ^= 0x40


def tanh_gelu(folder):
    with saved(folder, ENCODER) as model:
        for each in operations(model, "ctx1024", "gelu"):
            mode = constant(model, "ctx1024", each.inputs["mode"]).immediateValue.tensor
            mode.strings.values[0] = "TANH_APPROXIMATION"


def wrong_state(folder):
    with saved(folder, STATE) as model:
        state = feature(described(model, "step2").state, "self_k")
        state.type.stateType.arrayType.shape[3] = 416


# -- what is seen ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    spoil: Callable[[Path], None]
    package: str
    function: str
    signed: bool = True


MUTATIONS = [
    Mutation(swapped_weights, ENCODER, "ctx1024"),
    Mutation(small_epsilon, STATE, "step2"),
    Mutation(other_softmax, ENCODER, "ctx1024"),
    Mutation(swapped_states, STATE, "step16"),
    Mutation(no_mask, MIX, "step2_t128"),
    Mutation(wrong_width, ENCODER, "ctx1500"),
    Mutation(renamed, STATE, "step16"),
    Mutation(mask_of_integers, STATE, "step2"),
    Mutation(input_of_float32, STATE, "step2"),
    Mutation(flipped_sign, ENCODER, "ctx1024"),
    Mutation(shifted_positions, ENCODER, "ctx1500"),
    Mutation(swapped_rows, STATE, "step2"),
    Mutation(late_positions, STATE, "step2"),
    Mutation(late_encoder_positions, ENCODER, "resume192"),
    Mutation(kept_of_another_layer, ENCODER, "resume192"),
    Mutation(no_default, STATE, "step2"),
    Mutation(other_default, MIX, "step2_t128"),
    Mutation(old_specification, STATE, "step2"),
    Mutation(new_specification, ENCODER, "ctx1024"),
    Mutation(operations_of("CoreML5"), STATE, "step2"),
    Mutation(operations_of("CoreML9"), STATE, "step2"),
    Mutation(operations_of_two_versions, ENCODER, "ctx1024"),
    Mutation(output_of_integers, STATE, "step2"),
    Mutation(wrong_output, STATE, "step2"),
    Mutation(any_size, ENCODER, "ctx1024"),
    Mutation(optional_mask, STATE, "step2"),
    Mutation(untold_state, STATE, "step2"),
    Mutation(told_twice, STATE, "step2"),
    Mutation(updatable, STATE, "step2"),
    Mutation(other_program, STATE, "step2"),
    Mutation(axis_of_16_bits, ENCODER, "ctx1024"),
    Mutation(made_twice, ENCODER, "ctx1024"),
    Mutation(weights_elsewhere, ENCODER, "ctx1024"),
    Mutation(weights_of_another_type, ENCODER, "ctx1024"),
    Mutation(unlisted_weights, ENCODER, "ctx1024"),
    Mutation(list_of_no_version, ENCODER, "ctx1024"),
    Mutation(cache_of_another_layer, STATE, "step32"),
    Mutation(coarse_weights, ENCODER, "ctx1024"),
    Mutation(weights_of_another_package, STATE, "step2"),
    Mutation(flipped_bit, ENCODER, "ctx1024", signed=False),
    Mutation(tanh_gelu, ENCODER, "ctx1024"),
    Mutation(wrong_state, STATE, "step2"),
]


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL)


def complaint(folder: Path, model, package: str, function: str) -> str:
    """The first thing that the check finds wrong; empty if nothing is."""
    try:
        built = open_built(folder)
        check_files(built)
        program = read_program(folder / package)
        writes = package == STATE
        found = [*as_laid_out(built, program), *lint(program, writes_states=writes)]
        errors = [f"{each.rule}: {each.what}" for each in found if each.severity == "error"]
        if errors:
            return errors[0]
        if tables := wrong_tables(built, model):
            return f"{tables[0]} is not the checkpoint's"
        (called,) = (e for e in built.functions if (e.package, e.name) == (package, function))
        mel = mel_of(model, clips()[0].samples, model.dims.n_audio_ctx)
        finding = compare(Interpreter(folder / package), Calls(built, model, mel).call(called))
    except ModelError as error:
        return str(error).replace(f"{folder}/", "").partition("; ")[0]
    return "" if finding.right else f"{finding.where} is {finding.exact:.2g} off"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.spoil.__name__)
def test_the_check_sees_what_is_wrong(mutation, real, model, tmp_path, table):
    folder = tmp_path / "built"
    shutil.copytree(real(MODEL).folder, folder, copy_function=os.link)
    mutation.spoil(folder)
    if mutation.signed:
        sign(folder)
    found = complaint(folder, model, mutation.package, mutation.function)
    assert found
    table("1b. what the check sees (tiny.en)", mutation.spoil.__name__, found[:90])


def test_the_check_finds_nothing_wrong_with_what_is_right(real, model):
    for package, function in {(each.package, each.function) for each in MUTATIONS}:
        assert complaint(real(MODEL).folder, model, package, function) == ""
