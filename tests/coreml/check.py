"""Check the packages of a built model without a Mac: ``python -m tests.coreml.check NAME``.

The graphs are evaluated by the interpreter and compared with the reference. Whether Core ML accepts
the packages, and where it runs them, only a Mac can tell: ``streamd models check NAME --engine
coreml`` and ``streamd doctor``.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

from streamd.cli.model_check import line
from streamd.cli.packages import facts, open_packages
from streamd.disk import expanded
from streamd.engine.check import FLOAT16_MAX, clips, forward, mel_of, numerics
from streamd.engine.coreml.built import BuiltModel, golden_vectors
from streamd.engine.coreml.package import META
from streamd.engine.coreml.package_builder import weights_digest
from streamd.engine.model import Model
from streamd.engine.reference import Array, ReferenceEngine
from streamd.engine.store import find, load_model
from streamd.engine.store.cache import places
from streamd.errors import ModelError, StreamdError
from tests.coreml.lint import Complaint, lint_built
from tests.coreml.verify import EXACT, HALF, Finding, verify
from tests.coreml.verify.decode import decode

log = logging.getLogger(__name__)


def report(name: str) -> Iterator[str]:
    """Check what was built of a model, or what lies in the folder of that name.

    Raises
    ------
    ModelError : it was not built, is damaged, or something in it is wrong
    """
    built, model = _opened(name)
    yield from facts(built)
    complaints = list(lint_built(built))
    yield from _linted(complaints)
    wrong: list[str] = [each.where for each in complaints if each.severity == "error"]
    if model is None:
        yield line("against numpy", f"not compared: the weights of {built.meta.name} are not here")
    else:
        log.info("%s: comparing %d functions with the reference", name, len(built.functions))
        mel = mel_of(model, clips()[0].samples, built.meta.dims.n_audio_ctx)
        for package, of in groupby(verify(built, model, mel), lambda each: each.function.package):
            findings = list(of)
            yield from compared(package, findings)
            wrong += [each.function.name for each in findings if not each.right]
    yield from _decoded(built, model)
    if wrong:
        raise ModelError(
            f"{name} fails its check: {', '.join(wrong)}; build it again: "
            f"streamd models build {built.meta.name} --engine coreml"
        )


def _opened(name: str) -> tuple[BuiltModel, Model | None]:
    """What was built, and the checkpoint that it was built from, if that is here."""
    built = open_packages(name)
    folder_given = (expanded(name) / META).is_file()
    checkpoint = built.meta.name if folder_given else name
    if find(checkpoint, places()) is None:
        return built, None
    model = load_model(checkpoint)
    same = weights_digest(model.weights) == built.meta.weights
    return built, model if same or not folder_given else None


def _linted(complaints: Sequence[Complaint]) -> Iterator[str]:
    n_errors = sum(each.severity == "error" for each in complaints)
    told = f"{n_errors} broken, {len(complaints) - n_errors} warnings"
    yield line("rules of the ANE", told if complaints else "all kept")
    yield from (line("", str(each)) for each in complaints)


def compared(package: str, findings: Sequence[Finding]) -> Iterator[str]:
    """What the functions of a package compute, in words."""
    exact, half = max(each.exact for each in findings), max(each.half for each in findings)
    yield line(
        "against numpy",
        f"{package}: {exact:.2g} exactly, {half:.2g} in half precision (relative)",
    )
    for each in findings:
        if not each.right:
            yield line(
                "",
                f"! {each.function.name}: {each.where} is {each.exact:.2g} off, in half precision "
                f"{each.half:.2g}; {EXACT:g} and {HALF:g} would be right",
            )
    top = max(findings, key=lambda each: each.peak.value)
    yield line("largest value", f"{top.peak.value:.4g} in {top.function.name}, {top.peak.where}")
    if not top.peak.value <= FLOAT16_MAX:
        yield line("", f"! float16 holds only {FLOAT16_MAX:.0f}: half precision fails")


def _decoded(built: BuiltModel, model: Model | None) -> Iterator[str]:
    """A decode through all packages, and what it would be with the model's own weights."""
    golden = golden_vectors(built)
    found = decode(built, golden, half=True)
    yield _differing("golden vectors", (golden.logits, golden.alignment), found)
    if model is not None:
        exact = ReferenceEngine(
            model.dims, model.weights, alignment_heads=built.meta.alignment_heads
        )
        wanted = forward(exact, golden.mel, golden.tokens.tolist())
        yield _differing("before rounding", wanted, found)


def _differing(name: str, wanted: tuple[Array, Array], found: tuple[Array, Array]) -> str:
    off = numerics(wanted, found)
    return line(
        name,
        f"logits {off.logits:.2g}, alignment {off.alignment:.2g} in half precision; "
        f"the same choice at {off.agreed:.0%} of the places",
    )


def main(*names: str) -> int:
    """Print the report of each model; 1 if something is wrong with one."""
    failed = False
    for name in names:
        try:
            for text in report(name):
                print(text)
        except StreamdError as error:
            print(error, file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
