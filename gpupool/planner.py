"""From a problem to launches: which kernel, which template arguments, which grid.

A plan is computed from shapes, strides, dtype and attributes alone. It is frozen, printable and
holds no array; the same problem has one plan, computed once. Everything that becomes part of CUDA
source is a name from a table here or an integer within bounds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import inf, prod
from typing import Any

import numpy as np

from gpupool.dtypes import DType
from gpupool.problem import (
    SMALL_P,
    PoolProblem,
    PreprocessProblem,
    Problem,
    RoiProblem,
    UnpoolProblem,
)
from gpupool.validate import INT32_MAX
from gpupool.window import Axis, taps_of

KERNELS = ("auto", "window", "specialised", "rows", "plane", "separable")
"""What ``plan`` may be asked for; "window" is the generic tier of window.cu."""

THREADS = 256
"""Threads of a block, in every kernel."""

WARP = 32
"""Threads that exchange registers, so that they need no shared memory to meet."""

SHARED_BYTES = 48 * 1024
"""Shared memory that a block has without asking."""

PART_BYTES = 16
"""Bytes of the largest partial result: a float64 maximum and its position."""

SPECIALISED_TAPS, LONG_TAPS = 64, 36
"""Windows up to this many taps may be compiled in, larger ones take the generic tier; the second
holds with Indices and for float64, where a tap takes more instructions."""

SPECIALISATIONS = 256
"""Distinct specialised kernels one process may ask for, past which the generic tier serves."""

MAX_STRIDE = 16
"""Strides up to this may be compiled in."""

TILE_REGISTERS = 56
"""Registers that the input of one thread of rows.cu may take."""

TILE_OUTPUTS = 32
"""Registers that its outputs may take: more cost compile time and gain little."""

TILE_CODE, MOST_CODE = 570, 700
"""Instructions up to which a kernel of rows.cu compiles within 100 ms on a slow processor, and
where the smallest tile takes more."""

FINISH = {"max": 2, "average": 6, "lp": 8}
"""Instructions from a partial result of rows.cu to the stored element, see _finish."""

BORDER, DOUBLE_BORDER = 12, 48
"""Instructions to average one output that counts fewer taps, and in double, by a division."""

SECOND_LOOK = 265
"""Instructions of a kernel of rows.cu that look at uncertain results again."""

TILE_ROW = 28
"""Outputs of a row that one thread may take whole, so that its padding needs no instruction."""

TILE_SETUP = 50
"""Instructions that a thread of rows.cu spends before its first load."""

FILL = 2**16
"""Threads below which a large card is not filled, so that fewer threads are no gain."""

SHARED_TAPS = 128
"""Windows from this many taps are shared by several threads, unless they overlap much."""

STAGED_TAPS = 16
"""Planes from this many elements are worth a copy to shared memory."""

SEPARABLE_TAPS = 36
"""Windows from this many taps, stride 1, may be cheaper by separable.cu."""

MOST_SEPARABLE_TAPS = 2**16
"""Windows up to this many: a float32 sum divided by more is not proved to be rounded right."""

CHUNK, PITCH = 9, 252
"""Outputs of a row that one lane of separable.cu takes, and columns of its shared memory."""

LONG_SUM = 4096
"""Windows from this many taps are always shared: one thread's sum of them would lose accuracy."""

BLOCKS = 512
"""Blocks that fill a large card; fewer outputs than this cut their planes into parts."""

OVERHANG = 2**12
"""Elements that the last block or tile may count past the end."""


Scalar = np.generic | np.ndarray[Any, Any]
"""A kernel argument passed by value: a NumPy scalar, or a struct as an array of no axes."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: a template instantiation, its operands by name, parameters and grid."""

    source: str
    kernel: str
    template: tuple[str, ...]
    operands: tuple[str, ...]
    scalars: tuple[Scalar, ...]
    grid: tuple[int, int]
    shared: int = 0

    @property
    def expression(self) -> str:
        """The C++ name of the instantiation."""
        return f"{self.kernel}<{', '.join(self.template)}>"

    def __repr__(self) -> str:
        return f"{self.source}: {self.expression} <<<{self.grid[0]}x{self.grid[1]}, {THREADS}>>>"


@dataclass(frozen=True)
class Plan:
    """The launches that solve a problem for an input of given strides, in order.

    >>> from gpupool.problem import resolve
    >>> plan(resolve("global-max", (1, 64, 112, 112), "float16"))
    Plan(GlobalMaxPool float16 (1, 64, 112, 112) -> (1, 64, 1, 1)
      plane.cu: plane<Max<Half>, 1, int, 1, 256, false, true, 8> <<<64x1, 256>>>)
    """

    problem: Problem
    strides: tuple[int, ...]
    launches: tuple[Launch, ...]
    workspace: int = 0

    @property
    def kernel(self) -> str:
        """What serves, by the name that ``plan`` takes where there is a choice."""
        launch = self.launches[-1]
        if launch.kernel == "window" and "Sizes<0" not in launch.expression:
            return "specialised"
        return launch.source.removesuffix(".cu")

    def __repr__(self) -> str:
        problem = self.problem
        head = f"{problem.op} {problem.dtype} {problem.shape} -> {problem.outputs[0].shape}"
        lines = "\n  ".join([head, *map(repr, self.launches)])
        return f"Plan({lines})"


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@lru_cache(maxsize=4096)
def plan(
    problem: Problem,
    strides: tuple[int, ...] | None = None,
    alignment: int = 16,
    kernel: str = "auto",
) -> Plan:
    """Choose kernel, template arguments and grid for ``problem``.

    ``strides`` of x are in elements, ``alignment`` is what divides the addresses of x and y in
    bytes. ``kernel`` overrides the choice by one of KERNELS; the plan is another's where that one
    does not serve.
    """
    steps = contiguous(problem.shape) if strides is None else strides
    if isinstance(problem, UnpoolProblem):
        return _plan_unpool(problem, steps)
    if isinstance(problem, RoiProblem):
        return Plan(problem, steps, (_roi_launch(problem),))
    if isinstance(problem, PreprocessProblem):
        return Plan(problem, steps, (_preprocess_launch(problem, steps),))
    geometry = _Geometry.of(problem, steps)
    if kernel in ("auto", "separable"):
        most = _sliding_cost(problem, geometry, alignment) if kernel == "auto" else inf
        separable = _separable_launch(problem, geometry, most)
        if separable is not None:
            return Plan(problem, steps, (separable,))
    if kernel == "plane" or (kernel == "auto" and _shared(problem, geometry, alignment)):
        return _plan_plane(problem, steps, geometry, alignment)
    return Plan(problem, steps, (_sliding_launch(problem, geometry, alignment, kernel),))


# Geometry: what the kernels see of a pooling problem


@dataclass(frozen=True)
class _Dim:
    """A spatial axis with its steps in memory and in the numbering of Indices."""

    axis: Axis
    step: int
    index_step: int

    @property
    def trivial(self) -> bool:
        """Whether the window leaves the axis alone, so that it can count as a batch axis."""
        a = self.axis
        return (a.kernel, a.stride, a.pad_begin, a.out) == (1, 1, 0, a.size)

    @property
    def covered(self) -> bool:
        """Whether one window reads exactly the whole axis."""
        a = self.axis
        return (a.out, a.kernel, a.pad_begin, a.dilation) == (1, a.size, 0, 1) and a.pad_end == 0

    @property
    def inside(self) -> bool:
        """Whether every window lies in the input."""
        a = self.axis
        return a.pad_begin == 0 and (a.out - 1) * a.stride + a.extent <= a.size

    def joins(self, inner: _Dim) -> bool:
        """Whether this axis and the next inner one are one axis in memory and numbering."""
        size = inner.axis.size
        return (self.step, self.index_step) == (size * inner.step, size * inner.index_step)


@dataclass(frozen=True)
class _Geometry:
    """Batch, channels and spatial axes, as few of them as memory allows."""

    batch: _Dim
    channels: _Dim
    dims: tuple[_Dim, ...]
    channels_last: bool

    @classmethod
    def of(cls, problem: PoolProblem, strides: tuple[int, ...]) -> _Geometry:
        numbering = list(contiguous(problem.shape))
        if problem.storage_order:
            for i, axis in enumerate(problem.spatial_axes):
                numbering[axis] = prod(problem.spatial[:i])
        batch, channels = (
            _Dim(_all(problem.shape[axis]), strides[axis], numbering[axis])
            for axis in (0, problem.channel_axis)
        )
        dims = [
            _Dim(axis, strides[number], numbering[number])
            for axis, number in zip(problem.window, problem.spatial_axes, strict=True)
        ]
        return cls(batch, channels, tuple(dims), problem.channels_last)._merged()

    def _merged(self) -> _Geometry:
        """Make trivial leading axes part of the batch, and covered neighbours one axis."""
        batch, channels, dims = self.batch, self.channels, list(self.dims)
        while len(dims) > 1 and dims[0].trivial:
            outer = batch if self.channels_last else channels
            if not outer.joins(dims[0]):
                break
            inner = dims.pop(0)
            merged = _Dim(_all(outer.axis.size * inner.axis.size), inner.step, inner.index_step)
            batch, channels = (merged, channels) if self.channels_last else (batch, merged)
        i = 0
        while i + 1 < len(dims):
            outer, inner = dims[i : i + 2]
            if outer.covered and inner.covered and outer.joins(inner):
                size = outer.axis.size * inner.axis.size
                axis = replace(inner.axis, size=size, kernel=size)
                dims[i : i + 2] = [_Dim(axis, inner.step, inner.index_step)]
            else:
                i += 1
        return replace(self, batch=batch, channels=channels, dims=tuple(dims))

    @property
    def outputs(self) -> int:
        """Number of output elements."""
        return prod(dim.axis.out for dim in (self.batch, self.channels, *self.dims))

    @property
    def planes(self) -> int:
        """Number of planes."""
        return self.batch.axis.size * self.channels.axis.size

    def with_rows(self) -> _Geometry:
        """Return one axis as two: planes that lie apart evenly are the rows of larger ones."""
        (inner,), images, rows = self.dims, self.batch, self.channels
        if images.joins(rows):
            rows = _Dim(_all(self.planes), rows.step, rows.index_step)
            images = _Dim(_all(1), 0, 0)
        return replace(self, batch=images, channels=_Dim(_all(1), 0, 0), dims=(rows, inner))

    @cached_property
    def index_type(self) -> str:
        """The type that holds every count, coordinate and offset within one plane.

        Four elements of neighbouring channels may count as one pixel, and a tile of outputs may
        hang over the end.
        """
        reach = [
            4 * (a.out * a.stride + max(a.extent, a.dilation) + a.size + a.pad_begin + a.pad_end)
            for a in (dim.axis for dim in self.dims)
        ]
        offsets = sum(
            (dim.axis.pad_begin + dim.axis.size + dim.axis.pad_end) * max(abs(dim.step), 1)
            for dim in self.dims
        )
        taps = prod(dim.axis.size for dim in self.dims)
        largest = max(self.outputs, offsets, taps, *reach) + OVERHANG
        return "int" if largest <= INT32_MAX else "long long"


def _all(size: int) -> Axis:
    return Axis(size, 1, 1, 1, 0, 0, size)


# Parameters: the Window struct of kernels/window.cuh


def _divisor_dtype(index: str) -> np.dtype[Any]:
    if index == "int":
        return np.dtype([("divisor", "i4"), ("multiplier", "u4"), ("shift", "u4")], align=True)
    return np.dtype([("divisor", "i8")], align=True)


@lru_cache(maxsize=64)
def window_dtype(axes: int, index: str) -> np.dtype[Any]:
    """Return the NumPy mirror of ``Window<axes, index>``."""
    integer, divisor = ("i4" if index == "int" else "i8"), _divisor_dtype(index)
    names = (
        "size",
        "kernel",
        "stride",
        "dilation",
        "pad_begin",
        "count_begin",
        "count_end",
        "step",
    )
    axis = np.dtype(
        [*((name, integer) for name in names), ("index_step", "i8"), ("out", divisor)], align=True
    )
    norm = np.dtype([(name, "f8") for name in ("p", "exponent", "slip", "least")])
    counts = ("outputs", "batch_step", "channel_step", "index_batch_step", "index_channel_step")
    return np.dtype(
        [
            *((name, "i8") for name in counts),
            ("norm", norm),
            ("channels", divisor),
            ("axis", axis, (axes,)),
        ],
        align=True,
    )


def divisor(size: int, index: str) -> tuple[int, ...]:
    """Return the fields of ``Divisor<index>``: n // size as (mulhi(n, m) + n) >> shift.

    >>> _, multiplier, shift = divisor(7, "int")
    >>> all(((n * multiplier >> 32) + n) >> shift == n // 7 for n in range(1000))
    True
    """
    size = max(size, 1)  # an axis without elements is never divided by
    if index != "int":
        return (size,)
    shift = (size - 1).bit_length()
    return (size, (2**32 * (2**shift - size)) // size + 1, shift)


def _parameters(problem: PoolProblem, geometry: _Geometry) -> Scalar:
    index = geometry.index_type
    packed = np.zeros((), window_dtype(len(geometry.dims), index))
    packed["outputs"] = geometry.outputs
    packed["batch_step"], packed["index_batch_step"] = _steps(geometry.batch)
    packed["channel_step"], packed["index_channel_step"] = _steps(geometry.channels)
    packed["norm"] = _norm(problem)
    packed["channels"] = divisor(geometry.channels.axis.size, index)
    for row, dim in zip(packed["axis"], geometry.dims, strict=True):
        a = dim.axis
        begin, end = (-a.pad_begin, a.pad_end) if problem.count_include_pad else (0, 0)
        fields = (a.size, a.kernel, a.stride, a.dilation, a.pad_begin, begin, a.size + end)
        for name, value in zip(row.dtype.names, fields, strict=False):
            row[name] = value
        row["step"], row["index_step"] = _steps(dim)
        row["out"] = divisor(a.out, index)
    return packed


def _steps(dim: _Dim) -> tuple[int, int]:
    return dim.step, dim.index_step


def _norm(problem: PoolProblem) -> tuple[float, float, float, float]:
    """Return p, 1 / p as the sum's type holds it, what that lost, the least accurate sum."""
    p, sums = problem.p, _sum_dtype(problem)
    info = np.finfo(sums)
    exponent = float(sums.type(1 / p))
    taps = max(taps_of(problem.window), 4)  # square_root in kernels/element.cuh asks for 4
    least = float(info.tiny) / float(info.eps) * taps if p >= SMALL_P else inf
    return p, exponent, float(1 / Fraction(p) - Fraction(exponent)), least


def _sum_dtype(problem: PoolProblem) -> np.dtype[Any]:
    # The root multiplies the relative error of the sum by 1 / p.
    if problem.reduction == "lp" and problem.p < 1:
        return np.dtype(np.float64)
    accumulator = problem.dtype.accumulator
    return accumulator if accumulator.kind == "f" else np.dtype(np.float64)


# Template arguments


def _operator(problem: PoolProblem, index: str) -> str:
    element = problem.dtype.cuda
    if problem.indices:
        numbers = "int" if problem.index_dtype == np.int32 else "long long"
        return f"ArgMax<{element}, {index}, {numbers}>"
    if problem.reduction == "max":
        return f"Max<{element}>"
    if problem.reduction == "lp":
        return f"Lp<{element}, {_exponent(problem)}, {_cuda(_sum_dtype(problem))}>"
    if problem.dtype.is_float:
        return f"Average<{element}>"
    total = "long long" if _wide(problem) else "int"
    return f"IntegerAverage<{element}, {problem.out_dtype.cuda}, {total}>"


def _wide(problem: PoolProblem) -> bool:
    """Whether a sum of 8-bit taps can pass 32 bits."""
    return taps_of(problem.window) * 255 > INT32_MAX


def _by_powers(problem: PoolProblem) -> bool:
    """Whether every tap is a pow, which unrolled spills and compiles for seconds."""
    return problem.reduction == "lp" and not _exponent(problem)


def _exponent(problem: PoolProblem) -> int:
    """Return the norm where it is one of the plain ones, else 0."""
    return int(problem.p) if problem.p in (1, 2, 3) else 0


def _cuda(dtype: np.dtype[Any]) -> str:
    return "double" if dtype == np.float64 else "float"


def _sizes(numbers: Sequence[int]) -> str:
    return f"Sizes<{', '.join(map(str, numbers))}>"


def _bool(value: bool) -> str:
    return "true" if value else "false"


# Which kernel


def _shared(problem: PoolProblem, geometry: _Geometry, alignment: int) -> bool:
    """Whether threads should share windows: large ones that hardly overlap, small planes."""
    taps = taps_of(problem.window)
    axes = [dim.axis for dim in geometry.dims]
    apart = all(2 * a.stride >= min(a.kernel, a.size) or a.out == 1 for a in axes)
    small_planes = taps >= STAGED_TAPS and _staged_outputs(problem, geometry, alignment) > 0
    return taps >= LONG_SUM or (taps >= SHARED_TAPS and apart) or small_planes


_admitted: set[tuple[str, ...]] = set()


def _admit(template: tuple[str, ...]) -> bool:
    """Count a specialisation; False once the process has asked for as many as it may."""
    if template not in _admitted and len(_admitted) >= SPECIALISATIONS:
        return False
    _admitted.add(template)
    return True


def _compiles_in() -> bool:
    """Whether windows may be compiled in."""
    return os.environ.get("GPUPOOL_JIT") != "generic"


def _specialisable(problem: PoolProblem, geometry: _Geometry) -> bool:
    axes = [dim.axis for dim in geometry.dims]
    long = problem.indices or problem.dtype.itemsize == 8
    return (
        _compiles_in()
        and geometry.index_type == "int"
        and prod(a.kernel for a in axes) <= (LONG_TAPS if long else SPECIALISED_TAPS)
        and all(a.dilation == 1 and a.stride <= MAX_STRIDE for a in axes)
    )


def _rows_tile(
    problem: PoolProblem, geometry: _Geometry, alignment: int, asked: bool = False
) -> _Tile | None:
    """Return the tile of rows.cu that costs least; unless ``asked`` for, where it is worth it."""
    tile = (
        _Tile.cheapest(problem, geometry, alignment) if _specialisable(problem, geometry) else None
    )
    if tile is None or asked or tile.cost(problem, geometry) < _lone_cost(geometry):
        return tile
    return None


def _sliding_cost(problem: PoolProblem, geometry: _Geometry, alignment: int) -> float:
    """Estimate the instructions of what ``_sliding_launch`` chooses by itself."""
    tile = _rows_tile(problem, geometry, alignment)
    return tile.cost(problem, geometry) if tile else _lone_cost(geometry)


def _sliding_launch(
    problem: PoolProblem, geometry: _Geometry, alignment: int, kernel: str
) -> Launch:
    """Choose among rows.cu and the two tiers of window.cu: the fewest instructions."""
    generic = _window_launch(problem, geometry, specialised=False)
    if kernel == "window" or (kernel == "auto" and _by_powers(problem)):
        return generic
    if not _specialisable(problem, geometry):
        return generic
    tile = None
    if kernel != "specialised":
        tile = _rows_tile(problem, geometry, alignment, asked=kernel == "rows")
    if tile is None:
        chosen = _window_launch(problem, geometry, specialised=True)
    else:
        chosen = _rows_launch(problem, geometry, tile)
    return chosen if _admit((chosen.kernel, *chosen.template)) else generic


def _window_launch(problem: PoolProblem, geometry: _Geometry, specialised: bool) -> Launch:
    axes = [dim.axis for dim in geometry.dims]
    index = geometry.index_type
    template = (
        _operator(problem, index),
        str(len(axes)),
        index,
        _sizes([a.kernel if specialised else 0 for a in axes]),
        _sizes([a.stride if specialised else 0 for a in axes]),
        _bool(problem.channels_last),
    )
    return Launch(
        "window.cu",
        "window",
        template,
        ("x", "y", "indices"),
        (_parameters(problem, geometry),),
        (-(-geometry.outputs // THREADS), 1),
    )


# Separable: large overlapping windows

TILES_DTYPE = np.dtype(
    [
        *(
            (name, "i4")
            for name in ("planes", "all_planes", "together", "height", "width", "rows", "columns")
        ),
        *((name, _divisor_dtype("int")) for name in ("down", "across", "span")),
    ],
    align=True,
)
"""The NumPy mirror of ``Tiles`` in kernels/separable.cu."""


@dataclass(frozen=True)
class _Tiles:
    """The outputs of one block of separable.cu: planes x height x width.

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
    cost: float


def _separable_launch(problem: PoolProblem, geometry: _Geometry, most: float) -> Launch | None:
    """Launch separable.cu, or return None where it does not serve or costs more than ``most``."""
    if prod(dim.axis.out for dim in geometry.dims) == 1 or geometry.outputs == 0:
        return None
    if len(geometry.dims) == 1:
        geometry = geometry.with_rows()
    axes = [dim.axis for dim in geometry.dims]
    if problem.indices or problem.channels_last or len(axes) > 2 or geometry.index_type != "int":
        return None
    if any(a.stride != 1 or a.dilation != 1 or a.kernel > a.size + a.pad_begin for a in axes):
        return None
    taps = prod(a.kernel for a in axes)
    if not SEPARABLE_TAPS <= taps <= MOST_SEPARABLE_TAPS or axes[1].kernel > PITCH - CHUNK:
        return None
    tiles = _tiles(problem, geometry)
    if tiles.cost > most:
        return None
    return _tiled_launch(problem, geometry, tiles)


def _tiles(problem: PoolProblem, geometry: _Geometry) -> _Tiles:
    """Return as many columns as a block has threads, and the rows that cost least."""
    outer, inner = (dim.axis for dim in geometry.dims)
    twins = problem.reduction == "max" and problem.dtype.itemsize == 2
    usable = PITCH - CHUNK + 1  # the last windows of a row are read with the rest of their chunk
    across = -(-inner.out // (usable - inner.kernel + 1))
    width = -(-inner.out // across)
    planes, shared_padding = 1, 0
    if across == 1:
        # Planes side by side share the padding between them, as far as no window lies in it.
        shared_padding = min(inner.pad_begin, inner.pad_end, inner.kernel - 1)
        fitting = (usable - shared_padding) // (width + inner.kernel - 1 - shared_padding)
        planes = max(1, min(fitting, geometry.planes // (BLOCKS << twins)))
    span = width + inner.kernel - 1 - shared_padding
    columns = -(-(planes * span + shared_padding + CHUNK - 1) // CHUNK) * CHUNK
    blocks = -(-geometry.planes // (planes << twins)) * across
    most_rows = SHARED_BYTES // (PITCH * _accumulator(problem).itemsize)
    highest = min(outer.out, most_rows)
    heights = {highest, *range(outer.kernel, highest, outer.kernel)}
    cost, height = min((_tiled_cost(outer, height, blocks), height) for height in heights)
    rows = min(-(-height // outer.kernel) * outer.kernel, most_rows)
    return _Tiles(planes, planes << twins, height, width, span, rows, columns, cost)


def _tiled_cost(outer: Axis, height: int, blocks: int) -> int:
    """Estimate the instructions of all threads: setup, columns, stores and rows of a tile."""
    runs = -(-height // outer.kernel)
    reads = runs * outer.kernel + height - runs
    each = 150 + 60 * runs + 8 * reads + 11 * height + 110 * -(-height * WARP // THREADS)
    return max(-(-outer.out // height) * blocks, BLOCKS) * each * THREADS


def _accumulator(problem: PoolProblem) -> np.dtype[Any]:
    """Return the type of partial results: the operators' Accumulator in kernels/ops.cuh."""
    if problem.reduction == "lp":
        return _sum_dtype(problem)
    if problem.reduction == "average" and not problem.dtype.is_float:
        return np.dtype(np.int64 if _wide(problem) else np.int32)
    return problem.dtype.accumulator


def _tiled_launch(problem: PoolProblem, geometry: _Geometry, tiles: _Tiles) -> Launch:
    outer, inner = (dim.axis for dim in geometry.dims)
    down, across = -(-outer.out // tiles.height), -(-inner.out // tiles.width)
    counts = (
        tiles.planes, geometry.planes, tiles.together, tiles.height, tiles.width, tiles.rows,
        tiles.columns,
    )  # fmt: skip
    divisors = (divisor(n, "int") for n in (down, across, tiles.span))
    operator, width = _operator(problem, "int"), str(inner.kernel)
    known = _compiles_in() and not _by_powers(problem) and _admit(("separable", operator, width))
    return Launch(
        "separable.cu",
        "separable",
        (operator, width if known or inner.kernel < CHUNK else "0"),
        ("x", "y"),
        (np.array((*counts, *divisors), TILES_DTYPE), _parameters(problem, geometry)),
        (-(-geometry.planes // tiles.together) * down * across, 1),
        tiles.rows * PITCH * _accumulator(problem).itemsize,
    )


# Rows: how many outputs one thread takes


@dataclass(frozen=True)
class _Tile:
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

    @classmethod
    def cheapest(cls, problem: PoolProblem, geometry: _Geometry, alignment: int) -> _Tile | None:
        """Return the tile with the fewest instructions, or None where rows.cu does not apply."""
        dims, inner = geometry.dims, geometry.dims[-1]
        if len(dims) > 3 or inner.axis.pad_begin >= inner.axis.kernel:
            return None
        if _by_powers(problem) or (problem.indices and not _numbers_fit(problem, dims)):
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
        chosen = min(
            tiles,
            key=lambda tile: (
                max(tile.code(problem, geometry), TILE_CODE),
                tile.cost(problem, geometry),
            ),
            default=None,
        )
        return chosen if chosen and chosen.code(problem, geometry) <= MOST_CODE else None

    @classmethod
    def _of(
        cls, problem: PoolProblem, geometry: _Geometry, alignment: int,
        outputs: int, row: int, rows: int, lanes: int, packed: bool,
    ) -> _Tile | None:  # fmt: skip
        *outer, inner = geometry.dims
        body = 0 if row else outputs * inner.axis.stride * lanes if packed else lanes
        steps = [dim.step for dim in (geometry.batch, geometry.channels, *outer)]
        if problem.channels_last:
            steps = [steps[0], *steps[2:]]
        width = inner.axis.size * lanes if packed else inner.step
        pitch = inner.axis.out * lanes if packed else inner.step
        load = _width(alignment, problem.dtype, body, width, *steps)
        store = _width(alignment, problem.out_dtype, outputs * lanes if packed else lanes, pitch)
        if not packed and min(load, store) < lanes:
            return None
        pairs = problem.reduction == "max" and problem.dtype.itemsize == 2 and load % 2 == 0
        divides = inner.axis.out % outputs == 0 and (not outer or outer[-1].axis.out % rows == 0)
        inside = divides and all(dim.inside for dim in geometry.dims)
        tile = cls(outputs, rows, lanes, packed, load, store, pairs, row, inside)
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

    def threads(self, geometry: _Geometry) -> int:
        """Threads that cover every output."""
        return geometry.outputs // self._unit(geometry) * prod(self._groups(geometry))

    def _unit(self, geometry: _Geometry) -> int:
        lanes = self.lanes if geometry.channels_last else 1
        return lanes * prod(dim.axis.out for dim in geometry.dims[-2:])

    def _groups(self, geometry: _Geometry) -> tuple[int, int]:
        """Column groups of a row, and row groups of a plane."""
        rows = geometry.dims[-2].axis.out if len(geometry.dims) > 1 else 1
        return -(-geometry.dims[-1].axis.out // self.outputs), -(-rows // self.rows)

    def cost(self, problem: PoolProblem, geometry: _Geometry) -> float:
        """Estimate the instructions of all threads; a card that is not filled runs them alike."""
        slices = geometry.dims[0].axis.kernel if len(geometry.dims) > 2 else 1
        return max(self.threads(geometry), FILL) * self._path(problem, geometry, slices)

    def code(self, problem: PoolProblem, geometry: _Geometry) -> float:
        """Estimate the instructions of the kernel, where slices and rare paths are loops."""
        each = DOUBLE_BORDER if problem.dtype.name == "float64" else BORDER
        counts = problem.reduction == "average" and not self.inside
        border = each * self.outputs * self.lanes if counts else 0
        again = 0 if _exact(problem) else SECOND_LOOK
        return self._path(problem, geometry, 1) + border + again

    def _path(self, problem: PoolProblem, geometry: _Geometry, slices: int) -> float:
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
        return TILE_SETUP + work + outputs * (_finish(problem) * lift + 4 / self.store)


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


def _touches(axis: Axis) -> bool:
    """Whether every window has a tap in the input."""
    last = (axis.out - 1) * axis.stride - axis.pad_begin
    return axis.pad_begin < axis.kernel and last < axis.size


def _numbers_fit(problem: PoolProblem, dims: Sequence[_Dim]) -> bool:
    """Whether every window has an Index, and 32 bits hold those of a plane."""
    numbers = problem.channels * prod(dim.axis.size for dim in dims)
    return numbers <= INT32_MAX and all(_touches(dim.axis) for dim in dims)


def _row_counts(dims: Sequence[_Dim]) -> list[int]:
    """Return how many output rows a thread may take."""
    if len(dims) == 1:
        return [1]
    return list(range(1, min(8, dims[-2].axis.out) + 1))


def _lone_cost(geometry: _Geometry) -> float:
    taps = prod(dim.axis.kernel for dim in geometry.dims)
    return max(geometry.outputs, FILL) * (45 + 7.0 * taps)


def _lanes(problem: PoolProblem) -> tuple[tuple[int, bool], ...]:
    """Return the ways to take pixels: (neighbouring elements of one, whether pixels adjoin)."""
    channels = problem.channels
    if not problem.channels_last or channels == 1:
        return ((1, True),)
    if channels <= 4:
        return ((channels, True),)
    return tuple((lanes, False) for lanes in (2, 4, 8, 16) if channels % lanes == 0)


def _width(alignment: int, dtype: DType, *multiples: int) -> int:
    """Return the widest vector, in elements, whose accesses are all aligned."""
    width = max(1, alignment // dtype.itemsize)
    while any(number % width for number in multiples):
        width //= 2
    return width


@lru_cache(maxsize=1)
def rows_dtype() -> np.dtype[Any]:
    """Return the NumPy mirror of ``Rows`` in kernels/rows.cu."""
    names = ("vectors", "groups", "row_groups")
    divisors = [(name, _divisor_dtype("int")) for name in names]
    return np.dtype([("threads", "i8"), *divisors, ("pixel_step", "i4")], align=True)


def _rows_launch(problem: PoolProblem, geometry: _Geometry, tile: _Tile) -> Launch:
    axes = [dim.axis for dim in geometry.dims]
    template = (
        _operator(problem, "int"), str(len(axes)), _sizes([a.kernel for a in axes]),
        _sizes([a.stride for a in axes]), str(axes[-1].pad_begin), str(tile.row),
        _bool(tile.inside), str(tile.outputs), str(tile.rows), str(tile.lanes),
        _bool(tile.packed), str(tile.load), str(tile.store),
    )  # fmt: skip
    grid = np.zeros((), rows_dtype())
    threads = tile.threads(geometry)
    groups, row_groups = tile._groups(geometry)
    grid["threads"] = threads
    grid["vectors"] = divisor(problem.channels // tile.lanes, "int")
    grid["groups"], grid["row_groups"] = divisor(groups, "int"), divisor(row_groups, "int")
    grid["pixel_step"] = problem.channels
    scalars = (grid, _parameters(problem, geometry))
    operands = ("x", "y", "indices")
    return Launch("rows.cu", "rows", template, operands, scalars, (-(-threads // THREADS), 1))


def _plan_plane(
    problem: PoolProblem, strides: tuple[int, ...], geometry: _Geometry, alignment: int
) -> Plan:
    if _staged_outputs(problem, geometry, alignment):
        return Plan(problem, strides, (_staged_launch(problem, geometry, alignment),))
    taps, index = taps_of(problem.window), geometry.index_type
    whole = _whole_rows(problem, geometry)
    load = _vector_taps(problem, geometry, alignment) if whole else 1
    vectors = taps // load
    workers = 8 if problem.channels_last else _workers(geometry, vectors, load)
    outputs = THREADS // workers
    blocks = -(-geometry.outputs // outputs)
    parts = max(1, min(BLOCKS // blocks, vectors // (16 * workers), 65535))
    template = (
        _operator(problem, index), str(len(geometry.dims)), index, str(outputs), str(workers),
        _bool(problem.channels_last), _bool(whole), str(load),
    )  # fmt: skip
    parameters = _parameters(problem, geometry)
    shared = THREADS * PART_BYTES if problem.channels_last or workers > WARP else 0
    last = Launch(
        "plane.cu", "plane", template, ("x", "y", "indices", "workspace" if parts > 1 else ""),
        (np.int32(parts if parts > 1 else 0), parameters), (blocks, 1), shared,
    )  # fmt: skip
    if parts == 1:
        return Plan(problem, strides, (last,))
    cut = Launch(
        "plane.cu",
        "plane_parts",
        template,
        ("x", "workspace"),
        (parameters,),
        (blocks, parts),
        shared,
    )
    return Plan(problem, strides, (cut, last), geometry.outputs * parts * PART_BYTES)


def _workers(geometry: _Geometry, vectors: int, load: int) -> int:
    """Return the threads of one output: as few as fill the card, a short row's vectors at once."""
    row = geometry.dims[-1].axis.kernel // load
    workers = 4
    while workers < THREADS and (
        vectors > 64 * workers
        or geometry.outputs * workers < FILL
        or (len(geometry.dims) > 1 and workers < row <= 32)
    ):
        workers *= 2
    return workers


def _whole_rows(problem: PoolProblem, geometry: _Geometry) -> bool:
    """Whether every window lies in the input and the taps of its rows adjoin in memory."""
    inner = geometry.dims[-1]
    inside = all(dim.inside for dim in geometry.dims)
    return not problem.channels_last and inside and (inner.step, inner.axis.dilation) == (1, 1)


def _vector_taps(problem: PoolProblem, geometry: _Geometry, alignment: int) -> int:
    """Return how many taps of a whole row one load may take, aligned."""
    *outer, inner = geometry.dims
    steps = [dim.step for dim in (geometry.batch, geometry.channels, *outer)]
    stride = inner.axis.stride if inner.axis.out > 1 else 0
    width = _width(alignment, problem.dtype, inner.axis.kernel, stride, *steps)
    return 1 if width * problem.dtype.itemsize < 4 else width


def _staged_outputs(problem: PoolProblem, geometry: _Geometry, alignment: int) -> int:
    """Return the outputs of one block whose small adjoining planes fit in shared memory, or 0."""
    dim = geometry.dims[0]
    size = dim.axis.size
    adjoin = geometry.channels.step == size and (
        geometry.batch.axis.size == 1 or geometry.batch.step == size * geometry.channels.axis.size
    )
    if problem.channels_last or len(geometry.dims) > 1 or not (dim.covered and dim.step == 1):
        return 0
    if not adjoin or geometry.index_type != "int" or alignment < 16:
        return 0
    outputs = SHARED_BYTES // (size * problem.dtype.itemsize)
    return 2 ** min(outputs.bit_length() - 1, 8) if outputs >= 32 else 0


def _staged_launch(problem: PoolProblem, geometry: _Geometry, alignment: int) -> Launch:
    outputs = _staged_outputs(problem, geometry, alignment)
    template = (_operator(problem, "int"), str(outputs), str(THREADS // outputs))
    bytes_of_planes = outputs * geometry.dims[0].axis.size * problem.dtype.itemsize
    return Launch(
        "plane.cu", "plane_staged", template, ("x", "y", "indices"),
        (_parameters(problem, geometry),), (-(-geometry.outputs // outputs), 1),
        bytes_of_planes,
    )  # fmt: skip


# MaxUnpool and the RoI operators


def _plan_unpool(problem: UnpoolProblem, strides: tuple[int, ...]) -> Plan:
    inputs, outputs = prod(problem.shape), prod(problem.out_shape)
    element, index = problem.dtype.cuda, "int" if inputs <= INT32_MAX else "long long"
    sizes = (np.int64(inputs), np.int64(outputs))

    def launch(name: str, template: tuple[str, ...], operands: tuple[str, ...], threads: int,
               scalars: tuple[np.generic, ...]) -> Launch:  # fmt: skip
        grid = (-(-threads // THREADS), 1)
        return Launch("unpool.cu", name, template, operands, scalars, grid)

    launches = (
        launch("unpool_clear", (element, index), ("y", "workspace"), outputs, sizes[1:]),
        launch("unpool_claim", (index,), ("indices", "workspace"), inputs, sizes),
        launch("unpool_place", (element, index), ("x", "indices", "y", "workspace"), inputs, sizes),
    )
    return Plan(problem, strides, launches, outputs * (4 if index == "int" else 8))


ROI_DTYPE = np.dtype(
    [
        ("outputs", "i8"),
        *(
            (name, "i4")
            for name in (
                "batch", "channels", "height", "width", "bins_y", "bins_x", "sampling_ratio",
                "half_pixel", "channels_last",
            )
        ),
        ("spatial_scale", "f8"),
    ],
    align=True,
)  # fmt: skip
"""The NumPy mirror of ``Roi`` in kernels/roi.cu."""


def _roi_launch(problem: RoiProblem) -> Launch:
    outputs = prod(problem.outputs[0].shape)
    packed = np.array(
        (
            outputs, problem.batch, problem.channels, *problem.spatial, *problem.pooled,
            problem.sampling_ratio, problem.half_pixel, problem.channels_last,
            problem.spatial_scale,
        ),
        ROI_DTYPE,
    )  # fmt: skip
    grid = (-(-outputs // THREADS), 1)
    element = problem.dtype.cuda
    if problem.op == "MaxRoiPool":
        return Launch("roi.cu", "max_roi_pool", (element,), ("x", "rois", "y"), (packed,), grid)
    template = (element, _bool(problem.mode == "max"))
    return Launch(
        "roi.cu", "roi_align", template, ("x", "rois", "batch_indices", "y"), (packed,), grid
    )


# Preprocessing

MAX_CHANNELS = 4
"""Channels of an image, as many as kernels/preprocess.cu holds means for."""

PREPROCESS_DTYPE = np.dtype(
    [
        *((name, "i8") for name in ("outputs", "origin")),
        ("step", "i8", 4),
        *(
            (name, "i4")
            for name in ("channels", "height", "width", "pool_y", "pool_x", "reversed", "narrow")
        ),
        ("scale", "f4"),
        *((name, "f4", MAX_CHANNELS) for name in ("mean", "deviation")),
    ],
    align=True,
)
"""The NumPy mirror of ``Preprocess`` in kernels/preprocess.cu."""


def _preprocess_launch(problem: PreprocessProblem, strides: tuple[int, ...]) -> Launch:
    outputs = prod(problem.outputs[0].shape)
    greatest = prod(problem.pool) * 255
    packed = np.zeros((), PREPROCESS_DTYPE)
    packed["outputs"], packed["step"] = outputs, strides
    packed["origin"] = sum(n * s for n, s in zip(problem.origin, strides[1:], strict=False))
    sizes = (problem.channels, *problem.size, *problem.pool, problem.reverse, greatest < 2**24)
    names = ("channels", "height", "width", "pool_y", "pool_x", "reversed", "narrow")
    for name, size in zip(names, sizes, strict=True):
        packed[name] = size
    packed["scale"] = problem.scale
    packed["mean"][: problem.channels] = problem.mean
    packed["deviation"][: problem.channels] = problem.std
    template = (
        problem.out_dtype.cuda,
        "int" if outputs + THREADS <= INT32_MAX else "long long",
        "int" if greatest <= INT32_MAX else "long long",
        _bool(problem.planar),
    )
    grid = (-(-outputs // THREADS), 1)
    return Launch("preprocess.cu", "preprocess", template, ("x", "y"), (packed,), grid)
