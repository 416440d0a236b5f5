"""Every operator evaluated slowly and obviously, tap by tap, from the text of the semantics.

Nothing here comes from gpupool. Maxima are elements of x, so they are returned as arrays; means and
norms are returned as exact numbers, with what bounds the rounding error of computing them in
floating point (see tests/tolerance.py). The functions take the arguments of gpupool's own.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from typing import Any

import numpy as np

Place = tuple[int, ...]

DECIMAL = decimal.Context(prec=40, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


@dataclass(frozen=True)
class Real:
    """One output as it is in exact arithmetic: a Fraction, or the float inf, -inf or nan.

    ``magnitude`` is what rounding errors are relative to, ``taps`` how many terms were added;
    ``finite`` says that every tap was.
    """

    value: Fraction | float
    magnitude: Fraction = Fraction(0)
    taps: int = 0
    finite: bool = True


# Geometry


@dataclass(frozen=True)
class Line:
    """The windows along one spatial axis: for each output, positions and number of counted taps."""

    valid: tuple[tuple[int, ...], ...]
    counted: tuple[int, ...]


def outputs(
    size: int, kernel: int, stride: int, dilation: int, pads: Place, auto_pad: str, ceil: bool
) -> tuple[int, int, int]:
    """Return the number of outputs of one axis and its pads at the begin and the end."""
    extent = (kernel - 1) * dilation + 1
    begin, end = pads
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = math.ceil(Fraction(size, stride))
        total = max((out - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    elif auto_pad == "VALID":
        out = math.floor(Fraction(size - extent, stride)) + 1
    elif ceil:
        out = math.ceil(Fraction(size + begin + end - extent, stride)) + 1
        if (out - 1) * stride >= size + begin:
            out -= 1
    else:
        out = math.floor(Fraction(size + begin + end - extent, stride)) + 1
    return out, begin, end


def line(size: int, kernel: int, stride: int, dilation: int, *rest: Any) -> Line:
    out, begin, end = outputs(size, kernel, stride, dilation, *rest)
    taps = [[o * stride - begin + j * dilation for j in range(kernel)] for o in range(out)]
    return Line(
        tuple(tuple(q for q in window if 0 <= q < size) for window in taps),
        tuple(sum(q < size + end for q in window) for window in taps),
    )


def spread(value: Any, axes: int, default: int) -> Place:
    """Write an attribute out: absent is the default, one number serves every axis."""
    if value is None:
        return (default,) * axes
    return (int(value),) * axes if np.ndim(value) == 0 else tuple(map(int, value))


def lines(
    spatial: Place,
    kernel_shape: Any,
    strides: Any = None,
    pads: Any = None,
    dilations: Any = None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
) -> list[Line]:
    n = len(spatial)
    flat = spread(pads, 2 * n, 0)
    return [
        line(size, k, s, d, pad, auto_pad, bool(ceil_mode))
        for size, k, s, d, pad in zip(
            spatial,
            spread(kernel_shape, n, 1),
            spread(strides, n, 1),
            spread(dilations, n, 1),
            zip(flat[:n], flat[n:], strict=True),
            strict=True,
        )
    ]


@dataclass(frozen=True)
class Pooling:
    """The shape of a result and, for each of its elements, the valid taps and their counted number.

    A tap is a row-major position in x.
    """

    shape: Place
    windows: dict[Place, tuple[list[int], int]]


def pooling(shape: Place, channels_last: bool, **attributes: Any) -> Pooling:
    spatial = shape[1:-1] if channels_last else shape[2:]
    return pooling_along(shape, channels_last, *lines(spatial, **attributes))


@functools.lru_cache(maxsize=4)
def pooling_along(shape: Place, channels_last: bool, *along: Line) -> Pooling:
    def place(n: int, c: int, spatial: Place) -> Place:
        return (n, *spatial, c) if channels_last else (n, c, *spatial)

    axes = np.argsort(place(0, 1, tuple(range(2, len(shape)))))  # N, C and the spatial ones
    batch, channels, *_ = (shape[axis] for axis in axes)
    steps = [math.prod(shape[axis + 1 :]) for axis in axes]
    first_plane = {}
    for o in product(*(range(len(axis.valid)) for axis in along)):
        valid = (
            [q * step for q in axis.valid[i]]
            for axis, step, i in zip(along, steps[2:], o, strict=True)
        )
        counted = math.prod(axis.counted[i] for axis, i in zip(along, o, strict=True))
        first_plane[o] = [sum(tap) for tap in product(*valid)], counted
    windows = {}
    for n, c in product(range(batch), range(channels)):
        first = n * steps[0] + c * steps[1]
        for o, (taps, counted) in first_plane.items():
            windows[place(n, c, o)] = [first + tap for tap in taps], counted
    return Pooling(place(batch, channels, tuple(len(axis.valid) for axis in along)), windows)


def column_major(position: int, shape: Place) -> int:
    """Return a row-major position as it is where each plane is counted column-major."""
    size = math.prod(shape[2:])
    plane, place = position // size, np.unravel_index(position % size, shape[2:])
    return plane * size + int(np.ravel_multi_index(place, shape[2:], order="F"))


def numbers(x: np.ndarray[Any, Any]) -> list[float]:
    """Return the elements in row-major order."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        listed: list[float] = x.astype(float).ravel().tolist()
    return listed


# Maxima


def lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -math.inf


def ranks(x: np.ndarray[Any, Any]) -> list[int]:
    """Return each element's place in the order of values: NaN above all, equal ones at the same."""
    listed = numbers(x)
    ordered = sorted({value for value in listed if not math.isnan(value)})
    place = {value: rank for rank, value in enumerate(ordered)}
    return [place.get(value, len(ordered)) for value in listed]


def first_greatest(rank: Sequence[int], taps: Iterable[int]) -> int | None:
    """Return the first NaN among the taps, or else the first of the equal greatest."""
    return max(taps, key=rank.__getitem__, default=None)


def max_pool(
    x: np.ndarray[Any, Any],
    kernel_shape: Any,
    *,
    storage_order: int = 0,
    return_indices: bool = False,
    channels_last: bool = False,
    **attributes: Any,
) -> tuple[np.ndarray[Any, Any], ...]:
    pool = pooling(x.shape, channels_last, kernel_shape=kernel_shape, **attributes)
    y = np.full(pool.shape, lowest(x.dtype), x.dtype)
    indices = np.full(pool.shape, -1, np.int64)
    elements, rank = x.ravel(), ranks(x)
    for o, (taps, _) in pool.windows.items():
        best = first_greatest(rank, taps)
        if best is not None:
            y[o] = elements[best]
            indices[o] = column_major(best, x.shape) if storage_order else best
    return (y, indices) if return_indices else (y,)


def max_unpool(
    x: np.ndarray[Any, Any],
    indices: np.ndarray[Any, Any],
    kernel_shape: Any,
    *,
    strides: Any = None,
    pads: Any = None,
    output_shape: Any = None,
    channels_last: bool = False,
) -> tuple[np.ndarray[Any, Any]]:
    spatial = x.shape[1:-1] if channels_last else x.shape[2:]
    n = len(spatial)
    pad = spread(pads, 2 * n, 0)
    kernel, stride = spread(kernel_shape, n, 1), spread(strides, n, 1)
    sizes = [(spatial[i] - 1) * stride[i] - pad[i] - pad[n + i] + kernel[i] for i in range(n)]
    shape = (x.shape[0], *sizes, x.shape[-1]) if channels_last else (*x.shape[:2], *sizes)
    y = np.zeros(math.prod(output_shape or shape), x.dtype)
    for source in np.ndindex(x.shape):  # in order: the highest source position wins
        y[indices[source]] = x[source]
    return (y.reshape(output_shape or shape),)


# Means and norms


@dataclass(frozen=True)
class Exact:
    """The elements of an array in row-major order: integers over one divisor, and what is none."""

    whole: list[int]
    divisor: int
    special: dict[int, float]

    @classmethod
    def of(cls, x: np.ndarray[Any, Any]) -> Exact:
        elements = numbers(x)
        special = {tap: value for tap, value in enumerate(elements) if not math.isfinite(value)}
        finite = [0.0 if tap in special else value for tap, value in enumerate(elements)]
        ratios = [value.as_integer_ratio() for value in finite]
        divisor = max((denominator for _, denominator in ratios), default=1)  # all powers of two
        whole = [numerator * (divisor // denominator) for numerator, denominator in ratios]
        return cls(whole, divisor, special)

    def mean(self, taps: list[int], count: int) -> Real:
        """Return the sum of the taps divided by ``count``."""
        if special := self.special and {self.special[tap] for tap in taps if tap in self.special}:
            return Real(special.pop() if len(special) == 1 else math.nan, finite=False)
        terms = [self.whole[tap] for tap in taps]
        divisor = max(count, 1) * self.divisor
        total, magnitude = sum(terms), sum(map(abs, terms))
        return Real(Fraction(total, divisor), Fraction(magnitude, divisor), len(taps))


def average_pool(
    x: np.ndarray[Any, Any],
    kernel_shape: Any,
    *,
    count_include_pad: bool = False,
    dtype: Any = None,  # noqa: ARG001
    channels_last: bool = False,
    **attributes: Any,
) -> np.ndarray[Any, Any]:
    pool = pooling(x.shape, channels_last, kernel_shape=kernel_shape, **attributes)
    y = np.empty(pool.shape, object)
    exact = Exact.of(x)
    for o, (taps, counted) in pool.windows.items():
        y[o] = exact.mean(taps, counted if count_include_pad else len(taps))
    return y


def power(value: decimal.Decimal, exponent: decimal.Decimal) -> decimal.Decimal:
    """Raise to a power; a square root takes a fiftieth of the time of one that is not whole."""
    twice = DECIMAL.multiply(exponent, 2)
    if exponent % 1 and not twice % 1:
        return DECIMAL.sqrt(DECIMAL.power(value, twice))
    return DECIMAL.power(value, exponent)


@functools.lru_cache(maxsize=2**16)
def power_of_tap(magnitude: float, p: float) -> decimal.Decimal:
    return power(decimal.Decimal(magnitude), decimal.Decimal(p))


def norm(taps: list[float], p: float) -> Real:
    """Return (sum of |tap| ** p) ** (1 / p) to forty digits, with exponents of any size."""
    if any(map(math.isnan, taps)):
        return Real(math.nan, finite=False)
    magnitudes = [abs(tap) for tap in taps if tap != 0]
    if math.inf in magnitudes:
        return Real(math.inf, finite=False)
    if not magnitudes:
        return Real(Fraction(0))
    total = decimal.Decimal(0)
    for magnitude in magnitudes:
        total = DECIMAL.add(total, power_of_tap(magnitude, p))
    root = power(total, DECIMAL.divide(decimal.Decimal(1), decimal.Decimal(p)))
    exact = Fraction(root)
    return Real(exact, exact, len(taps))


def lp_pool(
    x: np.ndarray[Any, Any],
    kernel_shape: Any,
    *,
    p: float = 2,
    channels_last: bool = False,
    **attributes: Any,
) -> np.ndarray[Any, Any]:
    pool = pooling(x.shape, channels_last, kernel_shape=kernel_shape, **attributes)
    y = np.empty(pool.shape, object)
    listed = numbers(x)
    for o, (taps, _) in pool.windows.items():
        y[o] = norm([listed[tap] for tap in taps], p)
    return y


# Global operators: the window is the plane


def plane(x: np.ndarray[Any, Any], channels_last: bool) -> Place:
    return x.shape[1:-1] if channels_last else x.shape[2:]


def global_max_pool(x: Any, *, channels_last: bool = False) -> Any:
    return max_pool(x, plane(x, channels_last), channels_last=channels_last)


def global_average_pool(x: Any, *, dtype: Any = None, channels_last: bool = False) -> Any:
    return average_pool(x, plane(x, channels_last), dtype=dtype, channels_last=channels_last)


def global_lp_pool(x: Any, *, p: float = 2, channels_last: bool = False) -> Any:
    return lp_pool(x, plane(x, channels_last), p=p, channels_last=channels_last)


# The RoI operators


def round_half_away(value: np.float32) -> int:
    exact = Fraction(float(value))
    whole = math.floor(abs(exact) + Fraction(1, 2))
    return whole if exact >= 0 else -whole


def bins(first: int, last: int, count: int, size: int) -> list[range]:
    width = np.float32(max(last - first + 1, 1)) / np.float32(count)
    result = []
    for i in range(count):
        start = math.floor(np.float32(i) * width) + first
        stop = math.ceil(np.float32(i + 1) * width) + first
        result.append(range(min(max(start, 0), size), min(max(stop, 0), size)))
    return result


def max_roi_pool(
    x: np.ndarray[Any, Any],
    rois: np.ndarray[Any, Any],
    pooled_shape: Any,
    *,
    spatial_scale: float = 1.0,
    channels_last: bool = False,
) -> tuple[np.ndarray[Any, Any]]:
    x = np.moveaxis(x, -1, 1) if channels_last else x
    height, width = spread(pooled_shape, 2, 1)
    y = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for r, roi in enumerate(rois):
        n = int(roi[0])
        x1, y1, x2, y2 = (
            round_half_away(np.float32(corner) * np.float32(spatial_scale)) for corner in roi[1:]
        )
        rows, columns = bins(y1, y2, height, x.shape[2]), bins(x1, x2, width, x.shape[3])
        for c, image in enumerate(x[n]):
            elements, rank = image.ravel(), ranks(image)
            for i, j in product(range(height), range(width)):
                taps = [h * image.shape[1] + w for h, w in product(rows[i], columns[j])]
                best = first_greatest(rank, taps)
                if best is not None:
                    y[r, c, i, j] = elements[best]
    return (np.moveaxis(y, 1, -1) if channels_last else y,)


def sample_points(
    first: Fraction, last: Fraction, count: int, ratio: int, half_pixel: bool
) -> list[list[Fraction]]:
    """Return the sample points of every bin along one axis."""
    shift = Fraction(1, 2) if half_pixel else Fraction(0)
    start, length = first - shift, last - first
    if not half_pixel:
        length = max(length, Fraction(1))
    width = length / count
    samples = ratio or max(math.ceil(width), 0)
    return [
        [start + i * width + (k + Fraction(1, 2)) * width / samples for k in range(samples)]
        for i in range(count)
    ]


Weighted = tuple[int, Fraction]
"""A position beside a sample point, and its weight."""


def corners(q: Fraction, size: int) -> list[Weighted]:
    """Return the two positions beside a sample point with their weights; none outside."""
    if q < -1 or q > size:
        return []
    q = min(max(q, Fraction(0)), Fraction(size - 1))
    low = math.floor(q)
    return [(low, 1 - (q - low)), (min(low + 1, size - 1), q - low)]


def roi_align(
    x: np.ndarray[Any, Any],
    rois: np.ndarray[Any, Any],
    batch_indices: np.ndarray[Any, Any],
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str | None = None,
    channels_last: bool = False,
) -> np.ndarray[Any, Any]:
    x = np.moveaxis(x, -1, 1) if channels_last else x
    half_pixel = coordinate_transformation_mode != "output_half_pixel"
    y = np.empty((len(rois), x.shape[1], output_height, output_width), object)
    for r, roi in enumerate(rois):
        x1, y1, x2, y2 = (Fraction(float(c)) * Fraction(spatial_scale) for c in roi)
        rows = sample_points(y1, y2, output_height, sampling_ratio, half_pixel)
        columns = sample_points(x1, x2, output_width, sampling_ratio, half_pixel)
        for c, image in enumerate(x[int(batch_indices[r])]):
            down = [[corners(q, image.shape[0]) for q in points] for points in rows]
            along = [[corners(q, image.shape[1]) for q in points] for points in columns]
            pixels = [[Fraction(value) for value in numbers(row)] for row in image]
            for i, j in product(range(output_height), range(output_width)):
                y[r, c, i, j] = aligned(pixels, list(product(down[i], along[j])), mode)
    return np.moveaxis(y, 1, -1) if channels_last else y


def aligned(
    image: list[list[Fraction]], points: list[tuple[list[Weighted], list[Weighted]]], mode: str
) -> Real:
    """Reduce one bin: the mean of its samples, or the greatest of all their weighted corners."""
    samples = []
    for down, along in points:
        terms = [image[h][w] * (u * v) for (h, u), (w, v) in product(down, along)]
        samples.append(terms or [Fraction(0)])
    if not samples:
        return Real(Fraction(0))
    largest = max(abs(pixel) for row in image for pixel in row)
    if mode == "max":
        value = max(term for terms in samples for term in terms)
    else:
        value = sum((sum(terms) for terms in samples), Fraction(0)) / len(samples)
    return Real(value, largest, 4 * len(samples))


def doubtful(case: Any) -> Iterator[Fraction]:
    """Yield, for a roi_align case, the distances of sample points to where samples stop counting.

    Only of those points where rounding decides: that binary floating point cannot represent, or
    that are computed from a width of bins that it cannot.
    """
    x, rois, _ = case.arrays
    arguments = case.arguments
    sizes = x.shape[1:3] if arguments.get("channels_last") else x.shape[2:]
    names, first = ("output_height", "output_width"), (1, 0)
    for roi, (name, begin, size) in product(rois, zip(names, first, sizes, strict=True)):
        scale = Fraction(arguments.get("spatial_scale", 1.0))
        low, high = (Fraction(float(roi[k])) * scale for k in (begin, begin + 2))
        half_pixel = arguments.get("coordinate_transformation_mode") != "output_half_pixel"
        ratio = arguments.get("sampling_ratio", 0)
        points = sample_points(low, high, arguments.get(name, 1), ratio, half_pixel)
        firsts = [points_of_bin[0] for points_of_bin in points[:2] if points_of_bin]
        rounded = len(firsts) == 2 and (2**12) % (firsts[1] - firsts[0]).denominator
        for q in chain.from_iterable(points):
            if rounded or (2**12) % q.denominator:
                yield min(abs(q + 1), abs(q - size))
