"""The shortest safe context: known where the engine's text breaks below it."""

from dataclasses import dataclass, field

import pytest

from streamd.bench.calibrate import (
    LADDER,
    ContextSearch,
    Rung,
    _n_differ,
    _WindowText,
    shortest_safe,
)
from streamd.engine import ModelDimensions
from streamd.errors import ConfigError
from streamd.options import DecodingOptions
from streamd.search.tokenizer import Tokenizer
from streamd.types import Mel
from tests.support.decoders import EOT, N_VOCAB, ContextDecoder, Predict, scripted, vocabulary
from tests.support.fakes import WORD, scripted_audio, scripted_session

FULL = 1500
OPTIONS = DecodingOptions(suppress_tokens=(), suppress_blank=False, tighten=False)
TOKENIZER = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
DIMS = ModelDimensions(80, FULL, 1, 1, 1, N_VOCAB, 448, 1, 1, 1)
SPEECH = [False] * WORD + [True] * (10 * WORD) + [False] * 60


@dataclass
class Brittle:
    """Reads the same words at every context from `least` on, and something else below it."""

    least: int
    wrong: bytes = b" oh no"
    ends: bool = True
    dims: ModelDimensions = DIMS
    contexts: list[int] = field(default_factory=list)

    def encode(self, mel: Mel, n_ctx: int) -> Predict:
        self.contexts.append(n_ctx)
        is_good = n_ctx >= self.least
        text = b" ab cd" if is_good else self.wrong
        ending = [EOT] if is_good or self.ends else []
        return scripted([*text, *ending], range(len(text) + 4), n_ctx=n_ctx)

    def decoder(self, features: Predict, n_slots: int) -> ContextDecoder:
        return ContextDecoder(features, n_slots)


def rungs(engine: Brittle) -> list[Rung]:
    calibration = ContextSearch(engine, TOKENIZER, OPTIONS)
    calibration.listen([scripted_audio(SPEECH)], scripted_session)
    return list(calibration.rungs())


@pytest.mark.parametrize(
    ("least", "found"),
    [(0, LADDER[-1]), (256, (64, 256)), (321, (128, 384)), (768, (512, 768)), (1500, (FULL, FULL))],
)
def test_the_context_at_which_the_text_breaks_is_found(least, found):
    told = rungs(Brittle(least))
    best = shortest_safe(told)
    assert (best.pad, best.floor) == found
    assert [rung.safe for rung in told] == [rung.floor >= least for rung in told]
    assert told[0].words > 3
    assert told[0].differ == told[0].guarded == 0
    assert [rung.positions for rung in told] == sorted((r.positions for r in told), reverse=True)


def test_a_context_that_needs_the_guard_is_not_safe_though_its_text_is_right():
    told = rungs(Brittle(least=384, wrong=b" ab cd", ends=False))
    assert all(rung.differ == 0 for rung in told)
    assert [rung.guarded > 0 for rung in told] == [rung.floor < 384 for rung in told]
    assert shortest_safe(told).floor == 384


def test_no_window_is_read_twice_at_one_context():
    engine = Brittle(0)
    told = rungs(engine)
    n = told[0].windows
    assert n > 3
    assert len(engine.contexts) <= n * len({FULL, *(floor for _, floor in LADDER)})
    assert engine.contexts.count(FULL) == n


def test_a_longer_context_that_is_not_safe_ends_the_search():
    def rung(floor: int, differ: int) -> Rung:
        known = {"positions": floor, "words": 1000, "windows": 10, "guarded": 0, "window_ms": 1.0}
        return Rung(pad=0, floor=floor, differ=differ, **known)

    assert shortest_safe([rung(1500, 0), rung(768, 3), rung(512, 4), rung(384, 0)]).floor == 768


def test_silence_cannot_calibrate():
    calibration = ContextSearch(Brittle(0), TOKENIZER, OPTIONS)
    with pytest.raises(ConfigError, match="no speech was recognized: record a minute"):
        calibration.listen([scripted_audio([False] * 100)], scripted_session)


@pytest.mark.parametrize(
    ("full", "n_whole", "short", "n_differ"),
    [
        ("a b c", 2, "a b x", 0),
        ("a b c", 2, "a b", 0),
        ("a b c", 2, "a b c d", 0),
        ("a b c", 2, "a", 1),
        ("a b c", 2, "x b c", 1),
        ("a b c", 3, "a b c d", 1),
        ("a b c", 3, "a b", 1),
        ("", 0, "oh no", 2),
    ],
)
def test_a_word_that_is_cut_off_does_not_count(full, n_whole, short, n_differ):
    read = _WindowText(FULL, full.split(), n_whole, guarded=False, took_s=0.0)
    other = _WindowText(384, short.split(), 0, guarded=False, took_s=0.0)
    assert _n_differ(other, read) == n_differ
