"""The states of silence: what is computed of a context, and how close it comes to all of it."""

from functools import cache

import numpy as np
import pytest

from streamd.engines import Precision
from streamd.engines.golden_clips import clips
from streamd.engines.onnx import OnnxEngine, make_silence_states
from streamd.engines.prepared import open_in_memory
from streamd.engines.reference import ReferenceEngine
from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.model import Model
from streamd.models.silence import (
    MARGIN,
    STRIDE,
    Average,
    Extent,
    SilenceStates,
    bias,
    extend,
    kept_positions,
    silence_shape,
)
from streamd.models.store import load_model
from streamd.types import FRAME, Mel, Samples
from streamd.whisper.engine import Reuse
from streamd.whisper.mel import log_mel, window_log_mel
from tests.support.checkpoints import network

FULL = 1500
DIMS = ModelDimensions(80, FULL, 8, 2, 3, 51864, 448, 8, 2, 3)


def silent(n_columns: int, n_mels: int = 80) -> Mel:
    return np.full((n_mels, n_columns), -0.5, np.float32)


@cache
def tiny() -> Model:
    return load_model("tiny.en")


def window(samples: Samples) -> Mel:
    return window_log_mel(samples, 80)[0]


def speech(seconds: float) -> Samples:
    """The beginning of a clip; its speaker is not in the recording that silence is taken from."""
    return clips()[0].samples[: int(seconds * 16_000) // FRAME * FRAME]


@pytest.mark.parametrize("n_audio_ctx", [FULL, 530, 64, 10])
def test_what_is_kept_stands_for_every_position(n_audio_ctx):
    kept, weights = kept_positions(n_audio_ctx), np.exp(bias(n_audio_ctx))
    assert len(np.unique(kept)) == len(kept) == len(weights)
    assert kept[0] >= 0
    assert kept[-1] == n_audio_ctx - 1
    assert weights.sum() == pytest.approx(n_audio_ctx)
    for first in range(0, int((weights > 2).sum()), 5):
        # the rest from any sampled position on stands for the rest of the context
        assert weights[first:].sum() == pytest.approx(n_audio_ctx - first * STRIDE)


@pytest.mark.parametrize(
    ("n_columns", "audio_ctx", "n"),
    [
        (2, 0, 40),
        (304, 0, 184),
        (1936, 0, 1000),
        (1937, 0, FULL),
        (3000, 0, FULL),
        (304, 384, 384),
        (900, 384, 450),
        (304, FULL, FULL),
        (305, 100, 153),
    ],
)
def test_the_sound_and_a_margin_are_computed(n_columns, audio_ctx, n):
    mel = silent(n_columns)
    mel[:, 0] = 1
    extended, extent = extend(mel, DIMS, has_silence=True, audio_ctx=audio_ctx)
    assert extended.shape == (80, 2 * n)
    assert (extended[:, 0] == 1).all()
    assert (extended[:, 1:] == -0.5).all()
    is_short = n < FULL and not audio_ctx
    assert extent == Extent(n, n // STRIDE if is_short else silence_shape(DIMS)[1])
    if is_short:
        assert n - n_columns / 2 >= MARGIN
        # the states of silence begin where the computed positions end
        assert kept_positions(FULL)[extent.first] == n + STRIDE // 2


def test_without_a_bank_the_full_context_is_computed():
    assert extend(silent(304), DIMS, has_silence=False)[1].n == FULL


def test_an_average_has_every_position_from_the_windows_that_were_silent_there():
    shape = FULL, DIMS.n_audio_state
    states = Average([10, 200], DIMS)([np.full(shape, 1.0), np.full(shape, 3.0)])
    kept = kept_positions(FULL)
    assert states.shape == silence_shape(DIMS)[1:]
    assert (states[(kept >= 26) & (kept < 216)] == 1).all()
    assert (states[kept >= 216] == 2).all()


@cache
def reference_engine() -> ReferenceEngine:
    model, heads = tiny(), tiny().alignment_heads
    return ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=heads, silence=model.silence)
    )


@cache
def onnx_engine(precision: Precision) -> OnnxEngine:
    return open_in_memory(tiny(), threads=1, precision=precision).engine


@pytest.mark.parametrize("n_reused", [0, 1, 90])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_graphs_compute_what_the_reference_does(precision, n_reused):
    model, reference, engine = tiny(), reference_engine(), onnx_engine(precision)
    shorter, mel = window(speech(2.0)), window(speech(2.5))
    wanted = reference.encode(mel, Reuse(reference.encode(shorter), n_reused))
    found = engine.encode(mel, Reuse(engine.encode(shorter), n_reused))
    in_front = found.n_silence  # which the reference has behind the window
    np.testing.assert_allclose(np.roll(found.bias, -in_front), wanted.bias, rtol=1e-6)
    for layer in range(model.dims.n_text_layer):
        for name, values in (("key", wanted.keys), ("value", wanted.values)):
            ours = np.roll(found.views[f"cross_{name}_{layer}"][0], -in_front, axis=0)
            off = np.linalg.norm(ours - values[layer]) / np.linalg.norm(values[layer])
            assert off < (1e-5 if precision == "float32" else 0.1), (layer, name)


def test_the_rest_of_a_window_is_computed_as_with_it_all():
    reference, mel = reference_engine(), window(speech(2.5))
    whole = reference.encode(mel)
    for n_reused in (1, 60, 125):
        again = reference.encode(mel, Reuse(whole, n_reused))
        np.testing.assert_allclose(again.states, whole.states, atol=1e-4)


def test_beside_int8_a_windows_states_take_half_as_much():
    sizes = {}
    for precision in ("float32", "int8"):
        views = onnx_engine(precision).encode(window(speech(2.5))).views
        sizes[precision] = sum(rows.nbytes for rows in views.values())
    assert sizes["int8"] == sizes["float32"] / 2


def test_known_positions_are_not_computed_again():
    engine = onnx_engine("float32")
    previous = engine.encode(window(speech(2.0)))
    for rows in previous.views.values():
        rows[:] = 0
    found = engine.encode(window(speech(2.5)), Reuse(previous, 60))
    values = found.views["cross_value_0"][0, found.n_silence :]
    assert (values[:60] == 0).all()
    assert (values[60:] != 0).any(axis=1).all()


def test_streams_take_turns_without_seeing_each_others_states():
    engine, other = onnx_engine("float32"), window(speech(3.0)[::-1].copy())
    alone = engine.encode(window(speech(2.5)), Reuse(engine.encode(window(speech(2.0))), 60))
    previous, of_other = engine.encode(window(speech(2.0))), engine.encode(other)
    engine.encode(other, Reuse(of_other, 90))
    found = engine.encode(window(speech(2.5)), Reuse(previous, 60))
    for name, rows in alone.views.items():
        np.testing.assert_array_equal(found.views[name], rows)


def test_a_bank_is_closer_to_the_full_context_than_a_short_context():
    reference, samples = reference_engine(), speech(1.0)
    mel, n = window(samples), len(samples) // FRAME
    full = reference.encode(mel, audio_ctx=FULL).states[-1, :n]

    def off(encoded: np.ndarray) -> float:
        return float(np.linalg.norm(encoded[:n] - full) / np.linalg.norm(full))

    with_silence = reference.encode(mel)
    assert off(with_silence.states[-1]) < 0.1
    assert off(with_silence.states[-1]) < off(reference.encode(mel, audio_ctx=384).states[-1]) / 2


def test_a_bank_is_made_from_windows_at_the_full_context():
    model, samples = tiny(), speech(1.0)
    n = len(samples) // FRAME
    mel = log_mel(np.pad(samples, (0, FULL * FRAME - len(samples))))
    made = make_silence_states(model, [(n, mel)], threads=2, precision="float32")
    silence = np.stack([*made])
    assert silence.shape == silence_shape(model.dims)
    reference = ReferenceEngine(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads)
    )
    kept = kept_positions(FULL)
    ours = kept >= n + 16
    encoded = reference.encode(mel).states[-1]
    np.testing.assert_allclose(silence[-1, ours], encoded[kept[ours]], atol=0.02)
    assert (silence[:, ~ours] == 0).all()


def test_a_damaged_bank_is_refused(tmp_path):
    from safetensors.numpy import save_file

    from streamd.system.disk import asset

    for file in asset("tiny.en").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "silence.safetensors").unlink()
    assert load_model(str(tmp_path)).silence is None
    save_file({"states": np.zeros((5, 384), np.float16)}, tmp_path / "silence.safetensors")
    with pytest.raises(ModelError, match=r"silence\.safetensors: holds no int8 states"):
        load_model(str(tmp_path))


def test_states_are_stored_for_the_model_in_the_box():
    silence = tiny().silence
    assert isinstance(silence, SilenceStates)
    assert silence.states.shape == silence_shape(tiny().dims)
    assert np.isfinite(silence.states).all()
