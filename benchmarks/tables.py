"""Tables in Markdown."""

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A table with a head."""
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in cells)
