"""One session: its audio goes to a `Session`, the events of that to a `Hub` and its journal."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from streamd.errors import (
    ConfigError,
    OneSessionError,
    StreamdError,
    WireError,
    for_clients,
    is_bug,
    lacks_memory,
)
from streamd.events import (
    Correction,
    EndReason,
    Fault,
    Final,
    Flushed,
    Gap,
    GapReason,
    Lag,
    Partial,
    SessionEvent,
    Sound,
    SpeakerName,
    Stats,
)
from streamd.labels import is_risky, name_from
from streamd.notices import Notices
from streamd.options import Choices
from streamd.rewriting import Replacements, Rewriter
from streamd.session.channels import AnySession, SplitSession, adopt
from streamd.speakers.people import LEAST_KEPT
from streamd.streams.hearing import SoundHearing, Told
from streamd.streams.hub import Hub
from streamd.streams.journal.journals import Journal
from streamd.streams.journal.lines import Fed, proof_of
from streamd.streams.life import STREAM, Phase, Turn
from streamd.streams.metrics import Metrics
from streamd.streams.wav import Recorder
from streamd.types import (
    DetectedLanguage,
    Frames,
    Hypothesis,
    ResumeState,
    Window,
    following,
    frames_from_ms,
    mixed,
    ms_from_frames,
)
from streamd.whisper.vocabulary import line_of

_LATE_MS = 1000
"""Time after which listeners are told that events wait to be stored."""
_CHOICES_BYTES_PER_S = 1000
"""Bytes of changed choices that are stored for each second of audio. Finals of uninterrupted speech
take 800, with what a session needs to be resumed (``tests/speech/recording.flac``)."""

_MOST_TRIES = 30
"""How often in a row a window is tried, about once a second, while there is too little memory."""

log = logging.getLogger(__name__)
HEARD = "session %s: detected language: %s (set it with --language)"


class KeepsVoices(Protocol):
    """Keeps voices of one session, to be known in later ones."""

    def keep(self, name: str, voiceprint: bytes, n: int, *, again: bool) -> None:
        """Keep somebody's voice, of which `n` frames were heard; raises `ConfigError`."""

    def take_back(self, name: str) -> None:
        """Keep no more of this person than before the session; raises `ConfigError`."""


@dataclass(slots=True)
class StreamContext:
    """What all streams of the process share; its owner sets what else they do.

    They call `wake` when a window is due, and `failed` when a journal cannot be written. `choose`
    checks what a client chooses, `learn` keeps a phrase; both raise `WireError`. `max_backlog`
    frames may wait for the engine before a source has to wait, too. `rules` say what is replaced,
    `new_keeper` makes what keeps voices of a session, if they are kept. `new_hearing` makes what
    hears sounds, given what takes them, and until when they were told; `new_notices` what looks for
    that for which somebody waits.
    """

    new_session: Callable[[Choices], AnySession]
    metrics: Metrics
    max_backlog: int
    wake: Callable[[], None]
    failed: Callable[[StreamdError], None]
    choose: Callable[[Choices, Mapping[str, object]], Awaitable[Choices]]
    learn: Callable[[str], Awaitable[None]]
    rules: Replacements | None = None
    new_keeper: Callable[[], KeepsVoices] | None = None
    new_hearing: Callable[[Told, int], SoundHearing | None] = lambda told, since_ms: None
    new_notices: Callable[[], Notices | None] = lambda: None


class Stream:
    """One session: `feed` takes its audio, `hub` publishes its events.

    All calls come from the event loop's thread.
    """

    def __init__(self, context: StreamContext, hub: Hub) -> None:
        self._context, self.hub, self._chosen = context, hub, hub.choices
        self.session = context.new_session(hub.choices)
        self._observe = context.metrics.observer()
        self._rewriter = Rewriter(context.rules) if context.rules else None
        self._recording: Recorder | None = None
        self._notices = context.new_notices()
        self._hearing: SoundHearing | None = None  # of sounds, if they are wanted
        self._attached = ""  # name of the file that the journal knows
        self._waiting: list[SessionEvent] = []  # to be published first
        self._keeper = context.new_keeper() if context.new_keeper else None
        self._named_here: set[int] = set()  # speakers whom somebody has named, whoever they seem
        self._kept_voices: dict[int, str] = {}  # their names, by number
        self._lost_ms = 0  # in all gaps
        self._news = asyncio.Event()
        self.when_moved: Callable[[], None] | None = None
        """Called when another node takes the session over; set by who feeds it, until the end."""
        self.broken: Callable[[Exception], None] = partial(_log_bug, hub.session)
        """Gets the bug that ended the session in one of its windows; set by who answers for it."""
        self._has_new_choices = False  # that are not stored yet
        self._choices_due = 0  # number of the frame from which on they may be
        self._n_out = 0  # windows that are being transcribed
        self._postponed: deque[Window] = deque()
        self._n_postponed = 0  # times in a row
        self._language_published = False
        self.phase, self.is_resumed = Phase.WAITING, False
        self._begins = ResumeState(), 0, 1  # what `Session.resume` takes
        self.has_source = True  # false while a device that feeds the session is unplugged
        self.heard: Callable[[Frames], None] | None = None
        """Gets the frames, too, to show how loud they are."""
        self.due_since: float | None = None
        """Time of the event loop since which a window of the session is due; None if none is."""
        self._had_final = False  # with its latest window

    def begin(self, recording: Recorder | None = None, *, is_resumed: bool = False) -> None:
        """Prepare for audio, which goes into `recording`, too.

        Audio of a client that fed the session in an earlier process, and so `is_resumed`, continues
        where finals end; otherwise the time since then is a gap.
        """
        if self.is_over:  # the engine has failed before
            if recording is not None:
                recording.discard()
            return
        self.phase = following(STREAM, self.phase, Turn.BEGIN)
        self._recording, self.is_resumed = recording, is_resumed
        if self.hub.choices != self._chosen:  # another node has changed them
            self.session = self._context.new_session(self.hub.choices)
        journal = self.hub.journal
        if journal is None or not journal.seq + journal.finalised_ms:
            return
        seg = journal.seg + 2  # the interrupted segment used a number, too
        # Who has named them there is not known: a voice must not take back what somebody said.
        self._named_here = self.hub.speakers_named
        if is_resumed:
            state = journal.resume_state or ResumeState(start_ms=journal.finalised_ms)
            self._begins = state, journal.finalised_ms, seg
        else:
            since_ms = round((datetime.now(UTC) - journal.started).total_seconds() * 1000)
            last_ms = max(journal.end_ms, journal.finalised_ms)
            self._begin_late(max(since_ms, last_ms), last_ms, seg, GapReason.RESTART)
        self.session.resume(*self._begins)

    def _begin_late(self, at_ms: int, last_ms: int, seg: int, why: GapReason) -> None:
        """Begin at `at_ms` without what came before; audio from `last_ms` until then is lost."""
        self._waiting = [Gap(t_ms=last_ms, duration_ms=at_ms - last_ms, why=why)]
        self._begins = self._anew(at_ms), at_ms, seg

    def _anew(self, at_ms: int) -> ResumeState:
        """Return the state of a session that goes on at `at_ms` without the sound before.

        Its speakers keep their numbers: others would get the names that were given to these.
        """
        journal = self.hub.journal
        state = journal.resume_state if journal is not None else None
        return ResumeState(start_ms=at_ms, voiceprints=state.voiceprints if state else UNSET)

    @property
    def began_ms(self) -> int:
        """Time of the session from which on this process hears it."""
        return self._begins[0].start_ms

    async def choose(
        self, chosen: Mapping[str, object], *, secret: str = "", has_ms: int = 0
    ) -> None:
        """Apply the client's choices; call this before its first audio.

        A client with the `secret` may resume the session, even in another process; empty: none may.
        It then has audio from `has_ms` of the session on. Raises `WireError` with
        `bad_option`; then nothing has changed.
        """
        choices = await self._context.choose(self.hub.choices, chosen)
        if self.is_over:
            return
        _, finalised_ms, seg = self._begins
        lacks = self.is_resumed and has_ms > self.began_ms
        if lacks and has_ms > finalised_ms:
            self._begin_late(has_ms, finalised_ms, seg, GapReason.RESUME)
        elif lacks:
            self._begins = self._anew(has_ms), finalised_ms, seg
        if lacks or choices != self.hub.choices:
            self.hub.choices, self.session = choices, self._context.new_session(choices)
            self.session.resume(*self._begins)
        if (journal := self.hub.journal) is not None:
            kept = choices if chosen or journal.fed.choices else None
            self._store_feeder(journal, Fed(choices=kept, proof=proof_of(secret) if secret else ""))
            await self.stored()  # before the client counts on it

    async def update(self, chosen: Mapping[str, object]) -> None:
        """Apply choices while there is audio: the next window and utterance are made with them.

        Raises `WireError` with `bad_option`; then nothing has changed.
        """
        choices = await self._context.choose(self.hub.choices, chosen)
        if self.is_over or choices == self.hub.choices:
            return
        self.hub.choices, self._has_new_choices = choices, True
        adopt(self.session, self._context.new_session(choices))
        self._store_choices()

    async def correct(self, correction: Correction, *, keep: bool) -> None:
        """Expect the text of a correction from now on, and tell all listeners of it.

        With `keep` it is kept for later sessions, too. Raises `WireError` with `bad_option` if that
        fails, if that is no phrase, or if there is no such final; then no listener is told.
        """
        if correction.seq > self.hub.seq or correction.first > correction.last:
            raise WireError("bad_option", f"correct: final {correction.seq} has no such words")
        if is_risky(correction.text):
            raise WireError("bad_option", "correct: the text may not have control characters")
        try:
            line = line_of(correction.text)
        except ValueError as error:
            raise WireError("bad_option", f"correct: {error}") from None
        known = self.hub.choices.hotwords
        if line not in known.split("\n"):
            await self.update({"hotwords": f"{line}\n{known}".rstrip()})
        if keep:
            await self._context.learn(correction.text)
        self._publish([correction])

    def rename(self, naming: SpeakerName, *, keep: bool | None = False) -> None:
        """Tell all listeners what a speaker is called, now and later.

        With `keep`, their voice is kept, too, to be known in later sessions. Raises `WireError`
        with `bad_option` if that is no name, or if the voice cannot be kept; then they are told
        the name all the same. A voice that was kept under another name is not kept under that,
        unless `keep` is None.
        """
        try:
            naming = replace(naming, name=name_from(naming.name))
        except ValueError as error:
            raise WireError("bad_option", f"name: {error}") from None
        self._named_here.discard(naming.speaker)
        if naming.name != self.hub.named(naming.speaker):
            self._publish([naming])
        self._named_here.add(naming.speaker)
        if keep is None:
            return
        before = self._kept_voices.pop(naming.speaker, "")
        if keep and naming.name:
            self._kept_voices[naming.speaker] = naming.name
        try:
            if before and self._keeper and before.casefold() != naming.name.casefold():
                self._keeper.take_back(before)  # whoever else has that name is kept at the end
            if keep and naming.name:
                self._keep_voice(naming.name)
        except ConfigError as error:
            log.error("keep: %s", error)  # noqa: TRY400 - no bug
            raise WireError("bad_option", for_clients("the voice cannot be kept", error)) from error

    def _keep_voice(self, name: str, *, again: bool = False) -> None:
        """Keep what is known of a voice by now; at the end, more of it is, and so it is `again`."""
        if self._keeper is None:
            raise WireError(
                "bad_option", "keep: this server keeps no voices: start it with --people"
            )
        # Of one person who was taken for two, or of two with one name, most was heard of the first.
        own = (n for n, each in self._kept_voices.items() if each.casefold() == name.casefold())
        voices = filter(None, map(self.session.voice, own))
        voice, n = max(voices, key=lambda each: each[1], default=(b"", 0))
        if n < LEAST_KEPT:
            when = "it is not kept" if again else "the voice is kept at the end"
            raise WireError("bad_option", f"keep: too little of {name} was heard so far: {when}")
        self._keeper.keep(name, voice, n, again=again)

    def _store_choices(self, *, at_once: bool = False) -> None:
        """Store new choices when there was audio enough for those before, or `at_once`.

        A client may change them as often as it likes, but only its audio may fill a disk.
        """
        journal = self.hub.journal
        is_due = at_once or self.session.now >= self._choices_due
        if journal is None or not (self._has_new_choices and is_due):
            return
        self._has_new_choices = False
        fed = replace(journal.fed, choices=self.hub.choices)
        ms = len(msgspec.json.encode(fed)) * 1000 // _CHOICES_BYTES_PER_S
        self._choices_due = self.session.now + frames_from_ms(ms)
        self._store_feeder(journal, fed)

    def _store_feeder(self, journal: Journal, fed: Fed) -> None:
        try:
            journal.feed(fed)
        except StreamdError as error:
            self._context.failed(error)

    @property
    def is_over(self) -> bool:
        """Whether nothing is published any more; subscribers may still wait for the end."""
        return self.phase in (Phase.ENDED, Phase.MOVED)

    @property
    def has_moved(self) -> bool:
        """Whether another node has taken the session over."""
        return self.phase is Phase.MOVED

    @property
    def is_fed(self) -> bool:
        """Whether audio may come; a session of an earlier process may only have listeners."""
        return self.phase is not Phase.WAITING and not self.hub.closed

    @property
    def lag_ms(self) -> int:
        """Duration of the speech that waits for the engine, or of the wait to be stored."""
        return max(self.unstored_ms, ms_from_frames(self.session.backlog))

    @property
    def unstored_ms(self) -> int:
        """How long the oldest event has waited to be stored."""
        return self.hub.journal.lag_ms if self.hub.journal else 0

    def feed(self, frames: Frames) -> None:
        """Take the next frames, unless the session has ended.

        What this or `gap` or `flush` raises is a bug; then the session has ended.
        """
        if self.is_over:
            return
        self._context.metrics.received(ms_from_frames(len(frames)))
        one = mixed(frames)
        apart = frames if isinstance(self.session, SplitSession) else one
        if self._recording is not None:
            self._record(self._recording, apart)
        if self.heard is not None:
            self.heard(one)
        self._hear(one)
        self._take(lambda: self.session.feed(apart))
        self._store_choices()

    def _hear(self, frames: Frames) -> None:
        """Have the frames heard for sounds, if the session's client, or the server, wants them."""
        if self.hub.choices.sounds is not True:
            self._hearing = None
            return
        if self._hearing is None:
            self._hearing = self._context.new_hearing(self._tell_sounds, self._begins[1])
        if self._hearing is not None:
            self._hearing.feed(frames, self.session.now_ms)

    def _tell_sounds(self, sounds: Sequence[Sound]) -> None:
        self._publish(sounds)
        self._notify()

    def _record(self, recording: Recorder, frames: Frames) -> None:
        """Write audio, and note in the journal where it is."""
        if (journal := self.hub.journal) is not None and recording.file != self._attached:
            self._attached = recording.file
            try:
                journal.attach(recording.file, self.session.now_ms, recording.duration_ms)
            except StreamdError as error:
                self._context.failed(error)
        recording.write(frames)

    def gap(self, duration_ms: int, why: GapReason) -> None:
        """Report audio that never arrived."""
        self._attached = ""  # what follows is later than the audio before it
        if not self.is_over:
            self._take(lambda: self.session.gap(duration_ms, why))

    async def wait_for_space(self) -> None:
        """Return when the engine has caught up so far that more audio is welcome.

        A session may have a long backlog and still need more audio before a window is due.
        """

        def is_welcome() -> bool:
            if self._hearing is not None and self._hearing.is_behind:
                return False
            needs_more = not self._n_out and self.due_since is None
            return needs_more or self.session.backlog < self._context.max_backlog

        await self._until(is_welcome)

    async def flush(self) -> None:
        """Make all audio until now final; the session continues."""
        if self.is_over:
            return
        self._take(self.session.flush)
        await self._until(lambda: self.session.idle)
        await self.stored()

    def finalise(self) -> int:
        """Return the time (ms) before which no audio is needed, even after a crash: it is stored.

        If the journal does not store at once, it has done so by the next call.
        """
        journal = self.hub.journal
        if self.has_moved:
            return 0
        if journal is None or journal.closed:
            return self.session.finalised_ms
        self._finalise_until(self.session.finalised_ms, self.session.resume_state)
        try:
            journal.mark()
        except StreamdError as error:
            self._context.failed(error)
            return 0
        return journal.kept_ms

    def next_window(self) -> Window | None:
        """Return the session's next window; see `Session.next_window`."""
        if self._postponed and not self.is_over:
            window: Window | None = self._postponed.popleft()
        else:
            window = None if self.is_over else self.session.next_window()
        self.due_since = None
        if window is not None:
            self._n_out += 1
            self._had_final = window.last
        return window

    @property
    def is_urgent(self) -> bool:
        """Whether a final waits for the next window.

        Of a stream that is late, as one whose audio is sent faster than it is spoken, finals may be
        due again and again: one that follows another waits as partials do, and these get a turn.
        """
        session = self.session
        return session.due_for_final and not (self._had_final and session.late)

    def accept(self, window: Window, hypothesis: Hypothesis) -> None:
        """Take the recognizer's hypothesis for a window of this session."""
        self._n_out -= 1
        self._n_postponed = 0
        if self.is_over:
            return
        self._publish(self.session.accept(window, hypothesis))
        # Of a language that the recognizer was given, the probability is 1.
        if (
            not self._language_published
            and self.session.language
            and (heard := hypothesis.answer(DetectedLanguage))
            and heard.prob is not None
        ):
            self._language_published = True
            log.info(HEARD, self.hub.session, self.session.language)
        self._notify()

    def postpone(self, window: Window, error: BaseException) -> bool:
        """Have a window transcribed later, for which there was too little memory.

        Nothing is lost: its words come when there is more. Returns whether there is a next time.
        """
        self._n_out -= 1
        if self.is_over:
            return True
        self._n_postponed += 1
        if self._n_postponed >= _MOST_TRIES:
            return False
        self._postponed.append(window)
        if self._n_postponed == 1:
            log.warning("session %s: too little memory: %s; trying again", self.hub.session, error)
            what = "the server has too little memory; the next words come later"
            self._publish([Fault(code="memory", message=what)])
        self._look()
        return True

    def publish_state(self, rtf: float, model: str = "") -> None:
        """Publish the state of the session; `rtf`: engine seconds for each second of audio.

        `model`: as in `Stats`.
        """
        if self.is_over:
            return
        # By time, not by window: when the engine is overloaded, windows are rare.
        if self.session.late or self.unstored_ms >= _LATE_MS:
            self.hub.publish(Lag(lag_ms=self.lag_ms))
        self.hub.publish(
            Stats(
                audio_ms=self.session.now_ms,
                lag_ms=self.lag_ms,
                lost_ms=self._lost_ms,
                rtf=round(rtf, 3),
                listeners=self.hub.listeners,
                model=model or msgspec.UNSET,
            )
        )

    def report(self, fault: Fault) -> None:
        """Publish a fault that does not end the session."""
        self._publish([fault])

    def fail(self, fault: Fault) -> None:
        """Publish a fault and end the session, unless another node can go on with it."""
        if not (self.hub.closed or self.hub.moves):
            self.hub.publish(fault)
        self.end(EndReason.ERROR, resumable=True)

    def break_off(self, error: Exception) -> None:
        """End the session because of a bug that concerns no other one, or for lack of memory.

        Of a bug, nobody may resume it: with the same audio, the same would happen again.
        """
        if self.is_over:
            return
        lacks = lacks_memory(error)
        reason = error.strerror if isinstance(error, OSError) else error  # not the file's name
        what = f"a bug in streamd has ended this session: {type(error).__name__}: {reason}"
        code = "internal"
        if isinstance(error, OneSessionError):
            what, code = f"the model failed, which has ended this session: {error}", "engine"
        if lacks:
            what, code = "the server has too little memory for this session", "memory"
        try:
            self.hub.publish(Fault(code=code, message=what, fatal=True))
        except StreamdError as trouble:
            self._context.failed(trouble)
        self.end(EndReason.ERROR, resumable=lacks)

    def _take(self, change: Callable[[], list[SessionEvent]]) -> None:
        """Publish the events of a change to the session, which ends if that raises a bug.

        Half of the change may have been made.
        """
        try:
            self._publish(change())
        except Exception as error:
            if is_bug(error):
                self.break_off(error)
            raise

    async def finish(self, reason: EndReason, *, resumable: bool = False) -> None:
        """Make all audio final and end the session, unless another node goes on with it."""
        if reason != EndReason.SHUTDOWN or not self.hands_over:
            await self.flush()
        if self._hearing is not None:
            await self._hearing.finish()
        self.end(reason, resumable=resumable or reason == EndReason.SHUTDOWN)

    @property
    def hands_over(self) -> bool:
        """Whether its client can go on at another node, so that no word has to be cut here."""
        journal = self.hub.journal
        return journal is not None and self.hub.moves and bool(journal.fed.proof)

    def move(self) -> None:
        """Another node has the session: publish nothing more; the hub stays, for its listeners."""
        self.phase = following(STREAM, self.phase, Turn.MOVE)
        self.hub.renumber()
        self._notify()
        if self.when_moved is not None:
            self.when_moved()
        self.when_moved = None
        if self._recording is not None:
            self._recording.close()

    def end(self, reason: str, *, resumable: bool) -> None:
        """End the session as it is; a `resumable` one may be continued by another process."""
        if self.is_over:
            return
        self.phase = following(STREAM, self.phase, Turn.END)
        # Who feeds it has a reference to it, and would keep its audio in memory in a cycle.
        self.when_moved = None
        try:
            self._close(reason, resumable=resumable)
        except StreamdError as error:
            self._context.failed(error)
        self._notify()

    def _close(self, reason: str, *, resumable: bool) -> None:
        for name in dict.fromkeys(self._kept_voices.values()):
            try:
                self._keep_voice(name, again=True)
            except (WireError, ConfigError) as error:
                log.warning("session %s: %s: %s", self.hub.session, name, error)
        journal = self.hub.journal
        try:
            if self._recording is not None:
                self._recording.close()
            if journal is not None and not journal.closed:
                if resumable:
                    self._store_choices(at_once=True)
                    journal.close()
                else:
                    journal.finalised_ms = max(journal.finalised_ms, self.session.now_ms)
                    journal.end(reason)
        finally:
            if not (resumable and self.hub.moves):
                self.hub.close(reason)

    def _publish(self, events: Sequence[SessionEvent]) -> None:
        if self.is_over:
            return
        self._look()
        events = [event for event in events if not self._is_outvoted(event)]
        for event in events:
            self._observe(event, self.session.now_ms)
        events, self._waiting = (*self._waiting, *events), []
        n_left = sum(isinstance(event, Final) for event in events)
        self._finalise_until(self.session.finalised_ms if not n_left else 0)
        try:
            for event in events:
                if isinstance(event, Gap):
                    self._lost_ms += event.duration_ms
                if isinstance(event, Final):
                    # A crash may come between two finals: the first finalises only its own audio.
                    n_left -= 1
                    if n_left:
                        self._finalise_until(event.end_ms)
                    else:
                        self._finalise_until(self.session.finalised_ms, self.session.resume_state)
                self._put(self._meant(event))
        except StreamdError as error:
            self._context.failed(error)

    def _put(self, event: SessionEvent) -> None:
        """Publish an event, and then what it has of that for which somebody waits."""
        self.hub.publish(event)
        if self._notices is None:
            return
        try:
            notices = self._notices.take(event)
        except Exception:  # for a bug here, no captions may end
            log.exception("session %s: nobody is told of anything any more", self.hub.session)
            self._notices = None
            return
        for notice in notices:
            self.hub.publish(notice)

    def _is_outvoted(self, event: SessionEvent) -> bool:
        """Whether somebody has given a speaker another name than that of a voice that is known."""
        return isinstance(event, SpeakerName) and event.speaker in self._named_here

    def _meant(self, event: SessionEvent) -> SessionEvent:
        if self._rewriter is None or not isinstance(event, Partial | Final):
            return event
        return self._rewriter.rewritten(event, self.session.language)

    def _finalise_until(self, finalised_ms: int, state: ResumeState | None = None) -> None:
        if (journal := self.hub.journal) is not None:
            journal.finalised_ms = max(journal.finalised_ms, finalised_ms)
            if state is not None and journal.fed.proof:  # nobody else sends anything again
                journal.resume_state = state

    def _look(self) -> None:
        """Note since when a window is due, and wake a worker for it; silence wakes none."""
        if not (self._postponed or self.session.due):
            self.due_since = None
            self._notify()
        elif self.due_since is None:
            self.due_since = asyncio.get_running_loop().time()
            self._context.wake()
        elif self.is_urgent:  # as a partial, it may have had to wait for other models
            self._context.wake()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def stored(self) -> None:
        """Return when all until now is stored, and released to subscribers."""
        if self.hub.journal is None or self.is_over:
            return
        done = False

        def released(_: SessionEvent) -> None:
            nonlocal done
            done = True
            self._notify()

        self.hub.journal.store(Flushed(id="", seq=0), released)
        await self._until(lambda: done)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not (self.is_over or condition()):
            await self._news.wait()


def _log_bug(session: str, error: Exception) -> None:
    if isinstance(error, OneSessionError):
        log.error("session %s: %s", session, error)
    else:
        log.error("session %s has ended because of a bug", session, exc_info=error)
