// Global and very large windows: several threads share an output and merge what they saw.
//
// A block of 256 threads serves Outputs outputs with Workers threads each. Channels first the
// workers of an output are neighbours, so that a warp reads consecutive taps, where all windows are
// Whole (inside the input, taps adjoining in a row) by vectors of Load elements; channels last the
// outputs are, so that it reads consecutive channels. Partial results meet in a fixed tree, within a
// warp by shuffles, else in shared memory: the same input gives the same bits. Few outputs with huge
// planes still fill the card: `plane_parts` cuts the taps of an output over gridDim.y blocks, and
// `plane` merges those parts. Small adjoining planes, whose taps no warp could read together, are
// copied to shared memory as a whole first: `plane_staged`.
// Counted cost in instructions per output: bench/results.
#include "window.cuh"

// What the lane whose number differs by `bits` holds.
template <class T> __device__ inline T of_lane(T own, int bits) {
    return __shfl_xor_sync(0xffffffff, own, bits);
}
template <class Value, class Code>
__device__ inline Found<Value, Code> of_lane(Found<Value, Code> own, int bits) {
    return {of_lane(own.best, bits), of_lane(own.code, bits)};
}

extern __shared__ __align__(16) unsigned char shared[];

template <class Op, class Place, class Index, int Outputs, int Workers, bool ChannelsLast, bool Whole,
          int Load>
struct Together {
    using T = typename Op::Element;
    const Place& place;
    static constexpr int inner = Place::axes - 1;
    static constexpr bool neighbours = !ChannelsLast && Workers <= 32;  // of an output, in a warp
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
        if constexpr (Place::axes == 1) return place.kernel(0) / Load;
        Index rows = 1;
#pragma unroll
        for (int a = 0; a < inner; ++a) rows *= place.kernel(a);
        return rows;
    }

    // Offset of row r of a whole window from its first tap.
    __device__ Index row_offset(Index r) const {
        Index sum = 0;
#pragma unroll
        for (int a = inner - 1; a >= 0; --a) {
            Index above = a ? r / place.kernel(a) : 0;
            sum += (r - above * place.kernel(a)) * (place.dilation(a) * place.w.axis[a].step);
            r = above;
        }
        return sum;
    }

    // Load neighbouring taps.
    struct Unit {
        static constexpr int bytes = Load * sizeof(T), words = bytes < 4 ? 1 : bytes / 4;
        T element;
        unsigned word[words];

        __device__ void load(const T* from) {
            if constexpr (Load == 1) element = *from;
            else load_words<bytes>(from, word);
        }
        template <class Any>
        __device__ void merge(const Any& op, typename Any::Accumulator& a, Index code) const {
#pragma unroll
            for (int e = 0; e < Load; ++e)
                a = op.merge(a, op.lift(Load == 1 ? value(element) : Words<T>::value(word, e), code + e));
        }
    };

    // The first tap of a unit.
    struct Tap {
        Index offset, code;
    };

    // Merges the units first, first + step, ... below last, a few of them in flight at once; second
    // looks, which are rare, and slow operators take them singly.
    template <class Any, class At>
    __device__ void reduce(const Any& op, typename Any::Accumulator& a, Index first, Index last,
                           int step, const T* from, At at) const {
        constexpr int flight = Any::rare || Op::slow ? 1 : 4;
#pragma unroll 1
        for (; flight > 1 && first + (flight - 1) * step < last; first += flight * step) {
            Unit units[flight];
#pragma unroll
            for (int f = 0; f < flight; ++f) units[f].load(from + at(first + f * step).offset);
#pragma unroll
            for (int f = 0; f < flight; ++f) units[f].merge(op, a, at(first + f * step).code);
        }
#pragma unroll 1
        for (; first < last; first += step) {
            Unit unit;
            unit.load(from + at(first).offset);
            unit.merge(op, a, at(first).code);
        }
    }

    template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
        auto accumulator = op.start();
        Index first = begin + worker();
        if constexpr (!Whole) {
            reduce(op, accumulator, first, end, Workers, x, [&](Index i) {
                long long unused = 0;
                return Tap{place.offset(i, unused), i};
            });
        } else {
            const T* from = x;
#pragma unroll
            for (int a = 0; a <= inner; ++a) from += place.first[a] * place.w.axis[a].step;
            if constexpr (Place::axes == 1)
                reduce(op, accumulator, first, end, Workers, from,
                       [](Index i) { return Tap{i * Load, i * Load}; });
            else
                whole_rows(op, accumulator, from);
        }
        return meet(op, accumulator);
    }

    // Short rows are read side by side, 2^log workers each, long ones by all workers in turn; all
    // of them so in a second look, whose code must be short.
    template <class Any>
    __device__ void whole_rows(const Any& op, typename Any::Accumulator& a, const T* from) const {
        Index width = place.kernel(inner), vectors = width / Load;
        auto tap = [&](Index r, Index c) {
            return Tap{row_offset(r) + c * Load, r * width + c * Load};
        };
        if constexpr (!Any::rare) {
            if (vectors <= Workers) {
                int log = 32 - __clz(static_cast<int>(vectors) - 1);
                Index column = worker() & ((1 << log) - 1);
                if (column < vectors)
                    reduce(op, a, begin + (worker() >> log), end, Workers >> log, from,
                           [&](Index r) { return tap(r, column); });
                return;
            }
        }
        for (Index r = begin; r < end; ++r)
            reduce(op, a, worker(), vectors, Workers, from, [&](Index c) { return tap(r, c); });
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
        if constexpr (neighbours) {
#pragma unroll
            for (int half = Workers / 2; half > 0; half /= 2)
                accumulator = op.merge(accumulator, of_lane(accumulator, half));
            return accumulator;
        }
        Accumulator* seats = reinterpret_cast<Accumulator*>(meeting);
        int own = worker() * Outputs + slot();
        __syncthreads();
        seats[own] = accumulator;
        __syncthreads();
#pragma unroll 1
        for (int half = Workers / 2; half > 0; half /= 2) {
            if (worker() < half) seats[own] = op.merge(seats[own], seats[own + half * Outputs]);
            __syncthreads();
        }
        return seats[slot()];
    }

    __device__ bool any(bool wanted) const {
        if constexpr (Workers == 1) return wanted;
        return neighbours ? __any_sync(0xffffffff, wanted) : __syncthreads_or(wanted);
    }
};

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast, bool Whole,
          int Load>
__global__ void __launch_bounds__(256)
plane_parts(const typename Op::Element* __restrict__ x, typename Op::Accumulator* __restrict__ parts,
            const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast, Whole>;
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
      typename Op::Index* __restrict__ indices, const typename Op::Accumulator* __restrict__ parts,
      int part_count, const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast, Whole>;
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
             typename Op::Index* __restrict__ indices, const __grid_constant__ Window<1, int> w) {
    using T = typename Op::Element;
    using Output = Place<1, int, Sizes<0>, Sizes<0>, false, true>;
    using Block = Together<Op, Output, int, Outputs, Workers, false, true, 1>;
    T* planes = reinterpret_cast<T*>(shared);
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
