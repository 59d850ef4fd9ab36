"""``make check-coreml MODEL=NAME`` says what is wrong with a built model."""

import shutil

import numpy as np
import pytest

from streamd.cli import main
from streamd.engines.coreml.package import GOLDEN, Function
from streamd.engines.coreml.package_builder import write
from streamd.models.store import load_model
from streamd.options import BuildOptions
from tests.coreml.check import compared
from tests.coreml.check import main as check_main
from tests.coreml.programs import Changed, sign
from tests.coreml.verify import Finding, Peak
from tests.support.checkpoints import checkpoint, huggingface


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny checkpoint."""
    return huggingface.write(checkpoint("few"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """What is built of it, in a folder of its own, with palettes."""
    out = tmp_path_factory.mktemp("to") / "built"
    out.mkdir()
    write(out, load_model(str(model)), BuildOptions(weight_bits="6"))
    return out


def check(name, capfd) -> tuple[int, str, str]:
    code = check_main(str(name))
    return code, *capfd.readouterr()


def test_a_model_that_was_built_is_found_by_its_name(model, capfd):
    code, out, err = check(model, capfd)
    assert (code, out) == (1, "")
    assert f"not built for Core ML; run: streamd models build {model} --engine coreml" in err
    assert main(["models", "build", str(model), "-q"]) == 0
    code, out, err = check(model, capfd)
    assert code == 0
    assert all(line.startswith("coremlcompiler: ") for line in err.splitlines()), "the stand-in's"
    told = [line.split("  ")[0] for line in out.splitlines() if not line.startswith(" ")]
    assert told[:4] == ["model", "built", "caches", "contexts"]
    assert told[-3:] == ["golden vectors", "golden vectors", "before rounding"]
    assert told.count("package") == told.count("against numpy") == told.count("largest value") == 4
    assert "rules of the ANE     0 broken" in out
    assert "the same choice at 100% of the places" in out


def test_a_folder_without_its_checkpoint_is_checked_as_far_as_it_goes(folder, capfd):
    code, out, _ = check(folder, capfd)
    assert code == 0
    assert "built                palettes of 6 bits" in out
    assert "against numpy        not compared: the weights of hf are not here" in out
    assert off("golden vectors", out) < 2e-3


def test_the_cost_of_palettes_is_reported(model, folder, monkeypatch, capfd):
    monkeypatch.chdir(model.parent)  # where a model of that name is
    code, out, _ = check(folder, capfd)
    assert code == 0
    assert off("golden vectors", out) < 2e-3
    assert 0.02 < off("before rounding", out) < 0.5


def off(name: str, out: str) -> float:
    """How far the logits are, in the lines of that name."""
    lines = (line for line in out.splitlines() if line.startswith(name))
    return max(float(line.split("logits ")[1].split(",")[0]) for line in lines)


def test_a_wrong_package_fails_the_check(model, folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(model.parent)  # where a model of that name is
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    decoder = Changed(changed / "decoder_mix.mlpackage", tmp_path)
    last = decoder.operations("step16", "layer_norm")[-1]  # of logits alone
    with decoder.weights(decoder.constant("step16", last, "gamma")) as gamma:
        gamma[0] += np.float16(1)
    shutil.rmtree(changed / "decoder_mix.mlpackage")
    shutil.copytree(decoder.path, changed / "decoder_mix.mlpackage")
    sign(changed)
    code, out, err = check(changed, capfd)
    assert code == 1
    assert "! step16: logits0 is " in out
    assert "fails its check: step2, step16, step32, golden vectors, mix; build it again" in err


def test_golden_vectors_that_a_mac_would_refuse_fail_the_check(folder, tmp_path, capfd):
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    with np.load(folder / GOLDEN) as file:
        arrays = dict(file)
    logits = {name: 1.05 * found for name, found in arrays.items() if name.endswith("logits")}
    np.savez(changed / GOLDEN, **arrays | logits)
    sign(changed)
    code, out, err = check(changed, capfd)
    assert code == 1
    assert 0.04 < off("golden vectors", out) < 0.06
    assert "fails its check: golden vectors, state, golden vectors, mix; build it again" in err


def test_a_damaged_package_is_named(folder, tmp_path, capfd):
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (file,) = (damaged / "cross.mlpackage").rglob("weight.bin")
    content = bytearray(file.read_bytes())
    content[64] ^= 0xFF  # in the header of the first blob
    file.write_bytes(bytes(content))
    code, _, err = check(damaged, capfd)
    assert code == 1
    assert "weight.bin: damaged; build it again" in err
    sign(damaged)
    code, _, err = check(damaged, capfd)
    assert code == 1
    assert "is damaged at byte 64; build the package again" in err


def test_values_beyond_half_precision_are_reported():
    function = Function("made.mlpackage", "step2", "step", (), (), ())
    finding = Finding(function, 1e-7, float("inf"), "logits0", Peak("conv conv_3", 7e4))
    told = "\n".join(compared("made.mlpackage", [finding]))
    assert "! step2: logits0 is 1e-07 off, in half precision inf" in told
    assert "largest value        7e+04 in step2, conv conv_3" in told
    assert "! float16 holds only 65504: half precision fails" in told
