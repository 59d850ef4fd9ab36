import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamd.sources import Lost
from streamd.sources.backlog import Backlog
from streamd.sources.frames import Ended

WHY = "too much audio waits to be transcribed"


def block(n):
    return np.zeros((n, 1), np.float32)


@given(
    steps=st.lists(st.one_of(st.integers(1, 400).map(lambda ms: 16 * ms), st.none())),
    limit=st.integers(0, 20_000),
)
def test_every_sample_comes_out_or_is_accounted_for(steps, limit):
    """A number: a block arrives; None: somebody takes one. At 16 samples a millisecond."""
    backlog = Backlog(limit=limit, rate_hz=16_000)
    n_in = n_out = n_waiting = 0
    for step in steps:
        if step is not None:
            n_in += step
            backlog.put(block(step))
        else:
            item = backlog.take()
            if item is not None:
                n_out += item.duration_ms * 16 if isinstance(item, Lost) else len(item)
        n_waiting = sum(len(item) for item in backlog._items if not isinstance(item, Lost))
        assert n_waiting <= limit
    backlog.put(Ended())
    while not isinstance(item := backlog.take(), Ended):
        n_out += item.duration_ms * 16 if isinstance(item, Lost) else len(item)
    assert n_out == n_in
    assert backlog.take() == Ended()


def test_the_loss_stands_where_the_blocks_were():
    backlog = Backlog(limit=320, rate_hz=16_000)
    for _ in range(3):
        backlog.put(block(160))
    backlog.put(block(160))
    assert len(backlog.take()) == 160
    backlog.put(block(80))
    backlog.put(Lost(5, "driver"))
    assert len(backlog.take()) == 160
    assert backlog.take() == Lost(20, WHY)
    assert len(backlog.take()) == 80
    assert backlog.take() == Lost(5, "driver")
    assert backlog.take() is None
