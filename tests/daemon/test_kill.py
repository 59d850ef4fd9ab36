"""`kill -9` of the daemon at any moment: no final is lost, doubled or altered.

A real daemon, speakers of three protocols, and listeners, who all come back. STREAMD_KILLS says how
often it is killed; CI does it three times.
"""

import asyncio
import importlib.util
import itertools
import os
import random
import signal
import sys
from contextlib import aclosing, suppress
from pathlib import Path

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from streamd.cli.bench import spoken
from streamd.events import Eos, Event, Final, Missed
from streamd.server.client import watch
from streamd.streams.journal.tables import transcript
from streamd.types import SAMPLE_RATE
from tests.support import recorded
from tests.support.nats import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.executable).with_name("streamd"))
N_KILLS = int(os.environ.get("STREAMD_KILLS", "3" if os.environ.get("CI") else "1"))

_spec = importlib.util.spec_from_file_location("speak", ROOT / "clients/python/speak.py")
speak = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(speak)


async def start(port: int, journal: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "serve", "--port", str(port), "--journal", str(journal)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async for line in process.stderr:
        if b"listening on" in line:
            return process
    raise AssertionError(f"streamd ended with {await process.wait()}")


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.communicate()


class Foreign:
    """A speaker of another protocol, which says everything again and again.

    What it had sent before the daemon died is lost: its protocol has no way to resume.
    """

    def __init__(self, session: str, path: str, *, first: str = "", last: str) -> None:
        self.session, self._path, self._first, self._last = session, path, first, last
        self.answered, self.enough = asyncio.Event(), asyncio.Event()

    async def say(self, url: str, pcm: bytes, is_up: asyncio.Event) -> None:
        while True:
            await is_up.wait()
            with suppress(OSError, ConnectionClosed, InvalidMessage):
                async with connect(f"{url}{self._path}", proxy=None, ping_timeout=None) as line:
                    answers = asyncio.create_task(self._hear(line))
                    try:
                        await self._send(line, pcm)
                    finally:
                        await answers
                    return

    async def _send(self, line: ClientConnection, pcm: bytes) -> None:
        if self._first:
            await line.send(self._first)
        for at in itertools.cycle(range(0, len(pcm), 16_000)):
            if self.enough.is_set():
                break
            await line.send(pcm[at : at + 16_000])
        await line.send(self._last)

    async def _hear(self, line: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await line.recv()
                self.answered.set()


async def listen(url: str, session: str, heard: list[Final], news: asyncio.Queue[Event]) -> None:
    address = f"{url}/v1/stream?session={session}"
    async with aclosing(watch(address, after=0, retry_ms=50)) as events:
        async for event in events:
            assert not isinstance(event, Missed)
            news.put_nowait(event)
            if isinstance(event, Final):
                heard.append(event)
            if isinstance(event, Eos) and event.reason == "stop":
                return


async def attended(
    url: str, session: str, heard: list[list[Final]]
) -> tuple[list[asyncio.Task[None]], asyncio.Queue[Event]]:
    """Listen to a session; return once all listeners are connected: before, none comes back."""
    queues: list[asyncio.Queue[Event]] = [asyncio.Queue() for _ in heard]
    tasks = [
        asyncio.create_task(listen(url, session, finals, queue))
        for finals, queue in zip(heard, queues, strict=True)
    ]
    for queue in queues:
        await queue.get()
    return tasks, queues[0]


def check(first: list[Final], second: list[Final], journal: Path, session: str) -> None:
    assert first
    assert [final.seq for final in first] == list(range(1, len(first) + 1))
    assert first == second
    kept = [event for event in transcript(journal, session) if isinstance(event, Final)]
    assert kept == first
    assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(first))


def check_words(finals: list[Final], n_rounds: int, round_ms: int) -> None:
    """Each round has the same words, however many finals they are in: that may depend on load."""
    rounds: list[list[str]] = [[] for _ in range(n_rounds)]
    for final in finals:
        rounds[(final.start_ms + final.end_ms) // 2 // round_ms] += spoken(final.text)
    assert rounds[0]
    assert rounds == rounds[:1] * n_rounds


async def at_random(news: asyncio.Queue[Event], rng: random.Random) -> None:
    """Return at a random event after the first final from now on."""
    while not news.empty():
        news.get_nowait()
    while not isinstance(await news.get(), Final):
        pass
    for _ in range(rng.randrange(8)):
        await news.get()


async def test_no_final_is_lost_doubled_or_altered(tmp_path):
    rng = random.Random(N_KILLS)
    sound = np.pad(recorded.samples("sense_0880", "arctic_a0245"), (0, 2 * SAMPLE_RATE))
    pcm, n_rounds, enough = (sound * 32767).astype("<i2").tobytes(), 0, False
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    process = await start(port, tmp_path)
    begun, is_up = asyncio.Event(), asyncio.Event()
    is_up.set()
    deepgram = "/v1/listen?session=deepgram&encoding=linear16&sample_rate=16000"
    others = (
        Foreign("deepgram", deepgram, last='{"type":"CloseStream"}'),
        Foreign(
            "vosk", "/?session=vosk", first='{"config":{"sample_rate":16000}}', last='{"eof":1}'
        ),
    )
    heard: dict[str, list[list[Final]]] = {
        name: [[], []] for name in ("talk", *(other.session for other in others))
    }
    async with speak.Speaker(url, "talk", on_message=lambda message: begun.set()) as speaker:
        await begun.wait()

        async def say() -> None:
            nonlocal n_rounds
            while not enough:
                n_rounds += 1
                for at in range(0, len(pcm), 32_000):
                    await speaker.send(pcm[at : at + 32_000])
            await speaker.stop()

        speaking = [asyncio.create_task(say())]
        listeners, news = await attended(url, "talk", heard["talk"])
        for other in others:
            speaking.append(asyncio.create_task(other.say(url, pcm, is_up)))
            await other.answered.wait()
            more, _ = await attended(url, other.session, heard[other.session])
            listeners += more
        for _ in range(N_KILLS):
            await at_random(news, rng)
            is_up.clear()
            await kill(process)
            process = await start(port, tmp_path)
            is_up.set()
        enough = True
        for other in others:
            other.enough.set()
        await asyncio.gather(*speaking)
        await asyncio.gather(*listeners)
    process.send_signal(signal.SIGTERM)
    _, complaints = await process.communicate()
    assert (process.returncode, b"Traceback" in complaints) == (0, False)

    for session, (first, second) in heard.items():
        check(first, second, tmp_path, session)
    check_words(heard["talk"][0], n_rounds, len(sound) * 1000 // SAMPLE_RATE)
