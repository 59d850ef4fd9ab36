"""From the tokens of one window to segments, and to where the next window starts.

Times are milliseconds since the recording began, as integers: all the seconds that openai/whisper
computes here are multiples of 10 ms (5 where it halves one), so nothing is rounded. Knows nothing
of models. Source: openai/whisper ``transcribe.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamd.search.decode import Decoded
from streamd.search.tokenizer import Tokenizer
from streamd.types import FRAME_MS

COLUMN_MS = 10
"""One column of log-mel, the unit in which windows are placed."""
_COLUMNS = FRAME_MS // COLUMN_MS


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one window shows: `n_columns` of log-mel from column `seek` on."""

    seek: int
    n_columns: int

    @property
    def end(self) -> int:
        """The column behind it."""
        return self.seek + self.n_columns

    @property
    def start_ms(self) -> int:
        """When it begins."""
        return self.seek * COLUMN_MS

    @property
    def end_ms(self) -> int:
        """When it ends."""
        return self.end * COLUMN_MS


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word; `text` keeps its leading blank and its punctuation, `prob` is 0..1."""

    text: str
    start_ms: int
    end_ms: int
    prob: float

    @property
    def duration_ms(self) -> int:
        """How long it lasts."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text between two timestamps, or all of a window.

    `seek` is the first column of its window; `tokens`, each with its probability in `probs`, may
    contain timestamps; the numbers from `temperature` on are those of the whole window.
    """

    seek: int
    start_ms: int
    end_ms: int
    text: str
    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    language: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    words: tuple[SpokenWord, ...] = ()

    @property
    def seek_ms(self) -> int:
        """When its window began."""
        return self.seek * COLUMN_MS


class Split(NamedTuple):
    """A window's segments; the column to go on at; whether nothing is said behind the last one."""

    segments: list[Segment]
    seek: int
    complete: bool


def split(decoded: Decoded, tokenizer: Tokenizer, stretch: Stretch) -> Split:
    """Cut a window's text where one timestamp follows another.

    Text behind the last pair belongs to the next window, unless a timestamp ends it. Without a pair
    all of it is one segment.
    """
    tokens, begin = decoded.tokens, tokenizer.timestamp_begin
    is_time = [token >= begin for token in tokens]
    complete = is_time[-2:] == [False, True]
    cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    if not cuts:
        times = [token for token in tokens if token >= begin]
        length_ms = stretch.n_columns * COLUMN_MS
        if times and times[-1] != begin:
            length_ms = (times[-1] - begin) * FRAME_MS
        whole = _segment(decoded, tokenizer, stretch, span=(0, len(tokens)), ms=(0, length_ms))
        return Split([whole], stretch.end, complete)
    if complete:
        cuts.append(len(tokens))
    segments = []
    for first, last in zip([0, *cuts[:-1]], cuts, strict=True):
        ms = tuple((tokens[i] - begin) * FRAME_MS for i in (first, last - 1))
        segments.append(
            _segment(decoded, tokenizer, stretch, span=(first, last), ms=(ms[0], ms[1]))
        )
    seek = stretch.end if complete else stretch.seek + (tokens[cuts[-1] - 1] - begin) * _COLUMNS
    return Split(segments, seek, complete)


def end_of_words_ms(segments: Sequence[Segment]) -> int | None:
    """When the last word ends; without words, when the last segment does."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end_ms
    return segments[-1].end_ms if segments else None


def column_of(ms: int) -> int:
    """The column at a time, which may lie between two."""
    return round(ms / COLUMN_MS)


def _segment(
    decoded: Decoded,
    tokenizer: Tokenizer,
    stretch: Stretch,
    *,
    span: tuple[int, int],
    ms: tuple[int, int],
) -> Segment:
    """The tokens of `span`, said at `ms` since the window began."""
    tokens = decoded.tokens[slice(*span)]
    return Segment(
        seek=stretch.seek,
        start_ms=stretch.start_ms + ms[0],
        end_ms=stretch.start_ms + ms[1],
        text=tokenizer.decode(tokens),
        tokens=tokens,
        probs=decoded.token_probs[slice(*span)],
        language=decoded.language,
        temperature=decoded.temperature,
        avg_logprob=decoded.avg_logprob,
        no_speech_prob=decoded.no_speech_prob,
        compression_ratio=decoded.compression_ratio,
    )
