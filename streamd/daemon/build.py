"""From the configuration to the stations: the one place where ms become frames.

Stations never see `Config`; they get the numbers that they need.
"""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamd.commit import AlignAtt, CommitPolicy, LocalAgreement, Sliding
from streamd.config import Config
from streamd.engine import Engine
from streamd.engine.model import MIN_AUDIO_CTX, Model
from streamd.engine.onnx import build
from streamd.engine.prepared.precision import choose_precision
from streamd.engine.recognizer import Recognizer
from streamd.engine.reference import ReferenceEngine
from streamd.errors import ConfigError
from streamd.options import (
    AgreementOptions,
    AlignAttOptions,
    DecodingOptions,
    EndpointOptions,
    GateOptions,
    LoopLimits,
    SessionOptions,
)
from streamd.search.tokenizer import Tokenizer
from streamd.session import Session
from streamd.sources import Source
from streamd.sources.file import FileSource
from streamd.sources.microphone import Microphone
from streamd.sources.stdin import StdinSource
from streamd.types import FRAME_MS, N_AUDIO_CTX, frames_from_ms
from streamd.vad import AnySound, Gate, VoiceDetector, WebRtcVad
from streamd.vad.segmenter import Segmenter


def session_factory(config: Config) -> Callable[[], Session]:
    """What makes a session as the user wants it.

    Raises
    ------
    ConfigError : options that contradict each other
    """
    endpoint = _endpoint_options(config)
    options = SessionOptions(
        step=frames_from_ms(config.streaming.step_ms),
        length=frames_from_ms(config.streaming.length_ms),
        mask_words=config.streaming.mask_words,
        context_tokens=config.streaming.context_tokens,
        keep_context=config.streaming.keep_context,
        language_after=frames_from_ms(config.decoding.language_after_ms),
        backlog=frames_from_ms(config.streaming.backlog_ms),
    )
    return lambda: Session(gate(config), Segmenter(endpoint), _policy(config), options)


def gate(config: Config) -> Gate:
    """What tells speech from anything else."""
    vad = config.vad
    detector: VoiceDetector = (
        WebRtcVad(vad.vad_aggressiveness) if vad.vad == "webrtc" else AnySound()
    )
    off = vad.vad == "off"
    return Gate(
        detector,
        GateOptions(
            attack=frames_from_ms(vad.attack_ms),
            open_share=vad.vad_threshold,
            hangover=frames_from_ms(vad.hangover_ms),
            floor_db=-math.inf if off else vad.energy_floor_db,
            steady_db=0.0 if off else vad.steady_db,
        ),
    )


def _policy(config: Config) -> CommitPolicy:
    streaming = config.streaming
    if streaming.commit == "sliding":
        return Sliding()
    if streaming.commit == "align-att":
        threshold = frames_from_ms(streaming.frame_threshold_ms)
        return AlignAtt(AlignAttOptions(threshold, frames_from_ms(streaming.rewind_ms)))
    return LocalAgreement(
        AgreementOptions(
            agree=streaming.agreement,
            hold=frames_from_ms(streaming.hold_ms),
            min_progress=frames_from_ms(streaming.min_progress_ms),
            confident_prob=streaming.confident_prob,
            confident_age=frames_from_ms(streaming.confident_age_ms),
        )
    )


def _endpoint_options(config: Config) -> EndpointOptions:
    vad, streaming = config.vad, config.streaming
    longest, overlap = frames_from_ms(vad.max_utterance_ms), 0
    sliding = streaming.commit == "sliding"
    if sliding:
        if streaming.step_ms == 0:
            raise ConfigError("--commit sliding needs a --step, got --step 0")
        # whisper.cpp's stream breaks the line after this many steps (stream.cpp, n_new_line).
        n_steps = max(1, streaming.length_ms // streaming.step_ms - 1)
        overlap = frames_from_ms(min(streaming.keep_ms, streaming.step_ms))
        longest = n_steps * frames_from_ms(streaming.step_ms) + overlap
    plain, sentence, unfinished, empty = (
        frames_from_ms(ms)
        for ms in (
            vad.endpoint_ms,
            vad.endpoint_sentence_ms,
            vad.endpoint_unfinished_ms,
            vad.endpoint_empty_ms,
        )
    )
    return EndpointOptions(
        pre_roll=frames_from_ms(vad.pre_roll_ms),
        pre_final=frames_from_ms(vad.pre_final_ms),
        plain=plain,
        sentence=sentence,
        unfinished=unfinished,
        empty=empty,
        longest=min(longest, N_AUDIO_CTX),
        overlap=overlap,
        exact_cut=sliding,
    )


def own_sources(config: Config) -> list[Source]:
    """The audio that this machine gives, one source after the other; empty: the network's only.

    Raises
    ------
    SourceError : what can be known to be impossible before anything is opened
    """
    options = config.input
    if not options.source:
        return []
    if not options.files:
        return [microphone(config)]
    return [_source(config, name) for name in options.files]


def microphone(config: Config, *, again: bool = False) -> Microphone:
    """The user's device, `again` after it was gone."""
    return Microphone(config.input.device or None, refresh=again)


def _source(config: Config, name: str) -> Source:
    options = config.input
    if name != "-" and not Path(name).is_fifo():
        return FileSource(name, realtime=options.realtime)
    return StdinSource(
        sys.stdin.buffer if name == "-" else name,
        rate_hz=options.input_rate,
        encoding=options.input_format,
        channels=options.input_channels,
    )


def recognizer(config: Config, model: Model, runs: Engine[Any] | None = None) -> Recognizer[Any]:
    """The model with its options, on the engine that `runs` it; without one slow, as `engine` is.

    Raises
    ------
    ConfigError : the model does not know the language or the task, or hears less than a window
    EngineError : the runtime refuses the model
    """
    _check_windows(config, model)
    return Recognizer(
        runs or engine(config, model),
        tokenizer(config, model),
        decoding_options(config, model),
        initial_prompt=config.decoding.prompt,
        hotwords=config.decoding.hotwords,
    )


def _check_windows(config: Config, model: Model) -> None:
    """Refuse windows longer than what the model hears at once, if that is less than 30 s."""
    ms = model.dims.n_audio_ctx * FRAME_MS
    windows = {
        "--max-utterance-ms": config.vad.max_utterance_ms,
        "--length": config.streaming.length_ms,
    }
    too_long = [name for name, window_ms in windows.items() if window_ms > ms]
    if too_long:
        cure = " and ".join(f"{name} {ms}" for name in too_long)
        raise ConfigError(f"the model {model.name} hears only {ms} ms at once: set {cure}")


def engine(config: Config, model: Model) -> Engine[Any]:
    """What runs a model that was loaded; slow: graphs are built and weights laid out.

    Raises
    ------
    EngineError : the runtime refuses the model
    """
    o = config.decoding
    heads = model.alignment_heads
    if o.engine == "reference":
        return ReferenceEngine(model.dims, model.weights, alignment_heads=heads)
    n_threads = threads(config)
    precision = choose_precision(model.dims, o.precision, threads=n_threads).precision
    return build(
        model.dims, model.weights, alignment_heads=heads, threads=n_threads, precision=precision
    )


def workers(config: Config) -> int:
    """How many windows are transcribed at a time.

    One after the other is best for one stream, several at once for many: two windows on a thread
    each take less time than one after the other on two threads (docs/figures.md).
    """
    alone = config.input.source
    return config.decoding.workers or (1 if alone else min(2, os.cpu_count() or 1))


def threads(config: Config) -> int:
    """How many threads each window gets."""
    alone = workers(config) == 1
    return config.decoding.threads or (min(2, os.cpu_count() or 1) if alone else 1)


def tokenizer(config: Config, model: Model) -> Tokenizer:
    """The model's vocabulary, for the language and the task. Raises `ConfigError`."""
    o = config.decoding
    return Tokenizer(
        model.vocabulary,
        model.dims.n_vocab,
        multilingual=model.language is None,
        language=model.language or ("en" if o.language == "auto" else o.language),
        task=o.task,
    )


def decoding_options(config: Config, model: Model) -> DecodingOptions:
    """How windows are decoded. Raises `ConfigError` for a language that the model lacks."""
    o = config.decoding
    if model.language is not None and o.language not in ("auto", model.language):
        raise ConfigError(
            f"--language {o.language}: the model {model.name} knows {model.language} only; "
            "choose another with --model"
        )
    if model.language is not None and o.task == "translate":
        raise ConfigError(f"--translate: the model {model.name} knows {model.language} only")
    hottest = 1.0 if o.fallback else o.temperature
    rise = (hottest - o.temperature) / o.temperature_inc if o.temperature_inc else 0.0
    n_attempts = 1 + math.floor(rise + 1e-9)
    return DecodingOptions(
        language=None if o.language == "auto" else o.language,
        language_prob=o.language_prob,
        language_margin=o.language_margin,
        beam_size=o.beam_size,
        patience=o.patience,
        length_penalty=None if o.length_penalty < 0 else o.length_penalty,
        best_of=o.best_of,
        temperatures=tuple(
            round(o.temperature + i * o.temperature_inc, 4) for i in range(n_attempts)
        ),
        compression_ratio_threshold=o.compression_threshold,
        logprob_threshold=o.logprob_threshold,
        final_logprob_threshold=o.final_logprob_threshold,
        entropy_threshold=o.entropy_threshold,
        no_speech_threshold=o.no_speech_threshold,
        suppress_blank=o.suppress_blank,
        suppress_tokens=_suppressed(o.suppress_tokens, model),
        begin_suppress_tokens=model.begin_suppress_tokens,
        max_tokens=o.max_tokens,
        tokens_per_second=o.tokens_per_second,
        stability=config.streaming.stability,
        loops=LoopLimits(
            word_repeats=o.loop_word_repeats,
            phrase_words=o.loop_phrase_words,
            stuck_tokens=o.loop_stuck_tokens,
            compression=o.loop_compression,
        ),
        audio_ctx=o.audio_ctx,
        audio_ctx_pad=o.audio_ctx_pad,
        audio_ctx_floor=o.audio_ctx_floor or max(MIN_AUDIO_CTX, model.min_audio_ctx),
    )


def _suppressed(tokens: tuple[int, ...], model: Model) -> tuple[int, ...]:
    """-1 stands for what the model's own files want to be suppressed, if they say it."""
    if unknown := [token for token in tokens if token >= model.dims.n_vocab]:
        last = model.dims.n_vocab - 1
        raise ConfigError(f"--suppress-tokens {unknown[0]}: {model.name}'s tokens end at {last}")
    own = model.suppress_tokens
    if -1 not in tokens or own is None:
        return tokens
    return (*(token for token in tokens if token != -1), *own)
