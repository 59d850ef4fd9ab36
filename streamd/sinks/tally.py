"""Counts what live captions promise: how many words were rewritten, and whether any final was."""

import time
from collections.abc import Callable
from difflib import SequenceMatcher

from streamd.events import Event, Final, Partial
from streamd.sinks.text import clean


def _bare(text: str) -> list[str]:
    """Return the words of a text, without the marks and capitals that may change."""
    words = ("".join(filter(str.isalnum, word)).casefold() for word in clean(text).split())
    return [word for word in words if word]


class Tally:
    """A sink that writes nothing; `lines` say what it has counted."""

    def __init__(self, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._cpu_s = cpu_s
        self._began_s: float | None = None
        self._guess: tuple[list[str], int] | None = None  # words, of which so many are fixed
        self._spoken_ms = self._end_ms = 0
        self.n_words = self.n_rewritten = self.n_broken = 0

    def write(self, event: Event) -> None:
        if self._began_s is None:
            self._began_s = self._cpu_s()  # the model is there
        if isinstance(event, Partial):
            words, fixed = _bare(event.text), _bare(event.text[: event.stable])
            self._compare(words)
            self._guess = words, len(fixed)
        elif isinstance(event, Final):
            words = _bare(event.text)
            self._compare(words)
            self.n_words += len(words)
            self._spoken_ms += event.end_ms - event.start_ms
            self._end_ms = event.end_ms
            self._guess = None

    def close(self) -> None: ...

    def _compare(self, words: list[str]) -> None:
        if self._guess is not None:
            shown, n_fixed = self._guess
            for what, begin, end, _, _ in SequenceMatcher(None, shown, words, False).get_opcodes():
                # The end of a guess may be withdrawn, or belong to the next sentence.
                if what == "replace" or (what == "delete" and end < len(shown)):
                    self.n_rewritten += end - begin
                    self.n_broken += max(0, min(end, n_fixed) - begin)

    def lines(self) -> list[str]:
        """Return what to say at the end, each within 80 columns; nothing if nobody has spoken."""
        if not self.n_words or self._began_s is None:
            return []
        share = (self._cpu_s() - self._began_s) / (self._end_ms / 1000)
        speech = f"{self._spoken_ms / 1000:.0f} s of speech, {self.n_words} words"
        rewritten = f"words rewritten while tentative: {self.n_rewritten}"
        return [
            f"{speech}, {share:.0%} of one core",
            f"{rewritten}; changed once final: {self.n_broken}",
        ]
