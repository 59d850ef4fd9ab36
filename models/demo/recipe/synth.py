"""Let synthetic voices speak words and phrases of the vocabulary: ``synth.py OUT [ENGINE ...]``.

Engines: flite and festival (BSD-like voices), espeak-ng (free output); ``pico`` makes the held-out
evaluation voices. ``british`` is flite with British pronunciations of the vocabulary, and many fast
strings of digits; ``fast`` is strings of digits in one breath; ``abroad`` is espeak-ng's voices of
other languages that say English digits with their own sounds. Each engine's texts and settings
follow from a fixed seed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from align import Aligner, phones_of
from clips import RATE_HZ, Clip, Run, Samples, Shard, speech_bounds, trim
from vocabulary import ALONE, DIGITS, digits, phrase

VOWELS = frozenset("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split())
#: Words whose second vowel is stressed.
LATE = frozenset(
    "alarm alexa athena computer continue december delete eleven goodbye hello hotel july november "
    "october okay percent quebec repeat september sierra today tomorrow undo".split()
)
#: English digits, and "oh", as speakers of other languages would spell what they say.
ABROAD = {
    "de": "ziero uann tuh srih for faif sicks säwen äit nain oh",
    "fr-fr": "zirro ouane tou sri fore faïve sikse sévène eïte naïne o",
    "es": "siro uan tu zri for faif siks seven eit nain ou",
    "it": "ziro uan tu tri for faiv sics seven eit nain ou",
    "nl": "ziero wan toe srie for faaif siks sevven eet nain oo",
    "hi": "ज़ीरो वन टू थ्री फोर फाइव सिक्स सेवन एट नाइन ओ",
    "ru": "зиро уан ту сри фор файв сикс севен эйт найн оу",
    "pl": "ziro łan tu fri for fajw siks sewen ejt najn ou",
}
Say = Callable[[random.Random, str, Path], None]
Script = Callable[[random.Random], list[str]]


def _read(path: Path) -> Samples | None:
    if not path.exists() or path.stat().st_size < 1000:
        return None
    x, rate = soundfile.read(path, dtype="float32", always_2d=True)
    x = x[:, 0] if rate == RATE_HZ else soxr.resample(x[:, 0], rate, RATE_HZ)
    return trim(x) if np.abs(x).max() > 1e-3 else None


def texts(r: random.Random, words: int, phrases: int, *, strings: int | None = None) -> list[str]:
    """Choose what a voice says: single words, extra digits, phrases and long digit strings."""
    alone = r.sample(ALONE, min(words, len(ALONE)))
    extra = [r.choice([*DIGITS, "oh"]) for _ in range(max(10, words // 5))]
    long = [digits(r, 4, 16) for _ in range(phrases // 5 if strings is None else strings)]
    return alone + extra + long + [phrase(r) for _ in range(phrases)]


def _script(words: int, phrases: int, *, strings: int | None = None) -> Script:
    """Choose single words, each said twice, at two speeds, and phrases, said once."""
    return lambda r: texts(r, words, phrases, strings=strings) + texts(r, words, 0)


def _counting(strings: int) -> Script:
    """Choose digits alone and in strings."""
    return lambda r: [*DIGITS, "oh"] * 6 + [digits(r, 3, 9) for _ in range(strings)]


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)


def _flite(
    voice: str, stretches: tuple[float, float] = (0.75, 1.35), *, british: bool = False
) -> Say:
    pitch = {"awb": 120, "rms": 95, "slt": 170, "kal16": 105}[voice]

    def say(r: random.Random, text: str, out: Path) -> None:
        stretch, f0 = r.uniform(*stretches), pitch * r.uniform(0.8, 1.25)
        settings = ["--setf", f"duration_stretch={stretch:.2f}",
                    "--setf", f"int_f0_target_mean={f0:.0f}"]  # fmt: skip
        if british:
            lexicon = out.with_suffix(".lex")
            lexicon.write_text("".join(map(_british_entry, set(text.split()))))
            settings += ["-add_lex", str(lexicon)]
        _run(["flite", "-voice", voice, *settings, "-t", text, "-o", str(out)])

    return say


def _british_entry(word: str) -> str:
    """Line of a flite lexicon: the word as it is said in the south of England, roughly."""
    said = british_phones(phones_of(word), stress=1 if word in LATE else 0)
    return f'"{word}" nil : {" ".join(said)}\n'


def british_phones(phones: tuple[str, ...], *, stress: int = 0) -> list[str]:
    """Turn an American pronunciation into British phones of flite; vowel ``stress`` is stressed."""
    out: list[str] = []
    vowels = 0
    for phone, after in zip(phones, (*phones[1:], ""), strict=True):
        if phone == "R" and after not in VOWELS:
            out += ["ax0"] if out and out[-1][:2] in ("ih", "iy", "ay", "aw") else []
        elif phone in VOWELS:
            stressed = vowels == stress
            said = {"ER": "ah", "AA": "aa" if after == "R" else "ao"}.get(phone, phone.lower())
            if phone in ("ER", "AH") and not stressed:
                said = "ax"
            out.append(f"{said}{int(stressed)}")
            if phone == "ER" and after in VOWELS:
                out.append("r")
            vowels += 1
        else:
            out.append(phone.lower())
    return out


def _espeak(voice: str, words_a_minute: tuple[int, int] = (110, 210)) -> Say:
    def say(r: random.Random, text: str, out: Path) -> None:
        pitch, speed = str(r.randint(25, 75)), str(r.randint(*words_a_minute))
        _run(["espeak-ng", "-v", voice, "-p", pitch, "-s", speed, "-w", str(out), text])

    return say


def _abroad(voice: str) -> Say:
    language = voice.split("+")[0]
    spelt = dict(zip([*DIGITS, "oh"], ABROAD[language].split(), strict=True))
    say = _espeak(voice)
    return lambda r, text, out: say(r, " ".join(spelt[word] for word in text.split()), out)


def _pico(voice: str) -> Say:
    return lambda _, text, out: _run(["pico2wave", "-l", voice, "-w", str(out), text])


def _festival(voice: str, r: random.Random, said: list[str], folder: Path) -> Iterator[Path]:
    """Speak many texts with one start of festival, which is slow to start."""
    for start in range(0, len(said), 100):
        lines = [f"(voice_{voice})"]
        for i, text in enumerate(said[start : start + 100]):
            lines += [
                f"(Parameter.set 'Duration_Stretch {r.uniform(0.75, 1.3):.2f})",
                f'(set! u (utt.synth (Utterance Text "{text}")))',
                f'(utt.save.wave u "{folder}/{start + i}.wav" \'riff)',
            ]
        script = folder / "say.scm"
        script.write_text("\n".join(lines))
        _run(["festival", "-b", str(script)])
        yield from (folder / f"{start + i}.wav" for i in range(len(said[start : start + 100])))


def _clip(aligner: Aligner, x: Samples | None, text: str, voice: str) -> Clip | None:
    words = text.split()
    if x is None or not 0.1 < len(x) / RATE_HZ < 14:
        return None
    held = voice.startswith("pico")
    if len(words) == 1:
        begin, end = speech_bounds(x)
        return Clip(x, (Run(text, phones_of(text), begin, end),), voice, "word", held)
    aligned = aligner(x, words)
    runs = (
        [Run(a.word, a.phones, a.begin, a.end) for a in aligned] if aligned else _shared(x, words)
    )
    return Clip(x, tuple(runs), voice, "phrase", held)


def _shared(x: Samples, words: list[str]) -> list[Run]:
    """Share the time between the words by their phones, 0.1 s wider: some voices do not align."""
    begin, end = speech_bounds(x)
    phones = [phones_of(word) for word in words]
    borders = np.cumsum([0, *map(len, phones)]) / sum(map(len, phones)) * (end - begin) + begin
    slack = RATE_HZ // 10
    return [
        Run(word, said, max(begin, int(borders[i]) - slack), min(end, int(borders[i + 1]) + slack))
        for i, (word, said) in enumerate(zip(words, phones, strict=True))
    ]


def speak(voice: str, say: Say | None, said: list[str], r: random.Random) -> Shard:
    """Let one voice say the texts; ``say`` is None for festival's voices."""
    shard, aligner = Shard(), Aligner()
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "one.wav"

        def sounds() -> Iterator[Path]:
            if say is None:
                yield from _festival(voice.removeprefix("festival-"), r, said, folder)
                return
            for text in said:
                out.unlink(missing_ok=True)
                say(r, text, out)
                yield out

        for text, path in zip(said, sounds(), strict=True):
            clip = _clip(aligner, _read(path), text, voice)
            if clip is not None:
                shard.add(clip)
    return shard


def voices() -> dict[str, list[tuple[str, Say | None, Script]]]:
    """Per engine: name of the voice, how it speaks (festival's: None) and what it says."""
    accents = {
        ("en-us", "en-gb"): (["", "+f2", "+m3", "+f4", "+m7", "+f1", "+m5"], 150, 110),
        ("en-gb-x-rp", "en-gb-scotland", "en-029", "en-gb-x-gbcwmd"): (
            ["+m1", "+f5", "+m8", "+f3"], 110, 80,
        ),
    }  # fmt: skip
    espeak = [
        (f"espeak-{accent}{variant}", _espeak(accent + variant), _script(words, phrases))
        for group, (variants, words, phrases) in accents.items()
        for accent in group
        for variant in variants
    ]
    flite = ("slt", "rms", "awb", "kal16")
    festival = ("cmu_us_slt_arctic_hts", "kal_diphone", "ked_diphone")
    return {
        "flite": [(f"flite-{v}", _flite(v), _script(189, 700)) for v in flite],
        "festival": [(f"festival-{v}", None, _script(189, 500)) for v in festival],
        "espeak": espeak,
        "british": [
            (f"flite-{v}-gb", _flite(v, (0.55, 1.15), british=True), _script(189, 220, strings=400))
            for v in flite
        ],
        "fast": [(f"flite-{v}-fast", _flite(v, (0.55, 0.95)), _counting(400)) for v in flite]
        + [
            (f"espeak-{v}-fast", _espeak(v, (200, 290)), _counting(400))
            for v in ("en-us+f3", "en-us+m2", "en-gb+f4", "en-gb-x-rp+m4")
        ],
        "abroad": [
            (f"espeak-{language}{variant}", _abroad(language + variant), _counting(0))
            for language in ABROAD
            for variant in ("", "+f2", "+m3")
        ],
        "pico": [(f"pico-{v}", _pico(v), _script(189, 80)) for v in ("en-US", "en-GB")],
    }


def main() -> None:
    """Let all voices of the engines speak, a shard each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the shards")
    parser.add_argument("engine", nargs="*", help="default: all")
    args = parser.parse_args()
    for engine, speakers in voices().items():
        for voice, say, script in speakers if engine in (args.engine or voices()) else []:
            r = random.Random(voice)
            speak(voice, say, script(r), r).save(args.out / voice)


if __name__ == "__main__":
    main()
