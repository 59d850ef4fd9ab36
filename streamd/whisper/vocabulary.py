"""Words that the user knows: a trie of tokens, which is worth something in the search.

A phrase is worth more with each of its tokens, and what it was worth is taken back where it breaks
off, so that only whole phrases gain. That is shallow fusion with a list of phrases (Zhao et al.
2019, "Shallow-Fusion End-to-End Contextual Biasing"). However many phrases there are, a token costs
a few lookups and one addition to the logits of the tokens that begin one.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.whisper.rules import Row
from streamd.whisper.tokenizer import Tokenizer

START, STEP = 2.0, 1.0
"""What the first token of a phrase is worth, and each one after it, in nats. With more, words
appear that nobody said (benchmarks/RESULTS.md, "Expected words")."""
_LEAST_PLURAL = 4
"""Letters of a phrase that has a plural."""
_N_KEPT = 8
"""Lists that stay compiled: sessions of one server may have lists of their own."""
_HEAVIEST = 9
"""A greater number behind a colon is part of the phrase."""
_ROOT = 0


class Phrase(NamedTuple):
    """Words to expect, spelled as they are to be written; a `weight` of 1 is usual."""

    text: str
    weight: float = 1.0


Nodes = tuple[int, ...]
"""The places in the trie of the phrases that the newest tokens belong to."""


class Vocabulary:
    """Phrases as one tokenizer writes them. Immutable."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        phrases: Sequence[Phrase],
        inside: NDArray[np.bool_] | None = None,
    ) -> None:
        """Compile `phrases`; of equal ones the greatest weight counts.

        `inside` says of each token whether it continues a word, if that is known already.
        """
        self._next: dict[tuple[int, int], int] = {}
        worth, whole, parents, depths = [0.0], [0.0], [_ROOT], [0]
        every = [(phrase, forms(phrase.text)) for phrase in phrases]
        spelled = list(chain.from_iterable(its_forms for _, its_forms in every))
        written = dict(zip(spelled, tokenizer.encode_each(spelled), strict=True))
        for phrase, its_forms in every:
            n_most = 0  # tokens of the phrase itself: a plural is worth no more
            for form in its_forms:
                node, tokens = _ROOT, written[form]
                n_most = n_most or len(tokens)
                for n, token in enumerate(tokens):
                    after = self._next.setdefault((node, token), len(worth))
                    if after == len(worth):
                        worth.append(0.0)
                        whole.append(0.0)
                        parents.append(node)
                        depths.append(n + 1)
                    score = phrase.weight * (START + STEP * min(n, n_most - 1))
                    worth[after] = max(worth[after], score)
                    node = after
                whole[node] = max(whole[node], worth[node])
        words = (word for phrase in phrases for word in phrase.text.split())
        self.spelled = frozenset(word for word in words if word[0].isupper())
        """Words that are listed with a capital."""
        self.longest = max(depths)
        """Tokens of the longest phrase."""
        self._worth = np.array(worth, np.float32)
        self._whole = np.array(whole, np.float32)
        # What remains of a phrase that breaks off: the worth of a shorter one that it begins with.
        kept = [0.0]
        for node in range(1, len(worth)):
            kept.append(whole[parents[node]] or kept[parents[node]])
        self._kept = np.array(kept, np.float32)
        keys = np.array([(*key, node) for key, node in self._next.items()], np.int64).reshape(-1, 3)
        keys = keys[np.argsort(keys[:, 0], kind="stable")]
        self._tokens, self._nodes = keys[:, 1], keys[:, 2]
        self._bounds = np.searchsorted(keys[:, 0], np.arange(len(worth) + 1))
        self._inside = inside_words(tokenizer) if inside is None else inside

    def after(self, tokens: Sequence[int]) -> Nodes:
        """The phrases that are open after `tokens`, the longest first."""
        nodes: Nodes = ()
        for token in tokens[-self.longest :]:
            nodes = self.then(nodes, token)
        return nodes

    def then(self, nodes: Nodes, token: int) -> Nodes:
        """The phrases that are open after one more token."""
        following = (self._next.get((node, token)) for node in (*nodes, _ROOT))
        return tuple(node for node in following if node is not None)

    def boosted(self, row: Row, nodes: Nodes) -> Row:
        """Logits (n_vocab,) with what each token changes in the worth of the phrases."""
        boosted = row.copy()
        first = slice(0, self._bounds[1])
        boosted[self._tokens[first]] += self._worth[self._nodes[first]]
        if nodes:
            self._go_on(row, boosted, nodes)
        return boosted

    def _go_on(self, row: Row, boosted: Row, nodes: Nodes) -> None:
        node = nodes[0]
        worth = self._worth[node]
        kept = self._whole[node] or self._kept[node]
        boosted -= worth - kept
        if self._whole[node]:
            boosted[self._inside] -= kept - self._kept[node]
        for node in reversed(nodes):
            at = slice(self._bounds[node], self._bounds[node + 1])
            tokens, gain = self._tokens[at], self._worth[self._nodes[at]] - worth
            boosted[tokens] = np.maximum(boosted[tokens], row[tokens] + gain)

    def best_next(self, row: Row, node: int) -> tuple[int, float]:
        """The token that goes on best with a phrase, and what the phrase is worth with it."""
        at = slice(self._bounds[node], self._bounds[node + 1])
        tokens, worth = self._tokens[at], self._worth[self._nodes[at]]
        if not len(tokens):
            return -1, 0.0
        best = int((row[tokens] + worth).argmax())
        return int(tokens[best]), float(worth[best])

    def only_next(self, node: int, longest: int) -> tuple[int, ...]:
        """The tokens that must follow if a phrase does not break off, where there is one way on."""
        tokens: list[int] = []
        while len(tokens) < longest and self._bounds[node + 1] - self._bounds[node] == 1:
            tokens.append(int(self._tokens[self._bounds[node]]))
            node = int(self._nodes[self._bounds[node]])
        return tuple(tokens)

    def worth_whole(self, node: int) -> float:
        """What the phrase that is complete there is worth; 0: none is."""
        return float(self._whole[node])

    def goes_on(self, token: int) -> bool:
        """Whether the token continues the word before it."""
        return bool(self._inside[token])


class Vocabularies:
    """Compiles lists of phrases for one tokenizer, and keeps the newest of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled: dict[str, Vocabulary] = {}
        self._inside: NDArray[np.bool_] | None = None

    def of(self, text: str) -> Vocabulary | None:
        """The phrases of a text, one a line; None if there are none."""
        if not text:
            return None
        if self._inside is None:
            self._inside = inside_words(self._tokenizer)
        found = self._compiled.pop(text, None)
        found = found or Vocabulary(self._tokenizer, parse(text), self._inside)
        self._compiled[text] = found  # the newest is the last
        if len(self._compiled) > _N_KEPT:
            del self._compiled[next(iter(self._compiled))]
        return found


def parse(text: str) -> list[Phrase]:
    """The phrases of a text, one a line, each with a weight behind a colon if it has one.

    Empty lines, and those that begin with ``#``, count for nothing.
    """
    phrases = []
    for line in text.splitlines():
        stripped, _, weight = line.strip().rpartition(":")
        if not _is_weight(weight):
            stripped, weight = line.strip(), "1"
        if stripped and not stripped.startswith("#"):
            phrases.append(Phrase(stripped.strip(), float(weight)))
    return phrases


def _is_weight(text: str) -> bool:
    number = text.strip()
    return number.isascii() and number.replace(".", "", 1).isdigit() and float(number) <= _HEAVIEST


class Expected(NamedTuple):
    """A vocabulary, and the given tokens of a decode, in which a phrase may have begun."""

    vocabulary: Vocabulary
    given: tuple[int, ...]

    def open(self, tokens: Sequence[int]) -> Nodes:
        """The phrases that are open after the sampled `tokens`, the longest first."""
        n = self.vocabulary.longest
        return self.vocabulary.after((*self.given[-n:], *tokens[-n:]))

    def boosted(self, row: Row, tokens: Sequence[int]) -> Row:
        """`Vocabulary.boosted` after the sampled `tokens`."""
        return self.vocabulary.boosted(row, self.open(tokens))


def forms(text: str) -> list[str]:
    """How a phrase may be written: as it is, at the beginning of a sentence, and its plural."""
    text = " ".join(text.split())
    capital = text[:1].upper() + text[1:]
    ways = dict.fromkeys((text, capital) if text[:1].islower() else (text,))
    if text[-_LEAST_PLURAL:].isalpha() and len(text) >= _LEAST_PLURAL and text.isascii():
        ways |= dict.fromkeys([_plural(way) for way in ways])
    # Text after a blank has one; Chinese and its neighbours have none.
    return [f" {way}" for way in ways] + [way for way in ways if ord(way[0]) > 0xE00]


def _plural(text: str) -> str:
    if text.endswith(("s", "x", "z", "ch", "sh")):
        return f"{text}es"
    return f"{text[:-1]}ies" if text[-1] == "y" and text[-2] not in "aeiou" else f"{text}s"


def inside_words(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which tokens begin with a letter, so that they continue a word."""
    inside = np.zeros(tokenizer.n_vocab, np.bool_)
    for token in range(tokenizer.eot):
        inside[token] = tokenizer.decode((token,))[:1].isalnum()
    return inside
