"""A short decode through all of a built model's packages, one after the other."""

import numpy as np

from streamd.engine.coreml.built import BuiltModel, Golden
from streamd.engine.coreml.package import FORMS, MASKED, Function
from tests.coreml.interpreter import Interpreter
from tests.coreml.verify.calls import Array, Arrays
from tests.coreml.verify.tree import Tree


def decode(built: BuiltModel, golden: Golden, *, half: bool) -> tuple[Array, Array]:
    """Logits and alignment of the golden vectors' tokens, in one pass; `half`: rounded throughout.

    Raises
    ------
    ModelError
        A package is damaged.
    """
    form, n_audio = FORMS[0], golden.mel.shape[1] // 2
    n_ctx = built.context(n_audio)
    function = built.find("step", form, k=32)[0]
    state = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in function.states}

    def run(function: Function, inputs: Arrays, state: Arrays) -> Arrays:
        interpreter = Interpreter(built.path(function))
        return interpreter.run(function.name, inputs, state, half=half)

    x = golden.mel
    for part in built.find("encode", form, n_ctx=n_ctx):
        first, mask = (np.zeros(tensor.shape, np.float32) for tensor in part.inputs)
        first[0, :, 0, : x.shape[1]] = x
        mask[:, n_audio:] = MASKED
        names = (tensor.name for tensor in part.inputs)
        encoded = run(part, dict(zip(names, (first, mask), strict=True)), {})["encoded"]
        x = encoded[0, :, 0]
    inputs = Tree.chain(golden.tokens, n_slots=function.n_slots).inputs(
        function, built, n_audio=n_audio
    )
    if form == "state":
        run(*built.find("load", form, n_ctx=n_ctx), {"encoded": encoded}, state)
    else:
        found = run(*built.find("cross", form, n_ctx=n_ctx), {"encoded": encoded}, {})
        for tensor in (*function.inputs, *function.states):
            if tensor.name not in inputs:
                cache = np.zeros(tensor.shape, np.float32)
                if tensor.name in found:
                    cache[..., : found[tensor.name].shape[-1]] = found[tensor.name]
                (state if tensor.name in state else inputs)[tensor.name] = cache
    found = run(function, inputs, state)
    n = len(golden.tokens)
    chunks = [found[name][0, :n, 0] for name in function.logits]
    logits = np.concatenate(chunks, axis=1)[:, : built.meta.dims.n_vocab]
    return logits, found["alignment"][0, :, :n, :n_audio].swapaxes(0, 1)
