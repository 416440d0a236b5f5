// Large overlapping windows as in separable.cu, columns and rows in one launch, by vectors of Vector
// columns. Shift more columns are read in front of the first window, so that they begin on a vector;
// Load of them are read and stored at once, as many as rows are aligned for.
// No tap is a pow. In shared memory each channel of a tile has columns of its own, channels last, too.
//
// A thread takes a vector of columns, all of its runs or a share of them; 384 columns and 32 rows of 32
// bits fit in shared memory, 192 and 64 where half of a warp takes a row, or 96 and 128 where a quarter
// does. Words hold the 16- or 8-bit maxima of two planes, or their Paired sums of bytes; Folded, those
// of the upper and the lower half of one plane, where there is no other, as in a single image.
// Counted cost in instructions per output of 13 x 13 and 31 x 31: maxima 16 to 41, sums 28 to 59, of
// doubles 59 to 110; of 63 x 63 up to 128, of doubles 166.
#include "separable.cuh"

// What a vector lies along: a row of a plane or, channels last, the channels of one pixel or, where they
// do not fill vectors, such as RGB, those of some.
enum Along { one_row, one_pixel, some_pixels };

// Partial results in 16 bytes.
template <class Op> constexpr int unit = 16 / sizeof(typename Held<Op>::Type::Accumulator);

template <class Op, int Axes, int Width, int Lanes, int Vector, int Load, int Shift, bool Folded,
          bool Strided, Along Lies, bool Images>
struct Vectors : Tile<Op, Axes, Width, Lanes, unit<Op>, Shift, Strided, Lies != one_row, Images> {
    static constexpr bool ChannelsLast = Lies != one_row;
    using Base = Tile<Op, Axes, Width, Lanes, unit<Op>, Shift, Strided, ChannelsLast, Images>;
    using typename Base::Accumulator;
    using typename Base::Out;
    using typename Base::T;
    using Base::first_plane, Base::inner, Base::left, Base::merged, Base::op, Base::outer, Base::pitch;
    using Base::reduced, Base::row_step, Base::tiles, Base::top, Base::w;
    using typename Base::Slices;
    using Sums = Pack<Accumulator, Vector>;
    using Taps = Pack<typename Held<Op>::Tap, Vector>;
    // No quotient of integers by so few needs a double to be rounded to one.
    using Count = Few<Element<T>::integer ? 32767 : 65536>;

    // A vector's elements in memory, by those that are read at once.
    static constexpr int bytes = Load * sizeof(T), words = bytes < 4 ? 1 : bytes / 4;
    struct Elements {
        unsigned part[Vector / Load][words];
    };

    // What a thread takes: columns from c of plane p, or what lies behind the planes.
    struct Seat {
        int p, c;
        int place;          // in a row of shared memory
        int row, end;       // its share of the rows
        int step;           // from one element of the vector to the next, along one pixel
        int apart[Vector];  // from the first to each, along some pixels
    };
    const Seat seat;

    __device__ Vectors(const Window<Axes, int>& window, const Tiles& t) : Base(window, t), seat(seat_of(t)) {}

    __device__ static Seat seat_of(const Tiles& tiles) {
        const int share = tiles.seats.quotient(threadIdx.x), s = threadIdx.x - share * tiles.seats.divisor;
        const int row = share * tiles.share, end = least(row + tiles.share, tiles.rows);
        Seat seat{0, 0, s * Vector, pinned(row), pinned(end), 1, {}};
        if constexpr (!ChannelsLast) {
            seat.p = tiles.neighbours.quotient(s);
            seat.c = (s - seat.p * tiles.neighbours.divisor) * Vector;
        } else {
            const Member first = member(tiles, s * Vector);
            const bool taken = first.c < tiles.span;
            seat.p = first.p, seat.c = first.c;
            if (taken) seat.place = first.place, seat.step = tiles.span;
            if constexpr (Lies == some_pixels) {
#pragma unroll
                for (int v = 0; v < Vector; ++v)
                    seat.apart[v] = taken ? member(tiles, s * Vector + v).place - seat.place : v;
            }
        }
        seat.p = pinned(seat.p), seat.c = pinned(seat.c), seat.place = pinned(seat.place);
        return seat;
    }
    // Channels last: the plane and the column of an element of a tile's row, and its place.
    struct Member {
        int p, c, place;
    };
    __device__ static Member member(const Tiles& tiles, int element) {
        const int c = tiles.neighbours.quotient(element), p = element - c * tiles.neighbours.divisor;
        return {p, c, p * tiles.span + c};
    }
    // Element v of a seat.
    __device__ Member element(int v) const {
        if constexpr (Lies == one_row) return {seat.p, seat.c + v, seat.place + v};
        else if constexpr (Lies == one_pixel) return {seat.p + v, seat.c, seat.place + v * seat.step};
        else return member(tiles, seat.c * tiles.neighbours.divisor + seat.p + v);
    }
    // From the seat's place to that of its element v.
    __device__ int apart(int v) const {
        if constexpr (Lies == some_pixels) return seat.apart[v];
        else return v * seat.step;
    }
    // Columns that they lie in.
    static constexpr int many_columns = Lies == one_pixel ? 1 : Vector;
    // Elements in so many columns, from the seat's first one on.
    __device__ int behind(int columns) const {
        return ChannelsLast ? columns * tiles.neighbours.divisor - seat.p : columns;
    }
    __device__ bool taken() const { return ChannelsLast ? seat.c < tiles.span : seat.p < tiles.planes; }

    __device__ Sums get(const Accumulator* from) const {
        if constexpr (ChannelsLast) {
            Sums sums;
#pragma unroll
            for (int v = 0; v < Vector; ++v) sums.element[v] = from[apart(v)];
            return sums;
        } else {
            return *reinterpret_cast<const Sums*>(from);
        }
    }
    __device__ void put(Accumulator* to, const Sums& sums) const {
        if constexpr (ChannelsLast) {
#pragma unroll
            for (int v = 0; v < Vector; ++v) to[apart(v)] = sums.element[v];
        } else {
            *reinterpret_cast<Sums*>(to) = sums;
        }
    }

    // Where words hold two, from the plane and the row of one to those of its twin.
    __device__ int planes_apart() const { return Folded ? 0 : tiles.planes; }
    __device__ int rows_apart() const { return Folded ? tiles.covered : 0; }

    // Whether what is not there is read as padding: where a branch around the loads would cost more, and
    // Folded, since either half may be in the padding.
    static constexpr bool padded = Folded || Load < Vector || bytes <= 4;

    // Columns of the input and, where words hold two, those of their twins. The tile begins in row
    // `top`, in the padding or not.
    struct Columns {
        Slices from, twin;
        int step, top, rows;
        int remaining;  // in the row, from the first of them on
        int apart;      // rows

        __device__ bool has(int row) const { return within(row, rows); }
        // Also of rows that are not there: the plan has proved that int holds it.
        __device__ int offset(int row) const { return row * step; }
    };

    // Where the input has none of them it has no row of them.
    __device__ Columns columns(const T* x) const {
        const int plane = first_plane + seat.p, position = left + seat.c - inner().pad_begin - Shift;
        const bool here = taken() & (plane < tiles.all_planes) & within(position, inner().size);
        const bool twins = plane + planes_apart() < tiles.all_planes;
        const int rows = here ? outer().size : 0;
        x += position * inner().step;
        const Slices from = Base::slices_of(x, plane);
        const T* below = x + rows_apart() * outer().step;
        const Slices twin = Op::pairs && twins ? Base::slices_of(below, plane + planes_apart()) : from;
        const int begin = top - outer().pad_begin, remaining = behind(inner().size - position);
        return {from, twin, outer().step, begin, rows, remaining, rows_apart()};
    }

    // Reads a vector of a row with so many elements remaining, whole parts, and padding behind them.
    // A whole vector is all in the row, unless the row is not there.
    __device__ Elements load(const T* from, bool there, int remaining) const {
        Elements elements;
#pragma unroll
        for (int v = 0; v < Vector; v += Load) {
            unsigned(&word)[words] = elements.part[v / Load];
            if constexpr (!padded) {
                load_words<bytes>(from, word);
            } else {
                const bool readable = there && (Load == Vector || v < remaining);
                load_words_or<bytes>(op.padding(), readable, from + v, word);
            }
        }
        return elements;
    }
    __device__ Taps read(const Columns& columns, int row, int offset, int slice) const {
        const Elements own = load(columns.from.at(slice) + offset, columns.has(row), columns.remaining);
        Taps taps;
        if constexpr (Op::pairs) {
            const bool there = columns.has(row + columns.apart);
            const Elements twin = load(columns.twin.at(slice) + offset, there, columns.remaining);
#pragma unroll
            for (int v = 0; v < Vector; ++v)
                taps.element[v] = Halves<T>::beside(own.part[v / Load], twin.part[v / Load], v % Load);
        } else if constexpr (sizeof(T) >= sizeof(unsigned)) {
            // Words are their own values: copied one by one they cost the compiler more time.
            static_assert(sizeof(Taps) == sizeof(Elements), "nothing between the words");
            memcpy(&taps, &own, sizeof taps);
        } else {
#pragma unroll
            for (int v = 0; v < Vector; ++v) taps.element[v] = Words<T>::value(own.part[v / Load], v % Load);
        }
        return taps;
    }

    // Bytes alone are added as they are taken out of their words.
    __device__ void take_slice(Sums& a, const Columns& columns, int row, int offset, int slice) const {
        if constexpr (sizeof(T) == 1 && !Op::pairs) {
            const Elements own = load(columns.from.at(slice) + offset, columns.has(row), columns.remaining);
#pragma unroll
            for (int v = 0; v < Vector; ++v)
                a.element[v] = add_byte<T>(a.element[v], own.part[v / Load], v % Load);
        } else {
            merged.accumulate(a, read(columns, row, offset, slice));
        }
    }
    // Merges what columns have in a row, which is so far from the first.
    __device__ void take(Sums& a, const Columns& columns, int row, int offset) const {
        if (!padded && !columns.has(row)) return;
        if constexpr (Axes == 2) {
            take_slice(a, columns, row, offset, 0);
        } else {
            const int other = Op::pairs ? columns.twin.count : 0, slices = most(columns.from.count, other);
#pragma unroll 1
            for (int s = 0; s < slices; ++s) take_slice(a, columns, row, offset, s);
        }
    }

    // The windows that begin in rows run .. last - 1 of the input: what they have up to row next - 1.
    __device__ void begin_windows(const Columns& columns, Accumulator* to, int run, int last,
                                  int next) const {
        Sums a = merged.template nothing<Vector>();
        to += (next - run) * pitch;
#pragma unroll 1
        for (int row = next - 1, offset = columns.offset(row); row >= run; --row, offset -= columns.step) {
            to -= pitch;
            take(a, columns, row, offset);
            if (row < last) put(to, a);
        }
    }

    // What windows have from row next on: prefixes, the first of no row.
    __device__ void end_windows(const Columns& columns, Accumulator* to, int next, int end) const {
        Sums a = merged.template nothing<Vector>();
#pragma unroll 1
        for (int row = next, offset = columns.offset(row); row < end; ++row, offset += columns.step) {
            to += pitch;
            take(a, columns, row, offset);
            Sums sums = get(to);
            merged.merge(sums, a);
            put(to, sums);
        }
    }

    __device__ void reduce_columns(const T* x) const {
        const int kernel = outer().kernel;
        const Columns here = columns(x);
        Accumulator* to = first_partial();
#pragma unroll 1
        for (int row = seat.row; row < seat.end; row += kernel, to += kernel * pitch) {
            const int run = pinned(here.top + row), next = run + kernel;
            const int last = pinned(least(next, here.top + tiles.rows));
            begin_windows(here, to, run, last, next);
            end_windows(here, to, next, last + kernel - 1);
        }
    }

    // Of the seat, in shared memory. Unsigned: to extend a sign costs the compiler more time.
    __device__ Accumulator* first_partial() const {
        return reduced + unsigned(seat.place + seat.row * pitch);
    }
    // Outputs in a share of the seat's columns, and those of their twins.
    __device__ int rows_of(int p, int end) const {
        return least(Base::rows_below(p, seat.c, seat.row, end), seat.end - seat.row);
    }
    __device__ int rows() const { return rows_of(seat.p, tiles.covered); }
    __device__ int twin_rows() const {
        return rows_of(seat.p + planes_apart(), Base::dense(outer()) - rows_apart());
    }
    // Position in y of the first of them, and from there to that of its twin.
    __device__ int position(int p) const { return Base::position(p, seat.row, seat.c); }
    __device__ int to_twin() const {
        if constexpr (Folded) return rows_apart() * row_step();
        else return position(seat.p + tiles.planes) - position(seat.p);
    }

    // Outputs of the seat's vector that are in the row: whole parts.
    __device__ int in_row() const {
        return Load == Vector ? Vector : least(behind(inner().out.divisor - left - seat.c), Vector);
    }

    // A vector of results and those below it, from one row of the plane to another.
    struct Results {
        const Accumulator* from;
        Out* to;
        int row, end, many;  // of which so many are in the row

        __device__ void step(unsigned by) { ++row, from += pitch, to += by; }
    };
    __device__ Results results(Out* y) const {
        const int row = top + seat.row;
        return {first_partial(), y + unsigned(position(seat.p)), row, row + rows(), in_row()};
    }

    __device__ void store_columns(const T*, Out* y, int again) {
        if constexpr (Strided) {
            store_strided(y, again);
        } else if (taken()) {
            const Results at = results(y);
            if constexpr (Op::pairs && !Op::counts) store_twins(at);
            else if constexpr (Op::exact) store_one(at);
            else again ? store_all_again(at) : store_one(at);
        }
    }

    // A window along one axis: taps that count and, of sums in words, those that were merged.
    struct Extent {
        float counted;
        int merged;
    };
    __device__ static Extent extent(const Axis<int>& axis, int output, int slices = 1) {
        if constexpr (!Op::counts) return {};
        // Pinned: counting again at every use costs more.
        const float taps = pinned(float(slices * counted(axis, output)));
        return {taps, Op::pairs ? most(valid(axis, output), 0) : 0};
    }

    __device__ void store_one(Results at) {
        const int plane = first_plane + seat.p, slices = Op::counts ? Base::counted_slices(plane) : 1;
        Extent along[many_columns];
        if constexpr (Op::counts) {
#pragma unroll
            for (int v = 0; v < many_columns; ++v) along[v] = extent(inner(), left + element(v).c, slices);
        }
        const int twin_end = Op::pairs ? at.row + twin_rows() : 0, twin = Op::pairs ? to_twin() : 0;
#pragma unroll 1
        for (; at.row < at.end; at.step(row_step())) {
            const Extent down = extent(outer(), at.row);
            const Sums totals = get(at.from);
            store_row(totals, 0, along, down, at.to, at.many);
            if constexpr (Op::pairs) {
                if (at.row >= twin_end) continue;
                const Extent below = Folded ? extent(outer(), at.row + rows_apart()) : down;
                store_row(totals, 1, along, below, at.to + twin, at.many);
            }
        }
    }
    // Of one plane, whose partial results are so many halves up in their words.
    __device__ void store_row(const Sums& totals, int half, const Extent (&along)[many_columns],
                              Extent down, Out* y, int many) {
        Pack<Out, Vector> results;
#pragma unroll
        for (int v = 0; v < Vector; ++v) {
            const Accumulator total = totals.element[v];
            results.element[v] = finished(total, half, along[least(v, many_columns - 1)], down);
            if (v < many) merged.watch(total);
        }
        store_parts<Load>(results, y, many);
    }
    __device__ Out finished(Accumulator total, int half, const Extent& along, const Extent& down) const {
        if constexpr (!Op::counts)
            return merged.finish_any(total, 1);
        else if constexpr (Op::pairs)
            return op.finish(op.apart(total, half, along.merged * down.merged), count(along, down));
        else
            return merged.finish_any(total, count(along, down));
    }
    __device__ static auto count(const Extent& along, const Extent& down) {
        if constexpr (Op::counts) return Count(along.counted * down.counted);
        else return 1;
    }

    // The results of sums that were made again, those that are certain now.
    __device__ void store_all_again(Results at) const {
#pragma unroll 1
        for (; at.row < at.end; at.step(row_step())) {
#pragma unroll 1
            for (int v = 0; v < at.many; ++v) {
                const Member of = element(v);
                const Accumulator sum = at.from[of.place - seat.place];
                store_again(at.to[v], sum, first_plane + of.p, at.row, left + of.c);
            }
        }
    }
    __device__ void store_again(Out& to, Accumulator sum, int plane, int row, int column) const {
        if constexpr (!Op::exact) {
            const Accumulator limit = Base::limit(plane, row, column);
            if (merged.replaces(to, sum, limit))
                to = merged.restored(sum, count(along(plane, column), extent(outer(), row)));
        }
    }
    __device__ Extent along(int plane, int column) const {
        return extent(inner(), column, Base::counted_slices(plane));
    }

    // Results apart from each other in the tile, neighbouring ones of a row by neighbouring threads.
    __device__ void store_strided(Out* y, int again) {
        const typename Base::Stored down = Base::stored_row();
        const typename Base::Stored along = Base::stored(tiles.column_stride, left);
        const int in_row = tiles.results.divisor, parts = tiles.parts.divisor;
#pragma unroll 1
        for (int t = threadIdx.x; t < in_row * parts * tiles.planes; t += blockDim.x) {
            const int group = tiles.results.quotient(t), result = t - group * in_row;
            const int p = tiles.parts.quotient(group), part = group - p * parts;
            const int c = along.place + result * tiles.column_stride.divisor;
            const int end = Base::rows_below(p, c, 0, tiles.covered);
            const int twin_end = Base::rows_below(p + tiles.planes, c, 0, tiles.covered);
            const int plane = first_plane + p, first_row = plane * outer().out.divisor + down.output + part;
            Out* to = y + first_row * row_step() + along.output + result;
#pragma unroll 1
            for (int r = down.place + part * Base::apart(); r < end; r += parts * Base::apart()) {
                const Accumulator from = reduced[r * pitch + p * tiles.span + c];
                store_result(to, from, plane, top + r, left + c, again, r < twin_end);
                to += parts * row_step();
            }
        }
    }

    __device__ void store_result(Out* to, Accumulator from, int plane, int row, int column, int again,
                                 bool has_twin) {
        const int twin = tiles.planes * outer().out.divisor * row_step();
        if constexpr (Op::pairs && !Op::counts) {
            *to = Halves<T>::element(from, 0);
            if (has_twin) to[twin] = Halves<T>::element(from, 1);
        } else if constexpr (Op::pairs) {
            const Extent across = along(plane, column), down = extent(outer(), row);
            *to = finished(from, 0, across, down);
            if (has_twin) to[twin] = finished(from, 1, across, down);
        } else if (!Op::exact && pinned(again)) {
            store_again(*to, from, plane, row, column);
        } else {
            *to = finished(from, 0, along(plane, column), extent(outer(), row));
            merged.watch(from);
        }
    }

    __device__ void store_twins(Results at) const {
        const int twin_end = at.row + twin_rows(), twin = to_twin();
#pragma unroll 1
        for (; at.row < at.end; at.step(row_step())) {
            const Sums words = get(at.from);
            store_halves<Load>(words, false, at.to, at.many);
            if (at.row < twin_end) store_halves<Load>(words, true, at.to + twin, at.many);
        }
    }
};

// Blocks for whose threads there are registers.
template <class Op> constexpr int blocks = unit<Op> == 2 && Op::powers > 0 ? 2 : 3;

template <class Op, int Axes, int Width, int Lanes, int Vector, int Load, int Shift, bool Folded,
          bool Strided, Along Lies, bool Images>
__global__ void __launch_bounds__(256, blocks<Op>)
separable_vectors(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
                  const __grid_constant__ Tiles tiles, const __grid_constant__ Window<Axes, int> w) {
    static_assert(!(Strided && (Lies != one_row || Folded)),
                  "results that are apart are stored channels first, of whole planes");
    Vectors<Op, Axes, Width, Lanes, Vector, Load, Shift, Folded, Strided, Lies, Images> tile(w, tiles);
    reduce_tile<Width>(tile, x, y);
}
