"""The options about the network, and about what is kept on disk; see `schema`."""

from typing import Annotated, Literal

from msgspec import Meta

from streamd.config.group import Group
from streamd.config.option import Opt


class Server(Group, frozen=True, kw_only=True):
    """Who may listen and send over the network."""

    server: Annotated[bool, Opt("open no websocket")] = True
    host: Annotated[str, Meta(min_length=1), Opt("address to listen on", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65_535), Opt("port to listen on; 0: any free one")] = 8765
    token_file: Annotated[
        str, Opt("file with the token that clients must show", metavar="FILE")
    ] = ""
    max_streams: Annotated[
        int, Meta(ge=0, le=1_000), Opt("audio streams from clients at a time", rare=True)
    ] = 8
    max_subscribers: Annotated[
        int, Meta(ge=1, le=10_000), Opt("listening clients at a time", rare=True)
    ] = 100


class Journal(Group, frozen=True, kw_only=True):
    """What is kept on disk of what was said."""

    journal: Annotated[
        str,
        Opt(
            "keep what was final in this folder, against crashes; auto: the user's own; "
            "none: keep nothing",
            metavar="DIR",
        ),
    ] = ""
    journal_fsync: Annotated[
        Literal["always", "interval", "never"],
        Opt("against power failures: force each line to disk, or once a second", rare=True),
    ] = "interval"
    journal_days: Annotated[
        int,
        Meta(ge=0, le=36_500),
        Opt("days for which the journal is kept; 0: for ever", rare=True),
    ] = 30
    record: Annotated[
        str, Opt("keep the audio too, as WAV files in this folder", metavar="DIR")
    ] = ""
