"""YAMNet for tests, from an export whose licence is not told: got by `make test-real`, never kept.

The export hears a log-mel, which YAMNet's own files make inside; it is made here as YAMNet's paper
and parameters say (windows of 25 ms each 10 ms, 64 bands from 125 to 7,500 Hz, log of the magnitude
plus 0.001). Inputs and outputs are rounded to 8 bits, by scales that the network's file names.
"""

from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import numpy_helper
from onnxruntime import InferenceSession

from streamd.sounds import Classify, Scores
from streamd.types import Samples

_WIDTH, _HOP, _N_FFT, _N_COLUMNS = 400, 160, 512, 96


def _mel(hz: np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(hz / 700)


def _bands() -> np.ndarray:
    edges = np.linspace(*_mel(np.array([125.0, 7500.0])), 66)
    bins = _mel(np.linspace(0, 8000, _N_FFT // 2 + 1))[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rises, falls = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return np.maximum(0, np.minimum(rises, falls))


def log_mel(samples: Samples) -> np.ndarray:
    """Return the (96, 64) log-mel of a window."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WIDTH) / _WIDTH)
    columns = sliding_window_view(samples, _WIDTH)[::_HOP][:_N_COLUMNS]
    return np.log(np.abs(np.fft.rfft(columns * hann, _N_FFT)) @ _bands() + 0.001)


def loaded(path: Path) -> Classify:
    """Return the classifier of an export."""
    kept = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    session = InferenceSession(path)
    name = session.get_inputs()[0].name

    def classify(samples: Samples) -> Scores:
        rounded = np.round(log_mel(samples) / kept["audio_scale"] + kept["audio_zero_point"])
        given = rounded.clip(0, 255).astype(np.uint8)[None, None]
        (made,) = session.run(None, {name: given})
        centred = made.reshape(-1).astype(float) - kept["class_scores_zero_point"]
        logits = centred * kept["class_scores_scale"]
        scores: Scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
        return scores

    return classify
