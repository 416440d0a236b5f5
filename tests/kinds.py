"""The public functions on arrays of torch and JAX, as backends like those of tests/conftest.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpupool
from tests.conftest import Backend

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_torch(x: np.ndarray[Any, Any]) -> Any:
    """Return a tensor of the same values; dense strides stay, others torch may not have."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    copy = np.array(x, order="K")
    if x.dtype == BFLOAT16:
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copy)


def from_torch(tensor: Any) -> np.ndarray[Any, Any]:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert isinstance(tensor, torch.Tensor)
    if tensor.dtype is torch.bfloat16:
        view: np.ndarray[Any, Any] = tensor.view(torch.int16).numpy().view(BFLOAT16)
        return view
    return tensor.numpy()


def to_jax(x: np.ndarray[Any, Any]) -> Any:
    return pytest.importorskip("jax", reason="JAX is not installed").numpy.asarray(x)


def from_jax(array: Any) -> np.ndarray[Any, Any]:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    assert isinstance(array, jax.Array)
    return np.asarray(array)


TORCH = Backend("torch", gpupool, to_torch, from_torch)
JAX = Backend("jax", gpupool, to_jax, from_jax)
