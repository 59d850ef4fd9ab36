"""What fails while others listen: they hear the rest, or why there is none."""

import asyncio
import json
import re
import signal
import sys

import pytest
from websockets.asyncio.client import connect

from tests.support import recorded

# The program, with a model that takes until a line comes in on stdin.
PROGRAM = """
import sys
from streamd import daemon
from streamd.cli import main
from streamd.engine.recognizer import Recognizer
from streamd.errors import EngineError, ModelError

load, recognize, told = daemon.open_model, Recognizer.recognize, sys.stdin.readline
failure = sys.argv.pop(1)


def open_model(config):
    if failure == "model" and told():
        raise ModelError("the model is torn: fetch it again")
    return load(config)


def recognize_until_told(self, window):
    if failure == "engine" and window.last and told():
        raise EngineError("the engine is out of memory")
    return recognize(self, window)


daemon.open_model, Recognizer.recognize = open_model, recognize_until_told
sys.exit(main())
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> str:
    """A short sentence, a pause and another one."""
    folder = tmp_path_factory.mktemp("audio")
    return str(recorded.wav(folder / "a.wav", recorded.samples("sense_0880", "arctic_a0245")))


@pytest.fixture
async def started():
    """Starts the program; gives its process and where it listens."""
    processes = []

    async def start(failure: str, *args: str) -> tuple[asyncio.subprocess.Process, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, failure),
            *(*args, "--port", "0"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        async for line in process.stderr:
            if found := re.search(rb"ws://\S+", line):
                return process, found[0].decode()
        raise AssertionError(f"streamd ended with {await process.wait()}")

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def end_of(process: asyncio.subprocess.Process) -> tuple[int, str, bytes]:
    """Exit code, the last line on stderr (all of it if there is a traceback), stdout."""
    out, err = await asyncio.wait_for(process.communicate(b"go on\n"), 60)
    text = err.decode().strip()
    return process.returncode, text if "Traceback" in text else text.split("\n")[-1], out


async def test_a_full_disk_ends_it_after_everybody_heard_what_was_said(started, sound, tmp_path):
    (tmp_path / "full.txt").symlink_to("/dev/full")
    (tmp_path / "good.txt").touch()
    files = (str(tmp_path / name) for name in ("full.txt", "good.txt"))
    options = (arg for file in files for arg in ("-o", file))
    process, url = await started("disk", sound, *options)
    async with connect(url) as listener:
        heard = [json.loads(message) async for message in listener]
    code, complaint, out = await end_of(process)
    assert code == 1
    assert "full.txt" in complaint
    assert "No space left on device" in complaint
    *events, final, eos = heard
    assert eos == {"type": "eos", "seq": final["seq"], "reason": "stop"}
    assert final["type"] == "final"
    assert out.decode() == (tmp_path / "good.txt").read_text()
    assert out.decode().splitlines()[-1] == final["text"]
    assert not any(event["type"] == "error" for event in events)


async def test_a_model_that_cannot_be_loaded_is_told_to_who_is_connected(started):
    process, url = await started("model", "serve")
    async with connect(f"{url}?role=both&session=talk") as speaker:
        await speaker.send(bytes(3200))
        end = asyncio.create_task(end_of(process))
        *_, error, eos = [json.loads(message) async for message in speaker]
    assert (error["code"], error["fatal"]) == ("engine", True)
    assert "fetch it again" in error["message"]
    assert eos == {"type": "eos", "seq": 0, "reason": "error"}
    assert await end == (4, "streamd: the model is torn: fetch it again", b"")


async def test_a_signal_while_the_model_loads_waits_for_what_was_said(started, sound):
    process, url = await started("model", sound)
    async with connect(url) as listener:
        async for message in listener:
            if json.loads(message)["type"] == "vad":
                break
        process.send_signal(signal.SIGTERM)
        end = asyncio.create_task(end_of(process))
        *_, error, eos = [json.loads(message) async for message in listener]
    assert error["code"] == "engine"
    assert eos["reason"] == "error"
    assert (await end)[0] == 4


async def test_an_engine_that_fails_in_the_last_window_is_told_too(started, sound):
    process, url = await started("engine", sound)
    async with connect(url) as listener:
        async for message in listener:
            if json.loads(message)["type"] == "partial":
                break
        process.send_signal(signal.SIGINT)
        end = asyncio.create_task(end_of(process))
        *_, error, eos = [json.loads(message) async for message in listener]
    assert (error["code"], eos["reason"]) == ("engine", "error")
    assert await end == (1, "streamd: the engine is out of memory", b"")
