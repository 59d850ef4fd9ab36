"""Silero VAD, a network that tells speech from music and noise, with its weights and licence."""

from streamd.engines.silero.silero import Silero

__all__ = ["Silero"]
