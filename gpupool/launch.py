"""Runs plans: operands, memory for outputs, the current stream and device of x.

Nothing here waits for the device. ``execute`` takes the array library and the way to a compiled
function as arguments, so that the tests run the same lines on the CPU.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any

import numpy as np

from gpupool import jit
from gpupool.arrays import as_bytes, is_aligned, pointer
from gpupool.device import gpu_reason
from gpupool.errors import GpupoolError
from gpupool.planner import Launch, Plan, Scalar, plan
from gpupool.problem import Output, PoolProblem, PreprocessProblem, Problem, contiguous

NULL = np.uintp(0)
"""An operand that is not there. CuPy turns None into an address of all ones (cupy#9046)."""

Find = Callable[[Launch], Callable[..., Any]]


def empty(output: Output, like: Any) -> Any:
    """Return uninitialised device memory for ``output``, on the device of ``like``."""
    import cupy

    with like.device:
        return cupy.empty(output.shape, output.dtype)


def run(
    problem: Problem, inputs: tuple[Any, ...], outputs: tuple[Any, ...], kernel: str = "auto"
) -> Bound | None:
    """Compute ``problem`` on the current stream of the device of x."""
    import cupy

    with inputs[0].device as device:
        return execute(
            problem,
            inputs,
            outputs,
            cupy,
            lambda launch: compiled(launch, device.id),
            kernel=kernel,
            by_value=by_value,
        )


def current_device() -> Callable[[], int]:
    """Return what tells the number of the device that CuPy works on; naming it takes longer."""
    import cupy

    asked: Callable[[], int] = cupy.cuda.runtime.getDevice
    return asked


def by_value(scalar: Scalar) -> Any:
    """Return a kernel argument that CuPy passes as it is, instead of packing it at every launch."""
    import cupy

    return cupy.cuda.function.CNumpyArray(np.asarray(scalar))


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
    problem: Problem,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    xp: Any,
    find: Find,
    *,
    kernel: str = "auto",
    by_value: Callable[[Scalar], Any] = lambda value: value,
) -> Bound | None:
    """Plan for the strides of x and launch; where a kernel takes none, it reads copies.

    Returns the launches for other arrays of the same memory layout, None where there were copies.
    """
    read = inputs
    if not isinstance(problem, PoolProblem | PreprocessProblem):
        with _allocating("contiguous copies of the inputs", inputs):
            read = tuple(map(xp.ascontiguousarray, inputs))
    with _allocating("contiguous memory for what goes to out", outputs):
        written = tuple(
            array
            if array.flags.c_contiguous and is_aligned(array)
            else xp.empty(array.shape, array.dtype)
            for array in outputs
        )
    x = read[0]
    strides = _steps(x)
    chosen = plan(problem, strides, gcd(16, pointer(x), pointer(written[0])), kernel)
    bound = Bound(chosen, xp, find, by_value)
    bound(*read, *written)
    for array, result in zip(outputs, written, strict=True):
        if array is not result:
            as_bytes(array)[...] = as_bytes(result)
    direct = all(map(operator.is_, (*inputs, *outputs), (*read, *written)))
    return bound if direct else None


def _steps(x: Any) -> tuple[int, ...]:
    """Return the strides of x in elements; whatever axes of one element have chooses no kernel."""
    if x.flags.c_contiguous:
        return contiguous(x.shape)
    return tuple(stride // x.itemsize for stride in x.strides)


@contextmanager
def _allocating(what: str, like: Iterable[Any] = ()) -> Iterator[None]:
    """Say what memory was for, and as large as which arrays, where an allocator has none left."""
    try:
        yield
    except MemoryError as error:
        sizes = (f"{tuple(a.shape)} {a.dtype}, {a.nbytes} bytes" for a in like)
        error.add_note(f"gpupool was allocating {', '.join((what, *sizes))}")
        raise


class Bound:
    """The launches of a plan with all but their arrays in place: what no call need do again."""

    def __init__(
        self,
        chosen: Plan,
        xp: Any,
        find: Find,
        by_value: Callable[[Scalar], Any] = lambda value: value,
    ) -> None:
        self._empty, self._workspace = xp.empty, chosen.workspace
        names = (*operands(chosen.problem), *(["workspace"] if chosen.workspace else []))
        self._launches = [
            (
                find(launch),
                launch.grid,
                (launch.block,),
                *_arguments(names, launch, by_value),
                launch.shared,
            )
            for launch in chosen.launches
        ]

    def __call__(self, *arrays: Any) -> None:
        """Launch on the current stream; ``arrays`` are inputs before outputs."""
        if self._workspace:
            arrays += (self._memory(),)
        for function, grid, block, rest, picked, shared in self._launches:
            arguments = arrays + rest
            if picked is not None:
                arguments = picked(arguments)
            function(grid, block, arguments, shared_mem=shared)

    def _memory(self) -> Any:
        """Allocate the workspace by sixteen-byte elements: any partial result is aligned."""
        with _allocating(f"a workspace of {self._workspace} bytes"):
            return self._empty(-(-self._workspace // 16), "complex128")


def _arguments(
    names: tuple[str, ...], launch: Launch, by_value: Callable[[Scalar], Any]
) -> tuple[tuple[Any, ...], Callable[[tuple[Any, ...]], Any] | None]:
    """Return what follows arrays of these names in a launch's arguments, and what picks those.

    Nothing need pick where a launch takes all of the arrays in their order, as most do.
    """
    null, scalars = by_value(NULL), tuple(map(by_value, launch.scalars))
    taken, absent = launch.operands[: len(names)], launch.operands[len(names) :]
    if taken == names and not {*names} & {*absent}:
        return (null,) * len(absent) + scalars, None
    places = (names.index(name) if name in names else len(names) for name in launch.operands)
    behind = len(names) + 1
    return (null, *scalars), operator.itemgetter(*places, *range(behind, behind + len(scalars)))


def operands(problem: Problem) -> tuple[str, ...]:
    """Return the names of inputs and outputs, as ``Launch.operands`` calls them."""
    beside = (wanted.name for wanted in problem.inputs[1:])
    return ("x", *beside, *("y", "indices")[: len(problem.outputs)])
