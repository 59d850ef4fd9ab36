"""streamd as a library: a model that is opened once, and cheap sessions on it (docs/library.md).

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
import warnings
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
from msgspec import UNSET, structs
from numpy.typing import NDArray

from streamd.config import Config, of_options, suggestion
from streamd.daemon import build
from streamd.daemon.control import Control
from streamd.daemon.display import open_files
from streamd.daemon.feeding import caption
from streamd.daemon.live import supervise
from streamd.daemon.opening import OpenModel, best_model, open_any
from streamd.daemon.phrases import with_context, with_vocabulary
from streamd.daemon.recording import RecordingTranscriber, events_between
from streamd.errors import (
    ConfigError,
    EngineError,
    ModelError,
    SourceError,
    StreamdError,
    WireError,
)
from streamd.events import (
    Correction,
    EndReason,
    Eos,
    Event,
    Fault,
    Final,
    Flushed,
    Gap,
    Lag,
    Partial,
    Sound,
    SpeakerName,
    SpeakerTurns,
    TurnEvent,
    Unclear,
    Vad,
)
from streamd.models import store
from streamd.models.catalog import offered
from streamd.models.store.cache import places
from streamd.options import EndpointRule
from streamd.sinks.text import gap_notice
from streamd.sinks.writing import sentences
from streamd.sources import Source
from streamd.sources.arrays import ArraySource
from streamd.sources.file import FileSource
from streamd.sources.tracks import Selection
from streamd.streams import Streams
from streamd.streams.stream import Stream
from streamd.types import SAMPLE_RATE

log = logging.getLogger(__name__)

Samples = NDArray[Any]
"""(n,) or (n, channels) of float32 or float64 (-1 to 1), int16, int32 or uint8."""
Recording = str | os.PathLike[str] | Samples | tuple[Samples, int]
"""A file or address, samples at 16 kHz, or samples and their rate (as of ``soundfile.read``)."""
Audio = Recording | Source | Iterable[Samples]
"""A `Recording`, a source such as `Microphone`, or blocks of samples, one after the other."""
_MAX_CHANNELS = 64


class Chosen(TypedDict, total=False):
    """What one session or recording may have of its own: options, as docs/options.md has them."""

    language: str
    task: Literal["transcribe", "translate"]
    prompt: str
    hotwords: str | Sequence[str]
    endpoint: EndpointRule
    endpoint_ms: int
    speakers: bool
    sounds: bool


class Changed(TypedDict, total=False):
    """What of `Chosen` a session may change while there is audio."""

    language: str
    prompt: str
    hotwords: str | Sequence[str]
    endpoint: EndpointRule
    endpoint_ms: int
    sounds: bool


@dataclass(frozen=True, slots=True)
class Speech:
    """Somebody begins to speak, `t_ms` after the stream began."""

    t_ms: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The speech that `Speech` announced is over, `t_ms` after the stream began."""

    t_ms: int


PartialCaption = Partial
FinalCaption = Final
"""The names in the library: `Final` would collide with ``typing.Final``."""
Caption = Partial | Final
AnyEvent = (
    Caption
    | Speech
    | Pause
    | TurnEvent
    | SpeakerTurns
    | SpeakerName
    | Sound
    | Unclear
    | Lag
    | Gap
    | Flushed
)
EventT = TypeVar("EventT", bound=AnyEvent)
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
        self._config = with_vocabulary(of_options({**(options or {}), **named}))
        self._split = build.is_split(self._config)
        self._new_streams = build.streams_maker(self._config)
        self._sessions: dict[CaptionSession[Any], asyncio.Task[None]] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a Captioner can be entered only once")
        config = self._config = with_context(_with_model(self._config))
        self._opened = open_any(config)
        try:
            ready = self._opened.recognizers()
        except BaseException:  # or an engine would go on loading for nobody
            self._opened.close()
            raise
        self._streams = self._new_streams(max_ingest=sys.maxsize)
        choices = build.default_choices(config)
        self._streams.choices = structs.replace(choices, split=self._split or UNSET)
        serving = supervise(self._streams, lambda: ready)
        running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        # It knows nothing of this object, which can be collected, and is missed then (__del__).
        work = _serve(serving, self._streams, self._sessions, running, self._opened)
        self._thread = threading.Thread(
            target=asyncio.run, args=(work,), name="streamd", daemon=True
        )
        self._thread.start()
        self._loop, self._stop = running.result()
        return self

    def __del__(self) -> None:
        if (thread := getattr(self, "_thread", None)) is not None and thread.is_alive():
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._loop.call_soon_threadsafe(self._stop.set)

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

    @overload
    def listen(
        self, audio: Audio, *, rate_hz: int | None = None, **chosen: Unpack[Chosen]
    ) -> "CaptionSession[Caption]": ...

    @overload
    def listen(
        self,
        audio: Audio,
        *,
        rate_hz: int | None = None,
        events: Literal[True],
        **chosen: Unpack[Chosen],
    ) -> "CaptionSession[AnyEvent]": ...

    def listen(
        self,
        audio: Audio,
        *,
        rate_hz: int | None = None,
        events: bool = False,
        **chosen: Unpack[Chosen],
    ) -> "CaptionSession[Any]":
        """Caption a source; iterate over the result with ``for`` or ``async for``.

        `audio` is a `Microphone`, a file or address (read as fast as it is transcribed), samples,
        or an iterable of blocks of samples; `rate_hz` is the rate of samples, 16000 if it is not
        given. Leaving the loop closes the source. The iteration raises `SourceError` where the
        audio cannot be had; what was captured before it is final by then. With `events`, there are
        `Speech`, `Pause` and others besides the captions.

        `chosen` are language, task, prompt, hotwords, endpoint, endpoint_ms or speakers of this
        session; without, those of the `Captioner` hold. Raises `ConfigError` if one is not allowed.
        """
        source = _source(audio, rate_hz, self._selection(chosen))
        return self._begin(source, chosen, owns_source=True, events=events)

    @overload
    def session(
        self, *, rate_hz: int = SAMPLE_RATE, channels: int = 1, **chosen: Unpack[Chosen]
    ) -> "CaptionSession[Caption]": ...

    @overload
    def session(
        self,
        *,
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
        events: Literal[True],
        **chosen: Unpack[Chosen],
    ) -> "CaptionSession[AnyEvent]": ...

    def session(
        self,
        *,
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
        events: bool = False,
        **chosen: Unpack[Chosen],
    ) -> "CaptionSession[Any]":
        """Begin a session that the caller feeds with samples at `rate_hz`, such as 48000.

        The rest is as for `listen`.
        """
        source = ArraySource(rate_hz=rate_hz, channels=channels, split=self._split)
        return self._begin(source, chosen, owns_source=False, events=events)

    def transcribe(
        self,
        audio: Recording,
        *,
        rate_hz: int | None = None,
        num_speakers: int = 0,
        progress: Callable[[int, int], object] | None = None,
        **chosen: Unpack[Chosen],
    ) -> "Transcript":
        """Transcribe a whole recording: a file, an address, or samples.

        Better than captions of the same recording, for Whisper sees what comes after a word. The
        arguments are as for `listen`; `num_speakers` people are told apart, if that is known.
        `progress` is called with how far the transcript reaches and
        how long the recording is, in ms; it must not wait, and what it raises ends the work. Raises
        `SourceError` if no audio can be read, `EngineError` if the engine fails; of a damaged file,
        it returns the text of what can be decoded, with `warnings`.
        """
        file = os.fspath(audio) if isinstance(audio, str | os.PathLike) else ""
        tell = progress or (lambda reached_ms, duration_ms: None)
        source = _source(audio, rate_hz, self._selection(chosen))
        of_options({"num_speakers": num_speakers})  # which checks it
        return self._wait(self._transcribe(source, file, num_speakers, _known(chosen), tell))

    def close(self) -> None:
        """End all sessions and free the model; their unfinished utterances are dropped."""
        if self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # another thread has closed it
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _selection(self, chosen: Mapping[str, object]) -> Selection:
        """Return what of a file is read for a reader who has `chosen` these options."""
        language = chosen.get("language") or self._config.decoding.language
        decoding = replace(self._config.decoding, language=str(language))
        return build.selection(replace(self._config, decoding=decoding))

    def _begin(
        self, source: Source, chosen: Chosen, *, owns_source: bool, events: bool
    ) -> "CaptionSession[Any]":
        opening = self._open(source, _known(chosen), owns_source=owns_source, events=events)
        return self._wait(opening)

    def _wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Do it on the loop; raises `RuntimeError` if there is none."""
        if self._thread is None or not self._thread.is_alive():
            work.close()
            raise RuntimeError("this Captioner is not open: use it in a with statement")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # The rest runs on the loop.

    async def _open(
        self, source: Source, chosen: Mapping[str, object], *, owns_source: bool, events: bool
    ) -> "CaptionSession[Any]":
        stream = self._streams.open(secrets.token_hex(8))
        session: CaptionSession[Any] = CaptionSession(
            self._loop, stream, source, owns_source=owns_source, events=events
        )
        try:
            await stream.choose(chosen)
        except WireError as error:
            session.end()
            raise ConfigError(str(error)) from None
        task = asyncio.create_task(caption([source], stream, Control()))
        self._sessions[session] = task
        task.add_done_callback(lambda done: self._ended(session, done))
        return session

    def _ended(self, session: "CaptionSession[Any]", task: asyncio.Task[None]) -> None:
        self._sessions.pop(session, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            session.fail(error)

    async def _transcribe(
        self,
        source: Source,
        name: str,
        num_speakers: int,
        chosen: Mapping[str, object],
        progress: Callable[[int, int], object],
    ) -> "Transcript":
        choices = self._opened.chooser()(self._streams.choices, chosen)
        config = build.with_choices(self._config, choices, num_speakers)
        transcriber: RecordingTranscriber = await asyncio.to_thread(
            self._opened.transcriber, config, is_alone=lambda: self._streams.are_idle
        )
        file = transcriber.new_file(_warn)
        async with source:
            await file.read(source)
        if file.damage is not None:
            log.warning("%s", file.damage)
        given = events_between(self._streams.between, transcriber, file, progress)
        events = [event async for event in given]
        segments = tuple(event for event in events if isinstance(event, Final))
        sounds = tuple(event for event in events if isinstance(event, Sound))
        return Transcript(segments, file.duration_ms, config, name, file.warnings, sounds)


async def _serve(
    serving: Coroutine[Any, Any, None],
    streams: Streams,
    sessions: Mapping["CaptionSession[Any]", asyncio.Task[None]],
    running: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]",
    opened: OpenModel,
) -> None:
    """Caption the sessions until the event is set that `running` gets, with the loop.

    Then the model is closed.
    """
    work = [asyncio.create_task(each) for each in (serving, streams.chores())]
    running.set_result((asyncio.get_running_loop(), stop := asyncio.Event()))
    await stop.wait()
    for session, task in sessions.items():
        session.end()
        work.append(task)
    for task in work:
        task.cancel()
    # A failed engine was reported to every session already.
    await asyncio.gather(*work, return_exceptions=True)
    opened.close()


def _known(chosen: Chosen | Changed, kind: type = Chosen) -> Mapping[str, object]:
    """Return the choices as options have them; raises `TypeError` for names that do not exist."""
    names = kind.__annotations__
    for name in chosen:
        if name not in names:
            raise TypeError(f"no such argument: {name}{suggestion(name, names)}")
    words = chosen.get("hotwords", "")
    if isinstance(words, Iterable) and not isinstance(words, str):
        return {**chosen, "hotwords": "\n".join(words)}
    return cast(Mapping[str, object], chosen)


def _source(
    audio: Any,  # noqa: ANN401 - it is checked here
    rate_hz: int | None,
    selection: Selection,
) -> Source:
    """Return the source of what the caller gave; raises `TypeError` or `ValueError` at once."""
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[1], int):
        samples, rate = audio
        if rate_hz not in (None, rate):
            raise ValueError(f"the samples are at {rate} Hz, but rate_hz is {rate_hz}")
        return _source(samples, rate, selection)
    is_file, is_source = isinstance(audio, str | os.PathLike), hasattr(audio, "__aiter__")
    if rate_hz is not None and (is_file or is_source):
        raise ValueError("rate_hz is the rate of samples: a file or source knows its own")
    if is_file:
        if not (name := os.fspath(audio)):
            raise ValueError("the name of the file is empty")
        return FileSource(name, realtime=False, selection=selection)
    if is_source:
        return cast(Source, audio)
    rate = SAMPLE_RATE if rate_hz is None else rate_hz
    if hasattr(audio, "__array__") or isinstance(audio, bytes | bytearray | memoryview):
        shape: tuple[int, ...] = np.shape(audio) if hasattr(audio, "__array__") else ()
        channels = shape[1] if len(shape) == 2 and shape[1] <= _MAX_CHANNELS else 1
        whole = ArraySource(rate_hz=rate, channels=channels, split=selection.split)
        whole.put(whole.checked(audio))
        whole.stop()
        return whole
    if not isinstance(audio, Iterable) or hasattr(audio, "read"):
        wanted = "a file's name, samples, an iterable of samples or a Microphone"
        raise TypeError(f"audio must be {wanted}, got {type(audio).__name__}")
    return ArraySource(audio, rate_hz=rate)


class CaptionSession(Generic[EventT]):
    """One stream of audio and its captions: iterate over it with ``for`` or ``async for``.

    It yields a `Partial` whenever the text of the present utterance changes, and its `Final` when
    that text will never change again. The iteration waits for the next event. It ends when all of
    the audio is final: after `finish`, or at the end of the source. It raises `SourceError` or
    `EngineError` if the audio or the engine fails.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: Stream,
        source: Source,
        *,
        owns_source: bool,
        events: bool = False,
    ) -> None:
        self._loop, self._stream, self._source = loop, stream, source
        self._owns_source, self._all = owns_source, events
        self._finished = False
        self._events = stream.hub.subscribe(after=0, listens=False)
        self._seq = 0
        self._error: BaseException | None = None

    def feed(self, samples: Samples) -> None:
        """Take the next samples, any number of them; returns at once.

        They are float32 or float64 (-1 to 1), int16, int32 or uint8, of the shape (n,) or
        (n, channels), and are copied. Audio that comes faster than it is transcribed waits in
        memory. Raises `TypeError`, `ValueError`, or `RuntimeError` if the session is over, its
        audio was finished, or it captions a source of its own.
        """
        if self._owns_source or not isinstance(self._source, ArraySource):
            raise RuntimeError("this session captions a source: only session() can be fed")
        if self._finished:
            raise RuntimeError("the session is over: finish() was called")
        if self._stream.hub.closed or not self._call(
            self._source.put, self._source.checked(samples)
        ):
            raise RuntimeError("the session is over")

    def flush(self) -> None:
        """Make what was fed or captured by now final, without waiting for a pause.

        Returns at once. The finals come as others do; a session with `events` yields `Flushed`
        after them.
        """
        if isinstance(self._source, ArraySource) and not self._owns_source:
            self._call(self._source.put, self._flush)  # behind what was fed
        else:
            self._call(self._begin_flush)

    def update(self, **changed: Unpack[Changed]) -> None:
        """Change what was chosen: language, prompt, hotwords, endpoint or endpoint_ms.

        The next words are heard with it; what was shown stays. Raises `ConfigError` if it is not
        allowed; then nothing has changed.
        """
        self._checked(self._stream.update(_known(changed, Changed)))

    def correct(self, text: str, *, seq: int = 0, first: int = 0, last: int = 0) -> None:
        """Say how a word or name is spelled that was misheard; it is expected from now on.

        It stands for the words number `first` to `last`, from 0, of the final `seq`, which stays as
        it is. Raises `ConfigError` if that is no phrase, or there is no such final.
        """
        correction = Correction(text=" ".join(text.split()), seq=seq, first=first, last=last)
        self._checked(self._stream.correct(correction, keep=False))

    def rename(self, speaker: int, name: str) -> None:
        """Say what a speaker is called; with an empty name, they have only a number again.

        It is an event, `SpeakerName`, as is a name by which somebody's voice is known. Raises
        `ConfigError` if that is no name.
        """
        self._checked(self._renamed(SpeakerName(speaker=speaker, name=name)))

    async def _renamed(self, naming: SpeakerName) -> None:
        self._stream.rename(naming)

    def finish(self) -> None:
        """End the audio: what was fed or captured by now becomes final, then the iteration ends."""
        self._finished = True
        self._call(self._source.stop)

    def close(self) -> None:
        """End the session at once, without the text of the present utterance."""
        self._call(self.end)

    def poll(self) -> list[EventT]:
        """Return the events that have come since the last call, without waiting."""
        return self._submit(self._drain()) or []

    def __iter__(self) -> Iterator[EventT]:
        try:
            while (event := self._submit(self._next())) is not None:
                yield event
        finally:
            if self._owns_source:
                self.close()

    async def __aiter__(self) -> AsyncIterator[EventT]:
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

    def _checked(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._submit(work)
        except WireError as error:
            raise ConfigError(str(error)) from None

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

    async def _next(self) -> EventT | None:
        while True:
            event = await anext(self._events, None)
            if event is None and self._events.slow:
                # The queue overflowed: subscribe again, which loses partials but no finals.
                self._events = self._stream.hub.subscribe(after=self._seq, listens=False)
            elif event is None:
                return None
            elif (shown := self._shown(event)) is not None:
                return shown

    async def _drain(self) -> list[EventT]:
        if self._events.slow:
            self._events = self._stream.hub.subscribe(after=self._seq, listens=False)
        waiting = iter(self._events.pop, None)
        return [shown for event in waiting if (shown := self._shown(event)) is not None]

    def _begin_flush(self) -> None:
        self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        await self._stream.flush()
        self._events.offer(Flushed(id="", seq=self._stream.hub.seq))

    def _shown(self, event: Event) -> EventT | None:
        """Return what the caller wants of an event; raises the error of a fatal fault."""
        if isinstance(event, Fault) and event.fatal:
            kind = {"source": SourceError, "engine": EngineError}.get(event.code, StreamdError)
            raise self._error or kind(event.message)
        if isinstance(event, Gap) and not self._all:
            _warn(event)
        if isinstance(event, Final):
            self._seq = event.seq
        shown: object = event
        if isinstance(event, Vad):
            shown = Speech(event.t_ms) if event.speech else Pause(event.t_ms)
        wanted = AnyEvent if self._all else Caption
        return cast(EventT, shown) if isinstance(shown, wanted) else None


def _warn(gap: Gap) -> None:
    log.warning("%s", gap_notice(gap))


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a whole recording.

    `segments` are the model's, in order and without overlap. Each has `text`, `start` and `end` in
    seconds (and `start_ms`, `end_ms`), `language`, and `words` with `text`, `start`, `end` and
    `prob`, 0 to 1. With `speakers`, segments and words also have a `speaker`. `duration_ms` is the
    length of the recording. `warnings` says what is wrong with it, such as how much of a damaged
    file is missing; that was logged, too. `sounds` are those that are not speech, if asked for.
    """

    segments: tuple[Final, ...]
    duration_ms: int
    _config: Config
    _file: str
    warnings: tuple[str, ...] = ()
    sounds: tuple[Sound, ...] = ()

    def __repr__(self) -> str:
        duration_s, number = self.duration_ms / 1000, len(self.segments)
        return f"<transcript {duration_s:.2f} s {self.language!r}, segments: {number}>"

    @property
    def sentences(self) -> list[Final]:
        """The segments, which the model cuts anywhere, joined into sentences."""
        return sentences(self.segments)

    @property
    def text(self) -> str:
        """The text of all segments, with blanks between them."""
        return " ".join(segment.text for segment in self.segments)

    @property
    def language(self) -> str:
        """The code of the recording's language, such as "en"; empty if nothing was said."""
        return self.segments[0].language if self.segments else ""

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: text, language, duration_ms, segments, and sounds if any."""
        sounds = {"sounds": [sound.to_dict() for sound in self.sounds]} if self.sounds else {}
        return {
            "text": self.text,
            "language": self.language,
            "duration_ms": self.duration_ms,
            "segments": [segment.to_dict() for segment in self.segments],
            **sounds,
        }

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write a file whose ending chooses the format, such as .srt (docs/recipes.md).

        Raises `ConfigError` if the ending is unknown or the file cannot be written, `StreamdError`
        if writing fails later.
        """
        output = of_options({"output": [os.fspath(path)]}).output
        config = replace(self._config, output=output)
        said = sorted((*self.segments, *self.sounds), key=attrgetter("start_ms"))
        end = Eos(seq=len(self.segments), reason=EndReason.END)
        for sink in open_files(config, self._file, whole=True, segments=True):
            try:
                for event in (*said, end):
                    sink.write(event)
            finally:
                sink.close()


def transcribe(
    audio: Recording,
    model: str = "",
    *,
    rate_hz: int | None = None,
    num_speakers: int = 0,
    options: Mapping[str, object] | None = None,
    progress: Callable[[int, int], object] | None = None,
    **chosen: Unpack[Chosen],
) -> Transcript:
    """Transcribe one recording: see `Captioner` and `Captioner.transcribe`.

    The model is opened for this call; use a `Captioner` for several recordings.
    """
    with Captioner(model, options={**(options or {}), **_known(chosen)}) as captioner:
        return captioner.transcribe(
            audio, rate_hz=rate_hz, num_speakers=num_speakers, progress=progress
        )


def _with_model(config: Config) -> Config:
    """Return the configuration with a model of the store, the best one here if it names none."""
    wanted, here = config.decoding, places()
    name = store.in_one_form(wanted.model, here) if wanted.model else best_model(config, here)
    better = offered(wanted).name
    if name is None:
        raise ModelError(f"no model here suits; run: streamd models get {better}")
    if not wanted.model and store.is_bundled(name, here):
        log.warning("using %s, the smallest; streamd models get %s gets a larger one", name, better)
    return replace(config, decoding=replace(wanted, model=name))
