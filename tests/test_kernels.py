"""The kernels on the CPU against the oracle: every combination, and random calls of every operator.

    python -m tests.test_kernels --n 1000 --seed 0

runs that many random calls of each operator under three schedules.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain, count, cycle, product
from typing import Any
from unittest.mock import patch

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

import gpupool
from gpupool import launch, oracle, planner
from gpupool.dtypes import BFLOAT16, DTYPES, FLOAT16
from gpupool.jit import kernel_folder
from gpupool.opset import OPERATORS
from gpupool.planner import THREADS, Plan, roi, rows, separable, separable_planes, specialised
from gpupool.planner.launches import SHARED_BYTES
from gpupool.planner.parameters import window_dtype
from gpupool.planner.plane import PART_LOADS
from gpupool.problem import resolve
from gpupool.window import Axis
from tests import emulator, reference, strategies
from tests.combinations import PALETTES, combinations
from tests.compile_kernels import entries
from tests.conftest import Backend, emulator_backend, numpy_backend
from tests.covering import covered
from tests.cuda_on_cpu import FORWARD, REVERSE, SENTINELS, EmulatedModule, shuffled
from tests.strategies import Case
from tests.test_oracle import assert_right
from tests.tolerance import assert_bitwise, bits

NO_BOUND = {"SHORT_CODE": 10**9, "MOST_CODE": 10**9}
STAGED: dict[str, Any] = {
    "BUSY": 1,
    "BLOCKS": 0,
    "ENOUGH": 0,
    "AHEAD": 1e-9,
    "STAGED_BYTES": 10**9,
    "MIRROR_BITS": (0,),
    "cost": lambda *_: math.inf,
} | NO_BOUND
IN_SHARED_MEMORY = {"SECTOR": 10**9, "MIRROR_BITS": (1,)}
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "window": ("window", {}),
    "specialised": ("specialised", {}),
    "rows": ("rows", {"BUSY": 1, "cost": lambda *_: math.inf}),
    "large tiles": (
        "rows",
        {"BUSY": 1, "SETUP": 10**4, "cost": lambda *_: math.inf} | NO_BOUND,
    ),
    "staged rows": ("rows_staged", STAGED | {"STAGE": 10**9, "ORDERS": (False,)}),
    "rows in shared memory": ("rows_staged", STAGED | IN_SHARED_MEMORY | {"ORDERS": (True,)}),
    "separable_planes": ("separable_planes", STAGED),
    "plane": ("plane", {}),
    "few workers": ("plane", {"FILL": 1}),
    "plane_staged": ("plane_staged", {}),
    "plane_staged, few workers": ("plane_staged", {"FILL": 1, "BLOCKS": 1}),
    "channels": ("channels", {"ROWS": 1}),
    "channels, few workers": ("channels", {"FILL": 1, "BLOCKS": 1}),
    "strips": ("strips", {"SEPARABLE_TAPS": 1, "FILL": 1, "TWIN": -(10**6)}),
    "strips in parts": ("strips", {"SEPARABLE_TAPS": 1, "FILL": 10**9}),
    "strips of half windows": ("strips", {"SEPARABLE_TAPS": 1, "FILL": 1, "RUN": -(10**6)}),
    "vectors": ("separable_vectors", {"SEPARABLE_TAPS": 1}),
    "vectors in parts": (
        "separable_vectors",
        {"SEPARABLE_TAPS": 1, "SHARED_BYTES": 5000, "BLOCKS": 1},
    ),
    "separable": ("separable", {"SEPARABLE_TAPS": 1}),
    "separable in parts": ("separable", {"SEPARABLE_TAPS": 1, "SHARED_BYTES": 5000}),
    "separable, any": ("separable", {"SEPARABLE_TAPS": 1, "compiles_in": lambda: False}),
}
"""Ways to plan a pooling: the kernel asked for, and constants that make it serve small problems."""

PARTS = {"TILE_ROW": 0, "ORDERS": (False,)}
SKEWED = {"whole_vectors": lambda *_: False, "_filled": lambda _: 1}
TWO_ROWS = {"row_counts": lambda axes: [min(2, len(axes))], "MIRROR_BITS": (2,)}
STAGED_WAYS = {
    "rows anywhere in vectors": (
        "rows_staged",
        STAGED | IN_SHARED_MEMORY | SKEWED | {"MIRROR_BITS": (0,)},
    ),
    "two rows from either end": ("rows_staged", STAGED | TWO_ROWS),
    "parts of rows": ("rows_staged", STAGED | PARTS | {"STAGE": 10**9}),
    "parts in shared memory": (
        "rows_staged",
        STAGED | PARTS | IN_SHARED_MEMORY | {"MIRROR_BITS": (4,)},
    ),
    "parts anywhere in vectors": ("rows_staged", STAGED | PARTS | IN_SHARED_MEMORY | SKEWED),
}
"""More ways to stage planes: rows in parts or in pairs, and that begin anywhere in a vector."""

PLANE_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plane_parts": ("plane", {"FILL": 1, "PART_LOADS": 1}),
    "channels_parts": ("channels", {"ROWS": 1}),
}
"""Ways of whole planes and images that random calls seldom take by themselves, by kernel."""

WAYS = KERNELS | STAGED_WAYS | PLANE_WAYS

SEPARABLE = [name for name in KERNELS if KERNELS[name][0] in ("separable", "separable_vectors")]
STRIPS = [name for name in KERNELS if KERNELS[name][0] == "strips"]
FUSED = SEPARABLE + STRIPS
"""Those that make sums again."""

SCHEDULES = (FORWARD, REVERSE, shuffled(1))
COMBINATIONS = combinations()
EMULATED = Backend("emulator", emulator)
NO_CAP = {"SPECIALISATIONS": 10**9}

pytestmark = [pytest.mark.usefixtures("_emulator"), pytest.mark.no_cover]


@pytest.fixture(scope="module")
def _emulator() -> None:
    emulator_backend()


@dataclass(frozen=True)
class Configuration:
    """A call, the kernel that takes it and the width of its indices."""

    case: Case
    kernel: str = "auto"
    wide: bool = False

    def run(self, **settings: Any) -> tuple[np.ndarray[Any, Any], ...]:
        kernel, constants = WAYS[self.kernel]
        with (
            emulator.constants(**NO_CAP, **constants, **(emulator.WIDE if self.wide else {})),
            emulator.settings(kernel=kernel, **settings),
            patch.object(launch, "plan", self.plan),
        ):
            return self.case.run(EMULATED)

    @cached_property
    def plan(self) -> Callable[..., Plan]:
        """The planner, which remembers for all runs what it has planned by the same constants."""
        return lru_cache(planner.plan.__wrapped__)

    @cached_property
    def launches(self) -> list[planner.Launch]:
        """What the call launches: recorded, not run."""
        launches: list[planner.Launch] = []
        self.run(recorded=launches)
        return launches


def launches_of(configurations: Iterable[Configuration]) -> list[planner.Launch]:
    return [launch for configuration in configurations for launch in configuration.launches]


def compile_ahead(configurations: Iterable[Configuration], **settings: Any) -> list[planner.Launch]:
    launches = launches_of(configurations)
    with emulator.settings(**settings):
        emulator.compile_ahead(launches)
    return launches


def distinct(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Leave out what launches the same on the same arrays as one before.

    A kernel that does not serve a case gives the plan of another one, often that of many.
    """
    found: dict[Any, Configuration] = {}
    for configuration in configurations:
        key = id(configuration.case), emulator.identity(configuration.launches)
        found.setdefault(key, configuration)
    return list(found.values())


def assert_same(
    results: tuple[np.ndarray[Any, Any], ...], expected: tuple[np.ndarray[Any, Any], ...]
) -> None:
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(bits(result), bits(array))


def assert_configuration_right(configuration: Configuration, **settings: Any) -> None:
    """Judge one run, and hold the runs in other orders of threads to its very bits.

    Fresh outputs hold another sentinel in each run: an unwritten element would differ.
    """
    results = configuration.run(schedule=SCHEDULES[0], sentinel=SENTINELS[0], **settings)
    assert_right(configuration.case, results)
    for schedule in SCHEDULES[1:]:
        again = configuration.run(schedule=schedule, sentinel=SENTINELS[1], **settings)
        assert_same(again, results)


# Every combination


def test_the_number_of_combinations(capsys):
    found = Counter(combination.op for combination in COMBINATIONS)
    with capsys.disabled():
        print(f"\n{len(COMBINATIONS)} combinations: {dict(found)}")
    floats, every, axes, layouts = 4, 6, 4, 2
    assert found == {
        "MaxPool": every * axes * layouts * 2,  # with and without Indices
        "AveragePool": every * axes * layouts,
        "LpPool": floats * axes * layouts,
        "GlobalMaxPool": every * axes * layouts,
        "GlobalAveragePool": every * axes * layouts,
        "GlobalLpPool": floats * axes * layouts,
        "MaxUnpool": floats * axes * layouts,
        "MaxRoiPool": floats * layouts,  # two axes only
        "RoiAlign": floats * layouts,
    }


def kernels_of(op: str) -> tuple[str, ...]:
    if not op.endswith(("MaxPool", "AveragePool", "LpPool")):
        return ("auto",)
    # Random calls and large windows reach the others.
    others = ("separable, any", "staged rows")
    return tuple(name for name in KERNELS if "parts" not in name and name not in others)


@pytest.mark.parametrize("dtype", [row.name for row in DTYPES])
@pytest.mark.parametrize("op", OPERATORS)
def test_every_combination_equals_the_oracle(op, dtype):
    chosen = [made for made in COMBINATIONS if (made.op, made.dtype) == (op, dtype)]
    assert bool(chosen) == (dtype in strategies.FLOATS or op.endswith(("MaxPool", "AveragePool")))
    kernels = kernels_of(op)
    made_by = {
        id(case): (made, case)
        for made in chosen
        for case in (made.tested() if len(kernels) > 1 else made.calls())
    }
    configurations = distinct(
        Configuration(case, kernel) for _, case in made_by.values() for kernel in kernels
    )
    compile_ahead(configurations)
    for configuration in configurations:
        try:
            assert_right(configuration.case, configuration.run())
        except AssertionError as error:
            made, case = made_by[id(configuration.case)]
            error.add_note(f"{made} by {configuration.kernel}: {case}")
            raise


# Random calls

STRATEGIES: dict[str, st.SearchStrategy[Case]] = {
    "max_pool": strategies.max_pools(),
    "average_pool": strategies.average_pools(dtypes=strategies.EVERY),
    "lp_pool": strategies.lp_pools(),
    "global_max_pool": strategies.global_pools("max"),
    "global_average_pool": strategies.global_pools("average"),
    "global_lp_pool": strategies.global_pools("lp"),
    "max_unpool": strategies.max_unpools(),
    "max_roi_pool": strategies.max_roi_pools(),
    "roi_align": strategies.roi_aligns(),
}


POOLS = [name for name in STRATEGIES if name.endswith("_pool") and "roi" not in name]
SOURCES = [f"{name}.cu" for name in planner.KERNELS if name not in ("auto", "specialised")]
"""What pools by windows: the files of the kernels that can be asked for."""

KERNEL_NAMES = {name: source for source in SOURCES for name in entries()[source]}
"""The kernels of these files, and the file of each."""


def configurations(
    function: str, kernels: Iterable[str] = KERNELS
) -> st.SearchStrategy[Configuration]:
    chosen = sorted(kernels) if function in POOLS else ["auto"]
    drawn = st.builds(Configuration, STRATEGIES[function], st.sampled_from(chosen), st.booleans())
    return drawn.map(served)


def served(configuration: Configuration) -> Configuration:
    """Leave away what these kernels do not take, so that they are what runs."""
    way, case = configuration.kernel, configuration.case
    kernel = WAYS[way][0]
    if make := MAKE.get(way) or MAKE.get(kernel):
        return Configuration(make(case), way)
    if kernel not in ("rows", *planner.FUSED):
        return configuration
    x, plain = case.arrays[0], {} if kernel == "rows" else {"dilations": None}
    if kernel not in ("rows", "separable"):
        plain |= {"return_indices": False, "storage_order": 0}
    if kernel.startswith("separable") and case.arguments["channels_last"]:
        x, plain = np.moveaxis(x, -1, 1), plain | {"channels_last": False}
    if kernel != "rows" and not keeps_strides(way, case):
        plain["strides"] = None
    # Strips are of whole lanes, of a row or of channels, and these vectors of an even size.
    x = np.repeat(x, {"strips": 8, "separable_vectors": 2}.get(kernel, 1), axis=-1)
    if way == "vectors" or (kernel == "strips" and case.arguments.get("ceil_mode")):
        plain |= {"auto_pad": "SAME_UPPER", "pads": None, "ceil_mode": False}  # as many outputs
    x = strategies.offset(x, case.arrays[0].ctypes.data % 16)
    return Configuration(changed(case, x, plain), way)


def changed(case: Case, x: np.ndarray[Any, Any], arguments: dict[str, Any]) -> Case:
    """Return the call on other memory, with those arguments changed that the operator has."""
    return case.on(x, **{name: arguments[name] for name in arguments.keys() & case.arguments})


def adjoining_planes(case: Case) -> Case:
    """Return the operator on planes for some blocks, one behind the other from a vector on."""
    x = channels_first(case)
    random = np.random.default_rng(x.size)
    images, channels = random.choice(((1, 51), (3, 17), (1, 64), (4, 16), (8, 32)))
    x = random.permuted(np.resize(x, (images, channels, *x.shape[2:])))
    dilations = case.arguments.get("dilations")
    if dilations is not None:
        dilations = [*np.broadcast_to(dilations, x.ndim - 2)[:-1].tolist(), 1]
    plain = {"channels_last": False, "dilations": dilations, "p": of_no_pow(case)}
    return changed(case, strategies.offset(x, 0), plain)


def small_planes(case: Case) -> Case:
    """Return the values of planes that adjoin, whose taps do, too."""
    planes = adjoining_planes(case)
    plain = {"dilations": None, "return_indices": False, "storage_order": 0}
    return changed(planes, planes.arrays[0], plain)


def channels_first(case: Case) -> np.ndarray[Any, Any]:
    """Return the memory of a call as if its channels came first."""
    last = case.arguments["channels_last"]
    return np.moveaxis(case.arrays[0], -1, 1) if last else case.arrays[0]


def whole_planes(case: Case) -> Case:
    """Return the operator on whole planes, one behind the other from a vector on."""
    x = strategies.offset(channels_first(case), 0)
    return changed(case, x, of_one_window(x.shape[2:]) | {"channels_last": False})


def long_planes(case: Case) -> Case:
    """Return the operator on few planes, each of many elements."""
    x = channels_first(case)[:1, :2]
    x = np.repeat(x, -(-5000 // math.prod(x.shape[2:])), -1)
    x = strategies.offset(np.random.default_rng(0).permuted(x), x.itemsize)
    return changed(case, x, of_one_window(x.shape[2:]) | {"channels_last": False})


def keeps_strides(way: str, case: Case) -> bool:
    """Whether windows overlap as these kernels ask, but with ceil_mode may overhang by a stride."""
    if KERNELS[way][0] == "strips":
        stride = np.atleast_1d(case.arguments.get("strides") or 1)[-1]
        known = stride > 1 if case.arguments["channels_last"] else stride in (2, 4)
        return overlap(case) and bool(known)
    return overlap(case) or (way != "vectors" and bool(case.arguments.get("ceil_mode")))


def whole_images(case: Case) -> Case:
    """Return the operator on adjoining pixels, of one image where those of more are not aligned."""
    last = case.arguments["channels_last"]
    x = case.arrays[0] if last else np.moveaxis(case.arrays[0], 1, -1)
    x = strategies.offset(x if x[0].nbytes % 16 == 0 else x[:1], 0)
    plain = {"return_indices": False, "storage_order": 0, "channels_last": True}
    return changed(case, x, of_one_window(x.shape[1:-1]) | plain | {"p": of_no_pow(case)})


def long_images(case: Case) -> Case:
    """Return the operator on one image of many pixels."""
    return whole_images(long_planes(case))


def of_one_window(spatial: tuple[int, ...]) -> dict[str, Any]:
    """Return the arguments by which a window is all that there is."""
    none = dict.fromkeys(("strides", "pads", "dilations"))
    return {"kernel_shape": spatial, "auto_pad": "NOTSET", "ceil_mode": False, **none}


MAKE: dict[str, Callable[[Case], Case]] = {
    "channels": whole_images,
    "rows_staged": adjoining_planes,
    "separable_planes": small_planes,
    "plane_staged": whole_planes,
    "plane_parts": long_planes,
    "channels_parts": long_images,
}
"""What kernels and ways serve, of any call."""


def of_no_pow(case: Case) -> float:
    """Return the norm's p, or another whose powers are products."""
    return min(case.arguments.get("p", 2), 3) // 1 or 2


def overlap(case: Case) -> bool:
    if case.arguments.get("strides") is None:
        return True
    kernel, strides = (np.asarray(case.arguments[name]) for name in ("kernel_shape", "strides"))
    return bool(np.all((strides == 1) | (strides < kernel)))


def drawn(
    function: str, n: int, seed: int, kernels: Iterable[str] = KERNELS
) -> list[Configuration]:  # fmt: skip
    """Draw before anything runs, so that all kernels can be compiled in batches."""
    found: list[Configuration] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n, phases=[Phase.generate], database=None, deadline=None, derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(configurations(function, kernels))
    def collect(configuration: Configuration) -> None:
        found.append(configuration)

    collect()
    return [configuration for configuration in found if decided(configuration.case)]


def decided(case: Case) -> bool:
    """Whether rounding does not decide if a sample of RoiAlign counts at all."""
    return case.function != "roi_align" or min(reference.doubtful(case), default=1) > 2**-10


def compare(
    function: str, n: int, seed: int, kernels: Iterable[str] = KERNELS
) -> list[list[planner.Launch]]:  # fmt: skip
    """Judge random configurations of an operator; return the launches of each."""
    chosen = drawn(function, n, seed, kernels)
    compile_ahead(chosen)
    for number, configuration in enumerate(chosen):
        try:
            assert_configuration_right(configuration)
        except Exception as error:
            error.add_note(f"{function} {number} of seed {seed}: {configuration}")
            raise
    return [one.launches for one in chosen]


@pytest.mark.parametrize("function", STRATEGIES)
def test_random_calls_equal_the_oracle_under_three_schedules(function):
    taken = compare(function, 60, seed=0)
    assert len(taken) >= 50
    assert len({(launch.source, launch.expression) for one in taken for launch in one}) > 1


def test_random_calls_reach_every_kernel():
    calls = product(("max_pool", "average_pool"), WAYS)
    launches = launches_of(one for name, way in calls for one in drawn(name, 10, 0, [way]))
    assert {launch.kernel for launch in launches} >= set(KERNEL_NAMES)
    staged = {launch.template[-4] for launch in launches if launch.kernel == "rows_staged"}
    assert staged == {"false", "true"}, "whole blocks or not"


def test_random_calls_reach_vectors_of_channels_and_dilated_tiles():
    functions, ways = ("max_pool", "average_pool", "lp_pool"), ("rows", "large tiles")
    launches = launches_of(one for name in functions for one in drawn(name, 200, 0, ways))
    tiles = [launch.template for launch in launches if launch.source == "rows.cu"]
    kinds = {(tile[10], tile[1].startswith("Dilated")) for tile in tiles}
    assert kinds == set(product(("true", "false"), (True, False)))


# What the random calls are too small for: many blocks, long windows, planes in parts

LARGE: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "many blocks": ("max_pool", (2, 5, 24, 25), {"kernel_shape": 3, "pads": 1}),
    "overlapping": ("average_pool", (1, 2, 40, 33), {"kernel_shape": 5, "strides": 2}),
    "dilated": ("max_pool", (2, 8, 23, 40), {"kernel_shape": 3, "dilations": 2, "pads": 2}),
    "dilated sums": (
        "average_pool",
        (1, 8, 21, 32),
        {
            "kernel_shape": (3, 2),
            "strides": (2, 1),
            "dilations": (3, 2),
            "pads": (2, 1, 4, 1),
            "count_include_pad": True,
        },
    ),
    "long row": ("max_pool", (1, 1, 700), {"kernel_shape": 300, "strides": 7, "pads": 100}),
    "parts": ("max_pool", (1, 2, 90, 100), {"kernel_shape": (90, 100)}),
    "parts of three axes": ("average_pool", (1, 3, 9, 25, 40), {"kernel_shape": (9, 25, 40)}),
    "parts, strided": ("lp_pool", (1, 2, 130, 70), {"kernel_shape": 64, "strides": 60}),
    "parts, dilated": ("max_pool", (1, 1, 150, 150), {"kernel_shape": 70, "dilations": 2}),
    "long rows": ("max_pool", (1, 2, 3, 2200), {"kernel_shape": (2, 2100)}),
    "parts of few rows": (
        "average_pool",
        (1, 2, 3, 6000),
        {"kernel_shape": (2, 5500), "strides": (2, 1000)},
    ),
    "parts of many planes": (
        "max_pool",
        (1, 1, 5, 20, 30),
        {"kernel_shape": (4, 19, 25), "strides": 7, "pads": 1},
    ),
    "wider padding than windows": (
        "max_pool",
        (1, 9, 7, 9),
        {"kernel_shape": (2, 3), "pads": (4, 5, 7, 6)},
    ),
    "many planes": ("lp_pool", (3, 50, 12, 12), {"kernel_shape": 12}),
    "more columns than a tile": ("max_pool", (1, 1, 20, 260), {"kernel_shape": (9, 12), "pads": 4}),
    "tiles of vectors": (
        "max_pool",
        (1, 3, 40, 404),
        {"kernel_shape": (13, 30), "pads": (6, 13, 6, 16)},
    ),
    "vectors of planes side by side": (
        "max_pool",
        (5, 130, 12, 8),
        {"kernel_shape": (5, 7), "pads": (2, 3, 2, 3)},
    ),
    "strips beside each other": (
        "max_pool",
        (1, 3, 22, 312),
        {"kernel_shape": (9, 53), "pads": (4, 27, 3, 26)},
    ),
    "strips, strided": (
        "max_pool",
        (2, 5, 31, 48),
        {"kernel_shape": (7, 6), "strides": (3, 2), "pads": (2, 3, 5, 1), "ceil_mode": True},
    ),
    "strips of sums": (
        "average_pool",
        (3, 2, 22, 104),
        {"kernel_shape": (9, 21), "pads": (4, 10, 3, 9), "count_include_pad": True},
    ),
    "strips of norms, strided": (
        "lp_pool",
        (2, 3, 19, 32),
        {
            "kernel_shape": (7, 6),
            "strides": (3, 2),
            "pads": (2, 3, 5, 1),
            "p": 3,
            "ceil_mode": True,
        },
    ),
    "strips of pixels": (
        "max_pool",
        (2, 24, 17, 70),
        {"kernel_shape": (5, 9), "strides": (2, 3), "pads": (2, 3, 4, 6), "ceil_mode": True},
    ),
    "windows larger than planes": (
        "max_pool",
        (2, 3, 6, 8),
        {"kernel_shape": (21, 17), "pads": (10, 8, 10, 8)},
    ),
    "tall windows": ("average_pool", (1, 2, 16, 24), {"kernel_shape": (9, 19), "pads": 2}),
    "planes side by side": ("max_pool", (3, 400, 2, 3), {"kernel_shape": 2, "pads": 1}),
    "tiles, strided": (
        "max_pool",
        (1, 3, 34, 100),
        {"kernel_shape": (9, 14), "strides": (4, 3), "pads": (4, 7, 5, 9), "ceil_mode": True},
    ),
    "volumes": (
        "max_pool",
        (2, 3, 5, 14, 24),
        {"kernel_shape": (3, 5, 9), "strides": (2, 1, 1), "pads": (1, 2, 4, 1, 2, 4)},
    ),
    "volumes of sums, strided": (
        "average_pool",
        (2, 3, 4, 15, 32),
        {"kernel_shape": (3, 5, 7), "strides": (1, 2, 3), "pads": 2, "count_include_pad": True},
    ),
}
FOR_BLOCKS = {
    "many blocks": (2, 5, 6, 7),
    "dilated": (1, 3, 9, 12),
    "dilated sums": (1, 3, 15, 12),
    "wider padding than windows": (1, 3, 5, 6),
    "more columns than a tile": (1, 1, 12, 30),
    "tiles of vectors": (1, 2, 14, 34),
    "strips beside each other": (1, 2, 6, 48),
    "strips, strided": (1, 3, 15, 24),
    "strips of sums": (2, 2, 10, 24),
    "strips of pixels": (1, 8, 5, 16),
    "vectors of planes side by side": (2, 3, 12, 8),
    "planes side by side": (3, 40, 2, 3),
    "volumes": (1, 2, 4, 9, 12),
    "volumes of sums, strided": (1, 2, 4, 9, 16),
}
"""Shapes for kernels whose threads share an output, which may have a block: there would be
thousands, all alike."""


@cache
def large(name: str, dtype: str, last: bool, indices: bool, blocks: bool = False) -> Case:
    function, shape, arguments = LARGE[name]
    shape = FOR_BLOCKS.get(name, shape) if blocks else shape
    rng = np.random.default_rng(len(name))
    x = (rng.standard_normal(shape) * 50).astype(strategies.dtype_of(dtype))
    if last:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    more = {"return_indices": True} if indices else {}
    return Case(function, (x,), arguments | more | {"channels_last": last})


def dtypes_of(name: str) -> tuple[str, ...]:
    return strategies.FLOATS if LARGE[name][0] == "lp_pool" else strategies.EVERY


def indices_of(name: str) -> tuple[bool, ...]:
    return (False, True) if LARGE[name][0] == "max_pool" else (False,)


def by_blocks(kernel: str) -> bool:
    return KERNELS[kernel][0] in planner.SHARING


@cache
def compiled_windows(
    name: str,
    dtypes: tuple[str, ...],
    indices: tuple[bool, ...],
    wide: tuple[str, ...] = (),
    build: str | None = None,
) -> dict[bool, list[Configuration]]:
    """Return the calls by whether channels are last: both share batches of the compiler.

    Maxima are of half of the choices; those of sums are fewer, for they have no Indices.
    """
    ways = [*((kernel, False) for kernel in KERNELS), *((kernel, True) for kernel in wide)]
    window, is_max = list(LARGE).index(name), LARGE[name][0] == "max_pool"
    chosen = {
        last: distinct(
            Configuration(large(name, dtype, last, indexed, by_blocks(kernel)), kernel, is_wide)
            for (number, dtype), indexed in product(enumerate(dtypes), indices)
            for kernel, is_wide in ways
            if is_wide or not is_max or covered(window, number, indexed, last)
        )
        for last in (False, True)
    }
    compile_ahead(chain.from_iterable(chosen.values()), build=build)
    return chosen


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", LARGE)
def test_large_windows(name, last):
    is_max = LARGE[name][0] == "max_pool"
    chosen = compiled_windows(name, dtypes_of(name), indices_of(name), wide=("plane",))[last]
    maxima = {id(one.case): one.case for one in chosen if is_max}
    right = {key: case.run(numpy_backend()) for key, case in maxima.items()}
    for configuration in chosen:
        case = configuration.case
        results = configuration.run(sentinel=SENTINELS[0])
        assert_same(configuration.run(sentinel=SENTINELS[1], schedule=REVERSE), results)
        if is_max:
            for result, array in zip(results, right[id(case)], strict=True):
                assert_bitwise(result, array)
        else:
            assert_right(case, results)


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_windows_of_lowest_taps_behind_wide_padding_have_the_first_one(dtype):
    """Windows that reach few rows, or few columns, behind as much padding as taps or more."""
    of = strategies.dtype_of(dtype)
    lowest = np.iinfo(of).min if of.kind in "iu" else -math.inf
    found = []
    for pads in ((9, 4, 4, 4), (4, 9, 4, 4), (11, 10, 9, 9), (4, 4, 9, 9)):
        case = Case(
            "max_pool",
            (np.full((1, 2, 16, 12), lowest, of),),
            {"kernel_shape": 9, "pads": pads, "return_indices": True},
        )
        found += [Configuration(case, kernel) for kernel in ("auto", "strips", "separable")]
    compile_ahead(found)
    for configuration in found:
        assert_configuration_right(configuration)


def with_a_few_nan(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return small integers, among floats NaN."""
    of, random = strategies.dtype_of(dtype), np.random.default_rng(41)
    palettes = strategies.FINITE | strategies.WITH_SPECIAL
    values = palettes["ties" if of.kind in "iu" else "a few NaN"](random, shape, of)
    return np.asarray(values).astype(of)


@pytest.mark.parametrize("last_block", ["whole", "not whole"])
@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_planes_of_every_size_are_staged(dtype, last_block):
    """By loads of 4 bytes to 16, one worker to eight, and one vector of a thread to twelve."""
    found, images, channels = [], *((2, 32) if last_block == "whole" else (3, 43))
    for height, width in ((4, 4), (5, 5), (6, 7), (7, 10), (4, 33), (11, 16), (13, 14)):
        x = with_a_few_nan(dtype, (images, channels, height, width))
        window = {"kernel_shape": (height, width), "return_indices": True}
        for call, arguments in (("global_average_pool", {}), ("max_pool", window)):
            found.append(Configuration(Case(call, (x,), arguments)))
    launches = compile_ahead(found)
    assert {launch.kernel for launch in launches} == {"plane_staged"}
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_windows_of_one_row_begin_and_end_anywhere(dtype):
    """At every place of a vector, those of fewer taps than it has among them."""
    found = []
    for by in range(0, 16, strategies.dtype_of(dtype).itemsize):
        for shape, window in (
            ((2, 3, 7, 9), {"kernel_shape": (7, 9)}),
            ((1, 2, 1, 801), {"kernel_shape": (1, 801)}),
            ((2, 2, 45), {"kernel_shape": 9, "strides": 7}),
            ((2, 5, 3), {"kernel_shape": 3}),
        ):
            x = strategies.offset(with_a_few_nan(dtype, shape), by)
            found.append(Configuration(Case("average_pool", (x,), window), "plane"))
            case = Case("max_pool", (x,), {**window, "return_indices": True})
            found.append(Configuration(case, "few workers"))
    launches = compile_ahead(found)
    assert sum("ragged" in launch.template for launch in launches) > 5
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_one_part_of_a_row_has_its_ends(dtype):
    """The rows of other windows in parts are taken by whole vectors."""
    of, found = strategies.dtype_of(dtype), []
    for by in (0, of.itemsize, 16 - of.itemsize):
        x = np.ones((1, 1, 2 * PART_LOADS * THREADS * 16 // of.itemsize + 3), of)
        x[..., [0, -2, -1]] = 96, 96, 127
        x = strategies.offset(x, by)
        window = {"kernel_shape": x.shape[2], "return_indices": True}
        found.append(Configuration(Case("max_pool", (x,), window)))
        if of.kind not in "iu":
            found.append(Configuration(Case("global_lp_pool", (x,), {})))
    cut = [launch for launch in compile_ahead(found) if launch.kernel == "plane_parts"]
    assert {"ragged"} < {word for launch in cut for word in launch.template}
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_maxima_of_more_taps_than_a_sum_may_have(dtype):
    x = np.random.default_rng(3).standard_normal((2, 1, 293, 232)) * 50
    case = Case("max_pool", (x.astype(strategies.dtype_of(dtype)),), {"kernel_shape": (290, 229)})
    assert separable.MOST_TAPS_OF_SUMS < 290 * 229
    chosen = [Configuration(case, kernel) for kernel in ("vectors", "separable")]
    sources = Counter(launch.source for launch in compile_ahead(chosen))
    assert sources == {"separable_vectors.cu": 1, "separable.cu": 1}
    for configuration in chosen:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("function", ["max_pool", "global_max_pool"])
def test_kernels_agree_bit_for_bit_on_maxima_and_indices(function):
    cases = [configuration.case for configuration in drawn(function, 60, seed=1)]
    ways = [distinct(Configuration(case, kernel) for kernel in KERNELS) for case in cases]
    compile_ahead(chain.from_iterable(ways))
    for several in ways:
        first, *others = (one.run() for one in several)
        for other in others:
            for one, result in zip(first, other, strict=True):
                assert_bitwise(one, result)
    assert any(len(case.run(EMULATED)) == 2 for case in cases) or function == "global_max_pool"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_maxima_over_the_ends_of_rows_that_vectors_divide(dtype):
    """Of windows of many sizes, which share what is down their columns and along their rows."""
    random, found = np.random.default_rng(23), []
    for kernel, stride in product(range(1, 10), (1, 2, 3)):
        padding = max(0, kernel - stride)  # as much as leaves outputs for the whole row
        before = int(random.integers(0, padding, endpoint=True))
        shape = 1, 2, 11, 16 * stride * int(random.integers(1, 4))
        of = strategies.dtype_of(dtype)
        x = strategies.WITH_SPECIAL["a few NaN"](random, shape, of).astype(of)
        pads = kernel // 2, before, kernel // 3, padding - before
        window = {"kernel_shape": kernel, "strides": stride, "pads": pads}
        found.append(Configuration(Case("max_pool", (x,), window), "rows"))
    launches = compile_ahead(found)
    assert sum(launch.template[5] == "at_ends" for launch in launches) > 4
    for configuration in found:
        assert_configuration_right(configuration)


STAGED_ROWS = [
    (function, dtype.name)
    for function, dtype in product(("max_pool", "average_pool", "lp_pool"), DTYPES)
    if dtype.is_float or function != "lp_pool"
]


def staged_rows(function: str, dtype: str) -> list[Configuration]:
    """Whole blocks and others, volumes, windows over every edge, taps whose rows lie apart.

    Rows of narrow elements that begin at every byte of a word.
    """
    cases = []
    window = {"kernel_shape": 3, "pads": 1}
    anywhere = (
        ((3, 11, 13, 13), {"kernel_shape": 5, "pads": 2}),
        ((1, 35, 3, 17), {"kernel_shape": (1, 7), "pads": (0, 3, 0, 3)}),
        ((2, 33, 19), window),
    )
    for shape, arguments in (
        ((2, 24, 7, 7), window | {"strides": 2}),
        ((3, 17, 5, 8), window),
        ((1, 40, 20, 20), {"kernel_shape": 13, "pads": 6}),
        ((2, 16, 4, 6, 6), window | {"strides": (1, 2, 2)}),
        ((2, 20, 9, 12), window | {"dilations": (2, 1), "pads": (2, 1, 1, 0)}),
        ((5, 16, 14, 14), {"kernel_shape": 2, "strides": 2}),
        ((1, 300, 9), {"kernel_shape": 4, "strides": 2, "ceil_mode": True}),
        ((3, 50, 7, 8), {"kernel_shape": 3, "strides": 2}),
        *(anywhere if strategies.dtype_of(dtype).itemsize < 4 else ()),
    ):
        x = with_a_few_nan(dtype, shape)
        cases.append(Case(function, (x,), arguments))
        if function == "max_pool":
            cases.append(Case(function, (x,), arguments | {"return_indices": True}))
        if function == "average_pool":
            cases.append(Case(function, (x,), arguments | {"count_include_pad": True}))
            if x.dtype.kind in "iu":
                cases.append(Case(function, (x,), arguments | {"dtype": "float32"}))
    found = [
        Configuration(case, kernel)
        for case in cases
        for kernel in ("staged rows", "rows in shared memory")
    ]
    return found + [Configuration(*one) for one in _staged_parts(function, dtype)]


def _staged_parts(function: str, dtype: str) -> Iterator[tuple[Case, str]]:
    """Blocks that begin anywhere in a vector, and parts of rows: inside, and over both ends.

    Of rows that begin anywhere, of such that begin with words, and of volumes. Threads that go
    from either end of the rows, of volumes and of parts.
    """
    window = {"kernel_shape": 3, "pads": 1}
    for shape, arguments, way in (
        ((3, 43, 11, 15), window, "rows anywhere in vectors"),
        ((3, 33, 5, 15), window | {"pads": (1, 1, 1, 2)}, "parts anywhere in vectors"),
        ((1, 64, 9, 19), {"kernel_shape": 3, "strides": 2}, "parts in shared memory"),
        (
            (2, 9, 3, 6, 24),
            {"kernel_shape": (1, 3, 4), "pads": (0, 1, 2, 0, 1, 1)},
            "parts of rows",
        ),
        ((5, 33, 21), {"kernel_shape": 5, "strides": 3, "pads": (1, 2)}, "parts of rows"),
        ((1, 48, 8, 19), {"kernel_shape": (2, 3), "strides": 2}, "parts in shared memory"),
        ((2, 9, 3, 6, 7), {"kernel_shape": 2}, "rows in shared memory"),
        ((1, 48, 8, 8), window, "two rows from either end"),
    ):
        x = with_a_few_nan(dtype, shape)
        yield Case(function, (x,), arguments), way
        if function == "max_pool" and len(shape) == 4:
            yield Case(function, (x,), arguments | {"return_indices": True}), way


@pytest.mark.parametrize(("function", "dtype"), STAGED_ROWS)
def test_rows_of_staged_planes_equal_the_oracle(function, dtype):
    found = staged_rows(function, dtype)
    launches = compile_ahead(found, build="checked")
    assert sum(launch.kernel == "rows_staged" for launch in launches) > 0.7 * len(found), launches
    staged = [launch.template for launch in launches if launch.kernel == "rows_staged"]
    results = {(template[-4], int(template[-3]) >= 0) for template in staged}
    assert results == set(product(("false", "true"), (False, True))), "whole blocks or not"
    assert {template[-2] for template in staged} == {"false", "true"}, "slices first"
    assert {template[-1] for template in staged} == {"0", "1", "2", "4"}, "from either end"
    at_edges = {one[8] for one in staged if one[-1] == "2" and one[5] != "nowhere"}
    assert at_edges == {"2"}, "rows of a tile"
    parts = [template for template in staged if template[4] == "0"]
    assert {template[-4] for template in parts} == {"false", "true"}, "planes begin anywhere"
    lines = {
        int(template[9]) > int(template[7]) * int(re.findall(r"\d+", template[2])[-1])
        for template in parts
    }
    assert (True in lines) == (strategies.dtype_of(dtype).itemsize < 4), "lines begin anywhere"
    assert all(launch.shared <= SHARED_BYTES for launch in launches)
    for configuration in found:
        assert_configuration_right(configuration, build="checked")


def columns_and_rows(dtype: str, function: str = "max_pool") -> list[Configuration]:
    """Calls in whole blocks and others, of windows over every edge and apart.

    Results of blocks begin and end with vectors, or anywhere. Columns, rows of results and columns
    of them are of odd numbers, too, and so are the planes of the last block. Results are fewer than
    elements, as many or more, and spread in some.
    """
    found = []
    for number, (shape, window) in enumerate(
        (
            ((1, 40, 20, 20), {"kernel_shape": 13, "pads": 6}),
            ((3, 32, 12, 8), {"kernel_shape": (5, 3), "strides": (2, 1), "pads": (2, 1, 2, 0)}),
            ((5, 16, 9, 14), {"kernel_shape": (4, 2), "strides": (1, 3), "pads": (3, 0, 0, 1)}),
            ((2, 48, 6, 8), {"kernel_shape": (9, 13), "pads": (4, 6, 4, 6)}),
            ((3, 24, 11, 16), {"kernel_shape": 3, "strides": 2, "ceil_mode": True}),
            ((1, 43, 10, 10), {"kernel_shape": (2, 5), "pads": (1, 2, 0, 1)}),
            ((1, 43, 13, 13), {"kernel_shape": 5, "pads": 2}),
            ((2, 32, 8, 9), {"kernel_shape": (3, 2), "strides": 2, "pads": (1, 0, 0, 0)}),
            ((1, 45, 5, 32), {"kernel_shape": (2, 3), "pads": (1, 1, 1, 1)}),
            ((1, 47, 5, 8), {"kernel_shape": (2, 9), "pads": (0, 4, 1, 4)}),
            ((1, 5, 7, 79), {"kernel_shape": 3, "strides": 2}),
        )
    ):
        counted = {"count_include_pad": number % 2 == 1} if function == "average_pool" else {}
        case = Case(function, (with_a_few_nan(dtype, shape),), window | counted)
        found.append(Configuration(case, "separable_planes"))
    return found


def judge_columns_and_rows(found: list[Configuration]) -> list[tuple[str, ...]]:
    """Return the template arguments of calls that are all right, in blocks of each kind."""
    launches = compile_ahead(found, build="checked")
    templates = [launch.template for launch in launches if launch.kernel == "separable_planes"]
    assert len(templates) == len(found), launches
    assert {template[-1] for template in templates} == {"false", "true"}, "whole blocks or not"
    for numbers in (6, 7, 8):
        assert {int(template[numbers]) % 2 for template in templates} == {0, 1}, (
            "columns, and results"
        )
    assert {template[13] for template in templates} == {"false", "true"}, "spread or not"
    assert any(int(template[7]) > int(template[5]) for template in templates), "more results"
    item = found[0].case.arrays[0].itemsize
    results = [math.prod(int(template[i]) for i in (7, 8, 14)) * item for template in templates]
    assert {size % 16 == 0 for size in results} == {False, True}, "results begin anywhere"
    assert ("0" in {template[10] for template in templates}) == (item < 4), "and words in rows"
    for configuration in found:
        assert_configuration_right(configuration, build="checked")
    return templates


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_columns_and_rows_of_small_planes_equal_the_oracle(dtype):
    judge_columns_and_rows(columns_and_rows(dtype))


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES if dtype.is_float])
def test_averages_by_columns_and_rows_equal_the_oracle(dtype):
    judge_columns_and_rows(columns_and_rows(dtype, "average_pool"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow of the oracle's conversions
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_averages_by_columns_and_rows_are_looked_at_again(dtype):
    """Some of a row overflow, beside sums of numbers too small to be divided by anything."""
    real = strategies.dtype_of(dtype)
    info = ml_dtypes.finfo(real)
    greatest, least = float(info.max), float(info.smallest_subnormal)
    rng = np.random.default_rng(0)
    x = rng.choice([greatest, -greatest, least, 3 * least, 0, 1], (1, 43, 13, 14))
    x[rng.random(x.shape) < 0.01] = np.inf
    window = {"kernel_shape": (2, 3), "pads": (1, 1, 0, 1)}
    one = Configuration(Case("average_pool", (x.astype(real),), window), "separable_planes")
    assert [launch.kernel for launch in one.launches] == ["separable_planes"]
    with np.errstate(over="ignore"):
        sums = np.lib.stride_tricks.sliding_window_view(x, (2, 3), (2, 3)).sum((-2, -1))
    again = ~np.isfinite(sums)
    assert (again.any(-1) & ~again.all(-1)).any()
    assert_configuration_right(one, build="checked")


MERGES = """
#include "separable_planes.cu"
struct Counting {
    long long* merges;
    __device__ int merge(int a, int b) const { return ++*merges, most(a, b); }
};
template <int Kernel, int Stride, int Pad, int Size, int Windows>
__device__ void count(long long* merges) {
    int line[Size] = {}, windows[Windows];
    merge_line<Kernel, Stride, Pad>(Counting{merges}, line, windows);
}
__global__ void count_merges(long long* y) {
%s
}
"""


def test_merges_of_a_line_count_as_the_kernel_merges():
    sizes = product((1, 2, 3, 5, 13), (1, 2, 3), (0, 1, 4), (5, 13, 20))
    resolved = (
        Axis.resolve(size, kernel, stride=stride, pads=(min(pad, kernel - 1), pad // 2))
        for kernel, stride, pad, size in sizes
        if kernel <= size
    )
    axes = [axis for axis in resolved if axis.touches]
    numbers = ((axis.kernel, axis.stride, axis.pad_begin, axis.size, axis.out) for axis in axes)
    calls = [f"    count<{', '.join(map(str, of))}>(y + {i});" for i, of in enumerate(numbers)]
    code = MERGES % "\n".join(calls)
    module = EmulatedModule(code, include_dir=kernel_folder(), expression="count_merges")
    counted = np.zeros(len(axes), np.int64)
    module.get_function("count_merges")((1,), (1,), (counted,))
    assert counted.tolist() == [separable_planes.merges(axis) for axis in axes]
    assert len({*counted.tolist()}) > 20


@pytest.mark.parametrize(
    ("axes", "kernel", "stride", "dilation"),
    [
        (1, 5, 1, 1),
        (2, 3, 1, 1),
        (2, 3, 2, 1),
        (2, 5, 1, 1),
        (2, 3, 1, 2),
        (3, 2, 1, 1),
        (3, 3, 2, 2),
    ],
)
def test_tiles_that_share_taps_name_the_first_of_equal_ones(axes, kernel, stride, dilation):
    """Of few values, the least among them, in windows that begin and end in the padding."""
    random, found = np.random.default_rng(37), []
    for dtype, last in (("float64", True), ("float32", False), ("float16", True), ("int8", False)):
        of, spatial = strategies.dtype_of(dtype), (5, 9, 14)[-axes:]
        least, others = (-128, [1, 2]) if dtype == "int8" else (-np.inf, [-0.0, 0.0, np.nan])
        shape = (2, *spatial, 5) if last else (2, 3, *spatial)
        window = {"kernel_shape": kernel, "strides": stride, "dilations": dilation}
        window |= {"pads": (kernel - 1) * dilation, "channels_last": last, "return_indices": True}
        for seldom in (0.7, 0.03):
            x = np.where(random.random(shape) < seldom, random.choice(others, shape), least)
            case = Case("max_pool", (x.astype(of),), window)
            found += [Configuration(case, tier) for tier in ("rows", "large tiles")]
    launches = compile_ahead(found)
    assert sum(launch.source == "rows.cu" for launch in launches) > len(found) / 2
    for configuration in found:
        assert_configuration_right(configuration)


IMAGES = {"rows": 11, "strips": -1, "vectors": -1, "separable": -1}
"""Which template argument says whether planes are those of images that lie apart."""


@pytest.mark.parametrize(
    ("kernel", "axes"), [way for way in product(IMAGES, (1, 2, 3)) if way != ("strips", 3)]
)
def test_planes_of_images_that_lie_apart_and_evenly(kernel, axes):
    random, found = np.random.default_rng(31), []
    calls = {
        "max_pool": {"return_indices": kernel == "rows"},
        "average_pool": {"count_include_pad": True},
    }
    whole = random.standard_normal((4, 4, *(4, 5, 24)[-axes:])).astype("float32")
    views = whole, whole[:, ::2], whole[:1, 1:3], whole[:, 2:3], whole[:, 1:3], whole[::2]
    for x, (function, more) in product((*views, whole.swapaxes(0, 1)), calls.items()):
        case = Case(function, (x,), {"kernel_shape": 3, "strides": 1, "pads": 1, **more})
        found.append(Configuration(case, kernel))
    launches = compile_ahead(found)
    # Of one axis separable kernels take the channels as rows of larger planes, one of each image.
    expected = {"false"} if axes == 1 and kernel != "rows" else {"false", "true"}
    assert {launch.template[IMAGES[kernel]] for launch in launches} == expected
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_strips_store_windows_that_lie_in_the_padding(dtype, last):
    """Planes beside each other share no more padding than the windows that begin in it leave."""
    shape, found = ((2, 5, 16, 8) if last else (2, 5, 6, 16)), []
    x = np.random.default_rng(37).standard_normal(shape).astype(dtype)
    for kernel, begin, end in product((1, 3, 9), (0, 4, 9, 20), (0, 4, 9, 20)):
        window = {"kernel_shape": (2, kernel), "pads": (1, begin, 1, end), "channels_last": last}
        found.append(Configuration(Case("max_pool", (x,), window), "strips"))
        average = window | {"count_include_pad": begin == 9}
        found.append(Configuration(Case("average_pool", (x,), average), "strips"))
    assert {launch.source for launch in compile_ahead(found)} == {"strips.cu"}
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_bytes_in_the_halves_of_words(dtype):
    """Of as many taps as are compiled in, all of them the least or the greatest, too."""
    least, greatest = (int(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    random, found = np.random.default_rng(29), []
    values = [(least,), (greatest,), (least, greatest), range(least, greatest + 1)]
    shapes = [(1, 2, 24, 144), (1, 2, 24, 16), (1, 24, 64, 4), (1, 2, 5, 9, 32)]
    windows = [*product(shapes, [(2, 1), (3, 1), (5, 1), (3, 3)])]
    windows += [(shapes[0], (8, 8)), (shapes[0], ((8, 32), (8, 16)))]
    for (shape, (kernel, strides)), few in product(windows, values):
        pads = (0, kernel - 1) * (len(shape) - 2) if strides == 1 else 0
        window = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        arguments = {**window, "count_include_pad": pads == 0, "channels_last": shape[-1] == 4}
        x = random.choice(few, shape).astype(dtype)
        found.append(Configuration(Case("average_pool", (x,), arguments), "rows"))
    kernels = Counter(launch.kernel for launch in compile_ahead(found))
    assert set(kernels) == {"rows"}, kernels
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_bytes_of_two_planes_in_a_word(dtype):
    """Of nearly as many taps as half a word holds, all of them the least or the greatest, too."""
    least, greatest = (int(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    random, found = np.random.default_rng(31), []
    values = [(least,), (greatest,), (least, greatest), range(least, greatest + 1)]
    padded = {"kernel_shape": (5, 7), "pads": (2, 3, 4, 6)}
    windows = [
        ((1, 3, 9, 24), padded),
        ((3, 3, 9, 24), {**padded, "pads": (2, 3, 2, 3), "count_include_pad": True}),
        ((5, 7, 10, 21), {**padded, "strides": (2, 3), "ceil_mode": True}),
        ((3, 7, 17, 37), {"kernel_shape": 16, "pads": 8}),
        ((2, 9, 12, 3), {**padded, "channels_last": True}),
        ((1, 11, 9, 40), {**padded, "channels_last": True}),
    ]
    for (shape, window), few in product(windows, values):
        x = random.choice(few, shape).astype(dtype)
        found.append(Configuration(Case("average_pool", (x,), window), "vectors"))
    with emulator.constants(BLOCKS=1):
        launches = compile_ahead(found)
        assert all(launch.template[0].startswith("Paired<") for launch in launches)
        assert {launch.template[5] for launch in launches} >= {"1", "4"}, "vectors read at once"
        assert {launch.template[7] for launch in launches} == {"false", "true"}, "folded or not"
        for configuration in found:
            assert_configuration_right(configuration)


@cache
def strips_of_pixels(dtype: str) -> list[Configuration]:
    """Windows whose first may lie in front of the row, and of which every second one is wanted."""
    random, found = np.random.default_rng(53), []
    windows = [
        {"kernel_shape": (3, width), "pads": (1, begin, 1, width - 1), "strides": strides}
        for width, begin in ((3, 2), (9, 5), (25, 23))
        for strides in ((1, 1), (2, 2))
    ]
    functions = ["max_pool", "average_pool"] + ["lp_pool"] * (dtype in strategies.FLOATS)
    ways = cycle(STRIPS)
    for (function, window), way in zip(product(functions, windows), ways, strict=False):
        image = random.normal(60, 30, (2, 7, 12, 32))
        x = image.clip(0, 120).astype(strategies.dtype_of(dtype))
        case = Case(function, (x,), {**window, "channels_last": True})
        found.append(Configuration(case, way))
    one_row = {**windows[0], "channels_last": True}
    x = np.broadcast_to(x[:, :1], x.shape)
    found += [Configuration(Case(function, (x,), one_row), "strips") for function in functions]
    return found


@pytest.mark.parametrize("pixels", planner.strips.PIXELS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint8"])
def test_lanes_of_strips_have_several_pixels(dtype, pixels):
    """By lanes of other pixels each, and by as many abreast as have the same ones."""
    every = [replace(one) for one in strips_of_pixels(dtype)]  # which keep no launches
    alternating = [(number + number // 2) % 2 for number in range(len(every))]  # at all strides
    for way, abreast in enumerate(((1,), planner.strips.ABREAST)):
        found = [one for one, its_way in zip(every, alternating, strict=True) if its_way == way]
        with emulator.constants(PIXELS=(pixels,), ABREAST=abreast, LOOKUP=10**9):
            launches = compile_ahead(found)
            assert {(launch.source, launch.template[6]) for launch in launches} == {
                ("strips.cu", str(pixels))
            }
            assert any(launch.template[7] != "1" for launch in launches) == (len(abreast) > 1)
            for configuration in found:
                assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_bytes_of_two_strips_in_a_word(dtype):
    """Of nearly as many taps as half a word holds, and of a few more."""
    least, greatest = (int(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    random, found = np.random.default_rng(43), []
    values = [(least,), (greatest,), (least, greatest), range(least, greatest + 1)]
    padded = {"kernel_shape": (5, 7), "pads": (2, 3, 4, 6)}
    windows = [
        ((1, 3, 9, 24), padded),
        ((3, 3, 9, 48), {**padded, "strides": (2, 4), "count_include_pad": True}),
        ((1, 2, 19, 24), {"kernel_shape": (16, 16), "dtype": "float16"}),
        ((1, 2, 19, 24), {"kernel_shape": (13, 20), "dtype": "float64"}),
        ((2, 9, 12, 8), {**padded, "channels_last": True, "dtype": "float32"}),
        ((1, 11, 9, 40), {**padded, "strides": (1, 3), "channels_last": True}),
    ]
    for (shape, window), few in product(windows, values):
        x = random.choice(few, shape).astype(dtype)
        case = Case("average_pool", (x,), window)
        found += [Configuration(case, name) for name in STRIPS]
    launches = compile_ahead(found)
    assert {launch.source for launch in launches} == {"strips.cu"}
    paired = Counter(launch.template[0].startswith("Paired<") for launch in launches)
    assert set(paired) == {False, True}, paired
    for configuration in found:
        assert_configuration_right(configuration)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8"])
def test_words_hold_both_halves_of_a_plane(dtype):
    """Of two rows or many, odd ones, more padding than either half has rows, parts of tiles."""
    padded = {"kernel_shape": (5, 7), "pads": (2, 3, 4, 6)}
    deep = {"kernel_shape": (9, 3), "pads": (8, 1, 8, 1)}
    windows = [
        ((1, 1, 2, 24), {"kernel_shape": (1, 3)}),
        ((1, 1, 3, 24), deep),
        ((1, 1, 9, 24), padded),
        ((1, 3, 40, 13), padded),
        ((3, 1, 31, 40), {**deep, "auto_pad": "SAME_LOWER", "pads": None}),
        ((1, 12, 11, 3), {**padded, "channels_last": True}),
        ((1, 31, 9, 40), {**deep, "channels_last": True}),
    ]
    calls = [("max_pool", *window) for window in windows]
    if np.dtype(dtype).itemsize == 1:
        calls += [("average_pool", *window) for window in windows]
    volume = {"kernel_shape": (2, 5, 3), "pads": (1, 2, 1, 0, 2, 1)}
    calls.append(("max_pool", (1, 1, 2, 9, 24), volume))
    random, found = np.random.default_rng(37), []
    for function, shape, window in calls:
        if np.dtype(dtype).itemsize == 1:  # so few great ones that few windows have the same
            x = np.iinfo(dtype).min + 255 * random.random(shape) ** 20
        else:
            x = random.choice([np.nan, -np.inf, 1], shape, p=[0.01, 0.1, 0.89])
            x *= random.standard_normal(shape)
        case = Case(function, (x.astype(dtype),), window)
        found += [Configuration(case, kernel) for kernel in ("vectors", "vectors in parts")]
    with emulator.constants(BLOCKS=1, FOLDED=-(10**6)):
        launches = compile_ahead(found)
        assert {launch.template[7] for launch in launches} == {"true"}
        for configuration in found:
            assert_configuration_right(configuration)


def test_vectors_lie_along_the_channels_of_one_pixel_or_of_some():
    """Channels that vectors divide or not, in one tile or several, of windows in the padding."""
    random, found = np.random.default_rng(41), []
    functions = [("max_pool", "float16"), ("max_pool", "float64")]
    functions += [("average_pool", "float32"), ("lp_pool", "float32")]
    for (function, dtype), channels in product(functions, (3, 4, 6, 72)):
        kernel = random.integers((2, 2), (9, 12))
        pads = [int(random.integers(k)) for k in (*kernel, *kernel)]
        shape = (2, *random.integers(kernel, (30, 20)), channels)
        x = random.standard_normal(shape) * random.choice([1e-3, 1, 1e3], shape)
        x[random.random(shape) < 0.01] = random.choice([np.nan, np.inf, 0])
        window = {"kernel_shape": tuple(map(int, kernel)), "pads": pads, "channels_last": True}
        found.append(Configuration(Case(function, (x.astype(dtype),), window), "vectors"))
    launches = compile_ahead(found)
    along = Counter(launch.template[-2] for launch in launches)
    assert set(along) == {"one_pixel", "some_pixels"}, along
    for configuration in found:
        assert_configuration_right(configuration)


IMAGES_LAST = (
    (1, 43, 49, 3),  # in parts, and a few elements behind the last vector
    (1, 7, 9, 2),
    (1, 1, 3, 5),  # less than a row
    (1, 2, 3, 255),
    (2, 4, 16, 7),
    (3, 8, 4, 4),
    (2, 3, 4, 96),
    (1, 3, 3, 256),
    (2, 1, 3, 336),  # in groups of unlike many columns
    (1, 1, 3, 1040),
)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        *product(("global_max_pool", "global_average_pool"), strategies.EVERY),
        *product(("global_lp_pool",), strategies.FLOATS[1:]),
    ],
)
def test_vectors_of_channels_of_whole_images(function, dtype):
    """Rows of one pixel or of many, in one part or several, with what no vector holds."""
    random, of = np.random.default_rng(43), strategies.dtype_of(dtype)

    def image(palette: str, *shape: int) -> np.ndarray[Any, Any]:
        return np.asarray(PALETTES[palette](random, shape, of)).astype(of)

    sums = dtype in strategies.FLOATS and function != "global_max_pool"
    images = [image("normal" if sums else "any bits", *shape) for shape in IMAGES_LAST]
    images.append(image("ties", 3, 16, 7, 3)[::2, :5])  # that lie apart
    if sums:  # which are made again
        images += [image(palette, 2, 4, 16, 7) for palette in ("near the maximum", "subnormal")]
    cases = [Case(function, (x,), {"channels_last": True}) for x in images]
    ways = "channels", "channels, few workers"
    found = [Configuration(case, kernel) for case, kernel in product(cases, ways)]
    launches = compile_ahead(found, build="checked")
    kernels = Counter(launch.kernel for launch in launches)
    assert kernels["channels"] + kernels["channels_parts"] == len(found), kernels
    assert {launch.grid[1] > 1 for launch in launches} == {False, True}
    for configuration in found:
        assert_configuration_right(configuration, build="checked")


def test_vectors_of_channels_are_summed_in_64_bits_where_32_are_too_few():
    x = np.random.default_rng(53).integers(0, 256, (1, 43, 49, 3), np.uint8)
    case = Case("global_average_pool", (x,), {"channels_last": True, "dtype": "float32"})
    with emulator.constants(byte_sum_dtype=lambda _: np.dtype(np.int64)):
        for kernel in ("channels", "channels, few workers"):
            configuration = Configuration(case, kernel)
            first, *_ = configuration.launches
            assert (first.source, "long long" in first.expression) == ("channels.cu", True)
            assert_configuration_right(configuration, build="checked")


@pytest.mark.parametrize("kernel", ["rows", "vectors", "separable", "plane"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_greater_of_any_two_integers_wins(dtype, kernel):
    for case, greater in strategies.two_integers(dtype):
        configuration = Configuration(case, kernel)
        (launched,) = configuration.launches
        assert launched.source == f"{KERNELS[kernel][0]}.cu"
        assert_bitwise(configuration.run()[0], greater)


@pytest.mark.parametrize("function", ["average_pool", "lp_pool"])
def test_both_tiers_of_window_give_the_same_bits(function):
    cases = [configuration.case for configuration in drawn(function, 60, seed=2)]
    tiers = ("window", "specialised")
    launches = compile_ahead(Configuration(case, tier) for case in cases for tier in tiers)
    assert any("Sizes<2" in launch.expression for launch in launches)
    for case in cases:
        assert_same(*(Configuration(case, tier).run() for tier in tiers))


# Division


@pytest.mark.parametrize("p", [1, 2, 3, 2.5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_norms_of_one_tap_are_finite_and_right_at_the_ends_of_the_range(p, dtype):
    info = np.finfo(dtype)
    ends = [info.max, -info.max, info.tiny, info.smallest_subnormal, np.nextafter(info.max, 0)]
    x = np.zeros((1, 1, 6, 20), dtype)
    x[0, 0, 1:, ::4] = ends
    case = Case("lp_pool", (x,), {"kernel_shape": (1, 3), "p": p})
    chosen = distinct(Configuration(case, kernel) for kernel in kernels_of("LpPool"))
    compile_ahead(chosen)
    for configuration in chosen:
        results = configuration.run()
        assert_right(case, results)
        assert np.isfinite(results[0]).all()


def of_every_magnitude(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Patches of numbers from the least to the greatest, zeros among them and what is no number."""
    info = ml_dtypes.finfo(strategies.dtype_of(dtype))
    low, high = np.log2(float(info.smallest_subnormal)), np.log2(float(info.max)) - 1e-3
    patches = rng.uniform(low, high, (*shape[:2], -(-shape[2] // 3), -(-shape[3] // 4)))
    about = patches.repeat(3, 2).repeat(4, 3)[:, :, : shape[2], : shape[3]]
    exponent = np.clip(about + rng.uniform(-4, 4, shape), low, high)
    x = np.exp2(exponent) * rng.choice([-1, 1], shape)
    x[rng.random(shape) < rng.choice([0, 0.1, 0.5])] = 0
    rare = rng.random(shape) < rng.choice([0, 0.02])
    ends = np.array([np.inf, -np.inf, np.nan, float(info.max), float(info.smallest_subnormal)])
    x[rare] = rng.choice(ends, np.count_nonzero(rare))
    return x.astype(strategies.dtype_of(dtype))


def sums_of_every_magnitude() -> Iterator[Configuration]:
    """Averages and norms of such numbers by the kernels that make sums again."""
    rng = np.random.default_rng(0)
    ways = product(strategies.FLOATS, (None, 1, 2, 3), SEPARABLE, ("planes", "strided", "volumes"))
    for dtype, p, kernel, way in ways:
        shape = (*rng.integers(1, 4, 2), rng.integers(1, 14), 2 * rng.integers(2, 16))
        x = of_every_magnitude(rng, dtype, tuple(map(int, shape)))
        window = rng.integers(1, np.minimum(shape[2:], (6, 9)) + 1).tolist()
        if way == "volumes":
            x, window = x[:, None], [int(rng.integers(1, shape[1] + 1)), *window]
        more = {"count_include_pad": bool(rng.integers(2))} if p is None else {"p": p}
        if way == "strided":
            more["strides"] = tuple(int(rng.integers(1, max(k, 2))) for k in window)
        arguments = {"kernel_shape": tuple(window), "auto_pad": "SAME_UPPER"} | more
        yield Configuration(Case("lp_pool" if p else "average_pool", (x,), arguments), kernel)


def strips_of_every_magnitude() -> Iterator[Configuration]:
    """The same by strips: of rows or channels that fill vectors, and of the strides they serve."""
    rng = np.random.default_rng(1)
    for dtype, p, kernel, apart in product(strategies.FLOATS, (None, 1, 2, 3), STRIPS, (1, 2)):
        last = bool(rng.integers(2))
        shape = (*rng.integers(1, 4, 2), rng.integers(3, 14), 8 * rng.integers(1, 5))
        x = of_every_magnitude(rng, dtype, tuple(map(int, shape)))
        x = np.ascontiguousarray(x.swapaxes(1, 2)) if last else x
        size = x.shape[1:3] if last else x.shape[2:]
        window = rng.integers(1, np.minimum(size, (6, 9)) + 1).tolist()
        more = {"count_include_pad": bool(rng.integers(2))} if p is None else {"p": p}
        if apart < min(window):
            more["strides"] = (int(rng.integers(1, window[0])), apart) if apart > 1 else None
        pads = tuple(np.minimum((1, 2, 0, 1), np.subtract(window * 2, 1)).tolist())
        arguments = {"kernel_shape": tuple(window), "pads": pads, "channels_last": last}
        yield Configuration(
            Case("lp_pool" if p else "average_pool", (x,), arguments | more), kernel
        )


def norms_of_nothing_and_of_too_much() -> Iterator[Configuration]:
    """Second norms whose windows sum to 0, to infinity, and to numbers, by every kernel."""
    for dtype in ("float32", "bfloat16"):
        x = np.zeros((1, 2, 20, 32), strategies.dtype_of(dtype))
        x[:, :, 10:, 16:] = ml_dtypes.finfo(x.dtype).max
        x[:, 1, ::7, ::5] = 2
        case = Case("lp_pool", (x,), {"kernel_shape": 5, "p": 2, "pads": 2})
        yield from (Configuration(case, kernel) for kernel in KERNELS)


def test_norms_of_nothing_are_nothing_and_of_too_much_infinite():
    """A root by approximation is NaN of both."""
    chosen = distinct(norms_of_nothing_and_of_too_much())
    compile_ahead(chosen)
    for configuration in chosen:
        (y,) = configuration.run()
        assert_right(configuration.case, (y,))
        found = y.astype(np.float64)
        assert (found == 0).any()
        assert np.isinf(found).any()


def test_sums_of_every_magnitude_are_right_beside_each_other():
    """A tile that is reduced again, of rescaled taps, keeps the results that were right."""
    chosen = [*sums_of_every_magnitude(), *strips_of_every_magnitude()]
    sources = Counter(launch.source for launch in compile_ahead(chosen))
    assert sources["strips.cu"] > 60, sources
    for configuration in chosen:
        assert_right(configuration.case, configuration.run())


@pytest.mark.parametrize(
    ("window", "pads"),
    [((9, 9), (8, 8, 0, 1)), ((1, 20), (0, 19, 0, 1)), ((40, 30), (39, 29, 0, 1))],
)
def test_a_norm_above_the_greatest_number_is_infinite(window, pads):
    """Only taps that are there may have been rounded, however large the window."""
    chosen = []
    for dtype, p in product(("float32", "float64"), (2, 3)):
        info = np.finfo(dtype)
        more = 0.8 * sum(window) * float(info.eps) / 2
        x = np.array([[[[1, (p * more) ** (1 / p)]]]], dtype) * info.max
        wide = np.zeros((1, 1, 48, 40), dtype)  # some windows hold both, some one, some none
        wide[..., :1, :2] = x
        for taps in (x, wide):
            case = Case("lp_pool", (taps,), {"kernel_shape": window, "pads": pads, "p": p})
            chosen += [Configuration(case, name) for name in FUSED]
    compile_ahead(chosen)
    for configuration in chosen:
        assert_right(configuration.case, configuration.run())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [2, 3])
def test_norms_of_subnormals_are_rounded_to_the_nearest(p, dtype):
    rng = np.random.default_rng(p)
    x = (rng.integers(0, 60, (1, 1, 6, 24)) * np.finfo(dtype).smallest_subnormal).astype(dtype)
    x[rng.random(x.shape) < 0.8] = 0
    case = Case("lp_pool", (x,), {"kernel_shape": (3, 5), "pads": (1, 2, 1, 2), "p": p})
    expected = Configuration(case, "window").run()
    assert_right(case, expected)
    for name in FUSED:
        assert_same(Configuration(case, name).run(), expected)


QUOTIENTS = """
#include "element.cuh"
template <class V>
__global__ void quotients(const V* a, const float* taps, int off, V* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Few<65536> count(taps[i]);
    count.inverse = __int_as_float(__float_as_int(count.inverse) + off);
    y[i] = quotient(a[i], count);
}
"""


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize(("cuda", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_a_quotient_by_few_taps_is_right_with_a_reciprocal_whose_last_bit_is_wrong(
    cuda: str, dtype: np.typing.DTypeLike, off: int
) -> None:
    """``quotient(a, Few<65536>)`` of element.cuh, half of all next to the middle of two floats."""
    rng = np.random.default_rng(0)
    taps = np.r_[1 : 2**12, rng.integers(2**12, 2**16, 4096), 2**16][:, None].astype(dtype)
    floats = rng.random((1, 300)).astype(dtype) + np.ones((), dtype)
    beside = taps * (floats.astype(np.longdouble) + np.finfo(dtype).eps / 2)
    sums = np.concatenate([np.broadcast_to(floats, (len(taps), 300)), beside], 1).astype(dtype)
    counts = np.broadcast_to(taps, sums.shape).astype(np.float32)
    expression = f"quotients<{cuda}>"
    module = EmulatedModule(QUOTIENTS, include_dir=kernel_folder(), expression=expression)
    result, n = np.empty_like(sums), sums.size
    arguments = (sums, counts, np.int32(off), result, np.int32(n))
    module.get_function(expression)((-(-n // 256),), (256,), arguments)
    np.testing.assert_array_equal(result, sums / taps)


MEANS = """
#include "element.cuh"
template <int N>
__global__ void means(const int* sums, const float* inverses, unsigned char* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Share share;
    share.inverse = inverses[i];
    if constexpr (N > 0) y[i] = mean_of_bytes(sums[i], Exactly<N>());
    else y[i] = mean_of_bytes(sums[i], share);
}
"""


def means(sums: Any, taps: int = 0, inverses: Any = 0) -> Any:
    """Divide by so many taps, which are compiled in, or by those of reciprocals."""
    expression = f"means<{taps}>"
    module = EmulatedModule(MEANS, include_dir=kernel_folder(), expression=expression)
    inverses = np.ascontiguousarray(np.broadcast_to(inverses, sums.shape), np.float32)
    result, n = np.empty(sums.shape, np.uint8), sums.size
    arguments = (sums.astype(np.int32), inverses, result, np.int32(n))
    module.get_function(expression)((-(-n // 256),), (256,), arguments)
    return result


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_mean_of_bytes_is_right_with_a_reciprocal_right_to_21_bits(off: int) -> None:
    """``mean_of_bytes`` of element.cuh, of all numbers of taps: the middles and what is beside."""
    taps = np.arange(1, 2048)[:, None, None]
    middles = (2 * np.arange(-128, 255)[:, None] + 1) * taps // 2
    sums = np.clip(middles + np.arange(-1, 3), -128 * taps, 255 * taps)
    expected = np.rint(sums / taps).astype(np.int64).astype(np.uint8)
    inverses = (1 + off * 7 * 2**-24) / taps
    np.testing.assert_array_equal(means(sums, inverses=inverses), expected)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 9, 49, 64])
def test_a_mean_of_so_many_bytes_is_right(taps: int) -> None:
    sums = np.arange(-128 * taps, 255 * taps + 1)
    expected = np.rint(sums / taps).astype(np.int64).astype(np.uint8)
    np.testing.assert_array_equal(means(sums, taps), expected)


SHARES = """
#include "element.cuh"
template <class V, bool Normal>
__global__ void shares(const V* a, const int* above, const int* along, V* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Share share = share_table<8, 8>.of[above[i]][along[i]];
    if constexpr (Normal) y[i] = normal_quotient(a[i], share);
    else y[i] = quotient(a[i], share);
}
"""


@pytest.mark.parametrize(
    ("cuda", "normal", "dtype"),
    [("float", "true", "f4"), ("float", "false", "f4"), ("double", "false", "f8")],
)
def test_a_quotient_by_every_share_of_a_table_is_a_division(
    cuda: str, normal: str, dtype: str
) -> None:
    """``share_table`` of element.cuh, half of all next to the middle of two floats."""
    rng = np.random.default_rng(0)
    above, along = (axis.ravel()[:, None] for axis in np.mgrid[1:9, 1:9].astype(np.int32))
    taps = (above * along).astype(dtype)
    floats = rng.random((1, 2000)).astype(dtype) + np.ones((), dtype)
    beside = taps * (floats.astype(np.longdouble) + np.finfo(dtype).eps / 2)
    special = np.array([[0, np.inf, -np.inf, np.nan] if normal == "true" else [0]], dtype)
    parts = (
        np.broadcast_to(part, (64, part.shape[1])) for part in (floats, beside, -floats, special)
    )
    sums = np.concatenate([*parts], 1).astype(dtype)
    counts = (np.ascontiguousarray(np.broadcast_to(axis, sums.shape)) for axis in (above, along))
    expression = f"shares<{cuda}, {normal}>"
    module = EmulatedModule(SHARES, include_dir=kernel_folder(), expression=expression)
    result, n = np.empty_like(sums), sums.size
    arguments = (sums, *counts, result, np.int32(n))
    module.get_function(expression)((-(-n // 256),), (256,), arguments)
    np.testing.assert_array_equal(result, sums / taps)


# Memory


@pytest.mark.parametrize("function", STRATEGIES)
def test_unaligned_memory_is_never_touched_by_a_kernel(function):
    unaligned = strategies.MEMORY["unaligned"]
    cases = [configuration.case for configuration in drawn(function, 8, seed=3)]
    moved = [case.on(*map(unaligned, case.arrays)) for case in cases]
    compile_ahead(map(Configuration, (*cases, *moved)), build="checked")
    for one, other in zip(cases, moved, strict=True):
        right = Configuration(one).run(build="checked")
        out = tuple(unaligned(np.zeros_like(array)) for array in right)
        with emulator.settings(build="checked"):
            assert_same(other.call(EMULATED, out=out if len(out) > 1 else out[0]), right)


@pytest.mark.parametrize(
    ("shape", "kernel", "pads"),
    [((1, 1, 1, 1, 2), 1, (3, 3, 0, 0, 0, 0)), ((1, 1, 1, 1, 3), (1, 1, 2), (3, 3, 1, 0, 0, 0))],
)
def test_windows_without_a_tap_on_two_axes_are_in_the_table(
    shape: tuple[int, ...], kernel: Any, pads: tuple[int, ...]
) -> None:
    """Numbers of taps below none on both axes are no positive number of taps."""
    chosen = []
    for dtype in ("float64", "float32", "float16", "bfloat16", "uint8"):
        x = np.ones(shape, strategies.dtype_of(dtype))
        case = Case("average_pool", (x,), {"kernel_shape": kernel, "pads": pads})
        chosen += [Configuration(case, name) for name in kernels_of("AveragePool")]
    compile_ahead(chosen, build="checked")
    for configuration in chosen:
        assert_right(configuration.case, configuration.run(build="checked"))


def test_norms_below_the_normal_numbers_are_rounded_once() -> None:
    for multiple, taps in ((9, 16), (19, 9)):
        x = np.full((1, 1, taps), multiple * 5e-324)
        case = Case("lp_pool", (x,), {"kernel_shape": taps, "p": 1.01})
        for name in kernels_of("LpPool"):
            assert_right(case, Configuration(case, name).run())


def far_apart(greatest: float, others: float, count: int, p: float) -> Case:
    x = np.array([[[others] * count + [greatest]]])
    return Case("lp_pool", (x,), {"kernel_shape": count + 1, "p": p})


@pytest.mark.parametrize("p", [0.001, 0.005, 0.0078125, 0.01, 0.02, 0.3, 0.5, 0.7])
@pytest.mark.parametrize(
    ("greatest", "others", "count"),
    [
        (1.1062707e300, 1e-60, 100),
        (1.1062707e300, 1e-60, 3),
        (2e270, 1e-300, 1),
        (1e200, 1e-120, 1),
        (1e200, 5e-324, 2),
        (1e200, 0.0, 2),
        (5e-324, 0.0, 2),
        (1e-300, 5e-324, 2),
    ],
)
def test_norms_of_taps_further_apart_than_a_float_reaches(
    greatest: float, others: float, count: int, p: float
) -> None:
    """The quotient of two taps may underflow where its small power does not."""
    case = far_apart(greatest, others, count, p)
    assert_right(case, case.run(numpy_backend()))
    for name in kernels_of("LpPool"):
        assert_right(case, Configuration(case, name).run())


def test_a_dilation_between_no_two_taps_reaches_nowhere() -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 3, 8)
    arguments = {"kernel_shape": (1, 2), "pads": (1, 0, 0, 0), "dilations": (2**28, 1)}
    case = Case("max_pool", (x,), arguments)
    for name in kernels_of("MaxPool"):
        assert_right(case, Configuration(case, name).run(build="checked"))


REACHING: list[tuple[str, str, tuple[int, ...], dict[str, Any]]] = [
    ("max_pool", "float32", (1, 1, 1100, 4), {"kernel_shape": (66, 1), "dilations": (16, 1)}),
    ("average_pool", "uint8", (1, 1, 1300, 4), {"kernel_shape": (80, 1), "dilations": (16, 1)}),
    ("average_pool", "float32", (1, 2, 140, 3), {"kernel_shape": (9, 2), "dilations": (16, 1)}),
    *(
        (
            "max_pool",
            dtype,
            (1, 1, 1030, 3, 4),
            {"kernel_shape": (65, 1, 3), "dilations": (16, 1, 1), "return_indices": True},
        )
        for dtype in ("float32", "float16")
    ),
    ("max_pool", "int8", (2, 1, 40, 50), {"kernel_shape": 3, "dilations": 16, "pads": 8}),
]


@pytest.mark.parametrize(("function", "dtype", "shape", "arguments"), REACHING)
def test_dilated_windows_may_reach_far(function, dtype, shape, arguments) -> None:
    """Farther than a digit of a tap's code counts, or than a tile takes lines."""
    x = np.random.default_rng(0).integers(0, 99, shape).astype(strategies.dtype_of(dtype))
    case = Case(function, (x,), arguments)
    for name in ("auto", "rows", "specialised"):
        assert_right(case, Configuration(case, name).run(build="checked"))


def test_what_lies_between_dilated_pixels_is_never_added() -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 7, 9, 9, 16)).astype(np.uint8)
    window = {"kernel_shape": (5, 5, 2), "dilations": (1, 1, 4), "channels_last": True}
    case = Case("average_pool", (x,), window)
    assert_right(case, Configuration(case, "rows").run(build="checked"))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("spatial", [(13,), (9, 13), (5, 9, 12)])
@pytest.mark.parametrize("function", ["average_pool", "lp_pool"])
def test_sums_of_dilated_windows_are_looked_at_again(function, spatial, last) -> None:
    """They overflow, or lose small terms, and each tap is found a second time."""
    rng = np.random.default_rng(len(spatial))
    shape = (1, *spatial, 4) if last else (1, 4, *spatial)
    x = rng.choice([3e38, -3e38, 1e-30, 2e-30, 1.0], shape).astype(np.float32)
    dilations = (2, 3, 2)[-len(spatial) :]
    window = {"kernel_shape": 2, "dilations": dilations, "pads": 1, "channels_last": last}
    case = Case(function, (x,), window)
    (launch,) = Configuration(case, "rows").launches
    assert launch.source == "rows.cu"
    assert "Dilated" in launch.expression
    assert_right(case, Configuration(case, "rows").run())


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        *product(("max_pool", "average_pool"), ("float64", "float32", "float16", "int8")),
        *product(("lp_pool",), ("float64", "float32", "float16")),
    ],
)
def test_a_window_that_is_left_one_tap_may_begin_behind_the_edge(function: str, dtype: str) -> None:
    """Its other taps read padding alone: both axes, a row, one axis, and beside a large window."""
    windows: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((1, 2, 5, 5), {"kernel_shape": 3, "dilations": 6, "pads": 5}),
        ((1, 2, 5), {"kernel_shape": 2, "strides": 3, "dilations": 3, "pads": (1, 0)}),
        ((1, 2, 9, 5), {"kernel_shape": (3, 3), "dilations": (1, 6), "pads": (1, 5, 1, 5)}),
        ((2, 2, 40, 5), {"kernel_shape": (31, 3), "dilations": (1, 6), "pads": (0, 5, 0, 5)}),
    ]
    rng = np.random.default_rng(0)
    chosen = [
        Configuration(case, name)
        for shape, arguments in windows
        for case in [Case(function, (rng.integers(-9, 9, shape).astype(dtype),), arguments)]
        for name in kernels_of("MaxPool")
    ]
    compile_ahead(chosen, build="checked")
    for configuration in chosen:
        assert_right(configuration.case, configuration.run(build="checked"))


@pytest.mark.parametrize("step", [2**29, -(2**29)])
def test_rows_may_be_as_far_apart_as_32_bits_reach(step: int) -> None:
    """A worker without a row is farther still from the first one."""
    memory = np.zeros(2**30 + 24, np.uint8)  # of which the system gives what is written
    x = np.lib.stride_tricks.as_strided(
        memory[2**30 * (step < 0) :], (1, 1, 3, 24), (0, 0, step, 1)
    )
    x[0, 0, :, ::5] = [[3], [7], [5]]
    kernel, constants = KERNELS["plane"]
    with emulator.constants(**constants), emulator.settings(kernel=kernel, build="checked"):
        y, indices = emulator.max_pool(x, (3, 20), return_indices=True)
        mean = emulator.average_pool(x, (3, 20), dtype="float32")
    np.testing.assert_array_equal(y, np.full((1, 1, 1, 5), 7))
    np.testing.assert_array_equal(indices, [[[[24, 29, 29, 29, 29]]]])
    np.testing.assert_allclose(mean, np.full((1, 1, 1, 5), 1))


# Indices


def test_numbers_in_the_padding_may_be_far_from_a_plane() -> None:
    """Twenty columns of 2 ** 27 positions before the first."""
    x = np.lib.stride_tricks.as_strided(
        np.ones(1, np.uint8), (1, 1, 2**14, 2**13, 1), (0, 0, 0, 0, 1)
    )
    window = {"kernel_shape": (1, 1, 21), "strides": (16, 16, 1), "pads": (0, 0, 20, 0, 0, 0)}
    with emulator.constants(**NO_CAP), emulator.settings(kernel="rows"):
        _, numbers = emulator.max_pool(x, **window, return_indices=True, storage_order=1)
    rows, columns = np.ogrid[: 2**14 : 16, : 2**13 : 16]
    np.testing.assert_array_equal(numbers.squeeze(), rows + columns * 2**14)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_windows_that_lie_in_the_padding_read_no_place(dtype: str) -> None:
    """For such separable.cu is not launched, which numbers places of taps alone."""
    x = np.random.default_rng(0).standard_normal((1, 20, 18, 64)).astype(dtype)
    window = {"kernel_shape": 13, "pads": 13, "channels_last": True, "return_indices": True}
    configuration = Configuration(Case("max_pool", (x,), window), "separable")
    assert {launch.source for launch in configuration.launches} == {"window.cu"}
    assert_right(configuration.case, configuration.run(build="checked"))


def eight_of_sixteen(n: int) -> np.ndarray[Any, Any]:
    """Return int64 memory at an address that 8 divides and 16 does not."""
    memory = np.empty(n + 1, np.int64)
    return memory[1:] if memory.ctypes.data % 16 == 0 else memory[:n]


def narrowly_aligned_indices(**settings: Any) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 16, 16)).astype(np.float32)
    y, indices = np.empty_like(x), eight_of_sixteen(x.size).reshape(x.shape)
    kernel, constants = KERNELS["rows"]
    with emulator.constants(**NO_CAP, **constants), emulator.settings(kernel=kernel, **settings):
        emulator.max_pool(x, 3, strides=1, pads=1, return_indices=True, out=(y, indices))
    right = gpupool.max_pool(x, 3, strides=1, pads=1, return_indices=True)
    assert_same((y, indices), right)


def test_indices_may_be_aligned_to_their_own_size_only():
    narrowly_aligned_indices(build="checked")


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("kernel", ["window", "specialised", "rows", "plane", "separable"])
def test_indices_of_32_bits_are_the_same_positions(kernel, last):
    shape = (2, 9, 14, 8) if last else (2, 8, 9, 14)
    arguments = {"kernel_shape": 3, "strides": 2, "pads": 1, "return_indices": True}
    plans = {
        (dtype, index_dtype): planner.plan(
            resolve("max", shape, dtype, **arguments, index_dtype=index_dtype, channels_last=last),
            None, 16, kernel,
        )
        for dtype, index_dtype in product(strategies.EVERY, ("int64", "int32"))
    }  # fmt: skip
    emulator.compile_ahead(chain.from_iterable(plan.launches for plan in plans.values()))
    found = {}
    for (dtype, index_dtype), plan in plans.items():
        x = np.random.default_rng(1).integers(0, 6, shape).astype(strategies.dtype_of(dtype))
        outputs = tuple(np.empty(o.shape, o.dtype) for o in plan.problem.outputs)
        launch.Bound(plan, np, emulator.find)(x, *outputs)
        right = tuple(np.empty_like(output) for output in outputs)
        oracle.run(plan.problem, (x,), right)
        assert_same(outputs, right)
        found[dtype, index_dtype] = outputs[1]
    for dtype in strategies.EVERY:
        assert found[dtype, "int32"].dtype == np.int32
        np.testing.assert_array_equal(found[dtype, "int32"], found[dtype, "int64"])


# What a plan promises


def test_generic_tier_by_environment(monkeypatch):
    problem = resolve("max", (1, 1, 8, 8), "float32", kernel_shape=3)
    with emulator.constants(**NO_CAP):
        assert "Sizes<3, 3>" in repr(planner.plan(problem))
        monkeypatch.setenv("GPUPOOL_JIT", "generic")
        planner.plan.cache_clear()
        assert "Sizes<0, 0>" in repr(planner.plan(problem))
    planner.plan.cache_clear()


def test_the_cap_on_specialisations_falls_back_to_the_generic_tier(monkeypatch):
    monkeypatch.setattr(specialised, "admitted", Counter())
    sizes, x = range(1, 11), np.random.default_rng(0).standard_normal((1, 1, 40))
    with emulator.constants(SPECIALISATIONS=4):
        plans = [
            planner.plan(
                resolve("max", (1, 1, 40), "float64", kernel_shape=k), None, 16, "specialised"
            )
            for k in sizes
        ]
    generic = ["Sizes<0>" in repr(plan) for plan in plans]
    assert generic == [False] * 4 + [True] * 6
    for k, plan in zip(sizes, plans, strict=True):
        assert_plan_equals(plan, x, gpupool.max_pool(x, k))


def test_tiles_past_the_cap_leave_their_window_to_a_kernel_of_any_size(monkeypatch):
    def chosen(size: int, **window: Any) -> Plan:
        return planner.plan(resolve("max", (64, 64, size, size), "float16", pads=1, **window))

    monkeypatch.setattr(specialised, "admitted", Counter())
    with emulator.constants(SPECIALISATIONS=2):
        plans = [chosen(size, kernel_shape=3) for size in range(20, 26)]
        others = [chosen(20, kernel_shape=3, strides=stride) for stride in (2, 3)]
    tiles = ["rows", "rows_staged"]  # counted together
    assert [plan.kernel for plan in plans] == tiles + ["specialised"] * 4
    assert len({plan.launches[0].expression for plan in plans}) == 3
    assert [plan.kernel for plan in others] == ["specialised", "window"]


def assert_plan_equals(plan: Plan, x: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> None:
    y = np.empty_like(right)
    launch.Bound(plan, np, emulator.find)(x, y)
    assert_bitwise(y, right)


STRUCTS = {
    **{
        f"Window<{axes}, {index}>": ("window.cuh", window_dtype(axes, index))
        for axes, index in product((1, 2, 3, 4), ("int", "long long"))
    },
    "Rows": ("rows.cuh", rows.rows_dtype()),
    "Channels": ("channels.cu", planner.channels.CHANNELS_DTYPE),
    "Tiles": ("separable.cuh", separable.TILES_DTYPE),
    "Roi": ("roi.cu", roi.ROI_DTYPE),
}


def members(dtype: np.dtype[Any], path: str = "", begin: int = 0) -> dict[str, int]:
    """Return every number of a struct by its C++ name, and where it begins."""
    found: dict[str, int] = {}
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        base, shape = field.subdtype or (field, ())
        elements = {"": 0} if not shape else {f"[{i}]": i * base.itemsize for i in range(shape[0])}
        for index, step in elements.items():
            place = path + name + index, begin + offset + step
            found |= members(base, place[0] + ".", place[1]) if base.names else dict([place])
    return found


@pytest.mark.parametrize("struct", STRUCTS)
def test_structs_have_one_layout_on_both_sides(struct):
    header, dtype = STRUCTS[struct]
    offsets = members(dtype)
    lines = [f"y[{i}] = __builtin_offsetof(Struct, {name});" for i, name in enumerate(offsets)]
    code = (
        f'#include "{header}"\nusing Struct = {struct};\n__global__ void probe(long long* y) {{\n'
        + "\n".join(lines)
        + f"\ny[{len(offsets)}] = sizeof(Struct);\n}}\n"
    )
    module = EmulatedModule(code, include_dir=kernel_folder(), expression="probe")
    y = np.zeros(len(offsets) + 1, np.int64)
    module.get_function("probe")((1,), (1,), (y,))
    assert y.tolist() == [*offsets.values(), dtype.itemsize]


# Floats of 16 bits

CONVERSIONS = """
#include "element.cuh"
__global__ void probe(const Type* x, float* wide, unsigned* packed,
                      const float* singles, unsigned short* from_singles,
                      const double* doubles, unsigned short* from_doubles,
                      long long n, long long m, long long k) {
    for (long long i = 0; i < n; ++i) {
        wide[2 * i] = value(load(x + i));
        wide[2 * i + 1] = Words<Type>::value(reinterpret_cast<const unsigned*>(x), i);
        packed[i] = repeated(x[i], 0);
    }
    for (long long i = 0; i < m; ++i) from_singles[i] = Round<Type>::from(singles[i]).bits;
    for (long long i = 0; i < k; ++i) from_doubles[i] = Round<Type>::from(doubles[i]).bits;
}
"""


def magnitudes(dtype: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return zero and all positive values of ``dtype`` as float64, and the middles between them."""
    infinity = bits(np.array(np.inf, dtype)).item()
    values = np.arange(infinity + 1, dtype=np.uint16).view(dtype).astype(np.float64)
    values[-1] = 2 * values[-2] - values[-3]  # infinity rounds as if there were more exponents
    return values, (values[1:] + values[:-1]) / 2


def nearest(x: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the bits of the values of ``dtype`` nearest to x, found between exact middles."""
    _, middles = magnitudes(dtype)
    found = np.searchsorted(middles, np.abs(x))
    tie = np.append(middles, np.nan)[np.minimum(found, len(middles))] == np.abs(x)
    signed = (found + (tie & (found % 2 == 1))) | np.signbit(x) * 0x8000
    return np.where(np.isnan(x), 0x7FFF, signed).astype(np.uint16)


def around(x: np.ndarray[Any, Any], real: Any) -> np.ndarray[Any, Any]:
    """Return x, what is next to it in ``real``, all negatives, and some of all bit patterns."""
    word = f"u{np.dtype(real).itemsize}"
    patterns = np.random.default_rng(0).integers(np.iinfo(word).max, size=100_000, dtype=word)
    near = x.astype(real)
    near = np.concatenate(
        [np.nextafter(near, real(-np.inf)), near, np.nextafter(near, real(np.inf))]
    )
    return np.concatenate([near, -near, patterns.view(real)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and signalling NaN
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=repr)
def test_floats_of_16_bits_are_widened_exactly_and_rounded_once(dtype):
    """A double next to a middle of two of them is a trap: as a float it is the middle."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    wide, packed = np.empty((x.size, 2), np.float32), np.empty(x.size, np.uint32)
    edges = np.concatenate([*magnitudes(dtype.numpy), 2.0 ** np.arange(-1074, 1024), [np.inf]])
    singles, doubles = around(edges, np.float32), around(edges, np.float64)
    from_singles, from_doubles = (np.empty(v.size, np.uint16) for v in (singles, doubles))
    text = CONVERSIONS.replace("Type", dtype.cuda)
    module = EmulatedModule(text, include_dir=kernel_folder(), expression="probe")
    arrays = (x, wide, packed, singles, from_singles, doubles, from_doubles)
    sizes = (np.int64(v.size) for v in (x, singles, doubles))
    module.get_function("probe")((1,), (1,), (*arrays, *sizes))
    np.testing.assert_array_equal(wide, np.stack([x.astype(np.float32)] * 2, axis=1))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(wide[number, 0]), np.signbit(x[number]))
    np.testing.assert_array_equal(packed, bits(x) * np.uint32(0x10001))
    np.testing.assert_array_equal(from_singles, nearest(singles.astype(np.float64), dtype.numpy))
    np.testing.assert_array_equal(from_doubles, nearest(doubles, dtype.numpy))


# The command


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.test_kernels")
    parser.add_argument(
        "--n", type=int, default=1000, help="configurations of each operator and of each kernel"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=STRATEGIES, action="append", help="one operator")
    chosen = parser.parse_args(arguments)
    hits: Counter[str] = Counter()

    def judge(function: str, seed: int, ways: Iterable[str] = KERNELS) -> None:
        taken = compare(function, chosen.n, seed, ways)
        kernels = ({launch.kernel for launch in one} or {"none"} for one in taken)
        found = Counter(kernel for some in kernels for kernel in some)
        hits.update(found)
        by = ", ".join(f"{kernel} {number}" for kernel, number in found.most_common())
        print(f"{function}, {len(SCHEDULES)} schedules: {by}: no difference", flush=True)

    functions = chosen.only or list(STRATEGIES)
    for function in functions:
        judge(function, chosen.seed)
    sliding = [name for name in ("max_pool", "average_pool", "lp_pool") if name in functions]
    for kernel, source in KERNEL_NAMES.items():
        every = [name for name in WAYS if f"{WAYS[name][0]}.cu" == source]
        ways = [kernel] if kernel in PLANE_WAYS else every
        for function, more in zip(cycle(sliding), count(1)):
            if hits[kernel] >= chosen.n:
                break
            judge(function, chosen.seed + more, ways)
    print(", ".join(f"{kernel} {number}" for kernel, number in hits.most_common()), "in all")


if __name__ == "__main__":
    main(sys.argv[1:])
