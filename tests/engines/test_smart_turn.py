"""smart-turn: what it thinks of the pauses of a speech, as Pipecat does."""

import pytest

from streamd.engines import smart_turn as module
from streamd.engines.smart_turn import smart_turn
from tests.support import recorded


@pytest.mark.parametrize(
    ("clip", "end_s", "prob"),
    [
        ("jfk", 2.2, 0.045),  # And so |
        ("jfk", 3.1, 0.987),  # my fellow Americans |
        ("jfk", 5.2, 0.069),  # ask not |
        ("jfk", 8.2, 0.039),  # what your country can do for you |
        ("jfk", 10.9, 0.978),  # ask what you can do for your country. |
        ("arctic_a0245", 2.4, 0.007),
        ("arctic_a0245", 5.08, 0.989),
    ],
)
def test_it_tells_a_pause_from_an_end(clip, end_s, prob):
    """Those of pipecat-ai 1.14.0, which rounds activations, are .03, .99, .03, .02, .92, .03, .98.

    It uses its own features (LocalSmartTurnV3).
    """
    # The silence that it adds is a part of these pauses.
    heard = recorded.samples(clip)[: round((end_s - 0.08) * 16_000)]
    assert smart_turn(heard) == pytest.approx(prob, abs=0.02)


def test_a_model_that_was_freed_is_loaded_again():
    speech = recorded.samples("jfk")
    before = smart_turn(speech)
    module.release()
    assert module._model.cache_info().currsize == 0
    assert smart_turn(speech) == before
