"""Pooling nodes of ONNX models: read with all that their version allows, then run by gpupool.

In a model presence decides: an attribute that the node's version lacks is refused even where it
holds its default. What a value may be is decided where every caller's is.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from gpupool import device
from gpupool import opset as opsets
from gpupool.arrays import Array
from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError
from gpupool.ops import FUNCTIONS

DOMAINS = ("", "ai.onnx")
"""The two spellings of ONNX's own domain."""

_INPUTS = {"MaxUnpool": (2, 3), "MaxRoiPool": (2, 2), "RoiAlign": (3, 3)}
"""Least and most inputs, where they are not one."""


def is_pooling(node: Any) -> bool:
    """Whether a NodeProto is one of the nine operators."""
    return node.domain in DOMAINS and node.op_type in opsets.OPERATORS


def label(node: Any) -> str:
    """Return what a message calls a NodeProto: its name, else what it gives."""
    return node.name or f"giving {', '.join(node.output)}"


def attribute_value(attribute: Any) -> Any:
    """Return the value of an AttributeProto, text as text."""
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@dataclass(frozen=True)
class PoolingNode:
    """One pooling node: operator, opset, the attributes that are present, names of its tensors.

    >>> node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2], strides=[2])
    >>> pool = PoolingNode.read(node, 12)
    >>> pool(np.array([[[1.0, 5.0, 2.0, 4.0]]]))
    (array([[[5., 4.]]]), array([[[1, 3]]]))
    """

    name: str
    op: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def read(cls, node: Any, opset: int) -> PoolingNode:
        """Check a NodeProto against the version that ``opset`` means."""
        with about(label(node), node.op_type):
            kinds = {a.name: onnx.AttributeProto.AttributeType.Name(a.type) for a in node.attribute}
            opsets.check_node(node.op_type, opset, kinds, len(node.output))
            _check_inputs(node)
            check_outputs(node)
            _check_bound(node)
            values = {a.name: attribute_value(a) for a in node.attribute}
        return cls(label(node), node.op_type, opset, values, tuple(node.input), tuple(node.output))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Compute the node on arrays of one kind; None stands for an input that is left out."""
        arguments = dict(self.attributes)
        arrays = list(inputs)
        if self.op == "MaxUnpool" and len(arrays) == 3:
            output_shape = arrays.pop()
            arguments["output_shape"] = None if output_shape is None else output_shape.tolist()
        if len(self.outputs) > 1 and self.outputs[1]:
            arguments["return_indices"] = True
        with about(self.name, self.op):
            result = FUNCTIONS[self.op](*arrays, **arguments, opset=self.opset)
        return result if isinstance(result, tuple) else (result,)

    def run(self, inputs: tuple[Array | None, ...], gpu: bool) -> tuple[tuple[Array, ...], float]:
        """Compute NumPy arrays, on the current GPU if asked, and the seconds without the copies."""
        if gpu:
            inputs = tuple(None if x is None else device.to_device(x) for x in inputs)
        start = time.perf_counter()
        outputs = self(*inputs)
        if gpu:
            device.synchronize()
        seconds = time.perf_counter() - start
        return (tuple(map(device.to_host, outputs)) if gpu else outputs), seconds


def _check_inputs(node: Any) -> None:
    least, most = _INPUTS.get(node.op_type, (1, 1))
    if not least <= len(node.input) <= most or not all(node.input[:least]):
        raise GpupoolValueError(
            f"inputs are {list(node.input)}: {node.op_type} takes {least} .. {most}, "
            f"the first {least} by name"
        )


def check_outputs(node: Any) -> None:
    """Refuse a node without the output that every operator has."""
    if not any(node.output[:1]):
        raise GpupoolValueError(
            f"outputs are {list(node.output)}: {node.op_type} gives the first by name"
        )


def _check_bound(node: Any) -> None:
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise GpupoolValueError(
                f"{attribute.name} is attribute {attribute.ref_attr_name} of a function, which is "
                f"not called here"
            )


@contextmanager
def about(name: str, op: str) -> Iterator[None]:
    """Put the node before the message of an error."""
    try:
        yield
    except GpupoolError as error:
        raise type(error)(f"node {name} ({op}): {error}") from error


def default_opset(model: Any) -> int:
    """Return the version of ONNX's own operators that a model imports."""
    versions = {o.version for o in model.opset_import if o.domain in DOMAINS}
    if len(versions) != 1:
        raise GpupoolValueError(
            f"the model imports {sorted(versions) or 'no version'} of ONNX's own operators: "
            f"exactly one is needed"
        )
    return int(versions.pop())


def checked_feeds(
    feeds: Mapping[str, Any], declared: Mapping[str, Any], weights: Collection[str] = ()
) -> dict[str, Any]:
    """Return feeds for the ValueInfoProtos ``declared``: arrays, and what is no tensor as it is.

    Other names, dtypes and shapes are refused. Those of ``weights`` may be left out.
    """
    for name in feeds:
        if name not in declared:
            raise GpupoolValueError(f"input {name!r} is not one of {', '.join(declared)}")
    missing = [name for name in declared if name not in feeds and name not in weights]
    if missing:
        raise GpupoolValueError(f"the model needs input {', '.join(map(repr, missing))}")
    return {name: _checked_feed(name, feeds[name], declared[name]) for name in feeds}


def _checked_feed(name: str, value: Any, declared: Any) -> Any:
    if declared.type.WhichOneof("value") not in (None, "tensor_type"):
        return value  # such as a sequence, which onnxruntime checks
    array = np.asarray(value)
    tensor = declared.type.tensor_type
    if tensor.elem_type:
        expected = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if array.dtype != expected and expected.kind != "O":
            raise GpupoolTypeError(
                f"input {name!r} has dtype {array.dtype}, the model takes {expected}"
            )
    _check_shape(name, array.shape, tensor.shape.dim)
    return array


def _check_shape(name: str, shape: tuple[int, ...], dims: Any) -> None:
    """Refuse what onnxruntime refuses: to it the shape of a scalar says no more than no shape."""
    declared = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in dims
    )
    fits = len(shape) == len(declared) and all(
        size == given for size, given in zip(declared, shape, strict=True) if isinstance(size, int)
    )
    if declared and not fits:
        raise GpupoolValueError(f"input {name!r} has shape {shape}, the model takes {declared}")
