"""plane.cu: global and very large windows, shared by several threads."""

from __future__ import annotations

import numpy as np

from gpupool.planner import window
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BLOCKS,
    MOST_BLOCKS,
    SHARED_BYTES,
    THREADS,
    WARP,
    Launch,
    Plan,
)
from gpupool.planner.parameters import boolean, operator, vector_width, window_parameters
from gpupool.problem import PoolProblem
from gpupool.window import taps_of

PART_BYTES = 16
"""Bytes of the largest partial result: a float64 maximum and its position."""

SHARED_TAPS = 128
"""Windows from this many taps are shared by several threads, unless they overlap much."""

STAGED_TAPS = 16
"""Planes from this many elements are worth a copy to shared memory."""

FILL = 2**16
"""Threads whose loads keep the way to memory full: outputs are shared by no more than that."""

LONG_SUM = 4096
"""Sums from this many taps are always shared: one thread's would lose accuracy."""

TAP, BORDER_TAP = 10, 30
"""Instructions of a tap, and where windows leave the input: counted from 961 to 66049 taps."""

LAST_OUTPUT = 4000
"""More of an output, channels last, where its workers meet in shared memory: counted from 144 to
4096 taps."""


def serves(problem: PoolProblem, geometry: Geometry, alignment: int, rival: float) -> bool:
    """Whether threads should share windows: large ones that hardly overlap, small planes.

    Those that overlap or are channels last should be where that costs less than one thread for an
    output, ``rival``.
    """
    taps = taps_of(problem.window)
    axes = [dim.axis for dim in geometry.dims if dim.axis.out > 1]
    compared = problem.channels_last or any(a.stride < a.kernel for a in axes)
    apart = all(2 * a.stride >= min(a.kernel, a.size) for a in axes)
    apart = apart and (not compared or cost(geometry) < rival)
    small_planes = taps >= STAGED_TAPS and _staged_outputs(problem, geometry, alignment) > 0
    dearer = problem.reduction == "max" and cost(geometry) >= window.cost(problem, geometry)
    long = taps >= LONG_SUM and not dearer
    return long or (taps >= SHARED_TAPS and apart) or small_planes


def cost(geometry: Geometry) -> float:
    """Estimate the instructions of all threads, of which few outputs do not lack any."""
    if geometry.channels_last:
        return geometry.outputs * (LAST_OUTPUT + TAP * geometry.taps)
    tap = TAP if all(dim.inside for dim in geometry.dims) else BORDER_TAP
    return tap * geometry.outputs * geometry.taps


def plan(
    problem: PoolProblem, strides: tuple[int, ...], geometry: Geometry, alignment: int
) -> Plan:
    """Share each output among several threads, planes in shared memory, or parts of few outputs."""
    if _staged_outputs(problem, geometry, alignment):
        return Plan(problem, strides, (_staged_launch(problem, geometry, alignment),))
    taps, index = taps_of(problem.window), geometry.index_type
    whole = _whole_rows(problem, geometry)
    load = _vector_taps(problem, geometry, alignment) if whole else 1
    vectors = taps // load
    workers = 8 if problem.channels_last else _workers(geometry, vectors, load)
    while workers > 1 and geometry.outputs * workers > MOST_BLOCKS * THREADS:
        workers //= 2
    outputs = THREADS // workers
    blocks = -(-geometry.outputs // outputs)
    parts = max(1, min(BLOCKS // blocks, vectors // (16 * workers), 65535))
    template = (
        operator(problem, index), str(len(geometry.dims)), index, str(outputs), str(workers),
        boolean(problem.channels_last), boolean(whole), str(load),
    )  # fmt: skip
    parameters = window_parameters(problem, geometry)
    shared = THREADS * PART_BYTES if problem.channels_last or workers > WARP else 0
    last = Launch(
        "plane.cu", "plane", template, ("x", "y", "indices", "workspace" if parts > 1 else ""),
        (np.int32(parts if parts > 1 else 0), parameters), (blocks, 1), shared,
    )  # fmt: skip
    if parts == 1:
        return Plan(problem, strides, (last,))
    cut = Launch(
        "plane.cu",
        "plane_parts",
        template,
        ("x", "workspace"),
        (parameters,),
        (blocks, parts),
        shared,
    )
    return Plan(problem, strides, (cut, last), geometry.outputs * parts * PART_BYTES)


def _workers(geometry: Geometry, vectors: int, load: int) -> int:
    """Return the threads of one output: as few as fill the card, a short row's vectors at once."""
    row = geometry.dims[-1].axis.kernel // load
    workers = 4
    while workers < THREADS and (
        vectors > 64 * workers
        or geometry.outputs * workers < FILL
        or (len(geometry.dims) > 1 and workers < row <= 32)
    ):
        workers *= 2
    return workers


def _whole_rows(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether every window lies in the input and the taps of its rows adjoin in memory."""
    inner = geometry.dims[-1]
    inside = all(dim.inside for dim in geometry.dims)
    return not problem.channels_last and inside and (inner.step, inner.axis.dilation) == (1, 1)


def _vector_taps(problem: PoolProblem, geometry: Geometry, alignment: int) -> int:
    """Return how many taps of a whole row one load may take, aligned."""
    *outer, inner = geometry.dims
    steps = [dim.step for dim in (geometry.batch, geometry.channels, *outer)]
    stride = inner.axis.stride if inner.axis.out > 1 else 0
    width = vector_width(alignment, problem.dtype, inner.axis.kernel, stride, *steps)
    return 1 if width * problem.dtype.itemsize < 4 else width


def _staged_outputs(problem: PoolProblem, geometry: Geometry, alignment: int) -> int:
    """Return the outputs of one block whose small adjoining planes fit in shared memory, or 0."""
    dim = geometry.dims[0]
    size = dim.axis.size
    adjoin = geometry.channels.step == size and not geometry.images
    if problem.channels_last or len(geometry.dims) > 1 or not (dim.covered and dim.step == 1):
        return 0
    if not adjoin or geometry.index_type != "int" or alignment < 16:
        return 0
    outputs = SHARED_BYTES // (size * problem.dtype.itemsize)
    return 2 ** min(outputs.bit_length() - 1, 8) if outputs >= 32 else 0


def _staged_launch(problem: PoolProblem, geometry: Geometry, alignment: int) -> Launch:
    outputs = _staged_outputs(problem, geometry, alignment)
    workers = THREADS // outputs
    while outputs > WARP and geometry.outputs < BLOCKS * outputs:
        outputs //= 2
    template = (operator(problem, "int"), str(outputs), str(workers))
    bytes_of_planes = outputs * geometry.dims[0].axis.size * problem.dtype.itemsize
    return Launch(
        "plane.cu", "plane_staged", template, ("x", "y", "indices"),
        (window_parameters(problem, geometry),), (-(-geometry.outputs // outputs), 1),
        bytes_of_planes, outputs * workers,
    )  # fmt: skip
