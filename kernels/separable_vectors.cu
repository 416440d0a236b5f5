// Large overlapping windows as in separable.cu, columns and rows in one launch, for operators without a
// second look: vectors of Vector columns. Shift more columns are read in front of the first window, so
// that they begin on a vector.
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
    using Taps = Pack<Accumulator, Vector>;
    // No quotient of integers by so few needs a double to be rounded to one.
    using Count = Few<Element<T>::integer ? 32767 : 65536>;
    static constexpr int flight = 2;

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

    __device__ static Taps& at(Accumulator* place) { return *reinterpret_cast<Taps*>(place); }
    __device__ Taps nothing() const {
        Taps taps;
#pragma unroll
        for (int v = 0; v < Vector; ++v) taps.element[v] = merged.start();
        return taps;
    }
    __device__ Taps merge(const Taps& a, const Taps& b) const {
        Taps taps;
#pragma unroll
        for (int v = 0; v < Vector; ++v) taps.element[v] = merged.merge(a.element[v], b.element[v]);
        return taps;
    }

    // Columns of the input and, where words hold two, the same ones of another plane. Of the tile's
    // rows the input has begin .. end - 1.
    struct Columns {
        const T *from, *twin;
        int step, begin, end;
    };

    // Where the input has none of them it has no row of them.
    __device__ Columns columns(const T* x) const {
        const int plane = first_plane + seat.p, position = left + seat.c - inner().pad_begin - Shift;
        const bool here = seat.p < tiles.planes && plane < tiles.all_planes;
        const bool twins = plane + tiles.planes < tiles.all_planes;
        // The first row of the tile, in the padding or not.
        const int begin = outer().pad_begin - top;
        const int end = here && within(position, inner().size) ? begin + outer().size : begin;
        x += position * inner().step - begin * outer().step;
        const T* from = pinned(plane_of(x, plane));
        const T* twin = Op::pairs && twins ? pinned(plane_of(x, plane + tiles.planes)) : from;
        return {from, twin, outer().step, begin, end};
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
            for (int v = 0; v < Vector; ++v) taps.element[v] = op.lift(Words<T>::value(word, v), 0);
        }
        return taps;
    }

    // Rows low .. high - 1.
    struct Rows {
        int low, high;

        __device__ bool has(int row) const { return low <= row && row < high; }
    };

    // Both walks read a few rows at once, of those that the input has.

    // The windows of rows run .. last - 1, which begin in this run: its suffixes.
    __device__ void begin_windows(const Columns& columns, Accumulator* to, int run, int last) const {
        const int end = run + outer().kernel;
        const Rows there{most(run, columns.begin), least(end, columns.end)};
        Taps a = nothing();
        to += end * pitch;
#pragma unroll 1
        for (int i = end - flight; i > run - flight; i -= flight) {
            Taps tap[flight];
            to -= flight * pitch;
#pragma unroll
            for (int t = 0; t < flight; ++t)
                if (there.has(i + t)) tap[t] = read(columns, i + t);
#pragma unroll
            for (int t = flight - 1; t >= 0; --t) {
                if (there.has(i + t)) a = merge(tap[t], a);
                if (run <= i + t && i + t < last) at(to + t * pitch) = a;
            }
        }
    }

    // What they have in the next run: prefixes.
    __device__ void end_windows(const Columns& columns, Accumulator* to, int next, int last) const {
        const Rows there{most(next, columns.begin), least(last, columns.end)};
        Taps a = nothing();
        to += next * pitch;
#pragma unroll 1
        for (int i = next; i < last; i += flight, to += flight * pitch) {
            Taps tap[flight];
#pragma unroll
            for (int t = 0; t < flight; ++t)
                if (there.has(i + t)) tap[t] = read(columns, i + t);
#pragma unroll
            for (int t = 0; t < flight; ++t) {
                if (there.has(i + t)) a = merge(a, tap[t]);
                if (i + t < last) at(to + t * pitch) = merge(at(to + t * pitch), a);
            }
        }
    }

    __device__ void reduce_columns(const T* x) const {
        const int kernel = outer().kernel;
        const Columns here = columns(x);
        Accumulator* to = reduced + seat.place;
#pragma unroll 1
        for (int run = seat.row; run < seat.end; run += kernel) {
            const int next = run + kernel, last = least(next, tiles.rows);
            begin_windows(here, to, run, last);
            end_windows(here, to - (kernel - 1) * pitch, next, last + kernel - 1);
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

    __device__ void store_columns(Out* y) const {
        if (seat.p >= tiles.planes) return;
        if constexpr (Op::pairs) store_twins(y);
        else store_one(y);
    }

    __device__ void store_one(Out* y) const {
        float along[Vector];  // kept: counting again costs more
#pragma unroll
        for (int v = 0; v < Vector; ++v)
            along[v] = Op::counts ? pinned(float(Base::counted(inner(), left + seat.c + v))) : 1;
        Accumulator* from = reduced + seat.place + seat.row * pitch;
        int n = position(seat.p), row = top + seat.row;
#pragma unroll 1
        for (const int end = row + rows_of(seat.p); row < end; ++row, from += pitch, n += row_step()) {
            const Taps total = at(from);
            const float above = Op::counts ? Base::counted(outer(), row) : 1;
            Pack<Out, Vector> results;
#pragma unroll
            for (int v = 0; v < Vector; ++v)
                results.element[v] = op.finish(total.element[v], Count(along[v] * above));
            *reinterpret_cast<Pack<Out, Vector>*>(y + n) = results;
        }
    }

    // One half of Vector words.
    __device__ static void store_halves(const Taps& words, bool high, T* y) {
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
            const Taps words = at(from);
            store_halves(words, false, to);
            if (both > 0) store_halves(words, true, to + twins);
        }
    }
};

template <class Op, int Width, int Lanes, int Vector, int Shift>
__global__ void __launch_bounds__(256, 3)
separable_vectors(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
                  const __grid_constant__ Tiles tiles, const __grid_constant__ Window<2, int> w) {
    const Vectors<Op, Width, Lanes, Vector, Shift> tile(w, tiles);
    tile.reduce_columns(x);
    __syncthreads();
    if constexpr (Width != 1) {
        tile.reduce_rows();
        __syncthreads();
    }
    tile.store_columns(y);
}
