"""Aligned text and Markdown from the same rows of text."""

from __future__ import annotations

import re
from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines whose columns line up: numbers to the right, words to the left.

    >>> print(aligned(["id", "us"], [["W01", "59.5"], ["W10", "101.2"]]))
    id      us
    W01   59.5
    W10  101.2
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    right = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["id", "us"], [["W01", "59.5"]]))
    | id | us |
    |---|---|
    | W01 | 59.5 |
    """
    lines = [head, ["---"] * len(head), *rows]
    texts = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]
    texts[1] = "|" + "---|" * len(head)
    return "\n".join(texts)


def _is_number(cell: str) -> bool:
    return not cell or re.fullmatch(r"[-+\d.]+%?", cell) is not None


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with some significant digits, nothing for none.

    >>> number(0.93456), number(25.123), number(36758679.0), number(None)
    ('0.935', '25.1', '36758679', '')
    """
    if value is None:
        return ""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".")
