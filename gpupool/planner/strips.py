"""strips.cu: large overlapping windows, a warp for each strip of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log2
from operator import attrgetter

import numpy as np

from gpupool.planner.geometry import OVERHANG, Geometry
from gpupool.planner.launches import (
    FILL,
    LINE_BYTES,
    SHARED_BYTES,
    VECTOR_BYTES,
    WARP,
    Launch,
    Scalar,
)
from gpupool.planner.parameters import (
    accumulator,
    boolean,
    divisor,
    divisor_dtype,
    operator,
    pairs,
    pairs_sums,
    vector_width,
    window_parameters,
)
from gpupool.planner.separable import counts_in_floats, served
from gpupool.planner.specialised import admit
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

LANE_BYTES = 32
"""What a lane takes of a row, in bytes of partial results."""

PIXELS = (1, 2, 4)
"""Those of a lane, channels last."""

WARPS, IDLE = 2, 1 / 16
"""Warps of a block at most, and the share of all warps that may have no columns."""

SETUP, TWIN, RUN = 110, 50, 44
"""Instructions of a lane: where its columns are, where their twins are, and a run."""

COUNTS = 60
"""More where sums are, of which averages count taps and others are watched."""


@dataclass(frozen=True)
class _Lane:
    """Instructions of a lane for each row.

    That is, one ``ahead`` of the first window, one ``kept`` of a run, one that the windows ``step``
    on, and one of ``results``: channels first more for each ``doubling`` of the window's width,
    channels last (``pixels``) for each time that lanes ``exchange`` what they have.
    """

    ahead: float
    kept: float
    step: float
    results: float
    doubling: float
    pixels: float
    exchange: float


LANE = {
    ("max", "float64"): _Lane(24, 26, 40, 24, 21, 50, 20),
    ("max", "float32"): _Lane(24, 18, 30, 18, 8, 27, 13),
    ("max", "float16"): _Lane(24, 18, 41, 22, 8, 39, 13),
    ("max", "bfloat16"): _Lane(24, 18, 41, 22, 8, 39, 13),
    ("max", "int8"): _Lane(24, 18, 47, 37, 8, 60, 13),
    ("max", "uint8"): _Lane(24, 18, 42, 31, 8, 48, 13),
    ("average", "float64"): _Lane(22, 28, 32, 66, 8, 33, 14),
    ("average", "float32"): _Lane(17, 25, 33, 89, 8, 51, 19),
    ("average", "float16"): _Lane(23, 17, 34, 81, 8, 50, 19),
    ("average", "bfloat16"): _Lane(20, 24, 36, 92, 8, 53, 19),
    ("average", "int8"): _Lane(18, 14, 30, 107, 7, 78, 18),
    ("average", "uint8"): _Lane(18, 14, 30, 107, 7, 78, 18),
    ("paired", "int8"): _Lane(18, 9, 42, 212, 7, 170, 20),
    ("paired", "uint8"): _Lane(15, 9, 38, 208, 7, 162, 20),
    ("lp", "float64"): _Lane(26, 28, 29, 111, 9, 98, 15),
    ("lp", "float32"): _Lane(22, 33, 37, 117, 5, 71, 19),
    ("lp", "float16"): _Lane(21, 29, 45, 22, 9, 8, 19),
    ("lp", "bfloat16"): _Lane(22, 32, 40, 120, 5, 75, 19),
}
"""By what words hold and dtype; of norms the second. Fitted to 800 counts, which all sums meet
within 9 %."""

APART, ALONE = 18, 20
"""More for results of a lane of several pixels, and less for those of words of one strip: what is
counted channels last is met within a quarter."""

CUBE, ROOT, DOUBLE_ROOT = 16, {1: -30, 2: 0, 3: 75}, {1: -80, 2: 0, 3: -35}
"""More of a norm's rows than of the second one's: of the third for each that is read, and of
results by the exponent, of float64 the square root being the dearest."""

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
    """How warps share the outputs of planes, and what that costs in instructions and ``lookups``.

    Words hold the partial results of one strip or, ``paired``, of two; channels last, where a
    lane has so many ``pixels``, of two channels.
    The ``lanes`` of one plane lie behind those of another; channels last those of images, whose
    pixels have ``groups`` of channels for a strip each. A strip is a warp of lanes, of which the
    first ``stored`` have windows that end in it, and ``height`` rows; a lane keeps a ``run`` of
    them. ``beside`` each other lie so many, or twice as many of two in a word, over ``down``
    others; a block has ``warps``.
    """

    geometry: Geometry
    paired: bool
    pixels: int
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
    lookups: float

    def bound(self) -> float:
        """Return what takes longer, instructions or lookups."""
        return max(self.cost, self.lookups)

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
    if planes is None or len(planes.dims) != 2 or problem.indices:
        return None
    if not counts_in_floats(problem, planes):
        return None
    pairings = {pairs(problem), pairs(problem) or pairs_sums(problem, planes)}
    found = (
        min(_strips(problem, planes, *lane), key=attrgetter("cost"), default=None)
        for lane in product(pairings, PIXELS if problem.channels_last else (0,))
        if _serves(problem, planes, alignment, *lane)
    )
    return min(filter(None, found), key=Strips.bound, default=None)


def launch(problem: PoolProblem, strips: Strips, alignment: int) -> Launch | None:
    """Launch the kernel, or return None where it may not be compiled any more."""
    geometry, pixels = strips.geometry, strips.pixels
    outer, inner = (dim.axis for dim in geometry.dims)
    across, deep = _lane_of(problem, strips.paired, pixels)
    stored = (deep,) if pixels else (across // inner.stride, inner.out)
    store = vector_width(alignment, problem.out_dtype, *stored)
    numbers = (inner.kernel, store, -inner.pad_begin % across, inner.stride)
    reread, images = boolean(strips.run < outer.kernel), boolean(geometry.images)
    held = operator(problem, "int")
    if strips.paired and not pairs(problem):
        held = f"Paired<{held}>"
    template = (held, *map(str, numbers), reread, str(pixels), images)
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


def _serves(
    problem: PoolProblem, geometry: Geometry, alignment: int, paired: bool, pixels: int
) -> bool:
    """Whether lanes begin on vectors and have all of theirs or nothing, and windows touch rows.

    Of a row as many windows begin in one lane as in another. Rows have no stride alone.
    """
    outer, inner = geometry.dims
    across, deep = _lane_of(problem, paired, pixels)
    row = geometry.channels if pixels else inner
    together = deep if pixels else across
    steps = (geometry.batch.step, outer.step, (inner if pixels else geometry.channels).step)
    whole = row.step == 1 and row.axis.size % together == 0 and inner.axis.size % across == 0
    at_once = min(together, VECTOR_BYTES // problem.dtype.itemsize)
    aligned = vector_width(alignment, problem.dtype, together, *steps) == at_once
    stride = inner.axis.stride
    apart = (pixels == 1 or across % stride == 0) if stride > 1 else outer.axis.stride == 1
    return whole and aligned and apart and outer.axis.touches


def _lane_of(problem: PoolProblem, paired: bool, pixels: int) -> tuple[int, int]:
    """Return the columns of a lane and the elements that each word or words of them hold.

    Channels last both halves of a word are channels of the same pixel.
    """
    values = LANE_BYTES // accumulator(problem).itemsize
    across = pixels or values
    return across, values // across * (1 + (paired and pixels > 0))


def _run_bytes(rows: int) -> int:
    """Return the shared memory of a warp."""
    return rows * WARP * LANE_BYTES


def _strips(
    problem: PoolProblem, geometry: Geometry, paired: bool, pixels: int
) -> Iterator[Strips]:
    """Return strips of few rows or of many, by runs of whole windows and of halves."""
    outer, inner = (dim.axis for dim in geometry.dense.dims)
    across, deep = _lane_of(problem, paired, pixels)
    groups = geometry.channels.axis.size // deep if pixels else 1
    planes = geometry.batch.axis.size if pixels else geometry.planes
    lanes, halo = _lanes(inner, across)
    if halo >= WARP:
        return
    stored = WARP - halo
    strips = -(-planes * lanes // stored) * groups
    if max(planes * lanes, strips) > INT32_MAX - OVERHANG:
        return
    beside = -(-strips // (2 if paired and not pixels else 1))
    for run in {outer.kernel, -(-outer.kernel // 2)}:
        warps = _warps(run, beside)
        if not warps:
            continue
        threads = -(-beside // warps) * warps * WARP
        for height in _heights(outer, run, threads):
            down = -(-outer.out // height)
            filling = max(threads, FILL / down)
            yield Strips(
                geometry, paired, pixels, planes, lanes, groups, stored,
                run, height, down, beside, warps,
                filling * _cost(problem, geometry, paired, pixels, run, down),
                filling * _lookups(problem, geometry, paired, pixels),
            )  # fmt: skip


def _warps(run: int, beside: int) -> int:
    """Return the most of a block that shared memory holds and of which few are idle."""
    held = range(min(WARPS, SHARED_BYTES // _run_bytes(run)), 0, -1)
    return next((warps for warps in held if -beside % warps <= beside * IDLE), 0)


def _heights(axis: Axis, run: int, threads: int) -> set[int]:
    """Return the rows of strips of as many runs as leave a GPU filled, or of one more.

    Of as many strips the last one has hardly fewer rows.
    """
    runs = -(-axis.out // run)
    filled = runs * threads // FILL
    numbers = {-(-runs // max(1, min(high, runs))) for high in (filled, filled + 1)}
    return {run * -(-runs // down) for down in numbers}


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


def _cost(
    problem: PoolProblem, geometry: Geometry, paired: bool, pixels: int, run: int, down: int
) -> float:
    """Estimate the instructions of a lane for the columns of a plane in so many strips."""
    outer, inner = (dim.axis for dim in geometry.dims)
    lane = _lane(problem, paired)
    rows, again = outer.dense().out, run < outer.kernel
    begin = run * lane.step if again else outer.kernel * lane.ahead
    above = SETUP + TWIN * (paired and not pixels) + COUNTS * (problem.reduction != "max") + begin
    runs = -(-rows // run) * (RUN + run * (lane.step if again else lane.kept))
    results = outer.out * _results(problem, lane, inner, paired, pixels)
    return down * above + runs + rows * lane.step + results


def _lookups(problem: PoolProblem, geometry: Geometry, paired: bool, pixels: int) -> float:
    """Estimate the lines that a warp touches in the columns of an image.

    One is looked up while a warp issues an instruction: four of each in a cycle (NVIDIA's Greg
    Smith on Volta, forums.developer.nvidia.com/t/pascal-l1-cache/49571).
    """
    if not pixels:
        return 0
    outer, inner = geometry.dims
    _, deep = _lane_of(problem, paired, pixels)
    lines = WARP * min(1, pixels * inner.step * problem.dtype.itemsize / LINE_BYTES)
    loads, stores = (
        pixels * max(1, deep * dtype.itemsize / VECTOR_BYTES)
        for dtype in (problem.dtype, problem.out_dtype)
    )
    rows = loads * outer.axis.dense().out + stores / inner.axis.stride * outer.axis.out
    return lines * rows


def _lane(problem: PoolProblem, paired: bool) -> _Lane:
    sums = paired and problem.reduction == "average"
    lane = LANE["paired" if sums else problem.reduction, problem.dtype.name]
    if problem.reduction != "lp":
        return lane
    roots = DOUBLE_ROOT if problem.dtype.name == "float64" else ROOT
    root, cube = roots[int(problem.p)], CUBE * (problem.p == 3)
    return replace(
        lane, step=lane.step + cube, results=lane.results + root, pixels=lane.pixels + root
    )


def _results(problem: PoolProblem, lane: _Lane, inner: Axis, paired: bool, pixels: int) -> float:
    """Estimate those of a row of results more than of one that the windows move on.

    Half of that is the same at all strides of columns.
    """
    doublings = log2(inner.kernel)
    if pixels != 1:
        apart = (APART if pixels else 0) - (ALONE if paired and pixels else 0)
        return apart + (lane.results + lane.doubling * doublings) * (1 + 1 / inner.stride) / 2
    # Maxima may take the longest of the doubled lengths twice; sums add up those that they need.
    more = inner.kernel.bit_count() - 1 if problem.reduction != "max" else doublings % 1 > 0
    return lane.pixels + lane.exchange * (int(doublings) + more) - ALONE * paired
