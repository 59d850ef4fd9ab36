"""Make ``recordings.json`` with the openai-whisper package: ``python make_recordings.py FOLDER``

What openai-whisper's ``transcribe`` makes of real recordings, in float32: with the weights in the
box, and with OpenAI's own, whose folders `tiny.en` and `base` FOLDER holds (`make test-real` leaves
them in ``build/real/models``). The recordings and the options are listed in recordings.py. Needs
the environment of make_golden.py, and the recordings of ``../shared``. ``--only TEXT`` makes those
cases anew whose model, sound or options contain it, and keeps the others.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import make_golden  # noqa: E402 - after the path to it
import torch  # noqa: E402
import whisper  # noqa: E402
from chance import fix_chance  # noqa: E402
from whisper.model import Whisper  # noqa: E402

from tests.golden import recordings  # noqa: E402
from tests.golden.recordings import BOX, IN_THE_BOX, REAL, Case  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(recordings.GOLDEN.read_text())["cases"] if args.only else []
    found = {_named(Case(c["model"], c["sound"], c["options"])): c for c in kept}
    cases = recordings.cases()
    for name in (IN_THE_BOX, *REAL):
        chosen = [case for case in cases if case.model == name and args.only in _named(case)]
        if not chosen:
            continue
        in_the_box = name == IN_THE_BOX
        model = make_golden.load(
            BOX if in_the_box else args.folder / name, "tiny.en" if in_the_box else name
        )
        for case in chosen:
            found[_named(case)] = made = transcribe(model, case)
            heat = sorted({segment["temperature"] for segment in made["segments"]})
            print(_named(case), heat, flush=True)
            write([found[key] for key in map(_named, cases) if key in found])


def transcribe(model: Whisper, case: Case) -> dict[str, Any]:
    fix_chance(0)
    options = {"best_of": 5} | case.options  # as its command line
    samples = recordings.samples(case.sound)
    result = whisper.transcribe(model, samples, fp16=False, word_timestamps=True, **options)
    about = {"model": case.model, "sound": case.sound, "options": case.options}
    return about | recordings.compact(result)


def write(cases: list[dict[str, Any]]) -> None:
    document = {"made_with": make_golden.versions(), "cases": cases}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    recordings.GOLDEN.write_text(text.replace('{"model"', '\n{"model"') + "\n")


def _named(case: Case) -> str:
    return f"{case.model} {case.sound} {json.dumps(case.options)}"


if __name__ == "__main__":
    with torch.no_grad():
        main()
