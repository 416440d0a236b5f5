"""Runs plans: operands, memory for outputs, the current stream and device of x.

Nothing here waits for the device. ``execute`` takes the array library and the way to a compiled
function as arguments, so that the tests run the same lines on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from gpupool import jit
from gpupool.arrays import as_bytes, is_aligned, pointer
from gpupool.device import gpu_reason
from gpupool.errors import GpupoolError
from gpupool.planner import THREADS, Launch, Plan, plan
from gpupool.problem import (
    Output,
    PoolProblem,
    PreprocessProblem,
    Problem,
    RoiProblem,
    UnpoolProblem,
)

_OPERANDS: dict[type, tuple[str, ...]] = {
    PoolProblem: ("x", "y", "indices"),
    UnpoolProblem: ("x", "indices", "y"),
    RoiProblem: ("x", "rois", "batch_indices", "y"),
    PreprocessProblem: ("x", "y"),
}

NULL = np.uintp(0)
"""An operand that is not there. CuPy turns None into an address of all ones (cupy#9046)."""

Find = Callable[[Launch], Callable[..., Any]]


def empty(output: Output, like: Any) -> Any:
    """Return uninitialised device memory for ``output``, on the device of ``like``."""
    import cupy

    with like.device:
        return cupy.empty(output.shape, output.dtype)


def run(problem: Problem, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """Compute ``problem`` on the current stream of the device of x."""
    import cupy

    with inputs[0].device as device:
        execute(problem, inputs, outputs, cupy, lambda launch: compiled(launch, device.id))


def compiled(launch: Launch, device: int) -> Callable[..., Any]:
    """Return the compiled function of a launch."""
    function: Callable[..., Any] = jit.function(launch.source, launch.expression, device)
    return function


def warmup(chosen: Plan) -> None:
    """Compile and load every kernel of a plan on the current device."""
    reason = gpu_reason()
    if reason is not None:
        raise GpupoolError(f"there is no GPU to compile for: {reason}")
    import cupy

    for launch in chosen.launches:
        compiled(launch, cupy.cuda.Device().id)


def execute(
    problem: Problem, inputs: tuple[Any, ...], outputs: tuple[Any, ...], xp: Any, find: Find
) -> None:
    """Plan for the strides of x and launch; where a kernel takes none, it reads copies."""
    if not isinstance(problem, PoolProblem | PreprocessProblem):
        inputs = tuple(map(xp.ascontiguousarray, inputs))
    written = tuple(
        array
        if array.flags.c_contiguous and is_aligned(array)
        else xp.empty(array.shape, array.dtype)
        for array in outputs
    )
    x = inputs[0]
    strides = tuple(stride // x.itemsize for stride in x.strides)
    chosen = plan(problem, strides, gcd(16, pointer(x), pointer(written[0])))
    launch_all(chosen, (*inputs, *written), xp, find)
    for array, result in zip(outputs, written, strict=True):
        if array is not result:
            as_bytes(array)[...] = as_bytes(result)


def launch_all(chosen: Plan, operands: tuple[Any, ...], xp: Any, find: Find) -> None:
    """Launch every kernel of a plan; ``operands`` are its arrays, inputs before outputs."""
    arrays = _named(chosen, operands)
    if chosen.workspace:
        # Sixteen-byte elements, so that any partial result is aligned.
        arrays["workspace"] = xp.empty(-(-chosen.workspace // 16), "complex128")
    for launch in chosen.launches:
        pointers = (arrays.get(name, NULL) for name in launch.operands)
        find(launch)(
            launch.grid, (THREADS,), (*pointers, *launch.scalars), shared_mem=launch.shared
        )


def _named(chosen: Plan, operands: tuple[Any, ...]) -> dict[str, Any]:
    names = _OPERANDS[type(chosen.problem)]
    if isinstance(chosen.problem, RoiProblem) and len(operands) < len(names):
        names = tuple(name for name in names if name != "batch_indices")
    return dict(zip(names, operands, strict=False))
