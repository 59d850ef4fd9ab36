"""A server in front of sessions that only count frames."""

import pytest

from tests.support.serving import CountingStreams, serving


@pytest.fixture
def streams():
    return CountingStreams()


@pytest.fixture
async def server(streams):
    async with serving(streams) as running:
        yield running
