"""The events of a stream, and their wire form (``streamd.v1``, docs/protocol.md).

Each event is a frozen struct whose tag is the ``type`` field of the JSON text frame. Times are
milliseconds since the stream began.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from streamd.types import FRAME_MS, Word, in_order, ms_from_frames, rounded

PROTOCOL = "streamd.v1"


# The structs below hold these reasons as plain strings: a client must be able to read one that only
# a newer server knows.


class GapReason(StrEnum):
    """Why audio never reached the session (`Gap.why`)."""

    OVERRUN = "overrun"  # the microphone's driver had no room for it
    ENGINE = "engine"  # the engine was too slow for longer than audio is buffered
    DEVICE = "device"  # the device was disconnected for a while
    PAUSED = "paused"
    RESTART = "restart"  # the server was restarted
    RESUME = "resume"  # a client that came back no longer had the audio


class MissedReason(StrEnum):
    """Why a replay is incomplete (`Missed.why`)."""

    RETENTION = "retention"  # the finals are older than what is kept
    EPOCH = "epoch"  # the session was restarted and counts from 1 again


class EndReason(StrEnum):
    """Why a session is over (`Eos.reason`)."""

    END = "end"  # the file or pipe ended
    STOP = "stop"  # the client that feeds the session, or the user, ended it
    DISCONNECT = "disconnect"
    ERROR = "error"
    LIMIT = "limit"  # the session reached its longest duration
    SHUTDOWN = "shutdown"  # the server ends; it may resume the session when it runs again
    FORGOTTEN = "forgotten"  # an earlier run, dropped from memory without listeners; not sent


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: the event as docs/protocol.md describes it."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        fields.pop("details", None)
        return fields


class _InSeconds:
    """Times in seconds, as users of the library want them; on the wire they are milliseconds."""

    __slots__ = ()
    start_ms: int
    end_ms: int

    @property
    def start(self) -> float:
        """Beginning, in seconds since the stream began."""
        return self.start_ms / 1000

    @property
    def end(self) -> float:
        """End, in seconds since the stream began."""
        return self.end_ms / 1000


class TimedWord(msgspec.Struct, _InSeconds, frozen=True, kw_only=True, omit_defaults=True):
    """One word on the wire: `text` without leading blank, `prob` 0..1, `final`: never changes.

    `prob` is None (left out) if the model does not tell it. If it tells no times, the word
    `shares_time` with others: it is placed by its length. `speaker` is the number of who says it,
    from 1, if speakers are told apart and this one is known; a later `SpeakerTurns` may correct it.
    """

    text: str
    start_ms: int
    end_ms: int
    prob: float | None = None
    final: bool
    shares_time: bool = False
    speaker: int | msgspec.UnsetType = msgspec.UNSET


def speaker_of(words: Sequence[TimedWord]) -> int | None:
    """Return who says most of the words; None if that is not known."""
    counts = Counter(word.speaker for word in words if word.speaker)
    return counts.most_common(1)[0][0] if counts else None


class _BySpeaker:
    """Who says the words of a caption."""

    __slots__ = ()
    words: tuple[TimedWord, ...]

    @property
    def speaker(self) -> int | None:
        """The number of who says most of the words, from 1; None if that is not known."""
        return speaker_of(self.words)


def _summary(event: "Partial | Final") -> str:
    """A caption in one line; all of it is some kB."""
    kind = "final" if event.is_final else "partial"
    return f"<{kind} {event.start:.2f}-{event.end:.2f} s {event.text!r}>"


CaptionT = TypeVar("CaptionT", "Partial", "Final", "Partial | Final")


def with_lasting_words(event: CaptionT) -> CaptionT:
    """Return the caption with words that last, in order and within its time.

    Attention may place two words on one frame, and words that were found in several windows before
    each other or before their caption. A word lasts at least a frame if there is room for all.
    """
    room_ms = (event.end_ms - event.start_ms) // max(1, len(event.words))
    least_ms = max(1, min(FRAME_MS, room_ms))
    known = [(word.start_ms, word.end_ms) for word in event.words]
    times = in_order(known, event.start_ms, event.end_ms, least=least_ms)
    placed = (
        msgspec.structs.replace(word, start_ms=start_ms, end_ms=end_ms)
        for word, (start_ms, end_ms) in zip(event.words, times, strict=True)
    )
    return msgspec.structs.replace(event, words=tuple(placed))


def timed(words: Sequence[Word], n_final: int) -> tuple[TimedWord, ...]:
    """The words in wire form; the first `n_final` of them are final."""
    return tuple(
        TimedWord(
            text=word.text.strip(),
            start_ms=ms_from_frames(word.start),
            end_ms=ms_from_frames(word.end),
            prob=rounded(word.prob),
            final=i < n_final,
            shares_time=word.shares_time,
        )
        for i, word in enumerate(words)
    )


def aligned(text: str, words: Sequence[TimedWord]) -> Iterator[tuple[int, int, TimedWord]]:
    """Yield (start, end, word): the place of each word in `text`, in order.

    Words come without the blanks between them (and some languages have none), so each is expected
    right after the previous one. At the first that is not there, alignment ends; the places before
    it are right.
    """
    at = 0
    for word in words:
        start = at
        while start < len(text) and text[start].isspace():
            start += 1
        if not text.startswith(word.text, start):
            return
        at = start + len(word.text)
        yield start, at, word


class Partial(Event, _InSeconds, _BySpeaker, frozen=True, kw_only=True, tag="partial"):
    """The text of segment `seg` so far; replaces the segment's earlier partials.

    The words in the first `stable` characters of `text` are committed: they never change. The marks
    between them and their capitals may, up to the final. `rev` counts up within the segment.
    `lag_ms` is the audio that arrived while this was being transcribed. `channel`: its number, from
    1, if each channel has captions of its own.
    """

    is_final: ClassVar[Literal[False]] = False
    __repr__ = _summary

    seg: int
    rev: int
    start_ms: int
    end_ms: int
    text: str
    stable: int
    words: tuple[TimedWord, ...] = ()
    lag_ms: int = 0
    channel: int | msgspec.UnsetType = msgspec.UNSET


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One token of the model; `prob` is 0..1.

    Where several tokens spell one character, the first has its `text`, and those of the others are
    empty. That of a timestamp is ``<|1.28|>``, as openai-whisper writes it, in seconds since the
    window began.
    """

    id: int
    text: str
    prob: float


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """How the model came to a text, for files that are asked for it; never on a websocket.

    `seek_ms` is where the window began; `tokens` may contain timestamp tokens.
    """

    seek_ms: int
    tokens: tuple[Token, ...]
    temperature: float
    compression_ratio: float


class Final(Event, _InSeconds, _BySpeaker, frozen=True, kw_only=True, tag="final"):
    """Segment `seg` is complete; this text is never changed, doubled or withdrawn.

    `seq` counts finals of the session from 1 without a gap; the hub stamps it (0 until then).
    With `continues`, a sentence is complete, but the utterance is not: more follows at once.
    `channel` is as in `Partial`. `heard`, only in transcripts: the text before it was corrected.
    """

    is_final: ClassVar[Literal[True]] = True
    __repr__ = _summary

    seq: int = 0
    seg: int
    start_ms: int
    end_ms: int
    text: str
    language: str
    words: tuple[TimedWord, ...] = ()
    continues: bool = False
    channel: int | msgspec.UnsetType = msgspec.UNSET
    avg_logprob: float | None = 0.0
    no_speech_prob: float | None = 0.0
    heard: str | msgspec.UnsetType = msgspec.UNSET
    details: Details | msgspec.UnsetType = msgspec.UNSET


class Correction(Event, frozen=True, kw_only=True, tag="correction"):
    """Somebody says what was said: `text`, which is expected from now on.

    It stands for the words number `first` to `last`, from 0, of final `seq`, which stays as it was
    sent. With 0 as `seq`, for none that were shown. The marks around these words stay, unless it is
    `exact`: then the text has its own, and an empty one deletes the words.
    """

    text: str
    seq: int = 0
    first: int = 0
    last: int = 0
    exact: bool | msgspec.UnsetType = msgspec.UNSET


class Sound(Event, _InSeconds, frozen=True, kw_only=True, tag="sound"):
    """A sound other than speech was heard: `label` names it, such as ``music``.

    It comes as soon as the sound is certain, with the end so far, and once more when the sound is
    over; the later one, with the same `label` and `start_ms`, replaces the other. `prob` is how
    sure the classifier was where it was most sure, 0..1.
    """

    label: str
    start_ms: int
    end_ms: int
    prob: float


class Notice(Event, _InSeconds, frozen=True, kw_only=True, tag="notice"):
    """What somebody waits for was heard: `wanted` as it was asked for, and the `text` that was it.

    Each occurrence is told once, from words that do not change any more. It is not stored.
    """

    wanted: str
    text: str
    start_ms: int
    end_ms: int


class SpeakerName(Event, frozen=True, kw_only=True, tag="name"):
    """Somebody says what a speaker is called, or their voice is known from an earlier session.

    A later one replaces it; with an empty `name`, the speaker has only a number again.
    """

    speaker: int
    name: str


class Attribution(Event, frozen=True, kw_only=True, tag="attribution"):
    """Somebody says who speaks: `speaker`, or nobody who is known if that is 0.

    It is about the words from number `first` of final `seq` to number `last` of final `to_seq`, or
    all that follow if that is 0; and of these about the words of speaker `was`, unless that is 0.
    Finals stay as they were sent.
    """

    speaker: int
    seq: int
    first: int = 0
    to_seq: int = 0
    last: int = 0
    was: int = 0


Edit = Correction | SpeakerName | Attribution
"""What somebody changes in a transcript; finals stay as they were sent."""
Note = Edit | Sound
"""What is added to finals, or stands beside them: it is stored, and replayed behind them, in the
order in which it came. A new kind of note is a struct of its own in this union."""


class Translation(Event, _InSeconds, frozen=True, kw_only=True, tag="translation"):
    """A sentence in another language, `into`, made by a machine; for whoever has asked for it.

    It replaces the translation of the sentence that began with segment `seg` (of that `channel`),
    unless that was `complete`: such a one never changes. `rev` counts up within the sentence.
    `first` and `last` are the numbers of its finals, 0 as long as none is final. `language` is what
    was spoken; where that is `into`, the text is as it was said.
    """

    into: str
    language: str
    seg: int
    rev: int
    first: int
    last: int
    start_ms: int
    end_ms: int
    text: str
    complete: bool
    channel: int | msgspec.UnsetType = msgspec.UNSET


class SpeakerTurn(msgspec.Struct, _InSeconds, frozen=True, kw_only=True):
    """A stretch of time in which `speaker` talks."""

    start_ms: int
    end_ms: int
    speaker: int


class SpeakerTurns(Event, frozen=True, kw_only=True, tag="speakers"):
    """Who talks from `start_ms` to `end_ms`; replaces what earlier events said of that time.

    `turns` are in order of their beginnings, and overlap where people talk at the same time.
    A speaker who has said no word yet is in none of them. `channel` is as in `Partial`: words of
    other channels are not meant.
    """

    start_ms: int
    end_ms: int
    turns: tuple[SpeakerTurn, ...]
    channel: int | msgspec.UnsetType = msgspec.UNSET


class Vad(Event, frozen=True, kw_only=True, tag="vad"):
    """Speech started (the time includes the pre-roll) or stopped (the time of the endpoint).

    `channel` is as in `Partial`.
    """

    speech: bool
    t_ms: int
    channel: int | msgspec.UnsetType = msgspec.UNSET


class TurnState(StrEnum):
    """What somebody does who speaks (`TurnEvent.state`)."""

    PAUSED = "paused"  # and may be done
    RESUMED = "resumed"  # they were not
    ENDED = "ended"  # the silence was long enough


class TurnEvent(Event, frozen=True, kw_only=True, tag="turn"):
    """Somebody pauses, goes on or is done; only in sessions whose utterances do not end by silence.

    In segment `seg`, at `t_ms`: where the silence began, the speech went on, or the segment ended.
    `prob` is how probable it was in the last pause that they are done, 0..1.
    """

    seg: int
    state: str
    t_ms: int
    prob: float


class Unclear(Event, _InSeconds, frozen=True, kw_only=True, tag="unclear"):
    """There was a voice from `start_ms` to `end_ms`, but no words were found in it."""

    start_ms: int
    end_ms: int


class Lag(Event, frozen=True, kw_only=True, tag="lag"):
    """The engine lags by `lag_ms` of audio; nothing is lost, steps are merged."""

    lag_ms: int


class Gap(Event, frozen=True, kw_only=True, tag="gap"):
    """`duration_ms` of audio from `t_ms` on never reached us (`why`: a `GapReason`)."""

    t_ms: int
    duration_ms: int
    why: str


Item = Final | Gap | Sound
"""What a transcript consists of."""


class Missed(Event, frozen=True, kw_only=True, tag="missed"):
    """A replay has a hole here, and only here.

    `why` is a `MissedReason`. With "retention", finals `from_seq` to `to_seq` are gone. With
    "epoch" the last finals of the earlier run are lost; how many is not known: both numbers are 0.
    """

    from_seq: int
    to_seq: int
    why: str


class Fault(Event, frozen=True, kw_only=True, tag="error"):
    """Something failed; `fatal` says that the session ends with it. `code` is for programs.

    `heard_ms` comes with `session_over`: how much of the client's audio is final.
    """

    code: str
    message: str
    fatal: bool = False
    heard_ms: int | msgspec.UnsetType = msgspec.UNSET


class Eos(Event, frozen=True, kw_only=True, tag="eos"):
    """End of the session: nothing follows. `seq` is the last final's; `reason`: an `EndReason`."""

    seq: int
    reason: str


class Flushed(Event, frozen=True, kw_only=True, tag="flushed"):
    """For the client alone: all audio before its `flush` with this `id` is final, up to `seq`."""

    id: str
    seq: int


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """Answer to a `start` that counts samples: continue with sample number `samples`."""

    samples: int


class Ack(Event, frozen=True, kw_only=True, tag="ack"):
    """For the client alone: the samples before number `samples` will not be needed again."""

    samples: int


class Stats(Event, frozen=True, kw_only=True, tag="stats"):
    """The state of the session; a newer one replaces it.

    `audio_ms`: audio so far; `lag_ms`: speech that waits for the engine; `lost_ms`: in gaps; `rtf`:
    seconds that the engine needs for a second of audio; `listeners`: clients that only listen.
    `model`: while a smaller model makes the captions, its name, and until when.
    """

    audio_ms: int
    lag_ms: int
    lost_ms: int
    rtf: float
    listeners: int
    model: str | msgspec.UnsetType = msgspec.UNSET


SessionEvent = (
    Partial
    | Final
    | Correction
    | Sound
    | Notice
    | SpeakerName
    | Attribution
    | Translation
    | SpeakerTurns
    | Vad
    | TurnEvent
    | Unclear
    | Lag
    | Gap
    | Missed
    | Fault
    | Flushed
    | Started
    | Ack
    | Stats
    | Eos
)
"""Everything that a subscriber may receive after ``hello``."""

_encoder = msgspec.json.Encoder()


def encode(message: object) -> str:
    """An event, or what else JSON can hold, as one JSON text frame."""
    return _encoder.encode(message).decode()
