"""Transcribes the clips of one recording, several at once if they do not depend on each other."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streamd.errors import EngineError
from streamd.options import DecodingOptions, LongformOptions
from streamd.types import Clip, Voiced
from streamd.whisper.decode import detect_language
from streamd.whisper.engine import AnyEngine, BatchEngine, Engine, EngineSwitch, on_one_of, urgent
from streamd.whisper.longform.reader import Reader, Spectrum, least_rest_of
from streamd.whisper.longform.schedule import OneByOne, Reading, TranscribedWindow, read_in_order
from streamd.whisper.longform.segments import column_at
from streamd.whisper.mel import RecordingMel
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import Vocabulary


class Transcriber:
    """Transcribes one recording with a model, its vocabulary and options. Not thread-safe."""

    def __init__(
        self,
        engine: AnyEngine,
        tokenizer: Tokenizer,
        decoding: DecodingOptions,
        options: LongformOptions | None = None,
        vocabulary: Vocabulary | None = None,
        *,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`decoding` needs timestamps for openai-whisper's results; `vocabulary`: expected phrases.

        More threads may be used while `is_alone` says that no live window needs the engine.
        """
        self._engine, self._tokenizer = engine, tokenizer
        # Guards of live captions, which openai-whisper does not have.
        self._decoding = replace(
            decoding, loops=False, least_evidence=-math.inf, best_attempt=False, stop_margin=0.0
        )
        self._options = options or LongformOptions()
        self._vocabulary, self._is_alone = vocabulary, is_alone

    def language(self, mel: RecordingMel, first: int = 0) -> str:
        """The language after column `first`: the most probable one of those of the options."""
        if not self._tokenizer.multilingual:
            return self._tokenizer.language
        languages = self._decoding.languages
        if len(languages) == 1:
            return languages[0]
        width = 2 * self._engine.dims.n_audio_ctx
        heard = mel.window(first, width, width=width)

        def detected(engine: Engine[Any]) -> str:
            engine = self._with_all_threads(engine)
            decoder = engine.decoder(engine.encode(heard), n_slots=1)
            return next(iter(detect_language(decoder, self._tokenizer, languages)))

        return on_one_of(self._engine, detected)

    def transcribe(
        self,
        mel: RecordingMel,
        clips: Sequence[Clip],
        *,
        language: str,
        voiced: Voiced | None = None,
    ) -> Iterator[TranscribedWindow]:
        """Transcribe the clips of the finished recording, window by window as they are asked for.

        `voiced` says for each frame whether there is speech. Unlike openai-whisper: the next window
        begins where more than 5 s of speech have no word; a gap of 2 to 5 s is decoded by itself; a
        window that ends within speech leaves its last segment to the next one; detected speech is
        not taken for silence on the model's no-speech probability alone; improbable text that
        repeats itself is left out; and only text of the same clip is a prompt. Raises
        `EngineError`.
        """
        read = partial(self._read, Spectrum(mel, language, voiced, self._vocabulary))
        if not isinstance(self._engine, EngineSwitch):
            yield from read(self._engine, clips)
            return
        engine, reached_ms = self._engine.use(), 0
        while clips:
            try:
                for window in read(engine, clips):
                    before_ms, reached_ms = reached_ms, max(reached_ms, window.reached_ms)
                    yield replace(window, reached_ms=reached_ms)
                    clips = _after(clips, column_at(reached_ms / 1000))
                    if reached_ms > before_ms and (serving := self._engine.use()) is not engine:
                        engine = serving  # windows that are decoded beside this one begin anew
                        break
                else:
                    return
            except EngineError as error:
                engine = self._engine.instead_of(engine, error)

    def _read(
        self, source: Spectrum, engine: Engine[Any], clips: Sequence[Clip]
    ) -> Iterator[TranscribedWindow]:
        voiced = source.voiced
        if voiced is not None and len(clips) > 1 and isinstance(engine, BatchEngine):
            readings = (self._reading(engine, source, [clip], at) for at, clip in enumerate(clips))
            return read_in_order(readings, engine.together(self._is_alone), engine.n_together)
        alone = self._with_all_threads(engine)
        readings = (self._reading(alone, source, [clip], at) for at, clip in enumerate(clips))
        return read_in_order(readings, OneByOne(alone), 1)

    def _with_all_threads(self, engine: Engine[Any]) -> Engine[Any]:
        """Return the engine for windows that are computed one at a time."""
        return (urgent(engine) if self._is_alone() else None) or engine

    def _reading(
        self, engine: Engine[Any], source: Spectrum, clips: Iterable[Clip], at: int
    ) -> Reading:
        """Decode clips, the first of which is clip `at` of the recording."""
        reader: Reader[Any] = Reader(
            engine,
            self._tokenizer,
            (
                replace(self._decoding, best_attempt=source.voiced is not None),
                # Only the first clip has the initial prompt.
                replace(self._options, initial_prompt="") if at else self._options,
            ),
            source=source,
            rng=np.random.default_rng([0, at] if at else 0),
        )
        return reader.read(clips)


def _after(clips: Sequence[Clip], done: int) -> list[Clip]:
    """Return what is left of clips that are transcribed up to a column."""
    return [
        replace(clip, start=max(clip.start, done))
        for clip in clips
        if clip.start >= done or clip.end - done >= least_rest_of(clip)
    ]
