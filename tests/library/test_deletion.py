"""What is deleted is in no file of the library, also while a daemon writes it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.events import Correction
from streamd.library import shelf as shelves
from streamd.library.additions import Addition
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
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
    tmp_path, monkeypatch, is_written
):
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
            pass
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
