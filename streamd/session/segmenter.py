"""Where utterances begin and end: a pure function of the gate's decisions and of the text so far.

How much silence ends an utterance depends on its last words (sherpa-onnx and RealtimeSTT have such
rules): a finished sentence ends sooner than a dangling "and". The text comes from the recognizer,
which may be late. Utterances must not depend on how late, so the segmenter keeps a track of frames
and reads it at its own pace: where a decision needs the text of a pause, it stops until `answer` is
called, and then catches up. The states of an utterance are those of `streamd.session.utterance`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from streamd.events import Vad
from streamd.language import COMMAS, UNFINISHED, ends_sentence
from streamd.options import EndpointOptions
from streamd.session.gate import CLEAR, GatedFrame, is_certain
from streamd.session.utterance import State, Trigger, Utterance
from streamd.types import Word, ms_from_frames, text_of

FADING = 2
"""Unvoiced frames (40 ms) that may be the beginning of a pause; with one, finals are others."""
DANGLING = 0.5
"""The probability below which a last word may be the start of another one. A word alone is
improbable by nature, since none comes before it."""
SHORT = 50
"""Voiced frames (1 s) up to which an utterance is short. Of 218 single words 213 are that and clear
(`CLEAR`); of 115 cries of pain and anger, of music, coughs and hums, and of voices at once that go
on, none, but the clearest cry had 0.746."""
GOES_ON = 100
"""Frames (2 s) before an utterance in which a certain voice counts for it, too."""


def ending_pause(
    words: Sequence[Word], options: EndpointOptions, turn_prob: float | None = None
) -> int:
    """Frames of silence that end an utterance with these words.

    `turn_prob`: how probable it is that the speaker is done; None if only the words tell.
    """
    text = text_of(words)
    if not text:
        return options.unfinished
    if turn_prob is not None and turn_prob < options.turn_prob:
        return max(_ending_pause(words, text, options), options.going_on)
    return _ending_pause(words, text, options)


def _ending_pause(words: Sequence[Word], text: str, options: EndpointOptions) -> int:
    if ends_sentence(text):
        return options.sentence
    dangles = len(words) > 1 and words[-1].is_doubtful(DANGLING)
    unfinished = text.endswith(tuple(COMMAS)) or dangles
    if unfinished or words[-1].text.strip().lower() in UNFINISHED:
        return options.unfinished
    return options.plain


class Segmenter:
    """Cuts one stream into utterances. The owner takes them from the left of `utterances`."""

    def __init__(self, options: EndpointOptions | None = None) -> None:
        self.options = self.next_options = options or EndpointOptions()
        self.utterances: deque[Utterance] = deque()
        self.cursor = 0
        """The next frame to be read; everything before it is decided."""
        self._base = 0  # frame number of the first entry of the track
        self._track: list[GatedFrame] = []
        self._late = self._unvoiced = 0  # those of the last frame that was read
        self._open: Utterance | None = None
        self._told = False  # whether the last event was that speech started
        self._heard = False  # whether a frame was voiced since the last utterance ended
        self._floor = 0  # the next utterance begins here at the earliest
        self.is_judged = False
        """Whether there is a second detector."""
        self._flush_at: int | None = None
        self._doubtful = False  # whether there may be the start of a word before that

    @property
    def end(self) -> int:
        """Frames pushed so far."""
        return self._base + len(self._track)

    def skip(self, until: int) -> None:
        """Begin no utterance before this frame, which is still to come."""
        self._floor = until

    @property
    def oldest(self) -> int:
        """Frame before which no utterance begins, not even one that is still to come."""
        # A flush may take the frame before the cursor for the start of a word.
        to_come = max(self.cursor - 1 - self.options.pre_roll - self._late, self._floor)
        return min(to_come, self.utterances[0].start) if self.utterances else to_come

    @property
    def may_pause(self) -> bool:
        """Whether a pause may have begun; the gate of an OPEN utterance has not closed yet."""
        return self._unvoiced >= FADING

    def push(self, *heard: GatedFrame) -> list[Vad]:
        """Take what the gate says of the next frames."""
        self._track += heard
        self.is_judged = self.is_judged or any(frame.prob for frame in heard)
        return self._advance()

    def answer(
        self,
        utterance: Utterance,
        words: Sequence[Word],
        turn_prob: float | None = None,
        *,
        sentence: int | None = None,
    ) -> list[Vad]:
        """Take the text of the utterance up to its pause; ignored if none is needed.

        `turn_prob`: see `ending_pause`. `sentence`: where the last sentence of the text begins,
        if not with the utterance.
        """
        if utterance.state is not State.ASKED:
            return []
        limit = ending_pause(words, self.options, turn_prob)
        trailing = self.options.trailing_silence
        # Sentences that are finals have left the utterance; how soon, depends on the engine.
        start = utterance.start if sentence is None else sentence
        if utterance.pause is not None and self._is_long(start, utterance.pause + trailing):
            limit = trailing
        utterance.answer(limit)
        return self._advance()

    def flush(self, *, doubtful: bool = False) -> list[Vad]:
        """End the utterance here: nothing more is coming, or the caller wants its final now.

        `doubtful`: the latest frames may be the start of a word, though the gate is shut.
        """
        self._flush_at, self._doubtful = self.end, doubtful
        return self._advance()

    def split(self, utterance: Utterance, first: int, last: int) -> None:
        """End the utterance between two frames, where it is quietest; the rest is another one.

        The rest is in the state in which the whole was.
        """
        if utterance.pause is not None:
            last = max(first, min(last, utterance.pause))
        at = self.quietest(first, last, near=first)
        rest = replace(utterance, start=at)
        utterance.pause = None
        if utterance.state is State.ENDED:
            utterance.end = at
        else:
            utterance.close(at)
        self.utterances.insert(self.utterances.index(utterance) + 1, rest)
        if self._open is utterance:
            self._open = rest

    def forget(self, before: int) -> None:
        """Drop the track before a frame; utterances that begin earlier cannot be cut there."""
        n = min(before, self.cursor) - self._base
        if n > 0:
            del self._track[:n]
            self._base += n

    def quietest(self, start: int, end: int, *, near: int) -> int:
        """The frame boundary in [start, end] with the least sound around it (five frames).

        Ties go to the one nearest to `near`. The track must still be
        there: see `forget`.
        """

        def loudness(boundary: int) -> tuple[float, int]:
            around = self._track[max(0, boundary - 2 - self._base) : boundary + 3 - self._base]
            return sum(frame.level for frame in around) / max(1, len(around)), abs(boundary - near)

        return min(range(start, end + 1), key=loudness)

    def voiced_share(self, start: int, end: int) -> float:
        """The share of frames `start` to `end` in which the gate was open; see `forget`."""
        track = self._track[max(0, start - self._base) : max(0, end - self._base)]
        return sum(silence == 0 for silence, *_ in track) / max(1, end - start)

    def is_clear(self, start: int, end: int) -> bool:
        """Whether frames `start` to `end` are a short utterance and surely speech.

        Whoever has no second detector is never sure. The track must still be there: see `forget`.
        """
        track = self._track[max(0, start - self._base) : max(0, end - self._base)]
        probs = [frame.prob for frame in track if frame.unvoiced == 0]
        return 0 < len(probs) <= SHORT and sum(probs) >= CLEAR * len(probs)

    def is_certain(self, start: int, end: int) -> bool:
        """Whether somebody certainly speaks in frames `start` to `end`, or spoke just before.

        Without a second detector nothing speaks against it. See `forget`.
        """
        track = self._track[max(0, start - GOES_ON - self._base) : max(0, end - self._base)]
        return not self.is_judged or is_certain([frame.prob for frame in track])

    def voiced_from(self, n: int, end: int) -> int | None:
        """The latest frame with `n` voiced frames between it and `end`; see `forget`."""
        at = max(0, end - self._base)
        voiced = [i for i, (silence, *_) in enumerate(self._track[:at]) if silence == 0]
        return self._base + voiced[-n] if len(voiced) >= n else None

    def _advance(self) -> list[Vad]:
        """Read the track up to its end, or to the frame where an answer is missing."""
        events: list[Vad] = []
        while True:
            # A flush was asked for at a frame; it takes effect when the cursor gets there, so it
            # keeps its place among the frames while the segmenter waits for an answer.
            if self.cursor == self._flush_at:
                events += self._flush_here()
            if self.cursor - self._base == len(self._track):
                return events
            silence, _, self._late, voice, self._unvoiced, _ = self._track[self.cursor - self._base]
            if self._open is not None:
                self._follow(self._open, silence)
                if not self._is_decided(self._open):
                    return events
            # From here on the frame counts as read.
            self.cursor += 1
            if self._open is not None:
                events += self._end_if_due(self._open)
            elif self.cursor > self._floor:
                # A flush may have ended an utterance while the gate lingers behind its last word.
                self._heard |= self._unvoiced == 0
                begins = silence == 0 and self._heard
                events += self._begin() if begins else self._tell(voice=voice and self._heard)

    def _flush_here(self) -> list[Vad]:
        self._flush_at = None
        events: list[Vad] = []
        if self._open is None and self._doubtful and self._heard:
            events += self._begin()
        if self._open is not None:
            events += self._close(self._open)
        return events

    def _follow(self, utterance: Utterance, silence: int) -> None:
        """Move the utterance on by the frame at the cursor, which may be looked at repeatedly."""
        now = self.cursor + 1
        if silence == 0:
            utterance.speak(self.cursor)
            return
        if utterance.state is State.OPEN:
            # The gate lingers after the last voiced frame; the pause began with that frame.
            utterance.fall_silent(max(now - silence, utterance.start))
        self._ask_if_due(utterance, now)

    def _ask_if_due(self, utterance: Utterance, now: int) -> None:
        due = utterance.pause is not None and now - utterance.pause >= self.options.trailing_silence
        if due and utterance.state is State.PAUSE:
            utterance.on(Trigger.ASK)

    def _is_decided(self, utterance: Utterance) -> bool:
        """Whether the frame at the cursor can be read without knowing the text."""
        if utterance.pause is None:
            return True
        now = self.cursor + 1
        # No text ends an utterance before the shortest pause, unless its last sentence may be long;
        # every text does at the longest.
        options, quiet = self.options, now - utterance.pause
        is_long = self._is_long(utterance.start, now)
        least = options.trailing_silence if is_long else options.shortest_pause
        depends = least <= quiet < options.longest_pause
        return not depends or self._limit(utterance, now) is not None

    def _limit(self, utterance: Utterance, now: int) -> int | None:
        """Silence that ends the utterance in its current pause; None: that depends on the text."""
        options = self.options
        if options.shortest_pause != options.longest_pause:
            return utterance.ending_pause
        is_long = self._is_long(utterance.start, now)
        return options.trailing_silence if is_long else options.longest_pause

    def _is_long(self, start: int, now: int) -> bool:
        """Whether any pause ends what began at `start`.

        That is better than being cut within a word later.
        """
        return 5 * (now - start) >= 3 * self.options.longest

    def _begin(self) -> list[Vad]:
        if not self.utterances:  # what is asked about the others depends on theirs
            self.options = self.next_options
        self._open = Utterance(self._beginning)
        self.utterances.append(self._open)
        return self._tell(voice=True)

    @property
    def _beginning(self) -> int:
        """Where an utterance begins that is noticed in the frame before the cursor."""
        late = max(0, self._late - 1)  # at once is not late
        return max(self.cursor - 1 - self.options.pre_roll - late, self._floor)

    def _tell(self, *, voice: bool) -> list[Vad]:
        """Say that speech has started or stopped, if that is new."""
        if voice == self._told:
            return []
        self._told = voice
        return [Vad(speech=voice, t_ms=ms_from_frames(self._beginning if voice else self.cursor))]

    def _end_if_due(self, utterance: Utterance) -> list[Vad]:
        if utterance.pause is not None:
            limit = self._limit(utterance, self.cursor)
            # Without an answer the cursor only gets here at the longest pause.
            limit = self.options.longest_pause if limit is None else limit
            if self.cursor - utterance.pause >= limit:
                return self._close(utterance)
        if self.cursor - utterance.start >= self.options.longest:
            self._cut(utterance)
        return []

    def _close(self, utterance: Utterance) -> list[Vad]:
        end, pause = self.cursor, utterance.pause
        if pause is not None:
            end = min(end, pause + self.options.trailing_silence)
        end = max(end, self._floor)  # it may overlap with the one before, but not end before it
        utterance.close(end)
        # Voiced frames behind it may be the start of a word, though too few to open the gate.
        self._heard = self.cursor - self._unvoiced > end
        self._floor, self._open = end, None
        return self._tell(voice=False)

    def _cut(self, utterance: Utterance) -> None:
        """End the utterance although there is no pause that ends it; the rest is a new one."""
        cut = self.cursor
        # Not in the first half, where a quiet place would leave next to nothing before it.
        earliest = max(cut - self.options.trailing_silence, cut - self.options.longest // 2)
        self._floor = cut = self.quietest(earliest, cut, near=cut)
        rest = Utterance(cut)
        if utterance.pause is not None:
            # The rest begins in the same pause. What is left of it may be too short to ask.
            rest.pause = max(utterance.pause, rest.start)
            rest.ending_pause = utterance.ending_pause
            answered = utterance.state is State.ANSWERED
            rest.state = State.ANSWERED if answered else State.PAUSE
            self._ask_if_due(rest, self.cursor)
        utterance.close(cut)
        self._open = rest
        self.utterances.append(rest)
