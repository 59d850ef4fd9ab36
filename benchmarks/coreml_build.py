"""What it costs to build a model for Core ML: time, size on disk, memory.

    python benchmarks/coreml_build.py [--dims tiny base small large-v3-turbo] [--bits 16 8 6]
                                      [--contexts N N]

Random weights of those dimensions, rounded to float16 as those of OpenAI's files are, cost what
trained ones cost. Each build runs in a process of its own; its peak memory includes the model's
weights, in float32, and the libraries. CPU seconds are those to believe on a machine that is busy.
Prints a table and, last, one JSON line.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import coremltools
import msgspec
import numpy as np

from lab.random_model import random_model
from streamd.engines.coreml.package import BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.options import BuildOptions
from streamd.system.processor import machine

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One build. `operations`: of the encoder at the shortest context, all parts, and of a step."""

    dims: str
    bits: int
    seconds: float
    cpu_seconds: float
    peak_mb: float
    weights_mb: float
    disk_mb: float
    packages_mb: dict[str, float]
    functions: int
    operations: tuple[int, int]


def measure(dims: str, plan: BuildOptions) -> Row:
    """Build in this process, which should have done nothing else."""
    model = random_model(dims)
    for values in model.weights.values():
        values[...] = values.astype(np.float16)  # in place: the peak is to be the build's
    with tempfile.TemporaryDirectory() as folder:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        write(Path(folder), model, plan)
        seconds, cpu_seconds = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        built = open_built(Path(folder))
        sizes: Counter[str] = Counter()
        for name, facts in built.meta.files.items():
            sizes[name.partition("/")[0]] += facts.size
        return Row(
            dims=dims,
            bits=int(plan.weight_bits),
            seconds=round(seconds, 1),
            cpu_seconds=round(cpu_seconds, 1),
            peak_mb=round(peak / _MB),
            weights_mb=round(sum(each.nbytes for each in model.weights.values()) / _MB),
            disk_mb=round(sizes.total() / _MB, 1),
            packages_mb={name: round(size / _MB, 1) for name, size in sizes.items()},
            functions=len(built.functions),
            operations=_operations(built),
        )


def _operations(built: BuiltModel) -> tuple[int, int]:
    parts = [f for f in built.functions if f.n_ctx == built.meta.contexts[0] and f.kind == "encode"]
    step = min((f for f in built.functions if f.kind == "step"), key=lambda f: f.k)
    *encoder, decoder = (_n_operations(built.folder / f.package, f.name) for f in (*parts, step))
    return sum(encoder), decoder


def _n_operations(package: Path, name: str) -> int:
    function = coremltools.utils.load_spec(str(package)).mlProgram.functions[name]
    operations = function.block_specializations[function.opset].operations
    return sum(operation.type != "const" for operation in operations)


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    head = "| dimensions | bits | s | CPU s | peak MB | on disk MB | largest | operations |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        name, size = max(row.packages_mb.items(), key=lambda each: each[1])
        lines.append(
            f"| {row.dims} | {row.bits} | {row.seconds} | {row.cpu_seconds} | {row.peak_mb:.0f}, "
            f"{row.weights_mb:.0f} of them weights | {row.disk_mb} | {name} {size} | "
            f"{row.operations[0]}, {row.operations[1]} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure each size with each number of bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", nargs="+", default=["tiny", "base", "small", "large-v3-turbo"])
    parser.add_argument("--bits", nargs="+", type=int, choices=(16, 8, 6), default=[16])
    parser.add_argument("--contexts", nargs="+", type=int, default=[])
    parser.add_argument("--alone", action="store_true", help="one build in this process")
    args = parser.parse_args()
    plans = [BuildOptions(tuple(args.contexts), weight_bits=str(bits)) for bits in args.bits]
    if args.alone:
        print(json.dumps(asdict(measure(args.dims[0], plans[0]))))
        return
    rows = []
    for dims in args.dims:
        for plan in plans:
            command = [
                sys.executable,
                __file__,
                "--alone",
                "--dims",
                dims,
                "--bits",
                str(plan.weight_bits),
            ]
            command += ["--contexts", *map(str, plan.audio_contexts)] if plan.audio_contexts else []
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            rows.append(Row(**json.loads(done.stdout)))
            print(
                f"{dims}, {plan.weight_bits} bits: {rows[-1].seconds} s",
                file=sys.stderr,
                flush=True,
            )
    print(table(rows))
    told = {"builds": [asdict(row) for row in rows], "machine": msgspec.to_builtins(machine())}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
