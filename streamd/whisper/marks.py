"""The marks that end and divide sentences, in all scripts, for everything that looks at them."""

from collections.abc import Sequence
from dataclasses import replace

from streamd.types import Word

STOPS = ".?!。？！"
"""Each ends a sentence."""
COMMAS = ",，、"
MARKS = STOPS + COMMAS + ";:；："
"""What the decoder may write right behind a word. The full-width ones are two or three tokens."""


def is_mark(text: str) -> bool:
    """Whether the text is one of the marks and nothing else."""
    return len(text) == 1 and text in MARKS


TITLES = frozenset({"dr.", "mr.", "mrs.", "ms.", "prof."})
"""What a name follows, even after a breath."""


def ends_sentence(text: str) -> bool:
    """Whether the text ends with a full stop, a question mark or an exclamation mark.

    Three dots are none of these: the speaker breaks off. Nor is the full stop of a title.
    """
    is_title = text.rpartition(" ")[2].lower() in TITLES
    return text.endswith(tuple(STOPS)) and not text.endswith("...") and not is_title


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
