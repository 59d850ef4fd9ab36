"""Sessions on NATS: two nodes in one process, and a server that is killed."""

import asyncio
import json
import shutil
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from nats.errors import TimeoutError as NoAnswerError
from websockets.asyncio.client import connect

from streamd.errors import ConfigError, WireError
from streamd.events import EndReason, Eos, Fault, Final, Gap, Missed, Partial
from streamd.options import Choices
from streamd.streams import SessionStorage, Streams
from streamd.streams.hub import Subscription
from streamd.streams.journal import bus
from streamd.streams.journal.bus import Bus
from streamd.streams.journal.jetstream import LEASES, LOG, JetStream, OvertakenError
from streamd.streams.journal.journals import JournalError
from streamd.streams.stream import Stream
from streamd.types import FRAME_MS, Frames
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session
from tests.support.loop import turn
from tests.support.nats import Nats
from tests.support.serving import Client, Relay, client, serving

# When a server greets too late, on a busy machine, the library leaves that connection to the
# garbage collector and makes another one.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)
SECRET = "5ec4e7"
SPEECH = [False] * WORD + [True] * (5 * WORD) + [False] * 60


@pytest.fixture
async def nats(tmp_path):
    async with Nats(tmp_path / "nats") as server:
        yield server


class Node:
    """The sessions of one process; a context manager, which may `die` before its end."""

    def __init__(self, nats: Nats, *, resume_s: float = 3600.0) -> None:
        self.stream = JetStream(nats.url, days=1, replicas=1)
        self.bus = Bus(self.stream, resume_s=resume_s)
        self.streams = Streams(
            lambda _: scripted_session(),
            max_backlog=500,
            max_ingest=8,
            storage=SessionStorage(self.bus),
        )

    async def __aenter__(self):
        work = self.streams.keep(), self.streams.transcribe(ScriptedRecognizer())
        self._tasks = [asyncio.create_task(each) for each in work]
        await turn()  # they begin
        return self

    async def __aexit__(self, *_):
        await self.die()

    async def die(self) -> None:
        """Stop without a word to anybody."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_alive(self) -> bool:
        return not any(task.done() for task in self._tasks)

    async def end(self) -> Exception:
        """Return the error with which the node ends by itself."""
        await asyncio.wait([self._tasks[0]])
        error = self._tasks[0].exception()
        assert isinstance(error, ExceptionGroup)
        return error.exceptions[0]

    async def open(self, session: str = "talk", *, epoch: str = "", secret: str = "") -> Stream:
        await self.streams.prepare(session, feeds=True, epoch=epoch, secret=secret)
        stream = self.streams.open(session, epoch=epoch or None, secret=secret)
        await stream.choose({}, secret=secret or SECRET)
        await stream.stored()
        if stream.is_resumed:
            stream.feed(sent_again(stream))
        return stream

    async def said(self, session: str = "talk") -> Stream:
        """A session in which something was said."""
        stream = await self.open(session)
        await say(stream)
        return stream

    async def listen(self, session: str = "talk", after: int | None = 0) -> Subscription:
        await self.streams.prepare(session)
        hub = self.streams.hub(session)
        assert hub is not None
        return hub.subscribe(after)


@asynccontextmanager
async def nodes(nats: Nats, n: int = 2, **options: float):
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Node(nats, **options)) for _ in range(n)]


def sent_again(stream: Stream) -> Frames:
    """Return what a client sends again although it is finalised: silence, for the gate here."""
    n = (stream.hub.journal.finalised_ms - stream.began_ms) // FRAME_MS
    return scripted_audio([False] * n)


def more(stream: Stream, speech: list[bool] = SPEECH) -> Frames:
    """Return audio that follows what the stream has heard."""
    n_heard = stream.session.now
    return scripted_audio([False] * n_heard + speech)[n_heard:]


async def say(stream: Stream) -> None:
    stream.feed(more(stream))
    await stream.flush()


def told_if_replaced(stream: Stream) -> asyncio.Event:
    """Return an event that is set once the stream hears that another node has its session."""
    replaced = asyncio.Event()
    stream.when_moved = replaced.set
    return replaced


async def finals(heard: Subscription, n: int) -> list[Final]:
    found: list[Final] = []
    async for event in heard:
        assert not isinstance(event, Gap)
        if isinstance(event, Final):
            found.append(event)
        if len(found) == n:
            break
    return found


async def finalised(stream: Stream) -> int:
    """Return the time before which the client need not keep audio, after ten seconds' silence."""
    stream.feed(more(stream, [False] * 1000))
    stream.finalise()
    await stream.stored()
    return stream.finalise()


async def test_a_listener_of_any_node_hears_the_same(nats):
    async with nodes(nats) as (a, b):
        stream = await a.said()
        early = await b.listen()
        await say(stream)
        partial = Partial(seg=9, rev=1, start_ms=0, end_ms=9, text="?", stable=0)
        stream.hub.publish(partial)
        late = await b.listen(after=1)
        while await anext(late) != partial:
            pass
        late = await b.listen(after=1)
        here = await a.listen()
        await stream.finish("stop")
        heard = [[event async for event in each] for each in (here, early, late)]
        told = [[e for e in each if isinstance(e, Final)] for each in heard]
        assert [final.seq for final in told[0]] == [1, 2]
        assert told[1] == told[0]
        assert told[2] == told[0][1:]
        assert all(each[-1] == Eos(seq=2, reason="stop") for each in heard)
        over = await b.listen()  # who comes when all is over
        assert [event async for event in over] == [*told[0], Eos(seq=2, reason="stop")]
        assert b.streams.hub("talk").started == stream.hub.started


async def until_it_lags(node: Node, stream: Stream, saying: asyncio.Task[object]) -> None:
    """Wait until all is transcribed, and the node tells for how long it could not store it."""
    while not (stream.session.idle and node.streams.unready() and stream.lag_ms > 0):
        await asyncio.wait([saying], timeout=0.05)


async def test_nobody_sees_a_final_that_is_not_stored(nats):
    async with nodes(nats, 1) as (a,):
        stream = await a.said()
        heard = await a.listen(after=1)
        before_ms = await finalised(stream)
        await nats.kill()
        stream.feed(more(stream))
        saying = asyncio.create_task(stream.flush())
        await until_it_lags(a, stream, saying)
        assert stream.finalise() == before_ms
        assert stream.hub.seq == 1
        assert not any(isinstance(event, Final) for event in iter(heard.pop, None))
        assert "the bus nats://127.0.0.1" in a.streams.unready()[0]
        await nats.start()
        await saying
        assert [final.seq for final in await finals(heard, 1)] == [2]
        assert await finalised(stream) > before_ms
        assert not a.streams.unready()


async def test_another_node_goes_on_where_the_dead_one_was(nats):
    async with nodes(nats) as (a, b):
        first = await a.open()
        heard = await b.listen()
        await say(first)
        finalised_ms = first.session.finalised_ms
        first.feed(more(first, [False] * 10 + [True] * 30))  # is lost with the node
        await a.die()
        second = await b.open(epoch=first.hub.epoch, secret=SECRET)
        assert (second.hub.epoch, second.is_resumed) == (first.hub.epoch, True)
        assert second.began_ms < finalised_ms == second.session.now_ms
        await say(second)
        one, two = await finals(heard, 2)
        assert (one.seq, two.seq) == (1, 2)
        assert two.seg > one.seg + 1
        assert two.start_ms - finalised_ms == one.start_ms


async def test_who_has_lost_a_session_is_refused_and_its_listeners_hear_the_other(nats):
    async with nodes(nats) as (a, b):
        zombie = await a.said()
        heard = await a.listen()
        replaced = told_if_replaced(zombie)
        other = await b.open(epoch=zombie.hub.epoch, secret=SECRET)
        zombie.feed(more(zombie))
        await zombie.flush()
        await replaced.wait()
        await say(other)
        assert await finals(heard, 2) == await finals(await b.listen(), 2)
        assert zombie.finalise() == 0
        assert a.streams.hub("talk") is zombie.hub
        # And back: its client may come to the first node again.
        third = await a.open(epoch=zombie.hub.epoch, secret=SECRET)
        await say(third)
        assert [final.seq for final in await finals(await b.listen(), 3)] == [1, 2, 3]


async def test_a_node_hears_that_a_session_is_fed_elsewhere_while_its_client_is_away(nats):
    async with nodes(nats) as (a, b):
        first = await a.said()
        replaced = told_if_replaced(first)
        await b.open(epoch=first.hub.epoch, secret=SECRET)
        for _ in range(bus._QUIET_BEATS + 1):
            await a.bus._beat()
        assert replaced.is_set()


async def test_a_session_that_stores_something_is_not_asked_for(nats, monkeypatch):
    async with nodes(nats, 1) as (a,):
        stream, asked = await a.open(), []
        newest = a.stream.newest

        async def noted(subject):
            asked.append(subject)
            return await newest(subject)

        monkeypatch.setattr(a.stream, "newest", noted)
        channel = a.bus._channels["talk"]
        async with channel.lock:  # the beats of the node itself leave it alone
            for n_asked in range(2):
                await say(stream)
                for _ in range(bus._QUIET_BEATS):
                    await a.bus._look_after("talk", channel)
                assert len(asked) == n_asked
                await a.bus._look_after("talk", channel)
                assert asked == [LEASE] * (n_asked + 1)


async def test_a_session_is_not_dropped_while_it_is_looked_up(nats):
    async with nodes(nats) as (a, b):
        await a.open()
        await b.streams.prepare("talk")
        channel = b.bus._channels["talk"]
        async with channel.lock:
            await b.bus._beat()
        assert not channel.journal.closed
        await b.bus._beat()  # nobody wanted it
        assert "talk" not in b.bus._channels


@asynccontextmanager
async def cut_off(nats: Nats):
    """Two nodes, of which the first reaches NATS over a line, and the line."""
    async with Relay(nats.port) as line:
        far = SimpleNamespace(url=f"nats://127.0.0.1:{line.port}")
        async with Node(far) as a, Node(nats) as b:
            yield a, b, line


def part(line: Relay) -> None:
    line.n_to_drop = sys.maxsize
    line.cut()


async def test_a_node_that_cannot_reach_nats_for_a_while_goes_on(nats):
    async with cut_off(nats) as (a, b, line):
        stream = await a.said()
        heard = await b.listen()
        part(line)
        stream.feed(more(stream))
        saying = asyncio.create_task(stream.flush())
        await until_it_lags(a, stream, saying)
        assert [final.seq for final in await finals(heard, 1)] == [1]
        with pytest.raises(WireError):  # nobody else can feed it
            await b.open(secret="guess")
        line.n_to_drop = 0
        await saying
        assert [final.seq for final in await finals(heard, 1)] == [2]


async def test_whose_session_was_taken_while_it_could_not_reach_nats_stores_nothing(nats):
    async with cut_off(nats) as (a, b, line):
        first = await a.said()
        replaced = told_if_replaced(first)
        part(line)
        first.feed(more(first))
        saying = asyncio.create_task(first.flush())
        second = await b.open(epoch=first.hub.epoch, secret=SECRET)
        await say(second)
        line.n_to_drop = 0
        await replaced.wait()
        await saying
        told = await finals(await b.listen(), 2)
        assert [final.seq for final in told] == [1, 2]
        assert await finals(await a.listen(), 2) == told
        assert a.streams.hub("talk") is first.hub
        while a.streams.unready():
            await turn()


async def test_nobody_else_feeds_a_session_meanwhile(nats):
    async with nodes(nats) as (a, b):
        stream = await a.said()
        for secret in ("", "guess"):
            with pytest.raises(WireError) as busy:
                await b.open(epoch=stream.hub.epoch, secret=secret)
            assert busy.value.code == "session_busy"
        await a.die()
        with pytest.raises(WireError):  # its client may still come
            await b.open()
        assert (await b.open(epoch=stream.hub.epoch, secret=SECRET)).is_resumed


async def test_who_does_not_come_back_makes_room(nats):
    async with nodes(nats, 3, resume_s=0.0) as (a, b, c):
        stream = await a.said()
        heard = await c.listen()
        stream.end(EndReason.SHUTDOWN, resumable=True)
        await a.streams.kept()
        other = await b.open(secret="")
        assert other.hub.epoch != stream.hub.epoch
        assert isinstance([event async for event in heard][-1], Eos)
        await say(other)
        assert (await c.listen()) is not None
        assert c.streams.hub("talk").epoch == other.hub.epoch
        with pytest.raises(WireError) as over:
            await c.open(epoch=stream.hub.epoch, secret=SECRET)
        assert over.value.code == "session_over"


@pytest.mark.parametrize(("hours", "resume_s", "is_free"), [(1, 20.0, False), (-1, 0.0, True)])
async def test_who_may_feed_a_session_does_not_depend_on_a_nodes_clock(
    nats, monkeypatch, hours, resume_s, is_free
):
    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    async with nodes(nats, resume_s=resume_s) as (a, b):
        stream = await a.said()
        stream.end(EndReason.SHUTDOWN, resumable=True)
        await a.streams.kept()
        await a.die()
        monkeypatch.setattr(bus, "datetime", Wrong)
        if is_free:
            assert (await b.open()).hub.epoch != stream.hub.epoch
        else:
            with pytest.raises(WireError) as busy:
                await b.open()
            assert busy.value.code == "session_busy"


async def test_numbers_of_finals_that_were_refused_are_given_again(nats):
    async with nodes(nats) as (a, b):
        first = await a.said()
        away = told_if_replaced(first)
        await b.open(epoch=first.hub.epoch, secret=SECRET)
        for _ in range(3):
            final = Final(seg=9, start_ms=0, end_ms=0, text="unstored", language="en")
            first.hub.publish(final)
        await away.wait()
        again = await a.open(epoch=first.hub.epoch, secret=SECRET)
        assert again.hub is first.hub
        await say(again)
        assert [final.seq for final in await finals(await b.listen(), 2)] == [1, 2]


async def test_a_node_that_ends_hands_over_at_once_and_cuts_no_word(nats):
    async with nodes(nats) as (a, b):
        first = await a.said()
        first.feed(more(first, [False] * 10 + [True] * 30))
        await first.finish(EndReason.SHUTDOWN)
        await a.streams.kept()
        assert first.hub.seq == 1
        second = await b.open(epoch=first.hub.epoch, secret=SECRET)
        assert second.is_resumed
        await say(second)
        assert [final.seq for final in await finals(await b.listen(), 2)] == [1, 2]


async def test_what_its_client_has_chosen_holds_at_any_node(nats):
    async with nodes(nats) as (a, b):
        stream = await a.open()
        await b.listen()
        await stream.choose({"language": "fr"}, secret=SECRET)
        await say(stream)
        await finals(await b.listen(), 1)
        assert b.streams.hub("talk").choices == Choices(language="fr")


async def test_of_many_changes_the_first_and_the_newest_are_stored(nats):
    async with nodes(nats) as (a, b):
        stream = await a.open()
        await stream.choose({}, secret=SECRET)
        await a.streams.kept()
        before = stream.hub.journal.at
        for n in range(40):
            await stream.update({"prompt": f"{n}"})
        await a.streams.kept()
        assert stream.hub.journal.at == before + 1
        await say(stream)
        await finals(await b.listen(), 1)
        assert b.streams.hub("talk").choices.prompt == "39"


async def test_sessions_do_not_meet(nats):
    names = ["a", "a.b", "..", ".", "a-b", "A_1", "a."]
    async with nodes(nats) as (a, b):
        for n, name in enumerate(names):
            stream = await a.open(name)
            for _ in range(n % 3):
                await say(stream)
        for n, name in enumerate(names):
            heard = await b.listen(name)
            assert b.streams.hub(name).seq == n % 3
            heard.close()


async def test_a_message_whose_answer_is_lost_is_stored_once(nats, monkeypatch):
    stream = JetStream(nats.url, days=1, replicas=1)
    connected = asyncio.Event()

    async def beat() -> None:
        connected.set()

    task = asyncio.create_task(stream.run(beat))
    await connected.wait()
    subject, publish, sent = f"{LOG}.talk.e1", stream._js.publish, []

    async def deaf(*args, **options):
        sent.append(await publish(*args, **options))
        if len(sent) == 1:
            raise NoAnswerError
        return sent[-1]

    with monkeypatch.context() as line:
        line.setattr(stream._js, "publish", deaf)
        first = await stream.put(subject, b"1", last=0)
    assert {answer.seq for answer in sent} == {first}
    second = await stream.put(subject, b"2", last=first)
    with pytest.raises(OvertakenError):
        await stream.put(subject, b"3", last=first)
    found = [each.data for each in await stream.following(subject, 0)]
    assert found == [b"1", b"2"]
    assert await stream.following(subject, second) == []
    task.cancel()
    await asyncio.wait([task])


async def test_a_client_is_told_that_another_node_took_its_place(nats):
    """Over websockets: the secret of one node's ``hello`` is good at another."""
    query, start = "role=both&session=talk", {"type": "start", "samples": 0}
    start["encoding"] = "pcm_f32le"
    async with (
        nodes(nats) as (a, b),
        serving(a.streams) as here,
        serving(b.streams) as there,
        client(here.port, query) as first,
    ):
        told = (await first.get())["epoch"]
        await first.say(start)
        await first.until("started")
        async with client(there.port, f"{query}&epoch={told}") as second:
            assert (await second.get())["epoch"] == told
            await second.say(start)
            assert (await second.get()) == {"type": "started", "samples": 0}
            await first.say(scripted_audio(SPEECH).tobytes())
            *_, fault = await first.rest()
            assert (fault["code"], first.close_code) == ("replaced", 4409)
        async with client(here.port, f"{query}&epoch={told}") as third:
            assert (await third.get())["epoch"] == told


async def test_who_is_connected_to_a_node_that_ends_is_sent_to_another_one(nats):
    """Without ``eos``, since the session goes on."""
    async with nodes(nats) as (a, b), serving(b.streams) as there:
        async with serving(a.streams) as here:
            address = f"ws://127.0.0.1:{here.port}/v1/stream?session=talk"
            speaker = Client(await connect(f"{address}&role=both"))
            told = (await speaker.get())["epoch"]
            await speaker.say({"type": "start", "samples": 0})
            await speaker.until("started")
            listener = Client(await connect(address))
            await listener.get()
        for closed in (speaker, listener):
            assert "eos" not in [message["type"] for message in await closed.rest()]
            assert closed.close_code == 1012
        async with client(there.port, f"role=both&session=talk&epoch={told}") as speaker:
            assert (await speaker.get())["epoch"] == told


async def write(stream: Stream, data: bytes) -> None:
    """Write into the session's log what this version would not."""
    journal = stream.hub.journal
    journal.at = await journal._stream.put(journal._subject, data, last=journal.at)


NEWER = {"type": "chapter", "title": "one"}
NO_LINES = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"[" * 100_000,
    b'{"event":' * 50_000,
    b'{"event":{"type":"chapter"},"newer":' + b"[" * 100_000,
    b'{"event":{"type":"final"}}',
    b'{"settled_ms":"x"}',
]


@pytest.mark.parametrize("data", [json.dumps({"event": NEWER, "newer": 1}).encode(), *NO_LINES])
async def test_a_line_that_nobody_here_can_read_is_passed_over(nats, caplog, data):
    async with nodes(nats, 3) as (a, b, c):
        stream, other = await a.open(), await a.open("other")
        early, beside = await b.listen(), await b.listen("other")
        await say(stream)
        await write(stream, data)
        await b.bus._beat()
        await say(stream)
        await write(stream, data)
        await say(other)
        assert [final.seq for final in await finals(early, 2)] == [1, 2]
        assert [final.seq for final in await finals(beside, 1)] == [1]
        await a.die()
        second = await c.open(epoch=stream.hub.epoch, secret=SECRET)
        await say(second)
        for heard in (early, await c.listen(after=2)):
            assert [final.seq for final in await finals(heard, 1)] == [3]
        assert (b.is_alive, c.is_alive) == (True, True)
    complaints = [line for line in caplog.text.splitlines() if "passed over" in line]
    assert len(complaints) == 2 * (data in NO_LINES)  # of each node that read it
    assert all(f"{LOG}.talk." in line for line in complaints)


async def test_a_final_that_nobody_here_can_read_is_missing_and_nothing_is_doubled(nats):
    async with nodes(nats) as (a, b):
        stream = await a.open()
        await b.listen()
        await say(stream)
        await write(stream, b'{"event":{"type":"final","seq":2}}')
        stream.hub.seq = stream.hub._numbered = stream.hub.journal.seq = 2
        await say(stream)
        heard = await b.listen(after=0)
        while b.streams.hub("talk").seq < 3:
            await turn()
        hub = b.streams.hub("talk")
        for after, n_recent in ((0, 2), (1, 2), (0, 1), (0, 0)):
            while len(hub._finals) > n_recent:
                hub._finals.popleft()
            events = hub.subscribe(after)
            got = [event for event in iter(events.pop, None) if isinstance(event, Final | Missed)]
            missed = Missed(from_seq=2, to_seq=2, why="retention")
            assert [event.seq for event in got if event != missed] == [1, 3][after:]
            assert got[1 - after] == missed
        heard.close()


@pytest.mark.parametrize(
    "data", [b"\xff", b'{"epoch":"e","at":1,"event":{"type":"newer"}}', b"[" * 9999]
)
async def test_what_is_told_and_nobody_here_can_read_is_passed_over(nats, caplog, data):
    async with nodes(nats) as (a, b):
        stream = await a.open()
        heard = await b.listen()
        await a.stream.publish("streamd_told.talk", data)
        await say(stream)
        assert [final.seq for final in await finals(heard, 1)] == [1]
        assert (b.streams.unready(), b.is_alive) == ([], True)
    assert "wait" not in caplog.text


LEASE = f"$KV.{LEASES}.talk"
NO_LEASES = [
    b"",
    b"\xff",
    b"[" * 100_000,
    json.dumps({"node": "", "epoch": ""}).encode(),
    json.dumps({"node": "n", "epoch": "e" * 500_000}).encode(),
    json.dumps({"node": "a b", "epoch": "e.*"}).encode(),
]


@pytest.mark.parametrize("data", NO_LEASES)
async def test_a_lease_that_cannot_be_read_is_replaced(nats, caplog, data):
    async with nodes(nats) as (a, b):
        await a.stream.put(LEASE, data, last=0)
        await b.streams.prepare("talk")  # as a listener
        assert b.streams.hub("talk") is None
        await b.said()
        assert [final.seq for final in await finals(await a.listen(), 1)] == [1]
    (told,) = [line for line in caplog.text.splitlines() if "lease" in line]
    assert LEASE in told


async def test_a_session_whose_lease_is_overwritten_begins_anew(nats):
    async with nodes(nats) as (a, b):
        first = await a.said()
        heard, replaced = await b.listen(), told_if_replaced(first)
        await a.stream.put(LEASE, b"?", last=a.bus._channels["talk"].revision)
        await a.bus._beat()
        assert (a.is_alive, b.is_alive) == (True, True)
        while not replaced.is_set():
            await finalised(first)  # writes the lease at last
        again = await a.open(epoch=first.hub.epoch, secret=SECRET)
        assert again.hub.epoch != first.hub.epoch
        await say(again)
        assert [final.seq for final in await finals(await b.listen(), 1)] == [1]
        assert isinstance([event async for event in heard][-1], Eos)


async def test_a_session_whose_log_is_gone_begins_anew(nats, tmp_path):
    async with nodes(nats, 1) as (a,):
        first = await a.said()
        replaced = told_if_replaced(first)
        await nats.kill()
        shutil.rmtree(tmp_path / "nats")
        await nats.start()
        async with nodes(nats, 1) as (b,):  # declares the streams again
            first.feed(more(first))
            saying = asyncio.create_task(first.flush())
            await replaced.wait()
            await saying
            second = await a.open(epoch=first.hub.epoch, secret=SECRET)
            assert second.hub.epoch != first.hub.epoch
            await say(second)
            assert [final.seq for final in await finals(await b.listen(), 1)] == [1]


RESUME_STATE = {"start_ms": 20, "until": 1, "anchor": 0}
POISON = [
    {"settled_ms": 100, "past": RESUME_STATE | {"anchor": 10**6}},
    {"settled_ms": 100, "past": RESUME_STATE | {"until": 10**6}},
    {"settled_ms": 100, "past": RESUME_STATE | {"start_ms": -20}},
    {"event": {"type": "fed", "choices": {"task": "evil"}}},
    {"event": {"type": "fed", "choices": {"endpoint_ms": -1}}},
]


@pytest.mark.parametrize("line", POISON)
async def test_values_that_contradict_each_other_begin_the_session_anew(nats, caplog, line):
    async with nodes(nats, resume_s=0.0) as (a, b):
        first = await a.said()
        if "event" in line:
            line["event"]["proof"] = first.hub.journal.fed.proof
        line["settled_ms"] = line.get("settled_ms", 0) + first.hub.journal.finalised_ms
        await write(first, json.dumps(line).encode())
        await a.die()
        second = await b.open(epoch=first.hub.epoch, secret=SECRET)
        assert (second.hub.epoch != first.hub.epoch, second.is_resumed) == (True, False)
        await say(second)
        assert [final.seq for final in await finals(await b.listen(), 1)] == [1]
    assert caplog.text.count("the session starts over") == 1


@asynccontextmanager
async def strict(folder, config: str, *, limit: str = ""):
    store = f'jetstream {{store_dir: "{folder}/nats", {limit}}}'
    (folder / "nats.conf").write_text(f"{store}\n{config}\n")
    async with Nats(folder, "-c", str(folder / "nats.conf"), "-a", "127.0.0.1") as server:
        yield server


async def test_a_line_that_can_never_be_stored_ends_its_session_only(tmp_path, caplog):
    async with strict(tmp_path, "max_payload: 4096") as nats, nodes(nats) as (a, b):
        stream, other = await a.open(), await a.open("other")
        await say(stream)
        here, there = await a.listen(), await b.listen()
        choosing = asyncio.create_task(stream.choose({"prompt": "x" * 3900}, secret=SECRET))
        over = [event async for event in here]
        assert [type(event) for event in over] == [Final, Fault, Eos]
        assert over[1].code == "journal"
        assert "maximum payload" in over[1].message
        await choosing
        assert (stream.is_over, isinstance([event async for event in there][-1], Eos)) == (
            True,
            True,
        )
        await say(other)
        again = await a.open()
        assert again.hub.epoch != stream.hub.epoch
        await say(again)
        assert (a.is_alive, b.is_alive, a.streams.unready()) == (True, True, [])
    assert caplog.text.count("maximum payload") == 1


DENIED = (
    'authorization {users=[{user:u,password:p,permissions:{publish:{deny:["streamd_log.>"]}}}]}'
)


@pytest.mark.parametrize(
    ("config", "limit", "why"),
    [
        ("", "max_file_store: 9000", "insufficient resources"),
        (
            "accounts {A: {jetstream: {max_file: 9000}, users=[{user:u,password:p}]}}",
            "",
            "exceeded",
        ),
        (DENIED, "", "permissions violation"),
    ],
)
async def test_a_node_whose_bus_refuses_to_store_ends(tmp_path, config, limit, why):
    async with strict(tmp_path, config, limit=limit) as nats:
        nats.url = nats.url.replace("//", "//u:p@")
        async with nodes(nats, 1) as (a,):
            speaking = asyncio.create_task(speak_on(a))
            error = await a.end()
            speaking.cancel()
            await asyncio.wait([speaking])
            with pytest.raises(JournalError, match="refuses"):  # the engine serves nobody any more
                await a._tasks[1]
        assert str(error).startswith(f"the bus nats://127.0.0.1:{nats.port} refuses")
        assert why in str(error)


async def speak_on(node: Node) -> None:
    stream = await node.open()
    while not stream.is_over:
        await say(stream)


async def test_a_full_stream_is_refused(nats):
    async with nodes(nats, 1) as (a,):
        await a.stream._declared.wait()
        config = (await a.stream._js.stream_info(LOG)).config
        config.max_bytes, config.discard = 4000, "new"
        await a.stream._js.update_stream(config)
        speaking = asyncio.create_task(speak_on(a))
        assert "maximum bytes exceeded" in str(await a.end())
        speaking.cancel()
        await asyncio.wait([speaking])


@pytest.mark.parametrize(
    "url",
    [
        "nats://me:pa#5ecret@h:1",
        "nats://me:5e,cret@h:1",
        "me:5e,cret@h:port",
        "nats://me:5ecret@h:port",
        "nats://h:1,nats://me:5ecret@",
    ],
)
async def test_a_bus_without_an_address_is_named_without_its_password(url):
    stream = JetStream(url, days=1, replicas=1)
    with pytest.raises(ConfigError, match="--bus") as refused:
        await stream.run(turn)
    for told in (str(refused.value), stream.trouble):
        assert not any(part in told for part in ("5e", "cret", "pa#"))


@pytest.mark.parametrize("password", ["secret", "se/cret", "se,cret", "se@cret", "s:e?c#ret"])
def test_no_client_is_told_the_password_of_the_bus(password):
    url = f"nats://me:{password}@127.0.0.1:1,nats://me:{password}@h/"
    told = "the bus nats://127.0.0.1:1,nats://h/ does not answer: it is not connected"
    assert JetStream(url, days=1, replicas=1).trouble == told
