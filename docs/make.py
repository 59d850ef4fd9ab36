"""Writes the pages and schemas that are made from the code: ``python docs/make.py``."""

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from streamd.config.load import CONFIG_VARIABLE, OPTIONS
from streamd.config.option import Option
from streamd.config.schema import Config
from streamd.errors import StreamdError
from streamd.events import PROTOCOL, SessionEvent
from streamd.server.wire import Command, Hello
from streamd.sinks.documents import FullResult, Result

_DOCS = Path(__file__).parent

_HEAD = f"""\
# Options

<!-- Made by `make docs` from streamd/config/schema.py. -->

An option has one name everywhere. `--hold-ms 300` on the command line, the variable
`STREAMD_HOLD_MS=300` and the key `hold-ms = 300` in section `[streaming]` of a TOML file say the
same thing. The command line beats the variables, they beat the file, the file beats the defaults.

- `--config FILE` (or the variable `{CONFIG_VARIABLE}`) names the TOML file; without,
  none is read.
- `--print-config` prints the effective configuration as a TOML file and exits.
- `-h`, `--help` lists the common options, `--help-all` all of them, `--version` the version.
- A switch has a flag for on, `--NAME`, and one for off, `--no-NAME` where no other is listed. Its
  key takes `true` or `false`. The meaning listed is that of the flag which changes the default.
- In a variable, the parts of a list are separated by commas. An empty variable counts as not set.
- Times are milliseconds; inside, they are whole frames of 20 ms, and fractions of one are dropped.
"""


_TABLE = "| option | key and default | allowed | meaning |\n|---|---|---|---|\n"


def options_page() -> str:
    """The text of options.md."""
    structs = get_type_hints(Config)
    sections = (
        _section(group, structs[group], list(options))
        for group, options in groupby(OPTIONS.values(), lambda option: option.group)
    )
    return "\n".join((_HEAD, *sections, _exit_codes()))


def _section(group: str, struct: type[msgspec.Struct], options: list[Option]) -> str:
    rows = "".join(map(_row, options))
    return f"## [{group}]\n\n{struct.__doc__}\n\n{_TABLE}{rows}"


def _row(option: Option) -> str:
    default = msgspec.json.encode(option.default).decode()  # of these types, also TOML's form
    short_for = "".join(f"; {_code(flags)}: {value}" for value, flags in option.short_for.items())
    cells = (
        _code(option.shown_flags) or "FILE...",
        f"`{option.name} = {default}`",
        option.allowed,
        option.opt.help + short_for,
    )
    return f"| {' | '.join(cells)} |\n"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _exit_codes() -> str:
    kinds = [kind for kind in StreamdError.__subclasses__() if kind.exit_code != 1]
    rows = [
        (0, "All went well."),
        (1, "The engine failed, the output cannot be written, or nobody answers `watch`."),
    ]
    rows += [(kind.exit_code, (kind.__doc__ or "").splitlines()[0]) for kind in kinds]
    rows += [
        (130, "Interrupted twice, or before anything ran."),
        (141, "Whoever read the output left."),
    ]
    table = "".join(f"| {code} | {meaning} |\n" for code, meaning in rows)
    return f"## Exit codes\n\n| code | meaning |\n|---|---|\n{table}"


def document_schema(name: str) -> dict[str, Any]:
    """The JSON schema of the output format ``json`` or ``json-full``."""
    return msgspec.json.schema({"json": Result, "json-full": FullResult}[name])


def protocol_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of the text messages on the websocket, by who sends them."""
    sent = {"server": Hello | SessionEvent, "client": Command}
    references, definitions = msgspec.json.schema_components(
        [message for messages in sent.values() for message in get_args(messages)],
        ref_template="#/$defs/{name}",
    )
    of_each = iter(references)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{PROTOCOL}: text messages on the websocket",
        "anyOf": [{"$ref": f"#/$defs/{sender}"} for sender in sent],
        "$defs": {
            **{
                sender: {"anyOf": [next(of_each) for _ in get_args(messages)]}
                for sender, messages in sent.items()
            },
            **definitions,
        },
    }


def main() -> None:
    """Write all of them beside this file."""
    (_DOCS / "options.md").write_text(options_page(), encoding="utf-8")
    for name, schema in (
        ("json", document_schema("json")),
        ("json-full", document_schema("json-full")),
        ("protocol", protocol_schema()),
    ):
        text = json.dumps(msgspec.to_builtins(schema), indent=2)
        (_DOCS / f"{name}.schema.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
