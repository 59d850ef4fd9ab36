"""The commands of the program, and how one is run.

Each command imports its modules when it runs, so that ``streamd --help`` and a mistyped option are
answered before numpy and the inference runtime are loaded.
"""

import atexit
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from inspect import iscoroutine
from pathlib import Path
from typing import TYPE_CHECKING

from streamd.cli.arguments import Command, Request, help_text, parse, settings_text
from streamd.cli.hints import command_in_group
from streamd.config import OPTIONS, Config, as_toml, for_clients, load
from streamd.errors import ConfigError, SourceError, StreamdError
from streamd.system import stdio
from streamd.system.heap import share_heap
from streamd.system.stdio import log_to
from streamd.version import __version__

if TYPE_CHECKING:
    from streamd.sources.microphone import Device


def call(command: Command, config: Config, operands: tuple[str, ...]) -> int | None:
    """Import and call what runs the command, and return its exit code, if any.

    The function gets the configuration and the operands. It may be a coroutine. It returns an exit
    code or None, or yields lines, which are printed.
    """
    if operands and (parts := _parts(command.name)):
        raise ConfigError(f"{command.name} {operands[0]}{command_in_group(operands[0], parts)}")
    if command.needs_microphone:
        _find_microphone(config)
    if command.needs_model:
        from streamd.cli.models import with_model  # here for the reason above, like the others

        config = with_model(config)
    if command.name == "serve" or config.bind.share != "off":
        from streamd.cli.asking import with_answer

        config = with_answer(config)
    module, _, function = command.target.partition(":")
    result = getattr(import_module(module), function)(config, *operands)
    if iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    if result is None or isinstance(result, int):
        return result
    for line in result:
        stdio.put(sys.stdout, f"{line}\n")
    return 0


def _find_microphone(config: Config) -> None:
    """Raise `SourceError` before a model is offered for download, or prepared, for nothing."""
    if config.input.source and not config.input.files:
        from streamd.sources.call import sides_of
        from streamd.sources.microphone import choose, list_devices

        try:
            for device in sides_of(config.input.device) or (config.input.device or None,):
                choose(list_devices(), device)
        except SourceError as error:
            swallowed = config.decoding.hotwords
            if swallowed and Path(swallowed).is_file():
                named = f"--hotwords took {swallowed} for its words, so no file is named"
                raise SourceError(f"{named}: put the words between them") from error
            if config.bind.share != "off":
                browsers = "streamd serve --sharing speak captions the microphone of a phone"
                raise SourceError(f"{error}; {browsers}") from error
            raise


def _devices(config: Config) -> "Iterator[str]":
    from streamd.events import encode
    from streamd.sources.microphone import list_devices

    devices = list_devices()
    return iter([encode(devices)]) if config.output.json else device_table(devices)


def device_table(devices: "Sequence[Device]") -> Iterator[str]:
    """Yield a line for each microphone; a star marks the default. Raises `SourceError`."""
    from streamd.sources.microphone import MONITOR, has_monitor

    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    for device in devices:
        yield (
            f"{'*' if device.default else ' '} {device.index:>2}  {device.name}  "
            f"({device.host_api}, channels: {device.channels}, {device.rate_hz} Hz)"
        )
    if has_monitor(devices):
        yield f"      {MONITOR}  (what this computer plays: streamd --device {MONITOR})"


def _parts(group: str) -> list[str]:
    """Return the second words of the commands of a group; there are none if it is no group."""
    names = (command.name.partition(" ") for command in COMMANDS)
    return [part for first, _, part in names if first == group and part]


def _models_check(config: Config, name: str) -> Iterator[str]:
    if config.decoding.compute == "ane":
        from streamd.cli.packages import report
    else:
        from streamd.cli.model_check import report

    return report(replace(config, decoding=replace(config.decoding, model=name)))


def _bench(config: Config) -> Iterator[str]:
    from streamd.cli.bench import (
        cost_json,
        cost_table,
        estimates,
        gpu_cost,
        measure,
        measure_family,
    )
    from streamd.daemon.opening import family_file, open_model

    form = cost_table if sys.stdout.isatty() else cost_json
    if path := family_file(config):
        from streamd.daemon.families import open_model_file

        opened = open_model_file(config, path)
        cost = measure_family(config, opened)
        opened.close()
        yield form(cost, estimates(config))
        return
    model, engine = open_model(config, wait=True)
    cost = measure(config, model, engine)
    yield form(cost, estimates(config), gpu_cost(engine))


_LIVE = ("streaming", "vad", "decoding", "server", "journal")
_ENGINE = ("threads", "precision", "compute")


def _part(name: str, function: str, summary: str, operand: str = "", *takes: str) -> Command:
    """Return a command of a group: it is in the group's module, and takes its option, if any."""
    group, _, _ = name.partition(" ")
    target, own = f"streamd.cli.{group}:{function}", {group} & {*OPTIONS}
    return Command(name, summary, target=target, operand=operand, takes=(*own, *takes))


COMMANDS = (
    Command(
        "",
        "live captions of the microphone, or of FILEs and addresses (- is stdin)",
        target="streamd.daemon.live:run",
        operand="[FILE...]",
        takes=("input", *_LIVE, "output", "notify"),
        lacks=("skip-existing", "json"),
        needs_model=True,
        needs_microphone=True,
    ),
    Command(
        "serve",
        "caption only what clients send over the network",
        target="streamd.daemon.live:run",
        takes=(*_LIVE, "to", "notify", "translate-into"),
        for_clients=True,
        needs_model=True,
    ),
    Command(
        "transcribe",
        "transcribe files fast, as openai-whisper does",
        target="streamd.daemon.transcribe:transcribe",
        operand="FILE...",
        takes=("input", "vad", "decoding", "longform", "output", "library"),
        lacks=("device", "realtime", "play", "afterwards", "to", "json"),
        preset={"realtime": "false"},
        needs_model=True,
    ),
    Command(
        "dictate",
        "type what is said into the focused window",
        target="streamd.daemon.live:dictate",
        operand="[FILE...]",
        takes=("input", "streaming", "vad", "decoding", "output"),
        lacks=("skip-existing", "afterwards", "to", "json"),
        preset={"port": "off"},
        needs_model=True,
        needs_microphone=True,
    ),
    Command(
        "watch",
        "show the captions of another streamd",
        target="streamd.cli.viewing:show",
        operand="URL",
        takes=("output", "until", "token-file"),
        lacks=("afterwards", "to", "json"),
    ),
    Command(
        "export",
        "write a session of the journal, or list them all",
        target="streamd.cli.viewing:export",
        operand="[SESSION]",
        takes=("output", "journal"),
        lacks=("afterwards", "to", "json"),
    ),
    Command(
        "library",
        "find, show and delete what --keep has kept",
        target="streamd.cli.library:listed",
        operand="[list|show|search|export|delete ...]",
        takes=("library", "json"),
    ),
    _part(
        "library list", "listed", "list the sessions of the library, the newest last", "", "json"
    ),
    _part(
        "library show",
        "show",
        "show a session, by its number or name",
        "SESSION",
        "names",
        "format",
        "timestamps",
    ),
    _part(
        "library search",
        "search",
        'find words, "phrases", begin*, speaker:ANA, lang:en, after:2026-01-31, before:DATE',
        "WORD...",
        "json",
    ),
    Command(
        "library export",
        "write a session to files",
        target="streamd.cli.library:export",
        operand="SESSION",
        takes=("output", "library", "export", "vocabulary"),
        lacks=("format", "json", "skip-existing"),
    ),
    _part(
        "library import",
        "bring",
        "bring the sessions of a journal (--journal) into the library",
        "[DIR]",
    ),
    _part(
        "library delete",
        "delete",
        "delete sessions: their text, audio and words in the index",
        "SESSION...",
    ),
    _part("library path", "path", "print the folder of the library"),
    Command(
        "people",
        "list, rename and forget known voices",
        target="streamd.cli.people:listed",
        operand="[list|rename|delete|enroll ...]",
        takes=("people", "json"),
    ),
    _part("people list", "listed", "list the people whose voices are known again", "", "json"),
    _part("people rename", "rename", "call somebody by another name", "OLD NEW"),
    _part("people delete", "delete", "forget the voices of people", "NAME..."),
    _part(
        "people enroll",
        "enroll",
        "keep the voice of the one person who speaks in a recording",
        "NAME RECORDING",
    ),
    Command(
        "mcp",
        "let an assistant search and read the library",
        target="streamd.cli.library:assist",
        takes=("library",),
    ),
    Command(
        "devices",
        "list the microphones",
        target="streamd.cli.commands:_devices",
        takes=("json",),
    ),
    Command(
        "bench",
        "measure what live captions cost on this machine",
        target="streamd.cli.commands:_bench",
        takes=("streaming", "vad", "decoding"),
        needs_model=True,
    ),
    Command(
        "doctor",
        "check this machine, and say how to fix problems",
        target="streamd.cli.doctor:report",
        takes=("model", *_ENGINE, "host", "port", "json"),
    ),
    Command(
        "models",
        "list, download, check and remove models",
        target="streamd.cli.models:table",
        operand="[list|get|import|check|build|remove ...]",
        takes=("json",),
    ),
    _part(
        "models list",
        "table",
        "list the models on this machine and those to download by name",
        "",
        "language",
        "task",
        "json",
    ),
    _part(
        "models get",
        "get",
        "download a model that the list shows, or OWNER/NAME from the hub",
        "NAME",
    ),
    _part(
        "models import",
        "add",
        "bring a model's file or folder into the store, under its own or another name",
        "PATH [NAME]",
    ),
    Command(
        "models check",
        "check whether a model works on this machine, and how fast",
        target="streamd.cli.commands:_models_check",
        operand="NAME",
        takes=("language", *_ENGINE),
    ),
    Command(
        "models build",
        "build a model's encoder for a Mac's Neural Engine",
        target="streamd.cli.packages:build",
        operand="NAME",
    ),
    _part("models remove", "remove", "delete a downloaded or imported model", "NAME"),
    Command(
        "vocabulary",
        "check a file of words and names to expect",
        target="streamd.cli.phrase_check:report",
        operand="check ...",
    ),
    Command(
        "vocabulary check",
        "show what a file's phrases become, and which of them are risky",
        target="streamd.cli.phrase_check:report",
        operand="FILE",
        takes=("language", "model"),
        needs_model=True,
    ),
    Command(
        "completion",
        "complete commands in bash, zsh or fish",
        target="streamd.cli.completion:script",
        operand="SHELL",
    ),
)
"""The first one runs if none is named."""

READER_LEFT = 141
"""The exit code that a shell reports for a program that SIGPIPE ended."""
_LEAVE_S = 0.5
"""How long the end waits for windows that nobody needs any more."""


def run(argv: Sequence[str] | None) -> int:
    """Run the program; see `streamd.cli.main`."""
    stdio.open_missing()
    code = 1  # that of Python after a bug, whose traceback it prints
    try:
        code = _run(parse(sys.argv[1:] if argv is None else argv, COMMANDS))
    except StreamdError as error:
        with suppress(OSError):  # stderr may be on the full disk that this is about
            sys.stderr.write(f"streamd: {' '.join(str(error).splitlines())}\n")
        code = error.exit_code
    except BrokenPipeError:
        code = READER_LEFT
    finally:
        stdio.settle()
        threads = threading.enumerate()
        busy = [each for each in threads if each.name.startswith(stdio.ENGINE_THREAD)]
        if busy:
            atexit.register(stdio.leave, busy, code, wait_s=_LEAVE_S)
    return code


def _run(request: Request) -> int:
    if request.action in ("help", "help-all"):
        full = request.action == "help-all"
        stdio.put(sys.stdout, help_text(request.command, COMMANDS, full=full))
        return 0
    if request.action == "settings":
        stdio.put(sys.stdout, settings_text())
        return 0
    if request.action == "version":
        stdio.put(sys.stdout, f"streamd {__version__}\n")
        return 0
    config = load(request.given, os.environ, config_file=request.config_file)
    if request.action == "print-config":
        stdio.put(sys.stdout, as_toml(config))
        return 0
    if request.command.for_clients:
        config = for_clients(config)
    output = config.output
    log_to(sys.stderr, form=output.log_format, verbose=output.verbose)
    share_heap()
    return call(request.command, config, request.operands) or 0
