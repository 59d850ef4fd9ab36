"""``streamd models``, and which model the program uses: against a stand-in for the hub."""

import json
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamd.cli import main
from streamd.cli.models import table, with_model
from streamd.config import load
from streamd.daemon.opening import larger_model
from streamd.engines.precision import choose_precision
from streamd.errors import ConfigError
from streamd.models.catalog import CATALOG, dimensions
from streamd.models.families import FAMILY_MODELS
from streamd.models.store import find, imports, load_model, not_here
from streamd.models.store.cache import places
from streamd.system.disk import locked, megabytes
from tests.support.checkpoints import checkpoint, ggml, huggingface
from tests.support.hub import hub, repo_of

ROOT = Path(__file__).resolve().parents[2]
SOUND = ROOT / "tests" / "golden" / "lamp.flac"
COLD = ("--set", "search.temperatures=0")
PROGRAM = str(Path(sys.executable).with_name("streamd"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A small model, as people put it on the hub."""
    return huggingface.write(checkpoint("few"), tmp_path_factory.mktemp("hub"))


@pytest.fixture
def serving(folder, monkeypatch, tmp_path):
    """A hub with two models, and an empty store."""
    repo = repo_of(folder)
    with hub({"some/tiny": repo, "openai/whisper-base.en": repo}) as serving:
        monkeypatch.setenv("HF_ENDPOINT", serving.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("STREAMD_STORE", str(tmp_path / "imported"))
        monkeypatch.delenv("STREAMD_MODEL")
        yield serving


@pytest.fixture(scope="session")
def quiet(tmp_path_factory) -> str:
    """A file without speech, where only the choice of the model matters."""
    path = tmp_path_factory.mktemp("quiet") / "quiet.flac"
    soundfile.write(path, np.zeros(3200), 16_000)
    return str(path)


@pytest.fixture
def run(capfd):
    """Runs the program in this process; gives its exit code and what it wrote."""

    def run(*args: str) -> tuple[int, str, str]:
        code = main(args)
        return code, *capfd.readouterr()

    return run


def started(*args: str) -> subprocess.CompletedProcess:
    """The program in a process of its own, not at a terminal."""
    return subprocess.run(
        [PROGRAM, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def at_terminal(answer: str, *args: str) -> tuple[int, str]:
    """The program at a terminal where somebody types this; its exit code and what is shown."""
    parent, child = pty.openpty()
    os.write(parent, answer.encode())

    def shown() -> bytes:
        heard = b""
        with suppress(OSError):  # nobody has the other end any more
            while True:
                heard += os.read(parent, 4096)
        return heard

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(shown)
        with (
            open(child) as stdin,
            open(os.dup(child), "w") as stderr,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr("sys.stdin", stdin)
            patch.setattr("sys.stderr", stderr)
            code = main(args)
        text = reading.result().decode()
    os.close(parent)
    return code, text


def in_store() -> list[str]:
    """All that lies where imports lie but the lock."""
    return [path.name for path in places().imported.iterdir() if path.name != ".lock"]


def rows(capsys) -> dict[str, str]:
    """What the list shows of each model, by its name; the default's begins with a star."""
    assert main(["models", "list"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    (head, *lines), families, _ = (part.splitlines() for part in shown.split("\n\n"))
    assert head.split() == ["NAME", "SIZE", "RAM", "LANG", "HERE", "FROM"]
    assert families[0].split()[2:] == ["SIZE", "LANGUAGES", "HERE", "LIVE", "WER", "LICENCE"]
    return {line[2:].split()[0]: line for line in (*lines, *families[1:])}


# -- get, list, remove -------------------------------------------------------------------------


def test_an_empty_store_has_the_bundled_model(serving, capsys):
    listed = rows(capsys)
    assert listed.keys() == {each.name for each in (*CATALOG, *FAMILY_MODELS)}
    assert [name for name, row in listed.items() if row[0] == "*"] == ["tiny.en"]
    assert "bundled" in listed["tiny.en"]
    assert listed["base.en"].endswith(" 293 MB 0.3GB en              openai/whisper-base.en")
    assert not serving.seen


def test_what_was_got_is_listed_and_can_be_removed(serving, capsys):
    assert main(["models", "get", "some/tiny", "-q"]) == 0
    assert main(["models", "get", "base.en", "-q"]) == 0
    listed = rows(capsys)
    assert list(listed)[:3] == ["tiny.en", "base.en", "some/tiny"], "what is here comes first"
    assert "0.5 MB" in listed["base.en"]
    assert "downloaded" in listed["some/tiny"]
    assert [name for name, row in listed.items() if row[0] == "*"] == ["base.en"]
    for name in ("some/tiny", "base.en"):
        assert main(["models", "remove", name]) == 0
        assert capsys.readouterr().err == f"streamd: removed {name}, 0.5 MB\n"
    assert main(["models", "remove", "base.en"]) == 4
    assert capsys.readouterr().err == (
        "streamd: base.en is not here; streamd models list shows what is\n"
    )
    assert not list(places().cache.rglob("*.safetensors"))


def test_a_revision_is_listed_and_goes_with_the_others(serving, capsys):
    serving.repos["some/tiny"].revisions = ("main", "refs/pr/7")
    for name in ("some/tiny@refs/pr/7", "some/tiny"):
        assert main(["models", "get", name, "-q"]) == 0
    assert list(rows(capsys))[1:3] == ["some/tiny", "some/tiny@refs/pr/7"]
    assert main(["models", "remove", "some/tiny@refs/pr/7"]) == 4
    expected = "streamd: revisions go together; run: streamd models remove some/tiny\n"
    assert capsys.readouterr().err == expected
    assert main(["models", "remove", "some/tiny", "-q"]) == 0
    assert list(rows(capsys))[1] == "large-v3-turbo"


def test_what_broke_off_can_be_removed(serving):
    serving.repos["some/tiny"].served["model.safetensors"] = b""
    serving.repos["some/tiny"].listed = [
        s | {"size": 2**49} if "lfs" in s else s for s in serving.repos["some/tiny"].siblings()
    ]
    assert main(["models", "get", "some/tiny", "-q"]) == 4
    assert (places().cache / "models--some--tiny").exists()
    assert main(["models", "remove", "some/tiny", "-q"]) == 0
    assert not (places().cache / "models--some--tiny").exists()


def test_other_files_in_the_cache_are_not_models(serving, capsys):
    main(["models", "get", "some/tiny", "-q"])
    snapshot = next(places().cache.glob("models--some--tiny/snapshots/*"))
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text('{"model_type": "bert"}')
    assert "some/tiny" not in rows(capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("get nothing", "model 'nothing' not found: name a model's folder or file, owner/name on"),
        ("get some/none", "some/none: no such repository on 127.0.0.1"),
        ("remove tiny.en", "tiny.en is not in the store, so it is not streamd's to remove"),
        ("remove some/none", "some/none is not here; streamd models list shows what is"),
        ("remove ..", ".. is not in the store"),
        ("get ~nobody-of-that-name/x", "model '~nobody-of-that-name/x' not found"),
        (f"get {'x' * 300}", f"model '{'x' * 300}' not found"),
        (f"import {'x' * 300}", f"{'x' * 300}: no such file or folder"),
        ("import ~nobody-of-that-name/x", "~nobody-of-that-name/x: no such file or folder"),
        ("import nowhere", "nowhere: no such file or folder"),
        (f"import {SOUND}", f"{SOUND}: no model; streamd reads Hugging Face's safetensors"),
        (f"import {ROOT}/tests/golden base", f"{ROOT}/tests/golden: holds no model; streamd"),
        (f"import {ROOT}/models/tiny.en ../x", "'../x' is not a valid name: use letters, digits,"),
    ],
)
def test_what_cannot_be_done_is_one_line(words, expected, serving, capsys):
    assert main(["models", *words.split()]) == 4
    assert capsys.readouterr().err.startswith(f"streamd: {expected}")
    assert not list(places().imported.glob("[!.]*"))


# -- import ----------------------------------------------------------------------------------


def test_an_imported_folder_is_a_model_by_name(serving, folder, capsys):
    assert main(["models", "import", str(folder), "mine"]) == 0
    expected = "streamd: mine, 0.5 MB, is imported; use it with --model mine\n"
    assert capsys.readouterr().err == expected
    assert load_model("mine").name == "mine"
    copied = {path.name for path in (places().imported / "mine").glob("[!.]*")}
    assert copied == {path.name for path in folder.iterdir()} & copied
    assert "preprocessor_config.json" not in copied
    assert rows(capsys)["mine"].split()[4:] == ["en", "imported"]
    assert main(["models", "import", str(folder), "mine"]) == 4
    assert "mine is imported already" in capsys.readouterr().err
    assert main(["models", "remove", "mine"]) == 0
    assert in_store() == []


def test_an_import_may_have_a_name_of_the_catalog(serving, folder, capsys):
    """A folder is often called after its size; from then on the name means the import."""
    assert main(["models", "import", str(folder), "base.en"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "streamd: base.en, 0.5 MB, is imported; use it with --model base.en",
        "streamd: base.en means this one from now on; the hub's is openai/whisper-base.en",
    ]
    assert find("base.en", places()) == places().imported / "base.en"
    assert rows(capsys)["base.en"].split()[-1] == "imported"
    assert main(["models", "get", "base.en"]) == 4
    expected = "base.en is imported; streamd models get openai/whisper-base.en downloads that one"
    assert capsys.readouterr().err == f"streamd: {expected}\n"
    assert main(["models", "get", "openai/whisper-base.en", "-q"]) == 0
    listed = rows(capsys)
    assert listed["base.en"].split()[-1] == "imported"
    assert "downloaded" in listed["openai/whisper-base.en"]
    for left in ("downloaded", "openai/whisper-base.en"):
        assert main(["models", "remove", "base.en", "-q"]) == 0
        assert left in rows(capsys)["base.en"]


def test_an_import_may_have_the_name_of_the_model_in_the_box(serving, folder, capsys):
    assert main(["models", "import", str(folder), "tiny.en", "-q"]) == 0
    assert rows(capsys)["tiny.en"].split()[-1] == "imported"
    assert main(["models", "remove", "tiny.en", "-q"]) == 0
    assert "bundled" in rows(capsys)["tiny.en"]


@pytest.mark.parametrize("name", [(), ("mine",)])
def test_an_imported_file_keeps_its_name_or_gets_one(name, serving, tmp_path):
    path = ggml.write(checkpoint("few"), tmp_path)
    assert main(["models", "import", str(path), *name, "-q"]) == 0
    (expected,) = name or (path.stem,)
    assert [found for found, _ in imports.every(places().imported)] == [expected]
    assert load_model(expected).name == expected


def test_an_import_that_fails_leaves_nothing(serving, folder, monkeypatch, tmp_path):
    (tmp_path / "imported").mkdir()
    code = (
        "import resource, sys; from streamd.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        f"sys.exit(main(['models', 'import', {str(folder)!r}, 'mine']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    expected = f"streamd: {folder} cannot be copied to {places().imported} (File too large)\n"
    assert done.stderr == expected
    assert in_store() == []


def test_a_second_import_waits_for_the_first(serving, folder):
    half_done = places().imported / ".half-done"
    half_done.mkdir(parents=True)
    command = [PROGRAM, "models", "import", str(folder), "mine"]
    with locked(places().imported / ".lock", ""):
        second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert second.stderr
        waits = "streamd: another process is importing a model; waiting for it\n"
        assert second.stderr.readline() == waits
        assert half_done.exists(), "it is the first one's"
    _, said = second.communicate()
    assert said == "streamd: mine, 0.5 MB, is imported; use it with --model mine\n"
    assert in_store() == ["mine"]


def test_an_import_that_is_interrupted_leaves_nothing(serving, folder, monkeypatch):
    def interrupted(source, target):
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", interrupted)
        assert main(["models", "import", str(folder), "mine"]) == 130
    assert in_store() == []


def test_what_an_import_left_that_was_killed_goes_with_the_next(serving, folder):
    half_done = places().imported / ".half-done"
    half_done.mkdir(parents=True)
    (half_done / "model.safetensors").touch()
    assert main(["models", "import", str(folder), "mine", "-q"]) == 0
    assert in_store() == ["mine"]


def test_a_hidden_file_can_be_imported(serving, tmp_path):
    path = ggml.write(checkpoint("few"), tmp_path).rename(tmp_path / ".model.bin")
    assert main(["models", "import", str(path), "mine", "-q"]) == 0
    assert load_model("mine").name == "mine"


def test_a_damaged_import_is_listed_and_can_be_removed(serving, folder, capsys):
    main(["models", "import", str(folder), "mine", "-q"])
    (places().imported / "mine" / "model.safetensors").unlink()
    assert "damaged" in rows(capsys)["mine"]
    assert main(["models", "remove", "mine"]) == 0
    assert in_store() == []


def test_what_cannot_be_removed_is_one_line(serving, folder, capsys):
    places().imported.mkdir()
    (places().imported / "mine").symlink_to(folder)
    assert main(["models", "remove", "mine"]) == 4
    assert capsys.readouterr().err.startswith("streamd: mine cannot be removed (")
    assert load_model("mine")


# -- which one is used -------------------------------------------------------------------------


def chosen(**given: str) -> str:
    """What is used; the speed of the machine counts only for captions in real time."""
    return with_model(load({"realtime": "false", **given}, {})).decoding.model


def test_the_best_one_that_knows_the_language(serving, capsys):
    for each in CATALOG:
        if each.name in ("tiny.en", "tiny", "large-v3-turbo", "distil-small.en"):
            serving.repos[each.repository] = serving.repos["some/tiny"]
            assert main(["models", "get", each.name, "-q"]) == 0
    assert chosen() == chosen(language="de") == "large-v3-turbo"
    assert chosen(task="translate", language="de") == "tiny", "turbo cannot translate"
    main(["models", "remove", "large-v3-turbo", "-q"])
    assert chosen() == "distil-small.en"
    assert chosen(language="auto") == chosen(task="translate") == "tiny"
    assert chosen(model="tiny.en") == "tiny.en"
    main(["models", "remove", "tiny", "-q"])
    with pytest.raises(ConfigError, match=r"tiny\.en knows en only; take one such as base"):
        chosen(language="de")


def test_an_import_is_judged_by_its_size_and_languages(serving):
    """Its weights are not looked at, so there need be none."""
    dims = huggingface_dims("small")
    for name, changes in {"a-tiny": huggingface_dims("tiny"), "b-small": dims}.items():
        outline(name, **changes)
    assert chosen() == chosen(language="de") == chosen(task="translate") == "b-small"
    outline("c-small.en", **dims | {"vocab_size": 51_864})
    assert chosen() == "c-small.en"
    assert chosen(language="auto") == "b-small"
    outline("d-distilled", **dims | {"decoder_layers": 2, "encoder_layers": 24})
    assert chosen(language="de") == "b-small", "distil-whisper's know English only"
    assert chosen() == "d-distilled"
    (places().imported / "d-distilled" / "config.json").write_text("{")
    assert chosen() == "c-small.en", "what is damaged is not taken"


def test_a_better_transcript_is_made_by_the_largest_that_suits(serving, monkeypatch):
    def larger(model: str, **given: str) -> str:
        return larger_model(load({"model": model, **given}, {}), places())

    assert larger("tiny.en") == "tiny.en"
    for name in "tiny", "small":
        outline(f"a-{name}", **huggingface_dims(name))
    assert larger("tiny.en") == larger("a-tiny") == "a-small"
    assert larger("a-tiny", language="de") == larger("a-tiny", task="translate") == "a-small"
    assert larger("a-small") == "a-small"
    outline("b-small.en", **huggingface_dims("small") | {"vocab_size": 51_864})
    assert larger("tiny.en") == "b-small.en"
    assert larger("a-tiny", language="de") == "a-small"
    monkeypatch.setattr(
        "streamd.daemon.opening.memory.fits", lambda dims, _: dims.n_audio_layer < 12
    )
    assert larger("tiny.en") == "tiny.en", "there is no memory for the others"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Changes the CPU time that was measured of a window of a model, per layer."""
    monkeypatch.setenv("STREAMD_CACHE", str(tmp_path / "cache"))
    kept = {}
    for name in ("tiny", "small"):
        assert choose_precision(dimensions(name), threads=2).cpu_ms > 0
        (kept[name],) = {*(tmp_path / "cache/precision").iterdir()} - {*kept.values()}

    def as_if(name: str, cpu_ms: float) -> None:
        facts = json.loads(kept[name].read_bytes())
        kept[name].write_text(json.dumps(facts | {"cpu_ms": cpu_ms}))

    return as_if


def test_captions_in_real_time_take_the_best_one_that_keeps_up(serving, measured, caplog):
    caplog.set_level("INFO", "streamd")
    outline("a-tiny", **huggingface_dims("tiny"))
    outline("b-small", **huggingface_dims("small"))
    live = {"realtime": "true", "threads": "2", "language": "de"}
    # 12 layers, a window each 500 ms, and 1.5 times that for all of a stream: 0.036 CPU seconds.
    measured("small", 1.0)
    assert chosen(**live) == "b-small"
    assert "using b-small, the best installed model (choose with --model)" in caplog.text
    measured("small", 40.0)  # 1.44 CPU seconds are more than 0.6 of two processors
    assert chosen(**live) == "a-tiny"
    assert "using a-tiny, the best installed model that keeps up; b-small would lag" in caplog.text
    assert "--model b-small takes it nevertheless" in caplog.text
    assert [row.split()[1] for row in table(load(live, {})) if row.startswith("*")] == ["a-tiny"]
    assert chosen(**live, step="2000") == "b-small"
    assert chosen(**live, model="b-small") == "b-small"
    assert chosen(language="de") == "b-small", "a file is read as fast as possible"
    measured("tiny", 1000.0)
    assert chosen(**live) == "a-tiny", "the smallest"


def huggingface_dims(name: str) -> dict[str, int]:
    """What a config.json says of OpenAI's model."""
    layers, heads = {"tiny": (4, 6), "small": (12, 12)}[name]
    width = 64 * heads
    return {
        "vocab_size": 51_865,
        "num_mel_bins": 80,
        "d_model": width,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        **{f"{part}_layers": layers for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": heads for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 4 * width for part in ("encoder", "decoder")},
    }


def outline(name: str, **config: int) -> None:
    """An imported folder without weights."""
    folder = places().imported / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "whisper", **config}))
    (folder / "model.safetensors").touch()


def test_a_downloaded_model_is_no_bundled_one_of_the_same_name(serving, capsys):
    serving.repos["openai/whisper-tiny.en"] = serving.repos["some/tiny"]
    assert main(["models", "get", "tiny.en"]) == 0
    capsys.readouterr()
    assert chosen() == "tiny.en"
    assert "using tiny.en, the best installed model" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_downloaded(serving, run):
    how = "run: streamd models get some/tiny"
    why = f"streamd: model some/tiny is not downloaded; {how}\n"
    assert run("transcribe", "-m", "some/tiny", str(SOUND), *COLD) == (4, "", why)
    assert not serving.seen, "nobody was asked"


def test_a_downloaded_model_writes_what_its_folder_does(serving, folder, run):
    _, _, told = run("models", "get", "some/tiny")
    host, cache = serving.endpoint.removeprefix("http://"), places().cache
    announced, *lines = told.splitlines()
    assert announced == f"streamd: downloading some/tiny, 0.5 MB, from {host} to {cache}"
    assert "streamd: some/tiny: 100 % of 0.5 MB" in lines
    used = run("transcribe", "-m", "some/tiny", str(SOUND), *COLD)
    own = run("transcribe", "-m", str(folder), str(SOUND), *COLD)
    assert used[:2] == own[:2]
    assert used[0] == 0
    assert "downloading" not in used[2]


@pytest.mark.parametrize(
    ("name", "hint"), [("tinny", "tiny"), ("bsae.en", "base.en"), ("whisper-base", "base")]
)
def test_a_mistyped_model_is_suggested(name, hint):
    assert str(not_here(name)) == f"model {name!r} not found; did you mean {hint}?"


def test_got_in_one_process_used_in_the_next(serving):
    got = started("models", "get", "some/tiny")
    assert (got.returncode, got.stdout) == (0, "")
    assert got.stderr.endswith("streamd: some/tiny is here; use it with --model some/tiny\n")
    serving.repos.clear()
    assert started("transcribe", "-m", "some/tiny", str(SOUND), *COLD).returncode == 0


def test_a_start_without_a_download_is_not_slowed_down(serving):
    assert main(["models", "get", "some/tiny", "-q"]) == 0
    code = (
        "import sys; from streamd.config import load; from streamd.cli.models import with_model;"
        "with_model(load({'model': 'some/tiny'}, {})); with_model(load({'model': 'tiny.en'}, {}));"
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_hub_a_missing_model_is_one_line(serving, monkeypatch, run):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, shown, why = run("-m", "base.en", str(SOUND))
    assert (code, shown, why.count("\n")) == (4, "", 1)
    assert "streamd models get base.en" in why


@pytest.mark.parametrize(
    ("words", "asked"), [("-l de", "--language de"), ("-l en -tr", "--translate")]
)
def test_a_model_that_lacks_the_language_is_not_downloaded(words, asked, serving, capsys):
    serving.repos["openai/whisper-small.en"] = serving.repos["some/tiny"]
    assert main(["-m", "small.en", *words.split(), "-q", str(SOUND)]) == 2
    expected = f"streamd: {asked}: the model small.en knows en only; take one such as base\n"
    assert capsys.readouterr().err == expected
    assert find("small.en", places()) is None


def test_no_model_at_all_is_the_bundled_one_and_says_so(serving, quiet, run):
    code, _, told = run("transcribe", quiet)
    assert code == 0
    hint = "the smallest model; streamd models get base.en downloads a larger one"
    using = "streamd: warning: using tiny.en, which ships with streamd"
    assert told.splitlines()[0] == f"{using}, {hint}"
    assert not serving.seen, "nobody was asked"


@pytest.mark.parametrize(("words", "asked"), [("-l de", "--language de"), ("-tr", "--translate")])
def test_the_bundled_model_is_not_used_for_what_it_cannot_do(words, asked, monkeypatch, capsys):
    monkeypatch.delenv("STREAMD_MODEL", raising=False)
    assert main([*words.split(), str(SOUND)]) == 2
    expected = f"streamd: {asked}: the model tiny.en knows en only; take one such as base\n"
    assert capsys.readouterr().err == expected


# -- at a terminal -------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["\n", " Yes\n"])
def test_a_person_is_asked_whether_to_download(serving, quiet, answer):
    code, shown = at_terminal(answer, "transcribe", "-m", "some/tiny", quiet)
    host = serving.endpoint.removeprefix("http://")
    assert f"some/tiny is not here. Download it (0.5 MB) from {host}? [Y/n] " in shown
    assert f"downloading some/tiny, 0.5 MB, from {host} to " in shown
    assert re.search(r"of 0\.5 MB[^\r]*\r+\x1b\[K", shown), "the line is removed"
    assert code == 0
    assert load_model("some/tiny").name == "some/tiny"


def test_a_model_for_which_there_is_no_memory_is_refused_before_its_download(
    serving, run, monkeypatch
):
    monkeypatch.setattr("streamd.cli.models.memory_bytes", lambda: 3_000_000_000)
    monkeypatch.setattr("streamd.engines.memory.memory_bytes", lambda: 3_000_000_000)
    code, _, told = run("models", "get", "large-v3")
    assert code == 4
    assert told == (
        "streamd: large-v3 takes 2.55 GB of memory, and this machine has 3.00 GB: take a smaller "
        "model\n"
    )
    code, _, told = run("transcribe", "-m", "medium", "--precision", "float32", str(SOUND))
    assert code == 4, "not here, and nobody to ask"
    code, shown = at_terminal("y", "transcribe", "-m", "medium", "--precision=float32", str(SOUND))
    assert code == 4
    assert "medium takes 4.23 GB of memory" in shown
    assert "--precision int8 takes less" in shown
    assert not serving.seen


@pytest.mark.parametrize("answer", ["n\n", "what?\n", "\x04"])
def test_a_person_may_refuse(serving, answer):
    code, shown = at_terminal(answer, "transcribe", "-m", "some/tiny", str(SOUND))
    assert code == 4
    assert shown.endswith(
        "streamd: model some/tiny is not downloaded; run: streamd models get some/tiny\r\n"
    )
    assert serving.paths() == ["/api/models/some/tiny/revision/main"]


def test_the_question_counts_what_is_prepared(serving):
    serving.repos["openai/whisper-base"] = serving.repos["some/tiny"]
    _, shown = at_terminal("n\n", "transcribe", "-m", "base", str(SOUND))
    assert "base is not here. Download it (0.5 MB, and 174 MB when it is prepared; " in shown


def test_the_download_of_a_damaged_model_shows_how_far_it_is(serving, run):
    run("models", "get", "some/tiny")
    weights = find("some/tiny", places()) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.resolve().write_bytes(content)
    told = run("models", "get", "some/tiny")[2]
    assert "all of some/tiny is here; checking it" in told
    assert "some/tiny: 100 % of 0.5 MB" in told


def test_the_most_detailed_log_tells_no_secret(serving, monkeypatch, run):
    monkeypatch.setenv("HF_TOKEN", "hf_hidden")
    assert "hidden" not in run("models", "get", "some/tiny", "-vv")[2]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", serving.endpoint.replace("//", "//me:hidden@"))
    code, _, told = run("models", "get", "openai/whisper-base.en", "-vv")
    assert code == 0
    assert "hidden" not in told


def test_who_is_quiet_is_not_asked(serving):
    code, shown = at_terminal("", "models", "get", "-q", "some/tiny")
    assert (code, shown) == (0, "")
    code, shown = at_terminal("", "transcribe", "-q", "-m", "base.en", str(SOUND))
    assert code == 4
    assert "base.en is not downloaded" in shown


QUESTION = "tiny.en is here, the smallest. Larger: base.en, 293 MB from "


def test_a_first_model_is_offered_and_used_from_then_on(serving, quiet):
    code, shown = at_terminal("y\n", "transcribe", quiet)
    assert QUESTION in shown
    assert "Download it? [y/N]" in shown
    assert code == 0
    code, shown = at_terminal("", "transcribe", quiet)
    assert "using base.en, the best installed model (choose with --model)" in shown
    assert code == 0


@pytest.mark.parametrize("words", ["-l de", "-l auto", "-tr"])
def test_what_is_offered_knows_the_language(words, serving, quiet):
    serving.repos["openai/whisper-base"] = serving.repos["some/tiny"]
    assert main(["models", "get", "base.en", "-q"]) == 0
    _, shown = at_terminal("\n", "transcribe", *words.split(), quiet)
    assert "no suitable model is here yet. Download base, 293 MB from " in shown
    assert "? [Y/n]" in shown
    assert load_model("base").name == "base"


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_a_first_model_is_offered_only_once(answer, serving, quiet):
    code, shown = at_terminal(answer, "transcribe", quiet)
    assert QUESTION in shown
    assert "using tiny.en, which ships with streamd" in shown
    assert code == 0
    code, shown = at_terminal("", "transcribe", quiet)
    assert QUESTION not in shown
    assert "using tiny.en, the best installed model (choose with --model)" in shown
    assert code == 0
    assert not serving.seen


def test_a_first_model_that_cannot_be_had_is_gone_without(serving, quiet, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, shown = at_terminal("y\n", "transcribe", quiet)
    assert code == 0
    assert "captions go on without it" in shown
    assert "using tiny.en, which ships with streamd" in shown


def test_a_first_model_is_not_offered_offline(serving, quiet, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert QUESTION not in at_terminal("", "transcribe", quiet)[1]


# -- what a download looks like ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (0, "0.0 MB"),
        (9_949_999, "9.9 MB"),
        (9_950_000, "10 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.00 GB"),
        (6_173_370_152, "6.17 GB"),
    ],
)
def test_sizes_for_people(n_bytes, shown):
    assert megabytes(n_bytes) == shown
