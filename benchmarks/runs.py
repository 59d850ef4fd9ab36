"""Runs of streamd over a sound, with everything that it said and did, kept as JSON.

A live run plays the sound to the daemon's sessions on a clock on which computing takes no time
(`lab.replay`), so that words and latencies do not depend on the machine or its load; only
the CPU time does. A run whose name begins with "offline" is what ``streamd transcribe`` does.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import run as command
from typing import Any

import msgspec

from lab.eventlog import Began, Decoded, Ended, Said
from lab.recordings import read_recording
from lab.replay import encoded_frames, replay
from sounds import Sound
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.daemon.phrases import with_vocabulary
from streamd.daemon.recording import AudioFile, FileTranscriber
from streamd.events import Final
from streamd.sources.file import FileSource
from streamd.types import Hypothesis, Window, ms_from_frames, text_of
from streamd.whisper.recognizer import Recognizer


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """A window and what the recognizer made of it, `t_ms` after the stream began.

    `prompt`, `prefix`, `draft`: what the decoder was given; `words`: text, start_ms, end_ms, prob;
    `counts`: the window and its frames that were encoded, and which attempts were tried and kept.
    """

    t_ms: float
    start_ms: int
    end_ms: int
    last: bool
    prompt: str
    prefix: str
    draft: str
    words: tuple[tuple[str, int, int, float], ...]
    suspect: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    counts: dict[str, int]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One run over one sound; one that is not `live` has no windows, and its events no times."""

    sound: str
    live: bool
    options: dict[str, str]
    commit: str
    audio_ms: int
    cpu_ms: float
    said: tuple[Said, ...]
    windows: tuple[Decoding, ...] = ()

    @property
    def finals(self) -> list[Final]:
        """What was said for good."""
        return [entry.event for entry in self.said if isinstance(entry.event, Final)]

    @property
    def text(self) -> str:
        """All finals in one line."""
        return " ".join(final.text for final in self.finals)


class Run:
    """A model with options: ``NAME`` or ``NAME:option=value;set=part.field=value,...``.

    ``field=part.attribute=value`` changes a whole number or a share that users cannot set.
    """

    def __init__(self, spec: str, model: str, folder: Path) -> None:
        """`folder`: where traces are kept, below the names of model and run."""
        self.name, _, given = spec.partition(":")
        options = dict(option.split("=", 1) for option in given.split(";") if option)
        self._options = {"model": model, "language": "en", "threads": "1"} | options
        self._folder = folder / Path(model).name / self.name
        self._opened: Any = None
        self._writer: FileTranscriber | None = None

    def traces(self, sounds: Sequence[Sound]) -> Iterator[Trace]:
        """Of each sound, from its file if it was done before.

        Raises
        ------
        SystemExit : the file is of a run with other options
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for sound in sounds:
            path = self._folder / f"{sound.name}.json"
            if not path.exists():
                trace = self._offline(sound) if self.offline else self._live(sound)
                unfinished = path.with_suffix(".new")
                unfinished.write_bytes(msgspec.json.encode(trace))
                unfinished.rename(path)
            kept = msgspec.json.decode(path.read_bytes(), type=Trace)
            if kept.options != self._options:
                raise SystemExit(f"{path} was made with other options: name the run anew")
            yield kept

    @property
    def offline(self) -> bool:
        """Whether whole recordings are transcribed."""
        return self.name.startswith("offline")

    def _open(self) -> Any:  # noqa: ANN401 - model and engine, as open_model gives them
        given: dict[str, str | list[str]] = {**self._options}
        if "set" in self._options:
            given["set"] = self._options["set"].split(",")
        given.pop("field", None)
        config = with_vocabulary(load(given, {}))
        if "field" in self._options:
            name, _, text = self._options["field"].partition("=")
            part, _, attribute = name.partition(".")
            value = type(getattr(getattr(config, part), attribute))(text)
            config = replace(config, **{part: replace(getattr(config, part), **{attribute: value})})
        self._opened = self._opened or open_model(config, wait=True)
        return config, *self._opened

    def _live(self, sound: Sound) -> Trace:
        config, model, engine = self._open()
        recording = read_recording(sound.path)
        recognizer = Traced(build.recognizer(config, model, engine), build.tokenizer(config, model))
        began = Began(
            name=sound.name,
            model=model.name,
            clock="free",
            step_ms=ms_from_frames(config.session.step) or recording.audio_ms,
            audio_ms=recording.audio_ms,
        )
        new_session = partial(build.new_session, config)
        (log,) = replay([recognizer], new_session, [recording.frames], began=began)
        (cpu_ms,) = (entry.cpu_ms for entry in log if isinstance(entry, Ended))
        decoded = [entry for entry in log if isinstance(entry, Decoded)]
        return Trace(
            sound=sound.name,
            live=True,
            options=self._options,
            commit=commit(),
            audio_ms=recording.audio_ms,
            cpu_ms=cpu_ms,
            said=tuple(entry for entry in log if isinstance(entry, Said)),
            windows=tuple(
                Decoding(t_ms=entry.t_ms, **about)
                for entry, about in zip(decoded, recognizer.windows, strict=True)
            ),
        )

    def _offline(self, sound: Sound) -> Trace:
        # one for all sounds: it compiles what it expects
        writer = self._writer = self._writer or FileTranscriber(*self._open())
        begun_s = time.process_time()
        recording = read_whole(writer, sound.path)
        finals = finals_of(writer, recording)
        ms = recording.duration_ms
        return Trace(
            sound=sound.name,
            live=False,
            options=self._options,
            commit=commit(),
            audio_ms=ms,
            cpu_ms=(time.process_time() - begun_s) * 1000,
            said=tuple(Said(t_ms=ms, heard_ms=ms, event=final) for final in finals),
        )


def read_whole(writer: FileTranscriber, path: Path) -> AudioFile:
    """A sound file, as ``streamd transcribe`` reads it; raises `SourceError`."""
    recording = writer.new_file(lambda gap: None)

    async def read() -> None:
        async with FileSource(str(path), realtime=False) as source:
            await recording.read(source)

    asyncio.run(read())
    return recording


def finals_of(writer: FileTranscriber, recording: AudioFile) -> list[Final]:
    """What is said in a recording, without the details of its tokens."""
    finals = (final for window in writer.transcribe(recording) for final in window.finals)
    return [msgspec.structs.replace(final, details=msgspec.UNSET) for final in finals]


class Traced:
    """A recognizer that keeps each window and its hypothesis in `windows`."""

    def __init__(self, recognizer: Recognizer[Any], tokenizer: Any) -> None:  # noqa: ANN401
        """`tokenizer`: to write down what the decoder is given."""
        self.windows: list[dict[str, Any]] = []
        self._recognizer, self._tokenizer = build.answering(recognizer), tokenizer

    def recognize(self, window: Window) -> Hypothesis:
        """As the recognizer does."""
        hypothesis = self._recognizer.recognize(window)
        counts = {"windows": 1, "encoded_frames": encoded_frames(window)}
        for attempt, is_kept in hypothesis.work.attempts:
            counts |= {f"{attempt} tried": 1, f"{attempt} kept": int(is_kept)}
        told = {
            name: self._tokenizer.decode(getattr(window, name))
            for name in ("prompt", "prefix", "draft")
        }
        measures = ("temperature", "avg_logprob", "no_speech_prob")
        self.windows.append(
            {
                "start_ms": ms_from_frames(window.start),
                "end_ms": ms_from_frames(window.end),
                "last": window.last,
                "words": tuple(
                    (text_of([w]), ms_from_frames(w.start), ms_from_frames(w.end), round(w.prob, 3))
                    for w in hypothesis.words
                ),
                "counts": counts,
                "suspect": hypothesis.suspect or "",
                **told,
                **{name: getattr(hypothesis, name) for name in measures},
            }
        )
        return hypothesis


def commit() -> str:
    """The repository's, with ``-dirty`` if it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return command(git, capture_output=True, text=True, check=False).stdout.strip()
