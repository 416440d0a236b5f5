"""Everything that a GPU can tell, in one call: ``python3 -m bench.gpu_report --out DIR``.

Runs from a checkout without installation, in under ten minutes. Every part is a process of its
own with its own time limit, so that one that fails or hangs loses nothing of the others: the GPU
tests, compute-sanitizer on a few small cases, the host's overhead and first calls, every case
beside its peers and, in the time that is left, beside the kernels that the plan did not choose. DIR
then holds report.json, report.md, report.png, kernels.json and the result bench.json, which is to
be kept in bench/results. What the parts import must be there: hypothesis for the tests, peers at
will; pytest-xdist, where it is there, compiles the tests' kernels in several processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpupool.errors import GpupoolError
from gpupool.planner import KERNELS
from gpupool.terminal import say

PACKAGE = __package__ or "bench"
ROOT = Path(__file__).resolve().parents[len(PACKAGE.split("."))]

SECONDS = 570
"""For all parts together; what one does not use is left to the next."""

PROCESSES = 8
"""For the tests: each has a context of its own on the device, and memory of its own."""

SMALL = (
    {"id": "S1", "op": "max", "dtype": "float16", "shape": [2, 3, 20, 20], "kernel": 3,
     "strides": 2, "pads": 1},
    {"id": "S2", "op": "max", "dtype": "float32", "shape": [1, 2, 17, 19], "kernel": 3, "pads": 1,
     "flags": ["indices"]},
    {"id": "S3", "op": "average", "dtype": "uint8", "layout": "NHWC", "shape": [1, 16, 16, 3],
     "kernel": 2, "strides": 2},
    {"id": "S4", "op": "global-average", "dtype": "float32", "shape": [2, 40, 7, 7]},
    {"id": "S5", "op": "global-max", "dtype": "float32", "shape": [1, 1, 700, 700]},
    {"id": "S6", "op": "lp", "dtype": "float32", "shape": [1, 2, 30, 30], "kernel": 13, "pads": 6},
    {"id": "S7", "op": "max", "dtype": "float16", "layout": "NCDHW", "shape": [1, 2, 8, 14, 14],
     "kernel": 3, "strides": 2, "pads": 1},
    {"id": "S8", "op": "max", "dtype": "float16", "shape": [64, 512, 7, 7], "kernel": 3, "pads": 1},
    {"id": "S9", "op": "average", "dtype": "float32", "shape": [1, 16, 256, 256], "kernel": 7,
     "pads": 3},
    {"id": "S10", "op": "max", "dtype": "float32", "shape": [1, 4, 300, 300], "kernel": 15,
     "pads": 7},
    {"id": "S11", "op": "max", "dtype": "float32", "shape": [16, 64, 33, 33], "kernel": 9,
     "pads": 4, "flags": ["indices"]},
    {"id": "S12", "op": "global-average", "dtype": "float32", "layout": "NHWC",
     "shape": [2, 20, 20, 64]},
    {"id": "S13", "op": "global-average", "dtype": "float32", "layout": "NHWC",
     "shape": [1, 300, 300, 16]},
    {"id": "S14", "op": "average", "dtype": "float16", "shape": [9, 256, 35, 35], "kernel": 3,
     "pads": 1},
    {"id": "S15", "op": "max", "dtype": "float32", "shape": [20, 512, 13, 13], "kernel": 5,
     "pads": 2},
)  # fmt: skip
"""Cases that a sanitizer gets through in seconds: every kernel that pools by windows, and parts of
rows."""

TIMED: dict[str, tuple[str, Sequence[str]]] = {
    "cases": ("bench.json", ()),
    "kernels": ("kernels.json", ("--peers", ",".join(name for name in KERNELS if name != "auto"))),
}
"""What timed cases leave, and their options: beside libraries, and beside gpupool's own kernels."""

FIRST_CALLS = """
import json, time, cupy, gpupool
x = cupy.zeros((1, 8, 32, 32), "float32")
cupy.cuda.Device().synchronize()
times = []
for kernel in (2, 3, 4):
    start = time.perf_counter()
    gpupool.max_pool(x, kernel, strides=2)
    cupy.cuda.Device().synchronize()
    times.append(1e3 * (time.perf_counter() - start))
print(json.dumps({"first": times[0], "next": sum(times[1:]) / 2}))
"""


@dataclass(frozen=True)
class Outcome:
    """How a part ended, the end of what it printed, and what it measured."""

    name: str
    status: str
    seconds: float
    output: str
    result: Any = None

    @property
    def last_line(self) -> str:
        """What a process says last: pytest its numbers, a failure its reason."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip()[:120] if lines else ""


@dataclass(frozen=True)
class Part:
    """A process: its command, its time limit, and how to read what it leaves behind."""

    name: str
    command: Sequence[str]
    limit: float
    read: Callable[[str], Any] = lambda _: None
    environment: dict[str, str] | None = None


def perform(part: Part, remaining: float) -> Outcome:
    """Run a part within its limit; whatever it wrote until then is read."""
    start, limit = time.monotonic(), min(part.limit, remaining)
    if limit <= 0:
        return Outcome(part.name, "left out: no time remained", 0.0, "")
    if not shutil.which(part.command[0]):
        return Outcome(part.name, f"left out: {part.command[0]} is not installed", 0.0, "")
    process = subprocess.Popen(
        part.command, cwd=ROOT, env=part.environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        code = process.returncode
        status = "passed" if code == 0 else f"failed with exit status {code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too, which hold the pipe open
        output, _ = process.communicate()
        status = f"stopped at its limit of {limit:.0f} s"
    if "Device not supported" in output:
        status = "refused: this machine lets no tool watch its device"
    try:
        result = part.read(output)
    except (OSError, ValueError, GpupoolError) as error:
        result = None
        output += f"\nnothing to read: {error}"
    return Outcome(part.name, status, time.monotonic() - start, output[-4000:], result)


def parts(out: Path, scratch: Path, only: str = "") -> list[Part]:
    """Return the parts, the dearest last, which take the time that the others leave."""
    python = [sys.executable, "-W", "ignore"]
    small = scratch / "small.json"
    small.write_text(json.dumps(SMALL), encoding="utf-8")
    check = [*python, "-m", PACKAGE, "--cases", str(small), "--check"]
    host = scratch / "host.json"
    cold = {**os.environ, "CUPY_CACHE_DIR": str(scratch / "cache")}
    cases = ["--only", only] if only else []
    required = {**os.environ, "GPUPOOL_REQUIRE_GPU": "1"}  # else tests without one are skipped
    tests = [*python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *_processes()]
    return [
        Part("tests", tests, 230, environment=required),
        Part("small cases", check, 45),
        *(
            Part(tool, ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *check], 35)
            for tool in ("memcheck", "racecheck")
        ),
        Part(
            "host overhead",
            [*python, "-m", PACKAGE, "--host", "--json", str(host)],
            40,
            lambda _: json.loads(host.read_text(encoding="utf-8"))["rows"],
        ),
        *(
            Part(f"first calls, {state} cache", [*python, "-c", FIRST_CALLS], 25, _last_line, cold)
            for state in ("cold", "warm")
        ),
        *(
            _timed(name, out / file, [*python, "-m", PACKAGE, *cases, *options])
            for name, (file, options) in TIMED.items()
        ),
    ]


def _timed(name: str, file: Path, command: Sequence[str]) -> Part:
    """Return a part that times cases and leaves a file."""
    asked = [*command, "--json", str(file)]
    return Part(name, asked, SECONDS, lambda _: json.loads(file.read_text(encoding="utf-8")))


def _processes() -> list[str]:
    """Return pytest's option for several processes: first runs spend their time compiling."""
    if find_spec("xdist") is None:
        return []
    return ["-n", str(min(os.cpu_count() or 1, PROCESSES))]


def _last_line(output: str) -> Any:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def report(outcomes: Sequence[Outcome], out: Path) -> None:
    """Write report.json, report.md and, where cases were timed, report.png."""
    from . import plot, table

    found = {outcome.name: outcome for outcome in outcomes}
    (out / "report.json").write_text(
        json.dumps({name: vars(outcome) for name, outcome in found.items()}, indent=1) + "\n",
        encoding="utf-8",
    )
    text = ["# gpupool on a GPU", ""]
    rows = [[o.name, o.status, f"{o.seconds:.0f}", o.last_line] for o in outcomes]
    text += [table.markdown(("part", "outcome", "s", "last line"), rows), ""]
    timed = {name: o.result for name, o in found.items() if name in TIMED and o.result}
    for name, result in timed.items():
        text += _timed_table(name, result)
    if "cases" in timed:
        text += ["```", json.dumps(timed["cases"]["device"], indent=1), "```", ""]
        try:
            plot.save(timed["cases"], out / "report.png")
        except GpupoolError as error:
            text += [f"No plot: {error}.", ""]
    text += _small_tables(found)
    failures = [o for o in outcomes if o.status != "passed"]
    for outcome in failures:
        text += [f"## {outcome.name}: {outcome.status}", "", "```", outcome.output, "```", ""]
    (out / "report.md").write_text("\n".join(text), encoding="utf-8")


def _timed_table(name: str, result: dict[str, Any]) -> list[str]:
    from . import gpu, table

    rows = result["rows"]
    names = list(dict.fromkeys(peer for row in rows for peer in row.get("peers", {})))
    heading = f"## {name.capitalize()} on {result['device']['name']}"
    cells = [gpu.cells(row, names) for row in rows]
    return [heading, "", f"{gpu.summary(rows)}.", "", table.markdown(gpu.head(names), cells), ""]


def _small_tables(found: dict[str, Outcome]) -> list[str]:
    from . import table

    text = []
    host = found.get("host overhead")
    if host and host.result:
        rows = [[row["id"], _text(row["us"])] for row in host.result]
        text += ["## Host", "", table.markdown(("one call", "us of the host"), rows), ""]
    calls = [(name, o.result) for name, o in found.items() if "first calls" in name and o.result]
    if calls:
        rows = [[name, _text(r["first"]), _text(r["next"])] for name, r in calls]
        text += [table.markdown(("ms", "first kernel", "next kernels"), rows), ""]
    return text


def _text(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts and write the report; 1 where a part did not pass."""
    parser = argparse.ArgumentParser("python3 -m bench.gpu_report", description=__doc__)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="made where missing")
    parser.add_argument("--only", metavar="ID,ID..", default="", help="time these cases only")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + SECONDS
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts(args.out, Path(scratch), args.only):
            outcomes.append(perform(part, end - time.monotonic()))
            say(f"{outcomes[-1].name}: {outcomes[-1].status} ({outcomes[-1].seconds:.0f} s)")
            report(outcomes, args.out)
    return 0 if all(outcome.status == "passed" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
