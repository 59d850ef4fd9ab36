"""Real speech and noise to measure with: sound files, what is said in them, and when.

The speech is a folder that is not part of this repository (``--data``): ``manifest.jsonl`` names
its clips (id, path, lang, text, ref_words, words as [word, start_s, end_s]), and
``streams/NAME.json`` describes ``streams/NAME.flac`` (ref_words, and segments with text and words).
The noise is made here (`noises`).
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

import channels
import dialogues
import noises
from lab.latency import SpokenWord
from streamd.cli.bench import spoken

_ROOT = Path(__file__).resolve().parents[1]
DATA = _ROOT.parent / "shared/data/eval"
_CONVERSATIONS = {
    "conversations": ("",),
    "telephone": tuple(channels.TELEPHONES),
    "room": tuple(channels.ROOMS),
}
"""Sets of all streams with turns, by the channels that they come through."""
_LANGUAGES = "languages"
"""The set of one sound, in which a clip in each language follows one in English."""
_FAR = "far"
"""The set of these streams in which each speaker in turn is far from the microphone."""
RECORDING = _ROOT / "tests/speech/recording.flac"
"""A minute of real speech that tiny.en reads well; it says nothing about accuracy."""


@dataclass(frozen=True)
class Turn:
    """What one speaker says before another one does: the text as it is printed, and its times."""

    speaker: str
    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Sound:
    """A sound file and what is said in it.

    `reference`: the spoken words, as one line; `words`: the same with their times; `passages`: the
    text as it is printed, with marks and capitals; `turns`: the same by speaker, if they are known.
    Nothing is said in noise.
    """

    name: str
    path: Path
    reference: str = ""
    words: tuple[SpokenWord, ...] = ()
    passages: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()


def clips(data: Path, language: str = "en") -> list[Sound]:
    """The clips in one language."""
    lines = (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        Sound(
            name=row["id"],
            path=data / row["path"],
            reference=row.get("ref_words", row["text"]),
            words=_timed([row]),
            passages=(row["text"],),
        )
        for row in rows
        if row["lang"] == language
    ]


def _of_all_languages(data: Path, out: Path) -> Sound:
    rows = [json.loads(line) for line in (data / "manifest.jsonl").read_text("utf-8").splitlines()]
    others = [
        clip
        for code in sorted({row["lang"] for row in rows} - {"en"})
        for clip in clips(data, code)
    ]
    spoken = [clip for pair in zip(clips(data), others, strict=False) for clip in pair]
    path = out / f"{_LANGUAGES}.flac"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(
            path, np.concatenate([soundfile.read(clip.path)[0] for clip in spoken]), 16_000
        )
    return Sound(_LANGUAGES, path, " ".join(clip.reference for clip in spoken))


def stream(data: Path, name: str) -> Sound:
    """A recording of some minutes; the part of its name before the first ``_`` suffices.

    Raises
    ------
    FileNotFoundError : there is none of this name
    """
    found = [path for path in (data / "streams").glob("*.json") if _is(path.stem, name)]
    if not found:
        raise FileNotFoundError(f"{data / 'streams'}: no stream is called {name}")
    return _described(found[0])


def streams(data: Path) -> list[Sound]:
    """All recordings of some minutes, by name."""
    return [_described(path) for path in sorted((data / "streams").glob("*.json"))]


def _described(path: Path) -> Sound:
    about = json.loads(path.read_text(encoding="utf-8"))
    return Sound(
        name=path.stem,
        path=path.with_suffix(".flac"),
        reference=about["ref_words"],
        words=_timed(about["segments"]),
        passages=tuple(segment["text"] for segment in about["segments"]),
        turns=_turns(about["segments"]),
    )


def _turns(segments: Sequence[dict[str, Any]]) -> tuple[Turn, ...]:
    return tuple(
        Turn(each["speaker"], each["text"], round(each["start"] * 1000), round(each["end"] * 1000))
        for each in segments
        if "speaker" in each
    )


def sets(names: Sequence[str], data: Path, out: Path) -> dict[str, list[Sound]]:
    """Sounds by the name of their set: ``clips``, ``noise`` (made in `out`) or a stream's name.

    ``conversations`` are all streams whose turns are known, of a folder that has single lines, too,
    or else of the one beside it that is called so; ``telephone`` and ``room`` are the same over
    three telephones and across two rooms, ``far`` the same with each speaker in turn 25 dB quieter
    than the others. ``built-4-1`` is a dialogue of 4 speakers, built from the folder's single lines
    with the seed 1 (`dialogues`). ``STREAM@CHANNEL`` is it over a telephone, across a room, in a
    crowd or turned down (`channels`). Ends the program with one line if there is no such folder,
    stream or channel.
    """
    unknown = [name for name in names if "@" in name and _channel(name) not in channels.CHANNELS]
    if unknown:
        sys.exit(f"{unknown[0]}: the channels are {', '.join(channels.CHANNELS)}")
    try:
        return {name: _set(name, data, out) for name in names}
    except FileNotFoundError as error:
        sys.exit(f"{error}; --data names the folder of recorded speech")


def _set(name: str, data: Path, out: Path) -> list[Sound]:
    if name == "clips":
        return clips(data)
    if name == _LANGUAGES:
        return [_of_all_languages(data, out)]
    if name == "noise":
        crowd = [clip.path for clip in clips(data)[:20]]
        return [Sound(path.stem, path) for path in noises.write(out / "noise", crowd)]
    if name == _FAR:
        return [
            _far(talk, who, out)
            for talk in _talks(data)
            for who in sorted({turn.speaker for turn in talk.turns})
        ]
    if name in _CONVERSATIONS:
        return [
            _through(talk, channel, out) if channel else talk
            for channel in _CONVERSATIONS[name]
            for talk in _talks(data)
        ]
    channel = _channel(name)
    plain = name.removesuffix(f"@{channel}")
    kind, *numbers = plain.split("-")
    is_built = kind == "built" and len(numbers) == 2 and all(each.isdecimal() for each in numbers)
    sound = _built(data, out, *map(int, numbers)) if is_built else stream(data, plain)
    return [_through(sound, channel, out) if channel else sound]


def _talks(data: Path) -> list[Sound]:
    folder = data if (data / "lines.jsonl").exists() else data.parent / "conversations"
    talks = [stream for stream in streams(folder) if stream.turns]
    if not talks:
        raise FileNotFoundError(f"{folder / 'streams'}: no stream has turns")
    return talks


def _far(talk: Sound, who: str, out: Path) -> Sound:
    turns = [(turn.start_ms, turn.end_ms) for turn in talk.turns if turn.speaker == who]
    path = channels.far_from(talk.path, who, turns, out / "channels")
    return replace(talk, name=path.stem, path=path)


def _through(sound: Sound, channel: str, out: Path) -> Sound:
    path = channels.write(sound.path, channel, out / "channels")
    return replace(sound, name=path.stem, path=path)


def _built(data: Path, out: Path, n_speakers: int, seed: int) -> Sound:
    path, talk = dialogues.write(data / "lines.jsonl", n_speakers, seed, out / "built")
    return Sound(
        name=path.stem,
        path=path,
        reference=" ".join(word for each in talk for word in spoken(each.text)),
        passages=tuple(each.text for each in talk),
        turns=tuple(
            Turn(each.speaker, each.text, round(each.start * 1000), round(each.end * 1000))
            for each in talk
        ),
    )


def _channel(name: str) -> str:
    return name.partition("@")[2]


def _is(stem: str, name: str) -> bool:
    return name in (stem, stem.partition("_")[0])


def _timed(rows: Iterable[dict[str, Any]]) -> tuple[SpokenWord, ...]:
    return tuple(
        SpokenWord(word, round(start_s * 1000), round(end_s * 1000))
        for row in rows
        for text, start_s, end_s in row.get("words", [])
        for word in spoken(text)
    )
