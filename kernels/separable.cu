// Large overlapping windows, stride 1: one pass down the columns and one along the rows of a tile,
// in one launch. The cost of an output does not depend on the size of the window.
//
// Each axis is cut into runs as long as the window. A window then is the end of one run and the
// beginning of the next, so it merges one suffix and one prefix (van Herk, Gil and Werman); no tap
// is taken back, which keeps sums as accurate as maxima. A block of 256 threads takes a tile of
// `height` rows in shared memory, of one plane or of several small ones side by side.
//
// `separable`, the window known: a thread walks down a column of the tile with a run in registers,
// then along a part of one row; words hold 16-bit maxima of two planes. `separable_any`: runs lie in
// shared memory, for windows of any size of which it can hold a square.
// Counted cost in instructions per output: bench/results.
#include "window.cuh"

extern __shared__ __align__(16) unsigned char shared[];

struct Tiles {
    int planes, all_planes;       // side by side in a block, and of the array
    int together;                 // of a block: twice as many where words hold two
    int height, width;            // outputs of a tile: multiples of the window, or all there are
    int columns, tasks;           // of shared memory, all planes side by side; parts of rows
    Divisor<int> down, across;    // tiles of a plane
    Divisor<int> span;            // input columns under the tile of one plane
    Divisor<int> rows, parts;     // the height again, and the parts of a row
};

// The walk along one axis: a run as the suffixes of its elements, then the next one.
template <class Op, int Size> struct Walk {
    using Accumulator = typename Op::Accumulator;
    Accumulator suffix[Size];

    template <class Read> __device__ Walk(const Op& op, Read read) {
#pragma unroll
        for (int i = 0; i < Size; ++i) suffix[i] = read(i);
        close(op);
    }
    __device__ void close(const Op& op) {
#pragma unroll
        for (int i = Size - 2; i >= 0; --i) suffix[i] = op.merge(suffix[i], suffix[i + 1]);
    }
    // Writes the windows that begin in this run, behind which there is nothing.
    template <class Write> __device__ void end(const Op& op, Write write) {
#pragma unroll
        for (int i = 0; i < Size; ++i) {
            write(i, suffix[i]);
            suffix[i] = op.start();
        }
    }
    // Writes the windows that begin in this run, and goes on to the next, whose elements it reads.
    template <class Read, class Write> __device__ void next(const Op& op, Read read, Write write) {
        Accumulator prefix = op.start();
#pragma unroll
        for (int i = 0; i < Size; ++i) {
            write(i, i == 0 ? suffix[i] : op.merge(suffix[i], prefix));
            suffix[i] = read(i);
            prefix = i == 0 ? suffix[i] : op.merge(prefix, suffix[i]);
        }
        close(op);
    }
};

// Two 16-bit maxima in a word: of the same place in two planes.
template <class Op> struct Twin : Op {
    using Accumulator = unsigned;
    using Op::Op;
    __device__ Accumulator start() const { return repeated(this->padding(), 0); }
    __device__ Accumulator merge(Accumulator a, Accumulator b) const { return this->merge_pairs(a, b); }
};
template <class Op, bool Pairs = Op::pairs> struct Held { using Type = Op; };
template <class Op> struct Held<Op, true> { using Type = Twin<Op>; };

// What both kernels know of a block's tile. An average is divided by Taps where all of a known
// window count, else by a Count.
template <class Op, class Count, int Taps> struct Tile {
    using T = typename Op::Element;
    using Accumulator = typename Op::Accumulator;
    using Single = Place<2, int, Sizes<0, 0>, Sizes<0, 0>, false>;

    const Window<2, int>& w;
    const Tiles& tiles;
    const Op op;
    int first_plane, top, left;  // the tile's first output

    __device__ Tile(const Window<2, int>& window, const Tiles& t) : w(window), tiles(t), op(window.norm) {
        int row = tiles.across.quotient(blockIdx.x), group = tiles.down.quotient(row);
        left = (blockIdx.x - row * tiles.across.divisor) * tiles.width;
        top = (row - group * tiles.down.divisor) * tiles.height;
        first_plane = group * tiles.together;
    }

    __device__ const Axis<int>& outer() const { return w.axis[0]; }
    __device__ const Axis<int>& inner() const { return w.axis[1]; }

    // A column of the input from the row that the tile begins with, in the padding or not.
    struct Column {
        const T* from;
        int row;
        unsigned size;  // rows of the input; none where the column is in the padding
    };

    // Column c of a plane, counted from the block's first one; `exists` is false for none.
    __device__ Column column(const T* x, bool exists, int p, int c) const {
        int position = left + c - inner().pad_begin;
        int plane = first_plane + p, image = w.channels.quotient(plane);
        bool inside = exists && plane < tiles.all_planes && position >= 0 && position < inner().size;
        const T* from = x + image * w.batch_step +
                        (plane - image * w.channels.divisor) * w.channel_step +
                        static_cast<long long>(position) * inner().step;
        int row = top - outer().pad_begin;
        from += static_cast<long long>(row) * outer().step;
        return {pinned(from), row, inside ? static_cast<unsigned>(outer().size) : 0};
    }

    // Row i of a column.
    __device__ T read(const Column& column, int i) const {
        bool inside = static_cast<unsigned>(column.row + i) < column.size;
        const T* at = column.from + static_cast<long long>(i) * outer().step;
        return inside ? load(at) : op.padding();
    }

    // Taps that count along one axis.
    __device__ static int counted(const Axis<int>& axis, int output) {
        return clip<int>(output - axis.pad_begin, axis.count_begin, axis.count_end, axis.kernel, 1)
            .count;
    }

    // The outputs along one axis of which all taps count.
    __device__ static Run<int> all_counted(const Axis<int>& axis) {
        int first = axis.count_begin + axis.pad_begin;
        int count = axis.count_end - axis.kernel + axis.pad_begin + 1 - first;
        return {first, count > 0 ? count : 0};
    }

    // Outputs in column c of a plane, down to the end of tile or plane.
    __device__ int rows_of(int p, int c) const {
        if (c >= tiles.width || left + c >= inner().out.divisor) return 0;
        if (first_plane + p >= tiles.all_planes) return 0;
        int below = outer().out.divisor - top;
        return below < tiles.height ? below : tiles.height;
    }
    // Position in y of the first of them.
    __device__ int position(int p, int c) const {
        return ((first_plane + p) * outer().out.divisor + top) * inner().out.divisor + left + c;
    }

    // Stores column c of a plane; result(r) is row r.
    template <class Result>
    __device__ void store_column(const T* x, typename Op::Out* y, int p, int c, Result result) const {
        const int rows = rows_of(p, c), begin = position(p, c), width = inner().out.divisor;
        const int taps = Op::counts ? counted(inner(), left + c) : 1;
        const Run<int> whole = all_counted(outer());
        bool doubt = false;
        int n = begin;
#pragma unroll 4
        for (int r = 0; r < rows; ++r, n += width) {
            const Accumulator a = result(r);
            if constexpr (!Op::exact) doubt |= !op.certain(a);
            if constexpr (!Op::counts) {
                y[n] = op.finish(a, Exactly<1>());
            } else if (Taps > 0 && taps == inner().kernel &&
                       static_cast<unsigned>(top + r - whole.first) < whole.count) {
                y[n] = op.finish(a, Exactly<Taps == 0 ? 1 : Taps>());
            } else {
                int count = taps * counted(outer(), top + r);
                y[n] = op.finish(a, Count{count > 0 ? count : 1});
            }
        }
        if constexpr (!Op::exact) {
            if (doubt) look_again(x, y, begin, rows, result);
        }
    }

    template <class Result>
    __device__ void look_again(const T* x, typename Op::Out* y, int n, int rows, Result result) const {
#pragma unroll 1
        for (int r = 0; r < rows; ++r, n += inner().out.divisor) {
            if (op.certain(result(r))) continue;
            const Single single(w, n);
            const Alone<T, Single, Sizes<0, 0>, int> alone{single, x + single.base};
            store(op, single, alone, n, true, x, y, nullptr);
        }
    }
};

// The window known.
template <class Op, class Kernel, int Runs> struct Known : Tile<Op, Few, Kernel::at(0) * Kernel::at(1)> {
    using Base = Tile<Op, Few, Kernel::at(0) * Kernel::at(1)>;
    using T = typename Op::Element;
    using Base::Base, Base::op, Base::tiles, Base::inner, Base::outer;
    static constexpr int Height = Kernel::at(0), Width = Kernel::at(1), Part = Runs * Width;

    // What shared memory holds: partial results, or two of two planes in a word.
    using Merged = typename Held<Op>::Type;
    using Accumulator = typename Merged::Accumulator;
    const Merged merged{this->w.norm};
    Accumulator* const reduced = reinterpret_cast<Accumulator*>(shared);

    __device__ void reduce_columns(const T* x) const {
        int j = threadIdx.x;
        const int rows = (tiles.height + Height - 1) / Height * Height;
        // What the last row's last part reads beyond the tile.
        if (Width > 1 && j < Part + Width) reduced[rows * tiles.columns + j] = merged.start();
        if (j >= tiles.columns) return;
        int p = tiles.span.quotient(j), c = j - p * tiles.span.divisor;
        bool exists = p < tiles.planes;
        auto column = this->column(x, exists, p, c);
        auto twin = this->column(x, exists, p + tiles.planes, c);
        auto read = [&](int) {
            Accumulator a;
            if constexpr (Op::pairs) {
                twin.row = column.row;
                a = bits(this->read(column, 0)) | bits(this->read(twin, 0)) << 16;
                twin.from += outer().step;
            } else {
                a = op.lift(value(this->read(column, 0)), 0);
            }
            column.from += outer().step;
            ++column.row;
            return a;
        };
        Walk<Merged, Height> walk(merged, read);
        Accumulator* to = reduced + j;
#pragma unroll 1
        for (int r = 0; r < rows; r += Height) {
            auto write = [&](int, Accumulator a) {
                *to = a;
                to += tiles.columns;
            };
            if (column.row < outer().size) walk.next(merged, read, write);
            else walk.end(merged, write);
        }
    }

    // Every thread takes one part of one row at most, so that all are read before any is written.
    __device__ void reduce_rows() const {
        int part = tiles.rows.quotient(threadIdx.x), row = threadIdx.x - part * tiles.height;
        int p = tiles.parts.quotient(part), first = (part - p * tiles.parts.divisor) * Part;
        bool active = threadIdx.x < tiles.tasks;
        Accumulator* from = reduced + row * tiles.columns + p * tiles.span.divisor + first;
        Accumulator result[Part];
        if (active) {
            Walk<Merged, Width> walk(merged, [&](int i) { return from[i]; });
#pragma unroll
            for (int m = 0; m < Part; m += Width)
                walk.next(merged, [&](int i) { return from[m + Width + i]; },
                          [&](int i, Accumulator a) { result[m + i] = a; });
        }
        __syncthreads();
        if (active) {
#pragma unroll
            for (int i = 0; i < Part; ++i)
                if (first + i < tiles.width) from[i] = result[i];
        }
        __syncthreads();
    }

    __device__ void store_columns(const T* x, typename Op::Out* y) const {
        int p = tiles.span.quotient(threadIdx.x), c = threadIdx.x - p * tiles.span.divisor;
        if (p >= tiles.planes) return;
        const Accumulator* from = reduced + threadIdx.x;
        if constexpr (Op::pairs) {
            store_twins(y, p, c, from);
        } else {
            this->store_column(x, y, p, c, [&](int r) { return from[r * tiles.columns]; });
        }
    }

    __device__ void store_twins(T* y, int p, int c, const Accumulator* from) const {
        const int twins = tiles.planes * outer().out.divisor * inner().out.divisor;
        const int rows = this->rows_of(p, c), both = this->rows_of(p + tiles.planes, c);
        if (rows == 0) return;
        auto* to = reinterpret_cast<unsigned short*>(y) + this->position(p, c);
#pragma unroll 4
        for (int r = 0; r < rows; ++r) {
            to[0] = static_cast<unsigned short>(*from);
            if (both) to[twins] = static_cast<unsigned short>(*from >> 16);
            from += tiles.columns;
            to += inner().out.divisor;
        }
    }
};

template <class Op, class Kernel, int Runs>
__global__ void __launch_bounds__(256)
separable(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
          const __grid_constant__ Tiles tiles, const __grid_constant__ Window<2, int> w) {
    const Known<Op, Kernel, Runs> tile(w, tiles);
    tile.reduce_columns(x);
    __syncthreads();
    if constexpr (Kernel::at(1) > 1) tile.reduce_rows();
    tile.store_columns(x, y);
}

// A window of any size.
template <class Op> struct Unknown : Tile<Op, int, 0> {
    using Base = Tile<Op, int, 0>;
    using T = typename Op::Element;
    using Accumulator = typename Op::Accumulator;
    using Base::inner, Base::outer, Base::op, Base::tiles;
    int columns;  // input columns under a tile
    Accumulator *reduced = reinterpret_cast<Accumulator*>(shared), *result;

    __device__ Unknown(const Window<2, int>& window, const Tiles& t) : Base(window, t) {
        columns = tiles.span.divisor;
        result = reduced + tiles.planes * tiles.height * columns;
    }

    // Merges for every output of a run the suffix it begins with and the prefix it ends with.
    // read(i) is element i from the run's beginning, write(o, a) takes the result of output o.
    template <class Read, class Keep, class Kept, class Write>
    __device__ void run(int kernel, Read read, Keep keep, Kept kept, Write write) const {
        Accumulator suffix = op.start();
#pragma unroll 4
        for (int o = kernel - 1; o >= 0; --o) {
            suffix = op.merge(read(o), suffix);
            keep(o, suffix);
        }
        Accumulator prefix = op.start();
        write(0, suffix);
#pragma unroll 4
        for (int o = 1; o < kernel; ++o) {
            prefix = op.merge(prefix, read(kernel + o - 1));
            write(o, op.merge(kept(o), prefix));
        }
    }

    // Column c of run b in plane slot p: from the input into `reduced`.
    __device__ void reduce_column(const T* x, int p, int b, int c) const {
        const auto column = this->column(x, p < tiles.planes, p, c);
        int row = b * outer().kernel;
        Accumulator* to = reduced + (p * tiles.height + b * outer().kernel) * columns + c;
        auto write = [&](int o, Accumulator a) { to[o * columns] = a; };
        auto read = [&](int i) { return op.lift(value(this->read(column, row + i)), 0); };
        run(outer().kernel, read, write, [&](int o) { return to[o * columns]; }, write);
    }

    // Run b of row r in plane slot p: from `reduced` into `result`.
    __device__ void reduce_row(int p, int r, int b) const {
        int kernel = inner().kernel, row = p * tiles.height + r;
        const Accumulator* from = reduced + row * columns + b * kernel;
        Accumulator* to = result + row * (tiles.width + 1) + b * kernel;
        auto write = [&](int o, Accumulator a) { to[o] = a; };
        run(kernel, [&](int i) { return from[i]; }, write, [&](int o) { return to[o]; }, write);
    }
};

template <class Op>
__global__ void __launch_bounds__(256)
separable_any(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
              const __grid_constant__ Tiles tiles, const __grid_constant__ Window<2, int> w) {
    const Unknown<Op> tile(w, tiles);
    int runs = tiles.height / tile.outer().kernel;
    for (int i = threadIdx.x; i < tiles.planes * runs * tile.columns; i += blockDim.x) {
        int run = i / tile.columns, p = run / runs;
        tile.reduce_column(x, p, run - p * runs, i - run * tile.columns);
    }
    __syncthreads();
    int across = tiles.width / tile.inner().kernel, rows = tiles.planes * tiles.height;
    for (int i = threadIdx.x; i < rows * across; i += blockDim.x) {
        int b = i / rows, row = i - b * rows, p = row / tiles.height;
        tile.reduce_row(p, row - p * tiles.height, b);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tiles.planes * tiles.width; i += blockDim.x) {
        int p = i / tiles.width, c = i - p * tiles.width;
        const auto* from = tile.result + p * tiles.height * (tiles.width + 1) + c;
        tile.store_column(x, y, p, c, [&](int r) { return from[r * (tiles.width + 1)]; });
    }
}
