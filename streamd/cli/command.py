"""What a command of the program is."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streamd.config import OPTIONS, Config, Option

Run = Callable[[Config, tuple[str, ...]], int]
"""Carries a command out, given its operands; returns the exit code, raises a `StreamdError`."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    `operand` is how the help writes its operands: ``[FILE...]``, ``FILE...``, ``URL`` or nothing.
    `groups` are those whose options it has, less those that it does `without`. `preset` says what
    is different from the plain command, as the command line would say it.
    """

    name: str
    summary: str
    run: Run
    operand: str = ""
    groups: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    preset: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Option, ...]:
        """Its options, in the order of the help."""
        return tuple(
            option
            for option in OPTIONS.values()
            if option.group in self.groups and option.name not in self.without
        )

    @property
    def least_operands(self) -> int:
        """How many operands it needs."""
        return int(self.operand != "" and not self.operand.startswith("["))

    @property
    def most_operands(self) -> int:
        """How many operands it can use."""
        return sys.maxsize if "..." in self.operand else int(self.operand != "")
