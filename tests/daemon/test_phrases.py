"""The list of phrases on disk, and what a session adds to it."""

import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.cli import main
from streamd.config import load
from streamd.daemon import phrases
from streamd.errors import ConfigError
from streamd.whisper.vocabulary import Phrase, parse


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's own file, in folders that do not exist yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "local" / "share"))
    monkeypatch.setattr("sys.platform", "linux")
    return phrases.own_file()


def texts(path) -> list[str]:
    return [phrase.text for phrase in parse(path.read_text())]


def test_the_users_own_list_counts_if_there_is_no_other(own, tmp_path):
    assert phrases.read("") == ""
    phrases.add("Ana Botín", own)
    assert parse(phrases.read("")) == [Phrase("Ana Botín")]
    (tmp_path / "other.txt").write_text("Ada\n")
    assert parse(phrases.read(str(tmp_path / "other.txt"))) == [Phrase("Ada")]


def test_a_phrase_is_added_once(own):
    for phrase in ("Ada", "JetStream", "Ada", "x:9", "x:9", " Ada\u2028Zoë "):
        phrases.add(phrase, own)
    assert parse(own.read_text()) == [
        Phrase(each) for each in ("Ada", "JetStream", "x:9", "Ada Zoë")
    ]
    own.write_text("# names\nAda:2")  # no newline at the end
    phrases.add("Ada", own)
    assert own.read_text() == "# names\nAda:2"
    phrases.add("Zoë", own)
    assert parse(own.read_text()) == [Phrase("Ada", 2), Phrase("Zoë")]


@given(st.lists(st.text(max_size=8), max_size=8), st.text(max_size=20))
def test_whatever_is_added_the_file_is_one_that_is_read(tmp_path_factory, added, before):
    """Each phrase is in it as it was sent, or refused, and what the user wrote stays."""
    own = tmp_path_factory.mktemp("own") / "vocabulary.txt"
    own.write_text(before, "utf-8", newline="")
    known = parse(before)
    for text in added:
        with suppress(ValueError):
            phrases.add(text, own)
            wanted = " ".join(text.split())
            known += [Phrase(wanted)] * (wanted not in {each.text for each in known})
    assert parse(phrases.read(str(own)) if not before else own.read_bytes().decode()) == known


def test_the_oldest_corrections_go_first_and_the_users_own_lines_stay(own, monkeypatch):
    monkeypatch.setattr(phrases, "MOST_LEARNED", 3)
    own.parent.mkdir(parents=True)
    own.write_bytes(b"# mine\r\n\xff\r\nAda:2\r\n\r\n")
    for n in range(3):
        phrases.add(f"Zoë {n}", own)
    with own.open("ab") as file:
        file.write(b"Eve\n")  # as `echo Eve >> vocabulary.txt` does
    for n in range(3, 5):
        phrases.add(f"Zoë {n}", own)
    first, *_, last = own.read_bytes().splitlines(keepends=True)
    assert (first, last) == (b"# mine\r\n", b"Eve\n")
    found = [phrase.text for phrase in parse(phrases.read(""))]
    assert found == ["Ada", "Zoë 2", "Zoë 3", "Zoë 4", "Eve"]
    assert b"\xff\r\nAda:2\r\n\r\n#" in own.read_bytes()


def test_lines_belong_to_the_user_where_the_comments_around_corrections_are_gone(own, monkeypatch):
    monkeypatch.setattr(phrases, "MOST_LEARNED", 1)
    phrases.add("Ada", own)
    own.write_text(own.read_text().rpartition("#")[0])
    for phrase in ("Eve", "Zoë"):
        phrases.add(phrase, own)
    assert texts(own) == ["Ada", "Zoë"]


def test_corrections_that_come_at_once_are_all_kept(own):
    every = [f"Name {n}" for n in range(120)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(phrases.add, path=own), every))
    assert sorted(texts(own)) == sorted(every)


ADDS = """
import sys
from pathlib import Path
from streamd.daemon import phrases
for n in range(40):
    phrases.add(f"{sys.argv[2]} {n}", Path(sys.argv[1]))
"""


def test_processes_that_share_a_file_take_turns(own):
    command = [sys.executable, "-c", ADDS, str(own)]
    running = [subprocess.Popen([*command, name]) for name in ("Ada", "Zoë")]
    assert [each.wait() for each in running] == [0, 0]
    assert sorted(texts(own)) == sorted(f"{name} {n}" for name in ("Ada", "Zoë") for n in range(40))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_linked_file_stays_linked(own, tmp_path, is_there):
    target = tmp_path / "dotfiles" / "words"
    if is_there:
        target.parent.mkdir()
        target.write_text("Ana\n")
    own.parent.mkdir(parents=True)
    own.symlink_to(target)
    phrases.add("Bea", own)
    assert own.is_symlink()
    assert texts(target) == ["Ana", "Bea"][not is_there :]


@pytest.mark.parametrize(
    ("content", "told", "left"),
    [
        (b"Ada\n_\nEve\n", "vocabulary.txt, line 2: '_' has neither letter nor digit", 2),
        (b"Ada\nB\xffb\nEve\n--\n", r"line 2: 'B\\udcffb' is not plain text.*1 more", 2),
        (b"Ada\x1b[31m\n", r"line 1: 'Ada\\x1b", 0),
        (b"a" * (10 * 2**20 + 1), "vocabulary.txt: more than 10 MB", 0),
        (None, "vocabulary.txt: cannot read it: Is a directory", 0),
    ],
)
def test_what_is_wrong_in_the_users_own_file_is_told_and_left_out(own, caplog, content, told, left):
    own.parent.mkdir(parents=True)
    if content is None:
        own.mkdir()
    else:
        own.write_bytes(content)
    assert len(parse(phrases.read(""))) == left
    (warning,) = caplog.messages
    assert re.search(told, warning)
    assert "left out" in warning


def test_hotwords_of_a_session_are_listed_one_a_line():
    assert phrases.one_a_line(" Zoë, Dr. Nguyen-Smith\nJetStream,") == (
        "Zoë\nDr. Nguyen-Smith\nJetStream"
    )
    assert phrases.one_a_line("") == ""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "--vocabulary .*names.txt: cannot read it: No such file or directory"),
        (b"\xff\xfe1", "names.txt, line 1: .* is not plain text in UTF-8"),
        (b"Ada\n--\n", "names.txt, line 2: '--' has neither letter nor digit"),
        (b"a" * (10 * 2**20 + 1), "names.txt: more than 10 MB"),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, content, complaint):
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as error:
        phrases.read(str(path))
    assert "\n" not in str(error.value)


# -- documents: what --context has sessions expect, and how one word of it is left out ------------


TALK = "Ana Botín of Banco Santander spoke about mitochondria.\n"


@pytest.fixture
def talk(tmp_path):
    path = tmp_path / "talk.md"
    path.write_text(TALK)
    return str(path)


def expected(**given):
    config = phrases.with_context(phrases.with_vocabulary(load({"model": "tiny.en", **given}, {})))
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
