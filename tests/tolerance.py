"""How far a result may be from the exact number, in exact arithmetic and element by element.

The bounds themselves are those of gpupool.bounds; the result is rounded to its dtype once, which
adds half a unit in the last place. Maxima are elements of x and have no error at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from gpupool import bounds
from tests.reference import Real

MEMORY = 2**16
"""Numbers that are kept: kernels mostly give the same ones."""


@cache
def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float64 accumulates in float64, every other float in float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


@cache
def unit(dtype: np.dtype[Any]) -> Fraction:
    """Unit roundoff: half of the distance from 1 to the next number."""
    return Fraction(float(ml_dtypes.finfo(dtype).eps)) / 2


@cache
def least_subnormal(dtype: np.dtype[Any]) -> Fraction:
    return Fraction(float(ml_dtypes.finfo(dtype).smallest_subnormal))


@cache
def greatest(dtype: np.dtype[Any]) -> Fraction:
    return Fraction(float(ml_dtypes.finfo(dtype).max))


def ulp(value: Fraction, dtype: np.dtype[Any]) -> Fraction:
    """Distance between the numbers of ``dtype`` around ``value``."""
    if value == 0:
        return least_subnormal(dtype)
    value = abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    return max(2 * unit(dtype) * Fraction(2) ** exponent, least_subnormal(dtype))


@lru_cache(MEMORY)
def nearest(value: Fraction, dtype: np.dtype[Any]) -> Any:
    """Round to ``dtype`` once, half to even."""
    step = ulp(value, dtype)
    return dtype.type(float(round(value / step) * step))


@lru_cache(MEMORY)
def allowed(y: float, exact: Fraction | float, error: Fraction, dtype: np.dtype[Any]) -> bool:
    """Whether ``y`` is ``exact`` up to ``error``, rounded once to ``dtype``.

    What ``dtype`` can represent stays finite: only an exact value above its greatest may be inf.
    """
    if not isinstance(exact, Fraction):
        return y == exact or (math.isnan(y) and math.isnan(exact))
    if not math.isfinite(y):
        overflow = greatest(dtype) < abs(exact)
        return math.isinf(y) and overflow and (y > 0) == (exact > 0)
    return abs(Fraction(y) - exact) <= error + ulp(abs(exact) + error, dtype) / 2


@cache
def relative(bound: Callable[..., Fraction], kind: np.dtype[Any], *arguments: Any) -> Fraction:
    """A bound of gpupool.bounds in exact arithmetic, for an accumulator."""
    return bound(*map(Fraction, arguments), unit(kind))


def of_sum(real: Real, dtype: np.dtype[Any]) -> Fraction:
    kind = accumulator(dtype)
    error = relative(bounds.of_mean, kind, real.taps)
    return error * real.magnitude + least_subnormal(kind)


def of_norm(real: Real, dtype: np.dtype[Any], p: float) -> Fraction:
    """Rounding p to the accumulator's type changes a norm of n equal taps most, n ** (1 / p)."""
    kind = accumulator(dtype)
    error = relative(bounds.of_norm, kind, real.taps, p)
    if real.taps and float(kind.type(p)) != float(p):
        error += unit(kind) * Fraction(math.log(real.taps)) / Fraction(p)
    return error * real.magnitude + least_subnormal(kind)


def of_samples(real: Real, dtype: np.dtype[Any], reach: float) -> Fraction:
    kind = accumulator(dtype)
    error = relative(bounds.of_samples, kind, real.taps, reach)
    return error * real.magnitude + bounds.SAMPLE_LEAST * least_subnormal(kind)


def assert_real(
    y: np.ndarray[Any, Any], reals: np.ndarray[Any, Any], bound: Any, *arguments: Any
) -> None:
    """Compare a result with exact numbers, element by element."""
    assert y.shape == reals.shape
    for place in map(tuple, np.argwhere(~surely_allowed(y, reals, bound, *arguments))):
        real = reals[place]
        error = bound(real, y.dtype, *arguments)
        value = float(y[place])
        assert allowed(value, real.value, error, y.dtype), (
            f"at {place}: {value!r}, exactly {describe(real.value)}, allowed error "
            f"{describe(error)} and one rounding to {y.dtype}"
        )


SLIGHTLY_LESS = 1 - 2.0**-50
"""Times what a few roundings of float64 may have made greater."""


def surely_allowed(
    y: np.ndarray[Any, Any], reals: np.ndarray[Any, Any], bound: Any, *arguments: Any
) -> np.ndarray[Any, Any]:
    """Return where float64 suffices to see that a result is allowed, all its roundings against it.

    Exact arithmetic takes a hundred times as long, and decides the others. What is infinite or NaN
    is exact in float64.
    """
    no_number = np.array([not isinstance(real.value, Fraction) for real in reals.flat], bool)
    exact = np.array([real_or_nan(real.value) for real in reals.flat])
    magnitude = np.array([real_or_nan(real.magnitude) for real in reals.flat])
    of_one = np.array([error_of_one(bound, real.taps, y.dtype, *arguments) for real in reals.flat])
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(exact * SLIGHTLY_LESS)
        step = np.where(exact == 0, 0, np.ldexp(float(unit(y.dtype)), exponent - 1))
        rounding = np.maximum(step, float(least_subnormal(y.dtype)) / 2)
        limit = (of_one * magnitude + rounding) * SLIGHTLY_LESS
        result = y.astype(float).ravel()
        distance = np.abs(result - exact) + np.abs(exact) * 2.0**-52
        surely = distance + 2.0**-1073 <= limit
        same = (result == exact) | (np.isnan(result) & np.isnan(exact))
    return np.where(no_number, same, surely).reshape(y.shape)


def real_or_nan(value: Fraction | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


@cache
def error_of_one(bound: Any, taps: int, dtype: np.dtype[Any], *arguments: Any) -> float:
    """A bound that is relative to the magnitude, but for a subnormal number: slightly less."""
    return float(bound(Real(Fraction(0), Fraction(1), taps), dtype, *arguments)) * SLIGHTLY_LESS


def describe(value: Fraction | float) -> str:
    try:
        return repr(float(value))
    except OverflowError:
        return "a number beyond float64"


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the elements as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def canonical(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bits with one NaN and one zero: NaN equals NaN and -0 equals +0."""
    array = np.array(array, order="C")
    if array.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # signalling NaN of bfloat16
            array[np.isnan(array)] = np.nan
        array[array == 0] = 0
    return bits(array)


def assert_bitwise(y: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Compare as the semantics define "bitwise": NaN equals NaN, -0 equals +0, the rest by bits."""
    assert y.dtype == expected.dtype
    assert y.shape == expected.shape
    differ = canonical(y) != canonical(expected)
    if differ.any():
        place = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{int(differ.sum())} of {differ.size} differ, first at {place}: {y[place]!r} instead "
            f"of {expected[place]!r}"
        )
