"""gpupool.torch against torch itself; every difference is a test with its reason."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

from gpupool import max_pool
from gpupool.errors import GpupoolTypeError, GpupoolValueError

torch = pytest.importorskip("torch", reason="torch is not installed")
ours = pytest.importorskip("gpupool.torch")
theirs = torch.nn.functional

SHAPES = {1: (2, 3, 23), 2: (2, 3, 11, 10), 3: (1, 2, 7, 6, 8)}


def close(found, expected):
    """Equal up to the rounding of sums of at most 75 terms, in different orders."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    unit = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(found, expected, rtol=80 * unit, atol=80 * unit, equal_nan=True)


def windows(rng, axes):
    """Draw a window that torch takes too: pads of at most half of it."""
    kernel = [int(k) for k in rng.integers(1, 4, axes)]
    arguments = {
        "kernel_size": kernel,
        "padding": [int(rng.integers(0, k // 2 + 1)) for k in kernel],
        "ceil_mode": bool(rng.integers(2)),
    }
    if rng.integers(2):
        arguments["stride"] = [int(s) for s in rng.integers(1, 4, axes)]
    return arguments


def tensor(rng, axes, dtype=np.float32):
    return torch.from_numpy(rng.standard_normal(SHAPES[axes]).astype(dtype))


# The functions


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_max_pool_is_torch_s_bit_for_bit(axes, seed):
    rng = np.random.default_rng(seed)
    arguments = windows(rng, axes) | {"dilation": int(rng.integers(1, 3))}
    x = torch.from_numpy(rng.integers(0, 9, SHAPES[axes]).astype(np.float32))
    name = f"max_pool{axes}d"
    expected = getattr(theirs, name)(x, return_indices=True, **arguments)
    found = getattr(ours, name)(x, return_indices=True, **arguments)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert torch.equal(getattr(ours, name)(x, **arguments), expected[0])


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("include", [False, True])
def test_avg_pool_is_torch_s(axes, seed, include):
    rng = np.random.default_rng(seed)
    arguments = windows(rng, axes) | {"count_include_pad": include}
    x, name = tensor(rng, axes), f"avg_pool{axes}d"
    close(getattr(ours, name)(x, **arguments), getattr(theirs, name)(x, **arguments))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("p", [2, 4.0])
def test_lp_pool_of_an_even_norm_is_torch_s(axes, p):
    rng = np.random.default_rng(axes)
    arguments = windows(rng, axes) | {"ceil_mode": False}
    del arguments["padding"]
    if axes == 1:
        arguments = {key: np.ravel(value)[0].item() for key, value in arguments.items()}
    x, name = tensor(rng, axes), f"lp_pool{axes}d"
    close(getattr(ours, name)(x, p, **arguments), getattr(theirs, name)(x, float(p), **arguments))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_adaptive_pools_to_one_are_torch_s(axes):
    x = tensor(np.random.default_rng(axes), axes)
    average, maximum = f"adaptive_avg_pool{axes}d", f"adaptive_max_pool{axes}d"
    close(getattr(ours, average)(x, 1), getattr(theirs, average)(x, 1))
    size = (1,) * axes
    expected = getattr(theirs, maximum)(x, size, return_indices=True)
    found = getattr(ours, maximum)(x, size, return_indices=True)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_an_input_without_a_batch(axes):
    x = tensor(np.random.default_rng(axes), axes)[0]
    name = f"max_pool{axes}d"
    expected = getattr(theirs, name)(x, 2, return_indices=True)
    found = getattr(ours, name)(x, 2, return_indices=True)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    with pytest.raises(GpupoolValueError, match="spatial axes"):
        getattr(ours, name)(x[0], 2)


def test_signatures_are_torch_s():
    layers = [torch.nn.MaxPool2d(2), torch.nn.AvgPool1d(2), torch.nn.AvgPool3d(2)]
    layers += [torch.nn.LPPool2d(2, 2), torch.nn.AdaptiveMaxPool2d(1)]
    for layer in layers:
        _, *names = inspect.signature(ours.LAYERS[type(layer)]).parameters
        assert set(names) == set(type(layer).__constants__)
    names = ["input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"]
    assert list(inspect.signature(ours.max_pool2d).parameters) == names
    assert ours.lp_pool3d.__name__ == "lp_pool3d"


# Differences by name


def test_an_odd_norm_takes_magnitudes_where_torch_takes_signs():
    x = torch.tensor([[[-1.0, -1.0]]])
    assert ours.lp_pool1d(x, 1, 2).item() == 2
    assert theirs.lp_pool1d(x, 1.0, 2).item() == -2


def test_a_norm_that_overhangs_is_not_scaled_up():
    x = torch.arange(1.0, 7).reshape(1, 1, 6)
    assert ours.lp_pool1d(x, 1, 3, 2, ceil_mode=True)[0, 0, -1].item() == 11
    assert theirs.lp_pool1d(x, 1.0, 3, 2, ceil_mode=True)[0, 0, -1].item() == 16.5


def test_squares_do_not_overflow():
    x = torch.full((1, 1, 2), 3e20)
    assert ours.lp_pool1d(x, 2, 2).item() == pytest.approx(4.2426e20, rel=1e-4)
    assert torch.isinf(theirs.lp_pool1d(x, 2.0, 2)).item()


def test_pads_above_half_of_the_window_name_no_position():
    y, indices = ours.max_pool1d(torch.ones(1, 1, 2), 2, 2, padding=2, return_indices=True)
    assert indices.tolist() == [[[-1, 0, -1]]]
    with pytest.raises(RuntimeError, match="half"):
        theirs.max_pool1d(torch.ones(1, 1, 2), 2, 2, padding=2)
    assert torch.isinf(y[0, 0, 0])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: ours.avg_pool2d(x, 2, divisor_override=3), GpupoolValueError),
        (lambda x: ours.adaptive_avg_pool2d(x, 7), GpupoolValueError),
        (lambda x: ours.max_pool2d(x, [2, 2, 2]), GpupoolValueError),
        (lambda x: ours.max_pool2d(x, 0), GpupoolValueError),
        (lambda x: ours.max_pool2d(x.requires_grad_(), 2), GpupoolTypeError),
        (lambda x: torch.ops.gpupool.lp_pool(x.requires_grad_(), 2.0, [2, 2], [2, 2], False),
         GpupoolTypeError),
        (ours.patch, GpupoolTypeError),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(call, error):
    with pytest.raises(error):
        call(torch.ones(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ours.max_pool2d(x.numpy(), 2), "input must be a torch tensor, not ndarray"),
        (lambda x: ours.adaptive_avg_pool2d(x.numpy(), 1), "input must be a torch tensor"),
        (lambda x: ours.max_pool2d(x, 2.0), "kernel_size must be an integer"),
        (lambda x: ours.max_pool2d(x, None), "kernel_size must be an integer"),
        (lambda x: ours.max_pool2d(x, 2, "1"), "stride must be an integer"),
        (lambda x: ours.max_pool2d(x, 2, np.array([2, 2])), "stride must be an integer"),
        (lambda x: ours.max_pool2d(x, 2, padding=-1), "padding = -1 is outside"),
        (lambda x: ours.max_pool2d(x, 2, dilation=(1, 0)), "dilation = 0 is outside"),
        (lambda x: ours.max_pool2d(x, 2, ceil_mode="no"), "ceil_mode must be"),
        (lambda x: ours.avg_pool2d(x, 2, count_include_pad=2), "count_include_pad = 2"),
        (lambda x: ours.avg_pool2d(x, 2, divisor_override=3), "= 3 .* allowed: None"),
        (lambda x: ours.lp_pool2d(x, "2", 2), "norm_type must be a number"),
        (lambda x: ours.lp_pool2d(x, 0, 2), "norm_type = 0"),
        (lambda x: ours.adaptive_avg_pool2d(x, (1, 1, 1)), "each of 2 axes"),
        (lambda x: ours.adaptive_max_pool2d(x, (1,)), "each of 2 axes"),
    ],
)
def test_mistakes_are_told_in_torch_s_terms(call, message):
    with pytest.raises((GpupoolTypeError, GpupoolValueError), match=message):
        call(torch.ones(1, 1, 8, 8))


def test_of_several_nan_the_index_is_that_of_the_first():
    x = torch.tensor([[[1, torch.nan, torch.nan, 3]]])
    assert ours.max_pool1d(x, 4, return_indices=True)[1].item() == 1
    assert theirs.max_pool1d(x, 4, return_indices=True)[1].item() == 2


def test_what_torch_takes_for_a_stride_or_a_kernel_is_taken():
    x = torch.randn(1, 2, 9, 9)
    for stride in (None, (), [], torch.Size([])):
        assert torch.equal(ours.max_pool2d(x, 3, stride), theirs.max_pool2d(x, 3))
    assert torch.equal(ours.max_pool2d(x, np.int64(3), (2,)), theirs.max_pool2d(x, 3, 2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_tensor_that_requires_grad_is_taken_where_nothing_is_recorded(mode):
    x = torch.randn(1, 2, 9, 9, requires_grad=True)
    with mode():
        y = ours.max_pool2d(x, 3)
        assert torch.equal(y, theirs.max_pool2d(x, 3))
    assert not y.requires_grad


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("function", [ours.max_pool1d, max_pool], ids=["torch", "plain"])
def test_derivatives_are_refused_forwards_and_backwards(function):
    def total(x):
        return function(x, 2).sum()

    x = torch.randn(1, 2, 6)
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(GpupoolTypeError, match="requires grad"):
            transform(total)(x)
    with pytest.raises(GpupoolTypeError, match=r"has a tangent .* pass (x|input)\.detach"):
        torch.func.jvp(total, (x,), (x,))
    with pytest.raises(GpupoolTypeError, match="has a tangent"):
        torch.func.jacfwd(total)(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(GpupoolTypeError, match="has a tangent"):
            total(dual)
        assert torch.equal(total(dual.detach()), total(x))


# torch.library and torch.compile

SAMPLES = {
    "max_pool": ([3, 2], [2, 2], [1, 0], [1, 2], True),
    "max_pool_with_indices": ([3, 2], [2, 2], [1, 0], [1, 2], False),
    "avg_pool": ([3, 2], [2, 2], [1, 0], True, True),
    "lp_pool": (2.0, [3, 2], [2, 2], False),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name, last):
    assert set(SAMPLES) == set(ours.OPERATORS)
    x = torch.randn(2, 3, 9, 10)
    x = x.to(memory_format=torch.channels_last) if last else x
    torch.library.opcheck(ours.OPERATORS[name], (x, *SAMPLES[name]))


class Stem(torch.nn.Module):
    """The first layers and the head of a residual network as torchvision writes it."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.conv = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layers = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2, ceil_mode=True)
        )
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.maxpool(self.relu(self.norm(self.conv(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


def test_a_patched_model_gives_the_same_output(capsys):
    torch.manual_seed(3)
    model, x = Stem().eval(), torch.randn(2, 3, 61, 64)
    with torch.inference_mode():
        expected = model(x)
        assert ours.patch(model) is model
        assert capsys.readouterr().out.splitlines() == [
            "maxpool: MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)"
            " -> gpupool",
            "layers.2: AvgPool2d(kernel_size=2, stride=2, padding=0) -> gpupool",
            "avgpool: AdaptiveAvgPool2d(output_size=(1, 1)) -> gpupool",
        ]
        assert isinstance(model.maxpool, ours.Pool)
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(GpupoolTypeError, match="inference_mode"):
        model(x)


def test_patch_leaves_what_would_differ(capsys):
    nn = torch.nn
    kept = [
        nn.AvgPool2d(2, divisor_override=3),
        nn.AdaptiveMaxPool2d((7, 7)),
        nn.AdaptiveAvgPool2d((1, None)),
        nn.LPPool2d(1, 2),
        nn.LPPool2d(2, 2, ceil_mode=True),
        nn.MaxPool2d(2),
        nn.FractionalMaxPool2d(2, output_size=3),
    ]
    kept[5].register_forward_hook(lambda *_: None)
    model = ours.patch(nn.Sequential(*kept))
    assert list(model) == kept
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[5].endswith("stays: hooks are registered on it")
    assert all("stays: " in line for line in lines)


def test_patch_takes_a_lone_layer_and_one_that_is_used_twice():
    assert isinstance(ours.patch(torch.nn.MaxPool1d(2)), ours.Pool)
    pool = torch.nn.MaxPool1d(2).eval()
    model = ours.patch(torch.nn.Sequential(pool, torch.nn.Identity(), pool))
    assert all(isinstance(model[i], ours.Pool) and not model[i].training for i in (0, 2))


def test_a_compiled_model_gives_the_same_output():
    torch.manual_seed(5)
    model = ours.patch(Stem().eval())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 3, 61, 64), (3, 3, 40, 52)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), model(x))


def test_the_plain_functions_break_the_graph_and_are_right():
    def forward(x):
        return max_pool(x * 2, 3, strides=2) + 1

    x = torch.randn(2, 3, 17, 18)
    torch.testing.assert_close(torch.compile(forward, backend="eager")(x), forward(x))


def test_the_graph_breaks_before_the_plans_of_other_calls():
    """Dynamo guards each of them where it goes through them: a minute for some thousands."""
    x = torch.randn(2, 3, 17, 18)
    max_pool(x, 2)
    reasons = torch._dynamo.explain(lambda x: max_pool(x * 2, 3))(x).break_reasons
    assert reasons
    assert not [broken for broken in reasons if "disable" not in broken.reason]


def test_a_tensor_alone_does_not_import_the_compiler():
    code = (
        "import sys, torch, gpupool\n"
        "gpupool.max_pool(torch.zeros(1, 1, 4, 4), 2)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_full_graph_is_refused_with_the_way_out():
    whole = torch.compile(lambda x: max_pool(x, 2), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"gpupool\.torch has the operators"):
        whole(torch.randn(1, 1, 4, 4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # torch's own
def test_inductor_takes_the_operators():
    def forward(x):  # nothing that would be compiled as C++, which takes half a minute
        return ours.max_pool2d(x, 3, 2, 1, return_indices=True)

    x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    found, expected = torch.compile(forward, fullgraph=True)(x), forward(x)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
