"""What benchmarks/quality.py counts, on texts and events that are written down here."""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from lab.eventlog import Said
from lab.latency import SpokenWord
from tests.support.event_logs import final, partial

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # behind everything else
import noises
import quality
import scores
from runs import Decoding, Trace
from sounds import Sound

CLIP = Sound(
    name="clip",
    path=Path("clip.flac"),
    reference="the colour of light it was",
    words=(
        SpokenWord("the", 0, 200), SpokenWord("color", 200, 600), SpokenWord("of", 600, 700),
        SpokenWord("light", 700, 1_000), SpokenWord("it", 1_500, 1_600),
        SpokenWord("was", 1_600, 2_000),
    ),
    passages=("The colour of light, it was.",),
)  # fmt: skip


def trace(*said: Said, windows: tuple[Decoding, ...] = (), live: bool = True) -> Trace:
    return Trace(
        sound="clip", live=live, options={}, commit="abc", audio_ms=4_000, cpu_ms=1_000,
        said=said, windows=windows,
    )  # fmt: skip


def window(start_ms: int, end_ms: int, **counts: int) -> Decoding:
    return Decoding(
        t_ms=end_ms, start_ms=start_ms, end_ms=end_ms, last=False, prompt="", prefix="", draft="",
        words=(), suspect="", temperature=0.0, avg_logprob=0.0, no_speech_prob=0.0,
        counts=counts,
    )  # fmt: skip


def test_spelling_case_and_numbers_are_no_errors():
    found = scores.errors(["the colour of twenty one", "a b"], ["The color of 21.", "a c d"])
    assert (found.words, found.substituted, found.deleted, found.inserted) == (6, 1, 0, 1)
    assert found.rate == pytest.approx(100 * 2 / 6)


def test_every_place_that_differs_is_told_with_the_words_before_it():
    substituted, inserted, deleted = scores.wrong_words("a b c d e f", "a x c d y e")
    assert (substituted.said, substituted.read, substituted.before) == ("b", "x", "a")
    assert (inserted.said, inserted.read, inserted.n_words) == ("", "y", 1)
    assert (deleted.said, deleted.read, deleted.before) == ("f", "", "d e")


def test_an_error_is_shared_with_runs_that_are_wrong_in_the_same_place():
    here = scores.wrong_words("a b c d e", "a x c d e")[0]
    others = {
        "same": scores.wrong_words("a b c d e", "a c d e"),
        "beside": scores.wrong_words("a b c d e", "a b z d e"),
        "invented here": scores.wrong_words("a b c d e", "a y b c d e"),
        "invented later": scores.wrong_words("a b c d e", "a b c d y e"),
    }
    assert scores.also_wrong(here, others) == ("same", "invented here")


def test_words_are_first_shown_then_committed_then_in_a_final():
    run = [
        (
            CLIP,
            trace(
                partial(800, "The colour"),
                partial(1_300, "The colour of light.", n_final=2),
                final(2_500, "The colour of light. It was"),
            ),
        )
    ]
    late = scores.latencies(run)
    assert late["first shown"] == [600, 200, 600, 300, 900, 500]
    assert late["committed"] == [1_100, 700, 1_800, 1_500, 900, 500]
    assert late["in a final"] == [2_300, 1_900, 1_800, 1_500, 900, 500]
    assert scores.spread(late["committed"]) == "1000/1725"
    assert scores.spread([]) == ""


def test_a_mark_that_changes_is_erased_but_no_word():
    said = (
        partial(900, "the light."),
        partial(1_300, "The light, it"),
        final(2_000, "The light, is"),
    )
    exact, plain = scores.erasure([(CLIP, trace(*said))])
    assert exact == pytest.approx((2 + 1) / 3)  # "the light." whole, then "it"
    assert plain == pytest.approx(1 / 3)  # "it"


def test_what_was_committed_and_taken_back_is_counted():
    said = partial(900, "the light", n_final=2), final(2_000, "a light")
    assert scores.violations([(CLIP, trace(*said))]) == 1


def test_words_outside_of_all_windows_were_not_heard():
    windows = (window(0, 500), window(300, 900))
    run = [(CLIP, trace(final(2_000, "the"), windows=windows))]
    assert scores.unheard(run) == 2  # "it" and "was"; two thirds of "light" are in a window
    assert scores.listened(run[0][1]) == pytest.approx(900 / 4_000)


def test_costs_are_those_of_all_windows_over_all_sound():
    windows = (window(0, 500, windows=1, encoded_frames=25),
               window(0, 900, windows=1, encoded_frames=45, fallbacks=1))  # fmt: skip
    spent = scores.cost([(CLIP, trace(windows=windows)), (CLIP, trace())])
    assert (spent.windows, spent.cpu, spent.frames) == (2 / 8, 2 / 8, 35)
    assert spent.counts["fallbacks"] == 1


def test_marks_are_compared_where_the_words_are_right():
    passage = "It was light, and dark; then the End. Nobody knew?"
    sound = Sound("clip", Path(), "", (), (passage, "a bare passage without marks"))
    text = "It was Light. and dark, then the end Nobody new. A bare passage without marks."
    found = scores.marks([(sound, trace(final(2_000, text), final(3_000, "and so", seg=2)))])
    assert found.words == 9  # all of the printed passage but "knew"
    assert (found.commas_kept, found.commas_as_stops) == (1, 1)
    assert (found.stops_kept, found.stops_within, found.capitals_added) == (0, 0, 1)
    assert (found.finals, found.finals_small) == (2, 1)


def test_words_in_noise_count_when_they_are_shown_and_when_they_are_final():
    said = partial(900, "You you"), partial(1_300, "Thank you"), final(2_000, "Thank you. Mm.")
    assert scores.invented(trace(*said)) == (2, 3)
    assert scores.invented(trace()) == (0, 0)


def test_the_tables_show_live_beside_offline():
    text = final(2_500, "the color of night it was")
    runs = {
        "offline": [(CLIP, trace(text, live=False))],
        "live": [(CLIP, trace(partial(900, "the"), text, final(3_000, "Bye", seg=2)))],
    }
    words, _, causes = quality.report("clips", runs, show=False).split("\n\n")[1:]
    header, _, offline, live = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in words.splitlines()
    )
    rows = {row[0]: dict(zip(header, row, strict=True)) for row in (offline, live)}
    assert (rows["offline"]["WER %"], rows["live"]["WER %"]) == ("16.67", "33.33")
    assert (rows["offline"]["committed"], rows["live"]["S/D/I"]) == ("", "1/0/1")
    assert causes.splitlines()[2:] == [
        "| offline | live | 1 |",
        "| live | offline | 1 |",
        "| live | no other run | 1 |",
    ]


def test_noises_are_the_same_each_time_and_none_is_too_loud(tmp_path):
    speech = tmp_path / "speech.flac"
    soundfile.write(speech, np.random.default_rng(0).uniform(-0.1, 0.1, 4_000), 16_000)
    paths = noises.write(tmp_path / "one", [speech], seconds=3)
    assert len(paths) == 11
    for path, again in zip(paths, noises.write(tmp_path / "two", [speech], seconds=3), strict=True):
        samples, rate = soundfile.read(path)
        assert (len(samples), rate) == (48_000, 16_000)
        assert samples.any() == (path.stem != "silence")
        assert np.sqrt(np.mean(samples**2)) < 0.1
        assert path.read_bytes() == again.read_bytes()
