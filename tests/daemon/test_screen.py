"""Captions and a progress bar on one terminal."""

from streamd.daemon.screen import Screen
from streamd.sinks import CaptionSink
from streamd.sinks.terminal import TerminalSink
from streamd.sinks.text import Look
from tests.support.emulator import Emulator
from tests.support.said import GAP, spoken

ROWS = ["one two three four", "five six. Seven", "eight nine ten"]


def test_the_bar_stands_below_all_captions_and_leaves_them():
    emulator = Emulator(20, 8)
    emulator.write("$ streamd\r\n")
    screen = Screen(terminal := TerminalSink(emulator, Look(), size=emulator.size))
    terminal.status(lambda columns: "#####")
    screen.write(spoken("one two three four five six."))
    assert emulator.rows() == ["$ streamd", ROWS[0], "five six.", "#####"]
    screen.write(spoken("Seven eight nine ten", seq=2, start_ms=2000))
    with terminal.above():
        emulator.write("a log line\r\n")
    assert emulator.rows() == ["$ streamd", *ROWS[:2], "a log line", ROWS[2], "#####"]
    emulator.resize(40)
    terminal.redraw()
    screen.write(GAP)
    said = [*ROWS[:2], "a log line", ROWS[2], "[1.2 s of audio lost: paused]"]
    assert emulator.rows() == ["$ streamd", *said, "#####"]
    screen.write(spoken("End", seq=3, start_ms=9000))
    screen.close()
    assert emulator.rows() == ["$ streamd", *said, "End"]


def test_a_bar_without_captions_makes_room_for_them():
    emulator = Emulator(40, 8)
    bar = TerminalSink(emulator, Look(), size=emulator.size)

    class Lines(CaptionSink):
        def write(self, event):
            emulator.write(f"{event.text}\r\n")

        def close(self):
            pass

    screen = Screen(Lines(), bar)
    bar.status(lambda columns: "#####")
    screen.write(spoken("one two."))
    assert emulator.rows() == ["one two.", "#####"]
    screen.close()
    assert emulator.rows() == ["one two."]
