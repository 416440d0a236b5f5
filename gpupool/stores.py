"""Zarr stores pooled chunk by chunk on a cluster of processes: arrays larger than memory."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from dask.utils import format_bytes, parse_bytes
from distributed import Client, KilledWorker, LocalCluster

import gpupool.dask
from gpupool import device, files
from gpupool.dtypes import find
from gpupool.errors import GpupoolError, GpupoolMemoryError, GpupoolValueError
from gpupool.terminal import INTERRUPTS, progress

SHARE = 4
"""How many times a block, input and outputs, a worker has to have room for."""

OWN = 192 * 2**20
"""Bytes that a worker takes without any block: with less, dask ends and restarts it for ever."""


@dataclass(frozen=True)
class Workers:
    """The local cluster: how many processes, and the memory that each may use ("1GiB")."""

    count: int
    memory: str | None = None

    @property
    def limit(self) -> int | None:
        """Bytes for each worker; None leaves each its share of the machine."""
        if self.memory is None:
            return None
        try:
            return int(parse_bytes(self.memory))
        except (ValueError, OverflowError):
            raise GpupoolValueError(
                f"memory = {self.memory!r} is not a size such as 512MiB or 2GiB"
            ) from None


@dataclass(frozen=True)
class Report:
    """What was pooled: shape and dtype before and after, bytes moved, and how long it took."""

    before: Any
    after: Any
    nbytes: int
    seconds: float


def pool(
    source: Path,
    targets: tuple[Path, ...],
    function: str,
    attributes: Mapping[str, Any],
    workers: Workers,
    *,
    gpu: bool = False,
    force: bool = False,
) -> Report:
    """Pool the array of one store into others: Y, and Indices where ``attributes`` ask for them.

    A store appears under its name once all of it is written. Nothing is resumed: a run that was
    interrupted leaves no store, and the next one starts over.
    """
    limit = workers.limit
    _check_apart(source, targets)
    x = _opened(source)
    moved = x.map_blocks(device.to_device, meta=x._meta) if gpu else x
    result = getattr(gpupool.dask, function)(moved, **attributes)
    outputs = [_regular(y) for y in (result if isinstance(result, tuple) else (result,))]
    _check_memory(x, outputs, limit)
    start = time.perf_counter()
    with ExitStack() as stack:
        parts = [stack.enter_context(whole_store(path, force=force)) for path in targets]
        for y, part in zip(outputs, parts, strict=True):
            zarr.create_array(part, shape=y.shape, dtype=y.dtype, chunks=y.chunksize)
        paths = [str(part) for part in parts]
        written = da.map_blocks(
            _write, *outputs, paths=paths, gpu=gpu, dtype=bool, meta=np.empty((0,) * x.ndim, bool),
            chunks=tuple((1,) * count for count in outputs[0].numblocks),
        )  # fmt: skip
        _compute(written, workers.count, limit)
        seconds = time.perf_counter() - start
    nbytes = x.nbytes + sum(y.nbytes for y in outputs)
    return Report(x, outputs[0], nbytes, seconds)


def _opened(path: Path) -> Any:
    try:
        array = zarr.open_array(path, mode="r")
    except Exception as error:  # zarr lets many classes through for a damaged store
        reason = " ".join(str(error).split())
        raise GpupoolValueError(f"{path}: not a readable zarr array: {reason}") from error
    find(f"dtype of {path}", array.dtype)
    return da.from_zarr(array)


def _regular(y: Any) -> Any:
    """Make all blocks but the last ones equal, as the chunks of a store are."""
    return y.rechunk(tuple(max(sizes) for sizes in y.chunks))


def _check_memory(x: Any, outputs: list[Any], limit: int | None) -> None:
    block = prod(x.chunksize) * x.dtype.itemsize
    block += sum(prod(y.chunksize) * y.dtype.itemsize for y in outputs)
    needed = OWN + block * SHARE
    if limit is not None and needed > limit:
        raise GpupoolMemoryError(
            f"a chunk and its outputs take {format_bytes(block)}, and a worker needs {SHARE} times "
            f"that and {format_bytes(OWN)} for itself: give each {format_bytes(needed)}, not "
            f"{format_bytes(limit)}, or cut the input into smaller chunks"
        )


def _write(*blocks: Any, paths: list[str], gpu: bool, block_info: Any = None) -> Any:
    """Write one block into every store: each is a chunk of its own there."""
    for number, (block, path) in enumerate(zip(blocks, paths, strict=True)):
        region = tuple(slice(*ends) for ends in block_info[number]["array-location"])
        zarr.open_array(path, mode="r+")[region] = device.to_host(block) if gpu else block
    return np.ones((1,) * blocks[0].ndim, bool)


def _compute(written: Any, workers: int, limit: int | None) -> None:
    (written,) = dask.optimize(written)
    with ExitStack() as stack:
        spill = tempfile.TemporaryDirectory(prefix="gpupool-", ignore_cleanup_errors=True)
        folder = stack.enter_context(spill)
        with _interrupts_held():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=limit or "auto",
                local_directory=folder,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        futures = client.compute(list(written.to_delayed().ravel()))
        try:
            for future in progress(futures, "pooling"):
                future.result()
        except KilledWorker as error:
            raise GpupoolError(
                f"a worker was ended {error.allowed_failures + 1} times over the same block, most "
                f"likely for want of memory: give each more, or cut the input into smaller chunks"
            ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start threads and processes that no interrupt reaches: it waits for this one, to end them.

    A terminal sends ^C to every process, and each worker would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # some, its start lets through again
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def whole_store(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder beside ``path`` that takes this name once the block has ended well.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with whole_store(folder / "y.zarr", force=False) as part:
    ...     part.mkdir()
    ...     (folder / "y.zarr").exists()
    False
    >>> [entry.name for entry in folder.iterdir()]
    ['y.zarr']
    """
    _check_target(path, force=force)
    with files.beside(path) as (target, part):
        try:
            yield part
            _check_target(path, force=force)
            _move(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, target: Path) -> None:
    """Rename a store; the one that it replaces comes back unless that succeeds."""
    if not target.exists():
        part.rename(target)
        return
    old = part.with_suffix(".old")
    target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check_apart(source: Path, targets: tuple[Path, ...]) -> None:
    """Refuse to replace what is read, and to write into it."""
    own = source.resolve()
    for path in targets:
        target = path.resolve()
        if own == target or own in target.parents or target in own.parents:
            raise GpupoolValueError(f"{path} and the input {source} share a folder: name another")


def _check_target(path: Path, *, force: bool) -> None:
    files.check_new(path, force=force)
    if path.exists() and not _is_array(path):
        raise GpupoolValueError(
            f"{path}: exists and is not a zarr array, and nothing else is replaced"
        )


def _is_array(path: Path) -> bool:
    try:
        zarr.open_array(path, mode="r")
    except Exception:  # many classes, for whatever is there instead
        return False
    return True
