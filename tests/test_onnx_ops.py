"""Every version of every operator in models built at that opset, and what each version lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

import gpupool
import gpupool.onnx
from gpupool import GpupoolTypeError, GpupoolValueError, device
from gpupool.arrays import Array
from gpupool.dtypes import DTYPES, FLOAT32, DType, find
from gpupool.nodes import PoolingNode
from gpupool.onnx_backend import prepare, run_node
from gpupool.ops import FUNCTIONS
from gpupool.opset import NEWEST, OPERATORS, Version
from tests import tolerance

VALUES: dict[str, Any] = {
    "kernel_shape": [2, 3],
    "strides": [2, 1],
    "pads": [1, 1, 0, 1],
    "auto_pad": "NOTSET",
    "ceil_mode": 1,
    "dilations": [1, 2],
    "storage_order": 1,
    "count_include_pad": 1,
    "pooled_shape": [2, 2],
    "spatial_scale": 0.5,
    "mode": "max",
    "output_height": 2,
    "output_width": 3,
    "sampling_ratio": 2,
    "coordinate_transformation_mode": "output_half_pixel",
}
"""A value, other than the default, of every attribute but p."""

OTHER_TYPE = {"INT": 2.5, "INTS": "2", "FLOAT": "2", "STRING": 2}
"""For each ONNX type of an attribute a value of another."""


def attributes_of(version: Version) -> dict[str, Any]:
    values = {name: VALUES[name] for name in version.attributes if name != "p"}
    if "p" in version.attributes:
        values["p"] = 3.0 if version.attributes["p"].type == "FLOAT" else 3
    return values


def inputs_of(op: str, dtype: DType) -> tuple[Array, ...]:
    x = np.random.default_rng(4).integers(-20, 20, (2, 2, 6, 7)).astype(dtype.numpy)
    if op == "MaxUnpool":
        return x, np.random.default_rng(5).permutation(x.size).reshape(x.shape)
    if op == "MaxRoiPool":
        return x, np.array([[0, 0, 0, 9, 9], [1, 2, 3, 8, 9]], dtype.numpy)
    if op == "RoiAlign":
        return x, np.array([[0, 0, 9, 9], [2, 3, 8, 9]], dtype.numpy), np.array([0, 1])
    return (x,)


def node_of(op: str, attributes: dict[str, Any], outputs: int = 1) -> Any:
    names = {"MaxUnpool": ["x", "i"], "MaxRoiPool": ["x", "r"], "RoiAlign": ["x", "r", "b"]}
    inputs = names.get(op, ["x"])
    return helper.make_node(op, inputs, ["y", "z"][:outputs], name="pool", **attributes)


def model_of(node: Any, opset: int, inputs: tuple[Array, ...]) -> Any:
    declared = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
        )
        for name, array in zip(node.input, inputs, strict=True)
    ]
    kinds = [declared[0].type.tensor_type.elem_type, TensorProto.INT64]
    given = [
        helper.make_tensor_value_info(name, kind, [None] * 4)
        for name, kind in zip(node.output, kinds, strict=False)
    ]
    graph = helper.make_graph([node], "one node", declared, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def outputs_of(op: str, version: Version) -> int:
    return min(version.outputs, 2) if op == "MaxPool" else 1


VERSIONS = [
    pytest.param(op, version, opset, id=f"{op}-{version.since}-at-{opset}")
    for op, operator in OPERATORS.items()
    for i, version in enumerate(operator.versions)
    for opset in sorted(
        {version.since, [*(v.since for v in operator.versions), NEWEST + 1][i + 1] - 1}
    )
]
"""Every version at the first opset and the last that mean it."""

EACH_VERSION = pytest.mark.parametrize(
    ("op", "version"),
    [
        pytest.param(op, version, id=f"{op}-{version.since}")
        for op, operator in OPERATORS.items()
        for version in operator.versions
    ],
)


@pytest.mark.parametrize(("op", "version", "opset"), VERSIONS)
def test_a_model_of_every_version_in_each_of_its_dtypes(
    op: str, version: Version, opset: int
) -> None:
    attributes = attributes_of(version)
    node = node_of(op, attributes, outputs_of(op, version))
    if outputs_of(op, version) == 2:
        attributes["return_indices"] = True
    for dtype in version.dtypes:
        inputs = inputs_of(op, dtype)
        expected = FUNCTIONS[op](*inputs, **attributes, opset=opset)
        expected = expected if isinstance(expected, tuple) else (expected,)
        model = model_of(node, opset, inputs)
        feeds = dict(zip(node.input, inputs, strict=True))
        for outputs in (
            prepare(model).run(inputs),
            ReferenceEvaluator(model, new_ops=gpupool.onnx.new_ops("cpu")).run(None, feeds),
        ):
            for y, right in zip(outputs, expected, strict=True):
                tolerance.assert_bitwise(y, right)


@EACH_VERSION
def test_every_dtype_that_the_version_lacks_is_refused(op: str, version: Version) -> None:
    node = node_of(op, attributes_of(version))
    lacking = [row.numpy for row in DTYPES if row not in version.dtypes]
    for dtype in (*lacking, np.dtype(np.int32), np.dtype(bool), np.dtype(np.uint16)):
        x = np.zeros((2, 2, 6, 7), dtype)
        inputs = (x, *inputs_of(op, FLOAT32)[1:])
        with pytest.raises(GpupoolTypeError, match=rf"node pool \({op}\): .*{dtype}"):
            run_node(node, inputs, opset_version=version.since)


@EACH_VERSION
def test_every_attribute_that_the_version_lacks_is_refused_even_at_its_default(
    op: str, version: Version
) -> None:
    newest = OPERATORS[op].newest
    for name, attribute in newest.attributes.items():
        if name in version.attributes:
            continue
        since = OPERATORS[op].brought(lambda v, name=name: name in v.attributes)
        default = [1, 1] if attribute.default is None else attribute.default
        for value in (default, VALUES[name]):
            node = node_of(op, attributes_of(version) | {name: value})
            with pytest.raises(GpupoolValueError, match=f"{name}: {op} has it since opset {since}"):
                PoolingNode.read(node, version.since)


@EACH_VERSION
def test_every_attribute_of_another_type_is_refused(op: str, version: Version) -> None:
    for name, attribute in version.attributes.items():
        node = node_of(op, attributes_of(version) | {name: OTHER_TYPE[attribute.type]})
        with pytest.raises(GpupoolTypeError, match=rf"{name} is of type .* as {attribute.type} at"):
            PoolingNode.read(node, version.since)


@EACH_VERSION
def test_an_unknown_attribute_is_refused_by_name(op: str, version: Version) -> None:
    node = node_of(op, attributes_of(version) | {"colour": 1})
    allowed = ", ".join(version.attributes) or "none"
    with pytest.raises(GpupoolValueError, match=f"colour: {op} has no such attribute.*: {allowed}"):
        PoolingNode.read(node, version.since)


@EACH_VERSION
def test_a_missing_attribute_is_named(op: str, version: Version) -> None:
    required = {"kernel_shape", "pooled_shape"} & version.attributes.keys()
    for name in required:
        attributes = {k: v for k, v in attributes_of(version).items() if k != name}
        with pytest.raises(GpupoolTypeError, match=f"{name}: {op} needs it at opset"):
            PoolingNode.read(node_of(op, attributes), version.since)
    node = node_of(op, {name: VALUES[name] for name in required})
    assert PoolingNode.read(node, version.since).attributes.keys() == required


def test_lp_pool_1_without_kernel_shape_gives_the_clear_error() -> None:
    with pytest.raises(GpupoolTypeError, match="kernel_shape: LpPool needs it at opset = 1"):
        prepare(model_of(node_of("LpPool", {}), 1, inputs_of("LpPool", FLOAT32)))


@pytest.mark.parametrize(("opset", "p"), [(1, 3), (2, 3.0), (18, 2.0)])
@pytest.mark.parametrize("op", ["LpPool", "GlobalLpPool"])
def test_p_has_the_type_of_its_version(op: str, opset: int, p: float) -> None:
    kernel = {"kernel_shape": [2, 2]} if op == "LpPool" else {}
    with pytest.raises(GpupoolTypeError, match=f"p is of type .* at opset = {opset}"):
        PoolingNode.read(node_of(op, {**kernel, "p": p}), opset)


@pytest.mark.parametrize(
    ("op", "outputs", "opset", "most"), [("MaxPool", 2, 7, 1), ("AveragePool", 2, 22, 1)]
)
def test_outputs_that_the_version_lacks_are_refused(
    op: str, outputs: int, opset: int, most: int
) -> None:
    node = node_of(op, {"kernel_shape": [2, 2]}, outputs)
    with pytest.raises(GpupoolValueError, match=rf"{outputs} outputs .*{op} gives 1 \.\. {most}"):
        PoolingNode.read(node, opset)


@pytest.mark.parametrize(
    ("op", "inputs", "allowed"),
    [
        ("MaxPool", ["x", "y"], r"1 \.\. 1"),
        ("MaxPool", [""], r"1 \.\. 1"),
        ("MaxUnpool", ["x"], r"2 \.\. 3"),
        ("RoiAlign", ["x", "r"], r"3 \.\. 3"),
        ("MaxRoiPool", ["x", ""], r"2 \.\. 2"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(op: str, inputs: list[str], allowed: str) -> None:
    attributes = {name: VALUES[name] for name in ("kernel_shape", "pooled_shape")}
    own = {k: v for k, v in attributes.items() if k in OPERATORS[op].newest.attributes}
    node = helper.make_node(op, inputs, ["y"], **own)
    with pytest.raises(GpupoolValueError, match=f"{op} takes {allowed}"):
        PoolingNode.read(node, 16)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("opset", [0, NEWEST + 1])
def test_an_unknown_opset_is_refused(op: str, opset: int) -> None:
    node = node_of(op, attributes_of(OPERATORS[op].versions[0]))
    with pytest.raises(GpupoolValueError, match=rf"opset = {opset} .*1 \.\. {NEWEST}"):
        PoolingNode.read(node, opset)


# What a value may be is decided where every caller's is


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("MaxPool", {"kernel_shape": [2, 0]}, r"kernel_shape\[1\] = 0"),
        ("MaxPool", {"kernel_shape": [2, 2, 2]}, "kernel_shape = .* expected 2"),
        ("MaxPool", {"kernel_shape": [2, 2], "auto_pad": "SAME"}, "auto_pad = 'SAME'"),
        ("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": 2}, "ceil_mode = 2"),
        ("LpPool", {"kernel_shape": [2, 2], "p": 0}, "p = 0"),
        ("RoiAlign", {"spatial_scale": float("inf")}, "spatial_scale = inf"),
        ("MaxPool", {"kernel_shape": [9, 9]}, "the window is larger than the padded input"),
    ],
)
def test_a_bad_value_names_node_and_attribute(
    op: str, attributes: dict[str, Any], message: str
) -> None:
    model = model_of(node_of(op, attributes), 18, inputs_of(op, FLOAT32))
    with pytest.raises(GpupoolValueError, match=rf"node pool \({op}\): {message}"):
        prepare(model).run(inputs_of(op, FLOAT32))


def test_text_that_is_not_utf_8_is_refused_like_other_text() -> None:
    node = node_of("MaxPool", {"kernel_shape": [2, 2], "auto_pad": b"\xff"})
    with pytest.raises(GpupoolValueError, match="auto_pad = "):
        run_node(node, inputs_of("MaxPool", FLOAT32))


# OpRun classes


def test_new_ops_are_the_nine_operators() -> None:
    ops = gpupool.onnx.new_ops("cpu")
    assert {op.__name__ for op in ops} == set(OPERATORS)
    assert all(issubclass(op, onnx.reference.op_run.OpRun) for op in ops)


def test_new_ops_take_the_place_of_the_reference_in_any_model() -> None:
    """Relu is the reference's own; its MaxPool gives 2 outputs here, gpupool's the right 3."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node(
            "MaxPool", ["positive"], ["y"], kernel_shape=[2], strides=[2], auto_pad="SAME_LOWER"
        ),
    ]
    x = np.array([[[-1, 2, -3, 4, 5]]], np.float32)
    graph = helper.make_graph(
        nodes,
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)])
    (y,) = ReferenceEvaluator(model, new_ops=gpupool.onnx.new_ops("cpu")).run(None, {"x": x})
    assert y.tolist() == [[[0, 2, 5]]]


def function_model(**attributes: Any) -> Any:
    """Return a model whose function ``pool`` passes its attribute on to a MaxPool."""
    body = helper.make_node("MaxPool", ["x"], ["y"])
    kernel = helper.make_attribute("kernel_shape", [1])
    del kernel.ints[:]
    kernel.ref_attr_name = "size"
    body.attribute.extend([kernel, helper.make_attribute("pads", [1, 0])])
    function = helper.make_function(
        "own", "pool", ["x"], ["y"], [body], [helper.make_opsetid("", 12)], ["size"]
    )
    graph = helper.make_graph(
        [helper.make_node("pool", ["x"], ["y"], domain="own", **attributes)],
        "function",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, None])],
    )
    imports = [helper.make_opsetid("", 12), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


def test_pooling_in_a_function_whose_attribute_the_caller_gives() -> None:
    model = function_model(size=[3])
    x = np.array([[[3, 1, 2]]], np.float32)
    new_ops = gpupool.onnx.new_ops("cpu")
    feeds = {"x": x}
    (function,) = model.functions
    for (y,) in (
        ReferenceEvaluator(function, new_ops=new_ops).run(None, feeds, attributes={"size": [3]}),
        ReferenceEvaluator(inline_local_functions(model), new_ops=new_ops).run(None, feeds),
        prepare(model).run([x]),
        gpupool.onnx.Session(model, device="cpu").run(None, feeds),
    ):
        assert y.tolist() == [[[3, 3]]]  # the reference's own MaxPool fails on these pads


def test_an_attribute_of_a_function_means_nothing_outside_of_it() -> None:
    node = function_model(size=[3]).functions[0].node[0]
    with pytest.raises(GpupoolValueError, match="kernel_shape is attribute size of a function"):
        PoolingNode.read(node, 12)


@pytest.mark.parametrize("name", ["cuda", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(GpupoolValueError, match=f"device = '{name}' must be one of auto, cpu, gpu"):
        gpupool.onnx.new_ops(name)


@pytest.mark.skipif(gpupool.gpu_available(), reason="there is a GPU")
def test_gpu_without_one_says_why() -> None:
    with pytest.raises(gpupool.GpupoolError, match="device = 'gpu': "):
        gpupool.onnx.new_ops("gpu")


def test_on_the_gpu_arrays_go_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []

    def move(array: Array) -> Array:
        moved.append(array)
        return array

    monkeypatch.setattr(device, "to_device", move)
    monkeypatch.setattr(device, "to_host", move)
    monkeypatch.setattr(device, "synchronize", lambda: moved.append("synchronised"))
    inputs = inputs_of("RoiAlign", FLOAT32)
    (y,), seconds = PoolingNode.read(node_of("RoiAlign", {}), 16).run(inputs, gpu=True)
    assert [*map(id, moved)] == [*map(id, (*inputs, "synchronised", y))]
    assert seconds > 0


# The table


def test_supported_is_what_onnx_says() -> None:
    for row in gpupool.onnx.supported():
        for opset in range(row.first_opset, row.last_opset + 1):
            schema = onnx.defs.get_schema(row.operator, opset)
            assert schema.since_version == row.first_opset
        assert {*row.attributes} == {*schema.attributes}
        assert row.outputs == schema.max_output
        types = {f"tensor({find('x', dtype).onnx.lower()})" for dtype in row.dtypes}
        assert types == schema.inputs[0].types


def test_supported_has_every_opset_of_every_operator_once() -> None:
    rows = gpupool.onnx.supported()
    for op, operator in OPERATORS.items():
        opsets = [
            opset
            for row in rows
            if row.operator == op
            for opset in range(row.first_opset, row.last_opset + 1)
        ]
        assert opsets == list(range(operator.versions[0].since, NEWEST + 1))


def test_bfloat16_is_ml_dtypes() -> None:
    x = np.array([[[1, 3]]], ml_dtypes.bfloat16)
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2])
    (y,) = run_node(node, [x])
    assert y.dtype == ml_dtypes.bfloat16
    assert float(y[0, 0, 0]) == 2
