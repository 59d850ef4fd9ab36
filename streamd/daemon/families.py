"""A model of another family than Whisper, ready for sessions and recordings.

What sets it apart for the rest of the daemon: it takes sound instead of a log-mel, and Whisper's
options of search, of long recordings and of when text is believed do not apply.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import numpy as np

from streamd.config import OPTIONS, SETTINGS, Config, value_of
from streamd.daemon import build, phrases
from streamd.daemon.recording import (
    AudioFile,
    FinishedWindow,
    Track,
    WhoIsHeard,
    new_track,
    on_one_clock,
)
from streamd.engines.families import Abilities, FamilyModel, FamilyRecognizer, Said
from streamd.engines.families.processes import FamilyProcesses
from streamd.engines.families.said import are_timed, shared
from streamd.engines.voices import Listener
from streamd.errors import ConfigError
from streamd.events import Final, Gap, TimedWord, with_lasting_words
from streamd.language import ends_sentence
from streamd.rewriting import Rewriter
from streamd.streams import Chooser
from streamd.types import FRAME_MS, SAMPLE_RATE, Clip, Samples, TextOptions, rounded
from streamd.whisper.longform import LONGEST_WINDOW
from streamd.whisper.vocabulary import parse

log = logging.getLogger(__name__)

_COLUMN = SAMPLE_RATE // 100
"""Samples in a column of 10 ms, the unit of clips."""
_SHARE_OF_DEADLINE = 0.5
_WHISPER_ONLY = {
    "precision",
    "longform.condition_on_previous_text",
    "commit.rule",
    "session.context_tokens",
}
"""Options that only Whisper has, besides those of its search."""
_FULL = 32_767
"""Recordings are kept in 16 bits, half of what float32 takes."""


def open_model_file(config: Config, path: Path) -> "OpenFamily":
    """Open a GGUF file.

    Raises `ConfigError` if the model does not fit the options, or they this machine; `ModelError`.
    """
    o = config.decoding
    if o.compute == "ane":
        raise ConfigError("--compute ane: only Whisper runs on the Neural Engine")
    # A model that hangs ends a session, before the daemon ends all at the deadline.
    answer_s = o.engine_deadline_ms / 1000 * _SHARE_OF_DEADLINE
    family = FamilyProcesses(
        path,
        threads=build.threads(config),
        compute=o.compute,
        look_ahead_ms=None if o.look_ahead == "auto" else int(o.look_ahead),
        answer_s=answer_s or math.inf,
    )
    abilities = family.abilities
    what = "streaming" if abilities.streams else "an utterance at a time"
    if abilities.look_ahead_ms is not None:
        what += f", {abilities.look_ahead_ms} ms of look-ahead"
    log.info("model %s on %s (%s)", abilities.variant, abilities.device, what)
    if (o.expected or o.hotwords) and not abilities.takes_vocabulary:
        log.warning("%s takes no words to expect: vocabulary does not apply", abilities.variant)
    if ignored := whisper_only(config, abilities):
        log.warning("%s: %s does without", ", ".join(ignored), abilities.variant)
    try:
        return OpenFamily(config, family)
    except ConfigError:
        family.close()
        raise


def whisper_only(config: Config, abilities: Abilities) -> list[str]:
    """Return the options that were changed and mean nothing to this model."""
    without = {*_WHISPER_ONLY, *([] if abilities.takes_prompt else ["prompt"])}
    fields = {**{f"--{name}": field for name, field in OPTIONS.items()}, **SETTINGS}
    return [
        name
        for name, field in fields.items()
        if field.part == "search" or name.removeprefix("--") in without
        if value_of(config, field) != field.default
    ]


class OpenFamily:
    """A model of another family that is open; see `streamd.daemon.opening.OpenWhisper`."""

    def __init__(self, config: Config, family: FamilyProcesses) -> None:
        """Raises `ConfigError` if the model lacks the language or the task."""
        self.family = family
        self._known = "\n".join(phrase.text for phrase in parse(config.decoding.expected))
        abilities = family.abilities
        self.name = abilities.variant
        self.language = abilities.languages[0] if len(abilities.languages) == 1 else None
        o = config.decoding
        build.check_language(self, o.language, o.task, "--")
        if o.task == "translate" and not abilities.translates:
            raise ConfigError(f"--translate: the model {self.name} cannot translate")
        for code in build.languages_of(o.language):
            self._check(code)
        self._n_workers = build.workers(config)

    def recognizers(self) -> tuple[list[Listener], Chooser]:
        """Return a recognizer for each worker, and what checks the choices of sessions."""
        recognizers = (FamilyRecognizer(self.family, self._known) for _ in range(self._n_workers))
        return [*map(build.answering, recognizers)], self.chooser()

    def chooser(self) -> Chooser:
        """Return what checks the choices of sessions."""
        return build.any_chooser(self, check=self._check)

    def transcriber(
        self, config: Config, *, is_alone: Callable[[], bool] = lambda: True
    ) -> "FamilyTranscriber":
        """Return what transcribes recordings with these options."""
        return FamilyTranscriber(config, self.family, self.language, self._known)

    def wait(self, load_s: float) -> None:
        """Nothing faster is loaded later."""

    def close(self) -> None:
        """End the processes."""
        self.family.close()

    def _check(self, code: str) -> None:
        known = self.family.abilities.languages
        if known and code not in known:
            raise ConfigError(f"language {code}: {self.name} knows {', '.join(known)}")


class RecordedSound:
    """The samples of a recording while it is read."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray[tuple[int], np.dtype[np.int16]]] = []
        self._n_padding = 0

    def append(self, samples: Samples) -> None:
        """Take the next samples."""
        self._parts.append((np.clip(samples, -1, 1) * _FULL).astype(np.int16))

    def finish(self, *, n_padding: int) -> Samples:
        """End the recording, whose last samples are no audio, and return it."""
        whole = np.concatenate([np.empty(0, np.int16), *self._parts])
        self._parts.clear()
        sound: Samples = whole[: len(whole) - n_padding].astype(np.float32) / np.float32(_FULL)
        return sound


@dataclass(frozen=True, slots=True)
class FamilyTranscriber:
    """A model of another family that transcribes files; see `FileTranscriber`.

    Each stretch of speech is transcribed once; each of its sentences is a final.
    """

    config: Config
    family: FamilyModel
    language: str | None
    known: str = ""

    @property
    def languages(self) -> tuple[str, ...]:
        """What the speakers may speak, in order of preference; none: anything."""
        return (self.language,) if self.language else build.selection(self.config).languages

    def new_file(self, report: Callable[[Gap], object]) -> AudioFile[RecordedSound]:
        """Return an empty `AudioFile` to read a file into."""
        return AudioFile(
            lambda: new_track(self.config, RecordedSound()), report, in_two_threads=lambda: False
        )

    def transcribe(self, file: AudioFile[RecordedSound]) -> Iterator[FinishedWindow]:
        """Transcribe a file that was read to its end, stretch by stretch; only once."""
        file.hand_over()
        windows = [self._transcribe(track, file.n_padding) for track in file.tracks]
        yield from on_one_clock(windows) if file.is_split else chain(*windows)

    def _transcribe(self, track: Track[RecordedSound], n_padding: int) -> Iterator[FinishedWindow]:
        sound: Samples = track.sound.finish(n_padding=n_padding)
        n_columns, most_ms = len(sound) // _COLUMN, self.family.abilities.longest_ms
        longest = min(LONGEST_WINDOW, most_ms // 10 or LONGEST_WINDOW)
        if track.speech is None:
            starts = range(0, n_columns, longest)
            clips = [Clip(start, min(start + longest, n_columns)) for start in starts]
        else:
            found = track.speech.clips(n_columns, longest=longest)
            clips = [clip for clip in found if track.speech.is_certain(clip)]
        seg, who = count(1), WhoIsHeard(self.config, track.voices)
        rules = phrases.read_replacements(self.config.decoding.replace)
        rewriter = Rewriter(rules) if rules else None
        for clip in clips:
            said = self._run(sound[clip.start * _COLUMN : clip.end * _COLUMN])
            made = self._finals(said, clip, seg)
            meant = (rewriter.rewritten(each, "") for each in made) if rewriter else made
            finals = tuple(map(who.says, meant))
            yield FinishedWindow(finals, clip.end * 10, who.names())

    def _run(self, samples: Samples) -> Said:
        o = self.config.decoding
        expected = phrases.one_a_line(o.hotwords)
        options = TextOptions(
            languages=build.languages_of(o.language),
            task=o.task,
            initial_prompt=o.prompt,
            vocabulary=f"{self.known}\n{expected}".strip(),
        )
        return self.family.run(samples, options)

    def _finals(self, said: Said, clip: Clip, seg: Iterator[int]) -> Iterator[Final]:
        """The sentences of a stretch of speech."""
        texts, offset_ms, words = [word.text for word in said.words], clip.start * 10, []
        places = shared(texts, 0, (clip.end - clip.start) * 10)
        chosen = build.languages_of(self.config.decoding.language)
        language = said.language or self.language or (chosen[0] if len(chosen) == 1 else "")
        for i, (word, (start_ms, end_ms)) in enumerate(zip(said.words, places, strict=True), 1):
            start_ms = start_ms if word.start_ms is None else word.start_ms
            end_ms = end_ms if word.end_ms is None else word.end_ms
            timed = TimedWord(
                text=word.text.strip(),
                start_ms=offset_ms + start_ms,
                end_ms=offset_ms + max(end_ms, start_ms),
                prob=rounded(word.prob),
                final=True,
                shares_time=word.shares_time or not are_timed(said.words),
            )
            words.append((word.text, timed))
            if i == len(texts) or ends_sentence(word.text):
                sentence = Final(
                    seg=next(seg),
                    start_ms=words[0][1].start_ms,
                    end_ms=max(timed.end_ms, words[0][1].start_ms + FRAME_MS),
                    text="".join(text for text, _ in words).strip(),
                    language=language,
                    words=tuple(each for _, each in words),
                    avg_logprob=None,
                    no_speech_prob=None,
                )
                yield with_lasting_words(sentence)
                words = []
