"""What runs on GitHub agrees with the Makefile, `.ci/run` and pyproject.toml."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import streamd

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
FORMS = sorted({*GITHUB.glob("ISSUE_TEMPLATE/*.yml")} - {GITHUB / "ISSUE_TEMPLATE/config.yml"})
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in GITHUB.glob("workflows/*")}
LINUX = WORKFLOWS["linux.yml"]["jobs"]["make"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCHEMAS = {
    "github-workflows": sorted((GITHUB / "workflows").iterdir()),
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
}


def combinations(job: dict) -> list[dict]:
    """The matrix of a job, written out."""
    matrix = job["strategy"]["matrix"]
    pairs = itertools.product(matrix["target"], matrix.get("python", [""]))
    listed = [{"target": target, "python": python} for target, python in pairs]
    return listed + matrix.get("include", [])


def made(job: dict) -> set[str]:
    """The targets that a job's steps make."""
    script = "\n".join(step.get("run", "") for step in job.get("steps", []))
    targets = set(re.findall(r"^make ([a-z-]+)", script, re.M))
    if "make ${{ matrix.target }}" in script:
        targets |= {each["target"] for each in combinations(job)}
    return targets


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_files_follow_githubs_schemas(schema):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *SCHEMAS[schema]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_target_that_is_called_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    called = [made(job) for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    assert set().union(*called) >= {"check", "system-packages", "test-all", "test-mac", "dist"}
    assert set().union(*called) <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == ["make lint"]


def test_linux_runs_what_a_fresh_clone_runs():
    script = re.sub(r"#.*", "", (ROOT / ".ci" / "run").read_text())
    assert made(LINUX) == set(re.findall(r"\bmake ([a-z-]+)", script))
    settings = dict(re.findall(r"\b(STREAMD_\w+)=(\S+)", script))
    assert settings
    assert settings.items() <= {name: str(value) for name, value in LINUX["env"].items()}.items()


def test_the_oldest_python_that_we_promise_is_checked():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    checked = [each["python"] for each in combinations(LINUX) if each["target"] == "check"]
    assert min(checked, key=lambda version: int(version.partition(".")[2])) == oldest
    assert len(checked) == 2
    assert {each["python"] for each in combinations(LINUX)} == set(checked)


def test_workflows_may_do_little_and_keep_no_secret():
    more = {}
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}
        assert "secrets" not in (GITHUB / "workflows" / name).read_text()
        jobs = workflow["jobs"].items()
        more |= {job: steps["permissions"] for job, steps in jobs if "permissions" in steps}
    assert more == {"draft": {"contents": "write"}, "publish": {"id-token": "write"}}


def test_actions_are_named_by_commit_and_nowhere_by_two():
    text = "".join(path.read_text() for path in sorted((GITHUB / "workflows").iterdir()))
    used = set(re.findall(r"uses: (?!\./)(.+)", text))
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action) for action in used), used
    assert len({action.partition("@")[0] for action in used}) == len(used)


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        (f"v{streamd.__version__}", ""),
        ("v0.0.0", "::error::the tag v0.0.0 is not the version in pyproject.toml: change one"),
    ],
)
def test_only_the_tag_of_this_version_is_released(tag, said):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    steps = WORKFLOWS["release.yml"]["jobs"]["build"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name", "").startswith("Compare")]
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=ROOT,
        env=os.environ | {"GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(said)
    assert done.returncode == bool(said)


def test_what_is_published_was_checked_and_compared():
    jobs = WORKFLOWS["release.yml"]["jobs"]
    assert jobs["linux"]["uses"] == "./.github/workflows/linux.yml"
    assert jobs["draft"]["needs"] == ["linux", "build"]
    assert jobs["publish"]["needs"] == "draft"
    assert jobs["publish"]["environment"]["url"].rstrip("/").endswith(f"/{PROJECT['name']}")


def test_dependabot_looks_where_something_is():
    updates = yaml.safe_load((GITHUB / "dependabot.yml").read_text())["updates"]
    folders = {each["package-ecosystem"]: ROOT / each["directory"].strip("/") for each in updates}
    assert (folders["pip"] / "pyproject.toml").exists()
    assert (folders["docker"] / "Dockerfile").exists()
    assert "image:" in (folders["docker-compose"] / "compose.yaml").read_text()


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_links_of_the_forms_lead_to_files(form):
    links = re.findall(r"\]\(([^)#]+)", form.read_text())
    assert links
    there = [link.removeprefix("../blob/HEAD/") for link in links]
    assert [link for link in there if not (ROOT / link).exists()] == []
