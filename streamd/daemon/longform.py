"""From the configuration to what writes a whole recording down, and from its text to events."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from streamd.config import Config
from streamd.daemon import build
from streamd.engine import Engine
from streamd.engine.longform import (
    SpeechClips,
    TimedSegment,
    TranscribedWindow,
    Transcriber,
    clips_at,
)
from streamd.engine.model import MIN_AUDIO_CTX, Model
from streamd.errors import ConfigError
from streamd.events import Details, Final, Gap, GapReason, TimedWord, Token
from streamd.mel.windows import RecordingMel
from streamd.options import DecodingOptions, EndpointOptions
from streamd.types import FRAME, FRAME_MS, N_AUDIO_CTX, Frames, frames_from_ms
from streamd.vad.segmenter import Segmenter

_SILENT_FRAMES = 1_500
"""Silence that is put in the place of lost audio at once."""


def check(config: Config) -> None:
    """Refuse options that contradict each other. Raises `ConfigError`."""
    longform = config.longform
    if not longform.word_timestamps:
        for flag, wanted in (
            ("--hallucination-silence-threshold-ms", longform.hallucination_silence_ms),
            ("--highlight-words", config.cues.highlight),
        ):
            if wanted:
                raise ConfigError(f"{flag} needs word timestamps: drop --no-word-timestamps")
    points = longform.clip_timestamps_ms
    if list(points) != sorted(points):
        shown = ",".join(map(str, points))
        raise ConfigError(f"--clip-timestamps-ms must not go back, got {shown}")


class Recording:
    """One file while it is read: its log-mel, and where somebody speaks in it."""

    def __init__(
        self, mel: RecordingMel, speech: SpeechClips | None, lost: Callable[[Gap], object]
    ) -> None:
        """`speech`: None if it does not matter; `lost` is told of audio that never came."""
        self.mel = mel
        self.n_padding = 0
        """Samples at the end of the last frame that are no audio, to be set when it was fed."""
        self.speech, self._lost = speech, lost
        self._n_frames = 0

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        self._n_frames += len(frames)
        self.mel.append(frames.reshape(-1))
        if self.speech is not None:
            self.speech.feed(frames)

    def gap(self, duration_ms: int, why: GapReason) -> None:
        """Take note of audio that was lost: silence takes its place."""
        self._lost(Gap(t_ms=self.duration_ms, duration_ms=duration_ms, why=why))
        n_frames = frames_from_ms(duration_ms)
        for first in range(0, n_frames, _SILENT_FRAMES):
            self.feed(np.zeros((min(_SILENT_FRAMES, n_frames - first), FRAME), np.float32))

    @property
    def duration_ms(self) -> int:
        """How much was read."""
        return self._n_frames * FRAME_MS

    async def flush(self) -> None:
        """Nothing is final before the end."""

    async def room(self) -> None:
        """There is always room."""


class Writer:
    """A model that writes recordings down as the user wants."""

    def __init__(self, config: Config, model: Model, engine: Engine[Any]) -> None:
        """Raises `ConfigError` if the model does not know the language or the task."""
        self._config = config
        self._n_mels = model.dims.n_mels
        self._tokenizer = build.tokenizer(config, model)
        self._short = model.min_audio_ctx < MIN_AUDIO_CTX
        options = replace(
            config.longform,
            initial_prompt=config.decoding.prompt,
            hotwords=config.decoding.hotwords,
        )
        self._transcriber = Transcriber(engine, self._tokenizer, self._decoding(model), options)

    def recording(self, lost: Callable[[Gap], object]) -> Recording:
        """Give a new recording to read a file into."""
        config = self._config
        speech = None
        if config.vad.detector != "off" and not config.longform.clip_timestamps_ms:
            speech = SpeechClips(build.gate(config), Segmenter(_endpoint_options(config)))
        return Recording(RecordingMel(self._n_mels), speech, lost)

    def transcribe(self, recording: Recording) -> Iterator[TranscribedWindow]:
        """What is said in a recording that has ended, window by window, while it is asked.

        Raises
        ------
        EngineError : the runtime failed
        """
        mel = recording.mel
        mel.finish(n_padding=recording.n_padding)
        speech, voiced, first = recording.speech, None, 0
        if speech is None:
            clips = clips_at(self._config.longform.clip_timestamps_ms, mel.n_columns)
        else:
            # Short windows cost a model that was trained for them less, and gain others nothing.
            clips = speech.clips(mel.n_columns, longest=0 if self._short else 2 * N_AUDIO_CTX)
            voiced, first = speech.voiced, clips[0].start if clips else 0
        if clips:
            language = self._transcriber.language(mel, first)
            yield from self._transcriber.transcribe(mel, clips, language=language, voiced=voiced)

    def final(self, segment: TimedSegment, seg: int) -> Final:
        """What listeners are told of a segment, the file's `seg`-th."""
        tokens = tuple(
            Token(id=token, text=self._text_of(token), prob=round(prob, 4))
            for token, prob in zip(segment.tokens, segment.probs, strict=True)
        )
        words = tuple(
            TimedWord(
                text=text,
                start_ms=word.start_ms,
                end_ms=word.end_ms,
                prob=round(word.prob, 3),
                final=True,
            )
            for word in segment.words
            if (text := word.text.strip())
        )
        return Final(
            seg=seg,
            start_ms=segment.start_ms,
            end_ms=segment.end_ms,
            text=segment.text.strip(),
            language=segment.language,
            words=words,
            avg_logprob=segment.avg_logprob,
            no_speech_prob=segment.no_speech_prob,
            details=Details(
                seek_ms=segment.seek_ms,
                tokens=tokens,
                temperature=segment.temperature,
                compression_ratio=segment.compression_ratio,
            ),
        )

    def _text_of(self, token: int) -> str:
        """Timestamps as openai-whisper writes them."""
        begin = self._tokenizer.timestamp_begin
        if token < begin:
            return self._tokenizer.decode([token])
        return f"<|{(token - begin) * FRAME_MS / 1000:.2f}|>"

    def _decoding(self, model: Model) -> DecodingOptions:
        options = build.decoding_options(self._config, model)
        all_positions = 0 if self._short else model.dims.n_audio_ctx
        return replace(
            options,
            timestamps=not self._config.longform.without_timestamps,
            audio_ctx=options.audio_ctx or all_positions,
        )


def _endpoint_options(config: Config) -> EndpointOptions:
    """Utterances that end with a pause of one length, with as much audio after as before them."""
    options = config.endpoint
    pause, around = options.plain, options.pre_roll
    return replace(options, pre_final=around, sentence=pause, unfinished=pause, empty=pause)
