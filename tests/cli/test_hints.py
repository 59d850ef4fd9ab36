"""What people try who do not know streamd's words, and what a shell completes."""

import json
import shutil
import subprocess

import pytest

from docs.make import man_page
from streamd.cli import main
from streamd.cli.commands import COMMANDS
from streamd.config import OPTIONS, SETTINGS
from tests.test_contracts import ROOT


def said(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--gpu", "--compute gpu"),
        ("--cuda talk.wav", "--compute gpu"),
        ("--cpu", "--compute cpu"),
        ("--json", "--jsonl"),
        ("--srt", "-o FILE"),
        ("--outfile talk.srt", "-o FILE"),
        ("--input talk.wav", "the name of the file alone"),
        ("--list-devices", "streamd devices"),
        ("--list-models", "streamd models list"),
        ("--mic USB", "--device NAME"),
        ("--live", "streamd alone"),
        ("--fast-mode", "--fast"),
        ("--lang de", "did you mean --language?"),
        ("--keywords Ada", "--hotwords"),
        ("--diarize", "--speakers"),
        ("--speaker-labels", "--speakers"),
        ("--stereo", "--channels split"),
        ("--multichannel", "--channels split"),
        ("-di", "--channels split"),
        ("--silence-ms 300", "--endpoint-ms"),
        ("--public", "--share"),
        ("--password x", "--token-file"),
        ("transcribe --resume a.wav", "--skip-existing"),
        ("--debug", "-v"),
        ("--show-config", "--print-config"),
        ("download base", "streamd models get NAME"),
        ("pull", "streamd models get NAME"),
        ("install", "streamd models get NAME"),
        ("listen", "streamd alone"),
        ("start", "streamd alone"),
        ("mic", "--device NAME"),
        ("ui", "whose page is at the address"),
        ("api", "streamd serve"),
        ("update", "git pull"),
        ("--min-speakers", "--num-speakers N"),
        ("uninstall", "pip uninstall"),
        ("status", "streamd doctor"),
        ("benchmark", "streamd bench"),
        ("convert", "streamd transcribe FILE"),
        ("models download base", "did you mean get?"),
        ("models rm base", "did you mean remove?"),
        ("models ls", "did you mean list?"),
        ("models verify base", "did you mean check?"),
    ],
)
def test_what_people_bring_leads_to_what_there_is(capsys, words, names):
    assert names in said(capsys, *words.split())


@pytest.mark.parametrize("word", ["--xyzzy", "--blorb=3"])
def test_nothing_is_suggested_that_is_far_from_what_was_meant(capsys, word):
    assert "did you mean" not in said(capsys, word)


def test_set_help_lists_the_settings(capsys):
    for word in ("help", "list"):
        assert main(["--set", word]) == 0
        out, _ = capsys.readouterr()
        assert all(f"  {name}=" in out for name in SETTINGS)


def test_a_mistake_in_the_file_is_told_with_its_section_and_cure(capsys, tmp_path):
    file = tmp_path / "streamd.toml"
    file.write_text('modle = "base"\n')
    assert "did you mean model, in [decoding]?" in said(capsys, "--config", str(file))
    file.write_text("[decoding]\nmodel = base  # the best\n")
    assert 'a text needs quotes: model = "base"' in said(capsys, "--config", str(file))
    file.write_text('[decoding]\nmodel = "base\n')
    assert "quotes" not in said(capsys, "--config", str(file)).partition("not a TOML file")[0]


def test_programs_get_json(capsys):
    assert main(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in models if model["default"]] == ["tiny.en"]
    assert main(["models"]) == 0
    assert "* tiny.en" in capsys.readouterr().out
    main(["doctor", "--json"])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"state", "text", "fix", "name"} == {*findings[0]}
    assert {finding["name"] for finding in findings} >= {"processor", "port"}


def completed(script: str, *words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_streamd"
    bash = ["bash", "-c", f'{script}\n{ask}; echo "${{COMPREPLY[@]}}"']
    return subprocess.run(bash, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_options_and_values(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "streamd", "mod") == ["models"]
    assert completed(script, "streamd", "models", "l") == ["list"]
    assert completed(script, "streamd", "models", "check", "--prec") == ["--precision"]
    assert completed(script, "streamd", "transcribe", "--skip") == ["--skip-existing"]
    assert completed(script, "streamd", "--compute", "g") == ["gpu"]
    assert completed(script, "streamd", "--skip") == []  # it is not an option of live captions


def test_bash_completes_files_folders_and_models(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.flac").touch()
    (tmp_path / "talks").mkdir()
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert {*completed(script, "streamd", "transcribe", "ta")} == {"talk.flac", "talks"}
    assert completed(script, "streamd", "--output-dir", "ta") == ["talks"]
    assert completed(script, "streamd", "-m", "base") == ["base.en", "base"]
    assert {*completed(script, "streamd", "-m", "tal")} == {"talk.flac", "talks"}
    assert completed(script, "streamd", "models", "get", "base") == ["base.en", "base"]
    assert "complete -o bashdefault -o default" in script  # files, where no command is meant


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_other_shells_can_read_their_script(capsys, tmp_path, shell, check):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command.name.split()[-1] in script for command in COMMANDS[1:])
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, *check, tmp_path / "script"], check=True)


def test_another_shell_is_refused(capsys):
    assert "must be bash, zsh or fish" in said(capsys, "completion", "tcsh")


def test_the_manual_page_has_every_command_and_option_and_is_current():
    page = (ROOT / "docs/streamd.1").read_text()
    assert page == man_page(), "run: make docs"
    for option in OPTIONS.values():
        assert all(flag.replace("-", "\\-") in page for flag in option.shown_flags[-1:])
