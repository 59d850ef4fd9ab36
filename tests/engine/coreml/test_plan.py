"""What ``streamd doctor`` tells of a Mac: where each part runs, and why."""

import shutil
from dataclasses import replace

import pytest

from streamd.cli.packages import functions, trials
from streamd.engine.coreml.runtime.placement import Placement
from streamd.engine.coreml.runtime.verdict import Trial, Verdict, new_place, remember
from tests.support.coreml_runs import core_ml, faulty

MIXED = Placement("ane", "gpu", "state")


@pytest.fixture
def here(built, tmp_path):
    """The built model where its compiled form has its own place."""
    shutil.copytree(built.folder, tmp_path / "code", symlinks=True)
    return replace(built, folder=tmp_path / "code")


def test_what_is_known_of_each_placement_is_told(here):
    new_place(here)
    assert trials(here) == (
        Placement("gpu", "gpu", "state"),
        ["the Neural Engine has not been tried yet; the next start tries it"],
    )
    known = (
        Trial(placement=None, window_ms=100.4),
        Trial(placement=MIXED, window_ms=20.0),
        Trial(placement=Placement("ane", "ane", "mix"), wrong="ended by SIGKILL"),
    )
    remember(new_place(here), Verdict(best=MIXED, trials=known))
    assert trials(here) == (
        MIXED,
        [
            "encoder on the Neural Engine, decoder on the GPU",
            "CPU alone: 100 ms a window",
            "encoder on the Neural Engine, decoder on the GPU: 20 ms a window",
            "encoder on the Neural Engine, decoder on the Neural Engine: ended by SIGKILL",
        ],
    )
    remember(new_place(here), Verdict(best=None, trials=known))
    assert trials(here)[1][0] == "the CPU is the fastest here"


def test_the_device_of_each_function_is_told_and_asking_may_be_deadly(here, tmp_path):
    with faulty(tmp_path / "faults") as faults:
        with core_ml(here, new_place(here)):
            pass  # compiles
        faults.add("kill", at="plan", function="decoder", once=False)
        told = list(functions(here, MIXED, "tests.support.coreml_stand_in"))
    asked = [call[1:] for call in faults.done() if call[0] == "plan"]
    assert asked == [["CPU_AND_NE", "encoder"], ["CPU_AND_GPU", "decoder_state"]]
    assert told[0] == "encoder ctx384: 100% Neural Engine, 0% CPU; CPU: 12 softmax"
    assert told[-1] == "decoder_state align32: Core ML does not say"
    assert len(told) == 8
