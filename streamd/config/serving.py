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
        str,
        Opt("file with the token that clients must show; or: STREAMD_TOKEN", metavar="FILE"),
    ] = ""
    tls_cert: Annotated[
        str, Opt("PEM file with the certificate: wss and https only", metavar="FILE", rare=True)
    ] = ""
    tls_key: Annotated[
        str, Opt("PEM file with its key, if that is elsewhere", metavar="FILE", rare=True)
    ] = ""
    allow_host: Annotated[
        tuple[str, ...],
        Opt("another name of this machine; may be repeated", metavar="NAME", rare=True),
    ] = ()
    allow_origin: Annotated[
        tuple[str, ...],
        Opt("site whose pages may connect; may be repeated", metavar="https://HOST", rare=True),
    ] = ()
    max_streams: Annotated[
        int, Meta(ge=0, le=1_000), Opt("audio streams from clients at a time", rare=True)
    ] = 8
    max_subscribers: Annotated[
        int, Meta(ge=1, le=10_000), Opt("listening clients at a time", rare=True)
    ] = 100
    max_per_address: Annotated[
        int,
        Meta(ge=0, le=10_000),
        Opt("clients from one other machine at a time; 0: any number", rare=True),
    ] = 32
    max_message_bytes: Annotated[
        int,
        Meta(ge=1_024, le=1 << 30),
        Opt("size of a message from a client", unit="bytes", rare=True),
    ] = 1 << 20
    max_session_ms: Annotated[
        int,
        Meta(ge=0),
        Opt("audio after which a client's session ends; 0: never", unit="ms", rare=True),
    ] = 0
    max_lag_ms: Annotated[
        int,
        Meta(ge=0),
        Opt("lag beyond which /readyz sends clients away", unit="ms", rare=True),
    ] = 5_000
    resume_ms: Annotated[
        int,
        Meta(ge=0),
        Opt("time that a session waits for a lost client", unit="ms", rare=True),
    ] = 30_000
    shutdown_ms: Annotated[
        int,
        Meta(ge=0),
        Opt("time for the last sentences when the server ends", unit="ms", rare=True),
    ] = 10_000


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
