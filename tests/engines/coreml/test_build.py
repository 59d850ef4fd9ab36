"""Which functions a built model has, and what cannot be built."""

from dataclasses import replace as changed
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamd.engines.coreml.package import Function, Meta, functions
from streamd.engines.coreml.package_builder import write
from streamd.errors import ModelError
from streamd.options import BuildOptions
from tests.support import coreml_odd as odd

LAYOUT = Path(__file__).with_name("layout.txt")


def row(function: Function) -> str:
    inputs, outputs, states = (
        " ".join(f"{t.name}{list(t.shape)}".replace(", ", ",") for t in tensors)
        for tensors in (function.inputs, function.outputs, function.states)
    )
    return f"{function.package} {function.name}: {inputs} -> {outputs}; {states or 'no states'}\n"


def test_the_layout_is_as_it_was():
    """Another layout needs another `VERSION`: models that were built before would be misread."""
    assert "".join(map(row, functions(odd.META))) == LAYOUT.read_text()


def test_earlier_builds_have_steps_of_other_sizes():
    described = msgspec.to_builtins(odd.META)
    del described["steps"]
    earlier = functions(msgspec.convert(described, Meta))
    assert {f.name for f in earlier if f.package == "decoder_state.mlpackage"} == {
        "step1",
        "step8",
        "step32",
        "align32",
    }


# -- plans ------------------------------------------------------------------------------------


def test_contexts_suit_the_model():
    with pytest.raises(ModelError, match="from 1 to 530"):
        write(Path("nowhere"), odd.model(), BuildOptions((531,)))


def test_weights_beyond_float16_are_refused(tmp_path):
    name = "encoder.blocks.3.mlp.0.weight"
    weights = odd.model().weights | {name: np.full((256, 64), 1e5, np.float32)}
    large = changed(odd.model(), weights=weights)
    with pytest.raises(ModelError, match=f"{name} holds values beyond float16"):
        write(tmp_path, large, BuildOptions((odd.SHORT,)))
