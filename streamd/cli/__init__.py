"""The program ``streamd``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamd.cli.arguments import Command

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None, *, commands: "Sequence[Command] | None" = None) -> int:
    """Run the program and return its exit code (docs/options.md).

    `argv` are the words after the program's name; `commands` replace the usual ones. An error is
    reported on standard error, in one line.
    """
    try:
        # Imported here, so that Ctrl-C during the import ends the program like any other.
        from streamd.cli.commands import run

        return run(argv, commands)
    except KeyboardInterrupt:
        return INTERRUPTED
