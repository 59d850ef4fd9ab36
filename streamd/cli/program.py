"""From the command line to an exit code."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamd import __version__, stdio
from streamd.cli.arguments import Request, parse
from streamd.cli.command import Command
from streamd.cli.commands import COMMANDS
from streamd.cli.help import help_text
from streamd.config import as_toml, load
from streamd.errors import StreamdError
from streamd.stdio import log_to

READER_LEFT = 141
"""What a shell reports of a program that SIGPIPE ended."""


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
    return request.command.run(config, operands)
