// Large overlapping windows, stride 1: one pass down the columns and one along the rows of a tile,
// in one launch. The cost of an output hardly depends on the size of a window that is small beside
// shared memory, 243 columns and 48 rows of 32 bits; beyond that it grows with it.
//
// Down a column the input is cut into runs as long as the window. A window then is the end of one
// run and the beginning of the next, so it merges one suffix and one prefix (van Herk, Gil and
// Werman). The rows are separable.cuh's. Each thread has a column, each warp a row at a time. Words
// hold 16-bit maxima of two planes. Channels last neighbouring threads have the columns of neighbouring
// planes, so that a warp reads consecutive channels. separable_vectors.cu takes vectors of columns.
// Counted cost in instructions per output: bench/results.
#include "separable.cuh"

template <class Op, int Width, bool ChannelsLast> struct Scalars : Tile<Op, Width, 32, 1, 0> {
    using Base = Tile<Op, Width, 32, 1, 0>;
    using typename Base::Accumulator;
    using typename Base::Out;
    using typename Base::T;
    using Base::first_plane, Base::inner, Base::left, Base::merged, Base::op, Base::outer, Base::pitch;
    using Base::plane_of, Base::reduced, Base::tiles, Base::top, Base::w;
    using Tap = typename Held<Op>::Tap;
    static constexpr int flight = Op::flight;

    // What a thread takes: column c of plane p, or what lies behind the planes.
    struct Seat {
        int p, c;
        bool taken;
        int place;  // in a row of shared memory
    };
    const Seat at;

    __device__ Scalars(const Window<2, int>& window, const Tiles& t) : Base(window, t), at(seat(t)) {}

    __device__ static Seat seat(const Tiles& tiles) {
        const int t = threadIdx.x, group = tiles.neighbours.quotient(t);
        const int member = t - group * tiles.neighbours.divisor;
        if constexpr (ChannelsLast) {
            const bool taken = group < tiles.span;
            return {member, group, taken, taken ? member * tiles.span + group : t};
        }
        return {group, member, group < tiles.planes, t};
    }

    // A column of the input and, where words hold two, the same one of another plane. Of the tile's
    // rows the input has begin .. end - 1.
    struct Column {
        const T *from, *twin;
        int step, begin, end;

        __device__ bool has(int row) const { return begin <= row && row < end; }
    };

    __device__ Column column(const T* x, int plane, int position) const {
        bool twins = Op::pairs && plane + tiles.planes < tiles.all_planes;
        // The first row of the tile, in the padding or not.
        const int begin = outer().pad_begin - top;
        x += static_cast<long long>(position) * inner().step -
             static_cast<long long>(begin) * outer().step;
        const T* from = pinned(plane_of(x, plane));
        const T* twin = twins ? pinned(plane_of(x, plane + tiles.planes)) : from;
        return {from, twin, outer().step, begin, begin + outer().size};
    }

    __device__ Tap read(const Column& column, int row) const {
        int offset = row * column.step;
        if constexpr (Op::pairs)
            return bits(load(column.from + offset)) | bits(load(column.twin + offset)) << 16;
        else
            return value(load(column.from + offset));
    }

    // Both walks read a few rows at once where the input has them all.

    // The windows of rows run .. last - 1, which begin in this run: its suffixes.
    __device__ void begin_windows(const Column& column, Accumulator* to, int run, int last) const {
        const int low = most(run, column.begin) + flight, high = least(last, column.end);
        Tap tap[flight];
        Accumulator a = merged.start();
        int i = run + outer().kernel;
        to += i * pitch;
#pragma unroll 1
        while (i > run) {
            if (flight > 1 && low <= i && i <= high) {
                i -= flight, to -= flight * pitch;
#pragma unroll
                for (int t = 0; t < flight; ++t) tap[t] = read(column, i + t);
#pragma unroll
                for (int t = flight - 1; t >= 0; --t) to[t * pitch] = a = merged.accumulate(a, tap[t]);
            } else {
                --i, to -= pitch;
                if (column.has(i)) a = merged.accumulate(a, read(column, i));
                if (i < last) *to = a;
            }
        }
    }

    // What they have in the next run: prefixes.
    __device__ void end_windows(const Column& column, Accumulator* to, int next, int last) const {
        if (column.end <= next) return;
        const int low = most(next, column.begin), high = least(last, column.end) - flight;
        Tap tap[flight];
        Accumulator a = merged.start();
        to += next * pitch;
#pragma unroll 1
        for (int i = next; i < last;) {
            if (flight > 1 && low <= i && i <= high) {
#pragma unroll
                for (int t = 0; t < flight; ++t) tap[t] = read(column, i + t);
#pragma unroll
                for (int t = 0; t < flight; ++t) {
                    a = merged.accumulate(a, tap[t]);
                    to[t * pitch] = merged.merge(to[t * pitch], a);
                }
                i += flight, to += flight * pitch;
            } else {
                if (column.has(i)) a = merged.accumulate(a, read(column, i));
                *to = merged.merge(*to, a);
                ++i, to += pitch;
            }
        }
    }

    __device__ void reduce_column(const Column& column, Accumulator* to) const {
        const int kernel = outer().kernel;
#pragma unroll 1
        for (int run = 0; run < tiles.rows; run += kernel) {
            int next = run + kernel, last = least(next, tiles.rows);
            begin_windows(column, to, run, last);
            end_windows(column, to - (kernel - 1) * pitch, next, last + kernel - 1);
        }
    }

    __device__ void reduce_columns(const T* x) const {
        if (threadIdx.x >= tiles.columns) return;
        Accumulator* to = reduced + at.place;
        const int plane = first_plane + at.p, position = left + at.c - inner().pad_begin;
        if (at.taken && plane < tiles.all_planes && within(position, inner().size)) {
            reduce_column(column(x, plane, position), to);
        } else {
#pragma unroll 1
            for (int i = 0; i < tiles.rows; ++i) to[i * pitch] = merged.start();
        }
    }

    __device__ int rows_of(int p) const { return Base::rows_below(p, at.c, 0); }
    // Position in y of the first of them, and from one to the next.
    __device__ int position(int p) const {
        const int plane = first_plane + p, image = ChannelsLast ? w.channels.quotient(plane) : plane;
        const int pixel = (image * outer().out.divisor + top) * inner().out.divisor + left + at.c;
        if (!ChannelsLast) return pixel;
        return (pixel - image) * w.channels.divisor + plane;
    }
    __device__ int row_step() const {
        return inner().out.divisor * (ChannelsLast ? w.channels.divisor : 1);
    }

    __device__ void store_columns(const T* x, Out* y, int again) {
        if (!at.taken) return;
        if constexpr (Op::pairs) store_twins(y);
        else store_one(x, y, again);
    }

    // One output again, tap by tap.
    struct Again {
        const Window<2, int>& w;
        const T* plane;
        int row, column;  // of the first tap

        template <class Any> __device__ typename Any::Accumulator operator()(const Any& any) const {
            auto a = any.start();
            int r = row, c = column;
#pragma unroll 1
            for (int i = 0; i < w.axis[0].kernel * w.axis[1].kernel; ++i, ++c) {
                if (c == column + w.axis[1].kernel) c = column, ++r;
                if (!within(r, w.axis[0].size) || !within(c, w.axis[1].size)) continue;
                a = any.merge(a, any.lift(value(plane[r * w.axis[0].step + c * w.axis[1].step]), i));
            }
            return a;
        }
        __device__ bool any(bool wanted) const { return wanted; }
    };

    __device__ void store_one(const T* x, Out* y, int again) {
        const int rows = rows_of(at.p);
        if (rows <= 0) return;
        const T* plane = plane_of(x, first_plane + at.p);
        const int column = left + at.c, along = Op::counts ? Base::counted(inner(), column) : 1;
        const Accumulator* from = reduced + at.place;
        int n = position(at.p), row = top;
        in_flights<Op::counts || !Op::exact ? 1 : 2>(rows, [&](int flight) {
#pragma unroll
            for (int i = 0; i < flight; ++i, ++row, from += pitch, n += row_step()) {
                const Few<65536> count(Op::counts ? along * Base::counted(outer(), row) : 1);
                if constexpr (Op::powers > 0) {
                    if (pinned(again)) {
                        const Accumulator limit = Base::limit(row, column);
                        if (merged.replaces(y[n], *from, limit)) y[n] = merged.restored(*from, count);
                        continue;
                    }
                }
                y[n] = op.finish(*from, count);
                merged.watch(*from);
                if constexpr (Op::slow) {
                    const Again traverse{w, plane, row - outer().pad_begin, column - inner().pad_begin};
                    if (!op.certain(*from)) y[n] = op.careful(traverse, count);
                }
            }
        });
    }

    __device__ void store_twins(T* y) const {
        const int twin = at.p + tiles.planes, rows = rows_of(at.p), both = rows_of(twin);
        if (rows <= 0) return;
        const int begin = position(at.p);
        const int twins = ChannelsLast ? position(twin) - begin
                                       : tiles.planes * outer().out.divisor * inner().out.divisor;
        auto* to = reinterpret_cast<unsigned short*>(y) + begin;
        const Accumulator* from = reduced + at.place;
        in_flights<2>(rows, [&](int flight) {
#pragma unroll
            for (int r = 0; r < flight; ++r, from += pitch, to += row_step()) {
                to[0] = static_cast<unsigned short>(*from);
                if (both > 0) to[twins] = static_cast<unsigned short>(*from >> 16);
            }
        });
    }
};

template <class Op, int Width, bool ChannelsLast>
__global__ void __launch_bounds__(256, 4)
separable(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
          const __grid_constant__ Tiles tiles, const __grid_constant__ Window<2, int> w) {
    Scalars<Op, Width, ChannelsLast> tile(w, tiles);
    reduce_tile<Width>(tile, x, y);
}
