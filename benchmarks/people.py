"""How well a voice that is kept is known again: false acceptance against miss.

    python benchmarks/people.py --lines LINES.jsonl [MANIFEST.jsonl...] [--enrol S] [--seed N]
                                [--channels NAME...] [-m MODEL]

LINES are as for ``speakers.py``; a MANIFEST has single clips with ``path``, ``speaker`` and
``duration_s``. What a speaker says is divided into two sessions, of different scenes where these
are known, and of different recordings always. The first gives the voice that is kept, from at most
``--enrol`` seconds of speech; of the second, pieces of 1.5, 3 and 6 s of speech are heard as live
captions hear them (`streamd.engines.voices.hear`), and compared with every voice that is kept. Half
of the speakers are those that the thresholds of `streamd.speakers.people` were chosen with; the
other half judges. With ``--channels``, the second session is over a telephone or in a room
(`channels`): the voice that is kept is clean, and as `in_room` makes it. Two voices are compared
only if they are of one kind of recording: a channel is told apart more easily than a voice. The
unnamed persons of one game count as themselves only: one actor has several of them (up to 0.73 is
the cosine of two, as of one voice). Prints a line of JSON for each length and half: the miss at
a false acceptance of 0.3, 1, 3 and 10 %, with the thresholds, and both at the threshold in use.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

import channels
from dialogues import _ONE_VOICE, UNNAMED, _decoded
from streamd.config import Config, load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engines.voices import Listener, hear, in_room
from streamd.events import SpeakerName
from streamd.speakers import HearingSteps, Roster
from streamd.speakers.people import Person, likeness_of, threshold
from streamd.system.processor import machine
from streamd.types import FRAME, SAMPLE_RATE, Frames

LENGTHS_S = (1.5, 3.0, 6.0)
RATES = (0.003, 0.01, 0.03, 0.1)
PAUSE = np.zeros(SAMPLE_RATE // 2, np.float32)
_MOST_PIECES = 12
"""Of a speaker and a length: some have hundreds of lines."""


class Print(NamedTuple):
    """A voice: who it is, the kind of recording, what is kept of it, and of how many frames.

    Of one that is kept, there is `in_room`, too.
    """

    speaker: str
    kind: str
    data: bytes
    n: int
    in_room: bytes = b""


def clips(lines: Path, manifests: Sequence[Path]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return what each speaker says, by name and kind of recording."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in (lines, *manifests):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            speaker = line["speaker"]
            if speaker in {"unknown", "pv", "en", *_ONE_VOICE}:  # of several people, or one twice
                continue
            kind = line.get("game") or "reading"
            whole = [0.0, line.get("duration_s", 0.0)]
            each = {"path": path.parent / line["path"], "speech": line.get("speech", whole)}
            each["scene"] = line.get("scene") or line["path"]
            found.setdefault((speaker, kind), []).append(each)
    return found


def sessions(said: Sequence[dict[str, Any]], rng: np.random.Generator) -> list[list[Any]]:
    """Divide what somebody says into two sessions: of different scenes, if there are several."""
    by_scene = [[*each] for _, each in groupby(sorted(said, key=_scene), key=_scene)]
    if len(by_scene) < 2:
        by_scene = [[each] for each in said]
    halves: list[list[Any]] = [[], []]
    for scene in (by_scene[i] for i in rng.permutation(len(by_scene))):
        halves.sort(key=_seconds)
        halves[0] += scene
    return sorted(halves, key=_seconds, reverse=True)


def _scene(line: dict[str, Any]) -> str:
    return str(line["scene"])


def _seconds(said: Sequence[dict[str, Any]]) -> float:
    return sum(each["speech"][1] - each["speech"][0] for each in said)


def speech(line: dict[str, Any]) -> NDArray[np.float32]:
    """Return a line without the silence around it."""
    first, after = (round(SAMPLE_RATE * at) for at in line["speech"])
    return _decoded(line["path"])[first:after]


def pieces(said: Sequence[Any], length_s: float, most: int) -> Iterator[NDArray[np.float32]]:
    """Yield pieces of speech of one length; shorter lines follow each other after a pause."""
    n, piece, n_yielded = round(length_s * SAMPLE_RATE), [], 0
    left = n
    for line in said:
        sound = speech(line)[:left]
        piece += [sound, PAUSE]
        left -= len(sound)
        if left <= 0:
            yield np.concatenate(piece)
            piece, left, n_yielded = [], n, n_yielded + 1
            if n_yielded == most:
                return


def heard(sound: NDArray[np.float32]) -> tuple[bytes, int] | None:
    """Return what is known of who says most of a sound, heard as live captions hear it."""
    sound = np.concatenate([PAUSE, sound, PAUSE, PAUSE])
    frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME)
    gate, steps, roster = build.gate(Config()), HearingSteps(), Roster()
    for end, frame in enumerate(frames, 1):
        (decided,) = gate.feed(frame[None])
        steps.push(end, decided.silence, decided.late)
        for step in steps.take(end):
            hear(roster, step, sound, start=0)
    known = max(roster.prints, key=lambda each: each[1], default=None)
    return known if known and known[1] else None


def through(sound: NDArray[np.float32], channel: str) -> NDArray[np.float32]:
    """Return a sound as it is heard over a telephone or in a room; no channel: as it is."""
    if not channel:
        return sound
    way = channels.room if channel in channels.ROOMS else channels.telephone
    return way(sound.astype(np.float64), channel).clip(-1, 1).astype(np.float32)


def prints(
    found: dict[tuple[str, str], list[dict[str, Any]]],
    enrol_s: float,
    seed: int,
    ways: Sequence[str],
) -> tuple[list[Print], dict[tuple[str, float], list[Print]]]:
    """Return the voices that are kept, and those of the pieces, by their channel and length."""
    kept: list[Print] = []
    tried: dict[tuple[str, float], list[Print]] = {key: [] for key in product(ways, LENGTHS_S)}
    rng = np.random.default_rng(seed)
    for (speaker, kind), said in sorted(found.items()):
        first, second = sessions(said, rng)
        whole = min(enrol_s, _seconds(first))
        if whole >= LENGTHS_S[1]:
            for piece in pieces(first, whole - 0.05, 1):
                known, far = heard(piece), heard(in_room(piece))
                kept += [Print(speaker, kind, *known, far[0] if far else b"")] if known else []
        for (channel, length_s), of in tried.items():
            for piece in pieces(second, length_s, _MOST_PIECES):
                known = heard(through(piece, channel))
                of += [Print(speaker, kind, *known)] if known else []
    return kept, tried


def delays(
    kept: Sequence[Print], found: dict[tuple[str, str], list[dict[str, Any]]], seed: int, model: str
) -> Iterator[float]:
    """Yield for each voice that is kept how much of 6 s of speech came before the name; 99: all.

    It is captioned live, on a clock on which computing takes no time.
    """
    config = load({"model": model, "language": "en", "speakers": "true"}, {})
    listener = Listener(build.recognizer(config, *open_model(config, wait=True)))
    people = [Person(each.speaker, each.data, each.n, each.in_room) for each in kept]
    rng = np.random.default_rng(seed)
    second = {key: sessions(said, rng)[1] for key, said in sorted(found.items())}
    for voice in kept:
        piece = next(pieces(second[voice.speaker, voice.kind], LENGTHS_S[-1], 1), None)
        if piece is None:
            continue
        session: Any = build.new_session(config)
        session.meet(people)
        frames = piece[: len(piece) // FRAME * FRAME].reshape(-1, FRAME)
        yield _named_after(session, frames, listener, voice.speaker)


def _named_after(session: Any, frames: Frames, listener: Listener, name: str) -> float:  # noqa: ANN401
    for at in range(0, len(frames), 5):
        events = [*session.feed(frames[at : at + 5])]
        while (window := session.next_window()) is not None:
            events += session.accept(window, listener.recognize(window))
        if any(isinstance(event, SpeakerName) and event.name == name for event in events):
            return (at + 5) * FRAME / SAMPLE_RATE
    return 99.0


def compared(kept: Sequence[Print], tried: Sequence[Print]) -> dict[str, Any]:
    """Return miss and false acceptance."""
    same, other, labelled, at = [], [], [], {"miss": 0, "accepted": 0}
    for piece in tried:
        for voice in kept:
            is_same = voice.speaker == piece.speaker
            is_unsure = any(each.speaker.startswith(UNNAMED) for each in (voice, piece))
            if voice.kind != piece.kind:
                continue
            own = (voice.data, voice.in_room) if voice.in_room else (voice.data,)
            score = max(likeness_of(each, piece.data) for each in own)
            is_known = score >= threshold(piece.n)
            labelled += [] if is_same else [is_known]
            if is_unsure and not is_same:
                continue
            (same if is_same else other).append(score)
            at["miss"] += is_same and not is_known
            at["accepted"] += not is_same and is_known
    own, others = np.array(same), np.sort(other)[::-1]
    curve = {}
    for rate in RATES:
        least = others[min(len(others) - 1, int(rate * len(others)))]
        miss = round(100 * float((own <= least).mean()), 1)
        curve[f"{100 * rate:g}"] = {"miss": miss, "threshold": round(float(least), 3)}
    return {
        "same": len(own),
        "others": len(others),
        "curve": curve,
        "miss": round(100 * at["miss"] / len(own), 1),
        "accepted": round(100 * at["accepted"] / len(others), 2),
        "accepted_as_labelled": round(100 * float(np.mean(labelled)), 2),
        "frames": int(np.median([piece.n for piece in tried])),
    }


def main() -> None:
    """Hear all speakers, and compare them by halves."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("manifests", nargs="*", type=Path)
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--enrol", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--channels", nargs="+", default=[""])
    parser.add_argument("-m", "--model", help="caption, too: how soon a name comes")
    args = parser.parse_args()
    found = clips(args.lines, args.manifests)
    print(json.dumps({"machine": msgspec.to_builtins(machine()), "speakers": len(found)}))
    kept, tried = prints(found, args.enrol, args.seed, args.channels)
    if args.model:
        waits = sorted(delays(kept, found, args.seed, args.model))
        soon = sum(wait <= 3 for wait in waits)
        facts = {"voices": len(waits), "median_s": waits[len(waits) // 2], "within_3_s": soon}
        print(json.dumps(facts | {"not": sum(wait == 99 for wait in waits)}), flush=True)
    names = sorted({voice.speaker for voice in kept})
    order = np.random.default_rng(args.seed).permutation(len(names))
    for half, chosen in (("design", order[::2]), ("judge", order[1::2])):
        inside = {names[i] for i in chosen}
        voices = [each for each in kept if each.speaker in inside]
        for (channel, length_s), of in tried.items():
            own = [each for each in of if each.speaker in inside]
            facts = {"half": half, "speech_s": length_s, "kept": len(voices), "channel": channel}
            print(json.dumps(facts | compared(voices, own)), flush=True)


if __name__ == "__main__":
    main()
