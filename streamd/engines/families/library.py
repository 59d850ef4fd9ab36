"""Models that transcribe.cpp runs (MIT; the extra `families`).

A `Model` of the library computes one thing at a time and has one open stream, so `processes` opens
one in a process for each stream. The weights are mapped from the file, whose pages they share.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamd.engines.families.said import Abilities, Said, SaidWord, shared, split
from streamd.errors import (
    ConfigError,
    EngineMemoryError,
    ModelError,
    OneSessionError,
    how_to_install,
)
from streamd.types import FRAME_MS, SAMPLE_RATE, Samples, TextOptions, mean_prob

if TYPE_CHECKING:
    import transcribe_cpp as library

Compute = Literal["cpu", "gpu", "auto"]

log = logging.getLogger(__name__)

LOOK_AHEADS_MS = {0: 0, 80: 1, 480: 6, 1040: 13}
"""What Nemotron's models may hear after a word, and the library's name for it (frames of 80 ms)."""
LOOK_AHEAD_MS = 80
"""The default. A word is shown after the look-ahead, half of a chunk (80 ms longer than that) and
half of a step of 500 ms: 0.41 s on average; with 480 ms, 1 s."""
_SETTLE_MS, _SETTLE_REALTIME_MS = 160, 800
"""Silence that a stream hears in a pause beyond what it says it still needs: a transducer writes a
word a few frames late. Voxtral Realtime, which writes 480 ms late, does not say what it needs."""
_MOST_SETTLING_MS = 3_000
_ONLY_TEXT, _LEAST_TOKENS, _TOKENS_PER_S = {"canary", "cohere_asr"}, 50, 20
"""Families whose context holds the text only, and how long that may be. They write 512 tokens or
more, however short the sound is, if they find no end, as in noise; nobody says more than 10 a
second."""
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.DEBUG}
"""Of the library's messages; it warns of what is normal here, such as a prompt that it ignores."""


def devices() -> list[str]:
    """Return what the library can compute on here. Raises `ConfigError` if it is not installed."""
    return [
        f"{each.name} ({each.description})" if each.device_type != "cpu" else each.name
        for each in _library().backends()
    ]


@cache
def _library() -> ModuleType:
    """Import the library, which loads its native code. Raises `ConfigError`."""
    try:
        import transcribe_cpp
    except ImportError:
        cure = how_to_install("families")
        raise ConfigError(f"this model needs the library transcribe.cpp: {cure}") from None
    transcribe_cpp.set_log_callback(_log)
    return transcribe_cpp


def _log(level: int, message: str) -> None:
    log.log(_LEVELS.get(level, logging.DEBUG), "transcribe.cpp: %s", message.rstrip())


class Family:
    """A model of transcribe.cpp; see `FamilyModel`. It has one stream at a time."""

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        compute: Compute = "cpu",
        look_ahead_ms: int | None = None,
    ) -> None:
        """Open a file that transcribe.cpp reads: GGUF, or whisper.cpp's format.

        Each window takes `threads` threads. `compute` "gpu" is any GPU that the library finds.

        Raises
        ------
        ConfigError
            The library is not installed, `compute` cannot be used here, or the model has no such
            `look_ahead_ms`.
        ModelError
            The library cannot read the file.
        """
        self._library, self._threads = _library(), threads
        self._model = self._open(path, self._choose_backend(compute))
        self._options = self._stream_options(look_ahead_ms)
        self.abilities = self._abilities(look_ahead_ms)

    def begin(self, options: TextOptions) -> "LibraryStream":
        """Open a stream; the one before has to be closed."""
        return LibraryStream(self, options)

    def run(self, samples: Samples, options: TextOptions) -> Said:
        """Transcribe a piece of sound."""
        most = 0  # the library's own limit
        if self.abilities.arch in _ONLY_TEXT:
            most = _LEAST_TOKENS + len(samples) * _TOKENS_PER_S // SAMPLE_RATE
        timestamps: Any = self.abilities.timestamps
        with _errors(self._library), self.session(most) as session:
            return _said(self._run(session, samples, self.chosen(options), timestamps))

    def chosen(self, options: TextOptions) -> dict[str, Any]:
        """What the library takes of a window's options."""
        abilities, among = self.abilities, options.languages
        language = among[0] if len(among) == 1 else options.language
        chosen: dict[str, Any] = {}
        if language and (not abilities.languages or language in abilities.languages):
            chosen["language"] = language
        if options.task == "translate" and abilities.translates:
            chosen["task"], chosen["target_language"] = "translate", "en"
        if options.vocabulary and abilities.takes_vocabulary:
            chosen["vocabulary"] = options.vocabulary.splitlines()
        if options.initial_prompt and abilities.takes_prompt:
            chosen["prompt"] = options.initial_prompt
        return chosen

    def session(self, most_tokens: int = 0) -> "library.Session":
        """Return what computes on the model."""
        return self._model.session(n_threads=self._threads, n_ctx=most_tokens)

    def stream(self, session: "library.Session", options: TextOptions) -> "library.Stream":
        """Begin a stream of the library."""
        finest = self.abilities.timestamps
        timestamps: Any = finest if finest in ("word", "token") else "none"
        chosen = self.chosen(options)
        return session.stream(timestamps=timestamps, family=self._options, **chosen)

    def _open(self, path: Path, backend: str) -> "library.Model":
        try:
            return self._library.Model(path, backend=backend)  # type: ignore[no-any-return]  # the module is imported when it is needed
        except self._library.OutOfMemory as error:
            raise EngineMemoryError(f"{path}: {error}") from error
        except self._library.BackendError as error:
            why = f"transcribe.cpp cannot use {backend} here: take --compute cpu"
            raise ConfigError(why) from error
        except self._library.TranscribeError as error:
            raise ModelError(f"{path}: transcribe.cpp cannot read it ({error})") from error

    def _choose_backend(self, compute: Compute) -> str:
        """The library's name for where to compute; "auto" is the CPU. Raises `ConfigError`."""
        if compute != "gpu":
            return "cpu"
        kinds = [each.kind for each in self._library.backends() if each.device_type != "cpu"]
        gpus = [kind for kind in ("cuda", "metal", "vulkan", "rocm") if kind in kinds]
        if not gpus:
            raise ConfigError("--compute gpu: transcribe.cpp finds no GPU; use --compute cpu")
        return gpus[0]

    def _stream_options(self, look_ahead_ms: int | None) -> Any:  # noqa: ANN401 - one of the library's classes
        """What a stream of this family needs to be told. Raises `ConfigError`."""
        lib, model = self._library, self._model
        # The recognizer feeds a stream as often as somebody wants to see text.
        each_time = lib.MoonshineStreamingOptions(min_decode_interval_ms=0)
        chosen_ms = LOOK_AHEAD_MS if look_ahead_ms is None else look_ahead_ms
        choices = ", ".join(map(str, LOOK_AHEADS_MS))
        if chosen_ms not in LOOK_AHEADS_MS:
            raise ConfigError(f"--look-ahead-ms {chosen_ms}: it may be {choices}")
        right = lib.ParakeetStreamOptions(att_context_right=LOOK_AHEADS_MS[chosen_ms])
        if model.accepts(right):
            return right
        if look_ahead_ms is not None:
            raise ConfigError(f"--look-ahead-ms: {model.variant} has no choice of look-ahead")
        return each_time if model.accepts(each_time) else None

    def _abilities(self, look_ahead_ms: int | None) -> Abilities:
        model, known = self._model, self._model.capabilities
        has_choice = isinstance(self._options, self._library.ParakeetStreamOptions)
        chosen_ms = LOOK_AHEAD_MS if look_ahead_ms is None else look_ahead_ms
        return Abilities(
            arch=model.arch,
            variant=model.variant,
            device=model.backend,
            languages=known.languages,
            streams=known.supports_streaming,
            translates=known.supports_translate,
            takes_vocabulary=model.supports("vocabulary"),
            takes_prompt=model.supports("context_prompt"),
            timestamps=known.max_timestamp_kind,
            longest_ms=known.max_audio_ms,
            look_ahead_ms=chosen_ms if has_choice else None,
        )

    def _run(
        self,
        session: "library.Session",
        samples: Samples,
        chosen: dict[str, Any],
        timestamps: Any,  # noqa: ANN401 - a literal type of the library's
    ) -> "library.Result":
        try:
            return session.run(samples.tobytes(), timestamps=timestamps, **chosen)
        except self._library.OutputTruncated as error:  # it ran on, or repeated itself
            if error.partial_result is None:
                raise
            partial: library.Result = error.partial_result
            return partial


class LibraryStream:
    """A stream of the library; see `FamilyStream`."""

    def __init__(self, family: Family, options: TextOptions) -> None:
        self._family, self._lib = family, _library()
        with _errors(self._lib):
            self._session = family.session()
            self._stream = family.stream(self._session, options)
        self._n_heard = 0
        self._language = str(family.chosen(options).get("language", ""))

    def feed(self, samples: Samples) -> None:
        """Take the next samples."""
        if len(samples):
            with _errors(self._lib):
                self._update = self._stream.feed(samples.tobytes())
            self._n_heard += len(samples)

    def settle(self) -> int:
        """Feed silence until all that was heard before it is in the text."""
        is_late = self._family.abilities.arch == "voxtral_realtime"
        goal_ms = self._n_heard * 1000 // SAMPLE_RATE
        settled_ms, wanted_ms = 0, _SETTLE_REALTIME_MS if is_late else _SETTLE_MS
        while self._n_heard and settled_ms < _MOST_SETTLING_MS:
            short_ms = (
                wanted_ms + goal_ms - (self._update.input_received_ms - self._update.buffered_ms)
            )
            if short_ms <= 0:
                break
            short_ms = -(-short_ms // FRAME_MS) * FRAME_MS
            self.feed(np.zeros(short_ms * SAMPLE_RATE // 1000, np.float32))
            settled_ms += short_ms
        return settled_ms

    def said(self) -> Said:
        """Return all words since the stream began."""
        text = self._stream.text()
        found = _said(self._stream.snapshot(), text.full, self._language)
        pairs = zip(split(text.committed), split(text.full), strict=False)
        n_stable = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # The last word may go on, or get a mark. Where the model has changed what the library has
        # committed, as Moonshine does, the library's two texts do not fit together.
        return Said(found.words, min(n_stable, max(0, len(found.words) - 1)), found.language)

    def close(self) -> None:
        """Let another stream use the model."""
        self._session.close()  # which ends its stream


@contextmanager
def _errors(lib: ModuleType) -> Iterator[None]:
    """Raise that memory is short as what it is, which is tried again; others end one session."""
    try:
        yield
    except lib.OutOfMemory as error:
        raise EngineMemoryError(f"transcribe.cpp: {error}") from error
    except lib.TranscribeError as error:
        raise OneSessionError(f"transcribe.cpp: {error}") from error


def _said(result: "library.Result", text: str | None = None, language: str = "") -> Said:
    """The words of a result of the library, or of another `text` that it shows of it.

    Times and probabilities are those of the tokens, if these spell the text and the model tells
    them; or the times are those of words, or of segments, whose words share them.
    """
    words = split(result.text if text is None else text)
    spelled = _tokens_of(result.tokens, words)
    probs = [mean_prob(map(_known, tokens)) for tokens in spelled] or [None] * len(words)
    times, is_shared = _times(result, words, spelled)
    times = times or [(None, None)] * len(words)
    told = zip(words, times, probs, strict=True)
    said = tuple(SaidWord(word, *span, prob, is_shared) for word, span, prob in told)
    return Said(said, len(said), result.language or language)


Times = list[tuple[int, int]] | list[tuple[None, None]]


def _times(
    result: "library.Result", words: list[str], spelled: list[list["library.Token"]]
) -> tuple[Times, bool]:
    """Start and end of each word in ms, and whether the words of segments share their times.

    There are none if the model does not tell them.
    """
    if spelled and any(token.t1_ms > 0 for token in result.tokens):
        return [(tokens[0].t0_ms, tokens[-1].t1_ms) for tokens in spelled], False
    if _same(words, (word.text for word in result.words)):
        return [(word.t0_ms, word.t1_ms) for word in result.words], False
    parts = [split(segment.text) for segment in result.segments]
    are_timed = all(segment.t1_ms > segment.t0_ms for segment in result.segments)
    if are_timed and _same(words, chain(*parts)):
        spans = zip(parts, result.segments, strict=True)
        return [at for part, each in spans for at in shared(part, each.t0_ms, each.t1_ms)], True
    return [], False


def _tokens_of(tokens: Iterable["library.Token"], words: list[str]) -> list[list["library.Token"]]:
    """The tokens that spell each word; none unless they spell just these words."""
    spelled: list[list[library.Token]] = []
    left = iter(tokens)
    for word in words:
        bare, these, text = word.strip(), [], ""
        while len(text) < len(bare):
            if (token := next(left, None)) is None:
                return []
            these.append(token)
            text += token.text.strip(" \u2581")
        if text != bare:
            return []
        spelled.append(these)
    return spelled


def _known(token: "library.Token") -> float | None:
    """The probability of a token, or None if the model does not tell it."""
    return token.p if 0 < token.p <= 1 else None  # it may be NaN


def _same(words: list[str], others: Iterable[str]) -> bool:
    bare = [word.strip() for word in others]
    return bool(words) and bare == [word.strip() for word in words]
