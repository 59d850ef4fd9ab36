"""From command line, environment and TOML file to one `Config`.

The command line beats the environment, the environment beats the file, the file beats the defaults.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import msgspec

from streamd.config.option import PREFIX, Option, options_of, suggestion
from streamd.config.schema import Config
from streamd.errors import ConfigError

OPTIONS: Mapping[str, Option] = {option.name: option for option in options_of(Config)}
"""Every option by its name."""
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
"""Names the TOML file when ``--config`` does not."""
TOKEN_VARIABLE = f"{PREFIX}TOKEN"
"""Holds the token that clients must show, when there is no ``--token-file``."""


class Setting(NamedTuple):
    """A value and the words that say where it was set."""

    value: object
    culprit: str


def load(
    given: Mapping[str, str | list[str]], environ: Mapping[str, str], *, config_file: str = ""
) -> Config:
    """The effective configuration.

    Parameters
    ----------
    given : option names and what the command line says about them, a list where it may repeat
    environ : the environment; an empty variable counts as not set
    config_file : path of a TOML file, or empty for the one that ``STREAMD_CONFIG`` names, if any

    Raises
    ------
    ConfigError
        one line about the first value that cannot be; nothing was changed
    """
    settings: dict[str, Setting] = {}
    if path := config_file or environ.get(CONFIG_VARIABLE, ""):
        settings.update(_from_file(path, "--config" if config_file else CONFIG_VARIABLE))
    settings.update(_from_environment(environ))
    settings.update(_from_command_line(given))
    config = _build(settings)
    _check(config, settings)
    return config


def as_toml(config: Config) -> str:
    """The whole configuration as a TOML file that `load` reads back to an equal one.

    Raises
    ------
    ConfigError
        a file's name is no text, which the file system allows and TOML does not
    """
    try:
        return msgspec.toml.encode(config).decode()
    except UnicodeEncodeError as error:
        name = ascii(error.object[error.start : error.end])
        raise ConfigError(f"not UTF-8, so no TOML file can hold it: {name}") from None


def _from_file(path: str, culprit: str) -> Iterator[tuple[str, Setting]]:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{culprit}: cannot read {path}: {error.strerror}") from None
    try:
        sections = msgspec.toml.decode(content, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    groups = {option.group for option in OPTIONS.values()}
    for group, keys in sections.items():
        if not isinstance(keys, dict):
            raise ConfigError(f"{path}: key {group} stands outside any section{_home(group)}")
        if group not in groups:
            raise ConfigError(f"{path}: unknown section [{group}]{suggestion(group, groups)}")
        for name, value in keys.items():
            yield name, _from_key(path, group, name, value)


def _from_key(path: str, group: str, name: str, value: object) -> Setting:
    option = OPTIONS.get(name)
    if option is None or option.group != group:
        here = (other.name for other in OPTIONS.values() if other.group == group)
        hint = _home(name) or suggestion(name, here)
        raise ConfigError(f"{path}: unknown key {name} in [{group}]{hint}")
    culprit = f"{path}: {group}.{name}"
    return Setting(option.from_value(value, culprit), culprit)


def _home(name: str) -> str:
    option = OPTIONS.get(name)
    return f"; {name} belongs in [{option.group}]" if option else ""


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    known = {option.variable: option for option in OPTIONS.values()}
    ours = {name: text for name, text in environ.items() if text and name.startswith(PREFIX)}
    for other in (CONFIG_VARIABLE, TOKEN_VARIABLE):
        ours.pop(other, None)
    for variable, text in ours.items():
        if option := known.get(variable):
            yield option.name, Setting(option.from_text(text, variable), variable)
            continue
        # Only what looks like a slip is refused: others may use names with this prefix, as
        # Kubernetes does for a service called streamd.
        stems = [name.removeprefix(PREFIX) for name in known]
        for stem in get_close_matches(variable.removeprefix(PREFIX), stems, n=1, cutoff=0.75):
            raise ConfigError(f"unknown variable {variable}; did you mean {PREFIX}{stem}?")


def _from_command_line(given: Mapping[str, str | list[str]]) -> Iterator[tuple[str, Setting]]:
    for name, raw in given.items():
        option, culprit = OPTIONS[name], f"--{name}"
        if isinstance(raw, str):
            yield name, Setting(option.from_text(raw, culprit), culprit)
        else:
            yield name, Setting(option.from_value(raw, culprit), culprit)


def _build(settings: Mapping[str, Setting]) -> Config:
    groups: dict[str, dict[str, object]] = {}
    for name, setting in settings.items():
        groups.setdefault(OPTIONS[name].group, {})[name] = setting.value
    return msgspec.convert(groups, Config)


def _check(config: Config, settings: Mapping[str, Setting]) -> None:
    """Refuse what is wrong only in combination."""

    def culprit(name: str) -> str:
        return settings[name].culprit if name in settings else f"--{name}"

    streaming = config.streaming
    for name, ms in (("step", streaming.step_ms), ("keep", streaming.keep_ms)):
        if ms > streaming.length_ms:
            length = f"{culprit('length')} ({streaming.length_ms} ms)"
            raise ConfigError(f"{length} must be at least {culprit(name)} ({ms} ms)")
    if not (config.server.server or config.input.source):
        raise ConfigError(f"{culprit('server')}: without a server and a source there is no audio")


def read_token(path: str, environ: Mapping[str, str]) -> str | None:
    """The secret in the file that ``--token-file`` names, or in the environment, if any.

    Raises
    ------
    ConfigError
        the file cannot be read, or is empty
    """
    if not path:
        return environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--token-file: cannot read {path}: {reason}") from None
    if not token:
        raise ConfigError(f"--token-file: {path} is empty; put a long random word into it")
    return token
