"""The command ``gpupool``: pool, preprocess, shape, verify, run, info and bench.

A subcommand is one row of COMMANDS: its name, its sentence, its arguments and the function that
runs it. An option that stands for an argument of the pooling functions is one row of ATTRIBUTES.
The command turns text into numbers; what these may be is decided where every caller's are.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import json
import re
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

import numpy as np

import gpupool
from gpupool import device, files, folder, images, ops, opset, placement, problem, validate, verify
from gpupool import run as models
from gpupool.dtypes import BFLOAT16, DTYPES
from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError
from gpupool.placement import on_gpu
from gpupool.terminal import (
    EXIT_FAILED,
    EXIT_USAGE,
    UsageError,
    add_debug,
    by_x,
    complain,
    flush,
    guarded,
    integers,
    joined,
    printable,
    progress,
    say,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpupool.arrays import Array
    from gpupool.problem import PoolProblem

POOLS = {
    op: function
    for op, function in ops.FUNCTIONS.items()
    if op not in ("MaxUnpool", "MaxRoiPool", "RoiAlign")
}
"""The operators of the command: one array, or one image, in and out."""


# Text to values


def number(text: str) -> int | float:
    """Return an integer where the text is one, else a float.

    >>> number("2"), number("1.5")
    (2, 1.5)
    """
    try:
        return int(text)
    except ValueError:
        return float(text)


def auto_pad(text: str) -> str:
    """Return the ONNX spelling.

    >>> auto_pad("same-upper")
    'SAME_UPPER'
    """
    return text.upper().replace("-", "_")


def shape(text: str) -> tuple[int, ...]:
    """Return the sizes in a text such as 1x64x112x112.

    >>> shape("1x64x112")
    (1, 64, 112)
    """
    if not re.fullmatch(r"[0-9]{1,19}(x[0-9]{1,19})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1x64x112x112")
    return tuple(int(size) for size in text.split("x"))


def path(text: str) -> Path:
    """Return a path; an empty text, as of a variable that is not set, would be the folder here.

    >>> path("a/b.npy")
    PosixPath('a/b.npy')
    """
    if not text:
        raise argparse.ArgumentTypeError("'' is not a path; the folder here is .")
    return Path(text)


def operator(text: str) -> str:
    """Return the ONNX name of one of POOLS, given that or its short form.

    >>> operator("global-max"), operator("LpPool")
    ('GlobalMaxPool', 'LpPool')
    """
    shorts = {opset.OPERATORS[name].short: name for name in POOLS}
    name = shorts.get(text, text)
    if name not in POOLS:
        allowed = ", ".join([*shorts, *POOLS])
        raise argparse.ArgumentTypeError(f"{text!r} must be one of {allowed}")
    return name


# Attributes


@dataclass(frozen=True)
class Attribute:
    """An option, the argument that it stands for, and how its text is read (None: a flag)."""

    option: str
    name: str
    read: Callable[[str], Any] | None
    help: str
    geometry: bool = True


ATTRIBUTES = (
    Attribute("--kernel", "kernel_shape", integers, "taps along each axis, such as 3 or 3,5"),
    Attribute("--stride", "strides", integers, "steps along each axis (1)"),
    Attribute("--pad", "pads", integers, "one pad for all, or all begins, then all ends (0)"),
    Attribute("--dilation", "dilations", integers, "distance between taps (1)"),
    Attribute("--auto-pad", "auto_pad", auto_pad, "same-upper, same-lower, valid or notset"),
    Attribute("--ceil", "ceil_mode", None, "round the output size up"),
    Attribute("--include-pad", "count_include_pad", None, "count pads in the divisor", False),
    Attribute("--p", "p", number, "the norm of lp and global-lp (2)", False),
    Attribute("--dtype", "dtype", str, "float dtype for averages of 8-bit arrays", False),
)


def _add_attributes(parser: argparse.ArgumentParser, *, geometry_only: bool) -> None:
    for row in ATTRIBUTES:
        if geometry_only and not row.geometry:
            continue
        common: dict[str, Any] = {
            "dest": row.name,
            "default": argparse.SUPPRESS,  # what is not given stays the library's default
            "help": row.help,
        }
        if row.read is None:
            parser.add_argument(row.option, action="store_true", **common)
        else:
            metavar = row.option.removeprefix("--").upper()
            parser.add_argument(row.option, type=row.read, metavar=metavar, **common)


def _attributes(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line gives; refuse options that the operator does not have."""
    takes = inspect.signature(POOLS[args.op]).parameters
    given = [row for row in ATTRIBUTES if hasattr(args, row.name)]
    for row in given:
        if row.name not in takes:
            raise UsageError(f"{row.option} does not apply to {args.op}")
    if "kernel_shape" in takes and not hasattr(args, "kernel_shape"):
        raise UsageError(f"{args.op} needs --kernel")
    return {row.name: getattr(args, row.name) for row in given}


# gpupool pool


@dataclass(frozen=True)
class Job:
    """An operator with its attributes, where it runs, and what its outputs may replace."""

    op: str
    attributes: Mapping[str, Any]
    gpu: bool
    force: bool
    indices: Path | None

    def run(self, name: str, x: Array, **layout: Any) -> tuple[tuple[Array, ...], str]:
        """Return the outputs and a report; the clock leaves out the copies to and from a GPU."""
        source = device.to_device(x) if self.gpu else x
        start = time.perf_counter()
        result = POOLS[self.op](source, **self.attributes, **layout)
        if self.gpu:
            device.synchronize()
        seconds = time.perf_counter() - start
        results = result if isinstance(result, tuple) else (result,)
        outputs = tuple(device.to_host(y) if self.gpu else y for y in results)
        megabytes = (x.nbytes + sum(y.nbytes for y in outputs)) / 1e6
        y = outputs[0]
        return outputs, (
            f"{name}: {self.op} on {self.place}, "
            f"{by_x(x.shape)} {x.dtype} -> {by_x(y.shape)} {y.dtype}, "
            f"{seconds * 1e3:.2f} ms, {megabytes / max(seconds, 1e-9):.1f} MB/s"
        )

    @property
    def place(self) -> str:
        """The device, and why it is not the GPU."""
        if self.gpu:
            return f"the GPU ({device.current_name()})"
        found = device.fault()
        return f"the CPU (GPU off: {found.reason})" if found else "the CPU"


def _pool_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input", metavar="INPUT", type=Path, help=".npy, .zarr, image or image folder"
    )
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="another of the same kind")
    parser.add_argument(
        "--op",
        metavar="OP",
        type=operator,
        required=True,
        help=f"{', '.join(opset.OPERATORS[name].short for name in POOLS)}, or the ONNX name",
    )
    _add_attributes(parser, geometry_only=False)
    parser.add_argument(
        "--indices", metavar="FILE", type=Path, help="also write max's Indices, as .npy or .zarr"
    )
    placement.add_option(parser)
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument("--workers", metavar="N", type=int, help="processes, for .zarr (2)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="of each worker, for .zarr, such as 1GiB (its share)"
    )


def _pool(args: argparse.Namespace) -> int:
    run = _check_kinds(args.input, args.output)
    _check_indices(args)
    for option in ("workers", "memory"):
        if getattr(args, option) is not None and run is not _pool_store:
            raise UsageError(f"--{option} applies to .zarr arrays")
    return run(args)


def _check_kinds(source: Path, target: Path) -> Callable[[argparse.Namespace], int]:
    """Return what pools this kind of input; refuse an output of another kind."""
    ending = target.suffix.lower()
    if source.suffix.lower() == ".zarr":
        if ending != ".zarr":
            raise UsageError(f"INPUT is a .zarr array, so OUTPUT must end in .zarr, not {target}")
        return _pool_store
    if source.is_dir():
        if ending in (".npy", *images.FORMATS):
            raise UsageError(f"{source} is a folder, so OUTPUT must name a folder, not {target}")
        return _pool_folder
    if source.suffix.lower() == ".npy":
        if ending != ".npy":
            raise UsageError(f"INPUT is a .npy array, so OUTPUT must end in .npy, not {target}")
        return _pool_array
    if ending not in images.FORMATS:
        endings = ", ".join(images.FORMATS)
        if source.suffix.lower() not in images.FORMATS:
            what = f"is none of .npy, .zarr, {endings} or a folder"
            raise UsageError(f"INPUT {source} {what if source.exists() else 'does not exist'}")
        raise UsageError(f"INPUT is an image, so OUTPUT must end in one of {endings}, not {target}")
    return _pool_image


def _check_indices(args: argparse.Namespace) -> None:
    if args.indices is None:
        return
    if args.op != "MaxPool":
        raise UsageError(f"--indices does not apply to {args.op}")
    store = args.input.suffix.lower() == ".zarr"
    if args.input.is_dir() and not store:
        raise UsageError("--indices takes one array or image, not a folder")
    ending = ".zarr" if store else ".npy"
    if args.indices.suffix.lower() != ending:
        raise UsageError(f"--indices must end in {ending}, not {args.indices}")
    if args.indices.resolve() == args.output.resolve():
        raise UsageError("--indices and OUTPUT name the same file")


def _job(args: argparse.Namespace) -> Job:
    attributes = _attributes(args)
    if args.indices is not None:
        attributes["return_indices"] = True
    return Job(args.op, attributes, on_gpu(args.device), args.force, args.indices)


LARGE_IMAGE = (1, 2**40, 2**40, 3)
"""What any window fits into: arguments that are refused for it are wrong for every image."""


def _image_job(args: argparse.Namespace) -> Job:
    if hasattr(args, "dtype"):
        raise UsageError("--dtype applies to .npy arrays: an image keeps its own")
    job = _job(args)
    _resolved(job, LARGE_IMAGE, np.dtype(np.uint8))
    return job


def _pool_array(args: argparse.Namespace) -> int:
    x = files.read_array(args.input, bfloat16=getattr(args, "dtype", None) == "bfloat16")
    if x.dtype == BFLOAT16.numpy:
        del args.dtype  # it said what the file holds
    _write(_job(args), args.output, args.input, x, files.write_array)
    return 0


def _pool_store(args: argparse.Namespace) -> int:
    """Pool a store chunk by chunk on a local cluster; the module needs dask."""
    try:
        from gpupool import stores
    except ImportError as error:
        raise GpupoolError(f'{error}; .zarr arrays need: pip install "gpupool[dask]"') from error
    job = _job(args)
    with usage():
        count = validate.integer("workers", 2 if args.workers is None else args.workers, 1, 1024)
    done = stores.pool(
        args.input,
        tuple(path for path in (args.output, args.indices) if path is not None),
        POOLS[job.op].__name__,
        job.attributes,
        stores.Workers(count, args.memory),
        gpu=job.gpu,
        force=job.force,
    )
    say(
        f"{args.input.name}: {job.op} on {job.place}, {validate.counted(count, 'worker')}, "
        f"{by_x(done.before.shape)} {done.before.dtype} -> "
        f"{by_x(done.after.shape)} {done.after.dtype}, "
        f"{done.seconds:.1f} s, {done.nbytes / 1e6 / done.seconds:.1f} MB/s"
    )
    return 0


def _pool_image(args: argparse.Namespace) -> int:
    _pool_one_image(_image_job(args), args.input, args.output)
    return 0


def _pool_one_image(job: Job, source: Path, target: Path) -> None:
    picture = images.read(source)
    pixels = picture.pixels
    form = images.format_for(target, pixels)
    with _about(source):
        resolved = _resolved(job, pixels.shape, pixels.dtype)
    x = pixels.astype(resolved.dtype.numpy, copy=False)
    pooled = resolved.outputs[0]
    images.check_size(target, form, images.mode_of(pixels), *pooled.shape[1:3])

    def save(file: BinaryIO, y: Array) -> None:
        result = replace(picture, pixels=images.quantise(y, pixels.dtype))
        with files.writing(target):
            images.write(file, result, form)

    _write(job, target, source, x, save, channels_last=True)


def _resolved(job: Job, shape: tuple[int, ...], dtype: np.dtype[Any]) -> problem.Problem:
    """Return the call on the pixels of an image, in the dtype in which they are computed."""
    computed = {row.numpy for row in opset.OPERATORS[job.op].dtypes}
    # float64 sums 16 bits without an error: only a result is rounded
    x_dtype = dtype if dtype in computed else np.float64
    return problem.resolve(job.op, shape, x_dtype, **job.attributes, channels_last=True)


def _write(
    job: Job,
    target: Path,
    source: Path,
    x: Array,
    save: Callable[[BinaryIO, Array], None],
    **layout: Any,
) -> None:
    """Run the job between opening its outputs, which checks them, and putting them in place."""
    paths = [path for path in (target, job.indices) if path is not None]
    with ExitStack() as stack:
        opened = [stack.enter_context(files.whole(path, force=job.force)) for path in paths]
        with _about(source):
            outputs, report = job.run(source.name, x, **layout)
        for file, array, write in zip(opened, outputs, (save, files.write_array), strict=False):
            write(file, array)
    say(report)


@contextmanager
def _about(source: Path) -> Iterator[None]:
    """Say of an argument that is refused for which file it is."""
    try:
        yield
    except (GpupoolValueError, GpupoolTypeError) as error:
        raise type(error)(f"{source}: {error}") from error


def _pool_folder(args: argparse.Namespace) -> int:
    """Pool every image of a folder under its own name into another; name what fails and go on."""
    job = _image_job(args)
    sources, others = images.in_folder(args.input)
    done = 0
    with files.folder(args.output):
        for source in progress(sources, "pooling"):
            try:
                _pool_one_image(job, source, args.output / source.name)
            except Exception as error:
                complain(error, debug=args.debug, about=source.name)
            else:
                done += 1
    say(
        f"{done} of {validate.counted(len(sources), 'image')} pooled into {args.output}"
        + (f"; {others} other {'entry' if others == 1 else 'entries'} left alone" if others else "")
    )
    return 0 if done == len(sources) else EXIT_FAILED


# gpupool shape


def _shape_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", metavar="OP", type=operator, help="as for pool --op")
    parser.add_argument("shape", metavar="SHAPE", type=shape, help="of x, such as 1x64x112x112")
    _add_attributes(parser, geometry_only=True)


def _shape(args: argparse.Namespace) -> int:
    resolved = cast(
        "PoolProblem", problem.resolve(args.op, args.shape, "float32", **_attributes(args))
    )
    print(by_x(resolved.outputs[0].shape))
    for i, axis in enumerate(resolved.window):
        print(
            f"axis {i}: size {axis.size}, kernel {axis.kernel}, stride {axis.stride}, "
            f"dilation {axis.dilation}, pads {axis.pad_begin} + {axis.pad_end}, output {axis.out}"
        )
    return 0


# gpupool info


def _info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")


def _info(args: argparse.Namespace) -> int:
    facts = {"gpupool": gpupool.__version__, **device.facts()}
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for label, text in _info_rows(facts):
        print(printable(f"{label + ':':<14}{text}"))
    return 0


def _info_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "gpupool", facts["gpupool"]
    yield "Python", f"{facts['python']} on {facts['platform']}"
    for name, version in facts["packages"].items():
        yield name, version or "not installed"
    cupy = facts["cupy"]
    installed = ", ".join(f"{name} {v}" for name, v in cupy["distributions"].items())
    yield "CuPy", installed or cupy["version"] or "not installed"
    if installed and cupy["error"]:
        yield "import cupy", cupy["error"]
    yield "driver", f"CUDA {facts['driver']}" if facts["driver"] else "none"
    yield "NVRTC", facts["nvrtc"] or "none"
    yield "CUDA headers", facts["headers"] or "none"
    for found in facts["devices"]:
        memory = f"{found['memory_bytes'] / 2**30:.1f} GiB"
        capability = f"compute capability {found['compute_capability']}"
        units = f"{found['multiprocessors']} multiprocessors"
        yield f"device {found['index']}", ", ".join((found["name"], capability, units, memory))
    private = {True: "private", False: "not private", None: "private or not: unknown"}
    state = "" if facts["cache"]["exists"] else ", not there yet"
    yield "kernel cache", f"{facts['cache']['path']} ({private[facts['cache']['private']]}{state})"
    gpu = facts["gpu"]
    yield "GPU", "on" if gpu["available"] else f"off: {gpu['reason']}"
    if not gpu["available"]:
        yield "to mend it", gpu["remedy"]
    for warning in facts["warnings"]:
        yield "warning", warning


# gpupool verify


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", metavar="OP", help="one operator, ONNX name or short form (all)")
    parser.add_argument("--dtype", choices=[row.name for row in DTYPES], help="one dtype (all)")
    parser.add_argument("--n", type=int, default=200, help="random calls (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the random calls (0)")
    placement.add_option(parser)
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def _verify(args: argparse.Namespace) -> int:
    for option, least in (("n", 1), ("seed", 0)):
        if (number := getattr(args, option)) < least:
            raise UsageError(f"--{option} {number} must be at least {least}")
    with usage():
        op = None if args.op is None else opset.find(args.op).name
    report = verify.run(args.n, args.seed, args.device, op, args.dtype, progress)
    if args.json:
        print(json.dumps(report.facts(), indent=2))
    else:
        for line in report.lines():
            print(printable(line))
    return EXIT_FAILED if report.mismatch else 0


# gpupool bench


def _bench() -> Any:
    """Return the benchmark: inside the wheel, or beside gpupool in a checkout."""
    beside = Path(gpupool.__file__).resolve().parents[1] / "bench" / "__main__.py"
    if find_spec("gpupool.bench"):
        return importlib.import_module("gpupool.bench.__main__")
    if beside.exists():
        return importlib.import_module("bench.__main__")
    raise GpupoolError(f"the benchmark is missing: it is not in gpupool, nor at {beside}")


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    _bench().arguments(parser)


def _run_bench(args: argparse.Namespace) -> int:
    return int(_bench().run(args))


# The command


@dataclass(frozen=True)
class Command:
    """A subcommand: its sentence in the help, its arguments, and what it does."""

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = (
    Command("pool", "pool a .npy array, an image or a folder of images", _pool_arguments, _pool),
    Command(
        "preprocess", "make a folder of images one normalised array", folder.arguments, folder.run
    ),
    Command("shape", "print output shape and pads without any data", _shape_arguments, _shape),
    Command("verify", "compare GPU, CPU and other libraries", _verify_arguments, _verify),
    Command("run", "run an ONNX model, its pooling on gpupool", models.arguments, models.run),
    Command("info", "print versions, devices, and why the GPU is off", _info_arguments, _info),
    Command("bench", "time GPU, CPU and peers; count instructions", _bench_arguments, _run_bench),
)


class _Parser(argparse.ArgumentParser):
    """Reports bad usage in one escaped line; takes arguments once its command is asked for."""

    command: Command | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("type", Path, path)  # for every command's arguments

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, for a subcommand after adding what it takes: the others need no import."""
        if self.command:
            self.command.arguments(self)
            self.command = None
        return super().parse_known_args(joined(sys.argv[1:] if args is None else args), namespace)

    def error(self, message: str) -> NoReturn:
        say(f"gpupool: error: {message} ({self.prog} --help lists the options)", "red")
        raise SystemExit(EXIT_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpupool",
        description="The ONNX pooling operators on arrays and images.",
        epilog="Exit status: 0 done, 1 the job failed, 2 bad usage, 3 worse (bench --compare). "
        "Any error of bench is 2, a wrong result 1.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpupool {gpupool.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.summary, description=command.summary, allow_abbrev=False
        )
        sub.command = command
        add_debug(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; bad usage exits at once."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # which stderr has from the start
    try:
        args = _parser().parse_args(argv)
        return guarded(args.run, args)
    finally:
        flush()  # what --help printed, too
