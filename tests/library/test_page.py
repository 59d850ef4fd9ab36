"""The page of the library in a real browser."""

import json
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace
from playwright.async_api import Page, expect

from streamd.config import Config
from streamd.daemon.display import written
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
        server.library = LibraryRest(Shelf(folder), partial(written, Config()))
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


async def test_words_are_corrected_and_speakers_named_in_place(page):
    await page.goto(f"{page.url}#1@1000")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    await page.keyboard.press("e")
    await page.fill("#text", "Ana")
    await page.keyboard.press("Enter")
    await expect(page.locator(".word.changed")).to_have_text("Ana")
    await page.locator(".who").nth(1).click()
    await page.fill("#text", "Zoë")
    await page.keyboard.press("Enter")
    await expect(page.locator(".who")).to_have_text(["Speaker 1", "Zoë", "Zoë"])
    await page.reload()
    await expect(page.locator(".word.changed")).to_have_text("Ana")
    await expect(page.locator(".who").nth(1)).to_have_text("Zoë")
    await page.keyboard.press("e")
    await page.fill("#text", "Hannah")
    await page.keyboard.press("Enter")
    await expect(page.locator(".word.changed")).to_have_text("Hannah")
    await page.keyboard.press("u")
    await expect(page.locator(".word.changed")).to_have_text("Ana")


async def test_the_later_save_says_that_it_came_too_late(page):
    await page.goto(f"{page.url}#1@1000")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    other = {"seq": 1, "first": 1, "last": 1, "text": "Botín", "revision": 0}
    await page.evaluate(
        "body => fetch('v1/library/sessions/1/corrections', {method: 'POST', body})",
        json.dumps(other),
    )
    await page.keyboard.press("e")
    await page.fill("#text", "Ana")
    await page.keyboard.press("Enter")
    await expect(page.locator("#toast")).to_contain_text("Somebody else has corrected")
    await expect(page.locator(".word.changed")).to_have_text("Botín")


async def test_who_deletes_a_session_has_to_write_its_name(page):
    await page.goto(f"{page.url}#1")
    for name, left in (("other", 2), ("first", 1)):
        await page.locator("#delete").click()
        await page.fill("#text", name)
        await page.keyboard.press("Enter")
        if left == 2:
            await expect(page.locator("#toast")).to_contain_text("It was not deleted")
    await expect(page.locator("#view li strong")).to_have_text(["talk"])
