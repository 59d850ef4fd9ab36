"""Check the packages of a built model without a Mac: ``python -m tests.coreml.check NAME``.

The graphs are evaluated by the interpreter and compared with the reference. Whether Core ML accepts
the packages, and where it runs them, only a Mac can tell: ``streamd models check NAME --engine
coreml`` and ``streamd doctor``.
"""

import logging
import sys
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from streamd.cli.model_check import line
from streamd.cli.packages import facts, open_packages
from streamd.engines.coreml.golden import Distance, against_golden, golden_vectors, mel_of
from streamd.engines.coreml.package import (
    EMBEDDING,
    ENCODER_POSITIONS,
    FORMS,
    META,
    POSITIONS,
    SILENCE,
    BuiltModel,
    check_files,
)
from streamd.engines.golden_clips import clips
from streamd.engines.reference import ReferenceEngine
from streamd.errors import ModelError, StreamdError
from streamd.models.model import Model
from streamd.models.store import find, load_model
from streamd.models.store.cache import places
from streamd.system.disk import expanded
from tests.coreml.lint import Complaint, lint_built
from tests.coreml.verify import EXACT, HALF, Finding, verify
from tests.support.coreml_runs import arithmetic, core_ml, silence_of

log = logging.getLogger(__name__)

FLOAT16_MAX = float(np.finfo(np.float16).max)


def report(name: str) -> Iterator[str]:
    """Check what was built of a model, or what lies in the folder of that name.

    Raises
    ------
    ModelError : it was not built, is damaged, or something in it is wrong
    """
    built, model = _opened(name)
    yield from facts(built)
    check_files(built)
    yield line("files", f"{len(built.meta.files)} have their SHA-256")
    complaints = list(lint_built(built))
    yield from _linted(complaints)
    wrong: list[str] = [each.where for each in complaints if each.severity == "error"]
    if model is None:
        yield line("against numpy", f"not compared: the weights of {built.meta.name} are not here")
    else:
        wrong += wrong_tables(built, model)
        log.info("%s: comparing %d functions with the reference", name, len(built.functions))
        mel = mel_of(model, clips()[0].samples, built.meta.dims.n_audio_ctx)
        for package, of in groupby(verify(built, model, mel), lambda each: each.function.package):
            findings = list(of)
            yield from compared(package, findings)
            wrong += [each.function.name for each in findings if not each.right]
    wrong += yield from _decoded(built, model)
    if wrong:
        raise ModelError(
            f"{name} fails its check: {', '.join(wrong)}; build it again: "
            f"streamd models build {built.meta.name} --engine coreml"
        )


def wrong_tables(built: BuiltModel, model: Model) -> list[str]:
    """The host's tables that are not the checkpoint's."""
    weights = model.weights
    true = {
        EMBEDDING: (built.embedding, weights["decoder.token_embedding.weight"]),
        POSITIONS: (built.positions, weights["decoder.positional_embedding"]),
    }
    if built.meta.n_resumed:
        wanted = weights["encoder.positional_embedding"]
        true[ENCODER_POSITIONS] = (built.encoder_positions, wanted)
    if (silence := silence_of(built)) is not None and model.silence is not None:
        true[SILENCE] = (silence.states, model.silence.states)
    return [
        name
        for name, (found, wanted) in true.items()
        if not np.array_equal(found, wanted.astype(np.float16))
    ]


def _opened(name: str) -> tuple[BuiltModel, Model | None]:
    """What was built, and the checkpoint that it was built from, if that is here."""
    built = open_packages(name)
    folder_given = (expanded(name) / META).is_file()
    checkpoint = built.meta.name if folder_given else name
    if find(checkpoint, places()) is None:
        return built, None
    return built, load_model(checkpoint)


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


def _decoded(built: BuiltModel, model: Model | None) -> Generator[str, None, list[str]]:
    """The golden vectors through all packages, and what they are with the model's own weights.

    Returns what a Mac would refuse.
    """
    golden, refused = golden_vectors(built), []
    with TemporaryDirectory() as folder, arithmetic("half"):
        for form in FORMS:
            with core_ml(built, Path(folder), form) as engine:
                found = against_golden(engine, golden)
            refused += [] if found.acceptable else [f"golden vectors, {form}"]
            yield line("golden vectors", f"{form}, in half precision: {_told(found)}")
    if model is not None:
        heads, silence = built.meta.alignment_heads, silence_of(built)
        exact = ReferenceEngine(model.dims, model.weights, alignment_heads=heads, silence=silence)
        yield line("before rounding", _told(against_golden(exact, golden)))
    return refused


def _told(off: Distance) -> str:
    return (
        f"logits {off.logits:.2g}, alignment {off.alignment:.2g}; the same choice at "
        f"{off.agreed:.0%} of the places"
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
