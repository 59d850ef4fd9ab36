"""What each number of live recognition is worth: one at a time is changed, all else stays.

    python benchmarks/sensitivity.py [NAME ...] [--data DIR ...] [--sounds A] [-m tiny.en]
        [--noise crowd mumble babble] [--out build/sensitivity]

Each row is a live run (as in ``quality.py``) in which one number has another value: about half and
twice as much, or one that switches its rule off. ``NAME`` chooses numbers, by the name of the
setting or constant. Columns: words wrong of those spoken; words shown and taken back, for each word
of the finals; delay until a word is committed and until it is in a final, in ms (median/95 %);
number of finals; words invented in noise, shown and in finals; CPU seconds per second of sound. A
difference of a few words is chance.

``leave_one_out.py`` plays far more speech, without a clock, to find what changes nothing.

The table says which numbers matter and which rules could go. It does not say which value is best:
that would be tuning on these sounds.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import scores
from runs import Run
from sounds import DATA, Sound, sets
from streamd.config import SETTINGS
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

    @contextmanager
    def patched(self, value: object) -> Iterator[None]:
        """The constant has this value inside; a setting is left to the run's options."""
        if self.is_setting:
            yield
            return
        module, _, name = self.name.partition(":")
        usual = getattr(import_module(module), name)
        other = type(usual)(value) if isinstance(value, str) else value
        with ExitStack() as patches:
            for place in [each for key, each in sys.modules.items() if key.startswith("streamd.")]:
                if getattr(place, name, None) is usual:  # where it is defined, and imported
                    patches.enter_context(mock.patch.object(place, name, other))
            yield


NUMBERS = (
    Number("session.shown_prob", ("0", "0.6")),
    Number("session.context_tokens", ("0", "100")),
    Number("agreement.min_progress", ("0", "25")),
    Number("agreement.doubtful_prob", ("0", "0.9")),
    Number("agreement.doubtful_age", ("35", "150")),
    Number("gate.attack", ("5", "20")),
    Number("gate.open_share", ("0.3", "0.9")),
    Number("gate.floor_db", ("-90", "-45")),
    Number("endpoint.pre_roll", ("10", "50")),
    Number("endpoint.pre_final_ms", ("100", "400")),
    Number("endpoint-ms", ("400", "1000")),
    Number("endpoint.sentence", ("10", "40")),
    Number("endpoint.unfinished", ("30", "100")),
    Number("search.stop_margin", ("0", "4")),
    Number("search.least_evidence", ("-3", "-1.2")),
    Number("search.no_speech_threshold", ("0.3", "1")),
    Number("streamd.session.session:LEFT_OUT", ("35", "100000")),
    Number("streamd.session.session:SHORT_PAUSE", ("0", "150")),
    Number("streamd.session.session:FORCE_AFTER", ("200", "100000")),
    Number("streamd.types:PROBABLE", ("-1.3", "-0.7")),
    Number("streamd.session.rules:MOST_VOICED", ("0", "0.5")),
    Number("streamd.session.commit:COMPLETE_AFTER", ("5", "30")),
    Number("streamd.whisper.recognizer:_SPARE_TOKENS", ("2", "30")),
    Number("streamd.whisper.view:_SHORT", ("0", "32")),
)


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
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    sounds = found_sounds(args.sounds, args.data, args.out)
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


def found_sounds(names: Sequence[str], folders: Sequence[Path], out: Path) -> list[Sound]:
    """Each of these sets, from the first folder that has it."""
    found: list[Sound] = []
    for name in names:
        folder = next((f for f in folders if any((f / "streams").glob(f"{name}*"))), folders[0])
        found += sets([name], folder, out)[name]
    return found


if __name__ == "__main__":
    main()
