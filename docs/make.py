"""Writes the pages and schemas that are made from the code: ``python docs/make.py``."""

import ast
import inspect
import json
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TextIO, cast, get_args

import msgspec
import pyte
from msgspec import UNSET, Struct, UnsetType

import streamd.options
from streamd.cli.commands import COMMANDS
from streamd.config import OPTIONS, SECTIONS, SETTINGS, Config
from streamd.config.loading import CONFIG_VARIABLE, SET_VARIABLE
from streamd.config.table import Field
from streamd.events import PROTOCOL, SessionEvent
from streamd.server.wire import Command, Hello
from streamd.sinks.documents import JsonFullSegment, JsonGap, JsonSegment, JsonSound
from streamd.sinks.terminal import TerminalSink
from streamd.sinks.text import FAINT, SPEAKERS, Look

_DOCS = Path(__file__).parent

_HEAD = f"""\
# Options

<!-- Made by `make docs` from streamd/options.py. -->

An option has one name everywhere, in this order of precedence: `--endpoint-ms 700` on the command
line, the variable `STREAMD_ENDPOINT_MS=700`, `endpoint-ms = 700` in section `[vad]` of a TOML file.

- `--config FILE` (or `{CONFIG_VARIABLE}`) names the TOML file, `--print-config` prints it (with
  `***` in place of passwords in addresses).
- `-h`, `--help` list the common options, `--help-all` all, `--version` the version.
- A switch has the flags `--NAME` and `--no-NAME`, unless another is listed; its key takes `true` or
  `false`. The tables have the flag that changes the default.
- Lists are separated by commas in variables; in the file, a text stands for a list of one. An
  empty variable counts as not set.
- Times are rounded up to 20 ms where streamd counts frames.
"""
_SETTINGS = f"""\
## Fields without an option

`--set gate.open_share=0.4` may be repeated; `{SET_VARIABLE}` takes several, separated by
spaces, and the file has a section:

```toml
[set]
gate.open_share = 0.4
gate.floor_db = -50.0
```

"""


def options_page() -> str:
    """Return the text of options.md."""
    sections = (
        _section(name, [option for option in OPTIONS.values() if option.section == name])
        for name in SECTIONS
    )
    return "\n".join((_HEAD, *sections, _settings()))


def _section(name: str, options: list[Field]) -> str:
    rows = "".join(map(_row, options))
    return f"## [{name}]\n\n{_TABLE}{rows}"


_TABLE = "option and default|allowed|meaning\n---|---|---\n"


def _row(option: Field) -> str:
    flags = [*option.shown_flags, *option.opt.values]
    default = "" if option.is_switch else f" `{_shown(option)}`"
    name = ", ".join(f"`{flag}`" for flag in flags) or "FILE..."
    return f"{name}{default}|{_allowed(option)}|{option.opt.help}\n"


def _settings() -> str:
    """The fields that only ``--set`` reaches; their meaning stands below them in the source."""
    meanings = _meanings()
    rows = (
        f"`{field.setting}` `{_shown(field)}` {field.unit}".rstrip()
        + f"|{meanings[type(getattr(Config(), field.part)).__name__, field.attribute]}\n"
        for field in SETTINGS.values()
    )
    return f"{_SETTINGS}field and default|meaning\n---|---\n{''.join(rows)}"


def _meanings() -> dict[tuple[str, str], str]:
    """The string after each field of each class of streamd/options.py, in one line."""
    found = {}
    for node in ast.parse(inspect.getsource(streamd.options)).body:
        if isinstance(node, ast.ClassDef):
            for field, text in pairwise(node.body):
                match field, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(meaning))),
                    ):
                        found[node.name, name] = " ".join(meaning.split()).rstrip(".")
    return found


def _allowed(field: Field) -> str:
    """What values are allowed, in few words; nothing where any text is."""
    kind = field.type
    if field.choices:
        return ", ".join(field.choices)
    if isinstance(kind, msgspec.inspect.VarTupleType):
        kind = kind.item_type
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        limits = f"{kind.ge}…{kind.le}" if kind.le is not None else f"from {kind.ge}"
        return f"{limits} {field.unit}".strip()
    return field.opt.allowed


def _shown(field: Field) -> str:
    """The default, in TOML's form."""
    return msgspec.json.encode(field.written(field.default)).decode()


class Result(Struct, frozen=True, kw_only=True):
    """openai-whisper's result; `language` is the first segment's, or empty without segments.

    `speakers` has names by number, if any were given.
    """

    segments: tuple[JsonSegment, ...]
    sounds: tuple[JsonSound, ...] | msgspec.UnsetType = msgspec.UNSET
    text: str
    language: str
    speakers: dict[str, str] | UnsetType = UNSET


class ResultLanguage(Struct, frozen=True, kw_only=True):
    """The language of the whole: that of the first segment."""

    language: str


class FullResult(Struct, frozen=True, kw_only=True):
    """whisper.cpp's full result, without its facts about the program and the model."""

    transcription: tuple[JsonFullSegment, ...]
    gaps: tuple[JsonGap, ...]
    sounds: tuple[JsonSound, ...] | msgspec.UnsetType = msgspec.UNSET
    text: str
    result: ResultLanguage
    speakers: dict[str, str] | UnsetType = UNSET


RESULTS = {"json": Result, "json-full": FullResult}
"""The whole documents, which streamd writes segment by segment."""


def document_schema(name: str) -> dict[str, Any]:
    """The JSON schema of the output format ``json`` or ``json-full``."""
    return _described(msgspec.json.schema(RESULTS[name]))


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
            **_described(definitions),
        },
    }


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose descriptions are not indented, as msgspec writes them from 0.23 on."""

    def dedented(part: dict[str, Any]) -> dict[str, Any]:
        if isinstance(text := part.get("description"), str):
            part["description"] = inspect.cleandoc(text)
        return part

    made: dict[str, Any] = json.loads(msgspec.json.encode(schema), object_hook=dedented)
    return made


def man_page() -> str:
    """The manual page, in man(7)'s macros."""
    lines = [
        '.TH STREAMD 1 "" "streamd" "User Commands"',
        ".SH NAME\nstreamd \\- live captions from a Whisper model on your own machine",
        ".SH SYNOPSIS\n.B streamd\n[COMMAND] [OPTION...] [FILE...]\n.SH COMMANDS",
    ]
    for command in COMMANDS:
        name = f"streamd {command.name} {command.operand}".replace("  ", " ").strip()
        lines.append(f".TP\n.B {_roff(name)}\n{_roff(command.summary)}")
    for section, title in SECTIONS.items():
        lines.append(f".SH {title.upper()}")
        for option in OPTIONS.values():
            if option.section == section and option.flags:
                flags = ", ".join((*option.shown_flags, *option.opt.values))
                allowed = _allowed(option)
                lines.append(f".TP\n.B {_roff(flags)}\n{_roff(option.opt.help)}")
                lines += [f".br\n{_roff(allowed)}"] if allowed else []
    lines.append(".SH ENVIRONMENT\nEach option has a variable: STREAMD_ENDPOINT_MS for")
    lines.append(_roff("--endpoint-ms."))
    lines.append(".SH EXIT STATUS")
    for status, meaning in _exit_codes():
        lines.append(f".TP\n.B {status}\n{_roff(meaning)}")
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "").replace("…", " to ")


def _exit_codes() -> list[tuple[str, str]]:
    page = (_DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    section = page.partition("## Exit codes\n")[2].partition("\n\n")[0]
    rows = (line.removeprefix("- ").partition(": ") for line in section.splitlines())
    return [(status, meaning) for status, _, meaning in rows]


_COLUMNS, _ROWS = 76, 10
_EVENTS = _DOCS / "captions.jsonl"
"""What `streamd --speakers --jsonl tests/speech/demo.flac` wrote up to a word that is not certain
yet, without what the picture does not show: earlier partials, levels and probabilities."""
_CELL_W, _CELL_H = 9.6, 22


class _Terminal:
    """An emulator that draws faint text blue, since it knows no faint text."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(_COLUMNS, _ROWS)
        self._stream = pyte.Stream(self.screen)

    def write(self, text: str) -> None:
        self._stream.feed(text.replace(f"\x1b[{FAINT}m", "\x1b[34m"))

    def flush(self) -> None:
        pass


def terminal_picture() -> str:
    """The picture of the README: what `TerminalSink` draws of recorded events, as SVG."""
    terminal, look = _Terminal(), Look(speakers=SPEAKERS)
    terminal.write("$ make demo\r\n")
    sink = TerminalSink(cast(TextIO, terminal), look, size=lambda: (_COLUMNS, _ROWS))
    for line in _EVENTS.read_text(encoding="utf-8").splitlines():
        plain = {"rev": 0, "language": "en", **json.loads(line)}
        sink.write(msgspec.convert(plain, SessionEvent))
    width, height = _COLUMNS * _CELL_W + 40, _ROWS * _CELL_H + 30
    rows = "\n".join(_svg_row(terminal.screen, y) for y in range(_ROWS))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"
 aria-label="Captions in a terminal: white words are final, grey ones may still change">
<style>text {{ font: 16px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; fill: #eef1f3 }}
.tentative {{ fill: #7d8a93 }}</style>
<rect width="100%" height="100%" rx="8" fill="#0f1316"/>
{rows}
</svg>
"""


def _svg_row(screen: pyte.Screen, y: int) -> str:
    cells = [screen.buffer[y][x] for x in range(_COLUMNS)]
    spans, x = [], 0
    for color, run in groupby(cells, lambda cell: cell.fg):
        text = "".join(cell.data for cell in run)
        style = "" if color == "default" else f' style="fill: #{color}"'
        if color == "blue":
            style = ' class="tentative"'
        if text.strip():
            left, length = 20 + x * _CELL_W, len(text.rstrip()) * _CELL_W
            spans.append(
                f'<text x="{left:.1f}" y="{30 + y * _CELL_H}" xml:space="preserve" '
                f'textLength="{length:.1f}"{style}>{escape(text.rstrip())}</text>'
            )
        x += len(text)
    return "".join(spans)


def main() -> None:
    """Write all of them beside this file."""
    (_DOCS / "captions.svg").write_text(terminal_picture(), encoding="utf-8")
    (_DOCS / "streamd.1").write_text(man_page(), encoding="utf-8")
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
