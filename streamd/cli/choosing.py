"""Decides which model is used, and downloads it if necessary, before audio is captured.

Only a user at a terminal is asked first.
"""

import logging
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from streamd.config import Config
from streamd.disk import megabytes
from streamd.engine import store
from streamd.engine.catalog import ENGLISH, entry, languages, offered
from streamd.engine.store import imports
from streamd.engine.store.cache import StorePaths, places
from streamd.engine.store.repository import Repository, repository_of
from streamd.errors import ConfigError
from streamd.options import OutputOptions
from streamd.sinks.progress import ProgressBar, download_line
from streamd.sinks.terminal import is_terminal

if TYPE_CHECKING:
    from streamd.engine.store.download import Offer

log = logging.getLogger(__name__)


def with_model(config: Config) -> Config:
    """Return the configuration with a model that is on this machine.

    Raises `ModelError` if the configured model is not here and cannot be downloaded, or the user
    declines to; `ConfigError` if it is not here and does not know the language.
    """
    here = places()
    name = config.decoding.model
    if not name:
        name = _automatic(config, here)
    elif store.find(name, here) is None:
        _refuse_wrong_language(name, config)
        repository = repository_of(name)
        if repository is None:
            raise store.not_here(name)
        _get(name, repository, here, config.output, ask=_can_ask(config.output))
    return replace(config, decoding=replace(config.decoding, model=name))


def best_here(config: Config, here: StorePaths) -> str | None:
    """Return the model to use when none is named, or None if none here can do the task."""
    return store.best(here, language=config.decoding.language, translate=_translates(config))


def _translates(config: Config) -> bool:
    return config.decoding.task == "translate"


def _refuse_wrong_language(name: str, config: Config) -> None:
    """Check a model of the catalog before it is downloaded; others are checked when loaded."""
    language, known = config.decoding.language, entry(name)
    if known is None or languages(known.outline) > ENGLISH:
        return
    if _translates(config) or language not in ("auto", "en"):
        usual = offered(language=language, translate=_translates(config))
        asked = "--translate" if _translates(config) else f"--language {language}"
        raise ConfigError(f"{asked}: the model {name} knows en only; take one such as {usual.name}")


def _automatic(config: Config, here: StorePaths) -> str:
    name = best_here(config, here)
    if name and not store.is_bundled(name, here):
        log.info("using %s, the best model here; --model names another", name)
        return name
    usual = offered(language=config.decoding.language, translate=_translates(config))
    better, bundled = usual.name, store.BUNDLED[0]
    if _can_ask(config.output) and not (here.offline or imports.was_declined(here.imported)):
        what = f"{better} ({megabytes(usual.n_bytes)}) from {here.host}"
        if _agreed(f"streamd: no suitable model is here yet. Download {what}?"):
            _get(better, Repository(usual.repository), here, config.output)
            return better
        imports.decline(here.imported)
    hint = f"streamd models get {better} downloads a better model"
    log.info("using %s, which ships with streamd; %s", bundled, hint)
    return bundled


def _get(
    name: str, repository: Repository, here: StorePaths, output: OutputOptions, *, ask: bool = False
) -> None:
    # Imported here because httpx2 takes long to import, and most starts need no download.
    from streamd.engine.store.download import look_up

    offer = look_up(repository, here)
    size = megabytes(offer.n_missing)
    if ask and not _agreed(f"streamd: {name} is not here. Download it ({size}) from {here.host}?"):
        raise store.not_here(name)
    download(name, offer, here, output)


def _can_ask(output: OutputOptions) -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and not output.quiet


def _agreed(question: str) -> bool:
    """Ask at the terminal; an empty line means yes, the end of the input no."""
    sys.stderr.write(f"{question} [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    return answer.strip().lower() in ("", "y", "yes") and answer != ""


def download(name: str, offer: "Offer", here: StorePaths, output: OutputOptions) -> None:
    """Download what is offered: with a progress bar on a terminal, or else with log lines.

    Raises `ModelError` if that fails; the next try resumes it.
    """
    from streamd.engine.store.download import fetch  # late for the same reason

    if not offer.n_missing:
        log.info("all of %s is here; checking it", name)
        fetch(offer, here)
        return
    size = megabytes(offer.n_missing)
    log.info("downloading %s, %s, from %s to %s", name, size, here.host, here.cache)
    plain = output.quiet or output.log_format == "json"
    if plain or not is_terminal(sys.stderr, os.environ):
        fetch(offer, here, on_progress=_Tenths(name).reached)
        return
    start = offer.listing.n_bytes - offer.n_missing
    bar = ProgressBar(sys.stderr, partial(download_line, name), start=start)
    try:
        fetch(offer, here, on_progress=bar.update)
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
