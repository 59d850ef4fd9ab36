"""The text of the utterance that is being transcribed: which words are where, and why.

Its words stand in this order, by time:

- *context*: the last words of the utterance before, if this one follows at once. Only the decoder
  gets them. They leave the window as a whole or from the front, and never come back.
- *committed*: words of this utterance that never change. The first `n_left` of them have left the
  window; the others are forced on the decoder as the window's prefix. Context always leaves before
  committed words. Its closing mark is fixed together with the first committed word.
- *uncommitted*: the other words of the last hypothesis, which the next one replaces.

The next window begins at `anchor`, which never goes back. This knows neither the audio nor what a
recognizer said: the session decides which words are committed, and when a window is over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Protocol

from streamd.language import ends_sentence, is_mark
from streamd.session.commit import count_ended
from streamd.session.spelling import capitalised, split_mark
from streamd.types import N_AUDIO_CTX, Word, with_marks

SENTENCE_GAP = 5
"""A sentence becomes a final of its own if at least this many frames (100 ms) follow it. In
conversation, the next sentence is often another person's; with a shorter gap, the mark may belong
to an abbreviation."""
UNMARKED = 16
"""After this many committed words, marks and capitals are decided again even without a pause."""


class Quietest(Protocol):
    """Finds the frame boundary between two frames with the least sound around it."""

    def __call__(self, start: int, end: int, *, near: int) -> int:
        """Return it; ties go to the one nearest to `near`."""
        ...


@dataclass(slots=True)
class PrecedingWords:
    """The last words of the utterance before, without the mark that closed it."""

    words: list[Word]
    ends_sentence: bool
    """Whether that mark, which was published, is a full stop or the like."""
    mark: Word | None = None
    """What the last hypothesis has in its place, before the first word of this utterance."""


@dataclass(slots=True)
class SpokenText:
    """The words of one utterance while it grows, and of the one before if it follows at once."""

    start: int
    """Where the text begins that is in no final."""
    anchor: int
    """Where the next window begins."""
    context: PrecedingWords | None = None
    committed: list[Word] = field(default_factory=list)
    n_left: int = 0
    """How many committed words have left the window."""
    n_marked: int = 0
    """The number of committed words when marks were last decided."""
    uncommitted: Sequence[Word] = ()

    @property
    def in_window(self) -> list[Word]:
        """The words that the decoder is given: the context and the committed words after it."""
        own = self.committed[self.n_left :]
        return [*self.context.words, *own] if self.context else own

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens of the utterance's committed words inside the window."""
        return tuple(token for word in self.committed[self.n_left :] for token in word.tokens)

    @property
    def given_words(self) -> tuple[Word, ...]:
        """The words `in_window`, each with its mark."""
        return tuple(with_marks(self.in_window))

    @property
    def is_unmarked(self) -> bool:
        """Whether so much was committed since marks were decided that it has to be done again."""
        return len(self.committed) - self.n_marked >= UNMARKED

    def punctuate(self, words: Sequence[Word]) -> None:
        """Write the committed words in the window with the marks and capitals of these.

        `words` are those that `given_words` were, or none. The context was published: it stays.
        """
        if words:
            self.n_marked = len(self.committed)
            n_context = len(with_marks(self.context.words)) if self.context else 0
            self.committed[self.n_left :] = words[n_context:]

    @property
    def before(self) -> tuple[int, ...]:
        """Tokens of the context."""
        words = self.context.words if self.context else ()
        return tuple(token for word in words for token in word.tokens)

    @property
    def draft(self) -> tuple[int, ...]:
        """Tokens of the last hypothesis that are not committed."""
        mark = self.context.mark if self.context else None
        words = self.uncommitted if mark is None else (mark, *self.uncommitted)
        return tuple(token for word in words for token in word.tokens)

    @property
    def words(self) -> list[Word]:
        """The committed and the uncommitted words."""
        return [*self.committed, *self.uncommitted]

    @property
    def newest(self) -> list[Word]:
        """The words of the last sentence, which are here however fast the engine is."""
        *_, n = 0, *self._sentence_ends(self.words, ())
        return self.words[n:]

    @property
    def read_until(self) -> int:
        """The end of the last certain word, or where the window begins."""
        words = self.committed or (self.context.words if self.context else ())
        return max([self.anchor, *(word.end for word in words[-1:])])

    def continue_after(self, words: Sequence[Word], anchor: int) -> None:
        """Let the windows begin at `anchor`, with these words of the utterance before.

        Their closing mark is not among them. Whether the sentence ended there, the decoder can
        tell better now, and continues accordingly.
        """
        *kept, last = words
        if not is_mark(last.text):
            bare, _ = split_mark(last) or (last, None)
            kept.append(bare)
        self.context = PrecedingWords(kept, ends_sentence(last.text))
        self.anchor = anchor

    def commit(self, words: Sequence[Word], n: int, *, keeps_mark: bool = False) -> None:
        """Commit the first `n` of the words; the others stay uncommitted.

        With `keeps_mark`, a mark after the last word stays uncommitted. Which one belongs there
        is known only when the sentence continues: Whisper closes every window with a full stop.
        """
        if keeps_mark and n and n == len(words) and (parts := split_mark(words[-1])):
            words = [*words[:-1], *parts]
        if n and self.context and self.context.mark:
            self.context.words.append(self.context.mark)
            self.context.mark = None
        self.committed += words[:n]
        self.uncommitted = words[n:]

    def leave(self, n: int, anchor: int) -> list[Word]:
        """Let the first `n` words of the window leave it, and begin the next one at `anchor`.

        Returns these words.
        """
        gone = self.in_window[:n]
        n_context = len(self.context.words) if self.context else 0
        if self.context and n >= n_context:
            self.context = None
            self.n_left += n - n_context
        elif self.context:
            del self.context.words[:n]
        else:
            self.n_left += n
        self.anchor = max(self.anchor, anchor)
        return gone

    def restart(self, words: Sequence[Word]) -> list[Word]:
        """Commit the words, and let the next window begin behind them.

        Returns the words that leave the window.
        """
        self.commit(words, len(words))
        return self.leave(len(self.in_window), max(self.start, self.read_until))

    def drop_context(self) -> list[Word]:
        """Let the next window begin with the utterance. Returns the words of the context."""
        n_context = len(self.context.words) if self.context else 0
        return self.leave(n_context, self.start)

    def fit(self, end: int) -> list[Word]:
        """Let the context leave a window up to `end` that would be longer than 30 s with it.

        Whisper cannot take more, and the utterance by itself is not longer
        (`EndpointOptions.longest`). Returns the words that leave.
        """
        return self.drop_context() if end - self.anchor > N_AUDIO_CTX else []

    def skip(self, frame: int) -> list[Word]:
        """Commit the words of lost audio before a frame; return those that leave the window."""

        def is_gone(word: Word) -> bool:
            return word.start + word.end < 2 * frame

        self.commit(self.uncommitted, sum(1 for _ in takewhile(is_gone, self.uncommitted)))
        return self.leave(sum(1 for _ in takewhile(is_gone, self.in_window)), frame)

    def trim(self, end: int, kept: int, quietest: Quietest) -> list[Word]:
        """Let the next window begin later, where it is quietest between two committed words.

        `end` is where the last window ended. Committed words of the last `kept` frames stay in
        the window, as its prefix: a window that begins inside a word, or with a word that nothing
        precedes, is misread. Older words leave all at once when the window is twice as long: a
        window that begins elsewhere has to be encoded from its beginning. Returns the words that
        leave it.
        """
        inside, kept = self.in_window, min(kept, N_AUDIO_CTX // 2)
        if not inside or end - self.anchor <= kept * 2:
            return []
        n = count_ended(inside, inside[-1].end - kept)
        if n == 0:
            return []
        last, following = inside[n - 1].end, inside[n].start
        # Word times are rough: five frames either way.
        latest = min(max(last, following) + 5, end)
        earliest = min(max(self.anchor, last - 5), latest)
        return self.leave(n, quietest(earliest, latest, near=last))

    def take_sentence(self, changes: Sequence[int] = ()) -> list[Word]:
        """Return the words of the first sentence, if another one has begun, which is now the first.

        None are returned if not. The words of the sentence are the context of those that follow,
        and `start` is where these begin. At the frames `changes`, another speaker begins.
        """
        words, n = self.committed, next(self._sentence_ends(self.committed, changes), 0)
        if n == 0:
            return []
        at = self._between(words, n)
        if inside := words[self.n_left : n]:
            before = self.context.words if self.context else []
            self.context = PrecedingWords([*before, *inside], ends_sentence=True)
        self.n_left, self.n_marked = max(0, self.n_left - n), max(0, self.n_marked - n)
        # As it is written by a session that resumes here, which knows how this one ended.
        self.committed = [capitalised(words[n]), *words[n + 1 :]]
        self.start = at
        return words[:n]

    @property
    def last_sentence(self) -> int:
        """Where the last sentence begins, whether the sentences before it are finals or not."""
        *_, n = 0, *self._sentence_ends(self.words, ())
        return self._between(self.words, n) if n else self.start

    def _between(self, words: Sequence[Word], n: int) -> int:
        """The frame between the first `n` of the words and the others."""
        return max(self.start, (words[n - 1].end + words[n].start) // 2)

    def _sentence_ends(self, words: Sequence[Word], changes: Sequence[int]) -> Iterator[int]:
        """Yield the number of words up to the end of each sentence but the last.

        A mark, a gap and another speaker each may be wrong; two of them are enough.
        """
        for n, (word, following) in enumerate(pairwise(words), 1):
            if is_mark(following.text):
                continue
            is_end = ends_sentence(word.text)
            is_gap = following.start - word.end >= SENTENCE_GAP
            first, last = word.start + word.end, following.start + following.end
            is_change = any(first < 2 * at <= last for at in changes)
            if is_end + is_gap + is_change >= 2:
                yield n
