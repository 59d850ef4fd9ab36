"""The states of an utterance: each transition of its table happens, and no other does."""

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
