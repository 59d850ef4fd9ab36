"""What OpenAI's Realtime API makes of messages and events, without a server."""

import json
from base64 import b64encode, encodebytes

import pytest

from streamd.errors import WireError
from streamd.events import Fault, Flushed, TurnEvent, Vad
from streamd.server.dialects import Close
from streamd.server.dialects import dialect as dialects
from streamd.server.dialects.openai_realtime import OpenAIRealtime
from streamd.server.dialects.wyoming import Wyoming
from streamd.server.wire import Flush, Start, Update
from tests.support.dialects import converse, final, partial, refused

SECOND = bytes(48_000)
ENGLISH = [{"code": "en"}]


def say(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields})


def append(audio: bytes = SECOND) -> str:
    return say("input_audio_buffer.append", audio=b64encode(audio).decode())


def update(**given: object) -> str:
    return say("session.update", session={"type": "transcription", "audio": {"input": given}})


COMMIT, CLEAR = say("input_audio_buffer.commit"), say("input_audio_buffer.clear")


def told(*steps: object) -> list[dict[str, object]]:
    """The events that the client gets after the session was created, and what the session gets."""
    created, *others = converse(OpenAIRealtime("intent=transcription"), *steps)
    assert created["type"] == "session.created"
    return others


def short(acts: list[object]) -> list[object]:
    """Only what tells events from each other."""
    facts = ("item_id", "delta", "transcript", "previous_item_id", "languages", "usage")
    return [
        (act["type"].rpartition(".")[2], *(act[fact] for fact in facts if fact in act))
        if isinstance(act, dict)
        else act
        for act in acts
    ]


def transcripts(acts: list[object]) -> list[str]:
    return [act["transcript"] for act in acts if isinstance(act, dict) and "transcript" in act]


def test_the_session_is_described():
    (created,) = converse(OpenAIRealtime("intent=transcription&model=x"))
    assert created == {
        "type": "session.created",
        "event_id": "event_1",
        "session": {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "id": "sess_talk",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "whisper-1"},
                    "turn_detection": {"type": "server_vad"},
                    "noise_reduction": None,
                }
            },
        },
    }
    with pytest.raises(WireError, match="intent"):
        OpenAIRealtime("intent=conversation").request()


def test_deltas_only_append_and_join_to_the_transcript():
    usage = {"type": "duration", "seconds": 2}
    acts = told(
        append(),
        partial("turn on", 1000),
        partial("turn on the", 1000, n_final=2),
        partial("turn on the light", 1000, n_final=2),
        final("turn on the lights", 1000),
        final("now", 4000, seg=1),
    )
    assert acts[:2] == [Start(rate=24_000), SECOND]
    assert short(acts[2:]) == [
        ("speech_started", "item_talk_1"),
        ("delta", "item_talk_1", "turn on"),
        ("speech_stopped", "item_talk_1"),
        ("committed", "item_talk_1", None),
        ("delta", "item_talk_1", " the lights"),
        ("completed", "item_talk_1", "turn on the lights", ENGLISH, usage),
        ("speech_started", "item_talk_2"),
        ("speech_stopped", "item_talk_2"),
        ("committed", "item_talk_2", "item_talk_1"),
        ("delta", "item_talk_2", "now"),
        ("completed", "item_talk_2", "now", ENGLISH, {"type": "duration", "seconds": 1}),
    ]
    assert [acts[i]["event_id"] for i in (2, 3)] == ["event_2", "event_3"]
    assert (acts[2]["audio_start_ms"], acts[4]["audio_end_ms"]) == (1000, 3000)


def test_the_sentences_of_an_utterance_are_one_item():
    _, *acts = told(
        append(),
        final("Turn it on.", 1000, continues=True),
        partial("Now", 2500, n_final=1),
        final("Now please.", 2500, seg=1),
    )
    assert short(acts) == [
        SECOND,
        ("speech_started", "item_talk_1"),
        ("delta", "item_talk_1", "Turn it on."),
        ("delta", "item_talk_1", " Now"),
        ("speech_stopped", "item_talk_1"),
        ("committed", "item_talk_1", None),
        ("delta", "item_talk_1", " please."),
        (
            "completed",
            "item_talk_1",
            "Turn it on. Now please.",
            ENGLISH,
            {"type": "duration", "seconds": 3},
        ),
    ]


def test_without_turn_detection_a_commit_makes_one_item():
    _, *acts = told(
        update(turn_detection=None),
        append(),
        partial("one", n_final=1),
        final("one"),
        final("two", 2000, seg=1),
        COMMIT,
        Flushed(id="1000", seq=2),
        append(),
        COMMIT,
        Flushed(id="1000", seq=2),
    )
    usage = {"type": "duration", "seconds": 1}
    assert short(acts) == [
        Start(rate=24_000),
        SECOND,
        ("delta", "item_talk_1", "one"),
        ("delta", "item_talk_1", " two"),
        Flush(id="1000"),
        ("committed", "item_talk_1", None),
        ("completed", "item_talk_1", "one two", ENGLISH, usage),
        SECOND,
        Flush(id="1000"),
        ("committed", "item_talk_2", "item_talk_1"),
        ("completed", "item_talk_2", "", [], usage),
    ]


def test_speech_starts_with_the_voice_and_a_cough_is_no_item():
    acts = told(
        append(),
        Vad(speech=True, t_ms=300),
        Vad(speech=False, t_ms=700),
        Vad(speech=True, t_ms=2000),
        partial("turn on", 2000, n_final=1),
        Vad(speech=False, t_ms=3400),
        final("turn on", 2000),
    )
    assert short(acts[2:]) == [
        ("speech_started", "item_talk_1"),
        ("speech_stopped", "item_talk_1"),
        ("speech_started", "item_talk_1"),
        ("delta", "item_talk_1", "turn"),
        ("speech_stopped", "item_talk_1"),
        ("committed", "item_talk_1", None),
        ("delta", "item_talk_1", " on"),
        ("completed", "item_talk_1", "turn on", ENGLISH, {"type": "duration", "seconds": 1}),
    ]
    assert acts[4]["audio_start_ms"] == 2000


def test_speech_that_starts_before_the_text_of_the_last_is_there_belongs_to_the_next_item():
    acts = told(
        append(),
        Vad(speech=True, t_ms=300),
        Vad(speech=False, t_ms=1700),
        Vad(speech=True, t_ms=2000),
        final("one two", 300),
        final("three", 2000, seg=1),
    )
    started = [act for act in acts[2:] if act["type"].endswith("started")]
    of = [(act["item_id"], act["audio_start_ms"]) for act in started]
    assert of == [("item_talk_1", 300), ("item_talk_1", 2000), ("item_talk_2", 2000)]
    assert [kind for kind, *_ in short(acts[2:])][-1] == "completed"


def test_what_is_cleared_is_in_no_item():
    _, *acts = told(
        update(turn_detection=None),
        append(),
        CLEAR,
        final("gone"),
        Flushed(id="clear", seq=1),
        COMMIT,
    )
    kinds = [act["type"] for act in acts if isinstance(act, dict)]
    assert kinds == ["input_audio_buffer.cleared", "error"]
    assert acts[-1]["error"]["code"] == "input_audio_buffer_commit_empty"


def test_what_was_committed_before_a_clear_is_not_cleared():
    """The client may be slow to read: its clear comes before it gets the text."""
    _, *acts = told(
        update(turn_detection=None),
        append(),
        COMMIT,
        CLEAR,
        final("kept"),
        Flushed(id="1000", seq=1),
        final("gone"),
        Flushed(id="clear", seq=2),
    )
    assert transcripts(acts) == ["kept"]


@pytest.mark.parametrize(
    "turns", [None, {"type": "server_vad"}, {"type": "semantic_vad", "eagerness": "high"}]
)
@pytest.mark.parametrize(
    ("heard", "text"),
    [
        ([], ""),
        ([Vad(speech=True, t_ms=100), Vad(speech=False, t_ms=900)], ""),  # noise
        ([Vad(speech=True, t_ms=100)], ""),  # somebody still makes a noise
        ([final("one")], "one"),  # the stop button is pressed in the middle of a turn
        ([final("one.", continues=True)], "one."),  # of which nothing else is heard
    ],
)
def test_each_commit_has_one_answer(turns, heard, text):
    """Clients wait for it, whether somebody has spoken or not."""
    acts = told(
        update(turn_detection=turns),
        append(),
        COMMIT,
        *heard,
        Flushed(id="1000", seq=1),
        append(),
        COMMIT,
        append(),
        COMMIT,  # before the answer to the one before
        Flushed(id="1000", seq=1),
        Flushed(id="1000", seq=1),
    )
    kinds = [act["type"].rpartition(".")[2] for act in acts if isinstance(act, dict)]
    assert kinds.count("committed") == 3
    assert transcripts(acts) == [text, "", ""]
    assert kinds.count("speech_started") == kinds.count("speech_stopped")


def test_a_commit_after_the_end_of_a_turn_has_an_answer_of_its_own():
    *_, committed, completed = told(
        append(),
        Vad(speech=True, t_ms=100),
        Vad(speech=False, t_ms=500),
        final("one"),
        append(),
        COMMIT,
        Flushed(id="2000", seq=1),
    )
    assert short([committed, completed]) == [
        ("committed", "item_talk_2", "item_talk_1"),
        ("completed", "item_talk_2", "", [], {"type": "duration", "seconds": 2}),
    ]


def test_a_turn_that_ends_late_has_no_answer_to_a_commit():
    """It was ended by its sound, but meanwhile the client ends turns itself."""
    acts = told(
        SEMANTIC,
        append(),
        Vad(speech=True, t_ms=0),
        turn("paused", 0.4),
        append(),
        update(turn_detection=None),
        final("one"),
        Flushed(id="turn", seq=1),
        COMMIT,
        Flushed(id="2000", seq=1),
    )
    assert transcripts(acts) == ["one"]


@pytest.mark.parametrize("begin", [update(), say("session.update", model="voxtral")])
def test_base64_may_have_line_breaks(begin):
    """MIME encoders make them (RFC 2045)."""
    audio = bytes(range(200))
    text = encodebytes(audio).decode().replace("\n", "\r\n")
    assert told(begin, say("input_audio_buffer.append", audio=text))[-1] == audio


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"format": {"type": "audio/pcm", "rate": 16000}}, Start(rate=16_000)),
        ({"format": {"type": "audio/pcmu"}}, Start(rate=8_000)),
        (
            {"transcription": {"model": "x", "language": "de", "prompt": "Ä"}},
            Start(rate=24_000, model="x", language="de", prompt="Ä"),
        ),
        (
            {"transcription": {"languages": ["de", "fr"], "keywords": ["Ada", "Mary S"]}},
            Start(rate=24_000, language="de,fr", hotwords="Ada, Mary S"),
        ),
        (
            {
                "turn_detection": {
                    "type": "server_vad",
                    "silence_duration_ms": 300,
                    "threshold": 0.5,
                }
            },
            Start(rate=24_000, endpoint_ms=300),
        ),
    ],
)
def test_the_session_is_as_the_client_wants_it(given, start):
    updated, begun, *_ = told(update(**given), append())
    (name,) = given
    assert updated["type"] == "session.updated"
    assert updated["session"]["audio"]["input"][name] == given[name]
    assert begun == start


def test_a_session_with_audio_changes_but_for_its_format():
    speaks_german = {"language": "de", "prompt": "Bees.", "keywords": ["Ada", "Mary S"]}
    *_, updated, change, again, back, undone, wrong = told(
        append(),
        update(transcription=speaks_german),
        update(transcription=speaks_german, turn_detection={"type": "server_vad"}),
        update(transcription={"model": "whisper-1"}),
        update(format={"type": "audio/pcmu"}),
    )
    assert updated["session"]["audio"]["input"]["transcription"] == speaks_german
    assert change == Update(language="de", prompt="Bees.", hotwords="Ada, Mary S")
    assert {each["type"] for each in (updated, again, back)} == {"session.updated"}
    assert undone == Update(language="auto", prompt="", hotwords="")
    assert wrong["error"]["message"] == "the format cannot be changed once there is audio"


SEMANTIC = update(turn_detection={"type": "semantic_vad", "eagerness": "high"})


def turn(state: str, prob: float, t_ms: int = 1000) -> TurnEvent:
    return TurnEvent(seg=0, state=state, t_ms=t_ms, prob=prob)


def test_a_semantic_end_is_one_that_sounds_like_it():
    acts = told(
        SEMANTIC,
        append(),
        Vad(speech=True, t_ms=0),
        partial("and so", n_final=2),
        turn("paused", 0.1),
        turn("resumed", 0.1),
        turn("paused", 0.2, 1500),
        Vad(speech=False, t_ms=1700),
        final("and so my"),
        Vad(speech=True, t_ms=2500),
        turn("paused", 0.6, 3000),
        Vad(speech=False, t_ms=3200),
        final("friends.", 2500, seg=1),
    )
    usage = {"type": "duration", "seconds": 3}
    assert acts[1] == Start(rate=24_000, endpoint="smart", endpoint_ms=200)
    assert short(acts[3:]) == [
        ("speech_started", "item_talk_1"),
        ("delta", "item_talk_1", "and so"),
        ("delta", "item_talk_1", " my"),
        ("speech_stopped", "item_talk_1"),
        ("committed", "item_talk_1", None),
        ("delta", "item_talk_1", " friends."),
        ("completed", "item_talk_1", "and so my friends.", ENGLISH, usage),
    ]


@pytest.mark.parametrize(("eagerness", "seconds"), [("low", 4), ("medium", 2), ("high", 1)])
def test_a_semantic_end_comes_after_silence_too_sooner_or_later(eagerness, seconds):
    steps = [Vad(speech=True, t_ms=0), turn("paused", 0.1), final("and so")]
    steps += [Vad(speech=False, t_ms=1000), *[append()] * seconds]
    patient = update(turn_detection={"type": "semantic_vad", "eagerness": eagerness})
    acts = told(patient, append(), *steps)  # the text ends at 1.0 s
    assert [kind for kind, *_ in short(acts[3:]) if isinstance(kind, str)][-1] == "completed"
    early = told(patient, append(), *steps[:-1])
    assert not any("completed" in act["type"] for act in early if isinstance(act, dict))


def test_an_eager_client_need_not_wait_for_the_session():
    acts = told(SEMANTIC, append(), Vad(speech=True, t_ms=0), turn("paused", 0.4), append())
    assert Flush(id="turn") in acts


def test_vllms_clients_begin_with_a_commit_of_nothing():
    first = say("session.update", model="mistralai/Voxtral")
    acts = told(
        first,
        COMMIT,
        append(bytes(3200)),
        partial("turn on the", n_final=2),
        final("turn on the lights"),
        say("input_audio_buffer.commit", final=True),
        Flushed(id="", seq=1),
        say("junk"),
        "{",
        Fault(code="engine", message="broke", fatal=True),
    )
    assert acts == [
        Start(rate=16_000),
        bytes(3200),
        {"type": "transcription.delta", "delta": "turn on"},
        {"type": "transcription.delta", "delta": " the lights"},
        Flush(),
        {"type": "transcription.done", "text": "turn on the lights"},
        {"type": "error", "error": "'junk' is not supported", "code": "unknown_event"},
        {"type": "error", "error": acts[-2]["error"], "code": "invalid_json"},
        {"type": "error", "error": "broke", "code": "engine"},
    ]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        (b"\xff", "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        (say("response.create", event_id="mine"), "unknown_event"),
        (say("input_audio_buffer.append", audio="?"), "invalid_value"),
        (update(format={"type": "audio/ogg"}), "invalid_value"),
        (update(format={"rate": 1}), "invalid_value"),
        (update(turn_detection=1), "invalid_value"),
        (say("session.update", session={"audio": 1}), "invalid_value"),
        (COMMIT, "input_audio_buffer_commit_empty"),
    ],
)
def test_what_is_wrong_is_an_error_and_the_session_goes_on(message, code):
    error, start, _ = told(message, append())
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["error"]["code"] == code
    assert error["error"]["message"]
    if "mine" in str(message):
        assert error["error"]["event_id"] == "mine"
    assert start == Start(rate=24_000)


def test_failures_are_told():
    (fault,) = told(Fault(code="engine", message="broke", fatal=True))
    assert fault["error"]["type"] == "server_error"
    _, close = refused(OpenAIRealtime(""), WireError("too_many_streams", "full"))
    assert close == Close(1013, "too_many_streams")


def test_what_nobody_knows_is_not_kept():
    (first, second) = told(update(junk="x" * 1000), update(more={"junk": 1}, noise_reduction=None))
    for updated in (first, second):
        assert updated["type"] == "session.updated"
        known = {"format", "transcription", "turn_detection", "noise_reduction"}
        assert {*updated["session"]["audio"]["input"]} == known


def test_a_session_that_is_too_long_is_not_read():
    """Its empty lists would hold up everybody else."""
    junk = {"audio": {"input": {"noise_reduction": [[]] * 100_000}}}
    message = json.dumps({"type": "session.update", "session": junk}, separators=(",", ":"))
    (told,) = converse(OpenAIRealtime(""), message)[-1:]
    assert (told["type"], told["error"]["code"]) == ("error", "invalid_value")


VLLM, WITHOUT_TURNS = say("session.update", model="m"), update(turn_detection=None)


@pytest.mark.parametrize("begin", [VLLM, WITHOUT_TURNS], ids=["vLLM", "OpenAI"])
def test_vllms_deltas_join_to_what_was_said_and_openais_to_the_transcript(begin):
    heard = [partial("One", n_final=1), final("One two."), partial("three", 2000, n_final=1)]
    heard += [partial("four", 2000, n_final=0), final("three four.", 2000, seg=1)]
    acts = told(begin, append(), *heard, COMMIT, Flushed(id="1000", seq=2))
    answers = [each for each in acts if isinstance(each, dict)]
    assert [each["delta"] for each in answers if "delta" in each] == [
        *("One", " two.", " three", " four."),
    ]
    (whole,) = [v for each in answers for k, v in each.items() if k in ("text", "transcript")]
    assert whole == "One two. three four."


@pytest.mark.parametrize(
    ("spoken", "begin"),
    [
        (OpenAIRealtime(""), VLLM),
        (OpenAIRealtime(""), WITHOUT_TURNS),
        (Wyoming(), say("transcribe")),
    ],
    ids=["vLLM", "OpenAI", "Wyoming"],
)
def test_what_a_client_gets_does_not_cost_more_the_longer_it_lasts(spoken, begin, monkeypatch):
    n_chars = 0
    end_of = dialects._end_of

    def counted(words: str, text: str) -> int | None:
        nonlocal n_chars
        n_chars += len(words) + len(text)
        return end_of(words, text)

    monkeypatch.setattr(dialects, "_end_of", counted)
    heard = [partial("One", n_final=1), final("One two.")] * 100
    converse(spoken, begin, *heard)
    assert n_chars < 100 * 3 * len("One two.")
