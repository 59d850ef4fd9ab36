"""deepgram-sdk, as its readers are told to use it."""

import io
import threading
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import soundfile
from deepgram import AsyncDeepgramClient, DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment
from deepgram.listen.v1.types import ListenV1Error
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from tests.foreign.conftest import assert_same_words, told_natively

OPTIONS = {"model": "nova-3", "encoding": "linear16", "sample_rate": "16000"}


def environment(server):
    return DeepgramClientEnvironment(
        base=server.http, production=server.ws, agent=server.ws, agent_rest=server.http
    )


@contextmanager
def listening(server, key=None, **options):
    """A connection, all that came back, and its thread; as the examples of the SDK have it."""
    client = DeepgramClient(api_key=key or server.token, environment=environment(server))
    with client.listen.v1.connect(**OPTIONS | options) as connection:
        got = []
        connection.on(EventType.MESSAGE, got.append)
        connection.on(EventType.ERROR, got.append)
        thread = threading.Thread(target=connection.start_listening, daemon=True)
        thread.start()
        yield connection, got, thread


def test_a_recording_with_everything_that_can_be_asked_for(server, speech, native, came_back):
    everything = {
        "interim_results": "true",
        "vad_events": "true",
        "utterance_end_ms": "1000",
        "endpointing": "300",
        "punctuate": "true",
        "smart_format": "true",
        "language": "en-US",
    }
    audio = speech.tobytes()
    with listening(server, **everything) as (connection, got, thread):
        for begin in range(0, len(audio), 3201):  # samples are cut in two
            connection.send_media(audio[begin : begin + 3201])
        connection.send_keep_alive()
        connection.send_finalize()
        connection.send_close_stream()
        thread.join(60)
    kinds = Counter(message.type for message in got)
    results = [message for message in got if message.type == "Results"]
    finals = [message for message in results if message.is_final]
    bests = [message.channel.alternatives[0] for message in finals if message.duration]
    same = assert_same_words(" ".join(best.transcript for best in bests), native)
    assert all(message.speech_final for message in finals)
    assert any(message.from_finalize for message in finals)
    assert all(0 < word.confidence <= 1 for best in bests for word in best.words)
    for best in bests:  # marks depend on where utterances end
        assert [word.punctuated_word for word in best.words] == best.transcript.split()
    times = [time for best in bests for word in best.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert kinds["SpeechStarted"] >= len(bests)
    assert kinds["UtteranceEnd"] == len(bests)
    assert got[-1].type == "Metadata"
    assert got[-1].duration == len(speech) / 16000
    came_back(
        "deepgram-sdk",
        "listen.v1.connect: interim results, Finalize, CloseStream",
        ", ".join(f"{n} {kind}" for kind, n in kinds.items()) + f", {len(bests)} final; {same}",
    )


def test_telephone_audio(server, speech, came_back):
    """In the 8-bit samples of G.711, and without interim results."""
    audio = io.BytesIO()
    soundfile.write(audio, speech, 16_000, format="RAW", subtype="ULAW")
    audio.seek(0)
    heard, _ = soundfile.read(
        audio, format="RAW", subtype="ULAW", samplerate=16_000, channels=1, dtype="int16"
    )
    with listening(server, encoding="mulaw") as (connection, got, thread):
        connection.send_media(audio.getvalue())
        connection.send_close_stream()
        thread.join(60)
    *results, metadata = got
    text = " ".join(each.channel.alternatives[0].transcript for each in results)
    same = assert_same_words(text, told_natively(server, heard))
    assert metadata.duration == len(speech) / 16000
    came_back(
        "deepgram-sdk", "listen.v1.connect: mulaw", f"{len(results)} Results, 1 Metadata; {same}"
    )


def test_flux(server, speech, native, came_back):
    client = DeepgramClient(api_key=server.token, environment=environment(server))
    options = {"model": "flux-general-en", "encoding": "linear16", "sample_rate": "16000"}
    got = []
    with client.listen.v2.connect(**options) as connection:
        connection.on(EventType.MESSAGE, got.append)
        thread = threading.Thread(target=connection.start_listening, daemon=True)
        thread.start()
        connection.send_media(speech[:-32_000].tobytes())
        connection.send_configure({"type": "Configure", "thresholds": {"eot_threshold": 0.6}})
        connection.send_force_end_turn()
        connection.send_close_stream()
        thread.join(60)
    kinds = Counter(getattr(message, "event", message.type) for message in got)
    ended = [message for message in got if getattr(message, "event", "") == "EndOfTurn"]
    same = assert_same_words(" ".join(turn.transcript for turn in ended), native, share=0.3)
    assert got[0].type == "Connected"
    assert [message.sequence_id for message in got] == list(range(len(got)))
    assert {turn.trigger for turn in ended} <= {"model", "manual"}
    assert [turn.turn_index for turn in ended] == list(range(len(ended)))
    assert all(turn.languages == ["en"] for turn in ended)
    assert kinds["ConfigureSuccess"] == 1
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    came_back("deepgram-sdk", "listen.v2.connect (Flux)", f"{told}; {same}")


async def test_the_asynchronous_client(server, speech, native, came_back):
    client = AsyncDeepgramClient(api_key=server.token, environment=environment(server))
    async with client.listen.v1.connect(**OPTIONS) as connection:
        await connection.send_media(speech.tobytes())
        await connection.send_close_stream()
        *results, metadata = [message async for message in connection]
    same = assert_same_words(
        " ".join(each.channel.alternatives[0].transcript for each in results), native
    )
    assert metadata.type == "Metadata"
    came_back("deepgram-sdk", "AsyncDeepgramClient", f"{len(results)} Results, 1 Metadata; {same}")


def test_errors_are_the_ones_of_the_client(server, came_back):
    # With websockets 14 and later it fails to turn this into its ApiError, whatever the server.
    with pytest.raises(InvalidStatus, match="401"), listening(server, key="wrong"):
        pass
    with listening(server, encoding="amr-nb") as (_, got, thread):
        thread.join(60)
    error, closed = got
    assert isinstance(error, ListenV1Error)
    assert "encoding" in error.description
    assert isinstance(closed, ConnectionClosedError)
    assert (closed.rcvd.code, closed.rcvd.reason) == (1008, "bad_query")
    with listening(server, sample_rate=None) as (_, got, thread):
        thread.join(60)
    assert (got[0].variant, got[1].rcvd.reason) == ("bad_audio", "DATA-0000")
    with listening(server) as (connection, got, thread):
        connection._send("nonsense")
        thread.join(60)
    assert got[0].variant == "bad_message"
    with listening(server, language="de") as (connection, got, thread):
        connection.send_media(bytes(3200))
        thread.join(60)
    assert (got[0].variant, got[1].rcvd.code) == ("bad_option", 1008)
    assert "knows en only" in got[0].description
    came_back("deepgram-sdk", "wrong key; AMR; no rate; German", "401; ListenV1Error, 1008")


def test_ogg_opus_as_a_browser_records_it(server, speech, native, came_back):
    file = io.BytesIO()
    # Opus needs a moment before a first word that begins with the recording.
    speech = np.concatenate((np.zeros(8000, np.int16), speech))
    soundfile.write(file, speech, 16_000, format="OGG", subtype="OPUS")
    audio = file.getvalue()
    with listening(server, encoding=None, sample_rate=None) as (connection, got, thread):
        for begin in range(0, len(audio), 1000):
            connection.send_media(audio[begin : begin + 1000])
        connection.send_close_stream()
        thread.join(60)
    finals = [message for message in got if message.type == "Results" and message.is_final]
    said = " ".join(message.channel.alternatives[0].transcript for message in finals)
    same = assert_same_words(said, native)
    assert got[-1].type == "Metadata"
    came_back("deepgram-sdk", "listen.v1.connect: Ogg Opus without encoding", same)


def test_a_recording_in_one_request(server, speech, native, came_back):
    file = io.BytesIO()
    soundfile.write(file, speech, 16_000, format="FLAC")
    client = DeepgramClient(api_key=server.token, environment=environment(server))
    asked = {"model": "nova-3", "smart_format": True, "diarize": True, "utterances": True}
    got = client.listen.v1.media.transcribe_file(request=file.getvalue(), **asked)
    best = got.results.channels[0].alternatives[0]
    same = assert_same_words(best.transcript, native)
    assert [word.punctuated_word for word in best.words] == best.transcript.split()
    assert {word.speaker for word in best.words} <= {0, 1, 2}  # three recordings
    assert " ".join(each.transcript for each in got.results.utterances) == best.transcript
    assert got.metadata.duration == len(speech) / 16000
    with pytest.raises(ApiError, match="addresses are not fetched"):
        client.listen.v1.media.transcribe_url(url="http://127.0.0.1/a.wav")
    came_back("deepgram-sdk", "listen.v1.media: transcribe_file, diarize, utterances", same)
