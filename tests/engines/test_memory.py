"""What a model takes of the memory, and how many windows of a recording there is room for."""

import pytest

from streamd.config import load
from streamd.daemon import opening
from streamd.engines import memory
from streamd.models.catalog import dimensions

GB = 10**9


@pytest.mark.parametrize(
    ("name", "precision", "gb"),
    [
        ("tiny.en", "int8", 0.2),
        ("large-v3-turbo", "int8", 1.4),
        ("large-v3-turbo", "float32", 4.3),
        ("large-v3", "float32", 8.5),
    ],
)
def test_live_captions_take_the_weights_and_the_window(name, precision, gb):
    assert memory.live_bytes(dimensions(name), precision) == pytest.approx(gb * GB, rel=0.1)


@pytest.mark.parametrize(
    ("name", "is_int8", "has_gb", "n"),
    [
        ("base", True, 8, 16),
        ("large-v3-turbo", True, 8, 16),
        ("large-v3-turbo", False, 16, 16),
        ("large-v3", True, 16, 6),
        ("large-v3", False, 16, 2),
        ("large-v3", False, 4, 1),
    ],
)
def test_windows_together_follow_the_memory_and_the_decoder(monkeypatch, name, is_int8, has_gb, n):
    monkeypatch.setattr(memory, "memory_bytes", lambda: has_gb * GB)
    dims = dimensions(name)
    found = memory.n_together(dims, n_positions=1668, is_int8=is_int8)
    assert found == n
    assert memory.n_together(dims, n_positions=1500, is_int8=is_int8) >= found


def test_large_v3_in_float32_fits_into_16_gb_and_not_into_8(monkeypatch):
    dims = dimensions("large-v3")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 16 * GB)
    assert memory.fits(dims, "float32")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 8 * GB)
    assert not memory.fits(dims, "float32")
    assert memory.fits(dims, "int8")


def test_a_model_that_is_too_large_for_the_machine_is_opened_with_a_warning(monkeypatch, caplog):
    for module in (memory, opening):
        monkeypatch.setattr(module, "memory_bytes", lambda: 250_000_000)
    opening.open_model(load({"model": "tiny.en", "threads": "1"}, {}))
    (line,) = [each for each in caplog.messages if "memory" in each]
    assert line.startswith(
        "model tiny.en takes about 220 MB of memory, and this machine has 250 MB"
    )
