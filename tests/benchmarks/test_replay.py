"""The simulated clock, and recordings played on it to the daemon's own stations."""

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
import soundfile

from lab.clock import VirtualLoop
from lab.eventlog import Began, Decoded, Said
from lab.latency import SpokenWord
from lab.metrics import measure
from lab.recordings import Clip, read_recording
from lab.replay import encoded_frames, replay
from streamd.cli.bench import spoken
from streamd.errors import ConfigError, SourceError
from streamd.events import Eos, Final, Partial
from streamd.types import FRAME, Encoded, Window
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session

SPEECH = [False] * WORD + [True] * (20 * WORD) + [False] * 60
SAID = [SpokenWord(f"w{n}", n * WORD * 20, (n + 1) * WORD * 20) for n in range(1, 21)]
SPOKEN = [
    SpokenWord(word, said.start_ms, said.end_ms) for said in SAID for word in spoken(said.text)
]
"""As words are compared: a letter, and each digit by itself."""


def began(clock: str, n_frames: int) -> Began:
    return Began(name="grid", model="grid", clock=clock, step_ms=500, audio_ms=n_frames * 20)


def run(coroutine, stopwatch=time.perf_counter):
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(stopwatch)) as runner:
        return runner.run(coroutine)


def test_waiting_takes_no_time_but_the_clock_goes_on():
    async def wait():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3_600)
        return asyncio.get_running_loop().time()

    assert run(wait()) == pytest.approx(3_600)


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_recognizer_that_fails_ends_the_measurement(clock):
    class Broken(ScriptedRecognizer):
        def recognize(self, window):
            raise LookupError

    frames = scripted_audio([True] * (5 * WORD) + [False] * 60)
    with pytest.raises(ExceptionGroup) as failed:
        replay([Broken()], scripted_session, [frames], began=began(clock, len(frames)))
    assert failed.group_contains(LookupError)


@pytest.mark.parametrize(("seconds", "ticked"), [(0.25, [0.1]), (0.0, [])])
def test_computing_takes_the_time_it_took_while_timers_go_on(seconds, ticked):
    read = iter([7.0, 7.0 + seconds])

    async def both():
        loop = asyncio.get_running_loop()
        ticks = []
        loop.call_later(0.1, lambda: ticks.append(loop.time()))
        result = await loop.run_in_executor(None, int, "5")
        return result, loop.time(), list(ticks)

    result, now_s, ticks = run(both(), lambda: next(read))
    assert result == 5
    assert now_s == pytest.approx(seconds)
    assert ticks == pytest.approx(ticked)


def test_a_failure_of_the_computation_is_not_lost():
    async def fail():
        await asyncio.get_running_loop().run_in_executor(None, int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        run(fail())


def test_a_stream_is_logged_from_its_first_partial_to_its_end():
    frames = scripted_audio(SPEECH)
    (log,) = replay(
        [ScriptedRecognizer()], scripted_session, [frames], began=began("free", len(frames))
    )
    events = [entry.event for entry in log if isinstance(entry, Said)]
    assert isinstance(events[-1], Eos)
    assert [e.text for e in events if isinstance(e, Final)] == [" ".join(w.text for w in SAID)]
    times = [entry.t_ms for entry in log[1:]]
    assert times == sorted(times)
    windows = [entry for entry in log if isinstance(entry, Decoded)]
    assert all(20 * each.encoded_frames == each.end_ms - each.start_ms for each in windows)
    scores = measure(log, SPOKEN)
    assert (scores.wer, scores.commit_violations, scores.dropped_ms) == (0.0, 0, 0)
    assert (scores.merged_steps, scores.first.n) == (0, len(SPOKEN))
    # the grid's newest word is always misheard, so each is first right in the window behind it
    assert 0 < scores.first.median <= scores.stable.median < scores.final.median < 1_500
    assert scores.lag_ms < 40


def test_streams_begin_spread_over_a_step_and_have_their_own_time():
    frames = scripted_audio(SPEECH)
    logs = replay(
        [ScriptedRecognizer()], scripted_session, [frames] * 4, began=began("free", len(frames))
    )
    finals = [
        [(e.t_ms, e.event.text) for e in log if isinstance(e, Said) and isinstance(e.event, Final)]
        for log in logs
    ]
    assert all(final == finals[0] for final in finals)
    shown = [
        [e for e in log if isinstance(e, Said) and isinstance(e.event, Partial)] for log in logs
    ]
    assert [len(partials) for partials in shown] == [len(shown[0])] * 4
    windows = [
        [(e.t_ms, e.start_ms, e.end_ms) for e in log if isinstance(e, Decoded)] for log in logs
    ]
    assert windows[0]
    assert windows == [windows[0]] * 4


@dataclass
class Meeting:
    """Answers no window before the other recognizer has got one, too."""

    came: threading.Event
    other: threading.Event
    windows: list[Window] = field(default_factory=list)

    def recognize(self, window):
        self.came.set()
        assert self.other.wait(30)
        self.windows.append(window)
        return ScriptedRecognizer().recognize(window)


def test_several_recognizers_work_at_the_same_time():
    frames = scripted_audio([True] * (5 * WORD) + [False] * 60)
    a, b = threading.Event(), threading.Event()
    both = [Meeting(a, b), Meeting(b, a)]
    logs = replay(both, scripted_session, [frames] * 2, began=began("real", len(frames)))
    windows = [entry for log in logs for entry in log if isinstance(entry, Decoded)]
    assert len(windows) == sum(len(each.windows) for each in both)
    first, second = (next(w for w in log if isinstance(w, Decoded)) for log in logs)
    later_ms = 250  # half a step: so much later the second stream began
    assert second.begun_ms + later_ms < first.t_ms


def noise(path, seconds=1.0, rate=16_000, channels=1):
    samples = np.random.default_rng(1).standard_normal((int(seconds * rate), channels)) * 0.1
    soundfile.write(path, samples, rate)
    return path


def test_a_recording_has_words_from_the_notes_beside_it(tmp_path):
    path = noise(tmp_path / "talk.wav", rate=8_000, channels=2)
    bare = read_recording(path)
    assert (bare.frames.shape, bare.words, bare.clips) == ((50, FRAME), (), ())
    (tmp_path / "talk.txt").write_text("Turn it on.")
    assert [word.text for word in read_recording(path).words] == ["turn", "it", "on"]
    (tmp_path / "talk.json").write_text(json.dumps({"words": [["Turn", 0.1, 0.3]]}))
    assert read_recording(path).words == (SpokenWord("turn", 100, 300),)
    clips = [{"start_ms": 0, "end_ms": 500, "text": "turn it", "speaker": "somebody"}]
    (tmp_path / "talk.json").write_text(json.dumps({"clips": clips}))
    noted = read_recording(path)
    assert [word.text for word in noted.words] == ["turn", "it"]
    assert noted.clips == (Clip(start_ms=0, end_ms=500, text="turn it"),)
    assert noted.audio_ms == 1_000


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"none\.wav: cannot be read"):
        read_recording(tmp_path / "none.wav")
    path = noise(tmp_path / "talk.wav")
    (tmp_path / "talk.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"talk\.json: needs words or clips"):
        read_recording(path)


@pytest.mark.parametrize(("start", "end", "n"), [(100, 300, 125), (100, 175, 75), (101, 300, 199)])
def test_frames_whose_states_are_known_are_not_encoded(start, end, n):
    samples = np.zeros((end - start) * FRAME, np.float32)
    assert encoded_frames(Window(start, end, samples, encoded=Encoded(100, 250, None))) == n
