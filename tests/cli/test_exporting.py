import pytest
import srt

from streamd.cli import main
from streamd.daemon import translating
from streamd.events import Final, Gap
from streamd.library.migration import imported
from streamd.library.tables import opened
from streamd.streams.journal.database import Database
from streamd.translation.translator import Translator


def journal(folder, first="hello there") -> None:
    with Database(folder) as journals:
        talk = journals.open("talk")
        for seq, text in ((1, first), (2, "good bye")):
            start_ms, end_ms = seq * 2000, seq * 2000 + 900
            final = Final(
                seq=seq, seg=seq, start_ms=start_ms, end_ms=end_ms, text=text, language="en"
            )
            talk.store(final, lambda _: None)
        talk.store(Gap(t_ms=5000, duration_ms=1000, why="restart"), lambda _: None)
        journals.open("empty")


def test_a_session_is_written_in_any_format(tmp_path, capsys):
    journal(tmp_path)
    command = ["export", "talk", "--journal", str(tmp_path)]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["hello there", "good bye"]
    assert main([*command, "--format", "srt", "-o", str(tmp_path / "a.vtt")]) == 0
    cues = list(srt.parse(capsys.readouterr().out))
    assert [cue.content for cue in cues] == ["hello there", "good bye"]
    assert cues[1].start.total_seconds() == 4
    assert (tmp_path / "a.vtt").read_text().startswith("WEBVTT")


def test_the_format_of_a_folder_is_that_of_standard_output_if_there_is_none(
    tmp_path, capsys, monkeypatch
):
    journal(tmp_path / "journal")
    monkeypatch.chdir(tmp_path)
    command = ["export", "talk", "--journal", "journal"]
    assert main([*command, "-f", "srt"]) == 0
    assert [cue.content for cue in srt.parse(capsys.readouterr().out)] == [
        "hello there",
        "good bye",
    ]
    assert main([*command, "-f", "txt"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["hello there", "good bye"]
    for several in ("srt,vtt", "all"):
        assert main([*command, "-f", several]) == 2
        assert "add --output-dir" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]
    assert main([*command, "-f", "srt,vtt", "--output-dir", "out"]) == 0
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".srt", ".vtt"]


@pytest.mark.parametrize("command", ["export --journal", "library export --keep"])
def test_a_translation_keeps_the_names_of_the_users_own_list(command, tmp_path, monkeypatch):
    translator = Translator(lambda *_: lambda text: text.replace("Joy", "alegria"), [("en", "pt")])
    monkeypatch.setattr(translating, "shared", lambda: translator)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "streamd").mkdir()
    (tmp_path / "streamd" / "vocabulary.txt").write_text("Joy\n")
    journal(tmp_path / "--journal", "hello Joy")
    with opened(tmp_path / "--keep") as library:
        assert len([*imported(library, tmp_path / "--journal")]) == 1
    *words, kept = command.split()
    options = (f"{kept}={tmp_path / kept}", "--translate-into=pt", f"-o={tmp_path / 'a.pt.txt'}")
    assert main([*words, *options, "talk"]) == 0
    assert (tmp_path / "a.pt.txt").read_text().startswith("hello Joy\n")


def test_the_vocabulary_is_read_only_for_a_translation(tmp_path, capsys, monkeypatch):
    journal(tmp_path)
    monkeypatch.setattr(translating, "shared", lambda: Translator(lambda *_: str, [("en", "pt")]))
    monkeypatch.setenv("STREAMD_VOCABULARY", str(tmp_path / "gone.txt"))
    command = ["export", "talk", "--journal", str(tmp_path)]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    translated = ("--translate-into=pt", f"-o={tmp_path / 'a.pt.txt'}")
    assert main([*command, *translated]) == 2
    assert "gone.txt: cannot read it" in capsys.readouterr().err


def test_a_damaged_line_is_left_out_and_named(tmp_path, capsys):
    journal(tmp_path)
    file = tmp_path / "journal.db"
    file.write_bytes(file.read_bytes().replace(b'"hello there"', b'"hello \x01here"'))
    assert main(["export", "talk", "--journal", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[:1] == ["good bye"]
    assert f"{file}: event 1 is damaged and left out" in told.err


def test_without_a_name_the_sessions_are_listed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert main(["export"]) == 0
    assert capsys.readouterr().out == ""
    journal(tmp_path / "streamd" / "journal")
    assert main(["export"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["talk", "empty"]


def test_a_session_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["export", "nobody", "--journal", str(tmp_path)]) == 1
    assert "no session 'nobody'" in capsys.readouterr().err


def test_a_journal_without_sessions_says_how_to_keep_them(tmp_path, capsys):
    assert main(["export", "--journal", str(tmp_path)]) == 0
    assert "holds no session: streamd --journal keeps them" in capsys.readouterr().err
