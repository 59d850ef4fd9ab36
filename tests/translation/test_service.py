import pytest

from streamd.errors import WireError
from streamd.events import Eos, Fault, SessionEvent, Translation
from streamd.options import Choices
from streamd.streams.hub import Hub
from streamd.streams.subscription import Subscription
from streamd.translation import service as service_of_readers
from streamd.translation.service import Translations
from tests.support.loop import turns
from tests.support.translating import final, partial, shouting

ENGLISH = Choices(language="en")


class Service(Translations):
    """Translates from English into Portuguese; `seen` are the texts that it was given."""

    def __init__(self) -> None:
        translator, self.seen = shouting("en-pt")
        super().__init__(translator, ["pt"])


@pytest.fixture
def hub():
    return Hub("talk", choices=ENGLISH)


@pytest.fixture
async def service():
    made = Service()
    yield made
    made.close()


@pytest.fixture
async def subscription(hub, service):
    """Somebody who reads Portuguese from now on."""
    made = hub.subscribe()
    service.read(hub, "pt", made, after=None)
    return made


def waiting(subscription: Subscription) -> list[SessionEvent]:
    return [*iter(subscription.pop, None)]


async def translated(subscription: Subscription, n: int) -> list[Translation]:
    """The next `n` translations that a subscriber gets."""
    found: list[Translation] = []
    async for event in subscription:
        if isinstance(event, Translation):
            found.append(event)
        if len(found) == n:
            break
    return found


def texts(found: list[Translation]) -> list[str]:
    return [each.text for each in found]


async def test_a_reader_gets_each_sentence_after_its_final(hub, subscription):
    hub.publish(final("Good morning."))
    hub.publish(final("Sit down.", seg=2, start_ms=3_000))
    found = await translated(subscription, 2)
    assert texts(found) == ["pt:GOOD MORNING.", "pt:SIT DOWN."]
    assert [(each.first, each.last, each.complete) for each in found] == [
        (1, 1, True),
        (2, 2, True),
    ]


async def test_a_sentence_in_progress_is_replaced_until_it_is_complete(hub, subscription):
    hub.publish(partial("it may rain here, we said", 5))
    (first,) = await translated(subscription, 1)
    hub.publish(final("it may rain here, we said."))
    (second,) = await translated(subscription, 1)
    assert (first.seg, first.rev, first.first, first.complete) == (1, 0, 0, False)
    assert (second.seg, second.rev, second.first, second.complete) == (1, 1, 1, True)


async def test_readers_of_one_language_share_its_translations_and_others_get_none(hub, service):
    readers = [hub.subscribe() for _ in range(3)]
    for subscription in readers[:2]:
        service.read(hub, "pt", subscription, after=None)
    hub.publish(final("Hi."))
    for subscription in readers[:2]:
        assert texts(await translated(subscription, 1)) == ["pt:HI."]
    assert service.seen == ["Hi."]
    assert not any(isinstance(event, Translation) for event in waiting(readers[2]))


async def test_nothing_is_translated_that_nobody_reads(hub, service):
    subscription = hub.subscribe()
    hub.publish(final("Nobody reads."))
    reader = service.read(hub, "pt", subscription, after=None)
    hub.publish(final("Read.", seg=2, start_ms=3_000))
    await translated(subscription, 1)
    reader.leave()
    hub.publish(final("Not any more.", seg=3, start_ms=6_000))
    await turns(20)
    assert "Not any more." not in service.seen


async def test_who_comes_late_gets_what_was_said_before_the_newest_first(hub, service):
    for seq, text in enumerate(["One.", "Two.", "Three."], 1):
        hub.publish(final(text, seg=seq, start_ms=3_000 * seq))
    first = hub.subscribe(0)
    service.read(hub, "pt", first, after=0)
    assert texts(await translated(first, 3)) == ["pt:THREE.", "pt:TWO.", "pt:ONE."]
    # Now they are known, and come in their order; of those after a final, only these.
    second = hub.subscribe(1)
    service.read(hub, "pt", second, after=1)
    assert texts(await translated(second, 2)) == ["pt:TWO.", "pt:THREE."]


async def test_a_later_reader_is_translated_for_once_and_gets_what_is_open(hub, service):
    first = hub.subscribe()
    service.read(hub, "pt", first, after=None)
    hub.publish(final("When it rains"))
    await translated(first, 1)
    second = hub.subscribe()
    service.read(hub, "pt", second, after=None)
    (open_one,) = await translated(second, 1)
    assert (open_one.text, open_one.complete) == ("pt:WHEN IT RAINS", False)
    assert service.seen == ["When it rains"]


async def test_who_returns_after_all_have_left_gets_what_is_known_and_the_rest(hub, service):
    subscription = hub.subscribe()
    reader = service.read(hub, "pt", subscription, after=None)
    hub.publish(final("One."))
    await translated(subscription, 1)
    reader.leave()
    hub.publish(final("Two.", seg=2, start_ms=3_000))
    again = hub.subscribe(0)
    service.read(hub, "pt", again, after=0)
    assert texts(await translated(again, 2)) == ["pt:ONE.", "pt:TWO."]
    assert service.seen == ["One.", "Two."]


async def test_the_end_of_a_session_is_translated(hub, service):
    subscription = hub.subscribe()
    reader = service.read(hub, "pt", subscription, after=None)
    hub.publish(final("the end"))
    hub.close("end")
    assert [type(event) for event in waiting(subscription)][-1] is Eos
    late = await reader.rest()
    assert [each.complete for each in late if isinstance(each, Translation)] == [True]


async def test_who_reads_a_session_that_has_ended_gets_all_of_it(hub, service, monkeypatch):
    monkeypatch.setattr(service_of_readers, "_REST_S", 0.0)
    for n in range(300):
        hub.publish(final(f"Number {n}.", seg=n, start_ms=3_000 * n))
    hub.close("end")
    subscription = hub.subscribe(0)
    reader = service.read(hub, "pt", subscription, after=0)
    events = waiting(subscription)
    events += [*(await reader.rest()), *waiting(subscription)]
    assert len([each for each in events if isinstance(each, Translation)]) == 300


async def test_a_failure_is_told_once_to_those_who_read_and_captions_go_on(
    hub, subscription, caplog
):
    other = hub.subscribe()
    hub.publish(final("panic"))
    faults = []
    async for event in subscription:
        if isinstance(event, Fault):
            faults.append(event)
            break
    assert [(each.code, each.fatal) for each in faults] == [("translation", False)]
    assert hub.publish(final("Go on.", seg=2, start_ms=3_000)).seq == 2
    await turns(20)
    assert not any(isinstance(event, Fault) for event in waiting(other))
    assert [record.message for record in caplog.records if "not translated" in record.message] == [
        "session talk is not translated into pt: the model failed"
    ]


async def test_a_language_that_is_not_offered_is_refused(hub, service):
    with pytest.raises(WireError, match="this server offers pt, not 'de'"):
        service.read(hub, "de", hub.subscribe(), after=None)


async def test_names_of_the_session_are_asked_for_each_sentence():
    hub, (translator, _) = Hub("talk", choices=ENGLISH), shouting("en-pt")
    asked = []
    service = Translations(translator, ["pt"], lambda hub: asked.append(hub.session) or ["Ana"])
    subscription = hub.subscribe()
    service.read(hub, "pt", subscription, after=None)
    hub.publish(final("Hi Ana."))
    await translated(subscription, 1)
    assert asked == ["talk"]
    service.close()


async def test_what_whisper_translates_is_english():
    choices = Choices(language="de", task="translate")
    hub, (translator, _) = Hub("talk", choices=choices), shouting("en-pt")
    service, subscription = Translations(translator, ["pt"]), hub.subscribe()
    service.read(hub, "pt", subscription, after=None)
    hub.publish(final("Good morning.", language="de"))
    assert texts(await translated(subscription, 1)) == ["pt:GOOD MORNING."]
    service.close()


async def test_who_comes_while_somebody_speaks_gets_the_sentence_so_far(hub, service):
    hub.publish(partial("it may rain here, we said", 5))
    subscription = hub.subscribe()
    service.read(hub, "pt", subscription, after=None)
    assert texts(await translated(subscription, 1)) == ["pt:IT MAY RAIN HERE,"]


async def test_reading_what_was_said_before_leaves_turns_to_others(hub, service, monkeypatch):
    for n in range(900):
        hub.publish(final(f"Number {n}.", seg=n, start_ms=3_000 * n))
    n_read, pop = 0, Subscription.pop

    def counted(self: Subscription) -> SessionEvent | None:
        nonlocal n_read
        n_read += 1
        return pop(self)

    monkeypatch.setattr(Subscription, "pop", counted)
    subscription = hub.subscribe()
    service.read(hub, "pt", subscription, after=0)
    in_turns = []
    while n_read < 900:
        before = n_read
        await turns(1)
        in_turns.append(n_read - before)
    assert max(in_turns) < 200


async def test_a_language_without_a_model_is_told_once_and_others_are_still_translated():
    hub, (translator, _) = Hub("talk"), shouting("en-pt")
    service, subscription = Translations(translator, ["pt"]), hub.subscribe()
    service.read(hub, "pt", subscription, after=None)
    for n, (text, language) in enumerate([("Ja.", "de"), ("Hi.", "en"), ("Nein.", "de")]):
        hub.publish(final(text, seg=n + 1, start_ms=3_000 * n, language=language))
    hub.publish(final("Go on.", seg=4, start_ms=12_000))
    found: list[SessionEvent] = []
    async for event in subscription:
        if isinstance(event, Fault | Translation):
            found.append(event)
        if len(found) == 3:
            break
    fault, *rest = found
    assert isinstance(fault, Fault)
    assert "from de into pt" in fault.message
    assert texts(rest) == ["pt:HI.", "pt:GO ON."]
    service.close()
