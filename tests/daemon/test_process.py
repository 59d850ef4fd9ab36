"""The program as people run it: real processes, sockets, pipes, signals and model."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import termios
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from streamd.cli import main
from streamd.cli.bench import n_edits, spoken
from tests.golden import load
from tests.support import recorded
from tests.support.emulator import Emulator
from tests.support.programs import PROGRAM, begun, ended, logged
from tests.support.recorded import RECORDING, SENTENCE

MOONSHINE = Path(__file__).parents[1] / "engines/families/moonshine.gguf"


def run(*args: str, **kwargs) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "timeout": 120, "stdin": subprocess.DEVNULL} | kwargs
    if "input" in options:
        del options["stdin"]
    return subprocess.run([PROGRAM, *args], **options)


@pytest.fixture
def said(capfd):
    """Runs the program in this process, where it need not be loaded anew; gives what it says."""

    def said(*args: str) -> str:
        assert main(args) == 0
        return capfd.readouterr().out

    return said


@pytest.fixture(scope="module")
def sentence(tmp_path_factory) -> Path:
    """Three seconds of speech, which the model reads without a mistake."""
    return recorded.wav(tmp_path_factory.mktemp("audio") / "sentence.wav", recorded.samples())


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> Path:
    """Two sentences with a pause between them, the first of two seconds."""
    sound = np.concatenate((load.samples("lamp", 200)[8_000:48_000], recorded.samples()))
    return recorded.wav(tmp_path_factory.mktemp("audio") / "sentences.wav", sound)


def test_an_engine_that_does_not_come_back_in_time_ends_the_program(sentence):
    done = run("--port=off", "--fast", "--set", "decoding.engine_deadline_ms=1", str(sentence))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(b"streamd: the engine has not finished a window")


def test_a_file_becomes_text_on_a_pipe_and_in_files(sentence, tmp_path):
    done = run(
        "--fast",
        "--port=off",
        str(sentence),
        "-o",
        str(tmp_path / "a.srt"),
        "-o",
        str(tmp_path / "a.txt"),
    )
    assert (done.returncode, done.stdout) == (0, SENTENCE.encode() + b"\n")
    assert (tmp_path / "a.txt").read_text() == f"{SENTENCE}\n"
    number, times, *lines = (tmp_path / "a.srt").read_text().split("\n")
    assert number == "1"
    assert re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", times)
    assert " ".join(lines).strip() == SENTENCE


def test_the_demo_begins_with_a_famous_sentence_and_has_few_words_wrong(said):
    demo = RECORDING.with_name("demo.flac")
    shown = said("--fast", "--port=off", "-m", "tiny.en", "--speakers", str(demo))
    clips = json.loads(demo.with_suffix(".json").read_text())["clips"]
    reference = [word for clip in clips for word in spoken(clip["text"])]
    lines = [line.split(": ", 1) for line in shown.splitlines()]
    names = [(name, len(list(of))) for name, of in groupby(name for name, _ in lines)]
    # Who laughs before the last of them takes no number.
    assert names == [("Speaker 1", 8), ("Speaker 2", 2), ("Speaker 3", 2), ("Speaker 4", 3)]
    read = spoken(" ".join(text for _, text in lines))
    assert "10001 90210 01803" in " ".join(text.strip(".") for _, text in lines)
    assert " ".join(read).startswith("it was the best of times it was the worst of times it was")
    assert n_edits(reference, read) <= 0.02 * len(reference)


def test_who_only_laughs_in_a_file_takes_no_number(tmp_path, said):
    sound, rate_hz = soundfile.read(RECORDING.with_name("demo.flac"))
    part = recorded.wav(tmp_path / "part.wav", sound[42 * rate_hz :])
    said("transcribe", "-m", "tiny.en", "--speakers", "-o", str(tmp_path / "part.json"), str(part))
    segments = json.loads((tmp_path / "part.json").read_text())["segments"]
    who = [word["speaker"] for segment in segments for word in segment["words"]]
    assert [speaker for speaker, _ in groupby(who)] == [1, 2]


def test_music_behind_a_sentence_does_not_say_it_again(tmp_path, said):
    demo = RECORDING.with_name("demo.flac")
    sound, rate_hz = soundfile.read(demo)
    clips = json.loads(demo.with_suffix(".json").read_text())["clips"]
    places = {clip["clip"]: (clip["start_ms"], clip["end_ms"]) for clip in clips}
    order = (("two_cities", 1500), ("sense_0870", 700), ("sense_0880", 1000), ("country", 1000))
    pieces = [np.zeros(700 * rate_hz // 1000)]
    for name, pause_ms in order:
        start, end = (time * rate_hz // 1000 for time in places[name])
        pieces += [sound[start:end], np.zeros(pause_ms * rate_hz // 1000)]
    joined = np.concatenate(pieces)
    joined += np.random.default_rng(0).standard_normal(len(joined)) * 10 ** (-75 / 20)
    soundfile.write(tmp_path / "joined.wav", joined, rate_hz)
    shown = said("--fast", "--port=off", "-m", "tiny.en", str(tmp_path / "joined.wav"))
    assert shown.count("young man.") == 1
    assert shown.endswith("He was not an ill-disposed young man.\n")


def test_transcribe_writes_files_down_and_into_a_folder(sentence, tmp_path, said):
    other, out = tmp_path / "other.wav", tmp_path / "new" / "out"
    other.write_bytes(sentence.read_bytes())
    shown = said(
        "transcribe", str(sentence), str(other), "--output-dir", str(out), "-f", "txt,json"
    )
    assert shown == f"{SENTENCE}\n" * 2
    assert sorted(path.name for path in out.iterdir()) == [
        "other.json",
        "other.txt",
        "sentence.json",
        "sentence.txt",
    ]
    assert (out / "other.txt").read_text() == f"{SENTENCE}\n"
    assert json.loads((out / "other.json").read_text())["text"] == f" {SENTENCE}"


def test_stdin_is_a_source(sentence):
    samples, _ = soundfile.read(sentence, dtype="int16")
    done = run("-", "--port=off", "--jsonl", input=samples.tobytes())
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["text"] for e in events if e["type"] == "final"] == [SENTENCE]
    assert events[-1]["type"] == "eos"
    assert done.returncode == 0


def test_silence_says_nothing(tmp_path, said):
    soundfile.write(tmp_path / "silence.wav", np.zeros(16000 * 20), 16000)
    assert said("--fast", "--port=off", str(tmp_path / "silence.wav")) == ""


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--fast", "no-such-file.wav"], 3, "no-such-file.wav"),
        (["--fast", __file__], 3, "test_process.py"),
        (["-m", "no-such-model", str(RECORDING)], 4, "no-such-model"),
        (["--no-such-option"], 2, "--no-such-option"),
        (["--step", "half", str(RECORDING)], 2, "half"),
        (["-l", "de", str(RECORDING)], 2, "knows en only"),
        (["--set", "commit.rule=sliding", str(RECORDING)], 2, "commit.rule"),
        (["--host", "0.0.0.0", str(RECORDING)], 2, "token"),
        (["-o", "no/such/folder/x.srt", str(RECORDING)], 2, "no/such/folder"),
        (
            ["transcribe", "-o", "a.srt", str(RECORDING), str(RECORDING)],
            2,
            "-o is for one transcript",
        ),
        (["--device", "no such device"], 3, ""),
    ],
)
def test_bad_input_gets_one_line_and_its_exit_code(args, code, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMD_PORT", "0")
    assert main(args) == code
    complaint = capfd.readouterr().err
    assert says in complaint.splitlines()[-1]
    assert not re.search(r"Traceback|\w+Warning", complaint)


def test_two_people_in_two_channels_of_a_pipe_are_two_speakers_on_one_clock():
    one, other = recorded.samples(), recorded.samples("jfk")
    n_before = 2 * 16_000
    together = np.zeros((n_before + len(other), 2), np.float32)
    together[: len(one), 0], together[n_before:, 1] = one, other
    done = run(
        *("-", "--input-format", "f32le", "--set", "pcm.channels=2", "--channels", "split"),
        *("--port=off", "--jsonl", "--model", "tiny.en"),
        input=together.astype("<f4").tobytes(),
    )
    finals = [
        event for line in done.stdout.splitlines() if (event := json.loads(line))["type"] == "final"
    ]
    words = {1: [], 2: []}
    for final in finals:
        assert {word["speaker"] for word in final["words"]} == {final["channel"]}
        words[final["channel"]] += final["words"]
    assert " ".join(word["text"] for word in words[1]) == SENTENCE
    assert {"fellow", "country"} < {re.sub(r"\W", "", word["text"]) for word in words[2]}
    # Both speak from the third second to the fifth.
    assert words[1][0]["start_ms"] < 1_000 < 2_000 < words[2][0]["start_ms"] < 3_500
    assert 4_000 < words[1][-1]["end_ms"] < 5_500 < 12_000 < words[2][-1]["end_ms"]


def test_a_port_in_use_is_named(sentence, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--fast", "--port", str(port), str(sentence)]) == 5
    assert f"port {port}" in capfd.readouterr().err


def test_a_reader_that_leaves_ends_it_quietly(sentences):
    with subprocess.Popen(
        [PROGRAM, "--fast", "--port=off", str(sentences)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as streamd:
        streamd.stdout.close()
        _, complaint = streamd.communicate(timeout=120)
    assert streamd.returncode == 141
    assert b"Traceback" not in complaint


async def started(*args: str) -> tuple[asyncio.subprocess.Process, str]:
    """A running streamd and the address it says it listens on."""
    process = await begun(PROGRAM, *args, "--port", "0")
    return process, await logged(process, ADDRESS)


ADDRESS = rb"ws://\S+"


async def test_the_first_interrupt_makes_final_what_was_said(sentences):
    process, url = await started(str(sentences), "--jsonl")
    async with connect(url) as listener:
        async for message in listener:  # the recording's second phrase is being spoken
            event = json.loads(message)
            if event["type"] == "partial" and event["seg"] >= 2 and event["stable"]:
                break  # the first guess of a cut word may be taken back
        process.send_signal(signal.SIGINT)
        heard = [json.loads(message) async for message in listener]
    out, _ = await process.communicate()
    finals = [e for e in map(json.loads, out.splitlines()) if e["type"] == "final"]
    assert process.returncode == 0
    assert finals[-1]["seg"] == event["seg"]
    assert [e for e in heard if e["type"] == "final"][-1] == finals[-1]
    assert heard[-1] == {"type": "eos", "seq": finals[-1]["seq"], "reason": "stop"}


async def test_a_client_of_deepgrams_api_gets_the_results_of_each_channel():
    sound = (recorded.samples() * 32767).astype("<i2")
    process, url = await started("serve", "--model", "tiny.en")
    query = "encoding=linear16&sample_rate=16000&channels=2&multichannel=true&keyterm=laid"
    async with connect(f"{url.partition('/v1')[0]}/v1/listen?{query}") as client:
        for piece in np.split(np.stack([np.roll(sound, 8_000), sound], 1), 10):
            await client.send(piece.tobytes())
        await client.send('{"type":"CloseStream"}')
        answers = [json.loads(message) async for message in client]
    await ended(process, by=signal.SIGINT)
    said = {0: [], 1: []}
    for answer in answers[:-1]:
        assert answer["type"] == "Results", answer
        channel, n_channels = answer["channel_index"]
        assert (answer["type"], n_channels) == ("Results", 2)
        said[channel] += answer["channel"]["alternatives"][0]["words"]
    assert " ".join(word["punctuated_word"] for word in said[1]) == SENTENCE
    assert "1600" in {word["word"] for word in said[0]}
    assert answers[-1]["channels"] == 2


async def test_who_listens_gets_the_captions_of_each_channel(tmp_path):
    sound = recorded.samples()
    path = recorded.wav(tmp_path / "two.wav", np.stack([sound, np.roll(sound, 16_000)], 1))
    process, url = await started(str(path), "--channels", "split")
    async with connect(f"{url}?after=0") as listener:
        events = [json.loads(message) async for message in listener]
    await ended(process)
    assert events[0]["split"] is True
    of = {
        kind: {e["channel"] for e in events if e["type"] == kind} for kind in ("partial", "final")
    }
    assert of["partial"] <= of["final"] == {1, 2}


def typed_interrupt(*args: str) -> tuple[Emulator, int]:
    """What is on the screen, and the exit code, after Ctrl-C behind the first words."""
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (30, 40))
    process = subprocess.Popen(
        [PROGRAM, *args],
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    screen, heard = Emulator(40, 30), b""
    with suppress(OSError):  # the terminal is gone when the program is
        while data := os.read(master, 4096):
            heard += data
            if b"1800" in heard and b"^C" not in heard:
                os.write(master, b"\x03")
                while b"^C" not in heard:  # the terminal prints it
                    heard += os.read(master, 4096)
    os.close(master)
    screen.write(heard.decode())
    assert b"^C" in heard
    return screen, process.wait()


def test_an_interrupt_that_is_typed_leaves_no_mark_in_the_captions(sentence):
    screen, code = typed_interrupt("--port=off", "-m", "tiny.en", str(sentence))
    assert code == 0
    rows = "\n".join(screen.rows())
    assert "^C" not in rows
    assert "1800" in rows


OLD, NEW = "an old and long token", "a new and long token"


async def test_a_hangup_reads_the_token_anew_and_keeps_who_is_in(tmp_path):
    token = tmp_path / "token"
    token.write_text(OLD)
    token.chmod(0o600)
    process, url = await started("serve", "--token-file", str(token))

    def show(text: str) -> dict:
        return {"additional_headers": {"Authorization": f"Bearer {text}"}}

    async with connect(f"{url}?role=both", **show(OLD)) as inside:
        await inside.recv()
        token.write_text(NEW)
        process.send_signal(signal.SIGHUP)
        await logged(process, b"read ")
        async with connect(f"{url}?role=both", **show(NEW)):
            pass
        with pytest.raises(InvalidStatus, match="401"):
            await connect(f"{url}?role=both", **show(OLD))
        await inside.send(json.dumps({"type": "stop"}))
        assert json.loads(await inside.recv())["type"] == "eos"
        token.write_text("")
        process.send_signal(signal.SIGHUP)
        await logged(process, b"old token stays")
    await ended(process, by=signal.SIGTERM)


async def test_a_terminal_that_hangs_up_is_a_stop():
    master, terminal = pty.openpty()
    process = await begun(PROGRAM, "serve", "--port", "0", stdout=terminal)
    os.close(terminal)
    await logged(process, ADDRESS)
    await ended(process, by=signal.SIGHUP)
    os.close(master)


async def test_clients_speak_listen_and_vanish_beside_each_other(sentence):
    samples, _ = soundfile.read(sentence, dtype="int16")
    process, url = await started("serve")

    async def speak(name: str) -> list[dict]:
        async with connect(f"{url}?role=both&session={name}") as client:
            for start in range(0, len(samples), 3200):
                await client.send(samples[start : start + 3200].tobytes())
            await client.send(json.dumps({"type": "stop"}))
            return [json.loads(message) async for message in client]

    async def vanish() -> None:
        client = await connect(f"{url}?role=ingest&session=gone")
        await client.send(samples[:9000].tobytes())
        client.transport.abort()

    async def talk_nonsense() -> int:
        async with connect(f"{url}?role=ingest") as client:
            await client.send("{nonsense")
            await client.wait_closed()
            return client.close_code

    everybody = await asyncio.gather(speak("a"), vanish(), speak("b"), talk_nonsense(), speak("c"))
    for events in (everybody[0], everybody[2], everybody[4]):
        assert [e["text"] for e in events if e["type"] == "final"] == [SENTENCE]
        assert events[-1]["reason"] == "stop"
    assert everybody[3] not in (1000, 1001)
    assert b"Traceback" not in await ended(process, by=signal.SIGTERM)


async def test_the_second_interrupt_does_not_wait_for_a_stuck_reader(sentences):
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # full after a few partials
    process = await begun(PROGRAM, sentences, "--jsonl", "--port", "0", stdout=writer)
    os.close(writer)
    url = await logged(process, ADDRESS)
    async with connect(f"{url}?after=0") as listener:
        async for message in listener:
            if json.loads(message)["type"] == "final":
                break
        process.send_signal(signal.SIGINT)
        async for message in listener:
            if json.loads(message)["type"] == "eos":
                break
        assert process.returncode is None, "it waits for the reader of its output"
        process.send_signal(signal.SIGINT)
    await ended(process, 130)
    os.close(reader)


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
    return [child for child, parent in pairs if parent == pid]


@pytest.mark.parametrize("hangs", [False, True])
def test_sigterm_ends_captions_of_another_family_whether_its_library_answers_or_not(hangs):
    pytest.importorskip("transcribe_cpp")
    sound = soundfile.read(recorded.ROOT / "tests/golden/lamp.flac", dtype="int16")[0].tobytes()
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [PROGRAM, "-m", str(MOONSHINE), "--port=off", "--jsonl", "-"]
    with subprocess.Popen(command, **pipes) as daemon:
        daemon.stdin.write(sound[:64_000])
        daemon.stdin.flush()
        events = map(json.loads, daemon.stdout)
        next(event for event in events if event["type"] == "partial")
        (worker,) = _children(daemon.pid)
        if hangs:
            os.kill(worker, signal.SIGSTOP)
        daemon.stdin.write(sound[64_000:])
        daemon.stdin.flush()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(100) == 0
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)  # it sees that the program has ended, and ends
        out, err = daemon.stdout.read(), daemon.stderr.read()  # to the end, which is the worker's
    assert (b"its end could not be transcribed in time" in err) == hangs
    assert (b'room lamp?"' in out) == (not hangs)
