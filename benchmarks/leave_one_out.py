"""What each rule, attempt and number of live recognition is worth, on much speech.

    python benchmarks/leave_one_out.py ROWS [--data DIR ...] [--sounds clips conversations ...]
        [-m tiny.en] [--of rules attempts session gate whisper] [--most-sounds N]
        [--out build/sensitivity]

One at a time, a rule (`streamd.session.rules`) or an attempt (`streamd.whisper.attempts`) is
switched off, and each number of the modules that decide the text of live captions is halved and
doubled: their constants, and the numbers of their options (`PARTS`). Every sound is played without
a clock, as if the engine took no time, and ``ROWS`` gets a line of JSON for each sound and change:
the words of the finals that are wrong without and with it. What ``ROWS`` has is not played again,
so the program may be stopped at any time; at its end it prints the table of all that is there.

First every sound is played with all numbers as they are, each of which carries its half and its
double (`alternatives`). A change with which no comparison has another answer alters nothing, and is
not played; nor is one without a rule that acted on this sound, or without an attempt that was
tried. ``--most-sounds`` leaves out the changes that may alter more sounds than that; 0: all. A
window that a change leaves as it was is not decoded again, but where the change may alter what the
recognizer makes of it.

A change that alters no final on many words is a candidate for removal. So is one with as many words
better as worse; a difference of few words is chance.
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

import scores
import streamd
from alternatives import Survey, Varied, carrying, plain
from lab.recordings import read_recording
from sensitivity import Number, found_sounds
from sounds import DATA, Sound
from streamd.config import Config, load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Final, Partial, SessionEvent
from streamd.session import rules, session
from streamd.session.channels import SplitSession
from streamd.session.gate import GatedFrame
from streamd.types import Frames, Hypothesis, Window
from streamd.whisper import attempts
from tables import table

PACKAGES = ("session", "whisper")
EXEMPT = (
    "session/clips",
    "whisper/longform/",
    "whisper/mel",
    "whisper/tokenizer",
)
"""Modules of `PACKAGES` that live captions do without, or whose numbers are the model's."""
PARTS = ("session", "agreement", "gate", "endpoint", "search")
KINDS = ("rules", "attempts", "session", "gate", "whisper")
_CARRYING = ("streamd.session", "streamd.whisper", "streamd.options")
_NOT_CARRIED = ("agreement.agree", "streamd.whisper.vocabulary:_N_KEPT")
"""Numbers that C code refuses to take from a `Varied` one."""
_NO_SAMPLES = np.zeros(0, np.float32)
_BLOCK = 5
"""Frames that a session gets at once, 100 ms."""

Recognize = Callable[[Window], Hypothesis]
Captions = list[Partial | Final]


@dataclass(frozen=True)
class Change:
    """Something that is switched off or has another value.

    `patched` makes it so; `changed` is what it makes of the options. It alters nothing where
    neither a rule nor an attempt of the name `needs` acted, nor a number differed that has it.
    """

    kind: str
    name: str
    patched: Callable[[], AbstractContextManager[object]]
    changed: Callable[[Config], Config] = lambda config: config
    needs: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A sound with a change: of `n_words` spoken, how many are wrong in the finals.

    `usual_wrong` are wrong without the change. `altered`: the finals that differ; `shown`: whether
    at least something on the way does. `error`: what the change broke. `asked`: whether anything
    was asked of it; `differs`: in how many windows, or between them, it may alter something;
    `escaped`: because its number could not be carried; `played`: whether it was played.
    """

    model: str
    sound: str
    kind: str
    change: str
    n_words: int = 0
    usual_wrong: int = 0
    wrong: int = 0
    altered: int = 0
    shown: bool = False
    error: str = ""
    asked: bool = True
    differs: int = 0
    escaped: bool = False
    played: bool = False


def every_change() -> Iterator[Change]:
    """All of them."""
    for rule in rules.RULES:
        yield Change("rules", rule.__name__, partial(_without_rule, rule), needs=rule.__name__)
    for attempt in attempts.ATTEMPTS:
        yield _without_attempt(attempt.name)
    for name, value in [*constants(), *_fields()]:
        for other in _others(name, value):
            yield _with_number(other)


def _others(name: str, value: float) -> dict[str, float]:
    """Half and double a number, by the names of these changes."""
    kind = type(value)
    others = {kind(value / 2), kind(value * 2) or kind(1)} - {value}
    return {f"{name}={other}": other for other in sorted(others)}


@contextmanager
def _without_rule(rule: rules.Rule) -> Iterator[None]:
    def off(hypothesis: Hypothesis, facts: rules.TextFacts) -> Hypothesis:
        return hypothesis

    def applied(hypothesis: Hypothesis, facts: rules.TextFacts) -> rules.Ruled:
        ruled = rules.apply(hypothesis, facts)
        steps = (replace(step, rule=rule) if step.rule is off else step for step in ruled.steps)
        return replace(ruled, steps=tuple(steps))

    others = tuple(off if each is rule else each for each in rules.RULES)
    with mock.patch.object(rules, "RULES", others), mock.patch.object(session, "apply", applied):
        yield


def _without_attempt(name: str) -> Change:
    others = tuple(each for each in attempts.ATTEMPTS if each.name != name)
    return Change(
        "attempts",
        name,
        lambda: mock.patch.object(attempts, "ATTEMPTS", others),
        needs=name,
    )


def _with_number(change: str) -> Change:
    name, _, value = change.partition("=")
    is_whisper = name.startswith(("streamd.whisper", "search."))
    is_gate = name.startswith(("streamd.session.gate", "gate."))
    return Change(
        "whisper" if is_whisper else "gate" if is_gate else "session",
        change,
        lambda: Number(name, ()).patched(value),
        partial(_changed, name, value),
        needs=change,
    )


def _changed(name: str, value: object, config: Config) -> Config:
    """The options with another number, if it is one of theirs."""
    part, _, field_name = name.partition(".")
    if part not in PARTS:
        return config
    options = getattr(config, part)
    if isinstance(value, str):
        value = type(getattr(options, field_name))(value)
    return replace(config, **{part: replace(options, **{field_name: value})})


@contextmanager
def surveyed(survey: Survey, config: Config) -> Iterator[Config]:
    """All numbers carry their other values inside; returns options in which they do."""
    with ExitStack() as patches:
        for name, value in [*constants(), *_fields()]:
            varied = Varied(value, _others(name, value), survey)
            if name in _NOT_CARRIED:
                varied.real()
                continue
            config = _changed(name, varied, config)
            patches.enter_context(Number(name, ()).patched(varied))
        modules = [each for name, each in sys.modules.items() if name.startswith(_CARRYING)]
        patches.enter_context(carrying(modules))
        yield config


def constants() -> Iterator[tuple[str, float]]:
    """Yield the constants that decide the text of live captions, and their values."""
    root = Path(streamd.__file__).parent
    files = [file for name in PACKAGES for file in sorted((root / name).rglob("*.py"))]
    for file in files:
        module = file.relative_to(root).with_suffix("")
        if module.as_posix().startswith(EXEMPT) or file.name == "__init__.py":
            continue
        place = import_module(".".join(("streamd", *module.parts)))
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign):
                targets = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
                for target in targets:
                    value = getattr(place, target.id, None)
                    if isinstance(target.ctx, ast.Store) and type(value) in {int, float}:
                        yield f"{place.__name__}:{target.id}", value


def _fields() -> Iterator[tuple[str, float]]:
    config = load({}, {})
    for part in PARTS:
        options = getattr(config, part)
        for each in fields(options):
            value = getattr(options, each.name)
            if type(value) in {int, float}:
                yield f"{part}.{each.name}", value


@dataclass
class KnownGate:
    """A gate that has heard the sound before; `doubtful` is that of its end."""

    heard: Sequence[GatedFrame]
    doubtful: bool
    at: int = 0

    def feed(self, frames: Frames) -> Sequence[GatedFrame]:
        """As `Gate.feed` does."""
        self.at += len(frames)
        return self.heard[self.at - len(frames) : self.at]


@dataclass
class Known:
    """Every window that was decoded of a sound, and what the recognizer made of it.

    `differs`: for each hypothesis, by its id, what may alter it; `between`: what may alter
    something between the windows.
    """

    recognize: Recognize
    survey: Survey
    between: frozenset[str] = frozenset()
    differs: dict[int, set[str]] = field(default_factory=dict)
    by_place: defaultdict[tuple[int, int], list[tuple[Window, Hypothesis]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def usual(self, window: Window) -> Hypothesis:
        """Decode a window without a change, and keep it."""
        with self.survey.place() as differs:
            window = replace(window, start=plain(window.start), end=plain(window.end))
            hypothesis = self.recognize(window)
        self.differs[id(hypothesis)] = differs | dict(hypothesis.work.attempts).keys()
        kept = replace(window, samples=_NO_SAMPLES)
        self.by_place[window.start, window.end].append((kept, hypothesis))
        return hypothesis

    def applied(self, hypothesis: Hypothesis, facts: rules.TextFacts) -> rules.Ruled:
        """Apply the rules, and note those that act."""
        ruled = rules.apply(hypothesis, facts)
        acted = {step.rule.__name__ for step in ruled.steps if step.before != step.after}
        self.survey.here |= acted
        return ruled

    def n_differing(self, name: str) -> int:
        """In how many windows something of this name may alter something, or between them."""
        return sum(name in each for each in [self.between, *self.differs.values()])

    def with_change(self, change: Change, recognize: Recognize) -> Recognize:
        """Return a function that decodes only what is not known, or may be other than it was."""
        # What the recognizer says of its work may differ without a comparison in a window.
        always = change.kind == "whisper" and change.needs in self.between

        def recall(window: Window) -> Hypothesis:
            bare = replace(window, samples=_NO_SAMPLES)
            for known, hypothesis in self.by_place[window.start, window.end]:
                is_same = _resumed(known) is _resumed(window) and _told(known) == _told(bare)
                if is_same and not always and change.needs not in self.differs[id(hypothesis)]:
                    return hypothesis
            return recognize(window)

        return recall


def _resumed(window: Window) -> object:
    """The states from which the recognizer goes on, if it can."""
    before = window.encoded
    return before if before is not None and before.start == window.start else None


def _told(window: Window) -> list[object]:
    return [
        getattr(window, each.name)
        for each in fields(window)
        if each.name not in {"samples", "encoded"}
    ]


class Usual:
    """A sound without a change: its captions, what its gate heard, and all its windows."""

    def __init__(self, sound: Sound, config: Config, new: Callable[[Config], Recognize]) -> None:
        self._config, self._new = config, new
        self.sound, self._frames = sound, read_recording(sound.path).frames
        gate = build.gate(config)
        self._heard = [each for block in self._blocks() for each in gate.feed(block)]
        self._doubtful = gate.doubtful
        survey = Survey()
        with surveyed(survey, config) as varied:
            self._known = Known(new(varied), survey)
            with mock.patch.object(session, "apply", self._known.applied):
                self._captions = self._play(varied, self._known.usual)
        # From here on nobody may note anything more.
        self._known.between = frozenset(survey.here)
        self._asked, self._escaped = frozenset(survey.asked), frozenset(survey.escaped)

    def surveyed(self, model: str, change: Change) -> Row:
        """What is known of a change before it is played."""
        wrong = self._wrong(_finals(self._captions))
        return Row(
            model=model,
            sound=self.sound.name,
            kind=change.kind,
            change=change.name,
            n_words=len(self.sound.reference.split()),
            usual_wrong=wrong,
            wrong=wrong,
            asked=change.kind in {"rules", "attempts"} or change.needs in self._asked,
            escaped=change.needs in self._escaped,
            differs=self._known.n_differing(change.needs),
        )

    def row(self, model: str, change: Change) -> Row:
        """Play it with a change."""
        before, about = _finals(self._captions), self.surveyed(model, change)
        about = msgspec.structs.replace(about, played=True)
        try:
            with change.patched():
                config = change.changed(self._config)
                captions = self._play(
                    config,
                    self._known.with_change(change, self._new(config)),
                    gates=change.kind == "gate",
                )
        except Exception as failure:  # noqa: BLE001 - a change may break anything
            return msgspec.structs.replace(about, error=repr(failure))
        after = _finals(captions)
        return msgspec.structs.replace(
            about,
            wrong=self._wrong(after),
            altered=len(set(before) ^ set(after)),
            shown=[each.text for each in captions] != [each.text for each in self._captions],
        )

    def _wrong(self, finals: Sequence[str]) -> int:
        if not self.sound.reference:
            return sum(len(text.split()) for text in finals)
        found = scores.errors([self.sound.reference], [" ".join(finals)])
        return found.substituted + found.deleted + found.inserted

    def _play(self, config: Config, recognize: Recognize, *, gates: bool = True) -> Captions:
        """Caption the sound with an engine that takes no time; `gates`: the gate hears it anew."""
        new_gate = build.gate if gates else lambda _: KnownGate(self._heard, self._doubtful)
        with mock.patch.object(build, "gate", new_gate):
            session = build.new_session(config)
        events: list[SessionEvent] = []
        for block in self._blocks():
            events += session.feed(block)
            events += _worked(session, recognize)
        events += session.flush()
        events += _worked(session, recognize)
        return [event for event in events if isinstance(event, Partial | Final)]

    def _blocks(self) -> Iterator[Frames]:
        return (self._frames[at : at + _BLOCK] for at in range(0, len(self._frames), _BLOCK))


def _worked(session: session.Session | SplitSession, recognize: Recognize) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    while (window := session.next_window()) is not None:
        events += session.accept(window, recognize(window))
    return events


def _finals(captions: Captions) -> list[str]:
    return [each.text for each in captions if isinstance(each, Final)]


def play(
    file: Path,
    model: str,
    sounds: Sequence[Sound],
    changes: Sequence[Change],
    *,
    language: str = "en",
    most_sounds: int | None = None,
) -> None:
    """Add what the file does not have: a survey of each sound, and what each change alters.

    `most_sounds`: only of changes that may alter something in at most so many sounds.
    """
    config = load({"model": model, "language": language, "threads": "1"}, {})
    opened = open_model(config, wait=True)

    def recognizer(config: Config) -> Recognize:
        return build.answering(build.recognizer(config, *opened)).recognize

    file.parent.mkdir(parents=True, exist_ok=True)
    known = latest(read(file), model)
    for sound in sounds:
        missing = [each for each in changes if (sound.name, each.name) not in known]
        if missing:
            usual = Usual(sound, config, recognizer)
            _add(file, [usual.surveyed(model, change) for change in missing])
    known = latest(read(file), model)
    n_sounds = Counter(row.change for row in known.values() if row.differs)
    for sound in sounds:
        rows = {each.name: known[sound.name, each.name] for each in changes}
        unknown = [
            each
            for each in changes
            if rows[each.name].differs
            and not rows[each.name].played
            and (most_sounds is None or n_sounds[each.name] <= most_sounds)
        ]
        if unknown:
            usual = Usual(sound, config, recognizer)
        for change in sorted(unknown, key=lambda each: n_sounds[each.name]):
            _add(file, [usual.row(model, change)])


def _add(file: Path, rows: Iterable[Row]) -> None:
    with file.open("ab") as lines:
        lines.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def latest(rows: Sequence[Row], model: str) -> dict[tuple[str, str], Row]:
    """Return what is known last of each sound and change."""
    return {(row.sound, row.change): row for row in rows if row.model == model}


def read(file: Path) -> list[Row]:
    """Return the rows of a file, which need not be there."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def summary(rows: Sequence[Row], model: str) -> str:
    """Return the table of a model: one line for each change that altered a final, and the others.

    *better* and *worse*: words of the sounds in which the change has fewer or more of them wrong;
    *not played*, or a number in parentheses: sounds that it may alter, but in which it was not
    played.
    """
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in latest(rows, model).values():
        found[row.kind, row.change].append(row)
    lines: list[tuple[object, ...]] = []
    still: defaultdict[str, list[str]] = defaultdict(list)
    for (kind, change), each in found.items():
        n_left = sum(bool(row.differs) and not row.played for row in each)
        if any(row.altered for row in each):
            gained = [row.usual_wrong - row.wrong for row in each]
            lines.append(
                (
                    f"{kind}: {change}",
                    sum(row.n_words for row in each),
                    sum(row.usual_wrong for row in each),
                    sum(row.altered for row in each),
                    sum(max(0, n) for n in gained),
                    sum(max(0, -n) for n in gained),
                    n_left,
                )
            )
        else:
            still[_little(each)].append(f"{change} ({n_left})" if n_left else change)
    head = ["change", "words", "wrong", "finals altered", "better", "worse", "not played"]
    rest = "\n".join(f"{what}: {', '.join(names)}" for what, names in still.items())
    return f"{table(head, lines)}\n\n{rest}"


def _little(rows: Sequence[Row]) -> str:
    """What a change does that alters no final."""
    if any(row.error for row in rows):
        return "breaks the program"
    if not any(row.asked or row.differs for row in rows):
        return "never asked"
    if not any(row.differs for row in rows):
        return "asked, with the same answers"
    if any(row.shown for row in rows):
        return "alters only partials"
    if any(row.played for row in rows):
        return "alters nothing"
    return "not played"


def main() -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, metavar="ROWS", help="file of results, added to")
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA], help="recorded speech")
    parser.add_argument("--out", type=Path, default=Path("build/sensitivity"))
    parser.add_argument("--sounds", nargs="+", default=["clips"])
    parser.add_argument("--most", type=int, metavar="N", help="play only the first N sounds")
    parser.add_argument("--language", default="en", help="as streamd's")
    parser.add_argument("--most-sounds", type=int, metavar="N", help="see above")
    parser.add_argument("--of", nargs="+", choices=KINDS, default=KINDS)
    args = parser.parse_args()
    changes = [each for each in every_change() if each.kind in args.of]
    sounds = found_sounds(args.sounds, args.data, args.out)[: args.most]
    play(
        args.rows,
        args.model,
        sounds,
        changes,
        language=args.language,
        most_sounds=args.most_sounds,
    )
    print(summary(read(args.rows), args.model))


if __name__ == "__main__":
    main()
