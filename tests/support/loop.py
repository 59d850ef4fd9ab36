"""The event loop in tests: turns of it, and what its debug mode prints.

Turns are for tests in which no event says that another task has run.
"""

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


def without_slow_steps(stderr: bytes) -> list[str]:
    """The lines of a program, less those in which asyncio's debug mode complains of slow steps.

    On a busy machine, steps of 100 ms are common.
    """
    lines = stderr.decode().strip().split("\n")
    return [line for line in lines if "warning: Executing" not in line]
