"""The public functions: one for each ONNX operator, for arrays of NumPy, CuPy, torch and JAX.

The array's kind decides where the work is done: NumPy arrays go to the oracle on the CPU, CuPy
arrays to the kernels on their own device, and the arrays of torch and JAX are viewed as one of
these by their device. Nothing moves between the two by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np  # noqa: F401 - for the examples

from gpupool import arrays, launch, planner, validate
from gpupool.errors import GpupoolValueError
from gpupool.planned import PlannedCall, planned
from gpupool.planner import specialised
from gpupool.problem import check_addressable, resolve
from gpupool.validate import Ints


def max_pool(
    x: Any,
    kernel_shape: Ints,
    *,
    strides: Ints | None = None,
    pads: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    storage_order: int = 0,
    return_indices: bool = False,
    index_dtype: Any = "int64",
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Take the maximum over every window, and on request where it was found.

    ``y[n, c, o] = max of x[n, c, o * strides - pads + j * dilations]`` over the taps ``j`` that lie
    in x, row-major, the first of equal maxima winning. NaN wins over everything; a window without a
    valid tap gives -inf (the least integer) and index -1.

    x is N x C x D1 .. Dn (or N x D1 .. Dn x C with ``channels_last``) of float16, bfloat16,
    float32, float64, int8 or uint8; y has its dtype. Indices are int64 flat positions in x as
    passed, so that ``x.ravel()[indices] == y`` where ``indices >= 0``; ``storage_order=1`` counts
    the spatial part column-major. ``index_dtype="int32"``, gpupool's own, halves what Indices take
    where x has at most 2**31 elements; max_unpool takes int64 alone. ``out`` (a pair with
    ``return_indices``) is filled and returned.
    Raises GpupoolValueError, GpupoolTypeError or GpupoolMemoryError before anything is computed.
    Source: ONNX MaxPool 1, 8, 10, 11, 12, 22.

    >>> x = np.array([[[1.0, 5.0, 2.0, 4.0]]])
    >>> max_pool(x, 2, strides=2, return_indices=True)
    (array([[[5., 4.]]]), array([[[1, 3]]]))
    >>> max_pool(np.zeros((1, 64, 112, 112), np.float16), 3, strides=2, pads=1).shape
    (1, 64, 56, 56)
    """
    return planned(
        "MaxPool",
        x,
        kernel_shape=kernel_shape,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        storage_order=storage_order,
        return_indices=return_indices,
        index_dtype=index_dtype,
        channels_last=channels_last,
        opset=opset,
    ).compute((x,), out)


def average_pool(
    x: Any,
    kernel_shape: Ints,
    *,
    strides: Ints | None = None,
    pads: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    dtype: Any = None,
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Take the mean over every window.

    ``y = sum of valid taps / number of valid taps``, or divided by all taps up to the end of the
    explicit padding with ``count_include_pad``, at most 2**63 - 1; the overhang of ``ceil_mode`` is
    never counted and a window without a valid tap gives 0. Sums are float32 (float64 for float64),
    exact for integers, and rounded once; where a sum would overflow and the mean does not, the mean
    is right.

    x is N x C x D1 .. Dn of float16, bfloat16, float32, float64, int8 or uint8; y has its dtype,
    integers rounded half to even, or for 8-bit x the float ``dtype`` asked for.
    Raises GpupoolValueError, GpupoolTypeError or GpupoolMemoryError before anything is computed.
    Source: ONNX AveragePool 1, 7, 10, 11, 19, 22; 8-bit types and ``channels_last`` are gpupool's.

    >>> average_pool(np.arange(1.0, 6.0).reshape(1, 1, 5), 4, strides=3, ceil_mode=True)
    array([[[2.5, 4.5]]])
    >>> average_pool(np.array([[[1, 2]]], np.uint8), 2, dtype="float32")
    array([[[1.5]]], dtype=float32)
    """
    return planned(
        "AveragePool",
        x,
        kernel_shape=kernel_shape,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        out_dtype=dtype,
        channels_last=channels_last,
        opset=opset,
    ).compute((x,), out)


def lp_pool(
    x: Any,
    kernel_shape: Ints,
    *,
    p: float = 2,
    strides: Ints | None = None,
    pads: Ints | None = None,
    dilations: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Take the p-norm over every window.

    ``y = (sum of |x| ** p over valid taps) ** (1 / p)`` for a finite p > 0; no valid tap gives 0.
    Nothing overflows or vanishes on the way where the norm itself does not; an infinite tap gives
    inf and NaN wins over it. A p above 1 is rounded to float32 first, but for float64.

    x is N x C x D1 .. Dn of float16, bfloat16, float32 or float64; y has its dtype.
    Raises GpupoolValueError, GpupoolTypeError or GpupoolMemoryError before anything is computed.
    Source: ONNX LpPool 1, 2, 11, 18, 22.

    >>> lp_pool(np.array([[[3.0, -4.0]]]), 2)
    array([[[5.]]])
    >>> lp_pool(np.array([[[300, 300]]], np.float16), 2)
    array([[[424.2]]], dtype=float16)
    """
    return planned(
        "LpPool",
        x,
        kernel_shape=kernel_shape,
        p=p,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        channels_last=channels_last,
        opset=opset,
    ).compute((x,), out)


def global_max_pool(
    x: Any, *, channels_last: bool = False, opset: int | None = None, out: Any = None
) -> Any:
    """Take the maximum of every plane: max_pool with the window equal to the spatial shape.

    x is N x C x D1 .. Dn as in max_pool; y is N x C x 1 .. x 1 (N x 1 .. x 1 x C with
    ``channels_last``). Raises as max_pool does. Source: ONNX GlobalMaxPool 1, 22; 8-bit types are
    gpupool's.

    >>> global_max_pool(np.arange(8.0).reshape(1, 2, 4))
    array([[[3.],
            [7.]]])
    """
    return planned("GlobalMaxPool", x, channels_last=channels_last, opset=opset).compute((x,), out)


def global_average_pool(
    x: Any,
    *,
    dtype: Any = None,
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Take the mean of every plane: average_pool with the window equal to the spatial shape.

    x is N x C x D1 .. Dn as in average_pool; y is N x C x 1 .. x 1, of the dtype of x or, for 8-bit
    x, the float ``dtype`` asked for. Raises as average_pool does. Source: ONNX GlobalAveragePool
    1, 22; 8-bit types are gpupool's.

    >>> from ml_dtypes import bfloat16
    >>> global_average_pool(np.ones((1, 1, 64, 64), bfloat16)).astype(float)
    array([[[[1.]]]])
    """
    return planned(
        "GlobalAveragePool", x, out_dtype=dtype, channels_last=channels_last, opset=opset
    ).compute((x,), out)


def global_lp_pool(
    x: Any, *, p: float = 2, channels_last: bool = False, opset: int | None = None, out: Any = None
) -> Any:
    """Take the p-norm of every plane: lp_pool with the window equal to the spatial shape.

    x is N x C x D1 .. Dn as in lp_pool; y is N x C x 1 .. x 1. Raises as lp_pool does. Source: ONNX
    GlobalLpPool 1, 2, 22.

    >>> global_lp_pool(np.array([[[[3.0, 0.0], [0.0, 4.0]]]]))
    array([[[[5.]]]])
    """
    return planned("GlobalLpPool", x, p=p, channels_last=channels_last, opset=opset).compute(
        (x,), out
    )


def max_unpool(
    x: Any,
    indices: Any,
    kernel_shape: Ints,
    *,
    strides: Ints | None = None,
    pads: Ints | None = None,
    output_shape: Sequence[int] | None = None,
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Put every value back where max_pool found it, zeros elsewhere.

    ``y.ravel()[indices] = x``; of repeated positions the highest position in x wins. y has
    ``output_shape`` (the full shape in x's layout), or spatial sizes of
    ``(D - 1) * strides - pads + kernel_shape``.

    x is N x C x D1 .. Dn of float16, bfloat16, float32 or float64, indices int64 of its shape.
    Raises GpupoolValueError for positions outside y, which costs one synchronisation with the
    device, and otherwise as max_pool does. Source: ONNX MaxUnpool 9, 11, 22.

    >>> max_unpool(np.array([[[5.0, 4.0]]]), np.array([[[1, 3]]]), 2, strides=2)
    array([[[0., 5., 0., 4.]]])
    """
    return planned(
        "MaxUnpool",
        x,
        kernel_shape=kernel_shape,
        strides=strides,
        pads=pads,
        output_shape=output_shape,
        channels_last=channels_last,
        opset=opset,
    ).compute((x, indices), out)


def max_roi_pool(
    x: Any,
    rois: Any,
    pooled_shape: Ints,
    *,
    spatial_scale: float = 1.0,
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Take the maximum over each bin of each region of interest.

    A row of ``rois`` is (image, x1, y1, x2, y2); corners times ``spatial_scale`` are rounded half
    away from zero, the region of at least 1 x 1 is cut into ``pooled_shape`` bins whose edges are
    floored and ceiled and clipped to the image. An empty bin gives 0, NaN wins.

    x is N x C x H x W, rois R x 5 of the same dtype (float16, bfloat16, float32 or float64), y is
    R x C x pooled_shape. Raises GpupoolValueError for an image outside 0 .. N - 1 or a corner that
    is not finite or scales to 2**31 and above, which costs one synchronisation with the device.
    Source: ONNX MaxRoiPool 1, 22.

    >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> max_roi_pool(x, np.array([[0.0, 0, 0, 3, 3]]), 2)
    array([[[[ 5.,  7.],
             [13., 15.]]]])
    """
    return planned(
        "MaxRoiPool",
        x,
        pooled_shape=pooled_shape,
        spatial_scale=spatial_scale,
        num_rois=_rows("rois", rois),
        channels_last=channels_last,
        opset=opset,
    ).compute((x, rois), out)


def roi_align(
    x: Any,
    rois: Any,
    batch_indices: Any,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str | None = None,
    channels_last: bool = False,
    opset: int | None = None,
    out: Any = None,
) -> Any:
    """Take the mean or maximum of bilinear samples in each bin of each region of interest.

    A row of ``rois`` is (x1, y1, x2, y2), scaled by ``spatial_scale``; "half_pixel" shifts it by
    -0.5, "output_half_pixel" makes it at least 1 x 1 instead. Each of output_height x output_width
    bins takes ``sampling_ratio`` samples an axis (0: ceil(region / bins)); one outside [-1, size]
    contributes 0. ``mode="max"`` takes the maximum over the four weighted corners of all samples.

    x is N x C x H x W, rois R x 4 of the same dtype, batch_indices R of int64, y is
    R x C x output_height x output_width. ``coordinate_transformation_mode=None`` is half_pixel, and
    output_half_pixel for opsets 10 to 15. Raises GpupoolValueError for an image outside 0 .. N - 1,
    a corner that is not finite or scales to 2**31 and above, or more than 2**24 samples in a bin,
    which costs one synchronisation with the device. Source: ONNX RoiAlign 10, 16, 22.

    >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> roi_align(x, np.array([[0.0, 0, 4, 4]]), np.array([0]), sampling_ratio=1)
    array([[[[7.5]]]])
    """
    return planned(
        "RoiAlign",
        x,
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
        coordinate_transformation_mode=coordinate_transformation_mode,
        num_rois=_rows("rois", rois),
        channels_last=channels_last,
        opset=opset,
    ).compute((x, rois, batch_indices), out)


Function = Callable[..., Any]

FUNCTIONS: Mapping[str, Function] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalMaxPool": global_max_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalLpPool": global_lp_pool,
    "MaxUnpool": max_unpool,
    "MaxRoiPool": max_roi_pool,
    "RoiAlign": roi_align,
}
"""The function of each ONNX operator."""


def plan(
    op: str, shape: Sequence[int], dtype: Any, *, kernel: str = "auto", **attributes: Any
) -> PlannedCall:
    """Plan an operator for arrays of one shape and dtype, without any array and without a GPU.

    Takes the operator by its ONNX name or short form and the attributes of its function
    (``num_rois`` for the RoI operators, ``out_dtype`` for the averages' ``dtype``). The result
    prints as the kernels it launches and is called as ``plan(x, out=...)``, max_unpool's and the
    RoI operators' with their other inputs after x. For measuring, ``kernel`` asks for "window",
    "specialised" (the same, the window compiled in), "rows", "rows_staged" (the same, of small
    planes in shared memory), "separable_planes" (such planes down their columns and then along
    their rows), "plane", "plane_staged" (the same, of small planes in shared memory),
    "channels", "strips", "separable_vectors" or "separable" instead of the fastest; on arrays that
    it does not serve, such as views of every second column, another one computes. Raises as the
    function would, and GpupoolValueError where that kernel does not serve C-contiguous arrays.

    >>> plan("GlobalAveragePool", (256, 2048, 7, 7), "float32")
    Plan(GlobalAveragePool float32 (256, 2048, 7, 7) -> (256, 2048, 1, 1)
      plane_staged.cu: plane_staged<Average<float>, 128, 2, 6, true, aligned, 1> <<<4096x1, 256>>>)
    >>> plan("max", (1, 1, 4), "float64", kernel_shape=2)(np.array([[[1.0, 3, 2, 0]]]))
    array([[[3., 3., 2.]]])
    """
    problem = resolve(op, shape, dtype, **attributes)
    check_addressable((*problem.inputs, *problem.outputs))
    call = PlannedCall(problem, validate.choice("kernel", kernel, planner.KERNELS))
    if kernel == "auto":
        return call  # planned once it is called or shown, which uses up a specialisation
    with specialised.unless_refused():
        if call.plan.kernel not in (kernel, "none"):
            given = "".join(f", {name}={value!r}" for name, value in attributes.items())
            raise GpupoolValueError(
                f"kernel = {kernel!r} does not serve {problem.op} {problem.dtype} {problem.shape}"
                f"{given}: {_instead(call.plan)}{specialised.refusal(kernel)}"
            )
    return call


def _instead(plan: planner.Plan) -> str:
    return f"{plan.kernel!r} would" if plan.kernel in planner.KERNELS else "only 'auto' does"


def warmup(op: str, shape: Sequence[int], dtype: Any, **attributes: Any) -> PlannedCall:
    """Compile and load the kernels that ``plan`` of the same arguments launches, and return it.

    Compiling happens otherwise in the first call, some tens of milliseconds for each kernel that
    is not in CuPy's disk cache, more than a hundred for the longest. Raises GpupoolError where
    there is no GPU.

    >>> from gpupool.device import gpu_available
    >>> if gpu_available():
    ...     pool = warmup("max", (1, 64, 56, 56), "float16", kernel_shape=3)
    """
    call = plan(op, shape, dtype, **attributes)
    launch.warmup(call.plan)
    return call


def _rows(name: str, array: Any) -> int:
    arrays.kind(name, array)
    return int(array.shape[0]) if array.ndim else 0
