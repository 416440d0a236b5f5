"""What gpupool asks of an array, whatever library made it: its kind, its memory, its values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gpupool.dtypes import BFLOAT16, named
from gpupool.errors import GpupoolTypeError

Array = np.ndarray[Any, Any]
"""An array of NumPy's."""


def kind(name: str, array: Any) -> str:
    """Return which library's array this is: numpy, cupy, torch or jax; anything else is refused.

    >>> kind("x", np.zeros(3))
    'numpy'
    """
    found = _KINDS.get(type(array)) or _kind(array)
    if found is None:
        raise GpupoolTypeError(
            f"{name} must be a NumPy, CuPy, torch or JAX array, not "
            f"{type(array).__module__}.{type(array).__name__}"
        )
    return found


_KINDS = {np.ndarray: "numpy"}
"""Types that have been recognised."""


def _kind(array: Any) -> str | None:
    if isinstance(array, np.ndarray) and not _is_masked(array):
        return "numpy"
    if type(array).__module__.partition(".")[0] == "cupy" and hasattr(array, "data"):
        return _KINDS.setdefault(type(array), "cupy")
    for library, class_name in (("torch", "Tensor"), ("jax", "Array")):
        # The array of a library that nobody has imported cannot exist.
        if library in sys.modules and isinstance(array, getattr(sys.modules[library], class_name)):
            return library
    return None


def _is_masked(array: Any) -> bool:
    # Naming numpy.ma imports it, for longer than it takes to pool a photograph.
    return "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray)


def dtype(array: Any) -> Any:
    """Return an array's dtype in NumPy's terms, or the name of one that NumPy does not have.

    >>> dtype(np.zeros(3, np.float16))
    dtype('float16')
    """
    own = array.dtype
    if isinstance(own, np.dtype):
        return own
    name = named(own)
    try:
        return BFLOAT16.numpy if name == BFLOAT16.name else np.dtype(name)
    except TypeError:
        return name


def pointer(array: Any) -> int:
    """Return the address of the first element."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data.ptr)


def device(array: Any) -> int | None:
    """Return the number of the GPU that holds the array, None for the CPU."""
    return None if isinstance(array, np.ndarray) else int(array.device.id)


def on_device(array: Any) -> AbstractContextManager[Any]:
    """Make the array's device the current one: CuPy works there only."""
    current: AbstractContextManager[Any]
    current = nullcontext() if isinstance(array, np.ndarray) else array.device
    return current


def layouts(arrays: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return all of arrays but their values, and apart from it the addresses they begin at.

    The arrays are CuPy's; those of a class derived from its own are told apart. Making a tuple of
    strides takes CuPy longer than all the rest: where it knows that they follow from the shape,
    by an attribute that it does not document, they are left out.
    """
    layouts: list[Any] = []
    starts = []
    for array in arrays:
        memory = array.data
        start = memory.ptr
        starts.append(start)
        steps = getattr(array, "_c_contiguous", False) or array.strides
        layout = start % 16, array.shape, steps, array.dtype, memory.device_id, type(array)
        layouts.append(layout)
    return layouts, starts


def reach(array: Any) -> tuple[int, int]:
    """Return where the array's elements begin and end, in bytes from the first; (0, 0) if none.

    >>> x = np.zeros((4, 4), np.float32)
    >>> reach(x), reach(x[::-1, ::2])
    ((0, 64), (-48, 12))
    """
    if array.size == 0:
        return 0, 0
    low = high = 0
    for size, stride in zip(array.shape, array.strides, strict=True):
        end = (size - 1) * stride
        low, high = low + min(end, 0), high + max(end, 0)
    return low, high + array.dtype.itemsize


def address_range(array: Any) -> range:
    """Return the addresses that the array's elements span, empty for an empty array.

    >>> x = np.zeros((4, 4), np.float32)
    >>> len(address_range(x)), len(address_range(x[::-1, ::2]))
    (64, 60)
    """
    start, (low, high) = pointer(array), reach(array)
    return range(start + low, start + high)


def overlap(a: Any, b: Any) -> bool:
    """Whether the address ranges of two arrays meet."""
    first, second = address_range(a), address_range(b)
    return bool(first and second) and first.start < second.stop and second.start < first.stop


def read_only(array: Any) -> bool:
    """Whether the array's elements may not be written."""
    return isinstance(array, np.ndarray) and not array.flags.writeable


def repeats(array: Any) -> bool:
    """Whether elements may lie in one place, as those of a broadcast array do.

    They do not where each axis steps over all that the finer ones span, as slices and transposed
    arrays of any array do.

    >>> repeats(np.broadcast_to(np.zeros(1), 3)), repeats(np.zeros((3, 4))[::-1, ::2].T)
    (True, False)
    """
    if array.size == 0:
        return False
    span = array.itemsize
    steps = zip(array.strides, array.shape, strict=True)
    for step, size in sorted((abs(step), size) for step, size in steps if size > 1):
        if step < span:
            return True
        span += (size - 1) * step
    return False


def is_aligned(array: Any) -> bool:
    """Whether every element lies on a multiple of its size, as kernels read and write it."""
    steps = (step for size, step in zip(array.shape, array.strides, strict=True) if size > 1)
    return not any(n % array.itemsize for n in (pointer(array), *steps))


def aligned(array: Any) -> Any:
    """Return the array itself, or a copy where its elements are not aligned.

    >>> x = np.zeros(9, np.uint8)[1:].view(np.float32)
    >>> is_aligned(x), is_aligned(aligned(x))
    (False, True)
    """
    return array if is_aligned(array) else as_bytes(array).copy().view(array.dtype)[..., 0]


def as_bytes(array: Any) -> Any:
    """View every element as its bytes along one more axis: those can be moved from anywhere."""
    return array[..., None].view("u1")
