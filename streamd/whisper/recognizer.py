"""Turns a window into a hypothesis, with any engine.

A recognizer computes the log-mel of the padded window, runs encoder and search, and finds the words
and their times. Guards mark what a confused decoder writes as suspect. Windows of several streams
may come in any order.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any, Generic, cast

import numpy as np

from streamd.options import DecodingOptions
from streamd.types import (
    FRAME,
    DetectedLanguage,
    Encoded,
    Hypothesis,
    LanguageQuestion,
    Suspect,
    Window,
    ms_from_frames,
)
from streamd.whisper.attempts import decoded_again
from streamd.whisper.decode import RIGHT_CONTEXT, Context, detect_language, spoken
from streamd.whisper.engine import Engine, EngineSwitch, FeaturesT, Reuse, on_one_of, urgent
from streamd.whisper.mel import log_mel, window_log_mel
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.view import Effort, States, View, WindowText, token_rate
from streamd.whisper.vocabulary import Vocabularies

_SPARE_TOKENS = 8
"""Tokens that a window may have besides those that its length allows: marks, and words of
rapid speech. Both only bound a decoder that does not end."""


class Recognizer(Generic[FeaturesT]):
    """A model with its vocabulary and options, ready for windows. Not thread-safe."""

    def __init__(
        self,
        engine: Engine[FeaturesT] | EngineSwitch,
        tokenizer: Tokenizer,
        options: DecodingOptions | None = None,
        *,
        working: set["Recognizer[FeaturesT]"] | None = None,
        vocabularies: Vocabularies | None = None,
    ) -> None:
        """`working` are the recognizers of this engine that have a window; all of them share it.

        `vocabularies` have what is expected in all sessions.
        """
        options = options or DecodingOptions()
        self._engine = engine
        self._working = set() if working is None else working
        self._tokenizer = tokenizer
        # Streams have one measure of doubt and one of repetition; recordings have openai-whisper's.
        options = replace(
            options, logprob_threshold=-math.inf, compression_ratio_threshold=math.inf
        )
        self._quick = replace(options, beam_size=1, temperatures=(0.0,))
        self._thorough = replace(options, whole_beams=True)
        self._vocabularies = vocabularies or Vocabularies(tokenizer)

    def recognize(self, window: Window) -> Hypothesis:
        """Return the words in the window after its prefix. Raises `EngineError`.

        Raises `ValueError` for tokens that the model does not have, as those of a session that was
        resumed with another model may be; the engine would end for everybody.

        A window that is not `last` is decoded once, greedily, with its draft; a `last` one with
        beam search and temperature fallback as the options say, on more threads if no other window
        is computed when it begins, since somebody waits for it. What looks wrong is marked as
        suspect.
        """
        self._working.add(self)
        try:
            return on_one_of(self._engine, partial(self._recognize, window))
        finally:
            self._working.discard(self)

    def _recognize(self, window: Window, engine: Engine[FeaturesT]) -> Hypothesis:
        given = (*window.prompt, *window.before, *window.prefix)
        n_vocab = engine.dims.n_vocab
        if not all(0 <= token < n_vocab for token in given):
            raise ValueError(f"text of another model: it has tokens beyond {n_vocab}")
        view = self._view(engine, window)
        first = view.options.temperatures[0]
        text = decoded_again(WindowText(view, view.decode(first, view.context.vocabulary)))
        hypothesis, work = text.hypothesis, view.effort.work
        if hypothesis.suspect is Suspect.NO_SPEECH:
            work = replace(work, disbelieved=view.tokenizer.decode(text.decoded.tokens).strip())
        encoded = Encoded(window.start, window.end, text.states)
        return replace(hypothesis.answered(view.detected), work=work, encoded=encoded)

    def _view(self, serving: Engine[FeaturesT], window: Window) -> View[FeaturesT]:
        more, is_alone = urgent(serving), len(self._working) == 1
        engine = more if more and window.last and is_alone else serving
        before = window.encoded.states if window.encoded else None
        mel, columns = window_log_mel(
            window.samples,
            engine.dims.n_mels,
            start=window.start,
            known=before.columns if isinstance(before, States) else None,
        )
        cached, n_reused = _reusable(window, serving, more)
        reuse = Reuse(cast("FeaturesT", cached.features), n_reused) if cached else None
        features = engine.encode(mel, reuse)
        tokenizer = self._tokenizer.with_task(window.options.task)
        detected = self._detected(window, engine, features)
        language = self._language(window, detected)
        n_text_ctx = engine.dims.n_text_ctx
        rate = token_rate(tokenizer, language)
        n_new = window.end - max(window.start, window.prefix_end)
        most = math.ceil(ms_from_frames(n_new) / 1000 * rate) + _SPARE_TOKENS
        before, prefix = _forced(window, n_text_ctx)
        context = Context(
            max_tokens=min(most, n_text_ctx // 2),
            prompt=(*tokenizer.encode_prompt(window.options.initial_prompt), *window.prompt),
            before=before,
            prefix=prefix,
            draft=window.draft,
            language=language,
            n_frames=window.end - window.start,
            cached=cached.tokens if cached else None,
            vocabulary=self._vocabularies.of(window.options.vocabulary),
            n_cheap=engine.n_cheap,
        )
        return View(
            window,
            engine,
            features,
            columns,
            tokenizer,
            self._thorough if window.last else self._quick,
            context,
            detected,
            np.random.default_rng([0, window.start, window.end]),
            Effort(rate, window.retry.budget if window.last else math.inf),
            partial(self._view, serving),
        )

    def _language(self, window: Window, detected: DetectedLanguage) -> str:
        """The language in which to decode the window."""
        question, known = window.asked(LanguageQuestion), window.options.language
        is_given = not (question and question.decides) and known in self._tokenizer.languages
        return known if is_given and self._tokenizer.multilingual else detected.language

    def _detected(
        self, window: Window, engine: Engine[FeaturesT], features: FeaturesT
    ) -> DetectedLanguage:
        """What language is spoken, if the window asks, or if none is known.

        It is that of the sound alone: in the window's states, the voice before it counts as well.
        """
        tokenizer, question = self._tokenizer, window.asked(LanguageQuestion)
        if not tokenizer.multilingual:
            return DetectedLanguage(tokenizer.language)
        # A session may be older than the model, which may lack its languages.
        known = window.options.language
        before = known if known in tokenizer.languages else ""
        among = [code for code in window.options.languages if code in tokenizer.languages]
        if before and question is None:
            return DetectedLanguage(before)
        if len(among) == 1:
            return DetectedLanguage(among[0])
        first = max(window.start, question.since if question else 0)
        if first > window.start:
            samples = window.samples[(first - window.start) * FRAME :]
            features = engine.encode(log_mel(samples, engine.dims.n_mels))
        probs = detect_language(engine.decoder(features, n_slots=1), tokenizer, among)
        language = spoken(probs, before)
        return DetectedLanguage(language, probs[language], probs.get(before, 0.0))


def _reusable(window: Window, *engines: Engine[Any] | None) -> tuple[States | None, int]:
    """The states of an earlier window, and how many of its first positions this one can reuse.

    They must be those of one of the engines.
    """
    cached = window.encoded
    if cached is None or cached.start != window.start or not isinstance(cached.states, States):
        return None, 0
    if not any(cached.states.engine is engine for engine in engines):
        return None, 0
    n_reused = min(cached.end, window.end) - window.start - RIGHT_CONTEXT
    return (cached.states, n_reused) if n_reused > 0 else (None, 0)


def _forced(window: Window, n_text_ctx: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The newest parts of `before` and `prefix` that leave half of the text context free."""
    longest = n_text_ctx // 2
    prefix = window.prefix[-longest:]
    return window.before[max(0, len(window.before) + len(prefix) - longest) :], prefix
