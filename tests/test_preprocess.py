"""preprocess against the steps it is composed of, in NumPy and by the kernel on the CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupool
from gpupool import cli
from gpupool.planner.preprocess import MAX_CHANNELS
from gpupool.preprocessing import resolve
from tests import emulator
from tests.conftest import cupy_backend, emulator_backend, numpy_backend
from tests.kinds import JAX, TORCH
from tests.strategies import FLOATS, MEMORY, dtype_of
from tests.tolerance import assert_bitwise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(numpy_backend, id="numpy"),
        pytest.param(emulator_backend, id="emulator"),
        pytest.param(cupy_backend, id="cupy", marks=pytest.mark.gpu),
    ],
)
def backend(request):
    return request.param()


def composed(
    images: np.ndarray[Any, Any],
    *,
    pool: tuple[int, int],
    mean: Any,
    std: Any,
    scale: float,
    dtype: str,
    layout: str,
    channel_order: str,
    crop: tuple[int, int] | None,
) -> np.ndarray[Any, Any]:
    """The steps one by one: cut, average_pool, scale, mean, std, round, reorder."""
    if crop:
        height, width = (size * k for size, k in zip(crop, pool, strict=True))
        top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
        images = images[:, top : top + height, left : left + width]
    y = gpupool.average_pool(images, pool, strides=pool, channels_last=True, dtype="float32")
    y = y[..., ::-1] if channel_order == "BGR" else y
    y = (y * np.float32(scale) - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    y = y.astype(dtype_of(dtype))
    return np.moveaxis(y, -1, 1) if layout == "NCHW" else y


def ulps(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Return the greatest distance in units in the last place of ``expected``."""
    info = ml_dtypes.finfo(expected.dtype)
    wide = expected.astype(np.float64)
    _, exponent = np.frexp(wide)
    unit = np.maximum(np.ldexp(float(info.eps), exponent - 1), float(info.smallest_subnormal))
    return float((np.abs(found.astype(np.float64) - wide) / unit).max(initial=0))


@st.composite
def calls(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    pool = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    size = tuple(draw(st.integers(1, 4)) for _ in pool)
    shape = [n * k + draw(st.integers(0, k + 2)) for n, k in zip(size, pool, strict=True)]
    channels = draw(st.integers(1, MAX_CHANNELS))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    images = rng.integers(0, 256, (draw(st.integers(0, 3)), *shape, channels)).astype(np.uint8)
    return MEMORY[draw(st.sampled_from(sorted(MEMORY)))](images), {
        "pool": pool,
        "mean": draw(st.sampled_from((0.0, 0.5, tuple(rng.random(channels).tolist())))),
        "std": draw(st.sampled_from((1, 0.25, tuple((rng.random(channels) + 0.1).tolist())))),
        "scale": draw(st.sampled_from((1 / 255, 1.0, 1 / 127.5))),
        "dtype": draw(st.sampled_from(FLOATS)),
        "layout": draw(st.sampled_from(("NCHW", "NHWC"))),
        "channel_order": draw(st.sampled_from(("RGB", "BGR"))) if channels == 3 else "RGB",
        "crop": size if draw(st.booleans()) else None,
    }


@given(call=calls())
def test_is_its_steps_one_after_the_other(backend, call):
    images, arguments = call
    found = backend.numpy(backend.preprocess(backend.array(images), **arguments))
    expected = composed(images, **arguments)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert ulps(found, expected) <= 1


@pytest.mark.parametrize("other", [TORCH, JAX], ids=lambda other: other.name)
def test_every_kind_comes_back_as_it_came(other):
    images = np.random.default_rng(2).integers(0, 256, (2, 9, 8, 3)).astype(np.uint8)
    arguments = {"pool": 2, "mean": MEAN, "std": STD, "channel_order": "BGR"}
    found = other.numpy(gpupool.preprocess(other.array(images), **arguments))
    assert_bitwise(found, gpupool.preprocess(images, **arguments))


def test_what_is_wrong_with_an_array_is_said_by_its_own_name():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    images, steps = np.zeros((1, 2, 2, 3), np.uint8), {"mean": 0, "std": 1}
    with pytest.raises(gpupool.GpupoolTypeError, match=r"^images is a torch\.sparse_coo tensor"):
        gpupool.preprocess(torch.from_numpy(images).to_sparse(), **steps)
    with pytest.raises(gpupool.GpupoolTypeError, match=r"^images is a numpy .* out a torch"):
        gpupool.preprocess(images, **steps, out=torch.empty(1, 3, 2, 2))


def test_means_are_in_the_order_that_comes_out(backend):
    images = np.zeros((1, 1, 1, 3), np.uint8)
    images[..., :] = 10, 20, 30
    arguments = {"mean": (1, 2, 3), "std": 1, "scale": 1, "dtype": "float32"}
    turned = backend.preprocess(backend.array(images), channel_order="BGR", **arguments)
    assert backend.numpy(turned).ravel().tolist() == [29, 18, 7]


def test_a_number_may_be_an_array_of_no_axes(backend):
    images = backend.array(np.full((1, 2, 2, 3), 3, np.uint8))
    y = backend.preprocess(images, mean=np.array(1), std=np.array(2.0), scale=1, dtype="float32")
    assert (backend.numpy(y) == 1).all()


def test_a_tile_of_any_size_is_averaged_exactly(backend):
    images = np.full((1, 300, 300, 1), 255, np.uint8)
    images[0, 0, 0] = 0
    y = backend.preprocess(backend.array(images), pool=300, mean=0, std=1, scale=1, dtype="float64")
    assert backend.numpy(y).item() == np.float32(255 - 255 / 90000)


def test_out_is_filled(backend):
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    out = backend.array(np.empty((2, 3, 2, 2), np.float16))
    assert backend.preprocess(backend.array(images), pool=2, mean=MEAN, std=STD, out=out) is out
    expected = gpupool.preprocess(images, pool=2, mean=MEAN, std=STD)
    assert_bitwise(backend.numpy(out), expected)


def test_wide_indices_give_the_same():
    images = np.random.default_rng(4).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    arguments = {"pool": 2, "mean": MEAN, "std": STD, "crop": (2, 3)}
    with emulator.constants(**emulator.WIDE):
        found = emulator_backend().preprocess(images, **arguments)
    assert_bitwise(found, gpupool.preprocess(images, **arguments))


BAD = [
    ({}, (2, 4, 4), "uint8", gpupool.GpupoolValueError, "N, H, W, C"),
    ({}, (1, 4, 4, 5), "uint8", gpupool.GpupoolValueError, "C of 1 .. 4"),
    ({"pool": 5}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "at most 0 x 0"),
    ({"pool": 0}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "pool = 0"),
    ({"crop": 5}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "crop = 5 asks more"),
    ({"mean": (1, 2)}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "expected 3"),
    ({"mean": "0.5"}, (1, 4, 4, 3), "uint8", gpupool.GpupoolTypeError, "mean"),
    ({"mean": float("nan")}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "finite"),
    ({"std": 0}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "greater than 0"),
    ({"std": 1e-60}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "as float32"),
    ({"scale": 1e60}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "scale"),
    ({"layout": "CHWN"}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "NCHW, NHWC"),
    ({"channel_order": "GBR"}, (1, 4, 4, 3), "uint8", gpupool.GpupoolValueError, "RGB, BGR"),
    ({"channel_order": "BGR"}, (1, 4, 4, 4), "uint8", gpupool.GpupoolValueError, "expected 3"),
]


@pytest.mark.parametrize(("arguments", "shape", "dtype", "error", "message"), BAD)
def test_bad_input_is_named(arguments, shape, dtype, error, message):
    with pytest.raises(error, match=message):
        resolve(shape, dtype, **({"mean": 0, "std": 1} | arguments))


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", "complex32"])
def test_images_of_another_dtype_are_refused_in_one_way(dtype):
    with pytest.raises(
        gpupool.GpupoolTypeError, match=rf"^images has dtype {dtype}, expected uint8$"
    ):
        resolve((1, 4, 4, 3), dtype, mean=0, std=1)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("int8", "must be a float dtype: "),
        ("uint8", "must be a float dtype: "),
        ("complex64", "is not supported; allowed: "),
    ],
)
def test_a_result_of_another_dtype_is_refused_with_those_allowed(dtype, message):
    allowed = ", ".join(FLOATS)
    with pytest.raises(gpupool.GpupoolTypeError, match=f"^dtype = {dtype} {message}{allowed}$"):
        resolve((1, 4, 4, 3), "uint8", mean=0, std=1, dtype=dtype)


# The command on a folder of images

MODES = ("RGB", "L", "RGBA", "LA", "P", "1")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return a folder of 24 images of many sizes and modes, a broken one, and a grey of 16 bits."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(6)
    for i in range(24):
        height, width = (int(n) for n in rng.integers(40, 90, 2))
        mode = MODES[i % 6]
        image = pillow.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))
        ending = ("jpg", "png", "webp", "tiff")[i // 6] if mode == "RGB" else "png"
        image.convert(mode).save(folder / f"{i:02d}.{ending}")
    whole = (folder / "00.jpg").read_bytes()
    (folder / "50.jpg").write_bytes(whole[: len(whole) // 3])
    pillow.fromarray(np.zeros((50, 50), np.uint16)).save(folder / "60.png")
    return folder


def command(*arguments: Any) -> int:
    return cli.main(["preprocess", *map(str, arguments), "--device", "cpu"])


NORMALISED = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")


def test_a_folder_becomes_one_array(pictures, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    out, names = tmp_path / "out.npy", tmp_path / "names.txt"
    options = ("--pool", 4, "--crop", "10,9", "--names", names, "--threads", 2)
    assert command(pictures, out, *options, *NORMALISED) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "50.jpg: not a readable image" in lines[0]
    assert "60.png: grey of 16 bits" in lines[1]
    assert lines[2].startswith(f"24 of 26 images in {out} on the CPU, 24x3x10x9 float16")
    assert lines[2].endswith("images/s")
    rows, named = np.load(out), names.read_text().split()
    assert len(rows) == len(named) == 24
    for row, name in zip(rows, named, strict=True):
        pixels = np.asarray(pillow.open(pictures / name).convert("RGB"))[None]
        steps = {"pool": (4, 4), "crop": (10, 9), "mean": MEAN, "std": STD, "scale": 1 / 255}
        expected = composed(pixels, dtype="float16", layout="NCHW", channel_order="RGB", **steps)
        assert ulps(row, expected[0]) <= 1


def test_numbers_may_begin_with_a_minus(pictures, tmp_path):
    mine, joined = tmp_path / "mine.npy", tmp_path / "joined.npy"
    options = ("--std", 1, "--crop", "10,9", "--force")
    for numbers in ("-1,.5,-1e-3", "-1e-3", "-1E2,0,0"):
        command(pictures, mine, "--mean", numbers, *options)
        command(pictures, joined, f"--mean={numbers}", *options)
        np.testing.assert_array_equal(np.load(mine), np.load(joined))


def test_images_of_other_sizes_are_named_without_a_crop(pictures, tmp_path, capsys):
    options = ("--mean", 0, "--std", 1, "--dtype", "float32", "--layout", "NHWC")
    assert command(pictures, tmp_path / "out.npy", *options) == 1
    assert "--crop makes them equal" in capsys.readouterr().err
    assert np.load(tmp_path / "out.npy").shape[0] == 1


@pytest.mark.parametrize(
    ("target", "options", "status", "message"),
    [
        ("out.npy", ("--crop", 500), 1, "no image could be preprocessed"),
        ("out.npy", ("--threads", 0), 2, "threads = 0"),
        ("out.npy", ("--pool", 0), 1, "pool = 0"),
        ("out.npy", ("--dtype", "int8"), 1, "float dtype"),
        ("out.png", (), 2, "OUT must end in .npy, not out.png"),
        ("taken.npy", (), 1, "exists already"),
        ("out.npy", ("--names", "./out.npy"), 2, "--names and OUT name the same file"),
    ],
)
def test_a_command_that_cannot_succeed_writes_nothing(
    pictures, tmp_path, monkeypatch, capsys, target, options, status, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.npy").write_bytes(b"mine")
    assert command(pictures, target, *options, *NORMALISED) == status
    assert message in capsys.readouterr().err
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("taken.npy", b"mine")
    ]


def test_a_folder_without_images_is_refused(tmp_path, capsys):
    assert command(tmp_path, tmp_path / "out.npy", *NORMALISED) == 1
    assert "holds no image" in capsys.readouterr().err


def test_the_benchmark_compares_with_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from bench import preprocess

    row = preprocess.measure(torch, (1, 12, 16, 3), 2, "cpu")
    assert min(row["gpupool"], row["torch"]) > 0
