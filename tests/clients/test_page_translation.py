"""The page in the reader's language."""

import asyncio

import pytest
from axe_playwright_python.async_playwright import Axe
from msgspec.structs import replace
from playwright.async_api import Page, expect

from streamd.events import Correction, Sound
from streamd.server import ServerInfo
from streamd.streams.hub import Hub
from streamd.translation.service import Translations
from streamd.translation.translator import Translator
from tests.support.browser import final, needs_chromium, visit, visiting
from tests.support.serving import CountingStreams, Relay, serving
from tests.support.translating import partial, shouting

pytestmark = [pytest.mark.page, needs_chromium, pytest.mark.asyncio(loop_scope="module")]


class ReadTranslations(Translations):
    """Knows since when somebody reads them: what was said before is not shown on an overlay."""

    def __init__(self, *args):
        super().__init__(*args)
        self.is_read = asyncio.Event()

    def read(self, *args, **named):
        reader = super().read(*args, **named)
        self.is_read.set()
        return reader


def info(*languages: str) -> ServerInfo:
    translator, _ = shouting(*(f"en-{each}" for each in languages))
    return ServerInfo("fake", "en", ReadTranslations(translator, languages))


async def choose(page: Page, value: str) -> None:
    await expect(page.locator("#reading")).to_be_visible()
    await page.locator("#into").select_option(value)


async def test_a_reader_chooses_a_language_and_reads_it_beside_the_original(context, streams):
    streams.live.publish(final("Said before.", 0, seg=1))
    async with visiting(context, streams, info=info("pt", "de")) as (page, wrong):
        await choose(page, "pt both")
        await expect(page.locator("#machine")).to_have_text("translated by a machine")
        line = page.get_by_role("log", name="Translation")
        await expect(line).to_have_text("pt:SAID BEFORE.")
        assert await line.locator("span").first.get_attribute("lang") == "pt"
        streams.live.publish(final("And now.", 1_000, seg=2))
        await expect(line).to_have_text("pt:SAID BEFORE. pt:AND NOW.")
        # A new paragraph: the old one keeps its translation.
        streams.live.publish(final("Much later.", 60_000, seg=3))
        await expect(page.locator("#log .translation")).to_have_text("pt:SAID BEFORE. pt:AND NOW.")
        await expect(line).to_have_text("pt:MUCH LATER.")
        await expect(page.locator("#log .text").first).to_be_visible()
        assert wrong == []


async def test_what_is_being_said_is_replaced_and_not_read_aloud(context, streams):
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt only")
        streams.live.publish(partial("it may rain here, we said", 5))
        moving = page.locator("#translating .open")
        await expect(moving).to_have_text("pt:IT MAY RAIN HERE,")
        assert await moving.get_attribute("aria-hidden") == "true"
        streams.live.publish(final("It may rain here, we said.", 0, seg=1))
        await expect(moving).to_have_count(0)
        await expect(page.locator("#translating")).to_have_text("pt:IT MAY RAIN HERE, WE SAID.")
        assert await page.locator("#translating").get_attribute("aria-live") == "polite"


async def test_alone_it_takes_the_place_of_the_original_and_back(context, streams):
    for seg, text in enumerate(["One.", "Two."], 1):
        streams.live.publish(final(text, 60_000 * seg, seg=seg))
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt only")
        await expect(page.locator("#log .translation")).to_have_text("pt:ONE.")
        for text in await page.locator("#log .text").all():
            await expect(text).to_be_hidden()
        await choose(page, "")
        await expect(page.locator("#log .text").first).to_be_visible()
        await expect(page.locator("#translating")).to_be_hidden()
        await expect(page.locator("#machine")).to_be_hidden()


async def test_a_revision_doubles_no_translation(context, streams):
    for seg, text in enumerate(["One here.", "Two here.", "Three here.", "Four here."], 1):
        streams.live.publish(final(text, 60_000 * seg, seg=seg))
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt both")
        blocks = page.locator("#log .translation")
        texts = ["pt:ONE HERE.", "pt:TWO HERE.", "pt:THREE HERE."]
        await expect(blocks).to_have_text(texts)
        streams.live.publish(Correction(seq=3, first=0, last=0, text="Trio"))
        await expect(page.locator("#log ins")).to_have_count(1)
        await expect(blocks).to_have_text(texts)
        streams.live.publish(Sound(label="music", start_ms=200_000, end_ms=201_000, prob=0.9))
        await expect(page.locator("#log .sound")).to_have_count(1)
        await expect(blocks).to_have_text(texts)
        await expect(page.locator("#translating")).to_have_text("pt:FOUR HERE.")


async def test_what_was_said_before_a_restart_keeps_its_translation(context, streams):
    async with serving(streams, info=info("pt")) as server, Relay(server.port) as relay:
        page, _ = await visit(context, f"http://127.0.0.1:{relay.port}/")
        await choose(page, "pt both")
        streams.live.publish(final("One.", 0, seg=1))
        streams.live.publish(partial("it may rain here, we said", 5, seg=2, start_ms=9_000))
        await expect(page.locator("#translating .open")).to_have_text("pt:IT MAY RAIN HERE,")
        streams.live = Hub("live", epoch="e2")
        relay.cut()
        await expect(page.locator("#translating .open")).to_have_count(0)
        streams.live.publish(final("Two.", 0, seg=1))
        await expect(page.locator("#translating")).to_have_text("pt:TWO.")
        await expect(page.locator("#log .translation")).to_have_text("pt:ONE.")


async def test_who_reads_the_translation_alone_sees_no_sentence_twice(context, streams):
    said = final("One. Then we", 0, seg=1)
    speakers = [1, 2, 2]
    words = [replace(w, speaker=s) for w, s in zip(said.words, speakers, strict=True)]
    streams.live.publish(final("Before.", 0, seg=0))
    streams.live.publish(final("Tell", 60_000, seg=1))
    streams.live.publish(replace(said, start_ms=90_000, words=tuple(words)))
    streams.live.publish(final("Much later.", 900_000, seg=3))
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt only")
        await expect(page.locator("#translating")).to_have_text("pt:MUCH LATER.")
        shown = page.locator("#log > .final:visible")
        await expect(shown).to_have_count(4)
        await expect(shown.nth(2)).to_contain_text("pt:ONE. pt:THEN WE")
        for text in await page.locator("#log .text").all():
            await expect(text).to_be_hidden()


async def test_a_lost_connection_takes_no_translation_away(context, streams):
    for seg, text in enumerate(["One.", "Two."], 1):
        streams.live.publish(final(text, 60_000 * seg, seg=seg))
    async with serving(streams, info=info("pt")) as server, Relay(server.port) as relay:
        page, _ = await visit(context, f"http://127.0.0.1:{relay.port}/")
        await choose(page, "pt only")
        block = page.locator("#log .translation")
        await expect(block).to_have_text("pt:ONE.")
        await block.evaluate("(block) => (block.id = 'standing')")
        relay.cut()
        streams.live.publish(final("Three.", 180_000, seg=3))
        await expect(page.locator("#translating")).to_have_text("pt:THREE.")
        await expect(block).to_have_text(["pt:ONE.", "pt:TWO."])
        await expect(page.locator("#standing")).to_have_count(1)
        await choose(page, "pt both")
        await expect(page.locator("#standing")).to_have_count(1)
        await expect(page.locator("#log .text").first).to_be_visible()


@pytest.mark.parametrize("how", ["clear", "new"])
async def test_translations_go_with_the_text(context, how, streams):
    streams.live.publish(final("One.", 0, seg=1))
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt both")
        await expect(page.locator("#translating")).to_have_text("pt:ONE.")
        if how == "clear":
            await page.locator("#clear").evaluate("(button) => button.click()")
        else:
            await page.locator("#session").select_option("")
        await expect(page.locator("#text")).to_have_text("")


async def test_the_choice_outlives_a_visit(context, streams):
    streams.live.publish(final("One.", 0, seg=1))
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt both")
        await expect(page.locator("#translating")).to_have_text("pt:ONE.")
        await page.reload()
        await expect(page.locator("#into")).to_have_value("pt both")
        await expect(page.locator("#translating")).to_have_text("pt:ONE.")


DIRECTION = "(e) => getComputedStyle(e).direction"


def arabic() -> ServerInfo:
    """Its translations begin with a name that is kept, as the vocabulary spells it."""
    said = "Ana Botín قالت: مرحبا بالعالم."
    translator = Translator(lambda source, target: lambda text: said, [("en", "ar")])
    return ServerInfo("fake", "en", ReadTranslations(translator, ["ar"]))


async def test_arabic_has_its_own_direction_and_nobody_is_shut_out(context, streams):
    async with visiting(context, streams, info=arabic()) as (page, _):
        await choose(page, "ar both")
        streams.live.publish(final("Hello world.", 0, seg=1))
        streams.live.publish(final("Bye world.", 60_000, seg=2))
        for block in (page.locator("#log .translation"), page.locator("#translating")):
            await expect(block).to_contain_text("مرحبا بالعالم.")
            assert await block.evaluate(DIRECTION) == "rtl"
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


async def test_arabic_has_its_own_direction_on_the_overlay(context, streams):
    offer = arabic()
    async with serving(streams, info=offer) as server:
        address = f"http://127.0.0.1:{server.port}/overlay?translate=ar&fade=0&width=40em"
        page, _ = await visit(context, address)
        await offer.translating.is_read.wait()
        streams.live.publish(final("Hello world.", 0, seg=1))
        line = page.locator("#lines p").last
        await expect(line).to_contain_text("مرحبا بالعالم.")
        assert await line.evaluate(DIRECTION) == "rtl"


async def test_a_language_is_read_through_english_from_the_first_sentence_on(context, streams):
    """Portuguese to German; whoever comes late reads all of it, too."""
    translator, seen = shouting("pt-en", "en-de")
    offer = ServerInfo("fake", "pt", Translations(translator, ["de"]))
    streams.live.publish(replace(final("Boa tarde.", 0, seg=1), language="pt"))
    async with visiting(context, streams, info=offer) as (page, _):
        await choose(page, "de only")
        line = page.locator("#translating")
        await expect(line).to_have_text("de:EN:BOA TARDE.")
        assert await line.locator("span").first.get_attribute("lang") == "de"
        await expect(page.locator("#log .text")).to_be_hidden()
    assert seen == ["Boa tarde.", "en:BOA TARDE."]


async def test_if_translating_fails_the_original_is_shown(context, streams):
    async with visiting(context, streams, info=info("pt")) as (page, _):
        await choose(page, "pt only")
        streams.live.publish(final("panic", 0, seg=1))
        await expect(page.locator("#machine")).to_have_text("no translation")
        await expect(page.locator("#log .text")).to_be_visible()


async def test_without_an_offer_nothing_is_shown(context):
    async with visiting(context, CountingStreams()) as (page, _):
        await expect(page.locator("#status")).to_have_text("live")
        await expect(page.locator("#reading")).to_be_hidden()


async def test_the_overlay_shows_another_language_in_place_of_what_was_said(context, streams):
    offer = info("pt")
    async with serving(streams, info=offer) as server:
        address = f"http://127.0.0.1:{server.port}/overlay"
        page, wrong = await visit(context, f"{address}?translate=pt&fade=0&width=40em")
        lines = page.locator("#lines")
        await page.wait_for_function("performance.getEntriesByType('resource').length > 0")
        await offer.translating.is_read.wait()
        streams.live.publish(partial("it may rain here, we said", 5))
        await expect(lines).to_have_text("pt:IT MAY RAIN HERE,")
        streams.live.publish(final("It may rain here, we said.", 0, seg=1))
        await expect(lines).to_have_text("pt:IT MAY RAIN HERE, WE SAID.")
        assert await lines.get_attribute("lang") == "pt"
        assert wrong == []
        other, _ = await visit(context, f"{address}?translate=xx&width=60em")
        await expect(other.locator("#lines")).to_contain_text("this server offers pt")


async def test_the_overlay_shows_what_is_said_if_translating_fails(context, streams):
    offer = info("pt")
    async with serving(streams, info=offer) as server:
        address = f"http://127.0.0.1:{server.port}/overlay"
        page, _ = await visit(context, f"{address}?translate=pt&fade=0&width=40em")
        await offer.translating.is_read.wait()
        streams.live.publish(final("panic", 0, seg=1))
        await expect(page.locator("#lines")).to_contain_text("no translation into pt")
        streams.live.publish(final("Nobody said so.", 9_000, seg=2))
        await expect(page.locator("#lines")).to_contain_text("Nobody said so.")


async def test_the_choice_of_a_language_pushes_no_button_off_a_phone(context):
    async with visiting(context, CountingStreams(), info=info("pt")) as (page, _):
        await choose(page, "pt both")
        settings = page.locator("[popovertarget=settings]")
        for width, height in ((844, 390), (390, 844), (320, 640)):
            await page.set_viewport_size({"width": width, "height": height})
            box = await settings.bounding_box()
            assert box["x"] + box["width"] <= width
            await settings.click()
            panel = page.locator("#settings")
            await expect(panel).to_be_visible()
            assert await panel.evaluate("(e) => e.scrollWidth <= e.clientWidth")
            await page.keyboard.press("Escape")
