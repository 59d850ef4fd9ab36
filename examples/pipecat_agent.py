"""A pipeline of Pipecat that listens with streamd: python pipecat_agent.py ws://HOST:PORT talk.wav.

Needs pipecat-ai[deepgram], and `streamd serve`. It plays a recording of one channel to the pipeline
in real time; with a transport in place of `play` it is an agent.
"""

import asyncio
import os
import sys
import wave

from pipecat.frames.frames import EndFrame, Frame, InputAudioRawFrame, TranscriptionFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.workers.runner import WorkerRunner


def answer(said: str) -> str:
    """Return what to say; put a language model here, or its service into the pipeline."""
    return f"You said {len(said.split())} words."


class Echo(FrameProcessor):
    """Answers each turn."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Somebody is done when there is a transcription."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame) and frame.text:
            print(f"> {frame.text}\n{answer(frame.text)}", flush=True)
        await self.push_frame(frame, direction)


async def play(worker: PipelineWorker, path: str, rate: int) -> None:
    """Play the recording, and four seconds of silence after it."""
    with wave.open(path) as recording:
        audio = recording.readframes(1 << 30) + bytes(8 * rate)
    n_bytes = rate // 50 * 2
    for begin in range(0, len(audio), n_bytes):
        await asyncio.sleep(0.02)
        await worker.queue_frame(InputAudioRawFrame(audio[begin : begin + n_bytes], rate, 1))
    await worker.queue_frame(EndFrame())


async def main(address: str, path: str) -> None:
    """Listen to the recording."""
    with wave.open(path) as recording:
        rate = recording.getframerate()
    ear = DeepgramFluxSTTService(
        url=f"{address}/v2/listen",
        api_key=os.environ.get("STREAMD_TOKEN", "none"),
        settings=DeepgramFluxSTTService.Settings(eot_timeout_ms=2_000),  # end any turn
    )
    params = PipelineParams(audio_in_sample_rate=rate)
    worker = PipelineWorker(Pipeline([ear, Echo()]), params=params, cancel_on_idle_timeout=False)
    ready = asyncio.Event()
    worker.event_handler("on_pipeline_started")(lambda *_: ready.set())
    runner = WorkerRunner()
    await runner.add_workers(worker)

    async def begin() -> None:
        await ready.wait()
        await play(worker, path, rate)

    await asyncio.gather(runner.run(), begin())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
