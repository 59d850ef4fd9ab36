"""Dialogues built from LibriSpeech clips, as sounds that `speakers.py` measures.

    python benchmarks/readers.py CLIPS OUT [--half design|judge|fresh] [--only guests|rooms]

CLIPS has clips SPEAKER-CHAPTER-NUMBER.flac anywhere below it, and SPEAKERS.TXT, which says the
sexes. (The samples in the repository Resemblyzer do: 260 speakers, CC BY 4.0.) Clips are cut at
pauses; the pieces of several speakers are put in turn, one turn in eight beginning before the end
of the one before. OUT gets NAME.flac and NAME.json: telephone calls of two people whose sexes are
alike, rooms, meetings in which one says little, and people alone. No speaker of the half
``design``, which numbers were chosen with, is in the half ``judge``. Speakers whom neither has are
``fresh``: they speak over other codecs and in another room. With ``--only guests``, two people talk
for four minutes, and somebody else says about ten words in one to three turns (NAME.json says who);
with ``--only rooms``, one, two and four people are in three kinds of room. There are no texts. The
packages scipy and pyroomacoustics have to be installed (the groups ``speakers`` and ``rooms``).
"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import butter, sosfilt

import channels

RATE, FRAME = channels.SAMPLE_RATE, 320
LONGEST_S = 100
"""The length of dialogues of speakers with several clips; others end when nothing is left."""
HALVES = ("design", "judge", "fresh")
WITH_GUEST_S, N_GUESTS = 240, 7
"""The length of a dialogue with a guest, and how many are built for each channel."""

Sound = NDArray[np.floating[Any]]
Said = tuple[float, float, str]
"""Start and end in s, and the speaker."""


class Plan(NamedTuple):
    """What to build: `count` dialogues of `n` speakers, who have one clip or `several`."""

    channel: str
    name: str
    count: int
    n: int
    several: bool = False


FRESH = (
    Plan("voip", "2same", 12, 2),
    Plan("voip", "3", 5, 3),
    Plan("office", "2same", 4, 2),
    Plan("office", "4few", 2, 4),
    Plan("clean", "2same", 4, 2),
    Plan("clean", "3few", 3, 3),
    Plan("clean", "8", 3, 8),
    Plan("voip", "1short", 3, 1),
    Plan("office", "1short", 3, 1),
)
PLANS = (
    Plan("phone", "2same", 10, 2),
    Plan("phone", "2opp", 3, 2),
    Plan("clean", "2same", 4, 2),
    Plan("room", "2same", 4, 2),
    Plan("clean", "3few", 3, 3),
    Plan("room", "4few", 3, 4),
    Plan("clean", "4", 2, 4),
    Plan("phone", "3", 2, 3),
    Plan("clean", "8", 1, 8),
    Plan("room", "6", 1, 6),
    Plan("phone", "1", 2, 1, several=True),
    Plan("clean", "1", 2, 1, several=True),
    Plan("room", "1", 1, 1, several=True),
    Plan("phone", "2long", 2, 2, several=True),
    Plan("room", "3long", 1, 3, several=True),
    Plan("clean", "1short", 3, 1),
    Plan("phone", "1short", 3, 1),
)


def pieces(clip: Path, rng: np.random.Generator) -> list[Sound]:
    """Cut a clip at pauses, equally loud, into pieces of at least 0.5 s."""
    sound, _ = soundfile.read(clip, dtype="float32")
    sound = sound / np.sqrt((sound**2).mean()) * 0.06
    frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME)
    levels = 10 * np.log10((frames**2).mean(1) + 1e-9)
    spoken = levels > np.percentile(levels, 95) - 28
    found, begin, silent = [], -1, 0
    for at, speaks in enumerate(spoken):
        if speaks:
            begin, silent = at if begin < 0 else begin, 0
        elif begin >= 0:
            silent += 1
            if silent >= 8 and (at - silent - begin) * 0.02 >= rng.choice([0.7, 1.2, 2.0, 3.0]):
                found.append((begin, at - silent + 1))
                begin = -1
    if begin >= 0 and (len(spoken) - begin) * 0.02 > 0.5:
        found.append((begin, len(spoken)))
    return [sound[max(0, first - 2) * FRAME : (after + 2) * FRAME] for first, after in found]


def built(
    left: dict[str, list[Sound]], rng: np.random.Generator, longest_s: float
) -> tuple[Sound, list[Said]]:
    """Put what speakers have `left` to say in turn."""
    sound, end, last = np.zeros(RATE * 400, np.float32), 0.5, ""
    said: list[Said] = []
    while end < longest_s:
        able = [name for name in left if left[name] and name != last]
        if not (able := able or [name for name in left if left[name]]):
            break
        weights = np.array([sum(map(len, left[name])) for name in able], float)
        last = able[rng.choice(len(able), p=weights / weights.sum())]
        overlaps = said and rng.random() < 0.12
        end = turn(sound, said, left, last, bool(overlaps), rng)
    n = round(RATE * (end + 1))
    return sound[:n] + 1e-5 * rng.standard_normal(n).astype(np.float32), said


def add(sound: Sound, said: list[Said], part: Sound, start: float, who: str) -> float:
    """Have somebody say a part, not before the last one has begun; return its end in s."""
    start = max(start, said[-1][0] + 0.2 if said else 0)
    first = round(RATE * start)
    sound[first : first + len(part)] += part
    said.append((start, start + len(part) / RATE, who))
    return said[-1][1]


def turn(
    sound: Sound,
    said: list[Said],
    left: dict[str, list[Sound]],
    who: str,
    overlaps: bool,
    rng: np.random.Generator,
) -> float:
    """Have somebody say one to three pieces; return their end in s."""
    end = said[-1][1] if said else 0.5
    for i in range(min(rng.integers(1, 4), len(left[who]))):
        if overlaps and not i:
            start = end - rng.uniform(0.2, 0.6)
        else:
            start = end + (rng.uniform(0.1, 0.35) if i else rng.uniform(0.05, 0.8))
        end = add(sound, said, left[who].pop(0), start, who)
    return end


def with_guest(
    channel: str, half: str, seed: int, clips: dict[str, list[Path]], sexes: dict[str, str]
) -> tuple[str, Sound, list[Said]]:
    """Build a dialogue with a guest of the sex of one of the others; return who it is, too."""
    kind = int(hashlib.md5(channel.encode()).hexdigest()[:6], 16)
    rng = np.random.default_rng([HALVES.index(half), seed, kind])
    names = half_of(half, clips, sexes)
    hosts = rng.choice([name for name in names if len(clips[name]) > 1], 2, replace=False)
    like = {sexes[host] for host in hosts}
    guests = [name for name in names if len(clips[name]) == 1 and sexes[name] in like]
    guest = str(rng.choice(guests))
    left = {str(host): [p for clip in clips[host] for p in pieces(clip, rng)] for host in hosts}
    theirs = [part for clip in clips[guest] for part in pieces(clip, rng)]
    lengths_s = [2.0] * (1 + seed % 3) if seed % 3 else [3.2]
    visits = [each for s in lengths_s if len(each := visit(theirs, s, rng))]
    times = [WITH_GUEST_S * (i + 1) / (len(visits) + 1) for i in range(len(visits))]
    sound, end, last = np.zeros(RATE * 300, np.float32), 0.5, ""
    said: list[Said] = []
    while end < WITH_GUEST_S:
        if times and end > times[0]:
            times.pop(0)
            end = add(sound, said, visits.pop(0), end + rng.uniform(0.05, 0.8), guest)
            continue
        able = [name for name in left if left[name] and name != last]
        if not (able := able or [name for name in left if left[name]]):
            break
        last = able[rng.integers(len(able))] if len(able) > 1 else able[0]
        overlaps = said and said[-1][2] != guest and rng.random() < 0.12
        end = turn(sound, said, left, last, bool(overlaps), rng)
    n = round(RATE * (end + 1))
    clean = sound[:n] + 1e-5 * rng.standard_normal(n).astype(np.float32)
    return guest, through(clean, channel, rng), said


def in_rooms(half: str, clips: dict[str, list[Path]]) -> Iterator[tuple[str, Sound, list[Said]]]:
    """Build dialogues of one, two and four people in rooms, each with its name."""
    of, choice = half_of(half, clips, {}), np.random.default_rng(HALVES.index(half) + 50)
    several = [name for name in of if len(clips[name]) > 1]
    single = [name for name in of if len(clips[name]) == 1]
    for room in ("hall", "far", "lounge"):
        for kind, count, names, n, longest_s in (
            ("1", 2, several, 1, 70),
            ("2", 2, several, 2, 80),
            ("2s", 3, single, 2, np.inf),
            ("4s", 2, single, 4, np.inf),
        ):
            for seed in range(count):
                who = choice.choice(names, n, replace=False).tolist()
                rng = np.random.default_rng([7, seed, len(kind)])
                left = {
                    name: [p for clip in clips[name] for p in pieces(clip, rng)] for name in who
                }
                sound, said = built(left, rng, longest_s)
                heard = np.clip(channels.room(sound.astype(np.float64), room), -1, 1)
                noise = 0.5 * 10 ** (-55 / 20) * rng.standard_normal(len(heard))
                yield f"{room}-{kind}-{seed}", heard + noise, said


def visit(left: list[Sound], length_s: float, rng: np.random.Generator) -> Sound:
    """Return a turn of about that length of what a guest has `left` to say, if that is enough."""
    parts: list[Sound] = []
    n = 0
    while left and n < 0.75 * length_s * RATE:
        part = left.pop(0)[: round(1.2 * length_s * RATE)]
        pause = 1e-5 * rng.standard_normal(round(0.2 * RATE)).astype(np.float32)
        parts, n = [*parts, part, pause], n + len(part)
    if n <= 0.7 * RATE:
        return np.zeros(0, np.float32)
    return np.concatenate(parts[:-1])[: round(1.3 * length_s * RATE)]


def through(sound: Sound, channel: str, rng: np.random.Generator) -> Sound:
    """The sound over some telephone, or in some room."""
    if channel == "phone":
        narrow = sosfilt(butter(4, [300, 3400], "bandpass", fs=RATE, output="sos"), sound)
        loud = np.clip(narrow * rng.uniform(0.5, 1.5), -1, 1)
        heard = channels.telephone(loud, str(rng.choice(["g711", "gsm", "amr"])))
        return heard + 10 ** (-rng.uniform(45, 60) / 20) * rng.standard_normal(len(heard))
    if channel == "voip":
        heard = channels.telephone(sound.astype(np.float64), str(rng.choice(["opus", "amr475"])))
        return heard + 10 ** (-rng.uniform(45, 60) / 20) * rng.standard_normal(len(heard))
    if channel in ("room", "office"):
        names = ["office"] if channel == "office" else ["table", "hall"]
        heard = channels.room(sound.astype(np.float64), str(rng.choice(names)))
        return np.clip(heard, -1, 1) + 0.5 * 10 ** (-55 / 20) * rng.standard_normal(len(heard))
    return sound


def chosen(
    plan: Plan, names: list[str], sexes: dict[str, str], seed: int, rng: np.random.Generator
) -> list[str]:
    """Choose the speakers of a dialogue."""
    mixed = [*names]
    rng.shuffle(mixed)
    if plan.name == "2same":
        mixed = [name for name in mixed if sexes[name] == "FM"[seed % 2]]
    if plan.name == "2opp":
        mixed = [next(name for name in mixed if sexes[name] == sex) for sex in "FM"]
    return mixed[: plan.n]


def cast(
    plan: Plan, half: str, seed: int, clips: dict[str, list[Path]], sexes: dict[str, str]
) -> tuple[list[str], np.random.Generator]:
    """Return the speakers of a dialogue, and the generator of everything else in it."""
    kind = int(hashlib.md5((plan.channel + plan.name).encode()).hexdigest()[:6], 16)
    rng = np.random.default_rng([HALVES.index(half), seed, kind])
    names = half_of(half, clips, sexes)
    names = [name for name in names if (len(clips[name]) > 1) == plan.several]
    return chosen(plan, names, sexes, seed, rng), rng


def dialogue(
    plan: Plan, half: str, seed: int, clips: dict[str, list[Path]], sexes: dict[str, str]
) -> tuple[Sound, list[Said]]:
    """Build a dialogue of a plan."""
    names, rng = cast(plan, half, seed, clips, sexes)
    left = {name: [each for clip in clips[name] for each in pieces(clip, rng)] for name in names}
    if plan.name.endswith("few"):  # the last one says 3 to 7 s in all
        starts = np.cumsum([0, *map(len, left[names[-1]])]) / RATE
        every = zip(starts[:-1], left[names[-1]], strict=True)
        left[names[-1]] = [part[: 4 * RATE] for start, part in every if start < 3]
    sound, said = built(left, rng, LONGEST_S if plan.several else np.inf)
    return through(sound, plan.channel, rng), said


def half_of(half: str, clips: dict[str, list[Path]], sexes: dict[str, str]) -> list[str]:
    """Return the speakers of a half; `fresh` are those whom no dialogue of the two halves has."""
    if half != "fresh":
        of = HALVES.index(half)
        return [name for name in clips if int(hashlib.md5(name.encode()).hexdigest(), 16) % 2 == of]
    every = ((plan, which, n) for which in HALVES[:2] for plan in PLANS for n in range(plan.count))
    used = {name for each in every for name in cast(*each, clips, sexes)[0]}
    return [name for name in clips if name not in used]


def dialogues(
    half: str, only: str | None, clips: dict[str, list[Path]], sexes: dict[str, str]
) -> Iterator[tuple[str, Sound, list[Said], str]]:
    """Build the dialogues of a half, each with its name and the guest, if there is one."""
    if only == "guests":
        for seed, channel in product(range(N_GUESTS), ("clean", "phone", "room")):
            guest, sound, said = with_guest(channel, half, seed, clips, sexes)
            yield f"{channel}-guest{1 + seed % 3}-{seed}", sound, said, guest
    elif only == "rooms":
        for each in in_rooms(half, clips):
            yield *each, ""
    else:
        for plan in FRESH if half == "fresh" else PLANS:
            for seed in range(plan.count):
                name = f"{plan.channel}-{plan.name}-{seed}"
                yield name, *dialogue(plan, half, seed, clips, sexes), ""


def main() -> None:
    """Build the dialogues of one half or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--only", choices=("guests", "rooms"))
    args = parser.parse_args()
    lines = next(args.clips.rglob("SPEAKERS.TXT")).read_text(encoding="utf-8").splitlines()
    rows = [[field.strip() for field in line.split("|")] for line in lines if line[0] != ";"]
    sexes = {row[0]: row[1] for row in rows}
    clips: dict[str, list[Path]] = {}
    for path in sorted(args.clips.rglob("*-*-*.flac")):
        clips.setdefault(path.name.partition("-")[0], []).append(path)
    args.out.mkdir(parents=True, exist_ok=True)
    for half in (args.half,) if args.half else HALVES:
        for name, sound, said, guest in dialogues(half, args.only, clips, sexes):
            path = args.out / f"{half}-{name}.flac"
            soundfile.write(path, np.clip(sound, -1, 1), RATE)
            segments = [
                {"start": start, "end": end, "speaker": who, "ref_words": ""}
                for start, end, who in said
            ]
            facts = {"segments": segments} | ({"guest": guest} if guest else {})
            path.with_suffix(".json").write_text(json.dumps(facts))
            print(path, flush=True)


if __name__ == "__main__":
    main()
