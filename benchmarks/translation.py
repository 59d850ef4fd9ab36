"""Translated captions: how good, how steady, how late, and what they cost.

    STREAMD_STORE=build/real python benchmarks/translation.py [--data ../shared/data/eval]
        [--conversations ../shared/data/conversations] [--sounds A conv1] [-m tiny.en]
        [--waiting 8] [--out build/translation] [--texts manifest.jsonl lines.jsonl]

Captions are played to the daemon's own session (`runs.py`), and their events to `Sentences` and the
translator, whose time is its CPU time; sentences wait for each other and newer revisions replace
older ones, as in `streamd.translation.service`. There are no translations by people here, so the
reference is the translation of the printed text, passage by passage, by the same model: what live
captions lose against it. *whole*: the finals joined, cut into sentences and translated.

No Portuguese speech of some length is within reach. So for pt-en the Portuguese translation of the
printed text is said at the times of the English words, and committed as it is said; the reference
is the English that people wrote.

*chrF*: sacrebleu's, of all the text. *Flicker*: words that a revision takes back, for each word
that stays (normalised erasure, arXiv 2004.03643, "Re-translation versus Streaming"). *LAAL*:
length-adaptive average lagging (arXiv 2206.05807), a sentence at a time, in ms of the sound; a word
counts from when it does not change any more, the recogniser's computing takes no time. *Wait*: from
a committed word to the first translation of a text with it. *Share*: CPU time of translating, of a
core.
With ``--texts``: how many numbers and names in the texts of these files are in their translations.
Names are what has a capital inside a sentence, of up to 400 texts; *listed*: as if each was in the
vocabulary.

Prints tables and, last, one JSON line.
"""

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import sacrebleu

import sounds
from lab.eventlog import Said
from lab.metrics import erased
from runs import Run
from streamd.events import Eos, Final, Partial, TimedWord
from streamd.models.store.cache import places
from streamd.translation import sentences, store
from streamd.translation.files import spread
from streamd.translation.protection import numbers
from streamd.translation.sentences import Sentences, SentenceSoFar
from streamd.translation.translator import Translator, parts
from tables import table


@dataclass(frozen=True)
class Shown:
    """A translation, when it was there, and how many words of the stream were in its text."""

    t_ms: float
    sentence: SentenceSoFar
    text: str
    n_words: int


@dataclass
class Played:
    """What a reader has seen of a stream, and when its words were committed."""

    shown: list[Shown] = field(default_factory=list)
    committed_ms: dict[int, float] = field(default_factory=dict)
    cpu_s: float = 0.0

    @property
    def complete(self) -> list[Shown]:
        """The sentences as they stay."""
        return [each for each in self.shown if each.sentence.is_complete]


class Reader:
    """A stream's events, translated one after the other by a translator that takes its time."""

    def __init__(self, translator: Translator, source: str, target: str) -> None:
        self._translator, self._source, self._target = translator, source, target
        self._sentences = Sentences(source)
        self._waiting: OrderedDict[int, tuple[float, SentenceSoFar, int]] = OrderedDict()
        self._free_ms = 0.0
        self._n_before = self._n_complete = 0  # words of finals, of complete sentences
        self.played = Played()

    def take(self, said: Said) -> None:
        """Take an event, as a subscriber got it."""
        self._work(said.t_ms)
        event = said.event
        if isinstance(event, Partial | Final):
            n_committed = sum(word.final for word in event.words)
            for n in range(self._n_before, self._n_before + n_committed):
                self.played.committed_ms.setdefault(n, said.t_ms)
        if isinstance(event, Final):
            self._n_before += len(event.words)
        for sentence in self._sentences.take(event):
            n_words = self._n_complete + len(sentence.said.words)
            if sentence.is_complete:
                self._n_complete = n_words
            self._waiting[sentence.said.seg] = said.t_ms, sentence, n_words

    def _work(self, until_ms: float) -> None:
        while self._waiting and self._free_ms <= until_ms:
            _, (since_ms, sentence, n_words) = self._waiting.popitem(last=False)
            began_s = time.process_time()
            text = self._translator.translate(
                sentence.said.text, source=self._source, target=self._target
            ).result()
            cpu_s = time.process_time() - began_s
            self.played.cpu_s += cpu_s
            self._free_ms = max(self._free_ms, since_ms) + cpu_s * 1000
            self.played.shown.append(Shown(self._free_ms, sentence, text, n_words))

    def end(self) -> Played:
        """Translate what waits."""
        self._work(float("inf"))
        return self.played


def waits(played: Played) -> list[float]:
    """From each committed word to the first translation of a text with it, in ms."""
    found, n_seen = [], 0
    for each in played.shown:
        known = (n for n in range(n_seen, each.n_words) if n in played.committed_ms)
        found += [max(0.0, each.t_ms - played.committed_ms[n]) for n in known]
        n_seen = max(n_seen, each.n_words)
    return found


def revisions(played: Played) -> Iterator[list[Shown]]:
    """The translations of each sentence, one after the other, the last one complete."""
    begun: dict[int, list[Shown]] = {}
    for each in played.shown:
        begun.setdefault(each.sentence.said.seg, []).append(each)
        if each.sentence.is_complete:
            yield begun.pop(each.sentence.said.seg)


def flicker(played: Played) -> float:
    """Words that were taken back, for each that stayed."""
    gone = n_stayed = 0
    for shown in revisions(played):
        texts = [each.text.split() for each in shown]
        gone, n_stayed = gone + erased(texts), n_stayed + len(texts[-1])
    return gone / max(n_stayed, 1)


def laal(shown: Sequence[Shown]) -> float | None:
    """Length-adaptive average lagging of a sentence, in ms; None without words."""
    last, said = shown[-1].text.split(), shown[-1].sentence.said
    duration_ms = said.end_ms - said.start_ms
    if not last or not said.words or duration_ms <= 0:
        return None
    delays = []
    for n in range(1, len(last) + 1):
        since = len(shown) - 1  # the revision from which on the first n words stay
        while since and shown[since - 1].text.split()[:n] == last[:n]:
            since -= 1
        delays.append(shown[since].t_ms - said.start_ms)
    per_word = duration_ms / len(last)  # hypothesis and reference have the same length here
    upto = next((i for i, delay in enumerate(delays) if delay >= duration_ms), len(delays) - 1) + 1
    return sum(delays[i] - i * per_word for i in range(upto)) / upto


def translated(translator: Translator, text: str, source: str, target: str) -> str:
    """A text, sentence by sentence."""
    return translator.translate(text, source=source, target=target).result()


def spoken(passages: Iterable[tuple[str, Sequence[TimedWord]]], language: str) -> Iterator[Said]:
    """Captions of a perfect recogniser, which commits each word when the next one is said."""
    for seg, (text, words) in enumerate(passages, 1):
        for n in range(1, len(words) + 1):
            known = tuple(
                msgspec.structs.replace(word, final=i < n - 1) for i, word in enumerate(words[:n])
            )
            said = " ".join(word.text for word in known)
            event = Partial(
                seg=seg,
                rev=n,
                start_ms=words[0].start_ms,
                end_ms=known[-1].end_ms,
                text=said,
                stable=0,
                words=known,
            )
            yield Said(t_ms=known[-1].end_ms, heard_ms=known[-1].end_ms, event=event)
        end_ms = words[-1].end_ms + 600
        final = Final(
            seq=seg,
            seg=seg,
            start_ms=words[0].start_ms,
            end_ms=words[-1].end_ms,
            text=text,
            language=language,
            words=tuple(words),
        )
        yield Said(t_ms=end_ms, heard_ms=end_ms, event=final)


@dataclass(frozen=True)
class Row:
    """What is told of a sound in a direction."""

    sound: str
    direction: str
    sentences: int
    live: float
    whole: float
    flicker: float
    laal_ms: float
    wait_ms: float
    wait_95_ms: float
    share: float
    numbers_lost: int


def row(
    name: str, direction: str, played: Played, *, whole: str, reference: str, audio_ms: float
) -> Row:
    """Compare what was shown with the reference."""
    live = " ".join(each.text for each in played.complete)
    lagging = [ms for each in revisions(played) if (ms := laal(each)) is not None]
    waited = sorted(waits(played))
    lost = sum(numbers(each.sentence.said.text) != numbers(each.text) for each in played.complete)
    return Row(
        name,
        direction,
        len(played.complete),
        chrf(live, reference),
        chrf(whole, reference),
        flicker(played),
        statistics.median(lagging),
        statistics.median(waited),
        waited[int(0.95 * len(waited))],
        played.cpu_s * 1000 / audio_ms,
        lost,
    )


def chrf(text: str, reference: str) -> float:
    """Sacrebleu's chrF of a text, as one segment: sentences are cut in other places."""
    return sacrebleu.corpus_chrf([text], [[reference]]).score


def english(translator: Translator, sound: sounds.Sound, run: Run) -> Row:
    """Live captions of an English sound, into Portuguese."""
    (trace,) = run.traces([sound])
    reader = Reader(translator, "en", "pt")
    for said in trace.said:
        reader.take(said)
    reader.take(Said(t_ms=trace.audio_ms, heard_ms=trace.audio_ms, event=Eos(seq=0, reason="end")))
    reference = " ".join(translated(translator, each, "en", "pt") for each in sound.passages)
    return row(
        sound.name,
        "en-pt",
        reader.end(),
        whole=translated(translator, trace.text, "en", "pt"),
        reference=reference,
        audio_ms=trace.audio_ms,
    )


def portuguese(translator: Translator, sound: sounds.Sound) -> Row:
    """The Portuguese of an English text, said at the times of that, back into English."""
    passages, begin = [], 0
    for passage in sound.passages:
        for sentence in parts(passage):
            n = len(sentence.split())
            words = [
                TimedWord(
                    text=each.text, start_ms=each.start_ms, end_ms=each.end_ms, prob=1.0, final=True
                )
                for each in sound.words[begin : begin + n]
            ]
            begin += n
            if not words:
                break
            text = translated(translator, sentence, "en", "pt")
            said = Final(
                seg=1,
                start_ms=words[0].start_ms,
                end_ms=words[-1].end_ms,
                text=sentence,
                language="en",
                words=tuple(words),
            )
            passages.append((text, spread(text, said)))
    reader = Reader(translator, "pt", "en")
    for said_then in spoken(passages, "pt"):
        reader.take(said_then)
    end_ms = passages[-1][1][-1].end_ms
    reader.take(Said(t_ms=end_ms, heard_ms=end_ms, event=Eos(seq=0, reason="end")))
    whole = " ".join(text for text, _ in passages)
    return row(
        sound.name,
        "pt-en",
        reader.end(),
        whole=translated(translator, whole, "pt", "en"),
        reference=" ".join(sound.passages),
        audio_ms=end_ms,
    )


_NAME = re.compile(r"(?<=[a-z,] )((?:[A-Z][\w’'-]+ ?)+)(?=[\s,.;?!])")


def kept(files: Iterable[Path]) -> dict[str, int]:
    """How many numbers and names of English texts the model keeps, from English to Portuguese."""
    rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    texts = sorted({row["text"] for row in rows if row.get("lang", "en") == "en"})
    translator, counted = opened(), Counter({"texts": len(texts)})
    for text in texts:
        if re.search(r"\d", text):
            into = translated(translator, text, "en", "pt")
            counted["texts with numbers"] += 1
            counted["of these with the same numbers"] += numbers(text) == numbers(into)
    named = [(text, names) for text in texts if (names := _names(text))]
    random.Random(0).shuffle(named)
    for text, names in named[:400]:
        plain = translated(translator, text, "en", "pt")
        listed = translator.translate(text, source="en", target="pt", names=names).result()
        counted["names"] += len(names)
        counted["names kept"] += sum(name in plain for name in names)
        counted["names kept if listed"] += sum(name in listed for name in names)
    return dict(counted)


def _names(text: str) -> list[str]:
    found = (re.sub(r"[’']s$", "", each.strip()) for each in _NAME.findall(text))
    return sorted({name for name in found if len(name) > 2 and not name.startswith("I'")})


def opened() -> Translator:
    """A translator that remembers nothing, with its models loaded."""
    here = places()
    translator = Translator(partial(store.open_model, here), store.directions(here))
    translated(translator, "Ready.", "en", "pt")
    translated(translator, "Pronto.", "pt", "en")
    return translator


def main() -> None:
    """Print the table."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, default=sounds.DATA)
    parser.add_argument("--conversations", type=Path, default=sounds.DATA.parent / "conversations")
    parser.add_argument("--sounds", nargs="+", default=["A", "conv1"])
    parser.add_argument("--waiting", type=int, nargs="+", default=[sentences.MOST_WAITING])
    parser.add_argument("-m", "--model", default="tiny.en")
    parser.add_argument("--out", type=Path, default=Path("build/translation"))
    parser.add_argument("--texts", type=Path, nargs="+", default=[])
    given = parser.parse_args()
    run, rows = Run("live", given.model, given.out), []
    for waiting in given.waiting:
        sentences.MOST_WAITING = waiting
        for name in given.sounds:
            folder = given.conversations if name.startswith("conv") else given.data
            try:
                sound = sounds.stream(folder, name)
            except FileNotFoundError as error:
                sys.exit(str(error))
            rows += [(waiting, english(opened(), sound, run))]
            rows += [(waiting, portuguese(opened(), sound))]
    head = (
        *("waiting", "sound", "direction", "sentences", "chrF live", "chrF whole", "flicker"),
        *("LAAL, ms", "wait, median; 95 %, ms", "% of a core", "sentences with other numbers"),
    )
    lines = [
        (
            *(waiting, each.sound, each.direction, each.sentences),
            *(f"{each.live:.1f}", f"{each.whole:.1f}", f"{each.flicker:.2f}"),
            *(f"{each.laal_ms:.0f}", f"{each.wait_ms:.0f}; {each.wait_95_ms:.0f}"),
            *(f"{100 * each.share:.2f}", each.numbers_lost),
        )
        for waiting, each in rows
    ]
    print(table(head, lines))
    told = kept(given.texts) if given.texts else {}
    if told:
        print(f"\n{table(tuple(told), [tuple(told.values())])}")
    measured = [{"waiting": n} | vars(each) for n, each in rows]
    print(json.dumps({"translation": measured, "kept": told}))


if __name__ == "__main__":
    main()
