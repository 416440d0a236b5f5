"""``gpupool preprocess``: a folder of images as one array, decoded in threads ahead of the work."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gpupool import device, files, images, placement, preprocessing, validate
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.placement import on_gpu
from gpupool.terminal import (
    EXIT_FAILED,
    UsageError,
    by_x,
    complain,
    integers,
    numbers,
    printable,
    progress,
    say,
    usage,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from gpupool.arrays import Array


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("input", metavar="FOLDER", type=Path, help="of images")
    parser.add_argument("output", metavar="OUT.npy", type=Path, help="the array, a row an image")
    for option, kind, text in (
        ("--pool", integers, "average tiles of so many pixels, such as 4 or 4,2 (1)"),
        ("--mean", numbers, "subtracted after scaling; one number or R,G,B"),
        ("--std", numbers, "divided by after that; one number or R,G,B"),
        ("--scale", float, "what pixels are multiplied by (1/255)"),
        ("--crop", integers, "height and width of each row's image, cut from the middle"),
    ):
        needed = option in ("--mean", "--std")
        given: dict[str, Any] = {"required": True} if needed else {"default": None}
        metavar = option.removeprefix("--").upper()
        parser.add_argument(option, metavar=metavar, type=kind, help=text, **given)
    parser.add_argument("--dtype", help="float16 (the default), bfloat16, float32 or float64")
    parser.add_argument("--layout", choices=preprocessing.LAYOUTS, help="of the array (NCHW)")
    parser.add_argument(
        "--channel-order", choices=preprocessing.CHANNEL_ORDERS, help="of the array (RGB)"
    )
    parser.add_argument(
        "--names", metavar="FILE.txt", type=Path, help="also write the name of each row's image"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="that decode (one for each CPU)")
    placement.add_option(parser)
    parser.add_argument("--force", action="store_true", help="replace files that exist")


OPTIONS = ("pool", "mean", "std", "scale", "crop", "dtype", "layout", "channel_order")
"""What the command line and the function call alike; what is not given is the function's."""


def run(args: Namespace) -> int:
    """Preprocess every image of a folder; name what fails and go on."""
    if args.output.suffix.lower() != ".npy":
        raise UsageError(f"OUT must end in .npy, not {args.output}")
    if args.names and args.names.resolve() == args.output.resolve():
        raise UsageError("--names and OUT name the same file")
    chosen = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    preprocessing.resolve((1, 2**30, 2**30, 3), "uint8", **chosen)  # before any file is read
    threads = os.cpu_count() or 1 if args.threads is None else args.threads
    with usage():
        validate.integer("threads", threads, 1, 1024)
    gpu = on_gpu(args.device)
    sources, _ = images.in_folder(args.input)
    start = time.perf_counter()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        rows = Rows(stack.enter_context(files.whole(args.output, force=args.force)), len(sources))
        listed = args.names and stack.enter_context(files.whole(args.names, force=args.force))
        ahead = _ahead(pool, sources, 2 * threads)
        for source in progress(sources, "preprocessing"):
            try:
                row = _preprocessed(next(ahead).result(), gpu=gpu, chosen=chosen)
                rows.check(row)
            except Exception as error:
                complain(error, debug=args.debug, about=source.name)
                continue
            with files.writing(args.output):
                rows.append(row)
            if listed:
                with files.writing(args.names):
                    listed.write(f"{printable(source.name)}\n".encode())
        if not rows.count:
            raise GpupoolValueError(f"{args.input}: no image could be preprocessed")
        with files.writing(args.output):
            rows.finish()
    seconds = time.perf_counter() - start
    say(
        f"{rows.count} of {validate.counted(len(sources), 'image')} in {args.output} on the "
        f"{'GPU' if gpu else 'CPU'}, {by_x(rows.shape)} {rows.dtype}, {seconds:.2f} s, "
        f"{rows.count / seconds:.1f} images/s"
    )
    return 0 if rows.count == len(sources) else EXIT_FAILED


def _ahead(pool: ThreadPoolExecutor, sources: Sequence[Path], most: int) -> Iterator[Future[Array]]:
    """Yield decoded images in order, ``most`` of them under way: memory stays bounded."""
    waiting: deque[Future[Array]] = deque()
    for source in sources:
        waiting.append(pool.submit(_decoded, source))
        if len(waiting) == most:
            yield waiting.popleft()
    yield from waiting


def _decoded(source: Path) -> Array:
    """Return the picture as 1 x H x W x RGB: grey three times, alpha left out."""
    pixels = images.read(source).pixels
    if pixels.dtype != np.uint8:
        raise GpupoolTypeError(f"{source}: grey of 16 bits; convert it to 8 bits")
    colours = pixels[..., : 3 if pixels.shape[-1] > 2 else 1]
    return np.broadcast_to(colours, (*pixels.shape[:-1], 3))


def _preprocessed(pixels: Array, *, gpu: bool, chosen: dict[str, Any]) -> Array:
    if not gpu:
        row: Array = preprocessing.preprocess(pixels, **chosen)
        return row
    on_device = preprocessing.preprocess(device.to_device(pixels), **chosen)
    result: Array = device.to_host(on_device)
    return result


@dataclass
class Rows:
    """A .npy file that is written row by row, at most ``most`` of them.

    >>> file = io.BytesIO()
    >>> rows = Rows(file, 9)
    >>> rows.append(np.ones((1, 2))), rows.append(np.zeros((1, 2))), rows.finish()
    (None, None, None)
    >>> np.load(io.BytesIO(file.getvalue()))
    array([[1., 1.],
           [0., 0.]])
    """

    file: BinaryIO
    most: int
    count: int = 0
    row: tuple[int, ...] = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float16))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what was written so far."""
        return (self.count, *self.row)

    def check(self, row: Array) -> None:
        """Refuse an array of one row whose shape is not that of the first."""
        if self.count and row.shape[1:] != self.row:
            raise GpupoolValueError(
                f"comes out as {by_x(row.shape[1:])}, where the first image is {by_x(self.row)}: "
                f"--crop makes them equal"
            )

    def append(self, row: Array) -> None:
        """Write an array of one row."""
        if not self.count:
            self.row, self.dtype = row.shape[1:], row.dtype
            self.file.write(self._header(self.most))
        self.file.write(np.ascontiguousarray(row).tobytes())
        self.count += 1

    def finish(self) -> None:
        """Write the header again, now that the number of rows is known; it is as long."""
        self.file.seek(0)
        self.file.write(self._header(self.count))

    def _header(self, count: int) -> bytes:
        """Return NumPy's header for so many rows, which has room for more digits."""
        header = io.BytesIO()
        described = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (count, *self.row),
        }
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()
