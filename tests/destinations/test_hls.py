"""Segments and playlist are valid at any time, and every cue is in each segment of its time."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import webvtt
from hypothesis import given
from hypothesis import strategies as st

from streamd.destinations.hls import PLAYLIST, SEGMENT_MS, Hls
from streamd.events import Eos, Stats
from streamd.options import CueLayout
from tests.support.said import spoken

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
FIRST = int(NOW.timestamp()) // 6


def stats(audio_ms):
    return Stats(audio_ms=audio_ms, lag_ms=0, lost_ms=0, rtf=0.1, listeners=0)


def hls(folder):
    return Hls(folder, CueLayout(), {}, now=lambda: NOW)


async def sent(destination, *events):
    await destination.open()
    for event in events:
        for part in destination.parts(event):
            await destination.send(part.content)


def listed(folder):
    lines = (folder / PLAYLIST).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def cues(path):
    return [(cue.start, cue.end, cue.text) for cue in webvtt.read(path)]


async def test_a_segment_is_written_when_its_time_and_the_delay_are_over(tmp_path):
    there = hls(tmp_path)
    await sent(there, stats(1000), spoken("Hello there.", start_ms=1000), stats(11_900))
    assert list(tmp_path.iterdir()) == []
    await sent(there, stats(12_000))
    (name,) = listed(tmp_path)
    text = (tmp_path / name).read_text()
    assert text.startswith("WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n")
    ((start, _, said),) = cues(tmp_path / name)
    assert (start, said) == ("00:00:01.000", "Hello there.")
    assert (tmp_path / PLAYLIST).read_text().splitlines()[:4] == [
        "#EXTM3U",
        "#EXT-X-VERSION:3",
        "#EXT-X-TARGETDURATION:6",
        f"#EXT-X-MEDIA-SEQUENCE:{FIRST}",
    ]
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o644


async def test_a_cue_is_in_every_segment_in_which_it_is_shown(tmp_path):
    there = hls(tmp_path)
    await sent(there, spoken("Over the end.", start_ms=5_500, word_ms=500), stats(18_000))
    first, second = listed(tmp_path)
    assert cues(tmp_path / first) == cues(tmp_path / second)


async def test_text_that_comes_late_is_in_the_next_segment(tmp_path):
    there = hls(tmp_path)
    await sent(there, stats(13_000), spoken("Late.", start_ms=2_000), stats(18_000))
    first, second = listed(tmp_path)
    assert cues(tmp_path / first) == []
    ((start, _, said),) = cues(tmp_path / second)
    assert (start, said) == ("00:00:06.000", "Late.")


async def test_a_session_after_one_that_had_waited_for_long_goes_on_counting(tmp_path):
    numbers = []
    for passed_s, audio_ms in ((0, 3_600_000), (60, 12_000)):
        now = NOW + timedelta(seconds=passed_s)
        there = Hls(tmp_path, CueLayout(), {}, now=lambda now=now: now)
        await sent(there, stats(audio_ms), Eos(seq=0, reason="stop"))
        text = (tmp_path / PLAYLIST).read_text()
        numbers.append(int(re.search(r"MEDIA-SEQUENCE:(\d+)", text)[1]))
    assert numbers == [FIRST, FIRST + 10]


async def test_the_window_slides_and_old_segments_are_removed(tmp_path):
    there = hls(tmp_path)
    await sent(there, *(stats(60_000 + 6_000 * i) for i in range(90)))
    assert len(listed(tmp_path)) == 10
    assert len([*tmp_path.glob("*.vtt")]) == 20
    text = (tmp_path / PLAYLIST).read_text()
    first = int(re.search(r"-(\d+)\.vtt", listed(tmp_path)[0])[1])
    assert f"#EXT-X-MEDIA-SEQUENCE:{FIRST + first}\n" in text
    assert "ENDLIST" not in text


async def test_the_numbers_of_segments_go_on_when_streamd_starts_again(tmp_path):
    def sequence():
        return int(re.search(r"SEQUENCE:(\d+)", (tmp_path / PLAYLIST).read_text())[1])

    await sent(hls(tmp_path), *(stats(6_000 * i) for i in range(30)))
    before = sequence()
    later = Hls(tmp_path, CueLayout(), {}, now=lambda: NOW + timedelta(seconds=180))
    await sent(later, stats(12_000))
    assert sequence() > before


async def test_the_end_writes_the_rest(tmp_path):
    there = hls(tmp_path)
    await sent(
        there, stats(20_000), spoken("The last word.", start_ms=19_000), Eos(seq=1, reason="end")
    )
    assert (tmp_path / PLAYLIST).read_text().endswith("#EXT-X-ENDLIST\n")
    assert "The last word." in (tmp_path / listed(tmp_path)[-1]).read_text()


async def test_segments_of_an_earlier_run_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "captions-1700000000-4.vtt").write_text("WEBVTT\n")
    (tmp_path / PLAYLIST).write_text("#EXTM3U\n")
    (tmp_path / "captions.vtt").write_text("WEBVTT\n")
    await sent(hls(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["captions.vtt"]


@given(
    finals=st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 40)), max_size=8),
    late_ms=st.integers(0, 30_000),
)
def test_no_word_is_lost_however_late_it_comes(finals, late_ms, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hls")
    there, at_ms, n, written = hls(folder), 0, 0, {}
    events = []
    for pause_ms, n_words in finals:
        start_ms = at_ms + pause_ms
        at_ms = start_ms + 300 * n_words
        text = " ".join(f"w{n + i}" for i in range(n_words))
        n += n_words
        events += [stats(at_ms + late_ms), spoken(text, start_ms=start_ms, seq=len(events) + 1)]
    for event in [*events, Eos(seq=len(events), reason="end")]:
        for part in there.parts(event):
            written |= dict(part.content.written)
    segments = [text for name, text in written.items() if name != PLAYLIST]
    assert {*re.findall(r"w\d+", " ".join(segments))} == {f"w{i}" for i in range(n)}
    for text in segments:
        times = [line.split(" --> ") for line in text.splitlines() if "-->" in line]
        assert all(start < end for start, end in times)
        assert all(a[0] <= b[0] for a, b in pairwise(times))
    assert SEGMENT_MS % 1000 == 0
