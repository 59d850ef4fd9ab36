"""Sends captions to the destinations of ``--to``."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamd.config import Config
from streamd.server import LIVE
from streamd.streams.hub import Hub

log = logging.getLogger(__name__)


def deliver(
    config: Config, tasks: asyncio.TaskGroup, *, end_by: Callable[[], float]
) -> Callable[[Hub], None]:
    """Return what delivers a session that begins, in tasks that end with it, or at `end_by`.

    That is the session of this machine's source, or if there is none those of clients. Raises
    `ConfigError` if a destination cannot be one; what fails later is only logged.
    """
    if not config.output.to:
        return lambda hub: None
    # Imported here because httpx2 takes long to import.
    from streamd.destinations import Delivery, opened

    def run(destination: Any, hub: Hub) -> asyncio.Task[None]:  # noqa: ANN401 - of any parts
        return tasks.create_task(Delivery(destination).run(hub, end_by=end_by))

    names = config.output.called
    outlets = [
        _Outlet(to.partition(":")[0], opened(to, config.cues, names), run)
        for to in config.output.to
    ]

    def begin(hub: Hub) -> None:
        if hub.session == LIVE or not config.input.source:
            for outlet in outlets:
                outlet.begin(hub)

    return begin


@dataclass(slots=True)
class _Outlet:
    """A destination of a kind, and the sessions that wait until it has room for them."""

    kind: str
    new: Callable[[], Any]
    run: Callable[[Any, Hub], asyncio.Task[None]]
    waiting: list[Hub] = field(default_factory=list)
    is_taken: bool = False

    def begin(self, hub: Hub) -> None:
        self.waiting = [*(each for each in self.waiting if not each.closed), hub]
        self.fill()
        if self.waiting:
            log.warning("session %s waits: --to %s has another one", hub.session, self.kind)

    def fill(self) -> None:
        while self.waiting and not self.is_taken:
            if not (hub := self.waiting.pop(0)).closed:
                destination = self.new()
                self.is_taken = not destination.tells_sessions_apart
                self.run(destination, hub).add_done_callback(self.end)

    def end(self, done: asyncio.Task[None]) -> None:
        self.is_taken = False
        if not done.cancelled():
            self.fill()
