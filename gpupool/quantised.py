"""ONNX Runtime's pooling of quantised tensors: com.microsoft's QLinear and Nhwc operators.

Imported by name, ``import gpupool.quantised``; takes the arrays that gpupool's own functions take.
An 8-bit ``q`` stands for the real ``(q - zero_point) * scale``. The mean of the integers is taken
exactly and once, by ``average_pool`` on the array's own device; what follows is the array's own
arithmetic in float64, rounded once as ONNX's QuantizeLinear does: half to even, then saturated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupool import arrays, validate
from gpupool.errors import GpupoolTypeError
from gpupool.interchange import on_views
from gpupool.ops import average_pool, global_average_pool, max_pool
from gpupool.validate import Ints


def qlinear_average_pool(
    x: Any,
    x_scale: float,
    x_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    kernel_shape: Ints,
    *,
    strides: Ints | None = None,
    pads: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    channels_last: bool = False,
) -> Any:
    """Take the mean over every window of a quantised tensor, quantised anew.

    ``y = saturate(round(mean of (x - x_zero_point) * x_scale / y_scale) + y_zero_point)``, the mean
    as in average_pool: pads that count are real zeros. x is N x C x D1 .. Dn of int8 or uint8 and
    y has its dtype; the zero points are in its range, the scales finite and above 0.
    Raises as average_pool does. Source: com.microsoft.QLinearAveragePool 1 of ONNX Runtime.

    >>> qlinear_average_pool(np.array([[[130, 134]]], np.uint8), 0.5, 128, 0.25, 0, 2)
    array([[[8]]], dtype=uint8)
    """
    quantiser = _Quantiser(x, x_scale, x_zero_point, y_scale, y_zero_point)
    window: dict[str, Any] = {
        "kernel_shape": kernel_shape,
        "strides": strides,
        "pads": pads,
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "channels_last": channels_last,
    }

    def compute(x: Any) -> Any:
        mean = average_pool(x, dtype="float64", **window)
        # Rounded as the mean is, from which it takes real zeros to nothing.
        plane = x[:1, ..., :1] if channels_last else x[:1, :1]
        zeros = average_pool(plane * 0 + quantiser.x_zero, dtype="float64", **window)
        return quantiser(mean, zeros)

    return on_views(x, compute)


def qlinear_global_average_pool(
    x: Any,
    x_scale: float,
    x_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    *,
    channels_last: bool = False,
) -> Any:
    """Take the mean of every plane of a quantised tensor: qlinear_average_pool of the whole plane.

    x is N x C x D1 .. Dn of int8 or uint8; y is N x C x 1 .. 1 of its dtype.
    Raises as global_average_pool does. Source: com.microsoft.QLinearGlobalAveragePool 1 of ONNX
    Runtime.

    >>> qlinear_global_average_pool(np.array([[[-3, -6]]], np.int8), 1.0, 0, 1.0, 100)
    array([[[96]]], dtype=int8)
    """
    quantiser = _Quantiser(x, x_scale, x_zero_point, y_scale, y_zero_point)

    def compute(x: Any) -> Any:
        return quantiser(
            global_average_pool(x, dtype="float64", channels_last=channels_last), quantiser.x_zero
        )

    return on_views(x, compute)


def nhwc_max_pool(
    x: Any,
    kernel_shape: Ints,
    *,
    strides: Ints | None = None,
    pads: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
) -> Any:
    """Take the maximum over every window of channels-last 8-bit integers, as max_pool does.

    x is N x D1 .. Dn x C of int8 or uint8; y has its dtype and layout.
    Raises as max_pool does. Source: com.microsoft.NhwcMaxPool 1 of ONNX Runtime.

    >>> nhwc_max_pool(np.array([[[1, 8], [3, 4]]], np.uint8), 2)
    array([[[3, 8]]], dtype=uint8)
    """
    _require_8_bit(x)
    return max_pool(
        x,
        kernel_shape,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        channels_last=True,
    )


def _require_8_bit(x: Any) -> None:
    arrays.kind("x", x)
    dtype = arrays.dtype(x)
    if dtype not in (np.int8, np.uint8):
        raise GpupoolTypeError(f"x has dtype {dtype}, a quantised tensor is int8 or uint8")


_SATURATING = 2.0**100
"""A ratio of scales that saturates every mean but 0: others are at least 1 / taps from it."""


class _Quantiser:
    """From the mean of quantised numbers to a quantised mean."""

    def __init__(
        self, x: Any, x_scale: object, x_zero_point: object, y_scale: object, y_zero_point: object
    ) -> None:
        _require_8_bit(x)
        self.dtype = arrays.dtype(x)
        self.info = np.iinfo(self.dtype)
        ratio = validate.positive("x_scale", x_scale) / validate.positive("y_scale", y_scale)
        self.ratio = min(ratio, _SATURATING)  # the quotient may be infinite, and inf * 0 is NaN
        self.x_zero, self.y_zero = (
            validate.integer(name, zero, int(self.info.min), int(self.info.max))
            for name, zero in (("x_zero_point", x_zero_point), ("y_zero_point", y_zero_point))
        )

    def __call__(self, mean: Any, zeros: Any) -> Any:
        """Quantise ``mean`` of the numbers, which would be ``zeros`` if all stood for 0."""
        real = (mean - zeros) * self.ratio
        return (real.round() + self.y_zero).clip(self.info.min, self.info.max).astype(self.dtype)
