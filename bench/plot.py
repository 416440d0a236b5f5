"""One picture of a result: how near each case comes to its roof, and how it stands to its peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from gpupool.errors import GpupoolError

OURS, GOAL, ROOF = "#1f4e79", "#c0392b", "#7f8c8d"
LEADER = {"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.6}
PEERS = (
    "#e08e0b", "#8e44ad", "#2e8b57", "#6d4c41", "#c2185b", "#00838f", "#9e9d24", "#5c6bc0",
    "#8d99ae",
)  # fmt: skip


def save(result: dict[str, Any], path: Path) -> None:
    """Draw a result of any mode that has a picture into a file of any kind that matplotlib has."""
    draw, matplotlib = check(result["mode"], path)
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    rows = [row for row in result["rows"] if not row.get("wrong")]
    if not rows:
        raise GpupoolError("there is no correct case to draw")
    height = 1.6 + 0.24 * len(rows) * (1.6 if result["mode"] == "gpu" else 1)
    figure, axes = pyplot.subplots(
        1, 2, figsize=(15, max(5.5, height)), dpi=110, width_ratios=(1, 1.15), layout="constrained"
    )
    draw(rows, *axes)
    figure.suptitle(_title(result), fontsize=12)
    figure.savefig(path)
    pyplot.close(figure)


def check(mode: str, path: Path) -> tuple[Callable[..., None], Any]:
    """Return what draws a mode's results, and matplotlib; refuse where either cannot."""
    draw = {"static": _static, "gpu": _gpu, "cpu": _cpu}.get(mode)
    if draw is None:
        raise GpupoolError(f"a {mode} result has no picture")
    try:
        matplotlib = importlib.import_module("matplotlib")
        canvas = importlib.import_module("matplotlib.backend_bases").FigureCanvasBase
    except ImportError:
        raise GpupoolError("--plot needs matplotlib: python3 -m pip install matplotlib") from None
    kinds = sorted(canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in kinds:
        raise GpupoolError(f"{path}: a picture ends in one of .{', .'.join(kinds)}")
    return draw, matplotlib


def _title(result: dict[str, Any]) -> str:
    names = {
        "static": "counted in sm_90 machine code, nothing measured",
        "gpu": "measured on " + result.get("device", {}).get("name", "a GPU"),
        "cpu": "the oracle on one CPU thread",
    }
    return f"gpupool, {names[result['mode']]} ({result['date']}, commit {result['commit']})"


def _labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    short = {"float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16"}
    return [
        f"{row['id']}  {row['title']}  {short.get(row['dtype'], row['dtype'])} {row['window']}"
        for row in rows
    ]


def _bars(
    axis: Any, rows: Sequence[dict[str, Any]], bars: dict[str, tuple[str, list[Any]]]
) -> None:
    """Draw groups of horizontal bars, one group for each case, the first case on top."""
    height = 0.8 / len(bars)
    for i, (name, (colour, values)) in enumerate(bars.items()):
        places = [row + (i - (len(bars) - 1) / 2) * height for row in range(len(rows))]
        shown = [(place, v) for place, v in zip(places, values, strict=True) if v is not None]
        if shown:
            axis.barh(*zip(*shown, strict=True), height=height * 0.92, color=colour, label=name)
    axis.set_yticks(range(len(rows)), _labels(rows), fontsize=8)
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.grid(axis="x", color="#dddddd")
    axis.set_axisbelow(True)


def _legend(axis: Any) -> None:
    """Explain the colours above the bars, where they cover none."""
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=6, fontsize=8, frameon=False)


def _goals(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    marked = [(row["goal"], i) for i, row in enumerate(rows) if row["goal"]]
    if marked:
        axis.plot(
            *zip(*marked, strict=True), "|", color=GOAL, ms=11, mew=2.2, label="goal", zorder=5
        )


def _names(axis: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Write each name at the nearest place beside its point that nothing written covers."""
    axis.figure.canvas.draw()  # fixes what a pixel is
    places = {name: axis.transData.transform((x, y)) for name, x, y in points}
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places.values()]
    for name, x, y in sorted(points, key=lambda point: point[1]):
        width, height = 8.0 * len(name), 13.0
        sides = [(6.0, -4.0), (-width - 6, -4.0)]
        columns = [
            (-width / 2, y) for away in range(7, 200, 13) for y in (float(away), -away - height)
        ]
        px, py = places[name]
        for dx, dy in (*columns[:2], *sides, *columns[2:]):
            box = (px + dx, py + dy, px + dx + width, py + dy + height)
            if not any(_meet(box, other) for other in taken):
                break
        taken.append(box)
        axis.annotate(
            name, (x, y), (dx, dy), textcoords="offset pixels", fontsize=7, color="#333333",
            arrowprops=None if -25 < dy < 12 else LEADER,
        )  # fmt: skip


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _static(rows: Sequence[dict[str, Any]], roof: Any, bars: Any) -> None:
    from gpupool.planner.launches import BUDGET

    points = [
        (r["id"], r["issued"] * r["outputs"] / r["least_bytes"], r["predicted"]) for r in rows
    ]
    least, most = (f(x for _, x, _ in points) for f in (min, max))
    line = [min(least, BUDGET) / 2, BUDGET, max(most, BUDGET) * 2]
    roof.plot(line, [min(1.0, BUDGET / x) for x in line], color=ROOF, lw=2)
    roof.axvline(BUDGET, color=ROOF, lw=1, ls=":")
    roof.text(
        BUDGET * 1.15, 1.6, f"{BUDGET} instructions a byte:\nissue takes as long as the copy",
        fontsize=8, color=ROOF,
    )  # fmt: skip
    roof.plot([x for _, x, _ in points], [y for *_, y in points], "o", color=OURS, ms=5)
    roof.set(
        xscale="log", yscale="log", xlabel="thread-instructions issued for each byte moved",
        ylabel="share of copy speed forecast", title="Roofline", ylim=(None, 4),
    )  # fmt: skip
    roof.grid(color="#eeeeee", which="both")
    _bars(bars, rows, {"forecast": (OURS, [row["predicted"] for row in rows])})
    _goals(bars, rows)
    bars.axvline(1, color=ROOF, lw=1.5)
    bars.set(xlabel="share of copy speed forecast", xlim=(0, 1.05))
    _legend(bars)
    _names(roof, points)


def _gpu(rows: Sequence[dict[str, Any]], roof: Any, bars: Any) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    copy = max(row["copy_gb_s"] for row in rows)
    points = [(row["id"], row["least_bytes"] / 1e6, row["gb_s"]) for row in rows]
    roof.axhline(copy, color=ROOF, lw=2, label=f"device-to-device copy, {copy:.0f} GB/s")
    for name, colour in zip(names, cycle(PEERS), strict=False):
        found = [
            (row["least_bytes"] / 1e6, row["least_bytes"] / row["peers"][name]["us"] / 1e3)
            for row in rows
            if row["peers"].get(name, {}).get("us")
        ]
        if found:
            roof.plot(*zip(*found, strict=True), "x", color=colour, ms=5, label=name)
    roof.plot([x for _, x, _ in points], [y for *_, y in points], "o", color=OURS, label="gpupool")
    roof.set(
        xscale="log", yscale="log", xlabel="least bytes of the case (MB)",
        ylabel="least bytes over time (GB/s)", title="Roofline: the copy is the roof",
        ylim=(None, 2.2 * copy),
    )  # fmt: skip
    roof.grid(color="#eeeeee", which="both")
    roof.legend(loc="lower right", fontsize=8)

    def shares(name: str) -> list[float | None]:
        times = [row["peers"].get(name, {}).get("times") for row in rows]
        return [t and row["copy_share"] / t for t, row in zip(times, rows, strict=True)]

    groups = {"gpupool": (OURS, [row["copy_share"] for row in rows])}
    groups |= {name: (c, shares(name)) for name, c in zip(names, cycle(PEERS), strict=False)}
    _bars(bars, rows, {n: g for n, g in groups.items() if any(v is not None for v in g[1])})
    _goals(bars, rows)
    bars.axvline(1, color=ROOF, lw=1.5)
    bars.set(xlabel="share of copy speed")
    _legend(bars)
    _names(roof, points)


def _cpu(rows: Sequence[dict[str, Any]], times: Any, ratios: Any) -> None:
    from .cpu import LIMIT

    keys = {"oracle": "ms", "onnxruntime": "onnxruntime_ms", "torch": "torch_ms"}
    colours = dict(zip(keys, (OURS, *PEERS), strict=False))
    _bars(times, rows, {n: (colours[n], [row[key] for row in rows]) for n, key in keys.items()})
    times.set(xscale="log", xlabel="ms on one thread")
    _legend(times)
    found = {
        name: (colours[name], [row[f"{name}_ratio"] for row in rows])
        for name in ("onnxruntime", "torch")
    }
    _bars(ratios, rows, found)
    ratios.axvline(LIMIT, color=GOAL, lw=1.5, label=f"goal: {LIMIT:g}x onnxruntime")
    ratios.axvline(1, color=ROOF, lw=1.5)
    ratios.set(
        xscale="log",
        xlabel="time of the oracle over the peer's (left is better)",
    )
    _legend(ratios)
