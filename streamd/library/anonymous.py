"""A transcript without names and numbers, by rule: a help for whoever reads it over, no guarantee.

Names are those of speakers, the user's vocabulary, what follows a title, and what has a capital
inside a sentence. In English, what begins a sentence is one if the vocabulary of GPT-2, whose
tokens stand in the order of their frequency, has it with a capital alone, or long before it has it
without: " Bob" is token 5811, " bob" 29202, " the" 262, " The" 383. German writes all nouns with
capitals, and other scripts have none: there, names are only those that are listed or have a title.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from streamd.events import Final, Item, TimedWord, aligned
from streamd.language import SPACELESS, ends_sentence
from streamd.models.model import openai_vocabulary
from streamd.models.text_tokens import TextTokens
from streamd.sinks.text import as_cell
from streamd.sinks.transcripts import in_time

_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_NUMBER = re.compile(r"\d[\w.,:/–-]*\w|\d")
_ENDING = re.compile(r"(?:['’](?:s|ll|d|re|ve|m)|n['’]t)$")
"""What is written to a name in English."""
_BEFORE_NAMES = (
    "mr mrs ms miss dr prof professor herr frau fräulein monsieur madame señor señora signor "
    "signora captain sir lady lord"
)
_CAPITALS = (
    "i i'm i'll i've i'd ok okay oh hmm mmm heh aha gee god monday tuesday wednesday thursday "
    "friday saturday sunday january february march april may june july august september october "
    "november december"
)
_TITLES = frozenset(_BEFORE_NAMES.split())
_NO_NAMES = _TITLES.union(_CAPITALS.split())
"""In lower case: what has a capital inside a sentence, and tells nobody's name."""
_NOUNS_HAVE_CAPITALS = frozenset({"de", "lb"})
_RATIO = 2
"""How much earlier a token with a capital is than the one without: " Yeah" is, too, by a tenth."""
_FUNCTION_WORDS = 400
"""Tokens before which there are no names in lower case: " you" is 345, " will" 481. Such a word has
a capital inside a sentence where a full stop was not heard."""
_ENGLISH_TOKENS = 51_864

_Name = tuple[str, ...]


class Replaced(NamedTuple):
    """What was said, what stands in its place, and how often."""

    label: str
    was: str
    times: int


class _Spelled(NamedTuple):
    """A word of a text: its place, without what is written to it, and whether a name may begin."""

    text: str
    start: int
    end: int
    is_first: bool  # of a sentence
    is_titled: bool
    is_next: bool  # only a blank is before it and after another word


def anonymised(
    said: Sequence[Item], names: Mapping[int, str], phrases: Sequence[str] = ()
) -> tuple[list[Item], dict[int, str], list[Replaced]]:
    """Return a transcript and its speakers' names with labels in place of names and numbers.

    The same name has the same label everywhere, and so has the first or last name alone. `phrases`
    are names, too. What was replaced comes last: whoever has it knows who is who.
    """
    labels: dict[_Name, str] = {}
    for number, name in sorted(names.items()):
        _label(labels, _parts(name), f"Person {number}")
    for phrase in phrases:
        if not phrase.islower():
            _label(labels, _parts(phrase), f"Name {_count(labels, 'Name') + 1}")
    for found in _names(said):
        _label(labels, found, f"Name {_count(labels, 'Name') + 1}")
    numbers: dict[str, str] = {}
    times: Counter[tuple[str, str]] = Counter()
    text = [
        _without(each, [*_spans(each, labels, numbers, times)]) if isinstance(each, Final) else each
        for each in said
    ]
    speakers = {number: f"Person {number}" for number in names}
    for number, name in names.items():
        times[f"Person {number}", name] += 0
    listed = [Replaced(label, was, n) for (label, was), n in sorted(times.items(), key=_in_order)]
    return text, speakers, listed


def as_csv(listed: Sequence[Replaced]) -> str:
    """Return the list of what was replaced."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("label", "was", "times"))
    writer.writerows((each.label, as_cell(each.was), each.times) for each in listed)
    return file.getvalue()


def _in_order(item: tuple[tuple[str, str], int]) -> tuple[str, int, str]:
    (label, was), _ = item
    kind, _, number = label.partition(" ")
    return kind, int(number), was


def _count(labels: Mapping[_Name, str], kind: str) -> int:
    return len({label for label in labels.values() if label.startswith(kind)})


def _parts(name: str) -> _Name:
    """Return the words of a name, or itself where a script has no blanks."""
    return tuple(_ENDING.sub("", found[0]) for found in _WORD.finditer(name)) or (name,)


def _label(labels: dict[_Name, str], name: _Name, label: str) -> None:
    """Give a name a label, unless it has one, or is a part of one that has."""
    if not "".join(name).strip() or name in labels:
        return
    known = labels.get(name[:1]) if len(name) > 1 else None
    labels[name] = known or label
    for part in name:
        if len(part) > 1 and part.lower() not in _NO_NAMES and not part.islower():
            labels.setdefault((part,), labels[name])


def _words(text: str) -> Iterator[_Spelled]:
    last, at = "", 0
    for found in _WORD.finditer(text):
        bare, gap = _ENDING.sub("", found[0]), text[at : found.start()]
        is_titled = last.lower() in _TITLES and gap.strip(" .") == ""
        is_first = not is_titled and _begins(text[: found.start()], gap)
        end = found.start() + len(bare)
        yield _Spelled(bare, found.start(), end, is_first, is_titled, gap == " ")
        last, at = bare, found.end()


def _begins(lead: str, gap: str) -> bool:
    """Whether a word is the first of a sentence or a quotation, after a text and the last gap.

    The first one of a final is: Whisper begins what it writes with a capital.
    """
    lead = lead.rstrip()
    return not lead or ends_sentence(lead) or bool(re.search(r"[:…♪\"“„«‘(\[—–]|\.\.|- ", gap))


def _names(said: Sequence[Item]) -> Iterator[_Name]:
    """Yield the names that are found by their capitals, a run of them as one."""
    for final in (each for each in said if isinstance(each, Final)):
        run: list[str] = []
        for word in _words(final.text):
            goes_on = word.is_next and not word.is_first
            if run and not (goes_on and _is_name(word, final.language)):
                yield tuple(run)
                run = []
            if _is_name(word, final.language):
                run.append(word.text)
        if run:
            yield tuple(run)


def _is_name(word: _Spelled, language: str) -> bool:
    text = word.text
    if not text[0].isupper() or len(text) == 1 or text.isupper() or text.lower() in _NO_NAMES:
        return False
    if language in _NOUNS_HAVE_CAPITALS:
        return word.is_titled
    if language == "en":
        return _is_name_in_english(text, is_first=word.is_first)
    return not word.is_first


@cache
def _is_name_in_english(text: str, *, is_first: bool) -> bool:
    with_capital, without = f" {text}".encode(), f" {text.lower()}".encode()
    ranks = _english().among((with_capital, without))
    common = ranks.get(without)
    if common is None:
        return True
    if not is_first:
        return common >= _FUNCTION_WORDS
    return ranks.get(with_capital, common) * _RATIO < common


@cache
def _english() -> TextTokens:
    return openai_vocabulary(Path("gpt2"), _ENGLISH_TOKENS)


def _spans(
    final: Final,
    labels: Mapping[_Name, str],
    numbers: dict[str, str],
    times: Counter[tuple[str, str]],
) -> Iterator[tuple[int, int, str]]:
    """Yield what is replaced in a text: from, to, and by what; count it."""
    text = final.text
    for found in _pattern(labels, final.language).finditer(text):
        was = found[0]
        label = labels.get(_parts(was)) if not was[0].isdigit() else None
        label = label or numbers.setdefault(was, f"Number {len(numbers) + 1}")
        times[label, was] += 1
        yield found.start(), found.end(), label


def _pattern(labels: Mapping[_Name, str], language: str) -> re.Pattern[str]:
    edge = "" if language in SPACELESS else r"\b"
    longest = sorted(labels, key=lambda name: len("".join(name)), reverse=True)
    names = (r"[\s-]+".join(map(re.escape, name)) for name in longest)
    return _compiled((rf"{edge}(?:{'|'.join(names)}){edge}|" if labels else "") + _NUMBER.pattern)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _without(final: Final, spans: Sequence[tuple[int, int, str]]) -> Final:
    """Return a final with labels at these places, whose words have the times of those before.

    Words that are not where the text has them are left out: they would tell the names.
    """
    placed = [*aligned(final.text, final.words)]
    if len(placed) < len(final.words):
        placed = []
    words: list[TimedWord] = []
    done = 0  # characters of the text that are in words
    for start, end, word in placed:
        if start < done:
            continue
        until, until_ms = end, word.end_ms
        for _, to, _ in (span for span in spans if span[0] < end and span[1] > start):
            until = max(until, to)
        for first, last, other in placed:
            if first < until <= last:
                until, until_ms = last, other.end_ms
        text = _with_labels(final.text, spans, start, until)
        if text == word.text:
            words.append(word)
        else:
            words += in_time(text.split(), word, word.start_ms, until_ms)
        done = until
    # Only what is named here goes on: what else is known of a final may tell names.
    return Final(
        seq=final.seq,
        seg=final.seg,
        start_ms=final.start_ms,
        end_ms=final.end_ms,
        text=_with_labels(final.text, spans, 0, len(final.text)),
        language=final.language,
        words=tuple(words),
        avg_logprob=final.avg_logprob,
        no_speech_prob=final.no_speech_prob,
    )


def _with_labels(text: str, spans: Sequence[tuple[int, int, str]], start: int, end: int) -> str:
    """Return a part of a text with its labels."""
    shown, at = "", start
    for first, last, label in spans:
        if start <= first < end:
            shown += text[at:first] + label
            at = last
    return shown + text[at:end]
