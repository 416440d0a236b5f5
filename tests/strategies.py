"""Random legal calls of every operator: geometry, dtype, layout, memory and values.

Values come from a seed and a palette rather than from Hypothesis element by element: a hundred
times faster, and a failing example still names everything that made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tests import reference

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "uint8")
EVERY = FLOATS + INTEGERS

MOST = {1: 40, 2: 9, 3: 5, 4: 3}
"""The greatest spatial size for a number of spatial axes."""

between = cache(st.integers)
among = cache(st.sampled_from)
either = st.booleans()
"""Made once for each range: Hypothesis takes longer to examine a new strategy than to draw."""


@dataclass(frozen=True)
class Case:
    """One legal call: a public function, its arrays and its other arguments."""

    function: str
    arrays: tuple[np.ndarray[Any, Any], ...]
    arguments: dict[str, Any]

    def call(self, backend: Any, **more: Any) -> tuple[Any, ...]:
        """Call the function on a backend; return its results, always as a tuple."""
        function = getattr(backend, self.function)
        arrays = (backend.array(array) for array in self.arrays)
        result = function(*arrays, **self.arguments, **more)
        return result if isinstance(result, tuple) else (result,)

    def run(self, backend: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Call the function on a backend; return its results as NumPy arrays."""
        return tuple(backend.numpy(array) for array in self.call(backend))

    @cached_property
    def right(self) -> Any:
        """What the function of the same name in tests/reference.py gives, however many ask."""
        return getattr(reference, self.function)(*self.arrays, **self.arguments)

    @cached_property
    def judged(self) -> set[Any]:
        """The results that tests/test_oracle.py has found right: kernels mostly give the same."""
        return set()

    def on(self, *arrays: np.ndarray[Any, Any], **arguments: Any) -> Case:
        """Return the same call on other arrays, with some arguments changed."""
        return Case(self.function, arrays, self.arguments | arguments)


# Values


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _special(dtype: np.dtype[Any]) -> list[float]:
    info = ml_dtypes.finfo(dtype)
    small = [float(info.smallest_subnormal), 3 * float(info.smallest_subnormal), float(info.tiny)]
    large = [float(info.max), float(info.max) / 2]
    signed = [0.0, 1.0, *small, *large, math.inf]
    return [math.nan, *signed, *(-value for value in signed)]


def _bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    raw = rng.bytes(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape)


def _chosen(rng: np.random.Generator, shape: tuple[int, ...], values: list[float]) -> Any:
    return np.array(values)[rng.integers(0, len(values), shape)]


def two_integers(dtype: str) -> list[tuple[Case, np.ndarray[Any, Any]]]:
    """Return windows of any two elements of 8 bits, in a row and in a column, with their maxima.

    Rows of 512 and 256 are stored by wide vectors, those of 254 by two elements.
    """
    every = np.arange(256, dtype=np.uint8).view(dtype)
    plane = np.stack(np.broadcast_arrays(every[:, None], every), -1).reshape(1, 1, 256, 512)
    x = np.concatenate([plane, plane[..., ::-1]], axis=1)
    greater = np.maximum(x, np.concatenate([x[..., 1:], x[..., -1:]], axis=-1))
    found = [(Case("max_pool", (x,), {"kernel_shape": (1, 2), "pads": (0, 0, 0, 1)}), greater)]
    for width in (256, 254):
        down, right = (array.swapaxes(2, 3)[..., :width].copy() for array in (x, greater))
        columns = {"kernel_shape": (2, 1), "pads": (0, 0, 1, 0)}
        found.append((Case("max_pool", (down,), columns), right))
    return found


Palette = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], Any]

FINITE: dict[str, Palette] = {
    "ties": lambda rng, shape, _: rng.integers(0, 4, shape),
    "normal": lambda rng, shape, _: rng.standard_normal(shape) * 10,
    "zeros": lambda rng, shape, _: _chosen(rng, shape, [0.0, -0.0]),
    "extremes": lambda rng, shape, dtype: _chosen(
        rng, shape, [v for v in _special(dtype) if math.isfinite(v)]
    ),
    "near the maximum": lambda rng, shape, dtype: (
        rng.uniform(0.5, 1, shape) * float(ml_dtypes.finfo(dtype).max)
    ),
    "subnormal": lambda rng, shape, dtype: (
        rng.integers(-9, 9, shape) * float(ml_dtypes.finfo(dtype).smallest_subnormal)
    ),
}
"""Values whose mean and norm exist; floats only, except "ties"."""

WITH_SPECIAL: dict[str, Palette] = {
    "special": lambda rng, shape, dtype: _chosen(rng, shape, _special(dtype)),
    "a few NaN": lambda rng, shape, _: np.where(
        rng.random(shape) < 0.1, math.nan, rng.integers(-4, 4, shape)
    ),
    "-inf and less": lambda rng, shape, _: _chosen(rng, shape, [-math.inf, -math.inf, math.nan]),
    "any bits": _bits,
}


SEEDS = between(0, 2**16)


def _values(
    draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...], finite: bool
) -> np.ndarray[Any, Any]:
    palettes = FINITE if finite else FINITE | WITH_SPECIAL
    if dtype.kind in "iu":
        palettes = {"ties": FINITE["ties"], "any bits": _bits}
    palette = palettes[draw(among(tuple(sorted(palettes))))]
    return np.asarray(palette(np.random.default_rng(draw(SEEDS)), shape, dtype)).astype(dtype)


# Memory


def _strided(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.zeros([2 * size + 1 for size in x.shape], x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def _reversed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    backwards = (slice(None, None, -1),) * x.ndim
    return np.ascontiguousarray(x[backwards])[backwards]


def offset(x: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    """Copy to so many bytes behind an address that vectors are aligned to."""
    raw = np.zeros(x.nbytes + by + 16, np.uint8)
    raw = raw[-raw.ctypes.data % 16 + by :][: x.nbytes]
    view = raw.view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def _odd_strides(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give axes of size 1 strides that lead nowhere: they are never taken."""
    x = np.ascontiguousarray(x)
    strides = [12345 if size == 1 else s for size, s in zip(x.shape, x.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(x, x.shape, strides)


MEMORY: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "contiguous": np.ascontiguousarray,
    "Fortran-ordered": np.asfortranarray,
    "strided": _strided,
    "negative strides": _reversed,
    "broadcast": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "broadcast over N": lambda x: np.broadcast_to(x[:1], x.shape),
    "unaligned": partial(offset, by=1),
    **{f"{by} bytes off": partial(offset, by=by) for by in (2, 4, 8)},
    "size-1 axes with odd strides": _odd_strides,
    "another order of axes": lambda x: np.ascontiguousarray(x.swapaxes(1, -1)).swapaxes(1, -1),
}
"""Ways to lay an array out; all but "broadcast", which repeats, keep its values."""


LAYOUTS = among(tuple(sorted(MEMORY)))
SAME_VALUES = among(tuple(sorted(name for name in MEMORY if not name.startswith("broadcast"))))


# Geometry


@dataclass(frozen=True)
class Axis:
    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int


@cache
@st.composite
def axes(draw: st.DrawFn, most: int, auto_pad: str, ceil_mode: bool) -> Axis:
    """Draw one spatial axis whose window fits: at least one output."""
    size = draw(between(1, most))
    stride, dilation = draw(between(1, 4)), draw(among((1, 1, 2, 3, 7)))
    begin = end = 0
    if auto_pad == "NOTSET" and draw(either):
        wide = draw(among((4, 4, most)))  # as far as whole windows in the padding
        begin, end = draw(between(0, wide)), draw(between(0, wide))
    overhang = stride - 1 if ceil_mode and auto_pad == "NOTSET" else 0
    room = size + begin + end + overhang
    longest = most if auto_pad.startswith("SAME") else (room - 1) // dilation + 1
    return Axis(size, draw(between(1, longest)), stride, dilation, begin, end)


def _spelled(draw: st.DrawFn, numbers: list[int], default: int | None) -> Any:
    """Write a list of integers as ONNX does or shorter: one integer for all, or nothing."""
    spellings: list[Any] = [numbers, tuple(numbers)]
    if len(set(numbers)) == 1:
        spellings.append(numbers[0])
        if numbers[0] == default:
            spellings.append(None)
    return spellings[draw(between(0, len(spellings) - 1))]


@cache
@st.composite
def geometries(draw: st.DrawFn, n: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw spatial sizes and the attributes of a window over them."""
    auto_pad = draw(among(("NOTSET",) * 3 + ("SAME_UPPER", "SAME_LOWER", "VALID")))
    ceil_mode = draw(either)
    along = [draw(axes(MOST[n], auto_pad, ceil_mode)) for _ in range(n)]
    pads = [axis.begin for axis in along] + [axis.end for axis in along]
    window = {
        "kernel_shape": _spelled(draw, [axis.kernel for axis in along], None),
        "strides": _spelled(draw, [axis.stride for axis in along], 1),
        "dilations": _spelled(draw, [axis.dilation for axis in along], 1),
        "pads": _spelled(draw, pads, 0),
        "auto_pad": auto_pad,
        "ceil_mode": ceil_mode,
    }
    return tuple(axis.size for axis in along), window


def laid_out(batch: int, channels: int, spatial: tuple[int, ...], last: bool) -> tuple[int, ...]:
    return (batch, *spatial, channels) if last else (batch, channels, *spatial)


@st.composite
def inputs(
    draw: st.DrawFn, dtypes: tuple[str, ...], spatial: tuple[int, ...], last: bool, finite: bool
) -> np.ndarray[Any, Any]:
    # Channels last kernels take vectors of them.
    channels = draw(among((1, 2, 3, 4, 8)) if last else between(1, 3))
    shape = laid_out(draw(between(1, 3)), channels, spatial, last)
    dtype = dtype_of(draw(among(dtypes)))
    return MEMORY[draw(LAYOUTS)](_values(draw, dtype, shape, finite))


spatial_axes = among((1, 1, 2, 2, 3, 4))


# The operators


@st.composite
def max_pools(draw: st.DrawFn, return_indices: bool | None = None) -> Case:
    spatial, window = draw(geometries(draw(spatial_axes)))
    last = draw(either)
    indices = draw(either) if return_indices is None else return_indices
    arguments = window | {
        "return_indices": indices,
        "storage_order": 0 if last else draw(between(0, 1)),
        "channels_last": last,
    }
    return Case("max_pool", (draw(inputs(EVERY, spatial, last, False)),), arguments)


@st.composite
def average_pools(draw: st.DrawFn, dtypes: tuple[str, ...] = FLOATS, finite: bool = False) -> Case:
    spatial, window = draw(geometries(draw(spatial_axes)))
    last = draw(either)
    x = draw(inputs(dtypes, spatial, last, finite))
    arguments = window | {"count_include_pad": draw(either), "channels_last": last}
    if x.dtype.kind in "iu":
        arguments["dtype"] = draw(among((None, *FLOATS)))
    return Case("average_pool", (x,), arguments)


NORMS = (1, 2, 3, 1.0, 2.0, 0.005, 0.01, 0.3, 0.5, 1.5, 2.1, 7.5, 100, 1000)


@st.composite
def lp_pools(draw: st.DrawFn, finite: bool = False) -> Case:
    spatial, window = draw(geometries(draw(spatial_axes)))
    last = draw(either)
    arguments = window | {"p": draw(among(NORMS)), "channels_last": last}
    return Case("lp_pool", (draw(inputs(FLOATS, spatial, last, finite)),), arguments)


@st.composite
def global_pools(draw: st.DrawFn, kind: str) -> Case:
    n, last = draw(spatial_axes), draw(either)
    spatial = tuple(draw(between(1, MOST[n])) for _ in range(n))
    x = draw(inputs(FLOATS if kind == "lp" else EVERY, spatial, last, False))
    arguments: dict[str, Any] = {"channels_last": last}
    if kind == "lp":
        arguments["p"] = draw(among(NORMS))
    if kind == "average" and x.dtype.kind in "iu":
        arguments["dtype"] = draw(among((None, *FLOATS)))
    return Case(f"global_{kind}_pool", (x,), arguments)


@st.composite
def max_unpools(draw: st.DrawFn) -> Case:
    n, last = draw(spatial_axes), draw(either)
    spatial, kernel, strides, begins, ends = [], [], [], [], []
    for _ in range(n):
        size, k, s = (draw(between(1, most)) for most in (min(5, MOST[n]), 4, 4))
        room = (size - 1) * s + k - 1
        begin = draw(between(0, min(room, 2)))
        spatial.append(size)
        kernel.append(k)
        strides.append(s)
        begins.append(begin)
        ends.append(draw(between(0, min(room - begin, 2))))
    sizes = tuple((spatial[i] - 1) * strides[i] - begins[i] - ends[i] + kernel[i] for i in range(n))
    x = draw(inputs(FLOATS, tuple(spatial), last, False))
    batch, channels = x.shape[0], x.shape[-1 if last else 1]
    arguments: dict[str, Any] = {
        "kernel_shape": _spelled(draw, kernel, None),
        "strides": _spelled(draw, strides, 1),
        "pads": _spelled(draw, begins + ends, 0),
        "channels_last": last,
    }
    if draw(either):
        sizes = tuple(size + draw(between(0, 2)) for size in sizes)
        arguments["output_shape"] = laid_out(batch, channels, sizes, last)
    room = batch * channels * math.prod(sizes)
    rng = np.random.default_rng(draw(SEEDS))
    few = draw(among((room, min(room, 3))))  # a few positions: many repeat
    indices = MEMORY[draw(LAYOUTS)](rng.integers(0, few, x.shape))
    return Case("max_unpool", (x, indices), arguments)


SCALES = (1.0, 0.5, 0.25, 2.0, 0.75)
"""Exact in every float dtype, and so are their products with the corners."""


def _corners(draw: st.DrawFn, dtype: np.dtype[Any], rois: int) -> np.ndarray[Any, Any]:
    """Draw corners in quarters, within and around an image of up to nine pixels."""
    rng = np.random.default_rng(draw(SEEDS))
    first = rng.integers(-8, 40, (rois, 2)) / 4
    size = rng.integers(-4, 40, (rois, 2)) / 4
    return np.concatenate([first, first + size], axis=1).astype(dtype)


@cache
@st.composite
def _regions(draw: st.DrawFn, finite: bool) -> tuple[Any, Any, Any, bool]:
    last = draw(either)
    spatial = (draw(between(1, 9)), draw(between(1, 9)))
    x = draw(inputs(FLOATS, spatial, last, finite))
    rois = draw(between(0, 4))
    seed = draw(SEEDS)
    batch = np.random.default_rng(seed).integers(0, x.shape[0], rois)
    return x, _corners(draw, x.dtype, rois), batch, last


@st.composite
def max_roi_pools(draw: st.DrawFn) -> Case:
    x, corners, batch, last = draw(_regions(False))
    rois = np.concatenate([batch[:, None].astype(x.dtype), corners], axis=1)
    arguments = {
        "pooled_shape": (draw(between(1, 5)), draw(between(1, 5))),
        "spatial_scale": draw(among((*SCALES, 0.3, 0.0625))),
        "channels_last": last,
    }
    return Case("max_roi_pool", (x, MEMORY[draw(SAME_VALUES)](rois)), arguments)


@st.composite
def roi_aligns(draw: st.DrawFn) -> Case:
    x, corners, batch, last = draw(_regions(True))
    arguments = {
        "mode": draw(among(("avg", "max"))),
        "output_height": draw(between(1, 4)),
        "output_width": draw(between(1, 4)),
        "sampling_ratio": draw(between(0, 3)),
        "spatial_scale": draw(among(SCALES)),
        "coordinate_transformation_mode": draw(among((None, "half_pixel", "output_half_pixel"))),
        "channels_last": last,
    }
    rois = MEMORY[draw(SAME_VALUES)](corners)
    return Case("roi_align", (x, rois, batch), arguments)


def pools() -> st.SearchStrategy[Case]:
    """Any operator with a window, sliding or global."""
    return st.one_of(
        max_pools(),
        average_pools(dtypes=EVERY),
        lp_pools(),
        *(global_pools(kind) for kind in ("max", "average", "lp")),
    )


def calls() -> st.SearchStrategy[Case]:
    """Any operator at all."""
    return st.one_of(pools(), max_unpools(), max_roi_pools(), roi_aligns())
