"""A transcript as a web page that needs no other file: html. Pure; `files` writes it.

HTML lets the last paragraph, the body and the page end where the file ends, so the page is valid
whenever it is looked at, although it only grows.
"""

from html import escape

from streamd.events import Event, Final, Gap
from streamd.sinks.look import RAINBOW, clock, gap_notice, rank
from streamd.sinks.text import aligned, clean

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


class Html:
    """A paragraph for each final, its words coloured by their probability, and for each gap."""

    tail = end = ""

    def __init__(self) -> None:
        scale = "".join(f'<span class="p{i}">&nbsp;&nbsp;</span>' for i in range(len(RAINBOW)))
        self.header = f'{_HEAD}<p class="legend">doubtful {scale} sure</p>\n'

    def append(self, event: Event) -> str:
        """The event's paragraph."""
        if isinstance(event, Gap):
            return f'<p class="gap">{_escaped(gap_notice(event.duration_ms, event.why))}</p>\n'
        if not isinstance(event, Final) or not event.text:
            return ""
        parts, at = [], 0
        for start, end, word in aligned(event.text, event.words):
            parts.append(_escaped(event.text[at:start]))
            shown = _escaped(event.text[start:end])
            parts.append(f'<span class="p{rank(word.prob)}" title="{word.prob:.0%}">{shown}</span>')
            at = end
        parts.append(_escaped(event.text[at:]))
        time = f'<time datetime="PT{event.start_ms / 1000}S">{clock(event.start_ms)}</time>'
        language = escape(event.language)
        return f'<p>{time}<bdi lang="{language}" dir="auto">{"".join(parts)}</bdi></p>\n'


def _escaped(text: str) -> str:
    return escape(clean(text))
