"""The options of ``models build``; see `schema`."""

from typing import Annotated, Literal

from msgspec import Meta

from streamd.config.group import Group
from streamd.config.option import Opt


class Building(Group, frozen=True, kw_only=True):
    """How a model is built for Core ML."""

    weight_bits: Annotated[
        Literal["16", "8", "6", "4"],
        Opt("size of a weight; 16 is float16, others are palettes"),
    ] = "16"
    audio_contexts: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1_500)], ...],
        Opt("encoder positions to build for, and all; none: what suits the model"),
    ] = ()
    for_macos: Annotated[
        Literal["15", "13"], Opt("oldest version that it is to run on; for 13 it is larger")
    ] = "15"
    build_to: Annotated[
        str, Opt("a new folder for what is built; without, the cache", metavar="FOLDER")
    ] = ""
