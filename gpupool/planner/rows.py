"""rows.cu: which tile of outputs one thread takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from gpupool.planner.geometry import Dim, Geometry
from gpupool.planner.launches import BUDGET, VECTOR_BYTES, Launch
from gpupool.planner.parameters import (
    boolean,
    by_powers,
    divisor,
    divisor_dtype,
    operator,
    sizes,
    window_parameters,
)
from gpupool.planner.tile import Tile
from gpupool.planner.tile_cost import Estimate
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

SHORT_CODE, MOST_CODE = 465, 650
"""Instructions of a kernel of rows.cu: up to the first it compiles in about four times the time of
the smallest kernel (``python -m bench --cold``), 100 ms on a server that nothing disturbs. A
hundred instructions more take about one of those times more."""

ENOUGH = 0.52
"""The part of the time that memory takes, by estimate: instructions that issue within it are
hardly what limits."""

NARROW = 0.1
"""A power of the ratio of the widest vector to a narrower one: 7 % for one of half."""

TILE_ROW = 28
"""Outputs of a row that one thread may take whole, so that its padding needs no instruction."""


def cheapest(problem: PoolProblem, geometry: Geometry, alignment: int) -> Tile | None:
    """Return the tile with the fewest instructions, or None where rows.cu does not apply.

    A short kernel does where its instructions leave memory the limit.
    """
    dims, inner = geometry.dims, geometry.dims[-1]
    if len(dims) > 3 or inner.axis.pad_begin >= inner.axis.kernel:
        return None
    if by_powers(problem) or (problem.indices and not _numbers_fit(problem)):
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
    short = _fewest(problem, estimates, SHORT_CODE)
    if short is not None and leaves_memory_the_limit(problem, geometry, short):
        return short
    return _fewest(problem, estimates, MOST_CODE)


def leaves_memory_the_limit(problem: PoolProblem, geometry: Geometry, tile: Tile) -> bool:
    """Whether a tile issues its instructions well within the time that memory takes."""
    axes = [dim.axis for dim in geometry.dims]
    read = prod(min(a.size, (a.out - 1) * min(a.stride, a.kernel) + a.kernel) for a in axes)
    moved = geometry.planes * read * problem.dtype.itemsize
    moved += sum(output.nbytes for output in problem.outputs)
    return Estimate.of(problem, geometry, tile).total <= ENOUGH * BUDGET * moved


def _fewest(
    problem: PoolProblem, estimates: list[tuple[Tile, Estimate]], most_code: int
) -> Tile | None:
    """Return the tile with the fewest instructions, of narrow vectors more, whose code is short."""

    def weighed(tile: Tile, estimate: Estimate) -> float:
        widths = tile.load * problem.dtype.itemsize, tile.store * problem.out_dtype.itemsize
        narrower = prod(VECTOR_BYTES / min(VECTOR_BYTES, width) for width in widths)
        return estimate.total * narrower**NARROW

    costs = [(weighed(*one), one[0]) for one in estimates if one[1].code <= most_code]
    return min(costs, key=itemgetter(0), default=(0.0, None))[1]


def _pieces(inner: Axis, packed: bool) -> list[tuple[int, int]]:
    """Return outputs along a row that a thread may take, and the row's size where that is all."""
    pieces = [(outputs, 0) for outputs in (1, 2, 4, 8, 16)]
    if packed and inner.out <= TILE_ROW and inner.touches:
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
    return tuple((lanes, False) for lanes in (2, 4, 8, 16) if channels % lanes == 0)


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
        operator(problem, "int"), sizes([a.kernel for a in axes]),
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
