// Element types: how a stored element becomes a value to compare and add, and how a result is
// rounded back, once. One row for each dtype, the mirror of gpupool/dtypes.py.
//
// CuPy compiles with -ftz=true, which flushes float32 subnormals in every ordinary operation. What
// must be exact is therefore written as PTX without .ftz; the host's plain arithmetic is equal.
#pragma once

template <class V> __host__ __device__ constexpr V least(V a, V b) { return a < b ? a : b; }
template <class V> __host__ __device__ constexpr V most(V a, V b) { return a > b ? a : b; }

template <bool First, class A, class B> struct Either { using Type = A; };
template <class A, class B> struct Either<false, A, B> { using Type = B; };

// Floats of 16 bits. CUDA's headers for them take NVRTC 12 ms, whatever the kernel.
struct Half {
    unsigned short bits;
};
struct BFloat16 {
    unsigned short bits;
};

// Value: what taps are compared and added in. IsInteger: 8-bit. IsHalf: no sum of taps leaves the
// normal numbers of Value.
template <class V, bool IsInteger, bool IsHalf> struct Kind {
    using Value = V;
    static constexpr bool integer = IsInteger, half = IsHalf;
};
template <class T> struct Element;
template <> struct Element<double> : Kind<double, false, false> {};
template <> struct Element<float> : Kind<float, false, false> {};
template <> struct Element<Half> : Kind<float, false, true> {};
template <> struct Element<BFloat16> : Kind<float, false, false> {};
template <> struct Element<signed char> : Kind<int, true, false> {};
template <> struct Element<unsigned char> : Kind<int, true, false> {};

__device__ inline double value(double x) { return x; }
__device__ inline float value(float x) { return x; }
__device__ inline float value(Half x) {
#ifdef __CUDA_ARCH__
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
    return r;
#else
    return __half2float(__ushort_as_half(x.bits));
#endif
}
__device__ inline float value(BFloat16 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    float r;
    asm("cvt.f32.bf16 %0, %1;" : "=f"(r) : "h"(x.bits));
    return r;
#else
    return __uint_as_float(unsigned{x.bits} << 16);
#endif
}
__device__ inline int value(signed char x) { return x; }
__device__ inline int value(unsigned char x) { return x; }

template <class T> __device__ inline typename Element<T>::Value lowest() {
    return -__int_as_float(0x7f800000);
}
template <> __device__ inline int lowest<signed char>() { return -128; }
template <> __device__ inline int lowest<unsigned char>() { return 0; }

// The element of that value. Of 16 bits a constant: no compiler looks through a conversion in PTX.
template <class T> __device__ inline T lowest_element() {
    return static_cast<T>(lowest<T>());
}
template <> __device__ inline Half lowest_element<Half>() { return {0xfc00}; }
template <> __device__ inline BFloat16 lowest_element<BFloat16>() { return {0xff80}; }

// IEEE arithmetic, subnormals included

__device__ inline double widen(double x) { return x; }
__device__ inline double widen(float x) {
#ifdef __CUDA_ARCH__
    double r;
    asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(x));
    return r;
#else
    return x;
#endif
}

__device__ inline float narrow(double x) {
#ifdef __CUDA_ARCH__
    float r;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(r) : "d"(x));
    return r;
#else
    return static_cast<float>(x);
#endif
}

template <class V> __device__ inline V as(double x) {
    if constexpr (sizeof(V) == sizeof(double)) return x;
    else return narrow(x);
}
template <class V> __device__ inline V as(float x) {
    if constexpr (sizeof(V) == sizeof(double)) return widen(x);
    else return x;
}

__device__ inline int add(int a, int b) { return a + b; }
__device__ inline long long add(long long a, long long b) { return a + b; }
__device__ inline double add(double a, double b) { return a + b; }
__device__ inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
    float r;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a + b;
#endif
}

// Under -ftz=true the compiler negates by an addition.
__device__ inline double negative(double x) { return -x; }
__device__ inline float negative(float x) {
#ifdef __CUDA_ARCH__
    float r;
    asm("neg.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return -x;
#endif
}

__device__ inline double multiply(double a, double b) { return a * b; }
__device__ inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
    float r;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a * b;
#endif
}

// Rounded toward zero: what is greater than the greatest number is that.
__device__ inline double multiply_to_zero(double a, double b) { return __dmul_rz(a, b); }
__device__ inline float multiply_to_zero(float a, float b) {
#ifdef __CUDA_ARCH__
    float r;
    asm("mul.rz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return __fmul_rz(a, b);
#endif
}

__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ inline float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    float r;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
    return r;
#else
    return fmaf(a, b, c);
#endif
}

__device__ inline double divide(double a, double b) { return a / b; }
__device__ inline float divide(float a, float b) {
#ifdef __CUDA_ARCH__
    float r;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a / b;
#endif
}

// In float32 the last bit may be wrong.
__device__ inline double reciprocal(double x) { return 1 / x; }
__device__ inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return 1 / x;
#endif
}

// A sum of powers that is neither lost nor infinite, from 2^-101 on: ptxas's own steps without the
// branch for other numbers. Of 0 and infinity it is NaN, on the host as well.
__device__ inline double square_root(double x) { return sqrt(x); }
__device__ inline float square_root(float x) {
#ifdef __CUDA_ARCH__
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    float root = multiply(x, r);
    return multiply_add(multiply_add(negative(root), root, x), multiply(r, 0.5f), root);
#else
    return x > 0 && x < INFINITY ? sqrt(x) : NAN;
#endif
}

// Of any float, 0 and infinity too. The last bit may be wrong.
__device__ inline float rough_square_root(float x) {
#ifdef __CUDA_ARCH__
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return sqrt(x);
#endif
}

// Divisors. One that the compiler knows:
template <int N> struct Exactly {
    __device__ constexpr operator int() const { return N; }
};
// A number of taps from 1 to Most, no more than 2^16:
template <int Most> struct Few {
    float count, inverse;
    __device__ explicit Few(float taps) : count(taps), inverse(reciprocal(taps)) {}
    __device__ operator int() const { return static_cast<int>(count); }
};
// One of a table, with its reciprocal rounded to both types, and in two floats of one sign, so that an
// infinity stays one.
struct Share {
    float below, rest, inverse, count;
    double precise;
    __host__ __device__ constexpr explicit Share(int taps = 1)
        : below(1.0f / taps), rest(0), inverse(1.0f / taps), count(taps), precise(1.0 / taps) {
        if (double(below) * taps >= 1) below -= below / (1 << 24);
        rest = float((1 - double(below) * taps) / taps);
    }
};
// Whether a count is below a bound, as its type may tell: a constant then.
template <int Bound, class Count> __device__ inline bool fewer_than(Count count) { return count < Bound; }
template <int Bound, int Most> __device__ inline bool fewer_than(Few<Most> count) {
    return Most < Bound || count < Bound;
}

// Means of fewer bytes than these are rounded right by two additions.
constexpr int mean_taps = 2048;

// The tables: of every number of taps that count along the outer axes of a window and along its rows.
template <int Above, int Along> struct Shares {
    static_assert(Above * Along < mean_taps, "mean_of_bytes rounds right");
    Share of[Above + 1][Along + 1];
    __host__ __device__ constexpr Shares() : of() {
        for (int a = 1; a <= Above; ++a)
            for (int b = 1; b <= Along; ++b) of[a][b] = Share(a * b);
    }
};
template <int Above, int Along> __constant__ constexpr Shares<Above, Along> share_table{};

template <class V, class Count> __device__ inline V quotient(V a, Count count) {
    return divide(a, static_cast<V>(count));
}

// Multiplied by the reciprocal and corrected by the remainder: the rounding of a division whose
// quotient is normal.
template <class V> __device__ inline V corrected(V a, V divisor, V reciprocal) {
    V q = multiply(a, reciprocal);
    return multiply_add(multiply_add(negative(q), divisor, a), reciprocal, q);
}
__device__ inline float quotient(float a, Share count) {
    return corrected(a, count.count, count.inverse);
}
__device__ inline double quotient(double a, Share count) {
    return corrected(a, widen(count.count), count.precise);
}
// A quotient by so few is never nearer than 2^-17 of their distance to the middle of two floats: more
// than the reciprocal's last bit makes of the correction.
template <int Most> __device__ inline float quotient(float a, Few<Most> count) {
    return corrected(a, count.count, count.inverse);
}
// One step of Newton squares the reciprocal's error, 2^-22.
template <int Most> __device__ inline double quotient(double a, Few<Most> count) {
    const double divisor = widen(count.count), inverse = widen(count.inverse);
    const double lost = multiply_add(-divisor, inverse, 1.0);
    return corrected(a, divisor, multiply_add(lost, inverse, inverse));
}
template <class V, int N> __device__ inline V quotient(V a, Exactly<N>) {
    constexpr V inverse = V(1) / V(N);
    if constexpr ((N & (N - 1)) == 0) return multiply(a, inverse);
    else return corrected(a, V(N), inverse);
}

__device__ inline double magnitude(double x) { return fabs(x); }
__device__ inline float magnitude(float x) { return __uint_as_float(__float_as_uint(x) & 0x7fffffffu); }

// The natural logarithm of a positive normal number, to some digits.
__device__ inline float rough_logarithm(float x) { return __logf(x); }
__device__ inline double rough_logarithm(double x) {
    const int high = __double2hiint(x);
    const float mantissa = __int_as_float((high & 0xfffff) << 3 | 0x3f800000);
    return widen(0.6931472f * (static_cast<float>((high >> 20) - 1023) + __log2f(mantissa)));
}

template <class Value> __device__ inline bool finite(Value x) {
    return fabs(x) < __int_as_float(0x7f800000);
}

template <class V> __device__ inline V power_of_two(int exponent) {
    if constexpr (sizeof(V) == sizeof(double)) return __hiloint2double((1023 + exponent) << 20, 0);
    else return __int_as_float((127 + exponent) << 23);
}
// The greatest number, and half of what lies between 1 and the next one.
template <class V> __device__ inline V greatest() {
    return static_cast<V>(sizeof(V) == sizeof(double) ? 1.7976931348623157e308 : 3.4028234663852886e38);
}
template <class V> __device__ inline V rounding() {
    return static_cast<V>(sizeof(V) == sizeof(double) ? 1.1102230246251565e-16 : 5.9604644775390625e-8);
}

// The power of two by which a positive x is divided to lie from 2^-52 to 4, and its reciprocal.
struct Scale {
    double up, down;
    __device__ explicit Scale(double x) {
        const int exponent = most(__double2hiint(x) & 0x7ff00000, 0x00100000);
        const int reciprocal = most(0x7fe00000 - exponent, 0x00100000);
        up = __hiloint2double(0x7fe00000 - reciprocal, 0);
        down = __hiloint2double(reciprocal, 0);
    }
};

// A quotient of a sum that is normal, zero, infinite or NaN. By a reciprocal in two parts: the distance
// of a quotient by so small a number from the middle of two floats is more than what is lost.
template <class Count> __device__ inline float normal_quotient(float a, Count count) {
    return divide(a, static_cast<float>(count));
}
template <int Most> __device__ inline float normal_quotient(float a, Few<Most> count) {
    float q = multiply(a, count.inverse);
    // The remainder of an infinity is NaN, which loses against any number.
    float remainder = fmaxf(multiply_add(negative(q), count.count, a), -greatest<float>());
    return multiply_add(remainder, count.inverse, q);
}
// Of integers none is infinite.
template <int Most> __device__ inline float normal_quotient(int a, Few<Most> count) {
    const float sum = static_cast<float>(a), q = multiply(sum, count.inverse);
    return multiply_add(multiply_add(negative(q), count.count, sum), count.inverse, q);
}
__device__ inline float normal_quotient(float a, Share count) {
    return multiply_add(a, count.below, multiply(a, count.rest));
}
template <int N> __device__ inline float normal_quotient(float a, Exactly<N>) {
    if constexpr ((N & (N - 1)) == 0) return multiply(a, 1.0f / N);
    constexpr Share share(N);
    return normal_quotient(a, share);
}

// The mean of bytes, rounded to the nearest integer, from the middle to the even one; its lowest byte counts.
template <class Sum, class Count> __device__ inline int mean_of_bytes(Sum a, Count count) {
    // Below 2^15 taps a float32 quotient never lands on a half that is not one.
    if (fewer_than<32768>(count)) return __float2int_rn(normal_quotient(static_cast<int>(a), count));
    return __double2int_rn(quotient(static_cast<double>(a), count));
}
// An addition rounds it to a multiple of 2^-12: halves exactly, as reciprocals are right to 2^-21, and no
// other mean to a half. The next one rounds that to an integer.
__device__ inline int mean_of_bytes(int a, Share count) {
    constexpr float fine = 3072, coarse = 12582912;  // numbers near them are multiples of 2^-12 and of 1
    const float nearest = multiply_add(static_cast<float>(a), count.inverse, fine);
    return __float_as_int(add(nearest, coarse - fine));
}
template <int N> __device__ inline int mean_of_bytes(int a, Exactly<N>) {
    static_assert(N < mean_taps, "rounds right");
    if constexpr ((N & (N - 1)) == 0)
        return __float_as_int(multiply_add(static_cast<float>(a), 1.0f / N, 12582912));
    constexpr Share share(N);
    return mean_of_bytes(a, share);
}

// Integers in the order of the elements, of 16 bits where those have no more: both zeros are the same
// one, and NaN is the greatest. Of magnitude and sign: 0, or -1 of what is negative.
template <class V> __device__ inline V in_order(V magnitude, V sign, bool nan, V greatest) {
    const V ordered = (magnitude ^ sign) - sign;
    return nan ? greatest : ordered;
}
// Unsigned, with zero in the middle: the highest bit is one more of the magnitude.
__device__ inline unsigned long long in_order(double x) {
    const unsigned long long bits = __double_as_longlong(x), highest = 1ull << 63;
    const unsigned sign = static_cast<int>(bits >> 32) >> 31;
    return in_order(bits | highest, static_cast<unsigned long long>(sign) << 32 | sign, x != x, ~0ull);
}
__device__ inline int in_order(float x) {
    const int bits = __float_as_int(x), greatest = 0x7fffffff;
    return in_order(bits & greatest, bits >> 31, x != x, greatest);
}
__device__ inline int in_order(Half x) {
    const int magnitude = x.bits & 0x7fff;
    return in_order(magnitude, -(x.bits >> 15), magnitude > 0x7c00, 0x7fff);
}
__device__ inline int in_order(BFloat16 x) {
    const int magnitude = x.bits & 0x7fff;
    return in_order(magnitude, -(x.bits >> 15), magnitude > 0x7f80, 0x7fff);
}
__device__ inline int in_order(signed char x) { return x; }
__device__ inline int in_order(unsigned char x) { return x; }

// Whether a is less than b, each with 32 bits more below it or without: by what their difference borrows.
// Of `a < b ? b : a` the compiler makes a maximum, which compares once more.
__device__ inline bool less(unsigned long long a, unsigned below_a, unsigned long long b, unsigned below_b) {
#ifdef __CUDA_ARCH__
    unsigned borrowed;
    asm("{ .reg .u32 low; .reg .u64 high;\n\t"
        "sub.cc.u32 low, %2, %4;\n\t"
        "subc.cc.u64 high, %1, %3;\n\t"
        "subc.u32 %0, 0, 0; }"
        : "=r"(borrowed) : "l"(a), "r"(below_a), "l"(b), "r"(below_b));
    return borrowed != 0;
#else
    return a < b || (a == b && below_a < below_b);
#endif
}
__device__ inline bool less(unsigned long long a, unsigned long long b) {
#ifdef __CUDA_ARCH__
    unsigned borrowed;
    asm("{ .reg .u64 high;\n\t"
        "sub.cc.u64 high, %1, %2;\n\t"
        "subc.u32 %0, 0, 0; }"
        : "=r"(borrowed) : "l"(a), "l"(b));
    return borrowed != 0;
#else
    return a < b;
#endif
}

// A word of 128 bits: a key, and what decides between equal ones. That is 32 bits, held as wide as the
// key, so that one access moves both.
struct alignas(16) Placed {
    unsigned long long key, held;

    __device__ unsigned in_front() const { return unsigned(held); }
};
__device__ inline Placed chosen(bool first, Placed a, Placed b) {
    return {first ? a.key : b.key, unsigned(first ? a.held : b.held)};
}
__device__ inline Placed most(Placed a, Placed b) {
    return chosen(less(a.key, a.in_front(), b.key, b.in_front()), b, a);
}

// Whether v takes the place of best: it is greater, or the first NaN.
__device__ inline bool displaces(int v, int best) { return v > best; }
__device__ inline bool displaces(double v, double best) { return !(v <= best) && best == best; }
__device__ inline bool displaces(float v, float best) {
#ifdef __CUDA_ARCH__
    int r;
    asm("{ .reg .pred p;\n\t"
        "setp.num.f32 p, %2, %2;\n\t"
        "setp.gtu.and.f32 p, %1, %2, p;\n\t"
        "selp.s32 %0, 1, 0, p; }"
        : "=r"(r) : "f"(v), "f"(best));
    return r != 0;
#else
    return !(v <= best) && best == best;
#endif
}

__device__ inline int maximum(int a, int b) { return a > b ? a : b; }
__device__ inline double maximum(double a, double b) { return displaces(b, a) ? b : a; }
__device__ inline float maximum(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return displaces(b, a) ? b : a;
#endif
}

// Rounding to the stored type, once

template <class T> struct Round;
template <> struct Round<double> {
    __device__ static double from(double x) { return x; }
};
template <> struct Round<float> {
    __device__ static float from(float x) { return x; }
    __device__ static float from(double x) { return narrow(x); }
};
template <> struct Round<Half> {
    __device__ static Half from(float x) {
#ifdef __CUDA_ARCH__
        Half r;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
        return r;
#else
        return {__half_as_ushort(__float2half_rn(x))};
#endif
    }
    __device__ static Half from(double x) {
#ifdef __CUDA_ARCH__
        Half r;
        asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r.bits) : "d"(x));
        return r;
#else
        return {__half_as_ushort(__double2half(x))};
#endif
    }
};
template <> struct Round<BFloat16> {
    __device__ static BFloat16 from(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        BFloat16 r;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
        return r;
#else
        unsigned word = __float_as_uint(x), kept = word >> 16, lost = word << 16;
        bool nan = (word & 0x7fffffffu) > 0x7f800000u, up = lost > 0x80000000u - (kept & 1);
        return {static_cast<unsigned short>(nan ? 0x7fff : kept + up)};
#endif
    }
    // By way of a float, truncated, and odd where that lost anything: no tie that was none.
    __device__ static BFloat16 from(double x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        BFloat16 r;
        asm("cvt.rn.bf16.f64 %0, %1;" : "=h"(r.bits) : "d"(x));
        return r;
#else
        float nearest = narrow(x);
        double wide = widen(nearest);
        unsigned word = __float_as_uint(nearest) - (fabs(wide) > fabs(x));
        return from(__uint_as_float(word | (wide < x || wide > x)));
#endif
    }
};
template <> struct Round<signed char> {
    __device__ static signed char from(int x) { return static_cast<signed char>(x); }
};
template <> struct Round<unsigned char> {
    __device__ static unsigned char from(int x) { return static_cast<unsigned char>(x); }
};

// Elements as memory holds them: side by side, in 32-bit words

template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T element[N];
};

// Reads an element of global memory that nothing writes. 16 bits in PTX: for the address of a member
// the compiler takes more instructions.
template <class T> __device__ inline T load(const T* from) {
    if constexpr (sizeof(T) != 2) {
        return __ldg(from);
    } else {
        T r;
#ifdef __CUDA_ARCH__
        asm("ld.global.nc.b16 %0, [%1];" : "=h"(r.bits) : "l"(from));
#else
        r.bits = __ldg(&from->bits);
#endif
        return r;
    }
}

// Reads Bytes of global memory: 1, 2, 4, 8 or a multiple of 16, as aligned as they are many.
template <int Bytes> __device__ inline void load_words(const void* from, unsigned* word) {
    if constexpr (Bytes == 1) {
        word[0] = __ldg(static_cast<const unsigned char*>(from));
    } else if constexpr (Bytes == 2) {
        word[0] = __ldg(static_cast<const unsigned short*>(from));
    } else if constexpr (Bytes == 4) {
        word[0] = __ldg(static_cast<const unsigned*>(from));
    } else if constexpr (Bytes == 8) {
        uint2 v = __ldg(static_cast<const uint2*>(from));
        word[0] = v.x, word[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < Bytes / 4; i += 4) {
            const uint4 v = __ldg(static_cast<const uint4*>(from) + i / 4);
            memcpy(word + i, &v, sizeof v);
        }
    }
}

__device__ inline unsigned bits(signed char x) { return static_cast<unsigned char>(x); }
__device__ inline unsigned bits(unsigned char x) { return x; }
__device__ inline unsigned bits(Half x) { return x.bits; }
__device__ inline unsigned bits(BFloat16 x) { return x.bits; }
__device__ inline unsigned bits(float x) { return __float_as_uint(x); }

// The sign, the exponent and the first digits of a float.
__device__ inline unsigned leading_bits(float x) { return bits(x); }
__device__ inline unsigned leading_bits(double x) { return __double2hiint(x); }

// Word `i` of memory that holds nothing but x.
template <class T> __device__ inline unsigned repeated(T x, int) {
    return bits(x) * (sizeof(T) == 1 ? 0x01010101u : sizeof(T) == 2 ? 0x00010001u : 1u);
}
__device__ inline unsigned repeated(double x, int i) {
    return i % 2 ? __double2hiint(x) : __double2loint(x);
}

// Reads words as load_words does where they are readable, else padding. One instruction: a branch around
// each load costs the compiler more time than all the rest, and so do words that go in and come out.
template <int Bytes, class T>
__device__ inline void load_words_or(T padding, bool readable, const void* from, unsigned* word) {
    const unsigned even = repeated(padding, 0), odd = repeated(padding, 1);
#ifdef __CUDA_ARCH__
    if constexpr (Bytes == 1) {
        asm("{ .reg .pred p;\n\t.reg .b32 w;\n\tsetp.ne.b32 p, %1, 0;\n\tmov.b32 w, %3;\n\t"
            "@p ld.global.nc.u8 w, [%2];\n\tmov.b32 %0, w; }"
            : "=r"(word[0]) : "r"(int(readable)), "l"(from), "r"(even));
    } else if constexpr (Bytes == 2) {
        asm("{ .reg .pred p;\n\t.reg .b32 w;\n\tsetp.ne.b32 p, %1, 0;\n\tmov.b32 w, %3;\n\t"
            "@p ld.global.nc.u16 w, [%2];\n\tmov.b32 %0, w; }"
            : "=r"(word[0]) : "r"(int(readable)), "l"(from), "r"(even));
    } else if constexpr (Bytes == 4) {
        asm("{ .reg .pred p;\n\t.reg .b32 w;\n\tsetp.ne.b32 p, %1, 0;\n\tmov.b32 w, %3;\n\t"
            "@p ld.global.nc.u32 w, [%2];\n\tmov.b32 %0, w; }"
            : "=r"(word[0]) : "r"(int(readable)), "l"(from), "r"(even));
    } else if constexpr (Bytes == 8) {
        asm("{ .reg .pred p;\n\t.reg .b32 w<2>;\n\tsetp.ne.b32 p, %2, 0;\n\t"
            "mov.b32 w0, %4;\n\tmov.b32 w1, %5;\n\t@p ld.global.nc.v2.u32 {w0, w1}, [%3];\n\t"
            "mov.b32 %0, w0;\n\tmov.b32 %1, w1; }"
            : "=r"(word[0]), "=r"(word[1]) : "r"(int(readable)), "l"(from), "r"(even), "r"(odd));
    } else {
#pragma unroll
        for (int i = 0; i < Bytes / 4; i += 4)
            asm("{ .reg .pred p;\n\t.reg .b32 w<4>;\n\tsetp.ne.b32 p, %4, 0;\n\t"
                "mov.b32 w0, %6;\n\tmov.b32 w1, %7;\n\tmov.b32 w2, %6;\n\tmov.b32 w3, %7;\n\t"
                "@p ld.global.nc.v4.u32 {w0, w1, w2, w3}, [%5];\n\t"
                "mov.b32 %0, w0;\n\tmov.b32 %1, w1;\n\tmov.b32 %2, w2;\n\tmov.b32 %3, w3; }"
                : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
                : "r"(int(readable)), "l"(static_cast<const uint4*>(from) + i / 4), "r"(even), "r"(odd));
    }
#else
    for (int i = 0; i < (Bytes + 3) / 4; ++i) word[i] = i % 2 ? odd : even;
    if (readable) load_words<Bytes>(from, word);
#endif
}

// One byte of a word: selector 0xsssn takes byte n, and fills with its sign (8 + n) or zero (4).
__device__ inline int byte(unsigned word, unsigned selector) {
#ifdef __CUDA_ARCH__
    int r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(word), "r"(selector));
    return r;
#else
    unsigned low = word >> 8 * (selector % 4) & 0xff;
    return selector & 0x8000 ? static_cast<signed char>(low) : static_cast<int>(low);
#endif
}

// The value of element `i` of consecutive words.
template <class T> struct Words;
template <> struct Words<signed char> {
    __device__ static int value(const unsigned* w, int i) {
        return byte(w[i / 4], i % 4 * 0x1111 + 0x8880);
    }
};
template <> struct Words<unsigned char> {
    __device__ static int value(const unsigned* w, int i) {
        return byte(w[i / 4], i % 4 + 0x4440);
    }
};
template <> struct Words<Half> {
    __device__ static float value(const unsigned* w, int i) {
        return ::value(Half{static_cast<unsigned short>(w[i / 2] >> 16 * (i % 2))});
    }
};
template <> struct Words<BFloat16> {
    __device__ static float value(const unsigned* w, int i) {
        return __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
    }
};
template <> struct Words<float> {
    __device__ static float value(const unsigned* w, int i) { return __uint_as_float(w[i]); }
};
template <> struct Words<double> {
    __device__ static double value(const unsigned* w, int i) {
        return __hiloint2double(w[2 * i + 1], w[2 * i]);
    }
};

// What takes a byte out of a word in a sum of products: not constexpr, for ptxas would make each anew at
// every use.
template <class T> __constant__ unsigned byte_factors[4] = {1u, 1u << 8, 1u << 16, 1u << 24};

// The sum of a and of byte `i` of consecutive words.
template <class T> __device__ inline int add_byte(int a, const unsigned* w, int i) {
#ifdef __CUDA_ARCH__
    int r;
    const unsigned factor = byte_factors<T>[i % 4];
    if constexpr (static_cast<T>(-1) < 0)
        asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(w[i / 4]), "r"(factor), "r"(a));
    else
        asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(w[i / 4]), "r"(factor), "r"(a));
    return r;
#else
    return a + Words<T>::value(w, i);
#endif
}

// Elements in the halves of words, where two maxima merge at once: 16-bit ones as they are, 8-bit ones
// unsigned, in the order of their values.
template <class T, int Bytes = sizeof(T)> struct Halves;
template <class T> struct Halves<T, 2> {
    // Elements i and i + 1 of consecutive words, i even.
    __device__ static unsigned pair(const unsigned* w, int i) { return w[i / 2]; }
    // Element i of those words and of others.
    __device__ static unsigned beside(const unsigned* w, const unsigned* other, int i) {
        return __byte_perm(w[i / 2], other[i / 2], i % 2 ? 0x7632 : 0x5410);
    }
    __device__ static unsigned beside(T low, T high) { return bits(low) | bits(high) << 16; }
    __device__ static T element(unsigned pair, int half) {
        return {static_cast<unsigned short>(pair >> 16 * half)};
    }
    template <int Pairs> __device__ static void store(const Pack<unsigned, Pairs>& pairs, T* to) {
        *reinterpret_cast<Pack<unsigned, Pairs>*>(to) = pairs;
    }
};
template <class T> struct Halves<T, 1> {
    static constexpr unsigned sign = static_cast<T>(-1) < 0 ? 0x80808080u : 0;

    __device__ static unsigned pair(const unsigned* w, int i) {
        return __byte_perm(w[i / 4] ^ sign, 0, i % 4 ? 0x4342 : 0x4140);
    }
    __device__ static unsigned beside(const unsigned* w, const unsigned* other, int i) {
        const unsigned both = __byte_perm(w[i / 4], other[i / 4], i % 4 < 2 ? 0x5140 : 0x7362);
        return pair(&both, i % 2 * 2);
    }
    __device__ static unsigned beside(T low, T high) {
        return (bits(low) | bits(high) << 16) ^ (sign & 0x00800080u);
    }
    __device__ static T element(unsigned pair, int half) {
        return static_cast<T>((pair ^ sign) >> 16 * half);
    }
    template <int Pairs> __device__ static void store(const Pack<unsigned, Pairs>& pairs, T* to) {
        if constexpr (Pairs == 1) {
            const unsigned word = __byte_perm(pairs.element[0], 0, 0x4420) ^ sign;
            *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(word);
        } else {
            Pack<unsigned, Pairs / 2> words;
#pragma unroll
            for (int i = 0; i < Pairs; i += 2)
                words.element[i / 2] = __byte_perm(pairs.element[i], pairs.element[i + 1], 0x6420) ^ sign;
            *reinterpret_cast<Pack<unsigned, Pairs / 2>*>(to) = words;
        }
    }
};

// Elements of global memory side by side in the halves of a word.
template <class T> __device__ inline unsigned load_beside(const T* low, const T* high) {
    if constexpr (sizeof(T) == 2) {
        return Halves<T>::beside(load(low), load(high));
    } else {  // unsigned: of others the copies of a sign would have to be taken off
        using Byte = unsigned char;
        const auto byte = [](const T* from) { return load(reinterpret_cast<const Byte*>(from)); };
        return Halves<Byte>::beside(byte(low), byte(high)) ^ (Halves<T>::sign & 0x00800080u);
    }
}

// So many results of a row: whole parts, as they lie, which costs the compiler less time than a copy.
template <int Store, class T, int Many>
__device__ inline void store_parts(const Pack<T, Many>& results, T* y, int many) {
    using Part = Pack<T, Store>;
#pragma unroll
    for (int v = 0; v < Many; v += Store)
        if (v < many) *reinterpret_cast<Part*>(y + v) = reinterpret_cast<const Part&>(results.element[v]);
}
// One half of so many words.
template <int Store, class T, int Many>
__device__ inline void store_halves(const Pack<unsigned, Many>& words, bool high, T* y, int many) {
#pragma unroll
    for (int v = 0; v < Many; v += Store) {
        if (v >= many) continue;
        if constexpr (Store == 1) {
            y[v] = Halves<T>::element(words.element[v], high);
        } else {
            Pack<unsigned, Store / 2> pairs;
#pragma unroll
            for (int i = 0; i < Store; i += 2)
                pairs.element[i / 2] = __byte_perm(words.element[v + i], words.element[v + i + 1],
                                                   high ? 0x7632 : 0x5410);
            Halves<T>::store(pairs, y + v);
        }
    }
}

// Both halves of so many words, which are neighbours.
template <int Store, class T, int Many>
__device__ inline void store_pairs(const Pack<unsigned, Many>& words, T* y, int many) {
    if constexpr (Store == 1) {
#pragma unroll
        for (int v = 0; v < 2 * Many; ++v)
            if (v < many) y[v] = Halves<T>::element(words.element[v / 2], v % 2);
    } else {
#pragma unroll
        for (int v = 0; v < 2 * Many; v += Store)
            if (v < many)
                Halves<T>::store(reinterpret_cast<const Pack<unsigned, Store / 2>&>(words.element[v / 2]), y + v);
    }
}

// The maxima of two pairs in halves of words, NaN winning. 8-bit elements are subnormal numbers there.
template <class T> __device__ inline unsigned maximum_of_pairs(unsigned a, unsigned b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned r;
    if constexpr (Element<T>::half || Element<T>::integer)
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    else
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
#else
    if constexpr (Element<T>::integer) {
        return (most(a, b) & 0xffff0000u) | most(a & 0xffffu, b & 0xffffu);
    } else {
        unsigned low = bits(Round<T>::from(maximum(Words<T>::value(&a, 0), Words<T>::value(&b, 0))));
        unsigned high = bits(Round<T>::from(maximum(Words<T>::value(&a, 1), Words<T>::value(&b, 1))));
        return low | high << 16;
    }
#endif
}

// Asks for memory before it is read: what arrives in the second cache keeps no register.
template <class T> __device__ inline void prefetch(const T* p) {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// Keeps the compiler from computing an address or a number again at every use.
template <class T> __device__ inline const T* pinned(const T* p) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+l"(p));
#endif
    return p;
}
__device__ inline float pinned(float x) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+f"(x));
#endif
    return x;
}
__device__ inline int pinned(int x) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(x));
#endif
    return x;
}
