"""How far a result may be from the exact number, and two right results from each other.

With u the unit roundoff of the accumulator (2**-24 for float32), n additions in any order have a
relative error of at most ``gamma(n, u) = n u / (1 - n u)`` of the sum of magnitudes (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2). The result is rounded to its dtype
once. Maxima are elements of x and the averages of integers are exact: neither has an error at all.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from gpupool import oracle
from gpupool.dtypes import FLOAT64
from gpupool.problem import PoolProblem, PreprocessProblem, Problem, RoiProblem, UnpoolProblem
from gpupool.window import taps_of

Array = np.ndarray[Any, Any]
Number = TypeVar("Number", float, Fraction)

SAMPLE_LEAST = 2
"""Least subnormals that a sample of RoiAlign may be off: half of one for each weighted corner."""

POWER_ULPS = 4
"""The error of a library's pow in units in the last place (CUDA's powf: 4, glibc's: 1)."""


def gamma(terms: int, u: Number) -> Number:
    """Bound the relative error of ``terms`` roundings.

    >>> gamma(3, Fraction(1, 100))
    Fraction(3, 97)
    """
    return terms * u / (1 - terms * u)


def of_mean(taps: int, u: Number) -> Number:
    """Bound a mean, relative to the mean magnitude: additions, divisor, division."""
    return gamma(taps + 2, u)


def of_norm(taps: int, p: Number, u: Number) -> Number:
    """Bound a norm: powers and additions, whose relative error the root divides by p, the root."""
    return gamma(taps + 2 * POWER_ULPS, u) / p + gamma(2 * POWER_ULPS, u)


def of_samples(samples: int, reach: Number, u: Number) -> Number:
    """Bound a bin of RoiAlign, relative to the greatest magnitude: weights, mean, coordinates.

    A coordinate of up to ``reach`` that is off by eight roundings moves a sample by that much times
    the slope, which is at most twice the greatest magnitude, on two axes.
    """
    return gamma(samples + 8, u) + 8 * u * reach * 4


def exact(problem: Problem) -> bool:
    """Whether every right result has the same bits."""
    if isinstance(problem, RoiProblem):
        return problem.op == "MaxRoiPool"
    if isinstance(problem, PoolProblem):
        return problem.reduction == "max" or not problem.dtype.is_float
    return True


def agree(problem: Problem, inputs: tuple[Array, ...], a: Array, b: Array) -> Array:
    """Whether two results agree, element by element: NaN equals NaN, and -0 equals +0.

    >>> from gpupool.problem import resolve
    >>> x = np.array([[[1.0, 2.0, 4.0]]], np.float32)
    >>> pool = resolve("average", x.shape, x.dtype, kernel_shape=3)
    >>> y = np.array([[[7 / 3, 7 / 3 + 1e-7, 2.5]]], np.float32)
    >>> agree(pool, (x,), y, np.full_like(y, 7 / 3))
    array([[[ True,  True, False]]])
    """
    same: Array = (a == b) | (np.isnan(a) & np.isnan(b))
    if isinstance(problem, UnpoolProblem | PreprocessProblem) or exact(problem) or bool(same.all()):
        return same
    with np.errstate(all="ignore"):
        first, second = a.astype(np.float64), b.astype(np.float64)
        if np.isfinite(inputs[0]).all():  # at the edge of the range one may round to infinity
            greatest = float(ml_dtypes.finfo(a.dtype).max)
            first, second = (np.clip(y, -greatest, greatest) for y in (first, second))
        larger = np.maximum(np.abs(first), np.abs(second))
        allowed = 2 * _error(problem, inputs, larger) + _ulp(larger, a.dtype)
        close = np.isfinite(first) & np.isfinite(second) & (np.abs(first - second) <= allowed)
    return same | close


def _ulp(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return the distance between the numbers of ``dtype`` around positive values."""
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(value)
    spacing: Array = np.ldexp(float(info.eps), exponent - 1)
    return np.maximum(spacing, float(info.smallest_subnormal))


def _error(problem: PoolProblem | RoiProblem, inputs: tuple[Array, ...], y: Array) -> Array:
    """Bound the error of a sum before its last rounding; ``y`` holds the magnitude of results."""
    info = np.finfo(problem.dtype.accumulator)
    u, least = float(info.eps) / 2, float(info.smallest_subnormal)
    x = np.abs(inputs[0].astype(np.float64))
    magnitudes = np.where(np.isfinite(x), x, 0)
    if isinstance(problem, RoiProblem):
        corners = np.abs(inputs[1].astype(np.float64)) * problem.spatial_scale
        reach = float(corners.max(initial=0)) + max(problem.spatial) + 1
        samples = int(problem.sampling_ratio or 2 * reach + 1) ** 2
        error = of_samples(samples, reach, u) * magnitudes.max(initial=0)
        return np.asarray(error + SAMPLE_LEAST * least)
    taps = taps_of(problem.window)
    if problem.reduction == "average":
        wide = replace(problem, dtype=FLOAT64, out_dtype=FLOAT64)
        mean = np.empty(wide.outputs[0].shape)
        oracle.run(wide, (magnitudes,), (mean,))
        return of_mean(taps, u) * mean + least
    return of_norm(taps, problem.p, u) * y + least
