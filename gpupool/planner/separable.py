"""separable.cu: large overlapping windows, columns first, then rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import BLOCKS, SHARED_BYTES, THREADS, WARP, Launch, Scalar
from gpupool.planner.parameters import (
    accumulator,
    boolean,
    by_powers,
    divisor,
    divisor_dtype,
    operator,
    power_cost,
    window_parameters,
)
from gpupool.planner.specialised import admit, compiles_in
from gpupool.problem import PoolProblem
from gpupool.window import Axis

SEPARABLE_TAPS = 9
"""Windows from this many taps, stride 1, may be cheaper by separable.cu."""

MOST_TAPS_OF_SUMS = 2**16
"""Windows up to this many: a float32 sum divided by more is not proved to be rounded right."""

READ, STORE = 8, {"max": 11, "average": 24, "lp": 20}
"""Instructions to read a tap and merge it, and from a partial result to its store."""

SECTOR_BYTES = 32
"""Bytes that memory moves at least."""

CHUNK, PITCH = 9, 252
"""Outputs of a row that one lane of separable.cu takes, and columns of its shared memory."""

TILES_DTYPE = np.dtype(
    [
        *(
            (name, "i4")
            for name in ("planes", "all_planes", "together", "height", "width", "rows", "columns")
        ),
        *((name, divisor_dtype("int")) for name in ("down", "across")),
        ("span", "i4"),
        *((name, divisor_dtype("int")) for name in ("seats", "neighbours")),
        ("share", "i4"),
    ],
    align=True,
)
"""The NumPy mirror of ``Tiles`` in kernels/separable.cuh."""


@dataclass(frozen=True)
class Tiles:
    """The outputs of one block: planes x height x width.

    ``span`` input columns lie under a plane's; ``together`` counts two planes where a word of
    shared memory holds two maxima; ``rows`` and ``columns`` of it are used.
    """

    planes: int
    together: int
    height: int
    width: int
    span: int
    rows: int
    columns: int

    def blocks(self, geometry: Geometry) -> tuple[int, int, int]:
        """Return how many take the planes, the rows and the columns."""
        outer, inner = (dim.axis for dim in geometry.dims)
        planes = -(-geometry.planes // self.together)
        return planes, -(-outer.out // self.height), -(-inner.out // self.width)

    def struct(self, geometry: Geometry, seats: int, neighbours: int, share: int) -> Scalar:
        """Return what a kernel receives."""
        _, down, across = self.blocks(geometry)
        numbers = (
            self.planes, geometry.planes, self.together, self.height, self.width, self.rows,
            self.columns, divisor(down, "int"), divisor(across, "int"), self.span,
            divisor(seats, "int"), divisor(neighbours, "int"), share,
        )  # fmt: skip
        return np.array(numbers, TILES_DTYPE)


@dataclass(frozen=True)
class _Tiles(Tiles):
    """Tiles of separable.cu and their cost."""

    cost: float


def launch(problem: PoolProblem, geometry: Geometry, most: float) -> Launch | None:
    """Launch separable.cu, or return None where it does not serve or costs more than ``most``."""
    planes = served(problem, geometry)
    if planes is None or planes.dims[1].axis.kernel > PITCH - CHUNK:
        return None
    geometry = planes
    tiles = _tiles(problem, geometry)
    if tiles.cost > most:
        return None
    return _tiled_launch(problem, geometry, tiles)


def served(problem: PoolProblem, geometry: Geometry) -> Geometry | None:
    """Return the problem as planes of two axes, or None where the windows are not separable.

    That is, where they do not overlap as much as they can, or are of more than one can divide by.
    """
    if prod(dim.axis.out for dim in geometry.dims) == 1 or geometry.outputs == 0:
        return None
    if len(geometry.dims) == 1:
        geometry = geometry.with_rows()
    axes = [dim.axis for dim in geometry.dims]
    if problem.indices or len(axes) > 2 or geometry.index_type != "int":
        return None
    if any(a.stride != 1 or a.dilation != 1 or a.kernel > a.size + a.pad_begin for a in axes):
        return None
    if problem.reduction != "max" and geometry.taps > MOST_TAPS_OF_SUMS:
        return None
    return geometry if geometry.taps >= SEPARABLE_TAPS else None


def _tiles(problem: PoolProblem, geometry: Geometry) -> _Tiles:
    """Return as many columns as a block has threads, and the rows that cost least."""
    outer, inner = (dim.axis for dim in geometry.dims)
    paired = twins(problem)
    usable = PITCH - CHUNK + 1  # the last windows of a row are read with the rest of their chunk
    # Planes side by side share the padding between them, as far as no window lies in it.
    shared_padding = min(inner.pad_begin, inner.pad_end, inner.kernel - 1)
    fitting = (usable - shared_padding) // (inner.out + inner.kernel - 1 - shared_padding)
    planes, across = _neighbours(problem, inner, usable), 1
    if fitting >= planes:
        planes *= max(1, min(fitting, geometry.planes // (BLOCKS << paired)) // planes)
    else:
        shared_padding = 0
        across = -(-inner.out // (usable // planes - inner.kernel + 1))
    width = -(-inner.out // across)
    span = width + inner.kernel - 1 - shared_padding
    columns = -(-(planes * span + shared_padding + CHUNK - 1) // CHUNK) * CHUNK
    blocks = -(-geometry.planes // (planes << paired)) * across
    most_rows = SHARED_BYTES // (PITCH * accumulator(problem).itemsize)
    highest = min(outer.out, most_rows)
    heights = {highest, *range(outer.kernel, highest, outer.kernel)}
    lanes, power = -(-columns // WARP) * WARP, power_cost(problem)
    each = READ + power, STORE[problem.reduction] + power
    cost, height = min(
        (_tiled_cost(outer, height, blocks, lanes, *each), height) for height in heights
    )
    rows = min(-(-height // outer.kernel) * outer.kernel, most_rows)
    return _Tiles(planes, planes << paired, height, width, span, rows, columns, cost)


def twins(problem: PoolProblem) -> bool:
    """Whether words of shared memory hold the maxima of two planes."""
    return problem.reduction == "max" and problem.dtype.itemsize == 2


def _neighbours(problem: PoolProblem, inner: Axis, usable: int) -> int:
    """Return the planes of a tile: channels last what a sector of memory holds, up to half halo."""
    if not problem.channels_last:
        return 1
    sector, channels = SECTOR_BYTES // problem.dtype.itemsize, problem.channels
    if twins(problem):
        sector, channels = sector // 2, channels // 2
    return max(1, min(sector, channels, usable // (2 * inner.kernel - 1)))


def _tiled_cost(
    outer: Axis, height: int, blocks: int, lanes: int, read: int, store: int
) -> int:  # fmt: skip
    """Estimate the instructions of all blocks: setup and rows of a tile, columns and stores."""
    runs = -(-height // outer.kernel)
    reads = runs * outer.kernel + height - runs
    each = THREADS * (150 + 110 * -(-height * WARP // THREADS))
    each += lanes * (60 * runs + read * reads + store * height)
    return max(-(-outer.out // height) * blocks, BLOCKS) * each


def _tiled_launch(problem: PoolProblem, geometry: Geometry, tiles: _Tiles) -> Launch:
    inner, last = geometry.dims[1].axis, boolean(problem.channels_last)
    neighbours = tiles.planes if problem.channels_last else tiles.span
    reduction, width = operator(problem, "int"), str(inner.kernel)
    known = not by_powers(problem) and (
        inner.kernel < CHUNK or (compiles_in() and admit(("separable", reduction, width, last)))
    )
    struct = tiles.struct(geometry, tiles.columns, neighbours, tiles.rows)
    return Launch(
        "separable.cu",
        "separable",
        (reduction, width if known else "0", last),
        ("x", "y"),
        (struct, window_parameters(problem, geometry)),
        (prod(tiles.blocks(geometry)), 1),
        tiles.rows * PITCH * accumulator(problem).itemsize,
    )
