"""The automatic step: how it follows the load, and what that costs the finals."""

import asyncio
from itertools import pairwise
from statistics import fmean

import pytest

from lab.clock import VirtualLoop
from streamd.events import Event, Final, Partial
from streamd.streams import Streams
from streamd.streams.auto_step import AutoStep
from streamd.types import ms_from_frames
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    scripted_audio,
    scripted_session,
    speech_of,
)

UTTERANCES = [(n * WORD, 60) for n in (20, 7, 31, 12, 26, 9, 17, 23, 5, 28, 14, 22, 11, 19)] * 3


def step_ms(auto_step: AutoStep, *took_ms: float, last: bool = False) -> int:
    for ms in took_ms:
        auto_step.took(ms / 1000, last=last)
    return ms_from_frames(auto_step()) + 10 * (auto_step() == 12)  # 250 ms are 12.5 frames


@pytest.mark.parametrize(
    ("window_ms", "step"),
    [(140, 250), (160, 500), (390, 500), (410, 1000), (790, 1000), (810, 2000), (9_999, 2000)],
)
def test_the_step_is_the_shortest_with_which_windows_keep_up(window_ms, step):
    assert step_ms(AutoStep(), *[window_ms] * 8) == step


def test_nothing_is_known_before_the_first_window():
    assert step_ms(AutoStep()) == 500


def test_steps_do_not_alternate_and_a_single_slow_window_is_no_load(caplog):
    auto_step = AutoStep()
    assert step_ms(auto_step, *[400] * 7, 470) == 1000
    assert step_ms(auto_step, *[330] * 8) == 1000, "500 ms would leave less than two fifths"
    assert step_ms(auto_step, *[290] * 8) == 500
    assert step_ms(auto_step, 1000) == 500
    assert step_ms(auto_step, *[140] * 8) == 250


def test_the_change_is_told_once(caplog):
    caplog.set_level("INFO", "streamd")
    auto_step = AutoStep()
    for ms in (700, 700, 100, 1500, 100):
        step_ms(auto_step, *[ms] * 8)
    assert caplog.messages == ["captions every 1000 ms instead of 500: a window takes 700 ms now"]


def test_finals_count_only_where_there_are_no_partials():
    auto_step = AutoStep()
    step_ms(auto_step, *[100] * 2)
    assert step_ms(auto_step, *[900] * 6, last=True) == 250
    assert step_ms(auto_step, *[900] * 8, last=True) == 2000


class Slow(ScriptedRecognizer):
    """Takes `fixed_s` for a window, and more for each new frame that it encodes."""

    def __init__(self, fixed_s: float) -> None:
        super().__init__()
        self.fixed_s, self.clock_s, self.ends = fixed_s, 0.0, []

    def recognize(self, window):
        new = min(window.end - window.start, window.end - max([0, *self.ends[-1:]]) + 75)
        self.clock_s += self.fixed_s * (0.4 + 0.6 * max(0, new) / 100)
        self.ends.append(window.end)
        return super().recognize(window)


def captioned(engine: Slow, auto_step: AutoStep | None) -> list[tuple[float, Event]]:
    """Each event of a stream in real time, with the time at which it came, on a simulated clock."""
    frames = scripted_audio(speech_of(UTTERANCES))
    found: list[tuple[float, Event]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        streams = Streams(
            lambda _: scripted_session(auto_step=auto_step), max_backlog=500, max_ingest=8
        )
        streams.follow(auto_step)
        working = asyncio.create_task(streams.transcribe(engine))
        stream, over = streams.open("s"), asyncio.Event()
        for i in range(0, len(frames), 5):
            loop.call_at(loop.time() + 0.02 * (i + 5), stream.feed, frames[i : i + 5])
        loop.call_at(loop.time() + 0.02 * (len(frames) + 6), over.set)
        begun_s = loop.time()

        async def listen() -> None:
            with stream.hub.subscribe(after=0) as events:
                found.extend([(loop.time() - begun_s, event) async for event in events])

        listening = asyncio.create_task(listen())
        await over.wait()
        await stream.finish("end")
        await listening
        working.cancel()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(lambda: engine.clock_s)) as runner:
        runner.run(run())
    return found


def words_of(found) -> list[str]:
    return [word for _, each in found if isinstance(each, Final) for word in each.text.split()]


def waits_s(found) -> float:
    """Mean time from the end of what was said until its final."""
    return fmean(at - each.end_ms / 1000 for at, each in found if isinstance(each, Final))


@pytest.mark.parametrize("fixed_s", [0.5, 1.1])
def test_with_a_slow_engine_finals_lose_no_word_and_wait_no_longer_than_with_500_ms(fixed_s):
    usual, automatic = captioned(Slow(fixed_s), None), captioned(Slow(fixed_s), AutoStep())
    said = words_of(captioned(Slow(0.0), None))
    assert len(said) == sum(n for n, _ in UTTERANCES) // WORD
    assert sorted(words_of(usual)) == sorted(words_of(automatic)) == sorted(said)
    assert waits_s(automatic) <= waits_s(usual) + 0.02


def test_the_step_changes_between_utterances_when_the_load_changes():
    engine, auto_step = Slow(0.6), AutoStep()
    found = captioned(engine, auto_step)
    assert auto_step() == 50
    gaps = [b - a for a, b in pairwise(engine.ends) if b - a < 60]
    n_first = sum(at < 8 for at, each in found if isinstance(each, Partial))
    assert n_first > 0
    assert max(gaps[-20:]) >= 45
    engine.fixed_s = 0.05
    captioned(engine, auto_step)
    assert step_ms(auto_step) == 250
