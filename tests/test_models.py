"""Real networks: those that ship with onnx, two with trained weights, and one in 16-bit floats."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

import gpupool.onnx
from gpupool import tolerance
from gpupool.arrays import Array
from gpupool.nodes import PoolingNode, is_pooling
from gpupool.onnx import NodeTime, Session
from gpupool.problem import resolve

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
POOLING_NODES = {
    "bvlc_alexnet": 3,
    "densenet121": 5,
    "inception_v1": 14,
    "inception_v2": 13,
    "resnet50": 2,
    "shufflenet": 5,
    "squeezenet": 4,
    "vgg19": 5,
    "zfnet512": 3,
}
"""The light models and their pooling nodes, 54 in all."""

FOLDING_TAKES_LONG = ("bvlc_alexnet", "vgg19", "zfnet512")
"""Their largest weights are computed by nodes, which onnxruntime would fold for seconds."""

AGREEMENT = 1e-5
"""How far outputs may differ beside their greatest magnitude: float32 sums in another order."""

TRAINED_AGREEMENT = 1e-4
"""The same where weights amplify it: onnxruntime's own levels of optimisation differ by 9e-6."""

PHOTO = Path(__file__).parent / "data" / "astronaut.png"


@cache
def light(name: str) -> Any:
    """Return a light model, whose weights are all one number, with drawn weights for its Convs.

    With a single number whole feature maps are constant, and a wrong window goes unnoticed.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = model.graph
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    kernels = {node.input[1] for node in graph.node if node.op_type == "Conv"}
    drawn = [node for node in graph.node if kernels & {*node.output}]
    rng = np.random.default_rng(9)
    for node in drawn:
        assert node.op_type == "ConstantOfShape"
        shape = numpy_helper.to_array(shapes[node.input[0]])
        weights = rng.standard_normal(shape, np.float32) * np.sqrt(2 / np.prod(shape[1:]))
        graph.initializer.append(
            numpy_helper.from_array(weights.astype(np.float32), node.output[0])
        )
    others = [node for node in graph.node if node not in drawn]
    del graph.node[:]
    graph.node.extend(others)
    return model


def with_pools_as_outputs(model: Any) -> Any:
    """Return the model with what its pooling nodes give as outputs: its own is a softmax."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(
        helper.make_empty_tensor_value_info(node.output[0])
        for node in model.graph.node
        if is_pooling(node)
    )
    return watched


def options(name: str) -> Any:
    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 3
    if name in FOLDING_TAKES_LONG:
        chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return chosen


def inputs_of(session: Session) -> dict[str, Array]:
    values = np.random.default_rng(10)
    return {name: values.random((1, 3, 224, 224), np.float32) for name in session.input_names}


def session_of(name: str) -> Session:
    return Session(with_pools_as_outputs(light(name)), device="cpu", sess_options=options(name))


@cache
def rows(name: str) -> list[NodeTime]:
    """Return the pooling nodes of a light model with the shapes that they meet in a run."""
    session = session_of(name)
    return session.profile(None, inputs_of(session)).rows


def test_the_light_models_have_54_pooling_nodes() -> None:
    assert {path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx")} == {*POOLING_NODES}
    assert sum(POOLING_NODES.values()) == 54


@pytest.mark.parametrize("name", POOLING_NODES)
def test_every_pooling_node_of_a_light_model_equals_onnxruntime(name: str) -> None:
    rng = np.random.default_rng(11)
    assert len(rows(name)) == POOLING_NODES[name]
    for row in rows(name):
        found, shape = row.node, row.shape
        outputs = ("y", "i") if found.op == "MaxPool" else ("y",)
        # Quarters: many equal maxima, of which Indices must name the first.
        x = rng.standard_normal(shape, np.float32)
        x = np.round(4 * x) / 4 if found.op == "MaxPool" else x
        node = helper.make_node(found.op, ["x"], outputs, **found.attributes)
        ours = PoolingNode.read(node, 9)(x)
        theirs = run_alone(node, x)
        problem = resolve(found.op, shape, x.dtype, **found.attributes, opset=9)
        agree = tolerance.agree(problem, (x,), ours[0], theirs[0])
        assert agree.all(), f"{found.name}: {(~agree).sum()} of {agree.size} differ"
        if found.op == "MaxPool":
            np.testing.assert_array_equal(ours[0], theirs[0], strict=True)
            np.testing.assert_array_equal(ours[1], theirs[1], strict=True)


def run_alone(node: Any, x: Array) -> list[Array]:
    kinds = (TensorProto.FLOAT, TensorProto.INT64)
    graph = helper.make_graph(
        [node],
        "one node",
        [helper.make_tensor_value_info("x", kinds[0], x.shape)],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(node.output, kinds, strict=False)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=3)
    outputs: list[Array] = onnxruntime.InferenceSession(model.SerializeToString()).run(
        None, {"x": x}
    )
    return outputs


def agree_end_to_end(
    session: Session, feeds: dict[str, Array], title: str, agreement: float = TRAINED_AGREEMENT
) -> list[Array]:
    """Compare a session with plain onnxruntime and print how far they are apart."""
    outputs = session.run(None, feeds)
    differences = session.compare(outputs, feeds)
    relative = [found.largest / found.magnitude for found in differences]
    print(
        f"{title}: {len(session.pooling_nodes)} pooling nodes, {len(outputs)} outputs, largest "
        f"difference {max(relative):.2g} of the output's magnitude"
    )
    assert all(found.magnitude > 0 for found in differences)
    assert max(relative) <= agreement
    return outputs


@pytest.mark.parametrize("name", POOLING_NODES)
def test_a_whole_light_model_equals_onnxruntime(name: str) -> None:
    session = session_of(name)
    assert len(session.pooling_nodes) == POOLING_NODES[name]
    outputs = agree_end_to_end(session, inputs_of(session), name, AGREEMENT)
    assert all(np.ptp(pooled) > 0 for pooled in outputs[1:])


# Trained weights


def packaged(package: str, path: str) -> Path:
    """Return a file of an installed package, without importing it; skip where there is none."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package}, which carries a trained model, is not installed")
    return Path(spec.origin).parent / path


@cache
def photograph() -> Array:
    image = pytest.importorskip("PIL.Image")
    pixels = np.asarray(image.open(PHOTO).convert("RGB"), np.float32)
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1)[None])


@pytest.mark.parametrize(
    ("model", "nodes", "part"),
    [
        ("ch_PP-OCRv4_det_infer", {"GlobalAveragePool": 10}, (slice(None), slice(None))),
        (
            "ch_ppocr_mobile_v2.0_cls_infer",
            {"GlobalAveragePool": 10, "MaxPool": 1},
            (slice(100, 148), slice(150, 342)),
        ),
        (
            "ch_PP-OCRv4_rec_infer",
            {"GlobalAveragePool": 2, "AveragePool": 1},
            (slice(100, 148), slice(100, 420)),
        ),
    ],
)
def test_a_trained_network_on_a_photograph(
    model: str, nodes: dict[str, int], part: tuple[slice, slice]
) -> None:
    """Detector, classifier and recogniser of PaddleOCR, which rapidocr-onnxruntime carries."""
    path = packaged("rapidocr_onnxruntime", f"models/{model}.onnx")
    session = Session(path, device="cpu")
    ops = [node.op for node in session.pooling_nodes]
    assert {op: ops.count(op) for op in ops} == nodes
    (y,) = agree_end_to_end(session, {"x": photograph()[(..., *part)]}, model)
    assert np.ptp(y) > 0.01


def test_a_trained_network_on_the_bytes_of_a_file() -> None:
    """Magika's file type classifier, which pools over time: it takes the photograph for a PNG."""
    folder = packaged("magika", "models/standard_v3_3")
    config = json.loads((folder / "config.min.json").read_text())
    session = Session(folder / "model.onnx", device="cpu")
    assert [node.op for node in session.pooling_nodes] == ["GlobalMaxPool"]
    content = PHOTO.read_bytes()
    begin, end = config["beg_size"], config["end_size"]
    features = np.frombuffer(content[:begin] + content[-end:], np.uint8).astype(np.int32)
    (name,) = session.input_names
    (scores,) = agree_end_to_end(session, {name: features[None]}, "magika")
    assert config["target_labels_space"][int(scores.argmax())] == "png"


# 16-bit floats


def converted(model: Any, kind: int) -> Any:
    """Return a float32 model with weights, inputs, outputs and all between of another dtype."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    tensors = list(made.graph.initializer)
    tensors += [a.t for node in made.graph.node for a in node.attribute if a.HasField("t")]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    return made


def small_squeezenet(opset: int) -> Any:
    """Return SqueezeNet for any image size, without its Dropout, at an opset."""
    model = onnx.ModelProto()
    model.CopyFrom(light("squeezenet"))
    graph = model.graph
    kept = [node for node in graph.node if node.op_type not in ("Dropout", "Softmax")]
    (dropout,) = (node for node in graph.node if node.op_type == "Dropout")
    for node in kept:
        names = [dropout.input[0] if n == dropout.output[0] else n for n in node.input]
        del node.input[:]
        node.input.extend(names)
    del graph.node[:]
    graph.node.extend(kept)
    scores = graph.node[-1].output[0]
    image = helper.make_tensor_value_info("data_0", TensorProto.FLOAT, [1, 3, None, None])
    del graph.input[:]
    graph.input.append(image)
    model.ir_version = 8  # since 4 initialisers are no inputs, as the converter has it
    del graph.output[:]
    graph.output.append(
        helper.make_tensor_value_info(scores, TensorProto.FLOAT, [1, 1000, None, None])
    )
    return version_converter.convert_version(model, opset)


def error(y: Array, right: Array) -> float:
    """Return the largest difference beside the greatest magnitude."""
    y, right = y.astype(np.float64), right.astype(np.float64)
    return float(np.abs(y - right).max() / np.abs(right).max())


def of_roundings(unit: float) -> float:
    """Bound what storing in 16 bits costs, in 26 convolutions and 4 pools.

    Each rounds weights, values and results: three relative errors of ``unit``, which ReLU and
    pooling do not enlarge. They are independent, so that 90 of them add up as their root does.
    """
    return 90**0.5 * unit


def test_a_float16_network() -> None:
    model = small_squeezenet(12)
    x = np.random.default_rng(12).random((1, 3, 64, 64), np.float32)
    (right,) = Session(model, device="cpu").run(None, {"data_0": x})
    half = Session(converted(model, TensorProto.FLOAT16), device="cpu")
    feeds = {"data_0": x.astype(np.float16)}
    (y,) = half.run(None, feeds)
    assert y.dtype == np.float16
    assert error(y, right) <= of_roundings(2.0**-11)
    (found,) = half.compare([y], feeds)
    print(
        f"float16: {error(y, right):.2g} from float32, {found.largest / found.magnitude:.2g} from "
        f"onnxruntime's float16"
    )
    assert found.largest <= of_roundings(2.0**-11) * found.magnitude


def test_a_bfloat16_network() -> None:
    """Convolutions by onnx's reference, since onnxruntime has none in bfloat16 on the CPU."""
    model = small_squeezenet(22)
    x = np.random.default_rng(13).random((1, 3, 32, 32), np.float32)
    (right,) = Session(model, device="cpu").run(None, {"data_0": x})
    made = converted(model, TensorProto.BFLOAT16)
    reference = ReferenceEvaluator(made, new_ops=gpupool.onnx.new_ops("cpu"))
    (y,) = reference.run(None, {"data_0": x.astype(ml_dtypes.bfloat16)})
    print(f"bfloat16: {error(y, right):.2g} from float32")
    assert y.dtype == ml_dtypes.bfloat16
    assert error(y, right) <= of_roundings(2.0**-8)
