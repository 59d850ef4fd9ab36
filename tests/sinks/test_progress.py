from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.sinks.progress import Progress, download_line, transcription_line
from streamd.sinks.terminal import TerminalSink
from streamd.sinks.text import Look, width
from tests.support.emulator import Emulator


def test_the_line_says_how_far_how_fast_and_how_long_still():
    line = transcription_line(
        "talk.flac", position_ms=720_000, duration_ms=1_440_000, speed=8000, columns=100
    )
    assert line == (
        "talk.flac  █████████████████░░░░░░░░░░░░░░░░░   50%  0:12:00 / 0:24:00"
        "  8.0x real time  0:01:30 left"
    )


def test_without_a_duration_there_is_no_bar():
    line = transcription_line("-", position_ms=5000, duration_ms=0, speed=2000, columns=80)
    assert line == "-  0:00:05  2.0x real time"


@given(
    st.text(),
    st.integers(0, 10**8),
    st.integers(0, 10**8),
    st.just(0.0) | st.floats(1e-3, 1e9),
    st.integers(1, 200),
)
def test_the_line_fits_any_terminal(label, position_ms, duration_ms, speed, columns):
    line = transcription_line(
        label,
        position_ms=position_ms,
        duration_ms=duration_ms,
        speed=speed,
        columns=columns,
    )
    assert width(line) <= columns
    assert line.isprintable() or not label.isprintable()


@pytest.fixture
def bar():
    """A bar of ten seconds on a terminal, and a clock that the test moves."""
    emulator, clock = Emulator(80, 24), [0.0]
    terminal = TerminalSink(emulator, Look(), size=emulator.size)
    line = partial(transcription_line, "a.wav")
    return emulator, clock, terminal, Progress(terminal.status, line, now_s=lambda: clock[0])


def test_other_lines_on_the_same_terminal_stay_above_the_bar(bar):
    emulator, clock, terminal, progress = bar
    for second in range(1, 4):
        clock[0] += 1
        progress.update(second * 2000, 10_000)
        with terminal.above():
            emulator.write(f"caption {second}\r\n")
    *captions, shown = emulator.rows()
    assert captions == ["caption 1", "caption 2", "caption 3"]
    assert "60%" in shown
    emulator.resize(40)
    terminal.redraw()
    assert "60%" in emulator.rows()[-1]
    terminal.close()
    assert emulator.rows() == captions
    assert not emulator.screen.cursor.hidden


def test_the_bar_is_drawn_at_most_ten_times_a_second(bar):
    emulator, clock, _, progress = bar
    drawn = set()
    for tick in range(100):
        clock[0] = tick / 64
        progress.update(tick * 100, 10_000)
        drawn.update(emulator.rows())
    assert 10 <= len(drawn) <= 16


def test_a_wide_name_in_a_terminal_of_one_cell_is_left_out():
    numbers = {"position_ms": 0, "duration_ms": 0, "speed": 0.0}
    assert transcription_line("字幕", columns=1, **numbers) == ""


def test_a_download_counts_the_speed_of_what_came_now():
    clock, shown = [0.0], []
    line = partial(download_line, "base.en")
    progress = Progress(shown.append, line, start=200_000_000, now_s=lambda: clock[0])
    progress.update(200_000_000, 290_000_000)
    assert shown.pop()(80).endswith("  69% of 290 MB")
    clock[0] = 1.0
    progress.update(210_000_000, 290_000_000)
    assert shown.pop()(80).endswith("  72% of 290 MB  10.0 MB/s  0:00:08 left")


def test_nothing_to_download_is_all():
    assert "100%" in download_line("x", 0, 0, 0.0, 80)
