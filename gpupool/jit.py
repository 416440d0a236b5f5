"""From a file in kernels/ and a name expression to a compiled function; knows nothing of pooling.

One module holds one instantiation, since CuPy compiles all expressions of a module together. The
source text names the digest of the kernels folder, because CuPy's disk cache does not look through
``#include``: an edited header would otherwise load the old machine code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gpupool.errors import GpupoolError


@lru_cache
def kernel_folder() -> Path:
    """Return the folder of the .cu files: inside the wheel, or beside gpupool in a checkout.

    >>> (kernel_folder() / "window.cu").exists()
    True
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "element.cuh").exists():
            return folder
    raise GpupoolError(
        f"the CUDA sources are missing: neither {package / 'kernels'} nor "
        f"{package.parent / 'kernels'} holds them; reinstall gpupool"
    )


@lru_cache
def digest(folder: Path) -> str:
    """Return a digest of every CUDA source in ``folder``: a new one for any edit."""
    content = hashlib.sha256()
    for file in sorted(folder.glob("*.cu*")):
        content.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return content.hexdigest()[:32]


def source(*files: str) -> str:
    """Return the text that is compiled for ``files``: their includes and the digest of all."""
    includes = "".join(f'#include "{file}"\n' for file in files)
    return f"// {digest(kernel_folder())}\n{includes}"


def options() -> tuple[str, ...]:
    """Return the compiler options, the same for every kernel.

    Without the declarations that no kernel uses, some milliseconds; -minimal is CUDA 12.4's.
    """
    import cupy

    minimal = ("-minimal",) if cupy.cuda.nvrtc.getVersion() >= (12, 4) else ()
    unused = ("-builtin-initializer-list=false", "-builtin-move-forward=false", *minimal)
    return ("-std=c++17", f"-I{kernel_folder()}", *unused)


@cache
def function(file: str, expression: str, device: int) -> Any:
    """Return the compiled ``expression`` of ``file`` for a device, from CuPy's caches or anew.

    Compiling takes some tens of milliseconds; loading from the disk cache a few.
    """
    import cupy

    with cupy.cuda.Device(device):
        module = cupy.RawModule(
            code=source(file), options=options(), name_expressions=(expression,)
        )
        return module.get_function(expression)


def cubin(
    files: Sequence[str], expressions: Sequence[str], architecture: int, *extra: str
) -> tuple[bytes, str, dict[str, str]]:
    """Compile without a driver; return machine code, log, and each expression's symbol in them.

    The flags are those of ``function`` plus the -ftz=true that CuPy appends; ``extra`` are more.
    """
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source(*files), "gpupool.cu", (), ())
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        flags = (*options(), f"-arch=sm_{architecture}", *extra, "-ftz=true")
        try:
            nvrtc.compileProgram(program, flags)
        except nvrtc.NVRTCError as error:
            log, sources = nvrtc.getProgramLog(program), ", ".join(files)
            kernels = f"{sources}: {', '.join(expressions)}"
            raise GpupoolError(f"{kernels} for sm_{architecture}:\n{log}") from error
        symbols = {name: str(nvrtc.getLoweredName(program, name)) for name in expressions}
        # CuPy drops the last byte, which tools that read the file miss.
        return bytes(nvrtc.getCUBIN(program)) + b"\0", nvrtc.getProgramLog(program), symbols
    finally:
        nvrtc.destroyProgram(program)


class Resources(NamedTuple):
    """What a kernel takes: registers, and bytes of spills, of local and of static shared memory."""

    registers: int
    spilled: int
    local: int
    shared: int


def resources(log: str) -> dict[str, Resources]:
    """Return what ptxas says of each symbol in the log of ``cubin(..., "--ptxas-options=-v")``.

    Spills are those of the functions that it calls, too.
    """
    _, *parts = re.split(r"Compiling entry function '(\w+)'", log)
    return {
        symbol: Resources(
            _sum(r"Used (\d+) registers", part),
            max(_sum(r"(\d+) bytes spill stores", part), _sum(r"(\d+) bytes spill loads", part)),
            _sum(rf"properties for {symbol}\s+ptxas\s+\.\s+(\d+) bytes stack frame", part),
            _sum(r"(\d+) bytes smem", part),
        )
        for symbol, part in zip(parts[::2], parts[1::2], strict=True)
    }


def _sum(pattern: str, log: str) -> int:
    return sum(map(int, re.findall(pattern, log)))
