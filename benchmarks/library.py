"""How long a library of many hours takes to search, in CPU time of one process.

    python benchmarks/library.py --hours 1000

It fills a library with finals of 3.6 s whose words are drawn by Zipf's law, as in real text, in
sessions of an hour, and then looks for rare and frequent words, phrases, beginnings and speakers.
Each figure is the median of five searches for at most 50 sentences, with a connection of their own.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from streamd.events import Final, TimedWord
from streamd.library.edits import Edits, Naming
from streamd.library.shelf import Shelf, sought
from streamd.library.tables import opened
from streamd.streams.journal.tables import Run, put_event, put_run

FINAL_MS = 3600
N_WORDS = 9  # of a final: 150 a minute
VOCABULARY = 50_000
QUERIES = (
    "w40000",
    "w0",
    "w0 w1 w2 w3",
    '"w1 w0 w2"',
    "w30*",
    "w1*",
    "w0 speaker:2",
    "w500 speaker:9",
    "w0 speaker:Ana",
    "w0 lang:en after:2001-01-01 before:2002-01-01",
    "nowhere",
)


def fill(folder: Path, hours: int) -> None:
    """Make a library of sessions of an hour each."""
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    n_finals = 3_600_000 // FINAL_MS
    with opened(folder) as library:
        for hour in range(hours):
            drawn = rng.choice(VOCABULARY, (n_finals, N_WORDS), p=weights / weights.sum())
            number = library.begin(f"hour-{hour}").number
            finals = [_final(seq, row) for seq, row in enumerate(drawn.tolist(), 1)]

            def put(cursor, number=number, finals=finals, hour=hour):  # noqa: ANN001, ANN202 - as put_event
                for final in finals:
                    put_event(cursor, number, final, 1e9 + hour * 3600)
                ((data,),) = cursor.execute("SELECT run FROM runs WHERE id = ?", (number,))
                run = msgspec.json.decode(data, type=Run)
                ended = msgspec.structs.replace(run, seq=n_finals, end_ms=3_600_000, ended="end")
                put_run(cursor, number, ended, 1e9 + hour * 3600)

            library.write(put)
            library.sync()


def _final(seq: int, row: list[int]) -> Final:
    start_ms = (seq - 1) * FINAL_MS
    words = tuple(
        TimedWord(
            text=f"w{word}",
            start_ms=start_ms + 400 * i,
            end_ms=start_ms + 400 * (i + 1),
            prob=0.9,
            final=True,
            speaker=seq % 3 + 1,
        )
        for i, word in enumerate(row)
    )
    text = " ".join(word.text for word in words)
    end_ms = start_ms + FINAL_MS
    return Final(
        seq=seq, seg=seq, start_ms=start_ms, end_ms=end_ms, text=text, language="en", words=words
    )


def main() -> None:
    """Fill a library, search it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=10)
    hours = parser.parse_args().hours
    with tempfile.TemporaryDirectory() as folder:
        before_s = time.process_time()
        fill(Path(folder), hours)
        shelf = Shelf(Path(folder))
        # Somebody who says nothing, beside a word that is in every second sentence.
        ana = Edits(revision=0, names=(Naming(speaker=9, name="Ana"),))
        shelf.edit(hours // 2 + 1, ana)
        megabytes = shelf.path.stat().st_size / 1e6
        print(
            f"{hours} hours: {megabytes:.0f} MB, filled in {time.process_time() - before_s:.0f} s"
        )
        print("| search | sentences | CPU ms |\n|---|---:|---:|")
        for query in QUERIES:
            times_s = []
            for _ in range(5):
                before_s = time.process_time()
                n_found = len(shelf.search(sought(query)))
                times_s.append(time.process_time() - before_s)
            print(f"| `{query}` | {n_found} | {1000 * median(times_s):.1f} |")
        before_s = time.process_time()
        n_listed = len(shelf.sessions(200))
        print(f"{n_listed} sessions listed in {1000 * (time.process_time() - before_s):.0f} ms")


if __name__ == "__main__":
    main()
