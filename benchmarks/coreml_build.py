"""What it costs to build an encoder for Core ML: time, size on disk, memory.

    python benchmarks/coreml_build.py [--dims tiny base small large-v3-turbo] [--bits auto 16 8]

Random weights of those dimensions, in float16 as those of OpenAI's files are, cost what trained
ones cost. The states of silence are given: a model that captions has them. Each build runs in a
process of its own; its peak memory includes the libraries. CPU seconds are those to believe on a
machine that is busy. Prints a table and, last, one JSON line.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import coremltools
import msgspec
import numpy as np
from numpy.typing import NDArray

from lab.random_model import random_model
from streamd.engines.coreml.package import Bits, open_built
from streamd.engines.coreml.package_builder import write
from streamd.models.catalog import dimensions
from streamd.models.model import Model
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.text_tokens import TextTokens
from streamd.system.processor import machine

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One build. `operations`: at the shortest context, all parts."""

    dims: str
    bits: int
    seconds: float
    cpu_seconds: float
    peak_mb: float
    disk_mb: float
    packages_mb: dict[str, float]
    functions: int
    operations: int


class OnDisk(Mapping[str, NDArray[np.float32]]):
    """Weights that are read when they are needed, as those of a model's files are."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.stem: path for path in folder.glob("*.npy")}

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return np.load(self._files[name]).astype(np.float32)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def measure(dims: str, weights: Path, bits: Bits | None) -> Row:
    """Build in this process, which should have done nothing else."""
    model = Model(
        name=dims,
        dims=dimensions(dims),
        weights=OnDisk(weights),
        vocabulary=TextTokens([]),
        alignment_heads=(),
        language=None,
    )
    silence = np.random.default_rng(0).standard_normal(silence_shape(model.dims))
    model = replace(model, silence=SilenceStates(silence.astype(np.float16)))
    with tempfile.TemporaryDirectory() as folder:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        write(Path(folder), model, bits=bits)
        seconds, cpu_seconds = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        built = open_built(Path(folder))
        sizes: Counter[str] = Counter()
        for name, (size, _) in built.meta.files.items():
            sizes[name.partition("/")[0]] += size
        return Row(
            dims=dims,
            bits=built.meta.bits,
            seconds=round(seconds, 1),
            cpu_seconds=round(cpu_seconds, 1),
            peak_mb=round(peak / _MB),
            disk_mb=round(sizes.total() / _MB, 1),
            packages_mb={name: round(size / _MB, 1) for name, size in sizes.items()},
            functions=len(built.functions),
            operations=sum(
                _n_operations(built.folder / f.package, f.name)
                for f in built.functions
                if f.n_ctx == built.meta.contexts[0]
            ),
        )


def _n_operations(package: Path, name: str) -> int:
    function = coremltools.utils.load_spec(str(package)).mlProgram.functions[name]
    operations = function.block_specializations[function.opset].operations
    return sum(operation.type != "const" for operation in operations)


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    head = "| dimensions | bits | s | CPU s | peak MB | on disk MB | packages | operations |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        sizes = [size for name, size in row.packages_mb.items() if name.endswith(".mlpackage")]
        lines.append(
            f"| {row.dims} | {row.bits} | {row.seconds} | {row.cpu_seconds} | {row.peak_mb:.0f} | "
            f"{row.disk_mb} | {len(sizes)} of at most {max(sizes)} MB | {row.operations} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure each size with each number of bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", nargs="+", default=["tiny", "base", "small", "large-v3-turbo"])
    parser.add_argument("--bits", nargs="+", choices=("auto", "16", "8"), default=["auto"])
    parser.add_argument("--write", metavar="WEIGHTS", help="only write random weights")
    parser.add_argument("--alone", metavar="WEIGHTS", help="one build of them, in this process")
    args = parser.parse_args()
    if args.write:
        for name, values in random_model(args.dims[0]).weights.items():
            np.save(Path(args.write) / f"{name}.npy", values.astype(np.float16))
        return
    if args.alone:
        bits: dict[str, Bits | None] = {"auto": None, "16": 16, "8": 8}
        row = measure(args.dims[0], Path(args.alone), bits[args.bits[0]])
        print(json.dumps(asdict(row)))
        return
    rows = []
    for dims in args.dims:
        with tempfile.TemporaryDirectory() as weights:
            # Both in processes of their own: a new one inherits the peak of the one that starts it.
            this = [sys.executable, __file__, "--dims", dims]
            subprocess.run([*this, "--write", weights], check=True)
            for bits in args.bits:
                command = [*this, "--alone", weights, "--bits", bits]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                rows.append(Row(**json.loads(done.stdout)))
                line = f"{dims}, {rows[-1].bits} bits: {rows[-1].seconds} s"
                print(line, file=sys.stderr, flush=True)
    print(table(rows))
    told = {"builds": [asdict(row) for row in rows], "machine": msgspec.to_builtins(machine())}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
