"""The tile of outputs that one thread of rows.cuh takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from gpupool.planner.banks import WORD_BYTES
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import round_up
from gpupool.planner.parameters import pairs, pairs_sums, vector_width
from gpupool.problem import PoolProblem
from gpupool.window import Axis

TILE_REGISTERS = 56
"""Registers that the input of one thread of rows.cuh may take."""

TILE_OUTPUTS = 32
"""Registers that its outputs may take: more cost compile time and gain little."""

CLAMPED_HALO = 4
"""Pixels of a halo that is read from the nearest vector: with more ptxas spills."""


@dataclass(frozen=True)
class Tile:
    """The block of outputs of one thread of rows.cuh, and the widths of its loads and stores."""

    outputs: int
    rows: int
    lanes: int
    packed: bool
    load: int
    store: int
    pairs: bool  # two maxima or two sums of bytes in a word
    row: int  # pixels of the row where one thread takes it whole, else 0
    by_words: bool  # whether lines begin at any element, so that each is read as a whole, by words
    over: str  # where in its row it may lie over the edge: nowhere is neither down the columns
    partial: str  # where in its row windows may count fewer taps

    @classmethod
    def of(
        cls, problem: PoolProblem, geometry: Geometry, alignment: int,
        outputs: int, row: int, rows: int, lanes: int, packed: bool, staged: bool = False,
    ) -> Tile | None:  # fmt: skip
        """Return the tile with the widest vectors that fit, or None where nothing does.

        A line that no words fit is read as a whole where its plane is staged.
        """
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
        alone = row or body
        by_words = staged and load * problem.dtype.itemsize < WORD_BYTES and alone > load
        if by_words:
            load = vector(max(alone + 1, 0 if row else len(positions(inner.axis, outputs))))
        merged = load % 2 == 0 and (pairs(problem) or (not row and pairs_sums(problem, geometry)))
        divides = inner.axis.out % outputs == 0 and (not outer or outer[-1].axis.out % rows == 0)
        over = "nowhere" if divides and all(dim.inside for dim in geometry.dims) else "anywhere"
        partial = _partial(problem, geometry, outputs)
        tile = cls(outputs, rows, lanes, packed, load, store, merged, row, by_words, over, partial)
        if over == "anywhere" and tile._clamps(problem, geometry):
            tile = replace(tile, over="at_ends")
        return tile if tile._fits(problem, inner.axis) else None

    def _clamps(self, problem: PoolProblem, geometry: Geometry) -> bool:
        """Whether maxima may read what is nearest to the edge for a halo that lies over it.

        No body does, each halo is one vector, and all windows over the edge have the nearest one.
        Elements of 8 bits gain nothing by that.
        """
        if problem.reduction != "max" or problem.indices or problem.dtype.itemsize == 1:
            return False
        if not self.packed or self.lanes > 1 or self.row or self.by_words:
            return False
        if any(axis.dilation > 1 for axis in geometry.axes[-2:]):
            return False
        inner = geometry.axes[-1]
        bodies = inner.out % self.outputs == 0 and inner.out * inner.stride <= inner.size
        before, behind = self.halos(inner)
        last = (inner.out - 1) * inner.stride - inner.pad_begin
        return (
            bodies
            and max(before, behind) <= min(self.load, CLAMPED_HALO)
            and vector(before) <= inner.kernel - inner.pad_begin
            and vector(behind) <= inner.size - last
        )

    def halos(self, inner: Axis) -> tuple[int, int]:
        """Pixels that a packed tile reads before its body and behind it."""
        behind = (self.outputs - 1) * inner.stride + inner.extent - inner.pad_begin
        return inner.pad_begin, max(0, behind - self.outputs * inner.stride)

    def loaded(self, pixels: int) -> int:
        """Pixels that are read for a halo of so many: whole vectors."""
        width = min(self.load, vector(pixels)) or 1
        return round_up(pixels, width)

    def _fits(self, problem: PoolProblem, inner: Axis) -> bool:
        """Whether registers hold the tile."""
        each = 0.5 if self.pairs else max(1, problem.dtype.itemsize // 4)
        line = self._span(inner) * self.lanes * each
        outputs = self.outputs * self.rows * self.lanes * each
        if problem.indices:
            return line + 2 * outputs <= TILE_REGISTERS
        return (self.rows + 1) * line <= TILE_REGISTERS and outputs <= TILE_OUTPUTS

    def _span(self, inner: Axis) -> int:
        """Pixels of a row that a thread holds."""
        span = len(positions(inner, self.outputs))
        return min(self.row, span - inner.pad_begin) if self.row else span

    def threads(self, geometry: Geometry) -> int:
        """Threads that cover every output."""
        return geometry.outputs // self._unit(geometry) * prod(self.groups(geometry))

    def _unit(self, geometry: Geometry) -> int:
        lanes = self.lanes if geometry.channels_last else 1
        return lanes * prod(axis.out for axis in geometry.axes[-2:])

    def groups(self, geometry: Geometry) -> tuple[int, int]:
        """Column groups of a row, and row groups of a plane."""
        *outer, inner = geometry.axes
        rows = outer[-1].out if outer else 1
        return -(-inner.out // self.outputs), -(-rows // self.rows)


@lru_cache
def positions(axis: Axis, windows: int) -> Collection[int]:
    """Return the positions of an axis that so many neighbouring windows take, from the first on.

    They are all from the first tap to the last, but of dilated windows those where one has a tap.

    >>> axis = Axis.resolve(20, kernel=3, dilation=4)
    >>> sorted(positions(axis, 1)), len(positions(axis, 2)), len(positions(axis, 5))
    ([0, 4, 8], 6, 13)
    """
    if axis.dilation == 1:
        return range((windows - 1) * axis.stride + axis.kernel)
    first, taps = range(windows), range(axis.kernel)
    return frozenset(o * axis.stride + t * axis.dilation for o, t in product(first, taps))


def vector(pixels: int) -> int:
    """Return the pixels of the vector that takes so many, none for none.

    >>> vector(3), vector(1), vector(0)
    (4, 1, 0)
    """
    return 1 << (pixels - 1).bit_length() if pixels else 0


def _partial(problem: PoolProblem, geometry: Geometry, outputs: int) -> str:
    """Return where in a tile's row windows may count fewer taps: ``Where`` in kernels/rows.cuh."""
    if problem.reduction != "average":
        return "nowhere"
    lacking = [axis.uncounted(problem.count_include_pad) for axis in geometry.axes]
    if all(max(both) <= 0 for both in lacking):
        return "nowhere"
    inner, behind = geometry.axes[-1], lacking[-1][1]
    ends = inner.out % outputs == 0 and behind <= inner.pad_begin
    return "at_ends" if behind <= 0 or ends else "anywhere"
