"""The speaking client of clients/python against the real server, on lines that break."""

import asyncio
import importlib.util
import os
import sys
import wave
from asyncio.subprocess import PIPE
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.options import Choices
from tests.support.loop import turn
from tests.support.serving import CountingIngest, CountingStreams, Relay, serving

SPEAK = Path(__file__).parents[2] / "clients" / "python" / "speak.py"
_spec = importlib.util.spec_from_file_location("speak", SPEAK)
speak = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(speak)

speak.FIRST_PAUSE_S = 0.001  # so that no test waits
RAMP = np.arange(1, 30_001, dtype="<i2")


def heard(ingest: CountingIngest) -> np.ndarray:
    """The ramp as it arrived, less what pads the last frame."""
    samples = np.rint(ingest.samples() * 32768).astype(np.int32)
    return samples[: np.flatnonzero(samples)[-1] + 1]


async def say(speaker, samples: np.ndarray, *, piece: int = 700) -> None:
    for start in range(0, len(samples), piece):
        await speaker.send(samples[start : start + piece].tobytes())
        await turn()


async def test_the_ramp_arrives_and_everything_is_acknowledged():
    streams, messages = CountingStreams(), []
    async with serving(streams) as server:
        url = f"ws://127.0.0.1:{server.port}"
        async with speak.Speaker(url, "talk", on_message=messages.append) as speaker:
            await say(speaker, RAMP)
            await speaker.stop()
    assert np.array_equal(heard(streams.ingests["talk"]), RAMP)
    assert streams.ingests["talk"].finished == "stop"
    assert [m["samples"] for m in messages if m["type"] == "ack"][-1] == len(RAMP)
    assert messages[-1]["type"] == "eos"


@settings(max_examples=settings().max_examples // 2)
@given(cuts=st.lists(st.integers(1, 40_000), max_size=8))
def test_not_a_sample_is_lost_or_doubled_wherever_the_line_breaks(cuts):
    async def run() -> None:
        streams = CountingStreams()
        async with (
            serving(streams) as server,
            Relay(server.port, cut_after=cuts) as relay,
            speak.Speaker(f"ws://127.0.0.1:{relay.port}", "talk") as speaker,
        ):
            await say(speaker, RAMP)
            await speaker.stop()
        ingest = streams.ingests["talk"]
        assert np.array_equal(heard(ingest), RAMP)
        assert (ingest.finished, ingest.gaps) == ("stop", [])

    asyncio.run(run())


async def test_a_server_that_knows_nothing_any_more_gets_all_that_was_not_acknowledged():
    first, second = CountingStreams(), CountingStreams()
    async with Relay(0) as relay, speak.Speaker(f"ws://127.0.0.1:{relay.port}", "talk") as speaker:
        async with serving(first) as server:
            relay.to_port = server.port
            await say(speaker, RAMP[:10_000])
            await first.opened.wait()
            await first.ingests["talk"].until(lambda ingest: ingest.n_fed >= 20)
            relay.cut()
        async with serving(second) as server:
            relay.to_port = server.port
            await say(speaker, RAMP[10_000:])
            await speaker.stop()
    assert np.array_equal(heard(second.ingests["talk"]), RAMP)


async def test_a_session_that_did_not_wait_goes_on_in_a_new_one(streams):
    async with (
        serving(streams, resume_ms=1) as server,
        Relay(server.port) as relay,
        speak.Speaker(f"ws://127.0.0.1:{relay.port}", "talk") as speaker,
    ):
        await say(speaker, RAMP[:10_000])
        await streams.opened.wait()
        first = streams.ingests["talk"]
        await first.until(lambda ingest: ingest.n_fed >= 20)
        relay.cut()
        relay.n_to_drop = 1  # meanwhile the server loses its patience
        await first.until(lambda ingest: ingest.finished)
        await say(speaker, RAMP[10_000:])
        await speaker.stop()
    assert (first.finished, streams.ingests["talk"].finished) == ("disconnect", "stop")
    both = np.concatenate((heard(first), heard(streams.ingests["talk"])))
    assert np.array_equal(both, RAMP)


async def test_who_is_refused_is_told_why(streams):
    async with serving(streams, token="secret") as server:
        url = f"ws://127.0.0.1:{server.port}"
        async with speak.Speaker(url, token="wrong") as speaker:
            with pytest.raises(speak.RefusedError, match="this token is wrong"):
                await speaker.stop()
        async with speak.Speaker(url, "a/b", token="secret") as speaker:
            with pytest.raises(speak.RefusedError, match="session"):
                await speaker.stop()


@pytest.mark.parametrize("form", ["wav", "raw"])
async def test_as_a_program(tmp_path, form, streams):
    path = tmp_path / "audio"
    if form == "wav":
        with wave.open(str(path), "wb") as file:
            file.setparams((2, 2, 16_000, 0, "NONE", ""))
            file.writeframes(np.repeat(RAMP, 2).tobytes())
    else:
        path.write_bytes(RAMP.tobytes())
    async with serving(streams) as server:
        with path.open("rb") as audio:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(SPEAK), f"ws://127.0.0.1:{server.port}", "talk"),
                *("--language", "de", "--hotwords", "Ada", "--endpoint-ms", "400"),
                stdin=audio,
                stdout=PIPE,
                stderr=PIPE,
                # In debug mode asyncio complains of a busy machine.
                env={**os.environ, "PYTHONASYNCIODEBUG": ""},
            )
            out, complaint = await process.communicate()
    assert (process.returncode, complaint) == (0, b"")
    assert out == b"94 frames\n"
    choices = streams.ingests["talk"].hub.choices
    assert choices == Choices(language="de", hotwords="Ada", endpoint_ms=400)
    assert np.array_equal(heard(streams.ingests["talk"]), RAMP)
