"""Kernel parameters and template arguments: the mirrors of kernels/window.cuh and ops.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, inf
from typing import Any

import numpy as np

from gpupool.bounds import at_least
from gpupool.dtypes import DType, byte_sum_dtype
from gpupool.planner.geometry import Dim, Geometry
from gpupool.planner.launches import Scalar
from gpupool.problem import SMALL_P, PoolProblem
from gpupool.window import Axis, taps_of

POW, DOUBLE_POW = 85, 230
"""Instructions of a pow of CUDA's library, called."""

PAIRED_TAPS = 65535 // 255
"""No sum of so many bytes overflows half of a word: ``paired_taps`` in kernels/ops.cuh."""

PLACED = np.dtype("V16")
"""As large as ``Placed``: no array of it is ever made."""

_CUDA = {
    "float64": "double",
    "float32": "float",
    "int64": "long long",
    "int32": "int",
    PLACED.name: "Placed",
}


def divisor_dtype(index: str) -> np.dtype[Any]:
    """Return the NumPy mirror of ``Divisor<index>``."""
    if index == "int":
        return np.dtype([("divisor", "i4"), ("multiplier", "u4"), ("shift", "u4")], align=True)
    return np.dtype([("divisor", "i8")], align=True)


NORM_DTYPE = np.dtype(
    [
        *((name, "f8") for name in ("p", "exponent", "slip", "at_least")),
        ("least", "u4"),
        ("accurate", "u4"),
    ]
)
"""The NumPy mirror of ``Norm``."""


@lru_cache(maxsize=64)
def window_dtype(axes: int, index: str) -> np.dtype[Any]:
    """Return the NumPy mirror of ``Window<axes, index>``."""
    integer, divisor = ("i4" if index == "int" else "i8"), divisor_dtype(index)
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
    counts = ("outputs", "batch_step", "channel_step", "index_batch_step", "index_channel_step")
    return np.dtype(
        [
            *((name, "i8") for name in counts),
            ("norm", NORM_DTYPE),
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
    if index != "int":
        return (size,)
    shift = (size - 1).bit_length()
    return (size, (2**32 * (2**shift - size)) // size + 1, shift)


def window_parameters(problem: PoolProblem, geometry: Geometry) -> Scalar:
    """Return the ``Window`` struct of a problem."""
    index = geometry.index_type
    packed = np.zeros((), window_dtype(len(geometry.dims), index))
    packed["outputs"] = geometry.outputs
    packed["batch_step"], packed["index_batch_step"] = _steps(geometry.batch)
    packed["channel_step"], packed["index_channel_step"] = _steps(geometry.channels)
    packed["norm"] = norm(problem)
    packed["channels"] = divisor(geometry.channels.axis.size, index)
    for row, dim in zip(packed["axis"], geometry.dims, strict=True):
        a = dim.axis
        begin, end = a.counted_padding(problem.count_include_pad)
        fields = (a.size, a.kernel, a.stride, a.dilation, a.pad_begin, -begin, a.size + end)
        for name, value in zip(row.dtype.names, fields, strict=False):
            row[name] = value
        row["step"], row["index_step"] = _steps(dim)
        row["out"] = divisor(a.out, index)
    return packed


def _steps(dim: Dim) -> tuple[int, int]:
    return dim.step, dim.index_step


def norm(problem: PoolProblem) -> tuple[float, float, float, float, int, int]:
    """Return ``Norm`` of kernels/ops.cuh.

    The last two are the least accurate sum's leading bits and how many there are: no sum of them
    has overflowed or lost small terms, and its root is finite and normal.
    """
    p, sums = problem.p, problem.sum_dtype
    info = np.finfo(sums)
    exponent = float(sums.type(1 / p))
    taps = max(taps_of(problem.window), 4)  # square_root in kernels/element.cuh asks for 4
    least, most = float(info.tiny) / float(info.eps) * taps, inf
    if p < 1:  # roots are further from 1 than their sums; a quarter is more than any rounding
        least, most = max(least, (float(info.tiny) * 4) ** p), (float(info.max) / 4) ** p
    first = _leading_bits(sums.type(least)) + 1
    accurate = _leading_bits(sums.type(most)) - first if p >= SMALL_P else 0
    slip = float(1 / Fraction(p) - Fraction(exponent))
    return p, exponent, slip, at_least(taps, p, float(info.eps)), first, accurate


def _leading_bits(number: np.floating[Any]) -> int:
    """Return sign, exponent and first digits of a float32 or float64: 32 bits, ordered as floats.

    >>> hex(_leading_bits(np.float64(1))), hex(_leading_bits(np.float32(1)))
    ('0x3ff00000', '0x3f800000')
    """
    size = number.dtype.itemsize
    return int(number.view(f"u{size}")) >> (8 * size - 32)


def accumulator(problem: PoolProblem) -> np.dtype[Any]:
    """Return the type of partial results: the operators' Accumulator in kernels/ops.cuh."""
    if problem.reduction == "lp":
        return problem.sum_dtype
    if problem.reduction == "average" and not problem.dtype.is_float:
        return byte_sum_dtype(taps_of(problem.window))
    return problem.dtype.accumulator


# Template arguments


def operator(problem: PoolProblem, index: str, *, paired: bool = False) -> str:
    """Return the operator of kernels/ops.cuh, of sums that may be ``paired`` in words.

    Of maxima it is the same: it tells by itself whether it merges pairs.
    """
    element = problem.dtype.cuda
    if problem.indices:
        return f"ArgMax<{element}, {index}, {cuda(problem.index_dtype)}>"
    if problem.reduction == "max":
        return f"Max<{element}>"
    if problem.reduction == "lp":
        return f"Lp<{element}, {_exponent(problem)}, {cuda(problem.sum_dtype)}>"
    if problem.dtype.is_float:
        return f"Average<{element}>"
    mean = f"IntegerAverage<{element}, {problem.out_dtype.cuda}, {cuda(accumulator(problem))}>"
    return f"Paired<{mean}>" if paired else mean


def by_powers(problem: PoolProblem) -> bool:
    """Whether every tap is a pow, which unrolled spills and compiles for seconds."""
    return problem.reduction == "lp" and not _exponent(problem)


def power_cost(problem: PoolProblem) -> int:
    """Return the instructions of a pow, which every tap and every root of most norms is."""
    if not by_powers(problem):
        return 0
    return DOUBLE_POW if problem.sum_dtype == np.float64 else POW


def _exponent(problem: PoolProblem) -> int:
    """Return the norm where it is one of the plain ones, else 0."""
    return int(problem.p) if problem.p in (1, 2, 3) else 0


def cuda(dtype: np.dtype[Any]) -> str:
    """Return the name in CUDA of a type of sums, of Indices or of maxima with their places."""
    return _CUDA[dtype.name]


def sizes(numbers: Sequence[int]) -> str:
    """Return integers as one template argument."""
    return f"Sizes<{', '.join(map(str, numbers))}>"


def kernel_sizes(axes: Sequence[Axis]) -> str:
    """Return the sizes of a window as one template argument, with its dilations if it has any."""
    kernel, dilations = [axis.kernel for axis in axes], [axis.dilation for axis in axes]
    return sizes(kernel) if max(dilations) == 1 else f"Dilated<{sizes(kernel)}, {sizes(dilations)}>"


def boolean(value: bool) -> str:
    """Return a truth value as C++ spells it."""
    return "true" if value else "false"


def pairs(problem: PoolProblem) -> bool:
    """Return whether a word holds two maxima: the operator's ``pairs`` in kernels/ops.cuh."""
    return problem.reduction == "max" and problem.dtype.itemsize <= 2 and not problem.indices


def pairs_sums(problem: PoolProblem, geometry: Geometry) -> bool:
    """Return whether a word may hold two sums of bytes."""
    of_bytes = problem.reduction == "average" and problem.dtype.itemsize == 1
    return of_bytes and len(geometry.dims) < 3 and geometry.taps <= PAIRED_TAPS


def exact(problem: PoolProblem) -> bool:
    """Return whether no result is looked at again: the operators' ``exact`` in kernels/ops.cuh."""
    narrow = problem.dtype.name in ("float16", "int8", "uint8")
    return problem.reduction == "max" or (narrow and not by_powers(problem))


def vector_width(alignment: int, dtype: DType, *multiples: int) -> int:
    """Return the widest vector, in elements, whose accesses are all aligned."""
    return gcd(max(1, alignment // dtype.itemsize), *multiples)
