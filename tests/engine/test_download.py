"""Downloads from a stand-in for the hub: whole and proved, or refused in one line."""

from pathlib import Path

import pytest
from engine.checkpoints import assert_same, checkpoint, huggingface
from engine.hub import hub, repo_of

from streamd.engine.store import load_model
from streamd.engine.store.download import fetch, look_up
from streamd.engine.store.places import places
from streamd.engine.store.repository import repository_of

MODEL = "model.safetensors"
NEEDED = ["config.json", "generation_config.json", MODEL, "tokenizer.json"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A small model, as people put it on the hub."""
    return huggingface.write(checkpoint("few"), tmp_path_factory.mktemp("hub"))


@pytest.fixture
def serving(folder, monkeypatch, tmp_path):
    """A hub with the repository some/tiny, and a cache of our own."""
    with hub(tiny=repo_of(folder)) as serving:
        monkeypatch.setenv("HF_ENDPOINT", serving.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        yield serving


def get(name: str = "some/tiny", **kwargs) -> Path:
    here = places()
    return fetch(look_up(repository_of(name), here), here, pause=lambda seconds: None, **kwargs)


def test_a_downloaded_model_is_the_one_that_was_put_there(serving, folder):
    found = get()
    assert sorted(path.name for path in found.iterdir()) == NEEDED, "and nothing else is fetched"
    model = load_model("some/tiny")
    assert_same(model, load_model(str(folder)))
    assert model.name == "some/tiny"
    assert load_model(str(found)).name == "some/tiny", "not the number of a commit"
