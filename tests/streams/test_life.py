"""The tables of what begins and ends streams, hubs, subscriptions and connections."""

import pytest

from streamd.events import Eos
from streamd.options import Choices
from streamd.streams.hub import Hub
from streamd.streams.life import CONNECTION, HUB, STREAM, SUBSCRIPTION, Life, Phase, Turn
from streamd.streams.metrics import Metrics
from streamd.streams.stream import Stream, StreamContext
from streamd.types import following
from tests.support.fakes import scripted_session


@pytest.mark.parametrize("life", [CONNECTION, HUB, STREAM, SUBSCRIPTION])
def test_every_turn_leads_to_a_phase_of_the_same_table(life: Life):
    assert {after for turns in life.values() for after in turns.values()} <= life.keys()


def test_what_is_in_no_table_is_a_bug():
    assert following(HUB, Phase.OPEN, Turn.END) is Phase.ENDED
    with pytest.raises(RuntimeError, match="END cannot happen in ENDED"):
        following(HUB, Phase.ENDED, Turn.END)


async def test_a_stream_goes_through_its_table():
    def never(*_: object) -> None:
        raise AssertionError

    def new_session(_: Choices) -> object:
        return scripted_session()

    context = StreamContext(new_session, Metrics(version="", model=""), 9, *[never] * 4)
    stream = Stream(context, Hub("talk"))
    assert (stream.phase, stream.is_fed) == (Phase.WAITING, False)
    stream.begin()
    assert (stream.phase, stream.is_fed) == (Phase.OPEN, True)
    with pytest.raises(RuntimeError, match="BEGIN cannot happen in OPEN"):
        stream.begin()
    with stream.hub.subscribe() as heard:
        stream.end("stop", resumable=False)
        stream.end("error", resumable=False)  # the first counts
        assert (stream.phase, stream.hub.phase, heard.phase) == (Phase.ENDED,) * 3
        assert heard.pop() == Eos(seq=0, reason="stop")
    assert heard.phase is Phase.CLOSED
    stream.move()  # another machine had taken it before its end was stored
    assert stream.has_moved
    stream.end("stop", resumable=False)
    assert stream.has_moved
