"""An agent of LiveKit that listens with streamd: python livekit_agent.py ws://HOST:PORT talk.wav.

Needs livekit-agents and livekit-plugins-deepgram, and `streamd serve`. It plays a recording of one
channel to the agent in real time, without a room: an agent in a room is the same but for `Player`.
"""

import asyncio
import os
import sys
import wave

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentSession, ChatContext, ChatMessage, StopResponse
from livekit.agents.voice.io import AudioInput
from livekit.plugins import deepgram


def answer(said: str) -> str:
    """Return what to say; put a language model here, or give the session one."""
    return f"You said {len(said.split())} words."


class Echo(Agent):
    """Answers each turn."""

    def __init__(self) -> None:
        super().__init__(instructions="")

    async def on_user_turn_completed(self, turn_ctx: ChatContext, new_message: ChatMessage) -> None:
        """Somebody is done."""
        said = new_message.text_content or ""
        print(f"> {said}\n{answer(said)}", flush=True)
        raise StopResponse  # there is no language model


class Player(AudioInput):
    """A recording, and silence after it."""

    def __init__(self, path: str) -> None:
        super().__init__(label=path)
        with wave.open(path) as recording:
            self._rate, self._audio = recording.getframerate(), recording.readframes(1 << 30)
        self._n_played = 0
        self.over = asyncio.Event()

    async def __anext__(self) -> rtc.AudioFrame:
        """Return the next 20 ms when they are over."""
        n_bytes = self._rate // 50 * 2
        await asyncio.sleep(0.02)
        piece = self._audio[self._n_played : self._n_played + n_bytes].ljust(n_bytes, b"\0")
        self._n_played += n_bytes
        if self._n_played > len(self._audio) + 8 * self._rate:  # four seconds later
            self.over.set()
        return rtc.AudioFrame(piece, self._rate, 1, n_bytes // 2)


async def main(address: str, path: str) -> None:
    """Listen to the recording."""
    async with aiohttp.ClientSession() as http:
        ear = deepgram.STTv2(
            base_url=f"{address}/v2/listen".replace("ws", "http", 1),
            api_key=os.environ.get("STREAMD_TOKEN", "none"),
            http_session=http,
            eot_timeout_ms=2_000,  # of silence end a turn however it sounds
        )
        session: AgentSession[None] = AgentSession(stt=ear, turn_detection="stt")
        player = session.input.audio = Player(path)
        await session.start(Echo())
        await player.over.wait()
        await session.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
