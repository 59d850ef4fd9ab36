"""Track the language of a stream from what the recognizer detects in its utterances.

An utterance has one language. After a long pause, it is detected in the utterance's own first
seconds; a short utterance takes the language of the one before. People also change the language
without a pause, so the newest two seconds are checked every second. If they are clearly in another
language, the utterance ends where that language began. Nothing is committed before the language is
certain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from streamd.language import ends_sentence
from streamd.types import DetectedLanguage, Hypothesis, LanguageQuestion, Window, Word

SURE = 0.5
"""A language detected with a lower probability is detected again. In the first two seconds of 46
recordings in nine languages, every language with at least this probability was right."""
CLEAR, EXCLUDED = 0.9, 0.005
"""Another language has begun if its probability is at least `CLEAR` and that of the language
before at most `EXCLUDED`..."""
TWICE = 0.8
"""...or if it has this probability in two spans, and between them the language before never has
`SURE`. In a Spanish recording, spans were taken for Portuguese with 0.68, 0.98 and 0.35; Spanish
had 0.24, 0.011 and 0.24."""
SPAN = 100
"""Frames (2 s) of audio for each detection, which is repeated after half as many. In nine
languages, 3 of 203 spans of 2 s were taken for another language with `SURE` or more, and 8 of 199
spans of 1 s. 45 of 46 recordings in these languages were told apart by their first two seconds, so
that is also when the language of an utterance is decided."""


def surely_read(words: Sequence[Word], *, behind: str = "") -> list[Word]:
    """Return the words before the first one that seems to be decoded in the wrong language.

    Text decoded in the wrong language has many low-probability words. A single one between two
    confident words is probably a misheard word; it is kept unless a sentence ends before it.
    `behind` is the last committed word, which counts as confident.
    """
    sure: list[Word] = []
    is_clear, text = True, behind  # the word before
    for word, following in zip_longest(words, words[1:]):
        is_alone = is_clear and following is not None and not following.is_doubtful(TWICE)
        if word.is_doubtful(SURE) and (not is_alone or ends_sentence(text)):
            break
        sure.append(word)
        is_clear, text = not word.is_doubtful(TWICE), word.text
    return sure


@dataclass(frozen=True, slots=True)
class Change:
    """Another language began between two frames, or at the beginning of the utterance (`None`)."""

    language: str
    between: tuple[int, int] | None = None


class Language:
    """The language of a stream, which changes only on clear evidence."""

    def __init__(self, among: tuple[str, ...] = ()) -> None:
        """`among`: see `allow`."""
        self.known = ""
        """The language of the last utterance that was long enough, or empty."""
        self._next: Change | None = None
        self.begin(0)
        self.allow(among)

    def allow(self, among: tuple[str, ...]) -> None:
        """Limit the languages from now on to these codes; none: all.

        With a single one, nothing is detected.
        """
        self._among, self._detects = among, len(among) != 1
        if among and self.known not in among:
            self.known, self._decided = "", False
        if self._next is not None and among and self._next.language not in among:
            self._next = None

    @property
    def expected(self) -> str:
        """The language of the next window, if it detects none, or empty."""
        return self._among[0] if len(self._among) == 1 else self.known

    def begin(self, start: int, *, follows: bool = False) -> None:
        """Begin an utterance at frame `start`, which may be in another language.

        `follows`: it comes after a short pause, so it is probably in the same language.
        """
        self._start = self._asked = self._certain = start
        self._decided = follows and bool(self.known)
        self._other = ""  # a language that was probable in the last span, and may have begun
        self._clear_until = start  # in the language that is known
        self._unclear_at: int | None = None  # the end of the first span that may not be
        if self._next is not None:
            self.known, self._decided, self._next = self._next.language, True, None

    def question(self, start: int, end: int) -> LanguageQuestion | None:
        """What a window from `start` to `end` is to ask about its language, if anything."""
        if not self._detects:
            return None
        if not self.known or (not self._decided and end - self._start >= SPAN):
            return LanguageQuestion(self._start)
        if self._decided and start >= self._clear_until > self._start and end - start >= SPAN:
            # The rest on its own, which could not be read in this language.
            return LanguageQuestion(start, decides=False)
        is_heard = end - min(start, self._start) >= SPAN
        if self._decided and is_heard and end - self._asked >= SPAN // 2:
            # The first look may come late, where all audio was there at once. If the utterance is
            # shorter than a span, the one before is listened to as well.
            is_first = self._asked == self._start
            since = min(self._start, end - SPAN) if is_first else end - SPAN
            return LanguageQuestion(since, decides=False)
        return None

    def learn(self, window: Window, hypothesis: Hypothesis) -> Change | None:
        """Use the language detected in a window, unless it or the hypothesis is doubtful.

        Returns the change of language, if there is one.
        """
        if (question := window.asked(LanguageQuestion)) is None:
            return None
        heard = hypothesis.answer(DetectedLanguage)
        if heard is None or heard.prob is None:  # the model knows one language only
            self._detects = False
            return None
        self._asked = window.end
        if not question.decides:
            return self._follow(window.end, heard, heard.prob)
        is_sure = heard.prob >= SURE and not hypothesis.suspect
        return self._decide(window.end, heard) if is_sure else None

    def certain(self, end: int) -> int:
        """Return the frame up to which the language of a window that ends at `end` is certain."""
        is_long = not self._decided and end - self._start >= 2 * SPAN
        if not self._detects or is_long:
            return end
        # Words of an utterance may be placed in the silence before it; they are as uncertain.
        return self._certain if self._certain > self._start else 0

    def change(self, change: Change) -> None:
        """Begin the next utterance in the language to which it has changed."""
        self._next = change

    def _decide(self, end: int, heard: DetectedLanguage) -> Change | None:
        if end - self._start < SPAN:
            return None
        before, self.known = self.known, heard.language
        self._decided = True
        self._certain = self._clear_until = end - SPAN // 2
        return Change(self.known) if before not in {"", self.known} else None

    def _follow(self, end: int, heard: DetectedLanguage, prob: float) -> Change | None:
        """Judge the newest seconds of an utterance."""
        if heard.language == self.known:
            self._certain = end - SPAN // 2
            if heard.previous_prob >= SURE:
                self._other, self._clear_until, self._unclear_at = "", end - SPAN // 2, None
            else:  # no language is probable
                self._unclear_at = self._unclear_at or end
            return None
        self._unclear_at = self._unclear_at or end
        is_probable, before = prob >= TWICE, self._other
        self._other = heard.language if is_probable else before
        is_clear = prob >= CLEAR and heard.previous_prob <= EXCLUDED
        is_twice = is_probable and before == heard.language
        return self._begun(heard.language, end) if is_clear or is_twice else None

    def _begun(self, language: str, end: int) -> Change:
        """Return the change; it covers the whole utterance if the old language was never clear."""
        if self._clear_until > self._start:
            return Change(language, (self._clear_until, (self._unclear_at or end) - SPAN // 5))
        self.known, self._certain, self._other = language, end - SPAN // 2, ""
        return Change(language)
