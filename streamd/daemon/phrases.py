"""The words that the user knows: the file of ``--vocabulary``, what corrections add, documents.

Corrections that are to be kept go into a part of the user's own file between two comments. The
newest of them are there; what is before and after that part is the user's and stays as it is.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from streamd.config import Config
from streamd.documents import DocumentError, read_document
from streamd.errors import ConfigError, os_error_as
from streamd.models.model import N_OPENAI, openai_vocabulary
from streamd.models.store import known_language
from streamd.rewriting import Replacements, built_in, read_rules
from streamd.system.disk import expanded, lock_file, put_file, user_folder
from streamd.whisper.terms import MOST_CHARACTERS, Term, terms
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import line_of, lines_of, parse, phrase_of

_MOST_BYTES = 10 * 2**20
COMMANDS = "commands"
"""In place of a file: the spoken commands that streamd knows."""
MOST_LEARNED = 1000
"""Kept corrections: the words of years, but not more than a stranger should add to every search."""
_BEGIN = "# streamd keeps corrections from here on; move a line out of here to keep it for good"
_END = "# end of corrections"
_MOST_LOGGED = 20
"""Words of documents in the log; `streamd vocabulary check` lists all."""

log = logging.getLogger(__name__)


def own_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the user's own list is, which holds for all sessions if there is no other."""
    return user_folder("data", environ) / "vocabulary.txt"


def with_vocabulary(config: Config) -> Config:
    """Return the configuration with the phrases of its file; raises as `read` does."""
    expected = read(config.decoding.vocabulary)
    return replace(config, decoding=replace(config.decoding, expected=expected))


def read(named: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the phrases of a file, or of the user's own one, one a line; none if it has none.

    Raises `ConfigError` if the named file cannot be read, is not text, or has a line that is no
    phrase. Of the user's own file, whatever that is is left out, with a warning: nobody has named
    it, so nobody expects that it keeps streamd from starting.
    """
    if named:
        return _read(expanded(named), "--vocabulary ")
    try:
        return _read(own_file(environ), "") if own_file(environ).exists() else ""
    except ConfigError as error:
        log.warning("%s; it is left out", error)
        return ""


def read_replacements(named: Sequence[str]) -> Replacements | None:
    """Return the rules of the named files, `COMMANDS` among them; None if none are named.

    Raises `ConfigError` if a file cannot be read or has a line that is no rule.
    """
    texts = []
    for name in named:
        text = built_in() if name == COMMANDS else _text_of(_bytes_of(expanded(name), "--replace "))
        try:
            read_rules([text])
        except ValueError as error:
            raise ConfigError(f"--replace {name}, {error}") from None
        texts.append(text)
    return read_rules(texts) if texts else None


def _bytes_of(path: Path, option: str) -> bytes:
    with os_error_as(ConfigError, f"{option}{path}: cannot read it"):
        data = path.read_bytes()
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{option}{path}: more than 10 MB; keep to names and rare words")
    return data


def _read(path: Path, option: str) -> str:
    good, bad = [], []
    for number, line in enumerate(lines_of(_text_of(_bytes_of(path, option))), 1):
        try:
            phrase_of(line)
            good.append(line)
        except ValueError as error:
            bad.append(f"{path}, line {number}: {error}")
    if bad and option:
        raise ConfigError(f"{option}{bad[0]}")
    if bad:
        others = f" (and {len(bad) - 1} more)" if bad[1:] else ""
        log.warning("%s; it is left out%s", bad[0], others)
    return "\n".join(good)


def _text_of(data: bytes) -> str:
    """Return the text of a file; a byte that is not UTF-8 becomes half of a surrogate pair."""
    return data.decode("utf-8-sig", "surrogateescape")


def one_a_line(hotwords: str) -> str:
    """Return the phrases of a session, which commas or lines separate, one a line."""
    own = [word.strip() for line in hotwords.splitlines() for word in line.split(",")]
    return "\n".join(filter(None, own))


def add(phrase: str, path: Path) -> None:
    """Add a phrase to the user's own list, unless it is in it; more than 1,000 push the oldest out.

    Processes that add to the same file take turns. Raises `ConfigError` if it cannot be written,
    and `ValueError` if that is no phrase.
    """
    line = line_of(phrase)
    with os_error_as(ConfigError, f"{path}: cannot write it"), _alone(path):
        # A link, as to a folder with the user's settings, stays one.
        target = Path(os.path.realpath(path))
        text = _text_of(target.read_bytes()) if target.exists() else ""
        if parse(line)[0].text not in {known.text for known in parse(text)}:
            before, learned, after = _parts(text)
            kept = [*learned, line][-MOST_LEARNED:]
            lines = [*before, _BEGIN, *kept, _END, *after]
            put_file(
                target, "".join(f"{each}\n" for each in lines).encode(errors="surrogateescape")
            )


def _parts(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the lines before the corrections, the corrections, and the lines after them."""
    lines = text.removesuffix("\n").split("\n") if text else []
    marks = [line.strip() for line in lines]
    try:
        begin = len(marks) - 1 - marks[::-1].index(_BEGIN)
        end = marks.index(_END, begin)
    except ValueError:  # all of it is the user's
        return lines, [], []
    return lines[:begin], lines[begin + 1 : end], lines[end + 1 :]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Have a file to oneself, among all threads and processes that do the same."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = lock_file(path.with_name(f".{path.name}.lock"), wait=True)
    try:
        yield
    finally:
        os.close(descriptor)


# -- documents -----------------------------------------------------------------------------------


def with_context(config: Config) -> Config:
    """Return the configuration with the words of its documents among those to expect.

    They are logged, since each may be wrong. Raises `ConfigError` if a document cannot be read.
    """
    names = config.decoding.context
    if not names:
        return config
    text = "\n\n".join(text_of(name) for name in names)
    found = [term.text for term in _wanted(config, text)]
    known = one_a_line(config.decoding.hotwords)
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
    known = {phrase.text for phrase in parse(config.decoding.expected)}
    return [term for term in terms(text, rare_words(config)) if term.text not in known]


def rare_words(config: Config) -> Tokenizer:
    """Return what tells rare words: OpenAI's tokens, whatever the model is."""
    is_english = known_language(config.decoding.model) == "en"
    size = N_OPENAI[0 if is_english else 1]
    tokens = openai_vocabulary(Path(config.decoding.model), size)
    return Tokenizer(tokens, size, multilingual=not is_english)
