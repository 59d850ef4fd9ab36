"""Whole recordings: ``streamd transcribe``, and what clients and the library send."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.control import Control, until_first_error
from streamd.daemon.opening import open_model
from streamd.daemon.screen import Screen, show
from streamd.display import check_files, open_display, open_files, open_stream
from streamd.engine import Engine
from streamd.engine.longform import Transcriber
from streamd.engine.longform.segments import SpeechClips, TimedSegment, clips_at, in_ms, ms_of
from streamd.engine.model import Model
from streamd.errors import ConfigError, SourceError, StreamdError, WireError
from streamd.events import Details, EndReason, Eos, Fault, Final, Gap, TimedWord, Token
from streamd.hub import Hub
from streamd.mel import RecordingMel
from streamd.server import LIVE, Recording, Wanted
from streamd.sinks.progress import Progress, transcription_line
from streamd.sinks.terminal import TerminalSink, is_terminal
from streamd.sinks.text import Look
from streamd.sources import Lost, Source
from streamd.sources.file import FileSource
from streamd.streams import Streams
from streamd.types import FRAME, FRAME_MS, N_AUDIO_CTX, Frames, frames_from_ms
from streamd.vad.segmenter import Segmenter

_SILENT_FRAMES = 1_500
"""Lost audio becomes silence in pieces of this length, because a gap may be long."""
_HISTORY = 1_000_000
"""Finals kept for a slow sink: all of them."""

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


async def transcribe(config: Config) -> None:
    """Transcribe the configured files as fast as the engine can, window by window.

    Of several files those that cannot be read are reported, and the others are transcribed. Raises
    as `streamd.daemon.run`, and `SourceError` if a file could not be read to its end.
    """
    check_files(config, config.input.files)
    sources = build.own_sources(config)
    check(config)
    control = Control()
    with control.signals(), ThreadPoolExecutor(1, thread_name_prefix="inference") as thread:
        batch = _Batch(config, control, thread)
        failures: list[SourceError] = []
        for file, source in zip(config.input.files, sources, strict=True):
            if control.stopped.is_set():
                break
            try:
                await until_first_error(batch.transcribe(file, source))
            except SourceError as error:
                if len(sources) == 1:
                    raise
                log.error("%s", error)  # noqa: TRY400  # an error of the user's needs no traceback
                failures.append(error)
    control.check()
    if failures:
        raise SourceError(f"{len(failures)} of {len(sources)} files failed, see above")


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


class AudioFile:
    """One file while it is read: its log-mel and where speech is in it.

    Without `speech` that does not matter; `report` gets each gap.
    """

    def __init__(
        self, mel: RecordingMel, speech: SpeechClips | None, report: Callable[[Gap], object]
    ) -> None:
        self.mel, self.speech = mel, speech
        self.n_padding = 0  # samples at the end of the last frame that are no audio
        self._report = report
        self._n_frames = 0

    async def read(self, source: Source) -> None:
        """Take all that an open source gives; raises `SourceError` where it is damaged."""
        try:
            async for item in source:
                self.take(item)
        finally:
            self.n_padding = aiter(source).n_padding

    def take(self, item: Frames | Lost) -> None:
        """Take the next (n, 320) frames, or silence in place of what a source has lost."""
        if isinstance(item, Lost):
            self._report(Gap(t_ms=self.duration_ms, duration_ms=item.duration_ms, why=item.why))
            n_frames = frames_from_ms(item.duration_ms)
            for first in range(0, n_frames, _SILENT_FRAMES):
                self.take(np.zeros((min(_SILENT_FRAMES, n_frames - first), FRAME), np.float32))
            return
        self._n_frames += len(item)
        self.mel.append(item.reshape(-1))
        if self.speech is not None:
            self.speech.feed(item)

    @property
    def duration_ms(self) -> int:
        """Duration of what was read."""
        return self._n_frames * FRAME_MS


class FinishedWindow(NamedTuple):
    """The finals of one window, numbered in the file, and up to where it is transcribed."""

    finals: tuple[Final, ...]
    reached_ms: int


class FileTranscriber:
    """A model that transcribes files; raises `ConfigError` if it does not fit the options."""

    def __init__(self, config: Config, model: Model, engine: Engine[Any]) -> None:
        self._config = config
        self._n_mels = model.dims.n_mels
        self._tokenizer = build.tokenizer(config, model)
        self._detects = model.language is None and config.decoding.language in ("", "auto")
        decoding = replace(
            build.decoding_options(config, model),
            timestamps=not config.longform.without_timestamps,
        )
        longform = replace(
            config.longform,
            initial_prompt=config.decoding.prompt,
            hotwords=config.decoding.hotwords,
        )
        self._new_transcriber = partial(Transcriber, engine, self._tokenizer, decoding, longform)

    def new_file(self, report: Callable[[Gap], object]) -> AudioFile:
        """Return an empty `AudioFile` to read a file into."""
        config = self._config
        speech = None
        if config.vad.detector != "off" and not config.longform.clip_timestamps_ms:
            pause, around = config.endpoint.plain, config.endpoint.pre_roll
            # Pauses of one length end utterances, with as much audio after as before them.
            endpoint = replace(
                config.endpoint, pre_final=around, sentence=pause, unfinished=pause, empty=pause
            )
            speech = SpeechClips(build.gate(config), Segmenter(endpoint))
        return AudioFile(RecordingMel(self._n_mels), speech, report)

    def transcribe(self, file: AudioFile) -> Iterator[FinishedWindow]:
        """Transcribe a file that was read to its end, window by window; raises `EngineError`."""
        mel = file.mel
        mel.finish(n_padding=file.n_padding)
        speech, voiced, first = file.speech, None, 0
        if speech is None:
            clips = clips_at(self._config.longform.clip_timestamps_ms, mel.n_columns)
        else:
            clips = speech.clips(mel.n_columns, longest=2 * N_AUDIO_CTX)
            voiced, first = speech.voiced, clips[0].start if clips else 0
        if clips:
            transcriber = self._new_transcriber()
            language = transcriber.language(mel, first)
            if self._detects:
                log.info("the language seems to be %s; if it is not, use --language", language)
            seg = count(1)
            for window in transcriber.transcribe(mel, clips, language=language, voiced=voiced):
                finals = tuple(self._final(segment, next(seg)) for segment in window.segments)
                yield FinishedWindow(finals, window.reached_ms)

    def _final(self, segment: TimedSegment, seg: int) -> Final:
        """Return the event of a segment, the file's `seg`-th."""
        tokens = tuple(
            Token(id=token, text=self._text_of(token), prob=round(prob, 4))
            for token, prob in zip(segment.tokens, segment.probs, strict=True)
        )
        words = tuple(
            TimedWord(
                text=text,
                start_ms=in_ms(word.start_s),
                end_ms=in_ms(word.end_s),
                prob=round(word.prob, 3),
                final=True,
            )
            for word in segment.words
            if (text := word.text.strip())
        )
        decoded = segment.decoded
        return Final(
            seg=seg,
            start_ms=in_ms(segment.start_s),
            end_ms=in_ms(segment.end_s),
            text=segment.text.strip(),
            language=decoded.language,
            words=words,
            avg_logprob=decoded.avg_logprob,
            no_speech_prob=decoded.no_speech_prob,
            details=Details(
                seek_ms=ms_of(segment.seek),
                tokens=tokens,
                temperature=decoded.temperature,
                compression_ratio=decoded.compression_ratio,
            ),
        )

    def _text_of(self, token: int) -> str:
        begin = self._tokenizer.timestamp_begin
        if token < begin:
            return self._tokenizer.decode([token])
        # as openai-whisper writes timestamps
        return f"<|{(token - begin) * FRAME_MS / 1000:.2f}|>"


class _Batch:
    """Transcribes one file after the other with one model.

    The model is loaded and runs in `thread`. A file is read to its end, when its log-mel is
    complete, and then transcribed window by window. The first interrupt ends a pipe, of which all
    that was read is transcribed; it ends a file after the current window.
    """

    def __init__(self, config: Config, control: Control, thread: ThreadPoolExecutor) -> None:
        self._config, self._control, self._thread = config, control, thread
        self._transcriber: FileTranscriber | None = None

    async def transcribe(self, name: str, source: Source) -> None:
        """Read a file and publish its text; raises `StreamdError` after what it has published."""
        hub, failure = Hub(LIVE, _HISTORY), None
        async with asyncio.TaskGroup() as tasks:
            sinks = open_files(self._config, name, whole=True, segments=True)
            shown = open_display(self._config, sys.stdout, os.environ, segments=True)
            has_terminal = is_terminal(sys.stderr, os.environ)
            alone = has_terminal and not isinstance(shown, TerminalSink)
            screen = Screen(shown, TerminalSink(sys.stderr, Look()) if alone else None)
            line = partial(transcription_line, source.name)
            progress = Progress(screen.status if has_terminal else lambda _: None, line)
            show(screen, hub, self._control, tasks, sinks=sinks)
            try:
                with self._control.stopping(source.stop):  # opening may take long, too
                    async with source:
                        await self._run(source, hub, progress)
            except StreamdError as error:
                failure = error
                code = "source" if isinstance(error, SourceError) else "engine"
                hub.publish(Fault(code=code, message=str(error), fatal=True))
            stopped = EndReason.STOP if self._control.stopped.is_set() else EndReason.END
            hub.close(EndReason.ERROR if failure else stopped)
        if failure is not None:
            raise failure

    async def _run(self, source: Source, hub: Hub, progress: Progress) -> None:
        if self._transcriber is None:
            opened = await self._in_thread(open_model, self._config)
            self._transcriber = await self._in_thread(FileTranscriber, self._config, *opened)
        transcriber = self._transcriber
        progress.update(0, source.duration_ms or 0)
        file, damage = transcriber.new_file(hub.publish), None
        try:
            await file.read(source)
        except SourceError as error:
            damage = error  # what came before the damage is transcribed
        stopped, windows = self._control.stopped, transcriber.transcribe(file)
        was_stopped = stopped.is_set()  # which ends a pipe, but means that a file is not wanted
        is_wanted = not was_stopped or source.duration_ms is None
        while is_wanted and stopped.is_set() == was_stopped:
            window = await self._in_thread(next, windows, None)
            if window is None:
                break
            for final in window.finals:
                hub.publish(final)
            progress.update(window.reached_ms, file.duration_ms)
        if damage is not None:
            raise damage

    async def _in_thread(self, work: Callable[..., ResultT], *args: object) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


async def finals_between(
    streams: Streams, transcriber: FileTranscriber, file: AudioFile
) -> AsyncIterator[Final]:
    """Transcribe a file that was read, between live windows. Raises `EngineError`."""
    windows = transcriber.transcribe(file)
    while (window := await streams.between(next, windows, None)) is not None:
        for final in window.finals:
            yield final


class Uploads:
    """Reads and transcribes recordings with the model that `opened` gives, step by step.

    Each step, a second of a file or one window, goes through `Streams.between`; so live captions
    wait for one step at most, and several recordings take turns.
    """

    def __init__(self, config: Config, streams: Streams) -> None:
        self._config, self._streams = config, streams
        self.opened: asyncio.Future[tuple[Model, Engine[Any]]] = asyncio.Future()
        """The model; it is there before the first step, for which recordings wait."""

    async def read(self, path: str, name: str, wanted: Wanted) -> Recording:
        """Read a sound file; see `streamd.server.Recordings`."""
        transcriber = await self._streams.between(self._new_transcriber, wanted)
        file = transcriber.new_file(lambda _: None)
        longest_ms = self._config.limits.max_upload_ms
        async with FileSource(path, upload=name) as source:
            async for item in source:
                await self._streams.between(file.take, item)
                if 0 < longest_ms < file.duration_ms:
                    raise WireError("too_large", f"a recording has at most {longest_ms} ms")
            file.n_padding = aiter(source).n_padding
        if not file.duration_ms:
            raise SourceError(f"{name} has no audio: record or convert it again")
        finals = finals_between(self._streams, transcriber, file)
        return Recording(file.duration_ms, finals)

    def _new_transcriber(self, wanted: Wanted) -> FileTranscriber:
        config, (model, engine) = self._config, self.opened.result()
        choices = build.chooser(config, model)(self._streams.choices, wanted.chosen)
        temperature = wanted.temperature
        decoding = replace(
            config.decoding,
            language=choices.language,
            task=wanted.task,
            prompt=choices.prompt,
            temperature=config.decoding.temperature if temperature is None else temperature,
        )
        return FileTranscriber(replace(config, decoding=decoding), model, engine)

    def written(self, finals: Sequence[Final], form: str) -> str:
        """Return a transcript in a format of files."""
        text = StringIO()
        sink = open_stream(self._config, text, form, segments=True)
        for event in (*finals, Eos(seq=len(finals), reason=EndReason.END)):
            sink.write(event)
        sink.close()
        return text.getvalue()
