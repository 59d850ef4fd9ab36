"""The session with odd options, flushed anywhere; the recognizer is honest."""

from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.options import AgreementOptions, EndpointOptions, SessionOptions
from streamd.session.commit import AlignAtt, LocalAgreement
from tests.support.fakes import WORD, ScriptedRecognizer, played, scripted_audio, scripted_session
from tests.support.promises import check_speaking, check_transcript

any_pause = st.sampled_from([0, 1, 20, 30, 60])


@st.composite
def endpoints(draw) -> EndpointOptions:
    pauses = [draw(any_pause)] * 3 if draw(st.booleans()) else [draw(any_pause) for _ in range(3)]
    return EndpointOptions(
        pre_roll=draw(st.sampled_from([0, 25, 60])),
        pre_final=min(draw(st.sampled_from([0, 1, 10, 60])), *pauses),
        plain=pauses[0],
        sentence=pauses[1],
        unfinished=pauses[2],
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


@st.composite
def speeches(draw) -> list[bool]:
    lengths = st.tuples(
        st.sampled_from([1, 3, 12, 60, 240, 700]), st.sampled_from([1, 5, 12, 20, 31, 60, 200])
    )
    speech = [False] * WORD
    for loud, quiet in draw(st.lists(lengths, min_size=1, max_size=5)):
        speech += [True] * loud + [False] * quiet
    return speech


delays = st.lists(st.sampled_from([0, 0, 3, 30, 200, 700]), min_size=1, max_size=5)


@given(sessions, speeches(), delays, st.sampled_from([1, 7, 50]), st.sets(st.integers(0, 3000)))
def test_a_flush_anywhere_loses_no_word_and_doubles_none(session, speech, engine, block, flushes):
    recognizer = ScriptedRecognizer(lambda n: [".", "", ","][n % 3])
    frames = scripted_audio(speech)
    events, _ = played(session, recognizer, frames, engine, block, flushes=flushes)
    check_transcript(events)
    check_speaking(events)
    said = " ".join(event.text for event in events if isinstance(event, Final)).split()
    numbers = [int(word.strip("wW.,")) for word in said]
    middles = range(WORD // 2, len(speech), WORD)
    assert numbers == [n for n, middle in enumerate(middles) if speech[middle]]
