"""``streamd models build NAME``: packages for Core ML, and how far they are."""

import logging
import time

from streamd.config import Config
from streamd.engine.catalog import megabytes
from streamd.engine.coreml.build import Plan
from streamd.engine.coreml.package import Bits
from streamd.engine.coreml.place import build_model
from streamd.engine.store.places import expanded
from streamd.errors import ConfigError

log = logging.getLogger(__name__)

_BITS: dict[str, Bits] = {"16": 16, "8": 8, "6": 6, "4": 4}


def build(config: Config, name: str) -> None:
    """Build a model that is on this machine.

    Raises
    ------
    ConfigError : the engine needs nothing built
    ModelError : there is no such model, or it cannot be built or written
    """
    engine = config.decoding.engine
    if engine not in ("auto", "coreml"):
        raise ConfigError(f"--engine {engine}: nothing has to be built for it, only for coreml")
    wanted = config.building
    plan = Plan(
        contexts=wanted.audio_contexts,
        bits=_BITS[wanted.weight_bits],
        legacy=wanted.for_macos == "13",
    )
    begun_s = time.perf_counter()

    def told(done: int, n_all: int, what: str) -> None:
        if what:
            log.info("%s: %s, %d of %d", name, what, done + 1, n_all)

    built = build_model(name, plan, told, to=expanded(wanted.build_to) if wanted.build_to else None)
    size = megabytes(sum(built.meta.sizes.values()))
    took_s = time.perf_counter() - begun_s
    log.info("%s: built in %.0f s, %s in %s", name, took_s, size, built.folder)
