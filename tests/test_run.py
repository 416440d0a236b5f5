"""``gpupool run`` on real files: what it writes, what it says, and its exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gpupool
from gpupool import cli
from gpupool.onnx import Session

FLOAT = TensorProto.FLOAT
X = np.random.default_rng(8).standard_normal((1, 2, 8, 8)).astype(np.float32)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> Any:
    """Run ``gpupool run`` in a folder with models and arrays; give its status and its output."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("b.npy", X.astype(ml_dtypes.bfloat16))
    for name, kind in (("model.onnx", FLOAT), ("half.onnx", TensorProto.BFLOAT16)):
        Path(name).write_bytes(model(kind).SerializeToString())

    def call(*argv: object) -> SimpleNamespace:
        try:
            status = cli.main(["run", *map(str, argv)])
        except SystemExit as exit_:
            status = exit_.code
        said = capsys.readouterr()
        return SimpleNamespace(status=status, out=said.out, err=said.err)

    return call


def model(kind: int) -> Any:
    names = ["gpu_0/y", "gpu_0\\y", "../z\x1b"]
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node(
            "MaxPool", ["a"], [names[0]], name="top\x1b[31m", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("GlobalAveragePool", ["a"], [names[1]], name="mean"),
        helper.make_node("Identity", [names[0]], [names[2]]),
    ]
    shape = [1, 2, None, None]
    graph = helper.make_graph(
        nodes,
        "run",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, kind, shape) for name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def refused(result: SimpleNamespace, status: int, *texts: str) -> bool:
    """Whether a command ended in one line on stderr that says all of ``texts``."""
    assert result.status == status
    (line,) = result.err.splitlines()
    assert line.startswith("gpupool: error: ")
    for text in texts:
        assert text in line
    return True


def test_outputs_are_written_under_safe_names(run: Any) -> None:
    result = run("model.onnx", "--input", "x=x.npy", "--output-dir", "out", "--device", "cpu")
    assert result.status == 0
    assert result.out == ""
    assert result.err.startswith("model.onnx: 2 pooling nodes on the CPU, 3 outputs, ")
    assert sorted(p.name for p in Path("out").iterdir()) == [
        "_z_.npy",
        "gpu_0_y-1.npy",
        "gpu_0_y.npy",
    ]
    np.testing.assert_array_equal(np.load("out/gpu_0_y.npy"), gpupool.max_pool(X, 2, strides=2))
    np.testing.assert_array_equal(np.load("out/gpu_0_y-1.npy"), gpupool.global_average_pool(X))


def saved(outputs: Any, *nodes: Any, **graph: Any) -> None:
    """Save a model of x in other.onnx."""
    made = helper.make_graph(
        list(nodes), "other", [helper.make_tensor_value_info("x", FLOAT, X.shape)], outputs, **graph
    )
    imports = [helper.make_opsetid("", 22)]
    Path("other.onnx").write_bytes(
        helper.make_model(made, opset_imports=imports, ir_version=10).SerializeToString()
    )


def test_every_output_has_a_name_of_its_own(run: Any) -> None:
    names = ["a_b-2", "a_b", "a/b", "a b", "a_b-1"]
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in names]
    pools = [helper.make_node("LpPool", ["x"], [name], kernel_shape=[1, 1]) for name in names]
    saved(outputs, *pools)
    assert run("other.onnx", "--input", "x=x.npy", "--output-dir", "out").status == 0
    written = {path.stem for path in Path("out").iterdir()}
    assert written == {"a_b", "a_b-1", "a_b-1-1", "a_b-2", "a_b-3"}


TEXT = helper.make_tensor_value_info("text", TensorProto.STRING, None)
SEQUENCE = helper.make_tensor_sequence_value_info("parts", FLOAT, None)
WORD = helper.make_tensor("text", TensorProto.STRING, [1], [b"word"])


@pytest.mark.parametrize(
    ("output", "kind", "nodes", "weights"),
    [
        (TEXT, "tensor(string)", [helper.make_node("Cast", ["x"], ["text"], to=8)], []),
        (TEXT, "tensor(string)", [], [WORD]),
        (
            SEQUENCE,
            "seq(tensor(float))",
            [helper.make_node("SplitToSequence", ["x"], ["parts"], axis=3)],
            [],
        ),
    ],
)
def test_what_is_no_array_of_numbers_is_not_run_to_be_written(
    run: Any, monkeypatch: pytest.MonkeyPatch, output: Any, kind: str, nodes: Any, weights: Any
) -> None:
    mean = helper.make_tensor_value_info("mean", FLOAT, None)
    pool = helper.make_node("GlobalAveragePool", ["x"], ["mean"])
    saved([mean, output], pool, *nodes, initializer=weights)
    argv = ("other.onnx", "--input", "x=x.npy")
    compared = run(*argv, "--compare")
    assert compared.status == 0
    assert len(compared.out.splitlines()) == (9 if output is SEQUENCE else 2)
    monkeypatch.delattr(Session, "profile")
    said = f"output '{output.name}' is a {kind}, for which .npy has no form"
    assert refused(run(*argv, "--output-dir", "out"), 1, said)
    assert not Path("out").exists()


def test_existing_files_are_kept_without_force(run: Any) -> None:
    argv = ("model.onnx", "--input", "x=x.npy", "--output-dir", "out")
    Path("out").mkdir()
    Path("out/_z_.npy").write_text("kept")
    assert refused(run(*argv), 1, "out/_z_.npy: exists already; --force replaces it")
    assert [path.read_text() for path in Path("out").iterdir()] == ["kept"]
    assert run(*argv, "--force").status == 0
    assert np.load("out/_z_.npy").shape == (1, 2, 4, 4)


def test_profile_is_a_table_of_the_pooling_nodes(run: Any) -> None:
    result = run("model.onnx", "--input", "x=x.npy", "--profile", "--device", "cpu")
    head, *rows = result.out.splitlines()
    assert head.split() == ["node", "operator", "shape", "attributes", "ms", "MB/s", "share"]
    assert len(rows) == 2
    top, mean = sorted(rows, key=len, reverse=True)
    assert top.startswith("top\\x1b[31m  MaxPool")
    assert "1x2x8x8 -> 1x2x4x4  kernel_shape=2,2 strides=2,2  " in top
    assert mean.startswith("mean         GlobalAveragePool  1x2x8x8 -> 1x2x1x1  ")
    assert top.endswith(" %")


def test_compare_prints_the_largest_difference_of_each_output(run: Any) -> None:
    result = run("model.onnx", "--input", "x=x.npy", "--compare")
    lines = result.out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(
        "gpu_0/y: 1x2x4x4 float32, largest difference from onnxruntime 0, beside values up to "
    )
    assert lines[2].startswith("../z\\x1b: 1x2x4x4 float32, ")


def test_bfloat16_of_a_file_is_what_the_model_takes(run: Any) -> None:
    assert run("half.onnx", "--input", "x=b.npy", "--output-dir", "out").status == 0
    y = np.load("out/gpu_0_y.npy").view(ml_dtypes.bfloat16)
    expected = gpupool.max_pool(X.astype(ml_dtypes.bfloat16), 2, strides=2)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("argv", "status", "texts"),
    [
        (("model.onnx", "--input", "x"), 2, ("'x' is not NAME=FILE.npy",)),
        (("model.onnx", "--input", "=x.npy"), 2, ("is not NAME=FILE.npy",)),
        (("model.onnx", "--input", "x=x.png"), 2, ("is not NAME=FILE.npy",)),
        (("model.onnx",), 1, ("the model needs input 'x'",)),
        (("model.onnx", "--input", "x=x.npy", "--input", "x=x.npy"), 1, ("'x' is given twice",)),
        (("model.onnx", "--input", "z=x.npy"), 1, ("input 'z' is not one of x",)),
        (("model.onnx", "--input", "x=none.npy"), 1, ("none.npy: No such file",)),
        (("none.onnx", "--input", "x=x.npy"), 1, ("none.onnx: No such file",)),
        (("x.npy", "--input", "x=x.npy"), 1, ("x.npy: not an ONNX model",)),
        (("half.onnx", "--input", "x=x.npy"), 1, ("input 'x' has dtype float32", "bfloat16")),
        (("model.onnx", "--input", "x=x.npy", "--output-dir", "a/b"), 1, ("a/b: No such file",)),
    ],
)
def test_what_is_wrong_is_one_line(run: Any, argv: Any, status: int, texts: Any) -> None:
    assert refused(run(*argv), status, *texts)


def test_a_failed_run_leaves_nothing_behind(run: Any) -> None:
    np.save("x.npy", X[..., :1])
    argv = ("model.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert refused(run(*argv), 1, "(MaxPool): the window is larger")
    assert not Path("out").exists()


def test_without_onnx_the_remedy_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpupool.session", raising=False)
    monkeypatch.delattr(gpupool, "session", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert refused(run("model.onnx"), 1, "pip install 'gpupool[onnx]'")
