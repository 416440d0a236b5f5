"""What a warp's loads and stores touch: lines and sectors of caches, banks of shared memory.

An access is aligned to its width, so that it lies in one sector. A cache looks up a line once for
each access of a warp that touches it.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import and_

import numpy as np

from gpupool.errors import GpupoolError
from gpupool.planner.banks import NOWHERE, first

from .lanes import Array, Lanes, Value

_PLACE = re.compile(r"(?:desc\[U?R\d+\])?\[(.*)\]")


def address(lanes: Lanes, operand: str) -> Value:
    """Return the address that an operand names: a sum of numbers and registers, maybe scaled.

    >>> from .lanes import EVERY, TRUE, integer
    >>> lanes = Lanes(np.arange(32), (np.zeros(32), np.zeros(32)), b"")
    >>> lanes.write("R2", integer(7), EVERY, TRUE)
    >>> int(address(lanes, "[R2.X16+0x200]").bits[0])
    624
    """
    match = _PLACE.fullmatch(operand)
    if match is None:
        raise GpupoolError(f"the simulation does not know the address {operand}")
    terms = [_term(lanes, term.strip()) for term in match[1].split("+")]
    total = sum((term.bits for term in terms), np.zeros(1, np.uint64))
    return Value(total, reduce(and_, (term.known for term in terms)))


def _term(lanes: Lanes, text: str) -> Value:
    name, *modifiers = text.split(".")
    value = lanes.pair(name) if "64" in modifiers or name.startswith("-") else lanes.read(name)
    scale = next((int(modifier[1:]) for modifier in modifiers if modifier[0] == "X"), 1)
    return Value(value.bits * np.uint64(scale), value.known)


def distinct(addresses: Array, active: Array, unit: int) -> int:
    """Return how many different units of so many bytes the active lanes of each row touch, in all.

    >>> distinct(np.array([[3, 3, 50, 99]]), np.array([[True, True, True, False]]), 32)
    2
    """
    places = np.where(active, addresses.astype(np.uint64) // np.uint64(unit), NOWHERE)
    return int(first(np.sort(places, axis=1)).sum())
