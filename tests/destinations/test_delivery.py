"""A destination gets the session in order, whatever becomes of it, and nothing waits for it."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from streamd.destinations.delivery import STALE_S, Delivery, DeliveryError, Destination, Parcel
from streamd.events import EndReason, Final
from streamd.streams.hub import Hub
from tests.support.loop import turns
from tests.support.said import spoken


class Fake(Destination[str]):
    """Takes texts; `fails` has the errors of the next tries, and `is_away` lets all fail."""

    def __init__(self, *, is_live=False, fails=()):
        self.name, self.is_live = "there", is_live
        self.fails, self.is_away = list(fails), False
        self.got, self.tries, self.closed = [], 0, False
        self.changed = asyncio.Event()

    def parts(self, event):
        return [Parcel(event.text)] if isinstance(event, Final) else ()

    async def send(self, content):
        self.tries += 1
        self.changed.set()
        if self.fails:
            raise self.fails.pop(0)
        if self.is_away:
            raise DeliveryError("away")
        self.got.append(content)

    async def close(self):
        self.closed = True


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def never():
    return asyncio.get_running_loop().time() + 60


def at_once():
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def delivering(fake, hub, *, end_by=never, pauses_s=(0.0,), clock=None):
    delivery = Delivery(fake, pauses_s=pauses_s, now_s=clock or Clock())
    task = asyncio.ensure_future(delivery.run(hub, end_by=end_by))
    await turns(5)
    yield delivery
    if not hub.closed:
        hub.close(EndReason.END)
    await task
    assert fake.closed


async def test_all_finals_come_in_order():
    hub, fake = Hub("live"), Fake()
    async with delivering(fake, hub) as delivery:
        for n in range(600):  # more than wait in the queues of hub and delivery
            hub.publish(spoken(f"text {n}"))
    assert fake.got == [f"text {n}" for n in range(600)]
    assert (delivery.n_sent, delivery.n_lost) == (600, 0)


async def test_what_fails_is_tried_again_in_order_with_one_warning_for_each_reason(caplog):
    caplog.set_level(logging.INFO, "streamd")
    hub, fake = Hub("live"), Fake(fails=[DeliveryError(f"no {n % 2}") for n in range(5)])
    async with delivering(fake, hub):
        hub.publish(spoken("one"))
        hub.publish(spoken("two"))
    assert fake.got == ["one", "two"]
    assert [record.getMessage() for record in caplog.records] == [
        "there: no 0; trying again; nothing is lost yet",
        "there: no 1; trying again; nothing is lost yet",
        "there works again; 0 not delivered",
        "there: 2 sent",
    ]


async def test_a_destination_is_not_tried_before_the_time_that_it_names(monkeypatch):
    waited = []
    real = asyncio.timeout

    def timeout(delay_s):
        waited.append(delay_s)
        return real(0)

    hub, fake = Hub("live"), Fake(fails=[DeliveryError("later", after_s=30), DeliveryError("x")])
    monkeypatch.setattr("streamd.destinations.delivery.asyncio.timeout", timeout)
    async with delivering(fake, hub):
        hub.publish(spoken("one"))
        while not fake.got:
            await turns(1)
    assert waited == [30, 0]


async def test_what_is_refused_thrice_holds_up_nothing():
    refusals = [DeliveryError("HTTP 400", is_refusal=True) for _ in range(3)]
    hub, fake = Hub("live"), Fake(fails=refusals)
    async with delivering(fake, hub) as delivery:
        hub.publish(spoken("one"))
        hub.publish(spoken("two"))
    assert fake.got == ["two"]
    assert (delivery.n_sent, delivery.n_lost) == (1, 1)


async def test_a_screen_gets_no_text_that_is_stale():
    hub, fake, clock = Hub("live"), Fake(is_live=True), Clock()
    fake.is_away = True
    async with delivering(fake, hub, pauses_s=(0.0,), clock=clock) as delivery:
        hub.publish(spoken("old"))
        hub.publish(spoken("old, too"))
        await fake.changed.wait()
        clock.now_s += STALE_S + 1
        while delivery.n_lost < 2:
            await turns(1)
        fake.is_away = False
        hub.publish(spoken("new"))
    assert fake.got == ["new"]
    assert delivery.n_lost == 2


async def test_captions_do_not_wait_for_a_destination_that_is_away():
    hub, fake = Hub("live", history=5000), Fake(is_live=True)
    fake.is_away = True
    async with delivering(fake, hub, end_by=at_once, pauses_s=(60.0,)) as delivery:
        for n in range(3000):
            hub.publish(spoken(f"text {n}"))
            await turns(1)
        assert hub.queued < 256
    assert delivery.n_sent == 0
    assert delivery.n_lost == 3000


async def test_at_the_end_there_is_one_more_try_and_then_the_rest_is_counted(caplog):
    hub, fake = Hub("live"), Fake()
    fake.is_away = True
    async with delivering(fake, hub, end_by=at_once, pauses_s=(3600.0,)) as delivery:
        hub.publish(spoken("one"))
        hub.publish(spoken("two"))
        await fake.changed.wait()
    assert delivery.n_sent == 0
    assert caplog.records[-1].getMessage() == "there: 0 sent, 2 not"


async def test_what_waited_for_a_destination_is_sent_at_the_end():
    hub, fake = Hub("live"), Fake(fails=[DeliveryError("away")])
    async with delivering(fake, hub, pauses_s=(3600.0,)):
        hub.publish(spoken("one"))
        hub.publish(spoken("two"))
        await fake.changed.wait()
    assert fake.got == ["one", "two"]


@pytest.mark.parametrize("n", [1, 7])
async def test_only_what_is_new_is_sent(n):
    hub, fake = Hub("live"), Fake()
    for _ in range(n):
        hub.publish(spoken("before"))
    async with delivering(fake, hub):
        hub.publish(spoken("after"))
    assert fake.got == ["after"]


async def test_a_session_ends_in_time_though_more_waits_than_there_is_room_for():
    hub, fake = Hub("live"), Fake()
    fake.is_away = True
    async with delivering(fake, hub, end_by=at_once, pauses_s=(3600.0,)) as delivery:
        for n in range(600):
            hub.publish(spoken(f"text {n}"))
            await turns(1)
    assert (delivery.n_sent, delivery.n_lost) == (0, 600)


class Broken(Fake):
    """Has a bug in how events become parts."""

    def parts(self, event):
        if isinstance(event, Final):
            raise KeyError("no such field")
        return ()


@pytest.mark.parametrize("fake", [Broken(), Fake(fails=[KeyError("no such field")])])
async def test_a_bug_in_a_destination_ends_only_what_is_sent_there(fake, caplog):
    hub = Hub("live")
    async with delivering(fake, hub):
        for n in range(600):
            hub.publish(spoken(f"text {n}"))
            await turns(1)
        assert hub.queued == 0
    assert "a bug in streamd: nothing more is sent there" in caplog.text
