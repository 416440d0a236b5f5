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
from gpupool.window import taps_of

UNROLLED_TAPS, FEW_UNROLLED_TAPS, UNROLLED_TAPS_4D = 49, 27, 16
"""Windows up to this many taps may be compiled in: unrolled, more need too many registers, or more
than 100 ms to compile. See ``unrolls`` for the second and third."""

SETUP, AXIS, BORDER, NUMBER = 20, 37, 20, 45
"""Instructions of a thread, for each axis, where windows leave the input, and for Indices. These
and those below are fitted to counts of 857 random windows, which 19 of 20 estimates meet within
a third."""

TAP, PLACED_TAP, ROLLED_TAP, ROLLED_PLACED_TAP = 4.5, 8.5, 12.5, 21
"""Of a tap without and with Indices: where loops over the window are unrolled, and where not."""

FINISH, CUBIC_ROOT = {"max": 0, "average": 35, "lp": 25}, 50
"""From the partial result to the element."""


def launch(problem: PoolProblem, geometry: Geometry, specialised: bool) -> Launch:
    """Launch the generic tier, or the one with kernel and strides compiled in."""
    axes = [dim.axis for dim in geometry.dims]
    index = geometry.index_type
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
    borders = not all(dim.inside for dim in geometry.dims)
    along_axes = AXIS + BORDER * borders + NUMBER * problem.indices
    finish = FINISH[problem.reduction] + power + (CUBIC_ROOT if problem.p == 3 else 0)
    each = SETUP + along_axes * axes + finish + _reading(problem, geometry, power)
    return max(geometry.outputs, BUSY) * each


def _reading(problem: PoolProblem, geometry: Geometry, power: int) -> float:
    """Estimate those of a thread for its taps, which loops take that are unrolled, not, or both."""
    tap, rolled = (PLACED_TAP, ROLLED_PLACED_TAP) if problem.indices else (TAP, ROLLED_TAP)
    clipped = (rolled + power) * _longest(geometry)
    if not unrolls(problem, geometry):
        return clipped
    whole, over_edges = _warps(geometry)
    return (tap + power) * geometry.taps * whole + clipped * over_edges


def _longest(geometry: Geometry) -> float:
    """Return the valid taps that a warp's lanes have at most, on average over all warps, roughly.

    A warp has all windows of an axis, some of them, or one.
    """
    rows, inner = (ONE, *geometry.dims)[-2:]
    beside, taps = _beside(geometry), geometry.slices
    for axis in (inner.axis, rows.axis):
        spanned = min(1, WARP / (beside * axis.out)) if beside < WARP else 0
        taps *= axis.mean_taps + (taps_of((axis,)) - axis.mean_taps) * spanned
        beside *= axis.out
    return taps


def _warps(geometry: Geometry) -> tuple[float, float]:
    """Return the share of warps that have a window inside, and one over an edge, roughly."""
    *outer, inner = (dim.axis for dim in geometry.dims)
    beside, over = _beside(geometry), sum(inner.over_edges)
    within = prod(1 - min(1, sum(axis.over_edges) / axis.out) for axis in outer)
    along = min(1, (over * beside + WARP - 1) / (inner.out * beside)) if over else 0
    return within * (over < inner.out), 1 - (1 - along) * within


def _beside(geometry: Geometry) -> int:
    """Return the neighbouring outputs that are in the same place of their planes."""
    return geometry.channels.axis.size if geometry.channels_last else 1
