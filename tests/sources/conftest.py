import tempfile
from pathlib import Path

import pulseaudio
import pytest


@pytest.fixture
def null_sink():
    # Not tmp_path: a socket's path may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="streamd-") as folder,
        pulseaudio.null_sink(Path(folder)) as sink,
    ):
        yield sink
