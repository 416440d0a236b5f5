"""ONNX's own backend tests through the public backend, on the oracle and on the kernels.

Upstream registers some four thousand tests for a backend; those of models made only of operators
that this one runs are kept, so that nothing is skipped but what EXCLUDED names.
"""

from __future__ import annotations

import unittest
import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from gpupool import GpupoolError, GpupoolTypeError, GpupoolValueError, gpu_available
from gpupool import onnx_backend as backend
from gpupool.onnx import Session
from gpupool.onnx_backend import AROUND, GpupoolBackend, GpupoolRep
from gpupool.opset import NEWEST, OPERATORS
from tests import emulator
from tests.conftest import emulator_backend

EXCLUDED = {
    "test_maxunpool_export_with_output_shape": (
        "up to onnx 1.23.2 its result takes the Indices as positions in the inferred shape; the "
        "operator's text and onnxruntime take them in output_shape"
    ),
}

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@cache
def models() -> dict[str, Any]:
    """Return the models of upstream's tests that this backend is to pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' cases overflow on purpose
        cases = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    found = {case.name: case.model or onnx.load(f"{case.model_dir}/model.onnx") for case in cases}
    return {
        name: model
        for name, model in found.items()
        if name not in EXCLUDED and _made_of_ours({node.op_type for node in model.graph.node})
    }


def _made_of_ours(ops: set[str]) -> bool:
    return ops <= OPERATORS.keys() | AROUND.keys() and not ops.isdisjoint(OPERATORS)


def suite(tested: type[GpupoolBackend], *devices: str) -> dict[str, type[unittest.TestCase]]:
    """Return upstream's test classes of a backend, with the tests of this one's operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = BackendTest(tested, __name__).test_cases
    wanted = {f"{name}_{device}" for name in models() for device in devices}
    classes = {}
    for name, case in found.items():
        kept = {test: body for test, body in vars(case).items() if test in wanted}
        if kept:
            title = f"{name}On{tested.__name__}"
            classes[title] = type(title, (unittest.TestCase,), kept | {"__module__": __name__})
    return classes


class Kernels(GpupoolBackend):
    """The backend with the kernels, executed on the CPU, in the place of CUDA."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device in ("CPU", "CUDA")

    @classmethod
    def prepare(cls, model: Any, _device: str = "CPU", **kwargs: Any) -> GpupoolRep:
        emulator_backend()  # skips where it cannot be built
        rep = super().prepare(model, **kwargs)
        rep.run = emulator.emulated(rep.run, kernel="window")
        return rep


SUITES = suite(GpupoolBackend, "cpu", *(["cuda"] if gpu_available() else [])) | suite(
    Kernels, "cuda"
)
globals().update(SUITES)


def test_every_test_of_ours_is_there() -> None:
    tests = [name for case in SUITES.values() for name in vars(case) if name.startswith("test_")]
    kinds = {name.rpartition("_")[2] for name in tests}
    assert kinds == {"cpu", "cuda"}
    assert len(models()) >= 71
    assert len(tests) == len(models()) * (3 if gpu_available() else 2)
    assert {"test_maxpool_2d_uint8_cpu", "test_AvgPool1d_cuda", "test_operator_maxpool_cpu"} < {
        *tests
    }


@pytest.mark.parametrize("name", sorted(models()))
def test_no_test_passes_by_being_left_out(name: str) -> None:
    """Upstream counts a model that a backend is not compatible with as passed."""
    assert backend.is_compatible(models()[name])


def test_the_excluded_test_is_upstreams() -> None:
    known = {case.name for case in load_model_tests(kind="node")}
    assert EXCLUDED.keys() <= known


@pytest.fixture(params=["oracle", "kernels"])
def run_model(request: pytest.FixtureRequest) -> Any:
    if request.param == "oracle":
        return backend.run_model
    return lambda model, inputs: Kernels.run_model(model, inputs, "CUDA")


# Models


def value(name: str, kind: int = TensorProto.FLOAT, rank: int = 4) -> Any:
    return helper.make_tensor_value_info(name, kind, [None] * rank)


def model(*nodes: Any, inputs: Any = (), outputs: Any = (), opset: int = 13, **graph: Any) -> Any:
    made = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), **graph)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


MAX = helper.make_node("MaxPool", ["x"], ["y"], name="top", kernel_shape=[2, 2])
X = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def test_max_unpool_takes_indices_in_output_shape(run_model: Any) -> None:
    node = helper.make_node(
        "MaxUnpool", ["x", "i", "shape"], ["y"], kernel_shape=[2, 2], strides=[2, 2]
    )
    x = np.array([[[[5, 6], [7, 8]]]], np.float32)
    indices = np.array([[[[5, 7], [13, 15]]]])
    inputs = [value("x"), value("i", TensorProto.INT64), value("shape", TensorProto.INT64, 1)]
    unpool = model(node, inputs=inputs, outputs=[value("y")])
    (y,) = run_model(unpool, [x, indices, np.array([1, 1, 5, 5])])
    expected = np.zeros(25, np.float32)
    expected[[5, 7, 13, 15]] = [5, 6, 7, 8]
    np.testing.assert_array_equal(y, expected.reshape(1, 1, 5, 5), strict=True)


def test_an_optional_input_may_be_left_out_by_an_empty_name(run_model: Any) -> None:
    node = helper.make_node("MaxUnpool", ["x", "i", ""], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    inputs = [value("x"), value("i", TensorProto.INT64)]
    unpool = model(node, inputs=inputs, outputs=[value("y")])
    (y,) = run_model(unpool, [X[..., :1, :1], np.full((1, 1, 1, 1), 3)])
    assert y.ravel().tolist() == [0, 0, 0, 0]
    assert y.shape == (1, 1, 2, 2)


def test_optional_outputs(run_model: Any) -> None:
    pair = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[4, 4])
    both = model(pair, inputs=[value("x")], outputs=[value("y"), value("i", TensorProto.INT64)])
    outputs = run_model(both, [X])
    assert outputs.y.item() == 15
    assert outputs["i"].item() == 15
    assert outputs[1].dtype == np.int64
    single = helper.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[4, 4])
    assert len(run_model(model(single, inputs=[value("x")], outputs=[value("y")]), [X])) == 1


def test_an_initialiser_stands_for_an_input_that_is_not_given() -> None:
    weights = numpy_helper.from_array(X, "x")
    prepared = backend.prepare(
        model(MAX, inputs=[value("x")], outputs=[value("y")], initializer=[weights])
    )
    assert prepared.run([]).y.max() == 15
    assert prepared.run([-X]).y.max() == 0
    assert prepared.run({"x": -X}).y.max() == 0
    assert prepared.run(-X).y.max() == 0
    hidden = backend.prepare(model(MAX, outputs=[value("y")], initializer=[weights]))
    assert hidden.run([]).y.max() == 15


@pytest.mark.parametrize("opset", [6, 12, 13, NEWEST])
def test_squeeze_and_unsqueeze_of_every_version(run_model: Any, opset: int) -> None:
    axes = [numpy_helper.from_array(np.array([0, -1 if opset > 10 else 3]), "axes")]
    given = {} if opset >= 13 else {"axes": numpy_helper.to_array(axes[0]).tolist()}
    more = ["axes"] if opset >= 13 else []
    nodes = [
        helper.make_node("Unsqueeze", ["x", *more], ["wide"], **given),
        helper.make_node("AveragePool", ["wide"], ["mean"], kernel_shape=[2, 1]),
        helper.make_node("Squeeze", ["mean", *more], ["y"], **given),
    ]
    around = model(
        *nodes,
        inputs=[value("x", rank=2)],
        outputs=[value("y", rank=2)],
        opset=opset,
        initializer=axes if more else [],
    )
    (y,) = run_model(around, [X[0, 0]])
    np.testing.assert_array_equal(y, (X[0, 0, :, 1:] + X[0, 0, :, :-1]) / 2)


def test_squeeze_without_axes_takes_every_axis_of_size_one() -> None:
    node = helper.make_node("Squeeze", ["x"], ["y"])
    assert backend.run_node(node, [X]).y.shape == (4, 4)


@pytest.mark.parametrize(
    ("op", "axes"), [("Squeeze", [2]), ("Unsqueeze", [9]), ("Unsqueeze", None)]
)
def test_impossible_axes_are_refused(op: str, axes: Any) -> None:
    node = helper.make_node(op, ["x"], ["y"], name="shape", **({"axes": axes} if axes else {}))
    with pytest.raises(GpupoolValueError, match=rf"node shape \({op}\): axes = "):
        backend.run_node(node, [X], opset_version=6)


def test_run_node_takes_the_opset_and_the_device() -> None:
    assert backend.run_node(MAX, [X]).y.shape == (1, 1, 3, 3)
    assert backend.run_node(MAX, X, "CPU", opset_version=1).y.shape == (1, 1, 3, 3)
    with pytest.raises(GpupoolTypeError, match="uint8: MaxPool takes it since opset 12"):
        backend.run_node(MAX, [X.astype(np.uint8)], opset_version=11)


# What is refused


def test_another_operator_is_named() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"], name="act")
    other = model(relu, inputs=[value("x")], outputs=[value("y")])
    with pytest.raises(GpupoolValueError, match="node act is ONNX's Relu: this backend runs"):
        backend.prepare(other)
    assert not backend.is_compatible(other)
    assert backend.is_compatible(model(MAX, inputs=[value("x")], outputs=[value("y")]))


@pytest.mark.parametrize("outputs", [["", "i"], [""]])
@pytest.mark.parametrize("op", ["MaxPool", "Squeeze"])
def test_a_node_whose_first_output_is_left_out_is_refused(op: str, outputs: list[str]) -> None:
    """As onnxruntime does: only optional outputs may have an empty name."""
    attributes = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
    node = helper.make_node(op, ["x"], outputs, name="top", **attributes)
    message = rf"^node top \({op}\): outputs are \['.*\]: {op} gives the first by name$"
    with pytest.raises(GpupoolValueError, match=message):
        backend.run_node(node, [X])
    indices = value("i", TensorProto.INT64)
    made = model(node, inputs=[value("x")], outputs=[indices] if outputs[1:] else [value("x")])
    with pytest.raises(GpupoolValueError, match=message):
        backend.prepare(made)
    if op == "MaxPool":
        with pytest.raises(GpupoolValueError, match=message):
            Session(made)


def test_the_same_operator_of_another_domain_is_another() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], domain="elsewhere", kernel_shape=[2])
    made = model(node, inputs=[value("x")], outputs=[value("y")])
    made.opset_import.append(helper.make_opsetid("elsewhere", 1))
    with pytest.raises(GpupoolValueError, match="elsewhere's MaxPool"):
        backend.prepare(made)


def test_a_function_that_calls_itself_is_refused() -> None:
    made = model(
        helper.make_node("F", ["x"], ["y"], domain="own"),
        inputs=[value("x")],
        outputs=[value("y")],
    )
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(
        helper.make_function("own", "F", ["x"], ["y"], made.graph.node, made.opset_import)
    )
    assert not backend.is_compatible(made)


def test_a_file_that_is_not_there_is_no_question_of_compatibility() -> None:
    with pytest.raises(FileNotFoundError):
        backend.is_compatible("missing.onnx")


def test_a_model_that_onnx_calls_invalid_is_refused() -> None:
    made = model(MAX, inputs=[value("x")], outputs=[value("y")])
    made.ir_version = 0
    with pytest.raises(GpupoolValueError, match="the model is not valid: "):
        backend.prepare(made)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], GpupoolValueError, r"0 inputs are given, the model takes \['x'\]"),
        ([X, X], GpupoolValueError, "2 inputs are given"),
        ({}, GpupoolValueError, "the model needs input 'x'"),
        ({"z": X}, GpupoolValueError, "input 'z' is not one of x"),
        ([X.astype(np.float64)], GpupoolTypeError, "input 'x' has dtype float64.*float32"),
        ([X[0]], GpupoolValueError, r"'x' has shape \(1, 4, 4\), .* takes \(None, None"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, error: type[GpupoolError], message: str) -> None:
    prepared = backend.prepare(model(MAX, inputs=[value("x")], outputs=[value("y")]))
    with pytest.raises(error, match=message):
        prepared.run(inputs)


@pytest.mark.parametrize("device", ["GPU", "CUDA:1", "cpu"])
def test_an_unknown_device_is_refused(device: str) -> None:
    assert not backend.supports_device(device)
    with pytest.raises(GpupoolValueError, match=f"device = '{device}' must be one of CPU, CUDA"):
        backend.run_node(MAX, [X], device)


@pytest.mark.skipif(gpu_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_says_why() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(GpupoolError, match="device = 'CUDA': "):
        backend.run_node(MAX, [X], "CUDA")
