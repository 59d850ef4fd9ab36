"""What a client reads in another language, which whoever runs the server may offer."""

from collections.abc import Sequence
from typing import Protocol

from streamd.errors import WireError
from streamd.events import SessionEvent
from streamd.streams.hub import Hub
from streamd.streams.subscription import Subscription


class LanguageReader(Protocol):
    """Somebody who gets translations, in their subscription."""

    async def rest(self) -> Sequence[SessionEvent]:
        """Return what came after the end of the session, as soon as that is all there is."""

    def leave(self) -> None:
        """Give this reader nothing more."""


class Translating(Protocol):
    """What translates sessions into the `languages` that are offered."""

    languages: tuple[str, ...]

    def read(
        self, hub: Hub, into: str, subscription: Subscription, *, after: int | None
    ) -> LanguageReader:
        """Give a subscriber translations, with `after` also those of the finals after it.

        Raises `WireError` with `bad_option` if the language is not offered.
        """


class ChosenLanguage:
    """The language that one client has chosen, which may change at any time, or none."""

    def __init__(
        self, translating: Translating | None, hub: Hub, subscription: Subscription
    ) -> None:
        self._translating, self._hub, self._subscription = translating, hub, subscription
        self._reader: LanguageReader | None = None

    def choose(self, into: str, after: int | None) -> None:
        """Read this language from now on, or none; raises as `Translating.read` does."""
        if not into:
            self.leave()
            return
        if self._translating is None:
            raise WireError(
                "bad_option", "translate: this server was started without --translate-into"
            )
        reader = self._translating.read(self._hub, into, self._subscription, after=after)
        self.leave()
        self._reader = reader

    async def rest(self) -> Sequence[SessionEvent]:
        """Return what has to be sent before the end of the session."""
        return await self._reader.rest() if self._reader is not None else ()

    def leave(self) -> None:
        """Read nothing more."""
        if self._reader is not None:
            self._reader.leave()
            self._reader = None
