"""NATS JetStream as streamd uses it: messages that are stored in order, and those that are not.

Every call that stores or reads waits until the bus has answered, however long it is away, unless it
refuses. Nothing here has a state at the server that a restart would lose: no consumers, only single
requests.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error, MaxPayloadError
from nats.js import JetStreamContext
from nats.js.api import Header, RawStreamMsg, StreamConfig
from nats.js.errors import APIError

from streamd.errors import ConfigError
from streamd.options import CREDENTIALS
from streamd.streams.journal.journals import JournalError

LOG, LEASES, NODES = "streamd_log", "streamd_leases", "streamd_nodes"
"""The stream of all lines, the key-value buckets of sessions and of nodes that are alive."""
BEAT_S, LEASE_S = 2.0, 8.0
"""How often a node says that it is alive, and for how long that holds."""
_ANSWER_S = 1.0
"""Time for an answer; what is not answered is asked again, and stored only once."""
_PAUSE_S = 0.1
_BATCH = 500
_END_OF_BATCH = "204", "404"
"""Status of what follows the last message, or comes in place of the first."""
_WRONG_LAST, _NO_MESSAGE, _OTHER_CONFIG = (10071, 10164), 10037, 10058
"""Error codes: another message came in between, nothing is there, it exists with other options."""
_TOO_LONG = 10054, 10097
"""The same for a message, or its headers, longer than the stream takes."""
_REFUSED = 10002, 10023, 10028, 10047, 10074, 10109
"""The same for what waiting does not cure: the account or the server has no room (the first four),
a single server cannot keep `replicas`, the stream is sealed."""
_FULL = 10077, "maximum "
"""Code and beginning of the text if the stream is full; other failures of its disk may pass."""
_FORBIDDEN = "permissions violation"

log = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT")


class OvertakenError(Exception):
    """Another writer was first; nothing was stored."""


class UnstorableError(JournalError):
    """A message that can never be stored, whatever becomes of others."""


class StoredMessage(NamedTuple):
    """A message of the bus: its place in the stream, its data and when it was stored."""

    at: int
    data: bytes
    time: datetime


class JetStream:
    """A connection that never gives up; `node` names it.

    `run` connects it. Messages are kept for `days` (0: forever) by `replicas` servers.
    """

    def __init__(self, url: str, *, days: int, replicas: int) -> None:
        self.node = secrets.token_hex(4)
        self._url, self._days, self._replicas = url, days, replicas
        # Clients get it without users and passwords.
        self._name = "the bus " + re.sub(CREDENTIALS, r"\1", url)
        self._nats = Client()
        self._js: JetStreamContext = self._nats.jetstream(timeout=_ANSWER_S)
        self._trouble = self._forbidden = ""
        self._is_over = False
        self._declared = asyncio.Event()
        self._n_stored = 0

    async def run(self, beat: Callable[[], Awaitable[None]]) -> None:
        """Stay connected until cancelled; call `beat` every `BEAT_S` seconds.

        Raises `ConfigError` if the address is none, `JournalError` if the bus refuses.
        """
        try:
            await self._connect()
            await self._insist(self._declare)
            self._declared.set()
            while True:
                await self._insist(self._beat)
                await beat()
                await asyncio.sleep(BEAT_S)
        finally:
            self._is_over = True
            if self._nats.options:
                await self._nats.close()

    async def _connect(self) -> None:
        async def failed(error: Exception) -> None:
            if _FORBIDDEN in str(error):
                self._forbidden = _text(error)
            self._worry(error)

        try:
            await self._nats.connect(
                self._url.split(","),
                name=f"streamd {self.node}",
                error_cb=failed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]  # it is only slept
                ping_interval=5,
                no_echo=True,
            )
        except (ValueError, Error):  # whose text may have a part of the password
            problem = "is no address such as nats://user:password@host:4222 (percent-encode these)"
            raise ConfigError(f"--bus: {self._name.removeprefix('the bus ')} {problem}") from None

    async def _beat(self) -> None:
        await self._js.publish(f"$KV.{NODES}.{self.node}", b"", _ANSWER_S)

    @property
    def trouble(self) -> str:
        """Why the bus does not answer; empty if it does."""
        away = "" if self._nats.is_connected else "it is not connected"
        trouble = self._trouble or away or ("" if self._declared.is_set() else "it is new")
        return trouble and f"{self._name} does not answer: {trouble}"

    async def put(self, subject: str, data: bytes, *, last: int) -> int:
        """Store a message of which the one at `last` (0: none) is the last of its subject before.

        Returns its place in the stream. Raises `OvertakenError` if another one has come in between,
        `UnstorableError` if it is too long, `JournalError` if nothing can be stored.
        """
        self._n_stored += 1
        name = f"{self.node}:{self._n_stored}"
        headers = {
            Header.MSG_ID.value: name,
            Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(last),
        }

        async def put() -> int:
            try:
                return (await self._js.publish(subject, data, _ANSWER_S, headers=headers)).seq
            except APIError as error:
                if error.err_code not in _WRONG_LAST:
                    raise
            # It may be our own: stored, but its answer was lost, too long ago to be recognised.
            newest = await self._get(subject)
            if newest and (newest.headers or {}).get(Header.MSG_ID.value) == name:
                return newest.seq or 0
            raise OvertakenError

        await self._declared.wait()
        return await self._insist(put)

    async def following(self, subject: str, after: int) -> list[StoredMessage]:
        """Return the first messages of a subject in the log behind place `after`, a batch of them.

        The newest may be missing for a moment if the bus has several servers.
        """
        await self._declared.wait()
        return await self._insist(lambda: self._batch(subject, after))

    async def newest(self, subject: str) -> StoredMessage | None:
        """Return the last message of a subject."""
        await self._declared.wait()
        return _stored(await self._insist(lambda: self._get(subject)))

    async def now(self) -> datetime:
        """Return the time by the clock of the bus, which all nodes share."""
        await self._declared.wait()
        stored = None
        while stored is None:  # in a moment it may have expired
            await self._insist(self._beat)
            stored = await self.newest(f"$KV.{NODES}.{self.node}")
        return stored.time

    async def publish(self, subject: str, data: bytes) -> None:
        """Send a message that is not stored to whoever listens now, unless it is too long."""
        if self._nats.is_connected:
            with suppress(Error):
                await self._nats.publish(subject, data)

    async def listen(self, subject: str, heard: Callable[[bytes], Awaitable[None]]) -> Subscription:
        """Call `heard` with each message published there; unsubscribe when done."""

        async def call(message: Msg) -> None:
            await heard(message.data)

        return await self._nats.subscribe(subject, cb=call)

    async def _batch(self, subject: str, after: int) -> list[StoredMessage]:
        wanted = {"seq": after + 1, "next_by_subj": subject, "batch": _BATCH}
        inbox = await self._nats.subscribe(self._nats.new_inbox())
        try:
            request = msgspec.json.encode(wanted)
            await self._nats.publish(f"$JS.API.DIRECT.GET.{LOG}", request, reply=inbox.subject)
            found: list[StoredMessage] = []
            while True:
                message = await inbox.next_msg(_ANSWER_S)
                headers = message.headers or {}
                if (status := headers.get(Header.STATUS.value)) in _END_OF_BATCH:
                    return found
                if status is not None:
                    raise Error(f"{status} {headers.get(Header.DESCRIPTION.value, '')}")
                time = datetime.fromisoformat(headers["Nats-Time-Stamp"])
                found.append(StoredMessage(int(headers["Nats-Sequence"]), message.data, time))
        finally:
            await inbox.unsubscribe()

    async def _get(self, subject: str) -> RawStreamMsg | None:
        stream = LOG if subject.startswith(LOG) else f"KV_{subject.split('.')[1]}"
        try:
            return await self._js.get_msg(stream, subject=subject)
        except APIError as error:
            if error.err_code == _NO_MESSAGE:
                return None
            raise

    async def _insist(self, call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        while True:
            try:
                answer = await call()
            except Error as error:
                self._check(error)
                self._worry(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                self._worry(None)
                return answer

    def _check(self, error: Error) -> None:
        """Raise `JournalError` if the same call will fail again, however long one waits."""
        code = error.err_code if isinstance(error, APIError) else None
        if isinstance(error, MaxPayloadError) or code in _TOO_LONG:
            raise UnstorableError(f"{self._name} refuses what is to be stored: {_text(error)}")
        is_full = code == _FULL[0] and _text(error).startswith(_FULL[1])
        if is_full or code in _REFUSED:
            raise JournalError(f"{self._name} refuses to store anything: {_text(error)}")
        if self._forbidden:
            raise JournalError(f"{self._name} refuses: {self._forbidden}")
        if self._nats.is_closed and not self._is_over:  # the library has given up
            raise JournalError(f"{self._name} has closed the connection: {self._nats.last_error}")

    def _worry(self, error: Exception | None) -> None:
        trouble = "" if error is None else _text(error)
        if trouble and not self._trouble:
            log.warning("%s: %s; finals wait", self._name, trouble)
        elif self._trouble and not trouble:
            log.info("%s answers", self._name)
        self._trouble = trouble

    async def _declare(self) -> None:
        """Make the stream and the buckets unless they exist, perhaps with options of their own."""
        age_s = self._days * 86_400.0
        streams = [
            StreamConfig(name=LOG, subjects=[f"{LOG}.>"], max_age=age_s),
            StreamConfig(name=f"KV_{LEASES}", subjects=[f"$KV.{LEASES}.>"], max_age=age_s),
            StreamConfig(name=f"KV_{NODES}", subjects=[f"$KV.{NODES}.>"], max_age=LEASE_S),
        ]
        for stream in streams:
            stream.num_replicas = self._replicas
            stream.allow_direct = True
            if stream.name != LOG:
                stream.max_msgs_per_subject, stream.allow_rollup_hdrs = 1, True
            try:
                await self._js.add_stream(stream)
            except APIError as error:
                if error.err_code != _OTHER_CONFIG:
                    raise


def _text(error: Exception) -> str:
    if isinstance(error, APIError) and error.description:
        return error.description
    return str(error).removeprefix("nats: ") or repr(error)


def _stored(message: RawStreamMsg | None) -> StoredMessage | None:
    if message is None or message.seq is None:
        return None
    return StoredMessage(message.seq, message.data or b"", message.time or datetime.now(UTC))
