"""What all tests share."""

import os
import tempfile
from pathlib import Path

import pulseaudio
import pytest
from hypothesis import settings

# Machines are slow and noisy: no test asserts on time. CI draws the same examples every time.
settings.register_profile("local", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def null_sink():
    # Not tmp_path: a socket's path may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="streamd-") as folder,
        pulseaudio.null_sink(Path(folder)) as sink,
    ):
        yield sink
