"""The backends that every law is tested on, and the Hypothesis profiles."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pytest.exit("the tests need hypothesis: pip install '.[test]'", returncode=4)

import gpupool
from gpupool import planner
from gpupool.arrays import address_range, pointer
from gpupool.planner import Launch, specialised
from gpupool.terminal import INTERRUPTS
from tests import emulator
from tests.combinations import combinations
from tests.cuda_on_cpu import EmulatorUnavailableError, compiler, cuda_include_dirs

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=200, suppress_health_check=QUIET
)
settings.register_profile(
    "thorough", deadline=None, max_examples=3000, suppress_health_check=QUIET, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@dataclass(frozen=True)
class Backend:
    """The public functions of one implementation, and the way into and out of its arrays.

    ``array`` keeps values and, where it can, strides; ``numpy`` brings a result back.
    """

    name: str
    functions: Any = field(repr=False)
    array: Callable[[np.ndarray[Any, Any]], Any] = lambda x: x
    numpy: Callable[[Any], np.ndarray[Any, Any]] = lambda x: x

    def __getattr__(self, function: str) -> Any:
        return getattr(self.functions, function)


def numpy_backend() -> Backend:
    return Backend("numpy", gpupool)


def emulator_backend() -> Backend:
    """Return the kernels' generic tier on the CPU; tests/test_kernels.py compares the other."""
    try:
        compiler(), cuda_include_dirs()
    except EmulatorUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THE KERNELS ARE NOT TESTED: {error}")
    return Backend("emulator", emulator.functions(kernel="window"))


def compiled_emulator_backend() -> Backend:
    """Return the emulator with its generic tier compiled in batches: a quarter of the time."""
    backend = emulator_backend()
    launches: list[Launch] = []
    with emulator.settings(recorded=launches):
        for made in combinations():
            for case in made.calls():
                case.run(backend)
    emulator.compile_ahead(launches)
    return backend


def require_gpu() -> None:
    """Skip with the reason, or fail where GPUPOOL_REQUIRE_GPU=1 says that there is a GPU."""
    reason = gpupool.gpu_reason()
    if reason is None:
        return
    if os.environ.get("GPUPOOL_REQUIRE_GPU") == "1":
        pytest.fail(f"GPUPOOL_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(f"no GPU: {reason}")


def to_device(array: np.ndarray[Any, Any]) -> Any:
    """Copy the bytes that an array spans, so that strides and alignment stay what they are."""
    import cupy

    span = address_range(array)
    if not span:
        return cupy.empty(array.shape, array.dtype)
    first, shift = pointer(array) - span.start, span.start % 16
    memory = cupy.empty(shift + len(span), np.uint8)
    held = (ctypes.c_char * len(span)).from_address(span.start)
    memory[shift:].set(np.frombuffer(held, np.uint8))
    return cupy.ndarray(array.shape, array.dtype, memory.data + shift + first, array.strides)


def to_host(array: Any) -> np.ndarray[Any, Any]:
    import cupy

    host: np.ndarray[Any, Any] = cupy.asnumpy(array)
    return host


def cupy_backend() -> Backend:
    require_gpu()
    return Backend("cupy", gpupool, to_device, to_host)


BACKENDS = [
    pytest.param(numpy_backend, id="numpy"),
    pytest.param(compiled_emulator_backend, id="emulator"),
    pytest.param(cupy_backend, id="cupy", marks=pytest.mark.gpu),
]
"""Every implementation of the public functions: each runs all the tests that take ``backend``."""


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.param()
    return made


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Refuse to go on without a broken test module: --doctest-ignore-import-errors skips it."""
    broken = report.skipped and "unable to import module" in str(report.longrepr)
    if broken and report.nodeid.startswith("tests/"):
        raise pytest.UsageError(f"{report.nodeid} cannot be imported")


def pytest_collection_finish() -> None:
    """Take what lives to the end, modules and tests, out of all garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Let no test meet the cap on specialisations because of those before it."""
    specialised.admitted.clear()
    planner.plan.cache_clear()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Trace no test marked ``no_cover``: in a worker pytest-cov has two tracers and pauses one."""
    marked = item.get_closest_marker("no_cover")
    tracer = sys.gettrace() if marked and item.config.pluginmanager.hasplugin("_cov") else None
    if tracer is None:
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let signals interrupt as they do in a terminal, where the tests run under nohup, too."""
    usual = {signal.SIGINT: signal.default_int_handler}
    before = {one: signal.signal(one, usual.get(one, signal.SIG_DFL)) for one in INTERRUPTS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture
def nvrtc() -> Any:
    """Return the run-time compiler's binding, which needs no driver."""
    pytest.importorskip("cupy", reason="CuPy brings the binding of the run-time compiler")
    from cupy.cuda import nvrtc

    try:
        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"no run-time compiler: {error}")
    return nvrtc
