"""What the commands put into a library, on real speech."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import av

from streamd.library.shelf import Shelf, sought

SPEECH = Path(__file__).parents[1] / "speech" / "demo.flac"


def streamd(*args):
    command = [sys.executable, "-m", "streamd", *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_recording_is_kept_with_its_speakers_and_its_sound(tmp_path):
    keep, file = ("--keep", tmp_path / "library"), tmp_path / "demo.json"
    text = tmp_path / "demo.txt"
    options = ("-m", "tiny.en", "--num-speakers", 2, "-q", "-o", file, "-o", text)
    assert streamd("transcribe", *keep, *options, SPEECH).returncode == 0
    shelf = Shelf(tmp_path / "library")
    (kept,) = shelf.sessions()
    assert (kept.name, kept.speakers, kept.is_open) == ("demo", ("Speaker 1", "Speaker 2"), False)
    words = [word.text for final in shelf.read(kept.id) for word in final.words]
    segments = json.loads(file.read_text())["segments"]
    assert words == [word["word"].strip() for each in segments for word in each["words"]]
    (sound,) = shelf.sounds(kept.id)
    with closing(av.open(str(shelf.sound(sound.file)))) as container:
        assert abs(container.duration / 1e6 - 65.1) < 0.1
    (hit,) = shelf.search(sought("incredulity"))
    assert hit.speaker == "Speaker 1"

    listed = streamd("library", "list", *keep).stdout
    assert "demo  (Speaker 1, Speaker 2)  It was the best of times" in listed
    assert "incredulity" in streamd("library", "search", *keep, "epoch of", "belief").stdout
    none = streamd("library", "search", *keep, "speaker:3", "belief")
    assert (none.returncode, none.stdout) == (0, "")
    assert none.stderr.endswith("no sentence has all of this: speaker:3 belief\n")
    shown = streamd("library", "show", *keep, "--names", "1=Ana", "demo").stdout
    assert shown.startswith("Ana: It was the best of times")
    again = tmp_path / "again.txt"
    assert streamd("library", "export", *keep, "-o", again, "demo").returncode == 0
    assert again.read_text() == text.read_text()
    refused = streamd("library", "export", *keep, "demo")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    talk = tmp_path / "talk.md"
    named = ("--names", "1=Ana", "--anonymous", "-o", talk, "-o", tmp_path / "talk.docx")
    exported = streamd("library", "export", *keep, *named, "demo")
    assert (exported.returncode, exported.stderr.count("\n")) == (0, 1)
    assert talk.read_text().startswith("**Person 1:** It was the best of times")
    assert "And Mr. Name 1 had then leisure" in talk.read_text()
    replaced = (tmp_path / "talk.replaced.csv").read_text()
    assert "Name 1,John Dashwood,1\n" in replaced
    assert (tmp_path / "talk.docx").read_bytes()[:2] == b"PK"
    assert streamd("library", "delete", *keep, "demo").stdout.startswith("deleted 1, demo of")
    assert shelf.sessions() == []
    assert streamd("library", "lost", *keep).returncode == 2
