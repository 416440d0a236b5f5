"""The element types: one row for each, read by the validator, the oracle and the plan alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpupool.errors import GpupoolTypeError
from gpupool.validate import INT32_MAX


@dataclass(frozen=True)
class DType:
    """One element type: its names in NumPy, ONNX and CUDA, and the type that its sums take.

    >>> FLOAT16.cuda, FLOAT16.accumulator.name, FLOAT16.onnx
    ('Half', 'float32', 'FLOAT16')
    """

    name: str
    onnx: str
    cuda: str
    accumulator: np.dtype[Any]

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype: of bfloat16 that of ml_dtypes, whose import may take 0.4 s (0.7.0)."""
        if self.name != "bfloat16":
            return np.dtype(self.name)
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain

    @property
    def is_float(self) -> bool:
        """Whether the type has infinities and NaN."""
        return self.accumulator.kind == "f"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    def __repr__(self) -> str:
        return self.name


def _row(name: str, cuda: str, accumulator: type) -> DType:
    onnx = {"float64": "DOUBLE", "float32": "FLOAT"}.get(name, name.upper())
    return DType(name, onnx, cuda, np.dtype(accumulator))


FLOAT64 = _row("float64", "double", np.float64)
FLOAT32 = _row("float32", "float", np.float32)
FLOAT16 = _row("float16", "Half", np.float32)
BFLOAT16 = _row("bfloat16", "BFloat16", np.float32)
INT8 = _row("int8", "signed char", np.int32)
UINT8 = _row("uint8", "unsigned char", np.int32)

DTYPES = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8)
FLOATS = tuple(row for row in DTYPES if row.is_float)
_BY_NUMPY = {row.numpy: row for row in DTYPES if row is not BFLOAT16}
_BY_NAME = {row.name: row for row in DTYPES}


def byte_sum_dtype(count: int) -> np.dtype[Any]:
    """Return the integers that hold every sum of so many 8-bit values.

    >>> byte_sum_dtype(2**23), byte_sum_dtype(2**24)
    (dtype('int32'), dtype('int64'))
    """
    return np.dtype(np.int32 if count * 255 <= INT32_MAX else np.int64)


def named(dtype: Any) -> Any:
    """Return the name of a dtype of torch, and any other value as it is.

    >>> named("float16")
    'float16'
    """
    of = type(dtype)
    torchs = (of.__module__, of.__name__) == ("torch", "dtype")  # without importing it
    return str(dtype).removeprefix("torch.") if torchs else dtype


def find(name: str, dtype: object, allowed: Collection[DType] = DTYPES) -> DType:
    """Return the row of a dtype given as one of NumPy or torch, a scalar type or a name.

    ``allowed`` are the rows that an error names. A row that is none of these is returned as well:
    the caller knows why it does not serve.

    >>> find("dtype of x", "bfloat16")
    bfloat16
    """
    if isinstance(dtype, DType):
        return dtype
    known = named(dtype)
    if isinstance(known, str) and known in _BY_NAME:
        return _BY_NAME[known]
    names = listed(allowed)
    try:
        numpy = np.dtype("" if known is None else known)  # None is NumPy's float64
    except TypeError:
        raise GpupoolTypeError(f"{name} = {dtype!r} is not a dtype; allowed: {names}") from None
    row = _BY_NUMPY.get(numpy)
    if row is None and numpy.name == BFLOAT16.name:
        row = BFLOAT16 if numpy == BFLOAT16.numpy else None
    if row is None or not numpy.isnative:
        raise GpupoolTypeError(f"{name} = {numpy} is not supported; allowed: {names}")
    return row


def finfo(dtype: Any) -> Any:
    """Return the limits of a float dtype of NumPy or ml_dtypes, as ``numpy.finfo`` has them.

    >>> float(finfo(BFLOAT16.numpy).max)
    3.3895313892515355e+38
    """
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def find_float(name: str, dtype: object) -> DType:
    """Return the row of a float dtype, given as ``find`` takes it; refuse the others.

    >>> find_float("dtype", "float16")
    float16
    """
    row = find(name, dtype, FLOATS)
    if not row.is_float:
        raise GpupoolTypeError(f"{name} = {row} must be a float dtype: {listed(FLOATS)}")
    return row


def listed(rows: Collection[DType]) -> str:
    """Return the names of rows as messages list them.

    >>> listed({INT8, FLOAT32})
    'float32, int8'
    """
    return ", ".join(row.name for row in DTYPES if row in rows)
