"""Compiles every kernel without a GPU and tells what each costs: registers, spills, local memory.

    python -m tests.compile_kernels            the table; fails where it is worse than the baseline
    python -m tests.compile_kernels --update   and makes it the baseline, tests/data/registers.json

The set is what the planner answers for a bounded family of problems, so a new kernel joins it by
itself. Both parts of it hold every operator, dtype and layout:

- The generic tier, which takes its window at run time, for one architecture: every dtype of the
  result, every kind of norm and both index widths, on one and two axes, for windows of one thread,
  of many and of many blocks, and planes in shared memory. Only plane.cu and plane_staged.cu have
  more: other numbers of threads and loads.
- For every architecture, what networks launch: the windows and global planes that they have, with
  one norm of each kind, and the edges of what is compiled in.

All of the specialised tier would be one for every window of at most 64 taps and every tile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpupool import jit, planner, preprocessing
from gpupool.dtypes import DTYPES, FLOAT32, FLOATS, DType
from gpupool.planner import Launch, Plan, specialised
from gpupool.problem import Problem, resolve
from gpupool.terminal import progress

BASELINE = Path(__file__).parent / "data" / "registers.json"
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
"""The compute capabilities that every kernel is compiled for."""

GENERIC_ARCHITECTURE = 90
MOST_AXES = 2
BATCH = 64
"""Instantiations of one compilation, which reads the kernel's file and its headers once."""

SLACK = 8
"""Registers that another version of the compiler may take more than the one of the baseline."""


def entries() -> dict[str, list[str]]:
    """Return the names of the kernels of every file."""
    entry = re.compile(r"^__global__ void(?: __launch_bounds__\(.*\))?\s+(\w+)\(", re.MULTILINE)
    return {path.name: entry.findall(path.read_text()) for path in jit.kernel_folder().glob("*.cu")}


# The bounded family of problems


Reduction = tuple[str, DType, dict[str, Any]]


def reductions() -> Iterator[Reduction]:
    """Every operator, dtype and attribute that chooses the arithmetic of a window."""
    for dtype in DTYPES:
        yield "MaxPool", dtype, {}
        yield "MaxPool", dtype, {"return_indices": True}
        if dtype.is_float:
            yield "AveragePool", dtype, {}
            for p in (1, 2, 3, 2.5, 0.5):
                yield "LpPool", dtype, {"p": p}
        else:
            for out in (None, *FLOATS):
                yield "AveragePool", dtype, {"out_dtype": out}


def usual(reduction: Reduction) -> bool:
    """Whether networks have it: p = 2 stands for the plain norms, 2.5 for those by powers."""
    attributes = reduction[2]
    return attributes.get("p", 2) in (2, 2.5) and attributes.get("out_dtype") in (None, FLOAT32)


def _shape(channels: int, spatial: Sequence[int], last: bool) -> tuple[int, ...]:
    return (1, *spatial, channels) if last else (1, channels, *spatial)


def _pools(
    among: Iterable[Reduction],
    channels: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    spatial: Sequence[int],
    pads: int,
    dilations: int = 1,
) -> Iterator[Problem]:
    for (op, dtype, attributes), last in product(among, (False, True)):
        yield resolve(
            op, _shape(channels, spatial, last), dtype, kernel_shape=kernel, strides=strides,
            pads=pads, dilations=dilations, channels_last=last, **attributes,
        )  # fmt: skip


TAPS = ((2, "window"), (1024, "plane"), (8192, "plane"), (2**23 + 2**16, "plane"))
"""Windows of one thread, of a few, of a block (both in parts), and past 32-bit sums."""


def generic_plans(most_axes: int) -> Iterator[Plan]:
    """Plans of the generic tier with so many axes."""
    for (taps, name), axes in product(TAPS, range(1, most_axes + 1)):
        kernel = [next(k for k in range(2, taps + 1) if k**axes >= taps)] * axes
        spatial = [2 * k for k in kernel]
        far = [2**31 - 1, *kernel[1:]], [2**32, *spatial[1:]]
        for strides, sizes in ((kernel, spatial), far):
            for problem in _pools(reductions(), 2, kernel, strides, sizes, 1):
                yield _plan(problem, name)
    yield from _plans_of("plane_staged", _pools(reductions(), 2, [7, 7], [7, 7], [7, 7], 0))
    windows = ([9], [1, 1]), ([9], [2, 1]), ([2, 9], [1, 1, 1]), ([2, 9], [1, 2, 1])
    # Widths always compiled in by separable.cu, and the first that may not be.
    for width, (outer, strides) in product((8, 9), windows):
        for problem in _pools(reductions(), 2, [*outer, width], strides, [20] * len(strides), 1):
            with _generic_tier():
                chosen = _plan(problem, "separable")
            if chosen.launches[0].source == "separable.cu":
                yield chosen
    for chosen in map(partial(_plan, kernel="channels"), _images_last()):
        if chosen.launches[0].source == "channels.cu":
            yield chosen
    yield from map(_plan, _other_problems())


def _images_last() -> Iterator[Problem]:
    """Return whole images, channels last: in one part, in many, and past 32-bit sums in each."""
    for op, dtype, attributes in reductions():
        if "return_indices" not in attributes:
            for batch, side in ((1, 8), (1, 1000), (1, 3000), (512, 3000)):
                yield resolve(
                    op, (batch, side, side, 4), dtype, kernel_shape=side, strides=side,
                    channels_last=True, **attributes,
                )  # fmt: skip


def _other_problems() -> Iterator[Problem]:
    """Return MaxUnpool, the RoI operators and preprocessing, in every instantiation."""
    for dtype in FLOATS:
        for batch in (1, 2**32):
            yield resolve("MaxUnpool", (batch, 1, 4), dtype, kernel_shape=2)
        for height in (8, 2**32):
            yield resolve("MaxRoiPool", (1, 1, height, 8), dtype, pooled_shape=2, num_rois=1)
            for mode in ("avg", "max"):
                yield resolve("RoiAlign", (1, 1, height, 8), dtype, mode=mode, num_rois=1)
        for batch, pool, layout in product((1, 2**32), (1, 2**12), preprocessing.LAYOUTS):
            shape = (batch, pool, pool, 3)
            yield preprocessing.resolve(
                shape, "uint8", pool=pool, mean=0, std=1, dtype=dtype, layout=layout
            )


Sizes = tuple[int, ...]

WINDOWS: tuple[tuple[Sizes, Sizes, int, int], ...] = (
    ((3, 3), (2, 2), 1, 1),
    ((2, 2), (2, 2), 0, 1),
    ((3, 3), (1, 1), 1, 1),
    ((3, 3), (1, 1), 2, 2),
    ((13, 13), (1, 1), 6, 1),
    ((3,), (2,), 1, 1),
    ((15, 15), (2, 2), 7, 1),
    ((2, 2, 2), (2, 2, 2), 0, 1),
    ((7, 7, 7), (1, 1, 1), 3, 1),
    ((3, 1), (2, 1), 0, 1),
    ((4, 8), (2, 4), 0, 1),
    ((2,) * 4, (2,) * 4, 0, 1),
)
"""Kernel, strides, pads and dilations: what networks have, large windows that overlap at stride 2
and in volumes, an axis that the window leaves alone, many taps, and four axes. Few enough to
compile them all within minutes."""

CHANNELS = 64
PLANE = (2**16, 224, 56, 14)
"""The size of each of so many axes."""

NARROW = (7, 11)
"""Windows whose rows take separable_vectors.cu the most registers: narrower than a lane's chunk. Of
odd rows it reads the elements one by one."""

SQUARE = 8
"""The highest windows with Indices whose height separable.cu has compiled in."""

STRIPS = ((13, 1), (15, 2), (63, 1))
"""Windows and strides of strips.cu, the last of more rows than it keeps at once."""

STAGED = (
    ((3, 3), 2, 1, 7), ((3, 3), 2, 1, 14), ((13, 13), 1, 6, 20), ((3, 3, 3), 1, 1, 14),
    ((5, 5), 1, 2, 7), ((5, 5), 1, 2, 13), ((5, 5), 1, 2, 19), ((5, 5), 1, 2, 14),
    ((3, 3, 3), 1, 1, 9), ((3, 3), 1, 1, 35), ((3, 3), 2, 1, 79),
)  # fmt: skip
"""Windows, strides, pads and sizes of small planes, of which rows_staged.cu takes whole rows or
parts of them, and separable_planes.cu columns, of the last one by nearly the longest lines that
threads hold. In shared memory odd rows of narrow elements begin anywhere."""

LONG_LINE = 32
"""Elements of a line of separable_planes.cu from which on its kernels have a line of the table of
their own."""

MANY = 2**15
"""Channels whose small planes fill a large card."""

IMAGE = (3, 2048)
"""Channels and sides of a single image: an odd number of planes. Words hold both halves of one."""

GLOBAL: tuple[Sizes, ...] = ((7, 7), (56, 56))
"""Planes that global operators reduce."""


def network_plans() -> Iterator[Plan]:
    """Plans of what networks launch: the planner's choice, and the same window in window.cu."""
    among = [reduction for reduction in reductions() if usual(reduction)]
    for kernel, strides, pads, dilations in WINDOWS:
        spatial = (PLANE[len(kernel) - 1],) * len(kernel)
        for problem in _pools(among, CHANNELS, kernel, strides, spatial, pads, dilations):
            yield (chosen := _plan(problem))
            if chosen.kernel == "strips":
                yield _plan_without_strips(problem)
            yield _plan(problem, "specialised")
    yield from _plans_of("separable_vectors", _narrow(among))
    yield from _plans_of("separable", _squares(among))
    yield from _plans_of("strips", _wide_rows(among))
    yield from _staged(among)
    for spatial in GLOBAL:
        for problem in _pools(among, CHANNELS, spatial, spatial, spatial, 0):
            yield _plan(problem)


def _narrow(among: Iterable[Reduction]) -> Iterator[Problem]:
    for (channels, side), odd, width in product(((CHANNELS, PLANE[1]), IMAGE), (0, 1), NARROW):
        yield from _pools(among, channels, [width] * 2, [1, 1], [side - odd] * 2, width // 2)


def _squares(among: Iterable[Reduction]) -> Iterator[Problem]:
    found = [reduction for reduction in among if "return_indices" in reduction[2]]
    for axes in (2, 3):
        kernel, sides = [SQUARE] * axes, [PLANE[axes - 1]] * axes
        yield from _pools(found, CHANNELS, kernel, [1] * axes, sides, SQUARE // 2)


def _wide_rows(among: Iterable[Reduction]) -> Iterator[Problem]:
    for width, stride in STRIPS:
        yield from _pools(among, CHANNELS, [width] * 2, [stride] * 2, [IMAGE[1]] * 2, width // 2)


def _staged(among: Iterable[Reduction]) -> Iterator[Plan]:
    for kernel, stride, pads, size in STAGED:
        axes = len(kernel)
        for problem in _pools(among, MANY, kernel, [stride] * axes, [size] * axes, pads):
            if (chosen := _plan(problem)).kernel in planner.STAGED:
                yield chosen
            if chosen.kernel == "separable_planes" or len(problem.outputs) > 1:
                yield from _plans_of("rows_staged", [problem])


def _plans_of(kernel: str, problems: Iterable[Problem]) -> Iterator[Plan]:
    """Return the plans of a kernel, where it serves."""
    for problem in problems:
        if (chosen := _plan(problem, kernel)).kernel == kernel:
            yield chosen


def _plan_without_strips(problem: Problem) -> Plan:
    """Plan as where a process may compile no further strips.cu."""
    with patch.object(planner.strips, "launch", return_value=None):
        return _plan(problem)


def _plan(problem: Problem, kernel: str = "auto") -> Plan:
    """Plan past the cache, which would otherwise keep what only this file needs."""
    chosen: Plan = planner.plan.__wrapped__(problem, kernel=kernel)
    return chosen


# What is compiled


@dataclass(frozen=True)
class Kernel:
    """One instantiation."""

    source: str
    row: str
    expression: str

    @property
    def specialised(self) -> bool:
        """Whether the window is compiled in."""
        tiled = (
            r"rows(_staged)?<|strips<|separable_(planes|vectors)<"
            r"|separable<.* ([1-8], \d|0, (9|\d\d+))(, \w+){3}>$"
        )
        known = rf"{tiled}|window<.*Sizes<[1-9]"
        return bool(re.match(known, self.expression))


def row_of(launch: Launch) -> str:
    """The line of the table: what differs in axes, layout and window shares one.

    Dilated ones, lanes of strips.cu that have pixels and long lines of separable_planes.cu have
    another: they take more registers.
    """
    wide = " 64-bit" if "long long" in launch.template[1:] else ""
    pixels = " of pixels" if launch.kernel == "strips" and launch.template[6] != "0" else ""
    dilated = " dilated" if any(one.startswith("Dilated") for one in launch.template) else ""
    line = max(map(int, launch.template[5:7])) if launch.kernel == "separable_planes" else 0
    long = " of long lines" if line >= LONG_LINE else ""
    return f"{launch.kernel}<{launch.template[0]}>{wide}{pixels}{dilated}{long}"


@contextmanager
def _generic_tier() -> Iterator[None]:
    """Plan as where nothing may be specialised."""
    with patch.dict(os.environ, {"GPUPOOL_JIT": "generic"}):
        yield


@contextmanager
def _uncapped() -> Iterator[None]:
    """Plan without the cap on specialisations, and without using it up."""
    before = specialised.SPECIALISATIONS, specialised.admitted.copy()
    specialised.SPECIALISATIONS = sys.maxsize
    try:
        yield
    finally:
        specialised.SPECIALISATIONS = before[0]
        specialised.admitted.clear()
        specialised.admitted.update(before[1])


@cache
def generic_kernels(most_axes: int = MOST_AXES) -> tuple[Kernel, ...]:
    """Return the generic tier up to so many axes."""
    return _kernels(generic_plans(most_axes))


@cache
def network_kernels() -> tuple[Kernel, ...]:
    """Return what networks launch."""
    return _kernels(network_plans())


def _kernels(plans: Iterable[Plan]) -> tuple[Kernel, ...]:
    with _uncapped():
        launches = {launch.expression: launch for plan in plans for launch in plan.launches}
    return tuple(
        Kernel(launch.source, row_of(launch), expression) for expression, launch in launches.items()
    )


def representatives() -> list[Kernel]:
    """Return one of each kernel and dtype, specialised where there is such a tier."""
    element = re.compile("|".join(sorted((row.cuda for row in DTYPES), key=len, reverse=True)))
    chosen: dict[tuple[str, ...], Kernel] = {}
    every = [*network_kernels(), *generic_kernels(1)]
    for kernel in sorted(every, key=lambda kernel: not kernel.specialised):
        name, _, arguments = kernel.expression.partition("<")
        chosen.setdefault((name, *element.findall(arguments)[:1]), kernel)
    return list(chosen.values())


# Compiling


@dataclass(frozen=True)
class Cost:
    """What ptxas reports of a kernel: registers, bytes spilled and bytes of local memory."""

    registers: int
    spilled: int
    local: int

    def __or__(self, other: Cost) -> Cost:
        return Cost(*(max(pair) for pair in zip(self, other, strict=True)))

    def __iter__(self) -> Iterator[int]:
        return iter((self.registers, self.spilled, self.local))

    def __str__(self) -> str:
        spilled = f" +{self.spilled}" if self.spilled else ""
        return f"{self.registers}{spilled}" + (f" /{self.local}" if self.local else "")


Job = tuple[str, int, tuple[Kernel, ...]]
"""A source file, an architecture and the kernels to compile together."""


def compile_batch(job: Job) -> dict[str, Cost]:
    """Compile one batch, without a warning; return the cost of each expression."""
    source, architecture, batch = job
    expressions = [kernel.expression for kernel in batch]
    code, log, symbols = jit.cubin([source], expressions, architecture, "--ptxas-options=-v")
    assert code.startswith(b"\x7fELF")
    assert "warning" not in log, "\n".join(re.findall(r".*warning.*\n?.*", log))
    taken = jit.resources(log)
    return {expression: Cost(*taken[symbol][:3]) for expression, symbol in symbols.items()}


def jobs(every: Iterable[Kernel], architecture: int) -> Iterator[Job]:
    """Cut kernels into batches of one source file."""
    by_source: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernel in every:
        by_source[kernel.source].append(kernel)
    for source, group in by_source.items():
        for start in range(0, len(group), BATCH):
            yield source, architecture, tuple(group[start : start + BATCH])


def tier(kernel: Kernel) -> str:
    """Return the name of the row of the table that a kernel belongs to."""
    return f"{'specialised' if kernel.specialised else 'generic'} {kernel.row}"


Table = dict[str, dict[str, Cost]]
"""Tier and row, then architecture: the greatest cost among the kernels of the row."""


def compile_all(work: Sequence[Job], done: Any = lambda batches: batches) -> Table:
    """Compile in two processes; ``done`` wraps the iteration, for a progress bar."""
    table: Table = {}
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = done(zip(work, pool.map(compile_batch, work), strict=True))
        for (_, architecture, batch), found in results:
            for kernel in batch:
                row = table.setdefault(tier(kernel), {})
                cost, column = found[kernel.expression], str(architecture)
                row[column] = row[column] | cost if column in row else cost
    return table


def every_architecture(some: Iterable[Kernel]) -> list[Job]:
    """Return some kernels for all the architectures."""
    chosen = tuple(some)
    return [job for architecture in ARCHITECTURES for job in jobs(chosen, architecture)]


def bounded_set() -> list[Job]:
    """Return all of it; what both parts hold is compiled once."""
    everywhere = dict.fromkeys([*network_kernels(), *representatives()])
    once = [kernel for kernel in generic_kernels() if kernel not in everywhere]
    return [*jobs(once, GENERIC_ARCHITECTURE), *every_architecture(everywhere)]


# The baseline


def compiler_version() -> str:
    """Return what compiles, such as "NVRTC 12.9"."""
    from cupy.cuda import nvrtc

    return "NVRTC {}.{}".format(*nvrtc.getVersion())


def read_baseline() -> tuple[str, Table]:
    """Return the compiler and the costs that are committed."""
    content = json.loads(BASELINE.read_text())
    table = {
        row: {column: Cost(*cost) for column, cost in columns.items()}
        for row, columns in content["table"].items()
    }
    return content["compiler"], table


def write_baseline(table: Table) -> None:
    """Write one line for each row, so that a change reads well in a diff."""
    lines = ",\n".join(
        f"  {json.dumps(row)}: {json.dumps({column: list(cost) for column, cost in costs.items()})}"
        for row, costs in sorted(table.items())
    )
    about = "registers, bytes spilled, bytes of local memory: the greatest of each row"
    BASELINE.write_text(
        f'{{"compiler": "{compiler_version()}", "about": "{about}", "table": {{\n{lines}\n}}}}\n'
    )


def complaints(table: Table) -> list[str]:
    """Return what is worse than the baseline, or never allowed."""
    compiler, baseline = read_baseline()
    slack = 0 if compiler == compiler_version() else SLACK
    found = []
    for row, columns in sorted(table.items()):
        for column, cost in columns.items():
            allowed = baseline.get(row, {}).get(column)
            if row.startswith("specialised") and (cost.spilled or cost.local):
                found.append(f"{row} for sm_{column} spills: {cost}")
            elif allowed is None:
                found.append(f"{row} for sm_{column} is not in the baseline: run with --update")
            elif cost.registers > allowed.registers + slack or (
                not slack and (cost.spilled > allowed.spilled or cost.local > allowed.local)
            ):
                found.append(f"{row} for sm_{column} was {allowed} and is {cost}")
    return found


# The command


def _rendered(table: Table) -> list[list[str]]:
    head = ["", *(f"sm_{architecture}" for architecture in ARCHITECTURES)]
    return [head] + [
        [row, *(str(columns.get(str(a), "")) for a in ARCHITECTURES)]
        for row, columns in sorted(table.items())
    ]


def show(table: Table) -> None:
    """Print the table, with rich where it is installed."""
    rows = _rendered(table)
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        for row, *cells in rows:
            print(f"{row:<60}", *(f"{cell:>10}" for cell in cells))
        return
    drawn = RichTable(title="registers, +bytes spilled, /bytes of local memory")
    for i, name in enumerate(rows[0]):
        drawn.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows[1:]:
        drawn.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(drawn)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compile_kernels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--update", action="store_true", help="write the baseline")
    args = parser.parse_args(arguments)
    start, work = time.perf_counter(), bounded_set()
    table = compile_all(work, lambda batches: progress(list(batches), "compiling"))
    show(table)
    count = sum(len(batch) for _, _, batch in work)
    spilling = sum(bool(cost.spilled) for columns in table.values() for cost in columns.values())
    print(
        f"{count} kernels in {len(table)} rows compiled by {compiler_version()} in "
        f"{time.perf_counter() - start:.0f} s; {spilling} entries spill"
    )
    if args.update:
        write_baseline(table)
    found = complaints(table)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
