"""Log-mel equals openai-whisper's, and the cache changes nothing but the work."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.types import FRAME
from streamd.whisper.mel import hz_from_mel, log_mel, mel_filters, window_log_mel
from tests.golden import load


@pytest.mark.parametrize(("n_mels", "every"), [(80, 5), (128, 9)])
def test_equals_openai_whisper(n_mels, every):
    golden = load.arrays()[f"mel_{n_mels}"]
    found = log_mel(load.samples("lamp", 384), n_mels)[:, :400:every]
    # openai-whisper transforms in float32: values that lie 68 dB and more below the loudest are
    # 2e-5 off the double precision that we use, 6 in 32,000 of all columns
    faint = golden < golden.max() - 1.7
    np.testing.assert_allclose(found[~faint], golden[~faint], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found, golden, rtol=0, atol=5e-5)
    assert (np.abs(found - golden) > 1e-5).mean() < 1e-3


def test_slaney_scale():
    # linear up to 1 kHz = 15 mel, then 27 mel for each factor 6.4
    np.testing.assert_allclose(hz_from_mel(np.array([0.0, 7.5, 15.0, 42.0])), [0, 500, 1000, 6400])


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_have_equal_area_and_cover_all_but_the_ends(n_mels):
    weights = mel_filters(n_mels)
    assert weights.shape == (n_mels, 201)
    wide = weights[-20:]  # narrow triangles are poorly sampled by 40 Hz
    np.testing.assert_allclose(wide.sum(axis=1) * 40.0, 1.0, atol=0.02)
    assert (weights[:, 1:-1].sum(axis=0) > 0).all()
    assert (weights[:, [0, -1]] == 0).all()


def test_shape_and_range():
    samples = np.sin(np.arange(16_000, dtype=np.float32))
    mel = log_mel(samples)
    assert mel.shape == (80, 100)
    assert mel.dtype == np.float32
    assert np.ptp(mel) == pytest.approx(2.0)  # 80 dB, a quarter each


def speech(seed: int, n_frames: int) -> np.ndarray:
    """Noise in bursts, with stretches of digital silence."""
    rng = np.random.default_rng(seed)
    loudness = rng.choice([0.0, 1e-4, 0.03, 0.5], n_frames).repeat(FRAME)
    return (rng.standard_normal(n_frames * FRAME) * loudness).astype(np.float32)


windows = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(3, 20)),
    min_size=1,
    max_size=8,
)


@given(windows, st.integers(0, 9))
def test_known_columns_are_computed_ones(windows, seed):
    stream, known = speech(seed, 120), None
    for start, length, padding in windows:
        samples = stream[start * FRAME : (start + length) * FRAME]
        found, known = window_log_mel(samples, 80, start=start, known=known)
        expected = log_mel(np.pad(samples, (0, padding * FRAME)))
        np.testing.assert_allclose(found, expected[:, : found.shape[1]], atol=2e-5)
        silence = expected[:, found.shape[1] :]
        np.testing.assert_allclose(found[:, -1:], silence[:, :1], atol=2e-5)


def test_only_the_edges_are_computed_again():
    audio = speech(3, 60)
    _, known = window_log_mel(audio[: 40 * FRAME], 80, start=100)
    known.columns[:] = 2.0  # a mark that normalises to 1.5
    mel, _ = window_log_mel(audio[10 * FRAME :], 80, start=110, known=known)
    marked = (mel == 1.5).all(axis=0)
    assert marked[2:59].all()  # 10..40 are shared: 60 columns, less those that see beyond
    assert not marked[[0, 1]].any()
    assert not marked[59:].any()


def test_the_transform_takes_no_more_memory_for_longer_audio():
    samples = np.zeros(30 * 16_000, np.float32)
    log_mel(samples[:16_000])
    tracemalloc.start()
    try:
        mel = log_mel(samples)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < samples.nbytes + 8 * mel.nbytes
