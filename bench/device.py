"""What the benchmark asks of a device: memory, graphs of calls, and a clock of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gpupool.arrays import Array
from gpupool.device import devices, driver_version, gpu_reason
from gpupool.errors import GpupoolError

Call = Callable[[], Any]


class Device(Protocol):
    """A device with a stream on which everything runs."""

    l2_bytes: int
    copy_rates: dict[int, float]
    """Bytes that copies of so many bytes move in a second, of sizes measured."""

    def facts(self) -> dict[str, Any]:
        """Return name, memory, driver and clocks."""

    def put(self, array: Array) -> Any:
        """Copy to the device."""

    def get(self, array: Any) -> Array:
        """Copy back, after everything before."""

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return memory whose contents do not matter."""

    def rolled(self, array: Any, by: int) -> Any:
        """Return a copy with its elements moved on: other memory, as random."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy device memory, as the driver does."""

    def stream(self) -> AbstractContextManager[Any]:
        """Make the stream current."""

    def record(self, calls: Sequence[Call]) -> Call:
        """Return one replay of all calls, the host's work left out."""

    def queued(self, calls: Sequence[Call]) -> Call:
        """Return what makes all calls one by one, as a program does that knows no graphs."""

    def seconds(self, replay: Call, repeats: int) -> list[float]:
        """Return the device's time of each of ``repeats`` replays, after a few for warming up."""

    def host_seconds(self, call: Call) -> list[float]:
        """Return the host's time of a call that does not wait, several times over."""

    def release(self) -> None:
        """Give unused memory back."""


class Cuda:
    """The current CUDA device, through CuPy."""

    def __init__(self) -> None:
        if reason := gpu_reason():
            others = "--static, --cold, --cpu and --host need none"
            raise GpupoolError(f"there is no GPU to time on: {reason} ({others})")
        import cupy

        self.cupy: Any = cupy
        self.pool_stream = cupy.cuda.Stream(non_blocking=True)
        self.l2_bytes = int(cupy.cuda.Device().attributes["L2CacheSize"])
        self.copy_rates: dict[int, float] = {}

    def facts(self) -> dict[str, Any]:
        """Return what CUDA and nvidia-smi say of the device."""
        index = self.cupy.cuda.Device().id
        driver = driver_version()
        return {
            **devices()[index],
            "l2_bytes": self.l2_bytes,
            "cuda_driver": ".".join(map(str, driver)) if driver else None,
            "cuda_runtime": self.cupy.cuda.runtime.runtimeGetVersion(),
            **clocks(),
        }

    def put(self, array: Array) -> Any:
        """Copy to the device."""
        with self.pool_stream:
            return self.cupy.asarray(array)

    def get(self, array: Any) -> Array:
        """Copy back, after everything before."""
        self.pool_stream.synchronize()
        result: Array = self.cupy.asnumpy(array)
        return result

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return memory whose contents do not matter."""
        with self.pool_stream:
            return self.cupy.empty(tuple(shape), dtype)

    def rolled(self, array: Any, by: int) -> Any:
        """Return a copy with its elements moved on."""
        with self.pool_stream:
            return self.cupy.roll(array.reshape(-1), by).reshape(array.shape)

    def copy(self, target: Any, source: Any) -> None:
        """Copy device memory, as the driver does."""
        target.data.copy_from_device_async(source.data, source.nbytes, self.pool_stream)

    def stream(self) -> AbstractContextManager[Any]:
        """Make the stream current."""
        context: AbstractContextManager[Any] = self.pool_stream
        return context

    def record(self, calls: Sequence[Call]) -> Call:
        """Capture the calls, each made once before, into a graph."""
        with self.pool_stream as stream:
            for call in calls:
                call()  # compiles, loads, and fills the memory pool
            stream.synchronize()
            stream.begin_capture()
            try:
                for call in calls:
                    call()
            finally:
                graph = stream.end_capture()
            graph.upload(stream)
        return lambda: graph.launch(self.pool_stream)

    def queued(self, calls: Sequence[Call]) -> Call:
        """Make the calls on the stream."""

        def replay() -> None:
            with self.pool_stream:
                for call in calls:
                    call()

        return replay

    def seconds(self, replay: Call, repeats: int) -> list[float]:
        """Time replays by events, all of them queued before the first is waited for."""
        event = self.cupy.cuda.Event
        pairs = [(event(), event()) for _ in range(repeats)]
        with self.pool_stream as stream:
            for _ in range(3):
                replay()
            for begin, end in pairs:
                begin.record(stream)
                replay()
                end.record(stream)
            stream.synchronize()
        elapsed = self.cupy.cuda.get_elapsed_time
        return [elapsed(begin, end) / 1e3 for begin, end in pairs]

    def host_seconds(self, call: Call) -> list[float]:
        """Time batches too short to fill the queue of launches."""
        times = []
        with self.pool_stream as stream:
            for _ in range(50):
                call()
            for _ in range(30):
                stream.synchronize()
                start = time.perf_counter()
                for _ in range(200):
                    call()
                times.append((time.perf_counter() - start) / 200)
            stream.synchronize()
        return times

    def release(self) -> None:
        """Give unused memory back."""
        self.pool_stream.synchronize()
        self.cupy.get_default_memory_pool().free_all_blocks()


def clocks() -> dict[str, str]:
    """Return what nvidia-smi says now of driver, clocks, power and temperature."""
    fields = (
        "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem",
        "power.draw", "power.limit", "temperature.gpu", "clocks_throttle_reasons.active",
    )  # fmt: skip
    found: dict[str, str] = {}
    for name in fields:
        try:
            done = subprocess.run(
                ["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader", "--id=0"],
                capture_output=True, text=True, timeout=20, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        found[name] = done.stdout.strip()
    return found
