"""Plays sound to the daemon's sessions and keeps a log of what they say.

Sessions, hubs, scheduling and the recognizer's thread are the daemon's own. The sound comes in
blocks of 20 ms as from a microphone: each when its last sample would have been spoken.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal, cast

import msgspec

from lab.clock import VirtualLoop
from lab.eventlog import Began, Decoded, Ended, Log, Said
from streamd.events import EndReason
from streamd.session import Session
from streamd.streams import Streams
from streamd.streams.stream import Stream
from streamd.types import FRAME_MS, Frames, Hypothesis, Window, WindowRecognizer, ms_from_frames
from streamd.whisper.decode import RIGHT_CONTEXT

Clock = Literal["real", "virtual", "cpu", "free"]
"""How time passes: as it does; as it would on a machine that does nothing else, without waiting
(`clock`); the same, but computing takes the CPU time of all its threads, which is more than it
would really take, though neighbours have no part in it; the same, and computing takes none."""

_STOPWATCHES: dict[str, Callable[[], float]] = {
    "real": time.perf_counter,
    "virtual": time.perf_counter,
    "cpu": time.process_time,
    "free": lambda: 0.0,
}


def encoded_frames(window: Window) -> int:
    """Return how many frames the encoder computes: those whose states are not known.

    That is without those of windows that are encoded once more, for digits (`_without_commas`).
    """
    known, n_known = window.encoded, 0
    if known is not None and known.start == window.start:
        n_known = max(0, min(known.end, window.end) - window.start - RIGHT_CONTEXT)
    return window.end - window.start - n_known


def replay(
    recognizers: Sequence[WindowRecognizer],
    new_session: Callable[[], Session],
    streams: Sequence[Frames],
    *,
    began: Began,
) -> list[Log]:
    """Play each of `streams` to a session of its own, all of them to the same recognizers.

    They begin evenly spread over a step. `began` describes the run; its clock is obeyed. Of several
    recognizers each works in a thread of its own on the real clock; on the others each computes
    alone, as if there were a core for each and they shared no memory.

    Returns
    -------
    a log for each of the streams, with times of its own
    """
    stopwatch = _STOPWATCHES[began.clock]
    factory = None if began.clock == "real" else lambda: VirtualLoop(stopwatch)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_replay(recognizers, new_session, streams, began))


async def _replay(
    recognizers: Sequence[WindowRecognizer],
    new_session: Callable[[], Session],
    sounds: Sequence[Frames],
    began: Began,
) -> list[Log]:
    loop = asyncio.get_running_loop()
    zero_s = loop.time()
    now_ms = lambda: (loop.time() - zero_s) * 1000  # noqa: E731 - one use, one line
    owners: dict[int, int] = {}
    stopwatch = _STOPWATCHES[began.clock]
    watched = [_Watched(each, now_ms, stopwatch, owners) for each in recognizers]
    numbers = count()
    noted = lambda _: cast("Session", _Noted(new_session(), next(numbers), owners))  # noqa: E731
    streams = Streams(noted, max_backlog=sys.maxsize, max_ingest=0)
    cpu_s = time.process_time()
    spacing_ms = began.step_ms / len(sounds)
    bugs: list[Exception] = []
    async with asyncio.TaskGroup() as tasks:  # an engine that fails ends all of them
        engine = tasks.create_task(streams.transcribe(*watched))
        players = [
            _Player(streams.add(f"s{n}"), frames, zero_s + n * spacing_ms / 1000)
            for n, frames in enumerate(sounds)
        ]
        await asyncio.gather(*(tasks.create_task(player.play(bugs)) for player in players))
        engine.cancel()
        if bugs:
            raise bugs[0]
    cpu_ms = (time.process_time() - cpu_s) * 1000
    ended = Ended(
        t_ms=_rounded(players[0].now_ms), cpu_ms=_rounded(cpu_ms), peak_rss_mb=peak_rss_mb()
    )
    logs: list[Log] = []
    windows = [entry for each in watched for entry in each.log]
    for n, player in enumerate(players):
        entries: list[Said | Decoded] = [*player.log]
        entries += [_since(window, n * spacing_ms) for stream, window in windows if stream == n]
        logs.append([began, *sorted(entries, key=lambda entry: entry.t_ms), ended])
    return logs


def _since(entry: Decoded, ms: float) -> Decoded:
    """The same on the clock of a stream that began so much later."""
    began = {"begun_ms": _rounded(entry.begun_ms - ms), "t_ms": _rounded(entry.t_ms - ms)}
    return msgspec.structs.replace(entry, **began)


class _Noted:
    """A session that notes which windows are its own: a recognizer does not know whose it gets.

    `owners`: the session's number by the `id` of its window, while that is out.
    """

    def __init__(self, session: Session, number: int, owners: dict[int, int]) -> None:
        self._session, self._number, self._owners = session, number, owners

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a session has
        return getattr(self._session, name)

    def next_window(self) -> Window | None:
        window = self._session.next_window()
        if window is not None:
            self._owners[id(window)] = self._number
        return window


class _Player:
    """One stream: its sound, and what is said about it."""

    def __init__(self, stream: Stream, frames: Frames, begin_s: float) -> None:
        self._stream, self._frames, self._begin_s = stream, frames, begin_s
        self._loop = asyncio.get_running_loop()
        self._n_fed = 0
        self.log: list[Said] = []

    @property
    def now_ms(self) -> float:
        """Since the stream's first sample was spoken."""
        return (self._loop.time() - self._begin_s) * 1000

    async def play(self, bugs: list[Exception]) -> None:
        """Until all is said, or a bug has ended the session, which is added to `bugs`."""
        self._stream.broken = bugs.append
        listening = self._loop.create_task(self._listen())
        for n, frame in enumerate(self._frames, 1):
            wait_s = n * FRAME_MS / 1000 - self.now_ms / 1000
            await asyncio.sleep(max(0.0, wait_s))
            self._n_fed = n
            self._stream.feed(frame[None])
        await self._stream.finish(EndReason.END)
        await listening

    async def _listen(self) -> None:
        with self._stream.hub.subscribe() as events:
            async for event in events:
                heard_ms = ms_from_frames(self._n_fed)
                self.log.append(Said(t_ms=_rounded(self.now_ms), heard_ms=heard_ms, event=event))


class _Watched:
    """The recognizer, and a note of each of its windows."""

    def __init__(
        self,
        recognizer: WindowRecognizer,
        now_ms: Callable[[], float],
        stopwatch: Callable[[], float],
        owners: dict[int, int],
    ) -> None:
        self._recognizer, self._now_ms, self._stopwatch = recognizer, now_ms, stopwatch
        self._owners = owners
        self.log: list[tuple[int, Decoded]] = []  # and of which stream

    def recognize(self, window: Window) -> Hypothesis:
        stream = self._owners.pop(id(window))
        begun_ms = self._now_ms()
        begun_s, cpu_s = self._stopwatch(), time.process_time()
        hypothesis = self._recognizer.recognize(window)
        compute_ms = (self._stopwatch() - begun_s) * 1000
        is_same = [a == b for a, b in zip(window.draft, hypothesis.tokens, strict=False)]
        decoded = Decoded(
            t_ms=_rounded(begun_ms + compute_ms),
            begun_ms=_rounded(begun_ms),
            start_ms=ms_from_frames(window.start),
            end_ms=ms_from_frames(window.end),
            last=window.last,
            compute_ms=_rounded(compute_ms),
            cpu_ms=_rounded((time.process_time() - cpu_s) * 1000),
            encoded_frames=encoded_frames(window),
            drafted=len(window.draft),
            accepted=[*is_same, False].index(False),
        )
        self.log.append((stream, decoded))
        return hypothesis


def peak_rss_mb() -> float:
    """The most memory that this process had at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def _rounded(ms: float) -> float:
    return round(ms, 2)
