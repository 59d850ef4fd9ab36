"""Open deliberately damaged GGUF files with transcribe-cpp, each in a child process.

    python benchmarks/damaged_gguf.py [--count 200] [--seed 0]

For two families with random weights of tiny dimensions, files are cut off, bits flipped, metadata
given wrong values and types, and tensors wrong shapes, types and contents. A child opens each,
feeds two seconds of noise to a stream, and decodes them once more as a whole. Prints for each kind
of damage how many were refused when opened or when used, accepted, crashed, and hung; on stderr a
line for each file; and last a JSON line.
"""

import argparse
import json
import os
import random
import resource
import select
import signal
import struct
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support import gguf_models
from tests.support.gguf_models import GgufModel

HANGS_S = 20.0
"""The undamaged files take below 0.2 s."""
MEMORY = 6 << 30
OUTCOMES = ("refused", "error in use", "accepted", "crashed", "hung")
Change = Callable[[random.Random, GgufModel, Path], str]
"""Writes a damaged file, and says what it did."""


@dataclass(frozen=True)
class Damaged:
    """A file, and what was done to it."""

    kind: str
    what: str
    path: Path


def _bytes(change: Callable[[random.Random, bytearray], str]) -> Change:
    def apply(rng: random.Random, model: GgufModel, path: Path) -> str:
        content = bytearray(model.write(path).read_bytes())
        said = change(rng, content)
        path.write_bytes(content)
        return said

    return apply


@_bytes
def cut_off(rng: random.Random, content: bytearray) -> str:
    """Lose the end of the file."""
    kept = rng.choice([rng.randrange(64), rng.randrange(len(content)), len(content) - 1])
    del content[kept:]
    return f"{kept} bytes kept"


@_bytes
def flipped(rng: random.Random, content: bytearray) -> str:
    """Flip bits in the first quarter, which is metadata and the list of tensors."""
    places = [rng.randrange(len(content) // 4) for _ in range(rng.choice([1, 4, 32]))]
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    return f"bits at {places[:4]}"


@_bytes
def counts(rng: random.Random, content: bytearray) -> str:
    """Let the header count tensors or values that are not there, or name another version."""
    at, form = rng.choice([(4, "<I"), (8, "<Q"), (16, "<Q")])
    value = rng.choice([0, 1, 99, 2**31, 2**32 - 1, 2**62])
    struct.pack_into(form, content, at, value if form == "<Q" else value % 2**32)
    return f"{value} at {at}"


@_bytes
def placed(rng: random.Random, content: bytearray) -> str:
    """Give a tensor a type, a size or a place in the file that is wrong."""
    names = [b"enc.blocks.1.", b"dec.blocks.0.", b"pred.lstm.0", b"joint.out", b"dec.lm_head"]
    at = content.find(rng.choice([each for each in names if each in content]))
    end = at + struct.unpack_from("<Q", content, at - 8)[0]
    (n_dims,) = struct.unpack_from("<I", content, end)
    fields = [(end, "<I"), (end + 4 + 8 * n_dims, "<I"), (end + 8 + 8 * n_dims, "<Q")]
    fields += [(end + 4 + 8 * i, "<Q") for i in range(n_dims)]
    place, form = rng.choice(fields)
    value = rng.choice([0, 1, 2, 8, 12, 30, 2**31, 2**40, 2**62, 2**64 - 32])
    struct.pack_into(form, content, place, value % (2**32 if form == "<I" else 2**64))
    return f"{value} at {place - end} behind {bytes(content[at:end]).decode()}"


def sizes(rng: random.Random, model: GgufModel, path: Path) -> str:
    """Give a number of the metadata another value, with tensors as they were."""
    numbers = [k for k, v in model.metadata.items() if type(v) in (int, float, np.int32)]
    key = rng.choice(numbers)
    value = rng.choice([0, 1, 3, 7, 1000, 2**20, 2**31 - 1, 2**32 - 1, -1])
    was = model.metadata[key]
    if isinstance(was, float):
        model.metadata[key] = rng.choice([0.0, -1.0, 1e30, float("nan"), float("inf")])
    elif isinstance(was, np.int32):
        model.metadata[key] = np.int32(max(-1, min(value, 2**31 - 1)))
    else:
        model.metadata[key] = value % 2**32
    model.write(path)
    return f"{key} = {model.metadata[key]}"


def consistent(rng: random.Random, model: GgufModel, path: Path) -> str:
    """Give an array of the metadata other lengths or values."""
    arrays = [key for key, value in model.metadata.items() if isinstance(value, list)]
    key = rng.choice(arrays)
    was = model.metadata[key]
    change = rng.choice(["shorter", "longer", "huge", "negative"])
    if change == "shorter":
        model.metadata[key] = was[: max(1, len(was) // 2)]
    elif change == "longer":
        model.metadata[key] = was * 2
    elif isinstance(was[0], str):
        model.metadata[key] = ["x" * 100_000 if change == "huge" else "", *was[1:]]
    else:
        model.metadata[key] = [type(was[0])(2**31 - 1 if change == "huge" else -5), *was[1:]]
    model.write(path)
    return f"{key} {change}"


def strings(rng: random.Random, model: GgufModel, path: Path) -> str:
    """Replace a string or token by another one, also by bytes that are no UTF-8."""
    texts = [key for key, value in model.metadata.items() if isinstance(value, str)]
    key = rng.choice([*texts, "tokenizer.ggml.tokens"])
    text = rng.choice(["", "x", "a\0b", "%s%n%s%n", "ÿ" * 50_000, "\N{WARNING SIGN}BYTES"])
    was = model.metadata[key]
    model.metadata[key] = [text] * len(was) if isinstance(was, list) else text
    content = model.write(path).read_bytes()
    path.write_bytes(content.replace("\N{WARNING SIGN}".encode(), b"\xff\xfe\x80"))
    return f"{key} = {text[:12]!r}"


def missing(rng: random.Random, model: GgufModel, path: Path) -> str:
    """Leave out a tensor or a value, or give the value another type."""
    key = rng.choice([*model.metadata, *model.shapes])
    if key in model.shapes:
        del model.shapes[key]
    elif rng.random() < 0.5:
        model.metadata[key] = rng.choice([True, 1.5, "text", [1, 2], ["a"]])
    else:
        del model.metadata[key]
    model.write(path)
    return key


def shapes(rng: random.Random, model: GgufModel, path: Path) -> str:
    """Give a tensor another shape."""
    name = rng.choice(list(model.shapes))
    was = model.shapes[name]
    larger = (*was[:-1], was[-1] + 1)
    others = [was[::-1], (*was, 2), larger, (*was[:-1], was[-1] - 1 or 2), was[:-1] or (2,)]
    model.shapes[name] = rng.choice([each for each in others if each != was and len(each) < 5])
    model.write(path)
    return f"{name} {model.shapes[name]}"


def contents(rng: random.Random, model: GgufModel, path: Path) -> str:
    """Let weights be no numbers, infinite, huge or zero."""
    value = rng.choice([np.nan, np.inf, -np.inf, 1e38, 0.0])
    names = rng.choice([[rng.choice(list(model.shapes))], list(model.shapes)])
    for name in names:
        model.replaced[name] = np.full(model.shapes[name], value, np.float32)
    model.write(path)
    return f"{value} in {names[0] if len(names) == 1 else 'all tensors'}"


KINDS: dict[str, Change] = {
    "cut off": cut_off,
    "bits flipped": flipped,
    "counts in the header": counts,
    "type, size, place of a tensor": placed,
    "numbers": sizes,
    "arrays": consistent,
    "strings": strings,
    "missing, wrong type": missing,
    "shapes": shapes,
    "contents of weights": contents,
}


def damaged(folder: Path, count: int, seed: int = 0) -> Iterator[Damaged]:
    """Yield `count` damaged files, all kinds and both families in turn."""
    makers = (gguf_models.moonshine, gguf_models.nemotron)
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        kind = list(KINDS)[number // 2 % len(KINDS)]
        path = folder / f"{number}.gguf"
        what = KINDS[kind](rng, makers[number % 2](), path)
        yield Damaged(kind, what, path)


def use(path: Path) -> str:
    """Open a model and decode with it; return an outcome, and what was said."""
    import transcribe_cpp

    transcribe_cpp.set_log_callback(lambda level, text: None)
    pcm = np.random.default_rng(0).standard_normal(32_000).astype(np.float32) * np.float32(0.1)
    try:
        model = transcribe_cpp.Model(path, backend="cpu")
    except (transcribe_cpp.TranscribeError, ValueError) as error:
        return f"refused: {type(error).__name__}"
    try:
        session = model.session(n_threads=1)
        with session.stream() as stream:
            for start in range(0, len(pcm), 8_000):
                stream.feed(pcm[start : start + 8_000])
            stream.finalize()
            stream.text()
            stream.snapshot()
        session.run(pcm)
    except (transcribe_cpp.TranscribeError, ValueError) as error:
        return f"error in use: {type(error).__name__}"
    return "accepted"


def in_child(path: Path, within_s: float = HANGS_S) -> str:
    """Return what `use` does in a child process, which may crash or hang."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.close(reading)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)  # where ggml writes the stack when it ends the process
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(writing, use(path).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        ready, _, _ = select.select([answers], [], [], within_s)
        said = answers.read().decode() if ready else ""
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not ready:
        return "hung"
    if os.WIFSIGNALED(status):
        return f"crashed: {signal.Signals(os.WTERMSIG(status)).name}"
    return said or f"crashed: exit {os.WEXITSTATUS(status)}"


def main() -> None:
    """Damage files, use them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    import transcribe_cpp  # before the children, which would each load it

    table: dict[str, Counter[str]] = defaultdict(Counter)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for each in damaged(Path(folder), wanted.count, wanted.seed):
            outcome = in_child(each.path)
            table[each.kind][outcome.split(":")[0]] += 1
            print(json.dumps([each.kind, each.what, each.path.name, outcome]), file=sys.stderr)
            each.path.unlink()
    print(f"| damage | files | {' | '.join(OUTCOMES)} |")
    print("|---|---:|" + "---:|" * len(OUTCOMES))
    for kind, found in [*table.items(), ("all", sum(table.values(), Counter()))]:
        numbers = " | ".join(str(found[each]) for each in OUTCOMES)
        print(f"| {kind} | {found.total()} | {numbers} |")
    took = time.monotonic() - start
    print(f"\ntranscribe-cpp {transcribe_cpp.__version__}, seed {wanted.seed}, {took:.0f} s")
    print(json.dumps({"damaged": table}))


if __name__ == "__main__":
    main()
