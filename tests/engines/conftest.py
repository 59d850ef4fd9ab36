"""What several tests of engines start from."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
