"""gpupool's public functions with the kernels executed on the CPU, from their unchanged source.

Everything but the compiler and the processor is the product's: the same checks, the same plan, the
same arguments. Use it like gpupool itself: ``from tests.emulator import max_pool``.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

import gpupool
from gpupool import launch, ops
from gpupool.jit import kernel_folder
from tests.cuda_on_cpu import FORWARD, EmulatedModule, Schedule, sentinel_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpupool.planner import Launch
    from gpupool.problem import Output, Problem

Array = np.ndarray[Any, Any]
_settings: dict[str, Any] = {"schedule": FORWARD, "sentinel": 0xA5}


@contextmanager
def settings(**changes: Any) -> Iterator[None]:
    """Run with another ``schedule`` of threads, or another ``sentinel`` byte in fresh outputs."""
    before = dict(_settings)
    _settings.update(changes)
    try:
        yield
    finally:
        _settings.update(before)


@cache
def _module(source: str, expression: str) -> EmulatedModule:
    folder = kernel_folder()
    return EmulatedModule(folder / source, include_dir=folder, expression=expression)


def find(chosen: Launch, schedule: Schedule | None = None) -> Callable[..., Any]:
    """Return the emulated function of a launch, as ``gpupool.launch.compiled`` does on a GPU."""
    function = _module(chosen.source, chosen.expression).get_function(chosen.expression)
    function.schedule = schedule or _settings["schedule"]
    return function


def empty(output: Output, _like: Array) -> Array:
    return sentinel_array(output.shape, output.dtype, _settings["sentinel"])


def run(problem: Problem, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> None:
    launch.execute(problem, inputs, outputs, np, find)


class _Backend:
    empty = staticmethod(empty)
    run = staticmethod(run)


def _emulated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = ops.BACKENDS["numpy"]
        ops.BACKENDS["numpy"] = _Backend
        try:
            return function(*args, **kwargs)
        finally:
            ops.BACKENDS["numpy"] = before

    return call


max_pool = _emulated(gpupool.max_pool)
average_pool = _emulated(gpupool.average_pool)
lp_pool = _emulated(gpupool.lp_pool)
global_max_pool = _emulated(gpupool.global_max_pool)
global_average_pool = _emulated(gpupool.global_average_pool)
global_lp_pool = _emulated(gpupool.global_lp_pool)
max_unpool = _emulated(gpupool.max_unpool)
max_roi_pool = _emulated(gpupool.max_roi_pool)
roi_align = _emulated(gpupool.roi_align)
