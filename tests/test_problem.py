"""From attributes to a frozen problem: shapes, dtypes, layout and memory, before any array."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given

import gpupool
from gpupool import ops
from gpupool.dtypes import DTYPES
from gpupool.errors import GpupoolMemoryError, GpupoolTypeError, GpupoolValueError
from gpupool.opset import OPERATORS
from gpupool.problem import MAX_SAMPLES, Output, check_bytes, output_shape, resolve
from tests import strategies
from tests.conftest import numpy_backend

FUNCTIONS = {
    "max_pool": "MaxPool",
    "average_pool": "AveragePool",
    "lp_pool": "LpPool",
    "global_max_pool": "GlobalMaxPool",
    "global_average_pool": "GlobalAveragePool",
    "global_lp_pool": "GlobalLpPool",
    "max_unpool": "MaxUnpool",
    "max_roi_pool": "MaxRoiPool",
    "roi_align": "RoiAlign",
}

NEEDED = {
    "MaxPool": {"kernel_shape": 2},
    "AveragePool": {"kernel_shape": 2},
    "LpPool": {"kernel_shape": 2},
    "MaxUnpool": {"kernel_shape": 2},
    "MaxRoiPool": {"pooled_shape": (2, 3), "num_rois": 4},
    "RoiAlign": {"output_height": 2, "output_width": 3, "num_rois": 4},
}
"""The attributes without which an operator cannot be resolved."""


def problem_of(case):
    """Resolve the problem that a call of a public function describes."""
    arguments = dict(case.arguments)
    if "dtype" in arguments:
        arguments["out_dtype"] = arguments.pop("dtype")
    if "roi" in case.function:
        arguments["num_rois"] = len(case.arrays[1])
    x = case.arrays[0]
    return resolve(FUNCTIONS[case.function], x.shape, x.dtype, **arguments)


def test_every_operator_has_its_function():
    assert ops.FUNCTIONS.keys() == OPERATORS.keys()
    assert {function.__name__: op for op, function in ops.FUNCTIONS.items()} == FUNCTIONS


@given(case=strategies.calls())
def test_outputs_are_what_the_functions_return(case):
    outputs = problem_of(case).outputs
    results = case.run(numpy_backend())
    assert [output.shape for output in outputs] == [array.shape for array in results]
    assert [output.dtype for output in outputs] == [array.dtype for array in results]
    assert [output.nbytes for output in outputs] == [array.nbytes for array in results]


@pytest.mark.parametrize("op", OPERATORS)
def test_a_problem_is_frozen_hashable_and_equal_to_its_like(op):
    one, other = (resolve(op, (2, 3, 8, 8), "float32", **NEEDED.get(op, {})) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != resolve(op, (2, 3, 8, 9), "float32", **NEEDED.get(op, {}))
    with pytest.raises(FrozenInstanceError):
        one.op = "other"


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in OPERATORS for dtype in DTYPES if dtype in OPERATORS[op].dtypes],
)
def test_a_dtype_may_be_a_row_a_numpy_dtype_or_a_name(op, dtype):
    for spelling in (dtype, dtype.numpy, dtype.numpy.type, dtype.name):
        assert resolve(op, (1, 1, 4, 4), spelling, **NEEDED.get(op, {})).dtype is dtype


@pytest.mark.parametrize("op", OPERATORS)
def test_layout_is_read_from_channels_last(op):
    first = resolve(op, (2, 3, 5, 7), "float32", **NEEDED.get(op, {}))
    last = resolve(op, (2, 5, 7, 3), "float32", channels_last=True, **NEEDED.get(op, {}))
    for problem in (first, last):
        assert (problem.batch, problem.channels, problem.spatial) == (2, 3, (5, 7))
    n, c, *spatial = first.outputs[0].shape
    assert last.outputs[0].shape == (n, *spatial, c)


def test_integer_spellings_resolve_to_the_same_problem():
    plain = resolve("max", (1, 1, 8, 8), "float32", kernel_shape=(3, 3), strides=(2, 2))
    for number in (np.int64(3), np.array(3), 3):
        assert resolve("max", [1, 1, 8, 8], "float32", kernel_shape=number, strides=2) == plain


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "MaxUnpool"])
def test_a_missing_kernel_shape_shows_the_expected_length(op):
    with pytest.raises(GpupoolTypeError, match=rf"kernel_shape: {op} needs it, 2 integer"):
        resolve(op, (1, 1, 4, 4), "float32")


def test_sizes_beyond_any_machine_resolve_exactly():
    shape = (1, 1, 2**40, 2**40)
    problem = resolve("max", shape, "float64", kernel_shape=2, strides=2)
    assert problem.outputs[0].shape == (1, 1, 2**39, 2**39)
    assert problem.outputs[0].nbytes == 2**81


def test_output_shape_takes_names_and_positions():
    assert output_shape("MaxPool", (1, 64, 112, 112), 3, strides=2, pads=1) == (1, 64, 56, 56)
    assert output_shape("max", (1, 64, 112, 112), kernel_shape=3) == (1, 64, 110, 110)
    assert output_shape("max-roi", (1, 8, 32, 32), (7, 7), num_rois=5) == (5, 8, 7, 7)
    assert output_shape("global-lp", (2, 5, 7, 3), channels_last=True) == (2, 1, 1, 3)
    assert output_shape("max-unpool", (1, 2, 3), 2, strides=2) == (1, 2, 6)
    assert output_shape(op="max", x_shape=(1, 2, 3), kernel_shape=2) == (1, 2, 2)


def test_output_shape_refuses_as_the_functions_do():
    with pytest.raises(GpupoolValueError, match=r"strides = 0"):
        output_shape("max", (1, 1, 4), 2, strides=0)
    with pytest.raises(GpupoolValueError, match=r"op = 'median'"):
        output_shape("median", (1, 1, 4), 2)
    with pytest.raises(GpupoolTypeError, match="kernel_shape once"):
        output_shape("max", (1, 1, 4), 2, 2)
    with pytest.raises(GpupoolTypeError, match="kernel_shape once"):
        output_shape("max", (1, 1, 4), 2, kernel_shape=2)
    with pytest.raises(GpupoolTypeError, match="colour"):
        output_shape("max", (1, 1, 4), 2, colour=1)


def test_unknown_and_missing_parameters_stay_pythons_own_type_error():
    for call in (
        lambda: gpupool.max_pool(np.zeros((1, 1, 4))),
        lambda: gpupool.max_pool(np.zeros((1, 1, 4)), 2, colour=1),
    ):
        with pytest.raises(TypeError) as refused:
            call()
        assert type(refused.value) is TypeError


HALF = Output("Y", (2, 3), np.dtype(np.float16))


def test_the_byte_limit_is_exact(monkeypatch):
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", "24")
    check_bytes([HALF, HALF])
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", "23")
    with pytest.raises(GpupoolMemoryError, match=r"\(2, 3\) float16.*24 bytes.*= 23"):
        check_bytes([HALF, HALF])


@pytest.mark.parametrize("limit", ["", None])
def test_no_byte_limit_by_default(monkeypatch, limit):
    monkeypatch.delenv("GPUPOOL_MAX_BYTES", raising=False)
    if limit is not None:
        monkeypatch.setenv("GPUPOOL_MAX_BYTES", limit)
    check_bytes([Output("Y", (2**40,), np.dtype(np.float64))])
    with pytest.raises(GpupoolMemoryError, match="any machine can address"):
        check_bytes([Output("Y", (2**60,), np.dtype(np.float64))])


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "named"),
    [
        ("max", (1, 2, 2**40, 2**40), {"kernel_shape": 2}, "x "),
        ("global-max", (2**40, 2**30, 4), {}, "x "),
        (
            "max-unpool",
            (2**40, 1, 1),
            {"kernel_shape": 2, "output_shape": (2**40, 1, 2**40)},
            "output ",
        ),
    ],
)
def test_a_plan_for_more_than_any_machine_can_address_is_refused(op, shape, attributes, named):
    with pytest.raises(GpupoolMemoryError, match=rf"^{named}.*any machine can address") as refused:
        gpupool.plan(op, shape, "float32", **attributes)
    assert str(2**40) in str(refused.value)


@pytest.mark.parametrize("limit", ["many", "1.5", "-1"])
def test_a_byte_limit_that_is_none_is_refused(monkeypatch, limit):
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", limit)
    with pytest.raises(GpupoolValueError, match=rf"GPUPOOL_MAX_BYTES = '?{limit}"):
        check_bytes([HALF])


def test_the_ceiling_on_samples_is_documented():
    assert MAX_SAMPLES == 2**24
    assert "2**24" in gpupool.roi_align.__doc__


def test_output_shape_takes_the_dtype_of_an_average():
    assert output_shape("average", (1, 1, 4), 2, dtype="float32") == (1, 1, 3)
    with pytest.raises(
        GpupoolTypeError, match=r"^MaxPool takes no 'dtype': its attributes are kernel_"
    ):
        output_shape("max", (1, 1, 4), 2, dtype="float32")


@pytest.mark.parametrize(
    "function", [output_shape, lambda *given, **more: gpupool.plan(*given, "float32", **more)]
)
def test_an_unknown_attribute_is_named_with_those_that_exist(function):
    with pytest.raises(
        GpupoolTypeError, match=r"^GlobalLpPool takes no 'kernel_shape': .* are p, channels_last"
    ):
        function("global-lp", (1, 1, 4), kernel_shape=3)
    with pytest.raises(GpupoolTypeError, match=r"^pooled_shape: MaxRoiPool needs it"):
        function("MaxRoiPool", (1, 1, 4, 4))
