"""``streamd calibrate``: the shortest encoder context that is safe for a model and a voice.

No transcript is needed: the windows of the recordings are transcribed at full context, then at
shorter ones, and the texts are compared. The padding and floors are those that others found to
matter (whisper.cpp#1855, #1951; voxtype#130; FUTO's whisper-acft).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomlkit
from tomlkit.exceptions import TOMLKitError

from streamd.bench.wer import n_edits, spoken
from streamd.config import SET, Config
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engine import Engine
from streamd.engine.recognizer import Recognizer, encoder_positions
from streamd.errors import ConfigError
from streamd.options import DecodingOptions
from streamd.search.tokenizer import Tokenizer
from streamd.session import Session
from streamd.sources import Lost
from streamd.sources.file import FileSource
from streamd.types import Frames, Hypothesis, Window, text_of

log = logging.getLogger(__name__)

LADDER = ((512, 768), (256, 512), (128, 384), (64, 320), (64, 256), (32, 192))
"""Padding and floor, in encoder positions, longest first."""
MAX_DISAGREEMENT = 0.003
"""Of the words, so many may differ from those at full context (design of the streaming policy)."""
MAX_GUARDED = 0.05
"""Of the windows, so many may need the guard: where two in ten do, a stream's floor rises anyway
(`streamd.session.context`), and at one in twenty that happens to 9 % of all tens of windows."""
EDGE = 13
"""Words that end so close to the end of a window that goes on are not compared: they are cut off,
no context reads them reliably, and none is promised. 260 ms, about as `AgreementOptions.hold`."""
MOST_WINDOWS = 400
"""About 3 minutes of speech; the rest is not used."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one context; `positions` and `window_ms` are means over the windows."""

    pad: int
    floor: int
    positions: int
    words: int
    differ: int
    windows: int
    guarded: int
    window_ms: float

    @property
    def safe(self) -> bool:
        """Whether the text is that of the full context, and the guard seldom to thank for it."""
        few_differ = self.differ <= MAX_DISAGREEMENT * self.words
        return few_differ and self.guarded <= MAX_GUARDED * self.windows


@dataclass(frozen=True, slots=True)
class _WindowText:
    """A window as it was read at some context."""

    n_ctx: int
    words: list[str]
    n_whole: int
    guarded: bool
    took_s: float


@dataclass(slots=True)
class ContextSearch:
    """Reads windows at several contexts, each window at each length only once."""

    engine: Engine[Any]
    tokenizer: Tokenizer
    options: DecodingOptions
    _windows: list[Window] = field(default_factory=list)
    _readings: dict[tuple[int, int], _WindowText] = field(default_factory=dict)

    def listen(self, sounds: Sequence[Frames], new_session: Callable[[], Session]) -> None:
        """Cut the sounds into windows as sessions do, and read these at full context.

        Raises `ConfigError` if nobody speaks in them.
        """
        for sound in sounds:
            self._listen(sound, new_session())
        if not any(reading.words for reading in self._readings.values()):
            raise ConfigError("no speech was recognized: record a minute of yourself, and use that")

    def rungs(self) -> Iterator[Rung]:
        """The full context, then shorter ones; to be called when there are windows."""
        n_full = self.engine.dims.n_audio_ctx
        for pad, floor in ((n_full, n_full), *LADDER):
            options = replace(self.options, audio_ctx_pad=pad, audio_ctx_floor=floor)
            rows = []
            for n, window in enumerate(self._windows):
                n_ctx = encoder_positions(window.end - window.start, options, n_full)
                rows.append((self._read(n, n_ctx), self._read(n, n_full)))
            yield Rung(
                pad=pad,
                floor=floor,
                positions=round(float(np.mean([short.n_ctx for short, _ in rows]))),
                words=sum(full.n_whole for _, full in rows),
                differ=sum(_n_differ(short, full) for short, full in rows),
                windows=len(rows),
                guarded=sum(short.guarded for short, _ in rows),
                window_ms=round(float(np.mean([short.took_s for short, _ in rows])) * 1000, 1),
            )

    def _listen(self, sound: Frames, session: Session) -> None:
        for n in range(len(sound) + 1):
            if len(self._windows) >= MOST_WINDOWS:
                return
            if n < len(sound):
                session.feed(sound[n : n + 1])
            else:
                session.flush()
            while (window := session.next_window()) is not None:
                self._windows.append(window)
                hypothesis = self._recognize(len(self._windows) - 1, self.engine.dims.n_audio_ctx)
                session.accept(window, hypothesis)

    def _read(self, n: int, n_ctx: int) -> _WindowText:
        if (n, n_ctx) not in self._readings:
            self._recognize(n, n_ctx)
        return self._readings[n, n_ctx]

    def _recognize(self, n: int, n_ctx: int) -> Hypothesis:
        """Read window `n`; greedily, so that only the context can make a difference."""
        options = replace(self.options, audio_ctx=n_ctx, beam_size=1, temperatures=(0.0,))
        recognizer = Recognizer(self.engine, self.tokenizer, options)
        begun_s = time.perf_counter()
        hypothesis = recognizer.recognize(self._windows[n])
        took_s = time.perf_counter() - begun_s
        window = self._windows[n]
        until = window.end if window.last else window.end - EDGE
        whole = [word for word in hypothesis.words if word.end <= until]
        self._readings[n, n_ctx] = _WindowText(
            n_ctx,
            spoken(text_of(hypothesis.words)),
            len(spoken(text_of(whole))),
            recognizer.counters.retries > 0,
            took_s,
        )
        return hypothesis


def _n_differ(short: _WindowText, full: _WindowText) -> int:
    """Edits between what the full context reads before the edge, and the short one's beginning."""
    whole = full.words[: full.n_whole]
    if full.n_whole == len(full.words):
        return n_edits(whole, short.words)
    return min(n_edits(whole, short.words[:n]) for n in range(len(short.words) + 1))


def shortest_safe(rungs: Sequence[Rung]) -> Rung:
    """The last rung, longest first, before one that is not safe; the full context is safe."""
    best = rungs[0]
    for rung in rungs[1:]:
        if not rung.safe:
            break
        best = rung
    return best


def report(config: Config, config_file: str = "") -> Iterator[str]:
    """Calibrate on the configured files; yield a table and the result, line by line.

    The result is written to `config_file`, if there is one. Raises a `StreamdError`: `ConfigError`
    if the context is fixed, if nobody speaks, or if that file cannot be written.
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

    Raises `ConfigError` if the file cannot be read or written, or is not TOML.
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
