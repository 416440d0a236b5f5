"""The cases: named shapes from real networks, as data that tests and every mode share.

A case of a file given with ``--cases`` is one JSON object of the fields of ``Case.from_json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gpupool import validate
from gpupool.arrays import Array
from gpupool.errors import GpupoolError, GpupoolValueError
from gpupool.opset import find
from gpupool.problem import PoolProblem, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from gpupool.window import Axis

FLAGS = {
    "indices": "return_indices",
    "ceil_mode": "ceil_mode",
    "count_include_pad": "count_include_pad",
}
"""Flags of a case file and the arguments that they set."""

FIELDS = {
    "kernel": "kernel_shape",
    "strides": "strides",
    "pads": "pads",
    "dilations": "dilations",
    "p": "p",
    "auto_pad": "auto_pad",
    "out_dtype": "out_dtype",
}
"""Fields of a case file that are arguments of the operator by another or the same name."""

LAYOUTS = ("NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC")
"""What a case file may say of where the channels are: last where the name ends in C."""

DRAWN = 2**20
"""Elements of an input that one stream of random numbers fills."""


@dataclass(frozen=True)
class Case:
    """One problem to time, its goals (fraction of copy, times eager torch), and its set."""

    id: str
    title: str
    op: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]
    goal_copy: float | None = None
    goal_torch: float | None = None
    latency: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Case:
        """Read id, op, dtype, layout, shape, kernel, strides, pads, dilations, p and flags.

        >>> row = {"id": "A", "op": "max", "dtype": "float16", "shape": [1, 8, 4, 4], "kernel": 2}
        >>> Case.from_json(row).problem.outputs[0].shape
        (1, 8, 3, 3)
        """
        try:
            return cls._read(fields)
        except GpupoolError as error:
            raise GpupoolValueError(f"case {fields.get('id')!r}: {error}") from error

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Case:
        known = {"id", "title", "op", "dtype", "layout", "shape", "flags", *FIELDS}
        if unknown := sorted(set(fields) - known):
            raise GpupoolValueError(f"unknown fields {unknown}; known: {sorted(known)}")
        if missing := [name for name in ("id", "op", "dtype", "shape") if name not in fields]:
            raise GpupoolValueError(f"lacks {missing}")
        attributes = {
            name: _frozen(fields[field]) for field, name in FIELDS.items() if field in fields
        }
        for flag in fields.get("flags", ()):
            if flag not in FLAGS:
                raise GpupoolValueError(f"flag {flag!r}, known: {sorted(FLAGS)}")
            attributes[FLAGS[flag]] = True
        case = cls(
            str(fields["id"]),
            str(fields.get("title", fields["id"])),
            find(fields["op"]).name,
            str(fields["dtype"]),
            validate.choice("layout", fields.get("layout", "NCHW"), LAYOUTS),
            validate.shape("shape", fields["shape"]),
            tuple(attributes.items()),
        )
        if not isinstance(case.problem, PoolProblem):
            raise GpupoolValueError(
                f"{case.op} has no window; cases are of the six pooling operators"
            )
        return case

    @property
    def channels_last(self) -> bool:
        """Whether the layout ends in C."""
        return self.layout.endswith("C")

    @property
    def ceil_mode(self) -> bool:
        """Whether output sizes are rounded up."""
        return bool(self.arguments.get("ceil_mode", False))

    @property
    def arguments(self) -> dict[str, Any]:
        """The attributes as keyword arguments of ``resolve`` and ``plan``."""
        return {**dict(self.attributes), "channels_last": self.channels_last}

    @cached_property
    def problem(self) -> PoolProblem:
        """The resolved problem."""
        return self.problem_of(self.shape)

    def problem_of(self, shape: Sequence[int]) -> PoolProblem:
        """Return the problem of this case for another shape."""
        return cast("PoolProblem", resolve(self.op, shape, self.dtype, **self.arguments))

    @property
    def channels_first(self) -> Case:
        """The same work in the only layout that ONNX has."""
        if not self.channels_last:
            return self
        batch, *spatial, channels = self.shape
        return replace(self, layout="NCHW", shape=(batch, channels, *spatial))

    @property
    def least_bytes(self) -> int:
        """Bytes of every position that some window reads, once, and of every output, once."""
        problem = self.problem
        read = prod(positions_read(axis) for axis in problem.window)
        inputs = problem.batch * problem.channels * read * problem.dtype.itemsize
        return inputs + sum(output.nbytes for output in problem.outputs)

    @property
    def outputs(self) -> int:
        """Number of output elements (with Indices, pairs)."""
        return prod(self.problem.outputs[0].shape)

    @property
    def window_text(self) -> str:
        """The window in the short form of the tables, such as k3 s2 p1."""
        if self.op.startswith("Global"):
            return "plane"
        axes = self.problem.window
        fields = {
            "k": [a.kernel for a in axes],
            "s": [a.stride for a in axes],
            "p": [a.pad_begin for a in axes],
            "d": [a.dilation for a in axes],
        }
        plain = {"s": 1, "p": 0, "d": 1}
        words = []
        for letter, numbers in fields.items():
            if set(numbers) == {plain.get(letter)}:
                continue
            one = len(set(numbers)) == 1
            words.append(letter + (str(numbers[0]) if one else ",".join(map(str, numbers))))
        return " ".join(words)

    def input(self, seed: int, shape: Sequence[int] | None = None) -> Array:
        """Return random data: standard normal, or every 8-bit value equally likely.

        Drawn in parts of DRAWN elements, each from a stream of its own, on all processors at once.
        """
        array = np.empty(self.shape if shape is None else tuple(shape), self.problem.dtype.numpy)
        flat = array.reshape(-1)
        parts = [flat[start : start + DRAWN] for start in range(0, flat.size, DRAWN)]
        seeds = np.random.SeedSequence(seed).spawn(len(parts))
        with ThreadPoolExecutor() as threads:
            list(threads.map(_draw, seeds, parts))
        return array


def _draw(seed: np.random.SeedSequence, part: Array) -> None:
    random, dtype = np.random.default_rng(seed), part.dtype
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        part[...] = random.integers(info.min, info.max, part.shape, dtype, endpoint=True)
    else:
        wide = np.float64 if dtype == np.float64 else np.float32
        part[...] = random.standard_normal(part.shape, wide)


def positions_read(axis: Axis) -> int:
    """Return how many positions of an axis some window reads.

    >>> from gpupool.window import Axis
    >>> positions_read(Axis.resolve(10, kernel=1, stride=3))
    4
    """
    read = np.zeros(axis.size, bool)
    starts = np.arange(axis.out) * axis.stride - axis.pad_begin
    for tap in range(axis.kernel):
        positions = starts + tap * axis.dilation
        read[positions[(positions >= 0) & (positions < axis.size)]] = True
        if read.all():
            break
    return int(read.sum())


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _case(
    name: str,
    title: str,
    op: str,
    layout: str,
    dtype: str,
    shape: str,
    goals: str = "",
    **window: Any,
) -> Case:
    copy, torch = ([float(goal) for goal in goals.split()] + [None, None])[:2]
    return Case(
        name,
        title,
        find(op).name,
        dtype,
        layout,
        tuple(map(int, shape.split("x"))),
        tuple(window.items()),
        copy,
        torch,
        name.startswith("L"),
    )


def _k(kernel: Any, stride: Any = 1, pad: Any = 0, **more: Any) -> dict[str, Any]:
    return {"kernel_shape": kernel, "strides": stride, "pads": pad, **more}


_f16, _f32, _f64 = "float16", "float32", "float64"

# fmt: off
CASES: tuple[Case, ...] = (
    _case("W01", "Max, ResNet stem", "max", "NCHW", _f32, "64x64x112x112", "0.93 3", **_k(3, 2, 1)),
    _case("W02", "Max, ResNet stem", "max", "NCHW", _f16, "64x64x112x112", "0.92 6", **_k(3, 2, 1)),
    _case("W03", "Max, ResNet stem", "max", "NHWC", _f16, "64x112x112x64", "0.92 4", **_k(3, 2, 1)),
    _case("W04", "Max + Indices", "max", "NCHW", _f32, "64x64x112x112", "0.90 2.2",
          **_k(3, 2, 1, return_indices=True)),
    _case("W05", "Max, VGG", "max", "NCHW", _f16, "32x64x224x224", "0.94 4.7", **_k(2, 2)),
    _case("W06", "Max, quantised VGG", "max", "NCHW", "int8", "64x64x224x224", "0.92", **_k(2, 2)),
    _case("W07", "Max, Inception", "max", "NCHW", _f16, "256x256x28x28", "0.88 13", **_k(3, 1, 1)),
    _case("W09", "Max, YOLO SPPF", "max", "NCHW", _f16, "64x512x20x20", "0.80 18", **_k(5, 1, 2)),
    _case("W10", "Max, YOLO SPP", "max", "NCHW", _f16, "64x512x20x20", "0.65 55", **_k(13, 1, 6)),
    _case("W12", "Average, PoolFormer", "average", "NCHW", _f16, "128x64x56x56", "0.88 11",
          **_k(3, 1, 1)),
    _case("W14", "GlobalAverage, ResNet-50", "global-average", "NCHW", _f32, "256x2048x7x7",
          "0.97 3"),
    _case("W15", "GlobalAverage, MobileNet", "global-average", "NCHW", _f16, "512x1280x7x7",
          "0.95 5"),
    _case("W17", "GlobalAverage, squeeze-excite", "global-average", "NCHW", _f16, "128x96x112x112",
          "1.00 1.1"),
    _case("W18", "GlobalMax, few outputs", "global-max", "NCHW", _f32, "1x16x4096x2048",
          "0.97 1.1"),
    _case("W19", "GlobalLp p=3, GeM", "global-lp", "NCHW", _f32, "16x2048x32x32", "0.97 4", p=3),
    _case("W20", "Lp p=2", "lp", "NCHW", _f32, "64x64x112x112", "0.92 6", **_k(3, 2, 1, p=2)),
    _case("W21", "Max 1-D, speech", "max", "NCL", _f16, "64x80x16000", "0.90 4.8", **_k(3, 3)),
    _case("W24", "Max 3-D, I3D stem", "max", "NCDHW", _f16, "4x64x32x112x112", "0.92 10",
          **_k((1, 3, 3), (1, 2, 2), (0, 1, 1, 0, 1, 1))),
    _case("W25", "Max 3-D, SlowFast", "max", "NCDHW", _f16, "16x480x16x14x14", "0.80 25",
          **_k(3, 2, 1)),
    _case("W27", "Max 3-D, U-Net", "max", "NCDHW", _f32, "2x32x128x128x128", "0.94 2.8",
          **_k(2, 2)),
    _case("W28", "Average, PSPNet", "average", "NCHW", _f16, "16x2048x60x60", "0.94 1.2",
          **_k(30, 30)),
    _case("W30", "Average, 8K RGB / 2", "average", "NHWC", "uint8", "4x4320x7680x3", "0.90 7",
          **_k(2, 2)),
    _case("W32", "Average, 8K RGB / 8", "average", "NHWC", "uint8", "4x4320x7680x3", "0.95 7",
          **_k(8, 8)),
    _case("W34", "Max filter 31x31", "max", "NCHW", _f32, "1x1x8192x8192", "0.75 250",
          **_k(31, 1, 15)),
    _case("W35", "Average, double", "average", "NCHW", _f64, "16x32x256x256", "0.94 1.2",
          **_k(2, 2)),
    _case("L01", "Max, ResNet stem, batch 1", "max", "NCHW", _f16, "1x64x112x112", **_k(3, 2, 1)),
    _case("L02", "Max, VGG, batch 1", "max", "NCHW", _f16, "1x64x224x224", **_k(2, 2)),
    _case("L03", "GlobalAverage, batch 1", "global-average", "NCHW", _f16, "1x2048x7x7"),
    _case("L04", "Max, YOLO SPPF, batch 1", "max", "NCHW", _f16, "1x512x20x20", **_k(5, 1, 2)),
    _case("L05", "Average, 4K RGB / 4", "average", "NHWC", "uint8", "1x2160x3840x3", **_k(4, 4)),
)
# fmt: on
"""The throughput set (W) and, at batch 1, the latency set (L), numbered as the goals were set."""


def load(path: Path) -> tuple[Case, ...]:
    """Read cases from a JSON file: a list of objects, see ``Case.from_json``."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding, too
        raise GpupoolValueError(f"{path} is not JSON: {error}") from None
    listed = isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
    if not listed:
        raise GpupoolValueError(f"{path} must hold a list of objects, one for each case")
    cases = tuple(Case.from_json(row) for row in rows)
    if len({case.id for case in cases}) != len(cases):
        raise GpupoolValueError(f"{path} names a case twice")
    return cases


def select(
    cases: Sequence[Case],
    only: Sequence[str] = (),
    op: str | None = None,
    dtype: str | None = None,
) -> tuple[Case, ...]:
    """Return the cases named, of one operator, of one dtype; an empty choice is an error.

    >>> [case.id for case in select(CASES, op="lp")]
    ['W20']
    """
    if missing := sorted(set(only) - {case.id for case in cases}):
        known = ", ".join(case.id for case in cases)
        raise GpupoolValueError(f"no case is called {', '.join(missing)}; there are {known}")
    name = find(op).name if op else None
    chosen = tuple(
        case
        for case in cases
        if (not only or case.id in only)
        and (name is None or case.op == name)
        and (dtype is None or case.dtype == dtype)
    )
    if not chosen:
        asked = {"--only": ",".join(only), "--op": op, "--dtype": dtype}
        left = " and ".join(f"{name} {value}" for name, value in asked.items() if value)
        dtypes = ", ".join(sorted({case.dtype for case in cases}))
        raise GpupoolValueError(f"no case is left by {left}; their dtypes are {dtypes}")
    return chosen
