"""The text of the utterance that is being transcribed, and the windows that it is read in.

The words of a segment stand in this order, by time:

- *context*: the last words of the utterance before, if this one follows at once. Only the decoder
  gets them. They leave the window as a whole or from the front, and never come back.
- *committed*: words of this utterance that never change. The first `n_left` of them have left the
  window; the others are forced on the decoder as the window's prefix. None has left while there is
  still context in the window, and the mark that the decoder puts behind the context is decided with
  the first word that is committed.
- *uncommitted*: the other words of the last hypothesis, which the next one replaces.

The window begins at `anchor`, which never goes back. What the session does with the windows moves
the segment from one `Stage` to the next:

- READING: no window is out. One may become due.
- OUT: the recognizer has a window. The words and the anchor stay as they are until it comes back.
- PREPARED: the hypothesis of a pause will be the final if the silence lasts. No window is due. The
  utterance is ANSWERED (`streamd.session.utterance`).
- DONE: its final was published, or there are no words.

Every last window that comes back ends the utterance, prepares its final, is too late
because of what was heard meanwhile, or moves the anchor (`restart`). So only finitely many come.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import pairwise, takewhile

from streamd.events import Final, Partial, SessionEvent, timed, with_lasting_words
from streamd.language import ends_sentence
from streamd.session.commit import count_ended
from streamd.session.segmenter import Segmenter
from streamd.session.spelling import capitalised, split_mark
from streamd.session.utterance import State, Utterance
from streamd.types import N_AUDIO_CTX, Hypothesis, Word, ms_from_frames, text_of
from streamd.whisper.marks import is_mark, with_marks

SENTENCE_GAP = 5
"""Frames (100 ms) between the words of two sentences, for the first to be a final of its own. Where
people talk to each other, the next sentence is often another person's; where the gap is shorter,
the mark may be that of an abbreviation."""
FORCE_AFTER, FORCE_AGE = 400, 100
"""Frames: if no word was committed for the first, those older than the second are, anyway. It
bounds the delay where hypotheses never agree; in 1,170 words of speech they always did before."""


UNMARKED = 16
"""Committed words after which marks and capitals are decided again although nobody pauses."""


class Stage(Enum):
    """Where a segment is between two windows."""

    READING = auto()
    OUT = auto()
    PREPARED = auto()
    DONE = auto()


class Move(Enum):
    """What takes a segment from one stage to another."""

    SEND = auto()
    """The recognizer gets a window."""
    RETURN = auto()
    """The window has come back."""
    PREPARE = auto()
    """It was the last one of a pause that still lasts."""
    RELEASE = auto()
    """That pause is over: there was speech, or the utterance has ended."""
    FINISH = auto()
    """The final is published, or there is none."""


MOVES = {
    Stage.READING: {Move.SEND: Stage.OUT, Move.PREPARE: Stage.PREPARED, Move.FINISH: Stage.DONE},
    Stage.OUT: {Move.RETURN: Stage.READING},
    Stage.PREPARED: {Move.RELEASE: Stage.READING},
    Stage.DONE: {},
}
"""The whole life of a segment. What is not in this table is a bug of the session."""


@dataclass(slots=True)
class PrecedingWords:
    """The last words of the utterance before, without the mark that closed it."""

    words: list[Word]
    ends_sentence: bool
    """Whether that mark, which was published, is a full stop or the like."""
    mark: Word | None = None
    """What the last hypothesis has in its place, before the first word of this utterance."""


@dataclass(slots=True)
class Segment:
    """The text of one utterance while it grows."""

    utterance: Utterance
    anchor: int
    """Where the next window begins."""
    next_due: int
    """Where the next window for a partial may end."""
    rev: int = 0
    """Partials with the segment's number so far; an utterance without words hands its own on."""
    context: PrecedingWords | None = None
    committed: list[Word] = field(default_factory=list)
    n_left: int = 0
    """How many committed words have left the window."""
    n_marked: int = 0
    """How many committed words there were when their marks were decided again."""
    uncommitted: Sequence[Word] = ()
    latest: Hypothesis = field(default_factory=Hypothesis)
    """The last hypothesis about any window of the utterance."""
    was_probable: bool = False
    """Whether any hypothesis about it was more than a guess (`streamd.whisper.decode`)."""
    heard_from: int | None = None
    """Where the decoder heard the first word of the last hypothesis."""
    was_read: bool = False
    """Whether there was text in any hypothesis about it."""
    turn_prob: float | None = None
    """How probable it is that the speaker is done, in a pause of which that was told."""
    stage: Stage = Stage.READING
    _prepared: tuple[int, Hypothesis] | None = None
    _shown: tuple[str, int] = ("", 0)

    def on(self, move: Move) -> None:
        """Go to the next stage.

        Raises
        ------
        RuntimeError
            `MOVES` has no such move in this stage.
        """
        following = MOVES[self.stage]
        if move not in following:
            raise RuntimeError(f"{move.name} cannot happen to a segment that is {self.stage.name}")
        self.stage = following[move]

    def prepare(self, end: int, hypothesis: Hypothesis) -> None:
        """Keep the hypothesis of a pause, decoded as the final of the audio up to `end`."""
        self.on(Move.PREPARE)
        self._prepared = (end, hypothesis)

    def release(self) -> tuple[int, Hypothesis]:
        """Return what `prepare` was given, since the pause is over."""
        self.on(Move.RELEASE)
        if self._prepared is None:
            raise RuntimeError("a segment is PREPARED without a hypothesis")
        prepared, self._prepared = self._prepared, None
        return prepared

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

    def last_end(self, segmenter: Segmenter) -> int | None:
        """Where the utterance ended, or would end if its pause lasts, or None."""
        utterance = self.utterance
        if utterance.state is State.ASKED and utterance.pause is not None:
            return utterance.pause + segmenter.options.trailing_silence
        return utterance.end

    def due(self, segmenter: Segmenter, step: int) -> tuple[int, bool] | None:
        """The end of the window that is due, if any, and whether it is the utterance's last."""
        if self.stage is not Stage.READING:
            return None
        last_end = self.last_end(segmenter)
        if last_end is not None:
            return last_end, True
        now = segmenter.cursor
        if step == 0 or now < self.next_due or self.utterance.state is not State.OPEN:
            return None
        # If a pause begins, its window replaces this one, and must not wait for it. So this one
        # waits, at most for as many more frames as a pause takes to be asked about.
        if segmenter.may_pause and now - self.next_due < segmenter.options.trailing_silence:
            return None
        end = now - (now - self.next_due) % step  # the latest step; missed ones merge
        return (end, False) if end > self.anchor else None

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

    def without_mark(self, hypothesis: Hypothesis) -> Hypothesis:
        """Take the mark that belongs behind the context from the start of a hypothesis.

        It was shown already, maybe as another one: only the decoder gets it. So what follows a full
        stop in the captions begins with a capital, whatever the decoder has put there.
        """
        context, words = self.context, hypothesis.words
        if context is None or self.committed:
            return hypothesis
        context.mark = None
        if words and is_mark(words[0].text.strip()):
            context.mark, words = words[0], words[1:]
        if words and context.ends_sentence:
            words = (capitalised(words[0]), *words[1:])
        return replace(hypothesis, words=words)

    def overdue(self, words: Sequence[Word], end: int) -> int:
        """How many words of a window that ends at `end` must be committed without agreement."""
        if end - self.read_until <= FORCE_AFTER:
            return 0
        return count_ended(words, end - FORCE_AGE)

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
        return self.leave(len(self.in_window), max(self.utterance.start, self.read_until))

    def drop_context(self) -> list[Word]:
        """Let the next window begin with the utterance. Returns the words of the context."""
        n_context = len(self.context.words) if self.context else 0
        return self.leave(n_context, self.utterance.start)

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

    def trim(self, segmenter: Segmenter, end: int, kept: int) -> list[Word]:
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
        return self.leave(n, segmenter.quietest(earliest, latest, near=last))

    def show(self, seg: int, end: int, now: int, *, hides_last: bool = False) -> list[SessionEvent]:
        """A partial of the audio up to `end`, if it is new."""
        words = [*self.committed, *self.uncommitted[: len(self.uncommitted) - hides_last]]
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

    def sentence(
        self, seg: int, hypothesis: Hypothesis, changes: Sequence[int] = ()
    ) -> Final | None:
        """The final of the first sentence, if another one has begun, which is now the first.

        The words of the sentence are the context of those that follow. At the frames `changes`,
        another speaker begins.
        """
        words, n = self.committed, next(self._sentence_ends(self.committed, changes), 0)
        if n == 0:
            return None
        at = self._between(words, n)
        final = self._final(seg, words[:n], at, hypothesis, continues=True)
        if inside := words[self.n_left : n]:
            before = self.context.words if self.context else []
            self.context = PrecedingWords([*before, *inside], ends_sentence=True)
        self.n_left, self.n_marked = max(0, self.n_left - n), max(0, self.n_marked - n)
        # As it is written by a session that resumes here, which knows how this one ended.
        self.committed = [capitalised(words[n]), *words[n + 1 :]]
        self.utterance.start = at
        self.rev, self._shown = 0, ("", 0)
        return final

    @property
    def last_sentence(self) -> int:
        """Where the last sentence begins, whether the sentences before it are finals or not."""
        *_, n = 0, *self._sentence_ends(self.words, ())
        return self._between(self.words, n) if n else self.utterance.start

    def _between(self, words: Sequence[Word], n: int) -> int:
        """The frame between the first `n` of the words and the others."""
        return max(self.utterance.start, (words[n - 1].end + words[n].start) // 2)

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

    def final(self, seg: int, end: int, hypothesis: Hypothesis) -> Final | None:
        """The utterance's final, or None if there is no text."""
        return self._final(seg, self.committed, end, hypothesis) if self.committed else None

    def _final(
        self,
        seg: int,
        words: Sequence[Word],
        end: int,
        hypothesis: Hypothesis,
        *,
        continues: bool = False,
    ) -> Final:
        final = Final(
            seg=seg,
            start_ms=ms_from_frames(self.utterance.start),
            end_ms=ms_from_frames(end),
            text=text_of(words),
            language=hypothesis.language,
            words=timed(with_marks(words), len(words)),
            continues=continues,
            avg_logprob=round(hypothesis.avg_logprob, 4),
            no_speech_prob=round(hypothesis.no_speech_prob, 4),
        )
        return with_lasting_words(final)
