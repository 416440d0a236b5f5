// Large overlapping windows: one pass down the columns and one along the rows of a tile, in one
// launch. The cost of an output of stride 1 hardly depends on the size of a window that is small beside
// shared memory, 243 columns and 48 rows of 32 bits; beyond that it grows with it. Of greater strides it
// is that of the outputs between them, too.
//
// Down a column the input is cut into runs as long as the window. A window then is the end of one
// run and the beginning of the next, so it merges one suffix and one prefix (van Herk, Gil and
// Werman). What all windows of a run have in common merges first, and is not kept. The rows are
// separable.cuh's. Each thread has a column. Words hold the 16- or 8-bit maxima of two planes. Channels
// last neighbouring threads have the columns of neighbouring planes, so that a warp reads consecutive
// channels. separable_vectors.cu takes vectors of columns.
//
// Maxima bring their place under the tile where Indices are asked for. Of small squares Height is known
// then, and registers hold what a run and the next one have: each tap is read once.
//
// Counted cost in instructions per output, from 13 x 13 to 63 x 63: maxima 31 to 62, sums 61 to 100, of
// doubles 84 to 142; with Indices 79 to 107 of 16 and 8 bits, 117 to 152 of float32, 155 to 241 of doubles,
// and from 3 x 3 to 8 x 8, 55 to 69, 79 to 92 and 105 to 137.
#include "separable.cuh"

template <class Op, int Axes, int Height, int Width, bool Strided, bool ChannelsLast, bool Images>
struct Scalars : Tile<Op, Axes, Width, 32, 1, 0, Strided, ChannelsLast, Images> {
    using Base = Tile<Op, Axes, Width, 32, 1, 0, Strided, ChannelsLast, Images>;
    using typename Base::Accumulator;
    using typename Base::Out;
    using typename Base::T;
    using Base::first_plane, Base::inner, Base::left, Base::merged, Base::op, Base::outer, Base::pitch;
    using Base::reduced, Base::row_step, Base::tiles, Base::top, Base::w;
    using typename Base::Slices;
    using Tap = typename Held<Op>::Tap;
    static constexpr int flight = Axes == 2 ? Op::flight : 1;

    // What a thread takes: column c of plane p, or what lies behind the planes.
    struct Seat {
        int p, c;
        bool taken;
        int place;  // in a row of shared memory
    };
    const Seat at;
    typename Op::Index* const indices;

    __device__ Scalars(const Window<Axes, int>& window, const Tiles& t, typename Op::Index* to)
        : Base(window, t), at(seat(t)), indices(to) {}

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
        Slices from, twin;
        int step, begin, end;

        __device__ bool has(int row) const { return begin <= row && row < end; }
    };

    __device__ Column column(const T* x, int plane, int position) const {
        bool twins = Op::pairs && plane + tiles.planes < tiles.all_planes;
        // The first row of the tile, in the padding or not.
        const int begin = outer().pad_begin - top;
        x += static_cast<long long>(position) * inner().step -
             static_cast<long long>(begin) * outer().step;
        const Slices from = Base::slices_of(x, plane);
        const Slices twin = twins ? Base::slices_of(x, plane + tiles.planes) : from;
        return {from, twin, outer().step, begin, begin + outer().size};
    }

    __device__ Tap read(const Column& column, int row, int slice = 0) const {
        int offset = row * column.step;
        const T* from = column.from.at(slice) + offset;
        if constexpr (Op::pairs)
            return load_beside(from, column.twin.at(slice) + offset);
        else if constexpr (Op::indices)
            return load(from);
        else
            return value(load(from));
    }

    // Where a tap is, in one number of so many places a row and rows a slice.
    static constexpr unsigned row_places = 256, slice_rows = 8192;
    static_assert(pitch < row_places);
    __device__ unsigned place(int row, int slice = 0) const {
        return (slice * slice_rows + row) * row_places + at.c;
    }

    // Merges a part and what comes behind it: of two axes their places, too, are in this order.
    static constexpr bool ordered = Op::indices && Axes == 2;
    __device__ Accumulator merge(Accumulator a, Accumulator b) const {
        if constexpr (ordered) return op.merge_in_order(a, b);
        else return merged.merge(a, b);
    }

    // What a column has in a row: of two axes a tap, and of three what all slices come to.
    using Taken = typename Either<Axes == 2, Tap, Accumulator>::Type;
    __device__ Taken take(const Column& column, int row) const {
        if constexpr (Axes == 2) {
            return read(column, row);
        } else {
            const int other = Op::pairs ? column.twin.count : 0, slices = most(column.from.count, other);
            Accumulator a = merged.start();
#pragma unroll 1
            for (int s = 0; s < slices; ++s) a = merged.accumulate(a, read(column, row, s), place(row, s));
            return a;
        }
    }
    // That alone, in front of what is merged, or behind it.
    __device__ Accumulator alone(Taken taken, int row) const {
        if constexpr (Axes == 2) return merged.alone(taken, place(row));
        else return taken;
    }
    template <bool InFront> __device__ Accumulator add(Accumulator a, Taken taken, int row) const {
        if constexpr (ordered || Axes > 2)
            return InFront ? merge(alone(taken, row), a) : merge(a, alone(taken, row));
        else
            return merged.accumulate(a, taken, place(row));
    }

    // What all windows of a run have in common: rows begin .. end - 1. Maxima of two axes with their
    // places merge as they are, since to lift each of them would cost more.
    __device__ Accumulator reduce_common(const Column& column, int begin, int end) const {
        begin = most(begin, column.begin), end = least(end, column.end);
        if constexpr (ordered) return begin < end ? first_of_rows(column, begin, end) : merged.start();
        Taken taken[flight];
        Accumulator a = merged.start();
#pragma unroll 1
        for (int i = begin; i < end;) {
            if (flight > 1 && i <= end - flight) {
#pragma unroll
                for (int t = 0; t < flight; ++t) taken[t] = take(column, i + t);
#pragma unroll
                for (int t = 0; t < flight; ++t) a = add<false>(a, taken[t], i + t);
                i += flight;
            } else {
                a = add<false>(a, take(column, i), i);
                ++i;
            }
        }
        return a;
    }
    // The last row may be read again, where it is not the first of equal ones any more.
    __device__ Accumulator first_of_rows(const Column& column, int begin, int end) const {
        const FirstMax<T, unsigned, typename Op::Index> first(w.norm);
        auto found = first.lift(value(read(column, begin)), place(begin));
#pragma unroll 1
        for (int i = begin + 1; i < end; i += flight) {
            Tap tap[flight];
#pragma unroll
            for (int t = 0; t < flight; ++t) tap[t] = read(column, least(i + t, end - 1));
#pragma unroll
            for (int t = 0; t < flight; ++t)
                found = first.merge(found, first.lift(value(tap[t]), place(i + t)));
        }
        return op.lift(Round<T>::from(found.best), found.code);
    }

    // Both walks read a few rows at once where the input has them all.

    // The windows of rows run .. last - 1, which begin in this run: its suffixes.
    __device__ void begin_windows(const Column& column, Accumulator* to, int run, int last) const {
        const int low = most(run, column.begin) + flight, high = least(last, column.end);
        Taken taken[flight];
        Accumulator a = reduce_common(column, last, run + outer().kernel);
        to += last * pitch;
#pragma unroll 1
        for (int i = last; i > run;) {
            if (flight > 1 && low <= i && i <= high) {
                i -= flight, to -= flight * pitch;
#pragma unroll
                for (int t = 0; t < flight; ++t) taken[t] = take(column, i + t);
#pragma unroll
                for (int t = flight - 1; t >= 0; --t)
                    to[t * pitch] = a = add<true>(a, taken[t], i + t);
            } else {
                --i, to -= pitch;
                if (column.has(i)) a = add<true>(a, take(column, i), i);
                *to = a;
            }
        }
    }

    // What they have in the next run: prefixes.
    __device__ void end_windows(const Column& column, Accumulator* to, int next, int last) const {
        if (column.end <= next) return;
        const int low = most(next, column.begin), high = least(last, column.end) - flight;
        Taken taken[flight];
        Accumulator a = merged.start();
        to += next * pitch;
#pragma unroll 1
        for (int i = next; i < last;) {
            if (flight > 1 && low <= i && i <= high) {
#pragma unroll
                for (int t = 0; t < flight; ++t) taken[t] = take(column, i + t);
#pragma unroll
                for (int t = 0; t < flight; ++t) {
                    a = add<false>(a, taken[t], i + t);
                    to[t * pitch] = merge(to[t * pitch], a);
                }
                i += flight, to += flight * pitch;
            } else {
                if (column.has(i)) a = add<false>(a, take(column, i), i);
                *to = merge(*to, a);
                ++i, to += pitch;
            }
        }
    }

    // Where the height of windows is known, registers hold what is under a run. Rows of padding are those
    // beside them once more.
    __device__ void reduce_known(const Column& column, Accumulator* to) const {
        static_assert(Op::repeats);
        constexpr int before = Height - 1;
        Accumulator part[before + Height];
        const auto fetch = [&](int i, int row) {
            row = least(most(row, column.begin), column.end - 1);
            part[i] = alone(take(column, row), row);
        };
#pragma unroll
        for (int i = 0; i < before; ++i) fetch(i, i);
#pragma unroll 1
        for (int run = 0; run < tiles.rows; run += Height) {
#pragma unroll
            for (int i = before; i < before + Height; ++i) fetch(i, run + i);
            merge_windows<Height, 1, Height>(
                *this, [&](int i) { return part[i]; },
                [&](int i, Accumulator a) {
                    if (run + i < tiles.rows) to[(run + i) * pitch] = a;
                });
#pragma unroll
            for (int i = 0; i < before; ++i) part[i] = part[i + Height];
        }
    }

    __device__ void reduce_column(const Column& column, Accumulator* to) const {
        if constexpr (Height > 0) {
            reduce_known(column, to);
        } else {
            const int kernel = outer().kernel;
#pragma unroll 1
            for (int run = 0; run < tiles.rows; run += kernel) {
                int next = run + kernel, last = least(next, tiles.rows);
                begin_windows(column, to, run, last);
                end_windows(column, to - (kernel - 1) * pitch, next, last + kernel - 1);
            }
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

    // Outputs that this thread stores in plane p.
    __device__ int rows_of(int p) const {
        if (stored_column().place > 0) return 0;
        const int rows = Base::rows_below(p, at.c, Base::stored_row().place, tiles.covered);
        return Strided && rows > 0 ? tiles.row_stride.quotient(rows + Base::apart() - 1) : rows;
    }
    // Position in y of the first of them.
    __device__ int position(int p) const { return Base::position(p, 0, at.c); }

    __device__ typename Base::Stored stored_column() const {
        return Base::stored(tiles.column_stride, left + at.c);
    }
    // In shared memory.
    __device__ const Accumulator* first_result() const {
        return reduced + at.place + Base::stored_row().place * pitch;
    }

    __device__ void store_columns(const T* x, Out* y, int again) {
        if (!at.taken) return;
        if constexpr (Op::pairs) store_twins(y);
        else if constexpr (Op::indices) store_found(x, y);
        else store_one(x, y, again);
    }

    static_assert(!Op::slow || Axes == 2, "outputs that are made again have no third axis");
    __device__ void store_one(const T* x, Out* y, int again) {
        const int rows = rows_of(at.p);
        if (rows <= 0) return;
        const int plane = first_plane + at.p, column = left + at.c;
        const int along = Op::counts ? Base::counted_slices(plane) * counted(inner(), column) : 1;
        const int apart = Base::apart();
        const T* input = Op::slow ? Base::slices_of(x, plane).from : nullptr;
        const Accumulator* from = first_result();
        int n = position(at.p), row = top + Base::stored_row().place;
        in_flights<Op::counts || !Op::exact ? 1 : 2>(rows, [&](int flight) {
#pragma unroll
            for (int i = 0; i < flight; ++i, row += apart, from += apart * pitch, n += row_step()) {
                const Few<65536> count(Op::counts ? along * counted(outer(), row) : 1);
                if constexpr (Op::powers > 0) {
                    if (pinned(again)) {
                        const Accumulator limit = Base::limit(plane, row, column);
                        if (merged.replaces(y[n], *from, limit)) y[n] = merged.restored(*from, count);
                        continue;
                    }
                }
                y[n] = merged.finish_any(*from, count);
                merged.watch(*from);
                if constexpr (Op::slow) {
                    const Again<T> traverse{outer(), inner(), input, row - outer().pad_begin,
                                            column - inner().pad_begin};
                    if (!op.certain(*from)) y[n] = op.careful(traverse, count);
                }
            }
        });
    }

    // From one element of a plane to another, in memory and in the numbering of Indices.
    struct Distance {
        int offset, number;
    };
    __device__ Distance distance(int slice, int row, int column) const {
        Distance found{0, 0};
        const auto add = [&](const Axis<int>& axis, int steps) {
            found.offset += steps * axis.step;
            found.number += steps * static_cast<int>(axis.index_step);
        };
        if constexpr (Axes == 3) add(w.axis[0], slice);
        add(outer(), row);
        add(inner(), column);
        return found;
    }
    __device__ Distance distance(unsigned place) const {
        const unsigned row = place / row_places, column = place % row_places;
        if constexpr (Axes == 2) return distance(0, row, column);
        else return distance(row / slice_rows, row % slice_rows, column);
    }
    __device__ void store_found(const T* x, Out* y) const {
        const int rows = rows_of(at.p), plane = first_plane + at.p;
        if (rows <= 0) return;
        const Distance first = distance(0, top - outer().pad_begin, left - inner().pad_begin);
        const T* const input = pinned(Base::slices_of(x, plane).from + first.offset);
        const long long number = Base::first_number(plane) + first.number;
        const Accumulator* from = first_result();
        int n = position(at.p);
        in_flights<2>(rows, [&](int flight) {
#pragma unroll
            for (int r = 0; r < flight; ++r, from += Base::apart() * pitch, n += row_step()) {
                const Distance found = distance(op.place(*from));
                const int to = pinned(n);
                y[to] = load(input + found.offset);
                indices[to] = number + found.number;
            }
        });
    }

    __device__ void store_twins(T* y) const {
        const int twin = at.p + tiles.planes, rows = rows_of(at.p), both = rows_of(twin);
        if (rows <= 0) return;
        const int begin = position(at.p);
        const int twins = ChannelsLast ? position(twin) - begin
                                       : tiles.planes * outer().out.divisor * inner().out.divisor;
        T* to = y + begin;
        const Accumulator* from = first_result();
        in_flights<2>(rows, [&](int flight) {
#pragma unroll
            for (int r = 0; r < flight; ++r, from += Base::apart() * pitch, to += row_step()) {
                to[0] = Halves<T>::element(*from, 0);
                if (both > 0) to[twins] = Halves<T>::element(*from, 1);
            }
        });
    }
};

template <class Op, int Axes, int Height, int Width, bool Strided, bool ChannelsLast, bool Images>
__global__ void __launch_bounds__(256, sizeof(typename Op::Accumulator) > 8 ? 2 : 4)
separable(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
          typename Op::Index* __restrict__ indices, const __grid_constant__ Tiles tiles,
          const __grid_constant__ Window<Axes, int> w) {
    Scalars<Op, Axes, Height, Width, Strided, ChannelsLast, Images> tile(w, tiles, indices);
    reduce_tile<Width>(tile, x, y);
}
