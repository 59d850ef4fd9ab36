"""smart-turn: a small network that tells by the sound of somebody's speech whether they are done.

It is Whisper tiny's encoder with a head, version 3.2 by Daily (models/smart-turn): it hears the
last 8 s up to the beginning of a pause, in Whisper's own log-mel, which takes a core about 0.1 s.
It was trained on turns in 23 languages, recorded for voice agents, that end with 200 ms of silence.
"""

from concurrent.futures import Future
from functools import cache, partial

import numpy as np
from onnxruntime import InferenceSession, SessionOptions

from streamd.errors import StreamdError
from streamd.system.calls import in_thread
from streamd.system.disk import asset, in_utf8
from streamd.types import SAMPLE_RATE, Samples
from streamd.whisper.mel import log_mel

_HEARD = 8 * SAMPLE_RATE
"""Samples of the model's input; a shorter turn is padded with zeros in front."""
_MORE_SILENCE = SAMPLE_RATE * 80 // 1000
"""Zeros appended to the 120 ms of silence before a prediction (`EndpointOptions.pre_final`).

The model was trained on 200 ms of silence. In two conversations it recognises 41 % of the ends
without these zeros and 48 % with them, as many as with 200 ms of the real pause
(benchmarks/RESULTS.md)."""


def smart_turn(speech: Samples) -> float:
    """Return the probability that a turn is complete.

    Parameters
    ----------
    speech
        (n,) samples of the turn so far, at 16 kHz, with 120 ms of the pause; n > 0
    """
    ((prob,),) = _model().run(None, {"input_features": log_mel(heard(speech))[None]})[0]
    return float(prob)


def begin_smart_turn(speech: Samples) -> Future[float]:
    """Begin `smart_turn` in a thread of its own, and return the future with its answer."""
    return in_thread(partial(smart_turn, speech))


def heard(speech: Samples) -> Samples:
    """Return the last 8 s in the form that the network was trained on: of mean 0 and variance 1.

    They end with 200 ms of silence. The zeros before shorter speech count, too (transformers,
    WhisperFeatureExtractor with do_normalize).
    """
    end = np.pad(speech, (_HEARD, _MORE_SILENCE))[-_HEARD:]
    normal: Samples = ((end - end.mean()) / np.sqrt(end.var() + 1e-7)).astype(np.float32)
    return normal


def has_smart_turn() -> bool:
    """Whether the weights are here; without them nothing but silence ends an utterance."""
    try:
        return bool(asset("smart-turn"))
    except StreamdError:
        return False


def release() -> None:
    """Free the model (32 MB); the next call loads it again, in 0.05 s of CPU time."""
    _model.cache_clear()


@cache
def _model() -> InferenceSession:
    """The model, loaded in the first pause in which somebody asks; all streams share it."""
    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, not printed
    # Whoever asks first would take 26 MB for good, for a tenth less time of each call.
    options.enable_cpu_mem_arena = False
    # The weights are decoded once, to 32 MB, instead of in each call.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    path = asset("smart-turn") / "smart-turn-v3.2.onnx"
    with in_utf8(path) as name:
        return InferenceSession(name, options, providers=["CPUExecutionProvider"])
