"""roi.cu: MaxRoiPool and RoiAlign."""

from __future__ import annotations

from math import prod

import numpy as np

from gpupool.planner.launches import Launch
from gpupool.planner.parameters import boolean
from gpupool.problem import MAX_SAMPLES, RoiProblem

ROI_DTYPE = np.dtype(
    [
        ("outputs", "i8"),
        *(
            (name, "i4")
            for name in (
                "batch", "channels", "height", "width", "bins_y", "bins_x", "sampling_ratio",
                "most_samples", "half_pixel", "channels_last",
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
    if problem.op == "MaxRoiPool":
        operands = ("x", "rois", "y")
        return Launch.over(outputs, "roi.cu", "max_roi_pool", (element,), operands, (packed,))
    template = (element, boolean(problem.mode == "max"))
    aligned = ("x", "rois", "batch_indices", "y")
    return Launch.over(outputs, "roi.cu", "roi_align", template, aligned, (packed,))
