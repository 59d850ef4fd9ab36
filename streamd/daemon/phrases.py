"""The words that the user knows: the file of ``--vocabulary``, and what a session adds to it."""

import os
from collections.abc import Mapping
from pathlib import Path

from streamd.errors import ConfigError, os_error_as
from streamd.system.disk import expanded, put_file, user_folder
from streamd.whisper.vocabulary import parse

_MOST_BYTES = 10 * 2**20


def own_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the user's own list is, which holds for all sessions if there is no other."""
    return user_folder("data", environ) / "vocabulary.txt"


def read(named: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the phrases of a file, or of the user's own one, one a line; none if it has none.

    Raises `ConfigError` if the file cannot be read, is not text, or has a line without letters.
    """
    path = expanded(named) if named else own_file(environ)
    if not named and not path.exists():
        return ""
    with os_error_as(ConfigError, f"--vocabulary {path}: cannot read it"):
        data = path.read_bytes()
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"--vocabulary {path}: more than 10 MB; keep to names and rare words")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"--vocabulary {path}: it is not UTF-8 text") from None
    for phrase in parse(text):
        if not any(letter.isalnum() for letter in phrase.text):
            raise ConfigError(f"--vocabulary {path}: {phrase.text!r} has neither letter nor digit")
    return text


def joined(known: str, hotwords: str) -> str:
    """Return the phrases of a file and those of a session, which commas or lines separate."""
    own = [word.strip() for line in hotwords.splitlines() for word in line.split(",")]
    return "\n".join([*filter(None, own), *([known] if known else [])])


def add(phrase: str, path: Path) -> None:
    """Append a phrase to a list, unless it is in it. Raises `ConfigError` if it cannot be kept."""
    with os_error_as(ConfigError, f"{path}: cannot write it"):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if phrase not in {known.text for known in parse(text)}:
            before = f"{text.rstrip()}\n" if text.strip() else ""
            put_file(path, f"{before}{phrase}\n".encode())
