"""What a hypothesis goes through before it counts: the ordered list, and why words were lost.

Each rule takes the hypothesis that the rules before it have left, and `TextFacts` that do not
change meanwhile. It returns a hypothesis, or the `Reason` why there is no text at all. `apply`
keeps what each rule left, so that "why was this word lost?" has an answer: the session reports it
as a `RuleNote`, and ``-v`` logs that.

1. `inside`: words lie in the window, one after the other, whatever the recognizer says.
2. `not_blank`: a blank is no word.
3. `not_final`: a word that is mostly before the last final was said there.
4. `lasting`: words last a frame, in order, behind those that are committed.
5. `not_only_marks`: marks alone are no text.
6. `joined_numbers`: digits that were dictated are one word.
7. `not_famous`: what Whisper writes for sounds without speech was not said.
8. `probable`: an utterance of which nothing was ever probable has no final.
9. `without_closing_mark`: the mark behind the utterance before was published with it.

After these, the session looks for another language and for voice that was left out, and commits:
nothing of a text that is suspect, or only a guess.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamd.language import FAMOUS_NO_SPEECH, is_famous, is_mark
from streamd.session.spelling import capitalised, with_numbers
from streamd.types import (
    DetectedLanguage,
    Hypothesis,
    Suspect,
    Window,
    Word,
    in_order,
    is_probable,
    text_of,
)

MOST_VOICED = 0.2
"""The share of voiced frames below which such a phrase was not said there. It matters with `--vad
webrtc` and `off`, which let noise into windows; with Silero, one word of 1,170 changes without."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What is known when a hypothesis comes back.

    All is final before frame `final_until`, and certain before frame `start` of the utterance.
    `before` is its last committed word. `follows_stop`: whether words of the utterance before, of
    which none is committed behind them, end a sentence; None: there are none. `was_probable`: an
    earlier hypothesis was. `voiced_share` tells the share of voiced frames between two.
    """

    window: Window
    final_until: int
    start: int
    before: Word | None
    follows_stop: bool | None
    was_probable: bool
    voiced_share: Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why there is no text. `is_void`: what else the recognizer says does not count either."""

    why: str
    suspect: Suspect | None = None
    is_void: bool = False

    def without_text(self, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis without its words."""
        suspect = self.suspect or hypothesis.suspect
        if not self.is_void:
            return replace(hypothesis, words=(), tokens=(), suspect=suspect)
        return Hypothesis(
            language=hypothesis.language,
            answers=tuple(filter(None, [hypothesis.answer(DetectedLanguage)])),
            suspect=suspect,
        )


Rule = Callable[[Hypothesis, TextFacts], Hypothesis | Reason]


@dataclass(frozen=True, slots=True)
class RuleStep:
    """What a rule was given and what it left, and why if that is no text."""

    rule: Rule
    before: Hypothesis
    after: Hypothesis
    why: str


@dataclass(frozen=True, slots=True)
class RuleNote:
    """For the log: what was decided about the text of the window from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    rule: str
    before: str
    after: str = ""
    why: str = ""

    def __str__(self) -> str:
        """One line."""
        after = f" became {self.after!r}" if self.after else ""
        because = f" ({self.why})" if self.why else ""
        return f"{self.start_ms}-{self.end_ms} ms, {self.rule}: {self.before!r}{after}{because}"


def inside(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis:
    """Give words times inside the window that never go back."""
    words: list[Word] = []
    start = end = facts.window.start
    for word in hypothesis.words:
        start = min(max(word.start, start), facts.window.end)
        end = min(max(word.end, start, end), facts.window.end)
        is_so = (word.start, word.end) == (start, end)
        words.append(word if is_so else replace(word, start=start, end=end))
    return replace(hypothesis, words=tuple(words))


def not_blank(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis:
    """Leave out words without text."""
    return replace(hypothesis, words=tuple(word for word in hypothesis.words if word.text.strip()))


def not_final(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis:
    """Leave out words that are final already.

    A word that a flush cut in two may begin where the utterance before has its end.
    """
    words = (word for word in hypothesis.words if word.start + word.end >= 2 * facts.final_until)
    return replace(hypothesis, words=tuple(words))


def lasting(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis:
    """Put words in order, behind those that are committed; see `in_turn`."""
    words = in_turn(hypothesis.words, facts.start, facts.window.end)
    return replace(hypothesis, words=tuple(words))


def in_turn(words: Sequence[Word], start: int, end: int) -> list[Word]:
    """The words between two frames, in order; each lasts a frame at least, if there is room.

    Attention may place two words on one frame, and words of a later window before those of another.
    """
    least = 1 if len(words) <= end - start else 0
    times = in_order([(word.start, word.end) for word in words], start, end, least=least)
    return [replace(word, start=at, end=to) for word, (at, to) in zip(words, times, strict=True)]


def not_only_marks(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis | Reason:
    """Marks are no text, unless there are words before them."""
    is_text = any(c.isalnum() for c in text_of(hypothesis.words))
    return hypothesis if facts.before or is_text else Reason("no letter and no digit")


def joined_numbers(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis:
    """Write digits that were dictated one by one as one number (`streamd.session.spelling`)."""
    return replace(hypothesis, words=with_numbers(hypothesis.words, facts.before))


def not_famous(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis | Reason:
    """What Whisper writes for sounds without speech was not said, if there was hardly any."""
    words = hypothesis.words
    if not words or not is_famous(text_of(words)):
        return hypothesis
    doubtful = (hypothesis.no_speech_prob or 0.0) > FAMOUS_NO_SPEECH
    if doubtful or facts.voiced_share(words[0].start, words[-1].end) < MOST_VOICED:
        return Reason("Whisper writes this for sounds without speech", Suspect.HALLUCINATION)
    return hypothesis


def probable(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis | Reason:
    """At its end, an utterance needs a text that is more than a guess; a translation does not."""
    window = facts.window
    if not window.last or facts.was_probable or window.options.task == "translate":
        return hypothesis
    if has_text(hypothesis) and is_probable(hypothesis, clear=window.retry.clear):
        return hypothesis
    return Reason("no text of the utterance was probable", Suspect.NO_SPEECH, is_void=True)


def without_closing_mark(hypothesis: Hypothesis, facts: TextFacts) -> Hypothesis:
    """Take the mark that belongs behind the utterance before from the start of the text.

    It was shown already, maybe as another one: only the decoder gets it. So what follows a full
    stop in the captions begins with a capital, whatever the decoder has put there.
    """
    words = hypothesis.words
    if facts.follows_stop is None:
        return hypothesis
    if words and is_mark(words[0].text.strip()):
        words = words[1:]
    if words and facts.follows_stop:
        words = (capitalised(words[0]), *words[1:])
    return replace(hypothesis, words=words)


def has_text(hypothesis: Hypothesis) -> bool:
    """Whether there are words that are not those of a loop, which are always probable."""
    return bool(hypothesis.words) and hypothesis.suspect is not Suspect.LOOP


RULES: tuple[Rule, ...] = (
    inside,
    not_blank,
    not_final,
    lasting,
    not_only_marks,
    joined_numbers,
    not_famous,
    probable,
    without_closing_mark,
)
"""All of them, in order."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """A hypothesis after all rules, and after each of them."""

    hypothesis: Hypothesis
    steps: tuple[RuleStep, ...]

    def at(self, rule: Rule) -> RuleStep:
        """What a rule did."""
        return next(step for step in self.steps if step.rule is rule)


def apply(hypothesis: Hypothesis, facts: TextFacts) -> Ruled:
    """Apply all rules in order."""
    steps: list[RuleStep] = []
    for rule in RULES:
        found = rule(hypothesis, facts)
        if isinstance(found, Reason):
            after, why = found.without_text(hypothesis), found.why
        else:
            after, why = found, ""
        steps.append(RuleStep(rule, hypothesis, after, why))
        hypothesis = after
    return Ruled(hypothesis, tuple(steps))


def notes(ruled: Ruled) -> list[tuple[str, str, str, str]]:
    """Return the name of each rule that changed the text, the text before and after, and why."""
    texts = ((step, text_of(step.before.words), text_of(step.after.words)) for step in ruled.steps)
    return [
        (step.rule.__name__.replace("_", " "), before, after, step.why)
        for step, before, after in texts
        if before != after
    ]
