"""The kernels on a GPU: `pytest -m gpu`, and GPUPOOL_REQUIRE_GPU=1 where one must be there.

The semantic tests run here too, by their ``backend`` fixture. This file adds what the CPU cannot
show: the PTX behind __CUDA_ARCH__, -ftz=true, streams, devices, memory and graphs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupool
from gpupool import jit, launch, planner
from gpupool.dtypes import DTYPES
from gpupool.opset import OPERATORS
from tests import emulator, strategies
from tests.combinations import combinations
from tests.conftest import Backend, cupy_backend, numpy_backend, require_gpu
from tests.strategies import MEMORY, Case
from tests.test_kernels import (
    KERNELS,
    LARGE,
    NO_CAP,
    STAGED_ROWS,
    WAYS,
    columns_and_rows,
    dtypes_of,
    kernels_of,
    large,
    norms_of_nothing_and_of_too_much,
    staged_rows,
    sums_of_every_magnitude,
)
from tests.test_oracle import assert_right
from tests.test_sanitizers import BAD_POSITIONS, bad_regions
from tests.tolerance import assert_bitwise, bits

pytestmark = pytest.mark.gpu
NUMPY = numpy_backend()
ROOT = Path(__file__).parent.parent


@pytest.fixture
def gpu() -> Backend:
    return cupy_backend()


@pytest.fixture
def cupy() -> Any:
    require_gpu()
    return pytest.importorskip("cupy")


@contextmanager
def by(name: str, **more: Any) -> Iterator[None]:
    """Plan in one of the ways of KERNELS, with more constants of gpupool.planner."""
    kernel, constants = WAYS[name]
    before = launch.plan
    launch.plan = lambda problem, strides, alignment, _: planner.plan(
        problem, strides, alignment, kernel
    )
    try:
        with emulator.constants(**NO_CAP, **constants, **more):
            yield
    finally:
        launch.plan = before


def floats(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# The same comparisons as on the CPU


@pytest.mark.parametrize("dtype", [row.name for row in DTYPES])
@pytest.mark.parametrize("op", OPERATORS)
def test_every_combination_equals_the_oracle(gpu, op, dtype):
    for made in combinations():
        if (made.op, made.dtype) != (op, dtype):
            continue
        calls = list(made.calls())
        for number, case in enumerate(calls):
            every = kernels_of(op) if number == len(calls) - 1 else ("auto", "window")
            for kernel in every:
                with by(kernel):
                    assert_right(case, case.run(gpu))


@pytest.mark.parametrize("op", OPERATORS)
def test_64_bit_indices(gpu, op):
    for made in combinations():
        if made.op == op and made.axes in (1, 3) and made.dtype in ("float32", "uint8"):
            *_, case = made.calls()
            for kernel in kernels_of(op):
                with by(kernel, **emulator.WIDE):
                    assert_right(case, case.run(gpu))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", LARGE)
def test_large_windows(gpu, name, last):
    is_max = LARGE[name][0] == "max_pool"
    for dtype in dtypes_of(name):
        case = large(name, dtype, last, is_max)
        for kernel in KERNELS:
            with by(kernel):
                results = case.run(gpu)
                for one, other in zip(results, case.run(gpu), strict=True):
                    np.testing.assert_array_equal(bits(one), bits(other))
            if is_max:
                for one, right in zip(results, case.run(NUMPY), strict=True):
                    assert_bitwise(one, right)
            else:
                assert_right(case, results)


@pytest.mark.parametrize(("function", "dtype"), STAGED_ROWS)
def test_rows_of_staged_planes(gpu, function, dtype):
    for configuration in staged_rows(function, dtype):
        with by(configuration.kernel):
            assert_right(configuration.case, configuration.case.run(gpu))


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_columns_and_rows_of_staged_planes(gpu, dtype):
    for configuration in columns_and_rows(dtype):
        with by(configuration.kernel):
            assert_right(configuration.case, configuration.case.run(gpu))


def test_positions_beyond_32_bits(cupy):
    size = 2**31 + 4096
    if cupy.cuda.Device().mem_info[0] < 12 * size:
        pytest.skip(f"needs {12 * size} bytes of free device memory")
    x = cupy.zeros((1, 1, size), np.int8)
    x[0, 0, 2**31 + 1000] = 9
    y, indices = gpupool.max_pool(x, 3, pads=1, return_indices=True)
    near = slice(2**31 + 998, 2**31 + 1003)
    assert y[0, 0, near].tolist() == [0, 9, 9, 9, 0]
    assert indices[0, 0, near].tolist()[1:4] == [2**31 + 1000] * 3
    del y, indices
    assert gpupool.global_max_pool(x).tolist() == [[[9]]]
    del x
    back = gpupool.max_unpool(
        cupy.ones((1, 1, 2), np.float16), cupy.array([[[3, size - 1]]]), 1,
        output_shape=(1, 1, size),
    )  # fmt: skip
    assert [float(back[0, 0, place]) for place in (3, 4, size - 1)] == [1, 0, 1]


# What -ftz=true must not touch


def subnormals(dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    kind = strategies.dtype_of(dtype)
    return np.asarray(
        strategies.FINITE["subnormal"](np.random.default_rng(seed), (2, 4, 33, 34), kind)
    ).astype(kind)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_maxima_of_subnormals_are_bit_exact(gpu, dtype, kernel):
    x = subnormals(dtype)
    for indices in (False, True):
        for kernel_shape in (2, 3, (33, 34)):
            arguments = {"kernel_shape": kernel_shape, "return_indices": indices}
            case = Case("max_pool", (x,), arguments)
            with by(kernel):
                results = case.run(gpu)
            for result, right in zip(results, case.run(NUMPY), strict=True):
                assert_bitwise(result, right)
            assert np.count_nonzero(results[0]) > 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_means_and_norms_of_subnormals(gpu, dtype, kernel):
    x = subnormals(dtype)[:, :2, :8, :9]
    for function, more in (("average_pool", {}), ("lp_pool", {"p": 1}), ("lp_pool", {"p": 2})):
        case = Case(function, (x,), {"kernel_shape": 2} | more)
        with by(kernel):
            (y,) = case.run(gpu)
        assert_right(case, (y,))
        assert np.count_nonzero(y) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bilinear_samples_and_rounded_corners_of_subnormals(gpu, dtype):
    x = subnormals(dtype)[:1, :, :6, :6]
    rois = np.array([[0.5, 0.5, 4.5, 4.5]]).astype(x.dtype)
    images = np.array([0])
    for mode in ("avg", "max"):
        case = Case("roi_align", (x, rois, images), {"mode": mode, "sampling_ratio": 2})
        assert_right(case, case.run(gpu))
    corners = np.concatenate([images[:, None].astype(x.dtype), rois], 1)
    case = Case("max_roi_pool", (x, corners), {"pooled_shape": 3})
    assert_right(case, case.run(gpu))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_subnormals_beside_the_least_normal_number_count(gpu, dtype):
    x = np.full((1, 1, 9), 1.1e-38).astype(strategies.dtype_of(dtype))
    x[0, 0, 0] = 1.2e-38
    case = Case("lp_pool", (x,), {"kernel_shape": 9, "p": 0.5})
    assert_right(case, case.run(gpu))


def test_a_region_of_subnormal_size_has_a_sample(gpu):
    x, rois = floats(1, 1, 4, 4), np.array([[0, 0, 1e-40, 1e-40]], np.float32)
    case = Case("roi_align", (x, rois, np.array([0])), {"sampling_ratio": 0})
    assert_right(case, case.run(gpu))


def test_a_nan_wins_and_the_first_one_is_named(gpu):
    x = floats(2, 3, 20, 20)
    x[:, :, ::7, ::5] = np.nan
    for dtype in strategies.FLOATS:
        for indices in (False, True):
            arguments = {"kernel_shape": 5, "strides": 2, "return_indices": indices}
            case = Case("max_pool", (x.astype(strategies.dtype_of(dtype)),), arguments)
            for kernel in kernels_of("MaxPool"):
                with by(kernel):
                    assert_right(case, case.run(gpu))


@pytest.mark.parametrize("kernel_shape", [7, 13, 31])
@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_the_first_of_equal_maxima_of_large_windows(gpu, dtype, kernel_shape):
    few = [-np.inf, -1.0, -0.0, 0.0, 1.0, np.nan], [0.5, 0.2, 0.14, 0.14, 0.01, 0.01]
    x = np.random.default_rng(0).choice(few[0], (1, 2, 60, 300), p=few[1])
    arguments = {"kernel_shape": kernel_shape, "pads": kernel_shape // 2, "return_indices": True}
    case = Case("max_pool", (x.astype(strategies.dtype_of(dtype)),), arguments)
    with by("separable"):
        results = case.run(gpu)
    for result, right in zip(results, case.run(NUMPY), strict=True):
        assert_bitwise(result, right)


def test_no_spurious_overflow(gpu):
    for dtype in strategies.FLOATS:
        kind = strategies.dtype_of(dtype)
        huge = strategies.FINITE["near the maximum"](np.random.default_rng(0), (1, 2, 12, 12), kind)
        x = np.asarray(huge).astype(kind)
        for function, more in (
            ("average_pool", {}),
            ("lp_pool", {"p": 3}),
            ("lp_pool", {"p": 0.5}),
        ):
            case = Case(function, (x,), {"kernel_shape": 3} | more)
            for kernel in kernels_of("AveragePool"):
                with by(kernel):
                    assert_right(case, case.run(gpu))


def test_sums_of_every_magnitude_are_right_beside_each_other(gpu):
    for configuration in sums_of_every_magnitude():
        with by(configuration.kernel):
            assert_right(configuration.case, configuration.case.run(gpu))


def test_norms_of_nothing_are_nothing_and_of_too_much_infinite(gpu):
    for configuration in norms_of_nothing_and_of_too_much():
        with by(configuration.kernel):
            assert_right(configuration.case, configuration.case.run(gpu))


# Streams, devices, memory, graphs


def slow_fill(cupy: Any, x: Any, value: Any) -> None:
    """Queue some milliseconds of work, then the values: whoever does not wait reads old ones."""
    work = cupy.ones((2048, 2048), np.float32)
    for _ in range(200):
        cupy.sin(work, out=work)
    x[...] = value


def test_the_current_stream_orders_input_kernel_and_output(cupy):
    values = floats(4, 8, 64, 64)
    right = gpupool.max_pool(values, 3)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        given = cupy.asarray(values)
        x = cupy.zeros_like(given)
        gpupool.max_pool(x, 3)  # compiled before the clock matters
        stream.synchronize()
        slow_fill(cupy, x, given)
        y = gpupool.max_pool(x, 3)
        x[...] = 0
    stream.synchronize()
    assert_bitwise(cupy.asnumpy(y), right)


def test_two_streams_give_the_same_bits(cupy):
    x = cupy.asarray(floats(2, 16, 100, 100))
    cupy.cuda.Device().synchronize()
    results = []
    for _ in range(2):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            results.append(gpupool.global_average_pool(x))
            stream.synchronize()
    np.testing.assert_array_equal(*(bits(cupy.asnumpy(y)) for y in results))


def test_every_device_runs_its_own_arrays(cupy):
    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"needs two devices, there is {count}")
    values = floats(2, 3, 9, 9)
    right, indices = gpupool.max_pool(values, 3, return_indices=True)
    with cupy.cuda.Device(1):
        x = cupy.asarray(values)
    with cupy.cuda.Device(0):
        y, where = gpupool.max_pool(x, 3, return_indices=True)
        back = gpupool.max_unpool(y, where, 3, output_shape=values.shape)
        with pytest.raises(gpupool.GpupoolTypeError, match="device"):
            gpupool.max_pool(x, 3, out=cupy.empty(right.shape, right.dtype))
    assert y.device.id == where.device.id == 1
    assert_bitwise(cupy.asnumpy(y), right)
    assert_bitwise(cupy.asnumpy(where), indices)
    assert back.device.id == 1


def test_running_out_of_memory_leaves_everything_usable(cupy):
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.zeros((1, 8, 512, 512), np.float32)
        pool.set_limit(size=pool.total_bytes() + 2**20)
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as raised:
            gpupool.max_pool(x, 3)
        assert isinstance(raised.value, MemoryError)
        assert "Y (1, 8, 510, 510) float32" in raised.value.__notes__[0]
        pool.set_limit(size=0)
        assert not gpupool.max_pool(x, 3).any()


GRAPHS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "window": ("MaxPool", (2, 3, 40, 41), {"kernel_shape": 3, "strides": 2, "dilations": 17}),
    "rows": ("AveragePool", (2, 8, 64, 64), {"kernel_shape": 3, "pads": 1}),
    "plane": ("GlobalAveragePool", (8, 512, 20, 20), {}),
    "parts": ("GlobalMaxPool", (1, 2, 400, 400), {}),
    "channels": ("GlobalAveragePool", (2, 80, 80, 12), {"channels_last": True}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_plan_can_be_captured_into_a_graph(cupy, name):
    op, shape, attributes = GRAPHS[name]
    plan = gpupool.plan(op, shape, "float32", **attributes)
    x, y = cupy.asarray(floats(*shape)), cupy.empty(plan.problem.outputs[0].shape, np.float32)
    plan(x, out=y)  # compiles and fills the memory pool
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        plan(x, out=y)
        graph = stream.end_capture()
        for seed in (1, 2):
            values = floats(*shape, seed=seed)
            x.set(values, stream=stream)
            y.fill(np.nan)
            graph.launch(stream)
            stream.synchronize()
            right = gpupool.plan(op, shape, "float32", **attributes)(values)
            np.testing.assert_allclose(cupy.asnumpy(y), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("memory", sorted(MEMORY))
def test_inputs_of_any_strides_and_alignment(gpu, memory):
    x = MEMORY[memory](floats(2, 3, 10, 11))
    for function in ("max_pool", "average_pool"):
        case = Case(function, (x,), {"kernel_shape": 3, "strides": 2})
        for kernel in kernels_of("MaxPool"):
            with by(kernel):
                assert_right(case, case.run(gpu))


@pytest.mark.parametrize("memory", ["strided", "negative strides", "unaligned", "Fortran-ordered"])
def test_out_of_any_strides_and_alignment(gpu, memory):
    x = floats(2, 3, 10, 11)
    right = gpupool.max_pool(x, 3, return_indices=True)
    out = tuple(gpu.array(MEMORY[memory](np.zeros_like(array))) for array in right)
    results = gpupool.max_pool(gpu.array(x), 3, return_indices=True, out=out)
    for result, given, array in zip(results, out, right, strict=True):
        assert result is given
        assert_bitwise(gpu.numpy(result), array)


def test_the_generic_tier_by_environment(gpu, monkeypatch):
    monkeypatch.setenv("GPUPOOL_JIT", "generic")
    planner.plan.cache_clear()
    try:
        case = Case("max_pool", (floats(2, 3, 20, 20),), {"kernel_shape": 3})
        assert "Sizes<0, 0>" in repr(gpupool.plan("max", (2, 3, 20, 20), "float32", kernel_shape=3))
        assert_right(case, case.run(gpu))
    finally:
        planner.plan.cache_clear()


def guarded(cupy: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Callable[[], bool]]:
    """Return an output between two runs of ones, and whether those are still what they were."""
    count = int(np.prod(shape))
    memory = cupy.ones(count + 2 * 4096, dtype)

    def intact() -> bool:
        return bool((memory[:4096] == 1).all() and (memory[-4096:] == 1).all())

    return memory[4096:-4096].reshape(shape), intact


def test_bad_positions_in_a_plan_write_nothing_out_of_bounds(cupy):
    plan = gpupool.plan("MaxUnpool", (1, 1, 8), "float32", kernel_shape=2, strides=2)
    y, intact = guarded(cupy, (1, 1, 16), np.float32)
    x = cupy.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
    plan(x, cupy.asarray(BAD_POSITIONS).reshape(1, 1, 8), out=y)
    assert y[0, 0].tolist() == [0, 0, 0, 7, *[0] * 11, 8]
    assert intact()


def test_bad_regions_in_a_plan_read_and_write_nothing_out_of_bounds(cupy):
    rois, images = bad_regions(np.float32)
    x = cupy.ones((2, 3, 5, 6), np.float32)
    shape = (len(rois), 3, 2, 2)
    pool = gpupool.plan("MaxRoiPool", x.shape, "float32", pooled_shape=2, num_rois=len(rois))
    y, intact = guarded(cupy, shape, np.float32)
    y.fill(np.nan)
    pool(x, cupy.asarray(rois), out=y)
    assert intact()
    assert np.isin(cupy.asnumpy(y), (0, 1)).all()
    align = gpupool.plan(
        "RoiAlign", x.shape, "float32", num_rois=len(rois), sampling_ratio=2, output_height=2,
        output_width=2,
    )  # fmt: skip
    y.fill(np.nan)
    align(x, cupy.asarray(rois[:, 1:]), cupy.asarray(images), out=y)
    assert intact()
    assert not cupy.isnan(y).any()


def test_warmup_leaves_nothing_to_compile(cupy):
    plan = gpupool.warmup("MaxPool", (1, 3, 31, 33), "float16", kernel_shape=(3, 2))
    before = jit.function.cache_info().misses
    y = plan(cupy.zeros((1, 3, 31, 33), np.float16))
    assert y.shape == (1, 3, 29, 32)
    assert jit.function.cache_info().misses == before


def test_empty_results_launch_nothing(cupy, monkeypatch):
    monkeypatch.setattr(launch, "execute", lambda *_: pytest.fail("launched"))
    assert gpupool.max_pool(cupy.zeros((0, 3, 8, 8), np.float32), 2).shape == (0, 3, 7, 7)


def test_the_example_of_the_readme_runs():
    require_gpu()
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (example,) = [block for block in blocks if "import cupy" in block]
    command = (sys.executable, "-c", example + "print(type(y).__module__, y.shape)")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["cupy", "(8, 64, 56, 56)\n"]
