"""Audio sources: a `microphone`, a `file` or address, `stdin`.

A source delivers whole frames in order, every sample once, and reports audio that it lost (`Lost`).
Audio from the network comes through the server instead.
"""

from streamd.sources.source import FrameStream, Lost, NextBlock, Source

__all__ = ["FrameStream", "Lost", "NextBlock", "Source"]
