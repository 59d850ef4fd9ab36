"""``streamd models`` with models of other families than Whisper, against a stand-in for the hub."""

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from streamd.cli import doctor, main
from streamd.cli.bench import measure
from streamd.config import load
from streamd.daemon import opening
from streamd.daemon.families import open_model_file, whisper_only
from streamd.engines.families.processes import FamilyProcesses
from streamd.errors import ConfigError, OneSessionError
from streamd.models import families
from streamd.models.families import FAMILY_MODELS, family_entry
from streamd.models.store import find, finding
from streamd.models.store.cache import places
from tests.support import gguf_models
from tests.support.hub import Repo, hub

NAME = "nemotron-streaming-en"
LISTED = family_entry(NAME)


@pytest.fixture
def content(tmp_path) -> bytes:
    return gguf_models.nemotron().write(tmp_path / "x.gguf").read_bytes()


@pytest.fixture
def serving(content, monkeypatch, tmp_path):
    """A hub with a catalog's model and one of somebody else's."""
    files = {LISTED.file: content, "other-F32.gguf": b"GGUF", "README.md": b"# A model\n"}
    mine = {"a-F16.gguf": b"GGUF", "a-Q8_0.gguf": content}
    with hub({LISTED.repository: Repo(files), "some/gguf": Repo(mine)}) as serving:
        monkeypatch.setenv("HF_ENDPOINT", serving.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(families, "find_spec", lambda name: True)
        yield serving


@pytest.fixture
def known(content, monkeypatch):
    """The catalog knows the stand-in's file."""
    row = msgspec.structs.replace(LISTED, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(families, "FAMILY_MODELS", (row,))


def test_a_model_is_downloaded_as_one_file_after_its_licence_was_shown(serving, known, capsys):
    assert main(["models", "get", NAME]) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"streamd: {NAME} is under the licence {LISTED.license_line}"
    assert "nvidia-open-model-license" in first
    assert second.startswith(f"streamd: downloading {NAME}, 0.2 MB, from ")
    assert find(NAME, places()).name == LISTED.file
    assert [path.rpartition("/")[2] for path in serving.paths() if "/cdn/" in path] == [LISTED.file]
    assert main(["models", "list"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if f" {NAME} " in line)
    assert row.split()[-5:] == ["downloaded", "stream", "2.31", "NVIDIA", "Open"]
    assert main(["models", "remove", NAME]) == 0
    assert find(NAME, places()) is None


def test_another_file_than_the_catalog_knows_is_refused(serving, capsys):
    assert main(["models", "get", NAME]) == 4
    said = capsys.readouterr().err
    assert "is not the file that this release of streamd knows" in said
    assert not [path for path in serving.paths() if "/cdn/" in path]


def test_of_another_repository_the_file_in_q8_is_taken(serving, capsys):
    assert main(["models", "get", "some/gguf", "-q"]) == 0
    assert find("some/gguf", places()).name == "a-Q8_0.gguf"
    assert main(["models", "list"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if " some/gguf " in line)
    assert row.split()[1:] == ["0.2", "MB", "English", "downloaded", "stream", "mit"]


def test_a_file_that_is_no_model_of_speech_is_refused(serving, capsys):
    serving.repos["some/gguf"].files["a-Q8_0.gguf"] = b"GGUF" + bytes(100)
    assert main(["models", "get", "some/gguf"]) == 4
    assert "some/gguf is not downloaded: a-Q8_0.gguf damaged" in capsys.readouterr().err
    assert find("some/gguf", places()) is None


def test_without_the_library_nothing_is_downloaded(serving, monkeypatch, capsys):
    monkeypatch.setattr(families, "find_spec", lambda name: find_spec("no_such_library"))
    assert main(["models", "get", NAME]) == 2
    expected = "which is not installed: in a copy of the repository, pip install '.[families]'\n"
    assert capsys.readouterr().err == f"streamd: {NAME} is run by transcribe-cpp, {expected}"
    assert not serving.seen


@pytest.mark.parametrize(
    ("words", "asked"), [(("--translate",), "--translate"), (("-l", "de"), "--language de")]
)
def test_what_it_cannot_do_is_said_before_the_download(words, asked, serving, capsys):
    assert main(["-m", NAME, *words, "--port=off", "nothing.wav"]) == 2
    expected = f"{asked}: {NAME} only transcribes en; take a Whisper"
    assert capsys.readouterr().err == f"streamd: {expected}\n"


@pytest.mark.parametrize(
    ("given", "keeps_up", "chosen"),
    [
        ({}, True, NAME),
        ({}, False, "tiny.en"),
        ({"language": "de"}, True, None),
        ({"task": "translate"}, True, None),
        ({"realtime": "false"}, True, "tiny.en"),
    ],
)
def test_a_streaming_model_that_keeps_up_is_chosen_before_a_whisper_with_more_errors(
    given, keeps_up, chosen, serving, known, monkeypatch
):
    monkeypatch.setattr(finding, "FAMILY_MODELS", families.FAMILY_MODELS)
    monkeypatch.setattr(opening, "keeps_up", lambda config, dims: keeps_up)
    config = load(given, {})
    before = opening.best_model(config, places())
    assert main(["models", "get", NAME, "-q"]) == 0
    assert before == (chosen and "tiny.en"), "nothing that is not here"
    assert opening.best_model(config, places()) == chosen


def test_doctor_says_what_runs_such_models_and_has_one_read_a_clip(content, tmp_path):
    pytest.importorskip("transcribe_cpp")
    random = tmp_path / "random.gguf"
    random.write_bytes(content)
    trained = Path(__file__).parents[1] / "engines" / "families" / "moonshine.gguf"
    for path, state in ((random, "!!"), (trained, "ok")):
        library, clip = doctor._families(load({"model": str(path)}, {}))
        assert re.fullmatch(r"transcribe-cpp [0-9.]+ computes on .*CPU", library.text)
        assert clip.text.startswith(f"{path} on CPU loaded and read a clip in ")
        assert clip.state == state


def test_check_and_bench_open_such_a_model(content, tmp_path, capsys):
    pytest.importorskip("transcribe_cpp")
    path = tmp_path / "mine.gguf"
    path.write_bytes(content)
    assert main(["models", "check", str(path), "-q"]) == 4
    out, err = capsys.readouterr()
    assert re.search(r"^model +nemotron-speech-streaming-en-0.6b, parakeet, 0.2 MB$", out, re.M)
    assert "33 words of English clips are wrong in CPU" in err, "its weights are random"
    other = gguf_models.canary().write(tmp_path / "canary.gguf")  # which does not stream
    for each in (path, other):
        config = load({"model": str(each)}, {})
        opened = open_model_file(config, each)
        cost = measure(config, opened, within_s=0)
        opened.close()
        assert cost.encode_ms == 0
        assert cost.cpu_ms > 0


def test_a_model_that_lacks_the_language_leaves_no_process(monkeypatch):
    pytest.importorskip("transcribe_cpp")
    path, closed = Path(__file__).parents[1] / "engines/families/moonshine.gguf", []
    close = FamilyProcesses.close
    monkeypatch.setattr(FamilyProcesses, "close", lambda own: closed.append(close(own)))
    with pytest.raises(ConfigError, match="language de"):
        open_model_file(load({"model": str(path), "language": "de"}, {}), path)
    assert closed


def test_recordings_have_what_is_replaced_and_a_crash_costs_its_file(tmp_path, capsys, monkeypatch):
    pytest.importorskip("transcribe_cpp")
    tests, rules = Path(__file__).parents[1], tmp_path / "rules.txt"
    rules.write_text("living room => kitchen\n")
    model, clip = tests / "engines/families/moonshine.gguf", tests / "golden/lamp.flac"
    words = ["transcribe", "-m", str(model), "--replace", str(rules), str(clip)]
    assert main(words) == 0
    assert "turn on the kitchen lamp?" in capsys.readouterr().out
    run, crashes = FamilyProcesses.run, [OneSessionError("the process ended")]

    def crash_once(family, samples, options):
        if crashes:
            raise crashes.pop()
        return run(family, samples, options)

    monkeypatch.setattr(FamilyProcesses, "run", crash_once)
    assert main([*words, str(clip)]) == 1
    out, err = capsys.readouterr()
    assert "kitchen lamp?" in out, "the second file"
    assert "1 of 2 files failed, see above" in err


def test_options_that_only_whisper_has_are_named_by_what_sets_them():
    settings = ["commit.rule=align-att", "session.context_tokens=0", "search.least_evidence=-2"]
    config = load({"precision": "int8", "beam-size": "5", "step": "1000", "set": settings}, {})
    ignored = {"--precision", "--beam-size", *(each.partition("=")[0] for each in settings)}
    assert {*whisper_only(config, SimpleNamespace(takes_prompt=True))} == ignored


def test_a_gguf_is_not_imported_but_named(content, tmp_path, capsys):
    path = tmp_path / "mine.gguf"
    path.write_bytes(content)
    assert main(["models", "import", str(path)]) == 4
    assert f"a GGUF is used where it is: --model {path}" in capsys.readouterr().err


def test_the_catalog_is_sorted_by_its_published_errors():
    assert [each.wer for each in FAMILY_MODELS] == sorted(each.wer for each in FAMILY_MODELS)
    assert all(len(each.sha256) == 64 and each.file.endswith(".gguf") for each in FAMILY_MODELS)
