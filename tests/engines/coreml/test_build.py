"""Which functions a built encoder has, and what cannot be built."""

from dataclasses import replace as changed
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamd.engines.coreml.package import Function, functions
from streamd.engines.coreml.package_builder import write
from streamd.errors import ModelError
from streamd.models.catalog import dimensions
from tests.support import coreml_odd as odd

LAYOUT = Path(__file__).with_name("layout.txt")


def row(function: Function) -> str:
    inputs, outputs = (
        " ".join(f"{t.name}{list(t.shape)}".replace(", ", ",") for t in tensors)
        for tensors in (function.inputs, function.outputs)
    )
    return f"{function.package} {function.name}: {inputs} -> {outputs}\n"


def test_the_layout_is_as_it_was():
    """Another layout needs another `VERSION`: models that were built before would be misread."""
    assert "".join(map(row, functions(odd.META))) == LAYOUT.read_text()


@pytest.mark.parametrize(
    ("name", "n_parts", "most"),
    [("tiny", 1, 4), ("base", 1, 6), ("small", 3, 4), ("medium", 8, 3), ("large-v3-turbo", 16, 2)],
)
def test_large_encoders_come_in_small_parts(name, n_parts, most):
    """The Neural Engine's compiler takes longer than in proportion to a part's size."""
    dims = dimensions(name)
    parts = msgspec.structs.replace(odd.META, dims=dims).layers
    assert [layer for part in parts for layer in part] == list(range(dims.n_audio_layer))
    assert len(parts) == n_parts
    assert max(map(len, parts)) == most


def test_contexts_suit_the_model():
    with pytest.raises(ModelError, match="from 1 to 530"):
        write(Path("nowhere"), odd.model(), contexts=(531,))


def test_weights_beyond_float16_are_refused(tmp_path):
    name = "encoder.blocks.3.mlp.0.weight"
    weights = odd.model().weights | {name: np.full((256, 64), 1e5, np.float32)}
    large = changed(odd.model(), weights=weights)
    with pytest.raises(ModelError, match=f"{name} holds values beyond float16"):
        write(tmp_path, large, contexts=(odd.SHORT,))
