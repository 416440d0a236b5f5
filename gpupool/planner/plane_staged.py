"""plane_staged.cu: which small planes, that adjoin, blocks copy to shared memory as a whole."""

from __future__ import annotations

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BLOCKS,
    FILL,
    SHARED_BYTES,
    THREADS,
    VECTOR_BYTES,
    WARP,
    Launch,
)
from gpupool.planner.parameters import boolean, operator, vector_width, window_parameters
from gpupool.planner.staged import adjoin, plane_bytes
from gpupool.problem import PoolProblem

STAGED_TAPS = 16
"""Elements of a plane from which a copy to shared memory is worth it."""

MOST_FLIGHT = 4
"""Vectors that a thread has in flight to shared memory, ``flight`` in kernels/staged.cuh, besides
one that only some have."""


def worth(problem: PoolProblem, geometry: Geometry, alignment: int) -> bool:
    """Whether it serves planes of so many elements that they are worth a copy."""
    enough = geometry.axes[0].size >= STAGED_TAPS
    return enough and serves(problem, geometry, alignment)


def serves(problem: PoolProblem, geometry: Geometry, alignment: int) -> bool:
    """Whether planes adjoin from a vector on, positions have 32 bits, and a window is all of one.

    Those of a warp's outputs must fit in shared memory.
    """
    if len(geometry.dims) > 1 or not geometry.dims[0].covered or not adjoin(geometry):
        return False
    if geometry.index_type != "int" or alignment < VECTOR_BYTES:
        return False
    return plane_bytes(problem, geometry) * WARP <= SHARED_BYTES


def launch(problem: PoolProblem, geometry: Geometry) -> Launch:
    """Launch blocks that copy as many planes as fill them."""
    plane = plane_bytes(problem, geometry)
    outputs, workers = _block(geometry.outputs, plane)
    staged, threads = outputs * plane, outputs * workers
    each, whole = staged // (threads * VECTOR_BYTES), geometry.outputs % outputs == 0
    lie, load = _loads(problem, geometry.axes[0].size)
    template = (
        operator(problem, "int"), str(outputs), str(workers), str(each), boolean(whole), lie,
        str(load),
    )  # fmt: skip
    return Launch(
        "plane_staged.cu", "plane_staged", template, ("x", "y", "indices"),
        (window_parameters(problem, geometry),), (-(-geometry.outputs // outputs), 1),
        staged, threads,
    )  # fmt: skip


def _loads(problem: PoolProblem, size: int) -> tuple[str, int]:
    """Return how the taps of a plane lie in shared memory, and how many of them one load takes.

    Planes that are an odd number of loads seldom meet in a bank, and others are spread over all.
    """
    width = vector_width(VECTOR_BYTES, problem.dtype, size)
    word = max(1, 4 // problem.dtype.itemsize)
    return ("ragged", word) if width < word else ("aligned", width)


def _block(total: int, plane: int) -> tuple[int, int]:
    """Return the outputs of a block, a power of two, and the threads of each, by a plane's bytes.

    Few outputs are spread over more blocks, and few threads have all their vectors in flight at
    once as far as a block has threads.
    """
    outputs = 2 ** min((SHARED_BYTES // plane).bit_length() - 1, 8)
    workers = THREADS // outputs
    while outputs > WARP and total < BLOCKS * outputs:
        outputs //= 2
    few = MOST_FLIGHT * VECTOR_BYTES
    while plane // workers > few and total * workers < FILL and 2 * outputs * workers <= THREADS:
        workers *= 2
    return outputs, workers
