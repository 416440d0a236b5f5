"""The oracle beside onnxruntime and torch on one CPU thread.

Cases are made smaller where memory asks: batch, then channels (down to 8), then the outermost
spatial axis are halved until input and outputs fit BYTES. A case that onnxruntime has no kernel for
is timed once more in float32, so that every window is compared. Libraries take turns, and each
one's time is its least: on a shared machine noise only adds.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import gpupool
from gpupool.arrays import Array

from . import peers
from .cases import Case
from .table import number

BYTES = 48 * 2**20
"""Bytes of input and outputs that a case may have here."""

SECONDS, ROUNDS = 1.5, (3, 15)
"""Time spent on each case and library, and the least and greatest number of runs."""

LIMIT = 4.0
"""The oracle's goal: within so many times of single-threaded onnxruntime."""


def pin() -> None:
    """Keep this process and the libraries that it calls to one thread of one core."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def scaled(case: Case, limit: int = BYTES) -> Case:
    """Return the case with as much of it as ``limit`` bytes allow; few channels stay as they are.

    >>> from bench.cases import CASES
    >>> scaled(CASES[0]).shape
    (8, 64, 112, 112)
    """
    shape = list(case.shape)
    axes = [0, case.problem.channel_axis, case.problem.spatial_axes[0]]
    window = case.problem.window[0]
    while True:
        smaller = replace(case, shape=tuple(shape))
        outputs = sum(output.nbytes for output in smaller.problem.outputs)
        if prod(shape) * smaller.problem.dtype.itemsize + outputs <= limit:
            return smaller
        least = (1, 8, window.extent)
        axis = next((a for a, n in zip(axes, least, strict=True) if shape[a] // 2 >= n), None)
        if axis is None:
            return smaller
        shape[axis] //= 2


def twins(cases: Sequence[Case]) -> list[Case]:
    """Return the cases, each that onnxruntime has no kernel for followed by itself in float32."""
    result = []
    for case in map(scaled, cases):
        result.append(case)
        try:
            peers.onnx_session(case.channels_first, ["CPUExecutionProvider"])
        except peers.UnavailableError:
            if case.dtype != "float32":
                name = f"{case.id}/f32"
                result.append(scaled(replace(case, id=name, dtype="float32")))
    return result


def measure(case: Case) -> dict[str, Any]:
    """Return the row of one case."""
    x = case.input(seed=1)
    planned = gpupool.plan(case.op, case.shape, case.dtype, **case.arguments)
    calls: dict[str, Callable[[], Any]] = {"gpupool": lambda: planned(x)}
    notes = {}
    for name, prepare in (("onnxruntime", _onnxruntime), ("torch", _torch)):
        try:
            call = prepare(case, x)
            call()
        except Exception as error:
            notes[name] = peers.reason(error)
        else:
            calls[name] = call
    times = take_turns(calls)
    ours = min(times["gpupool"])
    row: dict[str, Any] = {
        "id": case.id, "title": case.title, "op": case.op, "dtype": case.dtype,
        "window": case.window_text, "shape": list(case.shape), "ms": ours * 1e3,
        "spread": float(np.median(times["gpupool"]) / ours - 1) / 2, "notes": notes,
    }  # fmt: skip
    for name in ("onnxruntime", "torch"):
        best = min(times[name]) if name in times else None
        row[f"{name}_ms"] = best and best * 1e3
        row[f"{name}_ratio"] = best and ours / best
    return row


def take_turns(
    calls: dict[str, Callable[[], Any]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Run every call in turn, again and again, and return the seconds of each run."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    least, greatest = ROUNDS
    begin = clock()
    while len(times["gpupool"]) < least or (
        len(times["gpupool"]) < greatest and clock() - begin < SECONDS * len(calls)
    ):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return times


def _onnxruntime(case: Case, x: Array) -> Callable[[], Any]:
    session = peers.onnx_session(case.channels_first, ["CPUExecutionProvider"])
    fed = {"input0": np.ascontiguousarray(np.moveaxis(x, -1, 1)) if case.channels_last else x}
    return lambda: session.run(None, fed)


def _torch(case: Case, x: Array) -> Callable[[], Any]:
    torch = peers.module("torch")
    torch.set_num_threads(1)
    tensor = torch.from_numpy(x)
    if case.channels_last:
        tensor = tensor.movedim(-1, 1)
    pool = peers.torch_pool(case, torch, torch.float32)
    return lambda: pool(tensor)


HEAD = (
    "id", "case", "dtype", "window", "shape here", "ms", "onnxruntime ms", "x onnxruntime",
    "torch ms", "x torch", "blank because",
)  # fmt: skip
"""Columns: times, and how many times as long the oracle takes."""


def cells(row: dict[str, Any]) -> list[str]:
    """Return the row of a case as text, in the order of HEAD."""
    return [
        row["id"], row["title"], row["dtype"], row["window"], "x".join(map(str, row["shape"])),
        number(row["ms"]), number(row["onnxruntime_ms"]), number(row["onnxruntime_ratio"]),
        number(row["torch_ms"]), number(row["torch_ratio"]),
        "; ".join(f"{name}: {note}" for name, note in row["notes"].items()),
    ]  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Say which float32 maxima and averages miss the goal."""
    judged = [
        row
        for row in rows
        if row["dtype"] == "float32" and "Lp" not in row["op"] and row["onnxruntime_ratio"]
    ]
    slow = [row["id"] for row in judged if row["onnxruntime_ratio"] > LIMIT]
    text = f"{len(judged)} float32 maxima and averages, within {LIMIT:g}x of onnxruntime: "
    return text + (f"all but {', '.join(slow)}" if slow else "all")


def facts() -> dict[str, Any]:
    """Return the processor's name."""
    name = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        names = re.findall(r"model name\s*:\s*(.+)", listing.read_text(encoding="utf-8"))
        name = names[0] if names else name
    return {"processor": name}
