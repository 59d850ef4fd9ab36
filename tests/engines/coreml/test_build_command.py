"""``streamd models build``: a built model is there whole or not at all, and is found again."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.cli import main
from streamd.engines.coreml.package_builder import build_model, built_model
from streamd.errors import ModelError
from tests.support.checkpoints import checkpoint, huggingface


@pytest.fixture
def small(tmp_path) -> str:
    """A tiny model's folder."""
    return str(huggingface.write(checkpoint("few"), tmp_path))


def in_cache(folder: Path) -> list[Path]:
    """Everything that looks like a built model."""
    return list((folder / "coreml").rglob("meta.json"))


def test_what_was_built_is_found_until_the_model_changes(folder, small, capsys):
    assert built_model(small) is None
    assert main(["models", "build", small]) == 0
    *steps, last = capsys.readouterr().err.splitlines()
    assert steps == [
        f"streamd: {small}: states of silence and golden vectors, 1 of 2",
        f"streamd: {small}: encoder.mlpackage, 2 of 2",
    ]
    built = built_model(small)
    assert last.startswith(f"streamd: {small}: built in ")
    assert last.endswith(str(built.folder))
    assert (built.meta.contexts, built.meta.bits) == ((128,), 16)
    config = Path(small) / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps(told | {"alignment_heads": [[0, 0]]}))
    assert built_model(small) is None


@pytest.mark.coreml
def test_building_again_replaces_what_was_built(folder, small):
    for _ in range(2):
        build_model(small, lambda done, n, what: None)
    built = built_model(small)
    assert len(in_cache(folder)) == 1
    other = built.folder.with_name("built-by-other-code")
    shutil.copytree(built.folder, other)
    assert main(["models", "build", small, "-q"]) == 0
    assert in_cache(folder) == [built.folder / "meta.json"]


@pytest.mark.coreml
@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGKILL, -9), (signal.SIGINT, 130)],
)
def test_a_build_that_is_killed_leaves_nothing_that_looks_finished(sent, code, folder, small):
    command = [Path(sys.executable).with_name("streamd"), "models", "build", small]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "encoder.mlpackage" in line:
                process.send_signal(sent)
                break
        process.stderr.read()
    assert process.returncode == code
    assert built_model(small) is None
    assert in_cache(folder) == []
    if sent == signal.SIGINT:
        assert list((folder / "coreml").rglob("*.mlpackage")) == []


@pytest.mark.coreml
def test_damage_is_reported(folder, small):
    assert main(["models", "build", small, "-q"]) == 0
    built = built_model(small)
    weights = next(built.folder.rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        ModelError, match="missing or damaged; build it again: streamd models build"
    ):
        built_model(small)
    (built.folder / "meta.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        built_model(small)


def test_without_coremltools_the_error_names_the_fix(folder, small, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "coremltools", None)
    assert main(["models", "build", small, "-q"]) == 4
    assert "pip install coremltools" in capsys.readouterr().err
    assert in_cache(folder) == []


def test_what_cannot_be_built(folder, small, tmp_path, monkeypatch, capsys):
    def complaint(*command: str) -> str:
        assert main(["models", "build", *command, "-q"]) in (2, 4)
        return capsys.readouterr().err

    assert "not found" in complaint("nothere")
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "file"))
    assert "there is no cache folder" in complaint(small)
