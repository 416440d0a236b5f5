"""A result and where it came from: versions, commit and date beside every number."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpupool
from gpupool.errors import GpupoolValueError
from gpupool.files import writing

PACKAGES = (
    "numpy", "cupy-cuda12x", "cupy-cuda13x", "torch", "triton", "onnx", "onnxruntime",
    "onnxruntime-gpu", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvdisasm",
)  # fmt: skip


def record(mode: str, rows: Sequence[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Return the result of a run: its mode, its rows, and what may have influenced them."""
    return {
        "mode": mode,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "versions": versions(),
        **facts,
        "rows": list(rows),
    }


def versions() -> dict[str, str]:
    """Return the versions of everything that took part and is installed."""
    found = {"gpupool": gpupool.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the checkout, with a plus where files differ.

    None where gpupool is in none, or installed within one of something else.
    """
    folder = Path(gpupool.__file__).parent
    try:
        _, head, changes = (
            subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (
                ("ls-files", "--error-unmatch", Path(gpupool.__file__).name),
                ("rev-parse", "--short=12", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", ".", "../kernels"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changes else "")


def write(result: dict[str, Any], path: Path) -> None:
    """Write a result as JSON, one row a line so that differences can be read."""
    head = {key: value for key, value in result.items() if key != "rows"}
    text = json.dumps(head, indent=1)[:-2]
    rows = ",\n  ".join(json.dumps(row) for row in result["rows"])
    write_text(f'{text},\n "rows": [\n  {rows}\n ]\n}}\n', path)


def write_text(text: str, path: Path) -> None:
    """Write a text file; an error names it."""
    with writing(path):
        path.write_text(text, encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Read a result; anything else is refused."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding, too
        raise GpupoolValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(result, dict) or not {"mode", "rows"} <= result.keys():
        raise GpupoolValueError(f"{path} is no result of this benchmark: it has no mode and rows")
    return result


def as_csv(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table's cells as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
