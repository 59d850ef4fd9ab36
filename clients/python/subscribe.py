# /// script
# requires-python = ">=3.11"
# dependencies = ["websockets>=15"]
# ///
"""Print the captions of a running streamd: subscribe.py [ws://HOST:PORT [SESSION]].

Finals go to stdout, one per line; partials go to stderr if that is a terminal. After a lost
connection it reconnects, and no final is lost or repeated. The token comes from STREAMD_TOKEN.
docs/protocol.md describes all messages.
"""

import json
import os
import sys
import time
from urllib.parse import urlencode

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

LIVE_LINE = "\r\033[K" if sys.stderr.isatty() else ""


def follow(url: str, query: dict[str, str], headers: dict[str, str]) -> str | None:
    """Print until the connection ends and update `query` to resume; return why it ended."""
    address = f"{url}/v1/stream?{urlencode(query)}"
    with connect(address, additional_headers=headers, proxy=None) as connection:
        for text in connection:
            message = json.loads(text)
            kind = message["type"]  # ignore unknown types
            if kind == "hello":
                if query.get("epoch", message["epoch"]) != message["epoch"]:
                    query["after"] = "0"  # streamd was restarted and counts from 1 again
                query.setdefault("after", str(message["seq"]))
                query["epoch"] = message["epoch"]
            elif kind == "partial" and LIVE_LINE:
                print(LIVE_LINE + message["text"][-70:], end="", file=sys.stderr, flush=True)
            elif kind == "final":
                query["after"] = str(message["seq"])
                print(LIVE_LINE, end="", file=sys.stderr, flush=True)
                print(message["text"], flush=True)
            elif kind == "eos" or (kind == "error" and message["fatal"]):
                return None if message.get("code") == "slow" else message.get("message", "")
    return None


if __name__ == "__main__":
    url, session = [*sys.argv[1:], *("ws://127.0.0.1:8765", "live")[len(sys.argv) - 1 :]][:2]
    if not url.startswith(("ws://", "wss://")):
        sys.exit(__doc__)
    token, query, over = os.environ.get("STREAMD_TOKEN"), {"session": session}, None
    while over is None:
        try:
            over = follow(url, query, {"Authorization": f"Bearer {token}"} if token else {})
        except (OSError, WebSocketException) as error:
            answer = error.response if isinstance(error, InvalidStatus) else None
            why = answer.body.decode(errors="replace").strip() if answer else ""
            print(f"{url}: {why or error}", file=sys.stderr)
            if answer and answer.status_code < 500:
                sys.exit(1)
        if over is None:
            time.sleep(0.5)
    sys.exit(over or 0)
