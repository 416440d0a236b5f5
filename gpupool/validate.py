"""Argument values: what a single argument may be, said once for every path into the library."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from gpupool.errors import GpupoolTypeError, GpupoolValueError

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

Ints = int | Sequence[int]
"""One number for all axes, or one for each."""


def counted(n: int, noun: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "value"), counted(3, "value")
    ('1 value', '3 values')
    """
    return f"{n} {noun}" + ("" if n == 1 else "s")


MOST_SHOWN = 200
"""Characters of a value in a message."""


def shown(value: object) -> str:
    """Return a value as a message shows it: no array, and nothing that is long.

    >>> shown(0.5), shown(10**400)
    ('0.5', 'an integer of 1329 bits')
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to write very long ones
    if not isinstance(value, type) and getattr(value, "ndim", 0) > 0:
        return f"an array of shape {tuple(value.shape)}"  # type: ignore[attr-defined]
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _is_bool(value: object) -> bool:
    """Whether this is a bool of Python's, NumPy's or another library's."""
    return type(value).__name__ in ("bool", "bool_")


def integer(name: str, value: object, low: int, high: int = INT32_MAX) -> int:
    """Return ``value`` as an int within ``[low, high]``; bools and floats are refused.

    >>> integer("strides", 2, 1)
    2
    """
    if _is_bool(value):
        raise GpupoolTypeError(f"{name} must be an integer, not the bool {shown(value)}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise GpupoolTypeError(
            f"{name} must be an integer, not {shown(value)} of type {type(value).__name__}"
        ) from None
    if not low <= number <= high:
        raise GpupoolValueError(
            f"{name} = {shown(number)} is outside the allowed range {low} .. {high}"
        )
    return number


def flag(name: str, value: object) -> bool:
    """Return ``value`` as a bool: True, False, 0 or 1.

    >>> flag("ceil_mode", 1)
    True
    """
    if _is_bool(value):
        return bool(value)
    return bool(integer(name, value, 0, 1))


def integers(name: str, value: object, low: int) -> tuple[int, ...] | None:
    """Return a sequence as a tuple of checked integers, or None where ``value`` is one integer.

    >>> integers("strides", [2, 1], 1), integers("strides", 2, 1)
    ((2, 1), None)
    """
    if isinstance(value, (str, bytes, dict, set)):
        raise GpupoolTypeError(
            f"{name} must be an integer or a sequence of integers, not {shown(value)}"
        )
    if not is_sequence(value):
        return None
    return tuple(integer(f"{name}[{i}]", item, low) for i, item in enumerate(value))


def is_sequence(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether there are several values, or may be.

    >>> is_sequence([2, 1]), is_sequence(2)
    (True, False)
    """
    return isinstance(value, Iterable) and getattr(value, "ndim", None) != 0


def per_axis(name: str, value: object, axes: int, low: int) -> tuple[int, ...]:
    """Return one integer for each of ``axes`` spatial axes; a single integer serves them all.

    >>> per_axis("strides", 2, 3, 1)
    (2, 2, 2)
    """
    numbers = integers(name, value, low)
    if numbers is None:
        return (integer(name, value, low),) * axes
    if len(numbers) != axes:
        raise GpupoolValueError(
            f"{name} = {numbers} has {counted(len(numbers), 'value')}, expected {axes}: "
            f"one for each spatial axis, or a single integer for all"
        )
    return numbers


def pads_per_axis(value: object, axes: int) -> tuple[tuple[int, int], ...]:
    """Return the (begin, end) pad of each axis from ONNX's 2n numbers or one integer for all.

    >>> pads_per_axis([0, 1, 2, 3], 2)
    ((0, 2), (1, 3))
    """
    numbers = integers("pads", value, 0)
    if numbers is None:
        both = integer("pads", value, 0)
        return ((both, both),) * axes
    if len(numbers) == 2 * axes:
        return tuple(zip(numbers[:axes], numbers[axes:], strict=True))
    message = (
        f"pads = {numbers} has {counted(len(numbers), 'value')}, expected {2 * axes} "
        f"(all begins, then all ends) or a single integer for all"
    )
    if len(numbers) == axes:
        message += f"; did you mean {numbers * 2}, each axis padded alike at begin and end"
        if len(set(numbers)) > 1:  # else both readings are the same
            paired = tuple(n for n in numbers for _ in range(2))
            message += f", or {paired}, the begins of all axes before their ends"
        message += "?"
    raise GpupoolValueError(message)


def number(name: str, value: object) -> float:
    """Return ``value`` as a float; bools, strings and arrays are refused.

    >>> number("p", 2)
    2.0
    """
    unlike = _is_bool(value) or isinstance(value, (str, bytes, type))
    if unlike or not hasattr(value, "__float__"):
        raise GpupoolTypeError(f"{name} must be a number, not {shown(value)}")
    if getattr(value, "ndim", 0) != 0:
        raise GpupoolTypeError(f"{name} must be a single number, not an array")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def positive(name: str, value: object) -> float:
    """Return ``value`` as a finite float above zero.

    >>> positive("spatial_scale", 0.25)
    0.25
    """
    checked = number(name, value)
    if not (math.isfinite(checked) and checked > 0):
        raise GpupoolValueError(f"{name} = {shown(value)} must be finite and greater than 0")
    return checked


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return ``value`` when it is one of the ``allowed`` strings.

    >>> choice("auto_pad", "VALID", ("NOTSET", "VALID"))
    'VALID'
    """
    if not isinstance(value, str):
        raise GpupoolTypeError(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}")
    if value not in allowed:
        raise GpupoolValueError(f"{name} = {shown(value)} must be one of {', '.join(allowed)}")
    return value


def shape(name: str, value: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of integers of 0 and above.

    >>> shape("x_shape", [1, 3, 8, 8])
    (1, 3, 8, 8)
    """
    if isinstance(value, (str, bytes)) or not is_sequence(value):
        raise GpupoolTypeError(f"{name} must be a sequence of integers, not {shown(value)}")
    return tuple(integer(f"{name}[{i}]", n, 0, 2**63 - 1) for i, n in enumerate(value))
