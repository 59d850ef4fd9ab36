"""Downloads a model and shows the progress: on a terminal as a bar, else as log lines."""

import logging
import os
import sys
from functools import partial

from streamd.disk import megabytes
from streamd.engine.store.cache import StorePaths
from streamd.engine.store.download import Offer, fetch
from streamd.options import OutputOptions
from streamd.sinks.progress import ProgressBar, download_line
from streamd.sinks.terminal import is_terminal

log = logging.getLogger(__name__)


def download(name: str, offer: Offer, here: StorePaths, output: OutputOptions) -> None:
    """Download what is offered. Raises `ModelError` if that fails; the next try resumes it."""
    if not offer.n_missing:
        log.info("all of %s is here; checking it", name)
        fetch(offer, here)
        return
    size = megabytes(offer.n_missing)
    log.info("downloading %s, %s, from %s to %s", name, size, here.host, here.cache)
    plain = output.quiet or output.log_format == "json"
    if plain or not is_terminal(sys.stderr, os.environ):
        fetch(offer, here, told=_Tenths(name).reached)
        return
    start = offer.listing.n_bytes - offer.n_missing
    bar = ProgressBar(sys.stderr, partial(download_line, name), start=start)
    try:
        fetch(offer, here, told=bar.update)
    finally:
        bar.close()


class _Tenths:
    """Logs a line for each tenth of the download."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tenth = 0

    def reached(self, n_here: int, n_all: int) -> None:
        tenth = 10 * n_here // n_all if n_all else 10
        if tenth > self._tenth:
            self._tenth = tenth
            log.info("%s: %d %% of %s", self._name, 10 * tenth, megabytes(n_all))
