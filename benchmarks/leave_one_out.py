"""What each rule, attempt and number of live recognition is worth, on much speech.

    python benchmarks/leave_one_out.py ROWS [--data DIR ...] [--sounds clips conversations ...]
        [-m tiny.en] [--of rules attempts session gate whisper] [--out build/sensitivity]

One at a time, a rule (`streamd.session.rules`) or an attempt (`streamd.whisper.attempts`) is
switched off, and each number of the modules that decide the text of live captions is halved and
doubled: their constants, and the numbers of their options (`PARTS`). Every sound is played without
a clock, as if the engine took no time, and ``ROWS`` gets a line of JSON for each sound and change:
the words of the finals that are wrong without and with it. What ``ROWS`` has is not played again,
so the program may be stopped at any time; at its end it prints the table of all that is there.

Windows that a change leaves as they were are not decoded again, unless the change may alter what
the recognizer makes of them; so ``whisper``, whose numbers alter that, takes a hundred times as
long as the others, and is left out unless it is named.

A change that alters no final on many words is a candidate for removal. So is one with as many words
better as worse; a difference of few words is chance.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

import scores
import streamd
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
_NO_SAMPLES = np.zeros(0, np.float32)
_BLOCK = 5
"""Frames that a session gets at once, 100 ms."""

Recognize = Callable[[Window], Hypothesis]
Captions = list[Partial | Final]


@dataclass(frozen=True)
class Change:
    """Something that is switched off or has another value.

    `patched` makes it so; `changed` is what it makes of the options; `decides` tells whether it may
    alter what the recognizer made of a window. `needs`: the change alters nothing where no rule of
    this name changed a hypothesis, or no attempt of this name was tried.
    """

    kind: str
    name: str
    patched: Callable[[], AbstractContextManager[object]]
    changed: Callable[[Config], Config] = lambda config: config
    decides: Callable[[Hypothesis], bool] = lambda _: False
    needs: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A sound with a change: of `n_words` spoken, how many are wrong in the finals.

    `usual_wrong` are wrong without the change. `altered`: the finals that differ; `shown`: whether
    at least something on the way does. `error`: what the change broke.
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


def every_change() -> Iterator[Change]:
    """All of them."""
    for rule in rules.RULES:
        yield Change("rules", rule.__name__, partial(_without_rule, rule), needs=rule.__name__)
    for attempt in attempts.ATTEMPTS:
        yield _without_attempt(attempt.name)
    for name, value in [*_constants(), *_fields()]:
        kind = type(value)
        for other in sorted({str(kind(value / 2)), str(kind(value * 2) or kind(1))} - {str(value)}):
            yield _with_number(Number(name, ()), other)


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
        decides=lambda hypothesis: name in dict(hypothesis.work.attempts),
        needs=name,
    )


def _with_number(number: Number, value: str) -> Change:
    def changed(config: Config) -> Config:
        if not number.is_setting:
            return config
        part, _, name = number.name.partition(".")
        options = getattr(config, part)
        kind = type(getattr(options, name))
        return replace(config, **{part: replace(options, **{name: kind(value)})})

    is_whisper = number.name.startswith(("streamd.whisper", "search."))
    is_gate = number.name.startswith(("streamd.session.gate", "gate."))
    return Change(
        "whisper" if is_whisper else "gate" if is_gate else "session",
        f"{number.name}={value}",
        lambda: number.patched(value),
        changed,
        lambda _: is_whisper,
    )


def _constants() -> Iterator[tuple[str, float]]:
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

    `acted`: the rules that changed a hypothesis, and the attempts that were tried.
    """

    recognize: Recognize
    acted: set[str] = field(default_factory=set)
    by_place: defaultdict[tuple[int, int], list[tuple[Window, Hypothesis]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def usual(self, window: Window) -> Hypothesis:
        """Decode a window without a change, and keep it."""
        hypothesis = self.recognize(window)
        self.acted |= dict(hypothesis.work.attempts).keys()
        kept = replace(window, samples=_NO_SAMPLES)
        self.by_place[window.start, window.end].append((kept, hypothesis))
        return hypothesis

    def applied(self, hypothesis: Hypothesis, facts: rules.TextFacts) -> rules.Ruled:
        """Apply the rules, and note those that act."""
        ruled = rules.apply(hypothesis, facts)
        self.acted |= {step.rule.__name__ for step in ruled.steps if step.before != step.after}
        return ruled

    def with_change(self, decides: Callable[[Hypothesis], bool], recognize: Recognize) -> Recognize:
        """Return a function that decodes only what is not known, or may be other than it was."""

        def recall(window: Window) -> Hypothesis:
            bare = replace(window, samples=_NO_SAMPLES)
            for known, hypothesis in self.by_place[window.start, window.end]:
                is_same = known.encoded is window.encoded and _told(known) == _told(bare)
                if is_same and not decides(hypothesis):
                    return hypothesis
            return recognize(window)

        return recall


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
        self._known = Known(new(config))
        with mock.patch.object(session, "apply", self._known.applied):
            self._captions = self._play(config, self._known.usual)

    def row(self, model: str, change: Change) -> Row:
        """Play it with a change."""
        before = _finals(self._captions)
        wrong = self._wrong(before)
        about = Row(
            model=model,
            sound=self.sound.name,
            kind=change.kind,
            change=change.name,
            n_words=len(self.sound.reference.split()),
            usual_wrong=wrong,
            wrong=wrong,
        )
        if change.needs and change.needs not in self._known.acted:
            return about
        try:
            with change.patched():
                config = change.changed(self._config)
                captions = self._play(
                    config,
                    self._known.with_change(change.decides, self._new(config)),
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


def play(file: Path, model: str, sounds: Sequence[Sound], changes: Sequence[Change]) -> None:
    """Make each change to each sound that the file does not have, and add it."""
    known = {(row.sound, row.change) for row in read(file) if row.model == model}
    config = load({"model": model, "language": "en", "threads": "1"}, {})
    opened = open_model(config, wait=True)

    def recognizer(config: Config) -> Recognize:
        return build.answering(build.recognizer(config, *opened)).recognize

    file.parent.mkdir(parents=True, exist_ok=True)
    for sound in sounds:
        missing = [each for each in changes if (sound.name, each.name) not in known]
        if not missing:
            continue
        usual = Usual(sound, config, recognizer)
        for change in missing:
            with file.open("ab") as rows:
                rows.write(msgspec.json.encode(usual.row(model, change)) + b"\n")


def read(file: Path) -> list[Row]:
    """Return the rows of a file, which need not be there."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def summary(rows: Sequence[Row], model: str) -> str:
    """Return the table of a model: one line for each change that altered a final, and the others.

    *better* and *worse*: words of the sounds in which the change has fewer or more of them wrong.
    """
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.model == model:
            found[row.kind, row.change].append(row)
    lines: list[tuple[object, ...]] = []
    still: defaultdict[str, list[str]] = defaultdict(list)
    for (kind, change), each in found.items():
        if any(row.error for row in each):
            still["breaks the program"].append(change)
        elif not any(row.altered for row in each):
            shown = any(row.shown for row in each)
            still["alters only partials" if shown else "alters nothing"].append(change)
        else:
            gained = [row.usual_wrong - row.wrong for row in each]
            lines.append(
                (
                    f"{kind}: {change}",
                    sum(row.n_words for row in each),
                    sum(row.usual_wrong for row in each),
                    sum(row.altered for row in each),
                    sum(max(0, n) for n in gained),
                    sum(max(0, -n) for n in gained),
                )
            )
    head = ["change", "words", "wrong", "finals altered", "better", "worse"]
    rest = "\n".join(f"{what}: {', '.join(names)}" for what, names in still.items())
    return f"{table(head, lines)}\n\n{rest}"


def main() -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, metavar="ROWS", help="file of results, added to")
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA], help="recorded speech")
    parser.add_argument("--out", type=Path, default=Path("build/sensitivity"))
    parser.add_argument("--sounds", nargs="+", default=["clips"])
    parser.add_argument("--most", type=int, metavar="N", help="play only the first N sounds")
    parser.add_argument("--of", nargs="+", choices=KINDS, default=KINDS[:-1])
    args = parser.parse_args()
    changes = [each for each in every_change() if each.kind in args.of]
    sounds = found_sounds(args.sounds, args.data, args.out)[: args.most]
    play(args.rows, args.model, sounds, changes)
    print(summary(read(args.rows), args.model))


if __name__ == "__main__":
    main()
