"""The page of the library in a real browser."""

import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from msgspec.structs import replace
from playwright.async_api import Page, expect

from streamd.library.additions import Addition
from streamd.library.rest import LibraryRest
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
from streamd.options import BindOptions
from tests.library.test_shelf import OPTIONS, said
from tests.support.browser import HOSTILE, browser, needs_chromium, visit
from tests.support.serving import CountingStreams, serving

pytestmark = needs_chromium


@pytest.fixture
async def page(tmp_path):
    with opened(tmp_path) as library:
        for name in ("first", "talk"):
            addition = Addition(library, OPTIONS, name)
            addition.hear(np.zeros((1500, 320), np.float32))
            addition.hub.publish(said("Anna Bottin spoke first.", 1, start_ms=1000))
            addition.hub.publish(said("Then came the café.", 2, start_ms=20_000))
            hostile = said(HOSTILE, 2, start_ms=24_000)
            words = [replace(each, prob=0.3 + ("bold" not in each.text)) for each in hostile.words]
            addition.hub.publish(replace(hostile, words=tuple(words)))
            addition.hub.close("end")
            addition.end("end")
    async with library_page(tmp_path) as page:
        yield page


@asynccontextmanager
async def library_page(folder, **bind):
    async with serving(CountingStreams(), bind=BindOptions(port=0, **bind)) as server:
        server.library = LibraryRest(Shelf(folder))
        async with browser() as chromium:
            context = await chromium.new_context(viewport={"width": 1000, "height": 700})
            page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/library")
            yield page
            assert [each for each in wrong if "409" not in each] == []


async def heard_ms(page: Page) -> float:
    return 1000 * await page.evaluate("document.getElementById('sound').currentTime")


async def test_what_was_said_is_found_and_heard(page):
    await expect(page.locator("#view li strong")).to_have_text(["talk", "first"])
    await page.keyboard.press("/")
    await page.keyboard.type("cafe")
    await page.keyboard.press("Enter")
    await expect(page.locator("mark")).to_have_text(["café", "café"])
    await page.locator("#view li a").first.click()
    await expect(page.locator(".word.now")).to_have_text("Then")
    await page.locator(".word", has_text="café").click()
    await expect(page.locator("#play")).to_have_text("Pause")
    await expect(page.locator(".word.now")).not_to_have_text("Then")
    assert await heard_ms(page) >= 20_900
    await page.keyboard.press("k")
    await expect(page.locator("#play")).to_have_text("Play")
    before = await heard_ms(page)
    await page.keyboard.press("j")
    assert await heard_ms(page) == pytest.approx(before - 5000, abs=50)
    await page.keyboard.press(">")
    assert await page.evaluate("document.getElementById('sound').playbackRate") == 1.25
    assert HOSTILE[:20] in await page.inner_text("#view")
    await page.keyboard.press("n")
    await expect(page.locator(".word.now.low")).to_have_text("<b>bold</b>")


async def edit(page: Page, text: str, key: str = "Enter"):
    """Edit the sentence with the marked word."""
    await page.keyboard.press("e")
    await page.fill(".sentence textarea", text)
    await page.keyboard.press(key)


async def test_sentences_are_edited_and_speakers_named_in_place(page):
    await page.goto(f"{page.url}#1@1000")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    await edit(page, "Nobody", "Escape")
    await expect(page.locator(".sentence")).to_have_count(0)
    await edit(page, "Ana Botín spoke loudly first.")
    await expect(page.locator(".word.changed")).to_have_text(["Ana Botín spoke loudly"])
    await expect(page.locator("#heard")).to_have_text("heard: Anna Bottin spoke")
    await page.locator(".who").nth(1).click()
    await page.fill("#name", "Zoë")
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn .who")).to_have_text(["Speaker 1", "Zoë", "Zoë"])
    await page.reload()
    await expect(page.locator(".word.changed")).to_have_text(["Ana Botín spoke loudly"])
    await expect(page.locator(".who").nth(1)).to_have_text("Zoë")
    await edit(page, "Anna Bottin first.")
    await expect(page.locator(".said del")).to_have_text("spoke")
    await page.keyboard.press("u")
    await expect(page.locator(".said").first).to_have_text("Ana Botín spoke loudly first.")
    await page.keyboard.press("y")
    await expect(page.locator(".said del")).to_have_text("spoke")


async def test_speakers_are_merged_and_split_at_a_word(page):
    await page.goto(f"{page.url}#1@20000")
    await expect(page.locator(".word.now")).to_have_text("Then")
    await page.keyboard.press("s")
    await page.locator("#splitting button.main").click()
    await expect(page.locator(".turn .who")).to_have_text(["Speaker 1"] * 2 + ["Speaker 2"])
    await page.keyboard.press("u")
    await expect(page.locator(".turn .who")).to_have_text(["Speaker 1"] + ["Speaker 2"] * 2)
    await page.locator(".word", has_text="came").click()
    await page.keyboard.press("k")
    await page.keyboard.press("s")
    await page.select_option("#speaker", "3")
    await page.locator("#splitting button.main").click()
    names = ["Speaker 1", "Speaker 2", "Speaker 3", "Speaker 2"]
    await expect(page.locator(".turn .who")).to_have_text(names)
    await page.locator(".who", has_text="Speaker 3").click()
    await page.select_option("#same", "1")
    await page.locator("#naming button.main").click()
    await expect(page.locator(".turn .who").nth(2)).to_have_text("Speaker 1")
    await page.keyboard.press("u")
    await expect(page.locator(".turn .who")).to_have_text(names)


async def test_the_later_save_says_that_it_came_too_late_and_keeps_what_was_written(page):
    await page.goto(f"{page.url}#1@1000")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    other = {"revision": 0, "sentences": [{"seq": 1, "text": "Anna Botín spoke first."}]}
    await page.evaluate(
        "body => fetch('v1/library/sessions/1/edits', {method: 'POST', body})",
        json.dumps(other),
    )
    await edit(page, "Ana Bottin spoke first.")
    await expect(page.locator("#toast")).to_contain_text("Somebody else has edited")
    await expect(page.locator(".sentence .heard")).to_have_text("now: Anna Botín spoke first.")
    await expect(page.locator(".sentence textarea")).to_have_value("Ana Bottin spoke first.")
    await page.fill(".sentence textarea", "Ana Botín spoke first.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".said").first).to_have_text("Ana Botín spoke first.")


async def test_one_finds_words_doubtful_ones_and_speakers_in_a_session(page):
    await page.goto(f"{page.url}#1@1000")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    await page.keyboard.press("f")
    await page.keyboard.type("CAFE")
    await expect(page.locator("#count")).to_have_text("1 found")
    await expect(page.locator(".hit")).to_have_text("café.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".word.now")).to_have_text("café.")
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    await expect(page.locator(".word.now.low")).to_have_text("<b>bold</b>")
    await page.keyboard.press("b")
    await expect(page.locator("#toast")).to_have_text("No doubtful word comes before")
    await page.keyboard.press("o")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    await page.keyboard.press("p")
    await expect(page.locator(".word.now")).to_have_text("Then")
    await page.keyboard.press("?")
    await expect(page.locator("#help dt")).to_contain_text(["K, space"])


async def test_who_deletes_a_session_has_to_write_its_name(page):
    await page.goto(f"{page.url}#1")
    for name, left in (("other", 2), ("first", 1)):
        await page.locator("#delete").click()
        await page.fill("#text", name)
        await page.keyboard.press("Enter")
        if left == 2:
            await expect(page.locator("#toast")).to_contain_text("It was not deleted")
    await expect(page.locator("#view li strong")).to_have_text(["talk"])
