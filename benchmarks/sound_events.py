"""Sounds that streamd would tell of in files: ``python benchmarks/sound_events.py FILE...``.

Prints each sound with when it was told, the minutes of audio, and the CPU time. YAMNet has to be
here (``streamd models get sounds``). With ``--shift`` each file is heard eight times, each time
60 ms later within the windows, and the latest is printed: when a sound begins is chance. With
``--esc50`` FILES are clips of ESC-50, and it prints in how many of each class, and of even and odd
recordings, each sound was told.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile
import soxr

from streamd.engines import yamnet
from streamd.events import Sound
from streamd.sounds import WINDOW, SoundTracker, SoundWindows
from streamd.types import FRAME, SAMPLE_RATE, Samples

_SHIFTS = 8
_WINDOW_MS = WINDOW * 1000 // SAMPLE_RATE


def read(path: Path) -> Samples:
    """Return the samples of a file, mixed and at 16 kHz."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)


def heard(samples: Samples) -> Iterator[tuple[int, Sound]]:
    """Yield each sound as it is at its end, with when it was told first."""
    padded = np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME)
    windows, tracker = SoundWindows(), SoundTracker()
    told: dict[tuple[str, int], tuple[int, Sound]] = {}
    for window in [*windows.feed(padded, 0), *windows.rest()]:
        for sound in tracker.hear([window], yamnet.classify):
            key = sound.label, sound.start_ms
            first_ms, _ = told.get(key, (window.start_ms + _WINDOW_MS, sound))
            told[key] = first_ms, sound
    yield from told.values()


def count(files: Sequence[Path]) -> None:
    """Print which sounds were told in how many clips of a class, which ends their names.

    Names are ``FOLD-RECORDING-TAKE-CLASS.wav``. A second of silence is before each clip.
    """
    clips, told = Counter[tuple[str, int]](), Counter[tuple[str, int, str]]()
    again, delays = 0, []
    for path in files:
        _, recording, _, name = path.stem.split("-")
        half = name, int(recording) % 2
        found = [*heard(np.pad(read(path), (SAMPLE_RATE, 2 * SAMPLE_RATE)))]
        labels = Counter(sound.label for _, sound in found if sound.label != "silence")
        clips[half] += 1
        told.update((*half, label) for label in labels)
        again += sum(n - 1 for n in labels.values())
        delays += [told_ms - sound.start_ms for told_ms, sound in found]
    for name, odd in sorted(clips, key=lambda each: (int(each[0]), each[1])):
        counts = {label: n for (*of, label), n in told.items() if of == [name, odd]}
        print(f"class {name}, {'odd' if odd else 'even'}: {clips[name, odd]} clips, {counts}")
    print(f"told a second time in a clip: {again}; median delay {np.median(delays):.0f} ms")


def main() -> None:
    """Print the sounds of the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--shift", action="store_true", help="hear each file eight times")
    parser.add_argument("--esc50", action="store_true", help="count the clips of each class")
    options = parser.parse_args()
    if options.esc50:
        count(options.files)
        return
    n_samples, busy_s = 0, 0.0
    for path in options.files:
        samples = read(path)
        for shift in range(_SHIFTS if options.shift else 1):
            before_ms = 60 * shift
            shifted = np.pad(samples, (before_ms * SAMPLE_RATE // 1000, 0))
            n_samples += len(shifted)
            began_s = time.process_time()
            for told_ms, sound in heard(shifted):
                start, end = (sound.start_ms - before_ms) / 1000, (sound.end_ms - before_ms) / 1000
                told = (told_ms - before_ms) / 1000
                about = f"{sound.label} {start:.2f}-{end:.2f} s, told at {told:.2f} s"
                print(f"{path.name} +{before_ms} ms: {about}, {sound.prob:.2f}")
            busy_s += time.process_time() - began_s
    minutes = n_samples / SAMPLE_RATE / 60
    print(f"{minutes:.1f} min; {busy_s / minutes / 60:.4f} s of CPU time for each second")


if __name__ == "__main__":
    main()
