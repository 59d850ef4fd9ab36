"""The models on this machine: which is used, and ``streamd models``.

Before audio is captured a user at a terminal is asked whether to download a missing model; nothing
else is downloaded unless `get` is called.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from streamd.cli.asking import agreed, can_ask
from streamd.config import Config
from streamd.daemon.opening import assumed_precision, best_model
from streamd.engines import memory, yamnet
from streamd.engines.prepared import prepared_bytes
from streamd.errors import ConfigError, ModelError
from streamd.events import encode
from streamd.models import sounds, store
from streamd.models.catalog import CATALOG, ENGLISH, entry, languages, offered
from streamd.models.families import FAMILY_MODELS, check_library, family_entry, suits_family
from streamd.models.formats import gguf
from streamd.models.model import Outline
from streamd.models.store import cache, imports
from streamd.models.store.cache import Repository, StorePaths, places, repository_of
from streamd.models.store.layouts import layout_of
from streamd.options import ModelOptions, OutputOptions
from streamd.sinks.progress import Progress, download_line
from streamd.sinks.terminal import TerminalSink, is_terminal
from streamd.sinks.text import Look
from streamd.system.disk import asset, expanded, megabytes, size_of
from streamd.system.processor import memory_bytes
from streamd.translation import store as translations

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
    elif store.find(name, here) is None or store.is_bundled(name, here):
        _refuse_wrong_language(name, config.decoding)
        _ask_for(name, config, here)
    name = store.in_one_form(name, here)
    return replace(config, decoding=replace(config.decoding, model=name))


def _ask_for(name: str, config: Config, here: StorePaths) -> None:
    """Download a model that is not here if the user agrees. Raises `ModelError`."""
    if store.find(name, here) is not None:
        return
    repository = repository_of(name)
    if repository is None or not can_ask(config.output):
        raise store.not_here(name)
    _refuse_too_large(name, config)
    _download(name, repository, here, config.output, ask=True)


def _refuse_too_large(name: str, config: Config) -> None:
    """Check a model of the catalog before it is downloaded. Raises `ModelError`."""
    known, precision = entry(name), assumed_precision(config)
    if known is None or memory.fits(known.outline.dims, precision):
        return
    takes = megabytes(memory.live_bytes(known.outline.dims, precision))
    has, other = megabytes(memory_bytes()), "; --precision int8 takes less"
    cure = "take a smaller model" + (other if precision == "float32" else "")
    raise ModelError(f"{name} takes {takes} of memory, and this machine has {has}: {cure}")


def _refuse_wrong_language(name: str, wanted: ModelOptions) -> None:
    """Check a model of the catalog before it is downloaded; others are checked when loaded."""
    known, translates = entry(name), wanted.task == "translate"
    if family := family_entry(name):
        check_library(name)
        if not suits_family(family, wanted):
            asked = "--translate" if translates else f"--language {wanted.language}"
            knows = ", ".join(family.languages)
            raise ConfigError(f"{asked}: {name} only transcribes {knows}; take a Whisper")
    if known is None or languages(known.outline) > ENGLISH:
        return
    if translates or wanted.language not in ("", "auto", "en"):
        asked = "--translate" if translates else f"--language {wanted.language}"
        usual = offered(wanted).name
        raise ConfigError(f"{asked}: the model {name} knows en only; take one such as {usual}")


def _automatic(config: Config, here: StorePaths) -> str:
    name, best = best_model(config, here), store.best(here, config.decoding)
    if name and name != best and family_entry(name) is None:
        log.info(
            "using %s, the best installed model that keeps up; %s would lag behind on this "
            "machine, by an estimate: --model %s takes it nevertheless",
            *(name, best, best),
        )
        return name
    was_declined = imports.was_declined(here.imported)
    if name and (was_declined or not store.is_bundled(name, here)):
        log.info("using %s, the best installed model (choose with --model)", name)
        return name
    usual = offered(config.decoding)
    better, bundled = usual.name, store.BUNDLED[0]
    if can_ask(config.output) and not (here.offline or was_declined):
        what = f"{better}, {megabytes(usual.n_bytes)} from {here.host}"
        known = f"{name} is here, the smallest. Larger: {what}. Download it?"
        lacking = f"no suitable model is here yet. Download {what}?"
        if not agreed(f"streamd: {known if name else lacking}", otherwise=not name):
            imports.decline(here.imported)
        elif _tried(better, usual.repository, here, config.output, needed=not name):
            return better
    _refuse_wrong_language(bundled, config.decoding)
    hint = f"the smallest model; streamd models get {better} downloads a larger one"
    log.warning("using %s, which ships with streamd, %s", bundled, hint)
    return bundled


def _download(
    name: str, repository: Repository, here: StorePaths, output: OutputOptions, *, ask: bool = False
) -> None:
    """Download a model's missing files, and verify the others.

    That shows a progress bar on a terminal, or else log lines. Raises `ModelError` if it fails (the
    next try resumes it), or if the user is to be asked and declines.
    """
    # Imported here because httpx2 takes long to import, and most starts need no download.
    from streamd.models.store.download import fetch, look_up

    offer = look_up(repository, here)
    size = megabytes(offer.n_missing)
    if known := entry(name):
        prepared = megabytes(prepared_bytes(known.outline.dims))
        used = megabytes(memory.live_bytes(known.outline.dims, "int8"))
        size += f", and {prepared} when it is prepared; {used} of memory when used"
    if offer.n_missing and (family := family_entry(name)):
        log.info("%s is under the licence %s", name, family.license_line)
    if ask and not agreed(f"streamd: {name} is not here. Download it ({size}) from {here.host}?"):
        raise store.not_here(name)
    if not offer.n_missing:
        log.info("all of %s is here; checking it", name)
    else:
        size = megabytes(offer.n_missing)
        log.info("downloading %s, %s, from %s to %s", name, size, here.host, here.cache)
    with _shown_progress(name, output, start=offer.n_bytes - offer.n_missing) as on_progress:
        fetch(offer, here, on_progress=on_progress)


@contextmanager
def _shown_progress(
    name: str, output: OutputOptions, *, start: int = 0
) -> Iterator[Callable[[int, int], object]]:
    """Give what shows how much of a download is here, with `start` bytes of it from before."""
    plain = output.verbose < 0 or output.log_format == "json"
    if plain or not is_terminal(sys.stderr, os.environ):
        yield _tenths(name)
        return
    terminal = TerminalSink(sys.stderr, Look())
    progress = Progress(terminal.status, partial(download_line, name), start=start)
    try:
        yield progress.update
    finally:
        terminal.close()


def _tried(
    name: str, repository: str, here: StorePaths, output: OutputOptions, *, needed: bool
) -> bool:
    """Download a model; return whether that went well. Raises `ModelError` if it is `needed`."""
    try:
        _download(name, Repository(repository), here, output)
    except ModelError as error:
        if needed:
            raise
        log.warning("%s; captions go on without it", error)
        return False
    return True


def _tenths(name: str) -> Callable[[int, int], None]:
    """Return a function that logs a line for each tenth of a download."""
    tenth = 0

    def reached(n_here: int, n_all: int) -> None:
        nonlocal tenth
        if (now := 10 * n_here // n_all if n_all else 10) > tenth:
            tenth = now
            log.info("%s: %d %% of %s", name, 10 * tenth, megabytes(n_all))

    return reached


def get(config: Config, name: str) -> None:
    """Download a model's missing or changed files, and verify the others; raises `ModelError`."""
    if name == sounds.NAME:
        log.info("getting YAMNet, which is under the licence %s, from", sounds.LICENCE)
        log.info("%s", sounds.ADDRESS)
        _said_kept(sounds.fetch())
        return
    here = places()
    if direction := translations.direction_of(name):
        _get_translation(name, direction, here, config.output)
        return
    repository = repository_of(name)
    if family_entry(name):
        check_library(name)
    if repository and imports.find(here.imported, name):
        raise ModelError(f"{name} is imported; streamd models get {repository} downloads that one")
    if repository:
        _refuse_too_large(name, config)
        _download(name, repository, here, config.output)
    elif store.find(name, here) is None:
        raise store.not_here(name)
    log.info("%s is here; use it with --model %s", name, name)


def _get_translation(
    name: str, direction: tuple[str, str], here: StorePaths, output: OutputOptions
) -> None:
    """Download a model that translates, and say who is asked. Raises `ModelError`."""
    log.info("%s: asking %s", name, translations.REGISTRY)
    found = translations.look_up(here, *direction)
    size = megabytes(found.n_bytes)
    log.info("%s (%s) is under the licence %s", name, found.architecture, translations.LICENCE)
    log.info("downloading %s, %s, from %s", name, size, found.base)
    with _shown_progress(name, output) as on_progress:
        translations.fetch(here, found, on_progress=on_progress)
    log.info("%s is here; use it with --translate-into %s", name, direction[1])


def add(config: Config, path: str, name: str = "") -> None:
    """Bring a model into the store in the form that streamd reads; raises `ModelError`.

    A TensorFlow Lite file is YAMNet, or refused.
    """
    source = expanded(path).absolute()
    if not os.path.exists(source):  # Path.exists raises for a name that is too long
        raise ModelError(f"{path}: no such file or folder")
    if source.suffix == sounds.ENDING:
        yamnet.load(source)
        _said_kept(sounds.keep(source))
        return
    if source.is_file() and gguf.is_one(source):
        raise ModelError(f"{path}: a GGUF is used where it is: --model {path}")
    if direction := translations.direction_of(name):
        translations.add(places(), source, *direction)
        log.info("%s is imported; use it with --translate-into %s", name, direction[1])
        return
    name = name or imports.called(source).replace("/", "-")
    kept = imports.add(places().imported, source, name)
    log.info("%s, %s, is imported; use it with --model %s", name, _size(kept), name)
    if other := entry(name):
        log.info("%s means this one from now on; the hub's is %s", name, other.repository)


def _said_kept(path: Path) -> None:
    log.info("YAMNet is here, %s; use it with --sounds", megabytes(path.stat().st_size))


def remove(config: Config, name: str) -> None:
    """Delete a downloaded or imported model; raises `ModelError` if that is not possible."""
    if name == sounds.NAME:
        sounds.remove()
        log.info("removed YAMNet")
        return
    here, repository = places(), repository_of(name)
    if direction := translations.direction_of(name):
        if not translations.remove(here, *direction):
            raise ModelError(f"{name} is not here; streamd models list shows what is")
        log.info("removed %s", name)
        return
    try:
        if imported := dict(imports.every(here.imported)).get(name):
            size = _size(imported)
            imports.remove(here.imported, name)
        elif repository and cache.storage(here.cache, repository).exists():
            if repository.revision != "main":  # they share files
                command = f"streamd models remove {repository.id}"
                raise ModelError(f"revisions go together; run: {command}")
            size = megabytes(cache.n_bytes(here.cache, repository))
            cache.remove(here.cache, repository)
        elif store.find(name, here):
            raise ModelError(f"{name} is not in the store, so it is not streamd's to remove")
        else:
            raise ModelError(f"{name} is not here; streamd models list shows what is")
    except OSError as error:
        raise ModelError(f"{name} cannot be removed ({error.strerror or error})") from error
    log.info("removed %s, %s", name, size)


class Row(NamedTuple):
    """A line of the list; `origin` is where a Whisper comes from."""

    name: str
    size: str
    memory: str
    languages: str
    state: str
    origin: str


class FamilyRow(NamedTuple):
    """A line of the list of other families' models: `live` says how captions come, `wer` in %."""

    name: str
    size: str
    languages: str
    state: str
    live: str
    wer: str
    license: str


def table(config: Config) -> Iterator[str]:
    """Yield the lines of the list, the models that are here first, with a star at the default."""
    here = places()
    default = best_model(config, here) or store.BUNDLED[0]
    rows = sorted(_rows(here), key=lambda row: not row.state)
    if config.output.json:
        every: list[Row | FamilyRow] = [*rows, *_family_rows(here)]
        every.sort(key=lambda row: not row.state)
        yield encode([{**row._asdict(), "default": row.name == default} for row in every])
        return
    for row in (Row("NAME", "SIZE", "RAM", "LANG", "HERE", "FROM"), *rows):
        star = "*" if row.name == default else " "
        about = f"{row.size:>7} {row.memory:>5} {row.languages:4} {row.state:10} {row.origin}"
        cells = f"{row.name:16} {about}"
        yield f"{star} {cells}".rstrip()
    yield ""
    head = FamilyRow("OTHER FAMILIES", "SIZE", "LANGUAGES", "HERE", "LIVE", "WER", "LICENCE")
    for each in (head, *sorted(_family_rows(here), key=lambda row: not row.state)):
        star = "*" if each.name == default else " "
        cells = f"{each.name:26} {each.size:>6} {each.languages:9} {each.state:10} {each.live:6}"
        yield f"{star} {cells} {each.wer:>4} {each.license.removesuffix(' Model License')}".rstrip()
    yield ""
    yield f"  {'TRANSLATIONS':26} {'SIZE':>6} LICENCE"
    for source, target in translations.directions(here):
        name = f"{translations.PREFIX}{source}-{target}"
        size = megabytes(size_of(translations.folder(here, source, target)))
        yield f"  {name:26} {size:>6} {translations.LICENCE}"
    yield f"  {translations.PREFIX}en-de and others: streamd models get translate:en-de"


def _family_rows(here: StorePaths) -> Iterator[FamilyRow]:
    """Yield the catalog's models of other families, and others that were downloaded."""
    for each in FAMILY_MODELS:
        n_languages = "English" if each.languages == ("en",) else str(len(each.languages))
        state = "downloaded" if store.find(each.name, here) else ""
        row = each.name, megabytes(each.bytes), n_languages, state, _live(each.streams)
        yield FamilyRow(*row, f"{each.wer:.2f}", each.licence)
    for repository, path in cache.ggufs(here.cache):
        with suppress(ModelError):
            header = gguf.speech_family(path)
            known = header.languages
            n_languages = "English" if known == ("en",) else str(len(known))
            row = str(repository), _size(path), n_languages, "downloaded", _live(header.streams)
            yield FamilyRow(*row, "", header.licence)


def _live(streams: bool) -> str:
    return "stream" if streams else "steps"


def _rows(here: StorePaths) -> Iterator[Row]:
    """Yield each name once, for the model that `find` returns for it."""
    imported = dict(imports.every(here.imported))
    downloaded = {str(repository): snapshot for repository, snapshot in cache.whispers(here.cache)}
    for name in store.BUNDLED:
        listed = entry(name)
        if name not in imported and not (listed and listed.repository in downloaded):
            files = asset(name)
            yield Row(name, _size(files), *_known(files), "bundled", "ships with streamd")
    for name, files in imported.items():
        yield Row(name, _size(files), *_known(files), "imported", "")
    for each in CATALOG:
        known, origin = _about(each.outline), each.repository
        if path := downloaded.pop(origin, None):
            name = origin if each.name in imported else each.name
            yield Row(name, _size(path), *known, "downloaded", origin)
        elif each.name not in {*imported, *store.BUNDLED}:
            yield Row(each.name, megabytes(each.n_bytes), *known, "", origin)
    for name, files in downloaded.items():
        yield Row(name, _size(files), *_known(files), "downloaded", here.host)


def _known(model: Path) -> tuple[str, str]:
    """Return the memory and languages of a model on this machine, or nothing if it is damaged."""
    try:
        return _about(layout_of(model).outline(model))
    except ModelError:
        return "", ""


def _about(outline: Outline) -> tuple[str, str]:
    n_languages = languages(outline)
    takes = memory.live_bytes(outline.dims, "int8") / 1e9
    return f"{takes:.1f}GB", "en" if n_languages == 1 else str(n_languages)


def _size(model: Path) -> str:
    """Return the size of the files that the loader reads."""
    try:
        if model.is_file() and gguf.is_one(model):
            return megabytes(model.stat().st_size)
        return megabytes(sum(path.stat().st_size for path in layout_of(model).files(model)))
    except (ModelError, OSError):  # OSError: one of the files is gone
        return "damaged"
