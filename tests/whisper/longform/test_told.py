"""What each window's decoder is told: phrases, and what was said before."""

from dataclasses import dataclass, field

import numpy as np

from streamd.models import ModelDimensions
from streamd.options import DecodingOptions, LongformOptions
from streamd.types import Clip
from streamd.whisper.longform import Transcriber
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import Vocabularies
from tests.support.decoders import NOTIMESTAMPS, ContextDecoder, vocabulary

N_VOCAB = 256 + 1608
TOKENIZER = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
STARTOFPREV = TOKENIZER.startofprev


@dataclass
class Engine:
    """Writes "ab" in every window, behind any prefix, and keeps what its decoders were given."""

    dims = ModelDimensions(80, 1500, 8, 1, 1, N_VOCAB, 448, 8, 1, 1)
    n_cheap = 4
    given: list[tuple[int, ...]] = field(default_factory=list)

    def encode(self, mel: np.ndarray) -> None:
        """There is nothing to hear."""

    def decoder(self, features: None, n_slots: int) -> ContextDecoder:
        def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            said = context[context.index(NOTIMESTAMPS) + 1 :] if NOTIMESTAMPS in context else ()
            n_said = len(said) - self._n_prefix
            logits = np.full(N_VOCAB, -40.0)
            logits[(*b"ab", TOKENIZER.eot)[min(max(0, n_said), 2)]] = 0.0
            return logits, np.zeros((1, 1500))

        decoder = ContextDecoder(predict, n_slots)
        step = decoder.step

        def noting(tokens, positions, slots, visible, want, among):
            if positions[0] == 0:
                self.given.append(tuple(tokens.tolist()))
                self._n_prefix = len(tokens) - 1 - tokens.tolist().index(NOTIMESTAMPS)
            return step(tokens, positions, slots, visible, want, among)

        decoder.step = noting
        return decoder


class Mel:
    """Two windows of anything."""

    n_columns = 6_000

    def window(self, first: int, n_columns: int, *, width: int, silent: bool = False) -> np.ndarray:
        return np.zeros(width)


def told(expected: str = "", **options) -> tuple[list[tuple[int, ...]], str]:
    engine = Engine()
    decoding = DecodingOptions(timestamps=False, loops=False, temperatures=(0.0,))
    longform = LongformOptions(word_timestamps=False, **options)
    vocabulary = Vocabularies(TOKENIZER).of(expected)
    transcriber = Transcriber(engine, TOKENIZER, decoding, longform, vocabulary)
    heard = transcriber.transcribe(Mel(), [Clip(0, 6_000)], language="en")
    text = "".join(segment.text for window in heard for segment in window.segments)
    return engine.given, text


def test_phrases_are_expected_in_every_window(monkeypatch):
    # The engine's decoder finds anything but "ab" improbable by 40 nats.
    monkeypatch.setattr("streamd.whisper.vocabulary.START", 50.0)
    assert told("東:9\ny")[1] == "abab"  # no phrase at any price
    monkeypatch.setattr("streamd.types.PROBABLE", -100.0)
    assert told("東:9\ny")[1] == "東東"
    assert told("y")[1] == "abab"
