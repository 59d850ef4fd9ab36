"""YAMNet on LiteRT: what is heard in a second of audio, as probabilities of AudioSet's classes.

Google's network (Apache-2.0, models/yamnet) is a TensorFlow Lite file that takes samples: its
log-mel is in it. It is not in the wheel: `streamd models get sounds` downloads it. LiteRT
(the extra "sounds") runs it, in 2 to 3 ms for each 0.48 s of a stream.
"""

from collections.abc import Iterable
from functools import cache, partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from streamd.errors import ConfigError, ModelError, how_to_install
from streamd.events import Sound
from streamd.models.sounds import NAME, network
from streamd.sounds import WINDOW, Classify, Scores, SoundTracker, SoundWindow, SoundWindows
from streamd.system.disk import in_utf8
from streamd.system.stdio import quiet_libraries
from streamd.types import Frames, Samples, ms_from_frames

_N_CLASSES = 521
_LIBRARY = "ai_edge_litert"


def check_sounds() -> None:
    """Raise `ConfigError` if LiteRT is not installed, `ModelError` if the network is not here."""
    if find_spec(_LIBRARY) is None:
        raise ConfigError(f"--sounds needs a library: {how_to_install('sounds')}")
    if network() is None:
        raise ModelError(f"--sounds needs YAMNet; run: streamd models get {NAME}")


def classify(samples: Samples) -> Scores:
    """Return the (521,) probabilities for a window of (15600,) samples; one thread at a time.

    Raises `ModelError` if the network is not here or is another one.
    """
    return _classifier()(samples)


class RecordedSounds:
    """Hears the sounds of a whole recording while it is read."""

    def __init__(self, classify: Classify = classify) -> None:
        self._classify, self._windows, self._tracker = classify, SoundWindows(), SoundTracker()
        self._told: dict[tuple[str, int], Sound] = {}
        self._n_frames = 0

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        self._hear(self._windows.feed(frames, ms_from_frames(self._n_frames)))
        self._n_frames += len(frames)

    def _hear(self, windows: Iterable[SoundWindow]) -> None:
        for sound in self._tracker.hear(windows, self._classify):
            self._told[sound.label, sound.start_ms] = sound

    def sounds(self) -> list[Sound]:
        """Return all sounds, in the order in which they begin; nothing follows."""
        self._hear(self._windows.rest())
        return sorted(self._told.values(), key=attrgetter("start_ms"))


def release() -> None:
    """Free the network; the next call loads it again."""
    _classifier.cache_clear()


@cache
def _classifier() -> Classify:
    """The network, loaded for the first window."""
    path = network()
    if path is None:
        raise ModelError(f"YAMNet is not here; run: streamd models get {NAME}")
    return load(path)


def load(path: Path) -> Classify:
    """Load a network.

    Raises `ModelError` if it is damaged or none that takes 0.975 s and knows 521 classes.
    """
    from ai_edge_litert.interpreter import Interpreter  # optional

    wrong = f"{path}: not YAMNet as Google publishes it for TensorFlow Lite"
    try:
        with in_utf8(path) as file, quiet_libraries():  # it tells which delegate it has chosen
            made = Interpreter(model_path=file, num_threads=1)
            made.allocate_tensors()
        given, wanted = made.get_input_details(), made.get_output_details()
    except (ValueError, RuntimeError) as error:
        raise ModelError(wrong) from error
    shapes = tuple(given[0]["shape"]), tuple(wanted[0]["shape"])
    are_floats = given[0]["dtype"] == wanted[0]["dtype"] == np.float32
    if shapes != ((WINDOW,), (1, _N_CLASSES)) or not are_floats:
        raise ModelError(wrong)
    return partial(_scores, made, given[0]["index"], wanted[0]["index"])


def _scores(network: Any, given: int, wanted: int, samples: Samples) -> Scores:  # noqa: ANN401 - without types
    network.set_tensor(given, samples)
    network.invoke()
    scores: Scores = network.get_tensor(wanted)[0]
    return scores
