"""torch's pooling functions computed by gpupool, for inference: ``import gpupool.torch``.

The functions take the arguments of their namesakes in ``torch.nn.functional``, are registered as
custom operators and work under torch.compile. ``patch`` puts them into a model. Results equal
torch's up to rounding, with these differences:

- sums of float16 and bfloat16 are float32 and rounded once;
- where a sum of squares or an average would overflow on the way, the result is right, not inf;
- lp_pool takes |x| ** p, where torch adds x ** p with its sign, and does not scale up a last
  window that ``ceil_mode`` lets hang over the end;
- padding may exceed half of the window; an index is -1 where a window lies in the padding;
- of several NaN in a window the index is the first one's, not the last one's;
- divisor_override and adaptive outputs other than 1 are refused, and so are derivatives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any

import torch

import gpupool
from gpupool import validate
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.interchange import memory_format, refuse_derivatives, without_backward
from gpupool.ops import Function
from gpupool.validate import Ints
from gpupool.window import out_shape, window

# The operators: any number of axes, every argument written out


def _max_pool(
    x: Any, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int],
    ceil_mode: bool,
) -> Any:  # fmt: skip
    return gpupool.max_pool(
        x, kernel, strides=stride, pads=padding * 2, dilations=dilation, ceil_mode=ceil_mode
    )


def _max_pool_with_indices(
    x: Any, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int],
    ceil_mode: bool,
) -> tuple[Any, Any]:  # fmt: skip
    y, indices = gpupool.max_pool(
        x, kernel, strides=stride, pads=padding * 2, dilations=dilation, ceil_mode=ceil_mode,
        return_indices=True,
    )  # fmt: skip
    # ONNX counts through the whole tensor, torch through each plane.
    return y, torch.where(indices < 0, indices, indices % prod(x.shape[2:]))


def _avg_pool(
    x: Any, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool,
    count_include_pad: bool,
) -> Any:  # fmt: skip
    return gpupool.average_pool(
        x, kernel, strides=stride, pads=padding * 2, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )  # fmt: skip


def _lp_pool(x: Any, p: float, kernel: list[int], stride: list[int], ceil_mode: bool) -> Any:
    return gpupool.lp_pool(x, kernel, p=p, strides=stride, ceil_mode=ceil_mode)


def _empty(
    x: Any, kernel: list[int], stride: list[int], padding: list[int] | None = None,
    dilation: list[int] | None = None, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor of the result's shape and memory format: what the compiler traces."""
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    pads = [(pad, pad) for pad in padding or zeros]
    axes = window(x.shape[2:], kernel, stride, dilation or ones, pads, "NOTSET", ceil_mode)
    shape = (*x.shape[:2], *out_shape(axes))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def _register(name: str, schema: str, run: Function, fake: Function) -> Any:
    operator = torch.library.custom_op(f"gpupool::{name}", run, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    operator.register_autograd(_refuse, setup_context=_refuse)
    return operator


def _refuse(*_: Any, **__: Any) -> Any:
    """Refuse what autograd records, at the call rather than at a backward pass."""
    raise without_backward("input")


_MAX = "Tensor x, SymInt[] kernel, SymInt[] stride, int[] padding, int[] dilation, bool ceil_mode"

OPERATORS = {
    "max_pool": _register("max_pool", f"({_MAX}) -> Tensor", _max_pool, _empty),
    "max_pool_with_indices": _register(
        "max_pool_with_indices",
        f"({_MAX}) -> (Tensor, Tensor)",
        _max_pool_with_indices,
        lambda x, *window: (y := _empty(x, *window), torch.empty_like(y, dtype=torch.int64)),
    ),
    "avg_pool": _register(
        "avg_pool",
        "(Tensor x, SymInt[] kernel, SymInt[] stride, int[] padding, bool ceil_mode,"
        " bool count_include_pad) -> Tensor",
        _avg_pool,
        lambda x, kernel, stride, padding, ceil_mode, _: _empty(
            x, kernel, stride, padding, None, ceil_mode
        ),
    ),
    "lp_pool": _register(
        "lp_pool",
        "(Tensor x, float p, int[] kernel, int[] stride, bool ceil_mode) -> Tensor",
        _lp_pool,
        lambda x, _, kernel, stride, ceil_mode: _empty(x, kernel, stride, ceil_mode=ceil_mode),
    ),
}
"""The custom operators ``torch.ops.gpupool.*``."""


# The functions: torch's own signatures


def _per_axis(name: str, value: Ints, axes: int, low: int = 1) -> list[int]:
    numbers = list(value) if isinstance(value, (tuple, list)) else [value]
    if len(numbers) not in (1, axes):
        count = validate.counted(len(numbers), "value")
        raise GpupoolValueError(f"{name} = {value} has {count}, expected {axes}")
    checked = [_integer(name, number, low) for number in numbers]
    return checked * axes if len(numbers) == 1 else checked


def _integer(name: str, value: Any, low: int) -> Any:
    """Return a number that is checked, but for a size that torch.compile keeps open."""
    return value if isinstance(value, torch.SymInt) else validate.integer(name, value, low)


def _steps(kernel: list[int], stride: Ints | None) -> list[int]:
    if stride is None or (isinstance(stride, (tuple, list)) and not stride):
        return kernel
    return _per_axis("stride", stride, len(kernel))


def _batched(axes: int, x: Any, compute: Callable[[Any], Any]) -> Any:
    """Compute on N x C x D1 .. Dn; an x without N gets one for the while."""
    _check_tensor(x)
    if not torch.compiler.is_compiling():  # what is traced is refused by the operator
        refuse_derivatives("input", x)
    if x.ndim == axes + 2:
        return compute(x)
    if x.ndim != axes + 1:
        raise GpupoolValueError(
            f"input has shape {tuple(x.shape)}: expected {axes} spatial axes after C or N, C"
        )
    result = compute(x.unsqueeze(0))
    if isinstance(result, tuple):
        return tuple(part.squeeze(0) for part in result)
    return result.squeeze(0)


def _check_tensor(x: Any) -> None:
    if not isinstance(x, torch.Tensor):
        raise GpupoolTypeError(f"input must be a torch tensor, not {type(x).__name__}")


def _whole(x: Any, output_size: Any, axes: int) -> list[int]:
    """Return the kernel that covers a plane, the one adaptive output that is offered."""
    _check_tensor(x)
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    if len(sizes) != axes or any(size != 1 for size in sizes):
        raise GpupoolValueError(
            f"output_size = {output_size}: only 1, or 1 for each of {axes} axes, is supported"
        )
    return list(x.shape[x.ndim - axes :])


def _named(function: Function, name: str, axes: int) -> Function:
    function.__name__ = function.__qualname__ = f"{name}{axes}d"
    function.__doc__ = f"""Compute torch.nn.functional.{name}{axes}d of the same arguments.

    input is a tensor of N x C and {axes} spatial axes, or without N, of a dtype that gpupool's
    operator takes, integers of 8 bits among them; results have its device and dtype, Indices int64.
    Raises GpupoolValueError, GpupoolTypeError or GpupoolMemoryError before anything is computed.
    Source: torch.nn.functional.{name}{axes}d.
    """
    return function


def _max(axes: int) -> Function:
    def function(
        input: Any,  # noqa: A002 - torch's name
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        kernel = _per_axis("kernel_size", kernel_size, axes)
        operator = OPERATORS["max_pool_with_indices" if return_indices else "max_pool"]
        window = (
            kernel,
            _steps(kernel, stride),
            _per_axis("padding", padding, axes, 0),
            _per_axis("dilation", dilation, axes),
            validate.flag("ceil_mode", ceil_mode),
        )
        return _batched(axes, input, lambda x: operator(x, *window))

    return _named(function, "max_pool", axes)


def _average(axes: int) -> Function:
    def pool(
        x: Any, kernel_size: Ints, stride: Ints | None, padding: Ints, ceil: bool, include: bool
    ) -> Any:
        kernel = _per_axis("kernel_size", kernel_size, axes)
        window = (
            kernel,
            _steps(kernel, stride),
            _per_axis("padding", padding, axes, 0),
            validate.flag("ceil_mode", ceil),
            validate.flag("count_include_pad", include),
        )
        return _batched(axes, x, lambda x: OPERATORS["avg_pool"](x, *window))

    def function(
        input: Any,  # noqa: A002 - torch's name
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is not None:
            raise GpupoolValueError(
                f"divisor_override = {divisor_override} is not supported; allowed: None"
            )
        return pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad)

    def function_1d(
        input: Any,  # noqa: A002 - torch's name
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        return pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad)

    return _named(function if axes > 1 else function_1d, "avg_pool", axes)


def _lp(axes: int) -> Function:
    def function(
        input: Any,  # noqa: A002 - torch's name
        norm_type: float,
        kernel_size: Ints,
        stride: Ints | None = None,
        ceil_mode: bool = False,
    ) -> Any:
        kernel = _per_axis("kernel_size", kernel_size, axes)
        window = kernel, _steps(kernel, stride), validate.flag("ceil_mode", ceil_mode)
        norm = validate.positive("norm_type", norm_type)
        return _batched(axes, input, lambda x: OPERATORS["lp_pool"](x, norm, *window))

    return _named(function, "lp_pool", axes)


def _adaptive_average(axes: int) -> Function:
    average = _average(axes)

    def function(input: Any, output_size: Any) -> Any:  # noqa: A002 - torch's name
        return average(input, _whole(input, output_size, axes))

    return _named(function, "adaptive_avg_pool", axes)


def _adaptive_max(axes: int) -> Function:
    maximum = _max(axes)

    def function(
        input: Any,  # noqa: A002 - torch's name
        output_size: Any,
        return_indices: bool = False,
    ) -> Any:
        kernel = _whole(input, output_size, axes)
        return maximum(input, kernel, return_indices=return_indices)

    return _named(function, "adaptive_max_pool", axes)


max_pool1d, max_pool2d, max_pool3d = map(_max, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_average, (1, 2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = map(_lp, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_average, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max, (1, 2, 3))


# Models


class Pool(torch.nn.Module):  # type: ignore[misc]
    """A pooling layer: one of the functions above with its arguments."""

    def __init__(self, function: Function, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, x: Any) -> Any:
        """Pool x."""
        return self.function(x, **self.arguments)

    def extra_repr(self) -> str:
        """Show the function and its arguments."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.function.__name__}, {arguments}"


_FUNCTIONS = {
    f"{layer}Pool{axes}d": globals()[f"{function}_pool{axes}d"]
    for layer, function in (
        ("Max", "max"),
        ("Avg", "avg"),
        ("LP", "lp"),
        ("AdaptiveAvg", "adaptive_avg"),
        ("AdaptiveMax", "adaptive_max"),
    )
    for axes in (1, 2, 3)
}
LAYERS: dict[type, Function] = {
    getattr(torch.nn, name): function for name, function in _FUNCTIONS.items()
}
"""torch's pooling layers, exactly these classes, and the function that computes each."""


def patch(model: Any) -> Any:
    """Swap the pooling layers of a model, in place, for gpupool's, and print which; return it.

    A layer whose result would not be torch's stays and is printed with the reason.

    >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(3, stride=2, padding=1))
    >>> patched = patch(model)
    1: MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False) -> gpupool
    >>> patched(torch.ones(1, 64, 112, 112)).shape
    torch.Size([1, 64, 56, 56])
    """
    if not isinstance(model, torch.nn.Module):
        raise GpupoolTypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        function = LAYERS.get(type(layer))
        if function is None:
            continue
        if reason := _kept(layer):
            print(f"{name}: {layer} stays: {reason}")
            continue
        _, *names = inspect.signature(function).parameters
        pool = Pool(function, {n: getattr(layer, n) for n in names}).train(layer.training)
        model = _swap(model, name, pool)
        print(f"{name}: {layer} -> gpupool")
    return model


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _kept(layer: Any) -> str | None:
    if any(getattr(layer, hooks) for hooks in _HOOKS):
        return "hooks are registered on it"
    if getattr(layer, "divisor_override", None) is not None:
        return "divisor_override"
    sizes = getattr(layer, "output_size", 1)
    if any(size != 1 for size in (sizes if isinstance(sizes, (tuple, list)) else (sizes,))):
        return "an adaptive output other than 1"
    norm = getattr(layer, "norm_type", 2)
    if norm <= 0 or norm % 2:
        return "torch adds x ** p with its sign unless p is even"
    if hasattr(layer, "norm_type") and layer.ceil_mode:
        return "torch scales up a norm that hangs over the end"
    return None


def _swap(model: Any, name: str, layer: Any) -> Any:
    if not name:
        return layer
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)
    return model
