"""Several recordings at once, and what becomes of outputs when something fails."""

import os
from pathlib import Path

import pytest

from streamd.cli import main
from streamd.config import load
from streamd.daemon.live import run
from streamd.daemon.transcribe import transcribe
from streamd.errors import ConfigError, ModelError, SourceError, StreamdError
from streamd.sinks.formats import FORMATS
from streamd.sinks.writing import cut_short
from streamd.sources.file import FileSource
from tests.support import recorded


@pytest.fixture
def speech(tmp_path) -> Path:
    return recorded.wav(tmp_path / "speech.wav", recorded.samples())


@pytest.mark.parametrize("command", [run, transcribe])
@pytest.mark.parametrize(
    ("sound", "model", "kind"),
    [("none.wav", "tiny.en", SourceError), ("speech.wav", "none", ModelError)],
)
async def test_what_cannot_be_opened_destroys_nothing(
    speech, tmp_path, capfd, command, sound, model, kind
):
    (old := tmp_path / "old.srt").write_text("precious")
    config = load(
        {
            "model": model,
            "files": [str(tmp_path / sound)],
            "output": [str(old), str(tmp_path / "new.json")],
            "format": "json",
            "port": "off",
        },
        {},
    )
    with pytest.raises(kind):
        await command(config)
    assert old.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.srt", "speech.wav"]
    assert capfd.readouterr().out == ""


def test_a_bad_file_is_reported_and_the_others_are_done(speech, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.wav").write_bytes(b"RIFF0000WAVE" + bytes(100))
    again = tmp_path / "again.wav"
    again.write_bytes(speech.read_bytes())
    out = tmp_path / "out"
    empty = tmp_path / "empty.wav"
    empty.touch()
    files = ("empty.wav", str(speech), "bad.wav", str(again))
    command = ["transcribe", "-q", *files, "--output-dir", str(out), "-f", "txt,json"]
    assert main(command) == SourceError.exit_code
    shown, complaints = capfd.readouterr()
    first, second, last = complaints.splitlines()
    assert first.startswith("streamd: error: empty.wav is empty")
    assert second.startswith("streamd: error: bad.wav is damaged")
    assert last == "streamd: 2 of 4 files failed, see above"
    assert sorted(path.name for path in out.iterdir()) == [
        *("again.json", "again.txt", "speech.json", "speech.txt")
    ]
    text = (out / "speech.txt").read_text()
    assert len(text.split()) > 5
    assert (out / "again.txt").read_text() == text
    assert shown == text * 2


@pytest.mark.parametrize("command", [run, transcribe])
async def test_names_are_checked_before_anything_begins(speech, tmp_path, capfd, command):
    files = [str(speech), str(tmp_path / "typo.wav"), str(tmp_path / "also.wav")]
    given = {"model": "tiny.en", "files": files, "port": "off"}
    with pytest.raises(SourceError, match=r"typo\.wav, .*also\.wav: no such file; check the path"):
        await command(load(given, {}))
    assert capfd.readouterr().out == ""


async def test_a_model_that_is_missing_is_told_once(speech, tmp_path, caplog):
    files = [str(speech), str(speech)]
    with pytest.raises(StreamdError, match="'none' not found"):
        await transcribe(load({"model": "none", "files": files}, {}))
    assert caplog.records == []


NAMES = (b"caf\xe9", b"d\xe9p\xf4t/th\xe9", b"a" * 250, "\u3042".encode() * 83, b"b" * 251)


def test_files_may_have_any_name_that_the_system_allows(speech, tmp_path, capfd):
    odd = [Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name + b".wav")) for name in NAMES]
    for path in odd:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(speech.read_bytes())
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/out\xe9"))
    command = ["transcribe", "-q", *map(str, odd), "--output-dir", str(out), "-f", "all"]
    assert main(command) == 0
    made = {path.name for path in out.iterdir()}
    assert len(made) == len(odd) * len(FORMATS)
    assert {f"{path.stem}.txt" for path in odd} <= made
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("suffix", [".srt", ".full.json"])
def test_the_name_of_a_part_fits_as_well(suffix):
    name = "\u3042" * 82 + "b" * (255 - 3 * 82 - len(suffix)) + suffix
    assert len(cut_short(Path(name)).name.encode()) <= 255
    assert cut_short(Path(name)).name.endswith(f".partial{Path(name).suffix}")
    assert cut_short(Path("talk.srt")).name == "talk.partial.srt"


def test_a_transcript_that_cannot_be_written_is_reported_and_the_others_are(
    speech, tmp_path, capfd
):
    again = tmp_path / "again.wav"
    again.write_bytes(speech.read_bytes())
    (tmp_path / "out" / "speech.txt").mkdir(parents=True)
    command = ["transcribe", "-q", str(speech), str(again), "--output-dir", str(tmp_path / "out")]
    assert main([*command, "-f", "txt"]) == SourceError.exit_code
    first, last = capfd.readouterr().err.splitlines()
    assert first.startswith("streamd: error: ")
    assert "speech.txt: cannot be written: Is a directory" in first
    assert last == "streamd: 1 of 2 files failed, see above"
    assert (tmp_path / "out" / "again.txt").read_text()


def test_a_bug_in_one_file_of_a_batch_leaves_the_others_alone(speech, tmp_path, monkeypatch, capfd):
    bad = tmp_path / "bad.wav"
    bad.write_bytes(speech.read_bytes())
    take = FileSource._open

    def fail(self):
        if self.name == str(bad):
            raise ZeroDivisionError
        return take(self)

    monkeypatch.setattr(FileSource, "_open", fail)
    assert main(["transcribe", "-q", str(bad), str(speech)]) == 1
    shown, complaints = capfd.readouterr()
    assert shown
    assert "ZeroDivisionError" in complaints
    assert complaints.splitlines()[-1] == "streamd: 1 of 2 files failed, see above"


async def test_a_track_is_not_for_a_microphone():
    for command in (run, transcribe):
        with pytest.raises(ConfigError, match="--track is for files: name one, or drop it"):
            await command(load({"model": "tiny.en", "track": "2", "port": "off"}, {}))
