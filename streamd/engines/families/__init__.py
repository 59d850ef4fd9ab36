"""Models of other families than Whisper, run by the library transcribe.cpp (the extra `families`).

Some are made for streaming (Moonshine Streaming, Nemotron): a stream stays open for an utterance
and gets only new samples, and the model itself says which words it will not change. The others
(Parakeet TDT, Canary, Qwen3-ASR, and Whisper itself) read an utterance anew in each window.
`recognizer` makes hypotheses of both; it knows only the interface of `said`, so that it can be
tested without the library, which `library` alone imports.
"""

from streamd.engines.families.recognizer import FamilyRecognizer
from streamd.engines.families.said import Abilities, FamilyModel, Said

__all__ = ["Abilities", "FamilyModel", "FamilyRecognizer", "Said"]
