"""Send messages at random to every dialect: to the objects, and over the wire to a real server.

    python -m tests.foreign.fuzz --objects 1000000 --wire 100000

Nothing but `WireError` may be raised, the server may log no bug, and neither may grow. The last
line is what was done, as JSON. What is found belongs into tests/server/test_dialects.py.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from streamd.events import Eos, Fault, Flushed, Gap, Lag, SessionEvent, Stats, Vad
from streamd.server.dialects import DIALECTS, Dialect
from streamd.server.dialects.whisperlive import WhisperLive
from streamd.server.dialects.wyoming import Wyoming
from streamd.server.wire import STREAM_PATH
from tests.support.dialects import check, final, partial

QUERIES = {
    STREAM_PATH: ["role=both", "role=ingest", "role=both&words=0&stats=1"],
    "/v1/listen": [
        "encoding=linear16&sample_rate=16000&interim_results=true&vad_events=true",
        "encoding=mulaw&sample_rate=8000&utterance_end_ms=0&endpointing=false",
        "encoding=linear32&sample_rate=48000&channels=2&keyterm=a&keyterm=b",
    ],
    "/v3/ws": ["sample_rate=16000", "sample_rate=8000&encoding=pcm_mulaw&prompt=a"],
}
"""What a client may ask for; a dialect that is not here is asked for nothing."""
VALID = [
    *(json.dumps({"type": kind}) for kind in ("start", "flush", "stop", "Finalize", "KeepAlive")),
    *(json.dumps({"type": kind}) for kind in ("CloseStream", "Terminate", "ForceEndpoint")),
    '{"type":"start","rate":8000,"channels":2,"encoding":"pcm_f32le"}',
    '{"type":"Configure","keyterms":["a"]}',
    '{"type":"UpdateConfiguration","format_turns":true}',
    '{"config":{"sample_rate":16000,"words":1,"phrase_list":["a"]}}',
    '{"eof":1}',
    '{"reset":1}',
    '{"uid":"me","language":"en","task":"transcribe","send_last_n_segments":3}',
    '{"type":"session.update","session":{"type":"transcription","audio":{"input":{}}}}',
    '{"type":"input_audio_buffer.append","audio":"AAAA"}',
    '{"type":"input_audio_buffer.commit"}',
    '{"type":"input_audio_buffer.clear"}',
    '{"type":"transcribe","data":{"language":"en","transcript_names":["Ada"]}}',
    '{"type":"audio-start","data":{"rate":22050,"width":2,"channels":2}}',
    '{"type":"audio-stop"}',
    '{"type":"audio-chunk","data":{"rate":16000,"width":2,"channels":1}}',
    '{"type":"describe"}',
]
OTHERS: dict[str, Callable[[], Dialect]] = {
    "WhisperLive": lambda: WhisperLive("", "me"),
    "Wyoming": Wyoming,
}
"""Dialects without a path of their own."""
ODD = ["", "{}", "[]", "null", "1e999", '"', "\0", "[" * 5000, '{"type":' * 500, '{"type":{}}']
VALUES = ["null", "true", "-1", "1e400", "0.5", '""', "[]", "{}", '"\\ud800"', "9" * 40]


def message(chance: random.Random) -> str | bytes:
    """A message that is valid, nearly so, or nothing of the kind."""
    match chance.randrange(8):
        case 0 | 1:
            return chance.choice(VALID)
        case 2:  # with another value
            text, value = chance.choice(VALID), chance.choice(VALUES)
            return re.sub(r'(?<=:)("[^"]*"|\d+|\[[^]]*\])', lambda _: value, text, count=1)
        case 3:  # cut off, or with a character of another
            text = chance.choice(VALID)
            at = chance.randrange(len(text))
            return text[:at] + chance.choice(["", chr(chance.randrange(1, 0xD800)), text[at + 1 :]])
        case 4:
            return chance.choice(ODD)
        case 5:
            return chance.choice([b"", b"END_OF_AUDIO", b"\0", b"\xff" * 7])
        case _:
            return chance.randbytes(chance.randrange(200))


def framed(chance: random.Random) -> bytes:
    """A message as Wyoming has it on TCP: a line, and perhaps more; its lengths may be wrong."""
    said = message(chance)
    if isinstance(said, str) and chance.random() < 0.8:
        return said.encode(errors="replace") + b"\n"
    payload = said if isinstance(said, bytes) else said.encode(errors="replace")
    n_bytes = len(payload) if chance.random() < 0.9 else chance.randrange(-2, 300)
    kind = chance.choice(["audio-chunk", "audio-chunk", "transcribe", "describe"])
    head = {"type": kind, chance.choice(["payload_length", "data_length"]): n_bytes}
    return json.dumps(head).encode() + b"\n" + payload


def event(chance: random.Random) -> SessionEvent:
    """An event; its text may be anything."""
    text = " ".join(
        chance.choices(["Turn", "on.", "", "—", "\0", "日本", '"'], k=chance.randrange(5))
    )
    at_ms = chance.randrange(100_000)
    makers: list[Callable[[], SessionEvent]] = [
        lambda: partial(text, at_ms, n_final=chance.randrange(3)),
        lambda: final(text, at_ms),
        lambda: Vad(speech=chance.random() < 0.5, t_ms=at_ms),
        lambda: Flushed(id="", seq=at_ms),
        lambda: Fault(code="engine", message=text, fatal=chance.random() < 0.5),
        lambda: Gap(t_ms=at_ms, duration_ms=20, why="engine"),
        lambda: Lag(lag_ms=at_ms),
        lambda: Stats(audio_ms=at_ms, lag_ms=0, lost_ms=0, rtf=0.1, listeners=0),
        lambda: Eos(seq=0, reason="stop"),
    ]
    return chance.choice(makers)()


def query(chance: random.Random, path: str) -> str:
    text = chance.choice(QUERIES.get(path, [""]))
    if chance.random() < 0.1:  # a wrong one
        text = text.replace(chance.choice("0123456789=&abc"), chance.choice(["", "x", "-1", "%00"]))
    return text


def make(chance: random.Random, name: str) -> Dialect:
    """The dialect at this path, or that of WhisperLive or Wyoming."""
    if name in OTHERS:
        return OTHERS[name]()
    return DIALECTS[name](query(chance, name))


def resident_kb(process: int | str) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1])


def fuzz_objects(n_messages: int, chance: random.Random) -> dict[str, object]:
    """Play conversations until so many messages and events were taken, as many by each dialect."""
    # What streamd.v1 passes on as it is, the session checks.
    n_taken = Counter(dict.fromkeys([*(DIALECTS.keys() - {STREAM_PATH}), *OTHERS], 0))
    first_kb = 0
    while n_taken.total() < n_messages:
        if not first_kb and n_taken.total() >= n_messages // 4:
            first_kb = resident_kb("self")
        name = min(n_taken, key=n_taken.__getitem__)
        steps = [
            message(chance) if chance.random() < 0.6 else event(chance)
            for _ in range(chance.randrange(1, 60))
        ]
        n_taken[name] += check(make(chance, name), steps)
    return {"taken": n_taken, "grown_kb": resident_kb("self") - first_kb}


@dataclass
class Crowd:
    """Clients of a server at these ports, and what they have sent and seen."""

    host: str
    wyoming_port: int
    chance: random.Random
    n_sent: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    async def one(self) -> None:
        """Connect, send what comes to mind, and close or vanish."""
        path = self.chance.choice([*sorted(DIALECTS), "Wyoming"])
        if path == "Wyoming":
            await self._over_tcp()
            return
        url = f"ws://{self.host}{path}?{query(self.chance, path)}"
        async with connect(url, max_queue=None, proxy=None) as connection:
            try:
                for _ in range(self.chance.randrange(1, 60)):
                    await connection.send(message(self.chance))
                    self.n_sent[path] += 1
            except ConnectionClosed:
                pass
            if self.chance.random() < 0.3:
                connection.transport.abort()
        self.codes[str(connection.close_code)] += 1

    async def _over_tcp(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.wyoming_port)
        reading = asyncio.create_task(reader.read())
        with suppress(OSError):
            for _ in range(self.chance.randrange(1, 60)):
                writer.write(framed(self.chance))
                await writer.drain()
                self.n_sent["Wyoming"] += 1
            if self.chance.random() < 0.3:
                writer.transport.abort()
            writer.write_eof()
        await asyncio.wait({reading})
        reading.exception()  # a reset is one
        writer.close()


async def fuzz_wire(n_messages: int, chance: random.Random) -> dict[str, object]:
    """Let clients of all dialects talk to a server at once."""
    program = Path(sys.executable).with_name("streamd")
    server = await asyncio.create_subprocess_exec(
        *(program, "serve", "--port", "0", "--wyoming", "0", "--max-streams", "100"),
        stderr=asyncio.subprocess.PIPE,
    )
    log = ""
    while not (found := re.search(r"ws://([^/]+)/", log)):
        log += (await server.stderr.readline()).decode()
    crowd = Crowd(found[1], int(re.findall(r"Wyoming on \S+ port (\d+)", log)[0]), chance)
    async with connect(f"ws://{crowd.host}/v1/stream?role=both", proxy=None) as connection:
        await connection.send('{"type":"start","language":"en","samples":0}')
        while '"started"' not in await connection.recv():  # once the model is loaded
            pass
    reading = asyncio.create_task(server.stderr.read())
    first_kb = 0

    async def clients() -> None:
        nonlocal first_kb
        while crowd.n_sent.total() < n_messages:
            if not first_kb and crowd.n_sent.total() >= n_messages // 4:
                first_kb = resident_kb(server.pid)
            await crowd.one()

    await asyncio.gather(*(clients() for _ in range(6)))
    grown_kb = resident_kb(server.pid) - first_kb
    n_files = len(os.listdir(f"/proc/{server.pid}/fd"))
    server.terminate()
    told = log + (await reading).decode()
    assert await server.wait() == 0
    assert "Traceback" not in told, told
    assert "1011" not in crowd.codes
    seen = {"sent": crowd.n_sent, "close codes": crowd.codes}
    return {**seen, "grown_kb": grown_kb, "files": n_files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--wire", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", file=sys.stderr)
    chance = random.Random(given.seed)
    told = {"seed": given.seed, "objects": fuzz_objects(given.objects, chance)}
    told["wire"] = asyncio.run(fuzz_wire(given.wire, chance))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
