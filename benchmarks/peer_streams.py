"""One program that captions a sound as it is spoken: ``peer_streams.py NAME FOLDER SOUND SLOWED``.

FOLDER is what `peer_weights.py` wrote, SOUND a file of 16 kHz, mono. Prints one JSON object:
``shown``, each change of the screen as [ms, lines of finals, other committed text, tentative text];
``cpu_s`` and ``memory_mb`` of this process and its children while the sound was played; ``lost_s``
of the sound that the program never looked at; ``about`` it.

Each program has one thread to compute with and is used as its own documents and clients do it; what
that is, is said at its function. They play on a clock on which waiting takes no time, and computing
takes its CPU time (`lab.clock`) divided by SLOWED: how many times slower the machine is for its
other load, 1 on a quiet one. RealtimeSTT has threads that only the real clock drives; there all
that it sees of time passes so many times slower.
"""

import asyncio
import importlib.metadata
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import soundfile

from lab.clock import VirtualLoop

RATE = 16_000
SILENCE_S = 3
"""Silence behind each sound, as after a speaker's last word."""
SLOWED = float(sys.argv[4]) if __name__ == "__main__" else 1.0


def stopwatch() -> float:
    """Seconds that this process computed, as they would be on a quiet machine."""
    return time.process_time() / SLOWED


class Screen:
    """What the reader sees, whenever it changes."""

    def __init__(self) -> None:
        self.shown: list[tuple[float, str, str, str]] = []

    def show(self, ms: float, final: str, tentative: str, *, committed: str = "") -> None:
        """Lines of finals, and behind them what is committed beside them and what may change."""
        now = (final, committed, tentative)
        if not self.shown or self.shown[-1][1:] != now:
            self.shown.append((round(ms), *now))


class Microphone:
    """A sound as it is spoken, for programs that wait in one thread, on a clock of CPU time."""

    def __init__(self, samples: np.ndarray) -> None:
        self.samples = samples
        self.now_ms = 0.0

    @property
    def n_heard(self) -> int:
        """Samples that were spoken by now."""
        return min(len(self.samples), int(self.now_ms * RATE / 1000))

    @property
    def over(self) -> bool:
        """Whether all was spoken."""
        return self.n_heard == len(self.samples)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The clock runs on by the CPU time of what is done here."""
        begun_s = stopwatch()
        yield
        self.now_ms += (stopwatch() - begun_s) * 1000


def steps(
    samples: np.ndarray,
    screen: Screen,
    read: Callable[[np.ndarray], str],
    *,
    step_ms: int = 500,
    length_ms: int = 5000,
    loses: bool = False,
) -> float:
    """Do what ``whisper-stream --step 500 --length 5000`` does (its ``stream.cpp``).

    Each step reads the newest sound and what was read before it, 5 s in all, and replaces the line
    with that; after nine steps the line stays and a new one begins with the last 200 ms. Of what
    came while it computed whisper.cpp `loses` all but the newest step.

    Returns
    -------
    the seconds that are lost
    """
    microphone = Microphone(samples)
    step, length, keep = (RATE * ms // 1000 for ms in (step_ms, length_ms, 200))
    lines, line, kept = "", "", np.zeros(0, np.float32)
    n_taken = n_heard = n_line = 0
    while not microphone.over:
        microphone.now_ms = max(microphone.now_ms, (n_heard + step) * 1000 / RATE)
        begin, n_heard = n_heard, microphone.n_heard
        new = samples[max(begin, n_heard - step if loses else n_heard - length) : n_heard]
        n_taken, n_line = n_taken + len(new), n_line + len(new)
        n_kept = min(len(kept), max(0, keep + length - len(new)))
        window = np.concatenate([kept[len(kept) - n_kept :], new])
        with microphone.computing():
            line = read(window)
        kept = window
        screen.show(microphone.now_ms, lines, line)
        if n_line >= max(1, length // step - 1) * step:
            lines, kept, n_line = f"{lines}\n{line}", window[-keep:], 0
            screen.show(microphone.now_ms, lines, "")
    return (len(samples) - n_taken) / RATE


Played = tuple[Callable[[], float | None], str]
"""What plays the sound, after all is loaded (seconds lost, if known), and a version."""


def whisper_cpp(
    folder: Path, samples: np.ndarray, screen: Screen, *, ctx: int = 0, **options: int
) -> Played:
    """whisper.cpp through pywhispercpp, as its ``stream`` does it; `ctx` is ``-ac``."""
    from pywhispercpp.model import Model

    model = Model(str(folder / "ggml-model.bin"), n_threads=1, redirect_whispercpp_logs_to=None)
    usual = {"single_segment": True, "max_tokens": 32, "no_context": True, "language": "en"}

    def read(window: np.ndarray) -> str:
        said = model.transcribe(window, **usual, audio_ctx=ctx, print_progress=False)
        return " ".join(segment.text.strip() for segment in said)

    return lambda: steps(samples, screen, read, loses=True, **options), version("pywhispercpp")


def faster_whisper(folder: Path, samples: np.ndarray, screen: Screen) -> Played:
    """faster-whisper in int8, greedily, in whisper.cpp's steps: it has no live captions itself."""
    from faster_whisper import WhisperModel

    model = WhisperModel(str(folder / "ct2"), device="cpu", compute_type="int8", cpu_threads=1)

    def read(window: np.ndarray) -> str:
        said, _ = model.transcribe(window, language="en", beam_size=1)
        return " ".join(segment.text.strip() for segment in said)

    return lambda: steps(samples, screen, read), version("faster-whisper")


def whisper_live(folder: Path, samples: np.ndarray, screen: Screen) -> Played:
    """WhisperLive's server for one client, with the defaults and the blocks of its own client.

    Its loop runs here in the main thread: where it waits, the clock runs on instead. Its client
    leaves 15 s after the last answer that said something new.
    """
    from whisper_live.backend import base
    from whisper_live.backend.faster_whisper_backend import ServeClientFasterWhisper

    class Client(ServeClientFasterWhisper):
        def speech_to_text(self) -> None:
            """The server starts this in a thread; `play` calls it instead."""

        def transcribe_audio(self, input_sample: np.ndarray) -> Any:  # noqa: ANN401
            with microphone.computing():
                said = super().transcribe_audio(input_sample)
            wait(0)  # what came meanwhile
            return said

    microphone, block, said_ms, n_fed = Microphone(samples), 4096, 0.0, 0
    finals: dict[str, str] = {}

    def send(message: str) -> None:
        nonlocal said_ms
        segments = json.loads(message).get("segments", [])
        finals.update({each["start"]: each["text"] for each in segments if each["completed"]})
        tentative = "".join(each["text"] for each in segments if not each["completed"])
        n_before = len(screen.shown)
        if segments:
            screen.show(microphone.now_ms, "\n".join(finals.values()), tentative)
        if len(screen.shown) > n_before:
            said_ms = microphone.now_ms

    client = Client(
        SimpleNamespace(send=send, close=lambda: None),
        language="en", client_uid="", model=str(folder / "ct2"), same_output_threshold=10,
    )  # fmt: skip

    def wait(timeout: float) -> None:
        nonlocal n_fed
        microphone.now_ms += timeout * 1000
        while n_fed + block <= microphone.n_heard:
            client.add_frames(samples[n_fed : n_fed + block])
            n_fed += block
        left_ms = microphone.now_ms - max(said_ms, len(samples) * 1000 / RATE)
        client.exit = microphone.over and left_ms > 15_000

    client.frames_ready = SimpleNamespace(wait=wait, set=lambda: None, clear=lambda: None)
    base.time = SimpleNamespace(sleep=wait, time=lambda: microphone.now_ms / 1000)
    return lambda: super(Client, client).speech_to_text(), version("whisper-live")


def whisper_live_kit(folder: Path, samples: np.ndarray, screen: Screen, *, policy: str) -> Played:
    """WhisperLiveKit from its voice detector to its lines, with its defaults; no websocket.

    Blocks of 100 ms, as its page sends them. Work on its event loop, such as the voice detector's,
    takes no time on this clock. Where faster-whisper is installed, it runs the encoder and, for
    LocalAgreement, the decoder; SimulStreaming decodes with torch.
    """
    from whisperlivekit import (
        AudioProcessor,
        TranscriptionEngine,
        audio_processor,
        tokens_alignment,
    )

    fast, slow = str(folder / "ct2"), str(folder / f"{folder.name}.pt")
    simul = {"model_path": slow, "encoder_model_path": fast}
    options = simul if policy == "simulstreaming" else {"model_path": fast}
    engine = TranscriptionEngine(
        lan="en", backend_policy=policy, pcm_input=True, warmup_file="", **options
    )
    pcm = (samples * 32767).astype(np.int16).tobytes()

    async def play() -> None:
        loop = asyncio.get_running_loop()
        audio_processor.time = tokens_alignment.time = loop.time
        processor = AudioProcessor(transcription_engine=engine)
        zero_s = loop.time()

        async def show(results: AsyncIterator[Any]) -> None:
            async for result in results:
                told = result.to_dict()
                lines = "\n".join(line["text"] for line in told["lines"] if line.get("text"))
                screen.show((loop.time() - zero_s) * 1000, lines, told["buffer_transcription"])

        showing = loop.create_task(show(await processor.create_tasks()))
        for begin in range(0, len(pcm), RATE // 5):
            block = pcm[begin : begin + RATE // 5]
            await asyncio.sleep(zero_s + (begin + len(block)) / (2 * RATE) - loop.time())
            await processor.process_audio(block)
        await processor.process_audio(b"")
        await showing

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(stopwatch)) as runner:
            runner.run(play())

    return run, version("whisperlivekit")


def realtime_stt(folder: Path, samples: np.ndarray, screen: Screen) -> Played:
    """RealtimeSTT without its microphone, with live text from the same model as the finals.

    Its defaults are for a graphics card; here int8 on the processor.
    """
    real, sleep = time.monotonic, time.sleep
    time.time = time.monotonic = lambda: real() / SLOWED
    time.sleep = lambda seconds: sleep(seconds * SLOWED)
    from RealtimeSTT import AudioToTextRecorder

    zero_s, finals = 0.0, ""
    now_ms = lambda: (time.monotonic() - zero_s) * 1000  # noqa: E731 - one use, one line
    recorder = AudioToTextRecorder(
        model=str(folder / "ct2"), realtime_model_type=str(folder / "ct2"), language="en",
        device="cpu", compute_type="int8", use_microphone=False, spinner=False, no_log_file=True,
        enable_realtime_transcription=True,
        on_realtime_transcription_update=lambda text: screen.show(now_ms(), finals, text),
    )  # fmt: skip

    def listen() -> None:
        nonlocal finals
        while text := recorder.text():
            finals = f"{finals}\n{text}"
            screen.show(now_ms(), finals, "")

    def run() -> None:
        nonlocal zero_s
        zero_s = time.monotonic()
        threading.Thread(target=listen, daemon=True).start()
        pcm = (samples * 32767).astype(np.int16).tobytes()
        for begin in range(0, len(pcm), 1024):
            block = pcm[begin : begin + 1024]
            time.sleep(max(0.0, zero_s + (begin + len(block)) / (2 * RATE) - time.monotonic()))
            recorder.feed_audio(block)
        while now_ms() - screen.shown[-1][0] < 30_000:  # until nothing more is said
            time.sleep(0.1)

    return run, version("realtimestt")


def moonshine(_: Path, samples: np.ndarray, screen: Screen) -> Played:
    """Moonshine Voice with the tiny model of its package, not with Whisper's weights."""
    os.sched_setaffinity(0, {0})  # it has as many threads as there are cores
    from moonshine_voice import ModelArch, Transcriber, get_model_path

    stream = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY).create_stream()
    microphone, lines = Microphone(samples), {}

    def hear(event: Any) -> None:  # noqa: ANN401
        lines[event.line.line_id] = (event.line.text, event.line.is_complete)

    def show() -> None:
        done, open_ = (
            "\n".join(t for t, ends in lines.values() if ends is w) for w in (True, False)
        )
        screen.show(microphone.now_ms, done, open_)

    def run() -> None:
        stream.add_listener(hear)
        stream.start()
        for begin in range(0, len(samples), 320):
            microphone.now_ms = max(microphone.now_ms, (begin + 320) * 1000 / RATE)
            with microphone.computing():
                stream.add_audio(samples[begin : begin + 320].tolist())
            show()
        with microphone.computing():
            stream.stop()
        show()

    return run, version("moonshine-voice")


def streamd(folder: Path, samples: np.ndarray, screen: Screen) -> Played:
    """The daemon of streamd, by default options."""
    from lab import replay
    from lab.eventlog import Began, Said
    from runs import commit
    from streamd.config import load
    from streamd.daemon import build
    from streamd.daemon.opening import open_model
    from streamd.events import Final, Partial
    from streamd.types import FRAME, FRAME_MS

    config = load({"threads": "1", "model": str(folder / "hf"), "language": "en"}, {})
    model, engine = open_model(config, wait=True)
    recognizer = build.recognizer(config, model, engine)
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    began = Began(name="", model="", clock="cpu", step_ms=500, audio_ms=len(frames) * FRAME_MS)

    replay._STOPWATCHES["cpu"] = stopwatch

    def run() -> None:
        new_session = partial(build.new_session, config)
        (log,) = replay.replay([recognizer], new_session, [frames], began=began)
        finals = ""
        for entry in log:
            event = entry.event if isinstance(entry, Said) else None
            if isinstance(event, Final):
                finals = f"{finals}\n{event.text}"
                screen.show(entry.t_ms, finals, "")
            elif isinstance(event, Partial):
                committed, tentative = event.text[: event.stable], event.text[event.stable :]
                screen.show(entry.t_ms, finals, tentative, committed=committed)

    return run, f"commit {commit()}"


PROGRAMS: dict[str, Callable[[Path, np.ndarray, Screen], Played]] = {
    "streamd": streamd,
    "whisper.cpp stream": partial(whisper_cpp, step_ms=3000, length_ms=10_000),
    "whisper.cpp stream, 500 ms": whisper_cpp,
    "whisper.cpp stream, 500 ms, -ac 384": partial(whisper_cpp, ctx=384),
    "faster-whisper": faster_whisper,
    "WhisperLiveKit LocalAgreement": partial(whisper_live_kit, policy="localagreement"),
    "WhisperLiveKit SimulStreaming": partial(whisper_live_kit, policy="simulstreaming"),
    "WhisperLive": whisper_live,
    "RealtimeSTT": realtime_stt,
    "Moonshine": moonshine,
}


def version(distribution: str) -> str:
    """Name and version of an installed package."""
    return f"{distribution} {importlib.metadata.version(distribution)}"


def _family() -> list[Path]:
    """The folders in /proc of this process and all its children (Linux)."""
    found, left = [], [os.getpid()]
    while left:
        process = Path(f"/proc/{left.pop()}")
        found.append(process)
        for children in process.glob("task/*/children"):
            left += map(int, children.read_text().split())
    return found


def cpu_s() -> float:
    """CPU seconds of the family, those of children that ended included."""
    stats = [(process / "stat").read_text().rpartition(")")[2].split() for process in _family()]
    ticks = sum(int(field) for stat in stats for field in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb() -> float:
    """Resident memory of the family; what several share counts once."""
    lines = [line for p in _family() for line in (p / "smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    """Play the sound."""
    name, folder, path = sys.argv[1:4]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the programs print as they like
    sound = soundfile.read(path, dtype="float32")[0]
    samples = np.concatenate([sound, np.zeros(SILENCE_S * RATE, np.float32)])
    screen = Screen()
    play, about = PROGRAMS[name](Path(folder), samples, screen)
    begun_s = cpu_s()
    lost_s = play() or 0.0
    told = {"shown": screen.shown, "lost_s": lost_s, "about": about}
    told |= {"cpu_s": cpu_s() - begun_s, "memory_mb": round(memory_mb())}
    print(json.dumps(told), file=replies, flush=True)
    os._exit(0)  # some leave threads behind that never end


if __name__ == "__main__":
    main()
