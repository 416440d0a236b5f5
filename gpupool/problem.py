"""From ONNX attributes to a frozen problem of plain integers: the one gate for every path.

``resolve`` runs every check on attributes, shapes and dtypes, in Python integers, before anything
is allocated, compiled or launched. Functions, command line, ONNX models and plans all come through
here; what leaves is a problem that the oracle and the kernels compute without further questions.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gpupool import opset as opsets
from gpupool import validate
from gpupool.dtypes import FLOAT64, FLOATS, DType, find, find_float, named
from gpupool.errors import GpupoolMemoryError, GpupoolTypeError, GpupoolValueError
from gpupool.window import AUTO_PADS, Window, covering, out_shape, window

MAX_SAMPLES = 2**24
"""RoiAlign: the most samples in one bin, as many as the pixels of a 4096 x 4096 image."""

ADDRESSABLE = 2**63 - 1
"""Bytes that any machine can address, at most."""

INDEX_DTYPES = {name: np.dtype(name) for name in ("int64", "int32")}
"""Types of Indices; ONNX knows the first."""

SMALL_P = 2.0**-7
"""Norms below this p divide by the greatest tap first, so that a lone tap stays what it is."""


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def laid_out(
    batch: int, channels: int, spatial: Sequence[int], channels_last: bool
) -> tuple[int, ...]:
    """Return the shape of these sizes in a layout.

    >>> laid_out(1, 3, (5, 7), channels_last=True)
    (1, 5, 7, 3)
    """
    return (batch, *spatial, channels) if channels_last else (batch, channels, *spatial)


@dataclass(frozen=True)
class _Array:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the contiguous array."""
        return prod(self.shape) * self.dtype.itemsize


class Output(_Array):
    """One result of a problem: its name, shape and dtype."""


class Input(_Array):
    """One array that a problem reads: its name, shape and dtype."""


@dataclass(frozen=True)
class _Problem:
    """What all problems share: operator, element type and the layout of x."""

    op: str
    dtype: DType
    shape: tuple[int, ...]
    channels_last: bool

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """X, and what the operator reads beside it."""
        return (Input("x", self.shape, self.dtype.numpy),)

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """Axis numbers of D1 .. Dn in x's own layout."""
        first = 1 if self.channels_last else 2
        return tuple(range(first, first + len(self.shape) - 2))

    @property
    def channel_axis(self) -> int:
        """Axis number of C in x's own layout."""
        return len(self.shape) - 1 if self.channels_last else 1

    @property
    def batch(self) -> int:
        """N."""
        return self.shape[0]

    @property
    def channels(self) -> int:
        """C."""
        return self.shape[self.channel_axis]

    @property
    def spatial(self) -> tuple[int, ...]:
        """D1 .. Dn."""
        return tuple(self.shape[axis] for axis in self.spatial_axes)

    def laid_out(self, batch: int, spatial: Sequence[int]) -> tuple[int, ...]:
        """Arrange N, C and spatial sizes in the layout of x."""
        return laid_out(batch, self.channels, spatial, self.channels_last)


@dataclass(frozen=True)
class PoolProblem(_Problem):
    """A window reduced to one number: Max, Average and Lp, sliding or global."""

    reduction: str
    out_dtype: DType
    window: Window
    indices: bool = False
    storage_order: int = 0
    index_dtype: np.dtype[Any] = INDEX_DTYPES["int64"]
    count_include_pad: bool = False
    p: float = 2.0

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Y, and Indices where they are asked for."""
        shape = self.laid_out(self.batch, out_shape(self.window))
        y = Output("Y", shape, self.out_dtype.numpy)
        return (y, Output("Indices", shape, self.index_dtype)) if self.indices else (y,)

    @property
    def sum_dtype(self) -> np.dtype[Any]:
        """Floats that norms are summed in: below p = 1 the root multiplies what is lost."""
        narrow = self.dtype.is_float and self.p >= 1
        return self.dtype.accumulator if narrow else FLOAT64.numpy

    @property
    def numbering(self) -> tuple[int, ...]:
        """Steps of Indices along each axis of x."""
        steps = list(contiguous(self.shape))
        if self.storage_order:
            for i, axis in enumerate(self.spatial_axes):
                steps[axis] = prod(self.spatial[:i])
        return tuple(steps)


@dataclass(frozen=True)
class UnpoolProblem(_Problem):
    """MaxUnpool: values scattered to flat positions of a zero-filled output."""

    out_shape: tuple[int, ...]

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """X and the position in the output of each of its elements."""
        return (*super().inputs, Input("indices", self.shape, np.dtype(np.int64)))

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The unpooled array."""
        return (Output("output", self.out_shape, self.dtype.numpy),)


@dataclass(frozen=True)
class RoiProblem(_Problem):
    """MaxRoiPool and RoiAlign: each region of interest reduced to height x width bins."""

    num_rois: int
    pooled: tuple[int, int]
    spatial_scale: float
    mode: str = "max"
    sampling_ratio: int = 0
    half_pixel: bool = False

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """X and the regions, whose images come first in their rows or are an input of their own."""
        rows, dtype = self.num_rois, self.dtype.numpy
        if self.op == "MaxRoiPool":
            return (*super().inputs, Input("rois", (rows, 5), dtype))
        images = Input("batch_indices", (rows,), np.dtype(np.int64))
        return (*super().inputs, Input("rois", (rows, 4), dtype), images)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Y: num_rois x C x height x width."""
        return (Output("Y", self.laid_out(self.num_rois, self.pooled), self.dtype.numpy),)


@dataclass(frozen=True)
class PreprocessProblem(_Problem):
    """8-bit images, N x H x W x C, cut, averaged over tiles, scaled and shifted by channel.

    ``mean`` and ``std`` are in the order of the channels that come out.
    """

    out_dtype: DType
    pool: tuple[int, int]
    origin: tuple[int, int]
    size: tuple[int, int]
    planar: bool
    reverse: bool
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The images: x to the kernel."""
        return (Input("images", self.shape, self.dtype.numpy),)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Y: N x C x height x width where ``planar``, else N x height x width x C."""
        shape = laid_out(self.batch, self.channels, self.size, not self.planar)
        return (Output("Y", shape, self.out_dtype.numpy),)


Problem = PoolProblem | UnpoolProblem | RoiProblem | PreprocessProblem


def resolve(op: str, shape: Sequence[int], dtype: object, **attributes: Any) -> Problem:
    """Check everything that can be known without the values and return the frozen problem.

    >>> resolve("max", (1, 64, 112, 112), "float16", kernel_shape=3, strides=2, pads=1).outputs[0]
    Output(name='Y', shape=(1, 64, 56, 56), dtype=dtype('float16'))
    """
    operator = opsets.find(op)
    _check_names(operator.name, attributes)
    checked = validate.shape("shape", shape)
    problem: Problem = _RESOLVERS[operator.name](
        operator.name, checked, find("dtype of x", dtype, operator.dtypes), **attributes
    )
    return problem


def _check_names(op: str, attributes: Iterable[str]) -> None:
    takes = _TAKES[op]
    for name in attributes:
        if name not in takes:
            raise GpupoolTypeError(f"{op} takes no {name!r}: its attributes are {', '.join(takes)}")


def _layout(shape: tuple[int, ...], channels_last: object) -> tuple[bool, tuple[int, ...]]:
    last = validate.flag("channels_last", channels_last)
    if len(shape) < 3:
        raise GpupoolValueError(
            f"x has shape {shape}, rank {len(shape)}: expected at least 3 axes, "
            f"{'N, D1 .. Dn, C' if last else 'N, C, D1 .. Dn'}"
        )
    spatial = shape[1:-1] if last else shape[2:]
    if 0 in spatial:
        raise GpupoolValueError(f"x has shape {shape}: every spatial size must be at least 1")
    return last, spatial


def _gate(
    op: str,
    opset: int | None,
    dtype: DType,
    outputs: int = 1,
    channels_last: bool = False,
    extensions: tuple[str, ...] = (),
    **used: bool,
) -> None:
    attributes = tuple(name for name, differs in used.items() if differs)
    if channels_last:
        extensions = ("channels_last", *extensions)
    opsets.check(op, opset, dtype, attributes, outputs, extensions)


def _resolve_window(
    op: str,
    spatial: tuple[int, ...],
    kernel_shape: object,
    strides: object,
    pads: object,
    dilations: object,
    auto_pad: object,
    ceil_mode: bool,
) -> Window:
    n = len(spatial)
    if kernel_shape is None:
        raise _missing_kernel(op, n)
    auto = validate.choice("auto_pad", auto_pad, AUTO_PADS)
    pairs = ((0, 0),) * n if pads is None else validate.pads_per_axis(pads, n)
    if auto != "NOTSET" and any(map(any, pairs)):
        raise GpupoolValueError(
            f"pads = {pads!r} with auto_pad = {auto!r}: give explicit pads or auto_pad, not both"
        )
    return window(
        spatial,
        validate.per_axis("kernel_shape", kernel_shape, n, 1),
        validate.per_axis("strides", 1 if strides is None else strides, n, 1),
        validate.per_axis("dilations", 1 if dilations is None else dilations, n, 1),
        pairs,
        auto,
        ceil_mode,
    )


def _missing_kernel(op: str, axes: int) -> GpupoolTypeError:
    count = validate.counted(axes, "integer")
    return GpupoolTypeError(f"kernel_shape: {op} needs it, {count} or one for all axes")


def _used(value: object) -> bool:
    """Whether an integer list differs from absent and from ONNX's default of all ones."""
    return value is not None and any(n != 1 for n in np.atleast_1d(np.asarray(value)))


def _max_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    kernel_shape: object = None,
    *,
    strides: object = None,
    pads: object = None,
    dilations: object = None,
    auto_pad: object = "NOTSET",
    ceil_mode: object = False,
    storage_order: object = 0,
    return_indices: object = False,
    index_dtype: object = "int64",
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    last, spatial = _layout(shape, channels_last)
    ceil = validate.flag("ceil_mode", ceil_mode)
    order = int(validate.flag("storage_order", storage_order))
    indices = validate.flag("return_indices", return_indices)
    numbers = _index_dtype(index_dtype, shape if indices else ())
    axes = _resolve_window(op, spatial, kernel_shape, strides, pads, dilations, auto_pad, ceil)
    _gate(
        op,
        opset,
        dtype,
        1 + indices,
        last,
        ("index_dtype",) if numbers != INDEX_DTYPES["int64"] else (),
        dilations=_used(dilations),
        ceil_mode=ceil,
        storage_order=bool(order),
    )
    if order and last:
        raise GpupoolValueError(
            "storage_order = 1 with channels_last = True: column-major positions are defined for "
            "N x C x D1 .. Dn only"
        )
    return PoolProblem(
        op, dtype, shape, last, "max", dtype, axes,
        indices=indices, storage_order=order, index_dtype=numbers,
    )  # fmt: skip


def _index_dtype(asked: object, shape: tuple[int, ...]) -> np.dtype[Any]:
    name = validate.choice("index_dtype", _dtype_name(asked), tuple(INDEX_DTYPES))
    if name == "int32" and prod(shape) - 1 > validate.INT32_MAX:
        raise GpupoolValueError(
            f"index_dtype = 'int32': positions in x of shape {shape} reach {prod(shape) - 1}, "
            f"more than {validate.INT32_MAX}: use 'int64'"
        )
    return INDEX_DTYPES[name]


def _dtype_name(asked: Any) -> object:
    """Return the name of a dtype of torch or in any form of NumPy's, and what is none as it is."""
    try:
        return asked if asked is None else str(np.dtype(named(asked)))
    except TypeError:
        return asked


def _average_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    kernel_shape: object = None,
    *,
    strides: object = None,
    pads: object = None,
    dilations: object = None,
    auto_pad: object = "NOTSET",
    ceil_mode: object = False,
    count_include_pad: object = False,
    out_dtype: object = None,
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    last, spatial = _layout(shape, channels_last)
    ceil = validate.flag("ceil_mode", ceil_mode)
    include = validate.flag("count_include_pad", count_include_pad)
    axes = _resolve_window(op, spatial, kernel_shape, strides, pads, dilations, auto_pad, ceil)
    if include:
        _check_counts(axes)
    mean = _mean_dtype(dtype, out_dtype)
    _gate(
        op,
        opset,
        dtype,
        1,
        last,
        ("dtype",) if out_dtype is not None else (),
        dilations=_used(dilations),
        ceil_mode=ceil,
        count_include_pad=include,
    )
    return PoolProblem(op, dtype, shape, last, "average", mean, axes, count_include_pad=include)


def _check_counts(window: Window) -> None:
    """Refuse windows of more taps in the input and its padding than 64 bits count."""
    most = prod(axis.counted(0) for axis in window)
    if most > validate.INT64_MAX:
        kernel = tuple(axis.kernel for axis in window)
        raise GpupoolValueError(
            f"kernel_shape = {kernel} with count_include_pad = True: the first window counts "
            f"{validate.shown(most)} taps, more than {validate.INT64_MAX}"
        )


def _mean_dtype(dtype: DType, asked: object) -> DType:
    if asked is None:
        return dtype
    if dtype.is_float:
        out = find("dtype", asked, FLOATS)
        raise GpupoolTypeError(
            f"dtype = {out} for a {dtype} x: dtype is for int8 and uint8 input only, "
            f"the average of floats has the dtype of x"
        )
    return find_float("dtype", asked)


def _lp_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    kernel_shape: object = None,
    *,
    p: object = 2,
    strides: object = None,
    pads: object = None,
    dilations: object = None,
    auto_pad: object = "NOTSET",
    ceil_mode: object = False,
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    last, spatial = _layout(shape, channels_last)
    ceil = validate.flag("ceil_mode", ceil_mode)
    axes = _resolve_window(op, spatial, kernel_shape, strides, pads, dilations, auto_pad, ceil)
    _gate(op, opset, dtype, 1, last, dilations=_used(dilations), ceil_mode=ceil)
    return PoolProblem(op, dtype, shape, last, "lp", dtype, axes, p=_norm(op, p, dtype, opset))


def _norm(op: str, p: object, dtype: DType, opset: int | None) -> float:
    checked = validate.positive("p", p)
    if opset is not None and opsets.OPERATORS[op].at(opset).attributes["p"].type == "INT":
        validate.integer("p", p, 1, validate.INT64_MAX)
    # Beyond these the norm is the greatest magnitude, or that of the only tap, or infinite.
    norm = min(max(checked, 2.0**-1000), 2.0**100)
    # The number that powers and roots both take. Below 1 both are of float64.
    return norm if norm < 1 else float(dtype.accumulator.type(norm))


def _global_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    p: object = 2,
    out_dtype: object = None,
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    last, spatial = _layout(shape, channels_last)
    reduction = opsets.OPERATORS[op].short.removeprefix("global-")
    mean = _mean_dtype(dtype, out_dtype)
    _gate(op, opset, dtype, 1, last, ("dtype",) if out_dtype is not None else ())
    norm = _norm(op, p, dtype, opset) if reduction == "lp" else 2.0
    return PoolProblem(op, dtype, shape, last, reduction, mean, covering(spatial), p=norm)


def _global_max_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    return _global_pool(op, shape, dtype, channels_last=channels_last, opset=opset)


def _global_lp_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    p: object = 2,
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    return _global_pool(op, shape, dtype, p=p, channels_last=channels_last, opset=opset)


def _global_average_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    out_dtype: object = None,
    channels_last: object = False,
    opset: int | None = None,
) -> PoolProblem:
    return _global_pool(
        op, shape, dtype, out_dtype=out_dtype, channels_last=channels_last, opset=opset
    )


def _max_unpool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    kernel_shape: object = None,
    *,
    strides: object = None,
    pads: object = None,
    output_shape: object = None,
    channels_last: object = False,
    opset: int | None = None,
) -> UnpoolProblem:
    last, spatial = _layout(shape, channels_last)
    n = len(spatial)
    if kernel_shape is None:
        raise _missing_kernel(op, n)
    kernel = validate.per_axis("kernel_shape", kernel_shape, n, 1)
    stride = validate.per_axis("strides", 1 if strides is None else strides, n, 1)
    pairs = ((0, 0),) * n if pads is None else validate.pads_per_axis(pads, n)
    _gate(op, opset, dtype, 1, last)
    inferred = tuple(
        (size - 1) * s - sum(pad) + k
        for size, s, pad, k in zip(spatial, stride, pairs, kernel, strict=True)
    )
    if min(inferred) < 1:
        raise GpupoolValueError(
            f"pads = {pads!r} leave no output: (size - 1) * stride - pads + kernel = {inferred}, "
            f"every axis must be at least 1"
        )
    channels = shape[-1] if last else shape[1]
    full = laid_out(shape[0], channels, inferred, last)
    if output_shape is not None:
        full = _checked_output_shape(validate.shape("output_shape", output_shape), full, last)
    return UnpoolProblem(op, dtype, shape, last, full)


def _checked_output_shape(
    asked: tuple[int, ...], inferred: tuple[int, ...], last: bool
) -> tuple[int, ...]:
    channel = len(inferred) - 1 if last else 1
    fixed = (0, channel)
    if len(asked) != len(inferred) or any(
        have != least if axis in fixed else have < least
        for axis, (have, least) in enumerate(zip(asked, inferred, strict=False))
    ):
        raise GpupoolValueError(
            f"output_shape = {asked} must have the N and C of the inferred shape {inferred} and "
            f"spatial sizes of at least the inferred ones"
        )
    return asked


def _roi(shape: tuple[int, ...], channels_last: object, num_rois: object) -> tuple[bool, int]:
    last, _ = _layout(shape, channels_last)
    if len(shape) != 4:
        raise GpupoolValueError(
            f"x has shape {shape}, rank {len(shape)}: RoI operators need rank 4"
        )
    return last, validate.integer("num_rois", num_rois, 0)


def _max_roi_pool(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    pooled_shape: object = None,
    *,
    spatial_scale: object = 1.0,
    num_rois: object = 0,
    channels_last: object = False,
    opset: int | None = None,
) -> RoiProblem:
    last, rois = _roi(shape, channels_last, num_rois)
    if pooled_shape is None:
        raise GpupoolTypeError(f"pooled_shape: {op} needs it, 2 integers or one for both axes")
    height, width = validate.per_axis("pooled_shape", pooled_shape, 2, 1)
    scale = validate.positive("spatial_scale", spatial_scale)
    _gate(op, opset, dtype, 1, last)
    return RoiProblem(op, dtype, shape, last, rois, (height, width), scale)


COORDINATE_MODES = ("half_pixel", "output_half_pixel")


def _roi_align(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    mode: object = "avg",
    output_height: object = 1,
    output_width: object = 1,
    sampling_ratio: object = 0,
    spatial_scale: object = 1.0,
    coordinate_transformation_mode: object = None,
    num_rois: object = 0,
    channels_last: object = False,
    opset: int | None = None,
) -> RoiProblem:
    last, rois = _roi(shape, channels_last, num_rois)
    pooled = (
        validate.integer("output_height", output_height, 1),
        validate.integer("output_width", output_width, 1),
    )
    ratio = validate.integer("sampling_ratio", sampling_ratio, 0)
    if ratio**2 > MAX_SAMPLES:
        raise GpupoolValueError(
            f"sampling_ratio = {ratio} means {ratio**2} samples in a bin, above the {MAX_SAMPLES} "
            f"allowed"
        )
    _gate(
        op,
        opset,
        dtype,
        1,
        last,
        coordinate_transformation_mode=coordinate_transformation_mode is not None,
    )
    coordinates = coordinate_transformation_mode
    if coordinates is None:
        coordinates = COORDINATE_MODES[0 if opset is None or opset >= 16 else 1]
    name = validate.choice("coordinate_transformation_mode", coordinates, COORDINATE_MODES)
    return RoiProblem(
        op,
        dtype,
        shape,
        last,
        rois,
        pooled,
        validate.positive("spatial_scale", spatial_scale),
        validate.choice("mode", mode, ("avg", "max")),
        ratio,
        name == "half_pixel",
    )


_RESOLVERS: dict[str, Any] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalMaxPool": _global_max_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalLpPool": _global_lp_pool,
    "MaxUnpool": _max_unpool,
    "MaxRoiPool": _max_roi_pool,
    "RoiAlign": _roi_align,
}

_TAKES = {op: tuple(inspect.signature(run).parameters)[3:] for op, run in _RESOLVERS.items()}
"""The attributes of every operator: what comes after its name, x's shape and its dtype."""


def output_shape(op: str, x_shape: Sequence[int], *args: Any, **attributes: Any) -> tuple[int, ...]:
    """Return the shape of Y that ``op`` gives for an x of ``x_shape``, without any array.

    Takes the operator by its ONNX name or short form ("MaxPool" or "max") and the attributes of
    its function. Raises GpupoolValueError or GpupoolTypeError as the function would. Source: the
    shape rules of the ONNX operators, ``gpupool.window``.

    >>> output_shape("max", (1, 64, 112, 112), 3, strides=2, pads=1)
    (1, 64, 56, 56)
    >>> output_shape("GlobalLpPool", (2, 3, 5, 7))
    (2, 3, 1, 1)
    """
    found, shape = opsets.find(op).name, validate.shape("x_shape", x_shape)
    if args:
        name = "pooled_shape" if found == "MaxRoiPool" else "kernel_shape"
        if len(args) > 1 or name in attributes:
            raise GpupoolTypeError(f"output_shape() takes {name} once, and the rest by keyword")
        attributes[name] = args[0]
    # The shape is the same for every dtype, and only 8-bit averages take another one.
    averaged = attributes.pop("dtype", None)
    if averaged is None:
        return resolve(op, shape, "float32", **attributes).outputs[0].shape
    if "out_dtype" not in _TAKES[found]:
        _check_names(found, ["dtype"])
    return resolve(op, shape, "uint8", out_dtype=averaged, **attributes).outputs[0].shape


def check_bytes(outputs: Sequence[Output]) -> None:
    """Refuse outputs that exceed GPUPOOL_MAX_BYTES or any address space, before allocating."""
    needed = sum(output.nbytes for output in outputs)
    if needed > max_bytes():
        shapes = ", ".join(f"{o.name} {o.shape} {o.dtype}" for o in outputs)
        raise above_max_bytes(f"the output ({shapes})", needed)
    check_addressable(outputs)


def check_addressable(every: Sequence[_Array]) -> None:
    """Refuse arrays that no machine can address, whatever GPUPOOL_MAX_BYTES is.

    An array without elements must be addressable but for its sizes of 0.
    """
    for array in every:
        needed = prod(size for size in array.shape if size) * array.dtype.itemsize
        if needed > ADDRESSABLE:
            raise GpupoolMemoryError(
                f"{array.name} {array.shape} {array.dtype} needs {needed} bytes"
                + ("" if array.nbytes else " but for sizes of 0")
                + ", above what any machine can address"
            )


def max_bytes() -> int:
    """Return the ceiling that GPUPOOL_MAX_BYTES sets, or that of any address space."""
    limit = os.environ.get("GPUPOOL_MAX_BYTES")
    if not limit:
        return ADDRESSABLE
    return validate.integer("GPUPOOL_MAX_BYTES", _int(limit), 0, ADDRESSABLE)


def above_max_bytes(what: str, needed: int) -> GpupoolMemoryError:
    """Return the error that says what needs more than ``max_bytes()``."""
    limit = os.environ.get("GPUPOOL_MAX_BYTES")
    ceiling = f"GPUPOOL_MAX_BYTES = {limit}" if limit else "what any machine can address"
    return GpupoolMemoryError(f"{what} needs {needed} bytes, above {ceiling}")


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise GpupoolValueError(f"GPUPOOL_MAX_BYTES = {text!r} must be an integer") from None
