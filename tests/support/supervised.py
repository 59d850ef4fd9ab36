"""An engine in a worker, which fails when a test asks for it."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from streamd.engines.reference import ReferenceEngine
from streamd.engines.supervised.remote import RemoteEngine
from streamd.engines.supervised.worker import PROCESS_NAME, Job, Report, Worker
from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.models.model import parameter_shapes
from tests.support.checkpoints import network

FAULTS = ("raise", "hang", "kill", "nan", "grow")


DIMS = ModelDimensions(
    n_mels=80,
    n_audio_ctx=150,
    n_audio_state=64,
    n_audio_head=1,
    n_audio_layer=1,
    n_vocab=300,
    n_text_ctx=64,
    n_text_state=64,
    n_text_head=1,
    n_text_layer=1,
)


def reference(kind: type[ReferenceEngine] = ReferenceEngine) -> ReferenceEngine:
    """A small model with random weights, the same in each process."""
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(DIMS).items()
    weights = {name: rng.normal(size=shape, scale=0.1).astype(np.float32) for name, shape in shapes}
    return kind(network(DIMS, weights, alignment_heads=[(0, 0)]))


def workers() -> list[int]:
    """The processes of this process's workers."""
    listed = ["ps", "-Aww", "-o", "pid=,ppid=,args="]
    rows = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    ours = (row.split(maxsplit=2) for row in rows if PROCESS_NAME in row)
    return [int(pid) for pid, parent, _ in ours if int(parent) == os.getpid()]


def left() -> list[int]:
    """The workers that are still there although all were killed.

    On a busy machine, one may take longer to end than its handle waits for.
    """
    until_s = time.monotonic() + 100
    while (found := workers()) and time.monotonic() < until_s:
        pass
    return found


def is_due(folder: Path, call: str) -> str:
    """The fault that a test wants at this call, once: it wrote a file of that name."""
    for fault in FAULTS:
        try:
            (folder / f"{call}-{fault}").unlink()
        except FileNotFoundError:
            continue
        return fault
    return ""


class FaultyEngine(ReferenceEngine):
    """The reference, with the faults that a test left in a folder."""

    folder: Path
    n_together = 4

    def run(self, passes):
        return [each.decoder.run(each) for each in passes]

    def encode_alone(self, mel):
        return self.encode(mel)

    def encode(self, mel, *reuse, **options):
        fail(is_due(self.folder, "encode"))
        return super().encode(mel, *reuse, **options)

    def decoder(self, features, n_slots):
        fail(is_due(self.folder, "decoder"))
        decoder = super().decoder(features, n_slots)
        run = decoder.run

        def faulty_run(asked):
            fault = is_due(self.folder, "run")
            fail(fault)
            logits, alignment = run(asked)
            return (logits * np.nan if fault == "nan" else logits), alignment

        decoder.run = faulty_run
        return decoder


def fail(fault: str) -> None:
    """Do what a driver does that fails."""
    match fault:
        case "raise":
            raise RuntimeError("the device\nis gone")
        case "hang":
            threading.Event().wait()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "grow":
            globals()["held"] = np.ones(1 << 27, np.uint8)


def serve(folder: Path, report: Report) -> FaultyEngine:
    """What the worker runs."""
    report("reading the weights")
    fail(is_due(folder, "load"))
    engine = reference(FaultyEngine)
    engine.folder = folder
    return engine


@dataclass
class FaultyCandidate:
    """A `Candidate`; `refusals` are loads that fail before one that does not."""

    folder: Path
    answer_s: float = 60.0
    refusals: int = 0
    name: str = "the faulty device"
    n_loads: int = 0

    def load(self) -> RemoteEngine:
        self.n_loads += 1
        if self.refusals:
            self.refusals -= 1
            raise EngineError("no device")
        worker = Worker(Job(partial(serve, self.folder), self.name))
        worker.wait(60)
        worker.answer_s = self.answer_s
        return RemoteEngine(worker)

    def add(self, call: str, fault: str) -> None:
        """Have the next call fail."""
        (self.folder / f"{call}-{fault}").touch()
