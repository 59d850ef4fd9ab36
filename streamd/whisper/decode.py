"""One window from encoder features to tokens, decoded again where the result is poor.

The probability of silence, the confidences and the alignment come from the passes of the search.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from streamd.options import DecodingOptions
from streamd.types import compression_ratio, evidence, is_probable
from streamd.whisper.beam import beam_search, best
from streamd.whisper.engine import Decoder, Search, alone
from streamd.whisper.greedy import Draft, Sampler, greedy, sample
from streamd.whisper.guards import find_loop
from streamd.whisper.logit_rules import Rules
from streamd.whisper.paths import Cache, CachedTokens, Path, Prefill, log_softmax, log_sum
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import Expected, Vocabulary


def detect_language(
    decoder: Decoder, tokenizer: Tokenizer, among: Sequence[str] = ()
) -> dict[str, float]:
    """The probability of each language, the most probable first (openai/whisper ``decoding.py``).

    One pass over start-of-transcript. `decoder` is new and may be used again. With `among`, codes
    of languages that the tokenizer knows, it is sure to be one of these.
    """
    _, logits = alone(Cache(decoder).prefill((tokenizer.sot,), (0,)))
    languages = tuple(among) or tokenizer.languages
    rows = [tokenizer.sot + 1 + tokenizer.languages.index(code) for code in languages]
    probs = np.exp(log_softmax(logits[0, rows]))
    order = np.argsort(-probs, kind="stable").tolist()
    return {languages[i]: float(probs[i]) for i in order}


NEW_LANGUAGE, CLEARLY_NEW = 0.5, 0.2
"""The probability of a new language, and how much more probable it is than the one before. Of 46
recordings in nine languages, none was misheard with 0.5."""


def spoken(probs: Mapping[str, float], before: str) -> str:
    """The most probable language, unless it is not clear that it is no longer the one `before`."""
    newest, prob = next(iter(probs.items()))
    is_clear = prob >= NEW_LANGUAGE and prob - probs.get(before, 0.0) >= CLEARLY_NEW
    return newest if is_clear or before not in probs else before


RIGHT_CONTEXT = 75
"""A position with this many frames (1.5 s) of sound after it is not computed again. Without this,
nearly the same words are wrong (benchmarks/RESULTS.md), at more than twice the cost. Given tokens
are run again if they attend to twice as many at the end of a window: a step was added to those."""
_MIN_CACHED = 8
"""Fewer cached tokens are run again: that takes hardly longer, and what they heard is renewed. With
one, finals of 8 in 26 clips differ (tiny.en)."""
_N_START = 5
"""Special tokens before the prefix: startofprev, sot, language, task, notimestamps."""


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before a decode.

    `prompt` is the text before the window, `before` the text of its audio before the utterance,
    `prefix` the forced beginning of the utterance, and `draft` a guess of what follows, for greedy
    decoding. At most `max_tokens` are sampled. What follows `before` has a word, after a mark or at
    once, unless there is a prefix. It begins with none of the tokens `refused`, and with
    `joins_digits` no comma follows a digit that stands alone. `n_frames` of the window hold audio;
    `cached` are given tokens of an earlier window that began at the same frame. `vocabulary` are
    phrases to expect. Without a draft, the end of a sentence is guessed after each token unless
    `guesses` is off, which is for passes that many windows share; timestamps are guessed anyway.
    `n_cheap` is that of the engine. Without `finds_frames` it is not computed which frame each
    token attends to, and nothing is left for the next window.
    """

    max_tokens: int
    prompt: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    language: str = "en"
    before: tuple[int, ...] = ()
    n_frames: int = 0
    cached: CachedTokens | None = None
    vocabulary: Vocabulary | None = None
    refused: tuple[int, ...] = ()
    joins_digits: bool = False
    guesses: bool = True
    n_cheap: int = 4
    finds_frames: bool = True


@dataclass(frozen=True, slots=True)
class Decoded:
    """A transcript of one window, after its prefix.

    Attributes
    ----------
    tokens : text tokens, and timestamps if they were sampled; no end-of-text
    token_probs : each text token's probability among the text tokens, a timestamp's under the rules
    avg_logprob : mean log probability under the rules, end-of-text included
    no_speech_prob : probability that the window holds no speech
    alignment : scores (n_heads, n_ctx) of each query from start-of-transcript on; the row that
        chose a token is the one before its own. The last token has a row of its own if `ended`.
    n_given : rows of `alignment` before those of `tokens`
    frames : the frame that each row of `alignment` attends to most, if the context asks for it
    ended : the decoder ended the text, and was not stopped
    loop : how many tokens to keep because the rest repeats, or None
    cached : given tokens for the next window, if it begins at the same frame
    """

    tokens: tuple[int, ...]
    token_probs: tuple[float, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    language: str
    alignment: tuple[NDArray[np.float32], ...]
    n_given: int
    frames: tuple[int, ...]
    ended: bool
    loop: int | None
    cached: CachedTokens | None = None

    @property
    def sum_logprob(self) -> float:
        """Log probability under the rules, end-of-text included."""
        return self.avg_logprob * (len(self.tokens) + 1)

    @property
    def evidence(self) -> float:
        """How much speaks for the text; see `streamd.types.evidence`."""
        return evidence(self.avg_logprob, self.no_speech_prob, self.temperature)


def slots_needed(context: Context, *, options: DecodingOptions, n_text_ctx: int) -> int:
    """How many cache slots `decode` may need at any temperature."""
    width = max(options.beam_size, options.best_of if max(options.temperatures) > 0 else 1)
    given = (context.prompt, context.before, context.prefix)
    n_given = min(n_text_ctx, sum(map(len, given)) + _N_START)
    n_spare = 1  # a token that is run again behind a cached prefix
    if context.vocabulary:  # a phrase that is tried, with a guess of what follows
        longest = min(context.vocabulary.longest, n_text_ctx)
        n_spare += longest + len(context.draft) + context.n_cheap - 1
    return n_given + n_spare + width * min(n_text_ctx, context.max_tokens)


def decode(
    decoder: Decoder,
    tokenizer: Tokenizer,
    *,
    options: DecodingOptions,
    context: Context,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Search[Decoded]:
    """Decode one window once, at one temperature.

    Returns a search, to be run `alone` or together with others. `decoder` is a new one with at
    least `slots_needed` slots. At temperature 0 the search is greedy with the draft, or a beam
    search if ``options.beam_size`` exceeds 1. Above, it takes the best of ``options.best_of``
    samples drawn from `rng`; these expect no phrases, which cost time where nothing is clear and
    are not found there. Raises `ValueError` if the prefix fills the text context, or if there is no
    `rng` to sample with.
    """
    sampler = None
    if temperature > 0.0:
        if rng is None:
            raise ValueError("sampling needs a random generator")
        sampler = Sampler(temperature, options.best_of, rng)
    return _WindowSearch(decoder, tokenizer, options, context, sampler).run()


class _WindowSearch:
    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        context: Context,
        sampler: Sampler | None,
    ) -> None:
        self._tokenizer, self._options, self._context = tokenizer, options, context
        self._sampler = sampler
        self._prompt, self._start = _given(
            context, tokenizer, options.timestamps, decoder.n_text_ctx
        )
        self._n_given = len(self._prompt) + len(self._start)
        # The last token is sampled, not run: it needs no place in the text context.
        self._max_tokens = min(context.max_tokens, decoder.n_text_ctx + 1 - self._n_given)
        if self._max_tokens <= 0:
            raise ValueError(f"a prefix of {len(context.prefix)} tokens fills the text context")
        self._draft: tuple[int, ...] = ()
        if sampler is None and options.beam_size == 1:
            draft = _possible(context.draft, tokenizer, options.timestamps)
            if options.timestamps and not context.prefix:
                draft = draft or (tokenizer.timestamp_begin,)  # most windows begin with speech
            self._draft = draft[: self._max_tokens]
        self._decoder = decoder
        self._cache = Cache(decoder, finds_frames=context.finds_frames)
        self._rules = Rules(
            tokenizer,
            options,
            something_said=bool(context.prefix),
            continues=bool(context.before),
            refused=context.refused,
            joins_digits=context.joins_digits,
        )
        given = (*context.before, *context.prefix)
        self._expected = Expected(context.vocabulary, given) if context.vocabulary else None

    def run(self) -> Search[Decoded]:
        """Run the given tokens and the draft in one pass, search on from there."""
        given, logits = yield from self._prefill()
        no_speech_prob = float(np.exp(logits[0, self._tokenizer.nospeech] - log_sum(logits[0])))
        # A copy: these are kept until the end, and a view keeps those of all windows of the pass.
        logits = logits[1:].copy()
        paths = yield from self._paths(Prefill(given, logits))
        path = best(paths)
        n_tokens, tokenizer = len(path.tokens), self._tokenizer
        # The last token of a path that did not end was never run.
        n_run = self._n_given + n_tokens - (not path.ended)
        return Decoded(
            tokens=path.tokens,
            token_probs=path.probs,
            avg_logprob=path.sum_logprob / (n_tokens + 1),
            no_speech_prob=no_speech_prob,
            compression_ratio=compression_ratio(tokenizer.decode(path.tokens).strip()),
            temperature=0.0 if self._sampler is None else self._sampler.temperature,
            language=self._context.language,
            alignment=path.rows[len(self._prompt) : n_run],
            n_given=len(self._start),
            frames=path.frames[len(self._prompt) : n_run],
            ended=path.ended,
            loop=self._loop(path),
            cached=self._reusable(given) if self._context.finds_frames else None,
        )

    def _prefill(self) -> Search[Prefill]:
        """Run the given tokens and the draft, except what is cached.

        The row of start-of-transcript, which is the first, says whether there is speech. The search
        begins with the last token that is given, and has the rows of the draft at hand.
        """
        tokens, n_prompt = (*self._prompt, *self._start, *self._draft), len(self._prompt)
        cached, wanted = self._context.cached, range(self._n_given - 1, len(tokens))
        n = cached.n_shared(tokens[: self._n_given - 1]) if cached else 0
        if cached and n >= n_prompt + _MIN_CACHED:
            want = [row - n for row in wanted]
            cached = cached.cut(n, self._context.n_frames)
            found = yield from self._cache.resume(cached, tokens[n:], want=want, again=n_prompt)
            if found is not None:
                return found
        return (yield from self._cache.prefill(tokens, (n_prompt, *wanted)))

    def _reusable(self, run: Path) -> CachedTokens:
        """The given tokens up to the first one of the text that attends to new sound."""
        context, given = self._context, (*self._prompt, *self._start)
        n = len(given) - len(context.before) - len(context.prefix)
        old = context.n_frames - 2 * RIGHT_CONTEXT
        n += sum(1 for _ in takewhile(lambda at: at < old, run.frames[n : self._n_given]))
        rows = np.stack([row[:, : context.n_frames] for row in run.rows[:n]])
        return CachedTokens(self._decoder, given[:n], rows, run.frames[:n])

    def _paths(self, prefill: Prefill) -> Search[list[Path]]:
        options, rules, max_tokens = self._options, self._rules, self._max_tokens
        if self._sampler is not None:
            sampling = sample(
                self._cache, prefill, rules=rules, sampler=self._sampler, max_tokens=max_tokens
            )
            return (yield from sampling)
        if options.beam_size > 1:
            beams = beam_search(
                self._cache,
                prefill,
                rules=rules,
                options=options,
                max_tokens=max_tokens,
                expected=self._expected,
            )
            return (yield from beams)
        n_ahead = self._context.n_cheap - 1
        (mark,) = self._tokenizer.encode(".") if self._context.guesses else (None,)
        path = yield from greedy(
            self._cache,
            prefill,
            rules=rules,
            draft=Draft(self._draft, mark, max_tokens, self._tokenizer.timestamp_begin, n_ahead),
            stop=lambda path: len(path.tokens) >= max_tokens or self._loop(path) is not None,
            expected=self._expected,
        )
        return [path]

    def _loop(self, path: Path) -> int | None:
        if not self._options.loops:
            return None
        # a translation may attend to one spot for long: the verb that it waited for
        frames = () if self._tokenizer.translates else path.frames[self._n_given - 1 :]
        frames = frames[: len(path.tokens)]  # the row that chose a token is the one before its own
        return find_loop(path.tokens, frames, self._tokenizer, language=self._context.language)


def _given(
    context: Context, tokenizer: Tokenizer, timestamps: bool, n_text_ctx: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The prompt, cut to what fits, and what starts the transcript.

    A long prompt leaves room for fewer than `max_tokens`, as in openai-whisper, but for almost half
    of the text context.
    """
    start = tokenizer.sot_sequence_for(context.language)
    if not timestamps:
        start = (*start, tokenizer.notimestamps)
    given = (*start, *context.before, *context.prefix)
    n_sampled = min(context.max_tokens, n_text_ctx // 2 - _N_START)
    n_free = min(n_text_ctx // 2, n_text_ctx - len(given) - n_sampled) - 1
    prompt = context.prompt[-n_free:] if n_free > 0 else ()
    if not prompt:
        return (), given
    return (tokenizer.startofprev, *prompt), given


def _possible(draft: Sequence[int], tokenizer: Tokenizer, timestamps: bool) -> tuple[int, ...]:
    """The draft up to the first token that no transcript can contain."""

    def is_possible(token: int) -> bool:
        is_timestamp = tokenizer.timestamp_begin <= token < tokenizer.n_vocab
        return 0 <= token < tokenizer.eot or (timestamps and is_timestamp)

    return tuple(takewhile(is_possible, draft))


def is_silence(decoded: Decoded, options: DecodingOptions) -> bool:
    """Whether there is probably no speech, and the text is a guess (openai/whisper)."""
    guess = decoded.avg_logprob <= options.logprob_threshold
    return guess and decoded.no_speech_prob > options.no_speech_threshold


def needs_fallback(decoded: Decoded, options: DecodingOptions) -> bool:
    """Whether the text is repetitive or a guess, and the window is not silent."""
    poor = (
        decoded.compression_ratio > options.compression_ratio_threshold
        or decoded.avg_logprob < options.logprob_threshold
        or decoded.evidence < options.least_evidence
        or decoded.loop is not None
    )
    return poor and not is_silence(decoded, options)


def with_phrases(
    attempt: Callable[[Vocabulary | None], Search[Decoded]], vocabulary: Vocabulary | None
) -> Search[Decoded]:
    """Decode with phrases to expect, and once more without if the result is improbable.

    What a phrase costs would otherwise lose the utterance of which it is most.
    """
    decoded = yield from attempt(vocabulary)
    if vocabulary is None or is_probable(decoded):
        return decoded
    plain = yield from attempt(None)
    return max(decoded, plain, key=lambda each: each.evidence)


def with_fallback(
    attempt: Callable[[float], Search[Decoded]],
    options: DecodingOptions,
    *,
    first: Decoded | None = None,
    may_retry: Callable[[], bool] = lambda: True,
) -> Search[Decoded]:
    """Decode at one temperature after the other until the result passes the thresholds.

    `attempt` decodes at a temperature, with a new decoder each time; `first` is the text at the
    first one, if it is known. Before each but the first, `may_retry` is asked. Source:
    openai/whisper ``transcribe.py`` (`decode_with_fallback`).
    """
    attempts: list[Decoded] = []
    for temperature in options.temperatures:
        if first is not None and not attempts:
            attempts.append(first)
        else:
            attempts.append((yield from attempt(temperature)))
        if not needs_fallback(attempts[-1], options):
            return attempts[-1]
        if not may_retry():
            break
    if not options.best_attempt:
        return attempts[-1]
    return max(attempts, key=lambda decoded: (decoded.loop is None, decoded.evidence))
