"""plane.cu: global and very large windows, shared by several threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpupool.planner import window
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BLOCKS,
    BUSY,
    FILL,
    MOST_BLOCKS,
    MOST_PARTS,
    THREADS,
    VECTOR_BYTES,
    WARP,
    Launch,
    Plan,
)
from gpupool.planner.parameters import boolean, operator, vector_width, window_parameters
from gpupool.problem import PoolProblem
from gpupool.window import taps_of

PART_BYTES = 16
"""Bytes of the largest partial result: a float64 maximum and its position."""

PART_LOADS = 16
"""Loads that a thread should find in a part: fewer are not worth a second launch."""

SHARED_TAPS = 128
"""Windows from this many taps are shared by several threads, unless they overlap much."""

LONG_SUM = 4096
"""Sums from this many taps are always shared: one thread's would lose accuracy."""

TAP, BORDER_TAP = 10, 30
"""Instructions of a tap, and where windows leave the input: counted from 961 to 66049 taps."""

LAST_WORKERS = 8
"""Threads of an output, channels last: a warp reads neighbouring channels."""

LAST_OUTPUT, LAST_TAP = 2300, 5.5
"""Instructions of an output, channels last, whose workers meet in shared memory, and of each of its
taps: counted from 144 to 4096 taps."""

LAST_OUTPUT_1D, LAST_TAP_1D = 1550, 5
"""The same where one axis is left, as of whole images: counted from 400 to 10000 taps."""

LAST_SLICE = 850
"""Instructions of each slice of a volume: counted from 27 to 729 taps in slices of 9 to 400."""

MERGE = 300
"""Instructions of a thread that merges parts, channels last."""


def worth(problem: PoolProblem, geometry: Geometry, rival: float, tiled: bool) -> bool:
    """Whether threads should share windows: large ones that hardly overlap.

    Those that overlap, are channels last or may be ``tiled`` should be where that costs less than
    without sharing, ``rival``. Others are read element by element then, each far from the next.
    """
    taps = taps_of(problem.window)
    axes = [axis for axis in geometry.axes if axis.out > 1]
    compared = tiled or problem.channels_last or any(a.stride < a.kernel for a in axes)
    apart = all(2 * a.stride >= min(a.kernel, a.size) for a in axes)
    apart = apart and (not compared or cost(geometry) < rival)
    dearer = problem.reduction == "max" and cost(geometry) >= window.cost(problem, geometry)
    long = taps >= LONG_SUM and not dearer
    return long or (taps >= SHARED_TAPS and apart)


def cost(geometry: Geometry) -> float:
    """Estimate the instructions of all threads, of which few outputs do not lack any."""
    if geometry.channels_last:
        return _cost_last(geometry)
    tap = TAP if all(dim.inside for dim in geometry.dims) else BORDER_TAP
    return tap * geometry.outputs * geometry.taps


def _cost_last(geometry: Geometry) -> float:
    """Estimate those of whole blocks, as many as keep a large card issuing at least."""
    alone = len(geometry.dims) == 1
    output, tap = (LAST_OUTPUT_1D, LAST_TAP_1D) if alone else (LAST_OUTPUT, LAST_TAP)
    blocks = -(-geometry.outputs * LAST_WORKERS // THREADS)
    parts = parts_of(blocks, geometry.taps // (PART_LOADS * LAST_WORKERS))
    slices = geometry.slices if len(geometry.dims) > 2 else 0
    each = output + (tap * geometry.taps + LAST_SLICE * slices) / parts
    reducing = max(blocks * parts * THREADS, BUSY) * each
    return reducing / LAST_WORKERS + (merging_cost(geometry) if parts > 1 else 0)


def merging_cost(geometry: Geometry) -> float:
    """Estimate the instructions of the launch that merges parts, channels last."""
    return max(geometry.outputs * LAST_WORKERS, BUSY) * MERGE


def parts_of(blocks: int, most: int) -> int:
    """Return the parts that each window is cut into, so that few blocks of them fill the card."""
    return max(1, min(BLOCKS // blocks, most, MOST_PARTS))


def plan(
    problem: PoolProblem, strides: tuple[int, ...], geometry: Geometry, alignment: int
) -> Plan:
    """Share each output among several threads, or parts of few outputs."""
    taps = taps_of(problem.window)
    lie, load = _loads(problem, geometry, alignment)
    vectors = taps // load
    workers = LAST_WORKERS if problem.channels_last else _workers(geometry, vectors, load)
    while workers > 1 and geometry.outputs * workers > MOST_BLOCKS * THREADS:
        workers //= 2
    chosen = launch(problem, geometry, workers, lie, load)
    blocks, _ = chosen.grid
    parts = parts_of(blocks, vectors // (PART_LOADS * workers))
    if parts == 1:
        return Plan(problem, strides, (chosen,))
    cut = replace(
        chosen, kernel="plane_parts", operands=("x", "workspace"), scalars=chosen.scalars[1:],
        grid=(blocks, parts),
    )  # fmt: skip
    return in_parts(problem, strides, geometry, cut, chosen)


def in_parts(
    problem: PoolProblem, strides: tuple[int, ...], geometry: Geometry, cut: Launch, last: Launch
) -> Plan:
    """Plan a launch whose blocks leave parts of each output, and one of this file to merge them."""
    *operands, _ = last.operands
    _, parameters = last.scalars
    _, parts = cut.grid
    last = replace(last, operands=(*operands, "workspace"), scalars=(np.int32(parts), parameters))
    return Plan(problem, strides, (cut, last), geometry.outputs * parts * PART_BYTES)


def launch(
    problem: PoolProblem, geometry: Geometry, workers: int, lie: str = "scattered", load: int = 1
) -> Launch:
    """Return the launch in which so many threads share each output, and no parts are merged."""
    index, outputs = geometry.index_type, THREADS // workers
    template = (
        operator(problem, index), str(len(geometry.dims)), index, str(outputs), str(workers),
        boolean(problem.channels_last), lie, str(load),
    )  # fmt: skip
    scalars = np.int32(0), window_parameters(problem, geometry)
    shared = THREADS * PART_BYTES if problem.channels_last or workers > WARP else 0
    grid = -(-geometry.outputs // outputs), 1
    operands = ("x", "y", "indices", "")
    return Launch("plane.cu", "plane", template, operands, scalars, grid, shared)


def _workers(geometry: Geometry, vectors: int, load: int) -> int:
    """Return the threads of one output: as few as fill the card, a short row's vectors at once."""
    row = geometry.axes[-1].kernel // load
    workers = 4
    while workers < THREADS and (
        vectors > 64 * workers
        or geometry.outputs * workers < FILL
        or (len(geometry.dims) > 1 and workers < row <= 32)
    ):
        workers *= 2
    return workers


def _loads(problem: PoolProblem, geometry: Geometry, alignment: int) -> tuple[str, int]:
    """Return how the taps of a window's rows lie, and how many of them one load takes."""
    *outer, inner = geometry.dims
    inside = all(dim.inside for dim in geometry.dims)
    if problem.channels_last or not inside or (inner.step, inner.axis.dilation) != (1, 1):
        return "scattered", 1
    steps = [dim.step for dim in (geometry.batch, geometry.channels, *outer)]
    stride = inner.axis.stride if inner.axis.out > 1 else 0
    width = vector_width(alignment, problem.dtype, inner.axis.kernel, stride, *steps)
    ragged = not outer and width * problem.dtype.itemsize < VECTOR_BYTES
    if ragged and geometry.index_type == "int":
        return "ragged", VECTOR_BYTES // problem.dtype.itemsize
    return "aligned", 1 if width * problem.dtype.itemsize < 4 else width
