"""Models that clients name, beside the one that the server was started with.

Each is opened when it is first asked for, if there is memory for it, and computes in threads of its
own. Sessions on different models share the processor, in the order that `streamd.streams.scheduler`
describes.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar
from weakref import WeakSet

from msgspec import structs

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.opening import OpenModel, assumed_precision, open_any
from streamd.daemon.recording import RecordingTranscriber
from streamd.engines import memory
from streamd.errors import ConfigError, StreamdError, WireError, for_clients, lacks_memory
from streamd.models import ModelDimensions, store
from streamd.models.catalog import entry
from streamd.models.store.cache import places
from streamd.models.store.layouts import outline
from streamd.options import Choices
from streamd.streams import Chooser, Streams
from streamd.system.calls import in_thread
from streamd.system.heap import trim

_OPENING_S = 10.0
"""How long a session waits. Its audio is not read meanwhile, nor are the client's pings, to which
most libraries want an answer within 20 s."""
ResultT = TypeVar("ResultT")
log = logging.getLogger(__name__)


class OtherModel:
    """An open model that serves its sessions among `streams`; `close` it when nobody uses it.

    `config` names it. Raises `ConfigError` if it does not suit the options.
    """

    def __init__(self, config: Config, opened: OpenModel, n_bytes: int, streams: Streams) -> None:
        self.opened, self.n_bytes = opened, n_bytes
        self._name, self._streams = config.decoding.model, streams
        self._defaults = structs.replace(build.default_choices(config), model=self._name)
        self.users: WeakSet[RecordingTranscriber] = WeakSet()
        """For whose recordings it stays open."""
        recognizers, self._chooser = opened.recognizers()
        self._scheduler, self.serving = streams.serve(self._name, recognizers)

    async def run(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        """Call between the windows of its sessions; see `Scheduler.between`."""
        return await self._scheduler.between(call, *args)

    def choose(self, before: Choices, chosen: Mapping[str, object]) -> Choices:
        """Check what a session chooses, which may have had another model; see `Chooser`."""
        own = before if before.model == self._name else self._defaults
        return self._chooser(own, chosen)

    @property
    def is_used(self) -> bool:
        """Whether it must stay open."""
        return bool(self.users or self._streams.on(self._name))

    def close(self) -> None:
        """End its threads and processes."""
        self.serving.cancel()
        self.opened.close()


class OtherModels:
    """Opens the models that clients of `streams` name.

    All calls come from the event loop's thread.
    """

    def __init__(
        self, config: Config, streams: Streams, open_model: Callable[..., OpenModel] = open_any
    ) -> None:
        self._config, self._open_model = config, open_model
        self._streams = streams
        streams.meant, streams.open_named = self.meant, self.for_session
        self._models: dict[str, OtherModel] = {}  # the one used last is the last
        self._asked = Counter[str]()  # by requests that have no session or transcriber yet
        self._opening = asyncio.Lock()

    def names(self) -> Sequence[str]:
        """Return the names of the models on this machine that a request may have, the own first."""
        own = store.told(self._config.decoding.model)
        return [own, *dict.fromkeys(each for each in self._here() if each != own)]

    def meant(self, name: str, exactly: bool = False) -> str:
        """Return the model here that a client means; empty: the server's own.

        Clients of other services name their models, which mean the server's own. Raises `WireError`
        if it is a Whisper that is not on this machine; `exactly`: if it is any such model.
        """
        # Others call base "Systran/faster-whisper-base" or "whisper-base".
        last = name.rpartition("/")[2].removeprefix("faster-").removeprefix("whisper-")
        if not name or store.told(self._config.decoding.model) in (name, last):
            return ""
        here = self._here()  # a list, so that no request opens a path
        for each in (name, last):
            if each in here:
                return each
        if entry(last) or exactly:
            raise WireError("bad_option", f"model: {last[:100]} is not on this server")
        return ""

    @asynccontextmanager
    async def opened(self, name: str) -> AsyncIterator[OtherModel]:
        """Open one of the models that are here, which takes long for the first time.

        Raises `WireError` with `busy` if there is memory for it only without the models that others
        use at the moment, with `bad_option` if it never has room or does not suit the server's
        options.
        """
        self._asked[name] += 1
        try:
            if (model := self._computing(name)) is None:  # one that computes waits for no other
                # Whoever gives up may not be the only one who waits, and nobody else could close
                # what is being opened.
                model = await asyncio.shield(asyncio.create_task(self._opened(name)))
            self._models[name] = self._models.pop(name, model)
            yield model
        finally:
            self._asked[name] -= 1

    async def for_session(self, name: str) -> Chooser:
        """Open one of them for a session; return what checks its choices; raises as `opened`.

        Raises `WireError` with `busy`, too, if it has to be prepared first, which goes on.
        """
        try:
            async with asyncio.timeout(_OPENING_S), self.opened(name) as model:
                return model.choose
        except TimeoutError:
            again = f"model: {name} is being prepared for this machine: try again in a minute"
            raise WireError("busy", again) from None

    def close_unused(self) -> None:
        """Close the models that nobody uses: they are mapped again in a second."""
        for name in self._unused():
            self._close(name)

    def close(self) -> None:
        """Close all models."""
        for name in [*self._models]:
            self._close(name)

    def _close(self, name: str) -> None:
        self._models.pop(name).close()

    def _unused(self) -> list[str]:
        models = self._models.items()
        return [name for name, model in models if not (self._asked[name] or model.is_used)]

    def _computing(self, name: str) -> OtherModel | None:
        model = self._models.get(name)
        return None if model is None or model.serving.done() else model

    async def _opened(self, name: str) -> OtherModel:
        async with self._opening:
            if (model := self._computing(name)) is None:
                if name in self._models:
                    self._close(name)
                self._models[name] = model = await self._open(name)
        return model

    async def _open(self, name: str) -> OtherModel:
        decoding = replace(self._config.decoding, model=name)
        config = replace(self._config, decoding=decoding)
        n_bytes = self._bytes(name)
        self._make_room(name, n_bytes)
        log.info("opening %s, which a client names", name)
        opened: OpenModel | None = None
        try:
            opened = await asyncio.wrap_future(in_thread(partial(self._open_model, config)))
            return OtherModel(config, opened, n_bytes, self._streams)
        except ConfigError as error:
            if opened is not None:
                opened.close()
            raise WireError("bad_option", f"model: {error}") from None
        except (StreamdError, MemoryError, OSError) as error:
            log.error("%s: %r", name, error)  # noqa: TRY400 - the user's files, not a bug
            if lacks_memory(error):
                raise WireError("busy", f"model: no memory for {name} now") from None
            what = for_clients(f"model: {name} cannot be used", error)
            raise WireError("bad_option", what) from None

    def _make_room(self, name: str, n_bytes: int) -> None:
        """Close models that nobody uses, those used least recently first, as far as needed."""
        own = self._bytes(self._config.decoding.model)
        if not memory.has_room(own, n_bytes):
            beside = self._config.decoding.model
            raise WireError("bad_option", f"model: no memory for {name} beside {beside}")
        while not memory.has_room(own, n_bytes, *(each.n_bytes for each in self._models.values())):
            if not (unused := self._unused()):
                others = ", ".join(self._models)
                raise WireError("busy", f"model: no memory for {name} while others use {others}")
            self._close(unused[0])
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
