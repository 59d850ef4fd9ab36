"""The record of one measured stream: what was said when, and what each window cost.

Times are milliseconds since the first sample was spoken, so that latencies count from the speaker's
mouth: a block of audio is heard when its last sample was spoken. Entries come in the order of time.
"""

import msgspec

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
