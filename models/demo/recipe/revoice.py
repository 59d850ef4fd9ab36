"""Make more speakers out of the recorded and synthetic ones: ``revoice.py CLIPS [SHARD ...]``.

There are few people who say digits, most of them men. WORLD (the ``pyworld`` package, MIT) takes a
voice apart into pitch, spectral envelope and breath; another pitch and another length of the vocal
tract make another speaker who says the same words at the same times.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyworld
from clips import RATE_HZ, Clip, Samples, Shard, audible, load_shard

#: Per shard: how many clips a new speaker says, and the new speakers, each as pitch in Hz and
#: factor of the formants.
SPEAKERS = {
    "real-fsdd": (100, ((210, 1.17), (185, 1.1), (250, 1.24), (95, 0.9), (150, 1.03))),
    "real-asterisk_en": (350, ((110, 0.84), (250, 1.08))),
    "real-kathleen": (450, ((100, 0.85),)),
    "real-ljspeech": (450, ((115, 0.86),)),
    "flite-rms": (300, ((220, 1.18), (150, 1.08))),
    "flite-awb": (300, ((215, 1.16), (105, 0.92))),
    "flite-slt": (300, ((105, 0.86), (240, 1.1))),
    "flite-rms-fast": (250, ((225, 1.18), (140, 1.06))),
    "flite-awb-fast": (250, ((215, 1.15), (100, 0.92))),
    "flite-slt-fast": (250, ((110, 0.86), (235, 1.09))),
    "festival-cmu_us_slt_arctic_hts": (300, ((120, 0.88),)),
}


def revoiced(x: Samples, pitch_hz: float, formants: float) -> Samples:
    """Say ``x`` (n samples) with another mean pitch and a vocal tract shorter by ``formants``."""
    sound = np.asarray(x, np.float64)
    pitch, times = pyworld.dio(sound, RATE_HZ, f0_floor=60.0, f0_ceil=400.0)
    pitch = pyworld.stonemask(sound, pitch, times, RATE_HZ)
    envelope = pyworld.cheaptrick(sound, pitch, times, RATE_HZ)
    breath = pyworld.d4c(sound, pitch, times, RATE_HZ)
    voiced = pitch > 0
    if voiced.any():
        pitch[voiced] *= pitch_hz / np.median(pitch[voiced])
    bins = np.arange(envelope.shape[1])
    source = np.minimum(bins / formants, bins[-1])
    low = source.astype(int)
    share = source - low
    high = np.minimum(low + 1, bins[-1])
    log = np.log(envelope)
    warped = np.exp(log[:, low] * (1 - share) + log[:, high] * share)
    said = pyworld.synthesize(pitch, np.ascontiguousarray(warped), breath, RATE_HZ)
    return np.pad(said, (0, max(0, len(x) - len(said))))[: len(x)].astype(np.float32)


def chosen(clips: Sequence[Clip], count: int, r: np.random.Generator) -> list[Clip]:
    """Draw clips for a new speaker: single words first, what is outside the vocabulary last."""
    order = {"digit": 0, "word": 0, "phrase": 1, "unknown": 2}
    usable = [c for c in clips if not c.held and c.kind in order and len(c.samples) < 8 * RATE_HZ]
    mixed = [usable[i] for i in r.permutation(len(usable))]
    return sorted(mixed, key=lambda c: order[c.kind] * (r.random() < 0.7))[:count]


def main() -> None:
    """Write one shard of new speakers for each shard that has some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path)
    parser.add_argument("shard", nargs="*", help="default: all that have new speakers")
    parser.add_argument("--out", type=Path, help="default: CLIPS")
    args = parser.parse_args()
    for name in args.shard or SPEAKERS:
        (count, speakers), shard = SPEAKERS[name], Shard()
        r = np.random.default_rng(zlib.crc32(name.encode()))
        clips = load_shard(args.clips / name)
        for voice in sorted({clip.voice for clip in clips if not clip.held}):
            own = [clip for clip in clips if clip.voice == voice]
            for pitch_hz, formants in speakers:
                for clip in chosen(own, count, r):
                    pitch = pitch_hz * float(r.uniform(0.92, 1.08))
                    x = revoiced(audible(clip), pitch, formants * float(r.uniform(0.98, 1.02)))
                    shard.add(replace(clip, samples=x, voice=f"{voice}~{pitch_hz}"))
        shard.save((args.out or args.clips) / f"re{name}")


if __name__ == "__main__":
    main()
