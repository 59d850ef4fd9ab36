"""Where YAMNet comes from, and what is refused."""

import hashlib
from importlib.util import find_spec

import httpx2
import pytest

from streamd.engines import yamnet
from streamd.errors import ConfigError, ModelError
from streamd.models import sounds


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMD_STORE", str(tmp_path / "store"))


class Answer:
    """What Google would answer."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    status_code = 200

    def iter_bytes(self):
        yield from (self.content[:5], self.content[5:])


def answers(monkeypatch, content):
    asked = []

    def stream(client, method, address, **options):
        asked.append((method, address))
        return Answer(content)

    monkeypatch.setattr(httpx2.Client, "stream", stream)
    return asked


def test_it_is_downloaded_from_google_and_kept_if_it_is_the_known_file(monkeypatch):
    content = b"the network"
    monkeypatch.setattr(sounds, "SHA256", hashlib.sha256(content).hexdigest())
    asked = answers(monkeypatch, content)
    assert sounds.network() is None
    assert sounds.fetch().read_bytes() == content
    assert asked == [("GET", sounds.ADDRESS)]
    assert sounds.network() == sounds.kept_at()
    sounds.remove()
    assert sounds.network() is None
    with pytest.raises(ModelError, match="is not here"):
        sounds.remove()


def test_another_file_is_not_kept(monkeypatch):
    answers(monkeypatch, b"something else")
    with pytest.raises(ModelError, match="another file"):
        sounds.fetch()
    assert sounds.network() is None


def test_what_does_not_end_is_not_kept(monkeypatch):
    answers(monkeypatch, b"x" * ((20 << 20) + 1))
    with pytest.raises(ModelError, match="more than 20 MB"):
        sounds.fetch()


def test_nothing_is_downloaded_where_nothing_may_be(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = answers(monkeypatch, b"")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        sounds.fetch()
    assert asked == []


def test_a_network_that_is_not_here_is_told_with_the_command(monkeypatch):
    monkeypatch.setattr(yamnet, "find_spec", lambda name: object())
    with pytest.raises(ModelError, match="streamd models get sounds"):
        yamnet.check_sounds()
    monkeypatch.setattr(yamnet, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[sounds\]'"):
        yamnet.check_sounds()


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="needs the extra sounds")
def test_a_file_that_is_no_network_is_refused(tmp_path):
    path = tmp_path / "damaged.tflite"
    path.write_bytes(b"TFL3" * 100)
    with pytest.raises(ModelError, match="not YAMNet"):
        yamnet.load(path)
