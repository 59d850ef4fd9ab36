"""The commands of the program.

Each imports what it runs when it runs: ``streamd --help`` and a mistyped option are to be answered
at once, not after numpy and the inference runtime have been loaded.
"""

import sys
from collections.abc import Collection
from dataclasses import replace

from streamd import stdio
from streamd.cli.command import Command
from streamd.config import OPTIONS, Config, Option, suggestion
from streamd.errors import ConfigError


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


def _watch(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio

    from streamd.cli.watching import show

    asyncio.run(show(config, *operands))
    return 0


def _export(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.exporting import export

    export(config, *operands or ("",))
    return 0


def _devices(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.devices import table
    from streamd.sources.microphone import list_devices

    stdio.put(sys.stdout, table(list_devices()))
    return 0


def _models(config: Config, operands: tuple[str, ...]) -> int:
    """Reached only when no command of the group was named."""
    (word,) = operands
    hint = suggestion(word, [command.name.split()[1] for command in MODELS])
    raise ConfigError(f"models {word}: no such command{hint}")


def _models_list(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli import models

    stdio.put(sys.stdout, models.table(config))
    return 0


def _models_get(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli import models

    models.get(config, *operands)
    return 0


def _models_import(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli import models

    models.add(*operands)
    return 0


def _models_remove(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli import models

    models.remove(*operands)
    return 0


def _models_build(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.packages import build

    build(config, *operands)
    return 0


def _models_check(config: Config, operands: tuple[str, ...]) -> int:
    engine = "onnx" if config.decoding.engine == "auto" else config.decoding.engine
    if engine == "coreml":
        from streamd.cli.packages import report
    else:
        from streamd.cli.check import report

    (name,) = operands
    decoding = replace(config.decoding, model=name, engine=engine, compute="auto")
    for line in report(replace(config, decoding=decoding)):
        stdio.put(sys.stdout, f"{line}\n")
    return 0


def _bench(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.bench.step import bench_step, step_json, step_table
    from streamd.cli.choosing import with_model

    result = bench_step(with_model(config))
    text = step_table(result) if sys.stdout.isatty() else step_json(result)
    stdio.put(sys.stdout, f"{text}\n")
    return 0


def _calibrate(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.calibrate import report
    from streamd.cli.choosing import with_model

    for line in report(with_model(config), *operands):
        stdio.put(sys.stdout, f"{line}\n")
    return 0


def _doctor(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.doctor import examine

    n_wrong = 0
    for finding in examine(config):
        stdio.put(sys.stdout, f"{finding}\n")
        n_wrong += finding.state == "!!"
    return int(n_wrong > 0)


def _options(*names: str, without: Collection[str] = ()) -> tuple[Option, ...]:
    """The options of these groups and of these names."""
    every = OPTIONS.values()
    return tuple(o for o in every if {o.group, o.name} & {*names} and o.name not in without)


_LOG = ("quiet", "verbose", "log-format")
"""Options for the messages on standard error."""
_ONLY_LIVE = ("source", "device", "realtime")
"""Options that mean nothing where files are transcribed."""
_OF_OTHERS = ("longform", "building")
"""Groups of options that live captions lack."""

MODELS = (
    Command(
        name="models list",
        summary="what is on this machine, and what else has a short name",
        run=_models_list,
        options=_options("language", "task", *_LOG),
    ),
    Command(
        name="models get",
        summary="download a model that the list shows, or OWNER/NAME from the hub",
        run=_models_get,
        operand="NAME",
        options=_options(*_LOG),
    ),
    Command(
        name="models import",
        summary="copy a model's file or folder into the store, under its own or another name",
        run=_models_import,
        operand="PATH [NAME]",
        options=_options(*_LOG),
    ),
    Command(
        name="models check",
        summary="whether a model computes what it should on this machine, and how fast",
        run=_models_check,
        operand="NAME",
        options=_options("language", "threads", "precision", "engine", *_LOG),
    ),
    Command(
        name="models build",
        summary="make a model's packages for the Neural Engine and GPU of a Mac",
        run=_models_build,
        operand="NAME",
        options=_options("building", "engine", *_LOG),
    ),
    Command(
        name="models remove",
        summary="delete a downloaded or imported model",
        run=_models_remove,
        operand="NAME",
        options=_options(*_LOG),
    ),
)

COMMANDS = (
    Command(
        name="",
        summary="live captions of the microphone, or of FILEs and addresses (- is stdin)",
        run=_live,
        operand="[FILE...]",
        options=tuple(o for o in OPTIONS.values() if o.group not in _OF_OTHERS),
    ),
    Command(
        name="serve",
        summary="caption only what clients send over the network",
        run=_live,
        options=_options(
            *("streaming", "vad", "decoding", *_LOG, "server", "journal"),
            without=("server",),
        ),
        preset={"source": "false"},
    ),
    Command(
        name="transcribe",
        summary="write files down, fast, as openai-whisper does",
        run=_transcribe,
        operand="FILE...",
        options=_options(*("input", "vad", "decoding", "longform", "output"), without=_ONLY_LIVE),
        preset={"realtime": "false"},
    ),
    Command(
        name="watch",
        summary="show the captions of a streamd that runs elsewhere",
        run=_watch,
        operand="URL",
        options=_options("output", "token-file"),
    ),
    Command(
        name="export",
        summary="write a session of the journal down, or list them",
        run=_export,
        operand="[SESSION]",
        options=_options("output", "journal"),
    ),
    Command(name="devices", summary="list the microphones", run=_devices),
    Command(
        name="bench",
        summary="measure how fast a model is on this machine",
        run=_bench,
        options=_options("decoding", *_LOG),
    ),
    Command(
        name="calibrate",
        summary="find the shortest safe encoder context for a voice",
        run=_calibrate,
        operand="FILE...",
        options=_options("streaming", "vad", "decoding", *_LOG),
        writes_config=True,
    ),
    Command(
        name="doctor",
        summary="what streamd lacks on this machine, and the cure",
        run=_doctor,
        options=_options(
            *("source", "model", "threads", "precision", "engine", "compute", "host", "port"),
            *_LOG,
        ),
    ),
    Command(
        name="models",
        summary="the models on this machine, and where to get more",
        run=_models,
        operand="|".join(command.name.split()[1] for command in MODELS),
    ),
    *MODELS,
)
"""The first one is meant where none is named."""
