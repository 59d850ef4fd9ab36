"""``streamd export``: a session's transcript out of the journal, in any format."""

import os
import sys
from collections.abc import Iterable
from datetime import datetime

from streamd import stdio
from streamd.config import Config
from streamd.display import open_display, open_files
from streamd.journal import AUTO, Run, place, runs, transcript


def export(config: Config, session: str) -> None:
    """Write the last run of a session, or list what there is if no session is named.

    Raises
    ------
    StreamdError
        there is no such session, or its journal is damaged; a file that cannot be written
    BrokenPipeError
        nobody reads standard output any more
    """
    folder = place(config.journal.folder or AUTO, os.environ)
    known = runs(folder)
    if not session:
        stdio.put(sys.stdout, table(known))
        return
    events = transcript(folder, session)  # raises before a file is made
    started = max((run.started for run in known if run.session == session), default=datetime.min)
    screen = open_display(config, sys.stdout, os.environ, started=started)
    sinks = (screen, *open_files(config, whole=True))
    try:
        for event in events:
            for sink in sinks:
                sink.write(event)
    finally:
        for sink in sinks:
            sink.close()


def table(known: Iterable[Run]) -> str:
    """One line for each session that ever was, oldest first."""
    return "".join(
        f"{run.started.astimezone():%Y-%m-%d %H:%M}  {run.session}\n"
        for run in sorted(known, key=lambda run: run.started)
    )
