"""The client of WhisperLive, whose modules for microphones and video files are left out."""

import sys
from types import ModuleType

import pytest

from tests.foreign.conftest import assert_same_words

for name in ("pyaudio", "av", "scipy"):
    sys.modules.setdefault(name, ModuleType(name))

from whisper_live.client import StreamingTranscriptionClient  # noqa: E402 - needs those modules


def test_a_recording(server, speech, native, came_back):
    host, port = server.host.split(":")
    committed, partials = [], []
    client = StreamingTranscriptionClient(
        host,
        f"{port}/?token={server.token}",
        lang="en",
        on_committed_transcript=lambda text, _: committed.append(text),
        on_partial_transcript=lambda text, _: partials.append(text),
    )
    client.connect()
    audio = speech.tobytes()
    for begin in range(0, len(audio), 3200):
        client.send(audio[begin : begin + 3200])
    client.close(timeout=60)
    same = assert_same_words(" ".join(committed), native)
    assert partials
    assert [segment["text"].strip() for segment in client.transcript] == committed
    came_back(
        "whisper-live",
        "StreamingTranscriptionClient",
        f"{len(partials)} partial and {len(committed)} committed transcripts; {same}",
    )


def test_errors_are_the_ones_of_the_client(server, came_back):
    host, port = server.host.split(":")
    errors = []
    client = StreamingTranscriptionClient(
        host, f"{port}/?token=wrong", ready_timeout=5, on_error=errors.append
    )
    with pytest.raises(RuntimeError):
        client.connect()
    came_back("whisper-live", "wrong token", "RuntimeError")
