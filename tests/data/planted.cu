// Small kernels for test_cuda_on_cpu.py: right ones, and ones with one bug each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern __shared__ __align__(16) unsigned char shared[];

// ---- right ----
template <class T>
__global__ void __launch_bounds__(256)
add_one(const T* __restrict__ x, T* __restrict__ y, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + T(1);
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        value += __shfl_down_sync(~0u, value, distance);
    return value;
}

template <class T>
__global__ void block_sum(const T* x, T* y, int n) {
    T* partial = reinterpret_cast<T*>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    T sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[(long long)blockIdx.x * n + i];
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < warps ? partial[lane] : T(0));
        if (lane == 0) y[blockIdx.x] = sum;
    }
}

// Log-step sum through shared memory; `barriers` false leaves out what makes it right.
template <bool barriers>
__global__ void tree_sum(const int* x, int* y) {
    int* partial = reinterpret_cast<int*>(shared);
    const int t = threadIdx.x;
    partial[t] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int distance = blockDim.x / 2; distance; distance /= 2) {
        if (t < distance) partial[t] += partial[t + distance];
        if (barriers) __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}

template <bool barriers>
__global__ void warp_reverse(const int* x, int* y) {
    int* slots = reinterpret_cast<int*>(shared);
    const int first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    slots[threadIdx.x] = x[threadIdx.x];
    if (barriers) __syncwarp();
    y[threadIdx.x] = slots[first + 31 - lane];
}

__global__ void shuffles(const long long* x, long long* y) {
    const int t = threadIdx.x;
    const long long v = x[t];
    y[t] = __shfl_sync(~0u, v, 3);
    y[32 + t] = __shfl_sync(~0u, v, 3, 8);
    y[64 + t] = __shfl_up_sync(~0u, v, 2, 16);
    y[96 + t] = __shfl_down_sync(~0u, v, 2, 16);
    y[128 + t] = __shfl_xor_sync(~0u, v, 5);
}

template <class T>
__global__ void shuffle_type(const T* x, T* y) {
    y[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 1);
}

__global__ void votes(const int* x, unsigned* y) {
    const int t = threadIdx.x, v = x[t];
    unsigned* out = y + t * 10;
    out[0] = __ballot_sync(~0u, v & 1);
    out[1] = __any_sync(~0u, v == 5);
    out[2] = __all_sync(~0u, v >= 0);
    out[3] = __reduce_add_sync(~0u, v);
    out[4] = __reduce_max_sync(~0u, v);
    out[5] = __reduce_min_sync(~0u, unsigned(v));
    out[6] = t % 32 < 8 ? __ballot_sync(0xff, v & 1) : 0;
    out[7] = __syncthreads_count(v & 1);
    out[8] = __syncthreads_or(v == 5);
    out[9] = __syncthreads_and(v >= 0);
}

__constant__ int primes[] = {2, 3, 5, 7};
__global__ void constants(int* y) { y[threadIdx.x] = primes[threadIdx.x]; }

struct Scale {
    int divisor;
    double factor;
    long long offset[2];
};
__global__ void scaled(const double* x, double* y, const __grid_constant__ Scale scale) {
    const int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    y[i] = x[i] / scale.divisor * scale.factor + scale.offset[0] - scale.offset[1];
}

template <class T>
__device__ T from_float(float);
template <>
__device__ __half from_float(float v) { return __float2half_rn(v); }
template <>
__device__ __nv_bfloat16 from_float(float v) { return __float2bfloat16_rn(v); }
__device__ float to_float(__half v) { return __half2float(v); }
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T>
__global__ void convert(const float* x, T* y, float* back) {
    y[threadIdx.x] = from_float<T>(x[threadIdx.x]);
    back[threadIdx.x] = to_float(y[threadIdx.x]);
}

template <class T, class T2>
__global__ void half_maximum(const T2* x, const T2* y, T2* packed, T* single) {
    packed[threadIdx.x] = __hmax2_nan(x[threadIdx.x], y[threadIdx.x]);
    single[threadIdx.x] = __hmax_nan(x[threadIdx.x].x, y[threadIdx.x].y);
}

__global__ void integer_intrinsics(const unsigned* x, const unsigned* y, unsigned* out, int n) {
    const int i = threadIdx.x;
    const unsigned a = x[i], b = y[i];
    unsigned results[] = {
        __umulhi(a, b), unsigned(__dp4a(int(a), int(b), 7)), __dp4a(a, b, 7u), __vmaxu4(a, b),
        __vmaxs4(a, b), __vmaxu2(a, b), __vmaxs2(a, b), __byte_perm(a, b, 0x7531),
        __funnelshift_l(a, b, 9), __funnelshift_r(a, b, 9), unsigned(__clz(int(a))),
        unsigned(__ffs(int(a))), unsigned(__popc(a)), __brev(a), max(a, b),
        unsigned(min(int(a), int(b))),
        unsigned(__vimax3_s32(int(a), int(b), 5)), __float_as_uint(__uint_as_float(a)),
        unsigned(__popcll((unsigned long long)a << 32 | b)), __vimax3_u16x2(a, b, 77u)};
    for (unsigned k = 0; k < sizeof results / sizeof *results; ++k) out[k * n + i] = results[k];
}

__global__ void copy_vectors(const float4* x, float4* y) {
    __stcs(y + threadIdx.x, __ldcs(x + threadIdx.x));
}

__global__ void maximum(const int* x, int* y) {
    atomicMax(y, x[blockIdx.x * blockDim.x + threadIdx.x]);
}

__global__ void compare_subnormals(const float* x, float* y) { y[0] = fmaxf(x[0], x[1]); }

__global__ void block_numbers(const int*, long long* y, int*) {
    if (threadIdx.x == 0) y[blockIdx.x] = blockIdx.x;
}

__global__ void last_element(signed char* y, long long n) { y[n - 1] = 7; }

template <class T>
__global__ void branch(T* y, int which) {
    if (which == 1)
        y[0] = T(1);
    else
        y[0] = T(2);
}

// ---- one bug each ----
__global__ void read_past(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
__global__ void write_past(const int* x, int* y) { y[threadIdx.x + 1] = x[threadIdx.x]; }
__global__ void shared_overrun(const int* x, int* y) {
    int* slots = reinterpret_cast<int*>(shared);
    slots[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void shared_underrun(const int* x, int* y) {
    int* slots = reinterpret_cast<int*>(shared);
    slots[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = slots[int(threadIdx.x) - 1];
}
__global__ void shared_unwritten(const int*, int* y) {
    y[threadIdx.x] = reinterpret_cast<int*>(shared)[threadIdx.x];
}
__global__ void overflow(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] * 65536; }
__global__ void misaligned(const float* x, float* y) {
    const float4 v = *reinterpret_cast<const float4*>(x + 1);
    y[threadIdx.x] = v.x + v.w;
}
__global__ void misaligned_local(const float* x, float* y) {
    float own[8];
    for (int i = 0; i < 8; ++i) own[i] = x[i];
    const float4 v = *reinterpret_cast<const float4*>(own + 1 + threadIdx.x % 2);
    y[threadIdx.x] = v.x + v.w;
}
__global__ void shuffle_instead_of_barrier(const int* x, int* y) {
    int* slots = reinterpret_cast<int*>(shared);
    slots[threadIdx.x] = x[threadIdx.x];
    const int next = __shfl_sync(~0u, int(threadIdx.x), int(threadIdx.x) + 1);
    y[threadIdx.x] = slots[next];
}
__global__ void blocks_collide(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void early_exit(const int* x, int* y, int n) {
    if (int(threadIdx.x) >= n) return;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void two_barriers(const int* x, int* y, int n) {
    if (int(threadIdx.x) < n)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void half_a_warp(const int* x, int* y) {
    y[threadIdx.x] = threadIdx.x % 32 < 16 ? __shfl_sync(~0u, x[threadIdx.x], 0) : 0;
}
__global__ void forgets_last(const signed char* x, signed char* y, int n) {
    if (int(threadIdx.x) < n - 1) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void traps(int* y) {
    if (threadIdx.x == 3) __trap();
    y[threadIdx.x] = 0;
}
__global__ void asserts(int* y) {
    assert(threadIdx.x < 3);
    y[threadIdx.x] = 0;
}
__global__ void writes_input(int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] = 1; }
__global__ void casts_const_away(const int* x, int* y) {
    y[threadIdx.x] = const_cast<int*>(x)[threadIdx.x] = 1;
}
