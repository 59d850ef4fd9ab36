"""The session against everything at once: odd options, flushes, gaps, a recognizer that lies."""

import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from streamd.events import Event, Final, Gap, Partial, TimedWord, Vad
from streamd.options import AgreementOptions, EndpointOptions, SessionOptions
from streamd.session import Session
from streamd.session.commit import AlignAtt, LocalAgreement, Sliding
from streamd.types import Hypothesis, Suspect, Window, Word
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session

any_pause = st.sampled_from([0, 1, 20, 30, 60])


@st.composite
def endpoints(draw) -> EndpointOptions:
    pauses = [draw(any_pause)] * 4 if draw(st.booleans()) else [draw(any_pause) for _ in range(4)]
    return EndpointOptions(
        pre_roll=draw(st.sampled_from([0, 25, 60])),
        pre_final=min(draw(st.sampled_from([0, 1, 10, 60])), *pauses),
        plain=pauses[0],
        sentence=pauses[1],
        unfinished=pauses[2],
        empty=pauses[3],
        longest=draw(st.sampled_from([50, 225, 1400])),
    )


def sessions(backlogs: list[int]) -> st.SearchStrategy[Session]:
    options = st.builds(
        SessionOptions,
        step=st.sampled_from([0, 1, 5, 25, 100]),
        length=st.sampled_from([1, 10, 250, 1500]),
        context_tokens=st.sampled_from([0, 3, 64]),
        keep_context=st.booleans(),
        backlog=st.sampled_from(backlogs),
    )
    policies = st.sampled_from(
        [
            LocalAgreement,
            lambda: LocalAgreement(AgreementOptions(min_progress=0, doubtful_prob=0.0)),
            AlignAtt,
            Sliding,
        ]
    )
    return st.builds(scripted_session, options, endpoints(), policies.map(lambda make: make()))


class Liar:
    """Says other words each time, at any times, and is often suspect."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def recognize(self, window: Window) -> Hypothesis:
        words = tuple(self._word(window) for _ in range(self._rng.choice([0, 0, 1, 2, 3, 8, 20])))
        return Hypothesis(
            words=words,
            tokens=tuple(token for word in words for token in word.tokens),
            language=self._rng.choice(["en", "en", "de"]),
            temperature=self._rng.choice([0.0, 0.0, 0.8]),
            suspect=self._rng.choice(
                [None] * 5 + [Suspect.LOOP, Suspect.NO_END, Suspect.NO_SPEECH]
            ),
        )

    def _word(self, window: Window) -> Word:
        start = self._rng.randint(window.start - 100, window.end + 100)
        return Word(
            text=self._rng.choice(
                [" a", " b", " b", " ", "本", ".", ",", " \u0301x", " \U0001f600"]
            ),
            start=start,
            end=start + self._rng.choice([-5, 0, 5, 12, 200]),
            prob=self._rng.choice([0.1, 0.9, 0.99]),
            tokens=(self._rng.randint(1, 50),),
        )


@dataclass
class World:
    """A stream that is fed in blocks, flushed and torn; an engine that needs `delay` frames."""

    session: Session
    recognizer: ScriptedRecognizer | Liar
    speech: list[bool]
    rng: random.Random
    events: list[Event] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    def run(self, *, gaps: bool, flushes: bool, delay: int) -> None:
        session, window, free_at = self.session, None, 0
        audio, at = scripted_audio(self.speech), 0
        while at < len(audio):
            n = self.rng.choice([1, 1, 7, 50]) if delay else 1
            self.events += session.feed(audio[at : at + n])
            at += n
            if flushes and self.rng.random() < 0.01:
                self.events += session.flush()
            if gaps and self.rng.random() < 0.005:
                self.events += session.gap(self.rng.choice([5, 400, 20_000, 400_000]), "torn")
            if window is not None and at >= free_at:
                self._accept(window)
                window = None
            while window is None and (window := self._next()) is not None:
                free_at = at + self.rng.randint(0, delay)
                if free_at == at:
                    self._accept(window)
                    window = None
        if window is not None:
            self._accept(window)
        self.events += session.flush()
        while (window := self._next()) is not None:
            self._accept(window)
        assert session.idle

    def _next(self) -> Window | None:
        window = self.session.next_window()
        if window is not None:
            self.windows.append(window)
            assert len(self.windows) < 20 + 2 * self.session.now, "the same again and again"
            assert len(window.samples) == (window.end - window.start) * 320
        return window

    def _accept(self, window: Window) -> None:
        self.events += self.session.accept(window, self.recognizer.recognize(window))


@st.composite
def speeches(draw) -> list[bool]:
    lengths = st.tuples(
        st.sampled_from([1, 3, 12, 60, 240, 700]), st.sampled_from([1, 5, 12, 20, 31, 60, 200])
    )
    speech = [False] * WORD
    for loud, quiet in draw(st.lists(lengths, min_size=1, max_size=5)):
        speech += [True] * loud + [False] * quiet
    return speech


def without_marks(words: tuple[TimedWord, ...]) -> list[TimedWord]:
    bare = [structs.replace(word, text=word.text.rstrip(".,?!;:")) for word in words]
    return [word for word in bare if word.text]


def check_transcript(events: list[Event]) -> None:
    """What a listener may rely on, whatever happens."""
    seg, rev, text, committed, words, speaking = 1, 0, "", "", (), False
    for event in events:
        if isinstance(event, Vad):
            assert event.speech != speaking
            speaking = event.speech
        elif isinstance(event, Partial | Final):
            assert event.seg == seg
            assert event.text.startswith(committed)
        if isinstance(event, Partial):
            assert event.words[: len(words)] == words
            assert event.rev == rev + 1
            assert len(committed) <= event.stable <= len(event.text)
            rev, text, committed = event.rev, event.text, event.text[: event.stable]
            words = tuple(word for word in event.words if word.final)
            assert event.words[: len(words)] == words
        elif isinstance(event, Final):
            # the mark after a word joins it
            assert without_marks(event.words)[: len(without_marks(words))] == without_marks(words)
            assert event.text
            seg, rev, text, committed, words = seg + 1, 0, "", "", ()
    assert text == "", "the last partial was neither made final nor taken back"
    assert not speaking


delays = st.sampled_from([0, 3, 30, 200, 700])


@given(sessions([300, 500, 30_000]), speeches(), st.integers(0), delays, st.booleans())
def test_a_lying_recognizer_breaks_no_promise(session, speech, seed, delay, torn):
    rng = random.Random(seed)
    world = World(session, Liar(rng), speech, rng)
    world.run(gaps=torn, flushes=not torn, delay=delay)
    check_transcript(world.events)
    if not torn and not any(isinstance(event, Gap) for event in world.events):
        covered = np.zeros(len(speech), bool)
        for window in world.windows:
            covered[window.start : window.end] = True
        assert covered[np.asarray(speech)].all()


@given(sessions([30_000]), speeches(), st.integers(0), delays)
def test_a_flush_anywhere_loses_no_word_and_doubles_none(session, speech, seed, delay):
    world = World(session, ScriptedRecognizer(lambda n: [".", "", ","][n % 3]), speech, None)
    world.rng = random.Random(seed)
    world.run(gaps=False, flushes=True, delay=delay)
    check_transcript(world.events)
    said = " ".join(event.text for event in world.events if isinstance(event, Final)).split()
    numbers = [int(word.strip("wW.,")) for word in said]
    middles = range(WORD // 2, len(speech), WORD)
    assert numbers == [n for n, middle in enumerate(middles) if speech[middle]]
