"""rows.cu: which tile of outputs one thread takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd, inf, lcm, prod
from operator import itemgetter
from typing import Any

import numpy as np

from gpupool.planner.banks import WORD_BYTES
from gpupool.planner.geometry import Dim, Geometry
from gpupool.planner.launches import (
    BLOCKS,
    BUDGET,
    LINE_BYTES,
    LOOKUP,
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
    by_powers,
    divisor,
    divisor_dtype,
    kernel_sizes,
    operator,
    sizes,
    window_parameters,
)
from gpupool.planner.tile import Tile
from gpupool.planner.tile_cost import Estimate, Line, down_axis, lines
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

SHORT_CODE, MOST_CODE = 465, 650
"""Instructions of a kernel of rows.cu: up to the first it compiles in about four times the time of
the smallest kernel (``python -m bench --cold``), 100 ms on a server that nothing disturbs. A
hundred instructions more take about half of that smallest time more."""

ENOUGH = 0.52
"""The part of the time that memory takes, by estimate: instructions that issue within it are
hardly what limits."""

APART, HELD, REREAD = 0.3, 0.15, 0.3
"""Powers of what makes a tile slower than its instructions: how far apart neighbouring threads read
and write, what a thread holds, and how often the input is read. Fitted to the times of 950 tiles of
46 cases on an H200; the tile chosen took 2 % longer than the fastest, in the mean."""

MEET = 2
"""Turns for one where rows of odd sizes meet in banks, by the addresses of all lanes."""

SECTOR, SCATTERED = 170, 2
"""Thread-instructions that issue while the second cache takes a sector of a store, if it takes
5.5 TB/s, and how many times longer than memory it may take: guesses that no run has tested."""

STAGED_BYTES = 160
"""Bytes of shared memory for each thread, at most: a multiprocessor has as much for two thirds of
its threads."""

STAGED_CODE, STAGE, COPY = 60, 40, 9
"""Instructions that the copies to shared memory and back take to compile as long as, those of a
thread, and those of each vector."""

AHEAD = 1.2
"""How many times less a tile in shared memory must cost than all else: no run has timed it yet."""

REACH = 128
"""Positions from the first tap of a dilated window to its last, at most: lines between taps, which
nobody reads, cost the compiler time."""

TILE_ROW = 28
"""Outputs of a row that one thread may take whole, so that its padding needs no instruction."""


def cheapest(
    problem: PoolProblem, geometry: Geometry, alignment: int, shared: bool = True
) -> Tile | None:  # fmt: skip
    """Return the tile that takes the shortest time, or None where rows.cu does not apply.

    That is one whose instructions leave memory the limit, of a short kernel if there is one, or one
    in shared memory that takes fewer, if there may be.
    """
    dims, inner = geometry.dims, geometry.dims[-1]
    if len(dims) > 3 or inner.axis.pad_begin >= inner.axis.extent:
        return None
    if by_powers(problem) or (problem.indices and not _numbers_fit(problem)):
        return None
    if any(dim.axis.dilation > 1 and dim.axis.extent > REACH for dim in dims):
        return None
    if problem.reduction == "max" and not all(dim.axis.touches for dim in dims):
        return None
    pixel = problem.channels if problem.channels_last else 1
    if inner.step != pixel or (problem.channels_last and geometry.channels.step != 1):
        return None
    tiles = (
        tile
        for lanes, packed in _lanes(problem)
        for outputs, row in _pieces(inner.axis, packed)
        for rows in _row_counts(dims)
        if (tile := Tile.of(problem, geometry, alignment, outputs, row, rows, lanes, packed))
    )
    estimates = [(tile, Estimate.of(problem, geometry, tile)) for tile in tiles]
    limit = ENOUGH * BUDGET * _moved(problem, geometry)
    for most, most_code in ((limit, SHORT_CODE), (limit, MOST_CODE), (inf, MOST_CODE)):
        fitting = [
            (max(estimate.total, limit) * _slower(problem, geometry, tile), estimate.total, tile)
            for tile, estimate in estimates
            if estimate.total <= most and estimate.code <= most_code
        ]
        if fitting:
            _, total, tile = min(fitting, key=itemgetter(0, 1))
            if most == limit or not shared:
                return tile
            return _cheapest_in_shared_memory(problem, geometry, alignment, total) or tile
    return _cheapest_in_shared_memory(problem, geometry, alignment, inf) if shared else None


def _cheapest_in_shared_memory(
    problem: PoolProblem, geometry: Geometry, alignment: int, most: float
) -> Tile | None:
    """Return the tile of whole rows of staged planes that costs least, and at most so much."""
    inner = geometry.dims[-1].axis
    found = []
    for outputs, row in _pieces(inner, not problem.channels_last):
        for rows in _row_counts(geometry.dims) if row else ():
            tile = Tile.of(problem, geometry, alignment, outputs, row, rows, 1, True, shared=True)
            if tile is None or not _planes_of_a_block(problem, geometry, alignment, tile):
                continue
            code = Estimate.of(problem, geometry, tile).code + STAGED_CODE
            needed = instructions(problem, geometry, tile)
            if needed <= most and code <= MOST_CODE:
                found.append((needed, code, tile))
    return min(found, key=itemgetter(0, 1))[2] if found else None


def instructions(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Estimate the instructions of a tile, or those that issue while shared memory takes longer.

    A tile in shared memory counts for AHEAD times as many.
    """
    total = Estimate.of(problem, geometry, tile).total
    if not tile.shared:
        return total
    threads = tile.threads(geometry)
    vectors = _moved(problem, geometry) / VECTOR_BYTES
    loads, apart = _warp_loads(problem, geometry, tile)
    load = WORD_BYTES if tile.anywhere else tile.load * problem.dtype.itemsize
    stores = threads / WARP * tile.rows * tile.outputs / tile.store
    turns = MEET * (loads * _turns_of(apart, load) + stores) + vectors * VECTOR_BYTES / LINE_BYTES
    return AHEAD * max(total + STAGE * threads + COPY * vectors, TURN * turns)


def leaves_memory_the_limit(problem: PoolProblem, geometry: Geometry, tile: Tile) -> bool:
    """Whether a tile issues its instructions well within the time that memory takes."""
    return instructions(problem, geometry, tile) <= ENOUGH * BUDGET * _moved(problem, geometry)


def _moved(problem: PoolProblem, geometry: Geometry) -> int:
    """Return the bytes of every position that some window may read and of every output."""
    axes = [dim.axis for dim in geometry.dims]
    read = prod(min(a.size, (a.out - 1) * min(a.stride, a.kernel) + a.extent) for a in axes)
    return geometry.planes * read * problem.dtype.itemsize + sum(y.nbytes for y in problem.outputs)


def _slower(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Return how much longer a tile takes than one of a vector each, whose rows are read once."""
    axes = tuple(dim.axis for dim in geometry.dims)
    body = (tile.row or tile.outputs * axes[-1].stride if tile.packed else 1) * tile.lanes
    vectors = max(1.0, body * problem.dtype.itemsize / VECTOR_BYTES)
    held = vectors * tile.rows * (1 if tile.packed else tile.outputs)
    line = Line.of(tile, axes[-1], problem.dtype.itemsize).read * problem.dtype.itemsize
    read = tile.threads(geometry) * geometry.slices * lines(axes, tile) * line
    again = max(1.0, read / _moved(problem, geometry))
    apart = _loads_apart(geometry, tile, body) * _stores_apart(problem, tile)
    return float(apart**APART * held**HELD * again**REREAD)


def _loads_apart(geometry: Geometry, tile: Tile, body: int) -> float:
    """Return how many loads lie between those of neighbouring threads, maybe of other rows."""
    axes = tuple(dim.axis for dim in geometry.dims)
    alone = tile.packed and len(axes) > 1 and tile.groups(geometry)[0] == 1
    return max(1.0, body / tile.load * (tile.rows * down_axis(axes).stride if alone else 1))


def _stores_apart(problem: PoolProblem, tile: Tile) -> float:
    """Return the same of stores, where there are two those of the wider result."""
    size = max(output.dtype.itemsize for output in problem.outputs)
    stored = tile.lanes * (tile.outputs if tile.packed else 1)
    return max(1.0, stored * size / min(VECTOR_BYTES, tile.store * size))


def _pieces(inner: Axis, packed: bool) -> list[tuple[int, int]]:
    """Return outputs along a row that a thread may take, and the row's size where that is all."""
    pieces = [(outputs, 0) for outputs in (1, 2, 4, 8, 16)]
    if packed and inner.out <= TILE_ROW and inner.touches and inner.dilation == 1:
        pieces.append((inner.out, inner.size))
    return pieces


def _numbers_fit(problem: PoolProblem) -> bool:
    """Whether 32 bits hold the Indices of an image."""
    return problem.channels * prod(problem.spatial) <= INT32_MAX


def _row_counts(dims: Sequence[Dim]) -> list[int]:
    """Return how many output rows a thread may take."""
    if len(dims) == 1:
        return [1]
    return list(range(1, min(8, dims[-2].axis.out) + 1))


def _lanes(problem: PoolProblem) -> tuple[tuple[int, bool], ...]:
    """Return the ways to take pixels: (neighbouring elements of one, whether pixels adjoin)."""
    channels = problem.channels
    if not problem.channels_last or channels == 1:
        return ((1, True),)
    if channels <= 4:
        return ((channels, True),)
    # Merges of Indices are dear: of one channel a tile has more pixels, which share them.
    counts = (1, 2, 4, 8, 16) if problem.indices else (2, 4, 8, 16)
    return tuple((lanes, False) for lanes in counts if channels % lanes == 0)


def staged_planes(problem: PoolProblem, geometry: Geometry, alignment: int, tile: Tile) -> int:
    """Return how many planes a block should copy to shared memory, or 0.

    Whole rows of narrow planes lie in up to as many lines as a warp has threads. To look these up
    may take longer than all else, the turns of shared memory among it, where rows may meet in a
    bank. Blocks are of whole warps as far as may be, and are many.
    """
    planes = _planes_of_a_block(problem, geometry, alignment, tile)
    if not planes or tile.shared:
        return planes
    loads, apart = _warp_loads(problem, geometry, tile)
    lookups = LOOKUP * loads * _lines_of(apart)
    turns = TURN * loads * _turns_of(apart, tile.load * problem.dtype.itemsize)
    issued = Estimate.of(problem, geometry, tile).total
    return planes if lookups >= max(turns, issued, BUDGET * _moved(problem, geometry)) else 0


def _planes_of_a_block(
    problem: PoolProblem, geometry: Geometry, alignment: int, tile: Tile
) -> int:  # fmt: skip
    """Return how many planes a block can copy: whole vectors, and whole warps as far as may be."""
    if not _adjoin(geometry) or not tile.row or alignment < VECTOR_BYTES:
        return 0
    if tile.threads(geometry) < BLOCKS * THREADS:
        return 0
    threads = tile.threads(geometry) // geometry.planes
    sizes = [geometry.channels.step * problem.dtype.itemsize]
    if tile.shared:
        sizes.append(_results(geometry) * problem.out_dtype.itemsize)
    most = min(THREADS // threads, SHARED_BYTES // sum(sizes), geometry.planes)
    step = lcm(*(VECTOR_BYTES // gcd(size, VECTOR_BYTES) for size in sizes))
    counts = range(step, most + 1, step) if sum(sizes) <= STAGED_BYTES * threads else ()
    warps = {planes: -(-planes * threads // WARP) for planes in counts if planes * threads >= WARP}
    return max(warps, key=lambda planes: (planes * threads / warps[planes], planes), default=0)


def _scatters(problem: PoolProblem, geometry: Geometry, tile: Tile) -> bool:
    """Whether stores of threads whose rows lie apart take clearly longer than memory does."""
    stored = tile.rows * tile.outputs
    apart = stored * problem.out_dtype.itemsize
    stores = tile.threads(geometry) / WARP * stored / tile.store
    sectors = stores * min(WARP, max(1.0, WARP * apart / SECTOR_BYTES))
    return SECTOR * sectors > SCATTERED * BUDGET * _moved(problem, geometry)


def _results(geometry: Geometry) -> int:
    """Return the outputs of a plane."""
    return prod(dim.axis.out for dim in geometry.dims)


def _adjoin(geometry: Geometry) -> bool:
    """Whether rows, planes and images lie one behind the other."""
    if geometry.images:
        return False
    size = 1
    for dim in (*reversed(geometry.dims), geometry.channels):
        if dim.step != size:
            return False
        size *= dim.axis.size
    return True


def _warp_loads(problem: PoolProblem, geometry: Geometry, tile: Tile) -> tuple[float, int]:
    """Return the loads of all warps, and the bytes from one thread's row to that of the next."""
    axes, itemsize = tuple(dim.axis for dim in geometry.dims), problem.dtype.itemsize
    loads = lines(axes, tile) * Line.of(tile, axes[-1], itemsize).loads
    apart = tile.rows * down_axis(axes).stride * tile.row * itemsize
    return tile.threads(geometry) / WARP * geometry.slices * loads, apart


def _lines_of(apart: int) -> float:
    """Return the lines of the first cache that a warp touches whose threads lie so far apart.

    >>> _lines_of(2), _lines_of(56), _lines_of(300)
    (1.0, 14.0, 32.0)
    """
    return min(float(WARP), max(1.0, WARP * apart / LINE_BYTES))


def _turns_of(apart: int, load: int) -> float:
    """Return the turns of shared memory for a warp whose loads, of so many bytes, lie so far apart.

    >>> _turns_of(40, 8), _turns_of(56, 4), _turns_of(64, 16)
    (2.0, 2.0, 16.0)
    """
    together = min(WARP, LINE_BYTES // max(load, 4))
    places = LINE_BYTES // gcd(apart, LINE_BYTES)
    return WARP / min(together, places)


@lru_cache(maxsize=1)
def rows_dtype() -> np.dtype[Any]:
    """Return the NumPy mirror of ``Rows`` in kernels/rows.cu."""
    names = ("vectors", "groups", "row_groups")
    divisors = [(name, divisor_dtype("int")) for name in names]
    return np.dtype([("threads", "i4"), *divisors, ("pixel_step", "i4")], align=True)


def launch(problem: PoolProblem, geometry: Geometry, tile: Tile) -> Launch:
    """Launch as many threads as there are tiles."""
    axes = [dim.axis for dim in geometry.dims]
    template = (
        operator(problem, "int"), kernel_sizes(axes),
        sizes([a.stride for a in axes]), str(axes[-1].pad_begin), str(tile.row),
        tile.over, tile.partial, str(tile.outputs), str(tile.rows), str(tile.lanes),
        boolean(tile.packed), boolean(geometry.images), str(tile.load), str(tile.store),
    )  # fmt: skip
    grid = np.zeros((), rows_dtype())
    threads = tile.threads(geometry)
    groups, row_groups = tile.groups(geometry)
    grid["threads"] = threads
    grid["vectors"] = divisor(problem.channels // tile.lanes, "int")
    grid["groups"], grid["row_groups"] = divisor(groups, "int"), divisor(row_groups, "int")
    grid["pixel_step"] = problem.channels
    scalars = (grid, window_parameters(problem, geometry))
    operands = ("x", "y", "indices")
    return Launch.over(threads, "rows.cu", "rows", template, operands, scalars)


def staged_launch(
    problem: PoolProblem, geometry: Geometry, alignment: int, tile: Tile
) -> Launch | None:
    """Launch blocks that copy so many planes to shared memory first, or None where none should."""
    planes = staged_planes(problem, geometry, alignment, tile)
    if not planes:
        return None
    if not tile.shared and _scatters(problem, geometry, tile):
        both = replace(tile, shared=True)
        if planes_of_both := _planes_of_a_block(problem, geometry, alignment, both):
            planes, tile = planes_of_both, both
    alone = launch(problem, geometry, tile)
    *shared_by_both, _, _, _, load, store = alone.template
    threads = tile.threads(geometry) // geometry.planes * planes
    staged = planes * geometry.channels.step * problem.dtype.itemsize
    each, whole = staged // (threads * VECTOR_BYTES), geometry.planes % planes == 0
    template = (
        *shared_by_both, load, store, str(planes), str(threads), str(each), boolean(whole),
        boolean(tile.shared),
    )  # fmt: skip
    grid = (-(-geometry.planes // planes), 1)
    results = planes * _results(geometry) * problem.out_dtype.itemsize if tile.shared else 0
    return replace(
        alone, kernel="rows_staged", template=template, grid=grid, shared=staged + results,
        block=threads,
    )  # fmt: skip
