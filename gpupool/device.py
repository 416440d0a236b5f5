"""Is there a GPU, why not, and which one: all that ``gpu_available`` and ``gpupool info`` ask.

CuPy is imported here on the first question and never with gpupool itself. Whatever that import
raises (an OSError where HOME cannot be written, anything where an installation is broken) becomes a
reason to print, together with what mends it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
import re
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLDEST_CUPY = "14.2"
"""The first CuPy whose disk cache keeps modules with name expressions."""

_COMPANIONS = ("numpy", "ml-dtypes", "pillow", "rich", "onnx", "onnxruntime", "torch")


@dataclass(frozen=True)
class Fault:
    """Why the GPU is off, and the command or setting that mends it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


def gpu_available() -> bool:
    """Whether CuPy, a driver, a device and the run-time compiler are all there. Never raises.

    >>> gpu_available() == (gpu_reason() is None)
    True
    """
    return fault() is None


def gpu_reason() -> str | None:
    """Return why the GPU is off and what mends it, or None where it is on. Never raises.

    >>> isinstance(gpu_reason(), str | None)
    True
    """
    found = fault()
    return None if found is None else str(found)


def compiler_reason() -> str | None:
    """Return why no kernel can be compiled and what mends it, or None; that needs no GPU."""
    cupy = _import_cupy()
    broken = isinstance(cupy, Exception)
    found = _import_fault(cupy) if broken else _compiler_fault(cupy)
    return None if found is None else str(found)


@functools.cache
def fault() -> Fault | None:
    """Return the first thing that keeps the GPU off, or None."""
    cupy = _import_cupy()
    if isinstance(cupy, Exception):
        return _import_fault(cupy)
    if _numbers(cupy.__version__) < _numbers(OLDEST_CUPY):
        return Fault(
            f"CuPy {cupy.__version__} is too old, {OLDEST_CUPY} is needed", _pip_line(_cuda_major())
        )
    return _device_fault(cupy) or _compiler_fault(cupy)


@functools.cache
def _import_cupy() -> Any:
    """Return the module, or the exception that its import raised (a second try raises others)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two distributions: `facts` warns of them in one line
            return importlib.import_module("cupy")
    except Exception as error:
        return error


def _import_fault(error: Exception) -> Fault:
    major = _cuda_major()
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
        alone = "" if driver_version() else ", and there is no NVIDIA driver on this machine"
        return Fault(f"CuPy is not installed{alone}", _pip_line(major))
    reason = f"CuPy cannot be imported ({type(error).__name__}: {error})"
    folder = cache_folder()
    if isinstance(error, OSError) and Path(error.filename or "") in (folder, *folder.parents):
        return Fault(reason, "set CUPY_CACHE_DIR to a folder that you can write and only you")
    return Fault(reason, _clean_install(major))


def _device_fault(cupy: Any) -> Fault | None:
    major, driver = _cuda_major(), driver_version()
    if driver is None:
        return Fault("there is no NVIDIA driver on this machine", "install NVIDIA's driver")
    if driver < (major, 0):
        reason = f"the NVIDIA driver supports CUDA {_dotted(driver)} and this CuPy needs {major}.0"
        if driver < (12, 0):
            return Fault(reason, "install a newer NVIDIA driver")
        return Fault(reason, _clean_install(driver[0]))
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return Fault(f"CUDA does not start ({error})", "see the NVIDIA driver's log")
    if count < 1:
        return Fault("CUDA sees no device", "look at CUDA_VISIBLE_DEVICES")
    return None


def _compiler_fault(cupy: Any) -> Fault | None:
    line = f"pip install {_compiler_requirement(_cuda_major())}"
    if nvrtc_version(cupy) is None:
        return Fault("CUDA's run-time compiler NVRTC is not installed", line)
    if header_folder() is None:
        return Fault("CUDA's header files (cuda_fp16.h) are not installed", line)
    return None


def nvrtc_version(cupy: Any) -> tuple[int, int] | None:
    """Return the version of the run-time compiler, or None where it cannot be loaded."""
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception:
        return None
    return major, minor


def header_folder() -> str | None:
    """Return the folder of cuda_fp16.h, which CuPy's kernels that copy float16 include, or None."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
        folder = finder.find_nvidia_header_directory("cudart")
    except Exception:
        return None
    return folder if folder and Path(folder, "cuda_fp16.h").is_file() else None


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA that the installed driver supports, asked without CuPy."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        number = ctypes.c_int(0)
        failed = library.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    if failed or number.value < 1000:
        return None
    return number.value // 1000, number.value % 1000 // 10


def cupy_distributions() -> dict[str, str]:
    """Return name and version of every installed distribution that brings a ``cupy`` package."""
    pattern = re.compile(r"(amd-)?cupy(-(cuda|rocm)[\w-]*)?", re.IGNORECASE)
    found = ((d.metadata["Name"] or "", d.version) for d in _metadata().distributions())
    return dict(sorted((name, version) for name, version in found if pattern.fullmatch(name)))


def _cuda_major() -> int:
    """Return the CUDA major version of the installed CuPy, else the newest the driver takes."""
    for name in cupy_distributions():
        if match := re.fullmatch(r"cupy-cuda(1[23])x", name):
            return int(match[1])
    driver = driver_version()
    return 13 if driver and driver >= (13, 0) else 12


def _compiler_requirement(major: int) -> str:
    return f'"cuda-toolkit[nvrtc,cudart]=={major}.*"'


def _pip_line(major: int) -> str:
    return f'pip install "cupy-cuda{major}x>={OLDEST_CUPY}" {_compiler_requirement(major)}'


def _clean_install(major: int) -> str:
    installed = " ".join(cupy_distributions())
    return f"pip uninstall -y {installed} && {_pip_line(major)}" if installed else _pip_line(major)


def cache_folder() -> Path:
    """Return the folder in which CuPy keeps compiled kernels."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser().absolute()


def is_private(folder: Path) -> bool | None:
    """Whether nobody else can put a file into ``folder``; None where the system cannot tell.

    CuPy loads whatever its cache holds, so an entry that another user wrote there is run. Others
    get in through the folder itself or by renaming one above it, which a sticky bit prevents.
    """
    if not hasattr(os, "getuid"):
        return None
    ours = {0, os.getuid()}
    for place in (folder, *folder.parents):
        try:
            status = place.stat()
        except OSError:
            continue
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        guarded = status.st_mode & stat.S_ISVTX and place != folder
        if status.st_uid not in ours or (shared and not guarded):
            return False
    return True


def devices() -> list[dict[str, Any]]:
    """Return name, compute capability and memory of every device that CUDA sees."""
    cupy = _import_cupy()
    try:
        runtime = cupy.cuda.runtime
        return [
            _device(index, runtime.getDeviceProperties(index))
            for index in range(runtime.getDeviceCount())
        ]
    except Exception:  # no CuPy, no driver: `fault` says which
        return []


def _device(index: int, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": index,
        "name": properties["name"].decode(errors="replace"),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory_bytes": properties["totalGlobalMem"],
    }


def facts() -> dict[str, Any]:
    """Return all that ``gpupool info`` shows, as plain values that JSON can hold.

    >>> facts()["cache"]["path"] == str(cache_folder())
    True
    """
    cupy, found, folder = _import_cupy(), fault(), cache_folder()
    broken = isinstance(cupy, Exception)
    nvrtc = None if broken else nvrtc_version(cupy)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in _COMPANIONS},
        "cupy": {
            "distributions": cupy_distributions(),
            "version": None if broken else cupy.__version__,
            "error": f"{type(cupy).__name__}: {cupy}" if broken else None,
        },
        "driver": _dotted(driver_version()),
        "nvrtc": _dotted(nvrtc),
        "headers": header_folder(),
        "devices": devices(),
        "cache": {"path": str(folder), "exists": folder.is_dir(), "private": is_private(folder)},
        "gpu": {
            "available": found is None,
            "reason": found.reason if found else None,
            "remedy": found.remedy if found else None,
        },
        "warnings": _warnings(folder),
    }


def _warnings(folder: Path) -> list[str]:
    found = []
    if len(installed := cupy_distributions()) > 1:
        found.append(
            f"{len(installed)} CuPy distributions share one package folder and overwrite each "
            f"other: {_clean_install(_cuda_major())}"
        )
    if is_private(folder) is False:
        found.append(
            f"other users can write to the kernel cache {folder}, and CuPy runs what it finds "
            f"there: set CUPY_CACHE_DIR to a folder of your own (chmod 700)"
        )
    return found


def _installed(name: str) -> str | None:
    metadata = _metadata()
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def _metadata() -> Any:
    return importlib.import_module("importlib.metadata")  # a fifth of the time of `import gpupool`


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"


def on_device(index: int) -> AbstractContextManager[Any]:
    """Enter a device."""
    entered: AbstractContextManager[Any] = _import_cupy().cuda.Device(index)
    return entered


@contextmanager
def on_stream(pointer: int, index: int) -> Iterator[None]:
    """Enter a device and a stream of it that another library made."""
    cuda = _import_cupy().cuda
    with cuda.Device(index), cuda.ExternalStream(pointer, index):
        yield


def from_dlpack(array: Any) -> Any:
    """View another library's array on a GPU as a CuPy array, on the current stream."""
    return _import_cupy().from_dlpack(array)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return uninitialised memory on the current device."""
    return _import_cupy().empty(shape, dtype)


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the current device."""
    return _import_cupy().asarray(array)


def to_host(array: Any) -> Any:
    """Copy a CuPy array back, after the work that fills it."""
    return _import_cupy().asnumpy(array)


def synchronize() -> None:
    """Wait until the current stream is done, so that a clock read afterwards tells the truth."""
    _import_cupy().cuda.get_current_stream().synchronize()


def current_name() -> str:
    """Return the name of the device that CuPy uses now."""
    return str(devices()[_import_cupy().cuda.Device().id]["name"])
