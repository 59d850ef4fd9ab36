"""Which words of a text are worth expecting: names, and words that a model's tokenizer finds rare.

Byte-pair encoding joins what is frequent: a common word is one token with a small number. So the
sum of the logarithms of a word's token numbers tells rare words, without a list of any language.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log1p
from typing import NamedTuple

from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import FEWEST_LETTERS

MOST_TERMS = 300
"""Of a text. With 100 phrases there were no false alarms, with 1,000 one in a thousand words
(benchmarks/RESULTS.md, "Expected words")."""
MOST_CHARACTERS = 3_000
"""Of all terms: a session takes 4,000 characters of words to expect (`streamd.options.Hint`), and
corrections need the rest."""
_RARE = 10.5
"""Cost above which a word is rare: that of a token beyond number 36,000, or of any two. Of English
words with at least four letters, 9 % of the 6,000 commonest cost more, and 97 % of those beyond the
15,000th (wordfreq's ranks, the tokens of English-only models)."""
_RARE_NAME = 9.5
"""The same for a name: what sounds like it is probably another word."""
_SELDOM = 8.0
"""Cost above which the first word of a sentence may belong to a name: "Ana", but not "The"."""
_FUNCTION_WORD = 6.0
"""Cost up to which a word with a capital begins a sentence, also where the end of the one before is
lost, as of headings in a PDF: "The", "In", "We", but not "New"."""
_MOST_TOKENS = 24
"""Longer phrases are sentences."""
_LONGEST_NAME = 4
"""Words of a name, with those that join them."""
_TITLE_SHARE = 0.6
"""Share of capitals in a line above which they tell no names: it is a title."""
_NOUNS_SHARE, _FEWEST_WORDS = 0.25, 200
"""The same inside all sentences, of so many words at least: German has capitals for nouns."""
_ITEM_WORDS = 4
"""A line of at most so many words is an item of a list: its first word keeps its capital."""

_JOINING = frozenset(
    (
        *("of", "de", "da", "do", "dos", "das", "del", "della", "di", "du", "der", "den"),
        *("von", "van", "la", "le", "el", "al", "bin", "ibn"),
    )
)
_LONGEST = 100
"""Letters without a blank; more are no word of a language that has blanks."""
_WORD = re.compile(r"[^\W\d_](?:\w|['’-](?=\w))*")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|\n+|[\t;:•|]")
_POSSESSIVE = re.compile(r"['’]s$")
_CONTRACTION = re.compile(r"\w{2,}['’]\w{1,2}|\w['’](?:[dmst]|ll|re|ve)|[a-z]+['’]\w+")


@dataclass(frozen=True, slots=True)
class Term:
    """A word or a name to expect. It occurs `count` times, and is `n_tokens` tokens."""

    text: str
    count: int
    n_tokens: int
    is_name: bool

    @property
    def why(self) -> str:
        """What speaks for it, for people."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{'a name' if self.is_name else 'a rare word'}, {times}"


def risk(phrase: str, tokenizer: Tokenizer) -> str:
    """Why a phrase may appear where nobody said it, or be of no use; empty if neither is likely."""
    tokens = tokenizer.encode(f" {phrase}")
    letters = [letter for letter in phrase if letter.isalnum()]
    if len(letters) < FEWEST_LETTERS and max(letters, default="") < "\u0e00":
        return "so short that other words sound like it"
    if len(tokens) == 1 and phrase.islower():
        return "the model knows it as one token: a common word, which it hears without help"
    if len(tokens) > _MOST_TOKENS:
        return "so long that it is hardly ever said in these words: list its names alone"
    return ""


def terms(text: str, tokenizer: Tokenizer) -> list[Term]:
    """Return the terms of a text, the most important first; at most `MOST_TERMS`.

    A language without blanks between its words has none. Markup of a format counts as words.
    """
    lines = [line for each in _sentences(text) if (line := _words_of(each)).words]
    known = _known_words(lines)
    costs = _costs(known, tokenizer)
    capitals_tell = _capitals_tell(known)
    found = [*_rare_words(known, costs, capitals_tell=capitals_tell)]
    if capitals_tell:
        found += _rare_names(lines, known, costs)
    ranked = sorted(found, key=lambda each: (-each.worth, each.text))
    written = tokenizer.encode_each([f" {each.text}" for each in ranked])
    kept: list[Term] = []
    n_left = MOST_CHARACTERS
    for each, tokens in zip(ranked, written, strict=True):
        n_left -= len(each.text) + 1
        if len(kept) == MOST_TERMS or n_left < 0:
            break
        if not risk(each.text, tokenizer):
            kept.append(Term(each.text, each.count, len(tokens), each.is_name))
    return kept


@dataclass(frozen=True, slots=True)
class _RareTerm:
    text: str
    worth: float
    count: int
    is_name: bool


@dataclass(slots=True)
class _Uses:
    """How a word is written: inside sentences, and how often as the first word of one."""

    inside: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)  # of a list
    n_first: int = 0

    @property
    def count(self) -> int:
        return self.inside.total() + self.items.total() + self.n_first

    def spelled(self, low: str) -> str:
        """Return how it is to be written: with a capital if it has one inside sentences."""
        usual = self.inside or self.items
        return max(usual, key=lambda form: (usual[form], form)) if usual else low


class _Line(NamedTuple):
    """The words of a sentence, or of a line that is none, and what stands before each."""

    words: Sequence[str]
    gaps: Sequence[str]
    is_sentence: bool

    @property
    def is_title(self) -> bool:
        """Whether its capitals say nothing."""
        n_capitals = sum(map(_is_capital, self.words))
        is_long = len(self.words) > _ITEM_WORDS
        return is_long and not self.is_sentence and n_capitals > _TITLE_SHARE * len(self.words)

    @property
    def is_item(self) -> bool:
        """Whether it is an item of a list."""
        return len(self.words) <= _ITEM_WORDS and not self.is_sentence


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(re.sub(r"\S+", _without_addresses, text))


def _without_addresses(found: re.Match[str]) -> str:
    piece = found.group()
    is_address = piece.count("/") > 1 or any(mark in piece for mark in ("://", "@", "\\"))
    return "" if is_address or len(piece) > _LONGEST else piece


def _words_of(sentence: str) -> _Line:
    words, gaps, end = [], [], 0
    for match in _WORD.finditer(sentence):
        words.append(_POSSESSIVE.sub("", match.group()))
        gaps.append(sentence[end : match.start()])
        end = match.end()
    return _Line(words, gaps, is_sentence=sentence.rstrip("\"'”’»)] ").endswith((*".!?…",)))


def _known_words(lines: Sequence[_Line]) -> Mapping[str, _Uses]:
    """Return the uses of each word, by its small letters."""
    known: dict[str, _Uses] = {}
    for line in lines:
        is_title, is_item = line.is_title, line.is_item  # asked once: lines may be long
        for place, word in enumerate(line.words):
            uses = known.setdefault(word.lower(), _Uses())
            if is_item:
                uses.items[word] += 1
            elif place == 0 or (is_title and _is_capital(word)):
                uses.n_first += 1
            else:
                uses.inside[word] += 1
    return known


def _capitals_tell(known: Mapping[str, _Uses]) -> bool:
    """Whether capitals inside sentences tell names."""
    inside = Counter[bool]()
    for low, uses in known.items():
        if len(low) >= FEWEST_LETTERS:
            for form, n in uses.inside.items():
                inside[_is_capital(form)] += n
    return inside.total() < _FEWEST_WORDS or inside[True] <= _NOUNS_SHARE * inside.total()


def _costs(known: Mapping[str, _Uses], tokenizer: Tokenizer) -> Mapping[str, float]:
    """Return what each word costs; of a compound, its dearest part, since it is said in parts."""
    parts = {low: [part for part in low.split("-") if part] for low in known}
    # A name is another word for the tokenizer without its capital.
    spelled = {part: "" for every in parts.values() for part in every}
    for low, uses in known.items():
        spelled.update(zip(low.split("-"), uses.spelled(low).split("-"), strict=True))
    texts = [*spelled]
    tokens = tokenizer.encode_each([f" {spelled[part]}" for part in texts])
    cost = {part: sum(log(n + 1) for n in its) for part, its in zip(texts, tokens, strict=True)}
    return {low: max((cost[part] for part in parts[low]), default=0.0) for low in known}


def _rare_words(
    known: Mapping[str, _Uses], costs: Mapping[str, float], *, capitals_tell: bool
) -> Iterator[_RareTerm]:
    for low, uses in known.items():
        text = uses.spelled(low)
        is_name = capitals_tell and _is_capital(text) and not text.isupper()
        excess = costs[low] - (_RARE_NAME if is_name else _RARE)
        is_word = "_" not in text and not _CONTRACTION.fullmatch(text)
        if excess > 0 and is_word and len(low) >= FEWEST_LETTERS:
            yield _RareTerm(text, _worth(excess, uses.count, is_name=is_name), uses.count, is_name)


def _rare_names(
    lines: Sequence[_Line], known: Mapping[str, _Uses], costs: Mapping[str, float]
) -> Iterator[_RareTerm]:
    """Yield names of several words, one of which is rare."""
    counted = Counter(name for line in lines for name in _names_in(line, known, costs))
    for name, count in counted.items():
        excess = max(costs.get(word.lower(), 0.0) for word in name.split(" ")) - _RARE_NAME
        if excess > 0:
            yield _RareTerm(name, _worth(excess, count, is_name=True), count, is_name=True)


def _worth(excess: float, count: int, *, is_name: bool) -> float:
    return (1 + excess) * (1 + log1p(count)) * (2 if is_name else 1)


def _names_in(line: _Line, known: Mapping[str, _Uses], costs: Mapping[str, float]) -> Iterator[str]:
    """Yield runs of words with capitals; with the first of a sentence if that is a name, too."""
    if line.is_title:
        return
    first = line.words[0].lower()
    uses = known[first]
    is_seldom = costs[first] > _SELDOM and all(map(_is_capital, uses.inside))
    skips_first = not (line.is_item or is_seldom)
    run: list[str] = []
    for word, gap in [*zip(line.words, line.gaps, strict=True), ("", "")][skips_first:]:
        is_common = costs.get(word.lower(), 0.0) <= _FUNCTION_WORD
        is_part = _is_capital(word) and not (is_common or _CONTRACTION.fullmatch(word))
        if run and gap == " " and (is_part or word in _JOINING):
            run.append(word)
            continue
        yield from _name(run)
        run = [word] if is_part else []


def _name(run: Sequence[str]) -> Iterator[str]:
    words = list(run)
    while words and words[-1] in _JOINING:
        words.pop()
    if 1 < len(words) <= _LONGEST_NAME:
        yield " ".join(words)


def _is_capital(word: str) -> bool:
    return word[:1].isupper()
