"""The backends that every law is tested on, and the Hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import gpupool
from tests import emulator
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


BACKENDS = [
    pytest.param(numpy_backend, id="numpy"),
    pytest.param(emulator_backend, id="emulator"),
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
