"""What all groups of options share."""

from typing import Annotated

from msgspec import Meta, Struct

Ms = Annotated[int, Meta(ge=0, le=30_000)]
"""A time within Whisper's 30 s; what becomes frames is rounded down to 20 ms."""
FrameMs = Annotated[int, Meta(ge=0, le=30_000, multiple_of=20)]
"""A time that is a whole number of frames."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A section of the help and of the TOML file."""
