"""The law: every row of the semantics page is a test here, named after the row.

Rows that hold for all inputs (layout, strides, GlobalX equals X, ..) are also properties in
test_oracle.py; the version table is held to onnx.defs in test_opset.py.
"""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpupool
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from tests import reference, tolerance
from tests.strategies import EVERY, FLOATS, Case, dtype_of, two_integers
from tests.tolerance import assert_bitwise

NAN, INF = math.nan, math.inf


def axis(*values: float, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """One plane with one spatial axis that holds ``values``."""
    return np.array([[values]]).astype(dtype_of(dtype))


def ramp(size: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """x = 1, 2, .., L on one axis."""
    return axis(*range(1, size + 1), dtype=dtype)


def compute(backend: Any, function: str, *arrays: Any, **arguments: Any) -> Any:
    """Call a function; one result is an array, two are a tuple."""
    results = Case(function, arrays, arguments).run(backend)
    return results if len(results) > 1 else results[0]


def check(backend: Any, function: str, x: Any, expected: Any, **arguments: Any) -> None:
    """Compare a call on one axis with its expected outputs, correctly rounded."""
    y = compute(backend, function, x, **arguments)
    assert_bitwise(y, axis(*expected, dtype=str(y.dtype)))


# Operators and versions

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "MaxPool": ("max_pool", {"kernel_shape": 2}),
    "AveragePool": ("average_pool", {"kernel_shape": 2}),
    "LpPool": ("lp_pool", {"kernel_shape": 2}),
    "GlobalMaxPool": ("global_max_pool", {}),
    "GlobalAveragePool": ("global_average_pool", {}),
    "GlobalLpPool": ("global_lp_pool", {}),
    "MaxUnpool": ("max_unpool", {"kernel_shape": 2}),
    "MaxRoiPool": ("max_roi_pool", {"pooled_shape": 1}),
    "RoiAlign": ("roi_align", {}),
}

SINCE = {"MaxUnpool": 9, "RoiAlign": 10}

BROUGHT = [
    ("MaxPool", "indices", 8, {"return_indices": True}),
    ("MaxPool", "storage_order", 8, {"storage_order": 1}),
    ("MaxPool", "ceil_mode", 10, {"ceil_mode": True}),
    ("MaxPool", "dilations", 10, {"dilations": 2}),
    ("MaxPool", "int8", 12, {"x": "int8"}),
    ("MaxPool", "uint8", 12, {"x": "uint8"}),
    ("AveragePool", "count_include_pad", 7, {"count_include_pad": True}),
    ("AveragePool", "ceil_mode", 10, {"ceil_mode": True}),
    ("AveragePool", "dilations", 19, {"dilations": 2}),
    ("LpPool", "ceil_mode", 18, {"ceil_mode": True}),
    ("LpPool", "dilations", 18, {"dilations": 2}),
    ("RoiAlign", "coordinate mode", 16, {"coordinate_transformation_mode": "half_pixel"}),
    ("RoiAlign", "old mode", 16, {"coordinate_transformation_mode": "output_half_pixel"}),
    *((op, "bfloat16", 22, {"x": "bfloat16"}) for op in CALLS),
]


def legal(backend: Any, op: str, x: str = "float32", **arguments: Any) -> Any:
    """Call an operator on a small input that every version of it takes."""
    function, needed = CALLS[op]
    image = np.arange(16).reshape(1, 1, 4, 4).astype(dtype_of(x))
    arrays: tuple[Any, ...] = (image,)
    if op == "MaxUnpool":
        arrays = (image, np.arange(16).reshape(image.shape))
    elif op == "MaxRoiPool":
        arrays = (image, np.array([[0, 0, 0, 3, 3]], image.dtype))
    elif op == "RoiAlign":
        arrays = (image, np.array([[0, 0, 3, 3]], image.dtype), np.array([0]))
    return compute(backend, function, *arrays, **(needed | arguments))


@pytest.mark.parametrize(
    ("op", "since", "arguments"),
    [pytest.param(op, n, more, id=f"{op}-{n}-{name}") for op, name, n, more in BROUGHT],
)
def test_what_became_legal_with_a_version(backend, op, since, arguments):
    legal(backend, op, opset=since, **arguments)
    legal(backend, op, opset=28, **arguments)
    legal(backend, op, **arguments)
    with pytest.raises((GpupoolValueError, GpupoolTypeError), match=rf"opset {since}\b"):
        legal(backend, op, opset=since - 1, **arguments)


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_f3_is_legal_in_the_first_version(backend, op, dtype):
    assert legal(backend, op, x=dtype, opset=SINCE.get(op, 1)).dtype == dtype


@pytest.mark.parametrize(("op", "since"), SINCE.items())
def test_an_operator_that_is_absent_at_the_opset(backend, op, since):
    with pytest.raises(GpupoolValueError, match=rf"opset = {since - 1} has no {op}.*opset {since}"):
        legal(backend, op, opset=since - 1)


@pytest.mark.parametrize("opset", [0, 29, 1000])
def test_an_unknown_opset(backend, opset):
    with pytest.raises(GpupoolValueError, match=rf"opset = {opset} .*1 \.\. 28"):
        legal(backend, "MaxPool", opset=opset)


@pytest.mark.parametrize("op", ["AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_an_extension_used_with_an_opset(backend, op, dtype):
    assert legal(backend, op, x=dtype).dtype == dtype
    with pytest.raises(GpupoolTypeError, match=f"{dtype}: {op} takes it in no opset"):
        legal(backend, op, x=dtype, opset=28)


@pytest.mark.parametrize("op", CALLS)
def test_channels_last_used_with_an_opset(backend, op):
    legal(backend, op, channels_last=False, opset=22)
    function, needed = CALLS[op]
    x = np.zeros((1, 4, 4, 1), np.float32)
    rois = np.zeros((0, 5 if op == "MaxRoiPool" else 4), np.float32)
    more: dict[str, tuple[Any, ...]] = {
        "MaxUnpool": (np.zeros(x.shape, np.int64),),
        "MaxRoiPool": (rois,),
        "RoiAlign": (rois, np.zeros(0, np.int64)),
    }
    call = Case(function, (x, *more.get(op, ())), needed | {"channels_last": True, "opset": 22})
    with pytest.raises(GpupoolValueError, match="channels_last is gpupool's own"):
        call.run(backend)


def test_an_argument_left_at_its_default_counts_as_absent(backend):
    defaults = {"dilations": [1, 1], "ceil_mode": False, "storage_order": 0}
    legal(backend, "MaxPool", opset=1, return_indices=False, **defaults)
    legal(backend, "MaxPool", opset=1, dilations=1)
    legal(backend, "AveragePool", opset=1, count_include_pad=False, dilations=(1, 1))
    legal(backend, "RoiAlign", opset=10, coordinate_transformation_mode=None)


@pytest.mark.parametrize("op", ["LpPool", "GlobalLpPool"])
def test_p_is_int_or_float_at_opset_1_and_int_only_from_2(backend, op):
    for opset, p in [(1, 2), (1, 2.0), (1, 2.5), (2, 3), (22, 3), (None, 3), (None, 2.5)]:
        legal(backend, op, opset=opset, p=p)
    for opset in (2, 11, 28):
        with pytest.raises(GpupoolTypeError, match=r"p must be an integer, not 2\.0"):
            legal(backend, op, opset=opset, p=2.0)


def test_the_numbers_are_the_same_in_every_version(backend):
    for op in set(CALLS) - {"RoiAlign"}:
        expected = legal(backend, op)
        for opset in range(SINCE.get(op, 1), 29):
            assert_bitwise(legal(backend, op, opset=opset), expected)


def test_roi_align_coordinate_mode_none_follows_the_opset(backend):
    half = legal(backend, "RoiAlign", coordinate_transformation_mode="half_pixel")
    old = legal(backend, "RoiAlign", coordinate_transformation_mode="output_half_pixel")
    assert half.item() != old.item()
    for opset, expected in [(None, half), (16, half), (22, half), (10, old), (15, old)]:
        assert_bitwise(legal(backend, "RoiAlign", opset=opset), expected)


def test_pads_strides_and_dilations_are_optional_with_0_1_1(backend):
    explicit = {"pads": [0, 0], "strides": [1], "dilations": [1], "auto_pad": "NOTSET"}
    for function in ("max_pool", "average_pool", "lp_pool"):
        short = compute(backend, function, ramp(5), kernel_shape=[2])
        assert_bitwise(short, compute(backend, function, ramp(5), kernel_shape=[2], **explicit))


# Geometry


@pytest.mark.parametrize(
    ("size", "arguments", "expected"),
    [
        pytest.param(8, {"kernel_shape": 3, "strides": 2}, [3, 5, 7], id="floor"),
        pytest.param(
            8, {"kernel_shape": 3, "strides": 2, "ceil_mode": True}, [3, 5, 7, 8], id="ceil"
        ),
        pytest.param(5, {"kernel_shape": 2, "strides": 2, "pads": 1}, [1, 3, 5], id="pads"),
        pytest.param(
            4, {"kernel_shape": 2, "auto_pad": "SAME_UPPER"}, [2, 3, 4, 4], id="SAME_UPPER"
        ),
        pytest.param(
            4, {"kernel_shape": 2, "auto_pad": "SAME_LOWER"}, [1, 2, 3, 4], id="SAME_LOWER"
        ),
        pytest.param(5, {"kernel_shape": 2, "strides": 2, "auto_pad": "VALID"}, [2, 4], id="VALID"),
        pytest.param(7, {"kernel_shape": 3, "dilations": 3}, [7], id="dilations"),
    ],
)
def test_geometry_of_one_axis(backend, size, arguments, expected):
    check(backend, "max_pool", ramp(size), expected, **arguments)


@pytest.mark.parametrize("function", ["max_pool", "average_pool", "lp_pool"])
@pytest.mark.parametrize("opset", [None, 18, 22])
def test_ceil_mode_drops_a_last_window_that_starts_in_the_end_padding(backend, function, opset):
    arguments = {"kernel_shape": 3, "strides": 3, "pads": [1, 1], "ceil_mode": True}
    assert compute(backend, function, ramp(2), opset=opset, **arguments).shape == (1, 1, 1)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_explicit_non_zero_pads_together_with_auto_pad(backend, auto_pad):
    with pytest.raises(GpupoolValueError, match=f"pads = .*1.* with auto_pad = '{auto_pad}'"):
        compute(backend, "max_pool", ramp(5), kernel_shape=2, pads=[0, 1], auto_pad=auto_pad)
    compute(backend, "max_pool", ramp(5), kernel_shape=2, pads=[0, 0], auto_pad=auto_pad)


def test_pads_may_be_kernel_sized_and_above(backend):
    arguments = {"kernel_shape": 2, "strides": 1, "pads": [3, 2]}
    y, i = compute(backend, "max_pool", ramp(2), return_indices=True, **arguments)
    assert y.tolist() == [[[-INF, -INF, 1, 2, 2, -INF]]]
    assert i.tolist() == [[[-1, -1, 0, 1, 1, -1]]]
    check(backend, "average_pool", ramp(2), [0, 0, 1, 1.5, 2, 0], **arguments)
    check(backend, "lp_pool", ramp(2), [0, 0, 1, 3, 2, 0], p=1, **arguments)
    included = [0, 0, 0.5, 1.5, 1, 0]
    check(backend, "average_pool", ramp(2), included, count_include_pad=True, **arguments)


def test_an_output_size_below_1_is_an_error(backend):
    with pytest.raises(GpupoolValueError, match="window is larger than the padded input"):
        compute(backend, "max_pool", ramp(4), kernel_shape=5)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (0, 0, 4, 4)])
def test_n_0_or_c_0_gives_an_empty_result(backend, shape):
    x = np.zeros(shape, np.float32)
    for op in set(CALLS) - {"MaxUnpool", "MaxRoiPool", "RoiAlign"}:
        function, needed = CALLS[op]
        y = compute(backend, function, x, **needed)
        assert y.shape[:2] == shape[:2]
        assert y.size == 0
    unpooled = compute(backend, "max_unpool", x, np.zeros(shape, np.int64), kernel_shape=2)
    assert unpooled.shape == (*shape[:2], 5, 5)


@pytest.mark.parametrize("shape", [(1, 1, 0), (1, 1, 3, 0), (0, 1, 0)])
def test_a_spatial_size_of_0_is_an_error(backend, shape):
    with pytest.raises(GpupoolValueError, match="every spatial size must be at least 1"):
        compute(backend, "max_pool", np.zeros(shape, np.float32), kernel_shape=1, pads=1)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4)])
def test_rank_must_be_at_least_3(backend, shape):
    for function in ("global_max_pool", "global_average_pool", "global_lp_pool"):
        with pytest.raises(GpupoolValueError, match=f"rank {len(shape)}: expected at least 3"):
            compute(backend, function, np.zeros(shape, np.float32))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("function", ["max_pool", "average_pool", "lp_pool"])
def test_any_number_of_axes(backend, function, n):
    x = np.ones((1, 2) + (2,) * n, np.float32)
    y = compute(backend, function, x, kernel_shape=2)
    value = 2 ** (n / 2) if function == "lp_pool" else 1
    np.testing.assert_allclose(y, np.full((1, 2) + (1,) * n, value), rtol=1e-6)


# Values: MaxPool


def test_max_pool_scans_row_major_and_the_first_of_equal_maxima_wins(backend):
    x = np.array([[[[1, 5, 5], [5, 1, 5], [5, 5, 1]]]], np.float32)
    _, i = compute(backend, "max_pool", x, kernel_shape=2, return_indices=True)
    assert i.tolist() == [[[[1, 1], [3, 5]]]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_pool_minus_0_and_plus_0_compare_equal(backend, dtype):
    x = axis(-0.0, 0.0, 0.0, -0.0, dtype=dtype)
    y, i = compute(backend, "max_pool", x, kernel_shape=2, strides=2, return_indices=True)
    assert i.tolist() == [[[0, 2]]]
    assert np.signbit(y).tolist() == [[[True, False]]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_pool_nan_wins_over_everything_and_the_first_nan_is_the_index(backend, dtype):
    x = axis(INF, -NAN, NAN, 3, NAN, INF, dtype=dtype)
    y, i = compute(backend, "max_pool", x, kernel_shape=3, strides=3, return_indices=True)
    assert np.isnan(y).all()
    assert i.tolist() == [[[1, 4]]]
    assert np.isnan(compute(backend, "max_pool", x, kernel_shape=3)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_pool_all_minus_inf_gives_minus_inf_and_the_first_index(backend, dtype):
    x = axis(-INF, -INF, -INF, -INF, dtype=dtype)
    y, i = compute(backend, "max_pool", x, kernel_shape=3, pads=[1, 0], return_indices=True)
    assert_bitwise(y, np.full((1, 1, 3), -INF).astype(x.dtype))
    assert i.tolist() == [[[0, 0, 1]]]


@pytest.mark.parametrize(
    ("dtype", "least"), [(dtype, -INF) for dtype in FLOATS] + [("int8", -128), ("uint8", 0)]
)
def test_max_pool_a_window_with_no_valid_tap(backend, dtype, least):
    arguments = {"kernel_shape": 2, "strides": 2, "pads": [2, 0]}
    y, i = compute(backend, "max_pool", ramp(2, dtype), return_indices=True, **arguments)
    assert y.astype(float).tolist() == [[[least, 2]]]
    assert i.tolist() == [[[-1, 1]]]
    check(backend, "max_pool", ramp(2, dtype), [least, 2], **arguments)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("indices", [False, True])
def test_max_pool_is_bit_exact_subnormals_included(backend, dtype, indices):
    kind = dtype_of(dtype)
    x = np.arange(1, 5, dtype=f"u{kind.itemsize}").view(kind).reshape(1, 1, 4)
    for signed, expected in ((x, [2, 3, 4]), (-x, [1, 2, 3])):
        y = compute(backend, "max_pool", signed, kernel_shape=2, return_indices=indices)
        y = y[0] if indices else y
        assert tolerance.bits(abs(y)).tolist() == [[expected]]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_greater_of_any_two_integers_wins(backend, dtype):
    for case, greater in two_integers(dtype):
        assert_bitwise(case.run(backend)[0], greater)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max_pool_is_exact_for_every_integer(backend, dtype):
    x = np.arange(256, dtype=np.uint8).view(dtype).reshape(1, 1, 256)
    (expected,) = reference.max_pool(x, 2)
    assert_bitwise(compute(backend, "max_pool", x, kernel_shape=2), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_pool_with_indices_is_bit_for_bit_the_indexed_element(backend, dtype):
    kind = dtype_of(dtype)
    nan = tolerance.bits(axis(NAN, dtype=dtype)) | 3  # a payload of its own
    x = np.concatenate([nan.view(kind), axis(1, -0.0, 0.0, dtype=dtype)], axis=2)
    y, i = compute(backend, "max_pool", x, kernel_shape=2, strides=2, return_indices=True)
    assert i.tolist() == [[[0, 2]]]
    assert tolerance.bits(y).tolist() == tolerance.bits(x)[:, :, [0, 2]].tolist()


# Values: Indices

PLANES = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)


def test_indices_are_flat_positions_in_the_whole_tensor_pads_not_counted(backend):
    arguments = {"kernel_shape": 2, "strides": 2, "pads": 1, "return_indices": True}
    y, i = compute(backend, "max_pool", PLANES, **arguments)
    assert i.dtype == np.int64
    assert i[0, 1].tolist() == [[12, 14, 15], [20, 22, 23]]
    assert PLANES.ravel()[i].tolist() == y.tolist()


def test_indices_in_x_s_own_layout_also_channels_last(backend):
    x = np.ascontiguousarray(np.moveaxis(PLANES, 1, -1))
    arguments = {"kernel_shape": 2, "return_indices": True, "channels_last": True}
    y, i = compute(backend, "max_pool", x, **arguments)
    assert x.ravel()[i].tolist() == y.tolist()
    assert i[0, 0, 0].tolist() == [10, 11]


def test_storage_order_1_makes_the_spatial_part_column_major(backend):
    arguments = {"kernel_shape": 2, "return_indices": True, "storage_order": 1}
    _, i = compute(backend, "max_pool", PLANES, **arguments)
    # plane * V + h + w * H
    assert i[0, 1].tolist() == [[12 + h + w * 3 for w in range(1, 4)] for h in range(1, 3)]


def test_storage_order_1_on_three_axes_is_h_w_d(backend):
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float64).reshape(1, 2, 3, 4, 5)
    arguments = {"kernel_shape": (3, 4, 5), "return_indices": True, "storage_order": 1}
    _, i = compute(backend, "max_pool", x, **arguments)
    h, w, d = 2, 3, 4
    assert i.ravel().tolist() == [n * 60 + h + w * 3 + d * 12 for n in (0, 1)]


def test_storage_order_1_together_with_channels_last_is_an_error(backend):
    with pytest.raises(GpupoolValueError, match="storage_order = 1 with channels_last = True"):
        compute(backend, "max_pool", PLANES, kernel_shape=1, storage_order=1, channels_last=True)


# Values: AveragePool


def test_average_pool_divides_by_valid_taps(backend):
    check(backend, "average_pool", ramp(3), [1.5, 2, 2.5], kernel_shape=3, pads=1)


def test_average_pool_with_count_include_pad_divides_by_counted_taps(backend):
    arguments = {"kernel_shape": 3, "pads": 1, "count_include_pad": True}
    expected = [1, 2, np.float32(5) / np.float32(3)]
    check(backend, "average_pool", ramp(3), expected, **arguments)


@pytest.mark.parametrize("include", [False, True])
def test_average_pool_the_ceil_overhang_is_never_counted(backend, include):
    arguments = {"kernel_shape": 3, "strides": 3, "ceil_mode": True}
    check(backend, "average_pool", ramp(4), [2, 4], count_include_pad=include, **arguments)


@pytest.mark.parametrize("include", [False, True])
def test_average_pool_no_valid_tap_gives_0(backend, include):
    arguments = {"kernel_shape": 2, "strides": 2, "pads": [2, 2]}
    expected = [0, 1.5, 0]
    check(backend, "average_pool", ramp(2), expected, count_include_pad=include, **arguments)


@pytest.mark.parametrize("dtype", FLOATS)
def test_average_pool_nan_propagates(backend, dtype):
    x = axis(1, NAN, 3, 4, INF, INF, -INF, INF, dtype=dtype)
    expected = [NAN, 3.5, INF, NAN]
    check(backend, "average_pool", x, expected, kernel_shape=2, strides=2)


# Values: LpPool


def test_lp_pool_takes_magnitudes_also_for_odd_p(backend):
    check(backend, "lp_pool", axis(-1, 2, -3), [3, 5], kernel_shape=2, p=1)
    cubes = compute(backend, "lp_pool", axis(-3, -4, -5), kernel_shape=3, p=3)
    np.testing.assert_allclose(cubes.item(), 6, rtol=1e-6)


def test_lp_pool_no_rescaling_for_overhang(backend):
    arguments = {"kernel_shape": 2, "strides": 2, "ceil_mode": True, "p": 1}
    check(backend, "lp_pool", ramp(3), [3, 3], **arguments)


def test_lp_pool_no_valid_tap_gives_0(backend):
    check(backend, "lp_pool", ramp(1), [0, 1], kernel_shape=2, strides=2, pads=[2, 1])


@pytest.mark.parametrize("p", [0, -1, 0.0, -0.5, NAN, INF, -INF])
def test_lp_pool_p_that_is_not_positive_or_not_finite_is_an_error(backend, p):
    for function, needed in (CALLS["LpPool"], CALLS["GlobalLpPool"]):
        with pytest.raises(GpupoolValueError, match=f"p = {p} must be finite and greater than 0"):
            compute(backend, function, ramp(3), p=p, **needed)


# Values: Global*


def test_global_pools_keep_n_and_c_and_make_the_rest_1(backend):
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float64).reshape(2, 3, 4, 5)
    flat = x.reshape(2, 3, 20)
    expected = {
        "global_max_pool": flat.max(axis=2),
        "global_average_pool": flat.mean(axis=2),
        "global_lp_pool": np.linalg.norm(flat, axis=2),
    }
    for function, value in expected.items():
        y = compute(backend, function, x)
        assert y.shape == (2, 3, 1, 1)
        np.testing.assert_allclose(y[:, :, 0, 0], value, rtol=1e-14)


# Values: accumulation


def test_float16_lp_pool_of_300_300_is_424_2_not_inf(backend):
    check(backend, "lp_pool", axis(300, 300, dtype="float16"), [424.2], kernel_shape=2)


def test_bfloat16_mean_of_4096_ones_is_1(backend):
    x = np.ones((1, 1, 64, 64), dtype_of("bfloat16"))
    assert compute(backend, "global_average_pool", x).astype(float).item() == 1
    assert compute(backend, "average_pool", x, kernel_shape=64).astype(float).item() == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_mean_is_rounded_once_at_the_end(backend, dtype):
    # One and a half ulp above 1 and a little: a sum kept in the dtype itself loses the little.
    ulp = float(tolerance.ulp(1, dtype_of(dtype)))
    x = axis(1 + ulp, 1 + 2 * ulp, 1 + ulp, 1 + 2 * ulp, 1 + 2 * ulp, dtype=dtype)
    check(backend, "average_pool", x, [1 + 2 * ulp], kernel_shape=5)


def test_float32_accumulates_in_float32_or_better(backend):
    x = np.full((1, 1, 2**16), 0.1, np.float32)
    y = compute(backend, "global_average_pool", x)
    reals = reference.global_average_pool(x)
    tolerance.assert_real(y, reals, tolerance.of_sum)


# Values: no spurious overflow


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 3e38), ("bfloat16", 3e38), ("float64", 1.7e308)]
)
def test_no_spurious_overflow_of_the_average(backend, dtype, value):
    x = axis(value, value, dtype=dtype)
    for function, window in (("average_pool", {"kernel_shape": 2}), ("global_average_pool", {})):
        assert_bitwise(compute(backend, function, x, **window), x[:, :, :1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_spurious_overflow_of_the_average_of_maxima_with_both_signs(backend, dtype):
    most = float(tolerance.greatest(dtype_of(dtype)))
    x = axis(most, most, -most, -most, most, most, most, most, dtype=dtype)
    check(backend, "average_pool", x, [0, most], kernel_shape=4, strides=4)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *((dtype, value) for dtype in ("float32", "bfloat16") for value in (3e20, 1e-30)),
        *(("float64", 1e200), ("float64", 1e-300), ("float16", 6e-8), ("float16", 4e4)),
    ],
)
@pytest.mark.parametrize("p", [1, 2, 3, 0.5, 1000])
def test_no_spurious_overflow_of_the_norm(backend, dtype, value, p):
    x = axis(value, value, dtype=dtype)
    y = compute(backend, "lp_pool", x, kernel_shape=2, p=p)
    reals = reference.lp_pool(x, 2, p=p)
    tolerance.assert_real(y, reals, tolerance.of_norm, p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2, 3, 0.5, 0.3, 1.01, 1.3, 2.5])
@pytest.mark.parametrize("taps", [2, 20])
def test_no_rounding_takes_a_norm_beyond_the_greatest_number(backend, dtype, p, taps):
    """Of windows whose norms are within a few roundings below it."""
    kind = dtype_of(dtype)
    rng, greatest = np.random.default_rng(taps), tolerance.greatest(kind)
    shares = 1 - rng.random((40, 1, taps))
    norms = np.array([float(real.value) for real in reference.lp_pool(shares, taps, p=p).flat])
    with np.errstate(over="ignore"):
        x = (shares / norms.reshape(-1, 1, 1) * float(greatest)).astype(kind)
    reals = reference.lp_pool(x, taps, p=p)
    below = [isinstance(real.value, Fraction) and real.value <= greatest for real in reals.flat]
    assert sum(below) > 5
    y = compute(backend, "lp_pool", x[below], kernel_shape=taps, p=p)
    tolerance.assert_real(y, reals[below], tolerance.of_norm, p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2, 0.5, 3])
def test_the_norm_of_subnormals_is_right_to_the_last_bit_or_so(backend, dtype, p):
    kind = dtype_of(dtype)
    x = (np.arange(1, 22) * float(tolerance.least_subnormal(kind))).astype(kind).reshape(1, 1, 21)
    y = compute(backend, "lp_pool", x, kernel_shape=21, p=p)
    tolerance.assert_real(y, reference.lp_pool(x, 21, p=p), tolerance.of_norm, p)


@pytest.mark.parametrize("value", [3e-30, 3e-15, 0.7, 3e15, 3e30])
@pytest.mark.parametrize("p", [1.1, 2.1, 16777217])
def test_a_lone_tap_has_its_magnitude_for_a_norm_that_float32_rounds(backend, p, value):
    x = axis(-value, value)
    y = compute(backend, "lp_pool", x, kernel_shape=1, p=p)
    tolerance.assert_real(y, reference.lp_pool(x, 1, p=p), tolerance.of_norm, p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1000, 1e9, 1e300, 1.7e308])
def test_a_huge_p_gives_the_greatest_magnitude(backend, dtype, p):
    x = axis(0.5, -8, 0, dtype=dtype)
    y = compute(backend, "lp_pool", x, kernel_shape=3, p=p)
    assert_bitwise(y, axis(8, dtype=dtype))


@pytest.mark.parametrize("p", [2**31, 2**63 - 1])
def test_p_is_any_integer_of_64_bits_where_the_version_wants_one(backend, p):
    y = compute(backend, "lp_pool", axis(3, -4), kernel_shape=2, p=p, opset=18)
    assert_bitwise(y, axis(4))


@pytest.mark.parametrize("p", [1e-3, 1e-9, 1e-300, 5e-324])
def test_a_tiny_p_gives_the_only_tap_or_infinity(backend, p):
    x = axis(0, -3e-30, 0, 1, 1, 1, 0, 0, 0)
    check(backend, "lp_pool", x, [np.float32(3e-30), INF, 0], kernel_shape=3, strides=3, p=p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2, 3, 0.5, 2.5, 5, 7, 1000, 1e-3])
def test_an_infinite_tap_gives_inf_all_zeros_give_0_and_nan_beats_inf(backend, dtype, p):
    x = axis(-INF, 1, 0, -0.0, INF, NAN, NAN, 0, INF, INF, dtype=dtype)
    expected = [INF, 0, NAN, NAN, INF]
    check(backend, "lp_pool", x, expected, kernel_shape=2, strides=2, p=p)


@pytest.mark.parametrize("p", [1, 2, 3, 0.5])
def test_a_true_overflow_is_inf(backend, p):
    check(backend, "lp_pool", axis(3e38, 3e38, 3e38), [INF], kernel_shape=3, p=p)


@pytest.mark.parametrize(
    ("dtype", "value", "taps", "p"),
    [
        ("float32", 2.0**127, 2, 1),
        ("float32", 2.0**126, 2, 0.5),
        ("float16", 64, 1024, 0.1),
        ("bfloat16", 2.0**64, 1024, 2.0**-6),
    ],
)
def test_an_overflow_that_float64_sums_are_sure_of_is_inf(backend, dtype, value, taps, p):
    """The norm is the power of two above the greatest number, as near as float32 could round."""
    x = axis(value, value, *[0] * (taps - 2), dtype=dtype)
    check(backend, "lp_pool", x, [INF], kernel_shape=taps, p=p)


# Values: determinism


def test_determinism_the_same_bits_run_to_run(backend):
    x = np.random.default_rng(0).standard_normal((2, 3, 65, 67)).astype(np.float32)
    for function in ("average_pool", "lp_pool"):
        first = compute(backend, function, x, kernel_shape=5)
        for _ in range(3):
            again = compute(backend, function, x, kernel_shape=5)
            assert tolerance.bits(again).tolist() == tolerance.bits(first).tolist()


# Values: the extension beyond ONNX


@pytest.mark.parametrize("function", ["average_pool", "global_average_pool"])
@pytest.mark.parametrize(
    ("dtype", "values", "mean"),
    [
        ("uint8", (1, 2), 2),
        ("uint8", (2, 3), 2),
        ("uint8", (255, 254), 254),
        ("int8", (-1, -2), -2),
        ("int8", (-2, -3), -2),
        ("int8", (-128, -127), -128),
        ("uint8", (1, 1, 2), 1),
        ("uint8", (1, 2, 2), 2),
    ],
)
def test_8_bit_averages_round_half_to_even(backend, function, dtype, values, mean):
    window = {} if function.startswith("global") else {"kernel_shape": len(values)}
    check(backend, function, axis(*values, dtype=dtype), [mean], **window)


@pytest.mark.parametrize("dtype", FLOATS)
def test_8_bit_averages_are_rounded_once_to_the_float_asked_for(backend, dtype):
    x = axis(255, 255, 254, dtype="uint8")
    y = compute(backend, "average_pool", x, kernel_shape=3, dtype=dtype)
    exact = reference.average_pool(x, 3).item().value
    assert_bitwise(y, np.array([[[tolerance.nearest(exact, dtype_of(dtype))]]], dtype_of(dtype)))


@pytest.mark.parametrize(("dtype", "value"), [("uint8", 255), ("int8", -128)])
def test_8_bit_sums_do_not_wrap(backend, dtype, value):
    x = np.full((1, 1, 3000, 3000), value, dtype)  # 9,000,000 * 255 is above 2**31
    assert compute(backend, "global_average_pool", x).item() == value
    assert compute(backend, "global_average_pool", x, dtype="float64").item() == value


@pytest.mark.parametrize("op", ["AveragePool", "GlobalAveragePool"])
def test_dtype_is_for_8_bit_input_only(backend, op):
    with pytest.raises(GpupoolTypeError, match=r"dtype = float64 .* int8 and uint8 input only"):
        legal(backend, op, dtype="float64")
    with pytest.raises(GpupoolTypeError, match="dtype = int8 must be a float dtype: float64, "):
        legal(backend, op, x="int8", dtype="int8")


@pytest.mark.parametrize("op", CALLS)
def test_channels_last_for_every_op(backend, op):
    x = np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2)
    function, needed = CALLS[op]
    more: dict[str, tuple[Any, ...]] = {
        "MaxUnpool": (np.arange(32).reshape(x.shape),),
        "MaxRoiPool": (np.array([[0, 0, 0, 3, 3]], np.float32),),
        "RoiAlign": (np.array([[0, 0, 3, 3]], np.float32), np.array([0])),
    }
    y = compute(backend, function, x, *more.get(op, ()), channels_last=True, **needed)
    assert y.ndim == 4
    assert y.shape[-1] == 2


# Values: MaxUnpool


def test_max_unpool_indices_live_in_the_inferred_shape(backend):
    x, i = axis(5, 4), np.array([[[1, 3]]])
    y = compute(backend, "max_unpool", x, i, kernel_shape=2, strides=2)
    assert y.tolist() == [[[0, 5, 0, 4]]]
    y = compute(backend, "max_unpool", x, i, kernel_shape=3, strides=2, pads=[1, 0])
    assert y.tolist() == [[[0, 5, 0, 4]]]


def test_max_unpool_indices_live_in_the_space_of_output_shape(backend):
    x, i = np.array([[[5.0], [4]]]), np.array([[[2], [3]]])
    y = compute(backend, "max_unpool", x, i, kernel_shape=2, output_shape=(1, 2, 3))
    assert y.tolist() == [[[0, 0, 5], [4, 0, 0]]]


@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 2, 4), (1, 1, 3), (1, 1, 4, 1), (4,)])
def test_max_unpool_output_shape_keeps_n_and_c_and_is_at_least_the_inferred(backend, shape):
    with pytest.raises(GpupoolValueError, match=r"output_shape = .*inferred shape \(1, 1, 4\)"):
        compute(
            backend,
            "max_unpool",
            axis(5, 4),
            np.array([[[1, 3]]]),
            kernel_shape=2,
            strides=2,
            output_shape=shape,
        )


@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**63)])
def test_max_unpool_out_of_range_or_negative_index_is_an_error(backend, bad):
    with pytest.raises(GpupoolValueError, match=rf"indices holds {bad} .*allowed are 0 \.\. 3"):
        compute(
            backend, "max_unpool", axis(5, 4), np.array([[[1, bad]]]), kernel_shape=2, strides=2
        )


def test_max_unpool_duplicates_the_highest_source_position_wins(backend):
    x = np.arange(1000, dtype=np.float32).reshape(1, 1, 1000)
    i = np.tile([3, 1], 500).reshape(x.shape)
    y = compute(backend, "max_unpool", x, i, kernel_shape=1)
    assert y[0, 0, :4].tolist() == [0, 999, 0, 998]
    assert not y[0, 0, 4:].any()


def test_max_unpool_channels_last_fills_flat_positions_of_that_layout(backend):
    x = np.array([[[5.0, 6.0]]])
    i = np.array([[[1, 2]]])
    y = compute(backend, "max_unpool", x, i, kernel_shape=2, strides=2, channels_last=True)
    assert y.tolist() == [[[0, 5], [6, 0]]]
    arguments = {"kernel_shape": 2, "output_shape": (1, 3, 2), "channels_last": True}
    assert compute(backend, "max_unpool", x, i, **arguments).shape == (1, 3, 2)


# Values: MaxRoiPool

IMAGE = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)


def test_max_roi_pool_rounds_half_away_from_zero(backend):
    rois = np.array([[0, 0.5, 0.5, 0.5, 0.5], [0, 1.5, 2.5, 1.5, 2.5]], np.float32)
    y = compute(backend, "max_roi_pool", IMAGE, rois, pooled_shape=1)
    assert y.ravel().tolist() == [9, 26]
    negative = np.array([[0, -0.5, -0.5, 0, 0]], np.float32)  # -1 .. 0, clipped to 0 .. 0
    y = compute(backend, "max_roi_pool", IMAGE, negative, pooled_shape=2)
    assert y.ravel().tolist() == [0, 0, 0, 0]


def test_max_roi_pool_scales_in_float32(backend):
    rois = np.array([[0, 0, 0, 15, 15]], np.float64)  # float32(15) * float32(0.1) is 1.5: 2
    x = IMAGE.astype(np.float64)
    y = compute(backend, "max_roi_pool", x, rois, pooled_shape=1, spatial_scale=0.1)
    assert y.item() == 18


def test_max_roi_pool_bins_are_floored_and_ceiled_and_overlap(backend):
    rois = np.array([[0, 0, 0, 4, 0]], np.float32)  # five columns in two bins of 2.5
    y = compute(backend, "max_roi_pool", IMAGE, rois, pooled_shape=(1, 2))
    assert y.ravel().tolist() == [2, 4]


def test_max_roi_pool_an_inverted_roi_has_size_1(backend):
    rois = np.array([[0, 5, 5, 2, 2]], np.float32)
    assert compute(backend, "max_roi_pool", IMAGE, rois, pooled_shape=1).item() == 45


def test_max_roi_pool_an_empty_bin_gives_0(backend):
    rois = np.array([[0, 20, 20, 30, 30]], np.float32)
    y = compute(backend, "max_roi_pool", IMAGE + 1, rois, pooled_shape=2)
    assert y.ravel().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_roi_pool_nan_wins(backend, dtype):
    x = IMAGE.astype(dtype_of(dtype))
    x[0, 0, 0, 0], x[0, 0, 7, 7] = NAN, INF
    rois = np.array([[0, 0, 0, 7, 7], [0, 4, 4, 7, 7]], x.dtype)
    y = compute(backend, "max_roi_pool", x, rois, pooled_shape=1).astype(float).ravel()
    assert math.isnan(y[0])
    assert y[1] == INF


@pytest.mark.parametrize("bad", [-1, 1, 0.5, NAN])
def test_max_roi_pool_batch_index_outside_is_an_error(backend, bad):
    rois = np.array([[0, 0, 0, 1, 1], [bad, 0, 0, 1, 1]], np.float32)
    with pytest.raises(GpupoolValueError, match=rf"RoI 1 .*image {float(bad)} .*0 \.\. 0"):
        compute(backend, "max_roi_pool", IMAGE, rois, pooled_shape=1)


# Values: RoiAlign


def align(backend: Any, x: Any, *roi: float, **arguments: Any) -> Any:
    rois = np.array([roi], x.dtype)
    return compute(backend, "roi_align", x, rois, np.array([0]), **arguments)


def test_roi_align_sampling_ratio_0_means_ceil_of_roi_by_out(backend):
    # A width of 3 in two bins: ceil(1.5) = 2 samples a bin.
    for modes in ("half_pixel", "output_half_pixel"):
        more = {"output_width": 2, "output_height": 2, "coordinate_transformation_mode": modes}
        zero = align(backend, IMAGE, 1, 1, 4, 4, sampling_ratio=0, **more)
        two = align(backend, IMAGE, 1, 1, 4, 4, sampling_ratio=2, **more)
        assert_bitwise(zero, two)
    peak = np.zeros_like(IMAGE)
    peak[0, 0, 2, 2] = 1
    assert align(backend, peak, 1, 1, 4, 4, sampling_ratio=0).item() == pytest.approx(1 / 9)


def test_roi_align_half_pixel_shifts_by_minus_a_half(backend):
    one = {"sampling_ratio": 1}
    assert align(backend, IMAGE, 2, 2, 3, 3, **one).item() == 18
    old = {"coordinate_transformation_mode": "output_half_pixel"}
    assert align(backend, IMAGE, 2, 2, 3, 3, **one, **old).item() == 22.5


def test_roi_align_half_pixel_does_not_force_a_size_of_1(backend):
    size_0 = align(backend, IMAGE, 2.5, 2.5, 2.5, 2.5, output_width=2, sampling_ratio=1)
    assert size_0.ravel().tolist() == [18, 18]
    assert align(backend, IMAGE, 2, 2, 2, 2).item() == 0  # ceil(0) samples


def test_roi_align_output_half_pixel_forces_width_and_height_of_1(backend):
    old = {"coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 1}
    y = align(backend, IMAGE, 2, 2, 2, 2, output_width=2, **old)
    assert y.ravel().tolist() == [22.25, 22.75]
    inverted = align(backend, IMAGE, 2, 2, 0, 0, output_width=2, **old)
    assert_bitwise(inverted, y)


@pytest.mark.parametrize(
    ("position", "weight"), [(-1.0, 1), (-1.25, 0), (8.0, 1), (8.25, 0), (-0.5, 1), (7.5, 1)]
)
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_a_sample_outside_minus_1_to_size_contributes_0(backend, position, weight, mode):
    x = np.ones((1, 1, 8, 8), np.float32)
    # One sample, in the middle of a roi of width 1: its left edge is a half before it.
    left = position + 0.5 - 0.5
    y = align(backend, x, left, 3, left + 1, 4, sampling_ratio=1, mode=mode)
    assert y.item() == weight


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_a_sample_outside_contributes_0_whatever_the_border_holds(backend, value, mode):
    x = np.full((1, 1, 8, 8), value, np.float32)
    assert align(backend, x, -9, -9, -7, -7, sampling_ratio=2, mode=mode).item() == 0


def test_roi_align_max_takes_the_greatest_weighted_corner(backend):
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    y = align(backend, x, 0.5, 0.5, 1.5, 1.5, mode="max", sampling_ratio=1)
    assert y.item() == 1.0  # 4 * 0.25, where the bilinear sample is 2.5
    assert align(backend, x, 0.5, 0.5, 1.5, 1.5, sampling_ratio=1).item() == 2.5


def test_roi_align_no_spurious_overflow(backend):
    x = np.full((1, 1, 8, 8), 3e38, np.float32)
    assert_bitwise(align(backend, x, 1, 1, 5, 5), x[:, :, :1, :1])
    wide = np.full((1, 1, 8, 8), 1.7e308)
    assert_bitwise(align(backend, wide, 1, 1, 5, 5), wide[:, :, :1, :1])


@pytest.mark.parametrize("bad", [-1, 1, 2**40])
def test_roi_align_bad_batch_index_is_an_error(backend, bad):
    rois = np.array([[0, 0, 1, 1]], np.float32)
    with pytest.raises(GpupoolValueError, match=r"batch_indices gives image .*0 \.\. 0"):
        compute(backend, "roi_align", IMAGE, rois, np.array([bad]))


# The traps


def test_trap_l_2_k_3_s_3_pads_1_1_ceil(backend):
    arguments = {"kernel_shape": 3, "strides": 3, "pads": [1, 1], "ceil_mode": True}
    check(backend, "max_pool", ramp(2), [2], **arguments)


def test_trap_average_l_5_k_4_s_3_ceil(backend):
    arguments = {"kernel_shape": 4, "strides": 3, "ceil_mode": True}
    check(backend, "average_pool", ramp(5), [2.5, 4.5], **arguments)


def test_trap_average_l_6_k_3_s_2_pads_1_1_ceil_include_pad(backend):
    arguments = {"kernel_shape": 3, "strides": 2, "pads": [1, 1], "ceil_mode": True}
    check(backend, "average_pool", ramp(6), [1, 3, 5, 3], count_include_pad=True, **arguments)


def test_trap_max_same_lower_l_5_k_2_s_2(backend):
    arguments = {"kernel_shape": 2, "strides": 2, "auto_pad": "SAME_LOWER"}
    check(backend, "max_pool", ramp(5), [1, 3, 5], **arguments)


def test_trap_same_upper_l_11_k_3_d_2(backend):
    arguments = {"kernel_shape": 3, "dilations": 2, "auto_pad": "SAME_UPPER"}
    check(backend, "max_pool", ramp(11), [3, 4, 5, 6, 7, 8, 9, 10, 11, 10, 11], **arguments)


def test_trap_valid_ceil_l_11_k_2_s_2(backend):
    arguments = {"kernel_shape": 2, "strides": 2, "auto_pad": "VALID", "ceil_mode": True}
    check(backend, "max_pool", ramp(11), [2, 4, 6, 8, 10], **arguments)


def test_trap_average_same_upper_l_12_k_2_s_4(backend):
    arguments = {"kernel_shape": 2, "strides": 4, "auto_pad": "SAME_UPPER"}
    check(backend, "average_pool", ramp(12), [1.5, 5.5, 9.5], **arguments)


def test_trap_average_1_with_pads_excludes_pads(backend):
    check(backend, "average_pool", ramp(2), [1, 1.5, 2], kernel_shape=2, pads=[1, 1], opset=1)


def test_trap_l_4_k_5_s_2_floor_is_an_error(backend):
    with pytest.raises(GpupoolValueError, match="larger than the padded input"):
        compute(backend, "max_pool", ramp(4), kernel_shape=5, strides=2)


def test_trap_l_4_k_5_s_2_ceil_is_the_whole_input(backend):
    arguments = {"kernel_shape": 5, "strides": 2, "ceil_mode": True}
    check(backend, "max_pool", ramp(4), [4], **arguments)
    check(backend, "average_pool", ramp(4), [2.5], **arguments)


def test_trap_lp_l_6_k_3_s_2_p_1_ceil_last(backend):
    arguments = {"kernel_shape": 3, "strides": 2, "p": 1, "ceil_mode": True}
    check(backend, "lp_pool", ramp(6), [6, 12, 11], **arguments)


@pytest.mark.parametrize("storage_order", [0, 1])
def test_trap_max_indices_of_two_planes_add_the_plane_offset(backend, storage_order):
    x = np.array([[[1, 2, 3], [6, 5, 4]]], np.float32)
    arguments = {"kernel_shape": 2, "strides": 1, "dilations": 1, "storage_order": storage_order}
    _, i = compute(backend, "max_pool", x, return_indices=True, **arguments)
    assert i.tolist() == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize("rank", [3, 5])
def test_trap_global_max_of_rank_3_or_5_takes_all_spatial_axes(backend, rank):
    x = np.arange(2 * 3 ** (rank - 2), dtype=np.float32).reshape(1, 2, *(3,) * (rank - 2))
    y = compute(backend, "global_max_pool", x)
    assert y.shape == (1, 2, *(1,) * (rank - 2))
    assert y.ravel().tolist() == [x[0, 0].max(), x[0, 1].max()]


@pytest.mark.parametrize("dtype", FLOATS)
def test_trap_max_of_1_nan_nan_3(backend, dtype):
    x = axis(1, NAN, NAN, 3, dtype=dtype)
    y, i = compute(backend, "max_pool", x, kernel_shape=2, strides=2, return_indices=True)
    assert np.isnan(y.astype(float)).tolist() == [[[True, True]]]
    assert i.tolist() == [[[1, 2]]]
    check(backend, "max_pool", x, [NAN, NAN], kernel_shape=2, strides=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_trap_max_of_minus_inf_without_indices(backend, dtype):
    check(backend, "max_pool", axis(-INF, -INF, dtype=dtype), [-INF], kernel_shape=2)


def test_trap_dilation_with_begin_pads_steps_from_minus_pad(backend):
    # Taps at -1, 1 and 3; stepping from a clamped 0 would read 0, 2 and 4.
    arguments = {"kernel_shape": 3, "dilations": 2, "pads": [1, 0], "strides": 4}
    check(backend, "average_pool", ramp(5), [3], **arguments)
    check(backend, "max_pool", ramp(5), [4], **arguments)


@pytest.mark.parametrize("function", ["max_pool", "average_pool", "lp_pool"])
def test_trap_dilation_2_to_the_31_minus_1_with_k_1(backend, function):
    y = compute(backend, function, ramp(4), kernel_shape=1, dilations=2**31 - 1)
    assert_bitwise(y, ramp(4))


@pytest.mark.parametrize("function", ["max_pool", "average_pool", "lp_pool"])
def test_trap_kernel_200001_with_pads_100000_is_legal_and_fast(backend, function):
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    whole = {"max_pool": 24.0, "average_pool": 12.0, "lp_pool": 70.0}[function]
    start = time.perf_counter()
    y = compute(backend, function, x, kernel_shape=200001, pads=100000)
    assert time.perf_counter() - start < 30  # a loop over the padding takes hours
    assert y.shape == (1, 1, 5, 5)
    np.testing.assert_allclose(y, np.full(y.shape, whole), rtol=1e-6)


def test_every_dtype_is_spoken_for():
    assert {str(dtype_of(name)) for name in EVERY} == {row.name for row in gpupool.dtypes.DTYPES}
