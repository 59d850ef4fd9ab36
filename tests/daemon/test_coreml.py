"""The program with Core ML, in the shape of its stand-in: what is said does not depend on it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamd.config import load
from streamd.daemon import opening
from streamd.daemon.opening import CoreML, built_for_core_ml, open_model
from streamd.engines.coreml.runtime.hybrid import HybridEngine
from streamd.engines.prepared import Opened
from streamd.errors import ConfigError, ModelError
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
STAND_IN = CoreML("tests.support.coreml_stand_in")

# The program with the stand-in: its second window waits for Core ML.
PROGRAM = """
import sys
from functools import partial
from streamd import daemon
from streamd.cli import main
from streamd.daemon.opening import CoreML
from streamd.whisper.recognizer import Recognizer

recognize, n_windows = Recognizer.recognize, 0


def recognize_in_turns(self, window):
    global n_windows
    n_windows += 1
    if n_windows == 2:
        assert self._engine.settled.wait(250)
    return recognize(self, window)


if __name__ == "__main__":
    stand_in = CoreML("tests.support.coreml_stand_in")
    daemon.open_model = partial(daemon.open_model, core_ml=stand_in)
    Recognizer.recognize = recognize_in_turns
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """A model that the stand-in runs quickly; what it writes is nonsense."""
    return str(huggingface_folder.write(runs.model(), tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def cache(small, tmp_path_factory) -> Path:
    """A cache folder with that model built for Core ML."""
    from streamd.engines.coreml.package_builder import build_model
    from streamd.options import BuildOptions

    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMD_CACHE", str(folder))
        build_model(small, BuildOptions(audio_contexts=(384,)), lambda done, n, what: None)
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
    command += ["--beam-size", "1", "--no-fallback", "--fast", "--no-server", "--jsonl"]
    # Random weights write other texts at another context, and only the CPU has states of silence.
    command += ["--audio-ctx", "384"]
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
        "STREAMD_ENGINE_DEADLINE_MS": "0",  # a window waits for Core ML
        FOLDER: str(tmp_path),
    }
    with_core_ml = run([str(script)], small, sound, **environ)
    on_cpu = run([str(Path(sys.executable).with_name("streamd"))], small, sound)
    found, expected = finals(with_core_ml), finals(on_cpu)
    assert [final["text"] for final in found] == [final["text"] for final in expected]
    for final, other in zip(found, expected, strict=True):
        assert len(final["words"]) == len(other["words"]) > 0
        for word, same in zip(final["words"], other["words"], strict=True):
            assert word["text"] == same["text"]
            assert abs(word["start_ms"] - same["start_ms"]) <= 20
            assert abs(word["end_ms"] - same["end_ms"]) <= 20
    assert ["predict", "CPU_AND_NE", "ctx384"] in Faults(tmp_path).done()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compute": "ane"}, "Core ML exists only on macOS; drop --compute ane"),
        ({"engine": "coreml"}, "Core ML exists only on macOS; drop --engine coreml"),
        ({"compute": "gpu", "engine": "onnx"}, "--compute gpu needs Core ML; drop --engine onnx"),
        ({"compute": "cpu", "engine": "coreml"}, "--engine coreml cannot run on the CPU alone"),
    ],
)
def test_what_cannot_be_is_refused(given, message, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ConfigError, match=message):
        built_for_core_ml(load(given | {"model": "tiny.en"}, {}), CoreML())


def test_without_a_mac_the_cpu_runs_everything(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert built_for_core_ml(load({"model": "tiny.en"}, {}), CoreML()) is None


def test_a_model_that_is_not_built_runs_on_the_cpu_unless_core_ml_is_asked_for(caplog):
    caplog.set_level("INFO")
    assert built_for_core_ml(load({"model": "tiny.en"}, {}), STAND_IN) is None
    assert "streamd models build tiny.en --engine coreml" in caplog.text
    for given in ({"compute": "gpu"}, {"engine": "coreml"}):
        with pytest.raises(
            ModelError, match=r"tiny\.en is not built for Core ML: streamd models build"
        ):
            built_for_core_ml(load(given | {"model": "tiny.en"}, {}), STAND_IN)


@pytest.mark.coreml
def test_captions_move_over_when_the_model_has_been_built_meanwhile(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "cache"))
    model = str(huggingface.write(checkpoint("few"), tmp_path))
    config = load({"model": model, "compute": "gpu"}, {})
    config = replace(config, build=replace(config.build, missing=True))
    engine = open_model(config, core_ml=STAND_IN)[1]
    assert not isinstance(engine.current, HybridEngine), "it is not built, and captions run"
    assert engine.settled.wait(300)
    assert isinstance(engine.current, HybridEngine)
    engine.stop()
    told = [message for message in caplog.messages if "mlpackage" in message]
    assert told[-1].endswith("encoder.mlpackage, 2 of 2")


@pytest.mark.coreml
def test_a_model_that_cannot_be_built_stays_on_the_cpu(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "file"))
    config = load({"model": str(huggingface.write(checkpoint("few"), tmp_path))}, {})
    config = replace(config, build=replace(config.build, missing=True))
    engine = open_model(config, core_ml=STAND_IN, wait_for_core_ml=True)[1]
    assert not isinstance(engine.current, HybridEngine)
    assert any("there is no cache folder" in message for message in caplog.messages)
    name = config.decoding.model
    assert f"not on the Neural Engine: {name} was not built for Core ML" in caplog.messages


@pytest.mark.coreml
def test_a_model_that_is_built_runs_on_core_ml_unless_the_cpu_is_asked_for(
    small, cache, monkeypatch
):
    monkeypatch.setenv("STREAMD_CACHE", str(cache))
    built = built_for_core_ml(load({"model": small}, {}), STAND_IN)
    assert built.meta.name == Path(small).name
    for given in ({"compute": "cpu"}, {"engine": "onnx"}):
        assert built_for_core_ml(load(given | {"model": small}, {}), STAND_IN) is None


def test_what_is_for_macs_is_not_loaded_elsewhere():
    code = "import streamd.cli.doctor, streamd.daemon, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    core_ml = [name for name in done.stdout.split() if "coreml" in name]
    assert core_ml == []


def test_without_the_library_the_cpu_runs_everything(caplog):
    caplog.set_level("INFO")
    assert built_for_core_ml(load({"model": "tiny.en"}, {}), CoreML("no_such_library")) is None
    assert "no_such_library is not installed: pip install" in caplog.text


@pytest.mark.parametrize(("built", "threads"), [(None, (1, 2)), (object(), (2, 0))])
def test_until_core_ml_is_ready_recordings_have_all_threads(monkeypatch, built, threads):
    """On the CPU, half of them encode while the others decode."""
    asked = []

    def open_engine(
        name: str, *, threads: int, precision: str, urgent_threads: int, recordings: bool
    ) -> Opened:
        assert recordings
        asked.append((threads, urgent_threads))
        return Opened(SimpleNamespace(name=name), None, "int8", "prepared")

    monkeypatch.setattr(opening, "open_engine", open_engine)
    monkeypatch.setattr(opening, "built_for_core_ml", lambda config, core_ml: built)
    monkeypatch.setattr(opening, "_with_core_ml", lambda config, engine, built, **_: engine)
    open_model(load({"threads": "2"}, {}), recordings=True)
    assert asked == [threads]
