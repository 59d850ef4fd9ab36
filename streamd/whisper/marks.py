"""The marks that the decoder may write right behind a word, and the words that they close."""

from collections.abc import Sequence
from dataclasses import replace

from streamd.types import Word

STOPS = ".?!。？！"
COMMAS = ",，、"
MARKS = STOPS + COMMAS + ";:；："
"""All of them. The full-width ones are two or three tokens."""


def is_mark(text: str) -> bool:
    """Whether the text is one of the marks and nothing else."""
    return len(text) == 1 and text in MARKS


def with_marks(words: Sequence[Word]) -> list[Word]:
    """Join each mark that stands alone to the word before it."""
    joined: list[Word] = []
    for word in words:
        if joined and is_mark(word.text):
            joined[-1] = replace(
                joined[-1],
                text=joined[-1].text + word.text,
                tokens=(*joined[-1].tokens, *word.tokens),
                n_mark=len(word.tokens),
            )
        else:
            joined.append(word)
    return joined
