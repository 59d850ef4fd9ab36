"""Caption samples that the program has as numpy arrays: python samples.py talk.wav."""

import sys
from collections.abc import Iterator

import numpy as np
import soundfile

from streamd import Captioner, FinalCaption, PartialCaption


def blocks(path: str) -> Iterator[np.ndarray]:
    """Yield float32 arrays of a tenth of a second, as a sound card or a decoder would."""
    with soundfile.SoundFile(path) as file:
        yield from file.blocks(blocksize=file.samplerate // 10, dtype="float32", always_2d=True)


def show(event: PartialCaption | FinalCaption) -> None:
    """Print a caption, and whether it may still change."""
    print(f"{event.end:6.1f} s  {event.text}{'  (final)' if event.is_final else ''}")


if __name__ == "__main__":
    path = sys.argv[1]
    form = soundfile.info(path)
    with (
        Captioner() as captions,
        captions.session(rate_hz=form.samplerate, channels=form.channels) as session,
    ):
        for block in blocks(path):
            session.feed(block)  # returns at once
            for event in session.poll():  # what has come meanwhile, if anything
                show(event)
        session.finish()
        for event in session:  # waits for the rest
            show(event)
