"""The exceptions that gpupool raises: each is also the built-in that a caller would expect."""


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
