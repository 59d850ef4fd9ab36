"""What a journal keeps of a session, and its JSON form, which is the same in files and in NATS."""

import hashlib
import hmac
from datetime import datetime
from typing import NamedTuple, get_args

import msgspec

from streamd.events import Eos, Final, Gap, Note, SpeakerTurns
from streamd.options import Choices, EndpointOptions, ModelOptions
from streamd.speakers import VOICEPRINT_BYTES
from streamd.types import ResumeState, frames_from_ms


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


LoggedEvent = Head | Fed | Final | Gap | Note | SpeakerTurns | Eos


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, and until which time of the session all audio is silence or in finals.

    With a final, and in silence, it has the `resume_state` with which another session can go on;
    without one, that of the line before holds. Stored lines have older names of these fields.
    """

    finalised_ms: int = msgspec.field(default=0, name="settled_ms")
    resume_state: ResumeState | None = msgspec.field(default=None, name="past")
    event: LoggedEvent | None = None


class _Kind(msgspec.Struct):
    type: str


class _NewerLine(msgspec.Struct):
    event: _Kind
    finalised_ms: int = msgspec.field(default=0, name="settled_ms")
    resume_state: ResumeState | None = msgspec.field(default=None, name="past")


_KINDS = {kind.__struct_config__.tag for kind in get_args(LoggedEvent)}
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

    streamd never writes such values. A forged one would end the daemon later, so it is refused.
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


class Claimant(NamedTuple):
    """What a client that wants to feed a session presents: the run that it fed, and its secret."""

    epoch: str = ""
    secret: str = ""

    def resumes(self, epoch: str, fed: Fed) -> bool:
        """Whether it is the client that fed this run."""
        is_same = hmac.compare_digest(fed.proof, proof_of(self.secret))
        return self.epoch == epoch and is_same and bool(fed.proof)
