"""Geometry: which input positions each output reads, one integer rule mapped over the axes.

For output ``o`` of an axis, tap ``j`` in ``0 .. kernel - 1`` reads position
``q = o * stride - pad_begin + j * dilation``. A tap is valid when ``0 <= q < size`` and counted
(for ``count_include_pad``) when also padding may be read: ``q < size + pad_end``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from gpupool.errors import GpupoolValueError

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Axis:
    """The window along one spatial axis, everything resolved to integers.

    >>> axis = Axis.resolve(5, kernel=3, stride=2, pads=(1, 1))
    >>> axis.out, [axis.valid(o) for o in range(axis.out)]
    (3, [range(0, 2), range(1, 4), range(3, 5)])
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    out: int

    @classmethod
    def resolve(
        cls,
        size: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        pads: tuple[int, int] = (0, 0),
        auto_pad: str = "NOTSET",
        ceil_mode: bool = False,
    ) -> Axis:
        """Apply the ONNX output-size rule; ``out`` may be below 1, which the caller refuses.

        A dilation has no meaning where there is one tap, and is 1 then.
        """
        dilation = dilation if kernel > 1 else 1
        extent = (kernel - 1) * dilation + 1
        begin, end = pads
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-size // stride)
            total = max((out - 1) * stride + extent - size, 0)
            begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            end = total - begin
        elif ceil_mode and auto_pad == "NOTSET":
            out = -((extent - size - begin - end) // stride) + 1
            if (out - 1) * stride >= size + begin:
                out -= 1
        else:
            out = (size + begin + end - extent) // stride + 1
        return cls(size, kernel, stride, dilation, begin, end, out)

    @property
    def extent(self) -> int:
        """Positions from a window's first tap to its last: ``(kernel - 1) * dilation + 1``."""
        return (self.kernel - 1) * self.dilation + 1

    def start(self, o: int) -> int:
        """Position of the first tap of window ``o``, which may lie in the padding."""
        return o * self.stride - self.pad_begin

    def taps(self, o: int) -> range:
        """Taps ``j`` of window ``o`` that are valid: those that read the input."""
        start = self.start(o)
        first = max(0, -(start // self.dilation))
        last = min(self.kernel, -((start - self.size) // self.dilation))
        return range(first, max(first, last))

    def valid(self, o: int) -> range:
        """Positions that the valid taps of window ``o`` read."""
        start, taps, d = self.start(o), self.taps(o), self.dilation
        return range(start + taps.start * d, start + taps.stop * d, d)[: len(taps)]

    def counted(self, o: int) -> int:
        """Taps of window ``o`` that lie in the input or its explicit padding."""
        beyond = self.size + self.pad_end - self.start(o)
        return max(0, min(self.kernel, -(-beyond // self.dilation)))

    def uncounted(self, padding: bool) -> tuple[int, int]:
        """Positions under the first window before, and under the last behind, those that count."""
        begin, end = self.counted_padding(padding)
        return self.pad_begin - begin, self.start(self.out - 1) + self.extent - self.size - end

    def counted_padding(self, padding: bool) -> tuple[int, int]:
        """Positions of the padding that an average counts."""
        return (self.pad_begin, self.pad_end) if padding else (0, 0)

    @property
    def over_edges(self) -> tuple[int, int]:
        """Windows over the edge before the input and behind it, of which one may be over both.

        >>> Axis.resolve(5, kernel=3, stride=2, pads=(1, 1)).over_edges
        (1, 1)
        """
        before, behind = (
            min(self.out, max(0, -(-beyond // self.stride))) for beyond in self.uncounted(False)
        )
        return before, behind

    @property
    def mean_taps(self) -> float:
        """Valid taps of a window on average, roughly where taps lie apart or all in the padding.

        >>> Axis.resolve(4, kernel=3, pads=(1, 1)).mean_taps
        2.5
        """
        edges = zip(self.over_edges, self.uncounted(False), strict=True)
        lost = sum(
            windows * (2 * beyond - (windows - 1) * self.stride) for windows, beyond in edges
        )
        return max(0.0, self.kernel - lost / (2 * self.dilation * self.out))

    @property
    def touches(self) -> bool:
        """Whether every window has a tap in the input, surely: none reaches over all of it.

        >>> Axis.resolve(5, kernel=2, dilation=5, pads=(1, 1)).touches
        True
        >>> axis = Axis.resolve(3, kernel=2, dilation=4, pads=(1, 1))
        >>> axis.touches, axis.valid(0)
        (False, range(3, 3, 4))
        """
        over = self.pad_begin < self.extent and self.start(self.out - 1) < self.size
        return over and self.dilation <= self.size

    @property
    def adjoining(self) -> bool:
        """Whether taps adjoin, the first of all at the edge of the input or in the padding.

        A dilated window that is trimmed may begin behind the edge.

        >>> axis = Axis.resolve(5, kernel=3, dilation=6, pads=(5, 5))
        >>> axis.trimmed().pad_begin, axis.trimmed().adjoining
        (-1, False)
        """
        return self.dilation == 1 and self.pad_begin >= 0

    def dense(self) -> Axis:
        """Return the axis with windows at every position from the first one to the last.

        Its padding behind is what the last window reads of it.

        >>> Axis.resolve(10, kernel=5, stride=3, pads=(2, 2)).dense()
        Axis(size=10, kernel=5, stride=1, dilation=1, pad_begin=2, pad_end=2, out=10)
        """
        out = (self.out - 1) * self.stride + 1
        behind = self.start(self.out - 1) + self.extent - self.size
        return replace(self, stride=1, pad_end=max(behind, 0), out=out)

    def trimmed(self) -> Axis:
        """Return the axis without the taps at either end of the window that no output has valid.

        The valid positions of every window stay; padding that only those taps read is gone, and
        with it what ``count_include_pad`` would count.

        >>> axis = Axis.resolve(4, kernel=11, pads=(5, 5))
        >>> axis.trimmed().kernel, axis.trimmed().pad_begin, axis.trimmed().pad_end
        (7, 3, 3)
        >>> axis.valid(0) == axis.trimmed().valid(0), axis.trimmed().out
        (True, 4)
        """
        first = max(0, -(self.start(self.out - 1) // self.dilation))
        last = min(self.kernel, -(-(self.size - self.start(0)) // self.dilation))
        if first >= last or last - first == self.kernel:
            return self
        dilation = self.dilation if last - first > 1 else 1
        begin = self.pad_begin - first * self.dilation
        end = max(0, self.pad_end - (self.kernel - last) * self.dilation)
        return Axis(self.size, last - first, self.stride, dilation, begin, end, self.out)

    def part(self, first: int, last: int) -> tuple[range, Axis]:
        """Cut outputs ``first .. last - 1`` out: the input positions they need and their own axis.

        The parts of an axis, computed one by one, give the whole: the clipped amounts become the
        part's pads, so nothing is decided twice. A part that reads only padding keeps one position.
        """
        start = self.start(first)
        stop = self.start(last - 1) + self.extent
        low = min(max(start, 0), self.size - 1)
        high = max(min(stop, self.size), low + 1)
        pad_end = max(0, min(stop, self.size + self.pad_end) - high)
        cut = Axis(
            high - low, self.kernel, self.stride, self.dilation, low - start, pad_end, last - first
        )
        return range(low, high), cut


Window = tuple[Axis, ...]


def window(
    sizes: Sequence[int],
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[int, int]],
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
) -> Window:
    """Resolve every spatial axis; an output size below 1 is a value error that shows why.

    >>> [axis.out for axis in window((5, 7), (3, 3), (2, 1), (1, 1), ((1, 1), (0, 0)))]
    [3, 5]
    """
    axes = tuple(
        Axis.resolve(size, k, s, d, pad, auto_pad, ceil_mode)
        for size, k, s, d, pad in zip(sizes, kernel_shape, strides, dilations, pads, strict=True)
    )
    for i, axis in enumerate(axes):
        if axis.out < 1:
            padded = axis.size + axis.pad_begin + axis.pad_end
            raise GpupoolValueError(
                f"the window is larger than the padded input on spatial axis {i}: "
                f"extent {axis.extent} (kernel_shape {axis.kernel}, dilation {axis.dilation}) "
                f"against {padded} = {axis.pad_begin} + {axis.size} + {axis.pad_end} "
                f"(pad, size, pad)"
            )
    return axes


def covering(sizes: Sequence[int]) -> Window:
    """Return the window that covers the whole plane: what makes an operator global.

    >>> covering((4, 6))[1].kernel
    6
    """
    return tuple(Axis(size, size, 1, 1, 0, 0, 1) for size in sizes)


def out_shape(axes: Window) -> tuple[int, ...]:
    """Return the output size of every spatial axis."""
    return tuple(axis.out for axis in axes)


def taps_of(axes: Window) -> int:
    """Return the largest number of valid taps that one window can have.

    >>> taps_of(covering((4, 6)))
    24
    """
    return prod(min(axis.kernel, -(-axis.size // axis.dilation)) for axis in axes)
