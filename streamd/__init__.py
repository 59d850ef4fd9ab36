"""Live captions from a Whisper model that runs on your own machine."""

__version__ = "0.1.0"
