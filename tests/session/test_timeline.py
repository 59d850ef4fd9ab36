"""True times behind any number of gaps."""

from hypothesis import given
from hypothesis import strategies as st

from streamd.session.timeline import Timeline


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), max_size=20), st.integers(0, 99)
)
def test_each_gap_moves_what_is_behind_it(gaps, counted_ms):
    timeline, at_ms, expected = Timeline(), 0, counted_ms
    for pause_ms, by_ms in gaps:
        at_ms += pause_ms
        timeline.jump(at_ms, by_ms)
        expected += by_ms if at_ms <= counted_ms else 0
    assert timeline.true_ms(counted_ms) == expected
