"""docs/protocol.md says what the code does."""

import re
from pathlib import Path
from typing import get_args

import jsonschema
import msgspec
import pytest

from docs.make import protocol_schema as schema
from streamd.events import SessionEvent, TimedWord
from streamd.server.wire import CLOSE_CODES, Command, Encoding, Hello, Limits, Query, Role

DOC = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text()
OF_CLIENTS = DOC.index("## Client messages")
"""`name` is a message of both sides."""
EXAMPLES = [
    (found.start() > OF_CLIENTS, found[1], found[2])
    for found in re.finditer(r"^### (\w+)\n```json\n(.*)\n```$", DOC, re.M)
]
MESSAGES = (
    *((False, kind) for kind in (Hello, *get_args(SessionEvent))),
    *((True, kind) for kind in get_args(Command)),
)


@pytest.mark.parametrize(("is_clients", "kind"), MESSAGES)
def test_every_message_has_an_example_with_all_its_fields(is_clients, kind):
    place = is_clients, kind.__struct_config__.tag
    (example,) = [text for *where, text in EXAMPLES if tuple(where) == place]
    assert isinstance(msgspec.json.decode(example, type=kind), kind)
    on_the_wire = {f.name for f in msgspec.structs.fields(kind) if f.default is not msgspec.UNSET}
    assert set(msgspec.json.decode(example)) == {"type", *on_the_wire}


SCHEMA = Path(__file__).parents[1] / "docs" / "protocol.schema.json"


def test_the_schema_is_current():
    current = msgspec.json.decode(msgspec.json.encode(schema()))
    assert msgspec.json.decode(SCHEMA.read_text()) == current, "run: make docs"


@pytest.mark.parametrize(("is_clients", "name", "text"), EXAMPLES)
def test_every_example_is_valid_by_the_schema_and_damaged_ones_are_not(is_clients, name, text):
    example = msgspec.json.decode(text)
    assert jsonschema.Draft202012Validator(schema()).is_valid(example)
    sender = {"$ref": f"#/$defs/{'client' if is_clients else 'server'}"}
    validator = jsonschema.Draft202012Validator({**schema(), "anyOf": [sender]})
    validator.validate(example)
    assert not validator.is_valid({**example, "type": "unheard-of"})
    for field in example:
        if field != "type":
            assert not validator.is_valid({**example, field: {"no": "such value"}}), field


def test_there_is_no_example_of_anything_else():
    known = {(is_clients, kind.__struct_config__.tag) for is_clients, kind in MESSAGES}
    assert {tuple(where) for *where, _ in EXAMPLES} == known


@pytest.mark.parametrize("kind", [TimedWord, Limits, Query])
def test_every_other_field_is_named(kind):
    for field in kind.__struct_fields__:
        assert re.search(rf'[`"]{field}[`"]', DOC), field


def test_every_choice_is_named():
    for choice in (*Role, *Encoding):
        assert f"`{choice}`" in DOC


def test_every_error_has_its_close_code():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", DOC, re.M))
    assert {code: int(close) for code, close in rows.items()} == CLOSE_CODES


def test_every_error_that_the_code_can_raise_is_named():
    root = Path(__file__).parents[1] / "streamd"
    sources = "".join(path.read_text() for path in root.rglob("*.py"))
    codes = set(re.findall(r'(?:WireError\(|\bcode=)\s*"(\w+)"', sources))
    assert {"no_such_session", "source"} <= codes
    assert [code for code in codes if f"`{code}`" not in DOC] == []
