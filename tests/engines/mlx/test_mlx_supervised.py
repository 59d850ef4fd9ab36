"""Captions move to MLX in a process of its own, and are the same whatever that does."""

import logging
import sys
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from lab.eventlog import Began, Said
from lab.replay import replay
from streamd.config import load
from streamd.daemon import acceleration, build, opening
from streamd.daemon.opening import open_model
from streamd.daemon.recording import FileTranscriber
from streamd.engines.mlx import gpu
from streamd.engines.supervised.remote import RemoteEngine
from streamd.engines.supervised.switchover import NotFasterError, Switchover
from streamd.engines.supervised.worker import Worker
from streamd.errors import ConfigError
from streamd.events import Final, Partial
from streamd.types import SAMPLE_RATE
from tests.support import mlx_faults, recorded

pytestmark = [pytest.mark.mlx, pytest.mark.timeout(400)]
GIVEN = {"model": "tiny.en", "precision": "float32"}


def said(engine, model) -> list[tuple]:
    """Live captions of eight seconds."""
    sound = recorded.three_sentences()[: 8 * SAMPLE_RATE]
    config = load(GIVEN, {})
    recognizer = build.recognizer(config, model, engine)
    began = Began(name="speech", model="tiny.en", clock="free", step_ms=500, audio_ms=8000)
    new_session = partial(build.new_session, config)
    (log,) = replay([recognizer], new_session, [recorded.frames(sound)], began=began)
    return [
        (type(each), each.text, [(word.text, word.start_ms, word.end_ms) for word in each.words])
        for each in (each.event for each in log if isinstance(each, Said))
        if isinstance(each, Partial | Final)
    ]


@pytest.fixture(scope="module")
def expected() -> list[tuple]:
    model, engine = open_model(load(GIVEN | {"compute": "cpu"}, {}))
    return said(engine, model)


@pytest.fixture
def on_cpu(monkeypatch) -> None:
    """MLX on a CPU counts as a GPU."""
    candidate = partial(gpu.MlxCandidate, on_cpu=True, answer_s=300.0)  # of a busy machine, too
    monkeypatch.setattr(acceleration, "MlxCandidate", candidate)


@pytest.fixture
def engine(tmp_path, monkeypatch, on_cpu):
    monkeypatch.setenv(mlx_faults.FOLDER, str(tmp_path))
    monkeypatch.setattr(gpu, "serve", mlx_faults.serve)
    _, engine = open_model(load(GIVEN | {"compute": "gpu"}, {}), wait=True)
    yield engine
    engine.close()


def assert_same(found, expected, *, within_ms: int) -> None:
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    for (*_, words), (*_, others) in zip(found, expected, strict=True):
        for (text, *times), (same, *other_times) in zip(words, others, strict=True):
            assert text == same
            assert np.abs(np.subtract(times, other_times)).max() <= within_ms


@pytest.mark.skipif(mx.default_device().type != mx.cpu, reason="a GPU rounds otherwise")
@pytest.mark.parametrize("fault", [None, *mlx_faults.FAULTS])
def test_captions_are_the_same(engine, expected, caplog, tmp_path, fault):
    caplog.set_level(logging.INFO)
    assert isinstance(engine, Switchover)
    fast = engine.current
    assert isinstance(fast, RemoteEngine)
    if fault == "hang":
        fast.worker.answer_s = 10.0
    if fault:
        (tmp_path / fault).write_text("21")  # in the middle of a window
    model, _ = open_model(load(GIVEN | {"compute": "cpu"}, {}))
    found = said(engine, model)
    # What was taken over from an earlier window is computed in the new one, so times may differ.
    assert_same(found, expected, within_ms=60 if fault else 0)
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert not (tmp_path / str(fault)).exists(), "it did happen"
    whys = {
        "raise": "MLX failed: [METAL] Command buffer execution failed: Insufficient Memory",
        "hang": "did not answer within 10 s",
        "kill": "ended by SIGKILL",
        "nan": "computed infinity or NaN",
    }
    assert told == (
        [f"the GPU (float32) failed: {whys[fault]}; captions continue on the CPU"] if fault else []
    )
    if not fault:
        assert engine.current is fast
        figures = fast.figures()
        assert str(figures["library"]).startswith("MLX 0.")
        assert figures["active"] > 100e6
        assert figures["graph_s"] > 0


@pytest.mark.skipif(mx.default_device().type != mx.cpu, reason="a GPU rounds otherwise")
def test_windows_of_a_recording_run_together_in_the_worker(engine, monkeypatch):
    calls = []
    send = Worker._send

    def counted(worker, asked):
        calls.append((asked.method, asked.arguments))
        return send(worker, asked)

    monkeypatch.setattr(Worker, "_send", counted)
    config = load(GIVEN | {"compute": "cpu"}, {})
    model, cpu = open_model(config)
    texts = []
    for runs in (engine, cpu):
        transcriber = FileTranscriber(config, model, runs)
        recording = transcriber.new_file(pytest.fail)
        recording.take(recorded.frames(np.tile(recorded.three_sentences(), 2)))
        windows = list(transcriber.transcribe(recording))
        texts.append([final.text for window in windows for final in window.finals])
    assert texts[0] == texts[1]
    assert max(len(given[0]) for method, given in calls if method == "run") > 1
    methods = {method for method, _ in calls}
    assert "encode_alone" in methods
    assert "encode" not in methods, "nothing of these windows is kept for others"


def test_on_a_machine_without_a_gpu_the_cpu_goes_on(caplog):
    if mx.default_device().type != mx.cpu:
        pytest.skip("there is a GPU")
    _, engine = open_model(load(GIVEN | {"compute": "gpu"}, {}), wait=True)
    (told,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert told == "not using the GPU (float32): MLX finds no GPU here"
    assert not isinstance(engine.current, RemoteEngine)
    engine.close()


def test_what_reads_nonsense_is_refused(monkeypatch, caplog):
    """The weights of the GPU are others here: a fault of its driver would do the same."""
    on_cpu = load(GIVEN | {"compute": "cpu"}, {})
    monkeypatch.setattr(gpu.MlxCandidate, "load", lambda self: _Deaf(open_model(on_cpu)[1]))
    _, engine = open_model(load(GIVEN | {"compute": "gpu"}, {}), wait=True)
    (told,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert "reads a clip as '" in told
    assert "that the CPU reads as" in told
    engine.close()


class _Deaf:
    """Hears nothing of a window but its length."""

    def __init__(self, engine) -> None:
        self._engine, self.dims, self.n_cheap = engine, engine.dims, engine.n_cheap

    def encode(self, mel, *reuse, **options):
        return self._engine.encode(np.zeros_like(mel), *reuse, **options)

    def decoder(self, features, n_slots):
        return self._engine.decoder(features, n_slots)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("platform", "found", "message"),
    [
        ("linux", False, r"pip install '\.\[cuda\]'; or drop --compute gpu"),
        ("darwin", False, r"pip install '\.\[mlx\]'; or drop --compute gpu"),
        ("darwin", True, "a Mac with Apple silicon; or drop --compute gpu"),
    ],
)
def test_without_mlx_the_gpu_is_refused(monkeypatch, platform, found, message):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(gpu, "find_spec", lambda name: found or None)
    if platform == "darwin":
        monkeypatch.setattr("platform.machine", lambda: "x86_64" if found else "arm64")
    with pytest.raises(ConfigError, match=message):
        open_model(load(GIVEN | {"compute": "gpu"}, {}))


def test_auto_is_the_gpu_of_a_mac_and_must_be_faster_than_a_cpu_that_keeps_up(monkeypatch):
    times = {"fast": 20.0, "cpu": 10.0}
    monkeypatch.setattr(acceleration, "step_ms", lambda *engines: [times["fast"], times["cpu"]])
    model, cpu = open_model(load(GIVEN | {"compute": "cpu"}, {}))
    for compute, enough, why in [
        ("auto", False, ""),
        ("gpu", True, ""),
    ]:
        config = load(GIVEN | {"compute": compute}, {})
        assert acceleration.judge(config, model, cpu, is_fast_enough=enough)(cpu) == why
    with pytest.raises(NotFasterError, match="a step takes 20 ms, on the CPU 10"):
        acceleration.judge(load(GIVEN, {}), model, cpu, is_fast_enough=True)(cpu)
    times["fast"] = 9.0
    config = load(GIVEN, {})
    assert acceleration.judge(config, model, cpu, is_fast_enough=True)(cpu) == ""
    assert not acceleration.accelerates(config)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert acceleration.accelerates(config)
    assert not acceleration.accelerates(load(GIVEN | {"compute": "cpu"}, {}))


def test_recordings_stay_on_a_cpu_that_keeps_up_unless_the_gpu_is_asked_for(monkeypatch):
    """It decodes several windows at once."""
    for module in (opening, acceleration):
        monkeypatch.setattr(module, "accelerates", lambda config: config.decoding.compute != "cpu")
    monkeypatch.setattr(gpu.MlxCandidate, "load", lambda self: _Deaf(open_model(on_cpu)[1]))
    on_cpu = load(GIVEN | {"compute": "cpu"}, {})
    for compute, keeps_up, moves in [
        ("auto", True, False),
        ("auto", False, True),
        ("gpu", True, True),
    ]:
        monkeypatch.setattr(opening, "keeps_up", lambda config, dims, is_so=keeps_up: is_so)
        config = load(GIVEN | {"compute": compute}, {})
        _, engine = open_model(config, recordings=True)
        assert isinstance(engine, Switchover) == moves
        if moves:
            engine.close()
