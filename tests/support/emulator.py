"""A terminal for tests: pyte with scrollback and three habits of real terminals."""

import pyte
import pyte.modes
from wcwidth import wcwidth


class _Screen(pyte.Screen):
    def __init__(self, columns, lines):
        self.scrollback = []
        super().__init__(columns, lines)

    def index(self):
        if self.cursor.y == self.lines - 1:
            self.scrollback.append(text_of(self.buffer[0]))
        super().index()

    def erase_in_display(self, how=0, *args, **kwargs):
        # tmux (screen_write_clearendofscreen) saves a screen that is cleared from its first cell.
        if how == 0 and (self.cursor.x, self.cursor.y) == (0, 0):
            rows = [text_of(self.buffer[y]) for y in range(self.lines)]
            self.scrollback += [row for row in rows if row]
        super().erase_in_display(how, *args, **kwargs)

    def draw(self, data):
        for char in data:
            wraps = pyte.modes.DECAWM in self.mode
            # A wide character does not fit into a row's last cell.
            if wraps and wcwidth(char) == 2 and self.cursor.x == self.columns - 1:
                self.carriage_return()
                self.linefeed()
            # An accent belongs to the character before it, in a row's last cell too.
            if wraps and wcwidth(char) == 0 and self.cursor.x == self.columns:
                self.mode.discard(pyte.modes.DECAWM)
                super().draw(char)
                self.mode.add(pyte.modes.DECAWM)
            else:
                super().draw(char)


def text_of(line):
    return "".join(line[x].data for x in range(max(line, default=-1) + 1)).rstrip()


class Emulator:
    """Takes what a program writes, shows what a user would see."""

    def __init__(self, columns, lines):
        self.screen = _Screen(columns, lines)
        self._stream = pyte.Stream(self.screen)

    def write(self, text):
        self._stream.feed(text)

    def flush(self):
        pass

    def size(self):
        return self.screen.columns, self.screen.lines

    def resize(self, columns):
        self.screen.resize(columns=columns)

    def rows(self):
        """Scrollback and screen, without the empty rows below."""
        buffer = self.screen.buffer  # makes each row that is asked for, most of which are empty
        rows = [text_of(buffer[y]) if y in buffer else "" for y in range(self.screen.lines)]
        while rows and not rows[-1]:
            rows.pop()
        return self.screen.scrollback + rows

    def cell(self, text):
        """The first cell of the only place where `text` stands on the screen."""
        ((y, x),) = [
            (y, row.index(text)) for y, row in enumerate(self.screen.display) if text in row
        ]
        return self.screen.buffer[y][x]


def plain_rows(text, columns):
    """How a terminal shows `text` if it is simply printed."""
    emulator = Emulator(columns, 100)
    emulator.write(text)
    return emulator.rows()
