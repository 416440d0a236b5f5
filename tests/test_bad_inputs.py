"""What bad input gets: every row about arrays and attributes is a test here, named after the row.

Each message names the argument, its value and what is allowed. Rows about files, models and the
command line are tested with those.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

import gpupool
from gpupool.errors import GpupoolError, GpupoolMemoryError, GpupoolTypeError, GpupoolValueError
from tests import strategies
from tests.strategies import MEMORY, dtype_of

WINDOWED = ("max_pool", "average_pool", "lp_pool", "max_unpool")
POOLS = ("max_pool", "average_pool", "lp_pool")
GLOBAL = ("global_max_pool", "global_average_pool", "global_lp_pool")
ROIS = ("max_roi_pool", "roi_align")
EVERY = (*WINDOWED, *GLOBAL, *ROIS)
ALWAYS = "float64, float32, float16, bfloat16"


def call(backend: Any, function: str, **changes: Any) -> Any:
    """Call a function on a small legal input, with some of its arguments changed.

    Arrays are passed by the names of their parameters; NumPy arrays go to the backend.
    """
    shape = (2, 3, 4, 4)
    arguments: dict[str, Any] = {"x": np.arange(96, dtype=np.float32).reshape(shape)}
    if function in WINDOWED:
        arguments["kernel_shape"] = 2
    if function == "max_unpool":
        arguments["indices"] = np.arange(96).reshape(shape)
    elif function == "max_roi_pool":
        arguments |= {"rois": np.array([[0, 0, 0, 3, 3]], np.float32), "pooled_shape": 2}
    elif function == "roi_align":
        arguments["rois"] = np.array([[0, 0, 3, 3]], np.float32)
        arguments["batch_indices"] = np.array([1])
    arguments |= changes
    for name in arguments.keys() & {"x", "indices", "rois", "batch_indices", "out"}:
        arguments[name] = backend.array(arguments[name])
    return getattr(backend, function)(**arguments)


def refuses(backend: Any, error: type[GpupoolError], message: str, *args: Any, **kw: Any) -> None:
    """Assert that a call raises exactly ``error`` with a message that holds these words in order.

    ``...`` in ``message`` stands for anything.
    """
    pattern = ".*".join(map(re.escape, re.split(r" ?\.\.\. ?", message)))
    with pytest.raises(error, match=f"(?s){pattern}") as raised:
        call(backend, *args, **kw)
    assert raised.type is error


@pytest.mark.parametrize("function", WINDOWED)
def test_the_small_legal_input_is_legal(backend, function):
    assert backend.numpy(call(backend, function)).size


# Stride, kernel or dilation of 0 or below; pad below 0; any of them above 2**31 - 1

RANGES = [
    (function, name)
    for function in WINDOWED
    for name in ("kernel_shape", "strides", "dilations", "pads")
    if not (function == "max_unpool" and name == "dilations")
]


@pytest.mark.parametrize(("function", "name"), RANGES)
@pytest.mark.parametrize("spelled", ["one", "each"])
def test_kernel_stride_dilation_or_pad_out_of_range(backend, function, name, spelled):
    low = 0 if name == "pads" else 1
    for bad in (low - 1, -7, 2**31, 2**63, -(2**63)):
        value = bad if spelled == "one" else [1] * (3 if name == "pads" else 1) + [bad]
        where = name if spelled == "one" else f"{name}[{len(value) - 1}]"
        message = f"{where} = {bad} ... allowed range {low} .. 2147483647"
        refuses(backend, GpupoolValueError, message, function, **{name: value})


def test_more_counted_taps_than_64_bits_hold(backend):
    point = {"x": np.ones((1, 1, 1, 1, 1)), "pads": 2**20}
    kernel, more = 2**21 - 1, 2**21 + 1
    mean = call(backend, "average_pool", **point, kernel_shape=kernel, count_include_pad=True)
    assert backend.numpy(mean).flat[0] == 1 / float(kernel**3)
    message = f"kernel_shape = {(more,) * 3} ... {more**3} taps, more than {2**63 - 1}"
    counting = point | {"kernel_shape": more, "count_include_pad": True}
    refuses(backend, GpupoolValueError, message, "average_pool", **counting)
    assert backend.numpy(call(backend, "average_pool", **point, kernel_shape=more)).item() == 1


@pytest.mark.parametrize("bad", [0, -1, 2**31])
def test_pooled_shape_and_output_sizes_out_of_range(backend, bad):
    for value, name in ((bad, "pooled_shape"), ((1, bad), "pooled_shape[1]")):
        refuses(
            backend, GpupoolValueError, f"{name} = {bad} ...", "max_roi_pool", pooled_shape=value
        )
    for name in ("output_height", "output_width"):
        message = f"{name} = {bad} ... 1 .. 2147483647"
        refuses(backend, GpupoolValueError, message, "roi_align", **{name: bad})


# kernel_shape missing or empty; lengths that do not fit the rank


@pytest.mark.parametrize("function", WINDOWED)
def test_kernel_shape_missing(backend, function):
    message = "kernel_shape ... 2 integer"
    refuses(backend, GpupoolTypeError, message, function, kernel_shape=None)


@pytest.mark.parametrize(("function", "name"), RANGES)
@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_lengths_that_do_not_fit_the_rank(backend, function, name, length):
    expected = 4 if name == "pads" else 2
    count = "1 value" if length == 1 else f"{length} values"
    message = f"{name} = ... has {count}, expected {expected}"
    refuses(backend, GpupoolValueError, message, function, **{name: [1] * length})


def test_n_pads_are_refused_with_both_readings(backend):
    message = "pads = (1, 0) ... expected 4 ... (1, 0, 1, 0) ... (1, 1, 0, 0)"
    refuses(backend, GpupoolValueError, message, "max_pool", pads=(1, 0))


# Output size below 1; spatial size 0; rank < 3


@pytest.mark.parametrize("function", POOLS)
def test_output_size_below_1(backend, function):
    message = "window is larger than the padded input on spatial axis 1 ... extent 5"
    refuses(backend, GpupoolValueError, message, function, kernel_shape=(2, 5))


def test_output_size_below_1_of_max_unpool(backend):
    message = "pads = 3 leave no output ... at least 1"
    refuses(backend, GpupoolValueError, message, "max_unpool", pads=3)


@pytest.mark.parametrize("function", [*WINDOWED, *GLOBAL])
def test_spatial_size_0(backend, function):
    changes = {"x": np.zeros((2, 3, 0, 4), np.float32)}
    if function == "max_unpool":
        changes["indices"] = np.zeros((2, 3, 0, 4), np.int64)
    message = "(2, 3, 0, 4): every spatial size must be at least 1"
    refuses(backend, GpupoolValueError, message, function, **changes)


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("shape", [(4,), (4, 4)])
def test_rank_below_3(backend, function, shape):
    changes = {"x": np.zeros(shape, np.float32)}
    message = f"rank {len(shape)}: expected at least 3 axes, N, C, D1 .. Dn"
    refuses(backend, GpupoolValueError, message, function, **changes)


# N = 0, C = 0


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4)])
def test_n_0_or_c_0_is_an_empty_result(backend, function, shape):
    changes: dict[str, Any] = {"x": np.zeros(shape, np.float32)}
    if function == "max_unpool":
        changes["indices"] = np.zeros(shape, np.int64)
    if function in ROIS and shape[0] == 0:  # no image: no RoI can name one
        changes["rois"] = np.zeros((0, 5 if function == "max_roi_pool" else 4), np.float32)
    if function == "roi_align" and shape[0] == 0:
        changes["batch_indices"] = np.zeros(0, np.int64)
    y = backend.numpy(call(backend, function, **changes))
    assert y.size == 0
    assert y.dtype == np.float32
    assert y.ndim == 4


# auto_pad


@pytest.mark.parametrize("function", POOLS)
def test_auto_pad_not_one_of_the_four(backend, function):
    message = "auto_pad = 'SAME' must be one of NOTSET, SAME_UPPER, SAME_LOWER, VALID"
    refuses(backend, GpupoolValueError, message, function, auto_pad="SAME")
    refuses(backend, GpupoolTypeError, "auto_pad must be one of ... not 1", function, auto_pad=1)


@pytest.mark.parametrize("function", POOLS)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_explicit_pads_with_auto_pad(backend, function, auto_pad):
    message = f"pads = 1 with auto_pad = '{auto_pad}'"
    refuses(backend, GpupoolValueError, message, function, auto_pad=auto_pad, pads=1)


# Flags

FLAGS = [
    ("max_pool", "ceil_mode"),
    ("max_pool", "storage_order"),
    ("max_pool", "return_indices"),
    ("average_pool", "ceil_mode"),
    ("average_pool", "count_include_pad"),
    ("lp_pool", "ceil_mode"),
    *((function, "channels_last") for function in EVERY),
]


@pytest.mark.parametrize(("function", "name"), FLAGS)
def test_a_flag_is_a_bool_or_the_integer_0_or_1(backend, function, name):
    for good in (0, False, np.int64(0), np.bool_(False)):
        call(backend, function, **{name: good})
    for bad in (2, -1):
        message = f"{name} = {bad} ... 0 .. 1"
        refuses(backend, GpupoolValueError, message, function, **{name: bad})
    for bad in (1.0, "yes", None):
        message = f"{name} must be an integer, not {bad!r}"
        refuses(backend, GpupoolTypeError, message, function, **{name: bad})


# Combinations


def test_storage_order_1_with_channels_last(backend):
    message = "storage_order = 1 with channels_last = True"
    refuses(backend, GpupoolValueError, message, "max_pool", storage_order=1, channels_last=True)


@pytest.mark.parametrize("function", ["average_pool", "global_average_pool"])
@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_dtype_for_a_float_x(backend, function, dtype):
    message = f"dtype = float32 for a {dtype} x: dtype is for int8 and uint8 input only"
    changes = {"x": np.zeros((1, 1, 4, 4), dtype_of(dtype)), "dtype": np.float32}
    refuses(backend, GpupoolTypeError, message, function, **changes)


@pytest.mark.parametrize("asked", ["int8", "uint8"])
def test_dtype_that_is_no_float(backend, asked):
    message = f"dtype = {asked} must be a float dtype: {ALWAYS}"
    changes = {"x": np.zeros((1, 1, 4, 4), np.int8), "dtype": asked}
    refuses(backend, GpupoolTypeError, message, "average_pool", **changes)


def test_dtype_with_an_opset(backend):
    message = "x has dtype uint8: AveragePool takes it in no opset, not at opset = 22"
    changes = {"x": np.zeros((1, 1, 4, 4), np.uint8), "dtype": "float32", "opset": 22}
    refuses(backend, GpupoolTypeError, message, "average_pool", **changes)


@pytest.mark.parametrize("function", EVERY)
def test_channels_last_with_an_opset(backend, function):
    message = "channels_last is gpupool's own and not part of ONNX: leave opset at None"
    refuses(backend, GpupoolValueError, message, function, channels_last=True, opset=22)


# p


@pytest.mark.parametrize("function", ["lp_pool", "global_lp_pool"])
def test_p_0_negative_nan_or_inf(backend, function):
    for bad in (0, -1, -0.5, float("nan"), float("inf"), 10**400):
        message = "p = ... must be finite and greater than 0"
        refuses(backend, GpupoolValueError, message, function, p=bad)
    for bad in ("2", None, [2], True, np.True_):
        refuses(backend, GpupoolTypeError, "p must be a number, not", function, p=bad)


@pytest.mark.parametrize("function", ["lp_pool", "global_lp_pool"])
def test_float_p_where_the_version_wants_int(backend, function):
    for bad in (2.0, 2.5):
        message = f"p must be an integer, not {bad}"
        refuses(backend, GpupoolTypeError, message, function, p=bad, opset=2)
    message = "p = 9223372036854775808 is outside the allowed range 1 .. 9223372036854775807"
    refuses(backend, GpupoolValueError, message, function, p=2**63, opset=2)


# Versions


def test_attribute_or_dtype_that_the_asked_version_does_not_have(backend):
    message = "dilations: MaxPool has it since opset 10, not at opset = 9"
    refuses(backend, GpupoolValueError, message, "max_pool", dilations=2, opset=9)
    message = "x has dtype bfloat16: MaxPool takes it since opset 22, not at opset = 21"
    x = np.zeros((1, 1, 4, 4), dtype_of("bfloat16"))
    refuses(backend, GpupoolTypeError, message, "max_pool", x=x, opset=21)
    message = "return_indices: MaxPool has Indices since opset 8, not at opset = 1"
    refuses(backend, GpupoolValueError, message, "max_pool", return_indices=True, opset=1)
    for bad, error in ((0, GpupoolValueError), (29, GpupoolValueError), ("9", GpupoolTypeError)):
        refuses(backend, error, "opset", "max_pool", opset=bad)


# Integers


@pytest.mark.parametrize(("function", "name"), RANGES)
@pytest.mark.parametrize("bad", [True, np.bool_(True), 2.0, np.float64(2), "2", 2j])
def test_bool_or_2_0_where_an_integer_is_meant(backend, function, name, bad):
    size = 4 if name == "pads" else 2
    for value in (bad, [bad] * size):
        if isinstance(value, str):
            message = f"{name} must be an integer or a sequence of integers, not '2'"
        else:
            message = f"{name}... must be an integer, not"
        refuses(backend, GpupoolTypeError, message, function, **{name: value})


@pytest.mark.parametrize("function", WINDOWED)
@pytest.mark.parametrize("two", [np.int64(2), np.uint8(2), np.array(2)], ids=["int64", "u8", "0-d"])
def test_numpy_integers_and_0_d_arrays_are_accepted(backend, function, two):
    plain = backend.numpy(call(backend, function, strides=2))
    for value in (two, [two, two]):
        same = call(backend, function, kernel_shape=value, strides=value)
        np.testing.assert_array_equal(backend.numpy(same), plain)


# Dtypes


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16", "bool", "complex64"])
def test_dtype_outside_the_table(backend, function, dtype):
    changes = {"x": np.zeros((2, 3, 4, 4), dtype)}
    refuses(
        backend,
        GpupoolTypeError,
        f"dtype of x = {dtype} ... allowed: {ALWAYS}",
        function,
        **changes,
    )


@pytest.mark.parametrize("function", ["lp_pool", "global_lp_pool", "max_unpool", *ROIS])
@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_dtype_outside_the_table_of_the_op_lists_that_table(backend, function, dtype):
    with pytest.raises(GpupoolTypeError, match=f"allowed: {ALWAYS}$"):
        call(backend, function, x=np.zeros((2, 3, 4, 4), dtype))


@pytest.mark.parametrize("dtype", [object, ">f4", "U3", "M8[s]"])
def test_object_and_big_endian(dtype):
    x = np.zeros((1, 1, 4), dtype)
    with pytest.raises(GpupoolTypeError, match=f"^dtype of x = .*allowed: {ALWAYS}"):
        gpupool.max_pool(x, 2)


@pytest.mark.parametrize("dtype", [None, "", "float99"])
def test_what_is_no_dtype(dtype):
    message = f"^dtype of x = {dtype!r} is not a dtype; allowed: {ALWAYS}"
    with pytest.raises(GpupoolTypeError, match=message):
        gpupool.plan("max", (1, 1, 8), dtype, kernel_shape=3)


@pytest.mark.parametrize("shape", [8, (1, -1, 8)])
def test_a_shape_is_called_as_its_argument_is(shape):
    with pytest.raises(GpupoolError, match=r"^shape(\[1\] = -1| must be a sequence)"):
        gpupool.plan("max", shape, "float32", kernel_shape=3)
    with pytest.raises(GpupoolError, match=r"^x_shape(\[1\] = -1| must be a sequence)"):
        gpupool.output_shape("max", shape, kernel_shape=3)


# out=


@pytest.mark.parametrize("function", EVERY)
def test_out_of_wrong_shape(backend, function):
    shape = backend.numpy(call(backend, function)).shape
    out = np.zeros((1, *shape), np.float32)
    message = f"out for ... has shape {out.shape}, expected {shape}"
    refuses(backend, GpupoolValueError, message, function, out=out)


@pytest.mark.parametrize("function", EVERY)
def test_out_of_wrong_dtype(backend, function):
    out = backend.numpy(call(backend, function)).astype(np.float64)
    message = "out for ... has dtype float64, expected float32"
    refuses(backend, GpupoolTypeError, message, function, out=out)


def test_out_read_only():
    x = np.zeros((1, 1, 4), np.float32)
    out = np.zeros((1, 1, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(GpupoolValueError, match="out for Y is read-only"):
        gpupool.max_pool(x, 2, out=out)


def test_out_that_repeats_its_elements():
    x = np.zeros((1, 1, 4), np.float32)
    out = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 1, 3), (0, 0, 0))
    message = r"out for Y has strides \(0, 0, 0\), by which elements may lie in one place"
    with pytest.raises(GpupoolValueError, match=message):
        gpupool.max_pool(x, 2, out=out)
    windows = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (1, 2, 3), (4, 4, 2))
    with pytest.raises(GpupoolValueError, match=r"out for Y has strides \(4, 4, 2\)"):
        gpupool.max_pool(np.zeros((1, 2, 4), np.float32), 2, out=windows)
    single = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 1, 1), (0, 0, 0))
    assert gpupool.max_pool(x, 4, out=single) is single


def test_out_with_an_address_range_that_overlaps_x(backend):
    memory = backend.array(np.zeros(20, np.float32))
    x = memory[:12].reshape(1, 1, 12)
    for overlapping in (memory[1:12], memory[9:20], memory[0:12:1][:11]):
        with pytest.raises(GpupoolValueError, match="out for Y shares memory with an input"):
            backend.max_pool(x, 2, out=overlapping.reshape(1, 1, 11))
    backend.max_pool(x[:, :, :9], 2, out=memory[12:20].reshape(1, 1, 8))


def test_out_interleaved_with_x_counts_as_overlapping(backend):
    memory = backend.array(np.zeros((1, 1, 8), np.float32))
    with pytest.raises(GpupoolValueError, match="shares memory"):
        backend.max_pool(memory[:, :, ::2], 1, out=memory[:, :, 1::2])


def test_out_with_indices_is_a_pair_of_separate_arrays(backend):
    x = backend.array(np.zeros((1, 1, 4), np.float32))
    y = backend.array(np.zeros((1, 1, 3), np.float32))
    i = backend.array(np.zeros((1, 1, 3), np.int64))
    got = backend.max_pool(x, 2, return_indices=True, out=(y, i))
    assert got[0] is y
    assert got[1] is i
    with pytest.raises(GpupoolValueError, match="out must be a pair of arrays, Y and Indices"):
        backend.max_pool(x, 2, return_indices=True, out=(y,))
    with pytest.raises(GpupoolValueError, match="out must be a pair of arrays, Y and Indices"):
        backend.max_pool(x, 2, return_indices=True, out=y)
    for pair in ((y, None), (None, i)):
        with pytest.raises(GpupoolTypeError, match=r"^out must be a NumPy"):
            backend.max_pool(x, 2, return_indices=True, out=pair)
    with pytest.raises(GpupoolTypeError, match="out for Indices has dtype float32, expected int64"):
        backend.max_pool(x, 2, return_indices=True, out=(y, backend.array(np.zeros_like(x))))


def test_two_outs_that_share_memory():
    memory = np.zeros((1, 1, 8), np.int64)
    y = memory.view(np.float32)[:, :, 4:7]
    with pytest.raises(GpupoolValueError, match="shares memory with an input or the other output"):
        gpupool.max_pool(
            np.zeros((1, 1, 4), np.float32), 2, return_indices=True, out=(y, memory[:, :, 1:4])
        )


# Kinds of arrays

CuPyLike = type("ndarray", (), {"__module__": "cupy", "data": None, "ndim": 3})


@pytest.mark.parametrize("bad", [[[[1.0, 2.0]]], None, "x", 3.0, np.float32(3), memoryview(b"x")])
def test_x_of_another_kind(bad):
    with pytest.raises(GpupoolTypeError, match=r"^x must be a NumPy.* array, not"):
        gpupool.max_pool(bad, 2)


def test_masked_arrays_are_refused():
    with pytest.raises(GpupoolTypeError, match=r"x must be a NumPy.* array, not .*Masked"):
        gpupool.max_pool(np.ma.zeros((1, 1, 4)), 2)


def test_arrays_of_mixed_kinds():
    x = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(GpupoolTypeError, match="x is a numpy array and out a cupy array"):
        gpupool.max_pool(x, 2, out=CuPyLike())
    rois = CuPyLike()
    rois.shape, rois.ndim, rois.dtype = (1, 5), 2, np.dtype(np.float32)
    with pytest.raises(GpupoolTypeError, match=r"x is a numpy array and .* a cupy array"):
        gpupool.max_roi_pool(x[None], rois, 1)


# Memory layouts: the right answer for every one is a property in test_oracle.py


@pytest.mark.parametrize("memory", sorted(MEMORY))
def test_memory_layouts_get_the_right_answer(backend, memory):
    x = MEMORY[memory](np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
    y = backend.numpy(backend.max_pool(backend.array(x), 2))
    windows = np.lib.stride_tricks.sliding_window_view(np.array(x), (2, 2), axis=(2, 3))
    np.testing.assert_array_equal(y, windows.max(axis=(4, 5)))


# Memory


@pytest.mark.parametrize("function", EVERY)
def test_bytes_beyond_gpupool_max_bytes(backend, function, monkeypatch):
    size = backend.numpy(call(backend, function)).nbytes
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", str(size))
    call(backend, function)
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", str(size - 1))
    message = f"needs {size} bytes, above GPUPOOL_MAX_BYTES = {size - 1}"
    refuses(backend, GpupoolMemoryError, message, function)


def test_an_empty_result_that_no_machine_can_address(backend):
    message = "but for sizes of 0, above what any machine can address"
    changes = {"x": np.zeros((0, 2, 6, 6), np.float32), "pads": 2**31 - 1}
    refuses(backend, GpupoolMemoryError, message, "average_pool", **changes)


def test_an_allocators_own_out_of_memory(backend):
    x, i = np.ones((1, 1, 2), np.float32), np.array([[[0, 2**46]]])
    huge = {"output_shape": (1, 1, 2**46)}  # 256 TiB: more than any process can map
    with pytest.raises(MemoryError) as raised:
        backend.max_unpool(backend.array(x), backend.array(i - i), 1, **huge)
    assert not isinstance(raised.value, GpupoolError)
    assert "281474976710656 bytes" in " ".join(raised.value.__notes__)
    y = backend.max_unpool(backend.array(x), backend.array(np.array([[[1, 0]]])), 1)
    np.testing.assert_array_equal(backend.numpy(y), x)


# MaxUnpool


@pytest.mark.parametrize("bad", [-1, 150, 2**31, 2**62, -(2**63)])
def test_max_unpool_indices_negative_or_out_of_range(backend, bad):
    indices = np.arange(96).reshape(2, 3, 4, 4)
    indices[1, 2, 0, 3] = bad
    message = f"indices holds {bad} at flat position 83: allowed are 0 .. 149"
    refuses(backend, GpupoolValueError, message, "max_unpool", indices=indices)


def test_max_unpool_bad_indices_leave_out_alone(backend):
    out = backend.array(np.full((1, 1, 4), 7, np.float32))
    x, i = backend.array(np.ones((1, 1, 2), np.float32)), backend.array(np.array([[[0, 4]]]))
    with pytest.raises(GpupoolValueError, match="indices holds 4"):
        backend.max_unpool(x, i, 2, strides=2, out=out)
    assert backend.numpy(out).tolist() == [[[7, 7, 7, 7]]]


def test_max_unpool_indices_of_another_shape_or_dtype(backend):
    message = "indices has dtype int32, expected int64"
    bad = np.zeros((2, 3, 4, 4), np.int32)
    refuses(backend, GpupoolTypeError, message, "max_unpool", indices=bad)
    message = "indices has shape (2, 3, 4, 5), expected (2, 3, 4, 4)"
    bad = np.zeros((2, 3, 4, 5), np.int64)
    refuses(backend, GpupoolValueError, message, "max_unpool", indices=bad)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 3, 5, 5), (2, 4, 5, 5), ()])
def test_max_unpool_output_shape_that_does_not_fit(backend, shape):
    message = f"output_shape = {shape} must have the N and C of ... (2, 3, 5, 5)"
    refuses(backend, GpupoolValueError, message, "max_unpool", output_shape=shape)


# RoIs


@pytest.mark.parametrize("bad", [-1, 2, 1e30, 0.5, float("nan"), float("inf")])
def test_roi_batch_index_out_of_range_or_not_an_integer_value(backend, bad):
    rois = np.array([[0, 0, 0, 1, 1], [bad, 0, 0, 1, 1]], np.float32)
    message = "RoI 1 ... rois gives image ... 0 .. 1"
    refuses(backend, GpupoolValueError, message, "max_roi_pool", rois=rois)


@pytest.mark.parametrize("bad", [-1, 2, 2**62])
def test_roi_align_batch_index_out_of_range(backend, bad):
    message = "RoI 0 ... batch_indices gives image ... 0 .. 1"
    indices = np.array([bad])
    refuses(backend, GpupoolValueError, message, "roi_align", batch_indices=indices)


@pytest.mark.parametrize("function", ROIS)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 4, 4)])
def test_roi_rank_other_than_4(backend, function, shape):
    message = f"rank {len(shape)}: RoI operators need rank 4"
    refuses(backend, GpupoolValueError, message, function, x=np.zeros(shape, np.float32))


def test_roi_sampling_ratio_below_0(backend):
    message = "sampling_ratio = -1 ... 0 .. "
    refuses(backend, GpupoolValueError, message, "roi_align", sampling_ratio=-1)


def test_roi_unknown_mode(backend):
    message = "mode = 'mean' must be one of avg, max"
    refuses(backend, GpupoolValueError, message, "roi_align", mode="mean")
    message = (
        "coordinate_transformation_mode = 'pixel' must be one of half_pixel, output_half_pixel"
    )
    refuses(
        backend,
        GpupoolValueError,
        message,
        "roi_align",
        coordinate_transformation_mode="pixel",
    )


@pytest.mark.parametrize("function", ROIS)
@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf")])
def test_roi_spatial_scale_not_finite_and_above_0(backend, function, bad):
    message = f"spatial_scale = {bad} must be finite and greater than 0"
    refuses(backend, GpupoolValueError, message, function, spatial_scale=bad)


NOT_FINITE = [
    (0, 0, float("nan"), 1),
    (0, 0, float("inf"), 1),
    (-float("inf"), 0, 1, 1),
    (float("inf"), 0, float("inf"), 1),
    (-float("inf"), 0, float("inf"), 1),
]


@pytest.mark.parametrize("function", ROIS)
@pytest.mark.parametrize("corners", NOT_FINITE)
def test_roi_non_finite_coordinate(backend, function, corners):
    rois = np.array([[0, *corners] if function == "max_roi_pool" else corners], np.float32)
    message = "RoI 0 ... scaled corners ... finite, below 2**31"
    refuses(backend, GpupoolValueError, message, function, rois=rois)


@pytest.mark.parametrize("function", ROIS)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_roi_scaled_coordinate_of_2_to_the_31_or_more(backend, function, scale):
    for sign in (1, -1):
        corners = [0, sign * 2**31 / scale, 1, sign * 2**31 / scale]
        rois = np.array([[0, *corners] if function == "max_roi_pool" else corners], np.float32)
        message = "RoI 0 ... scaled corners ... below 2**31 in magnitude"
        refuses(backend, GpupoolValueError, message, function, rois=rois, spatial_scale=scale)


@pytest.mark.parametrize("function", ROIS)
def test_roi_scaled_coordinate_that_overflows_float64(backend, function):
    corners = [0, -1e308, 1, 1e308]
    rois = np.array([[0, *corners] if function == "max_roi_pool" else corners])
    changes = {"x": np.zeros((2, 3, 4, 4)), "rois": rois, "spatial_scale": 1e10}
    refuses(backend, GpupoolValueError, "RoI 0 ... below 2**31", function, **changes)


def test_roi_samples_per_bin_above_the_ceiling(backend):
    message = f"sampling_ratio = 4097 means {4097**2} samples in a bin, above the {2**24} allowed"
    refuses(backend, GpupoolValueError, message, "roi_align", sampling_ratio=4097)
    rois = np.array([[0, 0, 4097, 4096]], np.float32)
    message = f"RoI 0 ... at most {2**24} samples in a bin"
    refuses(backend, GpupoolValueError, message, "roi_align", rois=rois)


def test_max_roi_pool_says_nothing_of_samples():
    """They are RoiAlign's."""
    with pytest.raises(GpupoolValueError) as refused:
        gpupool.max_roi_pool(np.zeros((1, 1, 4, 4)), np.full((1, 5), 7.0), 2)
    assert "sample" not in str(refused.value)


@pytest.mark.parametrize("function", ROIS)
def test_a_region_of_no_image(backend, function):
    message = "RoI 0 ... gives image 0.0 (allowed: none, x holds none)"
    x = np.zeros((0, 3, 4, 4), np.float32)
    changes = {"x": x, "rois": np.zeros((1, 5 if function == "max_roi_pool" else 4), np.float32)}
    if function == "roi_align":
        changes["batch_indices"] = np.zeros(1, np.int64)
    refuses(backend, GpupoolValueError, message, function, **changes)


@pytest.mark.parametrize("function", ROIS)
def test_roi_coordinates_are_judged_as_they_are_rounded(backend, function):
    """The greatest float32 below 2**31 is 2**31 - 128; max_roi_pool rounds float64 to float32."""

    def changes(coordinate):
        corners = [0.0, 0.0, coordinate, 3.0]
        rois = np.array([[0, *corners] if function == "max_roi_pool" else corners])
        more = {} if function == "max_roi_pool" else {"sampling_ratio": 1}
        return {"x": np.zeros((2, 3, 4, 4)), "rois": rois, **more}

    call(backend, function, **changes(2.0**31 - 128))
    if function == "roi_align":
        call(backend, function, **changes(2.0**31 - 1))
    else:
        refuses(
            backend, GpupoolValueError, "RoI 0 ... below 2**31", function, **changes(2.0**31 - 1)
        )


def test_num_rois_0_gives_an_empty_result(backend):
    y = call(backend, "max_roi_pool", rois=np.zeros((0, 5), np.float32), pooled_shape=(2, 5))
    assert backend.numpy(y).shape == (0, 3, 2, 5)
    nobody = {"rois": np.zeros((0, 4), np.float32), "batch_indices": np.zeros(0, np.int64)}
    y = call(backend, "roi_align", output_height=2, output_width=5, **nobody)
    assert backend.numpy(y).shape == (0, 3, 2, 5)


@pytest.mark.parametrize("function", ROIS)
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (1, 6), (1, 5, 1)])
def test_rois_of_another_shape(backend, function, shape):
    width = 5 if function == "max_roi_pool" else 4
    message = f"rois has shape {shape}, expected ({len(shape[:1])}, {width})"
    refuses(backend, GpupoolValueError, message, function, rois=np.zeros(shape, np.float32))


@pytest.mark.parametrize("function", ROIS)
def test_rois_of_another_dtype(backend, function):
    rois = np.zeros((1, 5 if function == "max_roi_pool" else 4), np.float64)
    message = "rois has dtype float64, expected float32"
    refuses(backend, GpupoolTypeError, message, function, rois=rois)


def test_batch_indices_of_another_shape_or_dtype(backend):
    message = "batch_indices has dtype int32, expected int64"
    bad = np.zeros(1, np.int32)
    refuses(backend, GpupoolTypeError, message, "roi_align", batch_indices=bad)
    message = "batch_indices has shape (2,), expected (1,)"
    bad = np.zeros(2, np.int64)
    refuses(backend, GpupoolValueError, message, "roi_align", batch_indices=bad)


# The classes


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (GpupoolValueError, ValueError),
        (GpupoolTypeError, TypeError),
        (GpupoolMemoryError, MemoryError),
    ],
)
def test_an_error_is_gpupools_and_the_built_in(error, builtin):
    assert issubclass(error, GpupoolError)
    assert issubclass(error, builtin)
    for same in (pickle.loads(pickle.dumps(error("why"))), error.__new__(error, "why")):
        assert (type(same), same.args) == (error, ("why",))
