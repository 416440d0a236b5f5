"""separable_vectors.cu: large overlapping windows by vectors of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from operator import itemgetter

from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import (
    BLOCKS,
    SECTOR_BYTES,
    SHARED_BYTES,
    THREADS,
    VECTOR_BYTES,
    WARP,
    Launch,
    round_up,
)
from gpupool.planner.parameters import (
    accumulator,
    boolean,
    operator,
    pairs,
    pairs_sums,
    vector_width,
    window_parameters,
)
from gpupool.planner.separable import (
    Tiles,
    all_planes,
    counts_in_floats,
    served,
    share_inside,
    share_of_warps,
    shared_padding,
    strided,
)
from gpupool.planner.specialised import admit
from gpupool.problem import PoolProblem
from gpupool.validate import INT32_MAX
from gpupool.window import Axis

CHUNK = {4: 12, 8: 10}
"""Outputs of a row that one lane takes, by the bytes of a partial result."""

MOST_ROWS = SHARED_BYTES // (WARP // 4 * CHUNK[4] * 4)
"""Rows of a tile at most: the columns that a quarter of a warp takes are the fewest."""

SEAT, IDLE, RUN, READ, MERGE, LINE = 200, 160, 6, 8, 5, 82
"""Instructions of a thread: where its columns are, or that it has none, a run, and of each row a
vector that is read and a column that is merged; and of a lane for each row. Fitted to 260 tiles;
all numbers here meet the counts of 160 others within 10 % (standard deviation)."""

WORD_MERGE, WORD_LINE = 3.3, 56
"""The same for maxima of 32 bits, which nothing widens or pairs."""

DOUBLE_MERGE, DOUBLE_LINE = 12, 70
"""And for maxima of float64, which no instruction takes."""

STORE, STORE_ROOTS = {"max": 5, "average": 16}, {1: 2, 2: 18, 3: 55}
"""The same for a vector of results, of norms by their exponent."""

STORE_PAIRED = 73
"""The same for averages of bytes, two in a word."""

RESULT = 14
"""And for one of results that are apart."""

PART = 3
"""More for each further part of a vector that is read in parts, twice for words of two."""

FOLDED = 7
"""More for each row of a vector and of its twin in the same plane, since either may be in the
padding."""

IN_SLICES, SLICE, PAIRED_SLICE, PADDED = 26, 0.78, 1.09, 5
"""Of a row of a volume, and for each slice so many times what a row of a plane takes, of one plane
or of two in a word; and of a row of padding, where that is not read. Fitted to 499 tiles, whose
counts are met within 15 % (standard deviation)."""

SCATTER, SCATTER_WORDS = 6, 13
"""More for each row of a vector of channels, whose elements are apart in shared memory, and where
its words hold two."""


@dataclass(frozen=True)
class _Form:
    """What is compiled in: lanes that take a row, and columns that a thread takes.

    It reads ``load`` of them at once, which lie ``along`` a row or pixels. ``shift`` more columns
    are read in front of the first window, so that they begin on a vector; a lane takes ``chunk``
    outputs. Where ``paired``, words hold the partial results of two planes or, ``folded``, of the
    upper and the lower half of one.
    """

    lanes: int
    vector: int
    load: int
    shift: int
    chunk: int
    paired: bool
    folded: bool
    along: str

    @property
    def pitch(self) -> int:
        """Columns of shared memory."""
        return self.lanes * self.chunk

    def padded(self, problem: PoolProblem) -> bool:
        """Whether padding is read, too: ``padded`` in kernels/separable_vectors.cu."""
        return self.folded or self.load < self.vector or self.load * problem.dtype.itemsize <= 4

    @property
    def usable(self) -> int:
        """Columns under the windows: the last ones are read with the rest of their chunk."""
        return (self.pitch - self.chunk + 1) // self.vector * self.vector


@dataclass(frozen=True)
class _Tiles(Tiles):
    """Tiles of separable_vectors.cu and what is compiled in."""

    form: _Form

    @property
    def seats(self) -> int:
        """Vectors of columns in use."""
        return self.columns // self.form.vector

    def share(self, kernel: int) -> int:
        """Return the rows of each of the threads of a seat: whole runs."""
        runs = -(-self.rows // kernel)
        return -(-runs // max(1, min(runs, THREADS // self.seats))) * kernel


def launch(
    problem: PoolProblem, geometry: Geometry, alignment: int, most: float
) -> Launch | None:  # fmt: skip
    """Launch the kernel, or return None where it does not serve or costs more than ``most``."""
    planes = served(problem, geometry)
    if planes is None or not _serves(problem, planes):
        return None
    tiles = (
        tile
        for form in _forms(problem, planes, alignment)
        for tile in _tiles(problem, planes, form)
    )
    weighed = ((_cost(problem, planes, tile), tile) for tile in tiles)
    cost, tile = min(weighed, key=itemgetter(0), default=(most, None))
    if tile is None or cost > most:
        return None
    found = _tiled_launch(problem, planes, tile)
    return found if admit(found.kernel, *found.template) else None


def _serves(problem: PoolProblem, geometry: Geometry) -> bool:
    """Whether only values are asked for, 32 bits tell all rows, and floats all that is counted.

    A tile walks on to the end of the runs that begin in it, behind the input, too.
    """
    outer = geometry.dims[-2]
    rows = outer.axis.pad_begin + outer.axis.size + outer.axis.pad_end
    behind = 2 * outer.axis.kernel + MOST_ROWS
    if (rows + behind) * abs(outer.step) > INT32_MAX:
        return False
    return not problem.indices and counts_in_floats(problem, geometry)


def _forms(problem: PoolProblem, geometry: Geometry, alignment: int) -> Iterator[_Form]:
    """Return the forms that serve, by rows of a warp and parts of one."""
    inner, size = geometry.axes[-1], accumulator(problem).itemsize
    for vector, load in _vectors(problem, geometry, VECTOR_BYTES // size, alignment):
        along = _along(problem, vector)
        shift = 0 if along == "one_pixel" else -inner.pad_begin % vector
        for lanes, held in product((WARP, WARP // 2, WARP // 4), _held(problem, geometry)):
            form = _Form(lanes, vector, load, shift, CHUNK[size], *held, along)
            if form.usable >= shift + inner.kernel - 1 + vector:
                yield form


def _along(problem: PoolProblem, vector: int) -> str:
    """Return what a vector lies along: ``Along`` in kernels/separable_vectors.cu."""
    if not problem.channels_last:
        return "one_row"
    return "some_pixels" if problem.channels % vector else "one_pixel"


def _held(problem: PoolProblem, geometry: Geometry) -> Iterator[tuple[bool, bool]]:
    """Return what words may hold: whether two partial results, and those of one plane."""
    if not pairs(problem):
        yield False, False
    if pairs(problem) or pairs_sums(problem, geometry):
        yield True, False
        if not strided(geometry) and geometry.axes[-2].out > 1:
            yield True, True


def _vectors(
    problem: PoolProblem, geometry: Geometry, most: int, alignment: int
) -> Iterator[tuple[int, int]]:
    """Return how many columns a thread may take, and how many of them it reads at once.

    Channels last, how many channels: of neighbouring pixels, or of one where its channels fill the
    vectors. Of such a pixel a tile may take a part.
    """
    load, inner = _aligned(problem, geometry, most, alignment), geometry.axes[-1]
    if not load:
        return
    while inner.kernel == 1 and inner.pad_begin % most:
        most //= 2  # where rows are not reduced nothing moves what is read in front
    of_pixel = gcd(problem.channels, most) if problem.channels_last else most
    for vector in {most, of_pixel} - {1}:
        yield vector, min(load, vector)


def _aligned(problem: PoolProblem, geometry: Geometry, most: int, alignment: int) -> int:
    """Return how many elements of a row are read and stored at once, or 0 where they are apart."""
    *outer, inner = geometry.dims
    last, apart = problem.channels_last, strided(geometry)
    pixel = problem.channels if last else 1
    if inner.step != pixel or (last and (geometry.channels.step != 1 or apart)):
        return 0
    steps = [dim.step for dim in (geometry.batch, *outer)] + [geometry.channels.step] * (not last)
    load = vector_width(alignment, problem.dtype, most, inner.axis.size * pixel, *steps)
    if not apart:  # else results are stored one by one
        row = inner.axis.out * pixel
        load = min(load, vector_width(alignment, problem.out_dtype, most, row))
    return load


def _tiles(problem: PoolProblem, geometry: Geometry, form: _Form) -> Iterator[_Tiles]:
    """Return tiles worth weighing: as many columns and rows as shared memory holds, and fewer."""
    outer, inner = geometry.dense.axes[-2:]
    most_rows = SHARED_BYTES // (form.pitch * accumulator(problem).itemsize)
    widths = (
        _of_channels(problem, inner, form) if problem.channels_last else _of_planes(inner, form)
    )
    for planes, width, span, behind in widths:
        if form.folded and all_planes(geometry) % (2 * planes) == 0:
            continue  # each plane has a twin
        columns = round_up(planes * span + behind + form.chunk - 1, form.chunk)
        covered = -(-outer.out // 2) if form.folded else outer.out
        together = planes << (form.paired and not form.folded)
        for height in _heights(covered, outer.kernel, most_rows):
            rows = min(round_up(height, outer.kernel), most_rows)
            yield _Tiles(planes, together, height, width, covered, span, rows, columns, form)


_Width = tuple[int, int, int, int]
"""Planes of a tile, outputs of a row of each, columns read for them, and more behind all planes."""


def _of_planes(inner: Axis, form: _Form) -> Iterator[_Width]:
    """Return as many planes side by side as fit, and fewer, or a part of one."""
    vector, usable = form.vector, form.usable
    common = shared_padding(inner) // vector * vector
    halo = form.shift + inner.kernel - 1
    each = round_up(inner.out + halo - common, vector)
    fitting = (usable - common) // each
    across, width = 1, inner.out
    if not fitting:
        common = 0
        across = -(-inner.out // ((usable - halo) // vector * vector))
        width = round_up(-(-inner.out // across), vector)
    span = round_up(width + halo - common, vector)
    while True:
        yield max(1, fitting), width, span, common
        if fitting < 2:
            return
        fitting //= 2


def _of_channels(problem: PoolProblem, inner: Axis, form: _Form) -> Iterator[_Width]:
    """Return all channels of a pixel, or what a sector of memory holds, up to half halo."""
    vector, channels = form.vector, problem.channels
    halo, whole = form.shift + inner.kernel - 1, form.along == "one_pixel"
    sector = SECTOR_BYTES // problem.dtype.itemsize
    planes = channels if channels <= sector else sector // vector * vector
    while whole and planes > vector and form.usable // planes < 2 * halo:
        planes = planes // 2 // vector * vector
    unit = 1 if whole else vector  # of columns, so that each row begins on a vector
    most = (form.usable // planes // unit * unit - halo) // unit * unit
    if most > 0 and (whole or planes == channels):
        width = round_up(-(-inner.out // -(-inner.out // most)), unit)
        yield planes, width, round_up(width + halo, unit), 0


def _heights(rows: int, kernel: int, most: int) -> set[int]:
    """Return rows of outputs: all that fit, as many in each tile, or whole runs."""
    highest = min(rows, most)
    fewest = -(-rows // highest)
    whole = highest // kernel * kernel
    even = (-(-rows // tiles) for tiles in range(fewest, fewest + 3))
    return {highest, *even, *(height for height in (whole, whole - kernel) if height > 0)}


def _cost(problem: PoolProblem, geometry: Geometry, tiles: _Tiles) -> float:
    """Estimate the instructions of all blocks: columns down, rows, columns stored."""
    outer, inner = geometry.axes[-2:]
    vector, paired = tiles.form.vector, tiles.form.paired
    merge, line = _merge_and_line(problem)
    runs = -(-tiles.rows // outer.kernel)
    shares = -(-tiles.rows // tiles.share(outer.kernel))
    reads = runs * outer.kernel + tiles.height - runs
    lanes = round_up(tiles.seats * shares, WARP) / shares
    further = vector // tiles.form.load - 1
    read = READ + merge * vector + PART * (further << paired) + FOLDED * tiles.form.folded
    if problem.channels_last:
        read += SCATTER_WORDS if paired else SCATTER
    if len(geometry.dims) > 2:
        of_slice = PAIRED_SLICE if pairs(problem) else SLICE
        row = IN_SLICES + of_slice * read * geometry.slices
        inside = 1 if tiles.form.padded(problem) else _share_read(problem, geometry, tiles)
        read = row * inside + PADDED * (1 - inside)
    column = SEAT * shares + RUN * runs + reads * read
    store = _store(problem, paired)
    results = -(-tiles.height // outer.stride)
    if strided(geometry):
        of_row = tiles.planes * -(-tiles.width // inner.stride)
        stores = round_up(of_row * results, WARP) * (RESULT + store / vector)
    else:
        stores = lanes * results * store
    narrow = inner.kernel < tiles.form.chunk
    lines = round_up(
        results * (tiles.chunks(tiles.form.chunk) if narrow else tiles.form.lanes), THREADS
    )
    idle = max(0, THREADS - lanes * shares)
    each = lanes * column + idle * IDLE + lines * line + stores
    return max(prod(tiles.blocks(geometry)), BLOCKS) * each


def _share_read(problem: PoolProblem, geometry: Geometry, tiles: _Tiles) -> float:
    """Return the share of rows of columns that are read where padding is not."""
    under, along = geometry.dense.axes[-2:]
    _, _, across = tiles.blocks(geometry)
    neighbours = tiles.planes if problem.channels_last else 1
    beside = tiles.span * across * neighbours / tiles.form.vector
    return share_inside(under) * share_of_warps(share_inside(along), beside)


def _store(problem: PoolProblem, paired: bool) -> float:
    if problem.reduction == "lp":
        return STORE_ROOTS[int(problem.p)]
    return STORE_PAIRED if paired and problem.reduction == "average" else STORE[problem.reduction]


def _merge_and_line(problem: PoolProblem) -> tuple[float, float]:
    if problem.reduction != "max" or pairs(problem):
        return MERGE, LINE
    double = problem.dtype.itemsize == 8
    return (DOUBLE_MERGE, DOUBLE_LINE) if double else (WORD_MERGE, WORD_LINE)


def _tiled_launch(problem: PoolProblem, geometry: Geometry, tiles: _Tiles) -> Launch:
    form, (outer, inner) = tiles.form, geometry.axes[-2:]
    neighbours = tiles.planes if problem.channels_last else tiles.span // form.vector
    share, of = tiles.share(outer.kernel), operator(problem, "int", paired=form.paired)
    numbers = (len(geometry.dims), inner.kernel, form.lanes, form.vector, form.load, form.shift)
    struct = tiles.struct(geometry, tiles.seats, neighbours, share, form.chunk)
    flags = map(boolean, (form.folded, strided(geometry)))
    return Launch(
        "separable_vectors.cu",
        "separable_vectors",
        (of, *map(str, numbers), *flags, form.along, boolean(geometry.images)),
        ("x", "y"),
        (struct, window_parameters(problem, geometry)),
        (prod(tiles.blocks(geometry)), 1),
        tiles.rows * form.pitch * accumulator(problem).itemsize,
    )
