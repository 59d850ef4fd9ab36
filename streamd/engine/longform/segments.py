"""From the tokens of one window to segments, and to where the next window starts.

Inside these modules times are seconds since the recording began, as floats, and computed in
openai-whisper's order: words often last exactly as long as a rule allows, and then its rounding
decides. To everybody else they are whole milliseconds. Knows nothing of models. Source:
openai/whisper ``transcribe.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamd.mel.spectrogram import HOP
from streamd.search.decode import Decoded
from streamd.search.tokenizer import Tokenizer
from streamd.types import FRAME, SAMPLE_RATE

COLUMNS_PER_S = SAMPLE_RATE // HOP
"""Columns of log-mel, in which windows are placed."""
COLUMNS_PER_FRAME = FRAME // HOP
FRAME_S = FRAME / SAMPLE_RATE
"""One timestamp."""


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
    def start_s(self) -> float:
        """When it begins."""
        return self.seek * HOP / SAMPLE_RATE

    @property
    def length_s(self) -> float:
        """Return how long it is."""
        return self.n_columns * HOP / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word; `text` keeps its leading blank and its punctuation, `prob` is 0..1."""

    text: str
    start_s: float
    end_s: float
    prob: float

    @property
    def start_ms(self) -> int:
        """When it starts."""
        return round(1000 * self.start_s)

    @property
    def end_ms(self) -> int:
        """When it ends."""
        return round(1000 * self.end_s)

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
    start_s: float
    end_s: float
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
        """When its window begins."""
        return ms_of(self.seek)

    @property
    def start_ms(self) -> int:
        """When it starts."""
        return round(1000 * self.start_s)

    @property
    def end_ms(self) -> int:
        """When it ends."""
        return round(1000 * self.end_s)


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
        length_s = stretch.length_s
        if times and times[-1] != begin:
            length_s = (times[-1] - begin) * FRAME_S
        span = (0, len(tokens))
        whole = _segment(decoded, tokenizer, stretch, span=span, seconds=(0.0, length_s))
        return Split([whole], stretch.end, complete)
    if complete:
        cuts.append(len(tokens))
    segments = []
    for span in zip([0, *cuts[:-1]], cuts, strict=True):
        first, last = (tokens[i] - begin for i in (span[0], span[1] - 1))
        seconds = (first * FRAME_S, last * FRAME_S)
        segments.append(_segment(decoded, tokenizer, stretch, span=span, seconds=seconds))
    seek = (
        stretch.end
        if complete
        else stretch.seek + COLUMNS_PER_FRAME * (tokens[cuts[-1] - 1] - begin)
    )
    return Split(segments, seek, complete)


def end_of_words_s(segments: Sequence[Segment]) -> float | None:
    """When the last word ends; without words, when the last segment does."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end_s
    return segments[-1].end_s if segments else None


def column_at(seconds: float) -> int:
    """The column at a time, which may lie between two."""
    return round(seconds * COLUMNS_PER_S)


def ms_of(column: int) -> int:
    """When a column begins."""
    return column * 1000 // COLUMNS_PER_S


def _segment(
    decoded: Decoded,
    tokenizer: Tokenizer,
    stretch: Stretch,
    *,
    span: tuple[int, int],
    seconds: tuple[float, float],
) -> Segment:
    """The tokens of `span`, said from `seconds` to `seconds` after the window's beginning."""
    tokens = decoded.tokens[slice(*span)]
    return Segment(
        seek=stretch.seek,
        start_s=stretch.start_s + seconds[0],
        end_s=stretch.start_s + seconds[1],
        text=tokenizer.decode(tokens),
        tokens=tokens,
        probs=decoded.token_probs[slice(*span)],
        language=decoded.language,
        temperature=decoded.temperature,
        avg_logprob=decoded.avg_logprob,
        no_speech_prob=decoded.no_speech_prob,
        compression_ratio=decoded.compression_ratio,
    )
