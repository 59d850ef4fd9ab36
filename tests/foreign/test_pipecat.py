"""Pipecat's own services, unmodified: what a pipeline is told of a recording."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    STTUpdateSettingsFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService
from pipecat.workers.runner import WorkerRunner

from tests.foreign.conftest import assert_same_words

TENTH = 3200


class Ear(FrameProcessor):
    """The end of the pipeline, which keeps what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self._moved = asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        self._moved.set()
        await self.push_frame(frame, direction)

    async def until(self, condition: Callable[[list[Frame]], bool]) -> None:
        while not condition(self.frames):
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 60)


async def heard(stt, frames: Iterable[Frame]) -> list[Frame]:
    """All frames until the last words of the recording are there, or an error."""
    ear, errors = Ear(), []
    worker = PipelineWorker(
        Pipeline([stt, ear]),
        params=PipelineParams(audio_in_sample_rate=16_000),
        cancel_on_idle_timeout=False,
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _started(worker, frame):
        started.set()

    @stt.event_handler("on_connection_error")
    async def _failed(stt, error):
        errors.append(error)

    async def push() -> None:
        await started.wait()
        for frame in frames:
            await worker.queue_frame(frame)
        await ear.until(lambda frames: ends(text(frames)) or of(frames, ErrorFrame))
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), push())
    assert not errors
    assert not of(ear.frames, ErrorFrame)
    return ear.frames


def of(frames: list[Frame], kind: type) -> list[Frame]:
    return [frame for frame in frames if isinstance(frame, kind)]


def text(frames: list[Frame]) -> str:
    return " ".join(frame.text for frame in of(frames, TranscriptionFrame))


def ends(said: str) -> bool:
    return said.rstrip(".!").endswith("can do for your country")


def spoken(speech: np.ndarray, change: Frame | None = None) -> Iterable[Frame]:
    """The recording as a transport with a local voice detector sends it, changed in the middle."""
    audio = speech.tobytes()
    yield VADUserStartedSpeakingFrame()
    for begin in range(0, len(audio), TENTH):
        yield InputAudioRawFrame(audio[begin : begin + TENTH], 16_000, 1)
        if change and begin <= len(audio) // 2 < begin + TENTH:
            yield change
    yield VADUserStoppedSpeakingFrame()


def table(frames: list[Frame]) -> str:
    kinds = Counter(type(frame).__name__ for frame in frames)
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items() if "Transcription" in kind)


async def test_openai_realtime_with_a_local_voice_detector(server, speech, native, came_back):
    stt = OpenAIRealtimeSTTService(
        api_key=server.token,
        base_url=f"{server.ws}/v1/realtime",
        settings=OpenAIRealtimeSTTService.Settings(model="gpt-transcribe"),
    )
    change = STTUpdateSettingsFrame(delta=OpenAIRealtimeSTTService.Settings(prompt="Kennedy"))
    frames = await heard(stt, spoken(speech, change))
    same = assert_same_words(text(frames), native, share=0.3)
    first = next(n for n, each in enumerate(frames) if isinstance(each, TranscriptionFrame))
    assert of(frames[:first], InterimTranscriptionFrame), "words come before the commit's answer"
    came_back("pipecat-ai", "OpenAIRealtimeSTTService", f"{table(frames)}; {same}")


async def test_deepgram(server, speech, native, came_back):
    stt = DeepgramSTTService(api_key=server.token, base_url=server.ws)
    frames = await heard(stt, spoken(speech[:-32_000]))  # it stops before the last pause ends
    same = assert_same_words(text(frames), native, share=0.3)
    assert {str(each.language) for each in of(frames, TranscriptionFrame)} == {"en"}
    assert of(frames, TranscriptionFrame)[-1].finalized, "it knows the answer to its Finalize"
    came_back("pipecat-ai", "DeepgramSTTService", f"{table(frames)}; {same}")


async def test_flux(server, speech, native, came_back):
    stt = DeepgramFluxSTTService(
        api_key=server.token,
        url=f"{server.ws}/v2/listen",
        settings=DeepgramFluxSTTService.Settings(eager_eot_threshold=0.4, eot_timeout_ms=1_000),
    )
    change = STTUpdateSettingsFrame(
        delta=DeepgramFluxSTTService.Settings(eot_threshold=0.6, keyterm=["fellow"])
    )
    frames = await heard(stt, spoken(speech, change))
    same = assert_same_words(text(frames), native, share=0.3)
    kinds = [type(frame).__name__ for frame in frames]
    assert "ProposedUserStartedSpeakingFrame" in kinds
    assert kinds.index("InterimTranscriptionFrame") < kinds.index("TranscriptionFrame")
    came_back("pipecat-ai", "DeepgramFluxSTTService", f"{table(frames)}; {same}")
