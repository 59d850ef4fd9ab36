"""pyannote's community-1 pipeline by its published algorithm, to compare with (`speakers.py`).

Windows of 10 s, a second apart; in each, the segmentation finds up to three local speakers, and
each has an embedding, of the frames in which it talks alone. Embeddings of at least 2 s of speech
are clustered: by their centroids' distance at first, then by VBx (Landini and others, arXiv
2012.14952) on PLDA features. Each local speaker goes to the centroid that it is most like, those of
a window to different ones; a frame has as many speakers as its windows count on average. All
numbers are those of pyannote.audio 4.0 (MIT) and speaker-diarization-community-1.

The networks are this repository's (`models/community-1`, 8-bit), so that only what is made of them
differs. The PLDA is not among them: its files ``plda_*`` and ``xvec_*`` lie in a folder
(CC-BY-4.0, pyannote.ai). The package scipy has to be installed (the group ``speakers``).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

from dialogues import Talk
from streamd.engines import voices
from streamd.types import SAMPLE_RATE

WINDOW, N_STEPS, STEP, FIRST = 10 * SAMPLE_RATE, 589, 270, 495
"""Samples in a window, steps of the segmentation in it, samples from one to the next, and up to the
middle of the first."""
LEAST_SHARE = 0.2
THRESHOLD, FA, FB, SMOOTHING, ITERATIONS, ENOUGH = 0.6, 0.07, 0.8, 7.0, 20, 1e-4

Local = NDArray[np.float32]
"""(windows, 589, 3): whether each local speaker talks."""
Voices = NDArray[np.float32]
"""(windows, 3, 256): their embeddings, NaN where one does not talk."""


class Plda:
    """Maps embeddings to features whose covariance within a speaker is the identity."""

    def __init__(self, folder: Path) -> None:
        """Read the files of a folder."""

        def read(name: str, kind: type) -> NDArray[np.float64]:
            return np.fromfile(folder / name, kind).astype(np.float64)

        self._mean, self._second = read("xvec_mean1.f64", np.float64), read("xvec_mean2.f32", "f4")
        self._lda = read("xvec_lda.f32", "f4").reshape(256, 128)
        self._mu, trained = read("plda_mu.f64", "f8"), read("plda_tr.f64", "f8").reshape(128, 128)
        within = np.linalg.inv(trained.T @ trained)
        between = np.linalg.inv((trained.T / read("plda_psi.f64", "f8")) @ trained)
        values, vectors = eigh(between, within)
        self.between, self._rotation = values[::-1], vectors.T[::-1]

    def __call__(self, embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features (n, 128) of (n, 256) embeddings."""
        projected = np.sqrt(256) * _normal(embeddings - self._mean) @ self._lda - self._second
        return (np.sqrt(128) * _normal(projected) - self._mu) @ self._rotation.T


def features(sound: NDArray[np.float32]) -> tuple[Local, Voices]:
    """Hear a sound window by window."""
    n = 1 + max(0, -((WINDOW - len(sound)) // SAMPLE_RATE))
    local, embedded = np.zeros((n, N_STEPS, 3), np.float32), np.full((n, 3, 256), np.nan, "f4")
    for at in range(n):
        part = sound[at * SAMPLE_RATE :][:WINDOW]
        part = np.pad(part, (0, WINDOW - len(part)))
        talking = voices._TALKING[voices._run("segmentation", part[None, None])[0].argmax(1)]
        local[at] = talking[:N_STEPS]
        if (who := np.flatnonzero(local[at].any(0))).size:
            alone = local[at] * (local[at].sum(1, keepdims=True) < 2)
            masks = [alone[:, i] if alone[:, i].sum() > 2 else local[at, :, i] for i in who]
            embedded[at, who] = _embedded(part, np.stack(masks))
    return local, embedded


def _embedded(part: NDArray[np.float32], masks: NDArray[np.float32]) -> NDArray[np.float32]:
    banks = voices.filter_banks(part)
    (heard,) = voices._run("embedding", (banks - banks.mean(0))[None].astype(np.float32))
    n = heard.shape[1]
    weights = masks[:, np.arange(n) * masks.shape[1] // n]
    total = np.maximum(weights.sum(1, keepdims=True), 1e-6)
    mean = weights @ heard.T / total
    spread = weights @ (heard**2).T - total * mean**2
    free = np.maximum(total - (weights**2).sum(1, keepdims=True) / total, 1e-6)
    deviation = np.sqrt(np.maximum(spread / free, 1e-10))
    return voices._run("pooled", np.concatenate([mean, deviation], axis=1))


def told_apart(local: Local, embedded: Voices, plda: Plda) -> NDArray[np.int64]:
    """Return whose voice each local speaker of each window is, (windows, 3); -2: nobody's."""
    talks = local.any(1)
    alone = local * (local.sum(2, keepdims=True) == 1)
    enough = (alone.sum(1) >= LEAST_SHARE * N_STEPS) & talks
    chosen = embedded[enough].astype(np.float64)
    if len(chosen) < 2:
        return np.where(talks, 0, -2)
    tree = linkage(_normal(chosen), method="centroid", metric="euclidean")
    _, first = np.unique(fcluster(tree, THRESHOLD, criterion="distance"), return_inverse=True)
    shares = _vbx(
        plda(chosen), plda.between, softmax(SMOOTHING * np.eye(first.max() + 1), 1)[first]
    )
    centroids = shares.T @ chosen / shares.sum(0)[:, None]
    distances = cdist(np.nan_to_num(embedded, nan=1.0).reshape(-1, 256), centroids, "cosine")
    alike = 2 - distances.reshape(*talks.shape, -1)
    alike[~talks] = alike.min() - 1
    found = np.full(talks.shape, -2)
    for window, who in zip(alike, found, strict=True):
        rows, columns = linear_sum_assignment(window, maximize=True)
        who[rows] = columns
    found[~talks] = -2
    return found


def _vbx(
    points: NDArray[np.float64], between: NDArray[np.float64], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how probably each of n points is each speaker's, of the speakers that are left."""
    priors = np.full(shares.shape[1], 1 / shares.shape[1])
    constant = -0.5 * ((points**2).sum(1, keepdims=True) + points.shape[1] * np.log(2 * np.pi))
    scaled, before = points * np.sqrt(between), -np.inf
    for _ in range(ITERATIONS):
        spread = 1 / (1 + FA / FB * shares.sum(0)[:, None] * between)
        means = FA / FB * spread * (shares.T @ scaled)
        each = FA * (scaled @ means.T - 0.5 * (spread + means**2) @ between + constant)
        each += np.log(priors + 1e-8)
        total = logsumexp(each, axis=1, keepdims=True)
        shares = np.exp(each - total)
        priors = shares.sum(0) / shares.sum()
        bound = total.sum() + FB * 0.5 * (np.log(spread) - spread - means**2 + 1).sum()
        if bound - before < ENOUGH:
            break
        before = bound
    return shares[:, priors > 1e-7]


def turns(local: Local, found: NDArray[np.int64]) -> list[Talk]:
    """Return who talks when."""
    n_speakers = max(0, found.max() + 1)
    n = (len(local) - 1) * SAMPLE_RATE // STEP + N_STEPS + 1
    counted, windows, active = np.zeros(n), np.zeros(n), np.zeros((n, n_speakers))
    for at, (talking, who) in enumerate(zip(local, found, strict=True)):
        inside = slice(round(at * SAMPLE_RATE / STEP), round(at * SAMPLE_RATE / STEP) + N_STEPS)
        counted[inside] += talking.sum(1)
        windows[inside] += 1
        for speaker in {*who.tolist()} - {-2}:
            active[inside, speaker] += talking[:, who == speaker].max(1)
    counts = np.rint(counted / np.maximum(windows, 1)).astype(int)
    ranks = (-active).argsort(1).argsort(1)
    talk = []
    for speaker, on in enumerate((ranks < counts[:, None]).T):
        edges = np.flatnonzero(np.diff(on.astype(np.int8), prepend=0, append=0)) * STEP + FIRST
        for start, end in (edges / SAMPLE_RATE).reshape(-1, 2).tolist():
            talk.append(Talk(start, end, str(speaker)))
    return sorted(talk)


def _normal(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
