"""What ``streamd doctor`` and ``streamd models check`` say of a model on a Mac."""

import shutil
from dataclasses import replace
from inspect import signature
from operator import attrgetter
from types import SimpleNamespace

import pytest

from streamd.cli import doctor, main
from streamd.cli.packages import compared, functions, offer
from streamd.config import load
from streamd.daemon import opening
from streamd.engines.coreml import package
from streamd.engines.coreml.runtime.programs import PLACEMENTS
from streamd.engines.coreml.runtime.switchover import make_compiled_folder
from streamd.errors import EngineError, ModelError
from tests.support import coreml_stand_in
from tests.support.checkpoints import checkpoint, huggingface
from tests.support.coreml_runs import core_ml, faulty

pytestmark = pytest.mark.timeout(400)

MIXED = PLACEMENTS["ane"][0]


@pytest.fixture
def here(built, tmp_path):
    """The built model where its compiled form has its own place."""
    shutil.copytree(built.folder, tmp_path / "code", symlinks=True)
    return replace(built, folder=tmp_path / "code")


@pytest.mark.coreml
def test_doctor_shows_the_device_of_each_function_even_if_planning_crashes(here, tmp_path, capfd):
    with faulty(tmp_path / "faults") as faults:
        with core_ml(here, make_compiled_folder(here)):
            pass  # compiles
        faults.add("kill", at="plan", function="decoder", once=False)
        told = list(functions(here, MIXED, coreml_stand_in.__name__))
    asked = [call[1:] for call in faults.done() if call[0] == "plan"]
    assert asked == [
        ["CPU_AND_NE", "encoder"],
        ["CPU_AND_NE", "cross"],
        ["CPU_AND_GPU", "decoder_state"],
    ]
    assert told[0] == "encoder ctx384: 100% Neural Engine, 0% CPU; CPU: 12 softmax"
    assert told[1] == "encoder ctx640: Core ML does not say", "it tells of the default function"
    assert told[-1] == "decoder_state align32: Core ML does not say"
    assert len(told) == 12
    out, err = capfd.readouterr()
    assert (out, "a line below Python" in err) == ("", True), "Core ML's own words are no captions"


@pytest.mark.coreml
def test_doctor_says_in_a_line_that_no_state_can_be_written(here, tmp_path):
    make_compiled_folder(here)
    told = functions(here, MIXED, coreml_stand_in.__name__)
    with faulty(tmp_path / "faults") as faults:
        faults.add("fail", at="write", once=False)
        with pytest.raises(
            EngineError, match=r"^not .*: a state cannot be written, which .*serves$"
        ):
            next(told)
    assert [call[0] for call in faults.done()][:4] == ["compile", "load", "make", "write"]
    assert not [call for call in faults.done() if call[0] == "plan"]


@pytest.mark.coreml
def test_doctor_has_a_section_for_core_ml_on_a_mac(here, monkeypatch):
    opened = iter((None, here, here))
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(doctor, "LIBRARY", coreml_stand_in.__name__)
    monkeypatch.setattr(doctor, "built_for_core_ml", lambda config, core_ml: next(opened))
    config = load({"model": "tiny.en", "compute": "ane"}, {})
    (finding,) = doctor._core_ml(config)
    assert finding[:2] == ("--", "tiny.en runs on the CPU")
    assert [finding.text for finding in doctor._core_ml(config)] == [
        str(MIXED),
        "nothing is compiled yet; the first start does it",
    ]
    with core_ml(here, make_compiled_folder(here)):
        pass  # compiles
    told = [(finding.state, finding.text) for finding in doctor._core_ml(config)]
    assert told[:2] == [
        ("ok", str(MIXED)),
        ("ok", "encoder ctx384: 100% Neural Engine, 0% CPU; CPU: 12 softmax"),
    ]
    assert len(told) == 13


@pytest.mark.coreml
def test_each_placement_is_compared_with_the_golden_vectors(here, tmp_path):
    with faulty(tmp_path / "faults") as faults:
        faults.add("lie", unit="CPU_AND_NE", function="ctx", once=False)
        lines = list(compared(here, coreml_stand_in.__name__))
    on_gpu = "encoder on the GPU, decoder on the GPU"
    ways = (on_gpu, f"{on_gpu} without states", f"{on_gpu} without states in one function")
    for way, right in zip(ways, lines, strict=False):
        assert f"{way}: logits " in right
        assert right.endswith("(at most 0.02), same token at 100%")
    assert [": ! logits " in line for line in lines] == [False] * 3 + [True] * 3


@pytest.mark.coreml
def test_a_model_that_is_wrong_everywhere_fails_its_check(here, tmp_path):
    with faulty(tmp_path / "faults") as faults:
        faults.add("fail", at="load", once=False)
        lines = compared(here, coreml_stand_in.__name__)
        assert [": ! Unable to compute" in next(lines) for _ in range(6)] == [True] * 6
        with pytest.raises(ModelError, match="writes fails its check on Core ML"):
            next(lines)


def test_without_a_mac_the_check_is_refused_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["models", "check", "tiny.en", "--engine", "coreml"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Core ML exists only on macOS; drop --engine coreml to check tiny.en on the CPU" in err


@pytest.mark.parametrize(
    ("release", "python", "library", "told"),
    [
        ("14.6.1", (3, 13), "9.0", "Core ML models need macOS 15 or later; this is macOS 14.6.1"),
        ("15.1", (3, 14), "", "does not exist for Python"),
        ("15.1", (3, 13), "", "coremltools is not installed: pip install coremltools"),
        ("15.1", (3, 13), "8.3.0", "coremltools 8.3.0 is too old: pip install 'coremltools>=9.0'"),
        ("26.0", (3, 13), "9.0", ""),
    ],
)
def test_why_a_mac_cannot_use_core_ml_is_said_in_a_line(
    monkeypatch, caplog, release, python, library, told
):
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("sys.version_info", python)
    monkeypatch.setattr("platform.mac_ver", lambda: (release, ("", "", ""), "arm64"))
    monkeypatch.setattr(opening, "find_spec", lambda name: library or None)
    monkeypatch.setattr(opening, "version", lambda name: library)
    why = opening.unavailable()
    assert told in why
    assert bool(told) == bool(why)
    if told:
        caplog.set_level("INFO")
        assert opening.built_for_core_ml(load({"model": "tiny.en"}, {}), opening.CoreML()) is None
        assert caplog.messages == [f"on the CPU: {why}"]


_PLAN = "models.compute_plan.MLComputePlan"
CALLS = (
    "models.utils.compile_model",
    "models.CompiledMLModel",
    "models.CompiledMLModel.predict",
    "models.CompiledMLModel.make_state",
    "models.model.MLState.write_state",
    f"{_PLAN}.load_from_path",
    f"{_PLAN}.get_compute_device_usage_for_mlprogram_operation",
    f"{_PLAN}.get_estimated_cost_for_mlprogram_operation",
)
"""All that the runtime calls."""


def test_the_stand_in_is_called_as_coremltools_is():
    theirs = package.coremltools()
    for name in CALLS:
        mine, real = (
            list(signature(attrgetter(name)(module)).parameters)
            for module in (coreml_stand_in, theirs)
        )
        assert mine == real[: len(mine)], name
    units = {unit.name for unit in coreml_stand_in.ComputeUnit}
    assert units <= {unit.name for unit in theirs.ComputeUnit}


@pytest.mark.coreml
def test_the_build_is_offered_where_it_helps(monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "cache"))
    asked, here = [], {"model": str(huggingface.write(checkpoint("few"), tmp_path))}
    agree = lambda question: asked.append(question) or True  # noqa: E731 (short)
    assert not offer(load(here, {}), agree).build.missing, "there is no Core ML here"
    monkeypatch.setattr(opening, "unavailable", lambda library: "")
    assert not offer(load(here | {"compute": "cpu"}, {}), agree).build.missing
    assert asked == []
    assert not offer(load(here, {}), lambda question: False).build.missing
    assert offer(load(here, {}), agree).build.missing
    assert main(["models", "build", here["model"], "-q"]) == 0
    assert not offer(load(here, {}), agree).build.missing
    assert len(asked) == 1, "it is built"
