"""What a tile of rows.cuh costs: how often it does what, times the instructions that takes.

The numbers are fitted to counts of sm_90 machine code over some 4000 random tiles, of which they
meet two thirds within a tenth, and to the time that NVRTC took for 634 of these, which they meet
within a twelfth (standard deviation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpupool.planner.banks import WORD_BYTES
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import BUSY
from gpupool.planner.parameters import exact
from gpupool.planner.tile import Tile, positions
from gpupool.problem import PoolProblem
from gpupool.window import Axis

SETUP, IMAGES, THIRD_AXIS = 30, 10, 70
"""Instructions that a thread spends before its first load, and those where planes are not all of
one image, and for a third axis."""

CLAMP, CLAMPS = {2: 3, 4: 1.8, 8: 9.5}, {2: 9, 4: 0, 8: 0}
"""Of each row of the input whose halos are clamped, and of a tile of them, by the bytes of an
element."""

CLAMPED_TILE, CLAMPED_PIXEL, CLAMPED_BYTES = 20, 3, 1.8
"""Of a tile whose pixels are apart and clamped, of each of these, and of each load of such bytes
whose maxima share words."""

LINE, LOAD, FAR_LOAD, CONVERT, UNPACK = 2.7, 2.0, 3.2, 0.9, 0.6
"""Of each row of the input, load, load of a pixel that is no neighbour, and element widened, alone
or in a pair."""

ANYWHERE, BYTES_ANYWHERE, SHIFT = 4, 9, 1
"""Of each row that begins anywhere, more of a part of one that has pairs of bytes, and of each of
its words."""

INSIDE = 0.7
"""Less of each row and load where no tile lies over an edge and no word takes a pair, a constant
away from one address, and of maxima of whole rows, which read no padding."""

FILL, SHARED_FILL = 1.6, 0.7
"""Of each word that a load may leave out, alone, or with others: the rest of a whole row, where
most maxima read another one instead, or the other half of a 0 in float64."""

MERGE, PAIR, DOUBLE_MAXIMUM, INTEGER_SUM = 0.9, 0.6, 3.3, 0.4
"""To merge two partial results, or pairs of maxima, doubles, sums of integers alone or in pairs."""

POWER = {1: 0.5, 2: 0.5, 3: 2.5}
"""To raise a tap to a power p."""

ROOT, DOUBLE_ROOT = {1: 4, 2: 9, 3: 15}, {1: 4, 2: 23, 3: 15}
"""From a sum of powers to the element."""

ROUGH_ROOT = 3
"""From a sum of squares to the element where a rough root is exact enough."""

AVERAGE, DOUBLE_AVERAGE, INTEGER_AVERAGE, MAXIMUM = 4, 7, 8, 1
"""From another partial result to the element."""

TAP, DOUBLE_TAP, INTEGER_TAP = 4, 5.4, 2.9
"""With Indices: to merge two taps with their codes."""

NUMBER, NARROW_NUMBER, SLICED_NUMBER, CHANNEL_NUMBER, APART_NUMBER = 11, 15.5, 9, 2, 5
"""From a code to a number, of narrower elements than float32, and more with a third axis, channels
last, and where the rows of a window lie apart."""

STORE = 2.9
"""Of each store."""

COUNT, APART_DOWN, APART_ALONG = 2, 15, 6
"""To count the taps of a row or a column of windows: side by side, or those of dilated ones."""

SHARE, DOUBLE_SHARE = 1, 3
"""To look up the share of so many taps."""

SECOND_LOOK, DOUBLE_LOOK, DOUBLE_CUBES = {"average": 200, "lp": 220}, 80, 100
"""Instructions that take as long to compile as another look at uncertain results, what it takes
more for norms of float64, and for their cubic roots."""

PARTIAL, BRANCH, SLICED, DEAD = 65, 5, 110, 1
"""The same of windows that count fewer taps, of each store that may not take place, of Indices
with a third axis, and of each load between the taps of dilated windows."""

SINGLE_AXIS = 60
"""Less of windows along one axis: no rows, and nothing to merge down the columns."""

ROUNDED = 1.5
"""Less of each mean of integers: a few instructions that the compiler is soon through with."""

WHOLE_ROW = 0.9
"""The part of its time that a tile of whole rows takes to compile: nothing depends on the edges."""


class Part(NamedTuple):
    """Elements of a line that lie side by side: how many some window has, and how they are read."""

    taken: int
    read: int
    width: int  # of a load


@dataclass(frozen=True)
class Line:
    """One row of the input under a tile: ``Line`` of kernels/line.cuh and its loads in rows.cuh."""

    taken: int
    read: int
    loads: int
    words: int
    dead: int  # loads that only the compiler sees

    @classmethod
    def of(cls, tile: Tile, inner: Axis, itemsize: int) -> Line:
        """Count elements that windows have and those read, loads and the words that they bring."""
        if tile.by_words:
            pixels = tile.row or len(positions(inner, tile.outputs))
            size, before = pixels * itemsize, WORD_BYTES - itemsize
            loads_of_line, words_of_line = -(-(size + before) // WORD_BYTES), -(-size // WORD_BYTES)
            return cls(pixels, pixels, loads_of_line, words_of_line, 0)
        every = _parts(tile, inner) if tile.packed else _pixels(tile, inner)
        parts = [part for part in every if part.taken]
        loads = [-(-part.read // part.width) for part in parts]
        words = (
            count * max(1, part.width * itemsize // 4)
            for count, part in zip(loads, parts, strict=True)
        )
        taken, read = sum(part.taken for part in parts), sum(part.read for part in parts)
        return cls(taken, read, sum(loads), sum(words), len(every) - len(parts))


def _pixels(tile: Tile, inner: Axis) -> list[Part]:
    """Return every pixel that some window has."""
    return [Part(tile.lanes, tile.lanes, tile.lanes)] * len(positions(inner, tile.outputs))


def _parts(tile: Tile, inner: Axis) -> list[Part]:
    """Return a halo, the body, and a halo behind it; of dilated windows every load."""
    span = (tile.outputs - 1) * inner.stride + inner.extent
    body = min(tile.row or tile.outputs * inner.stride, span - inner.pad_begin)
    before, behind = (0, 0) if tile.row else tile.halos(inner)
    whole = [_halo(tile, before), (body * tile.lanes, tile.load), _halo(tile, behind)]
    if inner.dilation == 1:
        return [Part(elements, elements, width) for elements, width in whole if elements]
    first = inner.pad_begin * tile.lanes - whole[0][0]
    parts = list[Part]()
    for elements, width in whole:
        loads = (range(i, i + width) for i in range(first, first + elements, width))
        parts += (Part(_taken(tile, inner, load), width, width) for load in loads)
        first += elements
    return parts


def _taken(tile: Tile, inner: Axis, elements: range) -> int:
    """Return how many of a load's elements some window has, with those in the same words."""
    taps, word = positions(inner, tile.outputs), 2 if tile.pairs and len(elements) > 1 else 1
    found = (place for place, i in enumerate(elements) if i // tile.lanes in taps)
    return word * len({place // word for place in found})


def _halo(tile: Tile, pixels: int) -> tuple[int, int]:
    """Return the elements that are loaded for so many pixels, and the width of a load."""
    elements = tile.loaded(pixels) if tile.lanes == 1 else pixels * tile.lanes
    width = tile.load
    while elements % width:
        width //= 2
    return elements, width


@dataclass(frozen=True)
class Estimate:
    """Instructions of all threads, and those that take as long to compile as the kernel."""

    total: float
    code: float

    @classmethod
    def of(cls, problem: PoolProblem, geometry: Geometry, tile: Tile) -> Estimate:
        """Estimate both; a card that is not filled runs as if it were, and slices are a loop."""
        axes = geometry.axes
        line = Line.of(tile, axes[-1], problem.dtype.itemsize)
        once = _path(problem, axes, tile, line, 1)
        slices = geometry.slices
        all_slices = once if slices == 1 else _path(problem, axes, tile, line, slices)
        setup = SETUP + IMAGES * geometry.images + THIRD_AXIS * (len(axes) > 2)
        setup += CLAMPS[problem.dtype.itemsize] if tile.over == "at_ends" else 0
        if _clamps_pixels(problem, axes, tile):
            setup += CLAMPED_TILE + CLAMPED_PIXEL * line.loads
        threads = max(tile.threads(geometry), BUSY)
        code = setup + once + _hidden(problem, axes, tile, line)
        return cls(threads * (setup + all_slices), code * (WHOLE_ROW if tile.row else 1))


def _path(
    problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile, line: Line, slices: float
) -> float:  # fmt: skip
    """Estimate the instructions of one thread from its first load on, for so many slices."""
    count = slices * lines(axes, tile) * _read(problem, axes, tile, line)
    count += STORE * stores(tile) + _finish(problem, axes, tile) * _results(tile)
    merges = _merges(problem, axes, tile, line, slices)
    return count + merges * _merge(problem, tile) + _counting(problem, axes, tile)


def _hidden(problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile, line: Line) -> float:
    """Estimate the instructions that only the compiler sees."""
    count: float = 0 if tile.partial == "nowhere" else PARTIAL
    count += BRANCH * stores(tile) if tile.over == "anywhere" else 0
    count -= SINGLE_AXIS if len(axes) == 1 else 0
    count += DEAD * lines(axes, tile) * line.dead
    if problem.indices:
        return count + (SLICED if len(axes) > 2 else 0)
    # Merges that become fewer instructions do so late.
    count += _merges(problem, axes, tile, line, 1) * max(0.0, MERGE - _merge(problem, tile))
    if problem.reduction == "average" and not problem.dtype.is_float:
        count -= ROUNDED * _results(tile)
    if exact(problem):
        return count
    count += SECOND_LOOK[problem.reduction]
    if problem.reduction == "lp" and problem.dtype.name == "float64":
        count += DOUBLE_LOOK + (DOUBLE_CUBES if problem.p == 3 else 0)
    return count


def lines(axes: tuple[Axis, ...], tile: Tile) -> int:
    """Return the rows of one slice of the input under a tile."""
    return len(positions(down_axis(axes), tile.rows))


def down_axis(axes: tuple[Axis, ...]) -> Axis:
    """Return the axis of whose output rows a tile has several."""
    return axes[-2] if len(axes) > 1 else Axis(1, 1, 1, 1, 0, 0, 1)


def _results(tile: Tile) -> int:
    return tile.rows * tile.outputs * tile.lanes


def stores(tile: Tile) -> float:
    """Return the stores of a thread, of one output."""
    return _results(tile) / tile.store


def _read(problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile, line: Line) -> float:
    """Estimate the instructions to read a line and lift its elements."""
    clamps_pixels = _clamps_pixels(problem, axes, tile)
    nearest = clamps_pixels or (
        tile.row > 0 and problem.reduction == "max" and down_axis(axes).dilation == 1
    )
    lift = POWER[int(problem.p)] if problem.reduction == "lp" else 0.0
    if tile.pairs:
        lift += UNPACK if problem.dtype.itemsize == 1 else 0.0
    else:
        lift += CONVERT if problem.dtype.itemsize < 4 else 0.0
    load, each_line = LOAD if tile.packed else FAR_LOAD, LINE
    if (tile.over == "nowhere" and not tile.pairs) or nearest:
        load, each_line = load - INSIDE, each_line - INSIDE
    if clamps_pixels and tile.pairs and problem.dtype.itemsize == 1:
        load += CLAMPED_BYTES
    if tile.by_words:
        part_of_bytes = not tile.row and tile.pairs and problem.dtype.itemsize == 1
        load, each_line = load + SHIFT, each_line + ANYWHERE + BYTES_ANYWHERE * part_of_bytes
    clamped = CLAMP[problem.dtype.itemsize] if tile.over == "at_ends" else 0.0
    fill = 0.0 if nearest else _fill(problem, tile) * line.words
    return each_line + clamped + load * line.loads + fill + lift * line.taken


def _clamps_pixels(problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile) -> bool:
    """Whether of pixels that are apart maxima read the nearest one for one of padding."""
    adjoining = len(axes) == 2 and all(axis.dilation == 1 for axis in axes)
    return problem.reduction == "max" and adjoining and tile.over == "anywhere" and not tile.packed


def _fill(problem: PoolProblem, tile: Tile) -> float:
    if tile.over != "anywhere":
        return 0.0
    zeros = problem.reduction != "max"
    return SHARED_FILL if tile.row or (zeros and problem.dtype.itemsize == 8) else FILL


def _merges(
    problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile, line: Line, slices: float
) -> float:  # fmt: skip
    """Count merges down the columns, and along rows: of outputs, or with Indices of the input."""
    rows, inner, word = down_axis(axes), axes[-1], 2 if tile.pairs else 1
    cells = tile.outputs * tile.lanes if problem.indices else line.taken / word
    along_rows = slices * lines(axes, tile) if problem.indices else tile.rows
    if len(axes) > 2:
        down = cells * tile.rows * slices * rows.kernel
    else:
        down = cells * _shared_merges(rows, tile.rows)
    if tile.row:  # without the padding
        along: float = sum(len(inner.taps(output)) - 1 for output in range(inner.out))
    elif tile.pairs:
        along = tile.outputs * (inner.kernel - 1)
    else:
        along = _shared_merges(inner, tile.outputs)
    return down + along * along_rows * tile.lanes / word


def _shared_merges(axis: Axis, outputs: int) -> int:
    """Return the merges along an axis for neighbouring outputs that share taps."""
    together = _together(axis, outputs)
    groups, rest = divmod(outputs, together)
    return groups * _merges_of(axis, together) + _merges_of(axis, rest)


def _merges_of(axis: Axis, together: int) -> int:
    if not together:
        return 0
    return axis.kernel - 2 + (together - 1) * (axis.stride + 1) + (together == 1)


def _together(axis: Axis, outputs: int) -> int:
    """Return how many outputs share taps: ``together`` in kernels/rows.cuh; dilated, none."""
    kernel, stride = axis.kernel, axis.stride
    if axis.dilation > 1:
        return 1
    if kernel > stride + 3:
        return min(outputs, (kernel - 1) // stride + 1)
    return min(outputs, 2) if kernel > stride + 1 else 1


def _merge(problem: PoolProblem, tile: Tile) -> float:
    if problem.reduction == "max":
        double = problem.dtype.name == "float64"
        if problem.indices:
            return DOUBLE_TAP if double else TAP if problem.dtype.is_float else INTEGER_TAP
        return PAIR if tile.pairs else DOUBLE_MAXIMUM if double else MERGE
    return MERGE if problem.dtype.is_float else INTEGER_SUM


def _finish(problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile) -> float:
    if problem.indices:
        number = NUMBER if problem.dtype.itemsize >= 4 else NARROW_NUMBER
        number += SLICED_NUMBER * (len(axes) > 2) + CHANNEL_NUMBER * (not tile.packed)
        return number + APART_NUMBER * (down_axis(axes).dilation > 1)
    if problem.reduction == "lp":
        if problem.p == 2 and exact(problem):
            return ROUGH_ROOT
        return (DOUBLE_ROOT if problem.dtype.name == "float64" else ROOT)[int(problem.p)]
    if problem.reduction == "average":
        average = DOUBLE_AVERAGE if problem.dtype.name == "float64" else AVERAGE
        return average if problem.dtype.is_float else INTEGER_AVERAGE
    return MAXIMUM


def _counting(problem: PoolProblem, axes: tuple[Axis, ...], tile: Tile) -> int:
    """Estimate the instructions for what averages are divided by."""
    if tile.partial == "nowhere":
        return 0
    ends = 2 * -(-axes[-1].pad_begin // axes[-1].stride)
    columns = tile.outputs if tile.partial == "anywhere" else min(tile.outputs, ends)
    count = columns * (COUNT if axes[-1].dilation == 1 else APART_ALONG)
    if len(axes) > 1:
        count += tile.rows * (COUNT if axes[-2].dilation == 1 else APART_DOWN)
    share = DOUBLE_SHARE if problem.dtype.name == "float64" else SHARE
    return count + share * tile.rows * (columns + 1)
