"""What is kept of sessions, so that they survive the process that serves them.

`Journals` has two adapters: `files.Folder` on this machine's disk, `bus.Bus` in NATS JetStream.
Both keep the same lines: of each run of a session first a `Head`, then what `JournalLine` holds.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from streamd.errors import StreamdError
from streamd.events import Choices, Eos, Final, Gap, SessionEvent
from streamd.options import EndpointOptions, ModelOptions
from streamd.speakers import VOICEPRINT_BYTES
from streamd.types import ResumeState, frames_from_ms


class JournalError(StreamdError):
    """The journal cannot be read or written; nothing may be published that is not in it."""


class Fed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="fed"):
    """The client that feeds a session: its choices, if it made any, and how it is recognised.

    `proof` is what `proof_of` returns for the secret with which the client can resume the session;
    empty if it cannot.
    """

    choices: Choices | None = None
    proof: str = ""


def proof_of(secret: str) -> str:
    """Return what can be kept of a secret: the secret does not follow from it."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="journal"):
    """A run of a session, and its last numbers, time and client before the lines that follow."""

    session: str
    epoch: str
    started: datetime
    seq: int = 0
    seg: int = 0
    end_ms: int = 0
    fed: Fed = Fed()


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, and until which time of the session all audio is silence or in finals.

    With a final, and in silence, it has the `resume_state` with which another session can go on;
    without one, that of the line before holds. Stored lines have older names of these fields.
    """

    finalised_ms: int = msgspec.field(default=0, name="settled_ms")
    resume_state: ResumeState | None = msgspec.field(default=None, name="past")
    event: Head | Fed | Final | Gap | Eos | None = None


class _Kind(msgspec.Struct):
    type: str


class _NewerLine(msgspec.Struct):
    event: _Kind
    finalised_ms: int = msgspec.field(default=0, name="settled_ms")
    resume_state: ResumeState | None = msgspec.field(default=None, name="past")


_KINDS = {kind.__struct_config__.tag for kind in (Head, Fed, Final, Gap, Eos)}
_line = msgspec.json.Decoder(JournalLine).decode
_newer_line = msgspec.json.Decoder(_NewerLine).decode


def read_line(data: bytes) -> JournalLine:
    """Decode a line; an event of a kind that only a newer streamd knows is left out.

    Raises `ValueError` if it is no line.
    """
    try:
        try:
            return _line(data)
        except msgspec.ValidationError:
            newer = _newer_line(data)
            if newer.event.type in _KINDS:
                raise
            return JournalLine(finalised_ms=newer.finalised_ms, resume_state=newer.resume_state)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def contradiction(fed: Fed, state: ResumeState | None, finalised_ms: int) -> str:
    """Say why no session can go on with these values; empty if one can.

    We never write such values; a forged one would crash the session later, so it is rejected here.
    """
    if state is not None:
        n_finalised = frames_from_ms(finalised_ms - state.start_ms)
        if state.start_ms < 0 or max(state.anchor, state.until) > n_finalised:
            return "its resume state is not of finalised audio"
        if any(len(voiceprint) != VOICEPRINT_BYTES for voiceprint in state.voiceprints or ()):
            return f"a voiceprint that is not of {VOICEPRINT_BYTES} bytes"
    choices = fed.choices or Choices()
    wanted = {"language": choices.language, "task": choices.task}
    hints = {"prompt": choices.prompt, "hotwords": choices.hotwords}
    try:
        msgspec.convert({**wanted, **hints}, ModelOptions)
        msgspec.convert({"plain": frames_from_ms(choices.endpoint_ms)}, EndpointOptions)
    except msgspec.ValidationError as error:
        return f"its client's choices: {error}"
    return ""


Release = Callable[[SessionEvent], None]


Lost = Callable[[JournalError | None], None]
"""Called when another node has taken the session, or with the reason why it cannot be stored."""


class Claimant(NamedTuple):
    """What a client that wants to feed a session presents: the run that it fed, and its secret."""

    epoch: str = ""
    secret: str = ""

    def resumes(self, epoch: str, fed: Fed) -> bool:
        """Whether it is the client that fed this run."""
        is_same = hmac.compare_digest(fed.proof, proof_of(self.secret))
        return self.epoch == epoch and is_same and bool(fed.proof)


class Journal(Protocol):
    """The journal of one run of a session. All calls come from one thread."""

    epoch: str
    started: datetime
    seq: int
    """Number of the last final that is stored; `seg` and `end_ms` are its segment and time."""
    seg: int
    end_ms: int
    fed: Fed
    ended: str
    """The reason why the run is over; empty while it is not."""
    is_shared: bool
    """Whether other nodes can go on with the run."""
    finalised_ms: int
    """Time of the session before which all audio is silence or in finals.

    Every line carries it. Set it before the final of the audio is stored: then the final
    and the time are stored at once, and a session that is resumed after a crash gets each word
    exactly once. `mark` stores it without an event.
    """
    resume_state: ResumeState | None
    """What another session needs to go on there; set it with `finalised_ms`."""

    @property
    def kept_ms(self) -> int:
        """Time before which no audio is needed, even after a crash: where the stored one begins."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more; finals can still be read."""

    @property
    def first(self) -> int:
        """Number of the oldest final that is kept."""

    @property
    def lag_ms(self) -> int:
        """How long the oldest of the events that are not stored yet has waited."""

    def joined(self, relay: Callable[[Fed | SessionEvent], None], lost: Lost) -> None:
        """Say where events of other nodes go, and what to call when the session is lost."""

    def store(self, event: SessionEvent, release: Release) -> None:
        """Store a final or a gap, then call `release` with the event; others are only released.

        Released is in the order of the calls, at once or when everything before is stored. Raises
        `JournalError` if it cannot be stored; then the journal holds nothing of it.
        """

    def feed(self, fed: Fed) -> None:
        """Store who feeds the session now, if that is new. Raises as `store` does."""

    def mark(self) -> None:
        """Store `finalised_ms` and `resume_state` if less audio is needed then.

        Raises as `store` does.
        """

    def end(self, reason: str) -> None:
        """Store that the run is over; the session's name begins another one next time."""

    def close(self) -> None:
        """Write no more; another process may resume the session. Raises as `store` does."""

    def read(self, after: int, upto: int) -> Iterator[Final]:
        """Give the finals with ``after < seq <= upto`` that are still kept."""


class Journals(Protocol):
    """The journals of all sessions."""

    async def run(self) -> None:
        """Do what storing takes besides, until cancelled. Raises `JournalError` if that fails."""

    async def written(self) -> None:
        """Return when all is stored that was to be."""

    async def prepare(self, session: str, claimant: Claimant | None, *, have: str) -> str | None:
        """Learn what other nodes have stored; await it before `recall` and `open`.

        `have` is the epoch that the caller knows. A `claimant` takes the session over if it may.
        Returns the epoch of the last run, None if there is none or no other node. Raises
        `JournalError` if nothing can be learnt now.
        """

    def open(self, session: str) -> Journal:
        """Return the journal of a session: resumed if its last run did not end, else a new one.

        Raises `JournalError` if it cannot be written.
        """

    def recall(self, session: str) -> Journal | None:
        """Return the journal of a session's last run, or None; of a run that ended it is closed.

        Raises `JournalError` if it cannot be written.
        """

    def audio_ms(self, session: str, epoch: str) -> int | None:
        """Return the length of a run that has ended; None if it has not, or is unknown."""

    def is_fed_elsewhere(self, session: str) -> bool:
        """Whether another node has the session, so that no client can feed it here."""

    @property
    def age_s(self) -> float:
        """For how long clients could have resumed the sessions of an earlier process."""

    def trouble(self) -> str:
        """Say why nothing is stored at the moment; empty if it is."""

    def is_nearly_full(self) -> bool:
        """Whether there is only room for the sessions that run."""
