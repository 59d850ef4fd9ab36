"""The rows at the bottom of a terminal that are drawn again and again.

The cursor rests at the *first* cell of the region, not behind its end. To wipe the region it is
then enough to erase from the cursor downwards: no count of rows has to be remembered, so it makes
no difference whether the terminal wraps the rows anew when it is resized (most do, and keep the
cursor on its character) or cuts them off (xterm), or how it counts the cells of an emoji. While the
region is drawn, automatic wrapping is off: each row takes one row, whatever it holds.

What remains: a terminal that is made much narrower may push the first rows of the region out of the
screen, where nothing can erase them (tmux does while less than that stands above the region).

Pure: returns what to write. Knows nothing of captions.
"""

from collections.abc import Sequence

_WIPE = "\r\x1b[K\x1b[C\x1b[J\r"
"""Erases from the cursor's row downwards.

Not ``ESC[J`` in the first column: in the first row, tmux takes that for a wish to clear the screen
and saves what stood there, every outdated partial, in its scrollback.
"""
_WRAP_OFF, _WRAP_ON = "\x1b[?7l", "\x1b[?7h"
_CURSOR_OFF, _CURSOR_ON = "\x1b[?25l", "\x1b[?25h"


class Region:
    """What the bottom of one terminal shows now."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def draw(self, rows: Sequence[str], above: str = "") -> str:
        """Show `rows` instead of the present ones.

        Parameters
        ----------
        rows : no wider than the terminal and no more than it has, without line breaks
        above : text to leave above the region for good: whole lines, each ended by CR LF

        Returns
        -------
        What to write to the terminal, in one go; empty if nothing changes.
        """
        if not above and list(rows) == self._rows:
            return ""
        wipe = _WIPE if self._rows else ""
        show = _CURSOR_ON if self._rows and not rows else ""
        self._rows = list(rows)
        return wipe + show + above + self._drawn()

    def redraw(self) -> str:
        """What draws the present rows over whatever stands there now."""
        return _WIPE + self._drawn() if self._rows else ""

    def leave(self) -> str:
        """What leaves the present rows standing and goes on below them, with no region."""
        end = "\r\n" * len(self._rows) + _CURSOR_ON if self._rows else ""
        self._rows = []
        return end

    def _drawn(self) -> str:
        if not self._rows:
            return ""
        up = f"\x1b[{len(self._rows) - 1}A" if len(self._rows) > 1 else ""
        return _CURSOR_OFF + _WRAP_OFF + "\r\n".join(self._rows) + _WRAP_ON + "\r" + up
