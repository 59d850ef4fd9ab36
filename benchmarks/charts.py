"""Draws the charts of the documents: ``python benchmarks/charts.py``.

words.json has the words that are wrong with each model, for the tables of README.md, docs/models.md
and RESULTS.md between two comments.

Those of docs/figures.md come from figures.json, names.json and recordings.json, docs/scale.svg from
scale.json, which is the last line that `thousand_nodes.py` prints, and before it date, commit, load
and command. names.json has the rows of `names.py`, each with the program, and the same before them;
recordings.json, likewise, is the last line of `recordings.py` with tiny.en.

figures.json is the last line that `live_peers.py` prints, of one run over all programs, and before
it date, commit, machine, load, command and sounds. Nothing of another run goes into it, so what is
in one chart was measured in one sitting. This writes docs/accuracy.svg, docs/latency.svg and the
tables in RESULTS.md between two comments.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from html import escape
from itertools import pairwise
from math import floor, log10
from pathlib import Path

import msgspec

from tables import table

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "figures.json"
SCALE = HERE / "scale.json"
NAMES = HERE / "names.json"
RECORDINGS = HERE / "recordings.json"
WORDS = HERE / "words.json"
RESULTS = HERE / "RESULTS.md"
README = HERE.parent / "README.md"
CHARTS = HERE.parent / "docs"

MODEL = "tiny.en"
"""The model of the charts; it is the only one that every program was measured with."""
TIMED = "A"
"""The sound of the chart of times: medians of two sounds have no sum, and A has more words."""
OURS = "streamd"
_NAMES = {
    "whisper.cpp stream": "whisper.cpp stream, 3 s",
    "whisper.cpp stream, 500 ms, -ac 384": "whisper.cpp stream, 0.5 s",
    "faster-whisper": "faster-whisper, 0.5 s",
    "Moonshine": "Moonshine, its own model",
}
"""What the charts call a program that has steps, or another model."""
_BEGIN, _END = "<!-- made by `make docs` from figures.json -->", "<!-- end -->"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A program with a sound; what the columns mean says `live_peers.py`."""

    wer: str = msgspec.field(name="WER %")
    shown: str = msgspec.field(name="first shown")
    committed: str
    final: str = msgspec.field(name="in a final")
    erased: str
    twice: int
    cpu: float = msgspec.field(name="CPU s/s")
    lost: str
    mb: int = msgspec.field(name="MB")
    version: str


class Played(msgspec.Struct, frozen=True):
    """A sound: how many words are compared, and how long it is."""

    words: int
    seconds: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """When and how something was measured."""

    date: str
    commit: str
    load: str
    command: str

    @property
    def day(self) -> str:
        """The date as it is written in a sentence."""
        day = date.fromisoformat(self.date)
        return f"{day.day} {day:%B %Y}"


class Sitting(Measured, frozen=True, kw_only=True):
    """What was measured in one sitting."""

    machine: str
    sounds: dict[str, Played]
    live: dict[str, dict[str, Row]]

    def rows(self, model: str) -> dict[str, dict[str, Row]]:
        """Of each program, its rows by sound."""
        found: dict[str, dict[str, Row]] = {}
        for sound in self.sounds:
            for program, row in self.live.get(f"{model}, {sound}", {}).items():
                found.setdefault(program, {})[sound] = row
        return found


def read(path: Path = FIGURES) -> Sitting:
    """Return what was measured."""
    return msgspec.json.decode(path.read_bytes(), type=Sitting)


def read_scale(path: Path = SCALE) -> "Scale":
    """Return what was computed for many nodes."""
    return msgspec.json.decode(path.read_bytes(), type=Scale)


def read_names(path: Path = NAMES) -> "Names":
    """Return how well expected words are heard."""
    return msgspec.json.decode(path.read_bytes(), type=Names)


def read_recordings(path: Path = RECORDINGS) -> "Recordings":
    """Return what programs made of a whole recording."""
    return msgspec.json.decode(path.read_bytes(), type=Recordings)


# -- the table -------------------------------------------------------------------------------


def tables(sitting: Sitting) -> str:
    """A table for each model, in Markdown; in each cell all sounds."""
    models = dict.fromkeys(name.split(", ")[0] for name in sitting.live)
    return "\n\n".join(_table(sitting, model) for model in models)


def _table(sitting: Sitting, model: str) -> str:
    head = (
        *(model, "WER %", "twice", "first shown", "committed", "in a final", "erased"),
        *("CPU s/s (times streamd's)", "lost", "MB"),
    )
    programs = sitting.rows(model)
    lines = []
    for program, rows in programs.items():
        cells = [_cells(row, programs[OURS][sound]) for sound, row in rows.items()]
        cells += [["–"] * len(cells[0])] * (len(sitting.sounds) - len(cells))
        name = f"**{program}**" if program == OURS else program
        lines.append((name, *map(", ".join, zip(*cells, strict=True))))
    return table(head, lines)


def _cells(row: Row, ours: Row) -> list[str]:
    cpu = f"{row.cpu:.2f} ({row.cpu / ours.cpu:.0f})"
    times = (row.shown, row.committed, row.final)
    return [row.wer, str(row.twice), *times, row.erased, cpu, row.lost, str(row.mb)]


def with_tables(page: str, sitting: Sitting) -> str:
    """Return the page with the current tables between its two comments."""
    made = f"{_BEGIN}\n\n{tables(sitting)}\n\n{_END}"
    changed, n = re.subn(
        f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: made, page, flags=re.S
    )
    assert n == 1, "RESULTS.md has no place for the tables"
    return changed


# -- what charts consist of ------------------------------------------------------------------

WIDTH = 700
CHARACTER = 7.5
"""How wide one is at most, on average."""
_STYLE = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; \
paint-order: stroke; stroke-width: 4 }
.head { font-size: 16px; font-weight: 600 }
.note { font-size: 12px }
.ours { font-weight: 600 }
text { fill: #1f2328; stroke: #ffffff }
.soft, .note, .grey { fill: #59636e }
.blue { fill: #0072b2 }
.orange { fill: #b34e00 }
.paper { fill: #ffffff }
line { stroke: #d8dee4 }
line.blue { stroke: #0072b2; stroke-width: 2.5 }
line.orange { stroke: #b34e00; stroke-width: 2.5 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; stroke: #0d1117 }
.soft, .note, .grey { fill: #9aa4af }
.blue { fill: #56b4e9 }
.orange { fill: #e69f00 }
.paper { fill: #0d1117 }
line { stroke: #30363d }
line.blue { stroke: #56b4e9 }
line.orange { stroke: #e69f00 }
}
"""
"""Blue and orange of Okabe and Ito, the orange darker on white: everybody can tell them apart, and
their contrast to the paper is at least 4.5. Text has a rim in that colour, for rules behind it."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that something is drawn in."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether the two have a point in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def inside(self, other: "Box") -> bool:
        """Whether it does not leave the other one."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A horizontal axis on which equal ratios have equal lengths."""

    low: float
    high: float
    left: float
    right: float

    @classmethod
    def over(cls, values: Iterable[float], *, left: float, right: float) -> "LogAxis":
        """An axis from a round number below the values to one above them."""
        some = sorted(values)
        numbers = _round_numbers(some[0], some[-1])
        return cls(numbers[0], numbers[-1], left, right)

    def at(self, value: float) -> float:
        """Return where a value is."""
        share = log10(value / self.low) / log10(self.high / self.low)
        return round(self.left + share * (self.right - self.left), 1)

    def drawn(self, meaning: str, *, top: float, bottom: float) -> Iterator[str]:
        """A rule and a number for each round number, and below them what they are."""
        for number in _round_numbers(self.low, self.high):
            x = self.at(number)
            yield _line((x, top), (x, bottom))
            yield _text(x, bottom + 19, f"{number:g}", "soft", "middle")
        yield _text(self.right, bottom + 39, meaning, "soft", "end")


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last up to `low` to the first from `high` on."""
    powers = range(floor(log10(low)), floor(log10(high)) + 2)
    numbers = [float(f"{m}e{n}") for n in powers for m in (1, 2, 5)]
    first = max(number for number in numbers if number <= low)
    last = min(number for number in numbers if number >= high)
    return [number for number in numbers if first <= number <= last]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    look = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{look}{where}>{escape(text, quote=False)}</text>'


def _line(begin: tuple[float, float], end: tuple[float, float], kind: str = "") -> str:
    (x1, y1), (x2, y2) = begin, end
    look = f' class="{kind}"' if kind else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{look}/>'


def _dot(x: float, y: float, kind: str, *, radius: float = 4.5) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}"/>'


def _svg(bottom: float, words: tuple[str, str], lines: list[str], notes: str) -> str:
    """A picture: its title, what it shows in words, what is drawn above `bottom`, and notes."""
    title, about = (escape(text, quote=False) for text in words)
    below = textwrap.wrap(notes, 96)
    height = bottom + 54 + 17 * len(below)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title about">',
            f'<title id="title">{title}</title>',
            f'<desc id="about">{about}</desc>',
            f"<style>\n{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height:g}" rx="6" class="paper"/>',
            _text(20, 32, words[0], "head"),
            *lines,
            *(_text(20, bottom + 62 + 17 * i, note, "note") for i, note in enumerate(below)),
            "</svg>\n",
        )
    )


# -- the charts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside a point: where it is written, and the box that it takes."""

    x: float
    y: float
    anchor: str
    box: Box

    @classmethod
    def at(cls, x: float, y: float, anchor: str, *, width: float) -> "Label":
        """A label whose text begins, ends or has its middle at `x`."""
        left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
        return cls(x, y, anchor, Box(left, y - 8, left + width, y + 8))


def labels(
    places: Sequence[tuple[float, float]], widths: Sequence[float], area: Box
) -> list[Label]:
    """Write beside each point: right of it, or left, above or below, where there is room."""
    taken = [Box(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    found = []
    for (x, y), width in zip(places, widths, strict=True):
        choices = [
            Label.at(x + dx, y + dy, anchor, width=width)
            for dx, dy, anchor in (
                *((11, 0, "start"), (-11, 0, "end"), (0, -16, "middle"), (0, 16, "middle")),
                *((7, -16, "end"), (7, 16, "end"), (-7, -16, "start"), (-7, 16, "start")),
            )
        ]
        free = [
            label
            for label in choices
            if label.box.inside(area) and not any(label.box.meets(box) for box in taken)
        ]
        found.append((free or choices)[0])
        taken.append(found[-1].box)
    return found


@dataclass(frozen=True, slots=True)
class Point:
    """A program: CPU seconds per second, and words wrong in per cent, of all sounds together."""

    program: str
    cpu: float
    wrong: float


def points(sitting: Sitting) -> list[Point]:
    """Return the points of the chart of words against CPU time."""
    found = []
    n_words = sum(sound.words for sound in sitting.sounds.values())
    seconds = sum(sound.seconds for sound in sitting.sounds.values())
    for program, rows in sitting.rows(MODEL).items():
        sounds = [(sitting.sounds[name], row) for name, row in rows.items()]
        n_wrong = sum(round(float(row.wer) * sound.words / 100) for sound, row in sounds)
        cpu_s = sum(row.cpu * sound.seconds for sound, row in sounds)
        found.append(Point(program, cpu_s / seconds, 100 * n_wrong / n_words))
    return found


def accuracy(sitting: Sitting) -> str:
    """The chart of words wrong against CPU time, as SVG."""
    n_words = sum(sound.words for sound in sitting.sounds.values())
    notes = (
        f"{n_words} words, {MODEL}, one thread, {sitting.day}, on a machine that other work "
        "slowed down, so all CPU times are too long. WhisperLiveKit, WhisperLive and RealtimeSTT "
        "compute whenever they can: this is what they take, not what they need."
    )
    found = [
        replace(point, program=_NAMES.get(point.program, point.program))
        for point in points(sitting)
    ]
    return _scattered("Words wrong and CPU time of live captions", found, notes)


def _scattered(title: str, found: Sequence[Point], notes: str) -> str:
    """A chart of words wrong against CPU time."""
    top, bottom = 100, 380
    axis = LogAxis.over((point.cpu for point in found), left=52, right=WIDTH - 24)
    most = 2 * (int(max(point.wrong for point in found) / 2) + 1)
    heights = {wrong: bottom - wrong * (bottom - top) / most for wrong in range(0, most + 1, 2)}
    places = [(axis.at(p.cpu), round(bottom - p.wrong * (bottom - top) / most, 1)) for p in found]
    area = Box(axis.left, top - 10, WIDTH - 10, bottom)
    beside = labels(places, [CHARACTER * len(point.program) for point in found], area)
    lines = [
        _text(20, 54, "Nearer to the lower left corner is better.", "soft"),
        _text(20, 84, "words wrong, %", "soft"),
        *axis.drawn("CPU seconds per second of speech, logarithmic", top=top, bottom=bottom),
        *(_line((axis.left, y), (axis.right, y)) for y in heights.values()),
        *(_text(axis.left - 10, y + 4, str(n), "soft", "end") for n, y in heights.items()),
    ]
    for point, (x, y), label in zip(found, places, beside, strict=True):
        ours = point.program == OURS
        lines.append(_dot(x, y, "blue" if ours else "grey", radius=7 if ours else 5))
        kind = "ours" if ours else ""
        lines.append(_text(label.x, label.y + 4, point.program, kind, label.anchor))
    told = "; ".join(
        f"{point.program} {point.wrong:.1f} % and {point.cpu:.2g} s" for point in found
    )
    return _svg(bottom, (title, told), lines, notes)


def delays(sitting: Sitting) -> list[tuple[str, list[float], list[float]]]:
    """Median and 95 % until a word is shown and until it stays; who is soonest comes first."""
    rows = sitting.live[f"{MODEL}, {TIMED}"]
    found = [(name, _seconds(row.shown), _seconds(row.committed)) for name, row in rows.items()]
    return sorted(found, key=lambda each: each[2])


def _seconds(cell: str) -> list[float]:
    return [float(number) for number in cell.split("/")]


def latency(sitting: Sitting) -> str:
    """The chart of when words are shown and when they can no longer change, as SVG."""
    found = delays(sitting)
    times = [s for _, shown, stays in found for s in (*shown, *stays)]
    axis = LogAxis.over(times, left=270, right=WIDTH - 50)
    top, pitch = 74, 38
    bottom = top + pitch * len(found)
    about = "The dot is the median. The line ends where 95 of 100 words are there."
    below = "seconds after the end of the word, logarithmic"
    lines = [_text(20, 54, about, "soft"), *axis.drawn(below, top=top, bottom=bottom)]
    for i, (program, shown, stays) in enumerate(found):
        middle = top + pitch * i + pitch / 2
        name, kind = _NAMES.get(program, program), "ours" if program == OURS else ""
        lines.append(_text(20, middle + 4, name, kind))
        meanings = ("", "") if i else ("shown", "can no longer change")
        lines += _span(axis, shown, middle - 8, colour="orange", meaning=meanings[0])
        lines += _span(axis, stays, middle + 8, colour="blue", meaning=meanings[1])
    told = "; ".join(
        f"{_NAMES.get(program, program)} {_short(shown[0])} and {_short(stays[0])} s"
        for program, shown, stays in found
    )
    notes = (
        f"{sitting.sounds[TIMED].words} words, {MODEL}, one thread, {sitting.day}; words that are "
        "right in the end. RealtimeSTT ran on a slowed real clock, so its times are too long."
    )
    title = "When a word is shown, and when it can no longer change"
    return _svg(bottom, (title, f"Medians: {told}"), lines, notes)


def _span(
    axis: LogAxis, spread: list[float], y: float, *, colour: str, meaning: str
) -> Iterator[str]:
    """A median and a 95th percentile with their numbers, and what they are if it is to be said."""
    begin, end = (axis.at(seconds) for seconds in spread)
    low, high = map(_short, spread)
    yield _line((begin, y), (end, y), colour)
    yield _dot(begin, y, colour)
    yield _text(begin - 9, y + 4, low, colour, "end")
    yield _text(end + 6, y + 4, high, "soft")
    if meaning:
        yield _text(end + 14 + CHARACTER * len(high), y + 4, meaning, colour)


def _short(seconds: float) -> str:
    """Two digits that count."""
    return f"{seconds:.{2 if seconds < 1 else 1 if seconds < 10 else 0}f}"


class Scale(Measured, frozen=True, kw_only=True):
    """What `thousand_nodes.py` computed."""

    simulated: list[dict[str, float]]


def carried(scale: Scale) -> str:
    """The chart of how busy NATS is with so many nodes, as SVG."""
    top, bottom, most = 90, 330, 100
    rows = scale.simulated
    axis = LogAxis.over((row["nodes"] for row in rows), left=52, right=WIDTH - 40)
    heights = {share: bottom - share * (bottom - top) / most for share in range(0, most + 1, 25)}
    lines = [
        _text(20, 54, "Share of a processor core that each stream of NATS takes, %", "soft"),
        *axis.drawn("nodes on one NATS cluster, 100 sessions each", top=top, bottom=bottom),
        *(_line((axis.left, y), (axis.right, y)) for y in heights.values()),
        *(_text(axis.left - 10, y + 4, str(n), "soft", "end") for n, y in heights.items()),
    ]
    told = []
    names = {"leases": ("orange", "leases", -12, "end"), "log": ("blue", "finals", 14, "start")}
    for stream, (colour, name, aside, anchor) in names.items():
        busy = [row[f"{stream} busy %"] for row in rows]
        places = [
            (axis.at(row["nodes"]), round(bottom - share * (bottom - top) / most, 1))
            for row, share in zip(rows, busy, strict=True)
            if share <= most
        ]
        lines += [_line(a, b, colour) for a, b in pairwise(places)]
        lines += [_dot(x, y, colour) for x, y in places]
        x, y = places[-2]
        lines.append(_text(x + aside, y + aside, name, colour, anchor))
        told.append(f"{name} {busy[0]:g} % at {rows[0]['nodes']:g} nodes to {busy[-1]:g} %")
    notes = (
        f"Simulated from what one machine measured ({scale.date}; load {scale.load}). Above 100 % "
        "requests wait ever longer; a stream has no second core, so more nodes need more clusters."
    )
    about = f"At {rows[-1]['nodes']:g} nodes of streamd: {'; '.join(told)}"
    return _svg(bottom, ("How busy nodes keep NATS", about), lines, notes)


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Rare words that are right with a list, and false alarms in 1,000 words; see `names.py`."""

    program: str
    listed: int
    weight: float
    right: str = msgspec.field(name="rare right %")
    alarms: str = msgspec.field(name="false alarms /1000")

    @property
    def label(self) -> str:
        """The list in words."""
        if not self.listed:
            return "no list"
        weight = f", weight {self.weight:g}" if self.program == OURS else ""
        return f"{self.listed:,} phrases{weight}"


class Names(Measured, frozen=True, kw_only=True):
    """What `names.py` measured with one model."""

    of: int
    rows: list[Heard]


def expected(names: Names) -> str:
    """The chart of rare words right and of false alarms, as SVG."""
    top, pitch, left, right = 82, 26, 216, WIDTH - 190
    shares = [float(row.right) for row in names.rows]
    low, high = 10 * floor(min(shares) / 10), 10 * (floor(max(shares) / 10) + 1)
    programs = list(dict.fromkeys(row.program for row in names.rows))
    bottom = top + pitch * (len(names.rows) + len(programs))

    def at(share: float) -> float:
        return round(left + (share - low) / (high - low) * (right - left), 1)

    lines = [
        _text(20, 54, "Rare words that are right, %, and those invented in 1,000 words", "soft"),
        *(_line((at(n), top), (at(n), bottom)) for n in range(low, high + 1, 5)),
        *(_text(at(n), bottom + 19, str(n), "soft", "middle") for n in range(low, high + 1, 5)),
    ]
    y = top
    for program in programs:
        kind = "blue" if program == OURS else "grey"
        y += pitch
        lines.append(_text(20, y - 8, program, "ours" if program == OURS else ""))
        for row in (row for row in names.rows if row.program == program):
            y += pitch
            lines.append(_text(left - 14, y - 8, row.label, "soft", "end"))
            lines.append(_dot(at(float(row.right)), y - 12, kind))
            lines.append(_text(right + 20, y - 8, f"{row.right} %, {row.alarms} invented", kind))
    told = "; ".join(f"{row.program}, {row.label}: {row.right} %" for row in names.rows)
    notes = (
        f"{names.of} rare words, {MODEL}, recordings, {names.day}; of speakers with whom "
        "no setting was chosen. The list has these words and others."
    )
    return _svg(bottom, ("What a list of expected words is worth", told), lines, notes)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What a program made of a whole recording; see `recordings.py`."""

    run: str
    cpu_s: float
    words: int
    substituted: int
    deleted: int
    inserted: int

    @property
    def wrong(self) -> float:
        """Per cent of the words."""
        return 100 * (self.substituted + self.deleted + self.inserted) / self.words


class Recordings(Measured, frozen=True, kw_only=True):
    """What `recordings.py` measured with one model."""

    minutes: float
    threads: int
    recordings: list[Read]


def whole(heard: Recordings) -> str:
    """The chart of words wrong against CPU time in whole recordings, as SVG."""
    found = [
        Point(each.run, each.cpu_s / (60 * heard.minutes), each.wrong) for each in heard.recordings
    ]
    notes = (
        f"{heard.recordings[0].words:,} words in {heard.minutes:g} minutes, {MODEL}, "
        f"{heard.threads} threads, {heard.day}. The start counts. whisper.cpp computes in "
        "float16, openai-whisper in float32, the others in int8."
    )
    return _scattered("Words wrong and CPU time of whole recordings", found, notes)


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """A model: the words that are wrong by sound, live and of whole recordings.

    `disk` is the size of its files, `cpu_s` what a second of a live stream takes.
    """

    disk: str
    languages: str
    cpu_s: float
    live: dict[str, int]
    whole: dict[str, int]


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What `quality.py` measured: the words of each sound, and each model's mistakes."""

    date: date
    commit: str
    machine: str
    command: str
    sounds: dict[str, int]
    models: dict[str, Wrong]

    def percent(self, wrong: dict[str, int]) -> str:
        """The words wrong of all sounds."""
        return f"{100 * sum(wrong.values()) / sum(self.sounds.values()):.1f} %"


def read_words() -> Words:
    """Return the words wrong with each model."""
    return msgspec.json.decode(WORDS.read_bytes(), type=Words)


def words_wrong(words: Words) -> str:
    """The table for users."""
    head = ["model", "disk", "a live stream takes", "words wrong, live", "recordings", "languages"]
    lines = [
        [
            f"{name}, bundled" if name == MODEL else name,
            each.disk,
            f"{each.cpu_s:.2f} of a core",
            words.percent(each.live),
            words.percent(each.whole),
            each.languages,
        ]
        for name, each in words.models.items()
    ]
    return table(head, lines)


def words_by_sound(words: Words) -> str:
    """The table for developers, in per cent."""
    runs = [run for each in words.models.values() for run in (each.live, each.whole)]
    head = ["", "words", *(f"{name}, {run}" for name in words.models for run in ("live", "whole"))]
    lines = [
        [sound, f"{n:,}", *(f"{100 * run[sound] / n:.2f}" for run in runs)]
        for sound, n in words.sounds.items()
    ]
    n_all = sum(words.sounds.values())
    last = ["**together**", f"{n_all:,}", *(f"**{words.percent(run)}**" for run in runs)]
    return table(head, [*lines, last])


_WORDS_BEGIN = "<!-- made by benchmarks/charts.py from benchmarks/words.json -->"


def with_words(text: str, table_of_words: str) -> str:
    """The page with that table between its two comments."""
    before, found, rest = text.partition(_WORDS_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, "the page has no place for the table"
    return f"{before}{found}\n{table_of_words}\n{end}{after}"


def made(sitting: Sitting, scale: Scale, names: Names, recordings: Recordings) -> dict[Path, str]:
    """The files that follow from the figures, with their contents."""
    words = read_words()
    results = with_tables(RESULTS.read_text(encoding="utf-8"), sitting)
    shown = words_wrong(words)
    pages = {
        path: with_words(path.read_text(encoding="utf-8"), shown)
        for path in (README, CHARTS / "models.md", CHARTS / "figures.md")
    }
    return pages | {
        CHARTS / "recordings.svg": whole(recordings),
        CHARTS / "accuracy.svg": accuracy(sitting),
        CHARTS / "latency.svg": latency(sitting),
        CHARTS / "scale.svg": carried(scale),
        CHARTS / "names.svg": expected(names),
        RESULTS: with_words(results, words_by_sound(words)),
    }


def main() -> None:
    """Write them."""
    for path, text in made(read(), read_scale(), read_names(), read_recordings()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
