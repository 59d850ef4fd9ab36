"""Blocks of memory that begin alike share what they do not write."""

import gc
import os
import re
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

from streamd.system.pages import Template, whole_pages
from tests.support.limits import no_free_descriptor

HAS_FILES = hasattr(os, "memfd_create")
RNG = np.random.default_rng(0)
CONTENT = {
    0: RNG.integers(1, 256, 40 * PAGESIZE + 7, np.uint8),
    64 * PAGESIZE: RNG.integers(1, 256, 3, np.uint8),
    96 * PAGESIZE: RNG.integers(1, 256, 2 * PAGESIZE, np.uint8),
}
N_BYTES = 98 * PAGESIZE


def expected() -> np.ndarray:
    whole = np.zeros(N_BYTES, np.uint8)
    for at, part in CONTENT.items():
        whole[at : at + len(part)] = part
    return whole


def shared_bytes(field: str) -> int:
    """What the mappings of files without a name take, by a field of /proc/self/smaps."""
    total, name = 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"[0-9a-f]+-[0-9a-f]+ (?:\S+ +){4}(.*)", line):
            name = found[1]
        elif "memfd:streamd" in name and line.startswith(f"{field}:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.mark.parametrize("on_disk", [False, True])
def test_blocks_are_alike_until_one_is_written(monkeypatch, on_disk):
    if on_disk:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    template = Template(N_BYTES, CONTENT)
    first, second = template.new_block(), template.new_block()
    np.testing.assert_array_equal(first, expected())
    first[:] = 9
    for block in (second, template.new_block()):
        np.testing.assert_array_equal(block, expected())


def test_where_no_descriptor_is_free_blocks_share_nothing():
    template = Template(N_BYTES, CONTENT)
    with no_free_descriptor():
        first, second = template.new_block(), template.new_block()
    first[:] = 9
    np.testing.assert_array_equal(second, expected())


def test_there_may_be_no_content():
    assert not Template(PAGESIZE, {}).new_block().any()
    assert not Template(PAGESIZE, {0: np.zeros(0, np.uint8)}).new_block().any()


@pytest.mark.skipif(not HAS_FILES, reason="needs /proc, and files in memory")
def test_whole_pages_are_in_memory_once():
    gc.collect()
    before = {field: shared_bytes(field) for field in ("Rss", "Pss", "Private_Dirty")}
    template = Template(N_BYTES, CONTENT)
    blocks = [template.new_block() for _ in range(8)]
    assert all(block.sum() for block in blocks)  # all pages are read
    assert shared_bytes("Rss") - before["Rss"] == 8 * N_BYTES
    assert shared_bytes("Pss") - before["Pss"] <= N_BYTES + PAGESIZE
    blocks[0][PAGESIZE] = 1
    assert shared_bytes("Private_Dirty") - before["Private_Dirty"] == PAGESIZE
    del blocks
    gc.collect()
    assert shared_bytes("Rss") == before["Rss"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_file_is_closed():
    before = len(os.listdir("/proc/self/fd"))
    template = Template(N_BYTES, CONTENT)
    block = template.new_block()
    del template
    np.testing.assert_array_equal(block, expected())
    del block
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("n_bytes", "n_pages"), [(0, 0), (1, 1), (PAGESIZE, 1), (PAGESIZE + 1, 2)])
def test_sizes_in_pages(n_bytes, n_pages):
    assert whole_pages(n_bytes) == n_pages * PAGESIZE
