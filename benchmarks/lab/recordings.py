"""Sound with what is said in it: for each word, where anybody knows it, when.

Beside ``talk.flac`` lies ``talk.json`` or ``talk.txt``. JSON: ``words`` ([word, start_s, end_s]) or
``clips`` (text, start_ms, end_ms), as in tests/speech/recording.json. Words without times get those
of an offline pass of the model, where it has them right; so their latencies measure streaming, not
the model's sense of time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import soundfile
import soxr

from lab.latency import SpokenWord
from streamd.cli.bench import spoken
from streamd.errors import ConfigError, SourceError
from streamd.types import FRAME, FRAME_MS, SAMPLE_RATE, Frames, ms_from_frames


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a recording, and what is said in it."""

    start_ms: int
    end_ms: int
    text: str


class _Notes(msgspec.Struct, frozen=True, kw_only=True):
    words: list[tuple[str, float, float]] = []
    clips: list[Clip] = []


@dataclass(frozen=True, slots=True)
class Recording:
    """A sound; `clips` lie apart and cover all that is said, if the words have no times.

    `text` is all of it.
    """

    name: str
    frames: Frames
    words: tuple[SpokenWord, ...]
    clips: tuple[Clip, ...] = ()
    text: str = ""

    @property
    def audio_ms(self) -> int:
        """Return how long it is."""
        return ms_from_frames(len(self.frames))


def read_recording(path: Path) -> Recording:
    """A sound file and the notes beside it; without notes nothing is known of its words.

    Raises
    ------
    SourceError : the sound cannot be read
    ConfigError : the notes cannot be read
    """
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.LibsndfileError) as error:
        raise SourceError(f"{path}: cannot be read as audio ({error})") from error
    mono = samples.mean(axis=1)
    if rate != SAMPLE_RATE:
        mono = soxr.resample(mono, rate, SAMPLE_RATE)
    frames = np.pad(mono, (0, -len(mono) % FRAME)).astype(np.float32).reshape(-1, FRAME)
    text, notes = path.with_suffix(".txt"), path.with_suffix(".json")
    if notes.exists():
        return _noted(path, frames, _read_notes(notes))
    said = text.read_text() if text.exists() else ""
    clips = [Clip(start_ms=0, end_ms=len(frames) * FRAME_MS, text=said)] if said.strip() else []
    return of_clips(path.name, frames, clips)


def of_clips(name: str, frames: Frames, clips: Sequence[Clip]) -> Recording:
    """A sound whose words are those of its clips; when each is said, nobody knows yet."""
    words = (SpokenWord(word) for clip in clips for word in spoken(clip.text))
    text = " ".join(clip.text for clip in clips)
    return Recording(name, frames, tuple(words), tuple(clips), text)


def _read_notes(path: Path) -> _Notes:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Notes)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: needs words or clips: {error}") from error


def _noted(path: Path, frames: Frames, notes: _Notes) -> Recording:
    timed = tuple(
        SpokenWord(word, round(start_s * 1000), round(end_s * 1000))
        for text, start_s, end_s in notes.words
        for word in spoken(text)
    )
    if timed:
        return Recording(path.name, frames, timed, text=" ".join(row[0] for row in notes.words))
    return of_clips(path.name, frames, notes.clips)
