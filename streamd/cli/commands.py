"""The commands of the program.

Each imports what it runs when it runs: ``streamd --help`` and a mistyped option are to be answered
at once, not after numpy and the inference runtime have been loaded.
"""

import sys
from collections.abc import Collection

from streamd import stdio
from streamd.cli.command import Command
from streamd.config import OPTIONS, Config, Option


def _live(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio  # here for the reason above, like all imports in these functions

    from streamd import daemon

    return asyncio.run(daemon.run(config))


def _transcribe(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio

    from streamd import daemon

    return asyncio.run(daemon.transcribe(config))


def _watch(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio

    from streamd.cli.watching import show

    asyncio.run(show(config, *operands))
    return 0


def _devices(config: Config, operands: tuple[str, ...]) -> int:
    from streamd.cli.devices import table
    from streamd.sources.devices import list_devices

    stdio.put(sys.stdout, table(list_devices()))
    return 0


def _options(*names: str, without: Collection[str] = ()) -> tuple[Option, ...]:
    """The options of these groups and of these names."""
    every = OPTIONS.values()
    return tuple(o for o in every if {o.group, o.name} & {*names} and o.name not in without)


COMMANDS = (
    Command(
        name="",
        summary="live captions of what the microphone hears, or of FILEs (- is raw PCM on stdin)",
        run=_live,
        operand="[FILE...]",
        options=tuple(OPTIONS.values()),
    ),
    Command(
        name="serve",
        summary="caption only what clients send over the network",
        run=_live,
        options=_options(
            *("streaming", "vad", "decoding", "quiet", "verbose", "log-format", "server"),
            without=("server",),
        ),
        preset={"source": "false"},
    ),
    Command(
        name="transcribe",
        summary="write files down, as fast as possible, each utterance in one piece",
        run=_transcribe,
        operand="FILE...",
        options=_options(
            *("input", "context-tokens", "keep-context", "vad", "decoding", "output"),
            without=("source", "device", "realtime"),
        ),
        preset={"realtime": "false"},
    ),
    Command(
        name="watch",
        summary="show the captions of a streamd that runs elsewhere",
        run=_watch,
        operand="URL",
        options=_options("output", "token-file"),
    ),
    Command(name="devices", summary="list the microphones", run=_devices),
)
"""The first one is meant where none is named."""
