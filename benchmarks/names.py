"""How well expected words are heard: recall, false alarms and all wrong words over lists.

    python benchmarks/names.py MANIFEST... [-m tiny.en] [--runs offline live] [--half judge]
        [--lists 0 10 100 1000 5000] [--context script FILE...] [--strength 1] [--prompt]
        [--peer DIR] [--per-speaker 12] [--out DIR]

A MANIFEST has a line of JSON per clip: path, text, speaker, and perhaps lang. Of each speaker the
first clips count that have a rare word: one of at least four letters that is not among the 8,000
commonest of wordfreq, whatever the model makes of it. Speakers are halved by a checksum of their
names: settings are chosen on the half "design", and only "judge" says how good they are. A list of
N phrases has the rare words of these clips, then those of all other clips, then rare words of
wordfreq, every other one with a capital. A false alarm is a listed word that nobody said and that
is not there without a list. --strength is the weight of each; --prompt gives as much
of the list as fits as a prompt instead, and --peer lets faster-whisper, if it is installed, read
the sounds with the weights of a CTranslate2 folder in int8 and the list as its hotwords, of which
it takes 223 tokens. --context has the list chosen from a document, as streamd's option does;
"script" is one with the texts of all clips of both halves. Prints a table and, last, a line of
JSON. Needs wordfreq.
"""

import argparse
import json
import re
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scores
from lab.eventlog import Said
from lab.recordings import read_recording
from runs import Run, Trace
from sounds import Sound
from streamd.cli.bench import normalizers
from streamd.events import Final
from streamd.models.model import openai_vocabulary
from streamd.whisper.terms import terms
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import forms
from tables import table

_COMMON, _RARE = 8_000, (15_000, 60_000)
_PROMPT = 3_900
"""Characters; streamd takes 4,000, and the model 223 tokens of them."""
_normalized, _ = normalizers()


class Clip(NamedTuple):
    """A sound, who speaks, and its rare words as they are written."""

    sound: Sound
    speaker: str
    rare: tuple[str, ...]


def clips(manifests: Iterable[Path], common: set[str]) -> list[Clip]:
    """All English clips that have a rare word."""
    found = []
    for manifest in manifests:
        for line in manifest.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rare = tuple(sorted(set(_rare(row["text"], common))))
            if rare and row.get("lang", "en") == "en":
                name = row["path"].replace("/", "_")
                sound = Sound(name, manifest.parent / row["path"], reference=row["text"])
                found.append(Clip(sound, f"{manifest.parent.name}:{row['speaker']}", rare))
    return found


def _rare(text: str, common: set[str]) -> Iterable[str]:
    for word in re.findall(r"[^\W\d_][\w'-]+", text):
        low = word.lower().replace("'s", "")
        shouted = word.isupper()  # a text in capitals says nothing of how the word is written
        if len(low) > 3 and not shouted and common.isdisjoint((low, low.rstrip("s"))):
            yield word.replace("'s", "")


def chosen(every: Sequence[Clip], half: str, per_speaker: int) -> list[Clip]:
    """The first clips of each speaker of a half."""
    of_speaker: dict[str, list[Clip]] = defaultdict(list)
    for clip in every:
        if zlib.crc32(clip.speaker.encode()) % 2 == (half == "judge"):
            of_speaker[clip.speaker].append(clip)
    return [clip for each in of_speaker.values() for clip in each[:per_speaker]]


def phrases(spoken: Sequence[Clip], every: Sequence[Clip], others: Sequence[str]) -> list[str]:
    """Rare words: of the clips, of all clips, of the language."""
    own = dict.fromkeys(word for clip in spoken for word in clip.rare)
    elsewhere = dict.fromkeys(word for clip in every for word in clip.rare)
    foreign = (word.capitalize() if n % 2 else word for n, word in enumerate(others))
    return [*(own | elsewhere | dict.fromkeys(foreign))]


def score(
    spoken: Sequence[Clip], traces: Sequence[Trace], listed: Sequence[str], plain: Sequence[Trace]
) -> dict[str, Any]:
    """A row of the table; recall is of all rare words of the clips, and of those in the list.

    `plain` are the same clips without a list.
    """
    wanted = {_normalized(word) for clip in spoken for word in clip.rare}
    known = {_normalized(form) for phrase in listed for form in forms(phrase)}
    n_false = 0
    n_said, n_right = Counter[bool](), Counter[bool]()
    for clip, trace, unlisted in zip(spoken, traces, plain, strict=True):
        there = Counter(_normalized(unlisted.text).split())
        said = Counter(_normalized(clip.sound.reference).split())
        read = Counter(_normalized(trace.text).split())
        for word in wanted:
            n_said[word in known] += said[word]
            n_right[word in known] += min(said[word], read[word])
        n_false += sum(
            max(0, n - max(said[word], there[word])) for word, n in read.items() if word in known
        )
    errors = scores.run_errors(list(zip((c.sound for c in spoken), traces, strict=True)))
    return {
        "listed": len(listed),
        "rare right %": f"{100 * n_right.total() / n_said.total():.1f}",
        "of": n_said.total(),
        "listed right %": f"{100 * n_right[True] / n_said[True]:.1f}" if n_said[True] else "",
        "of listed": n_said[True],
        "false alarms /1000": f"{1000 * n_false / errors.words:.2f}",
        "WER %": f"{errors.rate:.2f}",
        "CPU s": f"{sum(trace.cpu_ms for trace in traces) / 1000:.1f}",
    }


def of_document(name: str, every: Sequence[Clip], model: str) -> list[str]:
    """The words that streamd expects after it has read a document."""
    text = "\n".join(clip.sound.reference for clip in every) if name == "script" else ""
    size = 51_864 if "en" in Path(model).name.split(".") else 51_865
    words = Tokenizer(openai_vocabulary(Path(name), size), size, multilingual=size != 51_864)
    return [term.text for term in terms(text or Path(name).read_text(encoding="utf-8"), words)]


def hotwords(folder: Path, spoken: Sequence[Clip], listed: Sequence[str]) -> list[Trace]:
    """What faster-whisper makes of the clips with the list as its hotwords, greedily."""
    from faster_whisper import WhisperModel  # in no environment of ours

    model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)
    found = []
    for clip in spoken:
        recording = read_recording(clip.sound.path)
        begun_s = time.process_time()
        segments, _ = model.transcribe(
            np.asarray(recording.frames, np.float32).reshape(-1),
            language="en",
            beam_size=1,
            hotwords=", ".join(listed) or None,
        )
        text = " ".join(segment.text.strip() for segment in segments)
        ms = recording.audio_ms
        final = Final(seg=0, start_ms=0, end_ms=ms, text=text, language="en")
        found.append(
            Trace(
                sound=clip.sound.name,
                live=False,
                options={},
                commit="",
                audio_ms=ms,
                cpu_ms=(time.process_time() - begun_s) * 1000,
                said=(Said(t_ms=ms, heard_ms=ms, event=final),),
            )
        )
    return found


def main() -> None:
    """Do the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST")
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--runs", nargs="+", default=["offline", "live"])
    parser.add_argument("--half", choices=["design", "judge"], default="judge")
    parser.add_argument(
        "--lists", type=int, nargs="+", default=[0, 10, 100, 1_000, 5_000], help="0 is the first"
    )
    parser.add_argument("--strength", type=float, nargs="+", default=[1.0])
    parser.add_argument("--prompt", action="store_true", help="the list as a prompt")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="faster-whisper's hotwords")
    parser.add_argument("--context", nargs="+", default=[], metavar="FILE", help='or "script"')
    parser.add_argument("--per-speaker", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("build/names"), help="keeps the runs")
    args = parser.parse_args()
    try:
        from wordfreq import top_n_list
    except ImportError:
        sys.exit("names.py needs wordfreq: pip install wordfreq")
    words = top_n_list("en", _RARE[1])
    others = [word for word in words[_RARE[0] :] if word.isalpha() and len(word) > 4][::8]
    every = clips(args.manifests, set(words[:_COMMON]))
    spoken = chosen(every, args.half, args.per_speaker)
    lists = _lists(args, phrases(spoken, every, others), every)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for kind in ["faster-whisper"] if args.peer else args.runs:
        plain: list[Trace] = []
        for label, listed in lists:
            has_weight = listed and not (args.prompt or args.peer)
            for strength in args.strength if has_weight else [0.0]:
                name = f"{kind}-{args.half}-{label}-{'prompt' if args.prompt else strength:}"
                if args.peer:
                    traces = hotwords(args.peer, spoken, listed)
                else:
                    option = _option(args.out, listed, strength, as_prompt=args.prompt)
                    run = Run(f"{name}:{option}", args.model, args.out)
                    traces = list(run.traces([clip.sound for clip in spoken]))
                plain = plain if listed else traces
                rows.append({"run": name} | score(spoken, traces, listed, plain or traces))
                print(rows[-1], file=sys.stderr, flush=True)
    print(f"## {Path(args.model).name}: {len(spoken)} clips of {args.half}\n")
    print(table([*rows[0]], [tuple(row.values()) for row in rows]))
    print(json.dumps({"model": Path(args.model).name, "rows": rows}))


def _lists(
    args: argparse.Namespace, ranked: Sequence[str], every: Sequence[Clip]
) -> list[tuple[object, Sequence[str]]]:
    documents = ((name, of_document(name, every, args.model)) for name in args.context)
    return [*((n, ranked[:n]) for n in args.lists), *documents]


def _option(out: Path, listed: Sequence[str], strength: float, *, as_prompt: bool) -> str:
    if not listed:
        return ""
    if as_prompt:
        text = ", ".join(listed)[:_PROMPT].rpartition(",")[0] or listed[0]
        return f"prompt={text}"
    path = (out / f"{len(listed)}-{strength}.txt").resolve()
    path.write_text("".join(f"{phrase}:{strength}\n" for phrase in listed), encoding="utf-8")
    return f"vocabulary={path}"


if __name__ == "__main__":
    main()
