"""--afterwards: the audio of a live session is transcribed again, and nothing else changes."""

import logging
import tempfile
from pathlib import Path

import pytest

from streamd.cli import main
from streamd.config import load
from streamd.daemon.afterwards import Afterwards, WordsSink, better_name, report
from streamd.errors import ConfigError
from streamd.events import Correction
from streamd.library.shelf import Shelf
from streamd.sinks.differences import Difference
from tests.support import recorded
from tests.support.said import GAP, spoken


@pytest.fixture
def sentence(tmp_path):
    return recorded.wav(tmp_path / "sentence.wav", recorded.samples())


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run(*args):
    return main(["--fast", "--port=off", "-m", "tiny.en", "--afterwards", *map(str, args)])


def test_a_better_transcript_is_beside_the_live_one(sentence, tmp_path, scratch, capfd):
    live = tmp_path / "talk.txt"
    assert run("-o", live, "-o", tmp_path / "talk.full.json", sentence) == 0
    printed = capfd.readouterr()
    better = tmp_path / "talk.better.txt"
    assert recorded.SENTENCE in live.read_text()
    assert recorded.SENTENCE in better.read_text()
    assert (tmp_path / "talk.better.full.json").exists()
    assert printed.out.count(recorded.SENTENCE) == 1  # live
    assert "afterwards: tiny.en writes" in printed.err
    assert "0 differ from the live captions" in printed.err
    assert list(scratch.iterdir()) == []  # the audio is gone


def test_audio_that_is_kept_anyway_stays(sentence, tmp_path, scratch):
    recordings = tmp_path / "recordings"
    assert run("-o", tmp_path / "talk.srt", "--record", recordings, sentence) == 0
    assert (tmp_path / "talk.better.srt").read_text().startswith("1\n00:00:0")
    assert [path.suffix for path in recordings.iterdir()] == [".wav"]


def test_in_the_library_both_texts_have_the_same_audio(sentence, tmp_path, scratch):
    folder = tmp_path / "library"
    assert run("--keep", folder, sentence) == 0
    shelf = Shelf(folder)
    better, live = shelf.sessions()
    assert better.name == f"{live.name}.better"
    assert better.started == live.started
    assert shelf.sounds(better.id) == shelf.sounds(live.id) != []
    assert (shelf.texts(live.id), shelf.texts(better.id)) == (
        {str(better.id): better.name},
        {str(live.id): live.name},
    )
    assert [each.text for each in shelf.read(better.id)] == [recorded.SENTENCE]
    shelf.delete(better.id)
    assert len(shelf.sounds(live.id)) == 1
    shelf.delete(live.id)
    assert list((folder / "audio").iterdir()) == []


def test_silence_has_no_better_transcript(tmp_path, capfd):
    silence = recorded.wav(tmp_path / "silence.wav", 0 * recorded.samples())
    assert run("-o", tmp_path / "talk.txt", silence) == 0
    assert "afterwards: nothing was said" in capfd.readouterr().err
    assert not (tmp_path / "talk.better.txt").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "add -o FILE"),
        (
            {"output": ["a.txt"], "library": "auto", "set": ["journal.keep_audio=off"]},
            "drop journal.keep_audio=off",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        Afterwards(load({"afterwards": "true", **options}, {}))


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("a/talk.txt", "a/talk.better.txt"),
        ("talk.one.srt", "talk.one.better.srt"),
        ("talk.full.json", "talk.better.full.json"),
        ("talk.pt.srt", "talk.better.pt.srt"),
        ("talk.pt.full.json", "talk.better.pt.full.json"),
        ("pt.srt", "pt.better.srt"),
    ],
)
def test_the_name_is_that_of_the_live_one_with_a_mark(name, better):
    assert better_name(Path(name), ["pt"]) == Path(better)


def test_words_are_those_that_stand():
    sink = WordsSink()
    fixed = Correction(seq=1, first=1, last=1, text="Botín")
    for event in (spoken("Ana Botin."), GAP, fixed, spoken("Said so.", start_ms=900, seq=2)):
        sink.write(event)
    sink.close()
    assert sink.text == "Ana Botín. Said so."


def test_a_long_list_is_cut_but_counted():
    found = [Difference(f"b{n}", f"a{n} x") for n in range(25)]
    lines = list(report(found, n_words=100))
    assert lines[0] == "100 words, of which 50 differ from the live captions"
    assert lines[1] == "b0 -> a0 x"
    assert lines[-1] == "and 5 other places"
    assert len(lines) == 22


def test_nothing_of_it_without_the_option(sentence, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    out = str(tmp_path / "talk.txt")
    assert main(["--fast", "--port=off", "-m", "tiny.en", "-o", out, str(sentence)]) == 0
    assert not (tmp_path / "talk.better.txt").exists()
