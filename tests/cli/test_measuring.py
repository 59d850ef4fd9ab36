"""``streamd models check``, ``bench`` and ``doctor``."""

import json
import math
import shutil
import socket
from pathlib import Path

import pytest
from engine.checkpoints import checkpoint, huggingface

from streamd.cli import main
from streamd.cli.bench import bundled, report
from streamd.cli.check import judged
from streamd.cli.doctor import examine
from streamd.config import load
from streamd.engine.check import Numerics, Peak
from streamd.errors import ModelError

BUNDLED = Path(__file__).parents[2] / "models" / "tiny.en"


def test_the_check_of_the_bundled_model_tells_all_and_succeeds(capsys):
    assert main(["models", "check", "tiny.en", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    told = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(" "))
    assert told["model"].strip() == "tiny.en"
    assert "encoder 4 layers of 384" in told["dimensions"]
    assert "million" in told["parameters"]
    assert out.count("golden vectors       all 6 in the reference, 6 in float32") == 1
    assert "said: eight of spades four of clubs seven of hearts" in out
    assert "20 tokens: rtf" in out
    assert "comparing it with the reference" in err


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


def test_weights_that_have_no_golden_vectors_are_checked_without(tmp_path, capsys):
    folder = tmp_path / "other"
    shutil.copytree(BUNDLED, folder)
    weights = folder / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1  # the last bit of the last parameter
    weights.write_bytes(bytes(changed))
    assert main(["models", "check", str(folder), "-t", "1", "-q"]) == 0
    out, _ = capsys.readouterr()
    assert "golden vectors       none for these weights" in out


def test_a_model_that_hears_little_at_once_is_compared_and_plays_no_clip(tmp_path, capsys):
    folder = huggingface.write(checkpoint("tiny"), tmp_path)
    assert main(["models", "check", str(folder), "-t", "1", "-q"]) == 0
    out, _ = capsys.readouterr()
    assert "against numpy" in out
    assert out.endswith("it hears only 2560 ms at once\n")


PEAKS = [Peak("encoder.blocks.0", 100.0), Peak("decoder.blocks.0", 7e4)]


def test_an_activation_beyond_half_precision_is_warned_of():
    told = "\n".join(judged("m", Numerics(1e-6, 1e-6, 1.0), PEAKS, "float32"))
    assert told.count("! float16 holds only 65504") == 1
    assert "7e+04 in decoder.blocks.0" in told


@pytest.mark.parametrize(
    ("logits", "precision"), [(0.01, "float32"), (0.5, "int8"), (math.nan, "int8")]
)
def test_logits_far_from_the_reference_fail(logits, precision):
    with pytest.raises(ModelError, match=r"m fails its check: its logits in"):
        list(judged("m", Numerics(logits, 0.0, 1.0), PEAKS, precision))


def test_int8_may_differ_a_little():
    assert list(judged("m", Numerics(0.03, 0.02, 0.99), PEAKS, "int8"))


def test_the_bench_tells_of_steps_and_streams_and_ends_with_json():
    config = load({"model": "tiny.en", "threads": "1"}, {})
    *tables, last = report(config, clock="free", n_steps=2)
    told = json.loads(last)
    assert told["step"]["step"]["tokens"] == 20
    (row,) = told["streaming"]
    assert (row["file"], row["words"]) == ("bundled clips", 33)
    assert (row["commit_violations"], row["dropped_ms"]) == (0, 0)
    assert 0 <= row["wer"] < 1
    assert "a step of a stream" in tables[0]
    assert "commit violations" in tables[1]


def test_the_bundled_recording_has_its_clips_between_silence():
    recording = bundled()
    assert [clip.text.split()[0] for clip in recording.clips] == ["would", "eight", "one"]
    assert recording.audio_ms > recording.clips[-1].end_ms
    assert not recording.frames[: recording.clips[0].start_ms // 20].any()
    assert len(recording.words) == 33


def findings(**given: str):
    config = load({"model": "tiny.en", "port": "0", "source": "false", "threads": "1"} | given, {})
    return {finding.name: finding for finding in examine(config)}


def test_the_doctor_finds_nothing_wrong_where_nothing_is():
    found = findings()
    assert {name for name, finding in found.items() if finding.state == "!!"} == set()
    assert "tiny.en is used" in found["models"].told
    assert "port 0" in found["options"].told
    assert "logits" in found["engine"].told


def test_the_doctor_names_what_is_wrong_and_its_cure(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("STREAMD_CACHE", str(blocked))
    monkeypatch.setenv("PATH", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = findings(model="base.en", port=str(taken.getsockname()[1]))
    states = {name: finding.state for name, finding in found.items()}
    assert (states["cache"], states["models"]) == ("!!", "!!")
    assert (states["port"], states["ffmpeg"]) == ("--", "--")
    assert "STREAMD_CACHE" in found["cache"].cure
    assert found["models"].cure == "streamd models get base.en"
    assert str(found["ffmpeg"]).startswith("--  ffmpeg")


def test_the_doctor_s_exit_code_is_1_if_something_is_wrong(capsys):
    usual = ["doctor", "--no-source", "--port", "0", "-t", "1"]
    assert main([*usual, "-m", "tiny.en"]) == 0
    assert main([*usual, "-m", "nowhere"]) == 1
    out, _ = capsys.readouterr()
    assert "!!  models       nowhere is not here" in out
