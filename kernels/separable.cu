// Large overlapping windows, stride 1: one pass down the columns and one along the rows of a tile,
// in one launch. The cost of an output does not depend on the size of the window.
//
// Each axis is cut into runs as long as the window. A window then is the end of one run and the
// beginning of the next, so it merges one suffix and one prefix (van Herk, Gil and Werman); no tap
// is taken back, which keeps sums as accurate as maxima. A block of 256 threads takes a tile of
// `planes` planes: the columns are reduced from global into shared memory, the rows within it.
// Counted cost in instructions per output: bench/results.
#include "window.cuh"

extern __shared__ __align__(16) unsigned char shared[];

struct Tiles {
    int planes, all_planes;  // of a block, and of the array
    int height, width;       // outputs of a tile: multiples of the window, or all there are
    int down, across;        // tiles of a plane
};

template <class Op, int Axes> struct Tile {
    using T = typename Op::Element;
    using Accumulator = typename Op::Accumulator;
    using Single = Place<Axes, int, Sizes<0>, Sizes<0>, false>;

    const Window<Axes, int>& w;
    const Tiles& tiles;
    const Op op;
    int first_plane, top, left;  // the tile's first output
    int columns;                 // input columns under a tile
    Accumulator *reduced, *result;

    __device__ Tile(const Window<Axes, int>& window, const Tiles& t) : w(window), tiles(t), op(window.norm) {
        int tile = blockIdx.x, row = tile / tiles.across, group = row / tiles.down;
        left = (tile - row * tiles.across) * tiles.width;
        top = (row - group * tiles.down) * tiles.height;
        first_plane = group * tiles.planes;
        columns = tiles.width + inner().kernel - 1;
        reduced = reinterpret_cast<Accumulator*>(shared);
        result = reduced + tiles.planes * tiles.height * columns;
    }

    __device__ const Axis<int>& inner() const { return w.axis[Axes - 1]; }
    __device__ int kernel_height() const { return Axes > 1 ? w.axis[0].kernel : 1; }
    __device__ int out_height() const { return Axes > 1 ? w.axis[0].out.divisor : 1; }
    __device__ int out_width() const { return inner().out.divisor; }

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
        int position = left + c - inner().pad_begin;
        int row = top + b * kernel_height() - (Axes > 1 ? w.axis[0].pad_begin : 0);
        int plane = first_plane + p, image = w.channels.quotient(plane);
        bool inside = plane < tiles.all_planes && position >= 0 && position < inner().size;
        const T* from = x + image * w.batch_step +
                        (plane - image * w.channels.divisor) * w.channel_step +
                        static_cast<long long>(position) * inner().step;
        Accumulator* to = reduced + (p * tiles.height + b * kernel_height()) * columns + c;
        auto read = [&](int i) {
            bool valid = inside && (Axes == 1 || (row + i >= 0 && row + i < w.axis[0].size));
            return valid ? op.lift(value(from[Axes > 1 ? (row + i) * w.axis[0].step : 0]), 0)
                         : op.start();
        };
        auto write = [&](int o, Accumulator a) { to[o * columns] = a; };
        run(kernel_height(), read, write, [&](int o) { return to[o * columns]; }, write);
    }

    // Run b of row r in plane slot p: from `reduced` into `result`.
    __device__ void reduce_row(int p, int r, int b) const {
        int kernel = inner().kernel, row = p * tiles.height + r;
        const Accumulator* from = reduced + row * columns + b * kernel;
        Accumulator* to = result + row * (tiles.width + 1) + b * kernel;
        auto write = [&](int o, Accumulator a) { to[o] = a; };
        run(kernel, [&](int i) { return from[i]; }, write, [&](int o) { return to[o]; }, write);
    }

    // Output n of the block, and whether the array has it.
    __device__ bool output(int n, int& r, int& c, int& index) const {
        c = n % tiles.width;
        int p = n / tiles.width / tiles.height;
        r = n / tiles.width - p * tiles.height;
        index = ((first_plane + p) * out_height() + top + r) * out_width() + left + c;
        return first_plane + p < tiles.all_planes && top + r < out_height() &&
               left + c < out_width();
    }
};

template <class Op, int Axes>
__global__ void __launch_bounds__(256)
separable(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
          const __grid_constant__ Tiles tiles, const __grid_constant__ Window<Axes, int> w) {
    const Tile<Op, Axes> tile(w, tiles);
    int runs = tiles.height / tile.kernel_height();
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
    for (int i = threadIdx.x; i < rows * tiles.width; i += blockDim.x) {
        int r, c, n;
        if (!tile.output(i, r, c, n)) continue;
        typename Op::Accumulator a = tile.result[i / tiles.width * (tiles.width + 1) + c];
        using Single = typename Tile<Op, Axes>::Single;
        if constexpr (Op::exact && !Op::counts) {
            y[n] = tile.op.finish(a, 1);
        } else {
            const Single single(w, n);
            bool certain = true;
            if constexpr (!Op::exact) certain = tile.op.certain(a);
            if (certain) {
                y[n] = tile.op.finish(a, single.counted());
            } else {
                const Alone<typename Op::Element, Single, Sizes<0>, int> alone{single, x + single.base};
                store(tile.op, single, alone, n, true, x, y, nullptr);
            }
        }
    }
}
