"""The question whether to keep what is said is asked once."""

import io

import pytest

from streamd.cli.asking import with_answer
from streamd.config import Config, load


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch, tmp_path):
    """Lets somebody at a terminal answer; returns what they are shown."""
    monkeypatch.setattr("streamd.cli.asking.user_folder", lambda kind: tmp_path / "streamd")
    shown = Terminal()

    def answer(line):
        monkeypatch.setattr("sys.stderr", shown)
        monkeypatch.setattr("sys.stdin", Terminal(line))
        return shown

    return answer


@pytest.mark.parametrize(
    ("line", "keep"), [("y\n", "auto"), ("Yes\n", "auto"), ("\n", ""), ("n\n", ""), ("", "")]
)
def test_the_answer_holds_and_nobody_is_asked_again(terminal, line, keep):
    shown = terminal(line)
    assert with_answer(Config()).journal.keep == keep
    assert shown.getvalue().count("[y/N]") == 1
    terminal("y\n" if not keep else "n\n")
    assert with_answer(Config()).journal.keep == keep
    assert shown.getvalue().count("[y/N]") == 1


def test_nobody_is_asked_who_has_chosen_or_is_not_there(terminal, monkeypatch, tmp_path):
    shown = terminal("y\n")
    for option in ("library", "journal", "record"):
        config = load({option: str(tmp_path / "own")}, {})
        assert with_answer(config) == config
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert with_answer(Config()) == Config()
    assert "[y/N]" not in shown.getvalue()
    assert [*tmp_path.iterdir()] == []


def test_who_agreed_once_can_have_nothing_kept_this_time(terminal):
    terminal("y\n")
    assert with_answer(Config()).journal.keep == "auto"
    assert not with_answer(load({"library": "off"}, {})).journal.keep


def test_where_the_answer_cannot_be_kept_nobody_is_asked(terminal, tmp_path):
    shown = terminal("y\n")
    (tmp_path / "streamd").write_text("a file")
    assert with_answer(Config()) == Config()
    assert "[y/N]" not in shown.getvalue()
