"""An encoder on Core ML with a decoder on the CPU computes what the CPU does alone."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

from streamd.engines.coreml.package import MASKED
from streamd.errors import EngineError
from streamd.models.silence import extend
from streamd.options import DecodingOptions
from streamd.types import FRAME, Window, text_of
from streamd.whisper.decode import RIGHT_CONTEXT
from streamd.whisper.engine import Reuse, run_in_order
from streamd.whisper.mel import log_mel
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer
from tests.golden import load
from tests.support.coreml_runs import core_ml, faulty, model, on_cpu

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(400)]

TOLERANCE = 1e-3
"""What is passed on is in half precision."""
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
def engine(built, tmp_path):
    with faulty(tmp_path) as faults, core_ml(built, cpu()) as engine:
        engine.faults = faults
        yield engine


def encoded(engine) -> list[str]:
    """The functions that ran, and were forgotten."""
    names = [name for what, _, name in engine.faults.done() if what == "predict"]
    (engine.faults.folder / "log").unlink(missing_ok=True)
    return names


def step(engine, name: str, n: int, previous=None, n_before: int = 0):
    """The window's first `n` frames, after another step with fewer."""
    reuse = Reuse(previous, max(0, n_before - RIGHT_CONTEXT)) if previous else None
    return engine.encode(sound(name, n), reuse)


@pytest.mark.parametrize(
    ("n", "audio_ctx", "function"),
    [(100, 0, "resume192"), (300, 0, "ctx1024"), (500, 500, "ctx1024"), (990, 0, "ctx1500")],
)
def test_a_window_is_encoded_by_the_function_that_suits_it(engine, n, audio_ctx, function):
    mel = sound("lamp", n)
    found, expected = (each.encode(mel, audio_ctx=audio_ctx) for each in (engine, cpu()))
    assert encoded(engine) == [function]
    assert_same(read(engine, found), read(cpu(), expected))


def test_each_step_of_a_window_gives_what_it_gives_on_the_cpu(engine):
    """Shorter than a call of fixed size, longer, by one frame, by many, shorter again."""
    features, expected, before = None, None, 0
    for n in (50, 100, 125, 150, 175, 176, 230, 305, 303, 375):
        features = step(engine, "lamp", n, features, before)
        assert encoded(engine) == ["resume192"], n
        expected = step(cpu(), "lamp", n, expected, before)
        assert_same(read(engine, features), read(cpu(), expected))
        before = n


def test_what_is_not_known_is_computed(engine):
    first = step(engine, "lamp", 200)
    assert encoded(engine) == ["ctx1024"], "a window whose first step is long"
    second = step(engine, "lamp", 225, first, 200)
    assert encoded(engine) == ["resume192"]
    third = step(engine, "lamp", 500, second, 225)
    assert encoded(engine) == ["ctx1024"], "more new sound than a call takes"
    expected = step(cpu(), "lamp", 500)
    assert_same(read(engine, third), read(cpu(), expected))
    fourth = step(engine, "lamp", 525, third, 500)
    assert encoded(engine) == ["resume192"]
    assert_same(read(engine, fourth), read(cpu(), step(cpu(), "lamp", 525, expected, 500)))


def test_a_new_window_finds_nothing_of_the_one_before(engine):
    """It has another beginning, the memory of the other one, and is shorter."""
    features = step(engine, "lamp", 300, step(engine, "lamp", 280), 280)
    del features
    encoded(engine)
    features = step(engine, "cards", 200)
    assert encoded(engine) == ["ctx1024"]
    assert_same(read(engine, features), read(cpu(), step(cpu(), "cards", 200)))
    features = step(engine, "digits", 100)
    assert encoded(engine) == ["resume192"], "all of it in one call"
    assert_same(read(engine, features), read(cpu(), step(cpu(), "digits", 100)))


def test_the_full_context_leaves_nothing_to_reuse(engine):
    known = step(engine, "lamp", 950, step(engine, "lamp", 910), 910)
    full = step(engine, "lamp", 990, known, 950)
    assert encoded(engine) == ["ctx1024", "resume192", "ctx1500"]
    shorter = step(engine, "lamp", 590, full, 990)
    assert encoded(engine) == ["ctx1024"]
    assert_same(read(engine, shorter), read(cpu(), step(cpu(), "lamp", 590)))


def test_a_window_that_two_go_on_from_is_known_to_the_first(engine):
    first = step(engine, "lamp", 200)
    both = [step(engine, "lamp", n, first, 200) for n in (225, 250)]
    assert encoded(engine) == ["ctx1024", "resume192", "ctx1024"]
    assert_same(read(engine, both[1]), read(cpu(), step(cpu(), "lamp", 250)))


def test_windows_of_several_streams_keep_their_own(engine):
    """Five streams, of which the worker keeps four: the other one is computed as a whole."""
    names = ("lamp", "cards", "digits", "lamp", "cards")
    features, expected = [None] * 5, [None] * 5
    for n in (140, 165, 190):
        before = n - 25 if n > 140 else 0
        for i, name in enumerate(names[:4] if n < 190 else names):
            features[i] = step(engine, name, n, features[i], before)
            expected[i] = step(cpu(), name, n, expected[i], before)
        if n < 190:
            assert encoded(engine) == ["resume192"] * 4
    for i, _ in enumerate(names):
        assert_same(read(engine, features[i]), read(cpu(), expected[i]))
    again = step(engine, "lamp", 215, features[0], 190)
    assert encoded(engine)[-1] == "ctx1024", "the oldest one had to go"
    assert_same(read(engine, again), read(cpu(), step(cpu(), "lamp", 215)))


def test_text_is_what_it_is_on_the_cpu(engine):
    """In windows of several threads, with a beam, a draft and a prompt."""
    n_vocab = model().dims.n_vocab
    tokenizer = Tokenizer(model().vocabulary, n_vocab, multilingual=False, language="en")
    # Random weights find nothing probable.
    options = DecodingOptions(temperatures=(0.0,), least_evidence=-100.0, beam_size=3)
    known = {"draft": (6, 6, 9, 6, 4, 6), "prompt": (736, 286, 817)}
    windows = [
        Window(0, n, load.samples(name, 600)[: n * FRAME], last=n == 120, **known)
        for name in ("cards", "lamp", "digits")
        for n in (90, 120)
    ]

    def recognize(engine, window):
        return text_of(Recognizer(engine, tokenizer, options).recognize(window).words)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda window: recognize(engine, window), windows))
    assert found == [recognize(cpu(), window) for window in windows]
    assert all(found)


@pytest.mark.parametrize(
    ("fault", "why"), [("kill", "ended by SIGKILL"), ("nan", "returned infinity or NaN")]
)
def test_a_worker_that_is_lost_is_an_engine_error(engine, fault, why):
    first = step(engine, "lamp", 200)
    expected = read(engine, first)
    engine.faults.add(fault, function="resume")
    with pytest.raises(EngineError, match=why):
        step(engine, "lamp", 225, first, 200)
    np.testing.assert_array_equal(read(engine, first)[0], expected[0])
    with pytest.raises(EngineError, match=why):
        step(engine, "lamp", 225)


@pytest.mark.parametrize("shape", [(79, 42), (80, 0), (80, 3001)])
def test_the_wrong_shape_is_refused(engine, shape):
    with pytest.raises(ValueError, match=f"log-mel of shape {re.escape(str(shape))}"):
        engine.encode(np.zeros(shape, np.float32))


def test_masks_hide_what_a_window_does_not_have(built):
    """A softmax over nothing but hidden positions, or over -inf, would be no number there."""
    for n in (1, 100, 300, 600):
        _, extent = extend(np.zeros((80, 2 * n), np.float32), built.meta.dims, has_silence=True)
        for n_known in (0, 150):
            *_, mask = built.call(extent, min(n_known, extent.n - 1))
            assert mask.min() == MASKED
            assert mask.max() > 0, "one position of silence stands for several"
            assert (mask == 0).sum() > extent.n
