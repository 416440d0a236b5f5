"""The kernels under checks of races, memory and undefined behaviour; planted bugs are found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupool import planner
from gpupool.jit import kernel_folder
from gpupool.opset import OPERATORS
from gpupool.problem import Output, resolve
from tests import emulator
from tests.combinations import combinations
from tests.conftest import emulator_backend
from tests.covering import covered
from tests.cuda_on_cpu import (
    REVERSE,
    SENTINELS,
    KernelError,
    run_sanitized,
    shuffled,
    virtual_array,
)
from tests.test_kernels import (
    LARGE,
    SCHEDULES,
    WAYS,
    Configuration,
    compile_ahead,
    compiled_windows,
    distinct,
    indices_of,
    kernels_of,
    large,
)
from tests.test_oracle import assert_right
from tests.tolerance import bits

pytestmark = pytest.mark.no_cover


@pytest.fixture(autouse=True, scope="module")
def _emulator() -> None:
    emulator_backend()


# The kernels are clean


def subset(
    op: str, dtypes: tuple[str, ...], axes: tuple[int, ...], both: bool = True
) -> list[Configuration]:
    """Return calls of some combinations: one or both by every kernel, one with 64-bit indices."""
    chosen = []
    for made in combinations():
        if made.op == op and made.dtype in dtypes and made.axes in axes:
            calls = list(made.calls())
            overlapping, dilated = calls[len(calls) // 3], calls[-1]
            for number, case in enumerate((overlapping, dilated)):
                if both or covered(number, *made.numbers):
                    chosen += [Configuration(case, kernel) for kernel in kernels_of(op)]
            chosen.append(Configuration(calls[0], wide=True))
    return chosen


@pytest.mark.parametrize("op", OPERATORS)
def test_no_race_no_access_out_of_bounds_and_nothing_undefined(op):
    chosen = subset(op, ("float32", "float16", "uint8"), (1, 2, 3), both=False)
    compile_ahead(chosen, build="checked")
    for number, schedule in enumerate(SCHEDULES):
        for configuration in distinct(chosen[number :: len(SCHEDULES)]):
            results = configuration.run(build="checked", schedule=schedule)
            assert_right(configuration.case, results)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", LARGE)
def test_large_windows_are_clean(name, last):
    dtypes, indices = ("float32", "bfloat16"), indices_of(name)[-1:]
    chosen = compiled_windows(name, dtypes, indices, build="checked")[last]
    for configuration in chosen:
        configuration.run(build="checked", schedule=shuffled(3))


def sanitized() -> None:
    """Run one call of every operator by every kernel; this is what the child process executes."""
    chosen = [c for op in OPERATORS for c in subset(op, ("bfloat16",), (2,))]
    chosen = distinct([*chosen, Configuration(large("parts", "float16", False, True), "plane")])
    compile_ahead(chosen)
    for configuration in chosen:
        configuration.run(schedule=REVERSE)
    print(len(chosen), "clean")


def test_address_and_undefined_behaviour_sanitizers_find_nothing():
    done = run_sanitized("-c", "from tests.test_sanitizers import sanitized; sanitized()")
    assert done.returncode == 0, done.stderr
    assert "runtime error" not in done.stderr
    assert int(done.stdout.split()[0]) > 50


# Bad entries that the public functions refuse, but a plan on the GPU never looks at


BAD_POSITIONS = np.array([-1, -(2**63), 16, 2**31, 2**63 - 1, 3, 3, 15])


def unpool_bad_positions() -> np.ndarray[Any, Any]:
    problem = resolve("MaxUnpool", (1, 1, 8), "float32", kernel_shape=2, strides=2)
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
    y = np.empty((1, 1, 16), np.float32)
    emulator.run(problem, (x, BAD_POSITIONS.reshape(x.shape)), (y,))
    return y


def test_bad_positions_write_nothing_out_of_bounds():
    for schedule in SCHEDULES:
        with emulator.settings(build="checked", schedule=schedule):
            y = unpool_bad_positions()
        assert y[0, 0].tolist() == [0, 0, 0, 7, *[0] * 11, 8]


BAD_NUMBERS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 1e30, -1.0, 2.0, 7.5)


def bad_regions(dtype: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return RoIs with one bad number each, and images for RoiAlign, bad ones among them."""
    rois = np.tile([0.0, 1.0, 1.0, 3.0, 3.0], (len(BAD_NUMBERS) * 5, 1))
    rois[np.arange(len(rois)), np.arange(len(rois)) % 5] = np.repeat(BAD_NUMBERS, 5)
    with np.errstate(over="ignore"):
        return rois.astype(dtype), np.resize([0, 1, -1, 2, 2**40, -(2**63)], len(rois))


def pool_bad_regions(dtype: str) -> np.ndarray[Any, Any]:
    x, (rois, _) = np.ones((2, 3, 5, 6), dtype), bad_regions(dtype)
    problem = resolve("MaxRoiPool", x.shape, dtype, pooled_shape=2, num_rois=len(rois))
    y = np.full(problem.outputs[0].shape, np.nan, dtype)
    emulator.run(problem, (x, rois), (y,))
    return y


def align_bad_regions(dtype: str, mode: str) -> np.ndarray[Any, Any]:
    x, (rois, images) = np.ones((2, 3, 5, 6), dtype), bad_regions(dtype)
    problem = resolve(
        "RoiAlign", x.shape, dtype, num_rois=len(rois), mode=mode, sampling_ratio=2,
        output_height=2, output_width=2,
    )  # fmt: skip
    y = np.full(problem.outputs[0].shape, np.nan, dtype)
    emulator.run(problem, (x, rois[:, 1:].copy(), images), (y,))
    return y


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_bad_regions_read_nothing_out_of_bounds(dtype):
    with emulator.settings(build="checked"):
        assert np.isin(pool_bad_regions(dtype), (0, 1)).all()
        _, images = bad_regions(dtype)
        for mode in ("avg", "max"):
            y = align_bad_regions(dtype, mode)
            assert not np.isnan(y).any()
            assert (y[(images < 0) | (images > 1)] == 0).all()


@pytest.mark.parametrize("corners", [(-2147483520, 0, 2147483520, 1), (0, 0, 4097, 4097)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_a_region_of_too_many_samples_is_skipped(corners, mode):
    x, rois = np.ones((1, 1, 4, 4), np.float32), np.array([corners, (0, 0, 3, 3)], np.float32)
    problem = resolve("RoiAlign", x.shape, x.dtype, num_rois=2, mode=mode)
    y = np.full(problem.outputs[0].shape, np.nan, np.float32)
    with emulator.settings(build="checked"):
        emulator.run(problem, (x, rois, np.zeros(2, np.int64)), (y,))
    assert y.ravel().tolist() == [0, 1]


@pytest.mark.parametrize("image", [0.5, 1.25, 1.9999, -1e-60])
def test_a_region_of_no_whole_image_is_skipped(image):
    x = np.array([1.0, 2.0]).reshape(2, 1, 1, 1)
    problem = resolve("MaxRoiPool", x.shape, x.dtype, pooled_shape=1, num_rois=1)
    y = np.full((1, 1, 1, 1), np.nan)
    emulator.run(problem, (x, np.array([[image, 0, 0, 0, 0]])), (y,))
    assert y.item() == 0


# Bugs planted in copies of our kernels


@dataclass(frozen=True)
class Planted:
    """An edit of one kernel file, a call that it spoils, and what the checked build says of it.

    No message: nothing is undefined, and only the result shows the bug.
    """

    file: str
    old: str
    new: str
    message: str | None
    call: Callable[[], Any]
    kernel: str = "auto"


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def pool(*shape: int, **arguments: Any) -> Callable[[], Any]:
    return lambda: emulator.max_pool(floats(*shape), **{"kernel_shape": 3} | arguments)


def equal_maxima(dtype: Any = np.float32) -> Any:
    return emulator.max_pool(np.zeros((1, 1, 9, 9), dtype), 3, return_indices=True)


def means_of_small_planes() -> Any:
    return emulator.average_pool(floats(3, 16, 7, 7), 3, pads=1)


def means_of_great_and_small() -> Any:
    """Of numbers whose sums overflow, beside some that no division may make smaller."""
    x = np.tile([np.finfo(np.float64).max] * 4 + [5e-324] * 4, (1, 43, 7, 1))
    return emulator.average_pool(x, 3)


def bytes_of_small_planes() -> Any:
    return emulator.max_pool(floats(1, 33, 7, 7).astype(np.int8), 3, pads=1)


def bytes_of_an_odd_plane() -> Any:
    return emulator.max_pool(floats(1, 33, 7, 7).astype(np.uint8), 3, pads=1)


def bytes_of_longer_rows() -> Any:
    return emulator.max_pool(floats(1, 33, 5, 13).astype(np.uint8), 3, pads=1)


def bytes_of_odd_rows() -> Any:
    return emulator.max_pool(floats(1, 33, 7, 8).astype(np.int8), 3, pads=1)


def parts_of_small_planes() -> Any:
    return emulator.average_pool(floats(3, 33, 5, 15, dtype=np.float16), 3, pads=1)


def wide_maxima_of_doubles() -> Any:
    x = floats(1, 1, 3, 70, dtype=np.float64)
    return emulator.max_pool(x, (3, 40), return_indices=True)


def lowest_maxima_of_dilated_windows() -> Any:
    x = np.full((1, 1, 9, 9), -np.inf, np.float32)
    return emulator.max_pool(x, 3, dilations=2, pads=1, return_indices=True)


def maxima_in_words() -> Any:
    return emulator.max_pool(floats(1, 3, 9, 13, dtype=np.float16), 3, pads=1)


def sums_in_words() -> Any:
    with emulator.constants(BLOCKS=1):
        return emulator.average_pool(np.ones((1, 3, 9, 24), np.uint8), (5, 7), pads=(2, 3, 4, 6))


def maxima_of_both_halves() -> Any:
    with emulator.constants(BLOCKS=1):
        return emulator.max_pool(floats(1, 1, 27, 24, dtype=np.float16), (5, 7), pads=(2, 3, 4, 6))


def great_average() -> Any:
    x = floats(1, 1, 9, 40)
    x[..., 20:], x[..., :4] = 3e38, 1e-30
    return emulator.average_pool(x, 3)


def global_average() -> Any:
    return emulator.global_average_pool(floats(1, 3, 30, 31))


def small_planes() -> Any:
    return emulator.global_average_pool(floats(3, 43, 7, 7))


def global_indices() -> Any:
    return emulator.max_pool(floats(1, 3, 30, 31), (30, 31), return_indices=True)


def global_last() -> Any:
    return emulator.global_max_pool(floats(1, 30, 31, 3), channels_last=True)


def images_last() -> Any:
    return emulator.global_average_pool(floats(1, 33, 31, 3), channels_last=True)


def unpool() -> Any:
    x = floats(2, 150)[:, None]
    indices = np.arange(300).reshape(x.shape) // 2 * 2
    return emulator.max_unpool(x, indices, 1)


def bad_roi() -> Any:
    problem = resolve("RoiAlign", (1, 1, 4, 4), "float32", num_rois=1, sampling_ratio=1)
    y = np.empty((1, 1, 1, 1), np.float32)
    rois = np.array([[0, 0, 2, 2]], np.float32)
    emulator.run(problem, (floats(1, 1, 4, 4), rois, np.array([1])), (y,))
    return y


def roi_pool() -> Any:
    return emulator.max_roi_pool(floats(1, 1, 4, 4), np.array([[0, 1, 1, 9, 9]], np.float32), 2)


OUTSIDE = "outside every array"
RACE = "race on "

BUGS = {
    "threads past the outputs": Planted(
        "window.cu", "    if (n >= w.outputs) return;\n", "", OUTSIDE, pool(1, 1, 9, 9), "window"
    ),
    "taps in the begin padding": Planted(
        "window.cuh", "Index first = start < low ? divide_up(low - start, dilation) : 0;",
        "Index first = 0;", OUTSIDE, pool(1, 1, 9, 9, pads=1), "window",
    ),
    "taps in the end padding": Planted(
        "window.cuh", "Index end = start < high ? divide_up(high - start, dilation) : 0;",
        "Index end = kernel;", OUTSIDE, pool(1, 1, 9, 9, pads=1), "window",
    ),
    "taps past the kernel": Planted(
        "window.cuh", "    if (end > kernel) end = kernel;\n", "", None, pool(1, 1, 9, 9), "window"
    ),
    "a write dropped": Planted(
        "window.cuh", "if (writes) y[n] = rounded;", "if (writes && n != 5) y[n] = rounded;", None,
        pool(1, 1, 9, 9), "window",
    ),
    "an Index dropped": Planted(
        "window.cuh", "    indices[n] =", "    if (n % 2) indices[n] =", None,
        pool(1, 1, 9, 9, return_indices=True), "window",
    ),
    "the specialised tier never at the border": Planted(
        "window.cuh", "whole &= taps.count == kernel(a);", "", OUTSIDE,
        pool(1, 1, 9, 9, pads=1), "specialised",
    ),
    "no barrier before the partial results": Planted(
        "plane.cuh", "        seats[own] = accumulator;\n        __syncthreads();\n",
        "        seats[own] = accumulator;\n", RACE + "shared memory|which nobody wrote",
        global_average, "plane",
    ),
    "no barrier in the tree": Planted(
        "plane.cuh", "seats[own + half * Outputs]);\n            __syncthreads();\n",
        "seats[own + half * Outputs]);\n", RACE + "shared memory", global_average, "plane",
    ),
    "every worker writes": Planted(
        "plane.cu",
        "store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);",
        "store(Op(w.norm), place, traverse, n, active, x, y, indices);",
        RACE + "global memory", global_indices, "plane",
    ),
    "planes past the outputs": Planted(
        "plane.cu", "bool active = n < w.outputs;", "bool active = true;", OUTSIDE, global_last,
        "plane",
    ),
    "planes past the outputs, staged": Planted(
        "plane_staged.cu", "least(static_cast<int>(w.outputs) - first, Outputs)", "Outputs",
        OUTSIDE, small_planes, "plane_staged",
    ),
    "every worker writes, staged": Planted(
        "plane_staged.cu", "active && Block::worker() == 0", "active", RACE + "global memory",
        small_planes, "plane_staged",
    ),
    "no barrier before columns meet": Planted(
        "channels.cu", "seats[e * threads + own] = a[e];\n        __syncthreads();\n",
        "seats[e * threads + own] = a[e];\n", RACE + "shared memory|which nobody wrote",
        images_last, "channels",
    ),
    "no barrier in the tree of columns": Planted(
        "channels.cu", "            }\n            __syncthreads();\n", "            }\n",
        RACE + "shared memory", images_last, "channels",
    ),
    "rows past the image": Planted(
        "channels.cu", "c.rows + (column < c.rest)", "c.rows + 1", OUTSIDE, images_last, "channels",
    ),
    "elements past the image": Planted(
        "channels.cu", "e < c.tail", "e < width", OUTSIDE, images_last, "channels",
    ),
    "elements behind the last vector left out": Planted(
        "channels.cu", "if (!behind) return;", "return;", None, images_last, "channels",
    ),
    "outputs of no channel": Planted(
        "channels.cu", "return threadIdx.x < outputs;", "return true;", OUTSIDE,
        images_last, "channels",
    ),
    "no barrier behind the planes of a block": Planted(
        "staged.cuh", "    __syncthreads();\n", "", RACE + "shared memory|which nobody wrote",
        pool(3, 16, 7, 7, pads=1), "staged rows",
    ),
    "no barrier before the results of a block": Planted(
        "staged.cuh", "    __syncthreads();\n#pragma unroll\n    for (int v = 0; v < Each",
        "#pragma unroll\n    for (int v = 0; v < Each", RACE + "shared memory|which nobody wrote",
        pool(4, 16, 7, 7, pads=1), "rows in shared memory",
    ),
    "no barrier before results that begin anywhere": Planted(
        "staged.cuh", "    __syncthreads();\n#pragma unroll\n    for (int v = 0; v <= Each",
        "#pragma unroll\n    for (int v = 0; v <= Each", RACE + "shared memory|which nobody wrote",
        parts_of_small_planes, "parts anywhere in vectors",
    ),
    "results of planes past the last one": Planted(
        "rows_staged.cu", "here * outputs + front", "Planes * outputs + front",
        OUTSIDE + "|which nobody wrote", pool(3, 15, 7, 7, pads=1), "rows in shared memory",
    ),
    "results of the block in front": Planted(
        "staged.cuh", "front && single >= skew", "front", RACE + "global|which nobody wrote",
        parts_of_small_planes, "parts anywhere in vectors",
    ),
    "vectors past the last plane": Planted(
        "rows_staged.cu", "least(rounded_up<width>(here * size + skewed), there)",
        "rounded_up<width>(here * size + skewed)", OUTSIDE, parts_of_small_planes,
        "parts anywhere in vectors",
    ),
    "planes not where their vectors begin": Planted(
        "rows_staged.cu", "from(planes + skewed)", "from(planes)", None, parts_of_small_planes,
        "parts anywhere in vectors",
    ),
    "nothing in front of the parts of a row": Planted(
        "rows_staged.cu", "clear_margins<Threads, margin>(planes, elements);", ";",
        "which nobody wrote", parts_of_small_planes, "parts anywhere in vectors",
    ),
    "pixels of the rows beside parts of one": Planted(
        "rows.cuh", "!within(first_pixel() + pixel, size())", "false", None, parts_of_small_planes,
        "parts anywhere in vectors",
    ),
    "words behind a row": Planted(
        "staged.cuh", "if (i == words) at.address = least(at.address, behind);", "",
        RACE + "shared memory|which nobody wrote", bytes_of_small_planes, "rows in shared memory",
    ),
    "rows not shifted to where they belong": Planted(
        "staged.cuh", "0x3210 + 0x1111 * (from.address & 3)", "0x3210", None,
        bytes_of_small_planes, "rows in shared memory",
    ),
    "a plane's last bytes alone in a word": Planted(
        "staged.cuh", "else if (single < in_words<T>(elements)) to[single] = T{};", "",
        "which nobody wrote", bytes_of_small_planes, "rows in shared memory",
    ),
    "planes past the last one": Planted(
        "rows_staged.cu", "least<int>(w.channels.divisor - first, Planes)", "Planes",
        OUTSIDE + "|which nobody wrote", pool(3, 15, 7, 7, pads=1), "rows in shared memory",
    ),
    "no barrier between columns and rows of small planes": Planted(
        "separable_planes.cu", "    __syncthreads();\n    // Each thread", "    // Each thread",
        RACE + "shared memory|which nobody wrote", pool(3, 16, 7, 7, pads=1), "separable_planes",
    ),
    "results over rows that are still read": Planted(
        "separable_planes.cu", "    __syncthreads();\n    const int one", "    const int one",
        RACE + "shared memory", pool(3, 16, 7, 7), "separable_planes",
    ),
    "columns of planes past the last one": Planted(
        "separable_planes.cu", "i < layers * columns", "i < Planes * columns",
        OUTSIDE, pool(1, 43, 7, 7, pads=1), "separable_planes",
    ),
    "rows of planes past the last one": Planted(
        "separable_planes.cu", "    if (i < busy) {\n        auto begin",
        "    {\n        auto begin", "which nobody wrote|" + OUTSIDE,
        pool(1, 43, 7, 7, pads=1), "separable_planes",
    ),
    "planes past the last one, by columns": Planted(
        "separable_planes.cu", "least<int>(w.channels.divisor - first, Planes)", "Planes",
        OUTSIDE + "|which nobody wrote", pool(1, 43, 7, 7, pads=1), "separable_planes",
    ),
    "a row below the last one": Planted(
        "separable_planes.cu", "i + (i + busy < lines ? busy : 0)", "i + busy",
        "which nobody wrote|" + OUTSIDE, bytes_of_odd_rows, "separable_planes",
    ),
    "a column of the plane behind the last one": Planted(
        "separable_planes.cu", "plane + 1 < here ? size : 0", "size", OUTSIDE,
        bytes_of_an_odd_plane, "separable_planes",
    ),
    "not the tap that windows have in common": Planted(
        "separable_planes.cu", "const int at = (i + Pad) % step",
        "const int at = (i + Pad + 1) % step", None, pool(3, 16, 7, 7), "separable_planes",
    ),
    "results where those of another block end": Planted(
        "separable_planes.cu", "static_cast<unsigned>(first) * results", "first * 0",
        "misaligned", pool(1, 5, 7, 79, strides=2), "separable_planes",
    ),
    "results not where they are spread": Planted(
        "separable_planes.cu", "if (Spread) one", "if (false) one", None,
        pool(1, 48, 7, 8, pads=1), "separable_planes",
    ),
    "words of the row behind": Planted(
        "staged.cuh", "i < words - 1 || front <= Many % width", "true",
        RACE + "shared memory|" + OUTSIDE, bytes_of_longer_rows, "separable_planes",
    ),
    "results in front of the first whole word": Planted(
        "staged.cuh", "if (i < front) to[i]", "if (false) to[i]", None,
        bytes_of_longer_rows, "separable_planes",
    ),
    "results behind the last whole word": Planted(
        "staged.cuh", "if (i < ((Many - front) & (width - 1))) to", "if (false) to", None,
        bytes_of_longer_rows, "separable_planes",
    ),
    "words not shifted to where rows begin": Planted(
        "staged.cuh", "0x3210 + 0x1111 * (front * sizeof(T))", "0x3210", None,
        bytes_of_longer_rows, "separable_planes",
    ),
    "averages that nobody looks at again": Planted(
        "separable_planes.cu", "again = doubtful(of.op, windows)", "again = false", None,
        means_of_great_and_small, "separable_planes",
    ),
    "averages looked at again before they lie in memory": Planted(
        "separable_planes.cu", "        __syncthreads();\n        const T", "        const T",
        RACE + "global", means_of_great_and_small, "separable_planes",
    ),
    "certain averages made again": Planted(
        "separable_planes.cu", "if (!finite(value(results[c]))) results", "results", None,
        means_of_great_and_small, "separable_planes",
    ),
    "windows over an edge divided by all taps": Planted(
        "separable_planes.cu", "inside ? K : counted(along, output)", "K", None,
        means_of_small_planes, "separable_planes",
    ),
    "nearest rows past a plane in shared memory": Planted(
        "rows.cuh", "nearest || (Staged && steps && !Inside)", "nearest",
        RACE + "shared memory|which nobody wrote|" + OUTSIDE,
        means_of_small_planes, "staged rows",
    ),
    "pixels past the row": Planted(
        "rows.cuh", "within(position, size())", "position >= 0", OUTSIDE,
        pool(1, 1, 9, 41, pads=1), "rows",
    ),
    "halos past the row": Planted(
        "rows.cuh", "most(least(origin() + pixel, size() - many), 0) - origin()", "pixel", OUTSIDE,
        pool(1, 1, 9, 40, pads=1), "rows",
    ),
    "pixels apart past the row": Planted(
        "rows.cuh", "clamps ? nearest_pixel(i, 1) : i", "i", OUTSIDE,
        pool(1, 9, 10, 8, pads=1, channels_last=True, return_indices=True), "rows",
    ),
    "rows past the plane": Planted(
        "rows.cuh", "within(row, outer().size)", "row >= 0", OUTSIDE,
        pool(1, 1, 9, 9, dilations=2, pads=2, return_indices=True), "rows",
    ),
    "nearest rows past the plane": Planted(
        "rows.cuh", "most(least(row, outer().size - 1), 0)", "most(row, 0)", OUTSIDE,
        pool(1, 1, 9, 9, pads=1), "rows",
    ),
    "the nearest row for one that a dilated window reads in the padding": Planted(
        "rows.cuh", "Op::repeats && DR == 1;", "Op::repeats;", None,
        pool(1, 1, 9, 9, dilations=2, pads=2), "rows",
    ),
    "no tap of a dilated window as its first valid one": Planted(
        "rows.cuh", "unsigned(tap + beyond) % apart", "0", None,
        lowest_maxima_of_dilated_windows, "rows",
    ),
    "a later one of equal taps down the columns": Planted(
        "window.cuh", "op.merge(from[window * Stride], up_to[window * Stride])",
        "op.merge(up_to[window * Stride], from[window * Stride])", None,
        equal_maxima, "large tiles",
    ),
    "columns of strips past the row": Planted(
        "strips.cu", ", there = taken & within(input, inner().size)", ", there = taken", OUTSIDE,
        pool(1, 1, 9, 16, pads=1), "strips",
    ),
    "pixels of strips past the row": Planted(
        "strips.cu", ", there = taken & within(input, inner().size)", ", there = taken", OUTSIDE,
        pool(1, 9, 10, 8, pads=1, channels_last=True), "strips",
    ),
    "results of strips at pixels past the row": Planted(
        "strips.cu", "least(most, Taken)", "Taken", RACE + "global memory",
        pool(1, 9, 10, 8, channels_last=True), "strips",
    ),
    "results of strips at every pixel": Planted(
        "strips.cu", " & (column * Stride == output)", "", RACE + "global memory",
        pool(1, 9, 11, 8, strides=2, channels_last=True), "strips",
    ),
    "rows of strips past the plane": Planted(
        "strips.cu", "most(least(row, outer().size - 1), 0)", "most(row, 0)", OUTSIDE,
        pool(1, 1, 9, 16, pads=1), "strips",
    ),
    "strips of planes that are not there": Planted(
        "strips.cu", "taken = before < s.planes", "taken = true", OUTSIDE,
        pool(1, 1, 9, 16, pads=1), "strips",
    ),
    "strips that overlap": Planted(
        "strips.cu", "taken & (lane / Abreast < s.stored)", "taken", RACE + "global memory",
        pool(1, 40, 9, 16, pads=1), "strips",
    ),
    "lanes abreast that have the same channels": Planted(
        "strips.cu", "(group * Abreast + lane % Abreast)", "group * Abreast",
        RACE + "global memory", pool(1, 9, 8, 32, pads=1, channels_last=True), "strips",
    ),
    "lanes abreast that receive each other's windows": Planted(
        "strips.cu", "value, behind * Abreast)", "value, behind)", None,
        pool(1, 9, 8, 32, pads=1, channels_last=True), "strips",
    ),
    "results of strips past the row": Planted(
        "strips.cu", "least(most, Taken)", "Taken", RACE + "global memory",
        pool(1, 1, 9, 16), "strips",
    ),
    "rows past the last of a strip": Planted(
        "strips.cu", "least(s.height, rows - top)", "s.height", OUTSIDE,
        pool(1, 1, 9, 16), "strips",
    ),
    "a run of two warps": Planted(
        "strips.cu", "int(threadIdx.x / warp) * strips.run", "0", RACE + "shared memory",
        pool(1, 40, 9, 16, pads=1), "strips",
    ),
    "half a window left out": Planted(
        "strips.cu", "if (Reread) following = a;", "", None, pool(1, 1, 9, 16),
        "strips of half windows",
    ),
    "results of every row": Planted(
        "strips.cu", "Stride == 1 || wait == 0", "true", RACE + "global memory",
        pool(1, 1, 9, 16, strides=2), "strips in parts",
    ),
    "rows of strips past the plane of sums": Planted(
        "strips.cu", "Op::repeats || within(row, outer().size)", "true", OUTSIDE, great_average,
        "strips",
    ),
    "a row of sums that is in both halves": Planted(
        "strips.cu", "put(i--, a);", "put(i, a);", None, great_average, "strips of half windows",
    ),
    "sums of strips that are not made again": Planted(
        "strips.cu", "pass < merged.passes", "pass < 1", None, great_average, "strips",
    ),
    "a strip made again below the first one": Planted(
        "strips.cu", "            own.to = to;\n", "", RACE + "global memory|outside",
        great_average, "strips",
    ),
    "sums of strips made again past the row": Planted(
        "strips.cu", "v < own.results; ++v", "v < Many; ++v", RACE + "global memory", great_average,
        "strips",
    ),
    "no barrier between columns and rows": Planted(
        "separable.cuh", "(x);\n        __syncthreads();", "(x);",
        RACE + "shared memory|which nobody wrote", pool(1, 1, 9, 9), "separable",
    ),
    "no barrier between the lanes of a row": Planted(
        "separable.cuh", "            __syncwarp();\n", "", RACE + "shared memory",
        pool(1, 1, 9, 40, kernel_shape=(3, 13)), "separable",
    ),
    "no barrier between threads that share rows": Planted(
        "separable.cuh", "            __syncthreads();\n            if", "            if",
        RACE + "shared memory", pool(1, 1, 9, 40), "separable",
    ),
    "a row of padding that is read": Planted(
        "separable.cu", "row = least(most(row, column.begin), column.end - 1);", ";", OUTSIDE,
        pool(1, 1, 9, 40, pads=1, return_indices=True), "separable",
    ),
    "windows of a run past the tile": Planted(
        "separable.cu", "if (run + i < tiles.rows) to", "to", OUTSIDE + "|shared memory byte",
        pool(1, 1, 2, 40, pads=1, return_indices=True), "separable",
    ),
    "rows in common past the run": Planted(
        "separable.cu", "least(i + t, end - 1)", "i + t", OUTSIDE,
        pool(1, 1, 13, 16, kernel_shape=13, return_indices=True), "separable",
    ),
    "no barrier between rows and stores": Planted(
        "separable.cuh", "reduce_rows();\n            __syncthreads();", "reduce_rows();",
        RACE + "shared memory", pool(1, 1, 9, 40), "separable",
    ),
    "sums that are not made again": Planted(
        "separable.cuh", "pass < tile.merged.passes", "pass < 1", None, great_average, "separable",
    ),
    "sums made again by some threads": Planted(
        "separable.cuh", "__syncthreads_or(tile.merged.wanted(pass))", "tile.merged.wanted(pass)",
        "barrier", great_average, "separable",
    ),
    "sums made again that take all places": Planted(
        "merged.cuh", "return !finite(value(result));", "return true;", None, great_average,
        "separable",
    ),
    "columns past the row": Planted(
        "separable.cu", " && within(position, inner().size)", "", OUTSIDE,
        pool(1, 1, 9, 9, pads=1), "separable",
    ),
    "no barrier between columns and rows of vectors": Planted(
        "separable.cuh", "(x);\n        __syncthreads();", "(x);",
        RACE + "shared memory|which nobody wrote", pool(1, 1, 9, 12, pads=1), "vectors",
    ),
    "no barrier between rows and stores of vectors": Planted(
        "separable.cuh", "reduce_rows();\n            __syncthreads();", "reduce_rows();",
        RACE + "shared memory", pool(1, 1, 9, 40, pads=1), "vectors",
    ),
    "vectors past the row": Planted(
        "separable_vectors.cu", " & within(position, inner().size)", "", OUTSIDE,
        pool(1, 1, 9, 12, pads=1), "vectors",
    ),
    "rows of vectors past the plane": Planted(
        "separable_vectors.cu", "return within(row, rows);", "return row < rows;", OUTSIDE,
        pool(1, 1, 9, 12, pads=1), "vectors",
    ),
    "lanes that take rows past the tile": Planted(
        "separable.cuh", "(together > 1 ? least(mine, last) : row)", "mine",
        "read of shared memory byte 11520 of 11520",
        pool(1, 1, 44, 24, kernel_shape=(5, 13), pads=(2, 6, 2, 6)), "vectors",
    ),
    "results past the tile": Planted(
        "separable.cuh", "(c < tiles.width) & (left", "(left", RACE + "global memory",
        pool(1, 1, 9, 800, kernel_shape=5, strides=(1, 3), pads=2), "vectors",
    ),
    "results at every column": Planted(
        "separable.cu", "if (stored_column().place > 0) return 0;", "", RACE + "global memory",
        pool(1, 1, 9, 40, strides=2), "separable",
    ),
    "the last of equal maxima": Planted(
        "ops.cuh", "return most(a, b);", "return b >> half < a >> half ? a : b;", None,
        equal_maxima, "separable",
    ),
    "the last of equal maxima of doubles": Planted(
        "element.cuh", "below_a < below_b", "below_a > below_b", None,
        partial(equal_maxima, np.float64), "separable",
    ),
    "half of a maximum of another lane": Planted(
        "separable.cuh", "(own.in_front(), behind)", "(own.in_front(), behind + 1)", None,
        wide_maxima_of_doubles, "separable",
    ),
    "the places of maxima below the padding": Planted(
        "separable.cu", "distance(0, top - outer().pad_begin,", "distance(0, top,", OUTSIDE,
        pool(1, 1, 9, 9, pads=1, return_indices=True), "separable",
    ),
    "indices that begin in each plane": Planted(
        "separable.cu", "number + found.number", "found.number", None,
        pool(1, 2, 9, 9, return_indices=True), "separable",
    ),
    "slices past the volume": Planted(
        "separable.cuh", "valid(axis, at.slice), axis.step}", "axis.kernel, axis.step}", OUTSIDE,
        pool(1, 1, 5, 9, 12, pads=1), "vectors",
    ),
    "taps past an odd row": Planted(
        "separable_vectors.cu", "there && (Load == Vector || v < remaining)", "there", OUTSIDE,
        pool(1, 1, 9, 13, pads=1), "vectors",
    ),
    "results past an odd row": Planted(
        "element.cuh", "if (v < many) *reinterpret_cast", "*reinterpret_cast",
        RACE + "global memory", pool(1, 1, 9, 13, pads=1), "vectors",
    ),
    "halves of words past an odd row": Planted(
        "element.cuh", "if (v >= many) continue;", "", RACE + "global memory",
        maxima_in_words, "vectors",
    ),
    "sums of a plane that is not there": Planted(
        "separable_vectors.cu", "if (at.row >= twin_end) continue;", "if (!Op::pairs) continue;",
        OUTSIDE, sums_in_words, "vectors",
    ),
    "results below the lower half of a plane": Planted(
        "separable_vectors.cu", "if (at.row < twin_end) store_halves", "store_halves",
        OUTSIDE, maxima_of_both_halves, "vectors",
    ),
    "results of the lower half by the upper one": Planted(
        "separable_vectors.cu", "rows_of(seat.p, tiles.covered)",
        "rows_of(seat.p, Base::dense(outer()))", RACE + "global memory", maxima_of_both_halves,
        "vectors in parts",
    ),
    "rows above the upper half of a plane": Planted(
        "separable_vectors.cu", "offset, columns.has(row), ", "offset, true, ", OUTSIDE,
        maxima_of_both_halves, "vectors",
    ),
    "results again past an odd row": Planted(
        "separable_vectors.cu", "v < at.many; ++v", "v < Vector; ++v", RACE + "global memory",
        great_average, "vectors",
    ),
    "a maximum that is not atomic": Planted(
        "unpool.cu", "atomicMax(claims + to, static_cast<Index>(i));",
        "if (claims[to] < i) claims[to] = static_cast<Index>(i);", RACE + "global memory", unpool,
    ),
    "every claimant writes": Planted(
        "unpool.cu", " && claims[to] == i) y[to]", ") y[to]", RACE + "global memory", unpool
    ),
    "positions that nobody checks": Planted(
        "unpool.cu", "if (to >= 0 && to < outputs) atomicMax", "atomicMax", OUTSIDE,
        unpool_bad_positions,
    ),
    "images that nobody checks": Planted(
        "roi.cu", "bool usable = images[bin.roi] >= 0 && images[bin.roi] < p.batch;",
        "bool usable = true;", OUTSIDE, bad_roi,
    ),
    "bins past the image": Planted(
        "roi.cu", "return position < 0 ? 0 : position > size ? size : position;",
        "return position < 0 ? 0 : position;", OUTSIDE, roi_pool,
    ),
}  # fmt: skip


def planted_folder(bug: Planted, folder: Path) -> Path:
    shutil.copytree(kernel_folder(), folder, dirs_exist_ok=True)
    text = (folder / bug.file).read_text()
    assert bug.old in text, f"{bug.file} has changed: plant this bug anew"
    (folder / bug.file).write_text(text.replace(bug.old, bug.new))
    return folder


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name, tmp_path):
    bug = BUGS[name]
    folder = planted_folder(bug, tmp_path / "kernels")
    right = as_tuple(settled(bug.call, kernel=bug.kernel, build="checked"))
    if bug.message:
        with pytest.raises(KernelError, match=bug.message):
            settled(bug.call, kernel=bug.kernel, build="checked", folder=folder)
        return
    wrong = [
        as_tuple(settled(bug.call, kernel=bug.kernel, folder=folder, sentinel=sentinel))
        for sentinel in SENTINELS
    ]
    assert any(
        not np.array_equal(bits(one), bits(other))
        for results in wrong
        for one, other in zip(results, right, strict=True)
    )


@pytest.mark.parametrize("kernel", ["plane", "channels"])
def test_threads_without_an_output_ask_for_no_second_look(kernel, tmp_path):
    x = floats(1, 30, 31, 3)
    bug = Planted(
        "ops.cuh",
        "const WidePowers<P> wide(norm);",
        "assert(false); const WidePowers<P> wide(norm);",
        None,
        pool(),
    )
    folder = planted_folder(bug, tmp_path / "kernels")

    def norm(x: np.ndarray[Any, Any]) -> Any:
        return emulator.global_lp_pool(x, channels_last=True)

    settled(lambda: norm(x), kernel, folder=folder)
    with pytest.raises(KernelError, match="assert"):
        settled(lambda: norm(np.zeros_like(x)), kernel, folder=folder)


def test_an_access_astray_hits_no_output():
    with emulator.settings(build="checked"):
        outputs = [emulator.empty(Output("Y", (3,), "float32"), floats(3)) for _ in range(500)]
    bounds = sorted(np.lib.array_utils.byte_bounds(y) for y in outputs)
    gaps = [after[0] - before[1] for before, after in pairwise(bounds)]
    assert min(gaps) >= emulator.GUARD
    assert all(y.flags.aligned and (y.view(np.uint32) == 0xA5A5A5A5).all() for y in outputs)


def settled(call: Callable[[], Any], kernel: str, **settings: Any) -> Any:
    kernel, constants = WAYS[kernel]
    with emulator.constants(**constants), emulator.settings(kernel=kernel, **settings):
        return call()


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_a_32_bit_offset_in_a_large_array_is_found(tmp_path):
    bug = Planted(
        "window.cuh",
        "base = n * w.batch_step + channel * w.channel_step;",
        "base = n * Index(w.batch_step) + channel * Index(w.channel_step);",
        "overflow|outside every array",
        far_apart,
    )
    assert far_apart()[1] == 7, "two planes more than 2**31 bytes apart, indexed by 32 bits within"
    folder = planted_folder(bug, tmp_path / "kernels")
    with pytest.raises(KernelError, match=bug.message or ""):
        settled(bug.call, build="checked", folder=folder, kernel="window")


def far_apart() -> Any:
    memory = virtual_array((2**31 + 100,), np.int8)
    memory[-1] = 7
    x = np.lib.stride_tricks.as_strided(memory, (2, 1, 3), (2**31 + 97, 3, 1))
    problem = resolve("max", x.shape, "int8", kernel_shape=3)
    assert ", int," in repr(planner.plan(problem, x.strides, 1, "window"))
    return emulator.max_pool(x, 3)[:, 0, 0]
