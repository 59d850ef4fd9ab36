"""What is imported in another form becomes a folder in the one that streamd reads, once."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from streamd.cli import main
from streamd.engines.onnx.builder import quantised
from streamd.engines.prepared import open_engine
from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.catalog import usual_heads
from streamd.models.formats import own_form
from streamd.models.model import OUTPUT, Heads
from streamd.models.store import find, imports, in_one_form, load_model
from streamd.models.store.cache import places
from tests.models.test_formats import FOREIGN
from tests.support import folders
from tests.support.checkpoints import (
    assert_same,
    checkpoint,
    ggml,
    little_memory,
    read_model,
)


@pytest.fixture
def store(monkeypatch, tmp_path) -> Path:
    """An empty store."""
    monkeypatch.setenv("STREAMD_STORE", str(tmp_path / "imported"))
    return tmp_path / "imported"


@pytest.fixture
def file(tmp_path) -> Path:
    """A file of whisper.cpp's."""
    return ggml.write(checkpoint("few"), tmp_path)


@pytest.mark.parametrize("kind", FOREIGN)
def test_the_import_is_the_same_model(kind, store, tmp_path):
    path = FOREIGN[kind](checkpoint("large-v3"), tmp_path)
    expected = read_model(str(path))
    folder = imports.add(store, path, "mine")
    assert find("mine", places()) == folder
    found = load_model("mine")
    assert_same(found, expected)
    assert found.alignment_heads == expected.alignment_heads
    assert found.suppress_tokens == expected.suppress_tokens
    assert found.begin_suppress_tokens == expected.begin_suppress_tokens


def test_the_engine_gets_the_integers_of_int8_rows(store, tmp_path):
    model = checkpoint("few")
    path = folders.ct2(tmp_path / "x", model.dims, model.weights, list(model.vocabulary), "int8")
    expected = read_model(str(path)).weights
    found = load_model(in_one_form(str(path), places())).weights
    for name, values in expected.items():
        if values.ndim == 2 and "positional" not in name:
            for ours, theirs in zip(quantised(found[name]), quantised(values), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=name)
    stored = (store / "x" / "model.safetensors").stat().st_size
    assert stored < 1.2 * (path / "model.bin").stat().st_size


def test_an_output_layer_of_its_own_is_kept(store, tmp_path):
    model = checkpoint("few")
    path = folders.ct2(tmp_path / "x", model.dims, model.weights, list(model.vocabulary))
    variables = folders.ct2_variables(model.dims, model.weights, "float16")
    own = 2 * model.weights["decoder.token_embedding.weight"].astype("f2")
    untied = variables | {"decoder/projection/weight": own}
    (path / "model.bin").write_bytes(folders.ct2_file(untied))
    imports.add(store, path, "mine")
    np.testing.assert_array_equal(load_model("mine").weights[OUTPUT], own)


def test_parameters_are_written_one_at_a_time(store, tmp_path):
    path = ggml.write(checkpoint("tiny"), tmp_path)  # its embedding has 6.6 MB
    with little_memory():
        imports.add(store, path, "mine")


def test_a_file_that_is_named_is_read_once_and_the_log_says_so(store, file, monkeypatch, caplog):
    caplog.set_level("INFO")
    name = in_one_form(str(file), places())
    assert name == file.stem
    assert f"{file}: reading it once; it is kept as {name} in {store}" in caplog.text
    monkeypatch.setattr(own_form, "write", None)  # it is not called again
    assert in_one_form(str(file), places()) == name
    assert in_one_form(str(file.parent / ".." / file.parent.name / file.name), places()) == name
    assert in_one_form(name, places()) == name
    assert [each for each, _ in imports.every(store)] == [name]


def test_what_was_imported_by_hand_is_not_read_again(store, file, monkeypatch):
    assert main(["models", "import", str(file), "mine", "-q"]) == 0
    monkeypatch.setattr(own_form, "write", None)
    assert in_one_form(str(file), places()) == "mine"


def test_a_file_that_changed_is_read_again_beside_the_old_one(store, file):
    first = in_one_form(str(file), places())
    os.utime(file, ns=(0, 0))
    second = in_one_form(str(file), places())
    assert second.startswith(f"{first}-")
    assert [each for each, _ in imports.every(store)] == [first, second]


def test_a_file_that_changes_while_it_is_read_is_not_kept(store, file, monkeypatch):
    write = own_form.write

    def meanwhile(*args: object) -> None:
        write(*args)
        os.utime(file, ns=(0, 0))

    monkeypatch.setattr(own_form, "write", meanwhile)
    with pytest.raises(ModelError, match=f"{file} changed while it was read"):
        in_one_form(str(file), places())
    assert [each.name for each in store.iterdir()] == [".lock"]


def test_a_file_does_not_take_the_name_of_another_model(store, file):
    path = file.rename(file.with_name("base.en.bin"))
    assert in_one_form(str(path), places()).startswith("base.en-")
    odd = file.with_name("(größe) .bin")
    path.rename(odd)
    assert in_one_form(str(odd), places()).startswith("gr--e")


def test_what_lies_in_a_hubs_cache_keeps_its_name_which_tells_its_heads(
    store, file, tmp_path, monkeypatch
):
    model, named = checkpoint("few"), []

    def heads(listed: object, path: Path, dims: ModelDimensions) -> Heads:
        named.append(path.name)
        return usual_heads(path, dims)

    monkeypatch.setattr("streamd.models.store.layouts.heads", heads)
    snapshots = tmp_path / "models--some--large-v2" / "snapshots"
    snapshots.mkdir(parents=True)
    folder = snapshots / ("a" * 40)
    folders.ct2(folder, model.dims, model.weights, list(model.vocabulary))
    link = folder / "ggml-large-v1.bin"
    link.symlink_to(file.rename(snapshots / "0123456789abcdef"))
    assert in_one_form(str(link), places()) == "ggml-large-v1"
    assert in_one_form(str(folder), places()) == "some-large-v2"
    assert named == ["ggml-large-v1.bin", "large-v2"]
    assert main(["models", "import", str(link), "-q"]) == 4
    assert in_one_form(str(link.resolve()), places()) == "ggml-large-v1", "it is the same file"


def test_a_file_can_be_checked_and_built_at_once(store, tmp_path, capsys, monkeypatch):
    path = ggml.write(checkpoint("tiny"), tmp_path)
    assert main(["models", "check", str(path), "-t", "1", "-q"]) == 0
    assert f"model                {path.stem}\n" in capsys.readouterr().out
    asked: list[str] = []

    def build(name: str, *_: object) -> None:
        asked.append(name)
        raise ModelError("enough")

    monkeypatch.setattr("streamd.cli.packages.build_model", build)
    assert main(["models", "build", str(path), "-q"]) == 4
    assert asked == [path.stem]


def test_behind_the_store_nobody_knows_other_forms(store, file):
    with pytest.raises(
        ModelError, match=rf"{file} must be read once: streamd models import {file}"
    ):
        load_model(str(file))


def test_what_cannot_be_kept_is_one_line(file, monkeypatch, tmp_path):
    (tmp_path / "blocked").touch()
    monkeypatch.setenv("STREAMD_STORE", str(tmp_path / "blocked"))
    with pytest.raises(ModelError, match=r"cannot be copied to .*blocked"):
        in_one_form(str(file), places())


@pytest.mark.parametrize("kind", ["openai", "torch"])
def test_a_full_disk_is_no_damage_of_the_file(kind, store, tmp_path):
    path = FOREIGN[kind](checkpoint("tiny.en"), tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises(ModelError, match=r"\.half-done cannot be written: File too large"):
            in_one_form(str(path), places())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in store.iterdir()] == [".lock"]


def test_a_file_and_its_name_are_prepared_once(store, file, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "cache"))
    sound = str(Path(__file__).parents[1] / "golden" / "lamp.flac")
    for model in (str(file), file.stem):
        assert main(["transcribe", sound, "-m", model, "-q", "--precision", "float32"]) == 0
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 1
    assert open_engine(file.stem, threads=1, precision="float32").how == "prepared"


def test_damage_in_the_file_leaves_nothing(store, file):
    content = bytearray(file.read_bytes())
    content[-4:] = np.float32(np.nan).tobytes()
    file.write_bytes(content)
    with pytest.raises(ModelError, match="NaN or infinity"):
        in_one_form(str(file), places())
    assert [path.name for path in store.iterdir()] == [".lock"]
