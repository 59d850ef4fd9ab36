"""The charts show what was measured, and can be read."""

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from charts import (
    CHARACTER,
    MODEL,
    Box,
    accuracy,
    carried,
    delays,
    expected,
    latency,
    made,
    points,
    read,
    read_names,
    read_recordings,
    read_scale,
    whole,
    with_tables,
)

SITTING, SCALE, NAMES, RECORDINGS = read(), read_scale(), read_names(), read_recordings()
CHARTS = [
    accuracy(SITTING),
    latency(SITTING),
    carried(SCALE),
    expected(NAMES),
    whole(RECORDINGS),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_charts_and_tables_are_current():
    for path, text in made(SITTING, SCALE, NAMES, RECORDINGS).items():
        assert path.read_text(encoding="utf-8") == text, "run: make docs"


def test_the_table_of_the_readme_is_that_of_the_sitting():
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for program, sounds in SITTING.rows(MODEL).items():
        name = f"**{program}**" if program == "streamd" else program
        rows = sounds.values()
        cells = [
            ", ".join(row.wer for row in rows),
            ", ".join(row.shown.split("/")[0] for row in rows),
            ", ".join(row.committed.split("/")[0] for row in rows),
            ", ".join(str(row.cpu) for row in rows),
        ]
        assert f"| {' | '.join([name, *cells])} |" in page


def test_both_charts_have_every_program_of_the_sitting():
    programs = set(SITTING.rows(MODEL))
    assert {point.program for point in points(SITTING)} == programs
    assert {program for program, _, _ in delays(SITTING)} == programs


def test_the_chart_of_recordings_has_what_was_measured():
    seen = "".join(ElementTree.fromstring(CHARTS[-1]).itertext())
    for each in RECORDINGS.recordings:
        cpu = each.cpu_s / (60 * RECORDINGS.minutes)
        assert f"{each.run} {each.wrong:.1f} % and {cpu:.2g} s" in seen


@pytest.mark.parametrize("drawn", CHARTS)
def test_a_chart_says_what_it_shows_and_follows_light_and_dark(drawn):
    chart = ElementTree.fromstring(drawn)
    assert chart.findtext(f"{SVG}title")
    assert "streamd" in (chart.findtext(f"{SVG}desc") or "")
    assert "prefers-color-scheme: dark" in (chart.findtext(f"{SVG}style") or "")


@pytest.mark.parametrize("drawn", CHARTS)
def test_no_text_of_a_chart_lies_on_another_or_leaves_it(drawn):
    chart = ElementTree.fromstring(drawn)
    paper = Box(0, 0, float(chart.get("width", 0)), float(chart.get("height", 0)))
    boxes = [(text.text, written(text)) for text in chart.findall(f"{SVG}text")]
    assert [text for text, box in boxes if not box.inside(paper)] == []
    pairs = combinations(boxes, 2)
    assert [(a, b) for (a, one), (b, other) in pairs if one.meets(other)] == []


def written(text: ElementTree.Element) -> Box:
    """Where a text is, by a guess of its width."""
    x, y = float(text.get("x", 0)), float(text.get("y", 0))
    small = 0.9 if text.get("class") == "note" else 1
    width = CHARACTER * small * len(text.text or "")
    left = x - {None: 0, "middle": width / 2, "end": width}[text.get("text-anchor")]
    return Box(left, y - 11, left + width, y + 3)


def test_a_page_without_a_place_for_the_tables_is_no_page_of_results():
    with pytest.raises(AssertionError, match="no place"):
        with_tables("# Results\n", SITTING)
