// Rows of outputs: one thread per Outputs x Rows block of neighbouring outputs, kernel, stride and
// leading pad known. For 16- and 8-bit types and stride 1, where one thread per output would spend
// more instructions than the memory takes time.
//
// A thread reads the input rows under its outputs once, by the largest vectors that fit, merges
// them down the columns first, shared between its output rows, and then along each row. Three
// layouts are one code: a pixel is Lanes neighbouring elements, and pixels are neighbours too when
// Packed: channels first (1 lane, packed), interleaved channels such as RGB (3 lanes, packed), and
// channels last (a vector of channels, one load for each pixel).
// Counted cost in instructions per output: see bench/results.
#include "window.cuh"

template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T element[N];
};

struct Rows {
    long long threads;
    Divisor<int> vectors, groups, row_groups;  // channel vectors, column and row groups of a plane
    int pixel_step;                            // elements from one pixel to the next, in x and y
};

template <class Op, int Axes, class Kernel, class Stride, int Pad, int Outputs, int Height, int Lanes,
          bool Packed, int Load, int Store>
struct Block {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Accumulator = typename Op::Accumulator;
    static constexpr int K = Kernel::at(Axes - 1), S = Stride::at(Axes - 1);
    static constexpr int KR = Axes > 1 ? Kernel::at(Axes > 1 ? Axes - 2 : 0) : 1;
    static constexpr int SR = Axes > 1 ? Stride::at(Axes > 1 ? Axes - 2 : 0) : 1;
    static constexpr int Span = (Outputs - 1) * S + K;  // pixels of a row under the outputs
    static constexpr int Body = Outputs * S;            // of which these begin aligned, after Pad
    static constexpr int taps = KR * K * (Axes > 2 ? Kernel::at(0) : 1);
    using Line = Accumulator[Span * Lanes];

    const Window<Axes, int>& w;
    const Rows& grid;
    const Op op;
    const T* x;
    int vector = 0, group, row_group = 0, slice = 0, plane;

    __device__ Block(const Window<Axes, int>& window, const Rows& rows, const T* input, int n)
        : w(window), grid(rows), op(window.norm), x(input) {
        if constexpr (!Packed) vector = split(n, grid.vectors);
        group = split(n, grid.groups);
        if constexpr (Axes > 1) row_group = split(n, grid.row_groups);
        if constexpr (Axes > 2) slice = split(n, w.axis[0].out);
        plane = n;
        if constexpr (Packed && Lanes == 1) {
            int channel = split(n, w.channels);
            x += channel * w.channel_step;
        }
        x += n * w.batch_step + vector * Lanes;
    }

    // Takes the innermost coordinate off n.
    __device__ static int split(int& n, const Divisor<int>& by) {
        int quotient = by.quotient(n), remainder = n - quotient * by.divisor;
        n = quotient;
        return remainder;
    }

    __device__ const Axis<int>& inner() const { return w.axis[Axes - 1]; }
    __device__ const Axis<int>& outer() const { return w.axis[Axes > 1 ? Axes - 2 : 0]; }
    __device__ int first_pixel() const { return group * Outputs * S - Pad; }
    __device__ int first_row() const {
        return Axes > 1 ? row_group * Height * SR - outer().pad_begin : 0;
    }
    __device__ int first_slice() const {
        return Axes > 2 ? slice * Stride::at(0) - w.axis[0].pad_begin : 0;
    }

    __device__ void lift(Line& line, int i, T element) const {
        if (i < Span * Lanes) line[i] = op.lift(value(element), 0);
    }

    // One pixel by itself: in channels last, and in the halo beside the body.
    __device__ void load_pixel(Line& line, const T* row, bool readable, int pixel) const {
        int position = first_pixel() + pixel;
        Pack<T, Packed ? 1 : Lanes> pack[Packed ? Lanes : 1];
#pragma unroll
        for (int i = 0; i < Lanes; ++i) pack[Packed ? i : 0].element[Packed ? 0 : i] = op.padding();
        if (readable && position >= 0 && position < inner().size) {
            auto from = reinterpret_cast<const Pack<T, Packed ? 1 : Lanes>*>(
                row + position * (Packed ? Lanes : grid.pixel_step));
#pragma unroll
            for (int i = 0; i < (Packed ? Lanes : 1); ++i) pack[i] = from[i];
        }
#pragma unroll
        for (int i = 0; i < Lanes; ++i)
            lift(line, pixel * Lanes + i, pack[Packed ? i : 0].element[Packed ? 0 : i]);
    }

    __device__ void load_line(Line& line, const T* row, bool readable) const {
        if constexpr (Packed) {
#pragma unroll
            for (int i = 0; i < Pad; ++i) load_pixel(line, row, readable, i);
            int begin = group * Body * Lanes, end = inner().size * Lanes;
#pragma unroll
            for (int b = 0; b < Body * Lanes; b += Load) {
                Pack<T, Load> pack;
#pragma unroll
                for (int i = 0; i < Load; ++i) pack.element[i] = op.padding();
                if (readable && begin + b < end)
                    pack = *reinterpret_cast<const Pack<T, Load>*>(row + begin + b);
#pragma unroll
                for (int i = 0; i < Load; ++i) lift(line, Pad * Lanes + b + i, pack.element[i]);
            }
#pragma unroll
            for (int i = Pad + Body; i < Span; ++i) load_pixel(line, row, readable, i);
        } else {
#pragma unroll
            for (int i = 0; i < Span; ++i) load_pixel(line, row, readable, i);
        }
    }

    // Merges the input rows of one slice into the columns of every output row.
    __device__ void load_slice(Line (&columns)[Height], const T* from, bool fresh) const {
        constexpr int rows = (Height - 1) * SR + KR;
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            int row = first_row() + i;
            bool readable = Axes == 1 || (row >= 0 && row < outer().size);
            Line line;
            load_line(line, Axes == 1 ? from : from + row * outer().step, readable);
#pragma unroll
            for (int r = 0; r < Height; ++r) {
                int tap = i - r * SR;
                if (tap < 0 || tap >= KR) continue;
#pragma unroll
                for (int c = 0; c < Span * Lanes; ++c)
                    columns[r][c] = fresh && tap == 0 ? line[c] : op.merge(columns[r][c], line[c]);
            }
        }
    }

    __device__ void load(Line (&columns)[Height]) const {
        if constexpr (Axes < 3) {
            load_slice(columns, x, true);
        } else {
#pragma unroll
            for (int r = 0; r < Height; ++r)
#pragma unroll
                for (int c = 0; c < Span * Lanes; ++c) columns[r][c] = op.start();
#pragma unroll 1
            for (int t = 0; t < Kernel::at(0); ++t) {
                int position = first_slice() + t;
                if (position >= 0 && position < w.axis[0].size)
                    load_slice(columns, x + position * w.axis[0].step, false);
            }
        }
    }

    __device__ Accumulator reduce(const Line& columns, int output, int lane) const {
        Accumulator a = columns[output * S * Lanes + lane];
#pragma unroll
        for (int j = 1; j < K; ++j) a = op.merge(a, columns[(output * S + j) * Lanes + lane]);
        return a;
    }

    // Taps of one axis that count for a window that starts at `start`.
    template <int Size> __device__ static int counted(const Axis<int>& axis, int start) {
        return clip<int>(start, axis.count_begin, axis.count_end, Size, 1).count;
    }

    // Whether every window of the block counts all of its taps.
    __device__ bool whole() const {
        bool inside = first_pixel() >= inner().count_begin &&
                      first_pixel() + Span <= inner().count_end;
        if constexpr (Axes > 1)
            inside = inside && first_row() >= outer().count_begin &&
                     first_row() + (Height - 1) * SR + KR <= outer().count_end;
        if constexpr (Axes > 2)
            inside = inside && first_slice() >= w.axis[0].count_begin &&
                     first_slice() + Kernel::at(0) <= w.axis[0].count_end;
        return inside;
    }

    __device__ Out finish(Accumulator a, bool inside, int row, int output) const {
        if constexpr (Op::counts) {
            if (!inside) {
                int count = counted<K>(inner(), first_pixel() + output * S);
                if constexpr (Axes > 1) count *= counted<KR>(outer(), first_row() + row * SR);
                if constexpr (Axes > 2) count *= counted<Kernel::at(0)>(w.axis[0], first_slice());
                return op.finish(a, Few{count > 0 ? count : 1});
            }
        }
        return op.finish(a, Exactly<taps>());
    }

    __device__ int row_number(int r) const {
        return Axes > 1 ? ((Axes > 2 ? plane * w.axis[0].out.divisor + slice : plane) *
                               outer().out.divisor + row_group * Height + r)
                        : plane;
    }

    __device__ bool row_exists(int r) const {
        return Axes == 1 || row_group * Height + r < outer().out.divisor;
    }

    // Position in y of an output of the block.
    __device__ int place(int r, int output) const {
        int pixel = row_number(r) * inner().out.divisor + group * Outputs + output;
        return pixel * (Packed ? Lanes : grid.pixel_step) + vector * Lanes;
    }

    __device__ void write(const Line& columns, int r, Out* y, bool inside, bool& certain) const {
        constexpr int width = Packed ? Store : Lanes;
        int left = (inner().out.divisor - group * Outputs) * Lanes;
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; b += width) {
            Pack<Out, width> pack;
#pragma unroll
            for (int i = 0; i < width; ++i) {
                int output = (b + i) / Lanes, lane = (b + i) % Lanes;
                Accumulator a = reduce(columns, output, lane);
                if constexpr (!Op::exact) certain = certain && (b >= left || op.certain(a));
                pack.element[i] = finish(a, inside, r, output);
            }
            if (b < left)
                *reinterpret_cast<Pack<Out, width>*>(y + place(r, b / Lanes) + b % Lanes) = pack;
        }
    }

    // The slow path of all outputs of the block, one after the other.
    __device__ void redo(const T* input, Out* y) const {
        using Single = Place<Axes, int, Kernel, Stride, !Packed || (Lanes > 1)>;
#pragma unroll 1
        for (int i = 0; i < Height * Outputs * Lanes; ++i) {
            int r = i / (Outputs * Lanes), output = i / Lanes % Outputs;
            if (!row_exists(r) || group * Outputs + output >= inner().out.divisor) continue;
            int n = place(r, output) + i % Lanes;
            const Single single(w, n);
            const Alone<T, Single, Kernel, int> traverse{single, input + single.base};
            store(op, single, traverse, n, true, input, y, nullptr);
        }
    }
};

template <class Op, int Axes, class Kernel, class Stride, int Pad, int Outputs, int Height, int Lanes,
          bool Packed, int Load, int Store>
__global__ void __launch_bounds__(256)
rows(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
     const __grid_constant__ Rows grid, const __grid_constant__ Window<Axes, int> w) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= grid.threads) return;
    using Tile = Block<Op, Axes, Kernel, Stride, Pad, Outputs, Height, Lanes, Packed, Load, Store>;
    const Tile block(w, grid, x, n);
    typename Tile::Line columns[Height];
    block.load(columns);
    bool inside = !Op::counts || block.whole(), certain = true;
#pragma unroll
    for (int r = 0; r < Height; ++r)
        if (block.row_exists(r)) block.write(columns[r], r, y, inside, certain);
    if constexpr (!Op::exact)
        if (!certain) block.redo(x, y);
}
