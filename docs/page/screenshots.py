"""Make the pictures of docs/recipes.md with the package's environment and Chromium.

A daemon captions the recording of `make demo`; the browser looks at it, at the same moment each
time. `made-from.txt` says of what, so that a test fails when the page or the recording has changed.
"""

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

HERE = Path(__file__).parent
STREAMD = Path(sys.executable).with_name("streamd")
RECORDING = HERE.parents[1] / "tests" / "speech" / "demo.flac"
START_S = 5
MOMENT = "leisure"
"""The word of the recording, half a minute from its beginning, at which they are made."""
PICTURE = "linear-gradient(#6fa3cf, #dfe9ee 52%, #5d7a3e 53%, #2f4426)"
"""What the overlay lies over, in place of a film: a sky and a meadow."""
ADDRESS = "http://127.0.0.1:8790"
MADE_FROM = HERE / "made-from.txt"


def shown() -> str:
    """The digest of all that is seen in the pictures: the page, the recording, this script."""
    page = sorted((HERE.parents[1] / "clients" / "web").iterdir())
    digest = hashlib.sha256()
    for path in (*page, RECORDING, Path(__file__)):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()}\n"


async def main() -> None:
    """All pictures, in the time that the recording takes to that moment."""
    from playwright.async_api import async_playwright  # here, since a test needs no browser

    daemon = await asyncio.create_subprocess_exec(
        *[STREAMD, "-m", "tiny.en", "--port", "8790", str(RECORDING)],
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )

        async def visit(path: str, width: int, height: int, *, scheme: str = "dark") -> "Page":
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = await context.new_page()
            await page.goto(ADDRESS + path)
            return page

        async def press(page: "Page", button: str) -> None:
            await page.evaluate(f"document.getElementById('{button}').click()")

        await asyncio.sleep(START_S)
        dark = await visit("/", 1280, 720)
        light = await visit("/", 1280, 720, scheme="light")
        await press(light, "confidence")
        phone = await visit("/", 390, 780)
        contrast = await visit("/", 1280, 720)
        for button in ("contrast", "larger", "larger"):
            await press(contrast, button)
        overlay = await visit("/overlay?size=44", 1280, 360)
        # Not a style sheet, which the page's security policy forbids.
        await overlay.evaluate(f"document.documentElement.style.background = '{PICTURE}'")
        pictures = {
            "dark": dark,
            "light": light,
            "phone": phone,
            "contrast": contrast,
            "overlay": overlay,
        }
        await dark.locator("#text").filter(has_text=MOMENT).wait_for(timeout=120_000)
        await overlay.locator("#lines p").nth(1).wait_for(timeout=30_000)
        for name, page in pictures.items():
            await page.screenshot(path=HERE / f"{name}.png")
        await browser.close()
    daemon.terminate()
    await daemon.wait()
    MADE_FROM.write_text(shown(), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
