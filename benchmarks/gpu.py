"""Whether a GPU computes what the CPU does, and how fast: the MLX engine on this machine.

    python benchmarks/gpu.py [--seconds 300] [--budget-s 240] [--turbo NAME] [--out FILE] [PART...]
    python benchmarks/gpu.py --archive gpu.tar.gz

Each part runs in a process of its own for two minutes at the most, all of them for four: what a
part cannot do, or was not run for, is a line of the report, not its end. Each line can be read
alone. Without a GPU all runs on the CPU, to try the program, which takes longer. Times are those of
the wall clock, medians unless they say otherwise. ``--archive`` packs what a machine without a
network needs of the repository.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np

from lab.eventlog import Began, Said
from lab.recordings import Recording, of_clips, read_recording
from lab.replay import replay
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.daemon.recording import FileTranscriber
from streamd.engines import golden_clips
from streamd.engines.precision import LIVE_WINDOW, window_timer
from streamd.engines.prepared import open_in_memory
from streamd.engines.reference import ReferenceEngine
from streamd.events import Final, Partial, TimedWord
from streamd.models.catalog import dimensions, usual_heads
from streamd.models.model import Model, openai_vocabulary, parameter_shapes
from streamd.models.silence import SilenceStates, silence_shape
from streamd.models.store import find, load_model
from streamd.models.store.cache import places
from streamd.types import ms_from_frames
from streamd.whisper.engine import Pass, Reuse, run_in_order
from streamd.whisper.mel import log_mel

ROOT = Path(__file__).resolve().parents[1]
SPEECH = ROOT / "tests/speech"
CARRIED = (
    "pyproject.toml",
    "streamd",
    "benchmarks/gpu.py",
    "benchmarks/lab",
    "models/tiny.en",
    "tests/speech",
    *(f"tests/golden/{name}" for name in ("clips.json", "read.json", "cards.flac")),
    *(f"tests/golden/{name}" for name in ("digits.flac", "lamp.flac")),
)
"""What of the repository is read."""
MODEL = "tiny.en"
FORMS = {
    "float32": {"floats": "float32"},
    "float16": {"floats": "float16"},
    "8-bits": {"floats": "float16", "bits": 8},
    "4-bits": {"floats": "float16", "bits": 4},
    "not-fused": {"floats": "float16"},
    "not-padded": {"floats": "float16", "pads": False},
}
"""What an engine is made with, by the name of the form."""
ENVIRONMENTS = {
    "not-fused": {"MLX_CUDA_USE_CUDNN_SDPA": "0"},
    "not-padded": {"MLX_ENABLE_CACHE_THRASHING_CHECK": "1"},
}
"""Variables of some forms: attention without cuDNN, if that should refuse a mask; and what happens
if neither arrays are padded nor MLX's limit of shapes is off."""
PARTS = (
    "device",
    "golden:float32",
    "golden:float16",
    "golden:8-bits",
    "golden:4-bits",
    "golden:not-fused",
    "live:onnx",
    "live:float16",
    "live:8-bits",
    "live:not-fused",
    "files:onnx",
    "files:float16",
    "turbo:float16",
    "turbo:8-bits",
    "onnx-gpu",
    "live:not-padded",
)


def say(name: str, **figures: object) -> None:
    """Print a line of the report."""
    told = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in figures.items())
    print(f"{name:16} {told}", flush=True)


def ms(seconds: Sequence[float], share: float = 0.5) -> str:
    """Milliseconds at this share of the sorted times."""
    return f"{1000 * float(np.quantile(seconds, share)):.2f} ms" if len(seconds) else "-"


def timed(call: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    """Call it and note how long it took."""

    @wraps(call)
    def measured(*args: object, **known: object) -> object:
        begun = time.perf_counter()
        found = call(*args, **known)
        taken.append(time.perf_counter() - begun)
        return found

    return measured


def repeated(call: Callable[[], object], n: int) -> list[float]:
    """How long each of `n` calls takes, after two that are not counted."""
    taken: list[float] = []
    for _ in range(n + 2):
        timed(call, taken)()
    return taken[2:]


def mlx_engine(model: Model, form: str) -> Any:  # noqa: ANN401 - MLX may not be installed
    """Open a model on MLX."""
    from streamd.engines.mlx.arithmetic import Arithmetic
    from streamd.engines.mlx.mlx_engine import MlxEngine

    return MlxEngine(model, Arithmetic(**FORMS[form]))


def memory() -> str:
    """What MLX holds, held at the most, and keeps for later."""
    import mlx.core as mx

    sizes = mx.get_active_memory(), mx.get_peak_memory(), mx.get_cache_memory()
    return " / ".join(f"{size / 1e6:.0f}" for size in sizes) + " MB held/peak/cache"


# -- parts ----------------------------------------------------------------------------------------


def device() -> None:
    """Say what computes, and with what."""
    import mlx.core as mx

    from streamd.engines.mlx.device import n_cheap

    info, query = mx.device_info(), ["nvidia-smi", "--query-gpu=driver_version,memory.total"]
    driver = "-"
    if str(info["architecture"]).startswith("sm_"):
        command = [*query, "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    say(
        "device",
        date=time.strftime("%Y-%m-%d"),
        computes=f"{info['device_name']} ({info['architecture']})",
        driver_and_memory=driver,
        cheap_tokens=n_cheap(str(info["architecture"])),
        mlx=mx.__version__,
        python=sys.version.split()[0],
        processors=os.cpu_count(),
    )


def golden(form: str) -> None:
    """Compare texts of clips with openai-whisper's, and numbers with the reference."""
    model = load_model(MODEL)
    config = load({"model": MODEL, "language": "en"}, {})
    begun = time.perf_counter()
    engine = mlx_engine(model, form)
    loaded_s = time.perf_counter() - begun
    recognizer = build.recognizer(config, model, engine)
    folder = find(MODEL, places())
    assert folder is not None
    read = golden_clips.read_by_whisper(folder)
    clips = golden_clips.clips()
    begun = time.perf_counter()
    texts = [golden_clips.transcribed(recognizer, clip) for clip in clips]
    first_s = time.perf_counter() - begun
    same = sum(text == read[clip.name] for text, clip in zip(texts, clips, strict=True))
    reference = ReferenceEngine(model)
    mel = log_mel(clips[0].samples, model.dims.n_mels)
    found = []
    for each in (engine, reference):
        before = each.encode(mel[:, :300])
        features = each.encode(mel[:, :400], Reuse(before, 75))
        found.append(run_in_order(each.decoder(features, 64), range(1000, 1020), 0))
    off = [
        float(np.linalg.norm(ours - expected) / np.linalg.norm(expected))
        for ours, expected in zip(*found, strict=True)
    ]
    say(
        f"golden:{form}",
        texts_as_openai_whisper=f"{same} of {len(clips)}",
        logits_off=f"{off[0]:.1e}",
        alignment_off=f"{off[1]:.1e}",
        loaded_in=f"{loaded_s:.1f} s",
        clips_with_first_kernels=f"{first_s:.1f} s",
        memory=memory(),
    )


def speech(seconds: int) -> Recording:
    """The recordings that ship with the repository, again and again."""
    both = [read_recording(SPEECH / name).frames for name in ("recording.flac", "demo.flac")]
    frames = np.concatenate(both)
    n = seconds * 50
    return of_clips("speech", np.tile(frames, (-(-n // len(frames)), 1))[:n], ())


def opened(form: str, *, recordings: bool = False) -> tuple[Any, Model, Any]:
    """Configuration, model and engine: MLX in this form, or "onnx" on the CPU."""
    precision = "float32" if form == "onnx" else "auto"
    config = load({"model": MODEL, "language": "en", "precision": precision}, {})
    if form == "onnx":
        return config, *open_model(config, recordings=recordings)
    model = load_model(MODEL)
    return config, model, mlx_engine(model, form)


def live(form: str, seconds: int, kept: Path) -> None:
    """Caption speech on a clock on which computing takes no time; compare with ONNX Runtime."""
    config, model, engine = opened(form)
    windows: list[float] = []
    encodings: list[float] = []
    passes: list[float] = []
    shapes: set[object] = set()
    if form != "onnx":
        watch(engine, encodings, passes, shapes)
    recognizer = build.recognizer(config, model, engine)
    recognizer.recognize = timed(recognizer.recognize, windows)  # type: ignore[method-assign]
    recording = speech(seconds)
    began = Began(
        name="speech",
        model=model.name,
        clock="free",
        step_ms=ms_from_frames(config.session.step),
        audio_ms=recording.audio_ms,
    )
    new_session = partial(build.new_session, config)
    (log,) = replay([recognizer], new_session, [recording.frames], began=began)
    events = [each.event for each in log if isinstance(each, Said)]
    texts, times = compared(
        [(event.text, event.words) for event in events if isinstance(event, Partial | Final)],
        kept,
        keeps=form == "onnx",
    )
    say(
        f"live:{form}",
        speech=f"{seconds} s",
        windows=len(windows),
        window=ms(windows),
        window_p95=ms(windows, 0.95),
        window_max=ms(windows, 1.0),
        encoder=ms(encodings),
        encoder_p95=ms(encodings, 0.95),
        passes=len(passes),
        decoder_pass=ms(passes),
        real_time_factor=f"{sum(windows) / seconds:.4f}",
        shapes_of_attention=len(shapes),
        texts_as_onnx=texts,
        words_times_as_onnx=times,
        memory="-" if form == "onnx" else memory(),
    )


def compared(
    said: Sequence[tuple[str, Sequence[TimedWord]]], kept: Path, *, keeps: bool
) -> tuple[str, str]:
    """Say how many texts are those of ONNX Runtime, and how many words of these have its times."""
    ours = [(text, [(word.start_ms, word.end_ms) for word in words]) for text, words in said]
    if keeps:
        kept.write_bytes(msgspec.json.encode(ours))
    if not kept.exists():
        return f"unknown ({len(ours)})", "unknown"
    theirs = msgspec.json.decode(kept.read_bytes(), type=list[tuple[str, list[tuple[int, int]]]])
    same = [(a[1], b[1]) for a, b in zip(ours, theirs, strict=False) if a[0] == b[0]]
    pairs = [(a, b) for each in same for a, b in zip(*each, strict=True)]
    n_times = sum(a == b for a, b in pairs)
    return f"{len(same)} of {len(theirs)} ({len(ours)})", f"{n_times} of {len(pairs)}"


def watch(
    engine: Any,  # noqa: ANN401
    encodings: list[float],
    passes: list[float],
    shapes: set[object],
) -> None:
    """Note what an engine of MLX does, and of which shapes attention makes a plan on CUDA."""
    from streamd.engines.mlx import mlx_engine as module

    attend = module.attend

    def noted(query: Any, both: Any, added: Any) -> Any:  # noqa: ANN401
        if query.shape[1] > 1:
            shapes.add((query.shape, both.shape, added.shape))
        return attend(query, both, added)

    module.attend = noted
    engine.encode = timed(engine.encode, encodings)
    engine.run = timed(engine.run, passes)


def files(form: str, seconds: int, kept: Path) -> None:
    """Transcribe a recording, sixteen windows at a time; compare with ONNX Runtime."""
    config, model, engine = opened(form, recordings=True)
    passes: list[float] = []
    encodings: list[float] = []
    if form != "onnx":
        watch(engine, encodings, passes, set())
    writer = FileTranscriber(config, model, engine, is_alone=lambda: True)
    file = writer.new_file(lambda gap: None)
    file.take(speech(seconds).frames)
    begun = time.perf_counter()
    finals = [final for window in writer.transcribe(file) for final in window.finals]
    taken_s = time.perf_counter() - begun
    said = [(final.text, final.words) for final in finals]
    texts, times = compared(said, kept, keeps=form == "onnx")
    say(
        f"files:{form}",
        speech=f"{seconds} s",
        taken=f"{taken_s:.2f} s, {seconds / taken_s:.0f} times real time",
        passes=len(passes),
        decoder_pass=ms(passes),
        windows=len(encodings),
        encoder=ms(encodings),
        texts_as_onnx=texts,
        words_times_as_onnx=times,
        memory="-" if form == "onnx" else memory(),
    )


class RandomWeights(Mapping[str, Any]):
    """Weights of these shapes, made when they are asked for."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        rng = np.random.default_rng(0)
        self._block = rng.standard_normal(1_000_003, dtype=np.float32)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        shape = self._shapes[name]
        scale = 0.02 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
        values = np.resize(self._block, shape) * np.float32(scale)
        return values + np.float32(name.endswith(("ln.weight", "ln_post.weight")))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def turbo(form: str, name: str) -> None:
    """Time a large model's steps; random weights take as long as trained ones."""
    dims = dimensions(name)
    rng = np.random.default_rng(0)
    silence = SilenceStates(rng.standard_normal(silence_shape(dims)).astype(np.float16))
    model = Model(
        name=name,
        dims=dims,
        weights=RandomWeights(parameter_shapes(dims)),
        vocabulary=openai_vocabulary(Path(name), dims.n_vocab),
        alignment_heads=usual_heads(Path(name), dims),
        language=None,
        silence=silence,
    )
    begun = time.perf_counter()
    engine = mlx_engine(model, form)
    label = f"turbo:{form}"
    say(label, model=name, loaded_in=f"{time.perf_counter() - begun:.1f} s", memory=memory())
    mel = rng.standard_normal((dims.n_mels, 3000)).astype(np.float32)
    for columns in (100, 500):
        first: list[float] = []
        timed(partial(engine.encode, mel[:, :columns]), first)()
        again = repeated(partial(engine.encode, mel[:, :columns]), 10)
        say(label, window=f"{columns / 100:.0f} s, new", first_time=ms(first), then=ms(again))
    before = engine.encode(mel[:, :450])
    step = partial(engine.encode, mel[:, :500], Reuse(before, 225 - 75))
    say(label, step="500 ms at 5 s", encoder=ms(repeated(step, 20)))
    full = repeated(partial(engine.encode, mel), 5)
    say(label, window="30 s, which other programs encode in each step", encoder=ms(full))
    features = step()
    decoder = engine.decoder(features, 448)
    for k in (1, 2, 3, 4, 8, 12, 16, 32, 64):
        taken = repeated(partial(run_in_order, decoder, range(k), 0, [k - 1]), 20)
        say(label, tokens_in_a_pass=k, pass_takes=ms(taken), tokens_a_second=round(k / min(taken)))
    for n in (1, 4, 16):
        decoders = [engine.decoder(features, 64) for _ in range(n)]
        asked = [one_token(each) for each in decoders]
        taken = repeated(partial(engine.run, asked), 20)
        say(
            label,
            windows_at_once=n,
            pass_takes=ms(taken),
            tokens_a_second=round(n / float(np.median(taken))),
            memory=memory(),
        )


def one_token(decoder: Any) -> Pass:  # noqa: ANN401
    """A pass of the first token."""
    at = np.array([0])
    return Pass(decoder, np.array([7]), at, at, np.arange(decoder.n_slots)[None] < 1, at)


def onnx_gpu() -> None:
    """Time the CPU's float32 graphs on this GPU by ONNX Runtime, which copies what they write."""
    import onnxruntime

    from streamd.engines.onnx import sessions

    known = onnxruntime.get_available_providers()
    cuda = "CUDAExecutionProvider"
    if cuda not in known:
        why = (
            f"this onnxruntime has no CUDA, only {' '.join(known)}: install onnxruntime-gpu instead"
        )
        say("onnx-gpu", version=onnxruntime.__version__, not_measured=why)
        return
    on_cpu = sessions.InferenceSession

    def on_gpu(graph: bytes, options: Any, providers: list[str]) -> Any:  # noqa: ANN401
        session = on_cpu(graph, options, providers=[cuda, *providers])
        if cuda not in session.get_providers():  # it goes on without
            raise SystemExit("onnxruntime has CUDA, which does not start here")
        return session

    steps = {}
    for name, opens in (("CPU, 2 threads", on_cpu), ("GPU", on_gpu)):
        sessions.InferenceSession = opens  # type: ignore[assignment, misc]
        engine = open_in_memory(load_model(MODEL), threads=2, precision="float32").engine
        step = window_timer(engine, LIVE_WINDOW)
        steps[name] = ms([step() / 1000 for _ in range(20)])
    say("onnx-gpu", version=onnxruntime.__version__, providers=" ".join(known), live_step=steps)


def run_part(part: str, args: argparse.Namespace) -> None:
    """Run one part in this process."""
    kind, _, form = part.partition(":")
    kept = args.out.with_name(f"{args.out.stem}-{kind}.json")
    calls: dict[str, Callable[[], None]] = {
        "device": device,
        "golden": lambda: golden(form),
        "live": lambda: live(form, args.seconds, kept),
        "files": lambda: files(form, args.seconds, kept),
        "turbo": lambda: turbo(form, args.turbo),
        "onnx-gpu": onnx_gpu,
    }
    calls[kind]()


def main() -> None:
    """Run the parts one after the other, and keep the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=300, help="speech for live and files")
    parser.add_argument("--turbo", default="large-v3-turbo", help="the large model's dimensions")
    parser.add_argument("--out", type=Path, default=Path("build/gpu.txt"))
    parser.add_argument("--deadline-s", type=int, default=120, help="when a part is ended")
    parser.add_argument("--budget-s", type=int, default=240, help="when no part is begun any more")
    parser.add_argument("--archive", type=Path, help="pack what this needs, and run nothing")
    parser.add_argument("--here", action="store_true", help="in this process, one part")
    parser.add_argument("parts", nargs="*", default=PARTS)
    args = parser.parse_args()
    if args.archive:
        pack(args.archive)
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.here:
        run_part(args.parts[0], args)
        return
    # The CPU's parts, with which others are compared, run beside the first ones of the GPU.
    on_cpu = [part for part in args.parts if part.endswith(":onnx")]
    others = [part for part in args.parts if part not in on_cpu]
    with args.out.open("w") as report, ThreadPoolExecutor(1) as pool:
        run = partial(of_process, args=args, ends=time.monotonic() + args.budget_s)
        beside = pool.map(run, on_cpu)
        for part in others:
            if part.startswith(("live", "files")):
                told(beside, report)
            told([run(part)], report)
        told(beside, report)


def told(parts: Iterable[list[str]], report: TextIO) -> None:
    """Print the lines of parts when they are done."""
    for line in chain.from_iterable(parts):
        print(line, flush=True)
        print(line, file=report, flush=True)


def pack(archive: Path) -> None:
    """Write the files that are read."""
    with tarfile.open(archive, "w:gz") as tar:
        for name in CARRIED:
            tar.add(ROOT / name, name, filter=lambda f: None if "__pycache__" in f.name else f)
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB")


def of_process(part: str, args: argparse.Namespace, ends: float) -> list[str]:
    """Return the lines of a part that runs in a process of its own; how it failed is one, too."""
    left_s = min(args.deadline_s, ends - time.monotonic())
    if left_s <= 0:
        return [f"{part:16} NOT RUN: {args.budget_s} s were over; name it to run it alone"]
    command = [sys.executable, __file__, "--here", "--out", str(args.out), part]
    command += ["--seconds", str(args.seconds), "--turbo", args.turbo]
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=os.environ | ENVIRONMENTS.get(part.partition(":")[2], {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=left_s)
        how = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        how = f"not done after {left_s:.0f} s"
    lines = output.splitlines()
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or ["no error was printed"]
        lines.append(f"{part:16} REFUSED: {how}: {last[0][:400]}")
    lines.append(f"{part:16} part took {time.perf_counter() - begun:.1f} s")
    return lines


if __name__ == "__main__":
    main()
