"""Tells when something is heard that somebody waits for: a word, a speaker, or a sound.

Words are looked for as soon as they are committed, each once, however captions are cut into
partials and finals: what counts is the row of their letters, without case and accents.
"""

import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from streamd.errors import ConfigError
from streamd.events import Event, Final, Notice, Partial, Sound, SpeakerName, TimedWord
from streamd.labels import Names, renamed
from streamd.sounds import LABELS

_PAUSE_MS = 2_000
"""A phrase does not go on after a longer pause, in which captions begin a paragraph, too."""


class Awaited(NamedTuple):
    """What somebody waits for: as they wrote it, and its letters or the label of the sound."""

    text: str
    kind: Literal["phrase", "speaker", "sound"]
    key: str


def parse(text: str) -> Awaited:
    """Read ``WORD``, ``@NAME`` or ``sound:LABEL``. Raises `ConfigError`."""
    kind, colon, label = text.strip().partition(":")
    if kind == "sound" and colon:
        if label not in LABELS:
            raise ConfigError(f"{text}: no such sound; expected one of {', '.join(LABELS)}")
        return Awaited(text, "sound", label)
    key = letters(text)
    if not key:
        raise ConfigError(f"{text!r}: expected a word, @NAME or sound:LABEL")
    return Awaited(text, "speaker" if text.strip().startswith("@") else "phrase", key)


def letters(text: str) -> str:
    """Return the letters and digits of a text without case and accents.

    The vowel signs of Indian scripts are marks in Unicode, but belong to the letters.
    """
    apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in apart if char.isalnum() or _is_vowel(char))


def _is_vowel(char: str) -> bool:
    return unicodedata.category(char).startswith("M") and not unicodedata.combining(char)


class Notices:
    """The notices of one session: `take` its events in order."""

    def __init__(self, wanted: Iterable[str]) -> None:
        """Raises `ConfigError` for what `parse` cannot read."""
        self._wanted = [parse(each) for each in wanted]
        self._names: Names = {}
        self._said: dict[int, _SaidWords] = {}  # in each channel, 0 if they are mixed
        self._speaker = 0  # of the last final word
        self._heard: dict[str, int] = {}  # when the last sound of each label began

    def take(self, event: Event) -> list[Notice]:
        """Take the next event, and return what it has of what somebody waits for."""
        match event:
            case Partial() | Final():
                said = self._said.setdefault(event.channel or 0, _SaidWords())
                phrases = [each for each in self._wanted if each.kind == "phrase"]
                found = [*said.take(event, phrases)]
                return [*found, *self._speakers(event)] if isinstance(event, Final) else found
            case Sound():
                return [*self._sounds(event)]
            case SpeakerName():
                self._names = renamed(self._names, event)
        return []

    def _speakers(self, final: Final) -> Iterator[Notice]:
        """Yield a notice where somebody begins to talk: finals know best who that is."""
        for word in final.words:
            if not word.speaker or word.speaker == self._speaker:
                continue
            self._speaker = word.speaker
            name = self._names.get(word.speaker, "")
            for wanted in self._wanted:
                if wanted.kind == "speaker" and wanted.key == letters(name):
                    yield _notice(wanted, name, word.start_ms, word.end_ms)

    def _sounds(self, sound: Sound) -> Iterator[Notice]:
        if self._heard.get(sound.label) == sound.start_ms:
            return  # it is over
        self._heard[sound.label] = sound.start_ms
        for wanted in self._wanted:
            if wanted.kind == "sound" and wanted.key == sound.label:
                yield _notice(wanted, sound.label, sound.start_ms, sound.end_ms)


def _notice(wanted: Awaited, text: str, start_ms: int, end_ms: int) -> Notice:
    return Notice(wanted=wanted.text, text=text, start_ms=start_ms, end_ms=end_ms)


_MARKS = ".,;:!?…\"'“”‘’«»()[]¿¡"
_MOST_WORDS = 50
"""Of a phrase: longer ones are sentences."""


@dataclass(slots=True)
class _SaidWords:
    """The words of a channel: the last ones that were looked at, and how far that is.

    `committed` has those of the last partial, `n_ahead` counts the letters that were looked at and
    are not final yet.
    """

    last: deque[TimedWord] = field(default_factory=lambda: deque(maxlen=_MOST_WORDS))
    committed: Sequence[TimedWord] = ()
    n_ahead: int = 0

    def take(self, event: Partial | Final, phrases: Sequence[Awaited]) -> Iterator[Notice]:
        words = [word for word in event.words if word.final] or self._of_text(event)
        n_letters = 0
        for word in words:
            n_letters += len(letters(word.text))
            if n_letters > self.n_ahead:
                self.n_ahead = n_letters
                yield from self._look_at(word, phrases)
        if isinstance(event, Partial):
            self.committed = words
            return
        # The words of a sentence that follows may be committed already.
        later = [word for word in self.committed if word.start_ms + word.end_ms > 2 * event.end_ms]
        self.committed = later if event.continues else ()
        self.n_ahead = sum(len(letters(word.text)) for word in self.committed)

    def _of_text(self, event: Partial | Final) -> list[TimedWord]:
        """Return the words of a final that was sent without them, all with its times."""
        said = event.text.split() if isinstance(event, Final) else []
        return [
            TimedWord(text=text, start_ms=event.start_ms, end_ms=event.end_ms, final=True)
            for text in said
        ]

    def _look_at(self, word: TimedWord, phrases: Sequence[Awaited]) -> Iterator[Notice]:
        """Yield a notice for each phrase that ends with the word."""
        if self.last and word.start_ms - self.last[-1].end_ms > _PAUSE_MS:
            self.last.clear()
        self.last.append(word)
        bare = word.text.strip(_MARKS)
        ends = {letters(bare)}
        if bare[-2:].lower() in ("'s", "’s"):
            ends.add(letters(bare[:-2]))
        for wanted in phrases:
            for end in ends:
                if n_words := _n_words(wanted.key, [*self.last], end):
                    said = [*self.last][-n_words:]
                    text = " ".join(each.text for each in said).strip(_MARKS)
                    yield _notice(wanted, text, said[0].start_ms, word.end_ms)


def _n_words(key: str, words: Sequence[TimedWord], end: str) -> int:
    """Return how many of the last words make a phrase, of which the last is `end`; 0: none do."""
    found, n_words = end, 1
    while len(found) < len(key) and n_words < len(words):
        n_words += 1
        found = letters(words[-n_words].text) + found
    return n_words if found == key else 0
