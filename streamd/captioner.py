"""streamd as a library: a model that is opened once, and cheap sessions on it (docs/recipes.md).

A `Captioner` runs an event loop of its own in a thread. On it are the same parts as in the daemon:
`Streams`, the supervisor of the engine, and `caption`, which carries a source into a session. The
caller's thread or event loop only waits for events, so neither can delay the other.
"""

import asyncio
import logging
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamd.config import Config, of_options
from streamd.daemon import MAX_BACKLOG, build, caption, supervise
from streamd.daemon.control import Control
from streamd.daemon.display import open_files
from streamd.daemon.opening import open_model, recognizers
from streamd.daemon.recording import FileTranscriber, finals_between
from streamd.errors import EngineError, ModelError, SourceError, StreamdError
from streamd.events import EndReason, Eos, Event, Fault, Final, Gap, Partial
from streamd.models import store
from streamd.models.catalog import offered
from streamd.models.store.cache import places
from streamd.sinks.text import gap_notice
from streamd.sources import Source
from streamd.sources.arrays import ArraySource
from streamd.sources.file import FileSource
from streamd.sources.framing import Block
from streamd.streams import Streams
from streamd.streams.stream import Stream
from streamd.types import SAMPLE_RATE

log = logging.getLogger(__name__)

Audio = str | os.PathLike[str] | Source | Block | Iterable[Block]
"""A file or address, a source such as `Microphone`, an array or an iterable of arrays."""

ResultT = TypeVar("ResultT")


class Captioner:
    """A speech model that is ready to caption; use it with ``with`` or ``async with``.

    Parameters
    ----------
    model
        A name that ``streamd models list`` shows, or the path of a model's folder or file; empty:
        the best model on this machine. Nothing is downloaded: ``streamd models get NAME`` does.
    language
        A code such as ``"de"``, or ``"auto"`` to detect it; empty: the default of ``--language``.
    speakers
        Whether to tell speakers apart: captions, segments and words then have a `speaker`, a
        number from 1, or None where it is not known.
    options
        Any option of docs/options.md by its long name without dashes, such as
        ``{"step": 250, "hotwords": "Kubernetes"}``, or a setting, such as
        ``{"gate.open_share": 0.4}``. Environment variables and configuration files do not apply.

    Raises
    ------
    ConfigError
        An option or its value does not exist.
    ModelError, EngineError
        On entering: the model is not here or damaged, or the runtime refuses it.

    The methods may be called from any thread.
    """

    def __init__(
        self,
        model: str = "",
        *,
        language: str = "",
        speakers: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        given = {"model": model, "language": language, "speakers": speakers}
        named = {name: value for name, value in given.items() if value}
        self._config = of_options({**(options or {}), **named})
        self._new_session = build.session_factory(self._config)
        self._sessions: dict[CaptionSession, asyncio.Task[None]] = {}
        self._running = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a Captioner can be entered only once")
        config = self._config = _with_model(self._config)
        self._model, self._engine = open_model(config)
        ready = recognizers(config, self._model, self._engine)
        self._streams = Streams(
            self._new_session,
            max_backlog=MAX_BACKLOG,
            max_ingest=sys.maxsize,
            deadline_s=config.decoding.engine_deadline_ms / 1000,
        )
        self._streams.choices = build.default_choices(config)
        serving = supervise(self._streams, lambda: ready)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(serving)), name="streamd", daemon=True
        )
        self._thread.start()
        self._running.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def model(self) -> str:
        """The name of the model; known once it is open."""
        return self._config.decoding.model

    def listen(self, audio: Audio) -> "CaptionSession":
        """Caption a source; iterate over the result with ``for`` or ``async for``.

        `audio` is a `Microphone`, a file or address (read as fast as it is transcribed), or samples
        at 16 kHz, mono: an array, or an iterable of arrays. Leaving the loop closes the source. The
        iteration raises `SourceError` where the audio cannot be had; what was captured before it
        is final by then.
        """
        if isinstance(audio, str | os.PathLike):
            audio = FileSource(os.fspath(audio), realtime=False)
        elif isinstance(audio, np.ndarray):
            audio = ArraySource([audio])
        elif isinstance(audio, Iterable):
            audio = ArraySource(audio)
        return self._begin(audio, owns_source=True)

    def session(self, *, rate_hz: int = SAMPLE_RATE, channels: int = 1) -> "CaptionSession":
        """Begin a session that the caller feeds with samples at `rate_hz`, such as 48000."""
        return self._begin(ArraySource(rate_hz=rate_hz, channels=channels), owns_source=False)

    def transcribe(self, audio: "str | os.PathLike[str] | NDArray[Any]") -> "Transcript":
        """Transcribe a whole recording: a file, an address, or samples at 16 kHz, mono.

        Better than captions of the same recording, for Whisper sees what comes after a word. Raises
        `SourceError` if the audio cannot be read to its end, `EngineError` if the engine fails.
        """
        if isinstance(audio, str | os.PathLike):
            file = os.fspath(audio)
            return self._wait(self._transcribe(FileSource(file, realtime=False), file))
        return self._wait(self._transcribe(ArraySource([audio]), ""))

    def close(self) -> None:
        """End all sessions and free the model; their unfinished utterances are dropped."""
        if self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # another thread has closed it
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _begin(self, source: Source, *, owns_source: bool) -> "CaptionSession":
        return self._wait(self._open(source, owns_source))

    def _wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Do it on the loop; raises `RuntimeError` if there is none."""
        if self._thread is None or not self._thread.is_alive():
            work.close()
            raise RuntimeError("this Captioner is not open: use it in a with statement")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # The rest runs on the loop.

    async def _serve(self, serving: Coroutine[Any, Any, None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        work = [asyncio.create_task(each) for each in (serving, self._streams.chores())]
        self._running.set()
        await self._stop.wait()
        for session, task in self._sessions.items():
            session.end()
            work.append(task)
        for task in work:
            task.cancel()
        # A failed engine was reported to every session already.
        await asyncio.gather(*work, return_exceptions=True)

    async def _open(self, source: Source, owns_source: bool) -> "CaptionSession":
        stream = self._streams.open(secrets.token_hex(8))
        session = CaptionSession(self._loop, stream, source, owns_source=owns_source)
        task = asyncio.create_task(caption([source], stream, Control()))
        self._sessions[session] = task
        task.add_done_callback(lambda done: self._ended(session, done))
        return session

    def _ended(self, session: "CaptionSession", task: asyncio.Task[None]) -> None:
        self._sessions.pop(session, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            session.fail(error)

    async def _transcribe(self, source: Source, name: str) -> "Transcript":
        opened = self._config, self._model, self._engine
        transcriber = await asyncio.to_thread(FileTranscriber, *opened)
        file = transcriber.new_file(_warn)
        async with source:
            await file.read(source)
        finals = finals_between(self._streams, transcriber, file)
        segments = tuple([final async for final in finals])
        return Transcript(segments, file.duration_ms, self._config, name)


class CaptionSession:
    """One stream of audio and its captions: iterate over it with ``for`` or ``async for``.

    It yields a `Partial` whenever the text of the present utterance changes, and its `Final` when
    that text will never change again. The iteration waits for the next event. It ends when all of
    the audio is final: after `finish`, or at the end of the source. It raises `SourceError` or
    `EngineError` if the audio or the engine fails.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stream: Stream, source: Source, *, owns_source: bool
    ) -> None:
        self._loop, self._stream, self._source = loop, stream, source
        self._owns_source = owns_source
        self._events = stream.hub.subscribe(after=0, listens=False)
        self._seq = 0
        self._error: BaseException | None = None

    def feed(self, samples: "NDArray[Any]") -> None:
        """Take the next samples, any number of them; returns at once.

        They are float32 or float64 (-1 to 1), int16, int32 or uint8, of the shape (n,) or
        (n, channels), and are copied. Audio that comes faster than it is transcribed waits in
        memory. Raises `TypeError`, `ValueError`, or `RuntimeError` if the session is over or
        captions a source of its own.
        """
        if self._owns_source or not isinstance(self._source, ArraySource):
            raise RuntimeError("this session captions a source: only session() can be fed")
        if self._stream.hub.closed or not self._call(
            self._source.put, self._source.checked(samples)
        ):
            raise RuntimeError("the session is over")

    def finish(self) -> None:
        """End the audio: what was fed or captured by now becomes final, then the iteration ends."""
        self._call(self._source.stop)

    def close(self) -> None:
        """End the session at once, without the text of the present utterance."""
        self._call(self.end)

    def poll(self) -> "list[Partial | Final]":
        """Return the captions that have come since the last call, without waiting."""
        return self._submit(self._drain()) or []

    def __iter__(self) -> "Iterator[Partial | Final]":
        try:
            while (event := self._submit(self._next())) is not None:
                yield event
        finally:
            if self._owns_source:
                self.close()

    async def __aiter__(self) -> "AsyncIterator[Partial | Final]":
        try:
            while not self._loop.is_closed():
                waiting = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
                if (event := await asyncio.wrap_future(waiting)) is None:
                    break
                yield event
        finally:
            if self._owns_source:
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, action: Any, *args: object) -> bool:  # noqa: ANN401 - any function
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:  # the Captioner is closed, and so is its loop
            return False
        return True

    def _submit(self, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """Do it on the loop; None if that is closed."""
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return None
        try:
            return waiting.result()
        except CancelledError:
            return None
        finally:
            waiting.cancel()  # after Ctrl-C nobody waits for it any more

    # The rest runs on the loop.

    def end(self) -> None:
        """End the session as it is."""
        self._source.stop()
        self._stream.end(EndReason.STOP, resumable=False)

    def fail(self, error: BaseException) -> None:
        """End the session with an error, which the iteration raises."""
        self._error = error
        self._stream.fail(Fault(code="source", message=str(error), fatal=True))

    async def _next(self) -> "Partial | Final | None":
        while True:
            event = await anext(self._events, None)
            if event is None and self._events.slow:
                # The queue overflowed: subscribe again, which loses partials but no finals.
                self._events = self._stream.hub.subscribe(after=self._seq, listens=False)
            elif event is None:
                return None
            elif (shown := self._shown(event)) is not None:
                return shown

    async def _drain(self) -> "list[Partial | Final]":
        if self._events.slow:
            self._events = self._stream.hub.subscribe(after=self._seq, listens=False)
        waiting = iter(self._events.pop, None)
        return [shown for event in waiting if (shown := self._shown(event)) is not None]

    def _shown(self, event: Event) -> "Partial | Final | None":
        """Return a caption; raises the error of a fatal fault."""
        if isinstance(event, Fault) and event.fatal:
            kind = {"source": SourceError, "engine": EngineError}.get(event.code, StreamdError)
            raise self._error or kind(event.message)
        if isinstance(event, Gap):
            _warn(event)
        if isinstance(event, Final):
            self._seq = event.seq
        return event if isinstance(event, Partial | Final) else None


def _warn(gap: Gap) -> None:
    log.warning("%s", gap_notice(gap))


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a whole recording.

    `segments` are in order and do not overlap; each has `text`, `start` and `end` in seconds (and
    `start_ms`, `end_ms`), `language`, and `words` with `text`, `start`, `end` and `prob`, 0 to 1.
    With `speakers`, segments and words also have a `speaker`.
    `duration_ms` is the length of the recording.
    """

    segments: tuple[Final, ...]
    duration_ms: int
    _config: Config
    _file: str

    @property
    def text(self) -> str:
        """The text of all segments, with blanks between them."""
        return " ".join(segment.text for segment in self.segments)

    @property
    def language(self) -> str:
        """The code of the recording's language, such as "en"; empty if nothing was said."""
        return self.segments[0].language if self.segments else ""

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write a file whose ending chooses the format, such as .srt (docs/recipes.md).

        Raises `ConfigError` if the ending is unknown or the file cannot be written, `StreamdError`
        if writing fails later.
        """
        output = of_options({"output": [os.fspath(path)]}).output
        config = replace(self._config, output=output)
        end = Eos(seq=len(self.segments), reason=EndReason.END)
        for sink in open_files(config, self._file, whole=True, segments=True):
            try:
                for event in (*self.segments, end):
                    sink.write(event)
            finally:
                sink.close()


def transcribe(
    audio: "str | os.PathLike[str] | NDArray[Any]",
    model: str = "",
    *,
    language: str = "",
    speakers: bool = False,
    options: Mapping[str, object] | None = None,
) -> Transcript:
    """Transcribe one recording: see `Captioner` and `Captioner.transcribe`.

    The model is opened for this call; use a `Captioner` for several recordings.
    """
    with Captioner(model, language=language, speakers=speakers, options=options) as captioner:
        return captioner.transcribe(audio)


def _with_model(config: Config) -> Config:
    """Return the configuration with the best model here if it names none."""
    wanted, here = config.decoding, places()
    if wanted.model:
        return config
    name, better = store.best(here, wanted), offered(wanted).name
    if name is None:
        raise ModelError(f"no model here suits; run: streamd models get {better}")
    if store.is_bundled(name, here):
        log.warning("using %s, the smallest; streamd models get %s gets a better one", name, better)
    return replace(config, decoding=replace(wanted, model=name))
