"""One window while it is decoded: what the decoder is given of it, and what text it has so far."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from streamd.options import DecodingOptions
from streamd.types import (
    FRAME_MS,
    DetectedLanguage,
    Hypothesis,
    Suspect,
    Window,
    Word,
    Work,
    is_probable,
)
from streamd.whisper.decode import Context, Decoded, decode, slots_needed
from streamd.whisper.engine import Engine, FeaturesT, Search, alone
from streamd.whisper.mel import WindowColumns
from streamd.whisper.paths import CachedTokens
from streamd.whisper.tokenizer import REPLACEMENT, Tokenizer
from streamd.whisper.vocabulary import Vocabulary
from streamd.whisper.words import find_words, is_repeated, n_attended, spread_words, tighten

_SHORT = 16
"""Texts with fewer different tokens are short. Probable texts of noise repeat themselves: they had
11 at the most. Of longer ones the probability of no speech says little: it was 0.6 to 0.75 for 15 s
of poorly recorded speech that base had nearly right."""


_MOST_TOKENS = 6.5
"""Maximum number of tokens per second of audio; other languages than English are cut into more.

This plus some spare tokens ends runaway decodes. It is moonshine's."""


def token_rate(tokenizer: Tokenizer, language: str) -> float:
    """Return how many tokens a second of speech has at most."""
    return _MOST_TOKENS if tokenizer.written(language) == "en" else 2 * _MOST_TOKENS


class Effort:
    """How much was decoded of a window, in frames of audio, whose text has `rate` tokens a second.

    `budget` frames may be spent on other attempts than the first.
    """

    def __init__(self, rate: float, budget: float) -> None:
        self._frames_per_pass, self._budget = 1000 / FRAME_MS / rate, budget
        self.attempts: list[tuple[str, bool]] = []
        self._n_attempts = self._n_first = self._n_extra = self._n_encoded = 0

    @property
    def extra_cost(self) -> int:
        """The frames of other attempts than the first."""
        return math.ceil(self._n_extra * self._frames_per_pass) + self._n_encoded

    @property
    def work(self) -> Work:
        """What was done so far."""
        first = math.ceil(self._n_first * self._frames_per_pass)
        return Work(first + self.extra_cost, self.extra_cost, tuple(self.attempts))

    @property
    def may_retry(self) -> bool:
        """Whether another attempt may begin."""
        return self.extra_cost < self._budget

    def attempt(self, search: Search[Decoded]) -> Search[Decoded]:
        """Count the passes of a search while it is done."""
        self._n_attempts += 1
        try:
            asked = next(search)
            while True:
                self._n_first += self._n_attempts == 1
                self._n_extra += self._n_attempts > 1
                asked = search.send((yield asked))
        except StopIteration as done:
            decoded: Decoded = done.value
            return decoded

    def encode(self, n_frames: int) -> None:
        """Count frames that are encoded again: two take as long as the passes of one."""
        self._n_encoded += n_frames // 2


@dataclass(frozen=True, slots=True)
class States:
    """What is kept of a window: log-mel, the decoder's states of tokens, and an engine's features.

    Another engine of the same model can use only the log-mel.
    """

    columns: WindowColumns
    engine: Engine[Any]
    features: object
    tokens: CachedTokens | None


@dataclass(frozen=True, slots=True)
class View(Generic[FeaturesT]):
    """A window as the decoder gets it: features of its sound, and the context of its text.

    `engine` computes it; `anew` makes a view of a similar window.
    """

    window: Window
    engine: Engine[FeaturesT]
    features: FeaturesT
    columns: WindowColumns
    tokenizer: Tokenizer
    options: DecodingOptions
    context: Context
    detected: DetectedLanguage
    rng: np.random.Generator
    effort: Effort
    anew: Callable[[Window], "View[FeaturesT]"]

    def decode(self, temperature: float, vocabulary: Vocabulary | None) -> Decoded:
        """Decode the window once, with phrases to expect."""
        return alone(self.search(temperature, vocabulary))

    def search(self, temperature: float, vocabulary: Vocabulary | None) -> Search[Decoded]:
        """Return the search of `decode`."""
        n_text_ctx = self.engine.dims.n_text_ctx
        n_slots = slots_needed(self.context, options=self.options, n_text_ctx=n_text_ctx)
        search = decode(
            self.engine.decoder(self.features, n_slots),
            self.tokenizer,
            options=self.options,
            context=replace(self.context, vocabulary=vocabulary),
            temperature=temperature,
            rng=self.rng,
        )
        return (yield from self.effort.attempt(search))

    def hypothesis(self, decoded: Decoded) -> Hypothesis:
        """Find the words of what was decoded, and say whether to trust them."""
        suspect = self._distrusted(decoded)
        words = () if suspect is Suspect.NO_SPEECH else self._words(decoded)
        words = tuple(replace(word, text=word.text.replace(REPLACEMENT, "")) for word in words)
        return Hypothesis(
            words=words,
            tokens=tuple(token for word in words for token in word.tokens),
            language=decoded.language,
            avg_logprob=decoded.avg_logprob,
            no_speech_prob=decoded.no_speech_prob,
            temperature=decoded.temperature,
            suspect=suspect,
        )

    def _distrusted(self, decoded: Decoded) -> Suspect | None:
        """Why the decoder's text is not to be trusted, apart from its words."""
        if self._is_guess(decoded):
            return Suspect.NO_SPEECH
        if decoded.loop is not None:
            return Suspect.LOOP
        return None if decoded.ended else Suspect.NO_END

    def _is_guess(self, decoded: Decoded) -> bool:
        n_different = sum(token < self.tokenizer.eot for token in {*decoded.tokens})
        # Where words are committed, somebody speaks.
        is_short = not self.window.prefix and n_different < _SHORT
        if is_short and decoded.no_speech_prob > self.options.no_speech_threshold:
            return True
        if self.tokenizer.translates or decoded.evidence >= self.options.least_evidence:
            return False
        return not is_probable(decoded, clear=self.window.retry.clear)

    def _words(self, decoded: Decoded) -> tuple[Word, ...]:
        """Words in frames of the stream, without repetitions or any after the end of the audio."""
        if self.tokenizer.translates:
            kept_tokens = replace(decoded, tokens=decoded.tokens[: decoded.loop])
            return tuple(
                spread_words(
                    kept_tokens,
                    self.tokenizer,
                    start=max(self.window.start, self.window.prefix_end),
                    end=self.window.end,
                )
            )
        start = self.window.start
        n_frames, heard_until = self.window.end - start, self.window.prefix_end - start
        # Where words are committed, somebody speaks.
        if (
            self.context.before
            and not self.window.prefix
            and is_repeated(decoded, self.tokenizer, heard_until=heard_until, n_frames=n_frames)
        ):
            return ()
        given = (*self.context.before, *self.context.prefix)
        words = find_words(
            decoded, self.tokenizer, n_frames=n_frames, prefix=given, prefix_end=heard_until
        )
        n_kept = n_attended(decoded, self.tokenizer, n_frames)
        if decoded.loop is not None:
            n_kept = min(n_kept, decoded.loop)
        n_text = sum(token < self.tokenizer.eot for token in decoded.tokens[:n_kept])
        kept = []
        for word in words:
            if n_text <= 0:
                break
            kept.append(word)
            n_text -= len(word.tokens)
        if self.options.tighten:
            kept = tighten(kept, self.window.samples)
        return tuple(replace(word, start=start + word.start, end=start + word.end) for word in kept)


@dataclass(slots=True)
class WindowText(Generic[FeaturesT]):
    """What a window says so far: what was decoded last, in which view, and its words.

    `more` are the words of a text that goes on behind that of `decoded`, by themselves.
    """

    view: View[FeaturesT]
    decoded: Decoded
    known: Hypothesis | None = None
    more: Hypothesis | None = None

    @property
    def hypothesis(self) -> Hypothesis:
        """The words, which are found when they are first needed."""
        if self.known is None:
            self.known = self.view.hypothesis(self.decoded)
        return self.known

    @property
    def states(self) -> States:
        """What the window after can use of what was computed."""
        view = self.view
        return States(view.columns, view.engine, view.features, self.decoded.cached)


AnyText = WindowText[Any]
