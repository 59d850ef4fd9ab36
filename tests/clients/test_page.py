"""The page in a real browser: what is said stays, and is text (more: test_page_in_full.py)."""

import pytest
from msgspec.structs import replace
from playwright.async_api import expect

from streamd.events import Gap, Notice, Sound, Vad
from streamd.streams.hub import Hub
from tests.support.browser import HOSTILE, final, needs_chromium, visit, visit_over_a_line, visiting
from tests.support.said import partial
from tests.support.serving import serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]


async def test_finals_stay_partials_change_and_nothing_is_taken_for_html(context, streams):
    streams.live.publish(final("said before"))
    async with visiting(context, streams) as (page, wrong):
        await expect(page.locator("#log .text")).to_have_text(["said before"])
        await expect(page.locator("#model")).to_have_text("Model: fake, English")
        await expect(page.locator("#status")).to_have_text("live")
        streams.live.publish(Vad(speech=True, t_ms=1000))
        for rev, (text, stable) in enumerate([("turn", 0), ("turn on", 4), (HOSTILE, 0)]):
            guess = partial(text, rev=rev, start_ms=1000, stable=stable, lag_ms=2500)
            streams.live.publish(guess)
            await expect(page.locator("#partial")).to_have_text(text)
            await expect(page.locator("#partial .stable")).to_have_text(text[:stable])
        await expect(page.locator("#lag.late")).to_have_text("2.5 s behind")
        streams.live.publish(final(HOSTILE, 1000, seg=1))
        streams.live.publish(Gap(t_ms=4000, duration_ms=1500, why="<overrun>"))
        await expect(page.locator("#log .text").last).to_have_text(HOSTILE)
        await expect(page.locator("#partial")).to_have_text("")
        await expect(page.locator("#log .note")).to_contain_text("1.5 s")
        assert await page.locator("#log img, #log b").count() == 0
        assert wrong == []


async def test_a_time_after_an_hour_stands_in_one_line(context, streams):
    for start_ms in (1_000, 3_661_000, 36_061_000):
        streams.live.publish(final("said", start_ms, seg=start_ms))
    async with visiting(context, streams) as (page, _):
        times = page.locator("#log time")
        await expect(times).to_have_text(["0:01", "1:01:01", "10:01:01"])
        assert len({(await each.bounding_box())["height"] for each in await times.all()}) == 1


async def test_a_lost_connection_and_a_restart_lose_and_double_nothing(context):
    async with visit_over_a_line(context) as (streams, relay, page):
        streams.live.publish(final("one"))
        await expect(page.locator("#log .text")).to_have_text(["one"])
        relay.cut()
        streams.live.publish(final("two"))
        await expect(page.locator("#log .text")).to_have_text(["one", "two"])
        for epoch in ("e2", "e3"):  # the first of them says nothing
            streams.live = Hub("live", epoch=epoch)
            relay.cut()
            await expect(page.locator("#status")).to_contain_text("lost")
            await expect(page.locator("#status")).to_have_text("live")
        streams.live.publish(final("eins"))
        await expect(page.locator("#log .text")).to_have_text(["one", "two", "eins"])
        await expect(page.locator("#log .divider")).to_have_count(1)
        streams.live.close("stop")
        await expect(page.locator("#status")).to_contain_text("session ended")


async def test_a_screen_reader_hears_each_final_once_and_no_partial(context, streams):
    streams.live.publish(final("hours of history"))
    async with visiting(context, streams) as (page, _):
        log = page.get_by_role("log")
        await expect(log).to_contain_text("hours of history")
        assert await log.get_attribute("aria-live") == "off"
        streams.live.publish(final("news", 2000))
        await expect(log).to_contain_text("news")
        assert await log.get_attribute("aria-live") == "polite"
        assert await log.get_attribute("aria-relevant") == "additions"
        assert await page.locator("#partial").get_attribute("aria-hidden") == "true"
        assert await log.locator("#partial").count() == 0


async def test_a_sound_has_its_place_and_a_notice_is_told(context, streams):
    async with visiting(context, streams) as (page, wrong):
        lines = page.locator("#log > p")
        streams.live.publish(final("before", 0))
        begun = Sound(label="music", start_ms=5000, end_ms=6000, prob=0.9)
        streams.live.publish(begun)
        await expect(page.locator("#log .sound")).to_have_text(["[music]"])
        streams.live.publish(final("also before", 3000, seg=1))
        await expect(lines).to_have_count(3)
        await expect(lines.nth(1)).to_contain_text("also before")
        await expect(lines.nth(2)).to_have_text("[music]")
        streams.live.publish(Notice(wanted="doors", text="Doors", start_ms=3000, end_ms=3500))
        await expect(page.locator("#toast")).to_have_text("Heard: Doors")
        await page.locator("#await").evaluate(
            "(field) => { field.value = 'more'; field.onchange(); }"
        )
        streams.live.publish(final("Once more.", 7000, seg=2))
        await expect(page.locator("#toast")).to_have_text("Heard: more")
        await expect(page.locator("body.notice")).to_have_count(1)
        await page.reload()
        await expect(lines).to_have_count(4)
        await expect(lines.nth(2)).to_have_text("[music]")
        assert await page.locator("#await").input_value() == "more"
        assert wrong == []


async def test_a_word_of_before_the_visit_is_no_news(context, streams):
    streams.live.publish(final("more before", 0))
    async with serving(streams) as server:
        await context.add_init_script("localStorage.setItem('streamd.await', 'more')")
        page, _ = await visit(context, f"http://127.0.0.1:{server.port}/")
        await expect(page.locator("#log .text")).to_have_text(["more before"])
        await expect(page.locator("#toast")).to_be_hidden()
        streams.live.publish(final("Once more.", 1000, seg=1))
        await expect(page.locator("#toast")).to_have_text("Heard: more")


async def test_a_sound_that_was_cleared_stays_away(context):
    async with visit_over_a_line(context) as (streams, relay, page):
        streams.live.publish(final("before", 0))
        streams.live.publish(Sound(label="music", start_ms=5000, end_ms=6000, prob=0.9))
        await expect(page.locator("#log .sound")).to_have_count(1)
        await page.locator("#clear").evaluate("(button) => button.click()")
        await page.reload()
        await expect(page.locator("#status")).to_have_text("live")
        relay.cut()
        streams.live.publish(Sound(label="dog", start_ms=7000, end_ms=8000, prob=0.9))
        await expect(page.locator("#log > p")).to_have_text(["[dog]"])


async def test_a_name_that_the_server_does_not_take_after_the_end_is_shown_here_only(
    context, streams
):
    said = final("before", 0)
    streams.live.publish(replace(said, words=tuple(replace(w, speaker=1) for w in said.words)))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#log .who")).to_have_text("Speaker 1")
        streams.live.close("stop")
        await expect(page.locator("#status")).to_have_text("session ended")
        await page.route("**/transcript", lambda route: route.fulfill(status=403))
        await page.locator("#log .who").click()
        await page.locator("#name").fill("Ana")
        await page.keyboard.press("Enter")
        await expect(page.locator("#log .who")).to_have_text("Ana")
        await expect(page.locator("#toast")).to_contain_text("Only this browser has the name")
