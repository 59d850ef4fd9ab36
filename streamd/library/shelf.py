"""Lists, reads, searches and deletes the sessions of a library, also while a daemon writes it."""

import logging
import os
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from streamd.errors import ConfigError, StreamdError, os_error_as
from streamd.events import Edit, Final, Gap, Item, Note, SpeakerName
from streamd.library.edits import EditedText, Edits
from streamd.library.tables import NAME, SOUNDS, TO_COMPACT, compact, spaced, written
from streamd.sinks.text import speaker_name
from streamd.sinks.transcripts import EditsSoFar, Revised
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.tables import (
    Run,
    cause_of,
    event_of,
    failed,
    put_event,
    run_of,
)
from streamd.system.disk import lock_file

_log = logging.getLogger(__name__)
_FIRST_FINALS = 30
"""Finals of a session in which its speakers are looked for, to list it."""
_LATELY = 20
"""The newest sessions, among which is the live one: recordings may have begun since."""
_COMPACT_BYTES = 64 << 20
"""Size up to which a library is written anew at once when something is deleted, which takes two
seconds: where a page of text was full, SQLite has left copies of some of it, which it does not
overwrite. A larger one, for which 1.2 GB took 10 CPU s, must not hold up finals: it is written anew
at the next start if a streamd writes it."""
MOST_NUMBER = 2**63 - 1
"""That SQLite has."""
_EDITS = "SELECT event FROM events WHERE run = ? AND id <= ? AND seq IS NULL ORDER BY id"
"""Of a session, up to a row."""
_ENDS = ("min", "max")
_SYNTAX = re.compile(r'(?:(speaker|lang|after|before):)?("[^"]*"|\S+)', re.IGNORECASE)


class AudioPart(Struct, frozen=True, kw_only=True):
    """The file that has the audio from `start_ms` of the session on, at its own time `at_ms`."""

    file: str
    start_ms: int
    at_ms: int


class Kept(Struct, frozen=True, kw_only=True):
    """A session of a library, as it is listed; `first` is its first line.

    `is_open`: it may go on; `is_live`: a client that listens hears what is said in it.
    """

    id: int
    name: str
    started: datetime
    duration_ms: int
    n_finals: int
    first: str
    speakers: tuple[str, ...] = ()
    is_open: bool = False
    is_live: bool = False


class Hit(Struct, frozen=True, kw_only=True):
    """A sentence that was found; `marks` are the places (from, to) of the words in its text."""

    id: int
    session: str
    said: datetime
    seq: int
    start_ms: int
    speaker: str
    text: str
    marks: tuple[tuple[int, int], ...]


class Sought(Struct, frozen=True, kw_only=True):
    """A search: all of the `terms`, in any of the languages, between the times, by a speaker.

    One without any of these finds nothing.
    """

    terms: tuple[str, ...] = ()
    speaker: str = ""
    lang: str = ""
    after: datetime | None = None
    before: datetime | None = None

    @property
    def match(self) -> str:
        """The terms in FTS5's syntax: a phrase each, with a star behind the beginning of a word."""
        quoted = (spaced(term.rstrip("*")).replace('"', '""') for term in self.terms)
        stars = ("*" if term.endswith("*") else "" for term in self.terms)
        return " ".join(f'"{term}" {star}' for term, star in zip(quoted, stars, strict=True))


def sought(query: str) -> Sought:
    """Read what somebody looks for: words, "phrases", begin*, speaker:Ana lang:de after:2026-01-31.

    Raises `UnreadableQueryError` for a date that is none.
    """
    terms: list[str] = []
    fields: dict[str, Any] = {}
    # SQLite's syntax ends at the first, and has no letter for bytes that are no UTF-8.
    readable = query.replace("\0", " ").encode(errors="replace").decode()
    for field, value in _SYNTAX.findall(readable):
        text = value.strip('"')
        if field.lower() in ("after", "before"):
            try:
                midnight = datetime.combine(date.fromisoformat(text), time())
                fields[field.lower()] = midnight.astimezone(UTC)
            except (ValueError, OverflowError):
                raise UnreadableQueryError(f"{field}:{text} is no date: write 2026-01-31") from None
        elif field:
            fields[field.lower()] = text.lower() if field.lower() == "lang" else text
        elif any(char.isalnum() for char in text):
            terms.append(text)
    return Sought(terms=tuple(terms), **fields)


@dataclass(frozen=True, slots=True)
class Edited:
    """What was edited: the `revision` of the session, its new notes, and what undoes them.

    `learned` are words that are to be expected in later sessions.
    """

    revision: int
    notes: tuple[Edit, ...]
    undo: Edits
    learned: tuple[str, ...]


class UnreadableQueryError(ConfigError):
    """What somebody looks for cannot be understood."""


class OvertakenEditError(StreamdError):
    """Somebody else has edited the session; it is at `revision` now."""

    def __init__(self, revision: int) -> None:
        super().__init__("somebody else has edited this session: read it again")
        self.revision = revision


class Shelf:
    """The sessions of the library in a folder. Raises `JournalError` if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME

    def sessions(self, most: int = -1, *, before: int = 0) -> list[Kept]:
        """Return the newest sessions, of those with a smaller number than `before` if it is not 0.

        A session without words and without audio is left out.
        """
        query = "SELECT id, run FROM runs WHERE (? = 0 OR id < ?) AND "
        query += "(EXISTS (SELECT 1 FROM events WHERE run = runs.id AND seq IS NOT NULL) "
        query += "OR EXISTS (SELECT 1 FROM sounds WHERE run = runs.id)) "
        query += "ORDER BY id DESC LIMIT ?"
        if not self.path.exists():
            return []
        with self._reading() as db:  # one for all: to open it takes longer than to read a session
            rows = db.execute(query, (before, before, most)).fetchall()
            listed = (_kept(db, number, data) for number, data in rows)
            return [kept for kept in listed if kept is not None]

    def find(self, session: str) -> int:
        """Return the number of a session, or of the newest of this name.

        Raises `ConfigError` if there is none.
        """
        query = "SELECT id FROM runs WHERE id = ? OR session = ? ORDER BY id = ? DESC, id DESC"
        number = int(session) if session.isdecimal() and len(session) < 19 else 0
        session = session.encode(errors="replace").decode()  # bytes of a shell may be no UTF-8
        for (found,) in self._rows(f"{query} LIMIT 1", number, session, number):
            return int(found)
        raise ConfigError(f"the library has no session {session}: streamd library lists them")

    def run(self, number: int) -> Run:
        """Return what is known of a session. Raises `ConfigError` if there is none."""
        for (data,) in self._rows("SELECT run FROM runs WHERE id = ?", number):
            try:
                return run_of(data)
            except ValueError as error:
                raise ConfigError(f"session {number} of the library is damaged: {error}") from None
        raise ConfigError(f"the library has no session {number}")

    def read(self, number: int) -> list[Item]:
        """Return the text of a session as it was corrected."""
        return [*Revised(self.events(number)).since(0)]

    def events(self, number: int) -> Iterator[Final | Gap | Note]:
        """Give the finals, gaps and notes of a session in the order in which they came."""
        return (event for _, event in self.rows(number))

    def rows(self, number: int, after: int = 0) -> Iterator[tuple[int, Final | Gap | Note]]:
        """Give the events of a session behind row `after` of the library, with their own rows."""
        query = "SELECT id, event FROM events WHERE run = ? AND id > ? ORDER BY id"
        for row, data in self._rows(query, number, after):
            if (event := event_of(data)) is not None:
                yield row, event

    def names(self, number: int) -> Mapping[int, str]:
        """Return what speakers of a session are called."""
        return EditsSoFar(self._edits(number)).names

    def names_elsewhere(self, number: int) -> list[str]:
        """Return what speakers are called in other texts of the same audio."""
        others = {other for _, other, _ in self._sharing(number)}
        return [name for other in sorted(others) for name in self.names(other).values()]

    def sounds(self, number: int) -> list[AudioPart]:
        """Return the audio of a session that is there, in its order."""
        query = "SELECT file, start_ms, at_ms FROM sounds WHERE run = ? ORDER BY start_ms"
        every = (
            AudioPart(file=file.decode(), start_ms=start_ms, at_ms=at_ms)
            for file, start_ms, at_ms in self._rows(query, number)
        )
        return [sound for sound in every if self.sound(sound.file).is_file()]

    def texts(self, number: int) -> dict[str, str]:
        """Return other sessions with the same audio: by their numbers, what they are called."""
        there = {sound.file for sound in self.sounds(number)}
        return {str(other): name for file, other, name in self._sharing(number) if file in there}

    def _sharing(self, number: int) -> list[tuple[str, int, str]]:
        """Return the files that others have, too: each with the number and name of another."""
        query = "SELECT file, runs.id, session FROM sounds JOIN sounds AS other USING (file) "
        query += "JOIN runs ON runs.id = other.run WHERE sounds.run = ? AND runs.id != sounds.run"
        rows = self._rows(query, number)
        return [(file.decode(), other, name.decode()) for file, other, name in rows]

    def sound(self, file: str) -> Path:
        """Return the path of an audio file."""
        return self.folder / SOUNDS / Path(file).name

    def search(self, wanted: Sought, most: int = 50) -> list[Hit]:
        """Return the sentences that have all that is wanted, the newest first."""
        if wanted == Sought():
            return []
        return [*islice(self._found(wanted), most)]

    def _found(self, wanted: Sought) -> Iterator[Hit]:
        if not wanted.speaker:
            yield from self._where(wanted)
        elif numbered := re.fullmatch(r"(?:speaker )?(\d{1,4})", folded(wanted.speaker)):
            yield from self._where(wanted, _may_be_by({int(numbered[1])}))
        else:
            # The words may be in every sentence: only sessions with that name are looked at.
            row = "search.rowid" if wanted.terms else "events.id"
            within = f"AND +events.run = ? AND {row} BETWEEN ? AND ? "
            for place, numbers in sorted(self._named(wanted.speaker).items(), reverse=True):
                yield from self._where(wanted, within + _may_be_by(numbers), *place)

    def _where(self, wanted: Sought, also: str = "", *also_values: object) -> Iterator[Hit]:
        joined = "search JOIN events ON events.id = search.rowid" if wanted.terms else "events"
        query = f"SELECT events.run, runs.run, event FROM {joined} "
        query += f"JOIN runs ON runs.id = events.run WHERE seq IS NOT NULL {also}"
        values = [*also_values]
        for condition, value in (
            ("search MATCH ?", wanted.match),
            ("events.written >= ?", wanted.after and wanted.after.timestamp()),
            ("events.written < ?", wanted.before and wanted.before.timestamp()),
        ):
            if value:
                query += f"AND {condition} "
                values.append(value)
        query += f"ORDER BY {'search.rowid' if wanted.terms else 'events.id'} DESC"
        runs: dict[int, Run] = {}
        edits: dict[int, EditsSoFar] = {}
        for number, data, said in self._rows(query, *values):
            final = event_of(said)
            if not isinstance(final, Final) or wanted.lang not in ("", final.language):
                continue
            if number not in runs:
                try:
                    runs[number] = run_of(data)
                except ValueError:
                    continue
                edits[number] = EditsSoFar(self._edits(number))
            names, final = edits[number].names, edits[number].said(final)
            if _is_by(final, wanted.speaker, names):
                yield _hit(number, runs[number], final, wanted, names)

    def _named(self, speaker: str) -> Mapping[tuple[int, int, int], set[int]]:
        """Return which speakers may have a name: in which session, from which row to which."""
        first, last = (
            f"(SELECT {end}(id) FROM events WHERE run = note.run AND seq > 0)" for end in _ENDS
        )
        query = f"SELECT run, {first}, {last}, event FROM events AS note "
        query += "WHERE seq IS NULL AND instr(event, ?) > 0"
        found: dict[tuple[int, int, int], set[int]] = {}
        for *place, data in self._rows(query, '"type":"name"'):
            note = event_of(data)
            if isinstance(note, SpeakerName) and folded(note.name) == folded(speaker):
                found.setdefault((place[0], place[1], place[2]), set()).add(note.speaker)
        return found

    def n_edits(self, number: int, upto: int) -> int:
        """Return how many edits a session has up to a row of the library."""
        return sum(1 for _ in self._edits(number, upto))

    def _edits(self, number: int, upto: int = MOST_NUMBER) -> Iterator[Edit]:
        return _only_edits(self._rows(_EDITS, number, upto))

    def edit(self, number: int, edits: Edits) -> Edited:
        """Keep what somebody has edited in a session.

        Raises `OvertakenEditError` if somebody else has edited it since the revision that they have
        seen, and `ConfigError` if it has no such words.
        """
        with written(self.path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self.run(number)  # which somebody else may have deleted
            session = EditedText(self.events(number))
            if (revision := session.edits.revision) != edits.revision:
                raise OvertakenEditError(revision)
            notes, undo = session.edit(edits)
            for note in notes:
                put_event(connection.cursor(), number, note, datetime.now(UTC).timestamp())
            for seq, heard, meant in session.texts(notes):
                row = "(SELECT id FROM events WHERE run = ? AND seq = ?)"
                text = spaced(f"{heard}\n{meant}")  # what the model said is found, too
                connection.execute(
                    f"UPDATE search SET text = ? WHERE rowid = {row}", (text, number, seq)
                )
            connection.execute("COMMIT")
        learned = tuple(session.learned(notes)) if edits.keep else ()
        return Edited(session.edits.revision, tuple(notes), undo, learned)

    def now(self, ms: int) -> list[Hit]:
        """Return what was said in the last `ms` of the session that is spoken, or the newest."""
        newest = self.sessions(_LATELY)
        for kept in sorted(newest, key=_is_spoken_now, reverse=True)[:1]:
            run, names = self.run(kept.id), self.names(kept.id)
            finals = [each for each in self.read(kept.id) if isinstance(each, Final)]
            return [
                _hit(kept.id, run, final, Sought(), names)
                for final in finals
                if final.end_ms > run.end_ms - ms
            ]
        return []

    @property
    def is_written(self) -> bool:
        """Whether a streamd writes sessions into the library now."""
        try:
            os.close(lock_file(self.folder / ".lock"))
        except BlockingIOError:
            return True
        except OSError:  # the folder is read-only, or gone
            return False
        return False

    def delete(self, number: int) -> None:
        """Delete a session: its audio, its text, and its words in the index."""
        with written(self.path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            # Of two sessions with the same audio, somebody else may delete the other one now.
            with os_error_as(JournalError, f"{self.folder}: the audio cannot be deleted"):
                shared = {file for file, *_ in self._sharing(number)}
                for sound in self.sounds(number):
                    if sound.file not in shared:
                        self.sound(sound.file).unlink(missing_ok=True)
            # SQLite overwrites what it deletes, but not the places from which it has moved rows to
            # others while it deleted the first of them. Rows of the same length stay in theirs.
            for table, column, which in (
                ("search", "text", "rowid IN (SELECT id FROM events WHERE run = ?)"),
                ("events", "event", "run = ?"),
            ):
                blank = f"printf('%*s', length(CAST({column} AS BLOB)), '')"
                query = f"UPDATE {table} SET {column} = {blank} WHERE {which}"
                connection.execute(query, (number,))
            connection.execute("DELETE FROM runs WHERE id = ?", (number,))
            connection.execute(f"PRAGMA application_id = {TO_COMPACT}")
            connection.execute("COMMIT")
            is_small = self.path.stat().st_size < _COMPACT_BYTES
            compact(connection, is_whole=is_small or not self.is_written)
            ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if is_busy:
            what = "what was deleted stays in its log until no other program reads it"
            _log.warning("%s: %s", self.path, what)

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        if self.path.exists():
            with self._reading() as db:
                yield from db.execute(query, values)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as db:
                db.text_factory = bytes
                yield db
        except sqlite3.Error as error:
            cause = cause_of(error)
            raise failed(self.path, cause, "read") from cause


def _kept(db: sqlite3.Connection, number: int, data: object) -> Kept | None:
    try:
        run = run_of(data)
    except ValueError:
        return None
    query = "SELECT event FROM events WHERE run = ? AND seq IS NOT NULL ORDER BY seq LIMIT ?"
    events = (event_of(event) for (event,) in db.execute(query, (number, _FIRST_FINALS)))
    edits = EditsSoFar(_only_edits(db.execute(_EDITS, (number, MOST_NUMBER))))
    finals = [edits.said(event) for event in events if isinstance(event, Final)]
    found = {word.speaker for final in finals for word in final.words if word.speaker}
    return Kept(
        id=number,
        name=run.session,
        started=run.started,
        duration_ms=run.end_ms,
        n_finals=run.seq,
        first=next((final.text for final in finals if final.text), ""),
        speakers=tuple(speaker_name(each, edits.names) for each in sorted(found)),
        is_open=not run.ended,
    )


def _only_edits(rows: Iterable[tuple[Any, ...]]) -> Iterator[Edit]:
    events = (event_of(data) for (data,) in rows)
    return (event for event in events if isinstance(event, Edit))


def _is_spoken_now(kept: Kept) -> bool:
    """Whether a session goes on, with words of the last hour.

    A recording that is being transcribed is open, too, but its words are faster than the clock.
    """
    silent = datetime.now(UTC) - kept.started - timedelta(milliseconds=kept.duration_ms)
    return kept.is_open and timedelta(0) <= silent <= timedelta(hours=1)


def _hit(number: int, run: Run, said: Final, wanted: Sought, names: Mapping[int, str]) -> Hit:
    return Hit(
        id=number,
        session=run.session,
        said=run.started + timedelta(milliseconds=said.start_ms),
        seq=said.seq,
        start_ms=said.start_ms,
        speaker=speaker_name(said.speaker, names),
        text=said.text,
        marks=tuple(_marks(said.text, wanted.terms)),
    )


def _may_be_by(numbers: set[int]) -> str:
    """Return a condition of finals; what is exact, `_is_by` says.

    Reading each event would take ten times as long.
    """
    has_one = (f"instr(event, '\"speaker\":{number}') > 0" for number in numbers)
    attributed = "events.run IN (SELECT run FROM events WHERE seq IS NULL "
    attributed += "AND instr(event, '\"attribution\"') > 0)"
    return f"AND ({' OR '.join((*has_one, attributed))}) "


def _is_by(final: Final, wanted: str, names: Mapping[int, str]) -> bool:
    if not wanted:
        return True
    found = {word.speaker for word in final.words if word.speaker} | {final.speaker or 0}
    return any(
        folded(wanted) in (folded(speaker_name(each, names)), str(each)) for each in found if each
    )


def folded(text: str) -> str:
    """Return a text without accents and capitals, of the same length."""
    bare = (unicodedata.normalize("NFD", char)[:1] or char for char in text)
    return "".join(char.casefold() if len(char.casefold()) == 1 else char for char in bare)


def _marks(text: str, terms: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Yield where the terms stand in a text, in order and apart."""
    plain, places = folded(text), []
    for term in terms:
        words = (re.escape(word) for word in re.split(r"\W+", folded(term.rstrip("*"))) if word)
        edge = r"\b" if spaced(term) == term else ""
        end = "" if term.endswith("*") else edge
        pattern = edge + r"\W+".join(words) + end
        places += [found.span() for found in re.finditer(pattern, plain) if found[0]]
    for _, same in groupby(sorted(places), key=lambda place: place[0]):
        yield max(same, key=lambda place: place[1])
