// Rows of outputs from shared memory, as rows.cuh says, for small planes that adjoin.
//
// The rows of narrow planes lie in up to 32 lines of the first cache for a warp, which looks up two in a
// cycle, and their results in as many sectors. Where these take long a block copies planes to shared memory
// first, and their results from there, all by vectors. Odd rows of narrow elements, or parts of them, which
// memory gives one by one, are read from shared memory by words.
//
// Threads take rows whole or, where Row is 0, in equal parts. To copy a block's Planes each thread moves Each
// vectors or one more. Whole: all blocks are, and begin and end with vectors. Back: as many vectors of results
// that lie there, too, until the block copies them to y, or -1. SlicesFirst: neighbouring threads take rows of
// neighbouring slices, which meet in a bank less often. Mirrored: threads whose number has this bit take lines
// and rows of outputs from the last to the first, for the same reason; 0: none does.
// Counted cost in instructions per output of 3 x 3 in planes of 28, 20, 14, 10 and 7 rows as long, stride 1:
// maxima 6 to 18, of double 28 to 30; means 14 to 30, of double 36; second norms 17 to 33, of double 49; with
// Indices 43 to 71. Maxima of Half of 13 x 13 in planes of 20 x 20 15.
#include "rows.cuh"

template <class Op, class Kernel, class Stride, int Pad, int Row, Where Over, Where Partial,
          int Outputs, int Height, int Load, int Store, int Planes, int Threads, int Each, bool Whole,
          int Back, bool SlicesFirst, int Mirrored>
__global__ void __launch_bounds__(256, least_blocks<Op, Kernel, true>())
rows_staged(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
            typename Op::Index* __restrict__ indices, const __grid_constant__ Rows grid,
            const __grid_constant__ Window<Kernel::axes, int> w) {
    using T = typename Op::Element;
    using Tile =
        Block<typename InOrder<Op>::Type, Kernel, Stride, Pad, Row, Over, Partial, Outputs, Height, 1,
              true, false, Load, Store, true, SlicesFirst, Mirrored>;
    using Out = typename Op::Out;
    constexpr int width = 16 / sizeof(T), margin = Row ? 0 : width;
    T* const planes = reinterpret_cast<T*>(shared) + margin;
    const int first = blockIdx.x * Planes, n = blockIdx.x * Threads + threadIdx.x;
    const int here = Whole ? Planes : least<int>(w.channels.divisor - first, Planes);
    // Unsigned: a product of 64 bits takes one instruction then.
    const unsigned size = static_cast<unsigned>(w.channel_step);
    const auto before = [&](unsigned plane) { return static_cast<unsigned long long>(unsigned(first)) * plane; };
    // Elements in front of the first plane in the vector that it begins in.
    const auto skew = [&](unsigned plane, unsigned vector) { return Whole ? 0 : first * plane % vector; };
    const unsigned skewed = skew(size, width);
    // As far as the vector that the block ends in, where that is there: every plane has an element.
    const unsigned there = least<int>(w.channels.divisor - first, Planes + width) * size + skewed;
    const unsigned elements = Whole ? Planes * size : least(rounded_up<width>(here * size + skewed), there);
    if constexpr (margin > 0 && !Tile::complete) clear_margins<Threads, margin>(planes, elements);
    if constexpr (Whole) stage<T, Threads, Each, true, false>(x + before(size), planes, elements, true);
    else stage_anywhere<T, Threads, Each>(x + before(size) - skewed, planes, elements);
    const Shared<T> from(planes + skewed);
    const bool some = Whole || n < grid.threads;
    if constexpr (Back < 0) {
        if (some) write_tile(Tile(w, grid, from, n, first, 0), y, indices);
    } else {
        unsigned outputs = 1;
#pragma unroll
        for (int a = 0; a < Kernel::axes; ++a) outputs *= w.axis[a].out.divisor;
        const unsigned behind = rounded_up<width>(Planes * size + (Whole ? 0 : width - 1));
        Out* const results = reinterpret_cast<Out*>(planes + behind + margin);
        const unsigned front = skew(outputs, 16 / sizeof(Out));
        if (some)
            write_tile(Tile(w, grid, from, n, first, first), results + front,
                       Op::indices ? indices + before(outputs) : indices);
        Out* const to = y + before(outputs) - front;
        if constexpr (Whole) unstage<Out, Threads, Back>(results, to, here * outputs);
        else unstage_anywhere<Out, Threads, Back>(results, to, front, here * outputs + front);
    }
}
