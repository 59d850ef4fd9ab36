"""Turns a window into a hypothesis, with any engine.

A recognizer computes the log-mel of the padded window, runs encoder and search, and finds the words
and their times. Guards mark what a confused decoder writes as suspect. Windows of several streams
may come in any order.
"""

import math
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, cast

import numpy as np

from streamd.options import DecodingOptions
from streamd.types import (
    FRAME,
    FRAME_MS,
    Encoded,
    Hypothesis,
    Samples,
    Suspect,
    Window,
    Word,
    ms_from_frames,
    text_of,
)
from streamd.whisper.decode import (
    Context,
    Decoded,
    decode,
    detect_language,
    is_probable,
    slots_needed,
    spoken,
    with_fallback,
    with_phrases,
)
from streamd.whisper.engine import Engine, FeaturesT, Search, alone, urgent
from streamd.whisper.guards import is_famous
from streamd.whisper.marks import MARKS, with_marks
from streamd.whisper.mel import WindowColumns, log_mel, window_log_mel
from streamd.whisper.paths import CachedTokens
from streamd.whisper.punctuation import punctuated
from streamd.whisper.tokenizer import REPLACEMENT, Tokenizer
from streamd.whisper.vocabulary import Vocabularies, Vocabulary
from streamd.whisper.words import find_words, is_repeated, n_attended, spread_words, tighten

_SPARE_TOKENS = 8
"""Tokens that a window may have besides those that its length allows: marks, and words of
rapid speech. Both only bound a decoder that does not end."""
RIGHT_CONTEXT = 75
"""A position with this many frames (1.5 s) of sound after it is not computed again. Without this,
nearly the same words are wrong (benchmarks/RESULTS.md), at more than twice the cost."""
_DIGITS_APART = re.compile(r"( \d,){2,} \d(?!\w|\.\d)")
"""Three single digits with commas between them."""
_SHORT = 16
"""Texts with fewer different tokens are short. Probable texts of noise repeat themselves: they had
11 at the most. Of longer ones the probability of no speech says little: it was 0.6 to 0.75 for 15 s
of poorly recorded speech that base had nearly right."""
_ENGLISH, _OTHERS = 6.5, 13.0
"""Maximum number of tokens per second of audio, in English and in other languages.

This plus `_SPARE_TOKENS` ends runaway decodes. 6.5 is moonshine's; other languages are cut into
more tokens."""


EndOfTurn = Callable[[Samples], Future[float]]
"""Begins to tell how probable it is that somebody is done, from all that they have said, (n,)."""


@dataclass(slots=True)
class Counters:
    """What a recognizer did so far.

    `encoded_frames` are the windows' frames whose states were not known; `fallbacks` decodes
    beyond a window's first temperature; `drafted` and `accepted` tokens.
    """

    windows: int = 0
    encoded_frames: int = 0
    fallbacks: int = 0
    drafted: int = 0
    accepted: int = 0


class Recognizer(Generic[FeaturesT]):
    """A model with its vocabulary and options, ready for windows. Not thread-safe."""

    def __init__(
        self,
        engine: Engine[FeaturesT],
        tokenizer: Tokenizer,
        options: DecodingOptions | None = None,
        *,
        end_of_turn: EndOfTurn | None = None,
        working: set["Recognizer[FeaturesT]"] | None = None,
        vocabularies: Vocabularies | None = None,
    ) -> None:
        """`working` are the recognizers of this engine that have a window; all of them share it.

        `vocabularies` have what is expected in all sessions.
        """
        options = options or DecodingOptions()
        self._end_of_turn = end_of_turn
        self.counters = Counters()
        self._engine = engine
        self._urgent = urgent(engine)
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
            return self._recognize(window)
        finally:
            self._working.discard(self)

    def _recognize(self, window: Window) -> Hypothesis:
        self.counters.windows += 1
        given = (*window.prompt, *window.before, *window.prefix)
        n_vocab = self._engine.dims.n_vocab
        if not all(0 <= token < n_vocab for token in given):
            raise ValueError(f"text of another model: it has tokens beyond {n_vocab}")
        options = self._thorough if window.last else self._quick
        rng = np.random.default_rng([options.seed, window.start, window.end])
        turn = self._turn(window)
        view = self._view(window)
        if view.tokenizer.translates or window.clear:
            # There are many ways to translate, so none is probable, and no other try is better. A
            # word alone is improbable, too, and of so short a text a sample is another word.
            options = replace(options, least_evidence=-math.inf)

        def attempt(temperature: float) -> Search[Decoded]:
            self.counters.fallbacks += temperature != options.temperatures[0]
            with_these = partial(self._decode, view, options, temperature, rng)
            if temperature > 0 or not window.last or not view.effort.may_retry:
                return with_these(view.context.vocabulary)
            return with_phrases(with_these, view.context.vocabulary, clear=window.clear)

        decoded = alone(with_fallback(attempt, options, may_retry=lambda: view.effort.may_retry))
        view, decoded = self._dictated(window, view, options, decoded)
        hypothesis = self._hypothesis(window, view, decoded)
        hypothesis = self._continued(window, view, options, decoded, hypothesis)
        hypothesis = self._punctuated(window, view, hypothesis)
        states = _States(view.columns, view.features, decoded.cached)
        encoded = Encoded(window.start, window.end, states)
        turn_prob = turn.result() if turn else None
        return replace(
            hypothesis,
            detected=view.detected.language,
            detected_prob=view.detected.prob,
            previous_prob=view.detected.previous_prob,
            turn_prob=turn_prob if hypothesis.words else None,
            cost=view.effort.cost,
            extra_cost=view.effort.extra_cost,
            encoded=encoded,
        )

    def _turn(self, window: Window) -> Future[float] | None:
        """Begin to tell, while the words are decoded, whether somebody is done, if that is asked.

        It takes about as long as the words.
        """
        if self._end_of_turn is None or window.turn_start is None:
            return None
        since = max(window.turn_start, window.start) - window.start
        return self._end_of_turn(window.samples[since * FRAME :])

    def _engine_for(self, window: Window) -> Engine[FeaturesT]:
        is_alone = len(self._working) == 1
        return self._urgent if self._urgent and window.last and is_alone else self._engine

    def _view(self, window: Window) -> "_View[FeaturesT]":
        engine = self._engine_for(window)
        before = window.encoded.states if window.encoded else None
        mel, columns = window_log_mel(
            window.samples,
            engine.dims.n_mels,
            start=window.start,
            known=before.columns if isinstance(before, _States) else None,
        )
        cached, n_reused = _reusable(window)
        self.counters.encoded_frames += window.end - window.start - n_reused
        features = engine.encode(
            mel,
            previous=cast("FeaturesT", cached.features) if cached else None,
            n_reused=n_reused,
        )
        tokenizer = self._tokenizer.with_task(window.task)
        detected = self._detected(window, features)
        is_given = not window.detect and window.language in tokenizer.languages
        language = window.language if is_given and tokenizer.multilingual else detected.language
        n_text_ctx = engine.dims.n_text_ctx
        rate = _ENGLISH if tokenizer.written(language) == "en" else _OTHERS
        n_new = window.end - max(window.start, window.prefix_end)
        most = math.ceil(ms_from_frames(n_new) / 1000 * rate) + _SPARE_TOKENS
        before, prefix = _forced(window, n_text_ctx)
        context = Context(
            max_tokens=min(most, n_text_ctx // 2),
            prompt=(*tokenizer.encode_prompt(window.initial_prompt), *window.prompt),
            before=before,
            prefix=prefix,
            draft=window.draft,
            language=language,
            n_frames=window.end - window.start,
            cached=cached.tokens if cached else None,
            vocabulary=self._vocabularies.of(window.vocabulary),
            n_cheap=engine.n_cheap,
        )
        effort = _Effort(rate, window.budget if window.last else math.inf)
        return _View(engine, features, columns, tokenizer, context, detected, effort)

    def _detected(self, window: Window, features: FeaturesT) -> "_Detected":
        """What language is spoken from `Window.detect_from` on.

        It is that of the sound alone: in the window's states, the voice before it counts as well.
        """
        tokenizer, options = self._tokenizer, self._quick
        if not tokenizer.multilingual:
            return _Detected(tokenizer.language)
        # A session may be older than the model, which may lack its languages.
        before = window.language if window.language in tokenizer.languages else ""
        among = [code for code in window.languages if code in tokenizer.languages]
        if before and window.detect_from is None:
            return _Detected(before)
        if len(among) == 1:
            return _Detected(among[0])
        first = max(window.start, window.detect_from or 0)
        if first > window.start:
            samples = window.samples[(first - window.start) * FRAME :]
            mel = log_mel(samples, self._engine.dims.n_mels)
            features = self._engine.encode(mel)
        probs = detect_language(self._engine.decoder(features, n_slots=1), tokenizer, among)
        language = spoken(probs, before, options)
        return _Detected(language, probs[language], probs.get(before, 0.0))

    def _decode(
        self,
        view: "_View[FeaturesT]",
        options: DecodingOptions,
        temperature: float,
        rng: np.random.Generator | None,
        vocabulary: Vocabulary | None,
    ) -> Search[Decoded]:
        n_text_ctx = self._engine.dims.n_text_ctx
        n_slots = slots_needed(view.context, options=options, n_text_ctx=n_text_ctx)
        search = decode(
            view.engine.decoder(view.features, n_slots),
            view.tokenizer,
            options=options,
            context=replace(view.context, vocabulary=vocabulary),
            temperature=temperature,
            rng=rng,
        )
        decoded = yield from view.effort.attempt(search)
        self.counters.drafted += decoded.drafted
        self.counters.accepted += decoded.accepted_draft
        return decoded

    def _dictated(
        self,
        window: Window,
        view: "_View[FeaturesT]",
        options: DecodingOptions,
        decoded: Decoded,
    ) -> tuple["_View[FeaturesT]", Decoded]:
        """The view and its text, or others with other words, if these are more probable.

        Where single digits are dictated, the decoder leaves some out if it writes commas between
        them: "1, 0, 0, 1" for 10001. Of 16 runs in which they were dictated, tiny.en has all right
        with the other text, 13 if that is decoded with states of an earlier window, 4 without it.
        Where the words are the same, somebody may count: "1, 2, 3". That commas are refused costs
        the other text nothing.
        """
        text = view.tokenizer.decode(decoded.tokens)
        is_apart = _DIGITS_APART.search(text) and decoded.temperature == 0
        if not is_apart or not view.effort.may_retry:
            return view, decoded
        language = view.context.language
        given = replace(window, detect=False, detect_from=None, language=language)
        anew = self._view(replace(given, encoded=None, draft=()))
        context = replace(anew.context, joins_digits=True)
        anew = replace(anew, context=context, detected=view.detected, effort=view.effort)
        view.effort.encode(window.end - window.start)
        joined = alone(self._decode(anew, options, 0.0, None, anew.context.vocabulary))
        is_same = _unmarked(anew.tokenizer.decode(joined.tokens)) == _unmarked(text)
        is_whole = joined.ended and joined.loop is None
        if is_same or not is_whole or joined.sum_logprob <= decoded.sum_logprob:
            return view, decoded
        return anew, joined

    def _hypothesis(self, window: Window, view: "_View[FeaturesT]", decoded: Decoded) -> Hypothesis:
        suspect = self._distrusted(window, view, decoded)
        words = () if suspect is Suspect.NO_SPEECH else self._words(window, view, decoded)
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

    def _continued(
        self,
        window: Window,
        view: "_View[FeaturesT]",
        options: DecodingOptions,
        decoded: Decoded,
        hypothesis: Hypothesis,
    ) -> Hypothesis:
        """The hypothesis with what follows it, if it ends long before the voice does.

        In noise the decoder may end a text that goes on, or repeat itself, window after window.
        Where it may do neither, it reads on. That counts only if it is probable by itself.
        """
        words, tokens, context = hypothesis.words, hypothesis.tokens, view.context
        read_until = words[-1].end if words else window.prefix_end
        if window.text_until is None or read_until >= window.text_until:
            return hypothesis
        given = (*context.before, *context.prefix, *tokens)
        is_whole = hypothesis.suspect in {None, Suspect.LOOP} and hypothesis.temperature == 0
        fits = 0 < len(given) <= self._engine.dims.n_text_ctx // 2
        can_go_on = is_whole and fits and view.effort.may_retry
        if not can_go_on or view.tokenizer.translates:
            return hypothesis
        chosen = (*decoded.tokens, view.tokenizer.eot)[len(tokens)]
        is_drafted = context.draft[: len(tokens)] == tokens
        context = replace(
            context,
            before=given,
            prefix=(),
            draft=context.draft[len(tokens) :] if is_drafted else (),
            refused=(chosen, view.tokenizer.eot),
        )
        view, window = replace(view, context=context), replace(window, prefix_end=read_until)
        decoded = alone(self._decode(view, options, 0.0, None, context.vocabulary))
        more = self._hypothesis(window, view, decoded)
        is_text = bool(more.words) and not more.suspect and not is_famous(text_of(more.words))
        if not is_text or not is_probable(more):
            return hypothesis
        n, n_more = len(tokens), len(more.tokens)
        total = n * hypothesis.avg_logprob + n_more * more.avg_logprob
        return replace(
            hypothesis,
            words=(*words, *more.words),
            tokens=(*tokens, *more.tokens),
            avg_logprob=total / (n + n_more),
            suspect=None,
        )

    def _punctuated(
        self, window: Window, view: "_View[FeaturesT]", hypothesis: Hypothesis
    ) -> Hypothesis:
        """The hypothesis with the marks and capitals of what is known of the whole text."""
        if window.given_words is None or view.tokenizer.translates:
            return hypothesis
        vocabulary = view.context.vocabulary
        words = punctuated(
            with_marks((*window.given_words, *hypothesis.words)),
            language=view.context.language,
            tokenizer=view.tokenizer,
            new_decoder=lambda n_slots: view.engine.decoder(view.features, n_slots),
            spelled=vocabulary.spelled if vocabulary else (),
        )
        n_given = len(window.given_words)
        new = tuple(words[n_given:])
        return replace(
            hypothesis,
            words=new,
            tokens=tuple(token for word in new for token in word.tokens),
            given_words=tuple(words[:n_given]),
        )

    def _distrusted(
        self, window: Window, view: "_View[FeaturesT]", decoded: Decoded
    ) -> Suspect | None:
        """Why the decoder's text is not to be trusted, apart from its words."""
        if self._is_guess(window, view, decoded):
            return Suspect.NO_SPEECH
        if decoded.loop is not None:
            return Suspect.LOOP
        return None if decoded.ended else Suspect.NO_END

    def _is_guess(self, window: Window, view: "_View[FeaturesT]", decoded: Decoded) -> bool:
        n_different = sum(token < view.tokenizer.eot for token in {*decoded.tokens})
        # Where words are committed, somebody speaks.
        is_short = not window.prefix and n_different < _SHORT
        if is_short and decoded.no_speech_prob > self._quick.no_speech_threshold:
            return True
        if view.tokenizer.translates or decoded.evidence >= self._quick.least_evidence:
            return False
        return not is_probable(decoded, clear=window.clear)

    def _words(
        self, window: Window, view: "_View[FeaturesT]", decoded: Decoded
    ) -> tuple[Word, ...]:
        """Words in frames of the stream, without repetitions or any after the end of the audio."""
        if view.tokenizer.translates:
            kept_tokens = replace(decoded, tokens=decoded.tokens[: decoded.loop])
            return tuple(
                spread_words(
                    kept_tokens,
                    view.tokenizer,
                    start=max(window.start, window.prefix_end),
                    end=window.end,
                )
            )
        n_frames, heard_until = window.end - window.start, window.prefix_end - window.start
        # Where words are committed, somebody speaks.
        if (
            view.context.before
            and not window.prefix
            and is_repeated(decoded, view.tokenizer, heard_until=heard_until, n_frames=n_frames)
        ):
            return ()
        given = (*view.context.before, *view.context.prefix)
        words = find_words(
            decoded,
            view.tokenizer,
            n_frames=n_frames,
            prefix=given,
            prefix_end=heard_until,
        )
        n_kept = n_attended(decoded, view.tokenizer, n_frames)
        if decoded.loop is not None:
            n_kept = min(n_kept, decoded.loop)
        n_text = sum(token < view.tokenizer.eot for token in decoded.tokens[:n_kept])
        kept = []
        for word in words:
            if n_text <= 0:
                break
            kept.append(word)
            n_text -= len(word.tokens)
        if self._quick.tighten:
            kept = tighten(kept, window.samples)
        return tuple(
            replace(word, start=window.start + word.start, end=window.start + word.end)
            for word in kept
        )


class _Effort:
    """How much was decoded of a window, in frames of audio, whose text has `rate` tokens a second.

    `budget` frames may be spent on other attempts than the first.
    """

    def __init__(self, rate: float, budget: float) -> None:
        self._frames_per_pass, self._budget = 1000 / FRAME_MS / rate, budget
        self._n_attempts = self._n_first = self._n_extra = self._n_encoded = 0

    @property
    def extra_cost(self) -> int:
        """The frames of other attempts than the first."""
        return math.ceil(self._n_extra * self._frames_per_pass) + self._n_encoded

    @property
    def cost(self) -> int:
        """The frames of all attempts."""
        return math.ceil(self._n_first * self._frames_per_pass) + self.extra_cost

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
class _View(Generic[FeaturesT]):
    """A window's features, the vocabulary for its task, and the context of its decode.

    `engine` computes it.
    """

    engine: Engine[FeaturesT]
    features: FeaturesT
    columns: WindowColumns
    tokenizer: Tokenizer
    context: Context
    detected: "_Detected"
    effort: _Effort


@dataclass(frozen=True, slots=True)
class _Detected:
    """A language and its probability, None unless it was detected; that of the one before."""

    language: str
    prob: float | None = None
    previous_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class _States:
    """What is kept of a window: log-mel, the engine's features, the decoder's states of tokens."""

    columns: WindowColumns
    features: object
    tokens: CachedTokens | None


def _unmarked(text: str) -> list[str]:
    """The words without marks."""
    return [word.strip(MARKS) for word in text.split()]


def _reusable(window: Window) -> tuple[_States | None, int]:
    """The states of an earlier window, and how many of its first positions this one can reuse."""
    cached = window.encoded
    if cached is None or cached.start != window.start or not isinstance(cached.states, _States):
        return None, 0
    n_reused = min(cached.end, window.end) - window.start - RIGHT_CONTEXT
    return (cached.states, n_reused) if n_reused > 0 else (None, 0)


def _forced(window: Window, n_text_ctx: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The newest parts of `before` and `prefix` that leave half of the text context free."""
    longest = n_text_ctx // 2
    prefix = window.prefix[-longest:]
    return window.before[max(0, len(window.before) + len(prefix) - longest) :], prefix
