"""One stream of audio: frames in, windows out, hypotheses in, events out.

The session owns all state of a stream, without I/O, clock or thread. It never pushes work: the
owner of a free engine *asks* for the most urgent window (`next_window`) and brings back the
hypothesis (`accept`). So steps that were missed while the engine was busy merge into one.

It keeps four promises. Committed words never change. Utterances and finals depend on the audio and
on what the recognizer makes of it, not on the engine's speed or on how the audio was cut into
blocks; but a slow engine gets fewer and shorter windows, in which the recognizer may read other
words. Every frame that passes the gate is in a window that was accepted, unless it is reported as
lost. And it ends: whatever the recognizer answers, each window advances the session, so that their
number is finite, and none is longer than 30 s.

What there is between two calls:

- `_segment`, the transcription of the oldest utterance that is not final yet, or None if there is
  none: it begins as soon as the utterance is the oldest. Its stages are those of
  `streamd.session.segment`, the states of its utterance those of `streamd.session.utterance`, its
  words those of `streamd.session.text`.
- `_out`, the window that the recognizer has. There is one exactly if the segment is OUT.
- `_previous`, what the next utterance continues from: the end of the last final, its last window,
  and the words in it. Another process also needs it to continue the stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from streamd.events import Gap, GapReason, SessionEvent, TurnEvent, TurnState, Unclear
from streamd.options import DEFAULT_STEP, SessionOptions
from streamd.prompt import Prompt
from streamd.session.budget import Budget
from streamd.session.captions import Captions
from streamd.session.commit import CommitPolicy, count_ended
from streamd.session.gate import Gate
from streamd.session.language import Change, Language, surely_read
from streamd.session.ring import Ring
from streamd.session.rules import (
    Ruled,
    RuleNote,
    TextFacts,
    apply,
    has_text,
    not_famous,
    not_final,
    notes,
    probable,
    without_closing_mark,
)
from streamd.session.segment import Move, Segment, Stage
from streamd.session.segmenter import SHORT, Segmenter
from streamd.session.text import SpokenText
from streamd.session.timeline import Timeline
from streamd.session.utterance import State, Trigger
from streamd.session.who import WhoSpeaks
from streamd.speakers import HeardVoices
from streamd.speakers.people import Person
from streamd.types import (
    FRAME,
    FRAME_MS,
    Encoded,
    Frames,
    Hypothesis,
    MarksAnswer,
    MarksQuestion,
    ResumeState,
    RetryRequest,
    Suspect,
    TextOptions,
    TurnAnswer,
    TurnQuestion,
    Window,
    Word,
    frames_from_ms,
    is_probable,
    ms_from_frames,
    text_of,
)

LEFT_OUT = 75
"""After this many voiced frames (1.5 s) without a word, a hypothesis is taken to have ended early.
No word of 1,170 changes without this rule; ``tests/session/test_context.py`` has a case that needs
it."""
LEAST_READ = 25
"""Frames (0.5 s) of text that a last window must add before another window decodes the rest. So
there are at most as many windows as for partials, whatever the recognizer answers."""
SHORT_PAUSE = 75
"""An utterance continues the one before if at most this many frames lie between them, a pause of
2 s. If none did, 82 instead of 70 words of 1,170 would be wrong."""
FORCE_AFTER = 400
"""Words that ended this many frames (8 s) before the end of a window are committed though no two
hypotheses agree about them."""
REACH = 1_000
"""How many frames (20 s) before its utterance a first window may begin. That leaves 10 s of the
window's 30 s for the utterance before words have to leave."""
LEAST_KEPT = 150
"""Frames (3 s) of committed words that stay in every window. With a `--length` of a few frames,
words are written twice where windows meet (``tests/session/test_hostile.py``); 3 s were enough for
every cut."""
AGAIN_RATE, PARTIALS_RATE = 0.5, 2.0
"""How much of the audio may be decoded again for finals, and for partials: then steps merge, as
those that an engine misses. Of 22 minutes of speech, conversation and music, finals took at most 24
of the 30 s in reserve, after music; partials as much as the audio, and at most 5 s."""


class Session:
    """One stream, with a gate, segmenter and commit policy of its own.

    Call `feed` whenever frames arrive, and whenever the engine is free `next_window` and `accept`,
    until there is no window. At the end call `flush`, then the same.
    """

    def __init__(
        self,
        gate: Gate,
        segmenter: Segmenter,
        policy: CommitPolicy,
        options: SessionOptions | None = None,
        report: Callable[[RuleNote], None] | None = None,
        *,
        auto_step: Callable[[], int] | None = None,
    ) -> None:
        """`report` is called with what is decided about words, if somebody wants to know.

        `auto_step` returns the step of an utterance that begins; None: as the options say.
        """
        self._report, self._auto_step = report, auto_step
        self._gate, self._segmenter, self._policy = gate, segmenter, policy
        self._options = options or SessionOptions()
        self._step = DEFAULT_STEP if self._options.step is None else self._options.step
        self._ring = Ring(self._options.backlog)
        self._segment: Segment | None = None
        self._out: Window | None = None
        self._previous = ResumeState()  # in frames of this session
        self._unbroken_since = 0  # no jump in time after this frame
        self._prompt = Prompt(self._options.context_tokens)
        self._language = Language(self._options.languages)
        self._timeline = Timeline()
        self._captions = Captions()
        self._encoded: Encoded | None = None
        self._who = WhoSpeaks()
        self._transcribed = 0  # the end of the last accepted window
        self._again = Budget(AGAIN_RATE)
        self._partials = Budget(PARTIALS_RATE)

    def resume(self, state: ResumeState, finalised_ms: int, seg: int) -> None:
        """Go on with the session of an earlier process; call it before any audio.

        Audio comes from where its `state` begins; until `finalised_ms`, it becomes no text again,
        but the gate adapts to it. `seg` is the number of the next segment.
        """
        self._timeline.jump(0, state.start_ms)
        self._previous, self._captions.seg = state, seg
        self._segmenter.skip(frames_from_ms(finalised_ms - state.start_ms))
        self._language.known = state.language
        self._who.resume(state.voiceprints)

    def adopt(self, other: "Session") -> None:
        """Go on with the options of a session that was made with others.

        They apply to the next window, those of an utterance to the next one.
        """
        self._options, self._auto_step = other._options, other._auto_step
        if self._auto_step is None:
            self._step = other._step
        self._language.allow(self._options.languages)
        self._segmenter.next_options = other._segmenter.options

    def meet(self, people: Sequence[Person]) -> None:
        """Know the voices of people, whose names are events (`SpeakerName`)."""
        self._who.meet(people)

    def voice(self, speaker: int) -> tuple[bytes, int] | None:
        """Return the voiceprint of a speaker, and of how many frames; None if it is not known."""
        return self._who.voice(speaker)

    @property
    def resume_state(self) -> ResumeState:
        """What another session needs to continue with the audio that is not finalised here."""
        start = max(self._finalised - SHORT_PAUSE - REACH, self._unbroken_since)
        if start > self._finalised:
            return ResumeState(
                start_ms=self.finalised_ms,
                language=self._previous.language,
                voiceprints=self._who.voiceprints,
            )
        return replace(
            self._previous,
            start_ms=self._timeline.true_ms(ms_from_frames(start)),
            until=self._previous.until - start,
            anchor=self._previous.anchor - start,
            words=tuple(
                replace(word, start=word.start - start, end=word.end - start)
                for word in self._previous.words
            ),
            voiceprints=self._who.voiceprints,
        )

    @property
    def now(self) -> int:
        """Frames fed so far."""
        return self._ring.end

    @property
    def now_ms(self) -> int:
        """Duration of the session, its gaps included."""
        return self._timeline.true_ms(ms_from_frames(self.now))

    @property
    def language(self) -> str:
        """The language that was heard last, or empty."""
        return self._language.known

    @property
    def backlog(self) -> int:
        """Frames of speech that were in no window yet."""
        utterances = self._segmenter.utterances
        return self.now - max(utterances[0].start, self._transcribed) if utterances else 0

    @property
    def late(self) -> bool:
        """Whether that is more than the engine of a live stream should have left."""
        # One step of audio waits while another is in a window; half a second is never late.
        return self.backlog >= max(2 * self._step, 50)

    @property
    def idle(self) -> bool:
        """Whether all speech so far is final."""
        return not self._segmenter.utterances

    @property
    def finalised_ms(self) -> int:
        """Time before which all audio is silence or in finals, so that it is not needed again."""
        return self._timeline.true_ms(ms_from_frames(self._finalised))

    @property
    def _finalised(self) -> int:
        return max(self._segmenter.oldest, self._previous.until)

    def feed(self, frames: Frames) -> list[SessionEvent]:
        """Take the next (n, 320) frames, and return the events that need no window."""
        events: list[SessionEvent] = []
        lost = self._ring.append(frames)
        for heard in self._gate.feed(frames):
            if self._options.speakers:
                self._who.push(self._segmenter.end + 1, heard.silence, heard.late)
            events += self._segmenter.push(heard)
            events += self._release()
        if lost:
            events += self._lose(lost)
        return self._after(events)

    def gap(self, duration_ms: int, why: GapReason) -> list[SessionEvent]:
        """Note that audio of this length was lost before it got here; it counts as silence."""
        t_ms = self._timeline.true_ms(ms_from_frames(self.now))
        gap = Gap(t_ms=t_ms, duration_ms=duration_ms, why=why)
        pre_roll = self._segmenter.options.pre_roll
        # More is not needed for what follows to be another subject (`SHORT_PAUSE`).
        n_most = 2 * SHORT_PAUSE + self._segmenter.options.longest_pause + pre_roll
        n_frames = min(round(duration_ms / FRAME_MS), n_most)
        silence = np.zeros((n_frames, FRAME), np.float32)
        events = self.feed(silence[pre_roll:])
        # The rest of the gap is no frames but a jump in time. It comes before the last frames of
        # the silence: the pre-roll of the next utterance belongs to the time after the gap.
        if duration_ms > ms_from_frames(n_frames + 1):
            self._timeline.jump(ms_from_frames(self.now), duration_ms - ms_from_frames(n_frames))
            self._unbroken_since = self.now
        return [gap, *events, *self.feed(silence[:pre_roll])]

    def flush(self) -> list[SessionEvent]:
        """End the utterance here. Everything is final when `next_window` has no window any more."""
        self._who.flush()
        events: list[SessionEvent] = list(self._segmenter.flush(doubtful=self._gate.doubtful))
        return self._after(events + self._release())

    @property
    def due(self) -> bool:
        """Whether `next_window` would return one."""
        return self._due() is not None

    @property
    def due_for_final(self) -> bool:
        """Whether that would be the last one of an utterance, for whose final somebody waits."""
        _, last = self._due() or (0, False)
        return last

    def _due(self) -> tuple[int, bool] | None:
        """See `Segment.due`."""
        segment = self._segment
        due = segment.due(self._segmenter, self._step) if segment else None
        is_too_soon = due is not None and not due[1] and due[0] < self._partials.repaid
        return None if is_too_soon else due

    def next_window(self) -> Window | None:
        """Return the most urgent window, which must come back through `accept`, or None."""
        if self._out is not None:
            raise RuntimeError("the last window has not come back through accept()")
        segment, due = self._segment, self._due()
        if segment is None or due is None:
            return None
        end, last = due
        if not last:
            segment.next_due = end + self._step
        self._remember(segment.text.fit(end), segment.latest)
        n_inside = len(segment.text.before) + len(segment.text.prefix)
        n_prompt = max(0, self._options.context_tokens - n_inside)
        segment.on(Move.SEND)
        self._out = Window(
            start=segment.text.anchor,
            end=end,
            samples=self._ring.read(segment.text.anchor, end),
            prompt=self._prompt.tokens[-n_prompt:] if n_prompt else (),
            before=segment.text.before,
            prefix=segment.text.prefix,
            prefix_end=min(max(segment.text.start, segment.text.read_until), end),
            draft=segment.text.draft,
            last=last,
            options=TextOptions(
                languages=self._options.languages,
                language=self._language.expected,
                task=self._options.task,
                initial_prompt=self._options.prompt,
                vocabulary=self._options.vocabulary,
            ),
            asks=self._questions(segment, end, last=last),
            encoded=self._encoded,
        )
        return self._out

    def _questions(self, segment: Segment, end: int, *, last: bool) -> tuple[object, ...]:
        """What a window up to frame `end` asks besides its words."""
        text, asks_turn = segment.text, self._segmenter.options.is_smart
        asks_turn &= segment.utterance.state is State.ASKED
        asks_marks = last or text.is_unmarked
        segment.is_certain = segment.is_certain or self._segmenter.is_certain(text.start, end)
        questions = (
            RetryRequest(
                budget=max(0.0, self._again.left(end)),
                text_until=self._segmenter.voiced_from(LEFT_OUT, end),
                clear=last and self._is_clear(segment, end),
                certain=segment.is_certain,
            ),
            self._language.question(text.anchor, end),
            MarksQuestion(text.given_words) if asks_marks else None,
            TurnQuestion(text.start) if asks_turn else None,
            self._who.request(end, self._ring.start, self._ring.read)
            if self._options.speakers
            else None,
        )
        return tuple(question for question in questions if question is not None)

    def accept(self, window: Window, hypothesis: Hypothesis) -> list[SessionEvent]:
        """Take the hypothesis of the window that `next_window` returned."""
        segment = self._segment
        if segment is None or window is not self._out:
            raise RuntimeError("this window did not come from next_window()")
        segment.on(Move.RETURN)
        self._out, self._encoded = None, hypothesis.encoded
        self._transcribed = max(self._transcribed, window.end)
        if window.last:
            self._again.spend(window.end, hypothesis.work.extra_cost)
        else:
            self._partials.spend(window.end, hypothesis.work.cost)
        voices, marks = hypothesis.answer(HeardVoices), hypothesis.answer(MarksAnswer)
        turns = self._who.hear(voices.rosters if voices else ())
        segment.text.punctuate(marks.words if marks else ())
        segment.latest = hypothesis = self._usable(segment, window, hypothesis)
        utterance, events = segment.utterance, []
        if (change := self._language.learn(window, hypothesis)) is not None:
            self._note(window, "another language", text_of(hypothesis.words), why=change.language)
            self._change(segment, change)
        elif self._left_out(segment, window):
            self._note(window, "left out", text_of(hypothesis.words), why="voice without words")
            self._restart(segment, last=window.last)
        elif not window.last:
            if hypothesis.suspect or not is_probable(hypothesis):
                why = hypothesis.suspect or "only a guess"
                self._note(window, "not committed", text_of(hypothesis.words), why=why)
            silence = 0 if utterance.pause is None else max(0, window.end - utterance.pause)
            events = self._revise(segment, window.end, silence=silence)
        elif utterance.end is not None and utterance.end <= window.end:
            events = self._finalise(segment, window.end)
        else:
            events = self._prepare(segment, window.end)
        return self._after(turns + events)

    def _change(self, segment: Segment, change: Change) -> None:
        """Go on in another language, whose first words nothing in the one before precedes.

        What was read of it is forgotten: it was read in the other one.
        """
        segment.text.uncommitted = ()
        self._policy.reset()
        if change.between is None:
            self._remember(segment.text.drop_context(), segment.latest)
            self._prompt.forget()
            return
        first, last = change.between
        sure = surely_read(segment.latest.words, behind=text_of(segment.text.committed[-1:]))
        # The words that were read in the language before are more exact than spans of two seconds.
        read = max((word.end for word in (*segment.text.committed, *sure)), default=first)
        if read < first:  # in the language before, there was nothing more to read
            first, last = read, first
        elif read <= last:
            first = last = read
        first = max(first, segment.text.read_until, segment.text.start + LEAST_READ)
        self._segmenter.split(segment.utterance, first, max(first, last))
        self._language.change(change)

    def _after(self, events: list[SessionEvent]) -> list[SessionEvent]:
        """What follows from any change: audio may have been lost, or need no more reading."""
        events += self._pass_over()
        self._forget()
        named = self._who.name(events) if self._options.speakers else events
        return self._timeline.correct(named)

    def _begun(self) -> Segment | None:
        """Begin with the oldest utterance that is not final yet, unless that was done."""
        if self._segment is None and self._segmenter.utterances:
            utterance = self._segmenter.utterances[0]
            start = max(utterance.start, self._ring.start)
            self._step = self._auto_step() if self._auto_step else self._step
            text = SpokenText(utterance.start, start)
            self._segment = Segment(utterance, text, start + self._step)
            self._captions.begin()
            self._policy.reset()
            follows = self._is_near(start) and self._previous.until > 0
            self._language.begin(start, follows=follows)
            if self._continues(start):
                text.continue_after(self._previous.words, self._previous.anchor)
            self._prompt.forget()  # one mistake would influence everything after it
        return self._segment

    def _continues(self, start: int) -> bool:
        """Whether the windows of an utterance begin with the words of the one before.

        A word that nothing precedes is often misread, and a speaker who takes a breath goes on with
        the sentence.
        """
        previous = self._previous
        is_near = self._is_near(start) and start - previous.anchor <= REACH
        is_stored = bool(previous.words) and previous.anchor >= self._ring.start
        is_same = self._language.known in {"", previous.language}
        return is_stored and is_near and is_same

    def _is_near(self, start: int) -> bool:
        """Whether an utterance that begins at `start` follows the last final at once."""
        return start - self._previous.until <= SHORT_PAUSE

    def _usable(self, segment: Segment, window: Window, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis after all rules (`streamd.session.rules`)."""
        # Where the decoder knows the words before, it does not repeat them.
        until = self._previous.until
        if segment.text.context and segment.text.context.words:
            until = min(until, segment.text.context.words[-1].end)
        follows = segment.text.context if not segment.text.committed else None
        facts = TextFacts(
            window=window,
            final_until=until,
            start=max(segment.text.start, segment.text.read_until),
            before=segment.text.committed[-1] if segment.text.committed else None,
            follows_stop=follows.ends_sentence if follows else None,
            was_probable=segment.was_probable,
            voiced_share=self._segmenter.voiced_share,
        )
        ruled = apply(replace(hypothesis, encoded=None), facts)
        new, read = ruled.at(not_final).after.words, ruled.at(not_famous).after
        segment.heard_from = new[0].start if new else None
        segment.was_read |= has_text(read)
        segment.was_probable |= has_text(read) and is_probable(read)
        if follows and not ruled.at(probable).why:
            step = ruled.at(without_closing_mark)
            has_mark = len(step.after.words) < len(step.before.words)
            follows.mark = step.before.words[0] if has_mark else None
        if self._report is not None:
            self._note_rules(window, hypothesis, ruled)
        return ruled.hypothesis

    def _is_clear(self, segment: Segment, end: int) -> bool:
        """Whether an utterance is short, surely speech, and without committed words so far."""
        is_new = not segment.text.committed
        return is_new and self._segmenter.is_clear(segment.text.start, end)

    def _is_voice(self, segment: Segment, end: int) -> bool:
        """Whether so much of an utterance up to a frame is a voice that there should be words.

        If there are none, it is decoded once more without the words before it; then `Unclear` is
        published.
        """
        is_long = self._voiced(segment.text.start, end) >= SHORT
        return is_long or self._is_clear(segment, end)

    def _left_out(self, segment: Segment, window: Window) -> bool:
        """Whether there was voice for long after the last word of a hypothesis that should go on.

        The decoder sometimes takes the text that it was given for all there is, and ends.
        """
        new = segment.latest.words
        if not window.last and (new or segment.latest.suspect):
            return False  # the next window may have the rest
        if window.last and segment.text.context and not (new or segment.text.committed):
            return self._is_voice(segment, window.end)
        if segment.latest.temperature > 0:
            return False  # it did not end early: there is nothing probable in the audio
        if window.last and self._again.left(window.end) <= 0:
            return False  # so much was read again in vain
        words = new or segment.text.in_window
        heard = max(words[-1].end, segment.text.start) if words else window.start
        least = LEAST_READ if new else 1
        until = window.retry.text_until
        is_unread = until is not None and heard <= until
        return heard - window.start >= least and is_unread

    def _note(self, window: Window, rule: str, before: str, after: str = "", why: str = "") -> None:
        """Report what was decided, if somebody wants to know."""
        if self._report is not None:
            start_ms, end_ms = (
                self._timeline.true_ms(ms_from_frames(at)) for at in (window.start, window.end)
            )
            self._report(RuleNote(start_ms, end_ms, rule, before, after, why))

    def _note_rules(self, window: Window, hypothesis: Hypothesis, ruled: Ruled) -> None:
        work, text = hypothesis.work, text_of(hypothesis.words)
        for attempt, is_kept in work.attempts:
            self._note(window, f"decoded again, {attempt}", text, why="" if is_kept else "not kept")
        if work.disbelieved:
            self._note(window, "not believed", work.disbelieved, why=hypothesis.suspect or "")
        for rule, before, after, why in notes(ruled):
            self._note(window, rule, before, after, why)

    def _voiced(self, start: int, end: int) -> float:
        """Frames of voice from `start` to `end`."""
        return self._segmenter.voiced_share(start, end) * (end - start)

    def _restart(self, segment: Segment, *, last: bool) -> None:
        """Transcribe the rest on its own, the last window of an utterance before its final."""
        words = segment.latest.words if last else ()
        self._remember(segment.text.restart(words), segment.latest)
        self._policy.reset()

    def _revise(self, segment: Segment, end: int, *, silence: int) -> list[SessionEvent]:
        """Commit the words that the policy is sure of; the others stay uncommitted."""
        text, hypothesis = segment.text, segment.latest
        if hypothesis.suspect:
            self._remember([], hypothesis)
            return []
        # Translated words have no places of their own in the audio: no window can begin at one.
        words, movable = hypothesis.words, self._options.task != "translate"
        n = 0
        if is_probable(hypothesis):
            first = segment.heard_from
            n = self._policy.propose(words, now=end, silence=silence, first=first)
            n = min(n, count_ended(words, self._language.certain(end)))
            if n == 0 and movable:
                n = count_ended(words, end - FORCE_AFTER)
            self._policy.committed(n)
        text.commit(words, n, keeps_mark=True)
        if movable:
            self._trim(segment, end)
        hides = bool(text.uncommitted) and text.uncommitted[-1].is_doubtful(
            self._options.shown_prob
        )
        events = self._sentences(segment)
        return [*events, *self._captions.partial(text, end, self.now, hides_last=hides)]

    def _prepare(self, segment: Segment, end: int) -> list[SessionEvent]:
        """Keep the hypothesis of a pause, the final if the silence lasts."""
        segment.prepare(end)
        text, utterance, hypothesis = segment.text, segment.utterance, segment.latest
        events: list[SessionEvent] = []
        since = end - self._segmenter.options.trailing_silence
        if utterance.pause == since:
            # It is still the pause that was asked about, so this is the answer.
            text.uncommitted = hypothesis.words
            events += self._sentences(segment)
            events += self._captions.partial(text, end, self.now)
            # A guess ends the utterance no sooner than no text: more audio may tell what it is. Of
            # translations none is probable, since there are many ways to translate.
            is_text = self._options.task == "translate"
            is_text |= is_probable(hypothesis, clear=self._is_clear(segment, end))
            words = text.newest if is_text else ()
            if words and utterance.state is State.ASKED:
                turn = hypothesis.answer(TurnAnswer)
                segment.turn_prob = turn.prob if turn else None
                events += self._turn(segment, TurnState.PAUSED, since)
            events += self._segmenter.answer(
                utterance, words, segment.turn_prob, sentence=text.last_sentence
            )
        return [*events, *self._release()]

    def _release(self) -> list[SessionEvent]:
        """Decide about the prepared final once its pause is over."""
        segment = self._segment
        if segment is None or segment.stage is not Stage.PREPARED:
            return []
        utterance = segment.utterance
        if utterance.state is State.ANSWERED:
            return []  # still silent
        end = segment.release()
        if utterance.state is State.ENDED and utterance.end == end:
            return self._finalise(segment, end)
        if utterance.state is State.ENDED:
            return []  # it was cut elsewhere, and will be transcribed up to there
        # There was speech again, so the hypothesis is one like that of any partial. The gap is that
        # of another pause if the hypothesis came so late that one followed.
        pause, gap = end - self._segmenter.options.trailing_silence, utterance.gap
        resumed = gap[1] if gap is not None and gap[0] == pause else end
        events = self._turn(segment, TurnState.RESUMED, resumed)
        segment.turn_prob = None
        return [*events, *self._revise(segment, end, silence=resumed - pause)]

    def _turn(self, segment: Segment, state: TurnState, at: int) -> list[SessionEvent]:
        """The event about a turn, if there is a probability that the speaker is done."""
        if (prob := segment.turn_prob) is None:
            return []
        t_ms = ms_from_frames(at)
        return [TurnEvent(seg=self._captions.seg, state=state, t_ms=t_ms, prob=round(prob, 3))]

    def _finalise(self, segment: Segment, end: int) -> list[SessionEvent]:
        """Commit everything; publish the final, or retract the partials if there is no text."""
        self._segmenter.utterances.popleft().on(Trigger.PUBLISH)
        self._segment = None
        segment.on(Move.FINISH)
        text, hypothesis = segment.text, segment.latest
        text.commit(hypothesis.words, len(hypothesis.words))
        events = self._sentences(segment)
        last = text.committed[-1].end if text.committed else end
        self._trim(segment, end)
        self._previous = replace(
            self._previous,
            until=max(end, min(last, self._transcribed), self._previous.until),
            language=self._language.known,
        )
        if not text.committed:  # as after a cough: the next one follows what was before this
            return [*self._captions.partial(text, end, self.now), *self._unclear(segment, end)]
        words = tuple(text.in_window) if is_probable(hypothesis) else ()
        self._previous = replace(self._previous, words=words, anchor=text.anchor)
        ended = self._turn(segment, TurnState.ENDED, end)
        final = self._captions.final(text.committed, text.start, end, hypothesis)
        return [*events, final, *ended]

    def _unclear(self, segment: Segment, end: int) -> list[SessionEvent]:
        """The event about an utterance without words, if it is a voice or was read as text."""
        if not (segment.was_read or self._is_voice(segment, end)):
            return []
        start_ms, end_ms = ms_from_frames(segment.text.start), ms_from_frames(end)
        return [Unclear(start_ms=start_ms, end_ms=end_ms)]

    def _sentences(self, segment: Segment) -> list[SessionEvent]:
        """Publish the sentences that are complete while the utterance goes on."""
        events: list[SessionEvent] = []
        text, start = segment.text, segment.text.start
        while words := text.take_sentence(self._who.changes):
            events.append(
                self._captions.final(words, start, text.start, segment.latest, continues=True)
            )
            segment.utterance.start = start = text.start
            self._previous = replace(
                self._previous,
                until=max(start, self._previous.until),
                words=tuple(text.context.words) if text.context else (),
                anchor=text.anchor,
                language=self._language.known,
            )
        return events

    def _trim(self, segment: Segment, end: int) -> None:
        """Let committed words leave the window: the more stay, the more new words are right."""
        kept = max(LEAST_KEPT, self._options.length)
        gone = segment.text.trim(end, kept, self._segmenter.quietest)
        self._remember(gone, segment.latest)

    def _remember(self, words: Sequence[Word], hypothesis: Hypothesis) -> None:
        """Add words that precede the next window to its prompt."""
        self._prompt.remember(
            [token for word in words for token in word.tokens],
            language=hypothesis.language,
            temperature=hypothesis.temperature,
            doubtful=hypothesis.suspect is Suspect.LOOP,
        )

    def _lose(self, n_lost: int) -> list[Gap]:
        """Report audio that was overwritten before it was transcribed.

        More is dropped than necessary, for one gap a minute instead of fifty a second.
        """
        n_more = min(self._options.backlog // 10, self._ring.end - self._ring.start)
        self._ring.forget(start := self._ring.start + n_more)
        stretches = self._timeline.unbroken(
            ms_from_frames(start - n_lost - n_more), ms_from_frames(start)
        )
        return [
            Gap(t_ms=since, duration_ms=until - since, why=GapReason.ENGINE)
            for since, until in stretches
        ]

    def _pass_over(self) -> list[SessionEvent]:
        """Go on after audio that was overwritten, and after utterances that are read to their end.

        The words found in lost audio so far are final. This waits for a window that is out: its
        hypothesis may still bring words of that audio.
        """
        events: list[SessionEvent] = []
        while (segment := self._begun()) and segment.stage is Stage.READING:
            if segment.text.anchor < self._ring.start:
                self._remember(segment.text.skip(self._ring.start), segment.latest)
                self._policy.reset()
            end = segment.last_end(self._segmenter)
            # Before the utterance itself, a window has only the words that precede it.
            if end is None or end > max(segment.text.anchor, segment.text.start):
                break
            if segment.utterance.state is State.ASKED:
                events += self._segmenter.answer(
                    segment.utterance, segment.text.newest, sentence=segment.text.last_sentence
                )
            else:
                segment.latest = replace(segment.latest, words=())
                events += self._finalise(segment, end)
        return events

    def _forget(self) -> None:
        """Free the audio that no window will need."""
        oldest = self._segment.text.anchor if self._segment else self._segmenter.oldest
        if self._segment is None and self._continues(oldest):
            oldest = min(oldest, self._previous.anchor)
        # Who speaks is heard in steps of its own, which may begin before the next window.
        unheard = self._who.oldest if self._options.speakers else oldest
        self._ring.forget(min(oldest, max(unheard, oldest - REACH)))
        if self._encoded and self._encoded.start < oldest:
            # Tens of megabytes; whose they were counts until the utterance ends.
            self._encoded = replace(self._encoded, states=None) if self._segment else None
        self._segmenter.forget(oldest - 2)
