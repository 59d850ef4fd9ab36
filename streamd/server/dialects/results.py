"""The results of Deepgram's live API: what was said, with its words and times."""

import string
from collections.abc import Mapping, Sequence

from msgspec import UNSET

from streamd.events import Final, Partial, TimedWord
from streamd.server.dialects.dialect import Tell, tell
from streamd.server.wire import Hello
from streamd.types import mean_prob, rounded


class Results:
    """The results of one request, whose id is the name of the session.

    `ends_speech`: whether the last final of an utterance ends speech, as with ``endpointing``.
    `n_channels`: of those that have captions of their own.
    """

    def __init__(self, hello: Hello, *, ends_speech: bool, n_channels: int = 1) -> None:
        self._hello, self._ends_speech, self._n_channels = hello, ends_speech, n_channels

    def index(self, channel: int) -> list[int]:
        """Return what tells which channel it is: they count from 0, and there are so many."""
        return [max(0, channel - 1), self._n_channels]

    def of(self, event: Partial | Final, *, from_finalize: bool = False) -> Tell:
        """Return an interim result, or a final one, which may answer a ``Finalize``."""
        is_final = isinstance(event, Final)
        ends_speech = isinstance(event, Final) and not event.continues
        best: dict[str, object] = {
            "transcript": event.text,
            "confidence": confidence(event.words),
            "words": [listed(word, tells_speaker=not event.channel) for word in event.words],
        }
        if isinstance(event, Final) and event.language:
            best["languages"] = [event.language]
        name = self._hello.model
        model = {"name": name, "version": "1", "arch": "whisper"}
        ids = {"request_id": self._hello.session, "model_uuid": name}
        return tell(
            "Results",
            channel_index=self.index(event.channel or 0),
            start=event.start,
            duration=(event.end_ms - event.start_ms) / 1000,
            is_final=is_final,
            speech_final=ends_speech and self._ends_speech,
            from_finalize=from_finalize,
            channel={"alternatives": [best]},
            metadata={**ids, "model_info": model},
        )

    def empty(self, now_ms: int, channel: int = 0) -> Tell:
        """Return the answer to a ``Finalize`` that brought no speech."""
        nothing = Final(
            seg=0, start_ms=now_ms, end_ms=now_ms, text="", language="", channel=channel or UNSET
        )
        return self.of(nothing, from_finalize=True)

    def metadata(self, duration_ms: int, channels: int) -> Tell:
        """Return the last message of a request."""
        of_request = {"request_id": self._hello.session, "created": self._hello.started}
        of_audio = {"duration": duration_ms / 1000, "channels": channels}
        return tell("Metadata", **of_request, **of_audio, transaction_key="", sha256="")


def confidence(words: Sequence[TimedWord]) -> float:
    """Return the mean probability of words; 1 if the model tells none: it must be a number."""
    mean = rounded(mean_prob(word.prob for word in words))
    return float(bool(words)) if mean is None else mean


def listed(word: TimedWord, *, tells_speaker: bool) -> Mapping[str, object]:
    """Return a word as results list it."""
    bare = word.text.strip(string.punctuation).lower() or word.text
    texts = {"word": bare, "punctuated_word": word.text}
    facts = {**texts, "confidence": confidence([word]), "start": word.start, "end": word.end}
    if word.speaker and tells_speaker:
        return facts | {"speaker": word.speaker - 1}  # counts from 0
    return facts
