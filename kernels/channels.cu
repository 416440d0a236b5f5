// Global windows, channels last: threads read vectors of neighbouring channels.
//
// An image is a run of vectors of 16 bytes. The fewest that hold whole pixels are a row of it: in every
// row a column holds the same channels. A block serves the columns of one image, or a group of them
// where there are more than 256 channels, which vectors must divide then: each of its workers takes
// whole rows in turn, a thread of it for each column, so that neighbouring threads read what adjoins.
// Workers, and then the pixels of a row, meet in shared memory in a fixed order: the same input gives
// the same bits. Few images still fill the card: `channels_parts` cuts the rows over gridDim.y blocks,
// and `plane` of plane.cu merges those parts. Norms whose second look is scaled by the first one's
// result, doubles and any power, are plane.cu's: a thread has one scale.
// Counted cost in instructions: 2 to 3 of a tap (8 of a third power), and of a thread 190 and 11 for
// each element of a vector.
#include "ops.cuh"
#include "shared.cuh"

struct Channels {
    Norm norm;
    long long image_step;  // elements from one image to the next
    int pixels, channels;
    int groups, columns;   // of a row, and of a group but the last, which may have fewer
    int workers;           // a power of two
    int row, rows;         // vectors of a row, and rows whose every vector is whole
    int rest, tail;        // whole vectors behind them, and single elements behind those
};

// What a thread reads: a column of the rows of its block's part, every so many of them.
template <class Op> struct Column {
    using T = typename Op::Element;
    static constexpr int width = 16 / sizeof(T), words = 4;

    const Channels& c;
    const T* x;  // the column's first vector
    int worker;
    int output, outputs;  // number of the block's first output, and how many it has
    int first, last;      // rows
    bool behind;          // whether what lies behind the last vector is this thread's, too

    __device__ Column(const Channels& channels, const T* from) : c(channels) {
        const int image = blockIdx.x / c.groups, group = blockIdx.x - image * c.groups;
        const int begin = group * c.columns;
        worker = threadIdx.x / c.columns;
        output = image * c.channels + begin * width;
        outputs = least(c.columns, c.row - begin) * width;
        if (outputs > c.channels) outputs = c.channels;  // of several pixels in a row
        const int column = begin + threadIdx.x - worker * c.columns;
        x = from + image * c.image_step + static_cast<long long>(column) * width;
        const int each = c.rows / static_cast<int>(gridDim.y) + 1, begin_row = blockIdx.y * each;
        last = least(begin_row + each, column < c.row ? c.rows + (column < c.rest) : 0);
        behind = c.tail > 0 && column == c.rest && begin_row <= c.rows && c.rows < begin_row + each &&
                 (c.rows - begin_row) % c.workers == worker;
        first = begin_row + worker;
    }

    template <class Any, class Accumulator>
    __device__ static void merge(const Any& op, Accumulator* a, const unsigned* word) {
#pragma unroll
        for (int e = 0; e < width; ++e) a[e] = op.merge(a[e], op.lift(Words<T>::value(word, e), 0));
    }

    template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
        typename Any::Accumulator a[width];
#pragma unroll
        for (int e = 0; e < width; ++e) a[e] = op.start();
        reduce(op, a);
        return meet(op, a);
    }

    template <class Any> __device__ void reduce(const Any& op, typename Any::Accumulator* a) const {
        constexpr int at_once = Any::rare ? 1 : 4;
        const long long step = static_cast<long long>(c.workers) * c.row * width;
        const T* from = x + static_cast<long long>(first) * c.row * width;
        int row = first;
#pragma unroll 1
        for (; at_once > 1 && row + (at_once - 1) * c.workers < last; row += at_once * c.workers) {
            unsigned word[at_once][words];
#pragma unroll
            for (int f = 0; f < at_once; ++f, from += step) load_words<16>(from, word[f]);
#pragma unroll
            for (int f = 0; f < at_once; ++f) merge(op, a, word[f]);
        }
#pragma unroll 1
        for (; row < last; row += c.workers, from += step) {
            unsigned word[words];
            load_words<16>(from, word);
            merge(op, a, word);
        }
        if (!behind) return;
        from = x + static_cast<long long>(c.rows) * c.row * width;
#pragma unroll
        for (int e = 0; e < width; ++e)
            if (e < c.tail) a[e] = op.merge(a[e], op.lift(value(load(from + e)), 0));
    }

    // Merges the workers of every column, then what is of one channel: thread n gets output n. Between
    // two looks the threads meet in `any`.
    template <class Any, class Accumulator>
    __device__ Accumulator meet(const Any& op, const Accumulator* a) const {
        Accumulator* seats = reinterpret_cast<Accumulator*>(shared);
        const int threads = blockDim.x, own = threadIdx.x;
#pragma unroll
        for (int e = 0; e < width; ++e) seats[e * threads + own] = a[e];
        __syncthreads();
#pragma unroll 1
        for (int half = c.workers / 2; half > 0; half /= 2) {
            if (worker < half) {
#pragma unroll
                for (int e = 0; e < width; ++e) {
                    Accumulator* seat = seats + e * threads + own;
                    *seat = op.merge(*seat, seat[half * c.columns]);
                }
            }
            __syncthreads();
        }
        auto merged = op.start();
        if (own < outputs)
#pragma unroll 1
            for (int i = own; i < c.columns * width; i += c.channels)
                merged = op.merge(merged, seats[i % width * threads + i / width]);
        return merged;
    }

    __device__ int n() const { return output + threadIdx.x; }
    __device__ bool writes() const { return threadIdx.x < outputs; }
    __device__ bool any(bool wanted) const { return __syncthreads_or(wanted && writes()); }
};

template <class Op>
__global__ void __launch_bounds__(256)
channels_parts(const typename Op::Element* __restrict__ x, typename Op::Accumulator* __restrict__ parts,
               const __grid_constant__ Channels c) {
    const Column<Op> column(c, x);
    const auto part = column(Op(c.norm));
    if (column.writes()) parts[static_cast<long long>(column.n()) * gridDim.y + blockIdx.y] = part;
}

template <class Op>
__global__ void __launch_bounds__(256)
channels(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
         const __grid_constant__ Channels c) {
    const Column<Op> column(c, x);
    const auto rounded = result(Op(c.norm), column, c.pixels);
    if (column.writes()) y[column.n()] = rounded;
}
