"""Transcripts for word processors: docx, by python-docx.

A paragraph is a turn, or a part of a long one, with the name of who speaks before it. The time
stands before the first word of each minute.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import NamedTuple
from unicodedata import bidirectional

import docx
from docx.document import Document
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from docx.shared import Pt, RGBColor
from docx.text.paragraph import Paragraph

from streamd.events import Final, Gap, Item, Sound, aligned
from streamd.labels import by_speaker
from streamd.language import SPACELESS, ends_sentence
from streamd.sinks import About
from streamd.sinks.text import (
    LONG_PARAGRAPH,
    PARAGRAPH_PAUSE_MS,
    blank_between,
    clean,
    clock,
    gap_notice,
    label_of,
    sound_notice,
)

_MINUTE_MS = 60_000
_STAMP_POINTS, _STAMP_GREY = 8, 0x60


class _TextRun(NamedTuple):
    """A part of a paragraph: text, or a time if `is_stamp`."""

    text: str
    is_stamp: bool = False


def word_document(said: Sequence[Item], about: About) -> bytes:
    """Return a transcript as a docx file."""
    document = docx.Document()
    if about.line_numbers:
        _number_lines(document)
    properties, title = document.core_properties, clean(about.title)
    properties.author = properties.last_modified_by = properties.comments = ""
    properties.title = title
    properties.created = properties.modified = about.started or datetime.now(UTC)
    document.add_heading(title, level=1)
    if about.started is not None:
        document.add_paragraph(f"{about.started.astimezone():%Y-%m-%d %H:%M}")
    minute = -1
    for turn in _turns(said):
        paragraph = document.add_paragraph()
        if not isinstance(turn, list):
            notice = gap_notice(turn) if isinstance(turn, Gap) else sound_notice(turn)
            paragraph.add_run(notice).italic = True
            continue
        language = turn[0].language
        is_rightward = _is_rightward(turn[0].text)
        _direct(paragraph, is_rightward=is_rightward)
        if label := label_of(turn[0].speaker, about.names):
            paragraph.add_run(label).bold = True
        stretches, minute = _stretches(turn, minute)
        for stretch in stretches:
            _add(paragraph, stretch, language, is_rightward=is_rightward)
    file = BytesIO()
    document.save(file)
    return file.getvalue()


def _number_lines(document: Document) -> None:
    numbering = OxmlElement("w:lnNumType")
    numbering.set(qn("w:countBy"), "1")
    numbering.set(qn("w:restart"), "continuous")
    margins = document.sections[0]._sectPr.find(qn("w:pgMar"))
    margins.addnext(numbering)  # the order of the elements is fixed (ISO 29500-1, 17.6.17)


def _turns(said: Sequence[Item]) -> Iterator[Gap | Sound | list[Final]]:
    """Yield the paragraphs: finals of one speaker, without a long pause between them."""
    turn: list[Final] = []
    for each in said:
        for part in by_speaker(each) if isinstance(each, Final) else (each,):
            if turn and not (isinstance(part, Final) and _goes_on(turn, part)):
                yield turn
                turn = []
            if not isinstance(part, Final):
                yield part
            elif part.text:
                turn.append(part)
    if turn:
        yield turn


def _goes_on(turn: list[Final], part: Final) -> bool:
    is_full = sum(len(each.text) for each in turn) > LONG_PARAGRAPH and ends_sentence(turn[-1].text)
    is_soon = part.start_ms - turn[-1].end_ms < PARAGRAPH_PAUSE_MS
    return part.speaker == turn[-1].speaker and is_soon and not is_full


def _stretches(turn: list[Final], minute: int) -> tuple[list[_TextRun], int]:
    """Return the parts of a paragraph, and the last minute whose time stands in them or before."""
    found: list[_TextRun] = []
    before = ""
    for final in turn:
        text, at = clean(final.text), 0
        found.append(_TextRun(blank_between(before, text)))
        placed = [(start, word.start_ms) for start, _, word in aligned(final.text, final.words)]
        for start, start_ms in placed or [(0, final.start_ms)]:
            is_inside = start > 0 and not text[start - 1].isspace()
            if is_inside and final.language not in SPACELESS:  # such as "-10" behind "902"
                continue
            if start_ms // _MINUTE_MS > minute:
                minute = start_ms // _MINUTE_MS
                found += _TextRun(text[at:start]), _TextRun(f"[{clock(start_ms)}] ", is_stamp=True)
                at = start
        found.append(_TextRun(text[at:]))
        before = text
    return [stretch for stretch in found if stretch.text], minute


def _add(paragraph: Paragraph, stretch: _TextRun, language: str, *, is_rightward: bool) -> None:
    run = paragraph.add_run(stretch.text)
    if stretch.is_stamp:
        run.font.size = Pt(_STAMP_POINTS)
        run.font.color.rgb = RGBColor(_STAMP_GREY, _STAMP_GREY, _STAMP_GREY)
        return
    if is_rightward:
        run.font.rtl = True
    if language:  # in which the word processor checks the spelling
        mark = OxmlElement("w:lang")
        mark.set(qn("w:bidi" if is_rightward else "w:val"), language)
        run._r.get_or_add_rPr().append(mark)


def _is_rightward(text: str) -> bool:
    kinds = (bidirectional(char) for char in text)
    return next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L"


def _direct(paragraph: Paragraph, *, is_rightward: bool) -> None:
    if is_rightward:
        paragraph._p.get_or_add_pPr().append(OxmlElement("w:bidi"))
