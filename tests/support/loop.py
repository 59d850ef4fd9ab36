"""One turn of the event loop, for tests in which no event says that another task has run."""

from collections.abc import Iterator
from types import coroutine


@coroutine
def turn() -> Iterator[None]:
    """Let all tasks that are ready run once."""
    yield


async def turns(n: int) -> None:
    """Let all tasks that become ready run, `n` times."""
    for _ in range(n):
        await turn()
