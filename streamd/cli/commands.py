"""The commands of the program.

Each imports what it runs when it runs: ``streamd --help`` and a mistyped option are to be answered
at once, not after numpy and the inference runtime have been loaded.
"""

from streamd.cli.command import Command
from streamd.config import Config


def _live(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio  # here for the reason above, like all imports in these functions

    from streamd import daemon

    return asyncio.run(daemon.run(config))


def _transcribe(config: Config, operands: tuple[str, ...]) -> int:
    import asyncio

    from streamd import daemon

    return asyncio.run(daemon.transcribe(config))


COMMANDS = (
    Command(
        name="",
        summary="Live captions of what the microphone hears, or of FILEs (- is raw PCM on stdin).",
        run=_live,
        operand="[FILE...]",
        groups=("input", "streaming", "vad", "decoding", "output", "server"),
    ),
    Command(
        name="serve",
        summary="caption only what clients send over the network",
        run=_live,
        groups=("streaming", "vad", "decoding", "output", "server"),
        without=("server",),
        preset={"source": "false"},
    ),
    Command(
        name="transcribe",
        summary="write files down, as fast as possible",
        run=_transcribe,
        operand="FILE...",
        groups=("input", "streaming", "vad", "decoding", "output"),
        without=("source", "device", "realtime"),
        preset={"realtime": "false"},
    ),
)
"""The first one is meant where none is named."""
