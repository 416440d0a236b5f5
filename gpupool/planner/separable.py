"""separable.cu: large overlapping windows, columns first, then rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BLOCKS,
    SECTOR_BYTES,
    SHARED_BYTES,
    THREADS,
    WARP,
    Launch,
    Scalar,
    round_up,
)
from gpupool.planner.parameters import (
    INT128,
    accumulator,
    boolean,
    by_powers,
    cuda,
    divisor,
    divisor_dtype,
    operator,
    pairs,
    power_cost,
    window_parameters,
)
from gpupool.planner.specialised import admit
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

SEPARABLE_TAPS = 9
"""Windows from this many taps may be cheaper by separable.cu."""

MOST_TAPS_OF_SUMS = 2**16
"""Windows up to this many: a float32 sum divided by more is not proved to be rounded right."""

SETUP, RUN, ONE_ROW = 150, 75, 45
"""Instructions of a thread, and of a run of several rows, or of one. These and those below are
fitted to counts of 3115 random tiles, which two thirds of the estimates meet within a seventh."""

READ, WIDEN, IN_SLICES, SLICE, PAIRED_SLICE = 10.0, 2.5, 14, 12.0, 18.5
"""To read a tap and merge it, and more where two bytes become halves of a word; of a volume for
each row, and for each of its slices, of one plane or of two in a word."""

PADDED, CLEARED = 19, 7
"""Of a row of padding, which is not read, and of each row of a column of padding."""

ALONG, DOUBLE_ALONG = 35, 100
"""Of a lane for its outputs of a row, and for those that are maxima of doubles."""

STORE, STORE_NORMS = {"max": 5, "average": 18}, {1: 8, 2: 19, 3: 30}
"""From a partial result to its store, of norms by their exponent; a pow is counted apart."""

READ_PLACED, IN_ORDER, SLICED = {4: 11, 8: 20, 16: 33}, 3, 24
"""To read a maximum with its place by the bytes that hold both, less of integers, which are in the
order of their bits, and more for each row of a volume."""

ALONG_PLACED, STORE_PLACED = {4: 35, 8: 60, 16: 150}, 29
"""Of a lane for its outputs of a row, and to store one, with their places."""

STORING = 128
"""Threads of a block that store results which are apart: fewer than all, so that finding its first
one costs a thread little."""

MOST_INTEGER_TAPS = 2**15 - 1
"""A float32 quotient by more than that may be rounded to the wrong integer."""

LEAST_PLACED, LITTLE_HALO = 4, 7
"""Channels last with Indices, planes of a tile at least, and how many times a kernel's columns each
should have: most instructions are of columns, but of fewer planes most of a sector is not read."""

CHUNK, PITCH = 9, 252
"""Outputs of a row that one lane of separable.cu takes, and columns of its shared memory."""

WORDS = np.dtype(np.int32), np.dtype(np.int64), INT128
"""Types whose halves hold a maximum and its place, which is a number of 32 bits at most."""

ROW_PLACES, SLICE_ROWS = 2**8, 2**13
"""Places in a row under a tile, and rows in each of more slices than one: ``place`` in
kernels/separable.cu."""

SLICES = 2**32 // (ROW_PLACES * SLICE_ROWS)
"""Slices that a place may name."""

TILES_DTYPE = np.dtype(
    [
        *((name, "i4") for name in ("planes", "all_planes", "together", "height", "width")),
        *((name, "i4") for name in ("covered", "rows", "columns")),
        *((name, divisor_dtype("int")) for name in ("down", "across")),
        ("span", "i4"),
        *((name, divisor_dtype("int")) for name in ("seats", "neighbours")),
        ("share", "i4"),
        *(
            (name, divisor_dtype("int"))
            for name in ("row_stride", "column_stride", "results", "parts")
        ),
    ],
    align=True,
)
"""The NumPy mirror of ``Tiles`` in kernels/separable.cuh."""


Held = np.dtype[Any]
"""The type of a partial result in shared memory."""


@dataclass(frozen=True)
class Tiles:
    """The outputs of one block, as if strides were 1: planes x height x width.

    ``span`` input columns lie under a plane's; ``together`` counts two planes where a word of
    shared memory holds both; ``rows`` and ``columns`` of it are used. Under tiles are
    ``covered`` rows of outputs: all of a plane, or its upper half where words hold both halves.
    """

    planes: int
    together: int
    height: int
    width: int
    covered: int
    span: int
    rows: int
    columns: int

    def blocks(self, geometry: Geometry) -> tuple[int, int, int]:
        """Return how many take the planes, the rows and the columns."""
        across = geometry.dense.axes[-1].out
        planes = -(-all_planes(geometry) // self.together)
        return planes, -(-self.covered // self.height), -(-across // self.width)

    def struct(self, geometry: Geometry, seats: int, neighbours: int, share: int) -> Scalar:
        """Return what a kernel receives."""
        _, down, across = self.blocks(geometry)
        strides = [axis.stride for axis in geometry.axes[-2:]]
        results = -(-self.width // strides[1])
        parts = max(1, STORING // (results * self.planes))
        numbers = (
            self.planes, all_planes(geometry), self.together, self.height, self.width, self.covered,
            self.rows, self.columns, divisor(down, "int"), divisor(across, "int"), self.span,
            divisor(seats, "int"), divisor(neighbours, "int"), share,
            *(divisor(number, "int") for number in (*strides, results, parts)),
        )  # fmt: skip
        return np.array(numbers, TILES_DTYPE)


@dataclass(frozen=True)
class _Tiles(Tiles):
    """Tiles of separable.cu and their cost."""

    cost: float


def launch(problem: PoolProblem, geometry: Geometry, most: float) -> Launch | None:
    """Launch separable.cu, or return None where it does not serve or costs more than ``most``."""
    fitting = _fitting(problem, geometry)
    if fitting is None or (tiles := _tiles(problem, *fitting)).cost > most:
        return None
    return _tiled_launch(problem, *fitting, tiles)


def cost(problem: PoolProblem, geometry: Geometry) -> float:
    """Estimate the instructions of all blocks: endless where separable.cu does not serve."""
    fitting = _fitting(problem, geometry)
    return inf if fitting is None else _tiles(problem, *fitting).cost


def _fitting(problem: PoolProblem, geometry: Geometry) -> tuple[Geometry, Held] | None:
    """Return what is served, and held, where a window fits in the columns of a tile, or None."""
    planes = served(problem, geometry)
    if planes is None or planes.axes[-1].kernel > PITCH - CHUNK:
        return None
    held = _held(problem, planes)
    return None if held is None else (planes, held)


def _held(problem: PoolProblem, geometry: Geometry) -> Held | None:
    """Return the type of what shared memory holds, or None where no type holds it.

    With Indices that is a maximum in one half of an integer and its place in the other; 32 bits
    number a plane and its padding then.
    """
    if not problem.indices:
        return accumulator(problem)
    *outer, rows, _ = (axis.kernel for axis in geometry.axes)
    numbers = sum((d.axis.pad_begin + d.axis.size) * d.index_step for d in geometry.dims)
    if numbers > INT32_MAX or max(outer, default=1) > SLICES:
        return None
    for word in WORDS:
        under, known = rows - 1 + _most_rows(word), _rows_known(word, slices=bool(outer))
        if problem.dtype.itemsize <= word.itemsize // 2 and under <= known:
            return word
    return None


def _rows_known(word: Held, slices: bool) -> int:
    """Return the rows under a tile, of one slice or of several, that the places in a word name."""
    bits = min(4 * word.itemsize, 32)
    if slices:
        return SLICE_ROWS if bits == 32 else 0
    return (1 << bits) // ROW_PLACES


def served(problem: PoolProblem, geometry: Geometry) -> Geometry | None:
    """Return the problem as planes of rows, or None where the windows are not separable.

    That is, where they do not overlap, or are of more than one can divide by.
    """
    if prod(axis.out for axis in geometry.axes) == 1:
        return None
    if len(geometry.dims) == 1:
        geometry = geometry.with_rows()
    axes = geometry.axes
    if len(axes) > 3 or geometry.index_type != "int":
        return None
    if len(axes) > 2 and (by_powers(problem) or not axes[0].touches):
        return None
    if not all(a.adjoining and a.kernel <= a.size + a.pad_begin for a in axes):
        return None
    if not all(a.stride < a.kernel or a.stride == 1 for a in axes[-2:]):
        return None
    if problem.reduction != "max" and geometry.taps > MOST_TAPS_OF_SUMS:
        return None
    return geometry if geometry.taps >= SEPARABLE_TAPS else None


def counts_in_floats(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether no norm needs a pow, and float32 tells which integer is nearest to an average."""
    integers = problem.reduction == "average" and not problem.out_dtype.is_float
    return not by_powers(problem) and not (integers and geometry.taps > MOST_INTEGER_TAPS)


def _most_rows(held: Held) -> int:
    return SHARED_BYTES // (PITCH * held.itemsize)


def _tiles(problem: PoolProblem, geometry: Geometry, held: Held) -> _Tiles:
    """Return as many columns as a block has threads, and the rows that cost least."""
    outer, inner = geometry.dense.axes[-2:]
    apart, paired = geometry.axes[-2].stride, pairs(problem)
    planes, across, common = _side_by_side(problem, geometry, inner)
    width = -(-inner.out // across)
    span = width + inner.kernel - 1 - common
    columns = round_up(planes * span + common + CHUNK - 1, CHUNK)
    blocks = -(-all_planes(geometry) // (planes << paired)) * across
    most_rows = _most_rows(held)
    highest = min(outer.out, most_rows)
    heights = {highest, *range(outer.kernel, highest, outer.kernel)}
    lanes, each = round_up(columns, WARP), _Each.of(problem, geometry, held)
    beside = span * across * (planes if problem.channels_last else 1)
    cost, height = min(
        (_tiled_cost(outer, inner, height, apart, blocks, lanes, beside, each), height)
        for height in heights
    )
    rows = min(round_up(height, outer.kernel), most_rows)
    return _Tiles(planes, planes << paired, height, width, outer.out, span, rows, columns, cost)


def _side_by_side(problem: PoolProblem, geometry: Geometry, inner: Axis) -> tuple[int, int, int]:
    """Return the planes of a tile, the tiles across a plane, and the padding that planes share."""
    usable = PITCH - CHUNK + 1  # the last windows of a row are read with the rest of their chunk
    common = shared_padding(inner)
    fitting = (usable - common) // (inner.out + inner.kernel - 1 - common)
    planes = _neighbours(problem, inner, usable)
    if fitting < planes:
        return planes, -(-inner.out // (usable // planes - inner.kernel + 1)), 0
    most = all_planes(geometry) // (BLOCKS << pairs(problem))  # more leave too few blocks
    return planes * max(1, min(fitting, most) // planes), 1, common


def shared_padding(inner: Axis) -> int:
    """Return the padding that planes side by side share, as far as no window lies in it."""
    return min(inner.pad_begin, inner.pad_end, inner.kernel - 1)


class _Each(NamedTuple):
    """Instructions of a lane: for a row of a column, for its outputs of a row, and for a store."""

    row: float
    along: float
    store: float

    @classmethod
    def of(cls, problem: PoolProblem, geometry: Geometry, held: Held) -> _Each:
        """Estimate them all."""
        volume, size = len(geometry.dims) > 2, held.itemsize
        if problem.indices:
            read = READ_PLACED[size] - (0 if problem.dtype.is_float else IN_ORDER)
            row = read * geometry.slices + SLICED * volume
            return cls(row, ALONG_PLACED[size], STORE_PLACED)
        power, paired = power_cost(problem), pairs(problem)
        tap = (PAIRED_SLICE if paired else SLICE) if volume else READ
        tap += power + (WIDEN if paired and problem.dtype.itemsize == 1 else 0)
        along = DOUBLE_ALONG if problem.reduction == "max" and size == 8 else ALONG
        return cls(tap * geometry.slices + IN_SLICES * volume, along, _store(problem) + power)


def _store(problem: PoolProblem) -> int:
    """Return what it takes to make and store a result, but for a pow."""
    if problem.reduction == "lp":
        return STORE_NORMS[1 if by_powers(problem) else int(problem.p)]
    return STORE[problem.reduction]


def strided(geometry: Geometry) -> bool:
    """Whether results of a tile are apart."""
    return any(axis.stride > 1 for axis in geometry.axes[-2:])


def all_planes(geometry: Geometry) -> int:
    """Return the planes of outputs."""
    return geometry.planes * (geometry.axes[0].out if len(geometry.dims) > 2 else 1)


def _neighbours(problem: PoolProblem, inner: Axis, usable: int) -> int:
    """Return the planes of a tile: channels last what a sector of memory holds, up to half halo.

    With Indices up to little halo, since these take more time to make than to read.
    """
    if not problem.channels_last:
        return 1
    sector, channels = SECTOR_BYTES // problem.dtype.itemsize, problem.channels
    if pairs(problem):
        sector, channels = sector // 2, channels // 2
    fitting = usable // (2 * inner.kernel - 1)
    if problem.indices:
        fitting = min(fitting, max(LEAST_PLACED, usable // (LITTLE_HALO * inner.kernel)))
    return max(1, min(sector, channels, fitting))


def _tiled_cost(
    outer: Axis, inner: Axis, height: int, apart: int, blocks: int, lanes: int, beside: int,
    each: _Each,
) -> float:  # fmt: skip
    """Estimate the instructions of all blocks: setup and rows of a tile, columns and stores.

    Of threads for a row of the input so many are ``beside`` each other.
    """
    runs, lines = -(-height // outer.kernel), -(-height // apart)
    reads = runs * outer.kernel + height - runs
    rows, columns = share_inside(outer), share_inside(inner)
    row = each.row * rows + PADDED * (1 - rows)
    run = RUN if outer.kernel > 1 else ONE_ROW
    down = share_of_warps(columns, beside) * (run * runs + row * reads)
    down += share_of_warps(1 - columns, beside) * CLEARED * runs * outer.kernel
    along = each.along if inner.kernel > 1 else 0
    block = THREADS * SETUP + lanes * (down + each.store * lines) + along * lines * WARP
    return max(-(-outer.out // height) * blocks, BLOCKS) * block


def share_inside(axis: Axis) -> float:
    """Return the share of the positions under all windows that are in the input, roughly."""
    return min(1, axis.size / (axis.out + axis.kernel - 1))


def share_of_warps(share: float, beside: float) -> float:
    """Return the share of warps that have any such column, where so many are beside each other."""
    return min(1, share + (WARP - 1) / beside) if share > 0 else 0


def _tiled_launch(
    problem: PoolProblem, geometry: Geometry, held: Held, tiles: _Tiles
) -> Launch | None:
    inner = geometry.axes[-1]
    neighbours = tiles.planes if problem.channels_last else tiles.span
    reduction, axes, width = _operator(problem, held), str(len(geometry.dims)), str(inner.kernel)
    more = tuple(map(boolean, (strided(geometry), problem.channels_last, geometry.images)))
    narrow = inner.kernel < CHUNK
    known = not by_powers(problem) and (
        (narrow and not problem.indices) or admit("separable", reduction, axes, width, *more)
    )
    if problem.indices and narrow and not known:
        return None
    struct = tiles.struct(geometry, tiles.columns, neighbours, tiles.rows)
    return Launch(
        "separable.cu",
        "separable",
        (reduction, axes, width if known else "0", *more),
        ("x", "y", "indices"),
        (struct, window_parameters(problem, geometry)),
        (prod(tiles.blocks(geometry)), 1),
        tiles.rows * PITCH * held.itemsize,
    )


def _operator(problem: PoolProblem, held: Held) -> str:
    """Return the operator, which of Indices merges maxima that bring their places."""
    if not problem.indices:
        return operator(problem, "int")
    return f"PlacedMax<{problem.dtype.cuda}, {cuda(problem.index_dtype)}, {cuda(held)}>"
