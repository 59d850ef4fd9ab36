"""Speakers, listeners and strangers that say anything at any time, in any order.

A model of docs/protocol.md follows what each may expect. Whatever happens, the documented error
comes, a witness on another session gets everything, and in the end nothing is left over.
"""

import asyncio
import functools
import json
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from urllib.parse import urlencode

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamd.events import Final, Stats
from streamd.server.wire import CLOSE_CODES
from tests.support.serving import Client, CountingStreams, client, serving

MOST_BYTES = 4096
N_BYTES = {"pcm_s16le": 2, "pcm_f32le": 4}
DEFAULTS = {"encoding": "pcm_s16le", "rate": 16000, "channels": 1}

names = st.sampled_from(["a", "b", "CON", "live"])
which = st.integers(0, 3)
other_rates = st.sampled_from([4000, 8000, 16000, 44100, 192000])
audio = st.fixed_dictionaries(
    {},
    optional={
        "encoding": st.sampled_from(sorted(N_BYTES)),
        "rate": other_rates,
        "channels": st.integers(1, 8),
        "later": st.integers() | st.text(max_size=3),  # a field of a newer protocol
    },
)
nothings = st.none() | st.floats(allow_nan=False) | st.text(max_size=5) | st.lists(st.none())
values = st.recursive(nothings | st.booleans(), lambda inner: st.lists(inner, max_size=3))
wrong = st.one_of(
    st.sampled_from(
        [
            *("", "nonsense", "{}", "[]", "null", '{"type":"sing"}', '{"type":["stop"]}', "\0"),
            '{"type":"hello"}',
            '{"type":"stop"}{"type":"stop"}',
            '{"type":"start","samples":9007199254740993}',
            '{"type":"start","samples":-1}',
            '{"type":"start","samples":1' + "0" * 400 + "}",
            '{"type":"start","rate":1e99999}',
            '{"type":"start","channels":9}',
            '{"type":"start","encoding":"mp3"}',
            '{"type":"flush","id":"' + "x" * 201 + '"}',
            '{"type":"flush","id":"\\ud800"}',
            "[" * 4000,
            '{"x":' * 600,
            '{"type":"stop","x":' + "[" * 2000 + "]" * 2000 + "}",
        ]
    ),
    values.map(json.dumps),
    values.filter(lambda value: not isinstance(value, str)).map(
        lambda value: json.dumps({"type": "flush", "id": value})
    ),
    st.sampled_from(["rate", "channels", "samples", "encoding"]).flatmap(
        lambda name: (
            st.floats(allow_nan=False, allow_infinity=False)
            .filter(lambda value: value % 1)
            .map(lambda value: json.dumps({"type": "start", name: value}))
        )
    ),
    # A message that was cut off anywhere.
    st.tuples(st.sampled_from(["start", "flush", "stop"]), st.integers(0, 30)).map(
        lambda cut: json.dumps({"type": cut[0], "x": [1, {}, "é"]})[: cut[1]]
    ),
)


@dataclass
class Voice:
    """One who feeds a session, as the model knows it."""

    client: Client
    stack: AsyncExitStack
    session: str
    epoch: str
    role: str
    start: dict[str, object] | None = None
    introduced: bool = False
    heard: int = 0
    """Samples, if all that was sent arrived."""
    acked: int = 0
    sure: bool = True
    """Whether nothing can have been lost on the way."""
    others: list[str] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        return self.start is not None and self.start.get("samples") is not None

    async def until(self, kind: str) -> dict[str, object]:
        """The next message of this type; those in between are none that end anything."""
        *before, last = await self.client.until(kind)
        allowed = {"ack", "lag"} if self.role == "ingest" else {"ack", "partial", "final", "vad"}
        for message in before:
            assert message["type"] in allowed | {"error"}
            if message["type"] == "error":  # of samples that are no numbers, or the field `later`
                known = (
                    {"bad_audio", "unknown_field"}
                    if "later" in (self.start or {})
                    else {"bad_audio"}
                )
                assert (message["code"] in known, message["fatal"]) == (True, False)
            if message["type"] == "ack":
                assert self.acked <= message["samples"] <= self.heard
                self.acked = message["samples"]
        return last


def step(method: Callable[..., Coroutine]) -> Callable[..., None]:
    """A rule that takes place on the machine's event loop."""

    @functools.wraps(method)
    def run(self, **arguments: object) -> None:
        self.runner.run(method(self, **arguments))

    return run


class AnybodySaysAnything(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.speaking: list[Voice] = []
        self.away: list[Voice] = []
        self.over: dict[tuple[str, str], Voice] = {}
        self.sockets: list[socket.socket] = []
        self.seq = 0

    @initialize()
    @step
    async def begin(self) -> None:
        self.streams = CountingStreams()
        self.server = await self.stack.enter_async_context(
            serving(self.streams, max_message_bytes=MOST_BYTES, resume_ms=1_000_000)
        )
        self.witness = await self.stack.enter_async_context(client(self.server.port))
        await self.witness.get()

    async def entered(self, **query: object) -> tuple[AsyncExitStack, Client]:
        stack = AsyncExitStack()
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        return stack, await stack.enter_async_context(client(self.server.port, asked))

    async def refused(self, stack: AsyncExitStack, newcomer: Client, code: str) -> dict:
        """The documented error comes last, and the documented close code."""
        error = (await newcomer.rest())[-1]
        assert (error["type"], error["code"], error["fatal"]) == ("error", code, True)
        assert newcomer.close_code == CLOSE_CODES[code]
        await stack.aclose()
        return error

    async def ended(self, voice: Voice, reason: str, code: str = "") -> None:
        """The connection ends, and the session with it."""
        if code:
            await self.refused(voice.stack, voice.client, code)
        await voice.stack.aclose()
        self.speaking.remove(voice)
        await self.finished(voice, reason)

    async def finished(self, voice: Voice, reason: str) -> None:
        ingest = self.streams.ingests[voice.session]
        await ingest.until(lambda ingest: ingest.finished == reason)
        while not ingest.hub.closed:
            await self.turn()
        if voice.start is not None:
            self.over[voice.session, voice.epoch] = voice

    async def turn(self) -> None:
        """Let the loop go round until the server has answered."""
        await (await self.witness.connection.ping())

    @rule(role=st.sampled_from(["ingest", "both"]), name=names)
    @step
    async def enter(self, role, name) -> None:
        taken = {voice.session for voice in (*self.speaking, *self.away)}
        stack, newcomer = await self.entered(role=role, session=name)
        if name == "live" or name in taken:
            await self.refused(stack, newcomer, "session_busy")
            return
        hello = await newcomer.get()
        assert (hello["type"], hello["session"], hello["seq"]) == ("hello", name, 0)
        self.speaking.append(Voice(newcomer, stack, name, str(hello["epoch"]), role))

    def voice(self, number: int) -> Voice:
        return self.speaking[number % len(self.speaking)]

    @precondition(lambda self: self.speaking)
    @rule(number=which, said=audio, samples=st.none() | st.integers(0, 2000) | st.just(2**53))
    @step
    async def start(self, number, said, samples) -> None:
        voice = self.voice(number)
        message = said if samples is None else {**said, "samples": samples}
        await voice.client.say({"type": "start", **message})
        if voice.introduced:
            await self.ended(voice, "error", "late_start")
            return
        voice.introduced, voice.start = True, message
        if samples is not None:
            assert (await voice.until("started"))["samples"] == 0

    @precondition(lambda self: self.speaking)
    @rule(number=which, pcm=st.integers(0, 6).map(lambda n: bytes(640 * n)) | st.binary())
    @step
    async def audio(self, number, pcm) -> None:
        voice = self.voice(number)
        await voice.client.say(pcm)
        voice.introduced = True
        voice.start = {} if voice.start is None else voice.start
        said = DEFAULTS | voice.start
        n_samples, rest = divmod(len(pcm), N_BYTES[str(said["encoding"])] * int(said["channels"]))
        if rest:
            await self.ended(voice, "error", "bad_audio")
        else:
            voice.heard += n_samples

    @precondition(lambda self: self.speaking)
    @rule(number=which, identity=st.none() | st.text(max_size=200))
    @step
    async def flush(self, number, identity) -> None:
        voice = self.voice(number)
        await voice.client.say({"type": "flush", **({} if identity is None else {"id": identity})})
        hub = self.streams.ingests[voice.session].hub
        answer = await voice.until("flushed")
        assert answer == {"type": "flushed", "id": identity or "", "seq": hub.seq}

    @precondition(lambda self: self.speaking)
    @rule(number=which, message=wrong)
    @step
    async def nonsense(self, number, message) -> None:
        voice = self.voice(number)
        await voice.client.say(message)
        await self.ended(voice, "error", "bad_message")

    @precondition(lambda self: self.speaking)
    @rule(number=which, rate=st.integers(max_value=3999) | st.integers(192_001, 2**60))
    @step
    async def bad_rate(self, number, rate) -> None:
        voice = self.voice(number)
        await voice.client.say({"type": "start", "rate": max(rate, -(2**60))})
        await self.ended(voice, "error", "bad_rate")

    @precondition(lambda self: self.speaking)
    @rule(number=which, text=st.sampled_from([b"\xff", b'{"type":"\xc3', b"\xed\xa0\x80"]))
    @step
    async def what_is_no_text(self, number, text) -> None:
        await self.broken(self.voice(number), text, 1007)

    @precondition(lambda self: self.speaking)
    @rule(number=which, is_text=st.booleans(), n_more=st.integers(1, 100))
    @step
    async def too_large(self, number, is_text, n_more) -> None:
        await self.broken(self.voice(number), bytes(MOST_BYTES + n_more), 1009, is_text=is_text)

    async def broken(self, voice: Voice, message: bytes, code: int, *, is_text=True) -> None:
        await voice.client.connection.send(message, text=is_text)
        messages = await voice.client.rest()
        assert all(m["type"] != "error" or not m["fatal"] for m in messages)
        assert voice.client.close_code == code
        await self.gone(voice)

    @precondition(lambda self: self.speaking)
    @rule(number=which)
    @step
    async def vanish(self, number) -> None:
        voice = self.voice(number)
        voice.client.connection.transport.abort()
        voice.sure = False
        await self.gone(voice)

    async def gone(self, voice: Voice) -> None:
        """Without a word: the session waits for one who counts."""
        if voice.counts:
            await voice.stack.aclose()
            self.speaking.remove(voice)
            self.away.append(voice)
        else:
            await self.ended(voice, "disconnect")

    @precondition(lambda self: self.away or any(voice.counts for voice in self.speaking))
    @rule(number=which, role=st.sampled_from(["ingest", "both"]), have=st.integers(-500, 500))
    @step
    async def come_back(self, number, role, have) -> None:
        """Also while the old connection seems to be open."""
        known = [*self.away, *(voice for voice in self.speaking if voice.counts)]
        old = known[number % len(known)]
        stack, newcomer = await self.entered(role=role, session=old.session, epoch=old.epoch)
        assert (await newcomer.get())["epoch"] == old.epoch
        if old in self.speaking:
            old.sure = False
            await self.refused(old.stack, old.client, "replaced")
            self.speaking.remove(old)
        else:
            self.away.remove(old)
        voice = Voice(newcomer, stack, old.session, old.epoch, role, start=old.start)
        voice.heard, voice.acked = old.heard, old.acked
        self.speaking.append(voice)
        first = max(0, old.heard + have)
        assert old.start is not None
        await newcomer.say({"type": "start", **old.start, "samples": first})
        at = (await voice.until("started"))["samples"]
        least = old.heard if old.sure else old.acked
        assert max(least, first) <= at <= max(old.heard, first)
        voice.introduced, voice.heard = True, at
        voice.sure = old.sure and at == old.heard

    @precondition(lambda self: any(voice.counts for voice in self.speaking))
    @rule(number=which, first=st.sampled_from([{"channels": 7}, {"rate": 4001}, None, b"\0" * 56]))
    @step
    async def come_back_as_somebody_else(self, number, first) -> None:
        known = [voice for voice in self.speaking if voice.counts]
        old = known[number % len(known)]
        stack, newcomer = await self.entered(role="ingest", session=old.session, epoch=old.epoch)
        await self.refused(old.stack, old.client, "replaced")
        self.speaking.remove(old)
        voice = Voice(newcomer, stack, old.session, old.epoch, "ingest", start=old.start)
        self.speaking.append(voice)
        samples = {"samples": 0} if first is not None else {}
        start = {"type": "start", **samples, **(first if isinstance(first, dict) else {})}
        await newcomer.say(first if isinstance(first, bytes) else start)
        await self.ended(voice, "error", "late_start")

    @precondition(lambda self: self.speaking)
    @rule(number=which, epoch=st.none() | st.text(max_size=9))
    @step
    async def steal(self, number, epoch) -> None:
        session = self.voice(number).session
        await self.refused(
            *await self.entered(role="both", session=session, epoch=epoch), "session_busy"
        )

    @precondition(lambda self: self.over)
    @rule(number=which)
    @step
    async def come_back_too_late(self, number) -> None:
        (session, epoch), voice = list(self.over.items())[number % len(self.over)]
        newcomer = await self.entered(role="ingest", session=session, epoch=epoch)
        error = await self.refused(*newcomer, "session_over")
        rate = int(str((DEFAULTS | (voice.start or {}))["rate"]))
        assert voice.acked * 1000 // rate <= error["heard_ms"] <= voice.heard * 1000 // rate

    @precondition(lambda self: self.speaking)
    @rule(number=which, more=st.lists(wrong | st.binary(max_size=9), max_size=2))
    @step
    async def stop(self, number, more) -> None:
        voice = self.voice(number)
        for message in ({"type": "stop"}, *more):
            await voice.client.say(message)
        ingest = self.streams.ingests[voice.session]
        eos = await voice.until("eos")
        assert eos == {"type": "eos", "seq": ingest.hub.seq, "reason": "stop"}
        assert await voice.client.rest() == []
        assert voice.client.close_code == 1000
        await self.ended(voice, "stop")
        if voice.counts:
            assert voice.acked == voice.heard
        if voice.sure and DEFAULTS["rate"] == (DEFAULTS | (voice.start or {}))["rate"]:
            assert ingest.n_fed >= -(-voice.heard // 320)

    @rule(
        name=names,
        after=st.none() | st.integers(0, 5) | st.just(10**30),
        epoch=st.sampled_from([None, "other", "true"]),
        options=st.fixed_dictionaries(
            {}, optional={n: st.sampled_from(["0", "1"]) for n in ("partials", "words", "stats")}
        ),
        polite=st.booleans(),
    )
    @step
    async def listen(self, name, after, epoch, options, polite) -> None:
        """A replay has no hole; whoever has heard it leaves."""
        hub = self.streams.hub(name)
        true = hub.epoch if hub else ""
        asked = {"after": after, "epoch": true if epoch == "true" else epoch, **options}
        stack, listener = await self.entered(session=name, **asked)
        if hub is None:
            await self.refused(stack, listener, "no_such_session")
            return
        assert (await listener.get())["seq"] == hub.seq
        if after is not None:
            anew = after > hub.seq or epoch == "other"
            if anew:
                missed = {"type": "missed", "from_seq": 0, "to_seq": 0, "why": "epoch"}
                assert await listener.get() == missed
            for seq in range(1 if anew else after + 1, hub.seq + 1):
                assert (await listener.get())["seq"] == seq
        if hub.closed:
            assert (await listener.rest())[-1]["type"] == "eos"
            assert listener.close_code == 1000
        elif not polite:
            listener.connection.transport.abort()
        await stack.aclose()

    @rule(asked=st.booleans())
    @step
    async def statistics(self, asked) -> None:
        """For those who want them."""
        stack, listener = await self.entered(stats=int(asked))
        await listener.get()
        stats = Stats(audio_ms=1, lag_ms=0, lost_ms=0, rtf=0.5, listeners=2)
        self.streams.live.publish(stats)
        self.tell()
        expected = ["stats", "final"] if asked else ["final"]
        assert [m["type"] for m in await listener.until("final")] == expected
        await stack.aclose()
        assert (await self.witness.get())["type"] == "final"

    @rule(message=wrong | st.binary(max_size=9) | st.just('{"type":"stop"}'))
    @step
    async def listener_talks(self, message) -> None:
        stack, listener = await self.entered(session="live")
        await listener.say(message)
        # Whoever may correct words is told what is wrong with a text message.
        is_wrong = isinstance(message, str) and message != '{"type":"stop"}'
        await self.refused(stack, listener, "bad_message" if is_wrong else "not_ingest")

    @rule(
        query=st.sampled_from(["role=", "after=", "partials=", "session=", "stats=", "words="]),
        value=st.sampled_from(["%ff", "..%2f", "-1", "x", "%00", "2" * 65 + "%20", "%F0%9F"]),
    )
    @step
    async def ask_for_the_impossible(self, query, value) -> None:
        stack = AsyncExitStack()
        address = query + value
        if query == "session=" and value in ("-1", "x"):
            address += "%20"  # those are names
        newcomer = await stack.enter_async_context(client(self.server.port, address))
        await self.refused(stack, newcomer, "bad_query")

    @rule(n_bytes=st.integers(0, 60), upgrade=st.booleans(), tail=st.binary(max_size=20))
    @step
    async def half_open(self, n_bytes, upgrade, tail) -> None:
        """Whoever does not go on to speak costs a socket until its time is over."""
        if len(self.sockets) == 5:
            self.sockets.pop(0).close()
        raw = socket.create_connection(("127.0.0.1", self.server.port))
        self.sockets.append(raw)
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        request = f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n{key}".encode()
        raw.sendall(request + tail if upgrade else request[:n_bytes])

    def tell(self) -> None:
        self.seq += 1
        self.streams.live.publish(
            Final(seg=self.seq, start_ms=0, end_ms=20, text="", language="en")
        )

    @invariant()
    def nobody_else_notices(self) -> None:
        if hasattr(self, "witness"):
            self.runner.run(self.hear_from_elsewhere())

    async def hear_from_elsewhere(self) -> None:
        self.tell()
        assert (await self.witness.get())["seq"] == self.seq

    def teardown(self) -> None:
        try:
            if hasattr(self, "witness"):
                self.runner.run(self.leave())
        finally:
            for raw in self.sockets:
                raw.close()
            self.runner.close()

    @property
    def n_open(self) -> int:
        registry = self.server._registry
        pending = [accepted for accepted, _ in registry._pending.values()]
        return len(registry._authorized) + sum(each.fileno() >= 0 for each in pending)

    async def leave(self) -> None:
        """Nothing is left: no connection, no session but those that wait, nothing in a line."""
        while self.speaking:
            voice = self.speaking[0]
            voice.client.connection.transport.abort()
            await self.gone(voice)
        for raw in self.sockets:
            raw.close()
        while self.n_open + len(self.server._connections) > 2:
            await self.turn()
        waiting = {voice.session for voice in self.away}
        while set(self.server._ingests._ingests) != waiting:
            await self.turn()
        assert set(self.server._ingests._waiting) == waiting
        going_on = {n for n, ingest in self.streams.ingests.items() if not ingest.finished}
        assert going_on == waiting
        for hub in (ingest.hub for ingest in self.streams.ingests.values()):
            hub.subscribe().close()
            assert (hub.queued, hub.listeners) <= (0, 1)
        await self.stack.aclose()
        for name in waiting:
            assert self.streams.ingests[name].finished == "shutdown"
        assert asyncio.all_tasks() - {asyncio.current_task()} == set()


TestAnybodySaysAnything = AnybodySaysAnything.TestCase
TestAnybodySaysAnything.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=25
)
