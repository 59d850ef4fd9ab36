"""Many sessions on one recognizer: nothing is lost, nobody waits for ever, failures are heard."""

import asyncio
import errno
import threading
from dataclasses import replace

import numpy as np
import pytest

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.control import Control
from streamd.daemon.feeding import pump
from streamd.errors import EngineError, EngineMemoryError, OneSessionError, WireError
from streamd.events import Eos, Fault, Final, Gap, Lag, SpeakerTurn, SpeakerTurns
from streamd.options import Choices, SessionOptions
from streamd.streams import SessionStorage, Streams
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database
from streamd.streams.metrics import Metrics
from streamd.streams.stream import Stream, StreamContext
from streamd.types import FRAME, DetectedLanguage, Hypothesis, Window
from tests.support import recorded
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session
from tests.support.loop import turn, turns

SPEECH = [False] * WORD + [True] * (20 * WORD) + [False] * 60
SAID = " ".join(f"w{n}" for n in range(1, 21))


class Stalling(ScriptedRecognizer):
    """Takes its time: every third window waits until `go` is set, if that is soon."""

    def __init__(self, stall_s: float) -> None:
        super().__init__()
        self._stall_s, self._n = stall_s, 0
        self.go = threading.Event()

    def recognize(self, window: Window) -> Hypothesis:
        self._n += 1
        if self._n % 3 == 0:
            self.go.wait(self._stall_s)
        return super().recognize(window)


def new_streams(
    max_backlog: int = 500,
    max_ingest: int = 8,
    deadline_s: float = 0.0,
    storage: SessionStorage | None = None,
    **options: int,
) -> Streams:
    return Streams(
        lambda _: scripted_session(SessionOptions(**options)),
        max_backlog=max_backlog,
        max_ingest=max_ingest,
        deadline_s=deadline_s,
        storage=storage,
    )


async def finals(stream: Stream) -> list[Final]:
    with stream.hub.subscribe(after=0) as events:
        return [event async for event in events if isinstance(event, Final)]


@pytest.fixture
async def serving():
    """Transcribes with the recognizer it is called with, until the test ends."""
    tasks = []

    def start(streams: Streams, *recognizers) -> asyncio.Task:
        tasks.append(asyncio.create_task(streams.transcribe(*recognizers)))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Hearing(ScriptedRecognizer):
    """Hears a language with the probability `prob`; None: it was told."""

    def __init__(self, prob: float | None) -> None:
        super().__init__()
        self._prob = prob

    def recognize(self, window: Window) -> Hypothesis:
        return replace(
            super().recognize(window),
            language="de",
            answers=(DetectedLanguage("de", self._prob),),
        )


@pytest.mark.parametrize(("prob", "n_lines"), [(0.9, 1), (None, 0)])
async def test_the_language_that_was_heard_first_is_told_once(prob, n_lines, serving, caplog):
    streams = new_streams()
    serving(streams, Hearing(prob))
    stream = streams.open("s")
    with caplog.at_level("INFO"):
        for _ in range(2):
            stream.feed(scripted_audio_after(stream, SPEECH))
            await turn()
        await stream.finish("stop")
    told = [line for line in caplog.messages if "language" in line]
    line = "session s: detected language: de (set it with --language)"
    assert told == [line] * n_lines


def scripted_audio_after(stream: Stream, speech: list[bool]) -> np.ndarray:
    n = stream.session.now
    return scripted_audio([False] * n + speech)[n:]


async def test_several_sessions_share_one_recognizer(serving):
    streams = new_streams()
    serving(streams, ScriptedRecognizer())
    fed = [streams.open(f"s{i}") for i in range(5)]
    for start in range(0, len(SPEECH), 25):
        for stream in fed:
            stream.feed(scripted_audio(SPEECH)[start : start + 25])
            await turn()
    await asyncio.gather(*(stream.finish("stop") for stream in fed))
    for stream in fed:
        assert [(f.seq, f.text) for f in await finals(stream)] == [(1, SAID)]


class Ordered(ScriptedRecognizer):
    """Transcribes a window when it is let, and notes whose it was by the frames' numbers."""

    def __init__(self, go: threading.Semaphore) -> None:
        super().__init__()
        self.windows: list[Window] = []
        self.started, self.go = asyncio.Semaphore(0), go
        self._loop = asyncio.get_running_loop()

    def recognize(self, window: Window) -> Hypothesis:
        self.windows.append(window)
        self._loop.call_soon_threadsafe(self.started.release)
        assert self.go.acquire(timeout=30)
        return super().recognize(window)


@pytest.fixture
async def ordered(serving):
    """A recognizer that waits, and three streams that it serves."""
    streams, recognizer = new_streams(max_backlog=3000), Ordered(threading.Semaphore(0))
    serving(streams, recognizer)
    yield recognizer, [streams.open(f"s{i}") for i in range(3)]
    recognizer.go.release(1000)


async def test_who_waits_longest_is_served_first(ordered):
    recognizer, fed = ordered
    audio = scripted_audio(SPEECH)
    # How much each has heard tells its windows from the others'.
    n_heard = [90, 60, 120]
    for order in (1, 2, 0):
        fed[order].feed(audio[: n_heard[order]])
        await turn()  # the loop's clock moves on
    for _ in range(3):
        await recognizer.started.acquire()
        recognizer.go.release()
    ends = [window.end for window in recognizer.windows[:3]]
    assert ends == [end // 25 * 25 for end in (60, 120, 90)]


async def test_a_window_that_a_final_waits_for_is_served_before_those_of_partials(ordered):
    recognizer, fed = ordered
    audio = scripted_audio(SPEECH)
    for stream, n_heard in zip(fed, (45, 35, 40), strict=True):
        stream.feed(audio[:n_heard])
        await turn()
    await recognizer.started.acquire()
    flushing = asyncio.create_task(fed[2].flush())
    await turn()
    for _ in range(2):
        recognizer.go.release()
        await recognizer.started.acquire()
    assert [window.end for window in recognizer.windows] == [25, 40, 25]
    assert [window.last for window in recognizer.windows] == [False, True, False]
    recognizer.go.release(1000)
    await flushing


async def test_finals_of_a_stream_that_is_late_do_not_hold_up_the_others(ordered):
    recognizer, (bulk, live, _) = ordered
    # Words with pauses that end utterances: with each window that comes back, a final is due.
    bulk.feed(scripted_audio(([True] * WORD + [False] * 150) * 12))
    await turn()
    await recognizer.started.acquire()
    live.feed(scripted_audio([True] * (6 * WORD)))
    for _ in range(4):
        await turn()
        recognizer.go.release()
        await recognizer.started.acquire()
    assert sum(window.samples[-1] != 0 and not window.last for window in recognizer.windows) == 1


async def test_a_final_is_urgent_where_its_stream_is_late_but_had_a_partial(ordered):
    recognizer, (own, late, other) = ordered
    late.feed(scripted_audio([True] * 30))
    await recognizer.started.acquire()  # a partial of what will be late
    own.feed(scripted_audio([True] * 90))
    await turn()  # the loop's clock moves on
    other.feed(scripted_audio([True] * 60))
    late.feed(scripted_audio([True] * 100 + [False] * 60)[30:])
    await turn()
    for _ in range(2):
        recognizer.go.release()
        await recognizer.started.acquire()
    assert [window.last for window in recognizer.windows] == [False, True, False]


async def test_the_order_of_windows_holds_over_all_models(serving):
    streams, own = new_streams(max_backlog=3000), Ordered(threading.Semaphore(0))
    base = Ordered(own.go)
    base.windows, base.started = own.windows, own.started
    serving(streams, own)
    _, serving_base = streams.serve("base", [base])
    computed, busy, other, soon = (streams.open(name) for name in ("a", "b", "c", "d"))
    busy.hub.choices = other.hub.choices = Choices(model="base")
    audio = scripted_audio(SPEECH)
    computed.feed(audio[:45])
    await own.started.acquire()
    step = asyncio.create_task(streams.between(lambda: own.windows.append(None)))
    await turn()
    for stream, n_heard in ((busy, 60), (soon, 35)):  # how much each has heard tells its windows
        stream.feed(audio[:n_heard])
        await turns(3)
    flushing = [asyncio.create_task(soon.flush())]
    await turns(3)
    # Only a final is begun beside the other model's partial.
    assert [(window.end, window.last) for window in own.windows] == [(25, False)]
    other.feed(audio[:40])
    flushing.append(asyncio.create_task(other.flush()))
    await own.started.acquire()
    own.go.release(1000)
    await asyncio.gather(step, *flushing)
    order = [window and (window.end, window.last) for window in own.windows]
    assert order == [(25, False), (40, True), (35, True), (50, False), None]
    serving_base.cancel()


async def test_a_window_that_hangs_holds_up_no_other_model(serving, monkeypatch):
    monkeypatch.setattr("streamd.streams.scheduler.HOLDS_UP_S", 0.0)
    streams, own = new_streams(), Ordered(threading.Semaphore(0))
    base = Ordered(threading.Semaphore(0))
    serving(streams, own)
    _, serving_base = streams.serve("base", [base])
    hung, stream = streams.open("a"), streams.open("b")
    hung.hub.choices = Choices(model="base")
    async with asyncio.timeout(20):
        hung.feed(scripted_audio(SPEECH)[:45])
        await base.started.acquire()
        stream.feed(scripted_audio(SPEECH)[:45])
        await own.started.acquire()
        own.go.release(1000)
        assert await streams.between(lambda: "a step") == "a step"
    base.go.release(1000)
    serving_base.cancel()


async def test_steps_that_hang_leave_a_recognizer_to_live_windows(serving, monkeypatch):
    monkeypatch.setattr("streamd.streams.scheduler.HOLDS_UP_S", 0.0)
    streams, recognizer = new_streams(), Ordered(threading.Semaphore(1000))
    serving(streams, recognizer, recognizer)
    stream, go = streams.open("s"), threading.Semaphore(0)
    await streams.between(lambda: None)
    steps = [asyncio.create_task(streams.between(go.acquire)) for _ in range(2)]
    await turns(10)
    async with asyncio.timeout(20):
        stream.feed(scripted_audio(SPEECH)[:45])
        await recognizer.started.acquire()
    go.release(2)
    await asyncio.gather(*steps)


async def test_a_model_that_lacks_memory_holds_up_no_other_one(serving, monkeypatch):
    monkeypatch.setattr("streamd.streams.scheduler.MEMORY_PAUSE_S", 1e6)
    streams, own = new_streams(), Ordered(threading.Semaphore(1000))
    serving(streams, own)
    _, serving_base = streams.serve("base", [Starving(10**6, MemoryError())])
    lacking, stream = streams.open("a"), streams.open("b")
    lacking.hub.choices = Choices(model="base")
    heard = lacking.hub.subscribe()
    async with asyncio.timeout(20):
        lacking.feed(scripted_audio(SPEECH)[:45])
        while not isinstance(await anext(heard), Fault):
            pass
        stream.feed(scripted_audio(SPEECH)[:45])
        await own.started.acquire()
    serving_base.cancel()


async def test_every_stream_hears_that_the_engine_is_behind(serving):
    """Also where each window is the last of its utterance, so that none tells of a lag."""
    streams = new_streams()
    fed = [streams.open(f"s{i}") for i in range(3)]
    heard = [stream.hub.subscribe() for stream in fed]
    audio = scripted_audio(([False] * WORD + [True] * WORD + [False] * 60) * 3)

    def lags() -> list[list[int]]:
        for stream in fed:
            stream.publish_state(1.0)
        new = [list(iter(events.pop, None)) for events in heard]
        return [[event.lag_ms for event in each if isinstance(event, Lag)] for each in new]

    for stream in fed:
        stream.feed(audio[: 3 * WORD])
    assert lags() == [[], [], []]
    for stream in fed:
        stream.feed(audio[3 * WORD :])
    said = lags()
    assert all(len(each) == 1 and each[0] >= 1000 for each in said)
    assert [[stream.lag_ms] for stream in fed] == said
    serving(streams, ScriptedRecognizer())
    await asyncio.gather(*(stream.flush() for stream in fed))
    assert lags() == [[], [], []]


async def test_two_recognizers_serve_two_sessions_at_once_and_one_session_in_order(serving):
    streams, go = new_streams(), threading.Semaphore(0)
    both = [Ordered(go), Ordered(go)]
    serving(streams, *both)
    fed = [streams.open(f"s{i}") for i in range(2)]
    for stream in fed:
        stream.feed(scripted_audio(SPEECH)[:60])
    for recognizer in both:
        await recognizer.started.acquire()  # both have a window, though nobody was let
    for stream in fed:
        stream.feed(scripted_audio(SPEECH)[60:])
    for _ in range(1000):
        go.release()
    await asyncio.gather(*(stream.finish("stop") for stream in fed))
    for stream in fed:
        assert [f.text for f in await finals(stream)] == [SAID]


async def test_what_is_said_while_the_model_loads_is_transcribed(serving):
    streams = new_streams()
    stream = streams.add("live")
    stream.feed(scripted_audio(SPEECH))
    flushed = asyncio.create_task(stream.finish("end"))
    await turn()
    serving(streams, ScriptedRecognizer())
    await flushed
    assert [f.text for f in await finals(stream)] == [SAID]


async def test_a_dead_engine_is_told_to_every_listener():
    class Dying:
        def recognize(self, window: Window) -> Hypothesis:
            raise EngineError("the runtime ran out of memory")

    streams = new_streams()
    listening = [streams.open(name) for name in ("a", "b")]
    heard = [asyncio.create_task(collect(stream)) for stream in listening]
    await turn()
    listening[0].feed(scripted_audio(SPEECH))
    with pytest.raises(EngineError) as failure:
        await streams.transcribe(Dying())
    streams.fail(failure.value)
    for events in await asyncio.gather(*heard):
        assert isinstance(events[-2], Fault)
        assert events[-2].fatal
        assert "out of memory" in events[-2].message
        assert events[-1] == Eos(seq=0, reason="error")
    await listening[0].flush()  # does not wait for the dead
    late = streams.open("c")
    assert late.hub.closed


class Broken(ScriptedRecognizer):
    """Raises the error for windows that end here or later."""

    def __init__(self, error: Exception, end: int) -> None:
        super().__init__()
        self._error, self._end = error, end

    def recognize(self, window: Window) -> Hypothesis:
        if window.end >= self._end:
            raise self._error
        return super().recognize(window)


def assert_only_this_one_ended(heard: list, caplog: pytest.LogCaptureFixture) -> None:
    *_, fault, eos = heard
    assert (fault.code, fault.fatal) == ("internal", True)
    assert "ValueError: a bug" in fault.message
    assert eos.reason == "error"
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[1].args for record in tracebacks] == [("a bug",)]


async def heard_of_two(serving, streams: Streams, error: Exception) -> list:
    """What the listener hears of the longer of two sessions, which alone has the error."""
    long, short = streams.open("long"), streams.open("short")
    running = serving(streams, Broken(error, len(SPEECH) + WORD))
    heard = asyncio.create_task(collect(long))
    await turn()
    long.feed(scripted_audio(SPEECH + SPEECH))
    short.feed(scripted_audio(SPEECH))
    await asyncio.gather(long.finish("stop"), short.finish("stop"))
    assert [f.text for f in await finals(short)] == [SAID]
    assert not running.done()
    return await heard


async def test_a_model_that_fails_in_one_session_ends_only_that_and_is_no_bug(serving, caplog):
    *_, fault, eos = await heard_of_two(serving, new_streams(), OneSessionError("it died"))
    message = "the model failed, which has ended this session: it died"
    assert (fault.code, fault.message, eos.reason) == ("engine", message, "error")
    assert not [record for record in caplog.records if record.exc_info]
    assert "session long: it died" in caplog.messages


class Starving(ScriptedRecognizer):
    """Has too little memory for the first `n` windows of the first session."""

    def __init__(self, n: int, error: Exception) -> None:
        super().__init__()
        self._n, self._error = n, error

    def recognize(self, window: Window) -> Hypothesis:
        self._n -= 1
        if self._n >= 0:
            raise self._error
        return super().recognize(window)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        EngineMemoryError("ONNX Runtime found too little memory"),
    ],
)
async def test_too_little_memory_delays_a_session_and_loses_nothing(serving, monkeypatch, error):
    monkeypatch.setattr("streamd.streams.scheduler.MEMORY_PAUSE_S", 0)
    streams = new_streams()
    serving(streams, Starving(4, error))
    stream = streams.open("s")
    with stream.hub.subscribe() as heard:
        stream.feed(scripted_audio(SPEECH))
        await stream.finish("stop")
        faults = [event async for event in heard if isinstance(event, Fault)]
    assert [(fault.code, fault.fatal) for fault in faults] == [("memory", False)]
    assert [final.text for final in await finals(stream)] == [SAID]


async def test_if_there_is_too_little_memory_for_long_the_session_can_be_resumed(
    serving, monkeypatch, tmp_path
):
    monkeypatch.setattr("streamd.streams.scheduler.MEMORY_PAUSE_S", 0)
    with Database(tmp_path) as folder:
        streams = new_streams(storage=SessionStorage(folder))
        running = serving(streams, Starving(10**6, MemoryError()))
        stream = streams.open("s")
        heard = stream.hub.subscribe()
        stream.feed(scripted_audio(SPEECH))
        await stream.finish("stop")
        *_, fault, eos = [event async for event in heard]
        assert (fault.code, fault.fatal, eos.reason) == ("memory", True, "error")
        assert not running.done()
        journal = folder.recall("s")
        assert (journal.epoch, journal.ended) == (stream.hub.epoch, "")


async def test_a_listener_that_comes_back_learns_the_newest_thousand_turns_with_a_journal_too(
    tmp_path,
):
    with Database(tmp_path) as folder:
        hub = new_streams(storage=SessionStorage(folder)).open("s").hub
        for n in range(1200):
            start_ms, end_ms = 3000 * n, 3000 * n + 900
            turn_of_one = SpeakerTurn(start_ms=start_ms, end_ms=end_ms, speaker=1)
            hub.publish(SpeakerTurns(start_ms=start_ms, end_ms=end_ms + 2100, turns=(turn_of_one,)))
            hub.publish(
                Final(
                    seg=n + 1, seq=0, start_ms=start_ms, end_ms=end_ms, text="Yes.", language="en"
                )
            )
        with hub.subscribe(1) as late:
            told = late.pop()
        assert isinstance(told, SpeakerTurns)
        assert [told.turns[0].start_ms, len(told.turns)] == [600_000, 1000]


async def test_a_bug_in_one_window_ends_its_session_only(serving, caplog):
    streams = new_streams()
    assert_only_this_one_ended(await heard_of_two(serving, streams, ValueError("a bug")), caplog)
    assert streams.unready() == []
    again = streams.open("long")
    again.feed(scripted_audio(SPEECH))
    await again.finish("stop")
    assert [f.text for f in await finals(again)] == [SAID]


@pytest.mark.parametrize("method", ["next_window", "accept"])
async def test_a_bug_in_the_state_of_a_session_ends_it_only(method, serving, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    streams = new_streams()
    broken, other = streams.open("broken"), streams.open("other")
    monkeypatch.setattr(broken.session, method, fail)
    serving(streams, ScriptedRecognizer())
    heard = asyncio.create_task(collect(broken))
    await turn()
    for stream in (broken, other):
        stream.feed(scripted_audio(SPEECH))
    await asyncio.gather(broken.finish("stop"), other.finish("stop"))
    assert_only_this_one_ended(await heard, caplog)
    assert [f.text for f in await finals(other)] == [SAID]


async def test_a_session_that_cannot_take_its_audio_is_over(monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    streams = new_streams()
    stream = streams.open("a")
    heard = asyncio.create_task(collect(stream))
    await turn()
    monkeypatch.setattr(stream.session, "feed", fail)
    with pytest.raises(ValueError, match="a bug"):
        stream.feed(scripted_audio(SPEECH))
    *_, fault, eos = await heard
    assert (fault.code, eos.reason) == ("internal", "error")
    stream.feed(scripted_audio(SPEECH))  # what the client had sent already is dropped
    await stream.finish("stop")
    assert streams.open("a") is not stream


async def test_an_engine_that_does_not_come_back_is_dead():
    class Hanging:
        def __init__(self) -> None:
            self.go = threading.Event()

        def recognize(self, window: Window) -> Hypothesis:
            self.go.wait()
            return Hypothesis(words=(), tokens=())

    streams, engine = new_streams(deadline_s=0.01), Hanging()
    stream = streams.open("a")
    heard = asyncio.create_task(collect(stream))
    await turn()
    stream.feed(scripted_audio(SPEECH))
    # Another one that lives does not hide it; and nobody waits for the thread.
    with pytest.raises(EngineError, match="not finished a window") as failure:
        await streams.transcribe(engine, ScriptedRecognizer())
    streams.fail(failure.value)
    *_, fault, eos = await heard
    assert (fault.code, fault.fatal, eos.reason) == ("engine", True, "error")
    engine.go.set()


async def test_an_engine_that_takes_its_time_lives(serving):
    streams = new_streams(deadline_s=30)
    serving(streams, Stalling(0.02))
    stream = streams.open("a")
    stream.feed(scripted_audio(SPEECH))
    await stream.finish("stop")
    assert [f.text for f in await finals(stream)] == [SAID]


async def collect(stream: Stream) -> list:
    with stream.hub.subscribe() as events:
        return [event async for event in events]


async def test_a_session_has_one_speaker_and_there_is_a_limit(serving):
    streams = new_streams(max_ingest=2)
    serving(streams, ScriptedRecognizer())
    streams.add("live")
    first = streams.open("a")
    with pytest.raises(WireError, match="already") as busy:
        streams.open("a")
    assert busy.value.code == "session_busy"
    streams.open("b")
    with pytest.raises(WireError) as full:
        streams.open("c")
    assert full.value.code == "too_many_streams"
    await first.finish("stop")
    assert streams.open("a") is not first
    assert "session live: 0 finals" in "\n".join(streams.state())


async def test_an_ended_session_can_still_be_heard_for_a_while(serving):
    streams = new_streams()
    serving(streams, ScriptedRecognizer())
    for i in range(20):
        stream = streams.open(f"s{i}")
        stream.feed(scripted_audio(SPEECH))
        await stream.finish("stop")
    streams.forget()
    names = [f"s{i}" for i in range(4, 20)]
    assert streams.names() == names
    assert streams.hub("s0") is None
    assert [event async for event in streams.hub("s4").subscribe(0)][-1] == Eos(
        seq=1, reason="stop"
    )
    assert streams.state() == []  # their audio and all that belongs to it is gone
    streams.open("s4")
    assert streams.names() == [name for name in names if name != "s4"] + ["s4"]


async def test_waiting_for_space_does_not_wait_for_a_session_that_must_hear_more(serving):
    """With --step 0 nothing is due before the speaker pauses, however long that takes."""
    streams = new_streams(max_backlog=100, step=0)
    stream = streams.add("live")
    serving(streams, ScriptedRecognizer())
    speech = [True] * 1000 + [False] * 100
    for start in range(0, len(speech), 50):
        await stream.wait_for_space()
        stream.feed(scripted_audio(speech)[start : start + 50])
    await stream.finish("end")
    assert len(await finals(stream)) == 1


async def test_waiting_for_space_waits_for_the_engine(serving):
    streams = new_streams(max_backlog=100)
    stream = streams.add("live")
    stream.feed(scripted_audio([True] * 200))
    waiting = asyncio.create_task(stream.wait_for_space())
    await turn()
    assert not waiting.done()
    serving(streams, ScriptedRecognizer())
    await waiting


async def test_pausing_leaves_audio_out_and_says_so(serving):
    class Script:
        """A live source that pauses in the middle."""

        name, live, duration_ms = "script", True, None

        def __init__(self, control: Control) -> None:
            self._control = control

        async def __aiter__(self):
            yield scripted_audio(SPEECH)[:100]
            self._control.toggle_pause()
            yield np.ones((50, 320), np.float32)
            self._control.toggle_pause()
            yield np.zeros((10, 320), np.float32)

        def stop(self) -> None: ...

    streams, control = new_streams(), Control()
    serving(streams, ScriptedRecognizer())
    stream = streams.add("live")
    heard = asyncio.create_task(collect(stream))
    await turn()
    await pump(Script(control), stream, control)
    await stream.finish("end")
    events = [event for event in await heard if isinstance(event, Final | Gap)]
    assert isinstance(events[0], Final), "what was said before the pause is final at once"
    assert events[1:] == [Gap(t_ms=2000, duration_ms=1000, why="paused")]
    assert stream.session.now == 160


async def test_nobody_is_woken_before_a_window_is_due():
    woken = []
    quiet = np.random.default_rng(7).standard_normal((500, FRAME)) * 1e-3
    context = StreamContext(
        lambda _: build.new_session(load({"model": "tiny.en"}, {})),
        Metrics(version="", model=""),
        max_backlog=500,
        wake=lambda: woken.append(1),
        failed=pytest.fail,
        choose=pytest.fail,
        learn=pytest.fail,
    )
    stream = Stream(context, Hub("s"))
    stream.begin()
    for frame in quiet.astype(np.float32):
        stream.feed(frame[None])
    assert (woken, stream.due_since) == ([], None)
    for frame in recorded.frames(recorded.samples())[:150]:
        stream.feed(frame[None])
    assert woken
    assert stream.next_window() is not None
