"""smart-turn: what it thinks of the pauses of a speech, as Pipecat does."""

import pytest

from streamd.engines.smart_turn import smart_turn
from tests.support import recorded


@pytest.mark.parametrize(
    ("clip", "end_s", "prob"),
    [
        ("jfk", 2.2, 0.028),  # And so |
        ("jfk", 3.1, 0.988),  # my fellow Americans |
        ("jfk", 5.2, 0.027),  # ask not |
        ("jfk", 8.2, 0.017),  # what your country can do for you |
        ("jfk", 10.9, 0.920),  # ask what you can do for your country. |
        ("arctic_a0245", 2.4, 0.030),
        ("arctic_a0245", 5.08, 0.984),
    ],
)
def test_it_tells_a_pause_from_an_end(clip, end_s, prob):
    """The probabilities are those of pipecat-ai 1.14.0 with its own features (LocalSmartTurnV3)."""
    heard = recorded.samples(clip)[: round(end_s * 16_000)]
    assert smart_turn(heard) == pytest.approx(prob, abs=0.02)
