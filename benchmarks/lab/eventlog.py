"""The record of one measured stream: what was said when, and what each window cost.

Times are milliseconds since the first sample was spoken, so that latencies count from the speaker's
mouth: a block of audio is heard when its last sample was spoken. As a file it is JSON lines, one
entry each, in the order of time. Knows nothing of references or scores.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from streamd.errors import ConfigError
from streamd.events import SessionEvent


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """The first entry: what is measured, on which clock ("real", "virtual" or "free")."""

    name: str
    model: str
    clock: str
    step_ms: int
    audio_ms: int


class Said(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """An event as a subscriber received it; `heard_ms` of audio had been fed by then."""

    t_ms: float
    heard_ms: int
    event: SessionEvent


class Decoded(msgspec.Struct, frozen=True, kw_only=True, tag="decoded"):
    """A window that was transcribed from `begun_ms` to `t_ms`.

    `start_ms`, `end_ms`: its audio; `last`: for a final; `cpu_ms`: of all threads, those that work
    on another window included.
    """

    t_ms: float
    begun_ms: float
    start_ms: int
    end_ms: int
    last: bool
    compute_ms: float
    cpu_ms: float
    encoded_frames: int
    drafted: int
    accepted: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The last entry: CPU time of the process between the first and this one, and its memory."""

    t_ms: float
    cpu_ms: float
    peak_rss_mb: float


Entry = Began | Said | Decoded | Ended
Log = list[Entry]

_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Entry)


def write_log(path: Path, log: Iterable[Entry]) -> None:
    """Write JSON lines."""
    path.write_bytes(b"".join(_encoder.encode(entry) + b"\n" for entry in log))


def read_log(path: Path) -> Log:
    """Read what `write_log` wrote.

    Raises
    ------
    ConfigError : the file cannot be read or is no event log
    """
    try:
        log = [_decoder.decode(line) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: no event log of streaming.py: {error}") from error
    if not log or not isinstance(log[0], Began):
        raise ConfigError(f"{path}: no event log of streaming.py: it does not say what began")
    return log
