"""separable_staged.cu: which small planes take maxima down their columns, then along their rows.

Planes that adjoin lie in shared memory, where each thread takes a column and then a row. Of narrow
elements it takes two at once, in words: columns that adjoin and then rows, or, where columns are of
an odd number, those of two planes. What it costs hardly depends on the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gpupool.planner.banks import WORD_BYTES, Array, mean_turns
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    AHEAD,
    BLOCKS,
    LINE_BYTES,
    LOOKUP,
    SECTOR,
    SECTOR_BYTES,
    SHARED_BYTES,
    THREADS,
    TURN,
    VECTOR_BYTES,
    WARP,
    Launch,
)
from gpupool.planner.parameters import (
    boolean,
    kernel_sizes,
    operator,
    pairs,
    sizes,
    vector_width,
    window_parameters,
)
from gpupool.planner.rows import SHORT_CODE
from gpupool.planner.staged import (
    STAGED_BYTES,
    adjoin,
    plane_bytes,
    result_bytes,
    whole_vectors,
)
from gpupool.problem import PoolProblem
from gpupool.window import Axis

SETUP, UNEVEN, COPY = 44, 33, 3
"""Instructions of a thread, what it takes more where the last block has fewer planes, and those of
each vector that it copies."""


class _Cost(NamedTuple):
    """Those of an access, of a word that is made of two elements or taken apart, and of a merge."""

    access: float
    word: float
    merge: float


COSTS = {
    "float64": _Cost(1.1, 0, 4.2),
    "float32": _Cost(1.1, 0, 0.9),
    "float16": _Cost(1.0, 1.4, 0.8),
    "bfloat16": _Cost(1.0, 1.4, 0.8),
    "int8": _Cost(1.8, 1.5, 0.7),
    "uint8": _Cost(1.3, 1.4, 0.6),
}
"""By the dtype of the elements of lines."""

CODE = 60
"""Those that take to compile as long as the copies."""

MEETING = 3.4
"""Turns, in those of lines that do not meet in banks, past which other kernels took less time by
the counts: rows of 128 bytes that a thread reads, or two that are as long together."""


def cheapest(
    problem: PoolProblem, geometry: Geometry, alignment: int, most: float = inf
) -> Separated | None:  # fmt: skip
    """Return the blocks that issue least, if they cost no more than ``most`` and are short code."""
    if alignment < VECTOR_BYTES or not serves(problem, geometry):
        return None
    way = min(_ways(problem, geometry), key=attrgetter("instructions"), default=None)
    if way is None or way.code > SHORT_CODE or way.least_cost > most:
        return None  # before its turns are counted, which takes longest
    return way if way.cost <= most else None


def serves(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether these are maxima of planes that adjoin, with no more outputs than elements in a line.

    Taps adjoin, and every window has some in the plane.
    """
    if problem.reduction != "max" or problem.indices or len(geometry.dims) != 2:
        return False
    axes = [dim.axis for dim in geometry.dims]
    if not all(axis.touches and axis.dilation == 1 and axis.out <= axis.size for axis in axes):
        return False
    return adjoin(geometry)


def _ways(problem: PoolProblem, geometry: Geometry) -> Iterator[Separated]:
    """Give blocks that begin and end with vectors, of planes and of results, and fill a card."""
    one = Separated(problem, geometry, 1)
    threads, deep = one.threads, one.deep
    if threads * geometry.planes < BLOCKS * THREADS * deep:
        return
    if one.byte_sizes[0] * deep > STAGED_BYTES * threads:
        return
    most = min(THREADS // threads * deep, SHARED_BYTES // one.byte_sizes[0], geometry.planes)
    for planes in range(-(-WARP // threads) * deep, most + 1):
        if whole_vectors(planes, one.byte_sizes):
            yield Separated(problem, geometry, planes)


@dataclass(frozen=True)
class Separated:
    """Blocks of so many planes."""

    problem: PoolProblem
    geometry: Geometry
    planes: int

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Down the columns, and along the rows."""
        down, along = (dim.axis for dim in self.geometry.dims)
        return down, along

    @cached_property
    def many(self) -> int:
        """Elements that a word holds."""
        return 2 if pairs(self.problem) else 1

    @cached_property
    def deep(self) -> int:
        """Planes that words hold elements of: two where columns are of an odd number.

        Of one plane a word holds neighbours in a row, and then in a column of results.
        """
        return 2 if self.axes[1].size % self.many else 1

    @cached_property
    def lines(self) -> tuple[int, int]:
        """Threads that take the columns of so many planes, and then their rows of results."""
        (down, along), wide = self.axes, self.many // self.deep
        return along.size // wide, -(-down.out // wide)

    @property
    def layers(self) -> int:
        """Planes of a block, or pairs of them that words hold."""
        return -(-self.planes // self.deep)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.layers * max(self.lines)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Elements of a load of a row, and of a store of results."""
        along = self.axes[1]
        load, store = (
            vector_width(VECTOR_BYTES, self.problem.dtype, n) for n in (along.size, along.out)
        )
        return load, store

    @cached_property
    def byte_sizes(self) -> tuple[int, int]:
        """Bytes of a plane and of its results."""
        of = self.problem, self.geometry
        return plane_bytes(*of), result_bytes(*of)

    @cached_property
    def code(self) -> float:
        """Instructions that take as long to compile as the kernel."""
        return CODE + self._of_thread + sum(self._of_lines)

    @property
    def _whole(self) -> bool:
        """Whether all blocks have the same number of planes."""
        return self.geometry.planes % self.planes == 0

    @property
    def _of_thread(self) -> float:
        """Instructions of a thread whatever the lines."""
        return SETUP if self._whole else SETUP + UNEVEN

    @cached_property
    def _of_lines(self) -> tuple[float, float]:
        """Instructions for a column, and for a row."""
        (down, along), (load, store) = self.axes, self.widths
        dtype = self.problem.dtype
        access, word, merge = COSTS[dtype.name]
        # Words of two columns lie in memory as they are but for bytes, of which there are halves.
        in_words = word * (self.deep == 2 or dtype.itemsize == 1)
        of_column = (access * self.deep + in_words) * (down.size + down.out)
        of_row = access * self.many * (along.size / load + along.out / store)
        of_row += word * (along.size + along.out)
        return of_column + merge * merges(down), of_row + merge * merges(along)

    @cached_property
    def instructions(self) -> float:
        """Those of all warps, of which some threads may have nothing to do."""
        issued = self._of_thread * _warps(self.threads)
        for lines, of_line in zip(self.lines, self._of_lines, strict=True):
            issued += of_line * _warps(self.layers * lines)
        copies = COPY * sum(self.byte_sizes) / VECTOR_BYTES
        return (issued * WARP / self.planes + copies) * self.geometry.planes

    @property
    def rivals_cost(self) -> float:
        """What others, which tell theirs alone, compare with their instructions.

        Of lines that meet in banks all that is served, so that others are asked.
        """
        meet = self.turns > MEETING * self.least_turns
        return self.cost if meet else AHEAD * self.instructions

    @cached_property
    def cost(self) -> float:
        """Instructions, and those that would issue while all else is served."""
        return self.least_cost + TURN * (self.turns - self.least_turns)

    @cached_property
    def least_cost(self) -> float:
        """What they cost if no lines met in banks."""
        read, written = (self.geometry.planes * size for size in self.byte_sizes)
        copies = (LOOKUP + TURN) * (read + written) / LINE_BYTES
        sectors = SECTOR * written / SECTOR_BYTES
        return self.instructions + copies + sectors + TURN * self.least_turns

    @cached_property
    def least_turns(self) -> float:
        """Turns of shared memory if no lines met in banks."""
        turns = sum(access.least_turns for access in self._accesses)
        return turns * self.geometry.planes / self.planes

    @cached_property
    def turns(self) -> float:
        """Turns of shared memory in which columns and rows are read and written.

        Of an odd number of rows, or planes, the last one counts as two.
        """
        turns = sum(access.turns for access in self._accesses)
        return turns * self.geometry.planes / self.planes

    @cached_property
    def _accesses(self) -> tuple[_Accesses, ...]:
        """Those of columns, then of rows that are read, and of rows of results."""
        (down, along), (columns, rows), (load, store) = self.axes, self.lines, self.widths
        (plane, results), item = self.byte_sizes, self.problem.dtype.itemsize
        many, deep, wide = self.many, self.deep, self.many // self.deep
        read, written = along.size * item, along.out * item

        def places(plane: int, line: int, lines: int) -> Array:
            layers = np.arange(self.layers)[:, None] * deep * plane
            return (layers + np.arange(lines) * line).ravel()

        of_columns = np.add.outer(np.arange(deep) * plane, np.r_[: down.size, : down.out] * read)
        found = [_Accesses(places(plane, wide * item, columns), of_columns, wide * item)]
        for of_plane, row, width in ((plane, read, load), (results, written, store)):
            others = np.arange(many) * (of_plane if deep == 2 else row)
            of_rows = np.add.outer(others, np.arange(0, row, width * item))
            found.append(_Accesses(places(of_plane, wide * row, rows), of_rows, width * item))
        return tuple(found)

    def launch(self) -> Launch:
        """Launch blocks that copy so many planes each."""
        down, along = axes = self.axes
        moved = (self.planes * size // VECTOR_BYTES // self.threads for size in self.byte_sizes)
        numbers = (
            down.pad_begin, along.pad_begin, down.size, along.size, down.out, along.out,
            *self.widths, self.planes, self.threads, *moved,
        )  # fmt: skip
        template = (
            operator(self.problem, "int"), kernel_sizes(axes), sizes([a.stride for a in axes]),
            *map(str, numbers), boolean(self._whole),
        )  # fmt: skip
        grid = (-(-self.geometry.planes // self.planes), 1)
        return Launch(
            "separable_staged.cu", "separable_staged", template, ("x", "y"),
            (window_parameters(self.problem, self.geometry),), grid,
            self.planes * self.byte_sizes[0], self.threads,
        )  # fmt: skip


class _Accesses(NamedTuple):
    """What a block reads or writes at once: of each line so many bytes, at each of some offsets."""

    lines: Array
    offsets: Array
    width: int

    @property
    def least_turns(self) -> float:
        """Turns if no lines met in banks."""
        return _warps(self.lines.size) * self.offsets.size * max(self.width // WORD_BYTES, 1)

    @property
    def turns(self) -> float:
        """Turns of all: offsets that differ by whole words take as many as each other."""
        firsts, times = np.unique(self.offsets % WORD_BYTES, return_counts=True)
        each = [mean_turns(self.lines + first, self.width) for first in firsts]
        return _warps(self.lines.size) * float(times @ each)


def _warps(threads: int) -> int:
    return -(-threads // WARP)


@lru_cache
def merges(axis: Axis) -> int:
    """Return how often a line is merged: ``merge_line`` in kernels/separable_staged.cu.

    >>> merges(Axis.resolve(20, kernel=13, pads=(6, 6))), merges(Axis.resolve(20, kernel=3))
    (41, 30)
    """
    sharing = (axis.kernel - 1) // axis.stride + 1
    count = 0
    for first in range(0, axis.out, sharing):
        begins = [
            i * axis.stride - axis.pad_begin for i in range(first, min(first + sharing, axis.out))
        ]
        ends = [min(begin + axis.kernel, axis.size) - 1 for begin in begins]
        common = ends[0]
        count += common - max(begins[0], 0) + max(ends[-1] - common - 1, 0)
        count += sum(end > common for end in ends)
    return count
