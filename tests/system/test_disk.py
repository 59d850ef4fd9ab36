"""Bundled files are found in a wheel and in a checkout, and missed in one line."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

import streamd.system.disk
from streamd.errors import StreamdError
from streamd.system.disk import in_utf8, is_nearly_full


def asset_of(installation: Path):
    """`asset`, as a copy of the module in another place finds it."""
    folder = installation / "streamd" / "system"
    folder.mkdir(parents=True, exist_ok=True)
    copy = Path(shutil.copy(streamd.system.disk.__file__, folder))
    spec = importlib.util.spec_from_file_location("copied_assets", copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.asset


def test_in_a_wheel(tmp_path):
    (tmp_path / "streamd" / "_golden").mkdir(parents=True)
    (tmp_path / "tests" / "golden").mkdir(parents=True)  # another package's, in site-packages
    assert asset_of(tmp_path)("golden") == tmp_path / "streamd" / "_golden"


def test_in_a_checkout(tmp_path):
    (tmp_path / "tests" / "golden").mkdir(parents=True)
    assert asset_of(tmp_path)("golden") == tmp_path / "tests" / "golden"


def test_missing(tmp_path):
    with pytest.raises(StreamdError, match="lacks the bundled golden files: install streamd again"):
        asset_of(tmp_path)("golden")


@pytest.mark.parametrize(
    ("total", "free", "expected"),
    [
        (10**12, 2**26, False),
        (10**12, 2**26 - 1, True),
        (10**6, 50_000, False),
        (10**6, 49_999, True),
    ],
)
def test_a_disk_is_nearly_full_before_it_is_full(tmp_path, monkeypatch, total, free, expected):
    def usage(path):
        assert path == tmp_path
        return shutil._ntuple_diskusage(total, total - free, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert is_nearly_full(tmp_path) is expected
    assert is_nearly_full(tmp_path / "not" / "yet") is expected


@pytest.mark.skipif(sys.platform != "linux", reason="on macOS all names are UTF-8")
def test_a_file_in_a_folder_with_any_name_has_one_in_utf_8(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xe9p\xf4t"))
    folder.mkdir()
    (folder / "model").write_text("weights")
    with in_utf8(folder / "model") as name:
        assert Path(name).read_text() == "weights"
        name.encode()
    with in_utf8(tmp_path / "plain") as name:
        assert name == str(tmp_path / "plain")
