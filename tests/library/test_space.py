"""A library takes no more of the disk than its owner wants."""

import os

import pytest

from streamd.library.shelf import Shelf
from streamd.library.tables import SOUNDS, opened
from tests.library.test_shelf import DAY, fill, found


def test_the_oldest_audio_goes_first_and_its_text_stays(tmp_path, caplog):
    for day, name in enumerate(("a", "b", "c")):
        fill(tmp_path, {name: [(f"The word is {name}{name}.", 1, "en")]}, day=day)
        (file,) = (tmp_path / SOUNDS).glob(f"{name}~*")
        with file.open("r+b") as sound:
            sound.truncate(1_000_000)
        written_s = (20_000 + day) * DAY
        os.utime(file, (written_s, written_s))
    (tmp_path / SOUNDS / "unknown.opus").write_bytes(bytes(10))
    with opened(tmp_path, most_bytes=1_500_000, clock=lambda: 20_009 * DAY):
        pass
    left = sorted(path.name[:2] for path in (tmp_path / SOUNDS).iterdir())
    assert left == ["c~", "un"]
    shelf = Shelf(tmp_path)
    assert [len(shelf.sounds(number)) for number in (1, 2, 3)] == [0, 0, 1]
    assert found(shelf, "aa") == ["The word is aa."]
    (line,) = caplog.messages
    assert "the oldest 2 recordings were removed for journal.keep_gb=0.0015" in line


@pytest.mark.parametrize("most", [0, 1])
def test_what_goes_on_stays(tmp_path, caplog, most):
    fill(tmp_path, {"a": [("Hello.", 1, "en")]})
    with opened(tmp_path, most_bytes=most, clock=lambda: 20_001 * DAY):
        pass
    assert len([*(tmp_path / SOUNDS).iterdir()]) == 1
    assert len(caplog.messages) == most
