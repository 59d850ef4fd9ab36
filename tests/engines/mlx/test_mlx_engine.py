"""The MLX engine computes what the reference does, in any thread, of few shapes, in little memory.

Unless a test says otherwise, in float32: on a CPU it is within rounding of the other engines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from streamd.engines.mlx import mlx_engine
from streamd.engines.mlx.arithmetic import Arithmetic
from streamd.engines.mlx.device import KEYS, POSITIONS, ROWS, SLOTS, n_cheap
from streamd.engines.mlx.mlx_engine import N_TOGETHER, MlxEngine
from streamd.engines.reference import ReferenceEngine
from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.models.model import Model
from streamd.models.silence import SilenceStates, extend, silence_shape
from streamd.types import Mel
from streamd.whisper.engine import Engine, Pass, Reuse
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.support.checkpoints import checkpoint, network
from tests.support.decoders import run_pass

pytestmark = pytest.mark.mlx
TOLERANCE = 3e-5 if mx.default_device().type == mx.cpu else 1e-2
"""Relative error (rms) in float32; measured on a CPU: up to 1.4e-5 (tiny.en)."""
PLAIN = Arithmetic("float32", pads=False)
PADDED = Arithmetic("float32", pads=True)


def silence_of(model: Model) -> SilenceStates:
    """The model's own states of silence, or any."""
    rng = np.random.default_rng(0)
    shape = silence_shape(model.dims)
    return model.silence or SilenceStates(rng.standard_normal(shape).astype(np.float16))


@cache
def engine_of(name: str, arithmetic: Arithmetic = PLAIN) -> MlxEngine:
    model = load.model(name)
    return MlxEngine(
        network(
            model.dims,
            model.weights,
            alignment_heads=model.alignment_heads,
            silence=silence_of(model),
        ),
        arithmetic=arithmetic,
    )


@cache
def reference_of(name: str) -> ReferenceEngine:
    model = load.model(name)
    heads = model.alignment_heads
    silence = silence_of(model)
    return ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=heads, silence=silence)
    )


@cache
def mel_of(n_mels: int) -> Mel:
    return log_mel(load.samples("lamp", 1500), n_mels)


def some_passes(dims: ModelDimensions) -> list[tuple[np.ndarray, ...]]:
    """A prompt, a tree of slots out of order, and a token behind it: what `step` is called with."""
    tokens = np.random.default_rng(0).integers(0, dims.n_vocab, 8)
    order, prompt = np.arange(5), np.zeros((5, 80), np.bool_)
    prompt[:, :5] = np.tri(5)
    tree = np.zeros((2, 80), np.bool_)
    tree[:, :5] = True
    tree[0, 70] = tree[1, 7] = True
    behind = np.zeros((1, 80), np.bool_)
    behind[:, [0, 1, 2, 3, 4, 7, 30]] = True
    return [
        (tokens[:5], order, order, prompt, order),
        (tokens[5:7], np.array([5, 5]), np.array([70, 7]), tree, np.array([1, 0])),
        (tokens[7:], np.array([6]), np.array([30]), behind, np.array([0])),
    ]


def answers(engine: Engine) -> Iterator[np.ndarray]:
    """Of passes over a first window, one that resumes it, and one with a given context."""
    mel = mel_of(engine.dims.n_mels)
    first = engine.encode(mel[:, :400])
    resumed = engine.encode(mel[:, :520], Reuse(first, 125))
    again = engine.encode(mel[:, :620], Reuse(resumed, 180))
    for features in (first, resumed, again, engine.encode(mel[:, :520], audio_ctx=300)):
        decoder = engine.decoder(features, 80)
        for asked in some_passes(engine.dims):
            yield from run_pass(decoder, *asked)


def off(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("name", "arithmetic", "most_off"),
    [
        ("random", PLAIN, TOLERANCE),
        ("random", PADDED, TOLERANCE),
        ("random", Arithmetic("float16", pads=True), 3e-2),
        ("tiny.en", PLAIN, TOLERANCE),
        ("tiny.en", PADDED, TOLERANCE),
        ("tiny.en", Arithmetic("float32", bits=8), 8e-2),
    ],
)
def test_equals_the_reference(name, arithmetic, most_off):
    pairs = zip(answers(engine_of(name, arithmetic)), answers(reference_of(name)), strict=True)
    assert max(off(found, expected) for found, expected in pairs) < most_off


@pytest.mark.parametrize("n", [31, 64, 65, 200, 224, 480, 700, 968, 970, 1500])
def test_what_pads_a_window_changes_nothing(n):
    """At and beside the sizes: new positions and keys that just fit, and one step more."""
    mel = mel_of(128)[:, : 2 * n]
    found = []
    for arithmetic in (PLAIN, PADDED):
        engine = engine_of("random", arithmetic)
        before = engine.encode(mel[:, : max(40, n)])
        features = engine.encode(mel, Reuse(before, n // 4))
        found.append([run_pass(engine.decoder(features, 80), *some_passes(engine.dims)[0])])
    (plain,), (padded,) = found
    assert plain[1].shape == padded[1].shape
    for ours, expected in zip(padded, plain, strict=True):
        assert off(ours, expected) < TOLERANCE


@pytest.mark.parametrize("arithmetic", [PLAIN, PADDED])
def test_what_another_encoder_computed_is_decoded_the_same(arithmetic):
    """A first window and one that takes over a part of its positions, in half precision."""
    engine, reference = engine_of("random", arithmetic), reference_of("random")
    mel, decoded, features = mel_of(128), [[], []], [None, None]
    for n_frames, n_reused in ((200, 0), (260, 125)):
        window = mel[:, : 2 * n_frames]
        _, extent = extend(window, reference.dims, has_silence=True)
        theirs = reference.encode(window, features[1] and Reuse(features[1], n_reused))
        output = theirs.states[-1][n_reused : extent.n].astype(np.float16)
        ours = engine.project(output, extent, reuse=features[0] and Reuse(features[0], n_reused))
        features = [ours, theirs]
        for each, kind, parts in zip(features, (engine, reference), decoded, strict=True):
            decoder = kind.decoder(each, 80)
            for asked in some_passes(engine.dims):
                parts += run_pass(decoder, *asked)
    assert max(off(*pair) for pair in zip(*decoded, strict=True)) < 2e-3


def test_without_states_of_silence_the_full_context_is_computed():
    model = load.model("random")
    heads = model.alignment_heads
    reference = ReferenceEngine(network(model.dims, model.weights, alignment_heads=heads))
    engine = MlxEngine(network(model.dims, model.weights, alignment_heads=heads), arithmetic=PLAIN)
    pairs = zip(answers(engine), answers(reference), strict=True)
    assert max(off(found, expected) for found, expected in pairs) < TOLERANCE


def test_an_output_layer_of_its_own_is_used():
    model = checkpoint("few")
    outputs = {"proj_out.weight": np.flip(model.weights["decoder.token_embedding.weight"], 0)}
    found = []
    for kind, more in ((MlxEngine, {"arithmetic": PLAIN}), (ReferenceEngine, {})):
        engine = kind(
            network(model.dims, model.weights | outputs, alignment_heads=[(0, 0)]), **more
        )
        decoder = engine.decoder(engine.encode(np.zeros((model.dims.n_mels, 50), np.float32)), 8)
        found.append(run_pass(decoder, *first_token(8))[0])
    assert off(*found) < TOLERANCE


def first_token(n_slots: int, token: int = 7) -> tuple[np.ndarray, ...]:
    first = np.array([0])
    return np.array([token]), first, first, np.arange(n_slots)[None] < 1, first


def test_logits_of_some_tokens_are_those_of_all():
    engine = engine_of("random")
    features = engine.encode(mel_of(128)[:, :200])
    tokens, positions, slots, visible, _ = some_passes(engine.dims)[0]
    asked = tokens, positions, slots, visible, np.array([4, 1])
    among = np.array([299, 5, 7])
    all_of_them, alignment = run_pass(engine.decoder(features, 80), *asked)
    some, same = run_pass(engine.decoder(features, 80), *asked, among)
    none, _ = run_pass(engine.decoder(features, 80), *asked[:4], np.zeros(0, np.int64))
    assert none.shape == (0, engine.dims.n_vocab)
    np.testing.assert_array_equal(some, all_of_them[:, among])
    np.testing.assert_array_equal(same, alignment)


@pytest.mark.parametrize("arithmetic", [PLAIN, PADDED])
def test_windows_at_once_are_what_they_are_one_after_the_other(arithmetic):
    """Ragged passes of as many windows as there may be, each of another length."""
    engine = engine_of("random", arithmetic)
    together, rng = engine.together(lambda: True), np.random.default_rng(0)
    mel = mel_of(128)
    lengths = [40 + 30 * i for i in range(N_TOGETHER)]
    # Begun before the others are encoded and used after it: they are computed beside that.
    begun = [together.begin(lambda n=n: mel[:, : 2 * n]) for n in lengths]
    alone = [engine.encode(mel[:, : 2 * n]) for n in lengths]
    kept = [wait() for wait in begun]
    decoders = [[engine.decoder(each, 96) for each in both] for both in (kept, alone)]
    begins = [0] * N_TOGETHER
    for turn in range(3):
        asked = []
        for at in range(turn, N_TOGETHER):  # one after the other is done
            k = 1 + (3 * at + turn) % 5
            order = np.arange(begins[at], begins[at] + k)
            begins[at] += k
            want, among = np.arange(at % 2, k), np.array([3, 1]) if at == 4 else None
            tokens, visible = rng.integers(0, 300, k), np.arange(96) <= order[:, None]
            asked.append((at, (tokens, order, order, visible, want, among)))
        found = together.run([Pass(decoders[0][at], *about) for at, about in asked])
        for (at, about), ours in zip(asked, found, strict=True):
            for each, expected in zip(ours, run_pass(decoders[1][at], *about), strict=True):
                assert each.shape == expected.shape
                assert np.linalg.norm(each - expected) <= TOLERANCE * np.linalg.norm(expected)


def elsewhere(call):
    """What `call` gives in a thread that ends then."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [("random", PLAIN), ("random", PADDED), ("tiny.en", Arithmetic("float32", bits=8))],
)
def test_nothing_is_left_to_be_computed_by_the_thread_that_began_it(name, arithmetic):
    """MLX refuses to: each step here is in another thread, and an engine is made in one, too."""
    model = load.model(name)
    mel, make = mel_of(model.dims.n_mels), engine_of.__wrapped__
    engine = elsewhere(lambda: make(name, arithmetic))
    first = elsewhere(lambda: engine.encode(mel[:, :400]))
    second = elsewhere(lambda: engine.encode(mel[:, :520], Reuse(first, 125)))
    before = elsewhere(lambda: engine.decoder(first, 80))
    prompt, tree, behind = some_passes(model.dims)
    elsewhere(lambda: run_pass(before, *prompt))
    decoder = elsewhere(lambda: engine.decoder(second, 80))
    assert elsewhere(lambda: decoder.adopt(before, 5))
    found = [elsewhere(lambda step=step: run_pass(decoder, *step)) for step in (tree, behind)]
    same = engine.decoder(second, 80)
    same.adopt(before, 5)
    for ours, step in zip(found, (tree, behind), strict=True):
        for each, expected in zip(ours, run_pass(same, *step), strict=True):
            np.testing.assert_array_equal(each, expected)
    begun = elsewhere(lambda: engine.encode_alone(mel[:, :400]))
    both = [run_pass(engine.decoder(each, 80), *prompt) for each in (begun, first)]
    for each, expected in zip(*both, strict=True):
        np.testing.assert_array_equal(each, expected)


def test_one_engine_serves_several_threads():
    engine = engine_of("random")
    mels = [log_mel(load.samples(clip, 576), 128) for clip in ("lamp", "cards", "digits")] * 5

    def forward(mel: Mel) -> np.ndarray:
        decoder = engine.decoder(engine.encode(mel), 80)
        return np.concatenate([run_pass(decoder, *each)[0] for each in some_passes(engine.dims)])

    one_by_one = [forward(mel) for mel in mels]
    with ThreadPoolExecutor(3) as pool:
        for found, expected in zip(pool.map(forward, mels), one_by_one, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_decoder_that_takes_over_slots_leaves_the_other_one_as_it_is():
    engine = engine_of("random")
    features = engine.encode(mel_of(128)[:, :400])
    before, twin = (engine.decoder(features, 80) for _ in range(2))
    prompt, tree, _ = some_passes(engine.dims)
    run_pass(before, *prompt), run_pass(twin, *prompt)
    after = engine.decoder(engine.encode(mel_of(128)[:, :500]), 80)
    assert after.adopt(before, 3)
    run_pass(after, *first_token(80, 9))  # over the first slot
    for found, expected in zip(run_pass(before, *tree), run_pass(twin, *tree), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not after.adopt(engine_of("random", PADDED).decoder(features, 80), 3)


def test_two_hundred_lengths_make_few_shapes_and_take_bounded_memory(monkeypatch):
    """All windows of a live utterance up to 30 s, and passes of any length, with beams.

    MLX's CUDA back end raises an error after 512 shapes of attention, of which five minutes of
    speech had 1,252.
    """
    shapes, attend = set(), mlx_engine.attend

    def noted(query, both, added):
        if query.shape[1] > 1:  # for one query it makes no plan
            shapes.add((query.shape, both.shape, added.shape))
        return attend(query, both, added)

    monkeypatch.setattr(mlx_engine, "attend", noted)
    engine = engine_of.__wrapped__("random", PADDED)
    limit = mx.set_cache_limit(64 << 20)
    assert limit == 64 << 20, "the engine has set it"
    assert 0 < mx.get_memory_limit() - (1 << 30) <= mx.get_active_memory(), "and this, too"
    mel, previous, n_before = mel_of(128), None, 0
    n_lengths = 0
    for n in range(8, 1500, 7):
        n_reused = max(0, n_before - 75) // 8 * 8
        features = engine.encode(mel[:, : 2 * n], previous and Reuse(previous, n_reused))
        previous, n_before = (None, 0) if n % 5 == 0 else (features, n)
        decoder, k = engine.decoder(features, 96), 2 + n % 90
        order = np.arange(k)
        run_pass(decoder, order, order, order, np.tri(k, 96, dtype=np.bool_), np.array([k - 1]))
        n_lengths += 1
        assert mx.get_cache_memory() <= limit
    assert n_lengths > 200
    assert len(shapes) <= 80


def test_sizes_are_enough_for_all_that_whisper_has():
    assert POSITIONS[-1] == 1500
    assert KEYS[-1] >= 1500
    assert ROWS[-1] == 448
    assert SLOTS[-1] >= 448 + 16 * 224, "sixteen beams or samples of half a text context"
    for sizes in (POSITIONS, KEYS, ROWS, SLOTS):
        assert sorted(sizes) == list(sizes)


@pytest.mark.parametrize(
    ("architecture", "n"),
    [
        ("x86_64", 4),
        ("applegpu_g13g", 1),  # M1
        ("applegpu_g14s", 1),  # M2 Pro
        ("applegpu_g15d", 8),  # M3 Max
        ("applegpu_g16g", 8),
        ("sm_90", 16),
    ],
)
def test_how_many_tokens_are_cheap_depends_on_the_gpu(architecture, n):
    assert n_cheap(architecture) == n


def test_the_limit_of_shapes_is_off_before_mlx_is_imported(tmp_path):
    """Whatever the user has set stays; and on a CPU nothing is compiled in the temporary folder."""
    code = """if True:
        import os, sys
        import streamd.engines.mlx
        assert "mlx.core" not in sys.modules
        print(os.environ["MLX_ENABLE_CACHE_THRASHING_CHECK"])
        if os.environ["MLX_ENABLE_CACHE_THRASHING_CHECK"] == "0":
            from tests.engines.mlx.test_mlx_engine import answers, engine_of
            list(answers(engine_of("random")))
    """
    variable = "MLX_ENABLE_CACHE_THRASHING_CHECK"
    for given, expected in (({}, "0"), ({variable: "1"}, "1")):
        environment = {name: os.environ[name] for name in os.environ if name != variable}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | given | {"TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout.strip(), done.returncode) == (expected, 0), done.stderr
    if sys.platform == "linux":
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(80, 42), (128, 0), (128, 3001)])
def test_the_encoder_refuses_the_wrong_shape(shape):
    with pytest.raises(ValueError, match=f"log-mel of shape {re.escape(str(shape))}"):
        engine_of("random").encode(np.zeros(shape, np.float32))


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, MemoryError])
def test_a_failure_of_mlx_is_an_engine_error_and_the_engine_goes_on(monkeypatch, kind):
    engine, mel = engine_of("random"), mel_of(128)[:, :200]
    decoder = engine.decoder(engine.encode(mel), 80)

    def failing(*arrays: object) -> None:
        raise kind("[metal::malloc] Attempting\nto allocate")

    for call in (lambda: engine.encode(mel), lambda: run_pass(decoder, *first_token(80))):
        with monkeypatch.context() as patch:
            patch.setattr(mx, "eval", failing)
            with pytest.raises(EngineError, match=r"MLX failed: \[metal::malloc\] Attempting to"):
                call()
        call()
