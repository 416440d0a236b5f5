"""window.cu: one thread for each output, any geometry."""

from __future__ import annotations

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import BUSY, THREADS, Launch
from gpupool.planner.parameters import boolean, operator, sizes, window_parameters
from gpupool.planner.specialised import long_taps
from gpupool.problem import PoolProblem

UNROLLED_TAPS, LONG_UNROLLED_TAPS = 49, 30
"""Windows up to this many taps may be compiled in: unrolled, more need too many registers or too
long a compilation; the second holds with Indices and for float64."""


def launch(problem: PoolProblem, geometry: Geometry, specialised: bool) -> Launch:
    """Launch the generic tier, or the one with kernel and strides compiled in."""
    axes = [dim.axis for dim in geometry.dims]
    index = geometry.index_type
    template = (
        operator(problem, index),
        str(len(axes)),
        index,
        sizes([a.kernel if specialised else 0 for a in axes]),
        sizes([a.stride if specialised else 0 for a in axes]),
        boolean(problem.channels_last),
    )
    return Launch(
        "window.cu",
        "window",
        template,
        ("x", "y", "indices"),
        (window_parameters(problem, geometry),),
        (-(-geometry.outputs // THREADS), 1),
    )


def unrolls(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether few enough taps are to be compiled in."""
    return geometry.taps <= (LONG_UNROLLED_TAPS if long_taps(problem) else UNROLLED_TAPS)


def cost(geometry: Geometry) -> float:
    """Estimate the instructions of all threads; a card that is not filled runs them alike."""
    return max(geometry.outputs, BUSY) * (45 + 7.0 * geometry.taps)
