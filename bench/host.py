"""The host's work of one call: with a GPU all of it, without one all but allocation and launch."""

from __future__ import annotations

import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np

import gpupool
from gpupool import arrays, launch

from . import peers
from .device import Call, Device

WINDOW: dict[str, Any] = {"strides": 2, "pads": 1}
SHAPE = (1, 64, 56, 56)

NOTHING = "a Python call that does nothing"
"""The measure of how fast the machine is at the moment."""


def on_gpu(device: Device) -> dict[str, Any]:
    """Return microseconds of the host for one call on a GPU, done in several ways."""
    x = device.put(np.random.default_rng(2).standard_normal(SHAPE, np.float32))
    planned = gpupool.plan("max", SHAPE, "float32", kernel_shape=3, **WINDOW)
    with device.stream():
        y = gpupool.max_pool(x, 3, **WINDOW)
    ways: dict[str, Call] = {
        "function": lambda: gpupool.max_pool(x, 3, **WINDOW),
        "function, out=": lambda: gpupool.max_pool(x, 3, out=y, **WINDOW),
        "plan object, out=": lambda: planned(x, out=y),
        "graph replay": device.record([lambda: planned(x, out=y)]),
    }
    table = {name: _on_device(device, call) for name, call in ways.items()}
    return table | _torch_overhead(device, x)


def _on_device(device: Device, call: Call) -> float:
    return float(np.median(device.host_seconds(call))) * 1e6


def _torch_overhead(device: Any, x: Any) -> dict[str, Any]:
    try:
        torch = peers.module("torch")
        stream = torch.cuda.ExternalStream(device.pool_stream.ptr)
        tensor = torch.from_dlpack(x)
        pool = torch.nn.functional.max_pool2d
        with torch.no_grad(), torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            pool(tensor, 3, 2, 1)
            with torch.cuda.graph(graph, stream=stream):
                kept = pool(tensor, 3, 2, 1)
            result = {
                "torch": _on_device(device, lambda: pool(tensor, 3, 2, 1)),
                "torch graph replay": _on_device(device, graph.replay),
            }
            del kept
    except Exception as error:
        return {"torch": peers.reason(error)}
    return result


# Without a device


def without_launch() -> dict[str, Any]:
    """Return microseconds of the host for one call up to its launch, done in several ways.

    CuPy's own arrays at addresses that nobody reads; what would compile or launch does nothing.
    """
    cupy = peers.module("cupy")
    planned = gpupool.plan("max", SHAPE, "float32", kernel_shape=3, **WINDOW)
    (x, other_x), (y, other_y) = (
        [_nowhere(cupy, shape, start << place) for start in (1, 2)]
        for shape, place in ((SHAPE, 40), (planned.problem.outputs[0].shape, 42))
    )
    pairs: dict[str, Any] = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    ways: dict[str, Call] = {
        NOTHING: lambda: None,
        "plan object, out=": lambda: planned(x, out=y),
        "plan object, other arrays": lambda: planned(other_x, out=other_y),
        "function, out=": lambda: gpupool.max_pool(x, 3, out=y, **WINDOW),
        "function with tuples, out=": lambda: gpupool.max_pool(x, (3, 3), out=y, **pairs),
    }
    with _nothing_launched(cupy):
        return dict(zip(ways, _microseconds(list(ways.values())), strict=True))


def _nowhere(cupy: Any, shape: tuple[int, ...], address: int) -> Any:
    memory = cupy.cuda.UnownedMemory(address, 4 * int(np.prod(shape)), None, 0)
    return cupy.ndarray(shape, np.float32, cupy.cuda.MemoryPointer(memory, 0))


@contextmanager
def _nothing_launched(cupy: Any) -> Iterator[None]:
    def run(problem: Any, inputs: Any, outputs: Any, kernel: str) -> Any:
        return launch.execute(
            problem, inputs, outputs, cupy, launch_nothing, kernel=kernel, by_value=launch.by_value
        )

    def launch_nothing(_: Any) -> Call:
        return lambda *_args, **_options: None

    with (
        mock.patch.object(launch, "run", run),
        mock.patch.object(arrays, "on_device", nullcontext),
        mock.patch.object(cupy.cuda.runtime, "getDevice", int),
    ):
        yield


def _microseconds(calls: list[Call], number: int = 2000, times: int = 25) -> list[float]:
    """Return the lower quartiles of means: others add to the clock, and its jumps take away.

    The calls take turns, so that a machine slow for a while is so for all of them.
    """
    timers = [timeit.Timer(call, timer=time.process_time) for call in calls]
    seconds = [[timer.timeit(number) for timer in timers] for _ in range(times + 1)][1:]
    return [float(us) for us in np.quantile(seconds, 0.25, axis=0) / number * 1e6]
