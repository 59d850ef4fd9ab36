"""The program ``streamd``."""

from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code (docs/troubleshooting.md).

    `argv` are the words after the program's name. An error is reported on standard error, in one
    line.
    """
    try:
        # Imported here, so that Ctrl-C during the import ends the program like any other.
        from streamd.cli.commands import run

        return run(argv)
    except (KeyboardInterrupt, ImportError) as error:
        # Of Ctrl-C during its import, a library in C may make an ImportError.
        if KeyboardInterrupt in (type(error), type(error.__cause__)):
            return INTERRUPTED
        raise
