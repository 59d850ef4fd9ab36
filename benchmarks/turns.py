"""When a turn ends: how many are ended too early, how late the others, and how soon text is there.

    python benchmarks/turns.py ends [--conversations ../shared/data/conversations]
        [--data ../shared/data/eval] [--sounds conv3 conv7 clips] [-m tiny.en] [--out build/turns]
    python benchmarks/turns.py times [--data ../shared/data/eval] [-m tiny.en] [--streams 1 4]

``ends`` plays each turn alone, with silence around it, on a clock on which computing takes no time,
and notes each pause of at least 120 ms (``endpoint.pre_final_ms``), with its text and smart-turn's
probability. From these it computes, for each rule and threshold, the share of *turns ended too
early* (a pause inside the turn was long enough) and the *delay* of the end (the silence after the
last word that the rule wants; the time to compute comes on top, see ``times``). A turn is a segment
of a conversation or a clip. The rules: silence alone; punctuation alone (120 ms behind a sentence,
else a pause); smart-turn alone (120 ms from a probability on, else 1.5 s); streamd's ``--endpoint
silence`` and ``smart``.

``times`` starts ``streamd serve`` and plays clips to it in real time, in Deepgram's dialect, as
Pipecat's stt-benchmark does. TTFS, time to final segment: from the end of the last word to the
final text, with a ``Finalize`` 200 ms after that word; *answer*: from the ``Finalize`` on. *Voice*:
from the beginning of the first word to the first event. *Eager end*: in the Flux dialect, from the
end of the last word to EagerEndOfTurn or EndOfTurn, for the clips that have one within a second.
*Word shown*, in the native protocol: from the end of a word that the final has right to the first
caption with it (Picovoice's word emission latency).
Prints tables and, last, one JSON line.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soundfile
import websockets

import sounds
from lab.eventlog import Said
from lab.latency import SpokenWord, segments, word_latencies
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Final, Partial, SessionEvent, TurnEvent, TurnState
from streamd.options import EndpointOptions
from streamd.session.segmenter import ending_pause
from streamd.types import FRAME, FRAME_MS, SAMPLE_RATE, Frames, Word, frames_from_ms
from tables import table

_BEFORE_S, _AFTER_S = 0.5, 0.6
_PATIENT = "3000"
"""No pause is so long: every one of a turn is noted."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of at least 120 ms; `frames` is its length, 0 for the one after the turn."""

    frames: int
    prob: float
    words: tuple[tuple[str, float], ...]

    @property
    def spoken(self) -> list[Word]:
        """The words before it, without their times."""
        return [Word(f" {text}", 0, 0, prob) for text, prob in self.words]


@dataclass(frozen=True)
class Talk:
    """A turn, and where it ends."""

    name: str
    samples: np.ndarray


Rule = Callable[[Pause], int]
"""Frames of silence after which a pause ends the turn."""


def talks(name: str, conversations: Path, data: Path) -> Iterator[Talk]:
    """The turns of a conversation that nobody talks into, or all clips in English."""
    if name == "clips":
        for clip in sounds.clips(data):
            samples, _ = soundfile.read(clip.path, dtype="float32")
            last_s = clip.words[-1].end_ms / 1000 if clip.words else len(samples) / SAMPLE_RATE
            yield Talk(clip.name, samples[: round((last_s + 0.1) * SAMPLE_RATE)])
        return
    path = sounds.stream(conversations, name).path
    samples, _ = soundfile.read(path, dtype="float32")
    rows = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["segments"]
    bounds = [(row["start"], row["end"]) for row in rows]
    for n, (start_s, end_s) in enumerate(bounds):
        others = bounds[:n] + bounds[n + 1 :]
        if all(end <= start_s or start >= end_s for start, end in others):
            begin, end = (round(at * SAMPLE_RATE) for at in (start_s, end_s))
            yield Talk(rows[n]["id"], samples[begin:end])


class Listener:
    """The model with every pause noted."""

    def __init__(self, model: str) -> None:
        given: dict[str, str | list[str]] = {
            "model": model,
            "language": "en",
            "threads": "1",
            "endpoint": "smart",
            "endpoint-ms": _PATIENT,
        }
        config = load(given, {})
        pauses = dict.fromkeys(("sentence", "unfinished", "going_on"), config.endpoint.plain)
        endpoint = replace(config.endpoint, **pauses)
        self._config = replace(config, endpoint=endpoint)
        opened = open_model(self._config, wait=True)
        self._recognizer = build.answering(build.recognizer(self._config, *opened))

    def pauses(self, talk: Talk) -> list[Pause]:
        """The pauses of a turn, the last one after its end; without, nobody heard it end."""
        quiet = np.random.default_rng(0).normal(0, 1e-4, round(_AFTER_S * SAMPLE_RATE))
        around = (np.zeros(round(_BEFORE_S * SAMPLE_RATE)), talk.samples, quiet)
        sound = np.concatenate(around).astype(np.float32)
        frames: Frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME)
        session = build.new_session(self._config)
        found: list[Pause] = []
        words: tuple[tuple[str, float], ...] = ()
        began_ms = 0
        for frame in frames:
            events = session.feed(frame[None])
            while (window := session.next_window()) is not None:
                events += session.accept(window, self._recognizer.recognize(window))
            for event in events:
                words = _words(event, words)
                if isinstance(event, TurnEvent) and event.state == TurnState.PAUSED:
                    began_ms = event.t_ms
                    found.append(Pause(frames=0, prob=event.prob, words=words))
                elif isinstance(event, TurnEvent) and event.state == TurnState.RESUMED:
                    length = (event.t_ms - began_ms) // FRAME_MS
                    found[-1] = msgspec.structs.replace(found[-1], frames=length)
        return found


def _words(
    event: SessionEvent, before: tuple[tuple[str, float], ...]
) -> tuple[tuple[str, float], ...]:
    if not isinstance(event, Partial):
        return before
    return tuple((word.text, word.prob) for word in event.words)


def rules() -> dict[str, list[tuple[str, Rule]]]:
    """The rules with their thresholds, those of a curve in order."""
    times = (200, 300, 400, 500, 600, 800, 1000, 1500)
    probs = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    at_least = EndpointOptions().trailing_silence
    return {
        "silence alone": [(f"{t} ms", _constant(t)) for t in times],
        "punctuation alone": [(f"{t} ms", _punctuation(t, at_least)) for t in times],
        "smart-turn alone": [(f"{p}", _sound(p, at_least)) for p in probs],
        "--endpoint silence": [(f"{t} ms", _streamd(t, "silence")) for t in times],
        "--endpoint smart": [(f"{t} ms", _streamd(t, "smart")) for t in times],
        "--endpoint smart, 200 ms": [(f"{p}", _streamd(200, "smart", p)) for p in probs],
    }


def _constant(ms: int) -> Rule:
    return lambda pause: frames_from_ms(ms)


def _punctuation(ms: int, at_least: int) -> Rule:
    def rule(pause: Pause) -> int:
        is_end = ending_pause(pause.spoken, EndpointOptions()) == EndpointOptions().sentence
        return at_least if is_end else frames_from_ms(ms)

    return rule


def _sound(prob: float, at_least: int) -> Rule:
    return lambda pause: at_least if pause.prob >= prob else EndpointOptions().going_on


def _streamd(ms: int, rule: str, prob: float = EndpointOptions().turn_prob) -> Rule:
    plain = frames_from_ms(ms)
    options = EndpointOptions()
    options = replace(options, plain=plain, sentence=min(plain, options.sentence), turn_prob=prob)

    def wanted(pause: Pause) -> int:
        return ending_pause(pause.spoken, options, pause.prob if rule == "smart" else None)

    return wanted


def judged(turns: Sequence[Sequence[Pause]], rule: Rule) -> dict[str, float]:
    """The share of turns that a rule ends too early, and the delay of the others' ends in ms."""
    early = [any(p.frames >= rule(p) for p in pauses if p.frames) for pauses in turns]
    ends = [pauses[-1] for pauses in turns if pauses and not pauses[-1].frames]
    delays = sorted(rule(pause) * FRAME_MS for pause in ends)
    return {
        "early": sum(early) / len(turns),
        "median_ms": statistics.median(delays),
        "p95_ms": delays[round(0.95 * (len(delays) - 1))],
        "unheard": sum(not pauses or bool(pauses[-1].frames) for pauses in turns),
    }


def ends(options: argparse.Namespace) -> dict[str, Any]:
    """Play the turns, or read what was kept of them, and print the curves."""
    told: dict[str, Any] = {}
    listener: Listener | None = None
    for name in options.sounds:
        kept = options.out / Path(options.model).name / f"{name}.json"
        if not kept.exists():
            listener = listener or Listener(options.model)
            played = [listener.pauses(talk) for talk in talks(name, *_folders(options))]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(msgspec.json.encode(played))
        turns = msgspec.json.decode(kept.read_bytes(), type=list[list[Pause]])
        n_pauses = sum(bool(pause.frames) for pauses in turns for pause in pauses)
        print(f"\n## {name}: {len(turns)} turns with {n_pauses} pauses inside\n")
        rows, found = [], []
        for rule, settings in rules().items():
            for setting, wanted in settings:
                result = judged(turns, wanted)
                found.append({"rule": rule, "setting": setting, **result})
                early = f"{100 * result['early']:.1f}"
                rows.append((rule, setting, early, result["median_ms"], result["p95_ms"]))
        print(table(("rule", "from", "ended too early, %", "delay, ms", "95 %"), rows))
        told[name] = {"turns": len(turns), "pauses": n_pauses, "rules": found}
    return {"ends": told, "model": options.model}


def _folders(options: argparse.Namespace) -> tuple[Path, Path]:
    return options.conversations, options.data


# What a running server takes
@dataclass(frozen=True)
class Clip:
    """16-bit samples, and when the first word begins, and each of them ends."""

    pcm: bytes
    first_ms: int
    words: tuple[SpokenWord, ...]

    @property
    def last_ms(self) -> int:
        """When the last one ends."""
        return self.words[-1].end_ms or 0


def short_clips(data: Path, n_most: int) -> list[Clip]:
    """Clips of 3 to 9 s with silence around them, cut right behind the last word."""
    found = []
    for clip in sounds.clips(data):
        samples, _ = soundfile.read(clip.path, dtype="float32")
        if not clip.words or not 3 < len(samples) / SAMPLE_RATE < 9:
            continue
        last_ms = clip.words[-1].end_ms
        spoken = samples[: (last_ms + 50) * SAMPLE_RATE // 1000]
        quiet = np.random.default_rng(0).normal(0, 1e-4, SAMPLE_RATE * 3 // 2)
        sound = np.concatenate((np.zeros(SAMPLE_RATE // 2), spoken, quiet))
        pcm = (sound * 32767).clip(-32768, 32767).astype("<i2").tobytes()
        words = tuple(replace(word, end_ms=word.end_ms + 500) for word in clip.words)
        found.append(Clip(pcm, clip.words[0].start_ms + 500, words))
    return found[:n_most]


_BLOCK_MS = 20


async def played(url: str, clip: Clip, until_ms: int, command: str) -> list[tuple[float, Any]]:
    """Play a clip in real time, say the command, and return what comes, in ms of the clip."""
    loop, told = asyncio.get_running_loop(), []
    async with websockets.connect(url) as connection:
        began_s = loop.time()

        async def listen() -> None:
            async for text in connection:
                message = json.loads(text)
                told.append(((loop.time() - began_s) * 1000, message))
                if message.get("from_finalize"):
                    await connection.send('{"type":"CloseStream"}')

        listening = asyncio.create_task(listen())
        n_bytes = _BLOCK_MS * SAMPLE_RATE // 1000 * 2
        for n, begin in enumerate(range(0, len(clip.pcm), n_bytes), 1):
            if n * _BLOCK_MS > until_ms:
                break
            await asyncio.sleep(max(0.0, began_s + n * _BLOCK_MS / 1000 - loop.time()))
            await connection.send(clip.pcm[begin : begin + n_bytes])
        said_ms = (loop.time() - began_s) * 1000
        await connection.send(json.dumps({"type": command}))
        await listening
    return [(said_ms, {"type": "said"}), *told]


async def timed(port: int, clip: Clip) -> dict[str, list[float]]:
    """What one clip took, in ms: once, or for each word."""
    query = f"encoding=linear16&sample_rate={SAMPLE_RATE}&interim_results=true"
    url = f"ws://127.0.0.1:{port}/v1/listen?{query}&endpointing=false&vad_events=true"
    (said_ms, _), *told = await played(url, clip, clip.last_ms + 200, "Finalize")
    found = {"voice": [next(ms for ms, _ in told) - clip.first_ms]}
    final_ms = next(ms for ms, message in told if message.get("from_finalize"))
    found |= {"answer": [final_ms - said_ms], "ttfs": [final_ms - clip.last_ms]}
    url = f"ws://127.0.0.1:{port}/v2/listen?{query}&eager_eot_threshold=0.5&eot_threshold=0.7"
    _, *told = await played(url, clip, clip.last_ms + 1_000, "CloseStream")
    eager = [
        ms - clip.last_ms
        for ms, message in told
        if message.get("event") in ("EagerEndOfTurn", "EndOfTurn") and ms > clip.last_ms
    ]
    if eager and eager[0] < 1_000:
        found["eager end"] = eager[:1]
    url = f"ws://127.0.0.1:{port}/v1/stream?role=both"
    said = [
        Said(t_ms=ms, heard_ms=0, event=msgspec.convert(message, Partial | Final))
        for ms, message in await played(url, clip, clip.last_ms + 1_000, "stop")
        if message["type"] in {"partial", "final"}
    ]
    shown = word_latencies(segments(said), clip.words)
    return found | {"word shown": [word.first for word in shown]}


async def times(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, play all clips to it by so many at a time, print how long it took."""
    clips, rows, told = short_clips(options.data, options.clips), [], []
    program = Path(sys.executable).with_name("streamd")
    for n_streams in options.streams:
        server = await asyncio.create_subprocess_exec(
            *(program, "serve", "--port", "0", "-m", options.model, "--language", "en"),
            stderr=asyncio.subprocess.PIPE,
        )
        assert server.stderr is not None
        while not (found := re.search(rb"127\.0\.0\.1:(\d+)/", await server.stderr.readline())):
            pass
        port, taken = int(found[1]), []
        await timed(port, clips[0])  # the model is loaded
        for begin in range(0, len(clips), n_streams):
            some = (timed(port, clip) for clip in clips[begin : begin + n_streams])
            taken += await asyncio.gather(*some)
        server.terminate()
        await server.communicate()
        for kind in ("answer", "ttfs", "voice", "eager end", "word shown"):
            values = [ms for each in taken for ms in each.get(kind, ())]
            if not values:
                continue
            spread = [round(float(np.percentile(values, at))) for at in (50, 95, 99)]
            rows.append((n_streams, kind, len(values), *spread))
            told.append({"streams": n_streams, "what": kind, "n": len(values), "ms": spread})
    print(table(("streams", "ms", "number", "median", "95 %", "99 %"), rows))
    return {"times": told, "model": options.model}


def main() -> None:
    """Measure what the first argument says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("ends", "times"))
    parser.add_argument("--conversations", type=Path, default=sounds.DATA.parent / "conversations")
    parser.add_argument("--data", type=Path, default=sounds.DATA)
    parser.add_argument("-m", "--model", default="tiny.en")
    parser.add_argument("--out", type=Path, default=Path("build/turns"))
    parser.add_argument("--sounds", nargs="+", default=["conv3", "conv7", "clips"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--clips", type=int, default=24)
    options = parser.parse_args()
    told = ends(options) if options.what == "ends" else asyncio.run(times(options))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
