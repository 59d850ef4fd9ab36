r"""Replaces what was said by what is meant: words, marks and commands such as "new line".

A rule is a line ``phrase => replacement`` of a file; below a line ``[de]`` rules are for German
only, below ``[all]`` for all languages. A phrase is words, whatever their marks and capitals, or
``/a regular expression/`` of whole words, of as many as it has blanks and one more. A replacement
is text, nothing, ``\n`` for a new line, or one of `_COMMANDS`.

Captions are rewritten before anybody gets them, so a final that was sent never changes. A committed
word of a partial never changes either: one that may begin a longer phrase does not count as
committed, and where a rule takes words back, no word of a partial does.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import NamedTuple
from unicodedata import category

import regex
from msgspec.structs import replace

from streamd.events import CaptionT, Final, Partial, TimedWord
from streamd.language import LANGUAGES, ends_sentence
from streamd.types import mean_prob, rounded

_COMMANDS = ("{capital}", "{caps}", "{caps on}", "{caps off}", "{scratch}", "{literal}")
"""The next word with a capital or all in capitals, all words from here on or no more; without what
was said since the sentence before; the next phrase as it was said."""
_JOIN = "{join}"
"""Begins a text between two words without blanks."""
_BUILT_IN = "spoken_commands.txt"
_MOST_WORDS = 16
"""In a phrase; more could keep committed words back for long."""
_LONGEST_S = 0.1
"""Of the processor's time, for an expression and what was said; sensible ones take microseconds."""
_ALL = "all"
_FIRST_WIDE = "\u2e80"
"""From this character on, most scripts have no blanks between words."""

log = logging.getLogger(__name__)


class _Expression(NamedTuple):
    pattern: regex.Pattern[str]
    n_words: int
    replacement: str


@dataclass(slots=True)
class _LanguageRules:
    """The rules of one language: `beginnings` are of phrases that go on."""

    phrases: dict[str, str] = field(default_factory=dict)
    expressions: list[_Expression] = field(default_factory=list)
    beginnings: set[str] = field(default_factory=set)

    @property
    def takes_back(self) -> bool:
        return "{scratch}" in self.phrases.values()

    def add(self, phrase: str, replacement: str) -> None:
        if len(phrase) > 2 and phrase[0] == phrase[-1] == "/":
            pattern = regex.compile(phrase[1:-1], regex.IGNORECASE)
            n_words = 1 + phrase.count(" ") + phrase.count(r"\s")
            regex.sub(f"(?:{phrase[1:-1]})|", replacement, "")  # raises for an unknown group
            self.expressions.insert(0, _Expression(pattern, n_words, replacement))
            return
        said = " ".join(map(_bare, phrase.split()))
        self.phrases[said] = replacement
        ends = (at for at, char in enumerate(said) if char == " " or char >= _FIRST_WIDE)
        self.beginnings.update(said[:at] for at in ends if at)


@dataclass(frozen=True, slots=True)
class Replacements:
    """What to replace, by the code of the language."""

    tables: Mapping[str, _LanguageRules]

    def of(self, language: str) -> _LanguageRules:
        """Return the rules for a language."""
        return self.tables.get(language) or self.tables[_ALL]

    def taken_back(self, text: str, language: str) -> tuple[int, str]:
        """Return how often a text begins with a phrase that takes words back, and its rest.

        Such a phrase stays in a caption whose words it does not concern, but those before.
        """
        tokens, table, n = list(_tokens_of(text, ())), self.of(language), 0
        while (match := _match(table, tokens)) and match[1] == "{scratch}":
            tokens, n = tokens[match[0] :], n + 1
        return n, "".join(before + said for before, said, _ in tokens).lstrip(" ") if n else text


def read_rules(texts: Iterable[str]) -> Replacements:
    """Return the rules of these texts; of two for the same phrase, the later one counts.

    Raises `ValueError` with the number of the line, and what is wrong there.
    """
    rules = [rule for text in texts for rule in _rules(text)]
    languages = {_ALL} | {language for language, _, _ in rules}
    tables = {language: _LanguageRules() for language in languages}
    for language, table in tables.items():
        for own, phrase, replacement in rules:
            if own in (_ALL, language):
                table.add(phrase, replacement)
    return Replacements(tables)


def built_in() -> str:
    """Return the spoken commands that streamd knows."""
    return files("streamd").joinpath(_BUILT_IN).read_text("utf-8")


def _rules(text: str) -> Iterator[tuple[str, str, str]]:
    language = _ALL
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if section := re.fullmatch(r"\[(\w+)\]", line):
            language = section[1]
            if language not in (_ALL, *LANGUAGES):
                raise ValueError(f"line {number}: [{language}] is no language; write [de] or [all]")
            continue
        phrase, arrow, replacement = (part.strip() for part in line.partition("=>"))
        if not (phrase and arrow):
            raise ValueError(f"line {number}: write: words => replacement")
        try:
            _check(phrase, replacement)
        except (ValueError, IndexError, regex.error) as error:
            raise ValueError(f"line {number}: {error}") from None
        yield language, phrase, replacement.replace(r"\n", "\n")


def _check(phrase: str, replacement: str) -> None:
    if phrase[0] == "/" != phrase[-1]:
        raise ValueError("a regular expression ends with a slash, too")
    if len(phrase.split()) > _MOST_WORDS:
        raise ValueError(f"a phrase has at most {_MOST_WORDS} words")
    command = replacement.removeprefix(_JOIN)
    if command[:1] == "{" and command not in _COMMANDS:
        raise ValueError(f"{replacement} is none of {', '.join((*_COMMANDS, _JOIN))}")
    _LanguageRules().add(phrase, replacement.replace(r"\n", "\n"))
    if not any(map(str.isalnum, phrase)):
        raise ValueError("a phrase needs a letter or a digit")


class _SpokenToken(NamedTuple):
    """What stands before a word, the word with its marks, and its times if they are known."""

    before: str
    said: str
    word: TimedWord | None


def _tokens_of(text: str, words: Sequence[TimedWord]) -> Iterator[_SpokenToken]:
    """Cut a text into its words; into what blanks separate if the words are not those of it."""
    tokens, at = [], 0
    for word in words:
        start = text.find(word.text, at)
        if start < 0 or text[at:start].strip():
            break
        tokens.append(_SpokenToken(text[at:start], word.text, word))
        at = start + len(word.text)
    if len(tokens) == len(words) and not text[at:].strip():
        return iter(tokens)
    return (_SpokenToken(found[1], found[2], None) for found in re.finditer(r"(\s*)(\S+)", text))


def _bare(said: str) -> str:
    """Return a word as it is compared: marks and capitals of a partial may change."""
    return _letters(said).casefold()


def _letters(said: str) -> str:
    """Return a word without its marks."""
    start, end = _edges(said)
    return said[start:end].replace("’", "'")


def _edges(said: str) -> tuple[int, int]:
    """Return where the letters of a word begin and end; all of it if it has none."""
    places = [at for at, char in enumerate(said) if category(char)[0] not in "PZC"]
    return (places[0], places[-1] + 1) if places else (0, len(said))


def _beginnings(tokens: Sequence[_SpokenToken]) -> Iterator[tuple[int, str]]:
    """Yield what the first token says, the first two and so on, as phrases are kept."""
    said = ""
    for n, token in enumerate(tokens, 1):
        said += (" " if n > 1 and token.before else "") + _bare(token.said)
        yield n, said


def _match(table: _LanguageRules, tokens: Sequence[_SpokenToken]) -> tuple[int, str] | None:
    """Return how many of the tokens the longest phrase takes that they begin with, and what for."""
    found = None
    for n, said in _beginnings(tokens[: _MOST_WORDS * 4]):
        if (meant := table.phrases.get(said)) is not None:
            found = n, meant
        if said not in table.beginnings:
            break
    if found:
        return found
    for each in tuple(table.expressions):
        for n in range(min(each.n_words, len(tokens)), 0, -1):
            text = " ".join(_letters(token.said) for token in tokens[:n])
            try:
                same = each.pattern.fullmatch(text, timeout=_LONGEST_S)
            except TimeoutError:
                table.expressions.remove(each)
                log.warning("--replace: /%s/ takes too long: it is left out", each.pattern.pattern)
                break
            if same:
                return n, same.expand(each.replacement)
    return None


def _is_open(table: _LanguageRules, tokens: Sequence[_SpokenToken]) -> bool:
    """Whether words that are not known yet may change what these tokens mean."""
    if (match := _match(table, tokens)) and match[1] == "{literal}":
        tokens = tokens[match[0] :]
    if all(said in table.beginnings for _, said in _beginnings(tokens)):
        return True
    return any(each.n_words > len(tokens) for each in table.expressions)


class _WrittenWord:
    """A word that is written, what stands before it, and whether the mark behind it was said."""

    def __init__(self, before: str, text: str, words: Sequence[TimedWord | None]) -> None:
        self.before, self.text, self.words = before, text, [word for word in words if word]
        self.has_said_mark = False


class Rewriter:
    """Applies rules to the captions of one session, in order; keeps whether all is in capitals."""

    def __init__(self, rules: Replacements) -> None:
        self._rules = rules
        self._in_capitals: dict[int, bool] = {}  # of each channel, after its last final

    def rewritten(self, event: CaptionT, language: str) -> CaptionT:
        """Return a caption with what is meant; `language` is that of a partial."""
        spoken = event.language if isinstance(event, Final) else language
        table, channel = self._rules.of(spoken), event.channel or 0
        tokens = list(_tokens_of(event.text, event.words))
        stable = event.stable if isinstance(event, Partial) else len(event.text)
        writing = _Writing(table, in_capitals=self._in_capitals.get(channel, False))
        writing.write(tokens, 0 if table.takes_back else _count(tokens, stable))
        text, words, settled = writing.result()
        if isinstance(event, Final):
            self._in_capitals[channel] = writing.in_capitals
            return replace(event, text=text, words=tuple(words))
        return replace(event, text=text, words=tuple(words), stable=min(settled, stable, len(text)))


def _count(tokens: Sequence[_SpokenToken], stable: int) -> int:
    """Return how many tokens are in the first `stable` characters."""
    end = n = 0
    for n, token in enumerate(tokens):
        end += len(token.before + token.said)
        if end > stable:
            return n
    return len(tokens)


class _Writing:
    """Writes one caption."""

    def __init__(self, table: _LanguageRules, *, in_capitals: bool) -> None:
        self._table, self.in_capitals = table, in_capitals
        self._pieces: list[_WrittenWord] = []
        self._n_lasting = 0  # pieces at the beginning that are about the final before
        self._n_settled: int | None = None  # pieces, if some words are not settled
        self._before: str | None = None  # the next piece, if not what was before its word
        self._next_case = ""  # of the next piece

    def write(self, tokens: Sequence[_SpokenToken], n_stable: int) -> None:
        """Write the tokens; the first `n_stable` are committed."""
        at = 0
        while at < len(tokens):
            if self._n_settled is None and (
                at >= n_stable or _is_open(self._table, tokens[at:n_stable])
            ):
                self._n_settled = len(self._pieces)
            n, meant = _match(self._table, tokens[at:]) or (1, None)
            if meant == "{literal}":
                at, (n, meant) = self._after_literal(tokens, at, n)
            part = tokens[at : at + n]
            at += n
            if meant is None or not self._do(part, meant):
                for token in part:
                    self._word(token.before, token.said, [token])
                if meant is not None:
                    self._n_lasting = len(self._pieces)

    def _after_literal(
        self, tokens: Sequence[_SpokenToken], at: int, n: int
    ) -> tuple[int, tuple[int, str | None]]:
        """Return where the phrase begins that is as it was said: a word if none follows."""
        following = _match(self._table, tokens[at + n :])
        return (at + n, (following[0], None)) if following else (at, (n, None))

    def _do(self, part: Sequence[_SpokenToken], meant: str) -> bool:
        """Do what a phrase means; return whether it means anything here."""
        if meant == "{scratch}":
            return self._take_back()
        if meant in ("{caps on}", "{caps off}"):
            self.in_capitals = meant == "{caps on}"
        elif meant in ("{capital}", "{caps}"):
            self._next_case = meant
        elif meant.isspace():
            self._strip(",;:")
            self._before, self._next_case = meant, "{capital}"
        elif meant:
            self._text(part, meant)
        else:
            self._end_with(_marks_behind(part[-1].said))
        return True

    def _take_back(self) -> bool:
        """Remove the last sentence; return whether there was anything."""
        if len(self._pieces) == self._n_lasting:
            return False
        first = self._pieces.pop()
        while len(self._pieces) > self._n_lasting and not ends_sentence(self._pieces[-1].text):
            first = self._pieces.pop()
        self._before = None
        self._next_case = "{capital}" if _letters(first.text)[:1].isupper() else ""
        return True

    def _text(self, part: Sequence[_SpokenToken], meant: str) -> None:
        joins, text = meant.startswith(_JOIN), meant.removeprefix(_JOIN)
        is_mark = not any(map(str.isalnum, text))
        start, _ = _edges(part[0].said)
        opening, behind = part[0].said[:start], _marks_behind(part[-1].said)
        kind = category(text[0])
        if is_mark and not joins and kind in ("Po", "Pe", "Pf") and text[0] not in "¿¡&":
            self._mark(text, ends=ends_sentence(behind), part=part)
        elif joins or (kind == "Po" and not is_mark and text[0] not in "¿¡&@#"):
            self._strip(".,;:?!")
            self._word("", text if is_mark else text + behind, part)
        elif is_mark:
            self._word(part[0].before, text, part)
        else:
            said = part[0].said[start : start + 2]
            is_capital = said[:1].isupper() and not said[1:].isupper() and text == text.lower()
            self._word(
                part[0].before,
                opening + (text[:1].upper() + text[1:] if is_capital else text) + behind,
                part,
            )
        if joins or (is_mark and (kind in ("Ps", "Pi") or text[0] in "¿¡")):
            self._before = ""

    def _mark(self, mark: str, *, ends: bool, part: Sequence[_SpokenToken]) -> None:
        """Write a mark behind the word before it, in place of the model's own."""
        closes = category(mark[0]) != "Po"
        if self._pieces and self._before is None:
            self._strip("" if closes else ".,;:?!…")
            self._pieces[-1].text += mark
            self._pieces[-1].has_said_mark = True
        else:
            self._word("", mark, part)
        if ends_sentence(mark):
            self._next_case = "{capital}"
        elif ends and not closes:  # the model took it for a sentence
            self._next_case = "{small}"

    def _end_with(self, marks: str) -> None:
        if self._pieces and ends_sentence(marks) and not ends_sentence(self._pieces[-1].text):
            self._strip(",;:")
            self._pieces[-1].text += marks

    def _strip(self, marks: str) -> None:
        """Remove the model's own marks behind the last word."""
        if self._pieces and not self._pieces[-1].has_said_mark:
            last = self._pieces[-1]
            last.text = last.text.rstrip(marks) or last.text

    def _word(self, before: str, said: str, part: Sequence[_SpokenToken]) -> None:
        if self._before is not None:
            before, self._before = self._before, None
        elif not self._pieces:
            before = ""
        if self.in_capitals or self._next_case == "{caps}":
            said = said.upper()
        elif self._next_case:
            said = _with_case(said, self._next_case)
        self._next_case = ""
        self._pieces.append(_WrittenWord(before, said, [token.word for token in part]))

    def result(self) -> tuple[str, list[TimedWord], int]:
        """Return the text, its words, and how many characters of it are settled."""
        n_settled = len(self._pieces) if self._n_settled is None else self._n_settled
        text, words, settled = "", [], 0
        for n, piece in enumerate(self._pieces, 1):
            text += piece.before + piece.text
            if n <= n_settled:
                settled = len(text)
            if piece.words:
                first, last, is_final = piece.words[0], piece.words[-1], n <= n_settled
                prob = rounded(mean_prob(word.prob for word in piece.words))
                words.append(
                    replace(first, text=piece.text, end_ms=last.end_ms, prob=prob, final=is_final)
                )
        return text + (self._before or ""), words, settled


def _marks_behind(said: str) -> str:
    return said[_edges(said)[1] :]


def _with_case(said: str, case: str) -> str:
    at, _ = _edges(said)
    first, rest = said[at : at + 1], said[at + 1 :]
    if case == "{capital}":
        return said[:at] + first.upper() + rest
    is_name = rest[:1].isupper() or _bare(said) in {"i", "i'm", "i'll", "i've", "i'd"}
    return said if is_name else said[:at] + first.lower() + rest
