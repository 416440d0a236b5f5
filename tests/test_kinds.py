"""Arrays of torch and JAX: the same results as NumPy, in the same kind, without copies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import gpupool
from gpupool import interchange
from tests import strategies
from tests.conftest import numpy_backend
from tests.kinds import BFLOAT16, JAX, TORCH, from_torch, to_torch
from tests.tolerance import assert_bitwise

NUMPY = numpy_backend()
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "uint8")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def jax():
    found = pytest.importorskip("jax", reason="JAX is not installed")
    with found.enable_x64(True):
        yield found


def assert_same(case, backend):
    expected, found = case.run(NUMPY), case.run(backend)
    assert len(expected) == len(found)
    for mine, theirs in zip(expected, found, strict=True):
        assert_bitwise(theirs, mine)


# torch


@pytest.mark.usefixtures("torch")
@given(case=strategies.calls())
def test_torch_tensors_give_what_numpy_arrays_give(case):
    assert_same(case, TORCH)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_viewed_and_not_copied(torch, dtype, monkeypatch):
    seen = []
    run = gpupool.oracle.run
    monkeypatch.setattr(
        gpupool.oracle, "run", lambda *args: (seen.append((args[1], args[2])), run(*args))[1]
    )
    x = torch.ones(2, 3, 8, 8).to(getattr(torch, dtype))
    y = gpupool.max_pool(x, 2)
    ((inputs, outputs),) = seen
    assert gpupool.arrays.pointer(inputs[0]) == x.data_ptr()
    assert gpupool.arrays.pointer(outputs[0]) == y.data_ptr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize("function", ["max_pool", "average_pool", "global_average_pool"])
def test_a_memory_format_is_kept(torch, dtype, rank, function):
    last = torch.channels_last if rank == 4 else torch.channels_last_3d
    x = torch.randn((2, 3, 6, 7, 5)[:rank]).to(getattr(torch, dtype))
    arguments = () if function.startswith("global") else (3,)
    call = getattr(gpupool, function)
    y = call(x.to(memory_format=last), *arguments)
    assert y.is_contiguous(memory_format=last)
    assert torch.equal(y, call(x, *arguments))


def test_a_memory_format_does_not_renumber_indices(torch):
    x = torch.randn(2, 3, 6, 7)
    last = x.to(memory_format=torch.channels_last)
    y, indices = gpupool.max_pool(last, 2, strides=2, return_indices=True)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert indices.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x.flatten()[indices.flatten()], y.flatten())
    back = gpupool.max_unpool(y, indices, 2, strides=2, output_shape=x.shape)
    assert back.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(
        back, gpupool.max_unpool(y.contiguous(), indices, 2, strides=2, output_shape=x.shape)
    )


def test_regions_of_a_channels_last_tensor(torch):
    x = torch.randn(2, 3, 8, 8)
    rois = torch.tensor([[0.0, 0, 0, 7, 7], [1, 2, 2, 5, 6]])
    last = gpupool.max_roi_pool(x.to(memory_format=torch.channels_last), rois, 2)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, gpupool.max_roi_pool(x, rois, 2))


@pytest.mark.parametrize("last", [False, True])
def test_out_is_filled_and_returned(torch, last):
    x = torch.randn(2, 3, 6, 7)
    x = x.to(memory_format=torch.channels_last) if last else x
    out, positions = torch.empty(2, 3, 5, 6), torch.empty(2, 3, 5, 6, dtype=torch.int64)
    assert gpupool.average_pool(x, 2, out=out) is out
    assert torch.equal(out, gpupool.average_pool(x, 2))
    both = gpupool.max_pool(x, 2, return_indices=True, out=(out, positions))
    assert both[0] is out
    assert both[1] is positions
    assert torch.equal(x.contiguous().flatten()[positions.flatten()], out.flatten())


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_a_dtype_may_be_that_of_torch(torch, name):
    own = getattr(torch, name)
    assert gpupool.plan("max", (1, 1, 8), own, kernel_shape=3).problem.dtype.name == name
    pixels = np.zeros((1, 4, 4, 3), np.uint8)
    assert gpupool.average_pool(pixels, 2, channels_last=True, dtype=own).dtype.name == name
    assert gpupool.preprocess(pixels, mean=0, std=1, dtype=own).dtype.name == name


def test_indices_may_have_a_dtype_of_torch(torch):
    tensor = torch.zeros(1, 1, 4)
    _, found = gpupool.max_pool(tensor, 2, return_indices=True, index_dtype=torch.int32)
    assert found.dtype is torch.int32
    with pytest.raises(gpupool.GpupoolValueError, match=r"^index_dtype = 'int16' must be one"):
        gpupool.max_pool(tensor, 2, return_indices=True, index_dtype=torch.int16)


@pytest.mark.parametrize("name", ["int32", "complex64", "float8_e5m2"])
def test_a_dtype_of_torch_outside_the_table_is_refused(torch, name):
    with pytest.raises(gpupool.GpupoolTypeError, match=rf"^dtype of x = .*{name} is not .*allowed"):
        gpupool.plan("max", (1, 1, 8), getattr(torch, name), kernel_shape=3)


def test_a_plan_is_called_on_tensors(torch):
    planned = gpupool.plan("max", (1, 1, 4), "float64", kernel_shape=2)
    x = torch.tensor([[[1.0, 3, 2, 0]]], dtype=torch.float64)
    assert planned(x).tolist() == [[[3, 3, 2]]]
    with pytest.raises(gpupool.GpupoolValueError, match="the plan is for"):
        planned(x.float())


def test_a_plan_checks_positions_of_tensors_on_the_cpu(torch):
    planned = gpupool.plan("MaxUnpool", (1, 1, 2), "float32", kernel_shape=2, strides=2)
    with pytest.raises(gpupool.GpupoolValueError, match="allowed are 0"):
        planned(torch.ones(1, 1, 2), torch.tensor([[[0, 4]]]))


def sparse(torch):
    return torch.ones(1, 1, 4).to_sparse()


REFUSED = {
    "gradients": (lambda torch: torch.ones(1, 1, 4, requires_grad=True), "inference_mode"),
    "parameters": (lambda torch: torch.nn.Parameter(torch.ones(1, 1, 4)), "requires grad"),
    "sparse": (sparse, "sparse_coo"),
    "abstract": (lambda torch: torch.ones(1, 1, 4, device="meta"), "on meta"),
    "negated": (lambda torch: torch.ones(1, 1, 4).mul(1j).conj().imag, "negated"),
    "another dtype": (lambda torch: torch.ones(1, 1, 4, dtype=torch.int32), "allowed: float64"),
    "no dtype of NumPy's": (
        lambda torch: torch.ones(1, 1, 4).to(torch.complex32),
        "complex32.*allowed: float64",
    ),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_tensors_that_are_no_plain_values_are_refused(torch, what):
    make, message = REFUSED[what]
    with pytest.raises(gpupool.GpupoolTypeError, match=message):
        gpupool.max_pool(make(torch), 2)


def test_an_input_after_x_is_refused_by_its_name(torch):
    rois, images = torch.tensor([[0.0, 0, 3, 3]]), torch.tensor([0])
    for inputs, message in (
        ((rois.to_sparse(), images), "^rois is a torch.sparse_coo tensor"),
        ((rois, images.to_sparse()), "^batch_indices is a torch.sparse_coo tensor"),
        ((rois.clone().requires_grad_(), images), "^rois requires grad"),
    ):
        with pytest.raises(gpupool.GpupoolTypeError, match=message):
            gpupool.roi_align(torch.ones(1, 1, 4, 4), *inputs)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_gradients_matter_only_where_they_are_recorded(torch, mode):
    x = torch.nn.Parameter(torch.randn(1, 1, 4))
    out = torch.empty(1, 1, 3, requires_grad=True)
    with getattr(torch, mode)():
        y = gpupool.max_pool(x, 2, out=out)
        assert y is out
        assert torch.equal(y, torch.nn.functional.max_pool1d(x, 2, 1))
        assert not gpupool.max_pool(x, 2).requires_grad


def test_tensors_without_values_are_refused(torch):
    subclasses = pytest.importorskip("torch._subclasses.fake_tensor")
    with subclasses.FakeTensorMode():
        fake = torch.empty(1, 1, 4)
    with pytest.raises(gpupool.GpupoolTypeError, match=r"FakeTensor has no values.*gpupool\.torch"):
        gpupool.max_pool(fake, 2)
    with pytest.raises(gpupool.GpupoolTypeError, match="no values"):
        torch.vmap(lambda row: gpupool.max_pool(row[None], 2)[0])(torch.ones(3, 1, 4))


def test_kinds_do_not_mix(torch, jax):
    x = np.ones((1, 1, 4), np.float32)
    with pytest.raises(gpupool.GpupoolTypeError, match="numpy array and out a torch"):
        gpupool.max_pool(x, 1, out=torch.ones(1, 1, 4))
    with pytest.raises(gpupool.GpupoolTypeError, match="torch array and out a numpy"):
        gpupool.max_pool(torch.ones(1, 1, 4), 1, out=x)
    with pytest.raises(gpupool.GpupoolTypeError, match="jax array and indices a numpy"):
        gpupool.max_unpool(jax.numpy.ones((1, 1, 2)), np.zeros((1, 1, 2), np.int64), 2)


def test_out_of_a_tensor_is_judged_like_any(torch):
    x = torch.ones(1, 1, 4)
    for out, error in (
        (torch.ones(1, 1, 3), gpupool.GpupoolValueError),
        (torch.ones(1, 1, 4, dtype=torch.float64), gpupool.GpupoolTypeError),
        (x, gpupool.GpupoolValueError),
        (torch.ones(1, 1, 4, requires_grad=True), gpupool.GpupoolTypeError),
    ):
        with pytest.raises(error, match="out"):
            gpupool.max_pool(x, 1, out=out)


def test_a_tensor_obeys_gpupool_max_bytes(torch, monkeypatch):
    monkeypatch.setenv("GPUPOOL_MAX_BYTES", "8")
    with pytest.raises(gpupool.GpupoolMemoryError):
        gpupool.max_pool(torch.ones(1, 1, 4), 1)


# JAX


@given(case=strategies.calls())
def test_jax_arrays_give_what_numpy_arrays_give(case):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    with jax.enable_x64(True):
        assert_same(case, JAX)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_jax_array_is_neither_copied_nor_written(jax, dtype, monkeypatch):
    seen = []
    run = gpupool.oracle.run
    monkeypatch.setattr(
        gpupool.oracle, "run", lambda *args: (seen.append((args[1], args[2])), run(*args))[1]
    )
    x = jax.numpy.ones((2, 3, 8, 8), dtype)
    y = gpupool.max_pool(x, 2)
    ((inputs, outputs),) = seen
    assert gpupool.arrays.pointer(inputs[0]) == x.unsafe_buffer_pointer()
    assert not inputs[0].flags.writeable
    assert gpupool.arrays.pointer(outputs[0]) == y.unsafe_buffer_pointer()
    assert y.devices() == x.devices()


def test_jax_has_no_out(jax):
    x = jax.numpy.ones((1, 1, 4))
    with pytest.raises(gpupool.GpupoolTypeError, match="immutable"):
        gpupool.max_pool(x, 1, out=x)


def test_traced_values_are_refused(jax):
    with pytest.raises(gpupool.GpupoolTypeError, match=r"outside jax\.jit"):
        jax.jit(lambda x: gpupool.max_pool(x, 2))(jax.numpy.ones((1, 1, 4)))


def test_indices_need_64_bits_in_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    with (
        jax.enable_x64(False),
        pytest.raises(
            gpupool.GpupoolValueError, match=r'jax_enable_x64.*; index_dtype="int32" does'
        ),
    ):
        gpupool.max_pool(jax.numpy.ones((1, 1, 4)), 2, return_indices=True)


def test_indices_of_32_bits_need_no_64_in_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    with jax.enable_x64(False):
        x = jax.numpy.ones((1, 1, 4))
        _, found = gpupool.max_pool(x, 2, return_indices=True, index_dtype="int32")
    assert found.dtype == np.int32


# Both


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_arrays_of_two_devices_are_refused(kind, request):
    library = request.getfixturevalue(kind)

    class Array:
        """What is asked of an array on a GPU that this machine need not have."""

        requires_grad = is_quantized = False
        is_fully_addressable = True
        layout = getattr(library, "strided", None)

        def __init__(self, number):
            self.device = library.device("cuda", number) if kind == "torch" else None
            self.devices = lambda: {f"cuda:{number}"}

        def is_neg(self):
            return False

    message = "^images is on .*cuda:0.* and out on .*cuda:1.*: use one device$"
    with pytest.raises(gpupool.GpupoolTypeError, match=message):
        interchange.LIBRARIES[kind].check("out", Array(1), "images", Array(0))


def test_nothing_is_imported_that_the_caller_has_not():
    probe = (
        "import sys, numpy as np, gpupool;"
        "loaded = {'numpy.ma'} & set(sys.modules);"
        "gpupool.max_pool(np.ones((1, 1, 4)), 2);"
        "print({'torch', 'jax', 'cupy', 'numpy.ma'} & set(sys.modules) - loaded)"
    )
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_lines_of_the_readme_run(library, capsys):
    pytest.importorskip(library, reason=f"{library} is not installed")
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    chosen = [block for block in blocks if library in block]
    assert chosen
    exec("\n".join(chosen), {})
    printed = capsys.readouterr().out
    assert ("-> gpupool" in printed) == (library == "torch")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_tensors_stay_on_their_device_and_stream(torch, dtype):
    if not torch.cuda.is_available() or not gpupool.gpu_available():
        pytest.skip("torch sees no CUDA device")
    rng = np.random.default_rng(7)
    x = rng.integers(0, 50, (2, 3, 40, 40)).astype(BFLOAT16 if dtype == "bfloat16" else dtype)
    expected = gpupool.max_pool(x, 3, strides=2, return_indices=True)
    tensor = to_torch(x).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = gpupool.max_pool(tensor, 3, strides=2, return_indices=True)
        last = gpupool.max_pool(tensor.to(memory_format=torch.channels_last), 3, strides=2)
    stream.synchronize()
    assert last.is_contiguous(memory_format=torch.channels_last)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.device == tensor.device
        assert_bitwise(from_torch(mine.cpu()), theirs)
    assert_bitwise(from_torch(last.contiguous().cpu()), expected[0])
