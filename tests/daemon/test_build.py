"""From the configuration to the stations: sessions as users have them."""

import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from streamd.config import load, without_source
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.errors import ConfigError
from streamd.events import Event, Final
from streamd.language import LANGUAGES
from streamd.models import ModelDimensions
from streamd.models.model import Model, only_language, openai_vocabulary
from streamd.options import Choices
from streamd.session import Session
from streamd.types import (
    FRAME,
    SAMPLE_RATE,
    Hypothesis,
    LanguageQuestion,
    TextOptions,
    Window,
    frames_from_ms,
    ms_from_frames,
)
from tests.support import recorded
from tests.support.decoders import TOKENIZER


@dataclass
class _Engine:
    """Runs nothing."""

    dims: ModelDimensions
    n_cheap = 4


NO_ENGINE = _Engine(ModelDimensions(80, 1500, 8, 1, 1, 51_865, 448, 8, 1, 1))


@pytest.mark.parametrize(
    "given",
    [
        {"set": ["endpoint.pre_final_ms=30000"]},
        {"set": ["endpoint.pre_final_ms=400"]},
        {"set": ["endpoint.pre_final_ms=0"], "endpoint-ms": "0"},
        {"set": ["endpoint.longest_ms=1000"], "step": "20", "length": "20"},
    ],
)
def test_any_pauses_that_the_options_allow_make_a_session(given):
    assert build.new_session(load(given, {})).idle


@pytest.mark.parametrize(("own", "expected"), [(None, (-1,)), ((), ()), ((5, 7), (5, 7))])
def test_suppressed_is_what_the_model_wants_to_be(own, expected):
    model = replace(shaped(51_864), suppress_tokens=own, begin_suppress_tokens=own)
    options = build.decoding_options(load({}, {}), model)
    assert options.suppress_tokens == expected
    assert options.begin_suppress_tokens == own


@pytest.mark.parametrize(
    ("given", "temperature", "expected"),
    [
        ({}, 0.5, (0.5, 0.7, 0.9)),
        ({"set": ["search.temperatures=0"]}, 0.0, (0.0,)),
        ({"set": ["search.temperatures=0,0.5"]}, 0.1, (0.1, 0.6)),
        ({}, 1.0, (1.0,)),
    ],
)
def test_temperatures_rise_to_1_at_most_from_what_a_client_wants(given, temperature, expected):
    config = load(given, {})
    config = replace(config, decoding=replace(config.decoding, temperature=temperature))
    assert build.decoding_options(config, shaped(51_864)).temperatures == expected


def test_a_model_that_hears_less_than_a_window_is_refused_with_the_cure():
    model = shaped(51_864)
    model = replace(model, dims=replace(model.dims, n_audio_ctx=128))
    engine = _Engine(model.dims)
    with pytest.raises(
        ConfigError, match=r"use --set endpoint\.longest_ms=2560 and --length 2560$"
    ):
        build.recognizer(load({}, {}), model, engine)
    cured = load({"set": ["endpoint.longest_ms=2560"], "length": "2560"}, {})
    assert build.recognizer(cured, model, engine)


def shaped(n_vocab: int) -> Model:
    """A model with one of OpenAI's vocabularies, and no weights to speak of."""
    dims = ModelDimensions(80, 1500, 8, 1, 1, n_vocab, 448, 8, 1, 1)
    return Model(
        name="tiny",
        dims=dims,
        weights={},
        vocabulary=openai_vocabulary(Path("tiny"), n_vocab),
        alignment_heads=((0, 0),),
        language=only_language(dims),
    )


@pytest.mark.parametrize(
    ("n_vocab", "given", "complaint"),
    [
        (51_864, {"language": "de"}, "--language de: the model tiny knows en only; choose another"),
        (51_864, {"task": "translate"}, "--task translate: the model tiny knows en only"),
        (51_865, {"language": "yue"}, "unknown language 'yue'; the model knows en zh de es"),
        (51_865, {"language": "xx"}, "unknown language 'xx'; the model knows en zh de es"),
        (51_865, {"language": "en,xx"}, "unknown language 'xx'; the model knows en zh de es"),
        (51_864, {"language": "en,de"}, "--language en,de: the model tiny knows en only"),
    ],
)
def test_a_language_that_the_model_lacks_gets_one_line(n_vocab, given, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        build.recognizer(load(given, {}), shaped(n_vocab), NO_ENGINE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("n_vocab", "chosen", "complaint"),
    [
        (51_864, {"language": "de"}, "language de: the model tiny knows en only"),
        (51_864, {"task": "translate"}, "task translate: the model tiny knows en only"),
        (51_865, {"language": "xx"}, "unknown language 'xx'; the model knows en zh de es"),
        (51_865, {"language": "de,xx"}, "unknown language 'xx'; the model knows en zh de es"),
        (51_864, {"language": "de,es"}, "language de,es: the model tiny knows en only"),
        (51_865, {"language": "de\n"}, r'language must be auto or languages: .* got "de\\n"'),
        (51_865, {"language": "de,"}, "language must be auto or languages: .* got de,"),
        (51_865, {"task": "sing"}, "task must be transcribe or translate, got sing"),
        (51_865, {"endpoint_ms": -1}, "endpoint_ms must be a whole number of ms from 0 to 30000"),
        (51_865, {"endpoint_ms": 30_001}, "endpoint_ms must be .* got 30001"),
        (51_865, {"prompt": "a" * 4001}, "prompt must be a text of at most 4000 characters"),
        (51_865, {"hotwords": "a" * 4001}, "hotwords must be a text of at most 4000 characters"),
        (51_865, {"hotwords": "a," * 500 + "a"}, "hotwords: 501 phrases, of at most 500"),
    ],
)
def test_a_client_may_choose_what_options_may(n_vocab, chosen, complaint):
    """The message is that of the option, for values that the option takes, too."""
    choose = build.chooser(load({}, {}), shaped(n_vocab))
    with pytest.raises(ConfigError, match=complaint) as caught:
        choose(Choices(), chosen)
    assert "\n" not in str(caught.value)
    if "must be" in complaint:
        ((name, value),) = chosen.items()
        option = name.replace("_", "-")
        with pytest.raises(ConfigError) as of_option:
            load({option: str(value)}, {})
        assert str(of_option.value) == str(caught.value).replace(name, f"--{option}", 1)


def test_a_client_chooses_for_its_session_only():
    config = load({"prompt": "before", "endpoint-ms": "700", "language": "auto"}, {})
    choose = build.chooser(config, shaped(51_865))
    default = build.default_choices(config)
    assert default == Choices(language="auto", prompt="before", endpoint_ms=700)
    assert choose(default, {}) == default
    chosen = choose(default, {"language": "fr", "endpoint_ms": 310, "hotwords": "Zoë"})
    assert chosen == Choices(language="fr", prompt="before", endpoint_ms=320, hotwords="Zoë")
    assert choose(chosen, {"language": "auto"}).language == "auto"
    assert choose(default, {"hotwords": "a\n" * 500})
    own = build.default_choices(load({"hotwords": "a," * 600}, {}))
    assert choose(own, {"language": "fr"}).hotwords == own.hotwords  # which no client has chosen
    several = choose(default, {"language": "french, en"})
    windows = [said(build.session_factory(config)(each)) for each in (default, chosen, several)]
    assert [window.options for window in windows] == [
        TextOptions((), "", "transcribe", "before", ""),
        TextOptions(("fr",), "fr", "transcribe", "before", "Zoë"),
        TextOptions(("fr", "en"), "", "transcribe", "before", ""),
    ]
    asks = [window.asked(LanguageQuestion) is not None for window in windows]
    assert asks == [True, False, True]


@pytest.mark.parametrize(
    ("given", "language"),
    [
        ({"model": "tiny.en"}, "en"),
        ({"model": "tiny.en", "language": "auto"}, "en"),
        ({"model": "not-here"}, "auto"),
        ({"model": "not-here", "language": "de"}, "de"),
    ],
)
def test_the_language_of_an_english_model_is_told_before_it_is_loaded(empty_store, given, language):
    assert build.default_choices(load(given, {})).language == language


def test_an_english_model_detects_nothing():
    """It hears English, whatever it is asked for."""
    choose = build.chooser(load({}, {}), shaped(51_864))
    assert choose(Choices(), {"language": "auto"}).language == "en"
    assert choose(Choices(), {"language": "de,en"}).language == "en"
    assert choose(Choices(), {"prompt": "Bees."}) == Choices(language="en", prompt="Bees.")


def said(session: Session) -> Window:
    """A window of some speech."""
    session.feed(recorded.frames(recorded.samples())[:100])
    session.flush()
    window = session.next_window()
    assert window is not None
    return window


@pytest.mark.parametrize(
    ("n_vocab", "given", "language"),
    [
        (51_864, {"language": "auto"}, "en"),
        (51_864, {"language": "en"}, "en"),
        (51_865, {"language": "su", "task": "translate"}, "su"),
        (51_866, {"language": "yue"}, "yue"),
        (51_866, {"language": "auto"}, "en"),
    ],
)
def test_a_language_that_the_model_knows_is_taken(n_vocab, given, language):
    tokenizer = build.tokenizer(load(given, {}), shaped(n_vocab))
    start = tokenizer.sot_sequence_for(language)
    assert tokenizer.language == language
    assert start[0] == tokenizer.sot
    if n_vocab > 51_864:
        task = tokenizer.translate if given.get("task") else tokenizer.transcribe
        assert start == (tokenizer.sot, tokenizer.sot + 1 + LANGUAGES.index(language), task)
    assert build.recognizer(load(given, {}), shaped(n_vocab), NO_ENGINE) is not None


def sound(kind: str, n_frames: int, level_db: int = -25) -> np.ndarray:
    """White, pink or brown noise, hum, or nothing at all; (n_frames, 320)."""
    n = n_frames * FRAME
    if kind == "silence":
        return np.zeros((n_frames, FRAME), np.float32)
    t = np.arange(n) / SAMPLE_RATE
    x = np.sin(2 * np.pi * 50 * t) + 0.2 * np.sin(2 * np.pi * 150 * t)
    if kind != "hum":
        spectrum = np.fft.rfft(np.random.default_rng(1).standard_normal(n))
        slope = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
        x = np.fft.irfft(spectrum / np.maximum(np.arange(len(spectrum)), 20) ** slope, n)
    return (x / x.std() * 10 ** (level_db / 20)).astype(np.float32).reshape(-1, FRAME)


def windows(session: Session, frames: np.ndarray) -> list[Window]:
    wanted = []
    for at in range(0, len(frames), 5):
        session.feed(frames[at : at + 5])
        while (window := session.next_window()) is not None:
            wanted.append(window)
            session.accept(window, Hypothesis())
    return wanted


@pytest.mark.parametrize(
    ("kind", "level_db"),
    [
        *((kind, -25) for kind in ("silence", "hum", "white", "pink", "brown")),
        *(("white", level_db) for level_db in (-70, -50, -20)),
    ],
)
def test_silence_and_steady_noise_ask_the_engine_for_nothing(kind, level_db):
    assert windows(build.new_session(load({}, {})), sound(kind, 1500, level_db)) == []


def switched_on() -> np.ndarray:
    noise = sound("pink", 1500)
    noise[:200] *= np.float32(0.01)
    return noise


def test_noise_that_is_switched_on_asks_the_engine_for_nothing():
    assert windows(build.new_session(load({}, {})), switched_on()) == []


def test_memory_stays_flat_in_speech_without_an_end():
    session = build.new_session(load({"vad": "webrtc"}, {}))
    speech = np.concatenate([sound("pink", 8) * np.float32(g) for g in (1.0, 0.05)] * 400)
    sizes, n_windows = [], 0
    tracemalloc.start()
    try:
        for part in np.split(speech, 64):
            n_windows += len(windows(session, part))
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert n_windows > 100
    # What is held of an utterance grows until it is cut, so the smallest sizes are compared.
    assert min(sizes[32:]) - min(sizes[:32]) < 200_000


def test_without_its_weights_smart_is_an_error_of_the_option_and_no_choice_of_clients(monkeypatch):
    monkeypatch.setattr(build, "has_smart_turn", lambda: False)
    with pytest.raises(ConfigError, match="--endpoint smart: this installation lacks"):
        build.session_factory(load({"endpoint": "smart"}, {}))
    build.session_factory(load({}, {}))(Choices(endpoint="smart"))


@pytest.mark.parametrize(
    ("given", "each", "urgent"),
    [({}, 1, 4), ({"threads": "3"}, 3, 3), ({"set": ["decoding.workers=1"]}, 4, 4)],
)
def test_a_server_has_more_threads_for_a_window_that_a_final_waits_for(
    monkeypatch, given, each, urgent
):
    monkeypatch.setattr(build, "usable_threads", lambda: 4)
    config = without_source(load(given, {}))
    assert (build.threads(config), build.urgent_threads(config)) == (each, urgent)
    assert build.threads(load({}, {})) == 4
    assert build.workers(without_source(load({}, {}))) == 4


def live(sound: np.ndarray, **options: str) -> list[tuple[int, Event]]:
    """What the bundled model makes of a sound, and after how many ms of it each event came."""
    config = load({"model": "tiny.en", "threads": "1", **options}, {})
    recognizer = build.answering(build.recognizer(config, *open_model(config)))
    session = build.new_session(config)
    told: list[tuple[int, Event]] = []
    for n, frame in enumerate(recorded.frames(sound), 1):
        events = session.feed(frame[None])
        while (window := session.next_window()) is not None:
            events += session.accept(window, recognizer.recognize(window))
        told += [(ms_from_frames(n), event) for event in events]
    events = session.flush()
    while (window := session.next_window()) is not None:
        events += session.accept(window, recognizer.recognize(window))
    return told + [(ms_from_frames(session.now), event) for event in events]


@pytest.mark.parametrize(("pause_ms", "step"), [(2_200, "500"), (1_000, "500"), (2_200, "0")])
def test_each_of_some_single_words_has_text(pause_ms, step):
    """Seven of eight had none after pauses of 2.2 s: one that is not believed took in the next."""
    sound, places = recorded.single_words(pause_ms, *recorded.WORDS_MS)
    finals = [event for _, event in live(sound, step=step) if isinstance(event, Final)]
    for start_ms, end_ms in places:
        assert any(each.start_ms < end_ms and each.end_ms > start_ms for each in finals)
    assert len(finals) == len(places)


def test_a_single_word_that_is_flushed_at_its_end_has_text():
    """As when a client of Wyoming stops its audio."""
    sound, [(_, end_ms)] = recorded.single_words(1_000, "consider")
    said = live(sound[: frames_from_ms(end_ms) * FRAME])
    assert len([event for _, event in said if isinstance(event, Final)]) == 1


@pytest.mark.parametrize("word", ["power", "consider"])
def test_a_short_word_in_long_silence_is_final_within_a_second(word):
    """They last 0.3 and 0.6 s."""
    sound, [(_, end_ms)] = recorded.single_words(20_000, word)
    [told_ms] = [ms for ms, event in live(sound) if isinstance(event, Final)]
    assert told_ms - end_ms < 1_000


def test_no_session_of_a_server_has_its_phrases_compiled_for_each_window():
    lists = build.vocabularies(load({"max-streams": 100}, {}), TOKENIZER)
    compiled = [lists.of(f"Ada {n}") for n in range(100)]
    assert [lists.of(f"Ada {n}") for n in range(100)] == compiled
