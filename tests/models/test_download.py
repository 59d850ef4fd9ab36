"""Downloads from a stand-in for the hub: whole and proved, or refused in one line."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from streamd.errors import ModelError
from streamd.models.store import cache, in_one_form, load_model
from streamd.models.store.cache import Repository, access_token, places, repository_of
from streamd.models.store.download import fetch, look_up, read_listing
from tests.support import folders
from tests.support.checkpoints import assert_same, checkpoint, ggml, huggingface
from tests.support.hub import COMMIT, Hub, Repo, hub, repo_of, sibling

TINY = Repository("some/tiny")
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
NEEDED = ["config.json", "generation_config.json", MODEL, "tokenizer.json"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A small model, as people put it on the hub."""
    return huggingface.write(checkpoint("few"), tmp_path_factory.mktemp("hub"))


@pytest.fixture
def serving(folder, monkeypatch, tmp_path):
    """A hub with the repository some/tiny, and a cache of our own."""
    with hub({"some/tiny": repo_of(folder)}) as serving:
        monkeypatch.setenv("HF_ENDPOINT", serving.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("STREAMD_STORE", str(tmp_path / "imported"))
        yield serving


@pytest.fixture
def tiny(serving) -> Repo:
    return serving.repos["some/tiny"]


def get(name: str = "some/tiny", **kwargs) -> Path:
    here = places()
    repository = repository_of(name)
    assert repository
    pause = kwargs.setdefault("pause", lambda seconds: None)
    return fetch(look_up(repository, here, pause=pause), here, **kwargs)


def refusal(name: str = "some/tiny", **kwargs) -> str:
    """The one line with which the download is refused; nothing is there to be loaded then."""
    with pytest.raises(ModelError) as caught:
        get(name, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert name.partition("@")[0] in message
    with pytest.raises(ModelError, match="is not downloaded"):
        load_model(name)
    return message


def fetched(serving: Hub, name: str = MODEL) -> list[str]:
    """The ranges in which a large file's content was asked for."""
    asked = (seen for seen in serving.seen if seen.path == f"/cdn/some/tiny/{name}")
    return [seen.headers.get("Range", "") for seen in asked]


def partial() -> Path:
    (path,) = (places().cache / "models--some--tiny" / "blobs").glob("*.incomplete")
    return path


# -- what comes ------------------------------------------------------------------------------


def test_a_downloaded_model_is_the_one_that_was_put_there(serving, folder):
    found = get()
    assert sorted(path.name for path in found.iterdir()) == NEEDED, "and nothing else is fetched"
    model = load_model("some/tiny")
    assert_same(model, load_model(str(folder)))
    assert model.name == "some/tiny"
    assert load_model(str(found)).name == "some/tiny", "not the number of a commit"


def test_a_second_download_fetches_nothing(serving):
    get()
    before = len(serving.seen)
    get()
    assert serving.paths()[before:] == ["/api/models/some/tiny/revision/main"]


def test_a_new_commit_takes_the_place_of_the_old_one(serving, tiny):
    old = get()
    tiny.commit = "f" * 40
    tiny.files["generation_config.json"] = b"{}"
    new = get()
    assert cache.find(places().cache, TINY) == new != old
    assert fetched(serving) == [""], "what did not change is not fetched again"


def test_a_short_name_is_a_repository_of_the_catalog(serving, tiny):
    serving.repos["openai/whisper-base.en"] = tiny
    get("base.en")
    assert load_model("base.en").name == "base.en"
    assert load_model("openai/whisper-base.en").name == "openai/whisper-base.en"


@pytest.mark.parametrize("revision", ["v1", "refs/pr/7", COMMIT])
def test_a_revision(serving, tiny, revision):
    tiny.revisions = ("v1", "refs/pr/7")
    get(f"some/tiny@{revision}")
    assert load_model(f"some/tiny@{revision}").name == f"some/tiny@{revision}"
    with pytest.raises(ModelError, match="not downloaded"):
        load_model("some/tiny")


def test_shards(serving, tiny, folder):
    weights = load_file(folder / MODEL)
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    place = {name: shards[i % 2] for i, name in enumerate(sorted(weights))}
    for shard in shards:
        save_file({n: weights[n] for n in place if place[n] == shard}, folder.parent / shard)
        tiny.files[shard] = (folder.parent / shard).read_bytes()
    tiny.files[INDEX] = json.dumps({"weight_map": place}).encode()
    del tiny.files[MODEL]
    found = get()
    assert_same(load_model("some/tiny"), load_model(str(folder)))
    (found / shards[1]).unlink()
    with pytest.raises(ModelError, match="not downloaded"):
        load_model("some/tiny")


def test_old_models_have_no_tokenizer_json_and_no_generation_config(serving, tiny):
    vocab = json.loads(tiny.files.pop("tokenizer.json"))["model"]["vocab"]
    tiny.files["vocab.json"] = json.dumps(vocab).encode()
    del tiny.files["generation_config.json"]
    assert sorted(path.name for path in get().iterdir()) == ["config.json", MODEL, "vocab.json"]
    assert load_model("some/tiny").vocabulary


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("ct2", {"config.json", "model.bin", "vocabulary.json"}),
        ("weights.npz", {"config.json", "weights.npz"}),
        ("weights.safetensors", {"config.json", "weights.safetensors"}),
        ("model.safetensors", {"config.json", "model.safetensors"}),
        ("ggml", {"ggml-model.bin"}),
    ],
)
def test_models_of_other_layouts_are_downloaded_and_read_once(serving, layout, names, tmp_path):
    theirs = checkpoint("few" if layout in ("ct2", "ggml") else "tiny.en")
    folder = tmp_path / "theirs"
    if layout == "ct2":
        folders.ct2(folder, theirs.dims, theirs.weights, list(theirs.vocabulary))
    elif layout == "ggml":
        folder.mkdir()
        ggml.write(theirs, folder)
    else:
        folders.mlx(folder, theirs.dims, theirs.weights, layout)
    serving.repos["mlx-community/whisper"] = repo_of(folder)
    found = get("mlx-community/whisper")
    assert {path.name for path in found.iterdir()} == names if found.is_dir() else {found.name}
    kept = in_one_form("mlx-community/whisper", places())
    assert kept in ("mlx-community-whisper", "ggml-model")
    name = "decoder.blocks.0.mlp.0.weight"
    np.testing.assert_array_equal(load_model(kept).weights[name], theirs.weights[name])
    assert [each for each, _ in cache.whispers(places().cache)] == [
        Repository("mlx-community/whisper")
    ]
    assert in_one_form("mlx-community/whisper", places()) == kept, "and is not read again"


def test_another_model_of_ctranslate2_is_refused_before_its_weights_come(serving):
    files = {"config.json": b'{"bos_token": "<s>"}', "model.bin": b"x", "vocabulary.json": b"[]"}
    serving.repos["some/opus"] = Repo(files)
    assert "some/opus is not downloaded: config.json of no Whisper model" in refusal("some/opus")
    assert serving.paths()[1:] == [f"/some/opus/resolve/{COMMIT}/config.json"]


def test_several_ggml_files_are_not_chosen_from(serving):
    serving.repos["some/many"] = Repo({"ggml-a.bin": b"a", "ggml-b.bin": b"b"})
    assert "2 models, such as ggml-a.bin: download one file" in refusal("some/many")


def test_a_model_is_not_there_before_it_is_whole(serving):
    seen = []

    def told(n_here: int, n_all: int) -> None:
        seen.append((n_here, n_all))
        assert cache.find(places().cache, TINY) is None

    get(on_progress=told)
    assert seen[-1][0] == seen[-1][1] == sum(path.stat().st_size for path in get().iterdir())
    assert seen == sorted(seen)


def test_two_at_once_download_once(serving):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: get(), range(2))
    assert first == second
    assert fetched(serving) == [""]


# -- what breaks off ---------------------------------------------------------------------------


def test_a_connection_that_breaks_is_gone_on_with(serving, tiny, folder):
    tiny.cuts = [100_000, 0, 0, 50_000]
    get()
    assert fetched(serving) == ["", *["bytes=100000-"] * 3, "bytes=150000-"]
    assert_same(load_model("some/tiny"), load_model(str(folder)))


def test_the_next_download_goes_on_where_one_broke_off(serving, tiny, folder):
    tiny.cuts = [100_000, 0, 0, 0, 0]
    assert "model.safetensors broke off at 0.1 MB of 0.3 MB (" in refusal()
    assert partial().read_bytes() == (folder / MODEL).read_bytes()[:100_000]
    serving.seen.clear()
    assert look_up(TINY, places()).n_missing == len(tiny.files[MODEL]) - 100_000
    get()
    assert fetched(serving) == ["bytes=100000-"]
    assert_same(load_model("some/tiny"), load_model(str(folder)))


def test_the_pauses_get_longer_and_end(serving, tiny):
    tiny.cuts = [0, 0, 10, 0, 0, 0, 0]
    here, pauses = places(), []
    with pytest.raises(ModelError, match="broke off"):
        fetch(look_up(TINY, here), here, pause=pauses.append)
    assert pauses == [1, 2, 0, 1, 2, 4]


def test_a_busy_hub_is_asked_again_when_it_says(serving, tiny, folder):
    pauses = []
    serving.busy = [("api", 429, "7"), ("api", 503, ""), (MODEL, 429, "3600"), (MODEL, 500, "soon")]
    get(pause=pauses.append)
    assert pauses == [7, 2, 60, 2], "and never longer than a minute"
    assert_same(load_model("some/tiny"), load_model(str(folder)))


@pytest.mark.parametrize("path", ["api", MODEL])
def test_a_hub_that_stays_busy(serving, path):
    pauses = []
    serving.busy = [(path, 429, "")] * 4
    assert "answers with error 429; try again later" in refusal(pause=pauses.append)
    assert pauses == [1, 2, 4]
    get()


def test_another_part_than_was_asked_for_is_not_taken(serving, tiny, folder):
    tiny.cuts, tiny.lies = [100_000], True
    get()
    assert fetched(serving) == ["", "bytes=100000-", ""], "from the start, without a range"
    assert_same(load_model("some/tiny"), load_model(str(folder)))


def test_a_hub_that_never_sends_the_part_that_was_asked_for(serving, tiny):
    tiny.cuts, tiny.lies = [100_000, 10**9] * 9, True
    assert "broke off" in refusal()
    assert len(fetched(serving)) == 5


def test_a_hub_that_knows_no_ranges_sends_everything_again(serving, tiny, folder):
    tiny.cuts = [100_000]
    tiny.ranges = False
    get()
    assert_same(load_model("some/tiny"), load_model(str(folder)))


@pytest.mark.parametrize("n_bytes", [100, 10**6])
def test_rubbish_that_lies_where_a_download_broke_off(serving, folder, n_bytes):
    tiny = serving.repos["some/tiny"]
    tiny.cuts = [100_000, 0, 0, 0, 0]
    refusal()
    partial().write_bytes(bytes(n_bytes))
    if n_bytes < 10**6:
        assert "model.safetensors is corrupt: checksum mismatch" in refusal()
    get()
    assert_same(load_model("some/tiny"), load_model(str(folder)))


# -- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MODEL, "config.json"])
def test_wrong_checksum(serving, tiny, name):
    content = bytearray(tiny.files[name])
    content[-1] ^= 1
    tiny.served[name] = bytes(content)
    assert f"{name} is corrupt: checksum mismatch" in refusal()
    blobs = places().cache / "models--some--tiny" / "blobs"
    assert not list(blobs.glob("*.incomplete")), "it would be wrong again"
    tiny.served.clear()
    get()
    load_model("some/tiny")


def test_what_comes_behind_the_listed_end_is_not_wanted(serving, tiny, folder):
    tiny.served[MODEL] = tiny.files[MODEL] + b"more"
    assert (get() / MODEL).read_bytes() == (folder / MODEL).read_bytes()
    tiny.files[MODEL] += b"x"
    tiny.served[MODEL] = bytes(10**6)
    with pytest.raises(ModelError, match="is corrupt"):
        get()


CONFIG = "config.json"
NO_WHISPER = "some/tiny is not downloaded: config.json "
NO_LIST = "the hub's list of files is damaged"
ONE_SHARD = "model-00001-of-00001.safetensors"


def listed(tiny: Repo, name: str, **change: object) -> None:
    """List what is not so of all files with this in their names."""
    tiny.listed = [s | change if name in s["rfilename"] else s for s in tiny.siblings()]


def without(tiny: Repo, name: str) -> None:
    del tiny.files[name]
    tiny.files["pytorch_model.bin"] = b"\x80\x02."


def unsent(tiny: Repo, name: str) -> None:
    tiny.listed = tiny.siblings()
    del tiny.files[name]


def quantised(tiny: Repo) -> None:
    config = json.loads(tiny.files[CONFIG]) | {"quantization_config": {"quant_method": "awq"}}
    tiny.files[CONFIG] = json.dumps(config).encode()


def index(tiny: Repo, shard: str) -> None:
    tiny.files[ONE_SHARD] = tiny.files.pop(MODEL)
    tiny.files[INDEX] = json.dumps({"weight_map": {"a": shard}}).encode()


WRONG = [
    # what is wrong, what is said, how many requests at the most come before that
    (
        lambda t: t.served.update({MODEL: t.files[MODEL][:-1]}),
        f"lists {MODEL} but does not send it",
        9,
    ),
    (lambda t: unsent(t, "tokenizer.json"), "lists tokenizer.json but does not send it", 9),
    (lambda t: without(t, CONFIG), f"{CONFIG}.* is missing", 1),
    (lambda t: without(t, MODEL), f"{MODEL}.* is missing", 1),
    (lambda t: t.files.pop("tokenizer.json"), NO_WHISPER, 2),  # it could only be of MLX
    (lambda t: t.files.update({CONFIG: b'{"model_type": "bert"}'}), NO_WHISPER, 2),
    (lambda t: t.files.update({CONFIG: b'{"model_type": "whisper"}'}), NO_WHISPER, 2),
    (lambda t: t.files.update({CONFIG: b"<html>"}), NO_WHISPER, 2),
    (lambda t: t.files.update({CONFIG: b""}), NO_WHISPER, 2),
    (quantised, "quantised by AWQ, which streamd does not read; get the", 2),
    (lambda t: listed(t, MODEL, size=2**49), "some/tiny needs 562949.95 GB, but ", 1),
    (lambda t: listed(t, MODEL, blobId="../../../../x"), NO_LIST, 1),
    (lambda t: listed(t, MODEL, blobId="A" * 40), NO_LIST, 1),
    (lambda t: listed(t, MODEL, lfs={"sha256": "../x", "size": 1}), NO_LIST, 1),
    (lambda t: listed(t, MODEL, size=-1), NO_LIST, 1),
    (lambda t: listed(t, MODEL, size=2**60), NO_LIST, 1),
    (lambda t: listed(t, MODEL, size="1"), NO_LIST, 1),
    (lambda t: listed(t, MODEL, size=None), NO_LIST, 1),
    (lambda t: listed(t, MODEL, rfilename=7), NO_LIST, 1),
    (lambda t: setattr(t, "commit", "../../../../../../tmp/x"), NO_LIST, 1),
    (lambda t: listed(t, "json", size=10**9), f"{CONFIG} is larger than any model's", 1),
    (lambda t: setattr(t, "listed", [sibling("x" * 10**6, b"")] * 20), "does not end", 1),
    (lambda t: index(t, "../../../x"), f"{INDEX} names files that are not there", 9),
]


@pytest.mark.parametrize(("change", "says", "n_requests"), WRONG)
def test_what_is_wrong_is_refused_before_the_weights_come(serving, tiny, change, says, n_requests):
    change(tiny)
    assert re.search(says, refusal())
    assert len(serving.seen) <= n_requests


def test_what_rotted_in_the_cache_is_fetched_again(serving, folder):
    blob = (get() / MODEL).resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    get()
    assert blob.read_bytes() == (folder / MODEL).read_bytes()


@pytest.mark.parametrize("status", [401, 403])
def test_a_file_that_is_refused(serving, status):
    serving.busy = [(MODEL, status, "")]
    assert f"lists {MODEL} but does not send it (error {status})" in refusal()
    get()


def test_gated(serving, tiny, monkeypatch):
    tiny.gated = True
    assert f"is gated: accept its terms at {serving.endpoint}/some/tiny, then" in refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    serving.seen.clear()
    get()
    with_token = {seen.host for seen in serving.seen if "Authorization" in seen.headers}
    assert with_token == {serving.endpoint.removeprefix("http://")}, "nobody else gets it"


def test_no_such_repository(serving):
    assert "no such repository on 127.0.0.1" in refusal("some/other")
    assert "has no branch, tag or commit v9" in refusal("some/tiny@v9")


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_hub_in_trouble(serving, status):
    serving.status = status
    expected = "no such repository" if status == 403 else f"answers with error {status}"
    assert expected in refusal()


def test_no_network(monkeypatch):
    assert "127.0.0.1:1 cannot be reached (" in refusal()
    for address in ("not an address", "http://[", "http://a:b"):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert "cannot be reached" in refusal()
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", "no-scheme://x")
    assert "cannot be reached" in refusal()


def test_no_password_is_told(serving, monkeypatch):
    address = serving.endpoint.removeprefix("http://")
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:hidden@{address}")
    serving.repos["some/tiny"].gated = True
    assert f"accept its terms at http://{address}/some/tiny, then" in refusal()
    assert places().host == address
    serving.status = 500
    assert "hidden" not in refusal()


def test_a_token_that_is_none(serving, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "töken")
    with pytest.raises(ModelError, match=r"HF_TOKEN, .* is not a valid token") as caught:
        get()
    assert "ken" not in str(caught.value).replace("token", "").replace("TOKEN", "")


def test_offline(serving, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "is not downloaded while HF_HUB_OFFLINE is set; without it:" in refusal()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    get()
    serving.seen.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load_model("some/tiny").name == "some/tiny"
    assert not serving.seen


def test_full_disk(serving, folder):
    """A file that may not grow beyond a limit fails as on a full disk, in the middle of a write."""
    code = (
        "import resource, sys; from streamd.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (270_000, 270_000));"
        "sys.exit(main(['models', 'get', 'some/tiny', '-q']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == (
        f"streamd: some/tiny: {places().cache} cannot be written (File too large); "
        "the partial download is kept for the next try\n"
    )
    n_kept = partial().stat().st_size
    assert 0 < n_kept <= 270_000
    get()
    assert fetched(serving)[-1] == f"bytes={n_kept}-"
    assert_same(load_model("some/tiny"), load_model(str(folder)))


def test_a_cache_that_cannot_be_written(serving, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    assert f"{tmp_path}/file/hub cannot be written (Not a directory)" in refusal()


# -- what is hostile -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../../x", "/etc/passwd", "a/../../x", "a//b", "./x", "", "..", "a\\..\\x", "C:x", "a\nb",
        "a\x00b", "a/\x1b[2Jb", "x/", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_never_asked_for(serving, tiny, path):
    tiny.listed = [*tiny.siblings(), sibling("x", b"x") | {"rfilename": path}]
    get()
    assert {asked.rpartition("/")[2] for asked in serving.paths()[1:]} <= tiny.files.keys()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)
paths = st.sampled_from([*NEEDED, INDEX, "vocab.json", "README.md", "..", "a/b"]) | st.text()


@given(
    st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {
            "sha": st.just(COMMIT) | st.text(),
            "siblings": st.lists(
                st.builds(lambda path, extra: sibling(path, b"") | extra, paths, st.just({}))
                | json_values,
                max_size=8,
            ),
        }
    ).map(lambda info: json.dumps(info).encode())
)
@example(b"[" * 100_000)
def test_whatever_is_listed_only_known_names_are_fetched(answer):
    try:
        commit, files = read_listing(TINY, answer)
    except ModelError:
        return
    assert {file.name for file in files} <= {*NEEDED, "vocab.json"}
    assert all(len(file.digest) in (40, 64) for file in files)
    assert commit == COMMIT


# -- the library beside us -----------------------------------------------------------------------


def test_nothing_else_is_asked_and_nothing_told(serving):
    get()
    resolve = f"/some/tiny/resolve/{COMMIT}/"
    assert serving.paths() == [
        "/api/models/some/tiny/revision/main",
        f"{resolve}config.json",
        f"{resolve}generation_config.json",
        f"{resolve}tokenizer.json",
        f"{resolve}{MODEL}",
        f"/cdn/some/tiny/{MODEL}",
    ]
    assert {seen.headers["User-Agent"] for seen in serving.seen} == {"streamd/0.1.0"}


def library(code: str) -> list[str]:
    """What a program with huggingface_hub prints."""
    environ = os.environ | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", f"import huggingface_hub as hub; {code}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_library_finds_what_we_downloaded(serving):
    found = get()
    assert library("print(hub.snapshot_download('some/tiny', local_files_only=True))") == [
        str(found)
    ]
    info = (
        "info = hub.scan_cache_dir(); print(len(info.warnings), *[r.repo_id for r in info.repos])"
    )
    assert library(info) == ["0", "some/tiny"]


def test_we_find_what_the_library_downloaded(serving, folder):
    found = library(f"[print(hub.hf_hub_download('some/tiny', name)) for name in {NEEDED}]")
    assert cache.find(places().cache, TINY) == Path(found[0]).parent
    assert_same(load_model("some/tiny"), load_model(str(folder)))
    serving.seen.clear()
    get()
    assert not fetched(serving), "its files have the names that we give them"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HF_HOME": "~/models"},
        {"HF_HOME": "$HOME/models", "HF_ENDPOINT": "https://hub.example/"},
        {"XDG_CACHE_HOME": "/caches"},
        {"HUGGINGFACE_HUB_CACHE": "/old"},
        {"HF_HUB_CACHE": "/new", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/home"},
        {"HF_HUB_OFFLINE": "yes"},
        {"HF_HUB_OFFLINE": "0"},
        {"TRANSFORMERS_OFFLINE": "1"},
    ],
)
def test_the_environment_means_the_same_to_the_library(environ, monkeypatch):
    for name in ("HF_HOME", "HF_ENDPOINT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    names = "c.HF_HUB_CACHE, c.ENDPOINT, c.HF_HUB_OFFLINE"
    here = places()
    assert library(f"from huggingface_hub import constants as c; print({names})") == [
        str(here.cache),
        here.endpoint,
        str(here.offline),
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HF_TOKEN": "hf_one"},
        {"HF_TOKEN": " hf_one\n", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
        {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
        {"HF_TOKEN": " "},
        {"HF_TOKEN_PATH": "$HF_HOME/other"},
        {"HF_TOKEN_PATH": "~/nowhere"},
    ],
)
def test_the_token_is_the_one_that_the_library_sends(environ, monkeypatch, serving, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_kept\n")
    (tmp_path / "home" / "other").write_text("hf_other")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert [str(access_token())] == library("print(hub.get_token())")


def test_a_token_is_sent_to_the_hub_alone(serving, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get()
    sent = {seen.path: seen.headers.get("Authorization") for seen in serving.seen}
    assert sent.pop(f"/cdn/some/tiny/{MODEL}") is None
    assert set(sent.values()) == {"Bearer hf_secret"}
    serving.seen.clear()
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    get()
    assert not any("Authorization" in seen.headers for seen in serving.seen)


@pytest.mark.parametrize(
    ("references", "kept"),
    [
        ("models--some--tiny/blobs/{0}", False),
        ("models--some--tiny/blobs/{0}\nmodels--some--gone/blobs/{0}", False),
        ("models--some--tiny/blobs/{0}\nmodels--some--other/blobs/{0}", True),
        (None, True),
    ],
)
def test_content_that_repositories_share_goes_with_the_last_one(serving, references, kept):
    """As huggingface_hub (utils/_shared_blobs.py) lays it out."""
    snapshot, here = get(), places().cache
    blob = (snapshot / MODEL).resolve()
    content = here / "blobs" / "ab" / ("ab" * 32)
    content.parent.mkdir(parents=True)
    blob.rename(content)
    for folder in (blob.parent, here / "models--some--other" / "blobs"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / blob.name).symlink_to(content)
    if references is not None:
        content.with_name(f"{content.name}.refs").write_text(references.format(blob.name) + "\n")
    assert cache.find(here, TINY) == snapshot
    cache.remove(here, TINY)
    assert content.exists() == kept
    assert content.with_name(f"{content.name}.refs").exists() == (kept and references is not None)


def test_where_imports_lie(monkeypatch):
    assert str(places({"STREAMD_STORE": "/models"}).imported) == "/models"
    monkeypatch.setattr(sys, "platform", "linux")
    assert str(places({"XDG_DATA_HOME": "/data"}).imported) == "/data/streamd/models"
    home = Path.home()
    assert places({"XDG_DATA_HOME": "data"}).imported == home / ".local/share/streamd/models"
    monkeypatch.setattr(sys, "platform", "darwin")
    found = places({"XDG_DATA_HOME": "/data"}).imported
    assert found == home / "Library/Application Support/streamd/models"
