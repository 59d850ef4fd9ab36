"""Models of other families, played by stand-ins: one that speaks by the book, one that does not."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, find, given
from hypothesis import strategies as st

from streamd.engines.families import Abilities, FamilyRecognizer, Said
from streamd.engines.families.said import (
    SaidWord,
    are_timed,
    behind,
    split,
    text_of_tokens,
    tokens_of,
)
from streamd.errors import EngineMemoryError
from streamd.events import Final, Partial
from streamd.options import SessionOptions
from streamd.session.commit import LocalAgreement, NativeRule
from streamd.types import FRAME, FRAME_MS, Hypothesis, ResumeState, Window
from tests.session.test_progress import World, check_all, many, run, worlds
from tests.session.test_promises import blocks, delays, finals, words_said
from tests.session.test_resuming import spoken
from tests.support.fakes import (
    WORD,
    drain,
    ending,
    played,
    scripted_audio,
    scripted_session,
    speech_of,
)
from tests.support.promises import check_transcript, runs

NUMBER = 2.0**20


@dataclass
class BookStream:
    """Reads words off the samples: one is said when its middle and the look-ahead were heard.

    The newest word may be wrong; those before the last `doubt` words are stable.
    """

    model: "BookModel"
    heard: list[int] = field(default_factory=list)  # the number of each loud frame, else -1
    is_open: bool = True

    def feed(self, samples):
        assert self.is_open
        assert np.isfinite(samples).all()
        frames = samples.reshape(-1, FRAME)
        loud = frames[:, 1] > 0.05
        numbers = np.rint(frames[:, 0] * NUMBER).astype(int)
        self.heard += np.where(loud, numbers, -1).tolist()

    def settle(self):
        self.heard += [-1] * self.model.look_ahead
        return self.model.look_ahead * FRAME_MS

    def said(self):
        words, middle = [], WORD // 2
        for at, number in enumerate(self.heard[: len(self.heard) - self.model.look_ahead or None]):
            if number >= 0 and number % WORD == middle:
                n = number // WORD
                first, last = max(0, at - middle), at + WORD - middle
                times = (first * FRAME_MS, last * FRAME_MS) if self.model.timed else (None, None)
                words.append(SaidWord(f" w{n}{ending(n)}", *times))
        n_stable = max(0, len(words) - self.model.doubt)
        if words and self.model.doubt and self.heard[-1] >= 0:
            words[-1] = replace(words[-1], text=" hm")
        return Said(tuple(words), n_stable)

    def close(self):
        self.is_open = False


@dataclass
class BookModel:
    look_ahead: int = 4
    doubt: int = 1
    timed: bool = True
    streams: bool = True
    begun: list[BookStream] = field(default_factory=list)

    @property
    def abilities(self):
        return Abilities("book", "book", "CPU", ("en",), streams=self.streams)

    def begin(self, options):
        self.begun.append(BookStream(self))
        return self.begun[-1]

    def run(self, samples, options):
        stream = BookStream(self)
        stream.feed(samples)
        stream.settle()
        return stream.said()


def captioned(speech, model, engine=(0,), *, block=5, options=None):
    session = scripted_session(options, policy=NativeRule(LocalAgreement()))
    return played(session, FamilyRecognizer(model), scripted_audio(speech), list(engine), block)


models = st.builds(
    BookModel, st.sampled_from([4, 0, 13, 60]), st.sampled_from([1, 0, 3]), st.booleans()
)


@given(runs, delays, models, blocks)
@example([(108, 16), (240, 154)], [0], BookModel(4, 1, timed=False), 5)  # 20 ms heard before
def test_every_word_of_a_stream_is_in_the_finals_once(stretches, engine, model, block):
    speech = speech_of(stretches)
    events, _ = captioned(speech, model, engine, block=block)
    assert " ".join(text for text, _, _ in finals(events)).lower().split() == words_said(speech)
    check_transcript(events)


@given(runs, delays, st.booleans())
def test_models_that_do_not_stream_commit_by_agreement(stretches, engine, timed):
    speech = speech_of(stretches)
    model = BookModel(streams=False, timed=timed, doubt=0)
    events, _ = captioned(speech, model, engine, options=SessionOptions(length=1500))
    assert " ".join(text for text, _, _ in finals(events)).lower().split() == words_said(speech)
    check_transcript(events)


@given(runs, delays, models)
def test_a_stream_hears_each_frame_of_its_utterance_once(stretches, engine, model):
    captioned(speech_of(stretches), model, engine)
    for stream in model.begun:
        loud = [number for number in stream.heard if number >= 0]
        assert loud == sorted(set(loud))


@given(runs, delays, st.lists(st.integers(1, 1000), min_size=1, max_size=2), models)
def test_sessions_that_die_anywhere_say_each_word_once(stretches, engine, lives, model):
    """Where a session is resumed, another stream begins behind what is final."""
    frames, state, at_ms, said = scripted_audio(speech_of(stretches)), ResumeState(), 0, []
    for life in (*lives, None):
        recognizer = FamilyRecognizer(model)
        more, state, at_ms = spoken(
            frames, state, at_ms, engine, 5, life=life, recognizer=recognizer
        )
        said += [word.strip(".,") for final in more for word in final.text.lower().split()]
    # A mark that was not committed when the session died is not heard again.
    assert said == [word.strip(".,") for word in words_said(speech_of(stretches))]


def test_words_are_stable_as_the_model_commits_them():
    model = BookModel(doubt=2)
    events, _ = captioned([False] * WORD + [True] * (12 * WORD) + [False] * 100, model)
    partials = [event for event in events if isinstance(event, Partial)]
    waiting = [len(event.text[event.stable :].split()) for event in partials]
    assert waiting.count(2) >= 4
    assert min(waiting[2:]) == 2, "it commits no word that the model may change"
    assert len(model.begun) == 1


@pytest.mark.parametrize(("prob", "words"), [(0.7, []), (0.8, ["w1", "w2", "w3"])])
@pytest.mark.parametrize("streams", [True, False])
def test_nothing_is_read_until_somebody_certainly_speaks(prob, words, streams):
    """Moonshine tiny wrote 24 words for 15 minutes of animals, machines and weather."""
    session = scripted_session(policy=NativeRule(LocalAgreement()), speech_prob=prob)
    speech = [False] * WORD + [True] * (3 * WORD) + [False] * 100
    model = BookModel(streams=streams)
    events, _ = played(session, FamilyRecognizer(model), scripted_audio(speech), [0], 5)
    said = " ".join(text for text, _, _ in finals(events)).lower().split()
    assert [word.strip(".,") for word in said] == words
    assert not any(isinstance(event, Partial) and event.text for event in events) or words


def test_words_of_a_stream_are_where_they_were_said_behind_a_pause_too():
    speech = [False] * WORD + [True] * (3 * WORD) + [False] * (2 * WORD) + [True] * (2 * WORD)
    events, _ = captioned([*speech, *[False] * 100], model := BookModel(look_ahead=13))
    words = [word for event in events if isinstance(event, Final) for word in event.words]
    assert [word.text.rstrip(".,") for word in words] == ["w1", "w2", "w3", "w6", "w7"]
    for word in words:
        start_ms = int(word.text.rstrip(".,")[1:]) * WORD * FRAME_MS
        assert abs(word.start_ms - start_ms) <= FRAME_MS
    assert len(model.begun) == 1, "the pause was shorter than what ends an utterance"


def test_the_stream_of_a_session_is_dropped_soon_after_its_utterance():
    session, model = scripted_session(policy=NativeRule(LocalAgreement())), BookModel()
    recognizer, closed = FamilyRecognizer(model), []
    BookModel.begin, begin = lambda self, options: Noted(closed), BookModel.begin
    try:
        for frame in scripted_audio([True] * 50 + [False] * 200):
            session.feed(frame[None])
            drain(session, recognizer, [])
    finally:
        BookModel.begin = begin
    assert closed == ["closed"]


class Noted:
    """A stream that says nothing, and notes when nobody has it any more."""

    def __init__(self, closed):
        self.closed = closed

    def __del__(self):
        self.closed.append("closed")

    def feed(self, samples):
        pass

    def settle(self):
        return 0

    def said(self):
        return Said()


# A stream that does anything

said_words = st.builds(
    SaidWord,
    text=st.sampled_from([" a", " b", " Bee", " no,", " yes.", " 9", " 0", " 好。", ".", " ,"]),
    start_ms=st.none() | st.integers(-2000, 90_000),
    end_ms=st.none() | st.integers(-2000, 90_000),
    prob=st.none() | st.sampled_from([0.0, 0.4, 1.0]),
)
saids = st.builds(
    Said,
    words=st.lists(said_words, max_size=8).map(tuple),
    n_stable=st.integers(-2, 12),
    language=st.sampled_from(["", "en", "de"]),
)


@dataclass
class AnyModel:
    """Says what was drawn, in turn; all in one order, whoever asks. None: it fails for now."""

    drawn: tuple[Said | None, ...]
    settled_ms: int
    streams: bool
    about: Hypothesis = field(default_factory=Hypothesis)

    def __post_init__(self):
        self.turns = cycle(self.drawn)
        self.recognizer = FamilyRecognizer(self)

    def say(self):
        if (said := next(self.turns)) is None:
            raise EngineMemoryError("too little")
        return said

    @property
    def abilities(self):
        return Abilities("any", "any", "CPU", streams=self.streams)

    def begin(self, options):
        settled_ms = self.settled_ms
        return SimpleNamespace(
            feed=lambda samples: None, settle=lambda: settled_ms, said=self.say, close=lambda: None
        )

    def run(self, samples, options):
        return self.say()

    def hypothesis(self, window: Window, speaker: object) -> Hypothesis:
        """What `Run` asks of an answer; the scheduler tries a window that fails again, too."""
        while True:
            with suppress(EngineMemoryError):
                return self.recognizer.recognize(window)


anything = st.builds(
    AnyModel,
    st.lists(saids | st.none(), min_size=1, max_size=6).filter(any).map(tuple),
    st.sampled_from([0, 320, 3000]),
    st.booleans(),
)


@many
@given(worlds, anything)
def test_a_session_keeps_its_promises_whatever_a_stream_says(world: World, model):
    check_all(run(replace(world, steps=(model,), lasts=(model,), policy=-1)))


def _takes_back(before, now):
    texts = [[word.text for word in each.words] for each in (before, now)]
    return texts[1][: len(texts[0])] != texts[0]


KINDS = {
    "fails": lambda drawn: None in drawn,
    "says nothing": lambda drawn: Said() in drawn,
    "repeats": lambda drawn: _any_two(drawn, lambda a, b: a.words and a.words == b.words),
    "takes back": lambda drawn: _any_two(drawn, _takes_back),
    "commits fewer": lambda drawn: _any_two(drawn, lambda a, b: a.n_stable > b.n_stable >= 0),
    "commits more than it says": lambda drawn: _any_said(
        drawn, lambda a: a.n_stable > len(a.words)
    ),
    "times go back": lambda drawn: _any_said(drawn, lambda a: _goes_back(a.words)),
    "no times": lambda drawn: _any_said(drawn, lambda a: a.words and not are_timed(a.words)),
    "no probabilities": lambda drawn: _any_said(
        drawn, lambda a: {w.prob for w in a.words} == {None}
    ),
}


def _any_said(drawn, holds):
    return any(holds(said) for said in drawn if said is not None)


def _any_two(drawn, holds):
    return any(holds(*pair) for pair in pairwise(drawn) if None not in pair)


def _goes_back(words):
    return are_timed(words) and any(a.start_ms > b.end_ms for a, b in pairwise(words))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_stream_is_among_those_that_are_drawn(kind):
    assert find(anything, lambda model: KINDS[kind](model.drawn))


@pytest.mark.parametrize("streams", [True, False])
def test_text_that_repeats_itself_is_neither_shown_nor_said(streams):
    """Moonshine wrote "eight of eight of eight of ..." of the beginning of "eight of spades"."""
    looped = Said(tuple(map(SaidWord, [" eight", " of"] * 7)), n_stable=14 * streams)
    model = AnyModel((looped,), settled_ms=0, streams=streams)
    session = scripted_session(policy=NativeRule(LocalAgreement()))
    audio = scripted_audio([True] * 150 + [False] * 100)
    events, _ = played(session, model.recognizer, audio, [0], 5)
    assert not [event for event in events if isinstance(event, Partial | Final) and event.text]


def test_a_stream_that_fails_is_closed_and_the_next_window_opens_another():
    session, model = scripted_session(policy=NativeRule(LocalAgreement())), BookModel()
    recognizer = FamilyRecognizer(model)
    session.feed(scripted_audio([True] * 100))
    session.accept(window := session.next_window(), recognizer.recognize(window))
    broken = model.begun[0]
    broken.said = lambda: (_ for _ in ()).throw(RuntimeError("failed"))
    session.feed(scripted_audio([True] * 50))
    with pytest.raises(RuntimeError, match="failed"):
        recognizer.recognize(window := session.next_window())
    assert not broken.is_open
    assert recognizer.recognize(window).words
    assert len(model.begun) == 2


def test_no_sound_that_is_not_finite_reaches_a_model():
    for streams in (True, False):
        bad = np.full(10 * FRAME, np.nan, np.float32)
        bad[::2] = np.inf
        FamilyRecognizer(BookModel(streams=streams)).recognize(Window(0, 10, bad))


@pytest.mark.parametrize(
    ("given_words", "words", "n"),
    [
        ("the cat", "The cat, sat", 2),
        ("the cat sat", "the cats at a mat", 3),  # it has changed its mind
        ("of times it", "the best of times it was", 5),  # earlier words were not given
        ("a b c", "", 0),
    ],
)
def test_words_come_behind_those_that_were_given(given_words, words, n):
    assert behind(given_words.split(), words.split()) == n


@given(st.text(max_size=30), st.integers(0, 10_000))
def test_words_and_their_tokens_spell_the_text(text, number):
    assert "".join(split(text)) == text.rstrip()
    tokens = [token for word in split(text) for token in tokens_of(word, number)]
    assert text_of_tokens(tokens).split() == text.split()
