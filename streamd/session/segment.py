"""The text of the utterance that is being transcribed, and which of a hypothesis to believe.

Words are committed (they never change) or belong to the tail of the newest hypothesis. The window
begins at `anchor`; committed words inside the window are its prefix, those before it its prompt.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from streamd.events import Final, Partial, SessionEvent, timed
from streamd.search.guards import is_famous
from streamd.types import Hypothesis, Suspect, Word, ms_from_frames, text_of
from streamd.vad.segmenter import Segmenter
from streamd.vad.utterance import State, Utterance

FORCE_AFTER, FORCE_AGE = 400, 100
"""Frames: if no word was committed for the first, those older than the second are, anyway."""
LEAST_LOGPROB, N_NEWEST = -1.0, 5
"""Words of a hypothesis with a lower mean log probability are committed only at the end, and so are
words while the mean difference of that and the probability of no speech is lower in the newest
hypotheses: in real speech in one window of 50, in a crowd's voices in nine of ten."""
LONGEST = 1_000
"""Frames of a window from which no committed words have to stay in it."""


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
    """How many committed words are before the window."""
    n_before: int = 0
    """How many committed words are of the utterance before: only the decoder gets them."""
    joint: Word | None = None
    """The mark that the newest hypothesis has between the utterance before and this one."""
    after_stop: bool = False
    """Whether the final before ends with a full stop, and this utterance continues it."""
    tail: Sequence[Word] = ()
    """The uncommitted words of the last hypothesis; the draft of the next."""
    held: tuple[int, Hypothesis] | None = None
    """A hypothesis decoded as final up to a frame, in case the utterance ends there."""
    newest: Hypothesis = field(default_factory=Hypothesis)
    """The last hypothesis about any window of the utterance."""
    evidence: list[float] = field(default_factory=list)
    """The `evidence` for each hypothesis with words, the last ones of a pause excepted."""
    best: float = -math.inf
    """The most `evidence` for one of them, or for one without words."""
    rev: int = 0
    """Partials with the segment's number so far; an utterance without words hands its own on."""
    _shown: tuple[str, int] = ("", 0)

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens of the utterance's committed words inside the window."""
        own = self.committed[max(self.n_left, self.n_before) :]
        return tuple(token for word in own for token in word.tokens)

    @property
    def before(self) -> tuple[int, ...]:
        """Tokens of the words inside the window that are of the utterance before."""
        words = self.committed[self.n_left : max(self.n_left, self.n_before)]
        return tuple(token for word in words for token in word.tokens)

    @property
    def draft(self) -> tuple[int, ...]:
        """Tokens of the tail."""
        joint = () if self.joint is None else self.joint.tokens
        return (*joint, *(token for word in self.tail for token in word.tokens))

    def without_joint(self, hypothesis: Hypothesis) -> Hypothesis:
        """Take the mark that belongs behind the utterance before from the start of a hypothesis.

        It was shown already, maybe as another one: only the decoder gets it. So what follows a full
        stop in the captions begins with a capital, whatever the decoder has put there.
        """
        if not self.n_before or len(self.committed) > self.n_before:
            return hypothesis
        words, self.joint = hypothesis.words, None
        if words and words[0].text.strip() in _MARKS:
            self.joint, words = words[0], words[1:]
        if words and self.after_stop:
            bare = words[0].text.lstrip()
            capital = words[0].text.removesuffix(bare) + bare[:1].upper() + bare[1:]
            words = (replace(words[0], text=capital), *words[1:])
        return replace(hypothesis, words=words)

    def last_end(self, segmenter: Segmenter) -> int | None:
        """Where the utterance ended, or would end if its pause lasts, or None."""
        utterance = self.utterance
        if utterance.state is State.ASKED and utterance.pause is not None:
            return utterance.pause + segmenter.options.tail
        return utterance.end

    def due(self, segmenter: Segmenter, step: int) -> tuple[int, bool] | None:
        """The end of the window that is due, if any, and whether it is the utterance's last."""
        last_end = self.last_end(segmenter)
        if last_end is not None:
            return last_end, True
        now = segmenter.cursor
        if step == 0 or now < self.next_due or self.utterance.state is not State.OPEN:
            return None
        end = now - (now - self.next_due) % step  # the newest step; missed ones merge
        return (end, False) if end > self.anchor else None

    def weigh(self, hypothesis: Hypothesis) -> None:
        """Count a new hypothesis among those that say whether the utterance is a guess."""
        found = evidence(hypothesis)
        self.best = max(self.best, found)
        if hypothesis.words:
            self.evidence.append(found)

    def is_guess(self, hypothesis: Hypothesis) -> bool:
        """Whether the newest hypothesis may be shown, but nothing of it is committed yet."""
        improbable = hypothesis.avg_logprob < LEAST_LOGPROB
        return improbable or self._mean_evidence() < LEAST_LOGPROB

    def is_invented(self, hypothesis: Hypothesis) -> bool:
        """Whether the last hypothesis is a guess, as all were before it, and should be dropped.

        Of 600 finals of real speech two had no better one; of 18 in mumbling and babble eight.
        """
        if len(self.committed) > self.n_before:
            return False
        before = self.best
        if len(self.evidence) >= N_NEWEST:
            before = self._mean_evidence()
        return max(evidence(hypothesis), before) < LEAST_LOGPROB

    @property
    def is_context(self) -> bool:
        """Whether its text is probable enough to be given to the decoder before the next one."""
        return evidence(self.newest) >= LEAST_LOGPROB

    def _mean_evidence(self) -> float:
        newest = self.evidence[-N_NEWEST:]
        return sum(newest) / max(len(newest), 1)

    def overdue(self, words: Sequence[Word], end: int) -> int:
        """How many words of a window that ends at `end` must be committed without agreement."""
        begin = self.committed[-1].end if self.committed else self.anchor
        if end - begin <= FORCE_AFTER:
            return 0
        return sum(1 for word in words if word.end <= end - FORCE_AGE)

    def revise(self, words: Sequence[Word], n: int) -> None:
        """Commit the first `n` of the words; the others are the new tail."""
        if n and self.joint is not None:
            self.committed.append(self.joint)
            self.n_before += 1
            self.joint = None
        self.committed += words[:n]
        self.tail = words[n:]

    def revise_but_mark(self, words: Sequence[Word], n: int) -> None:
        """Do the same, but leave a mark after the newest word in the tail.

        Which mark belongs there is known only when the sentence goes on: Whisper closes every
        window with a full stop.
        """
        if n and n == len(words) and (parts := split_mark(words[-1])):
            words = [*words[:-1], *parts]
        self.revise(words, n)

    def continue_after(self, before: "Segment") -> None:
        """Let the windows begin with what the utterance before has left in its own.

        Its closing mark is not among it. Whether the sentence ended there, the decoder knows better
        now, and it goes on accordingly.
        """
        self.committed = before.committed[before.n_left :]
        last = self.committed.pop()
        if last.text not in _MARKS:
            bare, _ = split_mark(last) or (last, None)
            self.committed.append(bare)
        self.n_before = len(self.committed)
        self.after_stop = last.text[-1:] in _STOPS
        self.anchor = before.anchor

    def restart(self, words: Sequence[Word]) -> list[Word]:
        """Commit the words, and let the next window begin behind them and all other known words.

        Returns the words that leave the window.
        """
        self.revise(words, len(words))
        self.joint = None
        gone, self.n_left = self.committed[self.n_left :], len(self.committed)
        if gone:
            self.anchor = max(self.anchor, self.utterance.start, gone[-1].end)
        return gone

    @property
    def words(self) -> list[Word]:
        """The committed and the tentative words."""
        return [*self.committed[self.n_before :], *self.tail]

    def skip(self, frame: int) -> list[Word]:
        """Commit the words of lost audio before a frame; return those that leave the window."""
        gone = lambda word: word.start + word.end < 2 * frame  # noqa: E731 - used twice, here
        self.revise(self.tail, sum(1 for _ in takewhile(gone, self.tail)))
        before, inside = self.n_left, self.committed[self.n_left :]
        self.n_left += sum(1 for _ in takewhile(gone, inside))
        self.anchor = frame
        return self.committed[before : self.n_left]

    def trim(
        self, segmenter: Segmenter, end: int, kept: int, *, is_over: bool = False
    ) -> list[Word]:
        """Let the next window begin later, where it is quietest between two committed words.

        `end` is where the newest window ended. Committed words of the last `kept` frames stay in
        the window, as its prefix, unless it is very long: a window that begins inside a word, or
        with a word that nothing precedes, is misread. They do so whatever its length if the
        utterance `is_over`, since how the next one begins must not depend on the engine's speed.
        Older words leave all at once when the window is twice as long: a window that begins
        elsewhere has to be encoded from its beginning. Returns the committed words that leave it.
        """
        left, kept = self.committed[self.n_left :], min(kept, LONGEST // 2)
        if not left or end - self.anchor <= kept * 2:
            return []
        n = sum(1 for _ in takewhile(lambda word: word.end <= left[-1].end - kept, left))
        if end - (left[n - 1].end if n else self.anchor) > LONGEST and not is_over:
            n = len(left)
        if n == 0:
            return []
        last = left[n - 1].end
        following = [*left[n:], *self.tail]
        next_word = following[0].start if following else last
        # Word times are rough: five frames either way. A word that ends with the window may go on.
        latest = min(max(last, next_word) + 5, end)
        earliest = min(max(self.anchor, last - 5 if last < end else last), latest)
        self.anchor = max(segmenter.quietest(earliest, latest, near=last), self.anchor)
        self.n_left += n
        return left[:n]

    def show(
        self, seg: int, end: int, now: int, *, hides_newest: bool = False
    ) -> list[SessionEvent]:
        """A partial of the audio up to `end`, if it is new."""
        own = self.committed[self.n_before :]
        words = [*own, *self.tail[: len(self.tail) - hides_newest]]
        text, stable = text_of(words), len(text_of(own))
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
                words=timed(words, len(own)),
                lag_ms=ms_from_frames(now - end),
            )
        ]

    def final(self, seg: int, end: int, hypothesis: Hypothesis) -> Final | None:
        """The utterance's final, or None if there is no text."""
        own = self.committed[self.n_before :]
        text, words = text_of(own), with_marks(own)
        if not text:
            return None
        return Final(
            seg=seg,
            start_ms=ms_from_frames(self.utterance.start),
            end_ms=ms_from_frames(end),
            text=text,
            language=hypothesis.language,
            words=timed(words, len(words)),
            avg_logprob=round(hypothesis.avg_logprob, 4),
            no_speech_prob=round(hypothesis.no_speech_prob, 4),
        )


_MARKS = ".,?!;:"
_STOPS = ".?!"


def split_mark(word: Word) -> tuple[Word, Word] | None:
    """The word and the mark at its end, which is its last token, or None if it has none."""
    text = word.text
    if len(word.tokens) < 2 or text[-1:] not in _MARKS or not text[-2:-1].isalnum():
        return None
    bare = replace(word, text=text[:-1], tokens=word.tokens[:-1])
    return bare, replace(word, text=text[-1], tokens=word.tokens[-1:], start=word.end)


def with_marks(words: Sequence[Word]) -> list[Word]:
    """Join each mark that stands alone to the word before it."""
    joined: list[Word] = []
    for word in words:
        if joined and word.text in _MARKS:
            joined[-1] = replace(
                joined[-1],
                text=joined[-1].text + word.text,
                tokens=(*joined[-1].tokens, *word.tokens),
            )
        else:
            joined.append(word)
    return joined


LEAST_DIGITS = 3
"""Digits in a row that are one number. Of two, each may be a number of its own: "for 5 6 weeks"."""


def with_numbers(words: Iterable[Word]) -> tuple[Word, ...]:
    """Join digits that stand alone, one after another, to the number that was dictated.

    Whether Whisper writes "9 0 2 1 0" or "90210" is chance, and later utterances would copy it. As
    one word, the number is also committed as a whole.
    """
    runs: list[list[Word]] = []
    for word in words:
        if runs and _is_digit(runs[-1][-1].text) and _is_digit(word.text.rstrip(_MARKS)):
            runs[-1].append(word)
        else:
            runs.append([word])
    numbers = [run if len(run) < LEAST_DIGITS else [_number(run)] for run in runs]
    return tuple(word for number in numbers for word in number)


def _is_digit(text: str) -> bool:
    return text[:1] == " " and len(text) == 2 and text[1].isdecimal()


def _number(digits: Sequence[Word]) -> Word:
    return replace(
        digits[0],
        text=" " + "".join(digit.text.lstrip() for digit in digits),
        end=digits[-1].end,
        prob=sum(digit.prob for digit in digits) / len(digits),
        tokens=tuple(token for digit in digits for token in digit.tokens),
    )


MOST_VOICED = 0.2
"""From this share of voiced frames on, words are believed: somebody may well thank for watching."""

FAMOUS_NO_SPEECH = 0.35
"""Above this probability of no speech nobody thanked for watching. Tiny.en's "Thank you." in music
had 0.39."""


def believable(hypothesis: Hypothesis, voiced_share: Callable[[int, int], float]) -> Hypothesis:
    """The hypothesis, without its words if they are a hallucination in silence.

    `voiced_share` returns the share of voiced frames between two frames. In speech, a suspected
    hallucination is believed: improbable words are often right.
    """
    words, suspected = hypothesis.words, hypothesis.suspect is Suspect.HALLUCINATION
    famous = is_famous(text_of(words))
    if not suspected and not famous:
        return hypothesis
    doubtful = famous and hypothesis.no_speech_prob > FAMOUS_NO_SPEECH
    if words and (doubtful or voiced_share(words[0].start, words[-1].end) < MOST_VOICED):
        return replace(hypothesis, words=(), tokens=(), suspect=Suspect.HALLUCINATION)
    return replace(hypothesis, suspect=None) if suspected else hypothesis


def evidence(hypothesis: Hypothesis) -> float:
    """How much speaks for a text: its mean log probability less the probability of no speech."""
    return hypothesis.avg_logprob - hypothesis.no_speech_prob


def usable(hypothesis: Hypothesis, final_until: int, segmenter: Segmenter) -> Hypothesis:
    """Leave out blanks, hallucinations, and words in audio that is final already (overlaps).

    Digits become numbers.
    """
    words = with_numbers(
        word
        for word in hypothesis.words
        if word.text.strip() and word.start + word.end >= 2 * final_until
    )
    if words != hypothesis.words:
        hypothesis = replace(hypothesis, words=words)
    return believable(hypothesis, segmenter.voiced_share)
