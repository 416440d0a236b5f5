"""Which windows may be compiled in, and how many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock

from gpupool.errors import GpupoolValueError
from gpupool.planner.geometry import Geometry

SPECIALISED_TAPS = 256
"""Windows up to this many taps may be compiled in, larger ones take the generic tier."""

SPECIALISATIONS = 256
"""Specialised kernels counted by one name that a process may ask for, past which others serve."""

MAX_STRIDE = 16
"""Strides and dilations up to this may be compiled in."""


JIT = "GPUPOOL_JIT"
"""The variable of the environment that, set to "generic", lets no window be compiled in, but
without Indices widths of separable.cu below a lane's chunk: it has no code for any of those."""

COMPILED_IN = {
    "specialised": "window",
    "rows": "rows",
    "rows_staged": "rows",
    "separable_planes": "separable_planes",
    "strips": "strips",
    "separable_vectors": "separable_vectors",
}
"""Kernels of which a window is always compiled in: the names of ``plan`` and of what is counted."""

admitted: Counter[tuple[str, ...]] = Counter()
"""How many plans were given each specialisation; 0 where they were taken back."""

_counting = RLock()

_revocable: ContextVar[list[tuple[str, ...]] | None] = ContextVar("_revocable", default=None)
"""What this thread was given inside ``unless_refused``."""


def admit(kernel: str, *template: str) -> bool:
    """Count a specialisation; False where none may be, or the process has asked for as many."""
    asked = (kernel, *template)
    with _counting:
        if not admissible(*asked):
            return False
        admitted[asked] += 1
    revocable = _revocable.get()
    if revocable is not None:
        revocable.append(asked)
    return True


def admissible(kernel: str, *template: str) -> bool:
    """Whether a specialisation may be: one that was admitted, or one more."""
    with _counting:
        return compiles_in() and bool(admitted[kernel, *template] or not spent(kernel))


@contextmanager
def unless_refused() -> Iterator[None]:
    """Take back what is admitted inside if it ends in a refusal: nothing of it is ever compiled."""
    inside: list[tuple[str, ...]] = []
    token = _revocable.set(inside)
    try:
        yield
    except GpupoolValueError:
        with _counting:
            admitted.subtract(inside)
        raise
    finally:
        _revocable.reset(token)


def spent(kernel: str) -> bool:
    """Whether the process may ask for no further specialisation of a kernel."""
    with _counting:
        return sum(one == kernel for (one, *_), n in admitted.items() if n) >= SPECIALISATIONS


def compiles_in() -> bool:
    """Whether windows may be compiled in."""
    asked = os.environ.get(JIT, "")
    if asked not in ("", "generic"):
        raise GpupoolValueError(f"{JIT} = {asked!r} in the environment: expected 'generic' or none")
    return not asked


def refusal(kernel: str) -> str:
    """Return the end of an error: why nothing, or nothing more, is compiled in for a kernel."""
    if kernel not in COMPILED_IN:
        return ""
    if not compiles_in():
        return f"; {JIT} = 'generic' in the environment lets no window be compiled in"
    if spent(COMPILED_IN[kernel]):
        return f"; this process has asked for {SPECIALISATIONS} of that kernel already"
    return ""


def specialisable(geometry: Geometry) -> bool:
    """Whether kernel, strides and dilations of a window may be compiled in.

    Trimmed, a dilated window may begin behind the edge: such a one may not.
    """
    return (
        compiles_in()
        and geometry.index_type == "int"
        and geometry.taps <= SPECIALISED_TAPS
        and all(a.pad_begin >= 0 and max(a.stride, a.dilation) <= MAX_STRIDE for a in geometry.axes)
    )
