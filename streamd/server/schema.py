"""The messages of streamd.v1 as a JSON schema: ``python -m streamd.server.schema``."""

import sys
from typing import Any, get_args

import msgspec

from streamd.events import PROTOCOL, SessionEvent
from streamd.server.wire import Command, Hello


def schema() -> dict[str, Any]:
    """JSON schema (2020-12) of each text message, by who says it."""
    says = {"server": Hello | SessionEvent, "client": Command}
    references, definitions = msgspec.json.schema_components(
        [message for messages in says.values() for message in get_args(messages)],
        ref_template="#/$defs/{name}",
    )
    by_speaker = iter(references)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{PROTOCOL}: text messages on the websocket",
        "anyOf": [{"$ref": f"#/$defs/{speaker}"} for speaker in says],
        "$defs": {
            **{
                speaker: {"anyOf": [next(by_speaker) for _ in get_args(messages)]}
                for speaker, messages in says.items()
            },
            **definitions,
        },
    }


if __name__ == "__main__":
    text = msgspec.json.format(msgspec.json.encode(schema()), indent=2)
    sys.stdout.write(text.decode() + "\n")
