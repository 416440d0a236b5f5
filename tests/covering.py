"""Which of the combinations that take minutes to compile the suite tests, unless it is thorough.

    HYPOTHESIS_PROFILE=thorough pytest

tests all, and lets Hypothesis draw more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def covered(*choices: int, of: int = 2) -> bool:
    """Whether a combination is one of those tested, by the number of each choice.

    They are one ``of`` so many: those whose sum it divides. Whatever all choices but one are, one
    of any ``of`` neighbouring numbers of the last one makes such a sum, so that of n choices with
    as many numbers each n - 1 meet: an orthogonal array.
    """
    return THOROUGH or sum(choices) % of == 0


def covering(*choices: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Give those of the product of some choices that are tested."""
    for numbered in product(*map(enumerate, choices)):
        numbers, row = zip(*numbered, strict=True)
        if covered(*numbers):
            yield row
