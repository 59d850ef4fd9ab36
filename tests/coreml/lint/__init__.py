"""What keeps a saved program off the Neural Engine, or makes it slow there, as far as one can see.

Core ML tells nobody: what the Neural Engine refuses runs on the CPU instead. These are the rules
that can be read off a package; whether they suffice only a Mac can say (``streamd doctor``). Where
a rule has no public document by Apple, its source is somebody's experience.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from streamd.engines.coreml.package import BuiltModel
from tests.coreml.interpreter.saved import OPSET, SPECIFICATION, Program, read_program
from tests.coreml.lint.rules import READ_ONLY, RULES, Severity


@dataclass(frozen=True, slots=True)
class Complaint:
    """A rule that a package breaks: first in `function` at `where`, `n` times in all."""

    severity: Severity
    rule: str
    package: str
    function: str
    where: str
    what: str
    cure: str
    source: str
    n: int = 1

    def __str__(self) -> str:
        times = f" (and {self.n - 1} more)" if self.n > 1 else ""
        return (
            f"{self.severity}: {self.package}: {self.where} in {self.function} {self.what}{times}; "
            f"{self.cure} [{self.rule}: {self.source}]"
        )


def lint(program: Program, *, writes_states: bool = False) -> list[Complaint]:
    """Everything that is wrong with a package; `writes_states`: it is for the GPU, which may."""
    complaints = []
    for rule in RULES:
        if rule is READ_ONLY and writes_states:
            continue
        places = [
            (function.name, *place)
            for function in program.functions.values()
            for place in rule.broken(program, function)
        ]
        if places:
            complaints.append(
                Complaint(
                    *(rule.severity, rule.name, program.path.name, *places[0]),
                    *(rule.cure, rule.source, len(places)),
                )
            )
    return complaints


def lint_built(built: BuiltModel) -> Iterator[Complaint]:
    """The same for all packages of a built model, and whether they are what its layout says.

    Raises
    ------
    ModelError
        A package is damaged.
    """
    forms = {function.package: function.forms for function in built.functions}
    for package, of in forms.items():
        program = read_program(built.folder / package)
        yield from as_laid_out(built, program)
        yield from lint(program, writes_states=of == ("state",))


def as_laid_out(built: BuiltModel, program: Program) -> Iterator[Complaint]:
    """Versions, functions and tensors have the names, shapes and types that everybody counts on."""
    package = program.path.name
    cure = "build it again: streamd models build NAME --engine coreml"

    def complaint(function: str, where: str, what: str) -> Complaint:
        return Complaint("error", "layout", package, function, where, what, cure, "streamd")

    wanted = {f.name: f for f in built.functions if f.package == package}
    if program.specification != SPECIFICATION:
        what = f"is specification {program.specification}, not {SPECIFICATION}, that of macOS 15"
        yield complaint(program.default, "the format", what)
    meant = next((f.name for f in wanted.values() if f.kind == "step"), next(iter(wanted)))
    if program.default != meant:  # Core ML tells the devices of no other
        yield complaint(program.default, "the default", f"should be {meant}")
    for name in sorted(wanted.keys() ^ program.functions.keys()):
        what = "is missing" if name in wanted else "is not part of the layout"
        yield complaint(name, "everything", what)
    for name in sorted(wanted.keys() & program.functions.keys()):
        function, found = wanted[name], program.functions[name]
        if found.opset != OPSET:
            yield complaint(name, "the operations", f"are {found.opset}, not {OPSET}")
        results = {t.name: t.shape for op in found.operations for t in op.outputs}
        odd = {(t.name, t.shape) for t in (*function.inputs, *function.states)} ^ {
            (t.name, t.shape) for t in (*found.inputs, *found.states)
        }
        odd |= {(t.name, t.shape) for t in function.outputs} ^ {
            (each, results.get(each, ())) for each in found.outputs
        }
        for tensor, shape in sorted(odd):
            yield complaint(name, tensor, f"{list(shape)} is not as the layout says")
