// Maxima of large windows in small planes that adjoin, in shared memory: down the columns, then along the rows.
//
// A block copies Planes planes of Height x Width to shared memory by vectors. Each thread takes a column of a
// plane and leaves there what windows are down it, then a row of that, and gives what windows are along it. Of
// 16 or 8 bits it takes two lines at once, in words: columns that lie in words and then rows, or, of an odd
// number of columns, those of two planes. Neighbouring windows share what they merge, so that the cost hardly
// depends on the window. Once all rows are read their Rows x Columns results lie one behind the other where the
// planes did, and are copied from there. What lies over the edge is left out at compile time. To copy a block
// each thread moves Each vectors or one more, and Back of results. Whole: all blocks have Planes.
// One block at least is to fit: where nothing is said some spill, to fit more.
// Counted cost in instructions per output of 5 x 5 to 13 x 13 in square planes of 10 to 28 rows, as many outputs:
// of even sizes Half 6 to 7, bytes 7 to 11, float 9 to 12, double 25 to 27; of 13 rows Half 11, bytes 11 to 15.
#include "staged.cuh"
#include "window.cuh"

// What the windows along a line are, the first one of which begins Pad before it. As many neighbours as may have
// one cell in common, from First on, share what is merged from there back, and from there on.
template <int Kernel, int Stride, int Pad, int First = 0, class Op, class Cell, int Size, int Windows>
__device__ inline void merge_line(const Op& op, const Cell (&line)[Size], Cell (&windows)[Windows]) {
    constexpr int begin = First * Stride - Pad, common = least(begin + Kernel, Size) - 1;
    constexpr int behind = least(First + (Kernel - 1) / Stride + 1, Windows);
    Cell back[Size], on;
    back[common] = line[common];
#pragma unroll
    for (int i = common - 1; i >= most(begin, 0); --i) back[i] = op.merge(line[i], back[i + 1]);
#pragma unroll
    for (int window = First; window < behind; ++window) {
        const int start = window * Stride - Pad, end = least(start + Kernel, Size);
        const int next = most(common + 1, least(start - Stride + Kernel, Size));
#pragma unroll
        for (int i = next; i < next + Stride; ++i)
            if (i < end) on = i == common + 1 ? line[i] : op.merge(on, line[i]);
        const Cell& from = back[most(start, 0)];
        windows[window] = end == common + 1 ? from : op.merge(from, on);
    }
    if constexpr (behind < Windows) merge_line<Kernel, Stride, Pad, behind>(op, line, windows);
}

// Lines in shared memory, elements Step apart: one or, where words hold two elements, one and an other.
template <class Op> struct Lines {
    using T = typename Op::Element;
    using Merged = typename Held<Op>::Type;
    using Cell = typename Merged::Accumulator;
    const Merged op;

    // Load elements at once.
    template <int Step, int Load, int Size>
    __device__ void read(const T* one, const T* other, Cell (&line)[Size]) const {
        constexpr int bytes = Load * sizeof(T);
#pragma unroll
        for (int c = 0; c < Size; c += Load) {
            unsigned words[most(bytes / 4, 1)], others[most(bytes / 4, 1)];
            load_shared<bytes>(Shared<T>(one + c * Step), words);
            if constexpr (Op::pairs) load_shared<bytes>(Shared<T>(other + c * Step), others);
#pragma unroll
            for (int i = 0; i < Load; ++i) {
                if constexpr (Op::pairs) line[c + i] = Halves<T>::beside(words, others, i);
                else line[c + i] = op.lift(Words<T>::value(words, i), 0);
            }
        }
    }
    template <int Step, int Store, int Size>
    __device__ void write(const Cell (&windows)[Size], T* one, T* other) const {
#pragma unroll
        for (int c = 0; c < Size; c += Store) {
            if constexpr (Op::pairs) {
                Pack<Cell, Store> part;
#pragma unroll
                for (int i = 0; i < Store; ++i) part.element[i] = windows[c + i];
                store_halves<Store>(part, false, one + c * Step, Store);
                store_halves<Store>(part, true, other + c * Step, Store);
            } else {
                Pack<T, Store> part;
#pragma unroll
                for (int i = 0; i < Store; ++i) part.element[i] = op.finish(windows[c + i], 1);
                *reinterpret_cast<Pack<T, Store>*>(one + c * Step) = part;
            }
        }
    }
    // Two lines that lie in words.
    template <int Step, int Size> __device__ void read_words(const T* from, Cell (&line)[Size]) const {
#pragma unroll
        for (int r = 0; r < Size; ++r) {
            unsigned word;
            load_shared<2 * sizeof(T)>(Shared<T>(from + r * Step), &word);
            line[r] = Halves<T>::pair(&word, 0);
        }
    }
    template <int Step, int Size> __device__ void write_words(const Cell (&windows)[Size], T* to) const {
#pragma unroll
        for (int r = 0; r < Size; ++r) Halves<T>::store(Pack<unsigned, 1>{{windows[r]}}, to + r * Step);
    }
};

template <class Op, class Kernel, class Stride, int PadDown, int PadAlong, int Height, int Width, int Rows,
          int Columns, int Load, int Store, int Planes, int Threads, int Each, int Back, bool Whole>
__global__ void __launch_bounds__(256, 1)
separable_staged(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
                 const __grid_constant__ Window<Kernel::axes, int> w) {
    using T = typename Op::Element;
    using Cell = typename Lines<Op>::Cell;
    // Planes, or else neighbours in a plane, that a thread takes in words.
    constexpr int many = Op::pairs ? 2 : 1, deep = Width % many ? 2 : 1, wide = many / deep;
    constexpr int columns = Width / wide, rows = (Rows + wide - 1) / wide;
    constexpr int size = Height * Width, results = Rows * Columns;
    static_assert(Rows <= Height && Columns <= Width, "in place");
    T* const planes = reinterpret_cast<T*>(shared);
    const Lines<Op> lines{typename Held<Op>::Type(w.norm)};
    const int first = blockIdx.x * Planes, i = threadIdx.x;
    const int here = Whole ? Planes : least<int>(w.channels.divisor - first, Planes);
    const int layers = (here + deep - 1) / deep;
    stage<T, Threads, Each, Whole, false>(x + static_cast<long long>(first) * size, planes, here * size,
                                          here == Planes);
    if (i < layers * columns) {
        const int plane = i / columns * deep;
        T* const column = planes + plane * size + i % columns * wide;
        T* const other = column + (plane + 1 < here ? size : 0);
        Cell line[Height], windows[Rows];
        if constexpr (wide == 2) lines.template read_words<Width>(column, line);
        else lines.template read<Width, 1>(column, other, line);
        merge_line<Kernel::at(0), Stride::at(0), PadDown>(lines.op, line, windows);
        if constexpr (wide == 2) lines.template write_words<Width>(windows, column);
        else lines.template write<Width, 1>(windows, column, other);
    }
    __syncthreads();
    const int plane = i / rows * deep, row = i % rows * wide;
    // Of an odd number the last one twice.
    const bool both = deep == 2 ? plane + 1 < here : row + many <= Rows;
    Cell windows[Columns];
    if (i < layers * rows) {
        const T* const from = planes + plane * size + row * Width;
        Cell line[Width];
        lines.template read<1, Load>(from, from + both * (deep == 2 ? size : Width), line);
        merge_line<Kernel::at(1), Stride::at(1), PadAlong>(lines.op, line, windows);
    }
    if constexpr (results != size) __syncthreads();
    if (i < layers * rows) {
        T* const to = planes + plane * results + row * Columns;
        lines.template write<1, Store>(windows, to, to + both * (deep == 2 ? results : Columns));
    }
    T* const to = y + static_cast<long long>(first) * results;
    if constexpr (Whole) unstage<T, Threads, Back>(planes, to, here * results);
    else unstage_anywhere<T, Threads, Back>(planes, to, 0, here * results);
}
