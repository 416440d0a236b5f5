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
    corners = rois[:, -4:].astype("float64") * problem.spatial_scale
    good = (batch >= 0) & (batch < problem.batch) & (batch == batch // 1)
    good &= (abs(corners) < MAX_COORDINATE).all(axis=1)
    if problem.op == "RoiAlign" and not problem.sampling_ratio:
        good &= _samples(problem, corners) <= MAX_SAMPLES
    if bool(good.all()):
        return
    r = int((~good).argmax())
    name = "rois" if batch_indices is None else "batch_indices"
    raise GpupoolValueError(
        f"RoI {r} is not usable: {name} gives image {float(batch[r])} (allowed: whole numbers "
        f"0 .. {problem.batch - 1}), scaled corners {corners[r].tolist()} (allowed: finite, below "
        f"2**31 in magnitude, at most {MAX_SAMPLES} samples in a bin)"
    )


def _samples(problem: RoiProblem, corners: Any) -> Any:
    height, width = problem.pooled
    rows = -((corners[:, 1] - corners[:, 3]).clip(-(2.0**32), -1) // height)
    columns = -((corners[:, 0] - corners[:, 2]).clip(-(2.0**32), -1) // width)
    return rows * columns
