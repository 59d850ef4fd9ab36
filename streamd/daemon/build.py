"""From the configuration to the parts: the one place that sees both."""

import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, Unpack

import msgspec
from msgspec import UNSET

from streamd.config import OPTIONS, Config
from streamd.daemon import phrases
from streamd.daemon.people import PeopleFolder
from streamd.engines import smart_turn, voices, yamnet
from streamd.engines.silero import Silero
from streamd.engines.smart_turn import begin_smart_turn, has_smart_turn
from streamd.engines.voices import Listener
from streamd.errors import ConfigError, SourceError
from streamd.models.model import Model
from streamd.models.store import known_language
from streamd.notices import Notices, parse
from streamd.options import Choices, DecodingOptions
from streamd.session import Session
from streamd.session.channels import AnySession, SplitSession
from streamd.session.commit import AlignAtt, CommitPolicy, LocalAgreement, NativeRule
from streamd.session.gate import Gate, WebRtcVad, any_sound
from streamd.session.segmenter import Segmenter
from streamd.sources import Source
from streamd.sources.call import BothSides, sides_of
from streamd.sources.ffmpeg import is_url
from streamd.sources.file import FileSource
from streamd.sources.microphone import Microphone
from streamd.sources.stdin import StdinSource
from streamd.sources.tracks import Selection
from streamd.streams import Chooser, SessionStorage, Streams
from streamd.streams.auto_step import AutoStep
from streamd.streams.hearing import SoundHearing, Told
from streamd.streams.inference import EngineThread
from streamd.streams.metrics import Metrics
from streamd.system.processor import usable_threads
from streamd.types import FRAME_MS, WindowRecognizer, frames_from_ms, ms_from_frames
from streamd.whisper.engine import AnyEngine
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.turns import TurnJudge
from streamd.whisper.vocabulary import Vocabularies, Vocabulary

log = logging.getLogger(__name__)

MAX_BACKLOG = 500
"""Frames of backlog (10 s) at which pipes, files and clients have to wait."""
_MOST_PHRASES = 500
"""That a client may expect; the list of the server may have thousands. As many names as fit into
the 4,000 characters of `Hint`; compiling them takes 0.1 s, at most once for each window."""


class _Particular(TypedDict, total=False):
    max_ingest: Required[int]
    storage: SessionStorage
    metrics: Metrics


def default_choices(config: Config) -> Choices:
    """Return the options of sessions whose client chooses none, also before the model is loaded."""
    o = config.decoding
    language = o.language
    if not languages_of(language):
        language = known_language(o.model) or "auto"
    return Choices(
        language=language,
        task=o.task,
        prompt=o.prompt,
        hotwords=o.hotwords,
        endpoint=config.endpoint.rule,
        endpoint_ms=ms_from_frames(config.endpoint.plain),
        speakers=o.speakers or UNSET,
        sounds=o.sounds or UNSET,
    )


def with_choices(config: Config, choices: Choices, num_speakers: int = 0) -> Config:
    """Return the configuration with what is chosen for one recording.

    Speakers are told apart where their number is known.
    """
    counted = num_speakers or config.longform.num_speakers
    decoding = replace(
        config.decoding,
        language=choices.language,
        task="translate" if choices.task == "translate" else "transcribe",
        prompt=choices.prompt,
        hotwords=choices.hotwords,
        speakers=choices.speakers is True or num_speakers > 0,
        sounds=choices.sounds is True,
    )
    endpoint = replace(config.endpoint, plain=frames_from_ms(choices.endpoint_ms))
    longform = replace(config.longform, num_speakers=counted)
    return replace(config, decoding=decoding, endpoint=endpoint, longform=longform)


def new_session(config: Config) -> AnySession:
    """Return a session with the configured options; raises as `session_factory` does."""
    return session_factory(config)(default_choices(config))


def streams_maker(config: Config) -> Callable[..., Streams]:
    """Return what makes the `Streams` of these options, with what is particular to the program.

    Raises `ConfigError` for options that contradict each other.
    """
    step = AutoStep() if config.session.step is None else None
    new_session = session_factory(config, step)
    rules = phrases.read_replacements(config.decoding.replace)

    def make(**particular: Unpack[_Particular]) -> Streams:
        deadline_s = config.decoding.engine_deadline_ms / 1000
        streams = Streams(new_session, max_backlog=MAX_BACKLOG, deadline_s=deadline_s, **particular)
        streams.context.rules = rules
        streams.context.new_hearing = hearing()
        streams.follow(step)
        return streams

    return make


def session_factory(
    config: Config, auto_step: AutoStep | None = None
) -> Callable[[Choices], AnySession]:
    """Return what makes a session; raises `ConfigError` for options that contradict each other.

    Without an `auto_step`, an automatic step is the usual one.
    """
    endpoint = config.endpoint
    if config.decoding.sounds:
        yamnet.check_sounds()
    if endpoint.is_smart and not has_smart_turn():
        raise ConfigError("--endpoint smart: this installation lacks smart-turn's weights")

    def make(choices: Choices) -> AnySession:
        if choices.split is not True:
            return of_one(choices)
        plain = msgspec.structs.replace(choices, speakers=UNSET)
        theirs = partial(of_one, choices) if choices.speakers is True else None
        return SplitSession(partial(of_one, plain), theirs)

    def of_one(choices: Choices) -> Session:
        plain = frames_from_ms(choices.endpoint_ms)
        options = replace(
            config.session,
            languages=languages_of(choices.language),
            task=choices.task,
            prompt=choices.prompt,
            vocabulary=phrases.one_a_line(choices.hotwords),
            speakers=choices.speakers is True,
        )
        # A shorter `--endpoint-ms` also caps the pause after a sentence.
        sentence = min(endpoint.sentence, plain)
        ends = replace(endpoint, rule=choices.endpoint, plain=plain, sentence=sentence)
        segmenter = Segmenter(ends)
        report = partial(log.debug, "%s") if log.isEnabledFor(logging.DEBUG) else None
        session = Session(
            gate(config), segmenter, _policy(config), options, report, auto_step=auto_step
        )
        if known is not None:
            session.meet(known.people)
        return session

    known = PeopleFolder(config.decoding.people) if config.decoding.people else None
    return make


class NamedModel(Protocol):
    """A model, as far as languages go: its name, and the only one that it knows, or None."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def language(self) -> str | None: ...  # noqa: D102


def chooser(config: Config, model: Model) -> Chooser:
    """Return what checks the choices of clients, as options are checked."""
    return any_chooser(model, check=tokenizer(config, model).sot_sequence_for)


def any_chooser(model: NamedModel, *, check: Callable[[str], object]) -> Chooser:
    """Return it for a model of any family; `check` raises `ConfigError` for unknown languages."""

    def choose(before: Choices, chosen: Mapping[str, object]) -> Choices:
        values: dict[str, Any] = {
            name: OPTIONS[name.replace("_", "-")].read(value, name, typed=True)
            for name, value in chosen.items()
            if name != "split"
        }
        if chosen.get("split"):  # its channels are its speakers
            values |= {"split": True, "speakers": UNSET}
        if "endpoint_ms" in values:  # read as frames
            values["endpoint_ms"] = ms_from_frames(values["endpoint_ms"])
        if values.get("sounds") is True:
            yamnet.check_sounds()
        choices = msgspec.structs.replace(before, **values)
        n_phrases = len(phrases.one_a_line(values.get("hotwords", "")).splitlines())
        if n_phrases > _MOST_PHRASES:
            raise ConfigError(f"hotwords: {n_phrases} phrases, of at most {_MOST_PHRASES}")
        languages = languages_of(choices.language)
        if model.language is not None:
            # Of several languages that may be spoken, the one that it knows will do.
            language = model.language if model.language in languages else choices.language
            check_language(model, language, choices.task)
            return msgspec.structs.replace(choices, language=model.language)
        for code in languages:
            check(code)
        return choices

    return choose


def check_language(model: NamedModel, language: str, task: str, flag: str = "") -> None:
    """Raise `ConfigError` for what a model of one language cannot do; `flag` begins options."""
    if model.language is None:
        return
    knows = f"the model {model.name} knows {model.language} only"
    if languages_of(language) not in {(), (model.language,)}:
        hint = "; choose another with --model" if flag else ""
        raise ConfigError(f"{flag}language {language}: {knows}{hint}")
    if task == "translate":
        raise ConfigError(f"{flag}task translate: {knows}")


def gate(config: Config) -> Gate:
    """Return the configured voice gate."""
    if config.vad.detector == "off":
        return Gate(any_sound, replace(config.gate, floor_db=-math.inf))
    confirm = Silero() if config.vad.detector == "silero" else None
    return Gate(WebRtcVad(), config.gate, confirm=confirm)


def _policy(config: Config) -> CommitPolicy:
    if config.commit.rule == "align-att":
        return NativeRule(AlignAtt())
    return NativeRule(LocalAgreement(config.agreement))


def own_sources(config: Config) -> list[Source]:
    """Return the sources of this machine, to be played in turn.

    Raises `SourceError`, or `ConfigError` for options that they do not have.
    """
    if not config.input.source:
        return []
    if not config.input.files:
        if config.input.track:
            raise ConfigError("--track is for files: name one, or drop it")
        return [microphone(config)]
    # A mistyped name is told before hours of work, not after them.
    names = [name for name in config.input.files if not (name == "-" or is_url(name))]
    if missing := [name for name in names if not Path(name).exists()]:
        raise SourceError(f"cannot read {', '.join(missing)}: no such file; check the path")
    return [_source(config, name) for name in config.input.files]


def microphone(config: Config, *, again: bool = False) -> Source:
    """Return the user's device, or the two of a call; `again` after it was lost."""
    if (sides := sides_of(config.input.device)) is not None:
        return BothSides(*sides, refresh=again)
    return Microphone(config.input.device or None, refresh=again, split=is_split(config))


def _source(config: Config, name: str) -> Source:
    if name != "-" and not Path(name).is_fifo():
        chosen = selection(config)
        return FileSource(name, realtime=config.input.realtime, selection=chosen)
    if is_split(config) and config.pcm.channels == 1:
        source = "standard input" if name == "-" else name
        raise ConfigError(
            f"--channels split: {source} does not say how many: add --set pcm.channels=N"
        )
    pipe = sys.stdin.buffer if name == "-" else name
    return StdinSource(pipe, config.pcm, selection=selection(config))


def selection(config: Config) -> Selection:
    """Return what of the sound of files is read."""
    languages = languages_of(default_choices(config).language)
    return Selection(config.input.track, languages, split=is_split(config))


def is_split(config: Config) -> bool:
    """Whether the channels of the program's own source have captions of their own."""
    return config.input.channels == "split" or is_call(config)


def is_call(config: Config) -> bool:
    """Whether the program's own source are both sides of a call."""
    has_device = config.input.source and not config.input.files
    return has_device and sides_of(config.input.device) is not None


def recognizer(
    config: Config,
    model: Model,
    runs: AnyEngine,
    *,
    working: set[Recognizer[Any]] | None = None,
    expected: Vocabulary | None = None,
) -> Recognizer[Any]:
    """The model with its options, on the engine that `runs` it.

    Recognizers of one engine share the set of those that are `working`. The languages come with
    each window, and phrases of its session; `expected` is as for `vocabularies`. Raises
    `ConfigError` if the model does not fit the options.
    """
    check_windows(config, model)
    options, words = decoding_options(config, model), tokenizer(config, model)
    lists = vocabularies(config, words, expected)
    return Recognizer(runs, words, options, working=working, vocabularies=lists)


def answering(recognizer: WindowRecognizer) -> Listener:
    """Return a recognizer that also answers what sessions ask about turns and voices."""
    judge = TurnJudge(recognizer, begin_smart_turn) if has_smart_turn() else recognizer
    return Listener(judge)


def vocabularies(
    config: Config, words: Tokenizer, expected: Vocabulary | None = None
) -> Vocabularies:
    """Return what compiles the phrases of sessions beside those that are `expected` in all.

    Each thread needs one of its own. Without them, what is expected is compiled, too.
    """
    known = expected or Vocabularies(words).of(config.decoding.expected)
    return Vocabularies(words, known, n_sessions=config.limits.max_speakers)


def release_small_models() -> None:
    """Free the models that hear turns, voices and sounds; who needs them loads them again."""
    smart_turn.release()
    voices.release()
    yamnet.release()


def hearing() -> Callable[[Told, int], SoundHearing]:
    """Return what makes the hearing of sounds of a session; all share a thread."""
    thread = cache(EngineThread)
    return lambda told, since_ms: SoundHearing(yamnet.classify, thread(), told, since_ms=since_ms)


def notices(config: Config) -> Callable[[], Notices | None]:
    """Return what makes the notices of a session; raises `ConfigError` for what cannot be heard."""
    wanted = config.notices.notify
    kinds = {parse(each).kind: each for each in wanted}
    if config.decoding.sounds is False and "sound" in kinds:
        raise ConfigError("--notify sound: sounds are heard with --sounds")
    if "speaker" in kinds and not (config.decoding.speakers or is_split(config)):
        why = f"--notify {kinds['speaker']}: speakers are told apart with --speakers"
        if config.input.source:
            raise ConfigError(why)
        log.warning("%s, or by clients that choose it; in other sessions nobody is heard", why)
    return lambda: Notices(wanted) if wanted else None


def check_windows(config: Config, model: Model) -> None:
    """Refuse windows longer than what the model hears at once, if that is less than 30 s."""
    ms = model.dims.n_audio_ctx * FRAME_MS
    windows = {
        "--set endpoint.longest_ms=": ms_from_frames(config.endpoint.longest),
        "--length ": ms_from_frames(config.session.length),
    }
    too_long = [name for name, window_ms in windows.items() if window_ms > ms]
    if too_long:
        cure = " and ".join(f"{name}{ms}" for name in too_long)
        raise ConfigError(f"the model {model.name} hears only {ms} ms at once: use {cure}")


def workers(config: Config) -> int:
    """How many windows are transcribed at a time.

    One after the other is best for one stream, several at once for many: two windows on a thread
    each take less time than one after the other on two threads (benchmarks/RESULTS.md).
    """
    alone = config.input.source
    return config.decoding.workers or (1 if alone else usable_threads())


def threads(config: Config) -> int:
    """How many threads each window gets."""
    return urgent_threads(config) if workers(config) == 1 else config.decoding.threads or 1


def urgent_threads(config: Config) -> int:
    """How many threads a window gets that a final waits for, if it is the only one."""
    return config.decoding.threads or usable_threads()


def tokenizer(config: Config, model: Model) -> Tokenizer:
    """The model's vocabulary, for the language and the task. Raises `ConfigError`."""
    o = config.decoding
    languages = languages_of(o.language) or ("en",)
    words = Tokenizer(
        model.vocabulary,
        model.dims.n_vocab,
        multilingual=model.language is None,
        language=model.language or languages[0],
        task=o.task,
    )
    for code in languages:
        words.sot_sequence_for(code)
    return words


def decoding_options(config: Config, model: Model) -> DecodingOptions:
    """How windows are decoded. Raises `ConfigError` for a language that the model lacks."""
    o = config.decoding
    check_language(model, o.language, o.task, "--")
    return replace(
        config.search,
        languages=languages_of(o.language),
        temperatures=_temperatures(config),
        suppress_tokens=(-1,) if model.suppress_tokens is None else model.suppress_tokens,
        begin_suppress_tokens=model.begin_suppress_tokens,
    )


def languages_of(given: str) -> tuple[str, ...]:
    """The codes of the languages that may be spoken, none if all may."""
    return () if given in {"", "auto"} else tuple(dict.fromkeys(given.split(",")))


def _temperatures(config: Config) -> tuple[float, ...]:
    first = config.decoding.temperature
    every = [round(first + rise, 4) for rise in config.search.temperatures]
    possible = [temperature for temperature in every if temperature <= 1] or [first]
    return tuple(possible)
