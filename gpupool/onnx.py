"""gpupool in the ONNX world: what it supports, its operators as OpRun classes, whole models.

Needs the ``onnx`` extra. ``gpupool.onnx_backend`` is the same behind ONNX's backend interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from onnx import helper
from onnx.reference.op_run import OpRun

from gpupool.dtypes import DTYPES, DType
from gpupool.nodes import PoolingNode
from gpupool.opset import NEWEST, OPERATORS
from gpupool.placement import on_gpu
from gpupool.session import Difference, NodeTime, Profile, Session

__all__ = [
    "Difference",
    "NodeTime",
    "Profile",
    "Session",
    "Support",
    "new_ops",
    "supported",
]


@dataclass(frozen=True)
class Support:
    """One version of an operator: the opsets that mean it and all that it takes.

    ``beyond`` are dtypes that gpupool's function takes where no opset is asked for.
    """

    operator: str
    first_opset: int
    last_opset: int
    dtypes: tuple[str, ...]
    attributes: tuple[str, ...]
    outputs: int
    beyond: tuple[str, ...]


def supported() -> list[Support]:
    """Return the table of operators, versions and dtypes, oldest version first.

    >>> [row.first_opset for row in supported() if row.operator == "LpPool"]
    [1, 2, 11, 18, 22]
    >>> supported()[0]  # doctest: +NORMALIZE_WHITESPACE
    Support(operator='MaxPool', first_opset=1, last_opset=7,
        dtypes=('float64', 'float32', 'float16'),
        attributes=('kernel_shape', 'strides', 'pads', 'auto_pad'), outputs=1, beyond=())
    """
    return [
        Support(
            operator.name,
            version.since,
            following.since - 1 if following else NEWEST,
            _names(version.dtypes),
            tuple(version.attributes),
            version.outputs,
            _names(operator.beyond),
        )
        for operator in OPERATORS.values()
        for version, following in zip_longest(operator.versions, operator.versions[1:])
    ]


def _names(dtypes: frozenset[DType]) -> tuple[str, ...]:
    return tuple(row.name for row in DTYPES if row in dtypes)


def new_ops(device: str = "auto") -> list[type]:
    """Return the pooling operators for ``onnx.reference.ReferenceEvaluator(model, new_ops=...)``.

    ``device`` is "cpu", "gpu", or "auto", which takes the GPU where there is one. The evaluator
    hands no operators on to a model's own functions: ``onnx.inliner`` brings these in line before.

    >>> sorted(op.__name__ for op in new_ops("cpu"))[:3]
    ['AveragePool', 'GlobalAveragePool', 'GlobalLpPool']
    """
    gpu = on_gpu(device)

    def run(self: Any, *inputs: Any, linked_attributes: Any = None, **_: Any) -> tuple[Any, ...]:
        # Not ``_run``, whose TypeErrors OpRun replaces by its own.
        node = _bound(self.onnx_node, linked_attributes or {})
        return PoolingNode.read(node, self.run_params["opsets"][node.domain]).run(inputs, gpu)[0]

    return [type(op, (OpRun,), {"op_domain": "", "run": run, "_run": run}) for op in OPERATORS]


def _bound(node: Any, values: Mapping[str, Any]) -> Any:
    """Return the node of a function's body with the attributes that its caller gives."""
    bound = type(node)()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name in values:
            value = values[attribute.ref_attr_name]
            bound.attribute.append(helper.make_attribute(attribute.name, value))
        else:
            bound.attribute.append(attribute)
    return bound
