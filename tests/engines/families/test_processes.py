"""Models in processes of their own: a fault of the library costs one stream."""

import errno
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from streamd.engines.families.library import Family
from streamd.engines.families.processes import FamilyProcesses, find_devices
from streamd.engines.supervised import worker
from streamd.engines.supervised.worker import Worker
from streamd.errors import EngineMemoryError, ModelError, OneSessionError
from streamd.types import TextOptions
from tests.engines.families.test_library import CLIPS, MOONSHINE, sound
from tests.support import gguf_models

pytest.importorskip("transcribe_cpp")

OPTIONS = TextOptions(language="en")
SOUND = np.random.default_rng(0).standard_normal(16_000).astype(np.float32) * np.float32(0.1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return gguf_models.moonshine().write(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.fixture
def family(path):
    family = FamilyProcesses(path, threads=1)
    yield family
    family.close()


def test_a_stream_says_what_it_says_in_this_process(family, path):
    here = Family(path, threads=1)
    assert family.abilities == here.abilities
    streams = [each.begin(OPTIONS) for each in (family, here)]
    for block in np.split(SOUND, 4):
        for stream in streams:
            stream.feed(block)
    assert len({stream.settle() for stream in streams}) == 1
    theirs, ours = (stream.said() for stream in streams)
    assert theirs == ours
    assert theirs.words
    streams[1].close()
    assert family.run(SOUND, OPTIONS) == here.run(SOUND, OPTIONS)


def test_a_process_that_dies_or_hangs_costs_its_own_stream(family):
    family.begin(OPTIONS).close()
    (first,) = family.workers
    lost, other = family.begin(OPTIONS), family.begin(OPTIONS)
    (second,) = {*family.workers} - {first}
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(OneSessionError, match=r"process of small.gguf ended by SIGKILL"):
        lost.feed(SOUND)
    second.answer_s = 0.2
    other.feed(SOUND[:1600])
    os.kill(second.pid, signal.SIGSTOP)
    with pytest.raises(
        OneSessionError, match=r"did not answer within 0.2 s; if only slow, raise decoding"
    ):
        other.said()
    lost.close()
    other.close()
    assert not family.workers
    third = family.begin(OPTIONS)
    third.feed(SOUND)
    assert third.said().words


@pytest.mark.parametrize("is_late", [False, True])
def test_what_the_library_computes_can_be_ended_at_any_time(is_late, tmp_path):
    """The sound takes it four seconds and more."""
    family = FamilyProcesses(gguf_models.canary().write(tmp_path / "canary.gguf"), threads=1)
    (worker,) = family.workers
    worker.answer_s = 0.5 if is_late else math.inf
    with ThreadPoolExecutor() as pool:
        running = pool.submit(family.run, np.tile(SOUND, 390), OPTIONS)
        while not worker._lock.locked() and not running.done():
            pass  # until it is asked
        if not is_late:
            family.close()
        with pytest.raises(OneSessionError, match=r"canary.gguf (did not answer|ended by SIG)"):
            running.result()
    assert not family.workers


def test_a_process_serves_one_stream_after_the_other_and_spare_ones_end(family):
    streams = [family.begin(OPTIONS) for _ in range(3)]
    assert len(family.workers) == 3
    for stream in streams:
        stream.close()
    assert len(family.workers) == 2
    family.begin(OPTIONS).feed(SOUND)
    assert len(family.workers) == 2


def test_a_file_with_which_the_library_ends_the_process_costs_a_session(tmp_path, family):
    model = gguf_models.nemotron()
    model.metadata["stt.parakeet.encoder.conv_context_left"] = np.int32(1)
    broken = FamilyProcesses(model.write(tmp_path / "broken.gguf"), threads=1)
    stream, other = broken.begin(OPTIONS), family.begin(OPTIONS)
    with pytest.raises(OneSessionError, match=r"broken.gguf ended by SIGABRT"):
        stream.feed(np.tile(SOUND, 3))
    other.feed(SOUND)
    assert other.said().words
    broken.close()


def test_a_gpu_hears_what_the_processor_hears(monkeypatch):
    """Vulkan in software (Debian's mesa-vulkan-drivers) is one; it compiles for half a minute."""
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")  # else the library leaves it out
    if find_devices() == ["CPU"]:
        pytest.skip("needs a GPU, or mesa-vulkan-drivers")
    family = FamilyProcesses(MOONSHINE, threads=1, compute="gpu", answer_s=math.inf)
    said = family.run(sound("lamp"), OPTIONS)
    family.close()
    assert family.abilities.device != "CPU"
    assert "".join(each.text for each in said.words) == CLIPS["lamp"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_process_that_the_system_does_not_run_is_memory_that_is_short(
    family, path, monkeypatch, is_killed
):
    def refuse(*args, **options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def killed(process, start_s):
        os.kill(process.pid, signal.SIGKILL)
        wait(process, start_s)

    stream, wait = family.begin(OPTIONS), Worker.wait
    monkeypatch.setattr(worker, "Popen", refuse) if not is_killed else None
    monkeypatch.setattr(Worker, "wait", killed) if is_killed else None
    why = "ended by SIGKILL" if is_killed else "cannot be started: Resource temporarily unavailable"
    for start in (lambda: FamilyProcesses(path, threads=1), lambda: family.begin(OPTIONS)):
        with pytest.raises(EngineMemoryError, match=f"^the process of small.gguf {why}$"):
            start()
    stream.feed(SOUND)
    assert stream.said().words


def test_a_file_that_is_refused_is_named(tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_models.nemotron().write(path).read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"cut.gguf: transcribe.cpp cannot") as raised:
        FamilyProcesses(path, threads=1)
    assert "\n" not in str(raised.value)
