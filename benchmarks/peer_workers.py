"""One program in its process, told what to do by JSON: ``peer_workers.py NAME FOLDER THREADS``.

FOLDER is what `peer_weights.py` wrote. A request is ``{"do": "step", ...}``; the answer to each is
one line, with what was measured. Every program gets the same 5 s of speech and writes at most 20
tokens, greedily, without timestamps and without a second try; how each is brought to that is said
at its class, and what streamd does in a live stream. Of whole recordings each writes what it does
by itself.
"""

import json
import math
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np
import soundfile

from streamd.engines.precision import LIVE_WINDOW
from streamd.engines.prepared import bundled_speech
from streamd.types import FRAME, Hypothesis, Window

N_TOKENS = 20
WINDOW = bundled_speech()[: 250 * FRAME]
_NEW_TOKENS = 3
"""What a window of a live stream decodes: benchmarks/RESULTS.md, "A window of real speech"."""


class Peer(Protocol):
    """A program with a model, loaded; `about` is what it says of itself."""

    about: str

    def step(self, ctx: int) -> int:
        """Transcribe the window at an encoder context (0: the usual); how many tokens it wrote."""
        ...

    def encode(self) -> None:
        """The encoder alone, at its full context."""
        ...

    def text(self, path: str) -> str:
        """What is said in a whole recording, greedily, otherwise as the program does by itself."""
        ...


class WhisperCpp:
    """pywhispercpp. `max_tokens` stops it; its fallback is off.

    Timestamps are off too: with random weights it would write nothing else, by the rule that their
    summed probability must not exceed the best word's.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        import _pywhispercpp as native
        from pywhispercpp.model import Model

        path = str(folder / "ggml-model.bin")
        self._model = Model(path, n_threads=threads, redirect_whispercpp_logs_to=None)
        self._native, self._threads = native, threads
        self.about = native.whisper_print_system_info()

    def _run(self, samples: np.ndarray, params: dict[str, int]) -> list[Any]:
        usual = {"temperature_inc": 0.0, "no_timestamps": True, "no_context": True}
        return self._model.transcribe(samples, **usual, print_progress=False, **params)

    def step(self, ctx: int) -> int:
        """One window."""
        self._run(WINDOW, {"single_segment": True, "audio_ctx": ctx, "max_tokens": N_TOKENS - 1})
        context, native = self._model._ctx, self._native
        n = range(native.whisper_full_n_segments(context))
        return sum(native.whisper_full_n_tokens(context, i) for i in n)

    def encode(self) -> None:
        """The encoder."""
        # the spectrogram is made anew as well: it lasts a few ms of hundreds
        native, context = self._native, self._model._ctx
        native.whisper_pcm_to_mel(context, WINDOW, len(WINDOW), self._threads)
        native.whisper_encode(context, 0, self._threads)

    def text(self, path: str) -> str:
        """What is said."""
        # pywhispercpp keeps the parameters of earlier calls
        usual = {"temperature_inc": 0.2, "no_timestamps": False, "no_context": False}
        limits = {"single_segment": False, "audio_ctx": 0, "max_tokens": 0}
        said = self._model.transcribe(_samples(path), **usual, **limits, print_progress=False)
        return " ".join(segment.text.strip() for segment in said)


class FasterWhisper:
    """faster-whisper in int8. CTranslate2 takes half of its length limit for the prompt."""

    def __init__(self, folder: Path, threads: int) -> None:
        from faster_whisper import WhisperModel

        self._model = WhisperModel(
            str(folder / "ct2"), device="cpu", compute_type="int8", cpu_threads=threads
        )
        self.about = f"compute_type {self._model.model.compute_type}"

    def _run(self, samples: np.ndarray, params: dict[str, int | None]) -> list[Any]:
        segments, _ = self._model.transcribe(
            samples, language="en", beam_size=1, temperature=0.0, without_timestamps=True,
            condition_on_previous_text=False, **params,
        )  # fmt: skip
        return list(segments)

    def step(self, ctx: int) -> int:
        """One window."""
        # it has no encoder context to choose, but the length of its chunks in whole seconds
        chunk = ctx // 50 or None
        n_prompt = 2 if not self._model.model.is_multilingual else 4
        more = {"max_new_tokens": 2 * N_TOKENS - n_prompt, "chunk_length": chunk}
        return sum(len(segment.tokens) for segment in self._run(WINDOW, more))

    def encode(self) -> None:
        """The encoder."""
        features = self._model.feature_extractor(WINDOW)
        self._model.encode(np.pad(features, ((0, 0), (0, 3000)))[:, :3000])

    def text(self, path: str) -> str:
        """What is said."""
        segments, _ = self._model.transcribe(_samples(path), language="en", beam_size=1)
        return " ".join(segment.text.strip() for segment in segments)


class OpenAiWhisper:
    """openai-whisper on torch in float32; `sample_len` stops it."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import whisper

        torch.set_num_threads(threads)
        self._model = whisper.load_model(str(folder / f"{folder.name}.pt"), device="cpu")
        self._whisper, self._torch = whisper, torch
        self.about = f"torch {torch.__version__}"

        self._mel = lambda samples: whisper.log_mel_spectrogram(
            whisper.pad_or_trim(samples), self._model.dims.n_mels
        )

    def step(self, ctx: int) -> int:
        """One window."""
        if ctx:
            raise ValueError("openai-whisper has only its full context")
        options = self._whisper.DecodingOptions(
            language="en", without_timestamps=True, fp16=False, sample_len=N_TOKENS
        )
        return len(self._whisper.decode(self._model, self._mel(WINDOW), options).tokens)

    def encode(self) -> None:
        """The encoder."""
        with self._torch.no_grad():
            self._model.encoder(self._mel(WINDOW)[None])

    def text(self, path: str) -> str:
        """What is said."""
        result = self._model.transcribe(_samples(path), language="en", fp16=False)
        return str(result["text"])


class Streamd:
    """streamd. `_SPARE_TOKENS` stops it; windows that go on have no second try.

    `ctx` 0 is what it chooses. A step is a window of a live stream: longer than `WINDOW`, but half
    a second later than the one before, whose text is given and whose states are kept.
    ``streamd-alone`` transcribes `WINDOW`, as the others do.
    """

    def __init__(self, folder: Path, threads: int, *, alone: bool = False) -> None:
        from streamd.config import load
        from streamd.daemon import build
        from streamd.daemon.opening import open_model
        from streamd.daemon.recording import FileTranscriber
        from streamd.whisper.recognizer import Recognizer

        given = {"threads": str(threads), "model": str(folder / "hf"), "language": "en"}
        config = load(given | {"compute": "cpu"}, {})
        model, self._engine = open_model(config)
        tokenizer = build.tokenizer(config, model)
        # What random weights write is kept, too.
        options = replace(
            build.decoding_options(config, model),
            no_speech_threshold=1.0, least_evidence=-math.inf, loops=False,
        )  # fmt: skip

        def recognize(window: Window, max_tokens: int) -> Hypothesis:
            limits = {"token_rate": lambda *_: 1e-9, "_SPARE_TOKENS": max_tokens - 1}
            with mock.patch.multiple("streamd.whisper.recognizer", **limits):
                return Recognizer(self._engine, tokenizer, options).recognize(window)

        self._step = partial(recognize, Window(0, 250, WINDOW), N_TOKENS)
        if not alone:
            n, speech = LIVE_WINDOW.n_frames, bundled_speech()
            before = Window(0, n - 25, speech[: (n - 25) * FRAME])
            said = recognize(before, LIVE_WINDOW.n_given)
            window = Window(
                0, n, speech[: n * FRAME], prefix=said.tokens, prefix_end=n - 100,
                encoded=said.encoded,
            )  # fmt: skip
            self._step = partial(recognize, window, _NEW_TOKENS)
        self._writer = FileTranscriber(config, model, self._engine)
        self._mel = np.zeros((model.dims.n_mels, 2 * model.dims.n_audio_ctx), np.float32)
        self.about = f"precision {config.decoding.precision}"

    def step(self, ctx: int) -> int:
        """One window."""
        if ctx:
            raise ValueError("streamd chooses its context itself")
        return len(self._step().tokens)

    def encode(self) -> None:
        """The encoder."""
        self._engine.encode(self._mel)

    def text(self, path: str) -> str:
        """What is said."""
        from runs import finals_of, read_whole

        recording = read_whole(self._writer, Path(path))
        return " ".join(final.text for final in finals_of(self._writer, recording))


PEERS = {
    "streamd": Streamd,
    "streamd-alone": partial(Streamd, alone=True),
    "whisper.cpp": WhisperCpp,
    "whisper.cpp native": WhisperCpp,
    "faster-whisper": FasterWhisper,
    "openai-whisper": OpenAiWhisper,
}


def _samples(path: str) -> np.ndarray:
    """A recording of 16 kHz, mono."""
    return soundfile.read(path, dtype="float32")[0]


def resident_mb(peak: bool = False) -> float:
    """Resident memory of this process, now or at most (Linux)."""
    wanted = "VmHWM" if peak else "VmRSS"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(wanted):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def answer(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for, and say how long it took."""
    told: dict[str, Any] = {}
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    match request["do"]:
        case "step":
            told["tokens"] = peer.step(request["ctx"])
        case "encode":
            peer.encode()
        case "text":
            told["text"] = peer.text(request["file"])
    told["ms"] = round((time.perf_counter() - begun_s) * 1000, 2)
    told["cpu_ms"] = round((time.process_time() - cpu_s) * 1000, 2)
    return told | {"rss_mb": resident_mb(), "peak_mb": resident_mb(peak=True)}


def main() -> None:
    """Serve requests until there are no more."""
    name, folder, threads = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the programs print as they like
    begun_s = time.perf_counter()
    peer: Peer = PEERS[name](Path(folder), int(threads))
    ready = {"ms": round((time.perf_counter() - begun_s) * 1000, 1), "about": peer.about}
    print(json.dumps(ready), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
