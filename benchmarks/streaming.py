"""How soon each word is there, and what that costs: the daemon's stations on recordings.

    python benchmarks/streaming.py [FILE...] [--clock virtual] [--log LOG] [NAME=VALUE...]

FILE is a sound with its words beside it (benchmarks/lab/recordings.py says how), or a ``.jsonl``
event log that ``--log`` wrote before; by default the recording of ``make demo``. The clock is
"real" and waits for the audio as a user does; "virtual" does not wait, and computing takes its time
nevertheless; with "cpu" it takes its CPU time, for a machine that is busy otherwise; with "free"
none. Options are streamd's, such as ``model=base.en``. Prints a table and, last, a JSON line.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from lab.eventlog import Began, Log, read_log, write_log
from lab.metrics import Metrics, Spread, measure
from lab.recordings import Recording, fits, offline, read_recording, with_times
from lab.replay import Clock, replay
from sounds import RECORDING
from streamd.cli.bench import n_edits, spoken
from streamd.config import Config, load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.types import FRAME_MS, ms_from_frames, text_of
from streamd.whisper.recognizer import Recognizer


class Bench:
    """A model on its engine, loaded once, for streams and for offline passes."""

    def __init__(self, config: Config) -> None:
        """Open the configured model; raises as `open_model` does."""
        model, engine = open_model(config, wait=True)
        tokenizer = build.tokenizer(config, model)
        options = build.decoding_options(config, model)
        whole = replace(options, audio_ctx=model.dims.n_audio_ctx)
        self._config, self._model = config, model
        self.live = Recognizer(engine, tokenizer, options)
        self._whole = Recognizer(engine, tokenizer, whole)

    def stream(self, recording: Recording, clock: Clock) -> Log:
        """The log of the recording, played from its beginning to its end."""
        began = Began(
            name=recording.name,
            model=self._model.name,
            clock=clock,
            step_ms=ms_from_frames(self._config.session.step),
            audio_ms=recording.audio_ms,
        )
        new_session = partial(build.new_session, self._config)
        (log,) = replay([self.live], new_session, [recording.frames], began=began)
        return log

    def timed(self, recording: Recording) -> tuple[Recording, float | None]:
        """The recording with times for its words, and the word error rate of the offline pass.

        Where the words have times already, or nobody knows the words, there is no such pass; no
        error rate where a clip is longer than the 30 s that the model hears at once.
        """
        said = spoken(recording.text)
        if not recording.clips or not said:
            return recording, None
        heard = offline(self._whole, recording)
        if not all(fits(clip) for clip in recording.clips):
            return with_times(recording, heard), None
        n_wrong = n_edits(said, spoken(" ".join(text_of(each.words) for each in heard)))
        return with_times(recording, heard), round(n_wrong / len(said), 4)


def as_table(metrics: Metrics, *, wer_offline: float | None = None) -> str:
    """The scores for people."""
    m = metrics
    lines = [
        _line("words", f"{m.words}", _wer(m.wer, wer_offline)),
        f"{'ms':34} {'median':>9} {'p95':>9} {'n':>6}",
        _times("word: end of it to first shown", m.first),
        _times("word: to shown for good", m.stable),
        _times("word: to promised", m.final),
        _times("final: from the last word's end", m.final_delay),
        _times("  until the silence is long enough", m.endpoint),
        _times("  behind it: waiting for the engine", m.queue),
        _times("  behind it: computing", m.compute),
        _times("window: computing", m.window),
        _line("first text", _ms(m.first_partial_ms), "behind the first word's beginning"),
        _line("most behind", _ms(m.lag_ms), "between audio and the partial about it"),
        _line("erasure", f"{m.erasure_words:.3f}", f"words; characters {m.erasure_characters:.3f}"),
        _line("commit violations", f"{m.commit_violations}", "must be 0"),
        _line("dropped audio", _ms(m.dropped_ms), "must be 0"),
        _line("rtf", f"{m.rtf:.3f}", f"CPU seconds per second of audio {m.cpu_share:.3f}"),
        _line("slow windows", f"{m.slow_windows:.1%}", f"steps merged {m.merged_steps}"),
        _line("window", f"{m.encoded_frames * FRAME_MS:.0f}", "ms of audio in the mean"),
        _line("draft kept", f"{m.accepted}/{m.drafted}", "tokens"),
        _line("peak memory", f"{m.peak_rss_mb:.0f} MB", ""),
    ]
    return "\n".join(lines) + "\n"


def _wer(wer: float | None, wer_offline: float | None) -> str:
    if wer is None:
        return "nobody knows what was said"
    told = f"word error rate {wer:.1%}"
    if wer_offline is None:
        return told
    return f"{told}, offline {wer_offline:.1%}, difference {wer - wer_offline:+.1%}"


def _times(name: str, times: Spread) -> str:
    middle, bad = (" -" if t is None else f"{t:.0f}" for t in (times.median, times.p95))
    return f"{name:34} {middle:>9} {bad:>9} {times.n:6}"


def _line(name: str, value: str, remark: str) -> str:
    return f"{name:34} {value:>9}  {remark}".rstrip()


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f} ms"


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
        scores = measure(log, recording.words, recording.text)
        print(f"{path.name}, {args.clock} clock\n{as_table(scores, wer_offline=wer_offline)}")
        row = msgspec.to_builtins(scores) | {"file": path.name, "wer_offline": wer_offline}
        rows.append(row)
    print(json.dumps({"streaming": rows, "clock": args.clock, "options": given}))


if __name__ == "__main__":
    main()
