"""channels.cu: global windows, channels last, by vectors of neighbouring channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from gpupool.planner import plane
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BUSY,
    FEW_THREADS,
    FILL,
    THREADS,
    VECTOR_BYTES,
    WARP,
    Launch,
    Plan,
    round_up,
)
from gpupool.planner.parameters import NORM_DTYPE, accumulator, by_powers, exact, norm, operator
from gpupool.problem import PoolProblem

CHANNELS_DTYPE = np.dtype(
    [
        ("norm", NORM_DTYPE),
        ("image_step", "i8"),
        *(
            (name, "i4")
            for name in (
                "pixels", "channels", "groups", "columns", "workers", "row", "rows", "rest", "tail",
            )
        ),
    ],
    align=True,
)  # fmt: skip
"""The NumPy mirror of ``Channels`` in kernels/channels.cu."""

ROWS = 32
"""Rows that a worker should find in a part: fewer are not worth a second launch."""

FEW_ROWS = 16
"""Rows that a worker should find where there are others enough: what it does once costs as much."""

SETUP, ELEMENT, TAP = 190, 11, 3
"""Instructions of a thread, for each element of its vector, and of a tap: counted from 16 taps to
millions. Threads meet in less the more of them there are."""

SECOND_LOOK_BYTES = 8
"""Bytes of a partial sum that is made again: doubles."""


def serves(problem: PoolProblem, geometry: Geometry, alignment: int, rival: float) -> bool:
    """Whether images are runs of aligned vectors that a block may read, at less than ``rival``."""
    runs = problem.channels_last and _adjoins(problem, geometry, alignment)
    return runs and _merges(problem) and cost(problem, geometry) < rival


def _adjoins(problem: PoolProblem, geometry: Geometry, alignment: int) -> bool:
    """Whether windows are whole images of adjoining pixels, each of which begins with a vector.

    The channels of its vectors repeat within a block, or vectors divide them.
    """
    (*outer, dim), width = geometry.dims, _width(problem)
    channels, images = geometry.channels, geometry.batch
    if outer or not dim.covered or (channels.step, dim.step) != (1, problem.channels):
        return False
    aligned = images.axis.size == 1 or images.step % width == 0
    repeats = problem.channels <= THREADS or problem.channels % width == 0
    return aligned and repeats and geometry.index_type == "int" and alignment >= VECTOR_BYTES


def _merges(problem: PoolProblem) -> bool:
    """Whether one thread may merge taps of several outputs: values that need no position.

    A second look at norms of doubles and of any power divides taps by what is one output's.
    """
    scaled = problem.reduction == "lp" and (by_powers(problem) or problem.dtype.itemsize == 8)
    return not (problem.indices or scaled)


def cost(problem: PoolProblem, geometry: Geometry) -> float:
    """Estimate the instructions of all threads; a card that is not filled runs them alike."""
    split = Split.of(problem, geometry)
    once = SETUP + ELEMENT * _width(problem)
    lanes = split.blocks * split.parts * round_up(split.threads, WARP)
    each = once + TAP * geometry.outputs * geometry.taps / lanes
    merging = plane.merging_cost(geometry) if split.parts > 1 else 0
    return max(lanes, BUSY) * each + merging


def plan(problem: PoolProblem, strides: tuple[int, ...], geometry: Geometry) -> Plan:
    """Share the rows of an image among the workers of a block, or of several for few images."""
    split = Split.of(problem, geometry)
    tail = problem.channels * geometry.taps % _width(problem)
    numbers = (
        geometry.taps, problem.channels, split.groups, split.columns, split.workers, split.row,
        split.rows, split.rest, tail,
    )  # fmt: skip
    parameters = np.zeros((), CHANNELS_DTYPE)  # between its fields, too: equal plans, equal bytes
    parameters[()] = norm(problem), geometry.batch.step, *numbers
    partial = accumulator(problem).itemsize
    if split.parts == 1 and not exact(problem):
        partial = SECOND_LOOK_BYTES
    launch = Launch(
        "channels.cu", "channels", (operator(problem, "int"),), ("x", "y"), (parameters,),
        (split.blocks, split.parts), split.threads * _width(problem) * partial, split.threads,
    )  # fmt: skip
    if split.parts == 1:
        return Plan(problem, strides, (launch,))
    cut = replace(launch, kernel="channels_parts", operands=("x", "workspace"))
    last = plane.launch(problem, geometry, plane.LAST_WORKERS)
    return plane.in_parts(problem, strides, geometry, cut, last)


@dataclass(frozen=True)
class Split:
    """How images are cut: see kernels/channels.cu.

    >>> from gpupool.problem import contiguous, resolve
    >>> problem = resolve("global-max", (1, 2160, 3840, 3), "uint8", channels_last=True)
    >>> Split.of(problem, Geometry.of(problem, contiguous(problem.shape)))
    Split(blocks=1, groups=1, columns=3, workers=64, row=3, rows=518400, rest=0, parts=253)
    """

    blocks: int
    groups: int
    columns: int
    workers: int
    row: int
    rows: int
    rest: int
    parts: int

    @classmethod
    def of(cls, problem: PoolProblem, geometry: Geometry) -> Split:
        """Cut the images of a problem."""
        channels, width = problem.channels, _width(problem)
        groups = -(-channels // THREADS)
        row = channels // gcd(channels, width)
        columns = -(-row // groups)
        rows, rest = divmod(channels * geometry.taps // width, row)
        blocks = geometry.batch.axis.size * groups
        least = max(FEW_THREADS, min(channels, columns * width))  # each output has a thread
        workers = 2 ** ((THREADS // columns).bit_length() - 1)
        while (
            columns * workers >= 2 * least
            and rows < FEW_ROWS * workers
            and blocks * columns * workers > FILL
        ):
            workers //= 2
        parts = plane.parts_of(blocks, rows // (ROWS * workers))
        return cls(blocks, groups, columns, workers, row, rows, rest, parts)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.columns * self.workers


def _width(problem: PoolProblem) -> int:
    """Return the elements of a vector."""
    return VECTOR_BYTES // problem.dtype.itemsize
