"""The arithmetic of every operator in NumPy: the fallback without a GPU and the kernels' judge.

A window is reduced one spatial axis after the other, block by block, by passes over whole arrays:
one pass for each tap where the kernel is short, doubling (pieces of 1, 2, 4, .. taps) where it is
long. What is merged is a tuple of arrays, so that maxima, maxima with positions and sums share the
same traversal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import ceil, inf, prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpupool.arrays import Array
from gpupool.bounds import at_least
from gpupool.dtypes import BFLOAT16, DType, byte_sum_dtype, finfo
from gpupool.problem import (
    SMALL_P,
    Output,
    PoolProblem,
    PreprocessProblem,
    Problem,
    RoiProblem,
    UnpoolProblem,
)
from gpupool.validate import INT64_MAX
from gpupool.window import Axis, Window, taps_of

Fields = tuple[Array, ...]

BLOCK = 2**17
"""Elements of x in one block: a few hundred KiB, so that the passes over it stay in cache."""

LONG_BLOCK = 2**20
"""The same for averages of whole planes, which take one pass."""

SUM_SCALE = 2.0**64
"""What float64 terms are divided by where their sum overflows: no window has as many taps."""

SHORT = 16
"""Kernels up to this many taps take one pass per tap; longer ones double."""


def empty(output: Output, _like: Array) -> Array:
    """Return uninitialised memory for ``output``."""
    return np.empty(output.shape, output.dtype)


def run(
    problem: Problem,
    inputs: Fields,
    outputs: Fields,
    kernel: str = "auto",  # noqa: ARG001 - the protocol has it
) -> None:
    """Compute ``problem`` on ``inputs`` into ``outputs``, whatever their strides."""
    with np.errstate(all="ignore"):
        if isinstance(problem, PoolProblem):
            _pool(problem, *inputs, *outputs)
        elif isinstance(problem, UnpoolProblem):
            _unpool(*inputs, *outputs)
        elif isinstance(problem, PreprocessProblem):
            _preprocess(problem, *inputs, *outputs)
        else:
            _roi(problem, inputs, *outputs)


# Pooling: blocks


def _channels_first(problem: Problem, array: Array) -> Array:
    return np.moveaxis(array, -1, 1) if problem.channels_last else array


def _pool(problem: PoolProblem, x: Array, y: Array, indices: Array | None = None) -> None:
    x, y = _channels_first(problem, x), _channels_first(problem, y)
    if indices is not None:
        indices = _channels_first(problem, indices)
    for planes, rows, part, window in _blocks(problem, x.shape):
        block, into = x[(*planes, part)], (*planes, rows)
        if indices is not None:
            first = part.start * prod(x.shape[3:])
            values, positions = _argmax(problem, block, window)
            y[into] = values
            indices[into] = _flat(problem, planes, positions, first)
        elif problem.reduction == "max":
            _max(problem, block, window, y[into])
        elif problem.reduction == "average":
            y[into] = _average(problem, block, window)
        else:
            y[into] = _lp(problem, block, window)


def _blocks(
    problem: PoolProblem, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[slice, slice], slice, slice, Window]]:
    """Cut x into runs of planes, and planes that exceed a block into runs of output rows."""
    batch, channels, *spatial = shape
    block = LONG_BLOCK if problem.reduction == "average" and _covers(problem.window) else BLOCK
    plane = prod(spatial)
    first, *rest = problem.window
    channel_step = channels if problem.channels_last else max(1, min(channels, block // plane))
    batch_step = max(1, block // (plane * channels))
    rows = first.out
    if plane * channel_step > block:
        across = prod(spatial[1:]) * channel_step
        rows = max(2, (block // across - first.extent) // first.stride + 1)
    for n, c, row in product(
        range(0, batch, batch_step), range(0, channels, channel_step), range(0, first.out, rows)
    ):
        # Two rows at least: a lone one would be folded, and its sum rounded in another order.
        last = min(row + rows, first.out)
        o = max(0, min(row, last - 2))
        part, axis = first.part(o, last)
        yield (
            (slice(n, n + batch_step), slice(c, c + channel_step)),
            slice(o, last),
            slice(part.start, part.stop),
            (axis, *rest),
        )


# Pooling: the reduction of one axis


class Merge(Protocol):
    """Combine what earlier and later taps gave, into ``out`` or new arrays."""

    def __call__(self, earlier: Fields, later: Fields, out: Fields | None = None) -> Fields:
        """Return the combination, field by field."""


@dataclass(frozen=True)
class Reduction:
    """How taps combine, what no tap at all gives, and whether their order matters.

    ``ordered`` reductions see taps row-major; ``free`` ones leave no trace of any order.
    """

    merge: Merge
    empty: tuple[Any, ...]
    ordered: bool = False
    free: bool = False


def _reduce(
    fields: Fields, window: Window, reduction: Reduction, out: Fields | None = None
) -> Fields:
    """Reduce every spatial axis, the last one first where row-major order matters."""
    order = list(reversed(range(len(window))) if reduction.ordered else range(len(window)))
    for i in order:
        into = out if i == order[-1] else None
        fields = _reduce_axis(fields, i + 2, window[i], reduction, into)
    return fields


def _reduce_axis(
    fields: Fields, number: int, axis: Axis, reduction: Reduction, out: Fields | None
) -> Fields:
    if axis.out == 1 and axis.taps(0):
        folded = _fold(_at(fields, number, _as_slice(axis.valid(0))), number, reduction)
        for field, value in zip(out or (), folded, strict=bool(out)):
            field[...] = value
        return folded
    shape = list(fields[0].shape)
    shape[number] = axis.out
    reduced = out or tuple(np.empty_like(f, shape=shape, order="K") for f in fields)
    if axis.kernel <= SHORT:
        _by_taps(fields, reduced, number, axis, reduction)
    else:
        _fill(reduced, reduction)
        _by_doubling(fields, reduced, number, axis, reduction.merge)
    return reduced


def _fill(reduced: Fields, reduction: Reduction) -> None:
    for field, value in zip(reduced, reduction.empty, strict=True):
        field[...] = value


def _by_taps(
    fields: Fields, reduced: Fields, number: int, axis: Axis, reduction: Reduction
) -> None:
    """Merge tap after tap: a strided view of the input into a run of outputs."""
    runs = list(_runs(axis))
    whole = slice(0, axis.out)
    if reduction.free:
        runs.sort(key=lambda run: run[0] != whole)
    if reduction.free and len(runs) > 1 and runs[1][0] == whole:
        # Two taps that every window has begin, so that nothing need be filled.
        first, second = (_at(fields, number, places) for _, places in runs[:2])
        reduction.merge(first, second, reduced)
        del runs[:2]
    else:
        _fill(reduced, reduction)
    for outputs, places in runs:
        into = _at(reduced, number, outputs)
        reduction.merge(into, _at(fields, number, places), into)


@lru_cache(maxsize=64)
def _runs(axis: Axis) -> tuple[tuple[slice, slice], ...]:
    """Pair, for each tap, the outputs for which it is valid with the positions that it reads."""
    runs = []
    for tap in range(axis.kernel):
        offset = tap * axis.dilation - axis.pad_begin
        first = max(0, -(offset // axis.stride))
        last = min(axis.out, -((offset - axis.size) // axis.stride))
        if first < last:
            start = first * axis.stride + offset
            stop = (last - 1) * axis.stride + offset + 1
            runs.append((slice(first, last), slice(start, stop, axis.stride)))
    return tuple(runs)


def _by_doubling(fields: Fields, reduced: Fields, number: int, axis: Axis, merge: Merge) -> None:
    """Merge pieces of 1, 2, 4, .. taps, as the binary digits of each window's tap count ask."""
    position, count = _first_taps(axis)
    whole = np.flatnonzero(count == axis.kernel)
    border = np.flatnonzero(count != axis.kernel)
    width = 1
    while width <= count.max(initial=0):
        if width > 1:
            step, size = width // 2 * axis.dilation, fields[0].shape[number]
            fields = merge(
                _at(fields, number, slice(0, size - step)), _at(fields, number, slice(step, size))
            )
        if axis.kernel & width and len(whole):
            into = _at(reduced, number, slice(whole[0], whole[-1] + 1))
            places = slice(position[whole[0]], position[whole[-1]] + 1, axis.stride)
            merge(into, _at(fields, number, places), into)
        chosen = border[(count[border] & width) > 0]
        if len(chosen):
            part = merge(_at(reduced, number, chosen), _at(fields, number, position[chosen]))
            for field, merged in zip(reduced, part, strict=True):
                field[(slice(None),) * number + (chosen,)] = merged
        position[(count & width) > 0] += width * axis.dilation
        width *= 2


def _first_taps(axis: Axis) -> tuple[Array, Array]:
    """Position of the first valid tap of every window, and how many are valid."""
    start = np.arange(axis.out, dtype=np.int64) * axis.stride - axis.pad_begin
    first = np.maximum(0, -(start // axis.dilation))
    last = np.minimum(axis.kernel, -((start - axis.size) // axis.dilation))
    return start + first * axis.dilation, np.maximum(0, last - first)


def _fold(fields: Fields, number: int, reduction: Reduction) -> Fields:
    """Merge pairs until one is left: a tree, so sums of any length stay accurate."""
    size = fields[0].shape[number]
    while size > 1:
        half = size // 2
        if reduction.ordered:
            earlier, later = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            earlier, later = slice(0, half), slice(half, 2 * half)
        folded = reduction.merge(_at(fields, number, earlier), _at(fields, number, later))
        if size % 2:
            tail = _at(folded, number, slice(half - 1, half))
            reduction.merge(tail, _at(fields, number, slice(size - 1, size)), tail)
        fields, size = folded, half
    return fields


def _as_slice(places: range) -> slice:
    return slice(places.start, places.stop, places.step)


def _at(fields: Fields, number: int, where: Any) -> Fields:
    index = (slice(None),) * number + (where,)
    return tuple(field[index] for field in fields)


def _merge_max(earlier: Fields, later: Fields, out: Fields | None = None) -> Fields:
    return (np.maximum(earlier[0], later[0], out=out[0] if out else None),)


def _merge_sum(earlier: Fields, later: Fields, out: Fields | None = None) -> Fields:
    return (np.add(earlier[0], later[0], out=out[0] if out else None),)


def _merge_argmax(earlier: Fields, later: Fields, out: Fields | None = None) -> Fields:
    greater = np.greater(later[0], earlier[0])
    keys, positions = out or (None, earlier[1].copy(order="K"))
    np.copyto(positions, later[1], where=greater)
    return np.maximum(earlier[0], later[0], out=keys), positions


# MaxPool


def _ordered(x: Array, dtype: DType) -> Array:
    """Map values to signed integers of the same order: -0 on +0, every NaN on the greatest."""
    if not dtype.is_float:
        return x.astype(np.int16)
    integer = np.dtype(f"i{dtype.itemsize}")
    greatest = np.iinfo(integer).max
    keys: Array = x.view(integer)
    sign = keys >> (8 * dtype.itemsize - 1)
    keys = ((keys ^ (sign & greatest)) - sign).astype(integer, copy=False)
    infinity = np.array(inf, dtype.numpy).view(integer)[()]
    np.copyto(keys, greatest, where=np.abs(keys) > infinity)
    return keys


def _from_ordered(keys: Array, dtype: DType) -> Array:
    lowest = np.iinfo(keys.dtype).min
    return np.where(keys < 0, lowest - keys, keys).view(dtype.numpy)


def _lowest(dtype: DType) -> Any:
    return -inf if dtype.is_float else np.iinfo(dtype.numpy).min


def _max(problem: PoolProblem, x: Array, window: Window, y: Array) -> None:
    # NumPy compares 16-bit floats one by one, integers of the same order sixteen at a time.
    dtype = problem.dtype
    if not (dtype.is_float and dtype.itemsize == 2):
        _reduce((x,), window, Reduction(_merge_max, (_lowest(dtype),), free=True), (y,))
        return
    empty = _ordered(np.array([-inf], dtype.numpy), dtype)[0]
    keys = _reduce((_ordered(x, dtype),), window, Reduction(_merge_max, (empty,), free=True))[0]
    y[...] = _from_ordered(keys, dtype)


def _argmax(problem: PoolProblem, x: Array, window: Window) -> Fields:
    """Return maxima and their row-major positions in the block, -1 where no tap is valid."""
    keys = _ordered(x, problem.dtype)
    plane = prod(x.shape[2:])
    kind = np.int32 if plane <= 2**31 else np.int64
    positions = np.broadcast_to(np.arange(plane, dtype=kind).reshape(x.shape[2:]), x.shape)
    empty = (np.iinfo(keys.dtype).min, -1)
    _, found = _reduce((keys, positions), window, Reduction(_merge_argmax, empty, ordered=True))
    flat = found.reshape(*found.shape[:2], -1)
    values = np.take_along_axis(x.reshape(*x.shape[:2], -1), np.maximum(flat, 0), axis=2)
    values[flat < 0] = _lowest(problem.dtype)
    return values.reshape(found.shape), found


def _flat(problem: PoolProblem, planes: tuple[slice, slice], found: Array, first: int) -> Array:
    """Turn positions in the block into ONNX's Indices: flat positions in x as passed."""
    spatial, channels = problem.spatial, problem.channels
    plane = prod(spatial)
    position = found.astype(np.int64) + first
    if problem.storage_order:
        position = _column_major(position, spatial)
    n, c = (
        np.arange(s.start, s.start + size).reshape((-1,) + (1,) * (found.ndim - axis - 1))
        for axis, (s, size) in enumerate(zip(planes, found.shape[:2], strict=True))
    )
    if problem.channels_last:
        position = (n * plane + position) * channels + c
    else:
        position = (n * channels + c) * plane + position
    return np.where(found < 0, -1, position)


def _column_major(position: Array, spatial: tuple[int, ...]) -> Array:
    """Return the numbers of row-major positions as if the first axis were the innermost."""
    number = np.zeros_like(position)
    for axis in reversed(range(len(spatial))):
        position, along = np.divmod(position, spatial[axis])
        number += along * prod(spatial[:axis])
    return number


# AveragePool


def _covers(window: Window) -> bool:
    return all(axis.out == 1 and len(axis.taps(0)) == axis.size for axis in window)


def _sum(x: Array, accumulator: Any, window: Window) -> Array:
    x = x.astype(accumulator, copy=False)
    if _covers(window):
        # NumPy sums a row of memory by a tree of its own; other layouts become such rows.
        rows = np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
        total: Array = np.add.reduce(rows, axis=2, dtype=rows.dtype)
        return total.reshape(*x.shape[:2], *(1,) * len(window))
    return _reduce((x,), window, Reduction(_merge_sum, (0,)))[0]


@lru_cache(maxsize=8)
def _counts(window: Window, include_pad: bool) -> Array:
    """Divisor of every output: the product over the axes of the taps that count, at least 1."""
    total = np.ones((), np.int64)
    for axis in window:
        if include_pad:
            padded = axis.size + axis.pad_end + axis.pad_begin
            beyond = padded - np.arange(axis.out, dtype=np.int64) * axis.stride
            count = np.clip(-(-beyond // axis.dilation), 0, axis.kernel)
        else:
            count = _first_taps(axis)[1]
        total = np.multiply.outer(total, count)
    counts = np.maximum(total, 1)
    counts.setflags(write=False)  # the cache hands it out again
    return counts


def _average(problem: PoolProblem, x: Array, window: Window) -> Array:
    counts = _counts(window, problem.count_include_pad)
    dtype, out = problem.dtype, problem.out_dtype
    if not dtype.is_float:
        mean = _sum(x, byte_sum_dtype(taps_of(window)), window) / counts
        return rounded(mean if out.is_float else np.rint(mean), out)
    total = _sum(x, dtype.accumulator, window)
    mean = total / counts.astype(dtype.accumulator)
    finite = np.isfinite(mean)
    if not finite.all():
        # Only there: what shares a block with an infinity must not notice.
        wide = _sum(_scaled_down(x), np.float64, window) / counts
        mean = np.where(finite, mean, _scaled_back(wide))
    return rounded(mean, out)


def _scaled_down(x: Array) -> Array:
    """Return terms whose sum cannot overflow, where a plain sum does."""
    return x.astype(np.float64) / SUM_SCALE


def _scaled_back(mean: Array) -> Array:
    """Return the mean of the terms; what rounding took above the greatest number is that."""
    greatest = np.finfo(np.float64).max / SUM_SCALE
    return np.where(np.isinf(mean), mean, np.clip(mean, -greatest, greatest)) * SUM_SCALE


def rounded(values: Array, dtype: DType) -> Array:
    """Round to ``dtype`` once; bfloat16 goes through float32, rounded to odd to keep it once."""
    if dtype is not BFLOAT16 or values.dtype != np.float64:
        return values.astype(dtype.numpy)
    single = values.astype(np.float32)
    inexact = (single != values) & np.isfinite(single)
    bits = single.view(np.int32)
    bits -= inexact & (np.abs(single) > np.abs(values))
    bits |= inexact
    return single.astype(dtype.numpy)


# LpPool


def _lp(problem: PoolProblem, x: Array, window: Window) -> Array:
    p = problem.p
    norm, uncertain = _norms(x, window, p, problem.sum_dtype)
    if uncertain.any():
        wide, still = _norms(x, window, p, np.dtype(np.float64))
        norm, uncertain = np.where(uncertain, wide, norm), uncertain & still
    if uncertain.any():
        norm[uncertain] = _scaled_norms(x, window, p, np.argwhere(uncertain))
    if problem.sum_dtype == np.float32 and p % 1:  # float32 may have rounded p, too
        _bring_back(problem, norm, window)
    return rounded(norm, problem.dtype)


def _bring_back(problem: PoolProblem, norm: Array, window: Window) -> None:
    """Change what only roundings to float32 may have taken above the greatest number to that."""
    greatest = float(finfo(problem.dtype.numpy).max)
    beyond = norm > greatest
    if beyond.any():
        # The taps that each window has: the most that any has are fewer in a part of x.
        taps = np.broadcast_to(_counts(window, include_pad=False), norm.shape)[beyond]
        eps = float(np.finfo(np.float32).eps)
        least = norm[beyond] * [at_least(n, problem.p, eps) for n in taps.tolist()]
        norm[beyond] = brought_back(norm[beyond], least, greatest)


def _norms(x: Array, window: Window, p: float, accumulator: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the norms, and where the sum of powers left the range that keeps it accurate."""
    magnitude = np.abs(x.astype(accumulator, copy=False))
    total = _sum(_power(magnitude, p), accumulator, window).astype(np.float64)
    norm = _root(total, p)
    info = np.finfo(accumulator)
    # The kernel's taps, not those that lie in x: a part of it must take the same way as the whole.
    taps = min(prod(axis.kernel for axis in window), INT64_MAX)  # which no array exceeds
    least = float(info.tiny) / float(info.eps) * taps
    uncertain = ~((total > least) & (total < inf) & (norm > 0) & (norm < inf) | np.isnan(total))
    # The power of a tiny p is 1 but for its last bits: they must not hold all of the magnitude.
    uncertain |= (p < SMALL_P) & ~np.isnan(total)
    if uncertain.any():
        greatest = _reduce((magnitude,), window, Reduction(_merge_max, (0,)))[0]
        uncertain &= (greatest > 0) & (greatest < inf)
    return norm, uncertain


def _scaled_norms(x: Array, window: Window, p: float, places: Array) -> Array:
    """Take the norms of some windows from their taps relative to the greatest of them."""
    norms, info = np.empty(len(places)), np.finfo(np.float64)
    for some, rows in _taps_by_rows(x, window, places):
        taps = np.abs(rows.astype(np.float64))
        greatest = taps.max(axis=1)
        if p < 0.5:  # a quotient may underflow where its power counts; these powers are normal
            powers = _power(taps, p)
            powers /= powers.max(axis=1, keepdims=True)
        else:
            powers = _power(taps / greatest[:, None], p)
        # Half of the root twice, exponents apart: the root may overflow, and a subnormal tap lose
        # bits, where their product does not.
        half = _root(powers.sum(axis=1), 2 * p)
        mantissas, exponents = np.frexp([greatest, half, half])
        product, exponent = mantissas.prod(axis=0), exponents.sum(axis=0)
        least = np.ldexp(product * at_least(taps.shape[1], p, float(info.eps)), exponent)
        norms[some] = brought_back(np.ldexp(product, exponent), least, float(info.max))
    return norms


def brought_back(norm: Array, least: Array, greatest: float) -> Array:
    """Return ``greatest`` for what only roundings took above it, from ``least`` on."""
    return np.where(least <= greatest, np.minimum(norm, greatest), norm)


def _taps_by_rows(x: Array, window: Window, places: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the taps of windows that have equally many, a row for each, and which windows."""
    first = [_first_taps(axis) for axis in window]
    position, count = (
        np.stack([each[i][o] for each, o in zip(first, places.T[2:], strict=True)], axis=1)
        for i in (0, 1)
    )
    shapes, kind = np.unique(count, axis=0, return_inverse=True)
    for i, shape in enumerate(shapes):
        alike = np.flatnonzero(kind.ravel() == i)
        step = max(1, BLOCK // int(prod(shape)))
        for start in range(0, len(alike), step):
            some = alike[start : start + step]
            index = [n.reshape(-1, *(1,) * len(window)) for n in places[some].T[:2]]
            for a, axis in enumerate(window):
                taps = position[some, a, None] + np.arange(shape[a]) * axis.dilation
                along = [1] * len(window)
                along[a] = -1
                index.append(taps.reshape(len(some), *along))
            # In one order for every layout.
            yield some, np.ascontiguousarray(x[tuple(index)]).reshape(len(some), -1)


def _power(magnitude: Array, p: float) -> Array:
    if p == 1:
        return magnitude
    return np.square(magnitude) if p == 2 else np.power(magnitude, p)


def _root(total: Any, p: float) -> Any:
    if p == 1:
        return total
    if p == 2:
        return np.sqrt(total)
    exponent = 1 / p
    # 1 / p is not a float: what rounding it cost is put back to first order.
    slip = float(Fraction(1) / Fraction(p) - Fraction(exponent))
    root = np.power(total, exponent)
    info = np.finfo(np.float64)
    return root * (1 + slip * np.log(np.clip(total, info.tiny, info.max)))


# MaxUnpool


def _unpool(x: Array, indices: Array, output: Array) -> None:
    # Of repeated positions NumPy keeps the last assignment: the highest source position.
    flat = np.zeros(output.size, output.dtype)
    flat[indices.reshape(-1)] = x.reshape(-1)
    output[...] = flat.reshape(output.shape)


# The RoI operators


def _roi(problem: RoiProblem, inputs: Fields, y: Array) -> None:
    x, rois = _channels_first(problem, inputs[0]), inputs[1]
    y = _channels_first(problem, y)
    for r in range(problem.num_rois):
        if problem.op == "MaxRoiPool":
            _max_roi(problem, x[int(rois[r, 0])], rois[r, 1:].astype(np.float32), y[r])
        else:
            _align_roi(problem, x[int(inputs[2][r])], rois[r], y[r])


def _max_roi(problem: RoiProblem, x: Array, roi: Array, y: Array) -> None:
    scaled = roi * np.float32(problem.spatial_scale)
    whole = np.trunc(scaled)
    x1, y1, x2, y2 = (whole + np.copysign(np.abs(scaled - whole) >= 0.5, scaled)).astype(int)
    rows = _bins(y1, y2, problem.pooled[0], problem.spatial[0])
    columns = _bins(x1, x2, problem.pooled[1], problem.spatial[1])
    for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
        taps = x[:, row, column]
        y[:, i, j] = taps.max(axis=(1, 2)) if taps.size else 0


def _bins(first: int, last: int, bins: int, size: int) -> list[slice]:
    width = np.float32(max(last - first + 1, 1)) / np.float32(bins)
    edges = np.arange(bins + 1, dtype=np.float32) * width
    starts = np.clip(np.floor(edges[:-1]).astype(np.int64) + first, 0, size)
    stops = np.clip(np.ceil(edges[1:]).astype(np.int64) + first, 0, size)
    return [slice(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def _align_roi(problem: RoiProblem, x: Array, roi: Array, y: Array) -> None:
    real = problem.dtype.accumulator
    x1, y1, x2, y2 = roi.astype(real) * real.type(problem.spatial_scale)
    rows = _samples(problem, y1, y2, problem.pooled[0], problem.spatial[0])
    columns = _samples(problem, x1, x2, problem.pooled[1], problem.spatial[1])
    for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
        samples, inside = row.total * column.total, len(row.low) * len(column.low)
        if not inside:
            y[:, i, j] = 0
            continue
        step = max(1, BLOCK // (4 * inside))
        for some in (slice(c, c + step) for c in range(0, x.shape[0], step)):
            terms = _weighted_corners(x[some], row, column, real)
            if problem.mode == "max":
                greatest = terms.max(axis=1)
                y[some, i, j] = greatest if inside == samples else np.maximum(greatest, 0)
            else:
                y[some, i, j] = _mean_of_samples(terms, samples)


def _weighted_corners(x: Array, row: _Samples, column: _Samples, real: np.dtype[Any]) -> Array:
    """Return a row for each channel: its sum does not depend on how many there are."""
    corners = [
        x[:, r][:, :, c].astype(real) * (u[:, None] * v)
        for r, u in ((row.low, row.to_low), (row.high, row.to_high))
        for c, v in ((column.low, column.to_low), (column.high, column.to_high))
    ]
    return np.stack(corners, axis=1).reshape(x.shape[0], -1)


def _mean_of_samples(terms: Array, samples: int) -> Array:
    mean: Array = terms.sum(axis=1) / terms.dtype.type(samples)
    finite = np.isfinite(mean)
    if finite.all():
        return mean
    wide = _scaled_down(terms).sum(axis=1) / samples
    return np.where(finite, mean, _scaled_back(wide))


class _Samples(NamedTuple):
    """The sample points of one bin on one axis that lie inside, and how many there are in all.

    Each has a position and a weight on either side.
    """

    low: Array
    high: Array
    to_low: Array
    to_high: Array
    total: int


def _samples(problem: RoiProblem, first: Any, last: Any, bins: int, size: int) -> list[_Samples]:
    real = problem.dtype.accumulator.type
    start = first - real(0.5) if problem.half_pixel else first
    length = last - first if problem.half_pixel else max(last - first, real(1))
    width = length / real(bins)
    count = problem.sampling_ratio or max(ceil(width), 0)
    steps = (np.arange(count, dtype=real) + real(0.5)) * width / real(max(count, 1))
    result = []
    for i in range(bins):
        q = start + real(i) * width + steps
        q = np.clip(q[(q >= -1) & (q <= size)], 0, size - 1)
        low = np.minimum(q.astype(np.int64), size - 1)  # which real may not hold
        to_high = q - low.astype(real)
        high = np.minimum(low + 1, size - 1)
        result.append(_Samples(low, high, real(1) - to_high, to_high, count))
    return result


# Preprocessing


def _preprocess(problem: PreprocessProblem, x: Array, y: Array) -> None:
    """Average the tiles of every image, then scale and shift in float32, rounded once."""
    window = tuple(
        Axis(size * k, k, k, 1, 0, 0, size)
        for size, k in zip(problem.size, problem.pool, strict=True)
    )
    rows, columns = (
        slice(origin, origin + axis.size)
        for origin, axis in zip(problem.origin, window, strict=True)
    )
    taps = prod(problem.pool)
    order = slice(None, None, -1 if problem.reverse else 1)
    y = np.moveaxis(y, 1, -1) if problem.planar else y
    scale, mean, std = (
        np.asarray(n, np.float32) for n in (problem.scale, problem.mean, problem.std)
    )
    for image, into in zip(x, y, strict=True):
        planes = np.moveaxis(image[rows, columns, order], -1, 0)[None]
        total = _sum(planes, byte_sum_dtype(taps), window)
        pixels = np.moveaxis((total / taps).astype(np.float32)[0], 0, -1)
        into[...] = rounded((pixels * scale - mean) / std, problem.out_dtype)
