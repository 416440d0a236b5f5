// Maxima and averages in small planes that adjoin: down the columns, then along the rows.
//
// A block has Planes planes of Height x Width. Each thread takes a column of a plane from memory and leaves in
// shared memory what windows are down it; then a row of that, and gives what windows are along it. Of maxima of
// 16 or 8 bits it takes two at once, in words: columns that lie in words and then any two rows, or, of an odd
// number of columns, those of two planes. Neighbouring windows share what they merge, so that the cost hardly
// depends on the window. What lies over the edge is left out at compile time. In shared memory rows begin Pitch
// cells apart and planes, or pairs of them, Layer, so that few threads meet in banks. Once all rows are read their
// Rows x Columns results lie there one behind the other, and are copied by vectors: Back for each thread, or one
// more. Spread: these lie as `spread` says. Whole: all blocks have Planes, whose results begin and end with
// vectors. One block at least is to fit: where nothing is said some spill, to fit more.
//
// Averages of sums that are not finite are made again, tap by tap, once all results lie in memory.
// Counted cost in instructions per output of 5 x 5 and 13 x 13 in square planes of 10 to 28 rows, as many
// outputs: maxima of even sizes Half 6 to 9, bytes 7 to 13, float 9 to 13, double 22 to 30; of odd sizes Half 8 to
// 12, bytes 8 to 13, float 11 to 15, double 24 to 30; averages 14 to 31.
#include "merged.cuh"
#include "staged.cuh"

// What the windows along a line are, the first one of which begins Pad before it. As many neighbours as may have
// one cell in common share what is merged from there back to the first one's begin, and on to the last one's end.
template <int Kernel, int Stride, int Pad, class Op, class Cell, int Size, int Windows>
__device__ inline void merge_line(const Op& op, const Cell (&line)[Size], Cell (&windows)[Windows]) {
    constexpr int sharing = (Kernel - 1) / Stride + 1, step = sharing * Stride;
    constexpr int groups = (Windows - 1) / sharing + 1;
    Cell back[Size], on[Size];
#pragma unroll
    for (int i = Size - 1; i >= 0; --i) {
        const int at = (i + Pad) % step;
        if (at >= Kernel || (i + Pad) / step >= groups) continue;
        back[i] = at == Kernel - 1 || i == Size - 1 ? line[i] : op.merge(line[i], back[i + 1]);
    }
#pragma unroll
    for (int i = most(Kernel - Pad, 0); i < Size; ++i) {
        const int behind = i + Pad - Kernel, last = least((behind / step + 1) * sharing, Windows) - 1;
        if (behind / step >= groups || behind >= last * Stride) continue;
        on[i] = behind % step == 0 ? line[i] : op.merge(on[i - 1], line[i]);
    }
#pragma unroll
    for (int window = 0; window < Windows; ++window) {
        const int begin = window * Stride - Pad, end = least(begin + Kernel, Size);
        const int common = window / sharing * step - Pad + Kernel;
        const Cell& from = back[most(begin, 0)];
        windows[window] = end <= common ? from : op.merge(from, on[end - 1]);
    }
}

// What lies in shared memory: maxima or sums of elements, or in words maxima of two.
template <class Op> struct Cells {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Merged = typename Held<Op>::Type;
    using Cell = typename Merged::Accumulator;
    const Merged op;

    // In memory: an element, the two of a word, or one and an other.
    template <bool InWords> __device__ Cell element(const T* one, const T* other) const {
        if constexpr (InWords) {
            unsigned word;
            load_words<2 * sizeof(T)>(one, &word);
            return Halves<T>::pair(&word, 0);
        } else if constexpr (Op::pairs) {
            return load_beside(one, other);
        } else {
            return op.lift(value(load(one)), 0);
        }
    }
    // Reads a line, Load cells at once; or one and an other, which hold neighbours, to words of one of each.
    template <int Load, bool Two, int Size>
    __device__ void read(const Cell* one, const Cell* other, Cell (&line)[Size]) const {
        constexpr int bytes = Load * sizeof(Cell), wide = Two ? 2 : 1;
#pragma unroll
        for (int c = 0; c < Size; c += Load * wide) {
            unsigned words[bytes / 4], others[bytes / 4];
            load_shared<bytes>(Shared<Cell>(one + c / wide), words);
            if constexpr (Two) {
                load_shared<bytes>(Shared<Cell>(other + c / wide), others);
#pragma unroll
                for (int i = 0; i < 2 * Load; ++i) line[c + i] = Halves<T, 2>::beside(words, others, i);
            } else {
                memcpy(line + c, words, bytes);
            }
        }
    }
    // Writes the results of a line, or of two: Store at once, or where that is 0 by words, wherever these begin.
    // Window c is divided by count(c).
    template <int Store, bool Spread, int Size, class Count>
    __device__ void write(const Cell (&windows)[Size], Out* results, int one, int other, Count count) const {
        if constexpr (Store > 0) {
            write_parts<Store, Spread>(windows, results, one, other, count);
        } else {
            write_anywhere<false>(windows, results + one, count);
            if constexpr (Op::pairs) write_anywhere<true>(windows, results + other, count);
        }
    }
    // Store at once. Rows that are spread are two, four or eight vectors, so that the place in a row is of bits of
    // its own.
    template <int Store, bool Spread, int Size, class Count>
    __device__ void write_parts(const Cell (&windows)[Size], Out* results, int one, int other, Count count) const {
        constexpr unsigned width = 16 / sizeof(Out);
        if (Spread) one = spread(one / width) * width, other = spread(other / width) * width;
        auto place = [&](int row, int c) { return results + (Spread ? row ^ c : row + c); };
#pragma unroll
        for (int c = 0; c < Size; c += Store) {
            Pack<Cell, Store> part;
            Pack<Out, Store> single;
            memcpy(&part, windows + c, sizeof part);
            if constexpr (Op::pairs) {
                store_halves<Store>(part, false, place(one, c), Store);
                store_halves<Store>(part, true, place(other, c), Store);
            } else {
#pragma unroll
                for (int i = 0; i < Store; ++i) single.element[i] = op.finish(part.element[i], count(c + i));
                *reinterpret_cast<Pack<Out, Store>*>(place(one, c)) = single;
            }
        }
    }
    // Those in one half of words, or all, wherever words begin in them.
    template <bool High, int Size, class Count>
    __device__ void write_anywhere(const Cell (&windows)[Size], Out* to, Count count) const {
        constexpr int width = 4 / sizeof(Out), padded = (Size + width - 1) / width * width;
        alignas(4) Out results[padded] = {};
        if constexpr (Op::pairs) {
            Cell cells[padded] = {};
            memcpy(cells, windows, sizeof windows);
#pragma unroll
            for (int c = 0; c < Size; c += width)
                store_halves<width>(reinterpret_cast<const Pack<Cell, width>&>(cells[c]), High, results + c, width);
        } else {
#pragma unroll
            for (int c = 0; c < Size; ++c) results[c] = op.finish(windows[c], count(c));
        }
        store_anywhere<Size>(results, to);
    }
};

// What the windows of a row of results are divided by.
template <class Op, class Kernel, class Stride, int Pad, int Width> struct Counts {
    const Axis<int>& along;
    const int above;

    __device__ Counts(const Window<2, int>& w, int row)
        : along(w.axis[1]), above(Op::counts ? counted(w.axis[0], row * Stride::at(0)) : 1) {}

    __device__ auto operator()(int column) const {
        if constexpr (Op::counts) {
            constexpr int K = Kernel::at(1);
            const int output = column * Stride::at(1), begin = output - Pad;
            const bool inside = begin >= 0 && begin + K <= Width;
            return share_table<Kernel::at(0), K>.of[above][inside ? K : counted(along, output)];
        } else {
            return Exactly<1>();
        }
    }
};

// Whether any of them is not certain.
template <class Op, int Many>
__device__ inline bool doubtful(const Op& op, const typename Op::Accumulator (&sums)[Many]) {
    typename Op::Doubt doubt = 0;
#pragma unroll
    for (int i = 0; i < Many; ++i) doubt = op.doubt(doubt, sums[i]);
    return op.doubtful(doubt);
}

// Makes those results of a row again that are not finite.
template <int Columns, int Stride, class Op, class Counts>
__device__ inline void look_again(const Op& op, Again<typename Op::Element> window, typename Op::Out* results,
                                  const Counts& counts) {
#pragma unroll 1
    for (int c = 0; c < Columns; ++c, window.column += Stride)
        if (!finite(value(results[c]))) results[c] = op.careful(window, counts(c));
}

template <class Op, class Kernel, class Stride, int PadDown, int PadAlong, int Height, int Width, int Rows,
          int Columns, int Load, int Store, int Pitch, int Layer, bool Spread, int Planes, int Threads, int Back,
          bool Whole>
__global__ void __launch_bounds__(256, 1)
separable_planes(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
                 const __grid_constant__ Window<Kernel::axes, int> w) {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Cell = typename Cells<Op>::Cell;
    // Planes, or else neighbours in a plane, that a thread takes in words.
    constexpr int many = Op::pairs ? 2 : 1, deep = Width % many ? 2 : 1, wide = many / deep;
    constexpr int columns = Width / wide, size = Height * Width, results = Rows * Columns;
    const Cells<Op> of{typename Held<Op>::Type(w.norm)};
    Cell* const cells = reinterpret_cast<Cell*>(shared);
    const int first = blockIdx.x * Planes, i = threadIdx.x;
    const int here = Whole ? Planes : least<int>(w.channels.divisor - first, Planes);
    // Results of the block before in the vector that these begin in.
    const int front = Whole ? 0 : static_cast<unsigned>(first) * results % (16 / sizeof(Out));
    Out* const found = reinterpret_cast<Out*>(shared) + front;
    const int layers = (here + deep - 1) / deep;
    if (i < layers * columns) {
        const int layer = i / columns, column = i % columns, plane = layer * deep;
        const T* const from = x + static_cast<long long>(first) * size + (plane * size + column * wide);
        const T* const other = from + (plane + 1 < here ? size : 0);
        Cell line[Height], windows[Rows];
#pragma unroll
        for (int r = 0; r < Height; ++r)
            line[r] = of.template element<wide == 2>(from + r * Width, other + r * Width);
        merge_line<Kernel::at(0), Stride::at(0), PadDown>(of.op, line, windows);
#pragma unroll
        for (int r = 0; r < Rows; ++r) cells[layer * Layer + r * Pitch + column] = windows[r];
    }
    __syncthreads();
    // Each thread has a line, or two that are as far from each other as there are threads; of an odd number the
    // last one has one twice.
    const int lines = layers * Rows, busy = (lines + wide - 1) / wide, other = i + (i + busy < lines ? busy : 0);
    Cell windows[Columns];
    bool again = false;
    if (i < busy) {
        auto begin = [&](int line) { return cells + (line / Rows * Layer + line % Rows * Pitch); };
        Cell line[Width];
        of.template read<Load, wide == 2>(begin(i), begin(other), line);
        merge_line<Kernel::at(1), Stride::at(1), PadAlong>(of.op, line, windows);
        if constexpr (!Op::exact) again = doubtful(of.op, windows);
    }
    __syncthreads();
    const int one = (i / Rows * deep * Rows + i % Rows) * Columns;
    const Counts<Op, Kernel, Stride, PadAlong, Width> counts(w, i % Rows);
    if (i < busy)
        of.template write<Store, Spread>(windows, found, one, deep == 2 ? one + results : other * Columns, counts);
    Out* const to = y + static_cast<long long>(first) * results;
    if constexpr (Whole) unstage<Out, Threads, Back, Spread>(found, to, here * results);
    else unstage_anywhere<Out, Threads, Back, Spread>(found - front, to - front, front, front + here * results);
    if constexpr (!Op::exact) {
        __syncthreads();
        const T* const plane = x + static_cast<long long>(first + i / Rows) * size;
        const Again<T> window{w.axis[0], w.axis[1], plane, i % Rows * Stride::at(0) - PadDown, -PadAlong};
        if (again) look_again<Columns, Stride::at(1)>(of.op, window, to + one, counts);
    }
}
