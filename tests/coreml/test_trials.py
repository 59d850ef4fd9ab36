"""A unit that is wrong in one function is refused, whatever the others do."""

import pytest

from streamd.engines.coreml.golden import GOLDEN_TOLERANCE, against_golden, golden_vectors
from streamd.engines.coreml.package import functions
from streamd.engines.coreml.runtime import hybrid
from streamd.engines.coreml.runtime.hybrid import CoreMLCandidate, encoding, load_encoder
from streamd.errors import EngineError
from tests.support import coreml_stand_in
from tests.support.coreml_runs import faulty, on_cpu

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(600)]

LIBRARY = coreml_stand_in.__name__


def test_a_lie_in_any_one_function_is_seen(built, here, tmp_path):
    golden = golden_vectors(built)
    with faulty(tmp_path) as faults:
        worker = load_encoder(here, library=LIBRARY, answer_s=100.0)
        off, _ = against_golden(encoding(worker), built, golden)
        assert off < 1e-3, "the output is in half precision"
        for function in built.functions:
            faults.add("lie", function=function.name, once=False)
            off, _ = against_golden(encoding(worker), built, golden)
            faults.clear()
            assert off > GOLDEN_TOLERANCE, function.name
        ran = {name for what, _, name in faults.done() if what == "predict"}
        assert ran == {function.name for function in functions(built.meta)}
        worker.close()


def test_golden_vectors_are_speech(built):
    for window in golden_vectors(built):
        assert 0.1 < window.mel.std() < 1, "it is no silence"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            {"what": "lie", "function": "resume"},
            "^0.1 off at 192 positions behind 33, where 0.02 is allowed",
        ),
        ({"what": "nan"}, "returned encoded with infinity or NaN"),
        ({"what": "odd", "at": "load"}, "Exception: Unable to load any compiled models"),
        ({"what": "kill", "function": "ctx"}, "ended by SIGKILL"),
    ],
)
def test_what_is_wrong_is_not_used(here, tmp_path, fault, why):
    with faulty(tmp_path) as faults:
        faults.add(**fault)
        with pytest.raises(EngineError, match=why):
            CoreMLCandidate(here, on_cpu(), LIBRARY).load()


def test_what_takes_half_of_the_memory_is_given_up_while_it_loads(here, monkeypatch):
    monkeypatch.setattr(hybrid, "memory_bytes", lambda: 2 * 1_000_000)
    with pytest.raises(EngineError, match=r"^takes \d+ MB, too much for this machine$"):
        load_encoder(here, library=LIBRARY)
