"""Voice activity: per-frame decisions (`webrtc`, `energy`) and the gate over them (`gate`)."""

from typing import Protocol

from streamd.types import Samples


class Vad(Protocol):
    """Says of one frame at a time whether somebody speaks in it."""

    def __call__(self, frame: Samples) -> bool:
        """Decide about the next frame, (320,) float32. Frames come in order, without holes."""
        ...
