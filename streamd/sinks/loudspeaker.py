"""What a file sounds like while it is captioned, through PortAudio."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.sources.microphone import load_portaudio
from streamd.types import SAMPLE_RATE, Frames

log = logging.getLogger(__name__)


class _Waiting:
    """Samples between the loop, which puts frames, and PortAudio's thread, which takes them."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque()

    def put(self, frames: Frames) -> None:
        """Take the next (n, 320) frames."""
        self._samples.extend(frames.reshape(-1).tolist())

    def fill(self, out: NDArray[np.float32], *_: Any) -> None:  # noqa: ANN401 - PortAudio's
        """Fill (n, 1) samples; what has not come yet is silence."""
        n = min(len(out), len(self._samples))
        out[:n, 0] = [self._samples.popleft() for _ in range(n)]
        out[n:] = 0


@contextmanager
def loudspeaker() -> Iterator[Callable[[Frames], None] | None]:
    """Give a function that plays frames, or None, with a message, where nothing can be heard."""
    waiting, stream = _Waiting(), None
    try:
        portaudio = load_portaudio()
        try:
            stream = portaudio.OutputStream(
                samplerate=SAMPLE_RATE, channels=1, dtype="float32", callback=waiting.fill
            )
            stream.start()
        except portaudio.PortAudioError as error:
            raise SourceError(str(error.args[0])) from None
    except SourceError as error:
        log.warning("no sound: is there a loudspeaker? (%s)", error)
        yield None
        return
    try:
        yield waiting.put
    finally:
        stream.stop()
        stream.close()
