"""Captions begin with a small model and go on with the wanted one: no word is lost or changed."""

import json
import re
import shutil
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from streamd.config import load
from streamd.daemon import build, first_start
from streamd.daemon.first_start import EarlyModel, EarlyRecognizer, FirstStart, Respelled
from streamd.engines.supervised import worker
from streamd.engines.supervised.worker import Job, Worker
from streamd.errors import ConfigError, EngineMemoryError
from streamd.events import Final
from streamd.models.model import openai_vocabulary
from streamd.options import Choices
from streamd.system.disk import asset
from streamd.types import Encoded
from streamd.whisper.tokenizer import Tokenizer
from tests.support import recorded
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    ending,
    played,
    scripted_audio,
    scripted_session,
    speech_of,
    words_said,
)
from tests.support.promises import check_transcript, runs


class Alphabet:
    """Tokens of scripted words, which begin at a number of their own."""

    def __init__(self, first: int) -> None:
        self.first = first

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(int(n) + self.first for n in re.findall(r"w(\d+)", text))

    def decode(self, tokens) -> str:
        assert all(token >= self.first for token in tokens), "tokens of another model"
        return "".join(f" w{token - self.first}{ending(token - self.first)}" for token in tokens)


class Remembering(ScriptedRecognizer):
    """Reuses its own states only; counts its windows."""

    n = 0

    def recognize(self, window):
        assert window.encoded is None or window.encoded.states in (self, None)
        self.n += 1
        found = super().recognize(window)
        return replace(found, encoded=Encoded(window.start, window.end, self))


class Switching:
    """Goes on with the wanted model from a window on."""

    def __init__(self, at: int) -> None:
        self.models = Remembering(ending), Remembering(ending)
        own, theirs = Alphabet(0), Alphabet(10_000)
        first, self.then = (Respelled(each, own, theirs) for each in self.models)
        self.early, self.left = EarlyRecognizer(EarlyModel([first]), 0), at
        self.by: list[tuple[bool, bool]] = []

    def recognize(self, window):
        if self.left == 0:
            self.early.go_on_with(self.then)
        self.left -= 1
        before = self.models[0].n
        found = self.early.recognize(window)
        self.by.append((self.models[0].n > before, bool(window.prefix or window.draft)))
        return found


@given(runs, st.lists(st.integers(0, 400), min_size=1, max_size=5), st.integers(0, 30))
def test_whenever_it_moves_each_word_is_said_once_and_no_committed_one_changes(
    stretches, delays, at
):
    speech, recognizer = speech_of(stretches), Switching(at)
    events, _ = played(scripted_session(), recognizer, scripted_audio(speech), delays)
    texts = [event.text for event in events if isinstance(event, Final)]
    assert " ".join(texts).lower().split() == words_said(speech)
    check_transcript(events)
    small = [is_small for is_small, _ in recognizer.by]
    assert small == sorted(small, reverse=True), "it never goes back"
    assert all(goes_on for is_small, goes_on in recognizer.by[at:] if is_small)


@pytest.mark.parametrize("at", [15, 25, 35])
def test_an_utterance_longer_than_a_window_stays_with_the_model_that_began_it(at):
    speech, recognizer = speech_of([(120 * WORD, 160), (20 * WORD, 160)]), Switching(at)
    played(scripted_session(), recognizer, scripted_audio(speech), [0])
    n_small = sum(is_small for is_small, _ in recognizer.by)
    _, goes_on = recognizer.by[n_small]
    assert not goes_on, "moved amid an utterance"


@pytest.fixture(scope="module")
def tiny():
    """The bundled model: its configuration, and a recognizer."""
    config = load({"model": "tiny.en"}, {})
    model, engine = first_start.open_model(config)
    return config, model, lambda: build.recognizer(config, model, engine)


def heard(config, recognizer) -> list[str]:
    """The words of finals of three sentences, and that no committed one changed."""
    session, events = build.new_session(config), []
    for block in recorded.frames(recorded.three_sentences())[:, None]:
        events += session.feed(block)
        events += drain(session, recognizer, [])
    events += session.flush()
    events += drain(session, recognizer, [])
    check_transcript(events)
    return recorded.words(" ".join(event.text for event in events if isinstance(event, Final)))


@pytest.mark.parametrize("at", [3, 12, 10**6])
def test_real_speech_loses_no_word_to_a_model_of_another_vocabulary(tiny, at):
    """The wanted model is tiny.en, too, but is known by the tokens of OpenAI's large-v3."""
    config, model, new = tiny
    own = build.tokenizer(config, model)
    theirs = Tokenizer(openai_vocabulary("", 51_866), 51_866, multilingual=True, language="en")
    first, then = (Respelled(new(), own, theirs) for _ in range(2))
    recognizer = Switching(at)
    recognizer.early, recognizer.then = EarlyRecognizer(EarlyModel([first]), 0), then
    said = recorded.words(" ".join(recorded.SENTENCES))
    alone, moved = (recorded.n_misread(said, heard(config, each)) for each in (new(), recognizer))
    # The first window of another model reuses no states, so it is read a little otherwise: three
    # words of both on a processor without VNNI, none on another.
    assert moved <= alone + 3


# -- the program ---------------------------------------------------------------------------------


@pytest.fixture
def wanted(tmp_path, monkeypatch, tiny):
    """A copy of the bundled model that is not prepared yet; the bundled one may begin."""
    folder = tmp_path / "large"
    shutil.copytree(asset("tiny.en"), folder)
    monkeypatch.setattr(first_start, "smaller_model", lambda config: "tiny.en")
    # On a busy machine, a process that gives way to everything else may take minutes.
    monkeypatch.setattr(first_start, "Job", lambda make, name, background: Job(make, name))
    return load({"model": str(folder)}, {})


class Started:
    """A first start, when all is settled."""

    def __init__(self, config, monkeypatch, *, killed=False) -> None:
        self.models, self.is_settled = [], threading.Event()
        if killed:
            monkeypatch.setattr(Worker, "wait", lambda worker, _: worker.close() or worker.call(""))
        self.first = FirstStart(config, self.opened)
        self.recognizers, self.chooser = self.first.open()

    def opened(self, model) -> None:
        self.models.append(model.name)
        self.is_settled.set()

    def settle(self) -> None:
        assert self.is_settled.wait(120)
        for thread in threading.enumerate():
            if thread.name == "first-start":
                thread.join(60)


def test_captions_move_to_the_wanted_model_when_it_is_prepared(wanted, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(worker, "_REPORT_S", 0.05)
    started = Started(wanted, monkeypatch)
    assert "captions begin with tiny.en: large is prepared meanwhile, once" in caplog.messages
    assert started.first.state.startswith("tiny.en until large is ready")
    assert isinstance(started.recognizers[0], EarlyRecognizer)
    started.settle()
    assert started.models == ["large"]
    assert started.first.state == ""
    assert re.match(r"captions move to large after \d+ s, each session", caplog.messages[-1])
    assert any(each.startswith("large: 0 % prepared, for ") for each in caplog.messages)
    assert heard(wanted, started.recognizers[0])


def test_a_preparation_that_is_killed_leaves_the_small_model(wanted, monkeypatch, caplog):
    started = Started(wanted, monkeypatch, killed=True)
    started.settle()
    assert started.models == ["tiny.en"]
    assert started.first.state == "tiny.en: large cannot be prepared"
    assert caplog.messages[-1].endswith("; captions stay with tiny.en")
    assert heard(wanted, started.recognizers[0])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"look-ahead-ms": "80"}, "--look-ahead-ms: .* is a Whisper"),
        ({"compute": "ane"}, "drop"),
    ],
)
def test_options_that_the_wanted_model_cannot_have_are_refused_at_once(wanted, options, problem):
    config = load({"model": wanted.decoding.model, **options}, {})
    with pytest.raises(ConfigError, match=problem):
        FirstStart(config, lambda model: None).open()


def test_a_bug_while_the_wanted_model_is_opened_leaves_the_small_one(wanted, monkeypatch, caplog):
    monkeypatch.setattr(Worker, "wait", lambda worker, _: None)
    monkeypatch.setattr(first_start, "open_any", lambda *_: {}["bug"])
    started = Started(wanted, monkeypatch)
    started.settle()
    assert started.models == ["tiny.en"], "recordings would wait for a model for ever"
    assert caplog.messages[-1].endswith("; captions stay with tiny.en")


def test_a_model_without_memory_is_tried_again_and_again_but_not_for_files(monkeypatch, caplog):
    refusals, model = [EngineMemoryError("too little")] * 2, SimpleNamespace(recognizers=lambda: 1)

    def open_it(*_):
        if refusals:
            raise refusals.pop()
        return model

    monkeypatch.setattr(first_start, "open_any", open_it)
    monkeypatch.setattr(first_start, "_FIRST_PAUSE_S", 0.001)
    opened, live = [], load({"model": "tiny.en"}, {})
    assert FirstStart(live, opened.append).open() == 1
    assert opened == [model]
    assert caplog.messages == [f"too little; trying again in {s} s" for s in (0.001, 0.002)]
    refusals += [EngineMemoryError("too little")] * 9
    ended = FirstStart(live, opened.append)
    ended.close()
    files = replace(live, input=replace(live.input, files=("a.wav",)))
    of_a_file = FirstStart(files, opened.append)
    with pytest.raises(CancelledError):  # it ends no program that ends
        ended.open()
    with pytest.raises(EngineMemoryError):
        of_a_file.open()
    assert len(refusals) == 7


def test_until_then_other_languages_are_refused_with_the_reason(wanted, monkeypatch):
    monkeypatch.setattr(
        build, "chooser", lambda *_: lambda before, new: structs.replace(before, **new)
    )
    started = Started(wanted, monkeypatch)
    started.first.close()
    with pytest.raises(ConfigError, match=r"knows en only; now: tiny\.en until large is ready"):
        started.chooser(Choices(), {"language": "de"})
    assert started.chooser(Choices(), {"language": "en"}).language == "en"


def test_the_small_model_is_one_that_can_begin_at_once(tmp_path, monkeypatch):
    folder = tmp_path / "small"
    shutil.copytree(asset("tiny.en"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(
            config
            | {
                "d_model": 768,
                "encoder_ffn_dim": 3072,
                "decoder_ffn_dim": 3072,
                "encoder_attention_heads": 12,
                "decoder_attention_heads": 12,
            }
        )
    )

    def begins(**options) -> str | None:
        return first_start.smaller_model(load({"model": str(folder), **options}, {}))

    assert begins() == "tiny.en"
    assert begins(language="de") is None, "it knows only English"
    assert begins(model="tiny.en") is None
    monkeypatch.setattr(first_start, "is_prepared", lambda name, precision: name == str(folder))
    assert begins() is None, "it is ready itself"
