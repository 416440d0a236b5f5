"""separable.cu: large overlapping windows, columns first, then rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from gpupool.planner.banks import WORD_BYTES, WarpAccess
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BLOCKS,
    NEARLY,
    SECTOR_BYTES,
    SHARED_BYTES,
    THREADS,
    TURN,
    WARP,
    Launch,
    Scalar,
    round_up,
)
from gpupool.planner.parameters import (
    PLACED,
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
fitted to counts: of 460 random tiles two thirds are within a seventh of their estimates."""

RUN_KNOWN = 20
"""Of a run of a known height."""

READ, TWIN, WIDEN = {4: 10.0, 8: 12.0}, 2.0, 2.5
"""To read a tap and merge it, by the bytes that hold it, more where a word holds two planes, and
more where two bytes become its halves."""

IN_SLICES, SLICE, PAIRED_SLICE = 14, 12.0, 18.5
"""Of a volume for each row, and for each of its slices, of one plane or of two in a word."""

PADDED, CLEARED = 19, 7
"""Of a row of padding, which is not read, and of each row of a column of padding."""

ALONG, DOUBLE_ALONG = 35, 100
"""Of a lane for its outputs of a row, and for those that are maxima of doubles."""

STORE, STORE_NORMS = {"max": 5, "average": 18}, {1: 8, 2: 19, 3: 30}
"""From a partial result to its store, of norms by their exponent; a pow is counted apart."""

READ_PLACED, READ_KNOWN, IN_ORDER, SLICED = {4: 11, 8: 20, 16: 28}, {4: 17, 8: 22, 16: 24}, 3, 24
"""To read a maximum with its place by the bytes that hold both, and in a run of a known height;
less of integers, which are in the order of their bits; and more for each row of a volume."""

COMMON_PLACED = 10
"""Of a row of a plane that all windows of a run have in common."""

ALONG_PLACED, STORE_PLACED = {4: 35, 8: 60, 16: 150}, 24
"""Of a lane for its outputs of a row, and to store one, with their places."""

STORING = 128
"""Threads of a block that store results which are apart: fewer than all, so that finding its first
one costs a thread little."""

MOST_INTEGER_TAPS = 2**15 - 1
"""A float32 quotient by more than that may be rounded to the wrong integer."""

CHUNK, PITCH = 9, 252
"""Outputs of a row that one lane of separable.cu takes, and columns of its shared memory."""

USABLE = PITCH - CHUNK + 1
"""Columns under planes side by side: the last windows are read with the rest of their chunk."""

WORDS = np.dtype(np.int32), np.dtype(np.int64), PLACED
"""Types whose halves hold a maximum and its place, which is a number of 32 bits at most."""

ROW_PLACES, SLICE_ROWS = 2**8, 2**13
"""Places in a row under a tile, and rows in each of more slices than one: ``place`` in
kernels/separable.cu."""

SLICES = 2**32 // (ROW_PLACES * SLICE_ROWS)
"""Slices that a place may name."""

LATER = 4 / 3
"""With Indices at stride 1, how many times as much in all as tiles of rows it may take to issue
less: what issues grows no faster then than the logarithm of a window's size, or hardly."""

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
            for name in ("row_stride", "column_stride", "chunks", "results", "parts")
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

    def chunks(self, chunk: int) -> int:
        """Return how many hold the results of a row."""
        return -(-((self.planes - 1) * self.span + self.width) // chunk)

    def struct(
        self, geometry: Geometry, seats: int, neighbours: int, share: int, chunk: int
    ) -> Scalar:
        """Return what a kernel receives."""
        _, down, across = self.blocks(geometry)
        strides = [axis.stride for axis in geometry.axes[-2:]]
        results = -(-self.width // strides[1])
        parts = max(1, STORING // (results * self.planes))
        numbers = (
            self.planes, all_planes(geometry), self.together, self.height, self.width, self.covered,
            self.rows, self.columns, divisor(down, "int"), divisor(across, "int"), self.span,
            divisor(seats, "int"), divisor(neighbours, "int"), share,
            *(divisor(number, "int") for number in (*strides, self.chunks(chunk), results, parts)),
        )  # fmt: skip
        return np.array(numbers, TILES_DTYPE)


@dataclass(frozen=True)
class _Tiles(Tiles):
    """Tiles of separable.cu: the instructions that they take, and those that would issue meanwhile.

    That is while memory and shared memory are accessed.
    """

    cost: float
    waited: float

    @property
    def total(self) -> float:
        """All that is served."""
        return self.cost + self.waited


def launch(
    problem: PoolProblem, geometry: Geometry, most: float, latest: float = inf
) -> Launch | None:
    """Launch separable.cu, or return None where it does not serve or costs more than ``most``.

    With Indices, whose words are wide, it may not take more in all than ``latest``, at stride 1
    than LATER times as much: what tiles of rows take, if any serves, with what they wait for.
    """
    fitting = _fitting(problem, geometry)
    if fitting is None:
        return None
    tiles = _tiles(problem, *fitting)
    later = 1 if strided(fitting[0]) else LATER
    late = problem.indices and tiles.total > later * latest
    if late or tiles.cost > most:
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
    number a plane and its padding then, and each window has a tap.
    """
    if not problem.indices:
        return accumulator(problem)
    *outer, rows, _ = (axis.kernel for axis in geometry.axes)
    numbers = sum((d.axis.pad_begin + d.axis.size) * d.index_step for d in geometry.dims)
    if numbers > INT32_MAX or max(outer, default=1) > SLICES:
        return None
    if not all(axis.touches for axis in geometry.axes):
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
    """Return, of what takes nearly the least in all, the tiles that issue least."""
    numbers = _neighbours(problem, geometry.axes[-1])
    ways = [_tiles_of(problem, geometry, held, number) for number in numbers]
    best = min(ways, key=attrgetter("total"))
    near = [best, *(way for way in ways if way.total <= NEARLY * best.total)]
    return min(near, key=attrgetter("cost"))


def _tiles_of(
    problem: PoolProblem, geometry: Geometry, held: Held, neighbours: int
) -> _Tiles:  # fmt: skip
    """Return as many columns as a block has threads, and the rows that cost least."""
    outer, inner = geometry.dense.axes[-2:]
    apart, paired = geometry.axes[-2].stride, pairs(problem)
    planes, across, common = _side_by_side(problem, geometry, inner, neighbours)
    width = -(-inner.out // across)
    span = width + inner.kernel - 1 - common
    columns = round_up(planes * span + common + CHUNK - 1, CHUNK)
    blocks = -(-all_planes(geometry) // (planes << paired)) * across
    most_rows = _most_rows(held)
    highest = min(outer.out, most_rows)
    heights = {highest, *range(outer.kernel, highest, outer.kernel)}
    row = _Row.of(planes * span + common, columns, (planes - 1) * span + width)
    beside = span * across * (planes if problem.channels_last else 1)
    each = _Each.of(problem, geometry, held)
    waits = _waits(problem, geometry, planes, span)
    estimate = _Estimate(outer, inner, apart, blocks, beside, row, each, *waits)
    cost, height = min((estimate.instructions(height), height) for height in heights)
    numbers = (planes, planes << paired, height, width, outer.out, span, height, columns)
    return _Tiles(*numbers, cost, estimate.waited(height, held))


def _side_by_side(
    problem: PoolProblem, geometry: Geometry, inner: Axis, neighbours: int
) -> tuple[int, int, int]:
    """Return the planes of a tile, the tiles across a plane, and the padding that planes share."""
    common = shared_padding(inner)
    fitting = (USABLE - common) // (inner.out + inner.kernel - 1 - common)
    if fitting < neighbours:
        return neighbours, -(-inner.out // (USABLE // neighbours - inner.kernel + 1)), 0
    most = all_planes(geometry) // (BLOCKS << pairs(problem))  # more leave too few blocks
    return neighbours * max(1, min(fitting, most) // neighbours), 1, common


def shared_padding(inner: Axis) -> int:
    """Return the padding that planes side by side share, as far as no window lies in it."""
    return min(inner.pad_begin, inner.pad_end, inner.kernel - 1)


class _Row(NamedTuple):
    """Of a row of shared memory, lanes for all columns and for those that are read, and chunks."""

    lanes: int
    read: int
    chunks: int

    @classmethod
    def of(cls, read: int, columns: int, results: int) -> _Row:
        """Count lanes of whole warps, and the chunks of all results."""
        return cls(round_up(columns, WARP), round_up(read, WARP), -(-results // CHUNK))


class _Each(NamedTuple):
    """Instructions of a lane: for a row of a column, for its outputs of a row, and for a store.

    A row may be ``common`` to all windows of a run; the height of windows may be ``known``.
    """

    row: float
    common: float
    along: float
    store: float
    known: bool

    @classmethod
    def of(cls, problem: PoolProblem, geometry: Geometry, held: Held) -> _Each:
        """Estimate them all."""
        volume, size, known = len(geometry.dims) > 2, held.itemsize, _square(problem, geometry)
        if problem.indices:
            read = (READ_KNOWN if known else READ_PLACED)[size]
            read -= 0 if problem.dtype.is_float else IN_ORDER
            row = read * geometry.slices + SLICED * volume
            common = row if volume else COMMON_PLACED
            return cls(row, common, ALONG_PLACED[size], STORE_PLACED, known)
        power, paired = power_cost(problem), pairs(problem)
        tap = (PAIRED_SLICE if paired else SLICE) if volume else READ[size] + TWIN * paired
        tap += power + WIDEN * (paired and problem.dtype.itemsize == 1)
        along = DOUBLE_ALONG if problem.reduction == "max" and size == 8 else ALONG
        row = tap * geometry.slices + IN_SLICES * volume
        return cls(row, row, along, _store(problem) + power, known)


def _waits(problem: PoolProblem, geometry: Geometry, planes: int, span: int) -> tuple[float, float]:
    """Return what would issue while a warp's row of the input is read, and while one is stored.

    Threads that store are beside each other: those whose results are apart store the fewer.
    """
    outer, inner = geometry.axes[-2:]

    def access(item: int, rows: int, columns: int) -> WarpAccess:
        if problem.channels_last:
            pixel = item * problem.channels
            return WarpAccess(min(WARP, planes), item, pixel, pixel, item)
        row = item * columns
        return WarpAccess(min(WARP, span), item, rows * row, row, item)

    load = access(problem.dtype.itemsize, outer.size, inner.size).load * geometry.slices
    sizes = (output.dtype.itemsize for output in problem.outputs)
    store = sum(access(size, outer.out, inner.out).store for size in sizes)
    return load, store / inner.stride


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


def _neighbours(problem: PoolProblem, inner: Axis) -> list[int]:
    """Return the numbers of planes that a tile may have.

    Channels last that is what a sector holds, as far as no more than half of it is halo.
    With Indices fewer, too: of less halo there is less to make, of which most instructions are.
    Those are powers of two, of which none meet in banks, unless they are all channels.
    """
    if not problem.channels_last:
        return [1]
    sector, channels = SECTOR_BYTES // problem.dtype.itemsize, problem.channels
    if pairs(problem):
        sector, channels = sector // 2, channels // 2
    whole = min(sector, channels)
    most = max(1, min(whole, USABLE // (2 * inner.kernel - 1)))
    powers = [1 << i for i in range(most.bit_length())] if problem.indices else []
    return powers if powers and most < whole else sorted({*powers, most})


@dataclass(frozen=True)
class _Estimate:
    """What tiles take whose blocks, if each had all rows of a plane, would be so many.

    Of threads for a row of the input so many are ``beside`` each other; of outputs every one that
    is a stride ``apart`` is stored. A warp waits for a ``load`` of a row, and for a ``store``.
    """

    outer: Axis
    inner: Axis
    apart: int
    blocks: int
    beside: int
    row: _Row
    each: _Each
    load: float
    store: float

    def instructions(self, height: int) -> float:
        """Return those of all tiles of such a height: setup, columns, rows and stores."""
        lines = -(-height // self.apart)
        stores = self.row.lanes * self.each.store * lines
        return self._tiles(height) * (
            THREADS * SETUP + self._down(height) + self._along(lines) + stores
        )

    def waited(self, height: int, held: Held) -> float:
        """Return those that would issue while memory and shared memory are accessed."""
        lines, kernel, high = -(-height // self.apart), self.inner.kernel, self.outer.kernel
        runs = -(-height // high)
        # Rows that are read, and accesses of a column to shared memory.
        if self.each.known:
            read, down = (runs + 1) * high - 1, runs * high
        else:
            read, down = runs * (high - 1) + height, 3 * height - 2 * runs
        narrow = self.row.chunks * (2 * CHUNK + kernel - 1)
        along = narrow if kernel < CHUNK else WARP * 3 * CHUNK
        turns = (self.row.lanes * (down + lines) + lines * along) * held.itemsize / WORD_BYTES
        loads, stores = self.row.read * read * self.load, self.row.lanes * lines * self.store
        return self._tiles(height) * (TURN * turns + loads + stores) / WARP

    def _tiles(self, height: int) -> int:
        return max(-(-self.outer.out // height) * self.blocks, BLOCKS)

    def _down(self, height: int) -> float:
        """Return those of all columns: of rows that each window has, or that a run begins."""
        each, outer = self.each, self.outer
        runs = -(-height // outer.kernel)
        reads = runs * outer.kernel
        inside, columns = share_inside(outer), share_inside(self.inner)
        if each.known:
            down = RUN_KNOWN * runs + each.row * (reads + outer.kernel - 1)
        else:
            read = each.row * inside + PADDED * (1 - inside)
            run = RUN if outer.kernel > 1 else ONE_ROW
            common = each.common * inside * (reads - height)
            down = run * runs + read * (2 * height - runs) + common
        padded = share_of_warps(1 - columns, self.beside)
        down = share_of_warps(columns, self.beside) * down + padded * CLEARED * reads
        return self.row.read * down + (self.row.lanes - self.row.read) * CLEARED * reads

    def _along(self, lines: int) -> float:
        kernel = self.inner.kernel
        if kernel == 1:
            return 0
        lanes = lines * WARP
        if kernel < CHUNK:
            lanes = round_up(lines * self.row.chunks, THREADS)
        return lanes * self.each.along


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
    size = (width if _square(problem, geometry) else "0", width)
    more = tuple(map(boolean, (strided(geometry), problem.channels_last, geometry.images)))
    narrow = inner.kernel < CHUNK
    known = not by_powers(problem) and (
        (narrow and not problem.indices) or admit("separable", reduction, axes, *size, *more)
    )
    if problem.indices and narrow and not known:
        return None
    struct = tiles.struct(geometry, tiles.columns, neighbours, tiles.rows, CHUNK)
    return Launch(
        "separable.cu",
        "separable",
        (reduction, axes, *(size if known else ("0", "0")), *more),
        ("x", "y", "indices"),
        (struct, window_parameters(problem, geometry)),
        (prod(tiles.blocks(geometry)), 1),
        tiles.rows * PITCH * held.itemsize,
    )


def _square(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether windows of maxima with Indices are so small squares that their height is compiled in.

    Rows of padding are taken for those beside them, so that each window needs a row of the input.
    """
    outer, inner = geometry.axes[-2:]
    return problem.indices and outer.kernel == inner.kernel < CHUNK


def _operator(problem: PoolProblem, held: Held) -> str:
    """Return the operator, which of Indices merges maxima that bring their places."""
    if not problem.indices:
        return operator(problem, "int")
    return f"PlacedMax<{problem.dtype.cuda}, {cuda(problem.index_dtype)}, {cuda(held)}>"
