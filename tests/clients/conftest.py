"""A browser for the tests of a module, and a fresh window for each."""

import pytest
import pytest_asyncio

from tests.support.browser import browser
from tests.support.serving import CountingStreams


@pytest.fixture
def streams():
    return CountingStreams()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    """One browser for all tests, since it takes seconds to start."""
    async with browser() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def context(chromium):
    """A window of its own for each test, without anything stored."""
    fresh = await chromium.new_context(viewport={"width": 1280, "height": 800})
    yield fresh
    await fresh.close()
