"""What each dialect makes of messages and events, without a server; and on the port, with one."""

import json
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from websockets.exceptions import InvalidStatus

from streamd.errors import WireError
from streamd.events import (
    Ack,
    Eos,
    Fault,
    Final,
    Flushed,
    Gap,
    Lag,
    Missed,
    Notice,
    Partial,
    Sound,
    Started,
    Stats,
    TimedWord,
    TurnEvent,
    Vad,
)
from streamd.labels import of_channel
from streamd.server.dialects import DIALECTS, Close, Dialect, introduced
from streamd.server.dialects.assemblyai import AssemblyAI
from streamd.server.dialects.deepgram import Deepgram
from streamd.server.dialects.dialect import ByteStream, GrowingText
from streamd.server.dialects.vosk import Vosk
from streamd.server.dialects.whisperlive import WhisperLive
from streamd.server.dialects.wyoming import Wyoming
from streamd.server.wire import (
    STREAM_PATH,
    Encoding,
    Flush,
    Role,
    Start,
    Stop,
    Update,
    close_code,
)
from tests.support.dialects import HELLO, check, converse, final, partial, refused, words
from tests.support.serving import client, joined, serving

PCM = "encoding=linear16&sample_rate=16000"

# Deepgram
LISTEN = "model=nova-3&encoding=linear16&sample_rate=8000"


def results(event: Partial | Final, **differences: object) -> dict[str, object]:
    is_final = isinstance(event, Final)
    spoken = {"languages": ["en"]} if is_final else {}
    return {
        "type": "Results",
        "channel_index": [0, 1],
        "start": event.start_ms / 1000,
        "duration": (event.end_ms - event.start_ms) / 1000,
        "is_final": is_final,
        "speech_final": is_final,
        "from_finalize": False,
        "channel": {
            "alternatives": [
                {
                    "transcript": event.text,
                    "confidence": 0.95,
                    "words": [
                        {"word": "turn", "punctuated_word": "Turn", "confidence": 1.0}
                        | {"start": event.start_ms / 1000, "end": event.start_ms / 1000 + 0.5},
                        {"word": "on", "punctuated_word": "on.", "confidence": 0.9}
                        | {"start": event.start_ms / 1000 + 0.5, "end": event.end_ms / 1000},
                    ],
                }
                | spoken
            ]
        },
        "metadata": {
            "request_id": "talk",
            "model_uuid": "tiny.en",
            "model_info": {"name": "tiny.en", "version": "1", "arch": "whisper"},
        },
    } | differences


def test_deepgram_in_full():
    begun = {"type": "SpeechStarted", "channel": [0], "timestamp": 0.5}
    turn = final("Turn on.", 500)
    over = {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 1.5}
    assert converse(
        Deepgram(f"{LISTEN}&interim_results=true&vad_events=true&utterance_end_ms=1000"),
        bytes(16000),
        Vad(speech=True, t_ms=500),
        partial("Turn on.", 500),
        bytes(16000),
        turn,
        bytes(7999),
        b"\0",
        '{"type": "KeepAlive"}',
        '{"type": "Finalize"}',
        Flushed(id="", seq=1),
        '{"type": "CloseStream"}',
        Eos(seq=1, reason="stop"),
    ) == [
        Start(rate=8000),
        bytes(16000),
        begun,
        results(partial("Turn on.", 500)),
        bytes(16000),
        results(turn),
        bytes(7998),
        bytes(2),
        over,
        Flush(),
        results(final("", 2500), from_finalize=True, channel={"alternatives": [SILENCE]}),
        Stop(),
        {
            "type": "Metadata",
            "request_id": "talk",
            "created": None,
            "duration": 2.5,
            "channels": 1,
            "transaction_key": "",
            "sha256": "",
        },
    ]


SILENCE = {"transcript": "", "confidence": 0.0, "words": []}


def test_deepgram_answers_each_finalize_of_a_client_that_is_slow_to_read():
    finalize, flushed = '{"type":"Finalize"}', Flushed(id="", seq=1)
    said = converse(Deepgram(LISTEN), finalize, finalize, final("Turn on."), flushed, flushed)
    answers = [act for act in said if isinstance(act, dict)]
    assert [act["from_finalize"] for act in answers] == [True, True]
    assert answers[0] == results(final("Turn on."), from_finalize=True)


def test_deepgram_names_the_last_final_that_a_finalize_brought():
    """An engine that is behind brings several, and agents take the named one for the end."""
    _, *answers = converse(
        Deepgram(f"{LISTEN}&interim_results=true"),
        '{"type":"Finalize"}',
        final("Turn on."),
        partial("Turn on.", 2000, seg=1),
        final("Turn on.", 2000, seg=1),
        final("Turn on.", 4000, seg=2),
        Flushed(id="", seq=3),
        final("Turn on.", 6000, seg=3),
    )
    named = [(each["start"], each["is_final"], each["from_finalize"]) for each in answers]
    assert named == [
        (0, True, False),
        (2, False, False),
        (2, True, False),
        (4, True, True),
        (6, True, False),
    ]


def test_deepgram_ends_no_utterance_in_a_short_pause():
    acts = converse(
        Deepgram(f"{LISTEN}&utterance_end_ms=1000"),
        bytes(30000),
        final("Turn on."),  # until 1.0 s
        Vad(speech=True, t_ms=1900),
        bytes(34000),
        final("Turn on.", 2000),  # until 3.0 s; 4 s have been heard
    )
    ends = [act for act in acts if isinstance(act, dict) and act["type"] == "UtteranceEnd"]
    assert [end["last_word_end"] for end in ends] == [3.0]


def test_deepgram_says_which_of_several_channels_it_is():
    query = "multichannel=true&channels=2&vad_events=true&utterance_end_ms=1000"
    first, second = of_channel(final("Turn on."), 1), of_channel(final("Turn off.", 500), 2)
    start, *acts = converse(
        Deepgram(f"{LISTEN}&{query}"),
        bytes(4 * 4000),  # 0.5 s
        Vad(speech=True, t_ms=500, channel=2),
        first,  # until 1.0 s
        bytes(4 * 14000),
        second,  # until 1.5 s
        Vad(speech=True, t_ms=2200, channel=1),
        '{"type":"Finalize"}',
        of_channel(final("Now.", 2200), 1),
        Flushed(id="", seq=3),
    )
    assert start == Start(rate=8000, channels=2, split=True)
    told = [act for act in acts if isinstance(act, dict)]
    assert [(act["type"], act.get("channel_index") or act["channel"]) for act in told] == [
        ("SpeechStarted", [1, 2]),
        ("Results", [0, 2]),
        ("UtteranceEnd", [0, 2]),
        ("Results", [1, 2]),
        ("SpeechStarted", [0, 2]),
        ("Results", [0, 2]),
        ("Results", [1, 2]),
    ]
    results = [act for act in told if act["type"] == "Results"]
    assert [act["from_finalize"] for act in results] == [False, False, True, True]
    texts = [act["channel"]["alternatives"][0] for act in results]
    assert [text["transcript"] for text in texts] == ["Turn on.", "Turn off.", "Now.", ""]
    # As there, `speaker` comes with `diarize` only.
    assert not any("speaker" in word for text in texts for word in text["words"])


def test_deepgram_without_endpointing_ends_no_speech():
    (told,) = converse(Deepgram(f"{LISTEN}&endpointing=false"), final("Turn on."))
    assert told == results(final("Turn on."), speech_final=False)


def test_deepgram_wants_partials_only_if_it_is_asked():
    assert not Deepgram(LISTEN).request().partials
    query = Deepgram(f"{LISTEN}&interim_results=true&session=talk").request()
    assert (query.partials, query.role, query.session) == (True, Role.BOTH, "talk")


@pytest.mark.parametrize(
    ("query", "code", "culprit"),
    [
        ("model=nova-3&encoding=linear16", "bad_audio", "samples in linear16 need their rate"),
        ("encoding=amr-nb&sample_rate=48000", "bad_query", "encoding"),
        ("encoding=linear16&sample_rate=3999", "bad_rate", "3999"),
        (f"{LISTEN}&channels=9", "bad_message", "channels"),
        (f"{LISTEN}&callback=https://a.example", "bad_query", "callback"),
        (f"{LISTEN}&multichannel=true&channels=9", "bad_message", "channels"),
        (f"{LISTEN}&session=a/b", "bad_query", "session"),
    ],
)
def test_deepgram_names_what_is_wrong(query, code, culprit):
    with pytest.raises(WireError, match=culprit) as error:
        Deepgram(query).request()
    assert error.value.code == code
    (told,), close = refused(Deepgram(query), error.value)
    theirs = Close(1008, "DATA-0000")  # for samples without a rate, Deepgram has a code of its own
    ours = theirs if code == "bad_audio" else Close(close_code(code), code)
    assert (told["type"], told["variant"], close) == ("Error", code, ours)


@pytest.mark.parametrize(
    ("protocol", "query"),
    [
        (Deepgram, ""),
        (Deepgram, "encoding=opus&sample_rate=48000"),
        (Deepgram, "encoding=ogg-opus"),
        (AssemblyAI, "encoding=ogg_opus&sample_rate=48000"),
        (AssemblyAI, "encoding=aac"),
    ],
)
def test_containers_pass_as_they_are(protocol, query):
    dialect = protocol(query)
    dialect.request()
    start, first = dialect.hear(b"odd")
    assert (start.encoding, start.rate, first) == (Encoding.CONTAINER, 16_000, b"odd")


# AssemblyAI
WS = "sample_rate=8000"


def turn(text: str, spoken: Sequence[TimedWord], order: int, *, ends: bool) -> dict[str, object]:
    return {
        "type": "Turn",
        "turn_order": order,
        "turn_is_formatted": ends,
        "end_of_turn": ends,
        "end_of_turn_confidence": float(ends),
        "transcript": text,
        "words": [
            {"text": word.text, "start": word.start_ms, "end": word.end_ms}
            | {"confidence": word.prob, "word_is_final": word.final}
            for word in spoken
        ],
    }


def test_assemblyai_in_full():
    begun = partial("Turn on the", 500, n_final=2)
    assert converse(
        AssemblyAI(WS),
        bytes(16000),
        Vad(speech=True, t_ms=500),
        begun,
        '{"type":"KeepAlive"}',
        '{"type":"ForceEndpoint"}',
        final("Turn on.", 500),
        Flushed(id="", seq=1),
        partial("No.", 2000),
        '{"type":"Junk"}',
        '{"type":"Terminate"}',
        Eos(seq=1, reason="stop"),
    ) == [
        {"type": "Begin", "id": "talk", "expires_at": 3 * 3600},
        Start(rate=8000),
        bytes(16000),
        {"type": "SpeechStarted", "timestamp": 500},
        turn("Turn on", begun.words, 0, ends=False),
        Flush(),
        turn("Turn on.", words("Turn on.", 500), 0, ends=True),
        turn("", words("No.", 2000, 0), 1, ends=False),
        {
            "type": "Warning",
            "warning_code": 3006,
            "warning": "'Junk' is not supported",
        },
        Stop(),
        {"type": "Termination", "audio_duration_seconds": 1, "session_duration_seconds": 1},
    ]


def test_assemblyais_clients_may_change_their_options():
    *_, change, undo = converse(
        AssemblyAI(WS),
        bytes(2),
        '{"type":"UpdateConfiguration","keyterms_prompt":["Ada"],"min_turn_silence":100}',
        '{"type":"UpdateConfiguration","format_turns":true}',
        '{"type":"UpdateConfiguration","keyterms_prompt":[],"prompt":"Bees."}',
    )
    assert change == Update(hotwords="Ada", endpoint_ms=200)
    assert undo == Update(hotwords="", prompt="Bees.")
    _, start, _ = converse(
        AssemblyAI(WS),
        '{"type":"UpdateConfiguration","end_of_turn_confidence_threshold":0.4}',
        bytes(2),
    )
    assert start == Start(rate=8000, endpoint="smart")


def test_assemblyai_ends_a_turn_that_is_forced_to_end_behind_a_sentence():
    *_, turn, flush, last = converse(
        AssemblyAI(WS),
        bytes(320),
        final("Turn on.", continues=True),
        '{"type": "ForceEndpoint"}',
        Flushed(id="", seq=1),
        Flushed(id="", seq=1),  # there is no turn to be ended
    )
    assert flush == Flush()
    facts = ("turn_order", "end_of_turn", "transcript")
    assert [[told[fact] for fact in facts] for told in (turn, last)] == [
        [0, False, "Turn on."],
        [0, True, "Turn on."],
    ]


def test_assemblyai_is_told_how_sure_it_is_that_a_turn_has_ended():
    acts = converse(
        AssemblyAI(f"{WS}&end_of_turn_confidence_threshold=0.4"),
        bytes(2),
        partial("And so"),
        TurnEvent(seg=0, state="paused", t_ms=1000, prob=0.3),
        partial("And so", n_final=2),
        TurnEvent(seg=0, state="resumed", t_ms=1500, prob=0.3),
        partial("And so my"),
        TurnEvent(seg=0, state="paused", t_ms=2000, prob=0.9),
        final("And so my."),
        TurnEvent(seg=0, state="ended", t_ms=2200, prob=0.9),
        partial("No.", 3000),
    )
    assert acts[1] == Start(rate=8000, endpoint="smart")
    turns = [act for act in acts if isinstance(act, dict) and act["type"] == "Turn"]
    assert [each["end_of_turn_confidence"] for each in turns] == [0.0, 0.3, 0.0, 0.9, 0.0]


@pytest.mark.parametrize(
    ("query", "culprit"),
    [
        ("", "sample_rate"),
        (f"{WS}&encoding=opus", "encoding"),
        (f"{WS}&keyterms_prompt=Ada", "got Ada"),
    ],
)
def test_assemblyai_names_what_is_wrong(query, culprit):
    with pytest.raises(WireError, match=culprit) as error:
        AssemblyAI(query).request()
    (told,), close = refused(AssemblyAI(query), error.value)
    assert (told["type"], told["error_code"], close.code) == ("Error", 3006, 3006)
    _, close = refused(AssemblyAI(WS), WireError("too_many_streams", "no room"))
    assert close.code == 3009


def test_assemblyai_has_one_turn_for_the_sentences_of_an_utterance():
    first, begun = final("Turn on.", 500, continues=True), partial("Now", 2000, n_final=1)
    told = converse(AssemblyAI(WS), bytes(320), first, begun, final("Now!", 2000), final("Off."))
    assert told[3:] == [
        turn("Turn on.", first.words, 0, ends=False),
        turn("Turn on. Now", (*first.words, *begun.words), 0, ends=False),
        turn("Turn on. Now!", (*first.words, *words("Now!", 2000)), 0, ends=True),
        turn("Off.", words("Off.", 0), 1, ends=True),
    ]


def by(speaker: int, event):
    """The caption, said by one speaker."""
    return replace(event, words=tuple(replace(word, speaker=speaker) for word in event.words))


def test_assemblyai_labels_speakers_if_it_is_asked():
    first, second = by(1, final("Turn on.", 500, continues=True)), by(3, final("Off.", 2000))
    told = converse(AssemblyAI(f"{WS}&labels=true"), bytes(320), first, second)
    assert told[0].speakers if isinstance(told[0], Start) else told[1].speakers
    assert [each["speaker_label"] for each in told[3:]] == ["A", "A"]
    assert [word["speaker"] for word in told[4]["words"]] == ["A", "A", "C"]


def test_deepgram_counts_speakers_from_0_if_it_is_asked():
    told = converse(Deepgram(f"{LISTEN}&diarize=true"), bytes(320), by(2, final("Turn on.", 500)))
    assert told[0] == Start(rate=8000, speakers=True)
    said = told[-1]["channel"]["alternatives"][0]["words"]
    assert [word["speaker"] for word in said] == [1, 1]


def test_deepgram_ends_speech_with_the_last_sentence_of_an_utterance():
    sentences = final("Turn on.", 500, continues=True), final("Now.", 2000)
    told = converse(Deepgram("encoding=linear16&sample_rate=8000"), bytes(320), *sentences)
    results = [each for each in told if isinstance(each, dict) and each["type"] == "Results"]
    assert [(each["is_final"], each["speech_final"]) for each in results] == [
        (True, False),
        (True, True),
    ]


# vosk-server
def test_vosk_in_full():
    word = {"word": "Turn", "conf": 1.0, "start": 0.5, "end": 1.0}
    assert converse(
        Vosk(""),
        '{ "config" : { "sample_rate" : 16000.0, "words" : 1, "phrase_list": ["on", "[unk]"] } }',
        bytes(320),
        partial("Turn", 500),
        bytes(320),
        final("Turn", 500),
        final("off", 2000),
        bytes(320),
        bytes(320),
        bytes(320),
        '{"reset" : 1}',
        Flushed(id="", seq=2),
        final("Turn", 500),
        final("Turn", 500),
        '{"eof" : 1}',
        Eos(seq=1, reason="stop"),
    ) == [
        Start(rate=16000, hotwords="on"),
        bytes(320),
        {"partial": ""},
        bytes(320),
        {"partial": "Turn"},
        bytes(320),
        {"text": "Turn", "result": [word]},
        bytes(320),
        {"text": "off", "result": [{"word": "off", "conf": 1.0, "start": 2.0, "end": 2.5}]},
        bytes(320),
        {"partial": ""},
        Flush(),
        {"text": "", "result": []},
        Stop(),
        {"text": "Turn Turn", "result": [word, word]},
    ]


def test_vosk_without_a_configuration():
    assert converse(Vosk(""), bytes(320), final("Turn"), bytes(0)) == [
        Start(rate=8000),
        bytes(320),
        {"partial": ""},
        {"text": "Turn"},
    ]


def test_vosk_is_configured_before_any_audio():
    answer = {"partial": ""}
    setup = '{"config":{"sample_rate":16000}}'
    assert converse(Vosk(""), b"", setup, bytes(2)) == [
        Start(rate=8000),
        answer,
        bytes(2),
        answer,
    ]


def test_vosk_can_be_told_of_an_error_by_the_close_code_only():
    for message in (
        "nonsense",
        '{"config":{"sample_rate":"fast"}}',
        '{"config":{"sample_rate":1}}',
    ):
        with pytest.raises(WireError) as error:
            converse(Vosk(""), message)
        assert refused(Vosk(""), error.value)[0] == []


# WhisperLive
def segment(text: str, start_ms: int, end_ms: int, *, completed: bool) -> dict[str, object]:
    times = {"start": f"{start_ms / 1000:.3f}", "end": f"{end_ms / 1000:.3f}"}
    return {"text": text, "completed": completed} | times


def test_whisperlive_in_full():
    options = {"uid": "me", "language": None, "send_last_n_segments": 2}
    old = segment(" Turn on.", 500, 1500, completed=True)
    completed = [segment(f" {n}", 2000, 2500, completed=True) for n in (1, 2)]
    assert converse(
        WhisperLive("", "me"),
        json.dumps(options),
        bytes(16000),
        partial("Turn", 500),
        final("Turn on.", 500),
        final("1", 2000),
        final("2", 2000),
        b"END_OF_AUDIO",
        Eos(seq=1, reason="stop"),
    ) == [
        {"uid": "me", "message": "SERVER_READY", "backend": "faster_whisper"},
        Start(encoding=Encoding.F32),
        bytes(16000),
        {"uid": "me", "segments": [segment(" Turn", 500, 1000, completed=False)]},
        {"uid": "me", "segments": [old]},
        {"uid": "me", "segments": [old, completed[0]]},
        {"uid": "me", "segments": completed},
        Stop(),
    ]


def test_whisperlive_with_words():
    options = {"uid": "me", "word_timestamps": True, "audio_format": "int16"}
    *_, told = converse(WhisperLive("", "me"), json.dumps(options), final("Turn"))
    assert told["segments"][0]["words"] == [
        {"word": " Turn", "probability": 1.0, "start": "0.000", "end": "0.500"}
    ]


def test_a_probability_that_a_model_does_not_tell_is_null_or_1_where_it_must_be_a_number():
    said = final("Turn on")
    unknown = replace(said, words=tuple(replace(word, prob=None) for word in said.words))
    spelled = Vosk(""), '{"config": {"words": true}}', bytes(2), unknown, bytes(2)
    options = json.dumps({"uid": "me", "word_timestamps": True, "audio_format": "int16"})
    assert converse(*spelled)[-1]["result"][0]["conf"] is None
    *_, told = converse(WhisperLive("", "me"), options, unknown)
    assert told["segments"][0]["words"][1]["probability"] is None
    (told,) = converse(Deepgram(LISTEN), unknown)
    (heard,) = told["channel"]["alternatives"]
    assert [heard["confidence"], *(word["confidence"] for word in heard["words"])] == [1, 1, 1]


@pytest.mark.parametrize(
    "dialect",
    [*(each(PCM) for each in DIALECTS.values()), WhisperLive("", "me")],
    ids=lambda dialect: type(dialect).__name__,
)
def test_who_finds_a_disk_full_is_told_so(dialect):
    told, close = refused(dialect, WireError("storage", "the disk is nearly full"))
    assert close in {Close(1013, "storage"), Close(3005, "storage")}
    assert "nearly full" in json.dumps(told) or isinstance(dialect, Vosk)  # it knows no errors


def test_whisperlive_waits_for_a_place_and_is_told_of_errors():
    full, close = refused(WhisperLive("", "me"), WireError("too_many_streams", "no room"))
    assert (full, close.code) == ([{"uid": "me", "status": "WAIT", "message": 1.0}], 1013)
    with pytest.raises(WireError, match="options") as error:
        converse(WhisperLive("", "me"), '{"uid":"me","send_last_n_segments":0}')
    (told,), _ = refused(WhisperLive("", "me"), error.value)
    assert (told["uid"], told["status"]) == ("me", "ERROR")


def test_the_first_message_tells_who_is_at_the_root():
    assert isinstance(introduced("", '{"uid":"me"}'), WhisperLive)
    for message in (b'{"uid":"me"}', '{"config":{}}', '{"uid":1}', "nonsense", "[" * 100_000):
        assert isinstance(introduced("", message), Vosk)


# What a client chooses for its session
def started(dialect: Dialect, *said: str) -> Start:
    """The `Start` of a client that sends audio after what it `said`."""
    (start,) = [act for act in converse(dialect, *said, bytes(4)) if isinstance(act, Start)]
    return start


@pytest.mark.parametrize(
    ("dialect", "said", "start"),
    [
        (Deepgram(LISTEN), (), Start(rate=8000)),
        (
            Deepgram(f"{LISTEN}&language=en-US&endpointing=10&keyterm=Ada&keyterm=Mary%20S"),
            (),
            Start(rate=8000, language="en", endpoint_ms=200, hotwords="Ada, Mary S"),
        ),
        (
            Deepgram(f"{LISTEN}&language=multi&endpointing=false&keywords=Ada:2"),
            (),
            Start(rate=8000, language="auto", hotwords="Ada"),
        ),
        (Deepgram(f"{LISTEN}&endpointing=500"), (), Start(rate=8000, endpoint_ms=500)),
        (Deepgram(f"{LISTEN}&endpointing=0"), (), Start(rate=8000, endpoint_ms=200)),
        (
            Deepgram("&".join([LISTEN, *["keyterm=a"] * 100])),
            (),
            Start(rate=8000, hotwords=", ".join("a" * 100)),
        ),
        (
            AssemblyAI(
                f"{WS}&language_codes=%5B%22de%22%5D&prompt=Bees.&min_turn_silence=400"
                "&keyterms_prompt=%5B%22Apis%22%2C%20%22mellifera%22%5D"
            ),
            (),
            Start(
                rate=8000,
                language="de",
                prompt="Bees.",
                hotwords="Apis, mellifera",
                endpoint_ms=400,
            ),
        ),
        (AssemblyAI(f"{WS}&language_code=de"), (), Start(rate=8000, language="de")),
        (
            AssemblyAI(f"{WS}&language_codes=%5B%22de%22%2C%22en%22%5D"),
            (),
            Start(rate=8000, language="de,en"),
        ),
        (
            WhisperLive("", "me"),
            (
                '{"uid":"me","language":"de","task":"translate","hotwords":"Apis",'
                '"initial_prompt":"Bees."}',
            ),
            Start(
                encoding=Encoding.F32,
                language="de",
                task="translate",
                prompt="Bees.",
                hotwords="Apis",
            ),
        ),
    ],
)
def test_what_a_client_chooses_reaches_its_session(dialect, said, start):
    assert started(dialect, *said) == start


# Audio
@given(st.sampled_from(["linear16", "linear32", "mulaw"]), st.integers(1, 8), st.data())
def test_a_stream_of_bytes_may_be_cut_anywhere(encoding, channels, data):
    stream = ByteStream(encoding, Start(channels=channels))
    audio = data.draw(st.binary(max_size=200))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(audio)), max_size=5)))
    pieces = [audio[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(audio)], strict=True)]
    start, *taken = [act for piece in pieces for act in stream.take(piece)]
    n_bytes = channels * start.encoding.n_bytes
    assert all(len(each) % n_bytes == 0 for each in taken)
    if encoding != "mulaw":
        assert b"".join(taken) == audio[: len(audio) // n_bytes * n_bytes]


@pytest.mark.parametrize(
    ("encoding", "codes", "samples"),
    [
        ("mulaw", "00 7e 80 ff", (-32124, -8, 32124, 0)),
        ("alaw", "2a 55 aa d5", (-32256, -8, 32256, 8)),
    ],
)
def test_telephone_audio_is_that_of_the_standard(encoding, codes, samples):
    _, taken = ByteStream(encoding, Start(rate=8000)).take(bytes.fromhex(codes))
    assert taken == struct.pack("<4h", *samples)


# All of them but our own
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
types = st.sampled_from(
    [
        *("Finalize", "KeepAlive", "CloseStream", "Configure", "Terminate", "ForceEndpoint"),
        *("ForceEndTurn", "?"),
    ]
)
messages = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=20),
    values.map(json.dumps),
    st.fixed_dictionaries({"type": types | values}, optional={"id": values}).map(json.dumps),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("config", "eof", "reset", "uid"), values)
    ).map(json.dumps),
    st.builds(lambda rate: json.dumps({"config": {"sample_rate": rate}}), values),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["transcribe", "audio-start", "audio-stop", "session.update"])},
        optional={"data": values, "session": values, "audio": values},
    ).map(json.dumps),
    st.sampled_from(["[" * 100_000, b"END_OF_AUDIO", '{"uid":"me"}', '{"eof":1}', '{"config":{}}']),
)
times = st.integers(0, 10_000)
events = st.one_of(
    st.builds(partial, st.text(max_size=20), times),
    st.builds(final, st.text(max_size=20), times),
    st.builds(Vad, speech=st.booleans(), t_ms=times),
    st.builds(
        TurnEvent,
        seg=st.just(0),
        state=st.sampled_from(["paused", "resumed", "ended", "?"]),
        t_ms=times,
        prob=st.floats(0, 1),
    ),
    st.builds(Fault, code=st.text(max_size=5), message=st.text(max_size=5), fatal=st.booleans()),
    st.builds(Flushed, id=st.text(max_size=5), seq=times),
    st.sampled_from(
        [
            Ack(samples=1),
            Gap(t_ms=0, duration_ms=20, why="pause"),
            Lag(lag_ms=1000),
            Missed(from_seq=1, to_seq=2, why="retention"),
            Started(samples=0),
            Stats(audio_ms=0, lag_ms=0, lost_ms=0, rtf=0.0, listeners=0),
        ]
    ),
)
FOREIGN = (
    *(kind for path, kind in DIALECTS.items() if path != STREAM_PATH),
    lambda query: WhisperLive(query, "me"),
    Wyoming,
)
"""What streamd.v1 passes on as it is, the session checks (test_fuzz.py)."""
queries = st.sampled_from(["", WS, LISTEN, f"{LISTEN}&utterance_end_ms=0"]) | st.text()


@given(st.sampled_from(FOREIGN), queries, st.lists(messages | events), st.booleans())
def test_anything_may_come_in_any_order(dialect_type, query, steps, ends):
    """The client sees JSON, the session whole samples after their format, and nobody a bug."""
    check(dialect_type(query), [*steps, *[Eos(seq=0, reason="stop")] * ends])


# On the port
async def test_whoever_listens_hears_what_a_foreign_client_feeds(streams):
    query = f"{PCM}&session=talk&interim_results=true"
    async with serving(streams) as server:
        path = "/v1/listen"
        async with client(server.port, query, path=path) as speaker:
            await speaker.say(bytes(1280))
            await speaker.get()
            async with joined(server.port, "session=talk&after=0") as listener:
                await speaker.say({"type": "CloseStream"})
                assert (await listener.until("final"))[-1]["text"] == "2 frames"
            *_, last, metadata = await speaker.rest()
            assert last["channel"]["alternatives"][0]["transcript"] == "2 frames"
            assert metadata["type"] == "Metadata"
            assert speaker.close_code == 1000
    assert streams.ingests["talk"].finished == "stop"


async def test_a_foreign_client_is_refused_in_its_own_words(streams, server):
    streams.max_streams = 0
    async with client(server.port, LISTEN, path="/v1/listen") as speaker:
        (error,) = await speaker.rest()
        assert (error["type"], error["variant"]) == ("Error", "too_many_streams")
        assert speaker.close_code == 1013


async def test_foreign_clients_count_as_speakers(streams):
    async with (
        serving(streams, max_streams=1) as server,
        client(server.port, LISTEN, path="/v1/listen"),
        client(server.port, LISTEN, path="/v1/listen"),
    ):
        with pytest.raises(InvalidStatus, match="503"):
            async with client(server.port, "role=both"):
                pass


@pytest.mark.parametrize(
    ("texts", "sent"),
    [
        (["turn", "turn on", "turn on."], ["turn", " on", "."]),
        (["okay guys", "Okay, guys. I want"], ["okay guys", ". I want"]),
        (["so, we", "So we meet"], ["so, we", " meet"]),
        (["I do.", "I do! Why"], ["I do.", " Why"]),
        (["don't", "Don't, please"], ["don't", ", please"]),
        (["turn on", "turn off"], ["turn on", ""]),
        (["客観的", "客観的実在"], ["客観的", "実在"]),
    ],
)
def test_each_word_is_sent_once(texts, sent):
    text = GrowingText()
    assert [text.more(each, 0) for each in texts] == sent


@pytest.mark.parametrize(
    "dialect",
    [
        kind("sample_rate=16000" if kind is AssemblyAI else PCM)
        for path, kind in DIALECTS.items()
        if path != STREAM_PATH
    ],
    ids=lambda each: type(each).__name__,
)
def test_protocols_of_others_say_nothing_of_sounds_and_notices(dialect):
    dialect.request()
    [*dialect.opened(HELLO)]
    for event in (
        Sound(label="music", start_ms=0, end_ms=500, prob=0.9),
        Notice(wanted="a", text="a", start_ms=0, end_ms=500),
    ):
        assert [*dialect.say(event)] == []
