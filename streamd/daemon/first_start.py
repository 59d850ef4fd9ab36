"""Begins captions with a smaller model while the wanted one is prepared, which takes minutes once.

The wanted model is prepared in a process of its own that gives way to captions. Sessions know only
its tokens: text goes to the smaller model and comes from it as it is spelled. So each utterance can
go on with either model; one that the smaller model began is left to it, and the next one is the
wanted model's. If that cannot be prepared, captions go on with the smaller one.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Thread

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.acceleration import check_compute
from streamd.daemon.opening import (
    OpenModel,
    OpenWhisper,
    Recognizers,
    check_look_ahead,
    keeps_up,
    open_any,
    open_model,
)
from streamd.engines.prepared import is_prepared, prepare
from streamd.engines.supervised.worker import Job, Report, Worker
from streamd.errors import ConfigError, EngineMemoryError, ModelError, is_bug
from streamd.models import store
from streamd.models.catalog import quality
from streamd.models.model import Model
from streamd.models.store.cache import places
from streamd.models.store.layouts import outline
from streamd.options import Choices
from streamd.streams import Chooser
from streamd.system.heap import return_early, trim
from streamd.types import Hypothesis, MarksAnswer, MarksQuestion, Window, WindowRecognizer, Word
from streamd.whisper.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_LONGEST_S = 3600.0
"""How long a preparation may take."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Between two tries to open a model for which there is no memory."""
_PREPARED = " % prepared"
"""How the worker's reports end, which the log repeats while the next one takes long."""
_REPORTED = 0.25
"""The log says each time that this share more is done."""

Opened = Callable[[OpenModel], object]
"""Called with the model that stays, in another thread."""


class FirstStart:
    """Opens recognizers for live sessions, at once if a smaller model can begin.

    Call `open` once, in a thread, and `close` when the program ends.
    """

    def __init__(self, config: Config, opened: Opened) -> None:
        self._config, self._opened = config, opened
        self._begun_s = self._told_s = time.monotonic()
        self._share, self._name, self._wanted = 0.0, "", config.decoding.model
        self._early: EarlyModel | None = None
        self._worker: Worker | None = None
        self._closed = Event()

    def open(self) -> Recognizers:
        """Return recognizers of the configured model, or such as begin with a smaller one.

        Raises as `open_model` does, of the model that begins. Where the system is short of memory,
        a model for live audio is waited for.
        """
        name = smaller_model(self._config)
        if name is None:
            return self._open()
        return self._begin(name)

    @property
    def state(self) -> str:
        """What captions are made with until the wanted model is there, else empty."""
        if self._early is None:
            return ""
        wanted, early = self._wanted, self._name
        if not self._worker:
            return f"{early}: {wanted} cannot be prepared"
        if not self._share:
            return f"{early} until {wanted} is ready"
        whole_s = (self._told_s - self._begun_s) / self._share
        left_s = 10 * max(0, math.ceil((self._begun_s + whole_s - time.monotonic()) / 10))
        return f"{early} until {wanted} is ready ({left_s // 60}:{left_s % 60:02})"

    def close(self) -> None:
        """Prepare nothing more."""
        self._closed.set()
        if self._worker:
            self._worker.close()

    def _open(self) -> Recognizers:
        opened = self._open_model()
        recognizers = opened.recognizers()
        self._opened(opened)
        return recognizers

    def _open_model(self) -> OpenModel:
        """Open the model, again and again while there is no memory for it, unless for files."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return open_any(self._config)
            except EngineMemoryError as error:
                if self._config.input.files:
                    raise
                log.warning("%s; trying again in %g s", error, pause_s)
                if self._closed.wait(pause_s):
                    raise CancelledError from None
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _begin(self, name: str) -> Recognizers:
        decoding = replace(self._config.decoding, model=name, compute="cpu")
        config = replace(self._config, decoding=decoding)
        with store.opened_model(self._wanted) as opened:
            model = replace(opened, weights={})
        self._check(model)
        wanted = self._wanted = model.name
        early_model, engine = open_model(config)
        smaller = OpenWhisper(config, early_model, engine)
        firsts, _ = smaller.recognizers()
        spell = partial(build.tokenizer, self._config, model)
        early = EarlyModel(
            [Respelled(each, build.tokenizer(config, early_model), spell()) for each in firsts]
        )
        workers = [EarlyRecognizer(early, at) for at in range(len(firsts))]
        self._name, self._early = name, early
        job = Job(partial(_prepared, self._config), wanted, background=True)
        self._worker = Worker(job, told=self._told)
        if self._closed.is_set():  # while the smaller model was opened
            self._worker.close()
        log.info("captions begin with %s: %s is prepared meanwhile, once", name, wanted)

        def go_on() -> None:
            try:
                self._prepare(workers)
            except Exception as error:
                if self._closed.is_set():
                    return
                self._worker, bug = None, error if is_bug(error) else None
                line = "%s cannot be used: %s; captions stay with %s"
                log.warning(line, wanted, error, name, exc_info=bug)
                self._opened(smaller)

        Thread(target=go_on, name="first-start", daemon=True).start()
        return workers, self._chooser(early_model, build.chooser(self._config, model))

    def _check(self, model: Model) -> None:
        """Refuse now what would be refused when the model is prepared. Raises `ConfigError`."""
        check_look_ahead(self._config)
        check_compute(self._config)
        build.check_windows(self._config, model)
        build.decoding_options(self._config, model)

    def _prepare(self, workers: "Sequence[EarlyRecognizer]") -> None:
        assert self._worker is not None
        with closing(self._worker) as worker:
            worker.wait(_LONGEST_S)
        then, _ = self._open()
        for early, recognizer in zip(workers, then, strict=True):
            early.go_on_with(recognizer)
        self._early = None
        trim()
        wanted, seconds = self._wanted, time.monotonic() - self._begun_s
        log.info(
            "captions move to %s after %.0f s, each session with its next utterance",
            wanted,
            seconds,
        )

    def _told(self, text: str) -> None:
        before, self._share = self._share, int(text.removesuffix(_PREPARED)) / 100
        self._told_s = time.monotonic()
        if before // _REPORTED < self._share // _REPORTED:
            log.info("%s", self.state)

    def _chooser(self, early: Model, full: Chooser) -> Chooser:
        def choose(before: Choices, chosen: Mapping[str, object]) -> Choices:
            choices = full(before, chosen)
            if self._early is not None:
                try:
                    build.check_language(early, choices.language, choices.task)
                except ConfigError as error:
                    raise ConfigError(f"{error}; now: {self.state}") from None
            return choices

        return choose


def smaller_model(config: Config) -> str | None:
    """Return the best model that can begin at once, or None if the configured one can.

    Also None if there is none that does the same task in the same language.
    """
    o, here = config.decoding, places()
    path = store.find(o.model, here)
    if path is None or not config.input.realtime or is_prepared(o.model, o.precision):
        return None
    try:
        if store.is_family(o.model, here):
            return None
        wanted = outline(path)
    except ModelError:  # as `open_model` will say
        return None
    return store.best(
        here,
        o,
        keeps_up=lambda each: keeps_up(config, each.dims),
        among=lambda name, each: (
            quality(each) < quality(wanted)
            and (name in store.BUNDLED or is_prepared(name, o.precision))
        ),
    )


def _prepared(config: Config, report: Report) -> None:
    """Prepare the configured model; runs in a worker."""

    def told(share: float) -> None:
        report(f"{100 * share:.0f}{_PREPARED}")

    return_early()
    told(0)  # on a busy machine the first layer alone may take minutes
    prepare(
        config.decoding.model,
        threads=build.threads(config),
        precision=config.decoding.precision,
        progress=told,
    )


# -- in the place of the wanted model's recognizers ----------------------------------------------


class Respelled:
    """A recognizer of one model for sessions that know the tokens of another one."""

    def __init__(self, recognizer: WindowRecognizer, own: Tokenizer, theirs: Tokenizer) -> None:
        self._recognizer, self._own, self._theirs = recognizer, own, theirs

    def recognize(self, window: Window) -> Hypothesis:
        """Recognize a window; its text and the hypothesis are in the tokens that sessions know."""
        into = self._own.encode
        asked = [
            MarksQuestion(_spelled(each.words, self._theirs, self._own))
            if isinstance(each, MarksQuestion)
            else each
            for each in window.asks
        ]
        found = self._recognizer.recognize(
            replace(
                window,
                prompt=into(self._theirs.decode(window.prompt)),
                before=into(self._theirs.decode(window.before)),
                prefix=into(self._theirs.decode(window.prefix)),
                draft=into(self._theirs.decode(window.draft)),
                asks=tuple(asked),
            )
        )
        words = _spelled(found.words, self._own, self._theirs)
        answers = [
            MarksAnswer(_spelled(each.words, self._own, self._theirs))
            if isinstance(each, MarksAnswer)
            else each
            for each in found.answers
        ]
        tokens = tuple(token for word in words for token in word.tokens)
        return replace(found, words=words, tokens=tokens, answers=tuple(answers))


def _spelled(words: Sequence[Word], one: Tokenizer, other: Tokenizer) -> tuple[Word, ...]:
    """Return words of one model in the tokens of the other."""
    spelled = []
    for word in words:
        n = len(word.tokens) - word.n_mark
        mark = other.encode(one.decode(word.tokens[n:]))
        tokens = (*other.encode(one.decode(word.tokens[:n])), *mark)
        spelled.append(replace(word, tokens=tokens, n_mark=len(mark)))
    return tuple(spelled)


@dataclass(frozen=True, slots=True, eq=False)
class EarlyModel:
    """The smaller model, by a recognizer for each worker.

    What it has encoded for a session refers to it, so it is freed with the last of these.
    """

    recognizers: Sequence[WindowRecognizer]


class EarlyRecognizer:
    """Recognizes with a smaller model until the wanted one is there; the worker's number is `at`.

    An utterance of which the smaller model has text is left to it.
    """

    def __init__(self, early: EarlyModel, at: int) -> None:
        self._early: EarlyModel | None = early
        self._at = at
        self._then: WindowRecognizer | None = None

    def go_on_with(self, recognizer: WindowRecognizer) -> None:
        """Use this one from each session's next utterance on; any thread may call."""
        self._then, self._early = recognizer, None

    def recognize(self, window: Window) -> Hypothesis:
        """Recognize with the model whose turn it is."""
        early = self._early  # before it is dropped
        begun = window.encoded.by if window.encoded is not None else None
        if isinstance(begun, EarlyModel):
            if window.prefix or window.draft or self._then is None:
                return self._early_text(begun, window)
            window = replace(window, encoded=None)
        if self._then is not None:
            return self._then.recognize(window)
        assert early is not None
        return self._early_text(early, window)

    def _early_text(self, model: EarlyModel, window: Window) -> Hypothesis:
        found = model.recognizers[self._at].recognize(window)
        encoded = None if found.encoded is None else replace(found.encoded, by=model)
        return replace(found, encoded=encoded)
