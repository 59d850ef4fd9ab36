"""Which of a hypothesis to believe: what was read in voices that say nothing is not text."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from streamd.search.guards import is_famous
from streamd.types import Hypothesis, Suspect, text_of

LEAST_LOGPROB, N_NEWEST = -1.0, 5
"""Words of a hypothesis with a lower mean log probability are committed only at the end, and so are
words while the mean difference of that and the probability of no speech is lower in the newest
hypotheses: in real speech in one window of 50, in a crowd's voices in nine of ten."""
MOST_VOICED = 0.2
"""From this share of voiced frames on, words are believed: somebody may well thank for watching."""
FAMOUS_NO_SPEECH = 0.35
"""Above this probability of no speech nobody thanked for watching. Tiny.en's "Thank you." in music
had 0.39."""


@dataclass(slots=True)
class Belief:
    """How probable the hypotheses about one utterance were."""

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=N_NEWEST))
    """The `evidence` for each hypothesis with words, the last ones of a pause excepted."""
    best: float = -math.inf
    """The most `evidence` for one of them, or for one without words."""

    def weigh(self, hypothesis: Hypothesis) -> None:
        """Count a new hypothesis among those that say whether the utterance is a guess."""
        found = hypothesis.evidence
        self.best = max(self.best, found)
        if hypothesis.words:
            self.newest.append(found)

    def is_guess(self, hypothesis: Hypothesis) -> bool:
        """Whether the newest hypothesis may be shown, but nothing of it is committed yet."""
        improbable = hypothesis.avg_logprob < LEAST_LOGPROB
        return improbable or self._mean() < LEAST_LOGPROB

    def is_invented(self, hypothesis: Hypothesis) -> bool:
        """Whether the last hypothesis is a guess, as all were before it, and should be dropped."""
        before = self._mean() if len(self.newest) == N_NEWEST else self.best
        return max(hypothesis.evidence, before) < LEAST_LOGPROB

    def _mean(self) -> float:
        return sum(self.newest) / max(len(self.newest), 1)


def is_context(hypothesis: Hypothesis) -> bool:
    """Whether a final is probable enough to be given to the decoder before the next one."""
    return hypothesis.evidence >= LEAST_LOGPROB


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
