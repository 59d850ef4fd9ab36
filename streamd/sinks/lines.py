"""Transcripts with one line or paragraph for each final: txt, jsonl, csv, tsv, html."""

from html import escape

from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import Event, Final, Gap, encode
from streamd.sinks.look import RAINBOW, Look, caption, clock, gap_notice, paint, rank
from streamd.sinks.text import aligned, clean


class Text:
    """One line for each final, and one for each gap, which would otherwise look like silence."""

    header = tail = end = ""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look()

    def append(self, event: Event) -> str:
        """Return the event's line."""
        if isinstance(event, Final) and event.text:
            return paint(caption(event, self._look)) + "\n"
        if isinstance(event, Gap):
            return gap_notice(event.duration_ms, event.why) + "\n"
        return ""


class Jsonl:
    """Events as lines of JSON, in the wire form of docs/protocol.md.

    A file has only the events that last, finals and gaps; with `everything` there are partials and
    all others, too.
    """

    header = tail = end = ""

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything

    def append(self, event: Event) -> str:
        """Return the event as one line of JSON."""
        if not (self._everything or isinstance(event, Final | Gap)):
            return ""
        return encode(replace(event, details=UNSET) if isinstance(event, Final) else event) + "\n"


class Table:
    """Start and end in ms, and the text.

    With a comma these are whisper.cpp's columns, the text always in quotes (RFC 4180), with a tab
    openai-whisper's, without quotes, since no text contains a tab.
    """

    tail = end = ""

    def __init__(self, separator: str) -> None:
        self.header = separator.join(("start", "end", "text")) + "\n"
        self._separator = separator

    def append(self, event: Event) -> str:
        """Return the final's row."""
        if not isinstance(event, Final) or not event.text:
            return ""
        text = clean(event.text)
        if text.lstrip()[:1] in "=+-@":
            text = f" {text}"  # keeps spreadsheets from reading a formula
        if self._separator == ",":
            text = '"' + text.replace('"', '""') + '"'
        return self._separator.join((str(event.start_ms), str(event.end_ms), text)) + "\n"


_RULES = "\n".join(
    f".p{i} {{ background: rgb({red} {green} {blue} / 45%) }}"
    for i, (red, green, blue) in enumerate(RAINBOW)
)
_HEAD = f"""\
<!DOCTYPE html>
<html lang="und">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Transcript</title>
<style>
:root {{ color-scheme: light dark }}
body {{ max-width: 42em; margin: 2em auto; padding: 0 1em; font: 1.1em/1.6 system-ui, sans-serif }}
time, .gap, .legend {{ opacity: .7; font-size: .8em }}
time {{ font-variant-numeric: tabular-nums; margin-inline-end: .6em }}
span[title] {{ border-radius: .2em }}
{_RULES}
</style>
</head>
<body>
"""
_SCALE = "".join(f'<span class="p{i}">&nbsp;&nbsp;</span>' for i in range(len(RAINBOW)))


class Html:
    """A web page of one file: a paragraph for each final, its words coloured by probability.

    HTML lets the last paragraph, the body and the page end with the file, so the page is valid at
    any time although it only grows.
    """

    header = f'{_HEAD}<p class="legend">doubtful {_SCALE} sure</p>\n'
    tail = end = ""

    def append(self, event: Event) -> str:
        """Return the event's paragraph."""
        if isinstance(event, Gap):
            return f'<p class="gap">{_html(gap_notice(event.duration_ms, event.why))}</p>\n'
        if not isinstance(event, Final) or not event.text:
            return ""
        parts, at = [], 0
        for start, end, word in aligned(event.text, event.words):
            parts.append(_html(event.text[at:start]))
            shown = _html(event.text[start:end])
            parts.append(f'<span class="p{rank(word.prob)}" title="{word.prob:.0%}">{shown}</span>')
            at = end
        parts.append(_html(event.text[at:]))
        time = f'<time datetime="PT{event.start_ms / 1000}S">{clock(event.start_ms)}</time>'
        language = escape(event.language)
        return f'<p>{time}<bdi lang="{language}" dir="auto">{"".join(parts)}</bdi></p>\n'


def _html(text: str) -> str:
    return escape(clean(text))
