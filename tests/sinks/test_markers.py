"""Markers for video editors."""

import re

from tests.library.test_shelf import said
from tests.support.said import GAP, written


def test_each_final_is_a_marker_with_its_speaker():
    text = written("edl", said("Hello | there.", 1, start_ms=3_661_500), GAP, said("Yes.", None))
    head, first, second = text.rstrip("\n").split("\n\n")
    assert head == "TITLE: Transcript\nFCM: NON-DROP FRAME"
    times = "02:01:01:12 02:01:01:13"
    assert first == (
        f"001  001      V     C        {times} {times}\n"
        " |C:ResolveColorBlue |M:Speaker 1: Hello / there. |D:21"
    )
    assert second.endswith(" |C:ResolveColorBlue |M:Yes. |D:7")
    assert all(int(frame) < 24 for frame in re.findall(r"\d\d:\d\d:\d\d:(\d\d)", text))
