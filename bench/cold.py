"""How long a kernel takes to compile that no cache holds: what a shape's first call waits for."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from gpupool import jit
from gpupool.planner import Launch, plan

from .cases import Case
from .static import ARCHITECTURE, short
from .table import number

GOAL = 100
"""Milliseconds that a specialisation may take."""

SMALLEST = "unpool.cu", "unpool_claim<int>"
"""The kernel with the least code. Compiled beside each other one, it measures how fast the machine
is at the moment: what varies from hour to hour is the time of both, not their ratio."""

PROCESSES, TIMES = 3, 7
"""Processes for each kernel, and compilations in each, the shortest of which counts: a disturbance
only adds. Each process has the compiler loaded and nothing else: what other kernels leave in its
memory slows the compiler, and some lie in memory worse than others."""


def measure(case: Case) -> dict[str, Any]:
    """Return the processor's time for each kernel of a case, the compiler being loaded."""
    return {
        "id": case.id,
        "title": case.title,
        "dtype": case.dtype,
        "window": case.window_text,
        "launches": [
            {"kernel": f"{launch.source}: {launch.expression}"} | _milliseconds(launch)
            for launch in plan(case.problem).launches
        ],
    }


def _milliseconds(launch: Launch) -> dict[str, float]:
    spawn, kernel = multiprocessing.get_context("spawn"), (launch.source, launch.expression)
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as process:
        seconds = [process.submit(_shortest, *kernel, TIMES).result() for _ in range(PROCESSES)]
    own, smallest = (min(several) * 1e3 for several in zip(*seconds, strict=True))
    return {"ms": own, "smallest_ms": smallest}


def _shortest(source: str, expression: str, times: int) -> tuple[float, float]:
    """Return the seconds of a kernel and of the smallest one, which loads the compiler first."""
    _seconds(*SMALLEST)
    turns = [(_seconds(source, expression), _seconds(*SMALLEST)) for _ in range(times)]
    own, smallest = (min(several) for several in zip(*turns, strict=True))
    return own, smallest


def _seconds(source: str, expression: str) -> float:
    begin = time.process_time()
    jit.cubin([source], [expression], ARCHITECTURE)
    return time.process_time() - begin


HEAD = ("id", "case", "dtype", "window", "ms", "smallest", "kernel")
"""Columns: processor time to compile each kernel of a case, and the smallest one beside it."""


def cells(row: dict[str, Any]) -> list[str]:
    """Return the row of a case as text, in the order of HEAD."""
    return [
        row["id"], row["title"], row["dtype"], row["window"],
        " + ".join(number(launch["ms"]) for launch in row["launches"]),
        number(min(launch["smallest_ms"] for launch in row["launches"])),
        " + ".join(short(launch["kernel"]) for launch in row["launches"]),
    ]  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Say which kernels miss the goal."""
    slow = [row["id"] for row in rows if max(each["ms"] for each in row["launches"]) > GOAL]
    text = f"{len(rows)} cases, each kernel within {GOAL} ms of processor time: "
    return text + (f"all but {', '.join(slow)}" if slow else "all")
