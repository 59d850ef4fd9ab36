"""OpenAI's own SDK, unmodified, against the port: live transcription."""

import asyncio
import os
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import openai
import pytest
import soxr

from tests.foreign.conftest import assert_same_words, told_natively
from tests.support.nats import free_port


@pytest.fixture
async def sdk(server):
    async with openai.AsyncOpenAI(
        base_url=f"{server.http}/v1",
        websocket_base_url=f"{server.ws}/v1",
        api_key=server.token,
        max_retries=0,
    ) as client:
        yield client


def asking(turn_detection: dict[str, object] | None) -> dict[str, object]:
    form = {"type": "audio/pcm", "rate": 24_000}
    transcription = {"model": "whisper-1", "language": "en"}
    given = {"format": form, "transcription": transcription, "turn_detection": turn_detection}
    return {"type": "transcription", "audio": {"input": given}}


def resampled(speech: np.ndarray) -> np.ndarray:
    return soxr.resample(speech, 16_000, 24_000).astype("<i2")


@pytest.fixture(scope="module")
def native_resampled(server, speech) -> str:
    """What a native client is told of the same samples: some words are read otherwise in them."""
    return told_natively(server, resampled(speech), 24_000)


async def listen(sdk, speech: np.ndarray, turn_detection) -> list:
    """All events until the last word of the audio is there, and the answer to an empty commit."""
    audio = resampled(speech).tobytes()
    events = []
    async with sdk.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        await connection.session.update(session=asking(turn_detection))

        async def send() -> None:
            for begin in range(0, len(audio), 9600):
                piece = b64encode(audio[begin : begin + 9600]).decode()
                await connection.input_audio_buffer.append(audio=piece)
            await connection.input_audio_buffer.commit()
            await connection.input_audio_buffer.commit()  # of nothing

        sending = asyncio.create_task(send())
        last = ""  # how many pauses end an item depends on when the engine is free
        async for event in connection:
            events.append(event)
            last = event.transcript if event.type.endswith(".completed") else last
            is_over = last.rstrip(".").endswith("your country")
            if is_over and any(each.type == "error" for each in events):
                break
        await sending
    return events


@pytest.mark.parametrize("turn_detection", [{"type": "server_vad"}, None])
async def test_a_recording(sdk, speech, native_resampled, came_back, turn_detection):
    events = await listen(sdk, speech, turn_detection)
    kinds = Counter(event.type.rpartition(".")[2] for event in events)
    assert [event.type for event in events[:2]] == ["session.created", "session.updated"]
    items = [event for event in events if event.type.endswith("transcription.completed")]
    same = assert_same_words(" ".join(item.transcript for item in items), native_resampled)
    for item in items:
        deltas = [
            e.delta for e in events if e.type.endswith(".delta") and e.item_id == item.item_id
        ]
        assert "".join(deltas) == item.transcript
        assert item.usage.seconds >= 1
    (error,) = [event.error for event in events if event.type == "error"]
    assert error.code == "input_audio_buffer_commit_empty"
    mode = "turn detection" if turn_detection else "one commit"
    came_back(
        "openai",
        f"realtime transcription, {mode}",
        f"{len(items)} items, {kinds['delta']} deltas, which join to the transcripts; {same}",
    )


@asynccontextmanager
async def killed_at_the_end(port: int) -> AsyncIterator[None]:
    """A server that is killed with -9 at the end."""
    program = str(Path(sys.executable).with_name("streamd"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *(program, "serve", "--port", str(port)), stderr=asyncio.subprocess.PIPE, env=environment
    )
    while b"listening on" not in await process.stderr.readline():
        assert process.returncode is None
    yield
    process.kill()
    await process.communicate()


async def test_it_comes_back_by_itself_after_its_server_was_killed(
    speech, native_resampled, came_back
):
    port, attempts = free_port(), []
    audio = resampled(speech).tobytes()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(killed_at_the_end(port))
        base = f"ws://127.0.0.1:{port}/v1"
        client = openai.AsyncOpenAI(websocket_base_url=base, api_key="any", max_retries=0)
        connecting = client.realtime.connect(
            extra_query={"intent": "transcription"},
            on_reconnecting=attempts.append,
            max_retries=100,
            max_delay=0.5,
        )
        connection = await stack.enter_async_context(connecting)
        await connection.session.update(session=asking(None))
        async for event in connection:
            if event.type == "session.updated" and not attempts:
                await first.aclose()
                await stack.enter_async_context(killed_at_the_end(port))
            elif event.type == "session.created" and attempts:  # it knows nothing of the first
                await connection.session.update(session=asking(None))
                for begin in range(0, len(audio), 9600):
                    piece = b64encode(audio[begin : begin + 9600]).decode()
                    await connection.input_audio_buffer.append(audio=piece)
                await connection.input_audio_buffer.commit()
            elif event.type.endswith("transcription.completed"):
                break
    same = assert_same_words(event.transcript, native_resampled)
    came_back("openai", "realtime transcription, a server killed and started again", same)


async def test_strangers_are_refused(sdk, came_back):
    stranger = sdk.with_options(api_key="wrong")
    with pytest.raises(Exception, match="401") as caught:
        async with stranger.realtime.connect(extra_query={"intent": "transcription"}):
            pass
    came_back("openai", "realtime transcription, a wrong token", type(caught.value).__name__)
