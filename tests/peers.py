"""Other implementations behind one interface, random cases for them, and where they differ.

A peer computes a Case or refuses it; gpupool is one of them. KNOWN names every difference with its
reason and its smallest example: tests prove that each still exists, so an upstream fix is noticed.

    python -m tests.peers --n 5000 --seed 0 [--peer torch]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import Any

import ml_dtypes
import numpy as np

import gpupool
from gpupool import peers
from gpupool.arrays import Array
from gpupool.bounds import gamma
from gpupool.dtypes import find
from gpupool.peers import Case, Outputs, Peer, RefusedError, model
from gpupool.problem import PoolProblem, resolve
from tests import tolerance

Draw = Callable[[int, int], int]
"""Gives an integer between two bounds, both included: Hypothesis' or Python's own generator."""


class Gpupool(Peer):
    """gpupool, or any object with its functions; ``array`` and ``numpy`` move its arrays."""

    name = "gpupool"
    dtypes: Mapping[str, tuple[str, ...]] = {}
    functions: Mapping[str, str] = {
        "MaxPool": "max_pool",
        "AveragePool": "average_pool",
        "LpPool": "lp_pool",
        "GlobalMaxPool": "global_max_pool",
        "GlobalAveragePool": "global_average_pool",
        "GlobalLpPool": "global_lp_pool",
        "MaxUnpool": "max_unpool",
        "MaxRoiPool": "max_roi_pool",
        "RoiAlign": "roi_align",
    }

    def __init__(
        self,
        library: Any = gpupool,
        array: Callable[[Array], Any] = lambda x: x,
        numpy: Callable[[Any], Array] = lambda x: x,
    ) -> None:
        self.library, self.array, self.numpy = library, array, numpy

    def run(self, case: Case) -> Outputs:
        inputs, arguments = list(case.inputs), {**case.attributes, "opset": case.opset}
        if case.op == "MaxUnpool" and len(inputs) == 3:
            arguments["output_shape"] = inputs.pop().tolist()
        if case.outputs == 2:
            arguments["return_indices"] = True
        function = getattr(self.library, self.functions[case.op])
        try:
            result = function(*map(self.array, inputs), **arguments)
        except gpupool.GpupoolError as error:
            raise RefusedError(str(error)) from error
        results = result if isinstance(result, tuple) else (result,)
        return tuple(map(self.numpy, results))


class OnnxReference(Peer):
    """onnx.reference: no oracle, and here only so that its differences are on record."""

    name = "onnx reference"
    dtypes: Mapping[str, tuple[str, ...]] = {}

    def run(self, case: Case) -> Outputs:
        from onnx.reference import ReferenceEvaluator

        inputs = {f"input{i}": x for i, x in enumerate(case.inputs)}
        return tuple(ReferenceEvaluator(model(case)).run(None, inputs))


ours = Gpupool()
PEERS: Mapping[str, Peer] = {**peers.PEERS, OnnxReference.name: OnnxReference()}


# Random cases


def draw_case(draw: Draw, peer: Peer, op: str) -> Case:
    """Return a random case of an operator that the peer has arguments for."""
    dtype = find("dtype", _pick(draw, peer.dtypes[op])).numpy
    make = {"MaxUnpool": _draw_unpool, "MaxRoiPool": _draw_roi, "RoiAlign": _draw_roi}
    return peer.adapt(make.get(op, _draw_pool)(draw, op, dtype))


def _pick(draw: Draw, options: Sequence[Any]) -> Any:
    return options[draw(0, len(options) - 1)]


def _some(draw: Draw, axes: int, low: int, high: int) -> list[int]:
    return [draw(low, high) for _ in range(axes)]


def _draw_pool(draw: Draw, op: str, dtype: np.dtype[Any]) -> Case:
    axes = draw(1, 3)
    shape = (draw(1, 2), draw(1, 3), *_some(draw, axes, 1, (40, 12, 7)[axes - 1]))
    attributes: dict[str, Any] = {}
    if not op.startswith("Global"):
        attributes = _draw_window(draw, shape[2:])
    if op.endswith("LpPool"):
        attributes["p"] = draw(1, 5)
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(0, 1)
    outputs = 1
    if op == "MaxPool":
        attributes["storage_order"] = draw(0, 1)
        outputs = draw(1, 2)
    return Case(op, (_draw_values(draw, shape, dtype),), attributes, outputs)


def _draw_window(draw: Draw, spatial: tuple[int, ...]) -> dict[str, Any]:
    """Mostly windows that fit, with explicit pads below the kernel; sometimes anything."""
    axes = len(spatial)
    anything = draw(0, 7) == 0
    kernel = [draw(1, 20 if anything else min(size, 5)) for size in spatial]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": _some(draw, axes, 1, 4),
        "dilations": _some(draw, axes, 1, 3 if draw(0, 2) == 0 else 1),
        "ceil_mode": draw(0, 1),
    }
    if draw(0, 7) == 0:
        attributes["auto_pad"] = _pick(draw, ("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        attributes["pads"] = [draw(0, k - 1 + anything) for k in kernel * 2]
    return attributes


def _draw_values(draw: Draw, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Integers in the whole range, or floats: full of ties, plain, huge, or with NaN and inf."""
    rng = np.random.default_rng(draw(0, 2**32 - 1))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    kind = draw(0, 15)
    if kind < 7:
        return rng.integers(-4, 5, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if kind == 14:
        values = np.clip(values / 3, -1, 1) * float(ml_dtypes.finfo(dtype).max)
    if kind == 15:
        special = rng.integers(0, 24, shape)
        values = np.where(special < 3, np.array([np.nan, np.inf, -np.inf])[special % 3], values)
    return values.astype(dtype)


def _draw_unpool(draw: Draw, op: str, dtype: np.dtype[Any]) -> Case:
    axes = draw(1, 3)
    shape = (draw(1, 2), draw(1, 3), *_some(draw, axes, 1, 6))
    kernel, strides = _some(draw, axes, 1, 4), _some(draw, axes, 1, 4)
    pads = [draw(0, (k - 1) // 2) for k in kernel * 2]
    begins, ends = pads[:axes], pads[axes:]
    inferred = [
        (size - 1) * s - b - e + k
        for size, s, b, e, k in zip(shape[2:], strides, begins, ends, kernel, strict=True)
    ]
    full = np.array([*shape[:2], *(size + draw(0, 3) for size in inferred)])
    explicit = draw(0, 1)
    x = _draw_values(draw, shape, dtype)
    size = prod(full) if explicit else prod(shape[:2]) * prod(inferred)
    indices = np.random.default_rng(draw(0, 2**32 - 1)).integers(0, size, shape)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    return Case(op, (x, indices, full)[: 2 + explicit], attributes)


def _draw_roi(draw: Draw, op: str, dtype: np.dtype[Any]) -> Case:
    """Regions in, around and across the image, of any orientation, on a grid of eighths."""
    shape = (draw(1, 3), draw(1, 3), draw(1, 20), draw(1, 20))
    count = draw(0, 4)
    x = np.random.default_rng(draw(0, 2**32 - 1)).standard_normal(shape).astype(dtype)
    corners = np.array([draw(-40, 240) / 8 for _ in range(4 * count)], dtype).reshape(count, 4)
    images = np.array([draw(0, shape[0] - 1) for _ in range(count)], np.int64)
    attributes: dict[str, Any] = {"spatial_scale": _pick(draw, (1.0, 0.5, 0.0625, 2.0))}
    if op == "MaxRoiPool":
        attributes["pooled_shape"] = _some(draw, 2, 1, 6)
        return Case(op, (x, np.column_stack([images.astype(dtype), corners])), attributes)
    attributes |= {
        "mode": _pick(draw, ("avg", "max")),
        "output_height": draw(1, 5),
        "output_width": draw(1, 5),
        "sampling_ratio": draw(0, 3),
        "coordinate_transformation_mode": _pick(draw, ("half_pixel", "output_half_pixel")),
    }
    return Case(op, (x, corners, images), attributes)


# Comparison


def outcome(peer: Peer, case: Case) -> Outputs | None:
    """Return a peer's outputs, None where it refuses."""
    try:
        return peer.run(case)
    except RefusedError:
        return None


def difference(case: Case, mine: Outputs | None, theirs: Outputs | None) -> str | None:
    """Say how two outcomes differ, None where they agree: bitwise, or for sums within a bound."""
    if mine is None or theirs is None:
        who = "gpupool" if mine is None else "the peer"
        return None if mine is theirs else f"only {who} refuses"
    for name, a, b in zip(("y", "indices"), mine, theirs, strict=False):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
        same = tolerance.canonical(a) == tolerance.canonical(b)
        if name == "y" and not same.all():
            with np.errstate(all="ignore"):
                same |= np.abs(a.astype(np.float64) - b.astype(np.float64)) <= _bound(case, a)
        if not same.all():
            place = tuple(int(i) for i in np.argwhere(~same)[0])
            return f"{name}{list(place)}: {a[place]} against {b[place]}"
    return None


def _bound(case: Case, y: Array) -> Any:
    """How far two correct sums may be apart, 0 for maxima; u is the unit roundoff.

    Average: each of two sums of n terms, in any order, is within gamma(n) of the mean magnitude.
    Lp: n powers and additions give a relative error of gamma(n + 2), which the root divides by p;
    1 / p rounded to a float moves the root by |ln y| u. RoiAlign: a coordinate of up to ``reach``
    is off by at most 8 roundings, which moves a value by as much times the slope, twice the
    greatest magnitude, on two axes.
    """
    if case.op.startswith(("Max", "GlobalMax")):
        return 0.0
    u = tolerance.unit(y.dtype)
    taps = prod(min(k, size) for k, size in zip(case.kernel, case.spatial, strict=True))
    if case.op.endswith("AveragePool"):
        magnitudes = Case(case.op, (np.abs(case.x.astype(np.float64)),), case.attributes)
        return 2 * float(gamma(taps + 1, u)) * ours.run(magnitudes)[0]
    if case.op.endswith("LpPool"):
        inside = float(gamma(taps + 2, u)) / case.attributes.get("p", 2)
        return 2 * y.astype(np.float64) * (inside + float(u) * (2 + np.abs(np.log(y))))
    corners = case.inputs[1] * case.attributes.get("spatial_scale", 1.0)
    reach = float(np.abs(corners).max(initial=0)) + max(case.spatial) + 1
    samples = max(case.attributes.get("sampling_ratio", 0), reach) ** 2
    return 2 * float(u) * float(np.abs(case.x).max()) * (8 * reach * 2 * 2 + samples + 8)


def verdict(peer: Peer, case: Case) -> tuple[str, str]:
    """Compare gpupool with a peer: "equal", "refused" by both, "explained" by a row, "differs"."""
    mine, theirs = outcome(ours, case), outcome(peer, case)
    why = difference(case, mine, theirs)
    if why is None:
        return ("refused", "by both") if mine is None else ("equal", "")
    for row in KNOWN:
        if row.peer == peer.name and row.touches(case):
            return "explained", row.name
    return "differs", f"{case}: {why}"


# Known differences


@dataclass(frozen=True)
class Known:
    """A difference: whose, which cases it touches, its smallest example and the right outcome.

    ``right`` holds the flat outputs of gpupool, None where it refuses.
    """

    peer: str
    name: str
    reason: str
    touches: Callable[[Case], bool]
    example: Case
    right: tuple[list[float], ...] | None


def _line(
    op: str,
    values: int | Sequence[float],
    outputs: int = 1,
    opset: int | None = None,
    dtype: str = "float32",
    **attributes: Any,
) -> Case:
    """Return a case with one spatial axis: the values, or 1 .. L."""
    x = np.arange(1, values + 1) if isinstance(values, int) else np.array(values)
    for name in {"strides", "dilations", "kernel_shape"} & attributes.keys():
        attributes[name] = [attributes[name]]
    return Case(op, (x.astype(dtype).reshape(1, 1, -1),), attributes, outputs, opset)


def _two_planes(op: str, outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, (np.arange(1, 9, dtype=np.float32).reshape(1, 2, 4),), attributes, outputs)


def _too_large(case: Case) -> bool:
    """Whether a window exceeds the padded input, by a stride or more under ceil_mode."""
    n = len(case.spatial)
    overhang = case.ceil_mode and case.auto_pad == "NOTSET"
    return any(
        (kernel - 1) * dilation + 1 - (size + begin + end) >= (stride if overhang else 1)
        for size, kernel, dilation, stride, begin, end in zip(
            case.spatial,
            case.kernel,
            case.attribute("dilations", 1),
            case.attribute("strides", 1),
            case.pads[:n],
            case.pads[n:],
            strict=True,
        )
    )


def _tapless(case: Case) -> bool:
    """Whether some window of a MaxPool lies between the input's elements, all in the padding."""
    if case.op != "MaxPool" or _too_large(case):
        return False
    problem = resolve("MaxPool", case.x.shape, case.x.dtype, **case.attributes)
    assert isinstance(problem, PoolProblem)
    return any(not axis.taps(o) for axis in problem.window for o in range(axis.out))


def _is_max(case: Case) -> bool:
    return case.op in ("MaxPool", "GlobalMaxPool")


def _has_nan(case: Case) -> bool:
    return _is_max(case) and bool((case.x != case.x).any())


def _has_minus_inf(case: Case) -> bool:
    return _is_max(case) and case.x.dtype == np.float32 and bool((case.x == -np.inf).any())


def _power_sum(case: Case) -> float | None:
    """Log of the greatest power times the taps: no sum of the case is above it."""
    finite = np.abs(case.x[np.isfinite(case.x)]).astype(np.float64)
    if not case.op.endswith(("AveragePool", "LpPool")) or not finite.any():
        return None
    p = case.attributes.get("p", 1 if case.op.endswith("AveragePool") else 2)
    return float(np.log(finite.max())) * p + log(prod(case.kernel))


def _overflows(case: Case) -> bool:
    bound = _power_sum(case)
    return bound is not None and bound > log(np.finfo(case.x.dtype).max)


def _vanishes(case: Case) -> bool:
    bound = _power_sum(case)
    return bound is not None and bound < log(np.finfo(case.x.dtype).tiny)


def _same(case: Case) -> bool:
    return case.auto_pad.startswith("SAME")


def _turned_over(case: Case) -> bool:
    """Whether a region of RoiAlign has a negative area, and a number of samples to match."""
    if case.op != "RoiAlign" or case.attributes.get("sampling_ratio", 0):
        return False
    x1, y1, x2, y2 = case.inputs[1].T
    return bool(((x2 - x1) * (y2 - y1) < 0).any())


def not_drawn(_case: Case) -> bool:
    """Mark a row that no random case reaches."""
    return False


NAN, INF = float("nan"), float("inf")

KNOWN = (
    Known(
        "onnxruntime",
        "window larger than the padded input",
        "C++ division truncates towards zero, so a negative size becomes one output",
        _too_large,
        _line("MaxPool", 4, kernel_shape=5, strides=2),
        None,
    ),
    Known(
        "onnxruntime",
        "pad of the kernel's size",
        "refused, though the text allows any pad of 0 and above",
        lambda case: any(p >= k for p, k in zip(case.pads, case.kernel * 2, strict=True)),
        _line("MaxPool", 2, kernel_shape=1, pads=[1, 0]),
        ([-INF, 1, 2],),
    ),
    Known(
        "onnxruntime",
        "SAME with dilation",
        "the total pad is computed from the kernel instead of its extent",
        lambda case: _same(case) and max(case.attribute("dilations", 1)) > 1,
        _line("MaxPool", 11, kernel_shape=3, dilations=2, auto_pad="SAME_UPPER"),
        ([3, 4, 5, 6, 7, 8, 9, 10, 11, 10, 11],),
    ),
    Known(
        "onnxruntime",
        "SAME with a stride above the kernel",
        "the total pad becomes negative instead of 0 and shifts the windows",
        lambda case: (
            _same(case)
            and any(s > k for s, k in zip(case.attribute("strides", 1), case.kernel, strict=True))
        ),
        _line("AveragePool", 12, kernel_shape=2, strides=4, auto_pad="SAME_UPPER"),
        ([1.5, 5.5, 9.5],),
    ),
    Known(
        "onnxruntime",
        "VALID with ceil_mode",
        "rounds up where the text's two formulas for VALID are equal",
        lambda case: case.auto_pad == "VALID" and case.ceil_mode,
        _line("MaxPool", 11, kernel_shape=2, strides=2, auto_pad="VALID", ceil_mode=1),
        ([2, 4, 6, 8, 10],),
    ),
    Known(
        "onnxruntime",
        "NaN in a maximum",
        "comparisons with NaN are false, so the result depends on the order and the code path",
        _has_nan,
        _line("MaxPool", [1, NAN, NAN, 3], 2, kernel_shape=2, strides=2),
        ([NAN, NAN], [1, 2]),
    ),
    Known(
        "onnxruntime",
        "-inf in a float32 maximum",
        "without Indices the scan starts from the least finite number",
        _has_minus_inf,
        _line("MaxPool", [-INF, -INF], kernel_shape=2),
        ([-INF],),
    ),
    Known(
        "onnxruntime",
        "maximum of no tap",
        "gives the least finite number, and with several planes their offset less 1 as the index",
        _tapless,
        _line("MaxPool", 2, 2, kernel_shape=2, dilations=3, pads=[1, 1]),
        ([-INF], [-1]),
    ),
    Known(
        "onnxruntime",
        "sum that overflows on the way",
        "the mean or norm is representable, the float32 sum before it is not",
        _overflows,
        _line("AveragePool", [3e38, 3e38], kernel_shape=2),
        ([3e38],),
    ),
    Known(
        "onnxruntime",
        "powers that vanish on the way",
        "the norm is representable, the float32 squares before it are not",
        _vanishes,
        _line("LpPool", [3e-30, 4e-30], kernel_shape=2),
        ([5e-30],),
    ),
    Known(
        "onnxruntime",
        "region turned over",
        "a negative number of samples fails as an integer overflow instead of adding nothing",
        _turned_over,
        Case(
            "RoiAlign",
            (
                np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4),
                np.array([[3, 0, 1, 1]], np.float32),
                np.array([0]),
            ),
        ),
        ([0],),
    ),
    Known(
        "torch",
        "pad above half the kernel",
        "refused, though the text allows any pad of 0 and above",
        not_drawn,
        _line("MaxPool", 2, kernel_shape=1, pads=[1, 1]),
        ([-INF, 1, 2, -INF],),
    ),
    Known(
        "torch",
        "norm of the overhang under ceil_mode",
        "a mean times the whole kernel, though the last window has fewer taps",
        lambda case: case.op == "LpPool" and case.ceil_mode,
        _line("LpPool", 6, kernel_shape=3, strides=2, p=1, ceil_mode=1),
        ([6, 12, 11],),
    ),
    Known(
        "torch",
        "odd p without absolute values",
        "x ** p instead of |x| ** p: 1 - 8 has no cube root there",
        not_drawn,
        _line("LpPool", [1, -2], kernel_shape=2, p=3),
        ([9 ** (1 / 3)],),
    ),
    Known(
        "torch",
        "index of a NaN",
        "each NaN replaces the one before, so the last is named",
        lambda case: case.outputs == 2 and _has_nan(case),
        _line("MaxPool", [1, NAN, NAN, 3], 2, kernel_shape=4),
        ([NAN], [1]),
    ),
    Known(
        "torch",
        "index of no tap",
        "names an element outside the window",
        lambda case: case.outputs == 2 and _tapless(case),
        _line("MaxPool", 2, 2, kernel_shape=2, dilations=3, pads=[1, 1]),
        ([-INF], [-1]),
    ),
    Known(
        "torch",
        "sum that overflows on the way",
        "the mean or norm is representable, the sum before it is not",
        _overflows,
        _line("LpPool", [3e20, 4e20], kernel_shape=2),
        ([5e20],),
    ),
    Known(
        "torch",
        "average in 3-D of a kernel larger than the input",
        "refused, also where the padded input is large enough",
        lambda case: (
            case.op == "AveragePool"
            and len(case.spatial) == 3
            and any(k > size for k, size in zip(case.kernel, case.spatial, strict=True))
        ),
        Case(
            "AveragePool",
            (np.ones((1, 1, 1, 1, 1), np.float32),),
            {"kernel_shape": [2, 1, 1], "pads": [1, 0, 0, 0, 0, 0]},
        ),
        ([1],),
    ),
    Known(
        "onnx reference",
        "average of the overhang",
        "splits the overhang of ceil_mode between both ends",
        not_drawn,
        _line("AveragePool", 5, kernel_shape=4, strides=3, ceil_mode=1),
        ([2.5, 4.5],),
    ),
    Known(
        "onnx reference",
        "SAME_LOWER",
        "one output too few",
        not_drawn,
        _line("MaxPool", 5, kernel_shape=2, strides=2, auto_pad="SAME_LOWER"),
        ([1, 3, 5],),
    ),
    Known(
        "onnx reference",
        "AveragePool-1 with pads",
        "counts the pads that version 1 excludes",
        not_drawn,
        _line("AveragePool", 4, opset=1, kernel_shape=3, pads=[1, 1]),
        ([1.5, 2, 3, 3.5],),
    ),
    Known(
        "onnx reference",
        "norm of the overhang under ceil_mode",
        "a mean times the whole kernel, though the last window has fewer taps",
        not_drawn,
        _line("LpPool", 6, kernel_shape=3, strides=2, p=1, ceil_mode=1),
        ([6, 12, 11],),
    ),
    Known(
        "onnx reference",
        "Indices of the second plane",
        "forgets the offset of the plane where strides and dilations are 1",
        not_drawn,
        _two_planes("MaxPool", 2, kernel_shape=[2], strides=[1], dilations=[1]),
        ([2, 3, 4, 6, 7, 8], [1, 2, 3, 5, 6, 7]),
    ),
    Known(
        "onnx reference",
        "GlobalMaxPool in 1-D",
        "reduces the axes of a 4-dimensional input whatever the rank",
        not_drawn,
        _two_planes("GlobalMaxPool"),
        ([4, 8],),
    ),
)


# Command


_DESCRIPTION = "Compare gpupool with another implementation on random cases."


def draw_any(draw: Draw, peer: Peer) -> Case:
    return draw_case(draw, peer, _pick(draw, sorted(peer.dtypes)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=_DESCRIPTION)
    parser.add_argument("--n", type=int, default=5000, help="number of cases (5000)")
    parser.add_argument("--seed", type=int, default=0)
    random_peers = [name for name, peer in PEERS.items() if peer.dtypes]
    parser.add_argument("--peer", choices=random_peers, default="onnxruntime")
    args = parser.parse_args(arguments)
    peer, draw = PEERS[args.peer], random.Random(args.seed).randint
    counts = Counter(verdict(peer, draw_any(draw, peer)) for _ in range(args.n))
    total = Counter[str]()
    for (kind, _), count in counts.items():
        total[kind] += count
    print(
        f"{args.n} random cases, gpupool against {peer.name}: {total['equal']} equal, "
        f"{total['refused']} refused by both, {total['explained']} explained, "
        f"{total['differs']} unexplained"
    )
    for (kind, what), count in sorted(counts.items()):
        if kind in ("explained", "differs"):
            print(f"{count:6} {kind}: {what}")
    return 1 if total["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
