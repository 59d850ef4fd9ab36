"""Text for all sinks: cleaned of control characters, measured in cells, wrapped at words.

Also styles captions: colours by confidence, brackets around doubtful words, time stamps.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, islice, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Literal, NamedTuple

from wcwidth import iter_graphemes, wcswidth, wcwidth

from streamd.events import Final, Gap, GapReason, Partial, Sound, TimedWord, aligned
from streamd.labels import Names, name_of
from streamd.language import belongs

_BREAKS = re.compile("[\t\n\v\f\r\x85\u2028\u2029]")
_LAST = "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17))
_UNSAFE = re.compile(
    f"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef{_LAST}]"
)


JOINER = "\u2060"
"""An invisible character that breaks a tag or a command in formats without escapes."""


def clean(text: str) -> str:
    """Return `text` as one line without terminal commands.

    Line breaks and tabs become blanks. Control characters (an escape sequence could retitle the
    window or worse), bidirectional overrides, lone surrogates and noncharacters, which no document
    may contain, become U+FFFD, one for one, so that offsets into the text still hold.
    """
    return _UNSAFE.sub("\ufffd", _BREAKS.sub(" ", text))


def as_cell(text: str) -> str:
    """Return a text that is cleaned for a table: no spreadsheet reads a formula in it."""
    text = clean(text)
    return f" {text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def cells(grapheme: str) -> int:
    """Return the terminal cells that one grapheme takes at most.

    Some terminals draw joined emoji as one glyph of two cells, others draw every part. This is the
    larger count, so a row that fits by it fits everywhere.
    """
    return max(wcswidth(grapheme), sum(max(0, wcwidth(char)) for char in grapheme))


def width(text: str) -> int:
    """Return the terminal cells that a line of text takes at most."""
    return sum(cells(grapheme) for grapheme in iter_graphemes(text))


SPEAKERS = tuple(f"38;5;{colour}" for colour in (166, 32, 29, 169, 136, 62, 30, 244))
"""SGR colours of speakers, which can be read on black and on white.

The first hues are those of Okabe and Ito, which colour-blind people can tell apart.
"""


_NO_NAMES: Names = MappingProxyType({})


def speaker_name(speaker: int | None, names: Names = _NO_NAMES) -> str:
    """Return what a speaker is called (`name_of`), as it may be shown."""
    return clean(name_of(speaker, names))


def label_of(speaker: int | None, names: Names) -> str:
    """Return what stands before the words of a speaker: a name, or nothing if it is not known."""
    name = speaker_name(speaker, names)
    return f"{name}: " if name else ""


RAINBOW = (
    (220, 5, 12),
    (232, 96, 28),
    (241, 147, 45),
    (246, 193, 65),
    (247, 240, 86),
    (144, 201, 135),
    (78, 178, 101),
)
"""Seven steps of Paul Tol's discrete rainbow, red to green, as in whisper.cpp."""
_RAINBOW_256 = (160, 166, 208, 215, 227, 114, 71)
"""The nearest colours in xterm's palette of 256."""
FAINT = "2"
"""SGR faint. Not italic: inside tmux and screen that often comes out as reverse video."""


class Span(NamedTuple):
    """A run of text and its SGR parameters, ``""`` for plain."""

    text: str
    sgr: str = ""


PARAGRAPH_PAUSE_MS = 2000
"""A silence after which a reader expects a new paragraph, as on the caption page."""
LONG_PARAGRAPH = 330
"""Characters, about 60 words, after which a shorter silence behind a sentence ends one, too."""
BREATH_MS = 400


def wrapped(spans: Sequence[Span], columns: int) -> list[list[Span]]:
    """Return the rows of a paragraph, none wider than `columns`.

    They break at blanks, which vanish there, and between wide characters; a word that is longer
    than a row is cut.
    """
    marks = _marks(spans)
    return [_runs(marks[begin:end]) for begin, end in _places(marks, columns)]


def after_rows(spans: Sequence[Span], columns: int, n_rows: int) -> list[Span]:
    """Return what follows the first rows of a paragraph."""
    marks = _marks(spans)
    begin = next((begin for begin, _ in islice(_places(marks, columns), n_rows, None)), len(marks))
    return _runs(marks[begin:])


def chunks(text: str, columns: int) -> Iterator[str]:
    """Cut a cleaned text to rows, of which no blank vanishes."""
    marks, begin = _marks([Span(text)]), 0
    while begin < len(marks):
        end = _row_end(marks, begin, columns)
        yield "".join(mark.text for mark in marks[begin:end])
        begin = end


def _marks(spans: Sequence[Span]) -> list[Span]:
    return [Span(mark, sgr) for text, sgr in spans for mark in iter_graphemes(text)]


def _runs(marks: Sequence[Span]) -> list[Span]:
    runs = groupby(marks, attrgetter("sgr"))
    return [Span("".join(mark.text for mark in run), sgr) for sgr, run in runs]


def _places(marks: Sequence[Span], columns: int) -> Iterator[tuple[int, int]]:
    """Yield where each row begins and ends."""
    begin = 0
    while begin < len(marks):
        end = after = _row_end(marks, begin, columns)
        if end < len(marks):
            while end > begin and marks[end - 1].text == " ":
                end -= 1
            while after < len(marks) and marks[after].text == " ":
                after += 1
        yield begin, end
        begin = after


def _row_end(marks: Sequence[Span], begin: int, columns: int) -> int:
    """Return where the row that begins at `begin` ends; it has at least one mark.

    It ends at a blank or a wide character, or else where its marks do not belong together.
    """
    used = 0
    for end in range(begin, len(marks)):
        used += cells(marks[end].text)
        if used > columns and end > begin:
            places = range(end, begin, -1)
            apart = (at for at in places if not belongs(marks[at - 1].text, marks[at].text))
            return next((at for at in places if _may_break(marks, at)), next(apart, end))
    return len(marks)


def _may_break(marks: Sequence[Span], at: int) -> bool:
    before, after = marks[at - 1].text, marks[at].text
    if " " in (before, after):
        return True
    return (cells(before) == 2 or cells(after) == 2) and not belongs(before, after)


def blank_between(before: str, after: str) -> str:
    """Return what stands between two texts of a paragraph: nothing next to wide letters."""
    if not before or not after or cells(before[-1]) == 2 or cells(after[0]) == 2:
        return ""
    return " "


@dataclass(frozen=True, slots=True)
class Look:
    """The user's choices for captions.

    `ramp` has SGR colours from lowest to highest confidence, or none. `stamp` makes the text before
    a caption from its start in ms. `speakers` has the SGR colours of speakers' names, or none;
    `names` what they are called, by number.
    """

    ramp: tuple[str, ...] = ()
    stamp: Callable[[int], str] = lambda t_ms: ""
    speakers: tuple[str, ...] = ()
    names: Names = field(default_factory=lambda: _NO_NAMES)


def confidence_ramp(environ: Mapping[str, str], *, is_terminal: bool) -> tuple[str, ...]:
    """Return the colours for `Look.ramp`: truecolour if the terminal has it, else of the 256.

    There are none if ``NO_COLOR`` is set to anything (https://no-color.org), nor for what is no
    terminal, unless ``FORCE_COLOR`` is (https://force-color.org).
    """
    if environ.get("NO_COLOR") or not (is_terminal or environ.get("FORCE_COLOR")):
        return ()
    if environ.get("COLORTERM") in ("truecolor", "24bit"):
        return tuple(f"38;2;{red};{green};{blue}" for red, green, blue in RAINBOW)
    return tuple(f"38;5;{color}" for color in _RAINBOW_256)


def stamper(mode: Literal["off", "rel", "clock"], started: datetime) -> Callable[[int], str]:
    """Return `Look.stamp`: ``rel`` counts from the start of the stream, ``clock`` is local time."""
    if mode == "off":
        return lambda t_ms: ""
    if mode == "rel":
        return lambda t_ms: f"[{clock(t_ms)}] "
    return lambda t_ms: f"[{(started + timedelta(milliseconds=t_ms)).astimezone():%H:%M:%S}] "


def clock(t_ms: int) -> str:
    """Return a time as ``h:mm:ss``, rounded down."""
    minutes, seconds = divmod(t_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def timestamp(t_ms: int, point: str = ",") -> str:
    """Return a time as ``hh:mm:ss,ttt``."""
    seconds, ms = divmod(t_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


_GAPS: Mapping[str, str] = {
    GapReason.OVERRUN: "the microphone's driver overflowed",
    GapReason.ENGINE: "the engine was too slow",
    GapReason.DEVICE: "the device was disconnected",
    GapReason.RESTART: "the server was restarted",
    GapReason.RESUME: "the client had lost it",
}


def gap_notice(gap: Gap) -> str:
    """Return the note that readers of a transcript see for a gap."""
    return f"[{gap.duration_ms / 1000:.1f} s of audio lost: {_GAPS.get(gap.why) or clean(gap.why)}]"


def sound_notice(sound: Sound) -> str:
    """Return what readers of a transcript see of a sound, such as ``[music]``."""
    return f"[{clean(sound.label)}]"


def named(speaker: int | None, look: Look) -> list[Span]:
    """Return the name before what a speaker says; nothing where it is not known who speaks."""
    if not speaker:
        return []
    sgr = look.speakers[(speaker - 1) % len(look.speakers)] if look.speakers else ""
    return [Span(f"{speaker_name(speaker, look.names)}:", sgr), Span(" ")]


def caption(event: Partial | Final, look: Look) -> list[Span]:
    """Return the event's text in the user's style; the tentative end of a partial is faint."""
    stable = event.stable if isinstance(event, Partial) else len(event.text)
    stamp = Span(look.stamp(event.start_ms))
    return [stamp, *_spans(event.text, event.words, stable, look)]


def _spans(text: str, words: Sequence[TimedWord], stable: int, look: Look) -> Iterator[Span]:
    # Words need no spans of their own if nothing is shown about them.
    placed = list(aligned(text, words)) if look.ramp else []
    opens = {start: word for start, _, word in placed}
    closes = {end for _, end, _ in placed}
    edges = sorted({0, min(stable, len(text)), len(text), *opens, *closes})
    word = None
    for start, end in pairwise(edges):
        word = opens.get(start, word)
        codes = [FAINT] if start >= stable else []
        if word is not None and word.prob is not None:
            codes.append(look.ramp[rank(word.prob, len(look.ramp))])
        yield Span(clean(text[start:end]), ";".join(codes))
        if end in closes:
            word = None


def rank(prob: float, n_ranks: int = len(RAINBOW)) -> int:
    """Return the colour of a word of this probability, as an index from 0 to ``n_ranks - 1``."""
    # Cubed, as whisper.cpp does: most words are near 1, and the differences there matter.
    return min(int(max(prob, 0.0) ** 3 * n_ranks), n_ranks - 1)


def paint(spans: Iterable[Span]) -> str:
    """Return the spans as terminal text; each styled span resets its style."""
    return "".join(f"\x1b[{sgr}m{text}\x1b[m" if sgr else text for text, sgr in spans)
