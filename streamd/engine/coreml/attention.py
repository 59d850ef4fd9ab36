"""Scaled dot-product attention in the two forms that Apple's processors like.

The encoder's is one head at a time with keys along the channel axis, as the Neural Engine wants it
(Apple, ``coreai-models``: neural_engine_rules.md; apple/ml-ane-transformers). The decoder's few
queries take all heads in one matrix product: its graphs have a fraction of the operations, so they
compile faster, and argmaxinc/WhisperKit runs them on the Neural Engine, too. Queries come scaled.
"""

from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Var

from streamd.engine.coreml.layers import concat, cut

_MOST_QUERIES = 512
"""More queries at a time make score matrices that leave the Neural Engine's own memory."""


def query_scale(n_state: int, n_head: int) -> float:
    """What queries are scaled by; a power of two in all of OpenAI's models, so nothing is lost."""
    return float((n_state // n_head) ** -0.5)


def by_heads(q: Var, k: Var, v: Var, *, n_head: int, mask: Var) -> Var:
    """Attend head by head, and to at most 512 queries at a time.

    Parameters
    ----------
    q : (1, n_state, 1, n)
    k, v : (1, n_state, 1, m)
    mask : (1, m, 1, 1), added to the scores

    Returns
    -------
    (1, n_state, 1, n)
    """
    n = q.shape[3]
    ks = _split(mb.transpose(x=k, perm=[0, 3, 2, 1]), n_head, axis=3)
    vs = _split(v, n_head, axis=1)
    chunks = []
    for start in range(0, n, _MOST_QUERIES):
        qs = _split(cut(q, 3, start, min(n, start + _MOST_QUERIES)), n_head, axis=1)
        heads = zip(qs, ks, vs, strict=True)
        chunks.append(concat([_head(*head, mask) for head in heads], axis=1))
    return concat(chunks, axis=3)


def _head(q: Var, k: Var, v: Var, mask: Var) -> Var:
    """One head: q, v (1, d, 1, n), k (1, m, 1, d)."""
    scores = mb.einsum(values=(k, q), equation="nchw,nwhu->nchu")  # (1, m, 1, n)
    weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=1)
    return mb.einsum(values=(v, weights), equation="nchw,nwhu->nchu")


def _split(x: Var, n: int, *, axis: int) -> list[Var]:
    return list(mb.split(x=x, num_splits=n, axis=axis)) if n > 1 else [x]


def heads_of(x: Var, n_head: int) -> Var:
    """(1, n_state, 1, n) as (1, n_head, d_head, n): the same numbers in the same order."""
    _, n_state, _, n = x.shape
    return mb.reshape(x=x, shape=[1, n_head, n_state // n_head, n])


def all_heads(q: Var, k: Var, v: Var, *, mask: Var) -> tuple[Var, Var]:
    """Attend with all heads at once.

    Parameters
    ----------
    q : (1, n_head, d_head, n)
    k, v : (1, n_head, d_head, m)
    mask : (1, 1, n or 1, m), added to the scores

    Returns
    -------
    (1, n_state, 1, n) what was attended to, (1, n_head, n, m) the scores without the mask
    """
    _, n_head, d_head, n = q.shape
    scores = mb.matmul(x=q, y=k, transpose_x=True)
    weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=3)
    attended = mb.matmul(x=v, y=weights, transpose_y=True)
    return mb.reshape(x=attended, shape=[1, n_head * d_head, 1, n]), scores
