"""What a session knows about the utterance that is being transcribed.

Its words are committed (they never change) or belong to the tail of the newest hypothesis. The
window begins at `anchor`; committed words inside the window are its prefix, those before it its
prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from streamd.events import Final, Partial, SessionEvent, timed
from streamd.session.hallucinations import believable
from streamd.types import Hypothesis, Word, ms_from_frames, text_of
from streamd.vad.segmenter import Segmenter
from streamd.vad.utterance import State, Utterance

FORCE_AFTER, FORCE_AGE = 400, 100
"""When nothing could be committed for so long, words of this age are committed unseen twice."""


@dataclass(slots=True)
class Segment:
    """The text of one utterance while it grows."""

    utterance: Utterance
    anchor: int
    """Where the next window begins."""
    next_due: int
    """Where the next window for a partial may end."""
    committed: list[Word] = field(default_factory=list)
    n_left: int = 0
    """How many committed words the window has left behind."""
    tail: Sequence[Word] = ()
    """The uncommitted words of the last hypothesis; the draft of the next."""
    held: tuple[int, Hypothesis] | None = None
    """A hypothesis decoded as final up to a frame, in case the utterance ends there."""
    newest: Hypothesis = field(default_factory=Hypothesis)
    """The last hypothesis about any window of the utterance."""
    rev: int = 0
    """How many partials the segment's number has had; an utterance without words leaves its own."""
    _shown: tuple[str, int] = ("", 0)

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens of the committed words inside the window."""
        return tuple(token for word in self.committed[self.n_left :] for token in word.tokens)

    @property
    def draft(self) -> tuple[int, ...]:
        """Tokens of the tail."""
        return tuple(token for word in self.tail for token in word.tokens)

    def last_end(self, segmenter: Segmenter) -> int | None:
        """Where the utterance ended, or will if the pause that it is in lasts; else None."""
        utterance = self.utterance
        if utterance.state is State.ASKED and utterance.pause is not None:
            return utterance.pause + segmenter.options.tail
        return utterance.end

    def due(self, segmenter: Segmenter, step: int) -> tuple[int, bool] | None:
        """Up to where audio should be transcribed now, if any, and whether that is the last."""
        last_end = self.last_end(segmenter)
        if last_end is not None:
            return last_end, True
        now = segmenter.cursor
        if step == 0 or now < self.next_due or self.utterance.state is not State.OPEN:
            return None
        end = now - (now - self.next_due) % step  # the newest boundary: missed steps merge
        return (end, False) if end > self.anchor else None

    def overdue(self, words: Sequence[Word], end: int, length: int) -> int:
        """How many of the newest words, heard up to frame `end`, cannot wait for agreement."""
        if end - self.anchor <= max(FORCE_AFTER, length * 3 // 2):
            return 0
        return sum(1 for word in words if word.end <= end - FORCE_AGE)

    def revise(self, words: Sequence[Word], n: int) -> None:
        """Commit the first `n` of the newest words; the others are the new tail."""
        self.committed += words[:n]
        self.tail = words[n:]

    @property
    def words(self) -> list[Word]:
        """All that was heard so far."""
        return [*self.committed, *self.tail]

    def skip(self, frame: int) -> list[Word]:
        """The audio before this frame is gone: what was heard of it is committed.

        Returns
        -------
        The committed words that the window leaves behind
        """
        gone = lambda word: word.start + word.end < 2 * frame  # noqa: E731 - used twice, here
        self.revise(self.tail, sum(1 for _ in takewhile(gone, self.tail)))
        before, inside = self.n_left, self.committed[self.n_left :]
        self.n_left += sum(1 for _ in takewhile(gone, inside))
        self.anchor = frame
        return self.committed[before : self.n_left]

    def trim(self, segmenter: Segmenter, end: int) -> list[Word]:
        """Move the window's start behind the committed words, into the quietest place near by.

        `end` is where the newest window ended: what comes after it was not heard yet.

        Returns
        -------
        The committed words that the window leaves behind
        """
        if len(self.committed) == self.n_left:
            return []
        last = self.committed[-1].end
        next_word = self.tail[0].start if self.tail else last
        # Word times are rough; but a word that ends with the window may go on behind it.
        latest = min(max(last, next_word) + 5, end)
        earliest = min(max(self.anchor, last - 5 if last < end else last), latest)
        return self.cut(segmenter.quietest(earliest, latest, near=last))

    def cut(self, frame: int) -> list[Word]:
        """Let the window begin here, behind all committed words; return those that it leaves."""
        left = self.committed[self.n_left :]
        self.anchor, self.n_left = max(frame, self.anchor), len(self.committed)
        return left

    def show(self, seg: int, end: int, now: int, *, hide: int = 0) -> list[SessionEvent]:
        """A partial of the audio up to frame `end`, if there is something new to see.

        `hide`: how many of the newest tentative words are kept back, since they change most.
        """
        words = [*self.committed, *self.tail[: max(0, len(self.tail) - hide)]]
        text, stable = text_of(words), len(text_of(self.committed))
        if (text, stable) == self._shown:
            return []
        self._shown = (text, stable)
        self.rev += 1
        return [
            Partial(
                seg=seg,
                rev=self.rev,
                start_ms=ms_from_frames(self.utterance.start),
                end_ms=ms_from_frames(end),
                text=text,
                stable=stable,
                words=timed(words, len(self.committed)),
                lag_ms=ms_from_frames(now - end),
            )
        ]

    def final(self, seg: int, end: int, hypothesis: Hypothesis) -> Final | None:
        """The utterance's final, or None if nothing was said."""
        text = text_of(self.committed)
        if not text:
            return None
        return Final(
            seg=seg,
            start_ms=ms_from_frames(self.utterance.start),
            end_ms=ms_from_frames(end),
            text=text,
            language=hypothesis.language,
            words=timed(self.committed, len(self.committed)),
            avg_logprob=round(hypothesis.avg_logprob, 4),
            no_speech_prob=round(hypothesis.no_speech_prob, 4),
        )


def usable(hypothesis: Hypothesis, final_until: int, segmenter: Segmenter) -> Hypothesis:
    """Leave out blanks, hallucinations, and words from audio that is final already (overlaps)."""
    words = tuple(
        word
        for word in hypothesis.words
        if word.text.strip() and word.start + word.end >= 2 * final_until
    )
    if words != hypothesis.words:
        hypothesis = replace(hypothesis, words=words)
    return believable(hypothesis, segmenter.voiced_share)
