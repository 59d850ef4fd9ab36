"""What --context has sessions expect, and how one word of it is left out."""

import logging

import pytest

from streamd.cli import main
from streamd.config import load
from streamd.daemon.context import with_context
from streamd.errors import ConfigError
from streamd.whisper.vocabulary import parse

TALK = "Ana Botín of Banco Santander spoke about mitochondria.\n"


@pytest.fixture
def talk(tmp_path):
    path = tmp_path / "talk.md"
    path.write_text(TALK)
    return str(path)


def expected(**given):
    config = with_context(load({"model": "tiny.en", **given}, {}))
    return [phrase.text for phrase in parse(config.decoding.hotwords)]


def test_words_of_documents_stand_behind_those_of_the_user(talk, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    words = expected(context=[talk], hotwords="Ada, Grace")
    assert words[:2] == ["Ada", "Grace"]
    assert {"Botín", "mitochondria"} <= set(words)
    assert f"words to expect from {talk}: " in caplog.text


def test_a_line_of_the_vocabulary_takes_a_word_out(talk, tmp_path):
    listed = tmp_path / "words.txt"
    listed.write_text("Botín:0\n")
    words = expected(context=[talk], vocabulary=str(listed))
    assert "Botín" not in words
    assert "mitochondria" in words


def test_a_document_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--context .*none\.md: cannot read it: No such file"):
        expected(context=[str(tmp_path / "none.md")])
    (tmp_path / "bad.txt").write_bytes(b"\0\1\2")
    with pytest.raises(ConfigError, match=r"bad\.txt: it cannot be read: it is no text"):
        expected(context=[str(tmp_path / "bad.txt")])


def test_check_lists_the_words_with_their_reasons(talk, capsys):
    assert main(["vocabulary", "check", talk, "-m", "tiny.en"]) == 0
    *words, last = capsys.readouterr().out.splitlines()
    assert "Botín  tokens: 2 (Bot|ín)  a name, once" in words
    assert "mitochondria  tokens: 2 (mitochond|ria)  a rare word, once" in words
    assert last.startswith(f"{len(words)} words to expect; ")
