"""What a plan is made of: kernel launches, and the problem that they solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.problem import Problem
from gpupool.validate import INT32_MAX

THREADS, FEW_THREADS = 256, 64
"""Threads of a block, at most, and where larger ones would leave multiprocessors idle."""

WARP = 32
"""Threads that exchange registers, so that they need no shared memory to meet."""

SHARED_BYTES = 48 * 1024
"""Shared memory that a block has without asking."""

REGISTERS = 2**16
"""Registers of a multiprocessor, which its blocks share."""

VECTOR_BYTES = 16
"""Bytes that a thread reads or writes at once, at most."""

SECTOR_BYTES, LINE_BYTES = 32, 128
"""Bytes that memory moves at least, and of a line of the first cache."""

BUSY = 2**14
"""Threads that keep a large card issuing, a warp for each of its schedulers: fewer are no gain."""

FILL = 2**16
"""Threads whose loads keep the way to memory full: outputs are shared by no more than that."""

BUDGET = 7.8
"""Thread-instructions that an H200 issues in the time it copies one byte (33.4e12 / 4.3e12)."""

LOOKUP = 64
"""Those that it issues while the first cache looks up a line for a warp: two a cycle. That is the
time that W10 and W25 of ``bench``, rows that threads took whole from memory, took there."""

TURN = 2 * LOOKUP
"""Those that it issues while shared memory gives a word of every bank, in a cycle."""

SECTOR = 120
"""Those that it issues, in effect, while the second cache takes a sector of a store: 0.7 of what
issues if these come by 5.5 TB/s."""

ALONE, TOGETHER = 0.70, 0.45
"""Parts of memory's time and of all that is served that a launch takes, if no less than memory's.

What is served adds up: the sum of issue, lines, turns and sectors. By the counts of 22 cases of
``bench`` and their times on an H200 (bench/results/gpu-2026-11-27.json) the root mean square of
what that is off is 7 %, and 11 % by the most of them alone; three numbers were fitted."""


def forecast(served: float, memory: float) -> float:
    """Return how many times as long as memory a launch takes.

    ``memory`` is what issues in the time that memory takes, ``served`` the sum of all.

    >>> forecast(50, 100), round(forecast(100, 100), 2)
    (1.0, 1.15)
    """
    return max(1.0, ALONE + TOGETHER * served / memory)


AHEAD = 1.2
"""How many times less must take, by such a sum, what no run has timed than what it replaces."""

NEARLY = 1.1
"""How many times the least cost is nearly as little."""

MOST_BLOCKS = 2**31 - 1
"""Blocks that CUDA takes along the first axis of a grid."""

MOST_PARTS = 65535
"""Blocks that it takes along the second, which are the parts of one output."""

BLOCKS = 512
"""Blocks that fill a large card; fewer outputs than this cut their planes into parts."""


def round_up(number: int, unit: int) -> int:
    """Return the least multiple of a unit that is no less.

    >>> round_up(13, 4), round_up(12, 4)
    (16, 12)
    """
    return -(-number // unit) * unit


def index_for(largest: int) -> str:
    """Return the type of kernels' indices that holds numbers up to ``largest``.

    >>> index_for(2**31 - 1), index_for(2**31)
    ('int', 'long long')
    """
    return "int" if largest <= INT32_MAX else "long long"


Scalar = np.generic | np.ndarray[Any, Any]
"""A kernel argument passed by value: a NumPy scalar, or a struct as an array of no axes."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: a template instantiation, its operands by name, parameters and grid."""

    source: str
    kernel: str
    template: tuple[str, ...]
    operands: tuple[str, ...]
    scalars: tuple[Scalar, ...]
    grid: tuple[int, int]
    shared: int = 0
    block: int = THREADS
    specialised: bool = False
    """Whether it is the tier of its file that has a name of its own."""

    def __post_init__(self) -> None:
        """Keep structs as they are: all that ask for a plan share it."""
        for scalar in self.scalars:
            if isinstance(scalar, np.ndarray):
                scalar.setflags(write=False)

    @classmethod
    def over(
        cls, threads: int, source: str, kernel: str, template: tuple[str, ...],
        operands: tuple[str, ...], scalars: tuple[Scalar, ...],
    ) -> Launch:  # fmt: skip
        """Launch at least so many threads, which share nothing, in blocks that fill the card."""
        block = THREADS if threads >= BLOCKS * THREADS else FEW_THREADS
        grid = (-(-threads // block), 1)
        return cls(source, kernel, template, operands, scalars, grid, block=block)

    @property
    def called(self) -> str:
        """The name that ``plan`` takes: the file's, but for one tier of window.cu."""
        return "specialised" if self.specialised else self.source.removesuffix(".cu")

    @property
    def expression(self) -> str:
        """The C++ name of the instantiation."""
        return f"{self.kernel}<{', '.join(self.template)}>"

    def __repr__(self) -> str:
        grid = f"{self.grid[0]}x{self.grid[1]}"
        return f"{self.source}: {self.expression} <<<{grid}, {self.block}>>>"


@dataclass(frozen=True)
class Plan:
    """The launches that solve a problem for an input of given strides, in order.

    >>> from gpupool.planner import plan
    >>> from gpupool.problem import resolve
    >>> plan(resolve("global-max", (1, 64, 112, 112), "float16"))
    Plan(GlobalMaxPool float16 (1, 64, 112, 112) -> (1, 64, 1, 1)
      plane.cu: plane<Max<Half>, 1, int, 1, 256, false, aligned, 8> <<<64x1, 256>>>)
    """

    problem: Problem
    strides: tuple[int, ...]
    launches: tuple[Launch, ...]
    workspace: int = 0

    @property
    def kernel(self) -> str:
        """What serves, by the name that ``plan`` takes where there is a choice, or "none"."""
        return self.launches[0].called if self.launches else "none"

    def __repr__(self) -> str:
        problem = self.problem
        head = f"{problem.op} {problem.dtype} {problem.shape} -> {problem.outputs[0].shape}"
        lines = "\n  ".join([head, *map(repr, self.launches)])
        return f"Plan({lines})"
