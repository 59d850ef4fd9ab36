"""Chromium for the tests of the caption page, and the events that they show there."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from streamd.events import Final, TimedWord
from tests.support.serving import CountingStreams, Relay, serving

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


async def visit(context: BrowserContext, address: str) -> tuple[Page, list[str]]:
    """The page, and what goes wrong on it from now on."""
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    await page.goto(address)
    return page, wrong


def words(text: str, start_ms: int, *, prob: float = 0.9, final: bool = True) -> tuple:
    return tuple(
        TimedWord(
            text=word,
            start_ms=start_ms + 300 * i,
            end_ms=start_ms + 300 * (i + 1),
            prob=prob,
            final=final,
        )
        for i, word in enumerate(text.split())
    )


def final(text: str, start_ms: int = 0, *, seg: int = 0, prob: float = 0.9) -> Final:
    timed = words(text, start_ms, prob=prob)
    end_ms = timed[-1].end_ms
    return Final(seg=seg, start_ms=start_ms, end_ms=end_ms, text=text, language="en", words=timed)
