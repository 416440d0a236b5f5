"""What a plan promises: frozen, cached, readable, without arrays, in integers that hold."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, product
from math import gcd, prod
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupool
from gpupool import jit, planner, verify
from gpupool.dtypes import DTYPES
from gpupool.errors import GpupoolValueError
from gpupool.planner import (
    THREADS,
    Launch,
    parameters,
    plan,
    rows,
    rows_staged,
    separable,
    separable_planes,
    separable_vectors,
    specialised,
    strips,
    tile_cost,
)
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    AHEAD,
    FEW_THREADS,
    FILL,
    NEARLY,
    SECTOR_BYTES,
    SHARED_BYTES,
    WARP,
)
from gpupool.planner.parameters import PAIRED_TAPS, boolean, divisor
from gpupool.planner.rows_staged import COPY, MIRROR_BITS, MIRRORED_LINE, STAGE, STAGED_BYTES
from gpupool.planner.separable import CHUNK, PITCH
from gpupool.planner.separable_planes import Separated
from gpupool.planner.specialised import MAX_STRIDE, SPECIALISED_TAPS
from gpupool.planner.tile import Tile, positions
from gpupool.problem import SMALL_P, PoolProblem, Problem, contiguous, resolve
from gpupool.window import Axis
from tests import emulator, strategies
from tests.conftest import Backend, emulator_backend
from tests.cuda_on_cpu import EmulatedModule
from tests.tolerance import assert_bitwise

INT32_MAX = 2**31 - 1

POOL = {"kernel_shape": 3, "strides": 2, "pads": 1}
PROBLEM = resolve("max", (1, 64, 112, 112), "float16", **POOL)


def problems(n: int, seed: int = 0) -> list[Problem]:
    return [verify.draw_call(np.random.default_rng((seed, i))).problem for i in range(n)]


# The object


def test_a_plan_is_frozen() -> None:
    chosen = plan(PROBLEM)
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.workspace = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.launches[0].kernel = "other"  # type: ignore[misc]


def test_equal_problems_have_one_plan() -> None:
    again = resolve("MaxPool", [1, 64, 112, 112], np.float16, **POOL)
    assert plan(again) is plan(PROBLEM)
    one, other = (gpupool.plan("max", PROBLEM.shape, "float16", **POOL).plan for _ in range(2))
    assert one is other
    assert one == plan(PROBLEM)


def test_equal_plans_have_equal_bytes_whatever_lay_in_their_memory() -> None:
    """Between the fields of what a kernel receives, too."""
    problem = resolve("max", (2, 64, 56, 64), "float16", kernel_shape=(64, 56), channels_last=True)
    found = set()
    for byte in (0, 255):
        planner.plan.cache_clear()
        for size in range(1, 256):  # NumPy gives small memory again
            np.full(size, byte, np.uint8)
        chosen = plan(problem, kernel="channels")
        assert chosen.kernel == "channels"
        found.add(emulator.identity(chosen.launches))
    assert len(found) == 1


@pytest.mark.parametrize(
    "change", [{"strides": (2, 1)}, {"pads": 0}, {"storage_order": 1}, {"return_indices": True}]
)
def test_different_problems_have_different_plans(change: dict[str, Any]) -> None:
    assert plan(resolve("max", (1, 64, 112, 112), "float16", **POOL | change)) != plan(PROBLEM)


@pytest.mark.parametrize("kernel", planner.KERNELS)
@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("global-average", (0, 64, 112, 112), {}),
        ("max", (0, 3, 8, 8), {"kernel_shape": 3}),
        ("max", (1, 8, 8, 0), {"kernel_shape": 3, "channels_last": True}),
        ("lp", (2, 0, 40, 40, 40), {"kernel_shape": 13}),
    ],
)
def test_a_plan_of_no_outputs_launches_nothing(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any], kernel: str
) -> None:
    call = gpupool.plan(op, shape, "float32", kernel=kernel, **attributes)
    assert (call.plan.launches, call.plan.kernel) == ((), "none")
    assert repr(call).count("\n") == 0
    x = np.zeros(shape, np.float32)
    assert call(x).shape == call.problem.outputs[0].shape


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("max-roi", (1, 1, 8, 8), {"pooled_shape": 2, "num_rois": 0}),
        ("roi-align", (1, 0, 8, 8), {"num_rois": 1}),
        ("max-unpool", (0, 1, 4), {"kernel_shape": 2}),
    ],
)
def test_no_operator_launches_anything_for_no_outputs(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    assert gpupool.plan(op, shape, "float32", **attributes).plan.launches == ()


def test_strides_and_alignment_are_part_of_the_key() -> None:
    strided = plan(PROBLEM, (2 * 64 * 112 * 112, *contiguous(PROBLEM.shape)[1:]))
    unaligned = plan(PROBLEM, None, 2)
    assert len({id(plan(PROBLEM)), id(strided), id(unaligned)}) == 3


def test_a_plan_reads_well() -> None:
    head, *launches = repr(plan(PROBLEM)).splitlines()
    assert head == "Plan(MaxPool float16 (1, 64, 112, 112) -> (1, 64, 56, 56)"
    (line,) = launches
    assert line.startswith("  rows.cu: rows<Max<Half>, Sizes<3, 3>, Sizes<2, 2>, 1, 0, at_ends, ")
    assert line.endswith(", 64>>>)")


def test_a_plan_knows_where_windows_count_fewer_taps() -> None:
    def where(**window: Any) -> str:
        shape = (8, 64, 56, 56)
        (launch,) = plan(resolve("average", shape, "float16", kernel_shape=3, **window)).launches
        assert launch.source == "rows.cu"
        return launch.template[6]

    assert where() == where(pads=1, count_include_pad=True) == "nowhere"
    assert where(pads=1) == where(pads=(1, 0, 1, 0)) == "at_ends"
    assert where(pads=(0, 0, 0, 2)) == where(pads=(1, 0, 1, 2)) == "anywhere"


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_what_is_nearest_to_the_edge_is_in_every_window_over_it(dtype: str) -> None:
    """A tile of rows.cu may read it in place of a halo; its body is in the row."""
    random, clamped = np.random.default_rng(17), 0
    for _ in range(600):
        kernel, size = int(random.integers(1, 12)), 4 * int(random.integers(2, 16))
        before, behind = (int(n) for n in random.integers(0, kernel, 2))
        window = {"strides": int(random.integers(1, 4)), "ceil_mode": bool(random.integers(2))}
        problem = resolve(
            "max", (2, 3, size), dtype, kernel_shape=kernel, pads=(before, behind), **window
        )
        for tile in tiles_of(problem):
            if tile.over == "at_ends":
                clamped += 1
                assert_reads_what_is_nearest(problem.window[0], tile)
    assert clamped > 100


def tiles_of(problem: PoolProblem) -> list[Tile]:
    geometry = Geometry.of(problem, contiguous(problem.shape))
    sizes = product((1, 2, 4, 8, 16), range(1, 4 if len(geometry.dims) > 1 else 2))
    tiles = (Tile.of(problem, geometry, 16, n, 0, rows, 1, True) for n, rows in sizes)
    return [tile for tile in tiles if tile is not None]


def assert_reads_what_is_nearest(axis: Axis, tile: Tile) -> None:
    row, before, body = range(axis.size), axis.pad_begin, tile.outputs * axis.stride
    behind = max(0, (tile.outputs - 1) * axis.stride + axis.kernel - before - body)
    for first in range(0, axis.out, tile.outputs):
        start, outputs = first * axis.stride, range(first, first + tile.outputs)
        assert start + body <= axis.size
        assert outputs[-1] < axis.out
        starts = [output * axis.stride - before for output in outputs]
        windows = [range(start, start + axis.kernel) for start in starts]
        for halo, edge in ((before, start), (behind, start + body + _power_of_two(behind))):
            vector = range(edge - _power_of_two(halo), edge)
            shift = max(0, -vector.start) - max(0, vector.stop - axis.size)
            nearest = [position + shift for position in vector]
            assert set(nearest) <= set(row)
            over = [w for w in windows if shift and set(w) & set(vector)]
            assert all(set(nearest) <= set(window) for window in over), (axis, tile)


def _power_of_two(least: int) -> int:
    return next(n for n in (0, 1, 2, 4, 8, 16) if n >= least)


def test_few_threads_are_spread_over_more_blocks() -> None:
    def blocks(batch: int, op: str = "max", **window: int) -> tuple[int, int]:
        (launch,) = plan(resolve(op, (batch, 2048, 7, 7), "float16", **window)).launches
        return launch.grid[0], launch.block

    window = {"kernel_shape": 3, "strides": 3}
    assert blocks(1, "global-average") == (64, 64)
    assert blocks(64, "global-average") == (64 * 2048 // 256, 256)
    assert blocks(1, **window)[1] == 64 < blocks(64, **window)[1] == THREADS


def test_a_plan_holds_no_array_beyond_its_parameters() -> None:
    for problem in problems(300):
        for chosen in plan(problem).launches:
            assert all(np.ndim(scalar) == 0 for scalar in chosen.scalars)
            assert sum(scalar.nbytes for scalar in chosen.scalars) < 4096
            assert all(isinstance(text, str) for text in (*chosen.template, *chosen.operands))


def test_no_caller_can_change_the_parameters_of_a_plan() -> None:
    """All that ask for it share it."""
    for problem in problems(300):
        scalars = [scalar for chosen in plan(problem).launches for scalar in chosen.scalars]
        structs = [scalar for scalar in scalars if isinstance(scalar, np.ndarray)]
        assert not any(struct.flags.writeable for struct in structs)
        assert not any(isinstance(scalar, np.void) for scalar in scalars)


def test_grids_are_within_the_limits_of_a_device() -> None:
    for problem in problems(500, seed=1):
        for chosen in plan(problem).launches:
            assert 1 <= chosen.grid[0] <= INT32_MAX
            assert 1 <= chosen.grid[1] <= 65535
            assert 32 <= chosen.block <= THREADS


@pytest.mark.parametrize("size", [3, 4, 19, 20])
def test_small_planes_are_staged_unless_plane_is_asked_for(size: int) -> None:
    """Of enough elements to be worth it, and as far as shared memory holds a warp's."""
    problem = resolve("global-max", (8, 512, size, size), "float32")
    chosen = {kernel: plan(problem, kernel=kernel).kernel for kernel in ("auto", *planner.SHARING)}
    held = "plane" if size == 20 else "plane_staged"
    few = {"auto": "rows"} if size == 3 else {}
    assert chosen == {"auto": held, "plane": "plane", "plane_staged": held} | few
    (launch,) = plan(problem, alignment=4, kernel="plane_staged").launches
    assert launch.called == "plane", "planes begin with no vector"


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_windows_of_one_row_are_read_by_whole_vectors_wherever_they_begin(dtype: str) -> None:
    for size, lie in ((111, "ragged"), (112, "aligned")):
        problem = resolve("global-max", (8, 96, size, size), dtype)
        (launch,) = plan(problem, kernel="plane").launches
        *_, way, load = launch.template
        assert way == lie
        assert int(load) * problem.dtype.itemsize == 16
        (elsewhere,) = plan(problem, alignment=problem.dtype.itemsize, kernel="plane").launches
        assert elsewhere.template[-2:] == ("ragged", load)


def test_threads_of_few_staged_planes_have_all_their_vectors_on_the_way_at_once() -> None:
    """As far as a block has threads: a few loads of each, so that they wait for memory once."""
    for dtype, size in product(("float32", "float16", "uint8"), range(4, 17)):
        problem = resolve("global-average", (1, 2048, size, size), dtype)
        (launch,) = plan(problem).launches
        assert launch.kernel == "plane_staged"
        _, outputs, workers, each, *_ = launch.template
        assert launch.block == int(outputs) * int(workers)
        assert int(each) <= 4 or launch.block == THREADS


@pytest.mark.parametrize(
    ("dtype", "spatial", "window", "results", "slices_first", "columns"),
    [
        ("float16", (20, 20), {"kernel_shape": 13, "pads": 6}, True, False, True),
        ("float16", (28, 28), {"kernel_shape": 3, "pads": 1}, True, False, True),
        ("float16", (64, 6), {"kernel_shape": 3}, False, False, False),
        ("float16", (16, 14, 14), {"kernel_shape": 3, "strides": 2, "pads": 1}, True, True, False),
        ("int8", (14, 14), {"kernel_shape": 7, "pads": 3}, True, False, True),
        ("float32", (13, 13), {"kernel_shape": 5, "pads": 2}, True, False, True),
        # Seven planes are whole vectors, but their results are not.
        ("float32", (8, 25, 5), {"kernel_shape": 3}, True, False, False),
    ],
)
def test_rows_of_small_planes_are_staged_where_all_that_is_served_takes_less(
    dtype: str,
    spatial: tuple[int, ...],
    window: dict[str, Any],
    results: bool,
    slices_first: bool,
    columns: bool,
) -> None:
    """Only where they lie one behind the other, on whole vectors, and outputs fill the card.

    So are results whose stores would lie apart. Where columns, and then rows, take even less,
    these are compared as if rows alone were there.
    """
    problem = resolve("max", (64, 512, *spatial), dtype, **window)
    itemsize = problem.dtype.itemsize
    (launch,) = plan(problem).launches
    assert (launch.kernel == "separable_planes") == columns
    if columns:
        with emulator.constants(**emulator.ROWS_ALONE):
            (launch,) = plan(problem).launches
    planes, threads, each = map(int, launch.template[-7:-4])
    assert (launch.kernel, launch.block) == ("rows_staged", threads)
    assert launch.grid == (-(-64 * 512 // planes), 1)
    copied = planes * prod(spatial) * itemsize
    written = planes * prod(problem.outputs[0].shape[2:]) * itemsize
    assert copied % 16 == written * results % 16 == 0
    whole = 64 * 512 % planes == 0
    # What the last block has begins with a vector, too, but a kernel of blocks that differ asks.
    held = [copied, written][: 1 + results]
    assert launch.shared == sum(held) + (0 if whole else 16) * len(held) <= SHARED_BYTES
    assert each == copied // 16 // threads
    back = written // 16 // threads if results else -1
    assert launch.template[-4:-1] == (boolean(whole), str(back), boolean(slices_first))
    assert WARP <= threads <= THREADS
    assert threads > 0.95 * WARP * -(-threads // WARP)
    assert launch.shared <= STAGED_BYTES * threads
    few = dataclasses.replace(problem, shape=(1, 512, *spatial))
    images, channels, *steps = contiguous(problem.shape)
    apart = [(2 * images, channels * times, *steps) for times in (1, 2)]
    flipped = images, channels, -steps[0], *steps[1:]
    columns_first = images, channels, *reversed(steps)
    for other in (
        plan(few),
        plan(problem, alignment=itemsize),
        *(plan(problem, strides=strides) for strides in (*apart, flipped, columns_first)),
    ):
        assert other.launches[0].kernel not in planner.STAGED
    with emulator.constants(AHEAD=10**9):
        assert planner.STAGED.keys().isdisjoint(kernels(plan(problem).launches))
    for asked in ("rows", "rows_staged"):
        assert kernels(plan(problem, kernel=asked).launches) == [asked]


@pytest.mark.parametrize(
    ("op", "dtype", "spatial", "window"),
    [
        ("max", "float16", (13, 13), {"kernel_shape": 5, "pads": 2}),
        ("max", "int8", (19, 19), {"kernel_shape": 5, "pads": 2}),
        ("average", "uint8", (7, 7), {"kernel_shape": 3, "pads": 1}),
    ],
)
def test_odd_rows_are_read_from_shared_memory_as_a_whole_and_written_there(
    op: str, dtype: str, spatial: tuple[int, ...], window: dict[str, Any]
) -> None:
    """Of planes and results that are whole vectors; from elsewhere no kernel could read them.

    Where columns, and then rows, take less, as if rows alone were there.
    """
    with emulator.constants(**emulator.ROWS_ALONE):
        problem = resolve(op, (64, 512, *spatial), dtype, **window)
        (launch,) = plan(problem).launches
        load, _, planes, _, _, _, back, *_ = launch.template[-9:]
        itemsize, size = problem.dtype.itemsize, prod(spatial)
        assert launch.kernel == "rows_staged"
        assert int(back) >= 0, "the results too"
        assert int(load) >= spatial[-1] > int(load) // 2
        assert int(planes) * size * itemsize % 16 == 0
        assert launch.shared == 2 * int(planes) * size * itemsize <= STAGED_BYTES * launch.block
        few = dataclasses.replace(problem, shape=(1, 512, *spatial))
        images, channels, *steps = contiguous(problem.shape)
        apart = 2 * images, 2 * channels, *steps
        calls: list[tuple[PoolProblem, dict[str, Any]]] = [
            (few, {}), (problem, {"alignment": itemsize}), (problem, {"strides": apart})
        ]  # fmt: skip
        others = [plan(one, **arguments).launches for one, arguments in calls]
        spent = Counter({("rows", "another"): 1, ("separable_planes", "another"): 1})
        with patch.object(specialised, "admitted", spent), emulator.constants(SPECIALISATIONS=1):
            others.append(plan(problem).launches)
            with emulator.constants(AHEAD=10**9):
                refused = plan(problem).launches
        with emulator.constants(AHEAD=10**9):
            usual = [*(plan(one, **arguments).launches for one, arguments in calls), refused]
        assert [kernels(of) for of in others] == [kernels(of) for of in usual]
        assert "rows_staged" not in kernels(chain.from_iterable(others))


@pytest.mark.parametrize(
    ("op", "spatial", "window"),
    [
        ("max", (12, 12), {"kernel_shape": 3, "pads": 1}),
        ("lp", (21, 23), {"kernel_shape": 9, "strides": 2}),  # a long kernel, clearly less
    ],
)
def test_staged_rows_that_are_asked_for_are_those_that_are_chosen(
    op: str, spatial: tuple[int, ...], window: dict[str, Any]
) -> None:
    problem = resolve(op, (64, 512, *spatial), "float16", **window)
    chosen = plan(problem)
    assert chosen.kernel == "rows_staged"
    assert repr(plan(problem, kernel="rows_staged")) == repr(chosen)


def kernels(launches: Iterable[Launch]) -> list[str]:
    return [launch.kernel for launch in launches]


@pytest.mark.parametrize(
    ("dtype", "row", "load"),
    [
        ("float32", 13, 1),
        ("float16", 14, 2),
        ("float16", 13, 16),
        ("float16", 1, 1),
        ("int8", 12, 4),
        ("int8", 6, 8),
        ("int8", 2, 2),
    ],
)
def test_rows_in_shared_memory_are_read_as_a_whole_where_no_words_fit(
    dtype: str, row: int, load: int
) -> None:
    problem = resolve("max", (64, 512, 9, row), dtype, kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    geometry = Geometry.of(problem, contiguous(problem.shape))
    tile = Tile.of(problem, geometry, 16, row, row, 1, 1, True, staged=True)
    assert tile is not None
    assert (tile.load, tile.by_words) == (load, load > row)


def test_rows_in_shared_memory_are_taken_only_where_memory_is_not_the_limit_without() -> None:
    shape = (64, 512, 28, 28)
    fast, slow = (
        resolve("max", shape, dtype, kernel_shape=2, strides=2) for dtype in ("float64", "int8")
    )
    with emulator.constants(AHEAD=1e-9, **emulator.ROWS_ALONE):
        assert kernels(chain(plan(fast).launches, plan(slow).launches)) == ["rows", "rows_staged"]
        odd = resolve("max", (64, 512, 13, 13), "float16", kernel_shape=5, pads=2)
        (launch,) = plan(odd).launches
    assert launch.kernel == "rows_staged"
    assert int(launch.template[8]) > 1, "rows of outputs that share what they read"
    within = resolve("max", (64, 512, 12, 12), "float64", kernel_shape=3, strides=3)
    with emulator.constants(AHEAD=1, **emulator.ROWS_ALONE):
        assert kernels(plan(within).launches) == ["rows"]
        with emulator.constants(ALONE=0.9):  # what is served is half of what memory moves
            assert kernels(plan(within).launches) == ["rows_staged"]


@pytest.mark.parametrize(
    ("dtype", "spatial", "kernel"),
    [
        ("float32", (13, 13), 5),  # words themselves
        ("float16", (14, 14), 5),  # rows of whole words
        ("float16", (13, 128), 13),  # another kernel issues less
        ("int8", (41, 41), 5),  # longer rows than a thread takes, whose parts would differ
    ],
)
def test_other_rows_are_not_read_anywhere(
    dtype: str, spatial: tuple[int, ...], kernel: int
) -> None:
    window = {"kernel_shape": kernel, "pads": kernel // 2}
    (launch,) = plan(resolve("max", (64, 512, *spatial), dtype, **window)).launches
    assert launch.kernel != "rows_staged" or int(launch.template[-9]) <= spatial[-1]


def test_rows_of_staged_planes_past_the_cap_come_from_memory() -> None:
    """If their tile is compiled, as for some other number of rows; else another kernel serves."""
    small, other = (
        resolve("max", (64, 512, rows, 20), "float16", kernel_shape=13, pads=6) for rows in (20, 4)
    )
    asked = ((small, "rows"), (small, "rows_staged"), (other, "rows_staged"))
    with (
        patch.object(specialised, "admitted", Counter()),
        emulator.constants(SPECIALISATIONS=1),
    ):
        chosen = [plan(problem, kernel=kernel).launches for problem, kernel in asked]
    assert list(map(kernels, chosen)) == [["rows"], ["rows"], ["window"]]


@pytest.mark.parametrize(
    ("op", "dtype", "spatial", "window", "kernel"),
    [
        ("max", "float64", (7, 7, 7), {"kernel_shape": 3, "pads": 1}, "rows_staged"),
        # Rows of 64 bytes take sixteen turns for each load, those of 56 bytes two.
        ("max", "float64", (8, 8, 8), {"kernel_shape": 3, "pads": 1}, "rows"),
        # Few threads would have much shared memory.
        ("max", "int8", (28, 28, 28), {"kernel_shape": 2, "strides": 3}, "rows"),
        # No kernel of tiles has as many axes.
        ("max", "float16", (6, 6, 6, 6), {"kernel_shape": 3, "pads": 1}, "window"),
        # Memory is the limit anyway.
        ("max", "float32", (28, 28), {"kernel_shape": 3, "strides": 2, "pads": 1}, "rows"),
    ],
)
def test_rows_that_gain_nothing_by_it_are_not_staged(
    op: str, dtype: str, spatial: tuple[int, ...], window: dict[str, Any], kernel: str
) -> None:
    (launch,) = plan(resolve(op, (64, 512, *spatial), dtype, **window)).launches
    assert launch.kernel == kernel


def staged_ways(dtype: str, spatial: tuple[int, ...], **window: Any) -> list[rows_staged.Staged]:
    """All that staged planes might be done by."""
    problem = resolve("max", (64, 512, *spatial), dtype, **window)
    geometry = Geometry.of(problem, contiguous(problem.shape))
    with emulator.constants(BLOCKS=0, STAGED_BYTES=10**9, SHORT_CODE=10**9):
        return list(rows_staged._ways(problem, geometry, 16))


def most_of_a_bank(addresses: Sequence[int], width: int) -> int:
    """Turns of a warp, by a set of words for each bank."""
    turns, together = 0, 128 // max(width, 4)
    for first in range(0, len(addresses), together):
        banks: dict[int, set[int]] = defaultdict(set)
        for address in addresses[first : first + together]:
            for word in range(address // 4, (address + width - 1) // 4 + 1):
                banks[word % 32].add(word)
        turns += max(map(len, banks.values()))
    return turns


@pytest.mark.parametrize(
    ("dtype", "spatial", "window"),
    [
        ("float16", (20, 20), {"kernel_shape": 5}),
        ("int8", (13, 13), {"kernel_shape": 3}),  # rows that begin anywhere
        ("float16", (5, 15), {"kernel_shape": 3, "pads": 1}),  # and parts of rows
        ("float64", (9, 7), {"kernel_shape": 2}),
        ("float16", (8, 14, 14), {"kernel_shape": 2, "strides": 2}),
        ("float32", (6, 7, 8), {"kernel_shape": (2, 3, 3)}),
        ("float32", (24,), {"kernel_shape": 2, "strides": 2}),
    ],
)
def test_turns_of_staged_rows_count_as_threads_of_the_kernel_read_and_write(
    dtype: str, spatial: tuple[int, ...], window: dict[str, Any]
) -> None:
    """Threads are decoded as Block of kernels/rows.cuh does: row groups, then slices, or first."""
    ways = staged_ways(dtype, spatial, **window)
    assert {way.results for way in ways} == {False, True}
    assert {way.slices_first for way in ways} == ({False, True} if len(spatial) > 2 else {False})
    for way in ways:
        problem, tile, itemsize = way.problem, way.tile, way.problem.dtype.itemsize
        out = problem.outputs[0].shape[2:]
        groups = -(-out[-2] // tile.rows) if len(out) > 1 else 1
        slices = out[0] if len(out) > 2 else 1
        parts = 1 if tile.row else out[-1] // tile.outputs
        down = problem.window[-2] if len(out) > 1 else Axis(1, 1, 1, 1, 0, 0, 1)
        lines = (tile.rows - 1) * down.stride + down.kernel
        even = lines % 2 == 0 and groups * tile.rows == down.out
        assert {of.mirrored for of in ways if of.tile == tile} == set(MIRROR_BITS if even else (0,))
        reads, writes = list[list[int]](), list[list[int]]()
        for thread in range(way.planes * groups * slices * parts):
            rest, part = divmod(thread, parts)
            if way.slices_first:
                rest, slice_ = divmod(rest, slices)
                plane, group = divmod(rest, groups)
            else:
                rest, group = divmod(rest, groups)
                plane, slice_ = divmod(rest, slices)
            step = -1 if thread & way.mirrored else 1
            first = group * tile.rows * down.stride - down.pad_begin
            at, to = plane * prod(spatial), plane * prod(out)
            if len(out) > 2:
                at += slice_ * problem.window[0].stride * prod(spatial[1:])
                to += slice_ * prod(out[1:])
            at += 16 // itemsize + part * tile.outputs * problem.window[-1].stride
            if tile.by_words and not tile.row:
                at -= problem.window[-1].pad_begin
            to += part * tile.outputs
            nearest = [min(max(first + line, 0), down.size - 1) for line in range(lines)[::step]]
            places = [(at + line * spatial[-1]) * itemsize for line in nearest]
            reads.append([place // 4 * 4 if tile.by_words else place for place in places])
            results = [min(group * tile.rows + r, down.out - 1) for r in range(tile.rows)[::step]]
            writes.append([(to + row * out[-1]) * itemsize for row in results])
        warps = range(0, len(reads), WARP)
        load, store = 4 if tile.by_words else tile.load * itemsize, tile.store * itemsize
        read, written = (
            fmean(most_of_a_bank(of[i : i + WARP], width) for of in each for i in warps)
            for each, width in (
                (np.transpose(reads).tolist(), load),
                (np.transpose(writes).tolist(), store),
            )
        )
        loads = rows.warp_loads(problem, way.geometry, tile)
        stores = rows.warp_stores(way.geometry, tile) if way.results else 0
        assert way.turns == pytest.approx(loads * read + stores * written), way


def test_what_staged_planes_cost_counts_as_by_hand() -> None:
    """Maxima of 2 x 2 on 64 x 512 planes of 8 x 8 floats: 7 rows of two vectors each."""
    ways = staged_ways("float32", (8, 8), kernel_shape=2)
    lines_of_two = [way for way in ways if way.tile.rows == 1 and way.tile.row]
    one, two = (way for way in lines_of_two if not way.mirrored)
    assert (one.results, two.results) == (False, True)
    planes, threads = 64 * 512, 64 * 512 * 7
    read, written = planes * 256, planes * 196
    alone = rows.instructions(one.problem, one.geometry, one.tile)
    assert one.instructions == alone
    assert two.instructions == alone + STAGE * threads + COPY * (read + written) / 16
    assert two.rivals_cost == AHEAD * two.instructions
    odd = staged_ways("int8", (13, 13), kernel_shape=3)
    assert all(way.rivals_cost == way.instructions for way in odd if way.tile.by_words)
    assert any(way.tile.by_words for way in odd)
    assert rows.warp_loads(one.problem, one.geometry, one.tile) == threads / WARP * 2 * 2
    assert rows.warp_stores(one.geometry, one.tile) == threads / WARP * 7
    # A line of 128 bytes, and a turn for as many.
    copies = (64 + 128) / 128
    stores = rows.store_cost(one.problem.outputs, one.geometry, one.tile)
    loads, kept = 128 * threads / WARP * 4, 128 * threads / WARP * 7  # in a turn each
    assert one.least_cost == pytest.approx(alone + copies * read + loads + stores)
    sectors = 120 * written / 32
    served = copies * (read + written) + loads + kept + sectors
    assert two.least_cost == pytest.approx(two.instructions + served)
    for way in lines_of_two:
        mirrored = 2 * MIRRORED_LINE * threads if way.mirrored else 0
        assert way.instructions == (two if way.results else one).instructions + mirrored
        served = loads + kept * way.results
        assert way.cost == pytest.approx(way.least_cost + 128 * way.turns - served)
        assert way.code > tile_cost.Estimate.of(way.problem, way.geometry, way.tile).code


@pytest.mark.parametrize(("size", "kernel"), [(13, 3), (20, 13)])
def test_of_staged_planes_a_short_kernel_is_taken_where_it_costs_nearly_as_little(
    size: int, kernel: int
) -> None:
    """Of those that are not mirrored, which only short ones are compared."""
    ways = staged_ways("float16", (size, size), kernel_shape=kernel, pads=kernel // 2)
    not_mirrored = (way for way in ways if way.code <= rows.MOST_CODE and not way.mirrored)
    fewest = min(not_mirrored, key=lambda way: way.cost)
    taken = rows_staged.cheapest(fewest.problem, fewest.geometry, 16)
    assert taken is not None
    assert taken.code <= rows.SHORT_CODE < fewest.code
    assert fewest.cost < taken.cost <= NEARLY * fewest.cost
    with emulator.constants(NEARLY=1, MIRROR_BITS=(0,)):
        assert rows_staged.cheapest(fewest.problem, fewest.geometry, 16) == fewest


@pytest.mark.parametrize(
    ("op", "dtype", "size", "window", "mirrored"),
    [
        ("max", "float16", 20, {"kernel_shape": 5, "pads": 2}, 8),
        ("average", "float16", 16, {"kernel_shape": 4, "strides": 2, "pads": 1}, 2),
        ("lp", "float16", 14, {"kernel_shape": 2, "strides": 2}, 16),
        # An even thread's last line is the first one of the next, who reads it at the same time.
        ("max", "float32", 12, {"kernel_shape": 2}, 1),
        # A long kernel, chosen for itself.
        ("max", "int8", 20, {"kernel_shape": 9, "pads": 4}, 16),
    ],
)
def test_tiles_whose_lines_meet_in_banks_take_them_from_either_end(
    op: str, dtype: str, size: int, window: dict[str, Any], mirrored: int
) -> None:
    problem = resolve(op, (64, 512, size, size), dtype, **window)
    (launch,) = plan(problem, kernel="rows_staged").launches
    assert (launch.kernel, launch.template[-1]) == ("rows_staged", str(mirrored))
    cheapest = partial(
        rows_staged.cheapest, problem, Geometry.of(problem, contiguous(problem.shape)), 16
    )
    taken = cheapest()
    with emulator.constants(MIRROR_BITS=(0,)):
        best_of_others = cheapest()
    assert taken is not None
    assert best_of_others is not None
    assert taken.launch().template == launch.template
    assert taken.cost < best_of_others.cost
    assert taken.turns < 0.8 * dataclasses.replace(taken, mirrored=0).turns


def test_no_tile_is_longer_for_being_mirrored() -> None:
    """Two rows, mirrored, would cost clearly less than one, but compile for longer than 100 ms."""
    problem = resolve("max", (64, 512, 20, 20), "float16", kernel_shape=13, pads=6)
    with emulator.constants(**emulator.ROWS_ALONE):
        (launch,) = plan(problem).launches
    assert (launch.kernel, launch.template[8], launch.template[-1]) == ("rows_staged", "1", "0")
    ways = staged_ways("float16", (20, 20), kernel_shape=13, pads=6)
    (taken,) = (way for way in ways if way.launch().template == launch.template)
    two = min((way for way in ways if way.tile.rows == 2), key=lambda way: way.cost)
    assert two.mirrored
    assert AHEAD * two.cost < taken.cost
    assert taken.code <= rows.SHORT_CODE < two.code


def test_tiles_whose_codes_tell_lines_by_their_order_are_not_mirrored() -> None:
    window = {"kernel_shape": 2, "strides": 2}
    codes, values = (staged_ways("float16", (14, 14), return_indices=i, **window) for i in (1, 0))
    assert {way.mirrored for way in codes} == {0} < {way.mirrored for way in values}


@pytest.mark.parametrize(
    ("op", "dtype", "size", "window"),
    [
        ("lp", "float16", 35, {"kernel_shape": 3, "pads": 1}),
        ("average", "int8", 35, {"kernel_shape": 3, "pads": 1}),
        ("max", "int8", 71, {"kernel_shape": 3, "strides": 2}),
    ],
)
def test_rows_longer_than_a_thread_takes_are_staged_in_equal_parts(
    op: str, dtype: str, size: int, window: dict[str, Any]
) -> None:
    """A line that no words fit is read as a whole, with halos, which may lie outside of planes."""
    problem = resolve(op, (64, 256, size, size), dtype, **window)
    itemsize, out = problem.dtype.itemsize, problem.outputs[0].shape[-1]
    with emulator.constants(LONG_CODE=1000, AHEAD=1):
        (launch,) = plan(problem).launches
    row, outputs, load, _, planes = (int(launch.template[i]) for i in (4, 7, 9, 10, 11))
    assert (launch.kernel, row) == ("rows_staged", 0)
    assert out % outputs == 0
    assert load > outputs * problem.window[-1].stride
    read, written = (planes * n**2 * itemsize for n in (size, out))
    assert read % 16, "planes begin anywhere in a vector"
    held = [-(-(n + 16 - itemsize) // 16) * 16 for n in (read, written)]
    assert launch.shared == 16 + sum(held) + 16


def test_staged_rows_that_begin_anywhere_are_not_left_to_kernels_that_count_no_lines() -> None:
    problem = resolve("average", (64, 256, 45, 45), "int8", kernel_shape=3, pads=1)
    (launch,) = plan(problem).launches
    assert launch.kernel == "rows_staged"
    with emulator.constants(LONG_CODE=0):  # as if it could not be staged
        (launch,) = plan(problem).launches
    assert launch.source == "separable_vectors.cu"


def test_halos_that_margins_do_not_hold_are_not_read_by_parts_of_rows() -> None:
    assert not all(way.tile.row for way in staged_ways("float32", (33, 33), kernel_shape=9, pads=4))
    assert all(way.tile.row for way in staged_ways("float32", (33, 33), kernel_shape=11, pads=5))
    ends = {"kernel_shape": 9, "pads": (0, 0, 0, 6)}
    assert all(way.tile.row for way in staged_ways("float32", (33, 35), **ends))


def test_a_long_kernel_of_staged_planes_costs_clearly_less_than_a_short_one() -> None:
    problem = resolve("max", (64, 512, 13, 13), "float16", kernel_shape=13, pads=6)
    geometry = Geometry.of(problem, contiguous(problem.shape))
    taken = rows_staged.cheapest(problem, geometry, 16)
    with emulator.constants(LONG_CODE=0):
        short = rows_staged.cheapest(problem, geometry, 16)
    assert taken is not None
    assert short is not None
    assert short.code <= rows.MOST_CODE < taken.code <= rows.LONG_CODE
    assert AHEAD * taken.cost <= short.cost
    with emulator.constants(AHEAD=10):
        assert rows_staged.cheapest(problem, geometry, 16) == short


def separated(dtype: str, spatial: tuple[int, ...], op: str = "max", **window: Any) -> Separated:
    """What takes columns, then rows, of 64 x 512 such planes."""
    problem = resolve(op, (64, 512, *spatial), dtype, **window)
    way = separable_planes.cheapest(problem, Geometry.of(problem, contiguous(problem.shape)), 16)
    assert way is not None
    return way


@pytest.mark.parametrize(
    ("dtype", "spatial", "window", "numbers"),
    [
        (
            "float16",
            (20, 20),
            {"kernel_shape": 13, "pads": 6},
            "6 6 20 20 20 20 2 4 10 202 false 16 160 5",
        ),
        (
            "float32",
            (13, 13),
            {"kernel_shape": 5, "pads": 2},
            "2 2 13 13 13 13 1 1 13 169 false 16 208 3",
        ),
        ("float64", (13, 13), {"kernel_shape": 7}, "0 0 13 13 7 7 1 1 13 91 false 16 208 1"),
        # Of narrow elements two columns are in a word, or two planes.
        (
            "bfloat16",
            (9, 10),
            {"kernel_shape": 7, "pads": 3},
            "3 3 9 10 9 10 1 2 5 45 false 32 160 2",
        ),
        (
            "float16",
            (13, 13),
            {"kernel_shape": 13, "pads": 6},
            "6 6 13 13 13 13 1 0 13 169 false 32 208 3",
        ),
        (
            "int8",
            (14, 10),
            {"kernel_shape": 7, "pads": 3},
            "3 3 14 10 14 10 1 2 5 70 false 32 224 1",
        ),
        # Rows of results that are two vectors, or four, would meet in banks.
        (
            "int8",
            (14, 32),
            {"kernel_shape": 7, "pads": 3},
            "3 3 14 32 14 32 4 16 20 304 true 4 64 1",
        ),
        (
            "float32",
            (16, 16),
            {"kernel_shape": 13, "pads": 6},
            "6 6 16 16 16 16 4 4 20 336 true 4 64 4",
        ),
        # More results than elements.
        (
            "float32",
            (13, 13),
            {"kernel_shape": 5, "pads": 4},
            "4 4 13 13 17 17 1 1 13 221 false 8 136 4",
        ),
    ],
)
def test_small_planes_take_maxima_down_columns_then_along_rows_where_that_costs_least(
    dtype: str, spatial: tuple[int, ...], window: dict[str, Any], numbers: str
) -> None:
    """In whole blocks, whose results are whole vectors."""
    way = separated(dtype, spatial, **window)
    problem = way.problem
    (launch,) = plan(problem).launches
    pitch, layer, spread, planes, threads, _, whole = launch.template[-7:]
    assert (launch.kernel, " ".join(launch.template[3:-1])) == ("separable_planes", numbers)
    assert (64 * 512 % int(planes), whole) == (0, "true")
    assert (launch.grid, launch.block) == ((64 * 512 // int(planes), 1), int(threads))
    out = problem.outputs[0].shape[2:]
    results = int(planes) * prod(out) * problem.dtype.itemsize
    assert results % 16 == 0
    cell = max(problem.dtype.itemsize, 4)
    assert int(layer) >= out[0] * int(pitch)
    layers = int(planes) // (2 if spatial[1] % 2 and cell > problem.dtype.itemsize else 1)
    assert launch.shared == max(layers * int(layer) * cell, -(-results // 128) * 128)
    assert (spread == "true") == (out[1] * problem.dtype.itemsize in (32, 64, 128))
    assert launch.shared <= SHARED_BYTES
    assert FEW_THREADS <= launch.block <= THREADS
    assert plan(problem, kernel="separable_planes").launches == (launch,)
    others = rows_staged.cheapest(problem, way.geometry, 16)
    assert others is None or way.cost < others.cost
    with emulator.constants(AHEAD=10**9):
        assert planner.STAGED.keys().isdisjoint(kernels(plan(problem).launches))


@pytest.mark.parametrize(
    ("dtype", "kernel"), [("float16", "separable_planes"), ("int8", "rows_staged")]
)
def test_rows_are_staged_where_columns_do_not_cost_nearly_as_little(
    dtype: str, kernel: str
) -> None:
    way = separated(dtype, (20, 20), kernel_shape=3, pads=1)
    other = rows_staged.cheapest(way.problem, way.geometry, 16)
    assert other is not None
    assert other.cost < way.cost
    assert (other.cost < way.cost / NEARLY) == (kernel == "rows_staged")
    assert plan(way.problem).kernel == kernel


NO_COLUMNS: dict[str, tuple[Any, ...]] = {
    "Indices": ("max", "float32", (64, 512, 20, 20), {"return_indices": True}),
    "averages of bytes": ("average", "uint8", (64, 512, 20, 20), {}),
    "norms": ("lp", "float32", (64, 512, 20, 20), {}),
    "averages of many taps": (
        "average",
        "float32",
        (64, 512, 20, 20),
        {"kernel_shape": (17, 16), "pads": 8},
    ),
    "dilated windows": (
        "max",
        "float32",
        (64, 512, 20, 20),
        {"dilations": (1, 2), "pads": (6, 12, 6, 12)},
    ),
    "windows in the padding": (
        "max",
        "float32",
        (64, 512, 20, 20),
        {"strides": (2, 1), "pads": (14, 6, 14, 6)},
    ),
    "three axes": ("max", "float32", (64, 512, 13, 13, 13), {"pads": 6}),
    "few outputs": ("max", "float32", (1, 512, 20, 20), {"pads": 6}),
    "more threads than a block has": ("max", "int8", (64, 512, 13, 514), {"pads": 6}),
}


def test_averages_of_as_many_taps_as_a_table_has_are_taken_by_columns() -> None:
    assert separated("float32", (20, 20), "average", kernel_shape=16, pads=8).geometry.taps == 256


@pytest.mark.parametrize("why", NO_COLUMNS)
def test_other_planes_are_not_taken_by_columns(why: str) -> None:
    reduction, dtype, shape, more = NO_COLUMNS[why]
    window = {"kernel_shape": 13} | more
    problem = resolve(reduction, shape, dtype, **window)
    geometry = Geometry.of(problem, contiguous(shape))
    assert separable_planes.cheapest(problem, geometry, 16) is None
    with pytest.raises(GpupoolValueError, match="does not serve"):
        gpupool.plan(reduction, shape, dtype, kernel="separable_planes", **window)


@pytest.mark.parametrize(
    ("dtype", "spatial", "window", "lifted"),
    [
        ("float64", (40, 40), {"kernel_shape": 13, "pads": 6}, {"LONG_CODE": 1000}),
        # Two planes in words: columns of as many elements.
        ("float16", (81, 81), {"kernel_shape": 3, "strides": 3}, {"LINE": 162}),
        # Blocks of 160 threads, at least, which hold rows.
        ("float32", (20, 150), {"kernel_shape": 3, "strides": 3}, {"AT_ONCE": 2}),
    ],
)
def test_columns_are_taken_where_code_is_short_and_registers_hold_some_blocks(
    dtype: str, spatial: tuple[int, ...], window: dict[str, Any], lifted: dict[str, int]
) -> None:
    problem = resolve("max", (64, 512, *spatial), dtype, **window)
    geometry = Geometry.of(problem, contiguous(problem.shape))
    assert separable_planes.cheapest(problem, geometry, 16) is None
    with emulator.constants(**lifted):
        assert separable_planes.cheapest(problem, geometry, 16) is not None


def test_columns_are_not_taken_where_rows_are_as_soon_as_memory() -> None:
    """Though much less is served: rows have more threads and shorter kernels."""
    way = separated("float32", (32, 32), "average", kernel_shape=3, strides=2, pads=1)
    tile = rows.cheapest(way.problem, way.geometry, 16)
    assert tile is not None
    needed = rows.total_cost(way.problem, way.geometry, tile.usual)
    assert way.code <= rows.MOST_CODE
    assert AHEAD * way.cost < needed < rows.memory_time(way.problem, way.geometry)
    assert plan(way.problem).kernel == "rows"
    with emulator.constants(ALONE=0.9):  # as if it came later
        assert plan(way.problem).kernel == "separable_planes"


def test_long_code_of_columns_and_rows_must_cost_clearly_less() -> None:
    short, long = (separated("float16", (size, size), kernel_shape=3, pads=1) for size in (47, 63))
    assert short.code <= rows.MOST_CODE < long.code <= rows.LONG_CODE
    for way, less in ((short, 1), (long, AHEAD)):
        for most, served in ((1.001 * way.cost, way), (0.999 * way.cost, None)):
            found = separable_planes.cheapest(way.problem, way.geometry, 16, less * most)
            assert found == served


def test_columns_and_rows_have_short_code_where_any_has() -> None:
    """Blocks that are not whole issue a little less, by more code."""
    way = separated("float16", (68, 68), kernel_shape=3, pads=1)
    ways = list(separable_planes._ways(way.problem, way.geometry))
    least = min(ways, key=lambda one: one.instructions)
    assert way.code <= rows.MOST_CODE < least.code
    assert least.instructions < way.instructions


@pytest.mark.parametrize(
    ("dtype", "size", "kernel", "stride", "limit"),
    [("bfloat16", 69, 3, 1, rows.LONG_CODE), ("uint8", 58, 3, 2, rows.MOST_CODE)],
)
def test_odd_rows_of_results_are_written_singly_where_words_would_take_too_long_code(
    dtype: str, size: int, kernel: int, stride: int, limit: float
) -> None:
    way = separated(dtype, (size, size), kernel_shape=kernel, strides=stride, pads=1)
    by_words = dataclasses.replace(way, by_words=True)
    assert (way.by_words, way.widths[1], by_words.widths[1]) == (False, 1, 0)
    assert way.code <= limit < by_words.code
    assert by_words.turns < way.turns
    assert plan(way.problem).kernel == "separable_planes"


def test_blocks_whose_results_begin_anywhere_in_a_vector_are_smaller() -> None:
    """Eight planes of 63 x 63 results are whole vectors, and too much for three blocks at once."""
    way = separated("float16", (63, 63), kernel_shape=3, strides=2)
    results = 31 * 31 * 2
    assert way.planes * results % 16 != 0
    whole = dataclasses.replace(way, planes=8)
    assert 3 * way.registers <= 2**16 < 3 * whole.registers
    assert way.code - whole.code == separable_planes.UNEVEN + separable_planes.SKEW
    launch = way.launch()
    cells, ends = (way.planes // 2 * way.layer * 4, way.planes * results + 14)
    assert launch.shared == max(cells, -(-ends // 128) * 128)
    assert launch.template[-1] == "false"
    (chosen,) = plan(way.problem).launches
    assert chosen == launch


def test_columns_of_planes_that_lie_apart_or_between_vectors_are_not_taken() -> None:
    way = separated("float32", (20, 20), kernel_shape=13, pads=6)
    images, channels, *steps = contiguous(way.problem.shape)
    apart = [(2 * images, channels * times, *steps) for times in (1, 2)]
    flipped, columns_first = (images, channels, -20, 1), (images, channels, 1, 20)
    for strides in (*apart, flipped, columns_first):
        assert plan(way.problem, strides).kernel != "separable_planes"
        geometry = Geometry.of(way.problem, strides)
        assert separable_planes.cheapest(way.problem, geometry, 16) is None
    assert plan(way.problem, alignment=4).kernel != "separable_planes"
    assert separable_planes.cheapest(way.problem, way.geometry, 8) is None


def test_past_the_cap_of_sizes_no_columns_are_taken() -> None:
    small, other = (
        resolve("max", (64, 512, size, size), "float32", kernel_shape=13, pads=6)
        for size in (20, 14)
    )
    with (
        patch.object(specialised, "admitted", Counter()),
        emulator.constants(SPECIALISATIONS=1),
    ):
        chosen = [plan(problem).launches for problem in (small, other, small)]
    expected = ["separable_planes", "rows_staged", "separable_planes"]  # which count by themselves
    assert [of[0].kernel for of in chosen] == expected


@pytest.mark.parametrize(
    ("dtype", "spatial", "window"),
    [
        ("float16", (20, 20), {"kernel_shape": 13, "pads": 6}),
        ("float16", (13, 14), {"kernel_shape": 6, "strides": 2, "pads": (0, 3, 1, 3)}),
        ("float32", (13, 13), {"kernel_shape": 5, "pads": 2}),
        ("float64", (12, 10), {"kernel_shape": (7, 9), "pads": (3, 4, 3, 4)}),
        ("int8", (10, 12), {"kernel_shape": 9, "pads": 4}),
        ("float16", (13, 13), {"kernel_shape": 13, "pads": 6}),
        ("uint8", (8, 13), {"kernel_shape": (5, 7), "strides": (2, 1), "pads": (2, 3, 1, 2)}),
        ("uint8", (13, 13), {"kernel_shape": 5, "pads": 2}),  # words of rows that begin anywhere
        ("int8", (14, 14), {"kernel_shape": 3, "pads": 1}),
        ("float16", (13, 17), {"op": "average", "kernel_shape": 3, "pads": 1}),
        ("float64", (9, 12), {"op": "average", "kernel_shape": 3, "strides": 2}),
    ],
)
def test_turns_of_columns_and_rows_count_as_threads_of_the_kernel_read_and_write(
    dtype: str, spatial: tuple[int, int], window: dict[str, Any]
) -> None:
    """Of every number of planes, however these lie; of an odd number of rows as of one more."""
    cheapest = separated(dtype, spatial, **window)
    (rows, elements), item = cheapest.problem.outputs[0].shape[2:], cheapest.problem.dtype.itemsize
    many, cell = (2 if item < 4 and window.get("op") != "average" else 1), max(item, 4)
    deep = 2 if spatial[1] % many else 1
    wide = many // deep
    columns = spatial[1] // wide
    ways = list(separable_planes._ways(cheapest.problem, cheapest.geometry))
    assert len({way.planes for way in ways}) == len(ways) > 1
    for way in (*ways, *(dataclasses.replace(way, aligned=True) for way in ways)):
        load, store, pitch, layer = map(int, way.launch().template[9:13])
        layers = range(-(-way.planes // deep))
        assert layer * cell % 128 == columns * cell % 128 if way.aligned else layer == rows * pitch
        turns = 0
        for row in range(rows):
            places = [at * layer + row * pitch + c for at, c in product(layers, range(columns))]
            turns += turns_of_warps(places, cell, cell)
        busy = -(-len(layers) * rows // wide)
        for half in range(wide):
            lines = [divmod(half * busy + thread, rows) for thread in range(busy)]
            for first in range(0, columns, load):
                places = [at * layer + row * pitch + first for at, row in lines]
                turns += turns_of_warps(places, cell, load * cell)
            for other in range(deep):
                begins = [((at * deep + other) * rows + row) * elements for at, row in lines]
                if store == 0:
                    turns += turns_of_words(begins, elements, item)
                for first in range(0, elements, store) if store else ():
                    places = [place + first for place in begins]
                    if way.spread:
                        places = [spread(place * item // 16) * 16 // item for place in places]
                    turns += turns_of_warps(places, item, store * item)
        assert way.turns == pytest.approx(turns * 64 * 512 / way.planes), way


def spread(vector: int) -> int:
    """Where kernels/staged.cuh puts a vector."""
    return vector ^ (vector >> 3 ^ vector >> 6) & 7


def turns_of_warps(places: Sequence[int], itemsize: int, width: int) -> int:
    """Turns of the warps that access so many bytes at each of these elements."""
    warps = (places[i : i + WARP] for i in range(0, len(places), WARP))
    return sum(most_of_a_bank([place * itemsize for place in warp], width) for warp in warps)


def turns_of_words(begins: Sequence[int], elements: int, item: int) -> int:
    """Turns of rows of results that begin anywhere, each of singles and of whole words."""
    width, turns = 4 // item, 0
    for i in range(0, len(begins), WARP):
        words: dict[int, list[int]] = {}
        singles: dict[tuple[str, int], list[int]] = {}
        for begin in begins[i : i + WARP]:
            end, first = begin + elements, -(-begin // width) * width
            last = end // width * width
            for place in range(begin, first):
                singles.setdefault(("front", place - begin), []).append(place * item)
            for place in range(first, last, width):
                words.setdefault(place - first, []).append(place * item)
            for place in range(last, end):
                singles.setdefault(("behind", place - end), []).append(place * item)
        for width_of, stores in ((4, words.values()), (item, singles.values())):
            turns += sum(most_of_a_bank(places, width_of) for places in stores)
    return turns


def test_what_columns_and_rows_cost_counts_as_by_hand() -> None:
    """Maxima of 3 x 3, two apart, of 64 x 512 planes of 8 x 8 floats: 4 rows of one vector each."""
    way = separated("float32", (8, 8), kernel_shape=3, strides=2, pads=1)
    assert (way.planes, way.threads, way.lines) == (8, 64, (64, 32))
    access, _, merge, _ = separable_planes.COSTS["float32"]
    # Two windows, of rows 0, 1 and 1 to 3, and two, of 3 to 5 and 5 to 7, share a row: 0 with 1, 2
    # with 3, and both are merged; 4 and 3 with 5, 6 with 7, and both.
    column = 12 * access + 7 * merge
    row = 3 * access + 7 * merge  # two loads of four, and one store
    issued = 32 * (2 * (separable_planes.SETUP + column) + row) * 64 * 512 / 8
    written = 64 * 512 * 64
    issued += separable_planes.COPY * written / 16
    assert way.instructions == pytest.approx(issued)
    # A warp reads columns of four planes, each time a row of each.
    assert way.lookups == 64 * 512 / 8 * (2 * 8 * 4)
    served = (64 + 128) / 128 * written + 120 * written / 32 + 64 * way.lookups + 128 * way.turns
    assert way.cost == pytest.approx(issued + served)
    assert way.least_cost == pytest.approx(way.cost - 128 * (way.turns - way.least_turns))
    # Two warps write 4 words of columns, and one takes 3 vectors of rows, of four turns.
    assert way.least_turns == 64 * 512 / 8 * (2 * 4 + 4 * 3)
    assert way.rivals_cost == AHEAD * way.instructions
    uneven = dataclasses.replace(way, planes=24)
    more = separable_planes.UNEVEN
    assert uneven.code == way.code + more
    assert uneven.instructions - issued == pytest.approx(more * 8 * 64 * 512)


@pytest.mark.parametrize(
    ("dtype", "columns", "accesses", "words"),
    [
        # Down 8 rows and their 6 results; along 4 words and 6 results of each of two rows, by four
        # and by two, or along 9 and the words that 7 of two planes have.
        ("float16", 8, (8 + 6, 2 * (4 / 4 + 6 / 2)), (0, 8 + 6)),
        ("uint8", 10, (8 + 6, 2 * (5 / 1 + 8 / 8)), (8, 10 + 8)),
        ("float16", 9, (2 * 8 + 6, 9 + 2 * 3), (8, 7)),
        ("int8", 9, (2 * 8 + 6, 9 + 2 * 1), (8, 7)),
    ],
)
def test_words_of_two_elements_are_made_and_taken_apart(
    dtype: str, columns: int, accesses: tuple[float, float], words: tuple[int, int]
) -> None:
    way = separated(dtype, (8, columns), kernel_shape=3)
    way = dataclasses.replace(way, by_words=columns % 2 == 1)
    access, word, merge, result = separable_planes.COSTS[dtype]
    assert word == result  # of which there are two in each
    anywhere = 0.0
    if columns % 2:
        singles, whole = {"float16": (2, 3), "int8": (6, 1)}[dtype]
        of_single = separable_planes.SINGLE * singles
        anywhere = 2 * (separable_planes.ANYWHERE + of_single + whole)
    for found, accessed, made, axis, more in zip(
        way._of_lines, accesses, words, way.problem.window, (0, anywhere), strict=True
    ):
        merged = merge * separable_planes.merges(axis)
        assert found == pytest.approx(access * accessed + word * made + merged + more)


def test_averages_cost_sums_and_divisions_as_by_hand() -> None:
    """Of 3 x 3 in 9 x 9 planes of float16: 13 sums and 9 quotients of each line, two over edges."""
    way = separated("float16", (9, 9), "average", kernel_shape=3, pads=1)
    access, lift, merge, result = separable_planes.SUM_COSTS["float16"]
    column, row = way._of_lines
    assert column == pytest.approx((access + lift) * 9 + access * 9 + 13 * merge)
    stores = separable_planes.ANYWHERE + 2 * separable_planes.SINGLE + 4 * (access + 1)
    divided = separable_planes.AVERAGES + 9 * result + 2 * separable_planes.PARTIAL
    assert row == pytest.approx(9 * access + 13 * merge + stores + divided)
    again = separated("float32", (9, 9), "average", kernel_shape=3, pads=1)
    access, lift, merge, result = separable_planes.SUM_COSTS["float32"]
    column, row = again._of_lines
    assert column == pytest.approx((2 * access + lift) * 9 + 13 * merge)
    divided += separable_planes.DOUBTS + 9 * (result - separable_planes.SUM_COSTS["float16"].result)
    assert row == pytest.approx(18 * access + 13 * merge + divided)
    code = separable_planes.CODE + separable_planes.AGAIN_CODE + separable_planes.SETUP
    assert again.code == pytest.approx(code + column + row)


@pytest.mark.parametrize(
    ("shape", "window", "served"),
    [
        # Threads of 13 columns of two planes, or of 10 pairs of columns.
        ((1, 20166, 13, 13), {"kernel_shape": 5}, True),
        ((1, 20164, 13, 13), {"kernel_shape": 5}, False),
        ((1, 13108, 20, 20), {"kernel_shape": 5}, True),
        ((1, 13107, 20, 20), {"kernel_shape": 5}, False),
        # However much shared memory each thread has, and of more rows or columns of results.
        *(
            ((64, 512, *size), {"kernel_shape": 3, "strides": 16}, True)
            for size in product((40, 41), (41, 42))
        ),
        ((64, 512, 6, 20), {"kernel_shape": 13, "pads": (7, 0, 6, 0)}, True),
        ((64, 512, 20, 6), {"kernel_shape": 13, "pads": (0, 7, 0, 6)}, True),
    ],
)
def test_columns_are_taken_where_they_fill_a_card(
    shape: tuple[int, ...], window: dict[str, Any], served: bool
) -> None:
    problem = resolve("max", shape, "float16", **window)
    geometry = Geometry.of(problem, contiguous(shape))
    assert (separable_planes.cheapest(problem, geometry, 16) is not None) == served


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float16", 16),
        ("float16", 24),
        ("float16", 32),
        ("float32", 16),
        ("float32", 32),
        ("int8", 16),
    ],
)
def test_rows_that_would_meet_in_banks_lie_apart(dtype: str, size: int) -> None:
    """Rows, which threads read, by odd numbers of loads, and their results spread."""
    way = separated(dtype, (size, size), kernel_shape=13, pads=6)
    load, _ = way.widths
    assert way.pitch % load == 0
    assert way.pitch // load % 2 == 1
    assert way.turns == way.least_turns
    assert plan(way.problem).kernel == "separable_planes"


def test_a_workspace_is_there_where_a_launch_uses_one() -> None:
    count: Counter[bool] = Counter()
    for problem in problems(500, seed=2):
        chosen = plan(problem)
        used = any("workspace" in step.operands for step in chosen.launches)
        assert used == bool(chosen.workspace)
        count[used] += 1
    assert min(count[False], count[True]) > 10


# Division by a multiplication


def quotient(n: Any, size: int) -> Any:
    """Divide as Divisor<int> of kernels/window.cuh does, wrapping at 32 bits."""
    _, multiplier, shift = divisor(size, "int")
    return ((n * multiplier >> 32) + n & 2**32 - 1) >> shift


NEAR_POWERS = sorted(
    {d for k in range(31) for d in range(2**k - 3, 2**k + 4) if d >= 1} | {641, INT32_MAX}
)


def test_division_is_exact_around_multiples() -> None:
    """The error grows with n and shows first just below a multiple."""
    for size in NEAR_POWERS:
        assert all(0 <= field < 2**32 for field in divisor(size, "int"))
        most = INT32_MAX // size
        multiples = size * np.unique(np.linspace(0, most, 300).astype(np.int64))
        n = np.concatenate([multiples - 1, multiples, multiples + 1, [INT32_MAX]])
        n = n[(n >= 0) & (n <= INT32_MAX)]
        np.testing.assert_array_equal(quotient(n.astype(np.uint64), size), n // size)


def test_division_is_exact_by_every_small_number() -> None:
    n = np.arange(INT32_MAX - 5000, INT32_MAX + 1, dtype=np.uint64)
    for size in range(1, 2000):
        np.testing.assert_array_equal(quotient(n, size), n // np.uint64(size))


@given(size=st.integers(1, INT32_MAX), n=st.integers(0, INT32_MAX))
def test_division_is_exact(size: int, n: int) -> None:
    assert quotient(n, size) == n // size


def test_the_multiplier_proves_the_division() -> None:
    """Granlund and Montgomery, 1994: with m = multiplier + 2**32 and shift l,
    2**(32 + l) <= m * d <= 2**(32 + l) + 2**l makes n * m >> (32 + l) right for every n < 2**32.
    """
    for size in NEAR_POWERS:
        _, multiplier, shift = divisor(size, "int")
        product = (multiplier + 2**32) * size
        assert 2 ** (32 + shift) <= product <= 2 ** (32 + shift) + 2**shift


# Index width


def greatest(problem: PoolProblem, geometry: Geometry) -> int:
    """Return the greatest magnitude that window.cuh computes in Index for a problem, tap by tap."""
    seen = [prod(problem.outputs[0].shape) + THREADS - 1]
    offset = taps = 1
    for dim in geometry.dims:
        axis, step = dim.axis, abs(dim.step)
        for o in {0, axis.out - 1}:
            start = o * axis.stride - axis.pad_begin
            for low, high in ((0, axis.size), (-axis.pad_begin, axis.size + axis.pad_end)):
                seen += [abs(start), abs(low - start), abs(high - start)]
                seen += [abs(n) + axis.dilation - 1 for n in (low - start, high - start) if n > 0]
                first = max(0, -(-(low - start) // axis.dilation))
                seen += [first * axis.dilation, abs(start + first * axis.dilation)]
        offset += (axis.size - 1) * step
        taps *= axis.size
        lanes = min(problem.channels, 4) if problem.channels_last else 1
        seen.append((axis.out * axis.stride + MAX_STRIDE * 16) * lanes)  # tiles of rows.cuh
    return max(*seen, offset, taps)


HUGE = st.sampled_from((1, 2, 3, 5, 2**15, 2**29, 2**30 - 1, 2**30, 2**31 - 2, 2**31 - 1))


@given(
    size=st.sampled_from((1, 5, 2**16, 2**30, 2**31 - 1, 2**31, 2**33)),
    kernel=HUGE,
    stride=HUGE,
    dilation=HUGE,
    begin=HUGE,
    end=HUGE,
    channels=st.sampled_from((1, 4, 2**20)),
    last=st.booleans(),
)
def test_what_32_bit_indices_compute_fits(
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    begin: int,
    end: int,
    channels: int,
    last: bool,
) -> None:
    shape = (1, size, channels) if last else (1, channels, size)
    try:
        problem = resolve(
            "max", shape, "uint8", kernel_shape=kernel, strides=stride, dilations=dilation,
            pads=(begin, end), channels_last=last,
        )  # fmt: skip
    except gpupool.GpupoolError:
        return
    assert isinstance(problem, PoolProblem)
    geometry = Geometry.of(problem, contiguous(shape))
    if geometry.index_type == "int":
        assert greatest(problem, geometry) <= INT32_MAX


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((2**20, 2**11, 4), {}),
        ((1, 1, 2**31), {}),
        ((1, 1, 5), {"kernel_shape": 2, "dilations": 2**31 - 1, "pads": 2**30}),
        ((1, 2**15, 2**15, 4), {"channels_last": True}),
        (  # whose one valid tap begins far behind the edge
            (1, 2**30, 4),
            {"dilations": 2**31 - 2, "pads": (2**30 - 1, 1), "channels_last": True},
        ),
    ],
)
def test_large_counts_take_64_bits(shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    problem = resolve("max", shape, "uint8", **{"kernel_shape": 2, "dilations": 2} | arguments)
    assert all("long long" in step.expression for step in plan(problem).launches)


def test_taps_that_no_window_reads_are_left_out_where_no_average_counts_them() -> None:
    arguments = {"kernel_shape": 2**31 - 1, "pads": 2**30}
    maxima = resolve("max", (1, 1, 5), "uint8", **arguments)
    (dim,) = Geometry.of(maxima, contiguous(maxima.shape)).dims
    assert (dim.axis.kernel, dim.axis.pad_begin) == (11, 6)
    assert "long long" not in repr(plan(maxima))
    averages = resolve("average", (1, 1, 5), "float32", count_include_pad=True, **arguments)
    assert "long long" in repr(plan(averages))


@pytest.mark.parametrize("op", ["max", "average", "lp"])
def test_windows_larger_than_planes_take_a_fused_kernel(op: str) -> None:
    for kernel, size in product((41, 63, 201), (20, 28)):
        problem = resolve(op, (8, 64, size, size), "float32", kernel_shape=kernel, pads=kernel // 2)
        assert plan(problem).kernel == "separable_vectors"


def test_a_dilation_between_no_two_taps_takes_no_64_bits() -> None:
    problem = resolve("max", (1, 1, 5), "uint8", kernel_shape=1, dilations=2**31 - 1)
    assert all("long long" not in step.expression for step in plan(problem).launches)


def test_small_counts_take_32_bits_whatever_the_batch_step() -> None:
    """Steps between images and channels are 64-bit numbers always: only counts decide."""
    problem = resolve("max", (2, 1, 8), "uint8", kernel_shape=2, dilations=2)
    assert "long long" not in repr(plan(problem, (2**40, 2**35, 1)))


def test_steps_into_the_padding_must_fit_in_32_bits_too() -> None:
    """A tile of rows.cuh begins in the padding: so many steps before the first row of x."""
    problem = resolve("max", (1, 1, 1, 64), "uint8", kernel_shape=(4, 3), pads=(3, 0, 0, 0))
    (narrow,), (wide,) = (plan(problem, (1, 1, step, 1)).launches for step in (2**28, 2**30))
    assert "long long" not in narrow.expression
    assert "long long" in wide.expression


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_shape": 1, "dilations": 2**31 - 1},
        {"kernel_shape": 1, "dilations": 2**31 - 6, "pads": (300, 2)},
        {"kernel_shape": 1, "strides": 2**31 - 1, "pads": (3, 2)},
        {"kernel_shape": 2, "dilations": 2**30, "pads": (2**29, 2**29 + 7)},
        {"kernel_shape": 2**31 - 1, "pads": (2**30, 2**30 - 1)},
        {"kernel_shape": 2**30, "pads": (2**30, 2**30 - 1), "strides": 2**29},
    ],
)
@pytest.mark.parametrize("function", ["max_pool", "average_pool"])
def test_no_integer_overflows_in_a_kernel(function: str, arguments: dict[str, Any]) -> None:
    emulator_backend()
    x = np.arange(1.0, 6).reshape(1, 1, 5)
    with emulator.settings(build="checked"):
        y = getattr(emulator, function)(x, **arguments)
    assert_bitwise(y, getattr(gpupool, function)(x, **arguments))


# Indices of 32 bits


def test_32_bit_indices_are_refused_where_a_position_passes_them() -> None:
    shape = (1, 2**16, 2**15)
    fits = resolve("max", shape, "uint8", kernel_shape=2, return_indices=True, index_dtype="int32")
    assert fits.outputs[1].dtype == np.int32
    assert "ArgMax<unsigned char, int, int>" in repr(plan(fits, kernel="window"))
    larger = (2, *shape[1:])
    with pytest.raises(gpupool.GpupoolValueError, match="reach 4294967295, more than 2147483647"):
        resolve("max", larger, "uint8", kernel_shape=2, return_indices=True, index_dtype="int32")


@pytest.mark.parametrize("index_dtype", ["int32", "i4", np.int32, np.dtype(np.int32)])
def test_32_bit_indices_are_no_part_of_onnx(index_dtype: Any) -> None:
    with pytest.raises(gpupool.GpupoolValueError, match="index_dtype is gpupool's own"):
        resolve("max", (1, 1, 8), "float32", kernel_shape=2, index_dtype=index_dtype, opset=12)


@pytest.mark.parametrize(
    ("index_dtype", "error"),
    [
        ("int16", gpupool.GpupoolValueError),
        (np.float32, gpupool.GpupoolValueError),
        (np.dtype(np.int32).newbyteorder(), gpupool.GpupoolValueError),
        (type("int32", (), {}), gpupool.GpupoolValueError),
        ("nonsense", gpupool.GpupoolValueError),
        (None, gpupool.GpupoolTypeError),
        (32, gpupool.GpupoolTypeError),
    ],
)
def test_index_dtype_is_one_of_two(index_dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"index_dtype.*int64, int32"):
        resolve("max", (1, 1, 8), "float32", kernel_shape=2, index_dtype=index_dtype)


# Fewer axes


@pytest.mark.parametrize(
    ("shape", "arguments", "axes"),
    [
        ((2, 3, 8, 8), {"kernel_shape": (1, 3)}, 1),
        ((2, 3, 4, 8, 8), {"kernel_shape": (1, 1, 3)}, 1),
        ((2, 3, 8, 8), {"kernel_shape": (3, 1)}, 2),
        ((2, 3, 8, 8), {"kernel_shape": (1, 3), "strides": (2, 1)}, 2),
        ((2, 3, 8, 8), {"kernel_shape": (1, 3), "pads": (0, 1, 1, 1)}, 2),
        ((2, 3, 4, 4, 8), {"kernel_shape": (4, 4, 3)}, 2),
        ((2, 3, 4, 4, 4), {"kernel_shape": 4}, 1),
        ((2, 8, 8, 3), {"kernel_shape": (1, 3), "channels_last": True}, 1),
    ],
)
@pytest.mark.parametrize("indices", [False, True])
def test_axes_that_the_window_leaves_alone_or_covers_are_merged(
    shape: tuple[int, ...], arguments: dict[str, Any], axes: int, indices: bool
) -> None:
    emulator_backend()
    problem = resolve("max", shape, "float32", **arguments, return_indices=indices)
    (step,) = plan(problem, kernel="window").launches
    assert int(step.template[1]) == axes
    x = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    with emulator.settings(kernel="window"):
        found = emulator.max_pool(x, **arguments, return_indices=indices)
    expected = gpupool.max_pool(x, **arguments, return_indices=indices)
    pairs = zip(found, expected, strict=True) if indices else [(found, expected)]
    for mine, right in pairs:
        assert_bitwise(mine, right)


def test_axes_apart_in_memory_are_not_merged() -> None:
    problem = resolve("max", (2, 3, 4, 8), "float32", kernel_shape=(1, 3))
    joined, apart = contiguous(problem.shape), (3 * 4 * 16, 4 * 16, 16, 2)
    transposed = (96, 32, 1, 4)
    axes = [
        plan(problem, strides, 16, "window").launches[0].template[1]
        for strides in (joined, apart, transposed)
    ]
    assert axes == ["1", "1", "2"]


def test_merging_keeps_results_in_any_memory() -> None:
    emulator_backend()
    backend = Backend("emulator", emulator)

    @given(
        case=st.builds(
            merging_case,
            st.sampled_from(("max_pool", "average_pool")),
            st.lists(st.sampled_from(("alone", "covered", "slides")), min_size=2, max_size=4),
            st.booleans(),
            st.sampled_from(sorted(strategies.MEMORY)),
        )
    )
    def check(case: strategies.Case) -> None:
        with emulator.settings(kernel="window"):
            found = case.run(backend)
        for mine, right in zip(found, case.run(Backend("numpy", gpupool)), strict=True):
            assert_bitwise(mine, right)

    check()


def merging_case(function: str, kinds: list[str], last: bool, memory: str) -> strategies.Case:
    """Return a call whose window leaves each axis alone, covers it or slides; sums are exact."""
    sizes = [3, 4, 2, 3][: len(kinds)]
    kernel = [
        {"alone": 1, "covered": size, "slides": 2}[kind]
        for kind, size in zip(kinds, sizes, strict=True)
    ]
    x = np.random.default_rng(len(kinds)).integers(
        0, 9, strategies.laid_out(2, 3, tuple(sizes), last)
    )
    arguments: dict[str, Any] = {"kernel_shape": kernel, "channels_last": last}
    if function == "max_pool":
        arguments["return_indices"] = True
    return strategies.Case(function, (strategies.MEMORY[memory](x.astype(np.float32)),), arguments)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kernel", planner.KERNELS)
def test_one_channel_lies_last_as_it_lies_first(kernel, batch):
    for op, sizes, window in (
        ("max", (2048, 2048), {"kernel_shape": 31, "pads": 15}),
        ("max", (40, 50), {"kernel_shape": 3, "return_indices": True}),
        ("average", (900, 900), {"kernel_shape": 30, "strides": 30}),
        ("global-average", (2048, 2048), {}),
        ("lp", (60,), {"kernel_shape": 5, "strides": 2}),
        ("global-average", (7, 7), {}),
    ):
        first = plan(resolve(op, (batch, 1, *sizes), "float32", **window), kernel=kernel)
        problem = resolve(op, (batch, *sizes, 1), "float32", channels_last=True, **window)
        last = plan(problem, kernel=kernel)
        assert last.problem is problem
        assert (last.kernel, last.workspace) == (first.kernel, first.workspace)
        assert emulator.identity(last.launches) == emulator.identity(first.launches)


# The public override


@pytest.mark.parametrize("kernel", planner.KERNELS)
def test_plan_asks_for_one_kernel(kernel):
    shape, window = (1, 64, 56, 56), {"kernel_shape": 7, "pads": 3}
    if kernel == "channels":
        window = {"kernel_shape": (64, 56), "channels_last": True}
    if kernel in planner.STAGED:
        shape = 64, 512, 20, 20
    if kernel == "plane_staged":
        shape, window = (64, 512, 7, 7), {"kernel_shape": 7}
    call = gpupool.plan("max", shape, "float16", kernel=kernel, **window)
    assert call.plan.kernel == (kernel if kernel != "auto" else "rows")
    assert plan(call.problem, kernel=kernel) is call.plan


def test_whole_images_channels_last_are_read_by_vectors_of_channels():
    """Adjoining pixels, in vectors that one scale of all sums in a thread is no matter for."""

    def chosen(x: np.ndarray[Any, Any], reduction: str = "max", **more: Any) -> str:
        attributes = {"kernel_shape": x.shape[1:-1], "channels_last": True, **more}
        problem = resolve(reduction, x.shape, x.dtype, **attributes)
        steps = tuple(step // x.itemsize for step in x.strides)
        return plan(problem, steps, gcd(16, x.ctypes.data)).kernel

    memory = np.zeros(2 * 512 * 513 * 3 + 64, np.float32)
    memory = memory[-memory.ctypes.data % 16 // 4 :]
    x = memory[: 2 * 512 * 512 * 3].reshape(2, 512, 512, 3)
    assert chosen(x) == chosen(x[:1]) == chosen(x[1:]) == chosen(x[:, :400]) == "channels"
    assert chosen(x, "average") == chosen(x, "lp", p=3) == "channels"
    assert chosen(x, return_indices=True) == chosen(x, "lp", p=2.5) == "plane"
    assert chosen(memory[: x.size].view(np.float64).reshape(2, 512, 256, 3), "lp") == "plane"
    assert chosen(x[:, :, :400]) == chosen(x[..., :2]) == chosen(x[:, ::2]) == "plane"
    assert chosen(memory[1 : x.size + 1].reshape(x.shape)) == "plane"  # no aligned vectors
    odd = memory[: 2 * 511 * 511 * 3].reshape(2, 511, 511, 3)
    assert (chosen(odd), chosen(odd[:1])) == ("plane", "channels")
    wide = memory[: 300 * 300 * 6].reshape(1, 30, 60, 300)
    assert (chosen(wide), chosen(memory[: 257 * 900].reshape(1, 30, 30, 257))) == (
        "channels",
        "plane",
    )
    assert chosen(x.reshape(2**15, 4, 4, 3)) == "specialised"  # few taps, many outputs


def test_plan_gives_rows_also_where_others_are_cheaper():
    large = {"shape": (4, 64, 512, 512), "dtype": "float32", "kernel_shape": 10}
    assert gpupool.plan("max", **large).plan.kernel == "strips"
    assert gpupool.plan("max", **large, kernel="rows").plan.kernel == "rows"


def test_plan_says_why_nothing_is_compiled_in(monkeypatch):
    window = {"shape": (1, 1, 9, 9), "dtype": "float32", "kernel_shape": 3, "kernel": "rows"}
    with emulator.constants(SPECIALISATIONS=0):
        with pytest.raises(GpupoolValueError, match=r"'rows' does not serve .* asked for 0 of"):
            gpupool.plan("max", **window)
        monkeypatch.setenv("GPUPOOL_JIT", "generic")
        with pytest.raises(GpupoolValueError, match=r"'window' would; GPUPOOL_JIT = 'generic' in"):
            gpupool.plan("max", **window)
    monkeypatch.setenv("GPUPOOL_JIT", "Generic")
    with pytest.raises(GpupoolValueError, match=r"GPUPOOL_JIT = 'Generic' .* expected 'generic'"):
        gpupool.plan("max", **window)


def test_plan_refuses_a_kernel_that_does_not_serve():
    window = {"kernel_shape": 5, "dilations": 40}
    asked = r"MaxPool float32 \(1, 1, 200, 200\), kernel_shape=5, dilations=40: 'window' would"
    with pytest.raises(GpupoolValueError, match=rf"^kernel = 'rows' does not serve {asked}"):
        gpupool.plan("max", (1, 1, 200, 200), "float32", **window, kernel="rows")
    of_unpool = "kernel = 'window' does not serve MaxUnpool float32 .*"
    with pytest.raises(GpupoolValueError, match=rf"{of_unpool}: only 'auto' does$"):
        gpupool.plan("max-unpool", (1, 1, 9), "float32", kernel_shape=2, kernel="window")
    with pytest.raises(GpupoolValueError, match=r"kernel = 'fastest'.* auto, window"):
        gpupool.plan("max", (1, 1, 9), "float32", kernel_shape=2, kernel="fastest")


def test_a_kernel_that_is_refused_uses_up_no_specialisation():
    window = {"shape": (64, 64, 28, 28), "dtype": "float16", "kernel_shape": 3, "pads": 1}
    with emulator.constants():  # nothing planned before
        gpupool.plan("max", **window, kernel="rows")
        served = specialised.admitted.copy()
        with pytest.raises(GpupoolValueError, match=r"'specialised' would$"):
            gpupool.plan("max", **window, kernel="channels")
    assert len(served) == 1
    assert specialised.admitted == served


def test_a_refusal_takes_nothing_back_that_another_thread_was_given():
    @specialised.unless_refused()
    def refused() -> None:
        specialised.admit("rows", "before")
        specialised.admit("rows", "refused")
        with ThreadPoolExecutor(1) as another:
            list(another.map(partial(specialised.admit, "rows"), ("shared", "other")))
        specialised.admit("rows", "shared")
        raise GpupoolValueError("refused")

    specialised.admit("rows", "before")
    with pytest.raises(GpupoolValueError, match="refused"):
        refused()
    assert +specialised.admitted == {("rows", n): 1 for n in ("before", "shared", "other")}


def test_threads_that_plan_together_keep_to_the_cap():
    """Of more than may be: no thread is given one too many, none meets another's change."""
    asked = [str(n) for n in range(3 * specialised.SPECIALISATIONS)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            given = list(pool.map(partial(specialised.admit, "rows"), asked))
    finally:
        sys.setswitchinterval(before)
    assert sum(given) == specialised.SPECIALISATIONS
    assert specialised.spent("rows")


# Specialisation


def test_norms_by_powers_take_the_generic_tier() -> None:
    """Each tap is a pow there, which unrolled compiles for hundreds of milliseconds."""

    def expression(p: float, kernel: int, stride: int = 1) -> str:
        window = {"kernel_shape": kernel, "strides": stride}
        (launch,) = plan(resolve("lp", (8, 64, 56, 56), "float32", p=p, **window)).launches
        return launch.expression

    assert expression(2, 3).startswith("rows<Lp<float, 2, float>, Sizes<3, 3>, ")
    # Three pows for an output, not ten.
    walked = "separable<Lp<float, 0, float>, 2, 0, 0, false, false, false>"
    assert expression(2.5, 3) == expression(2.5, 13) == walked
    assert expression(2.5, 3, stride=2).startswith("window<Lp<float, 0, float>, 2, int, ")
    norms = resolve("lp", (8, 64, 56, 56), "float32", p=2.5, kernel_shape=3, strides=2)
    assert {plan(norms, kernel=name).kernel for name in ("specialised", "rows")} == {"window"}


def test_windows_are_walked_along_as_far_as_shared_memory_is_wide() -> None:
    def served(height: int, width: int, op: str = "max") -> str:
        problem = resolve(op, (1, 8, 600, 600), "float32", kernel_shape=(height, width))
        return plan(problem, kernel="separable").kernel

    assert served(600, 1) == served(1, PITCH - CHUNK) == served(200, 200) == "separable"
    assert served(1, PITCH - CHUNK + 1) != "separable"
    assert served(300, 220) == "separable"
    # More taps than a division by them is proved for.
    assert served(300, 218, "average") == "separable" != served(300, 220, "average")


@pytest.mark.parametrize("return_indices", [False, True])
def test_maxima_of_many_taps_are_shared_only_where_outputs_are_few(return_indices: bool) -> None:
    """Sums always are, for their accuracy."""

    def chosen(op: str, size: int, kernel: int, pads: int = 0) -> str:
        window = {"kernel_shape": kernel, "pads": pads}
        more = {"return_indices": return_indices} if op == "max" else {}
        return plan(resolve(op, (1, 1, size, size), "float32", **window, **more)).kernel

    walked = "window" if return_indices else "separable_vectors"
    assert chosen("max", 2048, 255, 127) == chosen("max", 2048, 257, 128) == walked
    assert chosen("max", 2048, 401, 200) == "window"  # wider than a tile
    assert chosen("max", 1024, 1000) == "plane"
    assert chosen("average", 2048, 257) == chosen("average", 1024, 1000) == "plane"


def test_few_outputs_of_one_plane_are_shared_rather_than_walked() -> None:
    few = resolve("average", (1, 1, 256, 256), "float32", kernel_shape=255)
    many = resolve("average", (1, 1, 256, 256), "float32", kernel_shape=127)
    assert (plan(few).kernel, plan(many).kernel) == ("plane", "separable_vectors")


def chosen(
    op: str, dtype: str, shape: tuple[int, ...], kernel: int, stride: int, **more: Any
) -> str:  # fmt: skip
    window = {"kernel_shape": kernel, "strides": stride, "pads": (kernel - 1) // 2}
    return plan(resolve(op, shape, dtype, **window, **more)).kernel


def test_windows_that_overlap_at_greater_strides_are_walked_too() -> None:
    large = (4, 32, 512, 512)
    assert chosen("max", "float32", large, 9, 2) == "rows"
    assert chosen("max", "float32", large, 11, 2) == "strips"
    assert chosen("max", "float32", large, 11, 3) == "separable_vectors"
    assert chosen("average", "float32", large, 9, 3) == "separable_vectors"
    assert chosen("average", "uint8", large, 31, 8) == "strips"
    assert chosen("average", "uint8", large, 31, 7) == "separable_vectors"
    assert chosen("lp", "float64", (4, 32, 511, 511), 31, 2, p=3) == "separable_vectors"
    assert chosen("max", "float32", large, 31, 31) == "plane"  # nothing to share


def test_windows_of_three_axes_are_walked_slice_by_slice() -> None:
    volumes = (2, 8, 64, 128, 128)
    assert chosen("max", "float16", volumes, 3, 1) == "rows"
    assert chosen("max", "float16", volumes, 7, 1) == "separable_vectors"
    assert chosen("average", "float32", volumes, 9, 2) == "separable_vectors"
    assert chosen("lp", "float32", volumes, 5, 1, p=2.5) == "window"  # every tap is a pow


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_volume_of_fewer_pixels_than_a_vector_has_channels_is_planned(width: int) -> None:
    shape, kernel = (4, 9, 9, width, 64), (3, 3, width)
    problem = resolve("max", shape, "float32", kernel_shape=kernel, channels_last=True)
    for kernel_name in planner.KERNELS:
        assert planner.plan(problem, kernel=kernel_name).launches


def test_a_tile_takes_no_more_elements_than_it_reads() -> None:
    """Taps that share a word count once, wherever the padding lets words begin."""
    sizes = product((2, 3, 5), (1, 2, 3), (1, 2, 3, 5), (1, 2, 4, 8))
    for k, stride, dilation, outputs in sizes:
        for pad in range((k - 1) * dilation + 1):
            window = {"kernel_shape": k, "strides": stride, "dilations": dilation, "pads": pad}
            problem = resolve("max", (1, 4, 224, 224), "float16", **window)
            geometry = Geometry.of(problem, contiguous(problem.shape))
            tile, axis = Tile.of(problem, geometry, 16, outputs, 0, 1, 1, True), problem.window[-1]
            if tile is None:
                continue
            line = tile_cost.Line.of(tile, axis, 2)
            assert len(positions(axis, outputs)) <= line.taken <= line.read, (tile, axis)


def test_a_short_kernel_does_where_memory_is_the_limit() -> None:
    """A longer one, which takes fewer instructions, where they are what limits."""

    def tile(dtype: str, stride: int) -> tuple[float, bool]:
        pads, shape = 1, (32, 64, 112, 112)
        problem = resolve("average", shape, dtype, kernel_shape=3, strides=stride, pads=pads)
        geometry = Geometry.of(problem, contiguous(problem.shape))
        found = rows.cheapest(problem, geometry, 16)
        assert found is not None
        code = tile_cost.Estimate.of(problem, geometry, found.usual).code
        enough = rows.limit(problem, geometry)
        return code, rows.instructions(problem, geometry, found.usual) <= enough

    for dtype, stride in (("float32", 2), ("float32", 1), ("float16", 1)):
        code, enough = tile(dtype, stride)
        assert enough, (dtype, stride)
        assert code <= rows.SHORT_CODE, (dtype, stride)
    code, enough = tile("uint8", 1)
    assert not enough
    assert rows.SHORT_CODE < code <= rows.MOST_CODE


LAST = {"channels_last": True}


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "window", "fewer"),
    [
        ("max", "float64", (4, 64, 512, 512), {"pads": 1}, True),
        ("max", "float32", (4, 64, 512, 512), {"pads": 1}, True),
        ("max", "float16", (4, 512, 512, 64), {"pads": 1, **LAST}, False),
        ("average", "float64", (8, 14, 112, 8), LAST, False),  # fewer take more in all
    ],
)
def test_of_tiles_that_take_as_long_the_usual_one_issues_nearly_the_least(
    op: str, dtype: str, shape: tuple[int, ...], window: dict[str, Any], fewer: bool
) -> None:
    problem = resolve(op, shape, dtype, kernel_shape=3, **window)
    geometry = Geometry.of(problem, contiguous(shape))
    found = rows.cheapest(problem, geometry, 16)
    assert found is not None
    enough = rows.limit(problem, geometry)
    tiles = {
        tile: (max(one.total, enough) * rows._slower(problem, geometry, tile), one.total)
        for tile, one in rows._estimates(problem, geometry, 16).items()
        if one.total <= enough and one.code <= rows.SHORT_CODE
    }
    least, soonest = min(tiles.values())
    first = next(tile for tile, cost in tiles.items() if cost == (least, soonest))
    most = 1.02 * rows.total_cost(problem, geometry, first)
    alike = [
        total
        for tile, (time, total) in tiles.items()
        if time <= 1.02 * least and rows.total_cost(problem, geometry, tile) <= most
    ]
    time, total = tiles[found.usual]
    assert time <= 1.02 * least
    assert (time > least) == (total < soonest) == fewer
    assert total <= 1.1 * min(alike)


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "kernel", "window", "changes"),
    [
        # Rows that no vector divides: of several outputs each store is another sector.
        ("max", "float16", (64, 64, 147, 147), 3, {"strides": 2}, True),
        ("average", "float16", (64, 16, 35, 166), 2, {}, True),
        ("average", "bfloat16", (64, 64, 27, 27), 2, {"strides": 2}, True),  # whole rows lie apart
        ("max", "int8", (64, 3, 14, 32, 33), 2, {"strides": 2}, True),
        # Stores of Indices count.
        (
            "max",
            "int8",
            (64, 64, 25, 38),
            (1, 2),
            {"strides": (1, 2), "return_indices": True},
            None,
        ),
        ("max", "int8", (64, 64, 29, 67), 4, {"strides": 2}, True),  # others have longer kernels
        ("max", "int8", (64, 64, 83, 104), 4, {}, None),  # the usual one has a long kernel
        # Memory is the limit, or nearly.
        ("max", "float16", (32, 64, 112, 112), 3, {"strides": 2, "pads": 1}, False),
        ("max", "float64", (64, 64, 26, 31), 2, {}, None),
        ("max", "float16", (64, 64, 30, 101), 3, {"strides": 3}, None),
        ("lp", "float32", (64, 64, 125, 133), 3, {"strides": 2}, None),
        # Channels last neighbouring threads have others of the same pixels.
        ("average", "float16", (64, 42, 66, 8), 4, {"strides": 2, **LAST}, True),
        ("max", "int8", (64, 66, 78, 8), 2, LAST, True),
        ("max", "float32", (64, 69, 39, 32), 2, {"return_indices": True, **LAST}, True),
        ("average", "float32", (64, 57, 39, 16), 3, LAST, True),
        ("lp", "float16", (64, 75, 56, 3), 2, LAST, True),
        ("average", "float16", (64, 47, 18, 64), 5, {"strides": 2, **LAST}, False),
        ("average", "float32", (64, 130, 79, 2), 5, {"strides": 2, **LAST}, False),
        ("max", "float16", (64, 147, 147, 3), 3, LAST, False),
        # Registers of dilated windows are not counted.
        ("max", "float32", (64, 16, 147, 99), 3, {"dilations": 2}, False),
    ],
)
def test_the_tile_that_takes_clearly_less_than_the_usual_one_is_launched(
    op: str,
    dtype: str,
    shape: tuple[int, ...],
    kernel: int | tuple[int, int],
    window: dict[str, Any],
    changes: bool | None,
) -> None:
    """By the forecast of all that is served, and if its kernel is short or no longer."""
    problem = resolve(op, shape, dtype, kernel_shape=kernel, **window)
    geometry = Geometry.of(problem, contiguous(shape))
    estimates = rows._estimates(problem, geometry, 16)
    found = rows.cheapest(problem, geometry, 16)
    assert found is not None
    assert changes is None or changes == (found.launched != found.usual)
    (launch,) = plan(problem, kernel="rows").launches
    assert launch == rows.launch(problem, geometry, found.launched)
    if any(dim.axis.dilation > 1 for dim in geometry.dims):
        assert found.launched == found.usual
        return
    budget = rows.limit(problem, geometry) / rows.ENOUGH
    cost = {tile: rows.total_cost(problem, geometry, tile) for tile in estimates}
    time = {tile: max(1, 0.70 + 0.45 * served / budget) for tile, served in cost.items()}
    longest = max(rows.SHORT_CODE, estimates[found.usual].code)
    assert estimates[found.launched].code <= longest
    sooner = [
        tile
        for tile in estimates
        if estimates[tile].code <= longest
        and 1.1 * time[tile] < time[found.usual]
        and 1.2 * cost[tile] < cost[found.usual]
    ]
    least = min((time[tile] for tile in sooner), default=time[found.usual])
    assert time[found.launched] == least
    as_soon = [tile for tile in sooner if time[tile] == least] or [found.usual]
    assert estimates[found.launched].code == min(estimates[tile].code for tile in as_soon)


def test_planes_are_not_staged_where_a_tile_from_memory_takes_less() -> None:
    """Not the usual one, than which they do take clearly less."""
    problem = resolve("max", (64, 512, 64, 8), "float16", kernel_shape=3, strides=2, pads=1)
    geometry = Geometry.of(problem, contiguous(problem.shape))
    tile, way = (way(problem, geometry, 16) for way in (rows.cheapest, rows_staged.cheapest))
    assert isinstance(tile, rows.Choice)
    assert isinstance(way, rows_staged.Staged)
    needed, taken = (rows.total_cost(problem, geometry, one) for one in tile)
    assert taken < way.cost < needed / planner.AHEAD
    (launch,) = plan(problem).launches
    assert launch == rows.launch(problem, geometry, tile.launched)


def test_planes_whose_rows_behind_the_end_overflow_take_no_vectors() -> None:
    def kernel(rows: int, columns: int) -> str:
        return plan(resolve("max", (1, 1, rows, columns), "float32", kernel_shape=31)).kernel

    assert kernel(46000, 46335) == "separable_vectors"
    assert kernel(46336 - 62, 46335) == "separable"  # of 31 rows twice and a tile's none are left
    assert kernel(46336 - 62, 46336) == "strips"  # which reads none


def test_more_strips_than_32_bits_count_are_not_launched() -> None:
    def kernel(images: int) -> str:
        attributes = {"kernel_shape": (2, 32), "channels_last": True}
        problem = resolve("max", (images, 3, 33, 8), "float64", **attributes)
        return plan(problem, (0, 33 * 8, 8, 1), 16, "strips").kernel

    assert kernel(2**24) == "strips"
    assert kernel(2**25) != "strips"  # two of channels for each of 2 pixels and a halo of 31


@pytest.mark.parametrize("images", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("side", [64, 504, 2048, 4096])
@pytest.mark.parametrize(("reduction", "dtype"), [("max", "float32"), ("average", "int8")])
def test_strips_are_as_high_as_leaves_a_gpu_filled(
    reduction: str, dtype: str, side: int, images: int
) -> None:
    """Or of one run more. At most one warp of sixteen has no columns."""
    problem = resolve(reduction, (images, 1, side, side), dtype, kernel_shape=13)
    found = cheapest_strips(problem)
    warps = -(-found.beside // found.warps) * found.warps
    assert warps - found.beside <= found.beside / 16

    rows, run, height = found.geometry.dims[0].axis.out, found.run, found.height
    threads = {high: -(-rows // high) * warps * WARP for high in range(run, rows + run, run)}
    assert height == run or threads[height - run] >= FILL
    assert max((n for n in threads.values() if n < threads[height]), default=0) < FILL


def test_words_hold_sums_of_two_strips_where_these_fill_a_gpu() -> None:
    def pairs(side: int, k: int = 13) -> bool:
        problem = resolve("average", (4, 64, side, side), "int8", kernel_shape=k)
        return cheapest_strips(problem).layout.paired

    assert pairs(512)
    assert not pairs(32)
    assert not pairs(512, k=31)  # which half a word does not hold


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "kernel", "stride", "chosen"),
    [
        ("lp", "float32", (1, 512, 512, 192), 7, 1, "strips"),
        ("average", "float32", (4, 20, 20, 1024), 13, 1, "strips"),
        ("lp", "float64", (8, 112, 112, 64), 9, 1, "strips"),
        # Of small windows rows.cu issues no more, and waits for fewer lines.
        ("average", "float32", (1, 112, 112, 192), 4, 1, "rows"),
        ("lp", "float16", (2, 224, 224, 1024), 3, 1, "rows"),
    ],
)
def test_other_kernels_do_not_gain_by_lanes_abreast_that_issue_more(
    op: str, dtype: str, shape: tuple[int, ...], kernel: int, stride: int, chosen: str
) -> None:
    window = {"kernel_shape": kernel, "strides": stride, "pads": kernel // 2}
    problem = resolve(op, shape, dtype, channels_last=True, **window)
    assert plan(problem).kernel == chosen


def test_lanes_abreast_of_few_strips_are_not_mostly_halo() -> None:
    """As long as a GPU is not filled, a lane that stores nothing costs no time, but is no gain."""
    window = {"kernel_shape": 13, "strides": 2, "pads": 6}
    few = resolve("average", (8, 56, 56, 16), "float64", channels_last=True, **window)
    found = cheapest_strips(few)
    assert found.cost > found.issued
    assert found.stored * found.layout.abreast > WARP / 2


def test_of_strips_that_wait_nearly_as_long_those_that_issue_less_are_taken() -> None:
    shape, window = (4, 512, 512, 64), {"kernel_shape": 5, "pads": 2}
    problem = resolve("max", shape, "float64", channels_last=True, **window)
    found = cheapest_strips(problem)
    with emulator.constants(NEARLY=1):
        least = cheapest_strips(problem)
    with emulator.constants(AHEAD=10):
        fewest = cheapest_strips(problem)
    assert fewest.issued < found.issued < least.issued
    assert least.total_cost() < found.total_cost() < fewest.total_cost()


def test_strips_of_pixels_in_reverse_wait_as_long() -> None:
    problem = resolve("max", (4, 128, 128, 64), "float32", kernel_shape=13, channels_last=True)
    images, rows_, pixels, channels = contiguous(problem.shape)
    reverse = Geometry.of(problem, (images, rows_, -pixels, channels))
    found = strips.cheapest(problem, reverse, 16)
    assert found is not None
    assert found.total_cost() == cheapest_strips(problem).total_cost()


def cheapest_strips(problem: PoolProblem) -> strips.Strips:
    found = strips.cheapest(problem, Geometry.of(problem, contiguous(problem.shape)), 16)
    assert found is not None
    return found


def test_windows_that_overlap_are_shared_only_where_that_costs_less() -> None:
    large, few = (4, 32, 512, 512), (1, 4, 128, 128)
    assert chosen("max", "float16", large, 16, 8) == "rows"
    assert chosen("max", "float32", large, 12, 6) == "rows"
    assert chosen("max", "float32", few, 16, 8) == "plane"
    assert chosen("max", "float32", large, 16, 16) == "plane"
    for op in ("max", "average"):  # no tile of rows.cu takes so many taps
        problem = resolve(op, large, "float32", kernel_shape=24, strides=18, pads=12)
        assert plan(problem).kernel != "plane"


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_no_launch_has_more_blocks_than_cuda_takes(dtype: str) -> None:
    huge = resolve("average", (1, 1, 50000, 50000), dtype, kernel_shape=96, pads=48)
    chosen = plan(huge)
    assert chosen.kernel == "plane"
    assert all(launch.grid[0] <= INT32_MAX for launch in chosen.launches)


def test_no_constant_of_the_planner_is_given_twice() -> None:
    modules = sorted(Path(planner.__file__).parent.glob("*.py"))
    assert modules
    for module in modules:
        names = [
            name.id
            for statement in ast.parse(module.read_text()).body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        ]
        assert sorted(names) == sorted(set(names)), module.name


def test_the_walk_is_chosen_where_it_costs_less() -> None:
    def chosen(shape: tuple[int, ...], dtype: str, kernel: Any, pads: int = 0) -> str:
        return plan(resolve("max", shape, dtype, kernel_shape=kernel, pads=pads)).kernel

    large = (4, 64, 512, 512)
    assert chosen(large, "float32", 5, 2) == chosen(large, "float16", 9) == "rows"
    assert chosen(large, "float32", 7, 3) == chosen(large, "float32", 9, 4) == "rows"
    odd = (4, 64, 512, 511)
    assert chosen(odd, "float32", 7, 3) == chosen(odd, "float32", 11, 5) == "separable_vectors"
    assert chosen(large, "float32", 11, 5) == chosen(large, "int8", 13, 6) == "strips"
    assert chosen(large, "float32", 10) == chosen(large, "int8", 10) == "strips"
    assert chosen(large, "float16", 15) == chosen(large, "float32", 95) == "strips"
    assert chosen(large, "float32", 97) == "separable_vectors"  # no run fits in shared memory
    long = (64, 64, 20001)
    assert chosen(long, "float32", 243) == "separable_vectors"
    assert chosen(long, "float32", 380) == "window"  # wider than a tile


@pytest.mark.parametrize("op", ["max", "average"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint8"])
def test_the_plan_counts_two_results_in_a_word_where_kernels_merge_them(
    op: str, dtype: str
) -> None:
    """``pairs`` in kernels/ops.cuh; in rows.cuh where a load takes two elements or more.

    There sums of bytes are pairs, too.
    """
    problem = resolve(op, (8, 64, 64, 64), dtype, kernel_shape=3, pads=1)
    geometry = Geometry.of(problem, contiguous(problem.shape))
    vectors, singly = (rows.cheapest(problem, geometry, alignment) for alignment in (16, 1))
    assert vectors is not None
    assert singly is not None
    maxima = op == "max" and problem.dtype.itemsize <= 2
    merged = maxima or problem.dtype.itemsize == 1
    held = (parameters.pairs(problem), vectors.launched.pairs, singly.launched.pairs)
    assert held == (maxima, merged, False)


EXACT = """
#include "ops.cuh"
template <class... Ops> __global__ void exact(bool* y) {
    const bool each[] = {Ops::exact...};
    for (bool one : each) *y++ = one;
}
"""


def test_the_plan_knows_which_results_are_looked_at_again() -> None:
    """``exact`` in kernels/ops.cuh: tiles whose kernels have no second look may be larger."""
    floats = ["float64", "float32", "float16", "bfloat16"]
    asked = [
        *product(["max", "average"], [*floats, "int8", "uint8"], [{}]),
        *product(["lp"], floats, [{"p": p} for p in (0.5, 1, 2, 2.5, 3)]),
    ]
    problems = [
        resolve(op, (1, 1, 8, 8), dtype, kernel_shape=3, **norm) for op, dtype, norm in asked
    ]
    kernel = f"exact<{', '.join(parameters.operator(problem, 'int') for problem in problems)}>"
    module = EmulatedModule(EXACT, include_dir=jit.kernel_folder(), expression=kernel)
    found = np.zeros(len(problems), bool)
    module.get_function(kernel)((1,), (1,), (found,))
    assert [parameters.exact(problem) for problem in problems] == found.tolist()
    assert 0 < found.sum() < found.size


def test_halves_of_words_hold_sums_of_bytes() -> None:
    """Those of as many taps as a window that is compiled in may have; of two axes at most."""

    def paired(op: str, dtype: str, *kernel: int) -> set[bool]:
        shape = 8, 64, *(64,) * len(kernel)
        problem = resolve(op, shape, dtype, kernel_shape=kernel, strides=kernel)
        return {tile.pairs for tile in tiles_of(problem) if tile.load % 2 == 0}

    assert SPECIALISED_TAPS <= PAIRED_TAPS
    assert PAIRED_TAPS * 255 < 1 << 16 <= (PAIRED_TAPS + 1) * 255
    assert paired("average", "uint8", 16, 16) == paired("average", "int8", 4) == {True}
    assert paired("average", "uint8", 2, 2, 2) == paired("average", "float16", 4, 4) == {False}
    assert paired("max", "uint8", 2, 2, 2) == {True}


def test_words_hold_sums_of_bytes_of_two_planes() -> None:
    """Of as many taps as a half holds and two axes, where there are planes for two."""

    def paired(planes: int, *kernel: int, dtype: str = "uint8") -> bool:
        shape = 8, planes, *(128,) * len(kernel)
        problem = resolve("average", shape, dtype, kernel_shape=kernel, pads=2)
        (launch,) = plan(problem, kernel="separable_vectors").launches
        assert launch.source == "separable_vectors.cu"
        return launch.template[0].startswith("Paired<IntegerAverage<")

    assert paired(64, 16, 16)
    assert paired(64, 13, 13, dtype="int8")
    assert not paired(64, 17, 17)
    assert not paired(1, 13, 13), "a tile for each of few planes"
    assert not paired(4, 3, 9, 9)
    assert not paired(64, 13, 13, dtype="float16")


def test_words_hold_both_halves_of_a_plane_without_a_twin() -> None:
    """Those of a large single image, gray or of three channels; of planes in pairs none."""

    def folded(*shape: int, op: str = "max", dtype: str = "uint8", **more: Any) -> bool:
        window = {"kernel_shape": 13, "channels_last": shape[-1] == 3} | more
        problem = resolve(op, shape, dtype, **window)
        (launch,) = plan(problem, kernel="separable_vectors").launches
        assert launch.source == "separable_vectors.cu"
        return launch.template[7] == "true"

    for op, dtype in product(("max", "average"), ("uint8", "int8")):
        assert folded(1, 1, 4096, 4096, op=op, dtype=dtype)
        assert folded(1, 2160, 3840, 3, op=op, dtype=dtype)
        assert not folded(64, 64, 512, 512, op=op, dtype=dtype)
    assert folded(1, 1, 4096, 4096, dtype="bfloat16")
    assert not folded(1, 1, 4096, 4096, dtype="float32"), "a partial result fills a word"
    assert not folded(1, 1, 4096, 4096, op="average", dtype="float16")
    assert not folded(1, 1, 4096, 4096, strides=2)
    assert not folded(1, 64, 225, 8, kernel_shape=(15, 9), pads=4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8"])
@pytest.mark.parametrize("op", ["max", "average"])
def test_channels_last_a_tile_holds_neighbouring_channels(op: str, dtype: str) -> None:
    def planes(kernel: int, channels: int) -> int:
        problem = resolve(
            op, (4, 512, 512, channels), dtype, kernel_shape=kernel, channels_last=True
        )
        (launch,) = plan(problem, kernel="separable").launches
        assert launch.source == "separable.cu"
        assert launch.template[5] == "true"
        return int(launch.scalars[0]["together"])

    in_a_word = 2 if op == "max" and dtype in ("float16", "uint8") else 1
    assert planes(13, 64) == min(SECTOR_BYTES // np.dtype(dtype).itemsize, in_a_word * 9)
    assert planes(13, 3) >= 3 // in_a_word * in_a_word
    assert planes(150, 64) == in_a_word  # a second plane would be more halo than outputs


def test_tiles_of_separable_are_those_of_its_source() -> None:
    text = (jit.kernel_folder() / "separable.cuh").read_text()
    four, eight = separable_vectors.CHUNK.values()
    assert f"chunk = Unit == 4 ? {four} : Unit == 2 ? {eight} : {CHUNK};" in text
    assert f"pitch = (Unit > 1 ? Lanes : {PITCH // CHUNK}) * chunk;" in text
    assert PITCH % CHUNK == 0
    assert PITCH <= THREADS


def found_by_separable(
    shape: tuple[int, ...],
    kernel_shape: int | tuple[int, ...],
    dtype: str = "float16",
    steps: tuple[int, ...] | None = None,
    **arguments: Any,
) -> str | None:
    """Return the operator of maxima with Indices where separable.cu finds them, else None.

    The input lies in ``steps``.
    """
    problem = resolve(
        "max", shape, dtype, kernel_shape=kernel_shape, return_indices=True, **arguments
    )
    (launch,) = plan(problem, steps, kernel="separable").launches
    return launch.template[0] if launch.kernel == "separable" else None


def test_a_maximum_and_its_place_share_the_shortest_word_that_holds_both() -> None:
    planes, volumes = (2, 8, 600, 600), (2, 8, 40, 60, 60)
    for dtype, name in (("float16", "Half"), ("bfloat16", "BFloat16"), ("int8", "signed char")):
        short, long = (f"PlacedMax<{name}, long long, {word}>" for word in ("int", "long long"))
        assert found_by_separable(planes, 13, dtype) == short
        assert found_by_separable(planes, (209, 13), dtype) == short
        assert found_by_separable(planes, (210, 13), dtype) == long
        assert found_by_separable(volumes, 5, dtype) == long
    assert found_by_separable(planes, 13, "float32") == "PlacedMax<float, long long, long long>"
    assert found_by_separable(planes, 13, index_dtype="int32") == "PlacedMax<Half, int, int>"
    assert found_by_separable(planes, 13, "float64") == "PlacedMax<double, long long, Placed>"


def test_a_place_that_no_word_holds_is_found_by_another_kernel() -> None:
    assert found_by_separable((1, 1, 3000, 16, 16), (2048, 3, 3)) is not None
    assert found_by_separable((1, 1, 3000, 16, 16), (2049, 3, 3)) is None
    assert found_by_separable((1, 1, 16, 9000, 16), (3, 2**13 - 11, 3)) is not None
    assert found_by_separable((1, 1, 16, 9000, 16), (3, 2**13 - 10, 3)) is None
    # More numbers of a plane than 32 bits tell, though all are one pixel.
    window = {"kernel_shape": 9, "strides": 8, "channels_last": True, "steps": (0, 0, 0, 1)}
    assert found_by_separable((1, 2**14, 2**13, 8), **window) is not None
    assert found_by_separable((1, 2**14, 2**13, 32), **window) is None
    assert found_by_separable((1, 2**14 - 4, 2**13, 16), **window) is not None
    padded = {"pads": (8, 0, 0, 0)}  # places are counted from there
    assert found_by_separable((1, 2**14 - 4, 2**13, 16), **window, **padded) is None


def test_windows_that_may_have_no_tap_are_left_to_other_kernels_with_indices() -> None:
    assert found_by_separable((2, 8, 100, 100), 13, pads=12) is not None
    assert found_by_separable((2, 8, 100, 100), 13, pads=(0, 0, 0, 13)) is None


def test_places_are_those_of_the_source() -> None:
    text = (jit.kernel_folder() / "separable.cu").read_text()
    ((columns, rows),) = re.findall(r"row_places = (\d+), slice_rows = (\d+);", text)
    columns, rows = int(columns), int(rows)
    assert columns > PITCH
    assert (columns, rows) == (separable.ROW_PLACES, separable.SLICE_ROWS)
    assert columns * rows * separable.SLICES == 2**32


def test_narrow_windows_with_indices_are_compiled_in_or_left_to_window() -> None:
    planes = (2, 8, 100, 100)
    assert found_by_separable(planes, CHUNK - 1) is not None
    with emulator.constants(compiles_in=lambda: False):
        assert found_by_separable(planes, CHUNK - 1) is None
        assert found_by_separable(planes, CHUNK) is not None


@pytest.mark.parametrize("kernel_shape", [(13, 13), (60, 5), (3, 100)])
def test_a_tile_of_separable_fits_in_shared_memory(kernel_shape: tuple[int, int]) -> None:
    for dtype, shape in product(("float16", "float64"), [(1, 1, 700, 700), (8, 512, 70, 120)]):
        problem = resolve("average", shape, dtype, kernel_shape=kernel_shape, pads=4)
        (launch,) = plan(problem, kernel="separable").launches
        tiles = launch.scalars[0]
        assert launch.source == "separable.cu"
        assert tiles["planes"] * tiles["span"] + CHUNK - 1 <= tiles["columns"] <= PITCH
        assert tiles["columns"] % CHUNK == 0
        assert tiles["height"] <= tiles["rows"]
        assert launch.shared == tiles["rows"] * PITCH * (8 if dtype == "float64" else 4)
        assert launch.shared <= SHARED_BYTES


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8"])
def test_channels_last_a_tile_of_vectors_holds_whole_vectors(dtype: str) -> None:
    """Channels of one pixel or, where they do not fill any, all channels of several."""
    sizes = product((2, 3, 4, 6, 20, 64, 66), (5, 13, 31), (2, 4), (64, 300, 301))
    for channels, kernel, pad, size in sizes:
        pads = pad, pad, pad, (kernel - 1 - pad) % 4
        problem = resolve(
            "max",
            (2, 60, size, channels),
            dtype,
            kernel_shape=kernel,
            channels_last=True,
            pads=pads,
        )
        (launch,) = plan(problem, kernel="separable_vectors").launches
        whole = channels % int(launch.template[4]) == 0
        along = "one_pixel" if whole else "some_pixels"
        assert (launch.source, launch.template[-2]) == ("separable_vectors.cu", along)
        tiles, held = launch.scalars[0], 8 if dtype == "float64" else 4
        width, lanes, vector, load, shift = map(int, launch.template[2:7])
        assert vector % load == size * channels % load == 0
        chunk, planes = separable_vectors.CHUNK[held], tiles["planes"]
        if channels % vector == 0:
            assert planes % vector == shift == 0
        else:
            assert planes == channels
            assert (pad + shift) % vector == tiles["width"] % vector == tiles["span"] % vector == 0
        assert tiles["neighbours"]["divisor"] == planes
        assert tiles["span"] >= shift + tiles["width"] + width - 1
        assert planes * tiles["span"] + chunk - 1 <= tiles["columns"] <= lanes * chunk
        assert launch.shared == tiles["rows"] * lanes * chunk * held <= SHARED_BYTES


@pytest.mark.parametrize("kernel_shape", [(13, 13), (60, 5), (3, 100)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8"])
def test_a_tile_of_vectors_fits_in_shared_memory(dtype: str, kernel_shape: tuple[int, int]) -> None:
    shapes = (1, 1, 700, 704), (1, 1, 700, 703), (8, 512, 70, 120)
    for shape, pad in product(shapes, (4, 5, 6, 7)):
        pads = pad, pad, pad, (kernel_shape[1] - 1 - pad) % 4
        problem = resolve("max", shape, dtype, kernel_shape=kernel_shape, pads=pads)
        (launch,) = plan(problem, kernel="separable_vectors").launches
        tiles, held = launch.scalars[0], 8 if dtype == "float64" else 4
        width, lanes, vector, load, shift = map(int, launch.template[2:7])
        assert vector % load == shape[3] % load == 0
        chunk = separable_vectors.CHUNK[held]
        assert launch.source == "separable_vectors.cu"
        assert (pads[1] + shift) % vector == tiles["span"] % vector == tiles["width"] % vector == 0
        if (
            launch.grid[0]
            == -(-shape[0] * shape[1] // tiles["together"]) * tiles["down"]["divisor"]
        ):
            assert tiles["span"] >= shift + pads[1] + shape[3]  # planes share padding alone
        else:
            assert tiles["span"] >= shift + tiles["width"] + width - 1
        threads = -(-tiles["rows"] // tiles["share"]) * tiles["seats"]["divisor"]
        assert tiles["seats"]["divisor"] * vector == tiles["columns"]
        assert threads <= THREADS
        assert tiles["planes"] * tiles["span"] + chunk - 1 <= tiles["columns"] <= lanes * chunk
        assert tiles["columns"] % chunk == 0
        assert tiles["height"] <= tiles["rows"]
        assert launch.shared == tiles["rows"] * lanes * chunk * held <= SHARED_BYTES
        assert tiles["share"] % kernel_shape[0] == 0


def test_vectors_serve_where_no_tap_is_a_pow_and_are_read_as_rows_are_aligned() -> None:
    def chosen(op: str, dtype: str, size: int, alignment: int = 16, **more: Any) -> str:
        problem = resolve(op, (8, 64, 80, size), dtype, kernel_shape=15, **more)
        found = plan(problem, None, alignment, "separable_vectors").launches[0]
        load = found.template[5:6] if found.kernel == "separable_vectors" else ()
        return ", ".join([found.kernel, *load])

    assert chosen("max", "float32", 94) == "separable_vectors, 2"  # 80 outputs of a row of 94
    assert chosen("max", "float32", 96, pads=(0, 7, 0, 7)) == "separable_vectors, 4"
    assert chosen("max", "float32", 96, 8, pads=(0, 7, 0, 7)) == "separable_vectors, 2"
    assert chosen("max", "float64", 96, pads=(0, 7, 0, 7)) == "separable_vectors, 2"
    for op, dtype in (("average", "uint8"), ("average", "bfloat16"), ("lp", "float64")):
        assert chosen(op, dtype, 94) == "separable_vectors, 2"
    assert chosen("lp", "float32", 94, p=2.5) == "separable"
    for op, dtype in (("max", "float32"), ("max", "int8"), ("average", "float16")):
        assert chosen(op, dtype, 95) == chosen(op, dtype, 96, 1) == "separable_vectors, 1"
    assert chosen("max", "float32", 96, 4) == "separable_vectors, 1"
    large = resolve("average", (1, 1, 400, 400), "uint8", kernel_shape=(182, 181), pads=90)
    assert plan(large, kernel="separable_vectors").kernel == "separable"  # a quotient in double


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [SMALL_P, 0.3, 0.5, 0.99, 1.0, 2.0, 2.5, 100.0])
def test_sums_that_kernels_call_accurate_have_normal_roots(p: float, dtype: str) -> None:
    """And nearly all of those that do, of sums that have not lost small terms, are among them."""
    problem = resolve("lp", (1, 1, 8, 8), dtype, kernel_shape=2, p=p)
    assert isinstance(problem, PoolProblem)
    norm = plan(problem, kernel="window").launches[0].scalars[0]["norm"]
    sums = np.dtype(np.float64 if p < 1 else dtype)
    first, count = int(norm["least"]), int(norm["accurate"])
    below = 8 * sums.itemsize - 32
    bits = np.array([first << below, ((first + count) << below) - 1], f"u{sums.itemsize}")
    least, most = bits.view(sums).tolist()
    info = np.finfo(sums)
    assert (
        max(info.tiny / info.eps, info.tiny**p)
        < least
        < max(5 * info.tiny / info.eps, (5 * info.tiny) ** p)
    )
    assert float(info.tiny) <= least ** (1 / p)
    assert most == info.max if p >= 1 else info.max / 5 < most ** (1 / p) < info.max


def test_no_sum_of_small_powers_is_called_accurate() -> None:
    problem = resolve("lp", (1, 1, 8, 8), "float32", kernel_shape=2, p=SMALL_P / 2)
    assert isinstance(problem, PoolProblem)
    assert plan(problem, kernel="window").launches[0].scalars[0]["norm"]["accurate"] == 0


@pytest.mark.parametrize(
    ("kernel_shape", "known"),
    [((2, 2, 2, 2), True), ((3, 2, 2, 2), False), ((3, 1, 1, 1), True), ((2, 1, 1, 1, 2), False)],
)
@pytest.mark.parametrize("indices", [False, True])
def test_windows_of_many_axes_are_compiled_in_while_that_is_quick(
    kernel_shape: tuple[int, ...], known: bool, indices: bool
) -> None:
    """A window of 24 taps on four axes, or 16 on five, takes the compiler more than 100 ms."""
    problem = resolve(
        "max", (2, 3, *(9,) * len(kernel_shape)), "float64", kernel_shape=kernel_shape,
        return_indices=indices,
    )  # fmt: skip
    (launch,) = plan(problem).launches
    sizes = ", ".join(map(str, kernel_shape if known else [0] * len(kernel_shape)))
    assert f"Sizes<{sizes}>" in launch.expression
