// The operators: each is what a tap is worth, how two partial results merge, and the result.
//
//   start()                   nothing seen yet; merging it changes nothing
//   lift(v, code)             one tap; code numbers the valid taps of the window, row-major
//   merge(a, b)               both together; in ArgMax the codes decide between equal maxima
//   certain(a)                whether finish is accurate: no overflow, no lost small terms
//   doubt(d, a)               the same for many, from d = 0 on: doubtful(d) unless all are certain
//   finish(a, count)          the result, rounded once
//   careful(traverse, count)  the result where it is not: traverse(op) reduces the window again
//   unrounded(a, count)       the result before it is rounded
//   powers                    P where a is a sum of P-th powers that is not always certain, else 0
//   watch(doubts, a)          what many sums may need: lost(doubts) where small terms may be lost,
//                             overflowed(doubts) where one is too great
//   padding()                 an element whose lift is start()
//   repeats                   merging a tap twice changes nothing, nor does it matter which
//   flight                    taps that are worth loading at once; slow: no more than one
//   rare                      a second look: loops over taps need not be unrolled
//   merge_pairs(a, b)         two elements in the halves of a word at once, where pairs is set; or two
//                             sums of paired_taps at most, which apart(pair, half, taps) takes out
//
// Threads that share a window look again together: traverse.any(wanted).
#pragma once
#include "element.cuh"

// Numbers that LpPool needs at run time: p, its reciprocal as the sum's type holds it and what that
// rounding lost; the part of a norm that roundings leave; and which sums are accurate and have normal
// roots, by their leading 32 bits: so many from `least` on.
struct Norm {
    double p, exponent, slip, at_least;
    unsigned least, accurate;
};

// What an operator is unless it says otherwise; Index is what no kernel stores then.
struct OperatorDefaults {
    using Index = long long;
    static constexpr bool indices = false, rare = false, slow = false, repeats = false;
    static constexpr int flight = 4, powers = 0, paired_taps = 0;
    struct Doubts {};
};

template <class T> struct Max : OperatorDefaults {
    using Element = T;
    using Out = T;
    using Accumulator = typename ::Element<T>::Value;
    static constexpr bool counts = false, exact = true, repeats = true;
    static constexpr bool pairs = sizeof(T) <= 2;  // two elements in a word merge at once

    __device__ explicit Max(const Norm&) {}
    __device__ Accumulator start() const { return lowest<T>(); }
    __device__ T padding() const { return lowest_element<T>(); }
    template <class Code> __device__ Accumulator lift(Accumulator v, Code) const { return v; }
    __device__ Accumulator merge(Accumulator a, Accumulator b) const { return maximum(a, b); }
    __device__ unsigned merge_pairs(unsigned a, unsigned b) const { return maximum_of_pairs<T>(a, b); }
    template <class Count> __device__ Out finish(Accumulator a, Count) const {
        return Round<T>::from(a);
    }
};

// A tap and where it is in its window.
template <class Value, class Code> struct Found {
    Value best;
    Code code;
};

// MaxPool with Indices. A window starts on its first valid tap, so that all -inf names that one;
// the kernel reads the element again where the code says. To is the type of Indices.
template <class T, class Code, class To> struct ArgMax : OperatorDefaults {
    using Element = T;
    using Out = T;
    using Index = To;
    using Value = typename ::Element<T>::Value;
    using Accumulator = Found<Value, Code>;
    static constexpr bool indices = true, counts = false, exact = true, pairs = false;

    __device__ explicit ArgMax(const Norm&) {}
    __device__ Accumulator start() const { return {lowest<T>(), 0}; }
    __device__ Accumulator lift(Value v, Code code) const { return {v, code}; }
    __device__ Accumulator merge(const Accumulator& a, const Accumulator& b) const {
        if (displaces(b.best, a.best)) return b;
        return b.code < a.code && !displaces(a.best, b.best) ? b : a;
    }
    template <class Count> __device__ Code finish(const Accumulator& a, Count) const {
        return a.code;
    }
};

// The same of parts that merge in the order of their taps only, whose codes need no comparison then. A tap
// repeated in front of its place brings another code, which the kernel has to mend.
template <class T, class Code, class To> struct FirstMax : ArgMax<T, Code, To> {
    using typename ArgMax<T, Code, To>::Accumulator;
    static constexpr bool repeats = true;

    using ArgMax<T, Code, To>::ArgMax;
    __device__ T padding() const { return lowest_element<T>(); }
    __device__ Accumulator merge(const Accumulator& a, const Accumulator& b) const {
        return displaces(b.best, a.best) ? b : a;
    }
};

// The same of parts in any order, which may have taps in common: one Word holds a maximum and, in its lower
// half, how far its place is in front of the last one, so that the greater word is the first of equal
// maxima. The kernel numbers places, by 32 bits at most, and reads the element again there.
template <class T, class To, class Word> struct PlacedMax : OperatorDefaults {
    using Element = T;
    using Out = T;
    using Index = To;
    using Accumulator = Word;
    static constexpr bool indices = true, counts = false, exact = true, pairs = false, repeats = true;
    static constexpr int half = 4 * sizeof(Word);
    static constexpr unsigned last = half < 32 ? 0xffff : 0xffffffff;
    static_assert(sizeof(T) <= sizeof(Word) / 2);

    __device__ explicit PlacedMax(const Norm&) {}
    // Less than any tap: of equal parts the later one is lost.
    __device__ Word start() const { return word(in_order(lowest_element<T>()) - 1, 0); }
    __device__ Word lift(T x, unsigned place) const { return word(in_order(x), last - place); }
    template <class Key> __device__ static Word word(Key key, unsigned in_front) {
        if constexpr (half > 32) return {key, in_front};
        else return Word(key) * (Word(1) << half) | Word(in_front);
    }
    __device__ Word merge(Word a, Word b) const { return most(a, b); }
    // A part and a later one, whose places need no comparison.
    __device__ Word merge_in_order(Word a, Word b) const {
        if constexpr (half > 32) return chosen(less(a.key, b.key), b, a);
        else return most(a, b);
    }
    __device__ static unsigned in_front(Word a) {
        if constexpr (half > 32) return a.in_front();
        else return unsigned(a) & last;
    }
    __device__ unsigned place(Word a) const { return last - in_front(a); }
};

// What second looks have in common: a sum, mostly in double.
template <class Sum = double> struct SecondLook {
    using Accumulator = Sum;
    static constexpr bool rare = true;

    __device__ Sum start() const { return 0; }
    __device__ Sum merge(Sum a, Sum b) const { return add(a, b); }
};

// The sum of all taps: narrower ones in double, doubles divided by 2^64, which no window can overflow.
template <class T> struct ScaledSum : SecondLook<> {
    static constexpr double scale = sizeof(T) < sizeof(double) ? 1 : 1.0 / 18446744073709551616.0;

    template <class V, class Code> __device__ Accumulator lift(V v, Code) const {
        return widen(v) * scale;
    }
    template <class Count> __device__ double mean(Accumulator a, Count count) const {
        double mean = quotient(a, count);
        if (!finite(a)) mean = a;
        if constexpr (scale == 1) return mean;
        const double limit = greatest<double>() * scale;
        if (finite(a)) mean = mean > limit ? limit : mean < -limit ? -limit : mean;
        return mean / scale;
    }
};

template <class T> struct Average : OperatorDefaults {
    using Element = T;
    using Out = T;
    using Accumulator = typename ::Element<T>::Value;
    static constexpr bool counts = true, pairs = false;
    static constexpr bool exact = ::Element<T>::half;
    static constexpr int flight = exact ? OperatorDefaults::flight : 2, powers = exact ? 0 : 1;

    __device__ explicit Average(const Norm&) {}
    __device__ Accumulator start() const { return 0; }
    __device__ T padding() const { return T{}; }
    template <class Code> __device__ Accumulator lift(Accumulator v, Code) const { return v; }
    __device__ Accumulator merge(Accumulator a, Accumulator b) const { return add(a, b); }
    __device__ bool certain(Accumulator a) const { return finite(a); }
    struct Doubts { Accumulator d = 0; };
    __device__ void watch(Doubts& doubts, Accumulator a) const { doubts.d = doubt(doubts.d, a); }
    __device__ bool lost(Doubts) const { return false; }
    __device__ bool overflowed(Doubts doubts) const { return doubtful(doubts.d); }
    using Doubt = Accumulator;
    __device__ Doubt doubt(Doubt d, Accumulator a) const { return multiply_add(a, Accumulator(0), d); }
    __device__ bool doubtful(Doubt d) const { return !(d == 0); }
    template <class Count> __device__ Accumulator unrounded(Accumulator a, Count count) const {
        if constexpr (exact) return normal_quotient(a, count);
        else return quotient(a, count);
    }
    template <class Count> __device__ Out finish(Accumulator a, Count count) const {
        return Round<T>::from(unrounded(a, count));
    }
    template <class Traverse, class Count>
    __device__ Out careful(Traverse& traverse, Count count) const {
        const ScaledSum<T> scaled{};
        return Round<T>::from(scaled.mean(traverse(scaled), count));
    }
};

// The average of 8-bit integers: an exact sum, then one rounding to To, half to even.
template <class T, class To, class Sum> struct IntegerAverage : OperatorDefaults {
    using Element = T;
    using Out = To;
    using Accumulator = Sum;
    static constexpr bool counts = true, exact = true, pairs = false;
    static constexpr int paired_taps = 65535 / 255;

    __device__ explicit IntegerAverage(const Norm&) {}
    __device__ Accumulator start() const { return 0; }
    __device__ T padding() const { return T{}; }
    template <class Code> __device__ Accumulator lift(int v, Code) const { return v; }
    __device__ Accumulator merge(Accumulator a, Accumulator b) const { return a + b; }
    __device__ unsigned merge_pairs(unsigned a, unsigned b) const { return a + b; }
    __device__ Accumulator apart(unsigned pair, int half, int taps) const {
        const int zero = Halves<T>::beside(T{}, T{}) & 0xffff;
        return static_cast<int>(half ? pair >> 16 : pair & 0xffff) - zero * taps;
    }
    template <class Count> __device__ Out finish(Accumulator a, Count count) const {
        if constexpr (::Element<To>::integer) return Round<To>::from(mean_of_bytes(a, count));
        else return Round<To>::from(quotient(static_cast<double>(a), count));
    }
};

// The same for windows of paired_taps at most, whose sums share a word with others. Padding is
// what adds nothing to a word.
template <class Op> struct Paired : Op {
    static constexpr bool pairs = true;

    using Op::Op;
    __device__ typename Op::Element padding() const { return Halves<typename Op::Element>::element(0, 0); }
};

// A function, not inlined: several copies of a pow take the compiler longer than all the rest.
template <class V> __device__ __noinline__ V any_power(V m, V exponent) { return pow(m, exponent); }
// What is lost of the exponent is so little that few digits of the logarithm do.
template <class V> __device__ inline V any_root(V total, V exponent, V slip) {
    return any_power(total, exponent) * (1 + slip * rough_logarithm(total));
}

// P is the norm where it is 1, 2 or 3, and 0 for any other.
template <int P, class V> __device__ inline V power(V m, const Norm& norm) {
    if constexpr (P == 1) return m;
    else if constexpr (P == 2) return multiply(m, m);
    else if constexpr (P == 3) return multiply(multiply(m, m), m);
    else return any_power(m, static_cast<V>(norm.p));
}

template <int P, class V> __device__ inline V root(V total, const Norm& norm) {
    if constexpr (P == 1) return total;
    else if constexpr (P == 2) return square_root(total);
    else if constexpr (P == 3) return cbrt(total);
    else return any_root(total, static_cast<V>(norm.exponent), static_cast<V>(norm.slip));
}

// The sum of powers of narrower taps, which a double neither overflows nor loses.
template <int P> struct WidePowers : SecondLook<> {
    Norm norm;

    __device__ explicit WidePowers(const Norm& n) : norm(n) {}
    template <class V, class Code> __device__ Accumulator lift(V v, Code) const {
        return power<P>(magnitude(widen(v)), norm);
    }
};

// In two passes, so that nothing overflows or is lost: the greatest tap, then the sum of powers of taps
// divided by a power of two near it; of any power by the greatest itself, for 1 is 1 to any power:
// between 1 and the number of taps. Below p = 0.5 the powers are divided, which all are normal numbers:
// the quotient of two taps may underflow where its power counts.
template <int P, class Sum> struct RelativePowers : SecondLook<Sum> {
    static constexpr bool small_powers = P == 0 && sizeof(Sum) == sizeof(double);
    Norm norm;
    Sum up = 1, down = 1;  // of any power: divisors of taps and of powers
    bool sums = false;

    __device__ explicit RelativePowers(const Norm& n) : norm(n) {}
    template <class V, class Code> __device__ Sum lift(V v, Code) const {
        const Sum tap = magnitude(as<Sum>(v));
        if (!sums) return tap;
        const Sum part = power<P>(P == 0 ? divide(tap, up) : multiply(tap, down), norm);
        return small_powers ? divide(part, down) : part;
    }
    __device__ Sum merge(Sum a, Sum b) const { return sums ? add(a, b) : maximum(a, b); }
    // After the first pass: there is a sum unless all is 0, infinite or NaN.
    __device__ void relate(Sum greatest) {
        sums = as<double>(greatest) > 0 && finite(greatest);
        if constexpr (P != 0) {
            const Scale scale(greatest);
            up = scale.up, down = scale.down;
        } else if (small_powers && norm.p < 0.5) {
            down = power<P>(greatest, norm);
        } else {
            up = greatest;
        }
    }
    __device__ Sum result(Sum a, Sum greatest) const {
        if constexpr (small_powers) {
            // Half of the root twice: the whole may overflow where the product does not.
            const double half = any_root<double>(a, norm.exponent / 2, norm.slip / 2);
            const double whole = half * half;
            return finite(whole) ? scaled(whole, greatest) : scaled(half, greatest * half);
        }
        return scaled(root<P>(a, norm), P == 0 ? greatest : up);
    }
    // What only roundings take above the greatest number is that.
    __device__ Sum scaled(Sum part, Sum scale) const {
        const Sum whole = multiply(part, scale);
        const Sum least = multiply(multiply(part, static_cast<Sum>(norm.at_least)), scale);
        return finite(whole) || !finite(least) ? whole : ::greatest<Sum>();
    }
};

template <class T, int P, class Sum> struct Lp : OperatorDefaults {
    using Element = T;
    using Out = T;
    using Accumulator = Sum;
    static constexpr bool counts = false, pairs = false, slow = P == 0;
    // Powers of Half are normal numbers, and so are their sums, but for 0 and what is not finite.
    static constexpr bool exact = P != 0 && ::Element<T>::half;
    static constexpr int flight = slow || sizeof(T) == sizeof(double) ? 1 : 2, powers = exact ? 0 : P;
    Norm norm;

    __device__ explicit Lp(const Norm& n) : norm(n) {}
    __device__ Accumulator start() const { return 0; }
    __device__ T padding() const { return T{}; }
    template <class V, class Code> __device__ Accumulator lift(V v, Code) const {
        const Sum tap = as<Sum>(v);
        return power<P>(P == 2 ? tap : magnitude(tap), norm);  // a square needs no magnitude
    }
    __device__ Accumulator merge(Accumulator a, Accumulator b) const { return add(a, b); }
    __device__ bool certain(Accumulator a) const { return !doubtful(doubt(0, a)); }
    struct Doubts { unsigned low = 0x7fffffff, high = 0; };
    __device__ void watch(Doubts& doubts, Accumulator a) const {
        doubts.low = least(doubts.low, leading_bits(a)), doubts.high = most(doubts.high, leading_bits(a));
    }
    __device__ bool lost(Doubts doubts) const { return doubts.low < norm.least; }
    __device__ bool overflowed(Doubts doubts) const { return doubts.high >= norm.least + norm.accurate; }
    // Bits of positive floats are ordered as they are.
    using Doubt = unsigned;
    __device__ Doubt doubt(Doubt d, Accumulator a) const {
        return most(d, leading_bits(a) - norm.least);
    }
    __device__ bool doubtful(Doubt d) const { return d >= norm.accurate; }
    template <class Count> __device__ Accumulator unrounded(Accumulator a, Count) const {
        if constexpr (exact && P == 2) return rough_square_root(a);
        else return root<P>(a, norm);
    }
    template <class Count> __device__ Out finish(Accumulator a, Count count) const {
        return Round<T>::from(unrounded(a, count));
    }
    template <class Traverse, class Count>
    __device__ Out careful(Traverse& traverse, Count) const {
        if constexpr (P != 0 && sizeof(T) < sizeof(double)) {
            const WidePowers<P> wide(norm);
            return Round<T>::from(root<P>(traverse(wide), norm));
        } else {
            RelativePowers<P, Sum> look(norm);
            Sum result = 0;
#pragma unroll 1
            for (int pass = 0; pass < 2; ++pass) {
                const Sum a = traverse(look);
                if (pass == 0) result = a, look.relate(a);
                else if (look.sums) result = look.result(a, result);
                if (!traverse.any(look.sums)) break;
            }
            return Round<T>::from(result);
        }
    }
};

// Two maxima, or two sums of bytes, in the halves of a word.
template <class Op> struct Twin : Op {
    using Accumulator = unsigned;
    using Op::Op;
    __device__ Accumulator start() const {
        return Halves<typename Op::Element>::beside(this->padding(), this->padding());
    }
    __device__ Accumulator merge(Accumulator a, Accumulator b) const { return this->merge_pairs(a, b); }
};
// The operator of what words hold, where it merges pairs, else the operator itself.
template <class Op, bool Pairs = Op::pairs> struct Held {
    using Type = Op;
    using Tap = typename Element<typename Op::Element>::Value;
};
template <class Op> struct Held<Op, true> {
    using Type = Twin<Op>;
    using Tap = unsigned;
};
template <class T, class To, class Word> struct Held<PlacedMax<T, To, Word>, false> {
    using Type = PlacedMax<T, To, Word>;
    using Tap = T;
};

// The result of one output: plain where that is certain, careful where it is not.
template <class Op, class Traverse, class Count>
__device__ inline auto result(const Op& op, Traverse& traverse, Count count) {
    auto a = traverse(op);
    if constexpr (!Op::exact) {
        bool certain = op.certain(a);
        if (traverse.any(!certain)) {
            auto exact = op.careful(traverse, count);
            if (!certain) return exact;
        }
    }
    return op.finish(a, count);
}
