"""What MLX quantises is read as MLX reads it."""

import mlx.core as mx
import numpy as np
import pytest

from streamd.models.formats.mlx import _Quantization, _with_scales, safetensors

pytestmark = pytest.mark.mlx


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_matrix_in_few_bits(bits, group, dtype, tmp_path):
    values = mx.array(np.random.default_rng(bits).standard_normal((300, 256))).astype(dtype)
    parts = mx.quantize(values, group_size=group, bits=bits)
    expected = np.array(mx.dequantize(*parts, group_size=group, bits=bits).astype(mx.float32))
    names = ("x.weight", "x.scales", "x.biases")
    mx.save_safetensors(str(tmp_path / "x.safetensors"), dict(zip(names, parts, strict=True)))
    stored = safetensors.open_file(tmp_path / "x.safetensors")
    found = _with_scales(stored, _Quantization(bits, group))
    assert found.keys() == {"x.weight"}
    assert found["x.weight"].shape == expected.shape
    # MLX rounds each value to the type of the scales, which is not needed here.
    rounding = {mx.float16: 2e-3, mx.bfloat16: 2e-2, mx.float32: 1e-6}[dtype]
    np.testing.assert_allclose(found["x.weight"].read(), expected, atol=rounding, rtol=0)
