"""The states of an utterance: each is reached, each transition happens, and no other may."""

import pytest

from streamd.options import EndpointOptions, SessionOptions
from streamd.session.utterance import TRANSITIONS, State, Trigger, Utterance
from tests.support.fakes import ScriptedRecognizer, drain, scripted_audio, scripted_session

POSSIBLE = [(state, trigger) for state, row in TRANSITIONS.items() for trigger in row]
SCENARIOS = {
    "silence ends it": [(True, 60), (False, 40), "transcribe"],
    "the answer is there before the silence has ended it": [
        (True, 60),
        (False, 12),
        "transcribe",
        (False, 100),
    ],
    "speech in a pause": [(True, 60), (False, 5), (True, 20)],
    "speech before the answer": [(True, 60), (False, 12), (True, 20)],
    "speech after the answer": [(True, 60), (False, 12), "transcribe", (True, 20)],
    "a flush during speech": [(True, 60), "flush", "transcribe"],
    "a flush in a pause": [(True, 60), (False, 5), "flush", "transcribe"],
    "a flush before the answer": [(True, 60), (False, 12), "flush"],
    "a short pause of a long utterance": [(True, 900), (False, 12), "transcribe"],
    "a cut": [(True, 1500), "flush", "transcribe"],
}


def taken(scenario, monkeypatch) -> set[tuple[State, Trigger]]:
    """The transitions of all utterances of a session in which this happens."""
    seen = set()
    on = Utterance.on

    def watched(utterance: Utterance, trigger: Trigger) -> None:
        seen.add((utterance.state, trigger))
        on(utterance, trigger)

    monkeypatch.setattr(Utterance, "on", watched)
    speech = [loud for step in scenario if isinstance(step, tuple) for loud in [step[0]] * step[1]]
    audio = iter(scripted_audio(speech))
    session = scripted_session(SessionOptions(step=0), EndpointOptions())
    for step in scenario:
        if step == "transcribe":
            drain(session, ScriptedRecognizer(), [])
        elif step == "flush":
            session.flush()
        else:
            for _ in range(step[1]):
                session.feed(next(audio)[None])
    return seen


def test_every_transition_happens_in_a_session(monkeypatch):
    seen = set()
    for scenario in SCENARIOS.values():
        with monkeypatch.context() as patch:
            seen |= taken(scenario, patch)
    assert seen == set(POSSIBLE)


@pytest.mark.parametrize(
    ("scenario", "states"),
    [
        ("silence ends it", "OPEN PAUSE ASKED ANSWERED ENDED"),
        ("speech in a pause", "OPEN PAUSE"),
        ("speech before the answer", "OPEN PAUSE ASKED"),
        ("speech after the answer", "OPEN PAUSE ASKED ANSWERED"),
        ("a flush during speech", "OPEN ENDED"),
        ("a flush before the answer", "OPEN PAUSE ASKED"),
        ("a short pause of a long utterance", "OPEN PAUSE ASKED ANSWERED ENDED"),
        ("a cut", "OPEN ENDED"),
    ],
)
def test_the_states_that_an_utterance_leaves(scenario, states, monkeypatch):
    assert {state.name for state, _ in taken(SCENARIOS[scenario], monkeypatch)} == set(
        states.split()
    )


def test_every_state_is_reached():
    reached = {State.OPEN}
    for _ in State:
        reached |= {after for state in reached for after in TRANSITIONS[state].values()}
    assert reached == set(State)
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize(
    ("state", "trigger"),
    [(s, t) for s in State for t in Trigger if (s, t) not in POSSIBLE],
    ids=lambda member: member.name,
)
def test_nothing_else_may_happen(state, trigger):
    utterance = Utterance(0, state)
    with pytest.raises(RuntimeError, match=f"{trigger.name} cannot happen .* {state.name}"):
        utterance.on(trigger)
    assert utterance.state is state
