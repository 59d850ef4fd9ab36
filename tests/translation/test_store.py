import gzip
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from streamd.cli import main
from streamd.errors import ModelError
from streamd.models.store.cache import StorePaths
from streamd.translation import store

FILES = {
    "model": ("model.enpt.intgemm.alphas.bin", b"weights" * 1000),
    "lexicalShortlist": ("lex.50.50.enpt.s2t.bin", b"words" * 500),
    "vocab": ("vocab.enpt.spm", b"vocabulary" * 100),
}


def here(tmp_path, *, offline: bool = False) -> StorePaths:
    return StorePaths(tmp_path / "models", tmp_path / "hub", "http://hub.invalid", offline)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, paths: dict[str, bytes], seen: list[str], *args: object) -> None:
        self.paths, self.seen = paths, seen
        super().__init__(*args)

    def do_GET(self):
        self.seen.append(self.path)
        content = self.paths.get(self.path)
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *args):
        pass


@contextmanager
def mozilla(monkeypatch, change=lambda registry, paths: None) -> Iterator[list[str]]:
    """A stand-in for Mozilla's registry; `change` may damage it. Yields the paths asked for."""
    paths, seen, listed = {}, [], {}
    for kind, (name, content) in FILES.items():
        path = f"models/en-pt/tiny_abc/exported/{name}.gz"
        paths[f"/{path}"] = gzip.compress(content)
        listed[kind] = {
            "path": path,
            "uncompressedSize": len(content),
            "uncompressedHash": hashlib.sha256(content).hexdigest(),
        }
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, paths, seen))
    base = f"http://127.0.0.1:{server.server_port}"
    entry = {"architecture": "tiny", "releaseStatus": "Release", "files": listed}
    old = {"architecture": "tiny", "releaseStatus": "Nightly", "files": {}}
    registry = {"baseUrl": base, "models": {"en-pt": [old, entry], "en-xx": [old]}}
    change(registry, paths)
    paths["/db/models.json"] = json.dumps(registry).encode()
    monkeypatch.setattr(store, "REGISTRY", f"{base}/db/models.json")
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def listed(registry: dict) -> dict:
    return registry["models"]["en-pt"][1]["files"]


def test_a_model_is_downloaded_and_unpacked(monkeypatch, tmp_path):
    paths, reached = here(tmp_path), []
    with mozilla(monkeypatch) as seen:
        found = store.look_up(paths, "en", "pt")
        assert (found.architecture, found.n_bytes) == ("tiny", 10_500)
        assert seen == ["/db/models.json"]
        folder = store.fetch(paths, found, on_progress=lambda *n: reached.append(n))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict(FILES.values())
    assert reached[-1] == (10_500, 10_500)
    assert store.directions(paths) == [("en", "pt")]
    assert store.remove(paths, "en", "pt")
    assert store.directions(paths) == []


def test_what_was_unpacked_on_its_way_is_taken_as_it_is(monkeypatch, tmp_path):
    def unpack(registry, paths):
        for path in paths:
            paths[path] = gzip.decompress(paths[path])

    with mozilla(monkeypatch, unpack):
        folder = store.fetch(here(tmp_path), store.look_up(here(tmp_path), "en", "pt"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict(FILES.values())


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"evil" * 1000), b"\x1f\x8b garbage", b""],
    ids=["another", "damaged", "empty"],
)
def test_nothing_is_kept_of_a_model_with_a_wrong_file(monkeypatch, tmp_path, content):
    def damage(registry, paths):
        paths["/" + listed(registry)["vocab"]["path"]] = content

    with mozilla(monkeypatch, damage):
        found = store.look_up(here(tmp_path), "en", "pt")
        with pytest.raises(ModelError, match="corrupt"):
            store.fetch(here(tmp_path), found)
    assert store.directions(here(tmp_path)) == []
    assert not list((tmp_path / "models").rglob("*.bin"))


def test_a_file_that_is_not_there_is_named(monkeypatch, tmp_path):
    def lose(registry, paths):
        del paths["/" + listed(registry)["model"]["path"]]

    with mozilla(monkeypatch, lose):
        found = store.look_up(here(tmp_path), "en", "pt")
        with pytest.raises(ModelError, match=r"alphas\.bin\.gz: error 404; try again later"):
            store.fetch(here(tmp_path), found)
    assert store.directions(here(tmp_path)) == []


def test_a_small_file_does_not_become_a_large_one(monkeypatch, tmp_path):
    def swell(registry, paths):
        paths["/" + listed(registry)["model"]["path"]] = gzip.compress(bytes(50_000_000))

    written = []
    unpacked = store._unpacked
    monkeypatch.setattr(
        store, "_unpacked", lambda *args: (written.append(len(p)) or p for p in unpacked(*args))
    )
    with mozilla(monkeypatch, swell):
        found = store.look_up(here(tmp_path), "en", "pt")
        with pytest.raises(ModelError, match="checksum"):
            store.fetch(here(tmp_path), found)
    assert sum(written) <= 7_001


HOSTILE = {
    "no hash": lambda files: files["model"].pop("uncompressedHash"),
    "a path outside": lambda files: files["model"].update(path="http://evil/ x"),
    "no number": lambda files: files["model"].update(uncompressedSize="many"),
    "too large": lambda files: files["model"].update(uncompressedSize=2**40),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_registry_is_refused(monkeypatch, tmp_path, change):
    with (
        mozilla(monkeypatch, lambda registry, paths: change(listed(registry))),
        pytest.raises(ModelError, match="registry is damaged"),
    ):
        store.look_up(here(tmp_path), "en", "pt")


def test_names_of_files_are_no_paths(monkeypatch, tmp_path):
    def climb(registry, paths):
        old = listed(registry)["model"]["path"]
        new = "models/../../../model.enpt.bin.gz"
        listed(registry)["model"]["path"] = new
        paths["/model.enpt.bin.gz"] = paths[f"/{old}"]

    with mozilla(monkeypatch, climb):
        found = store.look_up(here(tmp_path), "en", "pt")
    assert [each.name for each in found.files if each.name.startswith("model")] == [
        "model.enpt.bin"
    ]


@pytest.mark.parametrize("pair", [("en", "xx"), ("pt", "de")])
def test_what_mozilla_has_not_released_is_named(monkeypatch, tmp_path, pair):
    with mozilla(monkeypatch), pytest.raises(ModelError, match="Mozilla has no such model"):
        store.look_up(here(tmp_path), *pair)


def test_offline_nothing_is_asked(monkeypatch, tmp_path):
    with mozilla(monkeypatch) as seen, pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        store.look_up(here(tmp_path, offline=True), "en", "pt")
    assert seen == []


def test_get_says_the_licence_and_whom_it_asks(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("STREAMD_STORE", str(tmp_path / "models"))
    with mozilla(monkeypatch):
        assert main(["models", "get", "translate:en-pt"]) == 0
        address = store.REGISTRY
    said = capfd.readouterr().err
    assert f"asking {address}" in said
    assert "MPL-2.0" in said
    assert store.directions(here(tmp_path)) == [("en", "pt")]
    assert main(["models", "list"]) == 0
    assert "translate:en-pt" in capfd.readouterr().out
    assert main(["models", "remove", "translate:en-pt"]) == 0
    assert main(["models", "remove", "translate:en-pt"]) == 4


def test_a_folder_without_the_files_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.enpt.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"expected one shortlist \(lex\.\*\.bin\)|vocabulary"):
        store.add(here(tmp_path), tmp_path / "model", "en", "pt")


def test_a_damaged_model_is_not_imported(tmp_path):
    pytest.importorskip("fxtranslate")
    source = tmp_path / "model"
    source.mkdir()
    for name, content in FILES.values():
        (source / name).write_bytes(content)
    with pytest.raises(ModelError, match="damaged"):
        store.add(here(tmp_path), source, "en", "pt")
    assert store.directions(here(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("translate:en-pt", ("en", "pt")),
        ("translate:en", None),
        ("translate:../x-pt", None),
        ("tiny.en", None),
    ],
)
def test_names(name, direction):
    assert store.direction_of(name) == direction
