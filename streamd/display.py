"""From the options about output to what writes it, for all commands that show captions."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TextIO

from streamd.config import Output
from streamd.sinks import CaptionSink, Sink
from streamd.sinks.look import Look, confidence_ramp, stamper
from streamd.sinks.subtitles import FileSink
from streamd.sinks.terminal import is_terminal, open_captions


def open_display(
    output: Output, stream: TextIO, environ: Mapping[str, str], *, started: datetime
) -> CaptionSink:
    """The sink for standard output.

    Parameters
    ----------
    output : what the user wants
    stream : standard output
    environ : for ``TERM``, ``COLORTERM`` and ``NO_COLOR``
    started : when the stream began, for time stamps
    """
    ramp = confidence_ramp(output.colors, environ, is_terminal=is_terminal(stream, environ))
    look = Look(
        ramp=ramp if output.confidence else (),
        mark_low=output.mark_low,
        stamp=stamper(output.timestamps, started),
    )
    return open_captions(stream, look, form=output.format, environ=environ)


def open_files(output: Output) -> list[Sink]:
    """The transcript files that the user wants.

    Raises
    ------
    ConfigError
        one cannot be made
    """
    return [FileSink(Path(path)) for path in output.output]
