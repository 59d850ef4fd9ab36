"""``streamd people``: whose voices are known again (``--people``), on the command line."""

import asyncio
import logging
from collections.abc import Iterator

import numpy as np

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.people import PeopleFolder, VoiceKeeper
from streamd.engines.voices import RecordedVoices, in_room
from streamd.errors import ConfigError, SourceError
from streamd.events import encode
from streamd.labels import name_from
from streamd.sinks.text import clean
from streamd.sources import Lost
from streamd.sources.file import FileSource
from streamd.speakers.people import LEAST_KEPT, MOST_KEPT, Person, recognised
from streamd.types import FRAME, Frames, mixed, ms_from_frames

log = logging.getLogger(__name__)


def _folder(config: Config) -> PeopleFolder:
    return PeopleFolder(config.decoding.people)


def listed(config: Config) -> Iterator[str]:
    """Yield a line for each person: how much of the voice is known, since when, and the name."""
    folder = _folder(config)
    if not (known := [*folder.files()]):
        log.warning("%s: nobody's voice is kept: streamd people enroll keeps one", folder.folder)
    for path, each in known:
        if config.output.json:
            yield encode({"name": each.name, "frames": each.frames, "file": str(path)})
            continue
        heard, day = ms_from_frames(each.frames) / 1000, f"{each.written.astimezone():%Y-%m-%d}"
        n = "1 session" if each.sessions == 1 else f"{each.sessions} sessions"
        yield f"{clean(each.name)}  {heard:.0f} s, {n}, {day}  {path}"


def delete(config: Config, *names: str) -> Iterator[str]:
    """Forget people, and yield a line for each. Raises `ConfigError` if one is not known."""
    folder = _folder(config)
    for name in names:
        folder.delete(name)
        yield f"forgotten: {clean(name)}"


def rename(config: Config, old: str, new: str) -> None:
    """Call a person by another name. Raises `ConfigError` if that is not possible."""
    _folder(config).rename(old, _name(new))


def enroll(config: Config, name: str, file: str) -> None:
    """Keep the voice of the one person who speaks in a recording.

    Somebody who changes the tone may be heard as two voices: one that would be recognised as the
    other is no second person. Raises `SourceError` if the recording cannot be read or several
    people speak in it, `ConfigError` if too little is said in it.
    """
    name, sound = _name(name), asyncio.run(_read(file))
    if not (heard := _heard(config, sound)):
        raise SourceError(f"{file}: nobody speaks in it")
    (n, voiceprint), *others = heard
    alone = [Person(name, voiceprint, n)]
    if any(more >= LEAST_KEPT and not recognised(other, more, alone) for more, other in others):
        raise SourceError(f"{file}: several people speak in it: cut out what {name} says")
    far = _heard(config, in_room(sound[:MOST_KEPT].reshape(-1)).reshape(-1, FRAME))
    in_a_room = next((known for more, known in far if more >= LEAST_KEPT), b"")
    VoiceKeeper(_folder(config)).keep(name, voiceprint, n, in_a_room)


def _name(text: str) -> str:
    try:
        name = name_from(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not name:
        raise ConfigError("a name has at least one character")
    return name


async def _read(file: str) -> Frames:
    """Return the frames of a recording."""
    async with FileSource(file, realtime=False) as source:
        read = [mixed(item) async for item in source if not isinstance(item, Lost)]
    return np.concatenate(read or [np.zeros((0, FRAME), np.float32)])


def _heard(config: Config, sound: Frames) -> list[tuple[int, bytes]]:
    """Return of how many frames the voices in frames are known, and their voiceprints.

    Whoever says most comes first.
    """
    voices, gate = RecordedVoices(), build.gate(config)
    voices.feed(sound, [(heard.silence, heard.late) for heard in gate.feed(sound)])
    voices.turns()
    return sorted(((n, voiceprint) for voiceprint, n in voices.prints), reverse=True)
