"""What models of other families cost: memory of each open stream, CPU time at each look-ahead.

    python benchmarks/family_costs.py [--seconds 20] [--models nemotron-q8 ...]

Weights are random, at the true dimensions: cost, not accuracy. Nemotron's are made to write no
words, which adds little; Moonshine writes as many tokens as the library lets it, about twice as
many as people say, and Canary as many as streamd does, up to five times as many. Half a second of
recorded speech at a time is fed to a stream in a process of its own, with one thread, as live
captions do; ``steps`` decodes an utterance of up to 6 s anew every half second, as captions with
models do that do not stream. CPU time is that of the process. ``own`` is the memory that each
further stream takes; the mapped weights are there once for all.
Prints a table and, last, a JSON line. Needs Linux's /proc.
"""

import argparse
import ctypes
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from streamd.daemon.opening import MOST_BUSY
from streamd.engines.families.processes import FamilyProcesses
from streamd.engines.prepared import bundled_speech
from streamd.system.processor import machine
from streamd.types import SAMPLE_RATE, Samples, TextOptions
from tests.support import gguf_models
from tests.support.gguf_models import GgufModel

STEP = SAMPLE_RATE // 2
UTTERANCE_S = 6
OPTIONS = TextOptions(language="en")
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to run one model costs; `streams` is how many two cores carry."""

    model: str
    file_mb: int
    way: str
    cpu_s: float
    streams: int
    own_mb: int


def quantised(preset: str) -> gguf_models.Encoder:
    """Return what stores weights as transcribe.cpp's presets do: Q8_0, or Q4_K with some Q6_K."""
    import transcribe_cpp

    folder = Path(transcribe_cpp.library_path()).parent
    ggml = ctypes.CDLL(str(folder / "libggml-base.so"))
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    kinds = GGMLQuantizationType

    def encode(
        name: str, weights: NDArray[np.float32]
    ) -> tuple[NDArray[Any], GGMLQuantizationType]:
        width = weights.shape[-1]
        if "pos_bias" in name or "pos_enc" in name:
            return weights, kinds.F32
        kind = kinds.Q8_0
        if preset == "q4_k_m" and width % 256 == 0:
            kind = kinds.Q6_K if "attn.linear_v" in name or "linear2" in name else kinds.Q4_K
        if width % 32:  # of a convolution, it is the kernel
            return weights.astype(np.float16), kinds.F16
        block, n_bytes = GGML_QUANT_SIZES[kind]
        rows = np.ascontiguousarray(weights.reshape(-1, width))
        stored = np.empty((len(rows), width // block * n_bytes), np.uint8)
        ggml.ggml_quantize_chunk(
            ctypes.c_int(int(kind)),
            rows.ctypes.data_as(ctypes.c_void_p),
            stored.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(0),
            ctypes.c_int64(len(rows)),
            ctypes.c_int64(width),
            None,
        )
        return stored.reshape(*weights.shape[:-1], -1), kind

    return encode


def nemotron() -> GgufModel:
    """Return Nemotron 0.6B, with a bias that lets it write nothing."""
    model = gguf_models.nemotron(gguf_models.NEMOTRON)
    bias = np.zeros(model.shapes["joint.out.bias"], np.float32)
    bias[-1] = 100.0  # of the blank
    model.replaced["joint.out.bias"] = bias
    return model


MODELS = {
    "nemotron-q8": (nemotron, "q8_0", (0, 80, 480, 1040)),
    "nemotron-q4": (nemotron, "q4_k_m", (0, 80, 480, 1040)),
    "canary-180m": (lambda: gguf_models.canary(gguf_models.CANARY_180M), "q8_0", (None,)),
    "canary-1b": (lambda: gguf_models.canary(gguf_models.CANARY_1B), "q8_0", (None,)),
    "moonshine-tiny": (lambda: gguf_models.moonshine(gguf_models.TINY), "q8_0", (None,)),
    "moonshine-small": (lambda: gguf_models.moonshine(gguf_models.SMALL), "q8_0", (None,)),
    "moonshine-medium": (lambda: gguf_models.moonshine(gguf_models.MEDIUM), "q8_0", (None,)),
}


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_mb(pid: int) -> int:
    """Return the memory that a process shares with no file and no other one."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {row.split()[0]: int(row.split()[1]) for row in rows[1:]}
    return sizes["Anonymous:"] // 1024


def measured(name: str, path: Path, look_ahead_ms: int | None, sound: Samples) -> Iterator[Cost]:
    """Stream the sound, and decode utterances of it anew in each step."""
    family = FamilyProcesses(path, threads=1, look_ahead_ms=look_ahead_ms, answer_s=math.inf)
    (worker,) = family.workers
    ways = {f"{look_ahead_ms} ms" if look_ahead_ms is not None else "stream": stream_it}
    if not family.abilities.streams:
        ways.clear()
    if look_ahead_ms in (None, 80):
        ways["steps"] = step_it
    for way, run in ways.items():
        begun = process_cpu_s(worker.pid)
        n_samples = run(family, sound)
        cpu_s = (process_cpu_s(worker.pid) - begun) / n_samples * SAMPLE_RATE
        yield Cost(
            model=name,
            file_mb=round(path.stat().st_size / 1e6),
            way=way,
            cpu_s=round(cpu_s, 3),
            streams=int(2 * MOST_BUSY / cpu_s),
            own_mb=own_mb(worker.pid),
        )
    family.close()


def stream_it(family: FamilyProcesses, sound: Samples) -> int:
    """Caption the sound as one utterance; return how many samples that is."""
    stream = family.begin(OPTIONS)
    for start in range(0, len(sound), STEP):
        stream.feed(sound[start : start + STEP])
        stream.said()
    stream.settle()
    stream.said()
    stream.close()
    return len(sound)


def step_it(family: FamilyProcesses, sound: Samples) -> int:
    """Decode an utterance of 6 s anew every half second; return how many samples that is."""
    utterance = sound[: UTTERANCE_S * SAMPLE_RATE]
    for end in range(STEP, len(utterance) + 1, STEP):
        family.run(utterance[:end], OPTIONS)
    return len(utterance)


def main() -> None:
    """Make the models, measure them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    wanted = parser.parse_args()
    sound = bundled_speech()[: wanted.seconds * SAMPLE_RATE]
    print("| model | file, MB | look-ahead | CPU s/s | streams on two cores | own, MB |")
    print("|---|---:|---|---:|---:|---:|")
    costs: list[Cost] = []
    for name in wanted.models:
        make, preset, looks = MODELS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = make().write(Path(folder) / f"{name}.gguf", quantised(preset))
            for look_ahead_ms in looks:
                for each in measured(name, path, look_ahead_ms, sound):
                    costs.append(each)
                    print(f"| {' | '.join(map(str, msgspec.structs.astuple(each)))} |", flush=True)
    found = machine()
    print(f"\nweights were random: cost, not accuracy; {found.cpu}, load {found.load}")
    print(json.dumps({"costs": [msgspec.structs.asdict(each) for each in costs]}))


if __name__ == "__main__":
    main()
