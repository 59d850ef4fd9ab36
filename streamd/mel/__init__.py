"""Log-mel features: `spectrogram` (one call, the norm) and `cache` (a stream's windows overlap)."""

from streamd.mel.cache import MelCache
from streamd.mel.spectrogram import log_mel

__all__ = ["MelCache", "log_mel"]
