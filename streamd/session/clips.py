"""Where there is speech in a recording: the clips that are transcribed of it."""

from array import array

import numpy as np

from streamd.session.gate import Gate, GatedFrame, is_certain
from streamd.session.segmenter import Segmenter
from streamd.types import COLUMNS_PER_FRAME, Clip, Frames, Voiced

MERGED_PAUSE = 200
"""Columns (2 s): longer silence is left out; Whisper copes with shorter silence in a window."""


class SpeechClips:
    """Finds speech while a recording is read: `feed` all of its frames, then ask for `clips`.

    `gate` and `segmenter` belong to it alone. The text is not known yet, so all pauses of the
    segmenter must have one length.
    """

    def __init__(self, gate: Gate, segmenter: Segmenter) -> None:
        if segmenter.options.shortest_pause != segmenter.options.longest_pause:
            raise ValueError("the end of an utterance may not depend on its text")
        self._gate, self._segmenter = gate, segmenter
        self._voiced, self._probs = bytearray(), array("f")

    def feed(self, frames: Frames) -> list[GatedFrame]:
        """Take the next (n, 320) frames; return what the gate says of each."""
        gate, segmenter = self._gate.feed(frames), self._segmenter
        self._voiced += bytes(heard.silence == 0 for heard in gate)
        self._probs.extend(heard.prob for heard in gate)
        segmenter.push(*gate)
        segmenter.forget(segmenter.cursor - segmenter.options.trailing_silence - 2)
        return gate

    @property
    def voiced(self) -> Voiced:
        """For each frame, whether the gate was open."""
        return np.frombuffer(self._voiced, np.bool_)

    def is_certain(self, clip: Clip) -> bool:
        """Whether somebody certainly speaks in a clip; see `streamd.session.gate.is_certain`."""
        start, end = (at // COLUMNS_PER_FRAME for at in (clip.start, clip.end))
        return not self._segmenter.is_judged or is_certain(self._probs[start:end])

    def clips(self, n_columns: int, *, longest: int) -> list[Clip]:
        """The clips of speech; the recording ends here.

        Clips with a short pause between them are merged, up to `longest` columns: fewer windows,
        and more context for each (as in m-bain/whisperX). One that was cut because it was too long
        goes on in the next: where its windows end is seen by their text.
        """
        self._segmenter.flush(doubtful=self._gate.doubtful)
        clips: list[Clip] = []
        for utterance in self._segmenter.utterances:
            if utterance.pause == utterance.start:
                continue  # the silent rest of an utterance that was cut
            start, end = (COLUMNS_PER_FRAME * at for at in (utterance.start, utterance.end or 0))
            if clips and self._belongs(start, end, clips[-1], longest):
                start = clips.pop().start
            silent_end = utterance.pause is not None or end >= n_columns
            clips.append(Clip(start, min(end, n_columns), silent_end))
        return [clip for clip in clips if clip.start < clip.end]

    @staticmethod
    def _belongs(start: int, end: int, before: Clip, longest: int) -> bool:
        """Whether an utterance goes on with the clip before it."""
        if not before.silent_end and start <= before.end:
            return True  # it was cut because it was too long
        return start - before.end <= MERGED_PAUSE and end - before.start <= longest
