"""strips.cu: maxima of large overlapping windows, a warp for each strip of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2
from operator import attrgetter

import numpy as np

from gpupool.planner.geometry import OVERHANG, Geometry
from gpupool.planner.launches import FILL, SHARED_BYTES, VECTOR_BYTES, WARP, Launch, Scalar
from gpupool.planner.parameters import (
    accumulator,
    boolean,
    divisor,
    divisor_dtype,
    operator,
    pairs,
    vector_width,
    window_parameters,
)
from gpupool.planner.separable import served
from gpupool.planner.specialised import admit
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

LANE_BYTES = 32
"""What a lane takes of a row, in bytes of maxima."""

WARPS = 4
"""Warps of a block at most."""

SETUP, TWIN, AHEAD, RUN, KEPT = 110, 50, 24, 44, {4: 18, 8: 26}
"""Instructions of a lane: where its columns are, where their twins are, a row that is read ahead of
the first window, a run and each of its rows, by the bytes of a maximum."""

STEP = {"float64": 40, "float32": 30, "float16": 41, "bfloat16": 41, "int8": 47, "uint8": 42}
"""The same for each row that the windows move on."""

ROW = {"float64": 24, "float32": 18, "float16": 22, "bfloat16": 22, "int8": 37, "uint8": 31}
"""And for each row of results, of which half is the same at all strides of columns."""

DOUBLING = {4: 8, 8: 21}
"""More for each doubling of the window's width."""

PIXEL = {"float64": 50, "float32": 27, "float16": 39, "bfloat16": 39, "int8": 60, "uint8": 48}
"""Channels last for each row of results, whatever their stride."""

EXCHANGE = {4: 13, 8: 20}
"""And for each time that lanes exchange what they have."""

STRIPS_DTYPE = np.dtype(
    [
        *((name, "i4") for name in ("planes", "height", "stored", "run")),
        *((name, divisor_dtype("int")) for name in ("down", "lanes", "groups", "stride")),
    ],
    align=True,
)
"""The NumPy mirror of ``Strips`` in kernels/strips.cu."""


@dataclass(frozen=True)
class Strips:
    """How warps share the outputs of planes, and what that costs in instructions.

    The ``lanes`` of one plane lie behind those of another; channels last those of images, whose
    pixels have ``groups`` of channels for a strip each. A strip is a warp of lanes, of which the
    first ``stored`` have windows that end in it, and ``height`` rows; a lane keeps a ``run`` of
    them. ``beside`` each other lie so many, or twice as many where words hold two, over ``down``
    others; a block has ``warps``.
    """

    geometry: Geometry
    planes: int
    lanes: int
    groups: int
    stored: int
    run: int
    height: int
    down: int
    beside: int
    warps: int
    cost: float

    def struct(self) -> Scalar:
        """Return what a kernel receives."""
        divisors = (self.down, self.lanes, self.groups, self.geometry.dims[0].axis.stride)
        numbers = (
            self.planes, self.height, self.stored, self.run,
            *(divisor(number, "int") for number in divisors),
        )  # fmt: skip
        return np.array(numbers, STRIPS_DTYPE)


def cheapest(problem: PoolProblem, geometry: Geometry, alignment: int) -> Strips | None:
    """Return the strips that cost least, or None where strips.cu does not serve."""
    planes = served(problem, geometry)
    if planes is None or not _serves(problem, planes, alignment):
        return None
    return min(_strips(problem, planes), key=attrgetter("cost"), default=None)


def launch(problem: PoolProblem, strips: Strips) -> Launch | None:
    """Launch the kernel, or return None where it may not be compiled any more."""
    geometry = strips.geometry
    outer, inner = (dim.axis for dim in geometry.dims)
    last, vector = problem.channels_last, _vector(problem)
    stored = (vector,) if last else (vector // inner.stride, inner.out)
    store = vector_width(VECTOR_BYTES, problem.dtype, *stored)
    shift = 0 if last else -inner.pad_begin % vector
    numbers = (inner.kernel, store, shift, inner.stride)
    flags = map(boolean, (strips.run < outer.kernel, last, geometry.images))
    template = (operator(problem, "int"), *map(str, numbers), *flags)
    if not admit("strips", *template):
        return None
    return Launch(
        "strips.cu",
        "strips",
        template,
        ("x", "y"),
        (strips.struct(), window_parameters(problem, geometry)),
        (-(-strips.beside // strips.warps) * strips.down, 1),
        strips.warps * _run_bytes(strips.run),
        strips.warps * WARP,
    )


def _serves(problem: PoolProblem, geometry: Geometry, alignment: int) -> bool:
    """Whether lanes begin on vectors and have all of theirs or nothing, and windows touch rows.

    Of a row as many windows begin in one lane as in another. Rows have no stride alone.
    """
    if problem.reduction != "max" or len(geometry.dims) != 2:
        return False
    outer, inner = geometry.dims
    last, vector = problem.channels_last, _vector(problem)
    steps = (geometry.batch.step, outer.step, (inner if last else geometry.channels).step)
    row = geometry.channels if last else inner
    whole = row.step == 1 and row.axis.size % vector == 0
    at_once = min(vector, VECTOR_BYTES // problem.dtype.itemsize)
    aligned = vector_width(alignment, problem.dtype, vector, *steps) == at_once
    stride = inner.axis.stride
    apart = (last or vector % stride == 0) if stride > 1 else outer.axis.stride == 1
    return whole and aligned and apart and outer.axis.touches


def _vector(problem: PoolProblem) -> int:
    """Return the columns of a lane."""
    return LANE_BYTES // accumulator(problem).itemsize


def _run_bytes(rows: int) -> int:
    """Return the shared memory of a warp."""
    return rows * WARP * LANE_BYTES


def _strips(problem: PoolProblem, geometry: Geometry) -> Iterator[Strips]:
    """Return strips of few rows or of many, by runs of whole windows and of halves."""
    outer, inner = (dim.axis for dim in geometry.dense.dims)
    vector, channels, last = _vector(problem), geometry.channels.axis.size, problem.channels_last
    groups = channels // vector if last else 1
    planes = geometry.batch.axis.size if last else geometry.planes
    lanes, halo = _lanes(inner, 1 if last else vector)
    if halo >= WARP:
        return
    stored, together = WARP - halo, 2 if pairs(problem) else 1
    strips = -(-planes * lanes // stored) * groups
    if max(planes * lanes, strips) > INT32_MAX - OVERHANG:
        return
    beside = -(-strips // together)
    for run in {outer.kernel, -(-outer.kernel // 2)}:
        warps = min(WARPS, SHARED_BYTES // _run_bytes(run))
        if not warps:
            continue
        blocks, runs = -(-beside // warps), -(-outer.out // run)
        for parts in (2**i for i in range(runs.bit_length())):
            height = -(-runs // parts) * run
            down = -(-outer.out // height)
            each = WARP * warps * _cost(problem, geometry, run, down)
            cost = each * max(blocks, FILL / (WARP * warps * down))
            yield Strips(
                geometry, planes, lanes, groups, stored, run, height, down, beside, warps, cost
            )


def _lanes(axis: Axis, vector: int) -> tuple[int, int]:
    """Return the lanes of a plane, and behind each those that its windows end in.

    Planes beside each other share lanes that hold nothing but the padding of either, as far as no
    window begins in them.
    """
    in_front = axis.pad_begin + -axis.pad_begin % vector
    halo = -(-(in_front - axis.pad_begin + axis.kernel - 1) // vector)
    lanes = -(-axis.out // vector) + halo
    behind = max(0, lanes - (in_front + axis.size) // vector)
    return lanes - min(in_front // vector, behind, halo), halo


def _cost(problem: PoolProblem, geometry: Geometry, run: int, down: int) -> float:
    """Estimate the instructions of a lane for the columns of a plane in so many strips."""
    outer, inner = (dim.axis for dim in geometry.dims)
    step, kept = STEP[problem.dtype.name], KEPT[accumulator(problem).itemsize]
    rows, again = outer.dense().out, run < outer.kernel
    begin = run * step if again else outer.kernel * AHEAD
    above = down * (SETUP + TWIN * pairs(problem) + begin)
    runs = -(-rows // run) * (RUN + run * (step if again else kept))
    return above + runs + rows * step + outer.out * _row_cost(problem, inner)


def _row_cost(problem: PoolProblem, inner: Axis) -> float:
    """Estimate those of a row of results more than of one that the windows move on."""
    name, size, doublings = problem.dtype.name, accumulator(problem).itemsize, log2(inner.kernel)
    if problem.channels_last:
        return PIXEL[name] + EXCHANGE[size] * ceil(doublings)
    return (ROW[name] + DOUBLING[size] * doublings) * (1 + 1 / inner.stride) / 2
