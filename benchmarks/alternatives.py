"""Numbers that carry other values, and tell whether a program would act otherwise with these.

A `Varied` number stands in for a real one. Arithmetic with it gives a number with all values again;
a comparison answers what the real value does, and a `Survey` notes the names of the others that
would answer otherwise. So one run tells which of a hundred numbers cannot matter in it. What cannot
carry others (an index, a range, an array, a text) gets the real value, and is noted as a
difference. It is no subclass of int or float: C code would take its value unseen.
"""

import builtins
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np


@dataclass
class Survey:
    """Names of what was compared, of what differed in any place, and of what differs in this one.

    `escaped`: of those that differ, the ones that could not be carried.
    """

    asked: set[str] = field(default_factory=set)
    escaped: set[str] = field(default_factory=set)
    here: set[str] = field(default_factory=set)

    @contextmanager
    def place(self) -> Iterator[set[str]]:
        """Begin another place, in which nothing differs so far; it ends with the block."""
        outside, self.here = self.here, set()
        try:
            yield self.here
        finally:
            self.here = outside


class Varied:
    """A number, its values by the names of the others, and who is told of differences."""

    __slots__ = ("others", "survey", "value")

    def __init__(self, value: Any, others: dict[str, Any], survey: Survey) -> None:  # noqa: ANN401 - any number
        self.value, self.others, self.survey = value, others, survey

    def real(self) -> Any:  # noqa: ANN401 - any number
        """Return the number for somebody who cannot carry others."""
        self.survey.here.update(self.others)
        self.survey.escaped.update(self.others)
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: ANN401 - numpy's
        return np.array(self.real(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401 - numpy's
        if "out" in options:
            inputs = tuple(map(plain, inputs))
        return carried(lambda *values: getattr(ufunc, method)(*values, **options), *inputs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - that of any number
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def __hash__(self) -> int:
        return hash(self.real())

    def __format__(self, form: str) -> str:
        return format(self.real(), form)

    def __bool__(self) -> bool:
        return bool(carried(bool, self))


def carried(work: Callable[..., Any], *inputs: Any) -> Any:  # noqa: ANN401 - any numbers
    """Return what `work` makes of the inputs, with what it makes of their other values."""
    varied = [each for each in inputs if type(each) is Varied]
    result = work(*(each.value if type(each) is Varied else each for each in inputs))
    is_number = isinstance(result, int | float | np.number) and not isinstance(result, bool)
    if not varied:
        return result
    others, survey = {}, varied[0].survey
    for name in {name for each in varied for name in each.others} - survey.here:
        values = [
            each.others.get(name, each.value) if type(each) is Varied else each for each in inputs
        ]
        try:
            other = work(*values)
        except ArithmeticError:
            survey.here.add(name)
            continue
        if is_number and other != result:
            others[name] = other
        elif not is_number:
            survey.asked.add(name)
            if not np.array_equal(other, result):
                survey.here.add(name)
                if not isinstance(result, bool | np.bool_):
                    survey.escaped.add(name)
    return Varied(result, others, survey) if others else result


def plain(number: Any) -> Any:  # noqa: ANN401 - any number
    """Return the real number, for what takes no other."""
    return number.real() if type(number) is Varied else number


def _extreme(which: str) -> Callable[..., Any]:
    usual = getattr(builtins, which)

    def extreme(*values: Any, **options: Any) -> Any:  # noqa: ANN401 - as the built-in one
        return usual(*values, **options) if options else carried(usual, *values)

    return extreme


@contextmanager
def carrying(modules: Sequence[ModuleType]) -> Iterator[None]:
    """`min` and `max` of these modules carry all values, instead of comparing the real ones."""
    with ExitStack() as patches:
        for module in modules:
            for which in ("min", "max"):
                patches.enter_context(
                    mock.patch.object(module, which, _extreme(which), create=True)
                )
        yield


def _define() -> None:
    def method(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *others: carried(work, self, *others)

    def reflected(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: carried(work, other, self)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        setattr(Varied, f"__{name}__", method(getattr(operator, name)))
        setattr(Varied, f"__r{name}__", reflected(getattr(operator, name)))
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs"):
        setattr(Varied, f"__{name}__", method(getattr(operator, name)))
    for name in ("round", "floor", "ceil", "trunc"):
        number = f"__{name}__"
        setattr(Varied, number, method(lambda value, *n, call=number: getattr(value, call)(*n)))
    for name, call in (("int", int), ("float", float), ("str", str), ("index", operator.index)):
        setattr(Varied, f"__{name}__", lambda self, call=call: call(self.real()))


_define()
