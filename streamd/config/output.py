"""The options about where the text goes; see `schema`."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from streamd.config.group import Group, Share
from streamd.config.option import Opt

Transcript = Annotated[str, Meta(pattern=r"\.(txt|srt|vtt|lrc|csv|tsv|json|jsonl|html|mp4)\Z")]

_Name = Literal[
    "txt", "srt", "vtt", "lrc", "csv", "tsv", "json", "json-full", "jsonl", "html", "mp4"
]


class Output(Group, frozen=True, kw_only=True):
    """Where the text goes."""

    output: Annotated[
        tuple[Transcript, ...],
        Opt(
            "also write a file; may be repeated",
            metavar="FILE",
            flags=("-o",),
            allowed="FILE.txt, .srt, .vtt, .lrc, "
            ".csv, .tsv, .json, .full.json, .jsonl, .html or .mp4",
        ),
    ] = ()
    output_dir: Annotated[
        str,
        Opt("also write files here, named like the sound", metavar="DIR"),
    ] = ""
    output_format: Annotated[
        tuple[Literal["all", _Name], ...],
        Opt(
            "their formats; none: all that are text",
            metavar="LIST",
            flags=("-f",),
            allowed=f"all or some of {', '.join(get_args(_Name))}, separated by commas",
        ),
    ] = ()
    format: Annotated[
        Literal["text", "srt", "vtt", "lrc", "csv", "tsv", "json", "json-full", "jsonl", "html"],
        Opt("what is written to stdout", short_for=(("--jsonl", "jsonl"),)),
    ] = "text"
    max_line_length: Annotated[
        int,
        Meta(ge=8, le=1_000),
        Opt(
            "cells in a line of subtitles, at most",
            flags=("-ml", "--max-len", "--max-line-width"),
            rare=True,
        ),
    ] = 42
    max_lines: Annotated[
        int,
        Meta(ge=1, le=10),
        Opt("lines in a subtitle, at most", flags=("--max-line-count",), rare=True),
    ] = 2
    max_words_per_cue: Annotated[
        int,
        Meta(ge=0, le=1_000),
        Opt(
            "words in a subtitle, at most; 0: any number",
            flags=("--max-words-per-line",),
            rare=True,
        ),
    ] = 0
    highlight_words: Annotated[
        bool, Opt("underline each word as it is spoken, in srt and vtt", rare=True)
    ] = False
    colors: Annotated[Literal["auto", "always", "never"], Opt("colours on the terminal")] = "auto"
    confidence: Annotated[bool, Opt("colour words by probability; also in vtt")] = False
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
