"""Which tokens may come next: Whisper's logit rules.

The rules depend on one row of logits and the tokens so far, so a draft is checked exactly as if it
had been sampled. Source: openai/whisper ``decoding.py`` (`SuppressBlank`, `SuppressTokens`,
`ApplyTimestampRules`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamd.language import COMMAS, MARKS
from streamd.options import DecodingOptions
from streamd.whisper.tokenizer import Tokenizer

Row = NDArray[np.float32]
"""(n_vocab,) logits of one position."""

_FULL_STOPS = ".。"
_DIGITS = tuple(f" {digit}" for digit in range(10))
"""Digits that stand alone, as words."""
_LATEST_START = 50
"""The latest time (1 s, in frames) at which the first segment of a window may begin."""
REFUSED = np.float32(-np.inf)


class Rules:
    """The rules of one decode."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        *,
        something_said: bool = False,
        continues: bool = False,
        refused: Sequence[int] = (),
        joins_digits: bool = False,
    ) -> None:
        """`something_said`: there is a forced prefix, so the transcript may end at once.

        openai-whisper refuses that even then, but a stream would invent a word whenever a window
        holds nothing new. `continues`: other text precedes, without its closing mark, which
        may come first, but not alone. `refused`: tokens that may neither come first nor behind that
        mark. `joins_digits`: no comma may follow a digit that stands alone.
        """
        self.eot, self._begin = tokenizer.eot, tokenizer.timestamp_begin
        self._options = options
        special = (
            *(tokenizer.transcribe, tokenizer.translate, tokenizer.sot),
            *(tokenizer.startofprev, tokenizer.startoflm, tokenizer.nospeech),
        )
        suppressed = {token for token in (*special, *options.suppress_tokens) if token >= 0}
        if -1 in options.suppress_tokens:
            suppressed.update(tokenizer.non_speech_tokens)
        self._suppressed = _ids(sorted(suppressed))
        self._stops = _ids(_single(tokenizer, _FULL_STOPS))
        self._commas = _ids(_single(tokenizer, COMMAS))
        self._digits = _single(tokenizer, _DIGITS) if joins_digits else []
        not_first, self._continuing = [*refused], list[int]()
        if options.suppress_blank and not something_said:
            blank = options.begin_suppress_tokens
            not_first += [*tokenizer.encode(" "), tokenizer.eot] if blank is None else blank
            self._continuing = _single(tokenizer, (*MARKS, "...")) if continues else []
        self._not_first = _ids(not_first)
        self._not_second = _ids([*not_first, *self._continuing])
        singly = (self._suppressed, self._not_second, self._commas, self._stops)
        refused_ids = np.unique(np.concatenate(singly))
        self.refused = refused_ids[(refused_ids >= 0) & (refused_ids < self.eot)]
        """The text tokens that may be refused while others are allowed."""

    def __call__(self, logits: Row, tokens: Sequence[int]) -> Row:
        """A copy of `logits` with -inf where a token may not follow the sampled `tokens`."""
        row = logits.copy()
        if not tokens:
            row[self._not_first] = REFUSED
        elif len(tokens) == 1 and tokens[0] in self._continuing:
            row[self._not_second] = REFUSED
        if tokens and tokens[-1] in self._digits:
            row[self._commas] = REFUSED
        row[self._suppressed] = REFUSED
        if self._options.text_only:
            row[self.eot + 1 : self._begin if self._options.timestamps else None] = REFUSED
        if self._options.stop_margin:
            self._prefer_comma(row)
        if self._options.timestamps:
            self._pair_timestamps(row, tokens)
            self._order_timestamps(row, tokens)
            self._prefer_timestamps(row)
        return row

    def _prefer_comma(self, row: Row) -> None:
        """Refuse a full stop that is hardly more probable than a comma."""
        stop, comma = row[self._stops].max(), row[self._commas].max()
        # The whole vocabulary is looked at last: for most rows that is not needed.
        if comma >= stop - self._options.stop_margin and stop == row.max():
            row[self._stops] = REFUSED

    def _pair_timestamps(self, row: Row, tokens: Sequence[int]) -> None:
        """Timestamps come in pairs (end, start), except the first one and one before the end."""
        begin = self._begin
        row[begin - 1] = REFUSED  # <|notimestamps|>
        if self._ends_segment(tokens):
            row[: self.eot] = REFUSED
        elif tokens and tokens[-1] >= begin:
            row[begin:] = REFUSED

    def _ends_segment(self, tokens: Sequence[int]) -> bool:
        """Whether the last token is a timestamp after text, which ends a segment."""
        return [token >= self._begin for token in tokens[-2:]] == [False, True]

    def _order_timestamps(self, row: Row, tokens: Sequence[int]) -> None:
        """Timestamps never decrease, no segment has length zero, and the first token is one."""
        begin = self._begin
        latest = next((token for token in reversed(tokens) if token >= begin), None)
        if latest is not None:
            row[begin : latest + (not self._ends_segment(tokens))] = REFUSED
        if not tokens:
            row[:begin] = REFUSED
            row[begin + _LATEST_START + 1 :] = REFUSED

    def _prefer_timestamps(self, row: Row) -> None:
        """Allow only timestamps if together they are more probable than any text token."""
        timestamps, text = row[self._begin :], row[: self._begin]
        top, best_text = timestamps.max(), text.max()
        if top + np.log(len(timestamps)) <= best_text:
            return  # however probable all of them are
        if np.log(np.exp(timestamps - top).sum()) + top > best_text:
            text[:] = REFUSED


def _ids(tokens: Sequence[int]) -> NDArray[np.int64]:
    """Places in a row, which numpy takes five times as fast as a list of them."""
    return np.array(tokens, np.int64)


def _single(tokenizer: Tokenizer, marks: Sequence[str]) -> list[int]:
    """The marks that are one token each."""
    return [token[0] for mark in marks if len(token := tokenizer.encode(mark)) == 1]
