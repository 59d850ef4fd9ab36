"""Live captions on standard output.

On a terminal finals are paragraphs, which break at blanks and end in pauses. The newest rows, up to
half of the screen, are laid out again when the terminal gets another width; older ones are ordinary
lines that are never touched again. The partial stands where it will as a final, so that nothing
jumps when it becomes one. If a speaker is corrected or gets a name, names and breaks of the newest
rows follow.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TextIO

from streamd.events import (
    Event,
    Fault,
    Final,
    Gap,
    Lag,
    Notice,
    Partial,
    Sound,
    SpeakerName,
    SpeakerTurns,
)
from streamd.labels import by_speaker, is_said_by, renamed, revise, revised
from streamd.language import ends_sentence
from streamd.sinks.text import (
    BREATH_MS,
    FAINT,
    LONG_PARAGRAPH,
    PARAGRAPH_PAUSE_MS,
    Look,
    Span,
    after_rows,
    blank_between,
    caption,
    clean,
    gap_notice,
    named,
    paint,
    sound_notice,
    wrapped,
)
from streamd.speakers import SpokenTurn
from streamd.system.stdio import put

Size = Callable[[], tuple[int, int]]
"""Returns the terminal's (columns, lines)."""

_WIPE = "\r\x1b[K\x1b[C\x1b[J\r"
"""Erases from the cursor's row downwards.

Not ``ESC[J`` in the first column: in the first row, tmux takes that for a wish to clear the screen
and saves what stood there, every outdated partial, in its scrollback.
"""
_WRAP_OFF, _WRAP_ON = "\x1b[?7l", "\x1b[?7h"
_CURSOR_OFF, _CURSOR_ON = "\x1b[?25l", "\x1b[?25h"


_BELL = "\a"
_MIC = "microphone"
_METER_CELLS = 10
_FLOOR_DB = -60
"""Level at which the meter shows nothing: that of a quiet room."""


class Region:
    """The rows at the bottom of a terminal that are redrawn; it returns what to write.

    The cursor rests at the *first* cell of the region. To wipe the region it is then enough to
    erase from the cursor downwards, without counting rows: it does not matter whether the terminal
    wraps the rows again when it is resized or cuts them off (xterm), or how it counts the cells of
    an emoji. While the region is drawn, automatic wrapping is off: each row takes one row.

    One flaw remains: a terminal that is made much narrower may push the first rows of the region
    out of the screen, where nothing can erase them.
    """

    def __init__(self) -> None:
        self._rows: list[str] = []

    def draw(self, rows: Sequence[str], above: Sequence[str] = (), *, anew: bool = False) -> str:
        """Return what replaces the present rows; empty if nothing changes, unless it is `anew`.

        The `rows` must fit the terminal; `above` are whole lines to leave above the region. The
        first rows are not drawn again if they stand there already, so that a reader can select
        them.
        """
        old, self._rows = self._rows, list(rows)
        if not above and not anew and self._rows == old:
            return ""
        lines = [*above, *rows]
        # Not the last one: below it the screen may end, and moving down does not scroll.
        pairs = zip(old[:-1], lines[:-1], strict=False)
        same = 0 if anew else sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        wipe = (f"\x1b[{same}B" if same else "") + (_WIPE if old else "")
        gone = "".join(f"{line}\r\n" for line in above[same:])
        if not rows:
            return wipe + (_CURSOR_ON if old else "") + gone
        up = f"\x1b[{len(rows) - 1}A" if len(rows) > 1 else ""
        drawn = "\r\n".join(rows[max(0, same - len(above)) :])
        return wipe + gone + _CURSOR_OFF + _WRAP_OFF + drawn + _WRAP_ON + "\r" + up

    def leave(self) -> str:
        """Return what leaves the present rows standing and moves the cursor below them."""
        end = "\r\n" * len(self._rows) + _CURSOR_ON if self._rows else ""
        self._rows = []
        return end


class _Paragraph:
    """Finals in rows of `columns`; those rows that have left the region cannot be changed."""

    def __init__(self, columns: int) -> None:
        self.rows: list[list[Span]] = []
        self._spans: list[Span] = []
        self._columns, self._n_gone = columns, 0
        self.is_whole = True

    def add(self, spans: Sequence[Span]) -> None:
        """Continue the last row."""
        self._spans += spans
        last = self.rows.pop() if self.rows else []
        self.rows += wrapped([*last, *spans], self._columns)

    def leave(self, n_rows: int) -> list[list[Span]]:
        """Remove and return the first rows."""
        gone, self.rows = self.rows[:n_rows], self.rows[n_rows:]
        self._n_gone += len(gone)
        self.is_whole = self.is_whole and not gone
        return gone

    def fit(self, columns: int) -> None:
        """Lay out what is left for another width."""
        if columns != self._columns:
            self._spans = after_rows(self._spans, self._columns, self._n_gone)
            self._columns, self._n_gone = columns, 0
            self.rows = wrapped(self._spans, columns)


class TerminalSink:
    """Shows live captions on the terminal of `stream`, whose `size` is asked by default."""

    def __init__(self, stream: TextIO, look: Look, *, size: Size | None = None) -> None:
        self._stream, self._look = stream, look
        self._size = size or (lambda: terminal_size(stream))
        self._region = Region()
        self._partials: dict[int, Partial] = {}  # of each channel, 0 if they are mixed
        self._behind_s = 0
        self._meter = ""
        self._status: Callable[[int], str] | None = None
        self._paragraphs: list[_Paragraph] = []
        self._open = False  # whether the last paragraph may go on
        self._end_ms = 0
        self._speaker: int | None = None  # of the last paragraph
        self._text = ""  # of the last paragraph
        # Finals, each with the paragraph that it began, from the first whole paragraph on:
        self._finals: list[tuple[Final, _Paragraph | None]] = []
        self._begins_ms: dict[str, int] = {}  # of the last sound of each label
        self._turns: list[SpokenTurn] = []

    def write(self, event: Event) -> None:
        notice = ""
        if isinstance(event, Partial):
            self._partials[event.channel or 0] = event
            if self._behind_s:  # an engine that has caught up shows it only in its next partial
                self._behind_s = event.lag_ms // 1000
        elif isinstance(event, Final):
            partial = self._partials.get(event.channel or 0)
            if partial is not None and partial.seg <= event.seg:
                del self._partials[event.channel or 0]
            self._behind_s = 0
            self._add(event)
        elif isinstance(event, SpeakerTurns):
            self._revise(event)
        elif isinstance(event, SpeakerName):
            self._rename(event)
        elif isinstance(event, Lag):
            self._behind_s = event.lag_ms // 1000
        else:
            notice = self._notice(event)
        self._open = self._open and not notice
        self._draw(notice)

    def _notice(self, event: Event) -> str:
        """Return the line that says what happened beside the words, once; empty if nothing did."""
        match event:
            case Gap():
                return gap_notice(event)
            case Fault():
                return f"[{clean(event.message)}]"
            case Notice():
                self._put(_BELL)
            case Sound() if self._begins_ms.get(event.label) != event.start_ms:
                self._begins_ms[event.label] = event.start_ms
                return paint([Span(sound_notice(event), FAINT if self._look.ramp else "")])
        return ""

    def _add(self, final: Final) -> None:
        """Add a final, and remember where it stands while that may change."""
        for i, part in enumerate(by_speaker(final) if final.text else ()):
            begins = not self._continues(part)
            self._append(part)
            if i == 0:
                self._finals.append((final, self._paragraphs[-1] if begins else None))
        self._finals = self._finals[next(iter(self._whole()), len(self._finals)) :]

    def _whole(self) -> list[int]:
        """Return which of the remembered finals began a paragraph of which no row has left."""
        standing = [paragraph for paragraph in self._paragraphs if paragraph.is_whole]
        return [i for i, (_, made) in enumerate(self._finals) if made in standing]

    def _revise(self, event: SpeakerTurns) -> None:
        """Follow a correction of who talked, as far as paragraphs can still be changed."""
        self._turns = revised(self._turns, event)
        again = [final for final, _ in self._finals]
        self._write_again(again, revise(again, self._turns, event)[::-1])

    def _rename(self, event: SpeakerName) -> None:
        """Call a speaker by another name, also in paragraphs that can still be changed."""
        self._look = replace(self._look, names=renamed(self._look.names, event))
        again = [final for final, _ in self._finals]
        own = [i for i, final in enumerate(again) if is_said_by(final, event.speaker)]
        self._write_again(again, own)

    def _write_again(self, again: Sequence[Final], changed: Sequence[int]) -> None:
        """Lay out finals again from the first that has changed, as far as that can be done."""
        if not (changed and (whole := self._whole())):
            return
        # The final before may share its paragraph with the first one that has changed.
        at = max((i for i in whole if i < changed[0]), default=whole[0])
        begun = self._finals[at][1]
        kept = takewhile(lambda paragraph: paragraph is not begun, self._paragraphs)
        self._paragraphs, self._finals, self._open = [*kept], self._finals[:at], False
        for final in again[at:]:
            self._add(final)

    def _append(self, final: Final) -> None:
        """Add a final to the paragraph, or begin another."""
        more = self._more(final)
        if not self._continues(final):
            self._paragraphs.append(_Paragraph(self._size()[0]))
            self._text = ""
        self._text += final.text
        self._paragraphs[-1].add(more)
        self._open, self._end_ms = True, final.end_ms
        self._speaker = final.speaker or self._speaker

    def _continues(self, event: Partial | Final) -> bool:
        """Whether a caption belongs to the paragraph of the last final; a stamp begins a line."""
        is_over = len(self._text) >= LONG_PARAGRAPH and ends_sentence(self._text)
        pause_ms = event.start_ms - self._end_ms
        is_soon = pause_ms < (BREATH_MS if is_over else PARAGRAPH_PAUSE_MS)
        same = event.speaker in (None, self._speaker)
        return self._open and is_soon and same and not self._look.stamp(event.start_ms)

    def _last_row(self) -> list[Span]:
        """Return the last row of the finals, if it may go on."""
        return self._paragraphs[-1].rows[-1] if self._open else []

    def _more(self, event: Partial | Final) -> list[Span]:
        """Return a caption, with what stands between it and the paragraph that it continues."""
        spans = caption(event, self._look)
        if not self._continues(event) or not self._last_row():
            return [*named(event.speaker, self._look), *spans]
        return [Span(blank_between(self._last_row()[-1].text, event.text)), *spans]

    def _draw(self, notice: str = "", *, anew: bool = False) -> None:
        """Draw what is left of the finals and what may still change; the rest leaves the region.

        That is at most half of the screen: when a window is made half as wide, rows that wrap must
        not push the region's first one off the screen. Of a longer partial, the end is shown.
        """
        columns, lines = self._size()
        for paragraph in self._paragraphs:
            paragraph.fit(columns)
        available, rows = max(1, lines // 2), [*self._fixed(), *self._changing(columns)]
        above = self._leave(len(rows) if notice else len(rows) - available)
        shown = [paint(row) for row in rows[len(above) :][-available:]]
        self._put(self._region.draw(shown, [*above, notice] if notice else above, anew=anew))

    def _fixed(self) -> list[list[Span]]:
        """Return the rows of the finals, without the last if its paragraph is open."""
        rows = [row for paragraph in self._paragraphs for row in paragraph.rows]
        return rows[:-1] if self._open else rows

    def _leave(self, most: int) -> list[str]:
        """Remove the first fixed rows, `most` at the most, from the region, and return them."""
        gone: list[list[Span]] = []
        n_rows = max(0, min(most, len(self._fixed())))
        for paragraph in self._paragraphs:
            gone += paragraph.leave(n_rows - len(gone))
        self._paragraphs = [paragraph for paragraph in self._paragraphs if paragraph.rows]
        return [paint(row) for row in gone]

    def _changing(self, columns: int) -> list[list[Span]]:
        """Return what may change: the last row of the finals, the partial, lag, level, status."""
        rows: list[list[Span]] = []
        spans = self._last_row()
        partials = [each for each in self._partials.values() if each.text]
        # That which continues the last final comes first.
        partials.sort(key=lambda each: (not self._continues(each), each.start_ms))
        parts = [part for partial in partials for part in by_speaker(partial)]
        if parts:
            if not self._continues(parts[0]):
                rows, spans = wrapped(spans, columns), []
            spans = [*spans, *self._more(parts[0])]
            for part in parts[1:]:
                rows += wrapped(spans, columns)
                spans = [*named(part.speaker, self._look), *caption(part, self._look)]
        elif self._meter and not self._behind_s:
            rows, spans = wrapped(spans, columns), [Span(self._meter, FAINT)]
        if self._behind_s:
            spans = [*spans, Span(f" [{self._behind_s} s behind]", FAINT)]
        status = [[Span(self._status(columns))]] if self._status else []
        return rows + wrapped(spans, columns) + status

    def meter(self, peak: float) -> None:
        level_db = 20 * math.log10(max(peak, 1e-6))
        n_lit = round(_METER_CELLS * min(1.0, max(0.0, 1 - level_db / _FLOOR_DB)))
        self._meter = f"{_MIC} {'█' * n_lit}{'░' * (_METER_CELLS - n_lit)}"
        self._draw()

    def status(self, line: Callable[[int], str] | None) -> None:
        """Show a last row, which `line` makes for the terminal's columns; None removes it."""
        self._status = line
        self._draw()

    def redraw(self) -> None:
        """Fit the newest rows to the terminal's present size: call it on SIGWINCH."""
        self._draw(anew=True)

    @contextmanager
    def above(self) -> Iterator[None]:
        """Keep whole lines that are written to the same terminal inside above what may change."""
        self._put(self._region.draw([], self._leave(len(self._fixed()))))
        try:
            yield
        finally:
            self.redraw()

    def close(self) -> None:
        """Leave the cursor, visible, below everything; words that never became final stay."""
        self._meter, self._status = "", None
        self._draw(anew=True)  # an interrupt that was typed has left ^C at the cursor
        self._put(self._region.leave())
        self._paragraphs, self._partials, self._open = [], {}, False  # not to be drawn again

    def _put(self, text: str) -> None:
        if text:
            put(self._stream, text)


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal that obeys escape sequences."""
    return stream.isatty() and environ.get("TERM") != "dumb"


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return (columns, lines) of the stream's terminal, or 80 x 24 if it is unknown.

    ``COLUMNS`` is ignored: a shell that exports it freezes the width of its start.
    """
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns = lines = 0
    return columns or 80, lines or 24
