"""Reads options: the command line takes precedence over the environment, and that over the file."""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from streamd.config.removed import refuse_old, successor
from streamd.config.table import OPTIONS, PREFIX, SECTIONS, SETTINGS, Config, Field, suggestion
from streamd.errors import ConfigError, os_error_as
from streamd.options import FRAME_MS, TokenOptions

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
"""Names the TOML file when ``--config`` does not."""
TOKEN_VARIABLE = f"{PREFIX}TOKEN"
"""Holds the token that clients must present, when there is no ``--token-file``."""
SET = "set"
"""Flag, variable and section for the fields without an option."""
SET_VARIABLE = f"{PREFIX}SET"

_SHORTEST_TOKEN = 16
"""Characters: nobody tries all tokens of 16 random letters and digits over a network."""

_Words = str | Sequence[str]


class _Value(NamedTuple):
    """A value that was set; `culprit` says in messages where. For `typed` see `Field.read`."""

    field: Field
    value: object
    culprit: str
    typed: bool = False


def load(
    given: Mapping[str, _Words], environ: Mapping[str, str], *, config_file: str = ""
) -> Config:
    """Return the effective configuration.

    `given` has the values on the command line by option, lists for those that repeat, and under
    "set" a list of NAME=VALUE. An empty variable of `environ` counts as not set. Without a
    `config_file`, ``STREAMD_CONFIG`` may name one. Raises `ConfigError` about the first value that
    is not allowed.
    """
    path = config_file or environ.get(CONFIG_VARIABLE, "")
    of_file = _from_file(path, "--config" if config_file else CONFIG_VARIABLE) if path else ()
    # Later ones take precedence.
    return _merged(chain(of_file, _from_environment(environ), _from_command_line(given)))


def of_options(options: Mapping[str, object]) -> Config:
    """Return the configuration of a program that uses streamd as a library.

    `options` has values by the long names of options or the names of settings, typed as in a TOML
    file. Raises `ConfigError` about the first name or value that is not allowed.
    """
    return _merged(_from_program(name, value) for name, value in options.items())


def _from_program(name: str, value: object) -> _Value:
    culprit = f"option {name}"
    if "." in name:
        return _set(name, value, culprit)
    key = name.replace("_", "-")
    option = OPTIONS.get(key)
    if option is None:
        refuse_old(key, culprit)
        raise ConfigError(f"unknown {culprit}{suggestion(name, OPTIONS)}")
    return _Value(option, value, culprit, typed=True)


def _merged(values: Iterable[_Value]) -> Config:
    config, culprits = Config(), {}
    for found in values:
        field, culprit = found.field, found.culprit
        value = field.read(found.value, culprit, typed=found.typed)
        part = replace(getattr(config, field.part), **{field.attribute: value})
        config = replace(config, **{field.part: part})
        culprits[field.setting] = culprit
    # Nobody counts or knows speakers who are not told apart.
    if config.longform.num_speakers or config.decoding.people:
        config = replace(config, decoding=replace(config.decoding, speakers=True))
    _check(config, culprits)
    return config


def without_source(config: Config) -> Config:
    """Return the configuration of a server that captions only what clients send.

    Raises `ConfigError` if there is no server.
    """
    if config.bind.port is None:
        raise ConfigError("port off: without a server there are no clients; drop it")
    return replace(config, input=replace(config.input, source=False))


def as_toml(config: Config) -> str:
    """Return a TOML file with all options and the other fields that differ from their defaults.

    `load` reads it back to an equal configuration, but for passwords, which are ``***``. Raises
    `ConfigError` if a file's name is not UTF-8, which the file system allows and TOML does not.
    """
    lines: list[str] = []
    for group in SECTIONS:
        lines += ["", f"[{group}]"]
        of_group = (option for option in OPTIONS.values() if option.section == group)
        lines += [_toml_line(config, option.name, option) for option in of_group]
    lines += ["", f"[{SET}]"]
    changed = (f for f in SETTINGS.values() if value_of(config, f) != f.default)
    lines += [_toml_line(config, field.setting, field) for field in changed]
    return "\n".join(lines[1:]) + "\n"


def _toml_line(config: Config, name: str, field: Field) -> str:
    try:
        text = msgspec.json.encode(field.shown(value_of(config, field))).decode()
    except UnicodeEncodeError as error:
        culprit = ascii(error.object[error.start : error.end])
        raise ConfigError(f"not UTF-8, so no TOML file can hold it: {culprit}") from None
    # JSON's values of these types are TOML's as well, but for one character in texts.
    return f"{name} = {text}".replace("\x7f", "\\u007f")


def value_of(config: Config, field: Field) -> object:
    """Return the value of a field as the program uses it."""
    return getattr(getattr(config, field.part), field.attribute)


def _from_file(path: str, culprit: str) -> Sequence[_Value]:
    with os_error_as(ConfigError, f"{culprit}: cannot read {path}"):
        content = Path(path).read_bytes()
    try:
        sections = msgspec.toml.decode(content, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}{_quotes(content, error)}") from None
    values: list[_Value] = []
    problems: list[str] = []
    for group, name, value in _keys(path, sections):
        try:
            if group == SET:
                values.append(_set(name, value, f"{path}: {SET}.{name}"))
            else:
                values.append(_from_key(path, group, name, value))
        except ConfigError as error:  # all of them are reported: the file is of an earlier version
            problems.append(str(error).removeprefix(f"{path}: "))
    if problems:
        raise ConfigError(f"{path}: {'. '.join(problems)}")
    return values


def _keys(path: str, sections: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield the section, name and value of each key."""
    for group, keys in sections.items():
        if not isinstance(keys, dict):
            near = get_close_matches(group, OPTIONS, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]}, in [{OPTIONS[near[0]].section}]?" if near else ""
            hint = _home(group) or hint
            raise ConfigError(f"{path}: key {group} stands outside any section{hint}")
        if group not in (SET, *SECTIONS) and not any(map(successor, keys)):
            hint = suggestion(group, [*SECTIONS, SET])
            raise ConfigError(f"{path}: unknown section [{group}]{hint}")
        pairs = _flat(keys) if group == SET else keys.items()
        yield from ((group, name, value) for name, value in pairs)


def _quotes(content: bytes, error: Exception) -> str:
    """Return a hint if the line that TOML's reader refuses has a text without quotes."""
    if found := re.search(r"line (\d+)", str(error)):
        line = content.decode(errors="replace").splitlines()[int(found[1]) - 1]
        if bare := re.fullmatch(r"\s*([\w.-]+)\s*=\s*([A-Za-z][^\"'#]*?)\s*(#.*)?", line):
            return f'; a text needs quotes: {bare[1]} = "{bare[2]}"'
    return ""


def _flat(keys: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield quoted and nested keys: ``"gate.floor_db" = 0`` and ``gate.floor_db = 0``."""
    for name, value in keys.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{attribute}", inner) for attribute, inner in value.items())
        else:
            yield name, value


def _from_key(path: str, group: str, name: str, value: object) -> _Value:
    culprit, option = f"{path}: {group}.{name}", OPTIONS.get(name)
    refuse_old(name.replace("_", "-"), f"{path}: {name} in [{group}]", f"{{}} in [{SET}]")
    if option is None or option.section != group:
        here = (other.name for other in OPTIONS.values() if other.section == group)
        hint = _home(name) or suggestion(name, here)
        raise ConfigError(f"{path}: unknown key {name} in [{group}]{hint}")
    return _Value(option, value, culprit, typed=True)


def _home(name: str) -> str:
    option = OPTIONS.get(name)
    return f"; {name} belongs in [{option.section}]" if option else ""


def _set(name: str, value: object, culprit: str) -> _Value:
    """Return a value for a field without an option."""
    if name in SETTINGS:
        return _Value(SETTINGS[name], value, culprit)
    for option in OPTIONS.values():
        if name == option.setting:
            raise ConfigError(f"{culprit}: has an option of its own, --{option.name}")
    refuse_old(name, culprit)
    refuse_old(name.partition(".")[2].replace("_", "-"), culprit)  # an option's setting
    hint = suggestion(name, SETTINGS) or "; streamd --set help lists them"
    raise ConfigError(f"{culprit}: no such setting{hint}")


def _from_pairs(pairs: Sequence[str], culprit: str) -> Iterator[_Value]:
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"{culprit} must be NAME=VALUE, got {pair}")
        yield _set(name, text, f"{culprit} {name}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Value]:
    known = {option.variable: option for option in OPTIONS.values()}
    ours = {name: text for name, text in environ.items() if text and name.startswith(PREFIX)}
    for other in (CONFIG_VARIABLE, TOKEN_VARIABLE):
        ours.pop(other, None)
    yield from _from_pairs(ours.pop(SET_VARIABLE, "").split(), SET_VARIABLE)
    for variable, text in ours.items():
        if option := known.get(variable):
            yield _Value(option, text, variable)
            continue
        stem = variable.removeprefix(PREFIX)
        name = stem.lower().replace("_", "-")
        refuse_old(name, variable, f"{SET_VARIABLE}={{}}={{}}")
        # Only what looks like a slip is refused: others may use names with this prefix, as
        # Kubernetes does for a service called streamd.
        stems = [name.removeprefix(PREFIX) for name in (*known, SET_VARIABLE)]
        for close in get_close_matches(stem, stems, n=1, cutoff=0.75):
            raise ConfigError(f"unknown variable {variable}; did you mean {PREFIX}{close}?")


def _from_command_line(given: Mapping[str, _Words]) -> Iterator[_Value]:
    for name, raw in given.items():
        if name == SET:
            yield from _from_pairs([raw] if isinstance(raw, str) else raw, f"--{SET}")
        else:
            yield _Value(OPTIONS[name], raw, f"--{name}")


def _check(config: Config, culprits: Mapping[str, str]) -> None:
    """Refuse values that are wrong only in combination."""

    def culprit(name: str) -> str:
        return culprits.get(OPTIONS[name].setting, f"--{name}")

    length = config.session.length
    if (step := config.session.step or 0) > length:
        named = f"{culprit('length')} ({length * FRAME_MS} ms)"
        raise ConfigError(f"{named} must be at least {culprit('step')} ({step * FRAME_MS} ms)")
    if config.bind.share != "off" and config.bind.port is None:
        raise ConfigError(f"{culprit('sharing')} needs the server; drop --port off")
    if config.input.device in ("cuda", "cpu", "mps"):  # openai-whisper's
        hint = "--compute says what runs the model"
        raise ConfigError(f"{culprit('device')} names a microphone: {hint}")
    if config.input.play and not config.input.realtime:
        raise ConfigError(f"{culprit('play')} needs real time; drop --fast")
    if config.input.channels == "split" and config.decoding.speakers:
        chosen = "num-speakers" if config.longform.num_speakers else "speakers"
        chosen = "people" if config.decoding.people else chosen
        split, speakers = culprit("channels"), culprit(chosen)
        raise ConfigError(f"{split}: each channel is a speaker; drop {speakers}")


def read_token(
    path: str, environ: Mapping[str, str], *, option: str = "--token-file"
) -> str | None:
    """Return the token in the file of the option, or in the environment, if any.

    Raises `ConfigError` if the file cannot be read or others can read it, or the token is too
    short.
    """
    culprit, remedy = f"{option}: {path}", "put a long random token into it"
    if has_several_tokens(path):  # which nobody else may learn
        raise ConfigError(f"{culprit} has several tokens: give a file with one of them")
    if path:
        token = _read_secret(path, option)
    elif not (token := environ.get(TOKEN_VARIABLE, "").strip()):
        return None
    else:
        culprit, remedy = TOKEN_VARIABLE, "choose a long random token"
    if not token:
        raise ConfigError(f"{culprit} is empty; {remedy}")
    if len(token) < _SHORTEST_TOKEN:
        least = f"a token needs at least {_SHORTEST_TOKEN} characters"
        raise ConfigError(f"{culprit} is too short: {least}; {remedy}")
    return token


def has_several_tokens(path: str) -> bool:
    """Whether a file is one for `read_tokens`."""
    return path.endswith(".toml")


def read_tokens(path: str) -> tuple[TokenOptions, ...]:
    """Return the tokens of a TOML file, one a table; raises `ConfigError`, as `read_token` does."""
    culprit = f"--token-file: {path}"
    try:
        tables = tomllib.loads(_read_secret(path, "--token-file"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{culprit}: {error}") from None
    found: list[TokenOptions] = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{culprit}: {name}: put it into a table, such as [alice]")
        try:
            fields = {"sessions": [f"{name}-*"], **table, "name": name}
            found.append(msgspec.convert(fields, TokenOptions))
        except msgspec.ValidationError as error:
            expected = (
                f"a token needs at least {_SHORTEST_TOKEN} characters without blanks; may is "
                "listen, speak or keep; sessions are names, the last character may be *; without "
                "them those that begin with the name of the table"
            )
            raise ConfigError(f"{culprit}: [{name}]: {error} ({expected})") from None
    if not found:
        raise ConfigError(f"{culprit} has no token: add a table, such as [alice]")
    names: dict[str, str] = {}
    for each in found:
        if (other := names.setdefault(each.token, each.name)) != each.name:
            raise ConfigError(f"{culprit}: [{other}] and [{each.name}] have the same token")
    return tuple(found)


def _read_secret(path: str, option: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{option}: cannot read {path}: {reason}") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        culprit = f"{option}: {path}"
        raise ConfigError(f"{culprit} is open to every user of this machine: chmod 600 {path}")
    return text
