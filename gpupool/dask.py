"""The public functions on dask arrays: lazily, chunk by chunk, with the result of one whole array.

``import gpupool.dask``; the functions take and return ``dask.array.Array``s whose chunks are NumPy
or CuPy arrays, so that the same lines pool more than one GPU or one machine holds. Where a window
crosses a chunk's border, exactly the positions that it needs are fetched from the neighbours; what
padding and ``ceil_mode`` mean is decided once, for the whole array, and Indices count through it.

The scheduler is dask's: threads unless told otherwise, ``distributed.Client()`` for processes and
``distributed.Client("tcp://...")`` for other machines. With several GPUs, start one worker for each
(``dask_cuda.LocalCUDACluster()``) and bring the chunks there with ``x.map_blocks(cupy.asarray)``.

Sliding windows over NumPy chunks give the bits of the whole array whatever the chunks; over CuPy
chunks maxima do, and sums are rounded in the order of the kernel that suits a chunk. Global
averages and norms over several spatial chunks combine one partial result of each, always in the
same order; no norm of a chunk is rounded as a subnormal number. max_unpool takes Indices that stay
in their own plane, as max_pool's do; the RoI operators need every image of a chunk of channels at
once.

>>> x = da.arange(24.0).reshape(1, 1, 24).rechunk((1, 1, 5))
>>> y = max_pool(x, 4, strides=2, pads=1)
>>> y.shape, y.compute()[0, 0, -3:]
((1, 1, 12), array([20., 22., 23.]))
"""

from __future__ import annotations

import inspect
import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import pairwise, product
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import gpupool
from gpupool import arrays, opset
from gpupool.bounds import at_least
from gpupool.dtypes import FLOAT64, DType, finfo
from gpupool.dtypes import find as find_dtype
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.ops import FUNCTIONS, Function
from gpupool.oracle import brought_back, rounded
from gpupool.planned import PlannedCall
from gpupool.problem import PoolProblem, RoiProblem, UnpoolProblem, contiguous, resolve
from gpupool.window import Axis


def _checked(name: str, array: Any) -> Any:
    if name in _REGIONS and not isinstance(array, da.Array):
        arrays.kind(name, array)
        array = da.from_array(array)
    if not isinstance(array, da.Array):
        raise GpupoolTypeError(f"{name} must be a dask array, not {type(array).__name__}")
    if any(np.isnan(size) for size in array.shape):
        raise GpupoolValueError(
            f"{name} has chunks of unknown size: call {name}.compute_chunk_sizes() first"
        )
    return array


def _require(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if array.dtype != dtype:
        raise GpupoolTypeError(f"{name} has dtype {array.dtype}, expected {np.dtype(dtype)}")
    if array.shape != shape:
        raise GpupoolValueError(f"{name} has shape {array.shape}, expected {shape}")


def _lazy(function: Function, compute: Function) -> Function:
    """Return ``function`` for dask arrays, resolved at once and computed by ``compute``."""
    op = _OPERATORS[function]
    signature = inspect.signature(function)
    lazy = signature.replace(
        parameters=[p for name, p in signature.parameters.items() if name != "out"]
    )

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = lazy.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        inputs = {n: _checked(n, arguments.pop(n)) for n in _ARRAYS if n in arguments}
        attributes = {_RENAMED.get(name, name): value for name, value in arguments.items()}
        if "rois" in inputs:
            attributes["num_rois"] = len(inputs["rois"]) if inputs["rois"].ndim else 0
        problem = resolve(op, inputs["x"].shape, inputs["x"].dtype, **attributes)
        return compute(problem, *inputs.values(), **arguments)

    call.__signature__ = lazy  # type: ignore[attr-defined]
    call.__doc__ = f"""Compute gpupool.{function.__name__} of the same arguments, lazily.

    Arrays are dask arrays of NumPy or CuPy chunks, and so are results. Shapes, dtypes and source
    are those of gpupool.{function.__name__}; arguments are refused at the call as there, what
    arrays hold when it is computed.
    """
    return call


_OPERATORS = {function: op for op, function in FUNCTIONS.items()}
_REGIONS = ("rois", "batch_indices")
_ARRAYS = ("x", "indices", *_REGIONS)
_RENAMED = {"dtype": "out_dtype"}


def _array(
    name: str, tasks: dict[Any, Any], source: Any, chunks: Any, dtype: Any, meta: Any = None
) -> Any:
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[source])
    like = source if meta is None else meta
    empty = meta_from_array(getattr(like, "_meta", like), ndim=len(chunks), dtype=dtype)
    return da.Array(graph, name, chunks, meta=empty)


# Sliding windows: every block of outputs is a problem of its own


@dataclass(frozen=True)
class _Part:
    """A run of outputs along one array axis: the inputs it needs, and its own window there.

    The window may give outputs beyond those of the run, which are dropped.
    """

    inputs: range
    outputs: int
    axis: Axis | None = None


@dataclass(frozen=True)
class _Block:
    """One block of outputs: its problem, where the pieces of its input go, and its place in x.

    ``sizes`` are those of the block, which its problem may exceed.
    """

    problem: PoolProblem
    sizes: tuple[int, ...]
    places: tuple[tuple[slice, ...], ...]
    offset: tuple[int, ...]
    numbering: tuple[int, ...]

    def __call__(self, pieces: list[Any]) -> Any:
        """Pool the block; with Indices, return those of the whole array."""
        x = pieces[0]
        if len(pieces) > 1:
            x = np.empty_like(x, shape=self.problem.shape)
            for place, piece in zip(self.places, pieces, strict=True):
                x[place] = piece
        result = PlannedCall(self.problem)(x)
        block = tuple(map(slice, self.sizes))
        if not self.problem.indices:
            return result[block]
        y, indices = (array[block] for array in result)
        found = _renumbered(indices, self.problem.shape, self.offset, self.numbering)
        return y, np.where(indices < 0, -1, found)


def _renumbered(
    indices: Any, shape: Sequence[int], shift: Sequence[int], steps: Sequence[int]
) -> Any:
    """Turn flat positions in ``shape``, moved by ``shift`` along each axis, into other steps."""
    position: Any = sum(n * step for n, step in zip(shift, steps, strict=True))
    rest = indices.astype(np.int64, copy=False)  # a step may be 2**31 where all positions are less
    for size, step in zip(reversed(shape), reversed(steps), strict=True):
        position = position + rest % size * step
        rest = rest // size
    return position.astype(indices.dtype, copy=False)


def _pool(problem: PoolProblem, x: Any, **_: Any) -> Any:
    chunked = any(len(x.chunks[axis]) > 1 for axis in problem.spatial_axes)
    if problem.op.startswith("Global") and chunked:
        return _pool_by_partials(problem, x)
    parts = _parts(problem, x)
    chunks = tuple(tuple(part.outputs for part in along) for along in parts)
    name = f"{opset.OPERATORS[problem.op].short}-pool-{tokenize(x, problem)}"
    if not problem.indices:
        tasks = dict(_tasks(name, problem, x, parts))
        return _array(name, tasks, x, chunks, problem.out_dtype.numpy)
    # One kernel gives both outputs: its pairs are tasks of their own.
    pairs = _array(f"both-{name}", dict(_tasks(f"both-{name}", problem, x, parts)), x, chunks, "O")
    return tuple(
        _array(
            f"{output.name}-{name}",
            {(f"{output.name}-{name}", *b): (take, (f"both-{name}", *b)) for b in _every(parts)},
            pairs,
            chunks,
            output.dtype,
            meta=x,
        )
        for output, take in zip(problem.outputs, (_first, _second), strict=True)
    )


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _second(pair: tuple[Any, Any]) -> Any:
    return pair[1]


def _every(parts: Sequence[Sequence[_Part]]) -> Iterator[tuple[int, ...]]:
    return product(*(range(len(along)) for along in parts))


def _parts(problem: PoolProblem, x: Any) -> list[list[_Part]]:
    """Cut every array axis: batch and channels at the chunks, the others where windows begin."""
    spatial = dict(zip(problem.spatial_axes, problem.window, strict=True))
    parts = []
    for axis, sizes in enumerate(x.chunks):
        stops = np.cumsum(sizes, dtype=np.int64).tolist()
        if axis not in spatial:
            parts.append([_Part(range(a, b), b - a) for a, b in pairwise([0, *stops])])
            continue
        window = spatial[axis]
        if window.out == 1:
            parts.append([_Part(range(window.size), 1, window)])
            continue
        # The first window of a chunk, pads aside: equal chunks then give equal chunks.
        cuts = {min(-(-stop // window.stride), window.out) for stop in stops[:-1]}
        edges = sorted(cuts | {0, window.out})
        cut = [window.part(a, b) for a, b in pairwise(edges)]
        parts.append([_Part(inputs, own.out, _widened(own, x)) for inputs, own in cut])
    return parts


def _widened(own: Axis, x: Any) -> Axis:
    """Give a lone output another after it: the oracle adds up a lone window in another order."""
    return replace(own, out=max(own.out, 2)) if isinstance(x._meta, np.ndarray) else own


def _tasks(
    name: str, problem: PoolProblem, x: Any, parts: list[list[_Part]]
) -> Iterator[tuple[Any, Any]]:
    """Yield the task of every block, and those that cut its pieces out of chunks."""
    numbering = problem.numbering
    edges = [np.cumsum((0, *sizes), dtype=np.int64).tolist() for sizes in x.chunks]
    pieces = [
        [_pieces(part.inputs, ends) for part in along]
        for along, ends in zip(parts, edges, strict=True)
    ]
    for block in _every(parts):
        chosen = [along[i] for along, i in zip(parts, block, strict=True)]
        own = replace(
            problem,
            shape=tuple(len(part.inputs) for part in chosen),
            window=tuple(part.axis for part in chosen if part.axis),
            storage_order=0,
        )
        keys, places = [], []
        for number, piece in enumerate(
            product(*(along[i] for along, i in zip(pieces, block, strict=True)))
        ):
            key = (x.name, *(chunk for chunk, _, _ in piece))
            cut = tuple(where for _, where, _ in piece)
            if any(w != slice(0, x.chunks[a][c]) for a, (c, w, _) in enumerate(piece)):
                source, key = key, (f"{name}-halo", *block, number)
                yield key, (operator.getitem, source, cut)
            keys.append(key)
            places.append(tuple(place for _, _, place in piece))
        offset = tuple(part.inputs.start for part in chosen)
        sizes = tuple(part.outputs for part in chosen)
        yield (name, *block), (_Block(own, sizes, tuple(places), offset, numbering), keys)


def _pieces(inputs: range, edges: Sequence[int]) -> list[tuple[int, slice, slice]]:
    """Return the chunks that hold ``inputs``: number, place in the chunk, place in the block.

    >>> _pieces(range(2, 5), [0, 3, 6, 9])
    [(0, slice(2, 3, None), slice(0, 1, None)), (1, slice(0, 2, None), slice(1, 3, None))]
    """
    found: list[tuple[int, slice, slice]] = []
    number = min(bisect_right(edges, inputs.start), len(edges) - 1) - 1
    for start, stop in pairwise(edges[number:]):
        if found and start >= inputs.stop:
            break
        low, high = max(inputs.start, start), min(inputs.stop, stop)
        if low < high or not found:
            place = slice(low - inputs.start, high - inputs.start)
            found.append((number, slice(low - start, high - start), place))
        number += 1
    return found


# Global operators: partial results in the order of the chunks


def _pool_by_partials(problem: PoolProblem, x: Any) -> Any:
    axes = problem.spatial_axes
    x = _without_empty_chunks(x, axes)
    partial, combine = PARTIALS[problem.reduction]
    dtype = _partial_dtype(problem)
    partials = x.map_blocks(
        partial,
        problem,
        dtype,
        chunks=tuple((1,) * len(c) if a in axes else c for a, c in enumerate(x.chunks)),
        meta=meta_from_array(x._meta, dtype=dtype.numpy),
    )
    sizes = [x.chunks[axis] for axis in axes]
    return partials.rechunk(dict.fromkeys(axes, -1)).map_blocks(
        combine,
        problem,
        sizes,
        chunks=tuple((1,) if a in axes else c for a, c in enumerate(x.chunks)),
        meta=meta_from_array(x._meta, dtype=problem.out_dtype.numpy),
    )


def _without_empty_chunks(x: Any, axes: Iterable[int]) -> Any:
    return x.rechunk({axis: tuple(filter(None, x.chunks[axis])) or (0,) for axis in axes})


def _partial_dtype(problem: PoolProblem) -> DType:
    """Return the dtype that carries partial results: the accumulator's or wider, but for maxima."""
    if problem.reduction == "max":
        return problem.dtype
    if problem.reduction == "lp" or not problem.dtype.is_float:
        return FLOAT64
    return find_dtype("accumulator", problem.dtype.accumulator)


def _global(problem: PoolProblem, x: Any, **attributes: Any) -> Any:
    if problem.reduction == "lp":
        attributes["p"] = problem.p
    last = problem.channels_last
    return PlannedCall(resolve(problem.op, x.shape, x.dtype, channels_last=last, **attributes))(x)


def _partial(x: Any, problem: PoolProblem, dtype: DType) -> Any:
    if problem.dtype.is_float:
        return _global(problem, x.astype(dtype.numpy, copy=False))
    return _global(problem, x, **({} if problem.reduction == "max" else {"out_dtype": dtype}))


def _combine(maxima: Any, problem: PoolProblem, _: Sequence[Sequence[int]]) -> Any:
    """Take the maximum of maxima."""
    return _global(problem, maxima)


LIFT = np.int32(64)
"""The power of two by which small norms are multiplied: no subnormal number has as many bits."""


def _partial_norm(x: Any, problem: PoolProblem, dtype: DType) -> Any:
    """Take norms in the accumulator's type: small ones lifted by 2^64, and told by their sign.

    Subnormal ones would lose much of what they are, which adds up.
    """
    accumulator = problem.dtype.accumulator
    x = x.astype(accumulator, copy=False)
    norms = _global(problem, x)
    small = (norms > 0) & (norms < np.finfo(accumulator).tiny * 2.0**LIFT)
    if bool(small.any()):
        norms = np.where(small, -_global(problem, np.ldexp(x, LIFT * small)), norms)
    return norms.astype(dtype.numpy, copy=False)


def _combine_norms(norms: Any, problem: PoolProblem, _: Sequence[Sequence[int]]) -> Any:
    """Take the norm of norms, all lifted by 2^64, or lowered by as much where that overflows.

    What is lost of small ones by lowering counts for nothing beside such a norm if p >= 1/16.
    """
    magnitudes, lifted = abs(norms), LIFT * (norms < 0)
    eps = float(np.finfo(problem.dtype.accumulator).eps)
    with np.errstate(all="ignore"):
        up, down = (_global(problem, np.ldexp(magnitudes, by - lifted)) for by in (LIFT, -LIFT))
        fits = np.isfinite(up)
        norm, back = np.where(fits, up, down), np.where(fits, -LIFT, LIFT)
        least = norm * at_least(prod(problem.spatial), problem.p, eps)
        greatest = float(finfo(problem.dtype.numpy).max)
        whole = brought_back(np.ldexp(norm, back), np.ldexp(least, back), greatest)
        return rounded(whole, problem.out_dtype)


def _combine_means(means: Any, problem: PoolProblem, sizes: Sequence[Sequence[int]]) -> Any:
    """Weight every mean with its share of the plane; sums of integers stay exact."""
    shape = [1] * means.ndim
    counts = np.ones(shape, np.int64)
    for axis, along in zip(problem.spatial_axes, sizes, strict=True):
        counts = counts * np.reshape(along, [*shape[:axis], -1, *shape[axis + 1 :]])
    counts, total = np.asarray(counts, like=means), prod(problem.spatial)
    axes = problem.spatial_axes
    if not problem.dtype.is_float:
        mean = np.rint(means * counts).sum(axis=axes, keepdims=True) / total
        return rounded(mean if problem.out_dtype.is_float else np.rint(mean), problem.out_dtype)
    with np.errstate(all="ignore"):
        mean = (means.astype(np.float64) * (counts / total)).sum(axis=axes, keepdims=True)
        # A mean lies between the least and the greatest, which rounding may step over.
        mean = mean.clip(means.min(axis=axes, keepdims=True), means.max(axis=axes, keepdims=True))
        return rounded(mean, problem.out_dtype)


PARTIALS: dict[str, tuple[Function, Function]] = {
    "max": (_partial, _combine),
    "lp": (_partial_norm, _combine_norms),
    "average": (_partial, _combine_means),
}
"""How a reduction's partial results are taken, and how they become one."""


# MaxUnpool and the RoI operators: chunks of batch and channels


def _unpool(problem: UnpoolProblem, x: Any, indices: Any, **attributes: Any) -> Any:
    _require("indices", indices, x.shape, np.int64)
    x = x.rechunk(dict.fromkeys(problem.spatial_axes, -1))
    sizes = list(problem.out_shape)
    chunks = tuple(
        (sizes[axis],) if axis in problem.spatial_axes else along
        for axis, along in enumerate(x.chunks)
    )
    attributes.pop("output_shape", None)
    return da.map_blocks(
        _unpool_block,
        x,
        indices.rechunk(x.chunks),
        problem,
        [np.cumsum((0, *along)).tolist() for along in chunks],
        chunks=chunks,
        meta=meta_from_array(x._meta, dtype=x.dtype),
        **attributes,
    )


def _unpool_block(
    x: Any,
    indices: Any,
    problem: UnpoolProblem,
    edges: Sequence[Sequence[int]],
    *,
    block_id: tuple[int, ...],
    **attributes: Any,
) -> Any:
    low = [along[i] for along, i in zip(edges, block_id, strict=True)]
    shape = [along[i + 1] - start for along, i, start in zip(edges, block_id, low, strict=True)]
    rest = indices
    for size, start, own in zip(
        reversed(problem.out_shape), reversed(low), reversed(shape), strict=True
    ):
        place = rest % size - start
        if bool(((place < 0) | (place >= own)).any()):
            raise GpupoolValueError(
                "indices name positions in other planes than their own, or outside the output: "
                "a dask array is unpooled chunk by chunk"
            )
        rest = rest // size
    if bool((rest != 0).any()):
        raise GpupoolValueError(f"indices lie outside the output {problem.out_shape}")
    local = _renumbered(indices, problem.out_shape, [-n for n in low], contiguous(shape))
    return gpupool.max_unpool(x, local, output_shape=shape, **attributes)


def _roi(
    problem: RoiProblem, x: Any, rois: Any, batch_indices: Any = None, **attributes: Any
) -> Any:
    """Compute every chunk of channels by itself; each needs all images and all regions."""
    align = problem.op == "RoiAlign"
    function: Function = gpupool.roi_align if align else gpupool.max_roi_pool
    _require("rois", rois, (problem.num_rois, 4 if align else 5), problem.dtype.numpy)
    regions = [rois]
    if align:
        _require("batch_indices", batch_indices, (problem.num_rois,), np.int64)
        regions.append(batch_indices)
    n, c, h, w, bins_y, bins_x, r, k = range(8)
    last = problem.channels_last
    out, axes = (
        ((r, bins_y, bins_x, c), (n, h, w, c)) if last else ((r, c, bins_y, bins_x), (n, c, h, w))
    )
    pairs = [(array.rechunk(-1), (r, k)[: array.ndim]) for array in regions]
    return da.blockwise(
        function,
        out,
        _without_empty_chunks(x, [axes.index(c)]),  # dask repeats a channel beside an empty one
        axes,
        *(item for pair in pairs for item in pair),
        new_axes=dict(zip((bins_y, bins_x), problem.pooled, strict=True)),
        concatenate=True,
        meta=meta_from_array(x._meta, dtype=x.dtype),
        **attributes,
    )


max_pool = _lazy(gpupool.max_pool, _pool)
average_pool = _lazy(gpupool.average_pool, _pool)
lp_pool = _lazy(gpupool.lp_pool, _pool)
global_max_pool = _lazy(gpupool.global_max_pool, _pool)
global_average_pool = _lazy(gpupool.global_average_pool, _pool)
global_lp_pool = _lazy(gpupool.global_lp_pool, _pool)
max_unpool = _lazy(gpupool.max_unpool, _unpool)
max_roi_pool = _lazy(gpupool.max_roi_pool, _roi)
roi_align = _lazy(gpupool.roi_align, _roi)
