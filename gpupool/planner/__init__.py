"""From a problem to launches: which kernel, which template arguments, which grid.

A plan is computed from shapes, strides, dtype and attributes alone. It is frozen, printable and
holds no array but structs of parameters, which nobody can change; the same problem has one plan,
computed once. Everything that becomes part of CUDA source is a name from a table here or an integer
within bounds. Each file of kernels/ has a module here that knows its template arguments and what it
costs; this one chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from gpupool.planner import (
    channels,
    plane,
    plane_staged,
    preprocess,
    roi,
    rows,
    rows_staged,
    separable,
    separable_planes,
    separable_vectors,
    staged,
    strips,
    unpool,
    window,
)
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import AHEAD, NEARLY, THREADS, Launch, Plan, Scalar, forecast
from gpupool.planner.parameters import by_powers
from gpupool.planner.specialised import COMPILED_IN, admissible, admit, specialisable
from gpupool.problem import (
    PoolProblem,
    PreprocessProblem,
    Problem,
    RoiProblem,
    UnpoolProblem,
    contiguous,
)

__all__ = ["KERNELS", "THREADS", "Launch", "Plan", "Scalar", "plan"]

STAGED = {"separable_planes": separable_planes.cheapest, "rows_staged": rows_staged.cheapest}
"""What chooses how planes are staged that have more windows than one, by kernel. The first one is
quicker to choose and to compile, so that the other must cost less by more than NEARLY tells."""

_Way = rows_staged.Staged | separable_planes.Separated

TILED = ("rows", *STAGED)
"""The kernels of tiles of rows, and of staged planes."""

FUSED = ("strips", "separable_vectors", "separable")
"""The kernels for large windows."""

SHARING = ("plane", "plane_staged")
"""The kernels of plane.cuh, in which several threads take an output."""

KERNELS = ("auto", "window", "specialised", *TILED, *SHARING, "channels", *FUSED)
"""What ``plan`` may be asked for; "window" is the generic tier of window.cu."""

CLEARLY = 0.9
"""Below this part of its estimate by vectors a large window takes single columns: where most
columns of a tile are halo."""


@lru_cache(maxsize=4096)
def plan(
    problem: Problem,
    strides: tuple[int, ...] | None = None,
    alignment: int = 16,
    kernel: str = "auto",
) -> Plan:
    """Choose kernel, template arguments and grid for ``problem``.

    ``strides`` of x are in elements, ``alignment`` is what divides the addresses of x and y in
    bytes. ``kernel`` overrides the choice by one of KERNELS; the plan is another's where that one
    does not serve. Where no output has an element, nothing is launched.
    """
    steps = contiguous(problem.shape) if strides is None else strides
    if 0 in problem.outputs[0].shape:
        return Plan(problem, steps, ())
    if isinstance(problem, UnpoolProblem):
        return unpool.plan(problem, steps)
    if isinstance(problem, RoiProblem):
        return Plan(problem, steps, (roi.launch(problem),))
    if isinstance(problem, PreprocessProblem):
        return Plan(problem, steps, (preprocess.launch(problem, steps),))
    chosen = _pooling(*_channels_first(problem, steps), alignment, kernel)
    return replace(chosen, problem=problem, strides=steps)


def _channels_first(
    problem: PoolProblem, strides: tuple[int, ...]
) -> tuple[PoolProblem, tuple[int, ...]]:
    """Return a problem of one channel as one whose channels lie first: the memory is the same.

    The step to a next channel, which there is none of, is one to a next image: it aligns vectors.
    """
    if not (problem.channels_last and problem.channels == 1):
        return problem, strides
    (images, *spatial, _), (step, *steps, _) = problem.shape, strides
    first = replace(problem, shape=(images, 1, *spatial), channels_last=False)
    return first, (step, step, *steps)


def _pooling(
    problem: PoolProblem, steps: tuple[int, ...], alignment: int, kernel: str
) -> Plan:  # fmt: skip
    """Choose by the fewest estimated instructions among what serves, the least general first.

    Those are channels.cu, the fused kernels, unless a tile of rows leaves memory the limit
    anyway, those of plane.cuh, and what ``_sliding_launch`` chooses. The first two are compared
    with the cheaper of the last two. A kernel that is asked for is compared with none.
    """
    geometry = Geometry.of(problem, steps)
    tiled = _tiled(problem, geometry, alignment, kernel)
    most = _sliding_cost(problem, geometry, tiled) if kernel == "auto" else inf
    shared = kernel == "auto" and _shares(problem, geometry, alignment, most, bool(tiled))
    most = min(most, plane.cost(geometry)) if shared else most
    if kernel in ("auto", "channels") and channels.serves(problem, geometry, alignment, most):
        return channels.plan(problem, steps, geometry)
    if kernel in FUSED or (
        kernel == "auto" and not (tiled and tiled.cost <= rows.limit(problem, geometry))
    ):
        beside = tiled if kernel == "auto" else None
        launch = _fused_launch(problem, geometry, alignment, most, beside, kernel)
        if launch is not None:
            return Plan(problem, steps, (launch,))
    if shared or kernel in SHARING:
        return _shared_plan(problem, steps, geometry, alignment, kernel)
    return Plan(problem, steps, (_sliding_launch(problem, geometry, tiled, kernel),))


def _shares(
    problem: PoolProblem, geometry: Geometry, alignment: int, rival: float, tiled: bool
) -> bool:
    """Whether plane_staged.cu or plane.cu is worth it."""
    small = plane_staged.worth(problem, geometry, alignment)
    return small or plane.worth(problem, geometry, rival, tiled)


def _shared_plan(
    problem: PoolProblem, steps: tuple[int, ...], geometry: Geometry, alignment: int, kernel: str
) -> Plan:
    """Share windows among threads, small planes in shared memory unless plane.cu is asked for."""
    if kernel != "plane" and plane_staged.serves(problem, geometry, alignment):
        return Plan(problem, steps, (plane_staged.launch(problem, geometry),))
    return plane.plan(problem, steps, geometry, alignment)


def _fused_launch(
    problem: PoolProblem, geometry: Geometry, alignment: int, most: float, tiled: _Tiled | None,
    kernel: str,
) -> Launch | None:  # fmt: skip
    """Launch the cheapest kernel for large windows, or none that costs more than ``most``.

    Strips are compared with other fused kernels by the least that any of their layouts issues, and
    with rows by what the layout that is chosen takes in all.
    """
    auto = kernel == "auto"
    rows_cost, rows_time = (tiled.cost, tiled.time) if tiled else (inf, inf)
    limit = min(most, _single_columns_cost(problem, geometry)) if auto else most
    by_vectors = partial(separable_vectors.launch, problem, geometry, alignment)
    found = strips.cheapest(problem, geometry, alignment) if auto or kernel == "strips" else None
    launch = None
    # Rows waste fewer lines than strips, other kernels more.
    if found is not None and found.least <= limit and found.cost <= rows_cost:
        launch = (by_vectors(found.least) if auto else None) or strips.launch(
            problem, found, alignment
        )
    if launch is None and kernel != "separable":
        launch = by_vectors(limit)
    return launch or separable.launch(problem, geometry, most, rows_time)


def _single_columns_cost(problem: PoolProblem, geometry: Geometry) -> float:
    """Estimate what separable.cu takes, raised by as much as it should be less than by vectors."""
    return separable.cost(problem, geometry) / CLEARLY


class _Tiled(NamedTuple):
    """Launches of those in TILED, the best one first, and the instructions others compare with.

    Those are of staged planes or the usual tile, whichever has fewer: others tell theirs alone.
    ``time`` adds to the first launch's what would issue while it waits.
    """

    launches: tuple[Launch, ...]
    cost: float
    time: float


def _tiled(
    problem: PoolProblem, geometry: Geometry, alignment: int, kernel: str
) -> _Tiled | None:  # fmt: skip
    """Choose a tile of rows.cu, or staged planes; unless asked for, where they are worth it.

    Staged planes may be all that serves, and count only if they may be compiled. Others compare
    with the usual tile of few instructions, whichever is launched.
    """
    if kernel in ("window", "specialised", *SHARING, "channels") or not specialisable(geometry):
        return None
    tile = rows.cheapest(problem, geometry, alignment)
    launches, cost, time, worth = list[Launch](), inf, inf, inf
    if tile:
        launches.append(rows.launch(problem, geometry, tile.launched))
        cost = rows.instructions(problem, geometry, tile.usual)
        time = rows.total_cost(problem, geometry, tile.launched)
        worth = _staged_worth(problem, geometry, tile)
    way = _staged_way(problem, geometry, alignment, kernel, worth)
    if way:
        launches.insert(0, way.launch())
        cost, time = min(cost, way.rivals_cost), way.cost
    if not launches or (kernel not in TILED and cost >= window.cost(problem, geometry)):
        return None
    return _Tiled(tuple(launches), cost, time)


def _staged_worth(problem: PoolProblem, geometry: Geometry, tile: rows.Choice) -> float:
    """Return what staged planes may cost, nothing where the usual tile is as soon as memory.

    That is clearly less than the usual tile's, and no more than the launched one's.
    """
    if not staged.adjoin(geometry):
        return 0
    needed, taken = (rows.total_cost(problem, geometry, one) for one in tile)
    late = forecast(needed, rows.memory_time(problem, geometry)) > 1
    return min(needed / AHEAD, taken) if late else 0


def _staged_way(
    problem: PoolProblem, geometry: Geometry, alignment: int, kernel: str, worth: float
) -> _Way | None:  # fmt: skip
    """Choose how planes are staged for no more than they are ``worth``, or asked for, at all."""

    def admitted(name: str, most: float) -> _Way | None:
        way = STAGED[name](problem, geometry, alignment, most)
        return way if way and _asks(admissible, way.launch()) else None

    way = None
    for name in STAGED:
        if worth and kernel in ("auto", name, *FUSED):
            way = admitted(name, way.cost / NEARLY if way else worth) or way
    return way or (admitted(kernel, inf) if kernel in STAGED else None)


def _sliding_cost(problem: PoolProblem, geometry: Geometry, tiled: _Tiled | None) -> float:
    """Estimate the instructions of what ``_sliding_launch`` chooses by itself."""
    return tiled.cost if tiled else window.cost(problem, geometry)


def _sliding_launch(
    problem: PoolProblem, geometry: Geometry, tiled: _Tiled | None, kernel: str
) -> Launch:
    """Choose among those in TILED and the two tiers of window.cu: the shortest time.

    Those are of a size, and a process that meets many sizes may spend them all. For one that may
    not be compiled any more there is window.cu's kernel of the window, which serves any size.
    """
    for launch in _specialised(problem, geometry, tiled, kernel):
        if _asks(admit, launch):
            return launch
    return window.launch(problem, geometry, specialised=False)


def _asks(allowed: Callable[..., bool], launch: Launch) -> bool:
    """Ask for a launch's specialisation: kernels of rows count together."""
    return allowed(COMPILED_IN[launch.called], launch.kernel, *launch.template)


def _specialised(
    problem: PoolProblem, geometry: Geometry, tiled: _Tiled | None, kernel: str
) -> Iterator[Launch]:
    """Give what has the window compiled in, the shortest time first."""
    if kernel == "window" or by_powers(problem) or not specialisable(geometry):
        return
    yield from tiled.launches if tiled else ()
    if window.unrolls(problem, geometry):
        yield window.launch(problem, geometry, specialised=True)
