"""Translates sentences, in a thread of its own, and keeps the names in them.

A model knows one direction. Where there is none from one language to the other, there are two by
way of English. The library holds Python's lock while it computes, some 10 ms a sentence.
"""

import logging
import re
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from queue import SimpleQueue
from threading import Thread

from streamd.errors import EngineError, ModelError, StreamdError
from streamd.language import ends_sentence
from streamd.translation.protection import keeping

_PIVOT = "en"
"""Between which and all others Mozilla has models."""
_MOST_WORDS = 20
"""From 80 words on, the models leave out parts of a sentence (English to Portuguese). A beginning
of this length that ends with a pause is not translated again while the sentence grows: with 30, a
third more words were taken back, with 10 as many as with 20 (benchmarks/RESULTS.md)."""
_MOST_KEPT = 1_024
"""Translations that are kept for whoever asks for the same again, such as a file beside readers:
a quarter of an hour of two languages, with their clauses."""
_END_S = 1.0
"""How long the end of the process waits for a translation, of some 20 ms."""
_END = re.compile(r"[.?!…]+[\"'”’»)\]]*\s+|[。？！]+[”’」』）]*\s*")
_PAUSE = re.compile(r"[,;:，、；：]\s+|[，、；：]")

log = logging.getLogger(__name__)


OneWay = Callable[[str], str]
"""A model from one language to another, which returns the translation of one sentence; only the
thread that opened it may call it."""
OpenModel = Callable[[str, str], OneWay]
"""Opens the model from one language to another; raises `ModelError` if it cannot be used."""


Route = tuple[tuple[str, str], ...]
"""Models that lead from one language to another, one after the other."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A text to be translated, and who waits for that."""

    text: str
    route: Route
    names: tuple[str, ...]
    done: "Future[str]"


class Translator:
    """Translates with the models of certain `directions`, which `open_model` opens when needed.

    Its thread ends with it, and with the process.
    """

    def __init__(self, open_model: OpenModel, directions: Collection[tuple[str, str]]) -> None:
        self._directions = frozenset(directions)
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        work = partial(_translate_all, self._orders, open_model)
        thread = Thread(target=work, name="translator", daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._orders, thread)

    def route(self, source: str, target: str) -> Route:
        """Return the models that are needed, none if both languages are the same.

        Raises `ModelError` if a model is missing, which names the one to get.
        """
        if source == target:
            return ()
        if (source, target) in self._directions:
            return ((source, target),)
        ways = ((source, _PIVOT), (_PIVOT, target))
        needed = tuple((first, last) for first, last in ways if first != last)
        if missing := [way for way in needed if way not in self._directions]:
            names = " and ".join(f"streamd models get translate:{a}-{b}" for a, b in missing)
            raise ModelError(f"no model translates {source} into {target}; run: {names}")
        return needed

    def translate(
        self, text: str, *, source: str, target: str, names: Sequence[str] = ()
    ) -> "Future[str]":
        """Begin to translate a text, in which `names` are kept as they are spelled.

        The future raises `ModelError` if a model is missing or cannot be used.
        """
        done: Future[str] = Future()
        try:
            route = self.route(source, target)
        except ModelError as error:
            done.set_exception(error)
            return done
        if route and any(map(str.isalpha, text)):
            self._orders.put(_Order(text, route, tuple(names), done))
        else:
            done.set_result(text)
        return done


def _end(orders: "SimpleQueue[_Order | None]", thread: Thread) -> None:
    orders.put(None)
    thread.join(_END_S)


def _translate_all(orders: "SimpleQueue[_Order | None]", open_model: OpenModel) -> None:
    """Translate until there is no order, but None; the library wants its models freed here, too."""
    opened = cache(open_model)

    @lru_cache(_MOST_KEPT)
    def translated(part: str, route: Route, names: tuple[str, ...]) -> str:
        def through(text: str) -> str:
            for way in route:
                text = opened(*way)(text)
            return text

        return keeping(through, part, names)

    while (order := orders.get()) is not None:
        if not order.done.set_running_or_notify_cancel():
            continue
        try:
            done = [translated(part, order.route, order.names) for part in parts(order.text)]
        except StreamdError as error:
            order.done.set_exception(error)
        except Exception as error:  # a bug, for which no captions and no other file may end
            log.exception("a bug in streamd: %r is not translated", order.text)
            order.done.set_exception(EngineError(f"the translator failed ({error})"))
        else:
            order.done.set_result(" ".join(done))
    opened.cache_clear()


def parts(text: str) -> list[str]:
    """Return the sentences of a text, and of one that is too long for a model its clauses."""
    sentences = _cut(text, _END, ends_sentence)
    return [part for sentence in sentences for part in _cut(sentence, _PAUSE, _is_long)]


def _is_long(text: str) -> bool:
    return len(text.split()) >= _MOST_WORDS


def _cut(text: str, mark: re.Pattern[str], is_end: Callable[[str], bool]) -> list[str]:
    """Cut a text behind marks of a kind, where what is before it is a part."""
    cut, begin = [], 0
    for found in mark.finditer(text):
        if is_end(text[begin : found.end()].strip()):
            cut.append(text[begin : found.end()].strip())
            begin = found.end()
    rest = text[begin:].strip()
    return [*cut, rest] if rest else cut
