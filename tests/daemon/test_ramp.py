"""Not one sample is lost or doubled between the source and the engine.

Every sample carries its own number. What the engine was given in its windows, put side by side, is
the ramp, whole: through stdin, through files and through a real PortAudio device, on an engine that
is fast, slow, or stalls for a second now and then.
"""

import asyncio
import os
import threading

import numpy as np
import pytest
import soundfile

from streamd.daemon import feeding
from streamd.daemon.control import Control
from streamd.options import GateOptions, PcmOptions
from streamd.session import Session
from streamd.session.commit import LocalAgreement
from streamd.session.gate import Gate, any_sound
from streamd.session.segmenter import Segmenter
from streamd.sources.file import FileSource
from streamd.sources.microphone import Microphone
from streamd.sources.stdin import StdinSource
from streamd.streams import Streams
from streamd.types import FRAME, SAMPLE_RATE, Hypothesis, Window, Word
from tests.support import pulseaudio
from tests.support.fakes import ScriptedRecognizer

RAMP = (np.arange(1, 4 * SAMPLE_RATE + 1) / 2**20).astype(np.float32)
PLAYED = RAMP[: 2 * SAMPLE_RATE]
"""What a device plays, in real time."""
SILENCE = np.zeros(SAMPLE_RATE // 2, np.float32)


class Recorder(ScriptedRecognizer):
    """Keeps what it is given, and takes `delays_s` in turn for it."""

    def __init__(self, delays_s: list[float]) -> None:
        super().__init__()
        self.heard: dict[int, np.ndarray] = {}
        self._delays_s = delays_s
        self._n = 0

    def recognize(self, window: Window) -> Hypothesis:
        threading.Event().wait(self._delays_s[self._n % len(self._delays_s)])
        self._n += 1
        for number, frame in enumerate(window.samples.reshape(-1, FRAME), window.start):
            assert np.array_equal(self.heard.setdefault(number, frame), frame), "frame changed"
        words = tuple(
            Word(f" w{n}", n * 25, (n + 1) * 25, 0.9, (n,))
            for n in range(-(-window.start // 25), window.end // 25)
            if n not in window.prefix
        )
        return Hypothesis(words=words)

    def samples(self) -> np.ndarray:
        """Everything heard, in order; frames that are missing are a hole."""
        first, last = min(self.heard), max(self.heard)
        hole = np.full(FRAME, -1.0, np.float32)
        return np.concatenate([self.heard.get(n, hole) for n in range(first, last + 1)])


def open_session() -> Session:
    """A session that lets every sound through."""
    gate = Gate(any_sound, GateOptions(floor_db=-np.inf))
    return Session(gate, Segmenter(), LocalAgreement())


class Trailing:
    """A microphone that stops half a second of audio after `played` is set."""

    live, duration_ms = True, None

    def __init__(self, microphone: Microphone) -> None:
        self.name, self.played = microphone.name, asyncio.Event()
        self._microphone = microphone

    async def __aenter__(self):
        await self._microphone.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._microphone.__aexit__(*error)

    async def __aiter__(self):
        n_after = 0
        async for item in self._microphone:
            n_after += self.played.is_set()
            if n_after == 25:
                self.stop()
            yield item

    def stop(self) -> None:
        self._microphone.stop()


async def caption(source, recorder: Recorder, stop=None) -> np.ndarray:
    streams, control = Streams(lambda _: open_session(), max_backlog=50, max_ingest=0), Control()
    live = streams.add("live")
    engine = asyncio.create_task(streams.transcribe(recorder))
    begun = asyncio.Event()
    stopping = asyncio.create_task(stop(source, begun)) if stop else None
    await feeding.caption([source], live, control, opened=begun.set)
    engine.cancel()
    await asyncio.gather(engine, *([stopping] if stopping else []), return_exceptions=True)
    assert live.session.idle
    return recorder.samples()


engines = pytest.mark.parametrize(
    "delays_s", [[0.0], [0.05], [0.0, 0.0, 0.5]], ids=["fast", "slow", "stalling"]
)


@engines
async def test_stdin(delays_s):
    reader, writer = os.pipe()
    pcm = RAMP.astype("<f4").tobytes()

    def write() -> None:
        with os.fdopen(writer, "wb") as pipe:
            for start in range(0, len(pcm), 3001):  # not even whole samples
                pipe.write(pcm[start : start + 3001])
                pipe.flush()

    feeder = threading.Thread(target=write)
    feeder.start()
    with os.fdopen(reader, "rb") as pipe:
        heard = await caption(StdinSource(pipe, PcmOptions(encoding="f32le")), Recorder(delays_s))
    feeder.join()
    assert np.array_equal(heard, RAMP)


@engines
@pytest.mark.parametrize("suffix", ["wav", "flac"])
async def test_file(tmp_path, delays_s, suffix):
    path = tmp_path / f"ramp.{suffix}"
    subtype = {"wav": "FLOAT", "flac": "PCM_24"}[suffix]
    soundfile.write(path, RAMP, SAMPLE_RATE, subtype=subtype)
    assert np.array_equal(await caption(FileSource(path), Recorder(delays_s)), RAMP)


@pytest.mark.portaudio
@engines
async def test_a_real_device(tmp_path_factory, null_sink, delays_s):
    path = tmp_path_factory.mktemp("ramp") / "ramp.wav"
    soundfile.write(path, np.concatenate((SILENCE, PLAYED, SILENCE)), SAMPLE_RATE, subtype="FLOAT")

    async def play(source: Trailing, begun: asyncio.Event) -> None:
        await begun.wait()  # play into a device that is open
        await asyncio.to_thread(null_sink.play, path)
        source.played.set()  # the monitor is less than half a second behind

    heard = await caption(Trailing(Microphone(pulseaudio.DEVICE)), Recorder(delays_s), play)
    places = np.flatnonzero(heard)
    between = heard[places[0] : places[-1] + 1]
    assert np.array_equal(between, PLAYED)
