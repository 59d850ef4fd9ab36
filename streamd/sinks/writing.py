"""Writes a format to a stream or a file, and joins segments into sentences before."""

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple, TextIO, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from streamd.errors import ConfigError, StreamdError, os_error_as
from streamd.events import EndReason, Eos, Event, Final, Item, Sound, SpeakerName
from streamd.labels import ItemT, Names, renamed
from streamd.language import ends_sentence
from streamd.sinks import CaptionSink, Format, Sink
from streamd.sinks.text import PARAGRAPH_PAUSE_MS, blank_between
from streamd.sinks.transcripts import Revised
from streamd.speakers import REMEMBERED
from streamd.system.disk import write_all
from streamd.system.stdio import put
from streamd.types import ms_from_frames

EventT = TypeVar("EventT", Final, Item, Event)

_MOST_BYTES = 255
"""Of a file's name, on Linux and macOS."""
_MAX_MS = 30_000
"""Text without full stops, such as lyrics, is not joined beyond this."""


class SentenceSink(CaptionSink):
    """Hands finals to `sink` as soon as they end a sentence, joined as by `sentences`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[Event] = []  # a sentence that may go on, and the sounds during it

    def write(self, event: Event) -> None:
        self._held, at = _joined([*self._held, event])
        self._flush(at)

    def close(self) -> None:
        try:
            self._flush(len(self._held))
        finally:
            self._sink.close()

    def _flush(self, n: int) -> None:
        ready, self._held = self._held[:n], self._held[n:]
        for event in ready:
            self._sink.write(event)


def sentences(said: Iterable[ItemT]) -> list[ItemT]:
    """Return a model's segments as sentences; a sound during one is behind it.

    Anything else ends a sentence, and so do pauses of 2 s. Finals without words stay as they are,
    since cues would not know their times.
    """
    return _joined(said)[0]


def _joined(said: Iterable[EventT]) -> tuple[list[EventT], int]:
    """Return `sentences`, and how many events come before the one that may go on."""
    whole: list[EventT] = []
    begun: Final | None = None
    at = 0
    for each in said:
        if begun and isinstance(each, Final) and goes_on(begun, each):
            whole[at] = begun = joined_finals(begun, each)
        else:
            if not (begun and isinstance(each, Sound) and each.start_ms < begun.end_ms):
                at, begun = len(whole), each if isinstance(each, Final) else None
            whole.append(each)
        if begun is None or ends_sentence(begun.text):
            at, begun = len(whole), None
    return whole, at


def in_sentences(said: Iterable[Item]) -> list[Item]:
    """Return a transcript for people: a recording's segments, as they are kept, as sentences."""
    text = [*said]
    return sentences(text) if has_segments(text) else text


def has_segments(said: Iterable[Item]) -> bool:
    """Whether these are segments of a recording as the model wrote them."""
    return any(isinstance(each, Final) and each.details is not UNSET for each in said)


def goes_on(begun: Final, final: Final) -> bool:
    """Whether a final continues the sentence that has begun."""
    if ends_sentence(begun.text):
        return False
    is_soon = final.start_ms - begun.end_ms < PARAGRAPH_PAUSE_MS
    is_short = final.end_ms - begun.start_ms <= _MAX_MS
    same = begun.speaker == final.speaker
    return bool(begun.words and final.words) and is_soon and is_short and same


def joined_finals(begun: Final, final: Final) -> Final:
    """Return both as one, under the number of the first."""
    return replace(
        begun,
        text=begun.text + blank_between(begun.text, final.text) + final.text,
        end_ms=final.end_ms,
        words=(*begun.words, *final.words),
        details=UNSET,
    )


class StreamSink(CaptionSink):
    """Writes a format to a text stream that is not a terminal; raises as `stdio.put` does.

    Nothing is written of a session that fails before its first words: no document without text.
    With `at_once`, a format keeps nothing back for later.
    """

    def __init__(self, stream: TextIO, form: Format, *, at_once: bool = False) -> None:
        self._stream, self._form, self._begun = stream, form, False
        self._at_once = at_once
        self._begins_ms: dict[str, int] = {}  # of the last sound of each label

    def write(self, event: Event) -> None:
        if isinstance(event, Sound) and not self._form.repeats:
            if self._begins_ms.get(event.label) == event.start_ms:
                return
            self._begins_ms[event.label] = event.start_ms
        text = self._form.append(event)
        if self._at_once and isinstance(event, Final):
            text += self._form.rest(event)
        has_ended = isinstance(event, Eos) and event.reason != EndReason.ERROR
        if not self._begun and (text or has_ended):
            self._begun = True
            text = self._form.header + text
        if text:
            put(self._stream, text)

    def close(self) -> None:
        if self._begun and (end := self._form.end(complete=True)):
            put(self._stream, end)


class OutputError(ConfigError):
    """A transcript cannot be written under its name."""


def fitting(name: str) -> str:
    """Return a file's name without what is too long for a file system, from its beginning.

    Its end is kept: it has the ending, and often a number.
    """
    while len(os.fsencode(name)) > _MOST_BYTES:
        name = name[1:]
    return name


def cut_short(path: Path) -> Path:
    """Return the name of a transcript that is not whole: nobody takes it for one that is."""
    return path.with_name(fitting(f"{path.stem}.partial{path.suffix}"))


class _Checkpoint(NamedTuple):
    """What a file had after `n_items`, which began by `t_ms`: its size, and how it goes on."""

    n_items: int
    t_ms: int
    end: int
    form: Format


class FileSink:
    """Writes a transcript file, which is complete and valid whenever the process dies.

    Each final is added in one unbuffered write; the next one overwrites the format's footer. Where
    speakers or words are corrected, or speakers get names, a regular file is written again from
    there on, also at once. An existing file stays as it is until the first final, or until a
    session without finals ends normally; a session that fails or is stopped before leaves no trace.

    With `whole`, or a format that is written `at_end`, a regular file appears only when it is
    closed; until then it is ``.NAME.part`` beside it. If the session was stopped before its end, a
    `whole` file gets the name `cut_short` instead. Raises `OutputError` if the file cannot be
    written.
    """

    def __init__(self, path: Path, form: Format, *, whole: bool = False) -> None:
        self._path, self._form, self._whole = path, form, whole
        self._names: Names = {**form.names}
        self._revised = Revised()
        # The first one, and as many as are needed for revisions of the last minute.
        self._checkpoints = [_Checkpoint(0, 0, 0, deepcopy(form))]
        self._end = 0  # offset of the footer
        self._footer = b""
        self._begun = self._failed = self._is_cut = False
        self._target = Path(os.path.realpath(path))  # a link stays a link
        self._is_new = not path.exists()
        may_be_replaced = self._is_new or path.is_file()
        part = self._target.with_name(f".{fitting(f'{self._target.name}..part')[:-6]}.part")
        self._part = part if (whole or form.at_end) and may_be_replaced else None
        self._problem = f"{path}: cannot be written"
        with os_error_as(OutputError, self._problem):
            # Unbuffered: a later close() has nothing left to write that could fail. What is written
            # again is read first, by the same descriptor: somebody may rename or remove the file.
            mode = os.O_RDWR if may_be_replaced else os.O_WRONLY
            descriptor = os.open(self._part or path, mode | os.O_CREAT, 0o666)
            self._is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115  # closed by `close`
            if self._part and not self._is_new:
                os.close(os.open(path, os.O_WRONLY))  # fails without permission to write to it
                shutil.copymode(path, self._part)

    def write(self, event: Event) -> None:
        """Append the text of `event`; after a `StreamdError` the file is as it was before."""
        n_items = len(self._revised)
        is_whole = isinstance(event, Eos) and event.reason == EndReason.END
        self._is_cut = isinstance(event, Eos) and event.reason == EndReason.STOP
        if not self._begun and (isinstance(event, Item) or is_whole):
            self._begun = True
            if self._is_regular:
                self._file.truncate()
            self._put(self._form.header)
        changed = self._revised.take(event)
        if isinstance(event, SpeakerName):
            self._names = self._form.names = renamed(self._names, event)
        is_new = len(self._revised) > n_items
        if is_new and (changed == n_items or not self._is_regular):
            self._note(event)
            added = self._form.append(next(self._revised.since(changed)))
            if not self._is_regular and isinstance(event, Final):  # nothing is written over
                added += self._form.rest(event)
            self._put(added)
        elif changed < len(self._revised):
            self._put_again(changed)
        elif isinstance(event, SpeakerName) and self._begun and self._is_regular:
            self._put("")  # the end of some formats has all names
            self._trim()

    def _note(self, event: Event) -> None:
        """Make a checkpoint before an event, if there was none for a minute."""
        first, *others = self._checkpoints
        t_ms = event.start_ms if isinstance(event, Final | Sound) else 0
        if t_ms - self._checkpoints[-1].t_ms >= ms_from_frames(REMEMBERED):
            now = _Checkpoint(len(self._revised) - 1, t_ms, self._end, deepcopy(self._form))
            self._checkpoints = [first, *others[-2:], now]

    def close(self) -> None:
        """Complete and close the file; raises as `write` does, unless that has failed before."""
        with self._file:
            try:
                if self._begun and not self._failed:
                    with os_error_as(StreamdError, self._problem):
                        if self._form.at_end:
                            self._write(self._form.whole([*self._revised.since(0)]))
                        else:
                            self._put("", complete=True)
                        if self._part:
                            is_cut = self._is_cut and self._whole
                            target = cut_short(self._target) if is_cut else self._target
                            os.replace(self._part, target)
            finally:
                unused = self._part or (self._path if self._is_new and not self._begun else None)
                if unused:
                    unused.unlink(missing_ok=True)

    def _put_again(self, changed: int) -> None:
        """Write what stands from an item on, which has changed."""
        if not self._is_regular:
            return  # whoever reads a pipe has the text
        kept = [each for each in self._checkpoints if each.n_items <= changed]
        n_items, _, end, form = kept[-1]
        size = self._end + len(self._footer)
        with os_error_as(StreamdError, self._problem):
            self._footer = os.pread(self._file.fileno(), size - end, end)
        self._end = end
        self._checkpoints, self._form = kept, deepcopy(form)
        self._form.names = self._names
        header = "" if end else self._form.header
        self._put(header + "".join(map(self._form.append, self._revised.since(n_items))))
        self._trim()

    def _trim(self) -> None:
        """Remove the blanks with which a shorter end covers a longer one."""
        with os_error_as(StreamdError, self._problem):
            self._footer = self._footer.rstrip(b" ")
            self._file.truncate(self._end + len(self._footer))
            self._file.seek(self._end)

    def _put(self, added: str, *, complete: bool = False) -> None:
        footer = self._form.end(complete=complete) if complete or self._is_regular else ""
        body, new_footer = (part.encode(errors="replace") for part in (added, footer))
        # The new text must cover all of the old footer: there is no moment to truncate the file in.
        new_footer = new_footer.ljust(len(self._footer) - len(body))
        with os_error_as(StreamdError, self._problem):
            try:
                self._write(body + new_footer)
            except OSError:
                self._failed = True
                with suppress(OSError):  # only the first failure is reported
                    self._write(self._footer)
                    self._file.truncate(self._end + len(self._footer))
                raise
        self._end, self._footer = self._end + len(body), new_footer

    def _write(self, data: bytes) -> None:
        if self._footer:  # without a footer there is no need to seek, which a named pipe cannot
            self._file.seek(self._end)
        write_all(self._file.fileno(), data)
