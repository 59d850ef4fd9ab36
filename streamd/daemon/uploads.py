"""Recordings that clients send, transcribed as files are, beside live captions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.offline import AudioFile, FileTranscriber
from streamd.daemon.streams import Streams
from streamd.display import open_stream
from streamd.engine import Engine
from streamd.engine.model import Model
from streamd.errors import SourceError, WireError
from streamd.events import EndReason, Eos, Final
from streamd.server import Wanted
from streamd.sources.file import FileSource


class UploadedRecording:
    """One recording, read to its end."""

    def __init__(self, transcriber: FileTranscriber, file: AudioFile, streams: Streams) -> None:
        self._transcriber, self._file, self._streams = transcriber, file, streams

    @property
    def duration_ms(self) -> int:
        """Its duration."""
        return self._file.duration_ms

    async def finals(self) -> AsyncIterator[Final]:
        """Transcribe it, window by window; raises `EngineError`."""
        windows = self._transcriber.transcribe(self._file)
        while (window := await self._streams.between(next, windows, None)) is not None:
            for final in window.finals:
                yield final


class Uploads:
    """Reads and transcribes recordings with the model that `opened` gives, step by step.

    Each step, a second of a file or one window, goes through `Streams.between`; so live captions
    wait for one step at most, and several recordings take turns.
    """

    def __init__(self, config: Config, streams: Streams) -> None:
        self._config, self._streams = config, streams
        self.opened: asyncio.Future[tuple[Model, Engine[Any]]] = asyncio.Future()
        """The model, when it is loaded; until then recordings wait."""

    async def read(self, path: str, name: str, wanted: Wanted) -> UploadedRecording:
        """Read a sound file; see `streamd.server.Recordings`."""
        opened = await asyncio.shield(self.opened)
        transcriber = await self._streams.between(self._new_transcriber, wanted, *opened)
        file = transcriber.new_file(lambda _: None)
        longest_ms = self._config.limits.max_upload_ms
        async with FileSource(path, upload=name) as source:
            async for item in source:
                await self._streams.between(file.take, item)
                if 0 < longest_ms < file.duration_ms:
                    raise WireError("too_large", f"a recording has at most {longest_ms} ms")
            file.n_padding = aiter(source).n_padding
        if not file.duration_ms:
            raise SourceError(f"{name} has no audio: record or convert it again")
        return UploadedRecording(transcriber, file, self._streams)

    def _new_transcriber(
        self, wanted: Wanted, model: Model, engine: Engine[Any]
    ) -> FileTranscriber:
        config = self._config
        choices = build.chooser(config, model)(self._streams.choices, wanted.chosen)
        temperature = wanted.temperature
        decoding = replace(
            config.decoding,
            language=choices.language,
            task=wanted.task,
            prompt=choices.prompt,
            temperature=config.decoding.temperature if temperature is None else temperature,
        )
        return FileTranscriber(replace(config, decoding=decoding), model, engine)

    def written(self, finals: Sequence[Final], form: str) -> str:
        """Return a transcript in a format of files."""
        text = StringIO()
        sink = open_stream(self._config, text, form, segments=True)
        for event in (*finals, Eos(seq=len(finals), reason=EndReason.END)):
            sink.write(event)
        sink.close()
        return text.getvalue()
