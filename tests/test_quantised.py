"""The quantised operators against ONNX Runtime's own, which may round a boundary the other way."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from gpupool import GpupoolError, GpupoolTypeError, GpupoolValueError, quantised
from gpupool.arrays import Array
from tests import emulator
from tests.conftest import Backend, emulator_backend
from tests.kinds import JAX, TORCH

CASES = 500
BOUNDARY = 1e-5
"""So near to a half ONNX Runtime's float32 may round the other way."""


@dataclass(frozen=True)
class Case:
    """One call: an 8-bit x, scales and zero points in the order of the operator, attributes."""

    op: str
    x: Array
    scales: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    def ours(self) -> Array:
        function = {
            "QLinearAveragePool": quantised.qlinear_average_pool,
            "QLinearGlobalAveragePool": quantised.qlinear_global_average_pool,
            "NhwcMaxPool": quantised.nhwc_max_pool,
        }[self.op]
        attributes = dict(self.attributes)
        kernel = [attributes.pop("kernel_shape")] if "kernel_shape" in attributes else []
        return function(self.x, *self.scales, *kernel, **attributes)

    def theirs(self) -> Array:
        kind = helper.np_dtype_to_tensor_dtype(self.x.dtype)
        values = {"x": self.x}
        if self.scales:
            values |= dict(zip(("xs", "xz", "ys", "yz"), map(np.array, self.scales), strict=True))
        types = {name: TensorProto.FLOAT if name in ("xs", "ys") else kind for name in values}
        node = helper.make_node(
            self.op, list(values), ["y"], domain="com.microsoft", **self.attributes
        )
        inputs = [
            helper.make_tensor_value_info(name, types[name], value.shape)
            for name, value in values.items()
        ]
        output = helper.make_tensor_value_info("y", kind, None)
        model = helper.make_model(
            helper.make_graph([node], "quantised", inputs, [output]),
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
            ir_version=10,
        )
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return session.run(None, values)[0]

    def exact(self) -> Array:
        """The quantised mean before it is rounded, in float64 from the text of the operator."""
        attributes = {"channels_last": 0, "count_include_pad": 0} | self.attributes
        x = self.x.astype(np.float64) - float(self.scales[1])
        x = np.moveaxis(x, -1, 1) if attributes["channels_last"] else x
        spatial = x.shape[2:]
        kernel = attributes.get("kernel_shape", spatial)
        pads = attributes.get("pads", [0] * 2 * len(spatial))
        starts = pads[: len(spatial)]
        stops = pads[len(spatial) :]
        strides = attributes.get("strides", [1] * len(spatial))
        around = [(0, 0), (0, 0)]
        around += [(a, b + s) for a, b, s in zip(starts, stops, strides, strict=True)]
        values, inside = np.pad(x, around), np.pad(np.ones_like(x), around)
        counted = inside.copy()
        if attributes["count_include_pad"]:
            pads_too = [*around[:2], *zip(starts, stops, strict=True)]
            counted = np.pad(np.ones_like(x), pads_too, constant_values=1)
            counted = np.pad(counted, [*around[:2], *((0, s) for s in strides)])
        axes = tuple(range(2, x.ndim))
        total, count = (
            np.lib.stride_tricks.sliding_window_view(array, kernel, axes).sum(
                tuple(range(-len(spatial), 0))
            )[(..., *(slice(None, None, s) for s in strides))]
            for array in (values, counted)
        )
        sizes = self.ours().shape[1:-1] if attributes["channels_last"] else self.ours().shape[2:]
        keep = (..., *map(slice, sizes))
        mean = total[keep] / np.maximum(count[keep], 1)
        mean = np.moveaxis(mean, 1, -1) if attributes["channels_last"] else mean
        return mean * (float(self.scales[0]) / float(self.scales[2])) + float(self.scales[3])


def draw(op: str, rng: random.Random) -> Case:
    dtype = rng.choice((np.int8, np.uint8))
    info = np.iinfo(dtype)
    axes = 2 if op == "NhwcMaxPool" else rng.randint(1, 3)
    spatial = [rng.randint(5, 9) for _ in range(axes)]
    batch, channels = rng.randint(1, 2), rng.randint(1, 4)
    last = op == "NhwcMaxPool" or rng.random() < 0.5
    shape = (batch, *spatial, channels) if last else (batch, channels, *spatial)
    values = np.random.default_rng(rng.getrandbits(32))
    x = values.integers(info.min, info.max + 1, shape).astype(dtype)
    attributes: dict[str, Any] = {} if op == "NhwcMaxPool" else {"channels_last": int(last)}
    if op != "QLinearGlobalAveragePool":
        attributes |= _window(op, axes, rng)
    if op == "NhwcMaxPool":
        return Case(op, x, (), attributes)
    scales = [np.float32(10 ** rng.uniform(-2, 0)) for _ in range(2)]
    zeros = [dtype(rng.randint(info.min, info.max)) for _ in range(2)]
    return Case(op, x, (scales[0], zeros[0], scales[1], zeros[1]), attributes)


def _window(op: str, axes: int, rng: random.Random) -> dict[str, Any]:
    kernel = [rng.randint(1, 3) for _ in range(axes)]
    window: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [rng.randint(1, 3) for _ in range(axes)],
        "pads": [rng.randint(0, k - 1) for k in kernel * 2],
    }
    if op == "NhwcMaxPool":
        return window | {"dilations": [rng.randint(1, 2) for _ in range(axes)]} | _ceil(rng)
    # Not both: KNOWN.
    return window | rng.choice(({"count_include_pad": 1}, _ceil(rng)))


def _ceil(rng: random.Random) -> dict[str, Any]:
    return {"ceil_mode": rng.randint(0, 1)}


def beside(case: Case, ours: Array, theirs: Array) -> int:
    """Count the elements that differ; each must be one unit off and beside a boundary."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    differ = ours != theirs
    if differ.any():
        assert case.scales
        distance = np.abs(ours.astype(int) - theirs)[differ]
        from_half = np.abs(np.abs(case.exact() - np.floor(case.exact())) - 0.5)[differ]
        assert distance.max() == 1
        assert from_half.max() < BOUNDARY
    return int(differ.sum())


@pytest.mark.parametrize("op", ["QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"])
def test_equals_onnxruntime(op: str) -> None:
    rng = random.Random(op)
    cases = [draw(op, rng) for _ in range(CASES)]
    beside_boundary = sum(beside(case, case.ours(), case.theirs()) for case in cases)
    elements = sum(case.ours().size for case in cases)
    print(f"{op}: {elements} elements, {beside_boundary} one unit off and beside a boundary")
    assert beside_boundary <= elements / 1000


@pytest.mark.parametrize("op", ["QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"])
def test_kernels_equal_the_oracle(op: str) -> None:
    emulator_backend()  # skips where it cannot be built
    rng = random.Random(op)
    for _ in range(60):
        case = draw(op, rng)
        y = emulator.emulated(case.ours, kernel="window")()
        np.testing.assert_array_equal(y, case.ours(), strict=True)


@pytest.mark.parametrize("op", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_is_the_exact_value_rounded_once(op: str) -> None:
    rng = random.Random(op)
    for _ in range(100):
        case = draw(op, rng)
        info = np.iinfo(case.x.dtype)
        exact = np.clip(case.exact(), info.min, info.max)
        assert (np.abs(case.ours() - exact) <= 0.5 + 1e-9).all()


def test_pads_that_count_are_real_zeros() -> None:
    x = np.full((1, 1, 2), 200, np.uint8)
    y = quantised.qlinear_average_pool(x, 1.0, 100, 1.0, 0, 3, pads=1, count_include_pad=True)
    assert y.tolist() == [[[67, 67]]]
    y = quantised.qlinear_average_pool(x, 1.0, 100, 1.0, 0, 3, pads=1)
    assert y.tolist() == [[[100, 100]]]


def test_known_difference_overhang_of_ceil_mode() -> None:
    """With count_include_pad ONNX Runtime's QLinear counts the overhang too, as no ONNX does."""
    x = np.full((1, 1, 4), 200, np.uint8)
    attributes = {
        "kernel_shape": [3], "strides": [2], "ceil_mode": 1, "count_include_pad": 1
    }  # fmt: skip
    scales = (np.float32(1), np.uint8(0), np.float32(1), np.uint8(0))
    case = Case("QLinearAveragePool", x, scales, attributes)
    assert case.ours().tolist() == [[[200, 200]]]
    assert case.theirs().tolist() == [[[200, 133]]]


def test_extremes_saturate() -> None:
    x = np.array([[[0, 255]]], np.uint8)
    for scale, expected in ((1e30, 255), (1e-30, 7)):
        y = quantised.qlinear_average_pool(x, scale, 0, 1.0, 7, 2)
        assert y.tolist() == [[[expected]]]
    assert quantised.qlinear_average_pool(x, 1e30, 255, 1.0, 7, 2).tolist() == [[[0]]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("x_scale", "y_scale", "expected"),
    [(1e300, 1e-300, [0, 7, 255]), (1e307, 1.0, [0, 7, 255]), (1e-300, 1e300, [7, 7, 7])],
)
def test_a_ratio_of_scales_beyond_float64_saturates(
    x_scale: float, y_scale: float, expected: list[int]
) -> None:
    x = np.array([[[0, 100, 200]]], np.uint8)
    y = quantised.qlinear_average_pool(x, x_scale, 100, y_scale, 7, 1)
    assert y.tolist() == [[expected]]
    for value, whole in zip(x[0, 0], expected, strict=True):
        plane = np.full((1, 1, 3), value)
        y = quantised.qlinear_global_average_pool(plane, x_scale, 100, y_scale, 7)
        assert y.tolist() == [[[whole]]]


@pytest.mark.parametrize("ratio", [1.0, 1e15, 1e300])
def test_real_zeros_have_a_mean_of_zero_beside_padding(ratio: float) -> None:
    """Also where the number of taps divides neither the sum nor the number of the valid ones."""
    for zero, taps in itertools.product((1, 3, 7, 199), (3, 5, 7, 11, 49)):
        x = np.full((1, 1, 64), zero, np.uint8)
        y = quantised.qlinear_average_pool(
            x, ratio, zero, 1.0, 9, taps, pads=taps - 1, count_include_pad=True
        )
        assert np.unique(y).tolist() == [9]


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.int8)
    assert quantised.qlinear_average_pool(x, 1.0, 0, 1.0, 0, 2).shape == (*shape[:2], 2)
    assert quantised.qlinear_global_average_pool(x, 1.0, 0, 1.0, 0).shape == (*shape[:2], 1)


@pytest.mark.parametrize("op", ["QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"])
@pytest.mark.parametrize("kind", [TORCH, JAX], ids=["torch", "jax"])
def test_arrays_come_back_in_their_kind(op: str, kind: Backend) -> None:
    """Also where JAX holds no float64, in which the mean is taken."""
    rng = random.Random(op)
    for _ in range(20):
        case = draw(op, rng)
        found = replace(case, x=kind.array(case.x)).ours()
        np.testing.assert_array_equal(kind.numpy(found), case.ours(), strict=True)


def test_a_memory_format_is_kept() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    arguments = (0.5, 3, 0.25, 7, 2)
    y = quantised.qlinear_average_pool(x.to(memory_format=torch.channels_last), *arguments)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, quantised.qlinear_average_pool(x, *arguments))


X = np.zeros((1, 1, 4), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[[1]]], 1.0, 0, 1.0, 0), GpupoolTypeError, r"x must be a NumPy.* not builtins\.list"),
        ((X.astype(np.float32), 1.0, 0, 1.0, 0), GpupoolTypeError, "x has dtype float32"),
        ((X, 0.0, 0, 1.0, 0), GpupoolValueError, "x_scale = 0.0 must be finite and greater"),
        ((X, 1.0, 0, np.inf, 0), GpupoolValueError, "y_scale = inf"),
        ((X, 1.0, -1, 1.0, 0), GpupoolValueError, r"x_zero_point = -1 .* 0 \.\. 255"),
        ((X.astype(np.int8), 1.0, 0, 1.0, 128), GpupoolValueError, r"y_zero_point = 128 .*127"),
        ((X, 1.0, 0.0, 1.0, 0), GpupoolTypeError, "x_zero_point must be an integer"),
    ],
)
def test_refuses(arguments: Any, error: type[GpupoolError], message: str) -> None:
    with pytest.raises(error, match=message):
        quantised.qlinear_average_pool(*arguments, 2)
    with pytest.raises(error, match=message):
        quantised.qlinear_global_average_pool(*arguments)


def test_nhwc_max_pool_refuses_what_is_not_8_bit() -> None:
    with pytest.raises(GpupoolTypeError, match="int8 or uint8"):
        quantised.nhwc_max_pool(np.zeros((1, 4, 1), np.float32), 2)
