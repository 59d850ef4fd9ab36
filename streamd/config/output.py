"""The options about where the text goes; see `schema`."""

from typing import Annotated, Literal

from msgspec import Meta

from streamd.config.group import Group, Share
from streamd.config.option import Opt

Transcript = Annotated[str, Meta(pattern=r"\.(txt|srt|vtt|jsonl)\Z")]


class Output(Group, frozen=True, kw_only=True):
    """Where the text goes."""

    output: Annotated[
        tuple[Transcript, ...],
        Opt(
            "also write a file; may be repeated",
            metavar="FILE",
            flags=("-o",),
            allowed="FILE.txt, .srt, .vtt or .jsonl",
        ),
    ] = ()
    output_dir: Annotated[
        str,
        Opt(
            "also write files here, named like the sound",
            metavar="DIR",
        ),
    ] = ""
    output_format: Annotated[
        tuple[Literal["all", "txt", "srt", "vtt", "jsonl"], ...],
        Opt(
            "formats of the files in --output-dir; none: all",
            metavar="FORMAT,FORMAT",
            flags=("-f",),
            allowed="all, or of txt, srt, vtt, jsonl some, separated by commas",
        ),
    ] = ()
    format: Annotated[
        Literal["text", "srt", "vtt", "jsonl"],
        Opt("what is written to stdout", short_for=(("--jsonl", "jsonl"),)),
    ] = "text"
    colors: Annotated[Literal["auto", "always", "never"], Opt("colours on the terminal")] = "auto"
    confidence: Annotated[bool, Opt("colour each word by its probability")] = False
    mark_low: Annotated[Share, Opt("put words below this probability in brackets", rare=True)] = 0.0
    timestamps: Annotated[Literal["off", "rel", "clock"], Opt("time in front of each line")] = "off"
    quiet: Annotated[bool, Opt("errors only", flags=("-q",))] = False
    verbose: Annotated[
        int,
        Meta(ge=0, le=2),
        Opt("detail of the messages on stderr", short_for=(("-v", "1"), ("-vv", "2"))),
    ] = 0
    log_format: Annotated[
        Literal["text", "json"], Opt("form of the messages on stderr", rare=True)
    ] = "text"
