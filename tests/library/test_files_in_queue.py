"""Files that are sent to the library of a daemon, on real speech."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import soundfile

from streamd.events import Final
from streamd.library.shelf import Shelf

SPEECH = Path(__file__).parents[1] / "speech" / "recording.flac"
RATE = 16_000


@pytest.fixture
def clip(tmp_path):
    sound, rate = soundfile.read(SPEECH, frames=30 * RATE, dtype="int16")
    assert rate == RATE
    soundfile.write(tmp_path / "clip.flac", sound, rate)
    return (tmp_path / "clip.flac").read_bytes()


@contextmanager
def daemon(folder, **options):
    """A daemon with a library, which is killed in the end; gives a client of it."""
    command = [sys.executable, "-m", "streamd", "serve", "--keep", str(folder), "-m", "tiny.en"]
    settings = (f"--set={name}={value}" for name, value in options.items())
    process = subprocess.Popen(
        [*command, "--port", "0", *settings], stderr=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in process.stderr if "listening on ws" in line)
        address = line.split("ws://")[1].partition("/")[0]
        with httpx2.Client(base_url=f"http://{address}/v1/library/", trust_env=False) as client:
            yield client
    finally:
        process.kill()
        process.communicate()


def queue(client):
    return client.get("uploads").json()["uploads"]


def texts(shelf):
    return {
        kept.name: [each.text for each in shelf.read(kept.id) if isinstance(each, Final)]
        for kept in shelf.sessions()
    }


def test_kill_9_in_the_middle_loses_and_doubles_no_file(tmp_path, clip):
    folder, names = tmp_path / "library", ("one.flac", "two.flac", "three.flac")
    with daemon(folder) as client:
        for name in names:
            assert client.post("uploads", params={"name": name}, content=clip).status_code == 201
        while not texts(Shelf(folder)).get("recording-one"):  # its first words are stored
            assert len(queue(client)) == 3
    with daemon(folder) as client:
        while len(queue(client)) == 3:
            pass
    with daemon(folder) as client:
        while waiting := queue(client):
            assert not [job["error"] for job in waiting if job["error"]]
        while any((folder / "uploads").iterdir()):  # a job is forgotten before its file
            pass
    said = texts(Shelf(folder))
    assert set(said) == {f"recording-{name[:-5]}" for name in names}
    assert len(Shelf(folder).sessions()) == 3
    assert len({tuple(each) for each in said.values()}) == 1
    assert said["recording-one"]
    sounds = [Shelf(folder).sounds(kept.id) for kept in Shelf(folder).sessions()]
    assert len(list((folder / "audio").iterdir())) == sum(map(len, sounds)) == 3


def test_what_cannot_be_transcribed_is_refused_at_once_or_says_why(tmp_path, clip):
    limits = {"limits.max_upload_bytes": 20_000, "limits.max_upload_ms": 5_000}
    with daemon(tmp_path / "library", **limits) as client:
        # How large it may be, the disk decides; how long, the limit.
        sent = client.post("uploads", params={"name": "long"}, content=clip)
        assert sent.status_code == 201
        while (job := queue(client)[0])["state"] != "failed":
            pass
        assert job["error"] == "a recording has at most 5000 ms"
        assert client.delete(f"uploads/{job['id']}").status_code == 204
        for wrong, what in (
            ({"language": "xx"}, "language xx: the model tiny.en knows en only"),
            ({"language": "de"}, "language de: the model tiny.en knows en only"),
            ({"task": "translate"}, "task translate: the model tiny.en knows en only"),
            ({"speakers": "2"}, "Expected `bool`, got `str` for speakers"),
            ({"num_speakers": "65"}, "num_speakers"),
        ):
            refused = client.post("uploads", params={"name": "a.mp3", **wrong}, content=clip)
            assert (refused.status_code, what in refused.text) == (400, True), refused.text
        assert client.post("uploads", params={"name": "none"}, content=b"").status_code == 400
        assert client.post("uploads", content=b"x").status_code == 400
        assert queue(client) == []
        sent = client.post("uploads", params={"name": "text.txt"}, content=b"no sound")
        assert sent.status_code == 201
        while (job := queue(client)[0])["state"] != "failed":
            pass
        assert "text.txt" in job["error"]
        assert client.get("sessions").json()["sessions"] == []
        assert client.post(f"uploads/{job['id']}").status_code == 204
        while queue(client)[0]["state"] != "failed":
            pass
        assert client.delete(f"uploads/{job['id']}").status_code == 204
        assert queue(client) == []
        assert client.delete("uploads/9").status_code == 404
        assert list((tmp_path / "library" / "uploads").iterdir()) == []


def test_what_a_file_is_called_commands_no_terminal(tmp_path):
    with daemon(tmp_path / "library") as client:
        name = "a\x1b]0;b\x07\r\nc.flac"
        assert client.post("uploads", params={"name": name}, content=b"no sound").status_code == 201
        assert queue(client)[0]["name"] == "a\ufffd]0;b\ufffd\ufffd\ufffdc.flac"


def test_a_folder_that_takes_no_file_is_said(tmp_path):
    with daemon(tmp_path / "library") as client:
        (tmp_path / "library" / "uploads").write_text("somebody's")
        sent = client.post("uploads", params={"name": "a.flac"}, content=b"sound")
        assert (sent.status_code, sent.text) == (507, "the file cannot be kept: File exists\n")
