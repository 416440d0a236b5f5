"""``gpupool run``: a whole ONNX model on arrays from files, its pooling nodes on gpupool."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from contextlib import ExitStack
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupool import files, placement
from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError
from gpupool.terminal import by_x, printable, say
from gpupool.validate import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from gpupool.session import Difference, Profile, Session


def named_file(text: str) -> tuple[str, Path]:
    """Return name and path of NAME=FILE.npy.

    >>> named_file("x=a/b.npy")
    ('x', PosixPath('a/b.npy'))
    """
    name, equals, path = text.rpartition("=")
    if not (name and equals and path.lower().endswith(".npy")):
        raise ArgumentTypeError(
            f"{text!r} is not NAME=FILE.npy, an input of the model and its file"
        )
    return name, Path(path)


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("model", metavar="MODEL.onnx", type=Path, help="the model")
    parser.add_argument(
        "--input",
        metavar="NAME=FILE.npy",
        type=named_file,
        action="append",
        default=[],
        help="an input of the model; once for each",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="where each output is written as NAME.npy (default: nowhere)",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also run plain onnxruntime and compare"
    )
    parser.add_argument("--profile", action="store_true", help="print each pooling node's time")
    placement.add_option(parser, of="the pooling nodes")
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(args: Namespace) -> int:
    """Run the model; write its outputs, and print what is asked for."""
    session = _session(args)
    feeds = _read(session, args.input)
    targets = _targets(session, args.output_dir)
    with ExitStack() as stack:
        if args.output_dir is not None:
            stack.enter_context(files.folder(args.output_dir))
        opened = [stack.enter_context(files.whole(path, force=args.force)) for path in targets]
        if args.profile:
            session.run(None, feeds)  # a first run compiles kernels and touches memory
        profile = session.profile(None, feeds)
        for file, array in zip(opened, profile.outputs, strict=False):
            files.write_array(file, array)
    pooling = sum(row.seconds for row in profile.rows)
    say(
        f"{args.model.name}: {counted(len(profile.rows), 'pooling node')} on the "
        f"{'GPU' if session.on_gpu else 'CPU'}, {counted(len(profile.outputs), 'output')}, "
        f"{profile.seconds * 1e3:.2f} ms, {pooling * 1e3:.2f} ms of them pooling"
    )
    if args.profile:
        _print_profile(profile)
    if args.compare:
        _print_differences(session.compare(profile.outputs, feeds))
    return 0


def _session(args: Namespace) -> Session:
    try:
        from gpupool.session import Session
    except ImportError as error:
        raise GpupoolError(
            f"running models needs onnx and onnxruntime ({error}): pip install 'gpupool[onnx]'"
        ) from error
    return Session(args.model, device=args.device)


def _read(session: Session, inputs: Sequence[tuple[str, Path]]) -> dict[str, Any]:
    feeds: dict[str, Any] = {}
    for name, path in inputs:
        if name in feeds:
            raise GpupoolValueError(f"input {name!r} is given twice")
        feeds[name] = files.read_array(path, bfloat16=name in session.bfloat16_names)
    return feeds


def _targets(session: Session, folder: Path | None) -> list[Path]:
    """Return a file of its own in ``folder`` for each output, whatever characters its name has."""
    if folder is None:
        return []
    for name, kind in session.object_outputs.items():
        raise GpupoolTypeError(
            f"output {name!r} is a {kind}, for which .npy has no form: the model runs without "
            f"--output-dir"
        )
    targets: list[Path] = []
    for name in session.output_names:
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name).lstrip('.') or 'output'}.npy"
        numbered = (path.with_stem(f"{path.stem}-{i}") for i in count(1))
        targets.append(next(free for free in chain([path], numbered) if free not in targets))
    return targets


def _print_profile(profile: Profile) -> None:
    head = ("node", "operator", "shape", "attributes", "ms", "MB/s", "share")
    rows = (
        (
            row.node.name,
            row.node.op,
            f"{by_x(row.shape)} -> {by_x(row.out_shape)}",
            " ".join(f"{name}={_short(value)}" for name, value in row.node.attributes.items()),
            f"{row.seconds * 1e3:.3f}",
            f"{row.nbytes / 1e6 / max(row.seconds, 1e-9):.1f}",
            f"{100 * row.seconds / profile.seconds:.1f} %",
        )
        for row in profile.rows
    )
    for line in _aligned([head, *rows]):
        print(line)


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield lines of columns, numbers to the right, names escaped."""
    cells = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            cell.rjust(width) if i > 3 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()


def _print_differences(differences: Sequence[Difference]) -> None:
    for found in differences:
        print(
            printable(
                f"{found.name}: {by_x(found.shape)} {found.dtype}, largest difference from "
                f"onnxruntime {found.largest:.3g}, beside values up to {found.magnitude:.3g}"
            )
        )
