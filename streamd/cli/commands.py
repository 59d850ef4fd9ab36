"""The commands of the program, and how one is run.

Each command imports its modules when it runs, so that ``streamd --help`` and a mistyped option are
answered before numpy and the inference runtime are loaded.
"""

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamd import __version__, stdio
from streamd.cli.arguments import Command, Request, help_text, parse
from streamd.config import OPTIONS, Config, Option, as_toml, load, suggestion
from streamd.errors import ConfigError, SourceError, StreamdError
from streamd.stdio import log_to

if TYPE_CHECKING:
    from streamd.sources.microphone import Device


def _live(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio  # here for the reason above, like all imports in these functions

    from streamd import daemon
    from streamd.cli.choosing import with_model

    return asyncio.run(daemon.run(with_model(config)))


def _transcribe(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio

    from streamd import daemon
    from streamd.cli.choosing import with_model

    return asyncio.run(daemon.transcribe(with_model(config)))


def _watch(config: Config, operands: tuple[str, ...]) -> None:
    import asyncio

    from streamd.cli.viewing import show

    asyncio.run(show(config, *operands))


def _export(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.cli.viewing import export

    export(config, *operands)


def _devices(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.sources.microphone import list_devices

    stdio.put(sys.stdout, device_table(list_devices()))


def device_table(devices: "Sequence[Device]") -> str:
    """Return one line for each microphone; a star marks the default.

    Raises `SourceError` if there is none.
    """
    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    return "".join(
        f"{'*' if device.default else ' '} {device.index:>2}  {device.name}  "
        f"({device.host_api}, channels: {device.channels}, {device.rate_hz} Hz)\n"
        for device in devices
    )


def _models(config: Config, operands: tuple[str, ...]) -> None:
    """Refuse a word that names no command of the group."""
    (word,) = operands
    hint = suggestion(word, [command.name.split()[1] for command in MODELS])
    raise ConfigError(f"models {word}: no such command{hint}")


def _models_list(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.cli import models

    stdio.put(sys.stdout, models.table(config))


def _models_get(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.cli import models

    models.get(config, *operands)


def _models_import(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.cli import models

    models.add(*operands)


def _models_remove(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.cli import models

    models.remove(*operands)


def _models_build(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.cli.packages import build

    build(config, *operands)


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
    from streamd.bench.step import bench_step, step_json, step_table
    from streamd.cli.choosing import with_model

    result = bench_step(with_model(config))
    _print([step_table(result) if sys.stdout.isatty() else step_json(result)])


def _calibrate(config: Config, operands: tuple[str, ...]) -> None:
    from streamd.bench.calibrate import report
    from streamd.cli.choosing import with_model

    _print(report(with_model(config), *operands))


def _doctor(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.doctor import examine

    n_wrong = 0
    for finding in examine(config):
        _print([str(finding)])
        n_wrong += finding.state == "!!"
    return int(n_wrong > 0)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        stdio.put(sys.stdout, f"{line}\n")


def _options(*names: str, without: Collection[str] = ()) -> tuple[Option, ...]:
    """Return the options of these sections and of these names."""
    every = OPTIONS.values()
    return tuple(o for o in every if {o.group, o.name} & {*names} and o.name not in without)


_LOG = ("quiet", "verbose", "log-format")
_LIVE = ("streaming", "vad", "decoding")

MODELS = (
    Command(
        "models list",
        "list the models here, and others that can be had by name",
        _models_list,
        options=_options("language", "task", *_LOG),
    ),
    Command(
        "models get",
        "download a model that the list shows, or OWNER/NAME from the hub",
        _models_get,
        "NAME",
        options=_options(*_LOG),
    ),
    Command(
        "models import",
        "copy a model's file or folder into the store, under its own or another name",
        _models_import,
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
        _models_build,
        "NAME",
        options=_options("building", "engine", *_LOG),
    ),
    Command(
        "models remove",
        "delete a downloaded or imported model",
        _models_remove,
        "NAME",
        options=_options(*_LOG),
    ),
)

COMMANDS = (
    Command(
        "",
        "live captions of the microphone, or of FILEs and addresses (- is stdin)",
        _live,
        "[FILE...]",
        options=tuple(o for o in OPTIONS.values() if o.group not in ("longform", "building")),
    ),
    Command(
        "serve",
        "caption only what clients send over the network",
        _live,
        options=_options(*_LIVE, *_LOG, "server", "journal", without=("server",)),
        preset={"source": "false"},
    ),
    Command(
        "transcribe",
        "transcribe files, fast, as openai-whisper does",
        _transcribe,
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
        _watch,
        "URL",
        options=_options("output", "token-file"),
    ),
    Command(
        "export",
        "write a session of the journal, or list all",
        _export,
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
        "calibrate",
        "find the shortest safe encoder context for a voice",
        _calibrate,
        "FILE...",
        options=_options(*_LIVE, *_LOG),
        writes_config=True,
    ),
    Command(
        "doctor",
        "check this machine, and say how to fix problems",
        _doctor,
        options=_options(
            *("source", "model", "threads", "precision", "engine", "compute", "host", "port"), *_LOG
        ),
    ),
    Command(
        "models",
        "list, download, check and remove models",
        _models,
        "|".join(command.name.split()[1] for command in MODELS),
    ),
    *MODELS,
)
"""The first one runs if none is named."""

READER_LEFT = 141
"""The exit code that a shell reports for a program that SIGPIPE ended."""


def run(argv: Sequence[str] | None, commands: Sequence[Command] | None) -> int:
    """Run the program; see `streamd.cli.main`."""
    commands = commands or COMMANDS
    stdio.open_missing()
    try:
        return _run(parse(sys.argv[1:] if argv is None else argv, commands), commands)
    except StreamdError as error:
        with suppress(OSError):  # stderr may be on the full disk that this is about
            sys.stderr.write(f"streamd: {' '.join(str(error).splitlines())}\n")
        return error.exit_code
    except BrokenPipeError:
        return READER_LEFT
    finally:
        stdio.settle()


def _run(request: Request, commands: Sequence[Command]) -> int:
    if request.action in ("help", "help-all"):
        full = request.action == "help-all"
        stdio.put(sys.stdout, help_text(request.command, commands, full=full))
        return 0
    if request.action == "version":
        stdio.put(sys.stdout, f"streamd {__version__}\n")
        return 0
    config_file, operands = request.config_file, request.operands
    if request.command.writes_config:
        operands = (config_file,)
        config_file = config_file if Path(config_file).exists() else ""
    config = load(request.given, os.environ, config_file=config_file)
    if request.action == "print-config":
        stdio.put(sys.stdout, as_toml(config))
        return 0
    output = config.output
    log_to(sys.stderr, form=output.log_format, verbose=output.verbose, quiet=output.quiet)
    return request.command.run(config, operands) or 0
