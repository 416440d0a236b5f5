"""What machine code tells without a GPU: every case compiled, disassembled and counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpupool import jit
from gpupool.device import compiler_reason
from gpupool.errors import GpupoolError
from gpupool.planner import THREADS, Launch, Plan, plan
from gpupool.planner.launches import (
    BUDGET,
    LOOKUP,
    REGISTERS,
    SECTOR,
    SECTOR_BYTES,
    TURN,
    WARP,
    forecast,
    round_up,
)
from gpupool.problem import PoolProblem

from . import issue, sass
from .cases import Case
from .table import number

ARCHITECTURE = 90

LEAST = 0.95
"""The sample must load so much of the input and store so much of the outputs to be believed."""

SAMPLES = 16, 64, 256
"""Blocks that are counted: as many as it takes to be believed."""

MULTIPROCESSORS = 132
"""Of an H200: a launch of fewer blocks lets slots to issue instructions pass on the others."""

WARPS, SHARED, BLOCKS = 64, 228 * 1024, 32
"""Limits of one sm_90 multiprocessor, beside its registers."""


@dataclass(frozen=True)
class Kernel:
    """The machine code of one instantiation and what the compiler reports of it."""

    code: tuple[sass.Instruction, ...]
    binary: bytes
    symbol: str
    resources: jit.Resources


_kernels: dict[str, Kernel] = {}
"""What has been compiled, by C++ name."""


def kernel(launch: Launch) -> Kernel:
    """Compile and disassemble what a launch names."""
    compile_ahead([launch])
    return _kernels[launch.expression]


def compile_ahead(launches: Iterable[Launch]) -> None:
    """Do so for many launches at once: nvdisasm takes hardly longer than for one.

    The code is what each has alone, but for a register where tables of constants lie elsewhere.
    """
    missing = {
        launch.expression: launch.source for launch in launches if launch.expression not in _kernels
    }
    if not missing:
        return
    files = sorted(set(missing.values()))
    binary, log, symbols = jit.cubin(files, sorted(missing), ARCHITECTURE, "--ptxas-options=-v")
    code, taken = sass.disassemble(binary), jit.resources(log)
    for expression, symbol in symbols.items():
        _kernels[expression] = Kernel(code[symbol], binary, symbol, taken[symbol])


def parameters(chosen: Plan, launch: Launch) -> bytes:
    """Lay out a launch's arguments as a kernel receives them: pointers, then scalars."""
    problem = chosen.problem
    indices = isinstance(problem, PoolProblem) and problem.indices
    there = {"x": True, "y": True, "indices": indices, "workspace": chosen.workspace > 0}
    # Any addresses will do, as long as they are aligned as CuPy's are.
    pointers = [
        np.uint64((i + 1) << 40 if there.get(name) else 0) for i, name in enumerate(launch.operands)
    ]
    packed = b""
    for value in (*pointers, *launch.scalars):
        array = np.asarray(value)
        packed += bytes(-len(packed) % array.dtype.alignment) + array.tobytes()
    return packed


def occupancy(registers: int, shared: int, threads: int = THREADS) -> float:
    """Return the share of a multiprocessor's 64 warps that resident blocks fill.

    >>> occupancy(32, 0), occupancy(40, 48 * 1024)
    (1.0, 0.5)
    """
    warps = issue.whole_warps(threads) // WARP
    each_warp = round_up(max(registers, 1) * 32, 256)
    by_registers = REGISTERS // each_warp // warps
    by_shared = SHARED // round_up(shared + 1024, 128)
    return float(min(by_registers, by_shared, WARPS // warps, BLOCKS) * warps / WARPS)


def analyse(case: Case, chosen: Plan | None = None) -> dict[str, Any]:
    """Return the row of one case: counts for each output, resources of each launch.

    The plan is the one that a call of the case takes, or another one of it.
    """
    chosen = chosen or plan(case.problem)
    for blocks in SAMPLES:
        row = _analyse(case, chosen, blocks)
        if not row["doubt"]:
            break
    return row


def _analyse(case: Case, chosen: Plan, blocks: int) -> dict[str, Any]:
    launches = [analyse_launch(chosen, launch, blocks) for launch in chosen.launches]
    outputs = case.outputs
    threads = [prod(launch.grid) * issue.whole_warps(launch.block) for launch in chosen.launches]

    def total(key: str) -> float:
        return float(sum(r[key] * n for r, n in zip(launches, threads, strict=True)) / outputs)

    budget = BUDGET * case.least_bytes / outputs
    issued = total("issued")
    stored = sum(output.nbytes for output in case.problem.outputs)
    reread = total("loaded") * outputs / (case.least_bytes - stored)
    written, touched = (launches[-1][what] * threads[-1] / stored for what in ("stored", "touched"))
    return {
        "id": case.id,
        "title": case.title,
        "op": case.op,
        "dtype": case.dtype,
        "window": case.window_text,
        "shape": list(case.shape),
        "least_bytes": case.least_bytes,
        "outputs": outputs,
        "budget": round(budget, 2),
        "path": round(total("path"), 2),
        "issued": round(issued, 2),
        "lines": round(total("lines"), 2),
        "turns": round(total("turns"), 2),
        "predicted": round(1 / forecast(total("served"), budget), 4),
        "goal": case.goal_copy,
        "reread": round(reread, 3),
        "rewritten": round(touched, 3),
        "doubt": doubt(reread, written),
        "launches": launches,
    }


def above_half(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cases that take more than half of their budget, on their way or issued."""
    return [row["id"] for row in rows if 2 * max(row["path"], row["issued"]) > row["budget"]]


def doubt(reread: float, written: float) -> str:
    """Say why counts cannot be right: the sample left out what real data must go through.

    >>> doubt(1.2, 1.0), doubt(0.0, 1.0)
    ('', 'it loads 0.00 of the input')
    """
    if reread < LEAST:
        return f"it loads {reread:.2f} of the input"
    return "" if LEAST < written < 1 / LEAST else f"it stores {written:.2f} of the outputs"


def analyse_launch(chosen: Plan, launch: Launch, blocks: int) -> dict[str, Any]:
    """Return what one launch needs and does, for each of its threads, by a sample of blocks."""
    built = kernel(launch)
    packed = parameters(chosen, launch)
    base = sass.parameter_base(built.binary, built.symbol, len(packed))
    bank = issue.constant_bank(launch.grid, launch.block, base, packed)
    counts = issue.count(built.code, bank, issue.sample(launch.grid, launch.block, blocks))
    taken = built.resources
    shared = taken.shared + launch.shared
    # As many instructions of a thread issue meanwhile.
    lines, turns = LOOKUP * counts.lines / WARP, TURN * counts.turns / WARP
    idle = max(1.0, MULTIPROCESSORS / prod(launch.grid))
    return {
        "kernel": f"{launch.source}: {launch.expression}",
        "grid": list(launch.grid),
        "block": launch.block,
        "issued": round(counts.issued, 2),
        "lines": round(lines, 2),
        "turns": round(turns, 2),
        "served": round((counts.issued + lines + turns + SECTOR * counts.sectors / WARP) * idle, 2),
        "path": counts.path,
        "assumed": counts.assumed,
        "stored": round(counts.moved("STG"), 4),
        "touched": round(SECTOR_BYTES * counts.sectors / WARP, 4),
        "loaded": round(counts.moved("LDG", "LDGSTS"), 4),
        "accesses": [
            {"name": name, "bytes": width, "times": round(times, 3)}
            for (name, width), times in counts.accesses.items()
            if times
        ],
        "code": len(built.code),
        "registers": taken.registers,
        "spills": taken.spilled,
        "shared": shared,
        "occupancy": occupancy(taken.registers, shared, launch.block),
    }


HEAD = (
    "id", "case", "dtype", "window", "budget", "path", "issued", "lines", "turns", "of copy",
    "goal", "regs", "spill", "shared", "occ", "load", "store", "re-read", "re-written", "assumed",
    "kernel",
)  # fmt: skip
"""Columns: instructions of an output (allowed, of one lane, issued), those that would issue while
the first cache looks up its lines and shared memory takes its turns, and the share of copy that is
forecast; how often the input is read, and the sectors written for each of the output."""


def cells(row: dict[str, Any]) -> list[str]:
    """Return the row of a case as text, in the order of HEAD."""
    launches = row["launches"]
    main = max(launches, key=lambda launch: launch["issued"] * prod(launch["grid"]))
    share = f"{row['predicted']:.2f}" + ("?" if row["doubt"] else "")
    goal = "" if row["goal"] is None else f"{row['goal']:.2f}"
    return [
        row["id"], row["title"], row["dtype"], row["window"],
        *(number(row[key]) for key in ("budget", "path", "issued", "lines", "turns")),
        share, goal,
        str(main["registers"]), str(main["spills"]), str(main["shared"]),
        f"{main['occupancy']:.2f}", _widths(main, "LDG"), _widths(launches[-1], "STG"),
        f"{row['reread']:.2f}", f"{row['rewritten']:.2f}", str(main["assumed"]),
        " + ".join(short(launch["kernel"]) for launch in launches),
    ]  # fmt: skip


def short(kernel: str) -> str:
    """Shorten a kernel's name for a table.

    >>> short("window.cu: window<Max<float>, 2, int, Sizes<3, 3>, Sizes<2, 2>, false>")
    'window<Max<float>,2,int,3x3,2x2,false>'
    """
    name = kernel.partition(": ")[2].replace(", ", ",")
    return re.sub(r"Sizes<([\d,]+)>", lambda match: match[1].replace(",", "x"), name)


def _widths(launch: dict[str, Any], kind: str) -> str:
    """Bytes times accesses of a thread, such as 16x4+2x8, the widest first."""
    found = [access for access in launch["accesses"] if access["name"] == kind]
    found.sort(key=lambda access: -access["bytes"])
    return "+".join(f"{access['bytes']}x{number(access['times'], 2)}" for access in found)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the overall forecast in one line."""
    mean = float(np.exp(np.mean([np.log(row["predicted"]) for row in rows])))
    below = [row["id"] for row in rows if row["goal"] and row["predicted"] < row["goal"]]
    text = f"{len(rows)} cases, {mean:.2f} of copy speed is forecast (geometric mean)"
    doubts = [f"{row['id']}: {row['doubt']}" for row in rows if row["doubt"]]
    text += f"; below their goal: {', '.join(below)}" if below else ""
    return text + (f"; not to be believed: {', '.join(doubts)}" if doubts else "")


def facts() -> dict[str, Any]:
    """Return the compiler's version and the architecture: counts are theirs."""
    if reason := compiler_reason():
        raise GpupoolError(f"there is nothing to compile with: {reason}")
    from cupy.cuda import nvrtc

    return {"architecture": f"sm_{ARCHITECTURE}", "nvrtc": ".".join(map(str, nvrtc.getVersion()))}
