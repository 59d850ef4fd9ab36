"""MLX computes on a CPU here, or on the GPU of a Mac; `make check-mlx` runs these tests."""

import importlib.util
import os

import pytest


def pytest_pycollect_makemodule(module_path, parent):
    if importlib.util.find_spec("mlx") is None:
        reason = "needs MLX, which has no wheel for this system"
        if os.environ.get("STREAMD_REQUIRE_SYSTEM") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)
