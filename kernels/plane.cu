// Global and very large windows: several threads share an output and merge what they saw.
//
// A block serves Outputs outputs with Workers threads each, 256 or fewer in all. Channels first the
// workers of an output are neighbours, so that a warp reads consecutive taps, where all windows are
// Whole (inside the input, taps adjoining in a row) by vectors of Load elements; channels last the
// outputs are, so that it reads consecutive channels. Partial results meet in a fixed tree, within a
// warp by shuffles, else in shared memory: the same input gives the same bits. Few outputs with huge
// planes still fill the card: `plane_parts` cuts the taps of an output over gridDim.y blocks, and
// `plane` merges those parts. Small adjoining planes, whose taps no warp could read together, are
// copied to shared memory as a whole first: `plane_staged`.
// Counted cost in instructions of a tap: 10, 30 where windows leave the input; global by vectors 2 to 5,
// staged planes 7 to 9.
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
    static constexpr int inner = Place::axes - 1;
    static constexpr bool neighbours = !ChannelsLast && Workers <= 32;  // of an output, in a warp

    // What a block reduces of a window: rows of valid taps, and of each of them units of Load taps.
    struct Part {
        Run<Index> rows, units;
    };

    const Place& place;
    const Index n;                          // number of the output
    const long long outputs;                // as many as there are: from there on n is none
    const T* x;
    unsigned char* meeting;                 // shared memory for 256 partial results
    const Part part;
    const typename Op::Accumulator* parts;  // what plane_parts left of this output, or null
    int part_count;

    __device__ static int worker() {
        return ChannelsLast ? threadIdx.x / Outputs : threadIdx.x % Workers;
    }
    __device__ static int slot() {
        return ChannelsLast ? threadIdx.x % Outputs : threadIdx.x / Workers;
    }

    __device__ static Part all(const Place& place, bool active) {
        Index rows = 1;
#pragma unroll
        for (int a = 0; a < inner; ++a) rows *= place.count[a];
        // A division by a power of two; the compiler does not know that counts are never negative.
        const Index units = place.count[inner] >> (31 - __clz(Load));
        return {{0, rows}, {0, active ? units : 0}};
    }
    // One of so many parts: rows, or units of each where there are fewer rows.
    __device__ static Part one(const Place& place, bool active, int number, int parts) {
        const Part whole = all(place, active);
        if (whole.rows.count >= parts) return {share(whole.rows, number, parts), whole.units};
        return {whole.rows, share(whole.units, number, parts)};
    }
    __device__ static Run<Index> share(const Run<Index>& whole, int number, int parts) {
        const Index each = (whole.count - 1) / parts + 1, first = least(each * number, whole.count);
        return {first, least(each, whole.count - first)};
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

    // How far two taps are apart, in memory and in the numbers of the valid taps.
    struct Distance {
        Index offset, code;
    };

    // Merges the units first, first + step, ... below last, a few of them in flight at once: fewer
    // where Indices of so many taps make long code, one in second looks and for slow operators.
    template <class Any>
    __device__ void reduce(const Any& op, typename Any::Accumulator& a, Index first, Index last,
                           int step, const T* from, Index code, const Distance& apart) const {
        constexpr int most_units = Op::indices ? most(16 / Load, 1) : 4;
        constexpr int flight = Any::rare || Op::slow ? 1 : least(most_units, 4);
        // Also past the last unit, therefore in 64 bits.
        const long long stride = static_cast<long long>(step) * apart.offset;
        from += static_cast<long long>(first) * apart.offset;
        auto advance = [&](int steps) { first += steps * step, from += steps * stride; };
#pragma unroll 1
        for (; flight > 1 && first + (flight - 1) * step < last; advance(flight)) {
            Unit units[flight];
#pragma unroll
            for (int f = 0; f < flight; ++f) units[f].load(from + f * stride);
#pragma unroll
            for (int f = 0; f < flight; ++f)
                units[f].merge(op, a, code + (first + f * step) * apart.code);
        }
#pragma unroll 1
        for (; first < last; advance(1)) {
            Unit unit;
            unit.load(from);
            unit.merge(op, a, code + first * apart.code);
        }
    }

    template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
        auto accumulator = op.start();
        reduce_window(op, accumulator);
        return meet(op, accumulator);
    }

    __device__ typename Op::Accumulator operator()(const Op& op) const {
        auto accumulator = op.start();
        if (parts) {
#pragma unroll 1
            for (int i = worker(); i < part_count; i += Workers)
                accumulator = op.merge(accumulator, parts[i]);
        } else {
            reduce_window(op, accumulator);
        }
        return meet(op, accumulator);
    }

    // From one unit of a row to the next, and from one position of an outer axis.
    __device__ Distance across() const {
        const Axis<Index>& axis = place.w.axis[inner];
        return {Whole ? Load : place.dilation(inner) * axis.step, Load};
    }
    __device__ Index down(int a) const { return place.dilation(a) * place.w.axis[a].step; }

    template <class Any>
    __device__ void reduce_window(const Any& op, typename Any::Accumulator& a) const {
        const T* from = x;
#pragma unroll
        for (int i = 0; i <= inner; ++i) from += place.first[i] * place.w.axis[i].step;
        if constexpr (inner == 0) reduce_columns(op, a, from);
        else if constexpr (inner == 1) reduce_rows(op, a, part.rows, from, 0);
        else reduce_planes(op, a, from);
    }

    template <class Any>
    __device__ void reduce_columns(const Any& op, typename Any::Accumulator& a, const T* from) const {
        const Run<Index>& units = part.units;
        reduce(op, a, units.first + worker(), end(units), Workers, from, 0, across());
    }

    // Some rows of a plane. Short ones are read side by side, 2^log workers each, long ones by all
    // workers in turn: one loop, along the axis that gives each worker most.
    template <class Any>
    __device__ void reduce_rows(const Any& op, typename Any::Accumulator& a, const Run<Index>& rows,
                                const T* from, Index code) const {
        const Run<Index>& units = part.units;
        const Distance next_column = across(), next_row{down(inner - 1), place.count[inner]};
        const bool shorter = units.count <= Workers;
        const int log = (32 - __clz(static_cast<unsigned>(units.count) - 1)) & 31;
        const Index column = units.first + (worker() & ((1u << log) - 1));
        const Index begin_along = shorter ? rows.first + (worker() >> log) : units.first + worker();
        const Index end_along = shorter ? end(rows) : end(units);
        const int step = shorter ? Workers >> log : Workers;
        const Distance along = shorter ? next_row : next_column;
        const Distance other = shorter ? next_column : next_row;
        const Index end_other = shorter ? least(column + 1, end(units)) : end(rows);
#pragma unroll 1
        for (Index i = shorter ? column : rows.first; i < end_other; ++i)
            reduce(op, a, begin_along, end_along, step, from + i * other.offset, code + i * other.code,
                   along);
    }

    // The rows of windows of more axes, plane by plane.
    template <class Any>
    __device__ void reduce_planes(const Any& op, typename Any::Accumulator& a, const T* from) const {
        if (part.rows.count == 0) return;
        const Index height = place.count[inner - 1];
        for (Index plane = part.rows.first / height; plane * height < end(part.rows); ++plane) {
            const Index row = plane * height, first = most<Index>(part.rows.first - row, 0);
            reduce_rows(op, a, {first, least(end(part.rows) - row, height) - first},
                        from + plane_offset(plane), row * place.count[inner]);
        }
    }

    __device__ Index plane_offset(Index plane) const {
        Index sum = 0;
#pragma unroll
        for (int a = inner - 2; a >= 0; --a) {
            Index above = a ? plane / place.count[a] : 0;
            sum += (plane - above * place.count[a]) * down(a);
            plane = above;
        }
        return sum;
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
        wanted &= n < outputs;
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
    const auto part = Block::one(place, active, blockIdx.y, gridDim.y);
    const Block traverse{place, n, w.outputs, x + place.base, shared, part, nullptr, 0};
    auto result = traverse(Op(w.norm));
    if (active && Block::worker() == 0) parts[n * gridDim.y + blockIdx.y] = result;
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
    const auto whole = Block::all(place, active);
    const Block traverse{place, n, w.outputs, x + place.base, shared, whole,
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
    const Block traverse{place, 0, 1, planes + Block::slot() * size, shared,
                         {{0, 1}, {0, active ? size : 0}}, nullptr, 0};
    store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);
}
