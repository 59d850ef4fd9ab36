"""Marks and capitals of words that are known already.

Whisper writes in one of two styles, with marks and capitals or without, and keeps to the one that
it has begun with. A stream begins with a second of audio, in which the style is chance, and forces
its words on every later window, so all of an utterance may lack them. Here the words stay, and only
what stands between them is decoded anew: at each place the most probable of the marks, or none, and
each word with or without a capital. Each choice is given to the decoder for the next one, so that
the first mark brings the others. The prompt is a text that has them: it can bring no words here, as
it would where words are free (a constant prompt makes a crowd speak). The words are run in one
pass, which is a draft: it is right up to the first place where something else is more probable, and
from there the rest is run again.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from streamd.language import SPACELESS
from streamd.types import Word
from streamd.whisper.engine import Decoder, alone
from streamd.whisper.paths import Cache, Path
from streamd.whisper.tokenizer import Tokenizer

_MARKS = (",", ".", "?", "!")
_KEPT = 1.0
"""By how much (nats) another mark must be more probable than the one that is there. It keeps 24
instead of 21 of 49 commas of read speech, and fewer marks change that were shown; of 195 ends of
sentences in conversation it finds 163 instead of 172."""
_BEFORE = {"en": " Well, yes. No, I don't think so. Do you?"}
"""What stands before the words, by language. Side by side in one run, live, tiny.en: in four scenes
of conversation 247 instead of 234 of 331 sentences keep their end, of read speech 25 instead of 22
of 28, and as many commas (30 of 52); base 140 instead of 139 of 191. It helps where a text has no
marks at all. No other language was measured."""
_N_WORDS = 24
"""How many words are run at once: what is behind a change is run in vain. With 16, marks take a
tenth to a fifth more CPU time; the text is the same."""
_Tokens = tuple[int, ...]


def punctuated(
    words: Sequence[Word],
    *,
    language: str,
    tokenizer: Tokenizer,
    new_decoder: Callable[[int], Decoder],
    spelled: Container[str] = (),
) -> list[Word]:
    """The same words with the marks and capitals that are most probable.

    `words` are all that is said in the window. `new_decoder` makes a decoder with so many slots for
    its features. Words that are `spelled` so keep their capitals. All stay as they are in languages
    that are written without blanks, and where they do not fit into the text context.
    """
    if not words or tokenizer.written(language) in SPACELESS:
        return list(words)
    others = [_other_case(word, spelled) for word in words]
    tokenizer.encode_each([*filter(None, others), *_MARKS])  # together: it knows them from then on
    spellings = [
        _spelling(word, other, tokenizer) for word, other in zip(words, others, strict=True)
    ]
    for at, (word, following) in enumerate(pairwise(words)):
        is_in_number = _is_digit(word) and _is_digit(following)  # maybe: "9 0 2 1 0"
        if not word.n_mark and (is_in_number or following.text[:1] == "-"):
            spellings[at].marks.clear()
            spellings[at].marks[()] = ""
    start = (*_before(tokenizer, language), tokenizer.notimestamps)
    n_most = len(start) + sum(spelling.n_most for spelling in spellings)
    decoder = new_decoder(n_most)
    if n_most > decoder.n_text_ctx:
        return list(words)
    chosen = _choose(spellings, start, Cache(decoder), tokenizer.eot)
    return [
        replace(word, text=text, tokens=tokens, n_mark=n_mark)
        for word, (text, tokens, n_mark) in zip(words, chosen, strict=True)
    ]


def _is_digit(word: Word) -> bool:
    bare = word.text[:-1] if word.n_mark else word.text
    return len(bare.lstrip()) == 1 and bare.lstrip().isdecimal()


def _before(tokenizer: Tokenizer, language: str) -> _Tokens:
    text = _BEFORE.get(language, "")
    prompt = (tokenizer.startofprev, *tokenizer.encode(text)) if text else ()
    return (*prompt, *tokenizer.sot_sequence_for(language))


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A word and the mark behind it: the ways to write them, each with its tokens.

    `forms` are the word without its mark; `marks` has no mark, too, with no tokens. The first of
    each is how it was written.
    """

    forms: dict[_Tokens, str]
    marks: dict[_Tokens, str]

    @property
    def n_most(self) -> int:
        return max(map(len, self.forms)) + max(map(len, self.marks))


def _bare(word: Word) -> str:
    return word.text[:-1] if word.n_mark else word.text


def _other_case(word: Word, spelled: Container[str]) -> str:
    """The word without its mark, its first letter in the other case; empty if that may not be."""
    bare = _bare(word)
    first = next((i for i, letter in enumerate(bare) if letter.isalpha()), len(bare))
    is_plain = bare[first + 1 :] == bare[first + 1 :].lower()  # not "iPhone"
    if not is_plain or bare[first:] in spelled:
        return ""
    return bare[:first] + bare[first : first + 1].swapcase() + bare[first + 1 :]


def _spelling(word: Word, other: str, tokenizer: Tokenizer) -> _Spelling:
    n, bare = len(word.tokens) - word.n_mark, _bare(word)
    forms, marks = {word.tokens[:n]: bare}, {word.tokens[n:]: word.text[len(bare) :]}
    if other:
        forms.setdefault(tokenizer.encode(other), other)
    if word.n_mark or bare[-1:].isalnum():
        marks.setdefault((), "")
        for each in _MARKS:
            marks.setdefault(tokenizer.encode(each), each)
    return _Spelling(forms, marks)


def _choose(
    spellings: Sequence[_Spelling], start: Sequence[int], cache: Cache, eot: int
) -> list[tuple[str, _Tokens, int]]:
    """For each word its text, its tokens, and how many of them are its mark's."""
    options = [
        tokens for spelling in spellings for tokens in ([*spelling.forms], [*spelling.marks])
    ]
    chosen = [each[0] for each in options]
    firsts = sorted({tokens[0] for each in options for tokens in each if tokens} | {eot})
    path, pending, at = Path(), tuple(start), 0
    while at < len(chosen):
        # The last choice is of a word, which has tokens for the next pass to begin with.
        end = min((at | 1) + 2 * _N_WORDS, len(chosen))
        guess = [token for tokens in chosen[at : end - 1] for token in tokens]
        n = len(pending)
        want = range(n - 1, n + len(guess))
        run, logits = alone(cache.follow(path, (*pending, *guess), want, firsts))
        n_right, pending = 0, ()
        is_right = True
        while at < len(chosen) and not pending:
            row = dict(zip(firsts, logits[n_right].tolist(), strict=True))
            best = _best(options, at, row, eot)
            is_right = is_right and best == chosen[at] and at < end - 1
            chosen[at], at = best, at + 1
            n_right += len(best) if is_right else 0
            pending = () if is_right else best
        path = run.cut(len(path.slots) + n + n_right)
        cache.keep([path])
    pairs = zip(spellings, chosen[::2], chosen[1::2], strict=True)
    return [
        (
            spelling.forms[form] + spelling.marks[mark],
            form + mark,
            len(mark) if spelling.marks[mark] else 0,
        )
        for spelling, form, mark in pairs
    ]


def _best(
    options: Sequence[Sequence[_Tokens]], at: int, row: Mapping[int, float], eot: int
) -> _Tokens:
    """The most probable of the options by the first token of each; no token: what comes next.

    `row` has the logits of all that may come first.
    """
    is_mark, written = at % 2 == 1, options[at][0]

    def score(tokens: _Tokens) -> float:
        if tokens:
            return row[tokens[0]] + (_KEPT if is_mark and tokens == written else 0.0)
        following = options[at + 1] if at + 1 < len(options) else [(eot,)]
        return max(row[each[0]] for each in following)

    return max(options[at], key=score)
