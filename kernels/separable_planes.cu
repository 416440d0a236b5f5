// Maxima in small planes that adjoin: down the columns, then along the rows.
//
// A block has Planes planes of Height x Width. Each thread takes a column of a plane from memory and leaves in
// shared memory what windows are down it; then a row of that, and gives what windows are along it. Of 16 or 8
// bits it takes two at once, in words: columns that lie in words and then any two rows, or, of an odd number of
// columns, those of two planes. Neighbouring windows share what they merge, so that the cost hardly depends on
// the window. What lies over the edge is left out at compile time. In shared memory rows begin Pitch cells apart
// and planes, or pairs of them, Layer, so that few threads meet in banks. Once all rows are read their Rows x
// Columns results lie there one behind the other, and are copied by vectors: Back for each thread, or one more.
// Spread: these lie as `spread` says. Whole: all blocks have Planes, whose results begin and end with vectors.
// One block at least is to fit: where nothing is said some spill, to fit more.
// Counted cost in instructions per output of 5 x 5 and 13 x 13 in square planes of 10 to 28 rows, as many
// outputs: of even sizes Half 6 to 9, bytes 7 to 10, float 9 to 13, double 24 to 30; of odd sizes Half 8 to 10,
// bytes 8 to 12, float 11 to 15, double 24 to 29.
#include "staged.cuh"
#include "window.cuh"

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

// What lies in shared memory: maxima of elements, or in words those of two.
template <class Op> struct Cells {
    using T = typename Op::Element;
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
            return Halves<T>::beside(load(one), load(other));
        } else {
            return op.lift(load(one), 0);
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
    // Writes the results of a line, Store at once, or of two. Rows that are spread are two, four or eight vectors,
    // so that the place in a row is of bits of its own.
    template <int Store, bool Spread, int Size>
    __device__ void write(const Cell (&windows)[Size], T* results, int one, int other) const {
        constexpr unsigned width = 16 / sizeof(T);
        if (Spread) one = spread(one / width) * width, other = spread(other / width) * width;
        auto place = [&](int row, int c) { return results + (Spread ? row ^ c : row + c); };
#pragma unroll
        for (int c = 0; c < Size; c += Store) {
            Pack<Cell, Store> part;
            Pack<T, Store> single;
            memcpy(&part, windows + c, sizeof part);
            if constexpr (Op::pairs) {
                store_halves<Store>(part, false, place(one, c), Store);
                store_halves<Store>(part, true, place(other, c), Store);
            } else {
#pragma unroll
                for (int i = 0; i < Store; ++i) single.element[i] = op.finish(part.element[i], 1);
                *reinterpret_cast<Pack<T, Store>*>(place(one, c)) = single;
            }
        }
    }
};

template <class Op, class Kernel, class Stride, int PadDown, int PadAlong, int Height, int Width, int Rows,
          int Columns, int Load, int Store, int Pitch, int Layer, bool Spread, int Planes, int Threads, int Back,
          bool Whole>
__global__ void __launch_bounds__(256, 1)
separable_planes(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
                 const __grid_constant__ Window<Kernel::axes, int> w) {
    using T = typename Op::Element;
    using Cell = typename Cells<Op>::Cell;
    // Planes, or else neighbours in a plane, that a thread takes in words.
    constexpr int many = Op::pairs ? 2 : 1, deep = Width % many ? 2 : 1, wide = many / deep;
    constexpr int columns = Width / wide, size = Height * Width, results = Rows * Columns;
    const Cells<Op> of{typename Held<Op>::Type(w.norm)};
    Cell* const cells = reinterpret_cast<Cell*>(shared);
    const int first = blockIdx.x * Planes, i = threadIdx.x;
    const int here = Whole ? Planes : least<int>(w.channels.divisor - first, Planes);
    // Results of the block before in the vector that these begin in.
    const int front = Whole ? 0 : static_cast<unsigned>(first) * results % (16 / sizeof(T));
    T* const found = reinterpret_cast<T*>(shared) + front;
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
    if (i < busy) {
        auto begin = [&](int line) { return cells + (line / Rows * Layer + line % Rows * Pitch); };
        Cell line[Width];
        of.template read<Load, wide == 2>(begin(i), begin(other), line);
        merge_line<Kernel::at(1), Stride::at(1), PadAlong>(of.op, line, windows);
    }
    __syncthreads();
    if (i < busy) {
        const int one = (i / Rows * deep * Rows + i % Rows) * Columns;
        of.template write<Store, Spread>(windows, found, one, deep == 2 ? one + results : other * Columns);
    }
    T* const to = y + static_cast<long long>(first) * results;
    if constexpr (Whole) unstage<T, Threads, Back, Spread>(found, to, here * results);
    else unstage_anywhere<T, Threads, Back, Spread>(found - front, to - front, front, front + here * results);
}
