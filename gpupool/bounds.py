"""How far a result may be from the exact number.

With u the unit roundoff of the accumulator (2**-24 for float32), n additions in any order have a
relative error of at most ``gamma(n, u) = n u / (1 - n u)`` of the sum of magnitudes (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2). The result is rounded to its dtype
once. Maxima are elements of x and the averages of integers are exact: neither has an error at all.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TypeVar

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


def at_least(taps: int, p: float, eps: float) -> float:
    """Return the part of a norm that roundings leave: those of more taps than 1024 cancel out.

    >>> at_least(1, 2.0, 2.0**-52) > 1 - 2.0**-48
    True
    """
    return max(1 - of_norm(min(taps, 1024), p, eps / 2), 0.5)
