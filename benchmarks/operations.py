"""Where the time of a step goes, and how far that is from what the machine can do.

    python benchmarks/operations.py [--dims base.en small.en] [--rounds 8]

Encoder and decoder alone, on random weights of true dimensions: the encoder at 384 positions and at
the full context, a pass that verifies a draft of 24 tokens with the logits of 22 rows, and one
token. All of a model's variants run in turns in one process. Then ONNX Runtime's own profile of
each, by operator, beside what the same kernels reach in one large product. The fastest of the
rounds counts, which neighbours disturb least, and CPU time of all threads stands beside real time,
for they disturb it less. Prints tables in Markdown and, last, a JSON line.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before ONNX Runtime is imported, as in streamd/engines/__init__.py: it would report to Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import msgspec
import numpy as np
from onnx import TensorProto, helper
from onnxruntime import InferenceSession, OrtValue, SessionOptions

from lab.random_model import random_model
from streamd.engines import Precision
from streamd.engines.onnx import OnnxEngine, build
from streamd.engines.onnx.graphs import graphs, silence_rows
from streamd.models import ModelDimensions
from streamd.models.model import Model
from streamd.system.processor import machine
from tables import table

SHORT, FULL = 384, 1500
N_PASS, N_LOGITS = 24, 22
PEAK = (384, 512, 2048)
"""Rows, inputs and outputs of the product that stands for the machine's peak."""
N_PROFILED = 12
LINEAR = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")


def best_ms(run: Callable[[], object], n: int = 1) -> tuple[float, float]:
    """The fastest of `n` runs: real time, and the least CPU time of all threads."""
    real, cpu = [], []
    for _ in range(n):
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        run()
        real.append(time.perf_counter() - begun_s)
        cpu.append(time.process_time() - cpu_s)
    return min(real) * 1000, min(cpu) * 1000


def peaks(n_rounds: int) -> dict[str, float]:
    """What one thread reaches: billions of operations a second, and gigabytes read."""
    rows, n_in, n_out = PEAK
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, n_in), dtype=np.float32)
    w = rng.standard_normal((n_in, n_out), dtype=np.float32)
    integers = np.rint(w * 30).clip(-127, 127).astype(np.int8)
    scale = np.full(n_out, 1 / 30, np.float32)
    quantised = _product("DynamicQuantizeMatMul", {"w": integers, "s": scale}, ["x", "w", "s"])
    plain = _product("MatMul", {"w": w}, ["x", "w"])
    operations = 2 * rows * n_in * n_out / 1e6
    large, n = np.ones(64_000_000, np.float32), 20 * n_rounds
    return {
        "int8_gops": round(operations / best_ms(lambda: quantised.run(None, {"x": x}), n)[1]),
        "float32_gflops": round(operations / best_ms(lambda: plain.run(None, {"x": x}), n)[1]),
        "read_gb_s": round(large.nbytes / best_ms(lambda: large.max(), n_rounds)[1] / 1e6, 1),
    }


def _product(kind: str, weights: dict[str, np.ndarray], names: list[str]) -> InferenceSession:
    domain = "com.microsoft" if kind.startswith("Dynamic") else ""
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["m", "n"]) for n in ("x", "y")]
    tensors = [
        helper.make_tensor(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, a.tobytes(), True)
        for n, a in weights.items()
    ]
    node = helper.make_node(kind, names, ["y"], domain=domain)
    graph = helper.make_graph([node], "product", shapes[:1], shapes[1:], tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return InferenceSession(model.SerializeToString(), _options(1))


def _options(threads: int, profile: str = "") -> SessionOptions:
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return options


class Parts:
    """The pieces of a step, one by one."""

    def __init__(self, engine: OnnxEngine) -> None:
        self._engine = engine
        rng = np.random.default_rng(0)
        shape = (engine.dims.n_mels, 2 * engine.dims.n_audio_ctx)
        self._mel = rng.standard_normal(shape, dtype=np.float32)
        self._features = self._encode(SHORT)

    def _encode(self, n_ctx: int) -> Any:  # noqa: ANN401 - opaque
        return self._engine.encode(np.ascontiguousarray(self._mel[:, : 2 * n_ctx]), audio_ctx=n_ctx)

    def _decode(self, n: int, n_logits: int) -> None:
        decoder = self._engine.decoder(self._features, 64)
        order = np.arange(n)
        visible = np.arange(64) <= order[:, None]
        decoder.step(np.zeros(n, np.int64), order, order, visible, order[n - n_logits :])

    def runs(self) -> dict[str, Callable[[], object]]:
        """By name."""
        return {
            f"encode {SHORT}": lambda: self._encode(SHORT),
            f"encode {FULL}": lambda: self._encode(FULL),
            f"pass of {N_PASS}": lambda: self._decode(N_PASS, N_LOGITS),
            "one token": lambda: self._decode(1, 1),
        }


def engine(model: Model, threads: int, precision: Precision) -> OnnxEngine:
    """A model on ONNX Runtime."""
    heads = model.alignment_heads
    return build(
        model.dims, model.weights, alignment_heads=heads, threads=threads, precision=precision
    )


def steps(model: Model, n_rounds: int) -> dict[str, dict[str, tuple[float, float]]]:
    """The fastest of each piece, real and CPU ms, by variant; all take turns."""
    both: tuple[Precision, ...] = ("float32", "int8")
    variants = {
        f"{model.name.split()[0]}, {threads} thread{'s' * (threads > 1)}, {precision}": Parts(
            engine(model, threads, precision)
        )
        for threads in (1, 2)
        for precision in both
    }
    best: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in variants}
    for _ in range(n_rounds):
        for name, parts in variants.items():
            for what, run in parts.runs().items():
                real_ms, cpu_ms = best_ms(run)
                before = best[name].get(what, (real_ms, cpu_ms))
                best[name][what] = min(real_ms, before[0]), min(cpu_ms, before[1])
    return best


def operators(model: Model, pieces: list[str]) -> dict[str, dict[str, float]]:
    """Milliseconds by operator of each piece, int8, one thread: the fastest run of each node."""
    heads = model.alignment_heads
    made = graphs(model.dims, model.weights, alignment_heads=heads, silence=None, precision="int8")
    whole = [(graph, _tensors(graph.tensors)) for graph in made]
    rows = silence_rows(model.dims, model.weights, None)
    told = {}
    for what in pieces:
        with tempfile.TemporaryDirectory() as folder:
            sessions = []
            for n, (graph, tensors) in enumerate(whole):
                options = _options(1, f"{folder}/{n}")
                options.add_external_initializers(list(tensors), list(tensors.values()))
                sessions.append(InferenceSession(graph.model, options))
            run = Parts(OnnxEngine(model.dims, *sessions, silence=rows)).runs()[what]
            for _ in range(N_PROFILED):
                run()
            session = sessions[not what.startswith("encode")]
            told[what] = _by_operator(Path(session.end_profiling()), what)
            sessions[what.startswith("encode")].end_profiling()
    return told


def _tensors(arrays: Any) -> dict[str, OrtValue]:  # noqa: ANN401 - arrays by name
    return {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


def _by_operator(path: Path, what: str) -> dict[str, float]:
    nodes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in json.loads(path.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes[event["name"], event["args"]["op_name"]].append(event["dur"])
    total: Counter[str] = Counter()
    for (_, operator), durations in nodes.items():
        # of an encoder the first run is that of the features, at the short context
        counted = durations[-N_PROFILED:] if what.startswith("encode") else durations
        total[operator] += min(counted) / 1000  # type: ignore[assignment]
    return {operator: round(ms, 2) for operator, ms in total.most_common()}


def work(dims: ModelDimensions, n_ctx: int) -> dict[str, float]:
    """Billions of operations of the encoder: linear layers, attention, first convolution."""
    n, layers = dims.n_audio_state, dims.n_audio_layer
    linear = layers * 12 * n * n + 3 * n * n + 2 * dims.n_text_layer * n * dims.n_text_state
    return {
        "linear": 2 * n_ctx * linear / 1e9,
        "attention": layers * 4 * n_ctx * n_ctx * n / 1e9,
        "convolution": 2 * 2 * n_ctx * 3 * dims.n_mels * n / 1e9,
    }


def tables(told: dict[str, Any], model: Model) -> str:
    """What was measured of the first model, and the steps of all, in Markdown."""
    peak = told["peaks"]
    pieces = list(next(iter(told["steps"].values())))
    text = table(
        ["fastest, ms / CPU ms", *pieces],
        [
            (name, *(f"{real_ms:.1f} / {cpu_ms:.1f}" for real_ms, cpu_ms in row.values()))
            for name, row in told["steps"].items()
        ],
    )
    text += (
        f"\n\nOne thread reaches {peak['int8_gops']} GOPS in int8 and {peak['float32_gflops']} GF/s"
        f" in float32 (a product of {' × '.join(map(str, PEAK))}) and reads {peak['read_gb_s']}"
        " GB/s.\n"
    )
    for what, by_operator in told["operators"].items():
        rows = [(k, ms, _share(what, k, ms, model.dims, peak)) for k, ms in by_operator.items()]
        small = sum(ms for _, ms, _ in rows if ms < 0.05 * rows[0][1])
        shown = [row for row in rows if row[1] >= 0.05 * rows[0][1]]
        every = round(sum(by_operator.values()), 2)
        rows = [*shown, ("the rest", round(small, 2), ""), ("**all**", every, "")]
        text += f"\n{table([f'{what}, int8, one thread', 'ms', 'of the peak'], rows)}\n"
    return text


def _share(
    what: str, operator: str, ms: float, dims: ModelDimensions, peak: dict[str, float]
) -> str:
    """How much of the peak an encoder's operator reaches."""
    if not what.startswith("encode"):
        return ""
    billions = work(dims, int(what.split()[1]))
    kinds = {"MultiHeadAttention": "attention", "Conv": "convolution"}
    kind = "linear" if operator in LINEAR else kinds.get(operator)
    if kind is None:
        return ""
    reached = billions[kind] / ms * 1000
    most = peak["int8_gops" if kind == "linear" else "float32_gflops"]
    return f"{reached:.0f} of {most:.0f}: {reached / most:.0%}"


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", nargs="+", default=["base.en", "small.en"])
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    models = [random_model(name) for name in args.dims]
    told: dict[str, Any] = {"machine": msgspec.to_builtins(machine()), "peaks": peaks(args.rounds)}
    told["steps"] = {k: v for model in models for k, v in steps(model, args.rounds).items()}
    pieces = list(next(iter(told["steps"].values())))
    told["operators"] = operators(models[0], pieces)
    print(tables(told, models[0]))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
