// Sliding window: one thread per output element, any geometry, any number of axes, any layout.
//
// With Kernel and Stride known, the taps of a window inside the input unroll without a test; a
// window at the border, and every window of the generic tier (Sizes of 0), runs over its clipped
// taps. At most 256 threads a block, neighbouring threads on neighbouring outputs.
// Counted cost in instructions per output of 3 x 3: 133 to 200, of the generic tier 228 to 307.
#include "window.cuh"

template <class Op, int Axes, class Index, class Kernel, class Stride, bool ChannelsLast>
__global__ void __launch_bounds__(256, Kernel::known ? 2 : 0)
window(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
       typename Op::Index* __restrict__ indices, const __grid_constant__ Window<Axes, Index> w) {
    Index n = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= w.outputs) return;
    using Output = Place<Axes, Index, Kernel, Stride, ChannelsLast>;
    const Output place(w, n);
    const Alone<typename Op::Element, Output, Kernel, Index> traverse{place, x + place.base};
    store(Op(w.norm), place, traverse, n, true, x, y, indices);
}
