import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamd.session.ring import Ring
from streamd.types import FRAME


def frames(start, n):
    """Frame k holds the numbers k * 320 to k * 320 + 319."""
    return np.arange(start * FRAME, (start + n) * FRAME, dtype=np.float32).reshape(-1, FRAME)


class RingAgainstList(RuleBasedStateMachine):
    """The ring is a list that forgets; every frame that it holds is the one that was appended."""

    LIMIT = 700

    def __init__(self):
        super().__init__()
        self.ring = Ring(self.LIMIT)
        self.start = self.end = 0

    @rule(n=st.one_of(st.integers(0, 60), st.integers(0, 800)))
    def append(self, n):
        lost = self.ring.append(frames(self.end, n))
        self.end += n
        assert lost == max(0, self.end - self.LIMIT - self.start)
        self.start += lost

    @rule(data=st.data())
    def forget(self, data):
        before = data.draw(st.integers(0, self.end + 10))
        self.ring.forget(before)
        self.start = max(self.start, min(before, self.end))

    @rule(data=st.data())
    def read(self, data):
        start = data.draw(st.integers(self.start, self.end))
        end = data.draw(st.integers(start, self.end))
        assert np.array_equal(self.ring.read(start, end), frames(start, end - start).reshape(-1))

    @invariant()
    def knows_what_it_holds(self):
        assert (self.ring.start, self.ring.end) == (self.start, self.end)


TestRingAgainstList = RingAgainstList.TestCase


@given(start=st.integers(-5, 30), end=st.integers(-5, 30))
def test_reading_outside_names_the_frames(start, end):
    ring = Ring(100)
    ring.append(frames(0, 20))
    ring.forget(7)
    if 7 <= start <= end <= 20:
        assert len(ring.read(start, end)) == (end - start) * FRAME
    else:
        with pytest.raises(IndexError, match=rf"frames {start}\.\.{end} .* holds 7\.\.20"):
            ring.read(start, end)


def test_what_was_read_stays_when_it_is_dropped():
    ring = Ring(10)
    ring.append(frames(0, 10))
    window = ring.read(0, 10)
    ring.append(frames(10, 10))
    assert np.array_equal(window, frames(0, 10).reshape(-1))
