import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from streamd.events import (
    Ack,
    Attribution,
    Correction,
    Eos,
    Fault,
    Final,
    Missed,
    Partial,
    SessionEvent,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
    TimedWord,
    Vad,
)
from streamd.labels import of_channel
from streamd.streams.hub import Hub, Subscription
from tests.support.loop import turn


@pytest.fixture
def hub():
    return Hub("live")


def partial(seg: int, rev: int) -> Partial:
    return Partial(seg=seg, rev=rev, start_ms=0, end_ms=20, text=f"{seg}.{rev}", stable=0)


def final(seg: int) -> Final:
    return Final(seg=seg, start_ms=0, end_ms=20, text=f"text {seg}", language="en")


def drain(subscription: Subscription) -> list[SessionEvent]:
    return [*iter(subscription.pop, None)]


def seqs(events: list[SessionEvent]) -> list[int]:
    return [event.seq for event in events if isinstance(event, Final)]


def test_who_is_sent_acks_faster_than_it_reads_is_not_slow_and_gets_the_newest():
    subscription = Hub("live", bound=2).subscribe()
    for n in range(3):
        subscription.offer(Ack(samples=n))
    subscription.offer(Vad(speech=True, t_ms=0))
    subscription.offer(Ack(samples=3))
    subscription.offer(Vad(speech=False, t_ms=40))
    assert drain(subscription) == [
        Vad(speech=True, t_ms=0),
        Ack(samples=3),
        Vad(speech=False, t_ms=40),
    ]


def test_who_has_left_does_not_listen(hub):
    with hub.subscribe(), hub.subscribe():
        assert hub.listeners == 2
    assert hub.listeners == 0


def test_a_final_drops_the_partial_of_its_segment_only(hub):
    subscription = hub.subscribe()
    hub.publish(partial(1, 0))
    hub.publish(final(0))
    assert [type(event) for event in drain(subscription)] == [Partial, Final]
    hub.publish(partial(1, 1))
    hub.publish(final(1))
    assert [type(event) for event in drain(subscription)] == [Final]
    assert drain(hub.subscribe()) == []


@given(n=st.integers(0, 12), history=st.integers(0, 12), data=st.data())
def test_a_replay_has_no_hole_and_no_double(n, history, data):
    hub = Hub("live", history)
    for seg in range(n):
        hub.publish(final(seg))
    after = data.draw(st.integers(0, n))
    hub.publish(partial(n, 0))
    subscription = hub.subscribe(after)
    hub.publish(final(n))
    events = drain(subscription)

    n_gone = max(0, n - after - history)
    if n_gone:
        first, *events = events
        assert first == Missed(from_seq=after + 1, to_seq=after + n_gone, why="retention")
    assert seqs(events) == list(range(after + n_gone + 1, n + 2))
    assert not any(isinstance(event, Missed) for event in events)


@pytest.mark.parametrize(("after", "epoch"), [(3, None), (1, "other"), (0, "other")])
def test_who_was_in_another_run_of_the_session_is_told_and_gets_everything(after, epoch):
    hub = Hub("live", epoch="this")
    hub.publish(final(0))
    hub.publish(final(1))
    events = drain(hub.subscribe(after, epoch=epoch))
    assert events[0] == Missed(from_seq=0, to_seq=0, why="epoch")
    assert seqs(events) == [1, 2]
    assert seqs(drain(hub.subscribe(1, epoch="this"))) == [2]


def turns(start_ms: int, end_ms: int, *who: tuple[int, int, int]) -> SpeakerTurns:
    said = tuple(SpeakerTurn(start_ms=a, end_ms=b, speaker=speaker) for a, b, speaker in who)
    return SpeakerTurns(start_ms=start_ms, end_ms=end_ms, turns=said)


def said_by(*speakers: int) -> Final:
    """A final of a second for each speaker, who says one word."""
    words = tuple(
        TimedWord(text="a", start_ms=n * 1000, end_ms=n * 1000 + 900, prob=1, final=True, speaker=s)
        for n, s in enumerate(speakers)
    )
    text, end_ms = " ".join("a" for _ in words), 1000 * len(words)
    return Final(seg=0, start_ms=0, end_ms=end_ms, text=text, language="en", words=words)


def speakers(events: list[SessionEvent]) -> list[list[object]]:
    finals = (event for event in events if isinstance(event, Final))
    return [[word.speaker for word in final.words] for final in finals]


def test_who_comes_late_or_again_learns_who_spoke_by_now(hub):
    hub.publish(turns(0, 2000, (0, 900, 1), (900, 2000, 2)))
    hub.publish(said_by(1, 2))
    hub.publish(turns(2000, 3000, (2000, 3000, 1)))
    hub.publish(turns(900, 4000, (900, 3800, 3)))
    together = turns(0, 4000, (0, 900, 1), (900, 3800, 3))
    late, again = drain(hub.subscribe(0)), drain(hub.subscribe(1))
    assert speakers(late) == [[1, 3]]
    # It changes nothing, but a later revision may continue it.
    assert late[1:] == [replace(together, start_ms=4000)]
    assert again == [together, *late[1:]]
    assert drain(hub.subscribe()) == []


def test_who_comes_again_hears_of_the_last_minute_before_it_left_and_of_the_newest_turns():
    hub = Hub("live", 2_000)
    for n in range(1_200):
        now = n * 1000
        hub.publish(turns(now, now + 1000, (now, now + 900, n % 2)))
        hub.publish(replace(final(n), start_ms=now, end_ms=now + 900))
    first, context = drain(hub.subscribe(1_200))
    assert (first.start_ms, first.end_ms) == (1_139_900, 1_200_000)
    assert len(first.turns) == 60
    first, *_ = drain(hub.subscribe(1))
    assert len(first.turns) == 1_000
    assert context.start_ms == context.end_ms == 1_200_000


def test_corrections_after_the_end_are_known_to_who_comes_later(hub):
    hub.publish(final(0))
    hub.close("end")
    hub.amend(Correction(text="meant", seq=1, first=0, last=0))
    _, correction, eos = drain(hub.subscribe(0))
    assert (correction.text, eos.reason) == ("meant", "end")


def test_what_somebody_else_has_stored_is_told_and_after_the_end_remembered(hub):
    hub.publish(final(0))
    listener = hub.subscribe(0)
    hub.relay(Attribution(speaker=2, seq=1))
    hub.close("end")
    hub.relay(Correction(text="meant", seq=1))
    assert [type(event) for event in drain(listener)] == [Final, Attribution, Eos]
    assert [type(event) for event in drain(hub.subscribe(0))] == [
        Final,
        Attribution,
        Correction,
        Eos,
    ]


def test_what_speakers_are_called_is_told_to_whoever_comes_and_only_the_newest(hub):
    early = hub.subscribe()
    for speaker, name in ((1, "Ana"), (2, "Bob"), (1, "Ana Botín"), (2, "")):
        hub.publish(SpeakerName(speaker=speaker, name=name))
    hub.publish(final(0))
    assert [event.name for event in drain(early)[:-1]] == ["Ana", "Bob", "Ana Botín", ""]
    assert [hub.named(speaker) for speaker in (1, 2, 3)] == ["Ana Botín", "", ""]
    # Whoever comes back may know Bob by a name that was taken back meanwhile.
    for replayed in (drain(hub.subscribe()), drain(hub.subscribe(0))[1:]):
        assert [(event.speaker, event.name) for event in replayed] == [(1, "Ana Botín"), (2, "")]


def test_a_replay_longer_than_the_bound_is_not_slow():
    hub = Hub("live", 100, bound=2)
    for seg in range(50):
        hub.publish(final(seg))
    subscription = hub.subscribe(0)
    hub.publish(final(50))
    assert not subscription.slow
    assert seqs(drain(subscription)) == list(range(1, 52))


def test_a_slow_subscriber_is_closed_delays_nobody_and_can_come_back():
    hub = Hub("live", bound=3)
    slow, quick = hub.subscribe(), hub.subscribe()
    got: list[int] = []
    for seg in range(10):
        hub.publish(final(seg))
        got += seqs(drain(quick))
    assert got == list(range(1, 11))
    assert slow.slow
    assert slow.closed
    assert slow.pop() is None
    assert not quick.slow
    assert seqs(drain(hub.subscribe(0))) == got


def test_partials_alone_never_make_a_subscriber_slow():
    hub = Hub("live", bound=1)
    subscription = hub.subscribe()
    for rev in range(1000):
        hub.publish(partial(0, rev))
    hub.publish(Vad(speech=True, t_ms=0))
    assert not subscription.slow
    assert drain(subscription) == [partial(0, 999), Vad(speech=True, t_ms=0)]


async def test_iteration_waits_for_events_and_ends_with_eos(hub):

    async def speak() -> None:
        hub.publish(final(0))
        hub.publish(partial(1, 0))
        hub.close("stop")
        hub.close("again")

    with hub.subscribe() as subscription:
        async with asyncio.TaskGroup() as group:
            group.create_task(speak())
            events = [event async for event in subscription]
    assert [type(event) for event in events] == [Final, Eos]
    assert events[-1] == Eos(seq=1, reason="stop")


async def test_who_comes_after_the_end_gets_the_replay_and_eos(hub):
    hub.publish(final(0))
    hub.close("stop")
    assert hub.closed
    events = [event async for event in hub.subscribe(0)]
    assert [type(event) for event in events] == [Final, Eos]
    with pytest.raises(RuntimeError, match="'live' has ended"):
        hub.publish(final(1))


def test_who_comes_too_late_is_told_what_broke(hub):
    broken = hub.publish(Fault(code="engine", message="it broke", fatal=True))
    hub.publish(Fault(code="bad_audio", message="a detail"))
    hub.close("error")
    assert drain(hub.subscribe()) == [broken, Eos(seq=0, reason="error")]


async def test_closing_a_subscription_ends_its_waiting_reader():
    subscription = Hub("live").subscribe()

    async def close() -> None:
        subscription.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(close())
        assert [event async for event in subscription] == []


class HubMachine(RuleBasedStateMachine):
    """Everything a session and its subscribers can do, in any order, against a plain model."""

    BOUND = 4

    @initialize(history=st.integers(0, 6))
    def begin(self, history):
        self.hub = Hub("live", history, bound=self.BOUND)
        self.seg = self.rev = 0
        self.current: Partial | None = None
        self.readers: list[tuple[Subscription, list[SessionEvent], int]] = []

    @rule()
    def speak(self):
        self.rev += 1
        self.current = self.hub.publish(partial(self.seg, self.rev))

    @rule()
    def finish_segment(self):
        self.hub.publish(final(self.seg))
        self.seg, self.rev, self.current = self.seg + 1, 0, None

    @rule()
    def notice(self):
        self.hub.publish(Vad(speech=True, t_ms=0))

    @rule(back=st.none() | st.integers(0, 10))
    def join(self, back):
        after = None if back is None else max(0, self.hub.seq - back)
        start = self.hub.seq if after is None else after
        self.readers.append((self.hub.subscribe(after), [], start))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), n=st.integers(1, 5))
    def read(self, data, n):
        subscription, events, _ = data.draw(st.sampled_from(self.readers))
        for _ in range(n):
            if (event := subscription.pop()) is not None:
                events.append(event)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def catch_up(self, data):
        subscription, events, _ = data.draw(st.sampled_from(self.readers))
        events += drain(subscription)
        if not subscription.slow:
            assert not seqs(events) or seqs(events)[-1] == self.hub.seq
            if self.current is not None:
                assert [e for e in events if isinstance(e, Partial)][-1] == self.current

    @invariant()
    def finals_are_gap_free_in_order_and_exactly_once(self):
        for _, events, start in getattr(self, "readers", []):
            expected = start + 1
            for event in events:
                if isinstance(event, Missed):
                    assert event.from_seq == expected
                    expected = event.to_seq + 1
                elif isinstance(event, Final):
                    assert event.seq == expected
                    expected += 1

    @invariant()
    def partials_only_grow_newer_and_never_follow_their_final(self):
        for _, events, _ in getattr(self, "readers", []):
            newest = (0, 0)
            for event in events:
                if isinstance(event, Partial):
                    assert (event.seg, event.rev) > newest
                    newest = (event.seg, event.rev)
                elif isinstance(event, Final):
                    newest = (event.seg + 1, 0)


TestHubMachine = HubMachine.TestCase


async def test_an_event_is_delivered_at_once_only_if_nothing_waits():
    hub, delivered, has_room = Hub("s"), [], [True]

    def deliver(event: SessionEvent) -> bool:
        if has_room[0]:
            delivered.append(event)
        return has_room[0]

    subscription = hub.subscribe(deliver=deliver)
    first = hub.publish(final(0))  # nobody waits for it yet
    assert await anext(subscription) == first
    reader = asyncio.create_task(anext(subscription))
    await turn()
    second = hub.publish(final(1))
    has_room[0] = False
    third = hub.publish(final(2))
    has_room[0] = True
    fourth = hub.publish(final(3))  # must not overtake the third
    assert [await reader, await anext(subscription)] == [third, fourth]
    assert delivered == [second]
    hub.close("stop")  # the reader has to learn of the end
    assert [event async for event in subscription] == [Eos(seq=4, reason="stop")]


def test_an_event_is_encoded_once_for_all():
    hub = Hub("s")
    event = hub.publish(final(0))
    assert hub.encode(event) is hub.encode(event)
    assert json.loads(hub.encode(event))["seq"] == 1
    assert json.loads(hub.encode(final(5)))["seg"] == 5


def test_the_partial_of_a_channel_replaces_and_ends_no_others(hub):
    subscription = hub.subscribe()
    first, second = (of_channel(partial(seg, 0), seg) for seg in (1, 2))
    hub.publish(first)
    hub.publish(second)
    newer = of_channel(partial(1, 1), 1)
    hub.publish(newer)
    assert drain(subscription) == [second, newer]
    hub.publish(of_channel(final(2), 2))
    assert [event for event in drain(hub.subscribe()) if isinstance(event, Partial)] == [newer]
    hub.publish(newer)
    hub.publish(of_channel(final(3), 2))
    assert newer in drain(subscription)


async def test_what_is_put_behind_a_replay_comes_before_what_waits_and_wakes_who_waits(hub):
    hub.publish(final(0))
    subscription = hub.subscribe(0)
    subscription.behind([Vad(speech=False, t_ms=40)])
    hub.publish(final(1))
    kinds = [type(event) for event in drain(subscription)]
    assert kinds == [Final, Vad, Final]
    waiting = asyncio.ensure_future(anext(subscription))
    await turn()
    subscription.behind([Vad(speech=True, t_ms=60)])
    assert await waiting == Vad(speech=True, t_ms=60)


def test_many_events_behind_a_replay_do_not_make_a_subscriber_slow():
    hub = Hub("live", bound=4)
    subscription = hub.subscribe(0)
    subscription.behind([Vad(speech=False, t_ms=t_ms) for t_ms in range(100)])
    assert not subscription.slow
    assert len(drain(subscription)) == 100


def test_what_is_put_behind_a_replay_takes_the_place_of_what_was_there(hub):
    hub.publish(final(0))
    subscription = hub.subscribe(0)
    # So many iterators inside each other end the process.
    for t_ms in range(100_000):
        subscription.behind([Vad(speech=False, t_ms=t_ms)] * 2)
    assert isinstance(subscription.pop(), Final)
    assert subscription.pop() == Vad(speech=False, t_ms=99_999)
    subscription.behind([Vad(speech=True, t_ms=100_000)])
    assert subscription.pop() == Vad(speech=True, t_ms=100_000)
    assert subscription.pop() is None


def test_nothing_is_put_behind_the_end(hub):
    subscription = hub.subscribe()
    subscription.close()
    subscription.behind([Vad(speech=False, t_ms=40)])
    assert drain(subscription) == []
