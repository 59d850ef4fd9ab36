"""What Deepgram's Flux API makes of messages and events, without a server."""

import json

import pytest

from streamd.errors import WireError
from streamd.events import Eos, Fault, Flushed, Stats, TurnEvent, TurnState, Vad
from streamd.server.dialects.flux import Flux
from streamd.server.wire import Encoding, Flush, Start, Stop, Update
from tests.support.dialects import converse, final, partial, refused

LISTEN = "model=flux-general-en&encoding=linear16&sample_rate=16000"
EAGER = f"{LISTEN}&eager_eot_threshold=0.4"
TENTH = bytes(3200)


def paused(prob: float, t_ms: int = 1000) -> TurnEvent:
    return TurnEvent(seg=0, state=TurnState.PAUSED, t_ms=t_ms, prob=prob)


RESUMED = TurnEvent(seg=0, state=TurnState.RESUMED, t_ms=1500, prob=0.5)


def told(query: str, *steps: object) -> list[object]:
    """What the client gets after it is connected, of a turn only what tells events apart."""
    connected, *acts = converse(Flux(query), *steps)
    assert connected == {"type": "Connected", "request_id": "talk", "sequence_id": 0}
    return [
        (act["event"], act["turn_index"], act["transcript"], act["end_of_turn_confidence"])
        + ((act["trigger"],) if "trigger" in act else ())
        if isinstance(act, dict) and act["type"] == "TurnInfo"
        else act
        for act in acts
    ]


def test_a_turn_in_full():
    *_, start, audio, begun, update, ended = converse(
        Flux(f"{LISTEN}&keyterm=Ada&keyterm=Mary%20S&language_hint=en"),
        TENTH,
        Vad(speech=True, t_ms=500),
        partial("Turn on", 500),
        paused(0.9, 1500),
        Vad(speech=False, t_ms=1700),
        final("Turn on.", 500),
    )
    choices = {"language": "en", "hotwords": "Ada, Mary S", "endpoint": "smart", "endpoint_ms": 200}
    assert (start, audio) == (Start(rate=16_000, **choices), TENTH)
    assert (begun["event"], begun["transcript"], begun["audio_window_start"]) == (
        "StartOfTurn",
        "",
        0.5,
    )
    assert (update["event"], update["transcript"]) == ("Update", "Turn on")
    assert ended == {
        "type": "TurnInfo",
        "request_id": "talk",
        "sequence_id": 3,
        "event": "EndOfTurn",
        "turn_index": 0,
        "audio_window_start": 0.5,
        "audio_window_end": 1.5,
        "transcript": "Turn on.",
        "words": [
            {"word": "Turn", "confidence": 1.0, "start": 0.5, "end": 1.0},
            {"word": "on.", "confidence": 0.9, "start": 1.0, "end": 1.5},
        ],
        "end_of_turn_confidence": 0.9,
        "languages": ["en"],
        "trigger": "model",
    }


def test_an_eager_end_may_be_withdrawn():
    assert told(
        EAGER,
        Vad(speech=True, t_ms=0),
        partial("and so"),
        paused(0.5),
        RESUMED,
        partial("and so my"),
        paused(0.5),
        final("and so my"),
        Vad(speech=True, t_ms=3000),
        partial("friends", 3000, seg=1),
        paused(0.8, 3500),
        final("friends.", 3000, seg=1),
    ) == [
        ("StartOfTurn", 0, "", 0.0),
        ("Update", 0, "and so", 0.0),
        ("EagerEndOfTurn", 0, "and so", 0.5),
        ("TurnResumed", 0, "and so", 0.0),
        ("Update", 0, "and so my", 0.0),
        ("EagerEndOfTurn", 0, "and so my", 0.5),
        ("Update", 0, "and so my", 0.5),
        ("TurnResumed", 0, "and so my", 0.0),
        ("Update", 0, "and so my friends", 0.0),
        ("EndOfTurn", 0, "and so my friends.", 0.8, "model"),
    ]


def test_without_an_eager_threshold_only_the_end_is_told():
    acts = told(LISTEN, Vad(speech=True, t_ms=0), partial("and so"), paused(0.6), RESUMED)
    assert [event for event, *_ in acts] == ["StartOfTurn", "Update"]


@pytest.mark.parametrize(
    ("ends", "seconds", "confidence", "trigger"),
    [
        ("eot_threshold=0.9", 2, 0.95, "model"),
        ("eot_threshold=0.96", 6, 0.95, "timeout"),
        ("eot_threshold=0.96&eot_timeout_ms=2000", 3, 0.95, "timeout"),
    ],
)
def test_a_turn_ends_after_a_long_silence_however_it_sounds(ends, seconds, confidence, trigger):
    acts = told(
        f"{LISTEN}&{ends}",
        Vad(speech=True, t_ms=0),
        final("and so"),
        Vad(speech=False, t_ms=1000),
        bytes(32_000 * seconds - 2),
        bytes(2),
    )
    assert acts[-1] == ("EndOfTurn", 0, "and so", confidence, trigger)
    assert [act for act in acts if isinstance(act, tuple)][:-1] == [
        ("StartOfTurn", 0, "", 0.0),
        ("Update", 0, "and so", 0.0),
    ]


@pytest.mark.parametrize(
    ("query", "prob", "n_tenths", "trigger"),
    [
        (f"{LISTEN}&eot_threshold=0.3", 0.4, 1, "model"),
        (f"{LISTEN}&eot_timeout_ms=500", 0.4, 15, "timeout"),
    ],
)
def test_a_client_may_have_less_patience_than_the_session(query, prob, n_tenths, trigger):
    """The session would wait longer at this probability: it is told to make the text final."""
    flux = Flux(query)
    converse(flux, Vad(speech=True, t_ms=0), partial("and so"), paused(prob, 1000))
    heard = ([*flux.hear(TENTH)] for _ in range(50))
    flushes = [any(isinstance(act, Flush) for act in acts) for acts in heard]
    assert [n for n, is_flush in enumerate(flushes, 1) if is_flush] == [n_tenths]
    ends = [*flux.say(final("and so.")), *flux.say(Flushed(id="", seq=1))]
    told = [end.message for end in ends]
    assert [each["event"] for each in told][-1] == "EndOfTurn"
    assert told[-1]["trigger"] == trigger


def test_force_end_turn_ends_it():
    acts = told(
        LISTEN,
        Vad(speech=True, t_ms=0),
        partial("turn"),
        '{"type":"ForceEndTurn"}',
        final("turn on"),
        Flushed(id="", seq=1),
        '{"type":"ForceEndTurn"}',
        Flushed(id="", seq=1),
        '{"type":"CloseStream"}',
        Eos(seq=1, reason="stop"),
    )
    assert acts[2:] == [
        Flush(),
        ("Update", 0, "turn on", 0.0),
        ("EndOfTurn", 0, "turn on", 0.0, "manual"),
        Flush(),
        Stop(),
    ]


def test_a_cough_is_a_turn_without_words_which_ends_soon():
    acts = told(LISTEN, Vad(speech=True, t_ms=0), Vad(speech=False, t_ms=200), bytes(32_000 * 2))
    assert acts[0] == ("StartOfTurn", 0, "", 0.0)
    assert acts[-1] == ("EndOfTurn", 0, "", 0.0, "timeout")


def test_what_was_said_is_told_when_the_client_closes():
    acts = told(LISTEN, Vad(speech=True, t_ms=0), final("and so"), Eos(seq=1, reason="stop"))
    assert acts[-1] == ("EndOfTurn", 0, "and so", 0.0, "manual")


def test_a_stream_is_configured_while_there_is_audio():
    change = {
        "type": "Configure",
        "thresholds": {"eot_threshold": 0.8, "eager_eot_threshold": None},
        "keyterms": ["Ada"],
        "language_hints": ["de"],
    }
    *_, update, done, undo, undone = told(
        EAGER, TENTH, json.dumps(change), '{"type":"Configure","keyterms":[],"language_hints":[]}'
    )
    assert update == Update(language="de", hotwords="Ada")
    assert done == {
        "type": "ConfigureSuccess",
        "request_id": "talk",
        "sequence_id": 1,
        "thresholds": {"eot_threshold": 0.8, "eager_eot_threshold": None, "eot_timeout_ms": 5000},
        "keyterms": ["Ada"],
        "language_hints": ["de"],
    }
    assert undo == Update(language="auto", hotwords="")
    assert undone["type"] == "ConfigureSuccess"


def test_a_configuration_before_the_audio_is_that_of_its_start():
    done, start, _ = told(LISTEN, '{"type":"Configure","keyterms":["Ada"]}', TENTH)
    assert (done["type"], start.hotwords) == ("ConfigureSuccess", "Ada")


@pytest.mark.parametrize(
    "wrong",
    ['{"thresholds":{"eot_threshold":2}}', '{"thresholds":{"eager_eot_threshold":0.9}}', "[]"],
)
def test_a_wrong_configuration_changes_nothing(wrong):
    message = json.dumps({"type": "Configure", **(json.loads(wrong) or {"keyterms": 1})})
    (failed,) = told(LISTEN, message)
    assert failed["type"] == "ConfigureFailure"
    assert failed["description"]


def stats(audio_ms: int) -> Stats:
    return Stats(audio_ms=audio_ms, lag_ms=0, lost_ms=0, rtf=0, listeners=0)


@pytest.mark.parametrize("encoding", ["", "&encoding=ogg-opus", "&encoding=opus&sample_rate=48000"])
def test_a_turn_in_a_container_ends_by_the_time_that_the_session_tells(encoding):
    query = f"model=flux-general-en{encoding}&eot_timeout_ms=3000&eot_threshold=1"
    assert Flux(query).request().stats
    assert not Flux(LISTEN).request().stats
    spoken = (b"OggS", Vad(speech=True, t_ms=100), final("hi"), Vad(speech=False, t_ms=1000))
    silent = [step for t_ms in (2000, 3000, 5000) for step in (stats(t_ms), b"more")]
    start, *acts = told(query, *spoken, *silent)
    assert (start.encoding, start.endpoint) == (Encoding.CONTAINER, "smart")
    *turns, ended = [act for act in acts if not isinstance(act, bytes)]
    assert (ended[0], ended[2], ended[4]) == ("EndOfTurn", "hi", "timeout")
    assert acts[-1] == ended  # not before the last bytes
    assert [act[0] for act in turns] == ["StartOfTurn", "Update"]


@pytest.mark.parametrize(
    ("query", "code", "culprit"),
    [
        ("encoding=linear16", "bad_audio", "sample_rate"),
        ("encoding=flac&sample_rate=16000", "bad_query", "encoding"),
        (f"{LISTEN}&eot_threshold=2", "bad_query", "eot_threshold"),
        (f"{LISTEN}&eager_eot_threshold=0.9", "bad_query", "eager_eot_threshold"),
    ],
)
def test_what_is_wrong_is_named(query, code, culprit):
    with pytest.raises(WireError, match=culprit) as error:
        Flux(query).request()
    assert error.value.code == code
    (told,), _ = refused(Flux(query), error.value)
    assert (told["type"], told["code"]) == ("Error", code.upper())


def test_what_fails_is_told():
    wrong = Fault(code="bad_option", message="no such language")
    dead = Fault(code="engine", message="broke", fatal=True)
    warning, unknown, error = told(LISTEN, wrong, '{"type":"Junk"}', dead)
    assert (warning["type"], warning["code"]) == ("Warning", "BAD_OPTION")
    assert (unknown["type"], error["type"], error["description"]) == ("Warning", "Error", "broke")


def test_a_turn_without_an_end_is_ended_after_ten_minutes():
    never = f"{LISTEN}&eot_threshold=1&eot_timeout_ms=60000"
    *_, long, cut, _begun, next_one = told(
        never,
        final("one", 1000, continues=True),
        final("two", 600_000, continues=True),
        final("three", 601_000, continues=True),
        final("four", 602_000, continues=True),
    )
    assert long == ("Update", 0, "one two", 0.0)
    assert cut == ("EndOfTurn", 0, "one two three", 0.0, "timeout")
    assert next_one == ("Update", 1, "four", 0.0)
