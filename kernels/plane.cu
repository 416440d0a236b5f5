// Global and very large windows: several threads share an output and merge what they saw.
//
// A block of 256 threads serves Outputs outputs with Workers threads each. Channels first the
// workers of an output are neighbours, so that a warp reads consecutive taps, where all windows are
// Whole (inside the input, taps adjoining in a row) by vectors of Load elements; channels last the
// outputs are, so that it reads consecutive channels. Partial results meet in shared memory in a fixed tree: the same input gives the same
// bits. Few outputs with huge planes still fill the card: `plane_parts` cuts the taps of an output
// over gridDim.y blocks, and `plane` merges those parts. Small adjoining planes, whose taps no warp
// could read together, are copied to shared memory as a whole first: `plane_staged`.
// Counted cost in instructions per output: bench/results.
#include "window.cuh"

extern __shared__ __align__(16) unsigned char shared[];

template <class Op, class Place, class Index, int Outputs, int Workers, bool ChannelsLast, bool Whole,
          int Load>
struct Together {
    using T = typename Op::Element;
    const Place& place;
    static constexpr int inner = Place::axes - 1;
    const T* x;
    unsigned char* meeting;                 // shared memory for 256 partial results
    Index begin, end;                       // units that this block reduces, see units()
    const typename Op::Accumulator* parts;  // what plane_parts left of this output, or null
    int part_count;

    __device__ static int worker() {
        return ChannelsLast ? threadIdx.x / Outputs : threadIdx.x % Workers;
    }
    __device__ static int slot() {
        return ChannelsLast ? threadIdx.x % Outputs : threadIdx.x / Workers;
    }

    // What a block can be given a share of: taps, vectors of a window of one row, or rows.
    __device__ static Index units(const Place& place) {
        if constexpr (!Whole) return place.taps();
        return Place::axes == 1 ? place.kernel(0) / Load : place.taps() / place.kernel(inner);
    }

    // Offset of row r of a whole window.
    __device__ Index row_offset(Index r) const {
        Index sum = place.first[inner];
#pragma unroll
        for (int a = inner - 1; a >= 0; --a) {
            Index above = a ? r / place.kernel(a) : 0;
            sum += (place.first[a] + (r - above * place.kernel(a)) * place.dilation(a)) *
                   place.w.axis[a].step;
            r = above;
        }
        return sum;
    }

    template <class Any>
    __device__ void read(const Any& op, typename Any::Accumulator& a, const T* from, Index code) const {
        constexpr int bytes = Load * sizeof(T), words = bytes < 4 ? 1 : bytes / 4;
        if constexpr (Load == 1) {
            a = op.merge(a, op.lift(value(*from), code));
        } else {
            unsigned word[words];
            load_words<bytes>(from, word);
#pragma unroll
            for (int e = 0; e < Load; ++e)
                a = op.merge(a, op.lift(Words<T>::value(word, e), code + e));
        }
    }

    template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
        auto accumulator = op.start();
        if constexpr (!Whole) {
            for (Index i = begin + worker(); i < end; i += Workers) {
                long long unused = 0;
                read(op, accumulator, x + place.offset(i, unused), i);
            }
        } else if constexpr (Place::axes == 1) {
            const T* from = x + place.first[0];
#pragma unroll 4
            for (Index i = begin + worker(); i < end; i += Workers)
                read(op, accumulator, from + i * Load, i * Load);
        } else {
            whole_rows(op, accumulator);
        }
        return meet(op, accumulator);
    }

    // Short rows are read side by side, Columns vectors each, long ones by all workers in turn.
    template <class Any>
    __device__ void whole_rows(const Any& op, typename Any::Accumulator& a) const {
        Index width = place.kernel(inner), vectors = width / Load;
        int columns = vectors < Workers ? 1 << (32 - __clz(static_cast<int>(vectors) - 1)) : Workers;
        Index column = worker() % columns;
        if (vectors <= columns) {
            if (column >= vectors) return;
            const int step = Workers / columns;
            Index r = begin + worker() / columns;
            const T* from = x + row_offset(r) + column * Load;
            const Index down = step * place.dilation(inner - 1) * place.w.axis[inner - 1].step;
#pragma unroll 4
            for (; r < end; r += step) {
                read(op, a, Place::axes == 2 ? from : x + row_offset(r) + column * Load,
                     r * width + column * Load);
                from += down;
            }
        } else {
            for (Index r = begin; r < end; ++r)
#pragma unroll 4
                for (Index c = column; c < vectors; c += Workers)
                    read(op, a, x + row_offset(r) + c * Load, r * width + c * Load);
        }
    }

    __device__ typename Op::Accumulator operator()(const Op& op) const {
        if (!parts) return operator()<Op>(op);
        auto accumulator = op.start();
        for (int i = worker(); i < part_count; i += Workers)
            accumulator = op.merge(accumulator, parts[i]);
        return meet(op, accumulator);
    }

    // Merges the workers of every output of the block; all of them get the result.
    template <class Any, class Accumulator>
    __device__ Accumulator meet(const Any& op, Accumulator accumulator) const {
        if constexpr (Workers == 1) return accumulator;
        Accumulator* seats = reinterpret_cast<Accumulator*>(meeting);
        int own = worker() * Outputs + slot();
        __syncthreads();
        seats[own] = accumulator;
        __syncthreads();
        for (int half = Workers / 2; half > 0; half /= 2) {
            if (worker() < half) seats[own] = op.merge(seats[own], seats[own + half * Outputs]);
            __syncthreads();
        }
        return seats[slot()];
    }

    __device__ bool any(bool wanted) const { return __syncthreads_or(wanted); }
};

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast, bool Whole,
          int Load>
__global__ void __launch_bounds__(256)
plane_parts(const typename Op::Element* __restrict__ x, typename Op::Accumulator* __restrict__ parts,
            const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast>;
    using Block = Together<Op, Output, Index, Outputs, Workers, ChannelsLast, Whole, Load>;
    Index n = static_cast<Index>(blockIdx.x) * Outputs + Block::slot();
    bool active = n < w.outputs;
    const Output place(w, active ? n : 0);
    Index units = active ? Block::units(place) : 0;
    Index share = units / gridDim.y + 1;
    Index begin = share * blockIdx.y;
    Index end = begin + share < units ? begin + share : units;
    const Block traverse{place, x + place.base, shared, begin, end, nullptr, 0};
    auto part = traverse(Op(w.norm));
    if (active && Block::worker() == 0) parts[n * gridDim.y + blockIdx.y] = part;
}

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast, bool Whole,
          int Load>
__global__ void __launch_bounds__(256)
plane(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
      long long* __restrict__ indices, const typename Op::Accumulator* __restrict__ parts,
      int part_count, const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast>;
    using Block = Together<Op, Output, Index, Outputs, Workers, ChannelsLast, Whole, Load>;
    Index n = static_cast<Index>(blockIdx.x) * Outputs + Block::slot();
    bool active = n < w.outputs;
    const Output place(w, active ? n : 0);
    const Block traverse{place, x + place.base, shared, 0, active ? Block::units(place) : 0,
                         parts ? parts + n * part_count : nullptr, active ? part_count : 0};
    store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);
}

// Copies the planes of the block's outputs, which adjoin, by 16 bytes and the last ones singly.
template <class T> __device__ inline void stage(const T* from, T* to, int elements) {
    constexpr int width = 16 / sizeof(T);
    for (int i = threadIdx.x; i < elements / width; i += blockDim.x)
        reinterpret_cast<uint4*>(to)[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    for (int i = elements / width * width + threadIdx.x; i < elements; i += blockDim.x) to[i] = from[i];
    __syncthreads();
}

template <class Op, int Outputs, int Workers>
__global__ void __launch_bounds__(256)
plane_staged(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
             long long* __restrict__ indices, const __grid_constant__ Window<1, int> w) {
    using T = typename Op::Element;
    using Output = Place<1, int, Sizes<0>, Sizes<0>, false>;
    using Block = Together<Op, Output, int, Outputs, Workers, false, true, 1>;
    T* planes = reinterpret_cast<T*>(shared + 256 * 16);
    int first = blockIdx.x * Outputs, size = w.axis[0].size;
    int here = w.outputs - first < Outputs ? static_cast<int>(w.outputs - first) : Outputs;
    stage(x + static_cast<long long>(first) * size, planes, here * size);
    bool active = Block::slot() < here;
    int n = active ? first + Block::slot() : 0;
    const Output place(w, n);
    const Block traverse{place, planes + Block::slot() * size, shared, 0, active ? size : 0, nullptr,
                         0};
    store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);
}
