"""The same work by other libraries: each is imported and called as its own documentation says.

Every function here returns a call that is ready to be timed, or raises UnavailableError with the
reason, which becomes a blank in the table.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.errors import GpupoolError
from gpupool.problem import PoolProblem

from .cases import Case


class UnavailableError(GpupoolError):
    """Why a library cannot do a case, or is not there."""


def module(name: str) -> Any:
    """Import a library, or say that it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{name} is not installed ({error})") from None


def reason(error: Exception) -> str:
    """Return an error as one line that fits a table and names no place on a machine."""
    text = re.sub(r"(/[^/\s:]+){2,}", "..", str(error).strip().partition("\n")[0])[:160]
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}"


# torch


def torch_pool(case: Case, torch: Any, wide: Any) -> Callable[[Any], Any]:
    """Return the function of a tensor in N x C x D1 .. Dn that does a case's work in torch.

    8-bit averages, which torch refuses, go through the dtype ``wide``. Padding of a norm, for which
    torch has no argument, is a call of its own.
    """
    problem, functional = case.problem, torch.nn.functional
    if case.op.startswith("Global"):
        return _torch_global(problem, torch)
    if any(a.pad_begin != a.pad_end for a in problem.window) and not case.ceil_mode:
        raise UnavailableError("torch pads both ends alike")
    if any(a.dilation > 1 for a in problem.window) and problem.reduction != "max":
        raise UnavailableError("torch has no dilation here")
    n = len(problem.window)
    kernel, stride, pad, dilation = (
        tuple(getattr(a, name) for a in problem.window)
        for name in ("kernel", "stride", "pad_begin", "dilation")
    )
    ceil = case.ceil_mode
    if problem.reduction == "max":
        pool = getattr(functional, f"max_pool{n}d")
        return lambda x: pool(x, kernel, stride, pad, dilation, ceil, problem.indices)
    if problem.reduction == "lp":
        pool = getattr(functional, f"lp_pool{n}d")
        window = (kernel, stride) if n > 1 else (kernel[0], stride[0])
        sides = [p for p in reversed(pad) for _ in range(2)]
        if not any(pad):
            return lambda x: pool(x, problem.p, *window, ceil)
        return lambda x: pool(functional.pad(x, sides), problem.p, *window, ceil)
    pool = getattr(functional, f"avg_pool{n}d")
    include = problem.count_include_pad
    if problem.dtype.is_float:
        return lambda x: pool(x, kernel, stride, pad, ceil, include)
    return lambda x: pool(x.to(wide), kernel, stride, pad, ceil, include).round().to(x.dtype)


def _torch_global(problem: PoolProblem, torch: Any) -> Callable[[Any], Any]:
    n = len(problem.window)
    if problem.reduction == "lp":
        axes = tuple(range(2, n + 2))
        return lambda x: torch.linalg.vector_norm(x, problem.p, dim=axes, keepdim=True)
    name = "max" if problem.reduction == "max" else "avg"
    pool = getattr(torch.nn.functional, f"adaptive_{name}_pool{n}d")
    if not problem.dtype.is_float:
        raise UnavailableError("torch has no adaptive pool of 8-bit integers")
    return lambda x: pool(x, 1)


# onnxruntime


def onnx_model(case: Case) -> bytes:
    """Return a case as a serialised ONNX model of one node."""
    module("onnx")
    from gpupool import peers

    problem = case.problem
    attributes: dict[str, Any] = {}
    if not case.op.startswith("Global"):
        axes = problem.window
        attributes = {
            "kernel_shape": [a.kernel for a in axes],
            "strides": [a.stride for a in axes],
            "pads": [a.pad_begin for a in axes] + [a.pad_end for a in axes],
            "ceil_mode": int(case.ceil_mode),
        }
        if any(a.dilation > 1 for a in axes):
            attributes["dilations"] = [a.dilation for a in axes]
        if problem.count_include_pad:
            attributes["count_include_pad"] = 1
    if problem.reduction == "lp":
        if problem.p != int(problem.p):
            raise UnavailableError("ONNX's LpPool takes an integer p")
        attributes["p"] = int(problem.p)
    inputs = (np.empty((0,) * len(problem.shape), problem.dtype.numpy),)
    node = peers.Case(case.op, inputs, attributes, len(problem.outputs))
    return bytes(peers.model(node).SerializeToString())


def onnx_session(case: Case, providers: list[Any]) -> Any:
    """Return an onnxruntime session of a case, channels first, on one thread."""
    onnxruntime = module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    onnxruntime.set_default_logger_severity(4)
    try:
        return onnxruntime.InferenceSession(onnx_model(case), options, providers=providers)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "onnxruntime":
            raise
        raise UnavailableError("onnxruntime has no kernel for this operator and dtype") from error


# CuPy


def cupyx_filter(case: Case, ndimage: Any) -> Callable[[Any], Any]:
    """Return CuPy's filter of the same window, where there is one: stride 1, centred, odd."""
    problem = case.problem
    axes = problem.window
    for a in axes:
        if a.stride != 1 or a.dilation != 1 or a.out != a.size or a.kernel != 2 * a.pad_begin + 1:
            raise UnavailableError("a filter has stride 1, an odd window and the input's size")
    if problem.indices or problem.reduction == "lp":
        raise UnavailableError("no filter computes this")
    if problem.reduction == "average" and not problem.count_include_pad:
        raise UnavailableError("uniform_filter counts pads")
    size = problem.laid_out(1, [a.kernel for a in axes])
    size = tuple(1 if i == problem.channel_axis else k for i, k in enumerate(size))
    name = "maximum_filter" if problem.reduction == "max" else "uniform_filter"
    lowest = -np.inf if problem.dtype.is_float else np.iinfo(problem.dtype.numpy).min
    outside = lowest if problem.reduction == "max" else 0
    pool = getattr(ndimage, name)
    return lambda x: pool(x, size=size, mode="constant", cval=outside)
