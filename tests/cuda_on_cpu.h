// What CUDA C++ gives a kernel, for g++: the kernel text is compiled unchanged after this header.
// What namespace cuda_on_cpu declares is defined in cuda_on_cpu.cpp, the machine that runs it.
#pragma once
#include <cassert>
#include <cfenv>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <math.h>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __managed__
#undef __grid_constant__
#undef __launch_bounds__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)
// A section makes a static __shared__ array inside a function a compile error, which would else
// silently become a variable of one thread; an extern declaration is not affected by it.
#define __shared__ __attribute__((section("only extern __shared__ arrays are emulated")))
#define __builtin_assume(condition) \
    ((condition) ? (void)0 : cuda_on_cpu::fail("__builtin_assume(" #condition ") is false"))
#define __assert_fail(text, file, line, function) \
    cuda_on_cpu::fail("assertion failed at %s:%d: %s", file, line, text)

#if !defined(CUDA_ON_CPU_RUNTIME)  // which changes them between threads, where no kernel sees it
extern const uint3 threadIdx, blockIdx, blockDim, gridDim;
#endif
constexpr int warpSize = 32;

namespace cuda_on_cpu {

struct Parameter {
    char kind;  // p pointer, i integer, f floating point, s struct
    unsigned size;
    bool writable;  // what a pointer leads to
};
struct Kernel {
    void (*run)(void** arguments);
    const Parameter* parameters;
    unsigned count;
};

using Combine = uint64_t (*)(uint64_t, uint64_t);
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
int lane();
int block_barrier(int vote, int line);  // the number of threads that voted
void warp_barrier(unsigned mask, int line);
uint64_t warp_exchange(unsigned mask, uint64_t value, int source, int line);
uint64_t warp_combine(unsigned mask, uint64_t value, Combine combine, int line);
void atomic_access(void* address, int size);

template <class T>
constexpr Parameter describe() {
    constexpr char kind = std::is_pointer_v<T>          ? 'p'
                          : std::is_floating_point_v<T> ? 'f'
                          : std::is_integral_v<T>       ? 'i'
                                                        : 's';
    return {kind, sizeof(T), !std::is_const_v<std::remove_pointer_t<T>>};
}

template <auto function>
struct Entry;
template <class... A, void (*function)(A...)>
struct Entry<function> {
    static constexpr Parameter parameters[] = {describe<A>()..., {}};
    template <size_t... I>
    __attribute__((no_sanitize_thread))
    static void call(void** arguments, std::index_sequence<I...>) {
        function(*static_cast<A*>(arguments[I])...);
    }
    static void run(void** arguments) { call(arguments, std::index_sequence_for<A...>()); }
    static constexpr Kernel kernel{run, parameters, sizeof...(A)};
};

template <class T>
struct Identity {
    using type = T;
};
template <class T>
using Same = typename Identity<T>::type;  // a parameter that takes no part in deduction

template <class To, class From>
inline To bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}
template <class T>
inline uint64_t widen(T value) {
    static_assert(sizeof(T) <= 8, "warp primitives move at most 8 bytes");
    uint64_t result = 0;
    std::memcpy(&result, &value, sizeof value);
    return result;
}
template <class T>
inline T narrow(uint64_t value) {
    T result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

template <class T>
inline T shuffle(unsigned mask, T value, int source, int line) {
    return narrow<T>(warp_exchange(mask, widen(value), source, line));
}
template <class T, class Update>
__attribute__((no_sanitize_thread)) T atomic(T* address, Update update) {
    atomic_access(address, sizeof(T));
    T old = *address;
    *address = update(old);
    return old;
}

template <class To, class From>
inline To saturate(From value) {  // CUDA's conversion of an already rounded value
    if (value != value) return sizeof(To) == 4 ? To(0) : To(1ull << 63);
    constexpr From two = 2;
    const From end = std::ldexp(two, int(sizeof(To)) * 8 - 1 - std::is_signed_v<To>);
    if (value >= end) return std::is_signed_v<To> ? To(~(1ull << (sizeof(To) * 8 - 1))) : To(~0ull);
    if (value < (std::is_signed_v<To> ? -end : From(0)))
        return std::is_signed_v<To> ? To(1ull << (sizeof(To) * 8 - 1)) : To(0);
    return To(value);
}

template <class Lane, class Operation>
inline unsigned each(unsigned a, unsigned b, Operation operation) {
    constexpr int n = 4 / sizeof(Lane);
    Lane x[n], y[n];
    std::memcpy(x, &a, 4);
    std::memcpy(y, &b, 4);
    for (int i = 0; i < n; ++i) x[i] = Lane(operation(x[i], y[i]));
    std::memcpy(&a, x, 4);
    return a;
}

}  // namespace cuda_on_cpu

// ---- barriers, votes, shuffles, reductions ----
#define HERE int line = __builtin_LINE()
inline void __syncthreads(HERE) { cuda_on_cpu::block_barrier(0, line); }
inline int __syncthreads_count(int p, HERE) { return cuda_on_cpu::block_barrier(p != 0, line); }
inline int __syncthreads_or(int p, HERE) { return cuda_on_cpu::block_barrier(p != 0, line) != 0; }
inline int __syncthreads_and(int p, HERE) { return cuda_on_cpu::block_barrier(p == 0, line) == 0; }
inline void __syncwarp(unsigned mask = ~0u, HERE) { cuda_on_cpu::warp_barrier(mask, line); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

inline unsigned __ballot_sync(unsigned mask, int p, HERE) {
    const uint64_t bit = p ? 1ull << cuda_on_cpu::lane() : 0;
    return unsigned(cuda_on_cpu::warp_combine(
        mask, bit, [](uint64_t a, uint64_t b) { return a | b; }, line));
}
inline int __any_sync(unsigned mask, int p, HERE) { return __ballot_sync(mask, p, line) != 0; }
inline int __all_sync(unsigned mask, int p, HERE) { return __ballot_sync(mask, !p, line) == 0; }

template <class T>
inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, HERE) {
    const int first = cuda_on_cpu::lane() & -width;
    return cuda_on_cpu::shuffle(mask, v, first | (source & (width - 1)), line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, HERE) {
    const int lane = cuda_on_cpu::lane(), source = lane - int(delta);
    return cuda_on_cpu::shuffle(mask, v, source < (lane & -width) ? lane : source, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, HERE) {
    const int lane = cuda_on_cpu::lane(), end = (lane & -width) + width;
    return cuda_on_cpu::shuffle(mask, v, lane + int(delta) < end ? lane + int(delta) : lane, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, HERE) {
    const int lane = cuda_on_cpu::lane(), end = (lane & -width) + width;
    return cuda_on_cpu::shuffle(mask, v, (lane ^ bits) < end ? lane ^ bits : lane, line);
}

#define REDUCE(T, NAME, EXPRESSION)                                            \
    inline T __reduce_##NAME##_sync(unsigned mask, T value, HERE) {            \
        const auto combine = [](uint64_t x, uint64_t y) {                      \
            const T a = (T)x, b = (T)y;                                        \
            return uint64_t(EXPRESSION);                                       \
        };                                                                     \
        return (T)cuda_on_cpu::warp_combine(mask, uint64_t(value), combine, line); \
    }
REDUCE(int, add, unsigned(a) + unsigned(b))
REDUCE(unsigned, add, a + b)
REDUCE(int, min, a < b ? a : b)
REDUCE(unsigned, min, a < b ? a : b)
REDUCE(int, max, a > b ? a : b)
REDUCE(unsigned, max, a > b ? a : b)
REDUCE(unsigned, and, a & b)
REDUCE(unsigned, or, a | b)
REDUCE(unsigned, xor, a ^ b)
#undef REDUCE
#undef HERE

[[noreturn]] inline void __trap() { cuda_on_cpu::fail("__trap()"); }

// ---- atomics, for the types that CUDA has them for ----
#define ATOMIC(T, NAME, EXPRESSION)                                             \
    inline T atomic##NAME(T* address, T value) {                                \
        return cuda_on_cpu::atomic(address, [=](T old) { return (T)(EXPRESSION); }); \
    }
#define ATOMIC_INTEGER(T)                              \
    ATOMIC(T, Min, old < value ? old : value)          \
    ATOMIC(T, Max, old > value ? old : value)          \
    ATOMIC(T, And, old & value)                        \
    ATOMIC(T, Or, old | value)                         \
    ATOMIC(T, Xor, old ^ value)
#define ATOMIC_CAS(T)                                                                           \
    inline T atomicCAS(T* address, T expected, T value) {                                       \
        return cuda_on_cpu::atomic(address, [=](T old) { return old == expected ? value : old; }); \
    }
ATOMIC_INTEGER(int)
ATOMIC_INTEGER(unsigned)
ATOMIC_INTEGER(long long)
ATOMIC_INTEGER(unsigned long long)
ATOMIC(int, Add, unsigned(old) + unsigned(value))
ATOMIC(unsigned, Add, old + value)
ATOMIC(unsigned long long, Add, old + value)
ATOMIC(float, Add, old + value)
ATOMIC(double, Add, old + value)
ATOMIC(int, Sub, unsigned(old) - unsigned(value))
ATOMIC(unsigned, Sub, old - value)
ATOMIC(int, Exch, ((void)old, value))
ATOMIC(unsigned, Exch, ((void)old, value))
ATOMIC(unsigned long long, Exch, ((void)old, value))
ATOMIC(float, Exch, ((void)old, value))
ATOMIC_CAS(int)
ATOMIC_CAS(unsigned)
ATOMIC_CAS(unsigned long long)
ATOMIC_CAS(unsigned short)
#undef ATOMIC_CAS
#undef ATOMIC_INTEGER
#undef ATOMIC

// ---- loads and stores with a cache hint ----
#define LOAD(NAME) \
    template <class T> inline T NAME(const T* address) { return *address; }
#define STORE(NAME) \
    template <class T> inline void NAME(T* address, cuda_on_cpu::Same<T> value) { \
        *address = value;                                                         \
    }
LOAD(__ldg) LOAD(__ldca) LOAD(__ldcg) LOAD(__ldcs) LOAD(__ldcv) LOAD(__ldlu)
STORE(__stwb) STORE(__stcg) STORE(__stcs) STORE(__stwt)
#undef LOAD
#undef STORE

// ---- bits ----
inline int __float_as_int(float v) { return cuda_on_cpu::bits<int>(v); }
inline unsigned __float_as_uint(float v) { return cuda_on_cpu::bits<unsigned>(v); }
inline float __int_as_float(int v) { return cuda_on_cpu::bits<float>(v); }
inline float __uint_as_float(unsigned v) { return cuda_on_cpu::bits<float>(v); }
inline long long __double_as_longlong(double v) { return cuda_on_cpu::bits<long long>(v); }
inline double __longlong_as_double(long long v) { return cuda_on_cpu::bits<double>(v); }
inline int __double2hiint(double v) { return int(__double_as_longlong(v) >> 32); }
inline int __double2loint(double v) { return int(__double_as_longlong(v)); }
inline double __hiloint2double(int high, int low) {
    return cuda_on_cpu::bits<double>(uint64_t(unsigned(high)) << 32 | unsigned(low));
}
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline unsigned long long __brevll(unsigned long long v) {
    unsigned long long reversed = 0;
    for (int i = 0; i < 64; ++i) reversed |= (v >> i & 1) << (63 - i);
    return reversed;
}
inline unsigned __brev(unsigned v) { return unsigned(__brevll(v) >> 32); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = selector >> 4 * i, byte = unsigned(bytes >> 8 * (s & 7)) & 0xff;
        result |= (s & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * i;  // 8: replicate the sign
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

// ---- integer arithmetic ----
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline int __mul24(int a, int b) {
    return int((int64_t(int(unsigned(a) << 8) >> 8)) * (int(unsigned(b) << 8) >> 8));
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline unsigned __sad(int a, int b, unsigned c) {
    return (a > b ? unsigned(a) - unsigned(b) : unsigned(b) - unsigned(a)) + c;
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
inline int __dp4a(int a, int b, int c) {
    unsigned sum = unsigned(c);
    for (int i = 0; i < 32; i += 8) sum += unsigned(int8_t(a >> i) * int8_t(b >> i));
    return int(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += uint8_t(a >> i) * uint8_t(b >> i);
    return c;
}

// ---- packed lanes: u4/s4 are four bytes, u2/s2 two halfwords ----
#define PACKED(NAME, LANE, EXPRESSION)                                                      \
    inline unsigned NAME(unsigned x, unsigned y) {                                          \
        return cuda_on_cpu::each<LANE>(x, y, [](LANE a, LANE b) { return (EXPRESSION); });  \
    }
#define PACKED_BOTH(NAME, EXPRESSION)          \
    PACKED(__v##NAME##u4, uint8_t, EXPRESSION) \
    PACKED(__v##NAME##s4, int8_t, EXPRESSION)  \
    PACKED(__v##NAME##u2, uint16_t, EXPRESSION) \
    PACKED(__v##NAME##s2, int16_t, EXPRESSION)
PACKED_BOTH(max, a > b ? a : b)
PACKED_BOTH(min, a < b ? a : b)
PACKED_BOTH(cmpgt, a > b ? -1 : 0)
PACKED_BOTH(cmpge, a >= b ? -1 : 0)
PACKED_BOTH(cmplt, a < b ? -1 : 0)
PACKED_BOTH(cmple, a <= b ? -1 : 0)
PACKED_BOTH(setgt, a > b)
PACKED_BOTH(setge, a >= b)
PACKED_BOTH(absdiff, a > b ? a - b : b - a)
PACKED(__vcmpeq4, uint8_t, a == b ? -1 : 0)
PACKED(__vcmpeq2, uint16_t, a == b ? -1 : 0)
PACKED(__vcmpne4, uint8_t, a != b ? -1 : 0)
PACKED(__vcmpne2, uint16_t, a != b ? -1 : 0)
PACKED(__vadd4, uint8_t, a + b)
PACKED(__vadd2, uint16_t, a + b)
PACKED(__vsub4, uint8_t, a - b)
PACKED(__vsub2, uint16_t, a - b)
PACKED(__vavgu4, uint8_t, (a + b + 1) / 2)
#undef PACKED_BOTH
#undef PACKED
inline unsigned __vimax3_s16x2(unsigned a, unsigned b, unsigned c) {
    return __vmaxs2(__vmaxs2(a, b), c);
}
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) {
    return __vmaxu2(__vmaxu2(a, b), c);
}
inline unsigned __vimin3_s16x2(unsigned a, unsigned b, unsigned c) {
    return __vmins2(__vmins2(a, b), c);
}
inline unsigned __vimin3_u16x2(unsigned a, unsigned b, unsigned c) {
    return __vminu2(__vminu2(a, b), c);
}

// ---- min and max: CUDA's overloads, mixed signs count as unsigned ----
#define MIN_MAX(R, A, B)                                                      \
    inline R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }              \
    inline R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
#define MIN_MAX_INTEGER(S, U) MIN_MAX(S, S, S) MIN_MAX(U, U, U) MIN_MAX(U, S, U) MIN_MAX(U, U, S)
MIN_MAX_INTEGER(int, unsigned)
MIN_MAX_INTEGER(long, unsigned long)
MIN_MAX_INTEGER(long long, unsigned long long)
#undef MIN_MAX_INTEGER
#undef MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline int __vimax3_s32(int a, int b, int c) { return max(max(a, b), c); }
inline unsigned __vimax3_u32(unsigned a, unsigned b, unsigned c) { return max(max(a, b), c); }
inline int __vimin3_s32(int a, int b, int c) { return min(min(a, b), c); }
inline unsigned __vimin3_u32(unsigned a, unsigned b, unsigned c) { return min(min(a, b), c); }

// ---- floating point ----
template <class T> inline T toward_zero(volatile T a, volatile T b) {
    const int mode = fegetround();
    fesetround(FE_TOWARDZERO);
    volatile T product = a * b;
    fesetround(mode);
    return product;
}
inline float __fmul_rz(float a, float b) { return toward_zero(a, b); }
inline double __dmul_rz(double a, double b) { return toward_zero(a, b); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline float rsqrtf(float a) { return float(1 / sqrt(double(a))); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline float __frsqrt_rn(float a) { return rsqrtf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float __exp10f(float a) { return powf(10, a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1) : 0; }

#define CONVERT(FROM, from, TO, to)                                                          \
    inline TO __##from##2##to##_rn(FROM v) { return cuda_on_cpu::saturate<TO>(rint(v)); }    \
    inline TO __##from##2##to##_rz(FROM v) { return cuda_on_cpu::saturate<TO>(trunc(v)); }   \
    inline TO __##from##2##to##_rd(FROM v) { return cuda_on_cpu::saturate<TO>(floor(v)); }   \
    inline TO __##from##2##to##_ru(FROM v) { return cuda_on_cpu::saturate<TO>(ceil(v)); }
CONVERT(float, float, int, int)
CONVERT(float, float, unsigned, uint)
CONVERT(float, float, long long, ll)
CONVERT(float, float, unsigned long long, ull)
CONVERT(double, double, int, int)
CONVERT(double, double, unsigned, uint)
CONVERT(double, double, long long, ll)
CONVERT(double, double, unsigned long long, ull)
#undef CONVERT
inline float __int2float_rn(int v) { return float(v); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline float __ll2float_rn(long long v) { return float(v); }
inline float __ull2float_rn(unsigned long long v) { return float(v); }
inline float __double2float_rn(double v) { return float(v); }
inline double __int2double_rn(int v) { return v; }
inline double __uint2double_rn(unsigned v) { return v; }
inline double __ll2double_rn(long long v) { return double(v); }
inline double __ull2double_rn(unsigned long long v) { return double(v); }
