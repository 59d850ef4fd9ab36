"""What a trace and the spoken words tell: wrong words, latency, erasure, marks, cost.

Words are compared after whisper's English normaliser, which writes numbers and spellings in one
way, and aligned by jiwer. Latencies run from the end of a word in the sound.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import jiwer
import numpy as np

from lab.latency import segments, word_latencies
from lab.metrics import commit_violations, erased
from runs import Trace
from sounds import Sound
from streamd.cli.bench import normalizers
from streamd.events import Final, Partial

Scored = Sequence[tuple[Sound, Trace]]
"""A run over a set of sounds."""
Lines = Sequence[tuple[float, str]]
"""What stays on the screen, such as finals: when each came, in ms, and its text."""
_normalized, _ = normalizers()


@dataclass(frozen=True)
class Errors:
    """Of `words` that were spoken, how many are wrong, and in which way."""

    words: int
    substituted: int
    deleted: int
    inserted: int

    @property
    def rate(self) -> float:
        """Word error rate in percent."""
        return 100 * (self.substituted + self.deleted + self.inserted) / self.words


@dataclass(frozen=True)
class Wrong:
    """Words that a text has wrong: what was `said`, what was `read`, and the two words `before`.

    They are `start` to `end` in the reference; there are none of them where words were invented.
    """

    start: int
    end: int
    said: str
    read: str
    before: str

    @property
    def n_words(self) -> int:
        """How many errors they are."""
        return max(self.end - self.start, len(self.read.split()))


def errors(references: Sequence[str], texts: Sequence[str]) -> Errors:
    """Count over all pairs of a reference and a text."""
    found = jiwer.process_words(
        [_normalized(reference) for reference in references], [_normalized(text) for text in texts]
    )
    n = found.hits + found.substitutions + found.deletions
    return Errors(n, found.substitutions, found.deletions, found.insertions)


def run_errors(run: Scored) -> Errors:
    """Of all sounds of a run."""
    return errors([sound.reference for sound, _ in run], [trace.text for _, trace in run])


def wrong_words(reference: str, text: str) -> list[Wrong]:
    """Every place where the text differs from the reference."""
    said, read = _normalized(reference).split(), _normalized(text).split()
    found = jiwer.process_words(" ".join(said), " ".join(read))
    return [
        Wrong(
            start=part.ref_start_idx,
            end=part.ref_end_idx,
            said=" ".join(said[part.ref_start_idx : part.ref_end_idx]),
            read=" ".join(read[part.hyp_start_idx : part.hyp_end_idx]),
            before=" ".join(said[max(0, part.ref_start_idx - 2) : part.ref_start_idx]),
        )
        for part in found.alignments[0]
        if part.type != "equal"
    ]


def also_wrong(wrong: Wrong, others: Mapping[str, Sequence[Wrong]]) -> tuple[str, ...]:
    """The names of the runs that have something wrong in the same place."""
    return tuple(
        name for name, places in others.items() if any(_meet(wrong, place) for place in places)
    )


def _meet(a: Wrong, b: Wrong) -> bool:
    """Whether they share a word, or one is invented words at or in the other."""
    if a.start == a.end or b.start == b.end:
        return a.start <= b.end and b.start <= a.end
    return a.start < b.end and b.start < a.end


def latencies(run: Scored) -> dict[str, list[float]]:
    """By event, of each word that is right and whose time is known, in ms."""
    words = [
        latency
        for sound, trace in run
        for latency in word_latencies(segments(trace.said), sound.words)
    ]
    return {
        "first shown": [word.first for word in words],
        "committed": [word.final for word in words],
        "in a final": [word.closed for word in words],
    }


def spread(values: Sequence[float]) -> str:
    """Median and 95th percentile."""
    return "/".join(f"{np.percentile(values, q):.0f}" for q in (50, 95)) if values else ""


def erasure(run: Scored) -> tuple[float, float]:
    """Words that were shown and then changed or vanished, for each word of the finals.

    Returns
    -------
    of all changes, and of those that are more than case and marks
    """
    shown = [segment.texts for _, trace in run for segment in segments(trace.said)]
    n_words = max(1, sum(len(texts[-1].split()) for texts in shown))
    exact = sum(erased([text.split() for text in texts]) for texts in shown)
    plain = sum(erased([_plain(text) for text in texts]) for texts in shown)
    return exact / n_words, plain / n_words


def violations(run: Scored) -> int:
    """Events that take back what was committed; there must be none."""
    return sum(commit_violations(trace.said) for _, trace in run)


def unheard(run: Scored) -> int:
    """Spoken words of which less than half is in any window."""
    return sum(
        _covered_ms(trace, word.start_ms, word.end_ms) < (word.end_ms - word.start_ms) / 2
        for sound, trace in run
        for word in sound.words
        if word.start_ms is not None and word.end_ms is not None
    )


def _covered_ms(trace: Trace, start_ms: int, end_ms: int) -> int:
    parts = [(max(w.start_ms, start_ms), min(w.end_ms, end_ms)) for w in trace.windows]
    covered, reached = 0, start_ms
    for begin, end in sorted(part for part in parts if part[0] < part[1]):
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


@dataclass(frozen=True)
class Cost:
    """What a run took: per second of sound, and `frames` of a window in the mean."""

    windows: float
    frames: float
    cpu: float
    counts: Counter[str]


def cost(run: Scored) -> Cost:
    """Of all sounds together; `counts` are the sums of those of the windows."""
    seconds = sum(trace.audio_ms for _, trace in run) / 1000
    counts: Counter[str] = Counter()
    for _, trace in run:
        for window in trace.windows:
            counts.update(window.counts)
    return Cost(
        windows=counts["windows"] / seconds,
        frames=counts["encoded_frames"] / max(1, counts["windows"]),
        cpu=sum(trace.cpu_ms for _, trace in run) / 1000 / seconds,
        counts=counts,
    )


def listened(trace: Trace) -> float:
    """The share of the sound that is in any window: what was taken for speech, and its margins."""
    return _covered_ms(trace, 0, trace.audio_ms) / trace.audio_ms


def invented(trace: Trace) -> tuple[int, int]:
    """Words in noise: shown at any time, and in finals."""
    partials = [entry.event for entry in trace.said if isinstance(entry.event, Partial)]
    shown = {(event.seg, word) for event in partials for word in _plain(event.text)}
    return len(shown), sum(len(_plain(final.text)) for final in trace.finals)


# -- marks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """A word as it is printed: in lower case, whether it has a capital, and the mark behind it."""

    word: str
    capital: bool
    mark: str


@dataclass(frozen=True)
class Marks:
    """Of words that are right and whose reference is printed with marks and capitals."""

    words: int
    commas_kept: int
    commas_as_stops: int
    stops_kept: int
    stops_within: int
    capitals_added: int
    finals: int
    finals_small: int


def printed(text: str) -> list[Printed]:
    """The words of a text; marks are ``,`` (or ``;`` ``:``), ``.`` (or ``?`` ``!``) and none."""
    found = []
    for part in re.sub(r"[—/-]", " ", text.replace("’", "'")).split():
        word = re.sub(r"[^\w']", "", part)
        last = part.rstrip("\"'”)")[-1:]
        mark = "." if last in tuple(".?!") else "," if last in tuple(",;:") else ""
        if word:
            found.append(Printed(word.lower(), word[0].isupper(), mark))
    return found


def _plain(text: str) -> list[str]:
    """The words without case and marks; fillers such as "mm" count."""
    return [word.word for word in printed(text)]


def marks(run: Scored) -> Marks:
    """Compare the marks and capitals of a run's finals with those of the references."""
    pairs = [pair for sound, trace in run for pair in _right(sound.passages, trace.text)]
    finals = [final.text for _, trace in run for final in trace.finals]
    both = Counter((a.mark, b.mark) for a, b in pairs)
    return Marks(
        words=len(pairs),
        commas_kept=both[",", ","],
        commas_as_stops=both[",", "."],
        stops_kept=both[".", "."],
        stops_within=both["", "."],
        capitals_added=sum(b.capital and not a.capital for a, b in pairs),
        finals=len(finals),
        finals_small=sum(text[:1].islower() for text in finals),
    )


def _right(passages: Iterable[str], text: str) -> list[tuple[Printed, Printed]]:
    """The words that the text has right, as printed and as written; not those of bare passages."""
    said = [(word, _is_printed(passage)) for passage in passages for word in printed(passage)]
    read = printed(text)
    found = jiwer.process_words(
        " ".join(word.word for word, _ in said), " ".join(word.word for word in read)
    )
    pairs = [
        (*said[part.ref_start_idx + i], read[part.hyp_start_idx + i])
        for part in found.alignments[0]
        if part.type == "equal"
        for i in range(part.ref_end_idx - part.ref_start_idx)
    ]
    return [(a, b) for a, usable, b in pairs if usable and a.word != "i"]


def _is_printed(passage: str) -> bool:
    return passage != passage.lower() and any(mark in passage for mark in ".,?!")


# -- dialogue ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialogue:
    """How captions of people who talk to each other can be read.

    `ends`, `commas`: precision, recall and F1 of the marks behind words that are right, in percent;
    `ends_kept`: of all ends of sentences in the reference. `mixed`: turns that share a final with
    another speaker's words; `lost`: turns of a second and more of which no word is right. `delay`:
    from the end of a turn to the final with its last right word, in ms.
    """

    turns: int
    finals: int
    words_per_final: float
    ends_kept: str
    ends: str
    commas: str
    mixed: int
    lost: int
    delay: str


def finals(trace: Trace) -> Lines:
    """The finals as lines."""
    return [(e.t_ms, e.event.text) for e in trace.said if isinstance(e.event, Final)]


def dialogue(run: Sequence[tuple[Sound, Lines]]) -> Dialogue:
    """Of sounds whose turns are known, and what is on the screen behind each."""
    words = [word for sound, lines in run for word in _heard(sound, lines)]
    marks = [(word.said.mark, word.read.mark) for word in words]
    n_ends = sum(
        word.mark == "." for sound, _ in run for turn in sound.turns for word in printed(turn.text)
    )
    texts = [text for _, lines in run for _, text in lines]
    found = [_turns_in_finals(sound, lines) for sound, lines in run]
    return Dialogue(
        turns=sum(len(sound.turns) for sound, _ in run),
        finals=len(texts),
        words_per_final=round(sum(len(text.split()) for text in texts) / max(1, len(texts)), 1),
        ends_kept=f"{sum(pair == ('.', '.') for pair in marks)} of {n_ends}",
        ends=_f1(marks, "."),
        commas=_f1(marks, ","),
        mixed=sum(each.mixed for each in found),
        lost=sum(each.lost for each in found),
        delay=spread([ms for each in found for ms in each.delays_ms]),
    )


@dataclass(frozen=True)
class _Heard:
    """A right word: in which turn and final it is, as printed and as written."""

    turn: int
    final: int
    said: Printed
    read: Printed


def _heard(sound: Sound, lines: Lines) -> list[_Heard]:
    said = [(i, word) for i, turn in enumerate(sound.turns) for word in printed(turn.text)]
    read = [(i, word) for i, (_, text) in enumerate(lines) for word in printed(text)]
    found = jiwer.process_words(
        " ".join(word.word for _, word in said), " ".join(word.word for _, word in read)
    )
    pairs = [
        (said[part.ref_start_idx + i], read[part.hyp_start_idx + i])
        for part in found.alignments[0]
        if part.type == "equal"
        for i in range(part.ref_end_idx - part.ref_start_idx)
    ]
    return [_Heard(turn, final, a, b) for (turn, a), (final, b) in pairs]


@dataclass(frozen=True)
class _Turns:
    mixed: int
    lost: int
    delays_ms: list[float]


def _turns_in_finals(sound: Sound, lines: Lines) -> _Turns:
    words = _heard(sound, lines)
    speakers: dict[int, set[str]] = {}
    for word in words:
        speakers.setdefault(word.final, set()).add(sound.turns[word.turn].speaker)
    mixed = {word.turn for word in words if len(speakers[word.final]) > 1}
    last = {word.turn: word.final for word in words}
    long = [i for i, turn in enumerate(sound.turns) if turn.end_ms - turn.start_ms >= 1000]
    return _Turns(
        mixed=len(mixed),
        lost=sum(i not in last for i in long),
        delays_ms=[lines[final][0] - sound.turns[i].end_ms for i, final in last.items()],
    )


def _f1(marks: Sequence[tuple[str, str]], mark: str) -> str:
    """Precision/recall/F1 of a mark, in percent."""
    both = sum(a == b == mark for a, b in marks)
    said, read = (sum(pair[i] == mark for pair in marks) for i in (0, 1))
    return "/".join(
        f"{100 * n:.0f}"
        for n in (both / max(1, read), both / max(1, said), 2 * both / max(1, said + read))
    )
