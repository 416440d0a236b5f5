// The operators: each is what a single tap adds, how partial results merge, and the result.
//
//   start()                      nothing seen yet
//   add(accumulator, v, code)    one tap; code numbers the valid taps of the window, row-major
//   merge(accumulator, other)    what other threads saw
//   result(traverse, count)      the rounded result; traverse(op) reduces the window with op, so
//                                an operator may look twice when once was not accurate enough;
//                                threads that share a window look together: traverse.any(wanted)
#pragma once
#include "element.cuh"

// Numbers that LpPool needs at run time: p, its reciprocal as a double and what that rounding lost,
// and the least sum of powers that is still accurate.
struct Norm {
    double p, exponent, slip, least;
};

template <class T> struct Max {
    using Element = T;
    using Out = T;
    using Accumulator = typename ::Element<T>::Value;
    static constexpr bool indices = false;

    __device__ Max() {}
    __device__ explicit Max(const Norm&) {}
    __device__ Accumulator start() const { return lowest<T>(); }
    template <class Code> __device__ void add(Accumulator& a, Accumulator v, Code) const {
        a = maximum(a, v);
    }
    __device__ void merge(Accumulator& a, Accumulator b) const { a = maximum(a, b); }
    template <class Traverse, class Count> __device__ Out result(Traverse& traverse, Count) const {
        return Round<T>::from(traverse(*this));
    }
};

// MaxPool with Indices. A window starts on its first valid tap, so that all -inf names that one;
// the kernel reads the element again where code says and writes -1 for a window without taps.
template <class T, class Code> struct ArgMax {
    using Element = T;
    using Out = T;
    using Value = typename ::Element<T>::Value;
    struct Accumulator {
        Value best;
        Code code;
    };
    static constexpr bool indices = true;

    __device__ explicit ArgMax(const Norm&) {}
    __device__ Accumulator start() const { return {lowest<T>(), 0}; }
    __device__ void add(Accumulator& a, Value v, Code code) const {
        if (displaces(v, a.best)) a = {v, code};
    }
    __device__ void merge(Accumulator& a, const Accumulator& b) const {
        bool greater = displaces(b.best, a.best);
        bool equal = !greater && !displaces(a.best, b.best);
        if (greater || (equal && b.code < a.code)) a = b;
    }
    template <class Traverse, class Count> __device__ Code result(Traverse& traverse, Count) const {
        return traverse(*this).code;
    }
};

// The sum of all taps divided by 2^64, which no window can overflow.
struct ScaledSum {
    using Accumulator = double;
    static constexpr double scale = 1.0 / 18446744073709551616.0;

    __device__ Accumulator start() const { return 0; }
    template <class V, class Code> __device__ void add(Accumulator& a, V v, Code) const {
        a += widen(v) * scale;
    }
    __device__ void merge(Accumulator& a, Accumulator b) const { a += b; }
    template <class Count> __device__ double mean(Accumulator a, Count count) const {
        double greatest = 1.7976931348623157e308 * scale;
        double mean = a / static_cast<double>(count);
        if (finite(a)) mean = mean > greatest ? greatest : mean < -greatest ? -greatest : mean;
        return mean / scale;
    }
};

template <class T> struct Average {
    using Element = T;
    using Out = T;
    using Accumulator = typename ::Element<T>::Value;
    static constexpr bool indices = false;

    __device__ explicit Average(const Norm&) {}
    __device__ Accumulator start() const { return 0; }
    template <class Code> __device__ void add(Accumulator& a, Accumulator v, Code) const {
        a = ::add(a, v);
    }
    __device__ void merge(Accumulator& a, Accumulator b) const { a = ::add(a, b); }
    template <class Traverse, class Count> __device__ Out result(Traverse& traverse, Count count) const {
        Accumulator sum = traverse(*this);
        if (traverse.any(!finite(sum))) {
            ScaledSum scaled;
            double mean = scaled.mean(traverse(scaled), count);
            if (!finite(sum)) return Round<T>::from(mean);
        }
        return Round<T>::from(divide(sum, static_cast<Accumulator>(count)));
    }
};

// The average of 8-bit integers: an exact sum, then one rounding to To, half to even.
template <class T, class To, class Sum> struct IntegerAverage {
    using Element = T;
    using Out = To;
    using Accumulator = Sum;
    static constexpr bool indices = false;

    __device__ explicit IntegerAverage(const Norm&) {}
    __device__ Accumulator start() const { return 0; }
    template <class Code> __device__ void add(Accumulator& a, int v, Code) const { a += v; }
    __device__ void merge(Accumulator& a, Accumulator b) const { a += b; }
    template <class Traverse, class Count> __device__ Out result(Traverse& traverse, Count count) const {
        Accumulator sum = traverse(*this);
        // Below 2^15 taps a float32 quotient never lands on a half that is not one.
        if constexpr (::Element<To>::integer) {
            if (count < 32768)
                return Round<To>::from(static_cast<int>(
                    rintf(divide(static_cast<float>(sum), static_cast<float>(count)))));
            return Round<To>::from(
                static_cast<int>(rint(static_cast<double>(sum) / static_cast<double>(count))));
        } else {
            return Round<To>::from(static_cast<double>(sum) / static_cast<double>(count));
        }
    }
};

// P is the norm where it is 1, 2 or 3, and 0 for any other.
template <int P, class V> __device__ inline V power(V m, const Norm& norm) {
    if constexpr (P == 1) return m;
    else if constexpr (P == 2) return multiply(m, m);
    else if constexpr (P == 3) return multiply(multiply(m, m), m);
    else return pow(m, static_cast<V>(norm.p));
}

template <int P, class V> __device__ inline V root(V total, const Norm& norm) {
    if constexpr (P == 1) return total;
    else if constexpr (P == 2) return sqrt(total);
    else if constexpr (P == 3) return cbrt(total);
    else return pow(total, static_cast<V>(norm.exponent)) *
                (1 + static_cast<V>(norm.slip) * log(total));
}

struct Greatest {
    using Accumulator = double;

    __device__ Accumulator start() const { return 0; }
    template <class V, class Code> __device__ void add(Accumulator& a, V v, Code) const {
        a = maximum(a, magnitude(widen(v)));
    }
    __device__ void merge(Accumulator& a, Accumulator b) const { a = maximum(a, b); }
};

// The sum of powers of taps divided by the greatest: between 1 and their number.
template <int P> struct ScaledPowers {
    using Accumulator = double;
    Norm norm;
    double greatest;

    __device__ Accumulator start() const { return 0; }
    template <class V, class Code> __device__ void add(Accumulator& a, V v, Code) const {
        a += power<P>(magnitude(widen(v)) / greatest, norm);
    }
    __device__ void merge(Accumulator& a, Accumulator b) const { a += b; }
    // Half of the root twice: the whole may overflow where the product does not.
    __device__ double result(Accumulator a) const {
        double half = pow(a, norm.exponent / 2) * (1 + norm.slip / 2 * log(a));
        return greatest * half * half;
    }
};

template <class T, int P, class Sum> struct Lp {
    using Element = T;
    using Out = T;
    using Accumulator = Sum;
    static constexpr bool indices = false;
    Norm norm;

    __device__ explicit Lp(const Norm& n) : norm(n) {}
    __device__ Accumulator start() const { return 0; }
    template <class V, class Code> __device__ void add(Accumulator& a, V v, Code) const {
        a = ::add(a, power<P>(magnitude(Sum(v)), norm));
    }
    __device__ void merge(Accumulator& a, Accumulator b) const { a = ::add(a, b); }
    template <class Traverse, class Count> __device__ Out result(Traverse& traverse, Count) const {
        Accumulator total = traverse(*this);
        Sum norm_of_taps = root<P>(total, norm);
        bool certain = total > static_cast<Sum>(norm.least) && finite(total) && norm_of_taps > 0 &&
                       finite(norm_of_taps);
        if (traverse.any(!certain)) {
            double exact = careful(traverse);
            if (!certain) return Round<T>::from(exact);
        }
        return Round<T>::from(norm_of_taps);
    }

    // Two more looks: the greatest tap, which decides when it is 0, infinite or NaN, and the sum
    // of powers relative to it.
    template <class Traverse> __device__ double careful(Traverse& traverse) const {
        double greatest = traverse(Greatest{});
        bool scales = greatest > 0 && finite(greatest);
        if (!traverse.any(scales)) return greatest;
        ScaledPowers<P> scaled{norm, greatest};
        double sum = traverse(scaled);
        return scales ? scaled.result(sum) : greatest;
    }
};
