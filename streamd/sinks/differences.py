"""Which words of one transcript differ from those of another one of the same sound."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from unicodedata import category


@dataclass(frozen=True, slots=True)
class Difference:
    """Words in place of others; one side may be empty."""

    before: str
    after: str

    @property
    def n_words(self) -> int:
        """Words that differ: the longer side."""
        return max(len(self.before.split()), len(self.after.split()))

    def __str__(self) -> str:
        return f"{self.before or '(nothing)'} -> {self.after or '(nothing)'}"


def differences(before: str, after: str) -> list[Difference]:
    """Return what differs, in order, regardless of marks and capitals."""
    return list(_different(before.split(), after.split()))


def _different(before: Sequence[str], after: Sequence[str]) -> Iterator[Difference]:
    bare = [[_bare(word) for word in words] for words in (before, after)]
    # Without autojunk, the commonest words count, too: 20,000 words took 1.3 CPU seconds.
    matcher = SequenceMatcher(None, bare[0], bare[1], autojunk=False)
    for kind, begin, end, start, stop in matcher.get_opcodes():
        if kind != "equal":
            yield Difference(" ".join(before[begin:end]), " ".join(after[start:stop]))


def _bare(word: str) -> str:
    letters = "".join(each for each in word if not category(each).startswith("P"))
    return (letters or word).casefold()
