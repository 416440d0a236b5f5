"""gpupool as an ONNX backend, after ``onnx.backend.base``: "CPU" is the oracle, "CUDA" the kernels.

It runs graphs of the nine operators, and the Squeeze and Unsqueeze with which PyTorch's exporter
surrounds one-dimensional pooling. For any other model there is ``gpupool.onnx.Session``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import checker, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from gpupool import device as devices
from gpupool import model as models
from gpupool.arrays import Array
from gpupool.errors import GpupoolError, GpupoolValueError
from gpupool.nodes import (
    DOMAINS,
    PoolingNode,
    about,
    attribute_value,
    check_outputs,
    checked_feeds,
    default_opset,
    is_pooling,
    label,
)
from gpupool.opset import NEWEST, OPERATORS

Step = Callable[..., tuple[Array, ...]]

AROUND: dict[str, Callable[..., Any]] = {"Squeeze": np.squeeze, "Unsqueeze": np.expand_dims}
"""The operators around pooling: functions of an array and axes, which may be an input."""


class GpupoolRep(BackendRep):  # type: ignore[misc]
    """A model prepared to run repeatedly."""

    def __init__(self, model: Any, gpu: bool) -> None:
        graph = model.graph
        opset = default_opset(model)
        self._steps = [(node, _step(node, opset, gpu)) for node in graph.node]
        self._weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._declared = {value.name: value for value in graph.input}
        self._outputs = [value.name for value in graph.output]

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Return the outputs, by position and by name, for inputs by position or by name.

        Inputs with an initialiser may be left out; by position, all of them or none.
        """
        fed = checked_feeds(self._named(inputs), self._declared, self._weights)
        values = self._weights | fed
        for node, step in self._steps:
            given = step(*(values[name] if name else None for name in node.input))
            values.update(zip(node.output, given, strict=False))
        outputs = namedtupledict("Outputs", self._outputs)
        results: tuple[Any, ...] = outputs(*(values[name] for name in self._outputs))
        return results

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        arrays = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        every = list(self._declared)
        required = [name for name in every if name not in self._weights]
        names = required if len(arrays) == len(required) else every
        if len(arrays) != len(names):
            raise GpupoolValueError(f"{len(arrays)} inputs are given, the model takes {names}")
        return dict(zip(names, arrays, strict=True))


class GpupoolBackend(Backend):  # type: ignore[misc]
    """The pooling operators behind ONNX's interface.

    >>> from onnx import helper
    >>> node = helper.make_node("GlobalMaxPool", ["x"], ["y"])
    >>> GpupoolBackend.run_node(node, [np.array([[[1.0, 5.0, 2.0]]])])
    Outputs(y=array([[[5.]]]))
    """

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **_: Any) -> bool:
        """Whether every node of the model is one that this backend runs.

        As in ONNX's interface that is asked of a model: a path that cannot be read is an error.
        """
        try:
            cls.prepare(model, device)
        except GpupoolError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> GpupoolRep:
        """Check a model whole and return what runs it."""
        gpu = _on_gpu(device)
        rep = GpupoolRep(models.load(model), gpu)  # first: it says more than the checker
        try:
            checker.check_model(model)
        except checker.ValidationError as error:
            raise GpupoolValueError(f"the model is not valid: {error}") from error
        return rep

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,  # noqa: ARG003 - part of ONNX's interface
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the outputs of one node, at ``opset_version`` or the newest opset."""
        step = _step(node, kwargs.get("opset_version", NEWEST), _on_gpu(device))
        arrays = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        outputs = namedtupledict("Outputs", list(filter(None, node.output)))
        results: tuple[Any, ...] = outputs(*step(*arrays))
        return results

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether "CPU" or "CUDA", the current device, can be used."""
        return device == "CPU" or (device == "CUDA" and devices.gpu_available())


def _on_gpu(device: str) -> bool:
    if device not in ("CPU", "CUDA"):
        raise GpupoolValueError(f"device = {device!r} must be one of CPU, CUDA")
    reason = devices.gpu_reason() if device == "CUDA" else None
    if reason is not None:
        raise GpupoolError(f"device = 'CUDA': {reason}")
    return device == "CUDA"


def _step(node: Any, opset: int, gpu: bool) -> Step:
    if is_pooling(node):
        pool = PoolingNode.read(node, opset)
        return lambda *inputs: pool.run(inputs, gpu)[0]
    if node.domain in DOMAINS and node.op_type in AROUND:
        with about(label(node), node.op_type):
            check_outputs(node)
        return partial(_reshape, node)
    raise GpupoolValueError(
        f"node {label(node)} is {node.domain or 'ONNX'}'s {node.op_type}: this backend runs "
        f"{', '.join([*OPERATORS, *AROUND])}; gpupool.onnx.Session runs other models"
    )


def _reshape(node: Any, x: Array, axes: Array | None = None) -> tuple[Array, ...]:
    """Squeeze or Unsqueeze: the axes are an attribute up to opset 12, an input since 13."""
    given = next((attribute_value(a) for a in node.attribute if a.name == "axes"), axes)
    try:
        numbers = None if given is None else tuple(int(axis) for axis in given)
        return (AROUND[node.op_type](x, numbers),)
    except (TypeError, ValueError) as error:
        raise GpupoolValueError(
            f"node {label(node)} ({node.op_type}): axes = {given} with shape {x.shape}: {error}"
        ) from error


is_compatible = GpupoolBackend.is_compatible
prepare = GpupoolBackend.prepare
run_model = GpupoolBackend.run_model
run_node = GpupoolBackend.run_node
supports_device = GpupoolBackend.supports_device
