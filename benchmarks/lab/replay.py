"""Plays sound to the daemon's sessions and keeps a log of what they say.

Sessions, hubs, scheduling and the recognizer's thread are the daemon's own. The sound comes in
blocks of 20 ms as from a microphone: each when its last sample would have been spoken.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from lab.clock import VirtualLoop
from lab.eventlog import Began, Decoded, Ended, Log, Said
from streamd.daemon.streams import Stream, Streams
from streamd.engine.recognizer import Counters
from streamd.events import EndReason
from streamd.session import Session
from streamd.types import FRAME_MS, Frames, Hypothesis, Window, ms_from_frames

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


class Recognizer(Protocol):
    """What `Streams` needs, and its counters."""

    counters: Counters

    def recognize(self, window: Window) -> Hypothesis:
        """Transcribe the window."""
        ...


def replay(
    recognizers: Sequence[Recognizer],
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
    a log for each of the streams, with times of its own; with several streams the windows are all
    in the log of the first one
    """
    stopwatch = _STOPWATCHES[began.clock]
    factory = None if began.clock == "real" else lambda: VirtualLoop(stopwatch)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_replay(recognizers, new_session, streams, began))


async def _replay(
    recognizers: Sequence[Recognizer],
    new_session: Callable[[], Session],
    sounds: Sequence[Frames],
    began: Began,
) -> list[Log]:
    loop = asyncio.get_running_loop()
    zero_s = loop.time()
    now_ms = lambda: (loop.time() - zero_s) * 1000  # noqa: E731 - one use, one line
    watched = [_Watched(each, now_ms, _STOPWATCHES[began.clock]) for each in recognizers]
    streams = Streams(lambda _: new_session(), room=sys.maxsize, max_ingest=0)
    cpu_s = time.process_time()
    engine = loop.create_task(streams.transcribe(*watched))
    spacing_ms = began.step_ms / len(sounds)
    players = [
        _Player(streams.add(f"s{n}"), frames, zero_s + n * spacing_ms / 1000)
        for n, frames in enumerate(sounds)
    ]
    await asyncio.gather(*(player.play() for player in players))
    engine.cancel()
    cpu_ms = (time.process_time() - cpu_s) * 1000
    ended = Ended(
        t_ms=_rounded(players[0].now_ms), cpu_ms=_rounded(cpu_ms), peak_rss_mb=peak_rss_mb()
    )
    logs: list[Log] = []
    for n, player in enumerate(players):
        # a recognizer does not know whose windows it gets
        entries: list[Said | Decoded] = [*player.log]
        if n == 0:
            entries += [entry for each in watched for entry in each.log]
        logs.append([began, *sorted(entries, key=lambda entry: entry.t_ms), ended])
    return logs


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

    async def play(self) -> None:
        """Until all is said."""
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
        recognizer: Recognizer,
        now_ms: Callable[[], float],
        stopwatch: Callable[[], float],
    ) -> None:
        self._recognizer, self._now_ms, self._stopwatch = recognizer, now_ms, stopwatch
        self.log: list[Decoded] = []

    def recognize(self, window: Window) -> Hypothesis:
        counters = self._recognizer.counters
        before = (counters.encoded_frames, counters.drafted, counters.accepted)
        begun_ms = self._now_ms()
        begun_s, cpu_s = self._stopwatch(), time.process_time()
        hypothesis = self._recognizer.recognize(window)
        compute_ms = (self._stopwatch() - begun_s) * 1000
        after = (counters.encoded_frames, counters.drafted, counters.accepted)
        n_encoded, n_drafted, n_accepted = (b - a for a, b in zip(before, after, strict=True))
        self.log.append(
            Decoded(
                t_ms=_rounded(begun_ms + compute_ms),
                begun_ms=_rounded(begun_ms),
                start_ms=ms_from_frames(window.start),
                end_ms=ms_from_frames(window.end),
                last=window.last,
                compute_ms=_rounded(compute_ms),
                cpu_ms=_rounded((time.process_time() - cpu_s) * 1000),
                encoded_frames=n_encoded,
                drafted=n_drafted,
                accepted=n_accepted,
            )
        )
        return hypothesis


def peak_rss_mb() -> float:
    """The most memory that this process had at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def _rounded(ms: float) -> float:
    return round(ms, 2)
