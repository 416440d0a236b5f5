"""What is judged in floating point for time is judged as exact arithmetic would."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies, tolerance
from tests.reference import Real

BOUNDS: dict[Any, tuple[Any, ...]] = {
    tolerance.of_sum: (),
    tolerance.of_norm: (3.0,),
    tolerance.of_samples: (32,),
}


def judged(y: Any, real: Real, bound: Any) -> tuple[bool, bool]:
    """Return whether float64 and whether exact arithmetic allows a number."""
    reals = np.empty(1, object)
    reals[0] = real
    error = bound(real, y.dtype, *BOUNDS[bound])
    surely = tolerance.surely_allowed(y, reals, bound, *BOUNDS[bound])
    return bool(surely[0]), tolerance.allowed(float(y[0]), real.value, error, y.dtype)


@pytest.mark.parametrize("bound", BOUNDS)
@given(data=st.data())
def test_float64_allows_nothing_that_exact_arithmetic_refuses(bound, data):
    """At the very edge of what is allowed, and anywhere."""
    dtype = strategies.dtype_of(data.draw(st.sampled_from(strategies.FLOATS)))
    with np.errstate(over="ignore"):
        y = np.array([data.draw(st.floats(width=32) | st.floats())]).astype(dtype)
    any_number = Fraction(data.draw(st.floats(allow_nan=False, allow_infinity=False)))
    value = Fraction(float(y[0])) if np.isfinite(y[0]) else any_number
    magnitude = abs(data.draw(st.sampled_from([value, any_number])))
    taps = data.draw(st.integers(0, 5000))
    error = bound(Real(value, magnitude, taps), dtype, *BOUNDS[bound])
    edge = error + tolerance.ulp(value, dtype) / 2
    nearly = 1 + data.draw(st.integers(-9, 9)) * Fraction(2) ** -data.draw(st.integers(20, 60))
    off = data.draw(st.sampled_from([-1, 0, 1])) * edge * nearly
    surely, allowed = judged(y, Real(value + off, magnitude, taps), bound)
    assert allowed or not surely


@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_float64_suffices_where_a_result_is_rounded_once(dtype):
    rng = np.random.default_rng(1)
    exact = [Fraction(value) / 3 for value in rng.standard_normal(500).tolist()]
    y = np.array([tolerance.nearest(value, strategies.dtype_of(dtype)) for value in exact])
    reals = np.array([Real(value, abs(value), 9) for value in exact], object)
    assert tolerance.surely_allowed(y, reals, tolerance.of_sum).all()
    assert not tolerance.surely_allowed(y * 2, reals, tolerance.of_sum).any()


def test_of_nothing_only_the_least_number_may_come():
    least = float(tolerance.least_subnormal(np.dtype(np.float32)))
    found = {
        y: judged(np.array([y], np.float32), Real(Fraction(0)), tolerance.of_sum)
        for y in (0.0, least, 4 * least, 1e-9)
    }
    no = (False, False)
    assert found == {0.0: (True, True), least: (False, True), 4 * least: no, 1e-9: no}


@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_what_is_no_number_equals_itself_alone(dtype):
    """A number beyond float64 is neither: exact arithmetic says that it may become infinite."""
    special, beyond = [math.nan, math.inf, -math.inf], Fraction(10) ** 400
    results = np.array([*special, 0.0, 1.0]).astype(strategies.dtype_of(dtype))
    for value, y in product([*special, beyond], results):
        same, infinite = repr(float(y)) == repr(value), float(y) == math.inf
        expected = (False, infinite) if value is beyond else (same, same)
        assert judged(np.array([y]), Real(value), tolerance.of_sum) == expected, (value, y)
