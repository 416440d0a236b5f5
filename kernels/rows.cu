// Rows of outputs: one thread per Outputs x Rows block of neighbouring outputs, kernel, stride and
// leading pad known. For 16- and 8-bit types and stride 1, where one thread per output would spend
// more instructions than the memory takes time.
//
// A thread reads the input rows under its outputs once, by the largest vectors that fit, merges
// them down the columns first, shared between its output rows, and then along each row. Three
// layouts are one code: a pixel is Lanes neighbouring elements, and pixels are neighbours too when
// Packed: channels first (1 lane, packed), interleaved channels such as RGB (3 lanes, packed), and
// channels last (a vector of channels, one load for each pixel).
//
// With Indices a thread keeps the greatest tap of each output and a small code, its place in the
// window, row by row in the order of taps; positions are made of the codes once, at the end.
//
// What the plan proves costs no instruction: of a Row that one thread takes whole the padding is
// left out, and where all is Inside, neither tiles nor windows over the edge, nothing is tested.
// Counted cost in instructions per output: bench/results.
#include "window.cuh"

template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T element[N];
};

__device__ inline bool within(int position, int size) {
    return static_cast<unsigned>(position) < static_cast<unsigned>(size);
}

__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }

struct Rows {
    long long threads;
    Divisor<int> vectors, groups, row_groups;  // channel vectors, column and row groups of a plane
    int pixel_step;                            // elements from one pixel to the next, in x and y
};

// Elements of one row: lifted one by one, or in words where the operator merges pairs of them. A
// Single one, a halo that no vector fits, holds one element in each word instead of two.
template <class Op, int Size, bool Pairs, bool Single> struct Cells {
    using T = typename Op::Element;
    using Accumulator = typename Op::Accumulator;
    static constexpr int count = Size > 0 ? Size : 1;
    Accumulator cell[count];

    __device__ void set(const Op& op, const unsigned* words, int first, int elements) {
#pragma unroll
        for (int i = 0; i < elements; ++i)
            if (first + i < Size) cell[first + i] = op.lift(Words<T>::value(words, i), 0);
    }
    __device__ void clear(const Op& op) {
#pragma unroll
        for (int i = 0; i < Size; ++i) cell[i] = op.start();
    }
    __device__ void merge(const Op& op, const Cells& other) {
#pragma unroll
        for (int i = 0; i < Size; ++i) cell[i] = op.merge(cell[i], other.cell[i]);
    }
};

template <class Op, int Size, bool Single> struct Cells<Op, Size, true, Single> {
    static constexpr int count = Single ? (Size > 0 ? Size : 1) : Size > 1 ? (Size + 1) / 2 : 1;
    unsigned cell[count];

    __device__ void set(const Op&, const unsigned* words, int first, int elements) {
#pragma unroll
        for (int i = 0; i < elements; i += 2)
            if (first + i < Size) cell[Single ? first : (first + i) / 2] = words[i / 2];
    }
    __device__ void clear(const Op& op) {
#pragma unroll
        for (int i = 0; i < count; ++i) cell[i] = repeated(op.padding(), i);
    }
    __device__ void merge(const Op& op, const Cells& other) {
        if (Size == 0) return;
#pragma unroll
        for (int i = 0; i < count; ++i) cell[i] = op.merge_pairs(cell[i], other.cell[i]);
    }
};

// What lines are made of: taps lifted by the operator, for Indices the values alone.
template <class Op> struct Lift { using Type = Op; };
template <class T, class Code, class Index> struct Lift<ArgMax<T, Code, Index>> {
    using Type = Max<T>;
};

template <class Op, int Axes, class Kernel, class Stride, int Pad, int Row, bool Inside,
          int Outputs, int Height, int Lanes, bool Packed, int Load, int Store>
struct Block {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Accumulator = typename Op::Accumulator;
    using Taps = typename Lift<Op>::Type;
    static constexpr int Outer = Axes > 1 ? Axes - 2 : 0;
    static constexpr int K = Kernel::at(Axes - 1), S = Stride::at(Axes - 1);
    static constexpr int KR = Axes > 1 ? Kernel::at(Outer) : 1;
    static constexpr int SR = Axes > 1 ? Stride::at(Outer) : 1;
    static constexpr int taps = KR * K * (Axes > 2 ? Kernel::at(0) : 1);
    static constexpr int Span = (Outputs - 1) * S + K;  // pixels of a row under the outputs

    // Pixels of a halo, more than needed where a vector takes them with fewer loads.
    __host__ __device__ static constexpr int loaded(int pixels) {
        int width = 1;
        while (width < Load && width < pixels) width *= 2;
        return Lanes > 1 ? pixels : (pixels + width - 1) / width * width;
    }
    // Packed, they are a halo of Pad pixels, a body that begins on a vector, and a halo behind it;
    // of a whole row only the body is there, and no padding.
    static constexpr int Left = Packed ? loaded(Row ? 0 : Pad) : 0;
    static constexpr int Body = Packed ? least(Row ? Row : Outputs * S, Span - Pad) : Span;
    static constexpr int Before = Packed ? Left - Pad : 0;  // where a line begins before the taps
    static constexpr int Right = Row || !Packed ? 0 : loaded(Span - Pad - Body);
    static constexpr bool pairs = Op::pairs && Load % 2 == 0;

    // Elements that one load takes in a halo: as many as divide it.
    __host__ __device__ static constexpr int unit(int elements) {
        int width = Load;
        while (elements % width) width /= 2;
        return width;
    }
    __host__ __device__ static constexpr bool single(int elements) { return unit(elements) == 1; }

    struct Line {
        Cells<Taps, Left * Lanes, pairs, single(Left * Lanes)> left;
        Cells<Taps, Body * Lanes, pairs, false> body;
        Cells<Taps, Right * Lanes, pairs, single(Right * Lanes)> right;

        __device__ void clear(const Taps& op) {
            left.clear(op);
            body.clear(op);
            right.clear(op);
        }
        __device__ void merge(const Taps& op, const Line& other) {
            left.merge(op, other.left);
            body.merge(op, other.body);
            right.merge(op, other.right);
        }
        // The cell of element i, and with pairs the half of the word that it is.
        __device__ auto at(int i) const {
            if (i < Left * Lanes) return left.cell[pairs && !single(Left * Lanes) ? i / 2 : i];
            i -= Left * Lanes;
            if (i < Body * Lanes) return body.cell[pairs ? i / 2 : i];
            i -= Body * Lanes;
            return right.cell[pairs && !single(Right * Lanes) ? i / 2 : i];
        }
        __device__ static int half(int i) {
            if (i < Left * Lanes) return single(Left * Lanes) ? 0 : i % 2;
            i -= Left * Lanes;
            if (i < Body * Lanes) return i % 2;
            return single(Right * Lanes) ? 0 : (i - Body * Lanes) % 2;
        }
        // Elements i and k side by side in a word.
        __device__ unsigned pair(int i, int k) const {
            unsigned selector = (half(i) ? 0x32 : 0x10) | (half(k) ? 0x7600 : 0x5400);
            return __byte_perm(at(i), at(k), selector);
        }
    };

    const Window<Axes, int>& w;
    const Rows& grid;
    const Op op;
    const Taps lift;
    const T* x;  // the body's first element in the first row of the plane
    int vector = 0, group, row_group = 0, slice = 0, plane;
    long long numbered = 0;  // the first number of the plane, of Indices

    __device__ Block(const Window<Axes, int>& window, const Rows& rows, const T* input, int n)
        : w(window), grid(rows), op(window.norm), lift(window.norm) {
        if constexpr (!Packed) vector = split(n, grid.vectors);
        group = Row ? 0 : split(n, grid.groups);
        if constexpr (Axes > 1) row_group = split(n, grid.row_groups);
        if constexpr (Axes > 2) slice = split(n, w.axis[0].out);
        plane = n;
        long long offset = 0;
        if constexpr (Packed && Lanes == 1) {
            int channel = split(n, w.channels);
            offset = channel * w.channel_step;
            numbered = channel * w.index_channel_step;
        }
        numbered += n * w.index_batch_step;
        offset += n * w.batch_step + (Packed ? group * Outputs * S * Lanes
                                             : vector * Lanes + first_pixel() * grid.pixel_step);
        x = pinned(input + offset);
    }

    // Takes the innermost coordinate off n.
    __device__ static int split(int& n, const Divisor<int>& by) {
        int quotient = by.quotient(n), remainder = n - quotient * by.divisor;
        n = quotient;
        return remainder;
    }

    __device__ const Axis<int>& inner() const { return w.axis[Axes - 1]; }
    __device__ int size() const { return Row ? Row : inner().size; }
    __device__ int outputs() const { return Row ? Outputs : inner().out.divisor; }
    __device__ const Axis<int>& outer() const { return w.axis[Outer]; }
    __device__ int first_pixel() const { return group * Outputs * S - Pad; }
    __device__ int first_row() const {
        return Axes > 1 ? row_group * Height * SR - outer().pad_begin : 0;
    }
    __device__ int first_slice() const {
        return Axes > 2 ? slice * Stride::at(0) - w.axis[0].pad_begin : 0;
    }

    // Reads Count elements into words, or padding where they are not `readable`.
    template <int Count> struct Loaded {
        static constexpr int bytes = Count * sizeof(T), count = bytes < 4 ? 1 : bytes / 4;
        unsigned word[count];

        __device__ Loaded(const Taps& op, const T* from, bool readable) {
            if constexpr (!Inside) {
#pragma unroll
                for (int i = 0; i < count; ++i) word[i] = repeated(op.padding(), i);
                if (!readable) return;
            }
            load_words<bytes>(from, word);
        }
    };

    template <int Size, bool Single>
    __device__ void load_halo(Cells<Taps, Size, pairs, Single>& halo, const T* from, bool readable,
                              int pixel) const {
        constexpr int width = unit(Size);
#pragma unroll
        for (int i = 0; i < Size; i += width) {
            int position = group * Outputs * S + pixel + i / Lanes;
            bool inside = within(position, size());
            const Loaded<width> loaded(lift, from + i, readable && inside);
            halo.set(lift, loaded.word, i, width);
        }
    }

    __device__ void load_line(Line& line, const T* from, bool readable) const {
        if constexpr (Packed) {
            load_halo(line.left, from - Left * Lanes, readable, -Left);
            int left = (size() - group * Outputs * S) * Lanes;
#pragma unroll
            for (int b = 0; b < Body * Lanes; b += Load) {
                const Loaded<Load> loaded(lift, from + b, readable && b < left);
                line.body.set(lift, loaded.word, b, Load);
            }
            load_halo(line.right, from + Body * Lanes, readable, Body);
        } else {
#pragma unroll
            for (int i = 0; i < Span; ++i) {
                int position = first_pixel() + i;
                bool inside = within(position, size());
                const Loaded<Lanes> loaded(lift, from + i * grid.pixel_step, readable && inside);
                line.body.set(lift, loaded.word, i * Lanes, Lanes);
            }
        }
    }

    // Hands the input rows of slice t of the window to every output row above them.
    template <class Found> __device__ void load_slice(Found (&found)[Height], const T* from, int t) const {
        constexpr int rows = (Height - 1) * SR + KR;
        int row = first_row();
        if constexpr (Axes > 1) from += row * outer().step;
#pragma unroll
        for (int i = 0; i < rows; ++i, ++row) {
            Line line;
            load_line(line, from, Axes == 1 || within(row, outer().size));
            if constexpr (Axes > 1) from += outer().step;
#pragma unroll
            for (int r = 0; r < Height; ++r) {
                int tap = i - r * SR;
                if (tap >= 0 && tap < KR) take(found[r], line, t, tap);
            }
        }
    }

    template <class Found> __device__ void load(Found (&found)[Height]) const {
        if constexpr (Axes < 3) {
            load_slice(found, x, 0);
        } else {
#pragma unroll 1
            for (int t = 0; t < Kernel::at(0); ++t) {
                int position = first_slice() + t;
                if (Inside || within(position, w.axis[0].size))
                    load_slice(found, x + position * w.axis[0].step, t);
            }
        }
    }

    // Columns: what was found of a row of outputs, merged downwards.
    __device__ void start(Line (&columns)[Height]) const {
        if constexpr (Axes > 2) {
#pragma unroll
            for (int r = 0; r < Height; ++r) columns[r].clear(lift);
        }
    }
    __device__ void take(Line& columns, const Line& line, int, int tap) const {
        if (Axes < 3 && tap == 0) columns = line;
        else columns.merge(lift, line);
    }

    // With Indices: the greatest tap of every output, and its code, (slice, row, column) of the
    // window as digits.
    struct Best {
        typename Element<T>::Value value[Outputs * Lanes];
        int code[Outputs * Lanes];
    };
    static constexpr int digit = 64;

    // A window begins on its first valid tap, so that all -inf names that one.
    __device__ void start(Best (&best)[Height]) const {
        auto hidden = [](int first) { return Inside || first >= 0 ? 0 : -first; };
#pragma unroll
        for (int r = 0; r < Height; ++r) {
            int row = r * SR < KR ? hidden(first_row() + r * SR) : 0;
            int code = (hidden(first_slice()) * digit + row) * digit;
#pragma unroll
            for (int b = 0; b < Outputs * Lanes; ++b) {
                int column = b / Lanes * S;
                best[r].value[b] = lowest<T>();
                best[r].code[b] = code + (column < Pad ? hidden(first_pixel() + column) : 0);
            }
        }
    }
    __device__ void take(Best& best, const Line& line, int t, int tap) const {
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; ++b) {
#pragma unroll
            for (int j = 0; j < K; ++j) {
                if (padding(b, j)) continue;
                auto v = line.at(under(b, j));
                bool greater = displaces(v, best.value[b]);
                best.value[b] = greater ? v : best.value[b];
                best.code[b] = greater ? (t * digit + tap) * digit + j : best.code[b];
            }
        }
    }

    // A value of 16 bits is read again: a conversion may change the bits of a NaN.
    __device__ T element(typename Element<T>::Value value, int row, int column, int lane) const {
        if constexpr (sizeof(T) != 2) return Round<T>::from(value);
        const int step = Packed ? Lanes : grid.pixel_step;
        int from = (column - (Packed ? group * Outputs * S : first_pixel())) * step + lane;
        return x[from + row];
    }

    // By 16 bytes where they are aligned: the plan speaks for x and y alone.
    template <class Index, int Width>
    __device__ static void store_numbers(const Index (&numbers)[Width], Index* to) {
        constexpr int width = least(Width, 16 / sizeof(Index));
        const bool aligned = reinterpret_cast<unsigned long long>(to) % (width * sizeof(Index)) == 0;
#pragma unroll
        for (int i = 0; i < Width; i += width) {
            Pack<Index, width> pack;
#pragma unroll
            for (int j = 0; j < width; ++j) pack.element[j] = numbers[i + j];
            if (aligned) {
                *reinterpret_cast<Pack<Index, width>*>(to + i) = pack;
            } else {
#pragma unroll
                for (int j = 0; j < width; ++j) to[i + j] = pack.element[j];
            }
        }
    }

    __device__ void write_row(const Best& best, int r, Out* y, typename Op::Index* indices) const {
        constexpr int width = Packed ? Store : Lanes;
        int left = (outputs() - group * Outputs) * Lanes, first = place(r, 0);
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; b += width) {
            if (!Inside && b >= left) return;
            int at = first + (Packed ? b : b / Lanes * grid.pixel_step);
            Pack<Out, width> pack;
            typename Op::Index numbers[width];
#pragma unroll
            for (int i = 0; i < width; ++i) {
                int code = best.code[b + i], lane = (b + i) % Lanes;
                int column = first_pixel() + (b + i) / Lanes * S + code % digit;
                int memory = 0, number = column * static_cast<int>(inner().index_step);
                auto add = [&](const Axis<int>& axis, int position) {
                    memory += position * axis.step;
                    number += position * static_cast<int>(axis.index_step);
                };
                if constexpr (Axes > 1) add(outer(), first_row() + r * SR + code / digit % digit);
                if constexpr (Axes > 2) add(w.axis[0], first_slice() + code / digit / digit);
                pack.element[i] = element(best.value[b + i], memory, column, lane);
                numbers[i] =
                    numbered + (Lanes > 1 ? (vector * Lanes + lane) * w.index_channel_step : 0) + number;
            }
            *reinterpret_cast<Pack<Out, width>*>(y + at) = pack;
            store_numbers(numbers, indices + at);
        }
    }

    __device__ void write(const Best (&best)[Height], Out* y, typename Op::Index* indices) const {
#pragma unroll
        for (int r = 0; r < Height; ++r)
            if (row_exists(r)) write_row(best[r], r, y, indices);
    }

    // Pixel of a line that tap j of output element b reads.
    __device__ static int pixel(int b, int j) { return b / Lanes * S + j + Before; }
    __device__ static bool padding(int b, int j) {
        return Row && (pixel(b, j) < 0 || pixel(b, j) >= Body);
    }
    // Element of a line that tap j of output element b reads, or a neighbour where it is padding.
    __device__ static int under(int b, int j) {
        int p = pixel(b, j);
        if (Row) p = p < 0 ? 0 : p < Body ? p : Body - 1;
        return p * Lanes + b % Lanes;
    }

    __device__ Accumulator reduce(const Line& columns, int b) const {
        Accumulator a = op.start();
        bool fresh = true;
#pragma unroll
        for (int j = 0; j < K; ++j) {
            if (padding(b, j)) continue;
            a = fresh ? columns.at(under(b, j)) : op.merge(a, columns.at(under(b, j)));
            fresh = false;
        }
        return a;
    }

    // Output elements b and the next in a word.
    __device__ unsigned reduce_pair(const Line& columns, int b) const {
        unsigned a = 0;
        bool fresh = true;
        const int next = least(b + 1, Outputs * Lanes - 1);
#pragma unroll
        for (int j = 0; j < K; ++j) {
            if (padding(b, j) && padding(next, j)) continue;
            unsigned tap = columns.pair(under(b, j), under(next, j));
            a = fresh ? tap : op.merge_pairs(a, tap);
            fresh = false;
        }
        return a;
    }

    // Taps of one axis that count for a window that starts at `start`.
    template <int Size> __device__ static int counted(const Axis<int>& axis, int start) {
        return clip<int>(start, axis.count_begin, axis.count_end, Size, 1).count;
    }

    template <int Size> __device__ static bool counts_all(const Axis<int>& axis, int first) {
        return first >= axis.count_begin && first + Size <= axis.count_end;
    }

    // Whether every window of the block counts all of its taps.
    __device__ bool whole() const {
        if (Inside) return true;
        bool all = counts_all<Span>(inner(), first_pixel());
        if constexpr (Axes > 1)
            all = all && counts_all<(Height - 1) * SR + KR>(outer(), first_row());
        if constexpr (Axes > 2) all = all && counts_all<Kernel::at(0)>(w.axis[0], first_slice());
        return all;
    }

    // Taps that count in every output row and column; only filled where some do not.
    struct Counts {
        int row[Height], column[Outputs];
    };

    __device__ void count(Counts& counts) const {
        int slices = Axes > 2 ? counted<Kernel::at(0)>(w.axis[0], first_slice()) : 1;
#pragma unroll
        for (int r = 0; r < Height; ++r)
            counts.row[r] =
                slices * (Axes > 1 ? counted<KR>(outer(), first_row() + r * SR) : 1);
#pragma unroll
        for (int c = 0; c < Outputs; ++c)
            counts.column[c] = counted<K>(inner(), first_pixel() + c * S);
    }

    // Finishes again what was divided by more taps than count.
    template <int Width>
    __device__ void patch(Pack<Out, Width>& pack, const Accumulator* a, int row, int b,
                          const Counts& counts) const {
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            int count = counts.row[row] * counts.column[(b + i) / Lanes];
            if (count != taps) pack.element[i] = op.finish(a[i], Few{count > 0 ? count : 1});
        }
    }

    __device__ int row_number(int r) const {
        if constexpr (Axes == 1) return plane;
        int outermost = Axes > 2 ? plane * w.axis[0].out.divisor + slice : plane;
        return outermost * outer().out.divisor + row_group * Height + r;
    }

    __device__ bool row_exists(int r) const {
        return Inside || Axes == 1 || row_group * Height + r < outer().out.divisor;
    }

    // Position in y of the first lane of an output of the block.
    __device__ int place(int r, int output) const {
        int pixel = row_number(r) * outputs() + group * Outputs + output;
        return pixel * (Packed ? Lanes : grid.pixel_step) + vector * Lanes;
    }

    // Stores one row of the block; `doubt` becomes other than 0 where a result is not certain.
    __device__ void write_row(const Line& columns, int r, Out* y, bool whole, const Counts& counts,
                              Accumulator& doubt) const {
        constexpr int width = Packed ? Store : Lanes;
        int left = (outputs() - group * Outputs) * Lanes;
        Out* to = y + place(r, 0);
        unsigned pair = 0;
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; b += width) {
            if (!Inside && b >= left) return;
            Out* at = Packed ? to + b : to + b / Lanes * grid.pixel_step;
            if constexpr (pairs && width == 1) {
                if (b % 2 == 0) pair = reduce_pair(columns, b);
                *reinterpret_cast<unsigned short*>(at) = pair >> 16 * (b % 2);
            } else if constexpr (pairs) {
                Vector<width / 2> words;
#pragma unroll
                for (int i = 0; i < width; i += 2) words.word[i / 2] = reduce_pair(columns, b + i);
                *reinterpret_cast<Vector<width / 2>*>(at) = words;
            } else {
                Pack<Out, width> pack;
                Accumulator a[width];
#pragma unroll
                for (int i = 0; i < width; ++i) {
                    a[i] = reduce(columns, b + i);
                    if constexpr (!Op::exact) doubt = op.doubt(doubt, a[i]);
                    pack.element[i] = op.finish(a[i], Exactly<taps>());
                }
                if (!whole) patch(pack, a, r, b, counts);
                *reinterpret_cast<Pack<Out, width>*>(at) = pack;
            }
        }
    }

    __device__ void write(const Line (&columns)[Height], Out* y, Accumulator& doubt) const {
        const bool all = !Op::counts || whole();
        Counts counts;
        if (!all) count(counts);
#pragma unroll
        for (int r = 0; r < Height; ++r)
            if (row_exists(r)) write_row(columns[r], r, y, all, counts, doubt);
    }

    // The slow path of all outputs of the block, one after the other.
    __device__ void redo(const T* input, Out* y) const {
        using Single = Place<Axes, int, Kernel, Stride, !Packed || (Lanes > 1)>;
#pragma unroll 1
        for (int i = 0; i < Height * Outputs * Lanes; ++i) {
            int r = i / (Outputs * Lanes), output = i / Lanes % Outputs;
            if (!row_exists(r) || group * Outputs + output >= outputs()) continue;
            int n = place(r, output) + i % Lanes;
            const Single single(w, n);
            const Alone<T, Single, Kernel, int> traverse{single, input + single.base};
            store(op, single, traverse, n, true, input, y, static_cast<typename Op::Index*>(nullptr));
        }
    }
};

// Blocks that a multiprocessor should hold at least. Where ptxas is told none, it finds a number
// itself, mostly a better one, and for some kernels spills a few registers to reach it.
template <class Op, class Kernel> __host__ __device__ constexpr int least_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    if (Op::pairs) return 1;
#endif
    if (Op::indices) return sizeof(typename Op::Element) == 8 || Kernel::product > 16 ? 1 : 0;
    return Op::counts || !Op::exact ? 2 : 0;
}

template <class Op, int Axes, class Kernel, class Stride, int Pad, int Row, bool Inside,
          int Outputs, int Height, int Lanes, bool Packed, int Load, int Store>
__global__ void __launch_bounds__(256, least_blocks<Op, Kernel>())
rows(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
     typename Op::Index* __restrict__ indices, const __grid_constant__ Rows grid, const __grid_constant__ Window<Axes, int> w) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= grid.threads) return;
    using Tile =
        Block<Op, Axes, Kernel, Stride, Pad, Row, Inside, Outputs, Height, Lanes, Packed, Load, Store>;
    const Tile block(w, grid, x, n);
    if constexpr (Op::indices) {
        typename Tile::Best best[Height];
        block.start(best);
        block.load(best);
        block.write(best, y, indices);
    } else {
        typename Tile::Line columns[Height];
        block.start(columns);
        block.load(columns);
        typename Op::Accumulator doubt = 0;
        block.write(columns, y, doubt);
        if constexpr (!Op::exact)
            if (!(doubt == 0)) block.redo(x, y);
    }
}
