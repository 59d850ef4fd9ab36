"""Home Assistant's own client of Wyoming, unmodified."""

import numpy as np
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info

from tests.foreign.conftest import assert_same_words

FORM = {"rate": 16_000, "width": 2, "channels": 1}


async def transcribe(client: AsyncTcpClient, speech: np.ndarray) -> list:
    await client.write_event(Transcribe(language="en").event())
    await client.write_event(AudioStart(**FORM).event())
    for begin in range(0, len(speech), 1024):
        audio = speech[begin : begin + 1024].tobytes()
        await client.write_event(AudioChunk(**FORM, audio=audio).event())
    await client.write_event(AudioStop().event())
    events = []
    while not (events and TranscriptStop.is_type(events[-1].type)):
        events.append(await client.read_event())
        assert events[-1] is not None
    return events


async def test_a_recording_twice(wyoming_port, speech, native, came_back):
    async with AsyncTcpClient("127.0.0.1", wyoming_port) as client:
        for _ in range(2):
            start, *chunks, transcript, _ = await transcribe(client, speech)
            assert TranscriptStart.is_type(start.type)
            text = Transcript.from_event(transcript).text
            same = assert_same_words(text, native)
            assert "".join(TranscriptChunk.from_event(chunk).text for chunk in chunks) == text
    came_back("wyoming", "a recording", f"{len(chunks)} chunks, joining to the transcript; {same}")


async def test_what_home_assistant_asks_first(wyoming_port, came_back):
    async with AsyncTcpClient("127.0.0.1", wyoming_port) as client:
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await client.read_event()).asr
        (model,) = program.models
        assert (program.name, model.languages) == ("streamd", ["en"])
        assert program.supports_transcript_streaming
        came_back("wyoming", "describe", f"{program.name} with {model.name}")


async def test_an_error(wyoming_port, came_back):
    async with AsyncTcpClient("127.0.0.1", wyoming_port) as client:
        await client.write_event(AudioStart(rate=16_000, width=5, channels=1).event())
        error = Error.from_event(await client.read_event())
        assert "1 to 4 bytes" in error.text
        assert await client.read_event() is None
        came_back("wyoming", "samples of 5 bytes", f"Error {error.code}")
