"""The marks that end and divide sentences, in all scripts, for everything that looks at them."""

STOPS = ".?!。？！"
"""Each ends a sentence."""
COMMAS = ",，、"
MARKS = STOPS + COMMAS + ";:；："
"""What the decoder may write right behind a word. The full-width ones are two or three tokens."""


def is_mark(text: str) -> bool:
    """Whether the text is one of the marks and nothing else."""
    return len(text) == 1 and text in MARKS


def ends_sentence(text: str) -> bool:
    """Whether the text ends with a full stop, a question mark or an exclamation mark.

    Three dots are none of these: the speaker breaks off.
    """
    return text.endswith(tuple(STOPS)) and not text.endswith("...")
