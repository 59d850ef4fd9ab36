"""From the words of the command line to a `Request`; argparse does the reading.

The parser is made from the option table. It keeps values as text: checking them is the
configuration's business, so that a slip is reported alike wherever it was made.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from streamd.cli.command import Command
from streamd.cli.elsewhere import refuse_foreign
from streamd.config import OPTIONS, SET, Option, successor, suggestion
from streamd.errors import ConfigError

ACTIONS = {
    "help": "show the common options",
    "help-all": "show all options",
    "version": "show the version",
    "print-config": "print the effective configuration as TOML",
}
"""Flags that every command has. They are done instead of it; of several, the first one here."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for.

    `given`: option names and their unchecked text, a list where an option may repeat; `operands`:
    the words that are no options; `action`: one of `ACTIONS`, or empty to run the command.
    """

    command: Command
    given: Mapping[str, str | list[str]]
    operands: tuple[str, ...]
    config_file: str
    action: str


def parse(argv: Sequence[str], commands: Sequence[Command]) -> Request:
    """Read a command line; the command, if one is named, is its first word or its first two.

    Parameters
    ----------
    argv : without the program's name
    commands : the first one is meant where none is named

    Raises
    ------
    ConfigError
        an unknown command or option, a flag without its value, too few or too many operands
    """
    named = {command.name: command for command in commands[1:]}
    command, words = _command(argv, commands[0], named)
    # What stands behind -- is cut off here: Python's versions differ in how argparse treats it.
    split = words.index("--") if "--" in words else len(words)
    refuse_foreign(words[:split])
    namespace, rest = _parser(command).parse_known_args(_with_lists(words[:split]))
    _refuse_unknown(rest, command)
    values = vars(namespace)
    asked_for = {name: values.pop(name) for name in ACTIONS}
    action = next((name for name in ACTIONS if asked_for[name]), "")
    config_file = values.pop("config") or ""
    operands = (*rest, *words[split + 1 :])
    if not action:
        _check_count(command, operands)
        if command is commands[0]:
            _refuse_misplaced(rest, list(named))
    given = {**command.preset, **{name: raw for name, raw in values.items() if raw is not None}}
    if operands and "FILE" in command.operand:
        given["files"] = list(operands)
    return Request(command, given, operands, config_file, action)


def _command(
    argv: Sequence[str], default: Command, named: Mapping[str, Command]
) -> tuple[Command, list[str]]:
    """The command, and the words behind its name."""
    for n_words in (2, 1):
        if command := named.get(" ".join(argv[:n_words])):
            return command, list(argv[n_words:])
    return default, list(argv)


def _with_lists(words: Sequence[str]) -> list[str]:
    """Hang lists such as -1,50257 on the flag before them; argparse knows only single numbers."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and re.fullmatch(r"-\d+(,-?\d+)+", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _parser(command: Command) -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for option in command.options:
        _add(parser, option)
    parser.add_argument("--config")
    parser.add_argument(f"--{SET}", action="append")
    for name in ACTIONS:
        parser.add_argument(*_action_flags(name), dest=name, action="store_true")
    return parser


def _add(parser: _Parser, option: Option) -> None:
    constants = [(flag, value) for value, flags in option.short_for.items() for flag in flags]
    if option.is_switch:
        constants += [(flag, "true") for flag in option.flags]
        constants += [(flag, "false") for flag in option.off_flags]
    elif option.flags:
        action = "append" if option.repeats else "store"
        parser.add_argument(*option.flags, dest=option.name, action=action)
    for flag, value in constants:
        parser.add_argument(flag, dest=option.name, action="store_const", const=value)


def _action_flags(name: str) -> tuple[str, ...]:
    return ("-h", "--help") if name == "help" else (f"--{name}",)


def _refuse_unknown(rest: Sequence[str], command: Command) -> None:
    for word in rest:
        if not word.startswith("-") or word == "-":
            continue
        flag, *_ = word.split("=")
        if any(flag in option.every_flag for option in OPTIONS.values()):
            here = command.name or "streamd without a command"
            raise ConfigError(f"{here} has no option {flag}")
        name = flag.removeprefix("--").removeprefix("no-").replace("_", "-")
        if setting := successor(name):
            raise ConfigError(f"{flag} is now --{SET} {setting}=...")
        known = [known for option in command.options for known in option.every_flag]
        known += ["--config", f"--{SET}"]
        known += [known for name in ACTIONS for known in _action_flags(name)]
        raise ConfigError(f"unknown option {flag}{suggestion(flag, known)}")


def _check_count(command: Command, operands: Sequence[str]) -> None:
    if len(operands) < command.least_operands:
        raise ConfigError(f"{command.name} needs {command.operand}")
    if len(operands) > command.most_operands:
        raise ConfigError(f"{command.name} cannot use {operands[command.most_operands]}")


def _refuse_misplaced(words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse what was meant as a command but would be taken for a file."""
    for word in words:
        if word != "-" and not Path(word).suffix and "/" not in word and not Path(word).exists():
            if word in names:
                raise ConfigError(f"command {word} must be the first word")
            raise ConfigError(f"{word}: no such command or file{suggestion(word, names)}")
