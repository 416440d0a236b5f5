"""The exceptions that gpupool raises: each is also the built-in that a caller would expect."""

from __future__ import annotations

from typing import Self


class GpupoolError(Exception):
    """Every error that gpupool raises by itself.

    >>> issubclass(GpupoolValueError, (GpupoolError, ValueError))
    True
    """


class GpupoolValueError(GpupoolError, ValueError):
    """An argument has the right type and a value that is not allowed."""


class GpupoolTypeError(GpupoolError, TypeError):
    """An argument has a type, dtype or kind of array that is not allowed."""


class GpupoolMemoryError(GpupoolError, MemoryError):
    """A call needs more memory than GPUPOOL_MAX_BYTES allows, or a worker or any machine has."""

    def __new__(cls, *args: object) -> Self:
        """Make one as any exception: MemoryError's own way is closed to what other bases have."""
        return GpupoolError.__new__(cls, *args)
