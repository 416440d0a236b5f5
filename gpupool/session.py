"""Whole ONNX models: the pooling nodes on gpupool, everything between them on onnxruntime.

A tensor's level is the number of pooling nodes on the longest way to it. All nodes of one level
form a segment, which onnx's own extractor cuts out and onnxruntime runs; the pooling nodes that
read a level run after its segment. What follows from initialisers alone has no level: it becomes
part of every segment that reads it, so that onnxruntime folds it as it would in the whole model.
Random numbers are no constants, even of no input.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from os import PathLike
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, utils

from gpupool import model as models
from gpupool.arrays import Array
from gpupool.dtypes import BFLOAT16
from gpupool.errors import GpupoolError, GpupoolValueError
from gpupool.nodes import (
    DOMAINS,
    PoolingNode,
    checked_feeds,
    default_opset,
    is_pooling,
    label,
)
from gpupool.placement import on_gpu

RANDOM = {"Bernoulli", "Dropout", "Multinomial"} | {
    f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")
}
"""What may differ from run to run is computed once a run, even where it reads no input."""


OPTIONAL_SINCE = 4
"""The IR version since which a run may give other values for initialisers that are inputs, too."""

VARIANTS = 4
"""Sets of replaced initialisers whose steps are kept: each holds all other weights once more."""


@dataclass(frozen=True)
class NodeTime:
    """One pooling node of a run: what it read and gave, and how long it took without copies."""

    node: PoolingNode
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Profile:
    """A run with its times: the outputs, one row for each pooling node, and the whole."""

    outputs: list[Any]
    rows: list[NodeTime]
    seconds: float


@dataclass(frozen=True)
class Difference:
    """How far one output is from plain onnxruntime's; NaN beside a number is infinitely far."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    largest: float
    magnitude: float
    """The greatest finite magnitude of onnxruntime's output, to compare ``largest`` with."""


class Session:
    """An ONNX model that runs like ``onnxruntime.InferenceSession``, its pooling on gpupool.

    ``model`` is a path, the bytes of a model or a ModelProto. ``device`` says where the pooling
    nodes run: "cpu", "gpu", or "auto", which takes the GPU where there is one. ``sess_options`` and
    ``providers`` are onnxruntime's own, for everything else; options of the caller's stay as they
    are, and those by default let no idle thread spin. Pooling nodes inside the branches of control
    flow stay with onnxruntime. A model is refused that makes a sequence, or what else is no tensor,
    before a pooling node and reads it after that.

    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4])
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2])
    >>> node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[2])
    >>> graph = helper.make_graph([node], "pool", [x], [y])
    >>> session = Session(helper.make_model(graph), device="cpu")
    >>> session.run(None, {"x": np.array([[[1, 5, 2, 4]]], np.float32)})
    [array([[[5., 4.]]], dtype=float32)]
    """

    def __init__(
        self,
        model: str | PathLike[str] | bytes | Any,
        *,
        device: str = "auto",
        sess_options: Any = None,
        providers: Sequence[Any] = ("CPUExecutionProvider",),
    ) -> None:
        self._given = models.read(model)
        self._model = models.prepared(self._given)
        self._gpu = on_gpu(device)
        self._runtime = {"sess_options": sess_options, "providers": list(providers)}
        graph = self._model.graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        optional = self._model.ir_version >= OPTIONAL_SINCE
        self._inputs = {v.name: v for v in graph.input if optional or v.name not in self._weights}
        self._outputs = [value.name for value in graph.output]
        self._steps = _steps(self._model, self._runtime)
        self._variant = lru_cache(VARIANTS)(partial(_steps, self._model, self._runtime))

    @property
    def input_names(self) -> list[str]:
        """The names of what ``run`` needs; it takes inputs that have an initialiser, too."""
        return [name for name in self._inputs if name not in self._weights]

    @property
    def output_names(self) -> list[str]:
        """The names of what ``run`` gives."""
        return list(self._outputs)

    @property
    def on_gpu(self) -> bool:
        """Whether the pooling nodes run on the GPU."""
        return self._gpu

    @property
    def bfloat16_names(self) -> list[str]:
        """The inputs of dtype bfloat16, for which .npy has no name."""
        return [
            name
            for name, value in self._inputs.items()
            if value.type.tensor_type.elem_type == TensorProto.BFLOAT16
        ]

    @property
    def object_outputs(self) -> dict[str, str]:
        """The outputs that are no arrays of numbers, and their types: .npy has no form for them."""
        types: dict[str, Any] = {name: t.data_type for name, t in self._weights.items()}
        for step in self._steps:
            types |= step.types if isinstance(step, _Segment) else {}
        types |= {name: "tensor(string)" for name in types if types[name] == TensorProto.STRING}
        return {name: types[name] for name in self._outputs if isinstance(types.get(name), str)}

    @property
    def pooling_nodes(self) -> list[PoolingNode]:
        """The nodes that run on gpupool, in the order in which they run."""
        return [step for step in self._steps if isinstance(step, PoolingNode)]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Return the outputs named, or all, for arrays by name: as onnxruntime's ``run`` does."""
        values, _ = self._compute(input_feed, run_options)
        return self._chosen(output_names, values)

    def profile(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> Profile:
        """Return the outputs with the time of each pooling node and of the whole run."""
        start = time.perf_counter()
        values, rows = self._compute(input_feed, None)
        seconds = time.perf_counter() - start
        return Profile(self._chosen(output_names, values), rows, seconds)

    def compare(self, outputs: Sequence[Any], input_feed: Mapping[str, Any]) -> list[Difference]:
        """Return how far all ``outputs`` of this session are from plain onnxruntime's.

        Each item of a sequence has a difference of its own. onnxruntime runs the model as it was
        given, so that what loading changes is compared, too.
        """
        feeds = checked_feeds(input_feed, self._inputs, self._weights)
        model = models.without_initialisers(self._given, self._replaced(feeds))
        plain = _Segment(model, self._runtime, "the model")
        values = plain.run(feeds, None)
        return [
            found
            for name, output in zip(self._outputs, outputs, strict=True)
            for found in _differences(name, output, values[name])
        ]

    def _compute(
        self, input_feed: Mapping[str, Any], run_options: Any
    ) -> tuple[dict[str, Any], list[NodeTime]]:
        values: dict[str, Any] = checked_feeds(input_feed, self._inputs, self._weights)
        rows = []
        replaced = self._replaced(values)
        for step in self._variant(replaced) if replaced else self._steps:
            if isinstance(step, PoolingNode):
                rows.append(self._pool(step, values))
            else:
                values.update(step.run(values, run_options))
        return values, rows

    def _replaced(self, feeds: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(feeds.keys() & self._weights.keys())

    def _pool(self, node: PoolingNode, values: dict[str, Any]) -> NodeTime:
        inputs = tuple(self._value(name, values) if name else None for name in node.inputs)
        outputs, seconds = node.run(inputs, self._gpu)
        values.update(zip(node.outputs, outputs, strict=False))
        moved = [x for x in (*inputs, *outputs) if x is not None]
        nbytes = sum(x.nbytes for x in moved)
        return NodeTime(node, moved[0].shape, outputs[0].shape, nbytes, seconds)

    def _value(self, name: str, values: dict[str, Any]) -> Any:
        if name not in values:
            values[name] = numpy_helper.to_array(self._weights[name])
        return values[name]

    def _chosen(self, names: Sequence[str] | None, values: dict[str, Any]) -> list[Any]:
        for name in names or ():
            if name not in self._outputs:
                raise GpupoolValueError(f"output {name!r} is not one of {', '.join(self._outputs)}")
        return [self._value(name, values) for name in names or self._outputs]


def _differences(name: str, ours: Any, theirs: Any) -> list[Difference]:
    if not isinstance(theirs, list):
        return [_difference(name, np.asarray(ours), np.asarray(theirs))]
    if len(ours) != len(theirs):
        raise GpupoolError(f"output {name!r} has {len(ours)} items, onnxruntime's {len(theirs)}")
    return [
        found
        for i, pair in enumerate(zip(ours, theirs, strict=True))
        for found in _differences(f"{name}[{i}]", *pair)
    ]


def _difference(name: str, ours: Array, theirs: Array) -> Difference:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise GpupoolError(
            f"output {name!r} is {ours.dtype} {ours.shape}, onnxruntime's {theirs.dtype} "
            f"{theirs.shape}"
        )
    if ours.dtype.kind in "OSUb":
        return Difference(name, ours.shape, ours.dtype, float((ours != theirs).any()), 1.0)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0, np.abs(a - b))
    distance[np.isnan(distance)] = np.inf
    finite = np.abs(b[np.isfinite(b)])
    return Difference(
        name, ours.shape, ours.dtype, float(distance.max(initial=0)), float(finite.max(initial=0))
    )


# Cutting


def _steps(
    model: Any, runtime: Mapping[str, Any], replaced: frozenset[str] = frozenset()
) -> list[Any]:
    """Return the steps of runs that give other values for some initialisers."""
    return _Cut(models.without_initialisers(model, replaced)).steps(runtime)


class _Cut:
    """Where a graph is cut: the level of every tensor, and who reads it."""

    def __init__(self, model: Any) -> None:
        self.opset = default_opset(model)
        self.extractor = utils.Extractor(model)
        # What a model says of shapes behind a pooling node may be wrong: onnxruntime infers them.
        self.extractor.value_infos = {value.name: value for value in model.graph.input}
        inputs = self.extractor.value_infos.keys() - self.extractor.initializers.keys()
        self.level: dict[str, int] = dict.fromkeys(inputs, 0)
        self.readers: dict[str, set[int | None]] = {v.name: {None} for v in model.graph.output}
        self.segments: dict[int, list[Any]] = {0: []}
        self.pools: dict[int, list[PoolingNode]] = {}
        for node in model.graph.node:
            self._place(node)

    def _place(self, node: Any) -> None:
        reads = _reads(node)
        levels = [self.level[name] for name in reads if name in self.level]
        pooling = is_pooling(node)
        if not levels and not pooling and not _varies(node):
            return
        level = max(levels, default=0)
        if pooling:
            self.pools.setdefault(level, []).append(PoolingNode.read(node, self.opset))
        else:
            self.segments.setdefault(level, []).append(node)
        for name in reads:
            self.readers.setdefault(name, set()).add(None if pooling else level)
        self.level.update(dict.fromkeys(filter(None, node.output), level + pooling))

    def steps(self, runtime: Mapping[str, Any]) -> list[Any]:
        """Return segments and pooling nodes in the order in which they run."""
        found: list[Any] = []
        types: dict[str, Any] = {}
        for level in range(max([*self.segments, *self.pools]) + 1):
            segment = self._segment(level, types, runtime)
            if segment is not None:
                found.append(segment)
                types |= segment.types
            for pool in self.pools.get(level, ()):
                found.append(pool)
                types[pool.outputs[0]] = self._type(pool.inputs[0], types)
                types |= dict.fromkeys(pool.outputs[1:], TensorProto.INT64)
        return found

    def _type(self, name: str, types: Mapping[str, int]) -> int:
        """Return the element type of what a pooling node reads."""
        if name in types:
            return types[name]
        if name in self.extractor.initializers:
            return int(self.extractor.initializers[name].data_type)
        return int(self.extractor.value_infos[name].type.tensor_type.elem_type)

    def _segment(
        self, level: int, types: Mapping[str, Any], runtime: Mapping[str, Any]
    ) -> _Segment | None:
        nodes = self.segments.get(level, [])
        given = {name for node in nodes for name in node.output}
        read = {name for node in nodes for name in _reads(node)}
        leaving = given if level else given | (self.extractor.outmap.keys() - self.level.keys())
        outputs = sorted(name for name in leaving if self._leaves(name, level))
        if not outputs:
            return None
        inputs = sorted((read & self.level.keys()) - given)
        for name in inputs:
            if name in types:
                self.extractor.value_infos[name] = _tensor(name, types[name])
        return _Segment(self._extract(inputs, outputs), runtime, f"segment {level}")

    def _leaves(self, name: str, level: int) -> bool:
        """Whether anything else reads it; what has no level leaves only for pooling and outputs."""
        readers = self.readers.get(name, set())
        return bool(readers - {level}) if name in self.level else None in readers

    def _extract(self, inputs: list[str], outputs: list[str]) -> Any:
        # The extractor does not see what the branches of control flow read from outside.
        inner: set[str] = set()
        while True:
            model = self._leading_to([*outputs, *sorted(inner)], inputs)
            captured = {name for node in model.graph.node for name in _captured(node)}
            given = {name for node in model.graph.node for name in node.output}
            missing = (captured & self.extractor.outmap.keys()) - given.union(inputs)
            if not missing:
                break
            inner |= missing
        del model.graph.output[len(outputs) :]
        have = {tensor.name for tensor in model.graph.initializer}
        model.graph.initializer.extend(
            tensor
            for name, tensor in self.extractor.initializers.items()
            if name in captured and name not in have
        )
        return model

    def _leading_to(self, outputs: list[str], inputs: list[str]) -> Any:
        for name in outputs:
            self.extractor.value_infos.setdefault(name, helper.make_empty_tensor_value_info(name))
        model = self.extractor.extract_model(inputs, outputs)
        del model.graph.value_info[:]
        return model


def _varies(node: Any) -> bool:
    """Whether what a node gives may differ from run to run, also by a node of its subgraphs."""
    inner = (node for graph in models.subgraphs(node) for node in graph.node)
    return node.op_type in RANDOM or any(map(_varies, inner))


def _tensor(name: str, kind: Any) -> Any:
    if isinstance(kind, str):
        raise GpupoolValueError(f"{name!r} is a {kind}, which cannot cross a pooling node")
    return helper.make_tensor_value_info(name, kind, None)


def _reads(node: Any) -> set[str]:
    return {*filter(None, node.input), *_captured(node)}


def _captured(node: Any) -> set[str]:
    """Names that the subgraphs of a node read from outside of them."""
    return {name for graph in models.subgraphs(node) for name in _free(graph)}


def _free(graph: Any) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in _reads(node)}
    return (read | {value.name for value in graph.output}) - own


# Running what is not pooling


class _Segment:
    """A model on onnxruntime; bfloat16, which its Python side lacks, crosses as float32."""

    def __init__(self, model: Any, runtime: Mapping[str, Any], name: str) -> None:
        self.name = name
        self.session = _load(model, runtime, name)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.types = {value.name: _type(value.type) for value in self.session.get_outputs()}
        taken = {value.name: _type(value.type) for value in self.session.get_inputs()}
        kinds = taken | self.types
        self.narrow = {value for value, kind in kinds.items() if kind == TensorProto.BFLOAT16}
        if self.narrow:
            self.session = _load(_widened(model, self.narrow), runtime, name)

    def run(self, values: Mapping[str, Any], run_options: Any) -> dict[str, Any]:
        """Return the outputs by name."""
        feeds = {
            self._inside(name): np.asarray(values[name], np.float32)
            if name in self.narrow
            else values[name]
            for name in self.inputs
            if name in values
        }
        try:
            arrays = self.session.run(list(map(self._inside, self.types)), feeds, run_options)
        except Exception as error:  # onnxruntime's classes derive from Exception itself
            raise GpupoolError(f"onnxruntime failed in {self.name}: {error}") from error
        return {
            name: array.astype(BFLOAT16.numpy) if name in self.narrow else array
            for name, array in zip(self.types, arrays, strict=True)
        }

    def _inside(self, name: str) -> str:
        return name + _WIDE if name in self.narrow else name


_WIDE = "/gpupool:float32"
"""What is added to the name of a bfloat16 tensor where it crosses as float32."""


def _widened(model: Any, names: set[str]) -> Any:
    """Return a copy whose bfloat16 inputs and outputs, those in ``names``, are float32."""
    wide = type(model)()
    wide.CopyFrom(model)
    graph = wide.graph
    for values, narrowing in ((graph.input, True), (graph.output, False)):
        for value in values:
            if value.name not in names:
                continue
            outer, inner = value.name + _WIDE, value.name
            if narrowing:
                node = helper.make_node("Cast", [outer], [inner], to=TensorProto.BFLOAT16)
                graph.node.insert(0, node)
            else:
                graph.node.append(helper.make_node("Cast", [inner], [outer], to=TensorProto.FLOAT))
            value.name = outer
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide


def _type(text: str) -> int | str:
    """Return the element type of onnxruntime's "tensor(float)"; what is no tensor stays text."""
    found = re.fullmatch(r"tensor\((\w+)\)", text)
    return int(TensorProto.DataType.Value(found[1].upper())) if found else text


def _load(model: Any, runtime: Mapping[str, Any], name: str) -> Any:
    import onnxruntime

    options = _options() if runtime["sess_options"] is None else runtime["sess_options"]
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), sess_options=options, providers=runtime["providers"]
        )
    except Exception as error:
        where = next((n for n in model.graph.node if _custom(n) and n.op_type in str(error)), None)
        if where is not None:
            name = f"node {label(where)} ({where.domain}.{where.op_type}) in {name}"
        raise GpupoolValueError(f"onnxruntime refuses {name}: {error}") from error


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: what it warns of is the model's own
    # Each segment has threads of its own, which would take the processors from the step after it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _custom(node: Any) -> bool:
    return node.domain not in DOMAINS
