"""``--afterwards``: when the live session has ended, its audio becomes a better transcript.

It is read as a recording: by the largest model that is here, with all that was said before and
after each word, and with the speakers of the whole. The live transcript stays as it is. With
``--keep``, the better one is in the library, too, with the same audio.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from streamd.config import Config
from streamd.daemon.control import Control
from streamd.daemon.display import transcripts
from streamd.daemon.opening import larger_model
from streamd.daemon.transcribe import transcribe
from streamd.errors import ConfigError, StreamdError
from streamd.events import Event
from streamd.models.store.cache import places
from streamd.options import JournalOptions
from streamd.server import LIVE
from streamd.sinks.differences import Difference, differences
from streamd.sinks.text import blank_between
from streamd.sinks.transcripts import Revised
from streamd.sinks.writing import fitting
from streamd.streams import SessionStorage
from streamd.streams.wav import WavWriter

_MARK = ".better"
_MOST_SHOWN = 20
"""Differences in the log."""

log = logging.getLogger(__name__)


class WordsSink:
    """Keeps the words of a session."""

    def __init__(self) -> None:
        self._said = Revised()

    def write(self, event: Event) -> None:
        """Keep a final, and what revises it."""
        self._said.take(event)

    def close(self) -> None:
        """Do nothing: what was said is still of use."""

    @property
    def text(self) -> str:
        """All that was said, as it stands."""
        text = ""
        for item in self._said.since(0):
            added = getattr(item, "text", "")
            text += (blank_between(text, added) if text else "") + added
        return text


class Afterwards:
    """What is kept of a live session until it has ended; `words` is one of its sinks."""

    def __init__(self, config: Config) -> None:
        """Raises `ConfigError` if there is nothing to do, or no audio is to be kept."""
        self._config, self.words = config, WordsSink()
        self._began = f"{LIVE}~{datetime.now(UTC):%Y%m%dT%H%M%S}"
        self._folder: Path | None = None
        if not self._wanted() and not config.journal.keep:
            needed = "-o FILE, or keep sessions with --keep auto"
            raise ConfigError(f"--afterwards writes a file beside another one: add {needed}")
        if config.journal.keep and config.journal.keep_audio == "off":
            raise ConfigError("--afterwards needs the audio: drop journal.keep_audio=off")

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Make a folder for the audio, which is removed after the context."""
        with TemporaryDirectory(prefix="streamd-afterwards-") as folder:
            self._folder = Path(folder)
            yield

    def recording(self, storage: SessionStorage) -> SessionStorage:
        """Return where sessions are stored, with a folder for the audio of this one."""
        if storage.recordings is not None:  # it is kept anyway
            self._folder = storage.recordings
            return storage
        return replace(storage, recordings=self._folder, recorder=WavWriter, only=LIVE)

    async def write(self) -> None:
        """Write the better transcript, and say what differs. An interrupt skips that."""
        audio = self._audio()
        if audio is None or not self.words.text:
            log.info("afterwards: nothing was said")
            return
        better, config = WordsSink(), self._of_recording(audio)
        kept = ["into the library"] if config.journal.keep else []
        files = ", ".join([*map(str, transcripts(config, str(audio))), *kept])
        model = Path(config.decoding.model).name
        control = Control()
        with control.signals():  # an interrupt may follow the next line at once
            log.info("afterwards: %s writes %s; Ctrl-C skips this", model, files)
            try:
                is_cut = await transcribe(config, control=control, shows=False, also=[better])
            except StreamdError as error:
                log.error("afterwards: %s", error)  # noqa: TRY400 - the user needs no traceback
                return
        if is_cut:
            log.warning("afterwards: skipped")
            return
        found = differences(self.words.text, better.text)
        for line in report(found, n_words=len(better.text.split())):
            log.info("afterwards: %s", line)

    def _wanted(self) -> list[Path]:
        file = self._config.input.files[0] if len(self._config.input.files) == 1 else ""
        languages = self._config.output.languages
        return [better_name(path, languages) for path in transcripts(self._config, file)]

    def _audio(self) -> Path | None:
        """Return the newest recording of the session; there is none if no audio came."""
        if self._folder is None:
            return None
        found = [path for path in self._folder.glob(f"{LIVE}~*") if path.name >= self._began]
        return min(found, default=None)

    def _of_recording(self, audio: Path) -> Config:
        config = self._config
        output = tuple(map(str, self._wanted()))
        return replace(
            config,
            input=replace(config.input, files=(str(audio),), realtime=False, play=False, track=0),
            decoding=replace(
                config.decoding, model=larger_model(config, places()), context=(), workers=0
            ),
            output=replace(
                config.output, output=output, output_dir="", output_format=(), to=(), format="txt"
            ),
            journal=config.journal if config.journal.keep else JournalOptions(),
        )


def better_name(path: Path, languages: Sequence[str] = ()) -> Path:
    """Return the name of the better transcript: ``talk.better.srt`` beside ``talk.srt``.

    That of a translation into one of the `languages` is ``talk.better.pt.srt``.
    """
    stem, dot, endings = path.name.partition(".full.json")
    if not dot:
        stem, dot, endings = path.name.rpartition(".")
    whole, _, label = stem.rpartition(".")
    if whole and label in languages:
        stem, dot = whole, f".{label}{dot}"
    return path.with_name(fitting(f"{stem}{_MARK}{dot}{endings}"))


def report(found: list[Difference], *, n_words: int) -> Iterator[str]:
    """Yield what differs, for people: how many words, and the first ones."""
    n_differ = sum(each.n_words for each in found)
    yield f"{n_words} words, of which {n_differ} differ from the live captions"
    yield from map(str, found[:_MOST_SHOWN])
    if len(found) > _MOST_SHOWN:
        yield f"and {len(found) - _MOST_SHOWN} other places"
