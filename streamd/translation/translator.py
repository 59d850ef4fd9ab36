"""Translates sentences, in a thread of its own, and keeps the names in them.

A model knows one direction. Where there is none from one language to the other, there are two by
way of English. The library holds Python's lock while it computes, some 10 ms a sentence.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Protocol

from streamd.errors import ModelError
from streamd.language import ends_sentence
from streamd.translation.protection import keeping

_PIVOT = "en"
"""Between which and all others Mozilla has models."""
_MOST_WORDS = 60
"""From 80 words on, the models leave out parts of a sentence (English to Portuguese)."""
_MOST_KEPT = 512
"""Translations that are kept for whoever asks for the same again, such as a file beside readers:
a quarter of an hour of two languages."""
_END = re.compile(r"[.?!。？！…]+[\"'”’»)\]]*\s*|[。？！]")
_PAUSE = re.compile(r"[,;:，、；：]\s+|[，、；：]")


class OneWay(Protocol):
    """A model from one language to another; only the thread that opened it may use it."""

    def translate(self, text: str) -> str:
        """Return the translation of one sentence."""


OpenModel = Callable[[str, str], OneWay]
"""Opens the model from one language to another; raises `ModelError` if it cannot be used."""


class Translator:
    """Translates with the models of certain `directions`, which `open_model` opens when needed."""

    def __init__(self, open_model: OpenModel, directions: Collection[tuple[str, str]]) -> None:
        self._open, self._directions = open_model, frozenset(directions)
        # The library complains of a model that another thread frees: these end with their thread.
        self._models = local()
        self._known: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="translator")

    def route(self, source: str, target: str) -> Sequence[tuple[str, str]]:
        """Return the models that lead from one language to another, none if they are the same.

        Raises `ModelError` if a model is missing, which names the one to get.
        """
        if source == target:
            return ()
        if (source, target) in self._directions:
            return ((source, target),)
        ways = [(source, _PIVOT), (_PIVOT, target)]
        needed = [(first, last) for first, last in ways if first != last]
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
        return self._thread.submit(self._translated, text, source, target, tuple(names))

    # The rest runs in the thread.

    def _translated(self, text: str, source: str, target: str, names: tuple[str, ...]) -> str:
        route = self.route(source, target)
        if not route or not any(map(str.isalpha, text)):
            return text
        key = (text, source, target, *names)
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        models = [self._model(*way) for way in route]

        def through(part: str) -> str:
            for model in models:
                part = model.translate(part)
            return part

        done = " ".join(keeping(through, part, names) for part in parts(text))
        self._known[key] = done
        if len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return done

    def _model(self, source: str, target: str) -> OneWay:
        models: dict[str, OneWay] = self._models.__dict__
        name = f"{source}-{target}"
        if name not in models:
            models[name] = self._open(source, target)
        return models[name]


def parts(text: str) -> list[str]:
    """Return the sentences of a text, and of one that is too long for a model its clauses."""
    return [
        part
        for sentence in _cut(text, _END, ends_sentence)
        for part in (
            _cut(sentence, _PAUSE, _is_long) if len(sentence.split()) > _MOST_WORDS else [sentence]
        )
    ]


def _is_long(text: str) -> bool:
    return len(text.split()) >= _MOST_WORDS // 2


def _cut(text: str, mark: re.Pattern[str], is_end: Callable[[str], bool]) -> list[str]:
    """Cut a text behind marks of a kind, where what is before it is a part."""
    cut, begin = [], 0
    for found in mark.finditer(text):
        if is_end(text[begin : found.end()].strip()):
            cut.append(text[begin : found.end()].strip())
            begin = found.end()
    rest = text[begin:].strip()
    return [*cut, rest] if rest else cut
