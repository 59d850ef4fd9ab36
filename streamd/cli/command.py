"""What a command of the program is."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streamd.config import Config, Option

Run = Callable[[Config, tuple[str, ...]], int]
"""Carries a command out, given its operands; returns the exit code, raises a `StreamdError`."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    `name` has one word or two; commands whose names begin with the same word are a group, which has
    a command of that word itself. `operand` is how the help writes the operands: ``[FILE...]``,
    ``FILE...``, ``URL``, ``PATH [NAME]`` or nothing.
    `options` are those that it has, those of a group together. `preset` says in what the command
    differs from the plain one, as the command line would say it. One that `writes_config` gets the
    path behind ``--config``, or nothing, as its only operand; the file need not be there.
    """

    name: str
    summary: str
    run: Run
    operand: str = ""
    options: tuple[Option, ...] = ()
    preset: Mapping[str, str] = field(default_factory=dict)
    writes_config: bool = False

    @property
    def least_operands(self) -> int:
        """How many operands it needs."""
        return int(self.operand != "" and not self.operand.startswith("["))

    @property
    def most_operands(self) -> int:
        """How many operands it can use."""
        return sys.maxsize if "..." in self.operand else len(self.operand.split())

    def is_part_of(self, group: str) -> bool:
        """Whether it is listed in the help of that command; "" is the program itself."""
        first, _, second = self.name.rpartition(" ")
        return first == group and second != ""
