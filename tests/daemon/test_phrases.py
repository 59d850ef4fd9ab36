"""The list of phrases on disk, and what a session adds to it."""

import pytest

from streamd.daemon import phrases
from streamd.errors import ConfigError


def test_the_users_own_list_counts_if_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert phrases.read("") == ""
    phrases.add("Ana Botín", phrases.own_file())
    assert phrases.read("") == "Ana Botín\n"
    (tmp_path / "other.txt").write_text("Ada\n")
    assert phrases.read(str(tmp_path / "other.txt")) == "Ada\n"


def test_a_phrase_is_added_once(tmp_path):
    path = tmp_path / "streamd" / "vocabulary.txt"
    for phrase in ("Ada", "JetStream", "Ada"):
        phrases.add(phrase, path)
    assert path.read_text() == "Ada\nJetStream\n"
    path.write_text("# names\nAda:2")  # no newline at the end
    phrases.add("Ada", path)
    phrases.add("Zoë", path)
    assert path.read_text() == "# names\nAda:2\nZoë\n"


def test_hotwords_stand_before_the_list():
    assert phrases.joined("Ada\n", " Zoë, Dr. Nguyen-Smith\nJetStream,") == (
        "Zoë\nDr. Nguyen-Smith\nJetStream\nAda\n"
    )
    assert phrases.joined("", "") == ""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "--vocabulary .*names.txt: cannot read it: No such file or directory"),
        (b"\xff\xfe", "names.txt: it is not UTF-8 text"),
        (b"Ada\n--\n", "names.txt: '--' has neither letter nor digit"),
        (b"a" * (10 * 2**20 + 1), "names.txt: more than 10 MB"),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, content, complaint):
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as error:
        phrases.read(str(path))
    assert "\n" not in str(error.value)
