"""Chromium for the tests of the caption page, and the events that they show there."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from streamd.events import Final
from tests.support.said import spoken
from tests.support.serving import CountingStreams, Relay, serving

expect.set_options(timeout=120_000)  # a busy machine may be slow
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    "--auto-select-tab-capture-source-by-title=tone",
    "--autoplay-policy=no-user-gesture-required",
]
"""No sandbox, no traffic of its own, a microphone that beeps, and no questions: it may be used, and
so may the sound of the tab "tone"."""

HOSTILE = "<img src=x onerror=alert(1)> & <b>bold</b> --> \u202eevil"
"""What a page must show as it is."""

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("STREAMD_REQUIRE_SYSTEM"),
    reason="needs Chromium (make system-packages installs it)",
)


@asynccontextmanager
async def browser(*arguments: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, *arguments]
        )
        try:
            yield chromium
        finally:
            await chromium.close()


@asynccontextmanager
async def visit_over_a_line(
    context: BrowserContext,
) -> AsyncIterator[tuple[CountingStreams, Relay, Page]]:
    """The page, live, over a connection that can be cut."""
    streams = CountingStreams()
    async with (
        serving(streams) as server,
        Relay(server.port) as relay,
    ):
        page, _ = await visit(context, f"http://127.0.0.1:{relay.port}/")
        await expect(page.locator("#status")).to_have_text("live")
        yield streams, relay, page


@asynccontextmanager
async def visiting(
    context: BrowserContext, streams: CountingStreams, path: str = "", **options: object
) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page of a server with these sessions, and what goes wrong on it."""
    async with serving(streams, **options) as server:
        yield await visit(context, f"http://127.0.0.1:{server.port}/{path}")


async def saved(page: Page, form: str) -> str:
    """What the page saves in this format."""
    async with page.expect_download() as download:
        await page.locator(f"[data-format={form}]").evaluate("button => button.click()")
    return await asyncio.to_thread((await (await download.value).path()).read_text)


async def visit(context: BrowserContext, address: str) -> tuple[Page, list[str]]:
    """The page, and what goes wrong on it from now on."""
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    await page.goto(address)
    return page, wrong


def final(text: str, start_ms: int = 0, *, seg: int = 0, prob: float = 0.9) -> Final:
    return replace(spoken(text, start_ms=start_ms, prob=prob), seq=0, seg=seg)
