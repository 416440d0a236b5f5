"""Arrays in and out of .npy files, and outputs that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from gpupool.arrays import Array
from gpupool.dtypes import BFLOAT16
from gpupool.errors import GpupoolTypeError, GpupoolValueError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC = b"\x93NUMPY"
_BFLOAT16_IN_NPY = np.dtype("V2")  # the format has no name for it


def read_array(path: Path, *, bfloat16: bool = False) -> Array:
    """Return the array of a .npy file; nothing in the file is trusted and nothing unpickled.

    With ``bfloat16`` items of two nameless bytes, as which NumPy saves bfloat16, are read as such.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise GpupoolValueError(f"{path}: not a .npy file (its first bytes are not NumPy's)")
    array = _mapped(path)
    if array.dtype == _BFLOAT16_IN_NPY:
        if not bfloat16:
            raise GpupoolTypeError(
                f"{path}: dtype |V2, two bytes without a meaning; "
                f"where they are bfloat16, which NumPy saves so, say --dtype bfloat16"
            )
        array = array.view(BFLOAT16.numpy)
    return np.array(array)


def _mapped(path: Path) -> Array:
    """Map the file: this compares the header with the file's size before any memory is taken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy's parser lets many classes through for a hostile header
        reason = " ".join(str(error).split())
        raise GpupoolValueError(f"{path}: not a readable .npy file: {reason}") from error
    return array


def write_array(file: BinaryIO, array: Array) -> None:
    """Write an array in .npy format."""
    with writing(file.name):
        np.lib.format.write_array(file, array, allow_pickle=False)


@contextmanager
def writing(name: object) -> Iterator[None]:
    """Give an error of writing a file its name: those of an open file, and NumPy's, have none.

    >>> with writing("y.npy"):
    ...     raise OSError("9 requested and 5 written")
    Traceback (most recent call last):
    OSError: [Errno None] could not be written whole (9 requested and 5 written): 'y.npy'
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.strerror = error.strerror or f"could not be written whole ({error})"
            error.filename = str(name)
        raise


@contextmanager
def folder(path: Path) -> Iterator[None]:
    """Make a folder for outputs, where there is none; one that stays empty goes again.

    >>> import tempfile
    >>> from pathlib import Path
    >>> outputs = Path(tempfile.mkdtemp()) / "outputs"
    >>> with folder(outputs):
    ...     outputs.is_dir()
    True
    >>> outputs.exists()
    False
    """
    made = not path.exists()
    path.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # what is not empty cannot be removed so
                path.rmdir()


def check_target(path: Path, *, force: bool) -> None:
    """Refuse, before any work is done, an output path that could not be written at the end."""
    if path.exists() and not path.is_file():
        raise GpupoolValueError(f"{path}: exists and is not a regular file")
    check_new(path, force=force)


def check_new(path: Path, *, force: bool) -> None:
    """Refuse an output path whose folder is missing, or whose name is taken unless ``force``."""
    if not path.parent.is_dir():
        raise GpupoolValueError(f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not force:
        raise _exists(path)


def _exists(path: Path) -> GpupoolValueError:
    return GpupoolValueError(f"{path}: exists already; --force replaces it")


@contextmanager
def whole(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open an output that appears under its name only once the block has ended without an error.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> with whole(folder / "y.npy", force=False) as file:
    ...     write_array(file, np.zeros(3))
    ...     (folder / "y.npy").exists()
    False
    >>> [path.name for path in folder.iterdir()]
    ['y.npy']
    """
    check_target(path, force=force)
    with beside(path) as (target, part):
        try:
            file = part.open("xb")
            try:
                if target.exists():
                    shutil.copymode(target, part)  # first: what is private is so at any time
                yield file
                with writing(path):
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                with writing(path):
                    file.close()  # which tries once more to write what the file holds back
            _move(part, target, force)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def beside(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield where an output goes in the end and where it is until then; errors name ``path``."""
    target = path.resolve()  # a link keeps pointing where it points
    part = target.with_name(f".gpupool-{secrets.token_hex(8)}.part")
    try:
        yield target, part
    except OSError as error:
        if str(error.filename).startswith(str(part)):
            error.filename = str(path)
        raise


def _move(part: Path, target: Path, force: bool) -> None:
    if force:
        part.replace(target)
        return
    try:
        os.link(part, target)  # unlike a rename it never replaces what appeared meanwhile
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        check_target(target, force=False)
        part.replace(target)
