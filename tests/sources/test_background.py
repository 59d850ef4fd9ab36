import asyncio
import threading

import pytest

from streamd.sources import Background
from tests.support.loop import turn


def fail():
    raise OSError("disk")


async def test_the_result_or_the_error_comes_back():
    background = Background()
    assert await background.run(lambda: 7) == 7
    with pytest.raises(OSError, match="disk"):
        await background.run(fail)
    assert await background.run(lambda: 8) == 8


async def test_a_cancelled_caller_leaves_its_result_to_the_next():
    background = Background()
    may_end = threading.Event()
    first = asyncio.ensure_future(background.run(lambda: may_end.wait() and "first"))
    await turn()
    first.cancel()
    await asyncio.wait([first])
    may_end.set()
    assert await background.run(lambda: "second") == "first"
    assert await background.run(lambda: "second") == "second"


async def test_join_waits_for_what_nobody_will_fetch():
    background = Background()
    may_end = threading.Event()
    caller = asyncio.ensure_future(background.run(lambda: may_end.wait() and fail()))
    await turn()
    caller.cancel()
    await asyncio.wait([caller])
    may_end.set()
    await background.join()
    await background.join()
    assert await background.run(lambda: 1) == 1
