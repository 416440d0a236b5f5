"""unpool.cu: MaxUnpool."""

from __future__ import annotations

from math import prod

import numpy as np

from gpupool.planner.launches import Launch, Plan, index_for
from gpupool.problem import UnpoolProblem


def plan(problem: UnpoolProblem, strides: tuple[int, ...]) -> Plan:
    """Clear y, let the last of equal Indices claim its place, put the values there."""
    inputs, outputs = prod(problem.shape), prod(problem.out_shape)
    element, index = problem.dtype.cuda, index_for(inputs)
    sizes = (np.int64(inputs), np.int64(outputs))

    def launch(name: str, template: tuple[str, ...], operands: tuple[str, ...], threads: int,
               scalars: tuple[np.generic, ...]) -> Launch:  # fmt: skip
        return Launch.over(threads, "unpool.cu", name, template, operands, scalars)

    launches = (
        launch("unpool_clear", (element, index), ("y", "workspace"), outputs, sizes[1:]),
        launch("unpool_claim", (index,), ("indices", "workspace"), inputs, sizes),
        launch("unpool_place", (element, index), ("x", "indices", "y", "workspace"), inputs, sizes),
    )
    return Plan(problem, strides, launches, outputs * (4 if index == "int" else 8))
