"""Words that the user knows: a trie of tokens, which is worth something in the search.

A phrase is worth more with each of its tokens, and what it was worth is taken back where it breaks
off, so that only whole phrases gain. That is shallow fusion with a list of phrases (Zhao et al.
2019, "Shallow-Fusion End-to-End Contextual Biasing"). However many phrases there are, a token costs
a few lookups and one addition to the logits of the tokens that begin one.
"""

import re
import reprlib
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from itertools import chain
from typing import NamedTuple
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from streamd.whisper.logit_rules import Row
from streamd.whisper.tokenizer import Tokenizer

START, STEP = 2.0, 1.0
"""What the first token of a phrase is worth, and each one after it, in nats. With more, words
appear that nobody said (benchmarks/RESULTS.md, "Expected words")."""
FEWEST_LETTERS = 4
"""Shorter phrases are like too many other sounds; their plurals are not expected."""
_N_KEPT = 64
"""Lists that stay compiled at least. To compile one of 20 phrases takes 4 ms and keeps 13 kB; one
of the 3,000 characters that a document gives, 85 ms and 130 kB."""
_HEAVIEST = 9
"""A greater number behind a colon is part of the phrase."""
_CONTROLS = frozenset({"Cc", "Cs"})
"""Categories of Unicode: control characters and halves of surrogate pairs. Marks of joining and of
direction, which are of category Cf, belong to the spelling of some languages."""


class Phrase(NamedTuple):
    """Words to expect, spelled as they are to be written; a `weight` of 1 is usual."""

    text: str
    weight: float = 1.0


class _Trie:
    """The tokens of some phrases. `worth` and `whole` are those of each node, and immutable."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[Phrase]) -> None:
        self.next: dict[tuple[int, int], int] = {}
        worth, whole, longest = [0.0], [0.0], 0
        every = [(phrase, forms(phrase.text)) for phrase in phrases]
        spelled = list(chain.from_iterable(its_forms for _, its_forms in every))
        written = dict(zip(spelled, tokenizer.encode_each(spelled), strict=True))
        for phrase, its_forms in every:
            n_most = 0  # tokens of the phrase itself: a plural is worth no more
            for form in its_forms:
                node, score, tokens = 0, 0.0, written[form]  # from the root
                n_most, longest = n_most or len(tokens), max(longest, len(tokens))
                for n, token in enumerate(tokens):
                    node = self.next.setdefault((node, token), len(worth))
                    if node == len(worth):
                        worth.append(0.0)
                        whole.append(0.0)
                    score = phrase.weight * (START + STEP * min(n, n_most - 1))
                    worth[node] = max(worth[node], score)
                whole[node] = max(whole[node], score)
        words = (word for phrase in phrases for word in phrase.text.split())
        self.spelled = dict.fromkeys(word for word in words if word[0].isupper())
        self.longest = longest
        self.worth, self.whole = np.array(worth, np.float32), np.array(whole, np.float32)
        keys = np.array([(*key, node) for key, node in self.next.items()], np.int64).reshape(-1, 3)
        keys = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
        self._tokens, self._nodes = keys[:, 1], keys[:, 2]
        self._bounds = np.searchsorted(keys[:, 0], np.arange(len(worth) + 1))

    def following(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The tokens that may follow, in order, and what a phrase is worth with each; both (n,)."""
        at = slice(self._bounds[node], self._bounds[node + 1])
        return self._tokens[at], self.worth[self._nodes[at]]


class Node(NamedTuple):
    """How far a phrase has come.

    `places` are the nodes of the tries that have such a phrase, each with its trie. If it breaks
    off before its end, `kept` remains: the worth of a shorter phrase that it begins with.
    """

    places: tuple[tuple[_Trie, int], ...]
    kept: np.float32 = np.float32(0.0)

    @property
    def worth(self) -> np.float32:
        """What the phrase is worth so far."""
        return max(trie.worth[node] for trie, node in self.places)

    @property
    def whole(self) -> np.float32:
        """What the phrase that is complete here is worth; 0: none is."""
        return max(trie.whole[node] for trie, node in self.places)

    def then(self, token: int) -> "Node | None":
        """The node after one more token; None: no phrase goes on with it."""
        places = tuple(
            (trie, after)
            for trie, node in self.places
            if (after := trie.next.get((node, token))) is not None
        )
        return Node(places, self.whole or self.kept) if places else None

    def following(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """See `_Trie.following`, for each of the tries; the greater worth of a token counts."""
        return (trie.following(node) for trie, node in self.places)


Nodes = tuple[Node, ...]
"""The phrases that the newest tokens belong to, the longest first."""


class Vocabulary:
    """Phrases as one tokenizer writes them. Immutable."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        phrases: Sequence[Phrase],
        *,
        beside: "Vocabulary | None" = None,
        inside: NDArray[np.bool_] | None = None,
    ) -> None:
        """Compile `phrases`; of equal ones the greatest weight counts.

        Those of another vocabulary count `beside` them, as if they were in the same list, but are
        not compiled again. `inside` says of each token whether it continues a word, if that is
        known already.
        """
        others = beside.tries if beside else ()
        self.tries: tuple[_Trie, ...] = (_Trie(tokenizer, phrases), *others)
        self.root = Node(tuple((trie, 0) for trie in self.tries))
        self.spelled: Mapping[str, None] = ChainMap(*(trie.spelled for trie in self.tries))
        """Words that are listed with a capital."""
        self.longest = max(trie.longest for trie in self.tries)
        """Tokens of the longest phrase."""
        self.inside = inside_words(tokenizer) if inside is None else inside
        """Which tokens continue a word."""

    def after(self, tokens: Sequence[int]) -> Nodes:
        """The phrases that are open after `tokens`, the longest first."""
        nodes: Nodes = ()
        for token in tokens[-self.longest :]:
            nodes = self.then(nodes, token)
        return nodes

    def then(self, nodes: Nodes, token: int) -> Nodes:
        """The phrases that are open after one more token."""
        following = (node.then(token) for node in (*nodes, self.root))
        return tuple(node for node in following if node is not None)

    def boosted(self, row: Row, nodes: Nodes) -> Row:
        """Logits (n_vocab,) with what each token changes in the worth of the phrases."""
        boosted = row.copy()
        for tokens, worth in self.root.following():
            boosted[tokens] = np.maximum(boosted[tokens], row[tokens] + worth)
        if nodes:
            self._go_on(row, boosted, nodes)
        return boosted

    def _go_on(self, row: Row, boosted: Row, nodes: Nodes) -> None:
        node = nodes[0]
        worth, whole = node.worth, node.whole
        kept = whole or node.kept
        boosted -= worth - kept
        if whole:
            boosted[self.inside] -= kept - node.kept
        for node in reversed(nodes):
            for tokens, worth_with in node.following():
                gained = row[tokens] + (worth_with - worth)
                boosted[tokens] = np.maximum(boosted[tokens], gained)

    def best_next(self, row: Row, node: Node) -> tuple[int, float]:
        """The token that goes on best with a phrase, and what the phrase is worth with it."""
        found = []
        for tokens, worth in node.following():
            if len(tokens):
                best = (row[tokens] + worth).argmax()
                found.append((-(row[tokens[best]] + worth[best]), int(tokens[best]), -worth[best]))
        if not found:
            return -1, 0.0
        _, token, worth_with = min(found)
        return token, -float(worth_with)

    def only_next(self, node: Node, longest: int) -> tuple[int, ...]:
        """The tokens that must follow if a phrase does not break off, where there is one way on."""
        tokens: list[int] = []
        place: Node | None = node
        while place is not None and len(tokens) < longest:
            ways = {int(token) for every, _ in place.following() for token in every[:2]}
            if len(ways) != 1:
                break
            tokens += ways
            place = place.then(tokens[-1])
        return tuple(tokens)

    def goes_on(self, token: int) -> bool:
        """Whether the token continues the word before it."""
        return bool(self.inside[token])


class Vocabularies:
    """Compiles lists of phrases for one tokenizer, beside a `known` one, and keeps the newest.

    Each of `n_sessions` may have a list of its own, which none of its windows compiles again.
    """

    def __init__(
        self, tokenizer: Tokenizer, known: Vocabulary | None = None, *, n_sessions: int = 0
    ) -> None:
        self._tokenizer, self._known = tokenizer, known
        self._newest = lru_cache(maxsize=max(n_sessions, _N_KEPT))(self._compiled)
        self._inside = cache(partial(inside_words, tokenizer))

    def of(self, text: str) -> Vocabulary | None:
        """The phrases of a text, one a line, and the known ones; None if there are none."""
        return self._newest(text) if text else self._known

    def _compiled(self, text: str) -> Vocabulary:
        inside = self._known.inside if self._known else self._inside()
        return Vocabulary(self._tokenizer, parse(text), beside=self._known, inside=inside)


def lines_of(text: str) -> list[str]:
    """The lines of a list, as editors number them; other separators count as white space."""
    return re.split(r"\r\n?|\n", text)


def phrase_of(line: str) -> Phrase | None:
    """The phrase of a line of a list, with the weight behind a colon if there is one.

    White space counts as one blank. None: the line is empty or begins with ``#``. Raises
    `ValueError` with the reason if it cannot be a phrase.
    """
    line = " ".join(line.split())
    if not line or line.startswith("#"):
        return None
    text, _, weight = line.rpartition(":")
    text = text.rstrip()
    if not (text and _is_weight(weight)):
        text, weight = line, "1"
    if not any(letter.isalnum() for letter in text):
        raise ValueError(f"{reprlib.repr(text)} has neither letter nor digit")
    if any(category(letter) in _CONTROLS for letter in text):
        raise ValueError(f"{reprlib.repr(text)} is not plain text in UTF-8")
    return Phrase(text, float(weight))


def line_of(text: str) -> str:
    """The line of a list that is exactly this phrase, with the usual weight.

    Raises `ValueError` with the reason if there is none.
    """
    text = " ".join(text.split())
    for line in (text, f"{text}:1"):  # what is behind a colon may look like a weight
        if phrase_of(line) == Phrase(text):
            return line
    raise ValueError(f"{text!r} begins with #, as comments do" if text else "it is empty")


def parse(text: str) -> list[Phrase]:
    """The phrases of a text, one a line; see `phrase_of`. What is no phrase counts for nothing."""
    phrases = []
    for line in lines_of(text):
        with suppress(ValueError):
            phrases.append(phrase_of(line))
    return [phrase for phrase in phrases if phrase is not None]


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
    if text[-FEWEST_LETTERS:].isalpha() and len(text) >= FEWEST_LETTERS and text.isascii():
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
