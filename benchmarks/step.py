"""What one streaming step costs: random weights of any size, or a model.

    python benchmarks/step.py [--dims base.en small.en] [--steps 20] [NAME=VALUE...]

5 s of audio, a step of 500 ms, a hypothesis of 20 tokens that a script fixes
(streamd/cli/bench.py). The rows: as in a stream, with the last hypothesis for a draft; without a
draft; at the full encoder context. Without ``--dims`` it is the model of the options
(``model=...``). Prints a table and, last, one JSON line.
"""

import argparse
import json

import msgspec

from lab.random_model import random_model
from streamd.cli.bench import bench_step, step_table
from streamd.config import load
from streamd.system.processor import machine


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", nargs="+", default=[])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("option", nargs="*", metavar="NAME=VALUE", help="streamd's options")
    args = parser.parse_intermixed_args()
    given = dict(option.split("=", 1) for option in args.option)
    config = load({"model": "tiny.en"} | given, {})
    rows = []
    for dims in args.dims or [""]:
        model = random_model(dims) if dims else None
        result = bench_step(config, model, n_steps=args.steps)
        print(step_table(result), flush=True)
        rows.append(msgspec.to_builtins(result))
    told = {"steps": rows, "machine": msgspec.to_builtins(machine()), "options": given}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
