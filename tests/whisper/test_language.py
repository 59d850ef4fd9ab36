"""A stream through a model with many languages: heard once in each utterance, and held.

The model has random weights, so the languages mean nothing; that they are heard, held and told to
the decoder is what is tested. Its probabilities are proved against openai-whisper's elsewhere.
"""

import asyncio
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

from streamd.config import load as configure
from streamd.daemon import build
from streamd.engines.reference import ReferenceDecoder, ReferenceEngine, ReferenceFeatures
from streamd.events import Final
from streamd.models import ModelDimensions
from streamd.models.model import parameter_shapes
from streamd.options import DecodingOptions
from streamd.streams import Streams
from streamd.types import FRAME, DetectedLanguage, Hypothesis, LanguageQuestion, Window
from streamd.whisper.decode import detect_language
from streamd.whisper.mel import log_mel
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer
from tests.golden import load, random_model
from tests.golden.random_model import N_TEXT_TOKENS, random_weights
from tests.support.checkpoints import network
from tests.support.loop import turn

N_CTX = 512
DIMS = replace(ModelDimensions(**random_model.DIMS), n_audio_ctx=N_CTX)
"""A shorter context than Whisper's, which is quick."""
OPTIONS = DecodingOptions(
    least_evidence=-100.0,
    no_speech_threshold=1.0,
    temperatures=(0.0,),
    loops=False,
)
"""Random text fails every guard."""


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """Random text is improbable, too: an utterance of it would have no final."""
    monkeypatch.setattr("streamd.types.PROBABLE", -100.0)


@cache
def engine(end: float = 0.5) -> ReferenceEngine:
    """`end`: how much it prefers the end of text; 0: it writes as much as it may."""
    weights = random_weights(parameter_shapes(DIMS))
    # The last layer norm's first feature is constant: a bias, of the end of text alone.
    weights["decoder.ln.weight"][0], weights["decoder.ln.bias"][0] = 0, 8
    weights["decoder.token_embedding.weight"][:, 0] = 0
    weights["decoder.token_embedding.weight"][N_TEXT_TOKENS, 0] = end
    return ReferenceEngine(
        network(DIMS, weights, alignment_heads=load.model("random").alignment_heads)
    )


@dataclass
class Counting:
    """The engine; counts the decoders that can do no more than hear the language."""

    n_detections: int = 0
    dims = DIMS
    n_cheap = 4

    def encode(self, mel: np.ndarray, *reuse) -> ReferenceFeatures:
        return engine().encode(mel, *reuse)

    def decoder(self, features: ReferenceFeatures, n_slots: int) -> ReferenceDecoder:
        self.n_detections += n_slots == 1
        return engine().decoder(features, n_slots)


@dataclass
class Heard:
    windows: list[Window] = field(default_factory=list)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    n_detections: int = 0


@cache
def stream(language: str) -> Heard:
    """Three clips with pauses between them; the model, which is random, is never sure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamd.session.language.SURE", 0.0)
        return _stream(language)


def _stream(language: str) -> Heard:
    model, heard, counting = load.model("random"), Heard(), Counting()
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=True)
    recognizer = Recognizer(counting, tokenizer, OPTIONS)
    session = build.new_session(
        configure({"step": "1000", "language": language, "vad": "webrtc"}, {})
    )
    events = []

    def drain() -> None:
        while (window := session.next_window()) is not None:
            heard.windows.append(window)
            heard.hypotheses.append(recognizer.recognize(window))
            events.extend(session.accept(window, heard.hypotheses[-1]))

    for clip in ("lamp", "cards", "lamp"):
        sound = np.trim_zeros(load.samples(clip, 600), "b")
        frames = np.concatenate([sound, np.zeros(160 * FRAME + -len(sound) % FRAME, np.float32)])
        for block in np.split(frames.reshape(-1, FRAME), range(5, len(frames) // FRAME, 5)):
            events += session.feed(block)
            drain()
    events += session.flush()
    drain()
    heard.finals = [event for event in events if isinstance(event, Final)]
    heard.n_detections = counting.n_detections
    return heard


def test_it_is_heard_once_in_each_utterance_and_held():
    heard = stream("auto")
    known, n_listened = "", 0
    assert len({window.start for window in heard.windows}) >= 3
    for window, hypothesis in zip(heard.windows, heard.hypotheses, strict=True):
        assert window.options.language == known
        question = window.asked(LanguageQuestion)
        n_listened += question is not None
        if question is not None:
            assert 0 < hypothesis.answer(DetectedLanguage).prob < 1
        if question is None or not question.decides:
            assert hypothesis.language == known
        else:
            if window.end - window.start >= 100 and not hypothesis.suspect:
                known = hypothesis.language
    assert known
    assert n_listened < len(heard.windows)
    assert heard.n_detections == n_listened


def test_finals_tell_it():
    heard = stream("auto")
    assert heard.finals
    spoken = {h.language for h in heard.hypotheses}
    assert {final.language for final in heard.finals} <= spoken


def test_it_is_what_the_model_says():
    heard = stream("auto")
    window, hypothesis = heard.windows[0], heard.hypotheses[0]
    model = load.model("random")
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=True)
    padded = np.pad(window.samples, (0, N_CTX * FRAME - len(window.samples)))
    features = engine().encode(log_mel(padded, DIMS.n_mels), audio_ctx=N_CTX)
    probs = detect_language(engine().decoder(features, 1), tokenizer)
    assert next(iter(probs)) == hypothesis.language
    assert np.isclose(
        probs[hypothesis.language], hypothesis.answer(DetectedLanguage).prob, atol=1e-4
    )


def test_a_language_that_was_named_is_never_heard():
    heard = stream("fr")
    assert heard.n_detections == 0
    assert {hypothesis.language for hypothesis in heard.hypotheses} == {"fr"}


def test_of_several_that_may_be_spoken_it_is_the_most_probable_one():
    every = stream("auto").hypotheses[0].language
    among = [code for code in ("de", "fr", "ja") if code != every]
    heard = stream(",".join(among))
    assert heard.n_detections > 0
    assert {hypothesis.language for hypothesis in heard.hypotheses} <= {*among}
    window, hypothesis = heard.windows[0], heard.hypotheses[0]
    assert (window.options.languages, window.options.language) == (tuple(among), "")
    model = load.model("random")
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=True)
    padded = np.pad(window.samples, (0, N_CTX * FRAME - len(window.samples)))
    features = engine().encode(log_mel(padded, DIMS.n_mels), audio_ctx=N_CTX)
    probs = detect_language(engine().decoder(features, 1), tokenizer)
    total = sum(probs[code] for code in among)
    assert hypothesis.language == max(among, key=probs.__getitem__)
    assert np.isclose(
        probs[hypothesis.language] / total, hypothesis.answer(DetectedLanguage).prob, atol=1e-4
    )


async def test_sessions_of_several_languages_do_not_disturb_each_other():
    """On one recognizer, in any order: each has the text that it has alone."""
    model = load.model("random")
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=True)
    make = build.session_factory(configure({"step": "0"}, {}))
    wanted = [
        {"language": "de", "prompt": "bees", "endpoint_ms": 300},
        {"language": "ja", "task": "translate"},
        {"language": "de", "prompt": "king of hearts"},
        {"language": "de"},
    ]
    sound = np.trim_zeros(load.samples("lamp", 600), "b")
    frames = np.pad(sound, (0, 160 * FRAME + -len(sound) % FRAME)).reshape(-1, FRAME)

    async def heard(*choices: dict[str, object]) -> list[list[Final]]:
        streams = Streams(make, max_backlog=10_000, max_ingest=len(choices))
        recognizer = Recognizer(engine(0.0), tokenizer, OPTIONS)
        working = asyncio.create_task(streams.transcribe(recognizer))
        fed = [streams.open(f"s{n}") for n in range(len(choices))]
        for stream, chosen in zip(fed, choices, strict=True):
            await stream.choose(chosen)
        for at in range(0, len(frames), 25):
            for stream in fed:
                stream.feed(frames[at : at + 25])
                await turn()
        await asyncio.gather(*(stream.finish("stop") for stream in fed))
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        replays = [iter(stream.hub.subscribe(after=0).pop, None) for stream in fed]
        return [[event for event in each if isinstance(event, Final)] for each in replays]

    alone = [(await heard(each))[0] for each in wanted]
    assert [{final.language for final in finals} for finals in alone] == [
        {"de"}, {"ja"}, {"de"}, {"de"},
    ]  # fmt: skip
    assert len({tuple(final.text for final in finals) for finals in alone}) == len(wanted)
    assert await heard(*wanted) == alone
