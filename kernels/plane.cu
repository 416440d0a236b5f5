// Global and very large windows from memory, shared as plane.cuh says.
//
// Few outputs with huge planes still fill the card: `plane_parts` cuts the taps of an output over gridDim.y
// blocks, and `plane` merges those parts.
// Counted cost in instructions of a tap: 10, 30 where windows leave the input; global by vectors 2 to 5, of
// float64 to 8.
#include "plane.cuh"

// Without a number the compiler holds to as few registers as it can, and for that lets each load wait for
// the one before. Registers for more of them are those of a fourth block.
constexpr int plane_blocks = 3;

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast, Taps Lie,
          int Load>
__global__ void __launch_bounds__(256, plane_blocks)
plane_parts(const typename Op::Element* __restrict__ x, typename Op::Accumulator* __restrict__ parts,
            const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast, Lie != scattered>;
    using Block = Together<Op, Output, Index, Outputs, Workers, ChannelsLast, Lie, Load>;
    Index n = static_cast<Index>(blockIdx.x) * Outputs + Block::slot();
    bool active = n < w.outputs;
    const Output place(w, active ? n : 0);
    const auto* from = x + place.base;
    const auto part = Block::one(Block::all(place, active, from), blockIdx.y, gridDim.y);
    const Block traverse{place, n, w.outputs, from, part, nullptr, 0};
    auto result = traverse(Op(w.norm));
    if (active && Block::worker() == 0) parts[n * gridDim.y + blockIdx.y] = result;
}

template <class Op, int Axes, class Index, int Outputs, int Workers, bool ChannelsLast, Taps Lie,
          int Load>
__global__ void __launch_bounds__(256, plane_blocks)
plane(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
      typename Op::Index* __restrict__ indices, const typename Op::Accumulator* __restrict__ parts,
      int part_count, const __grid_constant__ Window<Axes, Index> w) {
    using Output = Place<Axes, Index, Sizes<0>, Sizes<0>, ChannelsLast, Lie != scattered>;
    using Block = Together<Op, Output, Index, Outputs, Workers, ChannelsLast, Lie, Load>;
    Index n = static_cast<Index>(blockIdx.x) * Outputs + Block::slot();
    bool active = n < w.outputs;
    const Output place(w, active ? n : 0);
    const auto* from = x + place.base;
    const Block traverse{place, n, w.outputs, from, Block::all(place, active, from),
                         parts ? parts + n * part_count : nullptr, active ? part_count : 0};
    store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);
}
