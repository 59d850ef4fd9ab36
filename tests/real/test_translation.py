"""Mozilla's models from English to Portuguese and back, as streamd uses them."""

import os
from functools import partial
from pathlib import Path

import pytest

from streamd.cli import main
from streamd.models.store.cache import StorePaths
from streamd.translation import store
from streamd.translation.translator import Translator

MODELS = Path(os.environ.get("STREAMD_TEST_MODELS", ""))
HERE = StorePaths(MODELS, MODELS, "", offline=True)
pytestmark = pytest.mark.skipif(
    not (MODELS / ".translate/en-pt").is_dir(), reason="needs translations: make test-real"
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def translator() -> Translator:
    pytest.importorskip("fxtranslate")
    return Translator(partial(store.open_model, HERE), store.directions(HERE))


def translated(translator: Translator, text: str, source: str, target: str, *names: str) -> str:
    return translator.translate(text, source=source, target=target, names=names).result()


def test_both_directions(translator):
    said = "Ask not what your country can do for you, ask what you can do for your country."
    into = translated(translator, said, "en", "pt")
    assert into == (
        "Pergunte não o que seu país pode fazer por você, pergunte o que você pode fazer pelo seu "
        "país."
    )
    assert "what you can do for your country" in translated(translator, into, "pt", "en")


@pytest.mark.parametrize("name", ["Open Door", "Cape Town"])
def test_names_that_the_model_translates_are_kept_if_they_are_in_the_vocabulary(translator, name):
    said = f"The people of {name} voted on Sunday."
    assert name not in translated(translator, said, "en", "pt")
    kept = translated(translator, said, "en", "pt", name)
    assert name in kept
    assert "domingo" in kept


def test_digits_stay(translator):
    said = "On 12 May 1998, 1,234 people paid $45.50 at 10:45 in room 7B."
    into = translated(translator, said, "en", "pt")
    for number in ("12", "1998", "1.234", "45.50", "10:45", "7B"):
        assert number in into


def test_a_long_sentence_loses_nothing_at_its_end(translator):
    clause = "we went to the market and bought some apples and then we came home to eat them,"
    into = translated(translator, " ".join([clause] * 9) + " and slept.", "en", "pt")
    assert into.lower().count("mercado") == 9
    assert "dorm" in into


def test_a_file_is_written_in_both_languages(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMD_STORE", str(MODELS))
    pytest.importorskip("fxtranslate")
    out = tmp_path / "lamp.srt"
    command = ["transcribe", str(ROOT / "tests/golden/lamp.flac"), "-m", "tiny.en", "-o", str(out)]
    assert main([*command, "--translate-into", "pt", "--quiet"]) == 0
    assert "living room lamp" in " ".join(out.read_text().split())
    assert "lâmpada" in (tmp_path / "lamp.pt.srt").read_text()


def test_a_language_without_a_model_is_named_before_anything_is_read(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("STREAMD_STORE", str(MODELS))
    command = ["transcribe", "tests/golden/lamp.flac", "-m", "tiny.en"]
    assert main([*command, "--translate-into", "de"]) == 4
    assert "streamd models get translate:en-de" in capfd.readouterr().err
