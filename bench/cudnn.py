"""cuDNN's pooling, called through ctypes: it is installed with torch and has no Python of its own.

The library's own functions are called with the constants of cudnn_ops.h, version 9: a descriptor
for x, one for y, one for the window, and a launch on the stream that is timed. The oldest interface
is the one that frameworks call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cases import Case
from .device import Call
from .peers import UnavailableError

SONAME = "libcudnn.so.9"

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "uint8": 6, "bfloat16": 9}
NCHW, NHWC = 0, 1
MAX, INCLUDE_PADDING, EXCLUDE_PADDING = 0, 1, 2
PROPAGATE_NAN = 1


@cache
def library() -> ctypes.CDLL:
    """Load cuDNN, from where torch's requirement installs it or from the system."""
    spec = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
    folders = [Path(place) / "lib" for place in (spec and spec.submodule_search_locations) or ()]
    for place in (*(str(folder / SONAME) for folder in folders), SONAME):
        try:
            found = ctypes.CDLL(place)
        except OSError:
            continue
        found.cudnnGetErrorString.restype = ctypes.c_char_p
        return found
    raise UnavailableError(f"{SONAME} is not installed")


def call(name: str, *arguments: Any) -> None:
    """Call a function of cuDNN; its refusal is why a case has no time."""
    status = getattr(library(), name)(*arguments)
    if status:
        message = library().cudnnGetErrorString(status).decode()
        raise UnavailableError(f"{name}: {message}")


@cache
def handle(stream: int) -> ctypes.c_void_p:
    """Return a handle whose calls go to a stream."""
    made = ctypes.c_void_p()
    call("cudnnCreate", ctypes.byref(made))
    call("cudnnSetStream", made, ctypes.c_void_p(stream))
    return made


def tensor(case: Case, channels_first: Sequence[int], dtype: str) -> ctypes.c_void_p:
    """Describe a tensor by its sizes in N x C x D1 .. Dn; cuDNN knows two spatial axes or three."""
    batch, channels, *spatial = channels_first
    sizes = (batch, channels, *(1 for _ in range(2 - len(spatial))), *spatial)
    made = ctypes.c_void_p()
    call("cudnnCreateTensorDescriptor", ctypes.byref(made))
    layout = NHWC if case.channels_last else NCHW
    integers = (ctypes.c_int * len(sizes))(*sizes)
    call("cudnnSetTensorNdDescriptorEx", made, layout, DATA_TYPES[dtype], len(sizes), integers)
    return made


def window(case: Case) -> ctypes.c_void_p:
    """Describe a window: one pad for both ends of an axis, and no dilation."""
    problem = case.problem
    axes = problem.window
    if problem.reduction == "lp" or problem.indices:
        raise UnavailableError("cuDNN has no norms and no Indices")
    if any(a.dilation > 1 for a in axes) or any(a.pad_begin != a.pad_end for a in axes):
        raise UnavailableError("cuDNN has no dilation and one pad for both ends")
    average = INCLUDE_PADDING if problem.count_include_pad else EXCLUDE_PADDING
    mode = MAX if problem.reduction == "max" else average
    lacking = 2 - len(axes)
    numbers = (
        [default] * lacking + [getattr(a, name) for a in axes]
        for name, default in (("kernel", 1), ("pad_begin", 0), ("stride", 1))
    )
    arrays = [(ctypes.c_int * len(row))(*row) for row in numbers]
    made = ctypes.c_void_p()
    call("cudnnCreatePoolingDescriptor", ctypes.byref(made))
    call("cudnnSetPoolingNdDescriptor", made, mode, PROPAGATE_NAN, len(arrays[0]), *arrays)
    return made


def pool(case: Case, stream: int) -> Callable[[Any, Any], Call]:
    """Return what makes the call that pools one device array into another."""
    described, first = window(case), case.channels_first
    (output,) = first.problem.outputs
    x_of = tensor(case, first.shape, case.dtype)
    y_of = tensor(case, output.shape, str(output.dtype))
    scalar = ctypes.c_double if case.dtype == "float64" else ctypes.c_float
    one, zero = scalar(1), scalar(0)
    used = handle(stream)

    def prepared(x: Any, y: Any) -> Call:
        arguments = (
            used, described, ctypes.byref(one), x_of, ctypes.c_void_p(x.data.ptr),
            ctypes.byref(zero), y_of, ctypes.c_void_p(y.data.ptr),
        )  # fmt: skip
        return lambda: call("cudnnPoolingForward", *arguments)

    return prepared
