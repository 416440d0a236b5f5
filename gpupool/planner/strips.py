"""strips.cu: large overlapping windows, a warp for each strip of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, inf, log2
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gpupool.planner.banks import BANKS, WORD_BYTES, WarpAccess
from gpupool.planner.geometry import OVERHANG, Geometry
from gpupool.planner.launches import (
    AHEAD,
    FILL,
    NEARLY,
    SHARED_BYTES,
    TURN,
    VECTOR_BYTES,
    WARP,
    Launch,
    Scalar,
    round_up,
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

PIXELS, ABREAST = (1, 2, 4), (1, 2, 4, 8)
"""Channels last, pixels of a lane, and lanes that have other channels of the same ones."""

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

KEPT = LANE_BYTES * WARP // (BANKS * WORD_BYTES)
"""Turns in which a warp reads or writes a row of its run."""

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


class Layout(NamedTuple):
    """What the lanes of a warp hold: template arguments of the kernel.

    A ``paired`` word holds partial results of two strips or, channels last, of two channels. There
    a lane has so many ``pixels``, and so many lanes ``abreast`` have the same ones.
    """

    paired: bool
    pixels: int = 0
    abreast: int = 1

    @property
    def last(self) -> bool:
        """Whether channels lie last."""
        return self.pixels > 0

    @property
    def twins(self) -> bool:
        """Whether a warp has two strips."""
        return self.paired and not self.last

    @property
    def channels(self) -> int:
        """Channels of a word."""
        return 2 if self.paired and self.last else 1


@dataclass(frozen=True)
class Strips:
    """How warps share the outputs of planes, and what that costs.

    The ``lanes`` of one plane lie behind those of another; channels last those of images, whose
    pixels have ``groups`` of channels for a strip each. A strip is a warp of lanes, of which the
    first ``stored`` have windows that end in it, and ``height`` rows; a lane keeps a ``run`` of
    them. ``beside`` each other lie so many, or twice as many of two in a word, over ``down``
    others; a block has ``warps``. Instructions are ``issued``, or would issue while lines, turns
    and sectors are ``served``: channels first none is wasted, and none counts. The ``cost`` is of
    as many threads as fill a GPU, if there are fewer; that of no layout is less than ``least``.
    """

    geometry: Geometry
    layout: Layout
    planes: int
    lanes: int
    groups: int
    stored: int
    run: int
    height: int
    down: int
    beside: int
    warps: int
    issued: float
    served: float
    cost: float
    least: float = inf

    def total_cost(self) -> float:
        """Return the sum by which layouts are compared."""
        return self.cost + self.served

    def struct(self) -> Scalar:
        """Return what a kernel receives."""
        divisors = (self.down, self.lanes, self.groups, self.geometry.axes[0].stride)
        numbers = (
            self.planes, self.height, self.stored, self.run,
            *(divisor(number, "int") for number in divisors),
        )  # fmt: skip
        return np.array(numbers, STRIPS_DTYPE)


def cheapest(problem: PoolProblem, geometry: Geometry, alignment: int) -> Strips | None:
    """Return what takes nearly least in total if that is clearly less than what issues least.

    Other kernels are compared with the least cost, since they do not count what is served.
    """
    planes = served(problem, geometry)
    if planes is None or len(planes.dims) != 2 or problem.indices:
        return None
    if not counts_in_floats(problem, planes):
        return None
    found = (
        min(_strips(problem, planes, layout), key=attrgetter("cost"), default=None)
        for layout in _layouts(problem, planes)
        if _serves(problem, planes, alignment, layout)
    )
    ways = [way for way in found if way]
    return _nearly_least(ways) if ways else None


def _nearly_least(ways: Sequence[Strips]) -> Strips:
    fewest = attrgetter("cost", "issued")
    usual, best = min(ways, key=fewest), min(ways, key=Strips.total_cost)
    if AHEAD * best.total_cost() > usual.total_cost():
        return replace(usual, least=usual.cost)
    near = [best, *(way for way in ways if way.total_cost() <= NEARLY * best.total_cost())]
    return replace(min(near, key=fewest), least=usual.cost)


def _layouts(problem: PoolProblem, geometry: Geometry) -> Iterator[Layout]:
    for paired in {pairs(problem), pairs(problem) or pairs_sums(problem, geometry)}:
        if problem.channels_last:
            yield from (Layout(paired, *lanes) for lanes in product(PIXELS, ABREAST))
        else:
            yield Layout(paired)


def launch(problem: PoolProblem, strips: Strips, alignment: int) -> Launch | None:
    """Launch the kernel, or return None where it may not be compiled any more."""
    geometry, layout = strips.geometry, strips.layout
    outer, inner = geometry.axes
    across, deep = _lane_of(problem, layout)
    stored = (deep,) if layout.last else (across // inner.stride, inner.out)
    store = vector_width(alignment, problem.out_dtype, *stored)
    numbers = (inner.kernel, store, -inner.pad_begin % across, inner.stride)
    reread, images = boolean(strips.run < outer.kernel), boolean(geometry.images)
    lanes = (str(layout.pixels), str(layout.abreast))
    held = operator(problem, "int", paired=layout.paired)
    template = (held, *map(str, numbers), reread, *lanes, images)
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


def _serves(problem: PoolProblem, geometry: Geometry, alignment: int, layout: Layout) -> bool:
    """Whether lanes begin on vectors and have all of theirs or nothing, and windows touch rows.

    Of a row as many windows begin in one lane as in another. Rows have no stride alone.
    """
    outer, inner = geometry.dims
    across, deep = _lane_of(problem, layout)
    row = geometry.channels if layout.last else inner
    together = deep if layout.last else across
    steps = (geometry.batch.step, outer.step, (inner if layout.last else geometry.channels).step)
    filled = row.axis.size % (together * layout.abreast) == 0
    whole = row.step == 1 and filled and inner.axis.size % across == 0
    at_once = min(together, VECTOR_BYTES // problem.dtype.itemsize)
    aligned = vector_width(alignment, problem.dtype, together, *steps) == at_once
    stride = inner.axis.stride
    apart = (layout.pixels == 1 or across % stride == 0) if stride > 1 else outer.axis.stride == 1
    return whole and aligned and apart and outer.axis.touches


def _lane_of(problem: PoolProblem, layout: Layout) -> tuple[int, int]:
    """Return the columns of a lane and the elements that each word or words of them hold.

    Channels last both halves of a word are channels of the same pixel.
    """
    values = LANE_BYTES // accumulator(problem).itemsize
    across = layout.pixels or values
    return across, values // across * layout.channels


def _run_bytes(rows: int) -> int:
    """Return the shared memory of a warp."""
    return rows * WARP * LANE_BYTES


def _strips(problem: PoolProblem, geometry: Geometry, layout: Layout) -> Iterator[Strips]:
    """Return strips of few rows or of many, by runs of whole windows and of halves."""
    axis = geometry.axes[0]
    outer, inner = geometry.dense.axes
    across, deep = _lane_of(problem, layout)
    groups = geometry.channels.axis.size // (deep * layout.abreast) if layout.last else 1
    planes = geometry.batch.axis.size if layout.last else geometry.planes
    lanes, halo = _lanes(inner, across)
    stored = WARP // layout.abreast - halo
    if stored <= 0:
        return
    strips = -(-planes * lanes // stored) * groups
    if max(planes * lanes, strips) > INT32_MAX - OVERHANG:
        return
    beside = -(-strips // (2 if layout.twins else 1))
    row_of_warp = _row_of_warp(problem, geometry, layout, stored)
    for run in {outer.kernel, -(-outer.kernel // 2)}:
        warps = _warps(run, beside)
        if not warps:
            continue
        threads = round_up(beside, warps) * WARP
        for height in _heights(outer, run, threads):
            down = -(-outer.out // height)
            each = _cost(problem, geometry, layout, run, down)
            yield Strips(
                geometry, layout, planes, lanes, groups, stored, run, height, down, beside, warps,
                threads * each, threads / WARP * _traffic(axis, row_of_warp, run, down),
                max(threads, FILL / down) * each,
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


def _cost(problem: PoolProblem, geometry: Geometry, layout: Layout, run: int, down: int) -> float:
    """Estimate the instructions of a lane for the columns of a plane in so many strips."""
    outer, inner = geometry.axes
    lane = _lane(problem, layout.paired)
    rows, again = outer.dense().out, run < outer.kernel
    begin = run * lane.step if again else outer.kernel * lane.ahead
    above = SETUP + TWIN * layout.twins + COUNTS * (problem.reduction != "max") + begin
    runs = -(-rows // run) * (RUN + run * (lane.step if again else lane.kept))
    results = outer.out * _results(problem, lane, inner, layout)
    return down * above + runs + rows * lane.step + results


def _traffic(axis: Axis, row: _Row | None, run: int, down: int) -> float:
    """Estimate what issues while lines, turns and sectors of a warp's rows are served."""
    if row is None:
        return 0
    rows, again = axis.dense().out, run < axis.kernel
    read = rows * (1 + again) + down * run
    kept = rows * (1 if again else 3) + axis.out
    return read * row.read + TURN * KEPT * kept + axis.out * row.written


class _Row(NamedTuple):
    """What issues while a row is read for a warp, and a row of results written."""

    read: float
    written: float


def _row_of_warp(
    problem: PoolProblem, geometry: Geometry, layout: Layout, stored: int
) -> _Row | None:  # fmt: skip
    """Estimate that channels last; first neighbouring lanes have neighbouring vectors."""
    if not layout.last:
        return None
    inner, step = geometry.axes[-1], geometry.dims[-1].step
    taken, apart = max(1, layout.pixels // inner.stride), max(1, inner.stride // layout.pixels)
    loads, load = _accesses(problem, layout, layout.pixels, step, problem.dtype.itemsize)
    channels, itemsize = geometry.channels.axis.size, problem.out_dtype.itemsize
    stores, store = _accesses(problem, layout, taken, channels, itemsize)
    return _Row(loads * load.load, stores * store.store * stored * layout.abreast / WARP / apart)


def _accesses(
    problem: PoolProblem, layout: Layout, pixels: int, step: int, itemsize: int
) -> tuple[float, WarpAccess]:
    """Return in how many a warp takes so many pixels of each lane, ``step`` apart, and one."""
    _, deep = _lane_of(problem, layout)
    own, apart = deep * itemsize, abs(step) * itemsize
    width, begins = min(own, VECTOR_BYTES), gcd(apart, own * layout.abreast)
    return pixels * own / width, WarpAccess(layout.abreast, own, pixels * apart, begins, width)


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


def _results(problem: PoolProblem, lane: _Lane, inner: Axis, layout: Layout) -> float:
    """Estimate those of a row of results more than of one that the windows move on.

    Half of that is the same at all strides of columns.
    """
    doublings = log2(inner.kernel)
    alone = layout.channels > 1
    if layout.pixels != 1:
        apart = APART * layout.last - ALONE * alone
        return apart + (lane.results + lane.doubling * doublings) * (1 + 1 / inner.stride) / 2
    # Maxima may take the longest of the doubled lengths twice; sums add up those that they need.
    more = inner.kernel.bit_count() - 1 if problem.reduction != "max" else doublings % 1 > 0
    return lane.pixels + lane.exchange * (int(doublings) + more) - ALONE * alone
