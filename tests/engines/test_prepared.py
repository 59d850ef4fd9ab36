"""A model is prepared once; what is not whole, not ours or not of this model is made again."""

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from streamd.engines import prepared
from streamd.engines.onnx import FILES, files
from streamd.engines.prepared import open_engine
from streamd.errors import EngineError, ModelError
from streamd.models.model import Model
from streamd.models.silence import Extent, kept_positions
from streamd.models.store import load_model, opened_model
from streamd.system.disk import cache_folder, prune, put_file, put_folder
from streamd.whisper.engine import Reuse
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.support import huggingface_folder
from tests.support.checkpoints import checkpoint
from tests.support.decoders import run_pass


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A model that is quickly prepared."""
    return huggingface_folder.write(checkpoint("few"), tmp_path_factory.mktemp("small"))


@pytest.fixture
def loads(monkeypatch):
    """The models whose own files were read."""
    names = []

    def told(name):
        names.append(name)
        return load_model(name)

    def told_opened(name):
        names.append(name)
        return opened_model(name)

    monkeypatch.setattr(prepared, "load_model", told)
    monkeypatch.setattr(prepared, "opened_model", told_opened)
    return names


@pytest.fixture
def copy(small, tmp_path):
    """A model's folder, to be changed."""
    return Path(shutil.copytree(small, tmp_path / "model"))


def how(name, precision="float32") -> str:
    return open_engine(str(name), threads=1, precision=precision).how


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "prepared").iterdir())


def logits(opened, *before) -> np.ndarray:
    mel = log_mel(load.samples("lamp", 192), 80)[:, :200]
    known = Reuse(before[0].encode(mel, audio_ctx=100), 20) if before else None
    decoder = opened.decoder(opened.encode(mel, known, audio_ctx=100), 4)
    order = np.arange(4)
    return run_pass(decoder, order, order, order, np.tri(4, dtype=np.bool_), order)[0]


def projected(engine) -> np.ndarray:
    """Keys of what another encoder has computed."""
    encoded = np.random.default_rng(0).standard_normal((24, engine.dims.n_audio_state))
    n_silence = len(kept_positions(engine.dims.n_audio_ctx))
    features = engine.project(encoded.astype(np.float16), Extent(24, n_silence))
    return features.views["cross_key_0"]


@pytest.mark.parametrize(
    ("name", "precision"), [("small", "float32"), ("small", "int8"), ("tiny.en", "int8")]
)
def test_prepared_is_the_same_model(folder, loads, small, name, precision):
    name = str(small) if name == "small" else name
    assert prepared.prepared_silence(name) is None
    first = open_engine(name, threads=1, precision=precision)
    second = open_engine(name, threads=1, precision=precision)
    assert (first.how, second.how, loads) == ("prepared now", "prepared", [name])
    model = load_model(name)
    for opened in (first, second):
        for field in fields(Model):
            if field.name not in ("weights", "silence"):  # compared below
                assert getattr(opened.model, field.name) == getattr(model, field.name), field.name
    fresh = prepared.open_in_memory(model, threads=1, precision=precision).engine
    for opened in (first, second):
        if model.silence is None:
            assert opened.model.silence is prepared.prepared_silence(name) is None
        else:
            for found in (opened.model.silence, prepared.prepared_silence(name)):
                np.testing.assert_array_equal(found.states, model.silence.states)
        np.testing.assert_array_equal(logits(opened.engine), logits(fresh))
        np.testing.assert_array_equal(projected(opened.engine), projected(fresh))


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_urgent_engine_computes_the_same_and_goes_on_with_what_the_other_has(folder, precision):
    opened = open_engine("tiny.en", threads=1, precision=precision, urgent_threads=2)
    engine, urgent = opened.engine, opened.engine.urgent
    np.testing.assert_array_equal(logits(urgent), logits(engine))
    np.testing.assert_array_equal(logits(urgent, engine), logits(engine, urgent))


def test_there_is_no_urgent_engine_without_more_threads_or_a_prepared_model(folder, small):
    assert open_engine(str(small), threads=2, urgent_threads=2).engine.urgent is None
    folder.chmod(0o777)  # others may write to it
    opened = open_engine(str(small), threads=1, urgent_threads=2)
    assert (opened.how, opened.engine.urgent) == ("not prepared", None)


def test_for_recordings_only_what_is_used_is_opened(folder, monkeypatch):
    """Each session that is open has all weights of its network in memory."""
    given = {"threads": 1, "precision": "int8", "urgent_threads": 2, "recordings": True}
    open_engine("tiny.en", **given)  # prepares it
    opened, open_session = [], files.open_session
    monkeypatch.setattr(
        files,
        "open_session",
        lambda file, threads, **more: (
            opened.append((file.name, threads)) or open_session(file, threads, **more)
        ),
    )
    engine = open_engine("tiny.en", **given).engine
    assert opened == []
    engine.together(lambda: True)
    assert opened == [("encoder.onnx", 1), ("decoder_many.onnx", 1)]
    del opened[:]
    logits(engine.urgent)
    assert opened == [("encoder.onnx", 2), ("decoder.onnx", 2)]
    damaged = entries(folder)[0] / "decoder.onnx"
    damaged.write_bytes(bytes(damaged.stat().st_size))  # which only the use can tell
    with pytest.raises(EngineError, match=r"damaged and is removed .*: start again"):
        logits(engine)
    again = open_engine("tiny.en", **given)
    assert again.how == "prepared now"
    logits(again.engine)


def test_another_name_is_another_model(folder, copy, tmp_path):
    """Whose alignment heads may follow from it."""
    how(copy)
    assert how(shutil.copytree(copy, tmp_path / "other")) == "prepared now"
    assert open_engine(str(tmp_path / "other"), threads=1).model.name == "other"


def change(folder: Path) -> None:
    """Change a token that may not come first, and nothing of the file's size."""
    path = folder / "generation_config.json"
    content = path.read_text()
    assert content.count(" 220,") == 1
    path.write_text(content.replace(" 220,", " 221,"))


def test_changed_content_is_seen(folder, copy):
    how(copy)
    change(copy)
    assert how(copy) == "prepared now"
    assert open_engine(str(copy), threads=1).model.begin_suppress_tokens == (221, 300)


def test_a_change_that_hides_behind_size_and_time_is_seen(folder, copy):
    path = copy / "generation_config.json"
    how(copy)
    before = path.stat()
    change(copy)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert how(copy) == "prepared now"


def test_files_that_change_while_they_are_loaded_are_not_kept(folder, copy, monkeypatch):
    @contextmanager
    def changed_after(name):
        with opened_model(name) as model:
            yield model
            (copy / "config.json").write_text((copy / "config.json").read_text() + " ")

    monkeypatch.setattr(prepared, "opened_model", changed_after)
    assert how(copy) == "not prepared"
    assert entries(folder) == []


def test_weights_are_read_when_they_are_asked_for(small):
    with opened_model(str(small)) as model:
        name = "decoder.ln.bias"
        assert name in model.weights
        first, second = model.weights[name], model.weights[name]
    assert not np.shares_memory(first, second)  # nothing keeps them
    np.testing.assert_array_equal(first, load_model(str(small)).weights[name])


def test_where_nothing_can_be_written_a_model_is_loaded_once(folder, loads, small):
    folder.mkdir(mode=0o700)
    (folder / "prepared").write_text("not a folder")
    assert how(small) == "not prepared"
    assert len(loads) == 1


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES = [
    cut,
    lambda path: path.write_bytes(b""),
    Path.unlink,
    lambda path: path.write_bytes(path.read_bytes() + b"x"),
]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((file, cut) for file in FILES[1:]),
        *((file, each) for file in (FILES[0], "model.msgpack", "sizes.json") for each in DAMAGES),
    ],
)
def test_damage_is_made_good(folder, small, file, damage):
    how(small)
    (entry,) = entries(folder)
    damage(entry / file)
    assert how(small) == "prepared now"
    assert how(small) == "prepared"
    assert entries(folder) == [entry]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_an_output_layer_of_its_own_is_made_good(folder, copy, damage):
    weights = load_file(copy / "model.safetensors")
    output = -weights["model.decoder.embed_tokens.weight"]
    save_file(weights | {"proj_out.weight": output}, copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    test_damage_is_made_good(folder, copy, "output.npy", damage)


def test_a_runtime_that_refuses_what_was_prepared_gets_it_anew(folder, small, monkeypatch):
    how(small)
    refusals = [EngineError("no")]
    open_folder = prepared.open_folder

    def refuse_once(place, dims, **threads):
        if refusals:
            raise refusals.pop()
        return open_folder(place, dims, **threads)

    monkeypatch.setattr(prepared, "open_folder", refuse_once)
    assert how(small) == "prepared now"


def test_what_others_may_change_is_not_believed(folder, small):
    how(small)
    (entry,) = entries(folder)
    entry.chmod(0o777)
    assert how(small) == "prepared now"
    assert entries(folder)[0].stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert cache_folder() is None
    assert how(small) == "not prepared"


def test_a_link_is_not_believed(folder, small, tmp_path):
    how(small)
    (entry,) = entries(folder)
    entry.rename(tmp_path / "theirs")
    entry.symlink_to(tmp_path / "theirs")
    assert how(small) == "prepared now"
    assert not entry.is_symlink()


def test_without_a_cache_it_works_too(small, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("STREAMD_CACHE", str(file / "cache"))
    assert how(small) == "not prepared"


def test_a_full_disk_costs_only_time(folder, small, monkeypatch, caplog):
    def full(place, *_):
        (place / "tensors").write_bytes(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared, "_write", full)
    assert how(small) == "not prepared"
    assert "No space left on device" in caplog.text
    assert entries(folder) == [], "nothing half-written"


def test_several_starts_at_once(folder, small):
    barrier = threading.Barrier(4)

    def start():
        barrier.wait(30)
        return logits(open_engine(str(small), threads=1, precision="float32").engine)

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(start) for _ in range(4)]]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert len(entries(folder)) == 1
    assert how(small) == "prepared"


@pytest.mark.parametrize(("free", "limit"), [(0, 8 << 30), (100 << 30, 25 << 30)])
def test_the_limit_follows_the_free_disk(free, limit, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    kept = []
    monkeypatch.setattr(prepared, "prune", lambda *_, max_bytes, **kw: kept.append(max_bytes))
    place = tmp_path / "prepared" / "model"
    monkeypatch.setattr(prepared, "put_folder", lambda place, fill: place.mkdir(parents=True))
    assert prepared._prepare("tiny.en", None, place, "int8", 1)
    assert kept == [limit]


def test_what_somebody_may_be_reading_is_not_replaced(tmp_path):
    for content in ("first", "second"):
        put_folder(tmp_path / "a", lambda place, text=content: (place / "file").write_text(text))
    assert (tmp_path / "a" / "file").read_text() == "first"
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_the_longest_unused_go_first(tmp_path):
    def fill(place: Path) -> None:
        (place / "folder").mkdir()
        (place / "folder" / "file").write_bytes(bytes(100))

    now = 1_000_000_000
    for age, name in enumerate(("newest", "middle", "oldest", "kept")):
        put_folder(tmp_path / name, fill)
        os.utime(tmp_path / name, (now - age, now - age))
    (tmp_path / ".new-crashed").mkdir()
    os.utime(tmp_path / ".new-crashed", (now, now))
    (tmp_path / ".new-busy").mkdir()
    prune(tmp_path, keep=tmp_path / "kept", max_bytes=250)
    assert {path.name for path in tmp_path.iterdir()} == {".new-busy", "kept", "newest"}


def test_a_file_appears_whole_or_not(tmp_path):
    put_file(tmp_path / "a" / "file", b"one")
    put_file(tmp_path / "a" / "file", b"two")
    assert (tmp_path / "a" / "file").read_bytes() == b"two"
    (tmp_path / "a" / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        put_file(tmp_path / "a" / "taken", b"one")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"file", "taken"}


@pytest.mark.parametrize("name", ["nowhere", ""])
def test_no_model_is_no_model(folder, name):
    with pytest.raises(ModelError):
        open_engine(name, threads=1)


@pytest.mark.parametrize("first", ["streamd.engines.prepared", "streamd.engines.onnx"])
def test_the_runtime_reports_to_nobody(tmp_path, small, first):
    """ONNX Runtime 1.32 puts an identifier into this folder as soon as it is imported."""
    environ = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    environ |= {"STREAMD_CACHE": str(tmp_path / "streamd")}
    del environ["ORT_DISABLE_TELEMETRY"]  # what this process has set for itself
    code = (
        f"import {first}; from streamd.engines.prepared import open_engine; import numpy as np;"
        f"engine = open_engine({str(small)!r}, threads=1, precision='int8').engine;"
        "engine.encode(np.zeros((80, 100), np.float32))"
    )
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    assert (tmp_path / "streamd").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["streamd"]


PREPARES = """
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from streamd.engines.onnx import save
from streamd.models import ModelDimensions
from streamd.models.model import parameter_shapes
from tests.daemon.test_memory import most_resident
from tests.support.checkpoints import network

dims = ModelDimensions(80, 64, 512, 8, int(sys.argv[2]), 300, 64, 512, 8, 1)
shapes = parameter_shapes(dims)


class Zeros(Mapping):
    def __getitem__(self, name):
        return np.zeros(shapes[name], np.float32)

    def __iter__(self):
        return iter(shapes)

    def __len__(self):
        return len(shapes)


save(Path(sys.argv[1]), network(dims, Zeros(), alignment_heads=[(0, 0)]), "int8")
print(most_resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory")
def test_what_is_prepared_is_in_memory_once(tmp_path):
    """ONNX Runtime copies each matrix that it gets in memory, and packs it: three times in all."""

    def most(n_layers: int) -> int:
        command = [sys.executable, "-c", PREPARES, str(tmp_path), str(n_layers)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    more_layers, layer_bytes = 24, 12 * 512 * 512
    assert most(2 + more_layers) - most(2) < 1.6 * more_layers * layer_bytes
