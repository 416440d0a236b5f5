// What separable.cuh and strips.cu share: how the partial results of large windows merge, and the taps
// that these have along an axis. Outputs are counted as if strides were 1.
#pragma once
#include "window.cuh"

// Taps of a window along one axis from `begin` on and before `end`; none are a number below 1.
__device__ inline int between(int begin, int end, const Axis<int>& axis, int output) {
    int first = output - axis.pad_begin;
    return least(first + axis.kernel, end) - most(first, begin);
}
__device__ inline int valid(const Axis<int>& axis, int output) {
    return between(0, axis.size, axis, output);
}
// Those that count; none count as one.
__device__ inline int counted(const Axis<int>& axis, int output) {
    return most(between(axis.count_begin, axis.count_end, axis, output), 1);
}

// One output again, tap by tap.
template <class T> struct Again {
    const Axis<int>&outer, &inner;
    const T* plane;
    int row, column;  // of the first tap

    template <class Op> __device__ typename Op::Accumulator operator()(const Op& op) const {
        auto a = op.start();
        int r = row, c = column;
#pragma unroll 1
        for (int i = 0; i < outer.kernel * inner.kernel; ++i, ++c) {
            if (c == column + inner.kernel) c = column, ++r;
            if (!within(r, outer.size) || !within(c, inner.size)) continue;
            a = op.merge(a, op.lift(value(plane[r * outer.step + c * inner.step]), i));
        }
        return a;
    }
    __device__ bool any(bool wanted) const { return wanted; }
};

// What shared memory holds: partial results, or two in a word.
//
// Where a sum of P-th powers overflows or loses small terms, the tile or strip is reduced again, with its taps
// multiplied by a power of two: by greater ones while small terms are lost, then by smaller ones while
// sums overflow. The next power serves where the one before did not: a sum of at most 2^16 powers that
// is too small for one is not too great for the next. With the greatest one the P-th power of every
// tap but 0 is a normal number, and with the least one no sum of finite taps overflows.
template <class Op> struct Merged : Held<Op>::Type {
    using Base = typename Held<Op>::Type;
    using typename Base::Accumulator;
    using typename Base::Out;
    static constexpr int P = Op::powers, greater = most(P - 1, 0), smaller = P == 1 ? 1 : greater;
    static constexpr int passes = 1 + greater + smaller;
    int exponent = 0;
    typename Either<(P > 0), Accumulator, int>::Type scale = 1;  // two to that power
    typename Op::Doubts doubts;             // about this thread's sums
    bool lost = false, overflowed = false;  // any of them in the first pass

    using Base::Base, Base::merge;

    // Whether a further pass may make sums certain.
    __device__ bool wanted(int pass) {
        if constexpr (P > 0)
            if (pass == 1) lost = Op::lost(doubts), overflowed = Op::overflowed(doubts);
        return pass <= greater ? lost : overflowed;
    }

    __device__ void rescale(int pass) {
        constexpr bool wide = sizeof(Accumulator) == sizeof(double);
        constexpr int once = P == 1 ? 64 : P == 2 ? wide ? 640 : 107 : wide ? 600 : 64;
        constexpr int twice = wide ? 1000 : 124;
        exponent = greater > 1 && pass % 2 == 0 ? twice : once;
        if (pass > greater) exponent = -exponent;
        if constexpr (P > 0) scale = power_of_two<Accumulator>(exponent);
    }

    // Its place matters for Indices only.
    template <class Tap> __device__ Accumulator accumulate(Accumulator a, Tap tap, unsigned place = 0) const {
        if constexpr (P == 0) {
            return this->merge(a, alone(tap, place));
        } else if constexpr (P == 1) {
            return multiply_add(this->lift(tap, 0), scale, a);
        } else {
            const Accumulator scaled = multiply(tap, scale);
            if constexpr (P == 2) return multiply_add(scaled, scaled, a);
            else return multiply_add(multiply(scaled, scaled), magnitude(scaled), a);
        }
    }

    // A tap that nothing was merged with.
    template <class Tap> __device__ Accumulator alone(Tap tap, unsigned place) const {
        static_assert(P == 0);
        if constexpr (Op::pairs) return tap;
        else return this->lift(tap, place);
    }

    // The same of many, side by side.
    template <int Many> __device__ Pack<Accumulator, Many> nothing() const {
        Pack<Accumulator, Many> all;
#pragma unroll
        for (int i = 0; i < Many; ++i) all.element[i] = this->start();
        return all;
    }
    template <int Many>
    __device__ void merge(Pack<Accumulator, Many>& a, const Pack<Accumulator, Many>& b) const {
#pragma unroll
        for (int i = 0; i < Many; ++i) a.element[i] = merge(a.element[i], b.element[i]);
    }
    template <class Tap, int Many>
    __device__ void accumulate(Pack<Accumulator, Many>& a, const Pack<Tap, Many>& taps) const {
#pragma unroll
        for (int i = 0; i < Many; ++i) a.element[i] = accumulate(a.element[i], taps.element[i]);
    }

    __device__ void watch(Accumulator a) {
        if constexpr (P > 0) Op::watch(doubts, a);
    }

    // Of sums in floats the root knows nothing of 0 and infinity, whose places no other pass takes.
    static constexpr bool rooted = P == 2 && sizeof(Accumulator) == sizeof(float);
    __device__ bool doubted() const {
        if constexpr (rooted) return Op::lost(doubts) || Op::overflowed(doubts);
        else return false;
    }
    template <class Sum> __device__ Out of_any(Sum a, Out result) const {
        if constexpr (rooted) return a > 0 && finite(a) ? result : Round<Out>::from(a);
        else return result;
    }
    template <class Sum, class Count> __device__ Out finish_any(Sum a, Count count) const {
        return of_any(a, Base::finish(a, count));
    }
    // The result of a sum that was made again. What rounds beyond the greatest number is that.
    template <class Count> __device__ Out restored(Accumulator a, Count count) const {
        const Accumulator result = this->unrounded(a, count), back = power_of_two<Accumulator>(-exponent);
        const bool small = greater > 0 && exponent > 0;
        const Accumulator right = small ? multiply(result, back) : multiply_to_zero(result, back);
        return Round<Out>::from(finite(a) ? right : a);
    }
    // The greatest sum of a finite result, as far as the roundings of merges, of as many taps down and
    // along a row, and of powers may have carried it.
    __device__ Accumulator limit(int taps) const {
        if constexpr (P == 0) {
            return 0;
        } else {
            const Accumulator sum = accumulate(0, greatest<Accumulator>());
            return sum + sum * ((taps + 2 * P) * rounding<Accumulator>());
        }
    }
    // Whether it takes the place of the result so far. Taps of averages may cancel each other, so that
    // only the first result tells whether anything overflowed.
    __device__ bool replaces(Out result, Accumulator a, Accumulator limit) const {
        if constexpr (Op::counts) return !finite(value(result));
        else return this->certain(a) && a <= limit;
    }
};
