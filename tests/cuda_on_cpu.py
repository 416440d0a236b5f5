"""Runs the unchanged text of kernels/*.cu on the CPU: g++ builds it, NumPy arrays are its memory.

    module = EmulatedModule(path, include_dir=kernels, expression="max_pool<float, 2>")
    module.get_function("max_pool<float, 2>")((blocks,), (128,), (x, y, np.int64(x.size)))

cuda_on_cpu.h is what CUDA gives the kernel text, cuda_on_cpu.cpp the machine that runs it. There
are four builds:

- "plain": fast. Finds divergent barriers, writes past shared memory, failed assertions.
- "checked": in the same process, about as strict as compute-sanitizer's memcheck, racecheck and
  initcheck together, plus undefined behaviour in the C++ sense (overflow, shifts, alignment).
- "address": AddressSanitizer and UndefinedBehaviorSanitizer proper; needs run_sanitized().
- "coverage": gcov counters; see write_coverage() and line_coverage().

What a kernel author has to observe:

- Shared memory is one `extern __shared__ unsigned char shared[];`, outside every namespace, aligned
  to at most 1024 bytes.
- Inline PTX stands behind `#ifdef __CUDA_ARCH__` with a plain equivalent beside it.
- Arrays are arguments of their own, not pointers inside a struct.
- What lanes exchange through shared memory needs __syncwarp; shuffles and votes order nothing.
- Blocks meet in atomics only, and no thread exits before a barrier that its block comes to.

Not emulated: PTX, contraction into FMA (flags=("-mfma", "-ffp-contract=fast") tries it), and
flushing of subnormals unless `flush_subnormals` is set on the function.

The environment: GPUPOOL_EMULATOR_BUILD is the default build, GPUPOOL_EMULATOR_CACHE the folder of
the compiled modules.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Build = Literal["plain", "checked", "address", "coverage"]
Order = Literal["forward", "reverse", "random"]

HERE = Path(__file__).resolve().parent
HEADER = HERE / "cuda_on_cpu.h"
RUNTIME = HERE / "cuda_on_cpu.cpp"
WHEELS = {  # each wheel with the header of it that the emulator needs
    "nvidia-cuda-runtime-cu12": "cuda_fp16.h",
    "nvidia-cuda-nvcc-cu12": "crt/host_config.h",
    "nvidia-cuda-cccl-cu12": "nv/target",
}
# Compiling is most of the tests: with -Og it takes a fifth less than with -O1.
COMPILE_FLAGS = ("-std=c++17", "-Og", "-fPIC", "-ffp-contract=off", "-fmax-errors=5")
BUILD_FLAGS: dict[Build, tuple[str, ...]] = {
    "plain": (),
    "checked": (
        "-g1",
        "-fsanitize=thread,undefined,float-cast-overflow",
        # No finding returns and nobody asks where functions begin and end: a sixth less to compile.
        "-fno-sanitize-recover=all",
        "--param=tsan-instrument-func-entry-exit=0",
    ),
    "address": ("-g1", "-fsanitize=address,undefined"),
    "coverage": ("--coverage", "-fprofile-update=single", "-O0"),  # inlined lines lose counts
}
# Instantiations of one compilation, which reads the headers once and what they share once.
BATCH = 64
STATIC_SHARED_LIMIT = 48 * 1024
SHARED_LIMIT = 227 * 1024
SENTINELS = (0xA5, 0x5A)


class EmulatorUnavailableError(RuntimeError):
    """This machine cannot build the emulator; the message says what is missing."""


class CompilationError(RuntimeError):
    """g++ refused the kernel text."""


class KernelError(RuntimeError):
    """The kernel did something that is an error on a device, too."""


@dataclass(frozen=True)
class Schedule:
    """The order of the blocks of a grid, and of the threads of a block between barriers."""

    order: Order = "forward"
    seed: int = 0


FORWARD = Schedule("forward")
REVERSE = Schedule("reverse")


def shuffled(seed: int) -> Schedule:
    return Schedule("random", seed)


def default_build() -> Build:
    build = os.environ.get("GPUPOOL_EMULATOR_BUILD", "plain")
    if build not in get_args(Build):
        raise ValueError(f"GPUPOOL_EMULATOR_BUILD={build!r}: not one of {get_args(Build)}")
    return build  # type: ignore[return-value]


@dataclass(frozen=True)
class Request:
    """One instantiation: a .cu file (Path) or its text (str), and a name expression."""

    source: Path | str
    include_dir: Path
    expression: str
    flags: tuple[str, ...] = ()
    build: Build = field(default_factory=default_build)


# ---- the compiler and its cache ----


@functools.cache
def compiler() -> tuple[str, str]:
    """The path of g++ and its version."""
    path = shutil.which("g++")
    if path is None:
        raise EmulatorUnavailableError("no g++ on PATH: the kernels cannot be run on the CPU")
    return path, _run(path, "-dumpfullversion", "-dumpmachine").stdout


def _run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    options = {"env": plain, "check": True, "capture_output": True, "text": True, **options}
    return subprocess.run(command, **options)  # noqa: PLW1510 (among the options)


@functools.cache
def cuda_include_dirs() -> tuple[Path, ...]:
    return tuple(_include_dir(wheel, header) for wheel, header in WHEELS.items())


def _include_dir(wheel: str, header: str) -> Path:
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith(f"include/{header}"):
            return Path(str(file.locate())).parents[header.count("/")]
    raise EmulatorUnavailableError(f"{header} is missing: pip install {wheel}")


def cache_dir() -> Path:
    default = Path(tempfile.gettempdir()) / f"gpupool-emulator-{os.getuid()}"
    folder = Path(os.environ.get("GPUPOOL_EMULATOR_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise EmulatorUnavailableError(f"{folder} is not private: others could put code into it")
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def _run_compiler(*arguments: str | Path) -> None:
    done = _run(compiler()[0], *arguments, check=False)
    if done.returncode:
        raise CompilationError(done.stderr)


@dataclass(frozen=True)
class Toolchain:
    """A build and its flags: compiles the header once, and the machine that runs the kernels."""

    build: Build
    flags: tuple[str, ...]

    @functools.cached_property
    def digest(self) -> str:
        headers = (HEADER.read_text(), RUNTIME.read_text(), *cuda_include_dirs())
        return _digest(*compiler(), *headers, *self.compile_flags)

    @functools.cached_property
    def compile_flags(self) -> tuple[str, ...]:
        include = (f"-I{folder}" for folder in cuda_include_dirs())
        build = BUILD_FLAGS[self.build]
        return (*COMPILE_FLAGS, "-fvisibility=hidden", *include, *build, *self.flags)

    @functools.cached_property
    def link_flags(self) -> tuple[str, ...]:
        # The runtime brings the libraries, searched once for all. A checked build must not link
        # libtsan: the runtime answers its calls.
        linked = {"address": BUILD_FLAGS["address"], "coverage": ("--coverage",)}
        return ("-shared", "-Wl,--no-as-needed", *linked.get(self.build, ("-nostdlib",)))

    @functools.cached_property
    def folder(self) -> Path:
        folder = cache_dir() / self.digest
        folder.mkdir(mode=0o700, exist_ok=True)
        with _locked(folder / "toolchain"):
            if not (folder / "runtime.so").exists():
                self._prepare(folder)
        return folder

    def _prepare(self, folder: Path) -> None:
        header = folder / HEADER.name
        shutil.copyfile(HEADER, header)
        _run_compiler(*self.compile_flags, "-x", "c++-header", header, "-o", f"{header}.gch")
        instrumented = BUILD_FLAGS["address"] if self.build == "address" else ()
        checked = ("-DCUDA_ON_CPU_CHECKED",) if self.build == "checked" else ()
        include = (f"-I{path}" for path in cuda_include_dirs())
        flags = (*COMPILE_FLAGS, "-O2", *include, *instrumented, *checked, *self.flags)
        new = folder / "runtime.new"
        _run_compiler(*flags, "-shared", RUNTIME, "-o", new)
        new.rename(folder / "runtime.so")

    def compile(self, name: str, text: str, include_dir: Path) -> Path:
        """Builds the shared object of a translation unit."""
        source, target = self.folder / f"{name}.cpp", self.folder / f"{name}.so"
        with _locked(target):
            if not target.exists():
                source.write_text(text)
                code, new = source.with_suffix(".o"), source.with_suffix(".new")
                include = (f"-I{include_dir}", "-include", self.folder / HEADER.name)
                _run_compiler(*self.compile_flags, *include, "-c", source, "-o", code)
                _run_compiler(*self.link_flags, code, self.folder / "runtime.so", "-o", new)
                new.rename(target)
                code.unlink()
        return target


@functools.cache
def toolchain(build: Build, flags: tuple[str, ...]) -> Toolchain:
    return Toolchain(build, flags)


def _source_digest(source: Path | str, folder: Path) -> str:
    """Of a text and of all that it includes from the folder, wherever that lies."""
    files = (file for file in folder.iterdir() if file.suffix in {".cu", ".cuh", ".h"})
    written = sorted((file.name, file.stat().st_mtime_ns) for file in files)
    return _digest_of(source, folder, tuple(written))


@functools.cache
def _digest_of(source: Path | str, folder: Path, written: tuple[tuple[str, int], ...]) -> str:
    names = {name for name, _ in written}
    texts = {"": source.read_text() if isinstance(source, Path) else source}
    pending = [""]
    while pending:
        found = re.findall(r'#\s*include\s*["<](.+)[">]', texts[pending.pop()])
        new = (names & set(found)) - texts.keys()
        texts |= {name: (folder / name).read_text() for name in new}
        pending += new
    return _digest(*(part for item in sorted(texts.items()) for part in item))


def _symbol(request: Request) -> str:
    # gcov tells files by their path.
    folder = request.include_dir if request.build == "coverage" else ""
    text = _source_digest(request.source, request.include_dir)
    return "kernel_" + _digest(text, folder, request.expression)


def _translation_unit(source: Path | str, expressions: dict[str, str]) -> str:
    is_file = isinstance(source, Path)
    text = f'#include "{source}"\n' if is_file else f'#line 1 "code.cu"\n{source}\n'
    for symbol, expression in expressions.items():
        text += (
            f'extern "C" __attribute__((visibility("default"))) const cuda_on_cpu::Kernel* '
            f"const {symbol};\nconst cuda_on_cpu::Kernel* const {symbol} = "
            f"&cuda_on_cpu::Entry<&{expression}>::kernel;\n"
        )
    return text


COVERAGE_DUMP = """
extern "C" void __gcov_dump();
extern "C" void __gcov_reset();
extern "C" __attribute__((visibility("default"))) void cuda_on_cpu_dump() {
    __gcov_dump();
    __gcov_reset();
}
"""


def _compile_batch(batch: Sequence[Request]) -> None:
    first = batch[0]
    tools = toolchain(first.build, first.flags)
    expressions = {_symbol(request): request.expression for request in batch}
    missing = {s: e for s, e in expressions.items() if not (tools.folder / f"{s}.so").exists()}
    if not missing:
        return
    text = _translation_unit(first.source, missing)
    if first.build == "coverage":
        text += COVERAGE_DUMP
    built = tools.compile("batch_" + _digest(*missing), text, first.include_dir)
    for symbol in missing:  # every instantiation is found by its own name
        link = tools.folder / f"{symbol}.so"
        new = link.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        new.unlink(missing_ok=True)
        new.hardlink_to(built)
        new.rename(link)


def compile_many(requests: Iterable[Request], *, workers: int | None = None) -> None:
    """Compiles instantiations ahead of their use: batched by source, on all cores."""
    groups: defaultdict[tuple[object, ...], list[Request]] = defaultdict(list)
    # Neighbours by name have the same operator, and so share most.
    for request in sorted(set(requests), key=lambda request: request.expression):
        key = (request.source, request.include_dir, request.flags, request.build)
        groups[key].append(request)
    batches = [
        group[start : start + BATCH]
        for group in groups.values()
        for start in range(0, len(group), BATCH)
    ]
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        list(pool.map(_compile_batch, batches))


# ---- modules and functions ----


class _Parameter(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char), ("size", ctypes.c_uint), ("writable", ctypes.c_bool))


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("count", ctypes.c_uint),
    )


class _Region(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64), ("writable", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("flush_subnormals", ctypes.c_uint),
        ("region_count", ctypes.c_uint),
        ("regions", ctypes.POINTER(_Region)),
        ("chosen_count", ctypes.c_uint64),
        ("chosen", ctypes.POINTER(ctypes.c_uint64)),
    )


_loaded: dict[Path, ctypes.PyDLL] = {}


class EmulatedModule:
    """One instantiation of a kernel, in the manner of cupy.RawModule."""

    def __init__(
        self,
        path_or_code: Path | str,
        *,
        include_dir: Path,
        expression: str,
        flags: Sequence[str] = (),
        schedule: Schedule = FORWARD,
        build: Build | None = None,
    ) -> None:
        request = Request(
            path_or_code, include_dir, expression, tuple(flags), build or default_build()
        )
        _compile_batch([request])
        self.expression = expression
        self.schedule = schedule
        self.symbol = _symbol(request)
        tools = toolchain(request.build, request.flags)
        self.path = tools.folder / f"{self.symbol}.so"
        if self.path not in _loaded:
            _loaded[self.path] = ctypes.PyDLL(str(self.path))  # holds the GIL: one launch at a time

    def get_function(self, expression: str) -> EmulatedFunction:
        if expression != self.expression:
            raise KeyError(f"the module holds {self.expression}, not {expression}")
        return EmulatedFunction(self)


class EmulatedFunction:
    """A kernel to launch: function(grid, block, args, shared_mem=0)."""

    def __init__(self, module: EmulatedModule) -> None:
        library = _loaded[module.path]
        self.module = module
        self.kernel = ctypes.POINTER(_Kernel).in_dll(library, module.symbol).contents
        self.launch = library.cuda_on_cpu_launch
        self.launch.restype = ctypes.c_char_p
        self.schedule = module.schedule
        self.max_dynamic_shared_size_bytes = STATIC_SHARED_LIMIT
        self.flush_subnormals = False  # as -ftz=true does; x86-64 only, and float64 too
        self.blocks: Sequence[int] | None = None  # run only these blocks, by linear number

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int = 0
    ) -> None:
        self._check_limits(_three("grid", grid), _three("block", block), shared_mem)
        values = self._values(args)
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        regions = self._regions(args)
        chosen = [] if self.blocks is None else list(self.blocks)
        launch = _Launch(
            _three("grid", grid),
            _three("block", block),
            shared_mem,
            get_args(Order).index(self.schedule.order),
            self.schedule.seed,
            self.flush_subnormals,
            len(regions),
            (_Region * len(regions))(*regions),
            len(chosen),
            None if self.blocks is None else (ctypes.c_uint64 * len(chosen))(*chosen),
        )
        error = self.launch(ctypes.byref(self.kernel), ctypes.byref(launch), pointers)
        if error is not None:
            raise KernelError(f"{self.module.expression}: {self._with_lines(error.decode())}")

    def _check_limits(self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> None:
        if min(grid) < 1 or grid[0] >= 2**31 or max(grid[1:]) > 65535:
            raise ValueError(f"grid {grid}: allowed are 1..2147483647, 1..65535, 1..65535")
        if min(block) < 1 or block[2] > 64 or block[0] * block[1] * block[2] > 1024:
            raise ValueError(f"block {block}: allowed are 1024 threads, and 64 along z")
        allowed = self.max_dynamic_shared_size_bytes
        if not 0 <= shared_mem <= min(allowed, SHARED_LIMIT):
            raise ValueError(
                f"shared_mem {shared_mem}: allowed are {allowed} bytes "
                f"(max_dynamic_shared_size_bytes; a device has {SHARED_LIMIT})"
            )

    def _values(self, args: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        parameters = self.kernel.parameters[: self.kernel.count]
        if len(args) != len(parameters):
            raise TypeError(f"the kernel takes {len(parameters)} arguments, not {len(args)}")
        return [
            _value(number, argument, parameter.kind.decode(), parameter.size)
            for number, (argument, parameter) in enumerate(zip(args, parameters, strict=True))
        ]

    def _regions(self, args: Sequence[Any]) -> list[tuple[int, int, bool]]:
        """Where each array lies, and whether the kernel may write there."""
        parameters = self.kernel.parameters[: self.kernel.count]
        return [
            (*np.lib.array_utils.byte_bounds(a), a.flags.writeable and parameter.writable)
            for a, parameter in zip(args, parameters, strict=True)
            if isinstance(a, np.ndarray) and not _is_struct(a)
        ]

    def _with_lines(self, text: str) -> str:
        def line(match: re.Match[str]) -> str:
            return _run("addr2line", "-s", "-e", self.module.path, match[1]).stdout.split()[0]

        return re.sub("<(0x[0-9a-f]+)>", line, text)


def _three(name: str, size: Sequence[int]) -> tuple[int, int, int]:
    if not 1 <= len(size) <= 3:
        raise ValueError(f"{name} {size}: one to three numbers")
    x, y, z = (*map(int, size), 1, 1)[:3]
    return x, y, z


def _is_struct(value: np.ndarray[Any, Any] | np.generic) -> bool:
    return value.dtype.names is not None and value.size == 1


def _value(number: int, value: Any, kind: str, size: int) -> np.ndarray[Any, Any]:
    """The bytes of one argument: an array's address, a scalar, a struct."""
    if value is None or (kind == "p" and isinstance(value, np.uintp) and value == 0):
        given, packed = "p", np.array(0, np.uint64)
    elif isinstance(value, np.ndarray | np.generic) and _is_struct(value):
        given, packed = "s", np.array(value)
    elif isinstance(value, np.ndarray):
        given, packed = "p", np.array(value.ctypes.data, np.uint64)
    elif isinstance(value, np.generic):
        given, packed = ("i" if value.dtype.kind in "iub" else "f"), np.array(value)
    else:
        raise TypeError(
            f"argument {number}: a {type(value).__name__}; pass NumPy arrays and scalars, "
            "whose size is exact"
        )
    half = given == "f" and kind == "s" and size == 2  # 16-bit floats are classes
    if (given != kind and not half) or packed.nbytes != size:
        words = {"p": "an array", "i": "an integer", "f": "a float", "s": "a struct"}
        raise TypeError(
            f"argument {number}: {words[given]} of {packed.nbytes} bytes, but the kernel takes "
            f"{words[kind]} of {size}"
        )
    return packed


# ---- sanitizers in a child process ----


def run_sanitized(
    *arguments: str, timeout: float = 300, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments ("-c", code or "-m", "pytest", ...) under ASan and UBSan."""
    libraries = [
        _run(compiler()[0], f"-print-file-name={name}").stdout
        for name in ("libasan.so", "libstdc++.so")  # libstdc++ first, else ASan misses its throw
    ]
    child = {
        **os.environ,
        "GPUPOOL_EMULATOR_BUILD": "address",
        "LD_PRELOAD": " ".join(str(Path(library.strip()).resolve()) for library in libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        **(environment or {}),
    }
    command = (sys.executable, *arguments)
    return _run(*command, cwd=HERE.parent, env=child, timeout=timeout, check=False)


# ---- coverage ----


@dataclass
class LineCoverage:
    """Line numbers of one file."""

    executed: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)


def write_coverage(folder: Path) -> None:
    """Writes the counters of this process's modules since the last call into `folder`."""
    before = os.environ.get("GCOV_PREFIX")
    os.environ["GCOV_PREFIX"] = str(folder / str(os.getpid()))
    for library in _loaded.values():
        if hasattr(library, "cuda_on_cpu_dump"):
            library.cuda_on_cpu_dump()
    del os.environ["GCOV_PREFIX"]
    if before is not None:
        os.environ["GCOV_PREFIX"] = before


def line_coverage(folder: Path, include_dir: Path) -> dict[str, LineCoverage]:
    """What every process wrote into `folder`: lines of each file, over all its instantiations."""
    files: defaultdict[str, LineCoverage] = defaultdict(LineCoverage)
    for data in sorted(folder.rglob("*.gcda")):
        for name, number, count in _gcov(data):
            if Path(name).parent == include_dir:
                found = files[Path(name).name]
                (found.executed if count else found.missed).add(number)
    for found in files.values():
        found.missed -= found.executed
    return dict(files)


def _gcov(data: Path) -> Iterator[tuple[str, int, int]]:
    notes = cache_dir() / data.parent.name / f"{data.stem}.gcno"  # of the same toolchain
    with tempfile.TemporaryDirectory() as scratch:
        for file in (data, notes):
            shutil.copy(file, scratch)
        report = _run("gcov", "--json-format", "--stdout", data.name, cwd=scratch).stdout
    for line in report.splitlines():
        for file in json.loads(line)["files"]:
            for entry in file["lines"]:
                yield file["file"], entry["line_number"], entry["count"]


# ---- arrays for tests ----


def virtual_array(shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray[Any, Any]:
    """An array of zeros whose pages cost memory only once they are written or read."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=object))
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, max(count * dtype.itemsize, 1), flags=flags)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def sentinel_array(
    shape: Sequence[int], dtype: np.typing.DTypeLike, sentinel: int, guard: int = 0
) -> np.ndarray[Any, Any]:
    """An array of which every byte is the sentinel, to be an output.

    Within `guard` bytes of it lies no other array. The checked build then sees that an access is
    astray; else it may hit this array, and pass for a read of it.
    """
    size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    memory = np.empty(guard + size + guard, np.uint8)[guard : guard + size]
    memory[...] = sentinel
    return memory.view(dtype).reshape(shape)


def unwritten(results: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Flat positions that still hold the sentinel in both of two runs, one per SENTINELS."""
    untouched = [
        (array.reshape(-1, 1).view(np.uint8) == sentinel).all(axis=1)
        for array, sentinel in zip(results, SENTINELS, strict=True)
    ]
    return np.flatnonzero(untouched[0] & untouched[1])
