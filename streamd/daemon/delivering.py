"""Sends captions to the destinations of ``--to``."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from streamd.config import Config
from streamd.labels import names_of
from streamd.server import LIVE
from streamd.streams.hub import Hub

log = logging.getLogger(__name__)


class Deliveries:
    """Delivers sessions in tasks of their own, each of which ends with its session, or at `end_by`.

    That is the session of this machine's source, or if there is none those of clients. What fails
    later than here is only logged. Raises `ConfigError` if a destination cannot be one.
    """

    def __init__(
        self, config: Config, tasks: asyncio.TaskGroup, *, end_by: Callable[[], float]
    ) -> None:
        self._tasks, self._end_by = tasks, end_by
        self._has_source = config.input.source
        self._new: list[Callable[[], Any]] = []
        self._has: dict[int, str] = {}  # which session each has that tells none apart
        if config.output.to:
            # Imported here because httpx2 takes long to import.
            from streamd.destinations import opened

            names = names_of(config.output.names)
            self._new = [opened(to, config.cues, names) for to in config.output.to]

    def begin(self, hub: Hub) -> None:
        """Deliver a session from now on; to what takes one at a time, unless it has another one."""
        if not self._new or (self._has_source and hub.session != LIVE):
            return
        from streamd.destinations import Delivery

        for n, new in enumerate(self._new):
            destination, other = new(), self._has.get(n)
            if other is not None:
                what = "session %s is not sent to %s, which gets session %s"
                log.warning(what, hub.session, destination.name, other)
                continue
            running = self._tasks.create_task(Delivery(destination).run(hub, end_by=self._end_by))
            if not destination.tells_sessions_apart:
                self._has[n] = hub.session
                running.add_done_callback(partial(lambda n, _: self._has.pop(n), n))
