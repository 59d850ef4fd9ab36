import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.sources.overflow import OverflowMeter


@given(
    rate=st.sampled_from([16_000, 44_100, 48_000]),
    began_s=st.floats(0.001, 2e9),
    losses=st.dictionaries(st.integers(1, 200), st.integers(1, 500_000), max_size=5),
    jitter_s=st.lists(st.floats(-1e-4, 1e-4), min_size=201, max_size=201),
)
def test_losses_are_measured_to_a_fraction_of_a_millisecond(rate, began_s, losses, jitter_s):
    meter = OverflowMeter(rate)
    block = rate // 50
    n = 0
    for k in range(201):
        lost = losses.get(k, 0)
        n += lost
        measured = meter.lost(block, began_s + n / rate + jitter_s[k], lost > 0)
        n += block
        if not lost:
            assert measured == 0
        elif lost > rate // 1000:  # more than the jitter
            assert abs(measured - lost) <= rate * 3e-4
        else:
            assert measured > 0


@pytest.mark.parametrize("adc_s", [lambda n: 0.0, lambda n: 1e6 - n, lambda n: 77.0])
def test_with_a_useless_clock_it_was_one_block(adc_s):
    meter = OverflowMeter(16_000)
    assert [meter.lost(320, adc_s(k), k in (3, 4)) for k in range(6)] == [0, 0, 0, 320, 320, 0]


def test_an_overflow_before_the_first_block_is_one_block():
    assert OverflowMeter(16_000).lost(320, 5.0, True) == 320


def test_an_overflow_that_is_reported_two_blocks_late():
    meter = OverflowMeter(16_000)
    for k in range(50):
        meter.lost(320, k * 0.02, False)
    for k in range(100, 102):
        meter.lost(320, k * 0.02, False)
    assert meter.lost(320, 102 * 0.02, True) == 50 * 320
