"""What a single argument may be, and what the message says when it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpupool import validate
from gpupool.errors import GpupoolTypeError, GpupoolValueError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_integer_takes_what_operator_index_takes(value):
    number = validate.integer("strides", value, 1)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [True, np.bool_(True), 2.0, np.float32(2), "2", None, 1j, [2]])
def test_integer_refuses_other_types_by_name(value):
    with pytest.raises(GpupoolTypeError, match="strides must be an integer, not"):
        validate.integer("strides", value, 1)


@pytest.mark.parametrize("value", [0, -1, 2**31, 10**30])
def test_integer_names_the_range(value):
    with pytest.raises(GpupoolValueError, match=rf"strides = {value} .* 1 \.\. 2147483647"):
        validate.integer("strides", value, 1)


@pytest.mark.parametrize("value", [True, 1, np.bool_(True), np.int8(1)])
def test_flag_takes_bools_and_0_and_1(value):
    assert validate.flag("ceil_mode", value) is True
    assert validate.flag("ceil_mode", 0) is False


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (2, GpupoolValueError),
        (-1, GpupoolValueError),
        (1.0, GpupoolTypeError),
        ("True", GpupoolTypeError),
        (None, GpupoolTypeError),
    ],
)
def test_flag_refuses_the_rest(value, error):
    with pytest.raises(error, match="ceil_mode"):
        validate.flag("ceil_mode", value)


@pytest.mark.parametrize("value", [(2, 1), [2, 1], np.array([2, 1]), (n for n in (2, 1))])
def test_per_axis_takes_any_sequence(value):
    assert validate.per_axis("strides", value, 2, 1) == (2, 1)


def test_per_axis_spreads_one_integer():
    assert validate.per_axis("strides", np.array(2), 3, 1) == (2, 2, 2)


@pytest.mark.parametrize("value", [[], [1], [1, 2, 3]])
def test_per_axis_shows_the_expected_length(value):
    with pytest.raises(GpupoolValueError, match=rf"strides .* {len(value)} value.* expected 2"):
        validate.per_axis("strides", value, 2, 1)


@pytest.mark.parametrize("value", ["21", b"21", {1: 2}, {1, 2}])
def test_per_axis_refuses_what_has_no_order_or_is_text(value):
    with pytest.raises(GpupoolTypeError, match="strides must be an integer or a sequence"):
        validate.per_axis("strides", value, 2, 1)


def test_per_axis_names_the_element():
    with pytest.raises(GpupoolValueError, match=r"strides\[1\] = 0"):
        validate.per_axis("strides", (1, 0), 2, 1)
    with pytest.raises(GpupoolTypeError, match=r"strides\[1\] must be an integer, not 2.0"):
        validate.per_axis("strides", (1, 2.0), 2, 1)


def test_pads_are_all_begins_and_then_all_ends():
    assert validate.pads_per_axis((1, 2, 3, 4), 2) == ((1, 3), (2, 4))
    assert validate.pads_per_axis(1, 2) == ((1, 1), (1, 1))


def test_n_pads_are_refused_with_both_readings():
    with pytest.raises(GpupoolValueError) as refused:
        validate.pads_per_axis((1, 2), 2)
    message = str(refused.value)
    assert "pads = (1, 2) has 2 values, expected 4" in message
    assert "(1, 2, 1, 2)" in message
    assert "(1, 1, 2, 2)" in message


def test_n_equal_pads_have_one_reading():
    with pytest.raises(GpupoolValueError, match=r"did you mean \(1, 1, 1, 1\), [^()]*\?$"):
        validate.pads_per_axis((1, 1), 2)


@pytest.mark.parametrize("check", [validate.positive, lambda *given: validate.integer(*given, 1)])
def test_an_integer_too_long_to_write_is_described(check):
    with pytest.raises(GpupoolValueError, match=r"^p = an integer of 16610 bits "):
        check("p", 10**5000)


@pytest.mark.parametrize("value", [(), (1, 2, 3)])
def test_other_lengths_of_pads_show_the_expected_one(value):
    with pytest.raises(GpupoolValueError, match=r"pads .*expected 4 \(all begins, then all ends\)"):
        validate.pads_per_axis(value, 2)


@pytest.mark.parametrize("value", [2, 2.5, np.float32(2.5), np.array(2.0)])
def test_number_takes_any_real(value):
    number = validate.number("p", value)
    assert number == value
    assert type(number) is float


def test_number_beyond_float64_is_infinite():
    assert validate.number("p", 10**400) == math.inf


@pytest.mark.parametrize("value", [True, "2", b"2", None, 1j, [2.0], float, np.float32])
def test_number_refuses_other_types(value):
    with pytest.raises(GpupoolTypeError, match="p must be a number, not"):
        validate.number("p", value)


def test_number_refuses_arrays():
    with pytest.raises(GpupoolTypeError, match="p must be a single number, not an array"):
        validate.number("p", np.array([2.0]))


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf, 10**400])
def test_positive_is_finite_and_above_zero(value):
    with pytest.raises(GpupoolValueError, match=r"p = .* must be finite and greater than 0"):
        validate.positive("p", value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((2, 3), bool), "an array of shape (2, 3)"),
        (np.ndarray, "<class 'numpy.ndarray'>"),
        ("x" * 1000, "'" + "x" * 199 + "..."),
    ],
)
def test_a_message_shows_nothing_long(value, text):
    assert validate.shown(value) == text


def test_choice_lists_what_is_allowed():
    with pytest.raises(GpupoolValueError, match="mode = 'mean' must be one of avg, max"):
        validate.choice("mode", "mean", ("avg", "max"))
    with pytest.raises(GpupoolTypeError, match="mode must be one of avg, max, not 1"):
        validate.choice("mode", 1, ("avg", "max"))


@pytest.mark.parametrize("value", [3, "123", None, np.array(3)])
def test_shape_wants_a_sequence(value):
    with pytest.raises(GpupoolTypeError, match="x_shape must be a sequence of integers"):
        validate.shape("x_shape", value)


def test_shape_takes_sizes_of_zero_and_above():
    assert validate.shape("x_shape", np.array([0, 2**40])) == (0, 2**40)
    with pytest.raises(GpupoolValueError, match=r"x_shape\[1\] = -1"):
        validate.shape("x_shape", (1, -1))
