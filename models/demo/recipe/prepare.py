"""Turn read speech into shards of clips: ``prepare.py SPEECH OUT``.

SPEECH is a folder with ``manifest.jsonl`` (path, text, speaker, set). Digits and prompts are taken
whole; read sentences are aligned, and their vocabulary words are cut out besides.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import soundfile
from align import Aligned, Aligner, phones_of, spoken
from clips import RATE_HZ, Clip, Run, Samples, Shard, speech_bounds, trim
from vocabulary import ALONE, GLUE, TEENS, UNKNOWN, WORDS

#: Speakers that no training may hear: the scores are theirs.
HELD = {("fsdd", "lucas"), ("fsdd", "theo"), ("moonshine_alnum", "evmaki")}
#: Checkpoints and alignment heads are chosen on this speaker.
DEVELOPMENT = ("moonshine_alnum", "petewarden")
Row = dict[str, str]
SURE, FAIR = 0.6, 0.3  # word probabilities of the aligner


def _whole(x: Samples, text: str, voice: str, kind: str, *, held: bool = False) -> Clip:
    """Make a clip that is one run; its times are where its sound is."""
    begin, end = speech_bounds(x)
    phones = tuple(p for word in spoken(text) for p in phones_of(word))
    inside = all(word in WORDS for word in text.split())
    return Clip(x, (Run(text if inside else UNKNOWN, phones, begin, end),), voice, kind, held)


def _digit(row: Row, x: Samples) -> list[Clip]:
    held = (row["set"], row["speaker"]) in {*HELD, DEVELOPMENT}
    voice = f"{row['set']}-{row['speaker']}"
    text = {"o": "oh"}.get(row["text"], row["text"])
    if text in ALONE or text == "oh":
        return [_whole(x, text, voice, "digit", held=held)]
    # letters are outside the vocabulary; "a" and "u" sound like the words eight and you
    return [] if text in {"a", "u"} or held else [_whole(trim(x), text, voice, "unknown")]


def _single(row: Row, x: Samples) -> list[Clip]:
    if not row["original"].startswith("en/words/"):  # the alphabet and the colours are GPL
        return []
    numbers = {str(i): word for i, word in enumerate(TEENS, 10)} | {"20": "twenty"}
    text = numbers.get(row["text"], row["text"].lower())
    if text not in ALONE and (len(text) < 3 or not text.isalpha()):
        return []
    return [_whole(trim(x), text, "gcompris", "word" if text in ALONE else "unknown")]


def _wake(row: Row, x: Samples) -> list[Clip]:
    clip = _whole(trim(x, 0.1), row["text"], row["set"], "word")
    return [
        clip
        if clip.runs[0].text != UNKNOWN
        else Clip(clip.samples, clip.runs, clip.voice, "unknown")
    ]


def _known(words: list[Aligned]) -> list[bool]:
    """Mark the words to be written: vocabulary words, and glue words that stand between them."""
    known = [False] * len(words)
    for inside, group in groupby(range(len(words)), lambda i: words[i].word in WORDS):
        span = list(group)
        alone = [i for i in span if words[i].word in ALONE]
        if inside and alone:
            for i in range(alone[0], alone[-1] + 1):
                known[i] = True
    return known


def runs_of(words: list[Aligned], known: list[bool]) -> list[Run]:
    """Write known words one by one and each unknown stretch as one ``...``."""
    runs: list[Run] = []
    for is_known, group in groupby(zip(words, known, strict=True), lambda pair: pair[1]):
        stretch = [word for word, _ in group]
        if is_known:
            runs += [Run(w.word, w.phones, w.begin, w.end) for w in stretch]
        else:
            phones = tuple(p for w in stretch for p in w.phones)
            runs.append(Run(UNKNOWN, phones, stretch[0].begin, stretch[-1].end))
    return runs


def _cut(words: list[Aligned], known: list[bool], x: Samples, voice: str) -> Iterator[Clip]:
    """Cut the sentence at the borders of known stretches and at its pauses; glue words singly."""
    pieces: list[list[int]] = []
    for i in range(len(words)):
        paused = i > 0 and words[i].begin - words[i - 1].end > 0.25 * RATE_HZ
        if i == 0 or paused or known[i] != known[i - 1]:
            pieces.append([])
        pieces[-1].append(i)
    for piece in pieces:
        clip = _piece([words[i] for i in piece], x, voice, written=known[piece[0]])
        if clip is not None:
            yield clip
    for word in words:
        if word.word in GLUE and word.end - word.begin > RATE_HZ // 12:
            clip = _piece([word], x, voice, written=True)
            if clip is not None:
                yield clip


def _piece(words: list[Aligned], x: Samples, voice: str, *, written: bool) -> Clip | None:
    begin = max(0, words[0].begin - RATE_HZ // 100)
    end = min(len(x), words[-1].end + RATE_HZ // 50)
    if min(w.probability for w in words) < SURE:
        return None
    moved = [w._replace(begin=w.begin - begin, end=w.end - begin) for w in words]
    runs = tuple(runs_of(moved, [written] * len(words)))
    if not written:
        fits = 0.3 < (end - begin) / RATE_HZ < 4
        return Clip(x[begin:end], runs, voice, "unknown") if fits else None
    return Clip(x[begin:end], runs, voice, "word" if len(runs) == 1 else "phrase")


def sentences(aligner: Aligner) -> Callable[[Row, Samples], list[Clip]]:
    """Return the preparation of read sentences, which needs an aligner."""

    def prepare(row: Row, x: Samples) -> list[Clip]:
        said = spoken(row["text"])
        words = aligner(x, said) if said and len(x) < 20 * RATE_HZ else None
        if not words:
            return []
        voice = f"{row['set']}-{row['speaker']}"
        known = _known(words)
        clips = list(_cut(words, known, x, voice))
        if min(w.probability for w in words) > FAIR and len(x) < 13 * RATE_HZ:
            clips.append(Clip(x, tuple(runs_of(words, known)), voice, "sentence"))
        return clips

    return prepare


def main() -> None:
    """Prepare the sets one after the other, a shard each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("speech", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("set", nargs="*", help="default: all sets of the manifest")
    args = parser.parse_args()
    rows: list[Row] = [json.loads(line) for line in (args.speech / "manifest.jsonl").open()]
    read = sentences(Aligner())
    how: dict[str, Callable[[Row, Samples], list[Clip]]] = {
        "fsdd": _digit, "moonshine_alnum": _digit, "gcompris_en": _single,
        "wakeword": _wake, "precise": _wake,
        "asterisk_en": read, "kathleen": read, "librispeech_samples": read, "ljspeech": read,
    }  # fmt: skip
    for name, prepare in how.items():
        if args.set and name not in args.set:
            continue
        shard, heard = Shard(), Counter[str]()
        for row in (row for row in rows if row["set"] == name):
            x, rate = soundfile.read(args.speech / row["path"], dtype="float32")
            assert rate == RATE_HZ, f"{row['path']}: {rate} Hz, expected {RATE_HZ}"
            for clip in prepare(row, x):
                shard.add(clip)
                heard.update(run.text for run in clip.runs if run.text != UNKNOWN)
        shard.save(args.out / f"real-{name}")
        print(f"  {len(heard)} vocabulary words; {heard.most_common(5)}", flush=True)


if __name__ == "__main__":
    main()
