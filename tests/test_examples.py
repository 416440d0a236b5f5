"""The examples that ONNX publishes: the worked ones of AveragePool and the backend's node tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import peers

WORKED: dict[str, tuple[tuple[int, ...], dict[str, Any], Any]] = {
    "1d_default": (
        (1, 1, 8),
        {"kernel_shape": [2]},
        [[[1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]]],
    ),
    "2d_ceil": (
        (1, 1, 4, 4),
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        [[[[6, 7.5], [12, 13.5]]]],
    ),
    "2d_ceil_last_window_starts_on_pad": (
        (1, 1, 2, 2),
        {
            "kernel_shape": [3, 3],
            "strides": [3, 3],
            "pads": [1, 1, 1, 1],
            "ceil_mode": 1,
            "count_include_pad": 1,
        },
        [[[[1.1111112]]]],
    ),
    "2d_default": (
        (1, 1, 4, 4),
        {"kernel_shape": [2, 2]},
        [[[[3.5, 4.5, 5.5], [7.5, 8.5, 9.5], [11.5, 12.5, 13.5]]]],
    ),
    "2d_pads": (
        (1, 1, 4, 4),
        {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]},
        [
            [
                [
                    [1, 1.5, 2, 3, 3.5, 4],
                    [3, 3.5, 4, 5, 5.5, 6],
                    [5, 5.5, 6, 7, 7.5, 8],
                    [9, 9.5, 10, 11, 11.5, 12],
                    [11, 11.5, 12, 13, 13.5, 14],
                    [13, 13.5, 14, 15, 15.5, 16],
                ]
            ]
        ],
    ),
    "2d_pads_count_include_pad": (
        (1, 1, 5, 5),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        [
            [
                [
                    [1.7777778, 3, 3.6666667, 4.3333335, 3.1111112],
                    [4.3333335, 7, 8, 9, 6.3333335],
                    [7.6666665, 12, 13, 14, 9.666667],
                    [11, 17, 18, 19, 13],
                    [8.444445, 13, 13.666667, 14.333333, 9.777778],
                ]
            ]
        ],
    ),
    "2d_precomputed_pads": (
        (1, 1, 5, 5),
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
        [
            [
                [
                    [7, 7.5, 8, 8.5, 9],
                    [9.5, 10, 10.5, 11, 11.5],
                    [12, 12.5, 13, 13.5, 14],
                    [14.5, 15, 15.5, 16, 16.5],
                    [17, 17.5, 18, 18.5, 19],
                ]
            ]
        ],
    ),
    "2d_precomputed_pads_count_include_pad": (
        (1, 1, 5, 5),
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2], "count_include_pad": 1},
        [
            [
                [
                    [2.52, 3.6, 4.8, 4.08, 3.24],
                    [4.56, 6.4, 8.4, 7.04, 5.52],
                    [7.2, 10, 13, 10.8, 8.4],
                    [6.96, 9.6, 12.4, 10.24, 7.92],
                    [6.12, 8.4, 10.8, 8.88, 6.84],
                ]
            ]
        ],
    ),
    "2d_precomputed_strides": (
        (1, 1, 5, 5),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        [[[[4, 6], [14, 16]]]],
    ),
    "2d_strides": (
        (1, 1, 5, 5),
        {"kernel_shape": [3, 3], "strides": [2, 2]},
        [[[[7, 9], [17, 19]]]],
    ),
    "3d_default": (
        (1, 1, 3, 3, 3),
        {"kernel_shape": [2, 2, 2]},
        [[[[[7.5, 8.5], [10.5, 11.5]], [[16.5, 17.5], [19.5, 20.5]]]]],
    ),
}
"""The eleven examples of AveragePool-19, test_cc_averagepool_*: x holds 1, 2, 3, .. in float32."""


@pytest.mark.parametrize("name", WORKED)
def test_worked_example(name: str, backend: Any) -> None:
    shape, attributes, expected = WORKED[name]
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    y = backend.numpy(backend.average_pool(backend.array(x), **attributes, opset=19))
    assert y.dtype == np.float32
    # The sums are integers, exact in any order: what is left is one rounding.
    np.testing.assert_array_equal(y, np.array(expected, np.float32), strict=True)


WRONG_UPSTREAM = {
    "test_maxunpool_export_with_output_shape": (
        "up to onnx 1.23.2 its result takes the Indices as positions in the inferred shape; the "
        "operator's text and onnxruntime take them in output_shape"
    ),
}


def node_tests() -> Iterator[Any]:
    """Give ONNX's own backend tests that are a single node of ours."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' cases overflow on purpose
        cases = collect_testcases()
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in peers.Gpupool.functions:
            reason = WRONG_UPSTREAM.get(case.name)
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            yield pytest.param(case, id=case.name, marks=marks)


NODE_TESTS = list(node_tests())


@pytest.mark.parametrize("test", NODE_TESTS)
def test_onnx_backend_node_test(test: Any, backend: Any) -> None:
    from onnx import helper

    (node,) = test.model.graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    ((inputs, expected),) = test.data_sets
    case = peers.Case(
        node.op_type,
        tuple(inputs),
        attributes,
        outputs=len(expected),
        opset=test.model.opset_import[0].version,
    )
    library = peers.Gpupool(backend, backend.array, backend.numpy)
    for output, right in zip(library.run(case), expected, strict=True):
        assert output.dtype == right.dtype
        assert output.shape == right.shape
        np.testing.assert_allclose(output, right, rtol=test.rtol, atol=test.atol)


def test_every_operator_with_node_tests_is_covered() -> None:
    covered = {param.values[0].model.graph.node[0].op_type for param in NODE_TESTS}
    without = {"GlobalLpPool", "MaxRoiPool"}
    assert covered == set(peers.Gpupool.functions) - without


def test_max_unpool_takes_indices_in_output_shape(backend: Any) -> None:
    x = np.array([[[[5, 6], [7, 8]]]], np.float32)
    indices = np.array([[[[5, 7], [13, 15]]]])
    y = backend.max_unpool(
        backend.array(x), backend.array(indices), 2, strides=2, output_shape=(1, 1, 5, 5)
    )
    expected = np.zeros(25, np.float32)
    expected[[5, 7, 13, 15]] = [5, 6, 7, 8]
    np.testing.assert_array_equal(backend.numpy(y).ravel(), expected)
