"""How long a kernel takes to compile that no cache holds: what a shape's first call waits for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from gpupool import jit
from gpupool.planner import Launch, plan

from .cases import Case
from .static import ARCHITECTURE, short
from .table import number

GOAL = 100
"""Milliseconds that a specialisation may take."""

TIMES = 20
"""Compilations of each kernel, the shortest of which counts: a disturbance only adds."""


def measure(case: Case) -> dict[str, Any]:
    """Return the processor's time for each kernel of a case, the compiler being loaded."""
    _load_compiler()
    return {
        "id": case.id,
        "title": case.title,
        "dtype": case.dtype,
        "window": case.window_text,
        "launches": [
            {"kernel": f"{launch.source}: {launch.expression}", "ms": _milliseconds(launch)}
            for launch in plan(case.problem).launches
        ],
    }


@cache
def _load_compiler() -> None:
    jit.cubin("unpool.cu", ["unpool_claim<int>"], ARCHITECTURE)


def _milliseconds(launch: Launch) -> float:
    return min(_seconds(launch) for _ in range(TIMES)) * 1e3


def _seconds(launch: Launch) -> float:
    begin = time.process_time()
    jit.cubin(launch.source, [launch.expression], ARCHITECTURE)
    return time.process_time() - begin


HEAD = ("id", "case", "dtype", "window", "ms", "kernel")
"""Columns: processor time to compile each kernel of a case."""


def cells(row: dict[str, Any]) -> list[str]:
    """Return the row of a case as text, in the order of HEAD."""
    return [
        row["id"], row["title"], row["dtype"], row["window"],
        " + ".join(number(launch["ms"]) for launch in row["launches"]),
        " + ".join(short(launch["kernel"]) for launch in row["launches"]),
    ]  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Say which kernels miss the goal."""
    slow = [row["id"] for row in rows if max(each["ms"] for each in row["launches"]) > GOAL]
    text = f"{len(rows)} cases, each kernel within {GOAL} ms of processor time: "
    return text + (f"all but {', '.join(slow)}" if slow else "all")
