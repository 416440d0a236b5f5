// Large overlapping windows as in separable.cu, columns and rows in one launch, by vectors of Vector
// columns. Shift more columns are read in front of the first window, so that they begin on a vector.
// No tap is a pow.
//
// A thread takes a vector of columns, all of its runs or a share of them; 384 columns and 32 rows of 32
// bits fit in shared memory, 192 and 64 where half of a warp takes a row, or 96 and 128 where a quarter
// does. Words hold 16-bit maxima of two planes.
// Counted cost in instructions per output: bench/results.
#include "separable.cuh"

// Partial results in 16 bytes.
template <class Op> constexpr int unit = 16 / sizeof(typename Held<Op>::Type::Accumulator);

template <class Op, int Width, int Lanes, int Vector, int Shift>
struct Vectors : Tile<Op, Width, Lanes, unit<Op>, Shift> {
    using Base = Tile<Op, Width, Lanes, unit<Op>, Shift>;
    using typename Base::Accumulator;
    using typename Base::Out;
    using typename Base::T;
    using Base::first_plane, Base::inner, Base::left, Base::merged, Base::op, Base::outer, Base::pitch;
    using Base::plane_of, Base::reduced, Base::tiles, Base::top;
    using Sums = Pack<Accumulator, Vector>;
    using Taps = Pack<typename Held<Op>::Tap, Vector>;
    // No quotient of integers by so few needs a double to be rounded to one.
    using Count = Few<Element<T>::integer ? 32767 : 65536>;
    static constexpr int flight = Op::exact ? 2 : 1;

    // What a thread takes: columns from c of plane p, or what lies behind the planes.
    struct Seat {
        int p, c;
        int place;     // in a row of shared memory
        int row, end;  // its share of them
    };
    const Seat seat;

    __device__ Vectors(const Window<2, int>& window, const Tiles& t) : Base(window, t), seat(seat_of(t)) {}

    __device__ static Seat seat_of(const Tiles& tiles) {
        const int share = tiles.seats.quotient(threadIdx.x), s = threadIdx.x - share * tiles.seats.divisor;
        const int p = tiles.neighbours.quotient(s), c = (s - p * tiles.neighbours.divisor) * Vector;
        const int row = share * tiles.share;
        return {p, c, s * Vector, row, least(row + tiles.share, tiles.rows)};
    }

    __device__ static Sums& at(Accumulator* place) { return *reinterpret_cast<Sums*>(place); }
    __device__ Sums nothing() const {
        Sums sums;
#pragma unroll
        for (int v = 0; v < Vector; ++v) sums.element[v] = merged.start();
        return sums;
    }
    __device__ Sums merge(const Sums& a, const Sums& b) const {
        Sums sums;
#pragma unroll
        for (int v = 0; v < Vector; ++v) sums.element[v] = merged.merge(a.element[v], b.element[v]);
        return sums;
    }
    __device__ void accumulate(Sums& a, const Taps& taps) const {
#pragma unroll
        for (int v = 0; v < Vector; ++v) a.element[v] = merged.accumulate(a.element[v], taps.element[v]);
    }

    // Columns of the input and, where words hold two, the same ones of another plane. The tile begins in
    // row `top`, in the padding or not.
    struct Columns {
        const T *from, *twin;
        int step, top, rows;

        __device__ bool has(int row) const { return within(row, rows); }
    };

    // Where the input has none of them it has no row of them.
    __device__ Columns columns(const T* x) const {
        const int plane = first_plane + seat.p, position = left + seat.c - inner().pad_begin - Shift;
        const bool here = seat.p < tiles.planes && plane < tiles.all_planes;
        const bool twins = plane + tiles.planes < tiles.all_planes;
        const int rows = here && within(position, inner().size) ? outer().size : 0;
        x += position * inner().step;
        const T* from = pinned(plane_of(x, plane));
        const T* twin = Op::pairs && twins ? pinned(plane_of(x, plane + tiles.planes)) : from;
        return {from, twin, outer().step, top - outer().pad_begin, rows};
    }

    __device__ Taps read(const Columns& columns, int row) const {
        constexpr int bytes = Vector * sizeof(T), words = bytes < 4 ? 1 : bytes / 4;
        const int offset = row * columns.step;
        unsigned word[words];
        load_words<bytes>(columns.from + offset, word);
        Taps taps;
        if constexpr (Op::pairs) {
            unsigned twin[words];
            load_words<bytes>(columns.twin + offset, twin);
#pragma unroll
            for (int v = 0; v < Vector; ++v)
                taps.element[v] = __byte_perm(word[v / 2], twin[v / 2], v % 2 ? 0x7632 : 0x5410);
        } else {
#pragma unroll
            for (int v = 0; v < Vector; ++v) taps.element[v] = Words<T>::value(word, v);
        }
        return taps;
    }

    // Both walks read a few rows at once, of those that the input has. For sums, whose kernels take long
    // to compile, one.

    // The windows that begin in rows run .. last - 1 of the input: what they have up to row next - 1.
    __device__ void begin_windows(const Columns& columns, Accumulator* to, int run, int last,
                                  int next) const {
        Sums a = nothing();
        to += (next - run) * pitch;
#pragma unroll 1
        for (int row = next - flight; row > run - flight; row -= flight) {
            Taps tap[flight];
            to -= flight * pitch;
#pragma unroll
            for (int t = 0; t < flight; ++t)
                if (columns.has(row + t)) tap[t] = read(columns, row + t);
#pragma unroll
            for (int t = flight - 1; t >= 0; --t) {
                if (columns.has(row + t)) accumulate(a, tap[t]);
                if (row + t < last && (flight == 1 || run <= row + t)) at(to + t * pitch) = a;
            }
        }
    }

    // What windows have from row next on: prefixes, the first of no row.
    __device__ void end_windows(const Columns& columns, Accumulator* to, int next, int end) const {
        Sums a = nothing();
#pragma unroll 1
        for (int row = next; row < end; row += flight) {
            Taps tap[flight];
#pragma unroll
            for (int t = 0; t < flight; ++t)
                if (columns.has(row + t)) tap[t] = read(columns, row + t);
#pragma unroll
            for (int t = 0; t < flight; ++t) {
                to += pitch;
                if (columns.has(row + t)) accumulate(a, tap[t]);
                if (flight == 1 || row + t < end) at(to) = merge(at(to), a);
            }
        }
    }

    __device__ void reduce_columns(const T* x) const {
        const int kernel = outer().kernel;
        const Columns here = columns(x);
        Accumulator* to = reduced + seat.place + seat.row * pitch;
#pragma unroll 1
        for (int row = seat.row; row < seat.end; row += kernel, to += kernel * pitch) {
            const int run = here.top + row, next = run + kernel, last = least(next, here.top + tiles.rows);
            begin_windows(here, to, run, last, next);
            end_windows(here, to, next, last + kernel - 1);
        }
    }

    // Outputs of plane p in a share of its columns.
    __device__ int rows_of(int p) const {
        return least(Base::rows_below(p, seat.c, seat.row), seat.end - seat.row);
    }
    // Position in y of the first of them, and from one to the next.
    __device__ int position(int p) const {
        const int row = (first_plane + p) * outer().out.divisor + top + seat.row;
        return row * row_step() + left + seat.c;
    }
    __device__ int row_step() const { return inner().out.divisor; }

    __device__ void store_columns(const T*, Out* y, int again) {
        if (seat.p >= tiles.planes) return;
        if constexpr (Op::pairs) store_twins(y);
        else store_one(y, again);
    }

    __device__ void store_one(Out* y, int again) {
        float along[Vector];  // kept: counting again costs more
#pragma unroll
        for (int v = 0; v < Vector; ++v)
            along[v] = Op::counts ? pinned(float(Base::counted(inner(), left + seat.c + v))) : 1;
        Accumulator* from = reduced + seat.place + seat.row * pitch;
        int n = position(seat.p), row = top + seat.row;
#pragma unroll 1
        for (const int end = row + rows_of(seat.p); row < end; ++row, from += pitch, n += row_step()) {
            const float above = Op::counts ? Base::counted(outer(), row) : 1;
            if (!Op::exact && pinned(again)) {
                store_again(from, row, above, y + n);
                continue;
            }
            const Sums totals = at(from);
            Pack<Out, Vector> results;
#pragma unroll
            for (int v = 0; v < Vector; ++v) {
                results.element[v] = op.finish(totals.element[v], Count(along[v] * above));
                merged.watch(totals.element[v]);
            }
            *reinterpret_cast<Pack<Out, Vector>*>(y + n) = results;
        }
    }

    // Of the sums of a vector, which were made again, those that are certain now.
    __device__ void store_again(const Accumulator* sums, int row, float above, Out* to) const {
        if constexpr (!Op::exact) {
#pragma unroll 1
            for (int v = 0; v < Vector; ++v) {
                const Accumulator limit = Base::limit(row, left + seat.c + v);
                const Count count(Op::counts ? Base::counted(inner(), left + seat.c + v) * above : 1);
                if (merged.replaces(to[v], sums[v], limit)) to[v] = merged.restored(sums[v], count);
            }
        }
    }

    // One half of Vector words.
    __device__ static void store_halves(const Sums& words, bool high, T* y) {
        Pack<unsigned, Vector / 2> pack;
#pragma unroll
        for (int i = 0; i < Vector / 2; ++i)
            pack.element[i] =
                __byte_perm(words.element[2 * i], words.element[2 * i + 1], high ? 0x7632 : 0x5410);
        *reinterpret_cast<Pack<unsigned, Vector / 2>*>(y) = pack;
    }

    __device__ void store_twins(T* y) const {
        const int twin = seat.p + tiles.planes, rows = rows_of(seat.p), both = rows_of(twin);
        const int begin = position(seat.p), twins = position(twin) - begin;
        T* to = y + begin;
        Accumulator* from = reduced + seat.place + seat.row * pitch;
#pragma unroll 1
        for (int r = 0; r < rows; ++r, from += pitch, to += row_step()) {
            const Sums words = at(from);
            store_halves(words, false, to);
            if (both > 0) store_halves(words, true, to + twins);
        }
    }
};

// Blocks for whose threads there are registers.
template <class Op> constexpr int blocks = unit<Op> == 2 && Op::powers > 0 ? 2 : 3;

template <class Op, int Width, int Lanes, int Vector, int Shift>
__global__ void __launch_bounds__(256, blocks<Op>)
separable_vectors(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
                  const __grid_constant__ Tiles tiles, const __grid_constant__ Window<2, int> w) {
    Vectors<Op, Width, Lanes, Vector, Shift> tile(w, tiles);
    reduce_tile<Width>(tile, x, y);
}
