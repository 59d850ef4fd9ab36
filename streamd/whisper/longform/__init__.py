"""Transcribes whole recordings, window after window, as openai-whisper's `transcribe` does.

With the same options, tokens, segments and word times are the same, unless the caller says where
there is speech: then speech that a window's text leaves out is decoded again. Times are float
seconds since the recording began, computed in openai-whisper's order: words often last exactly as
long as one of its rules allows, and then its rounding decides. Columns are those of log-mel, 10 ms.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from streamd.options import DecodingOptions, LongformOptions
from streamd.whisper.decode import (
    Context,
    Decoded,
    decode,
    detect_language,
    is_silence,
    slots_needed,
    spoken,
    with_fallback,
)
from streamd.whisper.engine import Engine, FeaturesT
from streamd.whisper.longform.segments import (
    COLUMNS_PER_S,
    Clip,
    Split,
    Stretch,
    TimedSegment,
    Voiced,
    before_missed,
    column_at,
    end_of_words_s,
    missed_first,
    ms_of,
    split,
    with_words,
    without_hallucinations,
)
from streamd.whisper.mel import RecordingMel
from streamd.whisper.prompt import Prompt
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import Vocabularies
from streamd.whisper.words import align

LEAST_SILENT_REST = 100
"""Columns (1 s): a shorter rest of a clip that ends in silence is not decoded."""


@dataclass(frozen=True, slots=True)
class TranscribedWindow:
    """The segments of one window, and up to where the recording is transcribed."""

    segments: tuple[TimedSegment, ...]
    reached_ms: int


class Transcriber(Generic[FeaturesT]):
    """Transcribes one recording with a model, its vocabulary and options. Not thread-safe."""

    def __init__(
        self,
        engine: Engine[FeaturesT],
        tokenizer: Tokenizer,
        decoding: DecodingOptions,
        options: LongformOptions | None = None,
    ) -> None:
        """For openai-whisper's results, `decoding` has timestamps."""
        self._engine, self._tokenizer = engine, tokenizer
        # Guards of live captions, which openai-whisper does not have.
        self._decoding = replace(
            decoding,
            loops=None,
            least_evidence=-math.inf,
            best_attempt=False,
            stop_margin=0.0,
        )
        self._options = options = options or LongformOptions()
        n_most = engine.dims.n_text_ctx // 2 - 1
        self._vocabulary = Vocabularies(tokenizer).of(options.vocabulary)
        self._prefix = tokenizer.encode_prompt(options.prefix)[:n_most]
        self._prompt = Prompt(
            n_most,
            initial=tokenizer.encode_prompt(options.initial_prompt),
            carry=options.carry_initial_prompt,
        )
        self._rng = np.random.default_rng(decoding.seed)
        self._language = tokenizer.language
        self._voiced: Voiced | None = None
        self._last_speech_s = 0.0

    def language(self, mel: RecordingMel, first: int = 0) -> str:
        """The language after column `first`: that of the options, or the most probable one."""
        if not self._tokenizer.multilingual:
            return self._tokenizer.language
        if self._decoding.language is not None:
            return self._decoding.language
        width = 2 * self._engine.dims.n_audio_ctx
        features = self._engine.encode(mel.window(first, width, width=width))
        probs = detect_language(self._engine.decoder(features, n_slots=1), self._tokenizer)
        return spoken(probs, "", self._decoding)

    def transcribe(
        self,
        mel: RecordingMel,
        clips: Sequence[Clip],
        *,
        language: str,
        voiced: Voiced | None = None,
    ) -> Iterator[TranscribedWindow]:
        """Transcribe the clips of the finished recording, window by window as they are asked for.

        `voiced` says for each frame whether there is speech. Where more than 5 s of speech have no
        word, the next window begins there, unlike in openai-whisper. Raises `EngineError`.
        """
        self._language, self._voiced = language, voiced
        n_full = 2 * self._engine.dims.n_audio_ctx
        for clip in clips:
            seek, least_rest = clip.start, LEAST_SILENT_REST if clip.silent_end else 1
            audible = clip.end if clip.silent_end else mel.n_columns
            while seek == clip.start or clip.end - seek >= least_rest:
                stretch = Stretch(seek, min(n_full, mel.n_columns - seek, clip.end - seek))
                segments, following = self._window(mel, stretch, clip)
                # openai-whisper would decode the same window forever
                seek = max(following, seek + 1)
                # The model may place text after the end of the audio.
                within = (s.until(audible / COLUMNS_PER_S) for s in segments)
                segments = [s for s in within if s.start_s < audible / COLUMNS_PER_S]
                yield TranscribedWindow(tuple(segments), ms_of(min(seek, clip.end)))

    def _window(
        self, mel: RecordingMel, stretch: Stretch, clip: Clip
    ) -> tuple[list[TimedSegment], int]:
        """The segments of one window of a clip, and the column where the next one begins."""
        # All of the context is computed, so that the result is openai-whisper's.
        audio_ctx = self._decoding.audio_ctx
        width = max(2 * (audio_ctx or self._engine.dims.n_audio_ctx), stretch.n_columns)
        shown = mel.window(stretch.seek, stretch.n_columns, width=width)
        features = self._engine.encode(shown, audio_ctx=audio_ctx)
        decoded = self._decode(features)
        prefix, self._prefix = self._prefix, ()
        if is_silence(decoded, self._decoding):
            return [], stretch.end
        found = split(decoded, self._tokenizer, stretch)
        if clip.silent_end and found.seek >= clip.end:
            found = found._replace(complete=True)  # even if its last word ends earlier
        if self._options.word_timestamps:
            found = self._timed(found, features, stretch)
        if self._options.word_timestamps and self._options.hallucination_silence_ms:
            kept = without_hallucinations(
                found,
                stretch,
                self._options.hallucination_silence_ms / 1000,
                last_speech_s=self._last_speech_s,
                full_end_s=(stretch.seek + 2 * self._engine.dims.n_audio_ctx) / COLUMNS_PER_S,
                end_s=mel.n_columns / COLUMNS_PER_S,
            )
            if isinstance(kept, int):
                return [], kept
            found = kept
        if self._voiced is not None:
            hole = missed_first(found, stretch, self._voiced)
            if hole is not None:
                self._prefix = prefix
                return self._window(mel, hole, clip)
            found = before_missed(found, stretch, self._voiced)
        return self._remember(found, decoded), found.seek

    def _remember(self, found: Split, decoded: Decoded) -> list[TimedSegment]:
        """Keep what the next window needs of this one; return the segments that have text."""
        if self._options.word_timestamps:
            end_s = end_of_words_s(found.segments)
            self._last_speech_s = self._last_speech_s if end_s is None else end_s
        segments = [s for s in found.segments if s.start_s != s.end_s and s.text.strip()]
        self._prompt.remember(
            [token for segment in segments for token in segment.tokens],
            language=self._language,
            temperature=decoded.temperature,
            doubtful=not self._options.condition_on_previous_text,
        )
        return segments

    def _decode(self, features: FeaturesT) -> Decoded:
        """Decode until the text passes the thresholds."""
        options, n_text_ctx = self._decoding, self._engine.dims.n_text_ctx
        context = Context(
            max_tokens=options.max_tokens or n_text_ctx // 2,
            prompt=self._prompt.tokens,
            prefix=self._prefix,
            language=self._language,
            vocabulary=self._vocabulary,
        )
        n_slots = slots_needed(context, options=options, n_text_ctx=n_text_ctx)

        def attempt(temperature: float) -> Decoded:
            return decode(
                self._engine.decoder(features, n_slots),
                self._tokenizer,
                options=options,
                context=context,
                temperature=temperature,
                rng=self._rng,
            )

        return with_fallback(attempt, options)

    def _timed(self, found: Split, features: FeaturesT, stretch: Stretch) -> Split:
        """Add words to the segments; the next window begins after the last of them."""
        eot, n_frames = self._tokenizer.eot, stretch.n_columns // 2
        tokens = [token for s in found.segments for token in s.tokens if token < eot]
        aligned = []
        if n_frames:
            decoder = self._engine.decoder(features, len(tokens) + 5)
            language = self._language
            aligned = align(decoder, self._tokenizer, tokens, language=language, n_frames=n_frames)
        segments = with_words(
            found.segments,
            aligned,
            self._options,
            eot=eot,
            origin_s=stretch.start_s,
            last_speech_s=self._last_speech_s,
        )
        end_s = end_of_words_s(segments)
        if found.complete or end_s is None or end_s <= stretch.start_s:
            return found._replace(segments=segments)
        return Split(segments, column_at(end_s), found.complete)
