"""How well speakers are told apart, live and in whole recordings.

    python benchmarks/speakers.py [-m MODEL] [--snr DB] [--wordless] SOUND.flac...
    python benchmarks/speakers.py ... --lines LINES.jsonl [--sizes 2 4 8] [--seed N] [--count N]
                                  [--guest]
    python benchmarks/speakers.py --wordless --pipeline PLDA SOUND.flac...
    python benchmarks/speakers.py --wordless --minutes N SOUND.flac...
    python benchmarks/speakers.py --wordless --copies N SOUND.flac...

A SOUND has its speakers beside it, in SOUND.rttm, and its words in SOUND.json (``segments`` with
``speaker`` and ``ref_words``; without SOUND.rttm, their ``start`` and ``end`` say who talks). Of
LINES, single lines with ``path``, ``speaker``, ``speech`` (its bounds in s), ``game`` and ``text``,
dialogues of 2, 4 and 8 speakers are built (`dialogues`); `readers` builds others.
With ``--guest``, somebody else says about ten words once, in the middle of four minutes: `guest` is
% of these words, live and offline (also of a SOUND whose .json names a ``guest``). With
``--minutes``, the sounds are one dialogue, again and again until it is so long. ``--snr`` adds
white noise. With ``--copies``, each dialogue is measured so often, again with noise at -90 dB that
nobody hears, but which changes narrow decisions, as rounding does on another machine; the last line
has the means, live, and the deviations among the copies of a dialogue. The package meeteval has to
be installed (the group ``speakers``).

Who talks when depends on the audio alone, so it is measured without a recognizer, live in steps and
offline at once; with ``--wordless`` nothing else is. DER: missed, invented and wrong speaker time,
without a collar and with overlap, in % of the speakers' time, by the last word of the events
``speakers``; `known`: offline, if it is said how many they are. The others are of captions, live on
a clock on which computing takes no time (`lab.replay`): `program`: their DER; `said`: that of the
words of finals, as they were published, mostly without overlap. `words`: % of the true words in
whose middle the right speaker talks. `pipeline`: DER of pyannote's, with the files of its PLDA
(`pipeline`), and `words` of it. `quarters`: `words` of each quarter, live. cpWER: by the same
words. delay: from the beginning of a turn until a caption shows a word of it under the right
number. CPU: of the models that tell speakers apart, for a second of sound. Prints a line of JSON
for each.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import soundfile
from meeteval.wer.wer.cp import cp_word_error_rate
from numpy.typing import NDArray
from whisper_normalizer.english import EnglishTextNormalizer

from attributed import error_rate, right_words, words_of
from dialogues import Talk, built
from lab.eventlog import Began, Said
from lab.replay import replay
from pipeline import Plda, features, told_apart, turns
from streamd.config import Config, load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engines.voices import Listener, RecordedVoices, hear
from streamd.events import SpeakerTurns
from streamd.labels import changed
from streamd.speakers import HearingSteps, Roster
from streamd.system.processor import machine
from streamd.types import FRAME, SAMPLE_RATE, ms_from_frames

STREAMD = Path(sys.executable).with_name("streamd")
normal = EnglishTextNormalizer()


class Dialogue(NamedTuple):
    """A sound with what is known of it: its talk, and what each speaker says."""

    name: str
    sound: NDArray[np.float32]
    talk: list[Talk]
    texts: dict[str, str]
    words: list[Talk]
    guest: str = ""


def read(path: Path) -> Dialogue:
    """Read a sound, its RTTM and its texts."""
    sound, _ = soundfile.read(path, dtype="float32")
    facts = json.loads(path.with_suffix(".json").read_text())
    segments = facts["segments"]
    if (turns := path.with_suffix(".rttm")).exists():
        fields = [line.split() for line in turns.read_text().splitlines()]
        talk = [Talk(float(f[3]), float(f[3]) + float(f[4]), f[7]) for f in fields]
    else:
        talk = [Talk(each["start"], each["end"], each["speaker"]) for each in segments]
    texts: dict[str, str] = {}
    for segment in segments:
        speaker = segment["speaker"]
        texts[speaker] = f"{texts.get(speaker, '')} {segment['ref_words']}"
    words = [
        word
        for each in segments
        for word in words_of(
            Talk(each["start"], each["end"], each["speaker"], f"{each['ref_words']}")
        )
    ]
    return Dialogue(path.stem, sound, talk, texts, words, facts.get("guest", ""))


def built_dialogue(lines: Path, n_speakers: int, seed: int, *, guest: bool = False) -> Dialogue:
    """Build a dialogue, with what each speaker says."""
    made = built(lines, n_speakers, seed, guest=guest)
    texts: dict[str, str] = {}
    for talk in made.talk:
        texts[talk.speaker] = f"{texts.get(talk.speaker, '')} {talk.text}"
    words = [word for talk in made.talk for word in words_of(talk)]
    who = min(texts, key=lambda each: len(texts[each])) if guest else ""
    return Dialogue(made.name, made.sound, [*made.talk], texts, words, who)


def again_and_again(dialogues: Sequence[Dialogue], minutes: float) -> Dialogue:
    """Join dialogues until they are so long, and cut what is more."""
    sounds, length = [], 0.0
    talk: list[Talk] = []
    words: list[Talk] = []
    texts: dict[str, str] = {}
    for each in cycle(dialogues):
        if length >= 60 * minutes:
            break
        for joined, part in ((talk, each.talk), (words, each.words)):
            joined += [t._replace(start=t.start + length, end=t.end + length) for t in part]
        texts |= {who: f"{texts.get(who, '')} {text}" for who, text in each.texts.items()}
        sounds.append(each.sound)
        length += len(each.sound) / SAMPLE_RATE
    name = "+".join(each.name for each in dialogues)
    sound = np.concatenate(sounds)[: round(60 * minutes * SAMPLE_RATE)]
    talk, words = ([t for t in part if t.end < 60 * minutes] for part in (talk, words))
    return Dialogue(name, sound, talk, texts, words)


def by_quarters(dialogue: Dialogue, found: Sequence[Talk]) -> list[float]:
    """Return how many % of the words of each quarter are right (`right_words`)."""
    quarters = []
    for i in range(4):
        start, end = (at * len(dialogue.sound) / SAMPLE_RATE / 4 for at in (i, i + 1))
        words = [word for word in dialogue.words if start <= word.start < end]
        inside = [talk for talk in found if talk.end > start and talk.start < end]
        quarters.append(right_words(words, inside))
    return quarters


def with_noise(dialogue: Dialogue, snr_db: float) -> Dialogue:
    """Add white noise."""
    sound = dialogue.sound
    power = float(np.square(sound[np.abs(sound) > 1e-3]).mean()) * 10 ** (-snr_db / 10)
    noise = np.random.default_rng(0).standard_normal(len(sound)) * power**0.5
    return dialogue._replace(sound=(sound + noise).astype(np.float32))


def again(dialogue: Dialogue, copy: int) -> Dialogue:
    """Add noise that nobody hears, another one for each copy after the first (0)."""
    if not copy:
        return dialogue
    noise = 10 ** (-90 / 20) * np.random.default_rng(copy).standard_normal(len(dialogue.sound))
    return dialogue._replace(sound=(dialogue.sound + noise).astype(np.float32))


def among_copies(measured: Sequence[Sequence[dict[str, Any]]]) -> dict[str, list[float]]:
    """Return the means of `words` and DER, live, and their deviations among copies."""
    found = {
        "words": np.array([[each["words"]["live"] for each in copies] for copies in measured]),
        "live": np.array([[each["live"]["der"] for each in copies] for copies in measured]),
    }
    return {
        name: [round(float(values.mean()), 2), round(float(values.var(1).mean() ** 0.5), 2)]
        for name, values in found.items()
    }


def spoken(words: Iterable[dict[str, Any]]) -> tuple[list[Talk], dict[str, str]]:
    """Return when the words of each speaker were said, and the text of each."""
    talk: list[Talk] = []
    texts: dict[str, str] = {}
    for word in words:
        who = str(word.get("speaker", 0))
        talk.append(Talk(word["start_ms"] / 1000, word["end_ms"] / 1000, who))
        texts[who] = f"{texts.get(who, '')} {word['text']}"
    return talk, texts


def cp_wer(truth: dict[str, str], found: dict[str, str]) -> float:
    """Return the cpWER in %."""
    reference, hypothesis = ({k: normal(v) for k, v in each.items()} for each in (truth, found))
    return 100 * float(cp_word_error_rate(reference, hypothesis).error_rate)


def turns_of(events: Iterable[dict[str, Any]]) -> list[Talk]:
    """Return who talks when by the last word of the events."""
    known: list[Talk] = []
    for event in events:
        start, end = event["start_ms"] / 1000, event["end_ms"] / 1000
        kept = [Talk(t.start, min(t.end, start), t.speaker) for t in known if t.start < start]
        kept += [Talk(max(t.start, end), t.end, t.speaker) for t in known if t.end > end]
        turns = event["turns"]
        new = [Talk(t["start_ms"] / 1000, t["end_ms"] / 1000, str(t["speaker"])) for t in turns]
        known = kept + new
    return known


def delays(
    truth: Sequence[Talk], events: Sequence[dict[str, Any]], mapping: dict[str, str]
) -> Iterator[float]:
    """Yield for each change of speaker how long it took, in s of audio; 99 if it was not found."""
    last = ""
    for talk in sorted(truth):
        if talk.speaker != last and last:
            yield min(
                (
                    event["shown_ms"] / 1000 - talk.start
                    for event in events
                    for word in event["words"]
                    if talk.start - 0.2 <= (word["start_ms"] + word["end_ms"]) / 2000 < talk.end
                    and mapping.get(str(word.get("speaker"))) == talk.speaker
                ),
                default=99.0,
            )
        last = talk.speaker


def heard(sound: NDArray[np.float32]) -> tuple[list[SpeakerTurns], RecordedVoices, float]:
    """Hear a sound live and as a recording; return the events, the latter, and the CPU time in s.

    The time is that of the models, live.
    """
    frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME)
    gate, steps, roster, voices = build.gate(Config()), HearingSteps(), Roster(), RecordedVoices()
    events: list[SpeakerTurns] = []
    spent = 0.0
    for end, frame in enumerate(frames, 1):
        (heard,) = gate.feed(frame[None])
        steps.push(end, heard.silence, heard.late)
        voices.feed(frame[None], [(heard.silence, heard.late)])
        if end == len(frames):
            steps.flush()
        for step in steps.take(end):
            before, start_s = roster, time.thread_time()
            roster = before.copy()
            hear(roster, step, sound, start=0)
            spent += time.thread_time() - start_s
            events.append(changed(before.turns, roster.turns, before.heard, roster.heard))
    return events, voices, spent


def by_voices(dialogue: Dialogue, plda: Plda | None = None) -> dict[str, Any]:
    """Tell the speakers of a dialogue apart, live and at once, and compare."""
    events, voices, spent = heard(dialogue.sound)
    live = turns_of(msgspec.to_builtins(events))
    n_speakers = len(dialogue.texts)
    offline, known = (
        [Talk(t.start / 50, t.end / 50, str(t.speaker)) for t in voices.turns(n)]
        for n in (0, n_speakers)
    )
    words = {
        "live": right_words(dialogue.words, live),
        "offline": right_words(dialogue.words, offline),
    }
    facts: dict[str, Any] = {
        "sound": dialogue.name,
        "speakers": n_speakers,
        "words": words,
        "quarters": by_quarters(dialogue, live),
        "live": error_rate(dialogue.talk, live)[0],
        "found": len({talk.speaker for talk in live}),
        "offline": error_rate(dialogue.talk, offline)[0],
        "found_offline": len({talk.speaker for talk in offline}),
        "known": error_rate(dialogue.talk, known)[0]["der"],
        "cpu_ms": round(1000 * spent / (len(dialogue.sound) / SAMPLE_RATE), 1),
    }
    if who := dialogue.guest:
        facts["guest"] = [right_words(dialogue.words, each, who) for each in (live, offline)]
    if plda is not None:
        local, embedded = features(dialogue.sound)
        theirs = turns(local, told_apart(local, embedded, plda))
        words["pipeline"] = right_words(dialogue.words, theirs)
        facts["pipeline"] = error_rate(dialogue.talk, theirs)[0]["der"]
        facts["found_pipeline"] = len({talk.speaker for talk in theirs})
    return facts


def captioned(dialogue: Dialogue, model: str) -> list[dict[str, Any]]:
    """Return the events of live captions, with the time `shown_ms` at which each comes."""
    config = load({"model": model, "language": "en", "speakers": "true"}, {})
    listener = Listener(build.recognizer(config, *open_model(config, wait=True)))
    frames = dialogue.sound[: len(dialogue.sound) // FRAME * FRAME].reshape(-1, FRAME)
    began = Began(
        name=dialogue.name,
        model=model,
        clock="free",
        step_ms=ms_from_frames(config.session.step),
        audio_ms=ms_from_frames(len(frames)),
    )
    (log,) = replay([listener], partial(build.new_session, config), [frames], began=began)
    said = (entry for entry in log if isinstance(entry, Said))
    return [msgspec.to_builtins(entry.event) | {"shown_ms": entry.t_ms} for entry in said]


def by_program(dialogue: Dialogue, model: str) -> dict[str, Any]:
    """Caption and transcribe a dialogue, and compare."""
    events = captioned(dialogue, model)
    with tempfile.TemporaryDirectory() as folder:
        path, form = Path(folder, "sound.wav"), Path(folder, "offline.jsonl")
        soundfile.write(path, dialogue.sound, SAMPLE_RATE)
        options = ["-m", model, "-l", "en", "-q", "--speakers", str(path)]
        offline = [STREAMD, "transcribe", "-o", str(form), *options]
        subprocess.run(offline, capture_output=True, check=True)
        finals = [json.loads(line) for line in form.read_text().splitlines()]
    of: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        of.setdefault(event["type"], []).append(event)
    der, mapping = error_rate(dialogue.talk, turns_of(of["speakers"]))
    said, texts = spoken(word for final in of["final"] for word in final["words"])
    captions = [event for event in events if event["type"] in ("partial", "final")]
    waits = sorted(delays(dialogue.talk, captions, mapping))
    whole, whole_texts = spoken(word for final in finals for word in final["words"])
    return {
        "program": der["der"],
        "said": error_rate(dialogue.talk, said)[0]["der"],
        "cpwer": round(cp_wer(dialogue.texts, texts), 1),
        "delay_s": round(waits[len(waits) // 2], 2) if waits else None,
        "said_offline": error_rate(dialogue.talk, whole)[0]["der"],
        "cpwer_offline": round(cp_wer(dialogue.texts, whole_texts), 1),
    }


def main() -> None:
    """Measure each dialogue."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sounds", nargs="*", type=Path)
    parser.add_argument("-m", "--model", default="tiny.en")
    parser.add_argument("--lines", type=Path)
    parser.add_argument("--sizes", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--pipeline", type=Path, metavar="PLDA")
    parser.add_argument("--wordless", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2, help="dialogues of each size")
    parser.add_argument("--guest", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--snr", type=float)
    parser.add_argument("--copies", type=int, default=1)
    args = parser.parse_args()
    dialogues = [read(path) for path in args.sounds]
    if args.minutes:
        dialogues = [again_and_again(dialogues, args.minutes)]
    if args.lines:
        seeds = range(args.seed, args.seed + args.count)
        every = [(n, seed) for n in args.sizes for seed in seeds]
        dialogues += [built_dialogue(args.lines, *each, guest=args.guest) for each in every]
    plda = Plda(args.pipeline) if args.pipeline else None
    facts = msgspec.to_builtins(machine())
    print(json.dumps({"machine": facts, "model": args.model, "snr_db": args.snr}))
    measured: list[list[dict[str, Any]]] = []
    for dialogue in dialogues:
        measured.append([])
        for copy in range(args.copies):
            noisy = dialogue if args.snr is None else with_noise(dialogue, args.snr)
            noisy = again(noisy, copy)
            facts = by_voices(noisy, plda)
            if not args.wordless:
                facts |= by_program(noisy, args.model)
            measured[-1].append(facts)
            print(json.dumps(facts), flush=True)
    if args.copies > 1:
        print(json.dumps(among_copies(measured)))


if __name__ == "__main__":
    main()
