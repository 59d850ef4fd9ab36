"""Transcribes whole recordings, window after window, as openai-whisper's `transcribe` does.

With the same options the tokens, segments and word times are the same, unless the caller says where
somebody speaks: then speech that a window's text passes over is decoded again. Unlike the
recognizer of live streams it knows what was said before and where a window has to begin, and it
believes the model: none of the guards of live captions are here. Times are milliseconds since the
recording began, places in it columns of log-mel (10 ms). Source: openai/whisper ``transcribe.py``.
"""

from streamd.engine.longform.clips import Clip, SpeechClips, clips_at, whole
from streamd.engine.longform.segments import SpokenWord, TimedSegment
from streamd.engine.longform.transcriber import TranscribedWindow, Transcriber

__all__ = [
    "Clip",
    "SpeechClips",
    "SpokenWord",
    "TimedSegment",
    "TranscribedWindow",
    "Transcriber",
    "clips_at",
    "whole",
]
