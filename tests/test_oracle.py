"""Every operator against tests/reference.py on random legal calls, and the laws between calls."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gpupool
from gpupool import oracle
from gpupool.problem import resolve
from tests import reference, strategies, tolerance
from tests.conftest import numpy_backend
from tests.strategies import MEMORY, Case
from tests.tolerance import assert_bitwise, assert_real, bits

pytestmark = pytest.mark.no_cover

NUMPY = numpy_backend()


def assert_right(case: Case, results: tuple[np.ndarray[Any, Any], ...]) -> None:
    """Compare the results of a call with the reference, within what rounding allows."""
    found = tuple((array.dtype, array.shape, array.tobytes()) for array in results)
    if found not in case.judged:
        judge(case, results)
        case.judged.add(found)


def judge(case: Case, results: tuple[np.ndarray[Any, Any], ...]) -> None:
    expected = case.right
    if case.function in ("max_pool", "global_max_pool", "max_unpool", "max_roi_pool"):
        assert len(results) == len(expected)
        for result, array in zip(results, expected, strict=True):
            assert_bitwise(result, array)
        return
    (y,) = results
    x = case.arrays[0]
    assert y.dtype == strategies.dtype_of(str(case.arguments.get("dtype") or x.dtype))
    if x.dtype.kind in "iu":
        assert_integer_means(y, expected)
    elif "average" in case.function:
        assert_real(y, expected, tolerance.of_sum)
    elif case.function == "roi_align":
        assert_real(y, expected, tolerance.of_samples, 32)
    else:
        assert_real(y, expected, tolerance.of_norm, case.arguments.get("p", 2))


def assert_integer_means(y: np.ndarray[Any, Any], reals: np.ndarray[Any, Any]) -> None:
    """Integer sums are exact: their means are rounded once, half to even."""
    whole = y.dtype.kind in "iu"
    rounded = [round(r.value) if whole else tolerance.nearest(r.value, y.dtype) for r in reals.flat]
    assert_bitwise(y, np.array(rounded, y.dtype).reshape(reals.shape))


@given(case=strategies.max_pools())
def test_max_pool_equals_the_reference(backend, case):
    assert_right(case, case.run(backend))


@given(case=strategies.average_pools())
def test_average_pool_equals_the_reference(backend, case):
    assert_right(case, case.run(backend))


@given(case=strategies.average_pools(dtypes=strategies.INTEGERS))
def test_average_pool_of_8_bit_integers_equals_the_reference(backend, case):
    assert_right(case, case.run(backend))


@given(case=strategies.lp_pools())
def test_lp_pool_equals_the_reference(backend, case):
    assert_right(case, case.run(backend))


@pytest.mark.parametrize("kind", ["max", "average", "lp"])
@given(data=st.data())
def test_global_pool_equals_the_reference(backend, kind, data):
    case = data.draw(strategies.global_pools(kind))
    assert_right(case, case.run(backend))


@given(case=strategies.max_unpools())
def test_max_unpool_equals_the_reference(backend, case):
    assert_right(case, case.run(backend))


@given(case=strategies.max_roi_pools())
def test_max_roi_pool_equals_the_reference(backend, case):
    assert_right(case, case.run(backend))


@given(case=strategies.roi_aligns())
def test_roi_align_equals_the_reference(backend, case):
    # Rounding decides whether a sample this close to the border counts at all.
    assume(min(reference.doubtful(case), default=1) > 2**-10)
    assert_right(case, case.run(backend))


def test_roi_align_of_subnormals_may_round_each_corner(backend):
    """A quarter of 6 units is 1.5 and becomes 2, four times, where none is fused: 8 for 6."""
    least = np.finfo(np.float64).smallest_subnormal
    x, roi = np.full((1, 1, 2, 2), 6 * least), np.array([[0.0, 0, 2, 2]])
    arguments = {"output_height": 1, "output_width": 1, "sampling_ratio": 1}
    case = Case("roi_align", (x, roi, np.array([0])), arguments)
    assert_right(case, case.run(backend))
    assert_right(case, (np.full((1, 1, 1, 1), 8 * least),))
    with pytest.raises(AssertionError, match="allowed error"):
        assert_right(case, (np.full((1, 1, 1, 1), 9 * least),))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(function, dtype) for function in ("max_pool", "average_pool") for dtype in strategies.EVERY]
    + [("lp_pool", dtype) for dtype in strategies.FLOATS],
)
def test_every_dtype_and_number_of_axes(backend, function, dtype):
    rng = np.random.default_rng(1)
    for axes in range(1, 6):
        x = rng.integers(0, 9, (2, 2) + (3,) * axes).astype(strategies.dtype_of(dtype))
        case = Case(function, (x,), {"kernel_shape": 2, "strides": 2, "pads": 1})
        assert_right(case, case.run(backend))


# Laws between calls


@pytest.mark.parametrize("kind", ["max", "average", "lp"])
@given(data=st.data())
def test_global_pool_equals_pool_with_the_full_window(backend, kind, data):
    case = data.draw(strategies.global_pools(kind))
    x = case.arrays[0]
    window = {"kernel_shape": reference.plane(x, case.arguments["channels_last"])}
    full = Case(f"{kind}_pool", case.arrays, case.arguments | window)
    assert_bitwise(case.run(backend)[0], full.run(backend)[0])


@given(case=strategies.max_pools(return_indices=True))
def test_indices_point_at_y_bit_for_bit(backend, case):
    assume(case.arguments["storage_order"] == 0)
    y, indices = case.run(backend)
    found = indices >= 0
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(bits(case.arrays[0].ravel()[indices[found]]), bits(y[found]))


@given(case=strategies.max_pools(return_indices=True))
def test_indices_do_not_change_the_maxima(backend, case):
    without = case.on(*case.arrays, return_indices=False)
    assert_bitwise(case.run(backend)[0], without.run(backend)[0])


@given(data=st.data())
def test_unpool_puts_back_what_pool_took(backend, data):
    n, last = data.draw(strategies.spatial_axes), data.draw(st.booleans())
    kernel, outs, rest = (data.draw(st.integers(1, 3)) for _ in range(3))
    size = outs * kernel + min(rest, kernel) - 1
    x = data.draw(strategies.inputs(strategies.FLOATS, (size,) * n, last, False))
    arguments = {"kernel_shape": kernel, "strides": kernel, "channels_last": last}
    pool = Case("max_pool", (x,), arguments | {"return_indices": True})
    y, indices = pool.run(backend)
    unpool = Case("max_unpool", (y, indices), arguments | {"output_shape": x.shape})
    (back,) = unpool.run(backend)
    assert_bitwise(back.ravel()[indices], y)
    rest_of_it = np.delete(back.ravel(), indices.ravel())
    assert_bitwise(rest_of_it, np.zeros_like(rest_of_it))


CHANNELWISE = st.one_of(strategies.pools(), strategies.max_roi_pools(), strategies.roi_aligns())
"""The operators that treat every channel alike: all but MaxUnpool."""


def values_only(case: Case) -> Case:
    """Drop the Indices, which are positions in a whole array and change with its shape."""
    return case.on(*case.arrays, return_indices=False) if case.function == "max_pool" else case


@given(case=strategies.pools(), other=st.integers(0, 2**16))
def test_concatenation_along_n(backend, case, other):
    assert_concatenates(backend, values_only(case), 0, other)


@given(case=CHANNELWISE, other=st.integers(0, 2**16))
def test_concatenation_along_c(backend, case, other):
    axis = -1 if case.arguments["channels_last"] else 1
    assert_concatenates(backend, values_only(case), axis, other)


def assert_concatenates(backend: Any, case: Case, axis: int, seed: int) -> None:
    x, *rest = case.arrays
    neighbour = strategies.WITH_SPECIAL["any bits"](np.random.default_rng(seed), x.shape, x.dtype)
    (y,) = case.run(backend)
    (beside,) = case.on(neighbour, *rest).run(backend)
    (both,) = case.on(np.concatenate([x, neighbour], axis), *rest).run(backend)
    assert_bitwise(both, np.concatenate([y, beside], axis))


@given(case=CHANNELWISE)
def test_permutation_of_channels(backend, case):
    case = values_only(case)
    x, *rest = case.arrays
    axis = -1 if case.arguments["channels_last"] else 1
    (y,) = case.run(backend)
    (flipped,) = case.on(np.flip(x, axis), *rest).run(backend)
    assert_bitwise(flipped, np.flip(y, axis))


@given(case=CHANNELWISE)
def test_channels_last_equals_the_transposed_call(backend, case):
    x, *rest = case.arrays
    last = case.arguments["channels_last"]
    source, target = (-1, 1) if last else (1, -1)
    changed = {"channels_last": not last}
    if case.function == "max_pool":
        changed |= {"return_indices": False, "storage_order": 0}
    y, *_ = case.run(backend)
    (other,) = case.on(np.moveaxis(x, source, target), *rest, **changed).run(backend)
    assert_bitwise(other, np.moveaxis(y, source, target))


@pytest.mark.parametrize("memory", sorted(MEMORY))
@given(case=strategies.calls())
def test_memory_layout_does_not_matter(backend, memory, case):
    x, *rest = case.arrays
    laid_out = MEMORY[memory](np.ascontiguousarray(x))
    plain = case.on(np.array(laid_out, order="C"), *rest)
    for one, other in zip(case.on(laid_out, *rest).run(backend), plain.run(backend), strict=True):
        assert_bitwise(one, other)


def test_norms_beyond_the_accumulator_do_not_depend_on_memory_order(backend):
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.standard_normal((1, 1, 5, 5, 5)) * 1e300
        one = Case("global_lp_pool", (x,), {"p": 1.5})
        other = one.on(np.asfortranarray(x))
        if backend.name == "numpy":
            assert_bitwise(other.run(backend)[0], one.run(backend)[0])
        else:  # another kernel may serve, which adds up in another order
            assert_right(other, other.run(backend))
            assert_right(one, one.run(backend))


def test_roi_align_of_a_channel_does_not_depend_on_their_number(backend):
    rng = np.random.default_rng(0)
    roi = np.array([[0.3, 0.2, 8.1, 7.7]], np.float32)
    for _ in range(20):
        x = rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
        together = Case("roi_align", (x, roi, np.array([0])), {})
        alone = [together.on(x[:, c : c + 1], roi, np.array([0])).run(backend)[0] for c in range(3)]
        assert_bitwise(together.run(backend)[0], np.concatenate(alone, axis=1))


@given(case=strategies.calls())
def test_the_same_call_gives_the_same_bits(backend, case):
    for one, other in zip(case.run(backend), case.run(backend), strict=True):
        np.testing.assert_array_equal(bits(one), bits(other))


@given(case=strategies.calls(), memory=st.sampled_from(("contiguous", "strided", "unaligned")))
def test_out_is_filled_and_returned_and_the_inputs_are_left_alone(backend, case, memory):
    before = [bits(array) for array in case.arrays]
    expected = case.run(backend)
    out = tuple(backend.array(MEMORY[memory](np.ones_like(array))) for array in expected)
    results = case.call(backend, out=out if len(out) > 1 else out[0])
    for result, array, right in zip(results, out, expected, strict=True):
        assert result is array
        np.testing.assert_array_equal(bits(backend.numpy(result)), bits(right))
    for array, old in zip(case.arrays, before, strict=True):
        np.testing.assert_array_equal(bits(array), old)


# How the oracle works


@pytest.mark.parametrize("block", [1, 7, 64, 500])
@given(case=strategies.pools())
def test_blocks_give_the_whole(block, case):
    expected = case.run(NUMPY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "BLOCK", block)
        results = case.run(NUMPY)
    for one, other in zip(results, expected, strict=True):
        assert_bitwise(one, other)


@pytest.mark.parametrize("short", [0, 2])
@given(case=strategies.pools())
def test_doubling_is_right_for_every_kernel(short, case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "SHORT", short)
        assert_right(case, case.run(NUMPY))


@pytest.mark.parametrize(
    ("function", "more"),
    [("max_pool", {}), ("max_pool", {"return_indices": True}), ("average_pool", {})],
    ids=["max", "max with Indices", "average"],
)
def test_extra_memory_is_at_most_four_times_input_and_output(function, more):
    x = np.random.default_rng(0).standard_normal((4, 64, 112, 112)).astype(np.float32)
    call = Case(function, (x,), {"kernel_shape": 3, "strides": 2, "pads": 1} | more)
    out = call.call(NUMPY)
    size = x.nbytes + sum(array.nbytes for array in out)
    assert peak_memory(lambda: call.call(NUMPY, out=out if len(out) > 1 else out[0])) <= 4 * size


def peak_memory(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_samples_of_many_channels_take_no_more_memory_than_those_of_a_few():
    peaks = []
    for channels in (4, 64):
        x = np.ones((1, channels, 4, 4), np.float32)
        whole = (np.array([[0, 0, 4, 4]], np.float32), np.array([0]))
        case = Case("roi_align", (x, *whole), {"sampling_ratio": 256})
        peaks.append(peak_memory(lambda: case.run(NUMPY)))  # noqa: B023 - called at once
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize("include_pad", [False, True])
def test_no_caller_can_change_what_averages_of_a_window_are_divided_by(include_pad):
    problem = resolve("average", (1, 1, 5, 6), "float32", kernel_shape=3, pads=1)
    counts = oracle._counts(problem.window, include_pad)
    assert counts is oracle._counts(problem.window, include_pad)
    assert not counts.flags.writeable


def test_an_empty_result_launches_nothing(monkeypatch):
    monkeypatch.setattr(oracle, "run", lambda *_: pytest.fail("launched"))
    assert gpupool.max_pool(np.zeros((0, 3, 4, 4)), 2).shape == (0, 3, 3, 3)
    with pytest.raises(pytest.fail.Exception, match="launched"):
        gpupool.max_pool(np.zeros((1, 3, 4, 4)), 2)


def test_column_major_numbers_of_many_outputs_are_right_where_an_axis_has_one() -> None:
    """``numpy.unravel_index`` is wrong there past 8192 of them."""
    x = np.zeros((1, 1, 9000, 1), np.float32)
    _, indices = gpupool.max_pool(x, 1, return_indices=True, storage_order=1)
    assert (indices.ravel() == np.arange(9000)).all()
    x = np.zeros((1, 9000, 2, 3), np.float32)
    _, indices = gpupool.max_pool(x, (1, 3), return_indices=True, storage_order=1)
    expected = np.arange(9000)[:, None] * 6 + np.arange(2)
    assert (indices.reshape(9000, 2) == expected).all()
