"""What the repository promises about itself: its sizes, its paper and its package."""

import ast
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import soundfile
from safetensors import safe_open

import streamd
from docs.make import terminal_picture
from docs.page.screenshots import MADE_FROM, shown
from leave_one_out import constants
from streamd.cli import main
from streamd.cli.commands import COMMANDS
from streamd.types import Hypothesis, Window

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "streamd").rglob("*.py"))
MODEL = ROOT / "models" / "tiny.en"
SPEECH = ROOT / "tests" / "speech"
PAGES = (ROOT / "docs").glob("*.md")
IN_WHEEL = {
    *("LICENSE", "README.md", "config.json", "generation_config.json"),
    *("model.safetensors", "silence.safetensors"),
}


def tracked(*patterns: str) -> list[Path]:
    """Files that belong to the repository; without git there is nothing to ask."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs git and a clone of the repository")
    command = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).exists()]


def pyproject() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def file_tree() -> list[tuple[str, str]]:
    """(path, description) of each line of the file tree in CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"^## Project layout\n+```\n(.*?)^```", page, re.M | re.S)
    assert block, "CONTRIBUTING.md has no file tree under '## Project layout'"
    entries = []
    folder = ""
    for line in block[1].splitlines():
        name, _, description = line.strip().partition("  ")
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
            entries.append((name, description.strip()))
        else:
            entries.append((folder + name, description.strip()))
    return entries


# -- the source ------------------------------------------------------------------------------


def test_nothing_points_at_one_machine() -> None:
    homes = r"(?<![\w.])/(?:work|root|home|Users)/\w"
    registries = r"pythonhosted\.org|registry\.npmjs|deb\.debian\.org"
    pattern = re.compile(f"{homes}|{registries}")
    guilty = []
    for path in tracked():
        data = path.read_bytes()
        if path == Path(__file__).resolve() or b"\0" in data:
            continue
        for number, line in enumerate(data.decode().splitlines(), 1):
            if pattern.search(line):
                guilty.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not guilty


def test_no_script_stands_in_for_a_module_of_python() -> None:
    # their folder comes first on the path: torch found benchmarks/profile.py for Python's own
    scripts = [path for path in tracked("*.py") if ROOT / "streamd" not in path.parents]
    assert [path for path in scripts if path.stem in sys.stdlib_module_names] == []


def test_no_test_sleeps() -> None:
    """Tests wait for events (`tests.support.loop` for a turn of the loop), not for time to pass."""
    sleep = re.compile(r"\bsleep\(")
    tests = [path for path in tracked("tests") if path.suffix == ".py"]
    guilty = [path for path in tests if path != Path(__file__) and sleep.search(path.read_text())]
    assert guilty == []


def test_packages_only_export() -> None:
    found = [
        f"{path.parent.name}: {each.name}"
        for path in MODULES
        if path.name == "__init__.py"
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    # What the console script calls, and the names that are imported when they are first used.
    assert found == ["streamd: __getattr__", "streamd: __dir__", "cli: main"]


def test_no_class_name_stands_for_two_things() -> None:
    # a search, a traceback or a log line names a class without its path
    classes = [
        node.name.lstrip("_")
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


@pytest.mark.parametrize("message", [Window, Hypothesis])
def test_what_a_feature_needs_does_not_tunnel_through_all(message):
    """It is a question of the window, and whoever knows adds the answer to the hypothesis."""
    assert len(dataclasses.fields(message)) <= 12


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


def test_at_most_90_constants_decide_what_captions_say() -> None:
    # one more needs a measurement or a failure that names it, and one that goes
    assert 60 < len([*constants()]) <= 90


# -- the paper -------------------------------------------------------------------------------


def test_the_file_tree_names_what_is_there() -> None:
    entries = file_tree()
    missing = [name for name, _ in entries if not (ROOT / name).exists()]
    assert not missing
    assert all(description for _, description in entries)


def test_the_file_tree_leaves_nothing_out() -> None:
    named = {name.rstrip("/") for name, _ in file_tree()}
    there = {path.relative_to(ROOT).parts[:1] for path in tracked()}
    there |= {path.relative_to(ROOT).parts[:2] for path in tracked("streamd", "models")}
    small_print = {".gitignore", ".pre-commit-config.yaml"}
    small_print |= {"streamd/__init__.py", "streamd/__main__.py", "streamd/py.typed"}
    assert {"/".join(parts) for parts in there} - named <= small_print


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_on_paper_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    on_paper = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.M))
    assert on_paper
    assert on_paper <= targets


def test_the_picture_of_the_readme_is_what_the_program_draws() -> None:
    assert (ROOT / "docs/captions.svg").read_text() == terminal_picture(), "run: make docs"
    assert 'class="tentative"' in terminal_picture()


def _examples(text: str) -> list[list[str]]:
    """The arguments of each streamd command in the code blocks without a language."""
    lines = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S)).splitlines()
    commands = [line for line in lines if re.match(r"(?:streamd|arecord|parec)\s", line + " ")]
    words = [shlex.split(line, comments=True) for line in commands]
    return [line[line.index("streamd") + 1 :] for line in words if "streamd" in line]


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in PAGES)])
def test_every_example_is_understood(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = _examples((ROOT / page).read_text())
    understood = [words for words in examples if main([*words, "--print-config"]) == 0]
    assert understood == examples, capsys.readouterr().err
    named = {words[0] for words in examples if words and re.fullmatch("[a-z]+", words[0])}
    assert named <= {command.name for command in COMMANDS}  # else it would be read as a file


def test_the_pictures_of_the_page_are_of_the_page_as_it_is() -> None:
    assert MADE_FROM.read_text() == shown(), "run: python docs/page/screenshots.py, and look"


def test_the_design_page_names_files_and_layers_that_exist() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", page))
    assert len(named) >= 20
    assert sorted(name for name in named if not _exists(name)) == []
    drawn = page.partition("## Layers\n```\n")[2].partition("```")[0].splitlines()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert drawn in [contract.get("layers") for contract in contracts["contracts"]]


def _exists(name: str) -> bool:
    return (ROOT / "streamd" / name).exists() or (ROOT / name).exists()


def _literals(path: Path) -> list[str]:
    """The text in a module's strings, without its docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    return [str(node.value) for node in constants if id(node) not in docstrings]


def test_the_messages_of_the_troubleshooting_page_are_streamds() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    section = page.partition("## Messages")[2].partition("## ")[0]
    messages = re.findall(r"^- (`.+?`): ", section, re.M)
    quoted = [text for message in messages for text in re.findall("`(.+?)`", message)]
    parts = [part.strip() for text in quoted for part in text.split("...") if part.strip()]
    assert len(parts) >= 10
    literals = "\n".join(literal for path in MODULES for literal in _literals(path))
    unknown = [part for part in parts if part not in literals]
    assert not unknown, "docs/troubleshooting.md quotes what streamd does not say"


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{heading}"
        for page in tracked("*.md")
        for target, heading in link.findall(page.read_text())
        if not _leads_somewhere(page.parent / target if target else page, heading)
    ]
    assert not broken


def test_results_that_comments_refer_to_are_there() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "benchmarks" / "RESULTS.md").read_text(), re.M)
    quoted = re.compile(r'RESULTS\.md(?:``)?,\s+"([^"]+)"')
    meant = {
        (path.name, " ".join(name.replace("#", " ").split()))
        for path in [*MODULES, *(ROOT / "benchmarks").glob("*.py")]
        for name in quoted.findall(path.read_text())
    }
    assert len(meant) >= 8
    assert [each for each in meant if each[1] not in headings] == []


def _leads_somewhere(path: Path, heading: str) -> bool:
    if not heading or not path.exists():
        return path.exists()
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return heading in [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings]


# -- the model and the recording -------------------------------------------------------------


def test_the_card_of_the_bundled_model_says_what_it_was_made_from_and_into() -> None:
    card, script = (MODEL / "README.md").read_text(), (MODEL / "make.py").read_text()
    made = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()
    with safe_open(MODEL / "model.safetensors", "np") as file:
        source = file.metadata()["made_from_sha256"]
    assert all(digest in text for digest in (made, source) for text in (card, script))
    assert "Copyright (c) 2022 OpenAI" in (MODEL / "LICENSE").read_text()


def test_the_bundled_model_is_small() -> None:
    assert sum(path.stat().st_size for path in tracked("models/tiny.en")) <= 40_000_000


@pytest.mark.parametrize("name", ["recording", "demo"])
def test_the_recordings_are_what_their_descriptions_say(name: str) -> None:
    about = json.loads((SPEECH / f"{name}.json").read_text())
    sound = soundfile.info(SPEECH / f"{name}.flac")
    assert (sound.samplerate, sound.channels) == (16_000, 1)
    assert about["duration_ms"] == sound.frames * 1000 // sound.samplerate
    edges = [time for clip in about["clips"] for time in (clip["start_ms"], clip["end_ms"])]
    assert edges == sorted(edges)
    assert edges[0] > 0
    assert edges[-1] < about["duration_ms"]
    card = (SPEECH / "README.md").read_text()
    assert all(clip["licence"] and clip["clip"].split("_1")[0] in card for clip in about["clips"])


# -- the package -----------------------------------------------------------------------------


def test_there_is_one_version() -> None:
    assert pyproject()["project"]["version"] == streamd.__version__


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_the_bundled_model_and_nothing_else_of_models(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name for name in names if not name.startswith("streamd/")} == set()
    assert {name for name in names if name.startswith("streamd/_tiny.en/")} == {
        f"streamd/_tiny.en/{name}" for name in IN_WHEEL
    }
    for name in IN_WHEEL:
        shipped = hashlib.sha256(wheel.read(f"streamd/_tiny.en/{name}")).hexdigest()
        assert shipped == hashlib.sha256((MODEL / name).read_bytes()).hexdigest(), name


def test_the_wheel_has_the_clips_of_the_check_with_their_licences(wheel: zipfile.ZipFile) -> None:
    golden = {name for name in wheel.namelist() if name.startswith("streamd/_golden/")}
    texts = json.loads(wheel.read("streamd/_golden/clips.json"))
    card = wheel.read("streamd/_golden/README.md").decode()
    assert {f"streamd/_golden/{name}.flac" for name in texts} < golden
    assert all(f"| `{name}.flac` | " in card for name in texts)
    assert "streamd/_golden/read.json" in golden


def test_the_wheel_has_the_voice_detector_with_its_licence(wheel: zipfile.ZipFile) -> None:
    assert "Silero Team" in wheel.read("streamd/engines/silero/LICENSE").decode()
    shipped = hashlib.sha256(wheel.read("streamd/engines/silero/silero_vad_16k.onnx")).hexdigest()
    assert shipped == "baed8430f2fc923de43fa3ce780e26ca378867ec4c7807ffa85ba45cef5bc077"


def test_the_wheel_has_the_model_of_turns_with_its_licence(wheel: zipfile.ZipFile) -> None:
    assert "Daily" in wheel.read("streamd/_smart-turn/LICENSE").decode()
    shipped = hashlib.sha256(wheel.read("streamd/_smart-turn/smart-turn-v3.2.onnx")).hexdigest()
    assert f"SHA-256 `{shipped}`" in wheel.read("streamd/_smart-turn/README.md").decode()


def test_the_wheel_has_the_models_of_speakers_as_the_script_made_them(
    wheel: zipfile.ZipFile,
) -> None:
    folder = ROOT / "models" / "community-1"
    card, script = (folder / "README.md").read_text(), (folder / "make.py").read_text()
    for name in ("segmentation.onnx", "embedding.onnx", "pooled.onnx"):
        made = hashlib.sha256(wheel.read(f"streamd/_community-1/{name}")).hexdigest()
        assert made in card, name
        assert made in script, name
    assert "pyannoteAI" in wheel.read("streamd/_community-1/LICENSE").decode()
    assert sum(path.stat().st_size for path in tracked("models/community-1")) <= 9_000_000


def test_the_wheel_alone_loads_the_bundled_model(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    load = "import streamd; from streamd.models.store import load_model; load_model('tiny.en')"
    command = [sys.executable, "-P", "-c", f"{load}; print(streamd.__file__)"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == tmp_path / "streamd" / "__init__.py"


def test_the_wheel_has_every_module(wheel: zipfile.ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for path in MODULES}
    assert modules <= set(wheel.namelist())
    assert "streamd/py.typed" in wheel.namelist()


# -- the commands ----------------------------------------------------------------------------

PYTHONS = {
    "old": (
        "Python 3.9.2 is too old",
        'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac',
    ),
    "without venv": ("has no venv module", 'case "$2" in *version_info*) ;; *) exit 1;; esac'),
    "missing": ("not found", None),
}


@pytest.mark.parametrize("kind", PYTHONS)
def test_make_says_in_one_line_what_is_wrong_with_python(kind: str, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    complaint, script = PYTHONS[kind]
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    settings = [f"VENV={tmp_path / 'venv'}", f"PYTHON={python}", "UV="]
    done = subprocess.run(
        ["make", "--silent", str(tmp_path / "venv" / ".installed"), *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(said) == 1
    assert complaint in said[0]
    assert not (tmp_path / "venv").exists()


def test_on_a_mac_make_chooses_a_python_that_core_ml_supports(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")

    def said(*settings: str) -> str:
        target, found = str(tmp_path / "venv" / ".installed"), f"{tmp_path}:{os.environ['PATH']}"
        command = ["make", "--silent", target, f"VENV={tmp_path / 'venv'}", "MAC=Darwin", *settings]
        environment = os.environ | {"PATH": found}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    python = tmp_path / "python3.13"
    python.write_text("#!/bin/sh\ncase $2 in venv) exit 1;; *) echo Python 3.14.0;; esac\n")
    python.chmod(0o755)
    assert f"{python} -m venv" in said("UV=", "--dry-run"), "it comes before python3"
    assert "--python '>=3.11,<3.14'" in said("UV=uv", "--dry-run")
    why = "Python 3.14.0 has no coremltools, so models run on the CPU; install Python 3.13"
    assert why in said("UV=", f"PYTHON={python}")
