"""What is deleted is in no file of the library, also while a daemon writes it."""

import sqlite3
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import ConfigError
from streamd.events import Correction
from streamd.library import shelf as shelves
from streamd.library import tables
from streamd.library.additions import Addition
from streamd.library.shelf import Shelf
from streamd.library.tables import NAME, SOUNDS, TO_COMPACT, compact, opened
from tests.library.test_shelf import OPTIONS, found, give_name, said

NOISE = "The meeting went on about nothing in particular for some time."


def put(library, number, n_finals):
    """Add a session whose words, name, correction and audio are of one number."""
    addition = Addition(library, OPTIONS, f"session{number}z.wav")
    for n in range(n_finals):
        secret = f"{NOISE} Then came secret{number}z and geheim{n}x{number}z."
        addition.hub.publish(said(secret, 1, start_ms=n * 5000))
    addition.hub.publish(Correction(text=f"corrected{number}z", seq=1, first=0, last=1))
    addition.end("end")


def bytes_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() + path.name.encode() for path in files).lower()


@pytest.mark.parametrize("is_open", [True, False])
@settings(max_examples=6)
@given(data=st.data())
def test_what_is_deleted_is_in_no_file(tmp_path_factory, is_open, data):
    folder = tmp_path_factory.mktemp("library") / "own"
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=6))
    gone = data.draw(st.sets(st.integers(1, len(lengths)), min_size=1))
    shelf = Shelf(folder)
    with opened(folder) as library:
        for number, n_finals in enumerate(lengths, 1):
            put(library, number, n_finals)
            give_name(shelf, number, 1, f"Named{number}z")
        if is_open:
            for number in gone:
                shelf.delete(number)
            check(folder, lengths, gone)
            put(library, len(lengths) + 1, 1)
            assert found(shelf, f"secret{len(lengths) + 1}z")
    if not is_open:
        for number in gone:
            shelf.delete(number)
    check(folder, lengths, gone)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_large_library_is_written_anew_when_that_holds_up_nobody(
    tmp_path, monkeypatch, caplog, is_written
):
    caplog.set_level("INFO")
    monkeypatch.setattr(shelves, "_COMPACT_BYTES", 0)
    lengths, gone = [48] * 12, {3, 5, 6, 9, 11}
    with opened(tmp_path) as library:
        for number, n_finals in enumerate(lengths, 1):
            put(library, number, n_finals)
            give_name(Shelf(tmp_path), number, 1, f"Named{number}z")
        if is_written:
            for number in gone:
                Shelf(tmp_path).delete(number)
            assert any(f"{number}z".encode() in bytes_of(tmp_path) for number in gone)
    if is_written:
        with opened(tmp_path):
            assert "is written anew" in caplog.text
    else:
        for number in gone:
            Shelf(tmp_path).delete(number)
    check(tmp_path, lengths, gone)


def check(folder, lengths, gone):
    left, shelf = bytes_of(folder), Shelf(folder)
    for number in range(1, len(lengths) + 1):
        words = ("secret", "corrected", "named", "session")
        kept = [f"{word}{number}z".encode() in left for word in words]
        assert kept == [number not in gone] * 4
        assert len(found(shelf, f"secret{number}z")) == min(50, lengths[number - 1]) * kept[0]


def test_who_is_killed_while_a_library_is_written_anew_leaves_that_to_the_next_start(
    tmp_path, monkeypatch
):
    def killed(connection):
        raise KeyboardInterrupt

    lengths = [48] * 4
    with opened(tmp_path) as library:
        for number, n_finals in enumerate(lengths, 1):
            put(library, number, n_finals)
            give_name(Shelf(tmp_path), number, 1, f"Named{number}z")
    with monkeypatch.context() as patched:
        patched.setattr(tables, "merge", killed)
        with pytest.raises(KeyboardInterrupt):
            Shelf(tmp_path).delete(2)
    assert b"secret2z" in bytes_of(tmp_path)
    with opened(tmp_path):
        pass
    check(tmp_path, lengths, {2})


def test_on_a_full_disk_a_session_is_deleted_too(tmp_path, monkeypatch, caplog):
    def full(*query):
        raise sqlite3.OperationalError("database or disk is full")

    with opened(tmp_path) as library:
        put(library, 1, 3)
    disk = SimpleNamespace(total_changes=0, execute=full)
    monkeypatch.setattr(shelves, "compact", lambda _, is_whole: compact(disk, is_whole=is_whole))
    Shelf(tmp_path).delete(1)
    assert Shelf(tmp_path).sessions() == []
    assert "disk is full" in caplog.text
    ((mark,),) = sqlite3.connect(tmp_path / NAME).execute("PRAGMA application_id")
    assert mark == TO_COMPACT


def test_the_audio_of_two_sessions_that_are_deleted_at_once_goes(tmp_path):
    with opened(tmp_path) as library:
        for n in range(0, 20, 2):
            addition = Addition(library, OPTIONS, "talk.wav")
            addition.hear(np.zeros((50, 320), np.float32))
            addition.end("end")
            (sound,) = Shelf(tmp_path).sounds(n + 1)
            Addition(library, OPTIONS, str(tmp_path / SOUNDS / sound.file)).end("end")
            both = [threading.Thread(target=Shelf(tmp_path).delete, args=[n + m]) for m in (1, 2)]
            for each in both:
                each.start()
            for each in both:
                each.join()
    assert list((tmp_path / SOUNDS).iterdir()) == []


def test_nothing_is_written_of_a_session_that_is_gone(tmp_path):
    with opened(tmp_path) as library:
        put(library, 1, 1)
        Shelf(tmp_path).delete(1)
        with pytest.raises(ConfigError, match="no session 1"):
            give_name(Shelf(tmp_path), 1, 1, "Named1z")
    check(tmp_path, [1], {1})
