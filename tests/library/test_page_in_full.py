"""The library's page for everybody: WCAG, small screens, the keyboard, two hours of text."""

import pytest
from axe_playwright_python.async_playwright import Axe
from msgspec.structs import replace
from playwright.async_api import expect

from streamd.library.additions import Addition
from streamd.library.jobs import Jobs
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
from streamd.options import JournalOptions
from streamd.server import Wanted
from tests.clients.test_page_in_full import SMALL
from tests.library.test_file_queue import FakeUploads, running
from tests.library.test_page import library_page
from tests.library.test_shelf import said
from tests.support.browser import needs_chromium

pytestmark = [pytest.mark.page, needs_chromium]
DRAWN = "new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))"
SILENT = JournalOptions(keep_audio="off")


def fill(folder, texts):
    with opened(folder) as library:
        talk = Addition(library, SILENT, "talk")
        for n, (text, language) in enumerate(texts):
            final = said(text, 1 + n % 2, start_ms=3000 * n, language=language)
            words = (
                replace(word, prob=0.3 if i % 4 else 0.9) for i, word in enumerate(final.words)
            )
            talk.hub.publish(replace(final, words=tuple(words)))
        talk.hub.close("end")
        talk.end("end")


TEXTS = [
    ("Anna Bottin spoke first, and she said what everybody had expected of her.", "en"),
    ("مرحبا بكم في هذا الاجتماع", "ar"),
    ("今日は天気がいい。", "ja"),
    ("Antidisestablishmentarianism" * 4, "en"),
]


async def test_everybody_can_read_and_press_it(tmp_path):
    fill(tmp_path, TEXTS)
    axe, jobs = Axe(), Jobs(Shelf(tmp_path))
    with opened(tmp_path) as library:
        uploads = FakeUploads(library, stop_before=0)
        for name in ("a long name of a file.mp3", "b.mp3"):
            file = jobs.new_file()
            file.write_bytes(b"x")
            jobs.add(file, name, Wanted(task="transcribe", language="en"))
        async with running(jobs, uploads) as queue, library_page(tmp_path, files=queue) as page:

            async def check(what):
                await page.evaluate(
                    "Promise.all(document.getAnimations().map((each) => each.finished))"
                )
                wrong = (await axe.run(page)).response["violations"]
                assert [(each["id"], each["nodes"][0]["html"]) for each in wrong] == [], what
                small = [each for each in await page.evaluate(SMALL) if "checkbox" not in each]
                assert small == [], what

            await expect(page.locator("#queue li")).to_have_count(2)
            for theme in ("dark", "light"):
                await page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                await page.locator("#files details").evaluate("each => each.open = true")
                await check(f"{theme} list")
                await page.locator("#view li a", has_text="talk").last.click()
                await expect(page.locator(".word").first).to_be_visible()
                await check(f"{theme} session")
                await page.keyboard.press("f")
                await page.keyboard.type("she")
                await page.keyboard.press("Enter")
                await expect(page.locator("#count")).to_have_text("1 of 1")
                await page.keyboard.press("Escape")
                await check(f"{theme} found")
                await page.keyboard.press("e")
                await expect(page.locator(".sentence textarea")).to_be_focused()
                await check(f"{theme} sentence")
                await page.keyboard.press("Escape")
                for key in ("w", "s", "?"):
                    await page.keyboard.press(key)
                    await expect(page.locator("dialog[open]")).to_be_visible()
                    await check(f"{theme} {key}")
                    await page.keyboard.press("Escape")
                await page.locator("#home").click()


@pytest.mark.parametrize(
    ("width", "height", "least"),
    [(1280, 800, 0.75), (390, 844, 0.75), (640, 400, 0.75), (320, 640, 0.6), (844, 390, 0.75)],
)
async def test_text_has_most_of_a_small_screen_and_nothing_is_beside_it(
    tmp_path, width, height, least
):
    fill(tmp_path, TEXTS)
    async with library_page(tmp_path) as page:
        await page.set_viewport_size({"width": width, "height": height})
        wide = "document.documentElement.scrollWidth"
        assert await page.evaluate(wide) == width
        await page.locator("#view li a").click()
        await expect(page.locator(".said")).to_have_count(4)
        main = await page.locator("#view").bounding_box()
        assert main["height"] >= least * height
        assert await page.evaluate(wide) == width
        beside = "(turns) => turns.filter((each) => each.scrollWidth > each.clientWidth).length"
        assert await page.locator(".turn").evaluate_all(beside) == 0
        direction = "(turns) => turns.map((each) => getComputedStyle(each).direction)"
        assert await page.locator(".turn").evaluate_all(direction) == ["ltr", "rtl", "ltr", "ltr"]
        if await page.locator("#more").is_visible():
            await page.locator("#more").click()
        tools = await page.locator("#tools").bounding_box()
        assert tools["x"] >= 0
        assert tools["x"] + tools["width"] <= width
        assert tools["y"] >= 0
        await page.locator("#delete").click()
        await expect(page.locator("#changing")).to_be_visible()


async def test_all_of_it_is_done_with_the_keyboard(tmp_path):
    fill(tmp_path, TEXTS)
    async with library_page(tmp_path) as page:
        await expect(page.locator("#view li a")).to_be_visible()
        await page.locator("#home").focus()
        for _ in range(9):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('#view li a')"):
                break
        await page.keyboard.press("Enter")
        await expect(page.locator("#view")).to_be_focused()
        await page.keyboard.press("n")
        await expect(page.locator(".word.now")).to_have_text("Bottin")
        await page.keyboard.press("e")
        await page.keyboard.type("Botín")  # which was chosen in the sentence
        await page.keyboard.press("Enter")
        await expect(page.locator(".word.changed")).to_have_text("Botín")
        await expect(page.locator("#view")).to_be_focused()
        await page.keyboard.press("w")
        await page.keyboard.type("Ana")
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn .who").first).to_have_text("Ana")
        await page.keyboard.press("u")
        await expect(page.locator(".turn .who").first).to_have_text("Speaker 1")


async def test_two_hours_are_light_and_cost_the_same_at_their_end(tmp_path):
    line = "some words that somebody has said in a sentence of its own"
    fill(tmp_path, [(f"{line} {n}", "en") for n in range(4000)])
    async with library_page(tmp_path) as page:
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Performance.enable")

        async def measured():
            await devtools.send("HeapProfiler.collectGarbage")
            metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
            return {each["name"]: each["value"] for each in metrics}

        await page.locator("#view li a").click()
        await expect(page.locator(".turn")).to_have_count(4000)
        await expect(page.locator(".word").first).to_be_visible()
        first = await measured()
        assert first["Nodes"] < 60_000  # 4,000 lines of 12 words: with all words, 150,000
        assert await page.locator(".word").count() < 2000
        for _ in range(3):
            for share in (0.25, 0.5, 0.75, 1, 0):
                await page.evaluate(f"view.scrollTop = {share} * view.scrollHeight")
                await page.evaluate(DRAWN)
        last = await measured()
        assert await page.locator(".word").count() < 2000
        assert last["Nodes"] < 1.1 * first["Nodes"]
        assert last["JSHeapUsedSize"] < 1.5 * first["JSHeapUsedSize"]
        await page.evaluate("view.scrollTop = view.scrollHeight")
        await page.locator(".word", has_text="3999").click()
        await page.keyboard.press("e")
        await page.fill(".sentence textarea", "the end")
        unchanged = await page.locator(".turn").first.element_handle()
        await page.keyboard.press("Enter")
        await expect(page.locator(".said").last).to_have_text("the end")
        assert await unchanged.evaluate("each => each.isConnected")


async def heard(page):
    """What a screen reader gets of the page: role and name of each node, and what is focused."""
    session = await page.context.new_cdp_session(page)
    nodes = (await session.send("Accessibility.getFullAXTree"))["nodes"]
    found, focused = [], None
    for node in nodes:
        if node.get("ignored"):
            continue
        role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
        found.append((role, name))
        has = {each["name"]: each["value"].get("value") for each in node["properties"]}
        if has.get("focused"):
            focused = role, name  # the innermost comes last
    return found, focused


async def test_a_screen_reader_is_told_what_there_is_and_where_one_is(tmp_path):
    fill(tmp_path, TEXTS)
    jobs = Jobs(Shelf(tmp_path))
    with opened(tmp_path) as library:
        uploads = FakeUploads(library)
        async with running(jobs, uploads) as queue, library_page(tmp_path, files=queue) as page:
            await expect(page.locator("#view li")).to_have_count(1)
            await page.locator("#files details").evaluate("each => each.open = true")
            found, _ = await heard(page)
            for node in (
                ("heading", "Library"),
                ("searchbox", "Search"),
                ("region", "Files to transcribe"),
                ("button", "Transcribe files"),
                ("textbox", "Language"),
                ("combobox", "Speakers"),
            ):
                assert node in found
            link = next(name for role, name in found if role == "link" and "talk" in name)
            assert link.endswith(f"0:09 · Speaker 1 · Speaker 2 {TEXTS[0][0]}")

            await page.locator("#view li a").click()
            await expect(page.locator(".word").first).to_be_visible()
            found, focused = await heard(page)
            assert focused == ("main", "")
            assert any(role == "RootWebArea" and "talk, " in name for role, name in found)
            for node in (
                ("button", "Speaker 1"),
                ("combobox", "Speed"),
                ("group", "Doubtful words"),
                ("button", "Next doubtful word"),
                ("searchbox", "Find in this session"),
                ("button", "Next place"),
                ("combobox", "Speaker to go to"),
                ("button", "New speaker here"),
            ):
                assert node in found
            assert [
                name for role, name in found if role in ("button", "combobox") and not name
            ] == []

            await page.keyboard.press("n")
            first = TEXTS[0][0]
            await expect(page.locator("#told")).to_have_text(f"Bottin: Speaker 1, 0:00, {first}")
            await page.keyboard.press("e")
            _, focused = await heard(page)
            assert focused == ("textbox", "Sentence")
            await page.keyboard.press("Escape")
            await page.keyboard.press("w")
            found, focused = await heard(page)
            assert ("dialog", "Who is Speaker 1?") in found
            assert focused == ("textbox", "Name")
            await page.keyboard.press("Escape")
            quiet = "document.getElementById('clock').ariaLive"
            assert await page.evaluate(quiet) == "off"  # else it would be read each second
            await page.fill("#query", "she")
            await page.keyboard.press("Enter")
            await expect(page.locator("#told")).to_have_text("1 sentence")
