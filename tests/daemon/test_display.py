import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from streamd.config import Config, load
from streamd.daemon.display import check_files, new_format, open_files, prints, transcripts
from streamd.errors import ConfigError
from streamd.events import Eos
from streamd.options import InputOptions, ModelOptions, OutputOptions
from streamd.sinks.formats import FORMATS, suffix
from streamd.sinks.writing import FileSink
from tests.support.said import spoken


def wanted(files=(), **options) -> Config:
    return Config(input=InputOptions(files=tuple(files)), output=OutputOptions(**options))


def made(output, file=""):
    for sink in open_files(output, file):
        sink.write(Eos(seq=0, reason="end"))
        sink.close()


def test_the_name_of_a_file_says_its_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["a.txt", "b.full.json", "b.json", "c.d.vtt"]
    made(wanted(output=tuple(names)))
    assert sorted(os.listdir()) == names
    assert (tmp_path / "b.json").read_text().startswith('{"segments":[')
    assert (tmp_path / "b.full.json").read_text().startswith('{"transcription":[')
    assert (tmp_path / "c.d.vtt").read_text() == "WEBVTT\n\n"


@pytest.mark.parametrize(
    ("file", "stem"),
    [
        ("", "live"),
        ("-", "stdin"),
        ("talks/talk.one.mp3", "talk.one"),
        ("https://host/talks/my%20talk.mp3?x=1.2", "my talk"),
        ("https://host/..%2F..%2Fetc%2F%00%1b", "��"),
        ("rtsp://camera:554/", "camera"),
    ],
)
def test_files_in_a_folder_are_named_after_the_sound(tmp_path, file, stem):
    folder = tmp_path / "new" / "out"
    made(wanted(output_dir=str(folder), output_format=("srt", "json-full", "srt")), file)
    assert sorted(os.listdir(folder)) == [f"{stem}.full.json", f"{stem}.srt"]


def test_a_folder_gets_three_formats_or_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(wanted(output_dir="out"), "talk.mp3")
    made(wanted(output_format=("all",)), "talk.mp3")
    every = sorted(f"talk{suffix(name)}" for name in FORMATS)
    assert sorted(os.listdir("out")) == ["talk.json", "talk.srt", "talk.txt"]
    assert sorted(os.listdir()) == sorted(["out", *every])


def test_a_terminal_gets_no_transcript_that_goes_into_files(monkeypatch):
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    screen = {"TERM": "xterm"}
    assert prints(load({}, {}), terminal, screen)
    for given in ({"output": ["a.srt"]}, {"output-dir": "out"}, {"output-format": ["srt"]}):
        assert not prints(load(given, {}), terminal, screen)
        assert prints(load(given, {}), StringIO(), screen)  # openai-whisper's users pipe it on


def test_a_format_has_one_name():
    assert load({"format": "txt"}, {}).output.format == "txt"
    assert load({"format": "text"}, {}).output.format == "txt"  # of earlier releases


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--output-dir: .*file/out cannot be made: Not a dir"):
        open_files(wanted(output_dir=str(tmp_path / "file" / "out")), "talk.mp3")


def test_if_one_cannot_be_opened_the_others_are_closed(tmp_path, monkeypatch):
    closed, close = [], FileSink.close
    monkeypatch.setattr(FileSink, "close", lambda sink: (closed.append(sink), close(sink)))
    names = (str(tmp_path / "a.txt"), str(tmp_path / "none" / "b.txt"))
    with pytest.raises(ConfigError, match=r"none/b\.txt"):
        open_files(wanted(output=names))
    assert len(closed) == 1


def test_transcripts_must_not_overwrite_each_other():
    check_files(wanted(["a.mp3"], output=("a.srt",)))
    check_files(wanted(["a.mp3", "b.mp3"], output_dir="out"))
    with pytest.raises(ConfigError, match=r"-o is for one transcript: .* --output-dir"):
        check_files(wanted(["a.mp3", "b.mp3"], output=("a.srt",)))
    both = r"a\.full\.mp3 and a\.mp3 would both be written to out/a\.full\.json"
    with pytest.raises(ConfigError, match=both):
        check_files(wanted(["a.full.mp3", "a.mp3"], output_dir="out", output_format=("all",)))


def test_a_file_that_is_named_in_two_ways_is_written_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = wanted(
        ["a.mp3"], output=(str(tmp_path / "a.srt"), "x/../a.srt"), output_format=("srt",)
    )
    (tmp_path / "x").mkdir()
    (sink,) = open_files(config, "a.mp3", whole=True)
    sink.write(Eos(seq=0, reason="end"))
    sink.close()
    assert os.path.exists("a.srt")


def test_inputs_with_the_same_stem_are_named_apart():
    files = ["x/a.mp3", "y/a.wav", "z/a.wav", "b.mp3", "https://host/a.mp3?x"]
    config = wanted(files, output_dir="out", output_format=("srt",))
    check_files(config)
    names = [path.name for file in files for path in transcripts(config, file)]
    assert names == ["a.mp3.srt", "a.wav.srt", "a.wav-2.srt", "b.srt", "a.mp3-2.srt"]


def test_the_format_asked_for_counts_and_not_the_ending_of_the_sound(tmp_path):
    folder = tmp_path / "out"
    made(wanted(output_dir=str(folder), output_format=("json", "json-full")), "talk.full.mp3")
    assert '"segments"' in (folder / "talk.full.json").read_text()
    assert '"transcription"' in (folder / "talk.full.full.json").read_text()


@pytest.mark.parametrize("output", [wanted(output=("./a.txt",)), wanted(output_format=("txt",))])
def test_a_transcript_does_not_replace_the_sound_that_it_is_of(tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"^a.txt is the input and would"):
        open_files(output, "a.txt")
    with pytest.raises(ConfigError, match=r"^a.txt is the input and would"):
        check_files(replace(output, input=InputOptions(files=("a.txt",))))
    assert Path("a.txt").read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_nor_the_sound_of_another_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("b.wav").touch()
    Path("a.txt").symlink_to("b.wav")
    with pytest.raises(ConfigError, match=r"^a.txt is the input"):
        check_files(wanted(["x/a.mp3", "b.wav"], output_format=("txt",)))


@pytest.mark.parametrize(
    "source", [InputOptions(device="mic+system"), InputOptions(channels="split"), InputOptions()]
)
def test_tables_say_who_speaks_where_each_channel_is_a_person(source):
    config = Config(input=source)
    for name in ("csv", "tsv"):
        assert ("speaker" in new_format(config, name).header) == (source != InputOptions())


def test_files_have_the_names_times_and_turns_that_are_asked_for(tmp_path):
    files = tuple(str(tmp_path / f"a.{name}") for name in ("txt", "csv", "tsv"))
    output = OutputOptions(output=files, names=("2=Bob ", "1== Ana"), timestamps="rel")
    config = Config(output=output, decoding=ModelOptions(speakers=True))
    said = ("One.", 0, 1), ("Two.", 700, 1), ("Three.", 4_000, 1), ("Four.", 4_500, 2)
    finals = [
        msgspec.structs.replace(final, words=(msgspec.structs.replace(*final.words, speaker=who),))
        for text, start_ms, who in said
        for final in (spoken(text, start_ms=start_ms),)
    ]
    for sink in open_files(config):
        for final in finals:
            sink.write(final)
        sink.close()
    txt, csv, tsv = (Path(file).read_text().splitlines() for file in files)
    assert [line.partition("] ")[2] for line in txt] == [
        "= Ana: One. Two.",
        "= Ana: Three.",
        "Bob: Four.",
    ]
    assert [line[:2] for line in txt] == ["[0"] * 3
    assert csv[0] == "start,end,speaker,text"
    assert csv[-2:] == ['4000,4300," = Ana","Three."', '4500,4800,"Bob","Four."']
    assert tsv[-1] == "4500\t4800\tBob\tFour."
