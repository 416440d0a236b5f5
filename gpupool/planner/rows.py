"""rows.cu: how many outputs one thread takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gpupool.planner.geometry import Dim, Geometry
from gpupool.planner.launches import BUSY, Launch
from gpupool.planner.parameters import (
    boolean,
    by_powers,
    divisor,
    divisor_dtype,
    operator,
    sizes,
    vector_width,
    window_parameters,
)
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

TILE_REGISTERS = 56
"""Registers that the input of one thread of rows.cu may take."""

TILE_OUTPUTS = 32
"""Registers that its outputs may take: more cost compile time and gain little."""

TILE_CODE, MOST_CODE = 660, 770
"""Instructions of a kernel of rows.cu: up to the first it compiles well within 100 ms on a slow
processor, up to the second in about as much."""

FINISH = {"max": 2, "average": 6, "lp": 8}
"""Instructions from a partial result of rows.cu to the stored element, see _finish."""

COUNT, SHARE, DOUBLE_SHARE = 4, 2, 10
"""Instructions to count the taps of a row or a column of windows, and to look their share up; of
float64 it is refined."""

SLICES, CUBES = 120, 100
"""Instructions whose time a third axis and cubic roots take the compiler."""

DOUBLES = {"max": 200, "average": 0, "lp": 200}
"""The same of float64."""

SECOND_LOOK = {"average": 265, "lp": 300}
"""Instructions of a kernel of rows.cu that look at uncertain results again."""

TILE_ROW = 28
"""Outputs of a row that one thread may take whole, so that its padding needs no instruction."""

TILE_SETUP = 50
"""Instructions that a thread of rows.cu spends before its first load."""


@dataclass(frozen=True)
class Tile:
    """The block of outputs of one thread of rows.cu, and the widths of its loads and stores."""

    outputs: int
    rows: int
    lanes: int
    packed: bool
    load: int
    store: int
    pairs: bool  # two 16-bit maxima in a word
    row: int  # pixels of the row where one thread takes it whole, else 0
    inside: bool  # no tile leaves the outputs, no window the input
    partial: str  # where in its row windows may count fewer taps

    @classmethod
    def cheapest(cls, problem: PoolProblem, geometry: Geometry, alignment: int) -> Tile | None:
        """Return the tile with the fewest instructions, or None where rows.cu does not apply."""
        dims, inner = geometry.dims, geometry.dims[-1]
        if len(dims) > 3 or inner.axis.pad_begin >= inner.axis.kernel:
            return None
        if by_powers(problem) or (problem.indices and not _numbers_fit(problem, dims)):
            return None
        pixel = problem.channels if problem.channels_last else 1
        if inner.step != pixel or (problem.channels_last and geometry.channels.step != 1):
            return None
        tiles = (
            tile
            for lanes, packed in _lanes(problem)
            for outputs, row in _pieces(inner.axis, packed)
            for rows in _row_counts(dims)
            if (tile := cls._of(problem, geometry, alignment, outputs, row, rows, lanes, packed))
        )
        short = (tile for tile in tiles if tile.code(problem, geometry) <= MOST_CODE)
        return min(short, key=lambda tile: tile._weighed_cost(problem, geometry), default=None)

    def _weighed_cost(self, problem: PoolProblem, geometry: Geometry) -> float:
        """Return the cost, raised where only much better kernels may compile for longer."""
        longer = max(1.0, self.code(problem, geometry) / TILE_CODE)
        return self.cost(problem, geometry) * longer**5

    @classmethod
    def _of(
        cls, problem: PoolProblem, geometry: Geometry, alignment: int,
        outputs: int, row: int, rows: int, lanes: int, packed: bool,
    ) -> Tile | None:  # fmt: skip
        *outer, inner = geometry.dims
        body = 0 if row else outputs * inner.axis.stride * lanes if packed else lanes
        steps = [dim.step for dim in (geometry.batch, geometry.channels, *outer)]
        if problem.channels_last:
            steps = [steps[0], *steps[2:]]
        unit = outputs * lanes if packed else lanes
        width = inner.axis.size * lanes if packed else inner.step
        pitch = inner.axis.out * lanes if packed else inner.step
        load = vector_width(alignment, problem.dtype, body, width, *steps)
        store = vector_width(alignment, problem.out_dtype, unit, pitch)
        if not packed and min(load, store) < lanes:
            return None
        pairs = problem.reduction == "max" and problem.dtype.itemsize == 2 and load % 2 == 0
        divides = inner.axis.out % outputs == 0 and (not outer or outer[-1].axis.out % rows == 0)
        inside = divides and all(dim.inside for dim in geometry.dims)
        partial = _partial(problem, geometry, outputs)
        tile = cls(outputs, rows, lanes, packed, load, store, pairs, row, inside, partial)
        return tile if tile.fits(problem, inner.axis) else None

    def fits(self, problem: PoolProblem, inner: Axis) -> bool:
        """Whether registers hold the tile."""
        each = 0.5 if self.pairs else max(1, problem.dtype.itemsize // 4)
        line = self._span(inner) * self.lanes * each
        outputs = self.outputs * self.rows * self.lanes * each
        if problem.indices:
            return line + 2 * outputs <= TILE_REGISTERS
        return (self.rows + 1) * line <= TILE_REGISTERS and outputs <= TILE_OUTPUTS

    def _span(self, inner: Axis) -> int:
        """Pixels of a row that a thread holds."""
        span = (self.outputs - 1) * inner.stride + inner.kernel
        return min(self.row, span - inner.pad_begin) if self.row else span

    def threads(self, geometry: Geometry) -> int:
        """Threads that cover every output."""
        return geometry.outputs // self._unit(geometry) * prod(self._groups(geometry))

    def _unit(self, geometry: Geometry) -> int:
        lanes = self.lanes if geometry.channels_last else 1
        return lanes * prod(dim.axis.out for dim in geometry.dims[-2:])

    def _groups(self, geometry: Geometry) -> tuple[int, int]:
        """Column groups of a row, and row groups of a plane."""
        rows = geometry.dims[-2].axis.out if len(geometry.dims) > 1 else 1
        return -(-geometry.dims[-1].axis.out // self.outputs), -(-rows // self.rows)

    def cost(self, problem: PoolProblem, geometry: Geometry) -> float:
        """Estimate the instructions of all threads; a card that is not filled runs them alike."""
        slices = geometry.dims[0].axis.kernel if len(geometry.dims) > 2 else 1
        return max(self.threads(geometry), BUSY) * self._path(problem, geometry, slices)

    def code(self, problem: PoolProblem, geometry: Geometry) -> float:
        """Estimate the instructions of the kernel, where slices and rare paths are loops."""
        path = self._path(problem, geometry, 1)
        path += 0 if _exact(problem) else SECOND_LOOK[problem.reduction]
        path += SLICES if len(geometry.dims) > 2 else 0
        path += DOUBLES[problem.reduction] if problem.dtype.name == "float64" else 0
        return path + (CUBES if problem.reduction == "lp" and problem.p == 3 else 0)

    def _path(self, problem: PoolProblem, geometry: Geometry, slices: int) -> float:
        """Estimate the instructions of one thread that adds up so many slices."""
        *outer, inner = (dim.axis for dim in geometry.dims)
        row = outer[-1] if outer else Axis(1, 1, 1, 1, 0, 0, 1)
        span = self._span(inner)
        body = min(span, self.outputs * inner.stride) if self.packed and not self.row else span
        halo = (span - body) * self.lanes
        loads = 5 * halo + 4 * body * self.lanes / (self.load if self.packed else self.lanes)
        each = 0.5 if self.pairs else 1.0
        elements = halo + body * self.lanes * each
        lines = slices * ((self.rows - 1) * row.stride + row.kernel)
        outputs = self.rows * self.outputs * self.lanes
        lift = 0.0 if self.pairs else 1.0
        if problem.indices:
            taps = slices * row.kernel * inner.kernel
            return TILE_SETUP + lines * (loads + elements + 4) + outputs * (4 * taps + 15)
        work = lines * (loads + elements * lift + 4)
        if len(outer) == 1:
            work += elements * _merges(row.kernel, row.stride, self.rows)
        else:
            work += elements * self.rows * (slices * row.kernel - 1)
        if self.pairs:
            work += outputs * (inner.kernel - 0.5)
        else:
            stride = inner.kernel if self.row else inner.stride  # of a whole row nothing is shared
            work += self.rows * self.lanes * _merges(inner.kernel, stride, self.outputs)
        work += self._counting(problem, outer, inner)
        return TILE_SETUP + work + outputs * (_finish(problem) * lift + 4 / self.store)

    def _counting(self, problem: PoolProblem, outer: Sequence[Axis], inner: Axis) -> int:
        """Estimate the instructions for what averages are divided by."""
        if self.partial == "nowhere":
            return 0
        ends = 2 * -(-inner.pad_begin // inner.stride)
        columns = self.outputs if self.partial == "anywhere" else min(self.outputs, ends)
        counts = columns + (self.rows if outer else 0)
        share = DOUBLE_SHARE if problem.dtype.name == "float64" else SHARE
        return COUNT * counts + share * self.rows * (columns + 1)


def _merges(kernel: int, stride: int, outputs: int) -> int:
    """Return the merges along an axis for neighbouring outputs, two of which share taps."""
    alone, pair = kernel - 1, kernel + stride - 1
    return outputs // 2 * min(2 * alone, pair) + outputs % 2 * alone


def _finish(problem: PoolProblem) -> int:
    """Return the instructions from a partial result of rows.cu to the stored element."""
    if problem.reduction == "average" and not problem.dtype.is_float:
        return 12
    if problem.reduction == "lp" and problem.dtype.name == "float64" and problem.p != 1:
        return 40
    return FINISH[problem.reduction]


def _exact(problem: PoolProblem) -> bool:
    """Whether no result is looked at again: the operators' ``exact`` in kernels/ops.cuh."""
    narrow = problem.dtype.name in ("float16", "int8", "uint8")
    return problem.reduction == "max" or (problem.reduction == "average" and narrow)


def _pieces(inner: Axis, packed: bool) -> list[tuple[int, int]]:
    """Return outputs along a row that a thread may take, and the row's size where that is all."""
    pieces = [(outputs, 0) for outputs in (1, 2, 4, 8, 16)]
    if packed and inner.out <= TILE_ROW and _touches(inner):
        pieces.append((inner.out, inner.size))
    return pieces


def _partial(problem: PoolProblem, geometry: Geometry, outputs: int) -> str:
    """Return where in a tile's row windows may count fewer taps: ``Partial`` in kernels/rows.cu."""
    lacking = [dim.axis.uncounted(problem.count_include_pad) for dim in geometry.dims]
    if problem.reduction != "average" or all(max(both) <= 0 for both in lacking):
        return "nowhere"
    inner, behind = geometry.dims[-1].axis, lacking[-1][1]
    ends = inner.out % outputs == 0 and behind <= inner.pad_begin
    return "at_ends" if behind <= 0 or ends else "anywhere"


def _touches(axis: Axis) -> bool:
    """Whether every window has a tap in the input."""
    last = (axis.out - 1) * axis.stride - axis.pad_begin
    return axis.pad_begin < axis.kernel and last < axis.size


def _numbers_fit(problem: PoolProblem, dims: Sequence[Dim]) -> bool:
    """Whether every window has an Index, and 32 bits hold those of a plane."""
    numbers = problem.channels * prod(dim.axis.size for dim in dims)
    return numbers <= INT32_MAX and all(_touches(dim.axis) for dim in dims)


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
    return np.dtype([("threads", "i8"), *divisors, ("pixel_step", "i4")], align=True)


def launch(problem: PoolProblem, geometry: Geometry, tile: Tile) -> Launch:
    """Launch as many threads as there are tiles."""
    axes = [dim.axis for dim in geometry.dims]
    template = (
        operator(problem, "int"), sizes([a.kernel for a in axes]),
        sizes([a.stride for a in axes]), str(axes[-1].pad_begin), str(tile.row),
        boolean(tile.inside), tile.partial, str(tile.outputs), str(tile.rows), str(tile.lanes),
        boolean(tile.packed), str(tile.load), str(tile.store),
    )  # fmt: skip
    grid = np.zeros((), rows_dtype())
    threads = tile.threads(geometry)
    groups, row_groups = tile._groups(geometry)
    grid["threads"] = threads
    grid["vectors"] = divisor(problem.channels // tile.lanes, "int")
    grid["groups"], grid["row_groups"] = divisor(groups, "int"), divisor(row_groups, "int")
    grid["pixel_step"] = problem.channels
    scalars = (grid, window_parameters(problem, geometry))
    operands = ("x", "y", "indices")
    return Launch.over(threads, "rows.cu", "rows", template, operands, scalars)
