"""How soon each word is there, and what that costs: the daemon's stations on recordings.

    python benchmarks/streaming.py [FILE...] [--clock virtual] [--log LOG] [NAME=VALUE...]

FILE is a sound with its words beside it (streamd/bench/recordings.py says how), or a ``.jsonl``
event log that ``--log`` wrote before; by default the recording of ``make demo``. The clock is
"real" and waits for the audio as a user does; "virtual" does not wait, and computing takes its time
nevertheless; with "cpu" it takes its CPU time, for a machine that is busy otherwise; with "free"
none. Options are streamd's, such as ``model=base.en``. Prints a table and, last, a JSON line.
"""

import argparse
import json
from pathlib import Path

import msgspec
from sounds import RECORDING

from streamd.bench.eventlog import Log, read_log, write_log
from streamd.bench.metrics import measure
from streamd.bench.recordings import read_recording
from streamd.bench.streaming import Bench, as_table
from streamd.config import load


def main() -> None:
    """Measure each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clock", choices=["real", "virtual", "cpu", "free"], default="real")
    parser.add_argument("--log", type=Path, help="keep the event log of the last file here")
    parser.add_argument("--sound", type=Path, default=RECORDING, help="which a .jsonl is about")
    parser.add_argument("words", nargs="*", metavar="FILE|NAME=VALUE")
    args = parser.parse_intermixed_args()
    given = dict(word.split("=", 1) for word in args.words if "=" in word)
    config = load({"model": "tiny.en"} | given, {})
    bench = Bench(config)
    rows = []
    for path in [Path(word) for word in args.words if "=" not in word] or [RECORDING]:
        kept: Log | None = read_log(path) if path.suffix == ".jsonl" else None
        recording, wer_offline = bench.timed(read_recording(args.sound if kept else path))
        log = kept or bench.stream(recording, args.clock)
        if args.log:
            write_log(args.log, log)
        metrics = measure(log, recording.words, recording.text)
        print(f"{path.name}, {args.clock} clock\n{as_table(metrics, wer_offline=wer_offline)}")
        row = msgspec.to_builtins(metrics) | {"file": path.name, "wer_offline": wer_offline}
        rows.append(row)
    print(json.dumps({"streaming": rows, "clock": args.clock, "options": given}))


if __name__ == "__main__":
    main()
