"""What each number of live recognition is worth: one at a time is changed, all else stays.

    python benchmarks/sensitivity.py [NAME ...] [--data DIR ...] [--sounds A] [-m tiny.en]
        [--noise crowd mumble babble] [--out build/sensitivity] [--screen ROWS]

Each row is a live run (as in ``quality.py``) in which one number has another value: about half and
twice as much, or one that switches its rule off. ``NAME`` chooses numbers, by the name of the
setting or constant. Columns: words wrong of those spoken; words shown and taken back, for each word
of the finals; delay until a word is committed and until it is in a final, in ms (median/95 %);
number of finals; words invented in noise, shown and in finals; CPU seconds per second of sound. A
difference of a few words is chance.

``--screen`` takes every number instead: all constants of the modules that decide the text of live
captions (`PACKAGES`), and all numbers in their options, halved and doubled. It plays one sound
after the other until a word in a final differs, and adds a line of JSON to the file ``ROWS`` for
each change: which sound that was, or none. Changes that the file has are not made again, so the
program may be stopped at any time. Nothing is decoded again for a change that leaves all windows of
a sound as they were, unless it is one of the recognizer's, and only for one of the gate's does the
gate hear it again. What no change alters is a candidate for
removal.

The table says which numbers matter and which rules could go. It does not say which value is best:
that would be tuning on these sounds.
"""

import argparse
import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np

import scores
import streamd
from lab.recordings import read_recording
from runs import Run
from sounds import DATA, Sound, sets
from streamd.config import SETTINGS, Config, load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Final, Partial, SessionEvent
from streamd.session import Session
from streamd.session.gate import GatedFrame
from streamd.types import Frames, Hypothesis, Window
from tables import table


@dataclass(frozen=True)
class Number:
    """An option, a field (``part.field``) or a constant (``module:NAME``), and its values."""

    name: str
    values: tuple[str, ...]

    @property
    def is_setting(self) -> bool:
        """Whether it is no constant."""
        return ":" not in self.name

    def spec(self, value: str) -> str:
        """A run with this value, as `Run` takes it."""
        name = f"{self.name.rpartition(':')[2]}={value}"
        if not self.is_setting:
            return name
        kind = "set=" if self.name in SETTINGS else "field=" if "." in self.name else ""
        return f"{name}:{kind}{self.name}={value}"

    @property
    def decodes(self) -> bool:
        """Whether the recognizer may make other text of the same window."""
        return self.name.startswith(("streamd.whisper", "search."))

    @property
    def gates(self) -> bool:
        """Whether the gate may hear something else."""
        return self.name.startswith(("streamd.session.gate", "gate."))

    def changed(self, config: Config, value: str) -> Config:
        """Return the options with a value, as they are if it is a constant."""
        if not self.is_setting:
            return config
        part, _, field = self.name.partition(".")
        options = getattr(config, part)
        kind = type(getattr(options, field))
        return replace(config, **{part: replace(options, **{field: kind(value)})})

    @contextmanager
    def patched(self, value: str) -> Iterator[None]:
        """The constant has this value inside; a setting is left to the run's options."""
        if self.is_setting:
            yield
            return
        module, _, name = self.name.partition(":")
        usual = getattr(import_module(module), name)
        with ExitStack() as patches:
            for place in [each for key, each in sys.modules.items() if key.startswith("streamd.")]:
                if getattr(place, name, None) is usual:  # where it is defined, and imported
                    patches.enter_context(mock.patch.object(place, name, type(usual)(value)))
            yield


NUMBERS = (
    Number("session.shown_prob", ("0", "0.6")),
    Number("session.context_tokens", ("0", "100")),
    Number("agreement.min_progress", ("0", "25")),
    Number("agreement.doubtful_prob", ("0", "0.9")),
    Number("agreement.doubtful_age_ms", ("700", "3000")),
    Number("gate.attack_ms", ("100", "400")),
    Number("gate.open_share", ("0.3", "0.9")),
    Number("gate.floor_db", ("-90", "-45")),
    Number("endpoint.pre_roll", ("10", "50")),
    Number("endpoint.pre_final_ms", ("100", "400")),
    Number("endpoint-ms", ("400", "1000")),
    Number("endpoint.sentence_ms", ("200", "800")),
    Number("endpoint.unfinished_ms", ("600", "2000")),
    Number("endpoint.empty", ("30", "200")),
    Number("search.stop_margin", ("0", "4")),
    Number("search.least_evidence", ("-3", "-1.2")),
    Number("search.no_speech_threshold", ("0.3", "1")),
    Number("streamd.session.session:LEFT_OUT", ("35", "100000")),
    Number("streamd.session.session:SHORT_PAUSE", ("0", "150")),
    Number("streamd.session.text:FORCE_AFTER", ("200", "100000")),
    Number("streamd.session.text:FORCE_AGE", ("50", "200")),
    Number("streamd.whisper.decode:PROBABLE", ("-1.3", "-0.7")),
    Number("streamd.session.rules:MOST_VOICED", ("0", "0.5")),
    Number("streamd.session.commit:COMPLETE_AFTER", ("5", "30")),
    Number("streamd.whisper.recognizer:_SPARE_TOKENS", ("2", "30")),
    Number("streamd.whisper.view:_SHORT", ("0", "32")),
    Number("streamd.whisper.decode:_NEW", ("50", "400")),
)


PACKAGES = ("session", "whisper")
EXEMPT = (
    "session/simple",
    "session/clips",
    "whisper/longform/",
    "whisper/mel",
    "whisper/tokenizer",
)
"""Modules of `PACKAGES` that live captions do without, or whose numbers are the model's."""
PARTS = ("session", "agreement", "gate", "endpoint", "search")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A change and the first sound in which it alters the words of a final, if any.

    `n_words`: those of the sounds that were played, in the finals without the change. `shown`:
    whether at least something that was shown on the way differs. `error`: what the change broke.
    """

    name: str
    value: str
    model: str
    n_words: int = 0
    altered: str = ""
    shown: bool = False
    error: str = ""


_NO_SAMPLES = np.zeros(0, np.float32)
_BLOCK = 5
"""Frames that a session gets at once, 100 ms."""


def every_number() -> Iterator[Number]:
    """Each number that may decide the text of live captions, halved and doubled."""
    for name, value in [*_constants(), *_fields()]:
        kind = type(value)
        values = {str(kind(value / 2)), str(kind(value * 2) or kind(1))} - {str(value)}
        yield Number(name, tuple(sorted(values)))


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
        for field in fields(options):
            value = getattr(options, field.name)
            if type(value) in {int, float}:
                yield f"{part}.{field.name}", value


class _DiffersError(Exception):
    """A window, or what is decoded of it, may not be the one that there was without the change."""


Recognize = Callable[[Window], Hypothesis]
Captions = list[Partial | Final]


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


class Usual:
    """A sound without a change: its captions, and each window with the hypothesis about it."""

    def __init__(self, sound: Sound, config: Config, recognize: Recognize) -> None:
        self.name, self._frames = sound.name, read_recording(sound.path).frames
        gate = build.gate(config)
        self._heard = [each for block in self._blocks() for each in gate.feed(block)]
        self._doubtful = gate.doubtful
        self._known: list[tuple[Window, Hypothesis]] = []
        self.captions = self.play(config, lambda window: self._noted(window, recognize(window)))

    def play(self, config: Config, recognize: Recognize, *, gates: bool = False) -> Captions:
        """Caption the sound with an engine that takes no time; `gates`: the gate is another one."""
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

    def again(self, config: Config, *, gates: bool) -> Captions:
        """Caption it without decoding. Raises `_DiffersError` if a window is another one."""
        known = iter(self._known)

        def recall(window: Window) -> Hypothesis:
            before, hypothesis = next(known, (None, None))
            if hypothesis is None or before != _bare(window):
                raise _DiffersError
            return hypothesis

        return self.play(config, recall, gates=gates)

    def _noted(self, window: Window, hypothesis: Hypothesis) -> Hypothesis:
        self._known.append((_bare(window), replace(hypothesis, encoded=None)))
        return hypothesis


def _bare(window: Window) -> Window:
    """The window without what is computed of the sound, which its place tells."""
    return replace(window, samples=_NO_SAMPLES, encoded=None)


def _worked(session: Session, recognize: Recognize) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    while (window := session.next_window()) is not None:
        events += session.accept(window, recognize(window))
    return events


def screen(rows: Path, model: str, sounds: Sequence[Sound]) -> None:
    """Make each change that `rows` does not have, and add it."""
    lines = rows.read_bytes().splitlines() if rows.exists() else []
    read = (msgspec.json.decode(line, type=Row) for line in lines)
    known = {(row.name, row.value, row.model) for row in read}
    config = load({"model": model, "language": "en", "threads": "1"}, {})
    opened = open_model(config, wait=True)

    def new(config: Config) -> Recognize:
        return build.answering(build.recognizer(config, *opened)).recognize

    usual = [Usual(sound, config, new(config)) for sound in sounds]
    for number in every_number():
        for value in number.values:
            if (number.name, value, model) not in known:
                with number.patched(value):
                    changed = number.changed(config, value)
                    found = _screened(changed, new, usual, number)
                about = Row(name=number.name, value=value, model=model)
                with rows.open("ab") as file:
                    row = msgspec.structs.replace(about, **found)
                    file.write(msgspec.json.encode(row) + b"\n")


def _screened(
    config: Config, new: Callable[[Config], Recognize], usual: Sequence[Usual], number: Number
) -> dict[str, Any]:
    """Return what to write into a `Row`."""
    n_words, shown = 0, False
    try:
        for sound in usual:
            n_words += sum(len(text.split()) for text in _texts(sound.captions, Final))
            try:
                if number.decodes:
                    raise _DiffersError
                captions = sound.again(config, gates=number.gates)
            except _DiffersError:
                captions = sound.play(config, new(config), gates=number.gates)
            shown |= _texts(captions) != _texts(sound.captions)
            if _texts(captions, Final) != _texts(sound.captions, Final):
                return {"n_words": n_words, "shown": shown, "altered": sound.name}
    except Exception as failure:  # noqa: BLE001 - a change may break anything
        return {"n_words": n_words, "shown": shown, "error": repr(failure)}
    return {"n_words": n_words, "shown": shown}


def _texts(captions: Captions, kind: type[Final] | None = None) -> list[str]:
    return [each.text for each in captions if kind is None or isinstance(each, kind)]


def row(run: Run, sounds: Sequence[Sound]) -> tuple[object, ...]:
    """One line of the table."""
    scored = list(zip(sounds, run.traces(sounds), strict=True))
    speech = [pair for pair in scored if pair[0].reference]
    noise = [trace for sound, trace in scored if not sound.reference]
    found = scores.run_errors(speech)
    late = scores.latencies(speech)
    made_up = [scores.invented(trace) for trace in noise]
    return (
        run.name,
        found.substituted + found.deleted + found.inserted,
        f"{scores.erasure(speech)[0]:.2f}",
        scores.spread(late["committed"]),
        scores.spread(late["in a final"]),
        sum(len(trace.finals) for _, trace in speech),
        f"{sum(shown for shown, _ in made_up)}/{sum(final for _, final in made_up)}",
        f"{scores.cost(speech).cpu:.3f}",
    )


def main() -> None:
    """Do the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="tiny.en", help="as streamd's")
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA], help="recorded speech")
    parser.add_argument(
        "--out", type=Path, default=Path("build/sensitivity"), help="keeps the runs"
    )
    parser.add_argument("--sounds", nargs="+", default=["A"])
    parser.add_argument("--noise", nargs="*", default=["crowd", "mumble", "babble"])
    parser.add_argument("--screen", type=Path, metavar="ROWS", help="screen every number")
    parser.add_argument("--most", type=int, metavar="N", help="play only the first N sounds")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    sounds = _sounds(args.sounds, args.data, args.out)[: args.most]
    if args.screen:
        screen(args.screen, args.model, sounds)
        return
    noise = sets(["noise"], args.data[0], args.out)["noise"]
    sounds += [sound for sound in noise if sound.name in args.noise]
    head = ["number", "wrong", "erased", "committed", "in a final", "finals", "invented", "CPU s/s"]
    rows = [row(Run("usual", args.model, args.out), sounds)]
    for number in NUMBERS:
        if args.names and number.name.rpartition(":")[2] not in args.names:
            continue
        for value in number.values:
            with number.patched(value):
                rows.append(row(Run(number.spec(value), args.model, args.out), sounds))
            print(*rows[-1], file=sys.stderr, flush=True)
    references = [sound.reference for sound in sounds if sound.reference]
    n_words = scores.errors(references, references).words
    print(f"{n_words} words\n\n{table(head, rows)}")


def _sounds(names: Sequence[str], folders: Sequence[Path], out: Path) -> list[Sound]:
    """Each of these sets, from the first folder that has it."""
    found: list[Sound] = []
    for name in names:
        folder = next((f for f in folders if any((f / "streams").glob(f"{name}*"))), folders[0])
        found += sets([name], folder, out)[name]
    return found


if __name__ == "__main__":
    main()
