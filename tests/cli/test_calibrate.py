"""``streamd calibrate``: what it prints, and what it does to the configuration file."""

from pathlib import Path

import pytest

from streamd.bench.calibrate import Rung, write
from streamd.cli import main
from streamd.config import load
from streamd.errors import ConfigError
from tests.support import coreml_runs as runs
from tests.support import huggingface_folder

ROOT = Path(__file__).parents[2]
BEST = Rung(
    pad=64, floor=320, positions=320, words=9, differ=0, windows=9, guarded=0, window_ms=1.0
)
WHY = "found by streamd calibrate for tiny.en"


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """A model that is quickly calibrated; what it writes is nonsense."""
    return str(huggingface_folder.write(runs.model(), tmp_path_factory.mktemp("small")))


def test_a_file_that_is_not_there_yet(small, capsys, tmp_path):
    path = tmp_path / "streamd.toml"
    command = ["calibrate", str(ROOT / "tests/golden/cards.flac"), "-m", small, "-t", "1", "-q"]
    assert main([*command, "--config", str(path)]) == 0
    out, _ = capsys.readouterr()
    head, full, *rows, said, written = out.splitlines()
    assert head.split() == ["context", "pad", "floor", "differ", "guard", "window"]
    assert full.split()[:5] == ["1500", "1500", "1500", "0", "of"]
    assert full.endswith("full")
    assert len(rows) == 6
    assert written == f"written to {path}"
    search = load({}, {}, config_file=str(path)).search
    pad, floor = f"search.audio_ctx_pad {search.audio_ctx_pad}", search.audio_ctx_floor
    found = f"{pad} and search.audio_ctx_floor {floor}"
    assert said.startswith(f"{Path(small).name}: {found} are safe: ")


def test_without_a_file_it_is_only_told(small, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["calibrate", str(ROOT / "tests/golden/cards.flac"), "-m", small, "-t", "1", "-q"]
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("not written anywhere: --config FILE says where to\n")
    assert not list(tmp_path.iterdir())


def test_the_help_says_when_something_is_written(capsys):
    assert main(["calibrate", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "read options from a TOML file, and write what was found to it" in words


def test_a_fixed_context_cannot_be_calibrated(capsys):
    assert main(["calibrate", "x.wav", "-m", "tiny.en", "-ac", "512", "-q"]) == 2
    assert "--audio-ctx 512 fixes the encoder's context" in capsys.readouterr().err


def test_what_else_is_in_the_file_stays(tmp_path):
    path = tmp_path / "streamd.toml"
    path.write_text(
        '# mine\n[streaming]\nstep = 400  # quick\n\n[decoding]\nmodel = "tiny.en"\n'
        "\n[set.search]\naudio_ctx_floor = 512  # old\n\n[vad]\nvad = 'off'\n"
    )
    write(path, BEST, WHY)
    assert path.read_text() == (
        '# mine\n[streaming]\nstep = 400  # quick\n\n[decoding]\nmodel = "tiny.en"\n'
        f"\n[set.search]\naudio_ctx_floor = 320 # {WHY}\n"
        f"audio_ctx_pad = 64 # {WHY}\n\n[vad]\nvad = 'off'\n"
    )
    search = load({}, {}, config_file=str(path)).search
    assert (search.audio_ctx_pad, search.audio_ctx_floor) == (64, 320)


@pytest.mark.parametrize("before", ["", "# nothing yet\n", "[vad]\nvad = 'off'\n"])
def test_a_file_without_the_section_gets_it(tmp_path, before):
    path = tmp_path / "streamd.toml"
    path.write_text(before)
    write(path, BEST, WHY)
    assert path.read_text().startswith(before)
    assert load({}, {}, config_file=str(path)).search.audio_ctx_floor == 320


def test_a_file_that_cannot_be_written_or_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--config: cannot write .*nowhere"):
        write(tmp_path / "nowhere" / "streamd.toml", BEST, WHY)
    path = tmp_path / "torn.toml"
    path.write_text("[decoding\n")
    with pytest.raises(ConfigError, match=r"torn\.toml: not a TOML file"):
        write(path, BEST, WHY)
