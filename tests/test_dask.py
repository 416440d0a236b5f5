"""gpupool.dask against gpupool on the whole array, with chunks cut at random."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupool
from gpupool import cli
from tests import strategies
from tests.conftest import Backend, numpy_backend
from tests.kinds import JAX, TORCH
from tests.test_oracle import assert_right
from tests.tolerance import assert_bitwise, greatest, least_subnormal

da = pytest.importorskip("dask.array", reason="dask is not installed")
lazy = pytest.importorskip("gpupool.dask")

NUMPY = numpy_backend()
ROOT = Path(__file__).parent.parent
SEEDS = st.integers(0, 2**16)


@pytest.fixture(autouse=True)
def _synchronous():
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


def cut(rng: np.random.Generator, size: int) -> tuple[int, ...]:
    """Cut an axis at up to four places, seldom at one twice."""
    places = rng.integers(0, size + 1, rng.integers(0, 5))
    if rng.integers(4):
        places = np.setdiff1d(places, [0, size])
    return tuple(np.diff([0, *sorted(places), size]).tolist())


def dask_backend(seed: int) -> Backend:
    rng = np.random.default_rng(seed)

    def chunked(x: np.ndarray[Any, Any]) -> Any:
        return da.from_array(x, chunks=tuple(cut(rng, size) for size in x.shape))

    def computed(y: Any) -> np.ndarray[Any, Any]:
        assert isinstance(y, da.Array)
        assert not any(map(math.isnan, y.shape))
        found: np.ndarray[Any, Any] = y.compute()
        assert (found.shape, found.dtype) == (y.shape, y.dtype)
        assert type(y._meta) is np.ndarray
        return found

    return Backend("dask", lazy, chunked, computed)


def cases():
    return st.one_of(strategies.pools(), strategies.max_roi_pools(), strategies.roi_aligns())


@contextmanager
def kinds(seed: int) -> Iterator[list[Backend]]:
    """Give the backends that can be had here: dask, and beside it torch and JAX."""
    backends = [dask_backend(seed)]
    if importlib.util.find_spec("torch"):
        backends.append(TORCH)
    if importlib.util.find_spec("jax") is None:
        yield backends
        return
    import jax

    with jax.enable_x64(True):
        yield [*backends, JAX]


@given(case=cases(), seed=SEEDS)
def test_the_same_calls_agree_on_every_kind_of_array(case, seed):
    expected = case.run(NUMPY)
    with kinds(seed) as backends:
        found = {backend.name: case.run(backend) for backend in backends}
    for name, results in found.items():
        assert len(expected) == len(results)
        if name == "dask" and case.function in ("global_average_pool", "global_lp_pool"):
            assert_right(case, results)  # partial sums round in another order
            continue
        for mine, theirs in zip(expected, results, strict=True):
            assert_bitwise(theirs, mine)


@pytest.mark.parametrize("function", ["average_pool", "lp_pool"])
@pytest.mark.parametrize("seed", range(24))
def test_sums_have_the_bits_of_the_whole_array(function, seed):
    """Rounded sums show their order, which chunks of one output or one window must not change."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, 30, 25)).astype(np.float32)
    arguments = {
        "kernel_shape": rng.integers(1, 26, 2).tolist(),  # by taps, by doubling, whole planes
        "strides": rng.integers(1, 12, 2).tolist(),
        "pads": rng.integers(0, 4, 4).tolist(),
        "ceil_mode": bool(rng.integers(2)),
    }
    expected = getattr(gpupool, function)(x, **arguments)
    chunks = tuple(int(size) for size in (1, 2, *rng.integers(1, 12, 2)))
    found = getattr(lazy, function)(da.from_array(x, chunks=chunks), **arguments)
    assert_bitwise(found.compute(), expected)


def test_small_norms_of_parts_are_those_of_the_whole():
    """Sums near the least that float32 keeps accurate, of windows longer than a chunk."""
    x = np.random.default_rng(0).uniform(8e-32, 2e-31, (1, 200, 12)).astype(np.float32)
    whole = gpupool.lp_pool(x, 7, p=1, pads=2)
    parts = lazy.lp_pool(da.from_array(x, chunks=(1, 200, 3)), 7, p=1, pads=2)
    assert_bitwise(parts.compute(), whole)


MOST, LEAST = float(np.finfo(np.float64).max), float(np.finfo(np.float64).smallest_subnormal)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        # Slightly more than the greatest number, by less than the roundings of fifty taps.
        ("lp_pool", np.array([2.381976325057654e38, 1.891226995945523e38], np.float32)),
        ("average_pool", np.array([35 * LEAST, MOST, MOST, -MOST, -MOST])),
    ],
)
def test_windows_of_few_taps_at_an_edge_are_those_of_the_whole(function, x):
    """Parts of x end where the window does, which has few of its many taps there."""
    whole = np.zeros((1, 1, 100), x.dtype)
    whole[0, 0, : len(x)] = x
    arguments = {"kernel_shape": 50, "strides": 50, "pads": (50 - len(x), 0)}
    arguments |= {"p": 1.5} if function == "lp_pool" else {}
    parts = getattr(lazy, function)(da.from_array(whole, chunks=(1, 1, 2)), **arguments)
    assert_bitwise(parts.compute(), getattr(gpupool, function)(whole, **arguments))


@pytest.mark.parametrize("dtype", strategies.FLOATS)
@pytest.mark.parametrize("p", [1, 2, 0.5, 0.1, 1.3])
def test_global_norms_of_chunks_are_as_right_as_those_of_the_whole(dtype, p):
    """Of subnormals, beside a greater chunk or not, and within a few roundings of the greatest."""
    kind = strategies.dtype_of(dtype)
    least, most = float(least_subnormal(kind)), float(greatest(kind))
    rng, first = np.random.default_rng(int(10 * p)), np.arange(30) == 0
    shares = 1 - rng.random((4, 30))
    small = [np.ones(30), rng.integers(0, 60, 30), np.where(first, 2.0**20, 1), np.zeros(30)]
    planes = [
        *(each * least for each in small),
        np.where(first, most, least),
        *(most * (shares / (shares**p).sum(1, keepdims=True) ** (1 / p))),
    ]
    x = np.stack(planes)[None].astype(kind)
    found = lazy.global_lp_pool(da.from_array(x, chunks=(1, 9, 2)), p=p).compute()
    assert_right(strategies.Case("global_lp_pool", (x,), {"p": p}), (found,))


@pytest.mark.parametrize("function", ["max", "average", "lp"])
def test_a_chunk_may_be_empty(function):
    x = np.arange(12.0).reshape(1, 2, 6)
    chunked = da.from_array(x, chunks=((1, 0), (0, 2), (0, 3, 0, 3, 0)))
    whole, windows = (f"{prefix}{function}_pool" for prefix in ("global_", ""))
    np.testing.assert_allclose(getattr(lazy, whole)(chunked), getattr(gpupool, whole)(x))
    assert_bitwise(getattr(lazy, windows)(chunked, 3).compute(), getattr(gpupool, windows)(x, 3))


def test_the_graph_of_many_chunks_is_made_in_linear_time():
    start = time.process_time()
    y = lazy.max_pool(da.zeros((1, 1, 2**16), chunks=(1, 1, 4)), 3, pads=1)
    assert y.npartitions == 2**14
    assert time.process_time() - start < 20  # 2**28 steps take several times as long


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_unpooling_undoes_pooling(last, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 8, 9, 4))
    y, indices = gpupool.max_pool(x, 2, strides=2, channels_last=last, return_indices=True)
    arguments = {"kernel_shape": 2, "strides": 2, "channels_last": last, "output_shape": x.shape}
    case = strategies.Case("max_unpool", (y, indices), arguments)
    assert_bitwise(case.run(dask_backend(seed))[0], case.run(NUMPY)[0])


@pytest.mark.parametrize("position", [0, 16, 31, 32, -1])
def test_positions_in_other_planes_are_refused(position):
    x = da.ones((1, 2, 2), chunks=(1, 1, 2))
    indices = da.asarray(np.array([[[1, 2], [position, 20]]])).rechunk((1, 1, 2))
    result = lazy.max_unpool(x, indices, 8, strides=8)
    if position in (16, 31):
        assert result.compute().sum() == 4
    else:
        with pytest.raises(gpupool.GpupoolValueError, match="indices"):
            result.compute()


def test_both_outputs_come_from_one_run(monkeypatch):
    runs = []
    run = gpupool.oracle.run
    monkeypatch.setattr(gpupool.oracle, "run", lambda *args: (runs.append(args), run(*args))[1])
    x = da.ones((2, 3, 8, 8), chunks=(1, 3, 4, 8))
    y, indices = lazy.max_pool(x, 3, return_indices=True)
    assert not runs
    da.compute(y, indices)
    assert len(runs) == 4


def test_positions_of_32_bits_reach_their_last():
    """Of 2**31 elements the step of the batch's axis is itself no int32."""
    x = da.zeros((1, 2, 2**15, 2**15), "i1", chunks=(1, 1, 2**11, 2**11))
    _, indices = lazy.max_pool(x, 2, strides=2, return_indices=True, index_dtype="int32")
    found = indices[0, 1, -1:, -1:].compute()
    assert (found.dtype, found.tolist()) == (np.int32, [[2**30 + (2**15 - 2) * (2**15 + 1)]])


def test_a_block_reads_exactly_what_its_windows_need(monkeypatch):
    read = []
    run = gpupool.oracle.run
    monkeypatch.setattr(
        gpupool.oracle, "run", lambda *args: (read.append(args[1][0].shape), run(*args))[1]
    )
    lazy.max_pool(da.ones((1, 1, 12, 5), chunks=(1, 1, 4, 5)), (3, 1), pads=(1, 0, 1, 0)).compute()
    assert sorted(read) == [(1, 1, 5, 5), (1, 1, 5, 5), (1, 1, 6, 5)]


def test_chunks_stay_regular_where_the_stride_divides_them():
    x = da.ones((2, 6, 64, 96), chunks=(1, 3, 16, 32))
    y = lazy.average_pool(x, 3, strides=2, pads=1)
    assert y.chunks == ((1, 1), (3, 3), (8,) * 4, (16,) * 3)
    assert lazy.global_max_pool(x).chunks == ((1, 1), (3, 3), (1,), (1,))


def test_what_cannot_be_known_is_refused():
    x = da.ones((2, 3, 8), chunks=1)
    unknown = x[x[:, 0, 0] > 0]
    with pytest.raises(gpupool.GpupoolValueError, match="compute_chunk_sizes"):
        lazy.max_pool(unknown, 2)
    with pytest.raises(gpupool.GpupoolTypeError, match="dask array"):
        lazy.max_pool(np.ones((1, 1, 4)), 2)
    with pytest.raises(gpupool.GpupoolValueError, match="strides"):
        lazy.max_pool(x, 2, strides=0)
    with pytest.raises(TypeError, match=r"max_pool\(\) got an unexpected .* 'out'"):
        lazy.max_pool(x, 2, out=x)
    with pytest.raises(gpupool.GpupoolTypeError, match="int64"):
        lazy.max_unpool(x, x, 2)


@pytest.mark.parametrize(
    ("rois", "batch", "error", "message"),
    [
        (np.zeros((2, 5)), np.zeros(2, int), gpupool.GpupoolValueError, r"expected \(2, 4\)"),
        (np.zeros((2, 4), "f4"), np.zeros(2, int), gpupool.GpupoolTypeError, "expected float64"),
        (np.zeros((2, 4)), np.zeros(3, int), gpupool.GpupoolValueError, r"expected \(2,\)"),
        (np.zeros((2, 4)), np.zeros(2), gpupool.GpupoolTypeError, "expected int64"),
        ([[0, 0, 1, 1]], np.zeros(1, int), gpupool.GpupoolTypeError, "rois must be"),
        (None, np.zeros(2, int), gpupool.GpupoolValueError, "rois.compute_chunk_sizes"),
    ],
)
def test_regions_are_judged_at_the_call(rois, batch, error, message):
    if rois is None:
        rois = da.zeros((2, 4), chunks=1)
        rois = rois[rois[:, 0] >= 0]
    with pytest.raises(error, match=message):
        lazy.roi_align(da.ones((1, 3, 8, 8)), rois, batch)


@pytest.mark.parametrize("chunks", [(0, 1), (1, 0), (0, 1, 0, 2), (0,)])
def test_regions_are_pooled_beside_empty_chunks_of_channels(chunks):
    x = np.arange(sum(chunks) * 25.0).reshape(1, -1, 5, 5)
    rois, images = np.array([[0.0, 0, 4, 4]]), np.array([0])
    lazily = lazy.roi_align(da.from_array(x, chunks=(1, chunks, 5, 5)), rois, images)
    assert_bitwise(lazily.compute(), gpupool.roi_align(x, rois, images))


@pytest.mark.gpu
def test_cupy_chunks_stay_on_the_gpu():
    if not gpupool.gpu_available():
        pytest.skip(str(gpupool.gpu_reason()))
    import cupy

    x = np.random.default_rng(3).standard_normal((2, 3, 40, 30)).astype(np.float32)
    chunked = da.from_array(cupy.asarray(x), chunks=(1, 3, 13, 30), asarray=False)
    lazily = lazy.max_pool(chunked, 3, strides=2, return_indices=True)
    expected = gpupool.max_pool(x, 3, strides=2, return_indices=True)
    for mine, theirs in zip(lazily, expected, strict=True):
        assert type(mine._meta) is cupy.ndarray
        assert_bitwise(cupy.asnumpy(mine.compute()), theirs)
    mean = lazy.global_average_pool(chunked).compute()
    np.testing.assert_allclose(cupy.asnumpy(mean), gpupool.global_average_pool(x), rtol=1e-5)


# A cluster of processes


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as started,
        distributed.Client(started) as client,
    ):
        yield client


def sample() -> np.ndarray[Any, Any]:
    return np.random.default_rng(11).standard_normal((2, 4, 60, 50)).astype(np.float32)


def test_a_cluster_gives_what_numpy_gives(cluster):
    x = sample()
    lazily = lazy.max_pool(
        da.from_array(x, chunks=(1, 2, 17, 50)), 3, strides=2, return_indices=True
    )
    found = cluster.gather(cluster.compute(list(lazily)))
    for mine, theirs in zip(
        found, gpupool.max_pool(x, 3, strides=2, return_indices=True), strict=True
    ):
        assert_bitwise(mine, theirs)


def test_a_killed_worker_loses_nothing(cluster, tmp_path):
    x, marks = sample(), str(tmp_path)

    def slow(block: Any) -> Any:
        time.sleep(0.1)
        Path(marks, secrets.token_hex(8)).touch()
        return block

    chunked = da.from_array(x, chunks=(1, 2, 17, 50)).map_blocks(slow, dtype=x.dtype)
    future = cluster.compute(lazy.average_pool(chunked, 3, pads=1))
    while len(list(tmp_path.iterdir())) < 4:
        time.sleep(0.02)
    assert not future.done()
    os.kill(next(iter(cluster.run(os.getpid).values())), signal.SIGKILL)
    assert_bitwise(future.result(timeout=60), gpupool.average_pool(x, 3, pads=1))
    assert len(list(tmp_path.iterdir())) > chunked.npartitions  # some were lost and done again


# The command on zarr stores


@pytest.fixture
def store(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    pytest.importorskip("distributed", reason="distributed is not installed")
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=(2, 4, 60, 50), dtype="f4", chunks=(1, 2, 17, 50)
    )
    array[...] = sample()
    return tmp_path / "x.zarr"


def command(*arguments: Any) -> int:
    return cli.main(["pool", *map(str, arguments)])


def content(path: Path) -> np.ndarray[Any, Any]:
    import zarr

    array: np.ndarray[Any, Any] = zarr.open_array(path, mode="r")[...]
    return array


def test_the_command_pools_a_store_on_two_workers(store, capsys):
    y, positions = (store.with_name(name) for name in ("y.zarr", "i.zarr"))
    shutil.copytree(store, y)  # an older store
    options = ("--op", "max", "--kernel", 3, "--stride", 2, "--pad", 1, "--device", "cpu")
    workers = ("--workers", 2, "--memory", "1GiB", "--indices", positions, "--force")
    assert command(store, y, *options, *workers) == 0
    line = capsys.readouterr().err
    assert "MaxPool on the CPU" in line
    assert "2 workers, 2x4x60x50 float32 -> 2x4x30x25 float32" in line
    expected = gpupool.max_pool(sample(), 3, strides=2, pads=1, return_indices=True)
    for path, array in zip((y, positions), expected, strict=True):
        assert_bitwise(content(path), array)
    assert sorted(path.name for path in store.parent.iterdir()) == ["i.zarr", "x.zarr", "y.zarr"]


def test_a_failure_leaves_nothing_under_the_final_name(store, monkeypatch):
    from gpupool import stores

    def fail(*_: Any) -> None:
        assert [path.suffix for path in store.parent.iterdir()].count(".part") == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(stores, "_compute", fail)
    assert command(store, store.with_name("y.zarr"), "--op", "global-max") == 130
    assert [path.name for path in store.parent.iterdir()] == ["x.zarr"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_from_the_terminal_is_one_line(store, name):
    """It reaches the workers, too, and comes while the first blocks are being written."""
    import zarr

    source, target = store.with_name("large.zarr"), store.with_name("y.zarr")
    shape, chunks = (256, 4, 1000, 1000), (1, 1, 500, 1000)
    zarr.create_array(source, shape=shape, chunks=chunks, dtype="f4", fill_value=1)
    arguments = ("pool", source, target, "--op", "average", "--kernel", "9", "--device", "cpu")
    command = subprocess.Popen(
        [sys.executable, "-m", "gpupool", *map(str, arguments)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not list(store.parent.glob(".gpupool-*.part/c/*/*/*/*")):
        assert command.poll() is None
        time.sleep(0.05)
    number = getattr(signal, name)
    os.killpg(command.pid, number)
    _, said = command.communicate(timeout=60)
    assert (command.returncode, said) == (128 + number, "gpupool: interrupted\n")
    assert sorted(path.name for path in store.parent.iterdir()) == ["large.zarr", "x.zarr"]


@pytest.mark.parametrize(
    ("target", "options", "status", "message"),
    [
        ("y.npy", ("--kernel", 2), 2, "must end in .zarr"),
        ("taken.zarr", ("--kernel", 2), 1, "exists already"),
        ("folder", ("--kernel", 2), 2, "must end in .zarr"),
        ("folder.zarr", ("--kernel", 2, "--force"), 1, "not a zarr array"),
        ("no/y.zarr", ("--kernel", 2), 1, "does not exist"),
        ("y.zarr", ("--kernel", 99), 1, "larger than the padded input"),
        ("x.zarr", ("--kernel", 2, "--force"), 1, "share a folder"),
        ("x.zarr/y.zarr", ("--kernel", 2), 1, "share a folder"),
        ("y.zarr", ("--kernel", 2, "--indices", "x.zarr", "--force"), 1, "share a folder"),
        ("group.zarr", ("--kernel", 2, "--force"), 1, "not a zarr array"),
        ("y.zarr", ("--kernel", 2, "--memory", "1KiB"), 1, "smaller chunks"),
        (
            "y.zarr",
            ("--kernel", 2, "--memory", "100MiB"),
            1,
            "192.00 MiB for itself: give each 192.",
        ),
        ("y.zarr", ("--kernel", 2, "--memory", "much"), 1, "such as 512MiB"),
        ("y.zarr", ("--kernel", 2, "--memory", "1e400"), 1, "such as 512MiB"),
        ("y.zarr", ("--kernel", 2, "--workers", 0), 2, "workers = 0"),
        ("y.zarr", ("--kernel", 2, "--indices", "i.npy"), 2, "must end in .zarr"),
    ],
)
def test_bad_usage_of_stores_is_named(store, monkeypatch, capsys, target, options, status, message):
    import zarr

    monkeypatch.chdir(store.parent)
    Path("folder.zarr").mkdir()
    shutil.copytree(store, "taken.zarr")
    zarr.create_group("group.zarr")
    before = sorted(Path().rglob("*"))
    assert command("x.zarr", target, "--op", "max", *options) == status
    assert message in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


def test_a_dtype_that_no_operator_takes_is_named(store, capsys):
    import zarr

    zarr.create_array(store.with_name("i.zarr"), shape=(1, 1, 4), dtype="i4")
    assert command(store.with_name("i.zarr"), store.with_name("y.zarr"), "--op", "global-max") == 1
    assert "dtype of " in (error := capsys.readouterr().err)
    assert "i.zarr = int32 is not supported" in error


def test_a_store_that_cannot_take_its_name_leaves_the_older_one(store, monkeypatch):
    from gpupool import stores

    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.suffix == ".part":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt), stores.whole_store(store, force=True) as part:
        part.mkdir()
    assert_bitwise(content(store), sample())
    assert [path.name for path in store.parent.iterdir()] == ["x.zarr"]


@pytest.mark.parametrize("content", ["nothing", "garbage"])
def test_what_is_no_store_is_refused(tmp_path, capsys, content):
    pytest.importorskip("zarr", reason="zarr is not installed")
    source = tmp_path / "x.zarr"
    if content == "garbage":
        source.mkdir()
        (source / "zarr.json").write_bytes(b"\x00\xff{")
    assert command(source, tmp_path / "y.zarr", "--op", "global-max") == 1
    assert "x.zarr: not a readable zarr array" in capsys.readouterr().err


def test_workers_apply_to_stores(tmp_path, capsys):
    np.save(tmp_path / "x.npy", sample())
    for option in (("--workers", 2), ("--memory", "1GiB")):
        assert command(tmp_path / "x.npy", tmp_path / "y.npy", "--op", "global-max", *option) == 2
        assert "applies to .zarr arrays" in capsys.readouterr().err
