// What separable.cu and separable_vectors.cu share: the tile of large overlapping windows that a block
// of 256 threads takes in shared memory, of one plane or of several small ones side by side, and the
// pass along its rows.
//
// Each lane of a warp takes a chunk of a row's outputs. What all their windows share, from the end of
// the chunk to the end of the first window, are whole chunks, which other lanes have merged, and the
// head of one. Windows shorter than a chunk need no other lane's, so that any thread takes a chunk of any
// row. No tap is taken back, which keeps sums as accurate as maxima. What windows reduce across the end of
// a plane is not stored.
//
// Of three axes a column merges the slices under its plane of outputs, tap by tap.
//
// A tile has the outputs of stride 1 along rows and columns. Of greater strides only every stride-th row
// is reduced along, and every stride-th output stored: which is cheaper than windows one by one as long
// as they overlap enough.
#pragma once
#include "merged.cuh"
#include "shared.cuh"

struct Tiles {
    int planes, all_planes;         // side by side in a block, and of the array
    int together;                   // of a block: twice as many where words hold two planes
    int height, width;              // outputs of a tile
    int covered;                    // rows of outputs under tiles: a plane's, or of its upper half
    int rows;                       // of shared memory
    int columns;                    // of shared memory in use: whole chunks
    Divisor<int> down, across;      // tiles of a plane
    int span;                       // input columns under the tile of one plane
    Divisor<int> seats;             // threads for the columns in use, once
    Divisor<int> neighbours;        // seats of a plane; channels last of a column: planes
    int share;                      // rows of one of several threads for a seat: whole runs
    Divisor<int> row_stride, column_stride;
    Divisor<int> chunks;            // of a row's outputs
    Divisor<int> results, parts;    // stored of a row of one plane, at most, and threads for a column
};

// What a lane so far behind has.
template <class V> __device__ inline V of_lane_behind(V own, int behind) {
    return __shfl_down_sync(0xffffffff, own, behind);
}
__device__ inline Placed of_lane_behind(Placed own, int behind) {
    return {of_lane_behind(own.key, behind), of_lane_behind(own.in_front(), behind)};
}

// Width is the window's, or 0 for any of at least a chunk and, for slow operators, any. Lanes of a warp
// take a row, and read Unit elements of it at once. The first window begins in column Shift. Unless
// Strided, both strides are 1. Planes lie evenly, as the channels of one image, unless they are those of
// Images or channels last.
template <class Op, int Axes, int Width, int Lanes, int Unit, int Shift, bool Strided,
          bool ChannelsLast, bool Images>
struct Tile {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Accumulator = typename Merged<Op>::Accumulator;
    using Partials = Pack<Accumulator, Unit>;
    // Outputs of a lane: so many that no two lanes that read a row together meet in a bank.
    static constexpr int chunk = Unit == 4 ? 12 : Unit == 2 ? 10 : 9;
    // Columns of shared memory; no more than threads where each takes one.
    static constexpr int pitch = (Unit > 1 ? Lanes : 28) * chunk;

    const Window<Axes, int>& w;
    const Tiles tiles;  // a copy: by reference it costs the compiler more time
    const Op op;
    Merged<Op> merged;
    Accumulator* const reduced = reinterpret_cast<Accumulator*>(shared);
    int first_plane, top, left;  // the tile's first output

    __device__ Tile(const Window<Axes, int>& window, const Tiles& t)
        : w(window), tiles(t), op(window.norm), merged(window.norm) {
        const int block = blockIdx.x;
        const int row = tiles.across.quotient(block), group = tiles.down.quotient(row);
        // Pinned: it is all computed again behind each barrier else.
        left = pinned((block - row * tiles.across.divisor) * tiles.width);
        top = pinned((row - group * tiles.down.divisor) * tiles.height);
        first_plane = pinned(group * tiles.together);
    }

    __device__ const Axis<int>& outer() const { return w.axis[Axes - 2]; }
    __device__ const Axis<int>& inner() const { return w.axis[Axes - 1]; }

    // The input under a plane of outputs: so many planes, `step` elements apart.
    struct Slices {
        const T* from;
        int count, step;

        // Of two in a word one may have fewer, whose last one is merged again.
        __device__ const T* at(int s) const {
            if constexpr (Axes == 2) return from;
            else return from + (Op::pairs ? least(s, count - 1) : s) * step;
        }
    };
    __device__ Slices slices_of(const T* x, int plane) const {
        const Coordinates at = coordinates(plane);
        // Unsigned: to extend a sign costs the compiler more time.
        const T* from = x + unsigned(at.channel) * w.channel_step;
        if constexpr (Images) from += unsigned(at.image) * w.batch_step;
        if constexpr (Axes == 2) {
            return {pinned(from), 1, 0};
        } else {
            const Axis<int>& axis = w.axis[0];
            from += static_cast<long long>(first_slice(at)) * axis.step;
            return {pinned(from), valid(axis, at.slice), axis.step};
        }
    }
    // Of a plane of outputs: its slice is counted as if their stride was 1.
    struct Coordinates {
        int image, channel, slice;
    };
    __device__ Coordinates coordinates(int plane) const {
        int image = plane, slice = 0;
        if constexpr (Axes == 3 && !ChannelsLast) slice = split(image, w.axis[0].out);
        const int channel = Images ? split(image, w.channels) : image;
        if constexpr (Axes == 3 && ChannelsLast) slice = split(image, w.axis[0].out);
        return {image, channel, slice * w.axis[0].stride};
    }

    // The number in Indices of the input's first element under a plane of outputs.
    __device__ long long first_number(int plane) const {
        const Coordinates at = coordinates(plane);
        long long number = at.channel * w.index_channel_step;
        if constexpr (Images) number += at.image * w.index_batch_step;
        if constexpr (Axes == 3) number += first_slice(at) * w.axis[0].index_step;
        return number;
    }
    __device__ int first_slice(Coordinates at) const { return most(at.slice - w.axis[0].pad_begin, 0); }

    // Outputs of an axis as if its stride was 1.
    __device__ static int dense(const Axis<int>& axis) {
        return Strided ? (axis.out.divisor - 1) * axis.stride + 1 : axis.out.divisor;
    }
    // Those of column c of plane p from a row of the tile on, down to its end or to row `end`.
    __device__ int rows_below(int p, int c, int row, int end) const {
        // Not &&: branches cost the compiler more time.
        const bool there = (c < tiles.width) & (left + c < dense(inner()));
        return there & (first_plane + p < tiles.all_planes) ? least(end - top, tiles.height) - row : 0;
    }

    // The first output from `begin` on that is stored, and how far from there it is.
    struct Stored {
        int output, place;
    };
    __device__ static Stored stored(const Divisor<int>& stride, int begin) {
        if (!Strided) return {begin, 0};
        const int output = stride.quotient(begin + stride.divisor - 1);
        return {output, output * stride.divisor - begin};
    }
    __device__ Stored stored_row() const { return stored(tiles.row_stride, top); }
    __device__ int apart() const { return Strided ? tiles.row_stride.divisor : 1; }
    // Position in y of the first output of plane p that is stored from a row and a column of the tile on, and
    // from one row to the next.
    __device__ int position(int p, int row, int column) const {
        const int plane = first_plane + p, image = ChannelsLast ? w.channels.quotient(plane) : plane;
        const int first = image * outer().out.divisor + stored(tiles.row_stride, top + row).output;
        const int pixel = first * inner().out.divisor + stored(tiles.column_stride, left + column).output;
        if (!ChannelsLast) return pixel;
        return (pixel - image) * w.channels.divisor + plane;
    }
    __device__ int row_step() const {
        return inner().out.divisor * (ChannelsLast ? w.channels.divisor : 1);
    }

    __device__ int counted_slices(int plane) const {
        if constexpr (Axes == 2) return 1;
        else return counted(w.axis[0], coordinates(plane).slice);
    }
    // The greatest sum of a finite norm of the window there; nothing asks for that of an average.
    __device__ Accumulator limit(int plane, int row, int column) const {
        if constexpr (Op::counts) return 0;
        int down = valid(outer(), row);
        if constexpr (Axes == 3) down *= valid(w.axis[0], coordinates(plane).slice);
        return merged.limit(down + valid(inner(), column));
    }

    // Elements Skip .. Skip + Many - 1 from an aligned place on, and the rest of the vectors that hold them:
    // in place, for a copy of each would cost the compiler more time.
    template <int Skip, int Many> struct Stretch {
        static constexpr int first = Skip / Unit * Unit, parts = (Skip + Many - first + Unit - 1) / Unit;
        Partials part[parts];

        __device__ explicit Stretch(const Accumulator* from) {
#pragma unroll
            for (int i = 0; i < parts; ++i) part[i] = reinterpret_cast<const Partials*>(from + first)[i];
        }
        __device__ Accumulator (&elements())[Many] {
            return reinterpret_cast<Accumulator(&)[Many]>(part[0].element[Skip - first]);
        }
    };

    __device__ void reduce_rows() const {
        if constexpr (0 < Width && Width < chunk) reduce_narrow_rows();
        else reduce_wide_rows();
    }

    // Threads take the chunks of all rows, so many at once. Of a row those that come later are read later,
    // and none reads a chunk before its own: what is stored meanwhile is not read any more.
    __device__ void reduce_narrow_rows() const {
        const int chunks = tiles.chunks.divisor, first = stored_row().place;
        const int lines = (tiles.height - first + apart() - 1) / apart();
#pragma unroll 1
        for (int begin = 0; begin < lines * chunks; begin += blockDim.x) {
            const int i = begin + threadIdx.x, line = tiles.chunks.quotient(i);
            const int place = (first + line * apart()) * pitch + (i - line * chunks) * chunk;
            Accumulator* const to = reduced + unsigned(place);
            alignas(Partials) Accumulator window[chunk];
            if (line < lines) {
                Stretch<Shift, chunk + Width - 1> parts(to);
                merge_narrow<0>(window, parts.elements());
            }
            __syncthreads();
            if (line < lines) put_chunk(to, window);
        }
    }
    template <int From>
    __device__ void merge_narrow(Accumulator (&window)[chunk], const Accumulator* part) const {
        constexpr int windows = least(Width, chunk - From);
        merge_windows<Width, 1, windows>(merged, [&](int i) { return part[From + i]; },
                                         [&](int i, Accumulator a) { window[From + i] = a; });
        if constexpr (From + windows < chunk) merge_narrow<From + windows>(window, part);
    }
    __device__ static void put_chunk(Accumulator* to, const Accumulator (&window)[chunk]) {
#pragma unroll
        for (int i = 0; i < chunk; i += Unit)
            *reinterpret_cast<Partials*>(to + i) = reinterpret_cast<const Partials&>(window[i]);
    }

    // A warp takes a row, or as many as its lanes hold.
    __device__ void reduce_wide_rows() const {
        constexpr int together = 32 / Lanes;  // rows of a warp
        const int begin = threadIdx.x % Lanes * chunk, width = Width ? Width : inner().kernel;
        // Lanes behind the columns do as the first one does, those behind the rows as the last row's;
        // they store nothing.
        const int head = begin + Shift + chunk <= tiles.columns ? begin : 0;
        const bool active = begin + Shift + width + chunk - 1 <= tiles.columns;
        const int tail = active ? begin : 0, last = tiles.height - 1;
#pragma unroll 1
        for (int row = stored_row().place + threadIdx.x / 32 * together * apart(); row <= last;
             row += blockDim.x / Lanes * apart()) {
            const int mine = together > 1 ? row + threadIdx.x % 32 / Lanes * apart() : row;
            // Unsigned: to extend a sign costs the compiler more time.
            Accumulator* line = reduced + unsigned((together > 1 ? least(mine, last) : row) * pitch);
            alignas(Partials) Accumulator window[chunk];
            Stretch<Shift, chunk> own(line + head);
            wide_windows(window, own.elements(), line + tail, width);
            __syncwarp();
            if (active && (together == 1 || mine <= last)) put_chunk(line + begin, window);
        }
    }

    // For any width, with little code, which is few instructions beside a pow for each tap.
    __device__ void slow_windows(Accumulator (&window)[chunk], const Accumulator (&own)[chunk],
                                 const Accumulator* line, int width) const {
#pragma unroll
        for (int i = 0; i < chunk; ++i) window[i] = own[i];
#pragma unroll 1
        for (int t = 1; t < width; ++t) {
#pragma unroll
            for (int i = 0; i < chunk; ++i) window[i] = merged.merge(window[i], line[i + t]);
        }
    }

    __device__ void wide_windows(Accumulator (&window)[chunk], Accumulator (&own)[chunk],
                                 const Accumulator* line, int width) const {
        if constexpr (Op::slow)
            if (width < chunk) return slow_windows(window, own, line, width);
        const int beyond = width - chunk, chunks = beyond / chunk, rest = beyond % chunk;
        Accumulator head = own[0], a = merged.start();
#pragma unroll
        for (int i = 1; i < chunk - 1; ++i)
            if (i < rest) head = merged.merge(head, own[i]);
#pragma unroll
        for (int i = chunk - 2; i >= 0; --i) own[i] = merged.merge(own[i], own[i + 1]);
#pragma unroll 2
        for (int i = 1; i <= chunks; ++i)
            a = merged.merge(a, of_lane_behind(own[0], i));
        if (rest > 0) a = merged.merge(a, of_lane_behind(head, chunks + 1));
        if constexpr (Unit > 1) {
            Stretch<Shift + Width, chunk - 1> tail(line);
            end_windows(window, own, a, tail.elements());
        } else {
            end_windows(window, own, a, line + width);
        }
    }

    // What they have behind the chunk: `a`, which all share, and more and more of the tail.
    template <class Tail>
    __device__ void end_windows(Accumulator (&window)[chunk], const Accumulator (&own)[chunk],
                                Accumulator a, const Tail& tail) const {
        window[0] = merged.merge(own[0], a);
#pragma unroll
        for (int i = 1; i < chunk; ++i) {
            a = merged.merge(a, tail[i - 1]);
            window[i] = merged.merge(own[i], a);
        }
    }
};

// All passes of a block over its tile.
template <int Width, class Tile, class T, class Out>
__device__ inline void reduce_tile(Tile& tile, const T* x, Out* y) {
#pragma unroll 1
    for (int pass = 0; pass < tile.merged.passes; ++pass) {
        if (pass > 0) {
            if (!__syncthreads_or(tile.merged.wanted(pass))) continue;
            tile.merged.rescale(pass);
        }
        tile.reduce_columns(x);
        __syncthreads();
        if constexpr (Width != 1) {
            tile.reduce_rows();
            __syncthreads();
        }
        tile.store_columns(x, y, pass > 0);
    }
}
