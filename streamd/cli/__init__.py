"""The program ``streamd``: from the command line to an exit code."""

import os
import sys
from collections.abc import Sequence

from streamd import __version__
from streamd.cli.arguments import Request, parse
from streamd.cli.command import Command
from streamd.cli.commands import COMMANDS
from streamd.cli.help import help_text
from streamd.config import as_toml, load
from streamd.errors import StreamdError
from streamd.logs import log_to

INTERRUPTED = 130
READER_LEFT = 141
"""What a shell reports of a program that SIGPIPE ended."""


def main(argv: Sequence[str] | None = None, *, commands: Sequence[Command] = COMMANDS) -> int:
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
        code = _run(parse(sys.argv[1:] if argv is None else argv, commands), commands)
        sys.stdout.flush()  # here, where a closed pipe can still be dealt with
    except StreamdError as error:
        sys.stderr.write(f"streamd: {' '.join(str(error).splitlines())}\n")
        return error.exit_code
    except BrokenPipeError:
        # Nobody reads stdout any more. Python would flush it once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run(request: Request, commands: Sequence[Command]) -> int:
    if request.action in ("help", "help-all"):
        full = request.action == "help-all"
        sys.stdout.write(help_text(request.command, commands, full=full))
        return 0
    if request.action == "version":
        sys.stdout.write(f"streamd {__version__}\n")
        return 0
    config = load(request.given, os.environ, config_file=request.config_file)
    if request.action == "print-config":
        sys.stdout.write(as_toml(config))
        return 0
    output = config.output
    log_to(sys.stderr, form=output.log_format, verbose=output.verbose, quiet=output.quiet)
    return request.command.run(config, request.operands)
