"""Checks on the values inside arrays: positions and regions are untrusted input.

Each runs on the array's own device as one reduction with one synchronisation, before the launch.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpupool.errors import GpupoolValueError
from gpupool.problem import MAX_SAMPLES, Problem, RoiProblem, UnpoolProblem

MAX_COORDINATE = 2**31
"""Scaled RoI coordinates stay below this, so that they are 32-bit integers after rounding."""


def check(problem: Problem, inputs: tuple[Any, ...]) -> None:
    """Refuse Indices outside the output, and RoIs that name no image or no region."""
    if isinstance(problem, UnpoolProblem):
        _check_indices(inputs[1], prod(problem.out_shape))
    elif isinstance(problem, RoiProblem) and problem.num_rois:
        with np.errstate(all="ignore"):  # infinities are refused by name, not by a warning
            _check_rois(problem, *inputs[1:])


def _check_indices(indices: Any, size: int) -> None:
    bad = (indices < 0) | (indices >= size)
    if bool(bad.any()):
        first = int(bad.argmax())
        raise GpupoolValueError(
            f"indices holds {int(indices.reshape(-1)[first])} at flat position {first}: "
            f"allowed are 0 .. {size - 1}, the flat positions of the output"
        )


def _check_rois(problem: RoiProblem, rois: Any, batch_indices: Any = None) -> None:
    batch = rois[:, 0] if batch_indices is None else batch_indices
    batch = batch.astype("float64")
    corners = _scaled(problem, rois[:, -4:])
    good = (batch >= 0) & (batch < problem.batch) & (batch == batch // 1)
    good &= (abs(corners) < MAX_COORDINATE).all(axis=1)
    if problem.op == "RoiAlign" and not problem.sampling_ratio:
        good &= _samples(problem, corners) <= MAX_SAMPLES
    if bool(good.all()):
        return
    r = int((~good).argmax())
    name = "rois" if batch_indices is None else "batch_indices"
    images = f"whole numbers 0 .. {problem.batch - 1}" if problem.batch else "none, x holds none"
    limits = "finite, below 2**31 in magnitude"
    if problem.op == "RoiAlign":
        limits += f", at most {MAX_SAMPLES} samples in a bin"
    raise GpupoolValueError(
        f"RoI {r} is not usable: {name} gives image {float(batch[r])} (allowed: {images}), "
        f"scaled corners {corners[r].tolist()} (allowed: {limits})"
    )


def _scaled(problem: RoiProblem, corners: Any) -> Any:
    """Return the scaled corners as the operators round them: MaxRoiPool's are always float32."""
    real = "float32" if problem.op == "MaxRoiPool" else problem.dtype.accumulator.name
    scale = np.dtype(real).type(problem.spatial_scale)
    return (corners.astype(real) * scale).astype("float64")


def _samples(problem: RoiProblem, corners: Any) -> Any:
    height, width = problem.pooled
    rows = -((corners[:, 1] - corners[:, 3]).clip(-(2.0**32), -1) // height)
    columns = -((corners[:, 0] - corners[:, 2]).clip(-(2.0**32), -1) // width)
    return rows * columns
