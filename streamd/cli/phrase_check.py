"""``streamd vocabulary check``: what a list of phrases becomes, and which of them are risky."""

from collections.abc import Iterator

from streamd.config import Config
from streamd.daemon import phrases
from streamd.daemon.build import tokenizer
from streamd.models.store import load_model
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import parse

_FEWEST_LETTERS = 4
"""Shorter phrases are like too many other sounds."""
_HEAVY = 3
"""With a weight of 4, tiny.en writes "Lampe" where "lamp" was said."""
_MOST_TOKENS = 24
"""Longer phrases are sentences."""


def report(config: Config) -> Iterator[str]:
    """Yield a line for each phrase of the file that is named, and then how many are risky.

    Raises `StreamdError` if the file cannot be read or there is no such model.
    """
    words = tokenizer(config, load_model(config.decoding.model))
    listed = parse(phrases.read(config.input.files[0]))
    n_risky, before = 0, set[str]()
    for phrase in listed:
        tokens = words.encode(f" {phrase.text}")
        why = risk(phrase.text, words)
        if phrase.weight > _HEAVY:
            why = why or "so heavy that it is written where something like it was said"
        if phrase.text in before:
            why = "listed twice: the greatest weight counts"
        before.add(phrase.text)
        n_risky += bool(why)
        pieces = "|".join(words.decode((token,)) for token in tokens)
        line = f"{phrase.text}  tokens: {len(tokens)} ({pieces.strip()})"
        yield f"{line}  RISKY: {why}" if why else line
    yield f"{len(listed)} phrases, {n_risky} of them risky"


def risk(phrase: str, tokenizer: Tokenizer) -> str:
    """Why a phrase may appear where nobody said it, or be of no use; empty if neither is likely."""
    tokens = tokenizer.encode(f" {phrase}")
    letters = [letter for letter in phrase if letter.isalnum()]
    if len(letters) < _FEWEST_LETTERS and max(letters, default="") < "\u0e00":
        return "so short that other words sound like it"
    if len(tokens) == 1 and phrase.islower():
        return "the model knows it as one token: a common word, which it hears without help"
    if len(tokens) > _MOST_TOKENS:
        return "so long that it is hardly ever said in these words: list its names alone"
    return ""
