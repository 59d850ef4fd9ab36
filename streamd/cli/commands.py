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

from streamd.cli.arguments import Command, Request, commands_of, help_text, parse, settings_text
from streamd.cli.hints import command_in_group
from streamd.config import Config, as_toml, load, without_source
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
    if "microphone" in command.needs:
        _find_microphone(config)
    if "model" in command.needs:
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


COMMANDS = commands_of("""
: [FILE...]
    live captions of the microphone, or of FILEs and addresses (- is stdin)
    daemon.live:run, needs model microphone
    input streaming vad decoding server journal output notify -skip-existing -json
serve
    caption only what clients send over the network
    daemon.live:run, needs clients model
    streaming vad decoding server journal to notify translate-into
transcribe: FILE...
    transcribe files fast, as openai-whisper does
    daemon.transcribe:transcribe, needs model
    input vad decoding longform output library -device realtime=false -play -afterwards -to -json
dictate: [FILE...]
    type what is said into the focused window
    daemon.live:dictate, needs model microphone
    input streaming vad decoding output port=off -skip-existing -afterwards -to -json
watch: URL
    show the captions of another streamd
    cli.viewing:show
    output until token-file -afterwards -to -json
export: [SESSION]
    write a session of the journal, or list them all
    cli.viewing:export
    output journal -afterwards -to -json
library: [list|show|search|export|delete ...]
    find, show and delete what --keep has kept
    cli.library:listed
    library json
library list
    list the sessions of the library, the newest last
    cli.library:listed
    library json
library show: SESSION
    show a session, by its number or name
    cli.library:show
    library names format timestamps
library search: WORD...
    find words, "phrases", begin*, speaker:ANA, lang:en, after:2026-01-31, before:DATE
    cli.library:search
    library json
library export: SESSION
    write a session to files
    cli.library:export
    output library export vocabulary -format -json -skip-existing
library import: [DIR]
    bring the sessions of a journal (--journal) into the library
    cli.library:bring
    library
library delete: SESSION...
    delete sessions: their text, audio and words in the index
    cli.library:delete
    library
library path
    print the folder of the library
    cli.library:path
    library
people: [list|rename|delete|enroll ...]
    list, rename and forget known voices
    cli.people:listed
    people json
people list
    list the people whose voices are known again
    cli.people:listed
    people json
people rename: OLD NEW
    call somebody by another name
    cli.people:rename
    people
people delete: NAME...
    forget the voices of people
    cli.people:delete
    people
people enroll: NAME RECORDING
    keep the voice of the one person who speaks in a recording
    cli.people:enroll
    people
mcp
    let an assistant search and read the library
    cli.library:assist
    library
devices
    list the microphones
    cli.commands:_devices
    json
bench
    measure what live captions cost on this machine
    cli.bench:report, needs model
    streaming vad decoding
doctor
    check this machine, and say how to fix problems
    cli.doctor:report
    model threads precision compute host port json
models: [list|get|import|check|build|remove ...]
    list, download, check and remove models
    cli.models:table
    json
models list
    list the models on this machine and those to download by name
    cli.models:table
    language task json
models get: NAME
    download a model that the list shows, or OWNER/NAME from the hub
    cli.models:get
models import: PATH [NAME]
    bring a model's file or folder into the store, under its own or another name
    cli.models:add
models check: NAME
    check whether a model works on this machine, and how fast
    cli.commands:_models_check
    language threads precision compute
models build: NAME
    build a model's encoder for a Mac's Neural Engine
    cli.packages:build
models remove: NAME
    delete a downloaded or imported model
    cli.models:remove
vocabulary: check ...
    check a file of words and names to expect
    cli.phrase_check:report
vocabulary check: FILE
    show what a file's phrases become, and which of them are risky
    cli.phrase_check:report, needs model
    language model
completion: SHELL
    complete commands in bash, zsh or fish
    cli.completion:script
""")
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
    if "clients" in request.command.needs:
        config = without_source(config)
    output = config.output
    log_to(sys.stderr, form=output.log_format, verbose=output.verbose)
    share_heap()
    return call(request.command, config, request.operands) or 0
