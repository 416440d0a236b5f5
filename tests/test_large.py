"""More than 2**31 elements: 64-bit indices, on memory that is touched only where it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpupool
from gpupool import launch, planner, preprocessing
from gpupool.problem import Problem, laid_out, resolve
from tests import emulator
from tests.conftest import emulator_backend
from tests.cuda_on_cpu import virtual_array

FAR = 2**31


@pytest.fixture(autouse=True, scope="module")
def _emulator() -> None:
    emulator_backend()


def run_blocks(
    problem: Problem, kernel: str, blocks: dict[str, list[int]], *operands: np.ndarray[Any, Any]
) -> planner.Plan:
    """Launch a plan, of each kernel named in ``blocks`` only these blocks, of the others all."""

    def find(chosen: planner.Launch) -> Any:
        function = emulator.find(chosen)
        function.blocks = blocks.get(chosen.kernel)
        return function

    chosen = planner.plan(problem, None, 16, kernel)
    launch.Bound(chosen, VirtualMemory, find)(*operands)
    return chosen


class VirtualMemory:
    """What launch needs of NumPy, with a workspace that costs nothing."""

    @staticmethod
    def empty(size: int, dtype: str) -> np.ndarray[Any, Any]:
        return virtual_array((size,), dtype)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_window_with_positions_beyond_32_bits(last):
    size = FAR + 4096
    x = virtual_array((1, size, 1) if last else (1, 1, size), np.int8)
    flat = x.reshape(-1)
    flat[FAR + 1000], flat[5] = 9, 3
    arguments = {"kernel_shape": 3, "pads": 1, "channels_last": last}
    problem = resolve("max", x.shape, "int8", return_indices=True, **arguments)
    y = virtual_array(x.shape, np.int8)
    indices = virtual_array(x.shape, np.int64)
    far = (FAR + 1000) // planner.THREADS
    plan = run_blocks(problem, "window", {"window": [0, far]}, x, y, indices)
    assert "long long" in repr(plan)
    assert y.reshape(-1)[[4, 5, 6, 7]].tolist() == [3, 3, 3, 0]
    assert indices.reshape(-1)[[0, 4, 6]].tolist() == [0, 5, 5]
    near = slice(FAR + 998, FAR + 1003)
    assert y.reshape(-1)[near].tolist() == [0, 9, 9, 9, 0]
    assert indices.reshape(-1)[near].tolist() == [FAR + 997, *[FAR + 1000] * 3, FAR + 1001]


def test_window_over_planes_beyond_32_bits():
    planes, size = 2**15 + 8, 2**16
    x = virtual_array((1, planes, 256, 256), np.int8)
    x[0, -1, 7, 9] = 5
    problem = resolve("max", x.shape, "int8", kernel_shape=2, strides=2, return_indices=True)
    y = virtual_array((1, planes, 128, 128), np.int8)
    indices = virtual_array(y.shape, np.int64)
    last = planes * 128 * 128 // planner.THREADS
    run_blocks(problem, "window", {"window": list(range(last - 64, last))}, x, y, indices)
    assert y[0, -1, 3].tolist() == [0, 0, 0, 0, 5, *[0] * 123]
    assert indices[0, -1, 3, 4] == (planes - 1) * size + 7 * 256 + 9 > FAR


def test_plane_of_more_than_32_bits_in_parts():
    x = virtual_array((1, 1, 2**16, 2**15 + 64), np.int8)
    x[0, 0, -1, -3] = 4
    problem = resolve("max", x.shape, "int8", kernel_shape=x.shape[2:], return_indices=True)
    y, indices = virtual_array((1, 1, 1, 1), np.int8), virtual_array((1, 1, 1, 1), np.int64)
    parts = planner.plan(problem, None, 16, "plane").launches[0].grid[1]
    assert parts > 1
    # One thread would take minutes for all taps: the last part only, the others stay "0 at 0".
    plan = run_blocks(problem, "plane", {"plane_parts": [parts - 1]}, x, y, indices)
    assert "long long" in repr(plan)
    assert (int(y[0, 0, 0, 0]), int(indices[0, 0, 0, 0])) == (4, x.size - 3)


def test_sums_of_8_bit_integers_beyond_32_bits():
    taps = 2**31 // 255 + 1000
    x = virtual_array((1, 1, taps), np.uint8)
    x[...] = 255
    problem = resolve("GlobalAveragePool", x.shape, "uint8", out_dtype="float64")
    plan = planner.plan(problem)
    assert "long long>" in repr(plan)
    y = np.zeros((1, 1, 1))
    launch.Bound(plan, np, emulator.find)(x, y)
    assert y[0, 0, 0] == 255


def test_unpool_to_positions_beyond_32_bits():
    x = np.array([[[7, 8, 9]]], np.float16)
    indices = np.array([[[5, FAR + 300, FAR + 301]]])
    shape = (1, 1, FAR + 4096)
    problem = resolve("MaxUnpool", x.shape, "float16", kernel_shape=1, output_shape=shape)
    y = virtual_array(shape, np.float16)
    clear = [0, (FAR + 300) // planner.THREADS]
    y.reshape(-1)[[0, FAR + 302]] = 1
    run_blocks(problem, "auto", {"unpool_clear": clear}, x, indices, y)
    assert y[0, 0, :7].tolist() == [0, 0, 0, 0, 0, 7, 0]
    assert y[0, 0, FAR + 299 : FAR + 303].tolist() == [0, 8, 9, 0]


def test_unpool_of_more_than_32_bits_claims_by_64():
    inputs = FAR + 4096
    x, indices = virtual_array((1, 1, inputs), np.float16), virtual_array((1, 1, inputs), np.int64)
    x[0, 0, [3, FAR + 500]] = (1, 2)
    blocks = [0, (FAR + 500) // planner.THREADS]
    indices[0, 0, : planner.THREADS] = np.arange(planner.THREADS)
    window = slice(blocks[1] * planner.THREADS, (blocks[1] + 1) * planner.THREADS)
    indices[0, 0, window] = np.arange(window.start, window.stop)
    indices[0, 0, FAR + 500] = 3  # a later source of the same position
    problem = resolve("MaxUnpool", x.shape, "float16", kernel_shape=1)
    y = virtual_array(x.shape, np.float16)
    plan = run_blocks(
        problem, "auto", dict.fromkeys(("unpool_clear", "unpool_claim", "unpool_place"), blocks),
        x, indices, y,
    )  # fmt: skip
    assert "unpool_place<Half, long long>" in repr(plan)
    assert y[0, 0, [2, 3, 4, FAR + 500]].tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("image", [2**24 + 1, 2**24 + 3])
def test_max_roi_pool_of_an_image_whose_number_float32_does_not_hold(image):
    x = virtual_array((2**24 + 4, 1, 1, 1), np.float64)
    x[image] = 7
    problem = resolve("MaxRoiPool", x.shape, "float64", pooled_shape=1, num_rois=1)
    y = np.full((1, 1, 1, 1), np.nan)
    emulator.run(problem, (x, np.array([[image, 0, 0, 0, 0.0]])), (y,))
    assert y.item() == 7


@pytest.mark.parametrize(
    ("op", "attributes"), [("MaxRoiPool", {"pooled_shape": 1}), ("RoiAlign", {"sampling_ratio": 1})]
)
@pytest.mark.parametrize(
    ("images", "spatial", "channels", "last"),
    [
        (1, (2, FAR // 2), 2, True),  # only the step from row to row is as long
        (1, (2, FAR), 1, False),
        (1, (FAR, 5), 1, False),
        (1, (2, 5), FAR, True),
        (FAR, (2, 5), 1, False),
    ],
)
def test_regions_of_images_beyond_32_bits(op, attributes, images, spatial, channels, last):
    shape = laid_out(images, channels, spatial, last)
    x = virtual_array(shape, np.float64)
    planes = x[-1] if last else np.moveaxis(x[-1], 0, -1)
    planes[:2, :5, [0, -1]] = 2
    planes[1, 3, 0], planes[1, 3, -1] = 7, 9
    problem = resolve(op, shape, "float64", num_rois=1, channels_last=last, **attributes)
    image = np.array([images - 1])
    rois = [[3, 1, 4, 2]] if op == "RoiAlign" else [[*image, 3, 1, 3, 1]]
    y = virtual_array(problem.outputs[0].shape, np.float64)
    ends = [0, (y.size - 1) // planner.THREADS]
    blocks = dict.fromkeys(("max_roi_pool", "roi_align"), ends)
    operands = (image, y) if op == "RoiAlign" else (y,)
    run_blocks(problem, "auto", blocks, x, np.array(rois, np.float64), *operands)
    assert y.ravel()[[0, -1]].tolist() == [7 if channels > 1 else 9, 9]


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("backend", [gpupool, emulator], ids=["numpy", "emulator"])
def test_a_sample_beside_a_last_row_whose_number_float32_does_not_hold(backend, mode):
    """The nearest number it holds is the row behind it."""
    rows = 2**24 + 4
    x = virtual_array((1, 1, rows, 1), np.float32)
    x[0, 0, -1] = 7
    regions = np.array([[0, y, 1, y + 2] for y in (rows - 2, rows - 4)], np.float32)
    options = {"coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 1}
    y = backend.roi_align(x, regions, np.zeros(2, np.int64), mode=mode, **options)
    assert y.ravel().tolist() == [7, 0]


@pytest.mark.parametrize("pool", [4, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_images_of_an_axis_beyond_32_bits(axis, pool):
    """Of tiles the outputs are fewer, and their numbers narrow."""
    sizes, tile = [1, 1], [1, 1]
    sizes[axis], tile[axis] = FAR + 2 * planner.THREADS, pool
    x = virtual_array((1, *sizes, 1), np.uint8)
    pixels = x.reshape(-1)
    pixels[:pool], pixels[-pool:] = 3, 255
    options = {"mean": 0, "std": 1, "scale": 1, "dtype": "float16"}
    problem = preprocessing.resolve(x.shape, x.dtype, pool=tile, **options)
    y = virtual_array(problem.outputs[0].shape, np.float16)
    ends = [0, (y.size - 1) // planner.THREADS]
    plan = run_blocks(problem, "auto", {"preprocess": ends}, x, y)
    assert ("long long" in repr(plan)) == (pool == 1)
    assert y.reshape(-1)[[0, 1, -2, -1]].tolist() == [3, 0, 0, 255]
