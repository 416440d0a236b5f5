"""The performance section of a README, written from the newest result in bench/results.

A measurement on a GPU comes first; until there is one, the counted instructions stand there, named
as what they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpupool.errors import GpupoolValueError

from . import gpu, record, static, table

RESULTS = Path(__file__).resolve().parent / "results"

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"


def newest(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the newest result, one measured on a GPU before any other."""
    results = [record.read(path) for path in sorted(folder.glob("*.json"))]
    for mode in ("gpu", "static"):
        if found := [result for result in results if result["mode"] == mode]:
            return max(found, key=lambda result: str(result["date"]))
    raise GpupoolValueError(f"{folder} holds no result")


def section(result: dict[str, Any]) -> str:
    """Return the section of one result as Markdown."""
    commit = f"{result['date']}, commit {result['commit']}"
    if result["mode"] == "gpu":
        names = list(dict.fromkeys(name for row in result["rows"] for name in row["peers"]))
        shown = [0, 1, 2, 3, 4, 6, 7, 8, *range(9, 9 + len(names))]
        head, cells = gpu.head(names), [gpu.cells(row, names) for row in result["rows"]]
        text = f"Measured on {result['device']['name']} ({commit}): {gpu.summary(result['rows'])}."
    else:
        shown = list(range(9))
        above = ", ".join(static.above_half(result["rows"])) or "none"
        head, cells = list(static.HEAD), [static.cells(row) for row in result["rows"]]
        text = (
            "Nothing here was measured on a GPU yet. The table is counted in sm_90 machine code "
            f"({commit}): thread-instructions for each output that an H200 can issue while it "
            "copies the least bytes (budget), on the way of one lane (path) and issued with "
            "divergence (issued), and the share of copy speed which that allows (of copy), "
            "whatever caches and memory do; where values decide a branch, the shortest way counts. "
            f"Above half of the budget: {above}."
        )
    rows = [[row[i] for i in shown] for row in cells]
    return f"{text}\n\n{table.markdown([head[i] for i in shown], rows)}"


def update(path: Path, folder: Path = RESULTS) -> None:
    """Replace what stands between the marks of a file."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise GpupoolValueError(f"{path} has no section between {BEGIN} and {END}")
    new = f"{BEGIN}\n{section(newest(folder))}\n{END}"
    record.write_text(pattern.sub(lambda _: new, text, count=1), path)
