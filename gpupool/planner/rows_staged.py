"""rows_staged.cu: which rows of which small planes, that adjoin, blocks copy to shared memory.

Rows of narrow planes lie in up to as many lines of the first cache as a warp has threads, and rows
of odd sizes begin anywhere. Blocks copy such planes by whole vectors, which may begin in front of
them and end behind, and a thread takes a row of outputs from there, or an equal part of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf, prod
from operator import attrgetter

import numpy as np

from gpupool.arrays import Array
from gpupool.planner import rows
from gpupool.planner.banks import WORD_BYTES, mean_turns
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    AHEAD,
    BLOCKS,
    NEARLY,
    SHARED_BYTES,
    THREADS,
    TURN,
    VECTOR_BYTES,
    WARP,
    Launch,
    round_up,
)
from gpupool.planner.parameters import boolean
from gpupool.planner.staged import (
    adjoin,
    copy_cost,
    plane_bytes,
    result_bytes,
    whole_vectors,
)
from gpupool.planner.tile import Tile, positions
from gpupool.planner.tile_cost import Estimate, down_axis
from gpupool.problem import PoolProblem
from gpupool.window import Axis

PARTS = range(2, 9)
"""Of a row, what is tried."""

ORDERS = False, True
"""Whether neighbouring threads of a volume take rows of neighbouring slices: what is tried."""

MIRROR_BITS = 0, 1, 2, 4, 8, 16
"""The bit of a thread's number by which it takes its lines from the last to the first, or none:
what is tried. Of an even number of lines two threads that meet in a bank read an odd number apart
if one of them is mirrored, and mostly meet no more."""

STAGED_CODE, STAGE, COPY = 60, 15, 4
"""Instructions that the copies to shared memory and back take to compile as long as, those of a
thread, and those of each vector."""

PART, RAGGED, SKEW, MIRRORED_LINE = 26, 20, 35, 2.3
"""Those of a thread more for a part of a row, where not all blocks are whole, for a whole row where
they begin anywhere in a vector, and for each line where some threads go from the last to the first.
"""

PART_CODE, SKEW_CODE = 50, 90
"""What parts of rows take to compile as long as, and planes that begin anywhere in a vector."""

STAGED_BYTES = 160
"""Bytes of shared memory for each thread, at most: a multiprocessor has as much for two thirds of
its threads."""

MARGINS = 6 * VECTOR_BYTES
"""Shared memory around planes and results, at most."""


def cheapest(
    problem: PoolProblem, geometry: Geometry, alignment: int, most: float = inf
) -> Staged | None:  # fmt: skip
    """Return what costs least, if no more than ``most``, or nearly least and has a short kernel.

    A long one must cost clearly less. Only short ones are compared mirrored, too, so that no longer
    tile is chosen for it; then the chosen one takes its lines in the best order.
    """
    if alignment < VECTOR_BYTES or not adjoin(geometry) or not rows.serves(problem, geometry):
        return None
    if geometry.outputs < BLOCKS * THREADS:  # so that no tile need be tried
        return None
    ways = list(_ways(problem, geometry, alignment))
    short = _cheapest((way for way in ways if way.code <= rows.MOST_CODE), most)
    long = (way for way in ways if rows.MOST_CODE < way.code <= rows.LONG_CODE)
    chosen = _cheapest(long, short.cost / AHEAD if short else most) or short
    return min(chosen.mirrors(), key=attrgetter("cost")) if chosen else None


def _cheapest(ways: Iterable[Staged], most: float) -> Staged | None:
    near = list[Staged]()
    for way in sorted(ways, key=attrgetter("least_cost")):
        if way.least_cost > most:
            break  # before its turns are counted, which takes longest
        most = min(most, NEARLY * way.cost)
        near.append(way)
    near = [way for way in near if way.cost <= most]
    return min(near, key=lambda way: (way.code > rows.SHORT_CODE, way.cost, way.code), default=None)


def _ways(problem: PoolProblem, geometry: Geometry, alignment: int) -> Iterator[Staged]:
    """Give tiles of each height, their results in shared memory or not, slices in either order.

    Of short kernels their lines in each order, too.
    """
    orders = ORDERS if len(geometry.dims) > 2 else (False,)
    for tile in _tiles(problem, geometry, alignment):
        alone = Estimate.of(problem, geometry, tile)
        for results in (False, True):
            planes = _planes_of_a_block(problem, geometry, tile, results)
            for slices_first in orders if planes else ():
                way = Staged(problem, geometry, tile, alone, planes, results, slices_first)
                yield from way.mirrors() if way.code <= rows.SHORT_CODE else (way,)


def _down_axis(geometry: Geometry) -> Axis:
    return down_axis(geometry.axes)


def _tiles(problem: PoolProblem, geometry: Geometry, alignment: int) -> Iterator[Tile]:
    """Give those that take rows whole, and equal parts of rows."""
    inner = geometry.axes[-1]
    pieces = [(outputs, row) for outputs, row in rows.pieces(inner, True) if row]
    if inner.touches and inner.dilation == 1:
        pieces += [(inner.out // parts, 0) for parts in PARTS if inner.out % parts == 0]
    for (outputs, row), height in product(pieces, rows.row_counts(geometry.axes)):
        tile = Tile.of(problem, geometry, alignment, outputs, row, height, 1, True, staged=True)
        if tile is not None and (row or _margins_hold(problem, tile, inner)):
            yield tile


def _margins_hold(problem: PoolProblem, tile: Tile, inner: Axis) -> bool:
    """Whether what parts of rows read in front of the first plane and behind the last one fits."""
    before, behind = (tile.loaded(pixels) for pixels in tile.halos(inner))
    read = inner.out * inner.stride + behind
    if tile.by_words:
        read = (inner.out - 1) * inner.stride + inner.extent - inner.pad_begin
    return max(before, read - inner.size) * problem.dtype.itemsize <= VECTOR_BYTES


def _planes_of_a_block(
    problem: PoolProblem, geometry: Geometry, tile: Tile, results: bool
) -> int:  # fmt: skip
    """Return how many planes a block copies: whole vectors if it can, and nearly whole warps."""
    if tile.threads(geometry) < BLOCKS * THREADS:
        return 0
    threads = tile.threads(geometry) // geometry.planes
    sizes = [plane_bytes(problem, geometry)]
    if results:
        sizes.append(result_bytes(problem, geometry))
    most = min(THREADS // threads, (SHARED_BYTES - MARGINS) // sum(sizes), geometry.planes)
    if sum(sizes) > STAGED_BYTES * threads:
        return 0
    counts = range(-(-WARP // threads), most + 1)
    aligned = [planes for planes in counts if whole_vectors(planes, sizes)]
    return max(aligned or counts, key=lambda n: (_filled(n * threads), n), default=0)


def _filled(threads: int) -> float:
    """Return the part of the threads of a block's warps that there are."""
    return threads / round_up(threads, WARP)


@dataclass(frozen=True)
class Staged:
    """Rows or parts of rows of planes that blocks copy to shared memory."""

    problem: PoolProblem
    geometry: Geometry
    tile: Tile
    alone: Estimate  # of the tile, as if it were not staged
    planes: int  # of a block
    results: bool  # whether these lie in shared memory, too, until the block copies them
    slices_first: bool  # whether neighbouring threads take rows of neighbouring slices
    mirrored: int = 0  # the bit of a thread's number by which it takes lines from the last on

    def mirrors(self) -> Iterator[Staged]:
        """Give the same tiles with their lines in each order that is tried.

        Of an odd number of lines mirrored tiles would read the middle one together. They must not
        hang over the last row, nor may codes tell lines by their order.
        """
        lines = max(self._lines) + 1
        whole = _down_axis(self.geometry).out % self.tile.rows == 0
        for bit in MIRROR_BITS if whole and lines % 2 == 0 and not self.problem.indices else (0,):
            yield replace(self, mirrored=bit)

    @cached_property
    def code(self) -> float:
        """Instructions that take as long to compile as the kernel."""
        more = PART_CODE * (not self.tile.row) + SKEW_CODE * (not self._aligned)
        return self.alone.code + STAGED_CODE + more

    @cached_property
    def cost(self) -> float:
        """Instructions, and those that would issue while all else is served."""
        return self.least_cost + TURN * (self.turns - sum(self._accesses))

    @property
    def rivals_cost(self) -> float:
        """What others, which tell theirs alone, compare with their instructions.

        Rows that begin anywhere they take by elements: more lines, which they do not count.
        """
        return (1 if self.tile.by_words else AHEAD) * self.instructions

    @cached_property
    def least_cost(self) -> float:
        """The cost if shared memory served every access in a turn."""
        cost = self.instructions + TURN * sum(self._accesses)
        read, written = (self.geometry.planes * size for size in self._bytes)
        y, *indices = self.problem.outputs
        stored = indices if self.results else (y, *indices)
        cost += rows.store_cost(stored, self.geometry, self.tile)
        return cost + copy_cost(read, written if self.results else 0)

    @cached_property
    def instructions(self) -> float:
        """Those of all threads."""
        each = STAGE * self.results + PART * (not self.tile.row) + RAGGED * (not self.whole)
        each += SKEW * (self.tile.row > 0 and not self._aligned)
        lines = self.geometry.slices * len(self._lines) if self.mirrored else 0
        copied = self.geometry.planes * sum(self._bytes) if self.results else 0
        threads = self.tile.threads(self.geometry)
        copies = COPY * copied / VECTOR_BYTES
        return self.alone.total + (each + MIRRORED_LINE * lines) * threads + copies

    def launch(self) -> Launch:
        """Launch blocks that copy so many planes each."""
        alone = rows.launch(self.problem, self.geometry, self.tile)
        *shared_by_both, _, _, _, load, store = alone.template
        threads = self.tile.threads(self.geometry) // self.geometry.planes * self.planes
        each, back = (-(-self.planes * size // VECTOR_BYTES) // threads for size in self._bytes)
        template = (
            *shared_by_both, load, store, str(self.planes), str(threads), str(each),
            boolean(self.whole), str(back if self.results else -1), boolean(self.slices_first),
            str(self.mirrored),
        )  # fmt: skip
        return replace(
            alone, source="rows_staged.cu", kernel="rows_staged", template=template,
            grid=(-(-self.geometry.planes // self.planes), 1), block=threads, shared=self._shared(),
        )  # fmt: skip

    @property
    def whole(self) -> bool:
        """Whether all blocks have as many planes and results, which begin and end with vectors."""
        return self._aligned and self.geometry.planes % self.planes == 0

    @property
    def _aligned(self) -> bool:
        """Whether blocks begin with vectors."""
        return whole_vectors(self.planes, self._bytes[: 1 + self.results])

    def _shared(self) -> int:
        """Return the bytes of planes and results, which may begin anywhere in a vector."""
        dtypes = (self.problem.dtype, self.problem.out_dtype)[: 1 + self.results]
        ends = (
            self.planes * size + (0 if self.whole else VECTOR_BYTES - dtype.itemsize)
            for size, dtype in zip(self._bytes, dtypes, strict=False)
        )
        margins = 0 if self.tile.row else 2 * VECTOR_BYTES
        return margins + sum(round_up(end, VECTOR_BYTES) for end in ends)

    @property
    def _bytes(self) -> tuple[int, int]:
        """Those of a plane and of its results."""
        of = self.problem, self.geometry
        return plane_bytes(*of), result_bytes(*of)

    @cached_property
    def turns(self) -> float:
        """Turns of shared memory in which threads read rows, and write results that lie there."""
        itemsize = self.problem.dtype.itemsize
        load = WORD_BYTES if self.tile.by_words else self.tile.load * itemsize
        (reads, writes), (loads, stores) = self._places(), self._accesses
        taken = loads * mean_turns(reads // load * load, load)
        if stores:
            store = self.tile.store * self.problem.out_dtype.itemsize
            taken += stores * mean_turns(writes, store)
        return taken

    @cached_property
    def _accesses(self) -> tuple[float, float]:
        """Loads of rows, and stores of results that lie in shared memory, of all warps."""
        loads = rows.warp_loads(self.problem, self.geometry, self.tile)
        return loads, rows.warp_stores(self.geometry, self.tile) if self.results else 0

    @property
    def _lines(self) -> Collection[int]:
        """The lines of a slice that a thread reads, from the first one on."""
        return positions(_down_axis(self.geometry), self.tile.rows)

    def _places(self) -> tuple[Array, Array]:
        """Return where each thread of a block reads every line, and writes every row, in bytes.

        Blocks that begin within a vector have the same places, shifted.
        """
        tile, down, (*outer, inner) = self.tile, _down_axis(self.geometry), self.geometry.dims
        plane, slice_, group, part, upwards = self._threads()
        lines, rows_down = np.array(sorted(self._lines))[:, None], np.arange(tile.rows)[:, None]
        line = group * tile.rows * down.stride - down.pad_begin
        line = line + np.where(upwards, lines[-1] - lines, lines)
        reads = np.clip(line, 0, down.size - 1) * inner.axis.size
        reads += part * tile.outputs * inner.axis.stride
        if tile.by_words and not tile.row:
            reads -= inner.axis.pad_begin
        if len(outer) > 1:
            reads += slice_ * outer[0].axis.stride * outer[0].step
        row = group * tile.rows + np.where(upwards, rows_down[-1] - rows_down, rows_down)
        row = slice_ * down.out + np.minimum(row, down.out - 1)
        writes = row * inner.axis.out + part * tile.outputs
        read, written = self._bytes
        reads = reads * self.problem.dtype.itemsize + plane * read + VECTOR_BYTES
        return reads, writes * self.problem.out_dtype.itemsize + plane * written

    def _threads(self) -> tuple[Array, ...]:
        """Return plane, slice, row group and part of each thread, and which go from the last on."""
        parts, groups = self.tile.groups(self.geometry)
        slices = prod(axis.out for axis in self.geometry.axes[:-2])
        order = (groups, slices) if self.slices_first else (slices, groups)
        threads = np.arange(self.planes * slices * groups * parts)
        plane, *both, part = np.unravel_index(threads, (self.planes, *order, parts))
        slice_, group = reversed(both) if self.slices_first else both
        return plane, slice_, group, part, (threads & self.mirrored) != 0
