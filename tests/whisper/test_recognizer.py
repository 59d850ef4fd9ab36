"""The recognizer: which context, which guards, what is believed and when."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import pairwise
from math import ceil, inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.onnx import OnnxEngine
from streamd.engines.prepared import open_in_memory
from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.options import DecodingOptions
from streamd.system.calls import in_thread
from streamd.types import (
    FRAME,
    DetectedLanguage,
    LanguageQuestion,
    Mel,
    RetryRequest,
    TextOptions,
    TurnAnswer,
    TurnQuestion,
    Window,
    text_of,
)
from streamd.whisper.decode import RIGHT_CONTEXT
from streamd.whisper.engine import Reuse
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.turns import EndOfTurn, TurnJudge
from tests.golden import load
from tests.support.decoders import (
    EOT,
    N_VOCAB,
    TOKENIZER,
    ContextDecoder,
    Predict,
    hashed,
    scripted,
    vocabulary,
)

FULL = 1500
PLAIN = DecodingOptions(suppress_tokens=(), suppress_blank=False, tighten=False)


DIMS = ModelDimensions(80, FULL, 1, 1, 1, N_VOCAB, 448, 1, 1, 1)


@dataclass
class ScriptedEngine:
    """Follows a script; `encoded`, `reused` are what it was given."""

    script: Predict
    dims: ModelDimensions = DIMS
    encoded: list[tuple[int, int]] = field(default_factory=list)
    reused: list[tuple[object, int]] = field(default_factory=list)
    decoders: list[ContextDecoder] = field(default_factory=list)
    given: list[tuple[int, ...]] = field(default_factory=list)
    n_vocab: int = N_VOCAB
    n_cheap: int = 4

    def encode(
        self, mel: Mel, reuse: Reuse[Predict] | None = None, *, audio_ctx: int = 0
    ) -> Predict:
        self.encoded.append((mel.shape[1], audio_ctx))
        self.reused.append(reuse or (None, 0))

        def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            self.given.append(context)
            return self.script(context)

        return predict

    def decoder(self, features: Predict, n_slots: int) -> ContextDecoder:
        self.decoders.append(ContextDecoder(features, n_slots, self.n_vocab))
        return self.decoders[-1]


def script(data: bytes, frames=None, *, end: bool = True, prefix: bytes = b"", **known) -> Predict:
    tokens = [*data, EOT] if end else list(data)
    return scripted(tokens, frames, n_ctx=384, prefix=prefix, **known)


def window(n_frames: int = 200, *, retry: dict[str, Any] | None = None, **known) -> Window:
    """A window of silence; options of its text, and `retry`, may be given by their names."""
    samples = np.zeros(n_frames * FRAME, np.float32)
    names = [each.name for each in fields(TextOptions)]
    options = TextOptions(**{name: known.pop(name) for name in names if name in known})
    asks = (RetryRequest(**(retry or {})), *known.pop("asks", (LanguageQuestion(),)))
    end = 1000 + n_frames
    return Window(start=1000, end=end, samples=samples, options=options, asks=asks, **known)


@pytest.mark.parametrize("part", ["prompt", "before", "prefix"])
@pytest.mark.parametrize("token", [-1, N_VOCAB])
def test_text_of_another_model_does_not_reach_the_engine(part, token):
    engine = ScriptedEngine(script(b"x"))
    with pytest.raises(ValueError, match="text of another model"):
        Recognizer(engine, TOKENIZER, PLAIN).recognize(window(**{part: (token,)}))
    assert engine.encoded == []


def judging(engine: ScriptedEngine, end_of_turn: EndOfTurn) -> TurnJudge:
    return TurnJudge(Recognizer(engine, TOKENIZER, PLAIN), end_of_turn)


def recognizer(script: Predict, **options):
    engine = ScriptedEngine(script)
    return Recognizer(engine, TOKENIZER, replace(PLAIN, **options)), engine


def test_a_window_is_encoded_once_with_silence_after_it():
    ours, engine = recognizer(script(b" a", [0, 0, 0]))
    ours.recognize(window(250))
    assert engine.encoded == [(504, 0)]


def test_a_window_that_a_final_waits_for_is_urgent_if_no_other_is_computed():
    @dataclass
    class TwoSpeeds(ScriptedEngine):
        urgent: ScriptedEngine | None = None

    working: set[Recognizer] = set()
    urgent = ScriptedEngine(script(b" a", [0, 0, 0]))
    engine = TwoSpeeds(urgent.script, urgent=urgent)
    ours, other = (Recognizer(engine, TOKENIZER, PLAIN, working=working) for _ in range(2))

    def n_decoders(recognizer: Recognizer, *, last: bool) -> tuple[int, int]:
        assert text_of(recognizer.recognize(window(250, last=last)).words) == "a"
        return len(engine.decoders), len(urgent.decoders)

    assert n_decoders(ours, last=False) == (1, 0)
    assert n_decoders(ours, last=True) == (1, 1)
    assert [len(each.encoded) for each in (engine, urgent)] == [1, 1]
    working.add(other)
    assert n_decoders(ours, last=True) == (2, 1)
    working.discard(other)
    with pytest.raises(ValueError, match="text of another model"):
        other.recognize(window(prompt=(-1,)))
    assert n_decoders(ours, last=True) == (2, 2)


class Switch:
    """Uses the first engine that has not failed."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self.engines, self.dims = [*engines], DIMS

    def use(self) -> ScriptedEngine:
        return self.engines[0]

    def instead_of(self, engine: ScriptedEngine, error: EngineError) -> ScriptedEngine:
        self.engines.remove(engine)
        if not self.engines:
            raise error
        return self.engines[0]


def test_a_window_of_an_engine_that_fails_is_computed_on_the_one_that_takes_over():
    fails, says = set(), script(b" a", [0, 0, 0])

    def failing(name: str) -> ScriptedEngine:
        def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            if name in fails and context[-1] == ord("a"):  # in the middle of the text
                raise EngineError(f"{name} is lost")
            return says(context)

        return ScriptedEngine(predict)

    fast, cpu = failing("fast"), failing("cpu")
    ours, known = Recognizer(Switch(fast, cpu), TOKENIZER, PLAIN), None
    for n in (200, 250, 300, 350):
        fails |= {"fast"} if n == 300 else set()
        found = ours.recognize(window(n, encoded=known))
        assert text_of(found.words) == "a"
        known = found.encoded
    assert [n for _, n in fast.reused] == [0, 200 - RIGHT_CONTEXT, 250 - RIGHT_CONTEXT]
    assert [n for _, n in cpu.reused] == [0, 300 - RIGHT_CONTEXT], "the other's states are no use"
    fails.add("cpu")
    with pytest.raises(EngineError, match="cpu is lost"):
        ours.recognize(window(400, encoded=known))


def test_the_end_of_a_turn_is_judged_while_the_words_are_decoded():
    asked, heard = threading.Event(), []

    @dataclass
    class Waiting(ScriptedEngine):
        def encode(self, mel: Mel, *reuse) -> Predict:
            assert asked.wait(30), "it comes before the words, or beside them"
            return super().encode(mel, *reuse)

    def judge(speech: np.ndarray) -> float:
        heard.append(len(speech))
        asked.set()
        return 0.25

    engine = Waiting(script(b" a", [0, 0, 0]))
    ours = judging(engine, lambda speech: in_thread(partial(judge, speech)))
    asked_window = window(250, asks=(TurnQuestion(1100),), last=True)
    assert ours.recognize(asked_window).answer(TurnAnswer) == TurnAnswer(0.25)
    assert ours.recognize(window(250)).answer(TurnAnswer) is None
    assert heard == [150 * FRAME]


def test_nobody_ends_a_turn_in_which_there_are_no_words():
    engine = ScriptedEngine(script(b""))
    ours = judging(engine, lambda _: in_thread(lambda: 0.25))
    found = ours.recognize(window(250, asks=(TurnQuestion(1000),), last=True))
    assert found.answer(TurnAnswer) is None


def test_an_error_of_the_model_of_turns_is_not_passed_over():
    def fail(_: np.ndarray) -> Future[float]:
        return in_thread(lambda: 1 / 0)

    ours = judging(ScriptedEngine(script(b"")), fail)
    with pytest.raises(ZeroDivisionError):
        ours.recognize(window(250, asks=(TurnQuestion(1000),), last=True))


def test_what_had_sound_after_it_is_not_computed_again():
    ours, engine = recognizer(script(b" a", [0, 0, 0]))
    first = ours.recognize(window(250)).encoded
    assert (first.start, first.end) == (1000, 1250)
    ours.recognize(window(300, encoded=first))
    ours.recognize(window(200, encoded=first))  # the end of an utterance, found later
    ours.recognize(window(RIGHT_CONTEXT, encoded=first))
    ours.recognize(replace(window(300, encoded=first), start=1001))
    of_first = first.states.features
    assert engine.reused[1:3] == [(of_first, 250 - RIGHT_CONTEXT), (of_first, 200 - RIGHT_CONTEXT)]
    assert [n for _, n in engine.reused[3:]] == [0, 0]


def test_words_are_found_beside_known_ones_from_before_their_sound():
    prefix, more = b" y" * 10, b" zz"
    frames = [*range(0, 220, 10), *range(640, 720, 20)]
    said = scripted([*b" ab", EOT], frames, n_ctx=900, prefix=prefix + more)
    ours, engine = recognizer(said)
    first = ours.recognize(window(400, prefix=tuple(prefix), prefix_end=1200))
    found = ours.recognize(
        window(750, prefix=tuple(prefix + more), prefix_end=1690, encoded=first.encoded)
    )
    assert engine.decoders[-1].passes[0] < len(more) + 10, "the others are known"
    (word,) = found.words
    assert (word.text, word.start) == (" ab", pytest.approx(1655, abs=12))


def test_words_are_in_the_stream_s_time():
    ours, _ = recognizer(script(b" ab cd", [20, 30, 40, 90, 100, 110, 150]))
    found = ours.recognize(window())
    assert [word.text for word in found.words] == [" ab", " cd"]
    assert found.tokens == tuple(b" ab cd")
    first, second = found.words
    assert 1000 <= first.start < first.end == second.start < second.end <= 1200
    assert second.start == pytest.approx(1065, abs=6)
    assert found.suspect is None
    assert found.avg_logprob == pytest.approx(np.log(0.9), abs=1e-3)


def test_bytes_that_spell_no_character_are_in_no_word():
    ours, _ = recognizer(script(b" a\xffb c\xe6"))
    found = ours.recognize(window())
    assert [word.text for word in found.words] == [" ab", " c"]
    assert found.tokens == tuple(b" a\xffb c"), "the decoder gets what it wrote"


def test_what_is_known_is_given_to_the_decoder():
    ours, engine = recognizer(script(b" ab cd", prefix=b" y"))
    found = ours.recognize(window(prompt=tuple(b" m"), prefix=tuple(b" y"), draft=tuple(b" ab ef")))
    startofprev, sot, notimestamps = 360, 257, 362
    assert engine.given[0] == (startofprev,)
    assert engine.given[7] == (startofprev, *b" m", sot, notimestamps, *b" y", ord(" "))
    assert text_of(found.words) == "ab cd"
    assert engine.decoders[0].passes == [7 + 6, 2, 2], "four tokens of the draft are right"


LOOP = b" no" * 12
PREFIX = b" y"
BAD = {
    "no end": script(b" ab", end=False, prefix=PREFIX),
    "loop": script(LOOP, list(range(5, 200, 5)), prefix=PREFIX),
    "a guess": script(b" ab", prefix=PREFIX, prob=0.2),
    "padding": script(b" ab cd", [1, 2, 20, 30, 40, 215, 220, 225, 230], prefix=PREFIX),
}


def test_a_loop_is_said_once_and_suspected():
    ours, engine = recognizer(BAD["loop"])
    found = ours.recognize(window(prefix=tuple(PREFIX)))
    assert len(engine.encoded) == 1
    assert (text_of(found.words), found.suspect) == ("no", "loop")
    assert found.tokens == tuple(b" no")


def ends_early(more: bytes, frames: list[int], prob: float = 0.9) -> Predict:
    """Writes " ab", and then would rather end than go on with `more`."""
    said, goes_on = scripted([*b" ab", *more, EOT], frames, n_ctx=384), b" ab" + more

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        logits, alignment = said(context)
        text = bytes(context[context.index(362) + 1 :]) if 362 in context else b""
        if text == b" ab":
            logits[EOT] = logits.max() + 0.1
        elif text.startswith(b" ab") and goes_on.startswith(text):
            logits, _ = scripted([*goes_on, EOT], frames, n_ctx=384, prob=prob)(context)
        return logits, alignment

    return predict


FRAMES = [10, 20, 30, 45, *range(160, 300, 10)]


@pytest.mark.parametrize(
    ("more", "until", "prob", "said"),
    [
        (b" cd ef", 120, 0.9, "ab cd ef"),
        (b" cd ef", None, 0.9, "ab"),
        (b" cd ef", 20, 0.9, "ab"),  # all of the voice is read
        (b" cd ef", 120, 0.2, "ab"),  # improbable
        (b" thank you.", 120, 0.9, "ab"),  # what Whisper writes for noise
        (b" no" * 12, 120, 0.9, "ab"),  # a loop
    ],
)
@pytest.mark.parametrize("given", [b"", b" ab"])
@pytest.mark.parametrize("last", [False, True])
def test_text_that_ends_long_before_the_voice_goes_on(more, until, prob, said, given, last):
    ours, _ = recognizer(ends_early(more, FRAMES, prob))
    until = until and 1000 + until
    found = ours.recognize(
        window(300, prefix=tuple(given), prefix_end=1040, retry={"text_until": until}, last=last)
    )
    assert text_of(found.words) == said.removeprefix(given.decode().strip()).strip()
    assert found.suspect is None
    assert found.tokens == tuple(token for word in found.words for token in word.tokens)
    if len(found.words) > 1 or said != "ab":
        assert found.words[-1].end > 1150
        assert -0.5 < found.avg_logprob < 0


def test_a_loop_is_left_where_the_voice_goes_on():
    frames = [10, 20, 30, *range(33, 60)]

    def loops(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        text = bytes(context[context.index(362) + 1 :]) if 362 in context else b""
        if text.startswith(b" no-"):
            behind = scripted([*b" no-cd", EOT], [*frames[:3], 45, *range(160, 300, 10)], n_ctx=384)
            return behind(context)
        logits, alignment = scripted([*b" no" * 12, EOT], frames, n_ctx=384)(context)
        if text == b" no":
            logits[ord("-")] = logits.max() - 1
        return logits, alignment

    assert text_of(recognizer(loops)[0].recognize(window(300)).words) == "no"
    found = recognizer(loops)[0].recognize(window(300, retry={"text_until": 1120}))
    assert (text_of(found.words), found.suspect) == ("no-cd", None)
    again = recognizer(loops)[0].recognize(
        window(300, retry={"text_until": 1120}, draft=found.tokens)
    )
    assert again.words == found.words


def test_an_endless_text_is_suspected():
    ours, _ = recognizer(script(b" abcdefghijklmnoabcdefghi", range(0, 300, 8), end=False))
    found = ours.recognize(window(50))
    assert found.suspect == "no_end"
    assert len(found.tokens) == 15  # ceil(1 s * 6.5) + 8


def test_an_endless_text_stops_where_only_the_sound_after_its_prefix_could_be_told():
    endless = b" abcdefghijklmnoabcdefghi"
    ours, _ = recognizer(script(endless, range(0, 300, 8), end=False, prefix=PREFIX))
    found = ours.recognize(window(350, prefix=tuple(PREFIX), prefix_end=1300))
    assert found.suspect == "no_end"
    assert len(found.tokens) == 15


@pytest.mark.parametrize(("budget", "n_fallbacks"), [(0, 0), (1, 1), (np.inf, 5)])
def test_a_last_window_is_decoded_again_within_its_budget(budget, n_fallbacks):
    ours, engine = recognizer(script(b" ab", prob=0.2), best_of=2)
    found = ours.recognize(window(last=True, retry={"budget": budget}))
    assert len(engine.decoders) == 1 + n_fallbacks
    first, *again = [len(decoder.passes) for decoder in engine.decoders]
    frames = [np.ceil(n * 50 / 6.5) for n in (first, sum(again))]
    assert (found.work.cost, found.work.extra_cost) == (sum(frames), frames[1])


@pytest.mark.parametrize("last", [False, True])
def test_silence_has_no_words_and_costs_one_decode(last):
    ours, engine = recognizer(script(b" ab", prob=0.5, nospeech=0.7))
    found = ours.recognize(window(last=last))
    assert (found.words, found.tokens, found.suspect) == ((), (), "no_speech")
    assert found.work.disbelieved == "ab"
    assert found.no_speech_prob == pytest.approx(0.7, abs=1e-3)
    assert len(engine.encoded) == len(engine.decoders) == 1


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("prefix", [b"", b" y"])
def test_probable_text_where_there_is_hardly_speech_is_not_believed(last, prefix):
    ours, _ = recognizer(script(b" ab", nospeech=0.7, prefix=prefix))
    found = ours.recognize(window(prefix=tuple(prefix), last=last))
    if prefix:  # where words are committed, somebody speaks
        assert (text_of(found.words), found.suspect) == ("ab", None)
    else:
        assert (found.words, found.suspect) == ((), "no_speech")


@pytest.mark.parametrize(
    ("text", "prob", "suspect"),
    [
        (b" ab cd ef gh ij kl mn op", 0.9, None),
        (b" ab cd ab cd ab cd ab cd", 0.9, "no_speech"),
        (b" ab cd ef gh ij kl mn op", 0.4, "no_speech"),
    ],
)
def test_many_different_words_that_are_probable_are_believed(text, prob, suspect):
    ours, _ = recognizer(script(text, range(5, 180, 7), nospeech=0.7, prob=prob))
    for last in (False, True):
        found = ours.recognize(window(last=last))
        assert found.suspect == suspect
        assert text_of(found.words) == ("" if suspect else text.decode().strip())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("nospeech", "prob", "said"),
    [(0.01, 0.2, ""), (0.01, 0.24, "ab cd"), (0.5, 0.35, ""), (0.5, 0.4, "ab cd"), (0.3, 0.28, "")],
)
def test_a_text_with_little_evidence_has_no_words(last, nospeech, prob, said):
    """The border is a mean log probability of -1.5, less the probability of no speech."""
    options = {"temperatures": (0.0,)}
    ours, _ = recognizer(script(b" ab cd", nospeech=nospeech, prob=prob), **options)
    found = ours.recognize(window(last=last))
    assert text_of(found.words) == said
    assert found.suspect == (None if said else "no_speech")
    patient, _ = recognizer(script(b" ab cd", prob=prob), least_evidence=-9.0, **options)
    assert text_of(patient.recognize(window(last=last)).words) == "ab cd"


@pytest.mark.parametrize(
    ("data", "nospeech", "prob", "clear", "said"),
    [
        (b" ab", 0.1, 0.2, False, ""),
        (b" ab", 0.1, 0.2, True, "ab"),
        (b" ab", 0.1, 0.17, True, ""),
        (b" ab", 0.4, 0.27, True, "ab"),
        (b" ab", 0.56, 0.31, True, ""),
        (b" ab cd ef gh", 0.1, 0.2, True, ""),
    ],
)
def test_a_few_words_of_clear_speech_need_less_evidence(data, nospeech, prob, clear, said):
    """Their first word is improbable by nature, and more of them is the first word."""
    ours, _ = recognizer(script(data, nospeech=nospeech, prob=prob), temperatures=(0.0,))
    assert text_of(ours.recognize(window(last=True, retry={"clear": clear})).words) == said


@pytest.mark.parametrize(
    ("temperature", "nospeech", "prefix", "said"),
    [(1.0, 0.55, b"", ""), (1.0, 0.3, b"", "ab cd"), (1.0, 0.55, b" x", "")],
)
def test_what_was_sampled_needs_the_more_evidence(temperature, nospeech, prefix, said):
    """What is drawn often enough looks probable: the temperature counts like improbability."""
    sampled = script(b" ab cd", nospeech=nospeech, prob=0.99, prefix=prefix)
    ours, _ = recognizer(sampled, temperatures=(temperature,), best_of=1)
    found = ours.recognize(window(last=True, prefix=tuple(prefix)))
    assert text_of(found.words) == said
    assert found.evidence == pytest.approx(-temperature - nospeech, abs=0.02)


def test_words_after_the_audio_are_cut():
    ours, _ = recognizer(BAD["padding"])
    found = ours.recognize(window(200, prefix=tuple(PREFIX)))
    assert text_of(found.words) == "ab"
    assert found.words[-1].end <= 1200


def test_only_a_last_window_is_searched_with_beams():
    ours, engine = recognizer(script(b" ab"), beam_size=3)
    ours.recognize(window(draft=tuple(b" ab")))
    assert engine.decoders[-1].passes == [5]
    ours.recognize(window(draft=tuple(b" ab"), last=True))
    assert engine.decoders[-1].passes[0] == 2
    assert set(engine.decoders[-1].passes[1:]) == {3}


def test_only_a_last_window_falls_back_to_higher_temperatures():
    ours, engine = recognizer(script(b" ab", prob=0.2), best_of=2)
    ours.recognize(window())
    assert len(engine.decoders) == 1
    found = ours.recognize(window(last=True))
    assert len(engine.decoders) == 2 + 5  # a new one each time
    again, _ = recognizer(script(b" ab", prob=0.2), best_of=2)
    assert again.recognize(window(last=True)) == found  # chance depends on the window alone


def test_the_language_is_detected_when_none_is_named():
    def german(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        logits, alignment = script(b" ja")(context)
        if context == (257,):
            logits[257 + 3] = 9.0
        return logits, alignment

    engine = ScriptedEngine(german)
    tokenizer = Tokenizer(vocabulary(), N_VOCAB, multilingual=True)
    found = Recognizer(engine, tokenizer, PLAIN).recognize(window())
    assert (text_of(found.words), found.language) == ("ja", "de")
    assert (257, 260, 358, 362) in engine.given
    named = Recognizer(engine, tokenizer, PLAIN).recognize(window(languages=("en",)))
    assert named.language == "en"


def speaks(**probs: float) -> Predict:
    """Says " ja" whatever the language; start-of-transcript is followed by these languages."""

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        logits, alignment = script(b" ja")(context)
        if context == (257,):
            for code, prob in probs.items():
                logits[258 + MULTILINGUAL.languages.index(code)] = np.log(prob)
        return logits, alignment

    return predict


MULTILINGUAL = Tokenizer(vocabulary(), N_VOCAB, multilingual=True)


def told(engine: ScriptedEngine) -> set[tuple[int, ...]]:
    """The start-of-transcript sequences that its decoders were given."""
    return {context[-4:] for context in engine.given if context[-1] == 362}


def test_a_language_that_is_known_is_not_asked_for():
    engine = ScriptedEngine(speaks(de=0.9))
    ours = Recognizer(engine, MULTILINGUAL, PLAIN)
    found = ours.recognize(window(language="fr", asks=()))
    assert (found.language, found.answer(DetectedLanguage).prob) == ("fr", None)
    assert len(engine.decoders) == 1
    french = 258 + MULTILINGUAL.languages.index("fr")
    assert told(engine) == {(257, french, MULTILINGUAL.transcribe, 362)}


@pytest.mark.parametrize(
    ("probs", "before", "language"),
    [
        ({"de": 0.9, "en": 0.1}, "", "de"),
        ({"de": 0.4, "en": 0.3, "fr": 0.3}, "", "de"),
        ({"de": 0.55, "en": 0.3, "fr": 0.15}, "en", "de"),
        ({"de": 0.55, "en": 0.4, "fr": 0.05}, "en", "en"),
        ({"de": 0.45, "en": 0.15, "fr": 0.4}, "en", "en"),
    ],
)
def test_another_language_must_be_clear(probs, before, language):
    engine = ScriptedEngine(speaks(**probs))
    found = Recognizer(engine, MULTILINGUAL, PLAIN).recognize(window(language=before))
    assert found.language == language
    assert found.answer(DetectedLanguage).prob == pytest.approx(probs[language], abs=1e-3)


def test_the_only_language_that_may_be_spoken_needs_no_detection():
    engine = ScriptedEngine(speaks(de=0.9))
    ours = Recognizer(engine, MULTILINGUAL, PLAIN)
    found = ours.recognize(window(languages=("fr",), language="en"))
    assert (found.language, found.answer(DetectedLanguage).prob) == ("fr", None)
    found = ours.recognize(window(language="en", asks=()))
    assert found.language == "en", "the window's is certain, and its own"


def test_only_languages_that_may_be_spoken_are_detected():
    ours = Recognizer(ScriptedEngine(speaks(de=0.5, fr=0.3, ja=0.1)), MULTILINGUAL, PLAIN)
    found = ours.recognize(window(languages=("ja", "fr")))
    assert found.language == "fr"
    assert found.answer(DetectedLanguage).prob == pytest.approx(0.75)
    found = ours.recognize(window(languages=("xx", "ja")))  # the model lacks the other one
    assert (found.language, found.answer(DetectedLanguage).prob) == ("ja", None)


def test_a_translation_is_asked_for_and_is_in_english():
    translating = Tokenizer(vocabulary(), N_VOCAB, multilingual=True, task="translate")
    engine = ScriptedEngine(speaks(ja=0.9))
    found = Recognizer(engine, translating, PLAIN).recognize(window())
    assert found.language == "ja"
    assert told(engine) == {
        (257, 258 + translating.languages.index("ja"), translating.translate, 362)
    }
    assert [word.text for word in found.words] == [" ja"]
    plain = Recognizer(engine, MULTILINGUAL, PLAIN).recognize(window())
    assert [word.text for word in plain.words] == [" j", "a"], "Japanese has no blanks"


@pytest.mark.parametrize("last", [False, True])
def test_a_translation_follows_no_order_of_the_sound(last):
    """Neither where its words attend to nor how improbable they are takes any of them away."""
    frames = [150, 150, 20, 20, 20, 180, 383, 383, 383, 383, 383, 383, 383, 383, 383, 10]
    said = script(b" ab cdef gh ijk", frames, prob=0.14)
    engine = ScriptedEngine(said)
    given = {"language": "de", "asks": (), "task": "translate"}
    given["last"] = last
    ours = Recognizer(engine, MULTILINGUAL, replace(PLAIN, beam_size=1))
    found = ours.recognize(window(150, **given))
    assert (text_of(found.words), found.suspect) == ("ab cdef gh ijk", None)
    assert (len(engine.encoded), len(engine.decoders)) == (1, 1)
    assert found.words[0].start == 1000
    assert found.words[-1].end == 1150
    lengths = [word.end - word.start for word in found.words]
    assert lengths == [30, 50, 30, 40], "by the lengths of the words"
    for one, following in pairwise(found.words):
        assert one.end == following.start


def test_words_of_a_translation_begin_after_those_that_are_committed():
    ours = Recognizer(ScriptedEngine(script(b" gh", prefix=b" ab")), MULTILINGUAL, PLAIN)
    given = {"language": "de", "asks": (), "task": "translate"}
    found = ours.recognize(window(150, prefix=tuple(b" ab"), prefix_end=1100, **given))
    assert [(word.text, word.start, word.end) for word in found.words] == [(" gh", 1100, 1150)]


def test_each_window_has_a_task_of_its_own():
    engine = ScriptedEngine(speaks(ja=0.9))
    ours = Recognizer(engine, MULTILINGUAL, PLAIN)
    japanese = 258 + MULTILINGUAL.languages.index("ja")
    for task, words in (("translate", [" ja"]), ("transcribe", [" j", "a"]), ("", [" j", "a"])):
        engine.given.clear()
        found = ours.recognize(window(language="ja", asks=(), task=task))
        token = MULTILINGUAL.translate if task == "translate" else MULTILINGUAL.transcribe
        assert told(engine) == {(257, japanese, token, 362)}
        assert [word.text for word in found.words] == words


def test_languages_other_than_english_may_have_more_tokens_in_a_second():
    endless = script(b" abcdefghijklmnopqrstuvwxyz", range(0, 300, 8), end=False)
    counts = {}
    for code in ("en", "de"):
        engine = ScriptedEngine(endless)
        ours = Recognizer(engine, MULTILINGUAL, replace(PLAIN, loops=False))
        counts[code] = len(ours.recognize(window(50, languages=(code,))).tokens)
    assert counts == {"en": 15, "de": 21}  # ceil(1 s * 6.5 or 13) + 8


def test_a_phrase_does_not_lose_the_utterance_of_which_it_is_most():
    """With "lump:4" in the list, "lamp" had no final: the phrase was too improbable to believe."""
    ours = Recognizer(ScriptedEngine(script(b" ab")), TOKENIZER, PLAIN)
    found = ours.recognize(window(vocabulary="as:9", last=True))
    assert text_of(found.words) == "ab"
    assert found.evidence > -1.0
    ours = Recognizer(ScriptedEngine(script(b" abcdefghij")), TOKENIZER, PLAIN)
    found = ours.recognize(window(vocabulary="abcdefghis:9", last=True))
    assert text_of(found.words) == "abcdefghis"


def test_each_window_has_its_vocabulary():
    # 0.9 of the probability is the script's, and the rest is shared by the letters p to w.
    ours = Recognizer(ScriptedEngine(script(b" ab")), TOKENIZER, PLAIN)
    for listed, text in (("", " ab"), ("as:9", " as"), ("# as:9", " ab")):
        assert ours.recognize(window(vocabulary=listed)).words[0].text == text


def test_a_final_with_little_evidence_is_decoded_again():
    for prob, n_fallbacks in ((0.24, 0), (0.2, 5)):  # log: -1.43 and -1.61
        ours, engine = recognizer(script(b" ab", prob=prob), best_of=2)
        ours.recognize(window(last=True))
        assert len(engine.decoders) == 1 + n_fallbacks
    strict, engine = recognizer(script(b" ab", prob=0.32), best_of=2, least_evidence=-1.0)
    strict.recognize(window(last=True))
    assert len(engine.decoders) == 1 + 5


def test_each_way_to_decode_again_is_counted_with_whether_its_text_was_kept():
    ours, _ = recognizer(script(b" ab", prob=0.2), temperatures=(0.0, 0.5), best_of=1)
    found = ours.recognize(window(last=True, vocabulary="as:9"))
    assert found.work.attempts == (("phrases", True), ("fallback", False))
    ours, _ = recognizer(ends_early(b" cd ef", FRAMES))
    assert ours.recognize(window(300, retry={"text_until": 1120})).work.attempts == (
        ("continuation", True),
    )


@given(st.integers(0, 10_000), st.sampled_from([0, 20, 60, inf]), st.booleans())
def test_a_final_costs_no_more_than_is_promised(seed, budget, clear):
    """Whatever a decoder writes: the attempts have a bound in number and in what they take."""
    predict = hashed(seed, eot_bias=1.0)
    ours, engine = recognizer(predict, best_of=2)
    asked = window(
        300,
        last=True,
        retry={"budget": budget, "clear": clear, "text_until": 1290},
        vocabulary="as\nbe:3",
    )
    work = ours.recognize(replace(asked, prefix=tuple(b" ab"), prefix_end=1020)).work
    assert len(engine.decoders) <= 9
    # A decode with all the tokens that the window may have, and a phrase tried at each.
    longest = 2 * ceil(8 + 5.6 * 6.5) * 50 / 6.5
    assert work.cost - work.extra_cost <= longest + 1
    assert work.extra_cost <= min(budget + longest, 8 * longest) + 150


# -- on real weights -------------------------------------------------------------------------------


@cache
def engine() -> OnnxEngine:
    model = load.model("tiny.en")
    return open_in_memory(model, threads=1, precision="float32").engine


def tiny() -> Recognizer:
    model = load.model("tiny.en")
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=False)
    return Recognizer(engine(), tokenizer)


def clip(name: str, *, start: int = 0, **known) -> Window:
    sound = load.samples(name, 600)
    n_frames = len(np.trim_zeros(sound, "b")) // FRAME
    return Window(start, start + n_frames, sound[: n_frames * FRAME], **known)


def test_a_real_clip():
    (case,) = [
        case
        for case in load.document()["tiny.en"]["decode"]
        if (case["clip"], case["options"]) == ("lamp", {"without_timestamps": True})
    ]
    heard = clip("lamp", start=70)
    found = tiny().recognize(heard)
    assert text_of(found.words) == case["text"]
    times = [time for word in found.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert heard.start <= times[0] < times[-1] <= heard.end
    assert all(word.start <= word.end for word in found.words)


@pytest.mark.parametrize("n_before", [12, 20, 28, 36])
def test_no_digit_is_lost_where_digits_are_dictated(n_before):
    sound = load.samples("digits", 600)[: 140 * FRAME]  # what follows is another number
    samples = np.concatenate([np.zeros(n_before * FRAME, np.float32), sound])
    found = tiny().recognize(Window(0, n_before + 140, samples))
    assert text_of(found.words).rstrip(".") == "1 0 0 0 1"


@pytest.mark.parametrize(
    ("text", "other", "prob", "said"),
    [
        (" 1, 0, 0, 1", " 1 0 0 0 1", 0.9, " 1 0 0 0 1"),
        (" 9, 0, 2", " 9-02", 0.9, " 9-02"),
        (" 1, 0, 0, 1", " 1 0 0 0 1", 0.3, " 1, 0, 0, 1"),  # less probable
        (" 1, 2, 3.", " 1 2 3.", 0.9, " 1, 2, 3."),  # maybe counted: the words are the same
        (" 1, 0, 0, 1", " 1" + " 0" * 60, 0.9, " 1, 0, 0, 1"),  # no end
        (" 1, 10, 12", " 1 10 13", 0.9, " 1, 10, 12"),  # no single digits
    ],
)
@pytest.mark.parametrize("drafted", [False, True])
def test_commas_between_digits_are_kept_unless_other_words_are_more_probable(
    text, other, prob, said, drafted
):
    model = load.model("tiny.en")
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=False)
    likely, rival = ([*tokenizer.encode(each), tokenizer.eot] for each in (text, other))

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        probs = np.full(model.dims.n_vocab, 1e-8)
        if tokenizer.notimestamps in context:
            said = list(context[context.index(tokenizer.notimestamps) + 1 :])
            for tokens, its_prob in ((rival, prob if said[1:] else 0.2), (likely, 0.6)):
                if len(said) < len(tokens) and tokens[: len(said)] == said:
                    probs[tokens[len(said)]] = its_prob
        probs[1000:1100] += max(0, 1 - probs.sum()) / 100
        return np.log(probs), np.zeros((2, 384))

    ours = Recognizer(ScriptedEngine(predict, model.dims, n_vocab=model.dims.n_vocab), tokenizer)
    draft = tuple(tokenizer.encode(text)) if drafted else ()
    found = ours.recognize(window(draft=draft))
    assert "".join(word.text for word in found.words) == said


def test_streams_that_share_a_recognizer_do_not_hear_each_other():
    names = ("lamp", "digits")
    shared = tiny()
    for n_frames in (75, 100):
        for name in names:
            whole = clip(name, start=40)
            part = replace(
                whole, end=whole.start + n_frames, samples=whole.samples[: n_frames * FRAME]
            )
            found, alone = shared.recognize(part), tiny().recognize(part)
            # a column of the spectrogram may be rounded otherwise beside others
            assert found.avg_logprob == pytest.approx(alone.avg_logprob, abs=1e-4)
            assert [(w.text, w.start, w.end, w.tokens) for w in found.words] == [
                (w.text, w.start, w.end, w.tokens) for w in alone.words
            ]


def test_a_draft_does_not_change_what_is_final():
    heard = clip("lamp", last=True)
    plain = tiny().recognize(heard)
    drafted = tiny().recognize(replace(heard, draft=plain.tokens[:5]))
    assert drafted.tokens == plain.tokens
    assert drafted.work.cost < plain.work.cost
    assert drafted.words == tuple(
        replace(word, prob=pytest.approx(word.prob, abs=1e-4)) for word in plain.words
    )
