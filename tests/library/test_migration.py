"""Sessions of a journal come into a library."""

import pytest

from streamd.cli import main
from streamd.events import Correction, Gap
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
from streamd.streams.journal.database import Database
from tests.library.test_shelf import DAY, fill, found, said


@pytest.fixture
def journal(tmp_path):
    folder = tmp_path / "journal"
    with Database(folder, clock=lambda: 20_000.0 * DAY) as journals:
        talk = journals.open("talk")
        talk.store(said("Anna Bottin spoke.", 1, seq=1), lambda _: None)
        talk.store(Gap(t_ms=900, duration_ms=100, why="restart"), lambda _: None)
        talk.store(Correction(text="Ana Botín", seq=1, first=0, last=1), lambda _: None)
        talk.end("end")
        journals.open("talk").store(said("Later on.", 2, seq=1), lambda _: None)
        journals.open("empty")
    return folder


def test_every_run_comes_once_with_its_words_gaps_and_corrections(journal, tmp_path, capsys):
    library = tmp_path / "library"
    shelf = fill(library, {"mine": [("It was here before.", 1, "en")]})
    command = ["library", "import", "--keep", str(library), str(journal)]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" of ")[0] for line in lines] == ["imported talk"] * 2
    assert [(each.name, each.is_open) for each in shelf.sessions()] == [
        ("talk", True),
        ("talk", False),
        ("mine", False),
    ]
    assert [each.text if hasattr(each, "text") else each.why for each in shelf.read(2)] == [
        "Ana Botín spoke.",
        "restart",
    ]
    assert found(shelf, '"botin spoke" before:2024-10-06') == ["Ana Botín spoke."]
    assert found(shelf, "later") == ["Later on."]
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert len(shelf.sessions()) == 3


def test_the_session_that_had_not_ended_goes_on_in_the_library(journal, tmp_path):
    library = tmp_path / "library"
    assert main(["library", "import", "--keep", str(library), str(journal)]) == 0
    with opened(library) as kept:
        assert kept.open("talk").seq == 1


def test_a_folder_without_a_journal_is_refused(tmp_path, capsys):
    assert main(["library", "import", "--keep", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "b holds no journal" in capsys.readouterr().err
    assert Shelf(tmp_path / "a").sessions() == []
