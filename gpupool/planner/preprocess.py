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
        *((name, "i8") for name in ("outputs", "height", "width", "origin")),
        ("step", "i8", 4),
        ("pixel_step", "i8", 2),
        *((name, "i4") for name in ("channels", "pool_y", "pool_x", "reversed", "narrow")),
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
    image, *pixel, channel = strides
    tile = (step * size for step, size in zip(pixel, problem.pool, strict=True))
    packed["outputs"], packed["step"] = outputs, (image, *tile, channel)
    packed["pixel_step"] = pixel
    packed["origin"] = sum(n * step for n, step in zip(problem.origin, pixel, strict=True))
    sizes = (*problem.size, problem.channels, *problem.pool, problem.reverse, greatest < 2**24)
    names = ("height", "width", "channels", "pool_y", "pool_x", "reversed", "narrow")
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
