"""preprocess.cu: images to a normalised tensor."""

from __future__ import annotations

from math import prod

import numpy as np

from gpupool.dtypes import byte_sum_dtype
from gpupool.planner.launches import THREADS, Launch, index_for
from gpupool.planner.parameters import boolean, cuda
from gpupool.problem import PreprocessProblem

MAX_CHANNELS = 4
"""Channels of an image, as many as kernels/preprocess.cu holds means for."""

PREPROCESS_DTYPE = np.dtype(
    [
        *((name, "i8") for name in ("outputs", "origin")),
        ("step", "i8", 4),
        *(
            (name, "i4")
            for name in ("channels", "height", "width", "pool_y", "pool_x", "reversed", "narrow")
        ),
        ("scale", "f4"),
        *((name, "f4", MAX_CHANNELS) for name in ("mean", "deviation")),
    ],
    align=True,
)
"""The NumPy mirror of ``Preprocess`` in kernels/preprocess.cu."""


def launch(problem: PreprocessProblem, strides: tuple[int, ...]) -> Launch:
    """Launch one thread for each output."""
    outputs = prod(problem.outputs[0].shape)
    greatest = prod(problem.pool) * 255
    packed = np.zeros((), PREPROCESS_DTYPE)
    packed["outputs"], packed["step"] = outputs, strides
    packed["origin"] = sum(n * s for n, s in zip(problem.origin, strides[1:], strict=False))
    sizes = (problem.channels, *problem.size, *problem.pool, problem.reverse, greatest < 2**24)
    names = ("channels", "height", "width", "pool_y", "pool_x", "reversed", "narrow")
    for name, size in zip(names, sizes, strict=True):
        packed[name] = size
    packed["scale"] = problem.scale
    packed["mean"][: problem.channels] = problem.mean
    packed["deviation"][: problem.channels] = problem.std
    template = (
        problem.out_dtype.cuda,
        index_for(outputs + THREADS),
        cuda(byte_sum_dtype(prod(problem.pool))),
        boolean(problem.planar),
    )
    return Launch.over(outputs, "preprocess.cu", "preprocess", template, ("x", "y"), (packed,))
