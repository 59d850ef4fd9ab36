"""The formats of transcripts, by name."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from unicodedata import bidirectional

from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import Event, Final, Gap, Item, Sound, SpeakerName, aligned, encode
from streamd.options import CueLayout
from streamd.sinks import Format
from streamd.sinks.cues import MIN_CUE_MS, Cue, Cues, Piece, joined
from streamd.sinks.documents import Json
from streamd.sinks.markers import Markers
from streamd.sinks.text import (
    FAINT,
    JOINER,
    PARAGRAPH_PAUSE_MS,
    RAINBOW,
    Look,
    Span,
    as_cell,
    blank_between,
    caption,
    clean,
    clock,
    gap_notice,
    label_of,
    named,
    paint,
    rank,
    sound_notice,
    speaker_name,
    timestamp,
)


class Text(Format):
    """One line for each final, for each sound, and for each gap, which would look like silence."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look()
        self.names = {**self._look.names}

    def _final(self, final: Final) -> str:
        look = dataclasses.replace(self._look, names=self.names)
        return paint([*named(final.speaker, look), *caption(final, look)]) + "\n"

    def _gap(self, gap: Gap) -> str:
        return gap_notice(gap) + "\n"

    def _sound(self, sound: Sound) -> str:
        return paint([Span(sound_notice(sound), FAINT if self._look.ramp else "")]) + "\n"


_MARKED = re.compile(r"[\\`*_\[\]<>#|~]|^\s*(?:[-+=]|\d+[.)])")
"""What Markdown would take for more than text (https://spec.commonmark.org/0.31.2/)."""


class Paragraphs(Format):
    """A line for each final, or where it is known who speaks, a paragraph for each turn.

    A turn has several if the speaker pauses. `stamp` makes the time before each from its start. In
    `markdown`, a blank line is between paragraphs, and names are bold.
    """

    stamp: Callable[[int], str] = staticmethod(lambda t_ms: "")

    def __init__(self, *, markdown: bool = False) -> None:
        self._last: Final | None = None  # of a paragraph that may go on
        self._markdown, self._between = markdown, "\n\n" if markdown else "\n"

    def end(self, *, complete: bool) -> str:
        return "\n" if self._last else ""

    def rest(self, final: Final) -> str:
        """Return the end of the line, if there is one, after which the next one begins."""
        end, self._last = self._between if self._last else "", None
        return end

    def _final(self, final: Final) -> str:
        before, self._last = self._last, final
        text = self._plain(final.text.strip("\n"))
        breaks = self._plain(_at_edges(before.text if before else "", final.text))
        if not text:  # only "new line" was said
            self._last = before and replace(before, text=before.text + final.text)
            return ""
        if before is not None and self._goes_on(before, final):
            return (breaks or blank_between(before.text, final.text)) + text
        name = self._plain(speaker_name(final.speaker, self.names))
        bold = "**" if self._markdown else ""
        who = f"{bold}{name}:{bold} " if name else ""
        shown = f"{self._plain(self.stamp(final.start_ms))}{who}{text}"
        return f"{max(self._between, breaks, key=len)}{shown}" if before else shown

    def _plain(self, text: str) -> str:
        """Return what shows a text as it is, with its line breaks."""
        lines = map(clean, text.split("\n"))
        if not self._markdown:
            return "\n".join(lines)
        text = "\n".join(_MARKED.sub(_escaped, line) for line in lines)
        return re.sub("\n+", lambda found: "\n\n" if found[0][1:] else "\\\n", text)

    @staticmethod
    def _goes_on(before: Final, final: Final) -> bool:
        pause_ms = final.start_ms - before.end_ms
        same = bool(final.speaker) and final.speaker == before.speaker
        return same and pause_ms < PARAGRAPH_PAUSE_MS

    def _gap(self, gap: Gap) -> str:
        return self._line(gap_notice(gap))

    def _sound(self, sound: Sound) -> str:
        return self._line(f"{self.stamp(sound.start_ms)}{sound_notice(sound)}")

    def _line(self, notice: str) -> str:
        """Return a line of its own, after which the next final begins another."""
        end, self._last = self._between if self._last else "", None
        return f"{end}{self._plain(notice)}{self._between}"


def _at_edges(before: str, after: str) -> str:
    """Return the line breaks at the end of a text and at the beginning of the next one."""
    return before[len(before.rstrip("\n")) :] + after[: -len(after.lstrip("\n")) or None]


def _escaped(found: re.Match[str]) -> str:
    return f"{found[0][:-1]}\\{found[0][-1]}"


class Jsonl(Format):
    """Events as lines of JSON, in the wire form of docs/protocol.md.

    A file has only the events that last: finals, gaps and sounds, and at its end what speakers are
    called. With `everything` there are partials and all others, too, each when it came.
    """

    repeats = True

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything

    def append(self, event: Event) -> str:
        super().append(event)
        if not (self._everything or isinstance(event, Item)):
            return ""
        return encode(replace(event, details=UNSET) if isinstance(event, Final) else event) + "\n"

    def end(self, *, complete: bool) -> str:
        """Return what speakers are called by now."""
        if self._everything:
            return ""
        named = (SpeakerName(speaker=number, name=name) for number, name in self.names.items())
        return "".join(f"{encode(event)}\n" for event in named)


class Table(Format):
    """Start and end in ms, who speaks if `add_speakers` was called, and the text.

    With a comma these are whisper.cpp's columns, the text always in quotes (RFC 4180), with a tab
    openai-whisper's, without quotes, since no text contains a tab.
    """

    def __init__(self, separator: str) -> None:
        self._separator, self._has_speakers = separator, False
        self.header = separator.join(("start", "end", "text")) + "\n"

    def add_speakers(self) -> None:
        """Give the table a column for who speaks; call it before it is begun."""
        self._has_speakers = True
        self.header = self._separator.join(("start", "end", "speaker", "text")) + "\n"

    def _final(self, final: Final) -> str:
        who = speaker_name(final.speaker, self.names)
        texts = (who, final.text) if self._has_speakers else (final.text,)
        cells = str(final.start_ms), str(final.end_ms), *map(self._cell, texts)
        return self._separator.join(cells) + "\n"

    def _cell(self, text: str) -> str:
        text = as_cell(text)
        return '"' + text.replace('"', '""') + '"' if self._separator == "," else text


_RULES = "\n".join(
    f".p{i} {{ background: #{red:02x}{green:02x}{blue:02x}; "
    f"background: rgb({red} {green} {blue} / 45%) }}"
    for i, (red, green, blue) in enumerate(RAINBOW)
)
_SCALE = "".join(f'<span class="p{i}">&nbsp;&nbsp;</span>' for i in range(len(RAINBOW)))
_HEAD = Path(__file__).with_name("transcript.html").read_text(encoding="utf-8")


class Html(Format):
    """A web page of one file: a paragraph for each final, its words coloured by probability.

    HTML lets the last paragraph, the body and the page end with the file, so the page is valid at
    any time although it only grows. Word processors open it, too: they know only the first of the
    two backgrounds, and no margin, so a blank is behind each time.
    """

    header = Template(_HEAD).substitute(rules=_RULES, scale=_SCALE)
    _speaker: int | None = None

    def _final(self, final: Final) -> str:
        shown, at = "", 0
        for start, end, word in aligned(final.text, final.words):
            said = _html(final.text[start:end])
            if word.prob is not None:
                said = f'<span class="p{rank(word.prob)}" title="{word.prob:.0%}">{said}</span>'
            shown += _html(final.text[at:start]) + said
            at = end
        shown += _html(final.text[at:])
        is_answer = final.speaker != self._speaker
        name = _html(speaker_name(final.speaker, self.names)) if is_answer else ""
        self._speaker = final.speaker
        shown = f'<b dir="auto">{name}</b>: {shown}' if name else shown
        time = f'<time datetime="PT{final.start_ms / 1000}S">{clock(final.start_ms)}</time> '
        return f'<p>{time}<bdi lang="{escape(final.language)}" dir="auto">{shown}</bdi></p>\n'

    def _gap(self, gap: Gap) -> str:
        return f'<p class="gap">{_html(gap_notice(gap))}</p>\n'

    def _sound(self, sound: Sound) -> str:
        self._speaker = None
        time = f'<time datetime="PT{sound.start_ms / 1000}S">{clock(sound.start_ms)}</time> '
        return f'<p class="sound">{time}{_html(sound_notice(sound))}</p>\n'


def _html(text: str) -> str:
    return escape(clean(text))


_TAG = re.compile(r"<(?=[a-z/!?]|$)", re.I)
_ROUND = str.maketrans("{}", "()")
_ARROW = re.compile("--+>")
_LRC_TIME = re.compile(r"[\[<](?=\s*\d)")


class _InCues(Format):
    """A format of cues. Its end are the last cues, which may stay until the next one begins."""

    def __init__(self, layout: CueLayout) -> None:
        self._layout, self._cues = layout, Cues(layout, self._label)

    def _label(self, speaker: int | None) -> str:
        """Return what is written before the words of a speaker who answers another one."""
        return ""

    def _final(self, final: Final) -> str:
        return self._written(self._cues.of(final))

    def rest(self, final: Final) -> str:
        """Return the last cue, as if the next one could begin at once."""
        return self._written(self._cues.release(final.end_ms))

    def end(self, *, complete: bool) -> str:
        """Return the last cues."""
        return "".join(map(self._cue, self._cues.held))

    def _written(self, cues: Iterable[Cue]) -> str:
        return "".join(map(self._cue, cues))

    def _cue(self, cue: Cue) -> str:
        raise NotImplementedError


_SOUND_MS = 4_000
"""How long a sound is shown at most: music may last for an hour, and speech is read over it."""


class _Timed(_InCues):
    """What srt and vtt share: blocks of a line of times and the lines of text."""

    def _sound_block(self, sound: Sound, point: str) -> str:
        """Return the lines of a sound that begins, as broadcasters write it: ``[Music]``."""
        end_ms = min(max(sound.end_ms, sound.start_ms + MIN_CUE_MS), sound.start_ms + _SOUND_MS)
        times = f"{timestamp(sound.start_ms, point)} --> {timestamp(end_ms, point)}"
        label = clean(sound.label).capitalize()
        return f"{times}\n{self._marked(f'[{label}]')}\n\n"

    def _marked(self, notice: str) -> str:
        return notice

    def _blocks(self, cue: Cue, point: str) -> Iterator[list[str]]:
        """Yield the lines of a cue, or of each of its moments; `point` is the decimal point."""
        for start_ms, end_ms, spoken in self._moments(cue):
            times = f"{timestamp(start_ms, point)} --> {timestamp(end_ms, point)}"
            shown = partial(self._shown, spoken=spoken)
            yield [times, *(joined(line, shown) for line in cue.lines)]

    def _moments(self, cue: Cue) -> Iterable[tuple[int, int, Piece | None]]:
        return (
            cue.moments() if self._layout.highlight_words else ((cue.start_ms, cue.end_ms, None),)
        )

    def _shown(self, piece: Piece, spoken: Piece | None) -> str:
        return f"<u>{self._draw(piece)}</u>" if piece is spoken else self._draw(piece)

    def _draw(self, piece: Piece) -> str:
        raise NotImplementedError


class Srt(_Timed):
    """SubRip. It has no comments, so gaps are left out.

    It has no escapes either: a word joiner breaks what a player would take for a tag, an arrow is
    shortened, as in openai-whisper, and braces, whose inside players hide, become parentheses.
    """

    _n_blocks = 0  # without those of the cue that is held

    def end(self, *, complete: bool) -> str:
        """Return the last cues, which may be written again, with their numbers."""
        n_blocks, text = self._n_blocks, self._written(self._cues.held)
        self._n_blocks = n_blocks
        return text

    def _written(self, cues: Iterable[Cue]) -> str:
        text = ""
        for cue in cues:
            text += self._cue(cue)
            self._n_blocks += sum(1 for _ in self._moments(cue))
        return text

    def _cue(self, cue: Cue) -> str:
        name, text = self._label(cue.speaker) if cue.is_answer else "", ""
        for number, (times, *lines) in enumerate(self._blocks(cue, ","), self._n_blocks + 1):
            first, *more = lines
            shown = (_ARROW.sub("->", line) for line in (name + first, *more))
            text += "\n".join((str(number), times, *shown)) + "\n\n"
            name = ""
        return text

    def _sound(self, sound: Sound) -> str:
        before = self._written(self._cues.release(sound.start_ms))
        self._n_blocks += 1
        return f"{before}{self._n_blocks}\n{self._sound_block(sound, ',')}"

    def _label(self, speaker: int | None) -> str:
        return _srt(label_of(speaker, self.names))

    def _draw(self, piece: Piece) -> str:
        return _srt(piece.text)


def _srt(text: str) -> str:
    return _TAG.sub(rf"\g<0>{JOINER}", text.translate(_ROUND))


class Vtt(_Timed):
    """WebVTT (https://www.w3.org/TR/webvtt1/). Gaps are notes, which players do not show.

    Doubtful words have the classes ``p0`` (nearly impossible) to ``p5``; sure words have none. What
    is heard besides words has the class ``sound``.
    """

    def __init__(self, layout: CueLayout) -> None:
        super().__init__(layout)
        rules = (f"::cue(.p{i}) {{ color: rgb{color} }}\n" for i, color in enumerate(RAINBOW[:-1]))
        style = f"STYLE\n{''.join(rules)}\n" if layout.confidence else ""
        self.header = f"WEBVTT\n\n{style}"

    def _cue(self, cue: Cue) -> str:
        name = escape(speaker_name(cue.speaker, self.names), quote=False)
        voice = f"<v {name}>" if name else ""
        blocks = ((times, voice + first, *more) for times, first, *more in self._blocks(cue, "."))
        return "".join("\n".join(lines) + "\n\n" for lines in blocks)

    def _gap(self, gap: Gap) -> str:
        before = self._written(self._cues.release(gap.t_ms))
        note = f"{timestamp(gap.t_ms, '.')} {escape(gap_notice(gap), quote=False)}"
        return f"{before}NOTE {note}\n\n"

    def _sound(self, sound: Sound) -> str:
        before = self._written(self._cues.release(sound.start_ms))
        return before + self._sound_block(sound, ".")

    def _marked(self, notice: str) -> str:
        return f"<c.sound>{escape(notice, quote=False)}</c>"

    def _draw(self, piece: Piece) -> str:
        shown = escape(piece.text, quote=False)  # of ">", too: a cue may not contain "-->"
        if self._layout.confidence and piece.prob is not None:
            i = rank(piece.prob)
            return f"<c.p{i}>{shown}</c>" if i < len(RAINBOW) - 1 else shown
        return shown


class Lrc(_InCues):
    """Lyrics, one line for each cue. The format has no comments, so gaps are left out.

    A bracket that a player would take for a time becomes a parenthesis.
    """

    header = "[re:streamd]\n"

    def _cue(self, cue: Cue) -> str:
        minutes, ms = divmod(cue.start_ms, 60_000)
        line = _LRC_TIME.sub("(", joined(cue.pieces))
        return f"[{minutes:02}:{ms // 1000:02}.{ms % 1000 // 10:02}]{line}\n"


_ASS_HEAD = """[Script Info]
ScriptType: v4.00+
PlayResX: 1280
PlayResY: 720
WrapStyle: 0

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, \
Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Sans,48,&H0048D8FF,&H00FFFFFF,&H00000000,&H00000000,-1,0,0,0,100,100,0,0,1,3,0,2,\
60,60,40,-1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
# The style's last number lets a line begin where its language does, right or left.


class Ass(_InCues):
    """Karaoke as Advanced SubStation subtitles: words change colour as they are spoken.

    Gaps are left out. Source of the tags: https://aegisub.org/docs/latest/ass_tags/.
    """

    header = _ASS_HEAD

    def _cue(self, cue: Cue) -> str:
        clock_cs = cue.start_ms // 10

        def draw(piece: Piece) -> str:
            nonlocal clock_cs
            begins_cs = max(min(piece.start_ms, cue.end_ms) // 10, clock_cs)
            ends_cs = max(min(piece.end_ms, cue.end_ms) // 10, begins_cs)
            waits = f"{{\\k{begins_cs - clock_cs}}}" if begins_cs > clock_cs else ""
            # \kf fills from the left: right-to-left text changes colour at once instead.
            is_rightward = any(bidirectional(char) in ("R", "AL") for char in piece.text)
            fills = "k" if is_rightward else "kf"
            # A backslash has no escape, but before an invisible character it means nothing.
            shown = re.sub(r"[{}]", r"\\\g<0>", piece.text.replace("\\", f"\\{JOINER}"))
            text = f"{waits}{{\\{fills}{ends_cs - begins_cs}}}{shown}"
            clock_cs = ends_cs
            return text

        times = f"{_ass_time(cue.start_ms)},{_ass_time(cue.end_ms)}"
        text = "\\N".join(joined(line, draw) for line in cue.lines)
        name = speaker_name(cue.speaker, self.names).replace(",", "")  # which ends the field
        return f"Dialogue: 0,{times},Default,{name},0,0,0,,{text}\n"


def _ass_time(t_ms: int) -> str:
    minutes, ms = divmod(t_ms, 60_000)
    return f"{minutes // 60}:{minutes % 60:02}:{ms // 1000:02}.{ms % 1000 // 10:02}"


FORMATS: Mapping[str, Callable[[CueLayout], Format]] = {
    "txt": lambda layout: Paragraphs(),
    "md": lambda layout: Paragraphs(markdown=True),
    "srt": Srt,
    "vtt": Vtt,
    "lrc": Lrc,
    "ass": Ass,
    "edl": lambda layout: Markers(),
    "csv": lambda layout: Table(","),
    "tsv": lambda layout: Table("\t"),
    "json": lambda layout: Json(),
    "json-full": lambda layout: Json(full=True),
    "jsonl": lambda layout: Jsonl(),
    "html": lambda layout: Html(),
}

SEGMENTED = frozenset({"csv", "tsv", "json", "json-full", "jsonl"})
"""Formats for programs, which get a model's segments as they are; people get sentences."""


def suffix(name: str) -> str:
    """Return the ending of file names in this format."""
    return ".full.json" if name == "json-full" else f".{name}"
