"""window.cu: one thread for each output, any geometry."""

from __future__ import annotations

from dataclasses import replace

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import BUSY, Launch
from gpupool.planner.parameters import (
    boolean,
    kernel_sizes,
    operator,
    power_cost,
    sizes,
    window_parameters,
)
from gpupool.problem import PoolProblem

UNROLLED_TAPS, FEW_UNROLLED_TAPS, UNROLLED_TAPS_4D = 49, 27, 16
"""Windows up to this many taps may be compiled in: unrolled, more need too many registers, or more
than 100 ms to compile. See ``unrolls`` for the second and third."""

SETUP, AXIS, BORDER, NUMBER = 20, 37, 20, 45
"""Instructions of a thread, for each axis, where windows leave the input, and for Indices. These
and those below are fitted to counts of 180 random windows, which they meet within a quarter."""

TAP, ROLLED_TAP = 6, 13
"""Of a tap where loops over the window are unrolled, and where not."""

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
    tap = TAP if unrolls(problem, geometry) else ROLLED_TAP
    each = SETUP + along_axes * axes + finish + (tap + power) * geometry.taps
    return max(geometry.outputs, BUSY) * each
