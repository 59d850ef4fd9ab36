"""The commands of the program, and how one is run.

Each command imports its modules when it runs, so that ``streamd --help`` and a mistyped option are
answered before numpy and the inference runtime are loaded.
"""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from inspect import iscoroutine
from typing import TYPE_CHECKING

from streamd import __version__, stdio
from streamd.cli.arguments import Command, Request, Run, help_text, parse
from streamd.config import OPTIONS, Config, as_toml, load, suggestion
from streamd.config.option import Field
from streamd.errors import ConfigError, SourceError, StreamdError
from streamd.stdio import log_to

if TYPE_CHECKING:
    from streamd.sources.microphone import Device


def _late(target: str, *, needs_model: bool = False, listens: bool = False) -> Run:
    """Return a runner that imports and calls ``module:function`` when the command runs.

    The function gets the configuration, with a model that is on this machine if it `needs_model`,
    and the operands. One that `listens` needs a microphone unless files are named. It may be a
    coroutine. It returns an exit code or None, or yields lines, which are printed.
    """

    def run(config: Config, operands: tuple[str, ...]) -> int | None:
        if listens:
            _find_microphone(config)
        if needs_model:
            config = _with_model(config)
        module, _, function = target.partition(":")
        result = getattr(import_module(module), function)(config, *operands)
        if iscoroutine(result):
            import asyncio  # here for the reason above, like all imports in these functions

            result = asyncio.run(result)
        if result is None or isinstance(result, int):
            return result
        _print(result)
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


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        stdio.put(sys.stdout, f"{line}\n")


def _devices(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.sources.microphone import list_devices

    _print(device_table(list_devices()))


def device_table(devices: "Sequence[Device]") -> Iterator[str]:
    """Yield a line for each microphone; a star marks the default.

    Raises `SourceError` if there is none.
    """
    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    for device in devices:
        yield (
            f"{'*' if device.default else ' '} {device.index:>2}  {device.name}  "
            f"({device.host_api}, channels: {device.channels}, {device.rate_hz} Hz)"
        )


def _models(config: Config, operands: tuple[str, ...]) -> None:
    """Refuse a word that names no command of the group."""
    word, *_ = operands
    hint = suggestion(word, [command.name.split()[1] for command in MODELS])
    raise ConfigError(f"models {word}: no such command{hint}")


def _models_check(config: Config, operands: tuple[str, ...]) -> None:
    engine = "onnx" if config.decoding.engine == "auto" else config.decoding.engine
    if engine == "coreml":
        from streamd.cli.packages import report
    else:
        from streamd.cli.model_check import report

    (name,) = operands
    decoding = replace(config.decoding, model=name, engine=engine, compute="auto")
    _print(report(replace(config, decoding=decoding)))


def _bench(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.bench import bench_step, step_json, step_table

    result = bench_step(_with_model(config))
    _print([step_table(result) if sys.stdout.isatty() else step_json(result)])


def _options(*names: str, without: Collection[str] = ()) -> tuple[Field, ...]:
    """Return the options of these sections and of these names."""
    every = OPTIONS.values()
    return tuple(o for o in every if {o.opt.group, o.name} & {*names} and o.name not in without)


_LOG = ("quiet", "verbose", "log-format")
_LIVE = ("streaming", "vad", "decoding")

MODELS = (
    Command(
        "models list",
        "list the models here, and others that can be had by name",
        _late("streamd.cli.models:table"),
        options=_options("language", "task", *_LOG),
    ),
    Command(
        "models get",
        "download a model that the list shows, or OWNER/NAME from the hub",
        _late("streamd.cli.models:get"),
        "NAME",
        options=_options(*_LOG),
    ),
    Command(
        "models import",
        "copy a model's file or folder into the store, under its own or another name",
        _late("streamd.cli.models:add"),
        "PATH [NAME]",
        options=_options(*_LOG),
    ),
    Command(
        "models check",
        "check what a model computes on this machine, and how fast",
        _models_check,
        "NAME",
        options=_options("language", "threads", "precision", "engine", *_LOG),
    ),
    Command(
        "models build",
        "make a model's packages for the Neural Engine and GPU of a Mac",
        _late("streamd.cli.packages:build"),
        "NAME",
        options=_options("building", "engine", *_LOG),
    ),
    Command(
        "models remove",
        "delete a downloaded or imported model",
        _late("streamd.cli.models:remove"),
        "NAME",
        options=_options(*_LOG),
    ),
)

COMMANDS = (
    Command(
        "",
        "live captions of the microphone, or of FILEs and addresses (- is stdin)",
        _late("streamd.daemon:run", needs_model=True, listens=True),
        "[FILE...]",
        options=tuple(o for o in OPTIONS.values() if o.opt.group not in ("longform", "building")),
    ),
    Command(
        "serve",
        "caption only what clients send over the network",
        _late("streamd.daemon:run", needs_model=True),
        options=_options(*_LIVE, *_LOG, "server", "journal", without=("server",)),
        preset={"source": "false"},
    ),
    Command(
        "transcribe",
        "transcribe files, fast, as openai-whisper does",
        _late("streamd.daemon.offline:transcribe", needs_model=True),
        "FILE...",
        options=_options(
            *("input", "vad", "decoding", "longform", "output"),
            without=("source", "device", "realtime"),
        ),
        preset={"realtime": "false"},
    ),
    Command(
        "watch",
        "show the captions of another streamd",
        _late("streamd.cli.viewing:show"),
        "URL",
        options=_options("output", "token-file"),
    ),
    Command(
        "export",
        "write a session of the journal, or list all",
        _late("streamd.cli.viewing:export"),
        "[SESSION]",
        options=_options("output", "journal"),
    ),
    Command("devices", "list the microphones", _devices),
    Command(
        "bench",
        "measure how fast a model is on this machine",
        _bench,
        options=_options("decoding", *_LOG),
    ),
    Command(
        "doctor",
        "check this machine, and say how to fix problems",
        _late("streamd.cli.doctor:report"),
        options=_options(
            *("source", "model", "threads", "precision", "engine", "compute", "host", "port"), *_LOG
        ),
    ),
    Command(
        "models",
        "list, download, check and remove models",
        _models,
        f"{'|'.join(command.name.split()[1] for command in MODELS)} ...",
    ),
    *MODELS,
)
"""The first one runs if none is named."""

READER_LEFT = 141
"""The exit code that a shell reports for a program that SIGPIPE ended."""


def run(argv: Sequence[str] | None) -> int:
    """Run the program; see `streamd.cli.main`."""
    stdio.open_missing()
    try:
        return _run(parse(sys.argv[1:] if argv is None else argv, COMMANDS))
    except StreamdError as error:
        with suppress(OSError):  # stderr may be on the full disk that this is about
            sys.stderr.write(f"streamd: {' '.join(str(error).splitlines())}\n")
        return error.exit_code
    except BrokenPipeError:
        return READER_LEFT
    finally:
        stdio.settle()


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
