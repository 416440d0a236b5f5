"""ONNX models from files and memory: nothing in them is trusted, and what is wrong has a name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, external_data_helper, helper, inliner, numpy_helper

from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.nodes import DOMAINS, PoolingNode, default_opset, is_pooling, label
from gpupool.problem import above_max_bytes, max_bytes

MAX_NODES = 2**18
"""More nodes than this, subgraphs included, are refused: no network comes near."""

MOST_BYTES = 2**31 - 1
"""What protobuf and onnxruntime take as one message, weights included."""


def load(source: str | PathLike[str] | bytes | Any) -> Any:
    """Return a checked ModelProto with its weights in memory and its functions inlined.

    ``source`` is what ``read`` takes; a ModelProto is not changed.
    """
    return prepared(read(source))


def read(source: str | PathLike[str] | bytes | Any) -> Any:
    """Return the ModelProto that a path, bytes or a ModelProto hold, with its weights in memory.

    External data is read from the folder of the path only.
    """
    if isinstance(source, (str, PathLike)):
        path = Path(fspath(source))
        _check_bytes(str(path), path.stat().st_size)
        model = _parse(str(path), path.read_bytes())
        _load_external(path, model)
    else:
        model = _parse("the model", source) if isinstance(source, bytes) else source
        if not isinstance(model, onnx.ModelProto):
            raise GpupoolTypeError(
                f"model must be a path, bytes or a ModelProto, not {type(model).__name__}"
            )
        if any(map(external_data_helper.uses_external_data, _tensors(model))):
            raise GpupoolValueError(
                "the model keeps tensors in other files: give its path, so that they can be found"
            )
    _check_size(model)
    return model


def prepared(model: Any) -> Any:
    """Return a checked ModelProto of plain nodes and dense initialisers that computes the same."""
    if model.functions:
        model = _inlined(model)
    if model.graph.quantization_annotation:  # nothing runs by it, and onnx's extractor refuses it
        annotated, model = model, onnx.ModelProto()
        model.CopyFrom(annotated)
        del model.graph.quantization_annotation[:]
    if model.graph.sparse_initializer:
        model = _densified(model)
    return check(model)


def _inlined(model: Any) -> Any:
    """Return a copy of a ModelProto whose functions are inlined, as far as onnx's inliner can.

    It forgets the defaults of attributes. What a call leaves to them is known once the call stands
    in the graph: within a function it may pass on an attribute that the function does not get.
    """
    inlined = onnx.ModelProto()
    inlined.CopyFrom(model)
    del inlined.graph.initializer[:]  # the inliner copies all, and needs no more than their names
    inlined.graph.initializer.extend(onnx.TensorProto(name=t.name) for t in model.graph.initializer)
    for layer in _layers(model.functions):
        del inlined.functions[:]
        inlined.functions.extend(layer)
        _check_count(inlined)
        _give_defaults(inlined)
        try:
            inlined = inliner.inline_local_functions(inlined)
        except (checker.ValidationError, RuntimeError) as error:
            raise GpupoolValueError(
                f"the model's functions cannot be inlined: {_line(error)}"
            ) from error
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(model.graph.initializer)
    del inlined.functions[:]
    inlined.functions.extend(model.functions)  # for those of other opsets, which stay
    _check_size(inlined)
    return inlined


def _layers(functions: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield FunctionProtos, those first that no others call."""
    left = list(functions)
    while left:
        called = {_key(node) for function in left for node in _nodes(function)}
        inner = [function for function in left if _key(function) in called]
        if len(inner) == len(left):
            names = ", ".join(f"{function.domain}.{function.name}" for function in inner)
            raise GpupoolValueError(
                f"the model has a function that calls itself, perhaps by way of others: {names}"
            )
        yield [function for function in left if _key(function) not in called]
        left = inner


def _give_defaults(model: Any) -> None:
    """Write what calls in the graph leave to the defaults of functions into these calls."""
    defaults = {_key(function): function.attribute_proto for function in model.functions}
    for node in _nodes(model.graph):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a for a in defaults.get(_key(node), ()) if a.name not in given)


def _key(proto: Any) -> tuple[str, str, str]:
    """Return what a FunctionProto and the NodeProtos that call it have in common."""
    name = proto.name if isinstance(proto, onnx.FunctionProto) else proto.op_type
    return "" if proto.domain in DOMAINS else proto.domain, name, proto.overload


def _densified(model: Any) -> Any:
    """Return a copy of a ModelProto whose sparse initialisers are dense ones."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    needed = model.ByteSize()
    for sparse in model.graph.sparse_initializer:
        needed += prod(sparse.dims) * _sparse_dtype(sparse).itemsize
        _check_bytes("the model with its sparse initialisers made dense", needed)
        copy.graph.initializer.append(_dense(sparse))
    del copy.graph.sparse_initializer[:]
    return copy


def _sparse_dtype(sparse: Any) -> np.dtype[Any]:
    kind = sparse.values.data_type
    if kind not in helper.get_all_tensor_dtypes() or kind == onnx.TensorProto.STRING:
        raise GpupoolValueError(
            f"sparse initialiser {sparse.values.name!r} has element type {kind}: "
            f"it must be one of ONNX's numbers"
        )
    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(kind)
    return dtype


def _dense(sparse: Any) -> Any:
    name = sparse.values.name
    try:
        checker.check_sparse_tensor(sparse)
        dense = np.zeros(prod(sparse.dims), _sparse_dtype(sparse))
        places = numpy_helper.to_array(sparse.indices)
        if places.ndim > 1:
            places = np.ravel_multi_index(tuple(places.T), sparse.dims)
        dense[places] = numpy_helper.to_array(sparse.values)
    except (checker.ValidationError, ValueError) as error:
        raise GpupoolValueError(
            f"sparse initialiser {name!r} is not valid: {_line(error)}"
        ) from error
    return numpy_helper.from_array(dense.reshape(sparse.dims), name)


def without_initialisers(model: Any, names: Collection[str]) -> Any:
    """Return a ModelProto, or where any initialiser is named a copy that lacks it."""
    if not names:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.initializer[:], copy.graph.sparse_initializer[:]
    copy.graph.initializer.extend(t for t in model.graph.initializer if t.name not in names)
    copy.graph.sparse_initializer.extend(
        sparse for sparse in model.graph.sparse_initializer if sparse.values.name not in names
    )
    return copy


def check(model: Any) -> Any:
    """Return a ModelProto whose nodes and names are in order."""
    _check_count(model)
    opset = default_opset(model)
    for node in _nodes(model.graph):
        if is_pooling(node):
            PoolingNode.read(node, opset)
        elif node.domain in DOMAINS and not defs.has(node.op_type, opset):
            raise GpupoolValueError(
                f"node {label(node)}: ONNX has no operator {node.op_type} at opset {opset}"
            )
    _check_names(model.graph)
    return model


def _check_count(model: Any) -> None:
    """Refuse too many nodes; those of a function count for each of its calls."""
    sizes = {_key(function): sum(1 for _ in _nodes(function)) for function in model.functions}
    nodes = sum(sizes.get(_key(node), 1) for node in _nodes(model.graph))
    if nodes > MAX_NODES:
        raise GpupoolValueError(f"the model has {nodes} nodes, above the {MAX_NODES} allowed")


def _check_names(graph: Any) -> None:
    """Refuse a node that reads what nothing before it gives, or gives what is there already."""
    known = {"", *(value.name for value in graph.input), *(t.name for t in graph.initializer)}
    for node in graph.node:
        for name in node.input:
            if name not in known:
                raise GpupoolValueError(
                    f"node {label(node)} ({node.op_type}) reads {name!r}, which nothing before it "
                    f"gives"
                )
        for name in filter(None, node.output):
            if name in known:
                raise GpupoolValueError(
                    f"node {label(node)} ({node.op_type}) gives {name!r}, which exists already"
                )
            known.add(name)
    for value in graph.output:
        if value.name not in known:
            raise GpupoolValueError(f"output {value.name!r} is given by no node")


def _parse(name: str, text: bytes) -> Any:
    try:
        model = onnx.load_model_from_string(text)
    except Exception as error:  # protobuf's own class, which differs between its versions
        raise GpupoolValueError(f"{name}: not an ONNX model: {_line(error)}") from error
    if not (model.ir_version and model.HasField("graph")):
        raise GpupoolValueError(f"{name}: not an ONNX model: it holds no graph")
    return model


def _load_external(path: Path, model: Any) -> None:
    total = model.ByteSize()
    for tensor in _tensors(model):
        if not external_data_helper.uses_external_data(tensor):
            continue
        location = {entry.key: entry.value for entry in tensor.external_data}
        try:
            total += _external_size(path.parent, location)
            _check_bytes(f"{path} with its external data", total)
            external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
        except (checker.ValidationError, OSError, ValueError) as error:
            raise GpupoolValueError(
                f"{path}: tensor {tensor.name} is in {location.get('location', '')!r}, which "
                f"cannot be read from the model's folder: {_line(error)}"
            ) from error


def _external_size(folder: Path, location: dict[str, str]) -> int:
    size = (folder / location.get("location", "")).stat().st_size
    return min(size, int(location.get("length", size)))


def _check_size(model: Any) -> None:
    try:
        needed = model.ByteSize()
    except Exception as error:  # protobuf's own class, as in _parse
        raise GpupoolValueError(
            f"the model holds more bytes than the {MOST_BYTES} of protobuf: {_line(error)}"
        ) from error
    _check_bytes("the model", needed)


def _check_bytes(what: str, needed: int) -> None:
    if needed > MOST_BYTES:
        raise GpupoolValueError(f"{what} holds {needed} bytes, above the {MOST_BYTES} of protobuf")
    if needed > max_bytes():
        raise above_max_bytes(what, needed)


def subgraphs(node: Any) -> Iterator[Any]:
    """Yield the graphs that a node holds, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)


def _tensors(model: Any) -> Iterator[Any]:
    yield from _initialisers(model.graph)
    for node in chain.from_iterable(map(_nodes, (model.graph, *model.functions))):
        for inner in subgraphs(node):
            yield from _initialisers(inner)
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            yield from _parts([attribute.sparse_tensor, *attribute.sparse_tensors])


def _initialisers(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from _parts(graph.sparse_initializer)


def _parts(sparse: Iterable[Any]) -> Iterator[Any]:
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def _line(error: BaseException) -> str:
    """Return the first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
