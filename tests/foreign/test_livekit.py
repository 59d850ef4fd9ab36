"""The plugins of LiveKit Agents, unmodified: what an agent is told of a recording."""

import asyncio
from collections import Counter
from itertools import pairwise

import aiohttp
import numpy as np
import pytest
import soxr
from livekit import rtc
from livekit.agents.stt import SpeechEvent, SpeechEventType
from livekit.agents.utils import http_context
from livekit.plugins import deepgram, openai

from tests.foreign.conftest import assert_same_words


@pytest.fixture
async def http():
    """LiveKit's plugins share a session of aiohttp, which its workers usually make."""
    http_context._new_session_ctx()
    async with aiohttp.ClientSession() as session:
        yield session
    await http_context._close_http_ctx()


async def heard(stt, speech: np.ndarray, rate: int, *, halfway=None) -> list[SpeechEvent]:
    """All events of a stream that is pushed as fast as it can be, until its last final.

    `halfway` is called between the two halves of the audio.
    """
    samples = soxr.resample(speech, 16_000, rate).astype("<i2") if rate != 16_000 else speech
    stream, events = stt.stream(), []
    for begin in range(0, len(samples), rate // 20):
        piece = samples[begin : begin + rate // 20]
        stream.push_frame(rtc.AudioFrame(piece.tobytes(), rate, 1, len(piece)))
        if halfway and begin <= len(samples) // 2 < begin + rate // 20:
            await asyncio.wait_for(anext(stream), 30)  # the session has audio
            halfway()
    stream.flush()
    async for event in stream:
        events.append(event)
        if event.type is SpeechEventType.FINAL_TRANSCRIPT and text(events).rstrip(".!").endswith(
            "can do for your country"
        ):
            break
    await stream.aclose()
    return events


def text(events: list[SpeechEvent]) -> str:
    finals = [each for each in events if each.type is SpeechEventType.FINAL_TRANSCRIPT]
    return " ".join(each.alternatives[0].text for each in finals)


def order(events: list[SpeechEvent]) -> list[str]:
    return [each.type.value for each in events if each.alternatives or "speech" in each.type.value]


@pytest.mark.parametrize("halfway", [None, {"prompt": "Kennedy"}, {"keywords": ["fellow"]}])
async def test_openai_realtime_goes_on_when_its_options_change(
    server, http, speech, native, came_back, halfway
):
    model = "gpt-transcribe" if halfway and "keywords" in halfway else "gpt-4o-mini-transcribe"
    stt = openai.STT(
        base_url=f"{server.http}/v1",
        api_key=server.token,
        model=model,
        use_realtime=True,
        detect_language=True,  # so it only knows what it is told
    )
    update = (lambda: stt.update_options(**halfway)) if halfway else None
    events = await heard(stt, speech, 24_000, halfway=update)
    same = assert_same_words(text(events), native, share=0.3)
    kinds = Counter(each.type.value for each in events)
    finals = [each for each in events if each.type is SpeechEventType.FINAL_TRANSCRIPT]
    assert all(str(each.alternatives[0].language) == "en" for each in finals)
    if not halfway:
        assert order(events)[0] == "start_of_speech"
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    came_back("livekit-plugins-openai", f"realtime, {halfway or 'as it is'}", f"{told}; {same}")


async def test_deepgram(server, http, speech, native, came_back):
    stt = deepgram.STT(
        base_url=f"{server.http}/v1/listen",
        api_key=server.token,
        http_session=http,
        sample_rate=16_000,
    )
    events = await heard(stt, speech, 16_000)
    same = assert_same_words(text(events), native, share=0.3)
    assert order(events)[0] == "start_of_speech"
    came_back("livekit-plugins-deepgram", "STT", f"{len(events)} events; {same}")


async def test_flux(server, http, speech, native, came_back):
    stt = deepgram.STTv2(
        base_url=f"{server.http}/v2/listen",
        api_key=server.token,
        http_session=http,
        sample_rate=16_000,
        eager_eot_threshold=0.4,
        eot_timeout_ms=1_000,
    )
    change = lambda: stt.update_options(eot_threshold=0.6, keyterm=["fellow"])  # noqa: E731
    events = await heard(stt, speech, 16_000, halfway=change)
    same = assert_same_words(text(events), native, share=0.3)
    told = order(events)
    assert told.index("interim_transcript") < told.index("final_transcript")
    assert all(following == "end_of_speech" for following in after(told, "final_transcript"))
    came_back("livekit-plugins-deepgram", "STTv2 (Flux)", f"{len(events)} events; {same}")


def after(kinds: list[str], kind: str) -> list[str]:
    """What followed each of this kind, but for the last event of all."""
    return [following for each, following in pairwise(kinds) if each == kind]
