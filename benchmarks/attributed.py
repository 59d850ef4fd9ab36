"""How right it is who talks when, and who says which words.

The package scipy has to be installed (the group ``speakers``).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dialogues import Talk

STEP_S = 0.01
"""Resolution of the error rate."""


def words_of(talk: Talk) -> list[Talk]:
    """Share the time of a turn among its words by their length; without a text, 0.3 s for each."""
    words = talk.text.split() or ["-"] * max(1, round((talk.end - talk.start) / 0.3))
    edges = np.cumsum([0, *(len(word) + 1 for word in words)])
    times = talk.start + edges / edges[-1] * (talk.end - talk.start)
    pairs = zip(times, times[1:], words, strict=False)
    return [Talk(float(start), float(end), talk.speaker, word) for start, end, word in pairs]


def error_rate(
    truth: Sequence[Talk], found: Sequence[Talk]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the DER and its parts in %, and which speaker that was found is which true one."""
    n = round(max(talk.end for talk in (*truth, *found)) / STEP_S) + 1
    true_names, names = (sorted({talk.speaker for talk in each}) for each in (truth, found))
    true, said = _active(truth, true_names, n), _active(found, names, n)
    shared = true.astype(np.int64) @ said.T.astype(np.int64)
    rows, columns = linear_sum_assignment(-shared)
    n_true, n_said = true.sum(0), said.sum(0)
    frames = {
        "missed": np.maximum(n_true - n_said, 0).sum(),
        "invented": np.maximum(n_said - n_true, 0).sum(),
        "confused": np.minimum(n_true, n_said).sum() - shared[rows, columns].sum(),
    }
    frames["der"] = sum(frames.values())
    mapping = {names[j]: true_names[i] for i, j in zip(rows, columns, strict=True)}
    return {k: round(100 * float(v) / float(true.sum()), 1) for k, v in frames.items()}, mapping


def right_words(words: Sequence[Talk], found: Sequence[Talk], of: str = "") -> float:
    """Return in the middle of how many % of the words their speaker talks, or talks next.

    Each speaker that was found is one true speaker, so that most words are right. Only the words
    `of` one speaker are counted, if one is given.
    """
    if not (found and words):
        return 0.0
    middles = np.array([(word.start + word.end) / 2 for word in words])[:, None]
    starts, ends = (np.array(each) for each in zip(*((t.start, t.end) for t in found), strict=True))
    away = np.maximum(np.maximum(starts - middles, middles - ends), 0)
    true_names, names = (sorted({talk.speaker for talk in each}) for each in (words, found))
    who = np.array([names.index(talk.speaker) for talk in found])
    whose = np.array([true_names.index(word.speaker) for word in words])
    heard = np.zeros((len(words), len(names)), np.bool_)
    np.logical_or.at(heard, (slice(None), who), away == away.min(1, keepdims=True))
    shared = np.eye(len(true_names))[whose].T @ heard
    rows, columns = linear_sum_assignment(-shared)
    counted = np.array([of in ("", name) for name in true_names])
    right = shared[rows, columns][counted[rows]].sum()
    return round(100 * float(right) / float(counted[whose].sum()), 1)


def _active(talk: Iterable[Talk], names: Sequence[str], n: int) -> NDArray[np.bool_]:
    active = np.zeros((len(names), n), np.bool_)
    for each in talk:
        inside = slice(round(each.start / STEP_S), round(each.end / STEP_S))
        active[names.index(each.speaker), inside] = True
    return active
