"""The SDK of AssemblyAI."""

import io
import threading
from collections import Counter

import numpy as np
import soundfile
from assemblyai.streaming.v3 import (
    StreamingClient,
    StreamingClientOptions,
    StreamingError,
    StreamingEvents,
    StreamingParameters,
)

from tests.foreign.conftest import assert_same_words


def transcribe(server, audio: bytes, *, key: str = "", **parameters: object) -> list[object]:
    """All that the handlers of a client are told; errors as the SDK raises them."""
    options = StreamingClientOptions(
        api_key=key or server.token, api_host=server.ws, terminate_timeout=60
    )
    client = StreamingClient(options)
    got, over = [], threading.Event()
    for event in StreamingEvents:
        client.on(event, lambda _, message: got.append(message))
    client.on(StreamingEvents.Error, lambda *_: over.set())
    client.connect(
        StreamingParameters(**{"sample_rate": 16_000, "format_turns": True} | parameters)
    )
    if parameters.get("encoding") == "opus" or key:
        assert over.wait(60)
        client.disconnect()
        return got
    for begin in range(0, len(audio), 3200):
        client.stream(audio[begin : begin + 3200])
    client.keep_alive()
    client.force_endpoint()
    client.disconnect(terminate=True)
    return got


def test_a_recording(server, speech, native, came_back):
    got = transcribe(server, speech.tobytes())
    kinds = Counter(message.type for message in got)
    turns = [message for message in got if message.type == "Turn"]
    ended = [turn for turn in turns if turn.end_of_turn]
    same = assert_same_words(" ".join(turn.transcript for turn in ended), native)
    for turn in ended:  # marks depend on where utterances end
        assert [word.text for word in turn.words] == turn.transcript.split()
    assert (got[0].type, got[-1].type) == ("Begin", "Termination")
    assert got[-1].audio_duration_seconds == len(speech) // 16_000
    for turn in ended:
        before = [each for each in turns if each.turn_order == turn.turn_order]
        assert all(turn.transcript.startswith(each.transcript.rstrip(".,?!")) for each in before)
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    came_back("assemblyai", "StreamingClient", f"{told}, {len(ended)} ended; {same}")


def test_ogg_opus(server, speech, native, came_back):
    file = io.BytesIO()
    # Opus needs a moment before a first word that begins with the recording.
    speech = np.concatenate((np.zeros(8000, np.int16), speech))
    soundfile.write(file, speech, 16_000, format="OGG", subtype="OPUS")
    got = transcribe(server, file.getvalue(), encoding="ogg_opus", sample_rate=None)
    ended = [message for message in got if message.type == "Turn" and message.end_of_turn]
    same = assert_same_words(" ".join(turn.transcript for turn in ended), native)
    told_s = got[-1].audio_duration_seconds
    assert ended[-1].words[-1].end // 1000 <= told_s <= len(speech) // 16_000
    came_back("assemblyai", "StreamingClient: Ogg Opus", same)


def test_errors_are_the_ones_of_the_client(server, came_back):
    (refused,) = transcribe(server, b"", key="wrong")
    (invalid,) = transcribe(server, b"", encoding="opus")
    assert isinstance(refused, StreamingError)
    assert isinstance(invalid, StreamingError)
    assert (refused.code, invalid.code) == (401, 3006)
    assert "encoding" in str(invalid)
    came_back("assemblyai", "wrong key; opus", "StreamingError 401; StreamingError 3006")
