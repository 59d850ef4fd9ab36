import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import SourceError
from streamd.sources.framing import MAX_RATE_HZ, MIN_RATE_HZ, Framer
from streamd.types import SAMPLE_RATE

COMMON_RATES = [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000]


def resampled(samples, rate, block):
    framer = Framer(rate)
    out = [framer.push(samples[i : i + block]) for i in range(0, len(samples), block)]
    whole = np.concatenate([*out, framer.flush()]).reshape(-1)
    return whole[: len(whole) - framer.n_padding]


@given(rate=st.integers(MIN_RATE_HZ, MAX_RATE_HZ), n=st.integers(0, 20_000))
def test_length_is_exact_at_any_rate(rate, n):
    out = resampled(np.zeros(n, np.float32), rate, 1000)
    assert abs(len(out) - n * SAMPLE_RATE / rate) <= 0.5


@pytest.mark.parametrize("rate", [11_025, 44_100, 48_000, 44_101])
def test_ten_minutes_do_not_drift(rate):
    assert len(resampled(np.zeros(600 * rate, np.float32), rate, rate)) == 600 * SAMPLE_RATE


@pytest.mark.parametrize("rate", COMMON_RATES)
@pytest.mark.parametrize("frequency_hz", [100, 1000, 3000])
def test_a_sine_keeps_frequency_phase_and_level(rate, frequency_hz):
    """Compared sample by sample with the sine drawn at 16 kHz: a seam would stand out."""
    sine = 0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(2 * rate) / rate)
    out = resampled(sine.astype(np.float32), rate, rate // 50)
    drawn = 0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(len(out)) / SAMPLE_RATE)
    inside = slice(2000, -2000)  # the ends ring: the sine starts and stops from nothing
    assert np.abs(out - drawn)[inside].max() < 1e-4


def test_what_16_khz_cannot_hold_does_not_fold_back():
    sine = np.sin(2 * np.pi * 11_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(resampled(sine, 48_000, 960)[2000:-2000]).max() < 1e-4


@pytest.mark.parametrize("rate", [-1, 0, 1, MIN_RATE_HZ - 1, MAX_RATE_HZ + 1])
def test_an_absurd_rate_is_refused(rate):
    with pytest.raises(SourceError, match=f"{rate} Hz is not supported: use 4000 to 192000 Hz"):
        Framer(rate)
