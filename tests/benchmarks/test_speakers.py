"""Who says which words: what is counted, and the pipeline that is compared with."""

import numpy as np
import pytest

pytest.importorskip("scipy")  # pip install --group speakers

import pipeline
from attributed import right_words, words_of
from dialogues import Talk


def test_the_time_of_a_turn_is_shared_among_its_words():
    words = words_of(Talk(2.0, 4.0, "a", "one sixteen"))
    assert [word.text for word in words] == ["one", "sixteen"]
    assert (words[0].start, words[0].end) == (2.0, words[1].start)
    assert words[1].end == 4.0
    assert words[1].end - words[1].start == pytest.approx(2 * (words[0].end - words[0].start))
    assert len(words_of(Talk(0.0, 3.0, "a"))) == 10


def test_words_are_right_whose_middle_is_in_a_turn_of_their_speaker_or_next_to_one():
    words = [Talk(n, n + 1, who) for n, who in enumerate("aabbb")]
    assert right_words(words, [Talk(0, 2, "2"), Talk(2, 5, "1")]) == 100
    assert right_words(words, [Talk(0, 3, "2"), Talk(3, 4, "1")]) == 80
    assert right_words(words, [Talk(0, 5, "1")]) == 60  # one speaker is one true speaker
    assert right_words(words, [Talk(0, 5, "1"), Talk(0, 2, "2")]) == 100  # both talk
    assert right_words(words, []) == 0


class Plain:
    """In place of the PLDA: what is given is taken as it is, and speakers differ by 16 times."""

    between = np.full(128, 16.0)

    def __call__(self, embeddings):
        return embeddings[:, :128]


def windows(*speakers):
    """Windows in which each of the local speakers talks alone for a half, and their embeddings."""
    rng = np.random.default_rng(0)
    local = np.zeros((len(speakers), pipeline.N_STEPS, 3), np.float32)
    embedded = np.full((len(speakers), 3, 256), np.nan, np.float32)
    half = pipeline.N_STEPS // 2
    for window, voices, pair in zip(local, embedded, speakers, strict=True):
        for at, speaker in enumerate(pair):
            window[at * half : (at + 1) * half, at] = 1
            voices[at] = 20 * np.eye(256)[speaker] + rng.standard_normal(256)
    return local, embedded


def test_the_pipeline_finds_who_is_who_in_other_windows():
    local, embedded = windows((0, 1), (1, 0), (0, 2), (2, 1), (1, 2))
    found = pipeline.told_apart(local, embedded, Plain())
    names = {(0, 1, 1, 0, 0, 2, 2, 1, 1, 2)[n]: who for n, who in enumerate(found[:, :2].ravel())}
    assert len(set(names.values())) == 3
    assert [names[n] for n in (0, 1, 1, 0, 0, 2, 2, 1, 1, 2)] == found[:, :2].ravel().tolist()
    assert (found[:, 2] == -2).all()


def test_the_pipelines_turns_are_those_of_its_windows():
    local, _ = windows((0, 1))
    talk = pipeline.turns(local, np.array([[0, 1, -2]]))
    assert [(round(t.start, 1), round(t.end, 1), t.speaker) for t in talk] == [
        (0.0, 5.0, "0"),
        (5.0, 10.0, "1"),
    ]
    assert pipeline.turns(np.zeros_like(local), np.full((1, 3), -2)) == []
