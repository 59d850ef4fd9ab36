"""The committed tokens that a decoder is told as what was said before its window.

What misled the decoder once must not mislead it again (a loop that is fed back as prompt goes on),
and what was said long ago, or in another language, says nothing about what comes now. Rules:
openai/whisper `transcribe` (temperature), WhisperLiveKit (loops).
"""

from collections.abc import Sequence

from streamd.types import Hypothesis, Suspect, Word

LONG_SILENCE = 150
"""After this many frames without speech somebody speaks of something else."""
TOO_HOT = 0.5
"""What was decoded at a higher temperature is a guess."""


class Prompt:
    """Forgets by itself what is not worth knowing."""

    def __init__(self, n_tokens: int, *, keep: bool) -> None:
        """At most the last `n_tokens`; `keep`: of earlier utterances too."""
        self._n_tokens, self._keep = n_tokens, keep
        self._tokens: list[int] = []
        self._language = ""

    @property
    def tokens(self) -> tuple[int, ...]:
        """What to tell the decoder now."""
        return tuple(self._tokens)

    def begin(self, *, silence: int) -> None:
        """A new utterance begins, so many frames behind the one before."""
        if not self._keep or silence > LONG_SILENCE:
            self._tokens.clear()

    def remember(self, words: Sequence[Word], hypothesis: Hypothesis) -> None:
        """Add words that the window leaves behind, unless the newest `hypothesis` is doubtful."""
        if hypothesis.language != self._language:
            self._tokens.clear()
            self._language = hypothesis.language
        self._tokens += [token for word in words for token in word.tokens]
        if hypothesis.suspect is Suspect.LOOP or hypothesis.temperature > TOO_HOT:
            self._tokens.clear()
        del self._tokens[: max(0, len(self._tokens) - self._n_tokens)]
