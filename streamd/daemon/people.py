"""The folder of voices that are known again (``--people``): a small file for each person.

It exists because somebody who may has said so, by name. A file has a voiceprint of 256 bytes, or
two, from which no speech can be made, how much speech it is of, and when it was written. Only its
owner can read it. ``streamd people`` lists and deletes them.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from streamd.errors import ConfigError, os_error_as
from streamd.labels import MOST_NAME
from streamd.speakers import VOICEPRINT_BYTES
from streamd.speakers.people import LEAST_KEPT, Person, with_more
from streamd.system.disk import put_file, user_folder, warn_of_writers
from streamd.types import ms_from_frames

_MODEL = "community-1"
"""Voiceprints of other models cannot be compared with those of this one (models/community-1)."""
_MOST_BYTES = 4_096
"""Of a file: a name and twice 256 bytes in base64 are less than 1,500."""

log = logging.getLogger(__name__)


class PersonFile(Struct, frozen=True, kw_only=True):
    """What a file holds: `frames` of 20 ms are what the voiceprint was made of."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]
    model: str
    voiceprint: bytes
    in_room: bytes = b""
    frames: Annotated[int, msgspec.Meta(ge=1)]
    sessions: int = 1
    written: datetime

    @property
    def person(self) -> Person:
        """Who it is, to be recognised."""
        return Person(self.name, self.voiceprint, self.frames, self.in_room)


_decoder = msgspec.json.Decoder(PersonFile)


class PeopleFolder:
    """The people of a folder, read when they are asked for: another process may change them."""

    def __init__(self, wanted: str, environ: Mapping[str, str] = os.environ) -> None:
        own = user_folder("data", environ) / "people"
        self.folder = own if wanted in ("", "auto") else Path(os.path.expanduser(wanted))
        warn_of_writers("--people", self.folder)

    def files(self) -> Iterator[tuple[Path, PersonFile]]:
        """Give the files that can be read, by name; others are logged."""
        found: list[tuple[Path, PersonFile]] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                with path.open("rb") as file:
                    each = _decoder.decode(file.read(_MOST_BYTES))
            except (OSError, ValueError) as error:
                log.warning("--people: %s cannot be read, and is left out: %s", path, error)
                continue
            sizes = (len(each.voiceprint), len(each.in_room) or VOICEPRINT_BYTES)
            if each.model != _MODEL or sizes != (VOICEPRINT_BYTES, VOICEPRINT_BYTES):
                log.warning("--people: %s is of another model of voices, and is left out", path)
                continue
            found.append((path, each))
        yield from sorted(found, key=lambda pair: pair[1].name.casefold())

    @property
    def people(self) -> tuple[Person, ...]:
        """Those who are known."""
        return tuple(each.person for _, each in self.files())

    def find(self, name: str) -> tuple[Path, PersonFile] | None:
        """Return the file of a person, if there is one."""
        wanted = name.casefold()
        return next((pair for pair in self.files() if pair[1].name.casefold() == wanted), None)

    def keep(self, heard: Person, before: PersonFile | None) -> Path:
        """Keep a voice as it was heard in this session, beside what was heard `before`.

        Raises `ConfigError` if that is too little, or if the file cannot be written.
        """
        if heard.n < LEAST_KEPT:
            n_s, least_s = ms_from_frames(heard.n) / 1000, ms_from_frames(LEAST_KEPT) / 1000
            known = f"the voice of {heard.name} is known from {n_s:.1f} s of speech"
            raise ConfigError(f"keep: {known}: it takes {least_s:g} s")
        person, sessions = heard, 1
        if before is not None:
            person, sessions = with_more(before.person, heard), before.sessions + 1
        return self.write(
            PersonFile(
                name=person.name,
                model=_MODEL,
                voiceprint=person.voiceprint,
                in_room=person.in_room,
                frames=person.n,
                sessions=sessions,
                written=datetime.now(UTC).replace(microsecond=0),
            )
        )

    def delete(self, name: str) -> None:
        """Forget a person. Raises `ConfigError` if there is none, or if that fails."""
        paths = [path for path, each in self.files() if each.name.casefold() == name.casefold()]
        for path in paths or [self._known(name)[0]]:  # a copy may have another file name
            with os_error_as(ConfigError, f"{path} cannot be deleted"):
                path.unlink()

    def rename(self, old: str, new: str) -> None:
        """Call a person by another name. Raises `ConfigError` if that is not possible."""
        path, known = self._known(old)
        if old.casefold() != new.casefold() and self.find(new) is not None:
            raise ConfigError(f"{new} is somebody else: delete one of the two first")
        if self.write(replace(known, name=new)) != path:
            with os_error_as(ConfigError, f"{path} cannot be deleted"):
                path.unlink()

    def _known(self, name: str) -> tuple[Path, PersonFile]:
        if (found := self.find(name)) is None:
            raise ConfigError(f"nobody is called {name} here: streamd people lists them")
        return found

    def write(self, content: PersonFile) -> Path:
        """Write the file of a person. Raises `ConfigError` if that fails."""
        path = self.folder / _file_name(content.name)
        with os_error_as(ConfigError, f"{path} cannot be written"):
            put_file(path, msgspec.json.encode(content))
        return path


def _file_name(name: str) -> str:
    """Return a name for a file that any file system takes, and of which people see whose it is."""
    readable = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(name.casefold().encode()).hexdigest()[:8]}.json"


class VoiceKeeper:
    """Keeps voices of one session: what it keeps of one again replaces what it has kept before."""

    def __init__(self, folder: PeopleFolder) -> None:
        self._folder = folder
        self._before: dict[str, PersonFile | None] = {}  # by name: what was known of whom it keeps

    def keep(
        self, name: str, voiceprint: bytes, n: int, in_room: bytes = b"", *, again: bool = False
    ) -> None:
        """Keep a voice as far as it is known by now, and say so. Raises `ConfigError`.

        `again` only adds to what was kept: whoever was forgotten meanwhile stays forgotten.
        """
        key, found = name.casefold(), self._folder.find(name)
        if again and found is None and key in self._before:
            return
        before = self._before.get(key, found[1]) if found else None
        path = self._folder.keep(Person(name, voiceprint, n, in_room), before)
        self._before[key] = before
        heard = ms_from_frames(n) / 1000
        log.info(
            "the voice of %s (%.1f s) is kept in %s, to be known again: only with their consent; "
            "forget it with: streamd people delete %s",
            *(name, heard, path, quote(name)),
        )

    def take_back(self, name: str) -> None:
        """Keep of a person what was kept before the session. Raises `ConfigError` if that fails."""
        key = name.casefold()
        if key in self._before and self._folder.find(name) is not None:  # nor forgotten meanwhile
            if (before := self._before.pop(key)) is None:
                self._folder.delete(name)
            else:
                self._folder.write(before)
            log.info("the voice of %s was somebody else's, and is not kept", name)
