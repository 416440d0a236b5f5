"""The command, on real files: what it writes, what it says, and its exit status."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import gpupool
from gpupool import cli, device, files, images, terminal

PIL = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).parent.parent
PHOTO = ROOT / "tests" / "data" / "astronaut.png"


@pytest.fixture
def gpupool_(monkeypatch, tmp_path, capsys):
    """Run a command line in an empty folder; give its exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        try:
            status = cli.main([str(arg) for arg in argv])
        except SystemExit as exit_:
            status = exit_.code
        said = capsys.readouterr()
        return SimpleNamespace(status=status, out=said.out, err=said.err)

    return run


@pytest.fixture
def x(tmp_path):
    array = np.random.default_rng(3).standard_normal((2, 3, 8, 10)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    return array


def save_image(path, pixels):
    with Path(path).open("wb") as file:
        pixels = pixels.reshape(1, *pixels.shape[:2], -1)
        images.write(file, images.Picture(pixels), images.format_for(Path(path), pixels))


def noise(height, width):
    return np.random.default_rng(5).integers(0, 256, (height, width), np.uint8)


def refused(result, status, *texts):
    """Whether a command ended in one line on stderr that says all of ``texts``."""
    assert result.status == status
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("gpupool: error: ")
    for text in texts:
        assert text in lines[0]
    return True


# Images


def test_the_photograph_is_pooled(gpupool_):
    result = gpupool_("pool", PHOTO, "y.png", "--op", "max", "--kernel", 4, "--stride", 4)
    assert result.status == 0
    blocks = images.read(PHOTO).pixels.reshape(128, 4, 128, 4, 3)
    np.testing.assert_array_equal(images.read(Path("y.png")).pixels[0], blocks.max((1, 3)))


def test_the_report_says_device_shapes_time_and_speed(gpupool_):
    result = gpupool_(
        "pool", PHOTO, "y.png", "--op", "max", "--kernel", 4, "--stride", 4, "--device", "cpu"
    )
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("astronaut.png: MaxPool on the CPU")
    assert "1x512x512x3 uint8 -> 1x128x128x3 uint8, " in line
    assert " ms, " in line
    assert line.endswith(" MB/s")


@pytest.mark.parametrize("op", ["average", "AveragePool", "global-max", "GlobalAveragePool"])
def test_an_image_is_pooled_in_its_own_integers(gpupool_, op):
    attributes = {} if "lobal" in op else {"kernel_shape": 3, "strides": 2, "pads": 1}
    options = [] if "lobal" in op else ["--kernel", "3,3", "--stride", 2, "--pad", "1,1,1,1"]
    assert gpupool_("pool", PHOTO, "y.png", "--op", op, *options).status == 0
    photo = images.read(PHOTO).pixels
    expected = cli.POOLS[cli.operator(op)](photo, channels_last=True, **attributes)
    np.testing.assert_array_equal(images.read(Path("y.png")).pixels, expected)


@pytest.mark.parametrize(("op", "options"), [("lp", ["--kernel", 2]), ("global-lp", [])])
def test_lp_of_an_image_is_float64_rounded_half_to_even_and_saturated(gpupool_, op, options):
    pixels = np.array([[3, 4, 0], [0, 0, 250]], np.uint8)
    save_image("x.png", pixels)
    assert gpupool_("pool", "x.png", "y.png", "--op", op, *options, "--p", 2).status == 0
    y = images.read(Path("y.png")).pixels[0, ..., 0]
    assert y.tolist() == ([[5, 250]] if op == "lp" else [[250]])
    pixels[:] = 255
    save_image("x.png", pixels)
    assert gpupool_("pool", "x.png", "z.png", "--op", op, *options).status == 0
    assert (images.read(Path("z.png")).pixels == 255).all()


@pytest.mark.parametrize("op", ["max", "average", "lp"])
def test_16_bit_grey_goes_through_float64_and_back(gpupool_, op):
    pixels = np.random.default_rng(5).integers(0, 2**16, (9, 12), np.uint16)
    save_image("x.png", pixels)
    for name in ("y.png", "y.tif"):
        assert gpupool_("pool", "x.png", name, "--op", op, "--kernel", 3, "--stride", 3).status == 0
        y = images.read(Path(name)).pixels
        assert y.dtype == np.uint16
        blocks = pixels.reshape(3, 3, 4, 3).astype(float)
        exact = {
            "max": blocks.max((1, 3)),
            "average": blocks.mean((1, 3)),
            "lp": np.minimum(np.sqrt((blocks**2).sum((1, 3))), 65535),
        }[op]
        np.testing.assert_array_equal(y[0, ..., 0], np.rint(exact))


def test_16_bit_grey_rounds_a_half_to_the_even_neighbour(gpupool_):
    save_image("x.png", np.array([[1, 2, 3]], np.uint16))
    assert gpupool_("pool", "x.png", "y.png", "--op", "average", "--kernel", "1,2").status == 0
    assert images.read(Path("y.png")).pixels[0, 0, :, 0].tolist() == [2, 2]  # 1.5 and 2.5
    rows = np.full((300, 300), 65534, np.uint16)
    rows[1::2] = 65535
    save_image("rows.png", rows)
    options = ("--op", "average", "--kernel", 100, "--stride", 100)
    assert gpupool_("pool", "rows.png", "z.png", *options).status == 0
    assert (images.read(Path("z.png")).pixels == 65534).all()


def test_alpha_is_pooled_as_a_channel(gpupool_):
    pixels = np.random.default_rng(6).integers(0, 256, (8, 8, 4), np.uint8)
    save_image("x.png", pixels)
    assert (
        gpupool_("pool", "x.png", "y.webp", "--op", "max", "--kernel", 2, "--stride", 2).status == 0
    )
    expected = pixels.reshape(4, 2, 4, 2, 4).max((1, 3))
    np.testing.assert_array_equal(images.read(Path("y.webp")).pixels[0], expected)


def test_alpha_is_refused_for_jpeg(gpupool_):
    save_image("x.png", np.zeros((8, 8, 4), np.uint8))
    result = gpupool_("pool", "x.png", "y.jpg", "--op", "max", "--kernel", 2)
    assert refused(result, 1, "y.jpg", "JPEG cannot hold colour with an alpha channel")
    assert not Path("y.jpg").exists()


@pytest.mark.parametrize(
    ("target", "width", "limit", "able"),
    [("y.webp", 2**14, 16383, "PNG, JPEG, TIFF"), ("y.jpg", 65501, 65500, "PNG, TIFF")],
)
def test_an_image_too_wide_for_its_format_is_refused(gpupool_, target, width, limit, able):
    save_image("x.png", noise(1, width))
    call = ("pool", "x.png", target, "--op", "max", "--kernel", "1,2", "--indices", "i.npy")
    result = gpupool_(*call, "--pad", "0,1,0,0")
    form = images.FORMATS[Path(target).suffix].name
    assert refused(
        result,
        1,
        f"{target}: {form} cannot hold {width} x 1 pixels, only up to {limit} along a side; "
        f"these can: {able}",
    )
    assert [path.name for path in Path().iterdir()] == ["x.png"]
    assert gpupool_(*call).status == 0  # one pixel less


def test_indices_of_an_image_are_positions_in_it(gpupool_):
    argv = ("--op", "max", "--kernel", 64, "--stride", 64, "--indices", "i.npy")
    assert gpupool_("pool", PHOTO, "y.png", *argv).status == 0
    photo, indices = images.read(PHOTO).pixels, np.load("i.npy")
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(images.read(Path("y.png")).pixels, photo.ravel()[indices])


# Arrays


@pytest.mark.parametrize(
    ("argv", "function", "attributes"),
    [
        (["--op", "max", "--kernel", "3"], gpupool.max_pool, {"kernel_shape": 3}),
        (
            ["--op", "MaxPool", "--kernel", "3,2", "--stride", "2,1", "--pad", "1,0,1,1",
             "--dilation", "2", "--ceil"],
            gpupool.max_pool,
            {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": 2,
             "ceil_mode": True},
        ),
        (
            ["--op", "average", "--kernel", "2", "--pad", "1", "--include-pad"],
            gpupool.average_pool,
            {"kernel_shape": 2, "pads": 1, "count_include_pad": True},
        ),
        (
            ["--op", "lp", "--kernel", "2", "--p", "3", "--auto-pad", "same-lower"],
            gpupool.lp_pool,
            {"kernel_shape": 2, "p": 3, "auto_pad": "SAME_LOWER"},
        ),
        (["--op", "global-lp", "--p", "1.5"], gpupool.global_lp_pool, {"p": 1.5}),
        (["--op", "global-average"], gpupool.global_average_pool, {}),
        (["--op", "GlobalMaxPool"], gpupool.global_max_pool, {}),
    ],
)  # fmt: skip
def test_options_are_attributes(gpupool_, x, argv, function, attributes):
    assert gpupool_("pool", "x.npy", "y.npy", *argv).status == 0
    expected = function(x, **attributes)
    y = np.load("y.npy")
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)


def test_indices_are_written(gpupool_, x):
    argv = ("--op", "max", "--kernel", "2", "--indices", "i.npy")
    assert gpupool_("pool", "x.npy", "y.npy", *argv).status == 0
    np.testing.assert_array_equal(np.load("y.npy"), x.ravel()[np.load("i.npy")])


def test_dtype_of_an_average_of_bytes(gpupool_):
    np.save("x.npy", np.array([[[1, 2]]], np.uint8))
    argv = ("--op", "average", "--kernel", "2", "--dtype", "float16")
    assert gpupool_("pool", "x.npy", "y.npy", *argv).status == 0
    assert np.load("y.npy").tolist() == [[[1.5]]]
    assert np.load("y.npy").dtype == np.float16


@pytest.mark.parametrize("op", ["max", "average"])
def test_bfloat16_goes_in_and_out(gpupool_, op):
    x = np.arange(8, dtype=ml_dtypes.bfloat16).reshape(1, 1, 8)
    np.save("x.npy", x)
    argv = ("pool", "x.npy", "y.npy", "--op", op, "--kernel", "2")
    assert refused(gpupool_(*argv), 1, "x.npy", "--dtype bfloat16")
    assert gpupool_(*argv, "--dtype", "bfloat16").status == 0
    y = np.load("y.npy").view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(y, cli.POOLS[cli.operator(op)](x, 2))


def npy_header(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape},)}}\n".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header


BAD_NPY = {
    "object dtype": (np.array([None, 1]), "Python objects"),
    "truncated": (npy_header(3) + bytes(11), "greater than file size"),
    "header larger than the file": (npy_header(2**40), "greater than file size"),
    "not a .npy file": (b"hello", "not a .npy file"),
}


@pytest.mark.parametrize(("content", "text"), BAD_NPY.values(), ids=BAD_NPY)
def test_bad_npy_is_one_line_that_names_the_file(gpupool_, content, text):
    """bad-inputs.md: .npy with object dtype, header larger than the file, truncated."""
    if isinstance(content, bytes):
        Path("bad.npy").write_bytes(content)
    else:
        np.save("bad.npy", content, allow_pickle=True)
    result = gpupool_("pool", "bad.npy", "y.npy", "--op", "max", "--kernel", "2")
    assert refused(result, 1, "bad.npy", text)
    assert os.listdir() == ["bad.npy"]  # noqa: PTH208 - names, not paths


def test_not_an_image_and_image_bomb_are_one_line_that_names_the_file(gpupool_, monkeypatch):
    """bad-inputs.md: not an image; image bomb."""
    Path("bad.png").write_bytes(b"hello")
    argv = ("y.png", "--op", "max", "--kernel", "2")
    assert refused(gpupool_("pool", "bad.png", *argv), 1, "bad.png: not an image")
    monkeypatch.setattr(PIL, "MAX_IMAGE_PIXELS", 10)
    assert refused(gpupool_("pool", PHOTO, *argv), 1, "astronaut.png", "262144 pixels")


def test_output_path_exists_is_refused_without_force(gpupool_, x):
    """bad-inputs.md: output path exists."""
    Path("y.npy").write_bytes(b"old")
    argv = ("pool", "x.npy", "y.npy", "--op", "max", "--kernel", "2")
    assert refused(gpupool_(*argv), 1, "y.npy: exists already; --force replaces it")
    assert Path("y.npy").read_bytes() == b"old"
    assert gpupool_(*argv, "--force").status == 0
    assert np.load("y.npy").shape == (2, 3, 7, 9)
    assert refused(gpupool_(*argv, "--indices", "x.npy"), 1, "exists already")
    np.testing.assert_array_equal(np.load("x.npy"), x)


@pytest.mark.usefixtures("x")
def test_a_failure_leaves_neither_output_nor_indices(gpupool_):
    """bad-inputs.md: an output file appears whole or not at all."""
    argv = ("--op", "max", "--kernel", "99", "--indices", "i.npy")
    result = gpupool_("pool", "x.npy", "y.npy", *argv)
    assert refused(result, 1, "the window is larger than the padded input")
    assert os.listdir() == ["x.npy"]  # noqa: PTH208 - names, not paths


def test_names_with_control_characters_are_printed_escaped(gpupool_):
    """bad-inputs.md: model or file names with control characters."""
    name = "a\x1b[31m\n\x07.png"
    result = gpupool_("pool", name, "y.png", "--op", "max", "--kernel", "2")
    assert refused(result, 1, r"a\x1b[31m\n\x07.png: No such file or directory")
    assert refused(gpupool_("pool", "a.png", "y.png", "--op", name), 2, r"\x1b[31m")
    assert refused(gpupool_("pool", "--op", "max", "a.png", "y.png", name), 2, r"\x1b[31m\n\x07")
    save_image(name, np.zeros((4, 4), np.uint8))
    result = gpupool_("pool", name, "y.png", "--op", "max", "--kernel", "2")
    assert result.status == 0
    assert result.err.startswith(r"a\x1b[31m\n\x07.png: MaxPool on")


# Folders


def test_a_folder_is_pooled_one_failure_named_and_the_rest_done(gpupool_):
    Path("in").mkdir()
    rng = np.random.default_rng(8)
    for name in ("a.png", "b.jpg", "d.webp", "small.tif"):
        size = (2, 2, 3) if name == "small.tif" else (8, 8, 3)
        save_image(f"in/{name}", rng.integers(0, 256, size, np.uint8))
    Path("in/c.png").write_bytes(b"not an image")
    Path("in/notes.txt").write_text("left alone")
    Path("in/.hidden.png").write_bytes(b"")
    Path("in/sub.png").mkdir()
    Path("in/gone.png").symlink_to("nowhere.png")
    result = gpupool_("pool", "in", "out", "--op", "max", "--kernel", "4")
    assert result.status == 1
    assert sorted(path.name for path in Path("out").iterdir()) == ["a.png", "b.jpg", "d.webp"]
    errors = [line for line in result.err.splitlines() if "error" in line]
    assert len(errors) == 3
    assert "c.png: not an image" in errors[0]
    assert "gone.png: No such file" in errors[1]
    assert "small.tif: the window is larger" in errors[2]
    last = result.err.splitlines()[-1]
    assert last == "3 of 6 images pooled into out; 2 other entries left alone"


def test_a_folder_of_good_images_succeeds(gpupool_):
    Path("in").mkdir()
    save_image("in/a.png", np.zeros((8, 8), np.uint8))
    assert gpupool_("pool", "in", "out", "--op", "global-max").status == 0
    again = gpupool_("pool", "in", "out", "--op", "global-max")
    assert again.status == 1
    assert "a.png: exists already" in again.err
    assert gpupool_("pool", "in", "out", "--op", "global-max", "--force").status == 0


def test_a_folder_in_which_nothing_could_be_written_goes_again(gpupool_):
    Path("in").mkdir()
    Path("in/a.png").write_bytes(b"not an image")
    assert gpupool_("pool", "in", "out", "--op", "global-max").status == 1
    assert not Path("out").exists()
    Path("mine").mkdir()
    assert gpupool_("pool", "in", "mine", "--op", "global-max").status == 1
    assert Path("mine").is_dir()


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--op", "max", "--kernel", 0], "error: kernel_shape = 0 is outside the allowed range"),
        (["--op", "lp", "--kernel", 2, "--p", 0], "error: p = "),
        (["--op", "average", "--kernel", "2,2,2"], "error: kernel_shape = (2, 2, 2) has 3 values"),
    ],
)
def test_an_argument_that_is_wrong_for_every_image_of_a_folder_is_refused_once(
    gpupool_, argv, text
):
    Path("in").mkdir()
    for name in ("a.png", "b.png"):
        save_image(f"in/{name}", noise(8, 8))
    assert refused(gpupool_("pool", "in", "out", *argv), 1, text)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["pool", "in", "out", "--op", "global-max"],
        ["preprocess", "in", "out.npy", "--mean", 0, "--std", 1],
    ],
)
def test_a_folder_without_pillow_is_refused_once(gpupool_, monkeypatch, argv):
    Path("in").mkdir()
    for name in ("a.png", "b.png"):
        save_image(f"in/{name}", noise(8, 8))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert refused(gpupool_(*argv), 1, "error: images need Pillow: pip install")
    assert os.listdir() == ["in"]  # noqa: PTH208 - names, not paths


def test_a_folder_without_images_is_refused(gpupool_):
    Path("in").mkdir()
    result = gpupool_("pool", "in", "out", "--op", "global-max")
    assert refused(result, 1, "in: this folder holds no image")
    assert not Path("out").exists()


# Usage


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice"),
        (["pool", "a.png", "b.png"], "--op"),
        (["pool", "a.png", "b.png", "--op", "median"], "'median' must be one of max, average"),
        (["pool", "a.png", "b.png", "--op", "max", "--kern", "3"], "--kern"),
        (["pool", "a.png", "b.png", "--op", "max", "--kernel", "3,x"], "'3,x' is not an"),
        (["pool", "a.png", "b.png", "--op", "max", "--kernel", "2.0"], "not an integer"),
        (["pool", "a.png", "b.png", "--op", "max"], "MaxPool needs --kernel"),
        (["pool", "a.png", "b.png", "--op", "lp", "--kernel", "3", "--p", "x"], "--p"),
        (["pool", "a.png", "b.png", "--op", "max", "--kernel", "3", "--p", "2"],
         "--p does not apply to MaxPool"),
        (["pool", "a.png", "b.png", "--op", "global-max", "--kernel", "3"],
         "--kernel does not apply to GlobalMaxPool"),
        (["pool", "a.png", "b.png", "--op", "average", "--kernel", "3", "--indices", "i.npy"],
         "--indices does not apply to AveragePool"),
        (["pool", "a.png", "b.png", "--op", "average", "--kernel", "3", "--dtype", "float32"],
         "--dtype applies to .npy arrays"),
        (["pool", "a.png", "b.npy", "--op", "max", "--kernel", "3"], "must end in one of .png"),
        (["pool", "a.npy", "b.png", "--op", "max", "--kernel", "3"], "must end in .npy"),
        (["pool", ".", "b.png", "--op", "max", "--kernel", "3"], "must name a folder"),
        (["pool", ".", "out", "--op", "max", "--kernel", "3", "--indices", "i.npy"],
         "not a folder"),
        (["pool", "a.npy", "b.npy", "--op", "max", "--kernel", "3", "--indices", "i.txt"],
         "--indices must end in .npy"),
        (["pool", "a.npy", "b.npy", "--op", "max", "--kernel", "3", "--indices", "./b.npy"],
         "name the same file"),
        (["pool", "", "out", "--op", "global-max"], "argument INPUT: '' is not a path"),
        (["pool", ".", "", "--op", "global-max"], "argument OUTPUT: '' is not a path"),
        (["pool", "a.npy", "b.npy", "--op", "global-max", "--indices", ""], "argument --indices"),
        (["preprocess", ".", "b.npy", "--mean", "0", "--std", "1", "--names", ""], "--names"),
        (["run", "m.onnx", "--output-dir", ""], "argument --output-dir: '' is not a path"),
        (["shape", "max", "1xx3"], "'1xx3' is not a shape"),
        (["shape", "max", "1x1x4"], "MaxPool needs --kernel"),
        (["info", "--p", "2"], "--p"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_line_and_status_2(gpupool_, argv, text):
    assert refused(gpupool_(*argv), 2, text)


def test_an_input_of_no_known_kind_is_named(gpupool_):
    Path("x.npz").write_bytes(b"PK")
    save_image("a.png", noise(4, 4))
    Path("a.png").rename("picture")
    none = "INPUT x.npz is none of .npy, .zarr, .png, .jpg, .jpeg, .tif, .tiff, .webp or a folder"
    argv = ("--op", "global-max")
    assert refused(gpupool_("pool", "x.npz", "o.npy", *argv), 2, none)
    assert refused(gpupool_("pool", "missing", "o", *argv), 2, "INPUT missing does not exist")
    assert gpupool_("pool", "picture", "o.png", *argv).status == 0


@pytest.mark.usefixtures("x")
@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--kernel", "0"], "kernel_shape = 0 is outside the allowed range 1 .."),
        (["--kernel", "2", "--stride", "2147483648"], "strides"),
        (["--kernel", "-1,-2"], "kernel_shape[0] = -1 is outside the allowed range 1 .."),
        (["--kernel", "2,2,2"], "kernel_shape = (2, 2, 2) has 3 values, expected 2"),
        (["--kernel", "2", "--pad", "1,1"], "expected 4 (all begins, then all ends)"),
        (["--kernel", "2", "--auto-pad", "same"], "auto_pad = 'SAME' must be one of NOTSET"),
    ],
)
def test_what_the_library_refuses_is_one_line_and_status_1(gpupool_, argv, text):
    assert refused(gpupool_("pool", "x.npy", "y.npy", "--op", "max", *argv), 1, text)
    assert not Path("y.npy").exists()


@pytest.mark.usefixtures("x")
def test_a_file_that_is_smaller_than_the_window_is_named(gpupool_):
    save_image("small.png", noise(4, 4))
    for source, target in (("x.npy", "y.npy"), ("small.png", "y.png")):
        result = gpupool_("pool", source, target, "--op", "max", "--kernel", 99)
        assert refused(result, 1, f"error: {source}: the window is larger than the padded input")
        assert not Path(target).exists()


def test_debug_shows_the_traceback(gpupool_):
    argv = ("pool", "none.npy", "y.npy", "--op", "global-max")
    assert refused(gpupool_(*argv), 1, "none.npy: No such file or directory")
    result = gpupool_(*argv, "--debug")
    assert result.status == 1
    assert result.err.startswith("Traceback (most recent call last):")
    assert result.err.splitlines()[-1] == "gpupool: error: none.npy: No such file or directory"


@pytest.mark.usefixtures("x")
@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), 130, "gpupool: interrupted"),
        (
            ZeroDivisionError("1 / 0"),
            1,
            "ZeroDivisionError: 1 / 0 (unexpected: --debug shows where)",
        ),
        (MemoryError(), 1, "error: out of memory"),
        (OSError("disk"), 1, "error: disk"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_no_error_shows_a_traceback(gpupool_, monkeypatch, error, status, text):
    def fail(_, kernel_shape):
        assert kernel_shape == 2
        raise error

    monkeypatch.setitem(cli.POOLS, "MaxPool", fail)
    result = gpupool_("pool", "x.npy", "y.npy", "--op", "max", "--kernel", "2")
    assert result.status == status
    assert text in result.err
    assert len(result.err.splitlines()) == 1
    assert os.listdir() == ["x.npy"]  # noqa: PTH208 - names, not paths


SIGNALS = pytest.mark.parametrize(
    "name", sorted(one.name for one in terminal.INTERRUPTS - {signal.SIGINT})
)


def signalled(monkeypatch, name):
    """Have every maximum send a signal to this process, twice; return what handles it then."""
    handlers, pool = [], cli.POOLS["MaxPool"]

    def send(x, kernel_shape):
        try:
            signal.raise_signal(getattr(signal, name))
        finally:
            handlers.append(signal.getsignal(getattr(signal, name)))
            signal.raise_signal(getattr(signal, name))
            handlers.append(signal.getsignal(getattr(signal, name)))
        return pool(x, kernel_shape)

    monkeypatch.setitem(cli.POOLS, "MaxPool", send)
    return handlers


@SIGNALS
@pytest.mark.usefixtures("x", "interruptible")
def test_a_signal_that_ends_the_process_leaves_nothing_behind(gpupool_, monkeypatch, name):
    before = signal.getsignal(getattr(signal, name))
    handlers = signalled(monkeypatch, name)
    result = gpupool_("pool", "x.npy", "y.npy", "--op", "max", "--kernel", "2")
    assert (result.status, result.err) == (128 + getattr(signal, name), "gpupool: interrupted\n")
    assert handlers == [signal.SIG_IGN] * 2  # the second one does not disturb the clearing up
    assert signal.getsignal(getattr(signal, name)) == before
    assert os.listdir() == ["x.npy"]  # noqa: PTH208 - names, not paths


@SIGNALS
@pytest.mark.usefixtures("x")
def test_a_signal_that_is_ignored_stays_ignored(gpupool_, monkeypatch, name):
    """So nohup has it."""
    before = signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        signalled(monkeypatch, name)
        result = gpupool_("pool", "x.npy", "y.npy", "--op", "max", "--kernel", "2")
        assert signal.getsignal(getattr(signal, name)) == signal.SIG_IGN
    finally:
        signal.signal(getattr(signal, name), before)
    assert result.status == 0
    assert Path("y.npy").exists()


@pytest.mark.usefixtures("x")
def test_the_command_runs_in_any_thread(gpupool_):
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(gpupool_, "pool", "x.npy", "y.npy", "--op", "max", "--kernel", "2")
        assert call.result().status == 0


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["shape", "max", "1x1x4", "--kernel", "2"], 0),
        (["pool", "none.npy", "y.npy", "--op", "global-max"], 1),
        (["pool", "none.npy"], 2),
    ],
)
def test_exit_statuses_of_the_process(argv, status):
    run = subprocess.run(
        [sys.executable, "-m", "gpupool", *argv],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == status
    assert len(run.stderr.splitlines()) == (0 if status == 0 else 1)


def test_help_and_version(gpupool_):
    assert gpupool_("--version").out == f"gpupool {gpupool.__version__}\n"
    assert "3 worse (bench --compare)" in " ".join(gpupool_("--help").out.split())
    for command in cli.COMMANDS:
        shown = gpupool_(command.name, "--help")
        assert shown.status == 0
        assert command.summary in shown.out
        assert "--debug" in shown.out


# Devices


def test_device_gpu_is_refused_with_the_reason_where_there_is_none(gpupool_, x, monkeypatch):
    monkeypatch.setattr(device, "gpu_reason", lambda: "no card; buy one")
    argv = ("pool", "x.npy", "y.npy", "--op", "global-max", "--device")
    assert refused(gpupool_(*argv, "gpu"), 1, "device = 'gpu': no card; buy one")
    monkeypatch.setattr(device, "fault", lambda: device.Fault("no card", "buy one"))
    result = gpupool_(*argv, "auto")
    assert result.status == 0
    assert "GlobalMaxPool on the CPU (GPU off: no card), " in result.err
    np.testing.assert_array_equal(np.load("y.npy"), x.max((2, 3), keepdims=True))


@pytest.mark.parametrize("asked", ["auto", "gpu"])
def test_a_gpu_is_used_and_named(gpupool_, x, monkeypatch, asked):
    steps = []
    monkeypatch.setattr(device, "gpu_reason", lambda: None)
    monkeypatch.setattr(device, "to_device", lambda a: steps.append("up") or a)
    monkeypatch.setattr(device, "to_host", lambda a: steps.append("down") or a)
    monkeypatch.setattr(device, "synchronize", lambda: steps.append("wait"))
    monkeypatch.setattr(device, "current_name", lambda: "NVIDIA H200")
    argv = ("--op", "max", "--kernel", "2", "--indices", "i.npy", "--device", asked)
    result = gpupool_("pool", "x.npy", "y.npy", *argv)
    assert result.status == 0
    assert "MaxPool on the GPU (NVIDIA H200), " in result.err
    assert steps == ["up", "wait", "down", "down"]
    np.testing.assert_array_equal(np.load("y.npy"), gpupool.max_pool(x, 2))


@pytest.mark.gpu
def test_a_real_gpu_gives_the_same_file(gpupool_, x):
    if (reason := device.gpu_reason()) is not None:
        pytest.skip(reason)
    argv = ("--op", "max", "--kernel", "2", "--device", "gpu")
    assert gpupool_("pool", "x.npy", "y.npy", *argv).status == 0
    np.testing.assert_array_equal(np.load("y.npy"), gpupool.max_pool(x, 2))


# gpupool shape


def test_shape_prints_the_output_shape_and_the_pads_of_each_axis(gpupool_):
    argv = ("--kernel", 3, "--stride", 2, "--pad", 1)
    assert gpupool_("shape", "max", "1x64x112x112", *argv).out.splitlines() == [
        "1x64x56x56",
        "axis 0: size 112, kernel 3, stride 2, dilation 1, pads 1 + 1, output 56",
        "axis 1: size 112, kernel 3, stride 2, dilation 1, pads 1 + 1, output 56",
    ]


def test_shape_resolves_auto_pad(gpupool_):
    argv = ("--kernel", 2, "--stride", 2, "--auto-pad", "SAME_LOWER")
    assert gpupool_("shape", "AveragePool", "1x1x5", *argv).out.splitlines() == [
        "1x1x3",
        "axis 0: size 5, kernel 2, stride 2, dilation 1, pads 1 + 0, output 3",
    ]


def test_shape_of_a_global_operator(gpupool_):
    assert gpupool_("shape", "global-lp", "2x3x5x7").out.startswith("2x3x1x1\n")


def test_shape_refuses_what_the_function_refuses(gpupool_):
    result = gpupool_("shape", "max", "1x1x4", "--kernel", "5", "--stride", "2")
    assert refused(result, 1, "the window is larger than the padded input")
    assert gpupool_("shape", "max", "1x1x4", "--kernel", "5", "--stride", "2", "--ceil").status == 0


# gpupool info


def test_info_as_json(gpupool_):
    result = gpupool_("info", "--json")
    assert result.status == 0
    assert result.err == ""
    facts = json.loads(result.out)
    assert facts["gpupool"] == gpupool.__version__
    assert facts.keys() >= {
        "python",
        "packages",
        "cupy",
        "driver",
        "nvrtc",
        "devices",
        "cache",
        "gpu",
    }


FACTS = {
    "python": "3.12.1", "platform": "Linux", "packages": {"numpy": "2.4.0", "rich": None},
    "cupy": {"distributions": {"cupy-cuda12x": "14.2.0"}, "version": "14.2.0", "error": None},
    "driver": "12.9", "nvrtc": "12.9", "headers": "/include",
    "devices": [{"index": 0, "name": "NVIDIA H200", "compute_capability": "9.0",
                 "multiprocessors": 132, "memory_bytes": 140 * 2**30}],
    "cache": {"path": "/home/a\x07/cache", "exists": True, "private": True},
    "gpu": {"available": True, "reason": None, "remedy": None}, "warnings": [],
}  # fmt: skip


def test_info_with_a_gpu(gpupool_, monkeypatch):
    monkeypatch.setattr(device, "facts", lambda: FACTS)
    lines = gpupool_("info").out.splitlines()
    assert "rich:         not installed" in lines
    assert "CuPy:         cupy-cuda12x 14.2.0" in lines
    assert (
        "device 0:     NVIDIA H200, compute capability 9.0, 132 multiprocessors, 140.0 GiB" in lines
    )
    assert r"kernel cache: /home/a\x07/cache (private)" in lines
    assert "GPU:          on" in lines


def test_info_with_everything_wrong(gpupool_, monkeypatch):
    wrong = {
        "cupy": {"distributions": {"cupy-cuda12x": "1", "cupy-cuda13x": "2"}, "version": None,
                 "error": "OSError: HOME"},
        "driver": None, "nvrtc": None, "headers": None, "devices": [],
        "cache": {"path": "/tmp/cache", "exists": False, "private": False},
        "gpu": {"available": False, "reason": "CuPy is broken", "remedy": "pip install it"},
        "warnings": ["2 CuPy distributions", "other users can write"],
    }  # fmt: skip
    monkeypatch.setattr(device, "facts", lambda: FACTS | wrong)
    result = gpupool_("info")
    assert result.status == 0
    lines = result.out.splitlines()
    assert "CuPy:         cupy-cuda12x 1, cupy-cuda13x 2" in lines
    assert "import cupy:  OSError: HOME" in lines
    assert "driver:       none" in lines
    assert "kernel cache: /tmp/cache (not private, not there yet)" in lines
    assert "GPU:          off: CuPy is broken" in lines
    assert "to mend it:   pip install it" in lines
    assert lines[-2:] == [
        "warning:      2 CuPy distributions",
        "warning:      other users can write",
    ]


# The terminal


class Terminal(io.StringIO):
    """A stderr that somebody watches."""

    def isatty(self):
        return True


def watched(monkeypatch):
    """Put a terminal in the place of stderr."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    terminal._rich_console.cache_clear()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def test_a_terminal_gets_colour_and_a_progress_bar(monkeypatch, tmp_path):
    pytest.importorskip("rich")
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    save_image("in/a.png", np.zeros((8, 8), np.uint8))
    Path("in/[b].png").write_bytes(b"")
    stream = watched(monkeypatch)
    assert cli.main(["pool", "in", "out", "--op", "global-max"]) == 1
    shown = stream.getvalue()
    assert "pooling" in shown
    assert "100%" in shown
    erased = shown.rpartition("\x1b[1A\x1b[2K")[0].rpartition("\x1b[2K")[2]
    assert erased.startswith("pooling")  # the bar goes, and no line that was said
    assert "\x1b[31mgpupool: error: in/[b].png: not an image" in shown  # red, and no markup


def test_a_terminal_without_rich_gets_plain_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = watched(monkeypatch)
    terminal.say("a\tb", "red")
    assert list(terminal.progress([1, 2], "pooling")) == [1, 2]
    assert stream.getvalue() == "a\\tb\n"


@pytest.mark.parametrize("last", [0, 1], ids=["at once", "in the middle"])
def test_a_terminal_that_has_gone_ends_no_work(monkeypatch, last):
    pytest.importorskip("rich")
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)  # what shows the bar meanwhile
    monkeypatch.setattr(threading.Thread, "join", lambda *_: None)
    stream, done = watched(monkeypatch), []

    def write(text):
        if len(done) >= last:
            raise OSError(errno.EIO, "Input/output error")
        return len(text)

    monkeypatch.setattr(stream, "write", write)
    for item in terminal.progress([1, 2, 3], "pooling"):
        done.append(item)  # noqa: PERF402 - it tells write() how far this is
    assert done == [1, 2, 3]


def test_no_terminal_gets_no_bar(capsys):
    assert list(terminal.progress([1, 2], "pooling")) == [1, 2]
    assert capsys.readouterr().err == ""


def to_nobody(buffering=1):
    """Return the end of a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering)


def to_a_full_device(buffering=1):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    return Path("/dev/full").open("w", buffering)


LOST = pytest.mark.parametrize(
    "unheard", [lambda: None, to_nobody, to_a_full_device], ids=["closed", "nobody", "full"]
)
"""A stderr that takes no line."""


@LOST
@pytest.mark.usefixtures("x")
def test_what_cannot_be_said_costs_no_output(gpupool_, monkeypatch, unheard):
    Path("in").mkdir()
    for name in ("a.png", "c.png"):
        save_image(f"in/{name}", np.zeros((8, 8), np.uint8))
    Path("in/b.png").write_bytes(b"not an image")
    stderr = unheard()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert gpupool_("pool", "x.npy", "y.npy", "--op", "global-max").status == 0
    assert gpupool_("pool", "in", "out", "--op", "global-max").status == 1
    assert gpupool_("preprocess", "in", "p.npy", "--mean", 0, "--std", 1).status == 1
    assert gpupool_("pool", "in").out == ""
    assert sorted(path.name for path in Path("out").iterdir()) == ["a.png", "c.png"]
    assert Path("y.npy").exists()
    assert len(np.load("p.npy")) == 2
    if stderr:
        stderr.close()  # which writes what is left


@pytest.mark.usefixtures("x")
def test_a_report_is_made_once_the_output_is_there(gpupool_, monkeypatch):
    def fail(*_):
        raise OSError("disk")

    monkeypatch.setattr(files, "write_array", fail)
    result = gpupool_("pool", "x.npy", "y.npy", "--op", "global-max")
    assert refused(result, 1, "disk")


@pytest.mark.parametrize("argv", [["--help"], ["info"], ["info", "--json"]], ids=" ".join)
@pytest.mark.parametrize(
    ("unread", "buffering", "status", "said"),
    [
        (to_nobody, 1, 141, ""),
        (to_nobody, -1, 141, ""),
        (to_a_full_device, -1, 1, "gpupool: error: stdout: No space left on device\n"),
    ],
    ids=["nobody, by lines", "nobody", "full"],
)
def test_what_cannot_be_printed_is_an_error_except_where_nobody_reads(
    gpupool_, monkeypatch, argv, unread, buffering, status, said
):
    monkeypatch.setattr(device, "facts", lambda: FACTS)
    with unread(buffering) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        result = gpupool_(*argv)
    assert (result.status, result.err) == (status, said)


def test_an_errors_notes_are_said(capsys):
    error = MemoryError("no room")
    error.add_note("the output needs 8 bytes")
    terminal.complain(error, debug=False)
    assert capsys.readouterr().err == "gpupool: error: no room; the output needs 8 bytes\n"


def test_what_stdout_cannot_encode_is_escaped(gpupool_, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    monkeypatch.setattr(device, "facts", lambda: FACTS | {"platform": "caf\xe9"})
    assert gpupool_("info").status == 0
    assert b"3.12.1 on caf\\xe9\n" in shown.getvalue()


def test_surrogates_in_names_are_escaped():
    assert terminal.printable(os.fsdecode(b"caf\xe9 \xc3\xa9")) == "caf\\udce9 é"
