"""The program ``streamd``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamd.cli.arguments import Command

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None, *, commands: "Sequence[Command] | None" = None) -> int:
    """Run the program.

    Parameters
    ----------
    argv : the words behind the program's name; by default those of the process
    commands : what it can do; the first one is meant where none is named

    Returns
    -------
    the exit code (docs/options.md); what went wrong stands on stderr, in one line
    """
    try:
        # Imported here, because a Ctrl-C during the import is to be answered like any other.
        from streamd.cli.commands import run

        return run(argv, commands)
    except KeyboardInterrupt:
        return INTERRUPTED
