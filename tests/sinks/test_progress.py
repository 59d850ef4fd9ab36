import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.sinks.progress import ProgressBar, progress_line
from streamd.sinks.text import width
from tests.support.emulator import Emulator


def test_the_line_says_how_far_how_fast_and_how_long_still():
    line = progress_line(
        "talk.flac", position_ms=720_000, duration_ms=1_440_000, elapsed_s=90, columns=100
    )
    assert line == (
        "talk.flac  █████████████████░░░░░░░░░░░░░░░░░   50%  0:12:00 / 0:24:00"
        "  8.0x real time  0:01:30 left"
    )


def test_without_a_duration_there_is_no_bar():
    line = progress_line("-", position_ms=5000, duration_ms=0, elapsed_s=2.5, columns=80)
    assert line == "-  0:00:05  2.0x real time"


@given(
    st.text(),
    st.integers(0, 10**8),
    st.integers(0, 10**8),
    st.floats(0, 10**6),
    st.integers(1, 200),
)
def test_the_line_fits_any_terminal(label, position_ms, duration_ms, elapsed_s, columns):
    line = progress_line(
        label,
        position_ms=position_ms,
        duration_ms=duration_ms,
        elapsed_s=elapsed_s,
        columns=columns,
    )
    assert width(line) <= columns
    assert line.isprintable() or not label.isprintable()


@pytest.fixture
def bar():
    """A bar of ten seconds on a terminal, and a clock that the test moves."""
    emulator = Emulator(80, 24)
    clock = [0.0]
    bar = ProgressBar(emulator, "a.wav", size=emulator.size, now_s=lambda: clock[0])
    return emulator, clock, bar


def test_captions_on_the_same_terminal_stay_above_the_bar(bar):
    emulator, clock, bar = bar
    for second in range(1, 4):
        clock[0] += 1
        bar.update(second * 2000, 10_000)
        with bar.above():
            emulator.write(f"caption {second}\r\n")
    *captions, shown = emulator.rows()
    assert captions == ["caption 1", "caption 2", "caption 3"]
    assert "60%" in shown
    bar.close()
    assert emulator.rows() == captions
    assert not emulator.screen.cursor.hidden


def test_the_bar_is_drawn_at_most_ten_times_a_second(bar):
    emulator, clock, bar = bar
    drawn = set()
    for tick in range(100):
        clock[0] = tick / 64
        bar.update(tick * 100, 10_000)
        drawn.update(emulator.rows())
    assert 10 <= len(drawn) <= 16


def test_a_wide_name_in_a_terminal_of_one_cell_is_left_out():
    numbers = {"position_ms": 0, "duration_ms": 0, "elapsed_s": 0.0}
    assert progress_line("字幕", columns=1, **numbers) == ""
