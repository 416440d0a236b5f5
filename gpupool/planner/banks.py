"""How often shared memory gives or takes words for an access of a warp."""

from __future__ import annotations

import numpy as np

from gpupool.arrays import Array
from gpupool.planner.launches import WARP, round_up

BANKS, WORD_BYTES = 32, 4
"""Banks of shared memory, each of which gives one word in a turn; narrower loads take as long."""

NOWHERE = np.uint64(2**64 - 1)
"""Where lanes that take no part read."""

ALL = np.array(True)
"""Of the threads all."""


def turns(addresses: Array, active: Array, width: int) -> Array:
    """Return the turns of each warp, whose lanes read or write ``width`` bytes, if they are active.

    In a turn as many lanes are served as take a word of every bank, and those of the same words.
    Addresses are multiples of the width: lanes share all the words of an access or none.

    >>> lanes = np.arange(32)[None]
    >>> [int(turns(lanes * step, lanes >= 0, 4)[0]) for step in (4, 8, 56, 128)]
    [1, 2, 2, 32]
    >>> int(turns(lanes * 16, lanes >= 0, 16)[0])
    4
    """
    words = max(width // WORD_BYTES, 1)
    together = WARP // words  # lanes in a turn, and groups of banks that give one lane its words
    somewhere = addresses.astype(np.uint64) // np.uint64(words * WORD_BYTES)
    places = np.where(active, somewhere, NOWHERE).reshape(-1, together)
    ordered = np.sort(places, axis=1)
    group = (ordered & np.uint64(together - 1)).view(np.int64)
    of_all = np.arange(len(ordered))[:, None] * together + group
    taken = np.bincount(of_all[first(ordered)], minlength=ordered.size)
    served: Array = taken.reshape(-1, together).max(axis=1).reshape(len(active), -1).sum(axis=1)
    return served


def first(ordered: Array) -> Array:
    """Return which places of each row, in order, are somewhere and not where the one before is."""
    found: Array = ordered != NOWHERE
    found[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return found


def mean_turns(places: Array, width: int, active: Array = ALL) -> float:
    """Return the turns of a warp, in the mean, whose active threads read or write there."""
    threads = places.shape[-1]
    lanes = np.arange(round_up(threads, WARP)).reshape(-1, WARP)
    of_lanes = ..., np.minimum(lanes, threads - 1)
    there = np.broadcast_to(active, places.shape)[of_lanes] & (lanes < threads)
    return float(turns(places[of_lanes].reshape(-1, WARP), there.reshape(-1, WARP), width).mean())
