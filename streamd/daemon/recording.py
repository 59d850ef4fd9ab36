"""A whole recording: read into its log-mel, and transcribed window by window.

Other modules use it for ``streamd transcribe``, for what clients send, and for the library.
"""

import logging
import re
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from streamd.config import Config
from streamd.daemon import build, phrases
from streamd.daemon.people import PeopleFolder
from streamd.engines.voices import RecordedVoices
from streamd.engines.yamnet import RecordedSounds
from streamd.errors import SourceError
from streamd.events import (
    Details,
    Final,
    Gap,
    Sound,
    SpeakerName,
    TimedWord,
    Token,
    with_lasting_words,
)
from streamd.labels import numbered, of_channel, with_speakers
from streamd.models.model import Model
from streamd.rewriting import Rewriter
from streamd.session.clips import SpeechClips
from streamd.session.segmenter import Segmenter
from streamd.session.spelling import number_of, numbers
from streamd.sources import FrameStream, Lost, Source
from streamd.sources.confined import ConfinedSource
from streamd.speakers import SpokenTurn
from streamd.speakers.people import recognised
from streamd.system.calls import in_thread
from streamd.system.heap import keep_for_passes
from streamd.types import FRAME, FRAME_MS, Clip, Frames, Samples, frames_from_ms, mean_prob, rounded
from streamd.whisper.engine import AnyEngine, urgent
from streamd.whisper.longform import LONGEST_WINDOW, Transcriber
from streamd.whisper.longform.segments import SpokenWord, TimedSegment, column_at, in_ms, ms_of
from streamd.whisper.mel import RecordingMel
from streamd.whisper.tokenizer import REPLACEMENT, Tokenizer
from streamd.whisper.vocabulary import Vocabulary

_SILENT_FRAMES = 1_500
"""Lost audio becomes silence in pieces of this length, because a gap may be long."""
_AT_ONCE = 200
"""Frames (4 s) that a track takes at once: what takes them has many calls for each time."""

log = logging.getLogger(__name__)


Between = Callable[..., Awaitable[Any]]
"""Calls in the thread that computes, when nothing else is to be computed there, and returns what
that returns; raises `EngineError`, too."""


class TrackSound(Protocol):
    """What a model needs of a recording, made while it is read."""

    def append(self, samples: Samples) -> None:
        """Take the next samples, (n,)."""


SoundT = TypeVar("SoundT", bound=TrackSound)


class Track(Generic[SoundT]):
    """Sound of a file while it is read, as the model takes it, and where speech is in it.

    Without `speech` that does not matter. `voices` hears who speaks, `noises` what else is heard.
    """

    def __init__(
        self,
        sound: SoundT,
        speech: SpeechClips | None,
        voices: RecordedVoices | None = None,
        noises: RecordedSounds | None = None,
    ) -> None:
        self.sound, self.speech, self.voices, self.noises = sound, speech, voices, noises

    def take(self, frames: Frames, *, in_two_threads: bool) -> None:
        """Take the next (n, 320) frames; log-mel may be computed in another thread."""
        append = partial(self.sound.append, frames.reshape(-1))
        appended = None
        if in_two_threads and self.speech is not None:  # there is something to compute meanwhile
            appended = in_thread(append)
        else:
            append()
        gate = [(0, 0)] * len(frames)  # always open
        if self.speech is not None:
            gate = [(heard.silence, heard.late) for heard in self.speech.feed(frames)]
        if self.voices is not None:
            self.voices.feed(frames, gate)
        if self.noises is not None:
            self.noises.feed(frames)
        if appended is not None:
            appended.result()


def new_track(config: Config, sound: SoundT) -> Track[SoundT]:
    """Return a track with these options, which has heard nothing yet."""
    speech = None
    if config.vad.detector != "off":
        pause, around = config.endpoint.plain, config.endpoint.pre_roll
        # Pauses of one length end utterances, with as much audio after as before them.
        endpoint = replace(config.endpoint, pre_final=around, sentence=pause, unfinished=pause)
        speech = SpeechClips(build.gate(config), Segmenter(endpoint))
    voices = RecordedVoices() if config.decoding.speakers else None
    noises = RecordedSounds() if config.decoding.sounds else None
    return Track(sound, speech, voices, noises)


class AudioFile(Generic[SoundT]):
    """One file while it is read; `report` gets each gap.

    It has a track for all of its sound, or, where the source does not mix channels, one for each.
    """

    def __init__(
        self,
        new_track: Callable[[], Track[SoundT]],
        report: Callable[[Gap], object],
        *,
        in_two_threads: Callable[[], bool],
    ) -> None:
        """While `in_two_threads` says so, what is computed may take another thread, too."""
        self._new_track, self._report, self._in_two = new_track, report, in_two_threads
        self.tracks: tuple[Track[SoundT], ...] = ()
        self.is_split = False
        self.n_padding = 0  # samples at the end of the last frame that are no audio
        self.damage: SourceError | None = None  # at which the source has ended
        self._warnings: Sequence[str] = ()
        self._n_frames = 0
        self._waiting: list[Frames] = []

    async def read(
        self,
        source: Source | ConfinedSource,
        heard: Callable[[Frames | Lost], object] = lambda item: None,
        between: Between | None = None,
    ) -> None:
        """Take all that an open source gives; raises `SourceError` if that is nothing.

        `heard` gets it, too. If the source fails later, that is its `damage`. What is computed
        meanwhile is called by `between`, if there is one.
        """
        frames: FrameStream | ConfinedSource = source.__aiter__()
        try:
            async for item in frames:
                if between is None:
                    self.take(item)
                else:
                    await between(self.take, item)
                heard(item)
        except SourceError as error:
            if not self.duration_ms:
                raise
            self.damage = error
        self.n_padding, self._warnings = frames.n_padding, frames.warnings

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the sound of the source that was read."""
        return (*self._warnings, *([str(self.damage)] if self.damage else []))

    def take(self, item: Frames | Lost) -> None:
        """Take the next frames, or silence in place of what a source has lost."""
        if isinstance(item, Lost):
            self._report(Gap(t_ms=self.duration_ms, duration_ms=item.duration_ms, why=item.why))
            n_frames, n_tracks = frames_from_ms(item.duration_ms), max(1, len(self.tracks))
            for first in range(0, n_frames, _SILENT_FRAMES):
                n = min(_SILENT_FRAMES, n_frames - first)
                self._append(np.zeros((n, n_tracks, FRAME), np.float32))
            return
        self.is_split = item.ndim == 3
        self._append(item if self.is_split else item[:, np.newaxis])

    def _append(self, frames: Frames) -> None:
        self._n_frames += len(frames)
        self.tracks = self.tracks or tuple(self._new_track() for _ in range(frames.shape[1]))
        self._waiting.append(frames)
        if sum(map(len, self._waiting)) >= _AT_ONCE:
            self.hand_over()

    def hand_over(self) -> None:
        """Give the tracks the frames that wait; called at the end of the file, too."""
        if self._waiting:
            first, *more = self._waiting
            frames = np.concatenate(self._waiting) if more else first  # which may be an hour
            self._waiting.clear()
            for channel, track in enumerate(self.tracks):
                track.take(frames[:, channel], in_two_threads=self._in_two())

    def sounds(self) -> list[Sound]:
        """Return what was heard besides speech, in order, of a file that was read to its end."""
        self.hand_over()
        heard = (track.noises.sounds() for track in self.tracks if track.noises)
        return sorted(chain(*heard), key=_start_ms)

    @property
    def duration_ms(self) -> int:
        """Duration of what was read."""
        return self._n_frames * FRAME_MS


class FinishedWindow(NamedTuple):
    """The finals of one window, numbered in the file, and up to where it is transcribed.

    `names` are of speakers who say their first word in it, and whose voice is known.
    """

    finals: tuple[Final, ...]
    reached_ms: int
    names: tuple[SpeakerName, ...] = ()


class FileTranscriber:
    """A model that transcribes files; raises `ConfigError` if it does not fit the options."""

    def __init__(
        self,
        config: Config,
        model: Model,
        engine: AnyEngine,
        *,
        is_alone: Callable[[], bool] = lambda: False,
        expected: Vocabulary | None = None,
    ) -> None:
        """While `is_alone` says that nobody else needs the engine, it may use more threads.

        `expected` is as in `build.vocabularies`. Raises `ConfigError`.
        """
        keep_for_passes(self)
        self._config, self._rules = config, phrases.read_replacements(config.decoding.replace)
        self._n_mels = model.dims.n_mels
        self._in_two = is_alone if urgent(engine) is not None else lambda: False
        self._tokenizer = build.tokenizer(config, model)
        decoding = replace(build.decoding_options(config, model), timestamps=True)
        longform = replace(config.longform, initial_prompt=config.decoding.prompt)
        lists = build.vocabularies(config, self._tokenizer, expected)
        languages = build.selection(config).languages
        self.languages = (model.language,) if model.language else languages
        """What the speakers may speak, in order of preference; none: anything."""
        self._detects = model.language is None and len(decoding.languages) != 1
        self._transcriber = Transcriber(
            engine,
            self._tokenizer,
            decoding,
            longform,
            vocabulary=lists.of(phrases.one_a_line(config.decoding.hotwords)),
            is_alone=is_alone,
        )

    def new_file(self, report: Callable[[Gap], object]) -> AudioFile[RecordingMel]:
        """Return an empty `AudioFile` to read a file into."""
        tracks = lambda: new_track(self._config, RecordingMel(self._n_mels))  # noqa: E731 - used once
        return AudioFile(tracks, report, in_two_threads=self._in_two)

    def transcribe(self, file: AudioFile[RecordingMel]) -> Iterator[FinishedWindow]:
        """Transcribe a file that was read to its end, window by window; raises `EngineError`.

        Only once: what is transcribed of it is forgotten.
        """
        file.hand_over()
        windows = [self._transcribe(track, file.n_padding) for track in file.tracks]
        yield from on_one_clock(windows) if file.is_split else chain(*windows)

    def _transcribe(self, track: Track[RecordingMel], n_padding: int) -> Iterator[FinishedWindow]:
        mel = track.sound
        mel.finish(n_padding=n_padding)
        speech, voiced, first = track.speech, None, 0
        if speech is None:
            clips = [Clip(0, mel.n_columns)] if mel.n_columns else []
        else:
            clips = speech.clips(mel.n_columns, longest=LONGEST_WINDOW)
            voiced, first = speech.voiced, clips[0].start if clips else 0
        if clips:
            transcriber = self._transcriber
            language = transcriber.language(mel, first)
            if self._detects:
                log.info("detected language: %s (set it with --language)", language)
            seg = count(1)
            who = WhoIsHeard(self._config, track.voices)
            rewriter = Rewriter(self._rules) if self._rules else None
            for window in transcriber.transcribe(mel, clips, language=language, voiced=voiced):
                if (unheard := window.unheard) is not None:
                    from_ms, to_ms = ms_of(unheard.seek), ms_of(unheard.end)
                    log.warning("no words in the speech from %d to %d ms", from_ms, to_ms)
                # Without the voice detector, text and times are openai-whisper's.
                spelled = map(_with_numbers, window.segments) if speech else window.segments
                made = (self._final(segment, next(seg)) for segment in spelled)
                lasting = map(with_lasting_words, made) if speech else made
                meant = (rewriter.rewritten(each, "") for each in lasting) if rewriter else lasting
                finals = tuple(map(who.says, meant))
                mel.forget(column_at(window.reached_ms / 1000))
                yield FinishedWindow(finals, window.reached_ms, who.names())

    def _final(self, segment: TimedSegment, seg: int) -> Final:
        """Return the event of a segment, the file's `seg`-th."""
        texts = token_texts(segment.tokens, self._tokenizer)
        tokens = tuple(
            Token(id=token, text=text, prob=round(prob, 4))
            for token, text, prob in zip(segment.tokens, texts, segment.probs, strict=True)
        )
        words = tuple(
            TimedWord(
                text=text,
                start_ms=in_ms(word.start_s),
                end_ms=in_ms(word.end_s),
                prob=rounded(word.prob),
                final=True,
            )
            for word in segment.words
            if (text := _legible(word.text))
        )
        decoded = segment.decoded
        return Final(
            seg=seg,
            start_ms=in_ms(segment.start_s),
            end_ms=in_ms(segment.end_s),
            text=_legible(segment.text),
            language=decoded.language,
            words=words,
            avg_logprob=decoded.avg_logprob,
            no_speech_prob=decoded.no_speech_prob,
            details=Details(
                seek_ms=ms_of(segment.seek),
                tokens=tokens,
                temperature=decoded.temperature,
                compression_ratio=decoded.compression_ratio,
            ),
        )


def token_texts(tokens: Sequence[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text of each token (`streamd.events.Token`)."""
    begin = tokenizer.timestamp_begin
    for is_time, run in groupby(tokens, begin.__le__):
        if is_time:  # as openai-whisper writes timestamps
            yield from (f"<|{(token - begin) * FRAME_MS / 1000:.2f}|>" for token in run)
            continue
        for text, ids in tokenizer.characters([*run]):
            yield text.replace(REPLACEMENT, "")
            yield from [""] * (len(ids) - 1)


def _legible(text: str) -> str:
    """Return a text without bytes that spell no character, and without blanks at its ends."""
    return text.replace(REPLACEMENT, "").strip()


def on_one_clock(channels: Sequence[Iterator[FinishedWindow]]) -> Iterator[FinishedWindow]:
    """Transcribe channels side by side, and return their finals in the order of their starts."""
    reached = dict.fromkeys(range(len(channels)), 0)
    waiting: list[Final] = []
    numbers, reached_ms = count(1), 0
    while reached:
        channel = min(reached, key=lambda each: reached[each])
        if (window := next(channels[channel], None)) is None:
            del reached[channel]
        else:
            reached[channel] = window.reached_ms
            waiting += (of_channel(final, channel + 1) for final in window.finals)
            waiting.sort(key=_start_ms)
        reached_ms = min(reached.values(), default=reached_ms)
        n = bisect_left(waiting, reached_ms, key=_start_ms) if reached else len(waiting)
        ready, waiting = waiting[:n], waiting[n:]
        numbered = (msgspec.structs.replace(final, seg=next(numbers)) for final in ready)
        yield FinishedWindow(tuple(numbered), reached_ms)


def _with_numbers(segment: TimedSegment) -> TimedSegment:
    """Return the segment with each number that was dictated as one word, as in live captions."""
    texts = [word.text for word in segment.words] or _BEFORE_WORD.split(segment.text)
    times = [(_frame(word.start_s), _frame(word.end_s)) for word in segment.words]
    runs = list(numbers(texts, times))
    # Words that began in the segment before would be there twice.
    if len(runs) == len(texts) or "".join(texts) != segment.text:
        return segment
    text = "".join(number_of(texts[run]) for run in runs)
    words = tuple(_one_word(segment.words[run]) for run in runs) if segment.words else ()
    return replace(segment, text=text, words=words)


def _frame(seconds: float) -> int:
    return round(seconds * 1000 / FRAME_MS)


def _one_word(parts: Sequence[SpokenWord]) -> SpokenWord:
    text, prob = number_of([part.text for part in parts]), mean_prob(part.prob for part in parts)
    return replace(parts[0], text=text, end_s=parts[-1].end_s, prob=prob)


_BEFORE_WORD = re.compile("(?=[ -])")


def _start_ms(event: Final | Sound) -> int:
    return event.start_ms


def spoken_by(final: Final, turns: Sequence[SpokenTurn], numbers: dict[int, int]) -> Final:
    """Return the final with who says each word, by turns in order of their beginnings.

    `numbers` has the numbers of those who have said something, and gets those of others.
    """
    named = with_speakers(final, turns)
    words = tuple(numbered(word, numbers) for word in named.words)
    return msgspec.structs.replace(named, words=words)


class WhoIsHeard:
    """Who says the finals of a recording, given in their order; numbers are by the first words."""

    def __init__(self, config: Config, voices: RecordedVoices | None) -> None:
        self._turns = voices.turns(config.longform.num_speakers) if voices else []
        self._numbers: dict[int, int] = {}
        self._unnamed: dict[int, str] = {}  # names of those who have said nothing so far
        if voices and (wanted := config.decoding.people):
            people, named = PeopleFolder(wanted).people, enumerate(voices.prints, 1)
            self._unnamed = {voice: recognised(*each, people) for voice, each in named}

    def says(self, final: Final) -> Final:
        """Return a final with who says each word."""
        return spoken_by(final, self._turns, self._numbers)

    def names(self) -> tuple[SpeakerName, ...]:
        """Return the names of those who have spoken for the first time since the last call."""
        new = [voice for voice in self._numbers if voice in self._unnamed]
        pairs = [(self._numbers[voice], self._unnamed.pop(voice)) for voice in new]
        return tuple(SpeakerName(speaker=number, name=name) for number, name in pairs if name)


class RecordingTranscriber(Protocol):
    """What transcribes recordings with a model of any family."""

    @property
    def languages(self) -> tuple[str, ...]:
        """What the speakers may speak, in order of preference; none: anything."""

    def new_file(self, report: Callable[[Gap], object]) -> AudioFile[Any]:
        """Return an empty `AudioFile` to read a file into."""

    def transcribe(self, file: AudioFile[Any]) -> Iterator[FinishedWindow]:
        """Transcribe a file that was read to its end, window by window; only once."""


def in_order(finals: Iterable[Final], sounds: deque[Sound]) -> Iterator[Final | Sound]:
    """Yield finals, each after the `sounds` that begin earlier, which are removed."""
    for final in finals:
        while sounds and sounds[0].start_ms < final.start_ms:
            yield sounds.popleft()
        yield final


async def events_between(
    between: Between,
    transcriber: RecordingTranscriber,
    file: AudioFile[Any],
    progress: Callable[[int, int], object] = lambda reached_ms, duration_ms: None,
) -> AsyncIterator[Final | Sound]:
    """Transcribe a file that was read, a window at a time. Raises `EngineError`.

    `progress` is called after each window.
    """
    sounds = deque(await between(file.sounds))
    windows = transcriber.transcribe(file)
    while (window := await between(next, windows, None)) is not None:
        for event in in_order(window.finals, sounds):
            yield event
        progress(window.reached_ms, file.duration_ms)
    for sound in sounds:
        yield sound
