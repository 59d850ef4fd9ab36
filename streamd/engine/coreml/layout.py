"""Which functions a model built for Core ML has, with their tensors: it all follows from `Meta`."""

from streamd.engine import ModelDimensions
from streamd.engine.coreml.package import (
    STEPS,
    Form,
    Function,
    Kind,
    Meta,
    TensorSpec,
    logit_chunks,
    padded,
)


def functions(meta: Meta) -> tuple[Function, ...]:
    """All functions of a built model, package by package."""
    found: list[Function] = []
    modern = tuple(form for form in meta.forms if form != "io")
    legacy = tuple(form for form in meta.forms if form == "io")
    for forms in (modern, legacy):
        if forms:
            found += _encoder(meta, forms)
        if "mix" in forms or "io" in forms:
            found += _cross(meta, tuple(form for form in forms if form != "state"))
        for form in forms:
            found += _decoder(meta, form)
    return tuple(found)


def _placed(stem: str, name: str, form: Form) -> tuple[str, str]:
    """In which package a function is, and what it is called there."""
    if form == "io":
        return f"io_{stem}_{name}.mlpackage", "main"
    return f"{stem}_{form}.mlpackage" if stem == "decoder" else f"{stem}.mlpackage", name


def _encoder(meta: Meta, forms: tuple[Form, ...]) -> list[Function]:
    dims, n_parts = meta.dims, len(meta.layers)
    found = []
    for part in range(n_parts):
        stem = "encoder" if n_parts == 1 else f"encoder_{part + 1}of{n_parts}"
        for n_ctx in meta.contexts:
            width = padded(n_ctx)
            first = TensorSpec("mel", (1, dims.n_mels, 1, 2 * width))
            later = TensorSpec("hidden", (1, dims.n_audio_state, 1, width))
            package, name = _placed(stem, f"ctx{n_ctx}", forms[0])
            found.append(
                Function(
                    package=package,
                    name=name,
                    kind="encode",
                    forms=forms,
                    inputs=(later if part else first, TensorSpec("mask", (1, width, 1, 1))),
                    outputs=(_encoded(dims, width),),
                    n_ctx=n_ctx,
                    part=part,
                )
            )
    return found


def _encoded(dims: ModelDimensions, width: int) -> TensorSpec:
    return TensorSpec("encoded", (1, dims.n_audio_state, 1, width))


def _caches(meta: Meta, which: str, n: int) -> tuple[TensorSpec, ...]:
    shape = (meta.dims.n_text_layer, meta.dims.n_text_head, meta.d_head, n)
    return tuple(TensorSpec(f"{which}_{part}", shape) for part in "kv")


def _cross(meta: Meta, forms: tuple[Form, ...]) -> list[Function]:
    found = []
    for n_ctx in meta.contexts:
        package, name = _placed("cross", f"ctx{n_ctx}", forms[0])
        found.append(
            Function(
                package=package,
                name=name,
                kind="cross",
                forms=forms,
                inputs=(_encoded(meta.dims, padded(n_ctx)),),
                outputs=_caches(meta, "cross", padded(n_ctx)),
                n_ctx=n_ctx,
            )
        )
    return found


def _decoder(meta: Meta, form: Form) -> list[Function]:
    found = []
    calls: list[tuple[Kind, int]] = [*(("step", k) for k in STEPS), ("align", STEPS[-1])]
    longest = meta.slots(form)[0]
    for n_slots in meta.slots(form):
        suffix = "" if n_slots == longest else f"_t{n_slots}"
        found += [_pass(meta, form, f"{kind}{k}{suffix}", (kind, k, n_slots)) for kind, k in calls]
    return [*(_load(meta, n_ctx) for n_ctx in meta.contexts if form == "state"), *found]


def _load(meta: Meta, n_ctx: int) -> Function:
    n_slots = meta.slots("state")[0]
    package, name = _placed("decoder", f"load{n_ctx}", "state")
    return Function(
        package=package,
        name=name,
        kind="load",
        forms=("state",),
        inputs=(_encoded(meta.dims, padded(n_ctx)),),
        outputs=(TensorSpec("loaded", (1, 1, 1, 32)),),
        states=(*_caches(meta, "self", n_slots), *_caches(meta, "cross", meta.n_keys)),
        n_ctx=n_ctx,
        n_slots=n_slots,
    )


def _pass(meta: Meta, form: Form, name: str, call: tuple[Kind, int, int]) -> Function:
    """A "step" or "align" of k tokens on a cache of n_slots."""
    kind, k, n_slots = call
    dims = meta.dims
    caches = (*_caches(meta, "self", n_slots), *_caches(meta, "cross", meta.n_keys))
    n_inputs = {"state": 0, "mix": 2, "io": 4}[form]
    n_seen = n_slots if form == "state" else n_slots + padded(k)
    inputs = [TensorSpec("x", (1, dims.n_text_state, 1, k))]
    if form == "state":
        inputs.append(TensorSpec("put", (1, 1, k, n_slots)))
    inputs.append(TensorSpec("mask", (1, 1, k, n_seen)))
    inputs.append(TensorSpec("cross_mask", (1, 1, 1, meta.n_keys)))
    n_chunks, n_each = logit_chunks(dims.n_vocab) if kind == "step" else (0, 0)
    outputs = [TensorSpec(f"logits{i}", (1, k, 1, n_each)) for i in range(n_chunks)]
    outputs.append(TensorSpec("alignment", (1, len(meta.alignment_heads), k, meta.n_keys)))
    if form != "state":
        outputs += _caches(meta, "new", k)
    package, name = _placed("decoder", name, form)
    return Function(
        package=package,
        name=name,
        kind=kind,
        forms=(form,),
        inputs=(*inputs, *caches[:n_inputs]),
        outputs=tuple(outputs),
        states=caches[n_inputs:],
        k=k,
        n_slots=n_slots,
    )
