"""Measures models: the time of a streaming step, and the words that are wrong.

Experiments with streams, latencies and load are programs in ``benchmarks/``. A step is spectrogram,
encoder, decoder and words, as the daemon runs them; windows of 5 s follow each other every 500 ms.
Hypotheses must have the same length whatever the weights are, so each pass of the encoder and the
decoder is made, and its logits and attention are replaced by those of a decoder that finds a word
of one token in every `PACE` frames. Like a real decoder it gets the newest word wrong, because the
end of the window cuts it off. The draft is the previous hypothesis: of its 18 tokens that are still
in the window the first pass verifies 17, and 3 more are decoded one by one.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import count, islice
from typing import Any, Generic

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.models.model import Model
from streamd.options import DecodingOptions
from streamd.system.processor import machine
from streamd.types import FRAME, Hypothesis, Mel, Samples, Window, frames_from_ms
from streamd.whisper.engine import Alignment, Decoder, Engine, FeaturesT, Logits
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer

LENGTH_MS, STEP_MS = 5_000, 500
PACE = 12.5
"""Frames per word: 4 words a second, 20 in a window of 5 s."""
_N_WARM = 2
"""Steps that are not counted: the runtime plans its memory in the first."""
_N_SOUNDS = 20
"""Steps after which the sound repeats."""
_CERTAIN = np.float32(30.0)


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over `n_steps` steps, in ms; `best_ms` is the fastest step.

    `cpu_ms` is the CPU time of all threads, which other programs change little. `rest_ms` is the
    time outside the engine: spectrogram, rules, words. A hypothesis has `tokens` tokens and takes
    `passes` passes of the decoder.
    """

    step_ms: float
    best_ms: float
    p95_ms: float
    encode_ms: float
    decode_ms: float
    rest_ms: float
    cpu_ms: float
    n_steps: int
    tokens: int
    passes: float


class StepBench(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a model: as in a stream, without a draft, and at the full encoder context.

    `rtf` is the real-time factor: the time of a step of a stream over the audio that it adds.
    `load_s` is the time to open the model, `encoder_ms` is the encoder alone at the full context.
    """

    model: str
    load_s: float
    rtf: float
    step: StepTimes
    undrafted: StepTimes
    full: StepTimes
    encoder_ms: float


@dataclass(slots=True)
class Costs:
    """Seconds in the engine, passes of the decoder, and CPU seconds of all threads."""

    encode_s: float = 0.0
    decode_s: float = 0.0
    passes: int = 0
    cpu_s: float = 0.0


@dataclass(slots=True)
class _Script:
    """The words of a stream: word n is token ``right[n % len(right)]``, or `wrong` if cut off."""

    right: Sequence[int]
    wrong: int
    eot: int
    window: Window = field(default_factory=lambda: Window(0, 0, np.zeros(0, np.float32)))

    def after(self, token: int) -> tuple[int, int]:
        """Return the token that follows `token`, and its frame in the stream."""
        window, n = self.window, len(self.right)
        first = int(np.ceil(window.start / PACE - 0.5))
        end = int(np.ceil(window.end / PACE - 0.5))
        if token in self.right:
            # A token stands for every n-th word of the stream; the one nearest to the window is
            # meant, which may lie before it, in the prompt.
            word = first + (self.right.index(token) - first + n // 2) % n - n // 2 + 1
        else:
            word = end if token == self.wrong else first
        word = max(word, first)
        frame = min(int((word + 0.5) * PACE), window.end - 1)
        if word >= end:
            return self.eot, window.end - 1
        is_whole = word < end - 1 or window.last
        return (self.right[word % n] if is_whole else self.wrong), frame


class ScriptedEngine(Generic[FeaturesT]):
    """An `Engine` that runs another engine, and replaces its logits and attention."""

    def __init__(self, engine: Engine[FeaturesT], script: _Script) -> None:
        self.dims = engine.dims
        self.costs = Costs()
        self._engine, self._script = engine, script

    def encode(
        self, mel: Mel, *, audio_ctx: int = 0, known: FeaturesT | None = None, n_known: int = 0
    ) -> FeaturesT:
        """Encode, and add the time to `costs`."""
        begun_s = time.perf_counter()
        features = self._engine.encode(mel, audio_ctx=audio_ctx, known=known, n_known=n_known)
        self.costs.encode_s += time.perf_counter() - begun_s
        return features

    def decoder(self, features: FeaturesT, n_slots: int) -> Decoder:
        """Return a decoder that runs the real one."""
        begun_s = time.perf_counter()
        decoder = self._engine.decoder(features, n_slots)
        self.costs.decode_s += time.perf_counter() - begun_s
        return _ScriptedDecoder(decoder, self._script, self.costs)


class _ScriptedDecoder:
    def __init__(self, decoder: Decoder, script: _Script, costs: Costs) -> None:
        self.n_vocab, self.n_text_ctx = decoder.n_vocab, decoder.n_text_ctx
        self.n_slots = decoder.n_slots
        self._decoder, self._script, self._costs = decoder, script, costs

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
    ) -> tuple[Logits, Alignment]:
        begun_s = time.perf_counter()
        logits, alignment = self._decoder.step(tokens, positions, slots, visible, want)
        self._costs.decode_s += time.perf_counter() - begun_s
        self._costs.passes += 1
        script = self._script
        following = [script.after(int(token)) for token in tokens]
        alignment = np.zeros_like(alignment)
        for row, (_, frame) in enumerate(following):
            at = min(max(frame - script.window.start, 0), alignment.shape[2] - 1)
            # The word's time is found from a peak with soft flanks, as real attention has.
            alignment[row, :, max(0, at - 4) : at + 5] = _CERTAIN / 4
            alignment[row, :, at] = _CERTAIN / 2
        logits = np.zeros_like(logits)
        for row, wanted in enumerate(want):
            logits[row, following[wanted][0]] = _CERTAIN
        return logits, alignment

    def adopt(self, before: Decoder, n: int) -> bool:
        return isinstance(before, _ScriptedDecoder) and self._decoder.adopt(before._decoder, n)


class ScriptedRecognizer:
    """The real recognizer on a scripted engine."""

    def __init__(self, engine: Engine[Any], tokenizer: Tokenizer, options: DecodingOptions) -> None:
        *right, wrong = _words(tokenizer)
        self._script = _Script(right, wrong, tokenizer.eot)
        self.engine = ScriptedEngine(engine, self._script)
        self._recognizer = Recognizer(self.engine, tokenizer, options)
        self.counters = self._recognizer.counters

    def recognize(self, window: Window) -> Hypothesis:
        """Return the words of the script in this window."""
        self._script.window = window
        return self._recognizer.recognize(window)


def steps(
    recognizer: ScriptedRecognizer, *, draft: bool = True
) -> Iterator[tuple[float, Costs, int]]:
    """Run the steps of a stream that never pauses: yield seconds, costs and number of tokens.

    Without a `draft` each token needs a pass of its own.
    """
    length, step = frames_from_ms(LENGTH_MS), frames_from_ms(STEP_MS)
    sound = noise(length + _N_SOUNDS * step)
    drafted: tuple[int, ...] = ()
    for start in count(step=step):
        at = start % (_N_SOUNDS * step) * FRAME
        window = Window(start, start + length, sound[at : at + length * FRAME], draft=drafted)
        costs = recognizer.engine.costs = Costs()
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        hypothesis = recognizer.recognize(window)
        took_s, costs.cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        yield took_s, costs, len(hypothesis.tokens)
        # Words whose middle the next window no longer contains are not part of its draft.
        gone = sum(word.start + word.end < 2 * (start + step) for word in hypothesis.words)
        if draft:
            drafted = tuple(t for word in hypothesis.words[gone:] for t in word.tokens)


def measure_steps(
    recognizer: ScriptedRecognizer, *, n_steps: int = 20, draft: bool = True
) -> StepTimes:
    """Time `n_steps` steps after a few that warm up."""
    rows = list(islice(steps(recognizer, draft=draft), _N_WARM, _N_WARM + n_steps))
    total, encode, decode, cpu, passes = np.array(
        [(took_s, c.encode_s, c.decode_s, c.cpu_s, c.passes) for took_s, c, _ in rows]
    ).T
    return StepTimes(
        step_ms=_ms(np.median(total)),
        best_ms=_ms(total.min()),
        p95_ms=_ms(np.percentile(total, 95)),
        encode_ms=_ms(np.median(encode)),
        decode_ms=_ms(np.median(decode)),
        rest_ms=_ms(np.median(total - encode - decode)),
        cpu_ms=_ms(np.median(cpu)),
        n_steps=n_steps,
        tokens=rows[-1][2],
        passes=round(float(np.mean(passes)), 1),
    )


def measure_encoder(engine: Engine[Any], *, n: int = 5) -> float:
    """Return the median ms of the encoder and the cross-attention's keys and values, in full."""
    n_columns = 2 * engine.dims.n_audio_ctx
    mel = np.random.default_rng(7).standard_normal((engine.dims.n_mels, n_columns))
    times = []
    for _ in range(n + 1):
        begun_s = time.perf_counter()
        engine.encode(mel.astype(np.float32))
        times.append(time.perf_counter() - begun_s)
    return _ms(np.median(times[1:]))


def bench_step(config: Config, model: Model | None = None, *, n_steps: int = 20) -> StepBench:
    """Open the configured model, or `model` on the configured engine, and measure its steps.

    Raises as `open_model` does.
    """
    begun_s = time.perf_counter()
    if model is None:
        model, engine = open_model(config, settled=True)
    else:
        engine = build.engine(config, model)
    load_s = round(time.perf_counter() - begun_s, 3)
    tokenizer, options = build.tokenizer(config, model), build.decoding_options(config, model)
    n_few = max(2, n_steps // 4)
    live = ScriptedRecognizer(engine, tokenizer, options)
    whole = ScriptedRecognizer(
        engine, tokenizer, replace(options, audio_ctx=model.dims.n_audio_ctx)
    )
    step = measure_steps(live, n_steps=n_steps)
    return StepBench(
        model=model.name,
        load_s=load_s,
        rtf=round(step.step_ms / STEP_MS, 4),
        step=step,
        undrafted=measure_steps(live, n_steps=n_few, draft=False),
        full=measure_steps(whole, n_steps=n_few),
        encoder_ms=measure_encoder(engine, n=n_few),
    )


def step_table(result: StepBench) -> str:
    """Return the result as a table for a terminal."""
    columns = ("step", "best", "p95", "encode", "decode", "rest", "cpu")
    head = " ".join(f"{name.replace('cpu', 'CPU'):>8}" for name in columns)
    lines = [f"{result.model:28} {head}  tokens passes"]
    for name, row in (
        ("a step of a stream, ms", result.step),
        ("without a draft", result.undrafted),
        ("at the full context", result.full),
    ):
        times = " ".join(f"{getattr(row, f'{column}_ms'):8.1f}" for column in columns)
        lines.append(f"{name:28} {times} {row.tokens:7} {row.passes:6}")
    return "\n".join(
        (
            *lines,
            f"{'encoder, full context':28} {result.encoder_ms:8.1f} ms",
            f"{'loading':28} {result.load_s:8.2f} s",
            f"{'real-time factor':28} {result.rtf:8.2f}  a step is {STEP_MS} ms of audio; "
            "above 1 captions fall behind\n",
        )
    )


def step_json(result: StepBench) -> str:
    """Return the result and the machine as one line of JSON."""
    return msgspec.json.encode({"machine": machine(), "step": result}).decode()


def noise(n_frames: int) -> Samples:
    """Return noise that is the same in every run; the cost does not depend on the sound."""
    rng = np.random.default_rng(7)
    return (rng.standard_normal(n_frames * FRAME) * 0.05).astype(np.float32)


def _words(tokenizer: Tokenizer, n: int = 121) -> list[int]:
    """Return the first `n` tokens that are words of at least two letters with a leading blank.

    121 is more than a prompt and a window hold together, so that a token says which word it is.
    """
    texts = (tokenizer.decode([token]) for token in range(tokenizer.eot))
    found = (token for token, text in enumerate(texts) if re.fullmatch(" [A-Za-z]{2,}", text))
    return list(islice(found, n))


def _ms(seconds: np.floating) -> float:
    return round(float(seconds) * 1000, 2)


# -- the words ------------------------------------------------------------------------------------

_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff])")
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which put no spaces between words."""


def spoken(text: str) -> list[str]:
    """Return the words of a text as they are compared, whatever their spelling.

    Whisper's English normaliser removes case, punctuation and fillers, and unifies contractions,
    numbers and British spelling. It does not group digits ("10001 90210" and "1000190210" sound the
    same), so each digit of a number counts as a word. In scripts without spaces each letter does.
    Source: openai/whisper ``normalizers``.
    """
    return list(_spoken(text))


@lru_cache(maxsize=10_000)  # latencies look at each word of each partial
def _spoken(text: str) -> tuple[str, ...]:
    english, basic = normalizers()
    normal = basic(_UNSPACED.sub(r" \1 ", text)) if _UNSPACED.search(text) else english(text)
    words: list[str] = []
    for word in normal.split():
        if word.isdecimal():
            words += word
        elif word == "one":  # the normaliser's spelling of a 1 that stands alone
            words.append("1")
        elif any(map(str.isalnum, word)):
            words.append(word)
    return tuple(words)


@cache
def normalizers() -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return Whisper's text normalisers: for English, and for all other languages."""
    # Imported here because it takes a tenth of a second. Python warns of invalid escapes in the
    # package's strings whenever it compiles them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    return EnglishTextNormalizer(), BasicTextNormalizer()


def n_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Count substituted, deleted and inserted words."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference):
        diagonal, row[0] = row[0], i + 1
        for j, other in enumerate(hypothesis):
            cost = min(diagonal + (word != other), row[j] + 1, row[j + 1] + 1)
            diagonal, row[j + 1] = row[j + 1], cost
    return row[-1]
