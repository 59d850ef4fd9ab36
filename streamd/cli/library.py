"""``streamd library``: what ``--keep`` has kept, on the command line."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace

from streamd.config import Config
from streamd.daemon.display import open_display, open_files, speaker_names
from streamd.errors import ConfigError
from streamd.events import Final, encode
from streamd.library.shelf import Shelf, sought
from streamd.library.tables import folder_of
from streamd.sinks.text import clean, clock

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
    for kept in reversed(_shelf(config).sessions()):
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
    for hit in _shelf(config).search(sought(" ".join(quoted))):
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
    _write(config, session, is_shown=False)


def _write(config: Config, session: str, *, is_shown: bool) -> None:
    shelf = _shelf(config)
    number = shelf.find(session)
    said, started = shelf.read(number), shelf.run(number).started
    named = {**shelf.names(number), **speaker_names(config.output)}
    names = tuple(f"{speaker}={name}" for speaker, name in named.items())
    has_speakers = any(isinstance(each, Final) and each.speaker for each in said)
    config = replace(
        config,
        output=replace(config.output, names=names),
        decoding=replace(config.decoding, speakers=has_speakers),
    )
    sinks = open_files(config, shelf.run(number).session, whole=True, started=started)
    if is_shown:
        sinks = [open_display(config, sys.stdout, os.environ, started=started)]
    for sink in sinks:
        for event in said:
            sink.write(event)
        sink.close()


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
