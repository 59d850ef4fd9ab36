"""From the configuration to the server, and what a service manager wants to know of it."""

import asyncio
import logging
import os
import resource
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket

from streamd import __version__
from streamd.config import Config, read_token
from streamd.daemon.stream import SessionStorage
from streamd.daemon.streams import Streams
from streamd.errors import BindError, ConfigError
from streamd.journal import Folder, JournalPolicy, place
from streamd.server import Metrics, Server, ServerInfo, serve

_FIRST_FD = 3
"""Of the sockets that a service manager hands over (sd_listen_fds(3))."""

_N_FILES = 256
"""That we have open besides clients: journals, recordings, the model, libraries."""

log = logging.getLogger(__name__)


@contextmanager
def storage(config: Config) -> Iterator[SessionStorage]:
    """Open the folders for journals and recordings; nothing is written to them after the context.

    Raises
    ------
    ConfigError : the journal's folder cannot be written
    """
    options = config.journal
    recordings = Path(options.record).expanduser() if options.record else None
    if not options.folder:
        yield SessionStorage(None, recordings)
        return
    with Folder(place(options.folder, os.environ), JournalPolicy(options)) as folder:
        yield SessionStorage(folder, recordings)


def metrics(config: Config) -> Metrics:
    """What counts for ``/metrics``."""
    return Metrics(version=__version__, model=config.decoding.model)


@asynccontextmanager
async def server(config: Config, streams: Streams) -> AsyncIterator[Server | None]:
    """The server of the configuration, announced to the service manager; None if it is not wanted.

    Raises
    ------
    ConfigError : no token, or one that cannot be read, for a bind that needs one; a bad certificate
    BindError : the address cannot be listened on
    """
    if not config.bind.enabled:
        yield None
        return
    bind = replace(config.bind, token=read_token(config.bind.token_file, os.environ))
    limits = config.limits
    allow_files(limits.max_connections + limits.pending_limit)
    info = ServerInfo(model=config.decoding.model, language=config.decoding.language)
    async with serve(
        bind,
        sessions=streams,
        info=info,
        limits=limits,
        metrics=streams.metrics,
        listening=inherited_socket(os.environ),
    ) as running:
        yield running
        notify(os.environ, "STOPPING=1")


def allow_files(n_connections: int) -> None:
    """Let the process have as many files open, if the system lets it; elsewhere 256 is usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n_connections + _N_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS has a lower limit than it says
        most = soft
    if most < wanted:
        log.warning("only %d files may be open here (ulimit -n), clients may need %d", most, wanted)


def reload(config: Config, running: Server) -> None:
    """Take the token and the certificate that the files have now, unless they cannot be read."""
    options = config.bind
    try:
        running.reload(read_token(options.token_file, os.environ))
        files = [file for file in (options.token_file, options.tls_cert, options.tls_key) if file]
        log.info("read %s", ", ".join(files) or "nothing: there is no --token-file")
    except ConfigError as error:
        log.error("%s; the old token stays", error)  # noqa: TRY400 - the line says it all


def announce(running: Server) -> None:
    """Tell people and the service manager that clients may come."""
    log.info("listening on %s and %s", running.url, running.page)
    notify(os.environ, f"READY=1\nSTATUS=listening on {running.url}")


async def watchdog() -> None:
    """Tell the service manager that we are alive as often as it wants, for ever."""
    period_us = int(os.environ.get("WATCHDOG_USEC") or 0)
    while period_us:
        notify(os.environ, "WATCHDOG=1")
        await asyncio.sleep(period_us / 2e6)


def notify(environ: Mapping[str, str], state: str) -> None:
    """Tell systemd (sd_notify(3)); nothing happens where there is none."""
    address = environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket(AF_UNIX, SOCK_DGRAM) as channel:
            try:
                channel.sendto(state.encode(), address.replace("@", "\0", 1))
            except OSError as error:
                log.warning("the service manager does not listen: %s", error)


def inherited_socket(environ: Mapping[str, str]) -> socket | None:
    """The listening socket of a service manager (sd_listen_fds(3)), if it opened one for us.

    Raises
    ------
    BindError : there are several
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if (n := environ.get("LISTEN_FDS", "0")) != "1":
        raise BindError(f"expected one socket of the service manager, got {n}")
    os.set_inheritable(_FIRST_FD, False)
    return socket(fileno=_FIRST_FD)
