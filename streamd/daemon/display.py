"""Opens the sinks that the output options ask for, for all commands that show captions."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TextIO
from urllib.parse import unquote, urlsplit

from streamd.config import Config
from streamd.daemon import build, translating
from streamd.errors import ConfigError, os_error_as
from streamd.events import Event, Final, Item, SpeakerTurns
from streamd.labels import Names
from streamd.options import OutputOptions, without_password
from streamd.sinks import About, CaptionSink, Format, Sink
from streamd.sinks.formats import FORMATS, SEGMENTED, Jsonl, Paragraphs, Table, Text, suffix
from streamd.sinks.terminal import TerminalSink, is_terminal
from streamd.sinks.text import SPEAKERS, Look, clean, confidence_ramp, stamper
from streamd.sinks.transcripts import transcript
from streamd.sinks.whole import DOCUMENTS, Document
from streamd.sinks.writing import FileSink, SentenceSink, StreamSink, fitting
from streamd.sources.ffmpeg import is_url

_USUAL = ("txt", "srt", "json")
"""The formats of a folder of transcripts if none are named: to read, to show, for programs."""


def open_display(
    config: Config,
    stream: TextIO,
    environ: Mapping[str, str],
    *,
    started: datetime | None = None,
    segments: bool = False,
) -> CaptionSink:
    """Return the sink for standard output, `stream`; time stamps count from `started`, or now.

    Characters outside its encoding are replaced. A dumb terminal counts as a pipe. `segments`: as
    for `open_files`.
    """
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")
    output, terminal = config.output, is_terminal(stream, environ)
    if output.format == "jsonl":
        return StreamSink(stream, Jsonl(everything=True))
    if output.format != "txt":
        return open_stream(config, stream, output.format, segments=segments)
    ramp = confidence_ramp(environ, is_terminal=terminal)
    look = Look(
        ramp=ramp if config.cues.confidence else (),
        stamp=stamper(output.timestamps, started or datetime.now(UTC)),
        speakers=SPEAKERS if ramp else (),
        names=output.called,
    )
    if terminal:
        return TerminalSink(stream, look)
    lines = StreamSink(stream, Text(look))
    return SentenceSink(lines) if segments else lines


def prints(config: Config, stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a whole transcript goes to standard output, `stream`, too.

    Files that were asked for are enough at a terminal, where hours of text would scroll by.
    """
    output = config.output
    has_files = output.output or output.output_dir or output.output_format
    return not (has_files and is_terminal(stream, environ))


def open_stream(config: Config, stream: TextIO, form: str, *, segments: bool) -> CaptionSink:
    """Return the sink that writes this format of files; `segments`: as for `open_files`."""
    sink = StreamSink(stream, new_format(config, form), at_once=not segments)
    return SentenceSink(sink) if segments and form not in SEGMENTED else sink


def with_names(config: Config, names: Names) -> Config:
    """Return the configuration with what speakers are called, but for those that the user names."""
    named = {**names, **config.output.called}
    every = tuple(f"{speaker}={name}" for speaker, name in named.items())
    return replace(config, output=replace(config.output, names=every))


def new_format(
    config: Config, name: str, started: datetime | None = None, title: str = ""
) -> Format:
    """Return a format of files as the user wants it; time stamps count from `started`, or now.

    Raises `ConfigError` without the library that it needs.
    """
    if name in DOCUMENTS:
        names = config.output.called
        numbers = config.export.line_numbers
        return Document(name, About(title or "Transcript", started, names, numbers))
    form = FORMATS[name](config.cues)
    form.names = config.output.called
    if isinstance(form, Table) and (config.decoding.speakers or build.is_split(config)):
        form.add_speakers()
    if isinstance(form, Paragraphs):
        form.stamp = stamper(config.output.timestamps, started or datetime.now(UTC))
    return form


def written(
    config: Config, events: Sequence[Event], form: str, names: Names, title: str = ""
) -> bytes:
    """Return the transcript of a session in a format of files.

    `names` are what the reader calls speakers, whatever the events say. Raises `ConfigError`
    without the library that the format needs.
    """
    writer = new_format(config, form, title=title)
    writer.names = names
    if isinstance(writer, Table) and any(map(tells_who, events)):
        writer.add_speakers()
    return transcript(events, writer)


def put(said: Iterable[Item], sinks: Sequence[Sink]) -> None:
    """Write what was said, and close all sinks, even if one of them cannot be written."""
    try:
        for event in said:
            for sink in sinks:
                sink.write(event)
    finally:
        for sink in sinks:
            sink.close()


def tells_who(event: Event) -> bool:
    """Whether an event says who speaks."""
    return isinstance(event, SpeakerTurns) or (isinstance(event, Final) and bool(event.speaker))


def open_files(
    config: Config,
    file: str = "",
    *,
    whole: bool = False,
    segments: bool = False,
    started: datetime | None = None,
) -> list[Sink]:
    """Return the sinks of the transcript files; time stamps count from `started`, or now.

    `file` is the sound file that is transcribed, ``-`` for standard input, or empty for other
    sources. With `whole` the files appear when they are complete rather than grow line by line.
    With `segments` the finals are a model's segments, which people get as sentences. Raises
    `ConfigError` if one cannot be made, or would replace the sound.
    """
    output, wanted = config.output, _wanted(config, file)
    _refuse_input(wanted, file)
    if output.output_dir:
        with os_error_as(ConfigError, f"--output-dir: {output.output_dir} cannot be made"):
            Path(output.output_dir).mkdir(parents=True, exist_ok=True)
    sinks: list[Sink] = []
    with ExitStack() as undo:
        for path, (name, into) in wanted.items():
            form = new_format(config, name, started, Path(file).stem.strip("-"))
            sinks.append(FileSink(path, form, whole=whole))
            undo.callback(sinks[-1].close)
            if into:
                sinks[-1] = translating.translated(config, sinks[-1], into)
            elif segments and name not in SEGMENTED:
                sinks[-1] = SentenceSink(sinks[-1])
        undo.pop_all()
    return sinks


def transcripts(config: Config, file: str) -> dict[Path, str]:
    """Return the transcript files of `file`, as for `open_files`, with their formats."""
    return {path: form for path, (form, _) in _wanted(config, file).items()}


class _Target(NamedTuple):
    """What a transcript is: its format, and the language that it is translated into, if it is."""

    form: str
    into: str = ""


def _wanted(config: Config, file: str) -> dict[Path, _Target]:
    languages = config.output.languages
    wanted = {Path(path): _labelled(path, languages) for path in config.output.output}
    folder = _in_folder(config.output, file, config.input.files)
    wanted |= {path: _Target(form) for path, form in folder.items()}
    if not config.input.realtime:  # what is transcribed for its files
        originals = [(path, form) for path, (form, into) in wanted.items() if not into]
        wanted |= {
            _with_label(path, form, into): _Target(form, into)
            for path, form in originals
            for into in languages
        }
    # A file may be named in two ways, and can only be opened once.
    return {path: wanted[path] for path in {path.resolve(): path for path in wanted}.values()}


def _labelled(path: str, languages: Sequence[str]) -> _Target:
    """Return what is wanted by the name of a file, such as ``talk.pt.srt``."""
    form = _format(path)
    label = path.removesuffix(suffix(form)).rpartition(".")[2]
    return _Target(form, label if label in languages else "")


def _with_label(path: Path, form: str, into: str) -> Path:
    stem = path.name.removesuffix(suffix(form))
    return path.with_name(fitting(f"{stem}.{into}{suffix(form)}"))


def check_files(config: Config) -> None:
    """Raise `ConfigError` if the transcripts of the files would overwrite one, or each other."""
    files = config.input.files
    if len(files) > 1 and config.output.output:
        raise ConfigError("-o is for one transcript: use --output-dir for several files")
    owners: dict[Path, str] = {}
    for file in files:
        wanted = transcripts(config, file)
        for other in files:
            _refuse_input(wanted, other)
        for path in wanted:
            if (owner := owners.setdefault(path, file)) != file:
                both = " and ".join(map(without_password, (owner, file)))
                raise ConfigError(f"{both} would both be written to {path}: rename one")


def _refuse_input(paths: Iterable[Path], file: str) -> None:
    for path in paths:
        if file and path.exists() and os.path.exists(file) and path.samefile(file):
            raise ConfigError(
                f"{path} is the input and would be overwritten: "
                "name another file with -o, or another folder with --output-dir"
            )


def _in_folder(output: OutputOptions, file: str, files: Sequence[str]) -> dict[Path, str]:
    """Return the transcripts that are named after their sound file, with their formats."""
    if not (output.output_dir or output.output_format):
        return {}
    named = output.output_format or _USUAL
    names = (*FORMATS, *named) if "all" in named else named
    stem = {"": "live", "-": "stdin"}.get(file) or _names(files).get(file) or _stem(file)
    return {
        Path(output.output_dir, fitting(stem + suffix(name))): name
        for name in names
        if name != "all"
    }


def _names(files: Sequence[str]) -> dict[str, str]:
    """Return what the transcripts of each file are called: its stem, if no other has the same.

    Of those that share it, each has its whole name, and a number if that is not enough.
    """
    stems = Counter(map(_stem, files))
    named: dict[str, str] = {}
    for file in dict.fromkeys(files):
        whole = _stem(file) + PurePosixPath(urlsplit(file).path).suffix
        name = base = _stem(file) if stems[_stem(file)] == 1 else whole
        number = 1
        while name in named.values():
            number += 1
            name = f"{base}-{number}"
        named[file] = name
    return named


def _stem(file: str) -> str:
    if not is_url(file):
        return Path(file).stem
    address = urlsplit(file)
    return clean(PurePosixPath(unquote(address.path)).stem) or address.hostname or "live"


def _format(path: str) -> str:
    # The configuration has checked that there is one.
    known = (*FORMATS, *DOCUMENTS)
    return max((name for name in known if path.endswith(suffix(name))), key=len)
