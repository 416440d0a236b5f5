"""The user's own comparison: random legal calls, a device against the oracle, it against others.

A ``Call`` is plain data, arrays included: they follow from a seed. So its ``repr`` is the whole of
it, and the line that ``reproduce`` prints runs anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan, prod
from typing import Any

import numpy as np

from gpupool import device, opset, tolerance
from gpupool.arrays import Array
from gpupool.dtypes import DTYPES, find, finfo
from gpupool.errors import GpupoolError
from gpupool.ops import FUNCTIONS
from gpupool.peers import PEERS, Case, RefusedError, missing, unreliable
from gpupool.placement import on_gpu
from gpupool.problem import Problem, UnpoolProblem, laid_out, resolve
from gpupool.window import AUTO_PADS

Draw = np.random.Generator


# Values and memory


def _special(dtype: np.dtype[Any]) -> list[float]:
    info = finfo(dtype)
    tiny = float(info.smallest_subnormal)
    positive = [0.0, 1.0, tiny, 3 * tiny, float(info.tiny), float(info.max), inf]
    return [nan, *positive, *(-value for value in positive)]


def _ties(draw: Draw, shape: tuple[int, ...], _: np.dtype[Any]) -> Array:
    return draw.integers(0, 4, shape)


def _normal(draw: Draw, shape: tuple[int, ...], _: np.dtype[Any]) -> Array:
    return np.round(draw.standard_normal(shape) * 640) / 64


def _full_range(draw: Draw, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        return draw.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, endpoint=True)
    return draw.uniform(-1, 1, shape) * float(finfo(dtype).max)


def _subnormal(draw: Draw, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return draw.integers(-9, 9, shape) * float(finfo(dtype).smallest_subnormal)


def _some_special(draw: Draw, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    special = np.array(_special(dtype))
    chosen = special[draw.integers(0, len(special), shape)]
    return np.where(
        draw.random(shape) < draw.choice((0.02, 0.5)), chosen, _ties(draw, shape, dtype)
    )


VALUES: Mapping[str, Callable[[Draw, tuple[int, ...], np.dtype[Any]], Array]] = {
    "ties": _ties,
    "normal": _normal,
    "full range": _full_range,
    "subnormal": _subnormal,
    "NaN and infinities": _some_special,
}
"""What x holds; the last two for floats only."""

MEMORY: Mapping[str, tuple[Callable[[Array], Array], Callable[[Any], Any]]] = {
    "contiguous": (np.ascontiguousarray, lambda base: base),
    "every other element": (lambda x: np.repeat(x, 2, axis=-1), lambda base: base[..., ::2]),
    "reversed": (lambda x: np.ascontiguousarray(x[..., ::-1]), lambda base: base[..., ::-1]),
    "transposed": (lambda x: np.ascontiguousarray(x.T), lambda base: base.T),
}
"""How x lies in memory: a contiguous array to copy to a device, and the view of it there."""


# A call


@dataclass(frozen=True)
class Call:
    """One legal call of an operator: its attributes, and the seed of its arrays.

    >>> call = Call("MaxPool", (1, 1, 4), "float32", {"kernel_shape": [2]}, seed=7)
    >>> call.arrays()[0], call.run("cpu")
    (array([[[3., 2., 2., 3.]]], dtype=float32), (array([[[3., 2., 3.]]], dtype=float32),))
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: str = "ties"
    memory: str = "contiguous"
    rois: int = 0
    seed: int = 0

    @cached_property
    def problem(self) -> Problem:
        """The resolved call."""
        attributes = dict(self.attributes)
        if "dtype" in attributes:
            attributes["out_dtype"] = attributes.pop("dtype")
        if self.op in ("MaxRoiPool", "RoiAlign"):
            attributes["num_rois"] = self.rois
        return resolve(self.op, self.shape, self.dtype, **attributes)

    def arrays(self) -> tuple[Array, ...]:
        """Return the inputs: x, contiguous, and what follows it."""
        draw, dtype = np.random.default_rng(self.seed), find("dtype", self.dtype).numpy
        with np.errstate(all="ignore"):
            x = np.asarray(VALUES[self.values](draw, self.shape, dtype)).astype(dtype)
        if isinstance(self.problem, UnpoolProblem):
            room = prod(self.problem.outputs[0].shape)
            return x, draw.integers(0, draw.choice((room, min(room, 3))), self.shape)
        if self.op not in ("MaxRoiPool", "RoiAlign"):
            return (x,)
        first, size = draw.integers(-8, 40, (self.rois, 2)), draw.integers(-4, 40, (self.rois, 2))
        corners = np.concatenate([first, first + size], axis=1).astype(dtype) / dtype.type(4)
        images = draw.integers(0, self.shape[0], self.rois)
        if self.op == "RoiAlign":
            return x, corners, images
        return x, np.concatenate([images[:, None].astype(dtype), corners], axis=1)

    def run(self, place: str) -> tuple[Array, ...]:
        """Return the outputs that a place, one of RUNNERS, gives."""
        return RUNNERS[place](self)

    def against(self, place: str) -> Mismatch | None:
        """Compare a place, or a peer by its name, with the oracle; None where they agree.

        Raises RefusedError where a peer is no judge of this call.
        """
        theirs = _ask(self, place) if place in PEERS else self.run(place)
        return _compare(self, place, theirs)

    def __repr__(self) -> str:
        fields = {
            "values": "ties", "memory": "contiguous", "rois": 0, "seed": 0,
        }  # fmt: skip
        given = [repr(self.op), repr(self.shape), repr(self.dtype), repr(dict(self.attributes))]
        given += [
            f"{name}={getattr(self, name)!r}"
            for name, default in fields.items()
            if getattr(self, name) != default
        ]
        return f"Call({', '.join(given)})"


def _on_cpu(call: Call) -> tuple[Array, ...]:
    return _outputs(call, lambda array: array)


def _on_gpu(call: Call) -> tuple[Array, ...]:
    return tuple(device.to_host(y) for y in _outputs(call, device.to_device))


def _outputs(call: Call, put: Callable[[Array], Any]) -> tuple[Any, ...]:
    """Run the public function on arrays that ``put`` brings to their place."""
    prepare, view = MEMORY[call.memory]
    x, *others = call.arrays()
    inputs = (view(put(prepare(x))), *map(put, others))
    result = FUNCTIONS[call.op](*inputs, **call.attributes)
    return result if isinstance(result, tuple) else (result,)


RUNNERS: dict[str, Callable[[Call], tuple[Array, ...]]] = {"cpu": _on_cpu, "gpu": _on_gpu}
"""Where a call may run; "cpu" is the oracle."""


def _ask(call: Call, name: str) -> tuple[Array, ...]:
    peer, case = PEERS[name], _case(call)
    if case is None:
        raise RefusedError("not ONNX")
    if reason := unreliable(peer, case):
        raise RefusedError(reason)
    return peer.run(case)


def _case(call: Call) -> Case | None:
    """Write a call as an ONNX node; None where it uses what ONNX does not have."""
    attributes = {
        name: int(value) if isinstance(value, bool) else value
        for name, value in call.attributes.items()
    }
    outputs = 1 + attributes.pop("return_indices", 0)
    p = attributes.get("p", 2)
    if attributes.pop("channels_last", 0) or "dtype" in attributes or p != int(p):
        return None
    if "p" in attributes:
        attributes["p"] = int(p)
    inputs = call.arrays()
    if "output_shape" in attributes:
        inputs = (*inputs, np.array(attributes.pop("output_shape"), np.int64))
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        attributes.pop("pads", None)
    return Case(call.op, inputs, attributes, outputs)


# Comparison


@dataclass(frozen=True)
class Mismatch:
    """A call whose result at a place is not the oracle's, and where it differs most."""

    call: Call
    place: str
    output: str
    index: tuple[int, ...]
    found: str
    expected: str
    difference: float
    count: int
    size: int

    @property
    def line(self) -> str:
        """One line of Python that shows this mismatch again."""
        return f"from gpupool.verify import Call; print({self.call!r}.against({self.place!r}))"

    def __str__(self) -> str:
        return (
            f"{self.call.op} {self.call.dtype} {self.call.shape} on {self.place}: {self.output} "
            f"differs in {self.count} of {self.size}, most at {list(self.index)}: {self.found} "
            f"instead of {self.expected} (difference {self.difference:g})"
        )


def _compare(call: Call, place: str, theirs: Sequence[Array]) -> Mismatch | None:
    inputs = call.arrays()
    for output, mine, other in zip(call.problem.outputs, call.run("cpu"), theirs, strict=True):
        if (other.shape, other.dtype) != (mine.shape, mine.dtype):
            found, expected = (f"{y.dtype}{list(y.shape)}" for y in (other, mine))
            all_of_it = mine.size, mine.size
            return Mismatch(call, place, output.name, (), found, expected, inf, *all_of_it)
        wrong = ~tolerance.agree(call.problem, inputs, other, mine)
        if wrong.any():
            return _worst(call, place, output.name, mine, other, wrong)
    return None


def _worst(call: Call, place: str, name: str, mine: Array, other: Array, wrong: Array) -> Mismatch:
    with np.errstate(all="ignore"):
        gap = np.abs(other.astype(np.float64) - mine.astype(np.float64))
    gap = np.where(wrong, np.where(np.isnan(gap), inf, gap), -1)
    index = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
    return Mismatch(
        call, place, name, index, str(other[index]), str(mine[index]), float(gap[index]),
        int(wrong.sum()), int(wrong.size),
    )  # fmt: skip


# Random calls


def draw_call(
    draw: Draw, op: str | None = None, dtype: str | None = None, *, plain: bool = False
) -> Call:
    """Return a random legal call, of one operator or dtype where they are given.

    ``plain`` calls are those that other implementations know and compute reliably, mostly.

    >>> draw_call(np.random.default_rng(3), "MaxRoiPool", "float16").op
    'MaxRoiPool'
    """
    takes = _combinations(op, dtype, plain)
    name = _pick(draw, sorted({name for name, _ in takes}))
    kind = _pick(draw, [kind for taken, kind in takes if taken == name])
    integer = find("dtype", kind).numpy.kind in "iu"
    shape, attributes = _DRAWN.get(name, _draw_pool)(draw, name, plain)
    if integer and "Average" in name:
        attributes["dtype"] = _pick(draw, (None, "float64", "float32", "float16", "bfloat16"))
    return Call(
        name, shape, kind, attributes,
        values=_pick(draw, list(VALUES)[: 2 if plain else 3 if integer else None]),
        memory=_pick(draw, list(MEMORY)),
        rois=_int(draw, 1, 6) if name in ("MaxRoiPool", "RoiAlign") else 0,
        seed=_int(draw, 0, 2**31 - 1),
    )  # fmt: skip


def _combinations(op: str | None, dtype: str | None, plain: bool) -> list[tuple[str, str]]:
    """Return the operators and dtypes to draw from; plain: those that a peer has, if any."""
    legal = [
        (name, row.name)
        for name, operator in opset.OPERATORS.items()
        for row in DTYPES
        if row in operator.dtypes and op in (None, name) and dtype in (None, row.name)
    ]
    if not legal:
        raise GpupoolError(f"{op or 'no operator'} does not take {dtype}")
    if not plain:
        return legal
    asked = [PEERS[peer].dtypes for peer in installed()]
    known = [(name, kind) for name, kind in legal if any(kind in d.get(name, ()) for d in asked)]
    return known or legal


def _int(draw: Draw, low: int, high: int) -> int:
    return int(draw.integers(low, high, endpoint=True))


def _pick(draw: Draw, options: Sequence[Any]) -> Any:
    return options[_int(draw, 0, len(options) - 1)]


MOST = ((40, 5000), (12, 90), (6, 20), (3, 7))
"""The greatest spatial size for each number of axes: most calls are small, a few are large."""


NORMS = (1, 2, 3, 0.5, 1.5, 2.1, 7.5, 1000)


def _draw_pool(draw: Draw, op: str, plain: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    axes = _pick(draw, (1, 1, 2, 2, 2, 3, 3 if plain else 4))
    large, last = _int(draw, 0, 5) == 0, _int(draw, 0, 2) == 0 and not plain
    most = MOST[axes - 1][large]
    spatial = [_int(draw, most // 2 if large else 1, most) for _ in range(axes)]
    attributes: dict[str, Any] = {}
    if not op.startswith("Global"):
        attributes = _draw_window(draw, spatial, most if large else 5, plain)
    if op == "MaxPool":
        attributes["return_indices"] = _pick(draw, (False, True))
        attributes["storage_order"] = 0 if last else _int(draw, 0, 1)
    if op == "AveragePool":
        attributes["count_include_pad"] = _pick(draw, (False, True))
    if op.endswith("LpPool"):
        attributes["p"] = _pick(draw, (1, 2, 3, 4) if plain else NORMS)
    attributes["channels_last"] = last
    return laid_out(_int(draw, 1, 3), _int(draw, 1, 5), spatial, last), attributes


def _draw_window(draw: Draw, spatial: Sequence[int], longest: int, plain: bool) -> dict[str, Any]:
    """Return kernel, strides, dilations and pads that leave at least one output on each axis."""
    auto_pad = _pick(draw, ("NOTSET",) * 5 + AUTO_PADS[1:])
    ceil = _pick(draw, (False, True))
    dilated, padded = _int(draw, 0, 3) == 0, auto_pad == "NOTSET" and _int(draw, 0, 1) == 0
    draw_axis = _plain_axis if plain else _any_axis
    along = [
        draw_axis(draw, size, longest, _int(draw, 1, 3) if dilated else 1, padded, auto_pad, ceil)
        for size in spatial
    ]
    kernels, strides, dilations, begins, ends = (list(row) for row in zip(*along, strict=True))
    return {
        "kernel_shape": kernels,
        "strides": strides,
        "dilations": dilations,
        "pads": begins + ends,
        "auto_pad": auto_pad,
        "ceil_mode": ceil,
    }


def _any_axis(
    draw: Draw, size: int, longest: int, dilation: int, padded: bool, auto_pad: str, ceil: bool
) -> tuple[int, ...]:
    """Return kernel, stride, dilation and pads: any that fit, pads above the kernel too."""
    stride = _int(draw, 1, 4)
    begin, end = (_int(draw, 0, 4), _int(draw, 0, 4)) if padded else (0, 0)
    overhang = stride - 1 if ceil and auto_pad == "NOTSET" else 0
    fits = (size + begin + end + overhang - 1) // dilation + 1
    kernel = _int(draw, 1, longest if auto_pad.startswith("SAME") else min(fits, longest))
    return kernel, stride, dilation, begin, end


def _plain_axis(
    draw: Draw, size: int, longest: int, dilation: int, padded: bool, *_: object
) -> tuple[int, ...]:
    """Return kernel, stride, dilation and pads: a window inside the input, pads of up to half."""
    kernel = _int(draw, 1, min((size - 1) // dilation + 1, longest))
    pad = _int(draw, 0, kernel // 2) if padded else 0
    return kernel, _int(draw, 1, 4), dilation, pad, pad


def _draw_unpool(draw: Draw, _op: str, plain: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    axes, last = _int(draw, 1, 3), _int(draw, 0, 2) == 0 and not plain
    batch, channels = _int(draw, 1, 3), _int(draw, 1, 3)
    spatial = [_int(draw, 1, 6) for _ in range(axes)]
    kernels, strides = ([_int(draw, 1, 4) for _ in range(axes)] for _ in range(2))
    pads = [_int(draw, 0, (kernel - 1) // 2) for kernel in kernels * 2]
    attributes = {"kernel_shape": kernels, "strides": strides, "pads": pads, "channels_last": last}
    if _int(draw, 0, 1):
        sizes = [
            (size - 1) * s - begin - end + k + _int(draw, 0, 2)
            for size, s, begin, end, k in zip(
                spatial, strides, pads[:axes], pads[axes:], kernels, strict=True
            )
        ]
        attributes["output_shape"] = list(laid_out(batch, channels, sizes, last))
    return laid_out(batch, channels, spatial, last), attributes


def _draw_roi(draw: Draw, op: str, plain: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    last = _int(draw, 0, 2) == 0 and not plain
    spatial = [_int(draw, 1, 20) for _ in range(2)]
    shape = laid_out(_int(draw, 1, 3), _int(draw, 1, 3), spatial, last)
    attributes: dict[str, Any] = {"channels_last": last}
    if op == "MaxRoiPool":
        attributes["pooled_shape"] = [_int(draw, 1, 6) for _ in range(2)]
        attributes["spatial_scale"] = _pick(draw, (1.0, 0.5, 0.0625, 2.0, 0.3))
        return shape, attributes
    attributes["mode"] = _pick(draw, ("avg", "max"))
    attributes["output_height"], attributes["output_width"] = (_int(draw, 1, 5) for _ in range(2))
    attributes["sampling_ratio"] = _int(draw, 0, 3)
    attributes["spatial_scale"] = _pick(draw, (1.0, 0.5, 0.25, 2.0))
    attributes["coordinate_transformation_mode"] = _pick(draw, ("half_pixel", "output_half_pixel"))
    return shape, attributes


_DRAWN: Mapping[str, Callable[[Draw, str, bool], tuple[tuple[int, ...], dict[str, Any]]]] = {
    "MaxUnpool": _draw_unpool,
    "MaxRoiPool": _draw_roi,
    "RoiAlign": _draw_roi,
}


# The run


@dataclass
class Report:
    """What was compared with the oracle: for each judge, agreements and reasons for silence."""

    seed: int
    calls: int = 0
    agreed: Counter[str] = field(default_factory=Counter)
    silent: dict[str, Counter[str]] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    no_gpu: str | None = None
    """Why no GPU was compared; None where one was to be."""

    def facts(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        found = self.mismatch
        return {
            "seed": self.seed,
            "calls": self.calls,
            "agreed": dict(self.agreed),
            "no_gpu": self.no_gpu,
            "not_asked": {judge: dict(reasons) for judge, reasons in self.silent.items()},
            "mismatch": None if found is None else {
                "place": found.place,
                "call": repr(found.call),
                "output": found.output,
                "index": list(found.index),
                "found": found.found,
                "expected": found.expected,
                "difference": found.difference if found.difference != inf else None,
                "differing": found.count,
                "size": found.size,
                "line": found.line,
            },
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Return what a reader wants to know: a summary, and the mismatch with its own line."""
        judged = [
            f"{judge} agreed on {self.agreed[judge]}"
            + (f" (no judge of {reasons.total()})" if reasons else "")
            for judge, reasons in self.silent.items()
        ]
        if self.no_gpu is not None:
            judged.insert(0, f"no GPU was checked ({self.no_gpu})")
        state = "a mismatch" if self.mismatch else "no mismatch"
        summary = f"{self.calls} random calls, seed {self.seed}: {'; '.join(judged)}; {state}"
        found = [str(self.mismatch), self.mismatch.line] if self.mismatch else []
        return [*found, summary]


def installed() -> list[str]:
    """Return the peers that can be asked."""
    return [name for name, peer in PEERS.items() if not missing(peer)]


def judges(where: str) -> list[list[str]]:
    """Return whom the oracle is compared with for --device auto, cpu or gpu, round by round.

    First the GPU, unless it is not there or not wanted, on any calls; then the installed peers, on
    plain ones.
    """
    rounds = [["gpu"] if on_gpu(where) else [], installed()]
    if not any(rounds):
        raise GpupoolError(
            f"there is nothing to compare the CPU oracle with: no GPU ({_no_gpu(where)}), no "
            f'onnxruntime and no torch; pip install "gpupool[onnx]"'
        )
    return [judged for judged in rounds if judged]


def _no_gpu(where: str) -> str | None:
    """Return why the GPU is no judge for --device auto, cpu or gpu; None where it is one."""
    return "not asked for" if where == "cpu" else device.gpu_reason()


def compare(call: Call, against: Sequence[str], report: Report) -> bool:
    """Compare a call with every judge into the report; False at a mismatch."""
    report.calls += 1
    for judge in against:
        silent = report.silent.setdefault(judge, Counter())
        try:
            report.mismatch = call.against(judge)
        except RefusedError as refusal:
            silent[str(refusal).splitlines()[0]] += 1
        else:
            report.agreed[judge] += report.mismatch is None
        if report.mismatch:
            return False
    return True


def run(
    n: int,
    seed: int,
    where: str = "auto",
    op: str | None = None,
    dtype: str | None = None,
    progress: Callable[[Sequence[int], str], Iterable[int]] = lambda numbers, _: numbers,
) -> Report:
    """Compare n random calls a round, up to the first mismatch; call i is the same for every n.

    >>> run(3, 0, "cpu").mismatch is None if installed() else True
    True
    """
    report = Report(seed, no_gpu=_no_gpu(where))
    for against in judges(where):
        plain = against != ["gpu"]
        for i in progress(range(n), f"oracle against {' and '.join(against)}"):
            call = draw_call(np.random.default_rng((seed, i)), op, dtype, plain=plain)
            if not compare(call, against, report):
                return report
    return report
