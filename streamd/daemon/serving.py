"""The configured server, and the protocol of service managers (systemd, launchd)."""

import asyncio
import logging
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from typing import TYPE_CHECKING

from streamd.config import Config, has_several_tokens, read_token, read_tokens
from streamd.daemon import translating
from streamd.daemon.display import written
from streamd.daemon.phrases import terms_of
from streamd.daemon.sharing import fragment, invite, open_to_others
from streamd.errors import BindError, ConfigError, how_to_install
from streamd.models.store import known_language, told
from streamd.options import BindOptions
from streamd.server import LibraryAnswers, Recordings, Server, ServerInfo, Transcripts
from streamd.streams import SessionStorage, Streams
from streamd.system.disk import warn_of_writers

if TYPE_CHECKING:
    from streamd.library.file_queue import FileQueue
    from streamd.streams.journal.bus import Bus
    from streamd.streams.journal.database import Database

_FIRST_FD = 3
"""The first socket that a service manager passes (sd_listen_fds(3))."""
_N_FILES = 256
"""Open files besides clients: journals, recordings, the model, libraries."""

log = logging.getLogger(__name__)


@contextmanager
def storage(config: Config) -> Iterator[SessionStorage]:
    """Open the folders for journals and recordings; nothing is written to them after the context.

    Raises `ConfigError` if the journal's folder cannot be written, or the bus cannot be used.
    """
    options, resume_s = config.journal, config.limits.resume_ms / 1000
    recordings = Path(options.record).expanduser() if options.record else None
    if recordings is not None:
        warn_of_writers("--record", recordings)
    if options.bus:
        bus = _bus(config, resume_s)  # which waits for the clients itself
        yield SessionStorage(bus, recordings)
    elif options.keep:
        with library(config) as kept:
            # FFmpeg's libraries and SQLite take megabytes.
            from streamd.library.additions import storage as kept_in

            yield kept_in(kept, options, resume_s=resume_s)
    elif options.folder:
        # SQLite takes a megabyte.
        from streamd.streams.journal.database import Database, place

        folder = place(options.folder, os.environ)
        warn_of_writers("--journal", folder)
        with Database(folder, options) as journals:
            yield SessionStorage(journals, recordings, resume_s, disk=folder)
    else:
        yield SessionStorage(None, recordings, resume_s)


def library(config: Config) -> "Database":
    """Return the library that the user wants, to write sessions into it.

    Raises `ConfigError` if it cannot be written, or with options that store the same.
    """
    from streamd.library.tables import folder_of, opened

    options = config.journal
    for option, given in ("--journal", options.folder), ("--record", options.record):
        if given:
            raise ConfigError(f"--keep keeps text and audio: drop {option}")
    folder = folder_of(options.keep, os.environ)
    warn_of_writers("--keep", folder)
    return opened(folder, days=options.keep_days, most_bytes=round(options.keep_gb * 1e9))


def file_queue(config: Config, recordings: Recordings) -> "FileQueue | None":
    """Return the queue of the library's files, or None if there is no library."""
    if not config.journal.keep:
        return None
    # SQLite takes a megabyte.
    from streamd.library.file_queue import FileQueue
    from streamd.library.jobs import Jobs
    from streamd.library.shelf import Shelf
    from streamd.library.tables import folder_of

    return FileQueue(recordings, Jobs(Shelf(folder_of(config.journal.keep, os.environ))))


def _answers(config: Config, streams: Streams, queue: "FileQueue") -> LibraryAnswers:
    from streamd.library.jobs_rest import JobsRest
    from streamd.library.listeners import Listeners
    from streamd.library.rest import LibraryRest

    files, listeners = JobsRest(queue), Listeners(streams, queue.recordings)
    return LibraryRest(queue.jobs.shelf, partial(written, config), listeners, files)


def _bus(config: Config, resume_s: float) -> "Bus":
    options = config.journal
    if options.folder:
        raise ConfigError("--bus keeps all finals: drop --journal")
    if options.keep:
        raise ConfigError("--bus keeps all finals: drop --keep")
    if config.output.to:
        raise ConfigError("--bus moves sessions from node to node: drop --to")
    if config.input.source:
        raise ConfigError("--bus shares what clients send: say streamd serve")
    if find_spec("nats") is None:
        raise ConfigError(f"--bus needs a library: {how_to_install('cluster')}")
    # Optional, so imported on demand.
    from streamd.streams.journal.bus import Bus
    from streamd.streams.journal.jetstream import JetStream

    stream = JetStream(options.bus, days=options.days, replicas=options.replicas)
    return Bus(stream, resume_s=resume_s)


@asynccontextmanager
async def server(
    config: Config,
    streams: Streams,
    recordings: Recordings | None = None,
    *,
    queue: "FileQueue | None" = None,
    end_by: Callable[[], float] | None = None,
) -> AsyncIterator[Server | None]:
    """Run the configured server; None if there is to be none. `end_by`: see `Server.end_by`.

    The `queue` is that of the library's files, if there is a library.

    Raises `ConfigError` for the token or the certificate, and `BindError` for the address.
    """
    if config.bind.port is None:
        yield None
        return
    listening = inherited_socket(os.environ)
    if listening is not None and config.bind.share != "off":
        raise ConfigError("--share cannot be used with a socket of the service manager")
    limits = config.limits
    allow_files(limits.max_connections + limits.pending_limit)
    model = config.decoding.model
    readers = translating.translations(config)
    info = ServerInfo(model=told(model), language=known_language(model), translating=readers)
    with open_to_others(_with_tokens(config.bind)) as bind:
        async with Server(
            bind,
            sessions=streams,
            info=info,
            limits=limits,
            recordings=recordings,
            listening=listening,
        ) as running:
            running.end_by = end_by
            running.transcripts = Transcripts(streams, partial(written, config))
            running.read_words = partial(terms_of, config)
            if queue is not None:
                running.library = _answers(config, streams, queue)
            yield running
            notify(os.environ, "STOPPING=1")
    if readers is not None:
        readers.close()


def _with_tokens(bind: BindOptions) -> BindOptions:
    """Read the tokens that the user has chosen; others stay as they are."""
    named = has_several_tokens(bind.token_file)
    token = None if named else read_token(bind.token_file, os.environ)
    tokens = read_tokens(bind.token_file) if named else ()
    return replace(bind, token=token or bind.token, tokens=tokens or bind.tokens)


def allow_files(n_connections: int) -> None:
    """Raise the limit of open files for `n_connections`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n_connections + _N_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS has a lower limit than it reports
        most = soft
    if most < wanted:
        log.warning("the limit of open files is %d (ulimit -n); clients may need %d", most, wanted)


def reload(config: Config, running: Server) -> None:
    """Read the token and the certificate again; keep the old ones if that fails."""
    options = config.bind
    try:
        running.reload(_with_tokens(running.bind))
        files = [file for file in (options.token_file, options.tls_cert, options.tls_key) if file]
        log.info("read %s", ", ".join(files) or "nothing: there is no --token-file")
        if (before := running.invitation) is not None:
            link = invite(running, has_live=before.has_live)
            if running.invitation != before:  # it follows from the token
                log.info("%s", link)
    except ConfigError as error:
        log.error("%s; the old token stays valid", error)  # noqa: TRY400 - the user needs no traceback


def announce(running: Server | None, *, has_live: bool = False) -> None:
    """Log the address of a server, and tell the service manager that it is ready."""
    if running is not None:
        shares, page = running.bind.share != "off", running.page
        if shares and not running.bind.token_file and read_token("", os.environ) is None:
            page += fragment(running.bind.token)  # it was made here, so nobody else can tell it
        log.info("listening on %s", running.url)
        log.info("captions in a browser: %s", page)  # alone in its line, to be clicked or copied
        if shares:
            log.info("%s", invite(running, has_live=has_live))
        notify(os.environ, f"READY=1\nSTATUS=listening on {running.url}")


async def watchdog() -> None:
    """Tell the service manager that the event loop runs, as often as it asks."""
    period_us = int(os.environ.get("WATCHDOG_USEC") or 0)
    while period_us:
        notify(os.environ, "WATCHDOG=1")
        await asyncio.sleep(period_us / 2e6)


def notify(environ: Mapping[str, str], state: str) -> None:
    """Send a state to systemd (sd_notify(3)), if it started us."""
    address = environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket(AF_UNIX, SOCK_DGRAM) as channel:
            try:
                channel.sendto(state.encode(), address.replace("@", "\0", 1))
            except OSError as error:
                log.warning("the service manager cannot be notified: %s", error)


def inherited_socket(environ: Mapping[str, str]) -> socket | None:
    """Return the socket that a service manager opened for us (sd_listen_fds(3)), if it did."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if (n := environ.get("LISTEN_FDS", "0")) != "1":
        raise BindError(f"expected one socket from the service manager, got {n}")
    os.set_inheritable(_FIRST_FD, False)
    return socket(fileno=_FIRST_FD)
