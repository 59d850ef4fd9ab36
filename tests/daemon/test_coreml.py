"""The program with Core ML, in the shape of its stand-in: what is said does not depend on it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamd.config import load
from streamd.daemon import acceleration, opening
from streamd.daemon.opening import open_model
from streamd.engines.coreml.runtime.hybrid import HybridEngine
from streamd.engines.prepared import Opened
from streamd.errors import ConfigError
from tests.support import coreml_runs as runs
from tests.support import huggingface_folder, recorded
from tests.support.checkpoints import checkpoint, huggingface
from tests.support.coreml_stand_in import FOLDER, Faults

# It is not imported here, which takes a second in each process that collects tests.
pytestmark = [
    pytest.mark.skipif(not find_spec("coremltools"), reason="needs coremltools to build packages"),
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = "tests.support.coreml_stand_in"

# Random weights write other texts at another context, and only the CPU has states of silence.
SHORT = """
import sys
from streamd.cli import main
from streamd.engines.coreml.runtime.hybrid import HybridEngine
from streamd.engines.onnx import OnnxEngine


def shortened(encode):
    return lambda self, mel, reuse=None, *, audio_ctx=0: encode(self, mel, reuse, audio_ctx=384)


for kind in (OnnxEngine, HybridEngine):
    kind.encode = shortened(kind.encode)
"""
# The program with the stand-in: its second window waits for Core ML.
PROGRAM = f"""{SHORT}
import sys
from streamd.cli import main
from streamd.daemon import acceleration
from streamd.whisper.recognizer import Recognizer

recognize, n_windows = Recognizer.recognize, 0


def recognize_in_turns(self, window):
    global n_windows
    n_windows += 1
    if n_windows == 2:
        assert self._engine.settled.wait(250)
    return recognize(self, window)


if __name__ == "__main__":
    acceleration.CORE_ML = "{STAND_IN}"
    acceleration.core_ml_unavailable = lambda: ""
    Recognizer.recognize = recognize_in_turns
    sys.exit(main())
"""


@pytest.fixture
def stand_in(monkeypatch) -> None:
    """Core ML's stand-in, on any machine."""
    monkeypatch.setattr(acceleration, "CORE_ML", STAND_IN)
    monkeypatch.setattr(acceleration, "core_ml_unavailable", lambda: "")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """A model that the stand-in runs quickly; what it writes is nonsense."""
    return str(huggingface_folder.write(runs.model(), tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def cache(small, tmp_path_factory) -> Path:
    """A cache folder with that model built for Core ML."""
    from streamd.engines.coreml.package_builder import build_model

    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMD_CACHE", str(folder))
        build_model(small, lambda done, n, what: None)
    return folder


def finals(done: subprocess.CompletedProcess) -> list[dict]:
    assert done.returncode == 0, done.stderr.decode()
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1] == {"type": "eos", "seq": events[-1]["seq"], "reason": "end"}
    return [event for event in events if event["type"] == "final"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Three sentences, which are five windows."""
    return recorded.wav(tmp_path_factory.mktemp("audio") / "a.wav", recorded.three_sentences())


def run(program: list[str], model: str, sound: Path, **environ: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error", *program, "--model", model, "--precision", "float32"]
    command += ["--beam-size", "1", "--set", "search.temperatures=0", "--fast", "--port=off"]
    command += ["--jsonl"]
    return subprocess.run(
        [*command, str(sound)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.mark.coreml
def test_the_text_is_the_same_when_the_encoder_takes_over(small, cache, sound, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environ = {
        "STREAMD_CACHE": str(cache),
        "STREAMD_COMPUTE": "ane",
        "STREAMD_SET": "decoding.engine_deadline_ms=0",  # a window waits for Core ML
        FOLDER: str(tmp_path),
    }
    with_core_ml = run([str(script)], small, sound, **environ)
    plain = tmp_path / "plain.py"
    plain.write_text(f"{SHORT}\n\nsys.exit(main())\n")
    on_cpu = run([str(plain)], small, sound)
    found, expected = finals(with_core_ml), finals(on_cpu)
    assert [final["text"] for final in found] == [final["text"] for final in expected]
    for final, other in zip(found, expected, strict=True):
        assert len(final["words"]) == len(other["words"]) > 0
        for word, same in zip(final["words"], other["words"], strict=True):
            assert word["text"] == same["text"]
            assert abs(word["start_ms"] - same["start_ms"]) <= 20
            assert abs(word["end_ms"] - same["end_ms"]) <= 20
    assert ["predict", "CPU_AND_NE", "ctx1024"] in Faults(tmp_path).done()


def test_without_a_mac_the_neural_engine_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ConfigError, match="Core ML exists only on macOS; drop --compute ane"):
        open_model(load({"model": "tiny.en", "compute": "ane"}, {}))


@pytest.mark.coreml
def test_captions_move_over_when_the_model_has_been_built_meanwhile(
    tmp_path, monkeypatch, caplog, stand_in
):
    caplog.set_level("INFO")
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "cache"))
    model = str(huggingface.write(checkpoint("few"), tmp_path))
    engine = open_model(load({"model": model, "compute": "ane"}, {}))[1]
    assert not isinstance(engine.current, HybridEngine), "it is not built, and captions run"
    assert engine.settled.wait(300)
    assert isinstance(engine.current, HybridEngine)
    engine.close()
    told = [message for message in caplog.messages if "mlpackage" in message]
    assert told[-1].endswith("encoder.mlpackage, 2 of 2")


@pytest.mark.coreml
def test_a_model_that_cannot_be_built_stays_on_the_cpu(tmp_path, monkeypatch, caplog, stand_in):
    caplog.set_level("INFO")
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "file"))
    name = str(huggingface.write(checkpoint("few"), tmp_path))
    config = load({"model": name, "compute": "ane"}, {})
    engine = open_model(config, wait=True)[1]
    assert not isinstance(engine.current, HybridEngine)
    assert any("there is no cache folder" in message for message in caplog.messages)
    where = "the Neural Engine, decoder on the CPU"
    assert f"not using {where}: {name} was not built for Core ML" in caplog.messages


def test_what_is_for_macs_is_not_loaded_elsewhere():
    code = "import streamd.cli.doctor, streamd.daemon, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [name for name in done.stdout.split() if "coreml" in name or name.startswith("mlx")]
    assert found == []


@pytest.mark.parametrize("compute", ["cpu", "ane"])
def test_of_recordings_half_of_the_threads_encode_while_the_others_decode(
    monkeypatch, compute, stand_in
):
    """On the CPU, which also serves until the Neural Engine is ready, or if it never is."""
    asked = []

    def open_engine(
        name: str, *, threads: int, precision: str, urgent_threads: int, recordings: bool
    ) -> Opened:
        assert recordings
        asked.append((threads, urgent_threads))
        return Opened(SimpleNamespace(name=name), None, "int8", "prepared")

    monkeypatch.setattr(opening, "open_engine", open_engine)
    monkeypatch.setattr(opening, "candidates", lambda *given: [])
    config = load({"threads": "2", "compute": compute}, {})
    open_model(config, recordings=True)
    assert asked == [(1, 2)]
