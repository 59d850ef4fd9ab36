"""``streamd completion SHELL``: completion of commands and options, made from the options."""

from collections.abc import Iterator

from streamd.cli.arguments import ACTIONS, Command
from streamd.config import SET, Config
from streamd.config.table import Field
from streamd.errors import ConfigError


def script(config: Config, shell: str) -> Iterator[str]:
    """Yield a script that teaches a shell. Raises `ConfigError` for one that it does not know."""
    from streamd.cli.commands import COMMANDS  # it names this module

    if shell == "fish":
        return _fish(COMMANDS)
    if shell in ("bash", "zsh"):
        return _bash(COMMANDS, shell)
    raise ConfigError(f"completion {shell}: must be bash, zsh or fish")


def _flags(command: Command) -> list[str]:
    own = [flag for option in command.options for flag in option.shown_flags]
    values = [flag for option in command.options for flag in option.opt.values]
    return [*own, *values, "--config", f"--{SET}", *(f"--{name}" for name in ACTIONS)]


def _values(commands: tuple[Command, ...]) -> Iterator[tuple[str, Field]]:
    """Yield the flags whose values are known, once each."""
    options = {option.name: option for command in commands for option in command.options}
    for option in options.values():
        if option.choices and not option.is_switch:
            yield from ((flag, option) for flag in option.flags)


def _bash(commands: tuple[Command, ...], shell: str) -> Iterator[str]:
    if shell == "zsh":
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield "_streamd() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words'
    yield "  COMPREPLY=()"
    yield '  case "$before" in'
    for flag, option in _values(commands):
        yield f'    {flag}) words="{" ".join(option.choices)}" ;;'
    yield "  esac"
    yield '  if [ -z "$words" ]; then case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in'
    for command in sorted(commands[1:], key=lambda command: -len(command.name.split())):
        pattern = f'"{command.name}"' if " " in command.name else f'"{command.name} "*'
        parts = [c.name.split()[1] for c in commands if c.name.startswith(f"{command.name} ")]
        yield f'    {pattern}) words="{" ".join([*parts, *_flags(command)])}" ;;'
    names = dict.fromkeys(command.name.split()[0] for command in commands[1:])
    yield f'    *) words="{" ".join([*names, *_flags(commands[0])])}" ;;'
    yield "  esac; fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _streamd streamd"


def _fish(commands: tuple[Command, ...]) -> Iterator[str]:
    for command in commands:
        group, _, part = command.name.rpartition(" ")
        within = f"__fish_seen_subcommand_from {group}" if group else "__fish_use_subcommand"
        here = within if not part else f"__fish_seen_subcommand_from {part}"
        if group:
            here = f"{within}; and {here}"
        if part:
            line = f"complete -c streamd -n {_quoted(within)} -a {part}"
            yield f"{line} -d {_quoted(command.summary)}"
        for option in command.options:
            yield from (f"complete -c streamd -n {_quoted(here)} {o}" for o in _options(option))


def _options(option: Field) -> Iterator[str]:
    for flag in (*option.shown_flags, *option.opt.values):
        name = f"-l {flag[2:]}" if flag.startswith("--") else f"-o {flag[1:]}"
        takes = "" if option.is_switch or flag in option.opt.values else " -r"
        values = f" -a {_quoted(' '.join(option.choices))}" if takes and option.choices else ""
        yield f"{name}{takes}{values} -d {_quoted(option.opt.help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
