"""The text of ``--help``, made from the option table."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import fill
from typing import get_type_hints

from msgspec import inspect

from streamd.cli.arguments import ACTIONS
from streamd.cli.command import Command
from streamd.config import Config, Option

WIDTH = 80
_INDENT = 29


def help_text(command: Command, commands: Sequence[Command], *, full: bool = False) -> str:
    """What ``streamd COMMAND --help`` shows, or with `full` ``--help-all``."""
    lines = [*_usage(command, commands), *_options(command, full=full), "General:"]
    written = ", and write what was found into it; without, it is only told"
    config = f"read options from a TOML file{written if command.writes_config else ''}"
    lines.append(_row("--config FILE", config))
    for name, meaning in ACTIONS.items():
        lines.append(_row("-h, --help" if name == "help" else f"--{name}", meaning))
    return "\n".join(lines) + "\n"


def _usage(command: Command, commands: Sequence[Command]) -> Iterator[str]:
    words = ("streamd", command.name, "[OPTION...]" if command.options else "", command.operand)
    yield f"Usage: {' '.join(filter(None, words))}"
    yield fill(f"{command.summary[0].upper()}{command.summary[1:]}.", WIDTH)
    yield ""
    if parts := [other for other in commands if other.is_part_of(command.name)]:
        group = f"streamd {command.name}".rstrip()
        yield f"Commands ({group} COMMAND --help tells more):"
        for part in parts:
            yield _row(f"{part.name} {part.operand}", part.summary)
        yield ""


def _options(command: Command, *, full: bool) -> Iterator[str]:
    shown = (option for option in command.options if option.flags and (full or not option.opt.rare))
    structs = get_type_hints(Config)
    for group, options in groupby(shown, lambda option: option.group):
        yield f"{structs[group].__doc__}".rstrip(".") + ":"
        for option in options:
            yield from _option(option)
        yield ""


def _option(option: Option) -> Iterator[str]:
    # The first name and the last, the long one: aliases between them are in docs/options.md.
    flags = dict.fromkeys((option.shown_flags[0], option.shown_flags[-1]))
    default = "" if option.is_switch or option.default in ("", ()) else f" [{_shown(option)}]"
    yield _row(f"{', '.join(flags)} {_metavar(option)}".rstrip(), option.opt.help + default)
    for value, shorts in option.short_for.items():
        yield _row(", ".join(shorts), f"the same as --{option.name} {value}")


def _shown(option: Option) -> str:
    value = option.default
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _metavar(option: Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    match option.type:
        case inspect.BoolType():
            return ""
        case inspect.IntType() | inspect.FloatType():
            return option.opt.unit.upper() or "N"
        case inspect.VarTupleType(item_type=inspect.IntType()):
            return "N,N"
        case _:
            return option.opt.metavar


def _row(left: str, right: str) -> str:
    head = f"  {left}"
    gap = "\n" if len(head) > _INDENT - 2 else ""
    body = fill(right, WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT)
    return f"{head}{gap}{body}" if gap else head + body[len(head) :]
