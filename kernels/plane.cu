// Global and very large windows: several threads share an output and merge what they saw.
//
// A block of 256 threads serves Outputs outputs with Workers threads each. Channels first the
// workers of an output are neighbours, so that a warp reads consecutive taps; channels last the
// outputs are, so that it reads consecutive channels. Partial results meet in shared memory in a
// fixed tree: the same input gives the same bits. Few outputs with huge planes still fill the card:
// `plane_parts` cuts the taps of an output over gridDim.y blocks, and `plane` merges those parts.
#include "window.cuh"

extern __shared__ __align__(16) unsigned char shared[];

template <class Op, class Place, class Index, int Outputs, int Workers, bool ChannelsLast>
struct Traverse {
    const Place& place;
    const typename Op::Element* x;
    Index begin, end;                         // the taps that this block reduces
    const typename Op::Accumulator* parts;    // what plane_parts left of this output, or null
    int part_count;

    __device__ static int worker() {
        return ChannelsLast ? threadIdx.x / Outputs : threadIdx.x % Workers;
    }
    __device__ static int slot() {
        return ChannelsLast ? threadIdx.x % Outputs : threadIdx.x / Workers;
    }

    template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
        auto accumulator = op.start();
        for (Index code = begin + worker(); code < end; code += Workers) {
            long long unused = 0;
            auto tap = op.lift(value(x[place.offset(code, unused)]), code);
            accumulator = op.merge(accumulator, tap);
        }
        return meet(op, accumulator);
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
        Accumulator* meeting = reinterpret_cast<Accumulator*>(shared);
        int own = worker() * Outputs + slot();
        __syncthreads();
        meeting[own] = accumulator;
        __syncthreads();
        for (int half = Workers / 2; half > 0; half /= 2) {
            if (worker() < half)
                meeting[own] = op.merge(meeting[own], meeting[own + half * Outputs]);
            __syncthreads();
        }
        return meeting[slot()];
    }

    __device__ bool any(bool wanted) const { return __syncthreads_or(wanted); }
};

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast>
__global__ void __launch_bounds__(256)
plane_parts(const typename Op::Element* __restrict__ x, typename Op::Accumulator* __restrict__ parts,
            const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast>;
    using Block = Traverse<Op, Output, Index, Outputs, Workers, ChannelsLast>;
    Index n = static_cast<Index>(blockIdx.x) * Outputs + Block::slot();
    bool active = n < w.outputs;
    const Output place(w, active ? n : 0);
    Index taps = active ? place.taps() : 0;
    Index share = taps / gridDim.y + 1;
    Index begin = share * blockIdx.y;
    Index end = begin + share < taps ? begin + share : taps;
    const Block traverse{place, x + place.base, begin, end, nullptr, 0};
    auto part = traverse(Op(w.norm));
    if (active && Block::worker() == 0) parts[n * gridDim.y + blockIdx.y] = part;
}

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast>
__global__ void __launch_bounds__(256)
plane(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
      long long* __restrict__ indices, const typename Op::Accumulator* __restrict__ parts,
      int part_count, const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast>;
    using Block = Traverse<Op, Output, Index, Outputs, Workers, ChannelsLast>;
    Index n = static_cast<Index>(blockIdx.x) * Outputs + Block::slot();
    bool active = n < w.outputs;
    const Output place(w, active ? n : 0);
    const Block traverse{place, x + place.base, 0, active ? place.taps() : 0,
                         parts ? parts + n * part_count : nullptr, active ? part_count : 0};
    store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);
}
