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


@contextmanager
def loudspeaker() -> Iterator[Callable[[Frames], None] | None]:
    """Give a function that plays frames, or None, with a message, where nothing can be heard."""
    # Between the loop, which puts samples, and PortAudio's thread, which takes them.
    waiting: deque[float] = deque()

    def fill(out: NDArray[np.float32], *_: Any) -> None:  # noqa: ANN401 - PortAudio's
        n = min(len(out), len(waiting))
        out[:n, 0] = [waiting.popleft() for _ in range(n)]
        out[n:] = 0  # what has not come yet is silence

    try:
        portaudio = load_portaudio()
        try:
            stream = portaudio.OutputStream(
                samplerate=SAMPLE_RATE, channels=1, dtype="float32", callback=fill
            )
            stream.start()
        except portaudio.PortAudioError as error:
            raise SourceError(str(error.args[0])) from None
    except SourceError as error:
        log.warning("no sound: is there a loudspeaker? (%s)", error)
        yield None
        return
    try:
        yield lambda frames: waiting.extend(frames.reshape(-1).tolist())
    finally:
        stream.stop()
        stream.close()
