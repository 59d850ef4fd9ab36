"""Finals, and what is noted about them, as JSON to an address of the user's.

Requests are those of Standard Webhooks (www.standardwebhooks.com, specification 1.0): an id, which
stays the same when a request is sent again, the time, and a signature over both and the body, for
which receivers have libraries in many languages.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from streamd.destinations.delivery import Destination, Parcel
from streamd.destinations.posting import HttpClient, host_of
from streamd.errors import ConfigError
from streamd.events import Eos, Final, Gap, Note, Notice, SessionEvent, encode
from streamd.streams.hub import Hub

SECRET_VARIABLE = "STREAMD_WEBHOOK_SECRET"
_PREFIX = "whsec_"
_LEAST_SECRET = 16
"""Bytes, as for tokens."""


def key_of(secret: str) -> bytes:
    """Return the key that a secret stands for: base64 behind ``whsec_``, or the text itself.

    Raises `ConfigError` if it is too short.
    """
    try:
        coded = secret.removeprefix(_PREFIX)
        key = base64.b64decode(coded, validate=True) if coded != secret else secret.encode()
    except binascii.Error:
        raise ConfigError(f"{SECRET_VARIABLE}: what follows {_PREFIX} must be base64") from None
    if len(key) < _LEAST_SECRET:
        raise ConfigError(f"{SECRET_VARIABLE} is too short: it needs {_LEAST_SECRET} bytes")
    return key


def signature(key: bytes, *, message_id: str, sent_s: int, body: bytes) -> str:
    """Return the header ``webhook-signature`` of a message."""
    signed = f"{message_id}.{sent_s}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


class Webhook(Destination[tuple[str, bytes]]):
    """Sends each final, gap, note, notice and the end, one after the other, until each is taken.

    `key` signs them, if there is one. A message has an id that depends on nothing but the session
    and the event, so that a receiver can drop what it has had, also after a restart.
    """

    is_live = False
    tells_sessions_apart = True

    def __init__(
        self, url: str, key: bytes | None, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self.name = f"webhook ({host_of(url)})"
        self._url, self._key, self._now_s = url, key, now_s
        self._http = HttpClient()
        self._session = self._epoch = ""
        self._same: Counter[str] = Counter()  # notes by their content
        self._sent_notes: set[str] = set()

    def follow(self, hub: Hub) -> None:
        """Name the session in all messages; notes are replayed from the first one on."""
        self._session, self._epoch = hub.session, hub.epoch
        self._same.clear()

    def parts(self, event: SessionEvent) -> Sequence[Parcel[tuple[str, bytes]]]:
        match event:
            case Final():
                event, kind = replace(event, details=UNSET), f"final-{event.seq}"
            case Gap():
                kind = f"gap-{event.t_ms}"
            case Eos():
                kind = f"eos-{event.seq}"
            case _ if isinstance(event, Note | Notice):
                kind = self._of_note(encode(event))
            case _:
                return ()
        if not kind:
            return ()
        message_id = f"{self._session}-{self._epoch}-{kind}"
        head = encode({"id": message_id, "session": self._session, "epoch": self._epoch})
        body = f'{head[:-1]},"event":{encode(event)}}}'
        return [Parcel((message_id, body.encode()))]

    def _of_note(self, content: str) -> str:
        """Return what tells a note from others, or nothing if it was sent before.

        Notes have no numbers, and all are replayed where this process was too slow; the same may be
        said twice, so that its id counts, too.
        """
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        self._same[digest] += 1
        name = f"note-{digest}-{self._same[digest]}"
        is_known = name in self._sent_notes
        self._sent_notes.add(name)
        return "" if is_known else name

    async def send(self, content: tuple[str, bytes]) -> None:
        message_id, body = content
        sent_s = int(self._now_s())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(sent_s),
        }
        if self._key is not None:
            headers["webhook-signature"] = signature(
                self._key, message_id=message_id, sent_s=sent_s, body=body
            )
        await self._http.request("POST", self._url, body=body, headers=headers)

    async def close(self) -> None:
        await self._http.close()
