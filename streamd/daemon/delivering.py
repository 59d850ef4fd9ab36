"""Sends the captions of this machine's source to the destinations of ``--to``."""

import asyncio
from collections.abc import Callable

from streamd.config import Config
from streamd.labels import names_of
from streamd.streams.hub import Hub


def deliver(
    config: Config, hub: Hub, tasks: asyncio.TaskGroup, *, end_by: Callable[[], float]
) -> None:
    """Deliver a session in tasks of their own, each of which ends with it, or at `end_by`.

    Raises `ConfigError` if a destination cannot be one; what fails later is only logged.
    """
    if not config.output.to:
        return
    # Imported here because httpx2 takes long to import.
    from streamd.destinations import Delivery, opened

    names = names_of(config.output.names)
    for destination in [opened(to, config.cues, names) for to in config.output.to]:
        tasks.create_task(Delivery(destination).run(hub, end_by=end_by))
