"""What each window's decoder is told: phrases."""

import numpy as np

from streamd.models import ModelDimensions
from streamd.options import DecodingOptions, LongformOptions
from streamd.types import Clip
from streamd.whisper.longform import Transcriber
from streamd.whisper.vocabulary import Vocabularies
from tests.support.decoders import N_VOCAB, NOTIMESTAMPS, TOKENIZER, ContextDecoder


class Engine:
    """Writes "ab" in every window."""

    dims = ModelDimensions(80, 1500, 8, 1, 1, N_VOCAB, 448, 8, 1, 1)
    n_cheap = 4

    def encode(self, mel: np.ndarray) -> None:
        """There is nothing to hear."""

    def decoder(self, features: None, n_slots: int) -> ContextDecoder:
        def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            said = context[context.index(NOTIMESTAMPS) + 1 :] if NOTIMESTAMPS in context else ()
            logits = np.full(N_VOCAB, -40.0)
            logits[(*b"ab", TOKENIZER.eot)[min(len(said), 2)]] = 0.0
            return logits, np.zeros((1, 1500))

        return ContextDecoder(predict, n_slots)


class Mel:
    """Two windows of anything."""

    n_columns = 6_000

    def window(self, first: int, n_columns: int, *, width: int, silent: bool = False) -> np.ndarray:
        return np.zeros(width)


def text(expected: str) -> str:
    decoding = DecodingOptions(timestamps=False, loops=False, temperatures=(0.0,))
    longform = LongformOptions(word_timestamps=False)
    vocabulary = Vocabularies(TOKENIZER).of(expected)
    transcriber = Transcriber(Engine(), TOKENIZER, decoding, longform, vocabulary)
    heard = transcriber.transcribe(Mel(), [Clip(0, 6_000)], language="en")
    return "".join(segment.text for window in heard for segment in window.segments)


def test_phrases_are_expected_in_every_window(monkeypatch):
    # The engine's decoder finds anything but "ab" improbable by 40 nats.
    monkeypatch.setattr("streamd.whisper.vocabulary.START", 50.0)
    assert text("東:9\ny") == "abab"  # no phrase at any price
    monkeypatch.setattr("streamd.types.PROBABLE", -100.0)
    assert text("東:9\ny") == "東東"
    assert text("y") == "abab"
