"""Reads the clips of a recording, window after window.

Times are float seconds, columns those of log-mel, 10 ms.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

import numpy as np

from streamd.language import FAMOUS_NO_SPEECH, is_famous
from streamd.options import DecodingOptions, LongformOptions
from streamd.prompt import Prompt
from streamd.types import COLUMNS_PER_FRAME, PROBABLE, Clip, Voiced
from streamd.whisper.decode import (
    Context,
    Decoded,
    decode,
    is_silence,
    slots_needed,
    with_fallback,
    with_phrases,
)
from streamd.whisper.engine import Engine, FeaturesT, Search
from streamd.whisper.guards import find_repeated
from streamd.whisper.longform.schedule import EncoderPass, Reading, Steps, TranscribedWindow
from streamd.whisper.longform.segments import (
    COLUMNS_PER_S,
    Split,
    Stretch,
    TimedSegment,
    as_prompt,
    before_cut,
    before_missed,
    column_at,
    end_of_words_s,
    ends_at_once,
    is_speech,
    missed_first,
    ms_of,
    small_holes,
    split,
    with_words,
)
from streamd.whisper.mel import RecordingMel
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.view import Effort, token_rate
from streamd.whisper.vocabulary import Vocabulary
from streamd.whisper.words import align, words_as_decoded

LEAST_SILENT_REST = 100
"""Columns (1 s): a shorter rest of a clip that ends in silence is not decoded."""
LONGEST_WINDOW = 1_900
"""Columns (19 s), the longest window of detected speech. With a longer one, the engine has to
compute silence as well (streamd/models/silence.py), and the model makes more errors
(benchmarks/RESULTS.md, "Whole recordings")."""
_MOST_AGAIN, _MOST_TRIES = 3, 2
"""What may be spent on decoding a window again, and of it on other temperatures for the same part,
in passes: so many times as many as the part's length allows tokens (`Effort`). See `Reader`."""
_SPARE_TOKENS = 24
"""Tokens that a window may have besides those that its length allows: marks and timestamps."""
_LEAST_HALVED = 600
"""Columns (6 s): a longer window of speech without a word is decoded again in halves."""

_SILENT = 2
"""Columns of silence after the sound of a window; the engine repeats the last one."""


def least_rest_of(clip: Clip) -> int:
    """Return how many columns of a clip are decoded at least, if some of it was before."""
    return LEAST_SILENT_REST if clip.silent_end else 1


@dataclass(frozen=True, slots=True)
class Spectrum:
    """A finished recording: its spectrum, language, speech, and expected phrases."""

    mel: RecordingMel
    language: str
    voiced: Voiced | None
    vocabulary: Vocabulary | None


class Reader(Generic[FeaturesT]):
    """Decodes clips one after the other; the text so far is the prompt of the next window.

    What a window of detected speech costs at most: its first decode; three times as many passes as
    its length allows tokens, for other temperatures, halves, short gaps and what was missed; and
    one decode that begins before these are spent. For the longest, 19 s, that is 148 + 371 + 148
    passes in English, and 224 + 741 + 224 in other languages. Phrases that are expected may double
    the last one. Without a voice detector each window has all temperatures, as openai-whisper's.
    """

    def __init__(
        self,
        engine: Engine[FeaturesT],
        tokenizer: Tokenizer,
        options: tuple[DecodingOptions, LongformOptions],
        *,
        source: Spectrum,
        rng: np.random.Generator,
    ) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        (self._decoding, longform), self._rng = options, rng
        self._options = longform
        self._mel, self._language, self._voiced = source.mel, source.language, source.voiced
        self._vocabulary = source.vocabulary
        self._rate = token_rate(tokenizer, source.language)
        n_most = engine.dims.n_text_ctx // 2 - 1
        self._prompt = Prompt(n_most, initial=tokenizer.encode_prompt(longform.initial_prompt))
        self._last_speech_s = 0.0

    def read(self, clips: Iterable[Clip]) -> Reading:
        """Read the clips, window by window."""
        n_full, n_columns = 2 * self._engine.dims.n_audio_ctx, self._mel.n_columns
        if self._voiced is not None:
            n_full = min(n_full, LONGEST_WINDOW)
        for clip in clips:
            seek, least_rest = clip.start, least_rest_of(clip)
            audible = clip.end if clip.silent_end else n_columns
            while seek == clip.start or clip.end - seek >= least_rest:
                stretch = Stretch(seek, min(n_full, n_columns - seek, clip.end - seek))
                self._effort = self._new_effort(stretch)
                segments, following = yield from self._window(stretch, clip)
                # openai-whisper would decode the same window forever
                seek = max(following, seek + 1)
                # The model may place text after the end of the audio.
                end_s = audible / COLUMNS_PER_S
                segments = [s.within(0.0, end_s) for s in segments if s.start_s < end_s]
                reached_ms = ms_of(min(seek, clip.end))
                read = replace(stretch, n_columns=min(seek, stretch.end) - stretch.seek)
                # If only the first part was read, the speech of the window may come after it.
                unheard = not segments and self._speaks(stretch) and self._voiced_in(read).any()
                yield TranscribedWindow(tuple(segments), reached_ms, read if unheard else None)

    def _new_effort(self, stretch: Stretch) -> Effort:
        is_bounded = self._voiced is not None
        return Effort(self._rate, _MOST_AGAIN * stretch.n_frames if is_bounded else math.inf)

    def _speaks(self, stretch: Stretch) -> bool:
        """Whether the voice detector finds speech there, if there is one."""
        return is_speech(self._voiced_in(stretch))

    def _voiced_in(self, stretch: Stretch) -> Voiced:
        """Which frames of it are voiced, (n,); none without a voice detector."""
        if self._voiced is None:
            return np.zeros(0, np.bool_)
        return self._voiced[stretch.seek // COLUMNS_PER_FRAME : stretch.end // COLUMNS_PER_FRAME]

    def _window(self, stretch: Stretch, clip: Clip) -> Steps[tuple[list[TimedSegment], int]]:
        """The segments of one window of a clip, and the column where the next one begins."""
        decoded, found = yield from self._decoded(stretch, clip)
        if found is None:
            # In the halves of an invented text, other hallucinations often look more probable.
            half = self._half(stretch) if is_silence(decoded, self._decoding) else None
            if half is not None and self._effort.may_retry and self._speaks(stretch):
                return (yield from self._window(half, clip))
            return [], stretch.end
        # A timestamp may lie after the window's sound: what follows it has not been decoded.
        found = found._replace(seek=min(found.seek, stretch.end))
        if self._voiced is not None:
            again = missed_first(found, stretch, self._voiced) or self._misled(found, stretch)
            if again is not None and self._effort.may_retry:
                return (yield from self._window(again, clip))
            if stretch.end < clip.end:
                found = before_cut(found, stretch, self._voiced)
            found = before_missed(found, stretch, self._voiced)
            found = yield from self._filled(found, small_holes(found, stretch, self._voiced), clip)
        return self._remember(found, decoded), found.seek

    def _filled(
        self, found: Split, holes: Sequence[tuple[int, Stretch]], clip: Clip
    ) -> Steps[Split]:
        """Fill short gaps in a window's text, if what is decoded there is probable by itself.

        Where one voice is much quieter than another, Whisper leaves out what it says. A short gap
        is decoded by itself; at a longer one, the next window begins.
        """
        segments = list(found.segments)
        for n_before, hole in reversed(holes):
            if not self._effort.may_retry:
                break
            decoded, missed = yield from self._decoded(hole, clip, alone=True)
            if missed is not None and decoded.evidence >= PROBABLE and decoded.loop is None:
                start_s, end_s = hole.start_s, hole.start_s + hole.length_s
                # A long word before it may seem to last over it.
                before = [segment.within(0.0, start_s) for segment in segments[:n_before]]
                within = [segment.within(start_s, end_s) for segment in missed.segments]
                segments[:n_before] = before + within
        return found._replace(segments=segments)

    def _decoded(
        self, stretch: Stretch, clip: Clip, *, alone: bool = False
    ) -> Steps[tuple[Decoded, Split | None]]:
        """Decode a window into segments with words; None if it is silent or hallucinated.

        With `alone`, it is decoded once and without a prompt. Its features are freed before the
        next window begins.
        """
        yield (asked := self._encoding(stretch))
        features = asked.take()
        decoded = yield from self._decode(features, stretch, alone=alone)
        # Where clips are decoded at once, texts wait for those before them. The scores of a text's
        # tokens, 2 MB, are not needed any more then.
        kept = replace(decoded, alignment=())
        if is_silence(decoded, self._decoding) or self._is_invented(decoded, stretch):
            return kept, None
        found = split(kept, self._tokenizer, stretch)
        if clip.silent_end and found.seek >= clip.end and decoded.loop is None:
            found = found._replace(complete=True)  # even if its last word ends earlier
        if self._options.word_timestamps:
            found = yield from self._timed(found, decoded, features, stretch)
        return kept, found

    def _is_invented(self, decoded: Decoded, stretch: Stretch) -> bool:
        """Whether the best attempt at speech is a hallucination: improbable and repetitive.

        In a crowd, that is "the chief of the world of the people of the world of the people".
        Either by itself is not enough: correct translations often have a mean log probability below
        the threshold, and songs, lists and scripts with three bytes a character compress well. What
        Whisper typically writes for noise ("Thank you.") is one if there is hardly any speech.
        """
        options, text = self._decoding, self._tokenizer.decode(decoded.tokens)
        is_doubtful = decoded.no_speech_prob > FAMOUS_NO_SPEECH
        if self._voiced is not None and is_doubtful and is_famous(text):
            return True
        if len(options.temperatures) == 1 or not self._speaks(stretch):
            return False
        # A text with a loop was cut there; the ratio is that of all of it.
        is_cut = decoded.loop is not None
        repeats = not is_cut and decoded.compression_ratio > options.compression_ratio_threshold
        return repeats and decoded.evidence < PROBABLE

    def _half(self, stretch: Stretch) -> Stretch | None:
        """The first half of a window, unless it is too short."""
        if stretch.n_columns < _LEAST_HALVED:
            return None
        return replace(stretch, n_columns=stretch.n_columns // 2)

    def _misled(self, found: Split, stretch: Stretch) -> Stretch | None:
        """Return what to decode again if the text ends at once although the voice goes on.

        Such text may only complete the prompt, so the prompt is dropped first.
        """
        if self._voiced is None or not ends_at_once(found, stretch, self._voiced):
            return None
        before = self._prompt.tokens
        self._prompt.forget()
        return stretch if self._prompt.tokens != before else self._half(stretch)

    def _encoding(self, stretch: Stretch) -> EncoderPass[FeaturesT]:
        n_columns, n_full = stretch.n_columns, 2 * self._engine.dims.n_audio_ctx
        if self._voiced is not None:
            # Only the sound is computed, as of a live window: what follows it is silence.
            width, silent = min(n_columns + _SILENT, n_full), True
        else:  # all of the context, so that the result is openai-whisper's
            width, silent = n_full, False
        shown = partial(self._mel.window, stretch.seek, n_columns, width=width, silent=silent)
        return EncoderPass(shown, n_columns)

    def _remember(self, found: Split, decoded: Decoded) -> list[TimedSegment]:
        """Store what the next window needs; return the segments that have text."""
        if self._options.word_timestamps:
            end_s = end_of_words_s(found.segments)
            self._last_speech_s = self._last_speech_s if end_s is None else end_s
        segments = [s for s in found.segments if s.start_s != s.end_s and s.text.strip()]
        if self._voiced is None:
            tokens = [token for segment in segments for token in segment.tokens]
        else:
            (stop,) = self._tokenizer.encode(".")
            tokens = as_prompt(segments, stop=stop, eot=self._tokenizer.eot)
        self._prompt.remember(
            tokens,
            language=self._language,
            temperature=decoded.temperature,
            doubtful=not self._options.condition_on_previous_text,
        )
        return segments

    def _decode(self, features: FeaturesT, stretch: Stretch, *, alone: bool) -> Search[Decoded]:
        """Decode until the text passes the thresholds.

        Where speech was detected, the model's no-speech probability alone does not end the
        attempts: other temperatures are tried first. So they are for a text that repeats itself,
        which is then cut.
        """
        options, n_text_ctx = self._decoding, self._engine.dims.n_text_ctx
        max_tokens, effort = n_text_ctx // 2, self._effort
        most_cost: float = math.inf
        if self._voiced is not None:
            most = math.ceil(stretch.length_s * self._rate) + _SPARE_TOKENS
            max_tokens = min(max_tokens, most)
            most_cost = effort.extra_cost + _MOST_TRIES * stretch.n_frames
        if self._speaks(stretch):
            options = replace(options, no_speech_threshold=1.0)
        if alone:
            options = replace(options, temperatures=options.temperatures[:1])
        context = Context(
            max_tokens=max_tokens,
            prompt=() if alone else self._prompt.tokens,
            language=self._language,
            vocabulary=self._vocabulary,
            guesses=self._voiced is None,
            n_cheap=self._engine.n_cheap,
            finds_frames=False,
        )
        n_slots = slots_needed(context, options=options, n_text_ctx=n_text_ctx)

        def expecting(temperature: float, vocabulary: Vocabulary | None) -> Search[Decoded]:
            search = decode(
                self._engine.decoder(features, n_slots),
                self._tokenizer,
                options=options,
                context=replace(context, vocabulary=vocabulary),
                temperature=temperature,
                rng=self._rng,
            )
            decoded = yield from effort.attempt(search)
            return decoded if self._voiced is None else self._without_loop(decoded)

        def attempt(temperature: float) -> Search[Decoded]:
            with_these = partial(expecting, temperature)
            if temperature > 0:
                return with_these(context.vocabulary)
            return with_phrases(with_these, context.vocabulary)

        def may_retry() -> bool:
            return effort.may_retry and effort.extra_cost < most_cost

        return (yield from with_fallback(attempt, options, may_retry=may_retry))

    def _without_loop(self, decoded: Decoded) -> Decoded:
        """Cut the text where it begins to repeat itself, if it does."""
        eot = self._tokenizer.eot
        text_at = [at for at, token in enumerate(decoded.tokens) if token < eot]
        text = [decoded.tokens[at] for at in text_at]
        n_kept = find_repeated(text, self._tokenizer, language=decoded.language)
        if n_kept is None:
            return decoded
        n = text_at[n_kept - 1] + 1
        tokens, probs = decoded.tokens[:n], decoded.token_probs[:n]
        return replace(decoded, tokens=tokens, token_probs=probs, loop=n)

    def _timed(
        self, found: Split, decoded: Decoded, features: FeaturesT, stretch: Stretch
    ) -> Search[Split]:
        """Add words to the segments; the next window begins after the last of them.

        openai-whisper aligns the text in a pass of its own; here, the passes that chose the tokens
        give the times.
        """
        eot, n_frames = self._tokenizer.eot, stretch.n_frames
        tokens = [token for s in found.segments for token in s.tokens if token < eot]
        aligned = []
        if n_frames and self._voiced is not None:
            aligned = words_as_decoded(decoded, self._tokenizer, len(tokens), n_frames=n_frames)
        elif n_frames:
            decoder = self._engine.decoder(features, len(tokens) + 5)
            language = self._language
            aligned = yield from align(
                decoder, self._tokenizer, tokens, language=language, n_frames=n_frames
            )
        segments = with_words(
            found.segments,
            aligned,
            eot=eot,
            origin_s=stretch.start_s,
            last_speech_s=self._last_speech_s,
        )
        end_s = end_of_words_s(segments)
        if found.complete or end_s is None or end_s <= stretch.start_s:
            return found._replace(segments=segments)
        return Split(segments, column_at(end_s), found.complete)
