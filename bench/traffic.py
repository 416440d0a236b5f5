"""What a warp's loads and stores touch: lines and sectors of caches, banks of shared memory.

An access is aligned to its width, so that it lies in one sector. A cache looks up a line once for
each access of a warp that touches it.
"""

from __future__ import annotations

import re
from functools import cache, reduce
from operator import add, and_

import numpy as np

from gpupool.arrays import Array
from gpupool.errors import GpupoolError
from gpupool.planner.banks import NOWHERE, first

from .lanes import Lanes, Value

_PLACE = re.compile(r"(?:desc\[U?R\d+\])?\[(.*)\]")


def address(lanes: Lanes, operand: str) -> Value:
    """Return the address that an operand names: a sum of numbers and registers, maybe scaled.

    >>> from .lanes import EVERY, TRUE, integer
    >>> lanes = Lanes(np.arange(32), (np.zeros(32), np.zeros(32)), b"")
    >>> lanes.write("R2", integer(7), EVERY, TRUE)
    >>> int(address(lanes, "[R2.X16+0x200]").bits[0])
    624
    """
    terms = [
        (lanes.pair(name) if wide else lanes.read(name), np.uint64(scale))
        for name, wide, scale in _terms(operand)
    ]
    total = reduce(add, (value.bits * scale for value, scale in terms))
    return Value(total, reduce(and_, (value.known for value, _ in terms)))


@cache
def _terms(operand: str) -> tuple[tuple[str, bool, int], ...]:
    """Return the registers and numbers of an address, whether they have 64 bits, and scales."""
    match = _PLACE.fullmatch(operand)
    if match is None:
        raise GpupoolError(f"the simulation does not know the address {operand}")
    found = []
    for text in match[1].split("+"):
        name, *modifiers = text.strip().split(".")
        scale = next((int(modifier[1:]) for modifier in modifiers if modifier[0] == "X"), 1)
        found.append((name, "64" in modifiers or name.startswith("-"), scale))
    return tuple(found)


def distinct(addresses: Array, active: Array, unit: int) -> int:
    """Return how many different units of so many bytes the active lanes of each row touch, in all.

    >>> distinct(np.array([[3, 3, 50, 99]]), np.array([[True, True, True, False]]), 32)
    2
    """
    places = np.where(active, addresses.astype(np.uint64) // np.uint64(unit), NOWHERE)
    return int(first(np.sort(places, axis=1)).sum())
