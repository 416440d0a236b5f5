"""Images to the tensor that a network wants: cut, averaged, scaled and shifted in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupool import arrays, validate
from gpupool.dtypes import UINT8, find_float
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.planned import PlannedCall
from gpupool.planner.preprocess import MAX_CHANNELS
from gpupool.problem import PreprocessProblem
from gpupool.validate import Ints

LAYOUTS = ("NCHW", "NHWC")
CHANNEL_ORDERS = ("RGB", "BGR")


def preprocess(
    images: Any,
    *,
    pool: Ints = 1,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    scale: float = 1 / 255,
    dtype: Any = "float16",
    layout: str = "NCHW",
    channel_order: str = "RGB",
    crop: Ints | None = None,
    out: Any = None,
) -> Any:
    """Average ``pool`` x ``pool`` tiles of 8-bit images and normalise them, in one kernel.

    ``y = (average * scale - mean) / std`` for each channel, where the average is exact and rounded
    to float32, the rest is float32 and the result is rounded to ``dtype`` once: the same as
    average_pool with dtype float32 and the three steps after it.

    images is uint8 of N x H x W x C with up to four channels; y is N x C x h x w, or N x h x w x C
    with ``layout="NHWC"``, of float16, bfloat16, float32 or float64. h and w are H and W divided by
    ``pool``, the remainder dropped, or the ``crop`` asked for, which is cut from the middle.
    ``channel_order="BGR"`` turns the channels around; ``mean`` and ``std``, one number or one for
    each channel, are in the order that comes out. Raises as average_pool does.

    >>> images = np.full((1, 4, 6, 3), 255, np.uint8)
    >>> y = preprocess(images, pool=2, mean=(0.5, 0.5, 1.0), std=0.5)
    >>> y.shape, y[0, :, 0, 0]
    ((1, 3, 2, 3), array([1., 1., 0.], dtype=float16))
    """
    arrays.kind("images", images)
    problem = resolve(
        images.shape,
        arrays.dtype(images),
        pool=pool,
        mean=mean,
        std=std,
        scale=scale,
        dtype=dtype,
        layout=layout,
        channel_order=channel_order,
        crop=crop,
    )
    return PlannedCall(problem)(images, out=out)


def resolve(
    shape: Sequence[int],
    image_dtype: Any,
    *,
    pool: object = 1,
    mean: object,
    std: object,
    scale: object = 1 / 255,
    dtype: object = "float16",
    layout: object = "NCHW",
    channel_order: object = "RGB",
    crop: object = None,
) -> PreprocessProblem:
    """Check everything that can be known without the pixels and return the frozen problem.

    >>> resolve((8, 480, 640, 3), "uint8", pool=2, mean=0, std=1, crop=224).origin
    (16, 96)
    """
    if image_dtype != UINT8.numpy:
        raise GpupoolTypeError(f"images has dtype {image_dtype}, expected uint8")
    n, height, width, channels = _sizes(shape)
    tile = validate.per_axis("pool", pool, 2, 1)
    whole = (height // tile[0], width // tile[1])
    size = whole if crop is None else validate.per_axis("crop", crop, 2, 1)
    if min(whole) < 1 or any(asked > most for asked, most in zip(size, whole, strict=True)):
        raise GpupoolValueError(
            f"images of {height} x {width} pixels give at most {whole[0]} x {whole[1]} after "
            f"pool = {tile[0]} x {tile[1]}"
            + ("" if crop is None else f", crop = {crop!r} asks more")
        )
    origin = (0, 0)
    if crop is not None:
        origin = (height - size[0] * tile[0]) // 2, (width - size[1] * tile[1]) // 2
    out_dtype = find_float("dtype", dtype)
    reverse = validate.choice("channel_order", channel_order, CHANNEL_ORDERS) == "BGR"
    if reverse and channels != 3:
        raise GpupoolValueError(f"channel_order = 'BGR' with {channels} channels: expected 3")
    return PreprocessProblem(
        "preprocess",
        UINT8,
        (n, height, width, channels),
        True,
        out_dtype,
        (tile[0], tile[1]),
        origin,
        (size[0], size[1]),
        validate.choice("layout", layout, LAYOUTS) == "NCHW",
        reverse,
        _float32("scale", scale, positive=True),
        _per_channel("mean", mean, channels),
        _per_channel("std", std, channels, positive=True),
    )


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = validate.shape("images.shape", shape)
    if len(sizes) != 4 or not 1 <= sizes[3] <= MAX_CHANNELS:
        raise GpupoolValueError(
            f"images has shape {sizes}: expected N, H, W, C with C of 1 .. {MAX_CHANNELS}"
        )
    return sizes


def _per_channel(
    name: str, value: Any, channels: int, *, positive: bool = False
) -> tuple[float, ...]:
    """Return one float32 number for each channel; a single number serves them all."""
    if isinstance(value, (str, bytes)) or not validate.is_sequence(value):
        return (_float32(name, value, positive=positive),) * channels
    numbers = tuple(_float32(f"{name}[{i}]", n, positive=positive) for i, n in enumerate(value))
    if len(numbers) != channels:
        raise GpupoolValueError(
            f"{name} has {validate.counted(len(numbers), 'value')}, expected {channels}: "
            f"one for each channel, or a single number for all"
        )
    return numbers


def _float32(name: str, value: object, *, positive: bool) -> float:
    with np.errstate(over="ignore", under="ignore"):
        number = float(np.float32(validate.number(name, value)))
    if not np.isfinite(number) or (positive and number <= 0):
        wanted = "finite and greater than 0" if positive else "finite"
        raise GpupoolValueError(f"{name} = {validate.shown(value)} must be {wanted}, as float32")
    return number
