"""Makes a model write words that are given, at the full cost of writing words of its own.

A measurement needs hypotheses of a known length, whatever the weights are: random ones write noise,
and real ones only what they hear. So every pass of the encoder and the decoder is really made,
and then the logits and the attention are replaced by those of a decoder that hears a word in every
`PACE` frames, one token each; like a real one, it mishears the newest, which is cut off. Time spent
inside the engine is counted.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from streamd.engine import Engine, FeaturesT
from streamd.engine.recognizer import Recognizer
from streamd.options import DecodingOptions
from streamd.search import Alignment, Decoder, Logits
from streamd.search.tokenizer import Tokenizer
from streamd.types import Hypothesis, Mel, Window

PACE = 12.5
"""Frames a word lasts: 4 words a second, 20 in a window of 5 s."""
_CERTAIN = np.float32(30.0)


@dataclass(slots=True)
class Costs:
    """Seconds inside the engine, passes of the decoder; CPU seconds of all threads, in all."""

    encode_s: float = 0.0
    decode_s: float = 0.0
    passes: int = 0
    cpu_s: float = 0.0


@dataclass(slots=True)
class Script:
    """What is said at each time of a stream: word n of `words`, over and over.

    `right` are tokens of words, `wrong` is what the newest one is heard as. `window` is set for
    each window: its frames, and whether it is the last one.
    """

    right: Sequence[int]
    wrong: int
    eot: int
    window: Window = field(default_factory=lambda: Window(0, 0, np.zeros(0, np.float32)))

    def after(self, token: int) -> tuple[int, int]:
        """The token that follows, and the frame of the stream where it is said."""
        window, n = self.window, len(self.right)
        first = int(np.ceil(window.start / PACE - 0.5))
        end = int(np.ceil(window.end / PACE - 0.5))
        if token in self.right:
            # the word's place in the stream: the only one near the window
            word = first + (self.right.index(token) - first + n // 2) % n - n // 2 + 1
        else:
            word = end if token == self.wrong else first
        word = max(word, first)
        frame = min(int((word + 0.5) * PACE), window.end - 1)
        if word >= end:
            return self.eot, window.end - 1
        heard = word < end - 1 or window.last
        return (self.right[word % n] if heard else self.wrong), frame


class ScriptedEngine(Generic[FeaturesT]):
    """An `Engine` that runs another one and says what the script says."""

    def __init__(self, engine: Engine[FeaturesT], script: Script) -> None:
        self.dims = engine.dims
        self.costs = Costs()
        self._engine, self._script = engine, script

    def reset(self) -> Costs:
        """Count from zero from now on, in what is returned."""
        self.costs = Costs()
        return self.costs

    def encode(self, mel: Mel, n_ctx: int) -> FeaturesT:
        """Encode, and count the time."""
        begun_s = time.perf_counter()
        features = self._engine.encode(mel, n_ctx)
        self.costs.encode_s += time.perf_counter() - begun_s
        return features

    def decoder(self, features: FeaturesT, n_slots: int) -> Decoder:
        """A decoder of the real engine, whose answers are replaced."""
        begun_s = time.perf_counter()
        decoder = self._engine.decoder(features, n_slots)
        self.costs.decode_s += time.perf_counter() - begun_s
        return ScriptedDecoder(decoder, self._script, self.costs)


class ScriptedDecoder:
    """A `Decoder`; see the module's docstring."""

    def __init__(self, decoder: Decoder, script: Script, costs: Costs) -> None:
        self.n_vocab, self.n_text_ctx = decoder.n_vocab, decoder.n_text_ctx
        self.n_slots = decoder.n_slots
        self._decoder, self._script, self._costs = decoder, script, costs

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
    ) -> tuple[Logits, Alignment]:
        """As the protocol says."""
        begun_s = time.perf_counter()
        logits, alignment = self._decoder.step(tokens, positions, slots, visible, want)
        self._costs.decode_s += time.perf_counter() - begun_s
        self._costs.passes += 1
        script = self._script
        said = [script.after(int(token)) for token in tokens]
        alignment = np.zeros_like(alignment)
        for row, (_, frame) in enumerate(said):
            at = min(max(frame - script.window.start, 0), alignment.shape[2] - 1)
            alignment[row, :, max(0, at - 4) : at + 5] = _CERTAIN / 4
            alignment[row, :, at] = _CERTAIN / 2
        logits = np.zeros_like(logits)
        for row, wanted in enumerate(want):
            logits[row, said[wanted][0]] = _CERTAIN
        return logits, alignment


class ScriptedRecognizer:
    """The real recognizer on a scripted engine."""

    def __init__(self, engine: Engine[Any], tokenizer: Tokenizer, options: DecodingOptions) -> None:
        """Script words that the vocabulary has as single tokens."""
        *right, wrong = _words(tokenizer)
        self._script = Script(right, wrong, tokenizer.eot)
        self.engine = ScriptedEngine(engine, self._script)
        self._recognizer = Recognizer(self.engine, tokenizer, options)
        self.counters = self._recognizer.counters

    def recognize(self, window: Window) -> Hypothesis:
        """What the script says in this window."""
        self._script.window = window
        return self._recognizer.recognize(window)


def _words(tokenizer: Tokenizer, n: int = 121) -> list[int]:
    """The first tokens that are words of some length, each with its blank in front.

    There are more than any prompt and window hold together, so that a word tells its place.
    """
    found = []
    for token in range(tokenizer.eot):
        text = tokenizer.decode([token])
        if text.startswith(" ") and text[1:].isalpha() and text.isascii() and len(text) > 2:
            found.append(token)
    return found[:n]
