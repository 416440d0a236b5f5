"""Small planes that adjoin, which blocks take whole, in shared memory: what is true of them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    LINE_BYTES,
    LOOKUP,
    SECTOR,
    SECTOR_BYTES,
    TURN,
    VECTOR_BYTES,
)
from gpupool.problem import PoolProblem


def adjoin(geometry: Geometry) -> bool:
    """Whether rows, planes and images lie one behind the other."""
    if geometry.images:
        return False
    size = 1
    for dim in (*reversed(geometry.dims), geometry.channels):
        if dim.step != size:
            return False
        size *= dim.axis.size
    return True


def whole_vectors(planes: int, sizes: Iterable[int]) -> bool:
    """Whether so many planes, all of the same sizes, are whole vectors."""
    return all(planes * size % VECTOR_BYTES == 0 for size in sizes)


def plane_bytes(problem: PoolProblem, geometry: Geometry) -> int:
    """Return the bytes of a plane."""
    return geometry.channels.step * problem.dtype.itemsize


def result_bytes(problem: PoolProblem, geometry: Geometry) -> int:
    """Return the bytes of a plane of results."""
    return prod(axis.out for axis in geometry.axes) * problem.out_dtype.itemsize


def copy_cost(read: float, written: float) -> float:
    """Return what issues while bytes that are copied to shared memory, and back, are served."""
    return (LOOKUP + TURN) * (read + written) / LINE_BYTES + SECTOR * written / SECTOR_BYTES
