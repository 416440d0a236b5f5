// MaxUnpool: one thread per element of x, three launches in order.
//
// `unpool_clear` fills the output with zeros and its claims with -1; `unpool_claim` lets every
// element claim its position, the highest source winning whatever the schedule; `unpool_place`
// lets the winners write. A position outside the output is skipped.
#include "element.cuh"

template <class T, class Index>
__global__ void __launch_bounds__(256)
unpool_clear(T* __restrict__ y, Index* __restrict__ claims, long long outputs) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= outputs) return;
    y[i] = T{};
    claims[i] = -1;
}

template <class Index>
__global__ void __launch_bounds__(256)
unpool_claim(const long long* __restrict__ indices, Index* __restrict__ claims, long long inputs,
             long long outputs) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= inputs) return;
    long long to = indices[i];
    if (to >= 0 && to < outputs) atomicMax(claims + to, static_cast<Index>(i));
}

template <class T, class Index>
__global__ void __launch_bounds__(256)
unpool_place(const T* __restrict__ x, const long long* __restrict__ indices, T* __restrict__ y,
             const Index* __restrict__ claims, long long inputs, long long outputs) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= inputs) return;
    long long to = indices[i];
    if (to >= 0 && to < outputs && claims[to] == i) y[to] = x[i];
}
