"""The text before a window, which the decoder gets as its prompt.

Text that misled the decoder once must not mislead it again: a loop that comes back as the prompt
continues, and text drawn at a high temperature is a guess. Text in another language does not help
either. Rules: openai/whisper `transcribe` (temperature), WhisperLiveKit (loops).
"""

from collections.abc import Sequence

TOO_HOT = 0.5
"""Text decoded at a higher temperature is not a prompt for what follows (openai-whisper)."""


class Prompt:
    """The newest tokens of a transcript, after an initial prompt."""

    def __init__(self, longest: int, *, initial: Sequence[int] = ()) -> None:
        """Keep at most `longest` tokens."""
        self.tokens = tuple(initial)
        """The prompt of the next window."""
        self._longest = longest
        self._language = ""

    def remember(
        self, tokens: Sequence[int], *, language: str, temperature: float, doubtful: bool = False
    ) -> None:
        """Add the tokens of a window, or forget everything if they are `doubtful`.

        Text in another `language`, if that is not empty, replaces what there was.
        """
        if language and self._language not in ("", language):
            self.forget()
        self._language = language or self._language
        tokens = (*self.tokens, *tokens)
        self.tokens = tokens[max(0, len(tokens) - self._longest) :]
        if doubtful or temperature > TOO_HOT:
            self.forget()

    def forget(self) -> None:
        """Drop all tokens."""
        self.tokens = ()
