"""``streamd vocabulary check``: what a list of phrases becomes, and which of them are risky."""

from collections.abc import Iterator, Sequence

from streamd.config import Config
from streamd.daemon import phrases
from streamd.daemon.build import tokenizer
from streamd.documents.texts import kind_of
from streamd.models.store import load_model
from streamd.whisper.terms import risk, terms
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import parse

_HEAVY = 3
"""With a weight of 4, tiny.en writes "Lampe" where "lamp" was said."""


def report(config: Config) -> Iterator[str]:
    """Yield a line for each phrase of the file that is named, and then how many are risky.

    Of a document, which is told by its name, these are the words that ``--context`` would have
    expected. Raises `StreamdError` if the file cannot be read or there is no such model.
    """
    words = tokenizer(config, load_model(config.decoding.model))
    if kind_of(config.input.files[0]) != ".txt":
        yield from _of_document(config.input.files[0], words)
        return
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
        line = f"{phrase.text}  tokens: {len(tokens)} ({_pieces(tokens, words)})"
        yield f"{line}  RISKY: {why}" if why else line
    yield f"{len(listed)} phrases, {n_risky} of them risky"


def _of_document(name: str, words: Tokenizer) -> Iterator[str]:
    found = terms(phrases.text_of(name), words)
    for term in found:
        tokens = words.encode(f" {term.text}")
        yield f"{term.text}  tokens: {len(tokens)} ({_pieces(tokens, words)})  {term.why}"
    yield f'{len(found)} words to expect; a line "NAME:0" in the vocabulary file leaves one out'


def _pieces(tokens: Sequence[int], words: Tokenizer) -> str:
    return "|".join(words.decode((token,)) for token in tokens).strip()
