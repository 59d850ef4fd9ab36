"""Writes the generated files of this folder: ``python docs/make.py``."""

import json
from pathlib import Path
from typing import Any

from streamd.config.reference import reference
from streamd.server import wire
from streamd.sinks import documents

FOLDER = Path(__file__).parent


def generated() -> dict[str, str]:
    """Return the contents of the generated files, by name."""
    schemas: dict[str, Any] = {
        "protocol.schema.json": wire.schema(),
        "json.schema.json": documents.schema("json"),
        "json-full.schema.json": documents.schema("json-full"),
    }
    texts = {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}
    return {"options.md": reference(), **texts}


if __name__ == "__main__":
    for name, text in generated().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
