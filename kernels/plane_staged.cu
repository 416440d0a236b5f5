// Small planes that adjoin, whose taps no warp could read together: a block copies them to shared memory as
// a whole first, and shares them as plane.cuh says.
//
// To copy a block's planes each thread moves Each vectors or one more. Whole: all blocks are.
// Counted cost in instructions of a tap: 3 to 12, of float64 12 to 17.
#include "plane.cuh"

template <class Op, int Outputs, int Workers, int Each, bool Whole, Taps Lie, int Load>
__global__ void __launch_bounds__(256)
plane_staged(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
             typename Op::Index* __restrict__ indices, const __grid_constant__ Window<1, int> w) {
    using T = typename Op::Element;
    using Output = Place<1, int, Sizes<0>, Sizes<0>, false, true>;
    using Block = Together<Op, Output, int, Outputs, Workers, false, Lie, Load, true>;
    constexpr bool by_vectors = Load * sizeof(T) == 16;
    T* planes = reinterpret_cast<T*>(shared);
    const int first = blockIdx.x * Outputs, size = w.axis[0].size;
    const int here = Whole ? Outputs : least(static_cast<int>(w.outputs) - first, Outputs);
    stage<T, Outputs * Workers, Each, Whole, by_vectors>(x + static_cast<long long>(first) * size, planes,
                                                         here * size, here == Outputs);
    const bool active = Block::slot() < here;
    const int slot = active ? Block::slot() : 0, begin = slot * size, n = first + slot;
    const Output place(w, n);
    const Block traverse{place, 0, 1, planes + begin, Block::all(1, size, begin), nullptr, 0};
    store(Op(w.norm), place, traverse, n, active && Block::worker() == 0, x, y, indices);
}
