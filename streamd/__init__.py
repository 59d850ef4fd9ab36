r"""Live captions from a Whisper model that runs on your own machine.

As a library, streamd is these names (docs/library.md)::

    from streamd import Captioner, Microphone, transcribe

    with Captioner("base.en") as captions:
        for event in captions.listen(Microphone()):
            print(event.text, end="\n" if event.is_final else "\r")

    for segment in transcribe("talk.m4a").segments:
        print(segment.start, segment.text)

They are imported when they are first used: ``import streamd`` alone loads neither numpy nor the
inference runtime.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from streamd.version import __version__ as __version__

if TYPE_CHECKING:
    from streamd.captioner import Captioner as Captioner
    from streamd.captioner import CaptionSession as CaptionSession
    from streamd.captioner import FinalCaption as FinalCaption
    from streamd.captioner import PartialCaption as PartialCaption
    from streamd.captioner import Pause as Pause
    from streamd.captioner import Speech as Speech
    from streamd.captioner import Transcript as Transcript
    from streamd.captioner import transcribe as transcribe
    from streamd.errors import ConfigError as ConfigError
    from streamd.errors import EngineError as EngineError
    from streamd.errors import ModelError as ModelError
    from streamd.errors import SourceError as SourceError
    from streamd.errors import StreamdError as StreamdError
    from streamd.events import Flushed as Flushed
    from streamd.events import Gap as Gap
    from streamd.events import Lag as Lag
    from streamd.events import Sound as Sound
    from streamd.events import SpeakerName as SpeakerName
    from streamd.events import SpeakerTurns as SpeakerTurns
    from streamd.events import TimedWord as TimedWord
    from streamd.events import TurnEvent as TurnEvent
    from streamd.events import Unclear as Unclear
    from streamd.sources.microphone import Microphone as Microphone

_HOMES = {
    "errors": ("ConfigError", "EngineError", "ModelError", "SourceError", "StreamdError"),
    "events": (
        *(
            "Flushed",
            "Gap",
            "Lag",
            "Sound",
            "SpeakerName",
            "SpeakerTurns",
            "TimedWord",
            "TurnEvent",
        ),
        "Unclear",
    ),
    "captioner": (
        *("CaptionSession", "Captioner", "FinalCaption", "PartialCaption", "Pause", "Speech"),
        *("Transcript", "transcribe"),
    ),
    "sources.microphone": ("Microphone",),
}
_HOME = {name: f"streamd.{module}" for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'streamd' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
