"""window.cu: one thread for each output, any geometry."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gpupool.planner.geometry import ONE, Geometry
from gpupool.planner.launches import BUSY, WARP, Launch
from gpupool.planner.parameters import (
    boolean,
    kernel_sizes,
    operator,
    power_cost,
    sizes,
    window_parameters,
)
from gpupool.problem import PoolProblem
from gpupool.window import Axis, taps_of

UNROLLED_TAPS, FEW_UNROLLED_TAPS, UNROLLED_TAPS_4D = 49, 27, 16
"""Windows up to this many taps may be compiled in: unrolled, more need too many registers, or more
than 100 ms to compile. See ``unrolls`` for the second and third."""

SETUP, AXIS, NUMBER = 20, 28, 38
"""Instructions of a thread, for each axis, and more for Indices. These and those below are fitted
to counts of 1503 random windows, which two thirds of the estimates meet within a ninth."""

TAP, PLACED_TAP, ROLLED_TAP, ROLLED_PLACED_TAP = 4.5, 8.4, 12, 20
"""Of a tap without and with Indices: where loops over the window are unrolled, and where not."""

DOUBLE_MAXIMUM = 2.5
"""More of a tap of maxima of float64, which no instruction takes."""

ROLLED_ROW, ROLLED_SLICE = 12, 33
"""Of a row of taps where they are not, and of a slice."""

FINISH, CUBIC_ROOT = {"max": 0, "average": 35, "lp": 25}, 50
"""From the partial result to the element."""


def launch(problem: PoolProblem, geometry: Geometry, specialised: bool) -> Launch:
    """Launch the generic tier, or the one with kernel and strides compiled in."""
    axes, index = geometry.axes, geometry.index_type
    template = (
        operator(problem, index),
        str(len(axes)),
        index,
        kernel_sizes(axes) if specialised else sizes([0] * len(axes)),
        sizes([a.stride if specialised else 0 for a in axes]),
        boolean(problem.channels_last),
    )
    scalars = (window_parameters(problem, geometry),)
    operands = ("x", "y", "indices")
    chosen = Launch.over(geometry.outputs, "window.cu", "window", template, operands, scalars)
    return replace(chosen, specialised=specialised)


def unrolls(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether few enough taps are to be compiled in: fewer Indices, norms of float64 and in 3-D.

    Still fewer on four axes, and none on more.
    """
    axes, norm = len(geometry.dims), problem.reduction == "lp"
    if axes > 3:
        return axes == 4 and geometry.taps <= UNROLLED_TAPS_4D
    few = problem.indices or (norm and (axes > 2 or problem.dtype.itemsize == 8))
    return geometry.taps <= (FEW_UNROLLED_TAPS if few else UNROLLED_TAPS)


def cost(problem: PoolProblem, geometry: Geometry) -> float:
    """Estimate the instructions of all threads; a card that is not filled runs them alike."""
    axes, power = len(geometry.dims), power_cost(problem)
    along_axes = (AXIS + NUMBER * problem.indices) * axes
    finish = FINISH[problem.reduction] + power + (CUBIC_ROOT if problem.p == 3 else 0)
    each = SETUP + along_axes + finish + _reading(problem, geometry, power)
    return max(geometry.outputs, BUSY) * each


def _reading(problem: PoolProblem, geometry: Geometry, power: int) -> float:
    """Estimate those of a thread for its taps, which loops take that are unrolled, not, or both."""
    tap, rolled = (PLACED_TAP, ROLLED_PLACED_TAP) if problem.indices else (TAP, ROLLED_TAP)
    double = problem.reduction == "max" and problem.dtype.name == "float64" and not problem.indices
    merge = DOUBLE_MAXIMUM if double else power
    rows, taps = _longest(geometry)
    clipped = (rolled + merge) * taps + ROLLED_ROW * rows
    clipped += ROLLED_SLICE * geometry.slices * (len(geometry.dims) > 2)
    if not unrolls(problem, geometry):
        return clipped
    whole, over_edges = _warps(geometry)
    return (tap + merge) * geometry.taps * whole + clipped * over_edges


def _longest(geometry: Geometry) -> tuple[float, float]:
    """Return the rows of valid taps that a warp's lanes have at most, and the taps in all of them.

    On average over all warps, roughly: a warp has all windows of an axis, some of them, or one.
    """
    rows, inner = (ONE.axis, *geometry.axes)[-2:]
    beside = _beside(geometry)
    down = geometry.slices * _longest_along(rows, beside * inner.out)
    return down, down * _longest_along(inner, beside)


def _longest_along(axis: Axis, beside: int) -> float:
    """Return the same of one axis, where so many neighbours have each of its windows."""
    spanned = min(1.0, WARP / (beside * axis.out)) if beside < WARP else 0
    return axis.mean_taps + (taps_of((axis,)) - axis.mean_taps) * spanned


def _warps(geometry: Geometry) -> tuple[float, float]:
    """Return the share of warps that have a window inside, and one over an edge, roughly."""
    *outer, inner = geometry.axes
    beside, over = _beside(geometry), sum(inner.over_edges)
    within = prod(1 - min(1, sum(axis.over_edges) / axis.out) for axis in outer)
    inside, outside = (
        min(1, (windows * beside + WARP - 1) / (inner.out * beside)) if windows > 0 else 0
        for windows in (inner.out - over, over)
    )
    return within * inside, 1 - (1 - outside) * within


def _beside(geometry: Geometry) -> int:
    """Return the neighbouring outputs that are in the same place of their planes."""
    return geometry.channels.axis.size if geometry.channels_last else 1
