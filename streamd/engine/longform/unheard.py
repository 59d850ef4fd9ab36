"""Finds speech that the text of a window passes over.

Whisper sometimes ends the text of a window after a few words, or leaves a hole in it, though
somebody speaks all the time. This compares the times of the words with what the voice detector
heard; it knows nothing of models.
"""

import numpy as np
from numpy.typing import NDArray

from streamd.engine.longform.segments import COLUMNS_PER_FRAME, Segment, Split, Stretch
from streamd.types import FRAME, SAMPLE_RATE

Voiced = NDArray[np.bool_]
"""For each frame of a recording, whether somebody speaks."""

_MOST_UNHEARD = 250
"""Frames (5 s): more voice than this without a word is speech that was passed over."""
_LEAST_CHANGE = 50
"""Frames (1 s): a window that begins or ends so near to the one before would show the same."""


def before_unheard(found: Split, stretch: Stretch, voiced: Voiced) -> Split:
    """Keep a window's segments up to the first hole with speech in it; go on from there.

    A hole in the first second is left as it is, so that each window gets on by a second at least.
    """
    begin = heard = stretch.seek // COLUMNS_PER_FRAME
    for n_before, segment in enumerate(found.segments):
        kept = heard
        for start, end in _spans(segment):
            if kept - begin >= _LEAST_CHANGE and _is_speech(voiced[heard:start]):
                return Split(found.segments[:n_before], COLUMNS_PER_FRAME * kept, complete=False)
            heard = max(heard, end)
    if heard - begin >= _LEAST_CHANGE and _is_speech(
        voiced[heard : found.seek // COLUMNS_PER_FRAME]
    ):
        return found._replace(seek=COLUMNS_PER_FRAME * heard, complete=False)
    return found


def unheard_first(found: Split, stretch: Stretch, voiced: Voiced) -> Stretch | None:
    """Return the part of a window before its first word if speech in it was passed over."""
    if not found.segments:
        return None
    begin, (first, _) = stretch.seek // COLUMNS_PER_FRAME, _spans(found.segments[0])[0]
    hole = Stretch(stretch.seek, COLUMNS_PER_FRAME * (first - begin))
    too_long = stretch.n_columns - hole.n_columns < COLUMNS_PER_FRAME * _LEAST_CHANGE
    return None if too_long or not _is_speech(voiced[begin:first]) else hole


def _spans(segment: Segment) -> list[tuple[int, int]]:
    """Return the first and the last frame of each word, or of a segment without words."""
    times = [(word.start_s, word.end_s) for word in segment.words]
    times = times or [(segment.start_s, segment.end_s)]
    per_second = SAMPLE_RATE // FRAME
    return [(round(start * per_second), round(end * per_second)) for start, end in times]


def _is_speech(voiced: Voiced) -> bool:
    return int(np.count_nonzero(voiced)) > _MOST_UNHEARD
