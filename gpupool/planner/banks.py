"""How often shared memory gives or takes words, and the first cache lines, for warps."""

from __future__ import annotations

from math import gcd, prod
from typing import NamedTuple

import numpy as np

from gpupool.arrays import Array
from gpupool.planner.launches import (
    LINE_BYTES,
    LOOKUP,
    SECTOR,
    SECTOR_BYTES,
    WARP,
    round_up,
)

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


class WarpAccess(NamedTuple):
    """One of all threads of a warp to memory, of ``width`` bytes each.

    So many are ``beside`` each other, each ``step`` bytes behind the one before, in rows that lie
    ``apart``. These begin anywhere that a multiple of ``row`` may.
    """

    beside: int
    step: int
    apart: int
    row: int
    width: int

    @property
    def load(self) -> float:
        """What would issue while the lines of a load are served."""
        return LOOKUP * self.touched(LINE_BYTES)

    @property
    def store(self) -> float:
        """What would issue while the lines and sectors of a store are served."""
        return LOOKUP * self.touched(LINE_BYTES) + SECTOR * self.touched(SECTOR_BYTES)

    def touched(self, unit: int) -> float:
        """Return the lines or sectors of so many bytes that it touches.

        >>> WarpAccess(32, 16, 0, 512, 16).touched(128), WarpAccess(1, 56, 56, 56, 8).touched(128)
        (4.0, 14.5625)
        >>> WarpAccess(1, 300, 300, 300, 4).touched(128), WarpAccess(5, 8, 40, 40, 8).touched(32)
        (32.0, 8.75)
        """
        rows, aligned = WARP / self.beside, gcd(self.row, unit)

        def units(length: float) -> float:
            return max(1.0, 1 + (length - aligned) / unit)

        length = (self.beside - 1) * self.step + self.width
        return min(rows * min(self.beside, units(length)), units((rows - 1) * self.apart + length))


class Accesses(NamedTuple):
    """What threads read or write at once: of each line so many bytes, at each of some offsets."""

    lines: Array
    offsets: Array
    width: int
    spread: bool = False  # so that none meet in banks

    @property
    def of_warps(self) -> int:
        """Accesses of all warps."""
        *more, threads = self.lines.shape
        accesses: int = warps(threads) * prod(more) * self.offsets.size
        return accesses

    @property
    def lookups(self) -> int:
        """Lines of the first cache that all lie in, of threads one behind the other."""
        lanes = np.minimum(np.arange(round_up(self.lines.size, WARP)), self.lines.size - 1)
        places = np.add.outer(self.offsets.ravel(), self.lines[lanes]) // LINE_BYTES
        return self.of_warps + int(np.count_nonzero(np.diff(places.reshape(-1, WARP))))

    @property
    def least_turns(self) -> int:
        """Turns if no lines met in banks."""
        return self.of_warps * max(self.width // WORD_BYTES, 1)

    @property
    def turns(self) -> float:
        """Turns of all: offsets that differ by whole words take as many as each other."""
        if self.spread:
            return self.least_turns
        firsts, times = np.unique(self.offsets % WORD_BYTES, return_counts=True)
        each = [mean_turns(self.lines + first, self.width) for first in firsts]
        return self.of_warps * float(times @ each) / self.offsets.size


class Anywhere(NamedTuple):
    """Lines of results that begin anywhere: ``store_anywhere`` in kernels/staged.cuh."""

    lines: Array
    elements: int
    item: int

    @property
    def least_turns(self) -> int:
        """Turns if no lines met in banks: as many as accesses."""
        *more, threads = self.lines.shape
        accesses: int = warps(threads) * prod(more) * len(self._stores)
        return accesses

    @property
    def turns(self) -> float:
        """Turns of all."""
        means = (mean_turns(places, WORD_BYTES, active) for places, active in self._stores)
        return self.least_turns * sum(means) / len(self._stores)

    @property
    def _stores(self) -> list[tuple[Array, Array]]:
        """Where each store of a line is, and of which lines there is one."""
        width = WORD_BYTES // self.item
        words, rest = divmod(self.elements, width)
        front = -self.lines // self.item % width
        behind = (self.elements - front) % width
        stores = [
            (self.lines + front * self.item + i * WORD_BYTES, (front <= rest) | (i < words - 1))
            for i in range(words)
        ]
        for i in range(width - 1):
            stores.append((self.lines + i * self.item, i < front))
            stores.append((self.lines + (self.elements - 1 - i) * self.item, i < behind))
        return stores


def warps(threads: int) -> int:
    """Return how many warps have so many threads."""
    return -(-threads // WARP)
