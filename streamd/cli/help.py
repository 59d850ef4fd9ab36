"""The text of ``--help``, made from the option table."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import fill

from msgspec import inspect

from streamd.cli.arguments import ACTIONS, Command
from streamd.config import COMMON, SECTIONS, SET, Option

WIDTH = 80
_INDENT = 30


def help_text(command: Command, commands: Sequence[Command], *, full: bool = False) -> str:
    """Return what ``streamd COMMAND --help`` shows, or with `full` ``--help-all``."""
    lines = [*_usage(command, commands), *_options(command, full=full), "General:"]
    written = ", and write what was found to it" if command.writes_config else ""
    lines.append(_row("--config FILE", f"read options from a TOML file{written}"))
    if full:
        lines.append(_row(f"--{SET} NAME=VALUE", "set what has no option (docs/options.md)"))
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
        yield f"Commands (more: {group} COMMAND --help):"
        for part in parts:
            operand = "COMMAND" if "|" in part.operand else part.operand
            yield _row(f"{part.name} {operand}", part.summary)
        yield ""


def _options(command: Command, *, full: bool) -> Iterator[str]:
    shown = [
        option for option in command.options if option.flags and (full or option.name in COMMON)
    ]
    if not full and shown:
        yield "Common options:"
        yield from map(_common_option, shown)
        yield ""
        return
    for group, options in groupby(shown, lambda option: option.group):
        yield f"{SECTIONS[group]}:"
        for option in options:
            yield from _option(option)
        yield ""


def _common_option(option: Option) -> str:
    """One line if possible: an option that has flags for its values is shown by these."""
    if option.value_flags:
        return _row(", ".join(option.value_flags), option.opt.help)
    return _long_row(option)


def _option(option: Option) -> Iterator[str]:
    yield _long_row(option)
    for value, flags in option.opt.short_for.items():
        yield _row(", ".join(flags.split()), f"the same as --{option.name} {value}")


def _long_row(option: Option) -> str:
    # The short name and the long one: other aliases are in docs/options.md.
    short = [flag for flag in option.shown_flags[:1] if not flag.startswith("--")]
    flags = dict.fromkeys((*short, option.shown_flags[-1]))
    default = "" if option.is_switch or option.default in ("", ()) else f" [{_shown(option)}]"
    return _row(f"{', '.join(flags)} {_metavar(option)}".rstrip(), option.opt.help + default)


def _shown(option: Option) -> str:
    value = option.default
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _metavar(option: Option) -> str:
    if option.field.choices:
        return "|".join(option.field.choices)
    match option.field.type:
        case inspect.BoolType():
            return ""
        case inspect.IntType() | inspect.FloatType():
            return option.field.unit.upper() or "N"
        case inspect.VarTupleType(item_type=inspect.IntType()):
            return "N,N"
        case _:
            return option.opt.metavar


def _row(left: str, right: str) -> str:
    head = f"  {left}"
    gap = "\n" if len(head) > _INDENT - 2 else ""
    body = fill(right, WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT)
    return f"{head}{gap}{body}" if gap else head + body[len(head) :]
