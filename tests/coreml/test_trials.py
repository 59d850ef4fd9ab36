"""A unit that is wrong in one function is refused, whatever the others do."""

from functools import partial

import pytest

from streamd.engines.coreml.golden import check_golden, golden_vectors
from streamd.engines.coreml.runtime import hybrid
from streamd.engines.coreml.runtime.hybrid import CoreMLCandidate, load_encoder
from streamd.errors import EngineError
from tests.support import coreml_stand_in
from tests.support.coreml_runs import faulty, on_cpu

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(600)]

LIBRARY = coreml_stand_in.__name__


def test_a_lie_in_any_one_function_is_seen(built, here, tmp_path):
    with faulty(tmp_path) as faults:
        worker, told = load_encoder(here, library=LIBRARY, answer_s=100.0)
        assert float(told.split()[0]) < 1e-3, "the output is in half precision"
        for function in built.functions:
            faults.add("lie", function=function.name, once=False)
            with pytest.raises(EngineError, match=r"where 0\.02 is allowed"):
                check_golden(partial(worker.call, "encode"), built)
            faults.clear()
        worker.close()
        ran = {name for what, _, name in faults.done() if what == "predict"}
    assert ran == {function.name for function in built.functions}


def test_golden_vectors_are_speech(built):
    for window in golden_vectors(built):
        assert 0.1 < window.mel.std() < 1, "it is no silence"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            {"what": "lie", "function": "resume"},
            "^0.1 off at 224 positions behind 33, where 0.02 is allowed",
        ),
        ({"what": "nan"}, "returned infinity or NaN"),
        ({"what": "odd", "at": "load"}, "Exception: Unable to load any compiled models"),
        ({"what": "kill", "function": "ctx"}, "ended by SIGKILL"),
    ],
)
def test_what_is_wrong_is_not_used(here, tmp_path, fault, why):
    with faulty(tmp_path) as faults:
        faults.add(**fault)
        with pytest.raises(EngineError, match=why):
            CoreMLCandidate(lambda: here, on_cpu(), LIBRARY).load()


def test_what_takes_half_of_the_memory_is_given_up_while_it_loads(here, monkeypatch):
    monkeypatch.setattr(hybrid, "memory_bytes", lambda: 2 * 1_000_000)
    with pytest.raises(EngineError, match=r"^takes \d+ MB, too much for this machine$"):
        load_encoder(here, library=LIBRARY)
