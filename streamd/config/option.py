"""What one option is: its names, its type, the words that describe it, and how a value is read.

It knows neither which options there are (`schema`) nor where values come from (`load`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args, get_type_hints

import msgspec
from msgspec import inspect

from streamd.errors import ConfigError

PREFIX = "STREAMD_"
"""Of the environment variables."""


@dataclass(frozen=True, slots=True)
class Opt:
    """How a field is offered to people; stands in the `Annotated` of a field of `schema`.

    `help` is one line; `unit` stands behind numbers; `flags` are further names on the command line
    (whisper.cpp's, mostly); `off` replaces ``--no-NAME`` as the names that turn a switch off;
    `short_for` are flags without a value, each with the value it stands for; `rare` options are
    left out of the short help; `allowed` describes the values where the type cannot; `metavar`
    stands for a text in the help; a `positional` has no flag. The help of a switch describes the
    flag that changes its default.
    """

    help: str
    unit: str = ""
    flags: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    short_for: tuple[tuple[str, str], ...] = ()
    rare: bool = False
    allowed: str = ""
    metavar: str = "TEXT"
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the program.

    `name` is the key in section `group` of the TOML file and, with dashes in front, the long flag;
    `field` is the attribute of the group's struct.
    """

    group: str
    field: str
    name: str
    annotation: object
    type: inspect.Type
    default: object
    opt: Opt

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether its flags take no value."""
        return isinstance(self.type, inspect.BoolType)

    @property
    def is_list(self) -> bool:
        """Whether it holds several values."""
        return isinstance(self.type, inspect.VarTupleType)

    @property
    def repeats(self) -> bool:
        """Whether its flag adds a text to a list; numbers stand in one list, with commas."""
        return isinstance(self.type, inspect.VarTupleType) and isinstance(
            self.type.item_type, inspect.StrType
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that take a value, or turn a switch on; the long one is last."""
        return () if self.opt.positional else (*self.opt.flags, f"--{self.name}")

    @property
    def off_flags(self) -> tuple[str, ...]:
        """Flags that turn a switch off; the long one is last."""
        return (self.opt.off or (f"--no-{self.name}",)) if self.is_switch else ()

    @property
    def shown_flags(self) -> tuple[str, ...]:
        """The flags to show: of a switch, those that change its default."""
        return self.off_flags if self.default is True else self.flags

    @property
    def short_for(self) -> Mapping[str, tuple[str, ...]]:
        """Values that flags of their own stand for, with those flags."""
        values = dict.fromkeys(value for _, value in self.opt.short_for)
        return {
            value: tuple(flag for flag, stands_for in self.opt.short_for if stands_for == value)
            for value in values
        }

    @property
    def every_flag(self) -> tuple[str, ...]:
        """All words of the command line that set this option."""
        return (*self.flags, *self.off_flags, *(flag for flag, _ in self.opt.short_for))

    @property
    def choices(self) -> tuple[str, ...]:
        """The only possible values, or nothing where there are too many to list."""
        if not isinstance(self.type, inspect.LiteralType):
            return ()
        literal, *_ = get_args(self.annotation)
        return get_args(literal)  # `type` has them too, but in the order of the alphabet

    @property
    def allowed(self) -> str:
        """What a value may be, to follow the words "must be"."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        return self.opt.allowed or _allowed(self.type, self.opt.unit)

    def from_text(self, text: str, culprit: str) -> object:
        """Read a value from a command line or a variable; lists are separated by commas.

        Raises
        ------
        ConfigError
            naming `culprit`, what is allowed and what was found
        """
        raw = (text.split(",") if text else []) if self.is_list else text
        try:
            return msgspec.convert(raw, self.annotation, strict=False)
        except msgspec.ValidationError:
            raise self._refusal(text, culprit) from None

    def from_value(self, value: object, culprit: str) -> object:
        """Read a value that has its type already, as in a TOML file; raises like `from_text`."""
        try:
            return msgspec.convert(value, self.annotation)
        except msgspec.ValidationError:
            raise self._refusal(value, culprit) from None

    def _refusal(self, found: object, culprit: str) -> ConfigError:
        plain = isinstance(found, str) and found.isprintable() and found.strip() == found != ""
        shown = found if plain else json.dumps(found, ensure_ascii=False, default=str)
        return ConfigError(f"{culprit} must be {self.allowed}, got {shown}")


def options_of(config: type[msgspec.Struct]) -> tuple[Option, ...]:
    """All options of a struct of groups, in the order of their declaration."""
    return tuple(
        option
        for group, struct in get_type_hints(config).items()
        for option in _options_of_group(group, struct)
    )


def _options_of_group(group: str, struct: type[msgspec.Struct]) -> Iterable[Option]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        annotation = hints[field.name]
        (opt,) = (mark for mark in annotation.__metadata__ if isinstance(mark, Opt))
        yield Option(
            group=group,
            field=field.name,
            name=field.encode_name,
            annotation=annotation,
            type=inspect.type_info(annotation),
            default=field.default,
            opt=opt,
        )


def _allowed(kind: inspect.Type, unit: str) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _number(kind, unit)
        case inspect.VarTupleType(item_type=inspect.IntType() as item):
            return f"whole numbers{_range(item)}, separated by commas"
        case _:
            return "text"


def _number(kind: inspect.IntType | inspect.FloatType, unit: str) -> str:
    if kind.multiple_of:
        return f"a multiple of {kind.multiple_of} {unit}{_range(kind)}"
    noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    return noun + (f" of {unit}" if unit else "") + _range(kind)


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("from", kind.ge), ("to", kind.le))
    return "".join(f" {word} {bound}" for word, bound in bounds if bound is not None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown `word`: what was probably meant, or nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
