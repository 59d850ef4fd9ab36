"""The ONNX engine computes what the reference does, and fails in one line."""

import gc
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event, Timer, current_thread
from threading import enumerate as enumerate_threads

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.memory import N_TOGETHER
from streamd.engines.onnx import OnnxEngine, build, proto
from streamd.engines.onnx.builder import Linear
from streamd.engines.onnx.graphs import decoder_graph, encoder_graph, graphs
from streamd.engines.reference import ReferenceEngine
from streamd.errors import EngineError, EngineMemoryError
from streamd.models import ModelDimensions
from streamd.models.model import Model, parameter_shapes
from streamd.models.silence import Extent, SilenceStates, extend, silence_shape
from streamd.system.stdio import ENGINE_THREAD
from streamd.types import Mel
from streamd.whisper.engine import Pass, Reuse
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.golden.random_model import random_weights
from tests.support.checkpoints import checkpoint, network
from tests.support.decoders import run_pass

TOLERANCE = 1e-5
"""Relative error (rms), as in test_reference.py; measured: up to 2.3e-6."""


def engine_of(name: str, threads: int = 1) -> build:
    model = load.model(name)
    return build(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads), threads=threads
    )


def forward(engine, mel, tokens) -> tuple[np.ndarray, np.ndarray]:
    """All of `tokens` in one pass, logits of every row."""
    order = np.arange(len(tokens))
    visible = np.tri(len(tokens), dtype=np.bool_)
    decoder = engine.decoder(engine.encode(mel, audio_ctx=mel.shape[1] // 2), n_slots=len(tokens))
    return run_pass(decoder, tokens, order, order, visible, order)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.linalg.norm(found - expected) < TOLERANCE * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("name", "n_ctx", "threads"),
    [
        *(("tiny.en", 192, 1), ("tiny.en", 1500, 2)),
        *(("random", n_ctx, threads) for n_ctx in (7, 1500) for threads in (1, 2)),
    ],
)
def test_equals_the_reference(name, n_ctx, threads):
    model = load.model(name)
    reference = ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads)
    )
    mel = log_mel(load.samples("lamp", 1500), model.dims.n_mels)[:, : 2 * n_ctx]
    tokens = load.arrays()[f"{name}_tokens"]
    found = forward(engine_of(name, threads), mel, tokens)
    expected = forward(reference, mel, tokens)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    assert np.abs(found[0] - expected[0]).max() < TOLERANCE * np.abs(expected[0]).max()


@pytest.mark.parametrize("n_ctx", [40, 1_500])
def test_a_wide_encoder_computes_the_same_in_pieces(n_ctx):
    """Some of the pieces of a short window are empty."""
    dims = ModelDimensions(8, 1_500, 1_024, 16, 1, 300, 16, 1_024, 16, 1)
    weights = random_weights(parameter_shapes(dims))
    mel = np.random.default_rng(1).standard_normal((8, 2 * n_ctx), np.float32)
    reference = ReferenceEngine(network(dims, weights, alignment_heads=[(0, 0)]))
    tokens = np.arange(6)
    expected = forward(reference, mel, tokens)
    for precision, tolerance in (("float32", TOLERANCE), ("int8", 0.05)):
        made = build(network(dims, weights, alignment_heads=[(0, 0)]), precision=precision)
        for found, exact in zip(forward(made, mel, tokens), expected, strict=True):
            assert np.linalg.norm(found - exact) < tolerance * np.linalg.norm(exact)


def output(reference: ReferenceEngine, features, mel: Mel) -> tuple[np.ndarray, Extent]:
    """What an encoder gives for the positions that it computes."""
    _, extent = extend(mel, reference.dims, has_silence=True)
    return features.states[-1][: extent.n], extent


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("n_reused", [0, 60])
def test_what_another_encoder_computed_is_projected_as_its_own(precision, n_reused):
    """Keys and values of the sound, to what rounding of the encoder's output costs."""
    model = load.model("random")
    states = np.random.default_rng(1).standard_normal(silence_shape(model.dims))
    silence = SilenceStates(states.astype(np.float16))
    heads = model.alignment_heads
    reference = ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=heads, silence=silence)
    )
    engine = build(
        network(model.dims, model.weights, alignment_heads=heads, silence=silence),
        precision=precision,
    )
    mel = log_mel(load.samples("lamp", 1500), model.dims.n_mels)[:, :400]
    earlier, before, projected = None, None, None
    if n_reused:
        before = engine.encode(mel[:, :200])
        earlier = reference.encode(mel[:, :200])
        projected = engine.project(*output(reference, earlier, mel[:, :200]))
    expected = engine.encode(mel, before and Reuse(before, n_reused))
    exact = reference.encode(mel, earlier and Reuse(earlier, n_reused))
    found, extent = output(reference, exact, mel)
    found = found[n_reused:].astype(np.float16)
    features = engine.project(found, extent, reuse=projected and Reuse(projected, n_reused))
    assert features.n_silence == expected.n_silence
    np.testing.assert_array_equal(features.bias, expected.bias)
    tolerance = {"float32": 1e-3, "int8": 0.05}[precision]
    for name, rows in expected.views.items():
        if name.startswith("cross"):
            mine, theirs = (each.astype(np.float32) for each in (features.views[name], rows))
            assert np.linalg.norm(mine - theirs) < tolerance * np.linalg.norm(theirs)


def test_alignment_heads_come_sorted():
    model = load.model("random")
    mixed = [model.alignment_heads[i] for i in (2, 0, 1)]
    engines = [
        kind(network(model.dims, model.weights, alignment_heads=heads))
        for kind in (build, ReferenceEngine)
        for heads in (mixed, model.alignment_heads)
    ]
    mel = log_mel(load.samples("lamp", 192), model.dims.n_mels)
    alignments = [forward(engine, mel, np.arange(5))[1] for engine in engines]
    assert alignments[0].shape == (5, 3, 192)
    for alignment in alignments[1:]:
        assert_close(alignment, alignments[0])


@pytest.mark.parametrize("kind", Linear)
def test_graphs_hold_no_weights_and_share_none(kind):
    model = load.model("random")
    encoder = encoder_graph(model, kind)
    decoder = decoder_graph(model, kind)
    assert len(encoder.model) < 50_000
    assert len(decoder.model) < 50_000
    assert not encoder.tensors.keys() & decoder.tensors.keys()


def test_one_engine_serves_several_threads():
    engine = engine_of("random")
    mels = [log_mel(load.samples(clip, 576), 128) for clip in ("lamp", "cards", "digits")] * 3
    tokens = np.arange(10)
    one_by_one = [forward(engine, mel, tokens)[0] for mel in mels]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda mel: forward(engine, mel, tokens)[0], mels))
    for found, expected in zip(together, one_by_one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_results_stay_when_the_decoder_goes_on():
    engine = engine_of("random")
    features = engine.encode(log_mel(load.samples("lamp", 192), 128), audio_ctx=192)
    decoder = engine.decoder(features, n_slots=8)
    step = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.eye(1, 8, dtype=np.bool_))
    first = [run_pass(decoder, np.array([t]), *step, np.zeros(1, np.int64)) for t in range(40)]
    again = [run_pass(decoder, np.array([t]), *step, np.zeros(1, np.int64)) for t in range(40)]
    for (logits, alignment), (same_logits, same_alignment) in zip(first, again, strict=True):
        np.testing.assert_array_equal(logits, same_logits)
        np.testing.assert_array_equal(alignment, same_alignment)


def test_a_failing_runtime_is_an_engine_error(capfd):
    engine = engine_of("random")
    mel = np.zeros((128, 64), np.float32)
    with pytest.raises(EngineError, match="ONNX Runtime failed") as caught:
        forward(engine, mel, np.zeros(engine.dims.n_text_ctx + 1, np.int64))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == "", "the runtime's own log must not reach the terminal"


def test_too_little_memory_is_told_from_other_failures(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("Non-zero status code: Failed to allocate memory for a buffer of size 9")

    engine = engine_of("random")
    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", fail)
    with pytest.raises(EngineMemoryError, match="free some"):
        engine.encode(np.zeros((128, 64), np.float32))


def test_a_refused_graph_is_an_engine_error():
    model = load.model("random")
    weights = {name: values.astype(np.int32) for name, values in model.weights.items()}
    with pytest.raises(EngineError, match="ONNX Runtime failed"):
        build(network(model.dims, weights, alignment_heads=model.alignment_heads))


@pytest.mark.parametrize("shape", [(80, 42), (128, 0), (128, 3001)])
def test_encoder_refuses_the_wrong_shape(shape):
    engine = engine_of("random")
    with pytest.raises(ValueError, match=f"log-mel of shape {re.escape(str(shape))}"):
        engine.encode(np.zeros(shape, np.float32))


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_onnx_package_reads_and_accepts_our_graphs(tmp_path, precision):
    model = checkpoint("few")
    silence = SilenceStates(np.zeros(silence_shape(model.dims), np.float16))
    made = graphs(replace(model, alignment_heads=((0, 1),), silence=silence), precision)
    for graph in (make() for make in made):
        path = graph.write(tmp_path)
        read = onnx.load_model_from_string(graph.model)
        assert read.SerializeToString(deterministic=True) == path.read_bytes()
        onnx.checker.check_model(str(path))
        whole = {each.name: each for each in onnx.load(path).graph.initializer}
        for name, values in graph.tensors.items():
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(whole[name]), values)


@given(
    attributes=st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.integers(-(2**63), 2**63 - 1)
        | st.floats(width=32, allow_nan=False)
        | st.text(max_size=9)
        | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9),
        max_size=3,
    ),
    shape=st.lists(st.integers(0, 2**40) | st.text(min_size=1, max_size=9), max_size=5),
    names=st.lists(st.text(max_size=200), max_size=3),
)
def test_messages_are_those_of_the_onnx_package(attributes, shape, names):
    node = onnx.helper.make_node("Op", names, names[:1], "name", domain="domain")
    for key, value in attributes.items():
        node.attribute.append(onnx.helper.make_attribute(key, value))
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT32, shape)
    constant = onnx.numpy_helper.from_array(np.arange(6, dtype=np.int64).reshape(2, 3) - 3, "c")
    ours = proto.model(
        [proto.node("Op", names, names[:1], name="name", domain="domain", attributes=attributes)],
        inputs=[proto.value_info("x", proto.ElementType.INT32, shape)],
        outputs=[],
        initializers=[proto.constant("c", np.arange(6).reshape(2, 3) - 3)],
        opsets={"": 20, "domain": 1},
    )
    graph = onnx.helper.make_graph([node], "whisper", [info], [], [constant])
    opsets = [onnx.helper.make_opsetid(*each) for each in (("", 20), ("domain", 1))]
    theirs = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=proto.IR_VERSION)
    assert onnx.load_model_from_string(ours) == theirs


def with_silence(model: Model, precision: str) -> OnnxEngine:
    """Its windows have the positions of their sound, and the same ones of silence."""
    states = np.random.default_rng(1).standard_normal(silence_shape(model.dims)) / 10
    return build(
        network(
            model.dims,
            model.weights,
            alignment_heads=model.alignment_heads,
            silence=SilenceStates(states.astype(np.float16)),
        ),
        precision=precision,
    )


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_windows_at_once_are_what_they_are_one_after_the_other(precision):
    """Ragged passes of windows of other lengths, which come, go and use slots out of order."""
    model, rng = load.model("random"), np.random.default_rng(0)
    engine = with_silence(model, precision)
    mel = log_mel(load.samples("lamp", 1500), model.dims.n_mels)
    features = [engine.encode(mel[:, : 2 * n]) for n in (192, 40, 300)]
    together = engine.together(lambda: True)
    order = [np.array([0, 1, 2, 3]), np.array([4]), np.array([6, 5]), np.array([7])]
    seen = np.zeros((8, 8), np.bool_)
    for first, slots in ((0, order[0]), (4, order[1]), (5, order[2]), (7, order[3])):
        seen[slots] = [[*[True] * first, *[False] * (8 - first)]] * len(slots)
        seen[slots, slots] = True
    kept = [together.encode_alone(mel[:, : 2 * n]) for n in (192, 40, 300)]
    alone, joint = ([engine.decoder(each, n_slots=8) for each in both] for both in (features, kept))
    for at in range(len(order) + 2):  # each begins a pass later than the one before
        steps = [order[at - i] if 0 <= at - i < len(order) else None for i in range(3)]
        asked = []
        for i, slots in enumerate(steps):
            if slots is not None:
                tokens = rng.integers(0, 300, len(slots))
                want, among = np.arange(len(slots)), np.array([5, 299]) if i else None
                asked.append((i, (tokens, slots, slots, seen[slots], want, among)))
        answers = together.run([Pass(joint[i], *about) for i, about in asked])
        for (i, about), found in zip(asked, answers, strict=True):
            for ours, expected in zip(found, run_pass(alone[i], *about), strict=True):
                # int8: the keys and values of the sound, too
                close = 1e-5 if precision == "float32" else 0.1
                assert np.linalg.norm(ours - expected) <= close * np.linalg.norm(expected)


def one_token(decoder) -> Pass:
    first, seen = np.array([0]), np.arange(decoder.n_slots) < 1
    return Pass(decoder, np.array([7]), first, first, seen[None], first)


def test_what_a_window_says_does_not_depend_on_the_others():
    """To the last bit, in whatever seat, and whichever thread has encoded it."""
    model = load.model("random")
    engine = with_silence(model, "int8")
    engine.urgent = engine  # so there is a thread for it
    mel = log_mel(load.samples("lamp", 1500), model.dims.n_mels)
    together = engine.together(lambda: True)
    lengths = [40 + 16 * i for i in range(N_TOGETHER)]
    for _ in range(2):  # the second time in seats that are free again, in another order
        lengths.reverse()
        begun = [together.begin(partial(mel.__getitem__, np.s_[:, : 2 * n])) for n in lengths[::2]]
        kept = [together.encode_alone(mel[:, : 2 * n]) for n in lengths[1::2]]
        kept += [wait() for wait in begun]
        del begun
        assert sorted(each.seat for each in kept) == list(range(N_TOGETHER))
        passes = [one_token(engine.decoder(each, n_slots=8)) for each in kept]
        answers = together.run(passes)
        for asked, answer in zip(passes, answers, strict=True):
            (alone,) = together.run([one_token(engine.decoder(asked.decoder.features, n_slots=8))])
            for ours, expected in zip(answer, alone, strict=True):
                np.testing.assert_array_equal(ours, expected)
        del kept, passes, answers, asked, answer


def with_another_thread() -> tuple[OnnxEngine, Mel]:
    """An engine that may encode in another thread, and a second of log-mel."""
    model = load.model("random")
    engine = build(network(model.dims, model.weights, alignment_heads=model.alignment_heads))
    engine.urgent = engine
    return engine, log_mel(load.samples("lamp", 192), model.dims.n_mels)[:, :100]


def test_no_other_thread_is_used_while_others_need_the_engine(monkeypatch):
    (engine, mel), begun = with_another_thread(), []
    monkeypatch.setattr("streamd.engines.onnx.batch.in_thread", begun.append)
    together = engine.together(lambda: False)
    wait = together.begin(lambda: mel)
    np.testing.assert_array_equal(wait().bias, together.encode_alone(mel).bias)
    assert begun == []


def test_whoever_waits_for_a_late_thread_encodes_what_comes_after():
    threads, is_first, is_third = {}, Event(), Event()
    engine, mel = with_another_thread()

    def begun(number: int) -> Mel:
        threads[number] = current_thread()
        if number == 0:
            is_first.set()
            assert is_third.wait(60), "the third window is never encoded"
        elif number == 2:
            is_third.set()
        elif number == 3:
            raise EngineError("no memory")
        return mel

    together = engine.together(lambda: True)
    waits = [together.begin(partial(begun, number)) for number in range(4)]
    assert is_first.wait(60)
    first = waits[0]()
    np.testing.assert_array_equal(first.bias, together.encode_alone(mel).bias)
    assert threads[0] is not current_thread()
    assert threads[2] is threads[3] is current_thread()
    # Only who needs it has its error.
    waits[1](), waits[2]()
    with pytest.raises(EngineError, match="no memory"):
        waits[3]()


@pytest.mark.parametrize("why", ["others need the engine", "nobody waits for them"])
def test_no_window_is_encoded_ahead_if_others_need_the_engine_or_nobody_waits_for_it(why):
    threads, is_late = {}, Event()
    engine, mel = with_another_thread()

    def begun(number: int) -> Mel:
        threads[number] = current_thread()
        if number == 0:
            assert is_late.wait(60)
        return mel

    is_alone = True
    together = engine.together(lambda: is_alone)
    waits = [together.begin(partial(begun, number)) for number in range(3)]
    is_alone = False
    if why == "nobody waits for them":
        del waits[1:]
    Timer(0.2, is_late.set).start()
    for wait in waits:
        wait()
    for thread in enumerate_threads():
        if thread.name.startswith(ENGINE_THREAD):
            thread.join()
    assert list(threads) == list(range(len(waits)))
    assert current_thread() not in threads.values()


def test_what_runs_windows_together_goes_with_its_last_reference():
    model = load.model("random")
    engine = build(network(model.dims, model.weights, alignment_heads=model.alignment_heads))
    together = engine.together(lambda: True)
    mel = log_mel(load.samples("lamp", 192), model.dims.n_mels)[:, :100]
    kept = together.encode_alone(mel)
    decoder, gone = engine.decoder(kept, n_slots=8), weakref.ref(together)
    together.run([one_token(decoder)])
    gc.disable()
    try:
        del together, kept, decoder
        assert gone() is None
    finally:
        gc.enable()
