"""What fails while others listen: they hear the rest, or why there is none."""

import asyncio
import json
import os
import resource
import signal
import sys
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from streamd.streams.journal.tables import transcript
from tests.support import recorded
from tests.support.loop import without_slow_steps
from tests.support.programs import begun, cleared, logged

# The program, with a model that takes until a line comes in on stdin, or never returns.
PROGRAM = """
import logging
import sys
from threading import Event
from streamd.daemon import opening
from streamd.cli import main
from streamd.daemon.uploads import Uploads
from streamd.streams.journal.database import Database
from streamd.whisper.recognizer import Recognizer
from streamd.errors import EngineError, ModelError

load, recognize, told = opening.open_model, Recognizer.recognize, sys.stdin.readline
failure = sys.argv.pop(1)
n_last = 0


def hang():
    logging.getLogger("streamd").warning("it hangs")
    while True:
        if "in C" in failure:
            Event().wait()


def open_model(config, **given):
    if failure == "model" and told():
        raise ModelError("the model is torn: fetch it again")
    if failure == "a model that hangs in C":
        hang()
    return load(config, **given)


def recognize_until_told(self, window):
    if failure == "engine" and window.last:
        logging.getLogger("streamd").warning("it waits")
        told()
        raise EngineError("the engine is out of memory")
    if failure == "bug" and window.last:
        raise ValueError("a window that nobody thought of")
    if failure.startswith("a window that hangs"):
        global n_last
        if n_last:  # the first utterance is final
            hang()
        n_last += window.last
    return recognize(self, window)


def slow_write(self, put):
    Event().wait(0.3)
    return write(self, put)


if failure == "slow disk":
    write, Database.write = Database.write, slow_write
opening.open_model, Recognizer.recognize = open_model, recognize_until_told
if failure == "upload":
    Uploads._new_transcriber = lambda *_: hang()
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
        python = (sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, failure)
        process = await begun(*python, *args, "--port", "0", stdin=asyncio.subprocess.PIPE)
        processes.append(process)
        return process, await logged(process, rb"ws://\S+")

    yield start
    await cleared(*processes)


async def end_of(process: asyncio.subprocess.Process) -> tuple[int, str, bytes]:
    """Exit code, the last line on stderr (all of it if there is a traceback), stdout."""
    out, err = await asyncio.wait_for(process.communicate(b"go on\n"), 60)
    lines = without_slow_steps(err)
    text = "\n".join(lines)
    return process.returncode, text if "Traceback" in text else lines[-1], out


async def test_on_a_full_disk_captions_go_on(started, sound, tmp_path):
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
    *events, eos = heard
    *_, final = [event for event in events if event["type"] == "final"]
    assert eos == {"type": "eos", "seq": final["seq"], "reason": "end"}
    assert out.decode() == (tmp_path / "good.txt").read_text()
    assert out.decode().splitlines()[-1] == final["text"]
    (fault,) = [event for event in events if event["type"] == "error"]
    assert fault["code"] == "output"
    assert not fault["fatal"]
    assert fault["message"] == "a transcript cannot be written: No space left on device"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
async def test_a_journal_that_gets_no_more_room_loses_nothing_that_was_heard(started, tmp_path):
    journal = ("serve", "--journal", str(tmp_path / "journal"))
    process, url = await started("", *journal)
    pcm = (recorded.samples("sense_0880") * 32767).astype("<i2").tobytes()
    async with connect(f"{url}?role=both&session=talk") as speaker:
        hello = json.loads(await speaker.recv())
        await speaker.send(json.dumps({"type": "start", "samples": 0}))
        heard = []
        for n in range(2):
            await speaker.send(pcm)
            await speaker.send(json.dumps({"type": "flush"}))
            async for message in speaker:
                heard.append(json.loads(message))
                if heard[-1]["type"] in ("flushed", "eos"):
                    break
            if not n:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
    *_, error, eos = heard
    assert (error["code"], error["fatal"], eos["reason"]) == ("journal", True, "error")
    assert "Input/output error" in error["message"]
    code, complaint, _ = await end_of(process)
    assert (code, "Input/output error" in complaint) == (1, True)
    finals = [event for event in heard if event["type"] == "final"]
    assert finals
    process, url = await started("", *journal)
    epoch = hello["epoch"].partition(".")[0]
    async with connect(f"{url}?session=talk&after=0&epoch={epoch}") as listener:
        await listener.recv()
        assert [json.loads(await listener.recv()) for _ in finals] == finals
    process.send_signal(signal.SIGTERM)
    assert (await end_of(process))[0] == 0


async def test_a_slow_disk_delays_what_is_said_and_loses_none_of_it(started, tmp_path):
    process, url = await started("slow disk", "serve", "--journal", str(tmp_path))
    pcm = (recorded.samples("sense_0880", "arctic_a0245") * 32767).astype("<i2").tobytes()
    async with connect(f"{url}?role=both&session=talk") as speaker:
        await speaker.send(pcm)
        await speaker.send(json.dumps({"type": "stop"}))
        heard = [json.loads(message) async for message in speaker]
    assert heard[-1]["reason"] == "stop"
    finals = [event for event in heard if event["type"] == "final"]
    assert [final["seq"] for final in finals] == list(range(1, len(finals) + 1))
    assert [event.text for event in transcript(tmp_path, "talk")] == [
        final["text"] for final in finals
    ]
    process.send_signal(signal.SIGTERM)
    assert (await end_of(process))[0] == 0


@pytest.mark.timeout(300)  # the model is prepared twice
@pytest.mark.skipif(sys.platform != "linux", reason="other systems end it with another signal")
async def test_a_prepared_model_that_is_cut_off_ends_it_and_the_next_start_makes_it_good(
    started, tmp_path, monkeypatch
):
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path))
    pcm = (recorded.samples("sense_0880") * 32767).astype("<i2").tobytes()

    async def transcribed(url: str) -> list[str]:
        async with connect(f"{url}?role=both&session=talk") as speaker:
            await speaker.send(pcm)
            await speaker.send(json.dumps({"type": "stop"}))
            heard = [json.loads(message) async for message in speaker]
        return [event["text"] for event in heard if event["type"] == "final"]

    options = ("serve", "--precision", "int8")
    process, url = await started("", *options)
    text = await transcribed(url)
    for file in tmp_path.rglob("*.weights"):
        os.truncate(file, 0)
    with pytest.raises(ConnectionClosedError):
        await transcribed(url)
    assert await process.wait() == -signal.SIGBUS
    process, url = await started("", *options)
    assert await transcribed(url) == text
    process.send_signal(signal.SIGTERM)
    assert (await end_of(process))[0] == 0


async def test_a_model_that_cannot_be_loaded_is_told_to_who_is_connected(started):
    process, url = await started("model", "serve")
    async with connect(f"{url}?role=both&session=talk") as speaker:
        await speaker.send(bytes(3200))
        end = asyncio.create_task(end_of(process))
        *_, error, eos = [json.loads(message) async for message in speaker]
    assert (error["code"], error["fatal"]) == ("engine", True)
    assert error["message"] == "the model cannot be used: see the log of the server"
    assert eos == {"type": "eos", "seq": 0, "reason": "error"}
    assert await end == (4, "streamd: the model is torn: fetch it again", b"")


async def test_a_signal_ends_a_file_that_waits_for_its_model(started, sound):
    process, url = await started("model", sound)
    async with connect(url) as listener:
        process.send_signal(signal.SIGTERM)
        *_, eos = [json.loads(message) async for message in listener]
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert (eos["seq"], eos["reason"]) == (0, "stop")


async def test_an_engine_that_fails_in_the_last_window_is_told_too(started, sound):
    process, url = await started("engine", sound)
    async with connect(url) as listener:
        await logged(process, b"it waits")
        process.send_signal(signal.SIGINT)
        end = asyncio.create_task(end_of(process))
        *_, error, eos = [json.loads(message) async for message in listener]
    assert (error["code"], eos["reason"]) == ("engine", "error")
    assert await end == (1, "streamd: the engine is out of memory", b"")


async def test_a_bug_in_the_only_session_ends_the_program_as_a_bug(started, sound):
    process, url = await started("bug", "--fast", sound)
    async with connect(f"{url}?after=0") as listener:
        end = asyncio.create_task(end_of(process))
        *_, error, eos = [json.loads(message) async for message in listener]
    assert (error["code"], error["fatal"], eos["reason"]) == ("internal", True, "error")
    code, complaint, _ = await end
    assert code == 1
    assert complaint.count("Traceback") == 1
    assert complaint.endswith("ValueError: a window that nobody thought of")


@pytest.mark.parametrize("where", ["in Python", "in C"])
async def test_a_window_that_never_returns_cannot_prevent_the_end(started, sound, tmp_path, where):
    failure = f"a window that hangs {where}"
    journal, text = tmp_path / "journal", tmp_path / "a.txt"
    process, url = await started(
        *(failure, "--fast", sound, "-o", str(text), "--journal", str(journal)),
        *("--set", "limits.shutdown_ms=300"),
    )
    async with connect(f"{url}?after=0") as listener:
        await logged(process, b"it hangs")
        process.send_signal(signal.SIGTERM)
        code, complaint, out = await end_of(process)
        *events, eos = [json.loads(message) async for message in listener]
    assert (code, eos["reason"]) == (0, "stop")
    assert complaint == "streamd: warning: session live: its end could not be transcribed in time"
    (final,) = [event for event in events if event["type"] == "final"]
    assert out.decode() == text.read_text() == final["text"] + "\n"
    assert [event.text for event in transcript(journal, "live")] == [final["text"]]


@pytest.mark.parametrize("failure", ["a window that hangs in Python", "a model that hangs in C"])
async def test_what_never_returns_cannot_keep_a_server_alive(started, failure, sound):
    process, url = await started(failure, "serve", "--set", "limits.shutdown_ms=300")
    samples = recorded.samples("sense_0880", "arctic_a0245")
    async with connect(f"{url}?role=both&session=talk") as speaker:
        await speaker.send((samples * 32767).astype("<i2").tobytes())
        if "window" in failure:  # a model is loaded before the server listens
            await logged(process, b"it hangs")
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(process.communicate(), 60)
        *_, eos = [json.loads(message) async for message in speaker]
    assert (process.returncode, eos["reason"], speaker.close_code) == (0, "shutdown", 1001)
    assert b"of some clients could not be transcribed in time\n" in err


async def post(url: str, sound: str) -> tuple[int, dict]:
    """Send a recording; return the status and the answer."""
    address = urlsplit(url)
    with open(sound, "rb") as file:  # noqa: ASYNC230 - a few bytes
        form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        form += file.read() + b"\r\n--x--\r\n"
    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(form)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(head.encode() + form)
    first, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(first.split()[1]), json.loads(body)


async def test_a_recording_whose_engine_hangs_gets_an_answer(started, sound):
    process, url = await started("upload", "serve", "--set", "decoding.engine_deadline_ms=100")
    status, answer = await post(url, sound)
    assert (status, answer["error"]["code"]) == (500, "engine")
    assert "has not finished a window" in answer["error"]["message"]
    assert (await end_of(process))[0] == 1


async def test_a_recording_whose_model_cannot_be_loaded_gets_an_answer(started, sound):
    process, url = await started("model", "serve")
    answered = asyncio.create_task(post(url, sound))
    reading = json.loads
    async with connect(f"{url}?role=both") as speaker:  # the recording was sent before
        reading(await speaker.recv())
    process.stdin.write(b"go on\n")
    status, answer = await answered
    assert (status, answer["error"]["code"]) == (500, "engine")
    assert answer["error"]["message"] == "the model cannot be used: see the log of the server"
    assert (await end_of(process))[0] == 4
