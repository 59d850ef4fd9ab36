"""The page of the library in a real browser."""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from playwright.async_api import Page, expect

from streamd.config import Config
from streamd.daemon.display import written
from streamd.errors import SourceError
from streamd.events import Correction, Final, Partial
from streamd.library.additions import Addition
from streamd.library.jobs import Jobs
from streamd.library.jobs_rest import JobsRest
from streamd.library.listeners import Listeners
from streamd.library.rest import LibraryRest
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
from streamd.options import BindOptions
from tests.library.test_file_queue import FakeUploads, put, running, until
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
async def library_page(folder, streams=None, files=None, *, may_fail=False, **bind):
    streams = streams or CountingStreams()
    async with serving(streams, bind=BindOptions(port=0, **bind)) as server:
        files = files and JobsRest(files)
        write = partial(written, Config())
        server.library = LibraryRest(Shelf(folder), write, Listeners(streams), files)
        async with browser() as chromium:
            context = await chromium.new_context(viewport={"width": 1000, "height": 700})
            page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/library")
            yield page
            assert may_fail or [each for each in wrong if "409" not in each] == []


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


async def test_a_session_is_saved_as_a_file_without_its_names(page):
    await page.goto(f"{page.url}#1@1000")
    await expect(page.locator(".word.now")).to_have_text("Anna")
    await page.keyboard.press("x")
    await page.select_option("#format", "txt")
    files = []
    page.on("download", lambda file: files.append(file))
    await page.check("#without")
    async with page.expect_download(lambda file: file.suggested_filename.endswith(".csv")):
        await page.click("#exporting button.main")
    paths = [Path(await file.path()) for file in files]
    text, listed = [await asyncio.to_thread(path.read_text) for path in paths]
    assert [file.suggested_filename for file in files] == [
        "session-1.txt",
        "session-1.replaced.csv",
    ]
    assert "Speaker 1: Name 1 spoke first." in text
    assert "Name 1,Anna Bottin,1" in listed


async def test_who_deletes_a_session_has_to_write_its_name(page):
    await page.goto(f"{page.url}#1")
    for name, left in (("other", 2), ("first", 1)):
        await page.locator("#delete").click()
        await page.fill("#text", name)
        await page.keyboard.press("Enter")
        if left == 2:
            await expect(page.locator("#toast")).to_contain_text("It was not deleted")
    await expect(page.locator("#view li strong")).to_have_text(["talk"])


async def test_a_session_that_goes_on_is_read_heard_and_edited_meanwhile(tmp_path):
    with opened(tmp_path) as library:
        talk, streams = Addition(library, OPTIONS, "live"), CountingStreams()
        streams.live = talk.hub
        talk.hear(np.zeros((3000, 320), np.float32))
        talk.hub.publish(said("Who is there?", start_ms=50_000))
        async with library_page(tmp_path, streams) as page:
            await expect(page.locator("#view li")).to_contain_text("goes on")
            await page.locator("#view li a").click()
            await expect(page.locator(".said")).to_have_text(["Who is there?"])
            await expect(page.locator("#replay")).to_be_visible()
            partial = Partial(seg=2, rev=1, start_ms=56_000, end_ms=57_000, text="An", stable=0)
            talk.hub.publish(partial)
            await expect(page.locator("#live")).to_have_text("An")
            await page.keyboard.press("r")
            await expect(page.locator("#play")).to_have_text("Pause")
            await page.evaluate(
                "new Promise((heard) => sound.addEventListener('timeupdate', heard))"
            )
            assert await page.evaluate("sound.duration") >= 59
            talk.hub.publish(said("Anna Bottin.", start_ms=56_000))
            await expect(page.locator(".said")).to_have_text(["Who is there?", "Anna Bottin."])
            await page.keyboard.press("k")
            await page.locator(".word", has_text="Bottin").click()
            await page.keyboard.press("k")
            await edit(page, "Ana Botín.")
            await expect(page.locator(".said").nth(1)).to_have_text("Ana Botín.")
            with talk.hub.subscribe(0) as late:
                events = [late.pop() for _ in range(3)]
            assert [type(event) for event in events] == [Final, Final, Correction]
            refused = await page.evaluate(
                "fetch('v1/library/sessions/1', {method: 'DELETE'}).then((answer) => answer.status)"
            )
            assert refused == 409
            talk.hub.close("end")
            talk.end("end")
            await expect(page.locator("#live")).to_be_hidden()
            await expect(page.locator("#replay")).to_be_hidden()
            await expect(page.locator(".said").nth(1)).to_have_text("Ana Botín.")


async def test_files_are_sent_and_transcribed_and_their_words_appear_as_they_come(tmp_path):
    jobs = Jobs(Shelf(tmp_path))
    with opened(tmp_path) as library:
        uploads = FakeUploads(library, stop_before=1)
        async with running(jobs, uploads) as queue, library_page(tmp_path, files=queue) as page:
            await page.locator("#files summary").click()
            await page.fill("#spoken", "en")
            files = [{"name": f"{name}.mp3", "mimeType": "", "buffer": b"x"} for name in "ab"]
            await page.set_input_files("#chosen", files)
            await uploads.stopped.wait()
            await expect(page.locator("#queue li")).to_have_count(2)
            await expect(page.locator("#queue li").nth(0)).to_contain_text("of 0:03")
            await expect(page.locator("#queue li").nth(1)).to_contain_text("waits")
            await page.locator("#queue a").click()
            await expect(page.locator(".said")).to_have_text("one")
            uploads.go_on()
            await expect(page.locator(".said")).to_have_text("one two three")
            await page.locator("#home").click()
            await expect(page.locator("#queue li")).to_have_count(0)
            await expect(page.locator("#view li strong")).to_have_text(["b", "a"])
            uploads.error = SourceError("there is no sound in it")
            await page.set_input_files("#chosen", files[:1])
            await expect(page.locator("#queue .failed")).to_have_text("there is no sound in it")
            await page.get_by_role("button", name="Remove: a.mp3").click()
            await expect(page.locator("#queue li")).to_have_count(0)


async def test_files_are_sent_again_if_streamd_was_away_and_never_twice(tmp_path):
    jobs, n_posts = Jobs(Shelf(tmp_path)), 0

    async def unlucky(route):
        nonlocal n_posts
        n_posts += 1
        if n_posts == 1:  # it ends before it answers
            await route.fetch()
            await route.abort()
        elif n_posts == 3:  # it is away, and has another file of this name and size
            await route.abort()
        elif n_posts == 5:
            await route.fulfill(status=507, body="the disk is full")
        else:
            await route.continue_()

    with opened(tmp_path) as library:
        uploads = FakeUploads(library, stop_before=0)
        async with (
            running(jobs, uploads) as queue,
            library_page(tmp_path, files=queue, may_fail=True) as page,
        ):
            await page.route(re.compile(r"/uploads\?"), unlucky)
            await page.locator("#files summary").click()
            await page.fill("#spoken", "en")
            await page.select_option("#apart", "3")
            files = [{"name": f"{name}.mp3", "mimeType": "", "buffer": b"x"} for name in "aac"]
            await page.set_input_files("#chosen", files)
            await expect(page.locator("#queue .failed")).to_have_text(
                "the disk is full", timeout=9000
            )
            assert [job.name for job in jobs.listed()] == ["a.mp3", "a.mp3"]
            await page.select_option("#apart", "2")
            await page.get_by_role("button", name="Try again: c.mp3").click()
            await expect(page.locator("#queue .failed")).to_have_count(0)
            await until(lambda: len(jobs.listed()) == 3)
            assert [job.wanted.num_speakers for job in jobs.listed()] == [3, 3, 2]
    assert n_posts == 6


async def test_the_list_of_files_comes_back_with_streamd(tmp_path):
    jobs = Jobs(Shelf(tmp_path))
    with opened(tmp_path) as library:
        uploads = FakeUploads(library, stop_before=0)
        put(jobs, "a.mp3")
        async with (
            running(jobs, uploads) as queue,
            library_page(tmp_path, files=queue, may_fail=True) as page,
        ):
            await expect(page.locator("#queue li")).to_have_count(1)
            tries = []

            async def away(route):
                tries.append(route)
                await route.abort()

            watch = "new MutationObserver(() => (n += 1)).observe(toast, {childList: true})"
            await page.evaluate(f"window.n = 0, {watch}")
            await page.route(re.compile("/uploads"), away)
            await expect(page.locator("#toast")).to_have_text("streamd cannot be reached")
            await until(lambda: len(tries) > 2)
            assert await page.evaluate("n") == 1, "it is read aloud once"
            await page.unroute_all()
            put(jobs, "b.mp3")
            await expect(page.locator("#queue li")).to_have_count(2)
