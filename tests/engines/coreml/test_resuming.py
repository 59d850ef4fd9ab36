"""Windows that grow: what is known of them is kept, and what is not is never taken for known."""

import json
import shutil
from functools import cache

import numpy as np
import pytest

from streamd.engines.coreml.package import META, open_built
from streamd.types import FRAME
from streamd.whisper.engine import run_in_order
from streamd.whisper.mel import log_mel
from streamd.whisper.recognizer import RIGHT_CONTEXT
from tests.golden import load
from tests.support.coreml_runs import core_ml, faulty, on_cpu

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(400)]

TOLERANCE = 1e-5
TOKENS = list(range(40, 52))


@cache
def cpu():
    return on_cpu()


@cache
def sound(name: str, n: int):
    """The log-mel of the first frames of a clip."""
    return log_mel(load.samples(name, 1500)[: n * FRAME], 80)


def read(engine, features):
    decoder = engine.decoder(features, len(TOKENS))
    return run_in_order(decoder, TOKENS, 0)


def assert_same(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert np.linalg.norm(one - other) < TOLERANCE * np.linalg.norm(other)


@pytest.fixture
def engine(built, tmp_path, request):
    with (
        faulty(tmp_path / "faults") as faults,
        core_ml(built, tmp_path / "compiled", getattr(request, "param", "mix")) as engine,
    ):
        engine.faults = faults
        yield engine


def encoded(engine) -> list[str]:
    """The functions of the encoder that ran, and were forgotten; those of "cross" have their names.

    The states of silence are projected when a window is first resumed, in parts.
    """
    names = [name for what, _, name in engine.faults.done() if what == "predict"]
    (engine.faults.folder / "log").unlink(missing_ok=True)
    return [name for name in dict.fromkeys(names) if name.startswith(("ctx", "resume"))]


def n_predicted(engine) -> int:
    return sum(what == "predict" for what, *_ in engine.faults.done())


def step(engine, name: str, n: int, previous=None, n_before: int = 0):
    """The window's first `n` frames, after another step with fewer."""
    n_reused = max(0, n_before - RIGHT_CONTEXT)
    return engine.encode(sound(name, n), previous=previous if n_reused else None, n_reused=n_reused)


@pytest.mark.parametrize("engine", ["state", "mix"], indirect=True)
def test_each_step_of_a_window_gives_what_it_gives_on_the_cpu(engine):
    """Shorter than a call of fixed size, longer, by one frame, by many, shorter again."""
    features, expected, before = None, None, 0
    for n in (50, 100, 125, 150, 175, 176, 230, 305, 303, 375):
        features = step(engine, "lamp", n, features, before)
        assert encoded(engine) == ["resume192"], n
        expected = step(cpu(), "lamp", n, expected, before)
        assert_same(read(engine, features), read(cpu(), expected))
        before = n


@pytest.mark.parametrize("engine", ["state", "mix"], indirect=True)
def test_adopted_text_keeps_what_it_saw_of_earlier_windows(engine):
    engines, features, before = (engine, cpu()), [None, None], 0
    earlier = [each.decoder(step(each, "lamp", 125), len(TOKENS)) for each in engines]
    for n, n_adopted in ((125, 0), (150, 8), (175, 10), (250, 3), (275, 9)):
        pairs = zip(engines, features, strict=True)
        features = [step(each, "lamp", n, known, before) for each, known in pairs]
        pairs = zip(engines, features, strict=True)
        decoders = [each.decoder(found, len(TOKENS)) for each, found in pairs]
        n_passes = n_predicted(engine)
        found = []
        for decoder, other in zip(decoders, earlier, strict=True):
            assert decoder.adopt(other, n_adopted)
            found.append(run_in_order(decoder, TOKENS[n_adopted:], n_adopted))
        assert_same(*found)
        assert n_predicted(engine) == n_passes + 1
        if n_adopted:
            anew = [each[n_adopted:] for each in read(cpu(), features[1])]
            with pytest.raises(AssertionError):
                assert_same(anew, found[1])
        earlier, before = decoders, n


def test_what_is_not_known_is_computed(engine):
    first = step(engine, "lamp", 200)
    assert encoded(engine) == ["ctx384"], "a window whose first step is long"
    second = step(engine, "lamp", 225, first, 200)
    assert encoded(engine) == ["resume192"]
    third = step(engine, "lamp", 500, second, 225)
    assert encoded(engine) == ["ctx640"], "more new sound than a call takes"
    expected = step(cpu(), "lamp", 500)
    assert_same(read(engine, third), read(cpu(), expected))
    fourth = step(engine, "lamp", 525, third, 500)
    assert encoded(engine) == ["resume192"]
    assert_same(read(engine, fourth), read(cpu(), step(cpu(), "lamp", 525, expected, 500)))


def test_a_new_window_finds_nothing_of_the_one_before(engine):
    """It has another beginning, the slot of the other one, and is shorter."""
    features = step(engine, "lamp", 300, step(engine, "lamp", 280), 280)
    del features
    encoded(engine)
    features = step(engine, "cards", 200)
    assert encoded(engine) == ["ctx384"]
    assert_same(read(engine, features), read(cpu(), step(cpu(), "cards", 200)))
    features = step(engine, "digits", 100)
    assert encoded(engine) == ["resume192"], "all of it in one call"
    assert_same(read(engine, features), read(cpu(), step(cpu(), "digits", 100)))


def test_the_full_context_leaves_nothing_to_reuse(engine):
    known = step(engine, "lamp", 600, step(engine, "lamp", 560), 560)
    full = step(engine, "lamp", 700, known, 600)
    assert encoded(engine) == ["ctx640", "resume192", "ctx1500"]
    shorter = step(engine, "lamp", 590, full, 700)
    assert encoded(engine) == ["ctx640"]
    assert_same(read(engine, shorter), read(cpu(), step(cpu(), "lamp", 590)))


def test_windows_of_several_streams_keep_their_own(engine):
    names = ("lamp", "cards", "digits")
    features, expected = dict.fromkeys(names), dict.fromkeys(names)
    for n in (140, 165, 190):
        before = n - 25 if n > 140 else 0
        for name in names:
            features[name] = step(engine, name, n, features[name], before)
            expected[name] = step(cpu(), name, n, expected[name], before)
        assert encoded(engine) == ["resume192"]
        for name in names:
            assert_same(read(engine, features[name]), read(cpu(), expected[name]))


def test_a_window_whose_worker_is_lost_is_computed_again(engine):
    first = step(engine, "lamp", 200)
    encoded(engine)
    engine.faults.add("kill", function="resume")
    second = step(engine, "lamp", 225, first, 200)
    assert encoded(engine) == ["resume192", "ctx384"]
    assert_same(read(engine, second), read(cpu(), step(cpu(), "lamp", 225)))


def test_models_that_were_built_before_are_not_resumed(built, tmp_path):
    older = tmp_path / "older"
    shutil.copytree(built.folder, older)
    meta = json.loads((older / META).read_bytes())
    del meta["n_resumed"]
    (older / META).write_text(json.dumps(meta | {"version": 4}))
    with (
        faulty(tmp_path / "faults") as faults,
        core_ml(open_built(older), tmp_path / "c") as engine,
    ):
        engine.faults = faults
        first = step(engine, "lamp", 200)
        second = step(engine, "lamp", 225, first, 200)
        assert encoded(engine) == ["ctx384"]
        assert_same(read(engine, second), read(cpu(), step(cpu(), "lamp", 225)))
