"""What ``streamd doctor`` and ``streamd models check`` say of a model on a Mac."""

import re
from dataclasses import replace
from inspect import signature
from operator import attrgetter

import pytest

from streamd.cli import main
from streamd.cli.packages import compared, functions
from streamd.daemon import acceleration
from streamd.engines.coreml import package
from streamd.engines.coreml.runtime.encoder import make_compiled_folder
from streamd.engines.coreml.runtime.hybrid import prepare
from streamd.errors import ModelError
from tests.support import coreml_stand_in
from tests.support.coreml_runs import core_ml, faulty

pytestmark = pytest.mark.timeout(400)

STAND_IN = coreml_stand_in.__name__


@pytest.mark.coreml
def test_doctor_shows_the_device_of_each_function(here, tmp_path, capfd):
    assert list(functions(here, STAND_IN)) == ["nothing is compiled yet; the first start does it"]
    with core_ml(here):
        pass  # compiles
    with faulty(tmp_path / "faults") as faults:
        told = list(functions(here, STAND_IN))
        faults.add("kill", at="plan", once=False)
        assert set(functions(here, STAND_IN)) == {
            f"encoder {each.name}: Core ML does not say" for each in here.functions
        }
    assert told == [
        "encoder ctx1024: 100% Neural Engine, 0% CPU; CPU: 24 softmax",
        "encoder ctx1500: Core ML does not say",  # it tells of the default function
        "encoder resume192: Core ML does not say",
    ]
    out, err = capfd.readouterr()
    assert (out, "a line below Python" in err) == ("", True), "Core ML's own words are no captions"


@pytest.mark.coreml
def test_functions_are_compiled_one_at_a_time_and_once(here, tmp_path):
    """What is in memory while Core ML compiles is one function."""
    with faulty(tmp_path / "faults") as faults:
        prepare(here, library=STAND_IN)
        calls = [(what, name) for what, _, name in faults.done()]
        names = [each.name for each in here.functions]
        one_by_one = [(what, name) for name in names for what in ("load", "free")]
        assert calls == [("compile", "encoder"), *one_by_one]
        prepare(here, library=STAND_IN)
        with core_ml(here):
            pass
        again = [(what, name) for what, _, name in faults.done()[len(calls) :]]
    assert [call for call in again if call[0] != "free"] == [("load", name) for name in names]


@pytest.mark.coreml
def test_a_model_is_compared_with_the_golden_vectors(here, tmp_path):
    assert re.match(r"golden vectors .* off at .* \(at most 0.02\)$", compared(here, STAND_IN))
    with faulty(tmp_path / "faults") as faults:
        faults.add("lie", function="ctx", once=False)
        with pytest.raises(ModelError, match=r"writes fails its check on Core ML: 0\.1 off"):
            compared(here, STAND_IN)
        faults.add("fail", at="load", once=False)
        with pytest.raises(ModelError, match="fails its check on Core ML: Unable to compute"):
            compared(here, STAND_IN)


def test_compiled_models_of_an_earlier_system_are_deleted(built, tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.symlink_to(built.folder)
    here = replace(built, folder=folder)
    old = make_compiled_folder(here)
    (old / "encoder.mlmodelc").mkdir()
    assert make_compiled_folder(here) == old
    assert (old / "encoder.mlmodelc").exists()
    monkeypatch.setattr("platform.version", lambda: "Darwin 99")
    new = make_compiled_folder(here)
    assert new != old
    assert [path.name for path in tmp_path.glob("compiled-*")] == [new.name]


def test_without_a_mac_the_check_is_refused_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["models", "check", "tiny.en", "--compute", "ane"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Core ML exists only on macOS; drop --compute ane to check tiny.en on the CPU" in err


@pytest.mark.parametrize(
    ("release", "python", "library", "told"),
    [
        ("14.6.1", (3, 13), "9.0", "Core ML models need macOS 15 or later; this is macOS 14.6.1"),
        ("15.1", (3, 14), "", "does not exist for Python"),
        (
            "15.1",
            (3, 13),
            "",
            "coremltools is not installed: in a copy of the repository, pip install '.[ane]'",
        ),
        ("26.0", (3, 13), "9.0", ""),
    ],
)
def test_why_a_mac_cannot_use_core_ml_is_said_in_a_line(
    monkeypatch, release, python, library, told
):
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("sys.version_info", python)
    monkeypatch.setattr("platform.mac_ver", lambda: (release, ("", "", ""), "arm64"))
    monkeypatch.setattr(acceleration, "find_spec", lambda name: library or None)
    why = acceleration.core_ml_unavailable()
    assert told in why
    assert bool(told) == bool(why)


_PLAN = "models.compute_plan.MLComputePlan"
CALLS = (
    "models.utils.compile_model",
    "models.CompiledMLModel",
    "models.CompiledMLModel.predict",
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
