"""The examples for voice agents answer what is said to them."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.foreign.conftest import assert_same_words
from tests.support.recorded import ROOT, wav


@pytest.mark.parametrize("framework", ["livekit", "pipecat"])
def test_an_agent_answers_each_turn(server, speech, native, came_back, tmp_path, framework):
    recording = wav(tmp_path / "talk.wav", (speech / 32768).astype(np.float32))
    command = [sys.executable, ROOT / f"examples/{framework}_agent.py", server.ws, recording]
    environment = os.environ | {"STREAMD_TOKEN": server.token}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    said = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
    same = assert_same_words(" ".join(said), native, share=0.3)
    assert lines[1::2] == [f"You said {len(turn.split())} words." for turn in said]
    package = {"livekit": "livekit-agents", "pipecat": "pipecat-ai"}[framework]
    came_back(package, f"examples/{framework}_agent.py", f"{len(said)} turns answered; {same}")
