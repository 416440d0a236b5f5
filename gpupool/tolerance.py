"""Whether two results agree: each may be as far from the exact number as gpupool.bounds allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpupool import oracle
from gpupool.arrays import Array
from gpupool.bounds import SAMPLE_LEAST, of_mean, of_norm, of_samples
from gpupool.dtypes import FLOAT64, finfo
from gpupool.problem import PoolProblem, PreprocessProblem, Problem, RoiProblem, UnpoolProblem
from gpupool.window import taps_of


def exact(problem: Problem) -> bool:
    """Whether every right result has the same bits."""
    if isinstance(problem, RoiProblem):
        return problem.op == "MaxRoiPool"
    if isinstance(problem, PoolProblem):
        return problem.reduction == "max" or not problem.dtype.is_float
    return True


def agree(problem: Problem, inputs: tuple[Array, ...], a: Array, b: Array) -> Array:
    """Whether two results agree, element by element: NaN equals NaN, and -0 equals +0.

    Indices, which maxima alone have, are as exact as these.

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
            greatest = float(finfo(a.dtype).max)
            first, second = (np.clip(y, -greatest, greatest) for y in (first, second))
        larger = np.maximum(np.abs(first), np.abs(second))
        allowed = 2 * _error(problem, inputs, larger) + _ulp(larger, a.dtype)
        close = np.isfinite(first) & np.isfinite(second) & (np.abs(first - second) <= allowed)
    return same | close


def _ulp(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return the distance between the numbers of ``dtype`` around positive values."""
    info = finfo(dtype)
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
