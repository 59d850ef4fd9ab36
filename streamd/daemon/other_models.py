"""Models that requests for recordings name, beside the one that the server was started with.

Each is opened when it is first asked for, if there is memory for it, and computes in a thread of
its own, so live captions share the processor with it but never wait for one of its windows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar
from weakref import WeakSet

from streamd.config import Config
from streamd.daemon.opening import OpenModel, assumed_precision, open_any
from streamd.daemon.recording import RecordingTranscriber
from streamd.engines import memory
from streamd.errors import ConfigError, StreamdError, WireError, for_clients
from streamd.models import ModelDimensions, store
from streamd.models.catalog import entry
from streamd.models.store.cache import places
from streamd.models.store.layouts import outline
from streamd.streams.inference import STEP_DEADLINES, EngineThread
from streamd.system.calls import in_thread
from streamd.system.heap import trim

_LOAD_S = 30.0
"""How long a request waits for a GPU to load the model that it names."""

ResultT = TypeVar("ResultT")
log = logging.getLogger(__name__)


class OtherModel:
    """An open model, whose calls take turns in its thread; `close` it when nobody uses it."""

    def __init__(self, opened: OpenModel, n_bytes: int, deadline_s: float) -> None:
        self.opened, self.n_bytes = opened, n_bytes
        self._n_asking = 0  # requests that have no transcriber yet
        self._users: WeakSet[RecordingTranscriber] = WeakSet()  # gone with their recordings
        self._deadline_s, self._turn, self._thread = deadline_s, asyncio.Lock(), EngineThread()

    async def run(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        """Call in the thread; return the result. Raises what the call raises, and `HangError`."""
        async with self._turn:
            done = await self._thread.run(partial(call, *args), deadline_s=self._deadline_s)
        return done.result()

    @contextmanager
    def for_request(self) -> Iterator[Self]:
        """Keep it open while a request prepares what transcribes with it."""
        self._n_asking += 1
        try:
            yield self
        finally:
            self._n_asking -= 1

    def keep_for(self, transcriber: RecordingTranscriber) -> None:
        """Keep it open as long as this exists."""
        self._users.add(transcriber)

    @property
    def is_used(self) -> bool:
        """Whether it must stay open."""
        return bool(self._n_asking or self._users)

    def close(self) -> None:
        """End its thread and processes."""
        self._thread.close()
        self.opened.close()


class OtherModels:
    """Opens the models that requests name; `known` are the phrases of all sessions.

    All calls come from the event loop's thread.
    """

    def __init__(
        self, config: Config, known: str, open_model: Callable[..., OpenModel] = open_any
    ) -> None:
        self._config, self._known, self._open_model = config, known, open_model
        self._models: dict[str, OtherModel] = {}  # the one used last is the last
        self._opening = asyncio.Lock()

    def names(self) -> Sequence[str]:
        """Return the names of the models on this machine that a request may have, the own first."""
        own = self._config.decoding.model
        return [own, *dict.fromkeys(each for each in self._here() if each != own)]

    def meant(self, name: str) -> str:
        """Return the model here that a request means; empty: the server's own.

        Clients of other services name their models, which mean the server's own, as in all other
        requests. Raises `WireError` if it is a Whisper that is not on this machine.
        """
        # Others call base "Systran/faster-whisper-base" or "whisper-base".
        last = name.rpartition("/")[2].removeprefix("faster-").removeprefix("whisper-")
        if not name or self._config.decoding.model in (name, last):
            return ""
        here = self._here()  # a list, so that no request opens a path
        for each in (name, last):
            if each in here:
                return each
        if entry(last):
            raise WireError("bad_form", f"model: {last} is not on this server")
        return ""

    @asynccontextmanager
    async def opened(self, name: str) -> AsyncIterator[OtherModel]:
        """Open one of the models that are here, which takes long for the first time.

        Raises `WireError` with `busy` if there is memory for it only without the models that others
        use at the moment, with `bad_form` if it never has room or does not suit the server's
        options.
        """
        stack = ExitStack()
        async with self._opening:
            if name not in self._models:
                self._models[name] = await self._open(name)
            self._models[name] = model = self._models.pop(name)
            stack.enter_context(model.for_request())
        with stack:
            yield model

    def close_unused(self) -> None:
        """Close the models that nobody uses: they are mapped again in a second."""
        for name in [name for name, model in self._models.items() if not model.is_used]:
            self._close(name)

    def close(self) -> None:
        """Close all models."""
        for name in [*self._models]:
            self._close(name)

    def _close(self, name: str) -> None:
        self._models.pop(name).close()

    async def _open(self, name: str) -> OtherModel:
        decoding = replace(self._config.decoding, model=name)
        config = replace(self._config, decoding=decoding)
        n_bytes = self._bytes(name)
        self._make_room(name, n_bytes)
        log.info("opening %s, which a request names", name)
        try:
            opened = await asyncio.wrap_future(
                in_thread(partial(self._open_model, config, self._known, recordings=True))
            )
            await asyncio.wrap_future(in_thread(partial(opened.wait, _LOAD_S)))
        except ConfigError as error:
            raise WireError("bad_form", f"model: {error}") from None
        except StreamdError as error:
            log.error("%s", error)  # noqa: TRY400 - the user's files, not a bug
            what = for_clients(f"model: {name} cannot be used", error)
            raise WireError("bad_form", what) from None
        deadline_s = STEP_DEADLINES * decoding.engine_deadline_ms / 1000
        return OtherModel(opened, n_bytes, deadline_s)

    def _make_room(self, name: str, n_bytes: int) -> None:
        """Close models that nobody uses, those used least recently first, as far as needed."""
        own = self._bytes(self._config.decoding.model)
        if not memory.has_room(own, n_bytes):
            beside = self._config.decoding.model
            raise WireError("bad_form", f"model: no memory for {name} beside {beside}")
        while not memory.has_room(own, n_bytes, *(each.n_bytes for each in self._models.values())):
            unused = (each for each, model in self._models.items() if not model.is_used)
            if (oldest := next(unused, None)) is None:
                others = ", ".join(self._models)
                raise WireError("busy", f"model: no memory for {name} while others use {others}")
            self._close(oldest)
            trim()

    def _here(self) -> dict[str, ModelDimensions]:
        return {name: outline.dims for name, outline in store.installed(places())}

    def _bytes(self, name: str) -> int:
        if (dims := self._here().get(name)) is not None:
            return memory.live_bytes(dims, assumed_precision(self._config))
        path = store.find(name, places())  # a file of another family, or a folder of the user's
        if path is not None and path.is_file():
            return path.stat().st_size
        return memory.live_bytes(outline(path).dims, assumed_precision(self._config)) if path else 0
