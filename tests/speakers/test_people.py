"""Who of the people that are known a speaker is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.voices import in_room
from streamd.speakers.people import (
    KEPT_BY,
    LEAST,
    Person,
    likeness_of,
    recognised,
    threshold,
    with_more,
)


def mixed(cosine: float) -> bytes:
    """A voiceprint with this cosine to `OWN`."""
    vector = np.zeros(256)
    vector[:2] = cosine, (1 - cosine**2) ** 0.5
    return np.rint(127 * vector / np.abs(vector).max()).astype(np.int8).tobytes()


OWN, OTHER = mixed(1.0), mixed(0.0)
PEOPLE = [Person("Ana", OWN, 500), Person("Bob", OTHER, 500)]


@pytest.mark.parametrize("n", [LEAST, 75, 150, 1000])
def test_whoever_is_alike_enough_is_recognised_and_stays_so_a_little_below(n):
    least = threshold(n)
    for cosine, before, name in (
        (least + 0.02, "", "Ana"),
        (least - 0.02, "", ""),
        (least - 0.02, "Ana", "Ana"),
        (least - KEPT_BY - 0.02, "Ana", ""),
    ):
        assert recognised(mixed(cosine), n, PEOPLE[:1], before) == name


def test_the_most_alike_is_taken_and_nobody_of_whom_little_was_heard():
    assert recognised(mixed(0.9), 100, PEOPLE) == "Ana"
    assert recognised(mixed(0.2), 100, PEOPLE, "Ana") == "Bob"
    assert recognised(OWN, LEAST - 1, PEOPLE) == recognised(OWN, 100, []) == ""


def test_a_voice_is_known_by_what_a_room_made_of_it():
    ana = Person("Ana", mixed(0.3), 500, OWN)
    assert recognised(OWN, 100, [ana]) == "Ana"
    assert recognised(OWN, 100, [with_more(ana, Person("Ana", OTHER, 500))]) == "Ana"
    assert recognised(OWN, 100, [Person("Ana", mixed(0.3), 500)]) == ""


def test_in_a_room_a_sound_goes_on_after_its_end():
    sound = np.zeros(16_000, np.float32)
    sound[:8_000] = np.random.default_rng(0).uniform(-0.3, 0.3, 8_000)
    heard = in_room(sound)
    assert heard.shape == sound.shape
    assert np.abs(heard[8_000:9_000]).mean() > 10 * np.abs(heard[15_000:]).mean() > 0
    assert not in_room(0 * sound).any()


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_voice_of_which_more_is_heard_lies_between_both(n, more):
    known = with_more(Person("Ana", OWN, n), Person("Ana", OTHER, more))
    assert known.n == n + more
    assert likeness_of(known.voiceprint, OWN) >= -0.01
    assert likeness_of(known.voiceprint, OWN) + likeness_of(known.voiceprint, OTHER) >= 0.98


@given(st.binary(min_size=256, max_size=256))
def test_any_voiceprint_can_be_compared(data):
    assert -1.01 <= likeness_of(data, OWN) <= 1.01
    assert likeness_of(bytes(256), OWN) == 0
