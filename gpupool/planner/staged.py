"""rows.cu where blocks copy small planes that adjoin to shared memory: which rows of which planes.

Rows of narrow planes lie in up to as many lines of the first cache as a warp has threads, and rows
of odd sizes begin anywhere. Blocks copy such planes by whole vectors, and a thread takes a row of
outputs from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd, inf, lcm, prod
from operator import attrgetter

import numpy as np

from gpupool.planner import rows
from gpupool.planner.banks import WORD_BYTES, Array, turns
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
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
from gpupool.planner.parameters import boolean
from gpupool.planner.tile import Tile
from gpupool.planner.tile_cost import Estimate
from gpupool.problem import PoolProblem

ORDERS = False, True
"""Whether neighbouring threads of a volume take rows of neighbouring slices: what is tried."""

STAGED_BYTES = 160
"""Bytes of shared memory for each thread, at most: a multiprocessor has as much for two thirds of
its threads."""

STAGED_CODE, STAGE, COPY = 60, 15, 4
"""Instructions that the copies to shared memory and back take to compile as long as, those of a
thread, and those of each vector."""

NEARLY = 1.1
"""How many times the least cost is nearly as little."""


def cheapest(problem: PoolProblem, geometry: Geometry, alignment: int) -> Staged | None:
    """Return what costs least, or nearly least and has a short kernel."""
    if alignment < VECTOR_BYTES or not adjoin(geometry) or not rows.serves(problem, geometry):
        return None
    ways = [way for way in _ways(problem, geometry, alignment) if way.code <= rows.MOST_CODE]
    ways.sort(key=attrgetter("least_cost"))
    most, near = inf, list[Staged]()
    for way in ways:
        if way.least_cost > most:
            break  # before its turns are counted, which takes longest
        most = min(most, NEARLY * way.cost)
        near.append(way)
    near = [way for way in near if way.cost <= most]
    return min(near, key=lambda way: (way.code > rows.SHORT_CODE, way.cost, way.code), default=None)


def _ways(problem: PoolProblem, geometry: Geometry, alignment: int) -> Iterator[Staged]:
    """Give tiles of each height, their results in shared memory or not, slices in either order."""
    orders = ORDERS if len(geometry.dims) > 2 else (False,)
    for tile, results in product(_tiles(problem, geometry, alignment), (False, True)):
        planes = _planes_of_a_block(problem, geometry, tile, results)
        for slices_first in orders if planes else ():
            yield Staged(problem, geometry, tile, planes, results, slices_first)


def _tiles(problem: PoolProblem, geometry: Geometry, alignment: int) -> Iterator[Tile]:
    """Give those that take rows whole."""
    for outputs, row in rows.pieces(geometry.dims[-1].axis, not problem.channels_last):
        for height in rows.row_counts(geometry.dims) if row else ():
            tile = Tile.of(problem, geometry, alignment, outputs, row, height, 1, True, staged=True)
            if tile is not None:
                yield tile


def adjoin(geometry: Geometry) -> bool:
    """Whether rows, planes and images lie one behind the other."""
    if geometry.images:
        return False
    size = 1
    for dim in (*reversed(geometry.dims), geometry.channels):
        if dim.step != size:
            return False
        size *= dim.axis.size
    return True


def _planes_of_a_block(
    problem: PoolProblem, geometry: Geometry, tile: Tile, results: bool
) -> int:  # fmt: skip
    """Return how many planes a block can copy: whole vectors, and whole warps as far as may be."""
    if tile.threads(geometry) < BLOCKS * THREADS:
        return 0
    threads = tile.threads(geometry) // geometry.planes
    sizes = [_plane_bytes(problem, geometry)]
    if results:
        sizes.append(_result_bytes(problem, geometry))
    most = min(THREADS // threads, SHARED_BYTES // sum(sizes), geometry.planes)
    step = lcm(*(VECTOR_BYTES // gcd(size, VECTOR_BYTES) for size in sizes))
    counts = range(step, most + 1, step) if sum(sizes) <= STAGED_BYTES * threads else ()
    warps = {planes: -(-planes * threads // WARP) for planes in counts if planes * threads >= WARP}
    return max(warps, key=lambda planes: (planes * threads / warps[planes], planes), default=0)


def _plane_bytes(problem: PoolProblem, geometry: Geometry) -> int:
    return geometry.channels.step * problem.dtype.itemsize


def _result_bytes(problem: PoolProblem, geometry: Geometry) -> int:
    """Return the bytes of a plane of results."""
    return prod(dim.axis.out for dim in geometry.dims) * problem.out_dtype.itemsize


@dataclass(frozen=True)
class Staged:
    """Whole rows of planes that blocks copy to shared memory."""

    problem: PoolProblem
    geometry: Geometry
    tile: Tile
    planes: int  # of a block
    results: bool  # whether these lie in shared memory, too, until the block copies them
    slices_first: bool  # whether neighbouring threads take rows of neighbouring slices

    @cached_property
    def code(self) -> float:
        """Instructions that take as long to compile as the kernel."""
        return Estimate.of(self.problem, self.geometry, self.tile).code + STAGED_CODE

    @cached_property
    def cost(self) -> float:
        """Instructions, and those that would issue while all else is served."""
        return self.least_cost + TURN * self.turns

    @cached_property
    def least_cost(self) -> float:
        """The cost but for turns of rows and results in shared memory."""
        copies = (LOOKUP + TURN) * self._vectors * VECTOR_BYTES / LINE_BYTES
        if self.results:
            written = self.geometry.planes * _result_bytes(self.problem, self.geometry)
            return self.instructions + copies + SECTOR * written / SECTOR_BYTES
        return self.instructions + copies + rows.store_cost(self.problem, self.geometry, self.tile)

    @cached_property
    def instructions(self) -> float:
        """Those of all threads."""
        alone = rows.instructions(self.problem, self.geometry, self.tile)
        if not self.results:
            return alone
        return alone + STAGE * self.tile.threads(self.geometry) + COPY * self._vectors

    @property
    def _vectors(self) -> float:
        """Vectors that are copied, to shared memory and back."""
        read, written = self._bytes
        return self.geometry.planes * (read + written * self.results) / VECTOR_BYTES

    def launch(self) -> Launch:
        """Launch blocks that copy so many planes each."""
        alone = rows.launch(self.problem, self.geometry, self.tile)
        *shared_by_both, _, _, _, load, store = alone.template
        threads = self.tile.threads(self.geometry) // self.geometry.planes * self.planes
        read, written = self._bytes
        each, back = (self.planes * size // (threads * VECTOR_BYTES) for size in self._bytes)
        whole = self.geometry.planes % self.planes == 0
        template = (
            *shared_by_both, load, store, str(self.planes), str(threads), str(each), boolean(whole),
            str(back if self.results else -1), boolean(self.slices_first),
        )  # fmt: skip
        return replace(
            alone, kernel="rows_staged", template=template, block=threads,
            grid=(-(-self.geometry.planes // self.planes), 1),
            shared=self.planes * (read + written * self.results),
        )  # fmt: skip

    @property
    def _bytes(self) -> tuple[int, int]:
        """Those of a plane and of its results."""
        of = self.problem, self.geometry
        return _plane_bytes(*of), _result_bytes(*of)

    @cached_property
    def turns(self) -> float:
        """Turns of shared memory in which threads read rows, and write results that lie there."""
        itemsize = self.problem.dtype.itemsize
        load = WORD_BYTES if self.tile.anywhere else self.tile.load * itemsize
        reads, writes = self._places()
        loads = rows.warp_loads(self.problem, self.geometry, self.tile)
        taken = loads * _turns_of(reads // load * load, load)
        if self.results:
            store = self.tile.store * self.problem.out_dtype.itemsize
            taken += rows.warp_stores(self.geometry, self.tile) * _turns_of(writes, store)
        return taken

    def _places(self) -> tuple[Array, Array]:
        """Return where each thread of a block reads and writes its first row, in bytes."""
        *outer, inner = self.geometry.dims
        groups, slices = self.tile.groups(self.geometry)[1], prod(d.axis.out for d in outer[:-1])
        order = (groups, slices) if self.slices_first else (slices, groups)
        threads = np.arange(self.planes * slices * groups)
        plane, *both = np.unravel_index(threads, (self.planes, *order))
        slice_, group = reversed(both) if self.slices_first else both
        reads, writes = (plane * size for size in self._bytes)
        step, result = self.problem.dtype.itemsize, self.problem.out_dtype.itemsize * inner.axis.out
        for dim, first in zip(reversed(outer), (group * self.tile.rows, slice_), strict=False):
            reads = reads + first * dim.axis.stride * dim.step * step
            writes = writes + first * result
            result *= dim.axis.out
        return reads, writes


def _turns_of(places: Array, width: int) -> float:
    """Return the turns of a warp, in the mean, whose threads read or write at such places."""
    lanes = np.arange(-(-places.size // WARP) * WARP).reshape(-1, WARP)
    at = np.resize(places, lanes.shape)
    return float(turns(at, lanes < places.size, width).mean())
