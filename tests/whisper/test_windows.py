"""A recording's log-mel is that of the whole, however it arrived and wherever it is looked at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.whisper.mel import HOP, RecordingMel, log_mel


def sound(seed: int, n: int) -> np.ndarray:
    """Noise that is loudest at its end, where the padding sees it too."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n) * np.linspace(0.0, 0.5, n)).astype(np.float32)


def read(samples: np.ndarray, cuts: list[int], n_mels: int = 80) -> RecordingMel:
    mel = RecordingMel(n_mels)
    for part in np.split(samples, sorted(cut % (len(samples) + 1) for cut in cuts)):
        mel.append(part)
    mel.finish()
    return mel


def whole(samples: np.ndarray, n_mels: int = 80) -> np.ndarray:
    """As openai-whisper does it: 30 s of silence behind, of which half a second is enough here."""
    return log_mel(np.pad(samples, (0, 8_000)), n_mels)


@given(
    st.integers(0, 9),
    st.integers(0, 20_000),
    st.lists(st.integers(0, 20_000), max_size=5),
    st.sampled_from([80, 128]),
)
def test_any_cut_gives_the_log_mel_of_the_whole(seed, n, cuts, n_mels):
    samples = sound(seed, n)
    mel, expected = read(samples, cuts, n_mels), whole(samples, n_mels)
    assert mel.n_columns == n // HOP
    n_all = n // HOP + 50  # the silence behind it, too
    np.testing.assert_allclose(mel.window(0, n_all, width=n_all), expected, atol=2e-6)


@given(st.integers(0, 20_000), st.integers(0, 319))
def test_padding_is_not_part_of_it(n, n_padding):
    samples = sound(2, n)
    mel, padded = read(samples, []), RecordingMel(80)
    padded.append(np.pad(samples, (0, n_padding)))
    padded.finish(n_padding=n_padding)
    assert padded.n_columns == mel.n_columns
    n_all = n // HOP + 50
    shown = padded.window(0, n_all, width=n_all)
    np.testing.assert_allclose(shown, mel.window(0, n_all, width=n_all), atol=2e-6)


@given(st.integers(0, 130), st.integers(1, 130), st.integers(0, 20))
def test_a_window_is_a_part_of_it_with_zeros_behind(first, n_columns, more):
    samples = sound(1, 20_000)
    mel, expected = read(samples, [7_000, 12_345]), whole(samples)
    shown = mel.window(first, n_columns, width=n_columns + more)
    part = expected[:, first : first + n_columns]
    np.testing.assert_allclose(shown[:, : part.shape[1]], part, atol=2e-6)
    assert not shown[:, n_columns:].any()


@pytest.mark.parametrize("n", [0, 1, 159, 160, 200, 201])
def test_almost_nothing(n):
    mel = read(np.full(n, 0.1, np.float32), [])
    assert mel.n_columns == n // HOP
    assert mel.window(0, 3, width=10).shape == (80, 10)


def test_what_follows_is_the_same_when_the_beginning_is_forgotten():
    samples = sound(3, 130 * 16_000)  # its memory is of one minute at a time
    mel, other = (read(samples, [10, 1_000_000]) for _ in range(2))
    for first in (5_999, 6_000, 11_000, 12_000, 12_950):
        mel.forget(first)
        shown = mel.window(first, 1_500, width=3_000)
        np.testing.assert_array_equal(shown, other.window(first, 1_500, width=3_000))
    with pytest.raises(ValueError, match="column 11999 was forgotten: 12000 is the first one"):
        mel.window(11_999, 10, width=10)
