"""Joins the segments of a whole recording into sentences, for people who read them.

Whisper ends a segment where its timestamps happen to end, often in the middle of a sentence.
"""

import re

from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import Event, Final
from streamd.sinks import CaptionSink, Sink
from streamd.sinks.text import PARAGRAPH_PAUSE_MS, blank_between

_TITLE = r"(?<!\bM[rs])(?<!\bMrs)(?<!\bDr)(?<!\bSt)(?<!\bProf)(?<!\b[A-HJ-Z])"
SENTENCE_END = re.compile(rf"(?:[?!…。？！]|{_TITLE}\.)[\"'”’»)」』]*$")
"""A full stop behind a title or an initial ends no sentence."""
_MAX_MS = 30_000
"""Text without full stops, such as lyrics, is not joined beyond this."""


class SentenceSink(CaptionSink):
    """Hands finals to `sink` as soon as they end a sentence, joined if they have to be.

    Pauses of 2 s are taken for ends of sentences, too. Finals without words stay as they are, since
    cues would not know their times.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._begun: Final | None = None

    def write(self, event: Event) -> None:
        """Keep the beginning of a sentence, or write what is complete."""
        if isinstance(event, Final):
            if self._begun is not None and _goes_on(self._begun, event):
                event = _joined(self._begun, event)
            else:
                self._flush()
            self._begun = event
            if not SENTENCE_END.search(event.text):
                return
        self._flush()
        if not isinstance(event, Final):
            self._sink.write(event)

    def close(self) -> None:
        """Write what is left, and complete the output."""
        try:
            self._flush()
        finally:
            self._sink.close()

    def _flush(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._sink.write(begun)


def _goes_on(begun: Final, final: Final) -> bool:
    is_soon = final.start_ms - begun.end_ms < PARAGRAPH_PAUSE_MS
    is_short = final.end_ms - begun.start_ms <= _MAX_MS
    return bool(begun.words and final.words) and is_soon and is_short


def _joined(begun: Final, final: Final) -> Final:
    return replace(
        begun,
        text=begun.text + blank_between(begun.text, final.text) + final.text,
        end_ms=final.end_ms,
        words=(*begun.words, *final.words),
        details=UNSET,
    )
