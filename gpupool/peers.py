"""Other implementations of the same operators: one ONNX node in, its outputs out.

onnxruntime and torch are asked where they are installed, as a second opinion on the oracle. Neither
is one everywhere: ``unreliable`` says which cases they compute otherwise than ONNX says, or refuse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from gpupool.arrays import Array
from gpupool.dtypes import BFLOAT16
from gpupool.problem import PoolProblem, resolve

Outputs = tuple[Array, ...]

OPSET = 21
"""The newest for which onnxruntime has all nine operators; the numbers are those of any other."""


@dataclass(frozen=True)
class Case:
    """One ONNX node with its inputs."""

    op: str
    inputs: Outputs
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int | None = None

    @property
    def x(self) -> Array:
        """The pooled array."""
        return self.inputs[0]

    @property
    def spatial(self) -> tuple[int, ...]:
        """D1 .. Dn."""
        return tuple(self.x.shape[2:])

    def attribute(self, name: str, default: int) -> tuple[int, ...]:
        """Return an attribute with one integer for each spatial axis."""
        return tuple(self.attributes.get(name, [default] * len(self.spatial)))

    @property
    def auto_pad(self) -> str:
        """NOTSET where it is absent."""
        return str(self.attributes.get("auto_pad", "NOTSET"))

    @property
    def ceil_mode(self) -> bool:
        """Whether output sizes are rounded up."""
        return bool(self.attributes.get("ceil_mode", 0))

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps along each axis: all of it for the global operators."""
        return tuple(self.attributes.get("kernel_shape", self.spatial))

    @property
    def pads(self) -> tuple[int, ...]:
        """All begins, then all ends."""
        return tuple(self.attributes.get("pads", (0,) * 2 * len(self.spatial)))

    def __str__(self) -> str:
        inputs = ", ".join(f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        return f"{self.op}({inputs}, {dict(self.attributes)}, outputs={self.outputs})"


class RefusedError(Exception):
    """The peer does not compute this case."""


class Peer(ABC):
    """An implementation of ONNX's pooling operators."""

    name: str
    dtypes: Mapping[str, tuple[str, ...]]
    """The operators that are compared at random, each with its dtypes."""

    @abstractmethod
    def run(self, case: Case) -> Outputs:
        """Return the outputs or raise RefusedError."""

    def adapt(self, case: Case) -> Case:
        """Return the case with what the peer has no argument for left out."""
        return case


def model(case: Case) -> Any:
    """Return the case's node as an ONNX model for inputs of any shape."""
    return _model(*_node(case))


def _node(case: Case) -> tuple[Any, ...]:
    dtypes = tuple(x.dtype.name for x in case.inputs)
    attributes = tuple(
        (k, tuple(v) if isinstance(v, list) else v) for k, v in case.attributes.items()
    )
    return case.op, dtypes, attributes, case.outputs, case.opset or OPSET


def _model(
    op: str, dtypes: Sequence[str], attributes: Sequence[tuple[str, Any]], outputs: int, opset: int
) -> Any:
    from onnx import helper

    def value(name: str, dtype: str) -> Any:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, element, None)

    inputs = [value(f"input{i}", dtype) for i, dtype in enumerate(dtypes)]
    results = [value("y", dtypes[0]), value("indices", "int64")][:outputs]
    node = helper.make_node(
        op, [i.name for i in inputs], [o.name for o in results], **dict(attributes)
    )
    return helper.make_model(
        helper.make_graph([node], "one_node", inputs, results),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )


class OnnxRuntime(Peer):
    """onnxruntime on one CPU thread; sessions are kept, for cases that differ in shape only."""

    name = "onnxruntime"
    dtypes: Mapping[str, tuple[str, ...]] = {
        "MaxPool": ("float32", "float64", "int8", "uint8"),
        "AveragePool": ("float32",),
        "LpPool": ("float32",),
        "GlobalMaxPool": ("float32",),
        "GlobalAveragePool": ("float32",),
        "GlobalLpPool": ("float32",),
        "MaxUnpool": ("float32",),
        "MaxRoiPool": ("float32",),
        "RoiAlign": ("float32", "float64"),
    }

    def run(self, case: Case) -> Outputs:
        """Run the node as a model of its own."""
        inputs = {f"input{i}": x for i, x in enumerate(case.inputs)}
        try:
            return tuple(self._session(*_node(case)).run(None, inputs))
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "onnxruntime":
                raise
            raise RefusedError(str(error)) from error

    @staticmethod
    @lru_cache(maxsize=256)
    def _session(*node: Any) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        onnxruntime.set_default_logger_severity(4)  # a refusal is an outcome, not a message
        return onnxruntime.InferenceSession(
            _model(*node).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


class Torch(Peer):
    """torch.nn.functional on one CPU thread."""

    name = "torch"
    dtypes: Mapping[str, tuple[str, ...]] = {
        "MaxPool": ("float64", "float32", "float16", "bfloat16"),
        "AveragePool": ("float64", "float32"),
        "LpPool": ("float64", "float32"),
    }
    keeps: Mapping[str, tuple[str, ...]] = {
        "MaxPool": ("kernel_shape", "strides", "pads", "dilations", "ceil_mode"),
        "AveragePool": ("kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad"),
        "LpPool": ("kernel_shape", "strides", "ceil_mode", "p"),
    }

    @cached_property
    def functional(self) -> Any:
        """Return torch.nn.functional."""
        import torch

        torch.set_num_threads(1)
        return torch.nn.functional

    def adapt(self, case: Case) -> Case:
        """One pad for both ends, of at most half the kernel; no |x| for an odd p."""
        kept = {k: v for k, v in case.attributes.items() if k in self.keeps[case.op]}
        inputs = (np.abs(case.x),) if kept.get("p", 2) % 2 else case.inputs
        if "pads" in kept:
            begins = [min(p, k // 2) for p, k in zip(case.pads, case.kernel, strict=False)]
            kept["pads"] = begins * 2
        return Case(case.op, inputs, kept, case.outputs)

    def run(self, case: Case) -> Outputs:
        """Call the function of torch that does the same."""
        axes = len(case.spatial)
        window: dict[str, Any] = {
            "kernel_size": case.kernel,
            "stride": case.attribute("strides", 1),
        }
        if case.op != "LpPool":
            window["padding"] = case.pads[:axes]
        x, ceil = self._tensor(case.x), case.ceil_mode
        try:
            if case.op == "LpPool":
                pool = getattr(self.functional, f"lp_pool{axes}d")
                if axes == 1:  # which alone takes no tuples
                    window = {name: value[0] for name, value in window.items()}
                return (pool(x, case.attributes.get("p", 2), **window, ceil_mode=ceil).numpy(),)
            if case.op == "AveragePool":
                pool = getattr(self.functional, f"avg_pool{axes}d")
                include = bool(case.attributes.get("count_include_pad", 0))
                return (pool(x, **window, ceil_mode=ceil, count_include_pad=include).numpy(),)
            pool = getattr(self.functional, f"max_pool{axes}d")
            window["dilation"] = case.attribute("dilations", 1)
            y, indices = pool(x, **window, ceil_mode=ceil, return_indices=True)
        except RuntimeError as error:
            raise RefusedError(str(error)) from error
        return (self._array(y, case.x.dtype), self._flat(case, indices.numpy()))[: case.outputs]

    def _tensor(self, x: Array) -> Any:
        import torch

        if x.dtype == BFLOAT16.numpy:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)

    def _array(self, y: Any, dtype: np.dtype[Any]) -> Array:
        if dtype == BFLOAT16.numpy:
            y = y.view(self._tensor(np.zeros(0, np.int16)).dtype)
        return np.asarray(y.numpy()).view(dtype)

    def _flat(self, case: Case, indices: Array) -> Array:
        """Add the plane's offset: torch counts positions in each plane anew."""
        planes = np.arange(prod(case.x.shape[:2])) * prod(case.spatial)
        return indices + planes.reshape(*case.x.shape[:2], *(1,) * len(case.spatial))


PEERS: Mapping[str, Peer] = {peer.name: peer for peer in (OnnxRuntime(), Torch())}


@cache
def missing(peer: Peer) -> str | None:
    """Return why a peer cannot be asked, None where it can."""
    packages = ("onnx", "onnxruntime") if peer.name == "onnxruntime" else (peer.name.split()[0],)
    absent = [package for package in packages if not find_spec(package)]
    return f"{' and '.join(absent)} not installed" if absent else None


# Where a peer is no judge

_TRIVIAL: Mapping[str, Any] = {
    "strides": 1,
    "dilations": 1,
    "pads": 0,
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "storage_order": 0,
    "count_include_pad": 0,
}
"""What an attribute is where a peer needs no argument for it."""


def unreliable(peer: Peer, case: Case) -> str | None:
    """Say why a peer's answer to a legal case would prove nothing, None where it would."""
    if case.x.dtype.name not in peer.dtypes.get(case.op, ()):
        return "operator or dtype"
    rules = _onnxruntime_limits if isinstance(peer, OnnxRuntime) else _torch_limits
    return _value_limits(case) or (None if case.op in _NO_WINDOW else rules(case))


_NO_WINDOW = ("MaxUnpool", "MaxRoiPool", "RoiAlign")


def _value_limits(case: Case) -> str | None:
    x = np.abs(case.x.astype(np.float64))
    if not np.isfinite(x).all():
        return "NaN or infinity: it depends on the order of comparisons"
    plain = ((x == 0) | ((x > 1e-3) & (x < 1e3))).all()
    if "Max" not in case.op and not (plain and case.attributes.get("p", 2) <= 8):
        return "values whose sum or powers may overflow or vanish on the way"
    if case.op == "RoiAlign":
        x1, y1, x2, y2 = case.inputs[1].T
        if bool(((x2 < x1) | (y2 < y1)).any()):
            return "region turned over"
    return None


def _onnxruntime_limits(case: Case) -> str | None:
    same, strides = case.auto_pad.startswith("SAME"), case.attribute("strides", 1)
    if same and max(case.attribute("dilations", 1)) > 1:
        return "SAME with dilation"
    if same and any(s > k for s, k in zip(strides, case.kernel, strict=True)):
        return "SAME with a stride above the kernel"
    if case.auto_pad == "VALID" and case.ceil_mode:
        return "VALID with ceil_mode"
    if any(pad >= k for pad, k in zip(case.pads, case.kernel * 2, strict=True)):
        return "pad of the kernel's size"
    return "window without a valid tap" if _tapless(case) else None


def _torch_limits(case: Case) -> str | None:
    kept = Torch.keeps[case.op]
    for name, value in case.attributes.items():
        if name not in kept and any(item != _TRIVIAL[name] for item in np.ravel(value)):
            return f"{name}: it has no such argument"
    n = len(case.spatial)
    if case.pads[:n] != case.pads[n:]:
        return "pads that differ at both ends"
    if any(2 * pad > k for pad, k in zip(case.pads, case.kernel, strict=False)):
        return "pad above half the kernel"
    if n > 3:
        return "more than three spatial axes"
    odd = case.attributes.get("p", 2) % 2
    if case.op == "LpPool" and (case.ceil_mode or (odd and (case.x < 0).any())):
        return "norm under ceil_mode, or without absolute values"
    smaller = any(d < k for d, k in zip(case.spatial, case.kernel, strict=True))
    if case.op == "AveragePool" and smaller:
        return "average with a kernel larger than the input"
    return "window without a valid tap" if _tapless(case) else None


def _tapless(case: Case) -> bool:
    """Whether some window lies between the input's elements, all in the padding."""
    problem = resolve(case.op, case.x.shape, case.x.dtype, **case.attributes)
    axes = problem.window if isinstance(problem, PoolProblem) else ()
    return any(not axis.taps(o) for axis in axes for o in range(axis.out))
