"""The report on a GPU says whether the MLX engine agrees with the others, on a CPU, too."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="needs MLX"),
]
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)  # it starts six processes, of which each opens a model
def test_each_line_can_be_read_alone_and_a_refusal_is_one(tmp_path):
    parts = ["device", "live:onnx", "files:onnx", "nothing", "live:float32", "files:float32"]
    out = tmp_path / "new" / "gpu.txt"
    options = ["--seconds", "4", "--deadline-s", "500", "--out", out]
    command = [sys.executable, "benchmarks/gpu.py", *options, *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.read_text() == done.stdout
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == set(parts)
    assert [line for line in lines if "REFUSED" in line] == [
        "nothing          REFUSED: exit code 1: KeyError: 'nothing'"
    ]
    compared = [line for line in lines if "texts as onnx" in line]
    assert len(compared) == 4
    for line in compared:
        texts = re.search(r"texts as onnx (\d+) of (\d+) \((\d+)\)", line)
        times = re.search(r"words times as onnx (\d+) of (\d+)", line)
        assert len({*texts.groups()}) == 1, line
        assert len({*times.groups()}) == 1, line
        assert int(times[1]) > 5
