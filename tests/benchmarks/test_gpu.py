"""The report on a GPU says whether the MLX engine agrees with the others, on a CPU, too."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="needs MLX"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def carried(tmp_path_factory) -> Path:
    """What a machine without a network gets, unpacked."""
    folder = tmp_path_factory.mktemp("carried")
    archive = folder / "gpu.tar.gz"
    subprocess.run([sys.executable, ROOT / "benchmarks/gpu.py", "--archive", archive], check=True)
    assert archive.stat().st_size < 40 * 2**20
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def report(folder: Path, *options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "benchmarks/gpu.py", *map(str, options)]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_the_golden_clips_are_carried(carried):
    code = "from streamd.engines import golden_clips; from pathlib import Path; "
    code += "assert len(golden_clips.clips()) == 3; "
    code += "assert len(golden_clips.read_by_whisper(Path('models/tiny.en'))) == 3"
    environment = os.environ | {"PYTHONPATH": str(carried)}
    subprocess.run([sys.executable, "-c", code], cwd=carried, env=environment, check=True)


def test_what_four_minutes_do_not_suffice_for_is_a_line(carried, tmp_path):
    done = report(carried, "--budget-s", 0, "--out", tmp_path / "gpu.txt", "device", "live:onnx")
    told = "NOT RUN: 0 s were over; name it to run it alone"
    assert sorted(done.stdout.splitlines()) == [f"{'device':16} {told}", f"{'live:onnx':16} {told}"]


CUDA = """
import onnxruntime, runpy, sys
onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider"]
sys.argv = ["gpu.py", "--here", "onnx-gpu"]
runpy.run_path("benchmarks/gpu.py", run_name="__main__")
"""


def test_a_gpu_that_onnx_runtime_cannot_use_is_not_measured_as_one(carried):
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'benchmarks'){CUDA}"]
    environment = os.environ | {"PYTHONPATH": str(carried)}
    done = subprocess.run(command, cwd=carried, capture_output=True, text=True, env=environment)
    told = "onnxruntime has CUDA, which does not start here"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, told)


@pytest.mark.timeout(900)  # it starts eight processes, of which each opens a model
def test_each_line_can_be_read_alone_and_a_refusal_is_one(carried, tmp_path):
    """Of the files that the archive has."""
    parts = ["device", "live:onnx", "files:onnx", "nothing", "onnx-gpu", "live:float32"]
    parts += ["files:float32"]
    out = tmp_path / "new" / "gpu.txt"
    options = ["--seconds", 4, "--deadline-s", 500, "--budget-s", 850, "--out", out]
    done = report(carried, *options, *parts)
    assert out.read_text() == done.stdout
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == set(parts)
    assert [line for line in lines if "onnxruntime has no CUDA" in line]
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
