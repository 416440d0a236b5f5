"""Every combination of operator, dtype, number of axes, layout and Indices, as calls.

Which combinations are legal is the resolver's word; tests/test_kernels.py holds their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from gpupool.dtypes import DTYPES
from gpupool.errors import GpupoolError
from gpupool.opset import OPERATORS
from gpupool.problem import resolve
from tests.covering import covered
from tests.strategies import FINITE, FLOATS, WITH_SPECIAL, Case, dtype_of, laid_out

SPATIAL = {1: (13,), 2: (6, 7), 3: (3, 4, 5), 4: (2, 3, 3, 4)}
EVEN = {1: (16,), 2: (5, 16), 3: (3, 3, 8), 4: (2, 2, 3, 4)}
"""Spatial sizes, and those whose rows vectors fill."""

GEOMETRIES: tuple[dict[str, Any], ...] = (
    {"kernel_shape": 2, "strides": 2},
    {"kernel_shape": 3, "pads": 1},
    {"kernel_shape": 3, "strides": 2, "pads": 1, "ceil_mode": True},
    {"kernel_shape": 2, "dilations": 2, "strides": 1, "auto_pad": "SAME_LOWER"},
)
PALETTES = FINITE | WITH_SPECIAL


@dataclass(frozen=True)
class Combination:
    """What one instantiation of a kernel serves."""

    op: str
    dtype: str
    axes: int
    channels_last: bool
    indices: bool

    def __str__(self) -> str:
        layout = "channels last" if self.channels_last else "channels first"
        more = ", Indices" if self.indices else ""
        return f"{self.op} {self.dtype} {self.axes}-D {layout}{more}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each choice, for ``covered``."""
        dtype = [row.name for row in DTYPES].index(self.dtype)
        return dtype, self.axes, self.channels_last, self.indices

    def tested(self) -> Iterator[Case]:
        """Give the calls that are tested: of two neighbours, which differ in an attribute, one.

        Of two pairs it is not the same one.
        """
        for number, case in enumerate(self.calls()):
            if covered(number, number // 2, *self.numbers):
                yield case

    @property
    def legal(self) -> bool:
        attributes: dict[str, Any] = {"channels_last": self.channels_last}
        if self.indices:
            attributes["return_indices"] = True
        if self.op in ("MaxPool", "AveragePool", "LpPool", "MaxUnpool"):
            attributes["kernel_shape"] = 1
        elif self.op == "MaxRoiPool":
            attributes["pooled_shape"] = 1
        try:
            resolve(self.op, (1,) * (self.axes + 2), self.dtype, **attributes)
        except (GpupoolError, TypeError):  # TypeError: no such attribute
            return False
        return True

    def calls(self) -> Iterator[Case]:
        """Give calls that differ in geometry, attributes and the kind of values."""
        make = _MAKERS.get(self.op, _globals if self.op.startswith("Global") else _windows)
        return make(self, np.random.default_rng(len(str(self))))

    @property
    def function(self) -> str:
        """The public function: MaxPool is max_pool."""
        return re.sub("(?<!^)([A-Z])", r"_\1", self.op).lower()

    def x(
        self, rng: np.random.Generator, palette: str, channels: int = 3, even: bool = False
    ) -> np.ndarray[Any, Any]:
        spatial = (EVEN if even else SPATIAL)[self.axes]
        shape = laid_out(2, channels, spatial, self.channels_last)
        dtype = dtype_of(self.dtype)
        if dtype.kind in "iu":
            palette = "any bits"
        return np.asarray(PALETTES[palette](rng, shape, dtype)).astype(dtype)


def combinations() -> list[Combination]:
    every = product(
        OPERATORS, (row.name for row in DTYPES), (1, 2, 3, 4), (False, True), (False, True)
    )
    return [combination for row in every if (combination := Combination(*row)).legal]


def _variants(made: Combination) -> list[dict[str, Any]]:
    """Return the attributes that select other template arguments or other code in a kernel."""
    if made.op == "MaxPool":
        orders = (0, 1) if made.indices and not made.channels_last else (0,)
        return [{"return_indices": made.indices, "storage_order": order} for order in orders]
    if made.op.endswith("LpPool"):
        return [{"p": p} for p in (1, 2, 3, 2.5, 0.5)]
    include = [{"count_include_pad": b} for b in (False, True)] if made.op == "AveragePool" else []
    if "Average" in made.op and made.dtype not in FLOATS:
        include += [{"dtype": dtype} for dtype in FLOATS]
    return include or [{}]


def _palettes(made: Combination) -> tuple[str, ...]:
    if "Max" in made.op:
        return ("ties", "any bits", "-inf and less", "a few NaN")
    return ("normal", "near the maximum", "subnormal", "special")


def _windows(made: Combination, rng: np.random.Generator) -> Iterator[Case]:
    for number, (geometry, palette) in enumerate(zip(GEOMETRIES, _palettes(made), strict=True)):
        x = made.x(rng, palette, 3 + number % 2, number in (1, 2))
        variants = _variants(made)
        turns = {2 * number % len(variants), (2 * number + 1) % len(variants)}
        for more in (variants[turn] for turn in turns):
            arguments = geometry | more | {"channels_last": made.channels_last}
            yield Case(made.function, (x,), arguments)


def _globals(made: Combination, rng: np.random.Generator) -> Iterator[Case]:
    for palette, more in product(_palettes(made)[:2], [{}, *_variants(made)]):
        arguments = more | {"channels_last": made.channels_last}
        yield Case(made.function, (made.x(rng, palette, even=bool(more)),), arguments)


def _unpools(made: Combination, rng: np.random.Generator) -> Iterator[Case]:
    for kernel, palette in ((2, "any bits"), (3, "special")):
        x = made.x(rng, palette)
        size = x.size * kernel**made.axes
        indices = rng.integers(0, size, x.shape)
        arguments = {
            "kernel_shape": kernel,
            "strides": kernel,
            "channels_last": made.channels_last,
        }
        yield Case("max_unpool", (x, indices), arguments)
        yield Case("max_unpool", (x, indices % 5), arguments)


def _corners(rng: np.random.Generator, dtype: np.dtype[Any], rois: int) -> np.ndarray[Any, Any]:
    first = rng.integers(-4, 24, (rois, 2)) / 4
    return np.concatenate([first, first + rng.integers(-4, 24, (rois, 2)) / 4], 1).astype(dtype)


def _roi_pools(made: Combination, rng: np.random.Generator) -> Iterator[Case]:
    for palette, scale in (("any bits", 1.0), ("a few NaN", 0.3)):
        x = made.x(rng, palette)
        images = rng.integers(0, 2, (5, 1)).astype(x.dtype)
        rois = np.concatenate([images, _corners(rng, x.dtype, 5)], 1)
        arguments = {
            "pooled_shape": (3, 2),
            "spatial_scale": scale,
            "channels_last": made.channels_last,
        }
        yield Case("max_roi_pool", (x, rois), arguments)


def _roi_aligns(made: Combination, rng: np.random.Generator) -> Iterator[Case]:
    modes = ("half_pixel", "output_half_pixel")
    for mode, ratio, coordinates in product(("avg", "max"), (0, 2), modes):
        x = made.x(rng, "normal" if ratio else "near the maximum")
        arguments = {
            "mode": mode,
            "output_height": 3,
            "output_width": 2,
            "sampling_ratio": ratio,
            "spatial_scale": 0.5,
            "coordinate_transformation_mode": coordinates,
            "channels_last": made.channels_last,
        }
        images = rng.integers(0, 2, 5)
        yield Case("roi_align", (x, _corners(rng, x.dtype, 5), images), arguments)


_MAKERS = {"MaxUnpool": _unpools, "MaxRoiPool": _roi_pools, "RoiAlign": _roi_aligns}
