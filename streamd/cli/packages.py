"""Core ML packages on the command line: build them, check them, show where they run."""

import logging
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from streamd.cli.model_check import line
from streamd.config import Config
from streamd.daemon.acceleration import CORE_ML, core_ml_unavailable
from streamd.engines.coreml.package import META, BuiltModel, check_files, open_built
from streamd.engines.coreml.package_builder import build_model, built_model
from streamd.engines.coreml.runtime.encoder import Devices, compiled_folder
from streamd.engines.coreml.runtime.hybrid import load_encoder, plan
from streamd.errors import ConfigError, EngineError, ModelError
from streamd.models.store import find, in_one_form, not_here
from streamd.models.store.cache import places
from streamd.system.disk import expanded, megabytes

log = logging.getLogger(__name__)

_FEW = 3
"""Kinds of operations to name for each device."""


def build(config: Config, name: str) -> None:
    """Build the packages of a model that is on this machine.

    Raises `ModelError` if there is no such model, or it cannot be built or written.
    """
    begun_s = time.perf_counter()

    def progress(done: int, n_all: int, what: str) -> None:
        log.info("%s: %s, %d of %d", name, what, done + 1, n_all)

    name = in_one_form(name, places())
    built = build_model(name, progress)
    size = megabytes(sum(n for n, _ in built.meta.files.values()))
    took_s = time.perf_counter() - begun_s
    log.info("%s: built in %.0f s, %s in %s", name, took_s, size, built.folder)


def report(config: Config) -> Iterator[str]:
    """Compare what Core ML computes with the golden vectors.

    The model is the configured one, or what lies in the folder of that name. Raises `ConfigError`
    if this machine has no Core ML, `ModelError` if the model is not built, is damaged, or is wrong.
    """
    name = config.decoding.model
    if why := core_ml_unavailable():
        raise ConfigError(f"{why}; drop --compute ane to check {name} on the CPU")
    built = open_packages(name)
    yield from facts(built)
    check_files(built)
    yield compared(built, CORE_ML)


def compared(built: BuiltModel, library: str) -> str:
    """Compare a built model with its golden vectors; raises `ModelError` if it is wrong."""
    log.info("%s: loading", built.meta.name)
    try:
        worker, told = load_encoder(built, library=library)
    except EngineError as error:
        raise ModelError(f"{built.meta.name} fails its check on Core ML: {error}") from error
    worker.close()
    return line("golden vectors", told)


def open_packages(name: str) -> BuiltModel:
    """Open the packages of a model, or those in the folder of that name; raises `ModelError`."""
    folder = expanded(name)
    if (folder / META).is_file():
        return open_built(folder)
    if find(name, places()) is None:
        raise not_here(name)
    if found := built_model(name):
        return found
    raise ModelError(f"{name} is not built for Core ML; run: streamd models build {name}")


def facts(built: BuiltModel) -> Iterator[str]:
    """Yield what a built model consists of, line by line."""
    meta = built.meta
    yield line("model", meta.name)
    weights = "float16" if meta.bits == 16 else f"palettes of {meta.bits} bits"
    yield line("built", f"{weights}, with coremltools {meta.coremltools}, in {built.folder}")
    yield line("contexts", ", ".join(map(str, meta.contexts)))
    for package, of in groupby(built.functions, lambda each: each.package):
        size = sum(n for file, (n, _) in meta.files.items() if Path(file).parts[0] == package)
        yield line("package", f"{package}, {len(list(of))} functions, {megabytes(size)}")


def functions(built: BuiltModel, library: str) -> Iterator[str]:
    """Yield a line for each function: where Core ML runs it, and what it runs elsewhere."""
    if not compiled_folder(built).is_dir():
        yield "nothing is compiled yet; the first start does it"
        return
    for package, of in groupby(built.functions, lambda each: each.package):
        found = plan(built, package, library=library)
        for each in of:
            told = _shown(found.get(each.name, {}))
            yield f"{package.removesuffix('.mlpackage')} {each.name}: {told}"


def _shown(found: Devices) -> str:
    if not found:
        return "Core ML does not say"
    shares = ", ".join(f"{share:.0%} {device}" for device, (share, _) in found.items())
    others = (
        f"{device}: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common(_FEW))}"
        for device, (_, kinds) in list(found.items())[1:]
    )
    return "; ".join([shares, *others])
