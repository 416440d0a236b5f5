"""Tensors of torch and arrays of JAX, as views in NumPy or CuPy and back.

gpupool computes on NumPy and CuPy arrays. What another library made is viewed in place as one of
these, by its device, and the result is handed back as that library's own. Nothing is imported that
the caller has not imported: an array of a library is the proof that it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from gpupool import arrays, device
from gpupool.dtypes import BFLOAT16
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.problem import Output, PoolProblem, Problem, RoiProblem

CACHE_LINE = 64
"""Bytes on which JAX wants memory to begin that it takes over without a copy."""


class Library(Protocol):
    """One array library: the way into NumPy or CuPy, and the way out."""

    def check(self, name: str, array: Any, first: str, x: Any) -> None:
        """Refuse an array without plain memory on one device, that of ``x``, which is ``first``."""

    def check_outputs(self, outputs: tuple[Output, ...], given: tuple[Any, ...]) -> None:
        """Refuse outputs that this library cannot hold, or arrays of it that cannot be written."""

    def current(self, x: Any) -> AbstractContextManager[Any]:
        """Enter the stream on which this library computes with ``x``."""

    def native(self, array: Any) -> Any:
        """Return the same memory as a NumPy or CuPy array."""

    def empty(self, output: Output, like: Any) -> Any:
        """Return uninitialised memory for ``output`` beside ``like``, which ``native`` takes."""

    def finished(self, result: Any, like: Any) -> Any:
        """Return memory from ``empty``, now filled, as an array of this library."""

    def channels_last(self, problem: Problem, x: Any) -> bool:
        """Whether memory should be read as channels-last although the shape is N, C, D1 .. Dn."""

    def untraced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as this library's compiler calls it, without looking inside."""


def without_backward(name: str) -> GpupoolTypeError:
    """Return the error for a tensor whose gradient torch would have to know."""
    return GpupoolTypeError(
        f"{name} requires grad and gpupool has no backward pass: compute under "
        f"torch.inference_mode(), or pass {name}.detach()"
    )


def refuse_derivatives(name: str, array: Any) -> None:
    """Refuse a tensor of which torch records a gradient, or which carries a derivative forward."""
    torch = sys.modules["torch"]
    if array.requires_grad and torch.is_grad_enabled():
        raise without_backward(name)
    if torch.autograd.forward_ad.unpack_dual(array).tangent is not None:
        raise GpupoolTypeError(
            f"{name} has a tangent and gpupool has no derivatives: pass {name}.detach()"
        )


class Torch:
    """torch: DLPack on the current stream; outputs are torch's own memory in x's memory format."""

    def check(self, name: str, array: Any, first: str, x: Any) -> None:
        """Refuse sparse, quantised and abstract tensors, other devices, and gradients."""
        torch = sys.modules["torch"]
        refuse_derivatives(name, array)
        plain = array.layout is torch.strided and not array.is_quantized and not array.is_neg()
        if not plain or array.device.type not in ("cpu", "cuda"):
            raise GpupoolTypeError(
                f"{name} is a {array.layout} tensor on {array.device}: expected a plain tensor "
                f"(torch.strided, not quantised, not a negated view) on cpu or cuda"
            )
        if array.device != x.device:
            raise GpupoolTypeError(
                f"{first} is on {x.device} and {name} on {array.device}: use one device"
            )

    def check_outputs(self, outputs: tuple[Output, ...], given: tuple[Any, ...]) -> None:
        """Accept everything: what can be written is judged on the views."""

    def current(self, x: Any) -> AbstractContextManager[Any]:
        """Enter torch's current stream; work queued there before is seen, work after waits."""
        if x.device.type == "cpu":
            return nullcontext()
        stream = sys.modules["torch"].cuda.current_stream(x.device)
        return device.on_stream(stream.cuda_stream, x.device.index)

    def native(self, array: Any) -> Any:
        """View the tensor; bfloat16 goes as int16, which every version of DLPack carries."""
        torch = sys.modules["torch"]
        brain = array.dtype is torch.bfloat16
        if brain:
            array = array.view(torch.int16)
        array = array.detach()
        try:
            view = array.numpy() if array.device.type == "cpu" else device.from_dlpack(array)
        except (RuntimeError, BufferError) as error:
            raise GpupoolTypeError(
                f"a {type(array).__name__} has no values to read ({error}): gpupool.torch has the "
                f"functions that torch traces and transforms"
            ) from error
        return view.view(BFLOAT16.numpy) if brain else view

    def empty(self, output: Output, like: Any) -> Any:
        """Allocate with torch's own allocator."""
        torch = sys.modules["torch"]
        dtype = getattr(torch, output.dtype.name)
        last = memory_format(like) if len(output.shape) == like.ndim else torch.contiguous_format
        return torch.empty(output.shape, dtype=dtype, device=like.device, memory_format=last)

    def finished(self, result: Any, like: Any) -> Any:  # noqa: ARG002 - the protocol has it
        """Return the tensor: it shares memory with the view that was filled."""
        return result

    def channels_last(self, problem: Problem, x: Any) -> bool:
        """Whether x is dense in a channels-last memory format and nothing counts positions."""
        counts = not isinstance(problem, RoiProblem) and (
            not isinstance(problem, PoolProblem) or problem.indices
        )
        contiguous = sys.modules["torch"].contiguous_format
        return not (problem.channels_last or counts) and memory_format(x) is not contiguous

    def untraced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as Dynamo runs it; without Dynamo, a second's import, as it is."""
        if "torch._dynamo" not in sys.modules:  # then nothing has been compiled
            return function
        hidden: Callable[..., Any] = sys.modules["torch"].compiler.disable(function)
        return hidden


def memory_format(x: Any) -> Any:
    """Return torch's memory format of a tensor, recognised by its strides.

    A tensor that is contiguous both ways, as with one channel, counts as channels first.
    """
    torch = sys.modules["torch"]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(x.ndim)
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


class Jax:
    """JAX: arrays are read in place and never written; results are new arrays on x's device."""

    def check(self, name: str, array: Any, first: str, x: Any) -> None:
        """Refuse arrays without values of their own, and arrays on several or other devices."""
        jax = sys.modules["jax"]
        if isinstance(array, jax.core.Tracer):
            raise GpupoolTypeError(
                f"{name} is being traced: gpupool computes on values, outside jax.jit, jax.grad "
                f"and jax.vmap"
            )
        if len(array.devices()) != 1 or not array.is_fully_addressable:
            raise GpupoolTypeError(f"{name} is spread over {array.sharding}: use one device")
        if array.devices() != x.devices():
            raise GpupoolTypeError(
                f"{first} is on {x.devices()} and {name} on {array.devices()}: use one device"
            )
        if self._platform(array) not in ("cpu", "gpu"):
            raise GpupoolTypeError(
                f"{name} is on {self._platform(array)}: expected an array on cpu or gpu"
            )

    def check_outputs(self, outputs: tuple[Output, ...], given: tuple[Any, ...]) -> None:
        """Refuse ``out``, and Indices where JAX is set to 32 bits."""
        if given:
            raise GpupoolTypeError("out: JAX arrays are immutable, so that none can be filled")
        wide = [o for o in outputs if o.dtype.itemsize == 8]
        if wide and not sys.modules["jax"].config.jax_enable_x64:
            raise GpupoolValueError(
                f"{wide[0].name} is {wide[0].dtype}, which JAX holds only with "
                f'jax.config.update("jax_enable_x64", True)'
                + ('; index_dtype="int32" does without' if wide[0].name == "Indices" else "")
            )

    def current(self, x: Any) -> AbstractContextManager[Any]:
        """Enter x's device: the hand-over through DLPack orders the streams."""
        return nullcontext() if self._platform(x) == "cpu" else device.on_device(x.device.id)

    def native(self, array: Any) -> Any:
        """View the array read-only; bfloat16 on a GPU, which DLPack refuses, is copied once."""
        if not isinstance(array, sys.modules["jax"].Array):
            return array  # from `empty`
        if self._platform(array) == "cpu":
            return np.asarray(array)
        if array.dtype != BFLOAT16.numpy:
            return device.from_dlpack(array)
        return device.from_dlpack(self._cast(array, "uint16")).view(BFLOAT16.numpy)

    def empty(self, output: Output, like: Any) -> Any:
        """Allocate memory that JAX can take over."""
        if self._platform(like) != "cpu":
            return device.empty(output.shape, output.dtype)
        memory = np.empty(output.nbytes + CACHE_LINE, np.uint8)
        start = -memory.ctypes.data % CACHE_LINE
        return memory[start : start + output.nbytes].view(output.dtype).reshape(output.shape)

    def finished(self, result: Any, like: Any) -> Any:
        """Hand the memory over; bfloat16 on a GPU is copied once."""
        jax = sys.modules["jax"]
        if self._platform(like) == "cpu":
            return jax.device_put(result, like.sharding)
        if result.dtype != BFLOAT16.numpy:
            return jax.dlpack.from_dlpack(result)
        return self._cast(jax.dlpack.from_dlpack(result.view(np.uint16)), "bfloat16")

    def channels_last(self, problem: Problem, x: Any) -> bool:  # noqa: ARG002 - the protocol has it
        """JAX arrays show no strides."""
        return False

    def untraced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function: arrays that are traced are refused."""
        return function

    def _platform(self, array: Any) -> str:
        return str(next(iter(array.devices())).platform)

    def _cast(self, array: Any, dtype: str) -> Any:
        jax = sys.modules["jax"]
        return jax.lax.bitcast_convert_type(array, getattr(jax.numpy, dtype))


LIBRARIES: dict[str, Library] = {"torch": Torch(), "jax": Jax()}
"""By the kind that ``gpupool.arrays`` tells."""


def untraced(kind: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that the library's compiler does not look into."""
    return LIBRARIES[kind].untraced(function)(*arguments)


# By these Dynamo breaks a graph here, before it looks for a reason of its own.
untraced.__dict__.update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="gpupool computes on values; gpupool.torch has the operators that "
    "a graph can hold",
)


def on_views(x: Any, compute: Callable[[Any], Any]) -> Any:
    """Compute one array from x by NumPy's or CuPy's own arithmetic; return it in the kind of x.

    >>> on_views(np.ones(3), lambda x: x + 1)
    array([2., 2., 2.])
    """
    library = LIBRARIES.get(arrays.kind("x", x))
    if library is None:
        return compute(x)
    library.check("x", x, "x", x)
    with library.current(x):
        computed = compute(library.native(x))
        y = library.empty(Output("Y", computed.shape, computed.dtype), x)
        library.native(y)[...] = computed
        return library.finished(y, x)


def channels_last(problem: Problem) -> Problem:
    """Return the same problem for the same memory seen as N, D1 .. Dn, C.

    >>> from gpupool.problem import resolve
    >>> channels_last(resolve("max", (1, 64, 8, 9), "float32", kernel_shape=2)).shape
    (1, 8, 9, 64)
    """
    shape = (problem.batch, *problem.spatial, problem.channels)
    return replace(problem, shape=shape, channels_last=True)


def moved(views: Sequence[Any], rank: int) -> tuple[Any, ...]:
    """Return views with the channels moved to the end, of those arrays that have them."""
    return tuple(
        view.transpose(0, *range(2, rank), 1) if view.ndim == rank else view for view in views
    )
