"""``streamd models check``, ``bench`` and ``doctor``."""

import json
import platform
import re
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from streamd.cli import main
from streamd.cli.bench import StreamCost
from streamd.cli.doctor import _microphone, _models, _options, _precision, _versions
from streamd.cli.model_check import HeardClip, hear, judged, listener
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engines.golden_clips import GoldenClip
from streamd.engines.prepared import open_in_memory
from streamd.errors import ModelError
from streamd.models.store import load_model
from streamd.sources.arrays import ArraySource
from streamd.sources.microphone import Device
from tests.support.checkpoints import checkpoint, huggingface

BUNDLED = Path(__file__).parents[2] / "models" / "tiny.en"


def test_the_check_of_the_bundled_model_tells_all_and_succeeds(capsys):
    assert main(["models", "check", "tiny.en", "--threads", "1", "--precision", "int8"]) == 0
    out, err = capsys.readouterr()
    told = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(" "))
    assert told["model"].strip() == "tiny.en"
    assert "encoder 4 layers of 384" in told["dimensions"]
    assert "million" in told["parameters"]
    assert "hears lamp           Would you please turn on the living room lamp?\n" in out
    assert "expected: Eight of spades, four of close, seven of hearts.\n" in out
    assert "wrong words          0 of 32 in int8\n" in out, "as openai-whisper reads them"
    assert re.search(r"\d CPU seconds per second; rtf \d", out)  # a busy machine may take long
    assert told["verdict"].startswith("tiny.en works, ")
    assert "listening to 3 clips" in err


def test_a_model_that_is_not_here_or_damaged_is_one_line_and_exit_code_4(capsys, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(BUNDLED, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    for name, says in (("nowhere", "'nowhere' not found"), (str(folder), "model.safetensors")):
        assert main(["models", "check", name, "-q"]) == 4
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert says in err


def test_a_model_that_hears_little_at_once_plays_no_clip(tmp_path, capsys):
    folder = huggingface.write(checkpoint("tiny"), tmp_path)
    assert main(["models", "check", str(folder), "-t", "1", "-q"]) == 0
    out, _ = capsys.readouterr()
    assert out.endswith("not played: the model hears only 2560 ms at once\n")


def test_of_other_weights_what_was_said_is_expected(capsys, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(BUNDLED, folder)  # with its states of silence, which take long to make
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("decoder.layer_norm.bias"))
    weights[name] = weights[name] + weights[name].dtype.type(0.001)
    save_file(weights, folder / "model.safetensors")
    assert main(["models", "check", str(folder), "-t", "1", "-q", "--precision", "int8"]) == 0
    out, _ = capsys.readouterr()
    assert "expected: eight of spades four of clubs seven of hearts\n" in out
    assert "wrong words          2 of 33 in int8\n" in out


def test_words_that_a_live_stream_would_doubt_count_in_a_clip_of_speech():
    config = load({"model": "tiny.en", "threads": "1"}, {})
    model, engine = open_model(config)
    doubting = load({"model": "tiny.en", "set": ["search.no_speech_threshold=0"]}, {})
    (*_, digits) = hear("tiny.en", build.recognizer(doubting, model, engine))
    assert (digits.clip.name, digits.text) == ("digits", "")
    (*_, digits) = hear("tiny.en", listener(doubting, model, engine))
    assert digits.n_wrong == 0


def _scaled(weights):
    name = "encoder.blocks.2.mlp.0.weight"
    return {name: 2 * weights[name]}


def _random_rows(weights):
    name = "decoder.token_embedding.weight"
    rows = weights[name].copy()
    rng = np.random.default_rng(0)
    some = rng.choice(len(rows), len(rows) // 10, replace=False)
    rows[some] = rng.standard_normal((len(some), rows.shape[1])) * rows.std()
    return {name: rows.astype(np.float32)}


@pytest.mark.parametrize("broken", [_scaled, _random_rows])
def test_weights_that_are_whole_but_wrong_are_refused(broken):
    model = load_model("tiny.en")
    config = load({"model": "tiny.en", "threads": "1", "set": ["search.temperatures=0"]}, {})
    model = replace(model, weights={**model.weights, **broken(model.weights)})
    engine = open_in_memory(model, threads=1, precision="int8").engine
    heard = hear("tiny.en", build.recognizer(config, model, engine))
    with pytest.raises(ModelError, match=r"m fails its check: .* of 32 words .* in int8; use --pr"):
        list(judged("m", heard, "int8"))


CLIP = GoldenClip("hundred", np.zeros(16_000, np.float32), " ".join(["word"] * 100))


def verdict(text: str, expected: str = CLIP.text, precision: str = "float32") -> str:
    return "\n".join(judged("m", iter([HeardClip(CLIP, expected, text)]), precision))


def test_half_of_the_words_may_be_wrong_and_no_more():
    assert "wrong words          50 of 100 in float32" in verdict(" ".join(["word"] * 50))
    with pytest.raises(ModelError, match=r"51 of 100 words .* wrong in float32; get its files aga"):
        verdict(" ".join(["word"] * 49))


def test_numbers_and_spelling_are_no_wrong_words():
    told = verdict("10001. 90210. Color", "one zero zero zero one nine oh two one oh colour")
    assert "0 of 11 in float32" in told


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bench_gives_a_table_to_a_terminal_and_one_line_of_json_to_a_pipe(
    monkeypatch, capsys, terminal
):
    cost = StreamCost(
        model="tiny.en", speech_s=60.0, n_windows=100, median_ms=50.0, best_ms=20.0, p95_ms=90.0,
        cpu_ms=60.0, encode_ms=30.0, decode_ms=20.0, rtf=0.24, cpu_s=0.3, n_streams=4,
    )  # fmt: skip
    monkeypatch.setattr("streamd.cli.bench.measure", lambda config, opened: cost)
    monkeypatch.setattr("streamd.cli.bench.estimates", lambda config: [])  # it takes a minute
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["bench", "-q", "-t", "1", "-m", "tiny.en", "--step", "100"]) == 0
    out, _ = capsys.readouterr()
    if terminal:
        assert "real-time factor" in out
        assert "0.240; above 1" in out
    else:
        figures = json.loads(out)
        assert out.count("\n") == 1
        assert set(figures) == {"machine", "sizes", "stream", "gpu"}
        assert figures["stream"]["rtf"] == 0.24


DOCTOR = ("doctor", "-t", "1")


def test_the_doctor_finds_nothing_wrong_where_nothing_is(capsys):
    assert main([*DOCTOR, "--port", "0", "-m", "tiny.en"]) == 0
    out, _ = capsys.readouterr()
    assert "!!" not in out
    for said in ("tiny.en is used", "port 0", " loaded and read a clip in "):
        assert said in out


def test_the_doctors_lines_about_models_fit_a_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    findings = [*_precision(load({}, {})), *_models(load({}, {}))]
    assert [finding.state for finding in findings] == ["ok", "--"]
    assert all(len(str(finding)) <= 80 for finding in findings)


def test_the_doctors_versions_fit_a_terminal():
    (finding,) = _versions(load({}, {}))
    assert len(f"ok  versions     {finding.text}") <= 80
    (finding,) = _versions(load({"verbose": "1"}, {}))
    assert platform.release() in finding.text


def test_the_doctor_tells_what_was_chosen_but_no_password():
    (finding,) = _options(load({"bus": "nats://user:password@host", "step": "300"}, {}))
    assert finding.text == "step 300, bus nats://user:***@host"


@pytest.mark.parametrize(
    ("level", "state", "said"),
    [
        (0.1, "ok", "'Desk' is used; the loudest of 2 s is -20 dB"),
        (0.0, "!!", "gives only silence"),
    ],
)
def test_the_doctor_listens_to_the_microphone(monkeypatch, level, state, said):
    source = ArraySource([np.full(64_000, level, np.float32)])
    source.name = "Desk"
    device = Device(0, "Desk", "ALSA", channels=1, rate_hz=16_000, default=True)
    monkeypatch.setattr("streamd.cli.doctor.list_devices", lambda: [device])
    monkeypatch.setattr("streamd.daemon.build.microphone", lambda config: source)
    (finding,) = _microphone(load({}, {}))
    assert finding.state == state
    assert said in finding.text


def test_a_microphone_that_cannot_be_opened_is_no_problem(monkeypatch):
    device = Device(0, "Desk", "ALSA", channels=1, rate_hz=16_000, default=False)  # not the default
    monkeypatch.setattr("streamd.sources.microphone.list_devices", lambda: [device])
    monkeypatch.setattr("streamd.cli.doctor.list_devices", lambda: [device])
    (finding,) = _microphone(load({}, {}))
    assert (finding.state, finding.fix) == ("--", "files and clients need none")
    assert finding.text.startswith("the system has no default microphone")


def test_the_doctor_names_what_is_wrong_and_how_to_fix_it(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("STREAMD_CACHE", str(blocked))
    monkeypatch.setenv("PATH", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*DOCTOR, "-m", "base.en", "--port", str(taken.getsockname()[1])]) == 1
    rows = {line[4:16].strip(): line for line in capsys.readouterr().out.splitlines()}
    states = {name: rows[name][:2] for name in ("cache", "models", "port")}
    assert states == {"cache": "!!", "models": "!!", "port": "--"}
    assert "STREAMD_CACHE" in rows["cache"]
    assert rows["models"].endswith("base.en is not here: streamd models get base.en")
