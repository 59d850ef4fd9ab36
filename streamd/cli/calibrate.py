"""``streamd calibrate``: the shortest encoder context that is safe for a model and a voice."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tomlkit
from tomlkit.exceptions import TOMLKitError

from streamd.bench.context_search import ContextSearch, Rung, shortest_safe
from streamd.config import SET, Config
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.errors import ConfigError
from streamd.sources import Lost
from streamd.sources.file import FileSource
from streamd.types import Frames

log = logging.getLogger(__name__)


def report(config: Config, config_file: str = "") -> Iterator[str]:
    """Calibrate on the configured files; a table, and what was found.

    `config_file`: where it is written; if there is none, it is only printed.

    Raises
    ------
    ConfigError : the context is fixed, nobody speaks, or the file cannot be written
    ModelError : the model cannot be loaded
    SourceError : a file cannot be read
    """
    if n_ctx := config.search.audio_ctx:
        raise ConfigError(f"--audio-ctx {n_ctx} fixes the encoder's context: drop it")
    sounds = [asyncio.run(_frames(name)) for name in config.input.files]
    model, engine = open_model(config, settled=True)
    options = build.decoding_options(config, model)
    calibration = ContextSearch(engine, build.tokenizer(config, model), options)
    log.info("reading at full context")
    calibration.listen(sounds, build.session_factory(config))
    yield f"{'context':>8} {'pad':>5} {'floor':>6} {'differ':>16} {'guard':>12} {'window':>9}"
    rungs: list[Rung] = []
    for rung in calibration.rungs():
        yield _row(rung, full=not rungs)
        rungs.append(rung)
    best = shortest_safe(rungs)
    faster = rungs[0].window_ms / best.window_ms
    yield (
        f"{model.name}: search.audio_ctx_pad {best.pad} and search.audio_ctx_floor {best.floor} "
        f"are safe: {faster:.1f} times as fast as the full context"
    )
    if config_file:
        write(Path(config_file), best, f"found by streamd calibrate for {model.name}")
        yield f"written to {config_file}"
    else:
        yield "not written anywhere: --config FILE says where to"


def write(path: Path, best: Rung, why: str) -> None:
    """Put the context into a configuration file, and leave all else in it as it is.

    Raises
    ------
    ConfigError : the file cannot be read or written, or is no TOML
    """
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")
        settings = document.setdefault(SET, tomlkit.table(is_super_table=True))
        search = settings.setdefault("search", tomlkit.table())
        for name, value in (("audio_ctx_pad", best.pad), ("audio_ctx_floor", best.floor)):
            search[name] = tomlkit.item(value).comment(why)
        path.write_text(tomlkit.dumps(document), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config: cannot write {path}: {error.strerror}") from None
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None


async def _frames(name: str) -> Frames:
    async with FileSource(name) as source:
        return np.concatenate([item async for item in source if not isinstance(item, Lost)])


def _row(rung: Rung, *, full: bool) -> str:
    verdict = "full" if full else "safe" if rung.safe else "not safe"
    return (
        f"{rung.positions:8} {rung.pad:5} {rung.floor:6} {rung.differ:7} of {rung.words:5}"
        f" {rung.guarded:4} of {rung.windows:4} {rung.window_ms:6.1f} ms  {verdict}"
    )
