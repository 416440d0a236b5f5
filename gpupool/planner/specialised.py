"""Which windows may be compiled in, and how many."""

from __future__ import annotations

import os

from gpupool.planner.geometry import Geometry

SPECIALISED_TAPS = 256
"""Windows up to this many taps may be compiled in, larger ones take the generic tier."""

SPECIALISATIONS = 256
"""Distinct specialised kernels one process may ask for, past which the generic tier serves."""

MAX_STRIDE = 16
"""Strides up to this may be compiled in."""


admitted: set[tuple[str, ...]] = set()


def admit(template: tuple[str, ...]) -> bool:
    """Count a specialisation; False once the process has asked for as many as it may."""
    if template not in admitted and len(admitted) >= SPECIALISATIONS:
        return False
    admitted.add(template)
    return True


def compiles_in() -> bool:
    """Whether windows may be compiled in."""
    return os.environ.get("GPUPOOL_JIT") != "generic"


def specialisable(geometry: Geometry) -> bool:
    """Whether kernel and strides of a window may be compiled in."""
    axes = [dim.axis for dim in geometry.dims]
    return (
        compiles_in()
        and geometry.index_type == "int"
        and geometry.taps <= SPECIALISED_TAPS
        and all(a.dilation == 1 and a.stride <= MAX_STRIDE for a in axes)
    )
