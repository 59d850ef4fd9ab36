"""The captions of a session: partials and finals, with their numbers."""

from collections.abc import Sequence

from streamd.events import Final, Partial, SessionEvent, timed, with_lasting_words
from streamd.session.text import SpokenText
from streamd.types import Hypothesis, Word, ms_from_frames, rounded, text_of, with_marks


class Captions:
    """Writes captions, and numbers them: `seg` is that of the next final, from 1.

    An utterance without words hands its number on, and its partials go on counting.
    """

    def __init__(self) -> None:
        self.seg = 1
        self._rev = 0
        self._shown = ("", 0)

    def begin(self) -> None:
        """Another utterance begins, of which nothing is shown."""
        self._shown = ("", 0)

    def partial(
        self, text: SpokenText, end: int, now: int, *, hides_last: bool = False
    ) -> list[SessionEvent]:
        """Return a partial of the audio up to `end`, if it is new."""
        words = [*text.committed, *text.uncommitted[: len(text.uncommitted) - hides_last]]
        shown = (text_of(words), len(text_of(text.committed)))
        if shown == self._shown:
            return []
        self._shown, self._rev = shown, self._rev + 1
        return [
            Partial(
                seg=self.seg,
                rev=self._rev,
                start_ms=ms_from_frames(text.start),
                end_ms=ms_from_frames(end),
                text=shown[0],
                stable=shown[1],
                words=timed(words, len(text.committed)),
                lag_ms=ms_from_frames(now - end),
            )
        ]

    def final(
        self,
        words: Sequence[Word],
        start: int,
        end: int,
        hypothesis: Hypothesis,
        *,
        continues: bool = False,
    ) -> Final:
        """Return the final of these words, from frame `start` to `end`, and begin the next one.

        The `hypothesis` says in which language they are, and how probable.
        """
        final = Final(
            seg=self.seg,
            start_ms=ms_from_frames(start),
            end_ms=ms_from_frames(end),
            text=text_of(words),
            language=hypothesis.language,
            words=timed(with_marks(words), len(words)),
            continues=continues,
            avg_logprob=rounded(hypothesis.avg_logprob, 4),
            no_speech_prob=rounded(hypothesis.no_speech_prob, 4),
        )
        self.seg, self._rev, self._shown = self.seg + 1, 0, ("", 0)
        return with_lasting_words(final)
