"""Which voices are alike: the clustering, without its models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.speakers.clustering import FEW, HALVES, LEAST_OWN, OWN, SAME, clustered, own_cosine


def voices(*cosines):
    """Voices in a plane, by their cosines with the first axis."""
    found = np.zeros((len(cosines), 256), np.float32)
    for voice, cosine in zip(found, cosines, strict=True):
        voice[:2] = cosine, np.sqrt(1 - cosine**2)
    return found


def pair(cosine, n):
    """Two voices of n frames each, as sums."""
    first, second = voices(1, cosine)
    return clustered(n * np.stack([first, second]), np.array([n, n]))


def test_voices_are_one_speakers_if_they_are_alike():
    assert len(set(pair(SAME * OWN, 1_000_000))) == 1
    assert len(set(pair(SAME * OWN - 0.01, 1_000_000))) == 2


def test_of_little_speech_less_likeness_is_enough():
    assert len(set(pair(SAME * OWN / 4 + 0.01, FEW))) == 1
    assert len(set(pair(SAME * OWN / 4 - 0.01, FEW))) == 2


def test_live_little_speech_has_to_be_more_like_somebody_who_is_well_known():
    found, ns = voices(1, 0.28), np.array([3_000, FEW])
    assert len(set(clustered(ns[:, None] * found, ns, least_own=OWN))) == 2
    assert len(set(clustered(ns[:, None] * found, ns))) == 1  # as in a recording
    ns = np.array([FEW, FEW])
    assert len(set(clustered(ns[:, None] * found, ns, least_own=OWN))) == 1


def test_live_less_is_expected_of_one_person_only_where_the_halves_of_samples_are_unlike():
    assert own_cosine(0.0, 0) == own_cosine(30 * HALVES, 30) == own_cosine(30.0, 30) == OWN
    assert OWN > own_cosine(0.8 * HALVES, 1) > own_cosine(30 * 0.8 * HALVES, 30) > LEAST_OWN
    assert own_cosine(0.0, 30) == LEAST_OWN


@pytest.mark.parametrize(
    ("own", "between", "least_own", "n_speakers"),
    [(0.5, 0.25, 0, 2), (0.3, 0.25, 0, 1), (0.3, 0.25, OWN, 2), (0.7, 0.33, OWN, 2)],
)
def test_two_voices_are_two_people_by_how_alike_each_is_to_itself_in_this_recording(
    own, between, least_own, n_speakers
):
    # `between`: the cosine of a voice of one and a voice of the other
    people = np.zeros((2, 256), np.float32)
    people[:, :2] = [1, 0], [between / own, np.sqrt(1 - (between / own) ** 2)]
    found = np.repeat(own**0.5 * people, 6, axis=0)
    found[:, 2:14] = (1 - own) ** 0.5 * np.eye(12)
    labels = clustered(FEW * found, np.full(12, FEW), least_own=least_own)
    assert len(set(labels)) == n_speakers
    assert len(set(labels[:6])) == len(set(labels[6:])) == 1


@pytest.mark.parametrize(("within", "n_speakers"), [(0.25, 2), (0.45, 3)])
def test_in_a_recording_somebody_may_be_less_like_themselves_than_others_are(within, n_speakers):
    # The cosines of the other's voices are 0.45, those of two moods 0.2, and `within` in each.
    cosines = np.zeros((80, 80))
    cosines[:40, :40], cosines[40:, 40:] = 0.45, 0.2
    cosines[40:60, 40:60] = cosines[60:, 60:] = within
    np.fill_diagonal(cosines, 1)
    found = np.zeros((80, 256), np.float32)
    found[:, :80] = np.linalg.cholesky(cosines)
    labels = clustered(FEW * found, np.full(80, FEW))
    assert len(set(labels)) == n_speakers
    assert len(set(labels[:40])) == len(set(labels[40:60])) == 1


def test_a_number_of_speakers_is_kept_to():
    totals = 100 * np.eye(6, 256, dtype=np.float32)
    assert len(set(clustered(totals, np.full(6, 100)))) == 6
    for n in range(1, 7):
        assert len(set(clustered(totals, np.full(6, 100), n_clusters=n))) == n
        assert len(set(clustered(totals, np.full(6, 100), most=n))) == n


def test_a_voice_that_joined_a_cluster_early_goes_to_the_one_that_it_is_more_like():
    found, ns = voices(*np.cos(np.radians([24, 28, 46, 57, 77]))), np.array([50, 50, 50, 50, 150])
    # The pair of 46 and 57 degrees is joined before the last voice, and with it draws away.
    labels = clustered(ns[:, None] * found, ns, n_clusters=2)
    assert [label == labels[0] for label in labels] == [True, True, True, False, False]


def test_an_odd_voice_does_not_send_all_that_its_speaker_said_to_another_one():
    known, other, odd, more = np.zeros((4, 256), np.float32)
    known[0] = 1
    other[:2] = 0.4, 0.92
    odd[:3] = 0.35, -0.1, 0.93  # all that is left of the cluster of `known` without `known`
    more[:2] = 0.38, 0.92
    ns = np.array([5_000, 5_000, 50, 75])
    labels = clustered(ns[:, None] * np.stack([known, other, odd, more]), ns)
    assert labels[0] == labels[2] != labels[1] == labels[3]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 10))
def test_clear_speakers_are_found_in_any_order(speakers, seed):
    rng = np.random.default_rng(seed)
    centres = np.eye(4, 256)
    found = centres[speakers] + 0.02 * rng.standard_normal((len(speakers), 256))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    ns = rng.integers(30, 200, len(speakers))
    labels = clustered((found * ns[:, None]).astype(np.float32), ns)
    pairs = set(zip(labels, speakers, strict=True))
    assert len(pairs) == len(set(labels)) == len(set(speakers))


def test_a_voice_like_nobody_does_not_make_one_of_two_speakers_that_are_known_to_be_two():
    one, other, noise = np.eye(3, 256, dtype=np.float32)
    between = 0.1 * one + 0.995 * other
    totals = [300 * one, 300 * one, 300 * between, 300 * between, 40 * (noise - one - between)]
    labels = clustered(np.stack(totals), np.array([300, 300, 300, 300, 80]), n_clusters=2)
    assert labels[0] == labels[1] != labels[2] == labels[3]
