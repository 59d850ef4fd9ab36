"""``streamd watch`` and ``streamd export``: captions from another streamd, or from the journal."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import cast, get_args

from streamd.config import Config, read_token
from streamd.daemon.display import open_display, open_files, prints, put, with_names
from streamd.daemon.phrases import with_vocabulary
from streamd.errors import ConfigError
from streamd.events import Final, Notice, SpeakerName
from streamd.notices import Notices
from streamd.options import DocumentName, FormatName
from streamd.server.client import watch
from streamd.sinks import Sink
from streamd.sinks.text import clock
from streamd.sinks.transcripts import Revised
from streamd.streams.journal.database import AUTO, place
from streamd.streams.journal.tables import runs, transcript
from streamd.system.stdio import lines_inside

log = logging.getLogger(__name__)

UNHEARD = 6
"""Exit code if watching ends before what `--until` waits for is heard."""


async def show(config: Config, url: str) -> int:
    """Show and store the events of the session at `url` until it ends or a signal arrives.

    With `--until` that is over, too, when what it waits for is heard. Returns the exit code.

    Raises `StreamdError` for a bad token file, if there is no such server or session, and if a file
    cannot be written; `BrokenPipeError` if standard output was closed.
    """
    loop = asyncio.get_running_loop()
    token = read_token(config.bind.token_file, os.environ)
    started = datetime.now().astimezone()  # the server does not say when the session began
    # The server does not say beforehand either whether speakers are told apart.
    config = replace(config, decoding=replace(config.decoding, speakers=True))
    screen = open_display(config, sys.stdout, os.environ, started=started)
    sinks = (screen, *open_files(_for_translation(config), started=started))
    notices = Notices(config.notices.until)
    for number, name in config.output.called.items():
        notices.take(SpeakerName(speaker=number, name=name))

    async def follow(drawing: ThreadPoolExecutor) -> Notice | None:
        async with aclosing(watch(url, token=token)) as events:
            async for event in events:
                for sink in sinks:
                    await loop.run_in_executor(drawing, sink.write, event)
                for notice in notices.take(event):
                    return notice
        return None

    # A terminal may be stopped (Ctrl-S); its own thread keeps the connection alive meanwhile.
    with (
        ThreadPoolExecutor(1, thread_name_prefix="captions") as drawing,
        lines_inside(screen.above, drawing.submit),
    ):
        loop.add_signal_handler(signal.SIGWINCH, drawing.submit, screen.redraw)
        following = asyncio.ensure_future(follow(drawing))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, following.cancel)
        heard, why = None, "stopped"
        try:
            await asyncio.wait([following])
            if not following.cancelled():  # a signal is the usual end of watching
                heard, why = following.result(), "the session has ended"
        finally:
            for sink in sinks:
                drawing.submit(sink.close)
    return _exit_code(heard, why, config.notices.until)


def _for_translation(config: Config) -> Config:
    """Return the configuration with the words that a translation keeps; nothing else needs them."""
    return with_vocabulary(config) if config.output.languages else config


def _exit_code(heard: Notice | None, why: str, until: Sequence[str]) -> int:
    if heard is not None:
        log.info("heard at %s: %s", clock(heard.start_ms), heard.text)
    elif until:
        log.warning("%s: not heard: %s", why, ", ".join(until))
        return UNHEARD
    return 0


def export(config: Config, session: str = "") -> Iterable[str]:
    """Write the last run of a session, or return a line for each run if none is named.

    Raises `StreamdError` if there is no such session, and if a file cannot be read or written;
    `BrokenPipeError` if standard output was closed.
    """
    config = _on_stdout(config)
    folder = place(config.journal.folder or AUTO, os.environ)
    known = [run for _, run in runs(folder)]
    if not session and not known:
        log.warning("%s holds no session: streamd --journal keeps them", folder)
    if not session:
        return [
            f"{run.started.astimezone():%Y-%m-%d %H:%M}  {run.session}"
            for run in sorted(known, key=lambda run: run.started)
        ]
    text = Revised(transcript(folder, session))
    said = [*text.since(0)]
    speaks = any(isinstance(each, Final) and each.speaker for each in said)
    config = with_names(_for_translation(config), text.names)
    config = replace(config, decoding=replace(config.decoding, speakers=speaks))
    started = max((run.started for run in known if run.session == session), default=datetime.min)
    sinks: list[Sink] = open_files(config, whole=True, started=started)
    if prints(config, sys.stdout, os.environ):
        sinks.insert(0, open_display(config, sys.stdout, os.environ, started=started))
    put(said, sinks)
    return ()


def _on_stdout(config: Config) -> Config:
    """Return the configuration with the format of -f on standard output if there is no folder.

    There is no sound file after which a transcript could be named. Raises `ConfigError`.
    """
    output = config.output
    if output.output_dir or not output.output_format:
        return config
    name, *more = output.output_format
    if name in get_args(DocumentName):
        raise ConfigError(f"-f {name} is a file: add --output-dir, or name it with -o")
    if more or name == "all":
        raise ConfigError("-f: standard output takes one format; add --output-dir for several")
    return replace(config, output=replace(output, format=cast(FormatName, name), output_format=()))
