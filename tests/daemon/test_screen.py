"""Captions and a progress bar on one terminal."""

from streamd.daemon.screen import Screen
from streamd.sinks.progress import ProgressBar
from streamd.sinks.terminal import TerminalSink
from streamd.sinks.text import Look
from tests.support.emulator import Emulator
from tests.support.said import GAP, spoken

ROWS = ["one two three four", "five six. Seven", "eight nine ten"]


def test_the_bar_stands_below_all_captions_and_leaves_them():
    emulator = Emulator(20, 8)
    emulator.write("$ streamd\r\n")
    clock = iter(range(100))
    bar = ProgressBar(
        emulator, lambda *_: "#####", size=emulator.size, now_s=lambda: float(next(clock))
    )
    screen = Screen(TerminalSink(emulator, Look(), size=emulator.size), bar)
    bar.update(0, 1)
    screen.write(spoken("one two three four five six."))
    assert emulator.rows() == ["$ streamd", ROWS[0], "five six.", "#####"]
    bar.update(0, 1)
    screen.write(spoken("Seven eight nine ten", seq=2, start_ms=2000))
    bar.update(0, 1)
    with screen._above():
        emulator.write("a log line\r\n")
    assert emulator.rows() == ["$ streamd", *ROWS[:2], "a log line", ROWS[2], "#####"]
    emulator.resize(40)
    screen._redraw()
    screen.write(GAP)
    said = [*ROWS[:2], "a log line", ROWS[2], "[1.2 s of audio lost: paused]"]
    assert emulator.rows() == ["$ streamd", *said, "#####"]
    screen.write(spoken("End", seq=3, start_ms=9000))
    screen.close()
    assert emulator.rows() == ["$ streamd", *said, "End"]
