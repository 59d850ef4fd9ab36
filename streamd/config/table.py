"""The configuration, and its options as users write them.

The command line, the environment variables, the TOML file, the help and docs/options.md follow from
the fields of the dataclasses in `streamd.options`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, inspect

from streamd import options
from streamd.errors import ConfigError
from streamd.options import DERIVED, FRAME_MS, FRAMES, Option

PREFIX = "STREAMD_"
"""Beginning of the environment variables."""


@dataclass(frozen=True)
class Field:
    """A field of the configuration as users write it: times in frames become milliseconds.

    `annotation` is the type of what is written, `default` the value that the program uses. `opt`
    has no help if the field has no option. `section` is the option's in the TOML file.
    """

    part: str
    attribute: str
    default: object
    annotation: object
    unit: str
    in_frames: bool
    opt: Option
    section: str

    @property
    def setting(self) -> str:
        """The name for ``--set``."""
        return f"{self.part}.{self.attribute}{'_ms' if self.in_frames else ''}"

    @property
    def name(self) -> str:
        """The key in the TOML file, and the long flag without its dashes."""
        return self.opt.name or self.attribute.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper().replace("-", "_")

    @cached_property
    def type(self) -> inspect.Type:
        """The type of what is written, without None."""
        kind = inspect.type_info(self.annotation)
        if isinstance(kind, inspect.UnionType):
            (kind,) = (each for each in kind.types if not isinstance(each, inspect.NoneType))
        return kind

    @property
    def is_optional(self) -> bool:
        """Whether it may be "none"."""
        return NoneType in get_args(self.annotation)

    @property
    def is_switch(self) -> bool:
        """Whether its flags take no value."""
        return isinstance(self.type, inspect.BoolType)

    @property
    def repeats(self) -> bool:
        """Whether its flag adds a text to a list; numbers stand in one list, with commas."""
        item = getattr(self.type, "item_type", None)
        return isinstance(item, inspect.StrType)

    @property
    def is_positional(self) -> bool:
        """Whether it has no flag."""
        return self.unit.endswith("...")

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that take a value, or turn a switch on; the long one is last."""
        return () if self.is_positional else (*self.opt.flags, f"--{self.name}")

    @property
    def off_flags(self) -> tuple[str, ...]:
        """Flags that turn a switch off; the long one is last."""
        return (self.opt.off_flags or (f"--no-{self.name}",)) if self.is_switch else ()

    @property
    def shown_flags(self) -> tuple[str, ...]:
        """The flags to show: of a switch, those that change its default."""
        return self.off_flags if self.default is True else self.flags

    @property
    def every_flag(self) -> tuple[str, ...]:
        """All words of the command line that set this option."""
        return (*self.flags, *self.off_flags, *self.opt.values)

    @property
    def choices(self) -> tuple[str, ...]:
        """The only possible values, or nothing where there are too many to list."""
        if not isinstance(self.type, inspect.LiteralType):
            return ()
        return get_args(self.annotation)  # `type` has them too, but sorted

    @property
    def allowed(self) -> str:
        """What a value may be, to follow the words "must be"."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        text = self.opt.allowed or _allowed(self.type, self.unit)
        return f"{text}, or {self.opt.unset}" if self.is_optional else text

    def read(self, found: object, culprit: str, *, typed: bool = False) -> object:
        """Return the value that was found somewhere, as the program uses it.

        A text may stand for a value of any type, with commas in lists, unless values are `typed`
        there, as in a TOML file, where it may be the only one of a list. Raises `ConfigError` with
        `culprit`, what is allowed and what was found.
        """
        if found == self.opt.unset and self.is_optional:
            return None
        is_text = isinstance(found, str) and not typed
        raw = self._without_synonyms(found) if isinstance(found, str) else found
        if isinstance(found, str) and isinstance(self.type, inspect.VarTupleType):
            raw = [found] if typed else found.split(",") if found else []
        try:
            value = msgspec.convert(raw, self.annotation, strict=not is_text)
        except msgspec.ValidationError:
            raise ConfigError(f"{culprit} must be {self.allowed}, got {_shown(found)}") from None
        # Rounded up, so that --step 10 is not --step 0, which stands for whole utterances.
        return -(-value // FRAME_MS) if self.in_frames else value

    def _without_synonyms(self, text: str) -> str:
        """The text with the values that its words stand for, which commas separate."""
        if not self.opt.synonyms:
            return text
        words = (word.strip(" ") for word in text.split(","))
        return ",".join(self.opt.synonyms.get(word.casefold(), word) for word in words)

    def written(self, value: object) -> object:
        """A value as it is written in a TOML file."""
        if self.in_frames and isinstance(value, int):
            return value * FRAME_MS
        return self.opt.unset if value is None else value

    def shown(self, value: object) -> object:
        """A value as it is written in a TOML file, with ``***`` in place of a password."""
        if self.opt.secret and isinstance(value, tuple):
            return [options.without_password(name) for name in value]
        if self.opt.secret:
            return re.sub(options.CREDENTIALS, r"\1\2***@", str(value))
        return self.written(value)


def _allowed(kind: inspect.Type, unit: str) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return noun + (f" of {unit}" if unit else "") + _range(kind)
        case inspect.VarTupleType(item_type=inspect.FloatType() as item):
            return f"numbers{_range(item)}, separated by commas"
        case _:
            most = getattr(kind, "max_length", None)
            return f"a text of at most {most} characters" if most else "text"


def _shown(found: object) -> str:
    if isinstance(found, list) and len(found) == 1:
        (found,) = found
    if isinstance(found, str) and found.isprintable() and found.strip() == found != "":
        return found
    return json.dumps(found, ensure_ascii=False, default=str)


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("from", kind.ge), ("to", kind.le))
    return "".join(f" {word} {bound}" for word, bound in bounds if bound is not None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown word: the nearest known one, if any."""
    names = list(known)
    # A whole part, such as --rate of --input-rate, says more than some letters in common.
    parts = [name for name in names if word.lstrip("-") in name.split("-")]
    near = get_close_matches(word, names, n=1, cutoff=0.75) or parts
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a user can choose, in the dataclasses of the parts that it is for.

    The options of a part are in the section of its name, or in the one that its `Annotated` names.
    """

    input: options.InputOptions = field(default_factory=options.InputOptions)
    pcm: Annotated[options.PcmOptions, "input"] = field(default_factory=options.PcmOptions)
    session: Annotated[options.SessionOptions, "streaming"] = field(
        default_factory=options.SessionOptions
    )
    commit: Annotated[options.CommitOptions, "streaming"] = field(
        default_factory=options.CommitOptions
    )
    agreement: options.AgreementOptions = field(default_factory=options.AgreementOptions)
    vad: options.VadOptions = field(default_factory=options.VadOptions)
    gate: options.GateOptions = field(default_factory=options.GateOptions)
    endpoint: Annotated[options.EndpointOptions, "vad"] = field(
        default_factory=options.EndpointOptions
    )
    decoding: options.ModelOptions = field(default_factory=options.ModelOptions)
    search: Annotated[options.DecodingOptions, "decoding"] = field(
        default_factory=options.DecodingOptions
    )
    longform: options.LongformOptions = field(default_factory=options.LongformOptions)
    dictation: options.DictationOptions = field(default_factory=options.DictationOptions)
    output: options.OutputOptions = field(default_factory=options.OutputOptions)
    cues: Annotated[options.CueLayout, "output"] = field(default_factory=options.CueLayout)
    notices: options.NoticeOptions = field(default_factory=options.NoticeOptions)
    export: options.ExportOptions = field(default_factory=options.ExportOptions)
    bind: Annotated[options.BindOptions, "server"] = field(default_factory=options.BindOptions)
    limits: Annotated[options.ServerLimits, "server"] = field(default_factory=options.ServerLimits)
    journal: options.JournalOptions = field(default_factory=options.JournalOptions)


SECTIONS: Mapping[str, str] = {
    "input": "Where the audio comes from",
    "streaming": "When a live window is transcribed, and when its words become final",
    "vad": "What counts as speech, and when an utterance ends",
    "decoding": "The model and how it is used",
    "longform": "How whole recordings are transcribed",
    "output": "Where the text goes",
    "notices": "What somebody waits for",
    "export": "How a session of the library is handed on",
    "server": "What clients may do over the network",
    "journal": "What is kept on disk",
}
"""The sections of the help and of the TOML file, with their titles."""


def _as_written(annotation: Any) -> tuple[Any, str, bool, Option]:  # noqa: ANN401 - any type
    """Return the type as users write it, its unit, whether it counts frames, and the option.

    A field without an option has one without a help text.
    """
    if NoneType in get_args(annotation):
        (kind,) = (each for each in get_args(annotation) if each is not NoneType)
        written, *rest = _as_written(kind)
        return written | None, *rest
    kind, *marks = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
    units = [mark for mark in marks if isinstance(mark, str)]
    unit = DERIVED if DERIVED in units else next(iter(units), "")
    limits = next((mark for mark in marks if isinstance(mark, Meta)), None)
    option = next((mark for mark in marks if isinstance(mark, Option)), Option(""))
    if unit == FRAMES:
        assert limits is not None, annotation
        low, high = (int(bound or 0) * FRAME_MS for bound in (limits.ge, limits.le))
        return Annotated[int, Meta(ge=low, le=high)], "ms", True, option
    return Annotated[kind, limits] if limits else kind, unit, False, option


def _fields() -> Iterator[Field]:
    for part, hint in get_type_hints(Config, include_extras=True).items():
        kind, section = get_args(hint) or (hint, part)
        for attribute, annotation in get_type_hints(kind, include_extras=True).items():
            default = getattr(kind(), attribute)
            yield Field(part, attribute, default, *_as_written(annotation), section)


_FIELDS = list(_fields())
OPTIONS: Mapping[str, Field] = {field.name: field for field in _FIELDS if field.opt.help}
"""Every option by its name, sorted by section."""
SETTINGS: Mapping[str, Field] = {
    field.setting: field for field in _FIELDS if not field.opt.help and field.unit != DERIVED
}
"""The fields without an option, by the name that ``--set`` knows."""
