"""The commands of the program, and how one is run.

Each command imports its modules when it runs, so that ``streamd --help`` and a mistyped option are
answered before numpy and the inference runtime are loaded.
"""

import atexit
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from inspect import iscoroutine
from typing import TYPE_CHECKING

from streamd import __version__
from streamd.cli.arguments import Command, Request, Run, help_text, parse
from streamd.config import OPTIONS, Config, as_toml, load, suggestion
from streamd.errors import ConfigError, SourceError, StreamdError
from streamd.system import stdio
from streamd.system.stdio import log_to

if TYPE_CHECKING:
    from streamd.sources.microphone import Device


def _runner(target: str, needs: set[str]) -> Run:
    """Return what imports and calls ``module:function`` when a command runs.

    The function gets the configuration and the operands. It may be a coroutine. It returns an exit
    code or None, or yields lines, which are printed.
    """

    def run(config: Config, operands: tuple[str, ...]) -> int | None:
        if "MICROPHONE" in needs:
            _find_microphone(config)
        if "MODEL" in needs:
            config = _with_model(config)
        module, _, function = target.partition(":")
        result = getattr(import_module(module), function)(config, *operands)
        if iscoroutine(result):
            import asyncio  # here for the reason above, like all imports in these functions

            result = asyncio.run(result)
        if result is None or isinstance(result, int):
            return result
        for line in result:
            stdio.put(sys.stdout, f"{line}\n")
        return 0

    return run


def _with_model(config: Config) -> Config:
    from streamd.cli.models import with_model

    return with_model(config)


def _find_microphone(config: Config) -> None:
    """Raise `SourceError` before a model is offered for download, or prepared, for nothing."""
    if config.input.source and not config.input.files:
        from streamd.sources.microphone import choose, list_devices

        choose(list_devices(), config.input.device or None)


def _devices(config: Config) -> "Iterator[str]":
    from streamd.sources.microphone import list_devices

    return device_table(list_devices())


def device_table(devices: "Sequence[Device]") -> Iterator[str]:
    """Yield a line for each microphone; a star marks the default. Raises `SourceError`."""
    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    for device in devices:
        yield (
            f"{'*' if device.default else ' '} {device.index:>2}  {device.name}  "
            f"({device.host_api}, channels: {device.channels}, {device.rate_hz} Hz)"
        )


def _models(config: Config, word: str, *_: str) -> None:
    """Refuse a word that names no command of the group."""
    group = (name.split() for name in (command.name for command in COMMANDS) if " " in name)
    hint = suggestion(word, [part for _, part in group])
    raise ConfigError(f"models {word}: no such command{hint}")


def _models_check(config: Config, name: str) -> Iterator[str]:
    engine = "onnx" if config.decoding.engine == "auto" else config.decoding.engine
    if engine == "coreml":
        from streamd.cli.packages import report
    else:
        from streamd.cli.model_check import report

    decoding = replace(config.decoding, model=name, engine=engine, compute="auto")
    return report(replace(config, decoding=decoding))


def _bench(config: Config) -> Iterator[str]:
    from streamd.cli.bench import cost_json, cost_table, measure
    from streamd.daemon.opening import open_model

    cost = measure(config, *open_model(config, settled=True))
    yield cost_table(cost) if sys.stdout.isatty() else cost_json(cost)


# Each entry: USAGE = MODULE:FUNCTION: summary, and below it the options. They are sections and
# names of options, in any order; -NAME leaves one out, and NAME=VALUE presets one. LOG stands for
# those of log messages. With MODEL the function gets a configuration with a model that is on this
# machine; with MICROPHONE there has to be one unless files are named.
_TABLE = """
[FILE...] = daemon:run: live captions of the microphone, or of FILEs and addresses (- is stdin)
  input streaming vad decoding output server journal MODEL MICROPHONE
serve = daemon:run: caption only what clients send over the network
  streaming vad decoding server journal LOG -server source=false MODEL
transcribe FILE... = daemon.offline:transcribe: transcribe files, fast, as openai-whisper does
  input vad decoding longform output -source -device -realtime realtime=false MODEL
watch URL = cli.viewing:show: show the captions of another streamd
  output token-file
export [SESSION] = cli.viewing:export: write a session of the journal, or list all
  output journal
devices = cli.commands:_devices: list the microphones
bench = cli.commands:_bench: measure what live captions cost on this machine
  streaming vad decoding LOG MODEL
doctor = cli.doctor:report: check this machine, and say how to fix problems
  source model threads precision engine compute host port LOG
models list|get|import|check|build|remove ... = cli.commands:_models: \
list, download, check and remove models
models list = cli.models:table: list the models here, and others that can be had by name
  language task LOG
models get NAME = cli.models:get: download a model that the list shows, or OWNER/NAME from the hub
  LOG
models import PATH [NAME] = cli.models:add: \
copy a model's file or folder into the store, under its own or another name
  LOG
models check NAME = cli.commands:_models_check: \
check what a model computes on this machine, and how fast
  language threads precision engine LOG
models build NAME = cli.packages:build: \
make a model's packages for the Neural Engine and GPU of a Mac
  building engine LOG
models remove NAME = cli.models:remove: delete a downloaded or imported model
  LOG
"""


def _command(entry: str) -> Command:
    head, _, below = entry.partition("\n")
    usage, module, function, summary = re.split(r" ?= |:", head, maxsplit=3)
    # The name is in lower case.
    name, operand = re.findall(r"^((?:[a-z]+(?: |$))*)(.*)$", usage)[0]
    words = below.replace("LOG", "quiet verbose log-format").split()
    preset = dict(word.split("=") for word in words if "=" in word)
    options = tuple(
        option
        for option in OPTIONS.values()
        if {option.opt.group, option.name} & {*words} and f"-{option.name}" not in words
    )
    run = _runner(f"streamd.{module}:{function}", {*words})
    return Command(name.strip(), summary.strip(), run, operand, options, preset)


COMMANDS = tuple(map(_command, re.split(r"\n(?! )", _TABLE.strip())))
"""The first one runs if none is named."""

READER_LEFT = 141
"""The exit code that a shell reports for a program that SIGPIPE ended."""
_LEAVE_S = 1.0
"""How long the end waits for a window that nobody needs any more."""


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
        busy = [each for each in threading.enumerate() if each.name == stdio.ENGINE_THREAD]
        if busy:
            atexit.register(stdio.leave, busy, code, wait_s=_LEAVE_S)
    return code


def _run(request: Request) -> int:
    if request.action in ("help", "help-all"):
        full = request.action == "help-all"
        stdio.put(sys.stdout, help_text(request.command, COMMANDS, full=full))
        return 0
    if request.action == "version":
        stdio.put(sys.stdout, f"streamd {__version__}\n")
        return 0
    config = load(request.given, os.environ, config_file=request.config_file)
    if request.action == "print-config":
        stdio.put(sys.stdout, as_toml(config))
        return 0
    output = config.output
    log_to(sys.stderr, form=output.log_format, verbose=output.verbose, quiet=output.quiet)
    return request.command.run(config, request.operands) or 0
