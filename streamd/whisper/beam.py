"""Beam search on a shared tree, and the choice among finished hypotheses.

All beams take one pass per token. Source: openai/whisper ``decoding.py`` (`BeamSearchDecoder`,
`MaximumLikelihoodRanker`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streamd.options import DecodingOptions
from streamd.whisper.engine import Search
from streamd.whisper.logit_rules import Row, Rules
from streamd.whisper.paths import Cache, Path, Prefill, log_softmax, log_sum, token_prob
from streamd.whisper.vocabulary import Expected


def beam_search(
    cache: Cache,
    prefill: Prefill,
    *,
    rules: Rules,
    options: DecodingOptions,
    max_tokens: int,
    expected: Expected | None = None,
) -> Search[list[Path]]:
    """Follow the most probable hypotheses until enough of them have ended.

    `prefill.logits` are (1, n_vocab). Returns the finished hypotheses and, if they are fewer than
    `beam_size`, the most probable unfinished ones; `best` chooses among them.
    """
    beam_size = options.beam_size
    beams, rows = [prefill.path], prefill.logits
    finished: list[Path] = []
    for n_sampled in range(1, max_tokens + 1):
        candidates = [
            candidate
            for path, row in zip(beams, rows, strict=True)
            # One of them may be end-of-text, and beam_size of them must go on.
            for candidate in _continuations(path, row, rules, expected, n=beam_size + 1)
        ]
        candidates.sort(key=lambda path: path.score, reverse=True)
        beams, ended = _best_open(candidates, beam_size)
        finished += ended if options.whole_beams else ended[: beam_size - len(finished)]
        # Where one token is nearly certain, the runners-up are improbable ends: openai-whisper
        # counts five of them as enough, and may leave the rest of a sentence out.
        most = max((path.score for path in finished), default=-np.inf)
        ahead = options.whole_beams and beams and beams[0].score > most
        if (len(finished) >= beam_size and not ahead) or not beams or n_sampled == max_tokens:
            break
        cache.keep(beams)
        beams, rows = yield from cache.extend(beams)
    missing = max(0, beam_size - len(finished))
    return finished + beams[:missing]


def best(paths: Sequence[Path]) -> Path:
    """The path with the highest mean log probability of its tokens."""
    return max(paths, key=lambda path: path.score / max(1, len(path.tokens)))


def _continuations(
    path: Path, row: Row, rules: Rules, expected: Expected | None, *, n: int
) -> list[Path]:
    """The path with each of its `n` best next tokens, the best first."""
    logprobs = log_softmax(rules(row, path.tokens))
    scores = expected.boosted(logprobs, path.tokens) if expected else logprobs
    text = row[: rules.eot]
    total = log_sum(text)
    # Sorted before the stable sort, so that of equal tokens the first wins, as in torch.topk.
    top = np.sort(np.argpartition(-scores, n)[:n])
    top = top[np.argsort(-scores[top], kind="stable")]
    continued = []
    for token in top.tolist():
        logprob = float(logprobs[token])
        if logprob == -np.inf:
            break
        bonus = path.bonus + float(scores[token]) - logprob
        if token == rules.eot:
            continued.append(replace(path.end(logprob), bonus=bonus))
        else:
            prob = token_prob(text, total, token, logprob)
            continued.append(replace(path.append(token, logprob, prob), bonus=bonus))
    return continued


def _best_open(candidates: Sequence[Path], beam_size: int) -> tuple[list[Path], list[Path]]:
    """The first `beam_size` open candidates, and the ended ones before the last of them."""
    beams: list[Path] = []
    ended: list[Path] = []
    for path in candidates:
        (ended if path.ended else beams).append(path)
        if len(beams) == beam_size:
            break
    return beams, ended
