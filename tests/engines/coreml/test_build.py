"""Which functions a built encoder has, and what cannot be built."""

from dataclasses import replace as changed

import numpy as np
import pytest

from streamd.engines.coreml.package import Meta
from streamd.engines.coreml.package_builder import write
from streamd.errors import ModelError
from streamd.models.catalog import dimensions
from tests.support import coreml_odd as odd


@pytest.mark.parametrize(
    ("name", "n_parts", "most"),
    [("tiny", 1, 4), ("base", 1, 6), ("small", 3, 4), ("medium", 8, 3), ("large-v3-turbo", 16, 2)],
)
def test_large_encoders_come_in_small_parts(name, n_parts, most):
    """The Neural Engine's compiler takes longer than in proportion to a part's size."""
    dims = dimensions(name)
    parts = Meta(name=name, coremltools="", dims=dims, norms={}, silence=True, bits=16).layers
    assert [layer for part in parts for layer in part] == list(range(dims.n_audio_layer))
    assert len(parts) == n_parts
    assert max(map(len, parts)) == most


def test_weights_beyond_float16_are_refused(tmp_path):
    name = "encoder.blocks.3.mlp.0.weight"
    weights = odd.model().weights | {name: np.full((256, 64), 1e5, np.float32)}
    large = changed(odd.model(), weights=weights)
    with pytest.raises(ModelError, match=f"{name} holds values beyond float16"):
        write(tmp_path, large)
