"""Whole models: cut at their pooling nodes, joined again, and equal to plain onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import EncodeError
from onnx import TensorProto, helper, numpy_helper

import gpupool
from gpupool import GpupoolError, GpupoolMemoryError, GpupoolTypeError, GpupoolValueError
from gpupool import model as models
from gpupool import session as session_module
from gpupool.arrays import Array
from gpupool.onnx import Session
from gpupool.session import VARIANTS

FLOAT, INT64, BFLOAT16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16
SPINNING = "session.intra_op.allow_spinning"
X = np.random.default_rng(7).standard_normal((1, 2, 8, 8)).astype(np.float32)


def value(name: str, kind: int = FLOAT, shape: Any = (1, 2, None, None)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: Any, inputs: Any, outputs: Any, opset: int = 13, **graph: Any) -> Any:
    made = helper.make_graph(nodes, "test", inputs, outputs, **graph)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=imports, ir_version=10)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """Make a node from names with spaces between them; ``-`` is a name left out."""
    names = ([n.replace("-", "") for n in text.split()] for text in (inputs, outputs))
    return helper.make_node(op, *names, **attributes)


def pool(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return node(op, inputs, outputs, kernel_shape=[2, 2], strides=[2, 2], **attributes)


def tensor(name: str, values: Any, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.array(values, dtype), name)


def plain(made: Any, feeds: dict[str, Any]) -> list[Array]:
    session = onnxruntime.InferenceSession(made.SerializeToString())
    result: list[Array] = session.run(None, feeds)
    return result


def assert_equals_onnxruntime(made: Any, feeds: dict[str, Any], segments: int) -> Session:
    """Compare every output bit for bit, and count the pieces that onnxruntime runs."""
    session = Session(made, device="cpu")
    for ours, theirs in zip(session.run(None, feeds), plain(made, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    assert len(session._steps) - len(session.pooling_nodes) == segments
    return session


X_IN, Y_OUT = [value("x")], [value("y")]
PARTS = helper.make_tensor_sequence_value_info("s", FLOAT, None)


def test_pooling_between_other_operators() -> None:
    nodes = [
        node("Relu", "x", "a"),
        pool("MaxPool", "a", "b"),
        node("Neg", "b", "c"),
        pool("MaxPool", "c", "d"),
        node("Abs", "d", "y"),
    ]
    session = assert_equals_onnxruntime(model(nodes, X_IN, Y_OUT), {"x": X}, 3)
    assert [n.op for n in session.pooling_nodes] == ["MaxPool", "MaxPool"]


def test_a_model_of_pooling_alone_needs_no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(onnxruntime, "InferenceSession")
    nodes = [pool("MaxPool", "x", "a"), pool("LpPool", "a", "y")]
    (y,) = Session(model(nodes, X_IN, Y_OUT, opset=22), device="cpu").run(None, {"x": X})
    expected = gpupool.lp_pool(gpupool.max_pool(X, 2, strides=2), 2, strides=2)
    np.testing.assert_array_equal(y, expected)


def test_a_model_without_pooling_is_one_segment() -> None:
    assert_equals_onnxruntime(model([node("Relu", "x", "y")], X_IN, Y_OUT), {"x": X}, 1)


def test_branches_of_one_level_share_a_segment() -> None:
    nodes = [
        node("Relu", "x", "a"),
        pool("MaxPool", "a", "left"),
        node("Neg", "a", "b"),
        pool("MaxPool", "b", "right"),
        node("Add", "left right", "y"),
        node("Exp", "left", "z"),
    ]
    made = model(nodes, X_IN, [value("y"), value("z"), value("a")])
    assert_equals_onnxruntime(made, {"x": X}, 2)


def test_a_tensor_may_skip_levels() -> None:
    nodes = [
        node("Relu", "x", "a"),
        pool("MaxPool", "a", "b"),
        node("Neg", "b", "c"),
        pool("MaxPool", "c", "d"),
        node("ReduceMax", "a", "top", keepdims=1),
        node("Add", "d top", "e"),
        node("ReduceMin", "x", "bottom", keepdims=1),
        node("Add", "e bottom", "y"),
    ]
    assert_equals_onnxruntime(model(nodes, X_IN, Y_OUT), {"x": X}, 3)


def test_indices_travel_from_pool_to_unpool() -> None:
    nodes = [
        pool("MaxPool", "x", "a i"),
        node("Neg", "a", "b"),
        node("Add", "i zero", "j"),
        pool("MaxUnpool", "b j shape", "y"),
    ]
    constants = [tensor("zero", 0, np.int64), tensor("shape", [1, 2, 8, 8], np.int64)]
    assert_equals_onnxruntime(model(nodes, X_IN, Y_OUT, initializer=constants), {"x": X}, 1)


def test_constants_are_computed_where_they_are_read() -> None:
    nodes = [
        node("Constant", "", "two", value=tensor("two", 2)),
        node("Add", "two weight", "three"),
        node("Mul", "x three", "a"),
        pool("MaxPool", "a", "b"),
        node("Mul", "b three", "y"),
        node("Shape", "weight", "shape"),
    ]
    made = model(nodes, X_IN, [value("y"), value("shape", INT64, [0])])
    made.graph.initializer.append(tensor("weight", 1))
    assert_equals_onnxruntime(made, {"x": X}, 2)


def test_pooling_of_constants() -> None:
    nodes = [
        node("Neg", "weight", "negative"),
        pool("MaxPool", "negative", "a"),
        pool("MaxPool", "weight", "b"),
        node("Sum", "a b x", "y"),
    ]
    made = model(nodes, [value("x", shape=[1, 2, 4, 4])], Y_OUT, initializer=[tensor("weight", X)])
    assert_equals_onnxruntime(made, {"x": X[..., :4, :4]}, 2)


def test_inputs_and_initialisers_may_be_outputs() -> None:
    made = model([pool("MaxPool", "x", "y")], X_IN, [value("w", shape=[]), value("x"), value("y")])
    made.graph.initializer.append(tensor("w", 3))
    session = Session(made, device="cpu")
    w, x, y = session.run(None, {"x": X})
    assert float(w) == 3
    assert x is X
    assert y.shape == (1, 2, 4, 4)


def test_random_numbers_are_drawn_once_a_run() -> None:
    nodes = [
        node("RandomNormal", "", "noise", shape=[1, 2, 8, 8]),
        node("Add", "noise x", "a"),
        pool("MaxPool", "a", "b"),
        node("MaxPool", "noise", "c", kernel_shape=[2, 2], strides=[2, 2]),
        node("Sub", "b c", "y"),
    ]
    (y,) = Session(model(nodes, X_IN, Y_OUT), device="cpu").run(None, {"x": 0 * X})
    assert not y.any()


def branch(name: str, *nodes: Any, output: str) -> Any:
    return helper.make_graph(list(nodes), name, [], [value(output, shape=None)])


def drawing(name: str) -> Any:
    return branch(name, node("RandomNormal", "", name, shape=[1, 2, 8, 8]), output=name)


def choosing(name: str, then: Any, other: Any) -> Any:
    return node("If", "true", name, then_branch=then, else_branch=other)


INNER = branch("outer", choosing("inner", drawing("a"), drawing("b")), output="inner")


@pytest.mark.parametrize(
    "noise",
    [
        choosing("noise", drawing("then"), drawing("else")),
        choosing("noise", INNER, drawing("else")),
        node("Dropout", "ones half true", "noise"),
        node("Bernoulli", "halves", "noise"),
    ],
    ids=["branch", "inner branch", "Dropout", "Bernoulli"],
)
def test_random_numbers_without_inputs_are_drawn_once_a_run(noise: Any) -> None:
    nodes = [
        noise,
        pool("MaxPool", "noise", "a"),
        pool("MaxPool", "x", "b"),
        node("MaxPool", "noise", "c", kernel_shape=[1, 1]),
        node("Sub", "c noise", "y"),
        node("Add", "a b", "z"),
    ]
    ones = np.ones((1, 2, 8, 8))
    constants = [tensor("ones", ones), tensor("halves", ones / 2), tensor("half", 0.5)]
    constants.append(tensor("true", True, bool))
    made = model(nodes, X_IN, [value("y"), value("z")], opset=15, initializer=constants)
    y, z = Session(made, device="cpu").run(None, {"x": 0 * X})
    assert not y.any()
    assert z.any()


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_of_control_flow_read_what_is_outside(sign: int) -> None:
    """``a`` is of another level, ``w`` an initialiser, ``r`` of the If's own segment."""
    then = branch("then", node("Add", "a s", "t"), node("Mul", "t w", "o"), output="o")
    other = branch("else", node("Add", "r s", "o2"), output="o2")
    nodes = [
        node("ReduceMax", "x", "a", keepdims=1),
        node("Greater", "a zero", "c0"),
        node("Squeeze", "c0", "c"),
        pool("MaxPool", "x", "b"),
        node("Neg", "b", "r"),
        node("Exp", "b", "s"),
        node("If", "c", "y", then_branch=then, else_branch=other),
    ]
    made = model(nodes, X_IN, Y_OUT, initializer=[tensor("zero", 0), tensor("w", 3)])
    assert_equals_onnxruntime(made, {"x": sign * np.abs(X) + sign}, 2)


def test_branches_of_constants_read_constants_outside() -> None:
    """``w`` is an initialiser, ``n`` the output of a node, ``r`` that of another If."""
    nodes = [
        node("Neg", "w", "n"),
        choosing(
            "r",
            branch("a", node("Neg", "w", "a"), output="a"),
            branch("b", node("Abs", "w", "b"), output="b"),
        ),
        choosing(
            "s",
            branch("c", node("Sum", "n r", "c"), output="c"),
            branch("d", node("Sum", "n", "d"), output="d"),
        ),
        pool("MaxPool", "x", "p"),
        node("Add", "p s", "y"),
    ]
    constants = [tensor("w", 3), tensor("true", True, bool)]
    assert_equals_onnxruntime(model(nodes, X_IN, Y_OUT, initializer=constants), {"x": X}, 1)


def test_pooling_inside_control_flow_stays_with_onnxruntime() -> None:
    inner = branch("then", pool("MaxPool", "x", "o"), output="o")
    other = branch("else", pool("AveragePool", "x", "o2"), output="o2")
    made = model([node("If", "c", "y", then_branch=inner, else_branch=other)], X_IN, Y_OUT)
    made.graph.initializer.append(tensor("c", True, bool))
    session = assert_equals_onnxruntime(made, {"x": X}, 1)
    assert session.pooling_nodes == []


def test_functions_are_inlined() -> None:
    function = helper.make_function(
        "own",
        "block",
        ["x"],
        ["y"],
        [node("Relu", "x", "a"), pool("MaxPool", "a", "y")],
        [helper.make_opsetid("", 13)],
    )
    made = model([node("block", "x", "y", domain="own")], X_IN, Y_OUT)
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    session = assert_equals_onnxruntime(made, {"x": X}, 1)
    assert len(session.pooling_nodes) == 1
    assert len(made.functions) == 1  # the model that was given stays what it was


CALLING = """<ir_version: 10, opset_import: ["": 13, "own": 1]>
    test (float[1, 2, H, W] x, bool c) => (float[A, B, C, D] y) {
        z = own.block(x)
        y = If (c) <
            then_branch = t () => (float[E, F, G, I] o) { o = own.pool(z) },
            else_branch = e () => (float[E, F, G, I] p) { p = own.pool <s = [1, 3]> (z) }
        >
    }
"""
POOLS = """
    <domain: "own", opset_import: ["": 13]>
    pool <s: ints = [2, 1]> (a) => (b) {
        b = MaxPool <kernel_shape = [2, 2], strides: ints = @s> (a)
    }
"""
BLOCK = '<domain: "own", opset_import: ["": 13, "own": 1]> block '


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize(
    "block",
    [
        "<alpha: float = 0.5> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }",
        "(a) => (b) { n = Neg(a) b = own.pool(n) }",
        "<s> (a) => (b) { n = Neg(a) b = own.pool <s: ints = @s> (n) }",
        "<s: ints = [3, 3]> (a) => (b) { n = Neg(a) b = own.pool <s: ints = @s> (n) }",
        """(a) => (b) {
            u = Constant <value_int = 1>()
            v = Cast <to = 9> (u)
            b = If (v) <
                then_branch = t () => (float[E, F, G, I] o) { o = own.pool(a) },
                else_branch = e () => (float[E, F, G, I] p) { p = Neg(a) }
            >
        }""",
    ],
)
def test_functions_have_defaults_for_attributes(block: str, chosen: bool) -> None:
    made = onnx.parser.parse_model(CALLING + BLOCK + block + POOLS)
    feeds = {"x": X, "c": np.array(chosen)}
    session = Session(made, device="cpu")
    (y,) = session.run(None, feeds)
    np.testing.assert_array_equal(y, plain(made, feeds)[0], strict=True)
    assert session.compare([y], feeds)[0].largest == 0
    assert not made.graph.node[0].attribute  # the model that was given stays what it was


def test_functions_of_another_opset_stay_with_onnxruntime() -> None:
    block = "(a) => (b) { n = Neg(a) b = own.pool(n) }"
    made = onnx.parser.parse_model(CALLING + BLOCK.replace("13", "12") + block + POOLS)
    feeds = {"x": X, "c": np.array(True)}
    session = assert_equals_onnxruntime(made, feeds, 1)
    assert session.pooling_nodes == []


def test_what_functions_get_for_names_differs_from_all_others() -> None:
    made = onnx.parser.parse_model(CALLING + BLOCK + "(a) => (b) { n = Neg(a) b = Neg(n) }" + POOLS)
    names = [name for node in models.load(made).graph.node for name in node.output]
    made.graph.initializer.extend(tensor(name, 0) for name in names if name not in ("y", "z"))
    assert len(names) == 3
    assert_equals_onnxruntime(made, {"x": X, "c": np.array(True)}, 1)


def test_compare_runs_the_model_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading changes wrongly must show."""
    monkeypatch.setattr(models, "_give_defaults", lambda _: None)
    block = "<alpha: float = 0.5> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"
    made = onnx.parser.parse_model(CALLING + BLOCK + block + POOLS)
    feeds = {"x": -np.abs(X), "c": np.array(False)}
    session = Session(made, device="cpu")
    assert session.compare(session.run(None, feeds), feeds)[0].largest > 0


def test_annotations_do_no_harm() -> None:
    made = model([node("Relu", "x", "a"), pool("MaxPool", "a", "y")], X_IN, Y_OUT)
    made.graph.quantization_annotation.add(tensor_name="a")
    assert_equals_onnxruntime(made, {"x": X}, 1)
    assert len(made.graph.quantization_annotation) == 1  # the model that was given is not changed


def test_operators_of_onnxruntime_may_stand_between() -> None:
    nodes = [
        node("Gelu", "x", "a", domain="com.microsoft"),
        pool("MaxPool", "a", "b"),
        node("Gelu", "b", "y", domain="com.microsoft"),
    ]
    assert_equals_onnxruntime(model(nodes, X_IN, Y_OUT), {"x": X}, 2)


def test_unused_nodes_and_outputs_do_no_harm() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Exp", "a", "unused"),
        pool("MaxPool", "a", "y i"),
    ]
    assert_equals_onnxruntime(model(nodes, X_IN, Y_OUT), {"x": X}, 1)


def test_shapes_that_the_model_declares_wrongly_do_no_harm() -> None:
    """onnx infers 6 outputs for VALID with ceil_mode where the rule gives 5."""
    window = {"kernel_shape": [2], "strides": [2], "auto_pad": "VALID", "ceil_mode": 1}
    nodes = [helper.make_node("MaxPool", ["x"], ["a"], **window), node("Neg", "a", "y")]
    made = model(nodes, [value("x", shape=[1, 1, 11])], [value("y", shape=[1, 1, None])])
    made = onnx.shape_inference.infer_shapes(made)
    assert made.graph.value_info[0].type.tensor_type.shape.dim[2].dim_value == 6
    x = np.arange(11, dtype=np.float32).reshape(1, 1, 11)
    (y,) = Session(made, device="cpu").run(None, {"x": x})
    assert y.tolist() == [[[-1, -3, -5, -7, -9]]]


def test_bfloat16_crosses_between_the_two() -> None:
    nodes = [
        node("Cast", "x", "a", to=BFLOAT16),
        pool("AveragePool", "a", "b"),
        node("Cast", "b", "c", to=FLOAT),
        node("Neg", "c", "d"),
        node("Cast", "d", "y", to=BFLOAT16),
    ]
    made = model(nodes, X_IN, [value("y", BFLOAT16)], opset=22)
    (y,) = Session(made, device="cpu").run(None, {"x": X})
    x = X.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(y, -gpupool.average_pool(x, 2, strides=2), strict=True)


def test_bfloat16_goes_in_and_comes_out() -> None:
    nodes = [node("Identity", "x", "a"), pool("MaxPool", "a", "b"), node("Identity", "b", "y")]
    made = model(nodes, [value("x", BFLOAT16)], [value("y", BFLOAT16)], opset=22)
    x = X.astype(ml_dtypes.bfloat16)
    session = Session(made, device="cpu")
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, gpupool.max_pool(x, 2, strides=2), strict=True)
    assert session.bfloat16_names == ["x"]


def weighted(inputs: Any, **graph: Any) -> Any:
    nodes = [node("Mul", "x w", "a"), pool("MaxPool", "a", "b"), node("Mul", "b w", "y")]
    return model(nodes, inputs, Y_OUT, **graph)


OPTIONAL = weighted([value("x"), value("w", shape=[1])], initializer=[tensor("w", [2])])


def test_an_input_with_an_initialiser_may_be_left_out_or_given() -> None:
    session = assert_equals_onnxruntime(OPTIONAL, {"x": X}, 2)
    for factor in (-3, 5):
        feeds = {"x": X, "w": np.array([factor], np.float32)}
        (y,) = session.run(None, feeds)
        np.testing.assert_array_equal(y, plain(OPTIONAL, feeds)[0])
        assert session.compare([y], feeds)[0].largest == 0
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], plain(OPTIONAL, {"x": X})[0])
    assert session.input_names == ["x"]
    with pytest.raises(GpupoolValueError, match="input 'q' is not one of x, w"):
        session.run(None, {"x": X, "q": X})
    assert len(OPTIONAL.graph.initializer) == 1  # the model that was given stays what it was


def test_the_steps_of_the_latest_sets_of_replaced_initialisers_are_kept(monkeypatch: Any) -> None:
    names = [f"w{i}" for i in range(VARIANTS + 1)]
    inputs = [value("x"), *(value(name, shape=[1]) for name in names)]
    nodes = [node("Sum", " ".join(["x", *names]), "a"), pool("MaxPool", "a", "y")]
    weights = [tensor(name, [1]) for name in names]
    session = Session(model(nodes, inputs, Y_OUT, initializer=weights), device="cpu")
    cuts: list[Any] = []
    cut = session_module._Cut
    monkeypatch.setattr(session_module, "_Cut", lambda made: cuts.append(made) or cut(made))
    for name, many in zip((*names, *names[::-VARIANTS]), (1, 2, 3, 4, 5, 5, 6), strict=True):
        (y,) = session.run(None, {"x": X, name: np.array([3], np.float32)})
        np.testing.assert_allclose(y, gpupool.max_pool(X, 2, strides=2) + VARIANTS + 3, rtol=1e-6)
        assert len(cuts) == many


def sparse(values: Any, indices: Any, shape: Any = (1, 2, 1, 1), kind: Any = np.float32) -> Any:
    parts = tensor("w", values, kind), tensor("positions", indices, np.int64)
    return helper.make_sparse_tensor(*parts, shape)


@pytest.mark.parametrize(
    ("values", "indices"), [([3], [1]), ([3, -2], [0, 1]), ([3], [[0, 1, 0, 0]]), ([], [])]
)
def test_an_initialiser_may_be_sparse(values: Any, indices: Any) -> None:
    made = weighted(X_IN, sparse_initializer=[sparse(values, indices)])
    assert_equals_onnxruntime(made, {"x": X}, 2)
    assert not made.graph.initializer  # the model that was given stays what it was


def test_pooling_nodes_read_sparse_initialisers() -> None:
    nodes = [pool("MaxPool", "x", "a i"), pool("MaxUnpool", "a i w", "y")]
    shape = sparse([1, 2, 8, 8], [0, 1, 2, 3], [4], np.int64)
    made = model(nodes, X_IN, Y_OUT, sparse_initializer=[shape])
    assert_equals_onnxruntime(made, {"x": X}, 0)


def test_an_input_with_a_sparse_initialiser_may_be_left_out_or_given() -> None:
    inputs = [value("x"), value("w", shape=[1, 2, 1, 1])]
    session = Session(weighted(inputs, sparse_initializer=[sparse([3], [1])]), device="cpu")
    for feeds in ({"x": X}, {"x": X, "w": np.full((1, 2, 1, 1), 4, np.float32)}):
        assert session.compare(session.run(None, feeds), feeds)[0].largest == 0


TRUNCATED = sparse([3], [1])
TRUNCATED.values.raw_data = b"abc"


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (sparse([3], [2]), "initialiser 'w' .* out of range"),
        (sparse([3, 4], [0, 0]), "initialiser 'w' .* not in sorted order"),
        (sparse([3], [0], [-1, -2]), "initialiser 'w' .* not positive"),
        (sparse([b"3"], [0], kind=object), "initialiser 'w' has element type 8: it"),
        (TRUNCATED, "initialiser 'w' is not valid: "),
        (sparse([3], [0], [2**20, 2**20]), "initialisers made dense holds 43980465.* protobuf"),
    ],
)
def test_a_bad_sparse_initialiser_is_refused(weight: Any, message: str) -> None:
    with pytest.raises(GpupoolValueError, match=message):
        Session(weighted(X_IN, sparse_initializer=[weight]))


def test_pooling_nodes_read_what_is_given_for_an_initialiser() -> None:
    nodes = [pool("MaxPool", "x", "a i"), pool("MaxUnpool", "a i shape", "y")]
    inputs = [*X_IN, value("shape", INT64, [4])]
    made = model(nodes, inputs, Y_OUT, initializer=[tensor("shape", [1, 2, 8, 8], np.int64)])
    session = Session(made, device="cpu")
    assert session.run(None, {"x": X})[0].shape == (1, 2, 8, 8)
    larger = np.array([1, 2, 9, 8])
    assert session.run(None, {"x": X, "shape": larger})[0].shape == (1, 2, 9, 8)


def test_bfloat16_may_be_given_for_an_initialiser() -> None:
    nodes = [
        node("Cast", "w", "factor", to=FLOAT),
        node("Mul", "x factor", "a"),
        pool("MaxPool", "a", "y"),
    ]
    two = helper.make_tensor("w", BFLOAT16, [1], [2.0])
    made = model(nodes, [*X_IN, value("w", BFLOAT16, [1])], Y_OUT, opset=22, initializer=[two])
    session = Session(made, device="cpu")
    expected = gpupool.max_pool(X, 2, strides=2)
    for feeds, factor in (({}, 2), ({"w": np.array([4], ml_dtypes.bfloat16)}, 4)):
        np.testing.assert_array_equal(session.run(None, {"x": X} | feeds)[0], expected * factor)
    assert session.bfloat16_names == ["w"]


def test_before_ir_version_4_initialisers_are_constants() -> None:
    old = onnx.ModelProto()
    old.CopyFrom(OPTIONAL)
    old.ir_version = 3
    old.opset_import[0].version = 8
    session = assert_equals_onnxruntime(old, {"x": X}, 2)
    with pytest.raises(GpupoolValueError, match="input 'w' is not one of x"):
        session.run(None, {"x": X, "w": np.ones(1, np.float32)})


# Like InferenceSession


SIMPLE = model(
    [node("Relu", "x", "a"), pool("MaxPool", "a", "y", name="top"), node("Neg", "y", "z")],
    X_IN,
    [value("y"), value("z")],
)


def test_outputs_are_chosen_by_name_and_order() -> None:
    session = Session(SIMPLE, device="cpu")
    assert (session.input_names, session.output_names) == (["x"], ["y", "z"])
    y, z = session.run(None, {"x": X})
    z_first = session.run(["z", "y"], {"x": X})
    np.testing.assert_array_equal(z_first[0], z)
    np.testing.assert_array_equal(z_first[1], y)
    assert len(session.run(["z"], {"x": X})) == 1


@pytest.mark.parametrize("form", [str, Path, "bytes", "proto"])
def test_a_model_is_a_path_bytes_or_a_proto(tmp_path: Path, form: Any) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(SIMPLE.SerializeToString())
    source = {"bytes": path.read_bytes(), "proto": SIMPLE}.get(form) or form(path)
    assert Session(source, device="cpu").run(["y"], {"x": X})[0].shape == (1, 2, 4, 4)


def test_onnxruntime_gets_its_options() -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = Session(
        SIMPLE, device="cpu", sess_options=options, providers=["CPUExecutionProvider"]
    )
    run_options = onnxruntime.RunOptions()
    run_options.log_severity_level = 3
    assert session.run(["z"], {"x": X}, run_options)[0].max() <= 0


@pytest.mark.parametrize("own", [None, "1"])
def test_no_thread_of_a_segment_spins_unless_the_caller_lets_it(own: str | None) -> None:
    options = None if own is None else onnxruntime.SessionOptions()
    if options:
        options.add_session_config_entry(SPINNING, own)
    session = Session(SIMPLE, device="cpu", sess_options=options)
    segments = [step for step in session._steps if step not in session.pooling_nodes]
    used = [segment.session.get_session_options() for segment in segments]
    assert {one.get_session_config_entry(SPINNING) for one in used} == {own or "0"}


@pytest.mark.parametrize(
    ("names", "feeds", "error", "message"),
    [
        (None, {}, GpupoolValueError, "the model needs input 'x'"),
        (None, {"x": X, "b": X}, GpupoolValueError, "input 'b' is not one of x"),
        (["q"], {"x": X}, GpupoolValueError, "output 'q' is not one of y, z"),
        (None, {"x": X.astype(int)}, GpupoolTypeError, "input 'x' has dtype int64.*float32"),
        (None, {"x": X[0]}, GpupoolValueError, r"input 'x' has shape \(2, 8, 8\), the model takes"),
        (
            None,
            {"x": X[:, :1]},
            GpupoolValueError,
            r"\(1, 1, 8, 8\), .* takes \(1, 2, None, None\)$",
        ),
        (None, {"x": X[..., :1]}, GpupoolValueError, r"node top \(MaxPool\): the window is larger"),
    ],
)
def test_refuses(names: Any, feeds: Any, error: type[GpupoolError], message: str) -> None:
    with pytest.raises(error, match=message):
        Session(SIMPLE, device="cpu").run(names, feeds)


def test_what_onnxruntime_refuses_has_the_name_of_its_segment() -> None:
    wide = value("w", shape=["N"])
    made = model([node("Add", "x w", "a"), pool("MaxPool", "a", "y")], [*X_IN, wide], Y_OUT)
    with pytest.raises(GpupoolError, match="onnxruntime failed in segment 0: "):
        Session(made, device="cpu").run(None, {"x": X, "w": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        ([1, 1, 4], (1, 1, 5)),
        ([1, 1, 4], (1, 4)),
        ([1, "C", 4], (1, 2, 4)),
        ([1, 1, -1], (1, 1, 4)),
        ([1, 1, 0], (1, 1, 4)),
        (None, (1, 1, 4)),
    ],
)
def test_shapes_that_do_not_fit_are_those_of_onnxruntime(declared: Any, shape: Any) -> None:
    nodes = [node("MaxPool", "x", "y", kernel_shape=[2])]
    made = model(nodes, [value("x", shape=declared)], [value("y", shape=None)])
    session = Session(made, device="cpu")
    feeds = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
    try:
        (expected,) = plain(made, feeds)
    except Exception:  # onnxruntime's classes derive from Exception itself
        with pytest.raises(GpupoolValueError, match=r"input 'x' has shape .*, the model takes"):
            session.run(None, feeds)
    else:
        np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


@pytest.mark.skipif(gpupool.gpu_available(), reason="there is a GPU")
def test_gpu_without_one_says_why() -> None:
    assert not Session(SIMPLE).on_gpu
    with pytest.raises(GpupoolError, match="device = 'gpu': "):
        Session(SIMPLE, device="gpu")


# Profiles and comparisons


def test_profile_has_a_row_for_each_pooling_node() -> None:
    profile = Session(SIMPLE, device="cpu").profile(["z"], {"x": X})
    (row,) = profile.rows
    assert (row.node.name, row.node.op) == ("top", "MaxPool")
    assert row.node.attributes == {"kernel_shape": [2, 2], "strides": [2, 2]}
    assert (row.shape, row.out_shape) == ((1, 2, 8, 8), (1, 2, 4, 4))
    assert row.nbytes == 4 * 2 * (64 + 16)
    assert 0 < row.seconds < profile.seconds
    assert len(profile.outputs) == 1


def test_compare_gives_the_largest_difference_of_each_output() -> None:
    session = Session(SIMPLE, device="cpu")
    y, z = session.run(None, {"x": X})
    assert [found.largest for found in session.compare([y, z], {"x": X})] == [0, 0]
    z[0, 0, 0, 0] += 0.5
    y[0, 0, 0, 0] = np.nan
    found_y, found_z = session.compare([y, z], {"x": X})
    assert (found_y.name, found_y.shape, found_y.largest) == ("y", (1, 2, 4, 4), np.inf)
    assert found_z.largest == 0.5
    assert found_z.magnitude == X.max()
    with pytest.raises(GpupoolError, match=r"output 'y' is float32 \(1, 2, 2, 4\), onnx"):
        session.compare([y[:, :, :2], z], {"x": X})
    with pytest.raises(GpupoolValueError, match="the model needs input 'x'"):
        session.compare([y, z], {})


def test_compare_takes_booleans_and_nan() -> None:
    nodes = [pool("MaxPool", "x", "y"), node("Greater", "y zero", "z")]
    made = model(nodes, X_IN, [value("y"), value("z", TensorProto.BOOL)])
    made.graph.initializer.append(tensor("zero", 0))
    x = X.copy()
    x[0, 0, 0, 0] = np.nan
    session = Session(made, device="cpu")
    y, z = session.run(None, {"x": x})
    assert [found.largest for found in session.compare([y, ~z], {"x": x})][1] == 1


def test_compare_takes_sequences_item_by_item() -> None:
    made = model([node("SplitToSequence", "x sizes", "s", axis=3)], X_IN, [PARTS])
    made.graph.initializer.append(tensor("sizes", [3, 5], np.int64))
    session = Session(made, device="cpu")
    (s,) = session.run(None, {"x": X})
    s[1][...] += 0.5
    found = session.compare([s], {"x": X})
    assert [(part.name, part.shape[3]) for part in found] == [("s[0]", 3), ("s[1]", 5)]
    assert [part.largest for part in found] == [0, pytest.approx(0.5)]
    with pytest.raises(GpupoolError, match="output 's' has 1 items, onnxruntime's 2"):
        session.compare([s[:1]], {"x": X})


# Bad models


def test_what_is_not_onnx_is_named(tmp_path: Path) -> None:
    for text in (b"", b"hello", b"\x08\x07", SIMPLE.SerializeToString()[:100]):
        path = tmp_path / "model.onnx"
        path.write_bytes(text)
        with pytest.raises(GpupoolValueError, match=r"model\.onnx: not an ONNX model: "):
            Session(path)
    with pytest.raises(FileNotFoundError):
        Session(tmp_path / "missing.onnx")
    with pytest.raises(GpupoolTypeError, match="a path, bytes or a ModelProto, not NoneType"):
        Session(None)


def external(tmp_path: Path, location: str, length: int = 4) -> Path:
    made = model([node("Mul", "x w", "a"), pool("MaxPool", "a", "y")], X_IN, Y_OUT)
    weight = made.graph.initializer.add(name="w", data_type=FLOAT)
    weight.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("length", str(length))):
        weight.external_data.add(key=key, value=text)
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(np.float32(2).tobytes())
    (tmp_path / "secret.bin").write_bytes(b"abcd")
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return folder / "model.onnx"


def test_external_data_in_the_folder_is_read(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    (y,) = Session(path, device="cpu").run(None, {"x": X})
    np.testing.assert_array_equal(y, gpupool.max_pool(2 * X, 2, strides=2))


@pytest.mark.parametrize("location", ["../secret.bin", "missing.bin", "", "link.bin"])
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    path = external(tmp_path, location)
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(GpupoolValueError, match=rf"model\.onnx: tensor w is in '{location}'"):
        Session(path)


def test_external_data_at_an_absolute_path_is_refused(tmp_path: Path) -> None:
    path = external(tmp_path, str(tmp_path / "secret.bin"))
    with pytest.raises(GpupoolValueError, match=r"tensor w is in .*secret\.bin"):
        Session(path)


def test_external_data_of_sparse_initialisers_is_as_any(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    made = onnx.load(path, load_external_data=False)
    values = made.graph.initializer.pop()
    values.dims.append(1)
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, tensor("positions", [0], np.int64), [1])
    )
    path.write_bytes(made.SerializeToString())
    (y,) = Session(path, device="cpu").run(None, {"x": X})
    np.testing.assert_array_equal(y, gpupool.max_pool(2 * X, 2, strides=2))
    with pytest.raises(GpupoolValueError, match="keeps tensors in other files: give its path"):
        Session(made)


def test_external_data_of_functions_is_as_any(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    made = onnx.load(path, load_external_data=False)
    block = [node("Constant", "", "w", value=made.graph.initializer.pop()), *made.graph.node]
    imports = [helper.make_opsetid("", 13)]
    made.functions.append(helper.make_function("own", "block", ["x"], ["y"], block, imports))
    made.opset_import.append(helper.make_opsetid("own", 1))
    del made.graph.node[:]
    made.graph.node.append(node("block", "x", "y", domain="own"))
    path.write_bytes(made.SerializeToString())
    (y,) = Session(path, device="cpu").run(None, {"x": X})
    np.testing.assert_array_equal(y, gpupool.max_pool(2 * X, 2, strides=2))
    with pytest.raises(GpupoolValueError, match="keeps tensors in other files: give its path"):
        Session(made)


def test_external_data_needs_a_path(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    with pytest.raises(GpupoolValueError, match="keeps tensors in other files: give its path"):
        Session(path.read_bytes())


def test_bytes_above_the_ceiling_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = external(tmp_path, "weights.bin")
    size = path.stat().st_size
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", str(size + 3))
    with pytest.raises(GpupoolMemoryError, match=f"with its external data needs {size + 4} bytes"):
        Session(path)
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", str(size - 1))
    with pytest.raises(GpupoolMemoryError, match=rf"model\.onnx needs {size} bytes, above GPUPOOL"):
        Session(path)
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", "1")
    with pytest.raises(GpupoolMemoryError, match="the model needs"):
        Session(SIMPLE)


def test_a_file_beyond_protobuf_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(GpupoolValueError, match=f"{2**31} bytes, above the {2**31 - 1} of proto"):
        Session(path)


def test_a_model_beyond_protobuf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge:
        """What protobuf does with 2 GiB, without them."""

        graph, functions = SIMPLE.graph, ()

        def ByteSize(self) -> int:  # noqa: N802 - as in protobuf
            raise EncodeError("Failed to serialize proto")

    monkeypatch.setattr(onnx, "ModelProto", Huge)
    with pytest.raises(GpupoolValueError, match=f"holds more bytes than the {2**31 - 1} of proto"):
        Session(Huge())


def test_a_huge_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_NODES", 4)
    inner = branch("then", node("Neg", "x", "o"), node("Neg", "x", "p"), output="o")
    other = branch("else", node("Neg", "x", "o2"), output="o2")
    made = model([node("If", "c", "y", then_branch=inner, else_branch=other)], X_IN, Y_OUT)
    made.graph.initializer.append(tensor("c", True, bool))
    Session(made)
    monkeypatch.setattr(models, "MAX_NODES", 3)
    with pytest.raises(GpupoolValueError, match="the model has 4 nodes, above the 3 allowed"):
        Session(made)


def test_functions_that_multiply_are_refused_before_they_do() -> None:
    """Each calls the next 16 times: 2**64 nodes of 256."""
    steps = [node("F1", "a", "b1", domain="own")]
    steps += [node("F1", f"b{i}", f"b{i + 1}", domain="own") for i in range(1, 16)]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    made = model([node("F0", "x", "y", domain="own")], X_IN, Y_OUT)
    made.opset_import.append(imports[1])
    for i in range(16):
        for step in steps:
            step.op_type = f"F{i + 1}" if i < 15 else "Neg"
            step.domain = "own" if i < 15 else ""
        made.functions.append(helper.make_function("own", f"F{i}", ["a"], ["b16"], steps, imports))
    with pytest.raises(GpupoolValueError, match=f"has {2**20} nodes, above the {2**18} allowed"):
        Session(made)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Foo", "x", "y", name="bad")], "node bad: ONNX has no operator Foo at opset 13"),
        (
            [node("Foo", "x", "y", domain="zz")],
            r"onnxruntime refuses node .* \(zz\.Foo\) in segment 0: .*Foo",
        ),
        ([pool("MaxPool", "x", "y", p=2)], "p: MaxPool has no such attribute"),
        ([node("Neg", "q", "y")], r"node giving y \(Neg\) reads 'q', which nothing before it"),
        ([node("Neg", "x", "y"), node("Abs", "x", "y")], r"\(Abs\) gives 'y', which exists"),
        ([node("Neg", "x", "q")], "output 'y' is given by no node"),
    ],
)
def test_a_bad_graph_is_refused(nodes: Any, message: str) -> None:
    with pytest.raises(GpupoolValueError, match=message):
        Session(model(nodes, X_IN, Y_OUT))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ("F (a) => (b) { b = own.F(a) }", r"a function that calls itself, .*: own\.F$"),
        (
            'F (a) => (b) { b = own.G(a) } <domain: "own", opset_import: ["": 13, "own": 1]> '
            "G (a) => (b) { b = own.F(a) }",
            r"calls itself, perhaps by way of others: own\.F, own\.G$",
        ),
        ("F () => (b) { b = Constant <value_float = 1.0>() }", "cannot be inlined: .* parameters"),
        (
            'F (a) => (b) { b = Neg(a) } <domain: "own", opset_import: ["": 13]> '
            "F (a) => (b) { b = Abs(a) }",
            "cannot be inlined: .* multiple local functions",
        ),
    ],
)
def test_bad_functions_are_refused(functions: str, message: str) -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 13, "own": 1]>
        test (float[1, 2, H, W] x) => (float[A, B, C, D] y) { y = own.F(x) }
        <domain: "own", opset_import: ["": 13, "own": 1]> """
        + functions
    )
    with pytest.raises(GpupoolValueError, match=message):
        Session(made)


def test_a_model_without_its_opset_is_refused() -> None:
    made = model([pool("MaxPool", "x", "y")], X_IN, Y_OUT)
    del made.opset_import[:]
    with pytest.raises(GpupoolValueError, match="imports no version of ONNX's own operators"):
        Session(made)


def test_sequences_are_inputs_that_any_segment_may_read() -> None:
    nodes = [
        node("SequenceAt", "s first", "a"),
        pool("MaxPool", "a", "b"),
        node("SequenceAt", "s second", "c"),
        node("Sub", "b c", "y"),
    ]
    places = [tensor("first", 0, np.int64), tensor("second", 1, np.int64)]
    made = model(nodes, [PARTS], Y_OUT, initializer=places)
    feeds = {"s": [X, X[..., :4, :4]]}
    session = assert_equals_onnxruntime(made, feeds, 2)
    assert session.compare(session.run(None, feeds), feeds)[0].largest == 0


def test_what_is_no_tensor_cannot_cross() -> None:
    nodes = [
        node("SequenceConstruct", "x", "sequence"),
        pool("MaxPool", "x", "a"),
        node("ConcatFromSequence", "sequence", "b", axis=1),
        node("SequenceInsert", "sequence a", "longer"),
        node("SequenceAt", "longer zero", "y"),
    ]
    made = model(nodes, X_IN, Y_OUT, initializer=[tensor("zero", 0, np.int64)])
    with pytest.raises(GpupoolValueError, match=r"'sequence' is a seq\(tensor\(float\)\), which"):
        Session(made)
