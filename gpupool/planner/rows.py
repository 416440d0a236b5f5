"""rows.cu: which tile of outputs one thread takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gpupool.planner.banks import WarpAccess
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    AHEAD,
    BUDGET,
    NEARLY,
    VECTOR_BYTES,
    WARP,
    Launch,
    forecast,
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
from gpupool.planner.tile_cost import Estimate, Line, down_axis, lines, stores
from gpupool.problem import Output, PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

SHORT_CODE, MOST_CODE = 465, 650
"""Instructions of a kernel of rows.cu or rows_staged.cu: up to the first it compiles in about four
times the time of the smallest kernel (``python -m bench --cold``), 100 ms on a server that nothing
disturbs. A hundred instructions more take about half of that smallest time more."""

LONG_CODE = 900
"""Instructions of a kernel of staged planes that costs AHEAD times less than shorter ones: CuPy
keeps what it compiles."""

ENOUGH = 0.52
"""The part of the time that memory takes, by estimate: instructions that issue within it are
hardly what limits."""

APART, HELD, REREAD = 0.3, 0.15, 0.3
"""Powers of what makes a tile slower than its instructions: how far apart neighbouring threads read
and write, what a thread holds, and how often the input is read. Fitted to the times of 950 tiles of
46 cases on an H200; the usual tile took 2 % longer than the fastest, in the mean."""

ALIKE = 1.02
"""Times that differ by no more, and what tiles take in all, are not told apart."""

REACH = 128
"""Positions from the first tap of a dilated window to its last, at most: lines between taps, which
nobody reads, cost the compiler time."""

TILE_ROW = 28
"""Outputs of a row that one thread may take whole, so that its padding needs no instruction."""


_Estimates = dict[Tile, Estimate]


class Choice(NamedTuple):
    """The usual tile, by what issues, and the one that is launched, by all that is served."""

    usual: Tile
    launched: Tile


def cheapest(problem: PoolProblem, geometry: Geometry, alignment: int) -> Choice | None:
    """Return the tiles that take the shortest time, or None where rows.cu does not apply."""
    if not serves(problem, geometry):
        return None
    estimates = _estimates(problem, geometry, alignment)
    usual = _usual(problem, geometry, estimates)
    return Choice(usual, _soonest(problem, geometry, estimates, usual)) if usual else None


def _usual(problem: PoolProblem, geometry: Geometry, estimates: _Estimates) -> Tile | None:
    """Return what takes the shortest time, of instructions within the limit if there are any.

    Of these it is one with a short kernel, if there is one. It gives way to what hardly takes more,
    neither time nor in all, and issues clearly less; not of dilated windows, since such tiles hold
    more registers.
    """
    enough = limit(problem, geometry)
    for most, most_code in ((enough, SHORT_CODE), (enough, MOST_CODE), (inf, MOST_CODE)):
        fitting = [
            (max(estimate.total, enough) * _slower(problem, geometry, tile), estimate.total, tile)
            for tile, estimate in estimates.items()
            if estimate.total <= most and estimate.code <= most_code
        ]
        if fitting:
            time, total, soonest = min(fitting, key=itemgetter(0, 1))
            served = ALIKE * total_cost(problem, geometry, soonest)
            less = [
                (issued, tile)
                for taken, issued, tile in fitting
                if taken <= ALIKE * time and NEARLY * issued < total
                if total_cost(problem, geometry, tile) <= served
            ]
            chosen = [] if _dilated(geometry) else less
            return min(chosen, key=itemgetter(0), default=(total, soonest))[1]
    return None


def _soonest(
    problem: PoolProblem, geometry: Geometry, estimates: _Estimates, usual: Tile
) -> Tile:  # fmt: skip
    """Return what takes clearly less than the usual tile by the forecast of all, or that.

    Less is served by AHEAD, and it takes less time by NEARLY. Of those that take as long as memory
    it is the one with the shortest kernel. None is longer than the usual one's, or than is short.
    Tiles of dilated windows hold so many registers that few threads are there, which it does not
    tell.
    """
    if _dilated(geometry):
        return usual
    memory, known = memory_time(problem, geometry), estimates[usual]
    needed = known.total + _waits(problem, geometry, usual)
    most = min(forecast(needed, memory) / NEARLY, forecast(needed / AHEAD, memory))
    if most <= 1:
        return usual
    longest = max(SHORT_CODE, known.code)
    sooner = [
        (forecast(estimate.total + _waits(problem, geometry, tile), memory), estimate.code, tile)
        for tile, estimate in estimates.items()
        if estimate.code <= longest
        and forecast(estimate.total, memory) < most  # before lines are counted
    ]
    time, _, tile = min(sooner, key=itemgetter(0, 1), default=(inf, 0, usual))
    return tile if time < most else usual


def _dilated(geometry: Geometry) -> bool:
    return any(axis.dilation > 1 for axis in geometry.axes)


def _estimates(problem: PoolProblem, geometry: Geometry, alignment: int) -> _Estimates:
    """Return what each tile costs."""
    inner = geometry.axes[-1]
    tiles = (
        Tile.of(problem, geometry, alignment, outputs, row, rows, lanes, packed)
        for lanes, packed in _lanes(problem)
        for outputs, row in pieces(inner, packed)
        for rows in row_counts(geometry.axes)
    )
    return {tile: Estimate.of(problem, geometry, tile) for tile in tiles if tile}


def serves(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether some tile may serve."""
    axes, inner = geometry.axes, geometry.dims[-1]
    if len(axes) > 3 or inner.axis.pad_begin >= inner.axis.extent:
        return False
    if by_powers(problem) or (problem.indices and not _numbers_fit(problem)):
        return False
    if any(axis.dilation > 1 and axis.extent > REACH for axis in axes):
        return False
    if problem.reduction == "max" and not all(axis.touches for axis in axes):
        return False
    pixel = problem.channels if problem.channels_last else 1
    return inner.step == pixel and not (problem.channels_last and geometry.channels.step != 1)


def instructions(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Estimate the instructions of all threads."""
    return Estimate.of(problem, geometry, tile).total


def limit(problem: PoolProblem, geometry: Geometry) -> float:
    """Return the instructions that issue well within the time that memory takes."""
    return ENOUGH * memory_time(problem, geometry)


def memory_time(problem: PoolProblem, geometry: Geometry) -> float:
    """Return the instructions that issue in the time that memory takes."""
    return BUDGET * _moved(problem, geometry)


def _moved(problem: PoolProblem, geometry: Geometry) -> int:
    """Return the bytes of every position that some window may read and of every output."""
    axes = geometry.axes
    read = prod(min(a.size, (a.out - 1) * min(a.stride, a.kernel) + a.extent) for a in axes)
    return geometry.planes * read * problem.dtype.itemsize + sum(y.nbytes for y in problem.outputs)


def _slower(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Return how much longer a tile takes than one of a vector each, whose rows are read once."""
    axes = geometry.axes
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
    axes = geometry.axes
    alone = tile.packed and len(axes) > 1 and tile.groups(geometry)[0] == 1
    return max(1.0, body / tile.load * (tile.rows * down_axis(axes).stride if alone else 1))


def _stores_apart(problem: PoolProblem, tile: Tile) -> float:
    """Return the same of stores, where there are two those of the wider result."""
    size = max(output.dtype.itemsize for output in problem.outputs)
    stored = tile.lanes * (tile.outputs if tile.packed else 1)
    return max(1.0, stored * size / min(VECTOR_BYTES, tile.store * size))


def pieces(inner: Axis, packed: bool) -> list[tuple[int, int]]:
    """Return outputs along a row that a thread may take, and the row's size where that is all."""
    pieces = [(outputs, 0) for outputs in (1, 2, 4, 8, 16)]
    if packed and inner.out <= TILE_ROW and inner.touches and inner.dilation == 1:
        pieces.append((inner.out, inner.size))
    return pieces


def _numbers_fit(problem: PoolProblem) -> bool:
    """Whether 32 bits hold the Indices of an image."""
    return problem.channels * prod(problem.spatial) <= INT32_MAX


def row_counts(axes: Sequence[Axis]) -> list[int]:
    """Return how many output rows a thread may take."""
    if len(axes) == 1:
        return [1]
    return list(range(1, min(8, axes[-2].out) + 1))


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


def total_cost(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Estimate the instructions, and those that would issue while lines and sectors are served."""
    return instructions(problem, geometry, tile) + _waits(problem, geometry, tile)


def _waits(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Estimate what would issue while lines and sectors are served."""
    itemsize, inner = problem.dtype.itemsize, geometry.axes[-1]
    strides = inner.stride, down_axis(geometry.axes).stride
    load = _access(geometry, tile, itemsize, itemsize * tile.load, inner.size, strides)
    stores = store_cost(problem.outputs, geometry, tile)
    return warp_loads(problem, geometry, tile) * load.load + stores


def store_cost(outputs: Iterable[Output], geometry: Geometry, tile: Tile) -> float:
    """Estimate what issues while the lines and sectors of stores are served."""
    each: float = 0
    for itemsize in (output.dtype.itemsize for output in outputs):
        stored, out = itemsize * tile.store, geometry.axes[-1].out
        width = min(stored, VECTOR_BYTES)
        store = _access(geometry, tile, itemsize, width, out, strides=(1, 1)).store
        each += store * stored / width
    return warp_stores(geometry, tile) * each


def _access(
    geometry: Geometry, tile: Tile, itemsize: int, width: int, size: int, strides: tuple[int, int]
) -> WarpAccess:  # fmt: skip
    """Return an access of ``width`` bytes to rows of ``size`` pixels, as if these lay in a row.

    Pixels of neighbouring outputs are ``strides`` apart. Where a tile's pixels do not adjoin,
    threads beside each other have channels of one, and the next ones those of the next tile.
    """
    along, down = tile.outputs * strides[0], tile.rows * strides[1]
    if tile.packed:
        pixel, beside = tile.lanes * itemsize, min(WARP, tile.groups(geometry)[0])
        return WarpAccess(beside, along * pixel, down * size * pixel, size * pixel, width)
    channels = geometry.channels.axis.size
    pixel, beside = channels * itemsize, min(WARP, channels // tile.lanes)
    return WarpAccess(beside, tile.lanes * itemsize, along * pixel, pixel, width)


def warp_loads(problem: PoolProblem, geometry: Geometry, tile: Tile) -> float:
    """Return the loads of all warps."""
    axes = geometry.axes
    of_line = Line.of(tile, axes[-1], problem.dtype.itemsize).loads
    return tile.threads(geometry) / WARP * geometry.slices * lines(axes, tile) * of_line


def warp_stores(geometry: Geometry, tile: Tile) -> float:
    """Return the stores of all warps."""
    return tile.threads(geometry) / WARP * stores(tile)


@lru_cache(maxsize=1)
def rows_dtype() -> np.dtype[Any]:
    """Return the NumPy mirror of ``Rows`` in kernels/rows.cuh."""
    names = ("vectors", "groups", "row_groups")
    divisors = [(name, divisor_dtype("int")) for name in names]
    return np.dtype([("threads", "i4"), *divisors, ("pixel_step", "i4")], align=True)


def launch(problem: PoolProblem, geometry: Geometry, tile: Tile) -> Launch:
    """Launch as many threads as there are tiles."""
    axes = geometry.axes
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
