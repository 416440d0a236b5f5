"""How often shared memory gives or takes words for an access of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupool.planner.launches import WARP

BANKS, WORD_BYTES = 32, 4
"""Banks of shared memory, each of which gives one word in a turn; narrower loads take as long."""

NOWHERE = np.uint64(2**64 - 1)
"""Where lanes that take no part read."""

Array = np.ndarray[Any, Any]


def turns(addresses: Array, active: Array, width: int) -> Array:
    """Return the turns of each warp, whose lanes read or write ``width`` bytes, if they are active.

    In a turn as many lanes are served as take a word of every bank, and those of the same words.

    >>> lanes = np.arange(32)[None]
    >>> [int(turns(lanes * step, lanes >= 0, 4)[0]) for step in (4, 8, 56, 128)]
    [1, 2, 2, 32]
    >>> int(turns(lanes * 16, lanes >= 0, 16)[0])
    4
    """
    words = max(width // WORD_BYTES, 1)
    together = WARP // words
    of_lanes = (addresses.astype(np.uint64) // np.uint64(WORD_BYTES)).reshape(-1, together, 1)
    places = of_lanes + np.arange(words, dtype=np.uint64)
    somewhere = np.where(active.reshape(-1, together, 1), places, NOWHERE)
    ordered = np.sort(somewhere.reshape(-1, WARP), axis=1)
    bank = np.arange(len(ordered))[:, None] * BANKS + (ordered % BANKS).astype(np.int64)
    taken = np.bincount(bank[first(ordered)], minlength=len(ordered) * BANKS)
    served: Array = taken.reshape(-1, BANKS).max(axis=1).reshape(len(active), -1).sum(axis=1)
    return served


def first(ordered: Array) -> Array:
    """Return which places of each row, in order, are somewhere and not where the one before is."""
    found: Array = ordered != NOWHERE
    found[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return found
