"""The emulator itself: kernels that are right give right results, planted bugs are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from tests import cuda_on_cpu
from tests.cuda_on_cpu import (
    FORWARD,
    REVERSE,
    SENTINELS,
    Build,
    CompilationError,
    EmulatedFunction,
    EmulatedModule,
    EmulatorUnavailableError,
    KernelError,
    Request,
    Schedule,
    compile_many,
    line_coverage,
    run_sanitized,
    sentinel_array,
    shuffled,
    unwritten,
    virtual_array,
    write_coverage,
)

pytestmark = pytest.mark.no_cover

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = Path(__file__).resolve().parent / "data"
PLANTED = DATA / "planted.cu"
ROOT = DATA.parent.parent
SCHEDULES = [FORWARD, REVERSE, shuffled(1), shuffled(2)]
BUILDS: list[Build] = ["plain", "checked"]
INTEGERS = np.arange(256, dtype=np.int32)


def function(expression: str, build: Build = "plain", **options: Any) -> EmulatedFunction:
    module = EmulatedModule(
        PLANTED, include_dir=DATA, expression=expression, build=build, **options
    )
    return module.get_function(expression)


every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
every_build = pytest.mark.parametrize("build", BUILDS)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """One batch for what most tests use, so that a cold cache costs seconds, not minutes."""
    names = [
        *("add_one<float>", "add_one<double>", "block_sum<int>", "block_sum<float>"),
        *("tree_sum<true>", "tree_sum<false>", "warp_reverse<true>", "warp_reverse<false>"),
        *("shuffles", "votes", "scaled", "integer_intrinsics", "copy_vectors", "maximum"),
        *("convert<__half>", "convert<__nv_bfloat16>", "read_past", "write_past", "overflow"),
        *(
            "shared_overrun",
            "shared_unwritten",
            "shared_underrun",
            "misaligned",
            "misaligned_local",
            "early_exit",
            "two_barriers",
        ),
        *("half_a_warp", "forgets_last", "blocks_collide", "shuffle_instead_of_barrier"),
    ]
    compile_many(Request(PLANTED, DATA, name, (), build) for build in BUILDS for name in names)


# ---- right results ----


@every_build
@every_schedule
def test_element_wise(build: Build, schedule: Schedule) -> None:
    x = np.linspace(-3, 3, 1000)
    y = np.zeros_like(x)
    add_one = function("add_one<double>", build, schedule=schedule)
    add_one((4,), (256,), (x, y, np.int64(1000)))
    np.testing.assert_array_equal(y, x + 1)


@every_build
@every_schedule
@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_block_sum(build: Build, schedule: Schedule, threads: int) -> None:
    x = np.arange(3 * 1500, dtype=np.int32).reshape(3, 1500)
    y = np.zeros(3, np.int32)
    block_sum = function("block_sum<int>", build, schedule=schedule)
    block_sum((3,), (threads,), (x, y, np.int32(1500)), shared_mem=4 * 32)
    np.testing.assert_array_equal(y, x.sum(axis=1))


@every_build
@every_schedule
def test_tree_sum_and_warp_reverse(build: Build, schedule: Schedule) -> None:
    y = np.zeros(2, np.int32)
    tree_sum = function("tree_sum<true>", build, schedule=schedule)
    tree_sum((2,), (128,), (INTEGERS, y), shared_mem=512)
    np.testing.assert_array_equal(y, INTEGERS.reshape(2, 128).sum(axis=1))

    y = np.zeros(64, np.int32)
    warp_reverse = function("warp_reverse<true>", build, schedule=schedule)
    warp_reverse((1,), (64,), (INTEGERS[:64], y), shared_mem=256)
    np.testing.assert_array_equal(y.reshape(2, 32), INTEGERS[:64].reshape(2, 32)[:, ::-1])


@every_schedule
def test_shuffles(schedule: Schedule) -> None:
    x = np.arange(32) * 10**12
    y = np.zeros((5, 32), np.int64)
    function("shuffles", schedule=schedule)((1,), (32,), (x, y))
    lane = np.arange(32)
    sources = [
        np.full(32, 3),
        lane // 8 * 8 + 3,
        np.where(lane % 16 < 2, lane, lane - 2),
        np.where(lane % 16 > 13, lane, lane + 2),
        lane ^ 5,
    ]
    np.testing.assert_array_equal(y, x[np.array(sources)])


@pytest.mark.parametrize(
    ("cuda", "dtype"),
    [
        ("signed char", np.int8),
        ("unsigned short", np.uint16),
        ("__half", np.float16),
        ("__nv_bfloat16", ml_dtypes.bfloat16),
        ("double", np.float64),
    ],
)
def test_shuffle_moves_every_type(cuda: str, dtype: np.typing.DTypeLike) -> None:
    x = np.arange(32).astype(dtype)
    y = np.zeros_like(x)
    function(f"shuffle_type<{cuda}>")((1,), (32,), (x, y))
    np.testing.assert_array_equal(y, x[np.arange(32) ^ 1])


@every_schedule
def test_votes(schedule: Schedule) -> None:
    x = INTEGERS[:64] * 7 % 11
    y = np.zeros((64, 10), np.uint32)
    function("votes", schedule=schedule)((1,), (64,), (x, y))
    for warp in range(2):
        v, out = x[warp * 32 :][:32], y[warp * 32 :][:32]
        odd = sum(1 << lane for lane in range(32) if v[lane] % 2)
        assert (out[:, 0] == odd).all()
        assert (out[:, 1:3] == [(v == 5).any(), (v >= 0).all()]).all()
        assert (out[:, 3:6] == [v.sum(), v.max(), v.min()]).all()
        assert (out[:8, 6] == odd & 0xFF).all()
        assert (out[:, 7:] == [(x % 2).sum(), True, True]).all()


def test_struct_by_value_and_three_axes() -> None:
    scale = np.zeros(
        1, np.dtype([("divisor", "i4"), ("factor", "f8"), ("offset", "i8", 2)], align=True)
    )
    scale["divisor"], scale["factor"], scale["offset"] = 4, 0.5, (10, 3)
    x = np.arange(24.0)
    y = np.zeros(24)
    function("scaled")((1,), (2, 3, 4), (x, y, scale))
    np.testing.assert_array_equal(y, x / 4 * 0.5 + 7)


@pytest.mark.parametrize(
    ("cuda", "dtype"), [("__half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)]
)
def test_half_conversions(cuda: str, dtype: np.typing.DTypeLike) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, 65504, 65520, 1e-7, 1 + 2.0**-11, 1 + 2.0**-8, 3.4e38]
    x = np.concatenate([special, np.random.default_rng(0).normal(size=246)]).astype(np.float32)
    y, back = np.zeros(256, dtype), np.zeros(256, np.float32)
    function(f"convert<{cuda}>")((1,), (256,), (x, y, back))
    with np.errstate(over="ignore"):
        expected = x.astype(dtype)
    np.testing.assert_array_equal(y.view(np.uint16), expected.view(np.uint16))
    np.testing.assert_array_equal(back, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("cuda", "dtype"),
    [("__half, __half2", np.float16), ("__nv_bfloat16, __nv_bfloat162", ml_dtypes.bfloat16)],
)
def test_half_maximum(cuda: str, dtype: np.typing.DTypeLike) -> None:
    x = np.array([[1, 2], [np.nan, -3], [np.inf, 5], [-7, np.nan]], dtype)
    y = np.array([[3, 1], [4, -2], [2, np.nan], [-8, 0]], dtype)
    packed, single = np.zeros_like(x), np.zeros(4, dtype)
    function(f"half_maximum<{cuda}>")((1,), (4,), (x, y, packed, single))
    wide = x.astype(np.float32), y.astype(np.float32)
    np.testing.assert_array_equal(packed.astype(np.float32), np.maximum(*wide))
    np.testing.assert_array_equal(
        single.astype(np.float32), np.maximum(wide[0][:, 0], wide[1][:, 1])
    )


def _lanes(dtype: np.typing.DTypeLike, *values: int) -> list[list[int]]:
    return [np.array([v], np.uint32).view(dtype).tolist() for v in values]


def _pack(dtype: np.typing.DTypeLike, values: Sequence[int]) -> int:
    return int(np.array(values, dtype).view(np.uint32)[0])


def _integer_results(a: int, b: int) -> list[int]:
    def signed(v: int) -> int:
        return v - 2**32 if v >= 2**31 else v

    def largest(dtype: np.typing.DTypeLike, *values: int) -> int:
        return _pack(dtype, [max(lane) for lane in zip(*_lanes(dtype, *values), strict=True)])

    def dot(dtype: np.typing.DTypeLike) -> int:
        x, y = _lanes(dtype, a, b)
        return sum(p * q for p, q in zip(x, y, strict=True)) + 7

    both = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    wide = b << 32 | a
    return [
        a * b >> 32,
        dot(np.int8),
        dot(np.uint8),
        largest(np.uint8, a, b),
        largest(np.int8, a, b),
        largest(np.uint16, a, b),
        largest(np.int16, a, b),
        int.from_bytes(both[1::2], "little"),
        wide << 9 >> 32,
        wide >> 9,
        32 - a.bit_length(),
        (a & -a).bit_length(),
        a.bit_count(),
        int(f"{a:032b}"[::-1], 2),
        max(a, b),
        min(signed(a), signed(b)),
        max(signed(a), signed(b), 5),
        a,
        wide.bit_count(),
        largest(np.uint16, a, b, 77),
    ]


@every_build
def test_integer_intrinsics(build: Build) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 64), dtype=np.uint32)
    a[:3], b[:3] = (0, 2**31, 2**32 - 1), (2**32 - 1, 2**31, 0)
    expected = np.array([_integer_results(*map(int, pair)) for pair in zip(a, b, strict=True)]).T
    out = np.zeros(expected.shape, np.uint32)
    function("integer_intrinsics", build)((1,), (64,), (a, b, out, np.int32(64)))
    np.testing.assert_array_equal(out, (expected % 2**32).astype(np.uint32))


@every_build
def test_vectors_and_atomics(build: Build) -> None:
    x = np.arange(64, dtype=np.float32)
    y = np.zeros_like(x)
    function("copy_vectors", build)((1,), (16,), (x, y))
    np.testing.assert_array_equal(y, x)

    greatest = np.zeros(1, np.int32)
    function("maximum", build)((4,), (64,), (INTEGERS, greatest))
    assert greatest[0] == 255


@every_build
def test_constants(build: Build) -> None:
    y = np.zeros(4, np.int32)
    function("constants", build)((1,), (4,), (y,))
    assert y.tolist() == [2, 3, 5, 7]


def test_flush_subnormals() -> None:
    x, y = np.array([1e-40, -1e-40], np.float32), np.zeros(1, np.float32)
    compare = function("compare_subnormals")
    compare((1,), (1,), (x, y))
    assert y[0] == x[0]
    compare.flush_subnormals = True
    compare((1,), (1,), (x, y))
    assert y[0] == 0
    assert x[0] * np.float32(1) > 0, "the setting ends with the launch"


def test_the_portable_switch_gives_the_same() -> None:
    y = np.zeros(2, np.int32)
    tree_sum = function("tree_sum<true>", flags=("-DCUDA_ON_CPU_UCONTEXT",))
    tree_sum((2,), (128,), (INTEGERS, y), shared_mem=512)
    np.testing.assert_array_equal(y, INTEGERS.reshape(2, 128).sum(axis=1))


@every_schedule
def test_every_block_runs_once_and_chosen_blocks_only(schedule: Schedule) -> None:
    numbers = function("block_numbers", schedule=schedule)
    y = np.full(60, -1)
    numbers((60,), (1,), (None, y, None))
    np.testing.assert_array_equal(y, np.arange(60))

    y = virtual_array((2**31 - 1,), np.int64)
    numbers.blocks = [0, 7, 2**31 - 2]
    numbers((2**31 - 1,), (1,), (None, y, None))
    assert y[[7, 8, -1]].tolist() == [7, 0, 2**31 - 2]


def test_virtual_arrays_reach_beyond_32_bits() -> None:
    y = virtual_array((3, 2**30, 2), np.int8)
    function("last_element")((1,), (1,), (y, np.int64(y.size)))
    assert y[-1, -1, -1] == 7


# ---- planted bugs, found in the same process ----


def test_missing_barrier_gives_other_results_in_another_order() -> None:
    results = set()
    for schedule in SCHEDULES:
        y = np.zeros(2, np.int32)
        tree_sum = function("tree_sum<false>", schedule=schedule)
        tree_sum((2,), (128,), (INTEGERS, y), shared_mem=512)
        results.add(tuple(y.tolist()))
    assert len(results) > 1


@every_schedule
@pytest.mark.parametrize(
    ("expression", "grid", "message"),
    [
        ("tree_sum<false>", 2, r"race on shared memory byte .* planted\.cu:\d+"),
        ("warp_reverse<false>", 1, r"race on shared memory|which nobody wrote"),
        ("shuffle_instead_of_barrier", 1, r"race on shared memory byte"),
        ("blocks_collide", 2, r"race on global memory byte \d+: a write at planted\.cu:\d+"),
        ("read_past", 1, r"read of 4 bytes outside every array at planted\.cu:\d+"),
        ("write_past", 1, r"write of 4 bytes outside every array"),
        ("shared_overrun", 1, r"write of shared memory byte 128 of 128 at planted\.cu:\d+"),
        ("shared_underrun", 1, r"read of 4 bytes outside every array"),
        ("shared_unwritten", 1, r"read of shared memory byte \d+ .*which nobody wrote"),
        ("overflow", 1, r"signed integer overflow in a multiplication at .*planted\.cu:\d+"),
    ],
)
def test_checked_build_finds(schedule: Schedule, expression: str, grid: int, message: str) -> None:
    x = np.arange(32 * grid, dtype=np.int32) + 2**15
    y = np.zeros_like(x)
    planted = function(expression, "checked", schedule=schedule)
    with pytest.raises(KernelError, match=message):
        planted((grid,), (32,), (x, y), shared_mem=128)


@pytest.mark.parametrize("expression", ["misaligned", "misaligned_local"])
def test_checked_build_finds_a_misaligned_vector(expression: str) -> None:
    x, y = np.zeros(8, np.float32), np.zeros(1, np.float32)
    with pytest.raises(KernelError, match="misaligned"):
        function(expression, "checked")((1,), (1,), (x, y))


def test_checked_build_knows_the_exact_view_and_read_only_arrays() -> None:
    memory, y = np.zeros(100, np.int32), np.zeros(32, np.int32)
    with pytest.raises(KernelError, match="outside every array"):
        function("read_past", "checked")((1,), (32,), (memory[:32], y))
    function("read_past", "checked")((1,), (32,), (memory[:33], y))
    with pytest.raises(KernelError, match="write to a read-only array"):
        function("casts_const_away", "checked")((1,), (32,), (memory, y))
    memory.flags.writeable = False
    with pytest.raises(KernelError, match="write to a read-only array"):
        function("writes_input", "checked")((1,), (32,), (memory, y))


@every_build
def test_shared_overrun_leaves_a_mark(build: Build) -> None:
    with pytest.raises(KernelError, match="shared memory byte 128 of 128"):
        function("shared_overrun", build)((1,), (32,), (INTEGERS, INTEGERS.copy()), 128)


@every_build
@every_schedule
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("early_exit", r"block \([02], 0, 0\) of 64 threads: 40 wait .*, 24 exited"),
        ("two_barriers", r"64 wait .* not all at the same line"),
    ],
)
def test_divergent_barrier(build: Build, schedule: Schedule, expression: str, message: str) -> None:
    planted = function(expression, build, schedule=schedule)
    with pytest.raises(KernelError, match=message):
        planted((3,), (64,), (INTEGERS, INTEGERS.copy(), np.int32(40)))
    if schedule == FORWARD:  # the machine is usable again
        y = np.zeros(64, np.int32)
        function("early_exit", build)((1,), (64,), (INTEGERS, y, np.int32(64)))
        np.testing.assert_array_equal(y, INTEGERS[:64])


def test_warp_divergence() -> None:
    with pytest.raises(KernelError, match=r"16 at a warp primitive .* 16 exited"):
        function("half_a_warp")((1,), (32,), (INTEGERS, INTEGERS.copy()))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("traps", r"block \(0, 0, 0\), thread \(3, 0, 0\): __trap"),
        ("asserts", r"thread \(3, 0, 0\): assertion failed at .*planted.cu:\d+: threadIdx.x < 3"),
    ],
)
def test_traps_and_assertions(expression: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        function(expression)((1,), (32,), (INTEGERS.copy(),))


def test_unwritten_output() -> None:
    x = np.arange(-100, 100, dtype=np.int8)  # holds both sentinels, so one run proves nothing
    assert set(np.array(SENTINELS, np.uint8).view(np.int8)) <= set(x)
    results = [sentinel_array((200,), np.int8, sentinel) for sentinel in SENTINELS]
    for y in results:
        function("forgets_last")((1,), (200,), (x, y, np.int32(200)))
    assert unwritten(results).tolist() == [199]
    for y in results:
        function("forgets_last")((1,), (200,), (x, y, np.int32(201)))
    assert unwritten(results).size == 0


# ---- launches that a device refuses ----


@pytest.mark.parametrize(
    ("grid", "block", "shared_mem", "message"),
    [
        ((0,), (32,), 0, "grid"),
        ((2**31,), (32,), 0, "grid"),
        ((1, 65536), (32,), 0, "grid"),
        ((1, 1, 65536), (32,), 0, "grid"),
        ((1, 1, 1, 1), (32,), 0, "grid"),
        ((1,), (0,), 0, "block"),
        ((1,), (1025,), 0, "block"),
        ((1,), (32, 33), 0, "block"),
        ((1,), (1, 1, 65), 0, "block"),
        ((1,), (32,), -1, "shared_mem"),
        ((1,), (32,), 48 * 1024 + 1, "shared_mem"),
    ],
)
def test_bad_launch_sizes(
    grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int, message: str
) -> None:
    arguments = (np.zeros(1), np.zeros(1), np.int64(1))
    with pytest.raises(ValueError, match=message):
        function("add_one<double>")(grid, block, arguments, shared_mem)


def test_large_shared_memory_needs_to_be_asked_for() -> None:
    y = np.zeros(2, np.int32)
    tree_sum = function("tree_sum<true>")
    tree_sum.max_dynamic_shared_size_bytes = 227 * 1024
    tree_sum((2,), (128,), (INTEGERS, y), shared_mem=227 * 1024)
    assert y[0] == INTEGERS[:128].sum()
    tree_sum.max_dynamic_shared_size_bytes = 2**20
    with pytest.raises(ValueError, match="232448"):
        tree_sum((2,), (128,), (INTEGERS, y), shared_mem=227 * 1024 + 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(1), np.zeros(1)), "3 arguments, not 2"),
        ((np.zeros(1), np.zeros(1), 1), "argument 2: a int"),
        ((np.zeros(1), 1.0, np.int64(1)), "argument 1: a float"),
        ((np.zeros(1), np.zeros(1), np.int32(1)), "integer of 4 bytes, .* integer of 8"),
        ((np.zeros(1), np.zeros(1), np.float64(1)), "a float of 8 bytes, .* an integer of 8"),
        ((np.zeros(1), np.zeros(1), np.zeros(1)), "an array of 8 bytes, .* an integer of 8"),
        ((np.zeros(1), np.int64(0), np.int64(1)), "an integer of 8 bytes, .* an array of 8"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        function("add_one<double>")((1,), (1,), arguments)


# ---- compiling ----


def test_compile_errors_name_the_line() -> None:
    code = "__global__ void broken(int* y) {\n    y[0] = missing;\n}"
    with pytest.raises(CompilationError, match=r"code\.cu:2:.*missing"):
        EmulatedModule(code, include_dir=DATA, expression="broken")


def test_static_shared_memory_is_refused() -> None:
    code = "__global__ void tile(int* y) { __shared__ int slots[32]; y[0] = slots[0]; }"
    with pytest.raises(CompilationError, match="section attribute"):
        EmulatedModule(code, include_dir=DATA, expression="tile")


def test_a_batch_serves_each_of_its_instantiations(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["add_one<short>", "add_one<unsigned>"]
    compile_many(Request(PLANTED, DATA, name, (), "plain") for name in names)
    monkeypatch.setattr(cuda_on_cpu, "_run_compiler", pytest.fail)
    for name in names:
        assert function(name).module.expression == name


def test_an_edited_header_is_compiled_again(tmp_path: Path) -> None:
    code = '#include "value.cuh"\n__global__ void constant(int* y) { y[0] = VALUE; }'
    y = np.zeros(1, np.int32)
    for value in (1, 2):
        (tmp_path / "value.cuh").write_text(f"#define VALUE {value}\n")
        module = EmulatedModule(code, include_dir=tmp_path, expression="constant")
        module.get_function("constant")((1,), (1,), (y,))
        assert y[0] == value


def test_processes_share_a_cold_cache(tmp_path: Path) -> None:
    code = (
        "import numpy as np\n"
        "from tests.test_cuda_on_cpu import function\n"
        "x = np.zeros(1)\n"
        "function('add_one<double>')((1,), (1,), (x, x, np.int64(1)))\n"
        "assert x[0] == 1\n"
    )
    environment = {**os.environ, "GPUPOOL_EMULATOR_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(3)]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert len(list((tmp_path / "cache").glob("*/kernel_*.so"))) == 1


def test_a_cache_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("GPUPOOL_EMULATOR_CACHE", str(tmp_path))
    with pytest.raises(EmulatorUnavailableError, match="not private"):
        cuda_on_cpu.cache_dir()


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorUnavailableError, match=r"no g\+\+"):
        cuda_on_cpu.compiler.__wrapped__()


def test_missing_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = {"nvidia-no-such-wheel-cu12": "cuda_fp16.h"}
    monkeypatch.setattr(cuda_on_cpu, "WHEELS", wheels)
    with pytest.raises(EmulatorUnavailableError, match="pip install nvidia-no-such-wheel-cu12"):
        cuda_on_cpu.cuda_include_dirs.__wrapped__()


# ---- coverage ----


def test_coverage_names_the_lines(tmp_path: Path) -> None:
    lines = PLANTED.read_text().splitlines()
    one, two = (
        next(i for i, line in enumerate(lines, 1) if f"y[0] = T({n})" in line) for n in "12"
    )
    y = np.zeros(1)
    branch = function("branch<double>", "coverage")
    branch((1,), (1,), (y, np.int32(1)))
    write_coverage(tmp_path)
    found = line_coverage(tmp_path, DATA)["planted.cu"]
    assert one in found.executed
    assert two in found.missed
    other = function("branch<float>", "coverage")  # another instantiation of the same line
    other((1,), (1,), (y.view(np.float32), np.int32(2)))
    write_coverage(tmp_path)
    found = line_coverage(tmp_path, DATA)["planted.cu"]
    assert {one, two} <= found.executed
    assert not found.missed & found.executed


# ---- AddressSanitizer and UndefinedBehaviorSanitizer proper, in a child ----

CHILD = """
import numpy as np
from tests.cuda_on_cpu import EmulatedModule, FORWARD, KernelError, REVERSE, shuffled
from tests.test_cuda_on_cpu import DATA, PLANTED
def function(expression, schedule=FORWARD):
    module = EmulatedModule(PLANTED, include_dir=DATA, expression=expression, schedule=schedule)
    return module.get_function(expression)
"""


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            "x = np.zeros(1024, np.int32)\nfunction('read_past')((1,), (1024,), (x, x.copy()))",
            "heap-buffer-overflow.*READ of size 4",
        ),
        (
            "x = np.zeros(1024, np.int32)\nfunction('write_past')((1,), (1024,), (x, x.copy()))",
            "heap-buffer-overflow.*WRITE of size 4",
        ),
        (
            "x = np.zeros(32, np.int32)\n"
            "function('shared_overrun')((1,), (32,), (x, x.copy()), 128)",
            "use-after-poison",
        ),
        (
            "x = np.full(32, 2**15, np.int32)\nfunction('overflow')((1,), (32,), (x, x.copy()))",
            "signed integer overflow",
        ),
    ],
    ids=["read", "write", "shared", "overflow"],
)
def test_sanitizers_find(launch: str, message: str) -> None:
    done = run_sanitized("-c", CHILD + launch)
    assert done.returncode != 0
    assert re.search(message, done.stderr, re.DOTALL), done.stderr


def test_sanitizers_accept_what_is_right() -> None:
    done = run_sanitized(
        "-c",
        CHILD
        + "x = np.arange(3 * 1500, dtype=np.int32).reshape(3, 1500)\n"
        + "for schedule in (FORWARD, REVERSE, shuffled(1)):\n"
        + "    y = np.zeros(3, np.int32)\n"
        + "    f = function('block_sum<int>', schedule)\n"
        + "    f((3,), (1024,), (x, y, np.int32(1500)), 128)\n"
        + "    assert (y == x.sum(axis=1)).all()\n"
        + "    try:\n"
        + "        function('early_exit', schedule)((1,), (64,), (x, x.copy(), np.int32(40)))\n"
        + "    except KernelError as error:\n"
        + "        assert '24 exited' in str(error)\n"
        + "print('right')\n",
    )
    assert done.stdout == "right\n", done.stderr
