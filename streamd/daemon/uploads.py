"""Recordings that clients send: read and transcribed between the windows of live streams."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.display import open_stream
from streamd.daemon.opening import OpenModel
from streamd.daemon.other_models import OtherModels
from streamd.daemon.recording import Between, RecordingTranscriber, events_between
from streamd.errors import ConfigError, ModelError, SourceError, WireError
from streamd.events import EndReason, Eos, Final, Sound
from streamd.models.store import told
from streamd.options import Choices
from streamd.server import Recording, Wanted
from streamd.sources import Lost
from streamd.sources.confined import stranger_file
from streamd.streams import Streams
from streamd.streams.journal.journals import Journals
from streamd.system.calls import in_thread
from streamd.types import Frames

if TYPE_CHECKING:
    from streamd.library.additions import Addition

_LOAD_S = 30.0
"""How long a recording waits for a GPU to load the model that its client names."""
_MOST_OF_A_NAME = 50
"""Characters of a file's name in that of its session, which has at most 64."""
log = logging.getLogger(__name__)


class _Computing(NamedTuple):
    """What transcribes a recording, the name of its model, and how it is called."""

    model: str
    transcriber: RecordingTranscriber
    between: Between


class Uploads:
    """Reads and transcribes recordings with the model that `opened` gives, step by step.

    Each step, at most four seconds of a file or one window, goes through `Streams.between`; so live
    captions wait for one step at most, and several recordings take turns. Those whose clients name
    one of the `others` are transcribed by that, beside them. With `--keep` they go into the
    library, which is the journal of `stored`.
    """

    def __init__(
        self,
        config: Config,
        streams: Streams,
        stored: Journals | None = None,
        others: OtherModels | None = None,
    ) -> None:
        self._config, self.streams, self._stored = config, streams, stored
        self.others = others or OtherModels(config, streams)
        self._additions: WeakValueDictionary[str, Addition] = WeakValueDictionary()  # by epoch
        self.opened: asyncio.Future[OpenModel] = asyncio.Future()
        """The model, for which recordings wait."""

    async def read(self, file: int, name: str, wanted: Wanted, *, epoch: str = "") -> Recording:
        """Read a sound file; see `streamd.server.Recordings`. `epoch`: of its session, if kept."""
        await self.streams.between(lambda: None)  # raises if there is no engine
        await asyncio.shield(self.opened)
        computing = await self._computing(wanted)
        addition = self._addition(name, epoch)
        with ExitStack() as undo:
            if addition is not None:
                undo.callback(addition.discard)
            recording = await self._read(file, name, computing, addition)
            undo.pop_all()
        return recording

    async def _computing(self, wanted: Wanted) -> "_Computing":
        """Return what transcribes a recording: the server's model, or the one that it names."""
        new = self._new_transcriber
        if not (named := self.others.meant(wanted.model)):
            between, opened = self.streams.between, self.opened.result()
            name = told(self._config.decoding.model)
            return _Computing(name, await between(new, opened, wanted), between)
        async with self.others.opened(named) as other:
            await asyncio.wrap_future(in_thread(partial(other.opened.wait, _LOAD_S)))
            transcriber = await other.run(new, other.opened, wanted)
            other.users.add(transcriber)
        return _Computing(named, transcriber, other.run)

    async def check(self, wanted: Wanted) -> None:
        """Raise `WireError` if the model is open and cannot do what is wanted."""
        if self.opened.done():
            self._choices(self.opened.result(), wanted)

    def models(self) -> Sequence[str]:
        """Return the names of models that a request may have."""
        return self.others.names()

    async def _read(
        self, file: int, name: str, computing: "_Computing", addition: "Addition | None"
    ) -> Recording:
        model, transcriber, between = computing
        track = transcriber.new_file(lambda _: None)
        longest_ms = self._config.limits.max_upload_ms

        def heard(item: Frames | Lost) -> None:
            if addition is not None:
                addition.hear(item)
            if 0 < longest_ms < track.duration_ms:
                raise WireError("too_large", f"a recording has at most {longest_ms} ms")

        async with stranger_file(file, name, transcriber.languages) as source:
            await track.read(source, heard, between)
        if track.damage is not None:
            log.warning("%s", track.damage)
        if not track.duration_ms:
            raise SourceError(f"{name} has no audio: record or convert it again")
        events = events_between(between, transcriber, track)
        events = events if addition is None else addition.keeping(events)
        return Recording(track.duration_ms, events, track.warnings, model)

    def _addition(self, name: str, epoch: str) -> "Addition | None":
        if not self._config.journal.keep:
            return None
        # SQLite takes a megabyte.
        from streamd.library.additions import Addition
        from streamd.streams.journal.database import Database

        if not isinstance(self._stored, Database):
            return None
        # A client may call a file as another's session, which goes on or can be listened to.
        named = f"recording-{Path(name).name[-_MOST_OF_A_NAME:]}"
        addition = Addition(self._stored, self._config.journal, named, epoch=epoch)
        self._additions[addition.hub.epoch] = addition
        return addition

    def is_writing(self, epoch: str) -> bool:
        """Whether a recording becomes the session of this epoch. Any thread may ask."""
        addition = self._additions.get(epoch)
        return addition is not None and addition.is_open

    def _choices(self, opened: OpenModel, wanted: Wanted) -> Choices:
        try:
            return opened.chooser()(self.streams.choices, wanted.chosen)
        except (ConfigError, ModelError) as error:
            raise WireError("bad_form", str(error)) from None

    def _new_transcriber(self, opened: OpenModel, wanted: Wanted) -> RecordingTranscriber:
        choices = self._choices(opened, wanted)
        config = build.with_choices(self._config, choices, wanted.num_speakers)
        o = config.decoding
        decoding = replace(
            o,
            task=wanted.task,
            speakers=wanted.speakers or o.speakers,
            temperature=o.temperature if wanted.temperature is None else wanted.temperature,
        )
        config = replace(config, decoding=decoding)
        return opened.transcriber(config, is_alone=lambda: self.streams.are_idle)

    def written(self, events: Sequence[Final | Sound], form: str) -> str:
        """Return a transcript in a format of files."""
        text = StringIO()
        sink = open_stream(self._config, text, form, segments=True)
        seq = sum(isinstance(event, Final) for event in events)
        for event in (*events, Eos(seq=seq, reason=EndReason.END)):
            sink.write(event)
        sink.close()
        return text.getvalue()
