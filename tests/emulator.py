"""gpupool's public functions with the kernels executed on the CPU, from their unchanged source.

Everything but the compiler and the processor is the product's: the same checks, the same plan, the
same arguments. Use it like gpupool itself: ``from tests.emulator import max_pool``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

import gpupool
from gpupool import launch, planned, planner
from gpupool.arrays import Array
from gpupool.jit import kernel_folder
from tests.cuda_on_cpu import (
    FORWARD,
    Build,
    EmulatedModule,
    Request,
    Schedule,
    compile_many,
    default_build,
    sentinel_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpupool.planner import Launch
    from gpupool.problem import Output, Problem


PLANNER = [planner, *(getattr(planner, module.name) for module in iter_modules(planner.__path__))]
"""The package and its modules, each of which may hold a constant under its name."""

WIDE = {"INT32_MAX": 0, "byte_sum_dtype": lambda _count: np.dtype(np.int64)}
"""What of gpupool.planner makes every index and every sum of bytes 64 bits wide."""

ROWS_ALONE = {"STAGED": {"rows_staged": planner.rows_staged.cheapest}}
"""What leaves columns of staged planes to no kernel."""

GUARD = 2**14
"""Bytes around an output of the checked build that belong to no array."""

_settings: dict[str, Any] = {
    "schedule": FORWARD,
    "sentinel": 0xA5,
    "kernel": "auto",
    "build": None,
    "folder": None,
    "recorded": None,
}


@contextmanager
def settings(**changes: Any) -> Iterator[None]:
    """Run differently: in another ``schedule`` of threads, with another ``sentinel`` byte in fresh
    outputs, by another ``kernel`` than the planned one, in another ``build`` of the emulator, from
    another ``folder`` of kernels, or not at all: launches go to the list ``recorded``.
    """
    before = dict(_settings)
    assert changes.keys() <= before.keys()
    _settings.update(changes)
    try:
        yield
    finally:
        _settings.update(before)


@contextmanager
def constants(**values: Any) -> Iterator[None]:
    """Plan with other constants of gpupool.planner, in every module of it that has them."""
    with ExitStack() as changes:
        changes.callback(planner.plan.cache_clear)
        for name, value in values.items():
            holders = [module for module in PLANNER if hasattr(module, name)]
            assert holders, name
            for module in holders:
                changes.enter_context(patch.object(module, name, value))
        planner.plan.cache_clear()
        yield


def _build() -> Build:
    chosen: Build = _settings["build"] or default_build()
    return chosen


def _folder() -> Path:
    folder: Path = _settings["folder"] or kernel_folder()
    return folder


@cache
def _module(folder: Path, source: str, expression: str, build: Build) -> EmulatedModule:
    return EmulatedModule(folder / source, include_dir=folder, expression=expression, build=build)


def find(chosen: Launch, schedule: Schedule | None = None) -> Callable[..., Any]:
    """Return the emulated function of a launch, as ``gpupool.launch.compiled`` does on a GPU."""
    if _settings["recorded"] is not None:
        _settings["recorded"].append(chosen)
        return _nothing
    module = _module(_folder(), chosen.source, chosen.expression, _build())
    function = module.get_function(chosen.expression)
    function.schedule = schedule or _settings["schedule"]
    return function


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for a kernel while launches are recorded."""


def compile_ahead(launches: Iterable[Launch]) -> None:
    """Compile many kernels in batches: a third of the time of one by one."""
    folder = _folder()
    compile_many(
        Request(folder / chosen.source, folder, chosen.expression, (), _build())
        for chosen in launches
    )


def identity(launches: Iterable[Launch]) -> tuple[Any, ...]:
    """Return what launches have in common that do the same with the same arrays."""
    return tuple(
        (repr(one), one.operands, one.shared, *(scalar.tobytes() for scalar in one.scalars))
        for one in launches
    )


def empty(output: Output, _like: Array) -> Array:
    guard = GUARD if _build() == "checked" else 0  # ASan guards what malloc returns by itself
    return sentinel_array(output.shape, output.dtype, _settings["sentinel"], guard)


def run(
    problem: Problem, inputs: tuple[Array, ...], outputs: tuple[Array, ...], kernel: str = "auto"
) -> None:
    """Plan and launch without the checks on values that the public functions make before."""
    asked = kernel if kernel != "auto" else _settings["kernel"]
    launch.execute(problem, inputs, outputs, np, find, kernel=asked)


class _Backend:
    empty = staticmethod(empty)
    run = staticmethod(run)


def emulated(function: Callable[..., Any], **chosen: Any) -> Callable[..., Any]:
    """Return a function that computes NumPy arrays with the kernels, under settings of its own."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = planned.BACKENDS["numpy"]
        planned.BACKENDS["numpy"] = _Backend
        try:
            with settings(**chosen):
                return function(*args, **kwargs)
        finally:
            planned.BACKENDS["numpy"] = before

    return call


FUNCTIONS = (
    "max_pool",
    "average_pool",
    "lp_pool",
    "global_max_pool",
    "global_average_pool",
    "global_lp_pool",
    "max_unpool",
    "max_roi_pool",
    "roi_align",
    "preprocess",
)


def functions(**chosen: Any) -> SimpleNamespace:
    """Return the public functions with settings of their own."""
    return SimpleNamespace(
        **{name: emulated(getattr(gpupool, name), **chosen) for name in FUNCTIONS}
    )


max_pool = emulated(gpupool.max_pool)
average_pool = emulated(gpupool.average_pool)
lp_pool = emulated(gpupool.lp_pool)
global_max_pool = emulated(gpupool.global_max_pool)
global_average_pool = emulated(gpupool.global_average_pool)
global_lp_pool = emulated(gpupool.global_lp_pool)
max_unpool = emulated(gpupool.max_unpool)
max_roi_pool = emulated(gpupool.max_roi_pool)
roi_align = emulated(gpupool.roi_align)
