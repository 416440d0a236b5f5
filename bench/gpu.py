"""Every case on a GPU, beside a copy and its peers, in one process and one run.

The rules: the result is compared with the oracle before anything is timed. Data is random. A case
runs over several sets of buffers in turn, which together hold at least four times the L2 cache, so
that each call finds its input cold. All calls of one turn are one CUDA graph, timed by events
around its replay; the median and the spread of at least 50 replays are kept. The copy is a
device-to-device copy in the same harness, of half as many bytes as the case moves, read and
written: a large one for the throughput set, one of equal bytes for each case of the latency set. It
is the faster one of copies in a graph and of queued ones: in a graph an H200 takes half as long
again for large ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np

import gpupool
from gpupool import oracle, planner, tolerance
from gpupool.arrays import Array
from gpupool.planned import PlannedCall

from . import cudnn, peers
from .cases import Case
from .device import Call, Device
from .table import number

REPEATS = 50
"""Replays of which the median is taken, at least."""

COLD = 4
"""The buffers of a case hold at least this many times the L2 cache."""

LARGE_COPY = 512 * 2**20
"""Bytes that the throughput set's copy reads, and as many that it writes."""

NEAR = 0.01
"""How far a peer's results may be from gpupool's where data is standard normal, relative to those
above 1: it rounds sums otherwise; a wrong window is off by more. Integers may be one off."""

PEER_SECONDS = 0.5
"""Seconds that the replays of a peer may take: slow ones get fewer, five or, slower, one."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median over replays, and half of the middle 80 % relative to it."""

    seconds: float
    spread: float
    repeats: int


def timing(device: Device, replay: Call, calls: int, limit: float = inf) -> Timing:
    """Time replays of ``calls`` calls: REPEATS, or fewer where they would take beyond ``limit``.

    One that takes as long by itself is all there is.
    """
    (first,) = device.seconds(replay, 1)
    if first > limit:
        return Timing(first / calls, 0.0, 1)
    repeats = min(REPEATS, max(5, int(min(limit / first, REPEATS))))
    times = np.array(device.seconds(replay, repeats)) / calls
    low, median, high = np.quantile(times, [0.1, 0.5, 0.9])
    return Timing(float(median), float((high - low) / 2 / median), repeats)


@dataclass(frozen=True)
class Buffers:
    """Inputs and outputs of a case, several times over."""

    inputs: list[Any]
    outputs: list[tuple[Any, ...]]

    @classmethod
    def of(cls, case: Case, device: Device, x: Array) -> Buffers:
        """Lay out enough sets that the L2 cache cannot help."""
        first = device.put(x)
        sets = max(2, ceil(COLD * device.l2_bytes / case.least_bytes))
        # Rolled by an odd number: every set is as random as the first, in other places.
        inputs = [first, *(device.rolled(first, 2 * i + 1) for i in range(1, sets))]
        outputs = [
            tuple(device.empty(o.shape, o.dtype) for o in case.problem.outputs) for _ in inputs
        ]
        return cls(inputs, outputs)


def measure(case: Case, device: Device, chosen: Sequence[Peer]) -> dict[str, Any]:
    """Return the row of one case: checked, timed, and beside its peers."""
    row, x, planned = checked(case, device)
    if row["wrong"]:
        return row
    buffers = Buffers.of(case, device, x)

    calls = list(map(partial(_call, planned), buffers.inputs, buffers.outputs))
    ours = timing(device, device.record(calls), len(calls))
    copy = copied(device, case.least_bytes // 2 if case.latency else LARGE_COPY)
    moved = case.least_bytes / ours.seconds
    return row | {
        "us": ours.seconds * 1e6, "spread": ours.spread, "repeats": ours.repeats,
        "gb_s": moved / 1e9, "copy_gb_s": copy / 1e9, "copy_share": moved / copy,
        "peers": {peer.name: beside(peer, case, device, buffers, ours) for peer in chosen},
    }  # fmt: skip


def _planned(case: Case, kernel: str = "auto") -> PlannedCall:
    return gpupool.plan(case.op, case.shape, case.dtype, kernel=kernel, **case.arguments)


def _call(planned: PlannedCall, x: Any, into: tuple[Any, ...]) -> Call:
    out = into if len(into) > 1 else into[0]
    return lambda: planned(x, out=out)


def check(case: Case, device: Device) -> dict[str, Any]:
    """Return the row of a case that is compared with the oracle and not timed."""
    return checked(case, device)[0]


def checked(case: Case, device: Device) -> tuple[dict[str, Any], Array, PlannedCall]:
    """Compute a case on fresh random data and compare it with the oracle."""
    x = case.input(seed=time.time_ns())
    planned = _planned(case)
    outputs = tuple(device.empty(o.shape, o.dtype) for o in case.problem.outputs)
    source = device.put(x)
    with device.stream():
        _call(planned, source, outputs)()
    row: dict[str, Any] = {
        "id": case.id, "title": case.title, "op": case.op, "dtype": case.dtype,
        "window": case.window_text, "shape": list(case.shape), "latency": case.latency,
        "least_bytes": case.least_bytes, "goal": case.goal_copy, "goal_torch": case.goal_torch,
        "kernel": [repr(launch) for launch in planned.plan.launches],
        "wrong": wrong(case, x, [device.get(y) for y in outputs]), "peers": {},
    }  # fmt: skip
    return row, x, planned


def wrong(case: Case, x: Array, results: Sequence[Array]) -> str:
    """Compare results with the oracle; return what differs, nothing where they agree."""
    problem = case.problem
    expected = tuple(np.empty(output.shape, output.dtype) for output in problem.outputs)
    oracle.run(problem, (x,), expected)
    for output, y, right in zip(problem.outputs, results, expected, strict=True):
        same = tolerance.agree(problem, (x,), y, right)
        if not same.all():
            place = tuple(map(int, np.argwhere(~same)[0]))
            return (
                f"{int((~same).sum())} of {same.size} elements of {output.name} differ from the "
                f"oracle, first {place}: {y[place]} instead of {right[place]}"
            )
    return ""


def copied(device: Device, size: int) -> float:
    """Return the bytes that a copy of ``size`` bytes moves in a second, measured once a run."""
    if size not in device.copy_rates:
        sets = max(2, ceil(COLD * device.l2_bytes / (2 * size)))
        pairs = [
            (device.empty((size,), np.uint8), device.empty((size,), np.uint8)) for _ in range(sets)
        ]

        def call(target: Any, source: Any) -> Call:
            return lambda: device.copy(target, source)

        calls = [call(*pair) for pair in pairs]
        ways = (device.record(calls), device.queued(calls))
        fastest = min(timing(device, way, sets).seconds for way in ways)
        device.copy_rates[size] = 2 * size / fastest
    return device.copy_rates[size]


# Peers


@dataclass(frozen=True)
class Peer:
    """Another way to do a case: from buffers to one replay over all of them."""

    name: str
    prepare: Callable[[Case, Device, Buffers], tuple[Call, AbstractContextManager[Any]]]


def beside(
    peer: Peer, case: Case, device: Device, buffers: Buffers, ours: Timing
) -> dict[str, Any]:
    """Time a peer on the same buffers, or say why not."""
    try:
        replay, context = peer.prepare(case, device, buffers)
        with context:
            theirs = timing(device, replay, len(buffers.inputs), PEER_SECONDS)
    except Exception as error:
        return {"reason": peers.reason(error)}
    finally:
        device.release()
    return {
        "us": theirs.seconds * 1e6,
        "spread": theirs.spread,
        "times": theirs.seconds / ours.seconds,
    }


def _torch(
    case: Case, device: Any, buffers: Buffers, wrap: Callable[[Any, Any], Any]
) -> tuple[Call, AbstractContextManager[Any]]:
    """Capture torch's calls into torch's own graph, on the stream that is timed."""
    torch = peers.module("torch")
    if not torch.cuda.is_available():
        raise peers.UnavailableError("this torch sees no CUDA device")
    stream = torch.cuda.ExternalStream(device.pool_stream.ptr)
    views = [torch.from_dlpack(x) for x in buffers.inputs]
    if case.channels_last:
        views = [view.movedim(-1, 1) for view in views]
    with torch.no_grad(), torch.cuda.stream(stream):
        pool = wrap(torch, peers.torch_pool(case, torch, torch.float16))
        for view in (*views[:2], *views[:2]):
            pool(view)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = [pool(view) for view in views]  # each result in memory of its own

    def replay() -> Any:
        graph.replay()
        return kept

    return replay, torch.cuda.stream(stream)


def _torch_eager(
    case: Case, device: Device, buffers: Buffers
) -> tuple[Call, AbstractContextManager[Any]]:
    return _torch(case, device, buffers, lambda _, pool: pool)


def _torch_compile(
    case: Case, device: Device, buffers: Buffers
) -> tuple[Call, AbstractContextManager[Any]]:
    def compiled(torch: Any, pool: Any) -> Any:
        torch.compiler.reset()
        return torch.compile(pool, dynamic=False)

    return _torch(case, device, buffers, compiled)


def _cudnn(case: Case, device: Any, buffers: Buffers) -> tuple[Call, AbstractContextManager[Any]]:
    """Launch cuDNN's pooling."""
    prepared = cudnn.pool(case, device.pool_stream.ptr)
    return _replayed(device, buffers, lambda x, into: prepared(x, *into))


def _replayed(
    device: Device, buffers: Buffers, prepared: Callable[..., Call]
) -> tuple[Call, AbstractContextManager[Any]]:
    """Record calls that write memory of their own, once they gave what gpupool gave."""
    results = [tuple(device.empty(y.shape, y.dtype) for y in ours) for ours in buffers.outputs]
    replay = device.record(list(map(prepared, buffers.inputs, results)))
    replay()
    for ours, theirs in zip(buffers.outputs[0], results[0], strict=True):
        furthest = _furthest(device.get(ours), device.get(theirs))
        if not furthest <= (1 if ours.dtype.itemsize == 1 else NEAR):
            raise peers.UnavailableError(f"its results differ by {furthest:.3g}")
    return replay, nullcontext(results)  # which it writes, again and again


def _furthest(one: Array, other: Array) -> float:
    """Return how far results are apart, those of floats above 1 relative to what they are."""
    wide = np.float64 if one.dtype.itemsize == 8 else np.float32
    apart = np.abs(one.astype(wide) - other.astype(wide))
    if one.dtype.kind not in "iu":
        apart /= np.maximum(np.abs(one.astype(wide)), 1)
    return float(apart.max(initial=0))


def _asked(
    kernel: str, case: Case, device: Device, buffers: Buffers
) -> tuple[Call, AbstractContextManager[Any]]:
    """Launch one of gpupool's own kernels, where another is chosen as the fastest."""
    planned = _planned(case, kernel)
    if repr(planned.plan) == repr(_planned(case).plan):
        raise peers.UnavailableError("it is the one that is chosen")
    return _replayed(device, buffers, partial(_call, planned))


def _cupyx(
    case: Case, device: Device, buffers: Buffers
) -> tuple[Call, AbstractContextManager[Any]]:
    ndimage = peers.module("cupyx.scipy.ndimage")
    pool = peers.cupyx_filter(case, ndimage)

    def call(x: Any) -> Call:
        return lambda: pool(x)

    return device.record([call(x) for x in buffers.inputs]), nullcontext()


PEERS = (
    Peer("torch", _torch_eager),
    Peer("torch.compile", _torch_compile),
    Peer("cuDNN", _cudnn),
    Peer("cupyx", _cupyx),
)

WAYS = tuple(Peer(name, partial(_asked, name)) for name in planner.KERNELS if name != "auto")
"""Other ways of gpupool itself, which show whether the plan chose the fastest."""


# The table


def head(names: Sequence[str]) -> list[str]:
    """Return the columns: time, speed, share of copy, then times for each peer."""
    return [
        "id", "case", "dtype", "window", "us", "+-%", "GB/s", "of copy", "goal",
        *(f"x {name}" for name in names), "blank because",
    ]  # fmt: skip


def cells(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the row of a case as text, in the order of ``head``."""
    goal = "" if row["goal"] is None else f"{row['goal']:.2f}"
    start = [row["id"], row["title"], row["dtype"], row["window"]]
    if row["wrong"]:
        return [*start, "", "", "", "", goal, *("" for _ in names), f"WRONG: {row['wrong']}"]
    found = [row["peers"].get(name, {}) for name in names]
    blanks = [f"{n}: {f['reason']}" for n, f in zip(names, found, strict=True) if "reason" in f]
    return [
        *start, number(row["us"]), f"{100 * row['spread']:.1f}", number(row["gb_s"]),
        f"{row['copy_share']:.2f}", goal, *(number(f.get("times")) for f in found),
        "; ".join(blanks),
    ]  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the overall figures in one line."""
    right = [row for row in rows if not row["wrong"]]
    parts = [f"{len(rows)} cases, {len(rows) - len(right)} wrong"]
    shares = [row["copy_share"] for row in right if "copy_share" in row and not row["latency"]]
    if shares:
        parts.append(f"geometric mean {geometric(shares):.2f} of copy")
    names = {name for row in right for name in row["peers"]}
    for name in [peer.name for peer in (*PEERS, *WAYS) if peer.name in names]:
        times = [t for row in right if (t := row["peers"].get(name, {}).get("times"))]
        if times:
            parts.append(f"{geometric(times):.2f}x {name} over {len(times)} cases")
    return ", ".join(parts)


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean.

    >>> round(geometric([1, 4]), 6)
    2.0
    """
    return float(np.exp(np.mean(np.log(values))))


CHECK_HEAD = ("id", "case", "dtype", "window", "verdict", "kernel")


def check_cells(row: dict[str, Any]) -> list[str]:
    """Return the row of a case that was only checked as text."""
    start = [row["id"], row["title"], row["dtype"], row["window"]]
    return [*start, row["wrong"] or "agrees with the oracle", " + ".join(row["kernel"])]
