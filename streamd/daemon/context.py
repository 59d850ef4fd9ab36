"""The words of documents: what ``--context`` and the caption page have sessions expect."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from streamd.config import Config
from streamd.daemon import phrases
from streamd.documents import DocumentError, read_document
from streamd.errors import ConfigError, os_error_as
from streamd.models.model import N_OPENAI, openai_vocabulary
from streamd.models.store import known_language
from streamd.system.disk import expanded
from streamd.whisper.terms import MOST_CHARACTERS, Term, terms
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import line_of, parse

_MOST_LOGGED = 20
"""Words in the log; `streamd vocabulary check` lists all."""

log = logging.getLogger(__name__)


def with_context(config: Config) -> Config:
    """Return the configuration with the words of its documents among those to expect.

    They are logged, since each may be wrong. Raises `ConfigError` if a document cannot be read.
    """
    names = config.decoding.context
    if not names:
        return config
    text = "\n\n".join(text_of(name) for name in names)
    found = [term.text for term in _wanted(config, text)]
    known = phrases.one_a_line(config.decoding.hotwords)
    lines, n_left = known.splitlines(), MOST_CHARACTERS - len(known)
    for word in found:
        n_left -= len(word) + 1
        if n_left >= 0:
            lines.append(line_of(word))
    shown = ", ".join(found[:_MOST_LOGGED])
    more = f" and {len(found) - _MOST_LOGGED} more" if len(found) > _MOST_LOGGED else ""
    log.info("words to expect from %s: %s%s", ", ".join(names), shown or "none", more)
    decoding = replace(config.decoding, hotwords="\n".join(lines))
    return replace(config, decoding=decoding)


def text_of(name: str) -> str:
    """Return the text of a document of the user's. Raises `ConfigError`."""
    path = expanded(name)
    with os_error_as(ConfigError, f"--context {name}: cannot read it"), path.open("rb") as file:
        try:
            return read_document(file, path.name)
        except DocumentError as error:
            raise ConfigError(f"--context {name}: {error}") from None


def terms_of(config: Config, file: IO[bytes], name: str) -> Sequence[Term]:
    """Return the words of a client's document that it may have a session expect.

    It takes seconds. Raises `DocumentError`.
    """
    return _wanted(config, read_document(file, name))


def _wanted(config: Config, text: str) -> Sequence[Term]:
    """Return the words of a text, without those that the user's list has; weight 0 drops them."""
    known = {phrase.text for phrase in parse(phrases.read(config.decoding.vocabulary))}
    return [term for term in terms(text, tokenizer(config)) if term.text not in known]


def tokenizer(config: Config) -> Tokenizer:
    """Return what tells rare words: OpenAI's tokens, whatever the model is."""
    is_english = known_language(config.decoding.model) == "en"
    size = N_OPENAI[0 if is_english else 1]
    tokens = openai_vocabulary(Path(config.decoding.model), size)
    return Tokenizer(tokens, size, multilingual=not is_english)
