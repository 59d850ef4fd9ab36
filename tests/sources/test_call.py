"""Both sides of a call on one clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.sources.call import MOST_SLACK, PATIENCE, SLACK, TwoClocks, sides_of
from streamd.types import FRAME

HOUR = 180_000  # frames
BLOCK = 5


def numbered(first: int, n: int, *, speaks: bool) -> np.ndarray:
    """Frames whose first sample is their number."""
    frames = np.full((n, FRAME), 0.1 if speaks else 0.0, np.float32)
    frames[:, 0] = (np.arange(first, first + n) + 1) / 2.0**32
    return frames


def played(ppm: float, n_frames: int, *, jitter: np.random.Generator, speech: int, pause: int):
    """Two devices, of which the second is faster by `ppm`; yield what comes of both, in frames.

    The second speaks and pauses in turn. Its frames are numbered.
    """
    clocks, sent = TwoClocks(), [0, 0]
    for now in range(BLOCK, n_frames + 1, BLOCK):
        due = now, round(now * (1 + ppm / 1e6))
        for side in jitter.permutation(2):
            late = BLOCK * int(jitter.integers(0, 3)) if jitter.random() < 0.1 else 0
            n = max(0, (due[side] - late) // BLOCK * BLOCK - sent[side])
            speaks = sent[1] % (speech + pause) < speech
            clocks.push(int(side), numbered(sent[side], n, speaks=speaks or side == 0))
            sent[side] += n
        yield clocks, clocks.pull()


@pytest.mark.parametrize("ppm", [-100, 0, 100])
def test_an_hour_of_two_clocks_does_not_tear_them_apart(ppm):
    """Where they differ by 100 ppm, they would be 18 frames apart."""
    n_out, apart = 0, []
    for clocks, frames in played(  # noqa: B007 - as they are in the end
        ppm, HOUR, jitter=np.random.default_rng(1), speech=150, pause=40
    ):
        n_out += len(frames)
        last = frames[frames[:, 1, 0] > 0] if len(frames) else frames
        if len(last):
            mine, theirs = (np.rint(last[-1, side, 0] * 2.0**32) - 1 for side in (0, 1))
            apart.append(theirs / (1 + ppm / 1e6) - mine)
    assert HOUR - PATIENCE - BLOCK <= n_out <= HOUR
    assert max(map(abs, apart)) <= SLACK + 2 * BLOCK
    changed = clocks.n_added + clocks.n_dropped
    assert (clocks.n_added > clocks.n_dropped) == (ppm < 0) or changed <= 2
    assert changed <= abs(ppm) * HOUR / 1e6 + 4


@given(
    st.integers(-100, 100), st.integers(0, 2**32 - 1), st.integers(1, 3_000), st.integers(0, 100)
)
def test_no_frame_of_the_microphone_is_lost(ppm, seed, speech, pause):
    n_frames, mine = 9_000, []
    for clocks, frames in played(  # noqa: B007 - as they are in the end
        ppm, n_frames, jitter=np.random.default_rng(seed), speech=speech, pause=pause
    ):
        mine += np.rint(frames[:, 0, 0] * 2.0**32).astype(int).tolist()
    known = [number for number in mine if number]
    assert known == list(range(1, len(known) + 1))
    assert len(known) >= n_frames - 5 * BLOCK
    assert max(clocks.n_dropped, clocks.n_added) <= 2 * SLACK


def test_an_output_that_plays_nothing_does_not_hold_up_the_microphone():
    clocks = TwoClocks()
    clocks.push(0, numbered(0, 200, speaks=True))
    frames = clocks.pull()
    assert len(frames) == 200 - PATIENCE
    assert not frames[:, 1].any()
    clocks.push(1, numbered(0, 10, speaks=True))
    assert clocks.pull()[:, 1].any()


def test_a_second_that_came_late_is_made_up_for_in_a_pause():
    clocks = TwoClocks()
    n_dropped = 0
    for now in range(0, 6_000, BLOCK):
        clocks.push(0, numbered(now, BLOCK, speaks=True))
        if now >= 100:  # it starts late, and what it has captured meanwhile comes at once
            first = 0 if now == 100 else now
            clocks.push(1, numbered(first, now + BLOCK - first, speaks=now % 200 < 150))
        clocks.pull()
        n_dropped = clocks.n_dropped
    assert clocks.n_added > MOST_SLACK
    assert abs(clocks.n_added - n_dropped) <= SLACK + BLOCK


@pytest.mark.parametrize(
    ("wanted", "sides"),
    [
        ("mic+system", (None, "monitor")),
        ("mic + BlackHole", (None, "BlackHole")),
        ("USB Audio+system", ("USB Audio", "monitor")),
        ("3+system", ("3", "monitor")),
        ("monitor", None),
        ("Focusrite 2+2", None),
        (3, None),
        (None, None),
    ],
)
def test_the_name_of_a_device_says_whether_it_is_both_sides(wanted, sides):
    assert sides_of(wanted) == sides
