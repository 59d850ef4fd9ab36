"""What the microphone of a call hears of the loudspeaker: how much of it is captioned twice.

    python benchmarks/call.py --lines LINES.jsonl [-m MODEL] [--seed N] [--seconds S]

LINES are as for ``speakers.py``. Two people of one game talk in turn, with pauses of 0 to 1 s and
some overlaps. One is in the track of the computer; the other is in that of the microphone, which
also hears the first one, later by 20, 100 or 300 ms and quieter by 10, 20 or 30 dB, and noise of
-60 dBFS. Both are captioned live, as by ``--device mic+system``, on a clock on which computing
takes no time. Prints a line of JSON for each: `doubled`, the words in captions of the microphone
while only the other one talks, `before` and after `EchoGuard`; `own`, those while its own speaker
talks; and `wait_s`, how much later a final of the microphone comes (median, and the longest).
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dialogues import _decoded
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engines.voices import Listener
from streamd.events import Final, SessionEvent
from streamd.session.channels import SplitSession
from streamd.session.echo import MIC, EchoGuard
from streamd.system.processor import machine
from streamd.types import FRAME, SAMPLE_RATE

DELAYS_MS, LEVELS_DB = (20, 100, 300), (-10, -20, -30)
_PIECE = 5  # frames that come at once
_OVERLAPPED, _NOISE = 0.2, 1e-3

Span = tuple[float, float]
Sound = NDArray[np.float32]


class Watching(EchoGuard):
    """Notes what would be told without it, and how long finals wait."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Final] = []
        self.waits_ms: list[int] = []
        self._came: dict[int, int] = {}

    def take(
        self, events: Sequence[SessionEvent], read_ms: int, *, is_over: bool = False
    ) -> list[SessionEvent]:
        """Note them, and do as it does."""
        for event in events:
            if isinstance(event, Final) and event.channel == MIC:
                self.before.append(event)
                self._came[event.seg] = self._now_ms
        told = super().take(events, read_ms, is_over=is_over)
        for event in told:
            if isinstance(event, Final) and event.channel == MIC:
                self.waits_ms.append(self._now_ms - self._came[event.seg])
        return told


def call(lines: Path, seconds: float, seed: int) -> tuple[Sound, Sound, list[Span], list[Span]]:
    """Return the track of each person, and when each talks, in s."""
    rng = np.random.default_rng(seed)
    every = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    said = {who: [each for each in every if each["speaker"] == who] for who in ("FAYE", "JOE")}
    tracks = np.zeros((2, round((seconds + 10) * SAMPLE_RATE)), np.float32)
    spans: tuple[list[Span], list[Span]] = [], []
    end, side = 0.5, 1
    left = [[*rng.permutation(len(each))] for each in said.values()]
    while end < seconds:
        line = [*said.values()][side][left[side].pop()]
        first, after = (round(SAMPLE_RATE * at) for at in line["speech"])
        part = _decoded(lines.parent / line["path"])[first:after]
        overlaps = rng.random() < _OVERLAPPED and end > 1
        start = end + (-rng.uniform(0.2, 1) if overlaps else rng.uniform(0, 1))
        at = round(SAMPLE_RATE * start)
        tracks[side, at : at + len(part)] += part
        end = start + len(part) / SAMPLE_RATE
        spans[side].append((start, end))
        side = 1 - side
    n = round((end + 1) * SAMPLE_RATE) // FRAME * FRAME
    return tracks[0, :n], tracks[1, :n], *spans


def heard(mine: Sound, theirs: Sound, delay_ms: int, level_db: float) -> Sound:
    """Return what the microphone hears."""
    n = SAMPLE_RATE * delay_ms // 1000
    echo = np.concatenate([np.zeros(n, np.float32), theirs])[: len(mine)]
    noise = np.random.default_rng(0).standard_normal(len(mine)).astype(np.float32)
    mixed: Sound = mine + 10 ** (level_db / 20) * echo + _NOISE * noise
    return mixed


def captioned(
    session: SplitSession, frames: NDArray[np.float32], listener: Listener
) -> list[Final]:
    """Return the finals of a call, of which pieces come and are read at once."""
    events: list[SessionEvent] = []

    def read() -> None:
        while (window := session.next_window()) is not None:
            events.extend(session.accept(window, listener.recognize(window)))

    for at in range(0, len(frames), _PIECE):
        events += session.feed(frames[at : at + _PIECE])
        read()
    events += session.flush()
    read()
    return [event for event in events if isinstance(event, Final)]


def words(finals: Iterable[Final], inside: Sequence[Span], outside: Sequence[Span]) -> int:
    """Return how many words of the microphone are in the middle of a span, and of no other."""
    middles = [
        (word.start_ms + word.end_ms) / 2000
        for final in finals
        if final.channel == MIC
        for word in final.words
    ]
    return sum(_in(at, inside) and not _in(at, outside) for at in middles)


def _in(at: float, spans: Sequence[Span]) -> bool:
    return any(start - 0.1 <= at < end + 0.1 for start, end in spans)


def main() -> None:
    """Caption the call with each echo, and without any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("-m", "--model", default="tiny.en")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    config = load({"model": args.model, "language": "en"}, {})
    listener = Listener(build.recognizer(config, *open_model(config, wait=True)))
    mine, theirs, my_spans, their_spans = call(args.lines, args.seconds, args.seed)
    print(json.dumps({"machine": msgspec.to_builtins(machine()), "model": args.model}))
    for delay_ms, level_db in ((0, -np.inf), *product(DELAYS_MS, LEVELS_DB)):
        late = [(start, end + delay_ms / 1000) for start, end in their_spans]
        mic = heard(mine, theirs, delay_ms, level_db)
        frames = np.stack([each.reshape(-1, FRAME) for each in (mic, theirs)], 1)
        session = SplitSession(lambda: build.new_session(config))  # type: ignore[arg-type, return-value]
        session._guard = guard = Watching()
        finals = captioned(session, frames, listener)
        waits = sorted(guard.waits_ms)
        facts = {
            "delay_ms": delay_ms,
            "level_db": None if np.isinf(level_db) else level_db,
            "doubled": {
                "before": words(guard.before, late, my_spans),
                "after": words(finals, late, my_spans),
            },
            "own": {
                "before": words(guard.before, my_spans, late),
                "after": words(finals, my_spans, late),
            },
            "wait_s": [waits[len(waits) // 2] / 1000, waits[-1] / 1000] if waits else None,
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
