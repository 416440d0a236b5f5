// Rows of outputs from memory, as rows.cuh says, for windows where one thread per output would spend more
// instructions: those that overlap, types narrower than a vector, and strides that leave no tap out.
// Counted cost in instructions per output of 3 x 3 by the tiles that the plan chooses, which are not those
// of the fewest: maxima of Half 7, of float 11 to 13, and at stride 2 17 to 20 and 32 to 41; means of Half 15
// to 22, second norms of float at stride 2 53 to 62; with Indices 43 to 62, of float at stride 2 88 to 96;
// dilated by 2, maxima of Half 14 to 17 and of float 27 to 31, means of float 30 to 42, and with Indices 66
// to 69.
#include "rows.cuh"

template <class Op, class Kernel, class Stride, int Pad, int Row, Where Over, Where Partial,
          int Outputs, int Height, int Lanes, bool Packed, bool Images, int Load, int Store>
__global__ void __launch_bounds__(256, least_blocks<Op, Kernel, false>())
rows(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
     typename Op::Index* __restrict__ indices, const __grid_constant__ Rows grid,
     const __grid_constant__ Window<Kernel::axes, int> w) {
    using Tile =
        Block<typename InOrder<Op>::Type, Kernel, Stride, Pad, Row, Over, Partial, Outputs, Height, Lanes,
              Packed, Images, Load, Store, false, false, 0>;
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < grid.threads) write_tile(Tile(w, grid, x, n, 0, 0), y, indices);
}
