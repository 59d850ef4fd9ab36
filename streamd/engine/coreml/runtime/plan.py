"""On which device Core ML means to run each operation: asked in processes that may die of it.

``MLComputePlan`` is known to take its process down for models with states, and it is slow, so only
who wants to know asks.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from streamd.engine.coreml.built import Built
from streamd.engine.coreml.runtime.library import Library, Operation
from streamd.engine.coreml.runtime.placement import Placement, Unit

_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Devices:
    """What runs where in one function of a package.

    `shares` are those of the estimated work, by device; `operations` the kinds of operations, how
    many of them, by device. Both are empty if Core ML does not tell.
    """

    package: str
    function: str
    shares: dict[str, float] = field(default_factory=dict)
    operations: dict[str, Counter[str]] = field(default_factory=dict)


def devices(built: Built, place: Path, placement: Placement, library: str) -> Iterator[Devices]:
    """For each function that the placement needs; `place` has the compiled packages."""
    needed = [f for f in built.functions if placement.form in f.forms]
    for package in dict.fromkeys(function.package for function in needed):
        functions = [function for function in needed if function.package == package]
        unit = placement.unit(functions[0])
        found = _ask(built.folder / package, unit, library, place)
        for function in functions:
            operations = found.get(function.name, [])
            yield Devices(package, function.name, _shares(operations), _kinds(operations))


def _shares(operations: list[Operation]) -> dict[str, float]:
    work: dict[str, float] = {}
    for operation in operations:
        work[operation.device] = work.get(operation.device, 0.0) + operation.work
    total = sum(work.values())
    largest_first = sorted(work.items(), key=lambda item: -item[1])
    return {device: part / total for device, part in largest_first} if total else {}


def _kinds(operations: list[Operation]) -> dict[str, Counter[str]]:
    kinds: dict[str, Counter[str]] = {}
    for operation in operations:
        kinds.setdefault(operation.device, Counter())[operation.kind] += 1
    return kinds


def _ask(package: Path, unit: Unit, library: str, place: Path) -> dict[str, list[Operation]]:
    """What Core ML says of each function; nothing, if the process died or took too long."""
    spawn = get_context("spawn")
    ours, its = spawn.Pipe()
    process = spawn.Process(target=_answer, args=(its, package, unit, library, place), daemon=True)
    process.start()
    its.close()
    try:
        found: dict[str, list[Operation]] = ours.recv() if ours.poll(_PATIENCE_S) else {}
    except EOFError:
        found = {}
    process.kill()
    process.join()
    return found


def _answer(connection: Connection, package: Path, unit: Unit, library: str, place: Path) -> None:
    try:
        connection.send(Library(library, place).plan(package, unit))
    except (RuntimeError, OSError):
        connection.send({})
