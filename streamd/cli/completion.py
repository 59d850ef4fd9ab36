"""``streamd completion SHELL``: completion of commands, options, files and names of models."""

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import shtab

from streamd.cli.arguments import ACTIONS, Command
from streamd.config import SET, Config
from streamd.errors import ConfigError
from streamd.models.catalog import CATALOG

_MODELS = [each.name for each in CATALOG]
_SHELLS = {
    "bash": '_streamd_models() {{ compgen -W "{0}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_streamd_models() {{ _alternative 'n:name:({0})' 'f:file:_files'; }}",
    "fish": "function _streamd_models; string split ' ' '{0}'; end",
}
"""The function that completes the name or file of a model, by shell."""
_COMPLETES = {
    "FILE": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "NAME|PATH": dict.fromkeys(_SHELLS, "_streamd_models") | {"fish": "(_streamd_models)"},
}
"""What completes a value or an operand, by how the help writes it."""


def script(config: Config, shell: str) -> Iterator[str]:
    """Yield a script that teaches a shell. Raises `ConfigError` for one that it does not know."""
    from streamd.cli.commands import COMMANDS  # it names this module

    if shell not in _SHELLS:
        raise ConfigError(f"completion {shell}: must be bash, zsh or fish")
    function = _SHELLS[shell].format(" ".join(_MODELS))
    text = shtab.complete(_described(COMMANDS), shell, preamble=function)
    # A word that is no command may be a file.
    yield text.replace("complete -o bashdefault", "complete -o bashdefault -o default")


def _described(commands: tuple[Command, ...]) -> ArgumentParser:
    """Return a description of all commands; `arguments.parse` is what reads the words."""
    root = ArgumentParser("streamd", add_help=False)
    groups = {"": root.add_subparsers()}
    for command in sorted(commands[1:], key=lambda command: len(command.name.split())):
        group, _, word = command.name.rpartition(" ")
        parser = groups[group].add_parser(word, help=command.summary, add_help=False)
        if any(each.name.startswith(f"{command.name} ") for each in commands):
            groups[command.name] = parser.add_subparsers()
        _describe(parser, command)
    _describe(root, commands[0])
    return root


def _describe(parser: ArgumentParser, command: Command) -> None:
    def add(*names: str, about: str, unit: str = "", **more: Any) -> None:  # noqa: ANN401 - argparse's
        argument: Any = parser.add_argument(*names, help=about, **more)
        if unit in _COMPLETES:
            argument.complete = _COMPLETES[unit]  # shtab reads it

    for option in command.options:
        about, unit = option.opt.help, option.unit
        if option.is_switch:
            add(*option.shown_flags, about=about, action="store_true")
        elif option.flags:
            add(*option.flags, about=about, unit=unit, choices=option.choices or None)
        for flag in option.opt.values:
            add(flag, about=about, action="store_true")
    add("--config", about="read options from a TOML file", unit="FILE")
    add(f"--{SET}", about="set what has no option")
    for name, about in ACTIONS.items():
        add(f"--{name}", about=about, action="store_true")
    operand = command.operand.strip("[].")
    if operand.startswith(("FILE", "PATH")):
        add("operand", about=operand, unit="FILE", nargs="*")
    elif operand == "NAME":
        add("operand", about=operand, choices=_MODELS)
