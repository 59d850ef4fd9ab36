"""What a session knows about the utterance that is being transcribed.

Its words are committed (they never change) or belong to the tail of the newest hypothesis. The
window begins at `anchor`; committed words inside the window are its prefix, those before it its
prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamd.events import Final, Partial, SessionEvent, timed
from streamd.types import Hypothesis, Word, ms_from_frames, text_of
from streamd.vad.segmenter import Segmenter, Utterance


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
    safe_cut: tuple[int, int] | None = None
    """A frame in a pause, and how many committed words are all that was said before it."""
    _rev: int = 0
    _shown: tuple[str, int] = ("", 0)

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens of the committed words inside the window."""
        return tuple(token for word in self.committed[self.n_left :] for token in word.tokens)

    @property
    def draft(self) -> tuple[int, ...]:
        """Tokens of the tail."""
        return tuple(token for word in self.tail for token in word.tokens)

    def revise(self, words: Sequence[Word], n: int) -> None:
        """Commit the first `n` of the newest words; the others are the new tail."""
        self.committed += words[:n]
        self.tail = words[n:]

    def trim(self, segmenter: Segmenter) -> list[Word]:
        """Move the window's start behind committed words, if possible into a pause.

        Returns
        -------
        The committed words that the window leaves behind
        """
        if self.safe_cut is not None:
            (cut, n), self.safe_cut = self.safe_cut, None
        elif len(self.committed) > self.n_left:
            n, last = len(self.committed), self.committed[-1].end
            next_word = self.tail[0].start if self.tail else last
            # Word times are rough: look for the quietest place between the two words.
            latest = min(max(last, next_word) + 5, segmenter.cursor)
            earliest = min(max(self.anchor, last - 5), latest)
            cut = segmenter.quietest(earliest, latest, near=last)
        else:
            return []
        left = self.committed[self.n_left : n]
        self.anchor, self.n_left = max(cut, self.anchor), n
        return left

    def show(self, seg: int, end: int, now: int) -> list[SessionEvent]:
        """A partial of the audio up to frame `end`, if there is something new to see."""
        text, stable = text_of([*self.committed, *self.tail]), len(text_of(self.committed))
        if (text, stable) == self._shown:
            return []
        self._shown = (text, stable)
        self._rev += 1
        return [
            Partial(
                seg=seg,
                rev=self._rev,
                start_ms=ms_from_frames(self.utterance.start),
                end_ms=ms_from_frames(end),
                text=text,
                stable=stable,
                words=timed([*self.committed, *self.tail], len(self.committed)),
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
