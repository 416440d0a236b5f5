"""What the kernels see of a pooling problem: batch, channels and as few axes as possible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from gpupool.planner.launches import index_for
from gpupool.problem import PoolProblem
from gpupool.window import Axis

OVERHANG = 2**12
"""Elements that the last block or tile may count past the end."""


@dataclass(frozen=True)
class Dim:
    """A spatial axis with its steps in memory and in the numbering of Indices."""

    axis: Axis
    step: int
    index_step: int

    @property
    def trivial(self) -> bool:
        """Whether the window leaves the axis alone, so that it can count as a batch axis."""
        a = self.axis
        return (a.kernel, a.stride, a.pad_begin, a.out) == (1, 1, 0, a.size)

    @property
    def covered(self) -> bool:
        """Whether one window reads exactly the whole axis."""
        a = self.axis
        return (a.out, a.kernel, a.pad_begin, a.dilation) == (1, a.size, 0, 1) and a.pad_end == 0

    @property
    def inside(self) -> bool:
        """Whether every window lies in the input."""
        a = self.axis
        return a.pad_begin == 0 and (a.out - 1) * a.stride + a.extent <= a.size

    def joins(self, inner: Dim) -> bool:
        """Whether this axis and the next inner one are one axis in memory and numbering."""
        size = inner.axis.size
        return (self.step, self.index_step) == (size * inner.step, size * inner.index_step)


@dataclass(frozen=True)
class Geometry:
    """Batch, channels and spatial axes, as few of them as memory allows."""

    batch: Dim
    channels: Dim
    dims: tuple[Dim, ...]
    channels_last: bool

    @classmethod
    def of(cls, problem: PoolProblem, strides: tuple[int, ...]) -> Geometry:
        """Return the axes of a problem whose input has these strides."""
        numbering = problem.numbering
        batch, channels = (
            Dim(_all(problem.shape[axis]), strides[axis], numbering[axis])
            for axis in (0, problem.channel_axis)
        )
        window = problem.window
        if not problem.count_include_pad:
            window = tuple(axis.trimmed() for axis in window)
        dims = [
            Dim(axis, strides[number], numbering[number])
            for axis, number in zip(window, problem.spatial_axes, strict=True)
        ]
        return cls(batch, channels, tuple(dims), problem.channels_last)._merged()._in_one_image()

    def _merged(self) -> Geometry:
        """Make trivial leading axes part of the batch, and covered neighbours one axis."""
        batch, channels, dims = self.batch, self.channels, list(self.dims)
        while len(dims) > 1 and dims[0].trivial:
            outer = batch if self.channels_last else channels
            if not outer.joins(dims[0]):
                break
            inner = dims.pop(0)
            merged = Dim(_all(outer.axis.size * inner.axis.size), inner.step, inner.index_step)
            batch, channels = (merged, channels) if self.channels_last else (batch, merged)
        i = 0
        while i + 1 < len(dims):
            outer, inner = dims[i : i + 2]
            if outer.covered and inner.covered and outer.joins(inner):
                size = outer.axis.size * inner.axis.size
                axis = replace(inner.axis, size=size, kernel=size)
                dims[i : i + 2] = [Dim(axis, inner.step, inner.index_step)]
            else:
                i += 1
        return replace(self, batch=batch, channels=channels, dims=tuple(dims))

    def _in_one_image(self) -> Geometry:
        """Take planes that lie evenly, images too, as the channels of one image."""
        images, channels = self.batch, self.channels
        if self.channels_last or images.axis.size == 1:
            return self
        if channels.axis.size == 1:
            channels = images
        elif images.joins(channels):
            channels = replace(channels, axis=_all(self.planes))
        else:
            return self
        return replace(self, batch=ONE, channels=channels)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The spatial axes, wherever they lie in memory."""
        return tuple(dim.axis for dim in self.dims)

    @property
    def images(self) -> bool:
        """Whether planes are those of images that lie apart, or channels last."""
        return self.channels_last or self.batch.axis.size > 1

    @property
    def outputs(self) -> int:
        """Number of output elements."""
        return prod(dim.axis.out for dim in (self.batch, self.channels, *self.dims))

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return prod(axis.kernel for axis in self.axes)

    @property
    def slices(self) -> float:
        """Slices of the input under a window, in the mean: those in the padding are passed over."""
        return prod(axis.mean_taps for axis in self.axes[:-2])

    @property
    def planes(self) -> int:
        """Number of planes."""
        return self.batch.axis.size * self.channels.axis.size

    @cached_property
    def dense(self) -> Geometry:
        """The geometry of windows at every position from the first one to the last."""
        dims = tuple(replace(dim, axis=dim.axis.dense()) for dim in self.dims)
        return replace(self, dims=dims)

    def with_rows(self) -> Geometry:
        """Return one axis as two: planes that lie apart evenly are the rows of larger ones.

        Channels last images are the rows, for neighbouring channels stay together.
        """
        (inner,), images = self.dims, self.batch
        if self.channels_last:
            return replace(self, batch=ONE, dims=(images, inner))
        return replace(self, channels=ONE, dims=(self.channels, inner))._in_one_image()

    @cached_property
    def index_type(self) -> str:
        """The type that holds every count, coordinate and offset within one plane.

        Four elements of neighbouring channels may count as one pixel, and a tile of outputs may
        hang over the end.
        """
        # Trimmed windows may begin behind the edge: with less than no padding.
        padded = [abs(a.pad_begin) + a.size + a.pad_end for a in self.axes]
        reach = [
            4 * (a.out * a.stride + max(a.extent, a.dilation) + size)
            for a, size in zip(self.axes, padded, strict=True)
        ]
        offsets = sum(
            (size + dim.axis.dilation) * max(abs(dim.step), 1)
            for dim, size in zip(self.dims, padded, strict=True)
        )
        taps = prod(a.size for a in self.axes)
        return index_for(max(self.outputs, offsets, taps, *reach) + OVERHANG)


def _all(size: int) -> Axis:
    return Axis(size, 1, 1, 1, 0, 0, size)


ONE = Dim(_all(1), 0, 0)
"""An axis of one position."""
