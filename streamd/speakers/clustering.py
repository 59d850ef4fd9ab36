"""Which voices are alike: hierarchical clustering by average linkage.

Cosines are corrected for attenuation (Spearman, "The proof and measurement of association between
two things", 1904): that of two clusters is divided by what voices of one person have here.
"""

import numpy as np
from numpy.typing import NDArray

Embedding = NDArray[np.float32]
"""(256,): a voice, of the length 1 where it is not a sum."""

FEW = 75
"""An embedding of n frames is n / (n + FEW) of a voice, and chance otherwise: so much is the cosine
of two such embeddings of one person, at best. Cosines below are divided by it."""
OWN, PAIRS = 0.9, 30
"""How much less the cosine of one person's voices is depends on the room, the telephone and the
mood. `OWN` is expected of it; what is found in a recording, among the voices that are already taken
for one person's, soon outweighs these `PAIRS` pairs of FEW frames each. With OWN for every
recording, 1.0 % more of the words of dialogues were wrong, live (see `own_cosine`) 2.8 %. In a
recording, what is found in one cluster outweighs as many pairs of what is found in all: whoever is
farther away than others is less like themselves (0.49 and 0.70 in a far room)."""
HALVES, SLOPE, PRIOR, LEAST_OWN = 0.43, 3.3, 3, 0.3
"""Live, it is told by the two halves of each sample, which are one person's whoever that is. Of 60
recordings, the cosine of halves is `HALVES` where that of one person's samples is OWN, and `SLOPE`
times its difference is that of the latter (r = 0.74). The first samples count with `PRIOR` others:
one recording's samples vary so many times as much as recordings (0.11 and 0.06, squared)."""
SAME = 0.75
"""Two clusters are one speaker's from this share of the cosine of one person on; of clusters of n
frames, the smaller one, from n / (n + FEW) of it, because one odd sentence is not a new speaker.
0.7 and 0.8 are as good by words (0.3 points). With 0.65 (of 60 frames) a third person of conv1 is
not found live, with 0.8 recordings have half again as many invented speakers."""
KNOWN = 0.35
"""Live, the share of the larger cluster counts with this weight: a short voice has to be more like
somebody who is well known, so that whoever says ten words is found. Of 1,397 voices of up to 1.5 s,
fewer than 1 % are too unlike their own speaker for that. Recordings, whose voices are longer, find
no more people with it, and invent some."""


def clustered(
    totals: NDArray[np.float32],
    ns: NDArray[np.int64],
    *,
    n_clusters: int = 0,
    most: int = 0,
    least_own: float = 0.0,
) -> list[int]:
    """Return a label for each of (n, 256) voices, sums of the embeddings of `ns` frames.

    It learns from the voices how alike those of one person are here. Live, these are short, and too
    little is known to learn that they are less alike than `least_own`.

    The two clusters that are most alike become one, until there are `n_clusters`, or until none are
    alike enough and there are no more than `most` (0: any number). Of more than `n_clusters` (0:
    any number) the largest are kept. Then each voice goes to the cluster that it is most like.
    """
    sums, sizes = totals.astype(np.float64), ns.astype(np.float64)
    labels = _joined(sums, sizes, max(1, n_clusters), most, least_own)
    names, sizes_of = np.unique(labels), np.bincount(labels, sizes)
    largest = names[np.argsort(-sizes_of[names])][: n_clusters or None]
    if (others := ~np.isin(labels, largest)).any():
        centres = np.stack([sums[labels == label].sum(0) for label in largest])
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
        labels[others] = largest[(sums[others] @ centres.T).argmax(1)]
    return [int(label) for label in _settled(sums, sizes, labels)]


def own_cosine(halves: float, n: int) -> float:
    """Return the cosine of one person's samples, by the sum of the cosines of the halves of `n`."""
    mean = (halves + PRIOR * HALVES) / (n + PRIOR)
    return max(LEAST_OWN, min(OWN, OWN + SLOPE * (mean - HALVES)))


def _joined(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], fewest: int, most: int, least_own: float
) -> NDArray[np.int64]:
    """Return a label for each voice. Clusters are the first rows of the arrays."""
    labels, names, sizes = np.arange(len(sums)), np.arange(len(sums)), sizes.copy()
    heard = sizes / (sizes + FEW)
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    weighted = sums / lengths * (sizes * np.sqrt(heard))[:, None]
    products = weighted @ weighted.T  # of the clusters' sums, whose vectors are not needed
    full = sizes * heard  # the product of the sums of one person's clusters is that of these
    cosines = (products / np.outer(full, full)).astype(np.float32)
    known = KNOWN if least_own else 0.0
    shares = _share(sizes[:, None], sizes, known)
    np.fill_diagonal(cosines, -np.inf)
    prior = among = PAIRS * (FEW / 2) ** 2
    own = (least_own or OWN) * among
    inside = np.zeros((2, len(sums)))  # of pairs within clusters: products, and those of `full`
    for last in range(len(sums) - 1, fewest - 1, -1):
        left, common = slice(last + 1), float(own / among)
        products_in, full_in = inside[:, left]
        each_own = np.maximum((common * prior + products_in) / (prior + full_in), 0) ** 0.5
        each_own = each_own.astype(np.float32)  # as `shares`: all in float64 takes twice as long
        least = max(least_own, common) if least_own else np.outer(each_own, each_own)
        alike = cosines[left, left] - SAME * least * shares[left, left]
        a, b = sorted(divmod(int(alike.argmax()), last + 1))
        is_few = not most or last < most
        if is_few and alike[a, b] < 0:
            break
        own += products[a, b]
        among += full[a] * full[b]
        inside[:, a] += inside[:, b] + (products[a, b], full[a] * full[b])
        inside[:, b] = inside[:, last]
        labels[labels == names[b]] = names[a]
        for each in (products, sizes, full):
            each[a] += each[b]
        products[:, a] += products[:, b]
        for each in (names, sizes, full):
            each[b] = each[last]
        for each in (products, cosines, shares):
            each[b] = each[last]
            each[:, b] = each[:, last]
        cosines[b, b] = -np.inf
        cosines[a] = cosines[:, a] = products[a] / (full * full[a])
        shares[a] = shares[:, a] = _share(sizes, sizes[a], known)
        cosines[a, a] = -np.inf
    return labels


def _share(
    sizes: NDArray[np.float64], others: NDArray[np.float64] | float, known: float
) -> NDArray[np.float32]:
    """Return how much of SAME two clusters need, of which the larger one has the weight `known`."""
    fewer, more = np.minimum(sizes, others), np.maximum(sizes, others)
    share = (fewer / (fewer + FEW)) ** (1 - known) * (more / (more + FEW)) ** known
    return np.asarray(share, np.float32)


def _settled(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Move voices to the cluster whose others they are more like, the clearest first.

    What joined a cluster when little of it was known may be more like another one. A cluster keeps
    its largest voice: to all that a speaker said before, live, one odd sentence is no alternative.
    """
    every, labels = np.unique(labels, return_inverse=True)
    largest = [np.where(labels == label, sizes, 0).argmax() for label in range(len(every))]
    squares, voices = (sums**2).sum(1)[:, None], np.arange(len(sums))
    for _ in voices:
        inside = np.eye(len(every))[labels]
        clusters = inside.T @ sums
        shared = sums @ clusters.T - inside * squares
        others = (clusters**2).sum(1) - inside * (2 * shared + squares)
        cosines = shared / np.sqrt(np.maximum(others * squares, 1e-9))
        gains = cosines.max(1) - cosines[voices, labels]
        gains[largest] = 0
        best = int(gains.argmax())
        if gains[best] < 1e-6:
            break
        labels[best] = cosines[best].argmax()
    return every[labels]


def likeness(a: Embedding, b: Embedding) -> float:
    """Return the cosine of two sums of embeddings."""
    return float(a @ b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-9)


def as_bytes(vector: Embedding) -> bytes:
    """Return the direction of a vector in a byte for each number."""
    scale = 127 / max(float(np.abs(vector).max()), 1e-9)
    return bytes(np.rint(scale * vector).astype(np.int8))


def unit(voiceprint: bytes) -> Embedding:
    """Return the vector of the length 1 that `as_bytes` wrote."""
    vector: Embedding = np.frombuffer(voiceprint, np.int8).astype(np.float32)
    return vector / max(float(np.linalg.norm(vector)), 1e-9)
