"""Models of other families on the real library: what they say, and what streams do.

`moonshine.gguf` was trained to say four clips; another has random weights.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from streamd import Captioner
from streamd.config import load
from streamd.daemon import build
from streamd.engines.families import FamilyRecognizer
from streamd.engines.families.library import Family, _said
from streamd.engines.families.processes import FamilyProcesses
from streamd.errors import ConfigError, ModelError
from streamd.events import Final, Partial
from streamd.models.store import load_model
from streamd.types import FRAME, SAMPLE_RATE, TextOptions
from tests.support import ggml_file, gguf_models, recorded
from tests.support.promises import check_transcript

transcribe_cpp = pytest.importorskip("transcribe_cpp", reason="needs the extra families")

MOONSHINE = Path(__file__).with_name("moonshine.gguf")
CLIPS = {
    "lamp": "Would you please turn on the living room lamp?",
    "cards": "Eight of spades, four of clubs, seven of hearts.",
    "arctic_a0245": "Out of his 1800, he laid aside 1600 each year.",
    "sense_0880": "He was not an ill disposed young man.",
}
GPU = {"kind": "vulkan", "device_type": "gpu"}
OPTIONS = TextOptions(languages=("en",))


def sound(name: str) -> np.ndarray:
    path = recorded.ROOT / f"tests/golden/{name}.flac"
    return soundfile.read(path, dtype="float32")[0] if path.exists() else recorded.samples(name)


def captions(recognizer, samples: np.ndarray) -> list[Partial | Final]:
    """The captions of a sound, 0.1 s at a time, and of a second of silence behind it."""
    session, events = build.new_session(load({"model": "tiny.en"}, {})), []
    samples = np.pad(samples, (0, SAMPLE_RATE + -len(samples) % FRAME))
    for block in np.array_split(samples.reshape(-1, FRAME), len(samples) // FRAME // 5):
        events += session.feed(block)
        while window := session.next_window():
            events += session.accept(window, recognizer.recognize(window))
    events += session.flush()
    while window := session.next_window():
        events += session.accept(window, recognizer.recognize(window))
    return [event for event in events if isinstance(event, Partial | Final)]


@pytest.fixture(scope="module")
def moonshine() -> Iterator[FamilyProcesses]:
    with closing(FamilyProcesses(MOONSHINE, threads=1)) as family:
        yield family


@pytest.mark.parametrize("clip", CLIPS)
def test_a_streaming_model_captions_real_speech_live_to_its_exact_text(moonshine, clip):
    events = captions(FamilyRecognizer(moonshine), sound(clip))
    check_transcript(events)
    assert " ".join(event.text for event in events if isinstance(event, Final)) == CLIPS[clip]
    partials = [event for event in events if isinstance(event, Partial)]
    assert any(0 < event.stable < len(event.text) for event in partials)
    words = [word for event in events for word in event.words]
    assert all(word.prob is None and word.shares_time for word in words), "it tells neither"
    assert len(moonshine.workers) <= 2, "the streams before were given back"


def test_two_sessions_at_once_and_a_recording_through_the_library_for_python():
    samples = np.pad(sound("cards"), (0, SAMPLE_RATE))
    with Captioner(str(MOONSHINE), speakers=True) as captioner:
        sessions = [captioner.listen(samples) for _ in range(2)]
        texts = [" ".join(each.text for each in said if each.is_final) for said in sessions]
        assert texts == [CLIPS["cards"]] * 2
        transcript = captioner.transcribe(samples)
        assert transcript.text == CLIPS["cards"]
        words = [word for segment in transcript.segments for word in segment.words]
        assert {word.speaker for word in words} == {1}
        assert all(0 <= word.start < word.end <= 4 for word in words)
        with pytest.raises(ConfigError, match="knows en only"):
            captioner.listen(samples, language="de")


def test_a_stream_of_any_look_ahead_says_what_it_has_heard_with_times(tmp_path):
    path = gguf_models.nemotron().write(tmp_path / "nemotron.gguf")
    samples = sound("lamp")
    for look_ahead_ms in (0, 80, 480, 1040):
        family = Family(path, threads=1, look_ahead_ms=look_ahead_ms)
        assert family.abilities.look_ahead_ms == look_ahead_ms
        stream = family.begin(OPTIONS)
        for begin in range(0, len(samples), 8000):
            stream.feed(samples[begin : begin + 8000])
        assert 160 <= stream.settle() <= 1200 + 160
        words = stream.said().words
        assert words[-1].end_ms > 3000
        assert all(0 < word.prob < 1 for word in words)
    with pytest.raises(ConfigError, match="it may be 0, 80, 480, 1040"):
        Family(path, threads=1, look_ahead_ms=100)


@pytest.mark.parametrize("streams", [True, False])
def test_parakeets_of_random_weights_say_something_with_times_and_probabilities(tmp_path, streams):
    path = gguf_models.parakeet(streams=streams).write(tmp_path / "parakeet.gguf")
    family = Family(path, threads=1)
    assert family.abilities.streams == streams
    check_transcript(captions(FamilyRecognizer(family), sound("lamp")))
    if streams:
        stream = family.begin(OPTIONS)
        stream.feed(sound("lamp"))
        words = stream.said().words
    else:
        words = family.run(sound("lamp"), OPTIONS).words
    assert words
    assert all(0 < word.prob <= 1 and not word.shares_time for word in words)


@pytest.mark.parametrize("clip", CLIPS)
def test_a_stream_says_in_a_pause_what_it_would_say_at_its_end(clip):
    """It is not finalized there, because speech may follow."""
    family, said = Family(MOONSHINE, threads=1), []
    for is_over in (False, True):
        stream = family.begin(OPTIONS)
        stream.feed(sound(clip))
        stream._stream.finalize() if is_over else stream.settle()
        said.append([word.text for word in stream.said().words])
        stream.close()
    assert said[0] == said[1]


def test_a_model_without_a_look_ahead_or_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no choice of look-ahead"):
        Family(MOONSHINE, threads=1, look_ahead_ms=80)
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(MOONSHINE.read_bytes()[:9000])
    with pytest.raises(ModelError, match=r"torn.gguf: transcribe.cpp cannot read it"):
        Family(torn, threads=1)


def test_a_model_that_finds_no_end_writes_no_more_than_anybody_could_say(tmp_path):
    """The library's own limit is 512 tokens, for half a second, too; a window takes minutes."""
    family = Family(gguf_models.canary().write(tmp_path / "canary.gguf"), threads=1)
    spoken = np.tile(sound("lamp"), 15)[: 30 * SAMPLE_RATE]
    n_words = [len(family.run(spoken[: s * SAMPLE_RATE], OPTIONS).words) for s in (1, 6, 30)]
    assert 10 < n_words[0] < 60 < n_words[1] < 160 < n_words[2] <= 512
    events = captions(FamilyRecognizer(family), sound("lamp"))
    check_transcript(events)
    assert any(isinstance(event, Final) for event in events)


def test_a_gpu_that_the_library_finds_but_cannot_use_is_said_in_one_line(monkeypatch):
    def refuse(*_, **__):
        raise transcribe_cpp.BackendError("backend error")

    monkeypatch.setattr(transcribe_cpp, "backends", lambda: [SimpleNamespace(**GPU)])
    monkeypatch.setattr(transcribe_cpp, "Model", refuse)
    with pytest.raises(ConfigError, match="cannot use vulkan here: take --compute cpu"):
        Family(MOONSHINE, threads=1, compute="gpu")


def test_a_gpu_is_used_only_by_who_asks_for_it(monkeypatch):
    monkeypatch.setattr(transcribe_cpp, "backends", lambda: [SimpleNamespace(**GPU)])
    assert Family(MOONSHINE, threads=1, compute="auto").abilities.device == "CPU"


def test_whisper_in_the_library_says_what_it_says_in_our_engine(tmp_path):
    """The words are those of `tests/golden`, which both read."""
    family = Family(ggml_file.write(load_model("tiny.en"), tmp_path), threads=1)
    assert not family.abilities.streams
    events = captions(FamilyRecognizer(family), sound("lamp"))
    check_transcript(events)
    *partials, final = events
    assert final.text == CLIPS["lamp"]
    assert any(0 < event.stable < len(event.text) for event in partials), "two windows agree"


def test_times_and_probabilities_are_those_of_the_tokens_that_spell_a_word():
    def token(text: str, t0_ms: int, p: float) -> SimpleNamespace:
        return SimpleNamespace(text=text, t0_ms=t0_ms, t1_ms=t0_ms + 80, p=p)

    tokens = [token("\u2581li", 0, 0.5), token("ght", 80, 1.0), token(" on", 160, float("nan"))]
    result = SimpleNamespace(text="light on", tokens=tokens, words=(), segments=(), language="en")
    light, on = _said(result).words
    assert (light.text, light.start_ms, light.end_ms, light.prob) == ("light", 0, 160, 0.75)
    assert (on.text, on.start_ms, on.end_ms, on.prob) == (" on", 160, 240, None)
    (light, _) = _said(result, "lights on").words
    assert light.start_ms is light.prob is None, "they spell another text"
    result.tokens, result.segments = [], [SimpleNamespace(text="light on", t0_ms=0, t1_ms=700)]
    assert [(word.end_ms, word.shares_time) for word in _said(result).words] == [
        (437, True),
        (700, True),
    ], "the model tells when the segment ends"
