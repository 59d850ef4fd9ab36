"""``streamd library``: what ``--keep`` has kept, on the command line."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from streamd.config import Config
from streamd.daemon.display import open_display, open_files, put, tells_who, transcripts, with_names
from streamd.daemon.phrases import with_vocabulary
from streamd.errors import ConfigError, os_error_as
from streamd.events import encode
from streamd.library.anonymous import Replaced, anonymised, as_csv
from streamd.library.migration import imported
from streamd.library.shelf import Shelf, sought
from streamd.library.tables import folder_of, opened
from streamd.sinks.text import clean, clock
from streamd.sinks.writing import fitting, has_segments
from streamd.streams.journal.database import AUTO, place
from streamd.streams.journal.tables import JOURNAL

log = logging.getLogger(__name__)

_LINE_CHARS = 60
"""Of a session's first words, in the list."""


def _shelf(config: Config) -> Shelf:
    return Shelf(folder_of(config.journal.keep, os.environ))


def assist(config: Config) -> None:
    """Let an assistant read the library; see `streamd.library.assistant`."""
    from streamd.library.assistant import serve  # its SDK is optional

    serve(_shelf(config))


def path(config: Config) -> Iterator[str]:
    """Yield the folder of the library."""
    yield str(_shelf(config).folder)


def listed(config: Config) -> Iterator[str]:
    """Yield a line for each session: number, beginning, length, name, first words."""
    shelf = _shelf(config)
    if not (sessions := shelf.sessions()):
        log.warning("%s holds no session: streamd --keep keeps them", shelf.folder)
    for kept in reversed(sessions):
        if config.output.json:
            yield encode(kept)
            continue
        began = f"{kept.started.astimezone():%Y-%m-%d %H:%M}"
        who = f"  ({', '.join(map(clean, kept.speakers))})" if kept.speakers else ""
        first = clean(kept.first)[:_LINE_CHARS]
        yield f"{kept.id:>4}  {began}  {clock(kept.duration_ms):>7}  {kept.name}{who}  {first}"


def search(config: Config, *words: str) -> Iterator[str]:
    """Yield a line for each sentence that has all of the words, the newest first.

    A word with blanks in it, which the shell's quotes were around, is a phrase.
    """
    quoted = (f'"{word}"' if " " in word and ":" not in word else word for word in words)
    query = " ".join(quoted)
    if not (hits := _shelf(config).search(sought(query))):
        log.warning("no sentence has all of this: %s", query)
    for hit in hits:
        if config.output.json:
            yield encode(hit)
            continue
        who = f"{clean(hit.speaker)}: " if hit.speaker else ""
        where = f"{hit.id:>4}  {hit.said.astimezone():%Y-%m-%d}  {hit.session}"
        yield f"{where}  {clock(hit.start_ms)}  {who}{clean(hit.text)}"


def show(config: Config, session: str) -> None:
    """Write a session to standard output. Raises `ConfigError` if there is none."""
    _write(config, session, is_shown=True)


def export(config: Config, session: str) -> None:
    """Write a session to the files that are asked for. Raises `ConfigError` if none is."""
    output = config.output
    if not (output.output or output.output_dir or output.output_format):
        raise ConfigError("name a file: -o talk.srt; streamd library show writes to the screen")
    _write(with_vocabulary(config), session, is_shown=False)


def _write(config: Config, session: str, *, is_shown: bool) -> None:
    shelf = _shelf(config)
    number = shelf.find(session)
    run = shelf.run(number)
    said, title = shelf.read(number), run.session
    config = with_names(config, shelf.names(number))
    listed: list[Replaced] | None = None
    segments = has_segments(said)
    if config.export.anonymous:
        phrases = shelf.names_elsewhere(number) + config.decoding.expected.splitlines()
        said, names, listed = anonymised(said, config.output.called, phrases)
        title = f"session-{number}"
        config = replace(config, output=replace(config.output, names=()))
        config = with_names(config, names)
    speakers = any(map(tells_who, said))
    config = replace(config, decoding=replace(config.decoding, speakers=speakers))
    if is_shown:
        shown = open_display(config, sys.stdout, os.environ, started=run.started, segments=segments)
        put(said, [shown])
        return
    put(said, open_files(config, title, whole=True, started=run.started, segments=segments))
    if listed is not None:
        _put_list(listed, next(iter(transcripts(config, title))))


def _put_list(listed: Sequence[Replaced], file: Path) -> None:
    """Write what was replaced beside a transcript; only the user can read it."""
    path = file.with_name(fitting(f"{file.stem}.replaced.csv"))
    with os_error_as(ConfigError, f"{path}: cannot be written"):
        path.touch(mode=0o600)
        path.write_text(as_csv(listed), encoding="utf-8")
    log.warning("%s tells who is who; the rules miss names: read the transcript over", path)


def bring(config: Config, folder: str = AUTO) -> Iterator[str]:
    """Bring the sessions of a journal into the library, and yield a line for each that was not in.

    The journal stays. Raises `ConfigError` if there is none, or the library cannot be written,
    `JournalError` if the journal cannot be read.
    """
    journal = place(folder, os.environ)
    if not (journal / JOURNAL.name).exists():
        raise ConfigError(f"{journal} holds no journal: name the folder that --journal had")
    with opened(_shelf(config).folder) as library:
        for run in imported(library, journal):
            yield f"imported {run.session} of {run.started.astimezone():%Y-%m-%d %H:%M}"


def delete(config: Config, *sessions: str) -> Iterator[str]:
    """Delete sessions, and yield a line for each.

    Raises `ConfigError` if there is none, or it may go on: it would be listed again.
    """
    shelf = _shelf(config)
    for number in [shelf.find(session) for session in sessions]:
        run = shelf.run(number)
        if not run.ended and shelf.is_written:
            raise ConfigError(
                f"session {number}, {run.session}, may go on: end it or streamd first"
            )
        shelf.delete(number)
        yield f"deleted {number}, {run.session} of {run.started.astimezone():%Y-%m-%d %H:%M}"
