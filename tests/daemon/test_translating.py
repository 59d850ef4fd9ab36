"""Files in other languages, and what is wrong with the languages that are asked for."""

import importlib.util
from pathlib import Path

import pytest

from streamd.config import load
from streamd.daemon import translating
from streamd.daemon.display import check_files, open_files, transcripts
from streamd.daemon.phrases import with_vocabulary
from streamd.errors import ConfigError, ModelError
from streamd.events import Eos
from streamd.streams.hub import Hub
from streamd.translation import store
from tests.support.translating import final, shouting


@pytest.fixture(autouse=True)
def translator(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translating, "shared", lambda: shouting("en-pt", "en-de")[0])


def written(config, file: str = "talk.mp3") -> dict[str, str]:
    """What is in the files after two finals that are one sentence."""
    events = [
        final("When it rains", seq=1),
        final("we stay.", seg=2, seq=2, start_ms=1_500),
        Eos(seq=2, reason="end"),
    ]
    for sink in open_files(config, file, segments=True):
        for event in events:
            sink.write(event)
        sink.close()
    return {path.name: path.read_text() for path in Path().iterdir()}


def test_a_file_is_translated_if_its_name_has_the_language():
    config = load({"output": ["talk.txt", "talk.pt.txt"], "translate-into": "pt,de"}, {})
    assert written(config) == {
        "talk.txt": "When it rains we stay.\n",
        "talk.pt.txt": "pt:WHEN IT RAINS WE STAY.\n",
    }


def test_it_is_a_name_like_others_if_nobody_wants_the_language():
    config = load({"output": ["talk.pt.txt"], "translate-into": "de"}, {})
    assert written(config) == {"talk.pt.txt": "When it rains we stay.\n"}


def test_transcribe_writes_each_file_in_each_language():
    given = {"output-format": "txt,srt", "translate-into": "pt,de", "realtime": "false"}
    config = load(given, {})
    names = [f"talk{label}.{form}" for label in ("", ".pt", ".de") for form in ("txt", "srt")]
    assert sorted(path.name for path in transcripts(config, "talk.mp3")) == sorted(names)
    files = written(config)
    assert files["talk.de.txt"] == "de:WHEN IT RAINS WE STAY.\n"
    assert "pt:WHEN IT RAINS WE STAY." in files["talk.pt.srt"]
    assert files["talk.txt"] == "When it rains we stay.\n"


def test_a_recording_whose_name_ends_like_a_language_is_no_translation():
    given = {"output-format": "txt", "translate-into": "pt", "realtime": "false"}
    assert written(load(given, {}), "talk.pt.mp3") == {
        "talk.pt.txt": "When it rains we stay.\n",
        "talk.pt.pt.txt": "pt:WHEN IT RAINS WE STAY.\n",
    }


def test_a_translation_that_would_overwrite_another_transcript_is_refused():
    given = {"output-format": "txt", "translate-into": "pt", "realtime": "false"}
    config = load({**given, "files": ["talk.mp3", "talk.pt.mp3"]}, {})
    with pytest.raises(ConfigError, match=r"both be written to talk\.pt\.txt"):
        check_files(config)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"model": "tiny.en", "translate-into": "fr"}, "translate:en-fr"),
        ({"model": "base", "language": "pt", "translate-into": "de"}, "translate:pt-en"),
        ({"model": "base", "task": "translate", "translate-into": "fr"}, "translate:en-fr"),
    ],
)
def test_a_model_that_is_missing_is_named_at_the_start(monkeypatch, given, needed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(translating, "find_spec", lambda name: name)
    with pytest.raises(ModelError, match=f"streamd models get {needed}"):
        translating.check(load(given, {}))


def test_where_any_language_may_be_spoken_a_model_from_any_will_do(monkeypatch):
    monkeypatch.setattr(translating, "find_spec", lambda name: name)
    monkeypatch.setattr(store, "directions", lambda here: [("en", "pt")])
    translating.check(load({"model": "base", "translate-into": "pt"}, {}))
    with pytest.raises(ModelError, match="streamd models get translate:es-en"):
        translating.check(load({"model": "base", "translate-into": "en"}, {}))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(translating, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[translate\]'"):
        translating.check(load({"model": "tiny.en", "translate-into": "pt"}, {}))
    translating.check(load({"model": "tiny.en"}, {}))


@pytest.mark.parametrize("value", ["klingon", "pt de", "pt,"])
def test_what_is_no_language_is_refused(value):
    with pytest.raises(ConfigError, match="--translate-into must be languages"):
        load({"translate-into": value}, {})


def test_languages_may_have_their_names():
    assert load({"translate-into": "German,Português"}, {}).output.languages == ("de", "pt")


def test_names_are_those_of_the_list_and_of_the_session(tmp_path):
    (tmp_path / "names.txt").write_text("Ana Botín\nJetStream:1.5\n")
    given = {"translate-into": "pt", "vocabulary": str(tmp_path / "names.txt")}
    config = with_vocabulary(load({**given, "hotwords": "Kubernetes"}, {}))
    assert translating.names_in(config) == ("Ana Botín", "JetStream", "Kubernetes")
    service = translating.translations(config)
    assert service is not None
    hub = Hub("talk")
    assert set(service._names(hub)) == {"Ana Botín", "JetStream"}
    assert translating.translations(load({}, {})) is None
