"""Google's WebRTC voice activity detector (the `webrtcvad-wheels` distribution)."""

import numpy as np
import webrtcvad

from streamd.types import SAMPLE_RATE, Samples


class WebRtcVad:
    """A Gaussian-mixture detector that adapts to the noise of its stream: one per stream."""

    def __init__(self, aggressiveness: int = 2) -> None:
        """`aggressiveness` 0 (lets most through) to 3 (lets least through)."""
        self._vad = webrtcvad.Vad(aggressiveness)

    def __call__(self, frame: Samples) -> bool:
        """Decide about one frame, (320,) float32."""
        pcm = (np.clip(frame, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
        return bool(self._vad.is_speech(pcm, SAMPLE_RATE))
