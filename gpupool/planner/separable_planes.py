"""separable_planes.cu: which small planes are reduced down their columns, then along their rows.

A thread takes a column from memory, leaves what windows are down it in shared memory, and then
takes a row of that. Of maxima of narrow elements it takes two at once, in words: columns that
adjoin and then two rows, or, where columns are of an odd number, those of two planes. What it costs
hardly depends on the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from math import gcd, inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gpupool.arrays import Array
from gpupool.planner.banks import BANKS, WORD_BYTES, Accesses, Anywhere, warps
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    AHEAD,
    BLOCKS,
    FEW_THREADS,
    LINE_BYTES,
    LOOKUP,
    REGISTERS,
    SHARED_BYTES,
    THREADS,
    TURN,
    VECTOR_BYTES,
    WARP,
    Launch,
    round_up,
)
from gpupool.planner.parameters import (
    boolean,
    exact,
    kernel_sizes,
    operator,
    pairs,
    sizes,
    vector_width,
    window_parameters,
)
from gpupool.planner.rows import LONG_CODE, MOST_CODE
from gpupool.planner.staged import (
    adjoin,
    copy_cost,
    plane_bytes,
    result_bytes,
    whole_vectors,
)
from gpupool.problem import PoolProblem
from gpupool.window import Axis

SETUP, UNEVEN, SKEW, COPY = 49, 24, 11, 6
"""Instructions of a thread, what it takes more where not all blocks are whole, and where they begin
anywhere in a vector, and those of each vector of results that it copies."""


class _Cost(NamedTuple):
    """Those of an access, of a word that is made of two elements or taken apart, and of a merge.

    A sum's word is made of one element; a result takes it apart and, of a sum, divides it.
    """

    access: float
    word: float
    merge: float
    result: float


COSTS = {
    "float64": _Cost(0.8, 0, 3.9, 0),
    "float32": _Cost(1.0, 0, 0.9, 0),
    "float16": _Cost(0.9, 1.4, 0.8, 1.4),
    "bfloat16": _Cost(0.9, 1.4, 0.8, 1.4),
    "int8": _Cost(1.45, 1.2, 0.8, 1.2),
    "uint8": _Cost(0.9, 1.35, 0.95, 1.35),
}
"""By the dtype of the elements of lines."""

SUM_COSTS = {
    "float64": _Cost(1.0, 0, 1.25, 3.0),
    "float32": _Cost(1.0, 0, 1.0, 3.6),
    "float16": _Cost(1.0, 0.9, 0.85, 3.3),
    "bfloat16": _Cost(0.9, 1.1, 1.0, 4.9),
}
"""The same of averages."""

AVERAGES, DOUBTS, PARTIAL = 12, 13, 7
"""Instructions of a row of averages, and more where some may be looked at again, and for each
window that lies over an edge."""

MOST_SHARES = 256
"""Taps of an average, at most: a table of more divisors would take the compiler longer."""

SPREAD = 7
"""Those of a store of results that are spread."""

ANYWHERE, SINGLE = 9.5, 3.8
"""Those of a line of results that begins anywhere, and of each that may be in front of its first
whole word or behind its last one."""

CODE, AGAIN_CODE = 45, 125
"""Those that take to compile as long as the copies, and as what looks at results again."""

LINE, BESIDE, BESIDE_SUMS = 160, 14, 20
"""Registers of the line that a thread holds, at most, for with more some cards spill, and those
that it has beside it, of maxima and of sums."""

AT_ONCE = 3
"""Blocks that a multiprocessor has at least: one reads memory while others merge."""


def cheapest(
    problem: PoolProblem, geometry: Geometry, alignment: int, most: float = inf
) -> Separated | None:  # fmt: skip
    """Return the blocks that issue least, if they cost no more than ``most``.

    Of those with long code only where none with short code do, and they cost clearly less. Rows
    that words may begin anywhere in are written by words or one by one, whichever costs less.
    """
    if alignment < VECTOR_BYTES or not serves(problem, geometry):
        return None
    ways = list(_ways(problem, geometry))
    singly = [replace(way, by_words=False) for way in ways if way.by_words]
    for most_code, limit in ((MOST_CODE, most), (LONG_CODE, most / AHEAD)):
        laid = list(chain.from_iterable(_laid_out(of, most_code, limit) for of in (ways, singly)))
        if laid:
            return min(laid, key=attrgetter("cost"))
    return None


def _laid_out(ways: Iterable[Separated], most_code: float, most: float) -> Iterator[Separated]:
    """Give those that issue least as they lie in fewer turns, if they cost no more than that."""
    fitting = (way for way in ways if way.code <= most_code)
    way = min(fitting, key=attrgetter("instructions"), default=None)
    if way is None or way.least_cost > most:
        return  # before its turns are counted, which takes longest
    layouts = (way, replace(way, aligned=True))
    way = min((of for of in layouts if of.shared <= SHARED_BYTES), key=attrgetter("turns"))
    if way.cost <= most:
        yield way


def serves(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether these are values of planes that adjoin, and taps do, some of them in the plane."""
    if not (_are_maxima(problem) or _are_averages(problem, geometry)) or len(geometry.dims) != 2:
        return False
    return adjoin(geometry) and all(a.touches and a.dilation == 1 for a in geometry.axes)


def _by_words(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether words begin anywhere in rows of results, and each has one at least."""
    item, out = problem.dtype.itemsize, geometry.axes[-1].out
    return vector_width(VECTOR_BYTES, problem.dtype, out) * item < WORD_BYTES <= out * item


def _are_maxima(problem: PoolProblem) -> bool:
    return problem.reduction == "max" and not problem.indices


def _are_averages(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether these are averages of floats of no more taps than a table is made of."""
    floats = problem.reduction == "average" and problem.dtype.is_float
    return floats and geometry.taps <= MOST_SHARES


def _ways(problem: PoolProblem, geometry: Geometry) -> Iterator[Separated]:
    """Give blocks that fill a card.

    They may take all the shared memory that a block has: threads read whole columns at once, so
    that few of them keep memory busy.
    """
    one = Separated(problem, geometry, 1, by_words=_by_words(problem, geometry))
    down, along = one.axes
    threads = max(along.size, down.out) / one.many  # of a plane
    if one.line > LINE or threads * geometry.planes < BLOCKS * THREADS:
        return
    for planes in range(one.deep, min(int(THREADS / threads), geometry.planes) + 1):
        way = replace(one, planes=planes)
        if (
            FEW_THREADS <= way.threads <= THREADS
            and way.shared <= SHARED_BYTES
            and AT_ONCE * way.registers <= REGISTERS
        ):
            yield way


@dataclass(frozen=True)
class Separated:
    """Blocks of so many planes."""

    problem: PoolProblem
    geometry: Geometry
    planes: int
    by_words: bool  # whether words begin anywhere in rows of results
    aligned: bool = False  # whether columns of neighbouring layers lie in neighbouring banks, too

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Down the columns, and along the rows."""
        down, along = self.geometry.axes
        return down, along

    @property
    def sums(self) -> bool:
        """Whether windows are averaged."""
        return self.problem.reduction != "max"

    @cached_property
    def many(self) -> int:
        """Elements that a cell of shared memory holds: two in a word, if they are narrow."""
        return 2 if pairs(self.problem) else 1

    @cached_property
    def deep(self) -> int:
        """Planes that cells hold elements of: two where columns are of an odd number.

        Of one plane a cell holds neighbours in a row.
        """
        return 2 if self.axes[1].size % self.many else 1

    @property
    def wide(self) -> int:
        """Neighbours in a row that a cell holds."""
        return self.many // self.deep

    @cached_property
    def columns(self) -> int:
        """Cells of a row."""
        return self.axes[1].size // self.wide

    @property
    def layers(self) -> int:
        """Planes of a block, or pairs of them that cells hold."""
        return -(-self.planes // self.deep)

    @cached_property
    def lines(self) -> tuple[int, int]:
        """Threads that take the columns of a block, and then the rows of that."""
        return self.layers * self.columns, -(-self.layers * self.axes[0].out // self.wide)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return max(self.lines)

    @property
    def cell_bytes(self) -> int:
        """Bytes of a cell."""
        return max(self.problem.dtype.itemsize, WORD_BYTES)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Cells of a load of a row, and elements of a store of results, or 0 by words."""
        load = gcd(self.columns, VECTOR_BYTES // self.cell_bytes)
        store = vector_width(VECTOR_BYTES, self.problem.dtype, self.axes[1].out)
        return load, 0 if self.by_words else store

    @cached_property
    def pitch(self) -> int:
        """Cells from row to row: an odd number of loads, which meet in no bank."""
        load, _ = self.widths
        return self.columns + load * (self.columns // load % 2 == 0)

    @cached_property
    def layer(self) -> int:
        """Cells from layer to layer."""
        rows = self.axes[0].out * self.pitch
        banks = BANKS * WORD_BYTES // self.cell_bytes
        return rows + (self.columns - rows) % banks if self.aligned else rows

    @property
    def spread(self) -> bool:
        """Whether rows of results would meet in banks if they lay as they are."""
        return self._row_bytes in (2 * VECTOR_BYTES, 4 * VECTOR_BYTES, 8 * VECTOR_BYTES)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: of cells, and then of results, which are spread within lines."""
        results = self.layers * self.deep * self._result_bytes
        results += 0 if self._whole else VECTOR_BYTES - self.problem.dtype.itemsize
        return max(self.layers * self.layer * self.cell_bytes, round_up(results, LINE_BYTES))

    @property
    def line(self) -> int:
        """Registers of the longest line that a thread holds: a column of elements, or a row."""
        down, along = self.axes
        return max(self.deep * down.size, along.size) * self.cell_bytes // WORD_BYTES

    @property
    def registers(self) -> int:
        """Registers of a block, about: sums at stride 1 are all held beside the line."""
        held = self.line + BESIDE
        if self.sums:
            cells = max(axis.size + axis.out * (axis.stride == 1) for axis in self.axes)
            held = cells * self.cell_bytes // WORD_BYTES + BESIDE_SUMS
        return round_up(self.threads, WARP) * held

    @property
    def _singles(self) -> int:
        """Results of a line that may be in front of its first whole word, or behind its last."""
        return 2 * (WORD_BYTES // self.problem.dtype.itemsize - 1)

    @property
    def _words(self) -> int:
        """Whole words of a line of results, at most."""
        return self._row_bytes // WORD_BYTES

    @property
    def _row_bytes(self) -> int:
        return self.axes[1].out * self.problem.dtype.itemsize

    @cached_property
    def _result_bytes(self) -> int:
        return result_bytes(self.problem, self.geometry)

    @cached_property
    def code(self) -> float:
        """Instructions that take as long to compile as the kernel."""
        again = AGAIN_CODE * (not exact(self.problem))
        return CODE + again + self._of_thread + sum(self._of_lines)

    @property
    def _whole(self) -> bool:
        """Whether all blocks have as many planes, whose results begin and end with vectors."""
        return self._aligned and self.geometry.planes % self.planes == 0

    @property
    def _aligned(self) -> bool:
        """Whether results of blocks begin with vectors."""
        return whole_vectors(self.planes, (self._result_bytes,))

    @property
    def _of_thread(self) -> float:
        """Instructions of a thread whatever the lines."""
        return SETUP + UNEVEN * (not self._whole) + SKEW * (not self._aligned)

    @property
    def _each(self) -> _Cost:
        return (SUM_COSTS if self.sums else COSTS)[self.problem.dtype.name]

    @cached_property
    def _of_lines(self) -> tuple[float, float]:
        """Instructions for a column, and for a row."""
        return self._of_column(), self._of_row()

    def _of_column(self) -> float:
        (down, _), (access, word, merge, _) = self.axes, self._each
        # Words of two columns are in memory as they are but for bytes, of which there are halves.
        in_words = word * (self.sums or self.deep == 2 or self.problem.dtype.itemsize == 1)
        read = (access * self.deep + in_words) * len(taps(down))
        return read + access * down.out + merge * merges(down)

    def _of_row(self) -> float:
        (_, along), (access, word, merge, result) = self.axes, self._each
        read = access * self.wide * len(self._loads) + word * len(taps(along)) * (self.wide - 1)
        written = result * along.out + self.many * self._stores_of_line()
        if self.sums:
            written += AVERAGES + DOUBTS * (not exact(self.problem)) + PARTIAL * partial(along)
        return read + written + merge * merges(along)

    def _stores_of_line(self) -> float:
        (_, store), access = self.widths, self._each.access
        if store:
            return (access + SPREAD * self.spread) * self.axes[1].out / store
        return ANYWHERE + SINGLE * self._singles + (access + 1) * self._words

    @cached_property
    def instructions(self) -> float:
        """Those of all warps, of which some threads may have nothing to do."""
        issued = self._of_thread * warps(self.threads)
        for lines, of_line in zip(self.lines, self._of_lines, strict=True):
            issued += of_line * warps(lines)
        copies = COPY * self._result_bytes / VECTOR_BYTES
        return (issued * WARP / self.planes + copies) * self.geometry.planes

    @property
    def rivals_cost(self) -> float:
        """What others, which tell theirs alone, compare with their instructions."""
        return AHEAD * self.instructions

    @cached_property
    def cost(self) -> float:
        """Instructions, and those that would issue while all else is served."""
        return self.least_cost + TURN * (self.turns - self.least_turns)

    @cached_property
    def least_cost(self) -> float:
        """What they cost if no lines met in banks."""
        copies = copy_cost(0, self.geometry.planes * self._result_bytes)
        return self.instructions + copies + LOOKUP * self.lookups + TURN * self.least_turns

    @cached_property
    def lookups(self) -> float:
        """Lines of the first cache that are looked up for columns."""
        return self._of_all(self._columns_read.lookups)

    @cached_property
    def least_turns(self) -> float:
        """Turns of shared memory if no lines met in banks."""
        return self._of_all(sum(access.least_turns for access in self._accesses))

    @cached_property
    def turns(self) -> float:
        """Turns of shared memory in which columns are written, and rows read and written."""
        return self._of_all(sum(access.turns for access in self._accesses))

    def _of_all(self, of_block: float) -> float:
        return of_block * self.geometry.planes / self.planes

    @property
    def _loads(self) -> list[int]:
        """Those of a row that hold taps."""
        load, _ = self.widths
        return sorted({tap // (load * self.wide) for tap in taps(self.axes[1])})

    @property
    def _columns_read(self) -> Accesses:
        """Columns in memory."""
        (down, along), item = self.axes, self.problem.dtype.itemsize
        plane = plane_bytes(self.problem, self.geometry)
        layers = np.arange(self.layers)[:, None] * self.deep * plane
        columns = (layers + np.arange(self.columns) * self.wide * item).ravel()
        rows = np.array(taps(down)) * along.size * item
        offsets = np.add.outer(np.arange(self.deep) * plane, rows)
        return Accesses(columns, offsets, self.wide * item)

    @cached_property
    def _accesses(self) -> tuple[Accesses | Anywhere, ...]:
        """Columns that are written to shared memory, rows that are read there, and results.

        Of an odd number of rows the last one counts as two.
        """
        rows, (load, _), cell = self.axes[0].out, self.widths, self.cell_bytes
        layers = np.arange(self.layers)[:, None] * self.layer
        columns = (layers + np.arange(self.columns)).ravel()
        down = np.arange(rows) * self.pitch
        line = np.arange(self.wide * self.lines[1]).reshape(self.wide, -1)
        layer, row = np.divmod(line, rows)
        begin = layer * self.layer + row * self.pitch
        along = np.array(self._loads) * load
        return (
            Accesses(columns * cell, down * cell, cell),
            Accesses(begin * cell, along * cell, load * cell),
            self._results(layer * self.deep * self._result_bytes + row * self._row_bytes),
        )

    def _results(self, to: Array) -> Accesses | Anywhere:
        """Return how lines of results are written, which begin so many bytes from the first one."""
        planes = np.arange(self.deep) * self._result_bytes
        (_, store), item = self.widths, self.problem.dtype.itemsize
        if not store:
            return Anywhere(np.add.outer(planes, to), self.axes[1].out, item)
        stores = np.add.outer(planes, np.arange(0, self._row_bytes, store * item))
        return Accesses(to, stores, store * item, self.spread)

    def launch(self) -> Launch:
        """Launch blocks of so many planes each."""
        down, along = axes = self.axes
        moved = self.planes * self._result_bytes // VECTOR_BYTES // self.threads
        of_planes = down.pad_begin, along.pad_begin, down.size, along.size, down.out, along.out
        in_shared_memory = *self.widths, self.pitch, self.layer
        template = (
            operator(self.problem, "int"), kernel_sizes(axes), sizes([a.stride for a in axes]),
            *map(str, of_planes), *map(str, in_shared_memory), boolean(self.spread),
            *map(str, (self.planes, self.threads, moved)), boolean(self._whole),
        )  # fmt: skip
        grid = (-(-self.geometry.planes // self.planes), 1)
        return Launch(
            "separable_planes.cu", "separable_planes", template, ("x", "y"),
            (window_parameters(self.problem, self.geometry),), grid, self.shared, self.threads,
        )  # fmt: skip


@lru_cache
def taps(axis: Axis) -> tuple[int, ...]:
    """Return the elements of a line that are in a window.

    >>> taps(Axis.resolve(8, kernel=2, stride=3))
    (0, 1, 3, 4, 6, 7)
    """
    begins = (output * axis.stride - axis.pad_begin for output in range(axis.out))
    windows = (range(max(begin, 0), min(begin + axis.kernel, axis.size)) for begin in begins)
    return tuple(sorted(set(chain.from_iterable(windows))))


@lru_cache
def partial(axis: Axis) -> int:
    """Return how many windows lie over an edge, some taps in the padding.

    >>> partial(Axis.resolve(8, kernel=5, pads=(2, 2)))
    4
    """
    begins = (output * axis.stride - axis.pad_begin for output in range(axis.out))
    return sum(begin < 0 or begin + axis.kernel > axis.size for begin in begins)


@lru_cache
def merges(axis: Axis) -> int:
    """Return how often a line is merged: ``merge_line`` in kernels/separable_planes.cu.

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
