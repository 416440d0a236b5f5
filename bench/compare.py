"""Old against new: a ratio for each case, and which of them are worse beyond the noise.

What is compared is a cost in which both runs are alike: instructions issued for each output
(static), time over the time of the run's own copy (gpu), time over onnxruntime's or torch's on the
same machine (cpu). A case is worse when the ratio exceeds 1 by more than the tolerance of its mode
and three times the spread that both runs report.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import Any

from gpupool.errors import GpupoolValueError

TOLERANCE = {"static": 0.02, "gpu": 0.03, "cpu": 0.15}
"""By how much a case may be worse in each mode before its own spread is asked."""

SPREADS = 3


@dataclass(frozen=True)
class Change:
    """One case in two results; ``ratio`` above 1 is worse."""

    id: str
    old: float
    new: float
    allowed: float

    @property
    def ratio(self) -> float:
        """The new cost over the old one."""
        return self.new / self.old

    @property
    def verdict(self) -> str:
        """Worse, better, or nothing to say."""
        if self.ratio > self.allowed:
            return "worse"
        return "better" if self.ratio < 1 / self.allowed else ""

    def cells(self) -> list[str]:
        """Return the row of the table."""
        return [
            self.id, f"{self.old:.4g}", f"{self.new:.4g}", f"{self.ratio:.3f}",
            f"{self.allowed:.3f}", self.verdict,
        ]  # fmt: skip


HEAD = ("id", "old", "new", "ratio", "allowed", "verdict")


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Return the change of every case that both results have a cost for.

    >>> row = {"id": "A", "issued": 10.0}
    >>> static = {"mode": "static", "rows": [row]}
    >>> [change.verdict for change in compare(static, {**static, "rows": [row | {"issued": 11}]})]
    ['worse']
    """
    mode = new["mode"]
    check(old, mode)
    before = {row["id"]: row for row in old["rows"]}
    changes = []
    for row in new["rows"]:
        earlier = before.get(row["id"])
        if earlier is None or _work(earlier) != _work(row):
            continue
        a, b = cost(mode, earlier), cost(mode, row)
        if a is None or b is None:
            continue
        noise = SPREADS * hypot(earlier.get("spread", 0.0), row.get("spread", 0.0))
        changes.append(Change(row["id"], a, b, 1 + TOLERANCE[mode] + noise))
    if not changes:
        raise GpupoolValueError("the two results share no case")
    return changes


def check(old: dict[str, Any], mode: str) -> None:
    """Refuse a mode that has no cost, and an old result of another one."""
    if mode not in TOLERANCE:
        costly = ", ".join(TOLERANCE)
        raise GpupoolValueError(f"a {mode} result has no cost to compare: {costly} have one")
    if old["mode"] != mode:
        raise GpupoolValueError(f"a {old['mode']} result cannot be compared with a {mode} result")


def _work(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what two rows of one name must share to be the same case."""
    return tuple(row.get(key) for key in ("op", "dtype", "window", "shape"))


def cost(mode: str, row: dict[str, Any]) -> float | None:
    """Return what a case costs, on a scale that runs share; None where it was not measured."""
    if mode == "static":
        return float(row["issued"])
    if mode == "gpu":
        return 1 / row["copy_share"] if row.get("copy_share") else None
    ratio = row.get("onnxruntime_ratio") or row.get("torch_ratio")
    return float(ratio) if ratio else None
