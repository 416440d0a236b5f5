"""roi.cu: MaxRoiPool and RoiAlign."""

from __future__ import annotations

from math import prod

import numpy as np

from gpupool.planner.launches import THREADS, Launch, index_for
from gpupool.planner.parameters import boolean
from gpupool.problem import MAX_SAMPLES, RoiProblem

ROI_DTYPE = np.dtype(
    [
        *((name, "i8") for name in ("outputs", "batch", "channels", "height", "width")),
        *(
            (name, "i4")
            for name in (
                "bins_y", "bins_x", "sampling_ratio", "most_samples", "half_pixel", "channels_last",
            )
        ),
        ("spatial_scale", "f8"),
    ],
    align=True,
)  # fmt: skip
"""The NumPy mirror of ``Roi`` in kernels/roi.cu."""


def launch(problem: RoiProblem) -> Launch:
    """Launch one thread for each output."""
    outputs = prod(problem.outputs[0].shape)
    packed = np.array(
        (
            outputs, problem.batch, problem.channels, *problem.spatial, *problem.pooled,
            problem.sampling_ratio, MAX_SAMPLES, problem.half_pixel, problem.channels_last,
            problem.spatial_scale,
        ),
        ROI_DTYPE,
    )  # fmt: skip
    element = problem.dtype.cuda
    # Every thread's number, and every place in an image.
    index = index_for(max(outputs + THREADS, prod(problem.shape[1:])))
    if problem.op == "MaxRoiPool":
        operands = ("x", "rois", "y")
        return Launch.over(outputs, "roi.cu", "max_roi_pool", (element, index), operands, (packed,))
    template = (element, boolean(problem.mode == "max"), index)
    aligned = ("x", "rois", "batch_indices", "y")
    return Launch.over(outputs, "roi.cu", "roi_align", template, aligned, (packed,))
