"""A library finds what was said, and forgets what is deleted."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import av
import numpy as np
import pytest
from msgspec.structs import replace

from streamd.errors import ConfigError
from streamd.events import Correction, SpeakerName, SpeakerTurn, SpeakerTurns
from streamd.library.additions import Addition
from streamd.library.edits import Edits, Naming
from streamd.library.shelf import Shelf, sought
from streamd.library.sounds import SoundWriter
from streamd.library.tables import NAME, SOUNDS, opened
from streamd.options import JournalOptions
from streamd.server.wire import SESSION
from tests.support.said import spoken

DAY = 86_400
OPTIONS = JournalOptions()


def said(text, speaker=1, **fields):
    final = spoken(text, **fields)
    words = tuple(replace(word, speaker=speaker) for word in final.words)
    return replace(final, words=words)


def fill(folder, sessions, day=0):
    """Put sessions into a library: texts by their names, each with its speaker and language."""
    with opened(folder, clock=lambda: (20_000 + day) * DAY) as library:
        for name, texts in sessions.items():
            addition = Addition(library, OPTIONS, f"{name}.wav")
            addition.hear(np.zeros((50, 320), np.float32))
            for n, (text, speaker, language) in enumerate(texts):
                final = said(text, speaker, start_ms=n * 1000, language=language)
                addition.hub.publish(final)
            addition.hub.close("end")
            addition.end("end")
    return Shelf(folder)


def test_recordings_of_any_script_have_names_of_their_own(tmp_path):
    files = ["Über uns", "лекция 1", "лекция 2", "講義", "講義 1", "講" * 200, "a!" * 60, "?!"]
    names = [session.name for session in fill(tmp_path, dict.fromkeys(files, ())).sessions()][::-1]
    assert len({*names}) == len(files)
    assert all(re.fullmatch(SESSION, name) for name in names)
    assert [names[0], *names[-2:]] == ["Uber-uns", "a-" * 31 + "a", "recording"]
    assert re.fullmatch(r"1-[0-9]{10}", names[1])
    again = fill(tmp_path / "again", {"講義": []}).sessions()
    assert again[0].name == names[3]


def give_name(shelf, number, speaker, called):
    """Name a speaker of a session that nobody has edited otherwise."""
    revision = shelf.n_edits(number, 1 << 60)
    naming = Naming(speaker=speaker, name=called)
    shelf.edit(number, Edits(revision=revision, names=(naming,)))


def found(shelf, query):
    return [hit.text for hit in shelf.search(sought(query))]


def test_what_is_said_now_is_of_the_session_that_is_spoken(tmp_path):
    """Not of a recording that somebody sends meanwhile, nor of a session that was cut off."""
    with opened(tmp_path) as library:
        now, additions = datetime.now(UTC), []
        begun = {"cut-off": timedelta(days=2), "meeting": timedelta(minutes=5)}
        for name, ago in {**begun, "recording": timedelta()}.items():
            library.clock = lambda ago=ago: (now - ago).timestamp()
            addition = Addition(library, OPTIONS, f"{name}.wav")
            additions.append(addition)
            addition.hub.publish(said(f"In the {name}.", start_ms=60_000))
        shelf = Shelf(tmp_path)
        assert [hit.text for hit in shelf.now(120_000)] == ["In the meeting."]
        for addition in additions:
            addition.end("end")
    assert [kept.name for kept in shelf.sessions(3)] == ["recording", "meeting", "cut-off"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library") / "own"
    old = [("The café in Curaçao was closed.", 1, "en"), ("We met at the café again.", 2, "en")]
    fill(folder, {"old": old})
    new = [("Der Vertrag wird morgen unterschrieben.", 1, "de"), ("今日は天気がいい。", 2, "ja")]
    shelf = fill(folder, {"new": [*new, ("ผมชอบกาแฟ", 1, "th"), ("Straße", 1, "de")]}, day=10)
    give_name(shelf, 1, 2, "Zoë")
    return shelf


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("cafe", ["We met at the café again.", "The café in Curaçao was closed."]),
        ("CURACAO café", ["The café in Curaçao was closed."]),
        ('"the café"', ["We met at the café again.", "The café in Curaçao was closed."]),
        ('"café the"', []),
        ("unter*", ["Der Vertrag wird morgen unterschrieben."]),
        ("unter", []),
        ("天気", ["今日は天気がいい。"]),
        ("天", ["今日は天気がいい。"]),
        ("気天", []),
        ("กาแฟ", ["ผมชอบกาแฟ"]),
        ("cafe speaker:zoe", ["We met at the café again."]),
        ("cafe speaker:1", ["The café in Curaçao was closed."]),
        ("speaker:2", ["今日は天気がいい。", "We met at the café again."]),
        ("lang:de morgen", ["Der Vertrag wird morgen unterschrieben."]),
        ("lang:en morgen", []),
        ("after:2024-10-07 lang:ja", ["今日は天気がいい。"]),
        ("before:2024-10-07 lang:ja", []),
        ('") OR (*', []),
        ("NEAR(a b) AND", []),
        ('text:café {text}: ^cafe - "', []),
        ("lang:DE morgen\0\ud800", ["Der Vertrag wird morgen unterschrieben."]),
        ("", []),
        ("🎉 !!!", []),
        (f"café {'x ' * 5000}", []),
    ],
)
def test_it_finds(shelf, query, texts):
    assert found(shelf, query) == texts


def test_a_hit_says_where_the_words_are(shelf):
    (hit,) = shelf.search(sought("met cafe*"))
    assert [hit.text[start:end] for start, end in hit.marks] == ["met", "café"]
    assert (hit.session, hit.speaker, hit.start_ms) == ("old", "Zoë", 1000)
    (hit,) = shelf.search(sought("天気"))
    assert [hit.text[start:end] for start, end in hit.marks] == ["天気"]
    with pytest.raises(ConfigError, match="after:soon is no date: write 2026-01-31"):
        sought("after:soon")
    with pytest.raises(ConfigError, match="before:0001-01-01 is no date"):
        sought("before:0001-01-01")


def test_sessions_are_listed_with_what_tells_them_apart(shelf):
    new, old = shelf.sessions()
    assert (old.name, old.n_finals, old.speakers) == ("old", 2, ("Speaker 1", "Zoë"))
    assert old.first == "The café in Curaçao was closed."
    assert old.started == datetime.fromtimestamp(20_000 * DAY, UTC)
    assert [each.id for each in shelf.sessions(1, before=new.id)] == [old.id]
    assert shelf.find("new") == shelf.find("2") == new.id
    with pytest.raises(ConfigError, match="the library has no session lost"):
        shelf.find("lost")
    with pytest.raises(ConfigError, match="the library has no session"):
        shelf.find("\udcff")


def test_sessions_are_listed_by_one_connection(tmp_path, monkeypatch):
    shelf = fill(tmp_path, {f"talk-{n}": [("Who is there?", 1, "en")] for n in range(20)})
    opened_files, connect = [], sqlite3.connect

    def counted(file, **options):
        opened_files.append(file)
        return connect(file, **options)

    monkeypatch.setattr(sqlite3, "connect", counted)
    assert len(shelf.sessions()) == 20
    assert len(opened_files) == 1


def test_what_was_corrected_and_who_it_was_after_all_is_found_and_read(tmp_path):
    shelf = fill(tmp_path, {"talk": [("Anna Bottin spoke first.", 1, "es")]})
    with opened(tmp_path) as library:
        journal = library.recall("talk")
        assert journal is not None
        journal.store(Correction(text="Ana Botín", seq=1, first=0, last=1), lambda _: None)
        assert next(journal.read(0, 1)).text == "Anna Bottin spoke first."
    assert found(shelf, '"botin spoke"') == ["Ana Botín spoke first."]
    assert found(shelf, "bottin") == ["Ana Botín spoke first."]
    assert [each.text for each in shelf.read(1)] == ["Ana Botín spoke first."]


def test_revisions_of_speakers_are_kept(tmp_path):
    with opened(tmp_path) as library:
        addition = Addition(library, OPTIONS, "talk")
        addition.hub.publish(said("Who is there?"))
        turn = SpeakerTurn(start_ms=0, end_ms=900, speaker=2)
        addition.hub.publish(SpeakerTurns(start_ms=0, end_ms=900, turns=(turn,)))
        # It is read while a daemon writes it.
        assert found(Shelf(tmp_path), "speaker:2") == ["Who is there?"]
        with pytest.raises(ConfigError, match="--keep: another streamd writes"):
            opened(tmp_path)
        addition.end("stop")


def test_what_is_deleted_is_in_no_file(tmp_path):
    shelf = fill(
        tmp_path, {"a": [("My secret is elderberry.", 1, "en")], "b": [("Plain.", 1, "en")]}
    )
    give_name(shelf, 1, 1, "Xaver")
    (sound,) = shelf.sounds(1)
    assert (sound.start_ms, sound.at_ms) == (0, 0)
    shelf.delete(shelf.find("a"))
    left = b"".join(path.read_bytes().lower() for path in tmp_path.glob(f"{NAME}*"))
    assert b"plain" in left
    assert b"elderberry" not in left
    assert b"xaver" not in left
    assert not shelf.sound(sound.file).exists()
    assert [each.name for each in shelf.sessions()] == ["b"]


def test_audio_of_what_is_too_old_is_removed_with_it(tmp_path):
    fill(tmp_path, {"old": [("a", 1, "en")]})
    fill(tmp_path, {"new": [("b", 1, "en")]}, day=10)
    old, new = sorted((tmp_path / SOUNDS).iterdir(), reverse=True)
    assert "old" in old.name
    os.utime(old, (20_000 * DAY, 20_000 * DAY))
    with opened(tmp_path, days=5, clock=lambda: 20_012 * DAY):
        pass
    assert [*(tmp_path / SOUNDS).iterdir()] == [new]
    assert [each.name for each in Shelf(tmp_path).sessions()] == ["new"]


def test_words_that_are_too_old_are_in_no_file(tmp_path):
    fill(tmp_path, {"old": [("My secret is elderberry.", 1, "en")]})
    fill(tmp_path, {"new": [("Plain.", 1, "en")]}, day=10)
    with opened(tmp_path, days=5, clock=lambda: 20_012 * DAY):
        pass
    left = b"".join(path.read_bytes().lower() for path in tmp_path.glob(f"{NAME}*"))
    assert b"plain" in left
    assert b"elderberry" not in left


def test_a_damaged_library_keeps_what_can_be_read_and_its_index(tmp_path):
    texts = [(f"Sentence number {n} of many.", 1, "en") for n in range(300)]
    shelf = fill(tmp_path, {"talk": texts})
    data = bytearray(shelf.path.read_bytes())
    data[60_000:64_000] = bytes(4_000)
    shelf.path.write_bytes(data)
    with opened(tmp_path) as library:
        journal = library.recall("talk")
        if journal is not None:
            journal.store(Correction(text="new", seq=1, first=0, last=0), lambda _: None)
    n_found = len(shelf.search(sought("sentence"), 1000))
    assert 100 < n_found <= 300
    assert n_found == len([*shelf.events(1)]) - any(
        isinstance(event, Correction) for event in shelf.events(1)
    )


@pytest.mark.parametrize("form", ["opus", "flac"])
def test_audio_of_a_process_that_dies_can_be_heard(tmp_path, form):
    writer = SoundWriter(form, tmp_path / "talk")
    noise = np.random.default_rng(1).normal(0, 0.1, (500, 320)).astype(np.float32)
    for first in range(0, 500, 10):
        writer.write(noise[first : first + 10])
    cut = Path(shutil.copy(tmp_path / writer.file, tmp_path / f"cut.{form}"))
    writer.close()
    for path, least_s in ((cut, 8.0), (tmp_path / writer.file, 9.99)):
        with closing(av.open(str(path))) as sound:
            duration_s = sum(frame.samples / frame.sample_rate for frame in sound.decode(audio=0))
        assert least_s <= duration_s <= 10.1
    with pytest.raises(ConfigError, match=rf"cannot create .*talk\.{form}: File exists"):
        SoundWriter(form, tmp_path / "talk")


def test_where_the_disk_is_full_only_the_recording_ends(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("streamd.library.sounds.is_nearly_full", lambda folder: True)
    writer = SoundWriter("opus", tmp_path / "talk")
    noise = np.random.default_rng(1).normal(0, 0.1, (50, 320)).astype(np.float32)
    for _ in range(30):
        writer.write(noise)
    writer.close()
    (line,) = caplog.messages
    assert line.endswith(
        "the disk is nearly full, and finals need the rest; the recording ends here"
    )
    with closing(av.open(str(tmp_path / writer.file))) as sound:
        assert sum(frame.samples for frame in sound.decode(audio=0)) >= 8 * 48_000


def test_a_recording_whose_file_cannot_grow_ends_in_a_line(tmp_path):
    program = f"""
import resource, signal
import numpy as np
from pathlib import Path
from streamd.library.sounds import SoundWriter
writer = SoundWriter("opus", Path({str(tmp_path)!r}) / "talk")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
noise = np.random.default_rng(1).normal(0, 0.1, (50, 320)).astype(np.float32)
for _ in range(10):
    writer.write(noise)
writer.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "talk.opus: File too large; the recording ends here" in done.stderr


def test_what_somebody_was_called_in_a_session_is_what_they_are_called_in_the_library(tmp_path):
    with opened(tmp_path) as library:
        addition = Addition(library, OPTIONS, "talk.wav")
        addition.hub.publish(said("We met.", 2))
        for name in ("Bob", "Ana Botín"):
            addition.hub.publish(SpeakerName(speaker=2, name=name))
        addition.hub.close("end")
        addition.end("end")
    shelf = Shelf(tmp_path)
    assert shelf.names(1) == {2: "Ana Botín"}
    assert [kept.speakers for kept in shelf.sessions()] == [("Ana Botín",)]
    assert found(shelf, 'speaker:"ana botin"') == ["We met."]
    assert not found(shelf, "speaker:bob")
    give_name(shelf, 1, 2, "")
    assert shelf.names(1) == {}
