"""The session with odd options, flushed anywhere; the recognizer is honest."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Event, Final
from streamd.options import AgreementOptions, EndpointOptions, SessionOptions
from streamd.session import Session
from streamd.session.commit import AlignAtt, LocalAgreement
from streamd.types import Window
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session
from tests.support.promises import check_speaking, check_transcript

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


options = st.builds(
    SessionOptions,
    step=st.sampled_from([0, 1, 5, 25, 100]),
    length=st.sampled_from([1, 10, 250, 1500]),
    context_tokens=st.sampled_from([0, 3, 64]),
)
policies = st.sampled_from(
    [
        LocalAgreement,
        lambda: LocalAgreement(AgreementOptions(min_progress=0, doubtful_prob=0.0)),
        AlignAtt,
    ]
)
sessions = st.builds(scripted_session, options, endpoints(), policies.map(lambda make: make()))


@dataclass
class World:
    """A stream that is fed in blocks and flushed; an engine that needs `delay` frames."""

    session: Session
    recognizer: ScriptedRecognizer
    speech: list[bool]
    rng: random.Random
    events: list[Event] = field(default_factory=list)
    n_windows: int = 0

    def run(self, delay: int) -> None:
        session, window, free_at = self.session, None, 0
        audio, at = scripted_audio(self.speech), 0
        while at < len(audio):
            n = self.rng.choice([1, 1, 7, 50]) if delay else 1
            self.events += session.feed(audio[at : at + n])
            at += n
            if self.rng.random() < 0.01:
                self.events += session.flush()
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
            self.n_windows += 1
            assert self.n_windows < 20 + 2 * self.session.now, "the same again and again"
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


delays = st.sampled_from([0, 3, 30, 200, 700])


@given(sessions, speeches(), st.integers(0), delays)
def test_a_flush_anywhere_loses_no_word_and_doubles_none(session, speech, seed, delay):
    recognizer = ScriptedRecognizer(lambda n: [".", "", ","][n % 3])
    world = World(session, recognizer, speech, random.Random(seed))
    world.run(delay)
    check_transcript(world.events)
    check_speaking(world.events)
    said = " ".join(event.text for event in world.events if isinstance(event, Final)).split()
    numbers = [int(word.strip("wW.,")) for word in said]
    middles = range(WORD // 2, len(speech), WORD)
    assert numbers == [n for n, middle in enumerate(middles) if speech[middle]]
