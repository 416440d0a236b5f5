"""Arrays in .npy files, and outputs that appear whole or not at all."""

import errno
import os
import random
import stat
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpupool import files
from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError


def npy(path, descr="<f4", shape=(2, 3), data=b"\0" * 24, header=None):
    """Write a .npy file of version 1.0 whose header need not be true."""
    if header is None:
        header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data)
    return path


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4),
        np.asfortranarray(np.arange(24.0).reshape(1, 2, 3, 4)),
        np.zeros((0, 3, 4), np.float16),
        np.array(7, np.uint8),
        np.arange(6, dtype=">i4"),
    ],
    ids=["contiguous", "fortran", "empty", "scalar", "big-endian"],
)
def test_an_array_comes_back_as_it_was_written(tmp_path, array):
    with files.whole(tmp_path / "x.npy", force=False) as file:
        files.write_array(file, array)
    again = files.read_array(tmp_path / "x.npy")
    assert again.dtype == array.dtype
    assert again.flags.owndata
    np.testing.assert_array_equal(again, array)


def test_bfloat16_is_read_only_where_the_caller_says_so(tmp_path):
    x = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(1, 2, 3)
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(GpupoolTypeError, match=r"x\.npy.*\|V2.*--dtype bfloat16"):
        files.read_array(tmp_path / "x.npy")
    again = files.read_array(tmp_path / "x.npy", bfloat16=True)
    assert again.dtype == ml_dtypes.bfloat16
    assert again.tobytes() == x.tobytes()


def test_bfloat16_reinterprets_nothing_else(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3, np.float16))
    assert files.read_array(tmp_path / "x.npy", bfloat16=True).dtype == np.float16


BAD_NPY = {
    "object dtype": {"descr": "|O", "shape": (3,)},
    "header larger than the file": {"shape": (2**40,)},
    "size past 64 bits": {"shape": (2**62, 2**62)},
    "empty, with a size past 64 bits": {"shape": (0, 2**80)},
    "negative size": {"shape": (-1, 3)},
    "size that is a bool": {"shape": (True, 3)},
    "truncated data": {"data": b"\0" * 23},
    "truncated header": {"header": b"{'descr': '<f4'", "data": b""},
    "header of brackets": {"header": b"(" * 9000},
    "header that is no dictionary": {"header": b"__import__('os')\n"},
    "header longer than NumPy trusts": {"header": b"{" + b" " * 60000 + b"}"},
    "unknown dtype": {"descr": "<q9"},
}


@pytest.mark.parametrize("how", BAD_NPY.values(), ids=BAD_NPY)
def test_bad_npy_is_a_value_error_that_names_the_file(tmp_path, how):
    """bad-inputs.md: .npy with object dtype, header larger than the file, truncated."""
    with pytest.raises(GpupoolValueError, match=r"bad\.npy") as caught:
        files.read_array(npy(tmp_path / "bad.npy", **how))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"PK\3\4", b"\x80\x04K\x01."], ids=["empty", "npz", "pickle"]
)
def test_what_is_not_npy_is_never_unpickled(tmp_path, content):
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(GpupoolValueError, match=r"bad\.npy: not a \.npy file"):
        files.read_array(tmp_path / "bad.npy")


def test_damaged_npy_files_raise_nothing_else(tmp_path):
    draw = random.Random(20)
    np.save(tmp_path / "good.npy", np.arange(12.0).reshape(1, 3, 4))
    good = (tmp_path / "good.npy").read_bytes()
    refused = 0
    for _ in range(1000):
        damaged = bytearray(good[: draw.choice((len(good), draw.randrange(len(good))))])
        for _ in range(draw.randrange(1, 4)):
            if damaged:
                damaged[draw.randrange(min(len(damaged), 80))] = draw.randrange(256)
        (tmp_path / "bad.npy").write_bytes(damaged)
        try:
            files.read_array(tmp_path / "bad.npy")
        except GpupoolError:
            refused += 1
    assert refused > 500


def test_a_missing_file_stays_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.read_array(tmp_path / "none.npy")


def write_half(path, *, force, then):
    with files.whole(path, force=force) as file:
        file.write(b"half")
        then()


def fail():
    raise ZeroDivisionError


def interrupt():
    raise KeyboardInterrupt


def test_an_error_leaves_no_file_behind(tmp_path):
    """bad-inputs.md: an output file appears whole or not at all."""
    with pytest.raises(ZeroDivisionError):
        write_half(tmp_path / "y.npy", force=False, then=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files_only():
    """Let this process write 64 KiB to a file and no more."""
    resource = pytest.importorskip("resource", reason="no ulimit here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files_only")
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda file: files.write_array(file, np.zeros(2**17, np.uint8)), "could not be .* whole"),
        (lambda file: file.write(bytes(2**16 + 1)), "File too large"),
        (lambda file: [file.write(bytes(2**10)) for _ in range(65)], "File too large"),
    ],
)
def test_what_cannot_be_written_whole_is_named(tmp_path, write, reason):
    path = tmp_path / "y.npy"
    with pytest.raises(OSError, match=reason) as raised, files.whole(path, force=False) as file:
        write(file)
    assert raised.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_keeps_the_file_that_was_to_be_replaced(tmp_path):
    (tmp_path / "y.npy").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "y.npy", force=True, then=interrupt)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_output_path_exists_is_refused_without_force(tmp_path):
    """bad-inputs.md: output path exists."""
    (tmp_path / "y.npy").write_bytes(b"old")
    with (
        pytest.raises(GpupoolValueError, match=r"y\.npy: exists already; --force"),
        files.whole(tmp_path / "y.npy", force=False),
    ):
        pytest.fail("the block must not start")
    assert (tmp_path / "y.npy").read_bytes() == b"old"


def test_force_replaces(tmp_path):
    (tmp_path / "y.npy").write_bytes(b"old")
    with files.whole(tmp_path / "y.npy", force=True) as file:
        file.write(b"new")
        assert (tmp_path / "y.npy").read_bytes() == b"old"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def no_links(*_):
    raise OSError("this file system has no hard links")


@pytest.mark.parametrize("link", [os.link, no_links], ids=["hard links", "no hard links"])
def test_a_file_that_appeared_meanwhile_is_kept(tmp_path, monkeypatch, link):
    monkeypatch.setattr(os, "link", link)
    target = tmp_path / "y.npy"
    with pytest.raises(GpupoolValueError, match="exists already"):
        write_half(target, force=False, then=lambda: target.write_bytes(b"theirs"))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"theirs"]


def test_a_file_system_without_hard_links_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    with files.whole(tmp_path / "y.npy", force=False) as file:
        file.write(b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_symbolic_link_keeps_pointing(tmp_path):
    (tmp_path / "real.npy").write_bytes(b"old")
    (tmp_path / "y.npy").symlink_to("real.npy")
    with files.whole(tmp_path / "y.npy", force=True) as file:
        file.write(b"new")
    assert (tmp_path / "y.npy").is_symlink()
    assert (tmp_path / "real.npy").read_bytes() == b"new"


def test_an_output_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "ordinary").write_bytes(b"")
    with files.whole(tmp_path / "y.npy", force=False) as file:
        file.write(b"new")
    assert (tmp_path / "y.npy").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o664], ids=oct)
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, mode):
    target = tmp_path / "y.npy"
    target.write_bytes(b"old")
    target.chmod(mode)
    with files.whole(target, force=True) as file:
        (part,) = tmp_path.glob("*.part")
        assert part.stat().st_mode == target.stat().st_mode  # before there is anything to read
        file.write(b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == mode


def refuse(path, *_):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


@pytest.mark.parametrize("step", ["open", "replace"])
def test_an_output_that_cannot_be_written_is_named_and_not_its_part(tmp_path, monkeypatch, step):
    (tmp_path / "link.npy").symlink_to("y.npy")
    monkeypatch.setattr(Path, step, refuse)
    with pytest.raises(PermissionError, match=r"/link\.npy'$"):
        write_half(tmp_path / "link.npy", force=True, then=lambda: None)


@pytest.mark.parametrize(("inner", "named"), [("c/0", "y.zarr"), ("../x.zarr", "x.zarr")])
def test_errors_about_what_a_part_holds_name_the_output(tmp_path, inner, named):
    with (
        pytest.raises(PermissionError, match=rf"/{named}'$"),
        files.beside(tmp_path / "y.zarr") as (_, part),
    ):
        refuse(os.path.normpath(part / inner))


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere/y.npy", "folder .*nowhere does not exist"), (".", "not a regular file")],
)
def test_a_target_that_cannot_be_written_is_refused_first(tmp_path, name, message):
    with pytest.raises(GpupoolValueError, match=message):
        files.check_target(tmp_path / name, force=True)


def test_a_device_file_is_never_replaced():
    with pytest.raises(GpupoolValueError, match="not a regular file"):
        files.check_target(Path(os.devnull), force=True)
